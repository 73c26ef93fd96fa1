//! Leases: nodes that are slow, away, gone, and back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use netwright_cluster_ipam::network::{Network, NetworkSpec};
use netwright_cluster_ipam::store::{Fault, Kind, Memory, Store as _};
use netwright_cluster_ipam::{Clock as _, Node, Reclaimer, Settings, reclaim};

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
    // The daemon restarts: it loses nothing, and the lease still holds.
    drop(n1);
    let n1 = node(dir.path(), &view, &clock, "n1");
    assign(&n1, &blue, "d0").unwrap();
    // Until the lease expires.
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
    // The same holds for a silent node that is not known to be gone.
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

    // The node comes back with its containers: it reports what belongs to another now, and keeps
    // the rest.
    let n1 = node(dir.path(), &store, &clock, "n1");
    n1.renew().unwrap();
    let lost = n1.lost();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].address, again[0]);
    let notices = n1.take_notices().join("\n");
    let text = format!("node n2 may give the address {} of container", again[0]);
    assert!(notices.contains(&text) && notices.contains("start it again"), "{notices}");
    let loser = lost[0].owner.container.clone();
    assert!(
        held(&n1, &blue, &loser).unwrap_err().msg.contains("may be given to another container")
    );
    // Another ADD assigns another address, if there is one.
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
    assert!(n1.take_notices().join("").contains("gave this node up, but it is not gone"));
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
    // The node's renewal takes longer than the lease.
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
    // No other node took what it had, so it keeps it.
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
    // The first machine is gone, and the second takes over what it held.
    clock.pass(OVER);
    assign(&twin, &blue, "x").unwrap();
    assert_eq!(held(&twin, &blue, "a").unwrap().len(), 1);
    // And when it comes back, no block has two owners.
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
    // The clock of another boot: it shows less than the lease's time on the disk, and the two
    // cannot be compared.
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
    let (key, value) =
        store.records().into_iter().find(|(key, _)| key.kind == Kind::Block).unwrap();
    store.set_gone("n1", true);
    let mut reclaimer = Reclaimer::new(Arc::new(store.clone()), Arc::new(clock.clone()));
    reclaimer.look("n2").unwrap();
    clock.pass(OVER);
    assert_eq!(reclaimer.look("n2").unwrap().len(), 1);
    // The node's claim arrives after the node was removed, and holds only while its record is there.
    store.land();
    assert_eq!(blocks(&store, "n1"), 0);
    // The claim of an older version holds without a record.
    store.create(&key, &value).unwrap();
    assert_eq!(blocks(&store, "n1"), 1);
    assert!(reclaimer.look("n2").unwrap().is_empty());
    reclaimer.look_for_orphans().unwrap();
    assert_eq!(reclaimer.look("n2").unwrap()[0].blocks, 1);
    assert_eq!(blocks(&store, "n1"), 0);
    // The node itself is back, and continues.
    late.behave();
    assign(&n1, &blue, "b").unwrap();
    // The blocks of a living node are not orphans, whatever node reports it gone.
    reclaimer.look_for_orphans().unwrap();
    assert!(reclaimer.look("n2").unwrap().is_empty());
    assert!(0 < blocks(&store, "n1"));
}

/// Returns another number each time.
fn clock_tick(clock: &Hands) -> u128 {
    clock.pass(Duration::from_millis(1));
    clock.now().as_millis()
}

/// A copy of a machine's disk, booted.
fn cloned(dir: &std::path::Path, store: &Memory, clock: &Hands) -> Node {
    let copy = dir.join("copy");
    for folder in ["", "blocks", "held"] {
        let (from, to) = (dir.join("n1").join(folder), copy.join(folder));
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    }
    let settings = Settings {
        boot: "boot-of-the-copy".to_owned(),
        run: "run-of-the-copy".to_owned(),
        ..settings("n1")
    };
    let store: Arc<dyn netwright_cluster_ipam::store::Store> = Arc::new(store.clone());
    Node::open(&copy, store, Arc::new(clock.clone()), settings).unwrap()
}

