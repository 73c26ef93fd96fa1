//! Imports Whereabouts' allocations: its pools become records of ours, so that no address is given
//! twice while its pods live.
//!
//! Everything here is data: [`ImportSource`] is what was read (`kubectl get -A -o json
//! ippools,overlappingrangeipreservations,pods`), [`plan`] decides what becomes of it, and
//! [`apply()`] writes it. Each address of a living pod becomes a block of its own, owned by the
//! pod's node and held by the same container and interface. DEL there frees it, and until then no
//! other container gets it. The space around it is cut into blocks as usual.
//!
//! An address without a reservation may belong to a network that shares its pool with no other
//! (`enable_overlapping_ranges: false`), or its reservation may have been lost. It is imported in
//! both spaces.

mod apply;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;
use node_api::Pod;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::network::{
    Network, NetworkSpec, RangeSpec, UNNAMED_SPACE, address_of, number, parse_prefix,
};
use crate::record::{BlockRecord, Holder, Part, SpaceRecord};

pub use apply::{ImportReport, apply};

/// The annotation with the addresses of a pod's interfaces.
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// The group of Whereabouts' kinds.
pub const GROUP: &str = "whereabouts.cni.cncf.io";
/// Their version.
pub const VERSION: &str = "v1alpha1";
/// Pools and reservations, as named in the API's paths.
pub const PLURALS: [(&str, &str); 2] =
    [("IPPool", "ippools"), ("OverlappingRangeIPReservation", "overlappingrangeipreservations")];

/// Why the input cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It is not JSON.
    #[error("not JSON: {0}")]
    Json(#[source] cni::json::JsonError),
    /// It is neither a Kubernetes object nor a list of them.
    #[error("not the output of kubectl get -o json: neither an object nor a list of objects")]
    NoObject,
    /// It contains no pods, so it is unknown which pods live, and where.
    #[error(
        "pools without pods: only pods show which containers live, and on which node (kubectl get pods -A -o json)"
    )]
    NoPods,
}

/// What an import reads: pools, reservations, pods and nodes.
#[derive(Debug, Default)]
pub struct ImportSource {
    pools: Vec<Pool>,
    reservations: BTreeMap<String, Allocation>,
    pods: BTreeMap<(String, String), LivingPod>,
    nodes: BTreeSet<String>,
    has_pods: bool,
    notes: Vec<String>,
}

#[derive(Debug)]
struct Pool {
    name: String,
    range: IpNet,
    allocations: Vec<(IpAddr, Allocation)>,
}

/// An allocation, or a reservation, as Whereabouts writes it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Allocation {
    #[serde(alias = "containerid")]
    id: String,
    podref: String,
    ifname: String,
}

/// A pod that lives.
#[derive(Debug)]
struct LivingPod {
    uid: String,
    node: String,
    /// The known interface of each address.
    interfaces: BTreeMap<IpAddr, String>,
}

/// The result of an import plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// How spaces are cut.
    pub spaces: Vec<SpaceRecord>,
    /// A block for each imported address.
    pub blocks: Vec<BlockRecord>,
    /// What is not imported, and why.
    #[serde(rename = "passedOver")]
    pub passed_over: Vec<SkippedAllocation>,
    /// Notices for the operator.
    pub notes: Vec<String>,
}

/// An allocation that is not imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedAllocation {
    /// The pool, or the reservation.
    pub of: String,
    /// The address, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Why.
    pub why: String,
}

impl ImportSource {
    /// Reads a Kubernetes object, or a list of them; other kinds are skipped.
    ///
    /// # Errors
    /// [`ImportError`].
    pub fn read(&mut self, text: &[u8]) -> Result<(), ImportError> {
        let value: Value = serde_json::from_slice(text)
            .map_err(|error| ImportError::Json(cni::json::explain(text, &error)))?;
        match (value["items"].as_array(), value["kind"].as_str()) {
            (Some(items), kind) => {
                // Items of a list written by the API do not contain their kind.
                let kind = kind.and_then(|kind| kind.strip_suffix("List")).unwrap_or_default();
                self.has_pods |= kind == "Pod";
                items.iter().for_each(|item| self.object(item, kind));
                Ok(())
            }
            (None, Some(_)) => {
                self.object(&value, "");
                Ok(())
            }
            (None, None) => Err(ImportError::NoObject),
        }
    }

