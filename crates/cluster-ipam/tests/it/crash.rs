//! A daemon that ends at each write: of a file, and to the store.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use netwright_cluster_ipam::store::{Fault, Kind, Memory};
use netwright_cluster_ipam::{Node, Reclaimer};

use crate::support::*;

/// Counts down to the daemon's end.
#[derive(Clone)]
struct Fuse(Arc<AtomicU64>);

impl Fuse {
    fn new(steps: u64) -> Self {
        Fuse(Arc::new(AtomicU64::new(steps)))
    }

    /// Ends the daemon here, if the count is over.
    fn step(&self) {
        if self.0.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::panic::resume_unwind(Box::new("the daemon was killed"));
        }
    }
}

fn open(dir: &Path, store: &Memory, clock: &Hands, fuse: &Fuse) -> Node {
    let of_files = fuse.clone();
    let settings = settings("n1");
    Node::open_with(
        &dir.join("n1"),
        Arc::new(store.clone()),
        Arc::new(clock.clone()),
        settings,
        Some(Box::new(move |_| of_files.step())),
    )
    .unwrap()
}

/// One life of a daemon; notes the answers to containers.
fn live(node: &Node, clock: &Hands, told: &mut BTreeMap<String, Vec<std::net::IpAddr>>) {
    let blue = in_blocks(&["10.0.0.0/27", "2001:db8::/123"]);
    for index in 0..10 {
        let container = format!("c{index}");
        if let Ok(addresses) = assign(node, &blue, &container) {
            told.insert(container, addresses);
        }
    }
    let _ = node.tend();
    for index in 0..5 {
        let container = format!("c{index}");
        // The container is detached before the answer: from here on another may get its address.
        told.remove(&container);
        let _ = node.release(&owner(&container));
    }
    clock.pass(Duration::from_secs(60));
    let _ = node.tend();
}

/// Kills a daemon at every step of its life, before each file and each request to the store. The
/// next daemon must continue, and another node must find every free address and no other.
#[test]
fn a_daemon_that_is_killed_anywhere_loses_nothing_and_gives_nothing_twice() {
    let mut step = 1;
    loop {
        let (dir, store, clock) =
            (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
        let fuse = Fuse::new(step);
        let view = store.view();
        let of_store = fuse.clone();
        // The daemon is killed before its request arrives. A kill between an answer and its use is
        // the kill at the next step.
        view.misbehave(move |_, _| {
            of_store.step();
            Fault::None
        });
        let mut told = BTreeMap::new();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let node = open(dir.path(), &view, &clock, &fuse);
            live(&node, &clock, &mut told);
        }));
        check(dir.path(), &store, &clock, told, step);
        if ended.is_ok() {
            break;
        }
        step += 1;
    }
    assert!(40 < step, "{step} steps are too few");
}

fn check(
    dir: &Path,
    store: &Memory,
    clock: &Hands,
    told: BTreeMap<String, Vec<std::net::IpAddr>>,
    step: u64,
) {
    let blue = in_blocks(&["10.0.0.0/27", "2001:db8::/123"]);
    let n1 = open(dir, store, clock, &Fuse::new(u64::MAX));
    n1.renew().unwrap_or_else(|error| panic!("step {step}: {error}"));
    n1.sweep().unwrap();
    for (container, addresses) in &told {
        let has = held(&n1, &blue, container).unwrap();
        assert_eq!(has, *addresses, "step {step}: {container}");
    }
    // The other node's turn: no address that a container has here is assigned there.
    let n2 = node(dir, store, clock, "n2");
    let taken: Vec<_> = told.values().flatten().copied().collect();
    for (name, node) in [("x", &n1), ("y", &n2)] {
        for index in 0..40 {
            let Ok(addresses) = assign(node, &blue, &format!("{name}{index}")) else { break };
            for address in addresses {
                assert!(!taken.contains(&address), "step {step}: {address} is assigned twice");
            }
        }
    }
    // All are released: no block is left.
    for index in 0..40 {
        n1.release(&owner(&format!("c{index}"))).unwrap();
        n1.release(&owner(&format!("x{index}"))).unwrap();
        n2.release(&owner(&format!("y{index}"))).unwrap();
    }
    n1.collect(&node_api::ipam::CollectRequest { network: "blue".into(), valid: vec![] }).unwrap();
    clock.pass(Duration::from_secs(60));
    for node in [&n1, &n2] {
        node.renew().unwrap();
        node.sweep().unwrap();
        node.tend().unwrap();
        clock.pass(Duration::from_secs(60));
        node.tend().unwrap();
    }
    for (key, value) in store.records() {
        assert_ne!(key.kind, Kind::Block, "step {step}: {key} {value}");
    }
    let mut reclaimer = Reclaimer::new(Arc::new(store.clone()), Arc::new(clock.clone()));
    reclaimer.look("n3").unwrap();
}
