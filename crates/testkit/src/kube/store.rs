//! The stored objects and their history.
//!
//! Every change has a number, the resource version, which the whole store shares (API concepts,
//! "Resource versions").

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use serde_json::{Value, json};

use super::kinds::{KINDS, Kind};
use super::select::Selector;
use super::status::Refusal;

/// Keys of objects: kind, namespace (empty if it has none), name.
pub(super) type Key = (usize, String, String);

/// How many changes are kept for watches, unless the history is compacted.
const HISTORY: usize = 100_000;

/// A change of an object.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) key: Key,
    pub(super) before: Option<Value>,
    pub(super) after: Option<Value>,
}

/// The part of an object to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Main,
    Status,
}

/// An object as it is stored.
#[derive(Debug)]
pub(super) struct StoredObject {
    pub(super) object: Value,
    /// As lists show it, once one has. Most objects of a long list have not changed since the one
    /// before.
    text: OnceCell<String>,
}

impl StoredObject {
    /// Returns its text as an item of a list, in the version in which it is stored.
    pub(super) fn text(&self, kind: &Kind) -> &str {
        self.text.get_or_init(|| kind.item(self.object.clone()).to_string())
    }
}

/// All objects and their history.
#[derive(Debug)]
pub(super) struct Store {
    version: u64,
    objects: BTreeMap<Key, StoredObject>,
    pub(super) history: VecDeque<Change>,
    /// Changes up to this one are forgotten.
    compacted: u64,
    uids: u64,
}

/// A part of a list.
#[derive(Debug)]
pub(super) struct Page<'s> {
    pub(super) items: Vec<&'s StoredObject>,
    pub(super) version: u64,
    /// Where the next part begins.
    pub(super) more: Option<String>,
}

impl Default for Store {
    fn default() -> Self {
        let mut store = Store {
            version: 1000,
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            compacted: 1000,
            uids: 0,
        };
        for name in ["default", "kube-system"] {
            let namespace = json!({"metadata": {"name": name}});
            let (number, _) = kind("", "v1", "namespaces").unwrap_or((0, &KINDS[0]));
            let _ = store.create(number, "", namespace);
        }
        store
    }
}

/// Returns the kind with this name, and its number, if the kind has this version.
pub(super) fn kind(group: &str, version: &str, plural: &str) -> Option<(usize, &'static Kind)> {
    KINDS
        .iter()
        .enumerate()
        .find(|(_, kind)| kind.group == group && kind.plural == plural)
        .filter(|(_, kind)| kind.version_named(version).is_some())
}

