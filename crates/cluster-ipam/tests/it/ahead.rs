//! A store that was restored from a copy, with a higher revision than it ever had.

use std::collections::BTreeMap;
use std::time::Duration;

use netwright_cluster_ipam::store::Memory;

use crate::support::{Hands, assign, in_blocks, node};

/// `etcdutl snapshot restore --bump-revision`: the store's position does not go back, but each
/// node's own record does. A node that takes a block asks for that in the same transaction.
#[test]
fn a_store_that_was_put_back_with_a_higher_revision_gives_no_address_twice() {
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
    clock.pass(Duration::from_secs(1));
    for node in [&n1, &n2] {
        node.tend().unwrap();
        node.renew().unwrap();
    }
    store.put_back_ahead(copy);
    // The second node needs more than it has, and is the first to request.
    let refused = (0..40).find_map(|index| match assign(&n2, &blue, &format!("d{index}")) {
        Ok(addresses) => {
            note(addresses, "d");
            None
        }
        Err(refusal) => Some(refusal),
    });
    let refused = refused.expect("no block is taken before all have recorded theirs");
    assert!(refused.retry && refused.msg.contains("was put back to an earlier state"), "{refused}");
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
    for node in [&n1, &n2] {
        assert!(node.lost().is_empty());
        let told = node.take_notices().join("");
        assert!(told.contains("the store was put back to an earlier state"), "{told}");
    }
}
