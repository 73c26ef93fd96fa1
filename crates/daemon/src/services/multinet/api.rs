//! The API server. The only file that knows which crate talks to it.
//!
//! Pods are listed and watched without their specifications (API concepts, "Metadata only"): a
//! tenth of the traffic, and of the memory while they are read.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

pub(super) use cluster_client::api_server::ApiError;
use cluster_client::api_server::{self, CONNECT_TIME, ConnectError, patch_params, within};
use cluster_client::follow::Follow;
pub(super) use cluster_client::follow::{ObjectEvent, Objects};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Api as Collection, ApiResource, DynamicObject, GroupVersionKind};
use kube::api::{PartialObjectMeta, Patch, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

pub(super) use super::facts::{DefinitionFacts, PodFacts, RESOURCE_NAME};

/// Our name: the field manager of patches, and the component of events.
pub(super) const MANAGER: &str = "netwrightd-multinet";

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
        let pods: Collection<PartialObjectMeta<Pod>> = Collection::all(self.watching.clone());
        Follow::new(pods).fields(&format!("spec.nodeName={node}")).begin(pod_facts)
    }

    /// Follows all definitions.
    pub(super) fn follow_definitions(&self) -> Objects<DefinitionFacts> {
        let all = Collection::all_with(self.watching.clone(), &definition_kind());
        Follow::new(all).begin(definition_facts)
    }

    /// Reads a pod.
    pub(super) async fn pod(&self, namespace: &str, name: &str) -> Result<PodFacts, ApiError> {
        let pods: Collection<Pod> = Collection::namespaced(self.client.clone(), namespace);
        within(pods.get_metadata(name)).await.map(pod_facts)
    }

    /// Reads the names of a pod's containers, in the order in which the kubelet lists their
    /// devices: those that start before the others and stay, the others, those that end first.
    /// [`ApiError::Gone`] if it is another pod by now.
    pub(super) async fn containers(&self, pod: &PodFacts) -> Result<Vec<String>, ApiError> {
        let pods: Collection<Pod> = Collection::namespaced(self.client.clone(), &pod.namespace);
        let found = within(pods.get(&pod.name)).await?;
        if found.metadata.uid.as_deref() != Some(&pod.uid) {
            return Err(ApiError::Gone(pod.name.clone()));
        }
        let spec = found.spec.unwrap_or_default();
        let (stay, end): (Vec<_>, Vec<_>) = spec
            .init_containers
            .unwrap_or_default()
            .into_iter()
            .partition(|one| one.restart_policy.as_deref() == Some("Always"));
        let all = stay.into_iter().chain(spec.containers).chain(end);
        Ok(all.map(|container| container.name).collect())
    }

    /// Reads a definition.
    pub(super) async fn definition(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<DefinitionFacts, ApiError> {
        let kind = definition_kind();
        let all: Collection<DynamicObject> =
            Collection::namespaced_with(self.client.clone(), namespace, &kind);
        within(all.get(name)).await.map(definition_facts)
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
        let pods: Collection<Pod> = Collection::namespaced(self.client.clone(), &pod.namespace);
        let patch = json!({"metadata": {"uid": pod.uid, "annotations": annotations}});
        let (params, patch) = (patch_params(MANAGER), Patch::Merge(&patch));
        match within(pods.patch_status(&pod.name, &params, &patch)).await {
            Err(ApiError::Refused(what)) if what.contains("metadata.uid") => {
                Err(ApiError::Gone(what))
            }
            other => other.map(|_| ()),
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
        let events: Collection<Event> = Collection::namespaced(self.client.clone(), namespace);
        if let Some(patch) = patch {
            match within(events.patch(name, &patch_params(MANAGER), &Patch::Merge(patch))).await {
                Err(ApiError::Gone(_)) => {}
                other => return other.map(|_| ()),
            }
        }
        let event: Event = serde_json::from_value(event.clone())
            .map_err(|error| ApiError::Refused(error.to_string()))?;
        within(events.create(&PostParams::default(), &event)).await.map(|_| ())
    }

    /// Returns a node's labels.
    pub(super) async fn labels(&self, node: &str) -> Result<BTreeMap<String, String>, ApiError> {
        let nodes: Collection<Node> = Collection::all(self.client.clone());
        let node = within(nodes.get_metadata(node)).await?;
        Ok(node.metadata.labels.unwrap_or_default())
    }

    /// Sets labels of a node, and removes those that are `None`.
    pub(super) async fn label(
        &self,
        node: &str,
        labels: &BTreeMap<String, Option<String>>,
    ) -> Result<(), ApiError> {
        let nodes: Collection<Node> = Collection::all(self.client.clone());
        let patch = json!({"metadata": {"labels": labels}});
        within(nodes.patch_metadata(node, &patch_params(MANAGER), &Patch::Merge(&patch)))
            .await
            .map(|_| ())
    }
}

fn definition_kind() -> ApiResource {
    let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions")
}

fn pod_facts(pod: PartialObjectMeta<Pod>) -> PodFacts {
    let meta = pod.metadata;
    PodFacts::new(
        meta.namespace.unwrap_or_default(),
        meta.name.unwrap_or_default(),
        meta.uid.unwrap_or_default(),
        meta.annotations.unwrap_or_default(),
    )
}

fn definition_facts(object: DynamicObject) -> DefinitionFacts {
    let config = object.data["spec"]["config"].as_str().unwrap_or_default().to_owned();
    let annotations = object.metadata.annotations.as_ref();
    let resource = annotations.and_then(|all| all.get(RESOURCE_NAME)).cloned();
    DefinitionFacts {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        config,
        resource,
    }
}
