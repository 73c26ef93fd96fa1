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

#[cfg(test)]
mod tests {
    use crate::flannel::config::Config;
    use crate::object::{PROTOCOL, Value};
    use crate::settings::{NodeFacts, Settings, Uplink};
    use crate::time::Time;
    use net::PerFamily;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn settings() -> Settings {
        let space_ranges = vec![net("10.9.0.0/16")];
        Settings { space_ranges, ..Settings::new(vec![net("10.244.0.0/16")]) }
    }

    fn in_flannels_place() -> Settings {
        let config = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;
        Config::read(config).unwrap().settings("f/")
    }

    /// Node a: 10.244.1.0/24 at 192.0.2.1.
    fn known(settings: &Settings) -> Routing {
        let uplink = Uplink { name: "eth0".into(), mtu: 1500 };
        let facts = NodeFacts {
            name: "a".to_owned(),
            uid: String::new(),
            prefixes: vec![net("10.244.1.0/24")],
            kept: Vec::new(),
            zone: None,
            uplinks: PerFamily { v4: Some((uplink, "192.0.2.1".parse().unwrap())), v6: None },
            taken_over: PerFamily::default(),
        };
        let mut routing = Routing::new(settings.clone(), "a");
        routing.own(OwnNode::new(settings, facts), Time::default());
        routing
    }

    fn source() -> SourceNode {
        SourceNode::of_lease(vec![net("10.244.1.0/24")], b"{}", &PerFamily::default(), None)
    }

    /// Returns the link of which a range overlaps something.
    fn overlap_of(
        routing: &Routing,
        observed: &ObservedObjects,
        of_nodes: &[&str],
        host: &[(&str, &str)],
    ) -> Option<String> {
        let of_nodes: Vec<IpNet> = of_nodes.iter().map(|text| net(text)).collect();
        let used = |(link, prefix): &(&str, &str)| HostPrefix {
            link: (*link).into(),
            prefix: net(prefix),
        };
        let host = || host.iter().map(used).collect();
        let sentence = routing.overlap(observed, &of_nodes, host)?;
        let (_, rest) = sentence.split_once(" overlaps ").unwrap();
        rest.split_once('\'').map(|(link, _)| link.to_owned())
    }

    #[test]
    fn what_the_host_uses_is_not_routed_before_anything_is_programmed() {
        let mut routing = known(&settings());
        let nothing = ObservedObjects::default();
        let of_cluster = [("eth1", "10.244.7.1/24")];
        assert_eq!(overlap_of(&routing, &nothing, &[], &of_cluster).as_deref(), Some("eth1"));
        // A routing daemon's route to a node's prefix.
        assert_eq!(overlap_of(&routing, &nothing, &["10.244.7.0/24"], &of_cluster), None);
        let permitted = Settings { allow_overlap: true, ..settings() };
        assert_eq!(overlap_of(&known(&permitted), &nothing, &[], &of_cluster), None);

        // An earlier run has programmed the cluster's range; the space is new.
        let (key, value) = (
            Key::Unreachable { prefix: net("10.244.0.0/16") },
            Value::Unreachable { protocol: PROTOCOL },
        );
        let earlier: ObservedObjects = [(key, value)].into_iter().collect();
        assert_eq!(overlap_of(&routing, &earlier, &[], &of_cluster), None);
        let of_space = [("eth2", "10.9.3.1/24")];
        assert_eq!(overlap_of(&routing, &earlier, &[], &of_space).as_deref(), Some("eth2"));
        routing.look_is_over();
        assert_eq!(overlap_of(&routing, &earlier, &[], &of_space), None);
    }

    /// flanneld leaves its route to a node that goes while flanneld does not run.
    #[test]
    fn what_flanneld_has_left_is_in_no_ones_way() {
        let host = [("flannel.1", "10.244.7.0/24")];
        let left = ForeignRoute {
            metric: 0,
            protocol: 3,
            link: Some("flannel.1".into()),
            gateway: Some("10.244.7.0".parse().unwrap()),
        };
        let mut observed = ObservedObjects::default();
        observed.foreign.insert(net("10.244.7.0/24"), vec![left]);
        let in_its_place = known(&in_flannels_place());
        assert_eq!(overlap_of(&in_its_place, &observed, &["10.244.2.0/24"], &host), None);
        let of = |settings: &Settings, of_nodes: &[&str]| {
            overlap_of(&known(settings), &observed, of_nodes, &host).is_some()
        };
        // No other node has a prefix of that length, or this cluster has never had a flanneld.
        assert!(of(&in_flannels_place(), &["10.244.16.0/20"]));
        assert!(of(&settings(), &["10.244.2.0/24"]));
    }

    #[test]
    fn a_router_may_announce_no_prefix_of_pods_but_where_the_network_knows_them() {
        let is_alone = |routing: &Routing| {
            ["10.244.1.0/24", "10.244.2.0/24", "10.9.0.0/24", "192.0.2.0/24"]
                .map(|prefix| routing.is_of_pods_alone(net(prefix)))
        };
        assert_eq!(is_alone(&known(&settings())), [true, true, true, false]);
        let permitted = Settings { allow_overlap: true, ..settings() };
        assert_eq!(is_alone(&known(&permitted)), [true, false, false, false]);
        let native = Settings { paths: crate::settings::Paths::Native, ..settings() };
        assert_eq!(is_alone(&known(&native)), [true, false, false, false]);
    }

    #[test]
    fn a_node_publishes_itself_to_ours_and_in_flannelds_place_to_flannelds() {
        let keys = |settings: &Settings| -> Vec<String> {
            let routing = known(settings);
            let all = routing.annotations(routing.cluster().own(), Some(&source()));
            all.into_keys().collect()
        };
        assert_eq!(keys(&settings()), [annotation::KEY]);
        let in_its_place = in_flannels_place();
        let all = keys(&in_its_place);
        assert!(all.iter().any(|key| key == annotation::KEY), "{all:?}");
        assert!(all.iter().any(|key| key == "f/backend-data"), "{all:?}");
        assert!(keys(&Settings { standby: true, ..in_its_place }).is_empty());
    }

    #[test]
    fn a_prefix_that_a_node_had_is_kept_while_pods_live_in_it() {
        let mut routing = known(&settings());
        let source = source();
        assert!(!routing.had_prefixes(&source, []));
        // A block that was given up is another node's by now.
        assert!(!routing.had_prefixes(&source, [net("10.9.0.0/29")]));
        assert!(routing.had_prefixes(&source, [net("10.244.8.0/24")]));
        let routed = vec!["10.244.8.7".parse().unwrap()];
        assert_eq!(routing.keep_earlier(&source, &Pods { routed, ..Pods::default() }).len(), 1);
        assert_eq!((routing.kept(), routing.has_earlier()), (vec![net("10.244.8.0/24")], true));
        routing.keep_earlier(&source, &Pods::default());
        assert_eq!((routing.kept(), routing.has_earlier()), (Vec::new(), false));
    }
}
