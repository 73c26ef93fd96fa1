//! The API server: what multi-network asks it, and writes.
//!
//! Pods are listed and watched without their specifications (API concepts, "Metadata only"): a
//! tenth of the traffic, and of the memory while they are read.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

pub(super) use cluster_client::api_server::ApiError;
use cluster_client::api_server::{self, CONNECT_TIME, Client, ConnectError};
use cluster_client::follow::Follow;
pub(super) use cluster_client::follow::{ObjectEvent, Objects};
use cluster_client::objects::{Collection, EVENT, Metadata, NODE, ObjectKind, POD};
use serde::Deserialize;
use serde_json::{Value, json};

pub(super) use super::facts::{DefinitionFacts, PodFacts, RESOURCE_NAME};

/// Our name: the field manager of patches, and the component of events.
pub(super) const MANAGER: &str = "netwrightd-multinet";

const DEFINITION: ObjectKind = ObjectKind {
    group: "k8s.cni.cncf.io",
    version: "v1",
    kind: "NetworkAttachmentDefinition",
    plural: "network-attachment-definitions",
};

/// The API server.
#[derive(Clone)]
pub(super) struct Api {
    /// For single objects. While the server is busy, this client asks again until the timeout of
    /// the request: if an ADD that waits for its answer failed instead, the runtime would begin the
    /// pod anew.
    client: Client,
    /// For what is watched. It soon reports that the server is busy.
    watching: Client,
}

impl Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

impl Api {
    /// Reads the configuration from a file, or finds it as a pod does; sends nothing yet.
    pub(super) async fn new(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        let client = api_server::client(kubeconfig, CONNECT_TIME, true).await?;
        let watching = api_server::watching_client(kubeconfig, CONNECT_TIME).await?;
        Ok(Api { client, watching })
    }

    /// Follows the pods of a node.
    pub(super) fn follow_pods(&self, node: &str) -> Objects<PodFacts> {
        let pods = Follow::new(&self.watching, POD).fields(&format!("spec.nodeName={node}"));
        pods.begin_metadata(pod_facts)
    }

    /// Follows all definitions.
    pub(super) fn follow_definitions(&self) -> Objects<DefinitionFacts> {
        Follow::new(&self.watching, DEFINITION)
            .begin(|definition: Value| definition_facts(&definition))
    }

    /// Reads a pod.
    pub(super) async fn pod(&self, namespace: &str, name: &str) -> Result<PodFacts, ApiError> {
        self.of_namespace(POD, namespace).metadata(name).await.map(pod_facts)
    }

    /// Reads the names of a pod's containers, in the order in which the kubelet lists their
    /// devices: those that start before the others and stay, the others, those that end first.
    /// [`ApiError::Gone`] if it is another pod by now.
    pub(super) async fn containers(&self, pod: &PodFacts) -> Result<Vec<String>, ApiError> {
        let found: Pod = self.of_namespace(POD, &pod.namespace).get(&pod.name).await?;
        if found.metadata.uid != pod.uid {
            return Err(ApiError::Gone(pod.name.clone()));
        }
        let (stay, end): (Vec<_>, Vec<_>) = found
            .spec
            .init_containers
            .unwrap_or_default()
            .into_iter()
            .partition(|one| one.restart_policy.as_deref() == Some("Always"));
        let all = stay.into_iter().chain(found.spec.containers).chain(end);
        Ok(all.map(|container| container.name).collect())
    }

    /// Reads a definition.
    pub(super) async fn definition(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<DefinitionFacts, ApiError> {
        let found: Value = self.of_namespace(DEFINITION, namespace).get(name).await?;
        Ok(definition_facts(&found))
    }

    /// Sets annotations of a pod, if it is still the one with that UID.
    ///
    /// It writes through the pod's status, which needs no right to change pods. The patch names the
    /// UID: the server refuses it for another pod of the same name. The patch names no resource
    /// version, so that it cannot conflict with other writers of other annotations.
    pub(super) async fn annotate(
        &self,
        pod: &PodFacts,
        annotations: &BTreeMap<String, String>,
    ) -> Result<(), ApiError> {
        let patch = json!({"metadata": {"uid": pod.uid, "annotations": annotations}});
        match self.of_namespace(POD, &pod.namespace).patch_status(&pod.name, &patch).await {
            Err(ApiError::Refused(what)) if what.contains("metadata.uid") => {
                Err(ApiError::Gone(what))
            }
            other => other,
        }
    }

    /// Creates an Event, or changes the Event of that name if `patch` says how and it still exists.
    pub(super) async fn tell(
        &self,
        namespace: &str,
        name: &str,
        event: &Value,
        patch: Option<&Value>,
    ) -> Result<(), ApiError> {
        let events = self.of_namespace(EVENT, namespace);
        if let Some(patch) = patch {
            match events.patch(name, patch).await {
                Err(ApiError::Gone(_)) => {}
                other => return other,
            }
        }
        events.create::<Value>(event.clone()).await.map(drop)
    }

    /// Returns a node's labels.
    pub(super) async fn labels(&self, node: &str) -> Result<BTreeMap<String, String>, ApiError> {
        Ok(self.nodes().metadata(node).await?.labels.unwrap_or_default())
    }

    /// Sets labels of a node, and removes those that are `None`.
    pub(super) async fn label(
        &self,
        node: &str,
        labels: &BTreeMap<String, Option<String>>,
    ) -> Result<(), ApiError> {
        self.nodes().patch(node, &json!({"metadata": {"labels": labels}})).await
    }

    fn of_namespace(&self, kind: ObjectKind, namespace: &str) -> Collection {
        Collection::of_namespace(&self.client, kind, namespace, MANAGER)
    }

    fn nodes(&self) -> Collection {
        Collection::all(&self.client, NODE, MANAGER)
    }
}

/// A pod, as far as its containers' names need it.
#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: PodSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    init_containers: Option<Vec<Container>>,
    #[serde(default)]
    containers: Vec<Container>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    restart_policy: Option<String>,
}

fn pod_facts(pod: Metadata) -> PodFacts {
    PodFacts::new(pod.namespace, pod.name, pod.uid, pod.annotations.unwrap_or_default())
}

fn definition_facts(object: &Value) -> DefinitionFacts {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let metadata = &object["metadata"];
    DefinitionFacts {
        namespace: text(&metadata["namespace"]).unwrap_or_default(),
        name: text(&metadata["name"]).unwrap_or_default(),
        config: text(&object["spec"]["config"]).unwrap_or_default(),
        resource: text(&metadata["annotations"][RESOURCE_NAME]),
    }
}
