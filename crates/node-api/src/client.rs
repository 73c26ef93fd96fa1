//! The plugin's end of a daemon's socket: one line out, one line back.
//!
//! The daemon may be absent or silent, or send an invalid answer: every call ends by its deadline.
//! A daemon of a user that is neither root nor the plugin's own is not asked.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::line::{LineError, MAX_MESSAGE, Message};
use crate::{ready, socket, wait};

/// How long a call waits for an absent daemon that [may come](Daemon::start_timeout): one that is
/// being replaced comes back within seconds.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a call waits for an answer that decides what is done: a server may be slow, and kubelet
/// waits for minutes.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a call waits for the daemon to accept a notification, which the daemon otherwise finds
/// in its [inbox](crate::inbox).
pub const TELL_TIMEOUT: Duration = Duration::from_secs(1);

/// The part of a call's time that is kept for undoing what cannot be finished.
const RESERVE: Duration = Duration::from_secs(5);

/// The reason why no line was received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The connection was not made: nothing was sent.
    #[error("connect to {socket:?}")]
    Connect {
        /// Where the daemon should listen.
        socket: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The listener is neither root nor the user that we run as: nothing was sent.
    #[error("{socket:?} is served by user {uid}, which is neither root nor ours")]
    Stranger {
        /// Where it listens.
        socket: PathBuf,
        /// The listener's user.
        uid: u32,
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

impl ExchangeError {
    /// Reports whether no process listens at present.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        let kind = match self {
            ExchangeError::Connect { source, .. } => source.kind(),
            _ => return false,
        };
        matches!(
            kind,
            io::ErrorKind::NotFound
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::NotADirectory
        )
    }

    /// Reports whether the daemon may have received the line.
    #[must_use]
    pub fn may_be_heard(&self) -> bool {
        !matches!(self, ExchangeError::Connect { .. } | ExchangeError::Stranger { .. })
    }
}

/// The reason why there is no usable answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The request cannot be sent.
    #[error("send the request to {socket:?}")]
    Request {
        /// Where it would be sent.
        socket: PathBuf,
        /// The cause.
        source: LineError,
    },
    /// No answer arrived.
    #[error(transparent)]
    Exchange(ExchangeError),
    /// The answer is invalid.
    #[error("the answer on {socket:?} is not valid")]
    Answer {
        /// Where the daemon listens.
        socket: PathBuf,
        /// What is wrong with it.
        source: LineError,
    },
    /// The answer is to another question.
    #[error("the answer on {socket:?} is to another request")]
    Other {
        /// Where the daemon listens.
        socket: PathBuf,
    },
}

/// A daemon.
#[derive(Debug)]
pub struct Daemon {
    socket: PathBuf,
    /// When every exchange must be over.
    end: Option<Instant>,
    /// The longest line that is read.
    longest: usize,
}

impl Daemon {
    /// A daemon that is asked during a call. Every exchange ends some time before the call's
    /// deadline, so that the plugin has time to undo what it cannot finish.
    #[must_use]
    pub fn new(socket: PathBuf, deadline: Option<Instant>) -> Self {
        let end = deadline.map(|end| end.checked_sub(RESERVE).unwrap_or_else(Instant::now));
        Daemon { socket, end, longest: MAX_MESSAGE }
    }

    /// A daemon that sends lines of this length, and is asked until then at the latest.
    #[must_use]
    pub fn until(socket: PathBuf, end: Instant, longest: usize) -> Self {
        Daemon { socket, end: Some(end), longest }
    }

    /// Returns where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Reports whether the daemon was ready a moment ago ([`ready::was_ready`]).
    #[must_use]
    pub fn was_ready(&self) -> bool {
        ready::was_ready(&self.socket)
    }

    /// Returns how long a call that needs the daemon waits for it if it is absent: not at all if it
    /// has been gone for long ([`ready::may_come`]), so that what a runtime starts on a node that
    /// lost its daemon fails at once, with the reason.
    #[must_use]
    pub fn start_timeout(&self) -> Duration {
        if ready::may_come(&self.socket) { START_TIMEOUT } else { Duration::ZERO }
    }

    /// Sends a message and returns the one that comes back. The call waits for an absent daemon for
    /// `start`, and for an answer for `timeout`.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask<A: Message>(
        &self,
        request: &impl Message,
        start: Duration,
        timeout: Duration,
    ) -> Result<A, AskError> {
        let socket = || self.socket.clone();
        let line =
            request.to_line().map_err(|source| AskError::Request { socket: socket(), source })?;
        let line = self.exchange(&line, start, timeout).map_err(AskError::Exchange)?;
        A::from_line(&line).map_err(|source| AskError::Answer { socket: socket(), source })
    }

    /// Sends a line and returns the line that comes back; of a line that is too long, more bytes
    /// than the longest one has. The times are those of [`Daemon::ask`].
    ///
    /// # Errors
    /// [`ExchangeError`].
    fn exchange(
        &self,
        line: &[u8],
        start: Duration,
        timeout: Duration,
    ) -> Result<Vec<u8>, ExchangeError> {
        let socket = || self.socket.clone();
        let started = Instant::now();
        let end = |from: Instant, timeout| {
            self.end.map_or(from + timeout, |end: Instant| end.min(from + timeout))
        };
        let mut absent = None;
        let connected = wait::until(&self.socket, end(started, start), || {
            match self.connect(end(started, timeout), timeout) {
                Err(error) if error.is_absent() => {
                    absent = Some(error);
                    None
                }
                connected => Some(connected),
            }
        });
        let stream = match (connected, absent) {
            (Some(connected), _) => connected?,
            (None, Some(error)) => return Err(error),
            (None, None) => {
                let source = io::ErrorKind::NotFound.into();
                return Err(ExchangeError::Connect { socket: socket(), source });
            }
        };
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ExchangeError::Slow { socket: socket(), timeout }
            }
            _ => ExchangeError::Broken { socket: socket(), source },
        };
        let deadline = end(Instant::now(), timeout);
        let mut rest = line;
        while !rest.is_empty() {
            socket::limit(&stream, Timeout::Send, deadline).map_err(failed)?;
            match send(&stream, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        let mut answer = Vec::new();
        let mut buffer = [0; 16 * 1024];
        while !answer.contains(&b'\n') && answer.len() <= self.longest {
            if deadline < Instant::now() {
                return Err(ExchangeError::Slow { socket: socket(), timeout });
            }
            socket::limit(&stream, Timeout::Recv, deadline).map_err(failed)?;
            match recv(&stream, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => {
                    let kind = io::ErrorKind::UnexpectedEof;
                    return Err(failed(io::Error::new(kind, "it closed the connection")));
                }
                Ok((length, _)) => answer.extend_from_slice(&buffer[..length]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        if let Some(end) = answer.iter().position(|byte| *byte == b'\n') {
            answer.truncate(end + 1);
        }
        Ok(answer)
    }

    /// Connects; if the daemon's queue is full, waits until the deadline.
    fn connect(&self, deadline: Instant, timeout: Duration) -> Result<OwnedFd, ExchangeError> {
        let socket = || self.socket.clone();
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock => ExchangeError::Slow { socket: socket(), timeout },
            _ => ExchangeError::Connect { socket: socket(), source },
        };
        let stream = socket::connect_unix(&self.socket, deadline).map_err(failed)?;
        let uid = kernel::peer::of(&stream).map_err(failed)?.uid;
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            return Err(ExchangeError::Stranger { socket: socket(), uid });
        }
        Ok(stream)
    }
}
