//! One holder at a time, an end to waiting, and an error that names the holder.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cni::AttachmentKey;
use state::{Index, Lock, LockError, Record, Roots};

#[test]
fn one_thread_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let (inside, turns) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let lock = Lock::acquire(&path, Duration::from_secs(60)).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two hold it");
                    turns.fetch_add(1, Ordering::SeqCst);
                    inside.store(false, Ordering::SeqCst);
                    drop(lock);
                }
            });
        }
    });
    assert_eq!(turns.into_inner(), 400);
    assert_eq!(std::fs::read(&path).unwrap(), b"", "the reference's lock files stay empty");
}

#[test]
fn waiting_ends_and_names_this_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let held = Lock::acquire(&path, Duration::ZERO).unwrap();
    let begin = Instant::now();
    let error = Lock::acquire(&path, Duration::from_millis(30)).unwrap_err();
    assert!(Duration::from_millis(30) <= begin.elapsed());
    assert!(error.is_busy());
    let LockError::Busy { holder: Some(holder), waited, .. } = error else { panic!("{error:?}") };
    assert_eq!(holder.pid, std::process::id());
    assert!(Duration::from_millis(30) <= waited);
    drop(held);
    Lock::acquire(&path, Duration::ZERO).unwrap();
}

/// Returns how many wait for a lock in the kernel (`man 5 proc_locks`).
fn queued(path: &Path) -> usize {
    let inode = format!(":{} ", std::fs::metadata(path).unwrap().ino());
    let table = std::fs::read_to_string("/proc/locks").unwrap();
    table.lines().filter(|line| line.contains("-> FLOCK") && line.contains(&inode)).count()
}

/// Many waiting callers do not take the processors from the holder: they wait in the kernel, which
/// serves them in their order.
#[test]
fn those_that_wait_are_served_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let held = Lock::acquire(&path, Duration::ZERO).unwrap();
    let order = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for number in 0..20 {
            let (order, path) = (&order, &path);
            scope.spawn(move || {
                let lock = Lock::acquire(path, Duration::from_secs(60)).unwrap();
                order.lock().unwrap().push(number);
                drop(lock);
            });
            while queued(path) <= number {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        drop(held);
    });
    assert_eq!(order.into_inner().unwrap(), (0..20).collect::<Vec<_>>());
}

/// A caller that gave up while it waited in the kernel does not keep the lock when it gets it.
#[test]
fn who_gave_up_holds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let held = Lock::acquire(&path, Duration::ZERO).unwrap();
    // A caller that a busy machine puts aside has no time left to wait in the kernel.
    let mut waits = [150, 600, 2400].into_iter().map(Duration::from_millis);
    let is_queued = waits.any(|wait| {
        let error = Lock::acquire(&path, wait).unwrap_err();
        assert!(error.is_busy(), "{error}");
        0 < queued(&path)
    });
    assert!(is_queued);
    drop(held);
    for _ in 0..100 {
        drop(Lock::acquire(&path, Duration::from_secs(60)).unwrap());
    }
    assert_eq!(queued(&path), 0);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "another process holds the lock")]
fn another_process_is_named_and_its_death_frees_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let mut child = Command::new("flock")
        .arg("--no-fork")
        .arg(&path)
        .args(["sh", "-c", "echo held; read forever"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "held");
    let error = Lock::acquire(&path, Duration::from_millis(5)).unwrap_err();
    let text = error.to_string();
    let holder = format!("held by process {} (sh -c echo held; read forever)", child.id());
    assert!(text.contains(&holder) && text.contains(path.to_str().unwrap()), "{text}");
    child.kill().unwrap();
    child.wait().unwrap();
    Lock::acquire(&path, Duration::ZERO).unwrap();
}

#[test]
fn a_lock_in_a_missing_directory_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let error = Lock::acquire(&dir.path().join("absent/lock"), Duration::ZERO).unwrap_err();
    assert!(error.is_not_found() && !error.is_busy());
    let error = Lock::acquire(dir.path(), Duration::ZERO).unwrap_err();
    assert!(matches!(error, LockError::Open { .. }));
}

#[test]
fn an_attachment_is_locked_by_what_is_recorded_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let index = Index::new(&Roots::new(directory.path().join("run"), directory.path().join("lib")));
    let key = AttachmentKey {
        network: "n".parse().unwrap(),
        container_id: "c1".parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    };
    assert!(index.lock_attachment(&key, Duration::ZERO).unwrap().is_none(), "nothing is recorded");
    index.put(&Record::new(key.clone(), "bridge", "boot", serde_json::Value::Null)).unwrap();
    let lock = index.lock_attachment(&key, Duration::ZERO).unwrap();
    assert!(lock.is_some());
    assert!(index.lock_attachment(&key, Duration::ZERO).unwrap_err().is_busy());
    // A repair that waited for a DEL finds nothing to repair.
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| index.lock_attachment(&key, Duration::from_secs(20)));
        assert!(index.remove(&key, "bridge").unwrap());
        drop(lock);
        waiting.join().unwrap()
    });
    assert!(waiting.unwrap().is_none());
}

/// A call that makes an attachment's folder again takes a separate lock.
#[test]
fn the_folder_of_an_attachment_stays_while_it_is_locked() {
    let directory = tempfile::tempdir().unwrap();
    let index = Index::new(&Roots::new(directory.path().join("run"), directory.path().join("lib")));
    let key = AttachmentKey {
        network: "n".parse().unwrap(),
        container_id: "c1".parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    };
    let lock = index.begin_attachment(&key, Duration::ZERO).unwrap();
    index.put(&Record::new(key.clone(), "bridge", "boot", serde_json::Value::Null)).unwrap();
    assert!(index.remove(&key, "bridge").unwrap());
    assert!(index.begin_attachment(&key, Duration::ZERO).unwrap_err().is_busy());
    drop(lock);
    assert!(!directory.path().join("run").exists(), "nothing came of it");

    index.put(&Record::new(key.clone(), "bridge", "boot", serde_json::Value::Null)).unwrap();
    drop(index.begin_attachment(&key, Duration::ZERO).unwrap());
    assert!(index.get(&key, "bridge").found.is_some());
}

/// A link that another user planted in place of a lock or a record leads nowhere.
#[test]
fn a_planted_link_is_not_followed() {
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().unwrap();
    let elsewhere = directory.path().join("elsewhere");
    symlink(&elsewhere, directory.path().join("lock")).unwrap();
    let error = Lock::acquire(&directory.path().join("lock"), Duration::ZERO).unwrap_err();
    assert!(matches!(error, LockError::Open { .. }), "{error}");
    assert!(!elsewhere.exists(), "a file was made where the link leads");

    let index = Index::new(&Roots::new(directory.path().join("run"), directory.path().join("lib")));
    let key = AttachmentKey {
        network: "n".parse().unwrap(),
        container_id: "c1".parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    };
    let record = Record::new(key.clone(), "bridge", "boot", serde_json::json!({ "bridge": "lo" }));
    index.put(&record).unwrap();
    let folder = directory.path().join("run/owners").join(key.hash());
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    std::fs::rename(&file, &elsewhere).unwrap();
    symlink(&elsewhere, &file).unwrap();
    let read = index.get(&key, "bridge");
    assert!(read.found.is_none() && read.damaged.len() == 1, "{read:?}");
    // The new file takes the link's place, and leaves the link's target alone.
    index.put(&record).unwrap();
    assert!(index.get(&key, "bridge").found.is_some());
    assert!(!file.symlink_metadata().unwrap().is_symlink() && elsewhere.exists());
}
