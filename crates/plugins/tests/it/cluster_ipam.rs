//! `cluster-ipam`: addresses of networks that span nodes, with a stand-in for the daemon that
//! manages them.

mod bad;
mod keys;
mod lost;
mod matrix;

use node_api::ipam::{AssignRequest, Request};
use serde_json::{Value, json};
use testkit::Container;
use testkit::traffic::assert_pings;

use crate::support::cluster::{Daemon, left};
use crate::support::{Node, Run};

/// The `CNI_ARGS` of kubelet.
const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=uid-1";

/// The network that most tests use.
fn both() -> Value {
    json!({
        "type": "cluster-ipam", "ipRanges": [{ "range": "10.1.0.0/24" }, { "range": "fd00:1::/64" }],
        "gateway": "10.1.0.1,fd00:1::1",
    })
}

/// A direct call of the plugin.
fn call<'n>(node: &'n Node, verb: &str, to: &Container, ipam: &Value) -> Run<'n> {
    node.run("cluster-ipam", verb).to(to).config(json!({ "ipam": ipam }))
}

/// A call of a bridge whose addresses come from `cluster-ipam`.
fn bridge<'n>(node: &'n Node, verb: &str, to: &Container, ipam: &Value) -> Run<'n> {
    node.run("bridge", verb).to(to).config(json!({ "isGateway": true, "ipam": ipam }))
}

/// The assigned addresses, with their owners.
fn given(node: &Node) -> Vec<String> {
    let entries = std::fs::read_dir(node.dir("ipam").join("n")).into_iter().flatten();
    let one = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let owner = std::fs::read_to_string(entry.path()).unwrap();
        format!("{} {}", entry.file_name().display(), owner.replace('\n', " "))
    };
    let mut all: Vec<String> = entries.map(one).collect();
    all.sort();
    all
}

fn addresses(result: &Value) -> Vec<&str> {
    let ips = result["ips"].as_array().unwrap();
    ips.iter().map(|ip| ip["address"].as_str().unwrap()).collect()
}

/// What the only ADD that the daemon received asked for.
#[track_caller]
fn asked(daemon: &Daemon) -> AssignRequest {
    let heard = daemon.heard();
    match heard.as_slice() {
        [Request::Assign(assign)] => assign.clone(),
        _ => panic!("{heard:?}"),
    }
}

#[test]
fn containers_on_a_bridge_reach_each_other() {
    testkit::require!("root");
    let node = Node::new("cluster-bridge");
    let daemon = Daemon::start(&node);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let (first, second) = (
        bridge(&node, "ADD", &c1, &both()).args(POD).call().ok(),
        bridge(&node, "ADD", &c2, &both()).call().ok(),
    );
    assert_eq!(addresses(&first), ["10.1.0.2/24", "fd00:1::2/64"]);
    assert_eq!(addresses(&second), ["10.1.0.3/24", "fd00:1::3/64"]);
    assert_eq!(first["ips"][0]["gateway"], "10.1.0.1");
    for address in ["10.1.0.3", "fd00:1::3", "10.1.0.1", "fd00:1::1"] {
        assert_pings(&c1, address);
    }
    let heard = daemon.heard();
    let owners: Vec<_> = heard
        .iter()
        .map(|request| match request {
            Request::Assign(assign) => assign.owner.clone(),
            _ => panic!("{request:?}"),
        })
        .collect();
    let pod = owners[0].pod.as_ref().unwrap();
    assert_eq!(
        (pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()),
        ("ns", "web-0", "uid-1")
    );
    // Without Kubernetes the container is named in place of the pod.
    assert_eq!(
        (owners[1].container.as_str(), owners[1].ifname.as_str(), &owners[1].pod),
        ("c2", "eth0", &None)
    );
    assert_eq!(owners[1].netns, c2.netns().to_str().unwrap());

    bridge(&node, "CHECK", &c1, &both()).prev(&first).call().silent();
    bridge(&node, "DEL", &c1, &both()).prev(&first).call().silent();
    assert_eq!(given(&node), ["10.1.0.3 c2 eth0", "fd00:1::3 c2 eth0"]);
    // A configuration that is no longer valid keeps no container, and neither does an empty one.
    let sick = json!({ "type": "cluster-ipam", "range": "tea" });
    bridge(&node, "DEL", &c2, &sick).netns("").args("junk").call().silent();
    assert_eq!(given(&node), [""; 0]);
    call(&node, "DEL", &c2, &json!(null)).netns("").call().silent();
    assert_eq!(left(&node), []);
}

#[test]
fn what_whereabouts_is_called() {
    testkit::require!("root");
    let node = Node::new("cluster-alias");
    let _daemon = Daemon::start(&node);
    let c1 = node.container("c1");
    let ipam = json!({ "type": "whereabouts", "range": "192.0.2.0/24", "gateway": "192.0.2.254" });
    let result = bridge(&node, "ADD", &c1, &ipam).call().ok();
    assert_eq!(addresses(&result), ["192.0.2.1/24"]);
    bridge(&node, "DEL", &c1, &ipam).call().silent();
    assert_eq!(given(&node), [""; 0]);
    assert_eq!(plugins::find("whereabouts").unwrap().name(), "cluster-ipam");
}

