//! A policy in the one form into which each API is read, and the traffic that it judges.
//!
//! NetworkPolicy, ClusterNetworkPolicy, MultiNetworkPolicy and the isolation of namespaces differ
//! in how they are written and in their place in the order. A rule means the same in each.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::labels::{Labels, Selector};
use crate::object::{Namespace, Pod};
use crate::refused::Refusal;
use net::IpFamily;

/// Into a pod, or out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Into the pod that a policy selects.
    Ingress,
    /// Out of the pod that a policy selects.
    Egress,
}

impl Direction {
    /// Both, ingress first.
    pub const ALL: [Direction; 2] = [Direction::Ingress, Direction::Egress];
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        })
    }
}

/// A thing for each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerDirection<T> {
    /// For what goes into pods.
    pub ingress: T,
    /// For what comes out of them.
    pub egress: T,
}

impl<T> PerDirection<T> {
    /// Makes each by its direction.
    pub fn of(mut make: impl FnMut(Direction) -> T) -> Self {
        PerDirection { ingress: make(Direction::Ingress), egress: make(Direction::Egress) }
    }

    /// Returns that of a direction.
    #[must_use]
    pub fn get(&self, direction: Direction) -> &T {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// A protocol above IP, as far as policies tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// Solicitations and advertisements of neighbours on their own link: ICMPv6 types 135 and 136
    /// with a hop limit of 255 (RFC 4861 §7.1). What a router has passed on is other ICMPv6.
    ///
    /// Without it no IPv6 packet finds its way, so no policy judges it.
    NeighbourDiscovery,
    /// Another one, by its number in the IP header. It has no ports.
    Other(u8),
}

impl Protocol {
    /// Returns the protocol of a number in the IP header, which is not neighbour discovery.
    #[must_use]
    pub fn of(number: u8) -> Self {
        match number {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            132 => Protocol::Sctp,
            other => Protocol::Other(other),
        }
    }

    /// Returns the protocol that policies and container ports name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "TCP" => Some(Protocol::Tcp),
            "UDP" => Some(Protocol::Udp),
            "SCTP" => Some(Protocol::Sctp),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protocol::Tcp => f.write_str("TCP"),
            Protocol::Udp => f.write_str("UDP"),
            Protocol::Sctp => f.write_str("SCTP"),
            Protocol::NeighbourDiscovery => f.write_str("neighbour discovery"),
            Protocol::Other(1) => f.write_str("ICMP"),
            Protocol::Other(58) => f.write_str("ICMPv6"),
            Protocol::Other(number) => write!(f, "protocol {number}"),
        }
    }
}

/// What a connection's first packet is, without its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Traffic {
    /// The protocol.
    pub protocol: Protocol,
    /// The destination's port; `None` where the protocol has no ports.
    pub port: Option<u16>,
}

impl Traffic {
    /// Returns the traffic to a port.
    #[must_use]
    pub fn to(protocol: Protocol, port: u16) -> Self {
        Traffic { protocol, port: Some(port) }
    }

    /// Returns the traffic of a protocol without ports.
    #[must_use]
    pub fn of(protocol: Protocol) -> Self {
        Traffic { protocol, port: None }
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{} port {port}", self.protocol),
            None => self.protocol.fmt(f),
        }
    }
}

/// Which object a policy is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum PolicyId {
    /// A NetworkPolicy.
    Network { namespace: String, name: String },
    /// A MultiNetworkPolicy.
    MultiNetwork { namespace: String, name: String },
    /// A ClusterNetworkPolicy.
    Cluster { name: String },
    /// The isolation of a namespace, which the administrator switched on.
    Isolation { namespace: String },
    /// The annotation of 2016 of a namespace.
    DefaultDeny { namespace: String },
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyId::Network { namespace, name } => write!(f, "NetworkPolicy {namespace}/{name}"),
            PolicyId::MultiNetwork { namespace, name } => {
                write!(f, "MultiNetworkPolicy {namespace}/{name}")
            }
            PolicyId::Cluster { name } => write!(f, "ClusterNetworkPolicy {name}"),
            PolicyId::Isolation { namespace } => {
                write!(f, "the isolation of namespace {namespace}")
            }
            PolicyId::DefaultDeny { namespace } => {
                write!(f, "the annotation DefaultDeny of namespace {namespace}")
            }
        }
    }
}

