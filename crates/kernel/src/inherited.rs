//! Sockets that a service manager opened for this process (`man 3 sd_listen_fds`).

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::FdFlags;

/// The first descriptor that is passed (systemd's `SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;

/// Takes the descriptors meant for this process, given the values of the environment variables
/// `LISTEN_PID` and `LISTEN_FDS`, and marks them close-on-exec. Returns none if they are meant for
/// another process, and on every call but the first.
///
/// # Errors
/// When `LISTEN_FDS` names a descriptor that was not passed.
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
    // SAFETY: the descriptor is used only during two calls that do nothing but read and set its
    // flags, and that return EBADF if it is not open.
    let inherited = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = rustix::io::fcntl_getfd(inherited)?;
    // Everything this program opens itself is close-on-exec from the start.
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(io::Error::other(format!("descriptor {number} was not handed over")));
    }
    rustix::io::fcntl_setfd(inherited, flags | FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open, and nothing in this process owns it: it was open when the
    // program started, the program opens all its own descriptors close-on-exec, and `take` does
    // this once.
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
