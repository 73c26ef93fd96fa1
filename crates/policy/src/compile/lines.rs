//! Policies' rules as lines of chains, and which sets these refer to.

use std::collections::{BTreeMap, BTreeSet};

use super::merge;
use super::names::{self, Kind, hash};
use crate::labels::Selector;
use crate::policy::{Action, Block, Direction, PodSet, Policy, PolicyId, Ports, Rule, Tier};
use crate::program::{End, Line, LineAction, Match, Name};
use net::IpFamily;

/// What sets are about. Equal ones share their sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SetSubject {
    /// The pods of at least one of these.
    Pods(Vec<PodSet>),
    /// The nodes of at least one of these.
    Nodes(Vec<Selector>),
    /// The blocks of one rule, of one family: together they are one set of intervals.
    Blocks(IpFamily, BTreeSet<Block>),
    /// A port's name. Of ingress the destination is a pod of this node, so its sets have no other.
    Port(Direction, String),
    /// The addresses that several pods claim.
    Contested,
}

impl SetSubject {
    /// Returns the hash that its sets' names have.
    pub(crate) fn hash(&self, salt: &str) -> String {
        // Debug tells apart what Display does not need to.
        match self {
            SetSubject::Pods(all) => match all.as_slice() {
                [pods] => hash(&format!("{salt}Pods({pods:?})")),
                _ => hash(&format!("{salt}{self:?}")),
            },
            SetSubject::Nodes(all) => match all.as_slice() {
                [nodes] => hash(&format!("{salt}Nodes({nodes:?})")),
                _ => hash(&format!("{salt}{self:?}")),
            },
            SetSubject::Blocks(..) | SetSubject::Port(..) | SetSubject::Contested => {
                hash(&format!("{salt}{self:?}"))
            }
        }
    }

    /// Returns the families that it has a set of.
    pub(crate) fn families(&self) -> Vec<IpFamily> {
        match self {
            SetSubject::Blocks(family, _) => vec![*family],
            _ => IpFamily::ALL.to_vec(),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            SetSubject::Pods(_) => Kind::Pods,
            SetSubject::Nodes(_) => Kind::Nodes,
            SetSubject::Blocks(..) => Kind::Block,
            SetSubject::Port(..) => Kind::Port,
            SetSubject::Contested => Kind::Contested,
        }
    }
}

/// What sets are about, by the hash of their names.
pub(crate) type SetSubjects = BTreeMap<String, SetSubject>;

/// One direction of a policy, or of the policies of a class, compiled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CompiledLines {
    /// The lines of its rules.
    pub(crate) lines: Vec<Line>,
    /// The chains to which these jump.
    pub(crate) parts: BTreeMap<Name, Vec<Line>>,
    /// What the sets are about to which all of them refer.
    pub(crate) about: SetSubjects,
    /// Whether a line leaves the tier.
    pub(crate) passes: bool,
}

impl CompiledLines {
    /// Returns the chains that a policy has.
    ///
    /// A chain can leave itself and not the one that jumped to it. So the lines of a policy that
    /// passes stand in each chain of a tier, and the policy has no chain of its own.
    pub(crate) fn chains(&self, main: &Name) -> BTreeMap<Name, Vec<Line>> {
        let mut chains = self.parts.clone();
        if !self.passes {
            chains.insert(main.clone(), self.lines.clone());
        }
        chains
    }
}

/// Compiles one direction of a policy.
pub(crate) fn compile(policy: &Policy, direction: Direction, salt: &str) -> CompiledLines {
    let mut compiled = CompiledLines::default();
    let main = names::policy(direction, salt, &policy.id);
    for (number, rule) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
        let part = names::part(&main, number);
        compile_rule(rule, part, direction, salt, &mut compiled);
    }
    compiled
}

/// Compiles what a policy says of the node of its pods.
pub(crate) fn compile_own(policy: &Policy, direction: Direction, salt: &str) -> CompiledLines {
    let mut compiled = CompiledLines::default();
    if direction == Direction::Ingress || !policy.decides_about_own_node() {
        return compiled;
    }
    let main = names::own_policy(salt, &policy.id);
    for (number, rule) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
        if rule.names_nodes() {
            compile_rule(rule, names::part(&main, number), direction, salt, &mut compiled);
        }
    }
    compiled
}

