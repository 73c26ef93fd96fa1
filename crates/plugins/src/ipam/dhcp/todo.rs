//! Notes about leases that must be released although no daemon is running.
//!
//! The daemon creates a folder beside its socket, `<socket>.todo`, and leaves it there when it
//! ends. If no daemon answers, DEL puts a note into it; the daemon processes notes when it starts,
//! and every few seconds. If there is no such folder, no daemon has run since the machine started,
//! and there is no lease to release.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cni::AttachmentKey;
use state::{Durability, FileError};

/// The mode of notes.
const MODE: u32 = 0o600;

/// Returns the folder that belongs to a socket.
#[must_use]
pub fn folder(socket: &Path) -> PathBuf {
    let mut name: OsString = socket.into();
    name.push(".todo");
    name.into()
}

/// Leaves a note to release an attachment's lease.
///
/// # Errors
/// [`FileError`] when it cannot be written.
pub fn leave(socket: &Path, key: &AttachmentKey) -> Result<(), FileError> {
    let folder = folder(socket);
    if !folder.is_dir() {
        return Ok(());
    }
    let bytes = serde_json::to_vec(key).expect("a key has string keys only");
    state::write_atomic(
        &folder.join(format!("{}.json", key.hash())),
        &bytes,
        MODE,
        Durability::Volatile,
    )
}

/// Reads every note; an invalid one is returned by its path only, so that it can be removed.
#[must_use]
pub fn notes(folder: &Path) -> Vec<(PathBuf, Option<AttachmentKey>)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let paths = entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .map(|entry| entry.path());
    paths
        .map(|path| {
            let bytes = state::read_optional(&path).ok().flatten().unwrap_or_default();
            let key = serde_json::from_slice(&bytes).ok();
            (path, key)
        })
        .collect()
}
