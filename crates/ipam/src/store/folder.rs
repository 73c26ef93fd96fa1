//! The folder's files, one operation each. It makes no decisions.

use std::fs::{self, File, FileTimes};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::error::StoreError;
use super::mark::{Mark, Origin};
use super::reservation::{Holder, Reservation};

/// The lock file.
pub(crate) const LOCK: &str = "lock";
const LAST_RESERVED: &str = "last_reserved_ip.";

/// Container IDs and interface names never reach this size; a larger file is a foreign one, and we
/// write none.
const LARGEST_CONTENT: usize = 4096;

/// The reference walks sub-folders of any depth; no known program creates any.
const DEEPEST: usize = 4;

/// The mode of every file, the same as the reference's.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Identifies a folder and its state: any change of its names changes the times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    modified_s: i64,
    modified_ns: i64,
    changed_s: i64,
    changed_ns: i64,
}

impl Stamp {
    pub(crate) fn to_numbers(self) -> [u64; 6] {
        let times = [self.modified_s, self.modified_ns, self.changed_s, self.changed_ns];
        let [a, b, c, d] = times.map(i64::cast_unsigned);
        [self.device, self.inode, a, b, c, d]
    }

    pub(crate) fn from_numbers(numbers: [u64; 6]) -> Stamp {
        let [device, inode, times @ ..] = numbers;
        let [modified_s, modified_ns, changed_s, changed_ns] = times.map(u64::cast_signed);
        Stamp { device, inode, modified_s, modified_ns, changed_s, changed_ns }
    }
}

/// The modification time of a sealed folder is at least this far before its change time. No clock
/// that the kernel uses for timestamps is that coarse, so no other timestamp equals it.
const SEALED_BACK_S: i64 = 2;

/// What [`Folder::scan`] found besides reservations.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) reservations: Vec<Reservation>,
    /// Whether there are sub-folders or files whose name is not an address.
    pub(crate) strays: bool,
    /// Whether every file was read.
    pub(crate) is_whole: bool,
    /// The first file that the kernel refused to read.
    pub(crate) unread: Option<StoreError>,
}

