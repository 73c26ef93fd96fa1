//! Kernel parameters of a network namespace (`/proc/sys`).
//!
//! A [`Sysctl`] is a checked path: no annotation or configuration can make it leave `/proc/sys`.
//! Values are read and written in the calling thread's namespace; use
//! [`within`](crate::netns::within) for another.
//!
//! ```no_run
//! use kernel::sysctl::Sysctl;
//!
//! // The dot in a VLAN link's name is part of the name.
//! let accept_ra = Sysctl::of_link("net/ipv6/conf", "eth0.10", "accept_ra")?;
//! accept_ra.write_if_different("0")?;
//! # Ok::<(), kernel::sysctl::SysctlError>(())
//! ```

use std::error::Error as _;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::buffer::spare_capacity;
use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;
use thiserror::Error;

use crate::remedy;

/// The folder in which parameters are files, unless [`use_folder`] says otherwise.
const ROOT: &str = "/proc/sys";
static OTHER_ROOT: OnceLock<PathBuf> = OnceLock::new();
/// More than nearly every value takes, in bytes.
const ROOM: usize = 512;
/// Why an IPv6 parameter may be missing (linux net/ipv6/addrconf.c, `addrconf_notify`).
const NO_V6: &str = "there is no IPv6 here: it is switched off on this kernel (ipv6.disable=1), or the interface is gone or its \
                     MTU is below 1280";

/// Makes this process use another folder than `/proc/sys` for parameters from now on: in a
/// container `/proc/sys` is read-only, and the host's may be mounted elsewhere. Only the first call
/// counts.
pub fn use_folder(path: PathBuf) {
    let _ = OTHER_ROOT.set(path);
}

fn root() -> &'static Path {
    OTHER_ROOT.get().map_or(Path::new(ROOT), PathBuf::as_path)
}

/// A kernel parameter, by its path below `/proc/sys`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sysctl {
    path: String,
}

/// An open folder of kernel parameters of one namespace. Its parameters are opened without looking
/// the folder up again. That lookup costs more the more namespaces there are, since the kernel
/// compares the names of all of them.
///
/// ```no_run
/// use kernel::sysctl::{Folder, Sysctl};
///
/// let of_links = Folder::open("net/ipv6/conf")?;
/// for ifname in ["lo", "eth0"] {
///     let disable = Sysctl::of_link("net/ipv6/conf", ifname, "disable_ipv6")?;
///     of_links.write_if_different(&disable, "0")?;
/// }
/// # Ok::<(), kernel::sysctl::SysctlError>(())
/// ```
#[derive(Debug)]
pub struct Folder {
    path: String,
    fd: OwnedFd,
}

/// A kernel parameter could not be named, read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SysctlError {
    /// The name has an empty part, or a part that leads elsewhere.
    #[error("sysctl name {name:?} is not the name of a kernel parameter")]
    Name {
        /// The name.
        name: String,
    },
    /// The parameter could not be read.
    #[error("read sysctl {name}")]
    Read {
        /// Its path below `/proc/sys`.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The parameter could not be written.
    #[error("write {value:?} to sysctl {name}")]
    Write {
        /// Its path below `/proc/sys`.
        name: String,
        /// The value to write.
        value: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl SysctlError {
    /// Whether the parameter does not exist: the link does not exist, IPv6 is turned off, a module
    /// is not loaded.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => {
                source.kind() == io::ErrorKind::NotFound
            }
            Self::Name { .. } => false,
        }
    }

    /// Whether the parameter's file system is mounted read-only, as in a container without privileges:
    /// nobody there writes it, and no later call does. A missing privilege may be this call's alone.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Write { source, .. } => source.kind() == io::ErrorKind::ReadOnlyFilesystem,
            Self::Read { .. } | Self::Name { .. } => false,
        }
    }

    /// Whether the machine forbids the write whatever the value is, and will the next time:
    /// `/proc/sys` is read-only, or the caller lacks a privilege.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(self, Self::Write { source, .. }
            if matches!(source.kind(), ReadOnlyFilesystem | PermissionDenied))
    }

    /// Returns what to do about it, if the system's message alone does not say it.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Read { name, .. } | Self::Write { name, .. }
                if self.is_missing() && name.starts_with("net/ipv6") =>
            {
                Some(NO_V6)
            }
            error => remedy::of(&error.source()?.to_string()),
        }
    }
}

