//! Where a packet went, by counting, if the kernel offers no other means.
//!
//! In each namespace on the way a tap ([`kernel::tap`]) counts the packets of the probes and of
//! their answers at each link, and no others: so busy traffic does not matter. The link that sees a
//! packet last is where it ended. The entry of the tracked connection says whether a packet has
//! passed all filters of the node, even if address translation has changed it, and whether it was
//! answered.
//!
//! The reason may be in counters of the kernel and of rules ([`counters`]), and in entries of
//! neighbours that do not answer. All traffic moves these counters: one is used only if it stood
//! still just before the probes were sent.

mod counters;

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use diagnose::model::{Link, Namespace, Scene};
use diagnose::routes::{RouteDecision, look_up};
use diagnose::{Answer, Hop};
use kernel::conntrack::{ConntrackSocket, Flow as TrackedFlow, FlowFilter};
use kernel::netns::{Netns, within};
use kernel::nflog::Packet as Headers;
use kernel::nft::trace::{Flow, Protocol};
use kernel::route::{IpFamily, RouteSocket};
use kernel::tap::{SeenPacket, Tap};

use super::flows::is_bridge;
use super::sockets::Packet;
use super::{FollowedProbe, Place, chain, on_the_way};
use counters::{Counters, Rule};

/// Stands for the kernel's function, which is not known here.
pub(super) const FUNCTION: &str = "counters";
/// The kernel's names of reasons.
const BY_FILTER: &str = "NETFILTER_DROP";
const NO_NEIGHBOUR: &str = "NEIGH_FAILED";
const FOR_ANOTHER: &str = "OTHERHOST";
const UNKNOWN: &str = "NOT_SPECIFIED";

/// How long counters are watched before anything is sent.
const QUIET: Duration = Duration::from_millis(50);

/// For how many probes we look for the tracked connection: the kernel walks all connections each
/// time.
const MOST_TRACKED: usize = 16;
/// linux include/uapi/linux/netfilter/nf_conntrack_common.h IPS_SEEN_REPLY.
const ANSWERED: u32 = 1 << 1;

/// linux include/uapi/linux/neighbour.h NUD_INCOMPLETE and NUD_FAILED.
const WAITS: u16 = 0x01 | 0x20;

/// Namespaces that are watched while probes are sent.
#[derive(Debug)]
pub(super) struct Watch<'s> {
    scene: &'s Scene,
    posts: Vec<Post<'s>>,
}

/// A namespace.
#[derive(Debug)]
struct Post<'s> {
    place: Place<'s>,
    netns: Option<Netns>,
    namespace: &'s Namespace,
    tap: Tap,
    before: [Counters; 2],
}

/// What was counted.
#[derive(Debug)]
pub(super) struct Tally<'s> {
    scene: &'s Scene,
    places: Vec<PlaceCounts<'s>>,
    /// Of each probe, what is known of its tracked connection.
    connections: Vec<Connection>,
}

/// What was counted in a namespace.
#[derive(Debug)]
struct PlaceCounts<'s> {
    place: Place<'s>,
    namespace: &'s Namespace,
    frames: Vec<Frame>,
    /// The kernel's reason for drops, by a counter that has moved, and by how much.
    reason: Option<(&'static str, u64)>,
    /// The rule that drops whose counter has moved, and by how much.
    rule: Option<(Rule, u64)>,
    /// Neighbours that do not answer.
    silent: Vec<IpAddr>,
}

/// A packet at a link.
#[derive(Debug, Clone, Copy)]
struct Frame {
    link: u32,
    outgoing: bool,
    for_another: bool,
    headers: Headers,
    identifier: Option<u16>,
}

/// What is known of a tracked connection of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connection {
    /// We could not look, or did not.
    Unknown,
    /// There is none: its first packet has not passed all filters, or is not tracked.
    None,
    /// Its first packet has passed them.
    Passed,
    /// An answer has come as well.
    Answered,
}

/// Where a packet was last.
#[derive(Debug, Clone, Copy)]
struct LastPlace<'s, 't> {
    told: &'t PlaceCounts<'s>,
    link: Option<&'s Link>,
    outgoing: bool,
    back: bool,
    /// It was for another hardware address, and is no copy.
    for_another: bool,
    /// A copy of it was seen on this way, which was for another.
    copied: bool,
}

/// Runs in a namespace; `None`: the node's.
fn inside<T>(netns: Option<&Netns>, work: impl FnOnce() -> T) -> Option<T> {
    match netns {
        None => Some(work()),
        Some(netns) => within(netns, work).ok(),
    }
}

