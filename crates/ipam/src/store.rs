//! The folder in which `host-local` keeps addresses, byte for byte as the reference does.
//!
//! Below `<dataDir>/<network>/`, a folder of mode 0755:
//!
//! | file | content |
//! |---|---|
//! | `<address>` | `<container ID>\r\n<ifname>`, mode 0600; in an older format the container ID alone |
//! | `last_reserved_ip.<set>` | the address that a range set assigned last, as text |
//! | `lock` | empty; a writer holds an exclusive `flock` on it |
//!
//! # A reservation is never half there
//!
//! The reference creates the file of an address and then writes its owner; a crash in between
//! leaves an empty file that no DEL ever matches. Here the owner is written to a file without a
//! name (`O_TMPFILE`), which is then linked under the address. `linkat` fails if the name exists,
//! no matter who created it, and readers see the file complete or not at all. A killed process
//! leaves nothing. If a file system has no `O_TMPFILE`, `<dataDir>/.netwright.*.tmp` replaces the
//! file without a name. It is beside the network's folder and not in it, because the reference
//! reads every file in the folder.
//!
//! [`LockedStore::allocate`] does not wait for the disk: a power failure ends every container, and
//! losing a reservation together with its container is correct. A power failure may also leave the
//! name without content. [`LockedStore::release`] flushes the folder before it returns; otherwise a
//! power failure would restore the reservation of a container that is gone.
//! `last_reserved_ip.<set>` is written in place and not flushed; if it is lost or damaged, the next
//! search begins at the start of the set.
//!
//! # What is known without reading it
//!
//! An index beside the folder ([`Store::with_index`]) tells which owner holds which address, and
//! which address is free. So a call costs the same, however many addresses are held. The folder
//! stays the truth; the head of `store/known.rs` describes how an outdated index is detected.
//! Without an index every call reads the whole folder.
//!
//! # Beside the content
//!
//! Each file also gets an extended attribute, which the reference ignores: the address, the owner
//! again, and the network namespace that it was reserved for. If the attribute exists, it counts
//! and not the content. A file that is truncated, overwritten or has another file's content still
//! belongs to its owner, and no owner can release one under another address's name. When a pool is
//! exhausted, as after a power failure without any DEL, its user can find out which namespaces are
//! gone ([`LockedStore::origins`], [`LockedStore::remove`]). The reference's reservations have no
//! attribute, and are never taken back in this way.
//!
//! # What other programs leave
//!
//! An empty file with an address as its name ([`Holder::Unwritten`]) is the leftover of a crash:
//! while we hold the lock no process is writing one, and its creator never learned that it has the
//! address. The next [`LockedStore::allocate`] removes it. A damaged file is a reservation with an
//! unknown owner ([`Holder::Unknown`]): its address is not assigned, no DEL removes it, and
//! [`LockedStore::collect`] may. A file that the kernel refused to read ([`Holder::Unread`]) has an
//! owner that the next call may learn. No call removes it, and a call that would have to release
//! all addresses of an owner, or all that have no owner, does not report success.
//!
//! Without the lock, readers ([`Store::reservations`], [`Store::addresses`]) see each file complete
//! or not at all, unless the reference is just writing it.

mod error;
mod folder;
mod known;
mod locked;
mod mark;
mod reservation;
mod table;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cni::NetworkName;

pub use error::{AllocateError, StoreError};
pub use locked::{CollectReport, LockedStore};
pub use mark::Origin;
pub use reservation::{Holder, Owner, Reservation};

use folder::Folder;

/// The mode of a network's folder and those above it, the same as the reference's.
const DIRECTORY_MODE: u32 = 0o755;

/// A point at which a call may be killed, for tests that do so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The owner was written to a file that has no name yet.
    Written,
    /// That file was linked under its address.
    Linked,
    /// The address was recorded as the last of its set.
    Noted,
    /// The folder was flushed.
    Flushed,
    /// A reservation was removed.
    Removed,
    /// The index was updated with what was reserved or removed.
    Indexed,
    /// Folder and index were sealed.
    Sealed,
}

/// Called after each step. See [`Store::observed`].
type Observer = Arc<dyn Fn(Step) + Send + Sync>;

