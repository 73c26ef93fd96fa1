//! Where a packet and its answer went, as the tracepoints show it.
//!
//! The kernel names a packet by its address in memory, and gives the address to another packet as
//! soon as the first is gone. So the chain begins at the sender's device, in the thread that sent.
//! It goes on only to a link that the link before leads to. Only the first drop after that counts,
//! if it comes at once. A packet that leaves the node, or the namespaces that we know, is not
//! followed any further.

use std::collections::BTreeMap;
use std::iter;
use std::net::IpAddr;

use diagnose::Hop;
use diagnose::model::{Link, Namespace, Scene};
use kernel::tracefs::{Event, PacketEvent};

use super::Place;
use super::flows::is_bridge;

/// EtherTypes (RFC 9542).
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// The header of Ethernet, without and with the tag of a VLAN.
const ETHERNET: u32 = 14;
const TAG: u32 = 4;

/// The kernel drops a packet at once where it is, or the packet waits for a neighbour. What is
/// dropped later is another packet with the same address.
const AT_ONCE_US: u64 = 100_000;
const WAITED: &str = "NEIGH";

/// The frame is for another hardware address: mostly it is a copy of a packet that a bridge sends
/// to all its ports.
const FOR_ANOTHER: &str = "OTHERHOST";
/// Drivers also free what they have sent in this way.
const UNSPECIFIED: [&str; 2] = ["", "NOT_SPECIFIED"];

/// A packet, as it was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentPacket<'p> {
    /// From where.
    pub(super) from: Place<'p>,
    /// The text that the thread that sent it gave [`kernel::tracefs::Trace::mark`] just before.
    pub(super) mark: &'p str,
    /// The address to which it is sent.
    pub(super) to: IpAddr,
    /// Its length, in bytes, from its IP header on.
    pub(super) length: u32,
    /// How long its answer will be; `None`: that is not known.
    pub(super) answer: Option<u32>,
}

/// What is seen of one packet.
#[derive(Debug)]
struct Way<'s> {
    hops: Vec<Hop>,
    /// Where it was last, and whether that link had received it.
    place: Place<'s>,
    link: Option<&'s Link>,
    received: bool,
    /// That link is the other end of a pair whose first end is no port of a bridge: it has received
    /// no copy.
    paired: bool,
    dropped: bool,
    /// Which event was the last of it.
    last: usize,
}

/// Follows packets of one kind through a scene.
#[derive(Debug, Clone, Copy)]
struct Follower<'s, 'e> {
    scene: &'s Scene,
    events: &'e [Event],
    to: IpAddr,
    length: u32,
    back: bool,
}

/// Returns the places that a packet passed, and after them those that its answer passed.
pub(super) fn hops(scene: &Scene, sent: &SentPacket<'_>, events: &[Event]) -> Vec<Hop> {
    let is_mark =
        |event: &Event| matches!(&event.what, PacketEvent::Marked(text) if text == sent.mark);
    let Some(mark) = events.iter().position(is_mark) else { return Vec::new() };
    let thread = events[mark].thread;
    let own = |event: &Event| thread == event.thread && !event.interrupted;
    let follower = Follower { scene, events, to: sent.to, length: sent.length, back: false };
    let begins = |event: &Event| match &event.what {
        PacketEvent::Queued { length, .. } => own(event) && follower.is_sent(*length),
        _ => false,
    };
    let behind = events.iter().enumerate().skip(mark + 1);
    let Some((begin, _)) = behind.clone().find(|(_, event)| begins(event)) else {
        let until = events[mark].at_us.saturating_add(AT_ONCE_US);
        let mut own = behind.map(|(_, event)| event).filter(|event| own(event));
        return own.find_map(|event| dropped_at_once(event, until, sent)).into_iter().collect();
    };
    let Some(way) = follower.follow(begin, sent.from) else { return Vec::new() };
    let answer = match (sent.answer, way.dropped) {
        (Some(length), false) => Follower { length, back: true, ..follower }.answer(&way, begin),
        _ => None,
    };
    let mut hops = way.hops;
    hops.extend(answer.into_iter().flat_map(|answer| answer.hops));
    hops
}