/// `part` is the name of the chain that the rule's ports have if they need one.
fn compile_rule(
    rule: &Rule,
    part: Name,
    direction: Direction,
    salt: &str,
    compiled: &mut CompiledLines,
) {
    let about = rule.peers.as_ref().map(|peers| merge::Peers::of(peers).about());
    let ports = rule.ports.as_ref().map(|all| all.iter().collect());
    let lines = Lines { action: rule.action, about, ports };
    lines.write(part, direction, salt, compiled);
}

/// Lines that say the same of several peers and ports.
pub(crate) struct Lines<'a> {
    pub(crate) action: Action,
    /// The peers' sets; `None` is every peer.
    pub(crate) about: Option<Vec<SetSubject>>,
    /// `None` is all traffic.
    pub(crate) ports: Option<Vec<&'a Ports>>,
}

impl Lines<'_> {
    /// Adds them. `part` is the name of the chain that the ports have if they need one.
    pub(crate) fn write(
        self,
        part: Name,
        direction: Direction,
        salt: &str,
        compiled: &mut CompiledLines,
    ) {
        let then = match self.action {
            Action::Accept => LineAction::Accept,
            Action::Deny => LineAction::Deny,
            Action::Pass => {
                compiled.passes = true;
                LineAction::Return
            }
        };
        let mut peers: Vec<Alternative> = Vec::new();
        match self.about {
            Some(all) => {
                for about in all {
                    let hash = about.hash(salt);
                    peers.extend(of_peers(&about, &hash, direction));
                    compiled.about.insert(hash, about);
                }
            }
            None => peers.push(Alternative::default()),
        }
        let mut ports: Vec<Alternative> = Vec::new();
        match self.ports {
            Some(all) => {
                for port in all {
                    ports.extend(of_ports(port, direction, salt, &mut compiled.about));
                }
            }
            None => ports.push(Alternative::default()),
        }
        let line = |matches: Vec<Match>, then: &LineAction| Line { matches, then: then.clone() };
        let sum = peers.len() + ports.len();
        // A chain of its own cannot leave the chain that jumps there.
        if sum < peers.len() * ports.len() && self.action != Action::Pass {
            let jump = LineAction::Jump(part.clone());
            compiled.lines.extend(peers.into_iter().map(|peer| line(peer.matches, &jump)));
            let lines = ports.into_iter().map(|ports| line(ports.matches, &then)).collect();
            compiled.parts.insert(part, lines);
            return;
        }
        for peer in &peers {
            for ports in ports.iter().filter(|ports| ports.fits(peer)) {
                let matches = peer.matches.iter().chain(&ports.matches).cloned().collect();
                compiled.lines.push(line(matches, &then));
            }
        }
    }
}

/// One of the ways to match.
#[derive(Debug, Default)]
struct Alternative {
    family: Option<IpFamily>,
    matches: Vec<Match>,
}

impl Alternative {
    fn fits(&self, other: &Alternative) -> bool {
        self.family.is_none() || other.family.is_none() || self.family == other.family
    }
}

fn of_peers(about: &SetSubject, hash: &str, direction: Direction) -> Vec<Alternative> {
    let end = match direction {
        Direction::Ingress => End::Source,
        Direction::Egress => End::Destination,
    };
    let alternative = |family| {
        let set = names::set(about.kind(), family, hash);
        let matches = vec![Match::Address { end, family, set }];
        Alternative { family: Some(family), matches }
    };
    about.families().into_iter().map(alternative).collect()
}

fn of_ports(
    ports: &Ports,
    direction: Direction,
    salt: &str,
    sets: &mut SetSubjects,
) -> Vec<Alternative> {
    let any = |matched| vec![Alternative { family: None, matches: vec![matched] }];
    match ports {
        Ports::All(protocol) => any(Match::Protocol(*protocol)),
        Ports::Range { protocol, first, last } => {
            any(Match::Ports { protocol: *protocol, first: *first, last: *last })
        }
        Ports::Named { protocol, name } => {
            let about = SetSubject::Port(direction, name.clone());
            let hash = about.hash(salt);
            sets.insert(hash.clone(), about);
            let alternative = |family| {
                let mut matches: Vec<Match> = protocol.map(Match::Protocol).into_iter().collect();
                let set = names::set(Kind::Port, family, &hash);
                matches.push(Match::NamedPort { family, set });
                Alternative { family: Some(family), matches }
            };
            IpFamily::ALL.into_iter().map(alternative).collect()
        }
    }
}

