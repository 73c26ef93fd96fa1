//! Who owns what on this node.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::AttachmentKey;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;
use serde_json::Value;

use crate::file::{
    Durability, FileError, create_directory, read_own, remove_abandoned, remove_directory,
    remove_file, write_atomic, write_atomic_through,
};
use crate::lock::{Lock, LockError, remove_unless_held};
use crate::name::{file_name_of, object_of};
use crate::record::{Damaged, Read, Record};
use crate::roots::{Roots, Unread};

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// How often a write is tried whose directory somebody else removes because it was empty.
const DIRECTORY_RACES: u32 = 1000;

/// The records of attachments and the references to shared objects, below [`Roots::run`].
///
/// Making the value touches nothing; directories come with the first write. Different attachments need no
/// lock for their records. Shared objects do: take [`Index::lock`] for the object, then look at it, change it
/// and call [`Index::hold`] or [`Index::release`], then drop the lock.
#[derive(Debug, Clone)]
pub struct Index {
    owners: PathBuf,
    shared: PathBuf,
    locks: PathBuf,
    addresses: PathBuf,
    unread: Unread,
}

/// The answer to [`Index::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Nobody holds the object any more: undo what its note says, then [`Index::take_note`].
    Last,
    /// Others still hold it.
    Held,
    /// This attachment did not hold it, and neither does anyone else.
    NotHeld,
}

impl Index {
    /// Makes an index over the node's roots.
    #[must_use]
    pub fn new(roots: &Roots) -> Self {
        Index {
            owners: roots.run.join("owners"),
            shared: roots.run.join("shared"),
            locks: roots.run.join("locks"),
            addresses: roots.addresses(),
            unread: roots.unread.clone(),
        }
    }

    /// Writes a record, replacing the one that the same plugin wrote for the same attachment.
    ///
    /// # Errors
    /// [`FileError`]; what was there before is then still there.
    pub fn put(&self, record: &Record) -> Result<(), FileError> {
        let path = self.record_path(&record.attachment, &record.plugin);
        in_directory(&path, || {
            write_atomic(&path, &record.to_bytes(), FILE_MODE, Durability::Volatile)
        })
    }

    /// Reads the record a plugin wrote for an attachment.
    #[must_use]
    pub fn get(&self, key: &AttachmentKey, plugin: &str) -> Read<Option<Record>> {
        let read = read_record(&self.record_path(key, plugin), &self.unread);
        match &read.found {
            Some(record) if record.attachment != *key || record.plugin != plugin => {
                let reason = format!("it belongs to {} of {}", record.plugin, record.attachment);
                let path = self.record_path(key, plugin);
                Read { found: None, damaged: vec![Damaged::new(path, reason)] }
            }
            _ => read,
        }
    }

    /// Says that a plugin has made nothing for an attachment: others have records of it, and this one has none, nor anything
    /// in its place.
    #[must_use]
    pub fn made_nothing(&self, key: &AttachmentKey, plugin: &str) -> bool {
        let own = self.get(key, plugin);
        own.found.is_none() && own.damaged.is_empty() && !self.of_attachment(key).found.is_empty()
    }

    /// Removes the record a plugin wrote for an attachment, garbled or not; `false` when there was none.
    ///
    /// On behalf of a call that could not read everything it stays, for the next one to read: see [`Roots::for_one_call`].
    ///
    /// # Errors
    /// [`FileError::Remove`].
    pub fn remove(&self, key: &AttachmentKey, plugin: &str) -> Result<bool, FileError> {
        if self.unread.is_some() {
            return Ok(false);
        }
        let path = self.record_path(key, plugin);
        let removed = remove_file(&path)?;
        if let Some(directory) = path.parent() {
            remove_if_idle(directory);
        }
        Ok(removed)
    }

    /// Reads all records of an attachment: one small directory.
    #[must_use]
    pub fn of_attachment(&self, key: &AttachmentKey) -> Read<Vec<Record>> {
        let mut all = Read::whole(Vec::new());
        read_records(&self.owners.join(key.hash()), &mut all, &self.unread);
        all
    }

