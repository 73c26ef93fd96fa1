//! The lock of a running ADD on the file that records it.

use std::fs::{File, TryLockError};
use std::path::Path;

use state::FileError;

use super::FILE_MODE;

/// Creates a file with its whole content and locks it; `None` when there is one already.
pub(super) fn create(path: &Path, bytes: &[u8]) -> Result<Option<Locked>, FileError> {
    let file = state::create_locked(path, bytes, FILE_MODE)?;
    Ok(file.map(|file| Locked { _file: Some(file) }))
}

/// The lock of a running ADD on the file that records it (`man 2 flock`): it ends with the process.
#[derive(Debug)]
pub(super) struct Locked {
    _file: Option<File>,
}

impl Locked {
    /// Locks a file by its name. A file system without locks does not show that an ADD is running.
    pub(super) fn take_at(path: &Path) -> Self {
        Locked { _file: File::open(path).ok().filter(|file| file.lock().is_ok()) }
    }

    /// Locks nothing.
    pub(super) fn nothing() -> Self {
        Locked { _file: None }
    }
}

/// Says whether a process has locked the file. A file that is gone is not locked.
pub(super) fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
