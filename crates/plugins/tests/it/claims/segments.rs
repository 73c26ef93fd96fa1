//! Which containers meet: each kind of link leads to a segment, and addresses must differ only
//! within one.

use serde_json::{Value, json};
use testkit::real::Ovs;
use testkit::{Container, Place};

use super::{add, bridge, cable, macvlan, node, one, repair, run, the_second_is_refused};
use crate::support::{Node, fixed};

fn host_device(name: &str) -> Value {
    json!({ "type": "host-device", "device": name })
}

/// One container in each of these networks gets the address, and stays attached.
#[must_use]
fn all_get_it(node: &Node, networks: &[Value]) -> Vec<Container> {
    let mut containers: Vec<Container> = Vec::new();
    for (keys, number) in networks.iter().zip(1..) {
        let container = node.container(&format!("apart{number}"));
        add(node, &container, keys).ok();
        containers.push(container);
    }
    containers
}

#[test]
fn a_lent_device_is_where_it_leads() {
    testkit::require!("root");
    let node = node("claims-lent", &one("10.1.0.2/24", None));
    cable(&node, "p0", "192.0.2.1/24");
    let c1 = node.container("c1");
    add(&node, &c1, &bridge("br0")).ok();
    // A link can be a port of a bridge by the other end of its pair, or can be stacked on a parent.
    node.sh("ip link add nic0 type veth peer name nic0x && ip link set nic0x master br0 up && \
         ip link add mv0 link p0 type macvlan mode bridge");
    let c2 = node.container("c2");
    add(&node, &c2, &host_device("nic0")).fails(108, "taken on \"br0\": n/c1/eth0 has it");
    // The host device was returned as it was.
    node.sh("ip link show nic0 && ip link set nic0 up");
    add(&node, &c2, &host_device("mv0")).ok();
    let c3 = node.container("c3");
    add(&node, &c3, &macvlan("p0")).fails(108, "taken on \"p0\": n/c2/eth0 has it");
    run(&node, "DEL", &c2, &host_device("mv0")).call().silent();
    add(&node, &c3, &macvlan("p0")).ok();
    fixed::answers(&node, &one("192.0.2.1/24", None));
    let words = "address 192.0.2.1 is the host's own, on link \"p0\"";
    add(&node, &c2, &host_device("mv0")).fails(108, words);
}

/// A segment is the link itself and not its name: a bridge or a parent that an administrator
/// renamed stays the same segment, and another link that takes its name is a different one.
#[test]
fn a_link_that_was_renamed_is_the_segment_that_it_was() {
    testkit::require!("root");
    for (made, keys) in [(false, bridge as fn(&str) -> Value), (true, bridge), (true, macvlan)] {
        let node = node("claims-renamed", &one("10.1.0.2/24", None));
        let kind = keys("x")["type"].clone();
        let make = || match kind.as_str() {
            Some("bridge") if made => {
                node.sh("ip link add br0 type bridge && ip link set br0 up");
            }
            Some("macvlan") => cable(&node, "br0", "192.0.2.1/24"),
            _ => {}
        };
        make();
        let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| node.container(name));
        let result = add(&node, &c1, &keys("br0")).ok();
        node.sh("ip link set br0 down && ip link set br0 name br1 && ip link set br1 up");
        if node.sh("ip -br link show br0x 2>/dev/null || true").contains("br0x") {
            // Before Linux 6.2 a link that is up keeps its name.
            node.sh("ip link set br0x down && ip link set br0x name br1x && ip link set br1x up");
        }
        make();
        let words = "is taken on \"br1\": n/c1/eth0 has it";
        add(&node, &c2, &keys("br1")).fails(108, words);
        add(&node, &c3, &keys("br0")).ok();
        add(&node, &c2, &keys("br0")).fails(108, "n/c3/eth0 has it");
        if kind == "macvlan" {
            run(&node, "CHECK", &c1, &keys("br1")).prev(&result).call().silent();
        }
        run(&node, "DEL", &c1, &keys("br0")).call().silent();
        add(&node, &c2, &keys("br1")).ok();
        run(&node, "DEL", &c2, &keys("br1")).call().silent();
        run(&node, "DEL", &c3, &keys("br0")).call().silent();
        assert_eq!(node.sh(&format!("ls {}/claims", node.roots.run.display())), "");
    }
}

