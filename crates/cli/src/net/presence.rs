//! Checks whether a container is still there.

use std::path::Path;

use kernel::netns::{Netns, NetnsId};

pub(crate) use cni_runtime::Presence;

/// Returns the identity of the namespace at a path.
pub(crate) fn identity(netns: &str) -> Option<NetnsId> {
    Netns::open(Path::new(netns)).ok().map(|found| found.id())
}
