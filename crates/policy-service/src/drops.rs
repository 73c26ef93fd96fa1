//! What the packet filter dropped, and why.
//!
//! A thread reads the packet filter's log, turns addresses into names by the world at that time,
//! and keeps the last drops for `netwright policy`. The packet filter counts every dropped packet,
//! but logs only a limited number in a second. So the list may have fewer packets than were
//! dropped, and it says how many are missing.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

use firewall::pods::DroppedPackets;
use kernel::nflog::{LogBatch, LoggedPacket, NflogSocket};
use kernel::route::RouteSocket;
use policy::networks::Attachment;
use policy::program::Link;
use policy::{Direction, Protocol, Traffic, World, explain};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use service_kit::health::Health;

use super::inside;
use super::log::{self, Counters, DropCounts};
use super::shared::SharedEngine;

/// The version of what is answered.
const VERSION: u32 = 1;
/// How many drops are kept: 40 seconds of the most that is logged by default.
const MOST_KEPT: usize = 4096;
/// How many explanations are kept, for packets that are sent again.
const MOST_EXPLAINED: usize = 1024;

/// The name of the log in the service's status.
pub(super) const NEED: &str = "the packet filter's log";

/// TCP's flags (RFC 9293 §3.1).
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A dropped packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DroppedPacket {
    /// Which one it is since the service started, from 1.
    pub(crate) number: u64,
    /// When, in milliseconds since 1970.
    pub(crate) time: u64,
    /// `ingress` into the pod, or `egress` out of it.
    pub(crate) direction: String,
    /// The pod at which it was dropped, or its address.
    pub(crate) pod: String,
    pub(crate) pod_address: IpAddr,
    /// The further network that it was on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<String>,
    /// The other end: a pod, a node or an address.
    pub(crate) peer: String,
    pub(crate) peer_address: IpAddr,
    /// Such as `TCP`.
    pub(crate) protocol: String,
    /// The destination's port, if the protocol has ports.
    pub(crate) port: Option<u16>,
    /// The policies that were asked, in their order.
    pub(crate) policies: Vec<String>,
    /// Why it was dropped, in a sentence.
    pub(crate) cause: String,
}

/// The drops after a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Page {
    pub(crate) version: u32,
    pub(crate) drops: Vec<DroppedPacket>,
    /// The number to ask for next.
    pub(crate) next: u64,
    /// How many were asked for and are no longer kept.
    pub(crate) gone: u64,
    /// All that were dropped since the table was made, if it can be read.
    pub(crate) counted: Option<DropCounts>,
    /// All that were dropped since the service began to listen.
    pub(crate) since_start: Option<DropCounts>,
    /// Those of them that are in the list, or were.
    pub(crate) listed: u64,
    /// Those of them that were logged and could not be read in time.
    pub(crate) overrun: u64,
    /// Why the service does not listen to the log.
    pub(crate) fault: Option<String>,
    /// What was dropped in containers' own network namespaces, of which nothing is listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) inside: Vec<InsideDrops>,
}

/// What was dropped in the network namespace of a container, on networks that do not pass the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InsideDrops {
    /// The pod, or the container.
    pub(crate) pod: String,
    /// Since its table was made.
    pub(crate) counted: DropCounts,
}

/// Reads the counters in containers' namespaces, of those that have dropped something.
pub(super) fn in_containers(shared: &SharedEngine) -> Vec<InsideDrops> {
    let containers = shared.engine().containers();
    let read = containers.iter().filter_map(|container| {
        let DroppedPackets { incoming, outgoing, revived } = inside::dropped(container)?;
        let counted = DropCounts { ingress: incoming, egress: outgoing, reset: revived };
        let is_some = counted != DropCounts::default();
        is_some.then(|| InsideDrops { pod: cni::text::one_line(&container.name), counted })
    });
    read.collect()
}

/// The drops, for the thread that reads the log and for the thread that answers questions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Drops {
    kept: Arc<Mutex<DropLog>>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct DropLog {
    ring: VecDeque<DroppedPacket>,
    listed: u64,
    overrun: u64,
    /// The counters when the service began to listen.
    base: Option<DropCounts>,
    fault: Option<String>,
    explained: Explanations,
}

