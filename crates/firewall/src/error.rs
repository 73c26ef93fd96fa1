//! What can go wrong with the firewall.

use std::net::IpAddr;

use cni::AttachmentKey;
use kernel::netlink::NetlinkError;
use state::{FileError, LockError};

use crate::element::Protocol;
use crate::tables::TablesError;

/// Why a firewall operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FirewallError {
    /// Other processes kept the firewall's lock for too long.
    #[error("lock the firewall")]
    Lock(#[source] LockError),
    /// nf_tables is missing, or we may not use it.
    #[error("open nftables")]
    Open(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// nftables refused.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// A file of ours failed.
    #[error("record the users of {object:?}")]
    State {
        /// The shared object.
        object: String,
        /// The failure.
        source: FileError,
    },
    /// A setting of the host could not be changed.
    #[error("set {what}")]
    Switch {
        /// The setting.
        what: String,
        /// The failure.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A setting of the host could not be read.
    #[error("read {what}")]
    Read {
        /// The setting.
        what: String,
        /// The failure.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The host port belongs to another attachment that is alive.
    #[error(
        "host port {}{port}/{protocol} is held by {}",
        address.map(|address| format!("{address} ")).unwrap_or_default(),
        holder_text(holder.as_deref(), hash)
    )]
    Held {
        /// The protocol.
        protocol: Protocol,
        /// The port.
        port: u16,
        /// The address at which the holder has it; `None`: all addresses.
        address: Option<IpAddr>,
        /// The holder, if there is a record of it.
        holder: Option<Box<AttachmentKey>>,
        /// The hash of the holder.
        hash: String,
    },
}

fn holder_text(holder: Option<&AttachmentKey>, hash: &str) -> String {
    match holder {
        Some(key) => format!(
            "container {:?}, interface {:?} of network {:?}",
            key.container_id.as_str(),
            key.ifname.as_str(),
            key.network.as_str()
        ),
        None => format!("an attachment of which only its hash {hash} is known"),
    }
}

impl FirewallError {
    /// The kernel gave no socket.
    pub(crate) fn unopened(error: NetlinkError) -> Self {
        FirewallError::Open(Box::new(error))
    }

    /// Returns what the operator can do, if the message alone does not say it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            FirewallError::Lock(error) if error.is_busy() => {
                Some("the process that holds the lock does not release it: see what it waits for")
            }
            FirewallError::Lock(LockError::Open { source, .. })
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Some("the caller needs the right to write to the lock's folder, as root has it")
            }
            FirewallError::Open(_) => {
                Some("the kernel needs nf_tables and the caller CAP_NET_ADMIN in this namespace")
            }
            FirewallError::Held { .. } => Some(
                "choose another host port, or remove the holder; `netwright gc` removes holders that are gone",
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use state::LockError;

    use super::FirewallError;

    /// A lock that a caller may not even open is held by nobody.
    #[test]
    fn the_hint_names_a_holder_only_if_there_is_one() {
        let path = "/run/netwright/lock".into();
        let source = io::ErrorKind::PermissionDenied.into();
        let forbidden = FirewallError::Lock(LockError::Open { path, source });
        assert!(!forbidden.hint().unwrap().contains("holds the lock"));
        let path = "/run/netwright/lock".into();
        let busy = LockError::Busy { path, holder: None, waited: Duration::from_secs(1) };
        assert!(FirewallError::Lock(busy).hint().unwrap().contains("holds the lock"));
    }
}
