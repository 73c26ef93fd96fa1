//! One writer at a time, with bounded waits.
//!
//! A lock is an exclusive `flock` on a file below `/run/netwright/locks`, which ends with its
//! process. Waiting has a deadline, and the error names the holder. A symbolic link is not
//! followed. If the file was removed between opening and locking, the process opens and locks a new
//! one. So the last user of a folder can remove it, and no process is kept out by a lock on a file
//! that is gone.
//!
//! A waiter tries for a millisecond. Then a thread of it waits in the kernel, which wakes waiters
//! one at a time, in their order. (Waiters that tried every 5 ms took the processors from the
//! holder: of 500 ADDs at once on two processors some failed after 30 s.)

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// `man 2 open` O_NOFOLLOW.
const NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// The first wait between two tries: about as long as a holder needs.
const FIRST_WAIT: Duration = Duration::from_micros(100);
/// The wait after which tries end and the kernel's queue begins.
const LAST_WAIT: Duration = Duration::from_millis(1);
/// The wait between two tries where no thread can be started.
const LONGEST_WAIT: Duration = Duration::from_millis(5);

/// The shortest time for which the queue is worth a thread.
const LEAST_QUEUED: Duration = Duration::from_millis(100);

/// How many threads of one process may wait at once; more waiters try again and again. A waiter that
/// gave up leaves its thread until the lock is free.
const MOST_QUEUED: usize = 64;

/// How many threads of this process wait.
static QUEUED: AtomicUsize = AtomicUsize::new(0);

/// The stack of a thread that waits: it makes one system call.
const STACK: usize = 64 * 1024;

/// An exclusive `flock` on a file (`man 2 flock`), released on drop or when the process ends.
///
/// The file's content is neither read nor written: the reference plugins lock their lock files the
/// same way and leave them empty. Only a process that holds the lock removes the file
/// (`remove_unless_held`): a lock on a removed file excludes no other process, so a process that
/// waits for it looks again whether the file is still there.
#[derive(Debug)]
pub struct Lock {
    pub(crate) file: File,
}

/// The process that holds a lock, as far as procfs shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The process that took the lock; its children may be what keeps it.
    pub pid: u32,
    /// Its command line; empty when it is gone or hidden.
    pub command: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command.as_str() {
            "" => write!(f, "process {}, which is not visible", self.pid),
            command => write!(f, "process {} ({command})", self.pid),
        }
    }
}

/// Why a lock could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process held it until the deadline. Trying again later may help.
    #[error(
        "lock {path:?}: held by {} for longer than {waited:?}",
        holder.as_ref().map_or_else(|| "a process that is not visible".to_owned(), ToString::to_string)
    )]
    Busy {
        /// The lock's file.
        path: PathBuf,
        /// The holder at the end of the wait.
        holder: Option<Holder>,
        /// How long we waited.
        waited: Duration,
    },
    /// The file could not be opened or made.
    #[error("open lock file {path:?}")]
    Open {
        /// The lock's file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The file system does not support locks.
    #[error("lock {path:?}")]
    Lock {
        /// The lock's file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl LockError {
    /// Says whether trying again later may help.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, LockError::Busy { .. })
    }

    /// Says whether the lock's directory does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, LockError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

impl Lock {
    /// Takes the lock, waiting at most `deadline` for others. Creates the file if it is missing,
    /// but not its directory.
    ///
    /// # Errors
    /// [`LockError::Busy`] names the holder.
    pub fn acquire(path: &Path, deadline: Duration) -> Result<Lock, LockError> {
        let begin = Instant::now();
        loop {
            let lock = wait_for(open(path)?, path, deadline.saturating_sub(begin.elapsed()))?;
            // If the file was removed between our opening and our locking, others lock another file
            // by now.
            if !is_removed(&lock.file) {
                return Ok(lock);
            }
        }
    }
}

/// Locks an open file, waiting at most `deadline` for others.
///
/// A few tries come first: most holders need less than a millisecond. Then a thread waits in the
/// kernel, which wakes those that wait one at a time, in their order (linux fs/locks.c
/// `__locks_insert_block`). A newcomer's try may still take a lock that is free for a moment; the
/// one that was woken then waits again. Five hundred processes that tried again and again would take the
/// processors from the one that holds the lock.
pub(crate) fn wait_for(file: File, path: &Path, deadline: Duration) -> Result<Lock, LockError> {
    let begin = Instant::now();
    let mut wait = FIRST_WAIT;
    let mut queued = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Lock { file }),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(source)) => {
                return Err(LockError::Lock { path: path.to_owned(), source });
            }
            Err(TryLockError::WouldBlock) => {
                let waited = begin.elapsed();
                let Some(left) = deadline.checked_sub(waited).filter(|left| !left.is_zero()) else {
                    let holder = holder_of(&file);
                    return Err(LockError::Busy { path: path.to_owned(), holder, waited });
                };
                if LAST_WAIT < wait && LEAST_QUEUED < left && !queued {
                    queued = true;
                    if in_queue(&file, left) == Some(true) {
                        return Ok(Lock { file });
                    }
                } else {
                    std::thread::sleep(wait.min(left));
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
        }
    }
}

