//! Connections to a program on this host, with a bound on every wait.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::{Error, code};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The shortest wait that can be set: zero would mean waiting forever.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The longest path of a Unix socket (linux/un.h `UNIX_PATH_MAX`, less the closing NUL).
const MAX_PATH: usize = 107;

/// Reads the path of a socket that a configuration's key names.
///
/// # Errors
/// Code 7 when it cannot be one.
pub fn checked_path(key: &str, text: &str) -> Result<PathBuf, Error> {
    let path = Path::new(text);
    if !path.is_absolute() {
        let error = Error::new(code::INVALID_CONFIG, format!("{key}: {text:?} is not absolute"));
        return Err(error.with_details("plugins run in the runtime's working directory"));
    }
    if MAX_PATH < path.as_os_str().as_bytes().len() {
        return Err(Error::new(
            code::INVALID_CONFIG,
            format!(
                "{key}: {text:?} is longer than {MAX_PATH} octets, which no socket's path may be"
            ),
        ));
    }
    Ok(path.to_owned())
}

/// Limits the next operation on a socket to the deadline.
///
/// # Errors
/// The kernel's.
pub fn limit(socket: &OwnedFd, what: Timeout, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now()).max(SHORTEST_WAIT);
    Ok(sockopt::set_socket_timeout(socket, what, Some(left))?)
}

/// Creates a stream socket whose connect ends by the deadline: it would wait if the listener's
/// queue is full.
///
/// # Errors
/// The kernel's.
pub fn stream(family: AddressFamily, deadline: Instant) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    limit(&socket, Timeout::Send, deadline)?;
    Ok(socket)
}

/// Connects to a Unix socket.
///
/// # Errors
/// The kernel's; [`io::ErrorKind::WouldBlock`] at the deadline.
pub fn connect_unix(path: &Path, deadline: Instant) -> io::Result<OwnedFd> {
    let socket = stream(AddressFamily::UNIX, deadline)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}
