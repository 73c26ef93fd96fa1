//! Host ports lead to containers: from everywhere they should, and from nowhere else.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use expect_test::expect;
use firewall::element::Protocol;
use firewall::hostport::{self, Forward, Snat, Target};
use firewall::{FirewallError, Plan};
use netwright_firewall as firewall;
use testkit::traffic::{self, Server};
use testkit::{Place, Snapshot};

use crate::support::{Node, attach, key};

fn forward(protocol: Protocol, host_port: u16, at: Option<&str>) -> Forward {
    Forward { protocol, host_port, container_port: 80, host_ip: at.map(|at| at.parse().unwrap()) }
}

fn targets(last: u8) -> Vec<Target> {
    let target = |address: String| Target {
        address: address.parse().unwrap(),
        host_ifname: Some("cni0".to_owned()),
    };
    vec![target(format!("10.1.0.{last}")), target(format!("fd00:1::{last}"))]
}

fn plan(last: u8, forwards: &[Forward], snat: Snat) -> Plan {
    hostport::plan(forwards, &targets(last), snat).unwrap()
}

fn web(last: u8) -> Plan {
    let forwards = [forward(Protocol::Tcp, 8080, None), forward(Protocol::Udp, 8080, None)];
    plan(last, &forwards, Snat::Needed)
}

fn servers(place: &impl Place, name: &str) -> Vec<Server> {
    vec![Server::tcp(place, "[::]:80", name), Server::udp(place, "[::]:80", name)]
}

/// The client's address as the server sees it, as text.
#[track_caller]
fn seen(from: &impl Place, to: &str) -> String {
    let tcp = traffic::assert_tcp(from, to);
    let udp = traffic::assert_udp(from, to);
    assert_eq!(
        (&tcp.server, tcp.seen.ip()),
        (&udp.server, udp.seen.ip()),
        "TCP and UDP differ: {to}"
    );
    format!("{} sees {}", tcp.server, tcp.seen.ip())
}

#[test]
fn ports_lead_to_the_container_from_everywhere() {
    testkit::require!("root");
    let node = Node::new("ports");
    node.add(&key("n", "c1"), &web(2));
    let _servers = servers(&node.c1, "c1");
    for br_netfilter in [false, true] {
        node.br_netfilter(br_netfilter);
        let what = format!("br_netfilter {br_netfilter}");
        // From outside: the source stays.
        assert_eq!(seen(&node.outside, "198.51.100.1:8080"), "c1 sees 198.51.100.2", "{what}");
        assert_eq!(
            seen(&node.outside, "[2001:db8:ffff::1]:8080"),
            "c1 sees 2001:db8:ffff::2",
            "{what}"
        );
        // From the host, by its addresses and by loopback.
        assert_eq!(seen(&node.lab, "198.51.100.1:8080"), "c1 sees 198.51.100.1", "{what}");
        assert_eq!(
            seen(&node.lab, "[2001:db8:ffff::1]:8080"),
            "c1 sees 2001:db8:ffff::1",
            "{what}"
        );
        assert_eq!(seen(&node.lab, "127.0.0.1:8080"), "c1 sees 10.1.0.1", "{what}");
        assert_eq!(seen(&node.lab, "127.1.2.3:8080"), "c1 sees 10.1.0.1", "{what}");
        // From the container itself, and from its neighbour.
        for from in [&node.c1, &node.c2] {
            assert_eq!(seen(from, "198.51.100.1:8080"), "c1 sees 10.1.0.1", "{what}");
            assert_eq!(seen(from, "10.1.0.1:8080"), "c1 sees 10.1.0.1", "{what}");
            assert_eq!(seen(from, "[fd00:1::1]:8080"), "c1 sees fd00:1::1", "{what}");
        }
    }
}

