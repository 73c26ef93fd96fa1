//! The plugin's side of the node's daemon, which has access to the cluster's API
//! ([`node_api::multinet`]).
//!
//! A notification, which needs no answer, does not fail if the daemon does not receive it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cni::code;
use cni_plugin::codes;
use node_api::client::{ANSWER_TIMEOUT, START_TIMEOUT, TELL_TIMEOUT};
use node_api::multinet::{Answer, Request};
use node_api::{AskError, ExchangeError, Message, Refusal, inbox};

use crate::shared::failure::Failure;

/// Returns the error to report when there is no usable answer: it goes away when the daemon is
/// back.
pub(super) fn unanswered(error: &AskError) -> Failure {
    // A daemon of another user than root or ours does not become ours by waiting.
    let is_stranger = matches!(error, AskError::Exchange(ExchangeError::Stranger { .. }));
    let code = if is_stranger { codes::DAEMON } else { code::TRY_AGAIN_LATER };
    let failure = Failure::from_chain(code, error)
        .context("netwrightd does not say which networks the pod is to have");
    failure.with_details(match is_absent(error) {
        true => {
            "start \"netwrightd multinet\" (in a cluster, the DaemonSet netwright); where it is gone for good, \
             remove its 00-netwright.conflist, and pods start on the cluster's own network alone"
        }
        false => "is \"netwrightd multinet\" running? its own log says more",
    })
}

/// Reports whether no daemon listens.
pub(super) fn is_absent(error: &AskError) -> bool {
    matches!(error, AskError::Exchange(error) if error.is_absent())
}

/// The daemon.
#[derive(Debug)]
pub(super) struct Daemon(node_api::Daemon);

impl Daemon {
    pub(super) fn new(socket: PathBuf, deadline: Option<Instant>) -> Self {
        Daemon(node_api::Daemon::new(socket, deadline))
    }

    /// Sends a request, and waits for a daemon that is not there yet and may come.
    ///
    /// # Errors
    /// [`AskError`].
    pub(super) fn ask(&self, request: &Request) -> Result<Answer, AskError> {
        self.exchange(request, self.0.start_timeout(), ANSWER_TIMEOUT)
    }

    /// Sends a request, and waits for a daemon that has been missing only for a moment.
    ///
    /// # Errors
    /// [`AskError`].
    pub(super) fn ask_unless_gone(&self, request: &Request) -> Result<Answer, AskError> {
        let start = if self.0.was_ready() { START_TIMEOUT } else { Duration::ZERO };
        self.exchange(request, start, ANSWER_TIMEOUT)
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
        let is_silent = match error {
            AskError::Exchange(error) => !matches!(error, ExchangeError::Stranger { .. }),
            _ => false,
        };
        is_silent && self.0.was_ready()
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
        let (Some(name), Ok(line)) = (request.todo_name(), request.to_line()) else { return };
        if let Err(error) = inbox::leave(self.0.socket(), &name, &line) {
            tracing::warn!(err = %error, "could not leave a message for the daemon");
        }
    }

    fn exchange(
        &self,
        request: &Request,
        start: Duration,
        timeout: Duration,
    ) -> Result<Answer, AskError> {
        let answer = self.0.ask(request, start, timeout)?;
        match (request, &answer) {
            (Request::Plan(_), Answer::Plan(_)) | (_, Answer::Refused(_)) => Ok(answer),
            (Request::Plan(_), Answer::Ok) | (_, Answer::Plan(_)) => {
                Err(AskError::Other { socket: self.0.socket().to_owned() })
            }
            (_, Answer::Ok) => Ok(answer),
        }
    }
}
