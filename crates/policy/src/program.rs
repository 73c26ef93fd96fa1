//! What one node's packet filter holds: verdicts by address, chains, sets. And the steps from one
//! such program to another.
//!
//! The program is data for a table of nftables. Two base chains at the forward hook look the
//! source up (egress) and the destination (ingress) in a verdict map, after replies and neighbour
//! discovery have been accepted. An address that is not in the map is accepted; so the accept of
//! one hook does not end the other. Before that, interface and address are looked up together, for
//! pods of further networks ([`crate::networks`]). What pods send to the node itself meets the chain
//! [`OWN_NODE`] at the input hook, if there is one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use thiserror::Error;

use crate::policy::{Direction, Protocol};
use net::IpFamily;

/// The name of a chain or a set: at most 31 bytes, and the same wherever it is computed.
pub type Name = String;

/// The longest name.
pub const LONGEST_NAME: usize = 31;

/// The chain to which an address leads about whose pod not enough is known. Every program of a
/// [`Compiler`](crate::Compiler) has both.
#[must_use]
pub fn unknown(direction: Direction) -> Name {
    match direction {
        Direction::Ingress => "unknown-in".to_owned(),
        Direction::Egress => "unknown-out".to_owned(),
    }
}

/// The chain to which an address of a further network leads that no policy is about: everything
/// passes. It is in every table, and no program has it.
pub const OPEN: &str = "open";

/// The base chain at the input hook, which what pods of this node send to the node itself meets. A
/// program has it as long as ClusterNetworkPolicies decide about that.
pub const OWN_NODE: &str = "own-node";

/// Returns the direction of the packets that meet a chain, which its name tells; `None` if no chain
/// of a program that denies has such a name.
#[must_use]
pub fn direction_of(chain: &str) -> Option<Direction> {
    let is_unknown = |direction: &Direction| unknown(*direction) == chain;
    if let Some(direction) = Direction::ALL.into_iter().find(is_unknown) {
        return Some(direction);
    }
    match chain.as_bytes() {
        [b'a' | b'b' | b'c' | b'p', b'i', b'-', ..] => Some(Direction::Ingress),
        [b'a' | b'b' | b'c' | b'p', b'o' | b'n', b'-', ..] => Some(Direction::Egress),
        _ => None,
    }
}

/// Returns the family of a set's addresses, which its name tells; `None` if no set of a program has
/// such a name.
#[must_use]
pub fn family_of(set: &str) -> Option<IpFamily> {
    let (kind, _) = set.split_once('-')?;
    IpFamily::ALL.into_iter().find(|family| kind.ends_with(family.digit()))
}

/// An address of this node's pods on a further network. Another network may have the same address,
/// so it counts at one interface only.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link {
    /// The interface of this node at which the packet filter sees the pod's packets: its bridge, or
    /// the host's side of its link.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
}

/// What one node's packet filter holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    /// The verdict maps: the chain to which an address of a pod of this node leads.
    pub verdicts: BTreeMap<(Direction, IpAddr), Name>,
    /// The chain to which an address of a further network leads, which is asked before `verdicts`.
    pub links: BTreeMap<(Direction, Link), Name>,
    /// The chain to which an interface of a container leads, for every address. Only the program of
    /// a container's own namespace has these, and it has no other verdicts ([`Program::part`]). No
    /// step changes these.
    pub interfaces: BTreeMap<(Direction, String), Name>,
    /// The chains.
    pub chains: BTreeMap<Name, Vec<Line>>,
    /// The sets.
    pub sets: BTreeMap<Name, Set>,
}

/// A rule of the packet filter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line {
    /// What a packet has to be; all of it.
    pub matches: Vec<Match>,
    /// What happens then.
    pub then: LineAction,
}

/// An end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// Where it comes from.
    Source,
    /// Where it goes.
    Destination,
}