/// What was found about flows; it holds while the world is unchanged.
#[derive(Debug, Default)]
struct Explanations {
    network: Option<String>,
    changes: u64,
    of: BTreeMap<Flow, FlowVerdict>,
}

/// A direction, source and destination, and what is sent.
type Flow = (Direction, IpAddr, IpAddr, Traffic);

/// The policies that were asked, and why they deny it, if they do.
type FlowVerdict = (Vec<String>, Option<String>);

impl Drops {
    /// Listens to a group of the packet filter's log, in a thread of its own, for as long as the
    /// process lives. If that is impossible, the service goes on without it, and its status says
    /// so.
    pub(super) fn start(
        group: u16,
        shared: SharedEngine,
        health: Health,
        counters: Counters,
    ) -> Self {
        let drops = Drops { counters, ..Drops::default() };
        let fail = |why: String| {
            health.needs(NEED, Err(why.clone()));
            drops.kept().fault = Some(why);
        };
        let socket = match log::listen(group) {
            Ok(socket) => socket,
            Err(why) => {
                fail(why);
                return drops;
            }
        };
        // Without a table nothing has been dropped yet.
        drops.kept().base = Some(drops.counted().unwrap_or_default());
        health.needs(NEED, Ok(()));
        let (kept, told) = (drops.clone(), health.clone());
        let thread = std::thread::Builder::new().name("drops".to_owned());
        let started = thread.spawn(move || {
            let why = listen(socket, &shared, &kept);
            told.needs(NEED, Err(why.clone()));
            kept.kept().fault = Some(why);
        });
        if let Err(error) = started {
            fail(format!("start a thread: {error}"));
        }
        drops
    }

    fn kept(&self) -> MutexGuard<'_, DropLog> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the packet filter's counters.
    pub(super) fn counted(&self) -> Option<DropCounts> {
        self.counters.counted()
    }

    /// Takes what was heard, at this time in milliseconds since 1970. `is_closed` says of an
    /// address that its pod is not known yet.
    pub(crate) fn take(
        &self,
        heard: LogBatch,
        now: u64,
        world: &World,
        is_closed: impl Fn(IpAddr) -> bool,
    ) {
        self.take_on(None, heard, now, world, is_closed);
    }

    /// The same on a further network.
    fn take_on(
        &self,
        network: Option<&str>,
        heard: LogBatch,
        now: u64,
        world: &World,
        is_closed: impl Fn(IpAddr) -> bool,
    ) {
        let mut kept = self.kept();
        kept.explained.on(network);
        kept.overrun = kept.overrun.saturating_add(heard.lost);
        for logged in heard.packets {
            let Some(mut packet) = read(&logged, now, world, &is_closed, &mut kept.explained)
            else {
                kept.overrun = kept.overrun.saturating_add(1);
                continue;
            };
            kept.listed += 1;
            packet.number = kept.listed;
            packet.network = network.map(cni::text::one_line);
            if kept.ring.len() == MOST_KEPT {
                kept.ring.pop_front();
            }
            kept.ring.push_back(packet);
        }
    }

    /// Returns the drops after a number. `counted` are the packet filter's counters.
    pub(crate) fn after(&self, number: u64, counted: Option<DropCounts>) -> Page {
        let mut kept = self.kept();
        // A client that asks for a later number than there is got it from an earlier process of the
        // service.
        let number = if kept.listed < number { 0 } else { number };
        let first = kept.ring.front().map_or(kept.listed, |packet| packet.number - 1);
        let drops = kept.ring.iter().filter(|packet| number < packet.number).cloned().collect();
        let since_start = counted.zip(kept.base).map(|(now, base)| {
            now.since(base).unwrap_or_else(|| {
                // The table was made anew, and its counters began at 0.
                kept.base = Some(DropCounts::default());
                now
            })
        });
        Page {
            version: VERSION,
            drops,
            next: kept.listed,
            gone: first.saturating_sub(number),
            counted,
            since_start,
            listed: kept.listed,
            overrun: kept.overrun,
            fault: kept.fault.clone(),
            inside: Vec::new(),
        }
    }
}