impl<'s> Watch<'s> {
    /// Begins to count in all namespaces that the probes may pass.
    pub(super) fn begin(scene: &'s Scene, probes: &[FollowedProbe<'s>]) -> Self {
        let places = super::places(probes).into_iter();
        let mut posts: Vec<Post<'s>> =
            places.filter_map(|place| Post::open(scene, place, probes)).collect();
        std::thread::sleep(QUIET);
        for post in &mut posts {
            post.before[1] = post.counters();
        }
        Watch { scene, posts }
    }

    /// Returns what was counted since then. A probe with an answer has not ended anywhere.
    pub(super) fn end(self, probes: &[FollowedProbe<'_>], answers: &[Option<Answer>]) -> Tally<'s> {
        let mut conntrack = ConntrackSocket::open().ok();
        let connection = |(number, probe): (usize, &FollowedProbe<'_>)| match &mut conntrack {
            Some(socket) if number < MOST_TRACKED => connection(socket, probe),
            _ => Connection::Unknown,
        };
        let mut counted = Tally {
            scene: self.scene,
            connections: probes.iter().enumerate().map(connection).collect(),
            places: self.posts.into_iter().map(Post::counts).collect(),
        };
        let lost = probes.iter().zip(answers).enumerate();
        let ends: Vec<Place<'s>> = lost
            .filter(|(_, (_, answer))| answer.is_none())
            .filter_map(|(number, (probe, _))| counted.follow(number, &probe.way()).1)
            .collect();
        counted.forget_others(&ends);
        counted
    }
}

impl FollowedProbe<'_> {
    fn way(&self) -> Way<'_> {
        Way {
            from: self.from,
            flows: &self.flows,
            asks_names: matches!(self.packet, Packet::Name(_)),
        }
    }
}

/// What is counted of a probe.
#[derive(Debug, Clone, Copy)]
struct Way<'p> {
    from: Place<'p>,
    flows: &'p [Flow],
    /// It is a question for a name: a server may keep silent.
    asks_names: bool,
}

impl<'s> Post<'s> {
    fn open(scene: &'s Scene, place: Place<'s>, probes: &[FollowedProbe<'s>]) -> Option<Self> {
        let namespace = chain::namespace(scene, place)?;
        let netns = match place {
            None => None,
            Some(id) => Some(Netns::open(Path::new(&scene.container(id)?.netns)).ok()?),
        };
        let seen = probes.iter().filter(|probe| probe.may_be_seen_at(place));
        let flows: Vec<Flow> = seen.flat_map(|probe| probe.flows.iter().copied()).collect();
        let open = || Some((Tap::open(&flows).ok()?, Counters::read(namespace)));
        let (tap, first) = inside(netns.as_ref(), open)??;
        Some(Post { place, netns, namespace, tap, before: [first, Counters::default()] })
    }

    fn counters(&self) -> Counters {
        inside(self.netns.as_ref(), || Counters::read(self.namespace)).unwrap_or_default()
    }

    fn counts(self) -> PlaceCounts<'s> {
        let after = self.counters();
        let silent = || {
            let mut socket = RouteSocket::open().ok()?;
            let mut all = socket.neighbours(IpFamily::V4, None).unwrap_or_default();
            all.extend(socket.neighbours(IpFamily::V6, None).unwrap_or_default());
            Some(all.into_iter().filter(|one| one.state.0 & WAITS != 0).map(|one| one.address))
        };
        let silent = inside(self.netns.as_ref(), silent).flatten();
        let frame = |seen: SeenPacket| Frame {
            link: seen.ifindex,
            outgoing: seen.outgoing,
            for_another: seen.for_another,
            headers: seen.packet,
            identifier: seen.identifier,
        };
        PlaceCounts {
            place: self.place,
            namespace: self.namespace,
            frames: self.tap.seen().unwrap_or_default().into_iter().map(frame).collect(),
            reason: counters::reason(&self.before, &after),
            rule: counters::rule(&self.before, &after),
            silent: silent.into_iter().flatten().collect(),
        }
    }
}

