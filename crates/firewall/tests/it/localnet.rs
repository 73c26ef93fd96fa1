//! `route_localnet` on the link to a container lets nothing else in, whatever the link is.

use std::net::UdpSocket;

use firewall::element::Protocol;
use firewall::hostport::{self, Forward, Snat, Target};
use netwright_firewall as firewall;
use testkit::Place;
use testkit::traffic::{self, Server};

use crate::support::{Node, key};

/// CVE-2020-8558, k8s#90259. The container's link is a VLAN device on a bridge. Under
/// `br_netfilter` the packet filter sees the container's packets come in by the bridge alone.
#[test]
fn vm_loopback_addresses_do_not_come_in_by_a_vlan_device_of_a_bridge() {
    testkit::require!("root", "bridge-vlan-filtering", "vlan", "br_netfilter");
    let node = Node::new("martianvlan");
    node.lab.sh(
        "ip link set cni0 type bridge vlan_filtering 1 && bridge vlan add dev cni0 vid 7 self && \
         for port in vc1 vc2; do bridge vlan del dev $port vid 1 && \
         bridge vlan add dev $port vid 7 pvid untagged || exit 1; done && \
         ip addr flush dev cni0 && ip link add link cni0 name cni0.7 type vlan id 7 && \
         ip addr add 10.1.0.1/24 dev cni0.7 && ip link set cni0.7 up",
    );
    let forward =
        Forward { protocol: Protocol::Tcp, host_port: 8080, container_port: 80, host_ip: None };
    let target =
        Target { address: "10.1.0.2".parse().unwrap(), host_ifname: Some("cni0.7".to_owned()) };
    node.add(&key("n", "c1"), &hostport::plan(&[forward], &[target], Snat::Needed).unwrap());
    assert_eq!(node.lab.sh("cat /proc/sys/net/ipv4/conf/cni0.7/route_localnet"), "1\n");
    let _private = Server::udp(&node.lab, "127.0.0.1:7777", "private");
    let _server = Server::tcp(&node.c1, "[::]:80", "c1");
    node.c2.sh("ip addr flush dev lo && for i in all eth0; do \
                echo 1 > /proc/sys/net/ipv4/conf/$i/route_localnet; \
                echo 0 > /proc/sys/net/ipv4/conf/$i/rp_filter; done; \
                ip route replace 127.0.0.0/8 via 10.1.0.1 dev eth0");
    for br_netfilter in [false, true] {
        node.br_netfilter(br_netfilter);
        node.lab.sh("nft add table inet probe; \
             nft 'add chain inet probe pre { type filter hook prerouting priority -400; }'; \
             nft 'add chain inet probe in { type filter hook input priority 300; }'; \
             for chain in pre in; do \
             nft add rule inet probe $chain iifname != lo ip daddr 127.0.0.1 counter; done");
        node.c2.enter(|| {
            UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"?", "127.0.0.1:7777").unwrap();
        });
        // The host sees these after that packet.
        traffic::assert_pings(&node.c2, "10.1.0.1");
        let counted = |chain| node.lab.sh(&format!("nft list chain inet probe {chain}"));
        assert!(!counted("pre").contains("packets 0 "), "{br_netfilter}: it came no further");
        assert!(counted("in").contains("packets 0 "), "{br_netfilter}: {}", counted("in"));
        node.lab.sh("nft delete table inet probe");
    }
    // Packets of the host to the published port still arrive there, and the answers arrive here.
    node.br_netfilter(false);
    assert_eq!(traffic::assert_tcp(&node.lab, "127.0.0.1:8080").server, "c1");
}
