//! Files that are read back from disk, after a power cut or after any program has changed them.
//!
//! Some of these need a folder. It is in memory if the machine has such a file system, and is made
//! once in a process.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netwright_cni::{AttachmentKey, Version, json};
use netwright_cni_runtime::Cache;
use netwright_dhcp::{v4, v6};
use netwright_ipam::{Holder, Owner, RangeSets, RangeSpec, Store};
use netwright_state::{Index, Record, Roots};

thread_local! {
    static FOLDER: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

/// Runs `work` with an empty folder.
fn in_a_folder(work: impl FnOnce(&Path)) {
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| {
            let made = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
            made.expect("a folder can be made")
        });
        for entry in std::fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
        work(folder.path());
    });
}

fn key() -> AttachmentKey {
    AttachmentKey {
        network: "net".parse().expect("a name"),
        container_id: "c1".parse().expect("an ID"),
        ifname: "eth0".parse().expect("a name"),
    }
}

/// A file of host-local's store.
pub fn reservation(data: &[u8]) {
    let holder = Holder::parse(data);
    let _ = holder.to_string();
    if let Holder::Attachment(owner) = &holder {
        assert_eq!(Holder::parse(owner.to_content().as_bytes()), holder);
        assert!(holder.is(owner));
        assert!(!owner.container_id.contains(char::is_whitespace));
    }
}

/// The folder of host-local's store and the index beside it, after a program changed both: an
/// address that a file reserves is never assigned again, and an attachment's addresses are found
/// and released.
pub fn address_store(data: &[u8]) {
    in_a_folder(|dir| {
        let network = "net".parse().expect("a name");
        let (data_dir, index_dir) = (dir.join("networks"), dir.join("addresses"));
        let store = Store::new(&data_dir, &network).with_index(&index_dir);
        let spec = RangeSpec { subnet: "192.0.2.0/27".parse().ok(), ..RangeSpec::default() };
        let sets = RangeSets::new(vec![vec![spec]]).expect("a range");
        let owner = |number: u8| Owner::new(format!("c{number}"), "eth0");
        for number in 0..3 {
            let locked =
                store.lock_or_create(Duration::ZERO).expect("no other process uses the folder");
            locked.allocate(&sets, &[], &owner(number)).expect("there is room");
        }
        let index = files(&index_dir).into_iter().next();
        for edit in data.chunks_exact(4) {
            let at = usize::from(u16::from_le_bytes([edit[1], edit[2]]));
            match edit[0] % 4 {
                0 => change(index.as_deref(), |bytes| set(bytes, at, edit[3])),
                1 => change(index.as_deref(), |bytes| bytes.truncate(at)),
                2 => {
                    let name = format!("192.0.2.{}", at % 40);
                    let content =
                        ["c9\r\neth0", "c9", "", "\0\0", "\u{fffd} x y"][usize::from(edit[3]) % 5];
                    let _ = std::fs::write(data_dir.join("net").join(name), content);
                }
                _ => {
                    let names = files(&data_dir.join("net"));
                    if let Some(path) = names.get(at % names.len().max(1)) {
                        change(Some(path), |bytes| set(bytes, usize::from(edit[3] % 9), edit[3]));
                    }
                }
            }
        }
        let reserved = reserved_in(&store);
        let Ok(locked) = store.lock_or_create(Duration::ZERO) else { return };
        let newcomer = Owner::new("newcomer", "eth0");
        if let Ok(given) = locked.allocate(&sets, &[], &newcomer) {
            let found = locked.reservations().expect("the folder can be read");
            for one in given {
                let address = one.address.addr();
                assert!(!reserved.contains(&address), "{address} was reserved");
                let holds = |r: &&netwright_ipam::Reservation| r.address == Some(address);
                assert!(found.iter().find(holds).is_some_and(|r| r.holder.is(&newcomer)));
            }
            locked.release(&newcomer).expect("it can be released");
        }
        assert_eq!(reserved_in(&store), reserved, "every owner keeps its addresses");
    });
}

/// The reserved addresses. An empty file reserves nothing: a power cut left it.
fn reserved_in(store: &Store) -> BTreeSet<IpAddr> {
    let all = store.reservations().unwrap_or_default().into_iter();
    all.filter(|one| one.holder != Holder::Unwritten).filter_map(|one| one.address).collect()
}

fn set(bytes: &mut [u8], at: usize, value: u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = value;
    }
}

fn change(path: Option<&Path>, work: impl FnOnce(&mut Vec<u8>)) {
    let Some(path) = path else { return };
    if let Ok(mut bytes) = std::fs::read(path) {
        work(&mut bytes);
        let _ = std::fs::write(path, bytes);
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// An entry of the runtime's cache, libcni's format.
pub fn cache_entry(data: &[u8]) {
    in_a_folder(|dir| {
        let cache = Cache::new(dir).volatile();
        std::fs::create_dir_all(cache.results_dir()).expect("a folder can be made");
        std::fs::write(cache.results_dir().join("net-c1-eth0"), data).expect("it can be written");
        let listing = cache.list(None).expect("the folder can be read");
        assert_eq!(listing.attachments.len() + listing.passed_over.len(), 1);
        for known in &listing.attachments {
            assert_eq!(known.key(), key(), "its file is named after it");
            let _ = known.list().map_err(|error| error.to_json());
            if let Ok(Some(result)) = known.result() {
                let _ = result.write(Version::CURRENT);
            }
        }
        let _ = cache.attachment(&key()).map_err(|error| error.to_cni());
        // An entry that names another attachment belongs to that one, whatever its file's name is.
        let is_anothers = |reason: &str| reason.starts_with("its name does not match");
        let anothers = listing.passed_over.iter().any(|one| is_anothers(&one.reason));
        assert_eq!(cache.forget(&key()).expect("it can be removed"), !anothers);
    });
}

/// A record of an owner.
pub fn owner_record(data: &[u8]) {
    in_a_folder(|dir| {
        let index = Index::new(&Roots::new(dir, dir.join("lib")));
        index
            .put(&Record::new(key(), "bridge", "boot", serde_json::json!({ "kept": 1 })))
            .expect("it can be written");
        let path = dir.join("owners").join(key().hash()).join("bridge.json");
        assert!(path.exists());
        std::fs::write(path, data).expect("it can be written");
        let read = index.get(&key(), "bridge");
        assert_eq!(usize::from(read.found.is_some()) + read.damaged.len(), 1);
        if let Some(record) = read.found {
            assert_eq!(record.attachment, key());
            index.put(&record).expect("what was read can be written");
            assert_eq!(index.get(&key(), "bridge").found, Some(record));
        }
        let _ = index.list();
        assert!(index.remove(&key(), "bridge").expect("it can be removed"));
    });
}

/// tuning's backup of a link, the reference's format.
pub fn tuning_backup(data: &[u8]) {
    netwright_plugins::chained::tuning::reads_a_backup_as_it_writes_it(data);
}

/// Leases of DHCP, and the plugin's requests to the daemon.
pub fn dhcp_lease(data: &[u8]) {
    if let Ok(saved) = json::from_slice::<v4::SavedLease>(data) {
        let written = serde_json::to_vec(&saved).expect("it can be written");
        assert_eq!(serde_json::from_slice::<v4::SavedLease>(&written).ok().as_ref(), Some(&saved));
    }
    if let Ok(saved) = json::from_slice::<v6::SavedLease>(data) {
        let written = serde_json::to_vec(&saved).expect("it can be written");
        assert_eq!(serde_json::from_slice::<v6::SavedLease>(&written).ok().as_ref(), Some(&saved));
    }
    let _ = netwright_node_api::dhcp::read_question(data);
}