/// What a line asks of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Match {
    /// An end's address is of the family, and in a set.
    Address { end: End, family: IpFamily, set: Name },
    /// It is of a protocol.
    Protocol(Protocol),
    /// It is of a protocol, and to one of these ports.
    Ports { protocol: Protocol, first: u16, last: u16 },
    /// Destination, protocol and port together are in a set, and the destination is of the family.
    NamedPort { family: IpFamily, set: Name },
}

/// What a line does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LineAction {
    /// This hook is done with the packet.
    Accept,
    /// The packet is logged, counted and dropped.
    Deny,
    /// The chain ends here.
    Return,
    /// Another chain comes next, and after it the next line.
    Jump(Name),
}

/// The elements of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Set {
    /// The addresses of pods or nodes.
    Addresses(BTreeSet<IpAddr>),
    /// Prefixes without their exceptions: intervals with both ends. They never change.
    Intervals(Vec<(IpAddr, IpAddr)>),
    /// Addresses with the port that has the name.
    Ports(BTreeSet<(IpAddr, Protocol, u16)>),
}

/// An element that comes or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// Of a set of addresses.
    Address(IpAddr),
    /// Of a set of ports.
    Port(IpAddr, Protocol, u16),
}

/// A change of a program. The steps of one change belong together, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Step {
    /// A set comes, with its elements.
    AddSet { name: Name, set: Set },
    /// An element comes.
    AddElement { set: Name, element: Element },
    /// An element goes.
    RemoveElement { set: Name, element: Element },
    /// A chain comes (`new`), or gets other lines.
    PutChain { name: Name, lines: Vec<Line>, new: bool },
    /// An address leads to a chain, or nowhere; and what it led to before.
    Verdict { direction: Direction, address: IpAddr, before: Option<Name>, chain: Option<Name> },
    /// The same as `Verdict` for an address of a further network.
    Link { direction: Direction, link: Link, before: Option<Name>, chain: Option<Name> },
    /// A chain goes.
    RemoveChain { name: Name },
    /// A set goes.
    RemoveSet { name: Name },
}

/// A step that makes no sense in a program. The kernel would refuse it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what}: {name}")]
pub struct Misstep {
    what: &'static str,
    name: String,
}

fn misstep<T>(what: &'static str, name: impl fmt::Debug) -> Result<T, Misstep> {
    Err(Misstep { what, name: format!("{name:?}") })
}

impl Program {
    /// Returns the program of a node about which nothing is known: it leads no address anywhere.
    #[must_use]
    pub fn empty() -> Self {
        let deny = || vec![Line { matches: Vec::new(), then: LineAction::Deny }];
        let mut program = Program::default();
        for direction in Direction::ALL {
            program.chains.insert(unknown(direction), deny());
        }
        program
    }

    /// Makes a step.
    ///
    /// # Errors
    /// It makes no sense: something is there already, or is missing.
    pub fn apply(&mut self, step: &Step) -> Result<(), Misstep> {
        match step {
            Step::AddSet { name, set } => {
                if self.sets.insert(name.clone(), set.clone()).is_some() {
                    return misstep("the set is there already", name);
                }
            }
            Step::AddElement { set, element } => {
                if !self.change_element(set, *element, true)? {
                    return misstep("the element is there already", step);
                }
            }
            Step::RemoveElement { set, element } => {
                if !self.change_element(set, *element, false)? {
                    return misstep("there is no such element", step);
                }
            }
            Step::PutChain { name, lines, new } => {
                if self.chains.contains_key(name) == *new {
                    return misstep("the chain is there already, or is missing", name);
                }
                self.chains.insert(name.clone(), lines.clone());
            }
            Step::Verdict { direction, address, before, chain } => {
                if let Some(chain) = chain
                    && !self.chains.contains_key(chain)
                {
                    return misstep("there is no such chain", chain);
                }
                let key = (*direction, *address);
                if self.verdicts.get(&key) != before.as_ref() || before == chain {
                    return misstep("the address leads elsewhere, or nothing changes", step);
                }
                match chain {
                    Some(chain) => self.verdicts.insert(key, chain.clone()),
                    None => self.verdicts.remove(&key),
                };
            }
            Step::Link { direction, link, before, chain } => {
                if let Some(chain) = chain
                    && chain != OPEN
                    && !self.chains.contains_key(chain)
                {
                    return misstep("there is no such chain", chain);
                }
                let key = (*direction, link.clone());
                if self.links.get(&key) != before.as_ref() || before == chain {
                    return misstep("the address leads elsewhere, or nothing changes", step);
                }
                match chain {
                    Some(chain) => self.links.insert(key, chain.clone()),
                    None => self.links.remove(&key),
                };
            }
            Step::RemoveChain { name } => {
                if self.chains.remove(name).is_none() {
                    return misstep("there is no such chain", name);
                }
            }
            Step::RemoveSet { name } => {
                if self.sets.remove(name).is_none() {
                    return misstep("there is no such set", name);
                }
            }
        }
        Ok(())
    }

