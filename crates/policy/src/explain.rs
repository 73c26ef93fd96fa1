//! Says why a connection is allowed or denied, as a colleague would.
//!
//! The verdict is the evaluator's. Where nothing allows a connection, each rule that might have is
//! listed with what was missing.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use crate::evaluate::{Decision, Side, matches, peer_matches, port_matches, verdict};
use crate::labels::{Labels, Must, Requirement, Selector};
use crate::object::Pod;
use crate::policy::{
    Action, Direction, Peer, PodSet, Policy, PolicyId, Ports, Protocol, Rule, Scope, Tier, Traffic,
};
use crate::world::World;

/// Why a connection is allowed or denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Whether it is allowed.
    pub allowed: bool,
    /// The sentences; those that belong to the one before them begin with blanks.
    pub lines: Vec<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// The most peers, ports or labels that a sentence lists.
const MOST_LISTED: usize = 4;

/// The port of DNS (RFC 1035 §4.2).
const DNS: u16 = 53;

/// Explains what holds for a connection.
#[must_use]
pub fn explain(
    world: &World,
    source: IpAddr,
    destination: IpAddr,
    traffic: Traffic,
) -> Explanation {
    let verdict = verdict(world, source, destination, traffic);
    let asked = Asked { world, source, destination, traffic };
    let mut lines = vec![format!(
        "{} to {}, {traffic}: {}.",
        asked.full_name(source),
        asked.full_name(destination),
        if verdict.allowed() { "allowed" } else { "denied" },
    )];
    for direction in [Direction::Egress, Direction::Ingress] {
        asked.side(direction, verdict.side(direction), &mut lines);
    }
    if lines.len() == 1 {
        lines.push("No end is a pod, so no policy is about it.".to_owned());
    }
    let (egress, ingress) = (&verdict.egress.decision, &verdict.ingress.decision);
    for (one, other, name) in [(egress, ingress, "Ingress"), (ingress, egress, "Egress")] {
        if !one.allows() && other.allows() && *other != Decision::NoPod {
            lines.push(format!("{name} would let it through, and both ends have to."));
        }
    }
    if *egress == Decision::NoneAllows && traffic.port == Some(DNS) {
        let hint = "This is DNS: without egress to its servers (UDP and TCP port 53), the pod \
                    resolves no names.";
        lines.push(hint.to_owned());
    }
    // Names may come from files, and whoever reads this may sit at a terminal.
    let lines = lines.into_iter().map(cni::text::one_line).collect();
    Explanation { allowed: verdict.allowed(), lines }
}

#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    world: &'a World,
    source: IpAddr,
    destination: IpAddr,
    traffic: Traffic,
}

