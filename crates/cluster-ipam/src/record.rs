//! The contents of the records in a [store](crate::store).
//!
//! Unknown keys are ignored. A record that cannot be read belongs to no node: it is reported, and
//! never used or replaced.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use node_api::Pod;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::network::bounds;
use crate::store::{Key, Kind};

/// How a space is cut into blocks. Parts are only ever added. The first part that contains an
/// address gives the prefix length of its block. So all nodes cut alike, even if their
/// configurations differ and subnets overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpaceRecord {
    /// The space.
    pub space: String,
    /// Its parts, in the order in which they were requested.
    pub parts: Vec<Part>,
    /// The nodes that last found a subnet full, one per subnet: other nodes that see this return
    /// their empty blocks. An older daemon ignores it, and drops it when it adds a part.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<WantedBlock>,
}

/// A node found no free address in a subnet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedBlock {
    /// The subnet.
    pub subnet: IpNet,
    /// The node.
    pub node: String,
    /// A different number each time, so that a new want differs from one seen before.
    pub turn: u64,
}

/// A part of a space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The subnet.
    pub subnet: IpNet,
    /// The prefix length of its blocks.
    pub block: u8,
}

impl SpaceRecord {
    /// Returns the block that contains an address.
    #[must_use]
    pub fn block_of(&self, address: IpAddr) -> Option<IpNet> {
        let part = self.parts.iter().find(|part| part.subnet.contains(&address))?;
        let length = part.block.max(part.subnet.prefix_len());
        IpNet::new(address, length).ok().map(|block| block.trunc())
    }

    /// Returns the subnet of the part that contains an address.
    #[must_use]
    pub fn part_of(&self, address: IpAddr) -> Option<IpNet> {
        self.parts.iter().map(|part| part.subnet).find(|subnet| subnet.contains(&address))
    }

    /// Adds a part. Its blocks are at most as large as the parts that its subnet contains: the
    /// addresses of those are in blocks of their own, which no other block may contain.
    pub fn add(&mut self, part: Part) {
        let inner = self.parts.iter().map(|there| there.subnet);
        let inner = inner.filter(|there| part.subnet.contains(there));
        let block = inner.map(|there| there.prefix_len()).fold(part.block, u8::max);
        self.parts.push(Part { block, ..part });
    }

    /// Says whether parts contain every address of a subnet.
    #[must_use]
    pub fn covers(&self, subnet: &IpNet) -> bool {
        self.parts.iter().any(|part| part.subnet.contains(subnet))
    }
}

/// Names a block: addresses of a space that one node assigns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockId {
    /// The space.
    pub space: String,
    /// The addresses.
    pub block: IpNet,
}

impl BlockId {
    /// Returns the name of its record.
    #[must_use]
    pub fn key(&self) -> Key {
        let (address, length) = (self.block.addr(), self.block.prefix_len());
        Key::new(Kind::Block, format!("{}/{address}-{length}", self.space))
    }

    /// Returns its first and last address as numbers.
    #[must_use]
    pub fn bounds(&self) -> (u128, u128) {
        bounds(&self.block)
    }
}

/// A block's owner. Only that node writes the record while the node's lease holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRecord {
    /// The space.
    pub space: String,
    /// The addresses.
    pub block: IpNet,
    /// The node. If empty, the block belongs to no node: its node was given up, and pods keep
    /// addresses in it.
    pub node: String,
    /// The node's [`NodeRecord::epoch`] when it took the block.
    pub epoch: u64,
    /// The addresses by which other nodes reach the node, where it knows them: for the program that
    /// routes the block. An older daemon ignores them, and drops them when it writes the record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The holder of each address, as far as the node has reported: for administrators, and for a
    /// node that lost its disk. What the node has on its disk counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: BTreeMap<IpAddr, Holder>,
    /// The addresses of pods that keep them ([`StickyRecord`]): no other pod gets them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kept: BTreeMap<IpAddr, String>,
}

/// The holder of an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// The network's name.
    pub network: String,
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// The pod, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// A node's lease: while it holds, the node owns its blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node.
    pub node: String,
    /// The identity on the node's disk: another machine of that name has a different one.
    pub identity: String,
    /// Grows whenever the node comes back after it was given up.
    pub epoch: u64,
    /// Grows with every renewal.
    pub beat: u64,
    /// How long the lease holds after a renewal, in milliseconds.
    #[serde(rename = "leaseMs")]
    pub lease_ms: u64,
    /// Whether it was given up, so that its blocks may be taken. A node that is back takes a new
    /// epoch.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fenced: bool,
    /// The process that wrote it; it distinguishes machines that share identity and disk. Empty if
    /// the writer is version 0.1.0.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// The process that wants to be this node after another boot: the last writer of the record
    /// answers if it still runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// Whether an administrator says that it will not come back. A node that is there removes this
    /// again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub forgotten: bool,
}

/// The addresses that a pod keeps while it is recreated under its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StickyRecord {
    /// The space.
    pub space: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The interface's name.
    pub ifname: String,
    /// The address.
    pub address: Option<IpAddr>,
    /// The node on which the pod was last.
    pub node: String,
    /// That node's addresses for other nodes, as in [`BlockRecord::addresses`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// That node's epoch.
    pub epoch: u64,
    /// Its holder now; none between two lives of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
}

/// Reads a record; `None` when it is not one.
#[must_use]
pub fn read<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

/// Writes a record.
///
/// # Panics
/// This never fails: our records have text keys.
#[must_use]
pub fn write<T: Serialize>(record: &T) -> Value {
    serde_json::to_value(record).expect("our records have text for keys")
}

/// Returns the name of a node's record.
#[must_use]
pub fn node_key(node: &str) -> Key {
    Key::new(Kind::Node, node)
}

/// Returns the name of a space's record.
#[must_use]
pub fn space_key(space: &str) -> Key {
    Key::new(Kind::Space, space)
}

fn is_false(value: &bool) -> bool {
    !*value
}
