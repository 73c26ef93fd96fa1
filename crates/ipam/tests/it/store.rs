//! The folder: what is written, what is read, and what other programs may do to it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use ipam::store::Step;
use ipam::{AllocateError, PlanError, SetError};

use super::*;

#[test]
fn the_bytes_are_the_references() {
    let (_dir, store) = temporary();
    let got = allocate(&store, &sets(&["192.0.2.0/29", "2001:db8::/64"]), "c1");
    assert_eq!(got, ["192.0.2.2", "2001:db8::2"]);
    let read = |file: &str| fs::read(store.directory().join(file)).unwrap();
    assert_eq!(read("192.0.2.2"), b"c1\r\neth0");
    assert_eq!(read("2001:db8::2"), b"c1\r\neth0");
    assert_eq!(read("last_reserved_ip.0"), b"192.0.2.2");
    assert_eq!(read("last_reserved_ip.1"), b"2001:db8::2");
    assert_eq!(read("lock"), b"");
    let mode = |file: &str| {
        fs::metadata(store.directory().join(file)).unwrap().permissions().mode() & 0o7777
    };
    assert_eq!((mode("192.0.2.2"), mode("."), mode("last_reserved_ip.1")), (0o600, 0o755, 0o600));
}

#[test]
fn a_file_system_without_nameless_files_will_do() {
    let (dir, store) = temporary();
    let store = store.with_named_temporaries();
    assert_eq!(allocate(&store, &sets(&["192.0.2.0/29"]), "c1"), ["192.0.2.2"]);
    let locked = store.lock_or_create(TIMEOUT).unwrap();
    let taken = locked.allocate(&sets(&["192.0.2.0/29"]), &[ip("192.0.2.2")], &owner("c2"));
    assert!(matches!(
        taken,
        Err(AllocateError::Plan(PlanError::Set { source: SetError::Taken { .. }, .. }))
    ));
    let names: Vec<_> = fs::read_dir(dir.path().join("networks"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["n"], "nothing stays beside the folder");
}

#[test]
fn an_address_taken_meanwhile_is_passed_over() {
    let (dir, store) = temporary();
    let folder = store.directory().to_owned();
    // A program that does not know the lock takes the very addresses that were chosen.
    let times = std::sync::atomic::AtomicU8::new(2);
    let store = store.observed(move |step| {
        if step == Step::Written {
            let address = times.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if address < 4 {
                fs::write(folder.join(format!("192.0.2.{address}")), "foreign\r\neth0").unwrap();
            }
        }
    });
    assert_eq!(allocate(&store, &sets(&["192.0.2.0/29"]), "c1"), ["192.0.2.4"]);
    assert_eq!(fs::read(store.directory().join("192.0.2.3")).unwrap(), b"foreign\r\neth0");
    assert_eq!(store_in(dir.path()).addresses().unwrap().len(), 3);
}

#[test]
fn a_failure_in_the_middle_releases_this_calls_addresses_and_no_other() {
    let (_dir, store) = temporary();
    allocate(&store, &sets(&["203.0.113.0/24"]), "c1");
    // The second set's note cannot be written.
    fs::create_dir_all(store.directory().join("last_reserved_ip.1/in-use")).unwrap();
    let locked = store.lock_or_create(TIMEOUT).unwrap();
    let two = sets(&["192.0.2.0/24", "198.51.100.0/24"]);
    let error = locked.allocate(&two, &[], &owner("c1")).unwrap_err();
    assert!(matches!(error, AllocateError::Store(_)), "{error:?}");
    assert!(cni::Error::from_chain(105, &error).msg.contains("last_reserved_ip.1"), "{error:?}");
    assert_eq!(store.addresses().unwrap(), [ip("203.0.113.2")]);
}

#[test]
fn a_request_that_cannot_be_met_writes_nothing() {
    let (_dir, store) = temporary();
    let locked = store.lock_or_create(TIMEOUT).unwrap();
    let asked = [ip("192.0.2.9"), ip("10.0.0.1")];
    locked.allocate(&sets(&["192.0.2.0/24", "198.51.100.0/24"]), &asked, &owner("c1")).unwrap_err();
    let names: Vec<_> =
        fs::read_dir(store.directory()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["lock"]);
}

#[test]
fn reading_makes_no_folder() {
    let (_dir, store) = temporary();
    assert!(store.lock(TIMEOUT).unwrap().is_none());
    assert_eq!(store.addresses().unwrap(), [] as [IpAddr; 0]);
    assert!(store.reservations().unwrap().is_empty());
    assert!(!store.directory().exists());
    fs::create_dir(store.directory().parent().unwrap()).unwrap();
    fs::write(store.directory(), "a file").unwrap();
    assert!(store.addresses().is_err() && store.lock(TIMEOUT).is_err());
}

#[test]
fn release_finds_every_file_of_the_owner() {
    let (_dir, store) = temporary();
    let locked = store.lock_or_create(TIMEOUT).unwrap();
    let write = |file: &str, content: &str| {
        let path = store.directory().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    write("192.0.2.2", "c1\r\neth0");
    write("203.0.113.9", " c1\r\neth0\n");
    write("2001:db8::9", "c1\r\neth0");
    write("named otherwise", "c1\r\neth0");
    write("below/192.0.2.3", "c1\r\neth0");
    write("192.0.2.4", "c1\r\neth1");
    write("192.0.2.5", "c1");
    write("192.0.2.6", "c10\r\neth0");
    let mut released = locked.release(&owner("c1")).unwrap();
    released.sort();
    assert_eq!(released, [ip("192.0.2.2"), ip("203.0.113.9"), ip("2001:db8::9")]);
    let mut left: Vec<_> =
        store.reservations().unwrap().into_iter().map(|r| r.file.display().to_string()).collect();
    left.sort();
    assert_eq!(left, ["192.0.2.4", "192.0.2.5", "192.0.2.6"]);
    // The container's old file is released only if there is no other.
    assert_eq!(locked.release(&owner("c1")).unwrap(), [ip("192.0.2.5")]);
    assert_eq!(locked.release(&owner("c1")).unwrap(), [] as [IpAddr; 0]);
}

#[test]
fn an_id_that_looks_like_an_address_releases_no_note() {
    let (_dir, store) = temporary();
    assert_eq!(allocate(&store, &sets(&["192.0.2.0/24"]), "c1"), ["192.0.2.2"]);
    let locked = store.lock_or_create(TIMEOUT).unwrap();
    // The content of last_reserved_ip.0 is the ID of this container, as an old-format file's would
    // be.
    locked.release(&owner("192.0.2.2")).unwrap();
    assert!(store.directory().join("last_reserved_ip.0").exists());
}

#[test]
fn what_is_garbled_under_an_address_keeps_it_from_being_given() {
    let (dir, store) = temporary();
    drop(store.lock_or_create(TIMEOUT).unwrap());
    let path = |file: &str| store.directory().join(file);
    fs::write(path("192.0.2.2"), "c1\r\n\0").unwrap();
    fs::write(path("192.0.2.3"), b"c1\0\0").unwrap();
    fs::write(path("192.0.2.4"), vec![b'x'; 1 << 20]).unwrap();
    fs::create_dir_all(path("192.0.2.5/in-use")).unwrap();
    symlink(dir.path().join("absent"), path("192.0.2.6")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, path("192.0.2.7"), rustix::fs::Mode::RUSR).unwrap();
    assert_eq!(allocate(&store, &sets(&["192.0.2.0/28"]), "c1"), ["192.0.2.8"]);
    let locked = store.lock_or_create(TIMEOUT).unwrap();
    assert_eq!(locked.release(&owner("c9")).unwrap(), [] as [IpAddr; 0]);
    let collected = locked.collect(|holder| *holder != ipam::Holder::Unknown).unwrap();
    assert_eq!(collected.removed.len(), 5);
    assert_eq!(collected.failed.len(), 1, "a folder that is not empty is reported, not removed");
    let mut left = store.addresses().unwrap();
    left.sort();
    assert_eq!(left, [ip("192.0.2.5"), ip("192.0.2.8")]);
}

/// A power cut, or the reference's death in the middle, leaves a name with an empty file.
#[test]
fn an_empty_file_under_an_address_does_not_keep_it_from_being_given() {
    let (_dir, store) = temporary();
    drop(store.lock_or_create(TIMEOUT).unwrap());
    fs::write(store.directory().join("192.0.2.2"), "").unwrap();
    fs::write(store.directory().join("192.0.2.3"), b"\0\0\0\0\0\0\0\0").unwrap();
    assert_eq!(allocate(&store, &sets(&["192.0.2.0/28"]), "c1"), ["192.0.2.2"]);
    assert_eq!(store.addresses().unwrap(), [ip("192.0.2.2")]);
}

#[test]
fn no_reservation_is_written_that_could_not_be_read_again() {
    let (_dir, store) = temporary();
    let locked = store.lock_or_create(TIMEOUT).unwrap();
    let long = owner(&"x".repeat(4000));
    locked.allocate(&sets(&["192.0.2.0/29"]), &[], &long).unwrap();
    assert_eq!(locked.release(&long).unwrap(), [ip("192.0.2.2")]);
    let longer = owner(&"x".repeat(4100));
    assert!(locked.allocate(&sets(&["192.0.2.0/29"]), &[], &longer).is_err());
    assert_eq!(store.addresses().unwrap(), [] as [IpAddr; 0]);
}
