//! How packets to a peer go.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::family::Family;
use crate::node::Node;
use crate::settings::LinkName;

/// How packets to the pods of a peer go, for one family of their addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Path {
    /// The network between the nodes knows the way; nothing of ours is programmed.
    Native,
    /// A routing daemon on this node has a route to the prefix; nothing of ours is programmed.
    Learned,
    /// By a route to its underlay address, which is on the same segment.
    Direct,
    /// By a VXLAN tunnel.
    Vxlan {
        /// The family of the packets around it.
        underlay: Family,
    },
    /// They do not go.
    None,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Native => "native",
            Path::Learned => "learned",
            Path::Direct => "direct",
            Path::Vxlan { underlay: Family::V4 } => "vxlan",
            Path::Vxlan { underlay: Family::V6 } => "vxlan6",
            Path::None => "none",
        })
    }
}

/// What this node's kernel says about the way to an underlay address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// It has not been asked.
    Unknown,
    /// It has no route there.
    Missing,
    /// The address is on a link's segment.
    OnLink(Hop),
    /// A gateway is in between.
    ByGateway(Hop),
}

/// The link by which an underlay address is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The link.
    pub link: LinkName,
    /// The MTU of the way, in bytes: the route's if it has one, else the link's.
    pub mtu: u32,
}

/// What decides about the path to a peer, beside what both ends offer.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The way to the peer's underlay address of each family.
    pub ways: crate::family::PerFamily<&'a Way>,
    /// A routing daemon has a route to exactly its prefix of this family.
    pub learned: bool,
}

/// The path to a peer, and what stood against the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The path.
    pub path: Path,
    /// Why it is this one, or why there is none.
    pub because: String,
    /// The paths that would have come first, each with what stood against it.
    pub passed_over: Vec<PassedOver>,
}

/// A path that was not chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// The path.
    pub path: Path,
    /// What stood against it.
    pub why: String,
}

/// Chooses the path to a peer for one family of its pods' addresses.
///
/// Both ends choose the same, given the same facts.
#[must_use]
pub fn choose(own: &Node, peer: &Node, family: Family, facts: Facts<'_>) -> Choice {
    todo!()
}
