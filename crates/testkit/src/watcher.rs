//! Watches a folder as container runtimes watch theirs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// The runtime whose way of watching is imitated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// containerd loads its configurations again when the library fsnotify reports a write, rename
    /// (the old name's) or removal. It ignores new names, including those from a rename.
    Containerd,
    /// CRI-O loads them again on a new name or a write, and when the file that it uses is removed.
    CriO,
}

/// A folder that is watched with fsnotify's flags, which both runtimes use.
#[derive(Debug)]
pub struct Watcher {
    inotify: OwnedFd,
}

/// The events in a folder since the last look.
#[derive(Debug)]
pub struct SeenEvents(Vec<Event>);

#[derive(Debug)]
struct Event {
    flags: ReadFlags,
    cookie: u32,
    name: OsString,
}

impl Watcher {
    /// Watches a folder.
    ///
    /// # Panics
    /// When it cannot be watched.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .unwrap_or_else(|errno| panic!("inotify_init: {errno}"));
        let flags = WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::CREATE
            | WatchFlags::ATTRIB
            | WatchFlags::MODIFY
            | WatchFlags::MOVE_SELF
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF;
        inotify::add_watch(&inotify, folder, flags)
            .unwrap_or_else(|errno| panic!("watch {}: {errno}", folder.display()));
        Watcher { inotify }
    }

    /// Returns the events since the last look.
    ///
    /// # Panics
    /// When the kernel does not report events.
    #[must_use]
    pub fn look(&self) -> SeenEvents {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut seen = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                    seen.push(Event {
                        flags: event.events(),
                        cookie: event.cookie(),
                        name: name.unwrap_or_default().into(),
                    });
                }
                Err(Errno::AGAIN) => return SeenEvents(seen),
                Err(errno) => panic!("read inotify: {errno}"),
            }
        }
    }
}

impl SeenEvents {
    /// Whether a runtime certainly loads the folder's contents after a file got this name, or lost
    /// it.
    ///
    /// An event before that does not count: after it a fast runtime would read the folder too
    /// early. Both events of a rename come when the rename is done, so each of them counts.
    #[must_use]
    pub fn is_noticed(&self, by: Runtime, name: &str) -> bool {
        let named = ReadFlags::CREATE | ReadFlags::MOVED_TO | ReadFlags::DELETE;
        let last =
            self.0.iter().rposition(|event| event.name == name && event.flags.intersects(named));
        let Some(last) = last else { return false };
        let cookie = self.0[last].cookie;
        let of_it = |event: &Event| cookie != 0 && event.cookie == cookie;
        let loads = |event: &Event| match by {
            Runtime::Containerd => event
                .flags
                .intersects(ReadFlags::MODIFY | ReadFlags::DELETE | ReadFlags::MOVED_FROM),
            Runtime::CriO => {
                event.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO | ReadFlags::MODIFY)
                    || (event.flags.contains(ReadFlags::DELETE) && event.name == name)
            }
        };
        let mut events = self.0.iter().enumerate();
        events.any(|(at, event)| (last <= at || of_it(event)) && loads(event))
    }

    /// Returns the names that a runtime would load and that were created empty, or written to,
    /// under that name: a runtime could have read part of such a file.
    #[must_use]
    pub fn half_written(&self) -> Vec<String> {
        let mut created = BTreeMap::new();
        for event in &self.0 {
            let name = event.name.to_string_lossy().into_owned();
            let is_loaded =
                [".conf", ".conflist", ".json"].iter().any(|ending| name.ends_with(ending));
            if is_loaded && event.flags.intersects(ReadFlags::CREATE | ReadFlags::MODIFY) {
                created.insert(name, ());
            }
        }
        created.into_keys().collect()
    }
}
