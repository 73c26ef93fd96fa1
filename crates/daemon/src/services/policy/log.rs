//! The packet filter's log and counters.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// How many packets the packet filter dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) ingress: u64,
    pub(crate) egress: u64,
}

/// Reads the counters; `None` if there is no table.
pub(crate) fn counted() -> Option<Counted> {
    None
}

/// A socket that hears of logged packets.
#[derive(Debug)]
pub(crate) struct Log(UnixStream);

impl Log {
    /// Listens to a group.
    pub(crate) fn open(group: u16) -> Result<Self, String> {
        Err(format!("nobody listens to group {group}"))
    }

    /// Returns what is pending, without waiting.
    pub(crate) fn heard(&mut self) -> Result<Heard, String> {
        Ok(Heard::default())
    }
}

impl AsFd for Log {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Logged {
    pub(crate) prefix: String,
    pub(crate) time: Option<SystemTime>,
    pub(crate) payload: Vec<u8>,
}

#[cfg(test)]
pub(crate) fn logged(prefix: &str, payload: Vec<u8>) -> Logged {
    Logged { prefix: prefix.to_owned(), time: None, payload }
}

impl Logged {
    pub(crate) fn packet(&self) -> Option<Packet> {
        let bytes = &self.payload;
        let address = |at: usize| {
            let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(std::net::IpAddr::from(octets))
        };
        let port = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        Some(Packet {
            source: address(12)?,
            destination: address(16)?,
            protocol: *bytes.get(9)?,
            ports: port(20).zip(port(22)),
            tcp_flags: bytes.get(33).copied(),
            is_fragment: false,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Heard {
    pub(crate) packets: Vec<Logged>,
    pub(crate) lost: u64,
    pub(crate) overrun: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) source: std::net::IpAddr,
    pub(crate) destination: std::net::IpAddr,
    pub(crate) protocol: u8,
    pub(crate) ports: Option<(u16, u16)>,
    pub(crate) tcp_flags: Option<u8>,
    pub(crate) is_fragment: bool,
}
