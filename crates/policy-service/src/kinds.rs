//! The kinds of objects, and objects as sources say them.

use std::fmt;
use std::sync::Arc;

use policy::multi_policy::{self, MultiPolicy};
use policy::object::Uid;
use policy::{
    Change, Namespace, Node, Pod, Policy, PolicyId, Refusal, cluster_policy, network_policy,
};
use serde_json::Value;

use super::further::FurtherNetworks;

/// Where a kubelet notes in a static pod's object which UID it calls the pod by, also towards
/// runtimes (Kubernetes, `pkg/kubelet/types` ConfigMirrorAnnotationKey).
pub(super) const STATIC: &str = "kubernetes.io/config.mirror";

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Namespaces,
    Nodes,
    NetworkPolicies,
    ClusterNetworkPolicies,
    MultiNetworkPolicies,
    Pods,
}

impl Kind {
    /// All of them. Pods, of which there are most, come last.
    pub(super) const ALL: [Kind; 6] = [
        Kind::Namespaces,
        Kind::Nodes,
        Kind::NetworkPolicies,
        Kind::ClusterNetworkPolicies,
        Kind::MultiNetworkPolicies,
        Kind::Pods,
    ];

    /// The policies.
    pub(super) const POLICIES: [Kind; 3] =
        [Kind::NetworkPolicies, Kind::ClusterNetworkPolicies, Kind::MultiNetworkPolicies];

    /// Reports whether the loss of one lets traffic through.
    pub(super) fn is_policy(self) -> bool {
        Kind::POLICIES.contains(&self)
    }

    /// Reports whether a cluster may lack its definition.
    pub(super) fn may_be_missing(self) -> bool {
        matches!(self, Kind::ClusterNetworkPolicies | Kind::MultiNetworkPolicies)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Namespaces => "namespaces",
            Kind::Nodes => "nodes",
            Kind::NetworkPolicies => "networkpolicies",
            Kind::ClusterNetworkPolicies => "clusternetworkpolicies",
            Kind::MultiNetworkPolicies => "multi-networkpolicies",
            Kind::Pods => "pods",
        })
    }
}

/// The name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    Namespace(String),
    Node(String),
    Pod(Uid),
    Policy(PolicyId),
}

impl Key {
    /// Returns the kind of the object; `None` for what is not an object of its own.
    pub(super) fn kind(&self) -> Option<Kind> {
        Some(match self {
            Key::Namespace(_) => Kind::Namespaces,
            Key::Node(_) => Kind::Nodes,
            Key::Pod(_) => Kind::Pods,
            Key::Policy(PolicyId::Network { .. }) => Kind::NetworkPolicies,
            Key::Policy(PolicyId::Cluster { .. }) => Kind::ClusterNetworkPolicies,
            Key::Policy(PolicyId::MultiNetwork { .. }) => Kind::MultiNetworkPolicies,
            Key::Policy(_) => return None,
        })
    }

    /// Returns the change that removes the object.
    pub(super) fn removal(self) -> Change {
        match self {
            Key::Namespace(name) => Change::Namespace(name, None),
            Key::Node(name) => Change::Node(name, None),
            Key::Pod(uid) => Change::Pod(uid, None),
            Key::Policy(id) => Change::Policy(id, None),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Namespace(name) => write!(f, "Namespace {name}"),
            Key::Node(name) => write!(f, "Node {name}"),
            Key::Pod(uid) => write!(f, "Pod {uid}"),
            Key::Policy(id) => id.fmt(f),
        }
    }
}

/// An object as a source says it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Object {
    pub(super) what: ObjectContent,
    /// What is needed to write its status, or an Event about it.
    pub(super) meta: Meta,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ObjectContent {
    Namespace(Namespace),
    Node(Node),
    Pod(Box<Pod>),
    Policy(Box<Policy>),
    MultiPolicy(Box<MultiPolicy>),
}

/// What is needed to write about an object, and more about pods. Nodes need nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Meta {
    pub(super) uid: String,
    pub(super) generation: u64,
    pub(super) version: String,
    /// The conditions of its status.
    pub(super) conditions: Vec<Value>,
    /// The UID by which the kubelet calls a static pod.
    pub(super) static_uid: Option<Uid>,
    /// The further networks of a pod.
    pub(super) further: FurtherNetworks,
    /// One of a pod's containers may change the pod's network namespace.
    pub(super) may_undo: bool,
}

