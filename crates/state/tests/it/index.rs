//! Records of owners, through crashes and garbage.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use cni::{AttachmentKey, ContainerId, IfName, NetworkName};
use serde_json::{Value, json};
use state::{Index, NetnsIdentity, Record, Release, Roots};
use tempfile::TempDir;

use crate::{mode_of, names_in};

struct Place {
    dir: TempDir,
    index: Index,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::new(&Roots::new(dir.path().join("run"), dir.path().join("lib")));
        Place { dir, index }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join("run").join(below)
    }
}

pub(crate) fn key(network: &str, id: &str) -> AttachmentKey {
    AttachmentKey {
        network: NetworkName::new(network).unwrap(),
        container_id: ContainerId::new(id).unwrap(),
        ifname: IfName::new("eth0").unwrap(),
    }
}

fn record(id: &str, plugin: &str, data: Value) -> Record {
    Record::new(key("blue", id), plugin, "boot", data)
}

#[test]
fn a_record_is_written_read_replaced_and_removed() {
    let place = Place::new();
    let index = &place.index;
    let c1 = key("blue", "c1");
    assert_eq!(index.get(&c1, "bridge").found, None);
    assert!(!index.remove(&c1, "bridge").unwrap());
    let first = record("c1", "bridge", json!({ "veth": "vethA" }))
        .with_netns("/run/netns/c1", Some(NetnsIdentity { dev: 4, ino: 4_026_532_000 }));
    index.put(&first).unwrap();
    assert_eq!(index.get(&c1, "bridge").found.as_ref(), Some(&first));
    let second = record("c1", "bridge", json!(null));
    index.put(&second).unwrap();
    assert_eq!(index.get(&c1, "bridge").found, Some(second));
    index.put(&record("c1", "tuning", json!(1))).unwrap();
    assert_eq!(index.of_attachment(&c1).found.len(), 2);
    assert!(index.remove(&c1, "bridge").unwrap());
    assert_eq!(names_in(&place.path("owners")), [c1.hash()]);
    assert!(index.remove(&c1, "tuning").unwrap());
    assert_eq!(names_in(&place.path("owners")), [""; 0], "the last record takes the folder along");
}

#[test]
fn the_format_on_disk_stays() {
    let place = Place::new();
    let whole = record("c1", "bridge", json!({ "a": 1 }))
        .with_netns("/run/netns/c1", Some(NetnsIdentity { dev: 4, ino: 5 }));
    place.index.put(&whole).unwrap();
    let path = place.path("owners").join(key("blue", "c1").hash()).join("bridge.json");
    let text = r#"{"format":1,"bootId":"boot","attachment":{"network":"blue","containerID":"c1","ifname":"eth0"},"netns":"/run/netns/c1","netnsId":{"dev":4,"ino":5},"plugin":"bridge","data":{"a":1}}"#;
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    assert_eq!(mode_of(&path), 0o600);
    for directory in [path.parent().unwrap(), &place.path("owners"), &place.path("")] {
        assert_eq!(mode_of(directory), 0o700, "{directory:?}");
    }
    // The parser ignores keys that a later version may add.
    fs::write(&path, text.replace("{\"format\"", "{\"later\":true,\"format\"")).unwrap();
    assert_eq!(place.index.get(&key("blue", "c1"), "bridge").found, Some(whole));
}

#[test]
fn lists_are_by_network_and_container() {
    let place = Place::new();
    for (network, id) in [("blue", "c1"), ("blue", "c2"), ("red", "c1")] {
        place.index.put(&Record::new(key(network, id), "bridge", "boot", json!(null))).unwrap();
    }
    assert_eq!(place.index.list().found.len(), 3);
    assert_eq!(place.index.of_network("blue").found.len(), 2);
    assert_eq!(place.index.of_container("c1").found.len(), 2);
    assert!(place.index.of_network("green").found.is_empty());
}