    /// Reads one object; `of` is its kind if the object does not contain it.
    pub fn object(&mut self, object: &Value, of: &str) {
        let kind = object["kind"].as_str().unwrap_or(of);
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match kind {
            "IPPool" => self.pool(name, &object["spec"]),
            "OverlappingRangeIPReservation" => {
                let allocation = serde_json::from_value(object["spec"].clone());
                self.reservations.insert(name, allocation.unwrap_or_default());
            }
            "Pod" => {
                self.has_pods = true;
                self.pod(object, name);
            }
            "Node" => {
                self.nodes.insert(name);
            }
            _ => {}
        }
    }

    /// Declares that all pods were read, even if there are none.
    pub fn that_is_all_pods(&mut self) {
        self.has_pods = true;
    }

    fn pool(&mut self, name: String, spec: &Value) {
        let range = spec["range"].as_str().and_then(parse_prefix);
        let Some(range) = range else {
            self.notes.push(format!("pool {name} has no range and is ignored"));
            return;
        };
        let family = IpFamily::of(range.addr());
        let base = number(range.network());
        let mut allocations = Vec::new();
        for (offset, value) in spec["allocations"].as_object().into_iter().flatten() {
            let address = offset.parse().ok().and_then(|offset| base.checked_add(offset));
            let address = address.map(|at| address_of(family, at)).filter(|at| range.contains(at));
            let allocation = serde_json::from_value::<Allocation>(value.clone()).ok();
            match (address, allocation) {
                (Some(address), Some(allocation)) => allocations.push((address, allocation)),
                _ => self.notes.push(format!("pool {name}: allocation {offset:?} is not valid")),
            }
        }
        allocations.sort_by_key(|(address, _)| *address);
        self.pools.push(Pool { name, range, allocations });
    }

    fn pod(&mut self, object: &Value, name: String) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let node = text(&object["spec"]["nodeName"]);
        let is_over = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        if node.is_empty() || is_over {
            return;
        }
        self.nodes.insert(node.clone());
        let status = object["metadata"]["annotations"][STATUS].as_str().unwrap_or("[]");
        let status: Value = serde_json::from_str(status).unwrap_or_default();
        let mut interfaces = BTreeMap::new();
        for one in status.as_array().into_iter().flatten() {
            for ip in one["ips"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if let Some(prefix) = ip.split('/').next().and_then(|ip| ip.parse().ok()) {
                    interfaces.insert(prefix, text(&one["interface"]));
                }
            }
        }
        let uid = text(&object["metadata"]["uid"]);
        let key = (text(&object["metadata"]["namespace"]), name);
        self.pods.insert(key, LivingPod { uid, node, interfaces });
    }

    /// Splits a reservation's name: the space, the address, and its range.
    fn address_of(&self, name: &str) -> Option<(String, IpAddr, IpNet)> {
        let spaces = self.pools.iter().filter_map(|pool| Some((self.space_of(pool)?, Some(pool))));
        let mut all = spaces.chain([(String::new(), None)]);
        all.find_map(|(space, pool)| {
            let rest = match space.as_str() {
                "" => name,
                space => name.strip_prefix(space)?.strip_prefix('-')?,
            };
            let address: IpAddr = rest.parse().or_else(|_| rest.replace('-', ":").parse()).ok()?;
            let range = pool.map(|pool| pool.range).filter(|range| range.contains(&address));
            if pool.is_some() && range.is_none() {
                return None;
            }
            let space = if space.is_empty() { UNNAMED_SPACE.to_owned() } else { space };
            Some((space, address, range.unwrap_or(IpNet::from(address))))
        })
    }

    /// Returns the name of a pool's space: the part before its range, without the node of a slice.
    fn space_of(&self, pool: &Pool) -> Option<String> {
        let rest = pool.name.strip_suffix(&normal(&pool.range.to_string()))?;
        let Some(rest) = rest.strip_suffix('-') else { return rest.is_empty().then(String::new) };
        let sliced = self.nodes.iter().find_map(|node| {
            let before = rest.strip_suffix(node.as_str())?;
            if before.is_empty() { Some("") } else { before.strip_suffix('-') }
        });
        Some(sliced.unwrap_or(rest).to_owned())
    }
}

