//! Lists the sockets of a network namespace on which programs wait for peers: TCP sockets that
//! listen, and UDP sockets that are bound and not connected.
//!
//! The kernel's socket monitor (`man 7 sock_diag`) selects them, so that a host with many
//! connections costs no more. A kernel without it has tables in `/proc`, which also list
//! connections.
//!
//! **Namespace**: the calling thread's.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::listen::{self, Transport};
use crate::netlink::{NetlinkError, Request, Socket};
use crate::route::{AF_INET, AF_INET6, ip_from};
use crate::wire::{self, Message, Writer};

/// `linux include/uapi/linux/netlink.h` NETLINK_SOCK_DIAG.
const NETLINK_SOCK_DIAG: isize = 4;
/// `linux include/uapi/linux/sock_diag.h` SOCK_DIAG_BY_FAMILY.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Sizes of `struct inet_diag_req_v2` and `struct inet_diag_msg` (`linux
/// include/uapi/linux/inet_diag.h`).
const REQUEST: usize = 56;
const ANSWER: usize = 72;
/// INET_DIAG_SKV6ONLY.
const SKV6ONLY: u16 = 11;
/// `linux include/net/tcp_states.h`: TCP_CLOSE is also the state of a UDP socket without a peer.
const TCP_CLOSE: u32 = 7;
const TCP_LISTEN: u32 = 10;
/// Where the tables of the calling thread's network namespace are.
const NET: &str = "/proc/thread-self/net";

/// A socket on which a program waits for others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct WaitingSocket {
    /// Its address and port.
    pub at: SocketAddr,
    /// The protocol: TCP or UDP.
    pub is_tcp: bool,
    /// Whether an IPv6 socket does not serve IPv4. From `/proc` it is not known, and false.
    pub v6only: bool,
    /// Its inode, by which a process's descriptors name it; 0 if no process has it.
    pub inode: u32,
    /// How many connections wait to be accepted, and how many may before the kernel drops further
    /// ones (`listen(2)`, backlog). `None` for UDP, and from `/proc`.
    pub unaccepted: Option<(u32, u32)>,
}

/// The sockets that were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketList {
    /// The sockets, sorted by address.
    pub sockets: Vec<WaitingSocket>,
    /// There are more.
    pub more: bool,
}

/// Lists the sockets, but not many more than `limit`.
///
/// # Errors
/// Those of [`NetlinkError`].
///
/// # Privileges
/// None.
pub fn waiting(limit: usize) -> Result<SocketList, NetlinkError> {
    let mut found = SocketList::default();
    let mut socket = Socket::open(NETLINK_SOCK_DIAG)?;
    for transport in [Transport::Tcp, Transport::Udp] {
        for family in [AF_INET, AF_INET6] {
            let left = limit.saturating_sub(found.sockets.len());
            match ask(&mut socket, transport, family, left) {
                Ok((sockets, more)) => {
                    found.sockets.extend(sockets);
                    found.more |= more;
                }
                // The kernel has no monitor for the protocol, or for any.
                Err(error @ NetlinkError::Refused { .. }) if !error.is_permission() => {
                    let sockets = in_proc(transport, family);
                    found.more |= left < sockets.len();
                    found.sockets.extend(sockets.into_iter().take(left));
                }
                Err(error) => return Err(error),
            }
        }
    }
    found.sockets.sort_unstable();
    Ok(found)
}

fn ask(
    socket: &mut Socket,
    transport: Transport,
    family: u8,
    limit: usize,
) -> Result<(Vec<WaitingSocket>, bool), NetlinkError> {
    let (protocol, state, is_tcp) = match transport {
        Transport::Tcp => (6, TCP_LISTEN, true),
        _ => (17, TCP_CLOSE, false),
    };
    let body = |writer: &mut Writer| {
        let mut request = [0; REQUEST];
        request[0] = family;
        request[1] = protocol;
        request[4..8].copy_from_slice(&(1_u32 << state).to_ne_bytes());
        writer.raw(&request);
    };
    let request = Request {
        operation: &"list the sockets that programs wait at",
        kind: SOCK_DIAG_BY_FAMILY,
        flags: 0,
        body: &body,
    };
    socket.dump_at_most(&request, limit, |_| 1, |message| decode(message, is_tcp))
}

