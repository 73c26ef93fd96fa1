//! Objects of the API server: their kinds, and what is read and written of single ones.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions, Request,
};
use kube::core::DynamicResourceScope;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::api_server::{ApiError, within};

/// A kind of objects, as the path of a request names it (Kubernetes, "API concepts").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectKind {
    /// The API group; that of the core is empty.
    pub group: &'static str,
    /// The group's version.
    pub version: &'static str,
    /// As objects name it.
    pub kind: &'static str,
    /// As paths name it.
    pub plural: &'static str,
}

/// `Pod`.
pub const POD: ObjectKind = core("Pod", "pods");
/// `Node`.
pub const NODE: ObjectKind = core("Node", "nodes");
/// `Namespace`.
pub const NAMESPACE: ObjectKind = core("Namespace", "namespaces");
/// `ConfigMap`.
pub const CONFIG_MAP: ObjectKind = core("ConfigMap", "configmaps");
/// `Event`.
pub const EVENT: ObjectKind = core("Event", "events");

const fn core(kind: &'static str, plural: &'static str) -> ObjectKind {
    ObjectKind { group: "", version: "v1", kind, plural }
}

impl ObjectKind {
    /// Returns what objects have as their `apiVersion`.
    fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// The metadata of an object, as far as services read it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The name.
    #[serde(default)]
    pub name: String,
    /// The namespace; empty if it has none.
    #[serde(default)]
    pub namespace: String,
    /// No other object ever has the same.
    #[serde(default)]
    pub uid: String,
    /// The version of this state of the object.
    pub resource_version: Option<String>,
    /// Labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations.
    pub annotations: Option<BTreeMap<String, String>>,
}

impl From<ObjectMeta> for Metadata {
    fn from(meta: ObjectMeta) -> Self {
        Metadata {
            name: meta.name.unwrap_or_default(),
            namespace: meta.namespace.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default(),
            resource_version: meta.resource_version,
            labels: meta.labels,
            annotations: meta.annotations,
        }
    }
}

/// A page of a list.
#[derive(Debug, Deserialize)]
pub struct Page<T> {
    /// What is said of the list.
    #[serde(default)]
    pub metadata: PageMetadata,
    /// The objects.
    pub items: Vec<T>,
}

/// What is said of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PageMetadata {
    /// The moment of the list: all its pages are of that of the first.
    pub resource_version: Option<String>,
    #[serde(rename = "continue")]
    token: Option<String>,
}

/// Which objects a list has, and how many a page of it.
#[derive(Debug, Clone, Default)]
pub struct ListQuery(ListParams);

impl ListQuery {
    /// All objects, so many in a page.
    #[must_use]
    pub fn pages_of(objects: u32) -> Self {
        ListQuery(ListParams::default().limit(objects))
    }

    /// Only those whose labels match ("Labels and Selectors").
    #[must_use]
    pub fn labels(self, selector: &str) -> Self {
        ListQuery(self.0.labels(selector))
    }

    /// Says whether this asks for the first page.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.0.continue_token.is_none()
    }

    /// Returns what asks for the page after `page`, if there is one.
    #[must_use]
    pub fn after<T>(mut self, page: &Page<T>) -> Option<Self> {
        let token = page.metadata.token.clone().filter(|token| !token.is_empty())?;
        self.0.continue_token = Some(token);
        Some(self)
    }
}

/// The objects of a kind: those of a namespace, or all.
///
/// Every request has an answer within 15 s, or fails with [`ApiError::Away`].
#[derive(Clone)]
pub struct Collection {
    client: Client,
    kind: ObjectKind,
    requests: Request,
    /// The field manager of what is written.
    manager: &'static str,
}

impl Debug for Collection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collection").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Requests are made without I/O: only a name that no object may have is refused.
type Http = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

impl Collection {
    /// All objects of a kind. The server notes that `manager` has written what is written.
    #[must_use]
    pub fn all(client: &Client, kind: ObjectKind, manager: &'static str) -> Self {
        Collection::new(client, kind, None, manager)
    }

    /// The objects of a kind in a namespace.
    #[must_use]
    pub fn of_namespace(
        client: &Client,
        kind: ObjectKind,
        namespace: &str,
        manager: &'static str,
    ) -> Self {
        Collection::new(client, kind, Some(namespace), manager)
    }

    fn new(
        client: &Client,
        kind: ObjectKind,
        namespace: Option<&str>,
        manager: &'static str,
    ) -> Self {
        let requests = Request::new(WatchedObject::<Value>::url_path(&kind, namespace));
        Collection { client: client.clone(), kind, requests, manager }
    }

    async fn send<T: DeserializeOwned>(&self, request: Http) -> Result<T, ApiError> {
        let request = request.map_err(|error| ApiError::Refused(error.to_string()))?;
        within(self.client.request(request)).await
    }

