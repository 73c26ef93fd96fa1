//! Which connections are allowed: the evaluator, to which everything else is compared.
//!
//! It looks at labels and addresses, for one connection. It knows no sets, no chains and no order
//! of changes.
//!
//! The same function explains verdicts, decides which connections a change cuts, and judges the
//! compiled rules.

use std::net::IpAddr;

use crate::compile::merge::too_many_lists;
use crate::object::Pod;
use crate::policy::{
    Action, Direction, Peer, Policy, PolicyId, Ports, Protocol, Rule, Tier, Traffic,
};
use crate::world::World;

/// Whether a connection may be made, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What holds for the source.
    pub egress: Side,
    /// What holds for the destination.
    pub ingress: Side,
}

/// What holds for one end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// The policies that select the pod at this end, in the order in which they are asked.
    pub asked: Vec<PolicyId>,
    /// What decided.
    pub decision: Decision,
}

/// What decided for one end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Decision {
    /// No pod has the address, so no policy is about it.
    NoPod,
    /// It is neighbour discovery, which no policy is about.
    NeighbourDiscovery,
    /// The other end is the pod's own node, which always reaches it, and which it reaches unless a
    /// rule of a ClusterNetworkPolicy decides otherwise.
    OwnNode { node: String },
    /// Both ends are the same pod.
    Itself,
    /// The pod's namespace is not known yet, and so neither is what selects the pod.
    UnknownNamespace { namespace: String },
    /// Several pods have the address.
    SeveralPods { pods: Vec<String> },
    /// Policies select the pod, and several pods have the other end's address.
    SeveralPeers { pods: Vec<String> },
    /// The policies have too many different lists of ports ([`too_many_lists`]).
    TooManyLists,
    /// A rule accepts or denies.
    Rule { policy: PolicyId, rule: usize, action: Action },
    /// NetworkPolicies select the pod, and none of their rules allows it.
    NoneAllows,
    /// Nothing is against it.
    Default,
}

impl Decision {
    /// Reports whether this end lets the connection through.
    #[must_use]
    pub fn allows(&self) -> bool {
        match self {
            Decision::NoPod
            | Decision::NeighbourDiscovery
            | Decision::OwnNode { .. }
            | Decision::Itself
            | Decision::Default => true,
            Decision::Rule { action, .. } => *action == Action::Accept,
            Decision::UnknownNamespace { .. }
            | Decision::SeveralPods { .. }
            | Decision::SeveralPeers { .. }
            | Decision::TooManyLists
            | Decision::NoneAllows => false,
        }
    }
}

impl Verdict {
    /// Reports whether the connection may be made: both ends let it through.
    #[must_use]
    pub fn allowed(&self) -> bool {
        self.egress.decision.allows() && self.ingress.decision.allows()
    }

    /// Returns what holds for one end.
    #[must_use]
    pub fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// Judges a connection by its first packet: replies follow it.
#[must_use]
pub fn verdict(world: &World, source: IpAddr, destination: IpAddr, traffic: Traffic) -> Verdict {
    both(world, (source, destination), traffic, false)
}

/// Judges a connection whose packets have left the pod that sent them. One from a pod to itself has
/// then come by a Service, and is judged like others.
#[must_use]
pub fn verdict_by_service(
    world: &World,
    source: IpAddr,
    destination: IpAddr,
    traffic: Traffic,
) -> Verdict {
    both(world, (source, destination), traffic, true)
}

fn both(world: &World, ends: (IpAddr, IpAddr), traffic: Traffic, by_service: bool) -> Verdict {
    let judge = |direction| judge(world, direction, ends, traffic, by_service);
    Verdict { egress: judge(Direction::Egress), ingress: judge(Direction::Ingress) }
}

fn judge(
    world: &World,
    direction: Direction,
    (source, destination): (IpAddr, IpAddr),
    traffic: Traffic,
    by_service: bool,
) -> Side {
    let (subject, peer) = match direction {
        Direction::Egress => (source, destination),
        Direction::Ingress => (destination, source),
    };
    let pods = world.claimants(subject);
    let without = |decision| Side { asked: Vec::new(), decision };
    if pods.is_empty() {
        return without(Decision::NoPod);
    }
    if traffic.protocol == Protocol::NeighbourDiscovery {
        return without(Decision::NeighbourDiscovery);
    }
    if let Some(node) = own_node(world, &pods, peer) {
        let decided = match direction {
            Direction::Egress => at_own_node(world, &pods, peer, traffic),
            Direction::Ingress => None,
        };
        return decided.unwrap_or_else(|| without(Decision::OwnNode { node }));
    }
    let [pod] = pods.as_slice() else {
        let pods = pods.iter().map(|pod| pod.full_name()).collect();
        return without(Decision::SeveralPods { pods });
    };
    if !by_service && pod.addresses.contains(&peer) {
        return without(Decision::Itself);
    }
    if world.namespace(&pod.namespace).is_none() {
        return without(Decision::UnknownNamespace { namespace: pod.namespace.to_string() });
    }
    let asked = world.asked(pod, direction);
    if too_many_lists(&asked, direction) {
        return Side { asked: ids(&asked), decision: Decision::TooManyLists };
    }
    if !asked.is_empty() && world.is_contested(peer) {
        let pods = world.claimants(peer).iter().map(|pod| pod.full_name()).collect();
        return Side { asked: ids(&asked), decision: Decision::SeveralPeers { pods } };
    }
    let is_matched = |rule: &Rule| matches(world, rule, peer, destination, traffic);
    Side { asked: ids(&asked), decision: decide(&asked, direction, is_matched) }
}

/// Asks policies in their order.
fn decide(asked: &[&Policy], direction: Direction, is_matched: impl Fn(&Rule) -> bool) -> Decision {
    for tier in [Tier::Admin, Tier::Namespaced, Tier::Baseline] {
        let of_tier = asked.iter().filter(|policy| policy.tier == tier);
        'tier: for policy in of_tier {
            let rules = policy.rules(direction).unwrap_or_default();
            for (number, rule) in rules.iter().enumerate() {
                if !is_matched(rule) {
                    continue;
                }
                if rule.action == Action::Pass {
                    break 'tier;
                }
                let (policy, action) = (policy.id.clone(), rule.action);
                return Decision::Rule { policy, rule: number, action };
            }
        }
        if tier == Tier::Namespaced && asked.iter().any(|policy| policy.tier == tier) {
            return Decision::NoneAllows;
        }
    }
    Decision::Default
}

