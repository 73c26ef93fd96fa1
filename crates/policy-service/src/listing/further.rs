//! Further networks in the list of policies and pods.

use std::collections::{BTreeMap, BTreeSet};

use policy::multi_policy::MultiPolicy;
use policy::object::Uid;
use policy::{Networks, Pod, PolicyId};
use serde::{Deserialize, Serialize};

use super::{Listing, PodRow, PolicyRow, pod_rows, policy_row};

/// What pods are under on a further network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetworkRows {
    pub(crate) network: String,
    pub(crate) pods: Vec<PodRow>,
}

impl Listing {
    /// Adds the further networks that policies are for, with these policies.
    pub(crate) fn with(mut self, networks: &Networks, node: Option<&str>) -> Self {
        let mut selected: BTreeMap<&PolicyId, BTreeSet<&Uid>> = BTreeMap::new();
        for (network, world) in networks.worlds() {
            let pods = pod_rows(world, node, &mut BTreeMap::new());
            if !pods.is_empty() {
                let network = cni::text::one_line(network);
                self.networks.push(NetworkRows { network, pods });
            }
            let is_listed =
                |pod: &&Pod| !pod.finished && (node.is_none() || pod.node.as_deref() == node);
            for policy in networks.policies().filter(|policy| policy.is_for(network)) {
                let Some(subject) = &policy.policy.subject else { continue };
                let pods = world.pods().filter(is_listed).filter(|pod| world.is_in(pod, subject));
                selected.entry(&policy.policy.id).or_default().extend(pods.map(|pod| &pod.uid));
            }
        }
        let row = |policy: &MultiPolicy| -> PolicyRow {
            let selects = selected.get(&policy.policy.id).map_or(0, BTreeSet::len);
            let mut row = policy_row(&policy.policy, selects);
            row.subject = cni::text::one_line(format!("{}, {}", row.subject, on(policy)));
            row
        };
        self.policies.extend(networks.policies().map(row));
        self
    }
}

/// Says which networks a policy is for.
fn on(policy: &MultiPolicy) -> String {
    let names: Vec<&str> = policy.networks.iter().map(String::as_str).collect();
    match names.as_slice() {
        _ if policy.everywhere => "on every further network".to_owned(),
        [] => "on no network".to_owned(),
        names => format!("on {}", names.join(" and ")),
    }
}
