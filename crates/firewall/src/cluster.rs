//! The packet filter of a node whose pods other nodes reach.
//!
//! It is a table of its own, `inet netwright-routing`, beside those of attachments:
//!
//! | chain | purpose |
//! |---|---|
//! | `postrouting` | what pods send out of the cluster takes the node's address |
//! | `forward` | the segment sizes that TCP announces are cut to fit the tunnels |
//! | `prerouting`, `input`, `strangers` | tunnels take packets of nodes alone, at the node's own address |
//! | `input`, `too-big` | no error makes a tunnel over IPv6 too small for pods' IPv6 |
//! | `prerouting`, `sources` | packets from pods' addresses come in by the links of these pods alone |
//! | `outbound`, `to-nodes` | nobody but nodes sends tunnels' packets to nodes |
//!
//! Rules are fixed by [`Rules`]; everything that comes and goes is an element of a set. A
//! [`ClusterFilter`] is all of it as data. It makes the transaction that brings any kernel to it
//! ([`ClusterFilter::batch`]), and the one for a [`Change`], which takes the same number of messages
//! with ten nodes and with ten thousand ([`ClusterFilter::change`]). [`ClusterTable`] commits them,
//! finds what is different in the kernel, and repairs it.
//!
//! No rule can accept what another table drops, so [`Opener`] lets the cluster's packets through
//! where other software drops what is forwarded.
//!
//! ```
//! # use netwright_firewall::cluster::{Change, ClusterFilter, Encapsulation, Member, Rules};
//! // VXLAN with the VNI 1.
//! let content = Some((12, vec![0, 0, 1]));
//! let vxlan = Encapsulation { protocol: 17, port: Some(8472), content };
//! let rules = Rules { masquerade: true, tunnels: [vxlan].into() };
//! let members = [Member::Own("10.244.1.0/24".parse()?), Member::Cluster("10.244.0.0/16".parse()?)];
//! let mut filter = ClusterFilter::new(rules, members);
//! let change = Change { add: vec![Member::Node("192.0.2.7".parse()?)], remove: Vec::new() };
//! assert_eq!(
//!     filter.change(&change).to_string(),
//!     "add element of inet netwright-routing nodes4\n"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod layout;
mod opener;
mod ranges;
mod state;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use kernel::nft::{Batch, Element, KeyType};

use self::layout::Set;
use self::ranges::{Net, Ranges};
use crate::declared::Span;

pub use self::opener::{OpenError, Opener};
pub use self::table::ClusterTable;
pub use crate::difference::Difference;

/// What decides the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Whether what pods send out of the cluster gets the node's address.
    pub masquerade: bool,
    /// The tunnels whose packets only nodes may send.
    pub tunnels: Vec<Encapsulation>,
}

/// Which packets belong to a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encapsulation {
    /// The protocol above IP.
    pub protocol: u8,
    /// The port that they are sent to, if the protocol has ports.
    pub port: Option<u16>,
    /// Bytes that they have at an offset behind the header of IP: other tunnels may use the same
    /// protocol and port.
    pub content: Option<(u32, Vec<u8>)>,
}

/// Something that the rules look up.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Member {
    /// A prefix of this node's pods: what they send out of the cluster is masqueraded.
    Own(IpNet),
    /// A range of the cluster's pods, of any node.
    Cluster(IpNet),
    /// Another range that sees pods' own addresses: one that the administrator lists, or a range of
    /// service addresses.
    Exempt(IpNet),
    /// An address of a node: it sees pods' own addresses, and tunnels' packets come from it.
    Node(IpAddr),
    /// A further address of a node, from which no packet of a tunnel comes.
    Address(IpAddr),
    /// An address of this node to which other nodes send tunnels' packets.
    Endpoint(IpAddr),
    /// A prefix, or a block, that only pods of this node have addresses of.
    Local(IpNet),
    /// A prefix, or a block, whose pods' packets come without a tunnel.
    Plain(IpNet),
    /// A prefix in the cluster's ranges, of no pod of this node: the kernel's routes decide by which
    /// uplink packets from it come.
    Routed(IpNet),
    /// A link by which packets of other nodes come.
    Underlay(String),
    /// A link to other hosts, behind which no pod of this node is: no route makes an address of such
    /// a pod valid there, since machines behind it can give the kernel routes.
    Uplink(String),
    /// A tunnel's interface.
    Tunnel(String),
}

