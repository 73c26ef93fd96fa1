//! What `netwright routes` asks, by HTTP at the service's socket.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use routing::Routing;
use service_kit::bell::Bell;
use service_kit::exchange::Answer;

/// The targets: all that is shown, how packets to an address go, what can be probed, and to remove
/// what is held.
pub(crate) const ROUTES: &str = "/routes";
pub(crate) const TARGETS: &str = "/targets";
pub(crate) const EXPLAIN: &str = "/explain/";
pub(crate) const ACCEPT: &str = "POST /accept";

/// The state of routing, for the loop and for the threads that answer and probe. A thread holds it
/// for decisions only, never while it waits.
#[derive(Debug, Clone)]
pub(super) struct SharedRouting(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    routing: Mutex<Routing>,
    /// An administrator has confirmed that nodes are gone.
    accepted: AtomicBool,
    bell: Bell,
}

impl SharedRouting {
    pub(super) fn new(routing: Routing) -> std::io::Result<Self> {
        let bell = Bell::new()?;
        let (routing, accepted) = (Mutex::new(routing), AtomicBool::new(false));
        Ok(SharedRouting(Arc::new(Inner { routing, accepted, bell })))
    }

    pub(super) fn routing(&self) -> MutexGuard<'_, Routing> {
        self.0.routing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what becomes readable when another thread wants something done.
    pub(super) fn bell(&self) -> &Bell {
        &self.0.bell
    }

    /// Makes the loop look whether something is to be said or done.
    pub(super) fn ring(&self) {
        self.0.bell.ring();
    }

    /// Says whether an administrator has confirmed that nodes are gone, since the last call.
    pub(super) fn take_accepted(&self) -> bool {
        self.0.bell.heard();
        self.0.accepted.swap(false, Ordering::SeqCst)
    }

    /// Answers a question.
    pub(super) fn answer(&self, target: &str) -> Answer {
        if target == ROUTES {
            return Answer::json(&self.routing().table());
        }
        if target == TARGETS {
            return Answer::json(&self.routing().targets().collect::<Vec<_>>());
        }
        if target == ACCEPT {
            if !self.routing().is_braking() {
                return Answer::text(200, "nothing was held");
            }
            self.0.accepted.store(true, Ordering::SeqCst);
            self.ring();
            return Answer::text(200, "accepted");
        }
        match target.strip_prefix(EXPLAIN).map(str::parse::<IpAddr>) {
            Some(Ok(address)) => Answer::json(&self.routing().explain(address)),
            Some(Err(_)) => Answer::text(404, "that is not an address"),
            None => Answer::text(404, "there are /routes, /targets and /explain/ADDRESS"),
        }
    }
}
