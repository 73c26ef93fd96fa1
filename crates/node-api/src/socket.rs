//! Connections to a program on this host, with a bound on every wait.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::{Error, code};
use rustix::io::Errno;
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

/// Why [`connect_now`] did not connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// No process listens.
    #[error("no program listens")]
    Nobody,
    /// A process listens and does not accept connections: its queue is full.
    #[error("it accepts no connection")]
    Full,
    /// The kernel refused.
    #[error("{0}")]
    Failed(io::Error),
}

/// Connects to a Unix socket without waiting. A process that is stopped accepts no connection, and
/// its queue may be full. Reads and writes on the connection may wait.
///
/// # Errors
/// [`ConnectFailure`].
pub fn connect_now(path: &Path) -> Result<UnixStream, ConnectFailure> {
    let failed = |errno: Errno| ConnectFailure::Failed(errno.into());
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED) => {
            return Err(ConnectFailure::Nobody);
        }
        Err(Errno::AGAIN) => return Err(ConnectFailure::Full),
        Err(errno) => return Err(failed(errno)),
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).map_err(ConnectFailure::Failed)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_full_queue_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        assert!(matches!(connect_now(&path), Err(ConnectFailure::Nobody)));
        assert!(matches!(connect_now(&path.join("below")), Err(ConnectFailure::Nobody)));
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            match connect_now(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, ConnectFailure::Full), "{refused}, behind {}", waiting.len());
        drop(listener);
        assert!(matches!(connect_now(&path), Err(ConnectFailure::Nobody)));
    }
}
