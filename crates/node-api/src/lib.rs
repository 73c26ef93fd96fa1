#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod client;
pub mod dhcp;
pub mod inbox;
pub mod ipam;
pub mod line;
pub mod multinet;
mod pod;
pub mod policy;
pub mod ready;
mod refusal;
pub mod socket;
pub mod wait;

use std::path::{Path, PathBuf};

pub use client::{AskError, Daemon, ExchangeError};
pub use line::{LineError, Message};
pub use pod::Pod;
pub use refusal::Refusal;

/// Returns where a daemon listens that has this socket by default, if its folder is `run`.
///
/// # Panics
/// This never fails for the sockets that this crate names: each is a file.
#[must_use]
pub fn socket_in(run: &Path, by_default: &str) -> PathBuf {
    run.join(Path::new(by_default).file_name().expect("it is a file"))
}

/// Returns a path that has the socket's name and this suffix.
fn beside(socket: &Path, suffix: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
