//! Empty blocks: when a node returns them, and which node gets them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use netwright_cluster_ipam::network::Network;
use netwright_cluster_ipam::store::{Fault, Key, Kind, Memory, Store as _};
use netwright_cluster_ipam::{Clock as _, Node, Settings};

use crate::support::*;

fn blocks(store: &Memory, node: &str) -> usize {
    let records = store.records().into_iter();
    records.filter(|(key, value)| key.kind == Kind::Block && value["node"] == node).count()
}

/// Five pods in a /29 of six addresses: any node can assign the last one, also after pods came and
/// went.
#[test]
fn a_small_space_serves_every_node_to_its_last_address() {
    for last in [0, 1] {
        let (dir, store, clock) =
            (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
        let nodes = ["n1", "n2"].map(|name| node(dir.path(), &store, &clock, name));
        let blue = network(&["192.0.2.0/29"]);
        let tend = || {
            for _ in 0..3 {
                clock.pass(Duration::from_secs(1));
                nodes.iter().for_each(|node| node.tend().unwrap());
            }
        };
        tend();
        for (index, node) in nodes.iter().enumerate() {
            for pod in 0..3 {
                assign(node, &blue, &format!("early-{index}-{pod}")).unwrap();
            }
            for pod in 0..3 {
                node.release(&owner(&format!("early-{index}-{pod}"))).unwrap();
            }
            tend();
        }
        let mut given: Vec<IpAddr> = Vec::new();
        for pod in 0..5 {
            given.extend(assign(&nodes[pod % 2], &blue, &format!("pod-{pod}")).unwrap());
            tend();
        }
        // The other node had the sixth, and no longer has it.
        let other = &nodes[1 - last];
        assign(other, &blue, "short").unwrap();
        other.release(&owner("short")).unwrap();
        tend();
        let sixth = assign(&nodes[last], &blue, "the-last").unwrap();
        assert!(!given.contains(&sixth[0]));
        assert_eq!(assign(&nodes[last], &blue, "one-too-many").unwrap_err().code, 102);
    }
}

#[test]
fn an_empty_block_is_given_back_when_it_was_idle_for_long() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = node(dir.path(), &store, &clock, "n1");
    let blue = in_blocks(&["10.0.0.0/16"]);
    assign(&n1, &blue, "c0").unwrap();
    n1.release(&owner("c0")).unwrap();
    clock.pass(Duration::from_secs(9));
    n1.tend().unwrap();
    assert_eq!(blocks(&store, "n1"), 1, "pods come and go: the block is needed again soon");
    clock.pass(Duration::from_secs(2));
    n1.tend().unwrap();
    assert_eq!(blocks(&store, "n1"), 0);
}

/// The example of docs/plugins.md, on three nodes with twenty pods each.
#[test]
fn the_pages_example_asks_the_store_less_than_once_an_address() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let mut blue = network(&["192.168.2.0/24"]);
    blue.ranges[0].exclude = vec!["192.168.2.0/28".parse().unwrap()];
    blue.ranges[0].gateway = Some("192.168.2.1".parse().unwrap());
    let asked = Arc::new(AtomicU64::new(0));
    let nodes = ["n1", "n2", "n3"].map(|name| {
        let view = store.view();
        let asked = Arc::clone(&asked);
        view.misbehave(move |_, _| {
            asked.fetch_add(1, Ordering::SeqCst);
            Fault::None
        });
        let node = node(dir.path(), &view, &clock, name);
        node.tend().unwrap();
        node
    });
    asked.store(0, Ordering::SeqCst);
    for pod in 0..20 {
        for (index, node) in nodes.iter().enumerate() {
            assign(node, &blue, &format!("pod-{index}-{pod}")).unwrap();
        }
    }
    let asked = asked.load(Ordering::SeqCst);
    eprintln!("MEASURED cluster addresses: {asked} questions for 60 ADDs of a /24");
    assert!(asked < 60, "{asked} questions for 60 addresses");
}

#[test]
fn status_takes_nothing() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = node(dir.path(), &store, &clock, "n1");
    let blue = Network::new(network(&["192.0.2.0/29"])).unwrap();
    n1.status(&blue).unwrap();
    assert_eq!(blocks(&store, "n1"), 0);
}

