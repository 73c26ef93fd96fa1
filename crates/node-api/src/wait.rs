//! Waits for a file to appear, notified by the kernel instead of polling in short intervals.
//!
//! The kernel takes some milliseconds to end a notification (linux fs/notify/group.c
//! `fsnotify_destroy_group`, which waits for a grace period). So what is there already is found
//! without one, and the caller does not wait for the end of it.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// How long to wait without a notification before checking again: a process listens on a socket
/// only after the file exists, and the kernel does not report that.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Waits until `look` has found something, or until the deadline. It checks at once, whenever
/// something changes in the path's folder, and at intervals.
pub fn until<T>(path: &Path, deadline: Instant, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    if let Some(found) = look() {
        return Some(found);
    }
    if deadline <= Instant::now() {
        return None;
    }
    let heard = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
    let found = once_it_changes(heard.as_ref(), path, deadline, look);
    // If there can be no thread, it is closed here.
    let _ = thread::Builder::new().name("unwatch".to_owned()).spawn(move || drop(heard));
    found
}

/// Does the same with an instance of inotify, if there is one.
fn once_it_changes<T>(
    heard: Option<&OwnedFd>,
    path: &Path,
    deadline: Instant,
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    loop {
        // Set up before the check, so that no change in between is missed.
        if let Some(heard) = heard {
            watch(heard, path);
        }
        if let Some(found) = look() {
            return Some(found);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let timeout = Timespec::try_from(left.min(LOOK_AGAIN)).ok()?;
        let mut fds: Vec<PollFd<'_>> =
            heard.into_iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        // A signal or a failure only makes the check run earlier.
        let _ = poll(&mut fds, Some(&timeout));
        if let Some(heard) = heard {
            drain(heard);
        }
    }
}

/// Watches the nearest folder that exists. What is watched already stays watched.
fn watch(heard: &OwnedFd, path: &Path) {
    let events = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ATTRIB;
    for folder in path.ancestors().skip(1) {
        if inotify::add_watch(heard, folder, events).is_ok() {
            return;
        }
    }
}

/// Takes the notifications that are there.
fn drain(heard: &OwnedFd) {
    let mut events = [0_u8; 1024];
    while rustix::io::read(heard, &mut events[..]).is_ok_and(|length| 0 < length) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_appears_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/file");
        let far = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, "").unwrap();
            });
            assert!(until(&path, far, || path.exists().then_some(())).is_some());
        });
    }

    #[test]
    fn what_is_there_is_found_without_a_watch() {
        let watches = || {
            let open = std::fs::read_dir("/proc/thread-self/fd").unwrap();
            let leads = open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
            leads.filter(|leads| leads == Path::new("anon_inode:inotify")).count()
        };
        let far = Instant::now() + Duration::from_secs(60);
        let (mut looks, path) = (0, Path::new("/nonexistent/file"));
        assert_eq!(until(path, far, || Some(watches())), Some(0));
        let found = until(path, far, || {
            looks += 1;
            (1 < looks).then(watches)
        });
        assert_eq!(found, Some(1));
    }

    #[test]
    fn what_never_appears_is_waited_for_no_longer_than_agreed() {
        let path = Path::new("/nonexistent/file");
        let mut looks = 0;
        let found: Option<()> = until(path, Instant::now(), || {
            looks += 1;
            None
        });
        assert_eq!((found, looks), (None, 1));
    }
}
