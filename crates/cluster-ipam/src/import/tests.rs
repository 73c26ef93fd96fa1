//! From Whereabouts' objects to ours, and how nodes use them.

use std::sync::Arc;
use std::time::Duration;

use node_api::ipam::{AssignRequest, Owner};
use serde_json::{Value, json};

use super::*;
use crate::store::{Kind, Memory, Store as _};
use crate::{Clock, Node, Settings};

fn pod(name: &str, node: &str, more: &Value) -> Value {
    let mut pod = json!({
        "kind": "Pod", "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}")},
        "spec": {"nodeName": node}, "status": {"phase": "Running"},
    });
    if let Some(status) = more.get("status") {
        pod["metadata"]["annotations"] = json!({STATUS: status.to_string()});
    }
    if let Some(phase) = more.get("phase") {
        pod["status"]["phase"] = phase.clone();
    }
    pod
}

fn pool(name: &str, range: &str, allocations: &Value) -> Value {
    json!({"kind": "IPPool", "metadata": {"name": name}, "spec": {"range": range, "allocations": allocations}})
}

fn reservation(name: &str, pod: &str) -> Value {
    json!({
        "kind": "OverlappingRangeIPReservation", "metadata": {"name": name},
        "spec": {"containerid": format!("c-{pod}"), "podref": format!("ns/{pod}"), "ifname": "net1"},
    })
}

fn held(pod: &str) -> Value {
    json!({"id": format!("c-{pod}"), "podref": format!("ns/{pod}"), "ifname": "net1"})
}

fn planned(items: &[Value]) -> Plan {
    let mut found = ImportSource::default();
    found.read(json!({"kind": "List", "items": items}).to_string().as_bytes()).unwrap();
    found.that_is_all_pods();
    plan(&found).unwrap()
}

/// Each block of a plan as `space address node container/interface`.
fn blocks(plan: &Plan) -> Vec<String> {
    let one = |record: &BlockRecord| {
        let (address, holder) = record.held.first_key_value().unwrap();
        format!("{} {address} {} {}/{}", record.space, record.node, holder.container, holder.ifname)
    };
    plan.blocks.iter().map(one).collect()
}

fn passed_over(plan: &Plan) -> Vec<String> {
    let one = |one: &SkippedAllocation| match one.address {
        Some(address) => format!("{} {address}: {}", one.of, one.why),
        None => format!("{}: {}", one.of, one.why),
    };
    plan.passed_over.iter().map(one).collect()
}

fn parts(plan: &Plan) -> Vec<String> {
    let part = |part: &Part| format!("{}:{}", part.subnet, part.block);
    let one = |space: &SpaceRecord| {
        let parts: Vec<_> = space.parts.iter().map(part).collect();
        format!("{} {}", space.space, parts.join(" "))
    };
    plan.spaces.iter().map(one).collect()
}

#[test]
fn pools_become_blocks_of_the_nodes_on_which_pods_run() {
    let plan = planned(&[
        pool(
            "192.168.2.0-24",
            "192.168.2.0/24",
            &json!({"1": held("a"), "9": held("b"), "10": held("gone")}),
        ),
        reservation("192.168.2.1", "a"),
        reservation("192.168.2.9", "b"),
        reservation("192.168.2.10", "gone"),
        pod("a", "n1", &json!({})),
        pod("b", "n2", &json!({})),
    ]);
    assert_eq!(
        blocks(&plan),
        ["default 192.168.2.1 n1 c-a/net1", "default 192.168.2.9 n2 c-b/net1"]
    );
    assert_eq!(parts(&plan), ["default 192.168.2.0/30:32 192.168.2.8/30:32 192.168.2.0/24:30"]);
    assert_eq!(passed_over(&plan), ["192.168.2.0-24 192.168.2.10: the pod ns/gone is gone"]);
    assert_eq!(plan.notes, [""; 0]);
    let holder = &plan.blocks[0].held[&"192.168.2.1".parse::<IpAddr>().unwrap()];
    assert_eq!(holder.pod.as_ref().unwrap().uid, "uid-a");
}

