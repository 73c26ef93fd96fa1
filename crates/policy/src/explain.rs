//! Says why a connection is allowed or denied, as a colleague would.
//!
//! The verdict is the evaluator's. Where nothing allows a connection, each rule that might have is
//! listed with what was missing, and the rule that lacks least is the cause.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use crate::compile::merge::MOST_LISTS;
use crate::evaluate::{Decision, Side, matches, peer_matches, verdict, verdict_by_service};
use crate::object::{Pod, is_stand_in};
use crate::policy::{
    Action, Direction, Peer, PodSet, Policy, PolicyId, Protocol, Rule, Scope, Tier, Traffic,
};
use crate::world::World;

mod missing;

/// Why a connection is allowed or denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Whether it is allowed.
    pub allowed: bool,
    /// Of each end that denies it, the cause in a sentence, without a full stop: what there is room
    /// for in a log.
    pub causes: Vec<(Direction, String)>,
    /// The sentences; those that belong to the one before them begin with blanks.
    pub lines: Vec<String>,
}

impl Explanation {
    /// Returns why an end denies the connection.
    #[must_use]
    pub fn cause(&self, direction: Direction) -> Option<&str> {
        let found = self.causes.iter().find(|(there, _)| *there == direction);
        found.map(|(_, cause)| cause.as_str())
    }
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
    let asked = Question { world, source, destination, traffic };
    let mut lines = vec![format!(
        "{} to {}, {traffic}: {}.",
        asked.full_name(source),
        asked.full_name(destination),
        if verdict.allowed() { "allowed" } else { "denied" },
    )];
    let mut causes = Vec::new();
    for direction in [Direction::Egress, Direction::Ingress] {
        let side = verdict.side(direction);
        asked.side(direction, side, &mut lines);
        if !side.decision.allows() {
            causes.push((direction, cni::text::one_line(asked.cause(direction, side))));
        }
    }
    if verdict.egress.decision == Decision::Itself {
        lines.push(asked.by_service());
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
    if *egress == Decision::NoneAllows && asked.is_dns() {
        lines.push(format!("This is DNS: {NO_NAMES}."));
    }
    // Names may come from files, and the reader may sit at a terminal, which obeys escape
    // sequences.
    let lines = lines.into_iter().map(cni::text::one_line).collect();
    Explanation { allowed: verdict.allowed(), causes, lines }
}

/// Says of a packet that was dropped at one end which policies were asked there, and why they deny
/// it, if they do. The reason is one sentence, the cause that [`explain`] has; finding it takes
/// less time than a whole explanation. A pod's packet to itself was on its way by a Service.
#[must_use]
pub fn dropped(
    world: &World,
    source: IpAddr,
    destination: IpAddr,
    traffic: Traffic,
    direction: Direction,
) -> (Vec<PolicyId>, Option<String>) {
    let verdict = verdict_by_service(world, source, destination, traffic);
    let side = verdict.side(direction);
    let asked = Question { world, source, destination, traffic };
    let cause = || cni::text::one_line(asked.cause(direction, side));
    let cause = (!side.decision.allows()).then(cause);
    (side.asked.clone(), cause)
}

/// Says why a pod is closed whose policies have too many different lists of ports
/// ([`too_many_lists`](crate::too_many_lists)).
#[must_use]
pub fn why_closed(direction: Direction) -> String {
    format!(
        "the {direction} rules of its policies have more than {MOST_LISTS} different lists of ports \
         for peers that they name: it is closed to all but its node; give more rules the same ports, \
         or ranges of ports"
    )
}

/// What happens to a pod whose policies forget DNS.
const NO_NAMES: &str =
    "without egress to its servers (UDP and TCP port 53), the pod resolves no names";

#[derive(Debug, Clone, Copy)]
struct Question<'a> {
    world: &'a World,
    source: IpAddr,
    destination: IpAddr,
    traffic: Traffic,
}

