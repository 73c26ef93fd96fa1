//! This node: what it is, what it publishes, and whether anything may be programmed on it.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::Routing;
use crate::cluster::News;
use crate::earlier::Pods;
use crate::identity::HostFacts;
use crate::object::Key;
use crate::overlap::{self, HostPrefix};
use crate::plan::{ForeignRoute, ObservedObjects};
use crate::settings::{LinkName, OwnNode};
use crate::source_node::SourceNode;
use crate::{annotation, flannel};
use net::IpFamily;

impl Routing {
    /// Finds out what this node is, if its source says this; without earlier prefixes, blocks, and
    /// the links on the segments of its addresses.
    ///
    /// # Errors
    /// Why it cannot be a node of the cluster, in a sentence.
    pub fn identify(&mut self, source: &SourceNode, host: &HostFacts) -> Result<OwnNode, String> {
        let name = &self.cluster.own().node.name;
        self.identity.decide(&self.settings, name, source, host)
    }

    /// Reports the prefixes of this node that are not used, as the cluster has no range of their
    /// family.
    pub fn note_unused(&mut self, source: &SourceNode) {
        let unused = source.unused.iter().map(|prefix| {
            let family = IpFamily::of_prefix(*prefix);
            format!("this node's prefix {prefix} is not used: the cluster has no range of {family}")
        });
        let unused = unused.collect();
        self.notice("families", unused);
    }

    /// Takes the prefixes that the source gives this node, and those for which it has routes
    /// already. Returns whether pods may live in another one: then [`Routing::keep_earlier`] has to
    /// decide.
    pub fn had_prefixes(
        &mut self,
        source: &SourceNode,
        there: impl IntoIterator<Item = IpNet>,
    ) -> bool {
        let settings = &self.settings;
        // A block that this node has given up belongs to no node, or to another one.
        let there = there.into_iter().filter(|prefix| !settings.is_of_space(*prefix));
        let of_source = source.prefixes.iter().chain(&source.kept).copied();
        self.identity.earlier.had(of_source.chain(there));
        self.identity.earlier.differs(&source.prefixes) || self.identity.earlier.has_any()
    }

    /// Decides which of the prefixes that this node had are kept, since pods may live in them.
    /// Returns what has changed, for the log.
    pub fn keep_earlier(&mut self, source: &SourceNode, pods: &Pods) -> Vec<News> {
        let cluster = &self.cluster;
        let owner = |prefix| cluster.owner_of(prefix).map(str::to_owned);
        let news = self.identity.earlier.judge(&source.prefixes, pods, owner);
        let losses = self.identity.earlier.losses();
        self.notice("earlier prefixes", losses);
        news
    }

    /// Returns the earlier prefixes that are kept.
    #[must_use]
    pub fn kept(&self) -> Vec<IpNet> {
        self.identity.earlier.kept()
    }

    /// Reports whether pods may live in a prefix that this node had before.
    #[must_use]
    pub fn has_earlier(&self) -> bool {
        self.identity.earlier.has_any()
    }

    /// Says why nothing may be programmed on this host: before anything is programmed, a range of
    /// pods must not overlap one that the host uses. A space may be newer than the other ranges, so
    /// it is checked by itself. `of_nodes` are the prefixes of all nodes, as the source says; `host`
    /// lists what the host uses.
    #[must_use]
    pub fn overlap(
        &self,
        observed: &ObservedObjects,
        of_nodes: &[IpNet],
        host: impl FnOnce() -> Vec<HostPrefix>,
    ) -> Option<String> {
        let ranges = self.ranges_to_check(observed);
        if self.settings.allow_overlap || ranges.is_empty() {
            return None;
        }
        let left = self.flannels_leftovers(observed, of_nodes);
        let blocks = self.cluster.block_prefixes();
        let of_nodes: Vec<IpNet> = of_nodes.iter().copied().chain(blocks).chain(left).collect();
        let mut used = host();
        used.retain(|host| !of_nodes.iter().any(|of| of.contains(&host.prefix.trunc())));
        overlap::find(&ranges, &used).first().map(ToString::to_string)
    }

