//! Records what each attachment owns on this node.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::AttachmentKey;
use rustix::fs::{Dir, Mode, OFlags, RawDir};
use rustix::io::Errno;
use serde_json::Value;

use crate::file::{
    Durability, FileError, create_directory, read_own, remove_abandoned, remove_directory,
    remove_file, write_atomic, write_atomic_through,
};
use crate::lock::{Lock, LockError, remove_unless_held};
use crate::name::{file_name_of, object_of};
use crate::record::{DamagedFile, ReadOutcome, Record};
use crate::roots::{Roots, UnreadFile, boot_id};

/// The folder of all records.
const OWNERS: &str = "owners";
/// How the names of records end.
const RECORD: &str = ".json";

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// How often a write is tried again because another process removed its directory while that was
/// empty.
const DIRECTORY_RACES: u32 = 1000;

/// The records of attachments and the references to shared objects, below [`Roots::run`].
///
/// Creating the value touches no file; the first write creates the directories. Records of
/// different attachments need no lock. Shared objects do: [`SharedObject`](crate::SharedObject) takes
/// it, and a caller that cannot use that takes [`Index::lock`] around [`Index::hold`] and
/// [`Index::release`].
#[derive(Debug, Clone)]
pub struct Index {
    owners: PathBuf,
    shared: PathBuf,
    locks: PathBuf,
    addresses: PathBuf,
    lacking: PathBuf,
    left: PathBuf,
    claims: PathBuf,
    unread: UnreadFile,
}

/// An attachment's lock, released on drop; see [`Index::begin_attachment`].
///
/// The lock is on the folder of the attachment's records. A folder without records is removed when
/// the lock is released, not before: otherwise the next process would create it anew and would have
/// a lock of its own while the first one is still at work.
#[derive(Debug)]
pub struct AttachmentLock {
    /// Released after the folder is removed.
    lock: Lock,
    folder: PathBuf,
    /// How many of the folders above it were created for the lock.
    made: usize,
    /// Whether to remove what killed writers left in the folder.
    sweeps: bool,
}

impl AttachmentLock {
    /// Says whether there may be records of the attachment, by two system calls: most attachments
    /// that are made have none.
    #[must_use]
    pub fn may_have_records(&self) -> bool {
        // One answer has all names of a folder that has no record.
        let mut buffer = [MaybeUninit::uninit(); 512];
        let mut listing = RawDir::new(self.lock.as_fd(), &mut buffer);
        while let Some(entry) = listing.next() {
            if !entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")) {
                return true;
            }
        }
        false
    }

    /// Notes that a record has most likely been written, so that the folder need not be searched
    /// for what killed writers left in it.
    #[must_use]
    pub fn with_record(mut self) -> Self {
        self.sweeps = false;
        self
    }
}

impl Drop for AttachmentLock {
    fn drop(&mut self) {
        let removed = if self.sweeps {
            remove_if_idle(&self.folder)
        } else {
            // It fails, as it should, if the folder contains a record.
            fs::remove_dir(&self.folder).is_ok()
        };
        if removed {
            for above in self.folder.ancestors().skip(1).take(self.made) {
                if fs::remove_dir(above).is_err() {
                    break;
                }
            }
        }
    }
}

/// The answer to [`Index::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// No attachment holds the object any longer: undo what its note says, then call
    /// [`Index::take_note`].
    Last,
    /// Other attachments still hold it.
    Held,
    /// This attachment did not hold it, and no other does.
    NotHeld,
}

/// The answer to [`Index::claim`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The attachment has it.
    Own,
    /// Others have it, or had it: one attachment, or several that share it, by
    /// [`AttachmentKey::hash`].
    By(Vec<String>),
}

impl Index {
    /// Creates an index over the node's roots.
    #[must_use]
    pub fn new(roots: &Roots) -> Self {
        Index {
            owners: roots.run.join(OWNERS),
            shared: roots.run.join("shared"),
            locks: roots.run.join("locks"),
            addresses: roots.addresses(),
            lacking: roots.run.join("lacking"),
            left: roots.run.join("left"),
            claims: roots.run.join("claims"),
            unread: roots.unread.clone(),
        }
    }

