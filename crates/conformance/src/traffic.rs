//! Real traffic between namespaces, without any program.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use kernel::netns::{Netns, within};

use crate::case::{OrBroken as _, Outcome};

/// How long a connection may take: address resolution and a lost first packet included.
const PATIENCE: Duration = Duration::from_secs(4);

/// How long one try may take.
const TRY: Duration = Duration::from_secs(1);

/// What a server says.
const GREETING: &[u8] = b"conformance";

/// A server in a namespace that answers on TCP and UDP until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    port: u16,
}

impl Server {
    /// Starts it, in both families, on a port.
    pub(crate) fn start(netns: &Netns, port: u16) -> Outcome<Self> {
        let bound = within(netns, || -> io::Result<_> {
            // IPv6's socket takes IPv4 as well.
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
        // A client that is gone is none of ours.
        let _ = stream.write_all(GREETING);
    }
}

fn serve_udp(socket: &UdpSocket) {
    let mut buffer = [0; 64];
    while let Ok((_, from)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(GREETING, from);
    }
}

/// Whether an address is reached by TCP from a namespace; otherwise why not.
pub(crate) fn tcp(from: &Netns, to: SocketAddr) -> Outcome<Result<(), String>> {
    attempt(from, || {
        let mut stream = TcpStream::connect_timeout(&to, TRY)?;
        stream.set_read_timeout(Some(TRY))?;
        let mut greeting = [0; GREETING.len()];
        stream.read_exact(&mut greeting)
    })
}

/// Whether an address is reached by UDP from a namespace; otherwise why not.
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

/// Tries until it works or patience is over.
fn attempt(from: &Netns, once: impl Fn() -> io::Result<()>) -> Outcome<Result<(), String>> {
    let end = Instant::now() + PATIENCE;
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
