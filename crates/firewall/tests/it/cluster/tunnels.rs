//! VXLAN tunnels between nodes: strangers' packets, and TCP's segment size.

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use firewall::cluster::Member;
use netwright_firewall as firewall;
use testkit::traffic::{self, Server};
use testkit::{Container, Place};

use super::{Cluster, comes, counted, filter, goes, node, sends};

/// A tunnel to node `b` over IPv4 or IPv6: 10.7.VNI.1 here, 10.7.VNI.2 and the MAC address
/// 02:00:00:00:VNI:02 there.
fn tunnel(cluster: &Cluster, vni: u8, underlay: [&str; 2], mtu: [u32; 2]) {
    let here = |of: u8, other: u8, mtu: u32| {
        let (local, remote) = (underlay[usize::from(of) - 1], underlay[usize::from(other) - 1]);
        format!(
            "ip link add vx{vni} address 02:00:00:00:0{vni}:0{of} mtu {mtu} type vxlan id {vni} \
             local {local} dstport 8472 nolearning && ip link set vx{vni} up && \
             ip addr add 10.7.{vni}.{of}/24 dev vx{vni} && \
             bridge fdb add 02:00:00:00:0{vni}:0{other} dev vx{vni} dst {remote} && \
             ip neigh add 10.7.{vni}.{other} lladdr 02:00:00:00:0{vni}:0{other} dev vx{vni}"
        )
    };
    cluster.node.lab.sh(&here(1, 2, mtu[0]));
    cluster.b.sh(&here(2, 1, mtu[1]));
}

/// How many packets from strangers were dropped.
fn dropped(cluster: &Cluster) -> u64 {
    counted(&cluster.node.lab, "strangers")
}

/// Waits until this many packets from strangers were dropped.
#[track_caller]
fn assert_dropped(cluster: &Cluster, expected: u64) {
    let end = Instant::now() + traffic::ANSWER_DEADLINE;
    while dropped(cluster) != expected {
        assert!(Instant::now() < end, "{} and not {expected} were dropped", dropped(cluster));
    }
}

/// Says whether connection tracking knows a flow from an address to the tunnels' port.
fn is_tracked(cluster: &Cluster, source: &str) -> bool {
    let family = if source.contains(':') { "ipv6" } else { "ipv4" };
    let list = format!("conntrack -L -f {family} -p udp --dport 8472 --src {source}");
    !cluster.node.lab.sh(&list).is_empty()
}

fn send(from: &Container, to: &str, payload: &[u8]) {
    let to: SocketAddr = to.parse().unwrap();
    from.enter(|| {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.set_broadcast(true).unwrap();
        socket.send_to(payload, to).unwrap();
    });
}

/// RFC 7348 §5: flags, and VNI 1. What follows is not a frame.
const OF_VNI_1: [u8; 8] = [8, 0, 0, 0, 0, 0, 1, 0];

/// RFC 4443 §3.2: this node's packet to an address, which carries these eight bytes after its header, did
/// not fit.
fn too_big(mtu: u32, to: &str, (next_header, carried): (u8, [u8; 8])) -> Vec<u8> {
    let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
    let mut bytes = vec![2, 0, 0, 0];
    bytes.extend(mtu.to_be_bytes());
    bytes.extend([0x60, 0, 0, 0, 5, 0, next_header, 64]);
    bytes.extend(address("2001:db8:2::1"));
    bytes.extend(address(to));
    bytes.extend(carried);
    bytes
}

