//! Brings `lo` up without a program, since every lab does it.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};

/// A message of rtnetlink and its answer begin with a header of this size (`man 7 netlink`).
const HEADER: usize = 16;

const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST_AND_ACK: u16 = 5;
const IFF_UP: u32 = 1;

/// The number of `lo` in every namespace.
const INDEX: u32 = 1;

/// Brings the loopback interface of the calling thread's namespace up.
pub(super) fn up() -> io::Result<()> {
    let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    rustix::net::send(&socket, &request(), SendFlags::empty())?;
    let mut answer = vec![0; 512];
    let (length, _) = rustix::net::recv(&socket, &mut *answer, RecvFlags::empty())?;
    // The acknowledgement begins with an error number, which is 0 on success.
    let code = answer[..length].get(HEADER..HEADER + 4).and_then(|code| code.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// `struct nlmsghdr`, and `struct ifinfomsg` with the flags to set.
fn request() -> Vec<u8> {
    let mut request = Vec::with_capacity(2 * HEADER);
    request.extend(32_u32.to_ne_bytes()); // its length
    request.extend(RTM_NEWLINK.to_ne_bytes());
    request.extend(NLM_F_REQUEST_AND_ACK.to_ne_bytes());
    for number in [1, 0, 0, INDEX, IFF_UP, IFF_UP] {
        // Sequence and port; family and type; index, flags and which of them change.
        request.extend(u32::to_ne_bytes(number));
    }
    request
}
