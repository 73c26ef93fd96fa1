//! Which packets pass the link of a pod.
//!
//! Each forged frame is sent twice. It arrives while nothing is checked, which shows that the frame
//! is well formed. It does not arrive once the links are those of pods. A packet that may pass
//! follows each frame. The link keeps their order, so the test need not wait for a frame that does
//! not come.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use cni::AttachmentKey;
use firewall::pod_link::{self, Place as Link};
use kernel::nflog;
use kernel::packet::{Filter, PacketSocket};
use kernel::route::RouteSocket;
use netwright_firewall as firewall;
use testkit::probe::{self, Station};
use testkit::{Container, Place, traffic};

use crate::support::{Node, key};

/// The socket of each family has its own port: a socket for both families gets no packets to IPv4
/// groups.
const PORT4: u16 = 7774;
const PORT6: u16 = 7776;
/// The packet that may pass.
const LAST: &[u8] = b"last";
/// How long a packet may take; a busy machine needs less.
const TIMEOUT: Duration = testkit::TIMEOUT;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TAG: u16 = 0x8100;
const SERVICE_TAG: u16 = 0x88a8;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn port(of: IpAddr) -> u16 {
    if of.is_ipv4() { PORT4 } else { PORT6 }
}

/// Returns the link-local address of a container.
fn link_local(container: &Container) -> String {
    let text = container.sh("ip -br -6 addr show dev eth0 scope link");
    text.split_whitespace().nth(2).unwrap().split('/').next().unwrap().to_owned()
}

/// Writes a UDP packet.
fn udp(source: &str, destination: &str, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + content.len()).unwrap();
    let port = port(address(destination));
    let mut segment = Vec::new();
    for number in [port, port, length, 0] {
        segment.extend(number.to_be_bytes());
    }
    segment.extend(content);
    match (address(source), address(destination)) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            ipv4(source, destination, length, &segment)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => ipv6(source, destination, &mut segment),
        other => panic!("{other:?} are of two families"),
    }
}

fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, length: u16, segment: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + length).to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    packet.extend(segment);
    packet
}

fn ipv6(source: Ipv6Addr, destination: Ipv6Addr, segment: &mut [u8]) -> Vec<u8> {
    let length = u16::try_from(segment.len()).unwrap();
    let mut counted = [source.octets(), destination.octets()].concat();
    counted.extend(u32::from(length).to_be_bytes());
    counted.extend([0, 0, 0, 17]);
    counted.extend(&*segment);
    segment[6..8].copy_from_slice(&checksum(&counted));
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([17, 64]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(&*segment);
    packet
}

/// RFC 1071 §1.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|word| {
        u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or_default()]))
    });
    let mut sum: u32 = words.sum();
    while 0xffff < sum {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    (!u16::try_from(sum).unwrap()).to_be_bytes()
}

/// Writes a frame. Each type but the last is that of a tag of VLAN 0.
fn frame(to: [u8; 6], from: [u8; 6], types: &[u16], packet: &[u8]) -> Vec<u8> {
    let mut frame = [to, from].concat();
    for (number, kind) in types.iter().enumerate() {
        frame.extend(kind.to_be_bytes());
        if number + 1 < types.len() {
            frame.extend([0, 0]);
        }
    }
    frame.extend(packet);
    frame
}

fn mac(place: &impl Place, link: &str) -> [u8; 6] {
    let text = place.sh(&format!("ip -br link show {link} | awk '{{print $3}}'"));
    let bytes = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
    bytes.collect::<Vec<u8>>().try_into().unwrap()
}

/// The sender of forged frames, the place that must not get them, and the addresses of that place.
struct Path<'p, T> {
    from: &'p Container,
    to: &'p T,
    ends: [(IpAddr, UdpSocket); 2],
}

impl<'p, T: Place + Sync> Path<'p, T> {
    fn new(from: &'p Container, to: &'p T, at: [&str; 2]) -> Self {
        let ends = at.map(|at| {
            let at = address(at);
            let socket = to.enter(|| UdpSocket::bind((any(at), port(at))).unwrap());
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            (at, socket)
        });
        Path { from, to, ends }
    }

    /// Says whether a frame arrives.
    fn arrives(&self, forged: &ForgedFrame) -> bool {
        let (at, end) = self.ends.iter().find(|(at, _)| at.is_ipv4() == forged.is_ipv4).unwrap();
        self.from.enter(|| {
            let index = RouteSocket::open().unwrap().link_index("eth0").unwrap().unwrap();
            PacketSocket::open(index, &Filter::nothing()).unwrap().send(&forged.frame).unwrap();
            let socket = UdpSocket::bind((any(*at), 0)).unwrap();
            socket.send_to(LAST, (*at, port(*at))).unwrap();
        });
        let mut seen = false;
        loop {
            let mut buffer = [0; 64];
            let heard = end.recv(&mut buffer);
            let length = heard.unwrap_or_else(|error| panic!("{}: {error}", self.to.place_name()));
            if &buffer[..length] == LAST {
                return seen;
            }
            // Other packets are the host's copies of broadcast frames.
            seen |= &buffer[..length] == forged.name.as_bytes();
        }
    }