/// Reads `struct inet_diag_msg`.
fn decode(message: &Message<'_>, is_tcp: bool) -> Option<WaitingSocket> {
    if message.kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let body = message.body.get(..ANSWER)?;
    let port = u16::from_be_bytes(body.get(4..6)?.try_into().ok()?);
    let address = match body[0] {
        AF_INET => ip_from(&body[8..12])?,
        AF_INET6 => ip_from(&body[8..24])?,
        _ => return None,
    };
    let mut attributes = message.attributes(ANSWER);
    let v6only = attributes.find(|attribute| attribute.kind == SKV6ONLY).and_then(|one| one.u8());
    // Of a socket that listens, these are not lengths in bytes (linux net/ipv4/tcp_diag.c
    // `tcp_diag_get_info`).
    let queued = (wire::u32_at(body, 56)?, wire::u32_at(body, 60)?);
    let waiting = WaitingSocket {
        at: SocketAddr::new(address, port),
        is_tcp,
        v6only: v6only == Some(1),
        inode: wire::u32_at(body, 68)?,
        unaccepted: is_tcp.then_some(queued),
    };
    // A UDP socket that is not bound has no port.
    (port != 0).then_some(waiting)
}

/// Reads the tables (linux Documentation/networking/proc_net_tcp.rst).
fn in_proc(transport: Transport, family: u8) -> Vec<WaitingSocket> {
    let (name, state) = match (transport, family) {
        (Transport::Tcp, AF_INET) => ("tcp", "0A"),
        (Transport::Tcp, _) => ("tcp6", "0A"),
        (_, AF_INET) => ("udp", "07"),
        _ => ("udp6", "07"),
    };
    let table = fs::read_to_string(Path::new(NET).join(name)).unwrap_or_default();
    let is_tcp = transport == Transport::Tcp;
    table.lines().skip(1).filter_map(|line| of_line(line, state, is_tcp, family)).collect()
}

fn of_line(line: &str, state: &str, is_tcp: bool, family: u8) -> Option<WaitingSocket> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    if *fields.get(3)? != state {
        return None;
    }
    let (address, port) = fields.get(1)?.rsplit_once(':')?;
    // An address of the other family is written as one of the table's.
    let address = match listen::address_of(address)? {
        IpAddr::V4(v4) if family == AF_INET6 => v4.to_ipv6_mapped().into(),
        address => address,
    };
    let port = u16::from_str_radix(port, 16).ok().filter(|port| *port != 0)?;
    let at = SocketAddr::new(address, port);
    let inode = fields.get(9)?.parse().ok()?;
    Some(WaitingSocket { at, is_tcp, v6only: false, inode, unaccepted: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_proc_are_read() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  \
                    1000        0 31337 1 0000000000000000 100 0 0 10 0";
        let read = of_line(line, "0A", true, AF_INET).unwrap();
        assert_eq!((read.inode, read.is_tcp, read.v6only), (31337, true, false));
        assert_eq!(read.at.port(), 8080);
        if cfg!(target_endian = "little") {
            assert_eq!(read.at, "127.0.0.1:8080".parse().unwrap());
        }
        // A connection.
        assert_eq!(of_line(&line.replace(" 0A ", " 01 "), "0A", true, AF_INET), None);
        let any = line.replace("0100007F", "00000000000000000000000000000000");
        let read = of_line(&any, "0A", true, AF_INET6).unwrap();
        assert_eq!(read.at, "[::]:8080".parse().unwrap());
        assert_eq!(of_line("garbage", "0A", true, AF_INET), None);
    }

    #[test]
    fn an_answer_is_read() {
        let mut body = [0; ANSWER];
        body[0] = AF_INET6;
        body[4..6].copy_from_slice(&80_u16.to_be_bytes());
        body[56..60].copy_from_slice(&2_u32.to_ne_bytes());
        body[60..64].copy_from_slice(&128_u32.to_ne_bytes());
        body[68..72].copy_from_slice(&7_u32.to_ne_bytes());
        let mut writer = Writer::new();
        writer.raw(&body);
        writer.put_u8(SKV6ONLY, 1);
        let message = Message { kind: SOCK_DIAG_BY_FAMILY, flags: 0, seq: 0, body: writer.bytes() };
        let at = "[::]:80".parse().unwrap();
        let unaccepted = Some((2, 128));
        let expected = WaitingSocket { at, is_tcp: true, v6only: true, inode: 7, unaccepted };
        assert_eq!(decode(&message, true), Some(expected.clone()));
        let expected = WaitingSocket { is_tcp: false, unaccepted: None, ..expected };
        assert_eq!(decode(&message, false), Some(expected));
    }

    proptest::proptest! {
        #[test]
        fn reading_anything_ends(body: Vec<u8>, line: String) {
            let message = Message { kind: SOCK_DIAG_BY_FAMILY, flags: 0, seq: 0, body: &body };
            decode(&message, false);
            of_line(&line, "07", false, AF_INET);
        }
    }
}