/// One packet of any machine, or of a pod, makes the kernel believe that little fits to another node,
/// and it fragments nothing that a tunnel sends over IPv6. What pods' IPv6 needs stays.
#[test]
fn no_error_takes_from_a_tunnel_what_ipv6_needs() {
    testkit::require!("root", "program:socat");
    let cluster = Cluster::new("cltoobig");
    let host = &cluster.node.lab;
    cluster.bring(&filter());
    let file = host.dir().join("too-big");
    let sends = |from: &Container, to: &str, bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        from.sh(&format!("socat -u FILE:{} 'IP6-SENDTO:[{to}]:58'", file.display()));
    };
    let way = |to: &str| host.sh(&format!("ip -6 route get {to}"));
    // Anybody can guess the first.
    let echo = (58, [128, 0, 0, 0, 0, 1, 0, 1]);
    let udp = |to: u8| (17, [0, 7, 0, to, 5, 0, 0, 0]);
    let tcp = (6, [0, 7, 0, 9, 0, 0, 0, 0]);
    let (b, c1, outside) = (&cluster.b, &cluster.node.c1, &cluster.node.outside);
    let mut dropped = 0;
    let mut is_dropped = |from: &Container, to: &str, mtu, what| {
        sends(from, to, &too_big(mtu, "2001:db8:2::2", what));
        dropped += 1;
        testkit::wait_until("it to be dropped", || counted(host, "too-big") == dropped);
        assert!(!way("2001:db8:2::2").contains("mtu"), "{}", way("2001:db8:2::2"));
    };
    for (from, to) in [
        (b, "2001:db8:2::1"),
        (c1, "fd00:1::1"),
        (c1, "2001:db8:2::1"),
        (outside, "2001:db8:ffff::1"),
    ] {
        for (mtu, what) in [(1280, echo), (1349, udp(9)), (0, echo)] {
            is_dropped(from, to, mtu, what);
        }
    }
    // About flows that there are, from either end, of a program that is there.
    let program = host.enter(|| UdpSocket::bind("[2001:db8:2::1]:7").unwrap());
    let other = b.enter(|| UdpSocket::bind("[2001:db8:2::2]:8").unwrap());
    program.send_to(b"x", "[2001:db8:2::2]:9").unwrap();
    is_dropped(b, "2001:db8:2::1", 1280, udp(9));
    other.send_to(b"x", "[2001:db8:2::1]:7").unwrap();
    program.recv_from(&mut [0; 8]).unwrap();
    is_dropped(b, "2001:db8:2::1", 1280, udp(8));

    // The kernel checks these itself, and there is no such connection.
    sends(b, "2001:db8:2::1", &too_big(1280, "2001:db8:2::2", tcp));
    // What leaves enough is believed, and so is what concerns a flow to another machine.
    sends(b, "2001:db8:2::1", &too_big(1350, "2001:db8:2::2", echo));
    testkit::wait_until("it to be believed", || way("2001:db8:2::2").contains("mtu 1350"));
    program.send_to(b"x", "[2001:db8:2::9]:9").unwrap();
    sends(b, "2001:db8:2::1", &too_big(1280, "2001:db8:2::9", udp(9)));
    testkit::wait_until("it to be believed", || way("2001:db8:2::9").contains("mtu 1280"));
    assert_eq!(counted(host, "too-big"), dropped);
}

#[test]
fn vm_packets_of_strangers_do_not_come_out_of_a_tunnel() {
    testkit::require!("root", "vxlan", "vm-full");
    for (name, underlay) in
        [("clvx4", ["192.0.2.1", "192.0.2.2"]), ("clvx6", ["2001:db8:2::1", "2001:db8:2::2"])]
    {
        let cluster = Cluster::new(name);
        tunnel(&cluster, 1, underlay, [1450; 2]);
        // Another program's tunnel, at the same port.
        tunnel(&cluster, 2, underlay, [1450; 2]);
        let mut filter = filter();
        filter.note(&comes(Member::Tunnel("vx1".to_owned())));
        cluster.bring(&filter);
        traffic::assert_pings(&cluster.b, "10.7.1.1");
        assert_eq!(dropped(&cluster), 0);

        cluster.change(&mut filter, &goes(node(underlay[1])));
        assert!(is_tracked(&cluster, underlay[1]));
        cluster.node.lab.sh("conntrack -F 2>/dev/null");
        traffic::assert_no_ping(&cluster.b, "10.7.1.1");
        assert_ne!(dropped(&cluster), 0);
        assert!(!is_tracked(&cluster, underlay[1]), "dropped before anything remembers it");
        traffic::assert_pings(&cluster.b, "10.7.2.1");

        cluster.change(&mut filter, &comes(node(underlay[1])));
        traffic::assert_pings(&cluster.b, "10.7.1.1");
    }
}