#[test]
fn large_ranges_are_cut_fine_only_where_addresses_are_taken() {
    let plan = planned(&[
        pool(
            "10.0.0.0-8",
            "10.0.0.0/8",
            &json!({"1": held("a"), "65": held("b"), "300": held("c")}),
        ),
        reservation("10.0.0.1", "a"),
        reservation("10.0.0.65", "b"),
        reservation("10.0.1.44", "c"),
        pod("a", "n1", &json!({})),
        pod("b", "n1", &json!({})),
        pod("c", "n1", &json!({})),
        pool(
            "blue-fd00---64",
            "fd00::/64",
            &json!({"340282366920938463463374607431768211455": held("a"), "2": held("a"), "18446744073709551614": held("b")}),
        ),
        reservation("blue-fd00--2", "a"),
        reservation("blue-fd00--ffff-ffff-ffff-fffe", "b"),
    ]);
    assert_eq!(
        parts(&plan),
        [
            "blue fd00::/122:128 fd00::ffff:ffff:ffff:ffc0/122:128 fd00::/64:122",
            "default 10.0.0.0/25:32 10.0.1.0/26:32 10.0.0.0/8:26",
        ]
    );
    assert_eq!(plan.blocks.len(), 5);
    assert_eq!(
        plan.notes,
        [
            "pool blue-fd00---64: allocation \"340282366920938463463374607431768211455\" is not valid"
        ]
    );
}

/// No block of the wider pool contains an address that a block of its own has.
#[test]
fn a_pool_around_another_is_cut_as_fine_as_that_one() {
    let plan = planned(&[
        pool("10.0.0.16-28", "10.0.0.16/28", &json!({"1": held("a")})),
        reservation("10.0.0.17", "a"),
        pool("10.0.0.0-20", "10.0.0.0/20", &json!({"200": held("b")})),
        reservation("10.0.0.200", "b"),
        pod("a", "n1", &json!({})),
        pod("b", "n2", &json!({})),
    ]);
    assert_eq!(parts(&plan), ["default 10.0.0.17/32:32 10.0.0.192/26:32 10.0.0.0/20:32"]);
}

#[test]
fn names_say_the_network_and_the_node_of_a_slice() {
    for (name, range, space) in [
        ("10.1.0.0-24", "10.1.0.0/24", "default"),
        ("blue-10.1.0.0-24", "10.1.0.0/24", "blue"),
        ("blue-n1-10.1.0.0-24", "10.1.0.0/24", "blue"),
        ("n1-10.1.0.0-24", "10.1.0.0/24", "default"),
        ("fd00---64", "fd00::/64", "default"),
    ] {
        let address = if range.contains('.') { "10.1.0.3" } else { "fd00--3" };
        let prefix = if space == "blue" { "blue-" } else { "" };
        let plan = planned(&[
            pool(name, range, &json!({"3": held("a")})),
            reservation(&format!("{prefix}{address}"), "a"),
            pod("a", "n1", &json!({})),
        ]);
        let spaces: Vec<_> = plan.blocks.iter().map(|block| block.space.as_str()).collect();
        assert_eq!(spaces, [space], "{name}: {:?}", plan.notes);
    }
}

/// If nothing says that an address is unique over all ranges it may be unique only in its own: it
/// is imported in both spaces.
#[test]
fn without_a_reservation_an_address_is_taken_in_both_spaces() {
    let plan = planned(&[
        pool("10.1.0.0-24", "10.1.0.0/24", &json!({"3": held("a")})),
        pod("a", "n1", &json!({})),
    ]);
    assert_eq!(
        blocks(&plan),
        ["default 10.1.0.3 n1 c-a/net1", "default/10.1.0.0/24 10.1.0.3 n1 c-a/net1"]
    );
}

