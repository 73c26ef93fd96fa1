//! Who is at the other end of a Unix socket (`man 7 unix`, SO_PEERCRED).
//!
//! rustix has a function for this too. It takes the PID for a number other than 0, and fails, with
//! an error of number 0, where the other end's PID namespace is not below ours.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr;

/// The process that connected, or that listens, as it was then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its PID in our namespace; `None` if it is in one that is not below ours.
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// Reads who is at the other end of a connected socket.
///
/// # Errors
/// The kernel's, for what is not a Unix socket.
pub fn of(socket: impl AsFd) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let size = mem::size_of_val(&credentials);
    let mut length = libc::socklen_t::try_from(size).expect("twelve bytes are few");
    // SAFETY: the kernel writes at most `length` bytes to `credentials`, which are three numbers:
    // any bytes are valid.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            ptr::from_mut(&mut credentials).cast(),
            &raw mut length,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let libc::ucred { pid, uid, gid } = credentials;
    Ok(Peer { pid: u32::try_from(pid).ok().filter(|pid| *pid != 0), uid, gid })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "nothing waits for it")]
    fn the_other_end_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = of(&one).unwrap();
        assert_eq!(peer.pid, Some(std::process::id()));
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.gid, rustix::process::getegid().as_raw());
    }

    #[test]
    fn what_is_no_unix_socket_has_no_such_end() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        // The kernel answers for any socket; nobody is at the other end of this one.
        let nobody = Peer { pid: None, uid: u32::MAX, gid: u32::MAX };
        assert_eq!(of(&socket).ok().filter(|peer| *peer != nobody), None);
    }
}