/// Looks for the tracked connection of a probe.
fn connection(socket: &mut ConntrackSocket, probe: &FollowedProbe<'_>) -> Connection {
    let Some(flow) = probe.flows.first() else { return Connection::Unknown };
    let protocol = match (flow.protocol, flow.source.is_ipv4()) {
        (Protocol::Tcp, _) => 6,
        (Protocol::Udp, _) => 17,
        (Protocol::Echo, true) => 1,
        (Protocol::Echo, false) => 58,
        _ => return Connection::Unknown,
    };
    let filter = FlowFilter {
        protocol: Some(protocol),
        source: Some(flow.source),
        destination: Some(flow.destination),
        ..FlowFilter::all(IpFamily::of(flow.source))
    };
    let is_own = |one: &&TrackedFlow| {
        let number = match flow.protocol {
            Protocol::Echo => one.original.identifier,
            _ => one.original.source_port,
        };
        number == Some(flow.source_port)
    };
    match socket.flows(&filter) {
        Err(_) => Connection::Unknown,
        Ok(all) => match all.iter().find(is_own) {
            None => Connection::None,
            Some(one) if one.status & ANSWERED != 0 => Connection::Answered,
            Some(_) => Connection::Passed,
        },
    }
}

impl<'s> Tally<'s> {
    /// Returns the places that a packet passed, and after them those that its answer passed. `number`
    /// is that of the probe, which was not answered.
    pub(super) fn hops(&self, number: usize, probe: &FollowedProbe<'_>) -> Vec<Hop> {
        let way = probe.way();
        let (mut hops, end) = self.follow(number, &way);
        if let (Some(place), Some(hop)) = (end, hops.last_mut()) {
            self.say_why(hop, place, way.flows);
        }
        hops
    }

    /// Returns the places that a packet and its answer passed, and the namespace where the last of
    /// them is the end; `None`: it may have gone on.
    fn follow(&self, number: usize, way: &Way<'_>) -> (Vec<Hop>, Option<Place<'s>>) {
        let connection = self.connections.get(number).copied().unwrap_or(Connection::Unknown);
        let (mut hops, last) = self.passed(way);
        let beyond = match last {
            // Not even a link of the sender has sent it.
            None => Some((way.from, false)),
            // The answer came to a port that only the node knows.
            Some(last) if connection == Connection::Answered && !last.back => Some((None, true)),
            Some(_) => None,
        };
        let end = match (beyond, last) {
            (Some((place, back)), _) => {
                let told = self.places.iter().find(|told| told.place == place);
                hops.extend(told.map(|told| hop(told.place, None, back)));
                told
            }
            (None, Some(last)) if self.is_end(&last, way, connection) => Some(last.told),
            (None, _) => None,
        };
        if let (None, Some(LastPlace { for_another: true, .. }), Some(hop)) =
            (beyond, last, hops.last_mut())
        {
            hop.dropped = Some((FUNCTION.to_owned(), FOR_ANOTHER.to_owned()));
        }
        (hops, end.map(|told| told.place))
    }

    /// Returns the places at which packets of flows were seen, and the last one.
    fn passed(&self, way: &Way<'_>) -> (Vec<Hop>, Option<LastPlace<'s, '_>>) {
        let mut ordered = on_the_way(&self.places, way.from, |told| told.place);
        let mut hops = Vec::new();
        let mut last: Option<LastPlace<'s, '_>> = None;
        for back in [false, true] {
            for told in ordered.iter().copied() {
                let is_own = |frame: &&Frame| frame.is_of(way.flows, back);
                // Then what comes by another link of this namespace is a copy.
                let is_taken = |frame: &Frame| !frame.outgoing && !frame.for_another;
                let arrives = told.frames.iter().filter(is_own).any(is_taken);
                for frame in told.frames.iter().filter(is_own) {
                    let link = told.namespace.link_of(frame.link);
                    let for_another =
                        frame.for_another && link.is_some_and(|link| link.master.is_none());
                    if for_another && (arrives || self.is_copy(frame, told, link, last.as_ref())) {
                        last = last.map(|last| LastPlace { copied: true, ..last });
                        continue;
                    }
                    let hop = hop(told.place, link, back);
                    if hops.last() != Some(&hop) {
                        hops.push(hop);
                    }
                    let outgoing = frame.outgoing;
                    // By a port that sends back what it received (hairpin), the sender gets a copy.
                    let copied = last.is_some_and(|last| last.copied && last.back == back);
                    last = Some(LastPlace { told, link, outgoing, back, for_another, copied });
                }
            }
            ordered.reverse();
        }
        (hops, last)
    }

