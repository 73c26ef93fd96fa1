//! The link with a VLAN's gateway, when it was renamed or left unfinished.

use serde_json::json;
use testkit::Snapshot;
use testkit::traffic::assert_pings;

use super::{ONE_V4, add, answer_with, del, has_bridge, node_with, rename, succeeds};

/// An administrator renames the link. The next ADD reports that and makes no second gateway. The
/// last DEL still removes the link, and the bridge of which it is a port.
#[test]
fn vm_a_vlans_link_that_was_renamed_goes_with_the_last() {
    testkit::require!("full", "root", "bridge-vlan-filtering");
    let node = node_with("bridge-vlan-renamed", ONE_V4);
    let before = Snapshot::take(&node.lab);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let config = json!({ "vlan": 100, "isGateway": true, "ipam": { "type": "fixed" } });
    add(&node, &c1).config(config.clone()).call().ok();
    rename(&node, "cni0.100", "mine0");
    answer_with(&node, &ONE_V4.replace("10.1.0.2", "10.1.0.3"));
    let words = "link \"cni0.100\" with the gateway of VLAN 100 is called \"mine0\" by now";
    add(&node, &c2).config(config.clone()).call().fails(108, words);
    assert!(succeeds(&node.lab, "ip -o addr show dev mine0 | grep -q 10.1.0.1/24"));
    del(&node, &c1).config(config).call().silent();
    assert!(!succeeds(&node.lab, "ip link show mine0"));
    assert!(!has_bridge(&node));
    for container in [c1, c2] {
        container.delete();
    }
    before.assert_same(&Snapshot::take(&node.lab));
}

/// An ADD is killed after it has created the link and before it has marked and connected it: the
/// next ADD does so, and the last DEL removes it.
#[test]
fn vm_a_vlans_link_that_a_killed_add_left_is_finished_or_removed() {
    testkit::require!("full", "root", "bridge-vlan-filtering");
    let node = node_with("bridge-vlan-killed", ONE_V4);
    let before = Snapshot::take(&node.lab);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let config = json!({ "vlan": 100, "isGateway": true, "ipam": { "type": "fixed" } });
    let kill = || {
        node.sh("port=$(ip -o link show dev cni0.100 | sed 's/^[0-9]*: cni0.100@//; s/:.*//') && \
                 ip link set dev $port down nomaster && ip addr flush dev cni0.100 && \
                 ip link set dev cni0.100 down alias ''")
    };
    add(&node, &c1).config(config.clone()).call().ok();
    kill();
    answer_with(&node, &ONE_V4.replace("10.1.0.2", "10.1.0.3"));
    add(&node, &c2).config(config.clone()).call().ok();
    assert_pings(&c2, "10.1.0.1");
    del(&node, &c2).config(config.clone()).call().silent();
    kill();
    del(&node, &c1).config(config).call().silent();
    assert!(!succeeds(&node.lab, "ip link show cni0.100") && !has_bridge(&node));
    for container in [c1, c2] {
        container.delete();
    }
    before.assert_same(&Snapshot::take(&node.lab));
}
