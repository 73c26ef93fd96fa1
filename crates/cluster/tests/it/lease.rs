//! Leases: nodes that are slow, away, gone, and back.

use std::sync::Arc;
use std::time::Duration;

use netwright_cluster::store::{Fault, Kind, Memory};
use netwright_cluster::{Reclaimer, Settings, reclaim};

use crate::support::*;

const OVER: Duration = Duration::from_secs(200);

fn blocks(store: &Memory, node: &str) -> usize {
    let records = store.records().into_iter();
    records.filter(|(key, value)| key.kind == Kind::Block && value["node"] == node).count()
}

#[test]
fn while_the_store_is_away_a_node_gives_what_it_has_and_takes_back_all() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let view = store.view();
    let n1 = node(dir.path(), &view, &clock, "n1");
    let blue = in_blocks(&["10.0.0.0/16"]);
    assign(&n1, &blue, "c0").unwrap();
    view.misbehave(|_, _| Fault::Lost);
    let mut given = 0;
    let refusal = loop {
        match assign(&n1, &blue, &format!("c{}", given + 1)) {
            Ok(_) => given += 1,
            Err(refusal) => break refusal,
        }
        assert!(given < 8);
    };
    assert!(5 <= given, "{given}");
    assert!(refusal.retry && refusal.msg.contains("needs more addresses"), "{refusal}");
    for index in 0..=given {
        n1.release(&owner(&format!("c{index}"))).unwrap();
    }
    // The daemon starts again: nothing is lost, and the lease still holds.
    drop(n1);
    let n1 = node(dir.path(), &view, &clock, "n1");
    assign(&n1, &blue, "d0").unwrap();
    // Until it runs out.
    clock.pass(LEASE);
    let refusal = assign(&n1, &blue, "d1").unwrap_err();
    assert!(refusal.retry && refusal.details.contains("lease has run out"), "{refusal:?}");
    n1.release(&owner("d0")).unwrap();
    view.behave();
    assign(&n1, &blue, "d1").unwrap();
}

#[test]
fn a_node_that_lives_is_never_given_up() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = node(dir.path(), &store, &clock, "n1");
    assign(&n1, &in_blocks(&["10.0.0.0/16"]), "c0").unwrap();
    store.set_gone("n1", true);
    let mut reclaimer = Reclaimer::new(Arc::new(store.clone()), Arc::new(clock.clone()));
    for _ in 0..20 {
        assert!(reclaimer.look("n2").unwrap().is_empty());
        clock.pass(LEASE / 2);
        n1.tend().unwrap();
    }
    assert_eq!(blocks(&store, "n1"), 1);
    // One that is silent and not known to be gone neither.
    store.set_gone("n1", false);
    for _ in 0..20 {
        assert!(reclaimer.look("n2").unwrap().is_empty());
        clock.pass(LEASE);
    }
}

#[test]
fn a_node_that_is_gone_leaves_its_blocks_once_its_lease_is_over() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = node(dir.path(), &store, &clock, "n1");
    let n2 = node(dir.path(), &store, &clock, "n2");
    let blue = network(&["10.0.0.0/30"]);
    let given = [assign(&n1, &blue, "a").unwrap(), assign(&n1, &blue, "b").unwrap()];
    drop(n1);
    store.set_gone("n1", true);
    let mut reclaimer = Reclaimer::new(Arc::new(store.clone()), Arc::new(clock.clone()));
    assert!(reclaimer.look("n2").unwrap().is_empty());
    clock.pass(LEASE);
    assert!(reclaimer.look("n2").unwrap().is_empty(), "clocks may differ");
    assert_eq!(assign(&n2, &blue, "c").unwrap_err().code, 102);
    clock.pass(LEASE);
    let done = reclaimer.look("n2").unwrap();
    assert_eq!((done.len(), done[0].node.as_str(), done[0].blocks), (1, "n1", 2));
    let again = assign(&n2, &blue, "c").unwrap();
    assert!(given.contains(&again));
    assert!(reclaimer.look("n2").unwrap().is_empty());

    // It comes back with its containers: what is somebody else's now is told of, the rest is its again.
    let n1 = node(dir.path(), &store, &clock, "n1");
    n1.renew().unwrap();
    let lost = n1.lost();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].address, again[0]);
    let notices = n1.take_notices().join("\n");
    let text = format!("the address {} of container", again[0]);
    assert!(notices.contains(&text) && notices.contains("by node n2: start it again"), "{notices}");
    let loser = lost[0].owner.container.clone();
    assert!(held(&n1, &blue, &loser).unwrap_err().msg.contains("may be given to somebody else"));
    // Another ADD gives it another address, where there is one.
    assert_eq!(assign(&n1, &blue, &loser).unwrap_err().code, 102);
    let keeper = if loser == "a" { "b" } else { "a" };
    assert_eq!(held(&n1, &blue, keeper).unwrap().len(), 1);
    n2.release(&owner("c")).unwrap();
    n1.release(&owner(&loser)).unwrap();
    assert!(n1.lost().is_empty());
}

