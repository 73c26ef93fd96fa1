//! The last known peers, as they are kept on the disk.

use crate::cluster::Cluster;
use crate::node::Node;
use crate::time::Time;

/// The version of the format.
pub const VERSION: u32 = 1;

/// The longest document that is read, in bytes: 10,000 peers with room to spare.
pub const LONGEST: usize = 32 << 20;

/// Why a document was not read as a whole. What could be read counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the last known peers cannot be read: {0}")]
pub struct Damaged(pub String);

/// Writes the peers that are in use.
#[must_use]
pub fn write(cluster: &Cluster) -> String {
    todo!()
}

/// Reads peers, with since when each is known.
///
/// # Errors
/// If anything at all is wrong, nothing is taken: the source will tell.
pub fn read(document: &[u8]) -> Result<Vec<(Node, Time)>, Damaged> {
    todo!()
}
