//! Many processes at once.

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

#[track_caller]
fn release(store: &Store, id: &str, count: usize) {
    let locked = store.lock(TIMEOUT).unwrap().unwrap();
    assert_eq!(locked.release(&owner(id)).unwrap().len(), count, "{id}");
}

#[test]
fn sixty_four_processes_get_different_addresses() {
    let (dir, store) = temporary();
    let children: Vec<_> =
        (0..64).map(|index| child(dir.path(), &format!("once {index}")).spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let all = store.reservations().unwrap();
    let holders: BTreeSet<String> = all.iter().map(|one| one.holder.to_string()).collect();
    assert_eq!((all.len(), holders.len()), (128, 64), "two addresses each: {CHILD}");
    // The index that they left has all of them, also when half are released at once.
    std::thread::scope(|scope| {
        for index in 0..32 {
            let store = &store;
            scope.spawn(move || release(store, &index.to_string(), 2));
        }
    });
    for index in 32..64 {
        release(&store, &index.to_string(), 2);
    }
    assert_eq!(store.addresses().unwrap(), [] as [IpAddr; 0]);
}