    /// Reads every record, in no order. For GC and for people: it reads every file.
    #[must_use]
    pub fn list(&self) -> Read<Vec<Record>> {
        let mut all = Read::whole(Vec::new());
        for entry in entries(&self.owners, &mut all.damaged, &self.unread) {
            read_records(&entry, &mut all, &self.unread);
        }
        all
    }

    /// Reads every record of a network; see [`Index::list`].
    #[must_use]
    pub fn of_network(&self, network: &str) -> Read<Vec<Record>> {
        self.list().map(|mut records| {
            records.retain(|record| record.attachment.network.as_str() == network);
            records
        })
    }

    /// Reads every record of a container; see [`Index::list`].
    #[must_use]
    pub fn of_container(&self, container_id: &str) -> Read<Vec<Record>> {
        self.list().map(|mut records| {
            records.retain(|record| record.attachment.container_id.as_str() == container_id);
            records
        })
    }

    /// Takes the lock of a shared object, waiting at most `deadline`.
    ///
    /// # Errors
    /// [`LockError::Busy`] names the holder.
    pub fn lock(&self, object: &str, deadline: Duration) -> Result<Lock, LockError> {
        let path = self.locks.join(format!("{}.lock", file_name_of(object)));
        let mut races = 0;
        loop {
            match Lock::acquire(&path, deadline) {
                Err(error) if error.is_not_found() && races < DIRECTORY_RACES => {
                    races += 1;
                    match ensure_directory(&self.locks) {
                        Err(FileError::CreateDirectory { path, source }) => {
                            return Err(LockError::Open { path, source });
                        }
                        _made => {}
                    }
                }
                done => return done,
            }
        }
    }

    /// Keeps others from removing or repairing an attachment at the same time, waiting at most `deadline` for them. `None`:
    /// there is no record of it, so nobody could repair it.
    ///
    /// # Errors
    /// [`LockError::Busy`] names the holder.
    pub fn lock_attachment(
        &self,
        key: &AttachmentKey,
        deadline: Duration,
    ) -> Result<Option<Lock>, LockError> {
        Lock::acquire_directory(&self.owners.join(key.hash()), deadline)
    }

    /// Writes down that an attachment uses a shared object; `false` when it did already.
    ///
    /// The caller holds the object's lock.
    ///
    /// # Errors
    /// [`FileError`]; the attachment is then not a holder, unless it was.
    pub fn hold(&self, object: &str, key: &AttachmentKey) -> Result<bool, FileError> {
        let path = self.object_directory(object).join(key.hash());
        let bytes = serde_json::to_vec(key).expect("a key has string keys only");
        let before = read_own(&path);
        if matches!(&before, Ok(Some(same)) if *same == bytes) {
            return Ok(false);
        }
        let new = matches!(before, Ok(None));
        in_directory(&path, || {
            // The temporary file is kept out of the object's directory, which holds holders only.
            write_atomic_through(&self.shared, &path, &bytes, FILE_MODE, Durability::Volatile)
        })?;
        Ok(new)
    }