#[test]
fn a_copy_of_a_machine_gives_no_address_while_the_machine_lives() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = Arc::new(node(dir.path(), &store, &clock, "n1"));
    let blue = in_blocks(&["10.0.0.0/24"]);
    assign(&n1, &blue, "a").unwrap();
    n1.tend().unwrap();
    let copy = cloned(dir.path(), &store, &clock);
    let living = Arc::clone(&n1);
    clock.meanwhile(move || living.tend().unwrap());
    let refusal = assign(&copy, &blue, "x").unwrap_err();
    assert!(
        refusal.retry && refusal.msg.contains("another machine is node n1 too, with a copy"),
        "{refusal}"
    );
    let refusal = copy.status(&Network::new(blue.clone()).unwrap()).unwrap_err();
    assert!(refusal.msg.contains("another machine is node n1 too"), "{refusal}");
    // The machine itself continues as long as it likes.
    for round in 0..20 {
        assign(&n1, &blue, &format!("b{round}")).unwrap();
        clock.pass(LEASE / 4);
        n1.tend().unwrap();
        assert!(copy.tend().is_err());
    }
}

#[test]
fn a_machine_that_its_copy_overtook_stops_when_it_hears_of_it() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let view = store.view();
    let n1 = node(dir.path(), &view, &clock, "n1");
    let blue = in_blocks(&["10.0.0.0/24"]);
    assign(&n1, &blue, "a").unwrap();
    n1.tend().unwrap();
    let copy = cloned(dir.path(), &store, &clock);
    // The machine does not reach the store while the copy's requests do.
    view.misbehave(|_, _| Fault::Lost);
    assign(&copy, &blue, "x").unwrap();
    assert!(assign(&n1, &blue, "b").is_ok(), "its lease holds: this is the window");
    view.behave();
    clock.pass(Duration::from_secs(11));
    let error = n1.tend().unwrap_err().to_string();
    assert!(error.contains("another machine is node n1 too, with a copy"), "{error}");
    assert!(n1.take_notices().join("").contains("no longer gives addresses"));
    let refusal = assign(&n1, &blue, "c").unwrap_err();
    assert!(refusal.msg.contains("another machine is node n1 too"), "{refusal}");
    assign(&copy, &blue, "y").unwrap();
}

/// The machine's memory was copied too: both continue as the same process.
#[test]
fn a_foreign_beat_on_the_own_record_is_noticed() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = node(dir.path(), &store, &clock, "n1");
    let blue = in_blocks(&["10.0.0.0/24"]);
    assign(&n1, &blue, "a").unwrap();
    n1.tend().unwrap();
    let key = netwright_cluster_ipam::record::node_key("n1");
    let found = store.get(&key).unwrap().unwrap();
    let mut value = found.value;
    value["beat"] = (value["beat"].as_u64().unwrap() + 1).into();
    store.update(&key, &found.revision, &value).unwrap();
    clock.pass(Duration::from_secs(11));
    assert!(n1.tend().unwrap_err().to_string().contains("another machine is node n1 too"));
    assert!(assign(&n1, &blue, "b").unwrap_err().retry);
}

#[test]
fn a_record_whose_numbers_have_no_next_is_refused() {
    for number in ["epoch", "beat"] {
        let (dir, store, clock) =
            (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
        let n1 = node(dir.path(), &store, &clock, "n1");
        let blue = in_blocks(&["10.0.0.0/24"]);
        assign(&n1, &blue, "a").unwrap();
        let key = netwright_cluster_ipam::record::node_key("n1");
        let found = store.get(&key).unwrap().unwrap();
        let mut value = found.value;
        value[number] = u64::MAX.into();
        store.update(&key, &found.revision, &value).unwrap();
        clock.pass(Duration::from_secs(11));
        let error = n1.tend().unwrap_err().to_string();
        assert!(error.contains("remove or correct it"), "{error}");
    }
}

#[test]
fn a_space_whose_record_somebody_removed_is_cut_as_it_was() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let n1 = node(dir.path(), &store, &clock, "n1");
    let n2 = node(dir.path(), &store, &clock, "n2");
    let given = assign(&n1, &in_blocks(&["10.0.0.0/28"]), "a").unwrap()[0];
    let (key, _) =
        store.records().into_iter().find(|(key, _)| key.kind == Kind::Space).expect("a space");
    let found = store.get(&key).unwrap().unwrap();
    store.delete(&key, &found.revision).unwrap();
    // Blocks of sixteen, one of which would overlap the first node's.
    let blue = NetworkSpec { block_v4: Some(28), ..in_blocks(&["10.0.0.0/28"]) };
    let mut others = Vec::new();
    while let Ok(addresses) = assign(&n2, &blue, &format!("b{}", others.len())) {
        others.extend(addresses);
        assert!(!others.contains(&given), "{given} is assigned twice");
    }
    assert!(4 < others.len(), "{others:?}");
}