/// Takes what is logged until that is impossible; returns why.
fn listen(mut socket: NflogSocket, shared: &SharedEngine, drops: &Drops) -> String {
    loop {
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return format!("wait for the packet filter's log: {errno}"),
        }
        let heard = match socket.heard() {
            Ok(heard) => heard,
            Err(error) => return cni::Error::from_chain(0, &error).msg,
        };
        let now = service_kit::clock::wall_ms();
        let seen = seen_at(shared, &heard);
        let lost = LogBatch { lost: heard.lost, overrun: heard.overrun, ..LogBatch::default() };
        drops.take(lost, now, shared.engine().world(), |_| false);
        let one = |logged: LoggedPacket| LogBatch { packets: vec![logged], ..LogBatch::default() };
        // Finding out why a packet was dropped may take a while, so the engine is taken anew for
        // each packet.
        let mut own = Vec::new();
        for (logged, link) in heard.packets.into_iter().zip(seen) {
            let engine = shared.engine();
            let networks = engine.networks();
            let on = link.and_then(|link| {
                let network = networks.network_at(&link.interface, link.address)?;
                Some((link, network, networks.world(network)?))
            });
            let Some((link, network, world)) = on else {
                own.push(logged);
                continue;
            };
            drops.take_on(Some(network), one(logged), now, world, |_| engine.is_closed_link(&link));
        }
        for logged in own {
            let engine = shared.engine();
            drops.take(one(logged), now, engine.world(), |address| {
                let is_unknown =
                    |one: &Attachment| one.network.is_none() && one.addresses.contains(&address);
                engine.is_closed(address) || engine.networks().attachments().any(is_unknown)
            });
        }
    }
}

/// Returns where each packet was seen, at the end of the pod, if there are further networks here.
fn seen_at(shared: &SharedEngine, heard: &LogBatch) -> Vec<Option<Link>> {
    if shared.engine().networks().attachments().next().is_none() {
        return vec![None; heard.packets.len()];
    }
    let mut socket = RouteSocket::open().ok();
    let seen = |logged: &LoggedPacket| -> Option<Link> {
        let packet = logged.packet()?;
        let (ifindex, address) = match direction_of(logged)? {
            Direction::Ingress => (logged.ifindex_out?, packet.destination),
            Direction::Egress => (logged.ifindex_in?, packet.source),
        };
        let link = socket.as_mut()?.link_by_index(ifindex).ok()??;
        Some(Link { interface: link.name, address })
    };
    heard.packets.iter().map(seen).collect()
}

/// Returns where a packet was dropped; `None` if another program's rule logged it.
fn direction_of(logged: &LoggedPacket) -> Option<Direction> {
    match logged.prefix.trim_end() {
        "nwt-in" => Some(Direction::Ingress),
        "nwt-out" => Some(Direction::Egress),
        _ => None,
    }
}

