//! The shared part of the tests of links on a parent: `macvlan`, `ipvlan`, `vlan`.

use serde_json::{Value, json};
use testkit::{Container, Place as _, Snapshot};

use super::fixed::{self, link, succeeds};
use super::{Answer, Node};

/// A host with parent `p0`, whose other end `p1` belongs to the switch or to the outside.
pub(crate) fn host(name: &str) -> Node {
    let node = Node::new(name);
    node.sh("ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up");
    node
}

/// STATUS succeeds if the kernel has such links, and else names the kernel's option.
#[track_caller]
pub(crate) fn served(status: Answer, feature: &str, option: &str) {
    if testkit::feature::available(feature) {
        status.silent();
    } else {
        status.fails(50, option);
    }
}

/// Addresses of both families with this last number.
pub(crate) fn addresses(last: u8) -> Value {
    json!([
        { "address": format!("10.1.0.{last}/24"), "gateway": "10.1.0.1" },
        { "address": format!("fd00:1::{last}/64"), "gateway": "fd00:1::1" },
    ])
}

/// [`addresses`] and a default route of each family.
pub(crate) fn with_default_routes(last: u8) -> Value {
    json!({ "ips": addresses(last), "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }] })
}

/// Asserts that the result lists one link, which the container has as reported, with MTU 1400 and
/// the hardware address of `p0`; returns the link as the kernel shows it.
pub(crate) fn one_link_as_reported(node: &Node, container: &Container, result: &Value) -> Value {
    let interfaces = result["interfaces"].as_array().unwrap();
    assert_eq!(interfaces.len(), 1, "{result}");
    assert!(result["ips"].as_array().unwrap().iter().all(|ip| ip["interface"] == 0), "{result}");
    let shown = link(container, "eth0");
    assert_eq!(shown["address"], interfaces[0]["mac"]);
    assert_eq!(shown["address"], link(&node.lab, "p0")["address"], "the parent's own");
    assert_eq!((&shown["mtu"], &interfaces[0]["mtu"]), (&json!(1400), &json!(1400)));
    assert_eq!(shown["ifalias"], format!("netwright:n/{}/eth0", container.name()));
    assert!(!container.sh("ip -6 addr show eth0 scope global").contains("tentative"));
    shown
}

/// Asserts that ADD changes nothing if the address plugin fails or returns nothing.
pub(crate) fn a_failed_add_leaves_nothing(
    node: &Node,
    container: &Container,
    add: impl Fn() -> Answer,
) {
    let before = Snapshot::take(&node.lab);
    fixed::fails(node, "ADD", &json!({ "code": 11, "msg": "pool is empty" }));
    add().fails(11, "pool is empty");
    fixed::gives(node, &json!([]));
    add().fails(7, "IPAM plugin returned missing IP config");
    assert!(!succeeds(container, "ip link show eth0"));
    before.assert_same(&Snapshot::take(&node.lab));
}