/// A bridge that is made again is another link: its containers now hold their addresses there.
#[test]
fn addresses_are_held_on_a_bridge_that_a_repair_made_again() {
    testkit::require!("root");
    let node = node("claims-again", &one("10.1.0.2/24", None));
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let result = add(&node, &c1, &bridge("br0")).ok();
    node.sh("ip link del br0");
    let said = repair(&node, &c1, &bridge("br0"), &result);
    let lines = cni::RepairReport::parse(&said.output.stdout).lines;
    assert!(lines.contains(&"claim of address 10.1.0.2 on br0".to_owned()), "{said:?}");
    add(&node, &c2, &bridge("br0")).fails(108, "n/c1/eth0 has it");
    let held = || node.sh(&format!("ls {}/claims | wc -l", node.roots.run.display()));
    assert_eq!(held().trim(), "1");
    let said = repair(&node, &c1, &bridge("br0"), &result);
    assert_eq!(cni::RepairReport::parse(&said.output.stdout).lines, Vec::<String>::new());
    // The repair adds no second container to an address that another container now has.
    node.sh("ip link set br0 down && ip link set br0 name br1 && ip link set br1 up");
    add(&node, &c2, &bridge("br0")).ok();
    repair(&node, &c1, &bridge("br0"), &result).fails(104, "n/c2/eth0 has it");
    assert!(node.sh("ip -br link show master br1").contains("veth"));
    let c3 = node.container("c3");
    add(&node, &c3, &bridge("br1")).fails(108, "n/c1/eth0 has it");
    run(&node, "DEL", &c1, &bridge("br0")).call().silent();
    run(&node, "DEL", &c2, &bridge("br0")).call().silent();
    assert_eq!(held().trim(), "0");
}

/// A container may get the address that the host had on a device.
#[test]
fn a_device_is_lent_with_the_address_that_the_host_had_on_it() {
    testkit::require!("root");
    let node = node("claims-device", &one("192.0.2.1/24", None));
    cable(&node, "p0", "192.0.2.1/24");
    cable(&node, "p1", "198.51.100.1/24");
    let _all = all_get_it(&node, &[host_device("p0"), host_device("p1")]);
}

#[test]
fn a_parent_in_a_container_is_where_that_one_is_met() {
    testkit::require!("root");
    let node = node("claims-inside", &one("10.1.0.2/24", None));
    let (c1, c2, c3) = (node.container("c1"), node.container("c2"), node.container("c3"));
    let second = |to: &Container, name: &str| {
        let keys = json!({ "type": "macvlan", "master": "eth0", "linkInContainer": true });
        run(&node, "ADD", to, &keys).ifname(name).call()
    };
    add(&node, &c1, &bridge("br0")).ok();
    fixed::answers(&node, &one("10.1.0.3/24", None));
    add(&node, &c2, &bridge("br0")).ok();
    fixed::answers(&node, &one("10.1.0.2/24", None));
    second(&c2, "net1").fails(108, "taken on \"br0\": n/c1/eth0 has it");
    fixed::answers(&node, &one("10.1.0.4/24", None));
    second(&c2, "net1").ok();
    // The outside does not know this parent: only the container's own links meet there.
    c2.sh("ip link add eth9 type veth peer name eth9x && ip link set eth9 up");
    c3.sh("ip link add eth9 type veth peer name eth9x && ip link set eth9 up");
    let keys = json!({ "type": "macvlan", "master": "eth9", "linkInContainer": true });
    run(&node, "ADD", &c2, &keys).ifname("net2").call().ok();
    run(&node, "ADD", &c3, &keys).ifname("net2").call().ok();
    let again = run(&node, "ADD", &c3, &keys).ifname("net3").call();
    again.fails(108, "taken on \"eth9\" in container c3: n/c3/net2 has it");
}