/// Turns a logged packet into names.
fn read(
    logged: &LoggedPacket,
    now: u64,
    world: &World,
    is_closed: &impl Fn(IpAddr) -> bool,
    explained: &mut Explanations,
) -> Option<DroppedPacket> {
    let direction = direction_of(logged)?;
    let packet = logged.packet()?;
    let protocol = Protocol::of(packet.protocol);
    let port = packet.ports.map(|(_, port)| port);
    let traffic = Traffic { protocol, port };
    let (source, destination) = (packet.source, packet.destination);
    let (pod, peer) = match direction {
        Direction::Ingress => (destination, source),
        Direction::Egress => (source, destination),
    };
    let (policies, cause) = explained.find(world, direction, (source, destination), traffic);
    let flags = packet.tcp_flags.unwrap_or(SYN);
    let in_the_middle = flags & SYN == 0 || flags & ACK != 0;
    // A pod of another node may have had the address before, and its policies allow the packet.
    let is_unknown = is_closed(pod) && (cause.is_none() || world.claimants(pod).is_empty());
    let cause = match cause {
        _ if is_unknown => format!(
            "no pod of this node with {pod} is known yet: it is closed to all but its node until \
             the API server names one"
        ),
        Some(cause) if in_the_middle => {
            format!("a packet in the middle of a connection that is not allowed now: {cause}")
        }
        Some(cause) => cause,
        None if packet.is_fragment => {
            "a later part of a fragmented packet, which has no port".to_owned()
        }
        None if in_the_middle => "a packet in the middle of a connection that this node does not \
                                  know, or has cut: a new connection is allowed"
            .to_owned(),
        None => "it is allowed now: a policy, a label or a pod has changed since".to_owned(),
    };
    let arrived = logged.time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let arrived = arrived.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    Some(DroppedPacket {
        number: 0,
        time: arrived.unwrap_or(now),
        direction: direction.to_string(),
        pod: name(world, pod),
        pod_address: pod,
        network: None,
        peer: name(world, peer),
        peer_address: peer,
        protocol: protocol.to_string(),
        port,
        policies,
        cause,
    })
}

impl Explanations {
    /// Takes the network that the following questions are about.
    fn on(&mut self, network: Option<&str>) {
        if self.network.as_deref() != network {
            self.network = network.map(str::to_owned);
            self.of.clear();
        }
    }

    /// Returns the policies that were asked, and why they deny it, if they do.
    fn find(
        &mut self,
        world: &World,
        direction: Direction,
        (source, destination): (IpAddr, IpAddr),
        traffic: Traffic,
    ) -> FlowVerdict {
        if self.changes != world.changes() || MOST_EXPLAINED <= self.of.len() {
            self.of.clear();
            self.changes = world.changes();
        }
        let key = (direction, source, destination, traffic);
        let found = self.of.entry(key).or_insert_with(|| {
            let (asked, cause) = explain::dropped(world, source, destination, traffic, direction);
            (asked.iter().map(cni::text::one_line).collect(), cause)
        });
        found.clone()
    }
}

/// Names an address: a pod, a node, or the address itself.
fn name(world: &World, address: IpAddr) -> String {
    let pods: Vec<String> = world.claimants(address).iter().map(|pod| pod.full_name()).collect();
    let name = match pods.is_empty() {
        false => pods.join(" or "),
        true => match world.nodes_at(address).next() {
            Some(node) => format!("node {}", node.name),
            None => address.to_string(),
        },
    };
    cni::text::one_line(name)
}

#[cfg(test)]
mod tests {
    use super::super::{objects, of_files};
    use super::*;
    use expect_test::expect;
    use firewall::pods::{Logging, PodsTable};
    use service_kit::health::Manager;
    use service_kit::process::LONG;
    use testkit::Place as _;

    const NOW: u64 = 1_700_000_000_123;

