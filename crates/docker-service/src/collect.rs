//! Removes endpoints whose container is gone without a call from Docker. Docker forgets them when
//! it starts without us, and a reboot ends them all.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use kernel::living::{Census, Life};
use service_kit::clock;
use service_kit::log;

use super::driver::Driver;
use super::journal::{Endpoint, Network, Phase, short};
use super::sandbox::life;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(60);
/// How long an endpoint may wait for its container: a start takes seconds.
const GRACE_S: u64 = 180;

/// Looks every minute until the channel is closed.
pub(super) fn run(driver: &Arc<Driver>, end: &Receiver<()>) {
    loop {
        driver.collect();
        driver.collect_lost();
        driver.collect_forgotten();
        match end.recv_timeout(EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Driver {
    /// Removes endpoints that no container has.
    pub(super) fn collect(&self) {
        let now_s = clock::boot_ms() / 1000;
        let census = Census::new();
        for endpoint in self.journal.endpoints() {
            let Some(why) = self.is_stale(&endpoint, now_s, &census) else { continue };
            let Some(_held) = self.try_hold(&endpoint.id) else { continue };
            // A call may have changed it meanwhile.
            let still = self.journal.endpoint(&endpoint.id).ok().flatten();
            if still.as_ref() != Some(&endpoint) {
                continue;
            }
            if matches!(endpoint.phase, Phase::Adding | Phase::Deleting) {
                super::orphans::end(&endpoint.id);
            }
            let _about = log::about(endpoint.subject());
            let network = self.journal.network(&endpoint.network).ok().flatten();
            match self.remove_endpoint(&endpoint, network.as_ref()) {
                Ok(()) => tracing::info!(why, "collected"),
                Err(error) => {
                    tracing::warn!(why, %error, "not collected");
                }
            }
        }
    }

    /// Removes networks and addresses whose removal got lost. A removal may also be under way, so
    /// an object must look forgotten twice.
    fn collect_forgotten(&self) {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = HashSet::new();
        for network in self.journal.networks() {
            if !self.is_forgotten(&network) {
                continue;
            }
            let name = format!("network {}", network.id);
            if !suspects.contains(&name) {
                now.insert(name);
                continue;
            }
            let Some(_held) = self.try_hold(&network.id) else { continue };
            match self.remove_network(&network) {
                Ok(()) => tracing::info!(
                    network = short(&network.id),
                    "collected: Docker released its pools"
                ),
                Err(error) => tracing::warn!(network = short(&network.id), %error, "not collected"),
            }
        }
        self.collect_addresses(&suspects, &mut now);
        *suspects = now;
    }

    /// Says whether containers may be on a network, or on their way there.
    pub(super) fn may_be_in_use(&self, network: &Network) -> bool {
        let now_s = clock::boot_ms() / 1000;
        let census = Census::new();
        let is_in_use = |endpoint: &Endpoint| match endpoint.phase {
            _ if endpoint.boot_id != self.boot_id => false,
            Phase::Joined => life(endpoint, &census) != Life::Gone,
            Phase::Adding | Phase::Added => now_s.saturating_sub(endpoint.since_s) < GRACE_S,
            Phase::Left | Phase::Deleting => false,
        };
        // An endpoint whose record cannot be read may be on any network.
        self.journal.may_lack_an_endpoint() || self.endpoints_of(&network.id).iter().any(is_in_use)
    }

    /// Says why no container has an endpoint; `None` when one may have it.
    fn is_stale(&self, endpoint: &Endpoint, now_s: u64, census: &Census) -> Option<&'static str> {
        if endpoint.boot_id != self.boot_id {
            return Some("the machine has rebooted since");
        }
        let waited = now_s.saturating_sub(endpoint.since_s);
        if endpoint.phase == Phase::Deleting {
            return Some("it was being removed");
        }
        if waited < GRACE_S {
            return None;
        }
        match endpoint.phase {
            Phase::Adding | Phase::Added => Some("no container has joined"),
            Phase::Left => Some("its container has left"),
            // A path that cannot be read, or a file without a namespace on it, may be a mount that
            // we do not see.
            Phase::Joined => {
                let lost = endpoint.sandbox.as_deref().is_some_and(|path| {
                    let found = path.symlink_metadata();
                    found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
                });
                // The container's processes may still live: then its interface does, too.
                let gone = lost && life(endpoint, census) == Life::Gone;
                gone.then_some("its container's namespace is gone")
            }
            Phase::Deleting => None,
        }
    }
}
