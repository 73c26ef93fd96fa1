//! VXLAN tunnels between nodes: strangers' packets, and TCP's segment size.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use firewall::cluster::Member;
use netwright_firewall as firewall;
use testkit::traffic::{self, Server};
use testkit::{Container, Place};

use super::{Cluster, comes, filter, goes, node};

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
    let listed = cluster.node.lab.sh("nft list chain inet netwright-routing strangers");
    let (_, rest) = listed.split_once("counter packets ").unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
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
    cluster.bring(&filter);
    watch(b);
    watch(c1);
    traffic::assert_tcp(c1, "10.2.0.2:80");
    assert_announced(b, "more");
    assert_announced(c1, "more");
    cluster.change(&mut filter, &comes(Member::Tunnel("vx1".to_owned())));
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
