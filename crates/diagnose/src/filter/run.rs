//! Follows a packet through chains of nftables: the expressions of their rules are computed, as the
//! kernel does it.
//!
//! A rule that may match, or may not, is followed both ways: what may come of it is noted, and the
//! next rule is asked as well. Only what all ways have in common is certain.

use std::net::IpAddr;

use super::added::AddedRule;
use super::bits::{Byte, Registers, Truth, known, within};
use super::ends::{Ends, Hops, NewDestination};
use super::foreign::ForeignKind;
use super::packet::{Packet, State};
use super::place::{Call, Place};
use super::queues::{QueueOutcome, queued};
use super::{Layer, properties, sets};
use crate::model::Namespace;
use crate::model::filter::{Chain, Header, Hook, MapTo, Rule, Set, Step, Table, Verdict};

/// How many expressions are computed for one packet at one hook. It bounds rules that jump to and
/// fro; a node with 20,000 rules needs fewer.
const STEPS: u32 = 400_000;

/// Of how many values of a map each is noted.
const CHOICES: usize = 64;

/// How deep chains may jump (NFT_JUMP_STACK_SIZE).
const DEPTH: u8 = 16;

/// A packet at a hook.
#[derive(Debug)]
pub(crate) struct Run<'n> {
    pub(crate) namespace: &'n Namespace,
    pub(crate) layer: Layer,
    pub(crate) hook: Hook,
    pub(crate) packet: Packet,
    /// The priority at which it is.
    pub(crate) priority: i32,
    /// The rule that has surely taken it from connection tracking.
    pub(crate) untracked: Option<Place>,
    /// It may have been taken from connection tracking.
    pub(crate) maybe_untracked: bool,
    /// Its headers may have been changed.
    pub(crate) rewritten: bool,
    /// The rule that has surely given it its mark.
    pub(crate) marked: Option<Place>,
    /// How many hops it may take from now on.
    pub(crate) hops: Hops,
    /// Rules of this namespace that are taken as if they were there.
    pub(crate) added: Vec<&'n AddedRule>,
    /// Rules that are left out.
    pub(crate) ignored: Vec<&'n Place>,
    /// The rules by which the packet came to the chain in which it is.
    pub(crate) calls: Vec<Call>,
    steps: u32,
}

/// How it goes on after a rule.
#[derive(Debug, Clone, Copy)]
struct Flow {
    /// The next rule may be asked.
    on: bool,
    /// The chain may be left for the one that called it.
    returns: bool,
}

impl Flow {
    const ON: Flow = Flow { on: true, returns: false };
}

/// A rule, and where in the rule set the packet meets it.
#[derive(Debug, Clone, Copy)]
struct AskedRule<'n> {
    table: &'n Table,
    base: &'n str,
    chain: &'n str,
    index: usize,
    rule: &'n Rule,
    /// It is surely asked, unless it is said elsewhere that the packet may have ended before.
    sure: bool,
    depth: u8,
}

impl<'n> Run<'n> {
    pub(crate) fn new(namespace: &'n Namespace, layer: Layer, hook: Hook, packet: Packet) -> Self {
        Run {
            namespace,
            layer,
            hook,
            packet,
            priority: 0,
            untracked: None,
            maybe_untracked: false,
            rewritten: false,
            marked: None,
            hops: Hops::Kept,
            added: Vec::new(),
            ignored: Vec::new(),
            calls: Vec::new(),
            steps: 0,
        }
    }

    /// Follows the packet through a base chain. Returns what may come of it, and whether it may
    /// reach the policy.
    pub(crate) fn base(&mut self, table: &'n Table, chain: &'n Chain) -> (Ends, bool) {
        let mut ends = Ends::default();
        let falls = self.chain(&mut ends, table, &chain.name, chain, true, 0);
        (ends, falls)
    }

