//! Folders that a service watches.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// Folders of which every change is reported (`man 7 inotify`).
#[derive(Debug)]
pub struct Folders {
    inotify: OwnedFd,
    folders: BTreeSet<PathBuf>,
}

impl Folders {
    /// Watches the folders of files, as far as they exist.
    pub fn of<'a>(files: impl Iterator<Item = &'a Path>) -> io::Result<Self> {
        Self::watching(files.filter_map(Path::parent))
    }

    /// Watches folders, as far as they exist.
    pub fn watching<'a>(folders: impl Iterator<Item = &'a Path>) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let folders = folders.map(Path::to_owned).collect();
        let watched = Folders { inotify, folders };
        watched.watch();
        Ok(watched)
    }

    /// Watches these folders too, as far as they exist.
    pub fn add(&mut self, folders: impl Iterator<Item = PathBuf>) {
        self.folders.extend(folders);
        self.watch();
    }

    /// Watches folders that are new, or in place of others.
    pub fn watch(&self) {
        // A file that is being written is read once it is closed.
        let events = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        for folder in &self.folders {
            // One that is missing is looked for at the next look.
            let _ = inotify::add_watch(&self.inotify, folder, events);
        }
    }

    /// Returns what is readable when something has changed.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.inotify
    }

    /// Takes note of what has changed.
    pub fn heard(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        while reader.next().is_ok() {}
    }
}
