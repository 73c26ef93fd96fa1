//! Sends probes that were not answered once more, and follows them and their answers.
//!
//! There are three means, and each may be missing. Tracepoints ([`kernel::tracefs`]) show in which
//! namespace and where a packet was dropped, and the packet filter's trace ([`kernel::nft::trace`])
//! shows the rule. Where there are no tracepoints, packets are counted instead ([`counted`]). With
//! fewer means the answers say less.
//!
//! All objects that we make for this are ours alone: sockets with ports of their own, a tracing
//! instance, and tables that mark the packets of these sockets and their answers. Each probe has a
//! length of its own, as far as its kind permits.

mod chain;
mod counted;
#[cfg(test)]
mod example;
mod flows;
mod judged;
mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use diagnose::model::Scene;
use diagnose::{Answer, Probe, Question};
use kernel::echo::{self, Echo};
use kernel::netns::{Netns, within};
use kernel::nft::trace::{Flow, FlowTrace};
use kernel::refusals::{Refusal, RefusalListener};
use kernel::tracefs::Trace;

use super::{micros, names, refusers};
use crate::dns;
use chain::SentPacket;
use counted::Watch;
use judged::FilterTrace;
use sockets::Packet;

/// A network namespace: a container's, by its ID, or the node's.
type Place<'s> = Option<&'s str>;

/// How long a packet and its answer may take; the first try had more time. On this node they take a
/// fraction of a millisecond.
const TIMEOUT: Duration = Duration::from_millis(400);

/// The time between two probes: not all can have lengths of their own, and most are answered within
/// it.
const BETWEEN: Duration = Duration::from_millis(3);

/// How many probes are followed, and how many of them to the same end: the others fail for the same
/// reason, or their findings need no more proof.
const MOST: usize = 48;
const MOST_OF_ONE: usize = 3;

/// Echo requests have these lengths and others between them. No length equals another one plus the
/// headers that links add. The first depends on the process, so that two processes at once differ.
/// Every link carries the longest.
const SHORTEST: u32 = 200;
const SHORTEST_OF: u32 = 100;
const STEP: u32 = 5;
/// How many bytes links add: none, the tag of a VLAN, the header of Ethernet, or both.
const HEADERS: [u32; 4] = [0, 4, 14, 18];

/// The headers of IP, and of a TCP packet that begins a connection as Linux sends it (linux
/// net/ipv4/tcp_output.c `tcp_syn_options`: 20 bytes of options), and of UDP.
const IPV4: u32 = 20;
const IPV6: u32 = 40;
const SYN: u32 = 40;
const UDP: u32 = 8;

/// The number of a question to a name server: we do not read its answer.
const QUESTION: u16 = 1;

/// The error of a probe that did not come to the other end.
const REFUSED: &str = "it was refused on its way";

/// A probe that is to be sent once more.
#[derive(Debug)]
struct FollowedProbe<'s> {
    /// The number of its question among all.
    number: usize,
    from: Place<'s>,
    netns: Option<Netns>,
    to: SocketAddr,
    packet: Packet,
    /// Its packets, and what translation may make of them.
    flows: Vec<Flow>,
    /// The containers that it may reach.
    owners: BTreeSet<&'s str>,
    length: u32,
    mark: String,
}

/// What traces the packet filter of a namespace.
#[derive(Debug)]
struct Judge<'s> {
    place: Place<'s>,
    trace: FlowTrace,
}

