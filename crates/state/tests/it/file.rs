//! A file is complete or absent.

use std::fs;

use state::{
    Durability, FileError, create_locked, publish, read_optional, remove_file, withdraw,
    write_atomic,
};
use testkit::watcher::{Runtime, Watcher};

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

/// A container runtime that watches a folder notices when a published file is added, changed and
/// removed, and never sees a part of it.
#[test]
fn what_is_published_is_noticed_by_every_runtime() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("10-a.conflist");
    let watcher = Watcher::new(dir.path());
    let noticed = |what: &str| {
        let seen = watcher.look();
        for runtime in [Runtime::Containerd, Runtime::CriO] {
            assert!(seen.is_noticed(runtime, "10-a.conflist"), "{what}, {runtime:?}: {seen:#?}");
        }
        assert_eq!(seen.half_written(), [""; 0], "{what}: {seen:#?}");
    };
    for (content, mode, durability) in [
        ("first", 0o644, Durability::Synced),
        ("changed", 0o600, Durability::Volatile),
        ("executable", 0o755, Durability::Volatile),
    ] {
        publish(&path, content.as_bytes(), mode, durability).unwrap();
        noticed(content);
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
        assert_eq!(mode_of(&path), mode);
    }
    assert!(withdraw(&path).unwrap());
    noticed("removed");
    assert!(!withdraw(&path).unwrap());
    assert_eq!(names_in(dir.path()), [""; 0]);
}

/// The next writer takes over what a killed one left, and so does the call that removes the file.
#[test]
fn what_a_killed_writer_left_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("10-a.conflist");
    let left = dir.path().join(".10-a.conflist.new.tmp");
    fs::write(&left, "a part, and longer than what is written now").unwrap();
    publish(&path, b"whole", 0o600, Durability::Synced).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
    assert_eq!(names_in(dir.path()), ["10-a.conflist"]);
    fs::write(&left, "a part").unwrap();
    assert!(withdraw(&path).unwrap());
    assert_eq!(names_in(dir.path()), [""; 0]);
    // A link that another user planted there is not followed.
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &left).unwrap();
    publish(&path, b"whole", 0o600, Durability::Synced).unwrap_err();
    assert!(!dir.path().join("elsewhere").exists());
}

#[test]
fn writers_of_one_published_file_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let contents = [vec![b'a'; 100_000], vec![b'b'; 50_000], vec![b'c'; 10]];
    publish(&path, &contents[0], 0o600, Durability::Volatile).unwrap();
    std::thread::scope(|scope| {
        for content in &contents {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..100 {
                    publish(path, content, 0o600, Durability::Volatile).unwrap();
                }
            });
        }
        for _ in 0..300 {
            let seen = read_optional(&path).unwrap().unwrap();
            assert!(contents.contains(&seen), "a part of {} bytes", seen.len());
        }
    });
    assert_eq!(names_in(dir.path()), ["file"]);
    fs::create_dir_all(dir.path().join("full/of")).unwrap();
    let error = publish(&dir.path().join("full"), b"x", 0o600, Durability::Volatile).unwrap_err();
    assert!(matches!(error, FileError::Rename { .. }), "{error:?}");
    assert_eq!(names_in(dir.path()), ["file", "full"]);
}

#[test]
fn a_file_that_is_created_replaces_none_and_is_locked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let file = create_locked(&path, b"first", 0o600).unwrap().unwrap();
    let other = fs::File::open(&path).unwrap();
    assert!(matches!(other.try_lock(), Err(fs::TryLockError::WouldBlock)));
    drop(file);
    other.try_lock().unwrap();
    assert_eq!(mode_of(&path), 0o600);
    assert!(create_locked(&path, b"second", 0o600).unwrap().is_none());
    assert_eq!(fs::read(&path).unwrap(), b"first");
    assert_eq!(names_in(dir.path()), ["file"]);
    let error = create_locked(&dir.path().join("absent/file"), b"x", 0o600).unwrap_err();
    assert!(error.is_not_found(), "{error:?}");
}
