//! Further networks whose packets do not pass the node. Policies for them are enforced in the
//! container's own namespace, and only there.

use std::rc::Rc;

use serde_json::json;
use testkit::traffic::assert_pings;
use testkit::{Place as _, Snapshot};

use super::{Pod, assert_silent, keys, verdicts, verdicts_of};
use crate::support::{Node, on_parent};

/// The verdicts of a closed interface `net1`, as [`inside`] shows them.
pub(super) const CLOSED: [&str; 2] = ["at-in net1 unknown-in", "at-out net1 unknown-out"];

/// The verdicts in a container's namespace.
pub(super) fn inside(pod: &Pod<'_>) -> Vec<String> {
    verdicts_of(&*pod.c, &["at-in", "at-out"])
}

#[test]
fn a_container_on_a_macvlan_is_closed_in_its_namespace() {
    testkit::require!("root");
    let node = on_parent::host("policy-inside");
    let (c1, c2) = (Pod::new(&node, "c1", "macvlan"), Pod::new(&node, "c2", "macvlan"));
    c1.c.sh("ip link set lo up");
    let before = node.sh("nft list ruleset");
    let silent = |pod: &Pod<'_>, other: &Pod<'_>| {
        assert_silent(&*other.c, &pod.addresses());
        assert_silent(&*pod.c, &other.addresses());
    };
    c1.assert_open(&[&c2]);
    let told = c1.add();
    assert!(told.contains("until its policies are known"), "{told}");
    silent(&c1, &c2);
    // The container reaches itself, and neighbour discovery works all the time.
    c1.addresses().iter().for_each(|address| assert_pings(&*c1.c, address));
    assert_eq!(inside(&c1), CLOSED);
    let started = c1.recorded().unwrap().started;
    assert!(started.inside && started.meets.is_none() && started.interface.is_none());
    // Neither the node nor other containers have anything of it.
    assert_eq!((verdicts(&node), node.sh("nft list ruleset")), (Vec::new(), before));
    assert_eq!(c2.c.sh("nft list ruleset"), "");
    c1.check();
    for damage in ["nft flush ruleset", "nft delete element inet netwright-policy at-in '{ net1 }'"]
    {
        c1.c.sh(damage);
        c1.policy("CHECK").call().fails(104, "network policy");
        assert_ne!(c1.repair(), Vec::<String>::new(), "{damage}");
        c1.check();
        assert_eq!(inside(&c1), CLOSED, "{damage}");
    }
    // A second ADD changes nothing.
    c1.add();
    assert_eq!(inside(&c1), CLOSED);
    c1.del();
    // DEL sets the link down before it removes the verdicts.
    assert!(!c1.c.sh("ip link show net1").contains(",UP"));
    assert_eq!((c1.c.sh("nft list ruleset"), c1.recorded()), (String::new(), None));
    c1.del();
    c1.c.sh("ip link set net1 up");
    assert_pings(&*c2.c, &c1.addresses()[0]);
}

/// Two further networks of one container share a table, and each is removed by itself. The policies
/// for the container's own network are enforced on the node.
#[test]
fn interfaces_of_one_container_share_the_table() {
    testkit::require!("root");
    let node = on_parent::host("policy-inside-two");
    let c1 = Rc::new(node.container("c1"));
    let second = json!({ "master": "p0", "ipam": {
        "type": "host-local", "dataDir": node.dir("second"),
        "ranges": [[{ "subnet": "10.2.0.0/24" }]],
    } });
    let own = Pod::of(&node, Rc::clone(&c1), "ptp", keys(&node, "ptp"), ("n", "eth0"));
    let ranges = json!([[{ "subnet": "10.3.0.0/24" }]]);
    let third = json!({ "type": "host-local", "dataDir": node.dir("third"), "ranges": ranges });
    let first = json!({ "master": "p0", "ipam": third });
    let one = Pod::of(&node, Rc::clone(&c1), "macvlan", first, ("m", "net1"));
    let two = Pod::of(&node, c1, "macvlan", second, ("o", "net2"));
    for pod in [&own, &one, &two] {
        pod.add();
    }
    assert_eq!(inside(&one).len(), 4);
    assert_eq!(verdicts(&node), super::closed(&own));
    one.del();
    let second = ["at-in net2 unknown-in", "at-out net2 unknown-out"];
    assert_eq!(inside(&two), second);
    two.check();
    // If the container damages the table, that does not open the other network.
    one.add();
    one.c.sh("nft flush ruleset && \
         nft 'table inet netwright-policy { map at-in { type ipv4_addr : verdict; }; }'");
    one.del();
    assert_eq!(inside(&two), second);
    two.check();
    two.del();
    own.check();
    assert_eq!(two.c.sh("nft list ruleset"), "");
    own.del();
    assert_eq!(verdicts(&node), Vec::<String>::new());
}

/// DEL of a container without records, with a path that now leads to another container.
#[test]
fn del_of_what_nothing_was_written_down_of_leaves_another_container_closed() {
    testkit::require!("root");
    let node = on_parent::host("policy-inside-astray");
    let c2 = Pod::new(&node, "c2", "macvlan");
    c2.add();
    let before = Snapshot::of(&*c2.c);
    let answer = c2.policy("DEL").id("c1").call();
    assert!(answer.succeeded(), "{answer:?}");
    before.assert_same(&Snapshot::of(&*c2.c));
    assert_eq!(inside(&c2), CLOSED);
    c2.check();
    c2.del();
}

