//! Control groups. No namespace hides them, so they are named after the test's process and removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PREFIX: &str = "nwt-";

/// Where the hierarchies are: one (version 2), or one per controller (version 1).
const ROOT: &str = "/sys/fs/cgroup";

/// How long the last process of a group may take to disappear.
const DEADLINE: Duration = Duration::from_secs(2);

/// A control group that a runtime will create, in whatever hierarchies; removed when this is
/// dropped.
#[derive(Debug)]
pub(crate) struct Cgroup {
    name: String,
}

impl Cgroup {
    /// Chooses a name that no other test has, and removes what dead tests have left.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        remove_stale();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self { name: format!("{PREFIX}{}-{number}", std::process::id()) }
    }

    /// Returns the path below each hierarchy's root, as in an OCI configuration.
    pub(crate) fn path(&self) -> String {
        format!("/{}", self.name)
    }

    /// Creates it in the hierarchy of version 2, which may exist beside those of version 1, and
    /// returns its path.
    ///
    /// # Panics
    /// When that hierarchy does not exist, or this is not root.
    pub(crate) fn unified(&self) -> PathBuf {
        self.create("unified")
    }

    /// Creates it in the hierarchy that freezes processes, of either version, and returns its path.
    ///
    /// # Panics
    /// When that hierarchy does not exist, or this is not root.
    pub(crate) fn freezer(&self) -> PathBuf {
        self.create("freezer")
    }

    /// Creates it in a hierarchy, or in the only one.
    fn create(&self, hierarchy: &str) -> PathBuf {
        let beside = Path::new(ROOT).join(hierarchy);
        let root = if beside.exists() { beside } else { PathBuf::from(ROOT) };
        let group = root.join(&self.name);
        fs::create_dir(&group).unwrap_or_else(|error| panic!("make {}: {error}", group.display()));
        group
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        for hierarchy in hierarchies() {
            let group = hierarchy.join(&self.name);
            while !remove(&group) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn remove_stale() {
    for hierarchy in hierarchies() {
        for group in children(&hierarchy) {
            let name = group.file_name().unwrap_or_default().to_string_lossy();
            let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                remove(&group);
            }
        }
    }
}

fn hierarchies() -> Vec<PathBuf> {
    let mut all = children(Path::new(ROOT));
    all.retain(|dir| dir.join("cgroup.procs").exists());
    all.push(PathBuf::from(ROOT));
    all
}

/// Removes a group and those in it, with the processes in them; true when it is gone.
fn remove(group: &Path) -> bool {
    for child in children(group) {
        remove(&child);
    }
    let pids = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in pids.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    // In version 1, a signal does not end a frozen process. Elsewhere there is no such file.
    let _ = fs::write(group.join("freezer.state"), "THAWED");
    match fs::remove_dir(group) {
        Ok(()) => true,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.map(|entry| entry.path()).collect()
}
