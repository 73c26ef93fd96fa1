//! Tap devices: Ethernet links whose other end is a program (`linux
//! Documentation/networking/tuntap.rst`).
//!
//! Netlink lists these links but does not create them: a descriptor of `/dev/net/tun` does, in the
//! namespace it was opened in. The links created here are persistent; they stay when the descriptor
//! is closed, until a program opens them.

use std::io;
use std::os::fd::OwnedFd;
use std::os::raw::{c_int, c_short};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Updater, opcode};
use thiserror::Error;

use crate::netns::{Netns, NetnsError, within};
use crate::route::Link;

/// The device that creates taps (`linux Documentation/networking/tuntap.rst`).
pub const DEVICE: &str = "/dev/net/tun";

/// Its number, the same on every Linux (`linux include/linux/miscdevice.h` TUN_MINOR).
const DEVICE_NUMBER: (u32, u32) = (10, 200);

/// `linux include/uapi/linux/if_tun.h`.
const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
const TUNSETPERSIST: Opcode = opcode::write::<c_int>(b'T', 203);
const TUNSETOWNER: Opcode = opcode::write::<c_int>(b'T', 204);
const TUNSETGROUP: Opcode = opcode::write::<c_int>(b'T', 206);
const IFF_TUN: u16 = 0x0001;
const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const IFF_TUN_EXCL: u16 = 0x8000;
/// Size of a link's name with its closing NUL (`linux include/uapi/linux/if.h`).
const IFNAMSIZ: usize = 16;

/// A tap to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTap {
    /// Its name.
    pub name: String,
    /// Whether several programs, or threads, may each open a queue of it. They must also open it
    /// with this flag.
    pub multi_queue: bool,
    /// Whether frames carry a header with offloading hints. The program that opens it decides anew.
    pub vnet_hdr: bool,
    /// The user who may open it; `None`: any process with CAP_NET_ADMIN.
    pub owner: Option<u32>,
    /// The group that may open it.
    pub group: Option<u32>,
}

/// A tap could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TunError {
    /// The namespace could not be entered.
    #[error("create tap {name:?}")]
    Enter {
        /// The tap.
        name: String,
        /// Why.
        #[source]
        source: NetnsError,
    },
    /// One of the steps failed; nothing is left.
    #[error("create tap {name:?}: {step}")]
    Create {
        /// The tap.
        name: String,
        /// The operation.
        step: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl TunError {
    /// Whether a link of that name exists already.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        let Self::Create { source, .. } = self else { return false };
        [Errno::BUSY, Errno::EXIST, Errno::INVAL]
            .iter()
            .any(|errno| source.raw_os_error() == Some(errno.raw_os_error()))
            && matches!(self, Self::Create { step: MAKE, .. })
    }
}

const MAKE: &str = "make the link";

/// Checks that taps can be created: the device exists, this kernel has its driver, and no other
/// device has its name.
///
/// # Errors
/// [`io::Error`] from opening [`DEVICE`]; ENODEV if it is another device.
///
/// # Privileges
/// Permission to open [`DEVICE`].
pub fn available() -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open(Path::new(DEVICE), flags, Mode::empty())?;
    let status = rustix::fs::fstat(&device)?;
    let is_char = FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice;
    let number = (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev));
    if is_char && number == DEVICE_NUMBER { Ok(()) } else { Err(Errno::NODEV.into()) }
}

/// Creates a tap in a namespace; it is down, and stays until it is deleted.
///
/// # Errors
/// [`TunError`]; [`TunError::is_exists`] if a link already has the name.
///
/// # Privileges
/// CAP_NET_ADMIN in the user namespace that owns the network namespace, and permission to open
/// [`DEVICE`].
pub fn create_tap(netns: &Netns, tap: &NewTap) -> Result<(), TunError> {
    let failed = |step| failure(&tap.name, step);
    // Until the link is persistent it is deleted with the descriptor.
    let fd = open_device(netns, &tap.name)?;
    attach(&fd, tap, IFF_TUN_EXCL).map_err(failed(MAKE))?;
    if let Some(owner) = tap.owner {
        set_number::<TUNSETOWNER>(&fd, owner).map_err(failed("set its owner"))?;
    }
    if let Some(group) = tap.group {
        set_number::<TUNSETGROUP>(&fd, group).map_err(failed("set its group"))?;
    }
    set_number::<TUNSETPERSIST>(&fd, 1).map_err(failed("make it persistent"))
}

