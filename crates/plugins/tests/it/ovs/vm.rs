//! The kernel's datapath, in the virtual machine.

use serde_json::json;
use testkit::traffic;

use super::{add, address, assert_reaches, keys};
use crate::support::Node;

/// Pairs and VLANs, without any help for checksums. A port that the switch makes is refused: this datapath knows it by its link's name.
#[test]
fn vm_the_kernels_datapath() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server", "openvswitch");
    let node = Node::new("ovs-kernel");
    let ovs = testkit::real::Ovs::start(&node.lab);
    ovs.vsctl(&["add-br", "br0"]);
    let before = ovs.content();
    let containers = ["c1", "c2", "c3"].map(|name| node.container(name));
    let kinds = [("veth", 100), ("veth", 100), ("veth", 200)];
    let keys = kinds.map(|(port, vlan)| keys(&node, &ovs, json!({ "port": port, "vlan": vlan })));
    let internal = super::keys(&node, &ovs, json!({ "port": "internal" }));
    assert_eq!(add(&node, &containers[0], &internal).call().error().code, 2);
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
    for (container, keys) in containers.iter().zip(&keys) {
        node.run("ovs", "DEL").to(container).config(keys.clone()).call().silent();
    }
    assert_eq!(before, ovs.content());
}
