//! The store in real directories, used by many at once, and stopped dead at every step.

#![allow(clippy::unwrap_used, reason = "tests")]

extern crate netwright_ipam as ipam;

mod corrupt;
mod crash;
mod index;
mod many;
mod store;

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use cni::NetworkName;
use ipam::{Assignment, Holder, Owner, RangeSets, RangeSpec, Store};
use tempfile::TempDir;

/// Longer than any test holds a lock, and shorter than a test may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The store of one network, with its index in a directory beside all networks'.
pub(crate) fn store_in(dir: &Path) -> Store {
    without_index(dir).with_index(&dir.join("run/addresses"))
}

pub(crate) fn without_index(dir: &Path) -> Store {
    Store::new(&dir.join("networks"), &NetworkName::new("n").unwrap())
}

pub(crate) fn temporary() -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(dir.path());
    (dir, store)
}

/// One range set for each subnet.
pub(crate) fn sets(subnets: &[&str]) -> RangeSets {
    let spec = |subnet: &&str| RangeSpec { subnet: subnet.parse().ok(), ..RangeSpec::default() };
    RangeSets::new(subnets.iter().map(|subnet| vec![spec(subnet)]).collect()).unwrap()
}

pub(crate) fn owner(id: &str) -> Owner {
    Owner::new(id, "eth0")
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn addresses(assigned: &[Assignment]) -> Vec<String> {
    assigned.iter().map(|one| one.address.addr().to_string()).collect()
}

pub(crate) fn allocate(store: &Store, sets: &RangeSets, id: &str) -> Vec<String> {
    let locked = store.lock_or_create(TIMEOUT).unwrap();
    addresses(&locked.allocate(sets, &[], &owner(id)).unwrap())
}

/// Asserts that the folder holds only complete reservations, and that releasing them makes every
/// address available again.
#[track_caller]
pub(crate) fn assert_recovers(store: &Store, sets: &RangeSets) {
    for reservation in store.reservations().unwrap() {
        assert!(
            matches!(reservation.holder, Holder::Attachment(_)) && reservation.address.is_some(),
            "{reservation:?}"
        );
    }
    // The lock is free by now, so no timeout is needed.
    let locked = store.lock_or_create(Duration::ZERO).unwrap();
    let collected = locked.collect(|_| false).unwrap();
    assert!(collected.failed.is_empty(), "{collected:?}");
    let capacity = sets.sets().iter().map(|set| sets.capacity(set)).min().unwrap();
    for index in 0..capacity {
        locked.allocate(sets, &[], &owner(&format!("again{index}"))).unwrap();
    }
    locked.allocate(sets, &[], &owner("toomuch")).unwrap_err();
    let collected = locked.collect(|_| false).unwrap();
    assert_eq!(store.addresses().unwrap(), [] as [IpAddr; 0]);
    assert!(!collected.removed.is_empty());
}