    fn change_element(
        &mut self,
        name: &str,
        element: Element,
        comes: bool,
    ) -> Result<bool, Misstep> {
        match (self.sets.get_mut(name), element) {
            (Some(Set::Addresses(all)), Element::Address(address)) => {
                Ok(if comes { all.insert(address) } else { all.remove(&address) })
            }
            (Some(Set::Ports(all)), Element::Port(address, protocol, port)) => {
                let element = (address, protocol, port);
                Ok(if comes { all.insert(element) } else { all.remove(&element) })
            }
            _ => misstep("no set takes the element", (name, element)),
        }
    }

    /// Checks that everything that is referred to is there, and that every name fits.
    ///
    /// # Errors
    /// What is missing or does not fit.
    pub fn check(&self) -> Result<(), Misstep> {
        let names = self.chains.keys().chain(self.sets.keys());
        if let Some(long) = names.into_iter().find(|name| LONGEST_NAME < name.len()) {
            return misstep("the name is too long", long);
        }
        let others = self.links.values().chain(self.interfaces.values());
        let mut leads = self.verdicts.values().chain(others.filter(|name| *name != OPEN));
        if let Some(chain) = leads.find(|name| !self.chains.contains_key(*name)) {
            return misstep("a verdict leads to a chain that is not there", chain);
        }
        for line in self.chains.values().flatten() {
            if let LineAction::Jump(chain) = &line.then
                && !self.chains.contains_key(chain)
            {
                return misstep("a line jumps to a chain that is not there", chain);
            }
            for matched in &line.matches {
                if let Match::Address { set, .. } | Match::NamedPort { set, .. } = matched
                    && !self.sets.contains_key(set)
                {
                    return misstep("a line refers to a set that is not there", set);
                }
            }
        }
        Ok(())
    }

    /// Returns the program of a container's namespace: where these interfaces lead, with the chains
    /// and sets of this program that are needed for it.
    #[must_use]
    pub fn part(&self, interfaces: BTreeMap<(Direction, String), Name>) -> Program {
        let mut part = Program::empty();
        let mut names: Vec<&Name> = interfaces.values().collect();
        while let Some(name) = names.pop() {
            let Some(lines) = self.chains.get(name) else { continue };
            if part.chains.contains_key(name) {
                continue;
            }
            part.chains.insert(name.clone(), lines.clone());
            for line in lines {
                if let LineAction::Jump(chain) = &line.then {
                    names.push(chain);
                }
                for matched in &line.matches {
                    if let Match::Address { set, .. } | Match::NamedPort { set, .. } = matched
                        && let Some(elements) = self.sets.get(set)
                    {
                        part.sets.entry(set.clone()).or_insert_with(|| elements.clone());
                    }
                }
            }
        }
        part.interfaces = interfaces;
        part
    }

    /// Adds what another program of the same container leads to.
    pub fn join(&mut self, other: Program) {
        self.interfaces.extend(other.interfaces);
        self.chains.extend(other.chains);
        self.sets.extend(other.sets);
    }

