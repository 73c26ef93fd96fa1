//! Creating a file of the cache, whole, unless there is one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use state::FileError;

use super::FILE_MODE;

/// Creates a file with its whole content at once; returns false when there is one already.
///
/// This is what `state::write_atomic` does, except that it never takes another's place: of two attachments
/// that compete for a name one gets it, without a lock.
pub(super) fn create(path: &Path, bytes: &[u8]) -> Result<bool, FileError> {
    let temporary = Temporary::create(path)
        .map_err(|source| FileError::Create { path: path.to_owned(), source })?;
    let written =
        (&temporary.file).write_all(bytes).and_then(|()| std::fs::hard_link(&temporary.path, path));
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(FileError::Write { path: path.to_owned(), source }),
    }
}

/// A file on its way; removed when dropped.
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
                // Left by an earlier process of the same number.
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
