//! A file of the folder: an address and its holder.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// The reference writes `\r\n` between ID and interface name.
const LINE_BREAK: &str = "\r\n";

/// An attachment as the folder names it. The folder stands for the network.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The container's ID.
    pub container_id: String,
    /// The interface's name in the container.
    pub ifname: String,
}

impl Owner {
    /// Creates an owner from an ID and a name.
    pub fn new(container_id: impl Into<String>, ifname: impl Into<String>) -> Self {
        Owner { container_id: container_id.into(), ifname: ifname.into() }
    }

    /// Returns the content of this owner's files.
    #[must_use]
    pub fn to_content(&self) -> String {
        format!("{}{LINE_BREAK}{}", self.container_id, self.ifname)
    }
}

impl From<&cni::AttachmentKey> for Owner {
    fn from(key: &cni::AttachmentKey) -> Self {
        Owner::new(key.container_id.as_str(), key.ifname.as_str())
    }
}

/// The holder of an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Holder {
    /// An attachment.
    Attachment(Owner),
    /// A container: the format from before attachments had interface names.
    Container(String),
    /// None: the file is empty, or holds NUL bytes only. The machine, or the reference, died before
    /// it was written.
    Unwritten,
    /// Unknown: the file is damaged, or is not a file that can be read.
    Unknown,
    /// The kernel refused to read the file (`EIO`, `EMFILE`, …): it has a holder, which the next
    /// call may learn.
    Unread,
}

impl Holder {
    /// Reads the content of a file. White space around it is ignored, as in the reference.
    #[must_use]
    pub fn parse(content: &[u8]) -> Holder {
        if content.iter().all(|byte| *byte == 0) {
            return Holder::Unwritten;
        }
        let Ok(text) = std::str::from_utf8(content) else { return Holder::Unknown };
        let text = text.trim();
        let is_word = |word: &str| {
            !word.is_empty() && !word.chars().any(|c| c.is_whitespace() || c.is_control())
        };
        match text.split_once(LINE_BREAK) {
            Some((id, ifname)) if is_word(id) && is_word(ifname) => {
                Holder::Attachment(Owner::new(id, ifname))
            }
            None if is_word(text) => Holder::Container(text.to_owned()),
            _ => Holder::Unknown,
        }
    }

    /// Reports whether the file names this attachment with its interface.
    #[must_use]
    pub fn is(&self, owner: &Owner) -> bool {
        matches!(self, Holder::Attachment(holder) if holder == owner)
    }

    /// Reports whether the file names the attachment's container in the old format.
    #[must_use]
    pub fn is_container_of(&self, owner: &Owner) -> bool {
        matches!(self, Holder::Container(id) if *id == owner.container_id)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Attachment(owner) => {
                write!(f, "container {} interface {}", owner.container_id, owner.ifname)
            }
            Holder::Container(id) => write!(f, "container {id}"),
            Holder::Unwritten => f.write_str("no container: its file is empty"),
            Holder::Unknown => f.write_str("an unknown owner: its file is garbled"),
            Holder::Unread => f.write_str("an unknown owner: its file could not be read"),
        }
    }
}

/// A file of a network's folder that may reserve an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The file, relative to the folder.
    pub file: PathBuf,
    /// The address; `None` if the file's name is not an address. The reference's DEL removes such a
    /// file all the same.
    pub address: Option<IpAddr>,
    /// Its holder.
    pub holder: Holder,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_name_their_holder() {
        let attachment = Holder::Attachment(Owner::new("c1", "eth0"));
        assert_eq!(Holder::parse(b"c1\r\neth0"), attachment);
        assert_eq!(Holder::parse(b" c1\r\neth0\r\n\r\n"), attachment);
        assert_eq!(Holder::parse(b"c1"), Holder::Container("c1".into()));
        assert_eq!(Holder::parse(b"\tc1\n"), Holder::Container("c1".into()));
        for unwritten in [&b""[..], b"\0\0\0\0\0\0\0\0"] {
            assert_eq!(Holder::parse(unwritten), Holder::Unwritten, "{unwritten:?}");
        }
        for garbled in [
            &b" \r\n"[..],
            b"c1\0\0\0",
            b"c1\neth0",
            b"c1\r\neth0\r\nmore",
            b"\xff\xfe",
            b"a b",
            b"c1\r\n\0\0\0\0",
        ] {
            assert_eq!(Holder::parse(garbled), Holder::Unknown, "{garbled:?}");
        }
        assert_eq!(Owner::new("c1", "eth0").to_content().as_bytes(), b"c1\r\neth0");
    }
}