#[test]
fn damaged_records_are_told_and_passed_over() {
    let place = Place::new();
    let c1 = key("blue", "c1");
    place.index.put(&record("c1", "bridge", json!(null))).unwrap();
    place.index.put(&record("c2", "bridge", json!(null))).unwrap();
    let path = place.path("owners").join(c1.hash()).join("bridge.json");
    let good = fs::read(&path).unwrap();
    let other =
        fs::read(path.with_file_name(format!("../{}/bridge.json", key("blue", "c2").hash())));
    let future = String::from_utf8(good.clone()).unwrap().replace("\"format\":1", "\"format\":2");
    let mut cases = vec![
        vec![],
        b"\0\0\0\0".to_vec(),
        b"[]".to_vec(),
        b"null".to_vec(),
        b"{\"format\":1}".to_vec(),
        b"{}".to_vec(),
        b"\xff\xfe".to_vec(),
        future.into_bytes(),
        other.unwrap(),
    ];
    cases.extend((1..good.len()).map(|length| good[..length].to_vec()));
    for bytes in cases {
        fs::write(&path, &bytes).unwrap();
        let read = place.index.get(&c1, "bridge");
        let shown = String::from_utf8_lossy(&bytes);
        assert_eq!((read.found, read.damaged.len()), (None, 1), "{shown}");
        let damaged = &read.damaged[0];
        assert_eq!((&damaged.path, damaged.hash()), (&path, Some(c1.hash().as_str())));
        assert_eq!((damaged.may_be_of("bridge"), damaged.may_be_of("tuning")), (true, false));
        if !shown.contains("c2") {
            let list = place.index.list();
            assert_eq!((list.found.len(), list.damaged.len()), (1, 1), "{shown}");
        }
    }
    // An unreadable file can be removed and replaced.
    assert!(place.index.remove(&c1, "bridge").unwrap());
    place.index.put(&record("c1", "bridge", json!(null))).unwrap();
    assert!(place.index.get(&c1, "bridge").found.is_some());
}

#[test]
fn foreign_files_and_leftovers_hinder_nothing() {
    let place = Place::new();
    place.index.put(&record("c1", "bridge", json!(null))).unwrap();
    let owners = place.path("owners");
    fs::write(owners.join("foreign"), "x").unwrap();
    fs::create_dir(owners.join(key("blue", "c1").hash()).join("folder.json")).unwrap();
    fs::write(owners.join(key("blue", "c1").hash()).join(".bridge.json.1.2.tmp"), "half").unwrap();
    let list = place.index.list();
    assert_eq!((list.found.len(), list.damaged.len()), (1, 2), "{list:?}");
    let may_be_of = |plugin| list.damaged.iter().filter(|one| one.may_be_of(plugin)).count();
    assert_eq!((may_be_of("bridge"), may_be_of("folder")), (0, 1), "{list:?}");
    fs::remove_dir_all(&owners).unwrap();
    fs::write(&owners, "not even a folder").unwrap();
    let damaged = place.index.list().damaged;
    assert_eq!(damaged.len(), 1);
    // Whatever was in it.
    assert_eq!((damaged[0].may_be_of("bridge"), damaged[0].hash()), (true, None));
    assert!(place.index.put(&record("c1", "bridge", json!(null))).is_err());
}

#[test]
fn the_first_holds_and_the_last_releases() {
    let place = Place::new();
    let index = &place.index;
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|id| key("blue", id));
    let bridge = "bridge:br0";
    let lock = index.lock(bridge, Duration::ZERO).unwrap();
    assert!(index.lock(bridge, Duration::ZERO).unwrap_err().is_busy());
    assert!(index.lock("bridge:br1", Duration::ZERO).is_ok());
    assert_eq!(index.release(bridge, &c1).unwrap(), Release::NotHeld);
    assert!(!index.is_held_by_others(bridge, &c1).unwrap());
    assert!(index.hold(bridge, &c1).unwrap());
    index.note(bridge, &json!({ "created": true })).unwrap();
    assert!(!index.hold(bridge, &c1).unwrap(), "it held before");
    assert!(!index.is_held_by_others(bridge, &c1).unwrap());
    assert!(index.is_held_by_others(bridge, &c2).unwrap());
    assert!(index.hold(bridge, &c2).unwrap());
    assert!(index.is_held_by_others(bridge, &c1).unwrap());
    let mut holders = index.holders(bridge).found;
    holders.sort();
    assert_eq!(holders, [c1.clone(), c2.clone()]);
    assert_eq!(index.objects().found, [bridge]);
    assert_eq!(index.release(bridge, &c3).unwrap(), Release::Held);
    assert_eq!(index.release(bridge, &c1).unwrap(), Release::Held);
    assert_eq!(index.release(bridge, &c1).unwrap(), Release::Held);
    assert_eq!(index.release(bridge, &c2).unwrap(), Release::Last);
    assert_eq!(index.release(bridge, &c2).unwrap(), Release::NotHeld);
    assert_eq!(index.read_note(bridge).found, Some(json!({ "created": true })));
    assert_eq!(index.take_note(bridge).unwrap().found, Some(json!({ "created": true })));
    assert_eq!(index.take_note(bridge).unwrap().found, None);
    assert!(index.objects().found.is_empty());
    drop(lock);
}