#[test]
fn a_shorter_lease_counts_at_once() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let blue = in_blocks(&["10.0.0.0/24"]);
    let n1 = node(dir.path(), &store, &clock, "n1");
    assign(&n1, &blue, "a").unwrap();
    drop(n1);
    let shorter = Duration::from_secs(10);
    let view = store.view();
    let changed = || Settings { lease: shorter, ..settings("n1") };
    let n1 = node_with(dir.path(), &view, &clock, changed());
    n1.tend().unwrap();
    let record = store.get(&netwright_cluster_ipam::record::node_key("n1")).unwrap().unwrap();
    assert_eq!(record.value["leaseMs"], 10_000);
    drop(n1);
    // Even if the store cannot have the change, no address is assigned beyond the shorter time.
    let n1 = node(dir.path(), &store, &clock, "n1");
    n1.renew().unwrap();
    drop(n1);
    view.misbehave(|_, _| Fault::Lost);
    let n1 = node_with(dir.path(), &view, &clock, changed());
    assign(&n1, &blue, "b").unwrap();
    clock.pass(shorter);
    assert!(assign(&n1, &blue, "c").unwrap_err().retry);
}

/// Two nodes that have all of a small space; the first has blocks without an assigned address.
fn hoarded(dir: &std::path::Path, store: &Memory, clock: &Hands) -> [Arc<Node>; 2] {
    let nodes = ["n1", "n2"].map(|name| {
        let settings = Settings { idle: Duration::from_secs(600), ..settings(name) };
        Arc::new(node_with(dir, store, clock, settings))
    });
    for (index, node) in nodes.iter().enumerate() {
        for pod in 0..16 {
            assign(node, &in_blocks(&["10.0.0.0/27"]), &format!("pod-{index}-{pod}")).ok();
        }
    }
    // The records say then that all blocks are used.
    nodes.iter().for_each(|node| node.tend().unwrap());
    assert_eq!(assign(&nodes[1], &in_blocks(&["10.0.0.0/27"]), "more").unwrap_err().code, 102);
    for pod in 0..16 {
        nodes[0].release(&owner(&format!("pod-0-{pod}"))).unwrap();
    }
    for node in &nodes {
        node.tend().unwrap();
    }
    clock.pass(Duration::from_secs(1));
    nodes
}

/// The space has more than four addresses for each node, so a node keeps empty blocks for a while,
/// but not while another node has no address to assign.
#[test]
fn empty_blocks_go_within_five_seconds_to_the_node_that_finds_the_space_full() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let nodes = hoarded(dir.path(), &store, &clock);
    let before = blocks(&store, "n1");
    assert!(0 < before, "they are kept for a while");
    let began = clock.now();
    let (other, waits) = (Arc::clone(&nodes[0]), Arc::new(AtomicU64::new(0)));
    let waited = Arc::clone(&waits);
    clock.meanwhile(move || {
        // The node's daemon does this about once a second.
        other.tend().unwrap();
        waited.fetch_add(1, Ordering::SeqCst);
    });
    assign(&nodes[1], &in_blocks(&["10.0.0.0/27"]), "more").unwrap();
    assert!(clock.now() - began <= Duration::from_secs(5));
    assert!(0 < waits.load(Ordering::SeqCst));
    assert_eq!(blocks(&store, "n1"), 0);
}

/// The first node died with empty blocks, and comes back later.
#[test]
fn status_does_not_count_on_an_empty_block_that_was_not_given_back() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let nodes = hoarded(dir.path(), &store, &clock);
    let blue = in_blocks(&["10.0.0.0/27"]);
    let status = || nodes[1].status(&Network::new(blue.clone()).unwrap());
    status().unwrap();
    let refused = assign(&nodes[1], &blue, "more").unwrap_err();
    assert_eq!(refused.code, 102);
    assert_eq!(status().unwrap_err(), refused);
    for _ in 0..3 {
        clock.pass(Duration::from_secs(2));
        nodes[0].tend().unwrap();
    }
    status().unwrap();
    assign(&nodes[1], &blue, "more").unwrap();
    status().unwrap();
}

/// The record of the other node's block still says that a container has the address.
#[test]
fn an_address_that_was_freed_a_moment_ago_goes_to_the_node_that_asks() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let [n1, n2] = ["n1", "n2"].map(|name| Arc::new(node(dir.path(), &store, &clock, name)));
    let blue = network(&["192.0.2.0/30"]);
    for container in ["a", "b"] {
        assign(&n1, &blue, container).unwrap();
    }
    n2.tend().unwrap();
    n1.tend().unwrap();
    assert_eq!(assign(&n2, &blue, "c").unwrap_err().code, 102);
    n1.release(&owner("a")).unwrap();
    clock.meanwhile(move || n1.tend().unwrap());
    assign(&n2, &blue, "c").unwrap();
}

/// The store carried out the first node's request, and the answer was lost.
#[test]
fn a_block_whose_claim_was_not_answered_goes_to_the_node_that_needs_it() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let view = store.view();
    let n1 = node(dir.path(), &view, &clock, "n1");
    let n2 = node(dir.path(), &store, &clock, "n2");
    let blue = in_blocks(&["10.0.0.0/29"]);
    n1.renew().unwrap();
    view.misbehave(|verb, key| {
        let is_claim = verb == "create" && key.kind == Kind::Block;
        if is_claim { Fault::Unanswered } else { Fault::None }
    });
    assert!(assign(&n1, &blue, "a").unwrap_err().retry);
    view.behave();
    clock.meanwhile(move || n1.tend().unwrap());
    assign(&n2, &blue, "b").unwrap();
}

