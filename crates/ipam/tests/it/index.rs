//! The index beside the folder: it saves reads, and never overrides the folder.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use ipam::{AllocateError, PlanError, SetError};
use tempfile::TempDir;

use super::*;

/// A folder with reservations, and its index.
struct Place {
    dir: TempDir,
    store: Store,
    sets: RangeSets,
}

impl Place {
    /// A folder in which `c1` to `c9` hold an address of each family.
    fn new() -> Self {
        let (dir, store) = temporary();
        let sets = sets(&["192.0.2.0/24", "2001:db8::/64"]);
        for number in 1..10 {
            allocate(&store, &sets, &format!("c{number}"));
        }
        Place { dir, store, sets }
    }

    /// The index's only file.
    fn index(&self) -> PathBuf {
        let files = fs::read_dir(self.dir.path().join("run/addresses")).unwrap();
        let files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }

    fn release(&self, id: &str) -> Vec<IpAddr> {
        let mut released = self.store.lock(TIMEOUT).unwrap().unwrap().release(&owner(id)).unwrap();
        released.sort();
        released
    }

    /// Makes a reservation as the reference does, which does not know the index.
    fn reserve(&self, address: &str, id: &str) {
        fs::write(self.store.directory().join(address), format!("{id}\r\neth0")).unwrap();
    }

    /// Asserts that every reservation can be refused, found and released as if the folder had been
    /// read.
    #[track_caller]
    fn works(&self) {
        let refused = self.duplicate("c3");
        assert_eq!(refused, "192.0.2.4");
        assert!(self.store.holds(&owner("c4"), &[]).unwrap());
        assert!(!self.store.holds(&owner("x"), &[]).unwrap());
        assert_eq!(self.release("c3"), [ip("192.0.2.4"), ip("2001:db8::4")]);
        assert_eq!(self.release("c3"), [] as [IpAddr; 0]);
        assert_eq!(allocate(&self.store, &self.sets, "c10"), ["192.0.2.11", "2001:db8::b"]);
        for number in [1, 2, 4, 5, 6, 7, 8, 9, 10] {
            assert_eq!(self.release(&format!("c{number}")).len(), 2, "c{number}");
        }
        assert_eq!(self.store.addresses().unwrap(), [] as [IpAddr; 0]);
        assert!(!self.dir.path().join("run/addresses").exists(), "nothing held, nothing known");
    }