#[test]
fn what_cannot_be_taken_over_is_told() {
    let status = json!([{"name": "ns/blue", "interface": "data0", "ips": ["10.1.0.5"]}]);
    let plan = planned(&[
        pool(
            "10.1.0.0-24",
            "10.1.0.0/24",
            &json!({
                "1": {"id": "c", "podref": "tea", "ifname": "net1"},
                "2": {"id": "", "podref": "ns/a", "ifname": "net1"},
                "3": {"id": "c-a", "podref": "ns/a"},
                "4": {"id": "c-done", "podref": "ns/done", "ifname": "net1"},
                "5": {"id": "c-b", "podref": "ns/b"},
                "300": held("a"), "tea": held("a"), "6": "x",
            }),
        ),
        pool("other", "10.2.0.0/24", &json!({"1": held("a")})),
        pool("broken", "tea", &json!({})),
        reservation("10.1.0.9", "a"),
        reservation("10.9.0.1", "a"),
        reservation("10.9.0.2", "gone"),
        reservation("fd00--7", "a"),
        reservation("tea", "a"),
        pod("a", "n1", &json!({})),
        pod("b", "n1", &json!({"status": status})),
        pod("done", "n1", &json!({"phase": "Succeeded"})),
        pod("nowhere", "", &json!({})),
    ]);
    assert_eq!(
        passed_over(&plan),
        [
            "10.1.0.0-24 10.1.0.1: \"tea\" is not a pod",
            "10.1.0.0-24 10.1.0.4: the pod ns/done is gone",
            "10.9.0.2 10.9.0.2: the pod ns/gone is gone",
            "tea: its name contains no address",
        ]
    );
    // Old releases did not record the interface; the pod's status does.
    let all = blocks(&plan);
    assert!(all.contains(&"default 10.1.0.5 n1 c-b/data0".to_owned()), "{all:?}");
    // No other pod gets the address of a living pod, however little is known of that pod, and
    // whether or not its pool lists the address.
    for one in [
        "10.1.0.2 n1 /net1",
        "10.1.0.3 n1 c-a/",
        "10.1.0.9 n1 c-a/net1",
        "10.9.0.1 n1 c-a/net1",
        "fd00::7 n1 c-a/net1",
    ] {
        assert!(all.contains(&format!("default {one}")), "{one}: {all:?}");
    }
    assert_eq!(
        plan.notes,
        [
            "pool 10.1.0.0-24: allocation \"300\" is not valid",
            "pool 10.1.0.0-24: allocation \"6\" is not valid",
            "pool 10.1.0.0-24: allocation \"tea\" is not valid",
            "pool broken has no range and is ignored",
            "no record says which container or interface of ns/a has 10.1.0.2: a restart of node n1 frees it, DEL does not",
            "no record says which container or interface of ns/a has 10.1.0.3: a restart of node n1 frees it, DEL does not",
            "pool other is not named after its range 10.2.0.0/24 and is ignored",
        ]
    );
}

