//! Reading and writing single files of the cache.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The most a file may hold. Results and configurations are kilobytes; whatever is larger is not ours.
pub(crate) const SIZE_LIMIT: u64 = 16 << 20;

/// What names of files that are being written begin with; no attachment's file does.
pub(super) const TEMPORARY: &str = ".netwright-";

/// Reads a regular file; `None` when there is none.
///
/// Anything that is not a regular file is refused without waiting for it: opening a FIFO would block.
pub(crate) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = match OpenOptions::new().read(true).custom_flags(nonblocking).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(SIZE_LIMIT + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| SIZE_LIMIT < length) {
        return Err(io::Error::other(format!("larger than {SIZE_LIMIT} bytes")));
    }
    Ok(Some(bytes))
}

/// Makes the folder and its parents, for the owner only.
pub(super) fn create_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Creates a file with its whole content at once; returns false when there is one already.
pub(super) fn create(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let temporary = Temporary::write(path, bytes)?;
    match std::fs::hard_link(&temporary.path, path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts a file in the place of what is there.
pub(super) fn replace(path: &Path, bytes: &[u8], synced: bool) -> io::Result<()> {
    let temporary = Temporary::write(path, bytes)?;
    if synced {
        temporary.file.sync_all()?;
    }
    std::fs::rename(&temporary.path, path)?;
    if synced && let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

/// Removes a file; false when there was none.
pub(super) fn remove(path: &Path) -> io::Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A file on its way; removed when dropped, which after a rename finds nothing.
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Temporary {
    fn write(target: &Path, bytes: &[u8]) -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let dir = target.parent().unwrap_or(Path::new("."));
        loop {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!("{TEMPORARY}{}-{number}.tmp", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => {
                    let mut temporary = Temporary { path, file };
                    temporary.file.write_all(bytes)?;
                    return Ok(temporary);
                }
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
