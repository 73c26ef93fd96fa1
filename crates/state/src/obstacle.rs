//! What keeps files from being made in a folder.

use std::path::Path;

use rustix::fs::{Access, StatVfs, access, statvfs};
use rustix::io::Errno;

/// Says why root could not make a file in a folder, which is made too if it is missing: its file
/// system is read-only or full, or it is immutable. A right that only this caller lacks does not
/// count.
#[must_use]
pub fn obstacle(folder: &Path) -> Option<&'static str> {
    let is_there = |path: &&Path| path.symlink_metadata().is_ok();
    let (missing, there) = (0..).zip(folder.ancestors()).find(|(_, path)| is_there(path))?;
    if !there.is_dir() {
        return Some("a part of its path is not a folder");
    }
    let refused = access(there, Access::WRITE_OK | Access::EXEC_OK);
    match refused {
        Err(Errno::ROFS) => Some("its file system is read-only"),
        Err(Errno::PERM) => Some("it is immutable"),
        _ => full(&statvfs(there).ok()?, missing + 1),
    }
}

/// Says why a file system does not take some more files. One that counts nothing has no limit.
fn full(file_system: &StatVfs, more: u64) -> Option<&'static str> {
    if file_system.f_blocks != 0 && file_system.f_bfree == 0 {
        Some("its file system has no space left")
    } else if file_system.f_files != 0 && file_system.f_ffree < more {
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
        assert_eq!(obstacle(&folder.path().join("a/b")), None);
        std::fs::write(folder.path().join("file"), "").unwrap();
        let below = obstacle(&folder.path().join("file/b"));
        assert_eq!(below, Some("a part of its path is not a folder"));
    }

    #[test]
    fn a_file_system_may_be_full() {
        let folder = tempfile::tempdir().unwrap();
        let mut file_system = statvfs(folder.path()).unwrap();
        (file_system.f_blocks, file_system.f_bfree) = (100, 0);
        assert_eq!(full(&file_system, 1), Some("its file system has no space left"));
        file_system.f_blocks = 0;
        (file_system.f_files, file_system.f_ffree) = (100, 0);
        assert_eq!(full(&file_system, 1), Some("its file system takes no more files"));
        file_system.f_ffree = 1;
        assert_eq!(full(&file_system, 1), None);
        // A folder that is missing is one file more.
        assert_eq!(full(&file_system, 2), Some("its file system takes no more files"));
    }
}
