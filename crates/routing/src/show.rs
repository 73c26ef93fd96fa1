//! What people see: the rows of `netwright routes`, and why packets go as they do.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::cluster::Unusable;
use crate::family::Family;
use crate::path::PassedOver;
use crate::path::Path;
use crate::routing::{Phase, Probe};
use crate::time::Time;

/// The version of the format.
pub const VERSION: u32 = 1;

/// All that `netwright routes` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    /// [`VERSION`] when it was written.
    pub version: u32,
    /// This node's name.
    pub node: String,
    /// This node's prefixes.
    pub prefixes: Vec<IpNet>,
    /// How far it is.
    pub phase: Phase,
    /// The MTU of pods, in bytes.
    pub pod_mtu: Option<u32>,
    /// What somebody should look at.
    pub warnings: Vec<String>,
    /// A row for each peer and family.
    pub rows: Vec<Row>,
}

/// A peer, for one family of its pods' addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The peer's name.
    pub peer: String,
    /// Its prefixes of the family.
    pub prefixes: Vec<IpNet>,
    /// The path.
    pub path: Path,
    /// Why it is this one.
    pub because: String,
    /// The state.
    pub state: PeerState,
    /// Since when it is in this state.
    pub since: Time,
    /// What fits, in bytes.
    pub mtu: Option<u32>,
    /// The last probe, and when it was.
    pub probe: Option<(Probe, Time)>,
}

/// The state of a peer (`reach.md` §11.4). A peer that is gone has no row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PeerState {
    /// Its record is not complete, or cannot be true.
    Unusable(Unusable),
    /// It is to be programmed.
    Wanted,
    /// The kernel has it.
    Programmed,
    /// It has answered.
    Probed,
    /// The kernel does not take it: its words, and since when.
    Failing {
        /// The kernel's words.
        error: String,
        /// Since when.
        since: Time,
    },
    /// It is kept although the source does not show it so: why.
    Held(String),
    /// A route of somebody else to its prefix is in the way.
    Conflict(String),
}

/// How packets to an address go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained {
    /// [`VERSION`] when it was written.
    pub version: u32,
    /// The address.
    pub address: IpAddr,
    /// The peer whose pods have it, if it is one's.
    pub peer: Option<String>,
    /// The prefix it is in.
    pub prefix: Option<IpNet>,
    /// The path.
    pub path: Option<Path>,
    /// Whose it is, and how packets get there, in sentences.
    pub sentences: Vec<String>,
    /// Why no other path.
    pub passed_over: Vec<PassedOver>,
    /// The family.
    pub family: Family,
}