    /// Says whether an attachment other than this one holds a shared object.
    ///
    /// # Errors
    /// [`FileError::List`]: nobody knows.
    pub fn is_held_by_others(&self, object: &str, key: &AttachmentKey) -> Result<bool, FileError> {
        let directory = self.object_directory(object);
        let own = directory.join(key.hash());
        for other in holder_names(&directory)? {
            if other? != own {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Strikes an attachment from the holders of a shared object.
    ///
    /// The caller holds the object's lock. The note stays: when the answer is [`Release::Last`] or
    /// [`Release::NotHeld`], undo what it says and [`Index::take_note`], so that a crash in between leaves the
    /// note for the next who is last.
    ///
    /// # Errors
    /// [`FileError::Remove`]; the attachment is then still a holder. [`FileError::List`]: nobody knows whether it was the last;
    /// releasing again tells.
    pub fn release(&self, object: &str, key: &AttachmentKey) -> Result<Release, FileError> {
        let directory = self.object_directory(object);
        let held = remove_file(&directory.join(key.hash()))?;
        // One is enough to know of, and there may be thousands.
        if holder_names(&directory)?.next().transpose()?.is_some() {
            return Ok(Release::Held);
        }
        // A foreign file that lies there hinders nobody.
        remove_directory(&directory)?;
        Ok(if held { Release::Last } else { Release::NotHeld })
    }

    /// Says whether somebody holds a shared object.
    ///
    /// # Errors
    /// [`FileError::List`]: nobody knows.
    pub fn is_held(&self, object: &str) -> Result<bool, FileError> {
        holder_names(&self.object_directory(object))?.next().transpose().map(|one| one.is_some())
    }

    /// Lists who holds a shared object. A reference whose content is damaged is reported and still counts for
    /// [`Index::release`].
    #[must_use]
    pub fn holders(&self, object: &str) -> Read<Vec<AttachmentKey>> {
        let mut all = Read::whole(Vec::new());
        let directory = self.object_directory(object);
        let mut paths = Vec::new();
        match holder_names(&directory) {
            Ok(names) => {
                for name in names {
                    match name {
                        Ok(path) => paths.push(path),
                        Err(error) => all.damaged.push(Damaged::of(&directory, &error)),
                    }
                }
            }
            Err(error) => all.damaged.push(Damaged::of(&directory, &error)),
        }
        for path in paths {
            let Some(bytes) = read_or_report(&path, &mut all.damaged, &self.unread) else {
                continue;
            };
            match serde_json::from_slice::<AttachmentKey>(&bytes) {
                Ok(key) if path.ends_with(key.hash()) => all.found.push(key),
                Ok(key) => {
                    all.damaged.push(Damaged::new(path, format!("its content is of {key}")));
                }
                Err(error) => all.damaged.push(Damaged::of(path, &error)),
            }
        }
        all
    }

    /// Lists the shared objects that are held or have a note, sorted.
    #[must_use]
    pub fn objects(&self) -> Read<Vec<String>> {
        let mut all = Read::whole(Vec::new());
        for entry in entries(&self.shared, &mut all.damaged, &self.unread) {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match object_of(name.strip_suffix(".made").unwrap_or(&name)) {
                Some(object) => all.found.push(object),
                None => all.damaged.push(Damaged::new(entry, "not a name of ours")),
            }
        }
        all.found.sort();
        all.found.dedup();
        all
    }

    /// Writes down what we are about to change in order to have a shared object, replacing an older note.
    ///
    /// The caller holds the object's lock, and calls this *before* the change and only when there is
    /// something to change: then a crash leaves a note too many, never a change that nobody knows of.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn note(&self, object: &str, made: &Value) -> Result<(), FileError> {
        let path = self.note_path(object);
        let bytes = serde_json::to_vec(made).expect("a JSON value serialises");
        in_directory(&path, || write_atomic(&path, &bytes, FILE_MODE, Durability::Volatile))
    }

    /// Reads the note of a shared object.
    #[must_use]
    pub fn read_note(&self, object: &str) -> Read<Option<Value>> {
        let path = self.note_path(object);
        let mut note = Read::whole(None);
        if let Some(bytes) = read_or_report(&path, &mut note.damaged, &self.unread) {
            match serde_json::from_slice(&bytes) {
                Ok(value) => note.found = Some(value),
                Err(error) => note.damaged.push(Damaged::of(path, &error)),
            }
        }
        note
    }

    /// Reads a note for who is about to write it anew, or to undo what it tells of: what the kernel refuses to read may be there all
    /// the same, and must not be taken for nothing. A garbled note is none.
    ///
    /// # Errors
    /// [`FileError::Read`] when the kernel refuses.
    pub fn known_note(&self, object: &str) -> Result<Option<Value>, FileError> {
        let path = self.note_path(object);
        match read_own(&path) {
            Ok(bytes) => Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok())),
            Err(error) if is_refused(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Says whether an attachment holds a shared object.
    #[must_use]
    pub fn holds(&self, object: &str, key: &AttachmentKey) -> bool {
        fs::symlink_metadata(self.object_directory(object).join(key.hash())).is_ok()
    }

    /// Says whether a shared object has a note, be it a garbled one: then too something was changed to have it.
    ///
    /// # Errors
    /// [`FileError::Read`] when the kernel refuses to say.
    pub fn has_note(&self, object: &str) -> Result<bool, FileError> {
        match read_own(&self.note_path(object)) {
            Ok(bytes) => Ok(bytes.is_some()),
            Err(error) if is_refused(&error) => Err(error),
            Err(_) => Ok(true),
        }
    }

    /// Removes the index's own files and folders when nothing is written in them: no attachment has a record or holds
    /// anything. Says whether they are gone.
    ///
    /// Locks that somebody holds, and so the folder, stay.
    #[must_use]
    pub fn tidy(&self) -> bool {
        let mut damaged = Vec::new();
        let in_use = [&self.owners, &self.shared]
            .iter()
            .any(|path| entries(path, &mut damaged, &self.unread).next().is_some());
        if in_use || !damaged.is_empty() {
            return false;
        }
        for lock in entries(&self.locks, &mut damaged, &self.unread) {
            remove_unless_held(&lock);
        }
        // Only hints, which whoever misses them makes again.
        let _ = fs::remove_dir_all(&self.addresses);
        // Each fails while something is left in it, which is the answer then.
        for folder in [&self.owners, &self.shared, &self.locks] {
            remove_if_idle(folder);
        }
        self.owners.parent().is_some_and(|run| fs::remove_dir(run).is_ok())
    }

    /// Removes what killed processes left that belongs to nobody: temporary files and empty folders. Whoever is about to write
    /// into such a folder makes it again.
    pub fn sweep(&self) {
        self.remove_abandoned();
        let mut damaged = Vec::new();
        for place in [&self.owners, &self.shared] {
            for folder in entries(place, &mut damaged, &Unread::default()) {
                // Fails for all that is in use, and for notes.
                let _ = fs::remove_dir(folder);
            }
        }
    }

    /// Removes what killed processes were writing here; see [`remove_abandoned`].
    pub fn remove_abandoned(&self) {
        let mut damaged = Vec::new();
        remove_abandoned(&self.shared);
        remove_abandoned(&self.addresses);
        for owner in entries(&self.owners, &mut damaged, &self.unread) {
            remove_abandoned(&owner);
        }
    }

    /// Reads and removes the note of a shared object, once what it says has been undone, and what a killed process was
    /// writing there.
    ///
    /// The caller holds the object's lock.
    ///
    /// # Errors
    /// [`FileError::Remove`].
    pub fn take_note(&self, object: &str) -> Result<Read<Option<Value>>, FileError> {
        let note = self.read_note(object);
        remove_file(&self.note_path(object))?;
        // The caller has the lock: what is being written was being written by a process that was killed.
        let begin = format!(".{}.made.", file_name_of(object));
        remove_temporary(&self.shared, begin.as_bytes());
        Ok(note)
    }

    fn record_path(&self, key: &AttachmentKey, plugin: &str) -> PathBuf {
        self.owners.join(key.hash()).join(format!("{}.json", file_name_of(plugin)))
    }

    fn object_directory(&self, object: &str) -> PathBuf {
        self.shared.join(file_name_of(object))
    }

    fn note_path(&self, object: &str) -> PathBuf {
        self.shared.join(format!("{}.made", file_name_of(object)))
    }
}

/// Runs a write, making the directory of its file when that is missing, again if it is removed meanwhile.
fn in_directory(
    path: &Path,
    mut write: impl FnMut() -> Result<(), FileError>,
) -> Result<(), FileError> {
    let mut races = 0;
    loop {
        match write() {
            Err(error) if error.is_not_found() && races < DIRECTORY_RACES => {
                races += 1;
                if let Some(directory) = path.parent() {
                    ensure_directory(directory)?;
                }
            }
            done => {
                // What was made for it is nobody's; it goes while it is empty.
                if let (Err(_), Some(directory), true) = (&done, path.parent(), races != 0) {
                    let _ = fs::remove_dir(directory);
                }
                return done;
            }
        }
    }
}

/// Makes a directory. That somebody else made it, or removed it or its parent meanwhile, is for the next try to see.
fn ensure_directory(path: &Path) -> Result<(), FileError> {
    match create_directory(path, DIRECTORY_MODE) {
        Err(error) if error.is_exists() || error.is_not_found() => Ok(()),
        done => done,
    }
}

/// Removes a directory in which nothing is left but temporary files of processes that were killed. A process that is
/// writing one just now writes it again; see [`in_directory`].
fn remove_if_idle(directory: &Path) {
    let mut damaged = Vec::new();
    // Fails while other plugins have records there.
    let unread = Unread::default();
    if fs::remove_dir(directory).is_ok()
        || entries(directory, &mut damaged, &unread).next().is_some()
        || !damaged.is_empty()
    {
        return;
    }
    remove_temporary(directory, b"");
    let _ = fs::remove_dir(directory);
}

/// Removes the temporary files whose names begin so. What cannot be removed is in nobody's way.
fn remove_temporary(directory: &Path, begin: &[u8]) {
    for entry in fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if name.starts_with(begin) && name.ends_with(b".tmp") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Lists a directory that may be missing, without temporary and other hidden files.
fn entries(
    directory: &Path,
    damaged: &mut Vec<Damaged>,
    unread: &Unread,
) -> impl Iterator<Item = PathBuf> + use<> {
    let mut found = Vec::new();
    let mut report = |errno: Errno| {
        let one = Damaged::of(directory, &io::Error::from(errno));
        // What is no folder has nothing of ours in it.
        if !matches!(errno, Errno::NOTDIR | Errno::LOOP) {
            unread.note(&one);
        }
        damaged.push(one);
    };
    match open_directory(directory) {
        Ok(listing) => {
            for entry in listing {
                match entry {
                    Ok(entry) => {
                        let name = entry.file_name().to_bytes();
                        if !name.starts_with(b".") {
                            found.push(directory.join(OsStr::from_bytes(name)));
                        }
                    }
                    Err(errno) => report(errno),
                }
            }
        }
        Err(Errno::NOENT) => {}
        Err(errno) => report(errno),
    }
    found.into_iter()
}

/// Opens a directory for listing; std's way makes twice the calls.
fn open_directory(path: &Path) -> Result<Dir, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Dir::new(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Lists the references in an object's directory: files named by a hash. None is passed over for an error: whoever counts
/// them puts back what others need if there seem to be none.
fn holder_names(
    directory: &Path,
) -> Result<impl Iterator<Item = Result<PathBuf, FileError>> + use<>, FileError> {
    let directory = directory.to_owned();
    let failed =
        |path: &Path, errno: Errno| FileError::List { path: path.to_owned(), source: errno.into() };
    let listing = match open_directory(&directory) {
        Ok(listing) => Some(listing),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
        Err(errno) => return Err(failed(&directory, errno)),
    };
    Ok(listing.into_iter().flatten().filter_map(move |entry| match entry {
        Ok(entry) => {
            let name = entry.file_name().to_bytes();
            let is_hash = name.len() == 32 && name.iter().all(u8::is_ascii_hexdigit);
            is_hash.then(|| Ok(directory.join(OsStr::from_bytes(name))))
        }
        Err(errno) => Some(Err(failed(&directory, errno))),
    }))
}

fn read_records(directory: &Path, all: &mut Read<Vec<Record>>, unread: &Unread) {
    let paths: Vec<PathBuf> = entries(directory, &mut all.damaged, unread).collect();
    for path in paths {
        let read = read_record(&path, unread);
        all.found.extend(read.found);
        all.damaged.extend(read.damaged);
    }
}

fn read_record(path: &Path, unread: &Unread) -> Read<Option<Record>> {
    let mut read = Read::whole(None);
    if let Some(bytes) = read_or_report(path, &mut read.damaged, unread) {
        match Record::parse(&bytes) {
            Ok(record) => read.found = Some(record),
            Err(reason) => read.damaged.push(Damaged::new(path, reason)),
        }
    }
    read
}

/// Says whether a file could not be read that may be ours and whole. A link is none of ours, and is not followed.
fn is_refused(error: &FileError) -> bool {
    let is_link = |source: &io::Error| Errno::from_io_error(source) == Some(Errno::LOOP);
    matches!(error, FileError::Read { source, .. } if !is_link(source))
}

fn read_or_report(path: &Path, damaged: &mut Vec<Damaged>, unread: &Unread) -> Option<Vec<u8>> {
    match read_own(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            let one = Damaged::of(path, &error);
            if is_refused(&error) {
                unread.note(&one);
            }
            damaged.push(one);
            None
        }
    }
}