    /// Returns whether the packet may come back from the chain.
    fn chain(
        &mut self,
        ends: &mut Ends,
        table: &'n Table,
        base: &'n str,
        chain: &'n Chain,
        sure: bool,
        depth: u8,
    ) -> bool {
        let mut returns = false;
        for (index, rule) in chain.rules.iter().map(Some).chain([None]).enumerate() {
            let added = self.added.iter();
            let added = added.filter_map(|one| one.of_nftables(table, &chain.name, index));
            let family = table.family.as_str();
            let is_ignored = self.ignores([family, &table.name, &chain.name], index);
            let rule = rule.filter(|_| !is_ignored);
            for rule in added.chain(rule).collect::<Vec<&'n Rule>>() {
                let sure = sure && !returns;
                let at = AskedRule { table, base, chain: &chain.name, index, rule, sure, depth };
                let flow = self.rule(ends, at);
                returns |= flow.returns;
                if !flow.on {
                    return returns;
                }
            }
        }
        true
    }

    /// Says whether the rule of a chain after so many others is left out.
    pub(super) fn ignores(&self, [family, table, chain]: [&str; 3], index: usize) -> bool {
        let number = index.saturating_add(1);
        self.ignored.iter().any(|place| {
            let is_here = (place.family, place.table.as_str(), place.chain.as_str());
            is_here == (family, table, chain) && place.rule.is_some_and(|(own, _)| own == number)
        })
    }

    fn place(&self, at: AskedRule<'_>) -> Place {
        let place = Place::of_rule(at.table, self.hook, [at.base, at.chain], at.index, at.rule);
        Place { calls: self.calls.clone(), ..place }
    }

    fn rule(&mut self, ends: &mut Ends, at: AskedRule<'n>) -> Flow {
        let mut registers = Registers::new();
        let mut holds = Truth::Yes;
        for step in &at.rule.steps {
            self.steps = self.steps.saturating_add(1);
            if STEPS < self.steps {
                ends.doubt(self.place(at));
                return Flow { on: false, returns: true };
            }
            match step {
                Step::Compare { .. } | Step::Range { .. } | Step::Limit { .. } => {
                    holds = holds.and(condition(step, &registers));
                }
                Step::Lookup { set, from, invert, to } => {
                    let found = at.table.sets.iter().find(|known| known.name == *set);
                    match to {
                        None => {
                            let has = found.map_or(Truth::Maybe, |set| {
                                sets::look_up(set, &registers, *from).holds()
                            });
                            holds = holds.and(has.unless(*invert));
                        }
                        Some(MapTo::Register(to)) => {
                            holds = holds.and(map(found, &mut registers, *from, *to));
                        }
                        Some(MapTo::Verdict) => {
                            return self.verdicts(ends, at, found, &registers, *from, holds);
                        }
                    }
                }
                Step::Verdict(verdict) => return self.verdict(ends, at, verdict, holds),
                Step::Reject { with } => return self.refuse(ends, at, with, holds),
                Step::DestinationNat { address, port } => {
                    let new = self.new_destination(&registers, *address, *port);
                    let all = self.choices(&registers, *address, *port);
                    return self.translate(ends, at, new, all, holds);
                }
                Step::Redirect { port } => {
                    let new = match port.map(|port| port_of(&registers, port)) {
                        None => NewDestination::Here(None),
                        Some(Some(port)) => NewDestination::Here(Some(port)),
                        Some(None) => NewDestination::Unknown,
                    };
                    return self.translate(ends, at, new, Vec::new(), holds);
                }
                Step::SourceNat => return self.translate_source(ends, at, None, holds),
                Step::SourceNatTo { address } => {
                    let to = address_of(registers.load(*address, self.address_len()));
                    return self.translate_source(ends, at, to, holds);
                }
                Step::Queue { first, last, bypass } => {
                    return self.queue(ends, at, [*first, *last], *bypass, holds);
                }
                Step::Write { .. } => self.write(ends, at, step, &registers, holds),
                Step::Mark { from } => {
                    let bytes = registers.load(*from, 4);
                    let is_sure = at.sure && holds == Truth::Yes;
                    self.set_mark(ends, mark_of(bytes), self.place(at), is_sure);
                }
                Step::Effect { name } => self.effect(ends, at, name, holds),
                Step::Unknown { name } => match ForeignKind::of(name) {
                    ForeignKind::Nothing => {}
                    ForeignKind::Effect => self.effect(ends, at, name, holds),
                    ForeignKind::Condition => {
                        registers.forget();
                        holds = holds.and(Truth::Maybe);
                    }
                    ForeignKind::Source => return self.translate_source(ends, at, None, holds),
                    ForeignKind::Destination => {
                        let new = NewDestination::Unknown;
                        return self.translate(ends, at, new, Vec::new(), holds);
                    }
                    ForeignKind::Reject => return self.refuse(ends, at, "an ICMP error", holds),
                    ForeignKind::Judge => {
                        ends.doubt(self.place(at));
                        holds = holds.and(Truth::Maybe);
                    }
                },
                _ => {
                    if !self.load(step, &mut registers) {
                        return Flow::ON;
                    }
                }
            }
            if holds == Truth::No {
                return Flow::ON;
            }
        }
        Flow::ON
    }

    /// Loads registers. Returns `false` if the kernel ends the rule because there is no such value.
    fn load(&mut self, step: &Step, registers: &mut Registers) -> bool {
        match step {
            Step::Meta { key, to } => match properties::meta(self, *key) {
                Some(bytes) => {
                    registers.store(*to, &bytes);
                    registers.exclude(*to, properties::is_not(self, *key));
                }
                None => return false,
            },
            Step::Payload { base, offset, len, to } => match self.payload(*base, *offset, *len) {
                Some(bytes) => registers.store(*to, &bytes),
                None => return false,
            },
            Step::Connection { key, to } => match properties::connection(self, *key) {
                Some(bytes) => registers.store(*to, &bytes),
                None => return false,
            },
            Step::Fib { source, kind, to } => match properties::fib(self, *source, *kind) {
                properties::Fib::Bytes(bytes) => registers.store(*to, &bytes),
                properties::Fib::NotZero => registers.store_not_zero(*to),
            },
            Step::Bitwise { from, to, mask, xor } => {
                let value = registers.load(*from, mask.len());
                let flips = xor.iter().copied().chain(std::iter::repeat(0));
                let value: Vec<Byte> = value
                    .iter()
                    .zip(mask)
                    .zip(flips)
                    .map(|((byte, mask), xor)| byte.masked(*mask, xor))
                    .collect();
                registers.store(*to, &value);
            }
            Step::Immediate { to, data } => registers.store(*to, &known(data)),
            _ => {}
        }
        true
    }

    fn payload(&self, base: Header, offset: u32, len: u32) -> Option<Vec<Byte>> {
        let unknown = || vec![Byte::UNKNOWN; usize::try_from(len).unwrap_or(0).min(64)];
        let header = match base {
            Header::Link if matches!(self.layer, Layer::Bridge | Layer::Device) => {
                self.packet.link_header()
            }
            Header::Link => return Some(unknown()),
            Header::Network => self.packet.network_header(),
            Header::Transport if self.packet.is_arp() => return None,
            Header::Transport => self.packet.transport_header(),
        };
        let is_changed = self.rewritten && base != Header::Link;
        let (Ok(offset), false) = (usize::try_from(offset), is_changed) else {
            return Some(unknown());
        };
        let mut bytes = unknown();
        for (byte, at) in bytes.iter_mut().zip(offset..) {
            if let Some(known) = header.get(at) {
                *byte = *known;
            }
        }
        Some(bytes)
    }

    fn verdicts(
        &mut self,
        ends: &mut Ends,
        at: AskedRule<'n>,
        set: Option<&'n Set>,
        registers: &Registers,
        from: u32,
        holds: Truth,
    ) -> Flow {
        let Some(set) = set else {
            ends.doubt(self.place(at));
            return Flow { on: true, returns: true };
        };
        let found = sets::look_up(set, registers, from);
        if found.others {
            ends.doubt(self.place(at));
        }
        let is_certain = matches!(found.elements[..], [(_, Truth::Yes)]);
        let mut flow = Flow { on: !is_certain, returns: false };
        for (element, is) in found.elements {
            match &element.verdict {
                Some(verdict) => {
                    let next = self.verdict(ends, at, verdict, holds.and(is));
                    flow = Flow { on: flow.on | next.on, returns: flow.returns | next.returns };
                }
                None => ends.doubt(self.place(at)),
            }
        }
        flow
    }

    fn verdict(
        &mut self,
        ends: &mut Ends,
        at: AskedRule<'n>,
        verdict: &'n Verdict,
        holds: Truth,
    ) -> Flow {
        if holds == Truth::No {
            return Flow::ON;
        }
        let on = holds == Truth::Maybe;
        match verdict {
            Verdict::Accept => ends.accepts = true,
            Verdict::Drop => ends.stop(self.place(at).saying("drop"), None, at.sure && !on),
            Verdict::Continue => return Flow::ON,
            Verdict::Return => return Flow { on, returns: true },
            Verdict::Queue => ends.doubt(self.place(at).saying("queue")),
            Verdict::Jump(name) => {
                let back = self.jump(ends, at, name, at.sure && !on);
                return Flow { on: on | back, returns: false };
            }
            Verdict::Goto(name) => {
                let back = self.jump(ends, at, name, at.sure && !on);
                return Flow { on, returns: back };
            }
        }
        Flow { on, returns: false }
    }

    fn jump(&mut self, ends: &mut Ends, at: AskedRule<'n>, name: &str, sure: bool) -> bool {
        let chain = at.table.chains.iter().find(|chain| chain.name == name);
        match chain {
            Some(chain) if at.depth < DEPTH => {
                self.calls.push(Call::of_rule(at.chain, at.index, at.rule));
                let depth = at.depth.saturating_add(1);
                let back = self.chain(ends, at.table, at.base, chain, sure, depth);
                self.calls.pop();
                back
            }
            _ => {
                ends.doubt(self.place(at));
                true
            }
        }
    }

    fn refuse(&mut self, ends: &mut Ends, at: AskedRule<'n>, with: &str, holds: Truth) -> Flow {
        let place = self.place(at).saying(format!("reject with {with}"));
        ends.stop(place, Some(with.to_owned()), at.sure && holds == Truth::Yes);
        Flow { on: holds == Truth::Maybe, returns: false }
    }

    fn translate(
        &mut self,
        ends: &mut Ends,
        at: AskedRule<'n>,
        new: NewDestination,
        choices: Vec<NewDestination>,
        holds: Truth,
    ) -> Flow {
        let says = match &new {
            NewDestination::To(Some(address), Some(port)) => {
                format!("dnat to {address} port {port}")
            }
            NewDestination::To(Some(address), None) => format!("dnat to {address}"),
            NewDestination::To(None, Some(port)) => format!("dnat to port {port}"),
            NewDestination::Here(Some(port)) => format!("redirect to port {port}"),
            NewDestination::Here(None) => "redirect".to_owned(),
            NewDestination::To(None, None) | NewDestination::Unknown => "dnat".to_owned(),
        };
        let place = self.place(at).saying(says);
        match choices.is_empty() {
            true => ends.choices.push((place.clone(), new.clone())),
            false => ends.choices.extend(choices.into_iter().map(|one| (place.clone(), one))),
        }
        ends.destinations.push((place, new));
        Flow { on: holds == Truth::Maybe, returns: false }
    }

    fn translate_source(
        &self,
        ends: &mut Ends,
        at: AskedRule<'n>,
        to: Option<IpAddr>,
        holds: Truth,
    ) -> Flow {
        let says = to.map_or("masquerade".to_owned(), |address| format!("snat to {address}"));
        ends.source.get_or_insert((self.place(at).saying(says), to));
        Flow { on: holds == Truth::Maybe, returns: false }
    }

    /// How long an address is, in bytes.
    fn address_len(&self) -> usize {
        if self.packet.is_ipv4() { 4 } else { 16 }
    }

    fn new_destination(
        &self,
        registers: &Registers,
        address: Option<u32>,
        port: Option<u32>,
    ) -> NewDestination {
        let port = match port.map(|port| port_of(registers, port)) {
            None => None,
            Some(Some(port)) => Some(port),
            Some(None) => return NewDestination::Unknown,
        };
        match address.map(|address| address_of(registers.load(address, self.address_len()))) {
            None if port.is_some() => NewDestination::To(None, port),
            Some(Some(address)) => NewDestination::To(Some(address), port),
            None | Some(None) => NewDestination::Unknown,
        }
    }

    /// Returns the destinations among which a map chooses: by chance, or by what is not known.
    fn choices(
        &self,
        registers: &Registers,
        address: Option<u32>,
        port: Option<u32>,
    ) -> Vec<NewDestination> {
        let Some(address) = address else { return Vec::new() };
        let all = registers
            .choices(address)
            .into_iter()
            .map(|registers| self.new_destination(&registers, Some(address), port));
        all.collect()
    }

    fn queue(
        &self,
        ends: &mut Ends,
        at: AskedRule<'n>,
        queues: [u16; 2],
        bypass: bool,
        holds: Truth,
    ) -> Flow {
        let on = holds == Truth::Maybe;
        let says = match queues {
            [first, last] if first == last => format!("queue to {first}"),
            [first, last] => format!("queue to {first}-{last}"),
        };
        let place = self.place(at).saying(says);
        match queued(self.namespace, queues, bypass) {
            QueueOutcome::Judged => ends.doubt(place),
            QueueOutcome::Passes => ends.accepts = true,
            QueueOutcome::Dropped => ends.stop(place, None, at.sure && !on),
        }
        Flow { on, returns: false }
    }

    /// Bytes of the packet are written. What later rules may read of it is no longer known, unless
    /// it is only said how many hops it may take.
    fn write(
        &mut self,
        ends: &Ends,
        at: AskedRule<'n>,
        step: &Step,
        registers: &Registers,
        holds: Truth,
    ) {
        let Step::Write { base, offset, len, from } = step else { return };
        let new = registers.load(*from, usize::try_from(*len).unwrap_or(usize::MAX));
        let old = self.payload(*base, *offset, *len).unwrap_or_default();
        let hops = self.hops_among(*base, *offset, *len);
        let is_kept = |(number, (old, new)): (usize, (&Byte, &Byte))| {
            Some(number) == hops || (old == new && old.value().is_some())
        };
        let is_rest_kept = old.len() == new.len() && old.iter().zip(new).enumerate().all(is_kept);
        self.rewritten |= hops.is_none() || !is_rest_kept;
        if let Some(number) = hops {
            let left = new.get(number).and_then(|byte| byte.value());
            let is_sure = holds == Truth::Yes && at.sure && ends.is_open();
            self.set_hops(self.place(at), left, is_sure);
        }
    }

    /// Returns which of the bytes that are written says how many hops the packet may take (RFC 791
    /// §3.1, RFC 8200 §3).
    fn hops_among(&self, base: Header, offset: u32, len: u32) -> Option<usize> {
        let at: u32 = if self.packet.is_ipv4() { 8 } else { 7 };
        let is_there = base == Header::Network && !self.packet.is_arp();
        let number = at.checked_sub(offset).filter(|number| is_there && *number < len)?;
        usize::try_from(number).ok()
    }

    /// Notes that a rule has said how many hops the packet may take.
    pub(crate) fn set_hops(&mut self, place: Place, left: Option<u8>, is_sure: bool) {
        self.hops = match left.filter(|_| is_sure) {
            // The older iptables writes its rule as it is.
            Some(left) if place.says.is_empty() => {
                Hops::Set(left, place.saying(format!("hop limit {left}")))
            }
            Some(left) => Hops::Set(left, place),
            None => Hops::Unknown,
        };
    }

    /// Notes that a rule takes some of the hops that the packet may take.
    pub(crate) fn lower_hops(&mut self, place: Place, by: Option<u8>, is_sure: bool) {
        let Some(by) = by.filter(|_| is_sure) else {
            self.hops = Hops::Unknown;
            return;
        };
        let place = match place.says.is_empty() {
            true => place.saying(format!("hop limit -{by}")),
            false => place,
        };
        self.hops = match std::mem::replace(&mut self.hops, Hops::Unknown) {
            Hops::Kept => Hops::Fewer(by, place),
            Hops::Fewer(before, _) => Hops::Fewer(by.saturating_add(before), place),
            Hops::Set(left, _) => Hops::Set(left.saturating_sub(by), place),
            Hops::Unknown => Hops::Unknown,
        };
    }

    /// Marks the packet. What may be so, or may not, is no longer known.
    pub(crate) fn set_mark(&mut self, ends: &Ends, mark: Option<u32>, place: Place, is_sure: bool) {
        if mark.is_some() && mark == self.packet.mark {
            return;
        }
        self.packet.mark = mark.filter(|_| is_sure && ends.is_open());
        self.marked = self.packet.mark.map(|mark| place.saying(format!("meta mark set {mark:#x}")));
    }

    /// Something is changed or noted. What later rules may read of it is no longer known.
    fn effect(&mut self, ends: &Ends, at: AskedRule<'n>, name: &str, holds: Truth) {
        let name = name.to_ascii_lowercase();
        if name.contains("notrack") {
            // What is tracked stays so (linux net/netfilter/nft_ct.c `nft_notrack_eval`).
            if !properties::is_before_tracking(self) {
                return;
            }
            self.maybe_untracked = true;
            let is_sure = at.sure && !ends.accepts && ends.destinations.is_empty();
            if holds == Truth::Yes && is_sure && self.packet.state != State::Untracked {
                self.untracked.get_or_insert(self.place(at).saying("notrack"));
            }
        } else if name == "ct" || name.ends_with(" ct") {
            self.maybe_untracked = true;
        } else if name.contains("mark") {
            self.packet.mark = None;
        } else if let Some(("hl" | "ttl", by)) = name.split_once(" -") {
            let is_sure = holds == Truth::Yes && at.sure && ends.is_open();
            self.lower_hops(self.place(at), by.parse().ok(), is_sure);
        } else if ["payload", "exthdr", "tcpoption", "hl", "ttl", "dscp", "tos"]
            .iter()
            .any(|change| name.contains(change))
        {
            self.rewritten = true;
            // It is counted from what it was.
            if ["hl", "ttl"].contains(&name.as_str()) {
                self.hops = Hops::Unknown;
            }
        }
    }
}

