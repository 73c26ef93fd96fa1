//! Looks up a link by name without making the kernel load modules.
//!
//! For every `ioctl` that names a missing link (SIOCGIFINDEX, behind `if_nametoindex`, and all its
//! kin), the kernel runs `modprobe netdev-NAME` and then `modprobe NAME`, and waits for both (linux
//! net/core/dev_ioctl.c, `dev_load`). A plugin asks whether a name is free, so that would be two
//! processes in every ADD. RTM_GETLINK loads nothing, but it waits for the lock for links (rtnl),
//! which a burst of ADDs holds nearly all the time.
//!
//! SO_BINDTODEVICE does neither: it looks the name up under RCU and returns ENODEV (linux
//! net/core/sock.c, `sock_setbindtodevice`). A netlink socket accepts the option and makes no use
//! of it.

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

/// The longest name (linux include/uapi/linux/if.h IFNAMSIZ, without the NUL). SO_BINDTODEVICE cuts
/// longer names, and would find another link.
const MAX_NAME: usize = libc::IFNAMSIZ - 1;

/// Returns the index of the link with this name or alternative name in the socket's namespace.
///
/// # Privileges
/// None for the lookup. Without CAP_NET_RAW the socket stays bound to the first link that it found.
pub(super) fn link_index(socket: BorrowedFd<'_>, name: &str) -> Result<Option<u32>, Errno> {
    if name.is_empty() || MAX_NAME < name.len() || name.contains('\0') {
        return Ok(None);
    }
    match bind(socket, name.as_bytes()) {
        Ok(()) => {
            let index = bound(socket);
            // May be refused: see below.
            let _ = bind(socket, b"");
            index.map(Some)
        }
        Err(Errno::NODEV) => Ok(None),
        // Bound by an earlier lookup, and without CAP_NET_RAW it stays so. The kernel looks the
        // name up before it returns this: the link exists, and nothing is loaded for it.
        Err(Errno::PERM) => index_of_existing(socket, name),
        Err(errno) => Err(errno),
    }
}

#[expect(clippy::disallowed_methods, reason = "the kernel has just said that the link exists")]
fn index_of_existing(socket: BorrowedFd<'_>, name: &str) -> Result<Option<u32>, Errno> {
    match rustix::net::netdevice::name_to_index(socket, name) {
        Ok(index) => Ok(Some(index)),
        Err(Errno::NODEV) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Binds the socket to a link, or to none when the name is empty. Of a longer name than a link may
/// have, the beginning counts.
pub(crate) fn bind(socket: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(name.len()).expect("at most IFNAMSIZ");
    // SAFETY: the pointer is to `length` bytes, which the kernel copies before the call returns.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            name.as_ptr().cast(),
            length,
        )
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Returns the index of the link that the socket is bound to.
fn bound(socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut index: u32 = 0;
    let mut length =
        libc::socklen_t::try_from(mem::size_of_val(&index)).expect("four bytes are few");
    // SAFETY: the kernel writes at most `length` bytes to `index`, any of which are a valid u32.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTOIFINDEX,
            ptr::from_mut(&mut index).cast(),
            &raw mut length,
        )
    };
    if done == 0 { Ok(index) } else { Err(last_errno()) }
}

fn last_errno() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).expect("a call that failed leaves its error")
}