/// Formats a range or an address as in the names of Whereabouts' objects.
fn normal(text: &str) -> String {
    let name = text.replace(['/', ':'], "-");
    // An object's name cannot end like this.
    if text.ends_with(':') { format!("{name}0") } else { name }
}

/// Decides what becomes of the input.
///
/// # Errors
/// [`ImportError::NoPods`].
pub fn plan(found: &ImportSource) -> Result<Plan, ImportError> {
    if !found.has_pods {
        return Err(ImportError::NoPods);
    }
    let mut plan = Plan { notes: found.notes.clone(), ..Plan::default() };
    let mut taken = TakenAddresses::new();
    let mut known = BTreeSet::new();
    for pool in &found.pools {
        let Some(name) = found.space_of(pool) else {
            plan.notes.push(format!(
                "pool {} is not named after its range {} and is ignored",
                pool.name, pool.range
            ));
            continue;
        };
        let space = if name.is_empty() { UNNAMED_SPACE } else { &name };
        for (address, allocation) in &pool.allocations {
            let prefix = if name.is_empty() { String::new() } else { format!("{name}-") };
            let reservation = format!("{prefix}{}", normal(&address.to_string()));
            let mut spaces = vec![space.to_owned()];
            if found.reservations.contains_key(&reservation) {
                known.insert(reservation);
            } else {
                spaces.push(format!("{space}/{}", pool.range));
            }
            plan.take(&mut taken, found, &pool.name, (*address, pool.range), &spaces, allocation);
        }
    }
    // What a pool lost, or never contained: the pod may use it all the same.
    for (name, allocation) in &found.reservations {
        if known.contains(name) {
            continue;
        }
        match found.address_of(name) {
            Some((space, address, range)) => {
                plan.take(&mut taken, found, name, (address, range), &[space], allocation);
            }
            None => plan.passed_over.push(SkippedAllocation {
                of: name.clone(),
                address: None,
                why: "its name contains no address".to_owned(),
            }),
        }
    }
    plan.spaces = cut(&taken);
    plan.blocks = taken.into_values().map(|(_, record)| record).collect();
    Ok(plan)
}

/// Taken addresses by space and address, each with its range and record.
type TakenAddresses = BTreeMap<(String, IpAddr), (IpNet, BlockRecord)>;

impl Plan {
    /// Imports an address if its pod lives.
    fn take(
        &mut self,
        taken: &mut TakenAddresses,
        found: &ImportSource,
        of: &str,
        (address, range): (IpAddr, IpNet),
        spaces: &[String],
        allocation: &Allocation,
    ) {
        let (holder, node) = match whose(found, address, allocation) {
            Ok(found) => found,
            Err(why) => {
                let of = of.to_owned();
                return self.passed_over.push(SkippedAllocation {
                    of,
                    address: Some(address),
                    why,
                });
            }
        };
        if holder.container.is_empty() || holder.ifname.is_empty() {
            self.notes.push(format!(
                "no record says which container or interface of {} has {address}: a restart of node {node} frees it, DEL does not",
                holder_name(&holder)
            ));
        }
        for space in spaces {
            let record = one_address(space, address, node.clone(), holder.clone());
            let before = taken.insert((space.clone(), address), (range, record));
            let others = before.iter().flat_map(|(_, other)| other.held.values());
            for other in others.filter(|other| **other != holder) {
                self.notes.push(format!(
                    "the address {address} is {}'s and {}'s: two pods have it already",
                    holder_name(other),
                    holder_name(&holder)
                ));
            }
        }
    }
}

