//! Programs and their steps as transactions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kernel::nft::{
    Batch, Element, Key, KeyType, Mode, NewRule, NewSet, Operation, Value, Verdict, field,
};
use policy::program::{self, End, Line, LineAction, Link, Match, OWN_NODE, Set};
use policy::{Direction, IpFamily, Name, Program, Protocol, Step};

use super::layout::{self, Form};

/// Where addresses lead before and after.
type Moves = BTreeMap<(Direction, ChainEntry), (Option<Name>, Option<Name>)>;

/// What leads to a chain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChainEntry {
    /// An address of the pods' own network.
    Address(IpAddr),
    /// One of a further network.
    Link(Link),
    /// An interface of a container, in its own namespace.
    Interface(String),
}

impl ChainEntry {
    /// The map in which it is.
    pub(crate) fn map(&self, direction: Direction) -> String {
        match self {
            ChainEntry::Address(address) => layout::map(direction, IpFamily::of(*address)),
            ChainEntry::Link(link) => layout::link_map(direction, IpFamily::of(link.address)),
            ChainEntry::Interface(_) => layout::interface_map(direction),
        }
    }

    /// The set of the keys of that map that policies select.
    pub(crate) fn keys(&self, direction: Direction) -> String {
        match self {
            ChainEntry::Address(address) => layout::keys(direction, IpFamily::of(*address)),
            ChainEntry::Link(link) => layout::link_keys(direction, IpFamily::of(link.address)),
            ChainEntry::Interface(_) => layout::interface_keys(direction),
        }
    }

    /// Its key in both.
    pub(crate) fn key(&self) -> Key {
        match self {
            ChainEntry::Address(address) => Key::from(Value::from(*address)),
            ChainEntry::Link(link) => {
                let interface = Value::IfName(link.interface.clone());
                Key::of([interface, Value::from(link.address)])
            }
            ChainEntry::Interface(name) => Key::from(Value::IfName(name.clone())),
        }
    }
}

/// Whether a policy selects what leads to a chain.
pub(crate) fn judges(chain: Option<&Name>) -> bool {
    chain.is_some_and(|chain| chain != program::OPEN)
}

/// Returns the transaction that replaces the whole table.
pub(crate) fn whole(program: &Program, form: Form) -> Batch {
    let table = layout::table();
    let mut batch = Batch::new();
    batch.add_table(&table, None);
    batch.delete_table(&table);
    batch.add_table(&table, Some(layout::COMMENT));
    for set in layout::sets(form.site) {
        batch.add_set(set);
    }
    for (name, set) in &program.sets {
        add_set(&mut batch, name, set, Mode::Add);
    }
    for chain in layout::chains(form.site) {
        batch.add_chain(chain);
    }
    for name in program.chains.keys() {
        batch.add_chain(layout::chain_of_program(name));
    }
    for rule in layout::rules(form) {
        batch.add_rule(rule);
    }
    for (name, lines) in &program.chains {
        add_rules(&mut batch, name, lines);
    }
    let moves = leading(program).map(|(key, chain)| (key, (None::<Name>, Some(chain.clone()))));
    lead(&mut batch, cni::order::gather(moves));
    batch
}

/// Lists what leads to chains.
pub(crate) fn leading(program: &Program) -> impl Iterator<Item = ((Direction, ChainEntry), &Name)> {
    let verdicts = program.verdicts.iter();
    let verdicts = verdicts
        .map(|((direction, address), chain)| ((*direction, ChainEntry::Address(*address)), chain));
    let links = program.links.iter();
    let links = links
        .map(|((direction, link), chain)| ((*direction, ChainEntry::Link(link.clone())), chain));
    let interfaces = program.interfaces.iter();
    let interfaces = interfaces.map(|((direction, name), chain)| {
        ((*direction, ChainEntry::Interface(name.clone())), chain)
    });
    verdicts.chain(links).chain(interfaces)
}

