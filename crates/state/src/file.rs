//! Reads and writes whole files or none.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::lock::LockError;

/// The largest file that is read: no file of ours comes near it, and a foreign file must not fill
/// memory.
pub const MAX_FILE_SIZE: u64 = 16 * 1024 * 1024;

/// How many names are tried for a temporary file. Names contain our process ID and a counter, so a
/// second try is needed only if a killed process with the same ID left a file behind.
const TEMPORARY_NAMES: u32 = 64;

/// What must be on the disk when a write returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// File and directory are flushed: the content survives a power cut.
    Synced,
    /// Nothing is flushed; for files that a reboot makes worthless anyway.
    Volatile,
}

/// Which operation on which file failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A directory could not be made.
    #[error("create directory {path:?}")]
    CreateDirectory {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file could not be made.
    #[error("create {path:?}")]
    Create {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("write {path:?}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file or directory could not be flushed to the disk.
    #[error("flush {path:?} to the disk")]
    Sync {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another process is writing the file and does not finish.
    #[error("write {path:?}")]
    Busy {
        /// The file.
        path: PathBuf,
        /// The lock error, which names the writer.
        source: LockError,
    },
    /// A finished temporary file could not be renamed to its final name.
    #[error("rename {from:?} to {to:?}")]
    Rename {
        /// The temporary file, which was removed.
        from: PathBuf,
        /// The place.
        to: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file could not be opened or read.
    #[error("read {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The path leads to something other than a regular file.
    #[error("read {path:?}: not a regular file")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file is larger than [`MAX_FILE_SIZE`].
    #[error("read {path:?}: {size} bytes are more than any file of ours has")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
    /// A file or directory could not be removed.
    #[error("remove {path:?}")]
    Remove {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A directory could not be listed.
    #[error("list directory {path:?}")]
    List {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl FileError {
    /// Says whether the cause is that a path does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.io().is_some_and(|source| source.kind() == io::ErrorKind::NotFound)
    }

    /// Says whether a file that may be ours and intact could not be read. A link that is not
    /// followed is not ours, and behind a loop of links or a name that is too long is nothing.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        let leads_nowhere = |source: &io::Error| {
            matches!(Errno::from_io_error(source), Some(Errno::LOOP | Errno::NAMETOOLONG))
        };
        matches!(self, FileError::Read { source, .. } if !leads_nowhere(source))
    }

    /// Says whether the file to be made exists already.
    pub(crate) fn is_exists(&self) -> bool {
        self.io().is_some_and(|source| source.kind() == io::ErrorKind::AlreadyExists)
    }

    fn io(&self) -> Option<&io::Error> {
        match self {
            FileError::CreateDirectory { source, .. }
            | FileError::Create { source, .. }
            | FileError::Write { source, .. }
            | FileError::Sync { source, .. }
            | FileError::Rename { source, .. }
            | FileError::Read { source, .. }
            | FileError::Remove { source, .. }
            | FileError::List { source, .. } => Some(source),
            FileError::NotAFile { .. } | FileError::TooLarge { .. } | FileError::Busy { .. } => {
                None
            }
        }
    }
}

/// Replaces a file, or an empty folder in its place, in one step: readers see the old content or
/// the new, never a part.
///
/// A new file gets its name once it is complete. To replace a file, the content is written to a
/// temporary file in the same directory, whose name begins with a dot and ends in `.tmp`, and
/// renamed. A process killed in between leaves at most that temporary file.
///
/// Only for folders that no other program watches: a watcher may not notice a file that appears in
/// this way. Files that other programs watch are written by [`publish`](crate::publish()).
///
/// # Errors
/// [`FileError`]; the file is then unchanged, except that after a failed flush of the *directory*
/// the new content is visible but may not survive a power cut.
pub fn write_atomic(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    durability: Durability,
) -> Result<(), FileError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    write_atomic_through(directory, path, bytes, mode, durability)
}

/// Writes like [`write_atomic`], with the temporary file in another directory of the same file
/// system.
pub(crate) fn write_atomic_through(
    temporary_directory: &Path,
    path: &Path,
    bytes: &[u8],
    mode: u32,
    durability: Durability,
) -> Result<(), FileError> {
    if link_complete(temporary_directory, path, bytes, mode, durability)? {
        return match (durability, path.parent()) {
            (Durability::Synced, Some(parent)) => sync_directory(parent),
            _ => Ok(()),
        };
    }
    let (temporary, mut file) = create_temporary(temporary_directory, path, mode)?;
    let filled = fill(&mut file, &temporary, bytes, mode, durability);
    // Closed before it gets its name: an executable that is open for writing cannot be executed.
    drop(file);
    let written = filled.and_then(|()| rename(&temporary, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    match (durability, path.parent()) {
        (Durability::Synced, Some(parent)) => sync_directory(parent),
        _ => Ok(()),
    }
}

/// Renames a finished file to its final name.
pub(crate) fn rename(temporary: &Path, path: &Path) -> Result<(), FileError> {
    let renamed = match fs::rename(temporary, path) {
        // An empty folder in the file's place holds no information, so it is removed, even if
        // another program made it.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            fs::remove_dir(path).and_then(|()| fs::rename(temporary, path))
        }
        renamed => renamed,
    };
    renamed.map_err(|source| FileError::Rename {
        from: temporary.to_owned(),
        to: path.to_owned(),
        source,
    })
}

/// The owner's bits of a mode.
const OWNERS: u32 = 0o700;

/// The bits of a mode that make a file executable.
const EXECUTABLE: u32 = 0o111;

/// Writes a file without a name and then links it: `false` when a file of that name exists, or the
/// file system does not support unnamed files (`man 2 open`, O_TMPFILE). Nothing is left then.
///
/// A missing directory is an error: the other method could not write there either, and a temporary
/// file in another directory would stay if we were killed.
fn link_complete(
    directory: &Path,
    path: &Path,
    bytes: &[u8],
    mode: u32,
    durability: Durability,
) -> Result<bool, FileError> {
    // The file is linked while it is open, and an executable that is open for writing cannot be
    // executed.
    if mode & EXECUTABLE != 0 {
        return Ok(false);
    }
    let Some(mut file) = open_unnamed(directory, path, mode)? else { return Ok(false) };
    fill(&mut file, path, bytes, mode, durability)?;
    match link(&file, path) {
        Err(source) if path.parent().is_some_and(|parent| !parent.exists()) => {
            Err(FileError::Create { path: path.to_owned(), source: source.into() })
        }
        linked => Ok(linked.is_ok()),
    }
}

/// Opens a new file without a name; `None` when the file system does not support them.
fn open_unnamed(directory: &Path, path: &Path, mode: u32) -> Result<Option<File>, FileError> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::from_raw_mode(mode)) {
        Ok(descriptor) => Ok(Some(File::from(descriptor))),
        Err(Errno::NOENT) => {
            let source = Errno::NOENT.into();
            Err(FileError::Create { path: path.to_owned(), source })
        }
        Err(_) => Ok(None),
    }
}

/// Gives a file without a name its name.
fn link(file: &File, path: &Path) -> Result<(), Errno> {
    match rustix::fs::linkat(file, "", CWD, path, AtFlags::EMPTY_PATH) {
        // Either the path or CAP_DAC_READ_SEARCH is missing; linking through /proc does not need
        // the latter.
        Err(Errno::NOENT) => {
            let from = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(CWD, &from, CWD, path, AtFlags::SYMLINK_FOLLOW)
        }
        linked => linked,
    }
}

/// Creates a file with its whole content, locked (`man 2 flock`) before any process can see it, and
/// returns it; `None` when there is a file of that name, which stays as it is. The lock ends when
/// the file is closed; a file system without locks gives none.
///
/// Of two processes that create a name at the same time one gets it. A process killed in between
/// leaves nothing, or, on a file system without unnamed files, what [`remove_abandoned`] removes.
///
/// # Errors
/// [`FileError::Create`] or [`FileError::Write`]; nothing is created then.
pub fn create_locked(path: &Path, bytes: &[u8], mode: u32) -> Result<Option<File>, FileError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    if let Some(mut file) = open_unnamed(directory, path, mode)? {
        let _ = file.lock();
        fill(&mut file, path, bytes, mode, Durability::Volatile)?;
        match link(&file, path) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::EXIST) => return Ok(None),
            Err(_) => {}
        }
    }
    let (temporary, mut file) = create_temporary(directory, path, mode)?;
    let _ = file.lock();
    let linked = fill(&mut file, &temporary, bytes, mode, Durability::Volatile).and_then(|()| {
        match fs::hard_link(&temporary, path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(FileError::Create { path: path.to_owned(), source }),
        }
    });
    let _ = fs::remove_file(&temporary);
    Ok(linked?.then_some(file))
}

