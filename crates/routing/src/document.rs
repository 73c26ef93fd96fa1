//! The last known peers, as they are kept on the disk.
//!
//! ```json
//! {"version":1,"sum":"…","known":{"own":{…},"macs":{…},"peers":[{"since":1700000000000,"node":{…}}]}}
//! ```

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, Peer};
use crate::node::Node;
use crate::sealed;
use crate::time::Time;
use net::MacAddr;
use net::PerFamily;

/// The version of the format.
pub const VERSION: u32 = 1;

/// The longest document that is read, in bytes: 10,000 peers with room to spare.
pub const LONGEST: usize = 32 << 20;

/// Why a document was not read. Nothing of it counts: the source will list the peers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the last known peers cannot be read: {0}")]
pub struct DamagedDocument(pub String);

/// What the disk has: enough to program everything before any server was asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Document {
    /// This node; `None` if it had no prefix yet.
    pub own: Option<Node>,
    /// The hardware addresses of its tunnels. `own` lacks those over a family in which it had no
    /// address just then.
    pub macs: PerFamily<Option<MacAddr>>,
    /// The peers that were in use, with since when each is known.
    pub peers: Vec<(Node, Time)>,
}

#[derive(Serialize, Deserialize)]
struct Inner<'a> {
    #[serde(default)]
    own: Option<Cow<'a, Node>>,
    #[serde(default)]
    macs: Macs,
    peers: Vec<Entry<'a>>,
}

#[derive(Default, Serialize, Deserialize)]
struct Macs {
    v4: Option<MacAddr>,
    v6: Option<MacAddr>,
}

#[derive(Serialize, Deserialize)]
struct Entry<'a> {
    since: Time,
    node: Cow<'a, Node>,
}

/// Writes this node and the peers that are in use.
#[must_use]
pub fn write(cluster: &Cluster) -> String {
    fn entry<'a>((peer, node): (&Peer, &'a Node)) -> Entry<'a> {
        Entry { since: peer.first_seen, node: Cow::Borrowed(node) }
    }
    let own = Some(cluster.own()).filter(|own| !own.node.prefixes.is_empty());
    let inner = Inner {
        own: own.map(|own| Cow::Borrowed(&own.node)),
        macs: Macs { v4: own.map(|own| own.macs.v4), v6: own.map(|own| own.macs.v6) },
        peers: cluster.used().map(entry).collect(),
    };
    sealed::write(VERSION, &inner)
}

/// Reads what [`write()`] has written.
///
/// # Errors
/// If anything at all is wrong, nothing is taken: half a list is worse than none, and the source
/// will list the peers.
pub fn read(document: &[u8]) -> Result<Document, DamagedDocument> {
    let inner: Inner<'_> = sealed::read(document, VERSION, LONGEST).map_err(DamagedDocument)?;
    let peers = inner.peers.into_iter().map(|entry| (entry.node.into_owned(), entry.since));
    let Macs { v4, v6 } = inner.macs;
    Ok(Document {
        own: inner.own.map(Cow::into_owned),
        macs: PerFamily { v4, v6 },
        peers: peers.collect(),
    })
}