/// Returns the chains of pods about whose node the same policies decide: their own, one for each
/// tier with policies, and those to which these jump. Policies are in the order in which they are
/// asked.
///
/// A policy has no chain of its own here: few policies are about nodes, and fewer pods differ in
/// that.
pub(crate) fn own_class(
    hash: &str,
    policies: &[(&Policy, &CompiledLines)],
) -> BTreeMap<Name, Vec<Line>> {
    let mut chains = BTreeMap::new();
    let mut main = Vec::new();
    for tier in [Tier::Admin, Tier::Baseline] {
        let of_tier = policies.iter().filter(|(policy, _)| policy.tier == tier);
        let lines: Vec<Line> = of_tier.flat_map(|(_, own)| own.lines.iter().cloned()).collect();
        if !lines.is_empty() {
            let name = names::own_tier(tier, hash);
            main.push(Line { matches: Vec::new(), then: LineAction::Jump(name.clone()) });
            chains.insert(name, lines);
        }
    }
    for (_, own) in policies {
        chains.extend(own.parts.clone());
    }
    chains.insert(names::own_class(hash), main);
    chains
}

/// The chains of a class.
#[derive(Debug, Default)]
pub(crate) struct ClassChains {
    /// Its own, one for each tier of ClusterNetworkPolicies, and parts of these.
    pub(crate) chains: BTreeMap<Name, Vec<Line>>,
    /// What the sets are about to which these refer.
    pub(crate) about: SetSubjects,
}

/// Writes a class that jumps to the chains of its policies.
///
/// `policies` are those that select its pods, in the order in which they are asked.
pub(crate) fn class<'a>(
    direction: Direction,
    salt: &str,
    hash: &str,
    policies: &[&Policy],
    compiled: impl Fn(&PolicyId) -> Option<&'a CompiledLines>,
) -> ClassChains {
    let line = |policy: &&Policy| match compiled(&policy.id) {
        Some(compiled) if compiled.passes => compiled.lines.clone(),
        _ => {
            let then = LineAction::Jump(names::policy(direction, salt, &policy.id));
            vec![Line { matches: Vec::new(), then }]
        }
    };
    of_tiers((direction, salt, hash), policies, |_, of_tier| CompiledLines {
        lines: of_tier.iter().flat_map(line).collect(),
        ..CompiledLines::default()
    })
}

/// Writes a class that has the rules of its policies itself.
pub(crate) fn merged_class(
    direction: Direction,
    salt: &str,
    hash: &str,
    policies: &[&Policy],
) -> ClassChains {
    of_tiers((direction, salt, hash), policies, |name, of_tier| {
        merge::compile(of_tier, name, direction, salt)
    })
}

/// Writes a class of which `write` says the lines of each tier, in a chain of this name. No rule is
/// asked about an address that several pods claim: it is denied.
fn of_tiers(
    (direction, salt, hash): (Direction, &str, &str),
    policies: &[&Policy],
    write: impl Fn(&Name, &[&Policy]) -> CompiledLines,
) -> ClassChains {
    let mut written = ClassChains::default();
    let always = |then: LineAction| Line { matches: Vec::new(), then };
    let own = names::class(direction, hash);
    let contested = SetSubject::Contested.hash(salt);
    let peers = of_peers(&SetSubject::Contested, &contested, direction).into_iter();
    let mut main: Vec<Line> =
        peers.map(|peer| Line { matches: peer.matches, then: LineAction::Deny }).collect();
    written.about.insert(contested, SetSubject::Contested);
    for tier in [Tier::Admin, Tier::Namespaced, Tier::Baseline] {
        let is_of_tier = |policy: &&Policy| policy.tier == tier;
        let of_tier: Vec<&Policy> = policies.iter().copied().filter(is_of_tier).collect();
        if of_tier.is_empty() {
            continue;
        }
        let name = match tier {
            Tier::Namespaced => own.clone(),
            Tier::Admin | Tier::Baseline => names::tier(direction, tier, hash),
        };
        let CompiledLines { lines, parts, about, .. } = write(&name, &of_tier);
        written.chains.extend(parts);
        written.about.extend(about);
        if tier == Tier::Namespaced {
            main.extend(lines);
            // Nothing is asked after a NetworkPolicy.
            main.push(always(LineAction::Deny));
            break;
        }
        if !lines.is_empty() {
            main.push(always(LineAction::Jump(name.clone())));
            written.chains.insert(name, lines);
        }
    }
    written.chains.insert(own, main);
    written
}
