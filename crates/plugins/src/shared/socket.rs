//! Talking to a program on this host without ever waiting for it longer than is agreed.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The shortest wait there is: none at all would mean for ever.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Lets the next act on a socket take no longer than to the deadline.
///
/// # Errors
/// The kernel's.
pub fn limit(socket: &OwnedFd, what: Timeout, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now()).max(SHORTEST_WAIT);
    Ok(sockopt::set_socket_timeout(socket, what, Some(left))?)
}

/// Makes a socket for a stream whose connecting takes no longer than to the deadline: that of one whose queue is full.
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