#[test]
fn what_is_no_object_is_refused() {
    let read = |text: &str| {
        let mut found = ImportSource::default();
        found.read(text.as_bytes()).and_then(|()| plan(&found)).unwrap_err().to_string()
    };
    assert!(read("tea").starts_with("not JSON: "));
    assert!(read("[]").starts_with("not the output of kubectl get -o json"));
    assert!(read(r#"{"kind": "IPPoolList", "items": []}"#).starts_with("pools without pods"));
    let mut found = ImportSource::default();
    found.read(br#"{"kind": "PodList", "items": []}"#).unwrap();
    assert_eq!(plan(&found).unwrap(), Plan::default());
}

#[derive(Debug)]
struct StillClock;

impl Clock for StillClock {
    fn now(&self) -> Duration {
        Duration::from_secs(1)
    }
}

fn open(dir: &std::path::Path, store: &Memory, name: &str) -> Node {
    let settings = Settings::new(name, "boot", &format!("machine-{name}"));
    Node::open(&dir.join(name), Arc::new(store.clone()), Arc::new(StillClock), settings).unwrap()
}

/// The whole path: no pod gets the address of a living pod, the DEL of that pod frees it on its
/// node, and then any pod can get it.
#[test]
fn nodes_keep_what_was_taken_over_until_its_pod_goes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Memory::default();
    let plan = planned(&[
        pool(
            "10.1.0.0-29",
            "10.1.0.0/29",
            &json!({"1": held("a"), "2": held("b"), "3": held("a2"), "4": held("b2"), "5": held("gone")}),
        ),
        reservation("10.1.0.1", "a"),
        reservation("10.1.0.2", "b"),
        reservation("10.1.0.3", "a2"),
        reservation("10.1.0.4", "b2"),
        pod("a", "n1", &json!({})),
        pod("a2", "n1", &json!({})),
        pod("b", "n2", &json!({})),
        pod("b2", "n2", &json!({})),
    ]);
    let first = apply(&store, &plan).unwrap();
    assert_eq!((first.taken, first.known, first.refused.len()), (4, 0, 0));
    let again = apply(&store, &plan).unwrap();
    assert_eq!((again.taken, again.known, again.refused.len()), (0, 4, 0));

    let (n1, n2) = (open(dir.path(), &store, "n1"), open(dir.path(), &store, "n2"));
    for node in [&n1, &n2] {
        node.renew().unwrap();
    }
    let ask = |node: &Node, container: &str| {
        let owner =
            Owner { container: container.into(), ifname: "net1".into(), ..Owner::default() };
        let mut network = NetworkSpec::new("blue");
        network.ranges = vec!["10.1.0.0/29".parse().unwrap()];
        node.assign(&AssignRequest { network, owner, wanted: Vec::new() })
            .map(|assigned| assigned[0].address.addr().to_string())
    };
    // An imported pod asks again and gets its address; new ones get what is left: 10.1.0.5 and
    // 10.1.0.6.
    assert_eq!(ask(&n1, "c-a").unwrap(), "10.1.0.1");
    let mut new = vec![ask(&n1, "new-1").unwrap(), ask(&n2, "new-2").unwrap()];
    new.sort();
    assert_eq!(new, ["10.1.0.5", "10.1.0.6"]);
    assert!(ask(&n1, "new-3").is_err());
    let owner = |container: &str| Owner {
        container: container.into(),
        ifname: "net1".into(),
        ..Owner::default()
    };
    // Another node must not free it.
    n1.release(&owner("c-b")).unwrap();
    assert!(ask(&n2, "new-3").is_err());
    n2.release(&owner("c-b")).unwrap();
    assert_eq!(ask(&n2, "new-3").unwrap(), "10.1.0.2");
    assert_eq!(store.list(Kind::Block, crate::store::Filter::All).unwrap().len(), 6);
    // Too late: addresses that have an owner by now are reported.
    let late = planned(&[
        pool("10.1.0.0-29", "10.1.0.0/29", &json!({"2": held("x")})),
        reservation("10.1.0.2", "x"),
        pod("x", "n1", &json!({})),
    ]);
    let late = apply(&store, &late).unwrap();
    assert_eq!(late.refused[0].why, "node n2 has the block 10.1.0.2/32 already");
}

#[test]
fn what_netwrightd_cut_otherwise_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = Memory::default();
    let node = open(dir.path(), &store, "n1");
    node.renew().unwrap();
    let mut network = NetworkSpec::new("blue");
    network.ranges = vec!["10.0.0.0/8".parse().unwrap()];
    let owner = Owner { container: "c".into(), ifname: "e".into(), ..Owner::default() };
    node.assign(&AssignRequest { network, owner, wanted: Vec::new() }).unwrap();
    let plan = planned(&[
        pool("10.0.0.0-8", "10.0.0.0/8", &json!({"1": held("a")})),
        reservation("10.0.0.1", "a"),
        pod("a", "n1", &json!({})),
    ]);
    let applied = apply(&store, &plan).unwrap();
    assert_eq!(applied.taken, 0);
    assert!(
        applied.refused[0].why.contains("the space default has other block sizes"),
        "{applied:?}"
    );
}
