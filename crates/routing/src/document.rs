//! The last known peers, as they are kept on the disk.
//!
//! ```json
//! {"version":1,"sum":"…","peers":[{"since":1700000000000,"node":{…}}]}
//! ```

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::cluster::Cluster;
use crate::node::Node;
use crate::time::Time;

/// The version of the format.
pub const VERSION: u32 = 1;

/// The longest document that is read, in bytes: 10,000 peers with room to spare.
pub const LONGEST: usize = 32 << 20;

/// Why a document was not read. Nothing of it counts: the source will tell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the last known peers cannot be read: {0}")]
pub struct Damaged(pub String);

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    sum: String,
    peers: &'a RawValue,
}

#[derive(Deserialize)]
struct Read<'a> {
    version: u32,
    sum: String,
    #[serde(borrow)]
    peers: &'a RawValue,
}

#[derive(Serialize)]
struct Entry<'a> {
    since: Time,
    node: &'a Node,
}

#[derive(Deserialize)]
struct OwnedEntry {
    since: Time,
    node: Node,
}

/// Writes the peers that are in use.
#[must_use]
pub fn write(cluster: &Cluster) -> String {
    let entries: Vec<Entry<'_>> =
        cluster.used().map(|(peer, node)| Entry { since: peer.first_seen, node }).collect();
    let peers = serde_json::value::to_raw_value(&entries).expect("our types serialise to JSON");
    let written = Written { version: VERSION, sum: sum(&peers), peers: &peers };
    serde_json::to_string(&written).expect("our types serialise to JSON")
}

/// Reads peers, with since when each is known.
///
/// # Errors
/// If anything at all is wrong, nothing is taken: half a list is worse than none, and the source
/// will tell.
pub fn read(document: &[u8]) -> Result<Vec<(Node, Time)>, Damaged> {
    if LONGEST < document.len() {
        return Err(Damaged(format!("it has {} bytes", document.len())));
    }
    let damaged = |error: serde_json::Error| Damaged(error.to_string());
    let read: Read<'_> = serde_json::from_slice(document).map_err(damaged)?;
    if read.version != VERSION {
        return Err(Damaged(format!("it has version {}", read.version)));
    }
    if read.sum != sum(read.peers) {
        return Err(Damaged("its sum is wrong".to_owned()));
    }
    let entries: Vec<OwnedEntry> = serde_json::from_str(read.peers.get()).map_err(damaged)?;
    Ok(entries.into_iter().map(|entry| (entry.node, entry.since)).collect())
}

fn sum(peers: &RawValue) -> String {
    Sha256::digest(peers.get()).iter().map(|byte| format!("{byte:02x}")).collect()
}