    #[track_caller]
    fn assert_all(&self, forged: &[ForgedFrame], arrive: bool) {
        for one in forged {
            let (name, to) = (one.name, self.to.place_name());
            assert_eq!(self.arrives(one), arrive, "{name}, to {to}: arrives");
        }
    }
}

/// A frame that must not arrive. Its content is its name.
struct ForgedFrame {
    name: &'static str,
    is_ipv4: bool,
    frame: Vec<u8>,
}

/// Makes one.
fn forged(
    name: &'static str,
    [to, from]: [[u8; 6]; 2],
    types: &[u16],
    source: &str,
    destination: &str,
) -> ForgedFrame {
    let frame = frame(to, from, types, &udp(source, destination, name.as_bytes()));
    ForgedFrame { name, is_ipv4: address(destination).is_ipv4(), frame }
}

fn any(of: IpAddr) -> IpAddr {
    if of.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn bridged(port: &str, last: u8) -> firewall::Plan {
    let addresses = [address(&format!("10.1.0.{last}")), address(&format!("fd00:1::{last}"))];
    pod_link::plan(port, Link::Bridged, &addresses)
}

/// Frames that would bypass a pod's verdict: with a tag, or with addresses that are not a pod's.
#[test]
fn a_port_passes_the_pods_own_packets_alone() {
    testkit::require!("root");
    let node = Node::new("podport");
    let (c1, c2) = (&node.c1, &node.c2);
    // The source is an address that the container was not given.
    c2.sh("ip addr add 10.1.0.99/24 dev eth0 && ip addr add fd00:1::99/64 dev eth0 nodad");
    let (own, other, host) = (mac(c1, "eth0"), mac(c2, "eth0"), mac(&node.lab, "cni0"));
    let (all, group, group6) = ([0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]);
    let (direct, broadcast) = ([other, own], [all, own]);
    let (local, others) = (link_local(c1), link_local(c2));
    let to_c2 = [
        forged("a tag", direct, &[TAG, IPV4], "10.1.0.2", "10.1.0.3"),
        forged("a tag, IPv6", direct, &[TAG, IPV6], "fd00:1::2", "fd00:1::3"),
        forged("a service tag", direct, &[SERVICE_TAG, IPV4], "10.1.0.2", "10.1.0.3"),
        forged("two tags", direct, &[TAG, TAG, IPV4], "10.1.0.2", "10.1.0.3"),
        forged("two tags, IPv6", direct, &[TAG, TAG, IPV6], "fd00:1::2", "fd00:1::3"),
        forged("everybody", broadcast, &[IPV4], "10.1.0.2", "255.255.255.255"),
        forged("no source", broadcast, &[IPV4], "0.0.0.0", "255.255.255.255"),
        forged("the subnet", direct, &[IPV4], "10.1.0.2", "10.1.0.255"),
        forged("a group", [group, own], &[IPV4], "10.1.0.2", "224.0.0.1"),
        forged("a group, IPv6", [group6, own], &[IPV6], "fd00:1::2", "ff02::1"),
        forged("link-local", direct, &[IPV6], &local, &others),
        forged("to link-local", direct, &[IPV6], "fd00:1::2", &others),
        forged("an unknown address", direct, &[IPV4], "10.1.0.2", "10.1.0.99"),
        forged("an unknown address, IPv6", direct, &[IPV6], "fd00:1::2", "fd00:1::99"),
    ];
    let from_elsewhere = [
        forged("another source", direct, &[IPV4], "10.1.0.77", "10.1.0.3"),
        forged("another source, IPv6", direct, &[IPV6], "fd00:1::77", "fd00:1::3"),
        forged("from link-local", direct, &[IPV6], &local, "fd00:1::3"),
    ];
    let to_host = [
        forged("another source", [host, own], &[IPV4], "10.1.0.77", "10.1.0.1"),
        forged("another source, IPv6", [host, own], &[IPV6], "fd00:1::77", "fd00:1::1"),
        forged("from link-local", [host, own], &[IPV6], &local, "fd00:1::1"),
        forged("no source, IPv6", [host, own], &[IPV6], "::", "fd00:1::1"),
    ];
    // A bridge leaves frames to these groups to the port, and the host takes what is in them.
    node.lab.sh("echo 1 > /proc/sys/net/ipv6/conf/vc1/addr_gen_mode && \
         echo 0 > /proc/sys/net/ipv6/conf/vc1/disable_ipv6");
    let by_the_port = [0x02, 0x03, 0x0e, 0x0f].map(|last| {
        let way = [[0x01, 0x80, 0xc2, 0, 0, last], own];
        [
            forged("another source by the port", way, &[IPV4], "10.1.0.77", "10.1.0.1"),
            forged("another source by the port, tag", way, &[TAG, IPV4], "10.1.0.77", "10.1.0.1"),
            forged("another source by the port, IPv6", way, &[IPV6], "fd00:1::77", "fd00:1::1"),
        ]
    });
    // The host routes such a packet back to its link.
    let by_the_host = [
        forged("link-local by the host", [host, own], &[IPV6], "fe80::bad", &others),
        forged("to link-local by the host", [host, own], &[IPV6], "fd00:1::2", &others),
    ];
    traffic::assert_pings(&node.lab, &format!("{others}%cni0"));
    let between = Path::new(c1, c2, ["10.1.0.3", "fd00:1::3"]);
    let home = Path::new(c1, &node.lab, ["10.1.0.1", "fd00:1::1"]);
    let assert_all = |arrive| {
        between.assert_all(&to_c2, arrive);
        between.assert_all(&from_elsewhere, arrive);
        home.assert_all(&to_host, arrive);
        home.assert_all(by_the_port.as_flattened(), arrive);
        between.assert_all(&by_the_host, arrive);
    };
    assert_all(true);

    let plans = [("c1", bridged("vc1", 2)), ("c2", bridged("vc2", 3))];
    for (name, plan) in &plans {
        node.add(&key("n", name), plan);
        assert_eq!(node.check(&key("n", name), plan), Vec::<String>::new());
    }
    assert_all(false);
    // If only one end is a pod's, only its port decides: the port of c2 does not know which sources
    // belong to others.
    node.remove(&key("n", "c1"), &plans[0].1);
    between.assert_all(&to_c2, false);
    between.assert_all(&from_elsewhere, true);
    node.add(&key("n", "c1"), &plans[0].1);

    // Frames that may pass: neighbour discovery, and the following.
    c1.sh("ip neigh flush all && ip -6 neigh flush all");
    c2.sh("ip neigh flush all && ip -6 neigh flush all");
    for to in ["10.1.0.3", "fd00:1::3", "10.1.0.1", "fd00:1::1"] {
        traffic::assert_pings(c1, to);
    }
    for to in ["10.1.0.2", "fd00:1::2"] {
        traffic::assert_pings(&node.lab, to);
    }
    for (name, plan) in &plans {
        node.remove(&key("n", name), plan);
    }
    assert_eq!(node.elements(), "");
    assert_all(true);
}

/// The kernel would answer another pod, and quote what it did not like.
#[test]
fn the_host_does_not_answer_another_pod() {
    testkit::require!("root");
    let node = Node::new("podreflect");
    let (c3, c4) = (routed(&node, "c3", 3), routed(&node, "c4", 4));
    node.lab.sh(
        "echo 0 > /proc/sys/net/ipv4/icmp_ratelimit; echo 0 > /proc/sys/net/ipv6/icmp/ratelimit; \
         ip route add unreachable 198.51.100.0/24; ip -6 route add unreachable 2001:db8:9::/64",
    );
    let (host, host3) = (mac(&node.lab, "cni0"), mac(&node.lab, "vc3"));
    let (own, own3) = (mac(&node.c1, "eth0"), mac(&c3, "eth0"));
    let others = link_local(&node.c2);
    for to in ["10.1.0.3", "fd00:1::3", &format!("{others}%cni0")] {
        traffic::assert_pings(&node.lab, to);
    }
    let routed_plans = both_routed();
    let all = routed_plans.iter().map(|(name, plan)| (*name, plan.clone()));
    let all: Vec<_> = all.chain([("c1", bridged("vc1", 2)), ("c2", bridged("vc2", 3))]).collect();
    // Who sends, by which frames, and the link-local address of the other end, if the host would
    // answer it.
    let ways = [
        (&c3, [host3, own3], &c4, ["10.9.4.2", "fd00:9:4::2"], "10.9.3.2", None),
        (&c3, [host3, own3], &node.c2, ["10.1.0.3", "fd00:1::3"], "10.9.3.2", None),
        (&node.c1, [host, own], &node.c2, ["10.1.0.3", "fd00:1::3"], "10.1.0.2", Some(&others)),
        (&node.c1, [host, own], &c4, ["10.9.4.2", "fd00:9:4::2"], "10.1.0.2", None),
    ];
    for is_closed in [false, true] {
        for (name, plan) in all.iter().filter(|_| is_closed) {
            node.add(&key("n", name), plan);
        }
        for (from, way, to, [four, six], known, local) in &ways {
            let mut sent = provoking(*way, four, "10.1.0.1", "198.51.100.1");
            sent.extend(provoking(*way, six, "fd00:1::1", "2001:db8:9::1"));
            if let Some(local) = local {
                sent.extend(provoking(*way, local, "fd00:1::1", "2001:db8:9::1"));
                let to_link = provoking(*way, local, "fe80::bad", "fe80::bad");
                sent.extend(to_link.into_iter().filter(|one| !one.name.starts_with("no route")));
            }
            let expected = if is_closed { 0 } else { sent.len() };
            let answered = answered(from, to, &sent, [known, four]);
            assert_eq!(answered.len(), expected, "{}: {answered:?}", to.place_name());
        }
    }
}

/// Frames that the kernel answers with an error, from a source: what it would forward for the last
/// time, what has no route, and options that it does not know.
fn provoking(way: [[u8; 6]; 2], source: &str, host: &str, nowhere: &str) -> Vec<ForgedFrame> {
    let is_ipv4 = address(source).is_ipv4();
    let kinds = [IPV6, IPV4];
    let make = |name: String, change: fn(&mut Vec<u8>), destination: &str| {
        let mut packet = udp(source, destination, name.as_bytes());
        change(&mut packet);
        if is_ipv4 {
            packet[10..12].fill(0);
            let header = usize::from(packet[0] & 0xf) * 4;
            let sum = checksum(&packet[..header]);
            packet[10..12].copy_from_slice(&sum);
        }
        let frame = frame(way[0], way[1], &kinds[usize::from(is_ipv4)..][..1], &packet);
        ForgedFrame { name: name.leak(), is_ipv4, frame }
    };
    let last_hop = |packet: &mut Vec<u8>| {
        let at = if packet[0] == 0x45 { 8 } else { 7 };
        packet[at] = 1;
    };
    // An option of a wrong length (RFC 791 §3.1), or one that the receiver must know (RFC 8200
    // §4.2).
    let option = |packet: &mut Vec<u8>| {
        let (at, option) = match packet[0] {
            0x45 => (20, [0x44, 0x03, 0x05, 0x00].as_slice()),
            _ => (40, [17, 0, 0xde, 4, 0, 0, 0, 0].as_slice()),
        };
        let length_at = if at == 20 { 2 } else { 4 };
        if at == 20 {
            packet[0] = 0x46;
        } else {
            packet[6] = 0;
        }
        let length = u16::from_be_bytes([packet[length_at], packet[length_at + 1]]);
        let length = length + u16::try_from(option.len()).unwrap();
        packet[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
        packet.splice(at..at, option.iter().copied());
    };
    vec![
        make(format!("last hop from {source} to {nowhere}"), last_hop, nowhere),
        make(format!("no route from {source} to {nowhere}"), |_| {}, nowhere),
        make(format!("option from {source} to {host}"), option, host),
    ]
}

/// Sends frames, and returns what of them arrives at a place. A packet that may pass, with the
/// given source and destination, follows each frame.
fn answered<'f>(
    from: &Container,
    to: &Container,
    sent: impl IntoIterator<Item = &'f ForgedFrame>,
    [source, destination]: [&str; 2],
) -> BTreeSet<&'static str> {
    let station = Station::at(to);
    let mut arrived = BTreeSet::new();
    for one in sent {
        from.enter(|| {
            let index = RouteSocket::open().unwrap().link_index("eth0").unwrap().unwrap();
            PacketSocket::open(index, &Filter::nothing()).unwrap().send(&one.frame).unwrap();
            let socket = UdpSocket::bind((address(source), 0)).unwrap();
            socket.send_to(LAST, (address(destination), PORT4)).unwrap();
        });
        let mut is_last = false;
        while !is_last {
            assert!(probe::wait(&station.descriptors(), TIMEOUT), "nothing after {}", one.name);
            station.heard(|bytes| {
                is_last |= bytes.ends_with(LAST);
                let has = |name: &[u8]| bytes.windows(name.len()).any(|part| part == name);
                if has(one.name.as_bytes()) {
                    arrived.insert(one.name);
                }
            });
        }
    }
    arrived
}

