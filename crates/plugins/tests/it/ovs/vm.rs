//! The kernel's datapath, in the virtual machine.

use serde_json::{Value, json};
use testkit::real::Ovs;
use testkit::{Place as _, traffic};

use super::{Datapath, add, address, assert_reaches, keys, require_switch, tunnel};
use crate::support::Node;

/// A switch whose bridge `br0` has the kernel's datapath.
fn switch(node: &Node) -> Ovs<'_> {
    Datapath::Kernel.switch(node)
}

/// Pairs, internal ports and VLANs, without checksum offload.
#[test]
fn vm_the_kernels_datapath() {
    require_switch!("openvswitch");
    let node = Node::new("ovs-kernel");
    let ovs = switch(&node);
    let before = ovs.content();
    let containers = ["c1", "c2", "c3"].map(|name| node.container(name));
    let kinds = [("veth", 100), ("internal", 100), ("veth", 200)];
    let keys = kinds.map(|(port, vlan)| keys(&node, &ovs, json!({ "port": port, "vlan": vlan })));
    let mut addresses = Vec::new();
    for (container, keys) in containers.iter().zip(&keys) {
        let result = add(&node, container, keys).call().ok();
        node.run("ovs", "CHECK").to(container).config(keys.clone()).prev(&result).call().silent();
        addresses.push(address(&result));
    }
    let [c1, c2, c3] = &containers;
    assert_reaches(c1, c2, &addresses[1]);
    assert_reaches(c2, c1, &addresses[0]);
    traffic::assert_no_ping(c3, &addresses[0]);
    traffic::assert_no_ping(c3, &addresses[1]);
    for (container, keys) in containers.iter().zip(&keys) {
        node.run("ovs", "DEL").to(container).config(keys.clone()).call().silent();
        assert_eq!(container.sh("ip -o link | wc -l").trim(), "1");
    }
    assert_eq!(before, ovs.content());
}

/// A container that separates a trunk's VLANs itself reaches the containers that have one of the
/// VLANs each, and no other.
#[test]
fn vm_a_trunk_of_the_kernels_datapath() {
    require_switch!("openvswitch", "vlan", "full");
    let node = Node::new("ovs-kernel-trunk");
    let ovs = switch(&node);
    let before = ovs.content();
    let trunk = json!({ "trunk": [{ "id": 42 }, { "minID": 1000, "maxID": 1010 }], "ipam": {} });
    let router = node.container("router");
    let trunk = keys(&node, &ovs, trunk);
    add(&node, &router, &trunk).call().ok();
    // The trunk does not have 43.
    let vlans = [42, 1005, 43];
    let containers = vlans.map(|vlan| node.container(&format!("c{vlan}")));
    let keys = vlans.map(|vlan| keys(&node, &ovs, json!({ "vlan": vlan })));
    let mut addresses = Vec::new();
    for (place, (container, keys)) in containers.iter().zip(&keys).enumerate() {
        addresses.push(address(&add(&node, container, keys).call().ok()));
        let vlan = vlans[place];
        router.sh(&format!(
            "ip link add v{vlan} link eth0 type vlan id {vlan} && ip link set v{vlan} up && \
             ip addr add 10.1.0.10{place}/32 dev v{vlan} && \
             ip route add {} dev v{vlan} src 10.1.0.10{place}",
            addresses[place]
        ));
    }
    for place in [0, 1] {
        assert_reaches(&router, &containers[place], &addresses[place]);
        assert_reaches(&containers[place], &router, &format!("10.1.0.10{place}"));
    }
    traffic::assert_no_ping(&router, &addresses[2]);
    traffic::assert_no_ping(&containers[0], &addresses[1]);
    for (container, keys) in containers.iter().zip(&keys).chain([(&router, &trunk)]) {
        node.run("ovs", "DEL").to(container).config(keys.clone()).call().silent();
    }
    assert_eq!(before, ovs.content());
}

#[test]
fn vm_vxlan_of_the_kernels_datapath() {
    require_switch!("openvswitch", "full");
    tunnel::over(Datapath::Kernel, "vxlan", 100);
}

#[test]
fn vm_geneve_of_the_kernels_datapath() {
    require_switch!("openvswitch", "full");
    tunnel::over(Datapath::Kernel, "geneve", 200);
}