/// Follows probes that were not answered, and adds to their answers where they ended. If one is
/// answered this time, that is its answer.
pub(super) fn follow(scene: &Scene, all: &mut [(Question, Answer)]) {
    let probes = prepare_all(scene, all);
    if probes.is_empty() {
        return;
    }
    let trace = Trace::open(&lengths(&probes)).ok();
    let watch = trace.is_none().then(|| Watch::begin(scene, &probes));
    let mut judges = judges(scene, &probes);
    let listeners = listeners(&probes);
    let answers = send_all(&probes, trace.as_ref());
    let refusals: BTreeMap<Place<'_>, Vec<Refusal>> =
        listeners.into_iter().map(|(place, listener)| (place, listener.heard())).collect();
    let events = trace.as_ref().and_then(|trace| trace.read().ok()).unwrap_or_default();
    drop(trace);
    let counted = watch.map(|watch| watch.end(&probes, &answers));
    let heard: Vec<FilterTrace<'_>> = judges
        .iter_mut()
        .map(|judge| FilterTrace {
            place: judge.place,
            judged: judge.trace.heard().unwrap_or_default(),
        })
        .collect();
    drop(judges);
    let found: Vec<(usize, FollowOutcome)> = probes
        .iter()
        .zip(answers)
        .enumerate()
        .filter_map(|(place, (probe, answer))| {
            let (question, first) = all.get(probe.number)?;
            let answer =
                answer.or_else(|| Some(first.clone()).filter(|one| *one == Answer::Refused));
            if let Some(answer) = answer.as_ref().filter(|answer| **answer != Answer::Refused) {
                return Some((probe.number, FollowOutcome::Answer(answer.clone())));
            }
            let by_other = answer.as_ref().and_then(|answer| {
                let heard = refusals.get(&probe.from)?;
                refusers::answer_of(scene, heard, &question.asked, answer)
            });
            let mut hops = match &counted {
                Some(counted) => counted.hops(place, probe),
                None => chain::hops(scene, &probe.sent(), &events),
            };
            judged::add(&mut hops, scene, probe.from, &probe.flows, &heard);
            let found = match (answer, by_other) {
                (None, _) => FollowOutcome::Hops(hops),
                (Some(_), _) if refusers::is_named(first) => FollowOutcome::Hops(hops),
                (Some(_), Some(Answer::Unreachable { error, .. })) => {
                    FollowOutcome::Answer(Answer::Unreachable { error, hops })
                }
                (Some(_), _) if probe.is_refused_here(scene, &hops, counted.is_none()) => {
                    let error = REFUSED.to_owned();
                    FollowOutcome::Answer(Answer::Unreachable { error, hops })
                }
                (Some(refused), _) => FollowOutcome::Answer(refused),
            };
            Some((probe.number, found))
        })
        .collect();
    drop(probes);
    for (number, found) in found {
        let Some((_, answer)) = all.get_mut(number) else { continue };
        match found {
            FollowOutcome::Answer(found) => *answer = found,
            FollowOutcome::Hops(found) => {
                if let Answer::Silent { hops } | Answer::Unreachable { hops, .. } = answer {
                    *hops = found;
                }
            }
        }
    }
}

/// What came of following a probe.
#[derive(Debug)]
enum FollowOutcome {
    Answer(Answer),
    Hops(Vec<diagnose::Hop>),
}

/// Returns what is to be followed: some of each kind of question that was not answered, and then
/// some of those that were refused, perhaps on this node.
fn prepare_all<'s>(scene: &'s Scene, all: &[(Question, Answer)]) -> Vec<FollowedProbe<'s>> {
    let mut probes: Vec<FollowedProbe<'s>> = Vec::new();
    let mut taken: Vec<&Probe> = Vec::new();
    let of = |is_meant: fn(&Answer) -> bool| {
        all.iter().enumerate().filter(move |(_, (_, answer))| is_meant(answer))
    };
    for (number, (question, _)) in
        of(Answer::is_lost).chain(of(|answer| *answer == Answer::Refused))
    {
        if probes.len() == MOST {
            break;
        }
        let asked = &question.asked;
        if MOST_OF_ONE <= taken.iter().filter(|one| **one == asked).count() {
            continue;
        }
        let order = u16::try_from(probes.len()).unwrap_or(u16::MAX);
        if let Some(probe) = prepare(scene, question, number, order) {
            probes.push(probe);
            taken.push(asked);
        }
    }
    probes
}

