//! Objects of the host that attachments share: a sysctl, a bridge, a setting of a link.
//!
//! The first attachment that needs such an object notes what was there and changes it. Each one
//! holds it, and the last restores it. The steps have one order, so that a process may be killed
//! between any two of them: the next [`SharedObject::hold`], [`SharedObject::release`] or
//! [`SharedObject::collect`] mends what it left.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let roots = netwright_state::Roots::new(dir.path().join("run"), dir.path().join("lib"));
//! # let key = cni::AttachmentKey {
//! #     network: cni::NetworkName::new("blue")?,
//! #     container_id: cni::ContainerId::new("c1")?,
//! #     ifname: cni::IfName::new("eth0")?,
//! # };
//! use netwright_state::{SharedChange, Index, RestoreOutcome, SharedObject};
//! use std::cell::Cell;
//!
//! let index = Index::new(&roots);
//! let setting = Cell::new("off");
//! let object = SharedObject::new(&index, "setting of the host");
//! object.hold(&key, || {
//!     let note = object.note()?.is_none().then(|| setting.get().into());
//!     let apply = || Ok::<_, Box<dyn std::error::Error>>(setting.set("on"));
//!     Ok(Some(SharedChange { note, apply }))
//! })?;
//! assert_eq!(setting.get(), "on");
//!
//! object.release(&key, || {
//!     if object.note()?.is_some_and(|was| was == "off") {
//!         setting.set("off");
//!     }
//!     Ok::<_, Box<dyn std::error::Error>>(RestoreOutcome::Done)
//! })?;
//! assert_eq!(setting.get(), "off");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

use cni::AttachmentKey;
use serde_json::Value;

use crate::file::FileError;
use crate::index::{Index, Release};
use crate::lock::{Lock, LockError};

/// How long a call waits for a shared object's lock. It is held for a few milliseconds at a time; a
/// longer holder is stuck, and the error names it.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// An object that attachments share, by its name in the [`Index`].
#[derive(Debug, Clone)]
pub struct SharedObject<'i> {
    index: &'i Index,
    name: String,
}

/// What an attachment that holds an object does to it.
#[derive(Debug)]
pub struct SharedChange<A> {
    /// The object as it was. `None` keeps the note that is there, or goes without one.
    pub note: Option<Value>,
    /// Makes the change. It runs once the attachment holds the object.
    pub apply: A,
}

/// What became of an object that no attachment holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// It is as its note says, or no longer ours: the note goes.
    Done,
    /// It stays changed, and [`Index::left`] lists it.
    Left,
    /// It could not be restored now. The note stays for the next release or collection.
    Postponed,
}

impl<'i> SharedObject<'i> {
    /// Names an object. Nothing is read yet.
    #[must_use]
    pub fn new(index: &'i Index, name: impl Into<String>) -> Self {
        SharedObject { index, name: name.into() }
    }

    /// Returns its name in the index.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the object's lock, for at most [`LOCK_TIMEOUT`].
    ///
    /// # Errors
    /// [`LockError::Busy`] names the holder.
    pub fn lock(&self) -> Result<Lock, LockError> {
        self.index.lock(&self.name, LOCK_TIMEOUT)
    }

    /// Reads what was there before; see [`Index::known_note`].
    ///
    /// # Errors
    /// [`FileError::Read`] when the kernel refuses.
    pub fn note(&self) -> Result<Option<Value>, FileError> {
        self.index.known_note(&self.name)
    }

    /// Says whether there is a note, even a garbled one; see [`Index::has_note`].
    ///
    /// # Errors
    /// [`FileError::Read`] when the kernel does not answer.
    pub fn has_note(&self) -> Result<bool, FileError> {
        self.index.has_note(&self.name)
    }

    /// Holds the object for an attachment, under its lock: `read` looks at it and plans the change,
    /// which is noted, held and made, in this order. Returns what the change returned.
    ///
    /// If `read` plans none, because another program has made the change, the attachment does not
    /// hold the object.
    ///
    /// # Errors
    /// Those of the lock, the files, `read` and the change. Releasing the object undoes what was
    /// done.
    pub fn hold<T, A, E>(
        &self,
        key: &AttachmentKey,
        read: impl FnOnce() -> Result<Option<SharedChange<A>>, E>,
    ) -> Result<Option<T>, E>
    where
        A: FnOnce() -> Result<T, E>,
        E: From<LockError> + From<FileError>,
    {
        let _lock = self.lock()?;
        let Some(SharedChange { note, apply }) = read()? else { return Ok(None) };
        if let Some(note) = note {
            self.index.note(&self.name, &note)?;
        }
        self.index.hold(&self.name, key)?;
        apply().map(Some)
    }

    /// Releases the object for an attachment, under its lock. If no other holds it, `restore` undoes
    /// the change, and the note goes. It is no error if the attachment did not hold the object: a
    /// process may have been killed before it held it, or before it restored it, and `restore` is
    /// called then too.
    ///
    /// Without a trace of the object not even its lock is taken.
    ///
    /// # Errors
    /// Those of the lock, the files and `restore`. The note is then still there.
    pub fn release<E: From<LockError> + From<FileError>>(
        &self,
        key: &AttachmentKey,
        restore: impl FnOnce() -> Result<RestoreOutcome, E>,
    ) -> Result<(), E> {
        if !self.index.may_exist(&self.name)? {
            return Ok(());
        }
        let _lock = self.lock()?;
        self.settle(self.index.release(&self.name, key)?, restore)
    }

    /// Restores the object if no attachment holds it, under its lock: a process was killed before it
    /// held the object, or before it restored it.
    ///
    /// # Errors
    /// As [`SharedObject::release`].
    pub fn collect<E: From<LockError> + From<FileError>>(
        &self,
        restore: impl FnOnce() -> Result<RestoreOutcome, E>,
    ) -> Result<(), E> {
        if !self.has_note()? || self.index.is_held(&self.name)? {
            return Ok(());
        }
        let _lock = self.lock()?;
        match self.index.is_held(&self.name)? {
            true => Ok(()),
            false => self.settle(Release::NotHeld, restore),
        }
    }

    /// Restores the object after [`Index::release`], unless others hold it. The caller has the lock.
    ///
    /// # Errors
    /// As [`SharedObject::release`].
    pub fn settle<E: From<FileError>>(
        &self,
        released: Release,
        restore: impl FnOnce() -> Result<RestoreOutcome, E>,
    ) -> Result<(), E> {
        if released == Release::Held {
            return Ok(());
        }
        match restore()? {
            RestoreOutcome::Done => self.index.take_note(&self.name).map(drop)?,
            RestoreOutcome::Left => self.index.leave(&self.name)?,
            RestoreOutcome::Postponed => {}
        }
        Ok(())
    }
}
