//! The tables of drifts.

mod chance;

use serde_json::json;
use testkit::drift::DamagePlace::{Container as Inside, Host};
use testkit::drift::{BRIDGE, Drift};
use testkit::{Container, Place};

use super::{Chain, differences, picture};
use crate::support::Node;

/// A container whose gateway is the host's end of its veth pair.
const PTP: &[Drift] = &[
    Drift("address gone", Inside, "ip addr del 10.1.0.2/24 dev eth0", "10.1.0.2/24"),
    Drift("the way to the gateway gone", Inside, "ip route del 10.1.0.1/32", "route 10.1.0.1/32"),
    Drift("IPv6 default route gone", Inside, "ip -6 route del default", "route ::/0"),
    Drift("container's link down", Inside, "ip link set eth0 down", "\"eth0\" is down"),
    Drift("host's route gone", Host, "ip route del 10.1.0.2", "route to 10.1.0.2/32"),
    Drift("host's IPv6 route gone", Host, "ip -6 route del fd00:1::2", "route to fd00:1::2/128"),
    Drift(
        "gateway address gone",
        Host,
        "ip addr del 10.1.0.1/32 dev $port",
        "gateway address 10.1.0.1",
    ),
    Drift("host end down", Host, "ip link set $port down", "is down"),
    Drift(
        "host end's link-local address gone",
        Host,
        "ip link set $port addrgenmode none; ip -6 addr flush dev $port scope link",
        "link-local IPv6 address is gone",
    ),
    Drift(
        "IPv6 off on the host's end",
        Host,
        "sysctl -qw net.ipv6.conf.$port.disable_ipv6=1",
        "IPv6 is switched off on link",
    ),
    Drift(
        "host end's MAC changed",
        Host,
        "ip link set $port address 02:00:00:00:00:09",
        "02:00:00:00:00:09",
    ),
    Drift("host end's MTU changed", Host, "ip link set $port mtu 1280", "has MTU 1280"),
    Drift(
        "IPv4 forwarding off",
        Host,
        "sysctl -qw net.ipv4.ip_forward=0",
        "IPv4 forwarding is off",
    ),
    Drift("the whole ruleset flushed", Host, "nft flush ruleset", "missing: table"),
    Drift("loopback down", Inside, "ip link set lo down", "loopback interface is down"),
];

fn ptp(node: &Node) -> Vec<(&'static str, serde_json::Value)> {
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"),
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    });
    vec![("ptp", json!({ "ipMasq": true, "ipam": ipam })), ("loopback", json!({}))]
}

/// Packets leave by the interface whose address they carry.
const SBR: &[Drift] = &[
    Drift(
        "rule gone",
        Inside,
        "ip rule del from 10.1.0.2",
        "no rule that sends packets from 10.1.0.2",
    ),
    Drift(
        "IPv6 rule gone",
        Inside,
        "ip -6 rule del from fd00:1::2",
        "no rule that sends packets from fd00:1::2",
    ),
    Drift(
        "policy table's route gone",
        Inside,
        "ip route del default table 100",
        "has no default route via 10.1.0.1",
    ),
    Drift(
        "policy table flushed",
        Inside,
        "ip route flush table 100",
        "table 100 of address 10.1.0.2 has no route 10.1.0.0/24",
    ),
    Drift(
        "IPv6 policy table flushed",
        Inside,
        "ip -6 route flush table 101",
        "table 101 of address fd00:1::2 has no route fd00:1::/64",
    ),
    Drift(
        "a route too many in the main table",
        Inside,
        "ip route add default via 10.1.0.1 dev eth0 onlink",
        "the main table has route",
    ),
];

fn sbr(node: &Node) -> Vec<(&'static str, serde_json::Value)> {
    let keys = ptp(node).remove(0).1;
    vec![("bridge", json!({ "isGateway": true, "ipam": keys["ipam"] })), ("sbr", json!({}))]
}

/// A container on a parent link of the host.
const MACVLAN: &[Drift] = &[
    Drift("address gone", Inside, "ip addr del 10.1.0.2/24 dev eth0", "10.1.0.2/24"),
    Drift("IPv6 address gone", Inside, "ip addr del fd00:1::2/64 dev eth0", "fd00:1::2/64"),
    Drift("default route gone", Inside, "ip route del default", "route 0.0.0.0/0"),
    Drift("link down", Inside, "ip link set eth0 down", "\"eth0\" is down"),
    Drift("MAC changed", Inside, "ip link set eth0 address 02:00:00:00:00:07", "02:00:00:00:00:07"),
    Drift("reservation gone", Host, "rm $ipam/n/fd00:1::2", "fd00:1::2 is not reserved"),
];

/// Makes the parent.
const PARENT: &str =
    "ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up";

fn macvlan(node: &Node) -> Vec<(&'static str, serde_json::Value)> {
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"),
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
    });
    vec![("macvlan", json!({ "master": "p0", "ipam": ipam }))]
}