/// Types of ICMPv6 (RFC 4861 §4).
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// The hop limit of what no router has passed on, and one that is smaller.
const HOP_LIMITS: [u8; 2] = [255, 254];

/// Only what comes from the link itself passes as neighbour discovery (RFC 4861 §7.1): a message
/// with a smaller hop limit would carry anything between pods whose link-local addresses no policy
/// knows.
#[test]
fn neighbour_discovery_passes_with_the_hop_limit_of_its_link_alone() {
    testkit::require!("root");
    let node = Node::new("podhops");
    let (c1, c2) = (&node.c1, &node.c2);
    let (local, others) = (link_local(c1), link_local(c2));
    let direct = [mac(c2, "eth0"), mac(c1, "eth0")];
    let to_all = [[0x33, 0x33, 0, 0, 0, 1], direct[1]];
    let ways = [
        (ROUTER_SOLICITATION, to_all, local.as_str(), "ff02::1"),
        (ROUTER_ADVERTISEMENT, to_all, &local, "ff02::1"),
        (SOLICITATION, direct, &local, &others),
        (SOLICITATION, direct, &local, "fd00:1::3"),
        (SOLICITATION, to_all, &local, "ff02::1"),
        // Duplicate address detection.
        (SOLICITATION, to_all, "::", "ff02::1"),
        (ADVERTISEMENT, direct, &local, &others),
        (ADVERTISEMENT, direct, &local, "fd00:1::3"),
        (ADVERTISEMENT, to_all, &local, "ff02::1"),
        (REDIRECT, direct, &local, &others),
    ];
    let all = HOP_LIMITS.into_iter().flat_map(|hops| {
        ways.map(|(kind, way, from, to)| (kind, hops, to, message(kind, hops, way, from, to)))
    });
    let all: Vec<(u8, u8, &str, ForgedFrame)> = all.collect();
    let assert_passing = |pods: &str, passes: &dyn Fn(u8, u8, &str) -> bool| {
        let passing = all.iter().filter(|(kind, hops, to, _)| passes(*kind, *hops, to));
        let passing: BTreeSet<_> = passing.map(|(.., one)| one.name).collect();
        let sent = all.iter().map(|(.., one)| one);
        let arrived = answered(c1, c2, sent, ["10.1.0.2", "10.1.0.3"]);
        assert_eq!(arrived, passing, "pods: {pods}");
    };
    let neighbours = [SOLICITATION, ADVERTISEMENT];
    assert_passing("none", &|_, _, _| true);
    let [sender, receiver] = [("c1", bridged("vc1", 2)), ("c2", bridged("vc2", 3))];
    node.add(&key("n", sender.0), &sender.1);
    assert_passing("the sender", &|kind, hops, _| {
        hops == 255 && (neighbours.contains(&kind) || kind == ROUTER_SOLICITATION)
    });
    node.add(&key("n", receiver.0), &receiver.1);
    assert_passing("both", &|kind, hops, _| hops == 255 && neighbours.contains(&kind));
    node.remove(&key("n", sender.0), &sender.1);
    // The port of the receiver passes what is for its address, whatever it is.
    assert_passing("the receiver", &|kind, hops, to| {
        (hops == 255 && kind != ROUTER_SOLICITATION) || to == "fd00:1::3"
    });
}

