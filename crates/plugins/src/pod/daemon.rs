//! The node's daemon, which knows the cluster's API, as far as the plugin has to do with it ([`crate::shared::daemon`]).
//!
//! Nothing that is only told, not asked, fails for a daemon that does not hear it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cni::{Error, code};
use npwg::wire::{self, Answer, Refusal, Request, WireError};

use crate::shared::daemon::{self, ExchangeError};

/// How long a daemon is waited for that is not there: one that is being replaced comes back within seconds.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an answer is waited for that decides what is done: the API server may be slow, and kubelet waits for minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the daemon is waited for when it is only told something, which it finds in a file otherwise.
const TELL_TIMEOUT: Duration = Duration::from_secs(1);

/// Says why the daemon gave no answer that counts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum AskError {
    /// None came.
    #[error(transparent)]
    Exchange(ExchangeError),
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
pub(super) struct Daemon(daemon::Daemon);

impl Daemon {
    pub(super) fn new(socket: PathBuf, deadline: Option<Instant>) -> Self {
        Daemon(daemon::Daemon::new(socket, deadline, wire::MAX_MESSAGE))
    }

    /// Asks, and waits for a daemon that is not there yet.
    ///
    /// # Errors
    /// [`AskError`].
    pub(super) fn ask(&self, request: &Request) -> Result<Answer, AskError> {
        self.exchange(request, START_TIMEOUT, ANSWER_TIMEOUT)
    }

    /// Asks a daemon that is there.
    ///
    /// # Errors
    /// [`AskError`].
    pub(super) fn ask_now(&self, request: &Request) -> Result<Answer, AskError> {
        self.exchange(request, Duration::ZERO, TELL_TIMEOUT)
    }

    /// Says whether it is missing for a moment only: nobody answers now, and a daemon could do its work a moment ago.
    pub(super) fn is_away(&self, error: &AskError) -> bool {
        matches!(error, AskError::Exchange(_)) && self.0.was_ready()
    }

    /// Tells what came of an ADD and waits until it is done with. A daemon that does not hear it finds it in a file.
    ///
    /// # Errors
    /// Why the daemon will not have it so.
    pub(super) fn report(&self, request: &Request) -> Result<(), Refusal> {
        match self.exchange(request, Duration::ZERO, ANSWER_TIMEOUT) {
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
        let folder = wire::todo_dir(&self.0.socket);
        let (Some(name), Ok(line)) = (request.todo_name(), wire::write_request(request)) else {
            return;
        };
        if let Err(error) = daemon::Daemon::leave(&folder, &name, &line) {
            tracing::warn!(err = %error, "could not leave a message for the daemon");
        }
    }

    fn exchange(
        &self,
        request: &Request,
        start: Duration,
        timeout: Duration,
    ) -> Result<Answer, AskError> {
        let socket = || self.0.socket.clone();
        let line = wire::write_request(request)
            .map_err(|source| AskError::Unsaid { socket: socket(), source })?;
        let line = self.0.exchange(&line, start, timeout).map_err(AskError::Exchange)?;
        let answer = wire::read_answer(&line)
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
