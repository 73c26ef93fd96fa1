//! Records as objects of the Kubernetes API. The only file that knows that API.
//!
//! Each kind of record is a kind of object of ours (`deploy/kubernetes/5-addresses.yaml`), without
//! namespaces: `AddressSpace`, `AddressBlock`, `AddressNode`, `StickyAddress`. An object's `spec`
//! is the record, with its name under `key`, since object names allow less; its resource version is
//! the record's revision. Labels name a block's node and space, so that lists are short.

use std::path::Path;

use cluster_client::api_server::{self, ApiError, Client, ConnectError, unless_gone};
use cluster_client::objects::{Collection, ListQuery, Metadata, NODE, ObjectKind, Page};
use cluster_ipam::store::{Entry, Filter, Key, Kind, Moment, Moments, Revision, Store, StoreError};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;

use super::http::{ANSWER_TIME, CONNECT_TIME, wait};

/// The group of our kinds.
const GROUP: &str = "ipam.netwright.io";
const VERSION: &str = "v1alpha1";
/// The field manager of our writes.
const MANAGER: &str = "netwrightd-ipam";
const NODE_LABEL: &str = "ipam.netwright.io/node";
const SPACE_LABEL: &str = "ipam.netwright.io/space";
/// How many objects one page of a list has.
const PAGE: u32 = 500;

/// The Kubernetes API.
pub(super) struct Objects {
    client: Client,
    handle: Handle,
    /// Lists and writes report how far the server's store is. Resource versions are numbers that
    /// grow with every change (API concepts, "Resource versions").
    moments: Moments,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").finish_non_exhaustive()
    }
}

impl Objects {
    /// Reads the configuration from a file, or finds it as a pod does; sends nothing yet.
    pub(super) async fn new(
        kubeconfig: Option<&Path>,
        handle: Handle,
    ) -> Result<Self, ConnectError> {
        // The client cannot know whether a write may be repeated.
        let client = api_server::client(kubeconfig, CONNECT_TIME, false).await?;
        Ok(Objects { client, handle, moments: Moments::default() })
    }

    /// Records how far the server's store is.
    fn heard(&self, begun: (u64, u64), version: Option<&str>) {
        if let Some(revision) = version.and_then(|version| version.parse().ok()) {
            self.moments.heard(begun, Moment { store: String::new(), revision });
        }
    }

    fn of(&self, kind: Kind) -> Collection {
        Collection::all(&self.client, kind_of(kind), MANAGER)
    }

    fn wait<T>(
        &self,
        question: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, StoreError> {
        wait(&self.handle, ANSWER_TIME, async { question.await.map_err(refusal) })
    }
}

pub(super) fn kind_of(kind: Kind) -> ObjectKind {
    let (kind, plural) = match kind {
        Kind::Space => ("AddressSpace", "addressspaces"),
        Kind::Block => ("AddressBlock", "addressblocks"),
        Kind::Node => ("AddressNode", "addressnodes"),
        Kind::Sticky => ("StickyAddress", "stickyaddresses"),
    };
    ObjectKind { group: GROUP, version: VERSION, kind, plural }
}

/// Returns a name that an object may have (RFC 1123) and that no other record has: readable, with a
/// hash to make it unique.
fn object_name(key: &Key) -> String {
    let mut name = String::new();
    for c in key.name.chars() {
        match c {
            'a'..='z' | '0'..='9' => name.push(c),
            'A'..='Z' => name.push(c.to_ascii_lowercase()),
            _ => name.push('-'),
        }
    }
    name.truncate(200);
    let name = name.trim_matches('-');
    let hash = cni::owner::sha512_hex(&key.name, 10);
    if name.is_empty() { hash } else { format!("{name}-{hash}") }
}

/// Returns the selector of the objects of a space.
pub(super) fn of_space(space: &str) -> String {
    format!("{SPACE_LABEL}={}", label(space))
}

/// Returns a label value for a name of any length.
fn label(text: &str) -> String {
    cni::owner::sha512_hex(text, 32)
}

fn object(key: &Key, was: Option<&Revision>, value: &Value) -> Value {
    let mut spec = value.clone();
    spec["key"] = json!(key.name);
    let labels = [(NODE_LABEL, &value["node"]), (SPACE_LABEL, &value["space"])];
    let labels: Map<String, Value> = labels
        .into_iter()
        .filter_map(|(name, value)| {
            value.as_str().map(|text| (name.to_owned(), label(text).into()))
        })
        .collect();
    let mut metadata = json!({"name": object_name(key), "labels": labels});
    if let Some(was) = was {
        metadata["resourceVersion"] = json!(was.0);
    }
    json!({"metadata": metadata, "spec": spec})
}

pub(super) fn entry(kind: Kind, mut object: Value) -> Option<Entry> {
    let revision = Revision(object["metadata"]["resourceVersion"].as_str()?.to_owned());
    let mut value = object["spec"].take();
    let name = value.as_object_mut()?.remove("key")?.as_str()?.to_owned();
    Some(Entry { key: Key::new(kind, name), revision, value })
}

/// What the server answers to a write.
#[derive(Deserialize)]
struct WrittenObject {
    metadata: Metadata,
}

fn revision(object: WrittenObject) -> Result<Revision, StoreError> {
    let version = object.metadata.resource_version;
    version
        .map(Revision)
        .ok_or_else(|| StoreError::Away("an object without a resource version".to_owned()))
}

fn refusal(error: ApiError) -> StoreError {
    match error {
        ApiError::Gone(_) | ApiError::NoKind(_) | ApiError::Exists(_) | ApiError::Conflict(_) => {
            StoreError::Conflict
        }
        error if error.may_pass() => StoreError::Away(error.into_text()),
        error => StoreError::Refused(error.into_text()),
    }
}

fn reading(error: StoreError) -> StoreError {
    match error {
        StoreError::Conflict => StoreError::Refused(format!(
            "the API server does not know our kinds of {GROUP}: apply deploy/kubernetes/5-addresses.yaml"
        )),
        error => error,
    }
}

/// Lists all objects of kinds that are not ours, each with its kind. A kind that the server does
/// not know has none.
///
/// # Errors
/// [`StoreError`].
pub(super) async fn foreign(
    kubeconfig: Option<&Path>,
    kinds: &[ObjectKind],
) -> Result<Vec<(&'static str, Value)>, StoreError> {
    let server = Objects::new(kubeconfig, Handle::current()).await;
    let server = server.map_err(|error| StoreError::Refused(error.to_string()))?;
    let mut all = Vec::new();
    for &kind in kinds {
        let objects = Collection::all(&server.client, kind, MANAGER);
        match objects.list(ListQuery::pages_of(PAGE)).await {
            Ok(found) => all.extend(found.into_iter().map(|object| (kind.kind, object))),
            Err(error) if error.is_absence() => {}
            Err(error) => return Err(refusal(error)),
        }
    }
    Ok(all)
}

impl Store for Objects {
    fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let (objects, name) = (self.of(key.kind), object_name(key));
        let found = self.wait(async { unless_gone(objects.get(&name).await) }).map_err(reading)?;
        let Some(object): Option<Value> = found else { return Ok(None) };
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        // An object with another name, or without a record, is returned as found, with no owner.
        let found = entry(key.kind, object).filter(|entry| entry.key == *key);
        Ok(Some(found.unwrap_or_else(|| Entry {
            key: key.clone(),
            revision: Revision(version),
            value: Value::Null,
        })))
    }

