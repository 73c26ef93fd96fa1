//! The kinds that are served.

use serde_json::{Value, json};

/// A kind of object, as discovery would describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// The API's group; empty for the core's.
    pub group: &'static str,
    /// The version in which its objects are stored, and which is served from the start.
    pub version: &'static str,
    /// A later version with the same fields, which is served if a test wants it
    /// ([`KubeApi::serve`](super::KubeApi::serve)).
    pub later: Option<&'static str>,
    /// The name in addresses.
    pub plural: &'static str,
    /// The name in objects.
    pub kind: &'static str,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// Whether there is a sub-resource `status`.
    pub status: bool,
    /// Whether a definition created it. The server treats built-in kinds differently in places.
    pub custom: bool,
}

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
pub(super) const NETWORKING: &str = "networking.k8s.io";
pub(super) const POLICY: &str = "policy.networking.k8s.io";

/// The kinds served from the start.
pub(super) const KINDS: [Kind; 28] = [
    built_in("", "v1", "namespaces", "Namespace", false, true),
    built_in("", "v1", "pods", "Pod", true, true),
    built_in("", "v1", "nodes", "Node", false, true),
    built_in("", "v1", "events", "Event", true, false),
    built_in("", "v1", "configmaps", "ConfigMap", true, false),
    built_in("", "v1", "serviceaccounts", "ServiceAccount", true, false),
    built_in("apps", "v1", "daemonsets", "DaemonSet", true, true),
    built_in(RBAC, "v1", "roles", "Role", true, false),
    built_in(RBAC, "v1", "rolebindings", "RoleBinding", true, false),
    built_in(RBAC, "v1", "clusterroles", "ClusterRole", false, false),
    built_in(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", false, false),
    built_in(
        ADMISSION,
        "v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        false,
        true,
    ),
    built_in(
        ADMISSION,
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        false,
        false,
    ),
    built_in(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        false,
        true,
    ),
    built_in("events.k8s.io", "v1", "events", "Event", true, false),
    built_in("coordination.k8s.io", "v1", "leases", "Lease", true, false),
    built_in(NETWORKING, "v1", "networkpolicies", "NetworkPolicy", true, false),
    custom(
        "k8s.cni.cncf.io",
        "v1",
        "network-attachment-definitions",
        "NetworkAttachmentDefinition",
    ),
    custom("k8s.cni.cncf.io", "v1alpha1", "ipamclaims", "IPAMClaim"),
    Kind {
        later: Some("v1beta2"),
        ..custom("k8s.cni.cncf.io", "v1beta1", "multi-networkpolicies", "MultiNetworkPolicy")
    },
    custom("whereabouts.cni.cncf.io", "v1alpha1", "ippools", "IPPool"),
    custom(
        "whereabouts.cni.cncf.io",
        "v1alpha1",
        "overlappingrangeipreservations",
        "OverlappingRangeIPReservation",
    ),
    custom("whereabouts.cni.cncf.io", "v1alpha1", "nodeslicepools", "NodeSlicePool"),
    wide("ipam.netwright.io", "v1alpha1", "addressspaces", "AddressSpace"),
    wide("ipam.netwright.io", "v1alpha1", "addressblocks", "AddressBlock"),
    wide("ipam.netwright.io", "v1alpha1", "addressnodes", "AddressNode"),
    wide("ipam.netwright.io", "v1alpha1", "stickyaddresses", "StickyAddress"),
    Kind {
        later: Some("v1beta1"),
        status: true,
        ..wide(POLICY, "v1alpha2", "clusternetworkpolicies", "ClusterNetworkPolicy")
    },
];

const fn built_in(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
    namespaced: bool,
    status: bool,
) -> Kind {
    Kind { group, version, later: None, plural, kind, namespaced, status, custom: false }
}

const fn custom(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
) -> Kind {
    Kind { custom: true, ..built_in(group, version, plural, kind, true, false) }
}

/// A custom kind without namespaces.
const fn wide(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
) -> Kind {
    Kind { namespaced: false, ..custom(group, version, plural, kind) }
}

impl Kind {
    /// Returns its version of this name, if it has one.
    pub(super) fn version_named(&self, name: &str) -> Option<&'static str> {
        [Some(self.version), self.later].into_iter().flatten().find(|version| *version == name)
    }

    /// `group/version`, or the version alone.
    pub(super) fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() { version.to_owned() } else { format!("{}/{version}", self.group) }
    }

    /// Returns an object that was stored as a version has it.
    pub(super) fn in_version(&self, version: &str, mut object: Value) -> Value {
        if version != self.version {
            object["apiVersion"] = json!(self.api_version(version));
        }
        object
    }

    /// Whether a change of `spec` increases `metadata.generation`.
    pub(super) fn has_generations(&self) -> bool {
        [NETWORKING, POLICY].contains(&self.group)
    }

    /// `plural.group`, as in messages.
    pub(super) fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Returns an object as an item of a list: a built-in list's items do not contain their kind.
    pub(super) fn item(&self, mut object: Value) -> Value {
        if !self.custom
            && let Some(map) = object.as_object_mut()
        {
            map.remove("kind");
            map.remove("apiVersion");
        }
        object
    }

    /// Returns only the object's metadata (API concepts, "Metadata only").
    pub(super) fn metadata_only(object: &Value) -> Value {
        json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": object["metadata"],
        })
    }

    /// Whether a field selector may name a field: `metadata.name` and `metadata.namespace` always,
    /// others depending on the kind.
    pub(super) fn selects(&self, field: &str) -> bool {
        matches!(field, "metadata.name" | "metadata.namespace")
            || match (self.group, self.plural) {
                ("", "pods") => matches!(
                    field,
                    "spec.nodeName" | "status.phase" | "spec.restartPolicy" | "status.podIP"
                ),
                ("", "nodes") => field == "spec.unschedulable",
                ("", "events") => {
                    matches!(
                        field,
                        "involvedObject.name" | "involvedObject.uid" | "reason" | "type"
                    )
                }
                ("events.k8s.io", _) => matches!(field, "reason" | "type"),
                _ => false,
            }
    }
}