/// Waits in the kernel's queue; returns whether the lock was taken. `None` if it was not taken in
/// time, or no thread could be started.
///
/// A thread that is too late goes on waiting. It shares the open file, so the lock that it gets is
/// released when it closes its copy, at once, or when the process ends.
fn in_queue(file: &File, timeout: Duration) -> Option<bool> {
    if MOST_QUEUED <= QUEUED.load(Ordering::Relaxed) {
        return None;
    }
    let (taken, wait) = mpsc::sync_channel(1);
    let shared = file.try_clone().ok()?;
    let queue = move || {
        let locked = loop {
            match shared.lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                locked => break locked.is_ok(),
            }
        };
        // Closed before the other side can go on: the lock has one holder then.
        drop(shared);
        QUEUED.fetch_sub(1, Ordering::Relaxed);
        let _ = taken.send(locked);
    };
    let thread = std::thread::Builder::new().name("lock".to_owned()).stack_size(STACK);
    QUEUED.fetch_add(1, Ordering::Relaxed);
    let started = thread.spawn(queue);
    let Ok(thread) = started else {
        QUEUED.fetch_sub(1, Ordering::Relaxed);
        return None;
    };
    let locked = wait.recv_timeout(timeout).ok()?;
    // The process has one thread again: some calls of the kernel demand that.
    let _ = thread.join();
    Some(locked)
}

impl Lock {
    /// Takes the lock on a directory that may not exist, waiting at most `deadline` for others.
    /// `None` if it does not exist, or if its last user removed it meanwhile.
    ///
    /// # Errors
    /// [`LockError::Busy`] names the holder.
    pub fn acquire_directory(path: &Path, deadline: Duration) -> Result<Option<Lock>, LockError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(LockError::Open { path: path.to_owned(), source }),
        };
        let lock = wait_for(file, path, deadline)?;
        Ok((!is_removed(&lock.file)).then_some(lock))
    }

    /// Returns the open file that carries the lock.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Takes the lock on a directory if it exists and no process holds the lock.
    pub(crate) fn try_directory(path: &Path) -> Option<Lock> {
        let file = File::open(path).ok()?;
        file.try_lock().ok()?;
        Some(Lock { file })
    }
}

fn open(path: &Path) -> Result<File, LockError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        // A planted link would make root create a file elsewhere.
        .custom_flags(NOFOLLOW)
        .open(path)
        .map_err(|source| LockError::Open { path: path.to_owned(), source })
}

/// Says whether the file no longer has a name.
fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
}

/// Removes a lock's file unless a process holds the lock. A process that waits for it notices and
/// creates a new one.
pub(crate) fn remove_unless_held(path: &Path) {
    if let Ok(lock) = Lock::acquire(path, Duration::ZERO) {
        // Best effort: a file that stays is empty.
        let _ = std::fs::remove_file(path);
        drop(lock.file);
    }
}

/// Finds the holder of a lock in the kernel's own list, so that a process of any program is named.
fn holder_of(file: &File) -> Option<Holder> {
    let metadata = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = holder_in(&table, major, minor, metadata.ino())?;
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = command
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    Some(Holder { pid, command: words.join(" ") })
}

/// Reads a table as `man 5 proc_locks` describes it.
fn holder_in(table: &str, major: u32, minor: u32, inode: u64) -> Option<u32> {
    let place = format!("{major:02x}:{minor:02x}:{inode}");
    let inode = format!(":{inode}");
    let holders = || {
        table.lines().filter_map(|line| {
            // For waiting processes the kernel prints `->` before the type, so the second word
            // differs.
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [_, "FLOCK", _, "WRITE", pid, place, ..] => Some((pid.parse().ok()?, place)),
                _ => None,
            }
        })
    };
    // btrfs shows files under another device number than stat does, so there the inode alone must
    // do.
    let exact = holders().find(|(_, at)| *at == place);
    let found = exact.or_else(|| holders().find(|(_, at)| at.ends_with(&inode)));
    found.map(|(pid, _)| pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
1: POSIX  ADVISORY  WRITE 700 fe:00:42 0 EOF
2: FLOCK  ADVISORY  WRITE 701 00:1a:42 0 EOF
3: FLOCK  ADVISORY  WRITE 702 fe:00:42 0 EOF
3: -> FLOCK  ADVISORY  WRITE 703 fe:00:42 0 EOF
4: FLOCK  ADVISORY  READ 704 fe:00:43 0 EOF
garbage
";

    #[test]
    fn the_holder_is_the_flock_on_that_inode() {
        assert_eq!(holder_in(TABLE, 0xfe, 0, 42), Some(702));
        assert_eq!(holder_in(TABLE, 0x99, 0, 42), Some(701));
        assert_eq!(holder_in(TABLE, 0xfe, 0, 43), None);
        assert_eq!(holder_in("", 0xfe, 0, 42), None);
    }
}
