//! A folder in which the plugins of this executable are found under their names.
//!
//! Plugins are looked up in `CNI_PATH`, by us, by plugins that delegate and by foreign plugins that we
//! execute. So that all of them find ours with nothing installed, every process that drives plugins has a
//! folder of links to itself, for as long as it runs. One that was killed leaves it; the next process removes it.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use cni::code;
use state::Roots;

use crate::failure::Failure;

/// How often the folder is made again that somebody removed the one above of.
const TRIES: usize = 16;

/// The folder; it is removed with the value.
#[derive(Debug)]
pub(crate) struct OwnPlugins {
    dir: PathBuf,
    /// Locked as long as the process lives: process IDs of another namespace say nothing.
    lock: Option<File>,
}

impl OwnPlugins {
    /// Makes the folder.
    pub(crate) fn create(roots: &Roots) -> Result<Self, Failure> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        collect(roots, false);
        let dir = parent(roots).join(format!("{}.{count}", std::process::id()));
        let mut own = OwnPlugins { dir, lock: None };
        let cannot = |error: std::io::Error, what: &Path| {
            Failure::new(code::IO_FAILURE, format!("make {what:?}, where plugins find our own"))
                .because(&error)
                .hint("run as root, or set NETWRIGHT_RUN_DIR to a folder that can be written")
        };
        // Whoever ends removes the folder above when it is empty: maybe between our making it and ours in it.
        let mut made = state::create_directory(&own.dir, 0o700);
        for _ in 0..TRIES {
            if made.is_ok() {
                break;
            }
            made = state::create_directory(&own.dir, 0o700);
        }
        made.map_err(|error| {
            Failure::of(code::IO_FAILURE, &error)
                .hint("run as root, or set NETWRIGHT_RUN_DIR to a folder that can be written")
        })?;
        own.lock = File::open(&own.dir).ok().filter(|dir| dir.try_lock().is_ok());
        let target = target();
        for plugin in plugins::all() {
            let link = own.dir.join(plugin.name());
            match symlink(&target, &link) {
                Ok(()) => {}
                // Left by a process that had our number and was killed: it may point anywhere.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    std::fs::remove_file(&link)
                        .and_then(|()| symlink(&target, &link))
                        .map_err(|error| cannot(error, &link))?;
                }
                Err(error) => return Err(cannot(error, &link)),
            }
        }
        Ok(own)
    }

    /// Returns its path.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for OwnPlugins {
    fn drop(&mut self) {
        // What is left when this fails is removed by the next process.
        let _ = std::fs::remove_dir_all(&self.dir);
        remove_if_empty(self.dir.parent());
    }
}

/// Removes the folders of processes that are gone; returns them.
pub(crate) fn collect(roots: &Roots, dry_run: bool) -> Vec<PathBuf> {
    let parent = parent(roots);
    let entries = std::fs::read_dir(&parent).into_iter().flatten().filter_map(Result::ok);
    let stale: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|dir| {
            let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let pid = name.split('.').next().and_then(|pid| pid.parse::<u32>().ok());
            let is_free = || File::open(dir).is_ok_and(|dir| dir.try_lock().is_ok());
            pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists() && is_free())
        })
        .collect();
    if !dry_run {
        for dir in &stale {
            let _ = std::fs::remove_dir_all(dir);
        }
        remove_if_empty(Some(&parent));
    }
    stale
}

fn parent(roots: &Roots) -> PathBuf {
    roots.run.join("plugins")
}

/// Removes the folder of such folders, and ours above it when nothing is left in there.
fn remove_if_empty(parent: Option<&Path>) {
    let Some(parent) = parent else { return };
    if std::fs::remove_dir(parent).is_ok()
        && let Some(run) = parent.parent()
    {
        let _ = std::fs::remove_dir(run);
    }
}

/// Returns a path that leads to this very executable as long as this process lives. The plain path does not
/// when the file was replaced or removed since.
fn target() -> PathBuf {
    let by_process = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    let identity = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
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
        for plugin in plugins::all() {
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
