//! A byte stream with a deadline.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::error::OvsdbError;
use crate::remote::Remote;

/// The shortest timeout set on a socket: zero would mean for ever.
const SHORTEST: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<crate::tls::TlsStream>),
}

impl Stream {
    /// Connects by a deadline.
    pub(crate) fn connect(remote: &Remote, until: Instant) -> Result<Self, OvsdbError> {
        let name = || remote.to_string();
        let failed = |source| match is_timeout(&source) {
            true => OvsdbError::Deadline { remote: name(), doing: "connect" },
            false => OvsdbError::Connect { remote: name(), source },
        };
        match remote {
            Remote::Unix(path) => {
                left(until).and_then(|wait| connect_unix(path, wait)).map(Stream::Unix)
            }
            Remote::Tcp(address) => connect_tcp(address, until).map(Stream::Tcp),
            #[cfg(feature = "tls")]
            Remote::Tls(address, keys) => {
                // Before connecting.
                let client = crate::tls::prepare(remote, address, keys.as_ref())?;
                let stream = connect_tcp(address, until).map_err(failed)?;
                return crate::tls::TlsStream::begin(remote, client, stream, until)
                    .map(|stream| Stream::Tls(Box::new(stream)));
            }
            #[cfg(not(feature = "tls"))]
            Remote::Tls(..) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this build has no TLS: let ovsdb-server listen on a Unix socket",
            )),
        }
        .map_err(failed)
    }

    /// Reads what has arrived, waiting until the deadline for the first byte. 0 is the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8], until: Instant) -> io::Result<usize> {
        let wait = Some(left(until)?);
        match self {
            Stream::Unix(stream) => {
                stream.set_read_timeout(wait)?;
                stream.read(buffer)
            }
            Stream::Tcp(stream) => {
                stream.set_read_timeout(wait)?;
                stream.read(buffer)
            }
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.read(buffer, until),
        }
    }

    /// Writes everything by the deadline.
    pub(crate) fn write_all(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let wait = Some(left(until)?);
            let written = match self {
                Stream::Unix(stream) => {
                    stream.set_write_timeout(wait)?;
                    stream.write(bytes)
                }
                Stream::Tcp(stream) => {
                    stream.set_write_timeout(wait)?;
                    stream.write(bytes)
                }
                #[cfg(feature = "tls")]
                Stream::Tls(stream) => stream.write(bytes, until),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn connect_tcp(address: &SocketAddr, until: Instant) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, left(until)?)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// When a server does not accept and its queue is full, `connect` waits for the send timeout at
/// most (`man 7 unix`, linux net/unix/af_unix.c `unix_stream_connect`).
fn connect_unix(path: &Path, wait: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(wait))?;
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

/// Returns the time left until a deadline.
pub(crate) fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left.max(SHORTEST)),
    }
}

/// Says whether an error means that the deadline passed.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}