impl<'a> Question<'a> {
    fn pod_at(&self, address: IpAddr) -> Option<&'a Pod> {
        self.world.claimants(address).first().copied()
    }

    /// Names an end.
    fn name(&self, address: IpAddr) -> String {
        let pods: Vec<String> =
            self.world.claimants(address).iter().map(|pod| pod.full_name()).collect();
        if !pods.is_empty() {
            return list(&pods, "or");
        }
        match self.world.nodes_at(address).next() {
            Some(node) => format!("node {}", node.name),
            None => address.to_string(),
        }
    }

    /// Names an end with its address.
    fn full_name(&self, address: IpAddr) -> String {
        let name = self.name(address);
        match name == address.to_string() || is_stand_in(address) {
            true => name,
            false => format!("{name} ({address})"),
        }
    }

    fn is_dns(&self) -> bool {
        let protocol = matches!(self.traffic.protocol, Protocol::Udp | Protocol::Tcp);
        protocol && self.traffic.port == Some(DNS)
    }

    fn ends(&self, direction: Direction) -> (IpAddr, IpAddr) {
        match direction {
            Direction::Egress => (self.source, self.destination),
            Direction::Ingress => (self.destination, self.source),
        }
    }

    /// Says what holds for a pod that reaches itself by a Service.
    fn by_service(&self) -> String {
        let Question { world, source, destination, traffic } = *self;
        let verdict = verdict_by_service(world, source, destination, traffic);
        let denied = [Direction::Egress, Direction::Ingress].into_iter().find_map(|direction| {
            let side = verdict.side(direction);
            (!side.decision.allows()).then(|| self.cause(direction, side))
        });
        let start = "By a Service, where its packets leave the pod,";
        match denied {
            Some(cause) => format!("{start} it is denied: {cause}."),
            None => format!("{start} it is allowed too."),
        }
    }

    fn policies(&self, side: &Side) -> Vec<&'a Policy> {
        side.asked.iter().filter_map(|id| self.world.policy(id)).collect()
    }

    fn side(&self, direction: Direction, side: &Side, lines: &mut Vec<String>) {
        let (subject, _) = self.ends(direction);
        let name = self.name(subject);
        let start = match direction {
            Direction::Egress => format!("Egress of {name}"),
            Direction::Ingress => format!("Ingress of {name}"),
        };
        let mut say = |text: String| lines.push(format!("{start}: {text}"));
        let policies = self.policies(side);
        match &side.decision {
            Decision::NoPod => return,
            Decision::NeighbourDiscovery => say("no policy is about neighbour discovery.".into()),
            Decision::OwnNode { node } => {
                let what = match direction {
                    Direction::Ingress => "which always reaches it",
                    Direction::Egress => "which it reaches: no ClusterNetworkPolicy denies that",
                };
                say(format!("node {node} is its own node, {what}."));
            }
            Decision::Itself => say("it is the pod itself, which no policy cuts off.".into()),
            Decision::UnknownNamespace { .. } | Decision::SeveralPods { .. } => {
                say(format!("{}.", self.cause(direction, side)));
            }
            Decision::SeveralPeers { .. } | Decision::TooManyLists => {
                return say(format!("{}.", self.cause(direction, side)));
            }
            Decision::Rule { policy, rule, action } => {
                let rule = self.rule(policy, direction, *rule);
                let verb = if *action == Action::Accept { "accepts" } else { "denies" };
                say(format!("{policy}, {}, {verb} it.", rule.map_or_else(String::new, title)));
                let why = rule.and_then(|rule| self.surprise(rule, direction));
                lines.extend(why.map(|why| format!("  {why}.")));
                if *action == Action::Deny {
                    let later = self.overruled(&policies, policy, direction);
                    lines.extend(later.map(|later| format!("  {later}.")));
                }
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
        lines.extend(self.not_at_host(direction));
        if let Some(pod) = self.pod_at(subject)
            && side.decision == Decision::Default
        {
            self.idle_policies(pod, lines);
        }
    }

    /// Says that the other end is the pod's own node by an address that the node's host lacks.
    fn not_at_host(&self, direction: Direction) -> Option<String> {
        let (subject, peer) = self.ends(direction);
        let node = self.pod_at(subject)?.node.as_deref()?;
        let is_node = self.world.nodes_at(peer).any(|there| there.name == node);
        let leaves = is_node && self.pod_at(peer).is_none() && !self.world.host_has(node, peer);
        leaves.then(|| {
            format!("  The host of node {node} does not have {peer}: policies apply to it.")
        })
    }

    /// Says in one sentence why an end denies the connection.
    fn cause(&self, direction: Direction, side: &Side) -> String {
        let policies = self.policies(side);
        match &side.decision {
            Decision::UnknownNamespace { namespace } => format!(
                "namespace {namespace} is not known, so it cannot be said which policies select \
                 the pod: it is closed"
            ),
            Decision::SeveralPods { pods } => format!(
                "{} have this address: it is closed until only one of them is left",
                pods.join(" and ")
            ),
            Decision::SeveralPeers { pods } => format!(
                "{} have the address {}: policies let nothing pass between it and this pod until \
                 only one of them is left",
                pods.join(" and "),
                self.ends(direction).1
            ),
            Decision::TooManyLists => why_closed(direction),
            Decision::Rule { policy: PolicyId::Isolation { namespace }, .. } => {
                let (subject, other) = self.ends(direction);
                format!(
                    "namespace {namespace} is isolated by default, and {} is neither of it nor among \
                     the exemptions; a NetworkPolicy that selects {} decides in place of that",
                    self.name(other),
                    self.name(subject)
                )
            }
            Decision::Rule { policy, rule, .. } => {
                let rule = self.rule(policy, direction, *rule);
                let title = rule.map_or_else(String::new, title);
                let mut text = format!("{policy}, {title}, denies it");
                let why = rule.and_then(|rule| self.surprise(rule, direction));
                for more in why.into_iter().chain(self.overruled(&policies, policy, direction)) {
                    text = format!("{text}; {more}");
                }
                let faults = policies.iter().filter(|there| there.id == *policy);
                match faults.flat_map(|policy| &policy.faults).next() {
                    Some(fault) if rule.is_some_and(|rule| rule.peers.is_none()) => {
                        format!("{text}; {fault}")
                    }
                    _ => text,
                }
            }
            Decision::NoneAllows => {
                let text = self.nearest(&policies, direction);
                match direction == Direction::Egress && self.is_dns() {
                    true => format!("{text}; {NO_NAMES}"),
                    false => text,
                }
            }
            Decision::NoPod
            | Decision::NeighbourDiscovery
            | Decision::OwnNode { .. }
            | Decision::Itself
            | Decision::Default => "nothing is against it".to_owned(),
        }
    }

    fn rule(&self, id: &PolicyId, direction: Direction, rule: usize) -> Option<&'a Rule> {
        self.world.policy(id)?.rules(direction)?.get(rule)
    }

    fn first_match(&self, policy: &'a Policy, direction: Direction) -> Option<&'a Rule> {
        let (_, peer) = self.ends(direction);
        let rules = policy.rules(direction).unwrap_or_default();
        rules.iter().find(|rule| matches(self.world, rule, peer, self.destination, self.traffic))
    }

    /// Says which rules let the rest of their tiers be skipped.
    fn passing(&self, policies: &[&'a Policy], direction: Direction) -> Vec<String> {
        let mut left = BTreeSet::new();
        let mut lines = Vec::new();
        for policy in policies.iter().filter(|policy| policy.tier != Tier::Namespaced) {
            match self.first_match(policy, direction) {
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

    /// Says which policy would accept the connection and is asked too late.
    fn overruled(
        &self,
        policies: &[&'a Policy],
        decider: &PolicyId,
        direction: Direction,
    ) -> Option<String> {
        let place = policies.iter().position(|policy| policy.id == *decider)?;
        let decider = policies[place];
        let mut later = policies[place + 1..].iter();
        let (policy, rule) = later.find_map(|policy| {
            let rule = self.first_match(policy, direction)?;
            (rule.action == Action::Accept).then_some((policy, rule))
        })?;
        let order = match (policy.tier == decider.tier, policy.priority == decider.priority) {
            (true, true) => format!(
                "both have priority {}, and the one whose name comes first is asked first",
                policy.priority
            ),
            (true, false) => {
                format!("priority {} is asked before {}", decider.priority, policy.priority)
            }
            (false, _) => format!("tier {:?} is asked before it", decider.tier),
        };
        Some(format!("{}, {}, would accept it, but {order}", policy.id, title(rule)))
    }

    /// Says of each rule why it does not allow the connection.
    fn why_none(&self, policy: &Policy, direction: Direction, lines: &mut Vec<String>) {
        let rules = policy.rules(direction).unwrap_or_default();
        if rules.is_empty() && policy.faults.is_empty() {
            lines.push(format!("  {}.", without_rules(policy, direction)));
        }
        for rule in rules {
            let missing: Vec<String> = self
                .missing_peers(policy, rule, direction)
                .into_iter()
                .chain(self.missing_ports(rule))
                .map(|miss| miss.why)
                .collect();
            lines.push(format!(
                "  {}, {}: {}.",
                policy.id,
                describe(rule, direction),
                reasons(&missing)
            ));
        }
    }

    /// Says which rule lacks least for the connection, and what.
    fn nearest(&self, policies: &[&Policy], direction: Direction) -> String {
        let mut best: Option<((u8, u8), String)> = None;
        let of_tier = policies.iter().filter(|policy| policy.tier == Tier::Namespaced);
        for policy in of_tier.clone() {
            for rule in policy.rules(direction).unwrap_or_default() {
                let peers = self.missing_peers(policy, rule, direction);
                let parts = [peers, self.missing_ports(rule)];
                let least = parts.iter().filter_map(|part| part.iter().min_by_key(|m| m.far));
                let least: Vec<&missing::Miss> = least.collect();
                // A rule that lacks either the peer or the port is nearer than one that lacks both.
                let lacks = u8::try_from(least.len()).unwrap_or(u8::MAX);
                let far = (lacks, least.iter().map(|miss| miss.far).sum());
                if best.as_ref().is_none_or(|(there, _)| far < *there) {
                    let why: Vec<String> = least.iter().map(|miss| miss.why.clone()).collect();
                    let (id, what) = (&policy.id, describe(rule, direction));
                    best = Some((far, format!("{id}, {what}: {}", reasons(&why))));
                }
            }
        }
        if let Some((_, text)) = best {
            return text;
        }
        let mut faults = of_tier.clone().flat_map(|policy| &policy.faults);
        if let Some(fault) = faults.next() {
            return fault.to_string();
        }
        let texts: Vec<String> = of_tier.map(|policy| without_rules(policy, direction)).collect();
        list(&texts, "and")
    }

    /// Says which policies of the pod's namespace their author perhaps meant for it.
    fn idle_policies(&self, pod: &Pod, lines: &mut Vec<String>) {
        let mut idle = Vec::new();
        for policy in self.world.policies().filter(|policy| policy.tier == Tier::Namespaced) {
            let Some(subject) = &policy.subject else { continue };
            if !subject.has_namespace(&pod.namespace, None) {
                continue;
            }
            if self.world.is_in(pod, subject) {
                idle.extend(policy.notices.iter().map(|notice| format!("  {notice}.")));
            } else if !self.world.has_any(subject) {
                idle.push(format!("  {} selects no pod: it is about {subject}.", policy.id));
            }
        }
        idle.truncate(MOST_LISTED);
        lines.append(&mut idle);
    }

    /// Says why a rule is about the other end, which may not have been meant.
    fn surprise(&self, rule: &Rule, direction: Direction) -> Option<String> {
        let (_, other) = self.ends(direction);
        let peers = rule.peers.as_ref()?;
        let matching = peers.iter().find(|peer| peer_matches(self.world, peer, other))?;
        let with_labels = |peer: &&Peer| matches!(peer, Peer::Pods(set) if !set.pods.is_all());
        let whole_namespaces = matches!(matching, Peer::Pods(PodSet { namespaces: Scope::Matching(_), pods }) if pods.is_all());
        let among = if matches!(matching, Peer::Block(_)) { "in" } else { "among" };
        let is_among = format!("{} is {among} {matching}", self.name(other));
        if whole_namespaces && peers.iter().any(|peer| with_labels(&peer)) {
            return Some(format!(
                "{is_among}; a podSelector in another entry of the list does not narrow that"
            ));
        }
        Some(is_among)
    }
}

fn without_rules(policy: &Policy, direction: Direction) -> String {
    format!("{} is about {direction} and has no {direction} rules: it allows nothing", policy.id)
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
        None => "all peers".to_owned(),
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

/// Writes reasons one after the other, with semicolons between them if one has parts of its own.
fn reasons(all: &[String]) -> String {
    let in_parts = |one: &String| one.contains([',', ';']);
    match all.iter().any(in_parts) && 1 < all.len() {
        true if MOST_LISTED < all.len() => {
            format!("{}; and {} more", all[..MOST_LISTED].join("; "), all.len() - MOST_LISTED)
        }
        true => all.join("; "),
        false => list(all, "and"),
    }
}

/// Writes a list with a word before its last entry; if the list is long, only its beginning.
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
