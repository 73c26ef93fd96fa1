//! What ADD refuses, and what it leaves when it cannot write a file.

use std::cell::Cell;

use serde_json::{Value, json};
use testkit::Place;

use super::killed::{Fault, struck};
use super::{Pod, closed, links, no_bridge_shows, verdicts};
use crate::support::Node;
use crate::support::matrix::look;

/// ADD refuses interfaces whose packets do not pass this node's packet filter.
#[test]
fn interfaces_that_nothing_here_can_judge() {
    testkit::require!("root");
    let node = Node::new("policy-refused");
    node.sh("ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up");
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"), "ranges": [[{ "subnet": "10.1.0.0/24" }]],
    });
    // Neither has another end on the node. A lent device may have one, which no record lists.
    for (by, keys, words) in [
        (
            "macvlan",
            json!({ "master": "p0" }),
            "it is a macvlan link, not one of a pair with the node",
        ),
        (
            "host-device",
            json!({ "device": "p1" }),
            "prevResult does not list its other end, \"p0\"",
        ),
    ] {
        let c1 = node.container("c1");
        let run = |plugin: &str, verb: &str| node.run(plugin, verb).to(&c1);
        let of = |verb| run(by, verb).config(keys.clone()).config(json!({ "ipam": ipam }));
        let prev = of("ADD").call().ok();
        run("policy", "ADD").prev(&prev).call().fails(7, words);
        run("policy", "DEL").prev(&prev).call().silent();
        of("DEL").call().silent();
    }
    let c1 = Pod::new(&node, "c1", "ptp");
    let host = c1.host_ifname();
    let refused = |prev: &Value, words: &str| c1.policy("ADD").prev(prev).call().fails(7, words);
    let mut unlisted = c1.prev.clone();
    unlisted["interfaces"].as_array_mut().unwrap().retain(|link| link["name"] != json!(host));
    unlisted["ips"].as_array_mut().unwrap().iter_mut().for_each(|ip| ip["interface"] = json!(0));
    refused(&unlisted, "prevResult does not list its other end");
    let mut without = c1.prev.clone();
    without["ips"] = json!([]);
    refused(&without, "network policy judges by addresses, and interface eth0 has none");
    c1.policy("ADD").without("prevResult").call().fails(7, "missing prevResult");
    c1.policy("ADD").config(json!({ "socketpath": "x" })).call().fails(7, "socketpath");
    // Its other end is in a third namespace.
    let _c2 = node.container("c2");
    node.sh(&format!("ip link set {host} netns c2"));
    refused(&c1.prev, "its other end is not on this node");
    c1.c.sh("ip link del eth0");
    refused(&c1.prev, "it is not in the container");
    assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()));
}

/// All packets of a further network must be visible at one interface.
#[test]
fn vm_a_further_network_is_refused_where_packets_are_seen_at_several_interfaces() {
    testkit::require!("root", "full", "bridge-vlan-filtering");
    let node = Node::new("policy-several");
    no_bridge_shows(&node);
    let keys = super::keys(&node, "bridge");
    let c1 = Pod::of(&node, node.container("c1"), "bridge", keys, ("n", "net1"));
    node.sh("ip link set br0 type bridge vlan_filtering 1");
    c1.policy("ADD").call().fails(7, "are seen at several interfaces");
    assert_eq!((c1.recorded(), verdicts(&node)), (None, Vec::new()));
    node.sh("ip link set br0 type bridge vlan_filtering 0");
    c1.add();
    assert_eq!(verdicts(&node), closed(&c1));
}

/// The disk is full when one file after the other is written. ADD then fails without a change, or
/// works without the file.
#[test]
fn a_file_that_cannot_be_written_leaves_nothing() {
    testkit::require!("root", "program:strace");
    let fault = Fault {
        calls: "rename,renameat,renameat2,mkdir,mkdirat,link,linkat,symlink,symlinkat",
        is: "error=ENOSPC",
        moments: 4,
    };
    for by in ["bridge", "ptp"] {
        let node = Node::new(&format!("policy-full-{by}"));
        no_bridge_shows(&node);
        let other = Pod::new(&node, "c1", by);
        let (before, failed) = (Cell::new(None), Cell::new(0));
        let prepare = |_: &Pod<'_>| before.set(Some(look(&node)));
        let after = |pod: &Pod<'_>, succeeded, what: &str| {
            if succeeded {
                assert_eq!(verdicts(&node), closed(pod), "{what}");
                assert!(pod.recorded().is_some(), "{what}");
                pod.assert_closed(&[&other]);
                pod.del();
                return;
            }
            failed.set(failed.get() + 1);
            // The objects that the node's first container leaves for the others exist already.
            let now = look(&node);
            let left = before.take().unwrap().diff(&now);
            let left: Vec<_> = left.iter().filter(|line| !line.contains("/locks")).collect();
            assert!(left.is_empty(), "{what}: {left:#?}");
            assert_eq!(
                (pod.recorded(), verdicts(&node), links(&node)),
                (None, Vec::new(), String::new()),
                "{what}"
            );
            pod.assert_open(&[&other]);
        };
        struck(&node, (by, "ADD"), &fault, prepare, after);
        assert!(0 < failed.get(), "{by}: no call failed it");
    }
}

/// Nothing at all can be written, neither a lock nor a record.
#[test]
fn a_read_only_folder_fails_add() {
    testkit::require!("root");
    let node = Node::new("policy-read-only");
    let c1 = Pod::new(&node, "c1", "ptp");
    let run = node.roots.run.display().to_string();
    node.sh(&format!("mount --bind {run} {run} && mount -o remount,bind,ro {run}"));
    let error = c1.policy("ADD").call().error();
    assert_eq!(error.code, 105, "{error}");
    assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()));
    node.sh(&format!("umount {run}"));
    c1.add();
}

/// The link is a port of something that is not a bridge.
#[test]
fn vm_a_port_of_a_bond_is_refused() {
    testkit::require!("root", "bond");
    let node = Node::new("policy-bond");
    let c1 = Pod::new(&node, "c1", "ptp");
    let host = c1.host_ifname();
    node.sh(&format!(
        "ip link add bond0 type bond && ip link set {host} down && ip link set {host} master bond0"
    ));
    c1.policy("ADD").call().fails(7, "is a port of \"bond0\" (bond)");
    c1.del();
}
