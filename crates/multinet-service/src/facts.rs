//! What the daemon keeps of the API's objects: little, since a node has hundreds of pods and a
//! cluster thousands of definitions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The annotations of a pod that are read here; others are not kept.
pub(super) const READ: [&str; 6] = [
    NETWORKS,
    DEFAULT_NETWORK,
    // The proposal of 2017.
    "kubernetes.v1.cni.cncf.io/networks",
    "networks",
    STATIC_POD,
    MIRROR_POD,
];

/// The networks that a pod is to have.
pub(super) const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// The default network that a pod is to have instead of the node's.
pub(super) const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";
/// The kubelet's mark on pods that it did not get from the API.
const STATIC_POD: &str = "kubernetes.io/config.source";
/// The kubelet's mark on the API's image of a static pod; the image has another UID.
const MIRROR_POD: &str = "kubernetes.io/config.mirror";
/// A definition's annotation with the resource of its devices.
pub(super) const RESOURCE_NAME: &str = "k8s.v1.cni.cncf.io/resourceName";

/// What is kept of an object, by namespace and name.
pub(super) trait Fact:
    Serialize + for<'de> Deserialize<'de> + Clone + PartialEq + Send + Sync + 'static
{
    /// Returns its name: `namespace/name`.
    fn id(&self) -> String;
}

/// What is kept of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PodFacts {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// Those annotations of [`READ`] that it has.
    pub(super) annotations: BTreeMap<String, String>,
}

/// What is kept of a NetworkAttachmentDefinition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DefinitionFacts {
    pub(super) namespace: String,
    pub(super) name: String,
    /// `spec.config`; empty if there is none.
    pub(super) config: String,
    /// The annotation [`RESOURCE_NAME`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) resource: Option<String>,
}

impl PodFacts {
    /// Keeps those of a pod's annotations that are read here.
    pub(super) fn new(
        namespace: String,
        name: String,
        uid: String,
        annotations: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let read = annotations.into_iter().filter(|(key, _)| READ.contains(&key.as_str()));
        PodFacts { namespace, name, uid, annotations: read.collect() }
    }

    /// Says whether the kubelet made it without the API, which knows it by another UID.
    pub(super) fn is_static(&self) -> bool {
        [STATIC_POD, MIRROR_POD].iter().any(|key| {
            // Pods of the API have the first annotation as well, with this value.
            self.annotations.get(*key).is_some_and(|value| value != "api")
        })
    }
}

impl Fact for PodFacts {
    fn id(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Fact for DefinitionFacts {
    fn id(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_read_is_kept() {
        let given = [(NETWORKS, "a"), ("kubectl.kubernetes.io/last-applied-configuration", "{…}")];
        let given = given.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let pod = PodFacts::new("ns".to_owned(), "p".to_owned(), "7".to_owned(), given);
        assert_eq!(pod.annotations.len(), 1);
        assert_eq!(pod.id(), "ns/p");
        assert!(!pod.is_static());
    }

    #[test]
    fn static_pods_are_told_by_the_kubelets_marks() {
        let pod = |key: &str, value: &str| {
            let marks = [(key.to_owned(), value.to_owned())];
            PodFacts::new(String::new(), String::new(), String::new(), marks).is_static()
        };
        assert!(pod(STATIC_POD, "file") && pod(MIRROR_POD, "hash"));
        assert!(!pod(STATIC_POD, "api") && !pod(NETWORKS, "a"));
    }
}
