//! Many at once.

use std::collections::BTreeSet;

use super::*;
use crate::crash::{CHILD, child};

#[test]
fn fifty_threads_get_different_addresses() {
    let (_dir, store) = temporary();
    let sets = sets(&["192.0.2.0/24", "2001:db8::/64"]);
    let got: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..50)
            .map(|thread| {
                let (store, sets) = (&store, &sets);
                scope.spawn(move || {
                    let each =
                        (0..4).map(|turn| allocate(store, sets, &format!("c{thread}-{turn}")));
                    each.flatten().collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let different: BTreeSet<&String> = got.iter().collect();
    assert_eq!((got.len(), different.len()), (400, 400));
    assert_eq!(store.addresses().unwrap().len(), 400);
}

#[test]
fn fifty_processes_get_different_addresses() {
    let (dir, store) = temporary();
    let children: Vec<_> =
        (0..50).map(|index| child(dir.path(), &format!("once {index}")).spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let all = store.reservations().unwrap();
    let holders: BTreeSet<String> = all.iter().map(|one| one.holder.to_string()).collect();
    assert_eq!((all.len(), holders.len()), (100, 50), "two addresses each: {CHILD}");
}