/// An open network folder.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    handle: File,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Folder, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(handle) => Ok(Folder { path: path.to_owned(), handle: handle.into() }),
            Err(errno) => Err(folder_error("open folder", path, errno.into())),
        }
    }

    pub(crate) fn open_if_there(path: &Path) -> Result<Option<Folder>, StoreError> {
        match Folder::open(path) {
            Ok(folder) => Ok(Some(folder)),
            Err(StoreError::Folder { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Lists addresses by file names only.
    pub(crate) fn addresses(&self) -> Result<Vec<IpAddr>, StoreError> {
        let mut addresses = Vec::new();
        for entry in self.list(&self.path)? {
            let entry = entry.map_err(|error| folder_error("list folder", &self.path, error))?;
            addresses.extend(address_of(Path::new(&entry.file_name())));
        }
        Ok(addresses)
    }

    /// Reads every file except those of the folder itself, in sub-folders too.
    pub(crate) fn reservations(&self) -> Result<Vec<Reservation>, StoreError> {
        Ok(self.scan()?.reservations)
    }

    /// Reads every file, as [`Folder::reservations`], and reports whether there is more than those.
    pub(crate) fn scan(&self) -> Result<Scan, StoreError> {
        let mut scan =
            Scan { reservations: Vec::new(), strays: false, is_whole: true, unread: None };
        self.walk(Path::new(""), 0, &mut scan)?;
        Ok(scan)
    }

    fn walk(&self, below: &Path, depth: usize, scan: &mut Scan) -> Result<(), StoreError> {
        let path = self.path.join(below);
        for entry in self.list(&path)? {
            let entry = entry.map_err(|error| folder_error("list folder", &path, error))?;
            let file = below.join(entry.file_name());
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            // A file in a sub-folder reserves nothing: it does not prevent the creation of one at
            // the top.
            let address = if depth == 0 { address_of(&file) } else { None };
            scan.strays |= is_folder || address.is_none() && !is_own(&file);
            if is_folder && depth < DEEPEST {
                // An unreadable sub-folder does not prevent anything that we do.
                let _ = self.walk(&file, depth + 1, scan);
            }
            if is_folder && address.is_none() || is_own(&file) {
                continue;
            }
            let holder = match self.holder_in(&file) {
                _ if is_folder => Holder::Unknown,
                Ok(holder) => holder,
                Err(error) if is_no_file(&error) => Holder::Unknown,
                Err(error) => {
                    let path = self.path.join(&file);
                    scan.is_whole = false;
                    scan.unread.get_or_insert(folder_error("read", &path, error));
                    Holder::Unread
                }
            };
            scan.reservations.push(Reservation { file, address, holder });
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> Result<fs::ReadDir, StoreError> {
        fs::read_dir(path).map_err(|error| folder_error("list folder", path, error))
    }

    /// Returns the holder of an address; `None` if it is not held, which takes one system call.
    pub(crate) fn holder_of(&self, address: IpAddr) -> Option<Holder> {
        match self.holder_in(Path::new(&address.to_string())) {
            Ok(holder) => Some(holder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if is_no_file(&error) => Some(Holder::Unknown),
            Err(_) => Some(Holder::Unread),
        }
    }

    fn holder_in(&self, file: &Path) -> io::Result<Holder> {
        let (content, mark) = self.read_marked(file)?;
        Ok(match mark {
            Some(mark) if address_of(file) == Some(mark.address) => Holder::Attachment(mark.owner),
            // It was created for another address, which its owner has or had: this address is not
            // the owner's.
            Some(_) => Holder::Unknown,
            None => match Holder::parse(&content) {
                // What cannot be read from, such as a pipe, looks empty and is not ours.
                Holder::Unwritten if !self.is_regular(file) => Holder::Unknown,
                holder => holder,
            },
        })
    }

    /// Reports whether there is a file of that name, of any kind.
    pub(crate) fn is_there(&self, address: IpAddr) -> bool {
        let found =
            rustix::fs::statat(&self.handle, address.to_string(), AtFlags::SYMLINK_NOFOLLOW);
        !matches!(found, Err(Errno::NOENT))
    }

    /// Identifies the folder and its state.
    pub(crate) fn stamp(&self) -> io::Result<Stamp> {
        let metadata = self.handle.metadata()?;
        Ok(Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            changed_s: metadata.ctime(),
            changed_ns: metadata.ctime_nsec(),
        })
    }

    /// Sets a modification time on the folder that no change of a name in it produces: creating or
    /// removing a file breaks the seal, even within the same tick of the kernel's clock. `None` if
    /// that is not possible here.
    pub(crate) fn seal(&self, salt: u64) -> Option<Stamp> {
        let now = self.stamp().ok()?;
        let seconds = u64::try_from(now.changed_s.checked_sub(SEALED_BACK_S)?).ok()?;
        // Different for each seal, so that an index from another source, or an older one, is never
        // mistaken for ours.
        let mixed = (now.changed_ns.cast_unsigned() ^ salt ^ u64::from(std::process::id()) << 32)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let fraction = Duration::from_nanos((mixed >> 16) % 1_000_000_000);
        let modified = UNIX_EPOCH + Duration::from_secs(seconds) + fraction;
        self.handle.set_times(FileTimes::new().set_modified(modified)).ok()?;
        let sealed = self.stamp().ok()?;
        (sealed.modified_s < sealed.changed_s).then_some(sealed)
    }

    /// Reads the namespace that a file was reserved for; `None` if it was not recorded, or cannot
    /// be read.
    pub(crate) fn origin(&self, file: &Path) -> Option<Origin> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(&self.handle, file, flags, Mode::empty()).ok()?;
        let mark = Mark::read(&File::from(handle))?;
        mark.origin.filter(|_| address_of(file) == Some(mark.address))
    }

    fn is_regular(&self, file: &Path) -> bool {
        rustix::fs::statat(&self.handle, file, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file())
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        self.read_from(file).map(|(content, _)| content)
    }

    fn read_marked(&self, file: &Path) -> io::Result<(Vec<u8>, Option<Mark>)> {
        let (content, handle) = self.read_from(file)?;
        Ok((content, Mark::read(&handle)))
    }

    fn read_from(&self, file: &Path) -> io::Result<(Vec<u8>, File)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let handle = File::from(rustix::fs::openat(&self.handle, file, flags, Mode::empty())?);
        // One read is enough: these are regular files, and a search for an owner reads thousands of
        // them.
        let mut content = [0; LARGEST_CONTENT + 1];
        let length = rustix::io::read(&handle, &mut content)?;
        if length <= LARGEST_CONTENT {
            Ok((content[..length].to_vec(), handle))
        } else {
            Err(io::ErrorKind::FileTooLarge.into())
        }
    }

    /// Writes the content of a reservation to a file without a name. If the file system does not
    /// support that or the caller asks for it, the file is beside the folder.
    pub(crate) fn write_nameless(&self, content: &str, beside: bool) -> io::Result<NamelessFile> {
        if LARGEST_CONTENT < content.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let nameless = match self.create_nameless() {
            Ok(handle) if !beside => NamelessFile { handle: handle.into(), path: None },
            // The file system, or the kernel for it, does not support it (man 2 open, O_TMPFILE).
            Ok(_) | Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                self.create_beside()?
            }
            Err(errno) => return Err(errno.into()),
        };
        (&nameless.handle).write_all(content.as_bytes())?;
        Ok(nameless)
    }

    fn create_nameless(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        rustix::fs::openat(&self.handle, ".", flags, FILE_MODE)
    }

    fn create_beside(&self) -> io::Result<NamelessFile> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!(".netwright.{}.{count}.tmp", std::process::id());
        let path = self.path.parent().unwrap_or(Path::new(".")).join(name);
        // A file of this name can only be the leftover of a killed process with our ID.
        let _ = fs::remove_file(&path);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&path, flags, FILE_MODE)?;
        Ok(NamelessFile { handle: handle.into(), path: Some(path) })
    }

    /// Links a written file under an address; `false` if the address is taken.
    pub(crate) fn link(&self, nameless: &NamelessFile, address: IpAddr) -> io::Result<bool> {
        use std::os::fd::AsRawFd as _;
        let name = address.to_string();
        let linked = match &nameless.path {
            Some(path) => {
                rustix::fs::linkat(rustix::fs::CWD, path, &self.handle, name, AtFlags::empty())
            }
            None => {
                // The way shown in man 2 open; AT_EMPTY_PATH would need CAP_DAC_READ_SEARCH.
                let path = format!("/proc/self/fd/{}", nameless.handle.as_raw_fd());
                let follow = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(rustix::fs::CWD, path, &self.handle, name, follow)
            }
        };
        match linked {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes a file; `false` if it did not exist.
    pub(crate) fn remove(&self, file: &Path) -> Result<bool, StoreError> {
        match rustix::fs::unlinkat(&self.handle, file, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            // No program creates folders of such names; an empty one would block the address
            // forever.
            Err(Errno::ISDIR)
                if rustix::fs::unlinkat(&self.handle, file, AtFlags::REMOVEDIR).is_ok() =>
            {
                Ok(true)
            }
            Err(errno) => {
                Err(StoreError::Remove { path: self.path.join(file), source: errno.into() })
            }
        }
    }

    /// Reads the address that a set assigned last; `None` if it is missing, or not an address.
    pub(crate) fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let content = self.read(Path::new(&format!("{LAST_RESERVED}{set}"))).ok()?;
        let address: IpAddr = std::str::from_utf8(&content).ok()?.parse().ok()?;
        Some(address.to_canonical())
    }

    /// Writes the address that a set assigned last, in place.
    pub(crate) fn write_last_reserved(
        &self,
        set: usize,
        address: IpAddr,
    ) -> Result<(), StoreError> {
        let name = format!("{LAST_RESERVED}{set}");
        // Without blocking: opening a FIFO would wait for its reader, forever and with the lock
        // held.
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&self.handle, &name, flags, FILE_MODE);
        let text = address.to_string();
        let opened = match open() {
            // Something else is in its place, which is of no use.
            Err(Errno::NXIO | Errno::LOOP | Errno::ISDIR) => {
                let _ = rustix::fs::unlinkat(&self.handle, &name, AtFlags::empty())
                    .or_else(|_| rustix::fs::unlinkat(&self.handle, &name, AtFlags::REMOVEDIR));
                open()
            }
            opened => opened,
        };
        opened
            .map_err(io::Error::from)
            .and_then(|handle| {
                let mut file = File::from(handle);
                file.write_all(text.as_bytes())?;
                file.set_len(text.len().try_into().unwrap_or(u64::MAX))
            })
            .map_err(|source| StoreError::Note { path: self.path.join(name), source })
    }

    /// Flushes the folder's names to the disk.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        self.handle.sync_all().map_err(|error| folder_error("flush folder", &self.path, error))
    }
}

