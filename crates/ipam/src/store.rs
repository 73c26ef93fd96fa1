//! The folder in which `host-local` keeps addresses, byte for byte as the reference does.
//!
//! Below `<dataDir>/<network>/`, a folder of mode 0755:
//!
//! | file | content |
//! |---|---|
//! | `<address>` | `<container ID>\r\n<ifname>`, mode 0600; in an older format the container ID alone |
//! | `last_reserved_ip.<set>` | the address that a range set handed out last, as text |
//! | `lock` | empty; whoever changes something holds an exclusive `flock` on it |
//!
//! # A reservation is never half there
//!
//! The reference creates the file of an address and then writes its owner; a crash in between leaves an
//! empty file that no DEL ever matches. Here the owner is written to a file without a name (`O_TMPFILE`), and
//! then linked under the address: `linkat` fails if the name exists, whoever made it, and what is
//! seen is whole. A killed process leaves nothing. Where a file system has no `O_TMPFILE`, the file without a
//! name is replaced by `<dataDir>/.netwright.*.tmp`, beside the network's folder and not in it, because the
//! reference reads every file in the folder.
//!
//! [`Locked::allocate`] does not wait for the disk: a power cut ends every container, and a reservation that is lost
//! with its container is what should be. It may also leave the name with nothing behind it. Before [`Locked::release`] returns the folder is flushed, or a power cut
//! would bring back the reservation of a container that is gone. `last_reserved_ip.<set>` is written in place and not flushed; when it is lost or
//! garbled, the next search begins at the start of the set.
//!
//! # What is known without reading it
//!
//! Who holds what, and which address is free, is looked up in an index beside the folder ([`Store::with_index`]), so that
//! a call costs the same however many addresses are held. The folder stays the truth; see the head of `store/known.rs`
//! for how an index is told from one that is out of date. Without one every call reads the whole folder.
//!
//! # Beside the content
//!
//! Each file also gets an extended attribute, which the reference does not look at: the address, the owner once more, and the
//! network namespace it was reserved for. Where there is one it is believed, not the content: a file that is truncated,
//! overwritten or has another's content is still its owner's, and one under another address's name is nobody's to release.
//! When a pool is exhausted, as after a power cut behind which nobody called DEL, its user can tell which namespaces are gone
//! ([`Locked::origins`], [`Locked::remove`]). What the reference reserved has no attribute, and is never taken back so.
//!
//! # What other hands leave
//!
//! A file named by an address that is empty ([`Holder::Nobody`]) is a crash's leftover: while we hold the lock nobody is
//! in the middle of writing one, and whoever made it was never told that it has the address. The next
//! [`Locked::allocate`] removes it. One that is garbled is a reservation with an unknown owner
//! ([`Holder::Unknown`]): its address is not handed out, no DEL removes it, and [`Locked::collect`] may. One that the kernel
//! refused to read ([`Holder::Unread`]) has an owner whom the next call may learn: nobody removes it, and who would have
//! released everything that is somebody's, or nobody's, does not say that it is done.
//!
//! Without the lock, readers ([`Store::reservations`], [`Store::addresses`]) see each file whole or not at all,
//! unless the reference is just writing it.

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
pub use locked::{Collected, Locked};
pub use mark::Origin;
pub use reservation::{Holder, Owner, Reservation};

use folder::Folder;

/// The mode of a network's folder and those above it, as the reference makes them.
const DIRECTORY_MODE: u32 = 0o755;

/// A point at which a call may be killed, for tests that do so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The owner was written to a file that has no name yet.
    Written,
    /// That file was linked under its address.
    Linked,
    /// The address was noted as the last of its set.
    Noted,
    /// The folder was flushed.
    Flushed,
    /// A reservation was removed.
    Removed,
    /// The index was told of what was reserved or removed.
    Indexed,
    /// Folder and index were sealed.
    Sealed,
}

/// Is told of each step. See [`Store::observed`].
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
    /// Names a network's folder. Nothing is touched.
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

    /// Keeps an index of the folder in a directory of ours, which is made when it is missing: [`state::Roots::addresses`].
    #[must_use]
    pub fn with_index(mut self, directory: &Path) -> Self {
        let name = state::file_name_of(&self.directory.to_string_lossy());
        self.index = Some(directory.join(name));
        self
    }

    /// Notes with each reservation for which namespace it is, so that another call can tell whether that is gone.
    #[must_use]
    pub fn with_origin(mut self, origin: Option<Origin>) -> Self {
        self.origin = origin;
        self
    }

    /// Tells `observer` of each step, after it. For tests that stop a call dead in the middle.
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

    /// Makes the folder if it is missing and takes its lock, waiting at most `deadline`.
    ///
    /// # Errors
    /// [`StoreError::Lock`] names the holder; [`StoreError::File`] when the folder cannot be made.
    pub fn lock_or_create(&self, deadline: Duration) -> Result<Locked<'_>, StoreError> {
        if let Some(locked) = self.lock(deadline)? {
            return Ok(locked);
        }
        state::create_directory(&self.directory, DIRECTORY_MODE).map_err(StoreError::File)?;
        let lock = self.take_lock(deadline)?;
        Ok(Locked::new(self, Folder::open(&self.directory)?, lock))
    }

    /// Takes the folder's lock, waiting at most `deadline`; `None` when there is no folder, and so no
    /// reservation.
    ///
    /// # Errors
    /// [`StoreError::Lock`] names the holder.
    pub fn lock(&self, deadline: Duration) -> Result<Option<Locked<'_>>, StoreError> {
        let Some(folder) = Folder::open_if_there(&self.directory)? else { return Ok(None) };
        Ok(Some(Locked::new(self, folder, self.take_lock(deadline)?)))
    }

    fn take_lock(&self, deadline: Duration) -> Result<state::Lock, StoreError> {
        state::Lock::acquire(&self.directory.join(folder::LOCK), deadline).map_err(StoreError::Lock)
    }

    /// Reads every reservation, in no order, without the lock.
    ///
    /// # Errors
    /// [`StoreError::Folder`] when the folder is there but cannot be read.
    pub fn reservations(&self) -> Result<Vec<Reservation>, StoreError> {
        match Folder::open_if_there(&self.directory)? {
            Some(folder) => folder.reservations(),
            None => Ok(Vec::new()),
        }
    }

    /// Lists every reserved address, in no order, without the lock and without opening a file.
    ///
    /// # Errors
    /// [`StoreError::Folder`] when the folder is there but cannot be read.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, StoreError> {
        match Folder::open_if_there(&self.directory)? {
            Some(folder) => folder.addresses(),
            None => Ok(Vec::new()),
        }
    }

    /// Says who holds an address, without the lock; `None` when nobody does.
    ///
    /// # Errors
    /// [`StoreError::Folder`] when the folder is there but cannot be opened.
    pub fn holder_of(&self, address: IpAddr) -> Result<Option<Holder>, StoreError> {
        let folder = Folder::open_if_there(&self.directory)?;
        Ok(folder.and_then(|folder| folder.holder_of(address)))
    }

    /// Says whether an attachment holds an address, or its container in the old format, without the lock. Only when none
    /// of the `likely` ones is held, and none the index knows of, is the folder read.
    ///
    /// # Errors
    /// [`StoreError::Folder`] when the folder is there but cannot be read.
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
    ) -> std::io::Result<folder::Nameless> {
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
