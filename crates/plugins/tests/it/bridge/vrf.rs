//! A bridge in a VRF of the host. The tests that need a VRF run in the virtual machine.

use serde_json::{Value, json};
use testkit::traffic::{Server, assert_no_ping, assert_pings, assert_tcp};
use testkit::{Container, Snapshot};

use super::{DUAL, ONE_V4, add, answer_with, del, has_bridge, link, node_with};
use crate::support::{Answer, Node};

fn config(more: &Value) -> Value {
    let mut config = json!({ "isDefaultGateway": true, "vrf": "red", "ipam": { "type": "fixed" } });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn status(node: &Node) -> Answer {
    node.run("bridge", "STATUS").of_network().config(config(&json!({}))).call()
}

/// Runs commands of `ip`, one a line, in one process.
fn ip(node: &Node, commands: &str) {
    node.sh(&format!("ip -batch - <<END\n{commands}\nEND\n"));
}

/// Nothing is made, and STATUS tells.
#[test]
fn a_vrf_that_is_missing_or_none_is_refused() {
    testkit::require!("root");
    let node = node_with("bridge-vrf-none", ONE_V4);
    let c1 = node.container("c1");
    let refuse = |keys: &Value, words: &str| {
        let before = Snapshot::take(&node.lab);
        add(&node, &c1).config(config(keys)).call().fails(7, words);
        before.assert_same(&Snapshot::take(&node.lab));
    };
    refuse(&json!({}), "VRF \"red\" does not exist");
    status(&node).fails(50, "VRF \"red\" does not exist");
    refuse(&json!({ "vrf": "a/b" }), "invalid vrf \"a/b\"");
    let layer2 = json!({ "isDefaultGateway": false });
    refuse(&layer2, "vrf \"red\" needs isGateway or isDefaultGateway");
    node.sh("ip link add red type bridge");
    refuse(&json!({}), "\"red\" is not a VRF but a bridge");
    status(&node).fails(50, "\"red\" is not a VRF but a bridge");
    del(&node, &c1).config(config(&json!({}))).call().silent();
}

/// Puts the uplink into the VRF, with the routes that it had.
fn uplink_in_vrf(node: &Node) -> Container {
    let outside = node.lab.outside();
    // A link that joins a VRF is set down and up, and loses its IPv6 addresses and its routes.
    ip(
        node,
        "link set up0 mtu 1400
         link add red type vrf table 10
         link set red up
         link set up0 master red
         addr add fe80::1/64 dev up0 nodad
         addr add 2001:db8:ffff::1/64 dev up0 nodad
         route add default via 198.51.100.2 table 10
         route add default via 2001:db8:ffff::2 dev up0 table 10",
    );
    outside
}

/// The bridge is created in the VRF: its routes are in the VRF's table, its MTU is that of the VRF's
/// uplink, packets are masqueraded, and a published port is reached from outside with the sender's
/// address.
#[test]
fn vm_a_bridge_in_a_vrf_is_routed_by_the_vrfs_table() {
    testkit::require!("root", "vrf");
    let node = node_with("bridge-vrf", DUAL);
    let outside = uplink_in_vrf(&node);
    let c1 = node.container("c1");
    // With forwarding the kernel adds anycast addresses.
    let routes = "ip route show table 10; ip -6 route show table 10 | grep -v anycast";
    let look = || node.sh(&format!("ip -br link; {routes}"));
    let before = look();
    let config = config(&json!({ "ipMasq": true, "mtu": "auto" }));
    let run = |verb: &'static str| node.run("bridge", verb).to(&c1).config(config.clone());
    let result = run("ADD").call().ok();
    let bridge = link(&node.lab, "cni0");
    assert_eq!((&bridge["master"], &bridge["mtu"]), (&json!("red"), &json!(1400)), "{bridge}");
    let main = node.sh("ip route show dev cni0; ip -6 route show table main dev cni0");
    assert_eq!(main, "");
    let forward = json!([{ "hostPort": 8080, "containerPort": 81, "protocol": "tcp" }]);
    let portmap = json!({ "runtimeConfig": { "portMappings": forward } });
    let publish = |verb: &'static str| {
        node.run("portmap", verb).to(&c1).config(portmap.clone()).prev(&result).call()
    };
    publish("ADD").ok();
    let _servers = [Server::tcp(&outside, "[::]:80", "outside"), Server::tcp(&c1, "[::]:81", "c1")];
    let seen = |from: &Container, to: &str| assert_tcp(from, to).seen.ip().to_canonical();
    assert_eq!(seen(&c1, "198.51.100.2:80").to_string(), "198.51.100.1");
    assert_eq!(seen(&c1, "[2001:db8:ffff::2]:80").to_string(), "2001:db8:ffff::1");
    assert_eq!(seen(&outside, "198.51.100.1:8080").to_string(), "198.51.100.2");
    assert_eq!(seen(&outside, "[2001:db8:ffff::1]:8080").to_string(), "2001:db8:ffff::2");
    run("CHECK").prev(&result).call().silent();
    publish("CHECK").silent();
    publish("DEL").silent();
    run("DEL").call().silent();
    assert_eq!(look(), before);
}