/// Says what ClusterNetworkPolicies decide about what goes to the node of these pods; `None` if they
/// decide nothing. A pod of which too little is known reaches its node.
fn at_own_node(world: &World, pods: &[&Pod], node: IpAddr, traffic: Traffic) -> Option<Side> {
    let [pod] = pods else { return None };
    world.namespace(&pod.namespace)?;
    let mut asked = world.asked(pod, Direction::Egress);
    if too_many_lists(&asked, Direction::Egress) {
        return None;
    }
    // Nothing is asked after a NetworkPolicy, also where that says nothing.
    let is_final = asked.iter().any(|policy| policy.tier == Tier::Namespaced);
    asked.retain(|policy| {
        policy.decides_about_own_node() && !(is_final && policy.tier == Tier::Baseline)
    });
    let is_matched = |rule: &Rule| rule.names_nodes() && matches(world, rule, node, node, traffic);
    let decision = decide(&asked, Direction::Egress, is_matched);
    (decision != Decision::Default).then(|| Side { asked: ids(&asked), decision })
}

fn ids(policies: &[&Policy]) -> Vec<PolicyId> {
    policies.iter().map(|policy| policy.id.clone()).collect()
}

/// Returns the name of the node of one of these pods, if the other end is that node's host.
fn own_node(world: &World, pods: &[&Pod], peer: IpAddr) -> Option<String> {
    let is_own = |name: &str| pods.iter().any(|pod| pod.node.as_deref() == Some(name));
    // An address that a pod has is the pod's.
    if !world.claimants(peer).is_empty() {
        return None;
    }
    let mut nodes = world.nodes_at(peer).map(|node| node.name.as_str());
    nodes.find(|name| is_own(name) && world.host_has(name, peer)).map(str::to_owned)
}

/// Reports whether a rule matches a connection whose other end is `peer`.
pub(crate) fn matches(
    world: &World,
    rule: &Rule,
    peer: IpAddr,
    destination: IpAddr,
    traffic: Traffic,
) -> bool {
    let is_peer = |wanted: &Peer| peer_matches(world, wanted, peer);
    let is_port = |ports: &Ports| port_matches(world, ports, destination, traffic);
    rule.peers.as_ref().is_none_or(|peers| peers.iter().any(is_peer))
        && rule.ports.as_ref().is_none_or(|ports| ports.iter().any(is_port))
}

/// Reports whether an address is that of a peer.
pub(crate) fn peer_matches(world: &World, wanted: &Peer, address: IpAddr) -> bool {
    match wanted {
        Peer::Pods(set) => world.owner(address).is_some_and(|pod| world.is_in(pod, set)),
        Peer::Nodes(selector) => world.nodes_at(address).any(|node| selector.matches(&node.labels)),
        Peer::Block(block) => block.contains(address),
    }
}

/// Reports whether traffic is to one of these ports of a destination.
pub(crate) fn port_matches(
    world: &World,
    ports: &Ports,
    destination: IpAddr,
    traffic: Traffic,
) -> bool {
    match ports {
        Ports::All(protocol) => *protocol == traffic.protocol,
        Ports::Range { protocol, first, last } => {
            let in_range = |port: u16| (*first..=*last).contains(&port);
            *protocol == traffic.protocol && traffic.port.is_some_and(in_range)
        }
        Ports::Named { protocol, name } => {
            let pod = world.owner(destination);
            protocol.is_none_or(|protocol| protocol == traffic.protocol)
                && pod.into_iter().flat_map(|pod| pod.ports.iter()).any(|port| {
                    port.name == *name
                        && port.protocol == traffic.protocol
                        && Some(port.port) == traffic.port
                })
        }
    }
}