#[test]
fn a_machine_that_starts_anew_waits_a_little_and_takes_up_what_it_had() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let blue = in_blocks(&["10.0.0.0/24"]);
    let n1 = node(dir.path(), &store, &clock, "n1");
    assign(&n1, &blue, "a").unwrap();
    n1.tend().unwrap();
    drop(n1);
    // Another process of the same boot does not wait.
    let n1 =
        node_with(dir.path(), &store, &clock, Settings { run: "two".into(), ..settings("n1") });
    let began = clock.now();
    n1.renew().unwrap();
    assert_eq!(clock.now(), began);
    drop(n1);
    let (boot, run) = ("boot-2".to_owned(), "three".to_owned());
    let n1 = node_with(dir.path(), &store, &clock, Settings { boot, run, ..settings("n1") });
    assign(&n1, &blue, "b").unwrap();
    let waited = clock.now() - began;
    assert!(waited <= Duration::from_secs(30), "{waited:?}");
    assert_eq!(blocks(&store, "n1"), 1);
}

#[test]
fn a_store_that_was_put_back_gives_no_address_twice() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let [n1, n2] = ["n1", "n2"].map(|name| node(dir.path(), &store.view(), &clock, name));
    let blue = in_blocks(&["10.0.0.0/27"]);
    let mut given = BTreeMap::new();
    let mut note = |address: Vec<std::net::IpAddr>, who: &str| {
        for address in address {
            let before = given.insert(address, who.to_owned());
            assert_eq!(before, None, "{address} is assigned twice");
        }
    };
    note(assign(&n1, &blue, "a").unwrap(), "a");
    n2.tend().unwrap();
    let copy = store.copy();
    // The copy does not have what follows: blocks of both.
    for index in 0..8 {
        note(assign(&n1, &blue, &format!("b{index}")).unwrap(), "b");
    }
    note(assign(&n2, &blue, "c").unwrap(), "c");
    for node in [&n1, &n2] {
        node.tend().unwrap();
    }
    store.put_back(copy);
    // The second node needs more than it has, and is the first to request.
    let mut refused = 0;
    for index in 0..40 {
        match assign(&n2, &blue, &format!("d{index}")) {
            Ok(addresses) => note(addresses, "d"),
            Err(refusal) => {
                assert!(refusal.retry, "{refusal:?}");
                assert!(refusal.msg.contains("was put back to an earlier state"), "{refusal}");
                refused += 1;
                break;
            }
        }
    }
    assert_eq!(refused, 1, "no block is taken before all have recorded theirs");
    // Each looks within ten seconds.
    for _ in 0..4 {
        clock.pass(Duration::from_secs(11));
        for node in [&n1, &n2] {
            node.tend().unwrap();
        }
    }
    for (node, of) in [(&n2, "e"), (&n1, "f")] {
        for index in 0..40 {
            let Ok(addresses) = assign(node, &blue, &format!("{of}{index}")) else { break };
            note(addresses, of);
        }
    }
    assert_eq!(given.len(), 30, "and none is lost");
    assert!(n1.lost().is_empty() && n2.lost().is_empty());
    assert!(n2.take_notices().join("").contains("the store was put back to an earlier state"));
}

/// Blocks that were returned after the copy was made, and now belong to another node.
#[test]
fn blocks_that_a_copy_of_the_store_says_are_ours_again_stay_the_other_nodes() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let [n1, n2] = ["n1", "n2"].map(|name| node(dir.path(), &store.view(), &clock, name));
    let blue = in_blocks(&["10.0.0.0/29"]);
    n2.tend().unwrap();
    assign(&n1, &blue, "a").unwrap();
    n1.tend().unwrap();
    let copy = store.copy();
    n1.release(&owner("a")).unwrap();
    n1.tend().unwrap();
    clock.pass(Duration::from_secs(11));
    n1.tend().unwrap();
    let living = assign(&n2, &blue, "b").unwrap();
    n2.tend().unwrap();
    store.put_back(copy);
    for order in [[&n2, &n1], [&n1, &n2], [&n1, &n2], [&n1, &n2]] {
        clock.pass(Duration::from_secs(11));
        for node in order {
            node.tend().unwrap();
        }
    }
    assert!(n2.lost().is_empty());
    assert_eq!(held(&n2, &blue, "b").unwrap(), living);
    assert_eq!(assign(&n1, &blue, "c").unwrap_err().code, 102);
    assign(&n2, &blue, "c").unwrap();
}