/// Writes a message of neighbour discovery. Its checksum is wrong, so that the receiver learns
/// nothing from it.
fn message(
    kind: u8,
    hop_limit: u8,
    way: [[u8; 6]; 2],
    source: &str,
    destination: &str,
) -> ForgedFrame {
    let name = format!("type {kind}, hop limit {hop_limit}, from {source} to {destination}").leak();
    let (IpAddr::V6(from), IpAddr::V6(to)) = (address(source), address(destination)) else {
        panic!("{name}: not IPv6");
    };
    let content = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &to.octets(), name.as_bytes()].concat();
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
    packet.extend([58, hop_limit]);
    packet.extend([from.octets(), to.octets()].concat());
    packet.extend(content);
    ForgedFrame { name, is_ipv4: false, frame: frame(way[0], way[1], &[IPV6], &packet) }
}

/// A pod has made the host believe that it has the address of another pod. Packets of the host to
/// that address do not reach it.
#[test]
fn a_port_gets_nothing_from_the_host_that_is_anothers() {
    testkit::require!("root");
    let node = Node::new("podclaims");
    let station = Station::at(&node.c1);
    let (own, others) = (["10.1.0.2", "fd00:1::2"], ["10.1.0.3", "fd00:1::3"]);
    let [own, others] = [own, others].map(|both| BTreeSet::from(both.map(address)));
    let claimed = mac(&node.c1, "eth0").map(|byte| format!("{byte:02x}")).join(":");
    for other in &others {
        node.lab.sh(&format!("ip neigh replace {other} lladdr {claimed} dev cni0 nud permanent"));
    }
    // Returns the destinations of such packets that arrive, until these have.
    let hear = |last: &BTreeSet<IpAddr>, is: fn(&nflog::Packet) -> bool| {
        let mut arrived = BTreeSet::new();
        while !arrived.is_superset(last) {
            assert!(probe::wait(&station.descriptors(), TIMEOUT), "{arrived:?} alone arrive");
            station.heard(|bytes| {
                let packet = nflog::Packet::read(bytes).filter(is);
                arrived.extend(packet.map(|packet| packet.destination));
            });
        }
        arrived
    };
    let arriving = || {
        node.lab.enter(|| {
            for to in others.iter().chain(&own) {
                let socket = UdpSocket::bind((any(*to), 0)).unwrap();
                socket.send_to(b"?", (*to, port(*to))).unwrap();
            }
        });
        // The packets to its own address were sent last.
        hear(&own, |packet| packet.protocol == 17)
    };
    assert!(arriving().is_superset(&others));
    let plan = bridged("vc1", 2);
    node.add(&key("n", "c1"), &plan);
    assert_eq!(node.check(&key("n", "c1"), &plan), Vec::<String>::new());
    assert_eq!(arriving(), own);
    // The host may send to groups.
    let groups = BTreeSet::from(["224.0.0.1", "ff02::1"].map(address));
    let _ = node
        .lab
        .try_sh("ping -n -q -c 1 -W 0.1 -I cni0 224.0.0.1; ping -n -q -c 1 -W 0.1 -I cni0 ff02::1");
    hear(&groups, |packet| matches!(packet.icmp, Some((8 | 128, _))));
    node.remove(&key("n", "c1"), &plan);
    assert!(arriving().is_superset(&others));
}

