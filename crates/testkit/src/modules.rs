//! Records which modules the kernel is asked to load, and by which thread.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::gettid;

/// Where the virtual machine mounts tracefs.
const TRACING: &str = "/sys/kernel/tracing";

/// A record of the kernel's requests for modules: for each request the kernel starts the program
/// that `/proc/sys/kernel/modprobe` names, and the caller waits for it.
///
/// That program does not learn which thread is waiting, and tests run side by side. The kernel's
/// event `module:module_request` shows the thread. So the record is a trace instance that follows
/// the calling thread and whatever it starts.
#[derive(Debug)]
pub struct ModuleRequests {
    instance: PathBuf,
}

impl ModuleRequests {
    /// Makes an empty record. Needs the feature `module-requests`.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[must_use]
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nwt-{}-{number}", std::process::id());
        let instance = Path::new(TRACING).join("instances").join(name);
        fs::create_dir(&instance)
            .unwrap_or_else(|error| panic!("make {}: {error}", instance.display()));
        let requests = Self { instance };
        requests.write("options/event-fork", "1");
        requests.write("events/module/module_request/enable", "1");
        requests
    }

    /// Runs `act` and returns the names of the modules requested meanwhile by this thread and by
    /// the threads and processes that it started.
    ///
    /// # Panics
    /// When the record cannot be read.
    pub fn during<T>(&self, act: impl FnOnce() -> T) -> (T, Vec<String>) {
        self.write("set_event_pid", &gettid().as_raw_nonzero().to_string());
        // The trace is emptied only now: while the list of threads is rewritten, the kernel records
        // the requests of all threads.
        self.write("trace", "");
        let done = act();
        let trace = self.instance.join("trace");
        let text = fs::read_to_string(&trace)
            .unwrap_or_else(|error| panic!("read {}: {error}", trace.display()));
        // `it-212 [001] ..... 9.81: module_request: netdev-eth0 wait=1 call_site=…`
        let named = text.lines().filter_map(|line| line.split_once(": module_request: "));
        let names = named.filter_map(|(_, rest)| rest.split(' ').next().map(str::to_owned));
        (done, names.collect())
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.instance.join(file);
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Default for ModuleRequests {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ModuleRequests {
    fn drop(&mut self) {
        // An enabled event keeps the instance busy.
        let _ = fs::write(self.instance.join("events/module/module_request/enable"), "0");
        let _ = fs::remove_dir(&self.instance);
    }
}
