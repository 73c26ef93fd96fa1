//! The folder of plugins, changed one name at a time.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown, symlink,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::code;
use cni_invoke::{executable_of, script_of};
use rustix::fs::{OFlags, XattrFlags, lgetxattr, llistxattr, lsetxattr};
use rustix::io::Errno;
use state::{Durability, FileError, Lock};

use super::manifest::{self, Manifest};
use super::{EXECUTABLE, EXECUTABLES};
use crate::failure::Failure;

/// How long to wait for another `install` in the same folder.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

const LOCK_FILE: &str = "lock";

/// How long calls that have begun may need the executable. A call needs microseconds, and a machine
/// may be slow; somebody may also just be reading the file.
const CALLS_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause between looks whether they have it.
const CALLS_PAUSE: Duration = Duration::from_millis(5);

/// The end of the name that a file has before it gets its own. That name begins with a dot.
const UNFINISHED: &str = ".netwright.tmp";

/// The names that executables have before ([`state::publish()`]).
const UNPUBLISHED: [&str; 2] = [".netwright.new.tmp", ".netwrightd.new.tmp"];

/// The most bytes of names, or of one value, that the kernel returns
/// (linux include/uapi/linux/limits.h XATTR_LIST_MAX, XATTR_SIZE_MAX).
const MOST_ATTRIBUTES: usize = 65536;

/// What a name in the folder refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Absent,
    /// A plugin of our executable: a file that names it, or a link.
    Ours,
    /// A file of another project.
    Foreign,
}

/// A folder that can be written, locked against other installations.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    _lock: Lock,
    /// The files of plugins that have lost their names.
    former: RefCell<Vec<fs::File>>,
}

