//! The result cache: what was attached, with which configuration, and the result.
//!
//! Format and place are libcni's (`<dir>/results/<network>-<container ID>-<ifname>`, kind
//! `cniCacheV1`, mode 0600 in a folder of mode 0700), so that a node can change between runtimes
//! while containers run. Files in libcni's older form (a bare result) are read too. The differences
//! are:
//!
//! - A file is written beside its place and renamed into it, so that no reader and no crash sees
//!   half of it.
//! - An attachment is recorded *before* its first plugin runs, without `result`. So after a crash
//!   in the middle of ADD, or a roll-back that failed, GC and DEL know what to undo. libcni reads
//!   such a file as an attachment with an empty result.
//! - While that ADD runs, its file is locked (`man 2 flock`), so that GC can tell it from an ADD
//!   that died.
//! - libcni's names are ambiguous: network `a-b` with container `c` shares a file with network `a`
//!   and container `b-c`. Here the content decides: a file that names another attachment is never
//!   overwritten, used or removed. The later attachment goes to the same name with `.` and 32
//!   hexadecimal digits appended, which libcni still lists, though it does not find it by name.
//! - An entry names the boot in which it was recorded (`netwright/boot-id`), so that a container
//!   from before a restart is not taken for one that has its path since.
//! - An entry names the PID namespace of the process that ran ADD (`netwright/pid-ns`), unless that
//!   is the machine's own: who sees all processes there sees those of the container.
//! - The entry of an ADD that failed, and that was not undone as a whole, says why
//!   (`netwright/failed`), and how a plugin refused its configuration (`netwright/refusal`): one
//!   that does so at DEL, too, has made nothing.
//! - Garbage (empty, truncated, foreign, huge, not a file) is skipped and reported, never fatal.

mod base64;
mod file;
mod format;

use std::io;
use std::path::{Path, PathBuf};

use cni::{AddResult, AttachmentKey, ContainerId, Error, NetworkList, NetworkName, Version, code};
use serde_json::value::RawValue;
use state::{Durability, FileError};

use crate::Attachment;
use crate::error::{PluginFailure, PluginRefusal};
use file::{FileLock, LockOutcome};
use format::{Content, End, Entry};

/// The folder that libcni uses by default.
pub const DEFAULT_CACHE_DIR: &str = "/var/lib/cni";

/// The modes of folders and files: only the owner can read them, because configurations may hold
/// credentials.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// How often ADD looks for the attachment's file, because another call has changed it meanwhile. Each
/// time that call has completed something; after that it counts as under way.
const RESERVE_TRIES: usize = 8;

/// A folder of cached attachments.
#[derive(Debug, Clone)]
pub struct Cache {
    results: PathBuf,
    durability: Durability,
}

impl Default for Cache {
    /// Uses [`DEFAULT_CACHE_DIR`].
    fn default() -> Self {
        Cache::new(DEFAULT_CACHE_DIR)
    }
}

/// An attachment that the cache knows.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CachedAttachment {
    /// The network.
    pub network: NetworkName,
    /// The runtime's description when it attached.
    pub attachment: Attachment,
    /// The configuration with which it was attached, as read then.
    pub config: Vec<u8>,
    /// What ADD returned; `None` when it did not complete.
    pub result: Option<Box<RawValue>>,
    /// The file.
    pub path: PathBuf,
    /// The boot in which ADD recorded it, if a runtime of ours did.
    pub boot_id: Option<String>,
    /// Why ADD failed, in the plugin's words, if a runtime of ours ran it.
    pub failed: Option<String>,
    /// The plugin that refused its configuration at that ADD.
    pub refused: Option<PluginRefusal>,
}

/// What the cache holds.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// The attachments, sorted by the names of their files.
    pub attachments: Vec<CachedAttachment>,
    /// Files that hold no attachment.
    pub passed_over: Vec<SkippedFile>,
}

/// A file in the cache that holds no attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedFile {
    /// The file.
    pub path: PathBuf,
    /// Why it is not used.
    pub reason: String,
}