/// A packet that does not even reach a device: a filter of the sender's namespace.
fn dropped_at_once(event: &Event, until: u64, sent: &SentPacket<'_>) -> Option<Hop> {
    match &event.what {
        PacketEvent::Dropped { protocol, function, reason, .. }
            if *protocol == ether_type(sent.to) && event.at_us <= until =>
        {
            Some(Hop {
                container: sent.from.map(str::to_owned),
                link: None,
                dropped: Some((function.clone(), reason.clone())),
                rule: None,
                back: false,
            })
        }
        _ => None,
    }
}

/// Kinds of links that send packets inside others (`man 8 ip-link`).
const TUNNELS: [&str; 12] = [
    "vxlan",
    "geneve",
    "gre",
    "gretap",
    "ip6gre",
    "ip6gretap",
    "ipip",
    "ip6tnl",
    "sit",
    "wireguard",
    "tun",
    "vti",
];

fn ether_type(to: IpAddr) -> u16 {
    if to.is_ipv4() { IPV4 } else { IPV6 }
}

/// Returns the packet that an event names, and the link that sends or has received it.
fn passing(event: &Event) -> Option<(u64, &str)> {
    match &event.what {
        PacketEvent::Queued { packet, link, .. } | PacketEvent::Received { packet, link, .. } => {
            Some((*packet, link.as_str()))
        }
        _ => None,
    }
}

/// Returns the node and all containers whose namespaces were read.
pub(super) fn places(scene: &Scene) -> impl Iterator<Item = (Place<'_>, &Namespace)> {
    let inside = scene
        .containers
        .iter()
        .filter_map(|container| Some((Some(container.id.as_str()), container.inside.as_ref()?)));
    iter::once((None, &scene.host)).chain(inside)
}

/// Returns the namespace of a place.
pub(super) fn namespace<'s>(scene: &'s Scene, place: Place<'_>) -> Option<&'s Namespace> {
    match place {
        None => Some(&scene.host),
        Some(id) => scene.container(id)?.inside.as_ref(),
    }
}

/// Says whether a link leads out of the namespaces that we know.
fn is_uplink(scene: &Scene, place: Place<'_>, link: &Link) -> bool {
    !is_bridge(link) && far_end(scene, place, link).is_none()
}

/// Says whether a link is an end of a pair, and no bridge sends by it.
pub(super) fn is_no_port(link: &Link) -> bool {
    link.kind.as_deref() == Some("veth") && link.master.is_none()
}

/// Returns the namespace in which the other end of a veth is, if we know it.
pub(super) fn far_end<'s>(scene: &'s Scene, place: Place<'_>, link: &Link) -> Option<Place<'s>> {
    let index = link.peer.filter(|_| link.kind.as_deref() == Some("veth"))?;
    let mut ends = places(scene).filter(|(other, namespace)| {
        (*other == place) == link.peer_netnsid.is_none()
            && namespace.link_of(index).is_some_and(|peer| peer.peer == Some(link.index))
    });
    ends.next().map(|(place, _)| place)
}

