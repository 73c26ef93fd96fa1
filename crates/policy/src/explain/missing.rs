//! Says what a rule lacks for a connection: which labels, which port, and what may be behind it.

use std::net::IpAddr;

use crate::evaluate::{peer_matches, port_matches};
use crate::labels::{Labels, NAMESPACE_NAME, Operator, Requirement, Selector};
use crate::object::{Pod, is_stand_in};
use crate::policy::{
    Block, Direction, Peer, PodSet, Policy, PolicyId, Ports, Protocol, Rule, Scope, Traffic,
};
use net::IpFamily;

use super::{Question, list};

/// What a rule lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Miss {
    /// How far it is from what was meant: less is nearer.
    pub(super) far: u8,
    /// The reason.
    pub(super) why: String,
}

/// The author of the rule means this end, or this port.
const MEANT: u8 = 0;
/// The rule is about ends or ports like this one.
const NEAR: u8 = 1;
/// One of two conditions is met.
const HALF: u8 = 2;
/// Nothing of it is met.
const FAR: u8 = 3;

impl Question<'_> {
    /// Says of each peer of a rule why it is not the other end; nothing if one is.
    pub(super) fn missing_peers(
        &self,
        policy: &Policy,
        rule: &Rule,
        direction: Direction,
    ) -> Vec<Miss> {
        let (_, other) = self.ends(direction);
        let Some(peers) = &rule.peers else { return Vec::new() };
        if peers.iter().any(|peer| peer_matches(self.world, peer, other)) {
            return Vec::new();
        }
        let mut missing: Vec<Miss> = Vec::new();
        for peer in peers {
            let miss = match peer {
                Peer::Pods(set) => self.not_in_pods(set, policy, other),
                Peer::Nodes(selector) => match self.world.nodes_at(other).next() {
                    Some(node) => {
                        let why = unmet(&format!("node {}", node.name), &node.labels, selector);
                        Miss { far: NEAR, why }
                    }
                    None => Miss { far: FAR, why: format!("{} is not a node", self.name(other)) },
                },
                Peer::Block(block) => self.not_in_block(block, other, direction),
            };
            if !missing.contains(&miss) {
                missing.push(miss);
            }
        }
        missing
    }

    fn not_in_block(&self, block: &Block, other: IpAddr, direction: Direction) -> Miss {
        let shown = match is_stand_in(other) {
            true => format!("the address of {}, which has none,", self.name(other)),
            false => other.to_string(),
        };
        if let Some(except) = block.exception(other) {
            let why = format!("{shown} is in {}, but {except} of it is excepted", block.cidr);
            return Miss { far: MEANT, why };
        }
        if block.family() != IpFamily::of(other) && !is_stand_in(other) {
            let why = match IpFamily::of(other) {
                IpFamily::V4 => format!("{shown} is IPv4, and {} is IPv6", block.cidr),
                IpFamily::V6 => format!("{shown} is IPv6, and {} is IPv4", block.cidr),
            };
            return Miss { far: NEAR, why };
        }
        let is_pod = self.pod_at(other).is_some();
        let is_node = self.world.nodes_at(other).next().is_some();
        let hint = match direction {
            Direction::Egress if is_pod => {
                "; a policy sees the pod's own address, not that of a Service"
            }
            Direction::Ingress if !is_pod && is_node => {
                "; clients of a NodePort or load balancer may come with a node's address"
            }
            _ => "",
        };
        let far = if hint.is_empty() { FAR } else { HALF };
        Miss { far, why: format!("{shown} is not in {}{hint}", block.cidr) }
    }

    fn not_in_pods(&self, set: &PodSet, policy: &Policy, other: IpAddr) -> Miss {
        let name = self.name(other);
        let meant = |pod: &&Pod| set.matches(pod, self.world.namespace(&pod.namespace));
        let once = self.world.others_at(other).find(meant);
        let Some(pod) = self.pod_at(other) else {
            return match once {
                Some(pod) if pod.host_network => {
                    let why = format!(
                        "{} is in the host's network, so policies see {name} and not the pod",
                        pod.full_name()
                    );
                    Miss { far: MEANT, why }
                }
                Some(pod) => {
                    let once = pod.full_name();
                    let why =
                        format!("{name} was {once}'s, which has finished, and is no pod's now");
                    Miss { far: MEANT, why }
                }
                None => Miss { far: FAR, why: format!("{name} is not a pod") },
            };
        };
        match once {
            Some(once) => {
                let state = if once.finished { "has finished" } else { "is being deleted" };
                let once = once.full_name();
                let why = format!("{other} was {once}'s, which {state}, and is {name}'s now");
                Miss { far: MEANT, why }
            }
            None => self.other_pod(set, policy, &name, pod),
        }
    }

    /// Says why a pod is not in a set.
    fn other_pod(&self, set: &PodSet, policy: &Policy, name: &str, pod: &Pod) -> Miss {
        let namespace = self.world.namespace(&pod.namespace);
        let labels = namespace.map(|namespace| &namespace.labels);
        let has_labels = set.pods.matches(&pod.labels);
        let both = match &set.namespaces {
            Scope::Matching(selector) if !selector.is_all() && !set.pods.is_all() => {
                "; both selectors are in one entry of the list, and a pod has to meet both"
            }
            _ => "",
        };
        if set.has_namespace(&pod.namespace, labels) {
            let typo = self.nobody_has(set);
            let both = if typo.is_empty() { both } else { "" };
            let why = format!("{}{typo}{both}", unmet(name, &pod.labels, &set.pods));
            return Miss { far: NEAR, why };
        }
        let of = format!("namespace {}", pod.namespace);
        let far = if has_labels && !set.pods.is_all() { NEAR } else { HALF };
        let why = match &set.namespaces {
            Scope::Own(own) => format!(
                "{name} is of {of}, and a podSelector alone is about the policy's own namespace {own}"
            ),
            Scope::Matching(_) if labels.is_none() => format!("{of} is not known"),
            Scope::Matching(selector) => {
                let empty = Labels::new();
                let why = unmet(&of, labels.unwrap_or(&empty), selector);
                let own = match &policy.id {
                    PolicyId::Network { namespace, .. }
                    | PolicyId::MultiNetwork { namespace, .. } => namespace.as_str(),
                    _ => "",
                };
                let typo = self.no_namespace_has(selector, &pod.namespace);
                if *own == *pod.namespace {
                    format!("{why}{typo}; the policy's own namespace is not included by itself")
                } else if typo.is_empty() && has_labels {
                    format!("{why}{both}")
                } else {
                    format!("{why}{typo}")
                }
            }
        };
        Miss { far, why }
    }

    /// Says that a label that is asked for is nowhere: it may be misspelt.
    fn nobody_has(&self, set: &PodSet) -> String {
        let places: Vec<&str> = match &set.namespaces {
            Scope::Own(name) => vec![name.as_str()],
            Scope::Matching(selector) => {
                let all = self.world.namespaces();
                let meant = all.filter(|namespace| selector.matches(&namespace.labels));
                meant.map(|namespace| namespace.name.as_str()).collect()
            }
        };
        let is_met = |requirement: &Requirement| {
            let mut labels = places.iter().flat_map(|place| self.world.labels_of(place));
            labels.any(|labels| requirement.is_met(labels))
        };
        let is_asked = |requirement: &&Requirement| matches!(requirement.must, Operator::In(_));
        let mut asked = set.pods.requirements().iter().filter(is_asked);
        match (asked.find(|requirement| !is_met(requirement)), &set.namespaces) {
            (None, _) => String::new(),
            (Some(unmet), Scope::Own(own)) => format!("; no pod of namespace {own} has {unmet}"),
            (Some(unmet), Scope::Matching(_)) => format!("; no pod there has {unmet}"),
        }
    }

    /// Says that a label of namespaces that is asked for is nowhere, and which one may be meant.
    fn no_namespace_has(&self, selector: &Selector, name: &str) -> String {
        let is_met = |requirement: &Requirement| {
            self.world.namespaces().any(|namespace| requirement.is_met(&namespace.labels))
        };
        let mut unmet =
            selector.requirements().iter().filter(|requirement| match &requirement.must {
                Operator::In(_) => !is_met(requirement),
                _ => false,
            });
        let Some(requirement) = unmet.next() else { return String::new() };
        let is_name = match &requirement.must {
            Operator::In(values) => requirement.key != NAMESPACE_NAME && values.contains(name),
            _ => false,
        };
        if is_name {
            return format!("; the label with a namespace's name is {NAMESPACE_NAME}");
        }
        format!("; no namespace has {requirement}")
    }

    /// Says of each entry of a rule's ports why it is not this one; nothing if one is.
    pub(super) fn missing_ports(&self, rule: &Rule) -> Vec<Miss> {
        let Some(all) = &rule.ports else { return Vec::new() };
        let (world, traffic) = (self.world, self.traffic);
        if all.iter().any(|ports| port_matches(world, ports, self.destination, traffic)) {
            return Vec::new();
        }
        let mut missing: Vec<Miss> = Vec::new();
        for ports in all {
            let miss = self.other_port(ports);
            if !missing.contains(&miss) {
                missing.push(miss);
            }
        }
        missing
    }

    fn other_port(&self, ports: &Ports) -> Miss {
        let Traffic { protocol, port } = self.traffic;
        let Some(port) = port else {
            let why = format!("{protocol} has no ports, and only a rule without ports allows it");
            return Miss { far: NEAR, why };
        };
        match ports {
            Ports::All(_) => Miss { far: HALF, why: format!("this is {protocol}") },
            Ports::Range { protocol: wanted, first, last } => {
                if *wanted == protocol {
                    let why = format!(
                        "this is port {port}, and a policy sees the pod's port, not a Service's"
                    );
                    return Miss { far: NEAR, why };
                }
                let same = (*first..=*last).contains(&port);
                let default = if *wanted == Protocol::Tcp && same {
                    ", and a port without a protocol is TCP's"
                } else {
                    ""
                };
                let far = if same { MEANT } else { HALF };
                Miss { far, why: format!("this is {protocol}{default}") }
            }
            Ports::Named { protocol: wanted, name } => self.other_named_port(*wanted, name),
        }
    }

    fn other_named_port(&self, wanted: Option<Protocol>, name: &str) -> Miss {
        let end = self.name(self.destination);
        let Some(pod) = self.pod_at(self.destination) else {
            return Miss { far: FAR, why: format!("{end} is not a pod and has no named ports") };
        };
        let called: Vec<String> = pod
            .ports
            .iter()
            .map(|port| format!("{:?} ({} port {})", port.name, port.protocol, port.port))
            .collect();
        let Some(there) = pod.ports.iter().find(|port| port.name == *name) else {
            let why = match called.is_empty() {
                true => format!("no port of {end} has a name"),
                false => format!(
                    "{end} has no port named {name:?}; its named ports are {}",
                    list(&called, "and")
                ),
            };
            return Miss { far: NEAR, why };
        };
        if let Some(wanted) = wanted
            && wanted != there.protocol
        {
            let default = match wanted {
                Protocol::Tcp => ", and a port without a protocol is TCP's",
                _ => "",
            };
            let why = format!("port {name:?} of {end} is {}'s{default}", there.protocol);
            return Miss { far: MEANT, why };
        }
        let why = format!("port {name:?} of {end} is {} port {}", there.protocol, there.port);
        Miss { far: HALF, why }
    }
}

/// Says which labels an object lacks.
fn unmet(name: &str, labels: &Labels, selector: &Selector) -> String {
    let unmet = selector.requirements().iter().filter(|requirement| !requirement.is_met(labels));
    let describe = |requirement: &Requirement| {
        let key = &requirement.key;
        match (labels.get(key), &requirement.must) {
            (Some(value), Operator::In(_)) => format!("has {key}={value} and not {requirement}"),
            (Some(value), Operator::NotIn(_)) => format!("has {key}={value}"),
            (Some(_), _) => format!("has a label {key}"),
            (None, _) => format!("has no label {key}"),
        }
    };
    let why: Vec<String> = unmet.map(describe).collect();
    format!("{name} {}", list(&why, "and"))
}
