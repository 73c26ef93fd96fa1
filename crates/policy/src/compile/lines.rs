//! A policy's rules as lines of chains, and which sets these refer to.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{self, Kind, hash};
use crate::family::Family;
use crate::labels::Selector;
use crate::policy::{Action, Block, Direction, Peer, PodSet, Policy, PolicyId, Ports, Rule, Tier};
use crate::program::{End, Line, Match, Name, Then};

/// What sets are about. Equal ones share their sets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum About {
    Pods(PodSet),
    Nodes(Selector),
    /// The blocks of one rule, of one family: together they are one set of intervals.
    Blocks(Family, BTreeSet<Block>),
    /// A port's name. Of ingress the destination is a pod of this node, so its sets have no other.
    Port(Direction, String),
}

impl About {
    /// Returns the hash that its sets' names have.
    pub(crate) fn hash(&self, salt: &str) -> String {
        // Debug tells apart what Display does not need to.
        hash(&format!("{salt}{self:?}"))
    }

    /// Returns the families that it has a set of.
    pub(crate) fn families(&self) -> Vec<Family> {
        match self {
            About::Blocks(family, _) => vec![*family],
            _ => Family::ALL.to_vec(),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            About::Pods(_) => Kind::Pods,
            About::Nodes(_) => Kind::Nodes,
            About::Blocks(..) => Kind::Block,
            About::Port(..) => Kind::Port,
        }
    }
}

/// One direction of a policy, compiled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Compiled {
    /// The lines of its rules.
    pub(crate) lines: Vec<Line>,
    /// The chains to which these jump.
    pub(crate) parts: BTreeMap<Name, Vec<Line>>,
    /// What the sets are about to which all of them refer, with the hash of their names.
    pub(crate) about: BTreeMap<About, String>,
    /// Whether a line leaves the tier.
    pub(crate) passes: bool,
}

impl Compiled {
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
pub(crate) fn compile(policy: &Policy, direction: Direction, salt: &str) -> Compiled {
    let mut compiled = Compiled::default();
    let main = names::policy(direction, salt, &policy.id);
    for (number, rule) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
        let part = names::part(&main, number);
        compile_rule(rule, part, direction, salt, &mut compiled);
    }
    compiled
}

