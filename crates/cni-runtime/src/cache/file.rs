//! The lock of a running ADD on the file that records it.

use std::fs::{File, Metadata, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use state::FileError;

use super::FILE_MODE;

/// Creates a file with its whole content and locks it; `None` when there is one already.
pub(super) fn create(path: &Path, bytes: &[u8]) -> Result<Option<FileLock>, FileError> {
    let file = state::create_locked(path, bytes, FILE_MODE)?;
    Ok(file.map(|file| FileLock { file: Some(file) }))
}

/// Replaces a file by another one, which is locked before any process sees it.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<FileLock, FileError> {
    let file = state::replace_locked(path, bytes, FILE_MODE)?;
    Ok(FileLock { file: Some(file) })
}

/// What became of an attempt to lock a file that is there.
#[derive(Debug)]
pub(super) enum LockOutcome {
    /// It is locked, if its file system has locks.
    Locked(FileLock),
    /// Another ADD has locked it.
    Busy,
    /// It went away, or another one has its name by now.
    Gone,
}

/// The lock of a running ADD on the file that records it (`man 2 flock`): it ends with the process.
#[derive(Debug)]
pub(super) struct FileLock {
    file: Option<File>,
}

impl FileLock {
    /// Locks a file by its name. A file system without locks does not show that an ADD is running.
    pub(super) fn take_at(path: &Path) -> LockOutcome {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return LockOutcome::Gone,
            // What is no file is replaced.
            Err(_) => return LockOutcome::Locked(FileLock { file: None }),
        };
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return LockOutcome::Busy;
        }
        let locked = FileLock { file: Some(file) };
        if locked.is_at(path) { LockOutcome::Locked(locked) } else { LockOutcome::Gone }
    }

    /// Says whether this file still has its name: another ADD may have recorded the attachment since
    /// a DEL removed the file.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let Some(file) = &self.file else { return true };
        let identity = |found: Metadata| (found.dev(), found.ino());
        let (own, there) = (file.metadata().map(identity), path.metadata().map(identity));
        matches!((own, there), (Ok(own), Ok(there)) if own == there)
    }
}

/// Says whether a process has locked the file. A file that is gone is not locked.
pub(super) fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
