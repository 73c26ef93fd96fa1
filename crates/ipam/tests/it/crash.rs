//! A process is stopped dead: by SIGKILL after each step, and at any moment.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// The variable with the child's folder, a newline, and its task.
pub(crate) const CHILD: &str = "NWT_IPAM_CHILD";

/// The child's range sets.
fn child_sets() -> RangeSets {
    sets(&["192.0.2.0/25", "2001:db8::/64"])
}

/// Prepares this very test executable to do a task in a folder; see [`the_child`].
#[expect(clippy::disallowed_methods, reason = "a process of its own is what is to be killed")]
pub(crate) fn child(dir: &Path, task: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "crash::the_child", "--nocapture"])
        .env(CHILD, format!("{}\n{task}", dir.display()))
        .stdout(Stdio::null());
    command
}

fn die() {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
    // Waits for the signal, which has been sent.
    std::thread::sleep(TIMEOUT);
}

/// The child's body. Without its variable, as in an ordinary run, it does nothing.
#[test]
fn the_child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let (dir, task) = told.split_once('\n').unwrap();
    let words: Vec<&str> = task.split(' ').collect();
    let (store, sets) = (store_in(Path::new(dir)), child_sets());
    match words[..] {
        ["once", id] => {
            allocate(&store, &sets, id);
        }
        ["die", verb, after, kind] => {
            let (after, steps) = (after.parse::<usize>().unwrap(), AtomicUsize::new(0));
            let store = if kind == "named" { store.with_named_temporaries() } else { store };
            let store = store.observed(move |_| {
                if steps.fetch_add(1, Ordering::Relaxed) + 1 == after {
                    die();
                }
            });
            if verb == "allocate" {
                allocate(&store, &sets, "c1");
            } else {
                store.lock(TIMEOUT).unwrap().unwrap().release(&owner("c1")).unwrap();
            }
        }
        ["busy"] => {
            println!("busy");
            for turn in 0_u64.. {
                allocate(&store, &sets, "c1");
                allocate(&store, &sets, &format!("x{}", turn % 20));
                let locked = store.lock(TIMEOUT).unwrap().unwrap();
                locked.release(&owner("c1")).unwrap();
                locked.release(&owner(&format!("x{}", turn % 20))).unwrap();
            }
        }
        _ => panic!("no such task: {task}"),
    }
}

/// Runs a child that dies after step `after`; `false` if it ended before.
fn dies(dir: &Path, verb: &str, after: usize, kind: &str) -> bool {
    let status = child(dir, &format!("die {verb} {after} {kind}")).status().unwrap();
    assert!(status.success() || status.signal() == Some(9), "{status}");
    !status.success()
}

#[test]
fn allocating_can_be_stopped_after_every_step() {
    for kind in ["nameless", "named"] {
        let mut after = 1;
        loop {
            let (dir, store) = temporary();
            if !dies(dir.path(), "allocate", after, kind) {
                break;
            }
            // The runtime gives up and cleans up: DEL is enough.
            let locked = store.lock(Duration::ZERO).unwrap().unwrap();
            locked.release(&owner("c1")).unwrap();
            assert_eq!(store.addresses().unwrap(), [] as [IpAddr; 0], "{kind}, step {after}");
            drop(locked);
            // If no DEL comes, the leftover is complete, GC finds it, and no address is lost.
            assert!(dies(dir.path(), "allocate", after, kind));
            assert_recovers(&store, &child_sets());
            after += 1;
        }
        // There are two sets. The address of each is written, linked and noted; then both are
        // indexed, and the index is sealed.
        assert_eq!(after - 1, 8, "{kind}");
    }
}

#[test]
fn releasing_can_be_stopped_after_every_step() {
    let mut after = 1;
    loop {
        let (dir, store) = temporary();
        allocate(&store, &child_sets(), "c1");
        allocate(&store, &child_sets(), "c2");
        if !dies(dir.path(), "release", after, "nameless") {
            break;
        }
        let locked = store.lock(Duration::ZERO).unwrap().unwrap();
        locked.release(&owner("c1")).unwrap();
        assert_eq!(store.addresses().unwrap().len(), 2, "step {after}");
        drop(locked);
        assert_recovers(&store, &child_sets());
        after += 1;
    }
    // Two files are removed, then flushed, indexed and sealed.
    assert_eq!(after - 1, 5);
}

#[test]
fn killed_at_any_moment_everything_is_whole() {
    let (dir, store) = temporary();
    for cycle in 0_u64..25 {
        let mut child = child(dir.path(), "busy").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("busy")));
        // This does not wait for an event: the moment of death differs in each cycle.
        std::thread::sleep(Duration::from_micros(cycle * 613 % 9000));
        child.kill().unwrap();
        child.wait().unwrap();
        for reservation in store.reservations().unwrap() {
            assert_ne!(reservation.holder, Holder::Unknown, "cycle {cycle}: {reservation:?}");
        }
        let Some(locked) = store.lock(Duration::ZERO).unwrap() else { continue };
        if cycle % 2 == 0 {
            locked.collect(|_| false).unwrap();
        } else {
            // Whatever was indexed before the end came, a lookup finds each holder.
            let ids = (0..20).map(|id| format!("x{id}")).chain(["c1".to_owned()]);
            for id in ids {
                locked.release(&owner(&id)).unwrap();
            }
            assert_eq!(store.addresses().unwrap(), [] as [IpAddr; 0], "cycle {cycle}");
        }
    }
    assert_recovers(&store, &child_sets());
}