/// The members to add and to remove. Members are counted: one that was added twice, for example as
/// the address of a node and of its successor, stays until it is removed twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// What comes.
    pub add: Vec<Member>,
    /// What goes.
    pub remove: Vec<Member>,
}

/// Everything that `inet netwright-routing` should be, as data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterFilter {
    rules: Rules,
    addresses: BTreeMap<Set, Ranges>,
    links: BTreeMap<(Set, String), u32>,
}

impl ClusterFilter {
    /// Puts a filter together. Prefixes may overlap.
    #[must_use]
    pub fn new(rules: Rules, members: impl IntoIterator<Item = Member>) -> Self {
        let mut filter =
            ClusterFilter { rules, addresses: BTreeMap::new(), links: BTreeMap::new() };
        for member in members {
            filter.add(&member, None);
        }
        filter
    }

    /// Returns the filter without what other nodes have: it takes no packet of a tunnel.
    #[must_use]
    pub fn without_nodes(&self) -> Self {
        let of_nodes = |set: &Set| {
            matches!(
                set,
                Set::Nodes4
                    | Set::Nodes6
                    | Set::Addresses4
                    | Set::Addresses6
                    | Set::Plain4
                    | Set::Plain6
            )
        };
        let addresses = self.addresses.iter().filter(|(set, _)| !of_nodes(set));
        let addresses = addresses.map(|(set, ranges)| (*set, ranges.clone())).collect();
        ClusterFilter { rules: self.rules.clone(), addresses, links: self.links.clone() }
    }

    /// Returns what determines the rules. A filter with other rules is a new filter.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the transaction that brings the table to this filter, even if parts of it are
    /// missing or were changed. Packets meet the old table or the new one, and translated flows
    /// stay as they are.
    #[must_use]
    pub fn batch(&self) -> Batch {
        let mut batch = Batch::new();
        layout::make_table(&mut batch);
        for set in Set::ALL {
            add(&mut batch, set, self.elements(set));
        }
        for chain in layout::chains() {
            batch.add_chain(chain);
        }
        for rule in layout::rules(&self.rules) {
            batch.add_rule(rule);
        }
        batch
    }

    /// Takes note of a change and returns its transaction, which is empty if the change makes no
    /// difference. It fails in a kernel whose table is not what this filter was before.
    #[must_use]
    pub fn change(&mut self, change: &Change) -> Batch {
        let mut net = Net::new();
        // In this order a member that moves from one node to another is not removed and added
        // again.
        for member in &change.add {
            self.add(member, Some(&mut net));
        }
        for member in &change.remove {
            self.remove(member, Some(&mut net));
        }
        batch_of(net)
    }

    /// Takes note of a change, and makes no transaction: [`ClusterTable::bring`] finds the
    /// difference.
    pub fn note(&mut self, change: &Change) {
        for member in &change.add {
            self.add(member, None);
        }
        for member in &change.remove {
            self.remove(member, None);
        }
    }

    /// Lists the ranges between which, and from and to which, this node forwards.
    #[must_use]
    pub fn forwarded(&self) -> Vec<IpNet> {
        let sets = [Set::Own4, Set::Own6, Set::Cluster4, Set::Cluster6];
        let all: Ranges = sets.into_iter().flat_map(|set| self.outermost(set)).collect();
        all.outermost().collect()
    }

    fn add(&mut self, member: &Member, net: Option<&mut Net<(Set, Span)>>) {
        match place(member) {
            Place::Address(set, prefix) => {
                let step = self.addresses.entry(set).or_default().add(prefix);
                take(set, step, net);
            }
            Place::Link(set, name) => {
                let count = self.links.entry((set, name.to_owned())).or_default();
                *count = count.saturating_add(1);
                if let (1, Some(net)) = (*count, net) {
                    net.come((set, state::ifname(name)));
                }
            }
        }
    }