/// Replaces a file, or creates it, by one that is locked (`man 2 flock`) before any process can see
/// it, and returns that one. The lock ends when the file is closed; a file system without locks gives
/// none. A process killed in between leaves what [`remove_abandoned`] removes.
///
/// # Errors
/// [`FileError::Create`], [`FileError::Write`] or [`FileError::Rename`]; nothing is replaced then.
pub fn replace_locked(path: &Path, bytes: &[u8], mode: u32) -> Result<File, FileError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let (temporary, mut file) = create_temporary(directory, path, mode)?;
    let _ = file.lock();
    let filled = fill(&mut file, &temporary, bytes, mode, Durability::Volatile);
    if let Err(error) = filled.and_then(|()| rename(&temporary, path)) {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    Ok(file)
}

fn create_temporary(
    directory: &Path,
    path: &Path,
    mode: u32,
) -> Result<(PathBuf, File), FileError> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default();
    let mut tries = 0;
    loop {
        tries += 1;
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}.{count}.tmp", std::process::id()));
        let temporary = directory.join(temporary);
        match OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && tries < TEMPORARY_NAMES => {}
            Err(source) => return Err(FileError::Create { path: temporary, source }),
        }
    }
}

fn fill(
    file: &mut File,
    path: &Path,
    bytes: &[u8],
    mode: u32,
    durability: Durability,
) -> Result<(), FileError> {
    let failed = |source| FileError::Write { path: path.to_owned(), source };
    file.write_all(bytes).map_err(failed)?;
    // The umask may have removed bits that the caller asked for; it is assumed never to remove the
    // owner's.
    if mode & !OWNERS != 0 {
        file.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed)?;
    }
    match durability {
        Durability::Volatile => Ok(()),
        Durability::Synced => {
            file.sync_all().map_err(|source| FileError::Sync { path: path.to_owned(), source })
        }
    }
}