/// Makes the socket that sends a probe. Some kinds are not followed, and a sender without a route
/// sends nothing.
fn prepare<'s>(
    scene: &'s Scene,
    question: &Question,
    number: usize,
    order: u16,
) -> Option<FollowedProbe<'s>> {
    let container = match &question.from {
        Some(id) => Some(scene.container(id)?),
        None => None,
    };
    let netns = match container {
        Some(container) => Some(Netns::open(Path::new(&container.netns)).ok()?),
        None => None,
    };
    let to = match &question.asked {
        Probe::Echo { to } => SocketAddr::new(*to, 0),
        Probe::Connect { to } => *to,
        Probe::RarePort { to } => SocketAddr::new(*to, Probe::RARE_PORT),
        Probe::Name { server } | Probe::NameByTcp { server } => SocketAddr::new(*server, dns::PORT),
        _ => return None,
    };
    let make = || sockets::packet(&question.asked, to, order);
    let (packet, flow) = match &netns {
        Some(netns) => within(netns, make).ok()??,
        None => make()?,
    };
    let ip = if to.is_ipv4() { IPV4 } else { IPV6 };
    let length = match &packet {
        Packet::Echo => SHORTEST + std::process::id() % SHORTEST_OF + STEP * u32::from(order),
        Packet::Connect(_) => ip + SYN,
        Packet::Name(_) => {
            let message = names::question(QUESTION).len();
            ip + UDP + u32::try_from(message).unwrap_or_default()
        }
    };
    let flows = flows::variants(scene, &flow);
    let owners = flows.iter().filter_map(|one| flows::owner(scene, one.destination)).collect();
    Some(FollowedProbe {
        number,
        from: container.map(|container| container.id.as_str()),
        netns,
        to,
        packet,
        flows,
        owners,
        length,
        mark: format!("netwright probe {order}"),
    })
}

/// Returns the lengths that links see of these probes.
fn lengths(probes: &[FollowedProbe<'_>]) -> Vec<RangeInclusive<u32>> {
    let lengths = probes
        .iter()
        .flat_map(|probe| HEADERS.iter().map(|header| probe.length.saturating_add(*header)));
    let all: BTreeSet<u32> = cni::order::gather(lengths);
    // Neighbours are one range, so that the kernel has less to compare.
    let mut ranges: Vec<RangeInclusive<u32>> = Vec::new();
    for length in all {
        match ranges.last_mut() {
            Some(last) if length - *last.end() <= STEP => *last = *last.start()..=length,
            _ => ranges.push(length..=length),
        }
    }
    ranges
}

/// Begins to trace the packet filters that may judge the probes: the sender's, the node's and those
/// of containers that are asked. Where there are no rules, nothing is made.
fn judges<'s>(scene: &'s Scene, probes: &[FollowedProbe<'s>]) -> Vec<Judge<'s>> {
    let name = format!("netwright-doctor-{}", std::process::id());
    let open = |place: Place<'s>| {
        let families = flows::families(chain::namespace(scene, place)?);
        if families.is_empty() {
            return None;
        }
        let seen = probes.iter().filter(|probe| probe.may_be_seen_at(place));
        let flows: Vec<Flow> = seen.flat_map(|probe| probe.flows.iter().copied()).collect();
        let open = || FlowTrace::open(&name, &families, &flows).ok();
        let trace = match place {
            None => open()?,
            Some(id) => {
                let netns = Netns::open(Path::new(&scene.container(id)?.netns)).ok()?;
                within(&netns, open).ok()??
            }
        };
        Some(Judge { place, trace })
    };
    places(probes).into_iter().filter_map(open).collect()
}

/// Begins to hear who refuses probes, in each namespace that sends some. Where that fails, who
/// refuses is not known.
fn listeners<'s>(probes: &[FollowedProbe<'s>]) -> BTreeMap<Place<'s>, RefusalListener> {
    let mut listeners = BTreeMap::new();
    for probe in probes {
        if listeners.contains_key(&probe.from) {
            continue;
        }
        let open = || RefusalListener::open().ok();
        let listener = match &probe.netns {
            Some(netns) => within(netns, open).ok().flatten(),
            None => open(),
        };
        listeners.extend(listener.map(|listener| (probe.from, listener)));
    }
    listeners
}

/// Returns the namespaces that the probes may pass.
fn places<'s>(probes: &[FollowedProbe<'s>]) -> BTreeSet<Place<'s>> {
    let mut places: BTreeSet<Place<'s>> = BTreeSet::from([None]);
    for probe in probes {
        places.insert(probe.from);
        places.extend(probe.owners.iter().copied().map(Some));
    }
    places
}