/// Opens a queue of an existing tap: the program's end of the link. Each read and each write is one
/// frame, without any header.
///
/// # Errors
/// [`TunError`].
pub fn open_tap(netns: &Netns, name: &str, multi_queue: bool) -> Result<OwnedFd, TunError> {
    let tap =
        NewTap { name: name.to_owned(), multi_queue, vnet_hdr: false, owner: None, group: None };
    let fd = open_device(netns, name)?;
    attach(&fd, &tap, 0).map_err(failure(name, "open the link"))?;
    Ok(fd)
}

/// Says whether a program has a tap or tun open, which was read in this namespace; `false` for links
/// of other kinds. Such a program reads and writes the link's packets wherever the link is moved.
///
/// One queue is all that most have, and the kernel does not say whether it is in use: this opens it for
/// a moment, if it is free.
///
/// # Errors
/// [`TunError`]: it is not known.
///
/// # Privileges
/// As [`create_tap`].
pub fn is_open(netns: &Netns, link: &Link) -> Result<bool, TunError> {
    let Some(info) = &link.tun else { return Ok(false) };
    if !info.persistent || info.multi_queue {
        // Without a program, one that is not persistent would be gone.
        return Ok(!info.persistent || 0 < info.queues);
    }
    let tap = NewTap {
        name: link.name.clone(),
        multi_queue: false,
        vnet_hdr: info.vnet_hdr,
        owner: None,
        group: None,
    };
    let fd = open_device(netns, &link.name)?;
    // linux drivers/net/tun.c `tun_attach`
    match request(&fd, &tap, if info.tap { IFF_TAP } else { IFF_TUN }) {
        Err(Errno::BUSY) => Ok(true),
        done => done.map(|()| false).map_err(failure(&link.name, "open the link")),
    }
}

fn failure(name: &str, step: &'static str) -> impl FnOnce(Errno) -> TunError {
    let name = name.to_owned();
    move |errno| TunError::Create { name, step, source: errno.into() }
}

/// Opens the device; the descriptor belongs to the namespace it is opened in.
fn open_device(netns: &Netns, name: &str) -> Result<OwnedFd, TunError> {
    let opened = within(netns, || {
        rustix::fs::open(Path::new(DEVICE), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    });
    let opened = opened.map_err(|source| TunError::Enter { name: name.to_owned(), source })?;
    opened.map_err(failure(name, "open /dev/net/tun"))
}

/// `struct ifreq` as TUNSETIFF reads and writes it: at most 40 bytes.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; IFNAMSIZ],
    flags: c_short,
    rest: [u8; 22],
}

fn attach(fd: &OwnedFd, tap: &NewTap, more: u16) -> Result<(), Errno> {
    request(fd, tap, IFF_TAP | more)
}

fn request(fd: &OwnedFd, tap: &NewTap, kind: u16) -> Result<(), Errno> {
    // The kernel would replace %d with a number, and make up a name for an empty one.
    let name = tap.name.as_bytes();
    if name.is_empty() || IFNAMSIZ <= name.len() || name.contains(&b'%') || name.contains(&0) {
        return Err(Errno::NAMETOOLONG);
    }
    let mut flags = kind | IFF_NO_PI;
    if tap.multi_queue {
        flags |= IFF_MULTI_QUEUE;
    }
    if tap.vnet_hdr {
        flags |= IFF_VNET_HDR;
    }
    let flags = c_short::from_ne_bytes(flags.to_ne_bytes());
    let mut request = InterfaceRequest { name: [0; IFNAMSIZ], flags, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name);
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which is not larger than
    // `InterfaceRequest` on any architecture and consists of bytes that may have any value.
    let update = unsafe { Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request) };
    // SAFETY: the descriptor is one of /dev/net/tun, and the operation touches nothing but the
    // request.
    unsafe { rustix::ioctl::ioctl(fd, update) }
}

/// The operations of `/dev/net/tun` that take a number instead of a pointer.
fn set_number<const OPCODE: Opcode>(fd: &OwnedFd, value: u32) -> Result<(), Errno> {
    let value = usize::try_from(value).map_err(|_| Errno::RANGE)?;
    // SAFETY: the opcodes given here take an integer, not a pointer.
    let set = unsafe { IntegerSetter::<OPCODE>::new_usize(value) };
    // SAFETY: the descriptor is one of /dev/net/tun, and the operation touches no memory of ours.
    unsafe { rustix::ioctl::ioctl(fd, set) }
}
