//! The plugin's end of the daemon's socket.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use node_api::wait;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

use super::protocol::{Answer, Ask, MAX_LINE, Question, Reply, VERSION, to_line};

/// The shortest timeout that can be set: zero would mean waiting forever.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The daemon did not get the request, or did not answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AskError {
    /// No process listens.
    #[error("error dialing DHCP daemon: dial unix {path}: connect", path = path.display())]
    Dial {
        /// The socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The listener is neither root nor the user that we run as.
    #[error("error dialing DHCP daemon: {path} is served by user {uid}, which is neither root nor ours", path = path.display())]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// The listener's user.
        uid: u32,
    },
    /// It disconnected before it answered.
    #[error("the DHCP daemon at {path} did not answer", path = path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It did not answer in time.
    #[error("the DHCP daemon at {path} did not answer within {timeout:?}", path = path.display())]
    Slow {
        /// The socket.
        path: PathBuf,
        /// How long we waited.
        timeout: Duration,
    },
    /// Its answer is invalid.
    #[error("the DHCP daemon at {path} answered what is no answer: {reason}", path = path.display())]
    Garbage {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl AskError {
    /// Reports whether no daemon is running, or it ended during the request.
    #[must_use]
    pub fn is_daemon_down(&self) -> bool {
        matches!(self, AskError::Dial { .. } | AskError::Broken { .. })
    }

    /// Reports whether no daemon listens, or the daemon ended during the request, as happens while
    /// it is replaced.
    pub(super) fn is_daemon_away(&self) -> bool {
        match self {
            AskError::Dial { source, .. } => is_absent(source),
            AskError::Broken { .. } => true,
            _ => false,
        }
    }

    /// Reports whether it did not answer in time.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        matches!(self, AskError::Slow { .. })
    }
}

/// Sends a request to the daemon and waits for its answer.
///
/// # Errors
/// [`AskError`].
pub fn ask(path: &Path, ask: &Ask, timeout: Duration) -> Result<Answer, AskError> {
    ask_when_there(path, ask, Duration::ZERO, timeout)
}

/// Does the same as [`ask`], and waits for `start` if no daemon is there.
///
/// # Errors
/// [`AskError`].
pub(super) fn ask_when_there(
    path: &Path,
    ask: &Ask,
    start: Duration,
    timeout: Duration,
) -> Result<Answer, AskError> {
    let began = Instant::now();
    let deadline = began + timeout;
    let mut absent = None;
    let connected = wait::until(path, began + start.min(timeout), || {
        let left = left(deadline);
        match connect(path, left) {
            Err(AskError::Dial { source, .. }) if is_absent(&source) => {
                absent = Some(source);
                None
            }
            connected => Some(connected),
        }
    });
    let mut stream = match (connected, absent) {
        (Some(connected), _) => connected?,
        (None, source) => {
            let source = source.unwrap_or_else(|| io::ErrorKind::NotFound.into());
            return Err(AskError::Dial { path: path.to_owned(), source });
        }
    };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            AskError::Slow { path: path.to_owned(), timeout }
        }
        _ => AskError::Broken { path: path.to_owned(), source },
    };
    stream.set_write_timeout(Some(left(deadline))).map_err(failed)?;
    stream.write_all(&to_line(&Question::new(ask.clone()))).map_err(failed)?;
    let mut line = Vec::new();
    let mut buffer = [0; 16 * 1024];
    while !line.contains(&b'\n') && line.len() < MAX_LINE {
        stream.set_read_timeout(Some(left(deadline))).map_err(failed)?;
        match stream.read(&mut buffer) {
            Ok(0) => {
                let source =
                    io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection");
                return Err(failed(source));
            }
            Ok(length) => line.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
        if deadline < Instant::now() {
            return Err(AskError::Slow { path: path.to_owned(), timeout });
        }
    }
    let garbage = |reason: String| AskError::Garbage { path: path.to_owned(), reason };
    let reply: Reply = serde_json::from_slice(&line).map_err(|error| garbage(error.to_string()))?;
    if reply.version != VERSION {
        return Err(garbage(format!("it is of version {}, and this of {VERSION}", reply.version)));
    }
    Ok(reply.answer)
}

/// Reports whether no process listens at present.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory
    )
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(SHORTEST_WAIT)
}

/// Connects; if the daemon's queue is full, waits at most `timeout`.
fn connect(path: &Path, timeout: Duration) -> Result<UnixStream, AskError> {
    let failed = |errno: rustix::io::Errno| match errno {
        rustix::io::Errno::AGAIN => AskError::Slow { path: path.to_owned(), timeout },
        errno => AskError::Dial { path: path.to_owned(), source: errno.into() },
    };
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(failed)?;
    let wait = timeout.max(SHORTEST_WAIT);
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(wait)).map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    rustix::net::connect(&socket, &address).map_err(failed)?;
    let uid = sockopt::socket_peercred(&socket).map_err(failed)?.uid.as_raw();
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return Err(AskError::Stranger { path: path.to_owned(), uid });
    }
    Ok(socket.into())
}
