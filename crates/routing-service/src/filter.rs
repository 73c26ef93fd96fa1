//! The packet filter's table of routing, as the crate `firewall` has it, and when it is brought to
//! what it is to be.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use firewall::FirewallError;
use firewall::cluster::{
    Change, ClusterFilter, ClusterTable, Encapsulation, Member, OpenError, Opener, Rules,
};
use firewall::firewalld::{Firewalld, TRUSTED};
use ipnet::IpNet;
use routing::object::{self, Key, Set};
use routing::plan;
use routing::settings::{LinkName, OwnNode, Settings};
use service_kit::stop::words;
use state::{Index, Roots};

use super::context::Context;
use super::schedule::{Due, TOGETHER};

/// What the service's status calls the table.
const TABLE: &str = "packet filter";

/// How long firewalld may take: it does one thing at a time.
const FIREWALLD_TIME: Duration = Duration::from_secs(10);

/// The table, and what it is to be.
#[derive(Debug)]
pub(super) struct Filter {
    table: ClusterTable,
    wanted: ClusterFilter,
    /// This run has found no table, and makes it.
    is_new: bool,
    /// The table is as wanted; before the first time, elements are only noted.
    stands: bool,
    /// When it was made so beside other objects, if nothing has changed it since.
    brought: Option<Instant>,
    /// The members that follow from this node; the others are elements that routing plans.
    of_node: Vec<Member>,
    /// This host's uplinks.
    uplinks: Vec<Member>,
    /// The ranges of spaces: what of them is this node's changes all the time.
    spaces: Vec<IpNet>,
    index: Index,
    system_bus: Option<String>,
}

impl Filter {
    pub(super) fn open(
        settings: &Settings,
        masquerade: bool,
        roots: &Roots,
    ) -> Result<Self, FirewallError> {
        let tunnels = settings.encapsulations().map(|of| {
            let object::Encapsulation { protocol, port, content } = of;
            Encapsulation { protocol, port, content }
        });
        let rules = Rules { masquerade, tunnels: tunnels.collect() };
        Ok(Filter {
            table: ClusterTable::open()?,
            wanted: ClusterFilter::new(rules, []),
            is_new: false,
            stands: false,
            brought: None,
            of_node: Vec::new(),
            uplinks: Vec::new(),
            spaces: settings.space_ranges.clone(),
            index: Index::new(roots),
            system_bus: roots.system_bus.clone(),
        })
    }

    /// Takes note of what follows from this node; [`Filter::bring`] makes it.
    pub(super) fn set_own(&mut self, own: &OwnNode) {
        let node = &own.node;
        let prefixes = node.prefixes.iter().chain(&node.kept).chain(&self.spaces);
        let prefixes = prefixes.copied().map(Member::Own);
        // The name of a tunnel that is not there may be another link's.
        let tunnels = own.used_tunnels().map(|of| Member::Tunnel(of.name.to_string()));
        let endpoints = node.underlay.iter().map(Member::Endpoint);
        let endpoints = endpoints.filter(|_| node.has_tunnels());
        let of_node: Vec<Member> = prefixes.chain(tunnels).chain(endpoints).collect();
        let remove = std::mem::replace(&mut self.of_node, of_node.clone());
        self.wanted.note(&Change { add: of_node, remove });
        self.brought = None;
    }

    /// Takes note of this host's uplinks; [`Filter::bring`] makes them.
    pub(super) fn set_uplinks(&mut self, links: BTreeSet<LinkName>) {
        let uplinks = links.iter().map(|link| Member::Uplink(link.to_string()));
        let uplinks: Vec<Member> = uplinks.collect();
        let remove = std::mem::replace(&mut self.uplinks, uplinks.clone());
        if remove != uplinks {
            self.brought = None;
        }
        self.wanted.note(&Change { add: uplinks, remove });
    }

    /// Reports whether the table is as wanted.
    pub(super) fn stands(&self) -> bool {
        self.stands
    }

    /// Takes note that another program may have changed the table.
    pub(super) fn may_have_changed(&mut self) {
        self.brought = None;
    }

    /// Takes note of changes of elements; [`Filter::bring`] makes them.
    pub(super) fn note(&mut self, changes: &[plan::Change]) {
        self.wanted.note(&change(changes));
    }

    /// Makes changes of elements in one transaction. The table has noted them even if it fails: the
    /// look that is due then makes them.
    pub(super) fn change(&mut self, context: &Context, changes: &[plan::Change]) -> Due {
        let Err(error) = self.table.change(&mut self.wanted, &change(changes)) else {
            return Due::default();
        };
        self.brought = None;
        context.health.needs(TABLE, Err(words(&error)));
        Due { filter: true, ..Due::default() }
    }

    /// Reports whether the table is still to be made, and it is known what it is to be.
    pub(super) fn may_be_brought(&self, context: &Context) -> bool {
        let routing = context.routing();
        !self.stands && routing.may_program() && routing.cluster().listed()
    }

