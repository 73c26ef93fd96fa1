//! A node that forwards for six pods and the outside. Tests replace its table, and nothing else
//! changes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use firewall::pods::{DroppedPackets, Logging, PodsTable, log_prefix};
use kernel::conntrack::{ConntrackSocket, FlowFilter};
use kernel::nflog::{self, NflogSocket};
use kernel::route::IpFamily;
use netwright_firewall as firewall;
use policy::{Direction, PerDirection, Protocol, Traffic};
use testkit::probe::{self, Ends, Station};
use testkit::{Container, Lab, Place};

use super::clusters::{PODS, of_pod};

/// How long a packet may be on its way on a busy machine.
const DEADLINE: Duration = testkit::TIMEOUT;
/// TCP's flags (RFC 9293 §3.1).
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

/// The node's own addresses.
pub(super) const OWN: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// | | addresses |
/// |---|---|
/// | node, the lab's host | 192.0.2.1, 2001:db8::1 |
/// | pods 1 to 6 | 10.244.1.N, fd00:244:1::N |
/// | outside | everything else |
///
/// Each pod is at the end of a cable of its own, and the node has a route to each of its addresses,
/// as with `ptp`. Neighbours are known from the beginning, so that no packet waits for one.
pub(super) struct PodLab {
    pub(super) lab: Lab,
    pub(super) pods: Vec<Container>,
    _outside: Container,
    pub(super) table: PodsTable,
    pub(super) log: NflogSocket,
    pub(super) conntrack: ConntrackSocket,
    stations: Vec<Station>,
    next_id: u16,
    /// How many drops were reported.
    pub(super) logged: PerDirection<u64>,
}

/// A place, as the number of its station.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Site {
    Node,
    Outside,
    Pod(u8),
}

/// The first packet of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) traffic: Traffic,
}

/// The fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fate {
    /// The place where the packet was dropped.
    pub(super) denied: Option<Direction>,
    /// Whether the packet arrived at its destination.
    pub(super) arrived: bool,
    /// Whether an answer came back.
    pub(super) answered: bool,
}

impl PodLab {
    pub(super) fn new(name: &str) -> Self {
        Self::with(name, Logging { group: Logging::GROUP, rate: 0 })
    }