/// Ports of a bridge with VLANs.
const VLANS: &[Drift] = &[
    Drift("port's VLAN gone", Host, "bridge vlan del dev $port vid 100", "is not in VLAN 100"),
    Drift("port's trunk gone", Host, "bridge vlan del dev $port vid 102", "is not in VLAN 102"),
    Drift(
        "port's VLAN tagged",
        Host,
        "bridge vlan del dev $port vid 100; bridge vlan add dev $port vid 100",
        "VLAN 100 is not port",
    ),
    Drift(
        "filtering off",
        Host,
        "ip link set cni0 type bridge vlan_filtering 0",
        "does not filter VLANs",
    ),
];

/// The link that carries the gateway of a VLAN.
const VLAN_GATEWAY: &[Drift] = &[
    Drift("gateway's link down", Host, "ip link set cni0.100 down", "link \"cni0.100\" is down"),
    Drift(
        "gateway's link off the bridge",
        Host,
        "ip link set $gateway nomaster",
        "to the gateway is not a port of bridge",
    ),
    Drift(
        "gateway's link in another VLAN",
        Host,
        "bridge vlan add dev $gateway vid 7 pvid untagged",
        "VLAN 100 is not port",
    ),
    Drift(
        "gateway's link without IPv6",
        Host,
        "sysctl -qw net.ipv6.conf.cni0/100.disable_ipv6=1",
        "IPv6 is switched off on link \"cni0.100\"",
    ),
];

/// A container's interface in a VRF.
const VRF: &[Drift] = &[
    Drift("out of the VRF", Inside, "ip link set eth0 nomaster", "is not in VRF"),
    Drift("VRF down", Inside, "ip link set red down", "VRF \"red\" is down"),
    Drift("VRF gone", Inside, "ip link del red", "VRF \"red\" is gone"),
];