    /// The address in the error that refuses a second one.
    #[track_caller]
    fn duplicate(&self, id: &str) -> String {
        let locked = self.store.lock_or_create(TIMEOUT).unwrap();
        match locked.allocate(&self.sets, &[], &owner(id)) {
            Err(AllocateError::Plan(PlanError::Set {
                source: SetError::Duplicate { address, .. },
                ..
            })) => address.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn it_comes_with_the_first_address_and_goes_with_the_last() {
    let (dir, store) = temporary();
    let sets = sets(&["192.0.2.0/24"]);
    allocate(&store, &sets, "c1");
    let directory = dir.path().join("run/addresses");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    let index = fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    assert_eq!(mode(&index), 0o600);
    assert!(!index.starts_with(store.directory()), "the reference reads all that is in the folder");
    let locked = store.lock(TIMEOUT).unwrap().unwrap();
    locked.release(&owner("c1")).unwrap();
    assert!(!directory.exists());
    // GC has the same result.
    locked.allocate(&sets, &[], &owner("c1")).unwrap();
    assert!(directory.exists());
    locked.collect(|_| false).unwrap();
    assert!(!directory.exists());
}

#[test]
fn a_missing_one_is_made_again() {
    let place = Place::new();
    fs::remove_file(place.index()).unwrap();
    place.works();
}

#[test]
fn garbage_is_not_believed() {
    for garbage in [&b""[..], b"nwtaddr1", &[0; 5000], &[0xff; 5000]] {
        let place = Place::new();
        fs::write(place.index(), garbage).unwrap();
        place.works();
    }
    let place = Place::new();
    let whole = fs::read(place.index()).unwrap();
    fs::write(place.index(), &whole[..300]).unwrap();
    place.works();
}

#[test]
fn an_older_one_is_not_believed() {
    let place = Place::new();
    let older = fs::read(place.index()).unwrap();
    allocate(&place.store, &place.sets, "c77");
    assert_eq!(place.release("c1").len(), 2);
    fs::write(place.index(), older).unwrap();
    assert_eq!(place.duplicate("c77"), "192.0.2.11");
    assert_eq!(place.release("c77").len(), 2);
    assert_eq!(place.release("c1"), [] as [IpAddr; 0]);
}

/// After a power cut a folder may have its old times and fewer files.
#[test]
fn one_of_another_boot_is_not_believed() {
    let place = Place::new();
    let boot = state::boot_id().unwrap();
    let mut bytes = fs::read(place.index()).unwrap();
    let at = bytes.windows(boot.len()).position(|part| part == boot.as_bytes()).unwrap();
    bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
    // Files are truncated: names stay, and so do the folder's times.
    for file in ["192.0.2.4", "192.0.2.11"] {
        let path = place.store.directory().join(file);
        if path.exists() {
            let _ = rustix::fs::removexattr(&path, "user.netwright.reserved");
            let _ = rustix::fs::removexattr(&path, "trusted.netwright.reserved");
            fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap();
        }
    }
    fs::write(place.index(), bytes).unwrap();
    let last = place.store.directory().join("last_reserved_ip.0");
    fs::write(last, "192.0.2.3").unwrap();
    assert_eq!(allocate(&place.store, &place.sets, "c11")[0], "192.0.2.4", "no attachment had it");
}

#[test]
fn a_folder_that_only_looks_the_same_is_read() {
    let place = Place::new();
    let folder = fs::File::open(place.store.directory()).unwrap();
    let before = folder.metadata().unwrap().modified().unwrap();
    place.reserve("192.0.2.77", "foreign");
    folder.set_times(fs::FileTimes::new().set_modified(before)).unwrap();
    assert_eq!(place.duplicate("foreign"), "192.0.2.77");
    // Another folder under the name, with every time that a program can set.
    let (name, aside) = (place.store.directory(), place.dir.path().join("aside"));
    fs::rename(name, &aside).unwrap();
    fs::create_dir(name).unwrap();
    place.reserve("192.0.2.200", "c1");
    let modified = fs::metadata(&aside).unwrap().modified().unwrap();
    let folder = fs::File::open(name).unwrap();
    folder.set_times(fs::FileTimes::new().set_modified(modified)).unwrap();
    assert_eq!(place.release("c1"), [ip("192.0.2.200")]);
}

/// The reference writes between two calls of ours, and within the same tick of the kernel's clock:
/// each of its writes is noticed.
#[test]
fn what_others_write_at_once_is_noticed_every_time() {
    let place = Place::new();
    for turn in 0..150 {
        let (ours, theirs) = (format!("x{turn}"), format!("y{turn}"));
        let got = allocate(&place.store, &place.sets, &ours);
        place.reserve("192.0.2.201", &theirs);
        place.reserve("2001:db8::201", &theirs);
        assert_eq!(place.duplicate(&theirs), "192.0.2.201", "turn {turn}");
        assert_eq!(place.release(&theirs).len(), 2, "turn {turn}");
        // Addresses that other programs release are free again, and the index knows nothing of
        // them.
        for address in &got {
            fs::remove_file(place.store.directory().join(address)).unwrap();
        }
        assert_eq!(place.release(&ours), [] as [IpAddr; 0], "turn {turn}");
    }
    place.works_after_many();
}

impl Place {
    /// Asserts that everything that `new` reserved is still found, whatever else happened.
    #[track_caller]
    fn works_after_many(&self) {
        for number in 1..10 {
            assert_eq!(self.release(&format!("c{number}")).len(), 2, "c{number}");
        }
        assert_eq!(self.store.addresses().unwrap(), [] as [IpAddr; 0]);
    }
}

/// Only a person edits files like this. The folder's times do not show it, and the file's mark
/// names the owner.
#[test]
fn a_file_that_was_written_over_stays_its_owners() {
    let place = Place::new();
    place.reserve("192.0.2.4", "thief");
    assert_eq!(place.release("thief"), [] as [IpAddr; 0]);
    let mut released = place.release("c3");
    released.sort();
    assert_eq!(released, [ip("192.0.2.4"), ip("2001:db8::4")]);
}

#[test]
fn what_it_cannot_tell_of_is_found_by_reading() {
    let place = Place::new();
    fs::create_dir(place.store.directory().join("below")).unwrap();
    allocate(&place.store, &place.sets, "c10");
    // This does not change the folder's own times.
    fs::write(place.store.directory().join("below/192.0.2.9"), "c1\r\neth0").unwrap();
    fs::write(place.store.directory().join("below/192.0.2.10"), "c12\r\neth0").unwrap();
    assert_eq!(place.release("c12"), [] as [IpAddr; 0]);
    assert_eq!(place.release("c1"), [ip("192.0.2.2"), ip("2001:db8::2")]);
    assert_eq!(fs::read_dir(place.store.directory().join("below")).unwrap().count(), 0);
    fs::remove_dir(place.store.directory().join("below")).unwrap();
    assert_eq!(place.release("c10").len(), 2);
}

#[test]
fn interfaces_and_old_files_of_a_container_are_told_apart() {
    let place = Place::new();
    let locked = place.store.lock_or_create(TIMEOUT).unwrap();
    let second = Owner::new("c1", "eth1");
    let got = locked.allocate(&place.sets, &[], &second).unwrap();
    assert_eq!(addresses(&got), ["192.0.2.11", "2001:db8::b"]);
    assert_eq!(locked.release(&second).unwrap().len(), 2);
    drop(locked);
    fs::write(place.store.directory().join("192.0.2.50"), "old\n").unwrap();
    allocate(&place.store, &place.sets, "c10");
    assert_eq!(place.duplicate("old"), "192.0.2.50");
    assert!(place.store.holds(&owner("old"), &[]).unwrap());
    assert_eq!(place.release("old"), [ip("192.0.2.50")]);
}

#[test]
fn a_range_that_is_full_or_nearly_is_told_at_once() {
    let (_dir, store) = temporary();
    let sets = sets(&["192.0.2.0/26", "2001:db8::/121"]);
    for number in 0..61 {
        allocate(&store, &sets, &format!("c{number}"));
    }
    let locked = store.lock_or_create(TIMEOUT).unwrap();
    let error = locked.allocate(&sets, &[], &owner("x")).unwrap_err();
    let AllocateError::Plan(PlanError::Set {
        source: SetError::Exhausted { used, capacity, .. },
        ..
    }) = error
    else {
        panic!("{error:?}");
    };
    assert_eq!((used, capacity), (61, 61));
    // The only free address is assigned, wherever it lies and wherever the ring is.
    locked.release(&owner("c30")).unwrap();
    let got = locked.allocate(&sets, &[], &owner("x")).unwrap();
    assert_eq!(addresses(&got), ["192.0.2.32", "2001:db8::3f"]);
}

#[test]
fn it_grows_and_forgets_nothing() {
    let (_dir, store) = temporary();
    let sets = sets(&["10.0.0.0/16", "2001:db8::/64"]);
    let locked = store.lock_or_create(TIMEOUT).unwrap();
    for number in 0..600 {
        locked.allocate(&sets, &[], &owner(&format!("c{number}"))).unwrap();
        if number % 3 == 0 {
            assert_eq!(locked.release(&owner(&format!("c{}", number / 2))).unwrap().len(), 2);
        }
    }
    let held = store.addresses().unwrap().len();
    let mut released = 0;
    for number in 0..600 {
        released += locked.release(&owner(&format!("c{number}"))).unwrap().len();
    }
    assert_eq!((held, released), (800, 800));
    assert_eq!(store.addresses().unwrap(), [] as [IpAddr; 0]);
}

/// Without a directory for the index, or without write access to it, every call reads the folder.
#[test]
fn it_is_not_needed() {
    let (dir, _) = temporary();
    fs::write(dir.path().join("run"), "not a directory").unwrap();
    let store = store_in(dir.path());
    let place = Place { store, sets: sets(&["192.0.2.0/24", "2001:db8::/64"]), dir };
    for number in 1..10 {
        allocate(&place.store, &place.sets, &format!("c{number}"));
    }
    place.works();

    let (dir, store) = temporary();
    let plain = without_index(dir.path());
    let place = Place { store: plain, sets: sets(&["192.0.2.0/24", "2001:db8::/64"]), dir };
    for number in 1..10 {
        allocate(&place.store, &place.sets, &format!("c{number}"));
    }
    // One store with the index and one without it, alternating.
    let with = Place { store, sets: place.sets.clone(), dir: place.dir };
    allocate(&with.store, &with.sets, "c20");
    allocate(&place.store, &place.sets, "c21");
    assert_eq!(with.duplicate("c21"), "192.0.2.12");
    assert_eq!(with.release("c21").len() + with.release("c20").len(), 4);
    with.works_after_many();
}

/// The reference's own program changes the folder alternately with us: `flock` and a shell stand in
/// for it if it is not installed.
#[test]
#[expect(clippy::disallowed_methods, reason = "another program holds the lock")]
fn one_who_waited_for_our_lock_writes_within_the_same_tick() {
    let place = Place::new();
    let folder = place.store.directory().to_owned();
    for turn in 0..40 {
        let locked = place.store.lock_or_create(TIMEOUT).unwrap();
        let script = format!("printf 'go{turn}\\r\\neth0' >192.0.2.{}", 150 + turn);
        let mut other = Command::new("flock")
            .args(["lock", "sh", "-c", &script])
            .current_dir(&folder)
            .spawn()
            .unwrap();
        locked.allocate(&place.sets, &[], &owner(&format!("x{turn}"))).unwrap();
        drop(locked);
        assert!(other.wait().unwrap().success());
        assert_eq!(place.release(&format!("go{turn}")), [ip(&format!("192.0.2.{}", 150 + turn))]);
        assert_eq!(place.release(&format!("x{turn}")).len(), 2);
    }
    place.works_after_many();
}

/// The seal is a time in the past, never in the future, and close to the change.
#[test]
fn the_folders_time_stays_plausible() {
    let place = Place::new();
    let modified = fs::metadata(place.store.directory()).unwrap().modified().unwrap();
    #[expect(clippy::disallowed_methods, reason = "the file system's clock is the system's")]
    let age = SystemTime::now().duration_since(modified).unwrap();
    assert!(Duration::from_millis(900) < age, "{age:?}");
}