/// A link that leads nowhere, or to a program, shares a segment with no other.
#[test]
fn vm_links_that_lead_nowhere_have_equal_addresses() {
    testkit::require!("root", "tun");
    let node = node("claims-nowhere", &one("10.1.0.2/24", None));
    let tap = json!({ "type": "tap" });
    let _all = all_get_it(&node, &[tap.clone(), tap]);
}

#[test]
fn vm_dummies_have_equal_addresses() {
    testkit::require!("root", "dummy");
    let node = node("claims-dummies", &one("10.1.0.2/24", None));
    let dummy = json!({ "type": "dummy" });
    let _all = all_get_it(&node, &[dummy.clone(), dummy]);
}

#[test]
fn a_switch_has_an_address_once_in_a_vlan() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server");
    let node = node("claims-ovs", &one("10.1.0.2/24", None));
    let ovs = Ovs::start(&node.lab);
    ovs.add_bridge("br0");
    let port = |more: Value| {
        let mut keys = json!({ "type": "ovs", "bridge": "br0", "socket_file": ovs.remote() });
        keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        keys
    };
    let shared = port(json!({ "vlan": 100, "allowAddressConflict": true }));
    let (c1, c2, c3) = (node.container("c1"), node.container("c2"), node.container("c3"));
    add(&node, &c1, &port(json!({ "vlan": 100 }))).ok();
    let words = "taken on VLAN 100 of \"br0\": n/c1/eth0 has it";
    add(&node, &c2, &port(json!({ "vlan": 100 }))).fails(108, words);
    add(&node, &c2, &port(json!({ "vlan": 200 }))).ok();
    add(&node, &c3, &port(json!({}))).ok();
    run(&node, "DEL", &c1, &port(json!({ "vlan": 100 }))).call().silent();
    add(&node, &c1, &shared).ok();
    run(&node, "DEL", &c1, &shared).call().silent();
    // The bridge's own link is in no VLAN.
    fixed::answers(&node, &one("10.1.0.9/24", None));
    node.sh("ip addr add 10.1.0.9/24 dev br0");
    add(&node, &c1, &port(json!({}))).fails(108, "is the host's own, on link \"br0\"");
    add(&node, &c1, &port(json!({ "vlan": 100 }))).ok();
    for (container, keys) in
        [(&c1, json!({ "vlan": 100 })), (&c2, json!({ "vlan": 200 })), (&c3, json!({}))]
    {
        run(&node, "DEL", container, &port(keys)).call().silent();
    }
    assert_eq!(node.sh(&format!("ls {}/claims", node.roots.run.display())), "");
}

#[test]
fn bridges_of_a_switch_that_patch_ports_join_have_an_address_once() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server");
    let node = node("claims-patch", &one("10.1.0.2/24", None));
    let ovs = Ovs::start(&node.lab);
    for (bridge, own, peer) in [("br0", "p0", "p1"), ("br1", "p1", "p0")] {
        ovs.add_bridge(bridge);
        let peer = format!("options:peer={peer}");
        ovs.vsctl(&["add-port", bridge, own, "--", "set", "interface", own, "type=patch", &peer]);
    }
    let port = |bridge: &str, vlan: u16| {
        let mut keys = json!({ "type": "ovs", "bridge": bridge, "vlan": vlan });
        keys["socket_file"] = json!(ovs.remote());
        keys
    };
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    add(&node, &c1, &port("br0", 100)).ok();
    add(&node, &c2, &port("br1", 100)).fails(108, "n/c1/eth0 has it");
    add(&node, &c2, &port("br1", 200)).ok();
    run(&node, "DEL", &c2, &port("br1", 200)).call().silent();
    // The trunk does not carry the VLAN. An address is claimed in the segment that it had at ADD.
    ovs.vsctl(&["set", "port", "p1", "trunks=200"]);
    add(&node, &c2, &port("br1", 100)).fails(108, "n/c1/eth0 has it");
    run(&node, "DEL", &c1, &port("br0", 100)).call().silent();
    add(&node, &c1, &port("br0", 100)).ok();
    add(&node, &c2, &port("br1", 100)).ok();
    for (container, bridge) in [(&c1, "br0"), (&c2, "br1")] {
        run(&node, "DEL", container, &port(bridge, 100)).call().silent();
    }
    assert_eq!(node.sh(&format!("ls {}/claims", node.roots.run.display())), "");
}