    pub(super) fn with(name: &str, logging: Logging) -> Self {
        let lab = Lab::new(name);
        let outside = lab.container("outside");
        let pods: Vec<Container> =
            (1..=PODS).map(|number| lab.container(&format!("pod{number}"))).collect();
        lab.sh(
            "echo 1 > /proc/sys/net/ipv4/ip_forward && echo 1 > /proc/sys/net/ipv6/conf/all/forwarding",
        );
        let mut cables = cable("up0", "outside", 100);
        cables += "addr add 192.0.2.1/32 dev up0\naddr add 2001:db8::1/128 dev up0 nodad\n";
        cables += &routes("up0", "default", "default", 100);
        for number in 1..=PODS {
            let [v4, v6] = of_pod(number);
            cables += &cable(&format!("v{number}"), &format!("pod{number}"), number);
            cables += &routes(&format!("v{number}"), &v4.to_string(), &v6.to_string(), number);
        }
        batch(&lab, &cables);
        // Everything is local there.
        let mut beyond = String::new();
        for (there, gateway) in [
            ("10.244.1.0/24", "169.254.1.1"),
            ("192.0.2.1", "169.254.1.1"),
            ("fd00:244:1::/48", "fe80::ffff"),
            ("2001:db8::1", "fe80::ffff"),
        ] {
            beyond += &format!("route add {there} via {gateway} dev eth0 onlink\n");
        }
        // After this no route by a gateway can be added, because every address is local.
        for half in ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"] {
            beyond += &format!("route add local {half} dev lo table main\n");
        }
        batch(&outside, &(end(100) + &beyond));
        for (number, pod) in (1..=PODS).zip(&pods) {
            let [v4, v6] = of_pod(number);
            let addresses =
                format!("addr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\n");
            batch(pod, &(end(number) + &addresses));
        }
        let mut stations = vec![Station::at(&lab), Station::at(&outside)];
        stations.extend(pods.iter().map(Station::at));
        let settings = nflog::Settings {
            queue: 32 << 20,
            delay: Duration::ZERO,
            ..nflog::Settings::default()
        };
        let (table, log, conntrack) = lab.enter(|| {
            (
                PodsTable::open(logging).unwrap(),
                NflogSocket::open(logging.group, &settings).unwrap(),
                ConntrackSocket::open().unwrap(),
            )
        });
        PodLab {
            lab,
            pods,
            _outside: outside,
            table,
            log,
            conntrack,
            stations,
            next_id: 1024,
            logged: PerDirection::default(),
        }
    }

    pub(super) fn station(&self, at: Site) -> &Station {
        &self.stations[match at {
            Site::Node => 0,
            Site::Outside => 1,
            Site::Pod(number) => usize::from(number) + 1,
        }]
    }

    /// Takes a packet number that nothing still remembers.
    pub(super) fn id(&mut self) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        if self.next_id < 1024 {
            self.next_id = 1024;
            self.forget_flows();
        }
        self.next_id
    }

    pub(super) fn forget_flows(&mut self) {
        for family in [IpFamily::V4, IpFamily::V6] {
            self.conntrack.delete_flows(&FlowFilter::all(family)).unwrap();
        }
    }

    /// Waits until as many drops were reported as were counted since `before`.
    pub(super) fn hear_all(&mut self, before: DroppedPackets) {
        testkit::wait_until("every drop is heard of", || {
            self.hear(&[], &BTreeMap::new(), &mut []);
            let now = self.table.dropped().unwrap();
            let counted = (now.incoming - before.incoming, now.outgoing - before.outgoing);
            counted == (self.logged.ingress, self.logged.egress)
        });
    }

    /// Sends packets and follows each of them to the place where it arrives or is dropped.
    pub(super) fn try_all(&mut self, probes: &[Probe]) -> Vec<Fate> {
        let mut fates = Vec::new();
        for some in probes.chunks(256) {
            fates.extend(self.try_some(some));
        }
        fates
    }

    fn try_some(&mut self, probes: &[Probe]) -> Vec<Fate> {
        let mut fates = vec![Fate::default(); probes.len()];
        let mut numbers = BTreeMap::new();
        for (number, probe) in probes.iter().enumerate() {
            let id = self.id();
            numbers.insert(id, number);
            self.station(place_of(probe.source)).send(&probe.packet(id));
        }
        let deadline = Instant::now() + DEADLINE;
        loop {
            self.hear(probes, &numbers, &mut fates);
            let open = probes.iter().zip(&fates).find(|(probe, fate)| !fate.is_known(probe));
            let Some((probe, fate)) = open else { break };
            let left = deadline.saturating_duration_since(Instant::now());
            let mut waiting: Vec<BorrowedFd<'_>> = vec![self.log.as_fd()];
            waiting.extend(self.stations.iter().flat_map(Station::descriptors));
            assert!(
                probe::wait(&waiting, left),
                "{probe:?} was neither dropped nor heard: {fate:?}"
            );
        }
        fates
    }

    fn hear(&mut self, probes: &[Probe], numbers: &BTreeMap<u16, usize>, fates: &mut [Fate]) {
        let heard = self.log.heard().unwrap();
        assert_eq!((heard.lost, heard.overrun), (0, false), "the test hears everything");
        for logged in heard.packets {
            let is = |direction: &Direction| log_prefix(*direction) == logged.prefix;
            let direction = Direction::ALL.into_iter().find(is).expect("it is a prefix of ours");
            match direction {
                Direction::Ingress => self.logged.ingress += 1,
                Direction::Egress => self.logged.egress += 1,
            }
            let Some((id, source, destination, _)) = identity(&logged.payload) else { continue };
            let Some(number) = numbers.get(&id) else { continue };
            let probe = &probes[*number];
            if (source, destination) == (probe.source, probe.destination) {
                fates[*number].denied = Some(direction);
            }
        }
        for (at, station) in self.stations.iter().enumerate() {
            station.heard(|bytes| {
                let Some((id, source, destination, answers)) = identity(bytes) else { return };
                let Some(number) = numbers.get(&id) else { return };
                let (probe, fate) = (&probes[*number], &mut fates[*number]);
                let is = |address| usize::from(number_of(place_of(address))) == at;
                if !answers && (source, destination) == (probe.source, probe.destination) {
                    // The node's own station receives packets before any rule sees them.
                    fate.arrived |= is(destination) && place_of(destination) != Site::Node;
                } else if answers && (destination, source) == (probe.source, probe.destination) {
                    fate.answered |= is(destination);
                }
            });
        }
    }
}

impl Fate {
    /// Whether no more packets are expected.
    fn is_known(self, probe: &Probe) -> bool {
        let to_node = place_of(probe.destination) == Site::Node;
        let passed = (self.arrived || to_node) && (self.answered || !probe.is_answered());
        passed || self.denied.is_some()
    }
}