/// Removes temporary files of a directory whose writer was killed.
///
/// A file that cannot be removed does no harm: readers skip it.
pub fn remove_abandoned(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let writer = name.to_str().and_then(writer_of);
        if writer.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns the process that writes a temporary file, from its name: `.NAME.PID.COUNT.tmp`.
fn writer_of(name: &str) -> Option<u32> {
    let mut parts = name.strip_prefix('.')?.strip_suffix(".tmp")?.rsplit('.');
    parts.next()?.parse::<u64>().ok()?;
    parts.next()?.parse().ok()
}

/// Flushes a directory's entries to the disk.
///
/// # Errors
/// [`FileError::Sync`].
pub fn sync_directory(path: &Path) -> Result<(), FileError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| FileError::Sync { path: path.to_owned(), source })
}

/// Reads a file that may not exist; `None` when it, or a directory above it, does not.
///
/// Never blocks: anything but a regular file (a FIFO, say) is an error.
///
/// # Errors
/// [`FileError::Read`], [`FileError::NotAFile`] or [`FileError::TooLarge`].
pub fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    read_with(path, OFlags::empty())
}

/// Reads a file of ours, like [`read_optional`]; a link in its place is not followed.
pub(crate) fn read_own(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    read_with(path, OFlags::NOFOLLOW)
}

fn read_with(path: &Path, more: OFlags) -> Result<Option<Vec<u8>>, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY | more;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(descriptor) => File::from(descriptor),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(errno) => return Err(failed(errno.into())),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(FileError::NotAFile { path: path.to_owned() });
    }
    if MAX_FILE_SIZE < metadata.len() {
        return Err(FileError::TooLarge { path: path.to_owned(), size: metadata.len() });
    }
    let length = usize::try_from(metadata.len()).unwrap_or_default();
    let mut bytes = Vec::with_capacity(length + 1);
    rustix::io::retry_on_intr(|| rustix::io::read(&file, spare_capacity(&mut bytes)))
        .map_err(|errno| failed(errno.into()))?;
    // Unless the file has grown meanwhile, that was all of it.
    if length < bytes.len() {
        file.take(MAX_FILE_SIZE).read_to_end(&mut bytes).map_err(failed)?;
    }
    Ok(Some(bytes))
}

/// Removes a file, or an empty folder in its place; `false` when neither existed.
///
/// # Errors
/// [`FileError::Remove`].
pub fn remove_file(path: &Path) -> Result<bool, FileError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if is_absent(&error) => Ok(false),
        // An empty folder holds no information here either, even if another program made it.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => match fs::remove_dir(path) {
            Ok(()) => Ok(true),
            Err(source) => Err(FileError::Remove { path: path.to_owned(), source }),
        },
        Err(source) => Err(FileError::Remove { path: path.to_owned(), source }),
    }
}

/// Removes a directory if it is empty; `false` when it is not empty or does not exist.
///
/// # Errors
/// [`FileError::Remove`].
pub fn remove_directory(path: &Path) -> Result<bool, FileError> {
    match fs::remove_dir(path) {
        Ok(()) => Ok(true),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::DirectoryNotEmpty
                    | io::ErrorKind::AlreadyExists
                    | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(false)
        }
        Err(source) => Err(FileError::Remove { path: path.to_owned(), source }),
    }
}

/// Creates a directory and those above it, all with `mode`; succeeds if it exists, with any mode.
///
/// # Errors
/// [`FileError::CreateDirectory`].
pub fn create_directory(path: &Path, mode: u32) -> Result<(), FileError> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|source| FileError::CreateDirectory { path: path.to_owned(), source })
}

/// Says whether an error means that the path leads nowhere.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