    fn list(&self, kind: Kind, filter: Filter<'_>) -> Result<Vec<Entry>, StoreError> {
        let objects = self.of(kind);
        let all = ListQuery::pages_of(PAGE);
        let mut query = Some(match filter {
            Filter::All => all,
            Filter::Space(space) => all.labels(&of_space(space)),
            Filter::Node(node) => all.labels(&format!("{NODE_LABEL}={}", label(node))),
        });
        let mut all = Vec::new();
        while let Some(asked) = query {
            let begun = self.moments.begin();
            let page: Page<Value> = self.wait(objects.page(&asked)).map_err(reading)?;
            if asked.is_first() {
                // Later pages are from the same moment as the first.
                self.heard(begun, page.metadata.resource_version.as_deref());
            }
            query = asked.after(&page);
            all.extend(page.items.into_iter().filter_map(|object| entry(kind, object)));
        }
        Ok(all)
    }

    fn create(&self, key: &Key, value: &Value) -> Result<Revision, StoreError> {
        let (objects, object) = (self.of(key.kind), object(key, None, value));
        let begun = self.moments.begin();
        let revision = revision(self.wait(objects.create(object))?)?;
        self.heard(begun, Some(&revision.0));
        Ok(revision)
    }

    /// The API server changes one object at a time, so the other one is read just before.
    fn put_while(
        &self,
        key: &Key,
        was: Option<&Revision>,
        value: &Value,
        (other, revision): (&Key, &Revision),
    ) -> Result<Revision, StoreError> {
        if self.get(other)?.is_none_or(|found| found.revision != *revision) {
            return Err(StoreError::Conflict);
        }
        match was {
            None => self.create(key, value),
            Some(was) => self.update(key, was, value),
        }
    }

    fn update(&self, key: &Key, was: &Revision, value: &Value) -> Result<Revision, StoreError> {
        let (objects, object) = (self.of(key.kind), object(key, Some(was), value));
        let begun = self.moments.begin();
        let revision = revision(self.wait(objects.replace(&object_name(key), object))?)?;
        if revision != *was {
            // A write that changes nothing gets no new version.
            self.heard(begun, Some(&revision.0));
        }
        Ok(revision)
    }

    fn went_back(&self) -> u64 {
        self.moments.went_back()
    }

    fn moment(&self) -> Option<Moment> {
        self.moments.newest()
    }

    fn remember(&self, moment: &Moment) {
        self.moments.remember(moment);
    }

    fn delete(&self, key: &Key, was: &Revision) -> Result<(), StoreError> {
        let objects = self.of(key.kind);
        self.wait(objects.delete(&object_name(key), Some(&was.0)))
    }

    fn is_gone(&self, node: &str) -> Result<bool, StoreError> {
        let nodes = Collection::all(&self.client, NODE, MANAGER);
        let found = self.wait(async { unless_gone(nodes.metadata(node).await) });
        found.map(|found| found.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_names_that_are_allowed_and_their_own() {
        let name = |text: &str| object_name(&Key::new(Kind::Block, text));
        assert!(name("default/10.0.0.64-26").starts_with("default-10-0-0-64-26-"));
        assert!(name("default@2001:db8::-64/2001:db8::-122").starts_with("default-2001-db8---64-"));
        assert_ne!(name("a/b"), name("a.b"));
        assert_eq!(name("::").len(), 10);
        assert!(name(&"x".repeat(500)).len() < 253);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let key = Key::new(Kind::Block, "default/10.0.0.64-26");
        let value = json!({"space": "default", "block": "10.0.0.64/26", "node": "n1", "epoch": 3});
        let mut written = object(&key, Some(&Revision("7".into())), &value);
        assert_eq!(written["metadata"]["labels"].as_object().map(Map::len), Some(2));
        written["metadata"]["resourceVersion"] = "8".into();
        let read = entry(Kind::Block, written).unwrap();
        assert_eq!((read.key, read.revision.0.as_str(), read.value), (key, "8", value));
    }
}
