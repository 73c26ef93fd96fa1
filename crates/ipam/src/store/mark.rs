//! The extended attribute of a reservation's file.
//!
//! It says whose the reservation is, as the file's content does, and for which network namespace it
//! was made. So a file that was truncated or swapped keeps its owner, and the plugin can
//! distinguish a reservation that a power cut left behind from one of a living container. The mark
//! has the namespace's cookie besides its inode, because the kernel may give the inode number of a
//! namespace that ended without a DEL to another container's. The boot ID in it is only a hint. The
//! mark costs one system call for each address of an ADD and of a DEL.

use std::fs::File;
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use rustix::fs::XattrFlags;

use super::reservation::{Holder, Owner};

/// The extended attribute. If the file system has no user attributes (tmpfs before Linux 6.6), it
/// is root's own kind.
const NAMES: [&str; 2] = ["user.netwright.reserved", "trusted.netwright.reserved"];

/// The prefix of the attribute; another version has another prefix.
const FORMAT: &str = "1";

/// Longer than any of ours, and small enough for every file system's inode or block.
const LONGEST: usize = 1024;

/// The network namespace an address was reserved for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The path that the runtime gave.
    pub path: PathBuf,
    /// The device of the namespace's file.
    pub dev: u64,
    /// The inode of the namespace's file. Another namespace may get it once this one is gone.
    pub ino: u64,
    /// The namespace's cookie, which no other namespace of the same boot has, if the kernel reports
    /// it.
    pub cookie: Option<u64>,
    /// The PID namespace of the process that reserved it, unless that is the machine's own.
    pub pid_ns: Option<u64>,
    /// What every process in the namespace sees, if that is known.
    pub sight: Option<u64>,
    /// The boot in which it was reserved: only a hint, since nodes in containers have their host's
    /// boot ID, or an invented one.
    pub boot: String,
}

/// The owner of a reservation, in a place that truncating or overwriting the file does not affect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) address: IpAddr,
    pub(crate) owner: Owner,
    pub(crate) origin: Option<Origin>,
}

impl Mark {
    fn to_bytes(&self) -> Vec<u8> {
        let Owner { container_id, ifname } = &self.owner;
        let mut text =
            format!("{FORMAT}\n{}\n{container_id}\n{ifname}\n", self.address).into_bytes();
        match &self.origin {
            None => text.extend(b"-"),
            Some(Origin { path, dev, ino, cookie, pid_ns, sight, boot }) => {
                let boot = if boot.is_empty() { "-" } else { boot };
                // Those at the end that are not known are left out, the others are a dash.
                let mut words = format!("{dev} {ino} {boot}");
                let known = [cookie, pid_ns, sight];
                let count = known.iter().rposition(|word| word.is_some()).map_or(0, |at| at + 1);
                for word in &known[..count] {
                    words += &word.map_or_else(|| " -".to_owned(), |word| format!(" {word}"));
                }
                text.extend(format!("{words}\n").as_bytes());
                text.extend(path.as_os_str().as_bytes());
            }
        }
        text
    }

    /// Reads an attribute; `None` for anything else that another program has put there.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Mark> {
        let mut lines = bytes.splitn(6, |byte| *byte == b'\n');
        let mut line = || std::str::from_utf8(lines.next()?).ok();
        if line()? != FORMAT {
            return None;
        }
        let address = line()?.parse().ok()?;
        let owner = Owner::new(line()?, line()?);
        // An owner that no content could name is invalid.
        if !matches!(Holder::parse(owner.to_content().as_bytes()), Holder::Attachment(_)) {
            return None;
        }
        let namespace = line()?;
        if namespace == "-" {
            return Some(Mark { address, owner, origin: None });
        }
        let mut words = namespace.split(' ');
        let mut word = || words.next();
        let (dev, ino) = (word()?.parse().ok()?, word()?.parse().ok()?);
        let boot = word()?.to_owned();
        let cookie = word().and_then(|cookie| cookie.parse().ok());
        let pid_ns = word().and_then(|pid_ns| pid_ns.parse().ok());
        let sight = word().and_then(|sight| sight.parse().ok());
        let path = PathBuf::from(std::ffi::OsString::from_vec(lines.next()?.to_vec()));
        let origin =
            path.is_absolute().then_some(Origin { path, dev, ino, cookie, pid_ns, sight, boot })?;
        Some(Mark { address, owner, origin: Some(origin) })
    }

    /// Writes it to a file. If the file system has no such attributes, only the content is known
    /// later.
    pub(crate) fn write(&self, file: &File) {
        let bytes = self.to_bytes();
        if bytes.len() <= LONGEST {
            let written =
                |name: &str| rustix::fs::fsetxattr(file, name, &bytes, XattrFlags::empty()).is_ok();
            let _ = NAMES.into_iter().any(written);
        }
    }

    /// Reads it from a file.
    pub(crate) fn read(file: &File) -> Option<Mark> {
        let mut bytes = [0; LONGEST];
        for name in NAMES {
            match rustix::fs::fgetxattr(file, name, &mut bytes[..]) {
                Ok(length) => return Mark::parse(&bytes[..length]),
                // The file system may have the other kind.
                Err(rustix::io::Errno::OPNOTSUPP) => {}
                Err(_) => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_read_back_and_garbage_is_none() {
        let origin = Origin {
            path: "/run/netns/with a space\nand more".into(),
            dev: 4,
            ino: 4_026_532_001,
            cookie: Some(77),
            pid_ns: Some(5),
            sight: Some(6),
            boot: "b".to_owned(),
        };
        let owner = Owner::new("c1", "eth0");
        let address = "2001:db8::5".parse().unwrap();
        let mark = Mark { address, owner, origin: Some(origin) };
        let bytes = mark.to_bytes();
        for length in 0..bytes.len() - 40 {
            assert_eq!(Mark::parse(&bytes[..length]), None, "{length}");
        }
        assert_eq!(Mark::parse(&bytes), Some(mark.clone()));
        let origin =
            mark.origin.clone().map(|origin| Origin { cookie: None, sight: None, ..origin });
        let earlier = Mark { origin, ..mark.clone() };
        assert_eq!(Mark::parse(&earlier.to_bytes()), Some(earlier));
        let without = Mark { origin: None, ..mark };
        assert_eq!(Mark::parse(&without.to_bytes()), Some(without));
        for garbage in [
            &b"2\n10.0.0.1\nc1\neth0\n-"[..],
            b"1\n10.0.0\nc1\neth0\n-",
            b"1\n10.0.0.1\nc 1\neth0\n-",
            b"1\n10.0.0.1\nc1\neth0\n4 x b\n/x",
            b"1\n10.0.0.1\nc1\neth0\n4 5 b\nrelative",
            b"\xff\xff",
        ] {
            assert_eq!(Mark::parse(garbage), None);
        }
    }
}
