//! An index of a folder, which spares reading it.
//!
//! Beside the folder, in a directory of ours that a reboot empties, is a [`Table`] of the folder's
//! content. The folder stays the truth; the table spares reading it, so a call costs the same
//! however many addresses are held.
//!
//! # When it is believed
//!
//! After each change, still under the folder's lock, the folder gets a modification time of our
//! choosing ([`Folder::seal`]), and the table records it with the folder's device and inode, its
//! change time, and the boot. Creating or removing a file breaks the seal, whether the reference, a
//! script or a killed process of ours does it; nothing is written to the table while the seal
//! holds. So there are three cases. If the seal holds, the table is exact. If the time differs, or
//! there is no table, the folder is read once and a new table is created.
//!
//! Overwriting a file in place does not break the seal. Only people do that. So before a call does
//! anything, it reads the file again that the table names for a holder. If the file differs, a new
//! table is created.
//!
//! The table does not cover sub-folders, or files whose name is not an address
//! ([`KnownTable::strays`]): while there are any, a release reads the folder.
//!
//! A failure to write the table is not an error: the next call reads the folder, as every call does
//! if there is no directory for tables.
//!
//! With 60,000 addresses held, an ADD makes 101 system calls, as with ten; the reference makes
//! 466,861.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::folder::{Folder, Scan};
use super::reservation::{Holder, Owner, Reservation};
use super::table::{Entry, Key, Table};
use crate::range::RangeSet;

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// A table and its path.
#[derive(Debug)]
pub(crate) struct KnownTable {
    table: Table,
    path: Option<PathBuf>,
    /// The boot ID, once it was read.
    boot: Option<String>,
    /// Whether the folder was changed, or is not sealed.
    is_open: bool,
    /// Whether the table differs from the folder.
    is_wrong: bool,
}

impl KnownTable {
    /// Opens the table if it matches the present state of the folder.
    pub(crate) fn load(folder: &Folder, path: Option<&Path>) -> Option<KnownTable> {
        let path = path?;
        let table = Table::open(open(path, OFlags::RDWR)?)?;
        let boot = boot()?;
        let head = table.head();
        let is_exact = folder.stamp().is_ok_and(|stamp| stamp == head.stamp) && boot == head.boot;
        is_exact.then(|| KnownTable {
            table,
            path: Some(path.to_owned()),
            boot: Some(boot),
            is_open: false,
            is_wrong: false,
        })
    }

    /// Creates a table from what was read in the folder, under its lock.
    ///
    /// Files without a holder are removed: no caller has got their address, and no process is
    /// writing them while we hold the lock.
    pub(crate) fn build(folder: &Folder, scan: Scan, path: Option<&Path>) -> KnownTable {
        let Scan { reservations, strays, is_whole, .. } = scan;
        let mut entries = Vec::with_capacity(reservations.len());
        for Reservation { file, address, holder } in reservations {
            let Some(address) = address else { continue };
            if holder == Holder::Unwritten && folder.remove(&file).is_ok() {
                continue;
            }
            entries.push(Entry { key: key_of(&holder, address), address });
        }
        KnownTable {
            table: Table::build(&entries, strays),
            path: path.map(Path::to_owned),
            boot: None,
            is_open: true,
            // The owner of a file that was not read is unknown.
            is_wrong: !is_whole,
        }
    }

    /// Returns whether the folder contains files that the table does not cover.
    pub(crate) fn strays(&self) -> bool {
        self.table.head().strays
    }

    /// Lists what an attachment holds, or its container in the old format; each file is read.
    ///
    /// # Errors
    /// [`Doubt`] when a file differs from the table.
    pub(crate) fn held(&self, folder: &Folder, keys: &[Key]) -> Result<Vec<Reservation>, Doubt> {
        let mut held = Vec::new();
        for key in keys {
            for address in self.table.find(*key)? {
                let Some(holder) = folder.holder_of(address) else { return Err(Doubt) };
                if key_of(&holder, address) != *key {
                    return Err(Doubt);
                }
                let file = address.to_string().into();
                held.push(Reservation { file, address: Some(address), holder });
            }
        }
        Ok(held)
    }