    /// Writes a record, replacing the record that the same plugin wrote for the same attachment.
    ///
    /// # Errors
    /// [`FileError`]; the previous record is then still there.
    pub fn put(&self, record: &Record) -> Result<(), FileError> {
        let path = self.record_path(&record.attachment, &record.plugin);
        in_directory(&path, || {
            write_atomic(&path, &record.to_bytes(), FILE_MODE, Durability::Volatile)
        })
    }

    /// Reads the record a plugin wrote for an attachment.
    #[must_use]
    pub fn get(&self, key: &AttachmentKey, plugin: &str) -> ReadOutcome<Option<Record>> {
        let read = read_record(&self.record_path(key, plugin), &self.unread);
        match &read.found {
            Some(record) if record.attachment != *key || record.plugin != plugin => {
                let reason = format!("it belongs to {} of {}", record.plugin, record.attachment);
                let path = self.record_path(key, plugin);
                ReadOutcome { found: None, damaged: vec![DamagedFile::new(path, reason)] }
            }
            _ => read,
        }
    }

    /// Says whether a plugin has made nothing for an attachment: other plugins have records of it,
    /// and this one has neither a record nor anything in its place.
    #[must_use]
    pub fn made_nothing(&self, key: &AttachmentKey, plugin: &str) -> bool {
        let own = self.get(key, plugin);
        own.found.is_none() && own.damaged.is_empty() && !self.of_attachment(key).found.is_empty()
    }

    /// Removes the record a plugin wrote for an attachment, garbled or not; `false` when there was
    /// none.
    ///
    /// For a call that could not read everything the record stays, so that the next call reads it:
    /// see [`Roots::for_one_call`].
    ///
    /// # Errors
    /// [`FileError::Remove`].
    pub fn remove(&self, key: &AttachmentKey, plugin: &str) -> Result<bool, FileError> {
        if self.unread.is_some() {
            return Ok(false);
        }
        let path = self.record_path(key, plugin);
        let removed = remove_file(&path)?;
        // While the attachment is locked the folder stays: see AttachmentLock.
        if let Some(directory) = path.parent()
            && let Some(_lock) = Lock::try_directory(directory)
        {
            remove_if_idle(directory);
        }
        Ok(removed)
    }

    /// Reads all records of an attachment: one small directory.
    #[must_use]
    pub fn of_attachment(&self, key: &AttachmentKey) -> ReadOutcome<Vec<Record>> {
        let mut all = ReadOutcome::whole(Vec::new());
        read_records(&self.owners.join(key.hash()), &mut all, &self.unread);
        all
    }

    /// Lists the plugins that have a record of an attachment, legible or not, sorted. It reads none of
    /// them.
    #[must_use]
    pub fn recorders(&self, key: &AttachmentKey) -> Vec<String> {
        let folder = self.owners.join(key.hash());
        let plugin_of =
            |path: PathBuf| object_of(path.file_name()?.to_str()?.strip_suffix(RECORD)?);
        let files = entries(&folder, &mut Vec::new(), &self.unread);
        let mut plugins: Vec<String> = files.filter_map(plugin_of).collect();
        plugins.sort_unstable();
        plugins
    }

    /// Reads every record, in no order. For GC and for commands that people run: it reads every
    /// file.
    #[must_use]
    pub fn list(&self) -> ReadOutcome<Vec<Record>> {
        let mut all = ReadOutcome::whole(Vec::new());
        for entry in entries(&self.owners, &mut all.damaged, &self.unread) {
            read_records(&entry, &mut all, &self.unread);
        }
        all
    }

    /// Reads every record of a network; see [`Index::list`].
    #[must_use]
    pub fn of_network(&self, network: &str) -> ReadOutcome<Vec<Record>> {
        self.list().map(|mut records| {
            records.retain(|record| record.attachment.network.as_str() == network);
            records
        })
    }

