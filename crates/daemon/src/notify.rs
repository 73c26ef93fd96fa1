//! Reports the daemon's state to a service manager (`man 3 sd_notify`).

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state such as `READY=1` to the socket that `NOTIFY_SOCKET` names. Ignores a manager that
/// does not listen.
pub(crate) fn send(socket: Option<&OsStr>, state: &str) {
    let Some(name) = socket.filter(|name| !name.is_empty()) else { return };
    let address = match name.as_bytes() {
        [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name),
        _ => SocketAddr::from_pathname(name),
    };
    let sent = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, state, "cannot notify the service manager");
    }
}
