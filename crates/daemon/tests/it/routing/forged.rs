//! Nobody sends as a pod of another node, or of this one: not through a tunnel, and not by another
//! link.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;

use testkit::{Container, Place, wait_until};

use super::reach::path;
use super::{Fabric, Node};

/// How long a packet may take; a busy machine needs less.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The port at which pods and nodes take packets.
const PORT: u16 = 7007;

fn sends(from: &Container, source: &str, to: (&str, u16), content: &[u8]) {
    let source: IpAddr = source.parse().unwrap();
    let socket = from.enter(|| UdpSocket::bind((source, 0)).unwrap());
    socket.send_to(content, (to.0.parse::<IpAddr>().unwrap(), to.1)).unwrap();
}

/// What a place takes, in both families.
struct Ends([UdpSocket; 2]);

impl Ends {
    fn at(place: &Container, addresses: [String; 2]) -> Self {
        Ends(addresses.map(|address| {
            let address: IpAddr = address.parse().unwrap();
            let socket = place.enter(|| UdpSocket::bind((address, PORT)).unwrap());
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket
        }))
    }

    /// Returns the next packet of a family.
    fn next(&self, family: usize) -> String {
        let mut buffer = [0; 64];
        let (length, _) = self.0[family].recv_from(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }
}

/// How many packets a chain of a node's packet filter has dropped.
fn dropped(node: &Node, chain: &str) -> u64 {
    let listed = node.host.sh(&format!("nft list chain inet netwright-routing {chain}"));
    let counts = listed.split("counter packets ").skip(1);
    counts.map(|rest| rest.split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Gives a place addresses of others, to forge packets from them.
fn forges(place: &impl Place, addresses: &[String]) {
    let all = addresses.iter().map(|address| match address.contains(':') {
        true => format!("ip addr add {address}/128 dev lo nodad; "),
        false => format!("ip addr add {address}/32 dev lo; "),
    });
    place.sh(&format!("set -e; {}", all.collect::<String>()));
}

/// The pod of `a` takes packets. The pod of `b` may be borrowed, and another pod of `a`.
struct Attempt<'f> {
    a: &'f Node,
    ends: Ends,
}

impl Attempt<'_> {
    /// Asserts whether packets from addresses of pods arrive.
    #[track_caller]
    fn assert(&self, from: &Container, sources: &[String; 2], arrive: bool) {
        for (family, source) in sources.iter().enumerate() {
            let before = dropped(self.a, "sources");
            sends(from, source, (&self.a.pod_addresses()[family], PORT), source.as_bytes());
            match arrive {
                true => assert_eq!(self.ends.next(family), *source, "from {}", from.name()),
                false => wait_until("it to be dropped", || before < dropped(self.a, "sources")),
            }
        }
    }
}

/// The service keeps the rules: with direct paths, a container of another network, the node's pod
/// with another node's address, and the network between the nodes with an address of this node's
/// pods send nothing. What pods of the other node send arrives.
#[test]
fn nobody_sends_as_a_pod_by_another_link() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-forged", &[2]).by("direct");
    fabric.start();
    fabric.assert_all_reach_all();
    let (a, b) = (&fabric.nodes[0], &fabric.nodes[1]);
    let other = fabric.lab.container("other");
    fabric.lab.sh(&format!(
        "ip link add o0 netns {} type veth peer name eth0 netns other",
        a.host.name()
    ));
    a.host.sh("ip link set o0 up && ip addr add 172.17.0.1/16 dev o0 && \
         ip addr add fd17::1/64 dev o0 nodad");
    other.sh("ip link set lo up && ip link set eth0 up && ip addr add 172.17.0.2/16 dev eth0 && \
         ip addr add fd17::2/64 dev eth0 nodad && ip route add default via 172.17.0.1 && \
         ip -6 route add default via fd17::1");
    let beside = ["10.244.1.9", "fd00:244:1::9"].map(str::to_owned);
    forges(&other, &b.pod_addresses());
    forges(&other, &beside);
    forges(&b.host, &beside);
    let attempt = Attempt { a, ends: Ends::at(&a.pod, a.pod_addresses()) };
    attempt.assert(&b.pod, &b.pod_addresses(), true);
    attempt.assert(&other, &b.pod_addresses(), false);
    attempt.assert(&other, &beside, false);
    attempt.assert(&b.host, &beside, false);
    // By its own link, this node's pod sends from its own address alone.
    forges(&a.pod, &b.pod_addresses());
    let before = dropped(a, "sources");
    for (family, source) in b.pod_addresses().iter().enumerate() {
        let (v4, v6) = a.underlay();
        sends(&a.pod, source, (&[v4, v6][family], PORT), b"?");
    }
    wait_until("both to be dropped", || dropped(a, "sources") == before + 2);
}

