//! Which network namespace is at a path.

use std::path::Path;

use kernel::netns::{Netns, NetnsId};

/// Returns the identity of the namespace at a path.
#[must_use]
pub fn identity(netns: &str) -> Option<NetnsId> {
    Netns::open(Path::new(netns)).ok().map(|found| found.id())
}
