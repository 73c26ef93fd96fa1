//! The plugin's side of `netwrightd ipam` ([`node_api::ipam`]).

use std::path::PathBuf;
use std::time::Duration;

use cni::code;
use cni_plugin::{Call, codes};
use node_api::client::{ANSWER_TIMEOUT, TELL_TIMEOUT};
use node_api::ipam::{Answer, AssignedAddress, Request};
use node_api::{AskError, ExchangeError, Message, inbox};

use crate::shared::failure::Failure;

use super::answered_nonsense;

/// How long a call waits for the daemon to report whether it could answer.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// The daemon.
#[derive(Debug)]
pub(super) struct Daemon(node_api::Daemon);

/// The reason why there is no usable answer.
#[derive(Debug)]
pub(super) struct DaemonFailure {
    /// The error to report.
    pub(super) error: Failure,
    /// Whether the daemon may still have done what it was asked to do.
    pub(super) may_be_done: bool,
}

/// Returns the failure for an answer that does not fit the request.
pub(super) fn nonsense(why: &str) -> DaemonFailure {
    DaemonFailure { error: answered_nonsense(why), may_be_done: true }
}

impl Daemon {
    pub(super) fn new(call: &Call<'_>, socket: PathBuf) -> Self {
        Daemon(node_api::Daemon::new(socket, call.context().deadline))
    }

    /// Requests addresses, and waits for a daemon that is not there yet and may come.
    pub(super) fn assigned(
        &self,
        request: &Request,
    ) -> Result<Vec<AssignedAddress>, DaemonFailure> {
        match self.ask(request, self.0.start_timeout(), ANSWER_TIMEOUT)? {
            Answer::Assigned(assigned) => Ok(assigned),
            Answer::Ok => Err(nonsense("it names no addresses")),
            Answer::Refused(refusal) => {
                Err(DaemonFailure { error: refusal.into(), may_be_done: false })
            }
        }
    }

    /// Asks a running daemon to confirm something. A daemon that is missing only for a moment
    /// counts as a confirmation: ADD waits for it.
    pub(super) fn ok(&self, request: &Request) -> Result<(), DaemonFailure> {
        match self.ask(request, Duration::ZERO, STATUS_TIMEOUT) {
            Ok(Answer::Ok) => Ok(()),
            Ok(Answer::Assigned(_)) => Err(nonsense("it names addresses that were not requested")),
            Ok(Answer::Refused(refusal)) => {
                Err(DaemonFailure { error: refusal.into(), may_be_done: false })
            }
            Err(failed) if failed.error.code() == code::TRY_AGAIN_LATER && self.0.was_ready() => {
                Ok(())
            }
            Err(failed) => Err(failed),
        }
    }

    /// Notifies the daemon. If the daemon is absent or does not confirm, the message is left for
    /// it.
    ///
    /// # Errors
    /// Code 105 when the message cannot be left either.
    pub(super) fn tell(&self, call: &Call<'_>, request: &Request) -> Result<(), Failure> {
        match self.ask(request, Duration::ZERO, TELL_TIMEOUT) {
            Ok(Answer::Ok) => return Ok(()),
            Ok(Answer::Refused(refusal)) => call.warn(refusal.to_cni()),
            Ok(Answer::Assigned(_)) => call.warn(nonsense("it names addresses").error),
            Err(failed) => call.warn(failed.error),
        }
        self.leave_or_fail(request)
    }

    /// Notifies a running daemon of something that is only true now. An absent daemon finds it out
    /// when it starts.
    ///
    /// # Errors
    /// The objections of a running daemon.
    pub(super) fn tell_now(&self, call: &Call<'_>, request: &Request) -> Result<(), Failure> {
        match self.ask(request, Duration::ZERO, STATUS_TIMEOUT) {
            Ok(Answer::Ok) => Ok(()),
            Ok(Answer::Refused(refusal)) => Err(refusal.into()),
            Ok(Answer::Assigned(_)) => Err(nonsense("it names addresses").error),
            Err(failed) if failed.error.code() == code::TRY_AGAIN_LATER => {
                call.warn(failed.error);
                Ok(())
            }
            Err(failed) => Err(failed.error),
        }
    }

    /// Leaves a message. If that fails too, it is only a warning: DEL sends the same message again.
    pub(super) fn leave(&self, call: &Call<'_>, request: &Request) {
        if let Err(error) = self.leave_or_fail(request) {
            call.warn(error);
        }
    }

    fn leave_or_fail(&self, request: &Request) -> Result<(), Failure> {
        let name = request.todo_name().unwrap_or_default();
        let line = request.to_line();
        let line = line.map_err(|error| Failure::from_chain(code::INTERNAL, &error))?;
        inbox::leave(self.0.socket(), &name, &line).map_err(|error| {
            Failure::from_chain(codes::STATE, &error)
                .with_details("netwrightd ipam does not answer, and cannot be told later")
        })
    }

    fn ask(
        &self,
        request: &Request,
        start: Duration,
        timeout: Duration,
    ) -> Result<Answer, DaemonFailure> {
        self.0.ask(request, start, timeout).map_err(|source| {
            let error = |code| Failure::from_chain(code, &source);
            match &source {
                AskError::Request { .. } => DaemonFailure {
                    error: error(code::INVALID_CONFIG)
                        .with_details("ranges and exclusions are too many"),
                    may_be_done: false,
                },
                AskError::Exchange(ExchangeError::Stranger { .. }) => DaemonFailure {
                    error: error(codes::DAEMON)
                        .context("netwrightd does not say which addresses are free"),
                    may_be_done: false,
                },
                AskError::Exchange(exchange) => DaemonFailure {
                    error: error(code::TRY_AGAIN_LATER)
                        .context("netwrightd does not say which addresses are free")
                        .with_details("is \"netwrightd ipam\" running? its own log says more"),
                    may_be_done: exchange.may_be_heard(),
                },
                _ => DaemonFailure {
                    error: error(codes::DAEMON)
                        .with_details("plugin and daemon should be of one version"),
                    may_be_done: true,
                },
            }
        })
    }
}
