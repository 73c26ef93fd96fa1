//! The plugin's side of `netwrightd policy` ([`node_api::policy`]).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cni::code;
use cni_plugin::{Call, codes};
use node_api::line::MAX_MESSAGE;
use node_api::policy::{
    Answer, CollectRequest, Enforcement, Owner, Request, StartRequest, StatusRequest, taken_off,
};
use node_api::{AskError, ExchangeError};

use crate::shared::failure::Failure;

/// How long a call waits for an answer. The daemon needs no server to answer, and an address
/// without an answer stays closed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long ADD waits for a daemon that was there a moment ago: a killed daemon is back sooner. A
/// longer wait would delay the pods of a node whose daemon is gone, and they are closed anyway.
const START_TIMEOUT: Duration = Duration::from_millis(500);

/// How often ADD asks at most: a daemon may be killed again while it is asked.
const TRIES: usize = 4;

/// The daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    socket: PathBuf,
    deadline: Option<Instant>,
}

/// What the daemon says about an attachment's verdicts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Assessment {
    /// They are in the packet filter.
    Sound,
    /// They are not.
    Differs(String),
}

impl Daemon {
    pub(super) fn new(call: &Call<'_>, socket: PathBuf) -> Self {
        Daemon { socket, deadline: call.context().deadline }
    }

    /// Asks the daemon to judge the attachment's addresses. Every other outcome is logged and
    /// counts as success: the addresses stay closed until a daemon judges them.
    ///
    /// # Errors
    /// Code 110 where nobody will: the daemon was taken off this node.
    pub(super) fn start(&self, call: &Call<'_>, started: &StartRequest) -> Result<(), Failure> {
        let why = match self.ask_patiently(&Request::Start(started.clone())) {
            Ok(Answer::Enforced(Enforcement { known: true, notice })) => {
                notice.into_iter().for_each(|notice| call.warn(notice));
                return Ok(());
            }
            Ok(Answer::Enforced(Enforcement { notice, .. })) => notice.unwrap_or_default(),
            Ok(Answer::Refused(refusal)) => refusal.to_cni().to_string(),
            Ok(Answer::Ok) => nonsense().to_string(),
            Err(failure) => {
                is_there(call)?;
                failure.to_string()
            }
        };
        let ifname = &started.owner.ifname;
        let who = match started.inside {
            true => format!("nothing reaches {ifname} of the container"),
            false => "only this node reaches the container".to_owned(),
        };
        call.warn(format_args!("{who} until its policies are known: {why}"));
        Ok(())
    }

    /// Tells the daemon that an attachment is being removed; `false` if no daemon has received it.
    pub(super) fn end(&self, call: &Call<'_>, owner: &Owner) -> bool {
        self.tell(call, &Request::End(owner.clone()))
    }

    /// Tells the daemon that records were removed; `false` if no daemon has received it.
    pub(super) fn collect(&self, call: &Call<'_>, network: &str) -> bool {
        self.tell(call, &Request::Collect(CollectRequest { network: network.to_owned() }))
    }