impl Probe {
    /// Whether the receiver answers.
    pub(super) fn is_answered(&self) -> bool {
        match self.traffic.protocol {
            Protocol::Tcp | Protocol::Other(1) => true,
            Protocol::Other(58) => self.source.is_ipv6(),
            _ => false,
        }
    }

    pub(super) fn packet(&self, id: u16) -> probe::Packet {
        let ends = Ends { source: self.source, destination: self.destination };
        let port = self.traffic.port.unwrap_or_default();
        match self.traffic.protocol {
            Protocol::Tcp => ends.tcp(id, port, SYN),
            Protocol::Udp => ends.udp(id, port),
            Protocol::Sctp => ends.sctp(id, port),
            Protocol::Other(58) if self.source.is_ipv4() => ends.icmp6(135, id),
            Protocol::Other(1 | 58) => ends.echo(id),
            Protocol::NeighbourDiscovery => ends.icmp6(136, id),
            Protocol::Other(other) => panic!("no probe of protocol {other}"),
        }
    }
}

/// What the packet filter sees of such traffic here. The node routes, and a routed packet is not
/// neighbour discovery.
pub(super) fn routed(traffic: Traffic) -> Traffic {
    match traffic.protocol {
        Protocol::NeighbourDiscovery => Traffic::of(Protocol::Other(58)),
        _ => traffic,
    }
}

/// The number of a packet, its ends, and whether it is an answer, for our packets and for answers
/// to them.
fn identity(bytes: &[u8]) -> Option<(u16, IpAddr, IpAddr, bool)> {
    let packet = nflog::Packet::read(bytes)?;
    let length = if packet.source.is_ipv4() { 20 } else { 40 };
    let number = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let (id, answers) = match (packet.protocol, packet.ports, packet.icmp) {
        (6, Some((from, to)), _) => {
            let answers = packet.tcp_flags.is_some_and(|flags| flags & RST != 0);
            (if answers { to } else { from }, answers)
        }
        (_, Some((from, _)), _) => (from, false),
        (_, None, Some((kind, _))) => (number(length + 4)?, [0, 129].contains(&kind)),
        _ => return None,
    };
    Some((id, packet.source, packet.destination, answers))
}

/// The place that has an address.
pub(super) fn place_of(address: IpAddr) -> Site {
    if OWN.iter().any(|own| address == own.parse::<IpAddr>().unwrap()) {
        return Site::Node;
    }
    let pod = (1..=PODS).find(|number| of_pod(*number).contains(&address));
    pod.map_or(Site::Outside, Site::Pod)
}

fn number_of(place: Site) -> u8 {
    match place {
        Site::Node => 0,
        Site::Outside => 1,
        Site::Pod(number) => number + 1,
    }
}

fn mac(of_node: bool, number: u8) -> String {
    format!("02:00:00:00:{:02x}:{number:02x}", u8::from(of_node))
}

/// A cable from the node to a place.
fn cable(name: &str, place: &str, number: u8) -> String {
    let (here, there) = (mac(true, number), mac(false, number));
    format!(
        "link add {name} address {here} type veth peer name eth0 address {there} netns {place}\n\
         link set {name} addrgenmode none up\n"
    )
}

/// The node's routes by a cable.
fn routes(name: &str, v4: &str, v6: &str, number: u8) -> String {
    let there = mac(false, number);
    let mut text = String::new();
    for (gateway, to) in [(format!("169.254.0.{number}"), v4), (format!("fe80::{number}"), v6)] {
        text += &format!("neigh add {gateway} lladdr {there} dev {name} nud permanent\n");
        text += &format!("route add {to} via {gateway} dev {name} onlink\n");
    }
    text
}

/// The other end of a cable, which sends everything to the node.
fn end(number: u8) -> String {
    let there = mac(true, number);
    format!(
        "link set lo up\nlink set eth0 addrgenmode none up\n\
         neigh add 169.254.1.1 lladdr {there} dev eth0 nud permanent\n\
         route add default via 169.254.1.1 dev eth0 onlink\n\
         neigh add fe80::ffff lladdr {there} dev eth0 nud permanent\n\
         route add default via fe80::ffff dev eth0 onlink\n"
    )
}

fn batch(place: &impl Place, lines: &str) {
    place.sh(&format!("ip -b - <<'END'\n{lines}END\n"));
}