impl Sysctl {
    /// Takes a parameter's name as `sysctl` does: with dots or slashes. The first separator
    /// decides; if it is a dot, a slash stands for a dot inside a part
    /// (`net.ipv4.conf.eth0/10.forwarding`).
    ///
    /// # Errors
    /// [`SysctlError::Name`].
    pub fn parse(name: &str) -> Result<Self, SysctlError> {
        let dots = name.find(['.', '/']).is_some_and(|at| name[at..].starts_with('.'));
        let path = if dots { swapped(name) } else { name.to_owned() };
        Self::checked(path, name)
    }

    /// Builds the name of a link's parameter: `folder` is, for example, `net/ipv4/conf`, with
    /// slashes; dots in the link's name are kept.
    ///
    /// # Errors
    /// [`SysctlError::Name`].
    pub fn of_link(folder: &str, ifname: &str, parameter: &str) -> Result<Self, SysctlError> {
        let path = format!("{folder}/{ifname}/{parameter}");
        if ifname.contains('/') || parameter.contains('/') {
            return Err(SysctlError::Name { name: path });
        }
        Self::checked(path.clone(), &path)
    }

    /// Lists the links that have values of their own in a folder below `/proc/sys`
    /// (`net/ipv4/conf`), and with them `all` and `default`. A dump of the links is interrupted
    /// when another process creates a link meanwhile; this is not.
    ///
    /// # Errors
    /// [`SysctlError::Read`].
    ///
    /// # Namespace
    /// That of the calling thread.
    pub fn links_in(folder: &str) -> Result<Vec<String>, SysctlError> {
        let failed = |source| SysctlError::Read { name: folder.to_owned(), source };
        let entries = std::fs::read_dir(root().join(folder)).map_err(failed)?;
        let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
        let names: io::Result<Vec<Option<String>>> = names.collect();
        Ok(names.map_err(failed)?.into_iter().flatten().collect())
    }

    /// The path below `/proc/sys`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.path
    }

    /// The name as `sysctl` spells it: with dots between its parts, and with a slash for a dot inside
    /// a part.
    #[must_use]
    pub fn spelled(&self) -> String {
        swapped(&self.path)
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        root().join(&self.path)
    }

    /// Whether it cannot be written because its file system is mounted read-only. A caller who may
    /// not write it in any case is not told.
    ///
    /// # Namespace
    /// That of the calling thread.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        rustix::fs::access(self.file(), Access::WRITE_OK) == Err(Errno::ROFS)
    }

    /// Reads the value, without the closing newline.
    ///
    /// # Errors
    /// [`SysctlError::Read`].
    ///
    /// # Namespace
    /// That of the calling thread.
    pub fn read(&self) -> Result<String, SysctlError> {
        self.read_in(None)
    }

    /// Writes the value.
    ///
    /// # Errors
    /// [`SysctlError::Write`].
    ///
    /// # Namespace
    /// That of the calling thread.
    pub fn write(&self, value: &str) -> Result<(), SysctlError> {
        self.write_in(None, value)
    }

    /// Writes the value unless it is already set; returns the old value if that was different.
    ///
    /// Works where `/proc/sys` is read-only and the value is already right.
    ///
    /// # Errors
    /// [`SysctlError::Read`] and [`SysctlError::Write`].
    ///
    /// # Namespace
    /// That of the calling thread.
    pub fn write_if_different(&self, value: &str) -> Result<Option<String>, SysctlError> {
        self.write_if_different_in(None, value)
    }

    fn read_in(&self, folder: Option<&Folder>) -> Result<String, SysctlError> {
        let failed =
            |errno: Errno| SysctlError::Read { name: self.path.clone(), source: errno.into() };
        let file = self.open(folder, OFlags::RDONLY).map_err(failed)?;
        // The first read returns the whole value, if there is room for it.
        let mut value = Vec::with_capacity(ROOM);
        while {
            let free = value.capacity() - value.len();
            let length =
                rustix::io::retry_on_intr(|| rustix::io::read(&file, spare_capacity(&mut value)));
            length.map_err(failed)? == free
        } {
            value.reserve(ROOM);
        }
        Ok(String::from_utf8_lossy(&value).trim_end().to_owned())
    }

    fn write_in(&self, folder: Option<&Folder>, value: &str) -> Result<(), SysctlError> {
        tracing::debug!(key = self.path, value, "sysctl");
        // One write: the kernel takes each for a whole value. Not created: procfs would refuse with
        // another error.
        self.open(folder, OFlags::WRONLY)
            .and_then(|file| {
                rustix::io::retry_on_intr(|| rustix::io::write(&file, value.as_bytes()))
            })
            .map(drop)
            .map_err(|errno| SysctlError::Write {
                name: self.path.clone(),
                value: value.to_owned(),
                source: errno.into(),
            })
    }

    fn write_if_different_in(
        &self,
        folder: Option<&Folder>,
        value: &str,
    ) -> Result<Option<String>, SysctlError> {
        let before = self.read_in(folder)?;
        // The kernel separates numbers with tabs, people with spaces.
        if before.split_whitespace().eq(value.split_whitespace()) {
            return Ok(None);
        }
        self.write_in(folder, value)?;
        Ok(Some(before))
    }

    fn open(&self, folder: Option<&Folder>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let inside = folder.and_then(|folder| Some((folder, folder.rest(self)?)));
        match inside {
            Some((folder, rest)) => rustix::fs::openat(&folder.fd, rest, flags, Mode::empty()),
            None => rustix::fs::open(self.file(), flags, Mode::empty()),
        }
    }

    fn checked(path: String, name: &str) -> Result<Self, SysctlError> {
        let bad =
            |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
        if path.split('/').any(bad) {
            return Err(SysctlError::Name { name: name.to_owned() });
        }
        Ok(Self { path })
    }
}

