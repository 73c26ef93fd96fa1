//! What a link offloads to its hardware (`man 8 ethtool`).

use std::io;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use thiserror::Error;

use crate::netns::{Netns, NetnsError, within};

/// `linux include/uapi/linux/sockios.h`.
const SIOCETHTOOL: Opcode = 0x8946;
/// `linux include/uapi/linux/ethtool.h` ETHTOOL_STXCSUM.
const SET_TX_CHECKSUMS: u32 = 0x17;
/// Size of a link's name with its closing NUL (`linux include/uapi/linux/if.h`).
const IFNAMSIZ: usize = 16;

/// A link's offloading could not be changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EthtoolError {
    /// The namespace could not be entered.
    #[error("set offloading of {name:?}")]
    Enter {
        /// The link.
        name: String,
        /// Why.
        #[source]
        source: NetnsError,
    },
    /// The kernel refused.
    #[error("set offloading of {name:?}")]
    Set {
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
    let set = || {
        let kind = (AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None)?;
        let bytes = name.as_bytes();
        if bytes.is_empty() || IFNAMSIZ <= bytes.len() {
            return Err(Errno::NODEV);
        }
        let mut value = EthtoolValue { command: SET_TX_CHECKSUMS, data: 0 };
        let mut request =
            InterfaceRequest { name: [0; IFNAMSIZ], data: &raw mut value, rest: [0; 16] };
        request.name[..bytes.len()].copy_from_slice(bytes);
        // SAFETY: SIOCETHTOOL reads and writes a `struct ifreq`, which is not larger than
        // `InterfaceRequest` on any architecture.
        let update = unsafe { Updater::<SIOCETHTOOL, InterfaceRequest>::new(&mut request) };
        // SAFETY: `data` points to a `struct ethtool_value`, which ETHTOOL_STXCSUM reads, and which
        // outlives the call.
        unsafe { rustix::ioctl::ioctl(&socket, update) }
    };
    let done = within(netns, set);
    let done = done.map_err(|source| EthtoolError::Enter { name: name.to_owned(), source })?;
    done.map_err(|errno| EthtoolError::Set { name: name.to_owned(), source: errno.into() })
}