    /// Reads every record of a container; see [`Index::list`].
    #[must_use]
    pub fn of_container(&self, container_id: &str) -> ReadOutcome<Vec<Record>> {
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

    /// Releases an object's lock and removes its file. For objects that are rarely locked and of
    /// which there are many. A process that waits for the lock notices and creates a new file.
    pub fn end_lock(&self, object: &str, lock: Lock) {
        let path = self.locks.join(format!("{}.lock", file_name_of(object)));
        // A file that stays is empty.
        let _ = fs::remove_file(path);
        drop(lock);
    }

    /// Prevents others from removing or repairing an attachment at the same time, waiting at most
    /// `deadline` for them. `None` if it has no record, so that no process could repair it.
    ///
    /// # Errors
    /// [`LockError::Busy`] names the holder.
    pub fn lock_attachment(
        &self,
        key: &AttachmentKey,
        deadline: Duration,
    ) -> Result<Option<AttachmentLock>, LockError> {
        self.lock_hash(&key.hash(), deadline)
    }

    /// Does what [`Index::lock_attachment`] does, for the attachment with this
    /// [`AttachmentKey::hash`].
    ///
    /// # Errors
    /// As [`Index::lock_attachment`].
    pub fn lock_hash(
        &self,
        hash: &str,
        deadline: Duration,
    ) -> Result<Option<AttachmentLock>, LockError> {
        if !is_hash(hash) {
            return Ok(None);
        }
        let folder = self.owners.join(hash);
        let lock = Lock::acquire_directory(&folder, deadline)?;
        Ok(lock.map(|lock| AttachmentLock { lock, folder, made: 0, sweeps: false }))
    }

    /// Prevents others from making, removing or repairing an attachment at the same time, waiting
    /// at most `deadline` for them. The folder of its records is created for that, and removed with
    /// the lock if it contains no record.
    ///
    /// # Errors
    /// [`LockError::Busy`] names the holder.
    pub fn begin_attachment(
        &self,
        key: &AttachmentKey,
        deadline: Duration,
    ) -> Result<AttachmentLock, LockError> {
        Self::begin_in(self.owners.join(key.hash()), deadline)
    }

    /// Does what [`Index::begin_attachment`] does, for a caller that makes one attachment out of
    /// several others. It is a different lock: one of those may have the same key.
    ///
    /// # Errors
    /// As [`Index::begin_attachment`].
    pub fn begin_group(
        &self,
        key: &AttachmentKey,
        deadline: Duration,
    ) -> Result<AttachmentLock, LockError> {
        Self::begin_in(self.owners.join(format!("{}.group", key.hash())), deadline)
    }

    fn begin_in(folder: PathBuf, deadline: Duration) -> Result<AttachmentLock, LockError> {
        let begin = Instant::now();
        let (mut races, mut made) = (0, 0);
        loop {
            let left = deadline.saturating_sub(begin.elapsed());
            if let Some(lock) = Lock::acquire_directory(&folder, left)? {
                return Ok(AttachmentLock { lock, folder, made, sweeps: true });
            }
            races += 1;
            let above = folder.ancestors().skip(1).take(2);
            made = made.max(above.take_while(|folder| !folder.exists()).count());
            match ensure_directory(&folder) {
                Err(FileError::CreateDirectory { path, source }) => {
                    return Err(LockError::Open { path, source });
                }
                _ if DIRECTORY_RACES < races => {
                    let source = io::ErrorKind::NotFound.into();
                    return Err(LockError::Open { path: folder, source });
                }
                _made => {}
            }
        }
    }

    /// Records that an attachment uses a shared object; `false` if that was recorded already.
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
            // The temporary file is kept out of the object's directory, which contains only
            // holders.
            write_atomic_through(&self.shared, &path, &bytes, FILE_MODE, Durability::Volatile)
        })?;
        Ok(new)
    }

    /// Says whether an attachment other than this one holds a shared object.
    ///
    /// # Errors
    /// [`FileError::List`]: then it is unknown.
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

    /// Removes an attachment from the holders of a shared object.
    ///
    /// The caller holds the object's lock. The note stays: on [`Release::Last`] or
    /// [`Release::NotHeld`], undo what it says and call [`Index::take_note`]. After a crash in
    /// between, the note is still there for the next last holder.
    ///
    /// # Errors
    /// [`FileError::Remove`]; the attachment is then still a holder. [`FileError::List`]; it is
    /// then unknown whether it was the last, and releasing again finds out.
    pub fn release(&self, object: &str, key: &AttachmentKey) -> Result<Release, FileError> {
        let directory = self.object_directory(object);
        let held = remove_file(&directory.join(key.hash()))?;
        // One is enough, and there may be thousands.
        if holder_names(&directory)?.next().transpose()?.is_some() {
            return Ok(Release::Held);
        }
        // A foreign file in it does not matter.
        remove_directory(&directory)?;
        Ok(if held { Release::Last } else { Release::NotHeld })
    }

    /// Says whether any attachment holds a shared object.
    ///
    /// # Errors
    /// [`FileError::List`]: then it is unknown.
    pub fn is_held(&self, object: &str) -> Result<bool, FileError> {
        holder_names(&self.object_directory(object))?.next().transpose().map(|one| one.is_some())
    }

    /// Lists the holders of a shared object. A reference whose content is damaged is reported and
    /// still counts for [`Index::release`].
    #[must_use]
    pub fn holders(&self, object: &str) -> ReadOutcome<Vec<AttachmentKey>> {
        let mut all = ReadOutcome::whole(Vec::new());
        let directory = self.object_directory(object);
        let mut paths = Vec::new();
        match holder_names(&directory) {
            Ok(names) => {
                for name in names {
                    match name {
                        Ok(path) => paths.push(path),
                        Err(error) => all.damaged.push(DamagedFile::of(&directory, &error)),
                    }
                }
            }
            Err(error) => all.damaged.push(DamagedFile::of(&directory, &error)),
        }
        for path in paths {
            let Some(bytes) = read_or_report(&path, &mut all.damaged, &self.unread) else {
                continue;
            };
            match serde_json::from_slice::<AttachmentKey>(&bytes) {
                Ok(key) if path.ends_with(key.hash()) => all.found.push(key),
                Ok(key) => {
                    all.damaged.push(DamagedFile::new(path, format!("its content is of {key}")));
                }
                Err(error) => all.damaged.push(DamagedFile::of(path, &error)),
            }
        }
        all
    }

    /// Lists the shared objects that are held or have a note, sorted.
    #[must_use]
    pub fn objects(&self) -> ReadOutcome<Vec<String>> {
        let mut all = ReadOutcome::whole(Vec::new());
        for entry in entries(&self.shared, &mut all.damaged, &self.unread) {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match object_of(name.strip_suffix(".made").unwrap_or(&name)) {
                Some(object) => all.found.push(object),
                None => all.damaged.push(DamagedFile::new(entry, "not a name of ours")),
            }
        }
        all.found.sort_unstable();
        all.found.dedup();
        all
    }

    /// Records what we are about to change to set up a shared object, replacing an older note.
    ///
    /// The caller holds the object's lock, and calls this *before* the change and only if there is
    /// something to change. Then a crash can leave a note without a change, but never a change
    /// without a note.
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
    pub fn read_note(&self, object: &str) -> ReadOutcome<Option<Value>> {
        let path = self.note_path(object);
        let mut note = ReadOutcome::whole(None);
        if let Some(bytes) = read_or_report(&path, &mut note.damaged, &self.unread) {
            match serde_json::from_slice(&bytes) {
                Ok(value) => note.found = Some(value),
                Err(error) => note.damaged.push(DamagedFile::of(path, &error)),
            }
        }
        note
    }

    /// Reads a note for a caller that is about to replace it or to undo what it says. A note that
    /// the kernel refuses to read may exist all the same, and must not count as missing. A garbled
    /// note counts as missing.
    ///
    /// # Errors
    /// [`FileError::Read`] when the kernel refuses.
    pub fn known_note(&self, object: &str) -> Result<Option<Value>, FileError> {
        let path = self.note_path(object);
        match read_own(&path) {
            Ok(bytes) => Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok())),
            Err(error) if error.is_refused() => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Says whether a shared object may have a holder or a note, or the empty folder that a process
    /// leaves if it is killed just before it holds the object. If not, there is nothing to release.
    ///
    /// # Errors
    /// [`FileError::Read`] when the kernel does not answer.
    pub fn may_exist(&self, object: &str) -> Result<bool, FileError> {
        for path in [self.object_directory(object), self.note_path(object)] {
            match fs::symlink_metadata(&path) {
                Ok(_) => return Ok(true),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) => {}
                Err(source) => return Err(FileError::Read { path, source }),
            }
        }
        Ok(false)
    }

    /// Says whether a shared object has a note, even a garbled one: that too means that something
    /// was changed for the object.
    ///
    /// # Errors
    /// [`FileError::Read`] when the kernel does not answer.
    pub fn has_note(&self, object: &str) -> Result<bool, FileError> {
        match read_own(&self.note_path(object)) {
            Ok(bytes) => Ok(bytes.is_some()),
            Err(error) if error.is_refused() => Err(error),
            Err(_) => Ok(true),
        }
    }

    /// Removes the note of a shared object whose change stays although no attachment holds it, and
    /// remembers that the change was ours ([`Index::left`]).
    ///
    /// The caller holds the object's lock.
    ///
    /// # Errors
    /// [`FileError`]; the note is then still there.
    pub fn leave(&self, object: &str) -> Result<(), FileError> {
        let path = self.left.join(file_name_of(object));
        let boot = boot_id()?;
        // An older link may exist.
        let _ = fs::remove_file(&path);
        in_directory(&path, || {
            symlink(&boot, &path).map_err(|source| FileError::Write { path: path.clone(), source })
        })?;
        self.take_note(object).map(drop)
    }

    /// Lists the shared objects whose change stayed in this boot after the last attachment was
    /// gone, sorted.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        let boot = boot_id().ok();
        let of_this_boot = |path: &PathBuf| {
            boot.as_ref()
                .is_some_and(|boot| fs::read_link(path).is_ok_and(|to| to == Path::new(boot)))
        };
        let mut damaged = Vec::new();
        let files = entries(&self.left, &mut damaged, &UnreadFile::default());
        let mut objects: Vec<String> = files
            .filter(of_this_boot)
            .filter_map(|path| object_of(path.file_name()?.to_str()?))
            .collect();
        objects.sort_unstable();
        objects
    }

    /// Claims for an attachment what only one can have; if others have it, returns these. A free
    /// claim takes one system call.
    ///
    /// # Errors
    /// [`FileError`]; the owner is then unknown.
    pub fn claim(&self, object: &str, key: &AttachmentKey) -> Result<ClaimOutcome, FileError> {
        let (path, hash) = (self.claim_path(object), key.hash());
        let failed = |source| FileError::Write { path: path.clone(), source };
        for _ in 0..DIRECTORY_RACES {
            match symlink(&hash, &path) {
                Ok(()) => return Ok(ClaimOutcome::Own),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    ensure_directory(&self.claims)?;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    match holders_in(&path) {
                        Ok(holders) if holders.contains(&hash) => return Ok(ClaimOutcome::Own),
                        Ok(holders) => return Ok(ClaimOutcome::By(holders)),
                        // It was released just now.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        // Not a link, so not one of ours.
                        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                            remove_file(&path)?;
                        }
                        Err(error) => return Err(failed(error)),
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(io::ErrorKind::ResourceBusy.into()))
    }

    /// Returns the owners of a claim: the [`AttachmentKey::hash`] of each attachment that has it.
    ///
    /// # Errors
    /// [`FileError::Read`].
    pub fn claimed_by(&self, object: &str) -> Result<Vec<String>, FileError> {
        holders_of(&self.claim_path(object))
    }

    /// Passes a claim on to other attachments, or to none, if its owners are unchanged; `false` if
    /// not.
    ///
    /// The caller holds the object's lock, and the lock of an attachment that is the only owner
    /// ([`Index::lock_hash`]) and that gives it up by [`Index::unclaim`].
    ///
    /// # Errors
    /// [`FileError`]; the owners are then unchanged.
    pub fn pass_claim(
        &self,
        object: &str,
        from: &[String],
        to: &[String],
    ) -> Result<bool, FileError> {
        if self.claimed_by(object)? != from {
            return Ok(false);
        }
        let path = self.claim_path(object);
        if to.is_empty() {
            return remove_file(&path).map(|_| true);
        }
        let failed = |source| FileError::Write { path: path.clone(), source };
        // No object has this name. What a killed process leaves under it is removed like other
        // claims.
        let new = self.claims.join(format!("{}{SHARED_BY}", file_name_of(object)));
        // Left by a process that was killed here.
        remove_file(&new)?;
        symlink(to.join(SHARED_BY), &new).map_err(failed)?;
        fs::rename(&new, &path).map_err(failed)?;
        Ok(true)
    }

    /// Gives up a claim of the attachment with this hash; another attachment's claim stays. `false`
    /// if the attachment shares it: then [`Index::pass_claim`] gives it up.
    ///
    /// The caller holds the attachment's lock.
    ///
    /// # Errors
    /// [`FileError::Read`], [`FileError::Remove`].
    pub fn unclaim(&self, object: &str, hash: &str) -> Result<bool, FileError> {
        let holders = self.claimed_by(object)?;
        if holders == [hash] {
            return remove_file(&self.claim_path(object)).map(|_| true);
        }
        Ok(holders.iter().all(|holder| holder != hash))
    }

    /// Lists what the attachment with this hash has claimed. It reads every claim: for an
    /// attachment whose record is lost. Unreadable claims are reported.
    #[must_use]
    pub fn claims_of(&self, hash: &str) -> ReadOutcome<Vec<String>> {
        let mut all = ReadOutcome::whole(Vec::new());
        for claim in entries(&self.claims, &mut Vec::new(), &self.unread) {
            match holders_of(&claim) {
                Ok(holders) if holders.iter().any(|holder| holder == hash) => {
                    let name = claim.file_name().and_then(OsStr::to_str);
                    all.found.extend(name.and_then(object_of));
                }
                Ok(_) => {}
                Err(error) => all.damaged.push(DamagedFile::of(claim, &error)),
            }
        }
        all
    }

    /// Reads all records of the attachment with this [`AttachmentKey::hash`].
    #[must_use]
    pub fn of_hash(&self, hash: &str) -> ReadOutcome<Vec<Record>> {
        let mut all = ReadOutcome::whole(Vec::new());
        if is_hash(hash) {
            read_records(&self.owners.join(hash), &mut all, &UnreadFile::default());
        }
        all
    }

    fn claim_path(&self, object: &str) -> PathBuf {
        self.claims.join(file_name_of(object))
    }

    /// Says whether this boot's kernel was found to lack a module ([`Index::note_lacking`]). Only a
    /// hint: the module may have been installed since.
    #[must_use]
    pub fn is_lacking(&self, module: &str) -> bool {
        // One system call reads a link.
        let recorded = fs::read_link(self.lacking.join(file_name_of(module)));
        recorded.is_ok_and(|boot| boot_id().is_ok_and(|now| boot == Path::new(&now)))
    }

    /// Remembers for this boot that the kernel lacks a module, so that it does not search for it at
    /// every call. A failure only costs another search. If none of our folders exists yet, nothing
    /// is written: a query leaves no trace.
    pub fn note_lacking(&self, module: &str) {
        let Ok(boot) = boot_id() else { return };
        let path = self.lacking.join(file_name_of(module));
        if !self.lacking.parent().is_some_and(Path::is_dir) {
            return;
        }
        // Removes one of an earlier boot.
        let _ = fs::remove_file(&path);
        let _ = create_directory(&self.lacking, DIRECTORY_MODE);
        let _ = symlink(boot, &path);
    }

    /// Removes the index's own files and folders if no attachment has a record or holds anything.
    /// Says whether they are gone.
    ///
    /// Locks that are held stay, and so does their folder.
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
        // These are only hints; a process that misses them writes them again.
        let _ = fs::remove_dir_all(&self.addresses);
        let _ = fs::remove_dir_all(&self.lacking);
        self.sweep_claims();
        let _ = fs::remove_dir(&self.claims);
        // Each call fails while something is left in the folder, and the answer is then no.
        for folder in [&self.owners, &self.shared, &self.locks] {
            remove_if_idle(folder);
        }
        self.owners.parent().is_some_and(|run| fs::remove_dir(run).is_ok())
    }

    /// Removes what killed processes left without an owner: temporary files and empty folders. A
    /// process that is about to write into such a folder creates it again.
    pub fn sweep(&self) {
        self.remove_abandoned();
        self.sweep_claims();
        let mut damaged = Vec::new();
        for folder in entries(&self.shared, &mut damaged, &UnreadFile::default()) {
            // Fails for everything in use, and for notes.
            let _ = fs::remove_dir(folder);
        }
        for folder in entries(&self.owners, &mut damaged, &UnreadFile::default()) {
            // A locked one is about to get a record.
            if let Ok(Some(_lock)) = Lock::acquire_directory(&folder, Duration::ZERO) {
                let _ = fs::remove_dir(folder);
            }
        }
    }

    /// Removes claims of attachments that no longer have a record.
    fn sweep_claims(&self) {
        let mut damaged = Vec::new();
        for claim in entries(&self.claims, &mut damaged, &UnreadFile::default()) {
            // An attachment has a record before it has a claim.
            let is_gone = |holder: &String| {
                let record = fs::symlink_metadata(self.owners.join(holder));
                record.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
            };
            if holders_in(&claim).is_ok_and(|holders| holders.iter().all(is_gone)) {
                let _ = fs::remove_file(claim);
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

    /// Reads and removes the note of a shared object, once what it says has been undone. Removes
    /// too what a killed process was writing there.
    ///
    /// The caller holds the object's lock.
    ///
    /// # Errors
    /// [`FileError::Remove`].
    pub fn take_note(&self, object: &str) -> Result<ReadOutcome<Option<Value>>, FileError> {
        let note = self.read_note(object);
        remove_file(&self.note_path(object))?;
        // The caller has the lock, so an unfinished file was left by a process that was killed.
        let begin = format!(".{}.made.", file_name_of(object));
        remove_temporary(&self.shared, begin.as_bytes());
        Ok(note)
    }

    fn record_path(&self, key: &AttachmentKey, plugin: &str) -> PathBuf {
        self.owners.join(key.hash()).join(format!("{}{RECORD}", file_name_of(plugin)))
    }

    fn object_directory(&self, object: &str) -> PathBuf {
        self.shared.join(file_name_of(object))
    }

    fn note_path(&self, object: &str) -> PathBuf {
        self.shared.join(format!("{}.made", file_name_of(object)))
    }
}

/// Runs a write. Creates the directory of its file when that is missing, and again if it is removed
/// meanwhile.
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
                // The directory created for it has no owner; it is removed if it is empty.
                if let (Err(_), Some(directory), true) = (&done, path.parent(), races != 0) {
                    let _ = fs::remove_dir(directory);
                }
                return done;
            }
        }
    }
}

