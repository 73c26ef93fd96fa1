//! A folder in which our plugins are found under their names.
//!
//! Plugins are looked up in `CNI_PATH`, by us, by plugins that delegate and by foreign plugins that
//! we execute. So that all of them find ours without an installation, every process that drives
//! plugins has a folder of links to our executable for as long as it runs. A process that was killed
//! leaves its folder; the next process removes it.

use std::error::Error as _;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use cni::{Error, code};
use state::Roots;

/// How often the folder is created again after another process removed its parent.
const TRIES: usize = 16;

/// The beginning of the name of a folder that is not locked yet.
const NEW: &str = "new.";

/// Where such folders are created when our file system is full. Every user may write to its parent.
const ELSEWHERE: &str = "/dev/shm/netwright-plugins";

/// What helps a person who may not write there.
pub const HINT: &str = "NETWRIGHT_RUN_DIR can name another folder";

/// The folder; dropping the value removes it.
#[derive(Debug)]
pub struct OwnPlugins {
    dir: PathBuf,
    /// Locked as long as the process lives: its process ID may later belong to another process, or
    /// to one of another PID namespace.
    _lock: Option<File>,
}

/// Why there is no folder.
struct FolderRefusal {
    /// The file system is full: no bytes or no inodes are left.
    is_full: bool,
    error: Error,
}

impl OwnPlugins {
    /// Creates the folder, with links to this executable; in memory if our file system is full, since
    /// DEL and GC, which make room, need it.
    ///
    /// # Errors
    /// Code 5 when no folder can be written.
    pub fn create(roots: &Roots) -> Result<Self, Error> {
        Self::of(&target(), roots)
    }

    /// Does what [`OwnPlugins::create`] does, with links to another executable of ours.
    ///
    /// # Errors
    /// As [`OwnPlugins::create`].
    pub fn of(executable: &Path, roots: &Roots) -> Result<Self, Error> {
        collect(roots, false);
        let made = Self::create_in(&parent(roots), executable);
        made.or_else(|refused| match elsewhere() {
            Some(parent) if refused.is_full => {
                Self::create_in(parent, executable).map_err(|_| refused.error)
            }
            _ => Err(refused.error),
        })
    }

    fn create_in(parent: &Path, executable: &Path) -> Result<Self, FolderRefusal> {
        let own = Self::locked_in(parent)?;
        for plugin in crate::all() {
            let link = own.dir.join(plugin.name());
            symlink(executable, &link).map_err(|error| {
                let text = format!("make {link:?}, where plugins find our own");
                let refusal = Error::new(code::IO_FAILURE, text);
                let refusal = refusal.with_details(cni::json::plain(&error.to_string()));
                FolderRefusal { is_full: is_full(&error), error: refusal }
            })?;
        }
        Ok(own)
    }

    /// Creates an empty folder. It gets its name once it is locked. A folder of that name without a
    /// lock belongs to a process that has ended, even if another process has its ID now.
    fn locked_in(parent: &Path) -> Result<Self, FolderRefusal> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let failed = |error: &state::FileError| {
            let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
            let refusal = Error::new(code::IO_FAILURE, error.to_string());
            let cause = source.map(|source| cni::json::plain(&source.to_string()));
            let refusal = refusal.with_details(cause.unwrap_or_default());
            FolderRefusal { is_full: source.is_some_and(is_full), error: refusal }
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let count = COUNTER.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}.{count}", std::process::id());
            let new = parent.join(format!("{NEW}{name}"));
            match state::create_directory(&new, 0o700) {
                Ok(()) => {}
                // A process that ends removes the parent when it is empty: perhaps just before we
                // create our folder in it.
                Err(_) if tries < TRIES => continue,
                Err(error) => return Err(failed(&error)),
            }
            let lock = File::open(&new).ok().filter(|dir| dir.try_lock().is_ok());
            let dir = parent.join(&name);
            // A process of another PID namespace may have our ID, and a folder of that name.
            let named = !dir.exists() && lock.is_some() && std::fs::rename(&new, &dir).is_ok();
            if named || TRIES <= tries {
                let dir = if named { dir } else { new };
                return Ok(OwnPlugins { dir, _lock: lock });
            }
            let _ = std::fs::remove_dir(&new);
        }
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for OwnPlugins {
    fn drop(&mut self) {
        // If this fails, the next process removes what is left.
        let _ = twice(|| std::fs::remove_dir_all(&self.dir));
        remove_if_empty(self.dir.parent());
    }
}

/// Removes the folders of processes that are gone; returns their paths.
pub fn collect(roots: &Roots, dry_run: bool) -> Vec<PathBuf> {
    let mut stale = collect_in(&parent(roots), dry_run);
    if is_ours(Path::new(ELSEWHERE)) {
        stale.extend(collect_in(Path::new(ELSEWHERE), dry_run));
    }
    stale
}

fn collect_in(parent: &Path, dry_run: bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().filter_map(Result::ok);
    let stale: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|dir| {
            let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let (is_new, name) = match name.strip_prefix(NEW) {
                Some(name) => (true, name),
                None => (false, name),
            };
            let pid = name.split('.').next().and_then(|pid| pid.parse::<u32>().ok());
            let is_free = || File::open(dir).is_ok_and(|dir| dir.try_lock().is_ok());
            let is_dead = |pid| !Path::new(&format!("/proc/{pid}")).exists();
            pid.is_some_and(|pid| (!is_new || is_dead(pid)) && is_free())
        })
        .collect();
    if !dry_run {
        for dir in &stale {
            let _ = std::fs::remove_dir_all(dir);
        }
        remove_if_empty(Some(parent));
    }
    stale
}