/// A port that the switch makes keeps its name in the container, and the interface is stacked on
/// it. So the interface outlives changes of the bridge and the switch itself, and comes back when
/// the database is wiped.
#[test]
fn vm_a_port_of_the_kernels_datapath_outlives_its_switch() {
    require_switch!("full", "openvswitch");
    let node = Node::new("ovs-kernel-internal");
    let mut ovs = switch(&node);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let keys = keys(&node, &ovs, json!({ "port": "internal", "mtu": 1400 }));
    let first = add(&node, &c1, &keys).call().ok();
    let second = add(&node, &c2, &keys).call().ok();
    let interfaces = first["interfaces"].as_array().unwrap();
    assert_eq!((interfaces.len(), &interfaces[0]["name"]), (1, &json!("eth0")), "{first}");
    assert!(c1.sh("ip -d link show eth0").contains("macvlan mode passthru"));
    assert!(c1.sh("ip link show eth0").contains("mtu 1400 "));
    assert_reaches(&c1, &c2, &address(&second));
    // A change elsewhere on the bridge: the switch looks at all ports again.
    ovs.vsctl(&["add-port", "br0", "x1", "--", "set", "interface", "x1", "type=internal"]);
    assert_reaches(&c1, &c2, &address(&second));
    ovs.kill_switch();
    ovs.start_switch();
    ovs.vsctl(&["set", "bridge", "br0", "external_ids:restarted=yes"]);
    assert_reaches(&c1, &c2, &address(&second));

    let check = |more: Value| {
        for (container, result) in [(&c1, &first), (&c2, &second)] {
            let run = node.run("ovs", "CHECK").to(container).config(keys.clone());
            let answer = run.config(more.clone()).prev(result).call();
            assert!(answer.succeeded(), "{answer:?}");
        }
    };
    check(json!({}));
    ovs.kill_server();
    ovs.wipe();
    ovs.start_server();
    ovs.vsctl(&["add-br", "br0"]);
    check(json!({ "netwright/repair": true }));
    check(json!({}));
    assert_reaches(&c1, &c2, &address(&second));

    // A dead switch removes its links only when it is started again; DEL cuts the container off at
    // once.
    ovs.kill_switch();
    node.run("ovs", "DEL").to(&c1).config(keys.clone()).call().silent();
    assert!(!c1.try_sh("ip link show eth0").status.success());
    ovs.start_switch();
    ovs.vsctl(&["set", "bridge", "br0", "external_ids:restarted=again"]);
    assert_eq!(c1.sh("ip -o link | wc -l").trim(), "1");
    node.run("ovs", "DEL").to(&c2).config(keys).call().silent();
    assert_eq!(c2.sh("ip -o link | wc -l").trim(), "1");
    assert_eq!(ovs.vsctl(&["list-ports", "br0"]), "");
}

/// The kernel applies the rates in the database.
#[test]
fn vm_rates_are_the_kernels() {
    require_switch!("openvswitch", "full");
    let node = Node::new("ovs-kernel-rates");
    let ovs = switch(&node);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let qos = json!({ "qos": {
        "ingressRate": 8_000, "ingressBurst": 100_000, "egressRate": 2_000_000,
        "queues": { "0": { "maxRate": 1_500_000 } },
    }});
    let shaped = keys(&node, &ovs, qos);
    let result = add(&node, &c1, &shaped).call().ok();
    let other = add(&node, &c2, &keys(&node, &ovs, json!({}))).call().ok();
    let port = result["interfaces"][0]["name"].as_str().unwrap();
    traffic::assert_pings(&c1, &address(&other));
    // 140 KB, of which a burst of 12.5 KB passes and then 1 KB a second: however slow the machine is.
    c1.try_sh(&format!("ping -q -c 100 -l 100 -s 1400 -W 1 {}", address(&other)));
    let filter = node.sh(&format!("tc -s filter show dev {port} ingress"));
    assert!(filter.contains("police") && filter.contains("rate 8Kbit"), "{filter}");
    let dropped = filter.split("dropped ").nth(1).and_then(|rest| rest.split(',').next());
    let dropped: u64 = dropped.unwrap().parse().unwrap();
    assert!(0 < dropped, "{filter}");
    let classes = node.sh(&format!("tc class show dev {port}"));
    assert!(classes.contains("ceil 2Mbit") && classes.contains("ceil 1500Kbit"), "{classes}");
    eprintln!("MEASURED ovs, policing: {dropped} of 100 frames dropped; {}", classes.trim());
    node.run("ovs", "DEL").to(&c1).config(shaped).call().silent();
}