fn condition(step: &Step, registers: &Registers) -> Truth {
    match step {
        Step::Compare { op, from, with } => registers.compare(*from, *op, with),
        Step::Range { invert, from, first, last } => {
            let len = first.len().max(last.len());
            within(registers.load(*from, len), first, last).unless(*invert)
        }
        _ => Truth::Maybe,
    }
}

/// Looks a value up in a map and stores what the map has for it.
fn map(set: Option<&Set>, registers: &mut Registers, from: u32, to: u32) -> Truth {
    let found = set.map(|set| sets::look_up(set, registers, from));
    let Some(found) = found else {
        registers.forget();
        return Truth::Maybe;
    };
    let holds = found.holds();
    match (&found.elements[..], found.others) {
        ([(element, _)], false) => match &element.data {
            Some(data) => registers.store(to, &known(data)),
            None => registers.forget(),
        },
        (elements, others) => {
            let all = elements.iter().map(|(element, _)| element.data.clone());
            let all: Option<Vec<Vec<u8>>> = all.take(CHOICES).collect();
            registers.forget();
            // Of what was not read, no choice is known.
            if let (Some(all), false) = (all, others || CHOICES < elements.len()) {
                registers.choose(to, all);
            }
        }
    }
    holds
}

/// Reads a mark, which registers have in the host's byte order.
fn mark_of(bytes: &[Byte]) -> Option<u32> {
    let bytes: Vec<u8> = bytes.iter().map(|byte| byte.value()).collect::<Option<_>>()?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

fn port_of(registers: &Registers, from: u32) -> Option<u16> {
    match registers.load(from, 2) {
        [high, low] => Some(u16::from_be_bytes([high.value()?, low.value()?])),
        _ => None,
    }
}

fn address_of(bytes: &[Byte]) -> Option<IpAddr> {
    let bytes: Vec<u8> = bytes.iter().map(|byte| byte.value()).collect::<Option<_>>()?;
    if let Ok(octets) = <[u8; 4]>::try_from(&bytes[..]) {
        return Some(octets.into());
    }
    <[u8; 16]>::try_from(&bytes[..]).ok().map(IpAddr::from)
}
