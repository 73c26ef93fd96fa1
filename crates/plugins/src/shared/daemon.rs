//! Requests to a daemon on this node over a Unix socket: one line out, one line back.
//!
//! The daemon may be absent or silent, or send an invalid answer: every call ends by its deadline.
//! If the daemon is absent, a notification that needs no answer is left in a folder beside the
//! socket ([`Daemon::leave`]); the daemon reads it when it is back. Only the sender knows what the
//! lines mean.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::sockopt::Timeout;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::time::{ClockId, clock_gettime};
use state::{Durability, FileError};

use super::{socket, wait};

/// The part of a call's time that is kept for undoing what cannot be finished.
const RESERVE: Duration = Duration::from_secs(5);

/// How long a daemon may be missing before STATUS reports it. A daemon that is being replaced is
/// back within seconds, or later if its image must be fetched. If the node became NotReady
/// meanwhile, others would consider its pods lost.
const MISSING: Duration = Duration::from_secs(60);

/// The reason why no line was received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ExchangeError {
    /// No process listens on the socket.
    #[error("connect to {socket:?}")]
    Absent {
        /// Where the daemon should listen.
        socket: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The daemon does not answer.
    #[error("no answer on {socket:?} within {timeout:?}")]
    Slow {
        /// Where the daemon listens.
        socket: PathBuf,
        /// How long the call waited.
        timeout: Duration,
    },
    /// The connection broke.
    #[error("no answer on {socket:?}")]
    Broken {
        /// Where the daemon listens.
        socket: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    /// Where it listens.
    pub(crate) socket: PathBuf,
    /// When the whole call must be over.
    deadline: Option<Instant>,
    /// The longest line that is read.
    longest: usize,
}

impl Daemon {
    pub(crate) fn new(socket: PathBuf, deadline: Option<Instant>, longest: usize) -> Self {
        Daemon { socket, deadline, longest }
    }

    /// Sends a line and returns the line that comes back; of a line that is too long, more bytes
    /// than the longest one has. The call waits for an absent daemon for `start`, and for an answer
    /// for `timeout`; both end some time before the call's deadline.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub(crate) fn exchange(
        &self,
        line: &[u8],
        start: Duration,
        timeout: Duration,
    ) -> Result<Vec<u8>, ExchangeError> {
        let socket = || self.socket.clone();
        let started = Instant::now();
        let last = self.deadline.map(|end| end.checked_sub(RESERVE).unwrap_or(started));
        let end =
            |from: Instant, timeout| last.map_or(from + timeout, |last| last.min(from + timeout));
        let mut refused = None;
        let connected =
            wait::until(&self.socket, end(started, start), || {
                match socket::connect_unix(&self.socket, end(started, timeout)) {
                    Err(error) if is_absent(&error) => {
                        refused = Some(error);
                        None
                    }
                    connected => Some(connected),
                }
            });
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ExchangeError::Slow { socket: socket(), timeout }
            }
            _ => ExchangeError::Broken { socket: socket(), source },
        };
        let stream = match (connected, refused) {
            (Some(connected), _) => connected.map_err(failed)?,
            (None, source) => {
                let source = source.unwrap_or_else(|| io::ErrorKind::NotFound.into());
                return Err(ExchangeError::Absent { socket: socket(), source });
            }
        };
        let deadline = end(Instant::now(), timeout);
        let mut rest = line;
        while !rest.is_empty() {
            socket::limit(&stream, Timeout::Send, deadline).map_err(failed)?;
            let sent =
                send(&stream, rest, SendFlags::NOSIGNAL).map_err(|errno| failed(errno.into()))?;
            rest = &rest[sent..];
        }
        let mut answer = Vec::new();
        let mut buffer = [0; 16 * 1024];
        while !answer.contains(&b'\n') && answer.len() <= self.longest {
            if deadline < Instant::now() {
                return Err(ExchangeError::Slow { socket: socket(), timeout });
            }
            socket::limit(&stream, Timeout::Recv, deadline).map_err(failed)?;
            match recv(&stream, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok((length, _)) => answer.extend_from_slice(&buffer[..length]),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        if let Some(end) = answer.iter().position(|byte| *byte == b'\n') {
            answer.truncate(end + 1);
        }
        Ok(answer)
    }

    /// Reports whether the daemon was ready a moment ago ([`was_ready`]).
    pub(crate) fn was_ready(&self) -> bool {
        was_ready(&self.socket)
    }

    /// Leaves a line in this folder, under this name, for a daemon that did not receive it.
    ///
    /// # Errors
    /// [`FileError`] when it cannot be written.
    pub(crate) fn leave(folder: &Path, name: &str, line: &[u8]) -> Result<(), FileError> {
        state::create_directory(folder, 0o700)?;
        state::write_atomic(&folder.join(name), line, 0o600, Durability::Volatile)
    }
}

/// Reports whether the daemon of a socket was ready a moment ago, by its own account
/// ([`cni::line::ready_file`]). An unreadable file counts as not ready.
pub(crate) fn was_ready(socket: &Path) -> bool {
    let text = state::read_optional(&cni::line::ready_file(socket)).ok().flatten();
    let text = text.and_then(|text| String::from_utf8(text).ok());
    let then = text.and_then(|text| text.trim().parse().ok()).map(Duration::from_millis);
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::try_from(now).unwrap_or_default();
    then.and_then(|then| now.checked_sub(then)).is_some_and(|missing| missing < MISSING)
}

/// Reports whether no process listens at present.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory
    )
}

/// Returns where a daemon listens that has this socket by default, if its folder is `run`.
pub(crate) fn socket_in(run: &Path, by_default: &str) -> PathBuf {
    run.join(Path::new(by_default).file_name().expect("it is a file"))
}
