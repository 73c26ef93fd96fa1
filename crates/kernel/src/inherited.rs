//! Sockets that a service manager opened for this process (`man 3 sd_listen_fds`).

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::FdFlags;

/// The first descriptor that is handed over (systemd's `SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// Takes the descriptors that are this process's, given what the environment variables `LISTEN_PID` and `LISTEN_FDS`
/// say, and marks them close-on-exec. None when they are another process's, and at every call but the first.
///
/// # Errors
/// When `LISTEN_FDS` names a descriptor that was not handed over.
pub fn take(listen_pid: Option<&str>, listen_fds: Option<&str>) -> io::Result<Vec<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let pid = listen_pid.and_then(|text| text.parse::<u32>().ok());
    let count = listen_fds.and_then(|text| text.parse::<RawFd>().ok()).unwrap_or_default();
    if pid != Some(std::process::id()) || count <= 0 || TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    let last = FIRST.checked_add(count).ok_or(io::ErrorKind::InvalidInput)?;
    (FIRST..last).map(take_one).collect()
}

fn take_one(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is used for the length of two calls that do nothing but look at it and flag it, and that
    // answer EBADF if it is not open.
    let inherited = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = rustix::io::fcntl_getfd(inherited)?;
    // Everything this program opens itself is close-on-exec from the start.
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(io::Error::other(format!("descriptor {number} was not handed over")));
    }
    rustix::io::fcntl_setfd(inherited, flags | FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open, and nobody in this process owns it: it was there when the program started, what
    // the program opens itself is close-on-exec, and `take` does this once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::take;

    #[test]
    fn what_is_another_processs_is_left_alone() {
        assert!(take(None, None).unwrap().is_empty());
        assert!(take(Some("1"), Some("1")).unwrap().is_empty());
        assert!(take(Some(&std::process::id().to_string()), Some("0")).unwrap().is_empty());
        assert!(take(Some("x"), Some("x")).unwrap().is_empty());
    }
}
