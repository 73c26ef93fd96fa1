//! The policies that are known, and what each pod of a node is under.

use std::collections::BTreeMap;
use std::net::IpAddr;

use policy::object::is_stand_in;
use policy::policy::Tier;
use policy::{Direction, Pod, Policy, PolicyId, World};
use serde::{Deserialize, Serialize};

mod further;

pub(crate) use self::further::NetworkRows;

/// The version of what is answered.
const VERSION: u32 = 1;

/// The policies, and the pods of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listing {
    pub(crate) version: u32,
    /// The node; none if all pods of files are listed.
    pub(crate) node: Option<String>,
    /// What the service waits for before it enforces the policies, and what else concerns all of
    /// them.
    pub(crate) warnings: Vec<String>,
    pub(crate) policies: Vec<PolicyRow>,
    pub(crate) pods: Vec<PodRow>,
    /// The further networks that policies are for, with the pods that are there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) networks: Vec<NetworkRows>,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PolicyRow {
    /// Its kind and name.
    pub(crate) policy: String,
    pub(crate) tier: ShownTier,
    /// Its place in the tier, if it has one.
    pub(crate) priority: Option<u16>,
    /// What it is about: `ingress`, `egress`.
    pub(crate) directions: Vec<String>,
    /// Which pods it selects, in words.
    pub(crate) subject: String,
    /// How many of the listed pods it selects.
    pub(crate) selects: usize,
    /// What of it was refused, and what holds instead.
    pub(crate) faults: Vec<String>,
    /// What of it has another effect than it may seem.
    pub(crate) notices: Vec<String>,
}

/// When a policy is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ShownTier {
    Admin,
    Namespace,
    Baseline,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodRow {
    pub(crate) pod: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ingress: DirectionState,
    pub(crate) egress: DirectionState,
}

/// What holds for one direction of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DirectionState {
    /// No policy is about it.
    Open,
    /// These are, and all traffic that none of them denies is allowed.
    Limited(Vec<String>),
    /// These are, and all traffic that none of them allows is denied.
    Isolated(Vec<String>),
    /// Only its node reaches it, for this reason.
    Closed(String),
}

/// An attachment of this node whose pod is not known: only its node reaches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnknownAttachment {
    /// The pod's name, or the container's.
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
}

/// Lists the policies and the pods of a node, or of all files.
pub(crate) fn list(
    world: &World,
    node: Option<&str>,
    unknown: Vec<UnknownAttachment>,
    mut warnings: Vec<String>,
) -> Listing {
    let mut selects: BTreeMap<&PolicyId, usize> = BTreeMap::new();
    let mut rows = pod_rows(world, node, &mut selects);
    rows.extend(unknown.into_iter().map(|one| {
        let why = "the API server has not named a pod for its address yet".to_owned();
        PodRow {
            pod: cni::text::one_line(one.name),
            addresses: one.addresses,
            ingress: DirectionState::Closed(why.clone()),
            egress: DirectionState::Closed(why),
        }
    }));
    let mut policies: Vec<&Policy> = world.policies().collect();
    policies.sort_by_key(|policy| (policy.tier, policy.priority, &policy.id));
    let row =
        |policy: &Policy| policy_row(policy, selects.get(&policy.id).copied().unwrap_or_default());
    warnings.extend(world.shared_priorities());
    Listing {
        version: VERSION,
        node: node.map(str::to_owned),
        warnings: warnings.into_iter().map(cni::text::one_line).collect(),
        policies: policies.into_iter().map(row).collect(),
        pods: rows,
        networks: Vec::new(),
    }
}

/// Returns what the pods of a node, or all pods, are under, and counts the pods that policies
/// select.
fn pod_rows<'w>(
    world: &'w World,
    node: Option<&str>,
    selects: &mut BTreeMap<&'w PolicyId, usize>,
) -> Vec<PodRow> {
    let mut pods: Vec<&Pod> = match node {
        Some(node) => world.pods_on(node).collect(),
        None => world.pods().collect(),
    };
    // Policies are about none of the others.
    pods.retain(|pod| !pod.host_network && !pod.finished);
    pods.sort_by_key(|pod| (&*pod.namespace, &pod.name));
    let mut rows: Vec<PodRow> = Vec::new();
    for pod in pods {
        let (ingress, egress) =
            (world.asked(pod, Direction::Ingress), world.asked(pod, Direction::Egress));
        let mut ids: Vec<&PolicyId> = ingress.iter().chain(&egress).map(|one| &one.id).collect();
        ids.sort();
        ids.dedup();
        for id in ids {
            *selects.entry(id).or_default() += 1;
        }
        rows.push(PodRow {
            pod: cni::text::one_line(pod.full_name()),
            addresses: pod.addresses.iter().copied().filter(|one| !is_stand_in(*one)).collect(),
            ingress: under(world, pod, Direction::Ingress, &ingress),
            egress: under(world, pod, Direction::Egress, &egress),
        });
    }
    rows
}

fn policy_row(policy: &Policy, selects: usize) -> PolicyRow {
    let about = [(Direction::Ingress, &policy.ingress), (Direction::Egress, &policy.egress)];
    let about = about.into_iter().filter(|(_, rules)| rules.is_some());
    let subject = policy.subject.as_ref();
    PolicyRow {
        policy: cni::text::one_line(&policy.id),
        tier: match policy.tier {
            Tier::Admin => ShownTier::Admin,
            Tier::Namespaced => ShownTier::Namespace,
            Tier::Baseline => ShownTier::Baseline,
        },
        priority: matches!(policy.id, PolicyId::Cluster { .. }).then_some(policy.priority),
        directions: about.map(|(direction, _)| direction.to_string()).collect(),
        subject: subject.map_or("no pod".to_owned(), cni::text::one_line),
        selects,
        faults: policy.faults.iter().map(cni::text::one_line).collect(),
        notices: policy.notices.iter().map(cni::text::one_line).collect(),
    }
}

fn under(world: &World, pod: &Pod, direction: Direction, asked: &[&Policy]) -> DirectionState {
    if world.namespace(&pod.namespace).is_none() {
        return DirectionState::Closed(format!("namespace {} is not known", pod.namespace));
    }
    for address in pod.own_addresses() {
        let claimants = world.claimants(*address);
        if 1 < claimants.len() && claimants.iter().any(|there| there.uid == pod.uid) {
            let others = claimants.iter().filter(|there| there.uid != pod.uid);
            let others: Vec<String> = others.map(|there| there.full_name()).collect();
            return DirectionState::Closed(format!("{} has {address} too", others.join(" and ")));
        }
    }
    if policy::too_many_lists(asked, direction) {
        return DirectionState::Closed(policy::explain::why_closed(direction));
    }
    let names = asked.iter().map(|policy| cni::text::one_line(&policy.id)).collect();
    let isolates = |policy: &&&Policy| {
        policy.tier == Tier::Namespaced
            || matches!(policy.id, PolicyId::Isolation { .. } | PolicyId::DefaultDeny { .. })
    };
    match asked.iter().find(isolates) {
        Some(_) => DirectionState::Isolated(names),
        None if asked.is_empty() => DirectionState::Open,
        None => DirectionState::Limited(names),
    }
}
