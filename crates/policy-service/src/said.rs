//! What objects of files say that they are: the same answer for the service and for a user who asks
//! about files without one.

use std::collections::BTreeMap;

use policy::Refusal;
use policy::object::require_v1;
use serde_json::Value;

use super::kinds::Kind;

/// What an object says that it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ObjectClass {
    /// One of a kind that is read. A policy may be of a version that is not: its reader closes it.
    Read(Kind),
    /// It makes pods of a template, which is at this pointer.
    Workload(&'static str),
    /// Something else.
    Other(IgnoredObject),
}

/// An object that this service does not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IgnoredObject {
    /// What it is called.
    pub(super) name: String,
    /// It is a network policy of another program's, as its kind says.
    pub(super) is_policy: bool,
}

/// The kinds that are read, with the groups that they are of, or were. A policy that names no group
/// is ours too: to pass it over would let through what it forbids.
static KINDS: [(&str, &[&str], ObjectClass); 6] = [
    ("Namespace", &[""], ObjectClass::Read(Kind::Namespaces)),
    ("Node", &[""], ObjectClass::Read(Kind::Nodes)),
    ("Pod", &[""], ObjectClass::Read(Kind::Pods)),
    (
        "NetworkPolicy",
        &["networking.k8s.io", "extensions", ""],
        ObjectClass::Read(Kind::NetworkPolicies),
    ),
    (
        "ClusterNetworkPolicy",
        &["policy.networking.k8s.io", ""],
        ObjectClass::Read(Kind::ClusterNetworkPolicies),
    ),
    ("MultiNetworkPolicy", &["k8s.cni.cncf.io", ""], ObjectClass::Read(Kind::MultiNetworkPolicies)),
];

/// The kinds that make pods, with the place of the pods' template.
const WORKLOADS: [(&str, &str); 7] = [
    ("CronJob", "/spec/jobTemplate/spec/template"),
    ("DaemonSet", "/spec/template"),
    ("Deployment", "/spec/template"),
    ("Job", "/spec/template"),
    ("ReplicaSet", "/spec/template"),
    ("ReplicationController", "/spec/template"),
    ("StatefulSet", "/spec/template"),
];

/// Finds out what an object says that it is.
///
/// # Errors
/// It is a namespace, a pod or a node of a version that is not read, and is ignored.
pub(super) fn said(object: &Value) -> Result<ObjectClass, Refusal> {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let (kind, api) = (text("kind"), text("apiVersion"));
    let group = api.rsplit_once('/').map_or("", |(group, _)| group);
    if let Some((_, template)) = WORKLOADS.iter().find(|(name, _)| *name == kind) {
        return Ok(ObjectClass::Workload(template));
    }
    let known = KINDS.iter().find(|(name, groups, _)| *name == kind && groups.contains(&group));
    let Some((_, _, said)) = known else {
        let is_policy = kind.ends_with("NetworkPolicy");
        let has_namesake = KINDS.iter().any(|(name, ..)| *name == kind);
        let name = match is_policy || has_namesake {
            true => format!("{kind} of {api}"),
            false => kind.to_owned(),
        };
        return Ok(ObjectClass::Other(IgnoredObject { name, is_policy }));
    };
    if let ObjectClass::Read(Kind::Namespaces | Kind::Nodes | Kind::Pods) = said {
        require_v1(kind, object)?;
    }
    Ok(said.clone())
}

/// How many objects are ignored, by their names in messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct IgnoredObjects(BTreeMap<String, usize>);

impl IgnoredObjects {
    pub(super) fn add(&mut self, name: impl Into<String>) {
        *self.0.entry(name.into()).or_default() += 1;
    }

    /// Lists them; `None` if there are none.
    pub(super) fn list(&self) -> Option<String> {
        let kinds = self.0.iter().map(|(kind, count)| match count {
            1 => cni::text::one_line(kind),
            _ => format!("{} ({count})", cni::text::one_line(kind)),
        });
        let kinds: Vec<String> = kinds.collect();
        (!kinds.is_empty()).then(|| kinds.join(", "))
    }
}

/// What people should know of files besides their objects, in sentences. The log has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Remarks {
    /// What cannot be read, and objects that are there twice.
    pub(super) wrong: Vec<String>,
    /// What of objects is refused.
    pub(super) faults: Vec<String>,
    /// Policies for other programs, which this service does not enforce.
    pub(super) foreign: Vec<String>,
}

/// How many sentences a report repeats.
const MOST_REPEATED: usize = 5;

impl Remarks {
    /// Returns what is to be corrected, if there is something.
    pub(super) fn to_correct(&self) -> Option<String> {
        let all = self.wrong.iter().chain(&self.faults);
        let count = self.wrong.len() + self.faults.len();
        let mut named: Vec<String> = all.take(MOST_REPEATED).cloned().collect();
        if MOST_REPEATED < count {
            named.push(format!("and {} more", count - MOST_REPEATED));
        }
        (!named.is_empty()).then(|| named.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_are_what_group_and_kind_say() {
        let said = |api: &str, kind: &str| super::said(&json!({"apiVersion": api, "kind": kind}));
        let read = |kind| Ok(ObjectClass::Read(kind));
        assert_eq!(said("v1", "Pod"), read(Kind::Pods));
        for api in ["networking.k8s.io/v1", "networking.k8s.io/v2", "extensions/v1beta1", "v1", ""]
        {
            assert_eq!(said(api, "NetworkPolicy"), read(Kind::NetworkPolicies), "{api}");
        }
        let group = "policy.networking.k8s.io";
        for version in ["v1alpha1", "v1alpha2", "v1"] {
            let api = format!("{group}/{version}");
            assert_eq!(said(&api, "ClusterNetworkPolicy"), read(Kind::ClusterNetworkPolicies));
        }
        for version in ["v1beta1", "v1beta2"] {
            let api = format!("k8s.cni.cncf.io/{version}");
            assert_eq!(said(&api, "MultiNetworkPolicy"), read(Kind::MultiNetworkPolicies));
        }
        assert_eq!(said("apps/v1", "Deployment"), Ok(ObjectClass::Workload("/spec/template")));
        let other = |name: &str, is_policy| {
            Ok(ObjectClass::Other(IgnoredObject { name: name.to_owned(), is_policy }))
        };
        assert_eq!(said("v1", "Service"), other("Service", false));
        for (api, kind) in [
            ("projectcalico.org/v3", "NetworkPolicy"),
            ("cilium.io/v2", "CiliumNetworkPolicy"),
            ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy"),
        ] {
            assert_eq!(said(api, kind), other(&format!("{kind} of {api}"), true));
        }
        assert_eq!(
            said("config.openshift.io/v1", "Node"),
            other("Node of config.openshift.io/v1", false)
        );
        let why = |api: &str| said(api, "Node").unwrap_err().to_string();
        assert_eq!(
            why("v2"),
            "a Node: refused: apiVersion: \"v2\" is not read here, v1 is; the object is ignored"
        );
        assert!(why("").contains("\"\" is not read here"));
    }
}