impl Store {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Forgets the history, as the server does every five minutes.
    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
        self.history.clear();
    }

    /// Checks that all changes since `version` are kept; an error if some of them are forgotten.
    pub(super) fn since(&self, version: u64) -> Result<u64, Refusal> {
        if version < self.compacted {
            let text = format!("too old resource version: {version} ({})", self.compacted);
            return Err(Refusal::expired(text));
        }
        Ok(version)
    }

    pub(super) fn get(&self, key: &Key) -> Result<&Value, Refusal> {
        let found = self.objects.get(key).map(|stored| &stored.object);
        found.ok_or_else(|| Refusal::not_found(&KINDS[key.0], &key.2))
    }

    /// Lists a kind's objects after `after`, in the order of namespaces and names.
    pub(super) fn list(
        &self,
        kind: usize,
        namespace: &str,
        selector: &Selector,
        limit: usize,
        after: Option<(String, String)>,
    ) -> Page<'_> {
        let from = match after {
            Some((namespace, name)) => Bound::Excluded((kind, namespace, name)),
            None => Bound::Included((kind, namespace.to_owned(), String::new())),
        };
        let range = self.objects.range((from, Bound::Unbounded));
        let mut matching = range
            .take_while(|(key, _)| key.0 == kind && (namespace.is_empty() || key.1 == namespace))
            .filter(|(_, stored)| selector.matches(&stored.object));
        let (mut items, mut last) = (Vec::new(), None);
        for (key, stored) in matching.by_ref().take(limit) {
            items.push(stored);
            last = Some(key);
        }
        let place = last.map(|key| format!("{}/{}", key.1, key.2));
        let more = matching.next().and(place);
        Page { items, version: self.version, more }
    }

    /// Counts a kind's objects, in a namespace or in all.
    pub(super) fn count(&self, kind: usize, namespace: &str) -> usize {
        let from = (kind, namespace.to_owned(), String::new());
        let is_of = |key: &&Key| key.0 == kind && (namespace.is_empty() || key.1 == namespace);
        self.objects.range(from..).map(|(key, _)| key).take_while(is_of).count()
    }

    pub(super) fn create(
        &mut self,
        number: usize,
        namespace: &str,
        mut object: Value,
    ) -> Result<Value, Refusal> {
        let kind = &KINDS[number];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let meta = &object["metadata"];
        if !text(&meta["resourceVersion"]).is_empty() {
            return Err(Refusal::bad("resourceVersion should not be set on objects to be created"));
        }
        let mut name = text(&meta["name"]);
        if name.is_empty() && !text(&meta["generateName"]).is_empty() {
            name = format!("{}{:05x}", text(&meta["generateName"]), self.version);
        }
        if name.is_empty() {
            return Err(Refusal::invalid(
                kind,
                "",
                "metadata.name",
                "Required value: name or generateName is required",
            ));
        }
        if !is_name(&name) {
            let what = format!(
                "Invalid value: {name:?}: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
            );
            return Err(Refusal::invalid(kind, &name, "metadata.name", &what));
        }
        let said = text(&meta["namespace"]);
        if !said.is_empty() && said != namespace {
            return Err(Refusal::bad(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if kind.namespaced {
            let home = (0, String::new(), namespace.to_owned());
            if !self.objects.contains_key(&home) {
                return Err(Refusal::not_found(&KINDS[0], namespace));
            }
        }
        let key = (number, namespace.to_owned(), name.clone());
        if self.objects.contains_key(&key) {
            return Err(Refusal::exists(kind, &name));
        }
        if kind.namespaced {
            object["metadata"]["namespace"] = json!(namespace);
        }
        self.uids += 1;
        object["metadata"]["name"] = json!(name);
        // A test may set a UID of its own, which a real server does not allow.
        if !object["metadata"]["uid"].is_string() {
            object["metadata"]["uid"] =
                json!(format!("00000000-0000-4000-8000-{:012x}", self.uids));
        }
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        object["metadata"]["generation"] = json!(1);
        object["kind"] = json!(kind.kind);
        object["apiVersion"] = json!(kind.api_version(kind.version));
        Ok(self.put(key, None, object))
    }

    /// Replaces an object by the result of `change`.
    pub(super) fn update(
        &mut self,
        key: &Key,
        part: Part,
        change: impl FnOnce(&Value) -> Result<Value, Refusal>,
    ) -> Result<Value, Refusal> {
        self.update_if(key, part, change, |_, _| Ok(()))
    }

    /// Replaces an object by the result of `change`, if `admit` accepts it.
    pub(super) fn update_if(
        &mut self,
        key: &Key,
        part: Part,
        change: impl FnOnce(&Value) -> Result<Value, Refusal>,
        admit: impl FnOnce(&Value, &Value) -> Result<(), Refusal>,
    ) -> Result<Value, Refusal> {
        let kind = &KINDS[key.0];
        let before = self.get(key)?.clone();
        let mut after = change(&before)?;
        let meta = &after["metadata"];
        if let Some(version) = meta["resourceVersion"].as_str().filter(|text| !text.is_empty())
            && version != before["metadata"]["resourceVersion"]
        {
            return Err(Refusal::modified(kind, &key.2));
        }
        if let Some(uid) = meta["uid"].as_str().filter(|text| !text.is_empty())
            && uid != before["metadata"]["uid"]
        {
            let what = format!("Invalid value: {uid:?}: field is immutable");
            return Err(Refusal::invalid(kind, &key.2, "metadata.uid", &what));
        }
        if meta["name"].as_str().is_some_and(|name| name != key.2) {
            return Err(Refusal::bad("the name of the object does not match the name on the URL"));
        }
        let keep = |after: &mut Value, field: &str| match before.get(field) {
            Some(value) => after[field] = value.clone(),
            None => {
                if let Some(map) = after.as_object_mut() {
                    map.remove(field);
                }
            }
        };
        match part {
            Part::Status => {
                keep(&mut after, "spec");
                // An update of a custom object's status ignores its metadata; pods and nodes accept
                // theirs.
                if kind.custom {
                    keep(&mut after, "metadata");
                }
            }
            Part::Main if kind.status => keep(&mut after, "status"),
            Part::Main => {}
        }
        for field in
            ["name", "namespace", "uid", "creationTimestamp", "resourceVersion", "generation"]
        {
            if let Some(value) = before["metadata"].get(field) {
                after["metadata"][field] = value.clone();
            }
        }
        keep(&mut after, "kind");
        keep(&mut after, "apiVersion");
        if kind.has_generations() && after["spec"] != before["spec"] {
            let generation = before["metadata"]["generation"].as_u64().unwrap_or_default();
            after["metadata"]["generation"] = json!(generation + 1);
        }
        admit(&before, &after)?;
        if after == before {
            return Ok(before);
        }
        Ok(self.put(key.clone(), Some(before), after))
    }

    /// Removes an object, if its UID and its resource version match `preconditions` (API concepts,
    /// "Resource versions").
    pub(super) fn delete(&mut self, key: &Key, preconditions: &Value) -> Result<Value, Refusal> {
        let found = self.get(key)?.clone();
        for field in ["uid", "resourceVersion"] {
            let has = found["metadata"][field].as_str().unwrap_or_default();
            if let Some(wanted) = preconditions[field].as_str()
                && wanted != has
            {
                return Err(Refusal::precondition(&KINDS[key.0], &key.2, field, wanted, has));
            }
        }
        self.objects.remove(key);
        self.version += 1;
        let mut before = found.clone();
        before["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.note(key.clone(), Some(before), None);
        Ok(found)
    }

    fn put(&mut self, key: Key, before: Option<Value>, mut after: Value) -> Value {
        self.version += 1;
        after["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let stored = StoredObject { object: after.clone(), text: OnceCell::new() };
        self.objects.insert(key.clone(), stored);
        self.note(key, before, Some(after.clone()));
        after
    }

    fn note(&mut self, key: Key, before: Option<Value>, after: Option<Value>) {
        self.history.push_back(Change { version: self.version, key, before, after });
        if HISTORY < self.history.len()
            && let Some(change) = self.history.pop_front()
        {
            self.compacted = change.version;
        }
    }

    /// Removes all objects of a kind.
    pub(super) fn delete_all(&mut self, number: usize) {
        let keys: Vec<Key> = self.objects.keys().filter(|key| key.0 == number).cloned().collect();
        for key in keys {
            let _ = self.delete(&key, &Value::Null);
        }
    }

    /// Returns the kinds of the stored objects.
    pub(super) fn kinds(&self) -> BTreeSet<usize> {
        self.objects.keys().map(|key| key.0).collect()
    }
}

/// DNS-1123 subdomains; every name here is one.
fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 253
        && name.chars().all(inner)
        && edge(name.chars().next())
        && edge(name.chars().next_back())
}