/// The groups of policies, in the order in which they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// ClusterNetworkPolicies that no NetworkPolicy can override.
    Admin,
    /// NetworkPolicies. Each of them only allows. Traffic that none of them allows is denied, and
    /// no policy is asked after them.
    Namespaced,
    /// What holds for pods that no NetworkPolicy selects.
    Baseline,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Which object it is.
    pub id: PolicyId,
    /// Its group.
    pub tier: Tier,
    /// Its place in the group: less is asked first. Equal ones are asked by name.
    pub priority: u16,
    /// The pods that it selects; `None` is none.
    pub subject: Option<PodSet>,
    /// Its rules for traffic into these pods; `None` if it is not about that.
    pub ingress: Option<Vec<Rule>>,
    /// Its rules for traffic out of these pods; `None` if it is not about that.
    pub egress: Option<Vec<Rule>>,
    /// What of it was refused. What is above already says what holds instead.
    pub faults: Vec<Refusal>,
    /// What the policy's author should know: it has no effect, or another than it may seem.
    pub notices: Vec<String>,
}

impl Policy {
    /// Returns the rules of a direction, if it is about that.
    #[must_use]
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// Reports whether a pod that it selects may be kept from its own node, or be let there: only
    /// ClusterNetworkPolicies decide about that.
    pub(crate) fn decides_about_own_node(&self) -> bool {
        matches!(self.id, PolicyId::Cluster { .. })
            && self.egress.iter().flatten().any(Rule::names_nodes)
    }

    /// Gives back the room that reading has left over: a cluster has thousands of policies.
    pub(crate) fn shrink_to_fit(&mut self) {
        for rules in [&mut self.ingress, &mut self.egress].into_iter().flatten() {
            for rule in rules.iter_mut() {
                rule.peers.iter_mut().for_each(Vec::shrink_to_fit);
                rule.ports.iter_mut().for_each(Vec::shrink_to_fit);
            }
            rules.shrink_to_fit();
        }
    }

    /// Returns what policies are sorted by before they are asked.
    pub(crate) fn order(&self) -> (Tier, u16, &PolicyId) {
        (self.tier, self.priority, &self.id)
    }
}

/// What happens to traffic that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// It is allowed, and nothing more is asked for this direction.
    Accept,
    /// It is denied, and nothing more is asked.
    Deny,
    /// The rest of the tier is not asked.
    Pass,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Accept => "Accept",
            Action::Deny => "Deny",
            Action::Pass => "Pass",
        })
    }
}

/// A rule: it matches if one of its peers does and one of its ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Where it stands in the object, such as `spec.ingress[0]`.
    pub path: String,
    /// The name that it was given.
    pub name: Option<String>,
    /// What it does.
    pub action: Action,
    /// The other end; `None` is any end.
    pub peers: Option<Vec<Peer>>,
    /// The destination's ports; `None` is all traffic, of protocols without ports too.
    pub ports: Option<Vec<Ports>>,
}

impl Rule {
    /// Reports whether nodes or addresses are among its peers. Only such a rule decides about a
    /// pod's own node: a policy that cannot be read denies everything, and is about no node.
    pub(crate) fn names_nodes(&self) -> bool {
        let mut peers = self.peers.iter().flatten();
        peers.any(|peer| matches!(peer, Peer::Nodes(_) | Peer::Block(_)))
    }
}

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// Pods.
    Pods(PodSet),
    /// The addresses of nodes, by the nodes' labels.
    Nodes(Selector),
    /// Addresses, also those of pods.
    Block(Block),
}

/// Pods, by their labels and their namespaces.
///
/// Pods in the host's network are never among them, nor those that have finished.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodSet {
    /// Their namespaces.
    pub namespaces: Scope,
    /// Their labels.
    pub pods: Selector,
}

/// Namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// One, by its name.
    Own(String),
    /// Those with such labels.
    Matching(Selector),
}

impl PodSet {
    /// Returns the pods of one namespace.
    #[must_use]
    pub fn own(namespace: &str, pods: Selector) -> Self {
        PodSet { namespaces: Scope::Own(namespace.to_owned()), pods }
    }

    /// Returns the pods of all namespaces with such labels.
    #[must_use]
    pub fn matching(namespaces: Selector, pods: Selector) -> Self {
        PodSet { namespaces: Scope::Matching(namespaces), pods }
    }

    /// Reports whether a pod's labels and its namespace are as asked. A namespace that is not known
    /// has no labels.
    #[must_use]
    pub fn matches(&self, pod: &Pod, namespace: Option<&Namespace>) -> bool {
        self.has_namespace(&pod.namespace, namespace.map(|namespace| &namespace.labels))
            && self.pods.matches(&pod.labels)
    }