    /// Returns the steps from one program to another.
    #[must_use]
    pub fn difference(old: &Program, new: &Program) -> Vec<Step> {
        let mut steps = Vec::new();
        for (name, set) in &new.sets {
            match old.sets.get(name) {
                Some(there) => steps.extend(elements(name, there, set)),
                None => steps.push(Step::AddSet { name: name.clone(), set: set.clone() }),
            }
        }
        for (name, lines) in &new.chains {
            let there = old.chains.get(name);
            if there != Some(lines) {
                let (name, lines) = (name.clone(), lines.clone());
                steps.push(Step::PutChain { name, lines, new: there.is_none() });
            }
        }
        let keys: BTreeSet<_> = old.verdicts.keys().chain(new.verdicts.keys()).collect();
        for key in keys {
            let (before, chain) = (old.verdicts.get(key).cloned(), new.verdicts.get(key).cloned());
            if before != chain {
                let (direction, address) = *key;
                steps.push(Step::Verdict { direction, address, before, chain });
            }
        }
        steps.extend(links(old, new));
        let gone = |name: &&Name| !new.chains.contains_key(*name);
        steps.extend(
            old.chains.keys().filter(gone).map(|name| Step::RemoveChain { name: name.clone() }),
        );
        let gone = |name: &&Name| !new.sets.contains_key(*name);
        steps.extend(
            old.sets.keys().filter(gone).map(|name| Step::RemoveSet { name: name.clone() }),
        );
        sort(&mut steps);
        steps
    }
}

/// Returns the steps between the addresses of further networks.
fn links(old: &Program, new: &Program) -> Vec<Step> {
    let mut steps = Vec::new();
    let keys: BTreeSet<_> = old.links.keys().chain(new.links.keys()).collect();
    for key in keys {
        let (before, chain) = (old.links.get(key).cloned(), new.links.get(key).cloned());
        if before != chain {
            let (direction, link) = key.clone();
            steps.push(Step::Link { direction, link, before, chain });
        }
    }
    steps
}

fn elements(name: &Name, old: &Set, new: &Set) -> Vec<Step> {
    let all = |set: &Set| -> BTreeSet<Element> {
        match set {
            Set::Addresses(all) => all.iter().copied().map(Element::Address).collect(),
            Set::Ports(all) => {
                let element = |(address, protocol, port)| Element::Port(address, protocol, port);
                all.iter().copied().map(element).collect()
            }
            // Their name says what they are.
            Set::Intervals(_) => BTreeSet::new(),
        }
    };
    let (old, new) = (all(old), all(new));
    let set = || name.clone();
    let comes = |element: &Element| Step::AddElement { set: set(), element: *element };
    let goes = |element: &Element| Step::RemoveElement { set: set(), element: *element };
    let coming = new.difference(&old).map(comes);
    coming.chain(old.difference(&new).map(goes)).collect()
}

/// Sorts steps so that nothing refers to what is not there: what is referred to comes first and
/// goes last.
pub(crate) fn sort(steps: &mut [Step]) {
    steps.sort_by_key(|step| match step {
        Step::AddSet { .. } => 0,
        Step::AddElement { .. } | Step::RemoveElement { .. } => 1,
        Step::PutChain { name, .. } => 2 + depth(name),
        Step::Verdict { .. } | Step::Link { .. } => 6,
        Step::RemoveChain { name } => 10 - depth(name),
        Step::RemoveSet { .. } => 11,
    });
}

/// Returns how many kinds of chains may lie below a chain: the base chain of a program jumps to
/// classes, these jump to tiers, these to policies, and these to their parts.
fn depth(chain: &str) -> u8 {
    let is_part = 1 < chain.matches('-').count();
    match chain.as_bytes().first() {
        _ if chain == OWN_NODE => 4,
        _ if is_part => 0,
        Some(b'c' | b'u') => 3,
        Some(b'a' | b'b') => 2,
        _ => 1,
    }
}
