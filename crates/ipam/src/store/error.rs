//! The errors of the folder.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::plan::PlanError;

/// An operation on a network's folder that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The folder's lock could not be taken.
    #[error(transparent)]
    Lock(state::LockError),
    /// The folder could not be created.
    #[error(transparent)]
    File(state::FileError),
    /// The folder could not be opened, listed or flushed.
    #[error("{operation} {path:?}")]
    Folder {
        /// The operation.
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
    /// The address assigned last could not be recorded.
    #[error("write {path:?}")]
    Note {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A reservation could not be removed, or its removal could not be flushed.
    #[error("remove {path:?}")]
    Remove {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl StoreError {
    /// Reports whether another holder kept the lock for too long, so that a retry may help.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, StoreError::Lock(error) if error.is_busy())
    }
}

/// The reason why nothing was allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// No such addresses are available; nothing was changed.
    #[error(transparent)]
    Plan(PlanError),
    /// The folder failed; what this call had reserved was released.
    #[error(transparent)]
    Store(StoreError),
    /// The folder failed, and so did releasing what this call had reserved: a DEL must follow.
    #[error("{first}; {} could not be released again", undo.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Undo {
        /// The first failure.
        #[source]
        first: StoreError,
        /// The addresses that are still reserved.
        undo: Vec<IpAddr>,
    },
}
