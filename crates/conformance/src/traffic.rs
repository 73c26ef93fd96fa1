//! Real traffic between namespaces, without other programs.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use kernel::netns::{Netns, within};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send,
    socket_with,
};

use crate::case::{OrBroken as _, Outcome};

/// The timeout of a connection: it includes address resolution and a lost first packet.
const TIMEOUT: Duration = Duration::from_secs(4);

/// The timeout of one attempt.
const TRY: Duration = Duration::from_secs(1);

/// What a server sends.
const GREETING: &[u8] = b"conformance";

/// A server in a namespace that answers on TCP and UDP until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    port: u16,
}

impl Server {
    /// Starts it on a port, in both families.
    pub(crate) fn start(netns: &Netns, port: u16) -> Outcome<Self> {
        let bound = within(netns, || -> io::Result<_> {
            // An IPv6 socket takes IPv4 as well.
            let any: IpAddr = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
                Ok(_) => Ipv6Addr::UNSPECIFIED.into(),
                Err(_) => Ipv4Addr::UNSPECIFIED.into(),
            };
            Ok((TcpListener::bind((any, port))?, UdpSocket::bind((any, port))?))
        });
        let bound = bound.or_broken("enter a container")?;
        let (tcp, udp) = bound.or_broken("start a server")?;
        // The threads end with the case's process.
        thread::spawn(move || serve_tcp(&tcp));
        thread::spawn(move || serve_udp(&udp));
        Ok(Server { port })
    }

    pub(crate) fn at(&self, address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, self.port)
    }
}

fn serve_tcp(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        let mut stream = stream;
        // Ignore errors: the client is gone.
        let _ = stream.write_all(GREETING);
    }
}

fn serve_udp(socket: &UdpSocket) {
    let mut buffer = [0; 64];
    while let Ok((_, from)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(GREETING, from);
    }
}

/// Tries to reach an address by TCP from a namespace; returns why it cannot be reached.
pub(crate) fn tcp(from: &Netns, to: SocketAddr) -> Outcome<Result<(), String>> {
    attempt(from, || {
        let mut stream = TcpStream::connect_timeout(&to, TRY)?;
        stream.set_read_timeout(Some(TRY))?;
        let mut greeting = [0; GREETING.len()];
        stream.read_exact(&mut greeting)
    })
}

/// Tries to reach an address by UDP from a namespace; returns why it cannot be reached.
pub(crate) fn udp(from: &Netns, to: SocketAddr) -> Outcome<Result<(), String>> {
    attempt(from, || {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_read_timeout(Some(TRY))?;
        socket.connect(to)?;
        socket.send(b"hello")?;
        socket.recv(&mut [0; 64]).map(|_| ())
    })
}

/// Pings an address from a namespace; returns why there is no answer.
pub(crate) fn ping(from: &Netns, to: IpAddr) -> Outcome<Result<(), String>> {
    attempt(from, || echoed(to))
}

/// Sends one echo request (RFC 792, RFC 4443 §4) and waits for its reply.
fn echoed(to: IpAddr) -> io::Result<()> {
    let (family, protocol, request, reply) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8, 0),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129),
    };
    // Not a socket for pings: a new namespace lets no user open one, not even root
    // (`net.ipv4.ping_group_range`).
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))?;
    connect(&socket, &SocketAddr::new(to, 0))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(TRY))?;
    let end = Instant::now() + TRY;
    send(&socket, &echo(request), SendFlags::empty())?;
    let mut buffer = [0; 256];
    while Instant::now() < end {
        let (length, _) = recv(&socket, &mut buffer, RecvFlags::empty())?;
        let mut message = &buffer[..length];
        if to.is_ipv4() {
            // IPv4's sockets return the header too; its length is in the first byte, in words.
            let header = message.first().map_or(0, |first| usize::from(first & 0xf) * 4);
            message = message.get(header..).unwrap_or_default();
        }
        // A request to the own namespace is received as well.
        if message.first() == Some(&reply) && message.ends_with(GREETING) {
            return Ok(());
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Returns an echo request: type, code, checksum, identifier, sequence number, and our greeting.
/// The kernel computes the checksum of ICMPv6.
fn echo(kind: u8) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0, 0x43, 0x4e, 0, 1], GREETING].concat();
    let sum: u32 = message
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let [_, _, checksum @ ..] = (!folded).to_be_bytes();
    message[2..4].copy_from_slice(&checksum);
    message
}

/// Tries until it works or the timeout is over.
fn attempt(from: &Netns, once: impl Fn() -> io::Result<()>) -> Outcome<Result<(), String>> {
    let end = Instant::now() + TIMEOUT;
    within(from, || {
        loop {
            match once() {
                Ok(()) => return Ok(()),
                Err(error) if end <= Instant::now() => return Err(error.to_string()),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    })
    .or_broken("enter a namespace")
}

#[cfg(test)]
mod tests {
    use super::echo;

    /// The sum over a message with its checksum is all ones (RFC 1071).
    #[test]
    fn the_checksum_of_a_request_is_right() {
        let message = echo(8);
        let words = message.chunks(2);
        let words =
            words.map(|pair| (u32::from(pair[0]) << 8) + pair.get(1).map_or(0, |b| u32::from(*b)));
        let sum: u32 = words.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
