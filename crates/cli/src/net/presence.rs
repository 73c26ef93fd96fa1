//! Whether a container is still there.

use std::path::Path;

use kernel::netns::{Netns, NetnsId};
use serde::Serialize;
use state::NetnsIdentity;

/// What is known of a container's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Presence {
    /// It is there.
    Alive,
    /// Its path leads nowhere, to something else, or to another namespace than the one attached.
    Gone,
    /// Nobody wrote down where it was, or it cannot be examined.
    Unknown,
}

impl Presence {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Presence::Alive => "alive",
            Presence::Gone => "gone",
            Presence::Unknown => "unknown",
        }
    }
}

/// Looks for the namespace of an attachment.
///
/// `attached` is the identity it had, when that was recorded in this boot: process IDs come back, and then
/// `/proc/PID/ns/net` is somebody else's.
pub(crate) fn look(netns: &str, attached: Option<NetnsIdentity>) -> Presence {
    if netns.is_empty() {
        return Presence::Unknown;
    }
    match Netns::open(Path::new(netns)) {
        Ok(found) if attached.is_some_and(|attached| !same(attached, found.id())) => Presence::Gone,
        // A container has a namespace of its own; a path that leads to ours was given to another process.
        Ok(found) if Netns::current().is_ok_and(|own| own.id() == found.id()) => Presence::Gone,
        Ok(_) => Presence::Alive,
        Err(error) if error.is_missing() => Presence::Gone,
        Err(kernel::netns::NetnsError::NotANamespace { .. }) => Presence::Gone,
        Err(_) => Presence::Unknown,
    }
}

/// Returns the identity of the namespace at a path.
pub(crate) fn identity(netns: &str) -> Option<NetnsId> {
    Netns::open(Path::new(netns)).ok().map(|found| found.id())
}

fn same(recorded: NetnsIdentity, found: NetnsId) -> bool {
    recorded.dev == found.dev && recorded.ino == found.ino
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_whether_the_container_is_there() {
        assert_eq!(look("", None), Presence::Unknown);
        assert_eq!(look("/nonexistent/netns", None), Presence::Gone);
        assert_eq!(look("/etc/hostname", None), Presence::Gone);
        assert_eq!(look("/proc/self/ns/net", None), Presence::Gone);
    }
}