#[test]
fn the_same_attachment_asked_again_has_the_same() {
    testkit::require!("root");
    let node = Node::new("cluster-again");
    let _daemon = Daemon::start(&node);
    let c1 = node.container("c1");
    let first = call(&node, "ADD", &c1, &both()).call().ok();
    assert_eq!(call(&node, "ADD", &c1, &both()).call().ok(), first);
    let other = call(&node, "ADD", &c1, &both()).ifname("net1").call().ok();
    assert_eq!(addresses(&other), ["10.1.0.3/24", "fd00:1::3/64"]);
    call(&node, "DEL", &c1, &both()).call().silent();
    assert_eq!(given(&node), ["10.1.0.3 c1 net1", "fd00:1::3 c1 net1"]);
}

#[test]
fn check_says_what_is_not_as_it_was() {
    testkit::require!("root");
    let node = Node::new("cluster-check");
    let _daemon = Daemon::start(&node);
    let c1 = node.container("c1");
    let ipam = json!({
        "type": "cluster-ipam", "range": "10.1.0.0/24", "addresses": [{ "address": "192.0.2.9/24" }],
    });
    let result = call(&node, "ADD", &c1, &ipam).call().ok();
    assert_eq!(addresses(&result), ["10.1.0.1/24", "192.0.2.9/24"]);
    let check = |result: &Value| call(&node, "CHECK", &c1, &ipam).prev(result).call();
    check(&result).silent();
    call(&node, "CHECK", &c1, &ipam).call().fails(7, "Required prevResult missing");
    let mut without = result.clone();
    without["ips"].as_array_mut().unwrap().pop();
    check(&without).fails(104, "Failed to find addr 192.0.2.9/24 on interface eth0");
    let mut other = result.clone();
    other["ips"][0]["address"] = json!("10.1.0.1/25");
    check(&other).fails(104, "Failed to find addr 10.1.0.1/24 on interface eth0");
    let mut more = result.clone();
    more["ips"].as_array_mut().unwrap().push(json!({ "address": "10.1.0.7/24" }));
    check(&more).fails(104, "address 10.1.0.7 is not assigned to n/c1/eth0 any more");
    let file = node.dir("ipam").join("n/10.1.0.1");
    std::fs::write(&file, "c9\neth0").unwrap();
    check(&result).fails(104, "address 10.1.0.1 is not assigned to n/c1/eth0 any more");
    std::fs::remove_file(&file).unwrap();
    let empty = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "192.0.2.9/24" }] });
    check(&empty).fails(104, "Failed to find address added by container c1");
}

#[test]
fn repair_has_assigned_again_what_nobody_holds() {
    testkit::require!("root");
    let node = Node::new("cluster-repair");
    let _daemon = Daemon::start(&node);
    let c1 = node.container("c1");
    let result = bridge(&node, "ADD", &c1, &both()).call().ok();
    let repair =
        |keys: Value| bridge(&node, "CHECK", &c1, &both()).prev(&result).config(keys).call();
    let file = node.dir("ipam").join("n/10.1.0.2");
    std::fs::remove_file(&file).unwrap();
    repair(json!({})).fails(104, "address 10.1.0.2 is not assigned");
    let said = repair(json!({ cni::REPAIR: true }));
    let lines = cni::RepairReport::parse(&said.output.stdout).lines;
    assert!(lines.iter().any(|line| line.contains("assignment of address 10.1.0.2")), "{said:?}");
    assert_eq!(given(&node), ["10.1.0.2 c1 eth0", "fd00:1::2 c1 eth0"]);
    repair(json!({})).silent();
    // An address that another container now has belongs to that container.
    std::fs::write(&file, "c9\neth0").unwrap();
    let said = repair(json!({ cni::REPAIR: true })).error();
    assert!(said.to_string().contains("address 10.1.0.2 is taken"), "{said:?}");
    assert_eq!(given(&node), ["10.1.0.2 c9 eth0", "fd00:1::2 c1 eth0"]);
    // The daemon assigns nothing after a DEL.
    std::fs::remove_file(&file).unwrap();
    bridge(&node, "DEL", &c1, &both()).call().silent();
    let behind =
        call(&node, "CHECK", &c1, &both()).prev(&result).config(json!({ cni::REPAIR: true }));
    behind.call().fails(104, "is not assigned");
    assert_eq!(given(&node), [""; 0]);
}

#[test]
fn old_versions_hold_one_address_of_each_family() {
    testkit::require!("root");
    let node = Node::new("cluster-old");
    let _daemon = Daemon::start(&node);
    let c1 = node.container("c1");
    let result = call(&node, "ADD", &c1, &both()).version("0.2.0").call().ok();
    assert_eq!(
        (&result["ip4"]["ip"], &result["ip6"]["ip"]),
        (&json!("10.1.0.2/24"), &json!("fd00:1::2/64"))
    );
    let two = json!({ "type": "cluster-ipam", "ipRanges": [{ "range": "10.1.0.0/24" }, { "range": "10.2.0.0/24" }] });
    let words = "CNI version 0.2.0 does not support more than 1 address per family";
    call(&node, "ADD", &c1, &two).version("0.2.0").call().fails(7, words);
    assert_eq!(
        addresses(&call(&node, "ADD", &c1, &two).ifname("net1").call().ok()),
        ["10.1.0.1/24", "10.2.0.1/24"]
    );
}