    fn world() -> World {
        let text = r#"
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: one}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {nodeName: one}, status: {podIP: 10.0.0.2}}
---
{apiVersion: v1, kind: Node, metadata: {name: two}, status: {addresses: [{address: 192.0.2.1}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 5432}]}]}}
"#;
        let read = objects::read_stream("a.yaml", text.as_bytes());
        of_files::world(vec![read], None).unwrap().world
    }

    /// A logged packet of TCP, as its bytes.
    fn logged(prefix: &str, ends: (&str, &str), port: u16, flags: u8) -> LoggedPacket {
        let octets = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().octets();
        let mut bytes = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
        bytes.extend(octets(ends.0));
        bytes.extend(octets(ends.1));
        bytes.extend(40_000_u16.to_be_bytes());
        bytes.extend(port.to_be_bytes());
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        let mut logged = LoggedPacket::default();
        (logged.prefix, logged.payload) = (prefix.to_owned(), bytes);
        logged
    }

    fn heard(packets: Vec<LoggedPacket>, lost: u64) -> LogBatch {
        LogBatch { packets, lost, ..LogBatch::default() }
    }

    #[test]
    fn packets_get_names_and_a_cause() {
        let drops = Drops::default();
        let web_to_db = ("10.0.0.1", "10.0.0.2");
        let packets = vec![
            logged("nwt-in ", web_to_db, 80, SYN),
            logged("nwt-in ", ("192.0.2.1", "10.0.0.2"), 5432, SYN),
            logged("nwt-in ", ("198.51.100.1", "10.0.0.2"), 5432, ACK),
            logged("nwt-in ", web_to_db, 5432, SYN),
            logged("nwt-in ", web_to_db, 5432, ACK),
            logged("nwt-out ", ("10.0.0.9", "10.0.0.1"), 80, SYN),
            // Its address is another one's here by now.
            logged("nwt-out ", ("10.0.0.1", "198.51.100.1"), 80, SYN),
            // Nothing of ours.
            logged("other", web_to_db, 80, SYN),
        ];
        let closed: [IpAddr; 2] = ["10.0.0.9", "10.0.0.1"].map(|text| text.parse().unwrap());
        drops.take(heard(packets, 0), NOW, &world(), |address| closed.contains(&address));
        let page = drops.after(0, None);
        let lines: String = page
            .drops
            .iter()
            .map(|one| {
                format!(
                    "{} {} {} {} {:?} {:?}\n  {}\n",
                    one.number, one.direction, one.pod, one.peer, one.port, one.policies, one.cause
                )
            })
            .collect();
        expect![[r#"
            1 ingress shop/db shop/web Some(80) ["NetworkPolicy shop/db"]
              NetworkPolicy shop/db, spec.ingress[0] allows TCP port 5432 from pods with app=web of namespace shop: this is port 80, and a policy sees the pod's port, not a Service's
            2 ingress shop/db node two Some(5432) ["NetworkPolicy shop/db"]
              NetworkPolicy shop/db, spec.ingress[0] allows TCP port 5432 from pods with app=web of namespace shop: node two is not a pod
            3 ingress shop/db 198.51.100.1 Some(5432) ["NetworkPolicy shop/db"]
              a packet in the middle of a connection that is not allowed now: NetworkPolicy shop/db, spec.ingress[0] allows TCP port 5432 from pods with app=web of namespace shop: 198.51.100.1 is not a pod
            4 ingress shop/db shop/web Some(5432) ["NetworkPolicy shop/db"]
              it is allowed now: a policy, a label or a pod has changed since
            5 ingress shop/db shop/web Some(5432) ["NetworkPolicy shop/db"]
              a packet in the middle of a connection that this node does not know, or has cut: a new connection is allowed
            6 egress 10.0.0.9 shop/web Some(80) []
              no pod of this node with 10.0.0.9 is known yet: it is closed to all but its node until the API server names one
            7 egress shop/web 198.51.100.1 Some(80) []
              no pod of this node with 10.0.0.1 is known yet: it is closed to all but its node until the API server names one
        "#]].assert_eq(&lines);
        assert_eq!((page.listed, page.overrun, page.next), (7, 1, 7));
        assert_eq!(page.drops[0].time, NOW);
    }

    #[test]
    fn what_is_asked_again_goes_on_where_it_was() {
        let (drops, world) = (Drops::default(), world());
        let one = || logged("nwt-in ", ("10.0.0.1", "10.0.0.2"), 80, SYN);
        let take = |count: usize| {
            drops.take(heard(vec![one(); count], 2), NOW, &world, |_| false);
        };
        take(3);
        assert_eq!(drops.after(0, None).drops.len(), 3);
        assert_eq!(drops.after(2, None).drops[0].number, 3);
        assert_eq!(drops.after(3, None).drops, []);
        // An earlier process of the service had more.
        assert_eq!(drops.after(70, None).drops.len(), 3);
        take(MOST_KEPT);
        let page = drops.after(1, None);
        assert_eq!((page.drops.len(), page.gone, page.overrun), (MOST_KEPT, 2, 4));
        assert_eq!(page.drops[0].number, 4);
        assert_eq!(drops.after(page.next, None).gone, 0);
    }

    #[test]
    fn counters_count_from_the_start_and_survive_another_table() {
        let drops = Drops::default();
        let counted =
            |ingress, egress| Some(DropCounts { ingress, egress, ..DropCounts::default() });
        assert_eq!(drops.after(0, counted(5, 5)).since_start, None);
        drops.kept().base = counted(5, 5);
        assert_eq!(drops.after(0, counted(9, 5)).since_start, counted(4, 0));
        assert_eq!(drops.after(0, counted(2, 1)).since_start, counted(2, 1));
        assert_eq!(drops.after(0, None).since_start, None);
    }

    #[test]
    fn what_was_explained_holds_until_the_world_changes() {
        let mut world = world();
        let mut explained = Explanations::default();
        let ends = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let traffic = Traffic::to(Protocol::Tcp, 80);
        let mut ask = |world: &World| {
            let (_, cause) = explained.find(world, Direction::Ingress, ends, traffic);
            cause
        };
        assert!(ask(&world).is_some());
        let policy = world.policies().next().unwrap().id.clone();
        world.change(policy::Change::Policy(policy, None));
        assert_eq!(ask(&world), None);
    }

    const SETUP: &str = "
        echo 1 >/proc/sys/net/ipv4/ip_forward
        for pod in web:1 db:2; do
            name=${pod%:*}; number=${pod#*:}
            ip link add v$number type veth peer name eth0 netns $name
            ip link set v$number up
            ip addr add 10.0.0.254/32 dev v$number
            ip route add 10.0.0.$number dev v$number
            ip -n $name link set eth0 up
            ip -n $name addr add 10.0.0.$number/32 dev eth0
            ip -n $name route add 10.0.0.254 dev eth0
            ip -n $name route add default via 10.0.0.254
        done";

    #[test]
    fn every_dropped_packet_is_counted_and_some_are_listed() {
        testkit::require!("root");
        const SENT: u64 = 500;
        let lab = testkit::Lab::new("policy-drops");
        let web = lab.container("web");
        let _db = lab.container("db");
        lab.sh(SETUP);
        web.sh("ping -c 1 -W 10 10.0.0.254 >/dev/null");
        let shared = SharedEngine::knowing(world());
        // Few are logged, however long it takes to send them.
        let logging = Logging { rate: 1, ..Logging::default() };
        let drops = lab.enter(|| {
            let mut table = PodsTable::open(logging).unwrap();
            table.put(&policy::compile(world(), "one")).unwrap();
            let health = Health::new("policy", Manager::default(), LONG);
            Drops::start(logging.group, shared.clone(), health, Counters::default())
        });
        web.enter(|| {
            let socket = std::net::UdpSocket::bind("10.0.0.1:0").unwrap();
            for _ in 0..SENT {
                socket.send_to(b"x", "10.0.0.2:53").unwrap();
            }
        });
        // The socket is still the one of the lab: another one would be outside of it.
        let page = || drops.after(0, drops.counted());
        testkit::wait_until("all are counted, and some are listed", || {
            let page = page();
            page.since_start.is_some_and(|counted| counted.ingress == SENT) && page.listed > 0
        });
        let page = page();
        assert_eq!(page.since_start, Some(DropCounts { ingress: SENT, ..DropCounts::default() }));
        assert!(page.listed < SENT, "{} are listed", page.listed);
        assert_eq!((page.overrun, page.gone, page.fault), (0, 0, None));
        let first = &page.drops[0];
        assert_eq!((first.pod.as_str(), first.peer.as_str()), ("shop/db", "shop/web"));
        assert_eq!((first.protocol.as_str(), first.port), ("UDP", Some(53)));
        assert!(first.cause.ends_with(": this is UDP"), "{}", first.cause);
        // Another process cannot listen beside it, and goes on without.
        let second = lab.enter(|| {
            let health = Health::new("policy", Manager::default(), LONG);
            Drops::start(logging.group, shared, health, Counters::default())
        });
        let fault = second.after(0, None).fault.unwrap();
        assert!(fault.contains("listen to group 20055 of nflog"), "{fault}");
    }
}
