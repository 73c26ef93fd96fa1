//! What a link offloads to its hardware (`man 8 ethtool`).

use std::io;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use thiserror::Error;

use crate::netns::{Netns, NetnsError, within};

/// `linux include/uapi/linux/sockios.h`.
const SIOCETHTOOL: Opcode = 0x8946;
/// `linux include/uapi/linux/ethtool.h` ETHTOOL_GTXCSUM, ETHTOOL_STXCSUM.
const GET_TX_CHECKSUMS: u32 = 0x16;
const SET_TX_CHECKSUMS: u32 = 0x17;
/// Size of a link's name with its closing NUL (`linux include/uapi/linux/if.h`).
const IFNAMSIZ: usize = 16;

/// A link's offloading could not be read or changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EthtoolError {
    /// The namespace could not be entered.
    #[error("{verb} offloading of {name:?}")]
    Enter {
        /// What was to be done: `read` or `set`.
        verb: &'static str,
        /// The link.
        name: String,
        /// Why.
        #[source]
        source: NetnsError,
    },
    /// The kernel refused.
    #[error("{verb} offloading of {name:?}")]
    Refused {
        /// What was to be done: `read` or `set`.
        verb: &'static str,
        /// The link.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// `struct ifreq` with `ifr_data`: 40 bytes at most.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; IFNAMSIZ],
    data: *mut EthtoolValue,
    rest: [u8; 16],
}

/// Makes the kernel fill in the checksums of frames that leave by a link, and disables what depends
/// on checksum offloading (segmentation): a program that reads raw frames, such as a switch in user
/// space, passes on what they contain.
///
/// Idempotent.
///
/// # Errors
/// [`EthtoolError`].
///
/// # Privileges
/// CAP_NET_ADMIN in the user namespace that owns the network namespace.
pub fn fill_in_checksums(netns: &Netns, name: &str) -> Result<(), EthtoolError> {
    set_tx_checksums(netns, name, false)
}

/// Leaves the checksums of frames that leave by a link to the link, or to the links below it
/// (`tx-checksum-ip-generic` and its kin in `man 8 ethtool`), or has the kernel fill them in. For a
/// tunnel these are the checksums of the inner packets: on some networks hardware computes them
/// wrong. Without offloading a tunnel does not segment either, and carries about a third.
///
/// Idempotent. On a link that cannot compute checksums, leaving them to it does nothing. A link that
/// is created again starts with the kernel's choice.
///
/// # Errors
/// [`EthtoolError`].
///
/// # Privileges
/// CAP_NET_ADMIN in the user namespace that owns the network namespace.
pub fn set_tx_checksums(netns: &Netns, name: &str, on: bool) -> Result<(), EthtoolError> {
    request(netns, name, "set", SET_TX_CHECKSUMS, on.into()).map(drop)
}

/// Says whether the checksums of frames that leave by a link are left to it
/// ([`set_tx_checksums`]).
///
/// # Errors
/// [`EthtoolError`].
pub fn tx_checksums(netns: &Netns, name: &str) -> Result<bool, EthtoolError> {
    request(netns, name, "read", GET_TX_CHECKSUMS, 0).map(|data| data != 0)
}

/// Executes a command with a `struct ethtool_value` on a link.
fn request(
    netns: &Netns,
    name: &str,
    verb: &'static str,
    command: u32,
    data: u32,
) -> Result<u32, EthtoolError> {
    let execute = || {
        let kind = (AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None)?;
        let bytes = name.as_bytes();
        if bytes.is_empty() || IFNAMSIZ <= bytes.len() {
            return Err(Errno::NODEV);
        }
        let mut value = EthtoolValue { command, data };
        let mut request =
            InterfaceRequest { name: [0; IFNAMSIZ], data: &raw mut value, rest: [0; 16] };
        request.name[..bytes.len()].copy_from_slice(bytes);
        // SAFETY: SIOCETHTOOL reads and writes a `struct ifreq`, which is not larger than
        // `InterfaceRequest` on any architecture.
        let update = unsafe { Updater::<SIOCETHTOOL, InterfaceRequest>::new(&mut request) };
        // SAFETY: `data` points to a `struct ethtool_value`, which the two commands read or write,
        // and which outlives the call.
        unsafe { rustix::ioctl::ioctl(&socket, update) }?;
        Ok(value.data)
    };
    let name = || name.to_owned();
    let done = within(netns, execute);
    let done = done.map_err(|source| EthtoolError::Enter { verb, name: name(), source })?;
    done.map_err(|errno| EthtoolError::Refused { verb, name: name(), source: errno.into() })
}
