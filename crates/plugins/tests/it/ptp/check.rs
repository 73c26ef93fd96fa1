//! CHECK detects every drift, also on the host's side.

use serde_json::json;
use testkit::{Container, Place};

use super::{attach, dual, host_ifname, ptp};
use crate::support::Node;

enum Site {
    Host,
    Container,
}

fn run(at: &Site, node: &Node, container: &Container, script: &str) {
    match at {
        Site::Host => node.sh(script),
        Site::Container => container.sh(script),
    };
}

#[test]
fn check_sees_every_drift() {
    let node = Node::new("ptp-check");
    let c1 = node.container("c1");
    let config = json!({ "ipMasq": true });
    let result = attach(&node, &c1, &dual(2), config.clone());
    let host = host_ifname(&result);
    let mac = result["interfaces"][1]["mac"].as_str().unwrap();
    let host_mac = result["interfaces"][0]["mac"].as_str().unwrap();
    let check = || ptp(&node, "CHECK", &c1).config(config.clone()).prev(&result);
    check().call().silent();
    for (at, damage, repair, words) in [
        (
            Site::Container,
            "ip addr del fd00:1::2/64 dev eth0",
            "ip addr add fd00:1::2/64 dev eth0 nodad noprefixroute && ip -6 route replace fd00:1::1 dev eth0 && \
             ip -6 route replace fd00:1::/64 via fd00:1::1 && ip -6 route replace default via fd00:1::1",
            "failed to find IP fd00:1::2/64",
        ),
        (
            Site::Container,
            "ip route del default",
            "ip route add default via 10.1.0.1",
            "failed to find route 0.0.0.0/0",
        ),
        (
            Site::Container,
            "ip route del 10.1.0.0/24",
            "ip route add 10.1.0.0/24 via 10.1.0.1 src 10.1.0.2",
            "failed to find route 10.1.0.0/24 via 10.1.0.1",
        ),
        (
            Site::Container,
            "ip link set eth0 address 02:00:00:00:00:07",
            &format!("ip link set eth0 address {mac}"),
            "\"eth0\" has MAC address 02:00:00:00:00:07",
        ),
        (
            Site::Host,
            &format!("ip link set {host} address 02:00:00:00:00:08"),
            &format!("ip link set {host} address {host_mac}"),
            "has MAC address 02:00:00:00:00:08",
        ),
        (
            Site::Host,
            &format!("ip route del 10.1.0.2 dev {host}"),
            &format!("ip route add 10.1.0.2 dev {host} scope host"),
            "the host's route to 10.1.0.2/32",
        ),
        (
            Site::Host,
            &format!("ip route del fd00:1::2 dev {host}"),
            &format!("ip route add fd00:1::2 dev {host}"),
            "the host's route to fd00:1::2/128",
        ),
        (
            Site::Host,
            &format!("ip addr del fd00:1::1/128 dev {host}"),
            &format!("ip addr add fd00:1::1/128 dev {host} nodad"),
            "gateway address fd00:1::1 is gone",
        ),
        (
            Site::Host,
            "sysctl -qw net.ipv4.ip_forward=0",
            "sysctl -qw net.ipv4.ip_forward=1",
            "IPv4 forwarding is off",
        ),
        (
            Site::Host,
            "sysctl -qw net.ipv6.conf.all.forwarding=0",
            "sysctl -qw net.ipv6.conf.all.forwarding=1",
            "IPv6 forwarding is off",
        ),
    ] {
        run(&at, &node, &c1, damage);
        check().call().fails(104, words);
        run(&at, &node, &c1, repair);
        check().call().silent();
    }
    check().without("prevResult").call().fails(7, "Required prevResult missing");
    node.sh("nft flush map inet netwright masquerade4");
    check().call().fails(104, "packet filter");
    c1.sh("ip link set eth0 down");
    check().call().fails(104, "is down");
    node.sh(&format!("ip link del {host}"));
    check().call().fails(104, "interface \"eth0\" is gone");
}

#[test]
fn routes_that_later_plugins_moved_are_found() {
    let node = Node::new("ptp-moved");
    let c1 = node.container("c1");
    let result = attach(&node, &c1, &dual(2), json!({}));
    c1.sh("ip route del default && ip route del 10.1.0.0/24 && \
           ip route add 10.1.0.1 dev eth0 table 100 && ip route add 10.1.0.0/24 via 10.1.0.1 table 100 && \
           ip route add default via 10.1.0.1 table 100");
    ptp(&node, "CHECK", &c1).prev(&result).call().silent();
}

#[test]
fn check_works_without_our_record() {
    let node = Node::new("ptp-norecord");
    let c1 = node.container("c1");
    let config = json!({ "ipMasq": true });
    let result = attach(&node, &c1, &dual(2), config.clone());
    node.sh(&format!("rm -r {}/owners", node.roots.run.display()));
    let check = || ptp(&node, "CHECK", &c1).config(config.clone()).prev(&result);
    check().call().silent();
    node.sh("nft flush map inet netwright masquerade6");
    check().call().fails(104, "packet filter");
}