/// A plan without addresses, on a bridge and on a link that the host routes.
#[test]
fn a_link_without_addresses_is_closed() {
    testkit::require!("root");
    let node = Node::new("podclosed");
    let c3 = routed(&node, "c3", 3);
    for (name, place, container, own) in [
        ("vc1", Link::Bridged, &node.c1, ["10.1.0.2", "fd00:1::2"]),
        ("vc3", Link::Routed, &c3, ["10.9.3.2", "fd00:9:3::2"]),
    ] {
        let closed = pod_link::plan(name, place, &[]);
        for to in ["10.1.0.3", "fd00:1::3"] {
            traffic::assert_pings(container, to);
        }
        node.add(&key("n", name), &closed);
        assert_silent(container, ["10.1.0.3", "fd00:1::3"]);
        assert_silent(&node.c2, own);
        assert_silent(&node.lab, own);
        // The addresses are added later, and open the link.
        let addresses = own.map(address);
        node.add(&key("n", name), &pod_link::plan(name, place, &addresses));
        for to in ["10.1.0.3", "fd00:1::3"] {
            traffic::assert_pings(container, to);
        }
        node.remove(&key("n", name), &pod_link::plan(name, place, &addresses));
    }
    assert_eq!(node.elements(), "");
}

/// The same for a link that the host routes: packets from another address, and packets to an
/// unknown one.
#[test]
fn a_routed_link_passes_the_pods_own_packets_alone() {
    testkit::require!("root");
    let node = Node::new("podrouted");
    let (c3, c4) = (routed(&node, "c3", 3), routed(&node, "c4", 4));
    node.lab.sh("ip route add 10.99.0.0/24 dev vc4 && ip -6 route add fd00:99::/64 dev vc4");
    c4.sh("ip addr add 10.99.0.1/32 dev eth0 && ip addr add fd00:99::1/128 dev eth0 nodad");
    let (own, gateway) = (mac(&c3, "eth0"), mac(&node.lab, "vc3"));
    let way = [gateway, own];
    let all = [
        forged("another source", way, &[IPV4], "10.9.3.77", "10.9.4.2"),
        forged("another source, IPv6", way, &[IPV6], "fd00:9:3::77", "fd00:9:4::2"),
        forged("an unknown address", way, &[IPV4], "10.9.3.2", "10.99.0.1"),
        forged("an unknown address, IPv6", way, &[IPV6], "fd00:9:3::2", "fd00:99::1"),
    ];
    // The pod pretends to be, for example, another node whose tunnels the host accepts.
    let to_host = [
        forged("another source", way, &[IPV4], "10.9.3.77", "10.9.3.1"),
        forged("another source, IPv6", way, &[IPV6], "fd00:9:3::77", "fd00:9:3::1"),
        forged("from link-local", way, &[IPV6], "fe80::77", "fd00:9:3::1"),
        forged("no source, IPv6", way, &[IPV6], "::", "fd00:9:3::1"),
    ];
    let path = Path::new(&c3, &c4, ["10.9.4.2", "fd00:9:4::2"]);
    let home = Path::new(&c3, &node.lab, ["10.9.3.1", "fd00:9:3::1"]);
    path.assert_all(&all, true);
    home.assert_all(&to_host, true);
    for (name, plan) in &both_routed() {
        node.add(&key("n", name), plan);
        assert_eq!(node.check(&key("n", name), plan), Vec::<String>::new());
    }
    path.assert_all(&all, false);
    home.assert_all(&to_host, false);
    // Neighbour discovery works for link-local addresses too.
    c3.sh("ip neigh flush all && ip -6 neigh flush all");
    node.lab.sh("ip neigh flush dev vc3 && ip -6 neigh flush dev vc3");
    for to in ["10.9.4.2", "fd00:9:4::2", "10.9.3.1", "fd00:9:3::1"] {
        traffic::assert_pings(&c3, to);
    }
    traffic::assert_pings(&node.lab, &format!("{}%vc3", link_local(&c3)));
    // An answer that the host has translated arrives too.
    node.lab.sh(
        "nft -f - <<'END'\n\
         table ip other {\n\
           chain output { type nat hook output priority -100; ip daddr 192.0.2.9 dnat to 10.9.3.2; }\n\
         }\n\
         END",
    );
    node.lab.sh("ip route add 192.0.2.9 dev vc3");
    traffic::assert_pings(&node.lab, "192.0.2.9");
}