impl Folder {
    /// Opens a folder, and creates it if it is missing. When it cannot be written, nothing else is
    /// changed.
    pub(super) fn open(dir: &Path) -> Result<Self, Failure> {
        let refused = |error: &dyn std::error::Error| {
            Failure::of(code::IO_FAILURE, error)
                .context(format_args!("{} cannot be written", dir.display()))
                .hint("choose with --bin-dir another folder in which the runtime looks for plugins")
        };
        state::create_directory(dir, 0o755).map_err(|error| refused(&error))?;
        let kept = manifest::folder_of(dir);
        // Root may write everywhere except on a read-only file system: only an attempt shows that.
        let probe = dir.join(".netwright-probe");
        state::write_atomic(&probe, b"", 0o600, Durability::Volatile)
            .and_then(|()| state::remove_file(&probe))
            .map_err(|error| refused(&error))?;
        state::create_directory(&kept, 0o755).map_err(|error| refused(&error))?;
        let lock = Lock::acquire(&kept.join(LOCK_FILE), LOCK_TIMEOUT)
            .map_err(|error| Failure::of(code::TRY_AGAIN_LATER, &error))?;
        sweep(dir, |name| {
            (name.starts_with('.') && name.ends_with(UNFINISHED)) || UNPUBLISHED.contains(&name)
        });
        sweep(&kept, |name| name.starts_with('.'));
        Ok(Folder { dir: dir.to_owned(), _lock: lock, former: RefCell::default() })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns what a name refers to.
    pub(super) fn look(&self, name: &str) -> Result<Entry, Failure> {
        look(&self.dir, name)
    }

    /// Keeps the present file of a name, without removing it.
    pub(super) fn keep(&self, name: &str) -> Result<(), Failure> {
        let (from, to) = (self.dir.join(name), self.kept(name));
        let temporary = self.temporary(name);
        duplicate(&from, &temporary)
            .and_then(|()| fs::rename(&temporary, &to))
            .map_err(|error| self.failed("keep a copy of", name, &error))
    }

    /// Moves the executable into place.
    pub(super) fn put_executable(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        state::publish(&self.dir.join(name), bytes, 0o755, Durability::Synced)
            .map_err(|error: FileError| Failure::of(code::IO_FAILURE, &error))
    }

    /// Moves a plugin into place: a file that names the executable in this folder. Where its path
    /// cannot be named it is a link, which another program's `cp` would write through.
    pub(super) fn put_plugin(&self, name: &str) -> Result<(), Failure> {
        let Some(script) = script_of(&self.dir.join(EXECUTABLE)) else {
            return self.put_link(name, Path::new(EXECUTABLE));
        };
        let temporary = self.temporary(name);
        let write = || {
            fs::write(&temporary, script)?;
            // Whatever the caller's umask is.
            fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755))?;
            fs::File::open(&temporary)?.sync_all()?;
            fs::rename(&temporary, self.dir.join(name))
        };
        write().map_err(|error| self.failed("write", name, &error))
    }

    /// Moves a link into place.
    pub(super) fn put_link(&self, name: &str, target: &Path) -> Result<(), Failure> {
        replace_by_link(&self.dir.join(name), target, &self.temporary(name))
            .map_err(|error| self.failed("link", name, &error))
    }

    /// Restores what was kept of a name, or removes the name when nothing was. Says whether
    /// something was restored. The executable goes once no call needs it any more.
    pub(super) fn give_back(&self, name: &str) -> Result<bool, Failure> {
        if name == EXECUTABLE {
            self.wait_for_calls();
        } else if self.look(name).is_ok_and(|is| is == Entry::Ours) {
            // A link has no file of its own, and leads the kernel to the executable at once.
            let mut options = fs::File::options();
            let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
            let file = options.read(true).custom_flags(nofollow).open(self.dir.join(name));
            self.former.borrow_mut().extend(file);
        }
        let (kept, temporary) = (self.kept(name), self.temporary(name));
        if self.has_back(name) {
            return fs::remove_file(&kept)
                .map(|()| true)
                .map_err(|error| self.failed("put back", name, &error));
        }
        if !self.has_kept(name) {
            return state::withdraw(&self.dir.join(name))
                .map(|_| false)
                .map_err(|error| Failure::of(code::IO_FAILURE, &error));
        }
        // Linked and not renamed: a runtime that watches the folder may not notice a rename from
        // another folder. Where links are refused it is renamed all the same.
        fs::hard_link(&kept, &temporary)
            .and_then(|()| fs::rename(&temporary, self.dir.join(name)))
            .and_then(|()| fs::remove_file(&kept))
            .or_else(|_| fs::rename(&kept, self.dir.join(name)))
            .map(|()| true)
            .map_err(|error| self.failed("put back", name, &error))
    }

    /// Waits for calls that have read the line of a former plugin, and not yet opened the executable
    /// that it names: between the two the kernel may be busy with others.
    pub(super) fn wait_for_calls(&self) {
        let deadline = Instant::now() + CALLS_TIMEOUT;
        let mut former = self.former.take();
        loop {
            // Where the kernel does not say it, there may be calls.
            former.retain(|file| kernel::opened::is_elsewhere(file).unwrap_or(true));
            if former.is_empty() || deadline <= Instant::now() {
                return;
            }
            std::thread::sleep(CALLS_PAUSE);
        }
    }

    /// Says whether a file of that name is kept.
    pub(super) fn has_kept(&self, name: &str) -> bool {
        self.kept(name).symlink_metadata().is_ok()
    }

    /// Says whether a name is still, or again, the very file that is kept of it: a process was killed
    /// before it could put ours in its place, or when it had put the file back.
    pub(super) fn has_back(&self, name: &str) -> bool {
        let identity = |path: PathBuf| {
            path.symlink_metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
        };
        let kept = identity(self.kept(name));
        kept.is_some() && kept == identity(self.dir.join(name))
    }

    /// Flushes the folder's entries to the disk.
    pub(super) fn sync(&self) -> Result<(), Failure> {
        state::sync_directory(&self.dir).map_err(|error| Failure::of(code::IO_FAILURE, &error))
    }

    /// Prepares the undo of everything.
    pub(super) fn undo(&self, old: Option<&Manifest>) -> Undo {
        Undo {
            old: old.cloned(),
            executables: EXECUTABLES
                .map(|name| (name, FormerExecutable::at(&self.dir.join(name))))
                .into(),
            kept: Vec::new(),
            placed: Vec::new(),
            executables_placed: Vec::new(),
            obsolete: Vec::new(),
            config: None,
        }
    }

    fn kept(&self, name: &str) -> PathBuf {
        manifest::folder_of(&self.dir).join(name)
    }

    /// Returns the name of a file next to the final one. The lock makes it ours alone; removes what
    /// an earlier step left.
    fn temporary(&self, name: &str) -> PathBuf {
        let path = self.dir.join(format!(".{name}{UNFINISHED}"));
        let _ = fs::remove_file(&path);
        path
    }

    fn failed(&self, what: &str, name: &str, error: &io::Error) -> Failure {
        Failure::of(code::IO_FAILURE, error)
            .context(format_args!("{what} {}", self.dir.join(name).display()))
    }
}

