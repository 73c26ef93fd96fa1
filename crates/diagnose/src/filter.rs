//! Packet filters, computed: what a hook does to a packet.
//!
//! [`walk`] takes a packet through all base chains of a hook, in the order of their priorities, as
//! the kernel does: nftables' tables by their expressions, tables of the older iptables by their
//! text. It says what is certain. A set that was not read to its end, a match that is not known, a
//! program that judges: what depends on them may be or not be, and [`End::Unknown`] says so.

mod added;
mod bits;
mod ends;
mod foreign;
mod legacy;
mod order;
mod packet;
mod place;
mod properties;
mod queues;
mod run;
#[cfg(test)]
pub(crate) mod samples;
mod sets;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

pub(crate) use self::added::NewRule;
pub use self::added::{AddedRule, Change};
pub use self::bits::Truth;
use self::ends::Ends;
pub use self::ends::{Hops, NewDestination};
use self::order::{Item, items};
pub use self::packet::{Packet, Payload, Port, State};
pub use self::place::{Call, Place};
use self::run::Run;
use crate::model::Namespace;
use crate::model::filter::{Hook, Table};

/// Where a packet is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// As a packet of IP.
    Ip,
    /// As a frame that passes a bridge.
    Bridge,
    /// As a frame that a link receives or sends.
    Device,
    /// As a packet of ARP.
    Arp,
}

/// What comes of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It passes.
    Passes,
    /// It is dropped, or refused with these words.
    Stopped(Place, Option<String>),
    /// It may be stopped here, or a program judges.
    Unknown(Place),
    /// It goes elsewhere, and it is not known where to.
    Lost(Place),
}

/// A packet that has passed a hook, or ended there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkOutcome {
    /// What comes of it.
    pub end: End,
    /// The packet as it leaves the hook.
    pub packet: Packet,
    /// What has translated its destination, and to what.
    pub destination: Option<(Place, NewDestination)>,
    /// All that may translate its destination, and to what; it may also stay as it is.
    pub choices: Vec<(Place, NewDestination)>,
    /// Whether its source is translated.
    pub source: Truth,
    /// What has surely translated its source to an address that the rule names, and to which.
    pub source_to: Option<(Place, IpAddr)>,
    /// The rule that has surely taken it from connection tracking.
    pub untracked: Option<Place>,
    /// The rule that has surely given it its mark.
    pub marked: Option<Place>,
    /// How many hops it may take from now on.
    pub hops: Hops,
}

/// Takes a packet through a hook of a namespace.
#[must_use]
pub fn walk(namespace: &Namespace, layer: Layer, hook: Hook, packet: &Packet) -> WalkOutcome {
    walk_changed(namespace, None, layer, hook, packet, Change::default())
}

/// Takes a packet through a hook of a namespace, that of a container or of the node, as if its
/// filters were changed.
#[must_use]
pub fn walk_changed(
    namespace: &Namespace,
    inside: Option<&str>,
    layer: Layer,
    hook: Hook,
    packet: &Packet,
    change: Change<'_>,
) -> WalkOutcome {
    let mut run = Run::new(namespace, layer, hook, packet.clone());
    run.added = change.added.iter().filter(|one| one.inside.as_deref() == inside).collect();
    run.ignored = change.ignored.iter().filter(|_| inside.is_none()).collect();
    let mut walk = Walk {
        unknown: None,
        destination: None,
        choices: Vec::new(),
        source: Truth::No,
        source_to: None,
        translated: false,
    };
    for item in items(namespace, layer, hook, packet) {
        if change.without.iter().any(|place| item.is_of(place, hook)) {
            continue;
        }
        run.priority = item.priority();
        let (ends, nat) = match item {
            Item::Rewrite { .. } => {
                rewrite_answer(&mut run);
                continue;
            }
            Item::Chain { table, chain, base, nat, .. } => {
                if nat && (walk.translated || !is_first(&run)) {
                    continue;
                }
                let (mut ends, falls) = run.base(table, chain);
                if falls && base.drops {
                    ends.stop(Place::of_policy(table, hook, &chain.name), None, true);
                } else if falls {
                    ends.accepts = true;
                }
                doubt_if_cut(namespace, table, &mut ends);
                if base.device.is_none() && layer == Layer::Device {
                    ends.accepts = true;
                }
                (ends, nat)
            }
            Item::Legacy { table, chain, nat, .. } => {
                if nat && (walk.translated || !is_first(&run)) {
                    continue;
                }
                (legacy::base(&mut run, table, chain), nat)
            }
        };
        if let Some(end) = walk.take(&mut run, ends, nat) {
            return walk.done(run, end);
        }
    }
    let end = walk.unknown.take().map_or(End::Passes, End::Unknown);
    walk.done(run, end)
}