    /// Finds the next address of a set's ring that is neither taken nor withheld.
    pub(crate) fn first_free(
        &self,
        folder: &Folder,
        set: &RangeSet,
        last: Option<IpAddr>,
        is_withheld: &dyn Fn(IpAddr) -> bool,
    ) -> Result<Option<IpAddr>, Doubt> {
        for run in set.runs(last) {
            match self.table.first_free(&run, |address| !is_withheld(address)) {
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    let mut ring = set.ring(last).map(|(address, _)| address);
                    return Ok(ring.find(|one| !is_withheld(*one) && !folder.is_there(*one)));
                }
                found => return Ok(found?),
            }
        }
        Ok(None)
    }

    /// Counts the taken addresses of a set, all of whose addresses are taken.
    pub(crate) fn used(&self, folder: &Folder, set: &RangeSet) -> Result<u128, Doubt> {
        let mut used = 0;
        for run in set.runs(None) {
            match self.table.taken(&run) {
                Ok(taken) => used += taken,
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    let all = folder.addresses().map_err(|_| Doubt)?;
                    let count = all.iter().filter(|one| set.range_of(**one).is_some()).count();
                    return Ok(count.try_into().unwrap_or(u128::MAX));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(used)
    }

    /// Records that the folder is about to be changed.
    pub(crate) fn open_seal(&mut self) {
        self.is_open = true;
    }

    /// Records that the folder was changed without an update of the table.
    pub(crate) fn distrust(&mut self) {
        self.is_wrong = true;
    }

    /// Records what was reserved.
    pub(crate) fn insert(&mut self, owner: &Owner, address: IpAddr) {
        let entry = Entry { key: key_of_owner(owner), address };
        self.is_wrong |= self.table.insert(entry).is_err();
    }

    /// Records what was released. After a release that the table does not cover, it is unknown
    /// whether more is left.
    pub(crate) fn remove(&mut self, released: &Reservation) {
        match released.address {
            Some(address) => {
                let entry = Entry { key: key_of(&released.holder, address), address };
                self.is_wrong |= self.table.remove(entry).is_err();
            }
            None => self.is_wrong = true,
        }
    }

    /// Seals the folder and records the seal in the table, if the folder was changed. Without a
    /// path there is no table.
    pub(crate) fn seal(&mut self, folder: &Folder) {
        let Some(path) = self.path.clone().filter(|_| self.is_open) else { return };
        let sealed = !self.is_wrong && self.table.live() != 0 && {
            let before = self.table.head().stamp.to_numbers()[3];
            match (self.boot.take().or_else(boot), folder.seal(before)) {
                (Some(boot), Some(stamp)) => {
                    let is_written = self.table.is_written();
                    let sealed = self.table.seal(&boot, stamp);
                    sealed.is_ok_and(|bytes| is_written || write(&path, bytes).is_ok())
                }
                _ => false,
            }
        };
        self.is_open = false;
        if !sealed {
            let _ = state::remove_file(&path);
            if let Some(directory) = path.parent() {
                // This fails while there are tables of other networks.
                let _ = std::fs::remove_dir(directory);
            }
        }
    }
}

/// Lists where an attachment's addresses may be, or its container's: without the lock, so without a
/// guarantee.
pub(crate) fn likely(path: Option<&Path>, owner: &Owner) -> Vec<IpAddr> {
    let table = path.and_then(|path| open(path, OFlags::RDONLY)).and_then(Table::open);
    let Some(table) = table else { return Vec::new() };
    let keys = [key_of_owner(owner), key_of_container(&owner.container_id)];
    keys.into_iter().filter_map(|key| table.find(key).ok()).flatten().collect()
}

/// The table and the folder differ, or the table cannot be read.
#[derive(Debug)]
pub(crate) struct Doubt;

impl From<io::Error> for Doubt {
    fn from(_: io::Error) -> Self {
        Doubt
    }
}

/// The key of an attachment.
pub(crate) fn key_of_owner(owner: &Owner) -> Key {
    key(&owner.to_content())
}

/// The key of a container, which the old format names.
pub(crate) fn key_of_container(id: &str) -> Key {
    key(id)
}

fn key_of(holder: &Holder, address: IpAddr) -> Key {
    match holder {
        Holder::Attachment(owner) => key_of_owner(owner),
        Holder::Container(id) => key_of_container(id),
        // A text that no holder has.
        Holder::Unwritten | Holder::Unknown | Holder::Unread => key(&format!("\n{address}")),
    }
}

fn key(text: &str) -> Key {
    let digits = cni::owner::sha512_hex(text, 30);
    u128::from_str_radix(&digits, 16).expect("they are hexadecimal digits") << 8
}

fn boot() -> Option<String> {
    state::boot_id().ok().filter(|boot| !boot.is_empty())
}

fn open(path: &Path, access: OFlags) -> Option<File> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok().map(File::from)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), state::FileError> {
    // Replacing a file needs a temporary one with a name, which a killed process would leave
    // behind.
    let _ = state::remove_file(path);
    let write = || state::write_atomic(path, bytes, FILE_MODE, state::Durability::Volatile);
    match (write(), path.parent()) {
        (Err(error), Some(directory)) if error.is_not_found() => {
            state::create_directory(directory, DIRECTORY_MODE)?;
            write()
        }
        (done, _) => done,
    }
}