/// The addresses of one network.
#[derive(Clone)]
pub struct Store {
    directory: PathBuf,
    index: Option<PathBuf>,
    observer: Option<Observer>,
    named_temporaries: bool,
    origin: Option<Origin>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Store {
    /// Names a network's folder. Does not access it.
    #[must_use]
    pub fn new(data_dir: &Path, network: &NetworkName) -> Self {
        Store {
            directory: data_dir.join(network.as_str()),
            index: None,
            observer: None,
            named_temporaries: false,
            origin: None,
        }
    }

    /// Keeps an index of the folder in a directory of ours, which is created if it is missing:
    /// [`state::Roots::addresses`].
    #[must_use]
    pub fn with_index(mut self, directory: &Path) -> Self {
        let name = state::file_name_of(&self.directory.to_string_lossy());
        self.index = Some(directory.join(name));
        self
    }

    /// Records with each reservation the namespace it is for, so that another call can find out
    /// whether that is gone.
    #[must_use]
    pub fn with_origin(mut self, origin: Option<Origin>) -> Self {
        self.origin = origin;
        self
    }

    /// Calls `observer` after each step. For tests that stop a call dead in the middle.
    #[must_use]
    pub fn observed(mut self, observer: impl Fn(Step) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Works as on a file system without `O_TMPFILE`. For tests, which have no such file system.
    #[must_use]
    pub fn with_named_temporaries(mut self) -> Self {
        self.named_temporaries = true;
        self
    }

    /// Returns the network's folder.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Creates the folder if it is missing and takes its lock, waiting at most `deadline`.
    ///
    /// # Errors
    /// [`StoreError::Lock`] names the holder; [`StoreError::File`] when the folder cannot be
    /// created.
    pub fn lock_or_create(&self, deadline: Duration) -> Result<LockedStore<'_>, StoreError> {
        if let Some(locked) = self.lock(deadline)? {
            return Ok(locked);
        }
        state::create_directory(&self.directory, DIRECTORY_MODE).map_err(StoreError::File)?;
        let lock = self.take_lock(deadline)?;
        Ok(LockedStore::new(self, Folder::open(&self.directory)?, lock))
    }

    /// Takes the folder's lock, waiting at most `deadline`; `None` if there is no folder, and so no
    /// reservation.
    ///
    /// # Errors
    /// [`StoreError::Lock`] names the holder.
    pub fn lock(&self, deadline: Duration) -> Result<Option<LockedStore<'_>>, StoreError> {
        let Some(folder) = Folder::open_if_there(&self.directory)? else { return Ok(None) };
        Ok(Some(LockedStore::new(self, folder, self.take_lock(deadline)?)))
    }

    fn take_lock(&self, deadline: Duration) -> Result<state::Lock, StoreError> {
        state::Lock::acquire(&self.directory.join(folder::LOCK), deadline).map_err(StoreError::Lock)
    }

    /// Reads every reservation, in no order, without the lock.
    ///
    /// # Errors
    /// [`StoreError::Folder`] when the folder exists but cannot be read.
    pub fn reservations(&self) -> Result<Vec<Reservation>, StoreError> {
        match Folder::open_if_there(&self.directory)? {
            Some(folder) => folder.reservations(),
            None => Ok(Vec::new()),
        }
    }

    /// Lists every reserved address, in no order, without the lock and without opening a file.
    ///
    /// # Errors
    /// [`StoreError::Folder`] when the folder exists but cannot be read.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, StoreError> {
        match Folder::open_if_there(&self.directory)? {
            Some(folder) => folder.addresses(),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the holder of an address, without the lock; `None` if it is not held.
    ///
    /// # Errors
    /// [`StoreError::Folder`] when the folder exists but cannot be opened.
    pub fn holder_of(&self, address: IpAddr) -> Result<Option<Holder>, StoreError> {
        let folder = Folder::open_if_there(&self.directory)?;
        Ok(folder.and_then(|folder| folder.holder_of(address)))
    }

    /// Reports whether an attachment holds an address, or its container in the old format, without
    /// the lock. It reads the folder only if none of the `likely` addresses is held, and none that
    /// the index lists.
    ///
    /// # Errors
    /// [`StoreError::Folder`] when the folder exists but cannot be read.
    pub fn holds(&self, owner: &Owner, likely: &[IpAddr]) -> Result<bool, StoreError> {
        let Some(folder) = Folder::open_if_there(&self.directory)? else { return Ok(false) };
        let is_ours = |holder: &Holder| holder.is(owner) || holder.is_container_of(owner);
        let is_held =
            |address: &IpAddr| folder.holder_of(*address).is_some_and(|one| is_ours(&one));
        if likely.iter().any(is_held)
            || known::likely(self.index.as_deref(), owner).iter().any(is_held)
        {
            return Ok(true);
        }
        Ok(folder.reservations()?.iter().any(|reservation| is_ours(&reservation.holder)))
    }

    fn write_nameless(
        &self,
        folder: &Folder,
        owner: &Owner,
        address: IpAddr,
    ) -> std::io::Result<folder::NamelessFile> {
        let nameless = folder.write_nameless(&owner.to_content(), self.named_temporaries)?;
        let (owner, origin) = (owner.clone(), self.origin.clone());
        nameless.mark(&mark::Mark { address, owner, origin });
        Ok(nameless)
    }

    fn reached(&self, step: Step) {
        if let Some(observer) = &self.observer {
            observer(step);
        }
    }
}