/// Orders what was seen by its place: from the sender by the node to the other container.
fn on_the_way<'t, T>(
    seen: &'t [T],
    from: Place<'_>,
    place: impl Fn(&T) -> Place<'_>,
) -> Vec<&'t T> {
    let mut ordered = Vec::new();
    for turn in [(false, false), (false, true), (true, false), (true, true)] {
        let of_turn = |one: &&T| (place(one) != from, place(one).is_some()) == turn;
        ordered.extend(seen.iter().filter(of_turn));
    }
    ordered
}

/// Sends all probes, each in a thread of its own, and waits for them together; returns the answers
/// of those that are answered now.
fn send_all(probes: &[FollowedProbe<'_>], trace: Option<&Trace>) -> Vec<Option<Answer>> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for probe in probes {
            if !threads.is_empty() {
                std::thread::sleep(BETWEEN);
            }
            threads.push(scope.spawn(move || probe.send(trace)));
        }
        threads.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    })
}

impl FollowedProbe<'_> {
    fn send(&self, trace: Option<&Trace>) -> Option<Answer> {
        if let Some(trace) = trace {
            trace.mark(&self.mark);
        }
        match &self.packet {
            Packet::Echo => match &self.netns {
                Some(netns) => within(netns, || self.send_echo()).ok()?,
                None => self.send_echo(),
            },
            Packet::Connect(socket) => sockets::connect(socket, self.to),
            Packet::Name(socket) => {
                let _ = socket.send(&names::question(QUESTION));
                // The first try judges its answer, if there is one.
                let _ = socket.set_read_timeout(Some(TIMEOUT));
                let _ = socket.recv(&mut [0; 1]);
                None
            }
        }
    }

    fn send_echo(&self) -> Option<Answer> {
        let question = echo::Question { size: self.length, ..echo::Question::small(self.to.ip()) };
        let identifier = self.flows.first()?.source_port;
        match echo::ask_all_as(identifier, &[question], TIMEOUT).ok()?.first()? {
            Echo::Answered(took) => Some(Answer::Reached { after_us: micros(*took) }),
            _ => None,
        }
    }

    /// Says whether a refusal came from elsewhere than the other end: from a rule, or from a
    /// namespace to which something else has led the packet. Where packets were only counted
    /// (`is_traced` is false), less shows it.
    fn is_refused_here(&self, scene: &Scene, hops: &[diagnose::Hop], is_traced: bool) -> bool {
        let there = || hops.iter().filter(|hop| !hop.back);
        if there().any(|hop| hop.dropped.is_some() && hop.rule.is_some()) {
            return true;
        }
        if !is_traced {
            // No link but loopback has sent it.
            let stays = |hop: &diagnose::Hop| {
                hop.container.as_deref() == self.from
                    && hop.link.as_deref().is_none_or(|link| link == "lo")
            };
            let is_own = self.from.is_none_or(|id| self.owners.contains(id));
            return !is_own && there().next().is_some() && there().all(stays);
        }
        let Some(hop) = there().find(|hop| hop.dropped.is_some()) else { return false };
        let to = self.to.ip();
        let is_end = match &hop.container {
            Some(id) => self.owners.contains(id.as_str()),
            None => {
                to.is_loopback() || scene.host.owner_of(to).is_some_and(|link| link.name != "lo")
            }
        };
        !is_end
    }

    /// Says whether its packets may pass a namespace: the node's, or that of either end.
    fn may_be_seen_at(&self, place: Place<'_>) -> bool {
        place.is_none_or(|id| self.from == Some(id) || self.owners.contains(id))
    }

    fn sent(&self) -> SentPacket<'_> {
        let answer = match self.packet {
            // What answers has the same options.
            Packet::Echo | Packet::Connect(_) => Some(self.length),
            Packet::Name(_) => None,
        };
        SentPacket {
            from: self.from,
            mark: &self.mark,
            to: self.to.ip(),
            length: self.length,
            answer,
        }
    }
}

#[cfg(test)]
mod tests;