/// Strangers' packets are dropped at every address of this host. Packets for other hosts are not
/// touched.
#[test]
fn strangers_are_dropped_at_every_address_and_what_passes_through_is_not() {
    testkit::require!("root");
    let cluster = Cluster::new("clstrange");
    cluster.bring(&filter());
    let outside = &cluster.node.outside;
    for to in [
        "198.51.100.1:8472",
        "192.0.2.1:8472",
        "198.51.100.255:8472",
        "[2001:db8:ffff::1]:8472",
        "[2001:db8:2::1]:8472",
    ] {
        let before = dropped(&cluster);
        send(outside, to, &OF_VNI_1);
        assert_dropped(&cluster, before + 1);
    }
    let before = dropped(&cluster);
    // Packets with another VNI, packets to another port, and packets that are not VXLAN.
    send(outside, "198.51.100.1:8472", &[8, 0, 0, 0, 0, 0, 2, 0]);
    send(outside, "198.51.100.1:4789", &OF_VNI_1);
    send(outside, "198.51.100.1:8472", b"?");
    // Between the pod of this node and a server elsewhere.
    for to in ["198.51.100.2:8472", "[2001:db8:ffff::2]:8472"] {
        let to: SocketAddr = to.parse().unwrap();
        let _server = Server::udp(outside, &to.to_string(), "outside");
        let socket = cluster
            .node
            .c1
            .enter(|| UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket.send_to(&OF_VNI_1, to).unwrap();
        socket.recv_from(&mut [0; 64]).unwrap();
    }
    assert_eq!(dropped(&cluster), before);
}

/// What a tunnel of a place would take.
struct TakenEndpoint(UdpSocket);

impl TakenEndpoint {
    fn at(place: &impl Place) -> Self {
        let socket = place.enter(|| UdpSocket::bind("[::]:8472").unwrap());
        socket.set_read_timeout(Some(traffic::ANSWER_DEADLINE)).unwrap();
        TakenEndpoint(socket)
    }

    /// Asserts that the next packet that is taken has this content.
    #[track_caller]
    fn assert_next(&self, to: &str, content: &[u8]) {
        let mut buffer = [0; 64];
        let (length, from) = self.0.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], content, "{to} from {from}");
    }
}