/// A written file that has no name in the folder yet.
#[derive(Debug)]
pub(crate) struct NamelessFile {
    handle: File,
    path: Option<PathBuf>,
}

impl NamelessFile {
    /// Records its owner beside the content.
    pub(crate) fn mark(&self, mark: &Mark) {
        mark.write(&self.handle);
    }
}

impl Drop for NamelessFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns whether a file is one of the folder's own, which reserve nothing.
fn is_own(file: &Path) -> bool {
    let name = file.as_os_str().as_encoded_bytes();
    name == LOCK.as_bytes() || name.starts_with(LAST_RESERVED.as_bytes())
}

/// Reads a file's name as an address. Only the spelling that we write counts, since a lookup would
/// not find another.
fn address_of(file: &Path) -> Option<IpAddr> {
    let name = file.to_str()?;
    let address: IpAddr = name.parse().ok()?;
    (address.to_string() == name).then_some(address)
}

/// Returns whether reading failed because of the object itself, and so will fail the next time: the
/// file is gone, a link, a socket, a folder, or larger than any of ours. Any other failure is a
/// problem of the machine.
fn is_no_file(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    error.kind() == io::ErrorKind::FileTooLarge
        || matches!(errno, Some(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR))
}

fn folder_error(operation: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Folder { operation, path: path.to_owned(), source }
}