/// Creates a directory. If another process created it, or removed it or its parent meanwhile, the
/// next try finds out.
fn ensure_directory(path: &Path) -> Result<(), FileError> {
    match create_directory(path, DIRECTORY_MODE) {
        Err(error) if error.is_exists() || error.is_not_found() => Ok(()),
        done => done,
    }
}

/// Removes a directory that contains only temporary files of killed processes, and says whether it
/// did. A process that is writing one just now writes it again; see [`in_directory`].
fn remove_if_idle(directory: &Path) -> bool {
    let mut damaged = Vec::new();
    // Fails while other plugins have records there.
    let unread = UnreadFile::default();
    if fs::remove_dir(directory).is_ok() {
        return true;
    }
    if entries(directory, &mut damaged, &unread).next().is_some() || !damaged.is_empty() {
        return false;
    }
    remove_temporary(directory, b"");
    fs::remove_dir(directory).is_ok()
}

/// Removes the temporary files with this prefix. A file that cannot be removed does no harm.
fn remove_temporary(directory: &Path, begin: &[u8]) {
    for entry in fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if name.starts_with(begin) && name.ends_with(b".tmp") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Reads the owners of a claim; none if it does not exist.
fn holders_of(claim: &Path) -> Result<Vec<String>, FileError> {
    match holders_in(claim) {
        Ok(holders) => Ok(holders),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        // Not a link, so not one of ours; the next claim removes it.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(Vec::new()),
        Err(source) => Err(FileError::Read { path: claim.to_owned(), source }),
    }
}

/// Lists a directory that may be missing, without temporary and other hidden files.
fn entries(
    directory: &Path,
    damaged: &mut Vec<DamagedFile>,
    unread: &UnreadFile,
) -> impl Iterator<Item = PathBuf> + use<> {
    let mut found = Vec::new();
    let mut report = |errno: Errno| {
        let one = DamagedFile::of(directory, &io::Error::from(errno));
        // What is not a folder contains nothing of ours.
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

/// Opens a directory for listing; std's function makes twice as many system calls.
fn open_directory(path: &Path) -> Result<Dir, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Dir::new(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Lists the references in an object's directory: files named by a hash. No reference is skipped
/// because of an error: a caller that finds none undoes what other attachments may still need.
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

/// Separates the owners of a shared claim.
const SHARED_BY: &str = "+";

/// Reads the owners of a claim.
fn holders_in(claim: &Path) -> io::Result<Vec<String>> {
    let target = fs::read_link(claim)?;
    Ok(target.to_string_lossy().split(SHARED_BY).map(str::to_owned).collect())
}

impl DamagedFile {
    /// Says whether a record of this plugin may be in it: it is the file of one, or a folder with
    /// records of all plugins.
    #[must_use]
    pub fn may_be_of(&self, plugin: &str) -> bool {
        let name = self.path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        match name.strip_suffix(RECORD) {
            Some(of) => of == file_name_of(plugin),
            None => name == OWNERS || is_hash(name),
        }
    }

    /// Returns the [`AttachmentKey::hash`] of the attachment whose record it is, or whose folder;
    /// `None` for the folder of all of them.
    #[must_use]
    pub fn hash(&self) -> Option<&str> {
        let mut names = self.path.iter().rev().filter_map(OsStr::to_str);
        let name = names.next()?;
        let folder = if name.ends_with(RECORD) { names.next()? } else { name };
        is_hash(folder).then_some(folder)
    }
}

impl ReadOutcome<Vec<Record>> {
    /// Returns the damaged records of attachments that no record here names: a container may be
    /// attached by each of them. One beside a record of the same attachment is not among them.
    pub fn nameless(&self) -> impl Iterator<Item = &DamagedFile> {
        let named: BTreeSet<String> =
            self.found.iter().map(|record| record.attachment.hash()).collect();
        self.damaged.iter().filter(move |one| one.hash().is_none_or(|hash| !named.contains(hash)))
    }
}

/// Says whether a text is an attachment's hash, and not a path to another place.
fn is_hash(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn read_records(directory: &Path, all: &mut ReadOutcome<Vec<Record>>, unread: &UnreadFile) {
    let paths: Vec<PathBuf> = entries(directory, &mut all.damaged, unread).collect();
    for path in paths {
        let read = read_record(&path, unread);
        all.found.extend(read.found);
        all.damaged.extend(read.damaged);
    }
}

fn read_record(path: &Path, unread: &UnreadFile) -> ReadOutcome<Option<Record>> {
    let mut read = ReadOutcome::whole(None);
    if let Some(bytes) = read_or_report(path, &mut read.damaged, unread) {
        match Record::parse(&bytes) {
            Ok(record) => read.found = Some(record),
            Err(reason) => read.damaged.push(DamagedFile::new(path, reason)),
        }
    }
    read
}

fn read_or_report(
    path: &Path,
    damaged: &mut Vec<DamagedFile>,
    unread: &UnreadFile,
) -> Option<Vec<u8>> {
    match read_own(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            let one = DamagedFile::of(path, &error);
            if error.is_refused() {
                unread.note(&one);
            }
            damaged.push(one);
            None
        }
    }
}
