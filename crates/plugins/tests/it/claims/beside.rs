//! The host is on a container's segment by a link beside the container's, and has an address there.

use serde_json::json;
use testkit::Snapshot;

use super::{add, bridge, cable, macvlan, node, one, run};
use crate::support::fixed;

/// The host's link is a macvlan on the same parent, or a veth pair to the bridge.
#[test]
fn the_hosts_own_address_beside_the_container_is_refused() {
    testkit::require!("root");
    let node = node("claims-beside", &one("10.1.0.9/24", None));
    cable(&node, "p0", "192.0.2.1/24");
    cable(&node, "p1", "192.0.2.2/24");
    node.sh("ip link add shim0 link p0 type macvlan mode bridge && ip link set shim0 up && \
             ip addr add 10.1.0.9/24 dev shim0 && \
             ip link add br0 type bridge && ip link set br0 up && \
             ip link add leg0 type veth peer name leg1 && ip link set leg1 master br0 up && \
             ip link set leg0 up && ip addr add 10.1.0.8/32 dev leg0");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let before = Snapshot::take(&node.lab);
    let words = "address 10.1.0.9 is the host's own, on link \"shim0\"";
    add(&node, &c1, &macvlan("p0")).fails(108, words);
    before.assert_same(&Snapshot::take(&node.lab));
    // The same address on networks that do not lead to that link.
    add(&node, &c1, &macvlan("p1")).ok();
    add(&node, &c2, &bridge("br0")).ok();
    run(&node, "DEL", &c1, &macvlan("p1")).call().silent();
    run(&node, "DEL", &c2, &bridge("br0")).call().silent();
    fixed::answers(&node, &one("10.1.0.8/24", None));
    let words = "address 10.1.0.8 is the host's own, on link \"leg0\"";
    add(&node, &c1, &bridge("br0")).fails(108, words);
    let mut shared = bridge("br0");
    shared["allowAddressConflict"] = json!(true);
    add(&node, &c1, &shared).ok();
    // The host gets the address later.
    let result = add(&node, &c2, &macvlan("p0")).ok();
    let check = || run(&node, "CHECK", &c2, &macvlan("p0")).prev(&result).call();
    check().silent();
    node.sh("ip addr add 10.1.0.8/24 dev shim0");
    check().fails(104, "address 10.1.0.8 is the host's own, on link \"shim0\"");
}

/// The host's link is a VLAN device on the bridge, whatever its name is.
#[test]
fn vm_the_hosts_own_address_in_a_vlan_of_the_bridge_is_refused() {
    testkit::require!("full", "root", "bridge-vlan-filtering", "vlan");
    let node = node("claims-named", &one("10.1.0.9/24", None));
    node.sh("ip link add br0 type bridge vlan_filtering 1 && ip link set br0 up && \
             ip link add link br0 name blue type vlan id 5 && ip link set blue up && \
             ip addr add 10.1.0.9/24 dev blue");
    let in_vlan = |number: u16| {
        let mut keys = bridge("br0");
        keys["vlan"] = json!(number);
        keys
    };
    let c1 = node.container("c1");
    let words = "address 10.1.0.9 is the host's own, on link \"blue\"";
    add(&node, &c1, &in_vlan(5)).fails(108, words);
    add(&node, &c1, &in_vlan(6)).ok();
}
