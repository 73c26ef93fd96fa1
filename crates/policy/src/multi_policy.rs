//! MultiNetworkPolicy of `k8s.cni.cncf.io`, v1beta1 and v1beta2: NetworkPolicy for further networks
//! of pods.
//!
//! Its `spec` is that of NetworkPolicy (v1beta1 lacks `endPort`, which is read all the same), and
//! an annotation names the networks. A network is a [`World`](crate::World) of its own: the pods
//! that are on it, with their addresses there, and the policies that are for it. So the evaluator
//! and the compiler know nothing of networks; [`crate::networks`] keeps these worlds.
//!
//! A policy that names no network has no effect. If its names cannot be read, it is for every
//! further network of the pods that it selects: it was meant for one of them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::network_policy::{close_if_other, document, read_spec};
use crate::object::name_of;
use crate::policy::{Policy, PolicyId};
use crate::reader::{Fault, KeyedValue};
use crate::refused::{Cause, Effect, Refusal};

const KIND: &str = "MultiNetworkPolicy";

/// The versions that are read.
pub const VERSIONS: &[&str] = &["k8s.cni.cncf.io/v1beta1", "k8s.cni.cncf.io/v1beta2"];

/// The annotation that names the networks.
pub const POLICY_FOR: &str = "k8s.v1.cni.cncf.io/policy-for";

/// A MultiNetworkPolicy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultiPolicy {
    /// The networks that it is for, as `NAMESPACE/NAME`.
    pub networks: BTreeSet<String>,
    /// It is for all networks: which were meant cannot be read.
    pub everywhere: bool,
    /// What holds there.
    pub policy: Policy,
}

impl MultiPolicy {
    /// Reports whether it is for a network.
    #[must_use]
    pub fn is_for(&self, network: &str) -> bool {
        self.everywhere || self.networks.contains(network)
    }
}

/// Reads a MultiNetworkPolicy.
///
/// # Errors
/// It has no name or no namespace. Everything else that is wrong is among the policy's faults.
pub fn read(object: &Value) -> Result<MultiPolicy, Refusal> {
    let at = KeyedValue::root(object);
    let names = name_of(KIND, &at, true)?;
    let id = PolicyId::MultiNetwork {
        namespace: names.namespace.to_owned(),
        name: names.name.to_owned(),
    };
    let mut policy = read_spec(&at, &names, id);
    close_if_other(&at, &names, VERSIONS, &mut policy);
    let (networks, everywhere) = match read_networks(&at, names.namespace) {
        Ok(networks) => (networks, false),
        Err((fault, effect)) => {
            policy.faults.push(Refusal::new(&names.object, fault, effect));
            (BTreeSet::new(), effect == Effect::EveryNetwork)
        }
    };
    Ok(MultiPolicy { networks, everywhere, policy })
}

/// Reads a MultiNetworkPolicy from JSON.
///
/// # Errors
/// It is not JSON, or is too long; what [`read`] says.
pub fn read_document(text: &[u8]) -> Result<MultiPolicy, Refusal> {
    read(&document(KIND, text)?)
}

fn read_networks(
    at: &KeyedValue<'_>,
    namespace: &str,
) -> Result<BTreeSet<String>, (Fault, Effect)> {
    let path = || format!("metadata.annotations: {POLICY_FOR}");
    let annotations = at.required("metadata").and_then(|metadata| metadata.get("annotations"));
    let annotations = annotations.map_err(|fault| (fault, Effect::NoNetwork))?;
    let text = annotations.as_ref().and_then(|annotations| annotations.loose_text(POLICY_FOR));
    let text = text.ok_or_else(|| ((path(), Cause::Missing), Effect::NoNetwork))?;
    let unreadable =
        |effect| ((path(), Cause::not_a(text, "a list of networks such as shop/storage")), effect);
    if text.trim().is_empty() {
        return Err(unreadable(Effect::NoNetwork));
    }
    let mut networks = BTreeSet::new();
    for name in text.split(',').map(str::trim) {
        let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err(unreadable(Effect::EveryNetwork));
        }
        networks.insert(format!("{namespace}/{name}"));
    }
    Ok(networks)
}