/// The reference cannot do this at all. With `br_netfilter`, which nodes of Kubernetes and hosts of
/// Docker have, the replies were dropped and the client waited for ever.
#[test]
fn the_ipv6_loopback_address_leads_to_the_container() {
    testkit::require!("root");
    let node = Node::new("loop6");
    node.add(&key("n", "c1"), &web(2));
    let _servers = servers(&node.c1, "c1");
    for br_netfilter in [false, true] {
        node.br_netfilter(br_netfilter);
        assert_eq!(seen(&node.lab, "[::1]:8080"), "c1 sees fd00:1::1", "{br_netfilter}");
    }
    // A link that is set down loses the route. CHECK reports that, and a repair restores it.
    node.lab.sh("ip -6 route del local fd6e:6574:7772:6967:6874::1 dev cni0 table local");
    let told = node.check(&key("n", "c1"), &web(2));
    assert_eq!(told, ["missing: the route to fd6e:6574:7772:6967:6874::1 on \"cni0\""]);
    node.add(&key("n", "c1"), &web(2));
    assert_eq!(seen(&node.lab, "[::1]:8080"), "c1 sees fd00:1::1");
    // Meanwhile no other host can send to the host's ::1 by the address that replaces it, nor as if
    // it were on the host.
    let _private = Server::udp(&node.lab, "[::1]:7777", "private");
    node.lab.sh("nft add table inet probe; \
                 nft 'add chain inet probe in { type filter hook input priority 300; }'; \
                 nft 'add rule inet probe in ip6 daddr ::1 iifname != lo counter'; \
                 nft 'add chain inet probe pre { type filter hook prerouting priority -400; }'; \
                 nft 'add rule inet probe pre ip6 daddr fd6e::/16 counter'");
    for br_netfilter in [false, true] {
        node.br_netfilter(br_netfilter);
        for (from, via) in
            [(&node.c1, "fd00:1::1"), (&node.c2, "fd00:1::1"), (&node.outside, "2001:db8:ffff::1")]
        {
            from.sh(&format!("ip -6 route replace fd6e::/16 via {via} dev eth0"));
            send(from, "[fd6e:6574:7772:6967:6874::1]:7777");
            send(from, "[fd6e:6574:7772:6967:6874::1]:8080");
            traffic::assert_pings(from, via);
        }
    }
    let counted = node.lab.sh("nft list chain inet probe in; nft list chain inet probe pre");
    assert_eq!(counted.matches("counter packets 0 ").count(), 1, "{counted}");
    traffic::assert_no_udp(&node.lab, "[fd6e:6574:7772:6967:6874::1]:7777");
}