#[test]
fn an_object_may_have_any_name() {
    let place = Place::new();
    let names =
        ["", "..", "net/ipv4/ip_forward", "br0.10", "br0.10.made", "ü\n\0", &"long".repeat(99)];
    for name in names {
        let _lock = place.index.lock(name, Duration::ZERO).unwrap();
        assert!(place.index.hold(name, &key("blue", "c1")).unwrap(), "{name}");
        place.index.note(name, &json!(name)).unwrap();
    }
    for name in names {
        assert_eq!(place.index.read_note(name).found, Some(json!(name)));
        assert_eq!(place.index.release(name, &key("blue", "c1")).unwrap(), Release::Last, "{name}");
    }
    let objects = place.index.objects();
    assert_eq!(objects.found.len(), names.len() - 1, "all but the one that was cut");
    assert_eq!(names_in(place.dir.path()), ["run"]);
}

#[test]
fn a_crash_between_release_and_undo_leaves_the_note_for_the_next() {
    let place = Place::new();
    let index = &place.index;
    index.hold("sysctl:x", &key("blue", "c1")).unwrap();
    index.note("sysctl:x", &json!("0")).unwrap();
    assert_eq!(index.release("sysctl:x", &key("blue", "c1")).unwrap(), Release::Last);
    // The process is killed here. The next one holds and releases the object.
    assert!(index.hold("sysctl:x", &key("blue", "c2")).unwrap());
    assert!(!index.is_held_by_others("sysctl:x", &key("blue", "c2")).unwrap());
    assert_eq!(index.release("sysctl:x", &key("blue", "c2")).unwrap(), Release::Last);
    assert_eq!(index.take_note("sysctl:x").unwrap().found, Some(json!("0")));
}

#[test]
fn damaged_references_still_count_until_their_owner_goes() {
    let place = Place::new();
    let index = &place.index;
    let (c1, c2) = (key("blue", "c1"), key("blue", "c2"));
    index.hold("o", &c1).unwrap();
    index.hold("o", &c2).unwrap();
    fs::write(place.path("shared/o").join(c1.hash()), "").unwrap();
    fs::write(place.path("shared/o/foreign"), "").unwrap();
    fs::write(place.path("shared/o.made"), "{").unwrap();
    let holders = index.holders("o");
    assert_eq!((holders.found, holders.damaged.len()), (vec![c2.clone()], 1));
    let note = index.read_note("o");
    assert_eq!((note.found, note.damaged.len()), (None, 1));
    assert_eq!(index.release("o", &c2).unwrap(), Release::Held);
    assert_eq!(index.release("o", &c1).unwrap(), Release::Last);
    // The foreign file is not a holder of ours.
    assert!(index.hold("o", &c1).unwrap());
    assert!(!index.is_held_by_others("o", &c1).unwrap());
}

#[test]
fn attachments_come_and_go_at_once() {
    let place = Place::new();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let index = &place.index;
            scope.spawn(move || {
                // All belong to one attachment, so that the threads make and remove the same folder
                // at the same time.
                let plugin = format!("plugin{thread}");
                let mine = record("c1", &plugin, json!(thread));
                for _ in 0..100 {
                    index.put(&mine).unwrap();
                    assert_eq!(index.get(&mine.attachment, &plugin).found.as_ref(), Some(&mine));
                    assert!(index.remove(&mine.attachment, &plugin).unwrap());
                }
            });
        }
    });
    assert!(place.index.list().found.is_empty());
}

#[test]
fn tidy_leaves_nothing_when_nothing_is_written_down() {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::new(dir.path().join("run"), dir.path().join("lib"));
    let index = Index::new(&roots);
    let key = key("blue", "c1");
    drop(index.lock("bridge nw0", Duration::from_secs(5)).unwrap());
    index.hold("bridge nw0", &key).unwrap();
    assert!(!index.tidy(), "an attachment holds something");
    index.release("bridge nw0", &key).unwrap();
    let held = index.lock("bridge nw0", Duration::from_secs(5)).unwrap();
    assert!(!index.tidy(), "a lock is held");
    drop(held);
    assert!(index.tidy());
    assert!(!roots.run.exists());
}

#[test]
fn what_killed_writers_left_keeps_nothing_from_going() {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::new(dir.path().join("run"), dir.path().join("lib"));
    let index = Index::new(&roots);
    let key = key("blue", "c1");
    let owner = roots.run.join("owners").join(key.hash());
    std::fs::create_dir_all(&owner).unwrap();
    std::fs::create_dir_all(roots.run.join("shared")).unwrap();
    std::fs::write(owner.join(".bridge.json.1.0.tmp"), "half").unwrap();
    std::fs::write(roots.run.join("shared/.bridge%20nw0.made.1.0.tmp"), "half").unwrap();
    assert!(!index.remove(&key, "bridge").unwrap());
    assert!(index.tidy());
    assert!(!roots.run.exists());
}

