//! Creates a file of the cache, whole, unless there is one.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use state::FileError;

use super::FILE_MODE;

/// Creates a file with its whole content at once and locks it ([`Locked`]); `None` when there is
/// one already.
///
/// This does what `state::write_atomic` does, except that it never replaces a file: of two
/// attachments that compete for a name one gets it, without a lock.
pub(super) fn create(path: &Path, bytes: &[u8]) -> Result<Option<Locked>, FileError> {
    let temporary = Temporary::create(path)
        .map_err(|source| FileError::Create { path: path.to_owned(), source })?;
    // Locked before it has its name: no process sees it without the lock.
    let locked = Locked::take(&temporary.file);
    let written =
        (&temporary.file).write_all(bytes).and_then(|()| std::fs::hard_link(&temporary.path, path));
    match written {
        Ok(()) => Ok(Some(locked)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(source) => Err(FileError::Write { path: path.to_owned(), source }),
    }
}

/// The lock of a running ADD on the file that records it (`man 2 flock`): it ends with the process.
#[derive(Debug)]
pub(super) struct Locked {
    _file: Option<File>,
}

impl Locked {
    /// Locks a file. A file system without locks does not show that an ADD is running.
    fn take(file: &File) -> Self {
        let file = file.try_clone().ok().filter(|file| file.lock().is_ok());
        Locked { _file: file }
    }

    /// Locks a file by its name.
    pub(super) fn take_at(path: &Path) -> Self {
        File::open(path).map_or(Locked { _file: None }, |file| Self::take(&file))
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

/// A file that is being written; removed when dropped.
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Temporary {
    fn create(target: &Path) -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let dir = target.parent().unwrap_or(Path::new("."));
        loop {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!(".reserve.{}.{number}.tmp", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path) {
                Ok(file) => return Ok(Temporary { path, file }),
                // Left by an earlier process with the same ID.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
