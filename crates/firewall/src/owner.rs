//! Names an element's owner in the little space that a comment has.

use std::fmt;

use cni::AttachmentKey;

/// The maximum length of a comment: nft shows at most this much (libnftables
/// `NFTNL_UDATA_COMMENT_MAXLEN`, 128 with the closing NUL).
const COMMENT_MAX: usize = 127;
/// The length of an attachment's hash.
const HASH: usize = 32;

/// The owner of an element: an attachment, or the shared object it belongs to.
///
/// Written into comments as the attachment's hash and its network's name, cut to fit. The hash
/// decides. The name is for people who read the tables, and for GC, which learns from it the
/// network that the element belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// An attachment.
    Attachment {
        /// [`AttachmentKey::hash`].
        hash: String,
        /// The network's name, perhaps cut.
        network: String,
    },
    /// A shared object.
    Shared(String),
    /// Not one of ours.
    Foreign,
}

impl Owner {
    /// Returns the owner that stands for an attachment.
    #[must_use]
    pub fn of(key: &AttachmentKey) -> Owner {
        Owner::Attachment { hash: key.hash(), network: cut(key.network.as_str()) }
    }

    /// Reads a comment.
    #[must_use]
    pub fn parse(comment: &str) -> Owner {
        if let Some(object) = comment.strip_prefix("shared ") {
            return Owner::Shared(object.to_owned());
        }
        let (hash, network) = comment.split_once(' ').unwrap_or((comment, ""));
        let is_hash = hash.len() == HASH && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hash {
            Owner::Attachment { hash: hash.to_owned(), network: network.to_owned() }
        } else {
            Owner::Foreign
        }
    }

    /// Says whether this is the attachment with that hash.
    #[must_use]
    pub fn is(&self, hash: &str) -> bool {
        matches!(self, Owner::Attachment { hash: own, .. } if own == hash)
    }

    /// Says whether this is certainly an attachment of that network: the name was not cut.
    #[must_use]
    pub fn is_of_network(&self, name: &str) -> bool {
        matches!(self, Owner::Attachment { network, .. } if network == name && name.len() < name_max())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Attachment { hash, network } => write!(f, "{hash} {network}"),
            Owner::Shared(object) => write!(f, "shared {object}"),
            Owner::Foreign => f.write_str("foreign"),
        }
    }
}

const fn name_max() -> usize {
    COMMENT_MAX - HASH - 1
}

/// Network names are ASCII, so any length is a character boundary.
fn cut(name: &str) -> String {
    name.get(..name_max()).unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(network: &str) -> AttachmentKey {
        AttachmentKey {
            network: network.parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        }
    }

    #[test]
    fn comments_name_their_owner() {
        let key = key("blue");
        let owner = Owner::of(&key);
        assert_eq!(owner.to_string(), format!("{} blue", key.hash()));
        assert_eq!(Owner::parse(&owner.to_string()), owner);
        assert!(
            owner.is(&key.hash()) && owner.is_of_network("blue") && !owner.is_of_network("blu")
        );
    }

    #[test]
    fn long_names_fit_and_are_not_trusted() {
        let name = "n".repeat(300);
        let owner = Owner::of(&key(&name));
        assert_eq!(owner.to_string().len(), COMMENT_MAX);
        assert_eq!(Owner::parse(&owner.to_string()), owner);
        assert!(!owner.is_of_network(&name) && !owner.is_of_network(&name[..94]));
    }

    #[test]
    fn foreign_comments_are_nobodys() {
        for text in ["", "web server", "0123", &"g".repeat(32)] {
            assert_eq!(Owner::parse(text), Owner::Foreign, "{text}");
        }
        assert_eq!(Owner::parse("shared localnet cni0"), Owner::Shared("localnet cni0".into()));
    }
}