/// An address is valid only at its own link: an answer to the host that leaves the pod by another
/// link is dropped. With a rule such as the plugin `sbr` makes, the answer leaves by its own link.
#[test]
fn an_answer_that_leaves_by_another_link_of_the_pod_is_dropped() {
    testkit::require!("root");
    let node = Node::new("podanswer");
    let c3 = routed(&node, "c3", 3);
    node.lab.sh("ip addr add 192.0.2.200/32 dev vc3 && \
         ip link add vd3 type veth peer name eth1 netns c3 && ip link set vd3 up && \
         ip addr add 10.9.5.1/24 dev vd3 && \
         for link in all vc3 vd3; do echo 0 > /proc/sys/net/ipv4/conf/$link/rp_filter; done");
    c3.sh("ip addr add 10.9.5.2/24 dev eth1 && ip link set eth1 up && \
         ip route replace default via 10.9.5.1 && \
         for link in all eth0 eth1; do echo 0 > /proc/sys/net/ipv4/conf/$link/rp_filter; done");
    let answers = |within: &str| {
        let asked = format!("ping -n -q -c 1 -W {within} -I 192.0.2.200 10.9.3.2");
        node.lab.try_sh(&asked).status.success()
    };
    assert!(answers("5"), "by the other link");
    let own = ["10.9.3.2", "fd00:9:3::2"].map(address);
    node.add(&key("n", "c3"), &pod_link::plan("vc3", Link::Routed, &own));
    let further = AttachmentKey { ifname: "eth1".parse().unwrap(), ..key("n", "c3") };
    node.add(&further, &pod_link::plan("vd3", Link::Routed, &[address("10.9.5.2")]));
    assert!(!answers("0.4"), "by the other link, which has another address");
    c3.sh("ip route add default via 10.9.3.1 table 100 && ip rule add from 10.9.3.2 table 100");
    assert!(answers("5"), "by its own link");
}

