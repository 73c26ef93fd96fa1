//! The reference plugins' rules, through `iptables`.
//!
//! Used only if a configuration asks for it (`backend`, `ipMasqBackend`, options that only iptables
//! has), to open a foreign forward hook, and to remove what the reference left in legacy iptables.
//! Chain names, comments and rules are the reference's to the letter, so that each implementation
//! can check and remove what the other made.
//!
//! Every change has the same steps: `iptables -S` once, decide ([`ObservedTable`], [`Restore`]),
//! `iptables-restore --noflush` once. A transaction of `iptables-restore` is all or nothing. It
//! takes two processes per family and verb, for any number of rules; the reference starts one or
//! two per rule.

mod exec;
pub mod filter;
pub mod hostport;
pub mod isolation;
pub mod masquerade;
mod text;

pub(crate) use exec::legacy_uses;
pub use exec::{IptablesError, Tool};
pub use text::{ObservedTable, Restore, quote};

use std::net::IpAddr;

use net::IpFamily;
use state::{FileError, Index, Lock, LockError};

/// Formats a single address as iptables does, with its full prefix length.
#[must_use]
pub fn host(address: IpAddr) -> String {
    format!("{address}/{}", IpFamily::of(address).bits())
}

/// Why a change of shared chains failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// Other processes held the lock for too long.
    #[error("lock the chains of iptables")]
    Lock(#[source] LockError),
    /// A file of ours failed.
    #[error("record the users of {object:?}")]
    State {
        /// The shared object.
        object: String,
        /// The failure.
        source: FileError,
    },
    /// A program failed.
    #[error(transparent)]
    Iptables(#[from] IptablesError),
}

/// Locks the shared chains against other processes of ours: two that both find a rule missing would
/// both add it.
fn lock(index: &Index) -> Result<Lock, ChangeError> {
    index.lock(LOCK, crate::LOCK_TIMEOUT).map_err(ChangeError::Lock)
}

/// The lock's name in the index.
pub(crate) const LOCK: &str = "iptables";

/// Says whether `iptables` and its table can be used in at least one family.
///
/// # Errors
/// The IPv4 form's [`IptablesError`] when neither family's can be used.
pub fn usable(table: &str) -> Result<(), IptablesError> {
    let Err(error) = Tool::host(IpFamily::V4).observe(table) else { return Ok(()) };
    Tool::host(IpFamily::V6).observe(table).map(drop).map_err(|_| error)
}

impl Tool {
    /// Reads a table, lets `plan` decide, and applies the decision.
    ///
    /// # Errors
    /// [`IptablesError`]; nothing has changed then.
    pub fn change(
        self,
        table: &str,
        plan: impl FnOnce(&ObservedTable, &mut Restore),
    ) -> Result<(), IptablesError> {
        let observed = self.observe(table)?;
        let mut restore = Restore::new(table);
        plan(&observed, &mut restore);
        if restore.is_empty() {
            return Ok(());
        }
        self.restore(&restore)
    }
}
