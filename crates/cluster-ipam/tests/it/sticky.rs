//! Addresses that pods keep.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use netwright_cluster_ipam::network::NetworkSpec;
use netwright_cluster_ipam::store::{Fault, Kind, Memory};
use netwright_cluster_ipam::{Node, Reclaimer, sticky};
use node_api::ipam::{AssignRequest, Owner};
use node_api::{Pod, Refusal};

use crate::support::*;

fn kept(ranges: &[&str]) -> NetworkSpec {
    NetworkSpec { sticky: true, ..in_blocks(ranges) }
}

fn pod(container: &str, name: &str) -> Owner {
    let pod = Pod { namespace: "ns".into(), name: name.into(), uid: format!("uid-{container}") };
    Owner { pod: Some(pod), ..owner(container) }
}

fn add(
    node: &Node,
    network: &NetworkSpec,
    container: &str,
    name: &str,
) -> Result<Vec<IpAddr>, Refusal> {
    let ask =
        AssignRequest { network: network.clone(), owner: pod(container, name), wanted: vec![] };
    node.assign(&ask).map(addresses)
}

#[test]
fn a_pod_that_is_made_again_has_its_addresses_on_whichever_node() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let nodes = ["n1", "n2"].map(|name| node(dir.path(), &store, &clock, name));
    let blue = kept(&["10.0.0.0/28", "2001:db8::/64"]);
    let first = add(&nodes[0], &blue, "c1", "web-0").unwrap();
    assert_eq!(add(&nodes[0], &blue, "c1", "web-0").unwrap(), first);
    nodes[0].release(&owner("c1")).unwrap();
    assert_eq!(add(&nodes[0], &blue, "c2", "web-0").unwrap(), first);
    // While the pod has the addresses no other gets them, not even the pod itself elsewhere.
    let refusal = add(&nodes[1], &blue, "c3", "web-0").unwrap_err();
    assert!(refusal.retry, "{refusal}");
    assert_eq!(
        refusal.msg,
        "the address that pod ns/web-0 keeps is still its container's on node n1"
    );
    nodes[0].release(&owner("c2")).unwrap();
    nodes[0].tend().unwrap();
    assert_eq!(add(&nodes[1], &blue, "c3", "web-0").unwrap(), first);
    assert_eq!(held(&nodes[1], &blue, "c3").unwrap(), first);
    // All others get other addresses, until there are no more.
    let plain = in_blocks(&["10.0.0.0/28"]);
    let mut others = 0;
    for node in &nodes {
        while let Ok(addresses) = assign(node, &plain, &format!("x{others}")) {
            assert_ne!(addresses[0], first[0]);
            others += 1;
        }
    }
    assert_eq!(others, 13);
    nodes[1].release(&owner("c3")).unwrap();
    nodes[1].tend().unwrap();
    clock.pass(LEASE / 2);
    for node in &nodes {
        node.tend().unwrap();
        assert!(assign(node, &plain, "late").is_err());
    }
    assert_eq!(add(&nodes[0], &blue, "c4", "web-0").unwrap(), first);
}

#[test]
fn a_detached_pods_address_waits_for_it_while_the_store_is_away() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let view = store.view();
    let n1 = node(dir.path(), &view, &clock, "n1");
    let n2 = node(dir.path(), &store, &clock, "n2");
    let blue = kept(&["10.0.0.0/24"]);
    let first = add(&n1, &blue, "c1", "web-0").unwrap();
    view.misbehave(|_, _| Fault::Lost);
    n1.release(&owner("c1")).unwrap();
    assert!(add(&n1, &blue, "c2", "web-0").unwrap_err().retry);
    assert!(add(&n2, &blue, "c2", "web-0").unwrap_err().retry);
    drop(n1);
    view.behave();
    // The next daemon reports it.
    let n1 = node(dir.path(), &view, &clock, "n1");
    n1.sweep().unwrap();
    assert_eq!(add(&n2, &blue, "c2", "web-0").unwrap(), first);
}