impl<'a> Asked<'a> {
    fn pod_at(&self, address: IpAddr) -> Option<&'a Pod> {
        self.world.claimants(address).first().copied()
    }

    /// Names an end.
    fn name(&self, address: IpAddr) -> String {
        if let Some(pod) = self.pod_at(address) {
            return pod.full_name();
        }
        match self.world.nodes_at(address).next() {
            Some(node) => format!("node {}", node.name),
            None => address.to_string(),
        }
    }

    /// Names an end with its address.
    fn full_name(&self, address: IpAddr) -> String {
        let name = self.name(address);
        if name == address.to_string() { name } else { format!("{name} ({address})") }
    }

    fn ends(&self, direction: Direction) -> (IpAddr, IpAddr) {
        match direction {
            Direction::Egress => (self.source, self.destination),
            Direction::Ingress => (self.destination, self.source),
        }
    }

    fn side(&self, direction: Direction, side: &Side, lines: &mut Vec<String>) {
        let (subject, _) = self.ends(direction);
        let name = self.name(subject);
        let start = match direction {
            Direction::Egress => format!("Egress of {name}"),
            Direction::Ingress => format!("Ingress of {name}"),
        };
        let mut say = |text: String| lines.push(format!("{start}: {text}"));
        let policies: Vec<&Policy> =
            side.asked.iter().filter_map(|id| self.world.policy(id)).collect();
        match &side.decision {
            Decision::NoPod => return,
            Decision::NeighbourDiscovery => say("no policy is about neighbour discovery.".into()),
            Decision::OwnNode { node } => say(format!(
                "node {node} is its own node, which it always reaches and which always reaches it."
            )),
            Decision::Itself => say("it is the pod itself, which no policy cuts off.".into()),
            Decision::UnknownNamespace { namespace } => say(format!(
                "namespace {namespace} is not known, so nobody can tell which policies select the \
                 pod: it is closed."
            )),
            Decision::SeveralPods { pods } => say(format!(
                "{} have this address: it is closed until only one of them is left.",
                pods.join(" and ")
            )),
            Decision::Rule { policy, rule, action } => {
                let rule = self.rule(policy, direction, *rule);
                let verb = if *action == Action::Accept { "accepts" } else { "denies" };
                say(format!("{policy}, {}, {verb} it.", rule.map_or_else(String::new, title)));
                lines.extend(rule.and_then(|rule| self.surprise(rule, direction)));
            }
            Decision::NoneAllows => {
                let of_tier = policies.iter().filter(|policy| policy.tier == Tier::Namespaced);
                let names: Vec<String> = of_tier.map(|policy| policy.id.to_string()).collect();
                let (verb, whose) = match names.len() {
                    1 => ("selects", "none of its rules"),
                    _ => ("select", "none of their rules"),
                };
                say(format!("{} {verb} it, and {whose} allows this.", list(&names, "and")));
            }
            Decision::Default if policies.is_empty() => {
                say("no policy limits it.".into());
            }
            Decision::Default => {
                let names: Vec<String> =
                    policies.iter().map(|policy| policy.id.to_string()).collect();
                say(format!(
                    "no rule of {} is about this, and nothing else is against it.",
                    list(&names, "and")
                ));
            }
        }
        lines.extend(self.passing(&policies, direction));
        for policy in &policies {
            if side.decision == Decision::NoneAllows && policy.tier == Tier::Namespaced {
                self.why_none(policy, direction, lines);
            }
            lines.extend(policy.faults.iter().map(|fault| format!("  {fault}.")));
        }
        if let Some(pod) = self.pod_at(subject)
            && side.decision == Decision::Default
        {
            self.idle_policies(pod, lines);
        }
    }

    fn rule(&self, id: &PolicyId, direction: Direction, rule: usize) -> Option<&'a Rule> {
        self.world.policy(id)?.rules(direction)?.get(rule)
    }

    /// Says which rules let the rest of their tiers be skipped.
    fn passing(&self, policies: &[&Policy], direction: Direction) -> Vec<String> {
        let (_, peer) = self.ends(direction);
        let mut left = BTreeSet::new();
        let mut lines = Vec::new();
        for policy in policies.iter().filter(|policy| policy.tier != Tier::Namespaced) {
            let rules = policy.rules(direction).unwrap_or_default();
            let matching = rules
                .iter()
                .find(|rule| matches(self.world, rule, peer, self.destination, self.traffic));
            match matching {
                Some(_) if left.contains(&policy.tier) => {}
                Some(rule) if rule.action == Action::Pass => {
                    left.insert(policy.tier);
                    let (id, title) = (&policy.id, title(rule));
                    lines.push(format!("  {id}, {title}, passes it on to the next tier."));
                }
                // It decides.
                Some(_) => break,
                None => {}
            }
        }
        lines
    }

    /// Says of each rule why it does not allow the connection.
    fn why_none(&self, policy: &Policy, direction: Direction, lines: &mut Vec<String>) {
        let rules = policy.rules(direction).unwrap_or_default();
        if rules.is_empty() && policy.faults.is_empty() {
            lines.push(format!(
                "  {} is about {direction} and has no {direction} rules: it allows nothing.",
                policy.id
            ));
        }
        for rule in rules {
            let mut missing = self.missing_peer(policy, rule, direction);
            missing.extend(self.missing_port(rule));
            lines.push(format!(
                "  {}, {}: {}.",
                policy.id,
                describe(rule, direction),
                list(&missing, "and")
            ));
        }
    }

    /// Says which policies of the pod's namespace were perhaps meant for it.
    fn idle_policies(&self, pod: &Pod, lines: &mut Vec<String>) {
        let mut idle = Vec::new();
        for policy in self.world.policies().filter(|policy| policy.tier == Tier::Namespaced) {
            let Some(subject) = &policy.subject else { continue };
            if !subject.has_namespace(&pod.namespace, None) {
                continue;
            }
            let mut others = self.world.pods_of(&pod.namespace);
            if self.world.is_in(pod, subject) {
                idle.extend(policy.notices.iter().map(|notice| format!("  {notice}.")));
            } else if !others.any(|pod| self.world.is_in(pod, subject)) {
                idle.push(format!("  {} selects no pod: it is about {subject}.", policy.id));
            }
        }
        idle.truncate(MOST_LISTED);
        lines.append(&mut idle);
    }

    /// Says why a rule allows more than it may have been meant to.
    fn surprise(&self, rule: &Rule, direction: Direction) -> Option<String> {
        let (_, other) = self.ends(direction);
        let peers = rule.peers.as_ref()?;
        let matching = peers.iter().find(|peer| peer_matches(self.world, peer, other))?;
        let with_labels = |peer: &&Peer| matches!(peer, Peer::Pods(set) if !set.pods.is_all());
        let whole_namespaces = matches!(matching, Peer::Pods(PodSet { namespaces: Scope::Matching(_), pods }) if pods.is_all());
        let among = if matches!(matching, Peer::Block(_)) { "in" } else { "among" };
        let is_among = format!("  {} is {among} {matching}", self.name(other));
        if whole_namespaces && peers.iter().any(|peer| with_labels(&peer)) {
            return Some(format!(
                "{is_among}; a podSelector in another entry of the list does not narrow that."
            ));
        }
        Some(format!("{is_among}."))
    }

    fn missing_peer(&self, policy: &Policy, rule: &Rule, direction: Direction) -> Vec<String> {
        let (_, other) = self.ends(direction);
        let Some(peers) = &rule.peers else { return Vec::new() };
        if peers.iter().any(|peer| peer_matches(self.world, peer, other)) {
            return Vec::new();
        }
        let mut missing: Vec<String> = Vec::new();
        for peer in peers {
            let why = match peer {
                Peer::Pods(set) => self.not_in_pods(set, policy, other),
                Peer::Nodes(selector) => match self.world.nodes_at(other).next() {
                    Some(node) => unmet(&format!("node {}", node.name), &node.labels, selector),
                    None => format!("{} is not a node", self.name(other)),
                },
                Peer::Block(block) => match block.exception(other) {
                    Some(except) => {
                        format!("{other} is in {}, but {except} of it is excepted", block.cidr)
                    }
                    None => format!("{other} is not in {}", block.cidr),
                },
            };
            if !missing.contains(&why) {
                missing.push(why);
            }
        }
        missing
    }

    fn not_in_pods(&self, set: &PodSet, policy: &Policy, other: IpAddr) -> String {
        let name = self.name(other);
        let Some(pod) = self.pod_at(other) else {
            let on_host = |pod: &&Pod| pod.host_network && pod.addresses.contains(&other);
            let meant = |pod: &&Pod| {
                let namespace = self.world.namespace(&pod.namespace);
                on_host(pod) && set.matches(pod, namespace)
            };
            return match self.world.pods().find(meant) {
                Some(pod) => format!(
                    "{} is in the host's network, so policies see {name} and not the pod",
                    pod.full_name()
                ),
                None => format!("{name} is not a pod"),
            };
        };
        let namespace = self.world.namespace(&pod.namespace);
        let labels = namespace.map(|namespace| &namespace.labels);
        if set.has_namespace(&pod.namespace, labels) {
            return unmet(&name, &pod.labels, &set.pods);
        }
        let of = format!("namespace {}", pod.namespace);
        match &set.namespaces {
            Scope::Own(own) => format!(
                "{name} is of {of}, and a podSelector alone is about the policy's own namespace {own}"
            ),
            Scope::Matching(_) if labels.is_none() => format!("{of} is not known"),
            Scope::Matching(selector) => {
                let why = unmet(&of, labels.unwrap_or(&Labels::new()), selector);
                let is_own = matches!(&policy.id, PolicyId::Network { namespace, .. } if **namespace == *pod.namespace);
                if is_own {
                    format!("{why}; the policy's own namespace is not included by itself")
                } else {
                    why
                }
            }
        }
    }

    fn missing_port(&self, rule: &Rule) -> Vec<String> {
        let Some(all) = &rule.ports else { return Vec::new() };
        let (world, traffic) = (self.world, self.traffic);
        if all.iter().any(|ports| port_matches(world, ports, self.destination, traffic)) {
            return Vec::new();
        }
        let mut missing: Vec<String> = Vec::new();
        for ports in all {
            let why = self.other_port(ports);
            if !missing.contains(&why) {
                missing.push(why);
            }
        }
        missing
    }

    fn other_port(&self, ports: &Ports) -> String {
        let Traffic { protocol, port } = self.traffic;
        let Some(port) = port else {
            return format!("{protocol} has no ports, and only a rule without ports allows it");
        };
        match ports {
            Ports::All(_) => format!("this is {protocol}"),
            Ports::Range { protocol: wanted, first, last } => {
                if *wanted == protocol {
                    return format!(
                        "this is port {port}, and a policy sees the pod's port, not a Service's"
                    );
                }
                let default = if *wanted == Protocol::Tcp && (*first..=*last).contains(&port) {
                    ", and a port without a protocol is TCP's"
                } else {
                    ""
                };
                format!("this is {protocol}{default}")
            }
            Ports::Named { protocol: wanted, name } => {
                let end = self.name(self.destination);
                let Some(pod) = self.pod_at(self.destination) else {
                    return format!("{end} is not a pod and has no named ports");
                };
                let called: Vec<String> = pod
                    .ports
                    .iter()
                    .map(|port| format!("{:?} ({} port {})", port.name, port.protocol, port.port))
                    .collect();
                let same: Vec<_> = pod.ports.iter().filter(|port| port.name == *name).collect();
                match same.first() {
                    Some(there) if wanted.is_some_and(|wanted| wanted != there.protocol) => {
                        format!("port {name:?} of {end} is {}'s", there.protocol)
                    }
                    Some(there) => {
                        format!("port {name:?} of {end} is {} port {}", there.protocol, there.port)
                    }
                    None if called.is_empty() => format!("no port of {end} has a name"),
                    None => {
                        let called = list(&called, "and");
                        format!("{end} has no port named {name:?}; its named ports are {called}")
                    }
                }
            }
        }
    }
}

