//! Waits for a file to appear, notified by the kernel instead of polling in short intervals.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// How long to wait without a notification before checking again: a process listens on a socket
/// only after the file exists, and the kernel does not report that.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Waits until `look` has found something, or until the deadline. It checks at once, whenever
/// something changes in the path's folder, and at intervals.
pub fn until<T>(path: &Path, deadline: Instant, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        // Set up before the check, so that no change in between is missed.
        let heard = watch(path);
        if let Some(found) = look() {
            return Some(found);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let timeout = Timespec::try_from(left.min(LOOK_AGAIN)).ok()?;
        let mut fds: Vec<PollFd<'_>> =
            heard.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        // A signal or a failure only makes the check run earlier.
        let _ = poll(&mut fds, Some(&timeout));
    }
}

/// Watches the nearest folder that exists.
fn watch(path: &Path) -> Option<std::os::fd::OwnedFd> {
    let heard = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    let events = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ATTRIB;
    let mut folders = path.ancestors().skip(1);
    folders.any(|folder| inotify::add_watch(&heard, folder, events).is_ok()).then_some(heard)
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