    /// Returns the ranges of pods for which nothing is programmed yet.
    fn ranges_to_check(&self, observed: &ObservedObjects) -> Vec<IpNet> {
        let objects = observed.objects();
        let is_empty = objects.keys().all(Key::is_filter);
        let is_new = |range: &&IpNet| {
            // Where paths are native, the range has no route of ours, but blocks of this node do.
            let is_of = |key: &Key| match key {
                Key::Route { prefix } | Key::Unreachable { prefix } => range.contains(prefix),
                _ => false,
            };
            !self.settled && !objects.keys().any(is_of)
        };
        let of_cluster = self.settings.cluster_ranges.iter().filter(|_| is_empty);
        let of_spaces = self.settings.space_ranges.iter().filter(is_new);
        of_cluster.chain(of_spaces).copied().collect()
    }

    /// Returns the prefixes of routes that flanneld has left to nodes that went while it did not
    /// run. Such a prefix is as long as those of other nodes.
    fn flannels_leftovers<'a>(
        &self,
        observed: &'a ObservedObjects,
        of_nodes: &[IpNet],
    ) -> impl Iterator<Item = IpNet> + use<'a> {
        let length = |prefix: &IpNet| (prefix.max_prefix_len(), prefix.prefix_len());
        let lengths: BTreeSet<(u8, u8)> = match self.settings.flannel {
            Some(_) => of_nodes.iter().map(length).collect(),
            None => BTreeSet::new(),
        };
        let left = observed.foreign.iter().filter(move |(prefix, routes)| {
            lengths.contains(&length(prefix)) && routes.iter().all(ForeignRoute::may_be_flannels)
        });
        left.map(|(prefix, _)| *prefix)
    }

    /// Returns what this node's Node publishes to other nodes: to those of ours, and to flannelds.
    #[must_use]
    pub fn annotations(
        &self,
        own: &OwnNode,
        source: Option<&SourceNode>,
    ) -> BTreeMap<String, String> {
        if self.settings.standby {
            return BTreeMap::new();
        }
        let mut annotations = match (&self.settings.flannel, source) {
            (Some(of_flannel), Some(source)) => {
                flannel::annotations::write(&own.node, of_flannel, &source.annotations)
            }
            _ => BTreeMap::new(),
        };
        annotations.insert(annotation::KEY.to_owned(), annotation::write(&own.node));
        annotations
    }

    /// Reports whether this node may program anything: it is known, and flanneld does not do its
    /// part.
    #[must_use]
    pub fn may_program(&self) -> bool {
        !self.settings.standby && self.waiting.is_none()
    }

    /// Reports whether this node has to forward packets of a family.
    #[must_use]
    pub fn forwards(&self, family: IpFamily) -> bool {
        self.may_program() && self.has_prefix_of(family)
    }

    /// Reports whether this node's pods have addresses of a family.
    #[must_use]
    pub fn has_prefix_of(&self, family: IpFamily) -> bool {
        self.cluster.own().node.prefixes_of(family).next().is_some()
    }

    /// Reports whether everything of this node itself is programmed, so that a pod may start.
    #[must_use]
    pub fn is_programmed(&self) -> bool {
        let own = self.wanted.keys_of("");
        let is_there = |key: &Key| self.observed.objects().get(key) == self.wanted.get(key);
        self.may_program() && !own.is_empty() && own.iter().all(is_there)
    }

    /// Reports whether addresses of a prefix are pods' alone, so that no router on a link may have
    /// announced it. Where the network between the nodes knows the way to pods, or overlaps with them
    /// by permission, only this node's own prefixes are.
    #[must_use]
    pub fn is_of_pods_alone(&self, prefix: IpNet) -> bool {
        let own = &self.cluster.own().node;
        let is_closed =
            !self.settings.allow_overlap && !self.is_native(IpFamily::of_prefix(prefix));
        let is_in = |range: IpNet| range.contains(&prefix);
        !own.underlay.iter().any(|own| IpNet::from(own) == prefix)
            && (own.all_prefixes().any(is_in) || (is_closed && self.settings.ranges().any(is_in)))
    }

    /// Returns the links by which packets of other nodes may come, as the packet filter has them.
    #[must_use]
    pub fn underlay_links(&self) -> BTreeSet<LinkName> {
        let links = self.wanted.keys_of("").iter().filter_map(|key| match key {
            Key::Link { link } => Some(link.clone()),
            _ => None,
        });
        links.collect()
    }

    /// Takes that the changes of a look were made, or have failed. A node that waits has not made its
    /// own objects yet.
    pub fn look_is_over(&mut self) {
        self.settled = self.waiting.is_none();
    }

    /// Reports whether a look has made everything before: from then on, another program causes every
    /// difference.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled
    }
}