fn whose(
    found: &ImportSource,
    address: IpAddr,
    allocation: &Allocation,
) -> Result<(Holder, String), String> {
    let Some((namespace, name)) = allocation.podref.split_once('/') else {
        return Err(format!("{:?} is not a pod", allocation.podref));
    };
    let key = (namespace.to_owned(), name.to_owned());
    let Some(pod) = found.pods.get(&key) else {
        return Err(format!("the pod {} is gone", allocation.podref));
    };
    let mut ifname = allocation.ifname.clone();
    if ifname.is_empty() {
        // Releases before 0.8 did not record it.
        ifname = pod.interfaces.get(&address).cloned().unwrap_or_default();
    }
    let (namespace, name) = key;
    let pod_of = Pod { namespace, name, uid: pod.uid.clone() };
    // The network's name is not known, so GC of a network removes none of this.
    let holder = Holder {
        network: String::new(),
        container: allocation.id.clone(),
        ifname,
        pod: Some(pod_of),
    };
    Ok((holder, pod.node.clone()))
}

fn holder_name(holder: &Holder) -> String {
    match &holder.pod {
        Some(pod) => format!("{}/{}", pod.namespace, pod.name),
        None => holder.container.clone(),
    }
}

fn one_address(space: &str, address: IpAddr, node: String, holder: Holder) -> BlockRecord {
    BlockRecord {
        space: space.to_owned(),
        block: IpNet::from(address),
        node,
        // The node adopts it with its own.
        epoch: 0,
        addresses: Vec::new(),
        held: BTreeMap::from([(address, holder)]),
        kept: BTreeMap::new(),
    }
}

/// Cuts spaces so that each taken address is a block of its own, and the rest as usual.
fn cut(taken: &TakenAddresses) -> Vec<SpaceRecord> {
    let nodes: BTreeSet<&str> = taken.values().map(|(_, record)| record.node.as_str()).collect();
    let usual_block = |subnet: &IpNet| usual_block(subnet, nodes.len());
    let mut spaces: BTreeMap<&str, (Vec<IpNet>, BTreeSet<IpNet>)> = BTreeMap::new();
    for ((space, address), (subnet, _)) in taken {
        let (fine, subnets) = spaces.entry(space).or_default();
        let around = IpNet::new(*address, usual_block(subnet)).map(|block| block.trunc());
        fine.extend(around);
        subnets.insert(*subnet);
    }
    let record = |(space, (fine, subnets)): (&str, (Vec<IpNet>, BTreeSet<IpNet>))| {
        let single = |subnet: IpNet| Part { subnet, block: subnet.max_prefix_len() };
        let parts = IpNet::aggregate(&fine).into_iter().map(single).collect();
        let mut record = SpaceRecord { space: space.to_owned(), parts, wanted: Vec::new() };
        for subnet in subnets {
            if !record.covers(&subnet) {
                record.add(Part { subnet, block: usual_block(&subnet) });
            }
        }
        record
    };
    spaces.into_iter().map(record).collect()
}

/// The prefix length of blocks in a range for which none is configured.
fn usual_block(subnet: &IpNet, nodes: usize) -> u8 {
    let spec =
        RangeSpec { subnet: *subnet, first: None, last: None, exclude: Vec::new(), gateway: None };
    let network = Network::new(NetworkSpec { ranges: vec![spec], ..NetworkSpec::new("import") });
    match network {
        Ok(network) => network.block_prefix(&network.ranges()[0], nodes),
        Err(_) => subnet.max_prefix_len(),
    }
}

#[cfg(test)]
mod tests;
