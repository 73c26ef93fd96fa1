//! The packet filter's log and counters, in the namespace of the calling thread.

use std::sync::{Arc, Mutex, PoisonError};

use firewall::FirewallError;
use firewall::pods::{DroppedPackets, Logging, NO_LOG, PodsTable, can_log};
use kernel::nflog::{NflogSocket, Settings};
use serde::{Deserialize, Serialize};

/// How many packets the packet filter did not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct DropCounts {
    /// Dropped on their way into a pod.
    pub(crate) ingress: u64,
    /// Dropped on their way out of a pod.
    pub(crate) egress: u64,
    /// Of connections that the node does not know, and answered with a reset. They are not logged.
    #[serde(default)]
    pub(crate) reset: u64,
}

impl DropCounts {
    /// Returns how many were dropped.
    pub(crate) fn dropped(self) -> u64 {
        self.ingress.saturating_add(self.egress)
    }

    /// Returns how many have come since other counters; `None` if they count anew.
    pub(crate) fn since(self, before: DropCounts) -> Option<Self> {
        Some(DropCounts {
            ingress: self.ingress.checked_sub(before.ingress)?,
            egress: self.egress.checked_sub(before.egress)?,
            reset: self.reset.checked_sub(before.reset)?,
        })
    }
}

/// Reads the packet filter's counters; copies share one socket. One socket for each question would
/// do no harm but when it is closed: that may wait for the kernel (`firewall::close`).
#[derive(Debug, Clone, Default)]
pub(super) struct Counters(Arc<Mutex<Option<PodsTable>>>);

impl Counters {
    /// Returns how many packets were dropped; `None` if that cannot be read.
    pub(super) fn dropped(&self) -> Option<DroppedPackets> {
        self.ask(PodsTable::dropped)
    }

    /// Returns the counters; `None` if they cannot be read, such as without a table.
    pub(super) fn counted(&self) -> Option<DropCounts> {
        let (exists, DroppedPackets { incoming, outgoing, revived }) =
            self.ask(|table| Ok((table.exists()?, table.dropped()?)))?;
        exists.then_some(DropCounts { ingress: incoming, egress: outgoing, reset: revived })
    }

    fn ask<T>(&self, read: impl FnOnce(&mut PodsTable) -> Result<T, FirewallError>) -> Option<T> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = match kept.take() {
            Some(table) => table,
            None => PodsTable::open(Logging::default()).ok()?,
        };
        // After an error, the next question opens another table.
        let read = read(&mut table).ok()?;
        *kept = Some(table);
        Some(read)
    }
}

/// Listens to a group of the log.
///
/// # Errors
/// Why that is impossible, in a sentence.
pub(super) fn listen(group: u16) -> Result<NflogSocket, String> {
    NflogSocket::open(group, &Settings::default()).map_err(|error| match can_log() {
        Ok(false) => NO_LOG.to_owned(),
        _ => cni::Error::from_chain(0, &error).msg,
    })
}
