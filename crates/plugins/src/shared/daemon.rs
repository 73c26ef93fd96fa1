//! Asking a daemon on this node: a line there, a line back, over a Unix socket.
//!
//! The daemon may be away, silent, or say what makes no sense: every call ends by its deadline. What is only told, not asked, is left in a folder
//! beside the socket when nobody hears it ([`Daemon::leave`]); the daemon reads it when it is back. What the lines mean is their sender's to know.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::sockopt::Timeout;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::time::{ClockId, clock_gettime};
use state::{Durability, FileError};

use super::{socket, wait};

/// What of a call's time is kept for undoing what cannot be finished.
const RESERVE: Duration = Duration::from_secs(5);

/// How long a daemon may be missing before STATUS says so. A daemon that is being replaced is back within seconds, with its
/// image to be fetched perhaps; a node that is NotReady meanwhile would have its pods taken for lost by others.
const MISSING: Duration = Duration::from_secs(60);

/// Says why no line came.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ExchangeError {
    /// Nobody listens.
    #[error("connect to {socket:?}")]
    Absent {
        /// Where it should be.
        socket: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It keeps silent.
    #[error("no answer on {socket:?} within {timeout:?}")]
    Slow {
        /// Where it is.
        socket: PathBuf,
        /// How long it was waited for.
        timeout: Duration,
    },
    /// The connection broke.
    #[error("no answer on {socket:?}")]
    Broken {
        /// Where it is.
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

    /// Sends a line and returns the line that comes back, or more than the longest one. A daemon that is not there is waited for as long as
    /// `start`, an answer as long as `timeout`; both end some time before the call's deadline.
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

    /// Says whether it could do its work a moment ago ([`was_ready`]).
    pub(crate) fn was_ready(&self) -> bool {
        was_ready(&self.socket)
    }

    /// Leaves a line in this folder, under this name, for a daemon that did not hear it.
    ///
    /// # Errors
    /// [`FileError`] when it cannot be written.
    pub(crate) fn leave(folder: &Path, name: &str, line: &[u8]) -> Result<(), FileError> {
        state::create_directory(folder, 0o700)?;
        state::write_atomic(&folder.join(name), line, 0o600, Durability::Volatile)
    }
}

/// Says whether the daemon of a socket could do its work a moment ago, as it said itself ([`cni::line::ready_file`]). What
/// cannot be read says no.
pub(crate) fn was_ready(socket: &Path) -> bool {
    let text = state::read_optional(&cni::line::ready_file(socket)).ok().flatten();
    let text = text.and_then(|text| String::from_utf8(text).ok());
    let then = text.and_then(|text| text.trim().parse().ok()).map(Duration::from_millis);
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::try_from(now).unwrap_or_default();
    then.and_then(|then| now.checked_sub(then)).is_some_and(|missing| missing < MISSING)
}

/// Says whether nobody listens, now.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory
    )
}

/// Where a daemon listens whose socket is this by default, if its folder is that one.
pub(crate) fn socket_in(run: &Path, by_default: &str) -> PathBuf {
    run.join(Path::new(by_default).file_name().expect("it is a file"))
}