    /// Brings the table to what it is to be. Returns the differences, in lines.
    pub(super) fn bring(&mut self) -> Result<Vec<String>, FirewallError> {
        Ok(self.table.bring(&self.wanted)?.lines().to_vec())
    }

    /// Takes note whether the table was brought beside other objects: then the look that follows need
    /// not do it again.
    pub(super) fn was_brought(&mut self, is_so: bool) {
        self.brought = is_so.then(Instant::now);
        self.stands = is_so;
    }

    /// Looks at the table, and brings it to what it is to be, once it is known what that is. Returns
    /// whether it is to be looked at again soon.
    pub(super) fn look(&mut self, context: &Context) -> bool {
        let is_brought = self.brought.take().is_some_and(|at| at.elapsed() < TOGETHER);
        let (may, listed) = {
            let routing = context.routing();
            (routing.may_program(), routing.cluster().listed())
        };
        let brought = match (may, listed) {
            (true, true) if is_brought => Ok(Vec::new()),
            (true, true) => self.bring(),
            (true, false) => self.bring_if_missing(),
            (false, _) => Ok(Vec::new()),
        };
        let brought = brought.map_err(|error| words(&error));
        let again = brought.is_err();
        if let Ok(lines) = &brought {
            for what in lines.iter().filter(|_| self.stands) {
                tracing::warn!(what, "put back in the packet filter");
            }
            self.stands |= may && listed;
        }
        context.health.needs(TABLE, brought.map(drop));
        if may {
            let opened = match self.open_others() {
                Ok(closed) if closed.is_empty() => Ok(()),
                Ok(closed) => Err(format!("pods' packets are dropped: {}", closed.join("; "))),
                Err(error) => Err(words(&error)),
            };
            context.health.needs("other packet filters", opened);
        }
        again
    }

    /// Makes the table if there is none, and brings one that this run has made. A table of an earlier
    /// run stays: it may have more nodes.
    fn bring_if_missing(&mut self) -> Result<Vec<String>, FirewallError> {
        if !self.is_new && self.table.exists()? {
            return Ok(Vec::new());
        }
        self.is_new = true;
        self.bring()
    }

    /// Brings the table, before a tunnel comes up: without it, a tunnel takes packets of anybody. If
    /// there is none, it is made without what other nodes have: that may be much, and follows.
    ///
    /// # Errors
    /// Why it could not be made: then no tunnel may come up.
    pub(super) fn bring_before_tunnels(&mut self, context: &Context) -> Result<(), String> {
        if self.stands {
            return Ok(());
        }
        let listed = context.routing().cluster().listed();
        let brought = match listed {
            true => self.bring_without_nodes(),
            false => self.bring_if_missing().map(drop),
        };
        brought
            .map_err(|error| format!("the packet filter comes before tunnels: {}", words(&error)))
    }

    fn bring_without_nodes(&mut self) -> Result<(), FirewallError> {
        if self.table.exists()? {
            return self.bring().map(drop);
        }
        self.is_new = true;
        self.table.bring(&self.wanted.without_nodes()).map(drop)
    }

    /// Lets the cluster's packets through where other software drops what is forwarded. Returns what
    /// drops them all the same.
    fn open_others(&self) -> Result<Vec<String>, OpenError> {
        let closed = self.opener().open(&self.wanted.forwarded())?;
        Ok(closed.iter().map(ToString::to_string).collect())
    }

    /// Removes the table, and what lets packets of these ranges through.
    pub(super) fn remove(&mut self, ranges: &[IpNet]) -> Result<(), OpenError> {
        let table = self.table.remove();
        self.opener().close(ranges).and(table.map_err(OpenError::Kernel))
    }

    fn opener(&self) -> Opener<'_> {
        Opener {
            index: &self.index,
            firewalld: Firewalld::new(self.system_bus.as_deref(), FIREWALLD_TIME),
            zone: TRUSTED.to_owned(),
        }
    }
}

fn change(changes: &[plan::Change]) -> Change {
    let mut all = Change::default();
    for change in changes {
        match change {
            plan::Change::Create(key, _) => all.add.extend(member(key)),
            plan::Change::Remove(key, _) => all.remove.extend(member(key)),
            _ => {}
        }
    }
    all
}

fn member(key: &Key) -> Option<Member> {
    let (set, prefix) = match key {
        Key::Element { set, prefix } => (*set, *prefix),
        Key::Link { link } => return Some(Member::Underlay(link.to_string())),
        _ => return None,
    };
    Some(match set {
        Set::Cluster => Member::Cluster(prefix),
        Set::Exempt => Member::Exempt(prefix),
        Set::Nodes => Member::Node(prefix.addr()),
        Set::Addresses => Member::Address(prefix.addr()),
        Set::Local => Member::Local(prefix),
        Set::Plain => Member::Plain(prefix),
        Set::Routed => Member::Routed(prefix),
    })
}