#[test]
fn the_address_of_a_pod_whose_node_is_gone_is_its_elsewhere() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = node(dir.path(), &store, &clock, "n1");
    let n2 = node(dir.path(), &store, &clock, "n2");
    let blue = kept(&["10.0.0.0/29"]);
    let first = add(&n1, &blue, "c1", "web-0").unwrap();
    n1.tend().unwrap();
    store.set_gone("n1", true);
    let mut reclaimer = Reclaimer::new(Arc::new(store.clone()), Arc::new(clock.clone()));
    reclaimer.look("n2").unwrap();
    clock.pass(LEASE * 2);
    assert!(add(&n2, &blue, "c2", "web-0").is_err());
    assert_eq!(reclaimer.look("n2").unwrap().len(), 1);
    // The block's present owner assigns the address to no other container.
    for index in 0..5 {
        assert_ne!(assign(&n2, &in_blocks(&["10.0.0.0/29"]), &format!("x{index}")).unwrap(), first);
    }
    assert!(assign(&n2, &in_blocks(&["10.0.0.0/29"]), "late").is_err());
    assert_eq!(add(&n2, &blue, "c2", "web-0").unwrap(), first);
    // The node is back with its container, and reports it.
    n1.renew().unwrap();
    assert_eq!(n1.lost().len(), 1);
    assert!(n1.take_notices().join("\n").contains("that a pod keeps now belongs to another"));
}

#[test]
fn what_a_pod_keeps_is_freed_when_somebody_says_so() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = node(dir.path(), &store, &clock, "n1");
    let blue = kept(&["10.0.0.0/30"]);
    let first = add(&n1, &blue, "c1", "web-0").unwrap();
    let released = sticky::release(&store, "ns", "web-0").unwrap();
    assert_eq!((released.free, released.held), (vec![], first.clone()));
    n1.release(&owner("c1")).unwrap();
    n1.tend().unwrap();
    let released = sticky::release(&store, "ns", "web-0").unwrap();
    assert_eq!((released.free, released.held), (first.clone(), vec![]));
    n1.sweep().unwrap();
    clock.pass(Duration::from_secs(130));
    n1.renew().unwrap();
    n1.sweep().unwrap();
    n1.tend().unwrap();
    let plain = in_blocks(&["10.0.0.0/30"]);
    let both = [assign(&n1, &plain, "x").unwrap(), assign(&n1, &plain, "y").unwrap()];
    assert!(both.contains(&first));
}

#[test]
fn a_pod_without_a_name_keeps_nothing_and_is_told() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = node(dir.path(), &store, &clock, "n1");
    let refusal = assign(&n1, &kept(&["10.0.0.0/24"]), "c1").unwrap_err();
    assert_eq!(refusal.code, 4);
    assert!(refusal.msg.contains("K8S_POD_NAME"), "{refusal}");
    assert!(store.records().keys().all(|key| key.kind != Kind::Sticky));
}

#[test]
fn answers_that_are_lost_leave_nobody_with_somebody_elses_address() {
    // Each write of a sticky ADD is lost, done without an answer, or late. Then the pod is attached
    // elsewhere, and others everywhere.
    for fault in [Fault::Lost, Fault::Unanswered, Fault::Late] {
        for strike in 0..8 {
            let (dir, store, clock) =
                (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
            let view = store.view();
            let n1 = node(dir.path(), &view, &clock, "n1");
            let n2 = node(dir.path(), &store, &clock, "n2");
            let blue = kept(&["10.0.0.0/28"]);
            let plain = in_blocks(&["10.0.0.0/28"]);
            let mut count = 0;
            view.misbehave(move |verb, _| {
                let writes = matches!(verb, "create" | "update");
                count += i32::from(writes);
                if writes && count == strike + 1 { fault } else { Fault::None }
            });
            let first = add(&n1, &blue, "c1", "web-0");
            view.behave();
            let mut taken: Vec<IpAddr> = first.iter().flatten().copied().collect();
            if first.is_err() {
                n1.release(&owner("c1")).unwrap();
            }
            store.land();
            n1.sweep().unwrap();
            n1.tend().unwrap();
            for index in 0..14 {
                let node = if index % 2 == 0 { &n1 } else { &n2 };
                if index == 5 && first.is_err() {
                    let again = add(&n2, &blue, "c2", "web-0").unwrap();
                    assert!(!taken.contains(&again[0]), "{fault:?} {strike}: {again:?}");
                    taken.extend(again);
                }
                if let Ok(addresses) = assign(node, &plain, &format!("x{index}")) {
                    assert!(!taken.contains(&addresses[0]), "{fault:?} {strike}: {addresses:?}");
                    taken.extend(addresses);
                }
            }
        }
    }
}