fn bridge(node: &Node) -> Vec<(&'static str, serde_json::Value)> {
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"),
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
        "routes": [{ "dst": "198.51.100.0/24" }, { "dst": "2001:db8::/32" }],
    });
    let rate = 8_000_000;
    vec![
        (
            "bridge",
            json!({ "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true, "macspoofchk": true,
                "portIsolation": true, "ipam": ipam }),
        ),
        (
            "tuning",
            json!({ "mtu": 1400, "allmulti": true, "txQLen": 500, "dataDir": node.dir("tuning"),
                "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" } }),
        ),
        (
            "bandwidth",
            json!({ "ingressRate": rate, "ingressBurst": rate, "egressRate": rate, "egressBurst": rate }),
        ),
        (
            "portmap",
            json!({ "runtimeConfig": { "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] } }),
        ),
        ("firewall", json!({ "ingressPolicy": "same-bridge" })),
    ]
}

/// Does and repairs each damage; returns how many there were.
fn run(node: &Node, chain: &Chain<'_>, words: &[(&str, String)], drifts: &[Drift]) -> usize {
    let container: &Container = chain.container;
    let fill = |text: &str| {
        words.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    };
    assert_eq!(chain.drift(), [""; 0]);
    assert_eq!(chain.repair(), (Vec::new(), Vec::new()), "nothing is amiss");
    let before = picture(&node.lab, container);
    let mut problems = Vec::new();
    for Drift(name, at, damage, told) in drifts {
        let (damage, told) = (fill(damage), fill(told));
        match at {
            Host => node.sh(&damage),
            Inside => container.sh(&damage),
        };
        let mut tell = |what: &str, lines: &[String]| {
            problems.push(format!("{name}: {what}\n  {}", lines.join("\n  ")));
        };
        let found = chain.drift();
        if !found.iter().any(|line| line.contains(&told)) {
            tell(&format!("CHECK does not say {told:?}"), &found);
        }
        let (put_back, left) = chain.repair();
        if !left.is_empty() {
            tell("could not be put back", &left);
        }
        if put_back.is_empty() {
            tell("nothing was put back", &[]);
        }
        let found = chain.drift();
        if !found.is_empty() {
            tell("CHECK still fails", &found);
        }
        let different = differences(&before, &picture(&node.lab, container));
        if !different.is_empty() {
            tell("it is not as before", &different);
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    drifts.len()
}

#[test]
fn check_names_each_drift_and_repair_puts_it_back() {
    testkit::require!("root");
    let node = Node::new("drift");
    let c1 = node.container("c1");
    let chain = Chain::add(&node, &c1, bridge(&node));
    let port = chain.result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let ifb = node.sh("ip -br link show type ifb | cut -d ' ' -f 1").trim().to_owned();
    let words = [("$port", port), ("$ifb", ifb), ("$ipam", node.dir("ipam").display().to_string())];
    let named = run(&node, &chain, &words, BRIDGE);
    eprintln!("MEASURED {named} drifts named and put back");
    chain.del();
}

/// Drifts of [`BRIDGE`] that happen at once. One may hide another, or undo what was restored.
const TOGETHER: &[&[&str]] = &[
    &["STP on", "bridge's link-local address gone", "container's link down"],
    &["bridge gone", "default route gone", "container's link down", "IPv4 forwarding off"],
    &["bridge's MAC changed", "host end off the bridge", "IPv6 address gone"],
    &["IPv6 off on the bridge", "host end down", "host end's MTU changed", "owner's mark gone"],
    &["bridge down", "port switched off", "a route gone", "hairpin off", "isolation off"],
];

#[test]
fn one_repair_restores_what_differs_at_once() {
    testkit::require!("root");
    let node = Node::new("drift-together");
    let c1 = node.container("c1");
    let chain = Chain::add(&node, &c1, bridge(&node));
    let port = chain.result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let before = picture(&node.lab, &c1);
    for names in TOGETHER {
        for name in *names {
            let found = BRIDGE.iter().find(|drift| drift.0 == *name);
            let Drift(_, at, damage, _) = found.unwrap_or_else(|| panic!("no drift {name:?}"));
            let damage = damage.replace("$port", &port);
            match at {
                Host => node.sh(&damage),
                Inside => c1.sh(&damage),
            };
        }
        assert_ne!(chain.drift(), [""; 0], "{names:?}");
        let (put_back, left) = chain.repair_times(1);
        assert_eq!(left, [""; 0], "{names:?}: {put_back:#?}");
        assert_eq!(chain.drift(), [""; 0], "{names:?}: {put_back:#?}");
        assert_eq!(differences(&before, &picture(&node.lab, &c1)), [""; 0], "{names:?}");
    }
    chain.del();
}

#[test]
fn a_pair_and_the_hosts_routes_are_put_back() {
    testkit::require!("root");
    let node = Node::new("drift-ptp");
    let c1 = node.container("c1");
    let chain = Chain::add(&node, &c1, ptp(&node));
    let port = chain.result["interfaces"][0]["name"].as_str().unwrap().to_owned();
    let named = run(&node, &chain, &[("$port", port)], PTP);
    eprintln!("MEASURED {named} drifts named and put back");
    chain.del();
}

#[test]
fn policy_routes_are_put_back() {
    testkit::require!("root");
    let node = Node::new("drift-sbr");
    let c1 = node.container("c1");
    let chain = Chain::add(&node, &c1, sbr(&node));
    let named = run(&node, &chain, &[], SBR);
    eprintln!("MEASURED {named} drifts named and put back");
    chain.del();
}

#[test]
fn a_single_link_is_put_back() {
    testkit::require!("root");
    let node = Node::new("drift-macvlan");
    node.sh(PARENT);
    let c1 = node.container("c1");
    let chain = Chain::add(&node, &c1, macvlan(&node));
    let words = [("$ipam", node.dir("ipam").display().to_string())];
    let named = run(&node, &chain, &words, MACVLAN);
    eprintln!("MEASURED {named} drifts named and put back");
    chain.del();
}

#[test]
fn vm_vlans_of_a_port_are_put_back() {
    testkit::require!("root", "bridge-vlan-filtering");
    let node = Node::new("drift-vlan");
    let c1 = node.container("c1");
    let trunk = json!({ "vlan": 100, "vlanTrunk": [{ "id": 101 }, { "id": 102 }] });
    let chain = Chain::add(&node, &c1, vec![("bridge", trunk)]);
    let port = chain.result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let named = run(&node, &chain, &[("$port", port)], VLANS);
    eprintln!("MEASURED {named} drifts named and put back");
    chain.del();
}

#[test]
fn vm_the_gateway_of_a_vlan_is_put_back() {
    testkit::require!("root", "full", "bridge-vlan-filtering");
    let node = Node::new("drift-gateway");
    let c1 = node.container("c1");
    let keys = json!({ "vlan": 100, "isGateway": true, "ipam": ptp(&node)[0].1["ipam"] });
    let chain = Chain::add(&node, &c1, vec![("bridge", keys)]);
    let port = chain.result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let ports = node.sh("ip -br link show type veth master cni0");
    let mut ports = ports.split_whitespace().filter_map(|word| word.split('@').next());
    let gateway = ports.find(|name| name.starts_with("veth") && *name != port).unwrap().to_owned();
    let named = run(&node, &chain, &[("$gateway", gateway)], VLAN_GATEWAY);
    // The new link has the old hardware address; its other end may have another.
    let mac = || node.sh("cat /sys/class/net/cni0.100/address");
    let before = mac();
    node.sh("ip link del cni0.100");
    assert!(chain.drift()[0].contains("with the gateway is gone"));
    assert_eq!(chain.repair().1, [""; 0]);
    assert_eq!((chain.drift(), mac()), (Vec::new(), before));
    c1.sh("ping -n -q -c 1 -W 5 10.1.0.1 && ping -n -q -c 1 -W 5 fd00:1::1");
    eprintln!("MEASURED {} drifts named and put back", named + 1);
    chain.del();
}

#[test]
fn vm_a_vrf_is_put_back() {
    testkit::require!("root", "full", "vrf");
    let node = Node::new("drift-vrf");
    let c1 = node.container("c1");
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"),
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    });
    let bridge = json!({ "isGateway": true, "ipam": ipam });
    let chain =
        Chain::add(&node, &c1, vec![("bridge", bridge), ("vrf", json!({ "vrfname": "red" }))]);
    let named = run(&node, &chain, &[], VRF);
    eprintln!("MEASURED {named} drifts named and put back");
    chain.del();
}