/// Removes what killed processes left in a folder, which is locked: files with these names.
fn sweep(dir: &Path, is_left: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if is_left(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns what a name in a folder refers to.
pub(super) fn look(dir: &Path, name: &str) -> Result<Entry, Failure> {
    let path = dir.join(name);
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Entry::Absent),
        Err(error) => {
            return Err(Failure::of(code::IO_FAILURE, &error)
                .context(format_args!("look at {}", path.display())));
        }
    };
    if found.is_dir() {
        return Err(Failure::new(
            code::IO_FAILURE,
            format!("{} is a folder, where a plugin should be", path.display()),
        )
        .hint("move it away, or choose another folder with --bin-dir"));
    }
    let ours = match found.is_symlink() {
        true => fs::read_link(&path).is_ok_and(|target| target == Path::new(EXECUTABLE)),
        false => executable_of(&path)
            .is_some_and(|executable| executable.file_name() == Some(EXECUTABLE.as_ref())),
    };
    Ok(if ours { Entry::Ours } else { Entry::Foreign })
}

/// Says whether a plugin's name is as this version puts it ([`Folder::put_plugin`]).
pub(super) fn is_as_put(dir: &Path, name: &str) -> bool {
    let (path, executable) = (dir.join(name), dir.join(EXECUTABLE));
    match script_of(&executable) {
        Some(_) if path.is_symlink() => false,
        Some(_) => executable_of(&path) == Some(executable),
        None => look(dir, name).is_ok_and(|is| is == Entry::Ours),
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Still under the lock; a process that waits for it locks the next file. The folder stays
        // if it keeps something.
        let kept = manifest::folder_of(&self.dir);
        let _ = fs::remove_file(kept.join(LOCK_FILE));
        let _ = fs::remove_dir(kept);
    }
}

/// Makes a second name of a file, or of a symbolic link itself; where hard links are refused, a copy.
pub(in crate::commands) fn duplicate(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to).or_else(|_| copy(from, to))
}

/// Puts a symbolic link at a path, in place of what is there, in one step.
pub(in crate::commands) fn replace_by_link(
    path: &Path,
    target: &Path,
    temporary: &Path,
) -> io::Result<()> {
    symlink(target, temporary).and_then(|()| fs::rename(temporary, path)).inspect_err(|_| {
        let _ = fs::remove_file(temporary);
    })
}

/// Copies a file where hard links are refused, with all its metadata: owner, mode, modification
/// time, and extended attributes (an SELinux label is one).
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let known = from.symlink_metadata()?;
    if known.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
        copy_attributes(from, to)?;
        return lchown(to, Some(known.uid()), Some(known.gid()));
    }
    fs::copy(from, to)?;
    lchown(to, Some(known.uid()), Some(known.gid()))?;
    // A change of owner clears the setuid and setgid bits.
    fs::set_permissions(to, known.permissions())?;
    copy_attributes(from, to)?;
    let file = fs::File::open(to)?;
    file.set_times(fs::FileTimes::new().set_modified(known.modified()?))?;
    file.sync_all()
}

/// Copies a file's extended attributes, as far as the file system has them.
fn copy_attributes(from: &Path, to: &Path) -> io::Result<()> {
    let mut names = vec![0; MOST_ATTRIBUTES];
    let length = match llistxattr(from, &mut names) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        length => length?,
    };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = OsStr::from_bytes(name);
        let mut value = vec![0; MOST_ATTRIBUTES];
        let length = lgetxattr(from, name, &mut value)?;
        lsetxattr(to, name, &value[..length], XattrFlags::empty())?;
    }
    Ok(())
}

/// What was there of an executable.
#[derive(Debug)]
enum FormerExecutable {
    Copy(Vec<u8>),
    /// A link to a package's.
    Link(PathBuf),
}

impl FormerExecutable {
    fn at(path: &Path) -> Option<FormerExecutable> {
        let link = fs::read_link(path).map(FormerExecutable::Link);
        link.or_else(|_| fs::read(path).map(FormerExecutable::Copy)).ok()
    }
}

