//! The messages that plugins leave for a daemon that does not listen: a folder beside its socket,
//! with one file for each message.
//!
//! A plugin leaves a message only if nothing depends on the answer ([`leave`]); a later message
//! under the same name replaces it. The daemon looks at the folder when it starts and from then on
//! ([`look`]). It takes a file by renaming it, so that it does not confuse it with one that a
//! plugin leaves meanwhile under the same name, and removes it once its message is carried out. It
//! does files first that a killed daemon had taken. So a daemon that is killed at any moment loses
//! nothing, and neither ADD nor DEL waits for one.
//!
//! The folder stays when the daemon ends. A file whose name begins with a dot is not a message: it
//! is one that is being written.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use state::{Durability, FileError};

use crate::line::Message;

/// The mode of the folder.
const FOLDER_MODE: u32 = 0o700;
/// The mode of a message. The folder may belong to the daemon's user, which must read the messages
/// that root left.
const FILE_MODE: u32 = 0o644;
/// The suffix of a file that was taken.
const TAKEN: &str = ".taken";

/// Returns the folder that belongs to a socket: the socket's path and `.todo`.
#[must_use]
pub fn folder(socket: &Path) -> PathBuf {
    crate::beside(socket, ".todo")
}

/// Creates the folder, and returns it.
///
/// # Errors
/// [`FileError`] when it cannot be created.
pub fn open(socket: &Path) -> Result<PathBuf, FileError> {
    let folder = folder(socket);
    state::create_directory(&folder, FOLDER_MODE)?;
    Ok(folder)
}

/// Returns the name of the file for messages about an interface of a container: 32 hexadecimal
/// digits.
#[must_use]
pub fn name(container: &str, ifname: &str) -> String {
    cni::owner::sha512_hex(format!("{container}\0{ifname}"), 32)
}

/// Leaves a message under a name, for a daemon that did not receive it.
///
/// # Errors
/// [`FileError`] when it cannot be written.
pub fn leave(socket: &Path, name: &str, message: &[u8]) -> Result<(), FileError> {
    state::write_atomic(&open(socket)?.join(name), message, FILE_MODE, Durability::Volatile)
}

/// Handles the messages in the folder now; `done` says whether a message can be deleted. What is
/// not a message is deleted. Says whether nothing is left for another look.
pub fn look<M: Message>(folder: &Path, mut done: impl FnMut(M) -> bool) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let files = files.filter(|file| !file.starts_with('.'));
    let names: BTreeSet<String> =
        files.map(|file| file.strip_suffix(TAKEN).unwrap_or(&file).to_owned()).collect();
    let left = names.iter().filter(|name| !look_at(folder, name, &mut done));
    left.count() == 0
}

/// Handles the message with a given name, if there is one. Says whether nothing of it is left.
pub fn look_at<M: Message>(folder: &Path, name: &str, mut done: impl FnMut(M) -> bool) -> bool {
    let taken = folder.join(format!("{name}{TAKEN}"));
    if taken.exists() {
        finish(&taken, &mut done);
    }
    // An older one that failed is still there: the newer one waits.
    if taken.exists() {
        return false;
    }
    if std::fs::rename(folder.join(name), &taken).is_ok() {
        finish(&taken, &mut done);
    }
    !taken.exists()
}

fn finish<M: Message>(path: &Path, done: &mut impl FnMut(M) -> bool) {
    let text = match state::read_optional(path) {
        Ok(Some(text)) => text,
        Ok(None) => return,
        Err(error) => {
            tracing::warn!(%error, "cannot read what a plugin left");
            return;
        }
    };
    let is_done = match M::from_line(&text) {
        Ok(message) => done(message),
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "a plugin left a message that is not valid");
            true
        }
    };
    // Tried again at the next look.
    if !is_done {
        return;
    }
    if let Err(error) = state::remove_file(path) {
        tracing::warn!(%error, "cannot remove what is done");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::{Owner, Request};

    fn release(container: &str) -> Request {
        Request::Release(Owner { container: container.into(), ..Owner::default() })
    }

    #[test]
    fn what_is_left_is_found_until_it_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s.sock");
        let folder = folder(&socket);
        assert_eq!(folder, dir.path().join("s.sock.todo"));
        let leaves = |name: &str, container: &str| {
            leave(&socket, name, &release(container).to_line().unwrap()).unwrap();
        };
        leaves("a", "old");
        leaves("a", "new");
        leaves("b", "other");
        std::fs::write(folder.join(".half"), "").unwrap();
        leave(&socket, "c", b"tea").unwrap();
        let mut seen = Vec::new();
        assert!(!look(&folder, |request: Request| {
            seen.push(request);
            seen.len() == 1
        }));
        assert_eq!(seen, [release("new"), release("other")]);
        assert!(!folder.join("a").exists() && folder.join("b.taken").exists());
        assert!(!folder.join("c").exists(), "nonsense goes");
        // Another one of that name waits for it.
        leaves("b", "later");
        assert!(!look_at(&folder, "b", |request: Request| request == release("later")));
        assert!(look_at(&folder, "a", |request: Request| panic!("{request:?} is done")));
        let mut seen = Vec::new();
        assert!(look(&folder, |request: Request| {
            seen.push(request);
            true
        }));
        assert_eq!(seen, [release("other"), release("later")]);
        assert!(look(&folder, |request: Request| panic!("{request:?} is done")));
    }
}
