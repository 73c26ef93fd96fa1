//! What the records in a [store](crate::store) say.
//!
//! Unknown keys are passed over, and a record that is no such record is nobody's: it is told of, and never used or replaced.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::network::bounds;
use crate::store::{Key, Kind};
use crate::wire::Pod;

/// How a space is cut into blocks. Parts are only ever added, and the first part that an address is in says how long the prefix of its block
/// is: so all nodes cut alike, whatever their configurations say and however subnets overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpaceRecord {
    /// The space.
    pub space: String,
    /// Its parts, in the order in which somebody asked for them.
    pub parts: Vec<Part>,
    /// Who found a subnet full last, one of each subnet: other nodes give their empty blocks back
    /// when they see it. An older daemon passes over it, and drops it when it adds a part.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<Want>,
}

/// A node found no address of a subnet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// The subnet.
    pub subnet: IpNet,
    /// The node.
    pub node: String,
    /// Another number each time, so that a new want is told from one that was seen.
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
    /// Returns the block that an address is in.
    #[must_use]
    pub fn block_of(&self, address: IpAddr) -> Option<IpNet> {
        let part = self.parts.iter().find(|part| part.subnet.contains(&address))?;
        let length = part.block.max(part.subnet.prefix_len());
        IpNet::new(address, length).ok().map(|block| block.trunc())
    }

    /// Returns the subnet of the part that an address is in.
    #[must_use]
    pub fn part_of(&self, address: IpAddr) -> Option<IpNet> {
        self.parts.iter().map(|part| part.subnet).find(|subnet| subnet.contains(&address))
    }

    /// Says whether every address of a subnet is in a part.
    #[must_use]
    pub fn covers(&self, subnet: &IpNet) -> bool {
        self.parts.iter().any(|part| part.subnet.contains(subnet))
    }
}

/// Names a block: addresses of a space that one node gives.
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

/// Whose a block is. Nobody but that node writes it while the node's lease holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRecord {
    /// The space.
    pub space: String,
    /// The addresses.
    pub block: IpNet,
    /// The node; nobody's where it is empty: the block of a node that was given up, in which pods keep addresses.
    pub node: String,
    /// The node's [`NodeRecord::epoch`] when it took the block.
    pub epoch: u64,
    /// Who has which address, as far as the node has told: for people, and for a node that lost its disk. What the node has on its disk counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: BTreeMap<IpAddr, Holder>,
    /// The addresses of pods that keep them ([`StickyRecord`]): given to nobody else.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kept: BTreeMap<IpAddr, String>,
}

/// Who has an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// The network's name.
    pub network: String,
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// The pod, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// A node's lease: while it holds, the node's blocks are its.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The node.
    pub node: String,
    /// What the node's disk says: another machine of that name has another.
    pub identity: String,
    /// Grows whenever the node comes back after it was given up.
    pub epoch: u64,
    /// Grows with every renewal.
    pub beat: u64,
    /// How long the lease holds after it was renewed, in milliseconds.
    #[serde(rename = "leaseMs")]
    pub lease_ms: u64,
    /// It was given up: its blocks may be taken. A node that is back takes a new epoch.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fenced: bool,
    /// Which process wrote it: one that shares identity and disk with another machine is told by
    /// it. Empty where the writer is of version 0.1.0.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// The process that wants to be this node, after another boot: who wrote the record answers if
    /// it is there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// An administrator says that it will not come back. A node that is there takes that away again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub forgotten: bool,
}

/// The addresses that a pod keeps while it is made again under its name.
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
    /// That node's epoch.
    pub epoch: u64,
    /// Who has it now; nobody between two lives of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
}

/// Reads a record; `None` when it is none.
#[must_use]
pub fn read<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

/// Writes a record.
///
/// # Panics
/// Never: our records have text for keys.
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