/// A tunnel takes what a node sends to this node's own address by a link between the nodes, and
/// nothing else: a node may have translated the source of what its pods send.
#[test]
fn a_tunnel_takes_what_nodes_send_to_its_own_address_by_their_link() {
    testkit::require!("root");
    let cluster = Cluster::new("clown");
    let (host, b, c1) = (&cluster.node.lab, &cluster.b, &cluster.node.c1);
    host.sh("ip addr add 192.0.2.101/24 dev n0 && ip addr add 2001:db8:2::101/64 dev n0 nodad");
    // A pod forges the node's address.
    c1.sh("ip addr add 192.0.2.2/32 dev lo && ip addr add 2001:db8:2::2/128 dev lo nodad");
    // Services whose endpoint is the tunnel, one of which hides who asks.
    host.sh("nft -f - <<'X'
        table inet ports {
          chain pre { type nat hook prerouting priority dstnat;
            udp dport 9998-9999 dnat ip to 192.0.2.1:8472; udp dport 9998-9999 dnat ip6 to [2001:db8:2::1]:8472; }
          chain in { type nat hook input priority 100;
            udp dport 8472 ct original proto-dst 9998 snat ip to 192.0.2.2;
            udp dport 8472 ct original proto-dst 9998 snat ip6 to 2001:db8:2::2; }
        }\nX");
    let taken = TakenEndpoint::at(host);
    let attempts: [(&Container, &str, &str); 18] = [
        (b, "192.0.2.2", "192.0.2.101:8472"),
        (b, "192.0.2.2", "198.51.100.1:8472"),
        (b, "192.0.2.2", "192.0.2.255:8472"),
        (b, "2001:db8:2::2", "[2001:db8:2::101]:8472"),
        (b, "2001:db8:2::2", "[2001:db8:ffff::1]:8472"),
        (b, "10.2.0.2", "192.0.2.1:8472"),
        (c1, "192.0.2.2", "192.0.2.1:8472"),
        (c1, "2001:db8:2::2", "[2001:db8:2::1]:8472"),
        (c1, "10.1.0.2", "198.51.100.1:9999"),
        (c1, "fd00:1::2", "[2001:db8:ffff::1]:9999"),
        (c1, "10.1.0.2", "198.51.100.1:9998"),
        (c1, "fd00:1::2", "[2001:db8:ffff::1]:9998"),
        (&cluster.node.outside, "198.51.100.2", "198.51.100.1:9998"),
        (&cluster.node.outside, "2001:db8:ffff::2", "[2001:db8:ffff::1]:9998"),
        // A pod of that node has sent it, and the node has translated its source.
        (b, "192.0.2.2", "192.0.2.101:9999"),
        (b, "192.0.2.2", "192.0.2.1:9999"),
        (b, "2001:db8:2::2", "[2001:db8:2::101]:9999"),
        (b, "2001:db8:2::2", "[2001:db8:2::1]:9999"),
    ];
    for (from, source, to) in attempts {
        // Without the table it is taken.
        sends(from, source, to, &OF_VNI_1);
        taken.assert_next(to, &OF_VNI_1);
    }
    // The flows are translated as before; the kernel must not know them any longer.
    host.sh("conntrack -F 2>/dev/null");
    cluster.bring(&filter());
    let own = [("192.0.2.2", "192.0.2.1:8472"), ("2001:db8:2::2", "[2001:db8:2::1]:8472")];
    for (number, (from, source, to)) in attempts.into_iter().enumerate() {
        let before = dropped(&cluster);
        sends(from, source, to, &OF_VNI_1);
        assert_dropped(&cluster, before + 1);
        let (source, to) = own[usize::from(to.starts_with('['))];
        let content = [&OF_VNI_1[..], &[u8::try_from(number).unwrap()]].concat();
        sends(b, source, to, &content);
        taken.assert_next(to, &content);
    }
}

/// What pods, the outside, and containers of other networks send to a node's tunnel does not leave
/// with this node's address, whatever translates it. To other hosts it goes, and so does what this
/// node's tunnel sends, and what passes between nodes.
#[test]
fn nobody_but_nodes_sends_to_a_nodes_tunnel() {
    testkit::require!("root");
    let cluster = Cluster::new("cltonode");
    let (host, b, outside) = (&cluster.node.lab, &cluster.b, &cluster.node.outside);
    let c1 = &cluster.node.c1;
    b.sh("ip addr add 192.0.2.102/24 dev eth0 && ip addr add 2001:db8:2::102/64 dev eth0 nodad");
    // Another network's masquerade, and a service whose endpoint is a node.
    host.sh("nft -f - <<'X'
        table inet ports {
          chain pre { type nat hook prerouting priority dstnat;
            udp dport 9999 dnat ip to 192.0.2.2:8472; udp dport 9999 dnat ip6 to [2001:db8:2::2]:8472; }
          chain post { type nat hook postrouting priority srcnat; oifname n0 udp dport 8472 masquerade; }
        }\nX");
    let taken = TakenEndpoint::at(b);
    let attempts: [(&Container, &str, &str); 10] = [
        (c1, "10.1.0.2", "192.0.2.2:8472"),
        (c1, "fd00:1::2", "[2001:db8:2::2]:8472"),
        (c1, "10.1.0.2", "192.0.2.102:8472"),
        (c1, "fd00:1::2", "[2001:db8:2::102]:8472"),
        (c1, "10.1.0.2", "198.51.100.1:9999"),
        (c1, "fd00:1::2", "[2001:db8:ffff::1]:9999"),
        (outside, "198.51.100.2", "192.0.2.2:8472"),
        (outside, "2001:db8:ffff::2", "[2001:db8:2::2]:8472"),
        (outside, "198.51.100.2", "198.51.100.1:9999"),
        (outside, "2001:db8:ffff::2", "[2001:db8:ffff::1]:9999"),
    ];
    for (from, source, to) in attempts {
        sends(from, source, to, &OF_VNI_1);
        taken.assert_next(to, &OF_VNI_1);
    }
    let mut filter = filter();
    for address in ["192.0.2.102", "2001:db8:2::102"] {
        filter.note(&comes(Member::Address(address.parse().unwrap())));
    }
    cluster.bring(&filter);
    for (number, (from, source, to)) in attempts.into_iter().enumerate() {
        let before = counted(host, "to-nodes");
        sends(from, source, to, &OF_VNI_1);
        let end = Instant::now() + traffic::ANSWER_DEADLINE;
        while counted(host, "to-nodes") == before {
            assert!(Instant::now() < end, "{source} to {to} is not dropped");
        }
        // Another VNI is another tunnel's, and the next that arrives.
        let mut content = OF_VNI_1.to_vec();
        content[6] = 2;
        content.push(u8::try_from(number).unwrap());
        sends(from, source, to, &content);
        taken.assert_next(to, &content);
    }
    // Another node behind this one.
    for (address, to) in
        [("198.51.100.2", "192.0.2.2:8472"), ("2001:db8:ffff::2", "[2001:db8:2::2]:8472")]
    {
        cluster.change(&mut filter, &comes(node(address)));
        cluster.change(&mut filter, &comes(Member::Underlay("up0".to_owned())));
        sends(outside, address, to, &OF_VNI_1);
        taken.assert_next(to, &OF_VNI_1);
    }
    // To a host that is no node.
    let taken = TakenEndpoint::at(outside);
    for address in ["198.51.100.2", "2001:db8:ffff::2"] {
        cluster.change(&mut filter, &goes(node(address)));
    }
    for (source, to) in
        [("10.1.0.2", "198.51.100.2:8472"), ("fd00:1::2", "[2001:db8:ffff::2]:8472")]
    {
        sends(c1, source, to, &OF_VNI_1);
        taken.assert_next(to, &OF_VNI_1);
    }
}

/// What this node's tunnel sends, and what the other end's sends, passes both ends' rules.
#[test]
fn vm_tunnels_of_two_nodes_reach_each_other() {
    testkit::require!("root", "vxlan");
    for (name, underlay) in
        [("clend4", ["192.0.2.1", "192.0.2.2"]), ("clend6", ["2001:db8:2::1", "2001:db8:2::2"])]
    {
        let cluster = Cluster::new(name);
        tunnel(&cluster, 1, underlay, [1450; 2]);
        let mut filter = filter();
        filter.note(&comes(Member::Tunnel("vx1".to_owned())));
        cluster.bring(&filter);
        traffic::assert_pings(&cluster.b, "10.7.1.1");
        traffic::assert_pings(&cluster.node.lab, "10.7.1.2");
        for chain in ["strangers", "to-nodes", "sources"] {
            assert_eq!(counted(&cluster.node.lab, chain), 0, "{chain}");
        }
    }
}

/// Counts the segment sizes that TCP's first packets announce to a place.
fn watch(place: &impl Place) {
    place.sh("nft -f - <<'X'\n\
        table inet watch { chain pre { type filter hook prerouting priority 0; \
        tcp flags & (syn | rst) == syn tcp option maxseg size 1410 counter comment \"1410\"; \
        tcp flags & (syn | rst) == syn tcp option maxseg size 1390 counter comment \"1390\"; \
        tcp flags & (syn | rst) == syn tcp option maxseg size > 1410 counter comment \"more\"; }; }\nX");
}

#[track_caller]
fn assert_announced(place: &impl Place, which: &str) {
    let listed = place.sh("nft list table inet watch");
    for line in listed.lines().filter(|line| line.contains("counter packets")) {
        let none = line.contains("counter packets 0 ");
        assert_eq!(none, !line.contains(&format!("\"{which}\"")), "{which}: {listed}");
    }
    place.sh("nft delete table inet watch");
    watch(place);
}

/// Pods have the underlay's MTU, and the other end of the tunnel has a larger one. The segment
/// sizes that both sides announce are reduced to fit.
#[test]
fn vm_segments_fit_the_tunnel() {
    testkit::require!("root", "vxlan", "vm-full");
    let cluster = Cluster::new("clmss");
    let (host, b, c1) = (&cluster.node.lab, &cluster.b, &cluster.node.c1);
    tunnel(&cluster, 1, ["192.0.2.1", "192.0.2.2"], [1450, 1900]);
    host.sh("ip addr add fd00:7::1/64 dev vx1 nodad && \
         ip -6 neigh add fd00:7::2 lladdr 02:00:00:00:01:02 dev vx1 && \
         ip route replace 10.2.0.0/24 via 10.7.1.2 dev vx1 && \
         ip -6 route replace fd00:2::/64 via fd00:7::2 dev vx1");
    b.sh("ip addr add fd00:7::2/64 dev vx1 nodad && \
         ip -6 neigh add fd00:7::1 lladdr 02:00:00:00:01:01 dev vx1 && \
         ip route add 10.1.0.0/24 via 10.7.1.1 dev vx1 && \
         ip -6 route add fd00:1::/64 via fd00:7::1 dev vx1");
    let _servers = [Server::tcp(b, "[::]:80", "b"), Server::tcp(c1, "[::]:80", "c1")];
    let mut filter = filter();
    watch(b);
    watch(c1);
    traffic::assert_tcp(c1, "10.2.0.2:80");
    assert_announced(b, "more");
    assert_announced(c1, "more");
    filter.note(&comes(Member::Tunnel("vx1".to_owned())));
    cluster.bring(&filter);
    for (from, to, size) in [
        (c1, "10.2.0.2:80", "1410"),
        (c1, "[fd00:2::2]:80", "1390"),
        (b, "10.1.0.2:80", "1410"),
        (b, "[fd00:1::2]:80", "1390"),
    ] {
        traffic::assert_tcp(from, to);
        assert_announced(b, size);
        assert_announced(c1, size);
    }
}