#[test]
fn an_administrator_says_that_a_node_is_gone_and_may_be_wrong() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = node(dir.path(), &store, &clock, "n1");
    let blue = in_blocks(&["10.0.0.0/24"]);
    assign(&n1, &blue, "a").unwrap();
    assert_eq!(reclaim::forget(&store, "n9").unwrap(), None);
    assert!(LEASE < reclaim::forget(&store, "n1").unwrap().unwrap());
    let mut reclaimer = Reclaimer::new(Arc::new(store.clone()), Arc::new(clock.clone()));
    reclaimer.look("n2").unwrap();
    clock.pass(LEASE / 2);
    n1.tend().unwrap();
    assert!(n1.take_notices().join("").contains("said that this node is gone; it is not"));
    for _ in 0..5 {
        clock.pass(LEASE);
        assert!(reclaimer.look("n2").unwrap().is_empty());
    }
    reclaim::forget(&store, "n1").unwrap();
    reclaimer.look("n2").unwrap();
    clock.pass(OVER);
    assert_eq!(reclaimer.look("n2").unwrap().len(), 1);
    assert_eq!(blocks(&store, "n1"), 0);
}

#[test]
fn a_renewal_and_a_fence_at_once_cannot_both_be() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let view = store.view();
    let n1 = node(dir.path(), &view, &clock, "n1");
    let blue = in_blocks(&["10.0.0.0/24"]);
    assign(&n1, &blue, "a").unwrap();
    store.set_gone("n1", true);
    let mut reclaimer = Reclaimer::new(Arc::new(store.clone()), Arc::new(clock.clone()));
    reclaimer.look("n2").unwrap();
    // Its renewal is on its way for longer than the lease.
    view.misbehave(|verb, key| {
        let writes = matches!(verb, "create" | "update") && key.kind == Kind::Node;
        if writes { Fault::Late } else { Fault::None }
    });
    clock.pass(LEASE / 2);
    n1.tend().unwrap_err();
    clock.pass(OVER);
    assert_eq!(reclaimer.look("n2").unwrap().len(), 1);
    store.land();
    assert_eq!(blocks(&store, "n1"), 0);
    assert!(assign(&n1, &blue, "b").is_err());
    view.behave();
    assign(&n1, &blue, "b").unwrap();
    // What it had was nobody's meanwhile, so it is its again.
    assert!(n1.lost().is_empty());
    assert_eq!(held(&n1, &blue, "a").unwrap().len(), 1);
}

#[test]
fn the_fence_comes_late_when_the_node_was_quicker() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = node(dir.path(), &store, &clock, "n1");
    assign(&n1, &in_blocks(&["10.0.0.0/24"]), "a").unwrap();
    store.set_gone("n1", true);
    let view = store.view();
    let mut reclaimer = Reclaimer::new(Arc::new(view.clone()), Arc::new(clock.clone()));
    reclaimer.look("n2").unwrap();
    clock.pass(OVER);
    view.misbehave(|verb, _| if verb == "update" { Fault::Late } else { Fault::None });
    reclaimer.look("n2").unwrap_err();
    n1.renew().unwrap();
    store.land();
    view.behave();
    assert!(reclaimer.look("n2").unwrap().is_empty());
    assert_eq!(blocks(&store, "n1"), 1);
}