/// If the links are in a VRF, the kernel forwards a packet as if it came in by the VRF.
#[test]
fn vm_a_routed_link_in_a_vrf_passes_the_pods_own_packets_alone() {
    testkit::require!("root", "vrf");
    let node = Node::new("podvrf");
    let (c3, c4) = (routed(&node, "c3", 3), routed(&node, "c4", 4));
    node.lab.sh("ip link add red type vrf table 10 && ip link set red up");
    for number in [3, 4] {
        // A link that joins a VRF loses its IPv6 addresses.
        node.lab.sh(&format!(
            "ip link set vc{number} master red && \
             ip addr replace fd00:9:{number}::1/64 dev vc{number} nodad"
        ));
    }
    // The host's servers receive packets for its addresses in the VRF too.
    node.lab.sh(
        "sysctl -qw net.ipv4.udp_l3mdev_accept=1 && \
         ip route add 10.99.0.0/24 dev vc4 table 10 && ip -6 route add fd00:99::/64 dev vc4 table 10",
    );
    c4.sh("ip addr add 10.99.0.1/32 dev eth0 && ip addr add fd00:99::1/128 dev eth0 nodad");
    let way = [mac(&node.lab, "vc3"), mac(&c3, "eth0")];
    let all = [
        forged("another source", way, &[IPV4], "10.9.3.77", "10.9.4.2"),
        forged("another source, IPv6", way, &[IPV6], "fd00:9:3::77", "fd00:9:4::2"),
        forged("an unknown address", way, &[IPV4], "10.9.3.2", "10.99.0.1"),
        forged("an unknown address, IPv6", way, &[IPV6], "fd00:9:3::2", "fd00:99::1"),
    ];
    let to_host = [
        forged("another source", way, &[IPV4], "10.9.3.77", "10.9.3.1"),
        forged("another source, IPv6", way, &[IPV6], "fd00:9:3::77", "fd00:9:3::1"),
    ];
    let path = Path::new(&c3, &c4, ["10.9.4.2", "fd00:9:4::2"]);
    let home = Path::new(&c3, &node.lab, ["10.9.3.1", "fd00:9:3::1"]);
    for to in ["10.9.4.2", "fd00:9:4::2"] {
        traffic::assert_pings(&c3, to);
    }
    path.assert_all(&all, true);
    home.assert_all(&to_host, true);
    let plans = both_routed();
    for (name, plan) in &plans {
        node.add(&key("n", name), plan);
        assert_eq!(node.check(&key("n", name), plan), Vec::<String>::new());
    }
    path.assert_all(&all, false);
    home.assert_all(&to_host, false);
    for to in ["10.9.4.2", "fd00:9:4::2"] {
        traffic::assert_pings(&c3, to);
    }
    // A link without addresses is closed there too.
    node.remove(&key("n", "c3"), &plans[0].1);
    node.add(&key("n", "c3"), &pod_link::plan("vc3", Link::Routed, &[]));
    assert_silent(&c3, ["10.9.4.2", "fd00:9:4::2"]);
    assert_silent(&c3, ["10.9.3.1", "fd00:9:3::1"]);
}