impl<'s> Follower<'s, '_> {
    /// Says whether a packet of this length at a link that sends is of ours. A tunnel's link has no
    /// header.
    fn is_sent(self, length: u32) -> bool {
        [0, ETHERNET, ETHERNET + TAG].iter().any(|header| length == self.length + header)
    }

    fn is_received(self, length: u32) -> bool {
        length == self.length || length == self.length + TAG
    }

    /// Follows the packet of an event, which happened at this place.
    fn follow(self, begin: usize, place: Place<'_>) -> Option<Way<'s>> {
        let (packet, _) = passing(self.events.get(begin)?)?;
        // The place's name as the scene has it.
        let (place, _) = places(self.scene).find(|(one, _)| *one == place)?;
        let mut way = Way {
            hops: Vec::new(),
            place,
            link: None,
            received: false,
            paired: false,
            dropped: false,
            last: begin,
        };
        for (index, event) in self.events.iter().enumerate().skip(begin) {
            let (link, received) = match &event.what {
                PacketEvent::Queued { packet: own, link, length } if *own == packet => {
                    (link, Some(false).filter(|_| self.is_sent(*length)))
                }
                PacketEvent::Received { packet: own, link, length } if *own == packet => {
                    (link, Some(true).filter(|_| self.is_received(*length)))
                }
                PacketEvent::Dropped { packet: own, protocol, function, reason }
                    if *own == packet =>
                {
                    let after_us = event.at_us.saturating_sub(self.events[way.last].at_us);
                    if *protocol == ether_type(self.to) && way.ends(reason, after_us) {
                        way.drop_at(function, reason);
                    }
                    break;
                }
                _ => continue,
            };
            // Otherwise another packet has the address by now, or the packet has left the
            // namespaces that we see.
            let Some(received) = received else { break };
            let Some((place, seen)) = self.next(&way, link, received) else { break };
            way.pass(place, link, self.back);
            way.paired = received && !way.received && way.link.is_some_and(is_no_port);
            (way.place, way.link, way.received, way.last) = (place, seen, received, index);
        }
        Some(way)
    }

    /// Returns where the packet of the next event is; `None` if it cannot be the same packet, or is
    /// in a namespace that we do not know.
    fn next(
        self,
        way: &Way<'s>,
        name: &str,
        received: bool,
    ) -> Option<(Place<'s>, Option<&'s Link>)> {
        let here = || namespace(self.scene, way.place)?.link(name);
        if way.hops.is_empty() {
            return Some((way.place, here()));
        }
        let last = way.link?;
        let same = || here().map(|link| (way.place, Some(link)));
        if way.received {
            return same();
        }
        match last.kind.as_deref() {
            Some("veth") => received.then(|| self.peer(way.place, last, name)).flatten(),
            Some("macvlan" | "macvtap" | "ipvlan" | "ipvtap" | "vlan") => {
                if received {
                    self.sibling(last, name)
                } else {
                    self.peer(way.place, last, name)
                }
            }
            // It goes on inside another packet. At the other end, a link of the same name may be in a
            // namespace of this kernel.
            Some(kind) if TUNNELS.contains(&kind) => None,
            // Hardware: it has left.
            None if last.name != "lo" => None,
            _ => same(),
        }
    }

    /// Returns the link of a name to which another one leads: a veth's other end, or the link
    /// below.
    fn peer(
        self,
        here: Place<'_>,
        last: &Link,
        name: &str,
    ) -> Option<(Place<'s>, Option<&'s Link>)> {
        let is_pair = last.kind.as_deref() == Some("veth");
        places(self.scene).find_map(|(place, namespace)| {
            let link = namespace.link(name)?;
            let is_near = (place == here) == last.peer_netnsid.is_none();
            let leads_back = !is_pair || link.peer == Some(last.index);
            (Some(link.index) == last.peer && is_near && leads_back).then_some((place, Some(link)))
        })
    }

    /// Returns the link beside another on the same parent: the one that has the address, if several
    /// containers call theirs so.
    fn sibling(self, last: &Link, name: &str) -> Option<(Place<'s>, Option<&'s Link>)> {
        let mut found = places(self.scene).filter_map(|(place, namespace)| {
            let link = namespace.link(name)?;
            let has = namespace.owner_of(self.to).is_some() || self.back;
            (link.kind == last.kind && link.peer == last.peer && has).then_some((place, Some(link)))
        });
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// Follows the answer to a packet that has reached an end. The events have lengths and no
    /// addresses, so a packet of another program looks the same: if several packets may be the
    /// answer, even before another probe was sent, we take none of them.
    fn answer(self, way: &Way<'s>, begin: usize) -> Option<Way<'s>> {
        let (question, _) = passing(self.events.get(begin)?)?;
        let inside = namespace(self.scene, way.place)?;
        let begins = |event: &Event| match &event.what {
            // The kernel, or a program that listens, sends it where the question arrived.
            PacketEvent::Queued { link, length, .. } => {
                way.received
                    && event.interrupted
                    && self.is_sent(*length)
                    && inside.link(link).is_some()
            }
            // It comes from outside, perhaps by another link.
            PacketEvent::Received { link, length, .. } => {
                !way.received
                    && self.is_received(*length)
                    && inside.link(link).is_some_and(|link| is_uplink(self.scene, way.place, link))
            }
            _ => false,
        };
        let mut candidates: Vec<usize> = Vec::new();
        let mut links: BTreeMap<u64, &str> = BTreeMap::new();
        for (index, event) in self.events.iter().enumerate().skip(way.last + 1) {
            if let Some((packet, link)) = passing(event).filter(|(packet, _)| *packet != question)
                && begins(event)
                // A link above the first one receives the same packet once more.
                && *links.entry(packet).or_insert(link) == link
            {
                candidates.push(index);
            }
        }
        // Another probe, of the same length perhaps, was sent from here on.
        let is_mark = |event: &&Event| matches!(event.what, PacketEvent::Marked(_));
        let until = begin + self.events.iter().skip(begin).take_while(|one| !is_mark(one)).count();
        let early = candidates.iter().filter(|one| **one < until).count();
        let first = match (candidates.as_slice(), early) {
            ([only], _) => *only,
            // With more packets than probes, other programs send packets of this length too.
            ([first, others @ ..], 1) if others.len() <= self.sent_from(until) => *first,
            _ => return None,
        };
        self.follow(first, way.place)
    }

    /// Counts the probes of this length that were sent from an event on.
    fn sent_from(self, begin: usize) -> usize {
        let behind = self.events.get(begin..).unwrap_or_default();
        let is_sent = |(number, mark): &(usize, &Event)| {
            matches!(mark.what, PacketEvent::Marked(_))
                && behind.iter().skip(*number).any(|event| match &event.what {
                    PacketEvent::Queued { length, .. } => {
                        event.thread == mark.thread && !event.interrupted && self.is_sent(*length)
                    }
                    _ => false,
                })
        };
        behind.iter().enumerate().filter(is_sent).count()
    }
}

impl<'s> Way<'s> {
    fn pass(&mut self, place: Place<'s>, link: &str, back: bool) {
        let hop = Hop {
            container: place.map(str::to_owned),
            link: Some(link.to_owned()),
            dropped: None,
            rule: None,
            back,
        };
        if self.hops.last() != Some(&hop) {
            self.hops.push(hop);
        }
    }

    /// Says whether a drop that came so long after the packet was seen is a drop of that packet.
    fn ends(&self, reason: &str, after_us: u64) -> bool {
        // Inside another packet it may be anywhere, also in a namespace of this kernel that we do not
        // know.
        let is_tunnel =
            |link: &Link| link.kind.as_deref().is_some_and(|kind| TUNNELS.contains(&kind));
        if !self.received && self.link.is_some_and(is_tunnel) {
            return false;
        }
        let is_hardware = |link: &Link| link.kind.is_none() && link.name != "lo";
        let is_sent_out = !self.received && self.link.is_some_and(is_hardware);
        (after_us <= AT_ONCE_US || reason.contains(WAITED))
            && (reason != FOR_ANOTHER || self.paired)
            && !(is_sent_out && UNSPECIFIED.contains(&reason))
    }

    fn drop_at(&mut self, function: &str, reason: &str) {
        if let Some(hop) = self.hops.last_mut() {
            hop.dropped = Some((function.to_owned(), reason.to_owned()));
            self.dropped = true;
        }
    }
}

#[cfg(test)]
mod tests;