/// Compiles what a policy says of the node of its pods. All sets that this refers to are among those
/// of the policy's egress.
pub(crate) fn compile_own(policy: &Policy, direction: Direction, salt: &str) -> Compiled {
    let mut compiled = Compiled::default();
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
    compiled: &mut Compiled,
) {
    let then = match rule.action {
        Action::Accept => Then::Accept,
        Action::Deny => Then::Deny,
        Action::Pass => {
            compiled.passes = true;
            Then::Return
        }
    };
    let mut peers: Vec<Alternative> = Vec::new();
    match &rule.peers {
        Some(all) => {
            for about in abouts(all) {
                let hash = about.hash(salt);
                peers.extend(of_peers(&about, &hash, direction));
                compiled.about.insert(about, hash);
            }
        }
        None => peers.push(Alternative::default()),
    }
    let mut ports: Vec<Alternative> = Vec::new();
    match &rule.ports {
        Some(all) => {
            for port in all {
                ports.extend(of_ports(port, direction, salt, &mut compiled.about));
            }
        }
        None => ports.push(Alternative::default()),
    }
    let line = |matches: Vec<Match>, then: &Then| Line { matches, then: then.clone() };
    let sum = peers.len() + ports.len();
    if sum < peers.len() * ports.len() && rule.action != Action::Pass {
        let jump = Then::Jump(part.clone());
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

/// One of the ways to match.
#[derive(Debug, Default)]
struct Alternative {
    family: Option<Family>,
    matches: Vec<Match>,
}

impl Alternative {
    fn fits(&self, other: &Alternative) -> bool {
        self.family.is_none() || other.family.is_none() || self.family == other.family
    }
}

/// Returns the sets that a rule's peers need.
fn abouts(peers: &[Peer]) -> BTreeSet<About> {
    let mut all = BTreeSet::new();
    let mut blocks: BTreeMap<Family, BTreeSet<Block>> = BTreeMap::new();
    for peer in peers {
        match peer {
            Peer::Pods(pods) => {
                all.insert(About::Pods(pods.clone()));
            }
            Peer::Nodes(nodes) => {
                all.insert(About::Nodes(nodes.clone()));
            }
            Peer::Block(block) => {
                blocks.entry(block.family()).or_default().insert(block.clone());
            }
        }
    }
    all.extend(blocks.into_iter().map(|(family, blocks)| About::Blocks(family, blocks)));
    all
}

fn of_peers(about: &About, hash: &str, direction: Direction) -> Vec<Alternative> {
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
    sets: &mut BTreeMap<About, String>,
) -> Vec<Alternative> {
    let any = |matched| vec![Alternative { family: None, matches: vec![matched] }];
    match ports {
        Ports::All(protocol) => any(Match::Protocol(*protocol)),
        Ports::Range { protocol, first, last } => {
            any(Match::Ports { protocol: *protocol, first: *first, last: *last })
        }
        Ports::Named { protocol, name } => {
            let about = About::Port(direction, name.clone());
            let hash = about.hash(salt);
            sets.insert(about, hash.clone());
            let alternative = |family| {
                let mut matches: Vec<Match> = protocol.map(Match::Protocol).into_iter().collect();
                let set = names::set(Kind::Port, family, &hash);
                matches.push(Match::NamedPort { family, set });
                Alternative { family: Some(family), matches }
            };
            Family::ALL.into_iter().map(alternative).collect()
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
    policies: &[(&Policy, &Compiled)],
) -> BTreeMap<Name, Vec<Line>> {
    let mut chains = BTreeMap::new();
    let mut main = Vec::new();
    for tier in [Tier::Admin, Tier::Baseline] {
        let of_tier = policies.iter().filter(|(policy, _)| policy.tier == tier);
        let lines: Vec<Line> = of_tier.flat_map(|(_, own)| own.lines.iter().cloned()).collect();
        if !lines.is_empty() {
            let name = names::own_tier(tier, hash);
            main.push(Line { matches: Vec::new(), then: Then::Jump(name.clone()) });
            chains.insert(name, lines);
        }
    }
    for (_, own) in policies {
        chains.extend(own.parts.clone());
    }
    chains.insert(names::own_class(hash), main);
    chains
}

/// Returns the chains of a class: its own, and one for each tier with policies.
///
/// `policies` are those that select its pods, in the order in which they are asked.
pub(crate) fn class<'a>(
    direction: Direction,
    salt: &str,
    hash: &str,
    policies: &[&Policy],
    compiled: impl Fn(&PolicyId) -> Option<&'a Compiled>,
) -> BTreeMap<Name, Vec<Line>> {
    let always = |then: Then| Line { matches: Vec::new(), then };
    let jump = |policy: &Policy| always(Then::Jump(names::policy(direction, salt, &policy.id)));
    let of_tier = |tier: Tier| policies.iter().copied().filter(move |policy| policy.tier == tier);
    let mut chains = BTreeMap::new();
    let mut main = Vec::new();
    let is_final = of_tier(Tier::Namespaced).next().is_some();
    for tier in [Tier::Admin, Tier::Namespaced, Tier::Baseline] {
        if tier == Tier::Namespaced {
            main.extend(of_tier(tier).map(jump));
            if is_final {
                main.push(always(Then::Deny));
                break;
            }
            continue;
        }
        let mut lines = Vec::new();
        for policy in of_tier(tier) {
            match compiled(&policy.id) {
                Some(compiled) if compiled.passes => lines.extend(compiled.lines.iter().cloned()),
                _ => lines.push(jump(policy)),
            }
        }
        if !lines.is_empty() {
            let name = names::tier(direction, tier, hash);
            main.push(always(Then::Jump(name.clone())));
            chains.insert(name, lines);
        }
    }
    chains.insert(names::class(direction, hash), main);
    chains
}
