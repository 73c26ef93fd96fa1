//! The plugin's side of `netwrightd dhcp` ([`node_api::dhcp`]), in the reference's words.

use std::path::Path;
use std::time::{Duration, Instant};

use cni::code;
use cni_plugin::codes;
use node_api::dhcp::{Answer, MAX_LINE, Question, Reply, Request};
use node_api::{AskError, Daemon, ExchangeError};

use crate::shared::failure::Failure;

/// What to do if the daemon does not answer.
const START_IT: &str = "start the daemon: systemctl start netwrightd@dhcp.socket, or run `netwright dhcp daemon` (docs/dhcp.md)";

/// Sends a request to the daemon and waits for its answer.
///
/// # Errors
/// [`AskError`].
pub(super) fn ask(path: &Path, ask: Request, timeout: Duration) -> Result<Answer, AskError> {
    ask_when_there(path, ask, Duration::ZERO, timeout)
}

/// Does the same as [`ask`], and waits for `start` if no daemon is there.
///
/// # Errors
/// [`AskError`].
pub(super) fn ask_when_there(
    path: &Path,
    ask: Request,
    start: Duration,
    timeout: Duration,
) -> Result<Answer, AskError> {
    let daemon = Daemon::until(path.to_owned(), Instant::now() + timeout, MAX_LINE);
    let reply: Reply = daemon.ask(&Question::new(ask), start, timeout)?;
    Ok(reply.answer)
}

/// Reports whether no daemon is running, or it ended during the request.
pub(super) fn is_daemon_down(error: &AskError) -> bool {
    use ExchangeError::{Broken, Connect};
    matches!(error, AskError::Exchange(Connect { .. } | Broken { .. }))
}

/// Reports whether no daemon listens, or the daemon ended during the request, as happens while it
/// is replaced.
pub(super) fn is_daemon_away(error: &AskError) -> bool {
    match error {
        AskError::Exchange(ExchangeError::Broken { .. }) => true,
        AskError::Exchange(error) => error.is_absent(),
        _ => false,
    }
}

/// Returns the error to report when there is no usable answer.
pub(super) fn unanswered(error: &AskError) -> Failure {
    use ExchangeError::{Broken, Connect, Slow, Stranger};
    let daemon = |path: &Path| format!("the DHCP daemon at {}", path.display());
    match error {
        AskError::Exchange(Connect { socket, source }) => {
            Failure::from_chain(codes::DAEMON, source)
                .context(format_args!(
                    "error dialing DHCP daemon: dial unix {}: connect",
                    socket.display()
                ))
                .with_details(START_IT)
        }
        AskError::Exchange(Stranger { socket, uid }) => Failure::new(
            codes::DAEMON,
            format!(
                "error dialing DHCP daemon: {} is served by user {uid}, which is neither root nor ours",
                socket.display()
            ),
        ),
        AskError::Exchange(Broken { socket, source }) => Failure::from_chain(codes::DAEMON, source)
            .context(format_args!("{} did not answer", daemon(socket)))
            .with_details(START_IT),
        AskError::Exchange(Slow { socket, timeout }) => Failure::new(
            code::TRY_AGAIN_LATER,
            format!("{} did not answer within {timeout:?}", daemon(socket)),
        ),
        AskError::Answer { socket, source } => Failure::from_chain(codes::DAEMON, source)
            .context(format_args!("{} answered what is no answer", daemon(socket))),
        error => Failure::from_chain(codes::DAEMON, error),
    }
}
