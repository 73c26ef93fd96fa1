//! A Node of Kubernetes, in the fields that matter here.

use std::collections::BTreeMap;

use crate::cluster::Seen;
use crate::settings::Settings;
use crate::time::Time;

/// What is kept of a Node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFields {
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.creationTimestamp`
    pub created: Option<Time>,
    /// `spec.podCIDRs`, or `spec.podCIDR` alone.
    pub pod_cidrs: Vec<String>,
    /// The addresses of `status.addresses`, whatever their type; names are passed over.
    pub addresses: Vec<String>,
    /// `topology.kubernetes.io/zone`, the label.
    pub zone: Option<String>,
    /// The annotations that [`is_ours`] knows.
    pub annotations: BTreeMap<String, String>,
}

/// Reports whether an annotation is read here; a source keeps no other.
#[must_use]
pub fn is_ours(key: &str, settings: &Settings) -> bool {
    todo!()
}

/// Reads a Node: our annotation if it has one, else flannel's where this node speaks that dialect.
///
/// Prefixes come from `spec.podCIDRs` alone. Underlay addresses must be among the Node's own,
/// unless `public-ip-overwrite` sets them.
#[must_use]
pub fn read(fields: &NodeFields, settings: &Settings) -> Seen {
    todo!()
}