/// Networks with ranges of their own in one subnet: the second waits for no block of the first, and
/// is not refused because that one is full.
#[test]
fn a_full_range_is_in_the_way_of_no_other_range_of_its_subnet() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = Arc::new(node(dir.path(), &store, &clock, "n1"));
    let full = in_blocks(&["10.0.0.0-10.0.0.7/27"]);
    for index in 0..7 {
        assign(&n1, &full, &format!("full-{index}")).unwrap();
    }
    let (other, given) = (Arc::clone(&n1), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&given);
    clock.meanwhile(move || {
        let free = in_blocks(&["10.0.0.8-10.0.0.15/27"]);
        let (node, (sender, answer)) = (Arc::clone(&other), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let _ = sender.send(assign(&node, &free, "free"));
        });
        answer.recv_timeout(Duration::from_secs(60)).expect("an answer").unwrap();
        count.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(assign(&n1, &full, "more").unwrap_err().code, 102);
    assert!(0 < given.load(Ordering::SeqCst));
}

/// A daemon of an earlier version does not know requests for blocks: it loses nothing, and after a
/// while the requesting node's error says how many of the others' blocks look empty.
#[test]
fn a_node_that_does_not_know_wants_keeps_what_it_has() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let nodes = hoarded(dir.path(), &store, &clock);
    let refusal = assign(&nodes[1], &in_blocks(&["10.0.0.0/27"]), "more").unwrap_err();
    assert_eq!(refusal.code, 102);
    let has = blocks(&store, "n1");
    let text = format!("; {has} of them looked empty, and their nodes did not give them back");
    assert!(0 < has && refusal.details.contains(&text), "{}", refusal.details);
    assign(&nodes[0], &in_blocks(&["10.0.0.0/27"]), "again").unwrap();
}

/// What version 0.1.0 knows of a space's record.
#[derive(serde::Serialize, serde::Deserialize)]
struct OldSpace {
    space: String,
    parts: Vec<OldPart>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct OldPart {
    subnet: String,
    block: u8,
}

#[test]
fn old_and_new_daemons_read_each_others_spaces_and_cut_alike() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    // An old daemon cut the space into blocks of one address.
    let key = netwright_cluster_ipam::record::space_key("default");
    let parts = vec![OldPart { subnet: "192.0.2.0/24".into(), block: 32 }];
    let old = serde_json::to_value(OldSpace { space: "default".into(), parts }).unwrap();
    store.create(&key, &old).unwrap();
    let n3 = node(dir.path(), &store, &clock, "n3");
    assign(&n3, &network(&["192.0.2.0/24"]), "a").unwrap();
    let one =
        |(key, _): &(Key, serde_json::Value)| key.kind == Kind::Block && key.name.ends_with("-32");
    assert_eq!(store.records().into_iter().filter(one).count(), 1);
    // A new daemon writes its request; the old one reads the record, and adds a part.
    let nodes = hoarded(dir.path(), &store, &clock);
    assign(&nodes[1], &in_blocks(&["10.0.0.0/27"]), "more").unwrap_err();
    let found = store.get(&key).unwrap().unwrap();
    assert_eq!(found.value["wanted"][0]["node"], "n2", "{}", found.value);
    let mut read: OldSpace = serde_json::from_value(found.value).unwrap();
    read.parts.push(OldPart { subnet: "198.51.100.0/24".into(), block: 32 });
    store.update(&key, &found.revision, &serde_json::to_value(read).unwrap()).unwrap();
    assign(&n3, &network(&["198.51.100.0/24"]), "b").unwrap();
    let other = Arc::clone(&nodes[0]);
    clock.meanwhile(move || other.tend().unwrap());
    assign(&nodes[1], &in_blocks(&["10.0.0.0/27"]), "more").unwrap();
}

/// The first use of a space counts the nodes, to cut it.
#[test]
fn many_nodes_cut_a_space_finer() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let nodes: Vec<Node> = (0..100)
        .map(|index| {
            let node = node(dir.path(), &store, &clock, &format!("n{index}"));
            node.tend().unwrap();
            node
        })
        .collect();
    let blue = network(&["192.0.2.0/24"]);
    // One pod on each node, as with a DaemonSet, twice.
    for round in 0..2 {
        for (index, node) in nodes.iter().enumerate() {
            assign(node, &blue, &format!("{round}-{index}")).unwrap();
        }
    }
}
