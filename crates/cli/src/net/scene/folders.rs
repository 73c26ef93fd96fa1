//! Says what is wrong with the folders that an ADD writes to.

use std::path::Path;

use rustix::fs::{Access, StatVfs, access, statvfs};
use rustix::io::Errno;
use scene::Folder;

use crate::net::session::Session;

/// Reads the folders of our runtime and of our plugins. Those of address pools are read with the
/// pools.
pub(super) fn read(session: &Session) -> Vec<Folder> {
    let folders = [
        (session.runtime.cache().results_dir(), "what is attached"),
        (session.roots.run.as_path(), "the plugins' records"),
    ];
    let folder = |(path, holds): (&Path, &str)| Folder {
        path: path.display().to_string(),
        holds: holds.to_owned(),
        trouble: trouble(path).map(str::to_owned),
    };
    folders.map(folder).into()
}

/// Says why root could not write to a folder, or make it: its file system is read-only or full, or
/// it is immutable. A right that only this caller lacks does not count.
pub(super) fn trouble(folder: &Path) -> Option<&'static str> {
    let there = folder.ancestors().find(|path| path.symlink_metadata().is_ok())?;
    if !there.is_dir() {
        return Some("a part of its path is not a folder");
    }
    let refused = access(there, Access::WRITE_OK | Access::EXEC_OK);
    match refused {
        Err(Errno::ROFS) => Some("its file system is read-only"),
        Err(Errno::PERM) => Some("it is immutable"),
        _ => full(&statvfs(there).ok()?),
    }
}

/// A file system that counts nothing has no limit.
fn full(file_system: &StatVfs) -> Option<&'static str> {
    if file_system.f_blocks != 0 && file_system.f_bfree == 0 {
        Some("its file system has no space left")
    } else if file_system.f_files != 0 && file_system.f_ffree == 0 {
        Some("its file system takes no more files")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_missing_is_made_in_the_nearest_above_it() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(trouble(&folder.path().join("a/b")), None);
        std::fs::write(folder.path().join("file"), "").unwrap();
        let below = trouble(&folder.path().join("file/b"));
        assert_eq!(below, Some("a part of its path is not a folder"));
    }

    #[test]
    fn a_file_system_may_be_full() {
        let folder = tempfile::tempdir().unwrap();
        let mut file_system = statvfs(folder.path()).unwrap();
        (file_system.f_blocks, file_system.f_bfree) = (100, 0);
        assert_eq!(full(&file_system), Some("its file system has no space left"));
        file_system.f_blocks = 0;
        (file_system.f_files, file_system.f_ffree) = (100, 0);
        assert_eq!(full(&file_system), Some("its file system takes no more files"));
        file_system.f_ffree = 1;
        assert_eq!(full(&file_system), None);
    }
}
