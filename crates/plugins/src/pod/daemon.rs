//! The node's daemon, which knows the cluster's API, as far as the plugin has to do with it.
//!
//! It may be away, silent, or say what makes no sense: every call ends by its deadline, and nothing that is only told, not asked, fails for it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::{Error, code};
use npwg::wire::{self, Answer, Refusal, Request, WireError};
use rustix::net::sockopt::Timeout;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use state::Durability;

use super::wait;
use crate::shared::socket;

/// How long a daemon is waited for that is not there: one that is being replaced comes back within seconds.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// How long an answer is waited for that decides what is done: the API server may be slow, and kubelet waits for minutes.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// How long the daemon is waited for when it is only told something, which it finds in a file otherwise.
const TELL_PATIENCE: Duration = Duration::from_secs(1);

/// What of a call's time is kept for undoing what cannot be finished.
const RESERVE: Duration = Duration::from_secs(5);

/// Says why the daemon gave no answer that counts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum AskError {
    /// Nobody listens.
    #[error("connect to {socket:?}")]
    Absent {
        /// Where it should be.
        socket: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It keeps silent.
    #[error("no answer on {socket:?} within {patience:?}")]
    Slow {
        /// Where it is.
        socket: PathBuf,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The connection broke.
    #[error("no answer on {socket:?}")]
    Broken {
        /// Where it is.
        socket: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// What came is no answer.
    #[error("the answer on {socket:?} is none")]
    Wire {
        /// Where it is.
        socket: PathBuf,
        /// What it is.
        source: WireError,
    },
    /// It answered what was not asked.
    #[error("the answer on {socket:?} is one to another question")]
    Other {
        /// Where it is.
        socket: PathBuf,
    },
    /// What is to be said is too much.
    #[error("say it on {socket:?}")]
    Unsaid {
        /// Where it would be said.
        socket: PathBuf,
        /// Why.
        source: WireError,
    },
}

impl AskError {
    /// The error to end with: it passes when the daemon is back.
    pub(super) fn to_cni(&self) -> Error {
        Error::from_chain(code::TRY_AGAIN_LATER, self)
            .context("netwrightd does not say which networks the pod is to have")
            .with_details("is \"netwrightd multinet\" running? its own log says more")
    }
}

/// The daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    socket: PathBuf,
    /// When the whole call must be over.
    deadline: Option<Instant>,
}

impl Daemon {
    pub(super) fn new(socket: PathBuf, deadline: Option<Instant>) -> Self {
        Daemon { socket, deadline }
    }

    /// Asks, and waits for a daemon that is not there yet.
    ///
    /// # Errors
    /// [`AskError`].
    pub(super) fn ask(&self, request: &Request) -> Result<Answer, AskError> {
        self.exchange(request, START_PATIENCE, ANSWER_PATIENCE)
    }

    /// Asks a daemon that is there.
    ///
    /// # Errors
    /// [`AskError`].
    pub(super) fn ask_now(&self, request: &Request) -> Result<Answer, AskError> {
        self.exchange(request, Duration::ZERO, TELL_PATIENCE)
    }

    /// Tells what came of an ADD and waits until it is done with. A daemon that does not hear it finds it in a file.
    ///
    /// # Errors
    /// Why the daemon will not have it so.
    pub(super) fn report(&self, request: &Request) -> Result<(), Refusal> {
        match self.exchange(request, Duration::ZERO, ANSWER_PATIENCE) {
            Ok(Answer::Ok) => Ok(()),
            Ok(Answer::Refused(refusal)) => Err(refusal),
            Ok(Answer::Plan(_)) | Err(_) => {
                self.leave(request);
                Ok(())
            }
        }
    }

    /// Tells, and does not care what the daemon says to it.
    pub(super) fn tell(&self, request: &Request) {
        if !matches!(self.ask_now(request), Ok(Answer::Ok)) {
            self.leave(request);
        }
    }

    /// Leaves a message for a daemon that did not hear it. Where that fails too, it is told by what is there: nothing depends on it.
    fn leave(&self, request: &Request) {
        let folder = wire::todo_dir(&self.socket);
        let (Some(name), Ok(line)) = (request.todo_name(), wire::write_request(request)) else {
            return;
        };
        let left = state::create_directory(&folder, 0o700).and_then(|()| {
            state::write_atomic(&folder.join(name), &line, 0o600, Durability::Volatile)
        });
        if let Err(error) = left {
            tracing::warn!(err = %error, "could not leave a message for the daemon");
        }
    }

    fn exchange(
        &self,
        request: &Request,
        start: Duration,
        patience: Duration,
    ) -> Result<Answer, AskError> {
        let socket = || self.socket.clone();
        let line = wire::write_request(request)
            .map_err(|source| AskError::Unsaid { socket: socket(), source })?;
        let started = Instant::now();
        let last = self.deadline.map(|end| end.checked_sub(RESERVE).unwrap_or(started));
        let end = |patience| last.map_or(started + patience, |last| last.min(started + patience));
        let mut refused = None;
        let connected = wait::until(&self.socket, end(start), || {
            match socket::connect_unix(&self.socket, end(patience)) {
                Err(error) if is_absent(&error) => {
                    refused = Some(error);
                    None
                }
                connected => Some(connected),
            }
        });
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                AskError::Slow { socket: socket(), patience }
            }
            _ => AskError::Broken { socket: socket(), source },
        };
        let stream = match (connected, refused) {
            (Some(connected), _) => connected.map_err(failed)?,
            (None, source) => {
                let source = source.unwrap_or_else(|| io::ErrorKind::NotFound.into());
                return Err(AskError::Absent { socket: socket(), source });
            }
        };
        let deadline =
            last.map_or(Instant::now() + patience, |last| last.min(Instant::now() + patience));
        let mut rest = line.as_slice();
        while !rest.is_empty() {
            socket::limit(&stream, Timeout::Send, deadline).map_err(failed)?;
            let sent =
                send(&stream, rest, SendFlags::NOSIGNAL).map_err(|errno| failed(errno.into()))?;
            rest = &rest[sent..];
        }
        let mut answer = Vec::new();
        let mut buffer = [0; 16 * 1024];
        while !answer.contains(&b'\n') {
            if deadline < Instant::now() {
                return Err(AskError::Slow { socket: socket(), patience });
            }
            socket::limit(&stream, Timeout::Recv, deadline).map_err(failed)?;
            match recv(&stream, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok((length, _)) => answer.extend_from_slice(&buffer[..length]),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
            if wire::MAX_MESSAGE < answer.len() {
                break;
            }
        }
        let line = answer.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
        let answer = wire::read_answer(line)
            .map_err(|source| AskError::Wire { socket: socket(), source })?;
        match (request, &answer) {
            (Request::Plan(_), Answer::Ok) => Err(AskError::Other { socket: socket() }),
            (Request::Plan(_), Answer::Plan(_)) | (_, Answer::Refused(_) | Answer::Ok) => {
                Ok(answer)
            }
            (_, Answer::Plan(_)) => Err(AskError::Other { socket: socket() }),
        }
    }
}

/// Says whether nobody listens, now.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory
    )
}

/// Where the daemon listens if its folder is this.
pub(super) fn default_socket(run: &Path) -> PathBuf {
    let name = Path::new(wire::SOCKET).file_name().expect("it is a file");
    run.join(name)
}
