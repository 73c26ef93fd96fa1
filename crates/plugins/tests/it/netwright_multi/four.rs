//! Four networks of four kinds, a VLAN among them, and how a repair restores what another program
//! changes.

use node_api::multinet::{DETACH, PlannedNetwork, Request};
use npwg::status::{self, Form};
use serde_json::{Value, json};
use testkit::traffic::assert_pings;
use testkit::{Container, Place};

use super::{bridge, default, links, list, node, planned, pod};
use crate::support::Node;
use crate::support::matrix::{addresses, assert_settles, look};
use crate::support::multinet::Daemon;

/// What answers on the networks: the bridge, the neighbour on the wire, the host's end of the pair,
/// the neighbour in the VLAN.
const NEIGHBOURS: [&str; 4] = ["10.1.0.1", "10.2.0.1", "10.3.0.1", "10.4.0.1"];

/// A bridge, a macvlan that has the default route, a routed pair, and VLAN 7.
fn networks(node: &Node) -> Vec<PlannedNetwork> {
    node.sh(
        "ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up
         ip addr add 10.2.0.1/24 dev p1
         ip link add q0 type veth peer name q1 && ip link set q0 up && ip link set q1 up
         ip link add link q1 name q1.7 type vlan id 7 && ip link set q1.7 up && ip addr add 10.4.0.1/24 dev q1.7",
    );
    let fixed = |address: &str, route: Value| json!({ "type": "static", "addresses": [{ "address": address }], "routes": [route] });
    let mut second = planned(
        "ns/lan",
        &list(
            "lan",
            json!([{
                "type": "macvlan", "master": "p0",
                "ipam": fixed("10.2.0.5/24", json!({ "dst": "192.0.2.0/24", "gw": "10.2.0.9" })),
            }]),
        ),
    );
    second.ifname = Some("data0".to_owned());
    second.default_route = Some(vec!["10.2.0.1".parse().unwrap()]);
    let third = planned(
        "ns/pair",
        &list(
            "pair",
            json!([{
                "type": "ptp",
                "ipam": {
                    "type": "host-local", "dataDir": node.dir("held"), "ranges": [[{ "subnet": "10.3.0.0/24" }]],
                    "routes": [{ "dst": "198.51.100.0/24" }],
                },
            }]),
        ),
    );
    let mut fourth = planned(
        "other/tagged",
        &list(
            "tagged",
            json!([{
                "type": "vlan", "master": "q0", "vlanId": 7,
                "ipam": fixed("10.4.0.5/24", json!({ "dst": "203.0.113.0/24", "gw": "10.4.0.1" })),
            }]),
        ),
    );
    fourth.ifname = Some("tagged0".to_owned());
    vec![default(), second, third, fourth]
}

#[track_caller]
fn assert_all_there(c1: &Container) {
    assert_eq!(c1.sh("ip route show default").trim(), "default via 10.2.0.1 dev data0");
    for (interface, route) in [
        ("data0", "192.0.2.0/24 via 10.2.0.9"),
        ("net2", "198.51.100.0/24 via 10.3.0.1"),
        ("tagged0", "203.0.113.0/24 via 10.4.0.1"),
    ] {
        let shown = c1.sh(&format!("ip route show dev {interface}"));
        assert!(shown.contains(route), "{interface}: {shown}");
    }
    for address in NEIGHBOURS {
        assert_pings(c1, address);
    }
}

/// What the daemon would write.
fn annotation(heard: &[Request]) -> Value {
    let attached = heard.iter().find_map(|request| match request {
        Request::Attached(attached) => Some(attached),
        _ => None,
    });
    let told = attached.expect("it was reported").results.iter().flat_map(|given| {
        let result = cni::AddResult::parse(&given.result.to_vec(), cni::Version::CURRENT).unwrap();
        status::of_result(&given.name, &given.ifname, given.default, &result, None)
    });
    serde_json::from_str(&status::write(&told.collect::<Vec<_>>(), Form::Library)).unwrap()
}

fn mac(container: &Container, interface: &str) -> String {
    container.sh(&format!("ip -j link show {interface} | jq -r '.[0].address'")).trim().to_owned()
}