/// DEL without a path, DEL without a record, and GC, which has only the path in the record.
#[test]
fn what_is_stale_goes_from_the_namespace() {
    testkit::require!("root");
    let node = on_parent::host("policy-inside-stale");
    let (c1, c2) = (Pod::new(&node, "c1", "macvlan"), Pod::new(&node, "c2", "macvlan"));
    c1.add();
    c1.policy("DEL").without("prevResult").netns("").call().silent();
    assert_eq!((inside(&c1), c1.recorded()), (Vec::new(), None));
    c1.add();
    c2.add();
    let owners = node.roots.run.join("owners");
    std::fs::remove_dir_all(owners.join(c1.key().hash())).unwrap();
    c1.del();
    assert_eq!(inside(&c1), Vec::<String>::new());
    let gc = |valid: &[(&str, &str)]| {
        node.run("policy", "GC").of_network().valid(valid).call().silent();
    };
    gc(&[("c2", "net1")]);
    assert_eq!(inside(&c2), CLOSED);
    gc(&[]);
    assert_eq!((inside(&c2), c2.recorded()), (Vec::new(), None));
}

/// For a device whose other end is on this node, but which no plugin has listed, policies are
/// enforced inside. As the container's own interface ADD refuses it (`bad`).
#[test]
fn a_device_that_was_lent_is_judged_inside() {
    testkit::require!("root");
    let node = on_parent::host("policy-inside-lent");
    node.sh("ip addr add 10.1.0.1/24 dev p0");
    let ranges = json!([[{ "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9" }]]);
    let ipam = json!({ "type": "host-local", "dataDir": node.dir("ipam"), "ranges": ranges });
    let keys = json!({ "device": "p1", "ipam": ipam });
    let c1 = Pod::of(&node, node.container("c1"), "host-device", keys, ("n", "net1"));
    assert_pings(&node.lab, &c1.addresses()[0]);
    c1.add();
    assert_eq!(inside(&c1), CLOSED);
    // On such a network the node is a host like any other.
    assert_silent(&node.lab, &c1.addresses());
    c1.del();
    c1.detach();
}

/// The IP hooks see nothing of the frames that a bridge in the container passes on.
#[test]
fn a_port_of_a_bridge_in_the_container_is_refused() {
    testkit::require!("root");
    let node = on_parent::host("policy-inside-port");
    let c1 = Pod::new(&node, "c1", "macvlan");
    c1.c.sh("ip link add br0 type bridge && ip link set net1 master br0");
    c1.policy("ADD").call().fails(7, "it is a port of \"br0\" in the container");
    assert_eq!((c1.recorded(), c1.c.sh("nft list ruleset")), (None, String::new()));
}

/// Attaches two containers by a plugin, and closes the first.
fn closes(node: &Node, by: &'static str, keys: serde_json::Value) {
    let attach = |name: &str| {
        let keys = keys.clone();
        Pod::of(node, node.container(name), by, keys, ("n", "net1"))
    };
    let (c1, c2) = (attach("c1"), attach("c2"));
    c1.assert_open(&[&c2]);
    c1.add();
    assert_eq!(inside(&c1), CLOSED);
    assert_silent(&*c2.c, &c1.addresses());
    assert_silent(&*c1.c, &c2.addresses());
    c1.check();
    c1.del();
    assert_eq!(c1.c.sh("nft list ruleset"), "");
}

/// Two ipvlans on one parent, in both modes in which the container itself receives its packets. In
/// the third mode it does not, so ADD refuses it.
#[test]
fn vm_containers_on_an_ipvlan_are_closed() {
    testkit::require!("root", "ipvlan");
    for mode in ["l2", "l3"] {
        let node = on_parent::host(&format!("policy-ipvlan-{mode}"));
        let ipam = keys(&node, "macvlan")["ipam"].clone();
        closes(&node, "ipvlan", json!({ "master": "p0", "mode": mode, "ipam": ipam }));
    }
    let node = on_parent::host("policy-ipvlan-l3s");
    let ipam = keys(&node, "macvlan")["ipam"].clone();
    let keys = json!({ "master": "p0", "mode": "l3s", "ipam": ipam });
    let c1 = Pod::of(&node, node.container("c1"), "ipvlan", keys, ("n", "net1"));
    c1.policy("ADD").call().fails(7, "in mode l3s are received in its parent's namespace");
    assert_eq!((c1.recorded(), c1.c.sh("nft list ruleset")), (None, String::new()));
}

/// Each is on a parent of its own, because a parent can have each VLAN only once.
#[test]
fn vm_containers_on_a_vlan_are_closed() {
    testkit::require!("root", "vlan");
    let node = on_parent::host("policy-vlan");
    let attach = |name: &str, parent: &str| {
        let ipam = keys(&node, "macvlan")["ipam"].clone();
        let keys = json!({ "master": parent, "vlanId": 5, "ipam": ipam });
        Pod::of(&node, node.container(name), "vlan", keys, ("n", "net1"))
    };
    let (c1, c2) = (attach("c1", "p0"), attach("c2", "p1"));
    c1.assert_open(&[&c2]);
    c1.add();
    assert_eq!(inside(&c1), CLOSED);
    assert_silent(&*c2.c, &c1.addresses());
    c1.del();
    assert_eq!(c1.c.sh("nft list ruleset"), "");
}
