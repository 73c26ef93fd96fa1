//! Whole files or none.

use std::fs;

use state::{Durability, FileError, read_optional, remove_file, write_atomic};

use crate::{mode_of, names_in};

#[test]
fn a_file_is_replaced_with_content_and_mode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    for (content, mode, durability) in [
        (&b"first"[..], 0o600, Durability::Synced),
        (b"second, longer", 0o666, Durability::Volatile),
        (b"", 0o640, Durability::Synced),
    ] {
        write_atomic(&path, content, mode, durability).unwrap();
        assert_eq!(read_optional(&path).unwrap().unwrap(), content);
        assert_eq!(mode_of(&path), mode, "the umask takes nothing away");
    }
    assert_eq!(names_in(dir.path()), ["file"]);
}

#[test]
fn an_empty_folder_in_its_place_gives_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::create_dir(&path).unwrap();
    write_atomic(&path, b"new", 0o600, Durability::Synced).unwrap();
    assert_eq!(read_optional(&path).unwrap().unwrap(), b"new");
    assert_eq!(names_in(dir.path()), ["file"]);
}

#[test]
fn a_failed_write_leaves_the_old_file_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("inside"), "x").unwrap();
    let error = write_atomic(&path, b"new", 0o600, Durability::Synced).unwrap_err();
    assert!(matches!(error, FileError::Rename { .. }), "{error:?}");
    assert_eq!(names_in(dir.path()), ["file"]);
    let error = write_atomic(&dir.path().join("absent/file"), b"x", 0o600, Durability::Volatile);
    assert!(error.unwrap_err().is_not_found());
}

#[test]
fn readers_never_see_a_part() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let contents = [vec![b'a'; 100_000], vec![b'b'; 50_000]];
    write_atomic(&path, &contents[0], 0o600, Durability::Volatile).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (path, contents) = (&path, &contents);
            scope.spawn(move || {
                for _ in 0..200 {
                    write_atomic(path, &contents[writer], 0o600, Durability::Volatile).unwrap();
                }
            });
        }
        for _ in 0..400 {
            let seen = read_optional(&path).unwrap().unwrap();
            assert!(contents.contains(&seen), "a part of {} bytes", seen.len());
        }
    });
    assert_eq!(names_in(dir.path()), ["file"]);
}

#[test]
fn absence_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    for path in ["absent", "absent/below", "file/below"] {
        assert_eq!(read_optional(&dir.path().join(path)).unwrap(), None, "{path}");
        assert!(!remove_file(&dir.path().join(path)).unwrap(), "{path}");
    }
    assert!(remove_file(&dir.path().join("file")).unwrap());
}

#[test]
fn what_is_no_file_is_refused_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    assert!(matches!(read_optional(&fifo), Err(FileError::NotAFile { .. })));
    assert!(matches!(read_optional(dir.path()), Err(FileError::NotAFile { .. })));
    let large = dir.path().join("large");
    fs::File::create(&large).unwrap().set_len(state::MAX_FILE_SIZE + 1).unwrap();
    assert!(matches!(read_optional(&large), Err(FileError::TooLarge { .. })));
}

#[test]
fn files_of_procfs_are_read_though_they_tell_no_size() {
    let boot = state::boot_id().unwrap();
    assert_eq!(boot.len(), 36, "{boot}");
}