/// Says which labels an object lacks.
fn unmet(name: &str, labels: &Labels, selector: &Selector) -> String {
    let unmet = selector.requirements().iter().filter(|requirement| !requirement.is_met(labels));
    let describe = |requirement: &Requirement| {
        let key = &requirement.key;
        match (labels.get(key), &requirement.must) {
            (Some(value), Must::In(_)) => format!("has {key}={value} and not {requirement}"),
            (Some(value), Must::NotIn(_)) => format!("has {key}={value}"),
            (Some(_), _) => format!("has a label {key}"),
            (None, _) => format!("has no label {key}"),
        }
    };
    let why: Vec<String> = unmet.map(describe).collect();
    format!("{name} {}", list(&why, "and"))
}

/// Names a rule by its place, and its name if it has one.
fn title(rule: &Rule) -> String {
    match &rule.name {
        Some(name) => format!("{} ({name:?})", rule.path),
        None => rule.path.clone(),
    }
}

/// Says what a rule allows.
fn describe(rule: &Rule, direction: Direction) -> String {
    let what = match &rule.ports {
        Some(ports) => list(&texts(ports), "and"),
        None => "all traffic".to_owned(),
    };
    let whom = match &rule.peers {
        Some(peers) => list(&texts(peers), "or"),
        None => "everybody".to_owned(),
    };
    let way = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    format!("{} allows {what} {way} {whom}", title(rule))
}

fn texts<T: fmt::Display>(all: &[T]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

/// Writes a list with a word before its last entry; of a long one only the beginning.
fn list(all: &[String], word: &str) -> String {
    match all {
        [] => String::new(),
        [one] => one.clone(),
        _ if MOST_LISTED < all.len() => {
            let more = all.len() - MOST_LISTED;
            format!("{} {word} {more} more", all[..MOST_LISTED].join(", "))
        }
        [begin @ .., last] => format!("{} {word} {last}", begin.join(", ")),
    }
}
