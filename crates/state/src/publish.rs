//! Files that other programs watch.
//!
//! Container runtimes watch the folder of network configurations and load it again when inotify
//! reports a change. They differ in the events they listen to:
//!
//! | runtime | loads again at | ignores |
//! |---|---|---|
//! | containerd 1.6 to 2.3 (its `cni_conf_syncer.go`) | MODIFY, DELETE, MOVED_FROM | CREATE, MOVED_TO, ATTRIB |
//! | CRI-O (ocicni) | CREATE, MODIFY, MOVED_TO; DELETE of the file in use | MOVED_FROM, ATTRIB |
//!
//! So a file must appear by a rename *within* its folder: that gives MOVED_FROM and MOVED_TO, both
//! once the file is there. Linking a file to its name gives only CREATE, and a rename from another
//! folder gives only MOVED_TO. libcni and those runtimes load names that end in `.conf`,
//! `.conflist` or `.json`; the temporary file's name does not.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::file::{self, Durability, FileError};
use crate::lock::{self, Lock, LockError};

/// How long to wait for another process that writes the same file: it writes some kilobytes and
/// flushes them.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Replaces a file that other programs may watch, in one step: they are notified, and read the old
/// content or the new.
///
/// The content is written to `.NAME.new.tmp` in the same folder, and renamed. The writer holds a
/// lock on that file (`man 2 flock`), so that two writers take turns, even in different PID
/// namespaces. A killed writer leaves at most that file, and the next writer takes it over.
///
/// # Errors
/// [`FileError`]; the file is then unchanged, except that after a failed flush of the *directory*
/// the new content is visible but may not survive a power cut.
pub fn publish(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    durability: Durability,
) -> Result<(), FileError> {
    let temporary = temporary_of(path);
    let _lock = claim(&temporary)?;
    let written =
        fill(&temporary, bytes, mode, durability).and_then(|()| file::rename(&temporary, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    match (durability, path.parent()) {
        (Durability::Synced, Some(parent)) => file::sync_directory(parent),
        _ => Ok(()),
    }
}

/// Removes a file that was [published](publish), and what a killed writer left of it; `false` if
/// the file did not exist.
///
/// # Errors
/// [`FileError::Remove`].
pub fn withdraw(path: &Path) -> Result<bool, FileError> {
    file::remove_file(&temporary_of(path))?;
    file::remove_file(path)
}

/// Returns the path where a file is written before it gets its name.
fn temporary_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new.tmp"))
}

/// Takes the temporary file for this process alone, even if another process made it.
///
/// It is opened for reading only: an executable that any process has open for writing cannot be
/// executed (`man 2 execve` ETXTBSY).
fn claim(temporary: &Path) -> Result<Lock, FileError> {
    let failed = |source| FileError::Create { path: temporary.to_owned(), source };
    let busy = |source| FileError::Busy { path: temporary.to_owned(), source };
    let flags = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let file = OpenOptions::new()
            .read(true)
            .mode(0o600)
            .custom_flags(flags.bits().cast_signed())
            .open(temporary)
            .map_err(failed)?;
        let left = deadline.saturating_duration_since(Instant::now());
        let lock = lock::wait_for(file, temporary, left).map_err(busy)?;
        if is_at(&lock.file, temporary).map_err(failed)? {
            return Ok(lock);
        }
        // The file got its name, or was removed, before we had the lock. A stream of writers must
        // not keep us waiting for ever.
        if left.is_zero() {
            let waited = TIMEOUT;
            return Err(busy(LockError::Busy { path: temporary.to_owned(), holder: None, waited }));
        }
    }
}

/// Whether a path leads to this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes the whole file and closes it before it gets its name.
fn fill(path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> Result<(), FileError> {
    let failed = |source| FileError::Write { path: path.to_owned(), source };
    let mut file = OpenOptions::new().write(true).truncate(true).open(path).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed)?;
    if durability == Durability::Synced {
        let failed = |source| FileError::Sync { path: path.to_owned(), source };
        file.sync_all().map_err(failed)?;
    }
    Ok(())
}
