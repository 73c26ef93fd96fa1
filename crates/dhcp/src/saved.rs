//! The format version of saved leases.

/// The version written; newer ones are refused.
pub(crate) const VERSION: u32 = 1;

/// A saved lease that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SavedLeaseError {
    /// A newer format, or not one of ours.
    #[error("saved lease has format version {found}, this program reads {VERSION}")]
    Version {
        /// What was found.
        found: u32,
    },
}

/// Refuses versions that this program cannot read.
pub(crate) fn check_version(found: u32) -> Result<(), SavedLeaseError> {
    if found == VERSION { Ok(()) } else { Err(SavedLeaseError::Version { found }) }
}
