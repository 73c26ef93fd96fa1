//! What can go wrong with the folder.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::plan::PlanError;

/// Says which operation on a network's folder failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The folder's lock was not to be had.
    #[error(transparent)]
    Lock(state::LockError),
    /// The folder could not be made.
    #[error(transparent)]
    File(state::FileError),
    /// The folder could not be opened, listed or flushed.
    #[error("{operation} {path:?}")]
    Folder {
        /// What was tried.
        operation: &'static str,
        /// The folder.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A reservation could not be written.
    #[error("reserve {address} in {path:?}")]
    Reserve {
        /// The address.
        address: IpAddr,
        /// The folder.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The address handed out last could not be noted.
    #[error("write {path:?}")]
    Note {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A reservation could not be removed, or not for good.
    #[error("remove {path:?}")]
    Remove {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl StoreError {
    /// Says whether somebody else held the lock for too long, so that trying again may help.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, StoreError::Lock(error) if error.is_busy())
    }
}

/// Says why nothing was allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// There are no such addresses to be had; nothing was touched.
    #[error(transparent)]
    Plan(PlanError),
    /// The folder failed; what this call had reserved was released.
    #[error(transparent)]
    Store(StoreError),
    /// The folder failed, and so did releasing what this call had reserved: a DEL must follow.
    #[error("{first}; {} could not be released again", undo.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Undo {
        /// What failed first.
        #[source]
        first: StoreError,
        /// The addresses that are still reserved.
        undo: Vec<IpAddr>,
    },
}