/// Turns dots into slashes, and slashes into dots.
fn swapped(name: &str) -> String {
    let swap = |letter| match letter {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    name.chars().map(swap).collect()
}

impl Folder {
    /// Opens a folder below `/proc/sys`, such as `net/ipv6/conf`.
    ///
    /// # Errors
    /// [`SysctlError::Name`]; [`SysctlError::Read`] if the folder does not exist, for instance
    /// without IPv6.
    ///
    /// # Namespace
    /// The calling thread's, and from then on the folder's own.
    pub fn open(path: &str) -> Result<Self, SysctlError> {
        let folder = Sysctl::checked(path.to_owned(), path)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(folder.file(), flags, Mode::empty())
            .map_err(|errno| SysctlError::Read { name: path.to_owned(), source: errno.into() })?;
        Ok(Self { path: path.to_owned(), fd })
    }

    /// [`Sysctl::write`]; a parameter outside the folder is written by its full path.
    ///
    /// # Errors
    /// Those of [`Sysctl::write`].
    pub fn write(&self, sysctl: &Sysctl, value: &str) -> Result<(), SysctlError> {
        sysctl.write_in(Some(self), value)
    }

    /// [`Sysctl::write_if_different`]; a parameter outside the folder is written by its full path.
    ///
    /// # Errors
    /// Those of [`Sysctl::write_if_different`].
    pub fn write_if_different(
        &self,
        sysctl: &Sysctl,
        value: &str,
    ) -> Result<Option<String>, SysctlError> {
        sysctl.write_if_different_in(Some(self), value)
    }

    /// Returns the part of a parameter's path after the folder's.
    fn rest<'s>(&self, sysctl: &'s Sysctl) -> Option<&'s str> {
        sysctl.path.strip_prefix(&self.path)?.strip_prefix('/')
    }
}

impl fmt::Display for Sysctl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, path) in [
            ("net.ipv4.ip_forward", "net/ipv4/ip_forward"),
            ("net/ipv4/ip_forward", "net/ipv4/ip_forward"),
            ("net.ipv4.conf.eth0/10.forwarding", "net/ipv4/conf/eth0.10/forwarding"),
            ("net/ipv4/conf/eth0.10/forwarding", "net/ipv4/conf/eth0.10/forwarding"),
        ] {
            assert_eq!(Sysctl::parse(name).unwrap().name(), path);
        }
        let of_link = Sysctl::of_link("net/ipv6/conf", "eth0.10", "accept_ra").unwrap();
        assert_eq!(of_link.file(), Path::new("/proc/sys/net/ipv6/conf/eth0.10/accept_ra"));
        assert_eq!(of_link.spelled(), "net.ipv6.conf.eth0/10.accept_ra");
    }

    #[test]
    fn names_that_lead_elsewhere() {
        for name in
            ["", "/etc/passwd", "net/../../etc/passwd", "net//x", "net/.", "net.ipv4/..", "a/"]
        {
            let error = Sysctl::parse(name).unwrap_err();
            assert!(matches!(error, SysctlError::Name { .. }), "{name}");
        }
        assert!(Sysctl::of_link("net/ipv4/conf", "..", "x").is_err());
        assert!(Sysctl::of_link("net/ipv4/conf", "a/b", "x").is_err());
    }
}
