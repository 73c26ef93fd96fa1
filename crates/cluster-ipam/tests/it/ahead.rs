//! A store that was restored from a copy, with a higher revision than it ever had.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use netwright_cluster_ipam::record::{self, BlockId, BlockRecord};
use netwright_cluster_ipam::store::{Fault, Kind, Memory, Store as _};
use netwright_cluster_ipam::{Node, Settings};
use node_api::Refusal;

use crate::support::{Hands, assign, in_blocks, node, node_with, settings};

/// How far the store's position is moved ahead: once so little that the store may have had as many
/// changes, and once as far as people move it.
const FEW: u64 = 1_000_000;
const MANY: u64 = 1_000_000_000;

/// `etcdutl snapshot restore --bump-revision`: the store's position does not go back, but each
/// node's own record does. A node that takes a block asks for that in the same transaction.
#[test]
fn a_store_that_was_put_back_with_a_higher_revision_gives_no_address_twice() {
    put_back_with_a_higher_revision(false);
}

/// The restored record is then that of another process, which has ended.
#[test]
fn a_daemon_that_started_again_since_the_copy_notices_it_too() {
    put_back_with_a_higher_revision(true);
}

fn put_back_with_a_higher_revision(starts_again: bool) {
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
    // The copy does not have what follows: blocks of both, and their next beats.
    for index in 0..8 {
        note(assign(&n1, &blue, &format!("b{index}")).unwrap(), "b");
    }
    note(assign(&n2, &blue, "c").unwrap(), "c");
    let n1 = if starts_again {
        drop(n1);
        let later = Settings { run: "later".to_owned(), ..settings("n1") };
        node_with(dir.path(), &store.view(), &clock, later)
    } else {
        n1
    };
    clock.pass(Duration::from_secs(1));
    for node in [&n1, &n2] {
        node.tend().unwrap();
        node.renew().unwrap();
    }
    store.put_back_ahead(copy, FEW);
    // The second node needs more than it has, and is the first to request.
    let refused = (0..40).find_map(|index| match assign(&n2, &blue, &format!("d{index}")) {
        Ok(addresses) => {
            note(addresses, "d");
            None
        }
        Err(refusal) => Some(refusal),
    });
    the_rest_is_given_once([&n1, &n2], &clock, refused, |node, container| {
        note(assign(node, &blue, container).ok()?, container);
        Some(())
    });
    assert_eq!(given.len(), 30, "and none is lost");
}

/// Neither node has written its own record since the copy, so only the store's position shows that
/// it was restored.
#[test]
fn nodes_that_have_not_renewed_since_the_copy_notice_a_leap() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let [n1, n2] = ["n1", "n2"].map(|name| node(dir.path(), &store.view(), &clock, name));
    let blue = in_blocks(&["10.0.0.0/27"]);
    let mut given = BTreeSet::new();
    given.extend(assign(&n1, &blue, "a").unwrap());
    given.extend(assign(&n2, &blue, "b").unwrap());
    let copy = store.copy();
    // A block that the copy does not have.
    for index in 0..8 {
        given.extend(assign(&n1, &blue, &format!("c{index}")).unwrap());
    }
    assert_eq!(given.len(), 10);
    store.put_back_ahead(copy, MANY);
    let mut refused = None;
    for index in 0..30 {
        match assign(&n2, &blue, &format!("d{index}")) {
            Ok(addresses) => assert!(given.insert(addresses[0]), "{addresses:?} again"),
            Err(refusal) => refused = Some(refusal),
        }
    }
    the_rest_is_given_once([&n1, &n2], &clock, refused, |node, container| {
        let addresses = assign(node, &blue, container).ok()?;
        assert!(given.insert(addresses[0]), "{addresses:?} again");
        Some(())
    });
    assert_eq!(given.len(), 30, "and none is lost");
}