/// Returns the parent in memory, if we can use it: every user may create a folder of that name.
fn elsewhere() -> Option<&'static Path> {
    let parent = Path::new(ELSEWHERE);
    state::create_directory(parent, 0o700).ok()?;
    is_ours(parent).then_some(parent)
}

/// Says whether we created the folder, and no other user can write to it.
fn is_ours(dir: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    dir.symlink_metadata()
        .is_ok_and(|found| found.is_dir() && found.uid() == own && found.mode() & 0o077 == 0)
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// The text before and after the list of folders when a plugin is not found (libcni's words).
const LISTED: (&str, char) = (" in path [", ']');

/// Writes such a message for people, without our temporary folder: it is gone when they look for
/// it.
#[must_use]
pub fn without_folder(text: &str) -> String {
    let own = format!("plugins/{}.", std::process::id());
    let listed = text.split_once(LISTED.0).and_then(|(before, rest)| {
        let (dirs, after) = rest.split_once(LISTED.1)?;
        Some((before, dirs, after))
    });
    let Some((before, dirs, after)) = listed else { return text.to_owned() };
    let dirs: Vec<&str> = dirs.split(' ').filter(|dir| !dir.contains(&own)).collect();
    format!("{before} in {}{}", dirs.join(", "), without_folder(after))
}

fn parent(roots: &Roots) -> PathBuf {
    roots.run.join("plugins")
}

/// Removes the parent of such folders, and our folder above it, if they are empty.
fn remove_if_empty(parent: Option<&Path>) {
    let Some(parent) = parent else { return };
    if twice(|| std::fs::remove_dir(parent)).is_ok()
        && parent != Path::new(ELSEWHERE)
        && let Some(run) = parent.parent()
    {
        let _ = twice(|| std::fs::remove_dir(run));
    }
}

/// Removes something, once more if the kernel refused for a reason that may pass (no memory): after
/// the last call on a host, no next process comes.
fn twice(remove: impl Fn() -> std::io::Result<()>) -> std::io::Result<()> {
    remove().or_else(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty => Err(error),
        _ => remove(),
    })
}

/// Says whether a file is this executable, under any name.
#[must_use]
pub fn is_own(executable: &Path) -> bool {
    let own = identity(&by_process());
    own.is_some() && identity(executable) == own
}

fn by_process() -> PathBuf {
    PathBuf::from(format!("/proc/{}/exe", std::process::id()))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|found| (found.dev(), found.ino()))
}

/// Returns a path that leads to this executable as long as this process lives. The plain path does
/// not when the file has since been replaced or removed.
fn target() -> PathBuf {
    let by_process = by_process();
    match std::fs::read_link(&by_process) {
        Ok(path) if identity(&path).is_some() && identity(&path) == identity(&by_process) => path,
        _ => by_process,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_lives_as_long_as_the_value() {
        let scratch = tempfile::tempdir().unwrap();
        let roots = Roots::new(scratch.path().join("run"), scratch.path().join("lib"));
        let own = OwnPlugins::create(&roots).unwrap();
        let other = OwnPlugins::create(&roots).unwrap();
        for plugin in crate::all() {
            let found = cni_invoke::find(plugin.name(), &[own.dir().to_owned()]).unwrap();
            let exe = std::env::current_exe().unwrap();
            assert_eq!(found.metadata().unwrap().ino(), exe.metadata().unwrap().ino());
        }
        assert!(collect(&roots, false).is_empty());
        drop(own);
        assert!(other.dir().is_dir());
        drop(other);
        assert!(!roots.run.exists());
    }

    #[test]
    fn people_are_not_shown_the_folder() {
        let own = format!("/run/netwright/plugins/{}.0", std::process::id());
        for (text, shown) in [
            (
                format!("find plugin \"x\" in path [{own} /opt/cni/bin /b]"),
                "find plugin \"x\" in /opt/cni/bin, /b",
            ),
            (
                format!("\"x\" in path [/b {own}]; \"y\" in path [{own} /b]"),
                "\"x\" in /b; \"y\" in /b",
            ),
            ("nothing of that".to_owned(), "nothing of that"),
        ] {
            assert_eq!(without_folder(&text), shown);
        }
    }

    #[test]
    fn a_folder_is_collected_though_its_process_id_is_anothers_by_now() {
        let scratch = tempfile::tempdir().unwrap();
        let roots = Roots::new(scratch.path().join("run"), scratch.path().join("lib"));
        let stale = roots.run.join("plugins/1.0");
        let new = roots.run.join("plugins/new.1.1");
        for dir in [&stale, &new] {
            std::fs::create_dir_all(dir).unwrap();
        }
        // Process 1 may be about to lock the folder that has no name yet.
        assert_eq!(collect(&roots, false), [stale]);
        assert!(new.exists());
    }

    #[test]
    fn a_dead_processs_folder_is_collected() {
        let scratch = tempfile::tempdir().unwrap();
        let roots = Roots::new(scratch.path().join("run"), scratch.path().join("lib"));
        // Beyond the largest process ID there is (linux include/linux/threads.h, PID_MAX_LIMIT).
        let stale = roots.run.join("plugins/4194305.0");
        std::fs::create_dir_all(&stale).unwrap();
        assert_eq!(collect(&roots, true), [stale.as_path()]);
        assert!(stale.exists());
        // One of another PID namespace, maybe.
        let living = File::open(&stale).unwrap();
        living.try_lock().unwrap();
        assert!(collect(&roots, false).is_empty());
        drop(living);
        drop(OwnPlugins::create(&roots).unwrap());
        assert!(!stale.exists());
    }
}