/// Returns the transactions of steps, in their order: first the new objects to which nothing refers
/// yet, then everything else. Elements of a set are in one message if nothing else happens to the
/// set in between.
///
/// A packet that is passing the rules when a transaction is committed meets the old rules, but
/// looks up elements that are new (linux net/netfilter/nf_tables_core.c `nft_do_chain` reads the
/// generation once, nft_lookup.c at each look-up). So a verdict that leads to a chain of the same
/// transaction leads the packet to a chain without rules. And lookups find the intervals of a new
/// set only some time after the rules that refer to it. If both were committed before, all packets
/// find them.
pub(crate) fn steps(steps: &[Step]) -> [Batch; 2] {
    let mut coming = FirstBatch::default();
    let mut encoder = Encoder::default();
    for step in steps {
        if !coming.takes(step) {
            encoder.step(step);
        }
    }
    encoder.lead();
    [coming.batch, encoder.batch]
}

/// Returns what takes back the first of two transactions.
pub(crate) fn undo(first: &Batch) -> Batch {
    let table = layout::table();
    let mut undo = Batch::new();
    let chain = |operation: &Operation| match operation {
        Operation::AddChain { chain, .. } => Some(chain.name.clone()),
        _ => None,
    };
    let chains: Vec<String> = first.operations().iter().filter_map(chain).collect();
    chains.iter().for_each(|name| undo.flush_chain(&table, name));
    chains.iter().for_each(|name| undo.delete_chain(&table, name));
    for operation in first.operations() {
        if let Operation::AddSet { set, .. } = operation {
            undo.delete_set(&table, &set.name);
        }
    }
    undo
}

/// What comes first.
#[derive(Default)]
struct FirstBatch<'s> {
    batch: Batch,
    /// The objects that the second transaction creates or removes.
    later: BTreeSet<&'s str>,
}

impl<'s> FirstBatch<'s> {
    /// Takes a step if it can be made before all others.
    fn takes(&mut self, step: &'s Step) -> bool {
        match step {
            Step::AddSet { name, set } if !self.later.contains(name.as_str()) => {
                add_set(&mut self.batch, name, set, Mode::Create);
                true
            }
            // As soon as it is there, packets meet it.
            Step::PutChain { name, .. } if name == OWN_NODE => false,
            Step::PutChain { name, lines, new: true } => {
                let is_later = |name: &str| self.later.contains(name);
                if is_later(name) || lines.iter().flat_map(references).any(is_later) {
                    self.later.insert(name);
                    return false;
                }
                add_chain(&mut self.batch, name, lines);
                true
            }
            Step::RemoveChain { name } | Step::RemoveSet { name } => {
                self.later.insert(name);
                false
            }
            _ => false,
        }
    }
}

/// The sets and the chain to which a line refers.
fn references(line: &Line) -> impl Iterator<Item = &str> {
    let sets = line.matches.iter().filter_map(|wanted| match wanted {
        Match::Address { set, .. } | Match::NamedPort { set, .. } => Some(set.as_str()),
        Match::Protocol(_) | Match::Ports { .. } => None,
    });
    let chain = match &line.then {
        LineAction::Jump(chain) => Some(chain.as_str()),
        LineAction::Accept | LineAction::Deny | LineAction::Return => None,
    };
    sets.chain(chain)
}

/// Makes a chain with its rules.
fn add_chain(batch: &mut Batch, name: &str, lines: &[Line]) {
    let chain = layout::chain_of_program(name);
    batch.push(Operation::AddChain { chain, mode: Mode::Create });
    add_rules(batch, name, lines);
}

#[derive(Default)]
struct Encoder<'s> {
    batch: Batch,
    /// The elements that a set gets or loses, as long as nothing else happens to the set: whether
    /// they are added, and in which operation.
    open: BTreeMap<&'s str, (bool, usize)>,
    /// The verdicts since the last other step.
    moves: Moves,
}