/// Says why the cache failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The folder or a file in it failed.
    #[error("{}", chain(.0))]
    File(FileError),
    /// A file is not what it should be.
    #[error("failed to unmarshal cached network {network:?} config: {reason} (in {path:?})")]
    Garbage {
        /// The requested network.
        network: String,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file is of a kind that holds no configuration.
    #[error("read cached network {network:?} config has wrong kind: {kind} (in {path:?})")]
    Kind {
        /// The requested network.
        network: String,
        /// The file.
        path: PathBuf,
        /// The kind in the file.
        kind: String,
    },
    /// The cached result does not fit the requested version.
    #[error(
        "failed to convert cached result to config version {version:?}: {reason} (in {path:?})"
    )]
    Convert {
        /// The version.
        version: String,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl CacheError {
    /// Returns the error object: code 5 for files that cannot be used, 6 for contents.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        let code = match self {
            CacheError::Garbage { .. } | CacheError::Kind { .. } | CacheError::Convert { .. } => {
                code::DECODE_FAILURE
            }
            CacheError::File(_) => code::IO_FAILURE,
        };
        Error::new(code, self.to_string())
    }
}

/// Returns an error with its causes, for use in another text.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    Error::from_chain(code::IO_FAILURE, error).msg
}

impl CachedAttachment {
    /// Returns the key of the attachment.
    #[must_use]
    pub fn key(&self) -> AttachmentKey {
        AttachmentKey {
            network: self.network.clone(),
            container_id: self.attachment.container_id.clone(),
            ifname: self.attachment.ifname.clone(),
        }
    }

    /// Reads the configuration with which it was attached.
    ///
    /// # Errors
    /// As [`NetworkList::parse`].
    pub fn list(&self) -> Result<NetworkList, Error> {
        let list = NetworkList::parse(&self.config)?;
        if list.plugins.is_empty() {
            // libcni caches a single plugin's configuration unchanged.
            return NetworkList::from_plugin(&self.config);
        }
        Ok(list)
    }

    /// Reads what ADD returned; `None` when it did not complete.
    ///
    /// # Errors
    /// As [`AddResult::parse`].
    pub fn result(&self) -> Result<Option<AddResult>, Error> {
        let result = self.result.as_deref();
        result.map(|raw| AddResult::parse(raw.get().as_bytes(), Version::V0_1_0)).transpose()
    }

    /// Says whether the ADD that recorded it is still running, in any process: that ADD holds a
    /// lock on the file. Other runtimes record an attachment only once it is made.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.result.is_none() && file::is_locked(&self.path)
    }

    /// Says whether it was recorded before the last start of the machine. No namespace outlives a
    /// restart.
    #[must_use]
    pub fn is_of_an_earlier_boot(&self) -> bool {
        self.boot_id.is_some() && own_boot().is_some_and(|now| self.boot_id != Some(now))
    }

    fn of(entry: Entry, path: PathBuf) -> Self {
        let Entry { key, attachment, config, result, boot_id, failed, refused } = entry;
        let network = key.network;
        let mut cached = CachedAttachment {
            network,
            attachment,
            config,
            result,
            path,
            boot_id,
            failed,
            refused,
        };
        // libcni before 1.2 does not record the namespace, but the result has it.
        if cached.attachment.netns.is_empty()
            && let Ok(Some(result)) = cached.result()
            && let Some(interface) = result.container_interface(cached.attachment.ifname.as_str())
        {
            cached.attachment.netns.clone_from(&interface.sandbox);
        }
        cached
    }
}

/// The result of looking for an attachment.
#[derive(Debug)]
pub(crate) enum Lookup {
    Missing,
    Found(Box<CachedAttachment>),
    Legacy { path: PathBuf, result: Box<RawValue> },
    Kind { path: PathBuf, kind: String },
    Garbage { path: PathBuf, reason: String },
}

/// A place in the cache that a running ADD holds.
#[derive(Debug)]
pub(crate) struct Reservation {
    path: PathBuf,
    /// What was there before, if its ADD had completed.
    pub(crate) existing: Option<Box<CachedAttachment>>,
    /// What an ADD had recorded there that did not complete.
    unfinished: Option<Vec<u8>>,
    /// Keeps other ADDs of the attachment away, and shows that this one is running:
    /// [`CachedAttachment::is_under_way`].
    locked: FileLock,
}

/// What became of an attempt to reserve a file that is there.
enum ReserveOutcome {
    Yes(Reservation),
    /// It is not there any more.
    No,
    /// Another ADD of the attachment is under way.
    Busy,
}

impl Cache {
    /// Uses a folder, which need not exist yet.
    pub fn new(dir: impl AsRef<Path>) -> Self {
        Cache { results: dir.as_ref().join("results"), durability: Durability::Synced }
    }