    /// Says whether a packet for another hardware address may be a copy: a bridge sends copies to
    /// all its ports while it does not know the right one. What comes by a pair of links without a
    /// bridge is none, nor is what comes to the namespace that has its address.
    fn is_copy(
        &self,
        frame: &Frame,
        told: &PlaceCounts<'_>,
        link: Option<&Link>,
        last: Option<&LastPlace<'s, '_>>,
    ) -> bool {
        let is_other_end = |last: &LastPlace<'s, '_>| {
            let (Some(sender), Some(link)) = (last.link, link) else { return false };
            last.outgoing
                && chain::is_no_port(sender)
                && sender.peer == Some(link.index)
                && chain::far_end(self.scene, last.told.place, sender) == Some(told.place)
        };
        !last.is_some_and(is_other_end)
            && told.namespace.owner_of(frame.headers.destination).is_none()
    }

    /// Says whether a packet surely went no further.
    fn is_end(&self, last: &LastPlace<'s, '_>, way: &Way<'_>, connection: Connection) -> bool {
        let place = last.told.place;
        if last.for_another {
            return true;
        }
        if last.outgoing {
            let is_watched = |end: Place<'_>| self.places.iter().any(|told| told.place == end);
            let is_short = |link: &Link| {
                is_bridge(link) || chain::far_end(self.scene, place, link).is_some_and(is_watched)
            };
            return !last.copied && last.link.is_some_and(is_short);
        }
        if last.back {
            // The first try judges what a name server answered.
            return !(way.asks_names && place == way.from);
        }
        let is_there = |flow: &Flow| last.told.namespace.owner_of(flow.destination).is_some();
        if way.flows.iter().any(is_there) {
            return !way.asks_names;
        }
        match connection {
            // Translation has given it another port.
            Connection::Passed | Connection::Answered => false,
            Connection::None => true,
            Connection::Unknown => !translates(last.told.namespace),
        }
    }

    /// Forgets counters that do not account for all packets that ended in their namespace: some of
    /// these ended for another reason, and we do not know which.
    fn forget_others(&mut self, ends: &[Place<'_>]) {
        for told in &mut self.places {
            let ended = ends.iter().filter(|end| **end == told.place).count();
            let ended = u64::try_from(ended).unwrap_or(u64::MAX);
            told.reason = told.reason.filter(|(_, moved)| ended <= *moved);
            told.rule = told.rule.take().filter(|(_, moved)| ended <= *moved);
        }
    }

    /// Says why a packet ended at a hop, as far as that is known.
    fn say_why(&self, hop: &mut Hop, place: Place<'_>, flows: &[Flow]) {
        if hop.dropped.is_some() {
            return;
        }
        let Some(told) = self.places.iter().find(|told| told.place == place) else { return };
        let reason = match (&told.rule, told.reason) {
            (Some((rule, _)), _) => {
                hop.rule = Some(rule.clone());
                BY_FILTER
            }
            (None, Some((reason, _))) => reason,
            (None, None) if told.waits(flows, hop.back) => NO_NEIGHBOUR,
            (None, None) => UNKNOWN,
        };
        hop.dropped = Some((FUNCTION.to_owned(), reason.to_owned()));
    }
}

impl Frame {
    /// Says whether it is one of flows, on this way.
    fn is_of(&self, flows: &[Flow], back: bool) -> bool {
        flows.iter().any(|flow| flow.way_of(&self.headers, self.identifier) == Some(back))
    }
}

impl PlaceCounts<'_> {
    /// Says whether a packet of flows, or its answer, waits for a neighbour that does not answer.
    fn waits(&self, flows: &[Flow], back: bool) -> bool {
        flows.iter().any(|flow| {
            let to = if back { flow.source } else { flow.destination };
            let by = match look_up(self.namespace, None, to, None, Some(0)) {
                RouteDecision::By { via: Some(via), .. } => via,
                _ => to,
            };
            self.silent.contains(&by)
        })
    }
}

fn hop(place: Place<'_>, link: Option<&Link>, back: bool) -> Hop {
    Hop {
        container: place.map(str::to_owned),
        link: link.map(|link| link.name.clone()),
        dropped: None,
        rule: None,
        back,
    }
}

/// Says whether a namespace's rules may translate addresses and ports.
fn translates(namespace: &Namespace) -> bool {
    let chains = namespace.filter.tables.iter().flat_map(|table| &table.chains);
    let mut bases = chains.filter_map(|chain| chain.base.as_ref());
    bases.any(|base| base.kind == "nat")
        || namespace.filter.legacy.iter().any(|table| table.name == "nat")
}

#[cfg(test)]
mod tests;