impl<'s> Encoder<'s> {
    fn step(&mut self, step: &'s Step) {
        let moved = match step {
            Step::Verdict { direction, address, before, chain } => {
                Some(((*direction, ChainEntry::Address(*address)), before, chain))
            }
            Step::Link { direction, link, before, chain } => {
                Some(((*direction, ChainEntry::Link(link.clone())), before, chain))
            }
            _ => None,
        };
        if let Some((at, before, chain)) = moved {
            let there = self.moves.entry(at);
            let (_, last) = there.or_insert_with(|| (before.clone(), None));
            last.clone_from(chain);
            return;
        }
        self.lead();
        let table = layout::table();
        match step {
            Step::AddSet { name, set } => {
                self.open.remove(name.as_str());
                add_set(&mut self.batch, name, set, Mode::Create);
            }
            Step::AddElement { set, element } => self.element(set, true, element_of(*element)),
            Step::RemoveElement { set, element } => self.element(set, false, element_of(*element)),
            Step::PutChain { name, lines, new } => {
                if *new {
                    add_chain(&mut self.batch, name, lines);
                } else {
                    self.batch.flush_chain(&table, name);
                    add_rules(&mut self.batch, name, lines);
                }
            }
            Step::RemoveChain { name } => self.batch.delete_chain(&table, name),
            Step::RemoveSet { name } => {
                self.open.remove(name.as_str());
                self.batch.delete_set(&table, name);
            }
            Step::Verdict { .. } | Step::Link { .. } => {}
        }
    }

    fn element(&mut self, set: &'s str, comes: bool, element: Element) {
        if let Some((there, number)) = self.open.get(set)
            && *there == comes
            && self.batch.add_to(*number, element.clone())
        {
            return;
        }
        self.open.insert(set, (comes, self.batch.operations().len()));
        let (table, elements) = (layout::table(), [element]);
        if comes {
            self.batch.create_elements(&table, set, elements);
        } else {
            self.batch.delete_elements(&table, set, elements);
        }
    }

    fn lead(&mut self) {
        lead(&mut self.batch, std::mem::take(&mut self.moves));
    }
}

/// Leads addresses elsewhere.
fn lead(batch: &mut Batch, moves: Moves) {
    let mut changed = ElementChanges::default();
    for ((direction, at), (before, chain)) in moves {
        let (before, chain) = (before.as_ref(), chain.as_ref());
        changed.lead(direction, &at, before, chain);
        changed.know(direction, &at, judges(before), judges(chain));
    }
    changed.write(batch);
}

/// Elements that go and come, by their sets.
#[derive(Debug, Default)]
pub(crate) struct ElementChanges {
    gone: BTreeMap<String, Vec<Element>>,
    come: BTreeMap<String, Vec<Element>>,
}

impl ElementChanges {
    /// Leads an address elsewhere. nftables replaces no element of a map: the old one goes first.
    pub(crate) fn lead(
        &mut self,
        direction: Direction,
        at: &ChainEntry,
        before: Option<&Name>,
        chain: Option<&Name>,
    ) {
        if before == chain {
            return;
        }
        let map = at.map(direction);
        if before.is_some() {
            self.gone.entry(map.clone()).or_default().push(Element::new(at.key()));
        }
        if let Some(chain) = chain {
            self.come.entry(map).or_default().push(leads(at, chain.clone()));
        }
    }

    /// Does the same for the keys of the map that policies select.
    pub(crate) fn know(&mut self, direction: Direction, at: &ChainEntry, before: bool, now: bool) {
        if before == now {
            return;
        }
        let all = if now { &mut self.come } else { &mut self.gone };
        all.entry(at.keys(direction)).or_default().push(Element::new(at.key()));
    }

    /// Removals come first.
    pub(crate) fn write(self, batch: &mut Batch) {
        let table = layout::table();
        for (set, elements) in self.gone {
            batch.delete_elements(&table, set, elements);
        }
        for (set, elements) in self.come {
            batch.create_elements(&table, set, elements);
        }
    }
}

/// The element of a map that leads to a chain.
pub(crate) fn leads(at: &ChainEntry, chain: Name) -> Element {
    Element::verdict(at.key(), Verdict::Goto(chain))
}

/// Makes a set with its elements.
pub(crate) fn add_set(batch: &mut Batch, name: &str, set: &Set, mode: Mode) {
    batch.push(Operation::AddSet { set: new_set(name, set), mode });
    let elements = elements(set);
    if !elements.is_empty() {
        batch.add_elements(&layout::table(), name, elements);
    }
}

/// Describes a set without its elements.
pub(crate) fn new_set(name: &str, set: &Set) -> NewSet {
    let table = layout::table();
    let address = layout::key_type(family(name, set));
    match set {
        Set::Addresses(_) => NewSet::set(&table, name, [address]),
        Set::Intervals(_) => NewSet::set(&table, name, [address]).interval(),
        Set::Ports(_) => {
            NewSet::set(&table, name, [address, KeyType::InetProto, KeyType::InetService])
        }
    }
}