/// RFC 1071 §1.
pub(super) fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    (!u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()).to_be_bytes()
}

/// Writes what a tunnel with VNI 1 takes (RFC 7348 §5): a frame for a hardware address, with a UDP
/// packet.
fn in_tunnel(mac: [u8; 6], source: Ipv4Addr, destination: Ipv4Addr, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + content.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend((20 + length).to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    for number in [PORT, PORT, length, 0] {
        packet.extend(number.to_be_bytes());
    }
    packet.extend(content);
    [&[8, 0, 0, 0, 0, 0, 1, 0][..], &mac, &[2, 0, 0, 0, 0, 9], &[8, 0], &packet].concat()
}

fn mac_of(node: &Node, link: &str) -> [u8; 6] {
    let text = node.host.sh(&format!("ip -br link show {link} | awk '{{print $3}}'"));
    let bytes = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
    bytes.collect::<Vec<u8>>().try_into().unwrap()
}

/// Behind a router nodes reach each other by tunnels. A pod without any right sends the content of a
/// tunnel to a second address of another node, and its own node gives it its address. The network
/// between the nodes sends with addresses of pods, without a tunnel.
#[test]
fn vm_no_pod_sends_into_another_nodes_tunnel() {
    testkit::require!("root", "vxlan");
    let mut fabric = Fabric::new("routing-tunnelled", &[1, 1]);
    fabric.nodes[0].host.sh("ip addr add 192.0.2.40/26 dev eth0");
    fabric.start();
    fabric.assert_all_reach_all();
    assert_eq!(path(&fabric.routes(0), "b", "ipv4"), "vxlan");
    let (a, b) = (&fabric.nodes[0], &fabric.nodes[1]);
    let counts = || [dropped(b, "sources"), dropped(b, "strangers"), dropped(a, "to-nodes")];
    // While a node starts, its table takes no packet of a tunnel before it has the other nodes.
    let [sources, early, to_nodes] = counts();
    assert_eq!((sources, to_nodes), (0, 0));
    let attempt = Attempt { a, ends: Ends::at(&a.pod, a.pod_addresses()) };
    let forged = in_tunnel(
        mac_of(a, "nw-vxlan4"),
        "10.244.9.9".parse().unwrap(),
        "10.244.1.2".parse().unwrap(),
        b"forged",
    );
    // A program of the node sends it, and the pod takes it: it is well formed.
    let (own, _) = b.underlay();
    sends(&b.host, &own, (&a.underlay().0, 8472), &forged);
    assert_eq!(attempt.ends.next(0), "forged");
    for (to, node, chain) in [("192.0.2.40", a, "strangers"), (&*a.underlay().0, b, "to-nodes")] {
        let before = dropped(node, chain);
        sends(&b.pod, "10.244.2.2", (to, 8472), &forged);
        wait_until("it to be dropped", || before < dropped(node, chain));
    }
    // Without a tunnel, nothing to a pod from one that is reached by it.
    forges(&*fabric.lab, &b.pod_addresses());
    let (v4, v6) = a.underlay();
    fabric.lab.sh(&format!(
        "ip route add 10.244.1.0/24 via {v4} && ip -6 route add fd00:244:1::/64 via {v6}"
    ));
    for (family, source) in b.pod_addresses().iter().enumerate() {
        let before = dropped(a, "sources");
        let source: IpAddr = source.parse().unwrap();
        let socket = fabric.lab.enter(|| UdpSocket::bind((source, 0)).unwrap());
        let to: IpAddr = a.pod_addresses()[family].parse().unwrap();
        socket.send_to(b"?", (to, PORT)).unwrap();
        wait_until("it to be dropped", || before < dropped(a, "sources"));
    }
    fabric.lab.sh("ip addr flush dev lo scope global; ip -6 addr flush dev lo scope global");
    // The pods reach each other all the time, and nothing of that was dropped.
    attempt.assert(&b.pod, &b.pod_addresses(), true);
    assert_eq!(counts(), [0, early, 0]);
    // To the node itself, pods' packets come as they are.
    let node = Ends::at(&a.host, [a.underlay().0, a.underlay().1]);
    for (family, source) in b.pod_addresses().iter().enumerate() {
        let (v4, v6) = a.underlay();
        sends(&b.pod, source, (&[v4, v6][family], PORT), b"to the node");
        assert_eq!(node.next(family), "to the node");
    }
}
