//! A Node of Kubernetes, in the fields that matter here.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::annotation;
use crate::cluster::{NodeRecord, RecordFault};
use crate::flannel::annotations as flannel;
use crate::node::{Dialect, Node};
use crate::reader::{overlap, prefix};
use crate::refused::{Cause, Refusal};
use crate::settings::Settings;
use crate::time::Time;
use net::IpFamily;

/// What is kept of a Node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct NodeFields {
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.creationTimestamp`
    pub created: Option<Time>,
    /// `spec.podCIDRs`, or `spec.podCIDR` alone.
    pub pod_cidrs: Vec<String>,
    /// The addresses of `status.addresses`, of any type; names are passed over.
    pub addresses: Vec<String>,
    /// `topology.kubernetes.io/zone`, the label.
    pub zone: Option<String>,
    /// The annotations that [`is_ours`] knows.
    pub annotations: BTreeMap<String, String>,
}

/// The field that decides about a node's prefixes.
pub const POD_CIDRS: &str = "spec.podCIDRs";

/// The field that has a node's addresses.
pub const ADDRESSES: &str = "status.addresses";

/// A Node has one prefix of each family; some more are read for controllers to come.
const MOST_PREFIXES: usize = 8;

/// How many further addresses of a Node are kept.
const MOST_ADDRESSES: usize = 16;

/// Reports whether an annotation is read here; a source keeps no other.
#[must_use]
pub fn is_ours(key: &str, settings: &Settings) -> bool {
    let of_flannel = |prefix: &str| key.strip_prefix(prefix).is_some_and(flannel::is_read);
    key == annotation::KEY
        || settings.flannel.as_ref().is_some_and(|flannel| of_flannel(&flannel.prefix))
}

/// Reads a Node: our annotation if it has one, else flannel's where this node speaks that dialect.
///
/// Prefixes come from `spec.podCIDRs` alone. Underlay addresses must be among the Node's own,
/// unless `public-ip-overwrite` sets them.
#[must_use]
pub fn read(fields: &NodeFields, settings: &Settings) -> NodeRecord {
    let mut faults = Vec::new();
    let node = read_node(fields, settings, &mut faults);
    NodeRecord { name: fields.name.clone(), node, faults }
}

fn read_node(
    fields: &NodeFields,
    settings: &Settings,
    faults: &mut Vec<Refusal>,
) -> Result<Node, RecordFault> {
    let incomplete = |what: String| Err(RecordFault::Incomplete(what));
    let prefixes = used_prefixes(fields, settings)?;
    if prefixes.is_empty() {
        return incomplete(format!("{POD_CIDRS} is empty"));
    }
    let mut node = if let Some(text) = fields.annotations.get(annotation::KEY) {
        read_ours(fields, prefixes, text)?
    } else if let Some(flannel) = &settings.flannel {
        match flannel::read(fields, prefixes, flannel, settings, faults) {
            Some(node) => node?,
            None => {
                let of_flannel = &flannel.prefix;
                return incomplete(format!("no annotation {} or {of_flannel}*", annotation::KEY));
            }
        }
    } else {
        return incomplete(format!("no annotation {}", annotation::KEY));
    };
    let of_ours = fields.annotations.contains_key(annotation::KEY);
    if of_ours && !settings.any_address {
        for address in node.underlay.iter() {
            let overwritten = settings.flannel.as_ref().is_some_and(|of_flannel| {
                flannel::overwrite(fields, of_flannel, IpFamily::of(address)) == Some(address)
            });
            if !overwritten {
                has_address(fields, address).map_err(|cause| {
                    let key = format!("{}: underlay", annotation::KEY);
                    Refusal::new(&fields.name, key, cause)
                })?;
            }
        }
    }
    node.addresses = further_addresses(fields, &node);
    Ok(node)
}

/// Returns the addresses that a Node has besides those by which it is reached.
fn further_addresses(fields: &NodeFields, node: &Node) -> Vec<IpAddr> {
    let is_further = |address: &IpAddr| node.underlay.iter().all(|of| of != *address);
    let addresses = fields.addresses.iter().filter_map(|text| cni::text::parse_ip(text));
    let mut addresses: Vec<IpAddr> = addresses.filter(is_further).take(MOST_ADDRESSES).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

impl From<Refusal> for RecordFault {
    fn from(refused: Refusal) -> Self {
        RecordFault::Refused(refused)
    }
}

fn read_ours(fields: &NodeFields, prefixes: Vec<IpNet>, text: &str) -> Result<Node, Refusal> {
    let read = annotation::read(text).map_err(|(path, cause)| {
        let key = annotation::KEY;
        let key = if path.is_empty() { key.to_owned() } else { format!("{key}: {path}") };
        Refusal::new(&fields.name, key, cause)
    })?;
    Ok(Node {
        name: fields.name.clone(),
        uid: fields.uid.clone(),
        created: fields.created,
        // A prefix that is the node's again is no longer an earlier one.
        kept: read.kept.into_iter().filter(|kept| !prefixes.contains(kept)).collect(),
        prefixes,
        blocks: Vec::new(),
        underlay: read.underlay,
        addresses: Vec::new(),
        offers: read.offers,
        mtu: read.mtu,
        zone: fields.zone.clone().or(read.zone),
        dialect: Dialect::Netwright,
    })
}

/// Reads the prefixes of a Node, its own or a peer's.
///
/// # Errors
/// What is wrong with them.
pub fn prefixes(fields: &NodeFields) -> Result<Vec<IpNet>, Refusal> {
    let refused = |cause| Refusal::new(&fields.name, POD_CIDRS, cause);
    let count = fields.pod_cidrs.len();
    if MOST_PREFIXES < count {
        return Err(refused(Cause::TooMany { count, most: MOST_PREFIXES }));
    }
    let mut prefixes: Vec<IpNet> = Vec::new();
    for text in &fields.pod_cidrs {
        let prefix = prefix(text).map_err(refused)?;
        if let Some(other) = prefixes.iter().copied().find(|other| overlap(*other, prefix)) {
            return Err(refused(Cause::OverlapsItself { prefix, other }));
        }
        prefixes.push(prefix);
    }
    Ok(prefixes)
}

/// Reads the prefixes of a Node that this cluster's pods get addresses of. Nodes may have prefixes
/// of a family of which neither flanneld's configuration nor ours has a range: those do not count,
/// unless the Node has no other.
///
/// # Errors
/// What is wrong with them.
pub fn used_prefixes(fields: &NodeFields, settings: &Settings) -> Result<Vec<IpNet>, Refusal> {
    let mut prefixes = prefixes(fields)?;
    let has_range = |prefix: &IpNet| {
        let family = IpFamily::of_prefix(*prefix);
        settings.cluster_ranges.iter().any(|range| IpFamily::of_prefix(*range) == family)
    };
    if prefixes.iter().any(has_range) {
        prefixes.retain(has_range);
    }
    Ok(prefixes)
}

/// Checks that a Node has an address.
pub(crate) fn has_address(fields: &NodeFields, address: IpAddr) -> Result<(), Cause> {
    let mut addresses = fields.addresses.iter().filter_map(|text| cni::text::parse_ip(text));
    if addresses.any(|there| there == address) {
        return Ok(());
    }
    let addresses = match fields.addresses.as_slice() {
        [] => "it has none".to_owned(),
        addresses => crate::refused::printable(&addresses.join(", ")),
    };
    Err(Cause::NotOfNode { address, addresses })
}