/// The family is in the set's name, because the set may be empty.
fn family(name: &str, set: &Set) -> IpFamily {
    let first = || match set {
        Set::Addresses(all) => all.first().copied(),
        Set::Intervals(all) => all.first().map(|(first, _)| *first),
        Set::Ports(all) => all.first().map(|(address, ..)| *address),
    };
    program::family_of(name).or_else(|| first().map(IpFamily::of)).unwrap_or(IpFamily::V4)
}

pub(crate) fn elements(set: &Set) -> Vec<Element> {
    match set {
        Set::Addresses(all) => {
            all.iter().map(|address| element_of(program::Element::Address(*address))).collect()
        }
        Set::Intervals(all) => {
            let range = |(first, last): &(IpAddr, IpAddr)| {
                Element::range(Value::from(*first), Value::from(*last))
            };
            all.iter().map(range).collect()
        }
        Set::Ports(all) => {
            let port = |(address, protocol, port): &(IpAddr, Protocol, u16)| {
                element_of(program::Element::Port(*address, *protocol, *port))
            };
            all.iter().map(port).collect()
        }
    }
}

fn element_of(element: program::Element) -> Element {
    match element {
        program::Element::Address(address) => Element::new(Value::from(address)),
        program::Element::Port(address, protocol, port) => {
            let protocol = Value::Protocol(number(protocol));
            Element::new(Key::of([Value::from(address), protocol, Value::Port(port)]))
        }
    }
}

pub(crate) fn add_rules(batch: &mut Batch, chain: &str, lines: &[Line]) {
    for rule in rules(chain, lines) {
        batch.add_rule(rule);
    }
}

/// The rules of a chain of a program.
pub(crate) fn rules(chain: &str, lines: &[Line]) -> Vec<NewRule> {
    let mut rules = layout::first_rules(chain);
    rules.extend(lines.iter().map(|line| rule(chain, line)));
    rules
}

/// A line as a rule.
fn rule(chain: &str, line: &Line) -> NewRule {
    // A comparison costs less than a look-up.
    let is_look_up =
        |wanted: &&Match| matches!(wanted, Match::Address { .. } | Match::NamedPort { .. });
    let (look_ups, comparisons): (Vec<&Match>, Vec<&Match>) =
        line.matches.iter().partition(is_look_up);
    let rule = NewRule::new(&layout::table(), chain);
    let rule = comparisons.into_iter().chain(look_ups).fold(rule, matching);
    match &line.then {
        LineAction::Accept => rule.accept(),
        LineAction::Deny => {
            let direction = program::direction_of(chain).unwrap_or(Direction::Ingress);
            rule.goto(layout::deny(direction))
        }
        LineAction::Return => rule.returns(),
        LineAction::Jump(chain) => rule.jump(chain),
    }
}

fn matching(rule: NewRule, wanted: &Match) -> NewRule {
    match wanted {
        Match::Address { end, family, set } => {
            let address = match end {
                End::Source => layout::source(*family),
                End::Destination => layout::destination(*family),
            };
            rule.in_set(&[address], set)
        }
        Match::Protocol(protocol) => of_protocol(rule, *protocol),
        Match::Ports { protocol, first, last } => {
            let rule = of_protocol(rule, *protocol);
            if first == last {
                rule.is(field::th_dport(), Value::Port(*first))
            } else {
                rule.in_range(field::th_dport(), Value::Port(*first), Value::Port(*last))
            }
        }
        Match::NamedPort { family, set } => {
            let address = layout::destination(*family);
            rule.in_set(&[address, field::l4proto(), field::th_dport()], set)
        }
    }
}

fn of_protocol(rule: NewRule, protocol: Protocol) -> NewRule {
    rule.is(field::l4proto(), Value::Protocol(number(protocol)))
}

/// The protocol's number in the IP header. No policy names neighbour discovery, which never comes to
/// a program's chains.
fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
        Protocol::NeighbourDiscovery => 58,
        Protocol::Other(number) => number,
    }
}