/// Connections are translated when their first packet is seen.
fn is_first(run: &Run<'_>) -> bool {
    run.packet.state == State::New && run.untracked.is_none()
}

/// Answers of a translated connection get the addresses that its first packet had.
fn rewrite_answer(run: &mut Run<'_>) {
    if run.packet.state != State::Answer || run.untracked.is_some() {
        return;
    }
    match run.hook {
        Hook::Prerouting | Hook::Output => {
            if let Some(address) = run.packet.answers_to.take() {
                run.packet.destination = address;
                run.packet.known_bits[1] = None;
            }
        }
        Hook::Input | Hook::Postrouting => {
            if let Some(address) = run.packet.answers_as.take() {
                run.packet.source = address;
                run.packet.known_bits[0] = None;
            }
        }
        Hook::Forward | Hook::Ingress | Hook::Egress => {}
    }
}

/// A table of which a part was left out may accept what the rest drops.
fn doubt_if_cut(namespace: &Namespace, table: &Table, ends: &mut Ends) {
    let is_cut = namespace.filter.left_out.iter().any(|line| line.contains(&table.name));
    if let (true, Some((place, _))) = (is_cut, &ends.stop) {
        ends.doubt = Some(place.clone());
    }
}

/// What is known so far.
struct Walk {
    unknown: Option<Place>,
    destination: Option<(Place, NewDestination)>,
    choices: Vec<(Place, NewDestination)>,
    source: Truth,
    source_to: Option<(Place, IpAddr)>,
    /// A chain has translated the connection: those after it are not asked.
    translated: bool,
}

impl Walk {
    /// Takes what may come of a base chain. Returns the end if the packet does not go on.
    fn take(&mut self, run: &mut Run<'_>, ends: Ends, nat: bool) -> Option<End> {
        let Ends { accepts, stop, doubt, mut destinations, choices, source, .. } = ends;
        let others = usize::from(accepts)
            + usize::from(stop.is_some())
            + usize::from(doubt.is_some())
            + usize::from(source.is_some());
        if let Some((place, reject)) = &stop
            && others == 1
            && destinations.is_empty()
        {
            return Some(End::Stopped(place.clone(), reject.clone()));
        }
        if let Some(place) = doubt.or(stop.map(|(place, _)| place)) {
            self.unknown.get_or_insert(place);
        }
        if !nat {
            return None;
        }
        self.choices.extend(choices);
        if let Some((place, to)) = source {
            let is_certain = others == 1 && destinations.is_empty() && !run.maybe_untracked;
            let is_first = self.source == Truth::No;
            self.source_to = to.filter(|_| is_certain && is_first).map(|to| (place, to));
            self.source = if is_certain { Truth::Yes } else { Truth::Maybe };
            self.translated = is_certain;
            run.packet.source_translated = is_certain.then_some(true);
        }
        let (place, new) = destinations.pop()?;
        let is_certain = others == 0 && destinations.is_empty() && !run.maybe_untracked;
        if !is_certain {
            return Some(End::Lost(place));
        }
        self.translated = true;
        run.packet.destination_translated = Some(true);
        let end = apply(run, &new).then(|| End::Lost(place.clone()));
        self.destination = Some((place, new));
        end
    }

    fn done(self, mut run: Run<'_>, end: End) -> WalkOutcome {
        if run.untracked.is_some() {
            run.packet.state = State::Untracked;
        }
        WalkOutcome {
            end,
            packet: run.packet,
            destination: self.destination,
            choices: self.choices,
            source: self.source,
            source_to: self.source_to,
            untracked: run.untracked,
            marked: run.marked,
            hops: run.hops,
        }
    }
}

/// Gives a packet its new destination. Returns whether it is not known where it goes.
fn apply(run: &mut Run<'_>, new: &NewDestination) -> bool {
    let (address, port) = match new {
        NewDestination::To(address, port) => (*address, *port),
        NewDestination::Here(_) | NewDestination::Unknown => return true,
    };
    if let Some(address) = address {
        run.packet.destination = address;
        run.packet.known_bits[1] = None;
    }
    if let Some(port) = port {
        run.packet.carries = run.packet.carries.to_port(Port::Is(port));
    }
    false
}