/// The members of `multi` are separate attachments.
#[test]
fn networks_of_one_container_claim_their_addresses() {
    testkit::require!("root");
    let node = node("claims-multi", &one("10.1.0.2/24", None));
    let member = |name: &str| {
        let mut config = bridge(name);
        config["ipam"] = fixed::ipam()["ipam"].clone();
        json!({ "config": config })
    };
    let multi = |networks: &[Value]| json!({ "type": "multi", "networks": networks });
    let call = |verb: &str, to: &Container, keys: &Value| {
        node.run("multi", verb).to(to).config(keys.clone()).call()
    };
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let two = multi(&[member("br0"), member("br1")]);
    call("ADD", &c1, &two).ok();
    call("ADD", &c2, &multi(&[member("br2"), member("br1")])).fails(108, "taken on \"br1\"");
    call("DEL", &c1, &two).silent();
    call("ADD", &c2, &multi(&[member("br2"), member("br1")])).ok();
}

fn in_vlan(number: u16) -> Value {
    let mut keys = bridge("br0");
    keys["vlan"] = json!(number);
    keys
}

#[test]
fn vm_vlans_of_a_bridge_never_meet() {
    testkit::require!("root", "bridge-vlan-filtering");
    let node = node("claims-vlans", &one("10.1.0.2/24", None));
    let _all = all_get_it(&node, &[bridge("br0"), in_vlan(5), in_vlan(6)]);
    let c1 = node.container("c1");
    add(&node, &c1, &in_vlan(5)).fails(108, "taken on VLAN 5 of \"br0\": n/apart2/eth0 has it");
    // The host's addresses on the bridge are in no VLAN. They conflict only with addresses of
    // containers that are in no VLAN either.
    node.sh("ip addr add 10.1.0.7/24 dev br0");
    fixed::answers(&node, &one("10.1.0.7/24", None));
    add(&node, &c1, &bridge("br0")).fails(108, "is the host's own, on link \"br0\"");
    add(&node, &c1, &in_vlan(5)).ok();
}

#[test]
fn vm_a_vlans_gateway_is_no_containers_address() {
    testkit::require!("root", "bridge-vlan-filtering");
    let node = node("claims-gateways", &one("10.1.0.2/24", Some("10.1.0.1")));
    let routed = |number: u16| {
        let mut keys = in_vlan(number);
        keys["isGateway"] = json!(true);
        keys
    };
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    add(&node, &c1, &routed(5)).ok();
    fixed::answers(&node, &one("10.1.0.1/24", None));
    for keys in [in_vlan(5), routed(6)] {
        let words = "address 10.1.0.1 is the host's own, on link \"br0.5\"";
        add(&node, &c2, &keys).fails(108, words);
    }
    // Gateways connect two VLANs.
    fixed::answers(&node, &one("10.1.0.2/24", Some("10.1.0.3")));
    let words = "is of subnet 10.1.0.0/24, which is on the host's link \"br0.5\"";
    add(&node, &c2, &routed(6)).fails(108, words);
    add(&node, &c2, &in_vlan(6)).ok();
}