    /// Lets the kernel decide when files reach the disk. This is for caches that need not survive a
    /// loss of power, such as those on a tmpfs.
    #[must_use]
    pub fn volatile(mut self) -> Self {
        self.durability = Durability::Volatile;
        self
    }

    /// Returns the folder that holds the files.
    #[must_use]
    pub fn results_dir(&self) -> &Path {
        &self.results
    }

    /// Reads one attachment; `None` when the cache does not know it.
    ///
    /// # Errors
    /// [`CacheError::Garbage`] or [`CacheError::Kind`] when its file holds something else.
    pub fn attachment(&self, key: &AttachmentKey) -> Result<Option<CachedAttachment>, CacheError> {
        let network = key.network.to_string();
        match self.look_up(key) {
            Lookup::Missing => Ok(None),
            Lookup::Found(found) => Ok(Some(*found)),
            Lookup::Legacy { path, .. } => {
                Err(CacheError::Kind { network, path, kind: String::new() })
            }
            Lookup::Kind { path, kind } => Err(CacheError::Kind { network, path, kind }),
            Lookup::Garbage { path, reason } => Err(CacheError::Garbage { network, path, reason }),
        }
    }

    /// Lists the attachments of one container or of all. A folder that does not exist holds none.
    ///
    /// # Errors
    /// [`CacheError::File`] when the folder cannot be read.
    pub fn list(&self, container: Option<&ContainerId>) -> Result<Listing, CacheError> {
        let cannot =
            |source| CacheError::File(FileError::List { path: self.results.clone(), source });
        let mut names = Vec::new();
        match std::fs::read_dir(&self.results) {
            Ok(entries) => {
                for entry in entries {
                    names.push(entry.map_err(cannot)?.file_name());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(cannot(error)),
        }
        cni::order::sort(&mut names);
        let mut listing = Listing::default();
        for name in names {
            let text = name.to_string_lossy();
            let may_be_of = |id: &ContainerId| text.contains(&format!("-{id}-"));
            if is_temporary(&text) || !container.is_none_or(may_be_of) {
                continue;
            }
            let path = self.results.join(&name);
            match self.read_listed(&path) {
                Ok(Some(found)) => {
                    if container.is_none_or(|id| *id == found.attachment.container_id) {
                        listing.attachments.push(found);
                    }
                }
                Ok(None) => {}
                Err(reason) => listing.passed_over.push(SkippedFile { path, reason }),
            }
        }
        Ok(listing)
    }

    /// Says whether an attachment's record belongs in this file.
    pub(crate) fn is_file_of(&self, path: &Path, key: &AttachmentKey) -> bool {
        self.paths(key).iter().any(|own| own == path)
    }

    fn read_listed(&self, path: &Path) -> Result<Option<CachedAttachment>, String> {
        // A file that went away in the meantime is not reported.
        let Some(document) = state::read_optional(path).map_err(|error| chain(&error))? else {
            return Ok(None);
        };
        match format::read(&document) {
            Content::Entry(entry) => {
                if self.paths(&entry.key).iter().any(|own| own == path) {
                    Ok(Some(CachedAttachment::of(*entry, path.to_owned())))
                } else {
                    Err(format!("its name does not match the attachment in it, {}", entry.key))
                }
            }
            Content::Legacy(_) => Err("it holds a result without its attachment".to_owned()),
            Content::Kind(kind) => Err(format!("it is of another kind: {kind}")),
            Content::Garbage(reason) => Err(reason),
        }
    }

    /// Removes the record of an attachment, without calling a plugin. Returns whether there was
    /// one.
    ///
    /// # Errors
    /// [`CacheError::File`].
    pub fn forget(&self, key: &AttachmentKey) -> Result<bool, CacheError> {
        let path = match self.look_up(key) {
            Lookup::Missing => return Ok(false),
            Lookup::Found(found) => found.path,
            Lookup::Legacy { path, .. }
            | Lookup::Kind { path, .. }
            | Lookup::Garbage { path, .. } => path,
        };
        state::remove_file(&path).map_err(CacheError::File)
    }

    /// Returns libcni's name, and the name to use when that one holds another attachment.
    ///
    /// The second cannot be the first of any attachment: an interface's name has at most 15 bytes,
    /// and the last 32 have no dash.
    fn paths(&self, key: &AttachmentKey) -> [PathBuf; 2] {
        let name = format!("{}-{}-{}", key.network, key.container_id, key.ifname);
        let other = format!("{name}.{}", key.hash());
        [self.results.join(name), self.results.join(other)]
    }

    /// Looks for an attachment under both its names.
    pub(crate) fn look_up(&self, key: &AttachmentKey) -> Lookup {
        let mut second_best = Lookup::Missing;
        for path in self.paths(key) {
            let found = match state::read_optional(&path) {
                Ok(None) => continue,
                Ok(Some(document)) => match format::read(&document) {
                    Content::Entry(entry) if entry.key == *key => {
                        return Lookup::Found(Box::new(CachedAttachment::of(*entry, path)));
                    }
                    Content::Entry(_) => continue,
                    Content::Legacy(result) => Lookup::Legacy { path, result },
                    Content::Kind(kind) => Lookup::Kind { path, kind },
                    Content::Garbage(reason) => Lookup::Garbage { path, reason },
                },
                Err(error) => Lookup::Garbage { path, reason: chain(&error) },
            };
            if matches!(second_best, Lookup::Missing) {
                second_best = found;
            }
        }
        second_best
    }

    /// Records an attachment that is about to be made; `None` while another call of it is under way.
    pub(crate) fn reserve(
        &self,
        key: &AttachmentKey,
        attachment: &Attachment,
        config: &[u8],
    ) -> Result<Option<Reservation>, CacheError> {
        state::create_directory(&self.results, FOLDER_MODE).map_err(CacheError::File)?;
        let boot_id = own_boot();
        let boot_id = boot_id.as_deref();
        let document = format::write(&key.network, attachment, config, End::Open, boot_id);
        for _ in 0..RESERVE_TRIES {
            match self.reserve_once(key, &document)? {
                ReserveOutcome::Yes(reservation) => return Ok(Some(reservation)),
                ReserveOutcome::Busy => return Ok(None),
                ReserveOutcome::No => {}
            }
        }
        Ok(None)
    }

    fn reserve_once(
        &self,
        key: &AttachmentKey,
        document: &[u8],
    ) -> Result<ReserveOutcome, CacheError> {
        if let Lookup::Found(found) = self.look_up(key) {
            return self.reserve_again(found.path.clone(), Some(found), document);
        }
        let [usual, other] = self.paths(key);
        for path in [&usual, &other] {
            if let Some(locked) = file::create(path, document).map_err(CacheError::File)? {
                let path = path.clone();
                let (existing, unfinished) = (None, None);
                return Ok(ReserveOutcome::Yes(Reservation { path, existing, unfinished, locked }));
            }
            if !self.is_of_another(path, key) {
                return self.reserve_again(path.clone(), None, document);
            }
        }
        let source = io::Error::from(io::ErrorKind::AlreadyExists);
        Err(CacheError::File(FileError::Create { path: other, source }))
    }

    /// Takes a file that is there: the record of an attachment, which stays, or that of an ADD that
    /// did not complete, or what cannot be used, which are overwritten.
    fn reserve_again(
        &self,
        path: PathBuf,
        found: Option<Box<CachedAttachment>>,
        document: &[u8],
    ) -> Result<ReserveOutcome, CacheError> {
        let locked = match FileLock::take_at(&path) {
            LockOutcome::Gone => return Ok(ReserveOutcome::No),
            LockOutcome::Busy => return Ok(ReserveOutcome::Busy),
            LockOutcome::Locked(locked) => locked,
        };
        let is_unfinished = found.as_ref().is_some_and(|found| found.result.is_none());
        let existing = found.filter(|found| found.result.is_some());
        if existing.is_some() {
            let unfinished = None;
            return Ok(ReserveOutcome::Yes(Reservation { path, existing, unfinished, locked }));
        }
        let unfinished = match is_unfinished {
            true => state::read_optional(&path).map_err(CacheError::File)?,
            false => None,
        };
        let locked = file::replace(&path, document).map_err(CacheError::File)?;
        Ok(ReserveOutcome::Yes(Reservation { path, existing, unfinished, locked }))
    }

    fn is_of_another(&self, path: &Path, key: &AttachmentKey) -> bool {
        matches!(
            state::read_optional(path).map(|document| document.map(|document| format::read(&document))),
            Ok(Some(Content::Entry(entry))) if entry.key != *key
        )
    }

    /// Records an attachment that was made.
    pub(crate) fn commit(
        &self,
        reservation: &Reservation,
        network: &NetworkName,
        attachment: &Attachment,
        config: &[u8],
        result: &RawValue,
    ) -> Result<(), CacheError> {
        let (made, boot_id) = (End::Made(result), own_boot());
        let document = format::write(network, attachment, config, made, boot_id.as_deref());
        self.replace(&reservation.path, &document, self.durability)
    }

    /// Records why an attachment was not made of which something may be left. Does nothing if the
    /// reservation's file is gone: a DEL has removed it meanwhile, and another ADD may have its own.
    pub(crate) fn note_failure(
        &self,
        reservation: &Reservation,
        network: &NetworkName,
        attachment: &Attachment,
        config: &[u8],
        failure: &PluginFailure,
    ) -> Result<(), CacheError> {
        if !reservation.locked.is_at(&reservation.path) {
            return Ok(());
        }
        let (text, refused) = (failure.to_cni().to_string(), failure.refused());
        let (failed, boot_id) = (End::Failed(&text, refused.as_ref()), own_boot());
        let document = format::write(network, attachment, config, failed, boot_id.as_deref());
        self.replace(&reservation.path, &document, self.durability)
    }

    /// Changes the recorded result of an attachment: for a caller that changes in the container
    /// what an ADD has made, such as its default route, so that CHECK expects what is there.
    ///
    /// # Errors
    /// [`CacheError::File`] when it cannot be written; then the record is unchanged.
    pub fn amend(&self, cached: &CachedAttachment, result: &RawValue) -> Result<(), CacheError> {
        let CachedAttachment { network, attachment, config, path, boot_id, .. } = cached;
        let made = End::Made(result);
        let document = format::write(network, attachment, config, made, boot_id.as_deref());
        self.replace(path, &document, self.durability)
    }

    /// Writes an attachment's file again if it holds garbage. Returns false, and changes nothing,
    /// if the file is gone, holds an attachment, or is of another kind or form.
    ///
    /// The caller knows what the file held, and locks out DEL: a runtime removes the file after the
    /// plugins' DELs.
    ///
    /// # Errors
    /// [`CacheError::File`] when it cannot be read or written.
    pub fn rewrite(&self, cached: &CachedAttachment) -> Result<bool, CacheError> {
        let CachedAttachment { network, attachment, config, result, path, boot_id, .. } = cached;
        let Some(document) = state::read_optional(path).map_err(CacheError::File)? else {
            return Ok(false);
        };
        let is_garbage = match format::read(&document) {
            Content::Garbage(_) => true,
            Content::Entry(entry) if entry.key == cached.key() => {
                CachedAttachment::of(*entry, path.clone()).result().is_err()
            }
            Content::Entry(_) | Content::Legacy(_) | Content::Kind(_) => false,
        };
        if is_garbage {
            let end = match (result, &cached.failed) {
                (Some(result), _) => End::Made(result),
                (None, Some(error)) => End::Failed(error, cached.refused.as_ref()),
                (None, None) => End::Open,
            };
            let document = format::write(network, attachment, config, end, boot_id.as_deref());
            self.replace(path, &document, self.durability)?;
        }
        Ok(is_garbage)
    }

    /// Removes the record of an attachment that was not made, and of which nothing is left.
    pub(crate) fn release(&self, reservation: &Reservation) -> Result<(), CacheError> {
        if !reservation.locked.is_at(&reservation.path) {
            return Ok(());
        }
        state::remove_file(&reservation.path).map(drop).map_err(CacheError::File)
    }

    /// Makes the file what it was before an ADD that changed nothing.
    pub(crate) fn put_back(&self, reservation: &Reservation) -> Result<(), CacheError> {
        match &reservation.unfinished {
            Some(document) if reservation.locked.is_at(&reservation.path) => {
                self.replace(&reservation.path, document, self.durability)
            }
            Some(_) => Ok(()),
            None => self.release(reservation),
        }
    }

    fn replace(
        &self,
        path: &Path,
        document: &[u8],
        durability: Durability,
    ) -> Result<(), CacheError> {
        state::write_atomic(path, document, FILE_MODE, durability).map_err(CacheError::File)
    }
}

/// Returns the ID of this boot; unknown without `/proc`.
fn own_boot() -> Option<String> {
    state::boot_id().ok()
}

/// Says whether a file is being written, or was when its writer died.
fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".tmp")
}