    /// Reads an object.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T, ApiError> {
        self.send(self.requests.get(name, &GetParams::default())).await
    }

    /// Reads an object's metadata; the server sends nothing else.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn metadata(&self, name: &str) -> Result<Metadata, ApiError> {
        let found = self.send(self.requests.get_metadata(name, &GetParams::default())).await;
        found.map(|MetadataOnly { metadata }| metadata)
    }

    /// Reads a page of a list.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn page<T: DeserializeOwned>(&self, query: &ListQuery) -> Result<Page<T>, ApiError> {
        self.send(self.requests.list(&query.0)).await
    }

    /// Reads a list, page by page.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn list<T: DeserializeOwned>(&self, query: ListQuery) -> Result<Vec<T>, ApiError> {
        let mut all = Vec::new();
        let mut next = Some(query);
        while let Some(query) = next {
            let page = self.page(&query).await?;
            next = query.after(&page);
            all.extend(page.items);
        }
        Ok(all)
    }

    /// Asks for the metadata of one object, whichever it is.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(crate) async fn probe(&self) -> Result<(), ApiError> {
        let one = ListParams::default().limit(1);
        let page: Result<Page<MetadataOnly>, _> =
            self.send(self.requests.list_metadata(&one)).await;
        page.map(drop)
    }

    /// Creates an object, and returns what it is then.
    ///
    /// # Errors
    /// [`ApiError::Exists`] if there is one of its name.
    pub async fn create<T: DeserializeOwned>(&self, object: Value) -> Result<T, ApiError> {
        self.send(self.requests.create(&self.post_params(), self.body(object))).await
    }

    /// Puts an object in the place of the one of its name, and returns what it is then.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if the object names a version, and there is another one by now.
    pub async fn replace<T: DeserializeOwned>(
        &self,
        name: &str,
        object: Value,
    ) -> Result<T, ApiError> {
        self.send(self.requests.replace(name, &self.post_params(), self.body(object))).await
    }

    /// Changes an object by a merge patch (RFC 7396).
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn patch(&self, name: &str, patch: &Value) -> Result<(), ApiError> {
        let params = self.patch_params();
        let answer: Result<MetadataOnly, _> =
            self.send(self.requests.patch_metadata(name, &params, &Patch::Merge(patch))).await;
        answer.map(drop)
    }

    /// Changes an object's status, and what a writer of statuses may change beside it, by a merge
    /// patch (RFC 7396).
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn patch_status(&self, name: &str, patch: &Value) -> Result<(), ApiError> {
        self.patch_status_by(name, &Patch::Merge(patch)).await
    }

    /// Changes a status by a patch that merges lists by the key of their entries (Kubernetes,
    /// "Update API Objects in Place", strategic merge patch).
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn merge_status_lists(&self, name: &str, patch: &Value) -> Result<(), ApiError> {
        self.patch_status_by(name, &Patch::Strategic(patch)).await
    }

    async fn patch_status_by(&self, name: &str, patch: &Patch<&Value>) -> Result<(), ApiError> {
        let params = self.patch_params();
        let request = self.requests.patch_subresource("status", name, &params, patch);
        self.send(request).await.map(|MetadataOnly { .. }| ())
    }

    /// Deletes an object; if `version` is given, only in that version.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if it has another version by now.
    pub async fn delete(&self, name: &str, version: Option<&str>) -> Result<(), ApiError> {
        let mut params = DeleteParams::default();
        if let Some(version) = version {
            let resource_version = Some(version.to_owned());
            params = params.preconditions(Preconditions { resource_version, uid: None });
        }
        let answer: Result<Value, _> = self.send(self.requests.delete(name, &params)).await;
        answer.map(drop)
    }

    /// Returns the text of an object, which says of which kind it is.
    fn body(&self, mut object: Value) -> Vec<u8> {
        object["apiVersion"] = self.kind.api_version().into();
        object["kind"] = self.kind.kind.into();
        object.to_string().into_bytes()
    }

    fn post_params(&self) -> PostParams {
        PostParams { field_manager: Some(self.manager.to_owned()), ..PostParams::default() }
    }

    fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.manager.to_owned()), ..PatchParams::default() }
    }
}

#[derive(Deserialize)]
struct MetadataOnly {
    metadata: Metadata,
}

/// What a service keeps of an object that it follows.
pub trait FollowedObject: DeserializeOwned + Clone + Debug + Send + Sync + 'static {
    /// Returns `metadata.resourceVersion`: from there a watch goes on after a pause.
    fn resource_version(&self) -> Option<&str>;
}

impl FollowedObject for Value {
    fn resource_version(&self) -> Option<&str> {
        self["metadata"]["resourceVersion"].as_str()
    }
}

/// An object, as `kube` watches it.
#[derive(Debug, Clone)]
pub(crate) struct WatchedObject<K> {
    meta: ObjectMeta,
    pub(crate) object: K,
}

impl<'de, K: FollowedObject> Deserialize<'de> for WatchedObject<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let object = K::deserialize(from)?;
        let resource_version = object.resource_version().map(str::to_owned);
        Ok(WatchedObject { meta: ObjectMeta { resource_version, ..ObjectMeta::default() }, object })
    }
}

impl<K> Resource for WatchedObject<K> {
    type DynamicType = ObjectKind;
    type Scope = DynamicResourceScope;

    fn kind(of: &ObjectKind) -> Cow<'_, str> {
        of.kind.into()
    }

    fn group(of: &ObjectKind) -> Cow<'_, str> {
        of.group.into()
    }

    fn version(of: &ObjectKind) -> Cow<'_, str> {
        of.version.into()
    }

    fn plural(of: &ObjectKind) -> Cow<'_, str> {
        of.plural.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}
