//! The leases of flannelds in etcd.

use crate::cluster::Seen;
use crate::node::Node;
use crate::settings::{FlannelSettings, Settings};

/// Returns the key of a node's lease, below the prefix's `subnets/`; `None` without an IPv4 prefix,
/// which flannel's keys need.
#[must_use]
pub fn key(node: &Node) -> Option<String> {
    todo!()
}

/// Returns the value of a node's lease, byte for byte as flanneld writes it.
#[must_use]
pub fn value(node: &Node, flannel: &FlannelSettings) -> String {
    todo!()
}

/// Reads a lease: the last part of its key, and its value.
#[must_use]
pub fn read(key: &str, value: &[u8], flannel: &FlannelSettings, settings: &Settings) -> Seen {
    todo!()
}
