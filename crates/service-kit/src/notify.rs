//! Reports the daemon's state to a service manager (`man 3 sd_notify`).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state such as `READY=1` to the socket that `NOTIFY_SOCKET` names, if it names one. Never
/// waits: a manager that does not go on must not stop its services.
pub(crate) fn send(socket: Option<&OsStr>, state: &str) -> io::Result<()> {
    let Some(name) = socket.filter(|name| !name.is_empty()) else { return Ok(()) };
    let address = match name.as_bytes() {
        [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name),
        _ => SocketAddr::from_pathname(name),
    }?;
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(|_| ())
}
