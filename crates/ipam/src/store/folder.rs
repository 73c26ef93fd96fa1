//! The folder's files, one operation each. Nothing here decides.

use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::error::StoreError;
use super::reservation::{Holder, Reservation};

/// The lock's file.
pub(crate) const LOCK: &str = "lock";
const LAST_RESERVED: &str = "last_reserved_ip.";

/// No container ID and interface name come near this size; a larger file is somebody else's, and we write none.
const LARGEST_CONTENT: usize = 4096;

/// The reference walks sub-folders of any depth; nobody is known to make any.
const DEEPEST: usize = 4;

/// The mode of every file, as the reference makes them.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

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

    /// Lists addresses by the names of files alone.
    pub(crate) fn addresses(&self) -> Result<Vec<IpAddr>, StoreError> {
        let mut addresses = Vec::new();
        for entry in self.list(&self.path)? {
            let entry = entry.map_err(|error| folder_error("list folder", &self.path, error))?;
            addresses.extend(address_of(Path::new(&entry.file_name())));
        }
        Ok(addresses)
    }

    /// Reads every file but those of the folder itself, in sub-folders too.
    pub(crate) fn reservations(&self) -> Result<Vec<Reservation>, StoreError> {
        let mut found = Vec::new();
        self.walk(Path::new(""), 0, &mut found)?;
        Ok(found)
    }

    fn walk(
        &self,
        below: &Path,
        depth: usize,
        found: &mut Vec<Reservation>,
    ) -> Result<(), StoreError> {
        let path = self.path.join(below);
        for entry in self.list(&path)? {
            let entry = entry.map_err(|error| folder_error("list folder", &path, error))?;
            let file = below.join(entry.file_name());
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            // In a sub-folder a file reserves nothing: making one at the top would not fail over it.
            let address = if depth == 0 { address_of(&file) } else { None };
            if is_folder && depth < DEEPEST {
                // A sub-folder that cannot be read holds up nothing that concerns us.
                let _ = self.walk(&file, depth + 1, found);
            }
            if is_folder && address.is_none() || is_own(&file) {
                continue;
            }
            let holder = if is_folder { Holder::Unknown } else { self.holder(&file) };
            found.push(Reservation { file, address, holder });
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> Result<fs::ReadDir, StoreError> {
        fs::read_dir(path).map_err(|error| folder_error("list folder", path, error))
    }

    fn holder(&self, file: &Path) -> Holder {
        match self.read(file).map(|content| Holder::parse(&content)) {
            // What cannot be read from, such as a pipe, looks empty and is none of ours.
            Ok(Holder::Nobody) if !self.is_regular(file) => Holder::Unknown,
            Ok(holder) => holder,
            Err(_) => Holder::Unknown,
        }
    }

    fn is_regular(&self, file: &Path) -> bool {
        rustix::fs::statat(&self.handle, file, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file())
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(&self.handle, file, flags, Mode::empty())?;
        // One read: these are regular files, and a search for an owner reads thousands of them.
        let mut content = [0; LARGEST_CONTENT + 1];
        let length = rustix::io::read(&handle, &mut content)?;
        if length <= LARGEST_CONTENT {
            Ok(content[..length].to_vec())
        } else {
            Err(io::ErrorKind::FileTooLarge.into())
        }
    }

    /// Writes the content of a reservation to a file without a name, or beside the folder when
    /// the file system has no such thing or the caller says so.
    pub(crate) fn write_nameless(&self, content: &str, beside: bool) -> io::Result<Nameless> {
        if LARGEST_CONTENT < content.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let nameless = match self.create_nameless() {
            Ok(handle) if !beside => Nameless { handle: handle.into(), path: None },
            // The file system, or the kernel for it, has no such thing (man 2 open, O_TMPFILE).
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

    fn create_beside(&self) -> io::Result<Nameless> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!(".netwright.{}.{count}.tmp", std::process::id());
        let path = self.path.parent().unwrap_or(Path::new(".")).join(name);
        // Under the same name can only lie what a killed process with our ID left.
        let _ = fs::remove_file(&path);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&path, flags, FILE_MODE)?;
        Ok(Nameless { handle: handle.into(), path: Some(path) })
    }

    /// Names a written file by an address; `false` when the address is taken.
    pub(crate) fn link(&self, nameless: &Nameless, address: IpAddr) -> io::Result<bool> {
        use std::os::fd::AsRawFd as _;
        let name = address.to_string();
        let linked = match &nameless.path {
            Some(path) => {
                rustix::fs::linkat(rustix::fs::CWD, path, &self.handle, name, AtFlags::empty())
            }
            None => {
                // As man 2 open shows it; AT_EMPTY_PATH would need CAP_DAC_READ_SEARCH.
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

    /// Removes a file; `false` when it was not there.
    pub(crate) fn remove(&self, file: &Path) -> Result<bool, StoreError> {
        match rustix::fs::unlinkat(&self.handle, file, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => {
                Err(StoreError::Remove { path: self.path.join(file), source: errno.into() })
            }
        }
    }

    /// Reads the address that a set handed out last; `None` when it is not told, or not an address.
    pub(crate) fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let content = self.read(Path::new(&format!("{LAST_RESERVED}{set}"))).ok()?;
        let address: IpAddr = std::str::from_utf8(&content).ok()?.parse().ok()?;
        Some(address.to_canonical())
    }

    /// Writes the address that a set handed out last, in place.
    pub(crate) fn write_last_reserved(
        &self,
        set: usize,
        address: IpAddr,
    ) -> Result<(), StoreError> {
        let name = format!("{LAST_RESERVED}{set}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let text = address.to_string();
        rustix::fs::openat(&self.handle, &name, flags, FILE_MODE)
            .map_err(io::Error::from)
            .and_then(|handle| {
                let mut file = File::from(handle);
                file.write_all(text.as_bytes())?;
                let length = file.stream_position()?;
                file.set_len(length)
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
pub(crate) struct Nameless {
    handle: File,
    path: Option<PathBuf>,
}

impl Drop for Nameless {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Says whether a file is one of the folder's own, which reserve nothing.
fn is_own(file: &Path) -> bool {
    let name = file.as_os_str().as_encoded_bytes();
    name == LOCK.as_bytes() || name.starts_with(LAST_RESERVED.as_bytes())
}

/// Reads a file's name as an address in the one spelling that is written, else it would not be found by it.
fn address_of(file: &Path) -> Option<IpAddr> {
    let name = file.to_str()?;
    let address: IpAddr = name.parse().ok()?;
    (address.to_string() == name).then_some(address)
}

fn folder_error(operation: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Folder { operation, path: path.to_owned(), source }
}