#[test]
fn vm_a_vlan_on_a_bridge_is_that_vlan_of_the_bridge() {
    testkit::require!("root", "full", "bridge-vlan-filtering", "vlan");
    let node = node("claims-vlan", &one("10.1.0.2/24", None));
    cable(&node, "p0", "192.0.2.1/24");
    let vlan = |master: &str| json!({ "type": "vlan", "master": master, "vlanId": 5 });
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    add(&node, &c1, &in_vlan(5)).ok();
    add(&node, &c2, &vlan("br0")).fails(108, "taken on VLAN 5 of \"br0\": n/c1/eth0 has it");
    add(&node, &c2, &vlan("p0")).ok();
    // The macvlans' parent is one of the host's VLANs, whatever its name is.
    run(&node, "DEL", &c2, &vlan("p0")).call().silent();
    node.sh("ip link add link br0 name blue type vlan id 5 && ip link set blue up");
    add(&node, &c2, &macvlan("blue")).fails(108, "taken on VLAN 5 of \"br0\"");
    let mut shared = macvlan("blue");
    shared["allowAddressConflict"] = json!(true);
    fixed::answers(&node, &one("10.1.0.8/24", None));
    node.sh("ip addr add 10.1.0.8/24 dev blue");
    let words = "address 10.1.0.8 is the host's own, on link \"blue\"";
    add(&node, &c2, &macvlan("blue")).fails(108, words);
    add(&node, &c2, &shared).ok();
}

#[test]
fn vm_a_vrf_has_a_table_of_its_own() {
    testkit::require!("root", "vrf");
    let node = node("claims-vrf", &one("10.1.0.2/24", Some("10.1.0.1")));
    let routed = |name: &str| {
        let mut keys = bridge(name);
        keys["isGateway"] = json!(true);
        keys
    };
    node.sh("ip link add red type vrf table 10 && ip link set red up && \
         ip link add blue type vrf table 20 && ip link set blue up && \
         for pair in br1:red br2:blue br3:red; do \
             ip link add ${pair%:*} type bridge && ip link set ${pair%:*} master ${pair#*:} up; \
         done");
    let _all = the_second_is_refused_in_one_table(&node, &routed);
    // The host's own address counts only in its VRF.
    cable(&node, "p0", "10.1.0.7/32");
    node.sh("ip link set p0 master red");
    fixed::answers(&node, &one("10.1.0.7/24", Some("10.1.0.1")));
    let c9 = node.container("c9");
    let words = "address 10.1.0.7 is the host's own, on link \"p0\"";
    add(&node, &c9, &routed("br3")).fails(108, words);
    add(&node, &c9, &routed("br2")).ok();
}

/// Three tables have the address, each of them once.
fn the_second_is_refused_in_one_table(
    node: &Node,
    routed: &dyn Fn(&str) -> Value,
) -> Vec<Container> {
    let all = all_get_it(node, &[routed("br0"), routed("br1"), routed("br2")]);
    let c1 = node.container("c1");
    // ADD names br1 because of the whole subnet: nothing shows that br1 is a network of ours.
    let words = "is of subnet 10.1.0.0/24, which is on the host's link \"br1\"";
    add(node, &c1, &routed("br3")).fails(108, words);
    fixed::answers(node, &one("10.1.0.2/25", Some("10.1.0.126")));
    let words = "among those that the host routes to by table 10: n/apart2/eth0 has it";
    add(node, &c1, &routed("br3")).fails(108, words);
    fixed::answers(node, &one("10.1.0.2/24", Some("10.1.0.1")));
    let ptp = json!({ "type": "ptp" });
    add(node, &c1, &ptp).fails(108, "among those that the host routes to: n/apart1/eth0 has it");
    all
}

/// An address is unique in a VLAN of a bridge, whichever of the two plugins leads there.
#[test]
fn vm_one_vlan_has_an_address_once() {
    testkit::require!("root", "bridge-vlan-filtering");
    let node = node("claims-one-vlan", &one("10.1.0.2/24", None));
    the_second_is_refused(&node, &in_vlan(5), &in_vlan(5));
}

/// The link that carries a VLAN's gateway would have the uplink's subnet too.
#[test]
fn vm_a_vlans_gateway_is_not_the_uplinks_own_address() {
    testkit::require!("root", "bridge-vlan-filtering");
    let node = node("claims-vlan-uplink", &one("192.0.2.7/24", Some("192.0.2.10")));
    cable(&node, "up0", "192.0.2.10/24");
    let c1 = node.container("c1");
    let mut routed = in_vlan(5);
    routed["isGateway"] = json!(true);
    add(&node, &c1, &routed).fails(108, "which is on the host's link \"up0\"");
    add(&node, &c1, &in_vlan(5)).ok();
}
