//! A limit on a process's memory.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long the last process of a group may take to disappear.
const DEADLINE: Duration = Duration::from_secs(5);

/// A control group with a memory limit; removed once this is dropped and its processes are gone.
///
/// It uses either version of control groups, whichever the machine has.
#[derive(Debug)]
pub struct MemoryLimit {
    path: PathBuf,
    unified: bool,
}

impl MemoryLimit {
    /// Makes one with a limit in bytes, including swap.
    ///
    /// # Panics
    /// When the machine has no control groups for memory, or this is not root.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nwt-{}-memory-{number}", std::process::id());
        let first = PathBuf::from("/sys/fs/cgroup/memory");
        let unified = !first.exists();
        let root = if unified { PathBuf::from("/sys/fs/cgroup") } else { first };
        let limit = Self { path: root.join(name), unified };
        fs::create_dir(&limit.path)
            .unwrap_or_else(|error| panic!("make {}: {error}", limit.path.display()));
        let files: [&str; 2] = if unified {
            ["memory.max", "memory.swap.max"]
        } else {
            ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        };
        limit.write(files[0], &bytes.to_string());
        // Kernels that do not count swap do not have the second.
        let swap = if unified { 0 } else { bytes };
        let _ = fs::write(limit.path.join(files[1]), swap.to_string());
        limit
    }

    /// Moves a process into the group: its use counts from now on.
    pub fn hold(&self, pid: u32) {
        self.write("cgroup.procs", &pid.to_string());
    }

    /// Returns the largest use so far, in bytes.
    ///
    /// # Panics
    /// When the kernel does not report it.
    #[must_use]
    pub fn most_used(&self) -> u64 {
        let file = if self.unified { "memory.peak" } else { "memory.max_usage_in_bytes" };
        self.number(file)
    }

    /// Returns the memory of the processes, without the page cache of files, in bytes.
    ///
    /// # Panics
    /// When the kernel does not report it.
    #[must_use]
    pub fn resident(&self) -> u64 {
        let key = if self.unified { "anon " } else { "rss " };
        let text = fs::read_to_string(self.path.join("memory.stat")).expect("memory.stat");
        let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("a number");
        line.trim().parse().expect("a number")
    }

    fn number(&self, file: &str) -> u64 {
        let path = self.path.join(file);
        let text = fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
        text.trim().parse().expect("a number")
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path.join(file);
        fs::write(&path, text).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        while fs::remove_dir(&self.path).is_err() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
    }
}