impl Meta {
    fn read(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
        let conditions = object["status"]["conditions"].as_array();
        Meta {
            uid: text("uid"),
            generation: metadata["generation"].as_u64().unwrap_or_default(),
            version: text("resourceVersion"),
            conditions: conditions.cloned().unwrap_or_default(),
            ..Meta::default()
        }
    }
}

impl Object {
    /// Reads an object of a kind.
    ///
    /// # Errors
    /// It cannot be identified: its name, its namespace or its UID is missing.
    pub(super) fn of(kind: Kind, object: &Value) -> Result<Self, Refusal> {
        let meta = Meta::default();
        Ok(match kind {
            Kind::Namespaces => Object {
                what: ObjectContent::Namespace(Namespace::read(object)?),
                meta: Meta::read(object),
            },
            Kind::Nodes => Object { what: ObjectContent::Node(Node::read(object)?), meta },
            Kind::Pods => {
                let static_uid = object["metadata"]["annotations"][STATIC].as_str().map(Arc::from);
                let what = ObjectContent::Pod(Box::new(Pod::read(object)?));
                let (further, may_undo) = (FurtherNetworks::read(object), may_undo(object));
                Object { what, meta: Meta { static_uid, further, may_undo, ..meta } }
            }
            Kind::NetworkPolicies => Object {
                what: ObjectContent::Policy(Box::new(network_policy::read(object)?)),
                meta: Meta::read(object),
            },
            Kind::ClusterNetworkPolicies => Object {
                what: ObjectContent::Policy(Box::new(cluster_policy::read(object)?)),
                meta: Meta::read(object),
            },
            Kind::MultiNetworkPolicies => Object {
                what: ObjectContent::MultiPolicy(Box::new(multi_policy::read(object)?)),
                meta: Meta::read(object),
            },
        })
    }

    /// Returns what of it is refused.
    pub(super) fn faults(&self) -> &[Refusal] {
        match &self.what {
            ObjectContent::Namespace(namespace) => &namespace.faults,
            ObjectContent::Policy(policy) => &policy.faults,
            ObjectContent::MultiPolicy(policy) => &policy.policy.faults,
            ObjectContent::Node(_) | ObjectContent::Pod(_) => &[],
        }
    }

    /// Returns its name.
    pub(super) fn key(&self) -> Key {
        match &self.what {
            ObjectContent::Namespace(namespace) => Key::Namespace(namespace.name.clone()),
            ObjectContent::Node(node) => Key::Node(node.name.clone()),
            ObjectContent::Pod(pod) => Key::Pod(pod.uid.clone()),
            ObjectContent::Policy(policy) => Key::Policy(policy.id.clone()),
            ObjectContent::MultiPolicy(policy) => Key::Policy(policy.policy.id.clone()),
        }
    }
}

/// Reports whether a container of a pod has CAP_NET_ADMIN: it asks for it by name, asks for all
/// capabilities, or is privileged (Kubernetes, core/v1 SecurityContext). Runtimes give it to no
/// container that does not ask for it.
fn may_undo(pod: &Value) -> bool {
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let lists = lists.into_iter().filter_map(|list| pod["spec"][list].as_array());
    lists.flatten().any(|container| {
        let context = &container["securityContext"];
        let added = context["capabilities"]["add"].as_array();
        let is_it = |one: &Value| {
            let name = one.as_str().unwrap_or_default().to_uppercase();
            matches!(name.trim_start_matches("CAP_"), "NET_ADMIN" | "ALL")
        };
        context["privileged"] == true || added.is_some_and(|all| all.iter().any(is_it))
    })
}

impl Object {
    /// Returns the change of the pods' own network that it is, or what it is for further networks.
    pub(super) fn into_change(self) -> Result<Change, Box<MultiPolicy>> {
        Ok(match self.what {
            ObjectContent::Namespace(namespace) => namespace.into(),
            ObjectContent::Node(node) => node.into(),
            ObjectContent::Pod(pod) => (*pod).into(),
            ObjectContent::Policy(policy) => (*policy).into(),
            ObjectContent::MultiPolicy(policy) => return Err(policy),
        })
    }
}