#[test]
fn a_lock_excludes_while_others_tidy_up() {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::new(dir.path().join("run"), dir.path().join("lib"));
    let index = Index::new(&roots);
    let counter = dir.path().join("counter");
    std::fs::write(&counter, "0").unwrap();
    let (threads, rounds) = (4, 200);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let _lock = index.lock("counter", Duration::from_secs(30)).unwrap();
                    let count: u32 = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
                    std::fs::write(&counter, (count + 1).to_string()).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..rounds {
                let _ = index.tidy();
            }
        });
    });
    assert_eq!(std::fs::read_to_string(&counter).unwrap(), (threads * rounds).to_string());
}

/// A note is replaced by a rename; the process may be killed just before it.
#[test]
fn with_a_note_goes_what_a_killed_writer_left_of_it() {
    let place = Place::new();
    place.index.note("bridge br0", &json!({ "made": true })).unwrap();
    place.index.note("bridge br01", &json!({ "made": true })).unwrap();
    for name in [".bridge%20br0.made.1.0.tmp", ".bridge%20br01.made.1.0.tmp"] {
        fs::write(place.path("shared").join(name), "{").unwrap();
    }
    place.index.take_note("bridge br0").unwrap();
    let left = [".bridge%20br01.made.1.0.tmp", "bridge%20br01.made"];
    assert_eq!(names_in(&place.path("shared")), left);
}

/// A process may be killed between making an object's folder and holding the object.
#[test]
fn what_a_killed_holder_left_of_an_object_goes_with_the_next_release() {
    let place = Place::new();
    let (index, c1) = (&place.index, key("blue", "c1"));
    let there = || index.may_exist("bridge br0").unwrap();
    assert!(!there());
    fs::create_dir_all(place.path("shared/bridge%20br0")).unwrap();
    assert!(there());
    assert_eq!(index.release("bridge br0", &c1).unwrap(), Release::NotHeld);
    assert!(!there());
    index.hold("bridge br0", &c1).unwrap();
    assert!(there());
    index.note("bridge br0", &json!({ "made": true })).unwrap();
    assert_eq!(index.release("bridge br0", &c1).unwrap(), Release::Last);
    assert!(there(), "it has a note");
    index.take_note("bridge br0").unwrap();
    assert!(!there());
}

/// A second write would be renamed into place, and leave a file if the process was killed just
/// before.
#[test]
fn holding_again_writes_nothing() {
    let place = Place::new();
    let key = key("blue", "c1");
    place.index.hold("bridge br0", &key).unwrap();
    let held = place.path("shared/bridge%20br0").join(key.hash());
    let written = fs::metadata(&held).unwrap().ino();
    place.index.hold("bridge br0", &key).unwrap();
    assert_eq!(fs::metadata(&held).unwrap().ino(), written, "holding again changes nothing");
    // Invalid content is repaired, and belongs to the same holder.
    fs::write(&held, "{").unwrap();
    assert!(!place.index.hold("bridge br0", &key).unwrap());
    assert_eq!(place.index.holders("bridge br0").found, [key]);
}

#[test]
fn what_a_killed_writer_left_is_removed_and_a_live_ones_is_not() {
    let place = Place::new();
    place.index.put(&record("c1", "bridge", json!({}))).unwrap();
    place.index.hold("bridge br0", &key("blue", "c1")).unwrap();
    // Above the kernel's largest process ID (2^22): no process has it.
    let dead = u32::MAX;
    let owner = format!("owners/{}", key("blue", "c1").hash());
    let mine = format!(".made.{}.0.tmp", std::process::id());
    for folder in ["shared", &owner] {
        fs::write(place.path(folder).join(format!(".bridge.json.{dead}.7.tmp")), "{").unwrap();
        fs::write(place.path(folder).join(&mine), "{").unwrap();
    }
    place.index.remove_abandoned();
    assert_eq!(names_in(&place.path(&owner)), [mine.as_str(), "bridge.json"]);
    assert!(names_in(&place.path("shared")).contains(&mine));
    assert!(!names_in(&place.path("shared")).iter().any(|name| name.contains(&dead.to_string())));
}

/// The note is a hint for one boot. It is written only into an existing folder, and an earlier
/// boot's file does not count.
#[test]
fn what_the_kernel_lacks_is_remembered_for_this_boot() {
    let place = Place::new();
    place.index.note_lacking("nfnetlink_hook");
    assert!(!place.path("").exists(), "a question made a folder of ours");
    fs::create_dir(place.path("")).unwrap();
    place.index.note_lacking("nfnetlink_hook");
    assert!(place.index.is_lacking("nfnetlink_hook"));
    assert!(!place.index.is_lacking("another"));
    let file = fs::read_dir(place.path("lacking")).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("another boot", &file).unwrap();
    assert!(!place.index.is_lacking("nfnetlink_hook"));
    place.index.note_lacking("nfnetlink_hook");
    assert!(place.index.is_lacking("nfnetlink_hook"));
    assert!(place.index.tidy());
    assert!(!place.path("").exists());
}