/// For the kernel, what one bridge of a VRF sends to another comes in by the VRF.
#[test]
fn vm_an_ingress_policy_holds_between_bridges_of_a_vrf() {
    testkit::require!("root", "vrf");
    let node = Node::new("bridge-vrf-policy");
    ip(&node, "link add red type vrf table 10\nlink set red up");
    let attach = |name: &str, subnet: u8| {
        let container = node.container(name);
        let answer = json!({ "cniVersion": "1.1.0", "ips": [
            { "address": format!("10.{subnet}.0.2/24"), "gateway": format!("10.{subnet}.0.1") }] });
        answer_with(&node, &answer.to_string());
        let keys = config(&json!({ "bridge": format!("br{subnet}") }));
        let result = add(&node, &container).network(name).config(keys).call().ok();
        (container, result)
    };
    let [(c1, first), (c2, second)] = [attach("c1", 1), attach("c2", 2)];
    assert_pings(&c1, "10.2.0.2");
    for (container, result) in [(&c1, &first), (&c2, &second)] {
        let policy = json!({ "ingressPolicy": "same-bridge" });
        let run = node.run("firewall", "ADD").to(container).network(container.name());
        run.config(policy).prev(result).call().ok();
    }
    assert_no_ping(&c1, "10.2.0.2");
    assert_pings(&c1, "10.1.0.1");
}

/// A bridge that is elsewhere, or that an administrator made, is not moved. The VLANs of one bridge
/// may be in several VRFs: their gateways have links of their own.
#[test]
fn vm_a_bridge_outside_the_vrf_is_refused_and_a_vlan_has_its_own() {
    testkit::require!("root", "full", "vrf", "bridge-vlan-filtering");
    let node = node_with("bridge-vrf-other", ONE_V4);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    ip(
        &node,
        "link add red type vrf table 10
         link set red up
         link add blue type vrf table 20
         link set blue up
         link add cni0 type bridge",
    );
    let refuse = |words: &str| {
        let before = Snapshot::take(&node.lab);
        add(&node, &c1).config(config(&json!({}))).call().fails(108, words);
        before.assert_same(&Snapshot::take(&node.lab));
        status(&node).fails(50, words);
    };
    refuse("link \"cni0\" is in no VRF, the configuration asks for VRF \"red\"");
    ip(&node, "link set cni0 master blue");
    refuse("link \"cni0\" belongs to \"blue\", the configuration asks for VRF \"red\"");
    ip(&node, "link del cni0");
    let in_vlan = |vlan: u16, vrf: &str| config(&json!({ "vlan": vlan, "vrf": vrf }));
    let first = add(&node, &c1).config(in_vlan(100, "red")).call().ok();
    // Another VRF has a table of its own, and may have the same address.
    answer_with(&node, ONE_V4);
    add(&node, &c2).config(in_vlan(200, "blue")).call().ok();
    let masters = ["cni0", "cni0.100", "cni0.200"].map(|name| link(&node.lab, name));
    let masters = masters.each_ref().map(|link| link["master"].as_str().unwrap_or_default());
    assert_eq!(masters, ["", "red", "blue"]);
    node.run("bridge", "CHECK").to(&c1).config(in_vlan(100, "red")).prev(&first).call().silent();
    del(&node, &c1).config(in_vlan(100, "red")).call().silent();
    del(&node, &c2).config(in_vlan(200, "blue")).call().silent();
    assert!(!has_bridge(&node));
}
