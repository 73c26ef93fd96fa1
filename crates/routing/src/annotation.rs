//! Our dialect: the annotation `routing.netwright.io/node`.
//!
//! It has no prefixes: those are in `spec.podCIDRs`, which a node cannot write.

use ipnet::IpNet;

use crate::node::{Node, Offers, Underlay};
use crate::refused::Cause;

/// The annotation.
pub const KEY: &str = "routing.netwright.io/node";

/// The version of its format.
pub const VERSION: u32 = 1;

/// What the annotation says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// The underlay addresses.
    pub underlay: Underlay,
    /// The MTU of the underlay, in bytes.
    pub mtu: Option<u32>,
    /// The zone.
    pub zone: Option<String>,
    /// What is offered.
    pub offers: Offers,
    /// Earlier prefixes in which pods live.
    pub kept: Vec<IpNet>,
}

/// Writes the annotation of a node.
#[must_use]
pub fn write(node: &Node) -> String {
    todo!()
}

/// Reads the annotation.
///
/// # Errors
/// What is wrong with it, after the path of the key in it (`offers.vxlan.mac4`; empty for the
/// whole).
pub fn read(text: &str) -> Result<Annotation, (String, Cause)> {
    todo!()
}
