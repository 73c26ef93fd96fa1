//! The packet filter's log and counters, in the namespace of the calling thread.

use firewall::pods::{Dropped, Logging, NO_LOG, PodsTable, can_log};
use kernel::nflog::{NflogSocket, Settings};
use serde::{Deserialize, Serialize};

/// How many packets the packet filter did not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Counted {
    /// Dropped on their way into a pod.
    pub(crate) ingress: u64,
    /// Dropped on their way out of a pod.
    pub(crate) egress: u64,
    /// Of connections that the node does not know, and answered with a reset. They are not logged.
    #[serde(default)]
    pub(crate) reset: u64,
}

impl Counted {
    /// Returns how many were dropped.
    pub(crate) fn dropped(self) -> u64 {
        self.ingress.saturating_add(self.egress)
    }

    /// Returns how many have come since other counters; `None` if they count anew.
    pub(crate) fn since(self, before: Counted) -> Option<Self> {
        Some(Counted {
            ingress: self.ingress.checked_sub(before.ingress)?,
            egress: self.egress.checked_sub(before.egress)?,
            reset: self.reset.checked_sub(before.reset)?,
        })
    }
}

/// Reads the counters; `None` if that is impossible, such as without a table.
pub(crate) fn counted() -> Option<Counted> {
    let mut table = PodsTable::open(Logging::default()).ok()?;
    if !table.exists().ok()? {
        return None;
    }
    let Dropped { incoming, outgoing, revived, .. } = table.dropped().ok()?;
    Some(Counted { ingress: incoming, egress: outgoing, reset: revived })
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
