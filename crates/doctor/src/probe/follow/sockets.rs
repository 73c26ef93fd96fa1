//! The sockets that send probes: each has a port of its own, which is known before it sends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use diagnose::{Answer, Probe};
use kernel::nft::trace::{Flow, Protocol};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::super::micros;
use super::TIMEOUT;

/// The distance of the identifiers of followed echo requests from the process's others.
const FIRST_IDENTIFIER: u16 = 0x4000;

/// How it is sent.
#[derive(Debug)]
pub(super) enum Packet {
    /// Its socket is made when it is sent.
    Echo,
    /// A TCP socket that does not block.
    Connect(OwnedFd),
    /// A UDP socket that is connected to the server.
    Name(UdpSocket),
}

/// Makes the socket that sends, in the calling thread's namespace, so that its port is known before
/// it sends.
pub(super) fn packet(asked: &Probe, to: SocketAddr, order: u16) -> Option<(Packet, Flow)> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting it sends nothing, and tells which address a packet would have.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    let mut at = to;
    at.set_port(to.port().max(1));
    socket.connect(at).ok()?;
    let source = socket.local_addr().ok()?;
    let (packet, protocol, source_port) = match asked {
        Probe::Echo { .. } => (Packet::Echo, Protocol::Echo, identifier(order)),
        Probe::Name { .. } => (Packet::Name(socket), Protocol::Udp, source.port()),
        Probe::Connect { .. } | Probe::RarePort { .. } | Probe::NameByTcp { .. } => {
            let (socket, port) = tcp_socket(any).ok()?;
            (Packet::Connect(socket), Protocol::Tcp, port)
        }
        _ => return None,
    };
    let flow = Flow {
        protocol,
        source: source.ip(),
        source_port,
        destination: to.ip(),
        destination_port: to.port(),
    };
    Some((packet, flow))
}

/// Makes a TCP socket that does not block; returns also its port.
fn tcp_socket(any: IpAddr) -> Result<(OwnedFd, u16), Errno> {
    let family = if any.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddr::new(any, 0))?;
    let at = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    Ok((socket, at.port()))
}

/// Returns an identifier of echo requests that neither another probe nor an earlier request of
/// [`kernel::echo`] has: connection tracking on the way would remember those.
fn identifier(order: u16) -> u16 {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    u16::from_be_bytes([high, low]).wrapping_add(FIRST_IDENTIFIER).wrapping_add(order)
}

/// Begins a connection, and resets it.
pub(super) fn connect(socket: &OwnedFd, to: SocketAddr) -> Option<Answer> {
    let began = Instant::now();
    match rustix::net::connect(socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(Errno::CONNREFUSED) => return Some(Answer::Refused),
        Err(_) => return None,
    }
    let timeout = Timespec::try_from(TIMEOUT).ok();
    let ready = poll(&mut [PollFd::new(socket, PollFlags::OUT)], timeout.as_ref()).ok()?;
    if ready == 0 {
        return None;
    }
    match sockopt::socket_error(socket).ok()? {
        Ok(()) => {
            // Without this the connection would be closed in order, and stay for a while.
            let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
            Some(Answer::Reached { after_us: micros(began.elapsed()) })
        }
        Err(Errno::CONNREFUSED) => Some(Answer::Refused),
        Err(_) => None,
    }
}
