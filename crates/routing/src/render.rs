//! The network configuration that this node's runtimes read.

use ipnet::IpNet;

/// What the configuration says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkConfig {
    /// The network's name.
    pub name: String,
    /// How pods are attached.
    pub attach: Attach,
    /// The prefixes that pods' addresses are of, at most one of each family.
    pub prefixes: Vec<IpNet>,
    /// The MTU of pods, in bytes.
    pub mtu: u32,
}

/// How pods are attached to their node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attach {
    /// To a bridge of this name.
    Bridge(String),
    /// Each by a pair of its own.
    Ptp,
}

/// Writes the network configuration (a list, CNI 1.1.0).
#[must_use]
pub fn conflist(config: &NetworkConfig) -> String {
    todo!()
}
