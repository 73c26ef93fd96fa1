//! Checks whether a user other than root can replace an executable.
//!
//! A plugin runs as root. A user who can write its file, or a folder on the path to it, gains root
//! at the next ADD.

use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::executable_of;

/// While a node has this file, which may be empty, Netwright runs no plugin that a user other than
/// root can change.
pub const REQUIRE_TRUSTED_PLUGINS: &str = "/etc/netwright/require-trusted-plugins";

/// Writable by the group, or by all users.
const OTHERS_WRITE: u32 = 0o022;

/// In such a folder users cannot remove or rename files of other users (`man 7 inode` S_ISVTX).
const STICKY: u32 = 0o1000;

/// A file or folder that a user other than root can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distrust {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: Reason,
}

/// The reason why a file or folder is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It belongs to a user that is neither root nor the one running this.
    Owner(u32),
    /// It belongs to a user whom the caller's user namespace does not have, and who is shown under
    /// this number: the machine's root, or anybody else.
    Outside(u32),
    /// Its group, or all users, may write to it.
    Mode(u32),
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.reason {
            Reason::Owner(user) => write!(f, "{path} belongs to user {user}, not to root"),
            Reason::Outside(user) => write!(
                f,
                "{path} belongs to a user whom this user namespace does not have (shown as {user})"
            ),
            Reason::Mode(mode) => write!(f, "{path} can be written by others (mode {mode:04o})"),
        }
    }
}

/// Lists what other users can change on the path to a file: the file, the folders above it, the
/// targets of links, and the executable that the file names. A missing file or folder is not listed,
/// nor is one whose owner the caller's user namespace does not have: mostly it is the machine's root.
#[must_use]
pub fn distrust(file: &Path) -> Vec<Distrust> {
    let mut found = unproved(file);
    found.retain(|one| !matches!(one.reason, Reason::Outside(_)));
    found
}

/// Does what [`distrust`] does, and lists what it does not show to be safe: the owner may be anybody.
pub(crate) fn unproved(file: &Path) -> Vec<Distrust> {
    let own = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    let mut look = |path: &Path| {
        let metadata = fs::symlink_metadata(path).ok();
        let reason = metadata.and_then(|metadata| judge(&metadata, own));
        if let Some(reason) = reason {
            let distrust = Distrust { path: path.to_owned(), reason };
            if !found.contains(&distrust) {
                found.push(distrust);
            }
        }
    };
    for file in [Some(file.to_owned()), executable_of(file)].into_iter().flatten() {
        file.ancestors().for_each(&mut look);
        if let Ok(target) = file.canonicalize() {
            target.ancestors().for_each(&mut look);
        }
    }
    found
}

/// Reports whether the owner is a user whom the caller's user namespace does not have: the caller
/// cannot tell the machine's root from others there.
fn is_outside(metadata: &Metadata) -> bool {
    kernel::users::outside() == Some(metadata.uid())
}

fn judge(metadata: &Metadata, own: u32) -> Option<Reason> {
    // A link's own mode does not matter; its folder and its target do.
    if metadata.file_type().is_symlink() {
        return None;
    }
    let owner = metadata.uid();
    let is_outside = is_outside(metadata);
    if owner != 0 && owner != own && !is_outside {
        return Some(Reason::Owner(owner));
    }
    let mode = metadata.permissions().mode() & 0o7777;
    let kept = metadata.is_dir() && mode & STICKY != 0;
    if mode & OTHERS_WRITE != 0 && !kept {
        return Some(Reason::Mode(mode));
    }
    is_outside.then_some(Reason::Outside(owner))
}