    fn remove(&mut self, member: &Member, net: Option<&mut Net<(Set, Span)>>) {
        match place(member) {
            Place::Address(set, prefix) => {
                let step = self.addresses.entry(set).or_default().remove(prefix);
                take(set, step, net);
            }
            Place::Link(set, name) => {
                let key = (set, name.to_owned());
                let Some(count) = self.links.get_mut(&key) else { return };
                *count -= 1;
                if *count == 0 {
                    self.links.remove(&key);
                    if let Some(net) = net {
                        net.go((set, state::ifname(name)));
                    }
                }
            }
        }
    }

    /// Lists the elements of a set.
    fn entries(&self, set: Set) -> BTreeSet<Span> {
        if set.key() == KeyType::IfName {
            return self.names(set).map(state::ifname).collect();
        }
        self.outermost(set).map(state::range).collect()
    }

    /// Lists the same for a transaction, in their order.
    fn elements(&self, set: Set) -> Vec<Element> {
        if set.key() == KeyType::IfName {
            return self.names(set).map(|name| state::ifname(name).element(false)).collect();
        }
        self.outermost(set).map(|prefix| state::element(set, prefix)).collect()
    }

    fn names(&self, of: Set) -> impl Iterator<Item = &str> {
        self.links.keys().filter(move |(set, _)| *set == of).map(|(_, name)| name.as_str())
    }

    fn outermost(&self, set: Set) -> impl Iterator<Item = IpNet> {
        self.addresses.get(&set).into_iter().flat_map(Ranges::outermost)
    }
}

/// Where a member belongs.
enum Place<'m> {
    Address(Set, IpNet),
    Link(Set, &'m str),
}

fn place(member: &Member) -> Place<'_> {
    let (v4, v6, prefix) = match member {
        Member::Own(prefix) => (Set::Own4, Set::Own6, *prefix),
        Member::Cluster(prefix) => (Set::Cluster4, Set::Cluster6, *prefix),
        Member::Exempt(prefix) => (Set::Exempt4, Set::Exempt6, *prefix),
        Member::Node(address) => (Set::Nodes4, Set::Nodes6, IpNet::from(*address)),
        Member::Address(address) => (Set::Addresses4, Set::Addresses6, IpNet::from(*address)),
        Member::Endpoint(address) => (Set::Endpoints4, Set::Endpoints6, IpNet::from(*address)),
        Member::Local(prefix) => (Set::Local4, Set::Local6, *prefix),
        Member::Plain(prefix) => (Set::Plain4, Set::Plain6, *prefix),
        Member::Routed(prefix) => (Set::Routed4, Set::Routed6, *prefix),
        Member::Underlay(name) => return Place::Link(Set::Underlay, name),
        Member::Uplink(name) => return Place::Link(Set::Uplinks, name),
        Member::Tunnel(name) => return Place::Link(Set::Tunnels, name),
    };
    Place::Address(if prefix.addr().is_ipv4() { v4 } else { v6 }, prefix)
}

fn take(set: Set, step: ranges::Step, net: Option<&mut Net<(Set, Span)>>) {
    let Some(net) = net else { return };
    for prefix in step.gone {
        net.go((set, state::range(prefix)));
    }
    for prefix in step.came {
        net.come((set, state::range(prefix)));
    }
}

/// Removals come first: new ranges may overlap old ones.
fn batch_of(net: Net<(Set, Span)>) -> Batch {
    let mut batch = Batch::new();
    for (set, entries) in by_set(net.gone) {
        let elements = entries.into_iter().map(|entry| entry.element(set.has_ranges()));
        batch.delete_elements(&layout::table(), set.name(), elements);
    }
    for (set, entries) in by_set(net.came) {
        add(
            &mut batch,
            set,
            entries.into_iter().map(|entry| entry.element(set.has_ranges())).collect(),
        );
    }
    batch
}

fn by_set(all: BTreeSet<(Set, Span)>) -> BTreeMap<Set, BTreeSet<Span>> {
    let mut sets: BTreeMap<Set, BTreeSet<Span>> = BTreeMap::new();
    for (set, entry) in all {
        sets.entry(set).or_default().insert(entry);
    }
    sets
}

fn add(batch: &mut Batch, set: Set, elements: Vec<Element>) {
    if !elements.is_empty() {
        batch.add_elements(&layout::table(), set.name(), elements);
    }
}

#[cfg(test)]
#[path = "cluster/tests.rs"]
mod tests;