/// Packets that IPVS sends on do not pass the hook `forward`.
#[test]
fn vm_a_routed_link_passes_the_pods_own_packets_alone_to_services_of_ipvs() {
    testkit::require!("root", "ip_vs", "program:ipvsadm", "program:conntrack");
    let node = Node::new("podipvs");
    let (c3, c4) = (routed(&node, "c3", 3), routed(&node, "c4", 4));
    node.lab.sh(&format!(
        "set -e
        ip link set lo up
        echo 1 > /proc/sys/net/ipv4/vs/conntrack
        ip addr add 10.96.0.9/32 dev lo
        ip addr add fd00:96::9/128 dev lo nodad
        ipvsadm -A -u 10.96.0.9:{PORT4} -s rr
        ipvsadm -a -u 10.96.0.9:{PORT4} -r 10.9.4.2:{PORT4} -m
        ipvsadm -A -u [fd00:96::9]:{PORT6} -s rr
        ipvsadm -a -u [fd00:96::9]:{PORT6} -r [fd00:9:4::2]:{PORT6} -m"
    ));
    let way = [mac(&node.lab, "vc3"), mac(&c3, "eth0")];
    let all = [
        forged("another source", way, &[IPV4], "10.9.3.77", "10.96.0.9"),
        forged("another source, IPv6", way, &[IPV6], "fd00:9:3::77", "fd00:96::9"),
        forged("from link-local", way, &[IPV6], "fe80::77", "fd00:96::9"),
    ];
    let own = [
        forged("its own", way, &[IPV4], "10.9.3.2", "10.96.0.9"),
        forged("its own, IPv6", way, &[IPV6], "fd00:9:3::2", "fd00:96::9"),
    ];
    let path = Path::new(&c3, &c4, ["10.9.4.2", "fd00:9:4::2"]);
    path.assert_all(&all, true);
    for (name, plan) in &both_routed() {
        node.add(&key("n", name), plan);
    }
    // Flows that were let through before would continue, because only the first packet of a flow is
    // judged.
    node.lab.sh("conntrack -F 2>/dev/null");
    path.assert_all(&all, false);
    path.assert_all(&own, true);
}

/// The plans of two links that the host routes ([`routed`]).
fn both_routed() -> [(&'static str, firewall::Plan); 2] {
    [("c3", 3), ("c4", 4)].map(|(name, last)| {
        let addresses =
            [format!("10.9.{last}.2"), format!("fd00:9:{last}::2")].map(|at| address(&at));
        (name, pod_link::plan(&format!("v{name}"), Link::Routed, &addresses))
    })
}

/// Asserts that none of these addresses answers. Both are tried at once.
#[track_caller]
fn assert_silent(from: &impl Place, [one, two]: [&str; 2]) {
    let answered = from.sh(&format!(
        "for to in {one} {two}; do (ping -n -q -c 1 -W 0.4 $to >/dev/null 2>&1 && echo $to) & done; wait"
    ));
    assert_eq!(answered, "", "answers {}", from.place_name());
}

/// Connects a container by a veth pair, with addresses of a subnet of its own.
fn routed(node: &Node, name: &str, number: u8) -> Container {
    let container = node.lab.container(name);
    node.lab.sh(&format!(
        "ip link add v{name} type veth peer name eth0 netns {name} && ip link set v{name} up && \
         ip addr add 10.9.{number}.1/24 dev v{name} && ip addr add fd00:9:{number}::1/64 dev v{name} nodad"
    ));
    container.sh(&format!(
        "ip link set lo up && echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad && \
         ip addr add 10.9.{number}.2/24 dev eth0 && ip addr add fd00:9:{number}::2/64 dev eth0 nodad && \
         ip link set eth0 up && ip route add default via 10.9.{number}.1 && \
         ip -6 route add default via fd00:9:{number}::1"
    ));
    container
}