#[test]
fn two_machines_of_one_name_do_not_both_give() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = node(&dir.path().join("a"), &store, &clock, "n1");
    let blue = in_blocks(&["10.0.0.0/24"]);
    assign(&n1, &blue, "a").unwrap();
    n1.tend().unwrap();
    let other = Settings::new("n1", "boot-9", "another-machine");
    let twin = node_with(&dir.path().join("b"), &store, &clock, Settings { lease: LEASE, ..other });
    let refusal = assign(&twin, &blue, "x").unwrap_err();
    assert!(refusal.retry && refusal.msg.contains("another machine is node n1 too"), "{refusal}");
    clock.pass(LEASE / 2);
    n1.tend().unwrap();
    assert!(assign(&twin, &blue, "x").is_err());
    // The first one is gone, and what it held is taken over as it was told.
    clock.pass(OVER);
    assign(&twin, &blue, "x").unwrap();
    assert_eq!(held(&twin, &blue, "a").unwrap().len(), 1);
    // And when it comes back nobody has two masters.
    let refusal = assign(&n1, &blue, "b").unwrap_err();
    assert!(refusal.retry, "{refusal}");
}

#[test]
fn a_boot_ends_containers_and_the_lease() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let blue = in_blocks(&["10.0.0.0/24"]);
    let n1 = node(dir.path(), &store, &clock, "n1");
    assign(&n1, &blue, "a").unwrap();
    n1.tend().unwrap();
    drop(n1);
    // The clock of another boot: less than what the disk says of the lease, and nothing to compare.
    let clock = Hands::default();
    let settings = Settings { boot: "boot-2".into(), ..settings("n1") };
    let view = store.view();
    view.misbehave(|_, _| Fault::Lost);
    let n1 = node_with(dir.path(), &view, &clock, settings);
    assert!(n1.take_notices().join("").contains("1 addresses of containers of an earlier boot"));
    assert!(assign(&n1, &blue, "b").unwrap_err().retry);
    view.behave();
    assign(&n1, &blue, "b").unwrap();
    n1.tend().unwrap();
    assert!(held(&n1, &blue, "a").unwrap().is_empty());
    let records = store.records();
    let text = format!("{records:?}");
    assert!(!text.contains("\"a\""), "{text}");
}

#[test]
fn a_clock_that_jumps_ends_the_lease_and_no_more() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let blue = in_blocks(&["10.0.0.0/24"]);
    let n1 = node(dir.path(), &store, &clock, "n1");
    let a = assign(&n1, &blue, "a").unwrap();
    clock.pass(Duration::from_secs(1_000_000_000));
    assert_ne!(assign(&n1, &blue, "b").unwrap(), a);
    assert_eq!(assign(&n1, &blue, "a").unwrap(), a);
}

#[test]
fn blocks_of_nodes_that_never_were_are_found() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let blue = in_blocks(&["10.0.0.0/28"]);
    let late = store.view();
    let n1 = node(dir.path(), &late, &clock, "n1");
    assign(&n1, &blue, "a").unwrap();
    late.misbehave(|verb, key| {
        if verb == "create" && key.kind == Kind::Block { Fault::Late } else { Fault::None }
    });
    while assign(&n1, &blue, &format!("c{}", clock_tick(&clock))).is_ok() {}
    store.set_gone("n1", true);
    let mut reclaimer = Reclaimer::new(Arc::new(store.clone()), Arc::new(clock.clone()));
    reclaimer.look("n2").unwrap();
    clock.pass(OVER);
    assert_eq!(reclaimer.look("n2").unwrap().len(), 1);
    // Its claim comes after it was cleared away.
    store.land();
    assert_eq!(blocks(&store, "n1"), 1);
    assert!(reclaimer.look("n2").unwrap().is_empty());
    reclaimer.look_for_orphans().unwrap();
    assert_eq!(reclaimer.look("n2").unwrap()[0].blocks, 1);
    assert_eq!(blocks(&store, "n1"), 0);
    // The node itself is back, and goes on.
    late.behave();
    assign(&n1, &blue, "b").unwrap();
    // One that lives is no orphan's, whoever says that it is gone.
    reclaimer.look_for_orphans().unwrap();
    assert!(reclaimer.look("n2").unwrap().is_empty());
    assert!(0 < blocks(&store, "n1"));
}

/// Another number each time.
fn clock_tick(clock: &Hands) -> u128 {
    use netwright_cluster::Clock as _;
    clock.pass(Duration::from_millis(1));
    clock.now().as_millis()
}