/// Without masquerade [::1] cannot lead to a container: the connection is refused at once.
#[test]
fn the_ipv6_loopback_address_refuses_at_once_where_nothing_is_masqueraded() {
    testkit::require!("root");
    let node = Node::new("loop6nosnat");
    node.add(&key("n", "c1"), &plan(2, &[forward(Protocol::Tcp, 8080, None)], Snat::No));
    let _servers = servers(&node.c1, "c1");
    for br_netfilter in [false, true] {
        node.br_netfilter(br_netfilter);
        let asked = node.lab.enter(|| {
            TcpStream::connect_timeout(&"[::1]:8080".parse().unwrap(), Duration::from_secs(20))
        });
        assert_eq!(asked.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    }
}

#[test]
fn everything_is_as_before_afterwards() {
    testkit::require!("root");
    let node = Node::new("portsundo");
    let before = Snapshot::take(&node.lab);
    node.add(&key("n", "c1"), &web(2));
    node.add(&key("n", "c2"), &plan(3, &[forward(Protocol::Tcp, 9090, None)], Snat::All));
    assert_eq!(node.lab.sh("cat /proc/sys/net/ipv4/conf/cni0/route_localnet"), "1\n");
    node.remove(&key("n", "c1"), &web(2));
    assert_eq!(node.lab.sh("cat /proc/sys/net/ipv4/conf/cni0/route_localnet"), "1\n");
    node.remove(&key("n", "c2"), &plan(3, &[forward(Protocol::Tcp, 9090, None)], Snat::All));
    assert_eq!(node.elements(), "");
    assert!(node.firewall(firewall::Firewall::prune).unwrap());
    before.assert_same(&Snapshot::take(&node.lab));
}

/// GHSA-jv3w-x3r3-g6rm, CVE-2025-67499: every forwarded packet to the port went to the container.
#[test]
fn packets_that_pass_through_are_left_alone() {
    testkit::require!("root");
    let node = Node::new("transit");
    let dns = [
        forward(Protocol::Udp, 53, None),
        forward(Protocol::Tcp, 53, None),
        forward(Protocol::Udp, 54, Some("198.51.100.1")),
    ];
    node.add(&key("n", "c1"), &plan(2, &dns, Snat::Needed));
    node.outside.sh("ip route add 10.1.0.0/24 via 198.51.100.1; ip -6 route add fd00:1::/64 via 2001:db8:ffff::1");
    let _c1 = servers(&node.c1, "c1");
    let _resolver = [
        Server::udp(&node.outside, "[::]:53", "resolver"),
        Server::tcp(&node.outside, "[::]:53", "resolver"),
        Server::udp(&node.outside, "[::]:54", "resolver"),
    ];
    let _neighbour = Server::udp(&node.c2, "[::]:53", "c2");
    for br_netfilter in [false, true] {
        node.br_netfilter(br_netfilter);
        assert_eq!(seen(&node.c2, "198.51.100.2:53"), "resolver sees 10.1.0.3");
        assert_eq!(seen(&node.c2, "[2001:db8:ffff::2]:53"), "resolver sees fd00:1::3");
        assert_eq!(traffic::assert_udp(&node.c2, "198.51.100.2:54").server, "resolver");
        assert_eq!(traffic::assert_udp(&node.outside, "10.1.0.3:53").server, "c2");
        assert_eq!(traffic::assert_udp(&node.c1, "10.1.0.3:53").server, "c2");
        // Packets for the host go to the container.
        assert_eq!(traffic::assert_udp(&node.outside, "198.51.100.1:53").server, "c1");
    }
}

/// k8s#90259, CVE-2020-8558: with `route_localnet`, neighbours reach what listens on 127.0.0.1.
#[test]
fn loopback_addresses_do_not_come_in() {
    testkit::require!("root");
    let node = Node::new("martian");
    node.add(&key("n", "c1"), &web(2));
    let _private = Server::udp(&node.lab, "127.0.0.1:7777", "private");
    let _servers = servers(&node.c1, "c1");
    for br_netfilter in [false, true] {
        node.br_netfilter(br_netfilter);
        node.c2.sh("ip route replace 127.0.0.1/32 via 10.1.0.1 dev eth0 table main; \
                    ip route del local 127.0.0.0/8 dev lo table local 2>/dev/null; \
                    ip route del local 127.0.0.1 dev lo table local 2>/dev/null; \
                    echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet; \
                    echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet; true");
        traffic::assert_no_udp(&node.c2, "127.0.0.1:7777");
        // The test would show nothing if packets did not get that far.
        let dropped = node.lab.sh("nft add table inet probe; nft 'add chain inet probe pre { type filter hook prerouting priority -400; }'; \
                     nft 'add rule inet probe pre iifname cni0 ip daddr 127.0.0.1 counter'; true");
        assert_eq!(dropped, "");
        traffic::assert_no_udp(&node.c2, "127.0.0.1:7777");
        let counted = node.lab.sh("nft list chain inet probe pre; nft delete table inet probe");
        assert!(!counted.contains("packets 0 "), "{counted}");
    }
    // Packets that the host itself sends from there still arrive.
    assert_eq!(traffic::assert_tcp(&node.lab, "127.0.0.1:8080").server, "c1");
}

/// Makes a place send packets for its own loopback addresses to another host, and accept the
/// replies.
fn send_loopback_to(place: &impl Place, via4: &str, via6: &str) {
    place.sh(&format!(
        "ip addr flush dev lo && for i in all eth0; do echo 1 > /proc/sys/net/ipv4/conf/$i/route_localnet; \
         echo 0 > /proc/sys/net/ipv4/conf/$i/rp_filter; done; \
         ip route replace 127.0.0.0/8 via {via4} dev eth0 && ip -6 route replace ::1/128 via {via6} dev eth0"
    ));
}

/// A port at a loopback address is for the programs of this host. The routing would drop packets
/// for such addresses from elsewhere, but it comes after the translation.
#[test]
fn ports_at_loopback_addresses_are_for_the_host_alone() {
    testkit::require!("root");
    let node = Node::new("loopport");
    node.lab.sh("ip link add cni1 type bridge && ip addr add 10.2.0.1/24 dev cni1 && \
                 ip addr add fd00:2::1/64 dev cni1 nodad && ip link set cni1 up");
    let elsewhere = attach(&node.lab, "c3", "cni1", 2);
    let at = |protocol, port, address| forward(protocol, port, Some(address));
    let forwards = [
        at(Protocol::Tcp, 8080, "127.0.0.1"),
        at(Protocol::Udp, 8080, "127.0.0.1"),
        at(Protocol::Tcp, 8081, "127.1.2.3"),
        at(Protocol::Udp, 8080, "::1"),
        forward(Protocol::Tcp, 9090, None),
        forward(Protocol::Udp, 9090, None),
    ];
    // Also without masquerade, where `route_localnet` is off.
    for snat in [Snat::Needed, Snat::No] {
        let plan = plan(2, &forwards, snat);
        node.add(&key("n", "c1"), &plan);
        let _servers = servers(&node.c1, "c1");
        node.c1.sh("nft add table inet probe; \
                    nft 'add chain inet probe in { type filter hook prerouting priority -400; }'; \
                    nft 'add rule inet probe in iifname eth0 meta l4proto { tcp, udp } counter'");
        send_loopback_to(&node.outside, "198.51.100.1", "2001:db8:ffff::1");
        send_loopback_to(&elsewhere, "10.2.0.1", "fd00:2::1");
        send_loopback_to(&node.c2, "10.1.0.1", "fd00:1::1");
        for br_netfilter in [false, true] {
            node.br_netfilter(br_netfilter);
            // The sysctl of another program: packets for 127.0.0.0/8 are received.
            for localnet in [0, 1] {
                node.lab.sh(&format!(
                    "for i in up0 cni1; do echo {localnet} > /proc/sys/net/ipv4/conf/$i/route_localnet; done"
                ));
                for (from, host) in [
                    (&node.outside, "198.51.100.1"),
                    (&elsewhere, "10.2.0.1"),
                    (&node.c2, "10.1.0.1"),
                ] {
                    for to in [
                        "127.0.0.1:8080",
                        "127.1.2.3:8081",
                        "127.9.9.9:9090",
                        "[::1]:8080",
                        "[::1]:9090",
                    ] {
                        send(from, to);
                    }
                    // These packets come later on the same path.
                    traffic::assert_pings(from, host);
                }
            }
            traffic::assert_pings(&node.lab, "10.1.0.2");
            let arrived = node.c1.sh("nft list chain inet probe in");
            assert!(
                arrived.contains("counter packets 0 "),
                "br_netfilter {br_netfilter}: {arrived}"
            );
        }
        if snat == Snat::Needed {
            assert_eq!(seen(&node.lab, "127.0.0.1:8080"), "c1 sees 10.1.0.1");
            assert_eq!(traffic::assert_tcp(&node.lab, "127.1.2.3:8081").server, "c1");
            assert_eq!(seen(&node.lab, "127.0.0.1:9090"), "c1 sees 10.1.0.1");
        }
        assert_eq!(seen(&node.outside, "198.51.100.1:9090"), "c1 sees 198.51.100.2");
        let arrived = node.c1.sh("nft list chain inet probe in; nft delete table inet probe");
        assert!(!arrived.contains("counter packets 0 "), "{arrived}");
        node.remove(&key("n", "c1"), &plan);
    }
}

/// Each link has its own route to ::1: the end of a container on another link removes only that
/// link's route.
#[test]
fn ports_at_loopback_addresses_of_ipv6_are_on_several_links_at_once() {
    testkit::require!("root");
    let node = Node::new("loopsix");
    node.lab.sh("ip link add cni1 type bridge && ip addr add 10.2.0.1/24 dev cni1 && \
                 ip addr add fd00:2::1/64 dev cni1 nodad && ip link set cni1 up");
    let c3 = attach(&node.lab, "c3", "cni1", 2);
    let plan = |port, ifname: &str, address: &str| {
        let target =
            Target { address: address.parse().unwrap(), host_ifname: Some(ifname.to_owned()) };
        hostport::plan(&[forward(Protocol::Tcp, port, Some("::1"))], &[target], Snat::Needed)
            .unwrap()
    };
    let (one, three) = (plan(8080, "cni0", "fd00:1::2"), plan(8081, "cni1", "fd00:2::2"));
    let _servers = [servers(&node.c1, "c1"), servers(&c3, "c3")];
    node.add(&key("n", "c1"), &one);
    node.add(&key("n", "c3"), &three);
    assert_eq!(traffic::assert_tcp(&node.lab, "[::1]:8080").server, "c1");
    assert_eq!(traffic::assert_tcp(&node.lab, "[::1]:8081").server, "c3");
    node.remove(&key("n", "c3"), &three);
    assert_eq!(traffic::assert_tcp(&node.lab, "[::1]:8080").server, "c1");
    node.remove(&key("n", "c1"), &one);
    let left = node.lab.sh("ip -6 route show table local");
    assert!(!left.contains("metric 4") && !left.contains("fd6e:"), "{left}");
}

/// Sends the first packet of a flow by TCP and UDP, and does not wait for a reply.
fn send(from: &impl Place, to: &str) {
    let to: SocketAddr = to.parse().unwrap();
    from.enter(|| {
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        UdpSocket::bind((any, 0)).unwrap().send_to(b"?", to).unwrap();
        assert!(TcpStream::connect_timeout(&to, Duration::from_millis(1)).is_err());
    });
}

/// We do not drop packets for 127.0.0.0/8 where we did not set the sysctl: other programs may
/// translate *to* such an address.
#[test]
fn a_translation_to_a_loopback_address_by_others_goes_on_working() {
    testkit::require!("root");
    let node = Node::new("loopothers");
    node.add(
        &key("n", "c1"),
        &plan(2, &[forward(Protocol::Tcp, 8080, Some("127.0.0.1"))], Snat::Needed),
    );
    let _private = [
        Server::tcp(&node.lab, "127.0.0.1:7777", "private"),
        Server::udp(&node.lab, "127.0.0.1:7777", "private"),
    ];
    node.lab.sh("echo 1 > /proc/sys/net/ipv4/conf/up0/route_localnet; \
                 nft add table ip others; \
                 nft 'add chain ip others pre { type nat hook prerouting priority -100; }'; \
                 nft 'add rule ip others pre iifname up0 meta l4proto { tcp, udp } th dport 7000 dnat to 127.0.0.1:7777'");
    assert_eq!(traffic::assert_tcp(&node.outside, "198.51.100.1:7000").server, "private");
    assert_eq!(traffic::assert_udp(&node.outside, "198.51.100.1:7000").server, "private");
}

/// A VRF may have a 127.0.0.1 of its own: programs in it still reach it, and its links' neighbours
/// reach no port there.
#[test]
fn vm_loopback_addresses_of_a_vrf_are_left_alone() {
    testkit::require!("root", "vrf", "program:socat");
    let node = Node::new("loopvrf");
    // The kernel looks up 127.0.0.1 in the table of the host's own addresses before a VRF's, unless
    // that table comes after the VRFs' rule (linux Documentation/networking/vrf.rst, "Using VRFs",
    // 3).
    node.lab.sh("ip rule add pref 32765 table local && ip rule del pref 0");
    node.lab.sh("ip link add red type vrf table 10 && ip addr add 127.0.0.1/8 dev red && ip link set red up && \
                 ip link set up0 master red && ip route add table 10 10.1.0.0/24 dev cni0 && \
                 sysctl -qw net.ipv4.tcp_l3mdev_accept=1 net.ipv4.udp_l3mdev_accept=1");
    let forwards = [Protocol::Tcp, Protocol::Udp].map(|of| forward(of, 8080, Some("127.0.0.1")));
    node.add(&key("n", "c1"), &plan(2, &forwards, Snat::Needed));
    let _servers = servers(&node.c1, "c1");
    let _private = Server::tcp(&node.lab, "127.0.0.1:7777", "private");
    let inside = node.lab.sh("timeout 60 socat -u TCP:127.0.0.1:7777,so-bindtodevice=red -");
    assert!(inside.starts_with("private "), "{inside}");
    node.c1.sh("nft add table inet probe; \
                nft 'add chain inet probe in { type filter hook prerouting priority -400; }'; \
                nft 'add rule inet probe in iifname eth0 meta l4proto { tcp, udp } counter'");
    send_loopback_to(&node.outside, "198.51.100.1", "2001:db8:ffff::1");
    for localnet in [0, 1] {
        node.lab.sh(&format!(
            "for i in up0 red; do echo {localnet} > /proc/sys/net/ipv4/conf/$i/route_localnet; done"
        ));
        traffic::assert_no_udp(&node.outside, "127.0.0.1:8080");
        traffic::assert_no_tcp(&node.outside, "127.0.0.1:8080");
    }
    let arrived = node.c1.sh("nft list chain inet probe in");
    assert!(arrived.contains("counter packets 0 "), "{arrived}");
}

/// The new executable converts an older one's tables to this layout, in one transaction.
#[test]
fn an_older_layout_is_replaced_and_its_elements_stay() {
    testkit::require!("root");
    let node = Node::new("oldlayout");
    node.add(
        &key("n", "c1"),
        &plan(2, &[forward(Protocol::Udp, 8080, Some("127.0.0.1"))], Snat::Needed),
    );
    let now = node.lab.sh("nft list table inet netwright");
    let _servers = servers(&node.c1, "c1");
    send_loopback_to(&node.outside, "198.51.100.1", "2001:db8:ffff::1");
    let older = "nft -f - <<'END'\nflush chain inet netwright prerouting\n\
                 add rule inet netwright prerouting fib daddr type local jump hostports\nEND\n";
    node.lab.sh(older);
    assert_eq!(traffic::assert_udp(&node.outside, "127.0.0.1:8080").server, "c1");
    // By the next container's ADD, by a repair of this one, and by an installation.
    let other = plan(3, &[forward(Protocol::Tcp, 8081, None)], Snat::No);
    node.add(&key("n", "c2"), &other);
    node.remove(&key("n", "c2"), &other);
    assert_eq!(node.lab.sh("nft list table inet netwright"), now);
    node.lab.sh(older);
    assert_eq!(
        node.check(
            &key("n", "c1"),
            &plan(2, &[forward(Protocol::Udp, 8080, Some("127.0.0.1"))], Snat::Needed)
        ),
        ["chain prerouting of table inet netwright has other rules"]
    );
    assert!(node.lab.enter(|| firewall::Firewall::renew(&node.index)).unwrap());
    assert_eq!(node.lab.sh("nft list table inet netwright"), now);
    assert!(!node.lab.enter(|| firewall::Firewall::renew(&node.index)).unwrap());
    traffic::assert_no_udp(&node.outside, "127.0.0.1:8080");
}

#[test]
fn one_address_of_the_host_comes_before_all() {
    testkit::require!("root");
    let node = Node::new("hostip");
    node.lab.sh("ip addr add 198.51.100.11/24 dev up0");
    let at = plan(2, &[forward(Protocol::Tcp, 8080, Some("198.51.100.11"))], Snat::Needed);
    node.add(&key("n", "c1"), &at);
    let _servers = (servers(&node.c1, "c1"), servers(&node.c2, "c2"));
    assert_eq!(traffic::assert_tcp(&node.outside, "198.51.100.11:8080").server, "c1");
    traffic::assert_no_tcp(&node.outside, "198.51.100.1:8080");
    traffic::assert_no_tcp(&node.outside, "[2001:db8:ffff::1]:8080");
    // The same port of another address is free, and 0.0.0.0 is IPv4 only.
    node.lab.sh("ip addr add 198.51.100.12/24 dev up0");
    let other = plan(3, &[forward(Protocol::Tcp, 8080, Some("198.51.100.12"))], Snat::Needed);
    node.add(&key("n", "c2"), &other);
    assert_eq!(traffic::assert_tcp(&node.outside, "198.51.100.12:8080").server, "c2");
    let all4 = plan(3, &[forward(Protocol::Tcp, 9090, Some("0.0.0.0"))], Snat::Needed);
    node.add(&key("m", "c2"), &all4);
    assert_eq!(traffic::assert_tcp(&node.outside, "198.51.100.1:9090").server, "c2");
    traffic::assert_no_tcp(&node.outside, "[2001:db8:ffff::1]:9090");
}

#[test]
fn without_snat_nothing_is_translated_back_and_with_all_everything() {
    testkit::require!("root");
    let node = Node::new("snat");
    let none = plan(2, &[forward(Protocol::Tcp, 8080, None)], Snat::No);
    expect![[r#"
        inet netwright hostports4 { tcp . 8080 : 10.1.0.2 . 80 }
        inet netwright hostports6 { tcp . 8080 : fd00:1::2 . 80 }
    "#]]
    .assert_eq(&none.to_string());
    node.add(&key("n", "c1"), &none);
    let _servers = servers(&node.c1, "c1");
    assert_eq!(traffic::assert_tcp(&node.outside, "198.51.100.1:8080").server, "c1");
    traffic::assert_no_tcp(&node.lab, "127.0.0.1:8080");
    assert_eq!(node.lab.sh("cat /proc/sys/net/ipv4/conf/cni0/route_localnet"), "0\n");
    node.remove(&key("n", "c1"), &none);

    let all = plan(2, &[forward(Protocol::Tcp, 8080, None)], Snat::All);
    expect![[r#"
        inet netwright hostports4 { tcp . 8080 : 10.1.0.2 . 80 }
        inet netwright hairpin4 { "cni0" . "cni0" . 10.1.0.2 }
        inet netwright local_snat4 { "cni0" . 10.1.0.2 }
        inet netwright snat_all4 { "cni0" . 10.1.0.2 }
        inet netwright hostports6 { tcp . 8080 : fd00:1::2 . 80 }
        inet netwright loopback6 { tcp . 8080 }
        inet netwright hairpin6 { "cni0" . "cni0" . fd00:1::2 }
        inet netwright local_snat6 { "cni0" . fd00:1::2 }
        inet netwright snat_all6 { "cni0" . fd00:1::2 }
        shared localnet cni0
          inet netwright localnet { "cni0" }
        shared loopback6 cni0
    "#]]
    .assert_eq(&all.to_string());
    node.add(&key("n", "c1"), &all);
    let seen = |to| traffic::assert_tcp(&node.outside, to).seen.ip().to_string();
    assert_eq!(seen("198.51.100.1:8080"), "10.1.0.1");
    assert_eq!(seen("[2001:db8:ffff::1]:8080"), "fd00:1::1");
}

/// Podman passes the same ports to each network of a container: with the reference the first
/// network publishes them.
#[test]
fn a_port_held_by_the_same_containers_other_network_is_left_to_it() {
    testkit::require!("root");
    let node = Node::new("same");
    let (first, second) = (web(2), web(3));
    node.record(&key("n", "c1"), &node.c1);
    node.record(&key("m", "c1"), &node.c1);
    node.add(&key("n", "c1"), &first);
    node.add(&key("m", "c1"), &second);
    assert_eq!(node.check(&key("n", "c1"), &first), [""; 0]);
    assert_eq!(node.check(&key("m", "c1"), &second), [""; 0]);
    let _servers = [servers(&node.c1, "c1"), servers(&node.c2, "c2")];
    assert_eq!(traffic::assert_tcp(&node.outside, "198.51.100.1:8080").server, "c1");
    // The second network goes without removing the first's ports.
    node.remove(&key("m", "c1"), &second);
    assert_eq!(node.check(&key("n", "c1"), &first), [""; 0]);
    assert_eq!(traffic::assert_tcp(&node.outside, "198.51.100.1:8080").server, "c1");
    // At one address and at all of them, in either order.
    let at = plan(3, &[forward(Protocol::Tcp, 8080, Some("198.51.100.1"))], Snat::Needed);
    node.add(&key("m", "c1"), &at);
    node.remove(&key("n", "c1"), &first);
    node.add(&key("n", "c1"), &first);
}

/// nerdctl#4253: a second container took the port from the first.
#[test]
fn a_held_port_is_refused_and_its_holder_named() {
    testkit::require!("root");
    let node = Node::new("held");
    let first = web(2);
    node.record(&key("n", "c1"), &node.c1);
    node.add(&key("n", "c1"), &first);
    let before = Snapshot::take(&node.lab);
    for wanted in [
        vec![forward(Protocol::Tcp, 8080, None)],
        vec![forward(Protocol::Tcp, 8080, Some("0.0.0.0"))],
        vec![forward(Protocol::Tcp, 8080, Some("198.51.100.1"))],
        vec![forward(Protocol::Tcp, 8080, Some("2001:db8:ffff::1"))],
        vec![forward(Protocol::Tcp, 7000, None), forward(Protocol::Udp, 8080, None)],
    ] {
        let plan = plan(3, &wanted, Snat::Needed);
        let error = node.firewall(|firewall| firewall.add(&key("n", "c2"), &plan)).unwrap_err();
        assert!(matches!(error, FirewallError::Held { .. }), "{wanted:?}: {error}");
        let text = error.to_string();
        assert!(text.contains("8080") && text.contains("\"c1\""), "{text}");
    }
    before.assert_same(&Snapshot::take(&node.lab));
    // Another protocol and another port are free.
    let other = [forward(Protocol::Sctp, 8080, None), forward(Protocol::Tcp, 8081, None)];
    node.add(&key("n", "c2"), &plan(3, &other, Snat::Needed));
    let _servers = servers(&node.c1, "c1");
    assert_eq!(traffic::assert_tcp(&node.outside, "198.51.100.1:8080").server, "c1");
}

#[test]
fn a_port_at_one_address_keeps_all_addresses_from_being_taken() {
    testkit::require!("root");
    let node = Node::new("heldat");
    node.record(&key("n", "c1"), &node.c1);
    let at = plan(2, &[forward(Protocol::Tcp, 8080, Some("198.51.100.1"))], Snat::Needed);
    node.add(&key("n", "c1"), &at);
    let all = web(3);
    let error = node.firewall(|firewall| firewall.add(&key("n", "c2"), &all)).unwrap_err();
    assert!(error.to_string().contains("container \"c1\""), "{error}");
    // The port is free in IPv6.
    let all6 = plan(3, &[forward(Protocol::Tcp, 8080, Some("::"))], Snat::Needed);
    node.add(&key("n", "c2"), &all6);
    node.remove(&key("n", "c1"), &at);
    let all4 = plan(3, &[forward(Protocol::Tcp, 8080, Some("0.0.0.0"))], Snat::Needed);
    node.add(&key("m", "c2"), &all4);
}

#[test]
fn the_port_of_a_container_that_is_gone_is_taken_over() {
    testkit::require!("root");
    let node = Node::new("takeover");
    node.record(&key("n", "c1"), &node.c1);
    node.add(&key("n", "c1"), &web(2));
    node.c1.delete();
    node.add(&key("n", "c2"), &web(3));
    let _servers = servers(&node.c2, "c2");
    assert_eq!(traffic::assert_tcp(&node.outside, "198.51.100.1:8080").server, "c2");
    // The first container's DEL comes at last, and must not remove what now belongs to another.
    node.remove(&key("n", "c1"), &web(2));
    assert_eq!(node.check(&key("n", "c2"), &web(3)), Vec::<String>::new());
    assert_eq!(traffic::assert_tcp(&node.outside, "198.51.100.1:8080").server, "c2");
}

#[test]
fn a_thousand_ports() {
    testkit::require!("root");
    let node = Node::new("thousand");
    let forwards: Vec<Forward> =
        (10_000..11_000).map(|port| forward(Protocol::Tcp, port, None)).collect();
    let plan = plan(2, &forwards, Snat::Needed);
    node.add(&key("n", "c1"), &plan);
    let _servers = servers(&node.c1, "c1");
    for to in ["198.51.100.1:10000", "198.51.100.1:10999", "[2001:db8:ffff::1]:10500"] {
        assert_eq!(traffic::assert_tcp(&node.outside, to).server, "c1");
    }
    assert_eq!(node.check(&key("n", "c1"), &plan), Vec::<String>::new());
    node.remove(&key("n", "c1"), &plan);
    assert_eq!(node.elements(), "");
}

#[test]
fn contradictions_in_one_request_are_refused() {
    let twice = |second: u16| {
        let first = forward(Protocol::Tcp, 8080, None);
        let second = Forward { container_port: second, ..first };
        hostport::plan(&[first, second], &targets(2), Snat::No)
    };
    assert_eq!(twice(80).unwrap().own.len(), 2);
    let error = twice(81).unwrap_err();
    assert_eq!(
        error.to_string(),
        "host port 8080/tcp is asked for twice, for container ports 80 and 81"
    );
}
