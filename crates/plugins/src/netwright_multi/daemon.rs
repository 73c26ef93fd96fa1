//! The plugin's side of the node's daemon, which has access to the cluster's API
//! ([`crate::shared::daemon`]).
//!
//! A notification, which needs no answer, does not fail if the daemon does not receive it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cni::{Error, code};
use npwg::wire::{self, Answer, Refusal, Request, WireError};

use crate::shared::daemon::{self, ExchangeError};

/// How long a call waits for an absent daemon: one that is being replaced comes back within
/// seconds.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a call waits for an answer that decides what is done: the API server may be slow, and
/// kubelet waits for minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a call waits for the daemon to accept a notification, which the daemon otherwise finds
/// in a file.
const TELL_TIMEOUT: Duration = Duration::from_secs(1);

/// The reason why the daemon gave no usable answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum AskError {
    /// No answer arrived.
    #[error(transparent)]
    Exchange(ExchangeError),
    /// The answer is invalid.
    #[error("the answer on {socket:?} is none")]
    Wire {
        /// Where the daemon listens.
        socket: PathBuf,
        /// What is wrong with it.
        source: WireError,
    },
    /// The answer is to another question.
    #[error("the answer on {socket:?} is one to another question")]
    Other {
        /// Where the daemon listens.
        socket: PathBuf,
    },
    /// The message is too long.
    #[error("say it on {socket:?}")]
    Unsaid {
        /// Where it would be sent.
        socket: PathBuf,
        /// The cause.
        source: WireError,
    },
}

impl AskError {
    /// Returns the error to report: it goes away when the daemon is back.
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

    /// Sends a request, and waits for a daemon that is not there yet.
    ///
    /// # Errors
    /// [`AskError`].
    pub(super) fn ask(&self, request: &Request) -> Result<Answer, AskError> {
        self.exchange(request, START_TIMEOUT, ANSWER_TIMEOUT)
    }

    /// Sends a request to a running daemon.
    ///
    /// # Errors
    /// [`AskError`].
    pub(super) fn ask_now(&self, request: &Request) -> Result<Answer, AskError> {
        self.exchange(request, Duration::ZERO, TELL_TIMEOUT)
    }

    /// Reports whether the daemon is missing only for a moment: it does not answer now, and was
    /// ready a moment ago.
    pub(super) fn is_away(&self, error: &AskError) -> bool {
        matches!(error, AskError::Exchange(_)) && self.0.was_ready()
    }

    /// Reports the outcome of an ADD and waits until the daemon has processed it. A daemon that
    /// does not receive it finds it in a file.
    ///
    /// # Errors
    /// Why the daemon refuses it.
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

    /// Sends a notification, and does not report the daemon's answer.
    pub(super) fn tell(&self, request: &Request) {
        if !matches!(self.ask_now(request), Ok(Answer::Ok)) {
            self.leave(request);
        }
    }

    /// Leaves a message for a daemon that did not receive it. If that fails too, the daemon finds
    /// out from the node's state: nothing depends on the message.
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