    /// Asks whether the packet filter has what an attachment needs; `None` if no daemon answers.
    ///
    /// # Errors
    /// Code 110 when the answer makes no sense, or another user's daemon answers.
    pub(super) fn judged(&self, owner: &Owner) -> Result<Option<Assessment>, Failure> {
        match self.ask(&Request::Verdicts(owner.clone())) {
            Ok(Answer::Enforced(_)) => Ok(Some(Assessment::Sound)),
            Ok(Answer::Refused(refusal)) if refusal.code == codes::DRIFT => {
                Ok(Some(Assessment::Differs(refusal.msg)))
            }
            Ok(Answer::Refused(refusal)) => Err(refusal.into()),
            Ok(Answer::Ok) => Err(nonsense()),
            Err(failure) if failure.code() == code::TRY_AGAIN_LATER => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Asks whether a new attachment would be judged. A daemon that knew its policies a moment ago,
    /// and is missing now or is listing them again, counts as a confirmation.
    ///
    /// # Errors
    /// Those of the daemon; code 11 when there is none, or while it does not know its policies.
    pub(super) fn status(&self, call: &Call<'_>) -> Result<(), Failure> {
        let network = call.network().as_str();
        let request = Request::Status(StatusRequest { network: network.to_owned() });
        let failure: Failure = match self.ask(&request) {
            Ok(Answer::Ok) => return Ok(()),
            Ok(Answer::Refused(refusal)) => refusal.into(),
            Ok(Answer::Enforced(_)) => nonsense(),
            Err(failure) => failure,
        };
        is_there(call)?;
        let may_pass = failure.code() == code::TRY_AGAIN_LATER;
        if may_pass && node_api::ready::was_ready(&self.socket) { Ok(()) } else { Err(failure) }
    }

    fn tell(&self, call: &Call<'_>, request: &Request) -> bool {
        let why = match self.ask(request) {
            Ok(Answer::Ok) => return true,
            Ok(Answer::Refused(refusal)) => refusal.to_cni().to_string(),
            Ok(Answer::Enforced(_)) => nonsense().to_string(),
            Err(failure) => failure.to_string(),
        };
        call.warn(format_args!("verdicts are removed without netwrightd: {why}"));
        false
    }

    /// Asks a daemon that may be missing for a moment. Asking it twice does no harm.
    fn ask_patiently(&self, request: &Request) -> Result<Answer, Failure> {
        let until = Instant::now() + START_TIMEOUT;
        let mut left = Duration::ZERO;
        for _ in 1..TRIES {
            match self.ask_for(request, left) {
                Err(failure) if failure.code() == code::TRY_AGAIN_LATER => {
                    left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() || !node_api::ready::was_ready(&self.socket) {
                        return Err(failure);
                    }
                }
                other => return other,
            }
        }
        self.ask_for(request, left)
    }

    fn ask(&self, request: &Request) -> Result<Answer, Failure> {
        self.ask_for(request, Duration::ZERO)
    }

    /// Asks, and waits up to `start` for a daemon that is absent.
    fn ask_for(&self, request: &Request, start: Duration) -> Result<Answer, Failure> {
        let end = Instant::now() + ANSWER_TIMEOUT;
        let end = self.deadline.map_or(end, |deadline| deadline.min(end));
        let daemon = node_api::Daemon::until(self.socket.clone(), end, MAX_MESSAGE);
        daemon.ask(request, start, ANSWER_TIMEOUT).map_err(|source| {
            let error = |code| Failure::from_chain(code, &source);
            match &source {
                AskError::Request { .. } => {
                    error(code::INVALID_CONFIG).with_details("the labels of args.cni are too many")
                }
                AskError::Exchange(ExchangeError::Stranger { .. }) => error(codes::DAEMON),
                AskError::Exchange(_) => error(code::TRY_AGAIN_LATER)
                    .context("netwrightd does not answer")
                    .with_details("is \"netwrightd policy\" running? its own log says more"),
                _ => {
                    error(codes::DAEMON).with_details("plugin and daemon should be of one version")
                }
            }
        })
    }
}

/// Fails if the daemon was taken off this node: nobody will open what is closed.
fn is_there(call: &Call<'_>) -> Result<(), Failure> {
    if !taken_off(&call.roots().lib).exists() {
        return Ok(());
    }
    let network = call.network();
    Err(Failure::new(
        codes::DAEMON,
        format!("network policy was taken off this node, and the network {network} asks for it"),
    )
    .with_details(
        "take the plugin \"policy\" out of its configuration, or start \"netwrightd policy\" again",
    ))
}

fn nonsense() -> Failure {
    Failure::new(codes::DAEMON, "netwrightd answered another question")
        .with_details("plugin and daemon should be of one version")
}
