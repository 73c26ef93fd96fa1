//! Lost answers, late writes, garbled files.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use netwright_cluster_ipam::store::{Fault, Kind, Memory};

use crate::support::*;

#[test]
fn a_claim_whose_answer_is_lost_is_found_again() {
    for fault in [Fault::Unanswered, Fault::Late] {
        let (dir, store, clock) =
            (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
        let view = store.view();
        let n1 = node(dir.path(), &view, &clock, "n1");
        n1.renew().unwrap();
        let blue = in_blocks(&["10.0.0.0/28"]);
        view.misbehave(move |verb, key| {
            if verb == "create" && key.kind == Kind::Block { fault } else { Fault::None }
        });
        assert!(assign(&n1, &blue, "a").unwrap_err().retry);
        view.behave();
        store.land();
        n1.sweep().unwrap();
        // The whole range belongs to this node: nothing leaked.
        let given: BTreeSet<_> =
            (0..14).map(|index| assign(&n1, &blue, &format!("c{index}")).unwrap()).collect();
        assert_eq!(given.len(), 14);
    }
}

#[test]
fn a_block_that_may_be_given_back_is_not_used_whatever_the_answer() {
    for fault in [Fault::Lost, Fault::Unanswered, Fault::Late] {
        let (dir, store, clock) =
            (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
        let view = store.view();
        let settings = settings("n1");
        let n1 = node_with(dir.path(), &view, &clock, settings.clone());
        let blue = in_blocks(&["10.0.0.0/29"]);
        assign(&n1, &blue, "a").unwrap();
        n1.release(&owner("a")).unwrap();
        clock.pass(Duration::from_secs(11));
        view.misbehave(move |verb, _| if verb == "delete" { fault } else { Fault::None });
        n1.tend().unwrap_err();
        // It is unknown whether the block is ours: neither this daemon nor the next assigns from
        // it.
        view.misbehave(|_, _| Fault::Lost);
        assert!(assign(&n1, &blue, "b").is_err());
        drop(n1);
        let n1 = node_with(dir.path(), &view, &clock, settings);
        assert!(assign(&n1, &blue, "b").is_err());
        store.land();
        view.behave();
        n1.tend().unwrap();
        let n2 = node(dir.path(), &store, &clock, "n2");
        assign(&n2, &blue, "x").unwrap();
        assert!(assign(&n1, &blue, "b").is_err());
    }
}

#[test]
fn files_that_are_garbled_give_no_address_twice() {
    type Harm = fn(&std::path::Path);
    let harms: [(&str, Harm); 4] = [
        ("empty", |path| fs::write(path, "").unwrap()),
        ("truncated", |path| {
            let text = fs::read(path).unwrap();
            fs::write(path, &text[..text.len() / 2]).unwrap();
        }),
        ("overwritten", |path| fs::write(path, [0xff; 100]).unwrap()),
        ("of a later version", |path| fs::write(path, r#"{"version":9}"#).unwrap()),
    ];
    for (what, harm) in harms {
        for folder in ["held", "blocks", "."] {
            let (dir, store, clock) =
                (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
            let blue = in_blocks(&["10.0.0.0/28"]);
            let n1 = node(dir.path(), &store, &clock, "n1");
            let mut given: BTreeSet<_> =
                (0..5).map(|index| assign(&n1, &blue, &format!("c{index}")).unwrap()).collect();
            n1.tend().unwrap();
            drop(n1);
            for entry in fs::read_dir(dir.path().join("n1").join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() && !path.ends_with("lock") {
                    harm(&path);
                }
            }
            let n1 = node(dir.path(), &store, &clock, "n1");
            assert!(!n1.take_notices().is_empty(), "{what} {folder}");
            clock.pass(LEASE);
            for index in 5..14 {
                let address = assign(&n1, &blue, &format!("c{index}")).unwrap();
                assert!(
                    given.insert(address.clone()),
                    "{what} {folder}: {address:?} is assigned twice"
                );
            }
            for index in 0..5 {
                let address = held(&n1, &blue, &format!("c{index}")).unwrap();
                assert!(given.contains(&address), "{what} {folder}");
                n1.release(&owner(&format!("c{index}"))).unwrap();
            }
            assert!(assign(&n1, &blue, "late").is_ok(), "{what} {folder}");
        }
    }
}

/// Each ADD takes a block, and cannot record it.
#[test]
fn a_node_that_cannot_write_keeps_no_blocks_from_the_others() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let blue = in_blocks(&["10.0.0.0/27"]);
    let n1 = node(dir.path(), &store, &clock, "n1");
    fs::remove_dir(dir.path().join("n1/blocks")).unwrap();
    for index in 0..10 {
        assert_eq!(assign(&n1, &blue, &format!("c{index}")).unwrap_err().code, 105);
    }
    let n2 = node(dir.path(), &store, &clock, "n2");
    for index in 0..30 {
        assign(&n2, &blue, &format!("d{index}")).unwrap();
    }
}

#[test]
fn a_disk_that_is_lost_is_learnt_from_the_store() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let blue = in_blocks(&["10.0.0.0/28"]);
    let n1 = node(dir.path(), &store, &clock, "n1");
    let a = assign(&n1, &blue, "a").unwrap();
    n1.tend().unwrap();
    drop(n1);
    fs::remove_dir_all(dir.path().join("n1")).unwrap();
    let n1 = node(dir.path(), &store, &clock, "n1");
    wait_to_be(&n1, &clock);
    assert_eq!(held(&n1, &blue, "a").unwrap(), a);
    assert_ne!(assign(&n1, &blue, "b").unwrap(), a);
    drop(n1);
    // A container that was detached before the store had the request does not come back.
    fs::remove_dir_all(dir.path().join("n1")).unwrap();
    let n1 = node(dir.path(), &store, &clock, "n1");
    n1.release(&owner("a")).unwrap();
    wait_to_be(&n1, &clock);
    assert!(held(&n1, &blue, "a").unwrap().is_empty());
    n1.tend().unwrap();
    assert!(!format!("{:?}", store.records()).contains("\"a\""));
}

#[test]
fn two_daemons_do_not_share_a_disk() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let first = node(dir.path(), &store, &clock, "n1");
    let second = netwright_cluster_ipam::Node::open(
        &dir.path().join("n1"),
        std::sync::Arc::new(store.clone()),
        std::sync::Arc::new(clock.clone()),
        settings("n1"),
    );
    let error = second.unwrap_err();
    let cause = format!("{:?}", error);
    assert!(cause.contains("another netwrightd ipam"), "{cause}");
    drop(first);
}

#[test]
fn records_that_are_none_are_told_of() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    use netwright_cluster_ipam::record::{node_key, space_key};
    use netwright_cluster_ipam::store::Store as _;
    let nonsense = serde_json::json!({"weather": "fine"});
    store.create(&node_key("n1"), &nonsense).unwrap();
    let n1 = node(dir.path(), &store, &clock, "n1");
    let blue = in_blocks(&["10.0.0.0/28"]);
    let refusal = assign(&n1, &blue, "a").unwrap_err();
    assert!(refusal.msg.contains("nodes/n1 is not that of a node"), "{refusal}");
    let n2 = node(dir.path(), &store, &clock, "n2");
    store.create(&space_key("default"), &serde_json::json!(7)).unwrap();
    let refusal = assign(&n2, &blue, "a").unwrap_err();
    assert_eq!(refusal.msg, "the store's record spaces/default is not that of a space");
}

/// Waits until the node knows that no other machine uses its name.
fn wait_to_be(node: &netwright_cluster_ipam::Node, clock: &Hands) {
    for _ in 0..30 {
        if node.renew().is_ok() {
            return;
        }
        clock.pass(Duration::from_secs(1));
    }
    node.renew().unwrap();
}