    /// Reports whether pods of a namespace can be among them.
    #[must_use]
    pub fn has_namespace(&self, name: &str, labels: Option<&Labels>) -> bool {
        match &self.namespaces {
            Scope::Own(own) => own == name,
            Scope::Matching(selector) => labels.is_some_and(|labels| selector.matches(labels)),
        }
    }
}

impl fmt::Display for PodSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pods.is_all() {
            f.write_str("all pods")?;
        } else {
            write!(f, "pods with {}", self.pods)?;
        }
        match &self.namespaces {
            Scope::Own(name) => write!(f, " of namespace {name}"),
            Scope::Matching(selector) if selector.is_all() => f.write_str(" of all namespaces"),
            Scope::Matching(selector) => write!(f, " of namespaces with {selector}"),
        }
    }
}

/// A prefix without some of its parts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// The prefix.
    pub cidr: IpNet,
    /// The parts that are not in it.
    pub except: BTreeSet<IpNet>,
}

impl Block {
    /// Returns a whole prefix.
    #[must_use]
    pub fn whole(cidr: IpNet) -> Self {
        Block { cidr, except: BTreeSet::new() }
    }

    /// Reports whether an address is in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.cidr.contains(&address) && self.exception(address).is_none()
    }

    /// Returns the exception that an address is in.
    #[must_use]
    pub fn exception(&self, address: IpAddr) -> Option<IpNet> {
        self.except.iter().copied().find(|except| except.contains(&address))
    }

    /// Returns its family.
    #[must_use]
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.cidr.addr())
    }

    /// Returns its addresses as numbers: intervals with both ends, sorted.
    fn ranges(&self) -> Vec<(u128, u128)> {
        let range = |net: &IpNet| (number(net.network()), number(net.broadcast()));
        let (mut next, last) = range(&self.cidr);
        // Prefixes are nested or apart, so those within another one change nothing.
        let mut holes: Vec<(u128, u128)> = self.except.iter().map(range).collect();
        holes.sort_unstable();
        let mut ranges = Vec::new();
        for (first, end) in holes {
            if end < next {
                continue;
            }
            if next < first {
                ranges.push((next, first - 1));
            }
            match end.checked_add(1) {
                Some(after) if end < last => next = after,
                _ => return ranges,
            }
        }
        ranges.push((next, last));
        ranges
    }
}

/// Returns the addresses of blocks of one family as intervals, both ends included: sorted, with
/// gaps between them.
#[must_use]
pub fn intervals<'a>(
    family: IpFamily,
    blocks: impl IntoIterator<Item = &'a Block>,
) -> Vec<(IpAddr, IpAddr)> {
    let mut ranges: Vec<(u128, u128)> = blocks.into_iter().flat_map(Block::ranges).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if end.checked_add(1).is_none_or(|after| first <= after) => {
                *end = last.max(*end);
            }
            _ => merged.push((first, last)),
        }
    }
    let ends = merged.into_iter();
    ends.map(|(first, last)| (address(family, first), address(family, last))).collect()
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn address(family: IpFamily, number: u128) -> IpAddr {
    match family {
        IpFamily::V4 => {
            let number = u32::try_from(number).expect("it is between two IPv4 addresses");
            IpAddr::V4(Ipv4Addr::from(number))
        }
        IpFamily::V6 => IpAddr::V6(Ipv6Addr::from(number)),
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cidr.fmt(f)?;
        if self.except.is_empty() {
            return Ok(());
        }
        let except: Vec<String> = self.except.iter().map(ToString::to_string).collect();
        write!(f, " but for {}", except.join(" and "))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Pods(pods) => pods.fmt(f),
            Peer::Nodes(selector) if selector.is_all() => f.write_str("all nodes"),
            Peer::Nodes(selector) => write!(f, "nodes with {selector}"),
            Peer::Block(block) => block.fmt(f),
        }
    }
}

/// Ports of the destination.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Ports {
    /// All of a protocol.
    All(Protocol),
    /// These, both ends included.
    Range { protocol: Protocol, first: u16, last: u16 },
    /// A port that the destination pod's containers name so; of any protocol unless one is given.
    Named { protocol: Option<Protocol>, name: String },
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ports::All(protocol) => write!(f, "{protocol}"),
            Ports::Range { protocol, first, last } if first == last => {
                write!(f, "{protocol} port {first}")
            }
            Ports::Range { protocol, first, last } => {
                write!(f, "{protocol} ports {first} to {last}")
            }
            Ports::Named { protocol: Some(protocol), name } => {
                write!(f, "the {protocol} port named {name:?}")
            }
            Ports::Named { protocol: None, name } => write!(f, "the port named {name:?}"),
        }
    }
}
