//! Ownership: the attachment as the key of everything made for it.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha512};

use crate::name::{ContainerId, IfName, NetworkName};

/// An attachment of a container to a network: the owner of everything made for it.
///
/// The specification's attachment is (container ID, interface name); the network is part of the key
/// here because plugins keep their state by network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentKey {
    /// The network.
    pub network: NetworkName,
    /// The container.
    #[serde(rename = "containerID")]
    pub container_id: ContainerId,
    /// The interface's name in the container.
    pub ifname: IfName,
}

impl AttachmentKey {
    /// Returns 32 hexadecimal digits that stand for the key where space is short: in comments of
    /// the firewall and in file names. It separates the parts by a byte that no part can contain.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hasher = Sha512::new();
        for part in [self.network.as_str(), self.container_id.as_str(), self.ifname.as_str()] {
            hasher.update(part.as_bytes());
            hasher.update([0]);
        }
        hex(&hasher.finalize()[..16])
    }
}

impl fmt::Display for AttachmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container_id, self.ifname)
    }
}

/// An attachment as GC's `cni.dev/valid-attachments` names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GcAttachment {
    /// The container.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface's name in the container.
    pub ifname: String,
}

/// Returns the first `digits` hexadecimal digits of the SHA-512 of `text`, as the reference plugins
/// do to name their chains and devices.
#[must_use]
pub fn sha512_hex(text: impl AsRef<[u8]>, digits: usize) -> String {
    let mut whole = hex(&Sha512::digest(text.as_ref()));
    whole.truncate(digits);
    whole
}

fn hex(bytes: &[u8]) -> String {
    let digit = |four: u8| char::from(b"0123456789abcdef"[usize::from(four)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