/// Shows that a node was refused, and that both nodes have noticed the copy once they have looked.
/// `give` assigns an address to a container; `None` if there is none left.
fn the_rest_is_given_once(
    [n1, n2]: [&Node; 2],
    clock: &Hands,
    refused: Option<Refusal>,
    mut give: impl FnMut(&Node, &str) -> Option<()>,
) {
    let refused = refused.expect("no block is taken before all have recorded theirs");
    assert!(refused.retry && refused.msg.contains("was put back to an earlier state"), "{refused}");
    // Each looks within ten seconds.
    for _ in 0..4 {
        clock.pass(Duration::from_secs(11));
        for node in [n1, n2] {
            node.tend().unwrap();
        }
    }
    for (node, of) in [(n2, "e"), (n1, "f")] {
        for index in 0..40 {
            if give(node, &format!("{of}{index}")).is_none() {
                break;
            }
        }
    }
    for node in [n1, n2] {
        assert!(node.lost().is_empty());
        let told = node.take_notices().join("");
        assert!(told.contains("the store was put back to an earlier state"), "{told}");
    }
}

/// After a boot the disk no longer says who wrote the record; the process itself has found it.
#[test]
fn a_machine_that_booted_since_the_copy_notices_it_too() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let blue = in_blocks(&["10.0.0.0/27"]);
    let n1 = node(dir.path(), &store.view(), &clock, "n1");
    assign(&n1, &blue, "a").unwrap();
    n1.tend().unwrap();
    let copy = store.copy();
    drop(n1);
    let (boot, run) = ("boot-2".to_owned(), "later".to_owned());
    let later = Settings { boot, run, ..settings("n1") };
    let n1 = node_with(dir.path(), &store.view(), &clock, later);
    assign(&n1, &blue, "b").unwrap();
    store.put_back_ahead(copy, FEW);
    clock.pass(Duration::from_secs(11));
    n1.tend().unwrap();
    let told = n1.take_notices().join("");
    assert!(told.contains("the store was put back to an earlier state"), "{told}");
}

/// A block that belongs to no node may have a record, which is replaced when it is taken. The store
/// is restored after the look at the node's own record, and before that replacement.
#[test]
fn a_free_block_is_not_taken_in_a_store_that_was_put_back_just_before() {
    let (dir, store, clock) = (tempfile::tempdir().unwrap(), Memory::default(), Hands::default());
    let (view, blue) = (store.view(), in_blocks(&["10.0.0.0/28"]));
    let n1 = node(dir.path(), &view, &clock, "n1");
    let first = assign(&n1, &blue, "a").unwrap()[0];
    let halves: [ipnet::IpNet; 2] = ["10.0.0.0/29", "10.0.0.8/29"].map(|net| net.parse().unwrap());
    let block = halves.into_iter().find(|half| !half.contains(&first)).unwrap();
    let free = BlockRecord {
        space: "default".to_owned(),
        block,
        node: String::new(),
        epoch: 0,
        addresses: Vec::new(),
        held: BTreeMap::new(),
        kept: BTreeMap::new(),
    };
    let id = BlockId { space: free.space.clone(), block };
    store.create(&id.key(), &record::write(&free)).unwrap();
    let mut copy = Some(store.copy());
    // The copy does not have its next beat.
    clock.pass(Duration::from_secs(1));
    n1.renew().unwrap();
    let truth = store.clone();
    view.misbehave(move |verb, key| {
        if verb == "update"
            && key.kind == Kind::Block
            && let Some(copy) = copy.take()
        {
            truth.put_back_ahead(copy, FEW);
        }
        Fault::None
    });
    let refused = (0..14).find_map(|index| assign(&n1, &blue, &format!("b{index}")).err());
    let refused = refused.expect("the block is not taken");
    assert!(refused.retry && refused.msg.contains("was put back to an earlier state"), "{refused}");
    for _ in 0..4 {
        clock.pass(Duration::from_secs(11));
        n1.tend().unwrap();
    }
    let address = assign(&n1, &blue, "c").unwrap()[0];
    assert!(block.contains(&address), "it is taken once the node has compared what it has");
}