/// How to restore everything when a step fails.
#[derive(Debug)]
pub(super) struct Undo {
    old: Option<Manifest>,
    executables: Vec<(&'static str, Option<FormerExecutable>)>,
    kept: Vec<String>,
    placed: Vec<String>,
    executables_placed: Vec<&'static str>,
    obsolete: Vec<String>,
    /// The default network's file, and what was in it.
    config: Option<(PathBuf, Option<Vec<u8>>)>,
}

impl Undo {
    pub(super) fn kept(&mut self, name: &str) {
        self.kept.push(name.to_owned());
    }

    pub(super) fn link(&mut self, name: &str) {
        self.placed.push(name.to_owned());
    }

    pub(super) fn executable(&mut self, name: &'static str) {
        self.executables_placed.push(name);
    }

    pub(super) fn obsolete(&mut self, name: &str) {
        self.obsolete.push(name.to_owned());
    }

    pub(super) fn config(&mut self, path: &Path) {
        self.config = Some((path.to_owned(), fs::read(path).ok()));
    }

    /// Undoes all steps, the last first; returns the first failure, and tries the rest.
    pub(super) fn run(self, folder: &Folder) -> Result<(), Failure> {
        let mut first = Ok(());
        let mut note = |done: Result<(), Failure>| {
            if first.is_ok() {
                first = done;
            }
        };
        if let Some((path, before)) = &self.config {
            let undone = match before {
                Some(bytes) => state::publish(path, bytes, 0o644, Durability::Synced),
                None => state::withdraw(path).map(drop),
            };
            note(undone.map_err(|error| Failure::of(code::IO_FAILURE, &error)));
        }
        for name in &self.obsolete {
            note(match look(&folder.dir, name) {
                Ok(Entry::Ours) => Ok(()),
                Ok(Entry::Foreign) => folder.keep(name).and_then(|()| folder.put_plugin(name)),
                Ok(Entry::Absent) => folder.put_plugin(name),
                Err(failure) => Err(failure),
            });
        }
        for name in self.placed.iter().rev() {
            let was_ours = self.old.as_ref().is_some_and(|old| old.owns(name));
            // Where a plugin of ours was before, another file is as good.
            if self.kept.contains(name) || !was_ours {
                note(folder.give_back(name).map(drop));
            }
        }
        for name in self.executables_placed.iter().rev() {
            let was_there = self.executables.iter().find(|(known, _)| known == name);
            let was = was_there.and_then(|(_, was)| was.as_ref());
            match was.filter(|_| !self.kept.iter().any(|kept| kept == name)) {
                Some(FormerExecutable::Copy(bytes)) => note(folder.put_executable(name, bytes)),
                Some(FormerExecutable::Link(target)) => note(folder.put_link(name, target)),
                None => note(folder.give_back(name).map(drop)),
            }
        }
        for name in self.kept.iter().filter(|name| folder.has_kept(name)) {
            let _ = fs::remove_file(folder.kept(name));
        }
        match &self.old {
            Some(old) => note(old.write(folder.dir())),
            None => note(Manifest::remove(folder.dir())),
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_everything_that_the_file_was() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        fs::write(&from, "content").unwrap();
        fs::set_permissions(&from, fs::Permissions::from_mode(0o4751)).unwrap();
        let then = std::time::UNIX_EPOCH + Duration::new(1_000_000_007, 5);
        fs::File::open(&from).unwrap().set_times(fs::FileTimes::new().set_modified(then)).unwrap();
        // This test ignores a file system without attributes, and a user who may not set them.
        let labelled = lsetxattr(&from, "user.label", b"x\0y", XattrFlags::empty()).is_ok();
        copy(&from, &to).unwrap();
        let (was, is) = (from.metadata().unwrap(), to.metadata().unwrap());
        assert_eq!((is.mode(), is.uid(), is.gid()), (was.mode(), was.uid(), was.gid()));
        assert_eq!(is.modified().unwrap(), then);
        assert_eq!(fs::read(&to).unwrap(), b"content");
        if labelled {
            let mut value = [0; 8];
            assert_eq!(lgetxattr(&to, "user.label", &mut value), Ok(3));
        }
        let [link, copied] = ["link", "copied"].map(|name| dir.path().join(name));
        symlink("/nowhere", &link).unwrap();
        copy(&link, &copied).unwrap();
        assert_eq!(fs::read_link(&copied).unwrap(), Path::new("/nowhere"));
    }
}