#[test]
fn vm_a_vlan_among_four_networks() {
    testkit::require!("root", "vlan", "full");
    let node = node("pod-tagged");
    let networks = networks(&node);
    let (c0, c1) = (node.container("c0"), node.container("c1"));
    // The first container leaves locks.
    let first = Daemon::planning(&node, vec![default()]);
    pod(&node, "ADD", &c0).call().ok();
    pod(&node, "DEL", &c0).call().silent();
    drop(first);
    let daemon = Daemon::planning(&node, networks.clone());
    let before = look(&node);
    let result = pod(&node, "ADD", &c1).call().ok();
    assert_eq!(links(&c1), ["eth0", "data0", "net2", "tagged0"]);
    assert!(c1.sh("ip -d link show tagged0").contains("vlan protocol 802.1Q id 7"));
    assert_all_there(&c1);

    let one = |name: &str, interface: &str, ips: Value| json!({ "name": name, "interface": interface, "ips": ips, "mac": mac(&c1, interface), "mtu": 1500, "dns": {} });
    let own: Vec<Value> =
        result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].clone()).collect();
    let bare = |address: &Value| json!(address.as_str().unwrap().split('/').next());
    let mut wanted = json!([
        one("cluster", "eth0", own.iter().map(bare).collect()),
        one("ns/lan", "data0", json!(["10.2.0.5"])),
        one("ns/pair", "net2", json!(["10.3.0.2"])),
        one("other/tagged", "tagged0", json!(["10.4.0.5"])),
    ]);
    wanted[0]["default"] = json!(true);
    wanted[0]["gateway"] = json!(["fd00:1::1"]);
    wanted[1]["gateway"] = json!(["10.2.0.1"]);
    assert_eq!(annotation(&daemon.heard()), wanted);
    pod(&node, "CHECK", &c1).prev(&result).call().silent();

    // The VLAN's network is removed while the others stay, and its VLAN ID is free.
    pod(&node, "DEL", &c1).config(json!({ DETACH: "tagged0" })).call().silent();
    assert_eq!(links(&c1), ["eth0", "data0", "net2"]);
    assert_eq!(c1.sh("ip route show default").trim(), "default via 10.2.0.1 dev data0");
    for address in &NEIGHBOURS[..3] {
        assert_pings(&c1, address);
    }
    pod(&node, "CHECK", &c1).prev(&result).call().silent();
    let keys = json!({ node_api::multinet::ATTACH: serde_json::to_value(&networks[3]).unwrap() });
    pod(&node, "ADD", &c1).config(keys).call().ok();
    assert_all_there(&c1);

    pod(&node, "DEL", &c1).prev(&result).call().silent();
    assert_eq!(links(&c1), [""; 0]);
    assert_settles(&before, &node);
    assert_eq!(addresses(&node), "");
}

/// Repair goes to every network, and reports what each restored.
#[test]
fn what_somebody_changed_on_any_network_is_put_back() {
    testkit::require!("root");
    let node = node("pod-repair");
    let blue = planned("ns/blue", &list("blue", json!([bridge(&node, 2)])));
    let _daemon = Daemon::planning(&node, vec![default(), blue]);
    let c1 = node.container("c1");
    let result = pod(&node, "ADD", &c1).call().ok();
    let address = |interface: &str| {
        let shown = c1.sh(&format!("ip -o -4 addr show {interface}"));
        shown.split_whitespace().nth(3).unwrap().to_owned()
    };
    let (first, second) = (address("eth0"), address("net1"));
    let repair = || {
        let said = pod(&node, "CHECK", &c1).prev(&result).config(json!({ cni::REPAIR: true }));
        let said = said.call();
        assert!(said.succeeded(), "{said:?}");
        cni::RepairReport::parse(&said.output.stdout).lines
    };
    assert_eq!(repair(), [""; 0], "there is nothing to do");
    c1.sh(&format!("ip addr del {first} dev eth0; ip addr del {second} dev net1"));
    c1.sh("ip link set net1 down");
    let drifted = pod(&node, "CHECK", &c1).prev(&result).call().error();
    assert_eq!(drifted.code, 104, "{drifted:?}");
    let lines = repair();
    for words in [&first, &second] {
        assert!(lines.iter().any(|line| line.contains(words)), "{words}: {lines:?}");
    }
    assert_eq!((address("eth0"), address("net1")), (first, second));
    pod(&node, "CHECK", &c1).prev(&result).call().silent();
    assert_pings(&c1, "10.2.0.1");
    // The repair does not make a missing interface again while a process runs, but repairs the
    // others.
    c1.sh("ip link del net1; ip link set eth0 down");
    let said = pod(&node, "CHECK", &c1).prev(&result).config(json!({ cni::REPAIR: true })).call();
    let error = said.error();
    assert!(error.to_string().contains("network \"blue\""), "{error:?}");
    assert!(c1.sh("ip -o link show eth0 up").contains("eth0"));
    pod(&node, "DEL", &c1).call().silent();
    pod(&node, "CHECK", &c1).prev(&result).call().fails(3, "is not attached");
    let gone = pod(&node, "CHECK", &c1).prev(&result).config(json!({ cni::REPAIR: true }));
    gone.call().fails(3, "is not attached");
}
