//! An in-memory store that misbehaves on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::{Entry, Filter, Key, Kind, Moment, Moments, Revision, Store, StoreError};

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is done and answered.
    None,
    /// The request does not arrive.
    Lost,
    /// The operation is done, and the answer does not arrive.
    Unanswered,
    /// The operation is not done now, and the answer says that the outcome is unknown;
    /// [`Memory::land`] does it.
    Late,
}

type FaultDecision = dyn FnMut(&str, &Key) -> Fault + Send;

#[derive(Default)]
struct Inner {
    version: u64,
    records: BTreeMap<Key, (u64, Value)>,
    gone: BTreeSet<String>,
    late: Vec<Write>,
}

struct Write {
    key: Key,
    was: Option<Revision>,
    value: Option<Value>,
    /// Another record, and the revision that it must have.
    only_while: Option<(Key, Revision)>,
}

/// A view of an in-memory store: each node of a test has one, with faults of its own, on the same
/// records.
#[derive(Clone)]
pub struct Memory {
    inner: Arc<Mutex<Inner>>,
    faults: Arc<Mutex<Box<FaultDecision>>>,
    moments: Arc<Moments>,
}

/// A copy of all records of a store.
#[derive(Debug, Clone)]
pub struct Copy {
    version: u64,
    records: BTreeMap<Key, (u64, Value)>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Memory {
            inner: Arc::default(),
            faults: Arc::new(Mutex::new(Box::new(|_: &str, _: &Key| Fault::None))),
            moments: Arc::default(),
        }
    }
}

impl Memory {
    /// Makes another view, without faults.
    #[must_use]
    pub fn view(&self) -> Self {
        Memory { inner: Arc::clone(&self.inner), ..Memory::default() }
    }

    /// Calls this for each request of this view to choose a fault, with the verb (`get`, `list`,
    /// `create`, `update`, `delete`) and the record; a list's key has no name.
    pub fn misbehave(&self, decide: impl FnMut(&str, &Key) -> Fault + Send + 'static) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(decide);
    }

    /// Answers every request again.
    pub fn behave(&self) {
        self.misbehave(|_, _| Fault::None);
    }

    /// Does the delayed operations.
    pub fn land(&self) {
        let late = std::mem::take(&mut self.lock().late);
        for write in late {
            let _ = self.write(&write);
        }
    }

    /// Copies all records.
    #[must_use]
    pub fn copy(&self) -> Copy {
        let inner = self.lock();
        Copy { version: inner.version, records: inner.records.clone() }
    }

    /// Restores a copy: the store is as it was.
    pub fn put_back(&self, copy: Copy) {
        let mut inner = self.lock();
        (inner.version, inner.records) = (copy.version, copy.records);
        inner.late.clear();
    }

    /// Restores a copy as `etcdutl snapshot restore --bump-revision` does: the store's position is
    /// beyond all that it ever had, by this much.
    pub fn put_back_ahead(&self, copy: Copy, by: u64) {
        let ahead = self.lock().version + by;
        self.put_back(copy);
        self.lock().version = ahead;
    }

    /// Sets whether a node is gone.
    pub fn set_gone(&self, node: &str, gone: bool) {
        let mut inner = self.lock();
        if gone {
            inner.gone.insert(node.to_owned());
        } else {
            inner.gone.remove(node);
        }
    }

    /// Returns everything there is.
    #[must_use]
    pub fn records(&self) -> BTreeMap<Key, Value> {
        let inner = self.lock();
        inner.records.iter().map(|(key, (_, value))| (key.clone(), value.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, verb: &str, key: &Key) -> Fault {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)(verb, key)
    }

    fn read<T>(
        &self,
        verb: &str,
        key: &Key,
        read: impl FnOnce(&Inner) -> T,
    ) -> Result<T, StoreError> {
        let begun = self.moments.begin();
        match self.fault(verb, key) {
            Fault::None => {
                let inner = self.lock();
                self.heard(begun, &inner);
                Ok(read(&inner))
            }
            _ => Err(away()),
        }
    }

    fn heard(&self, begun: (u64, u64), inner: &Inner) {
        let moment = Moment { store: String::new(), revision: inner.version };
        self.moments.heard(begun, moment);
    }

    fn change(&self, verb: &str, write: Write) -> Result<Revision, StoreError> {
        let begun = self.moments.begin();
        match self.fault(verb, &write.key) {
            Fault::None => {
                let written = self.write(&write);
                self.heard(begun, &self.lock());
                written
            }
            Fault::Lost => Err(away()),
            Fault::Unanswered => {
                let _ = self.write(&write);
                Err(away())
            }
            Fault::Late => {
                self.lock().late.push(write);
                Err(away())
            }
        }
    }

    fn write(&self, write: &Write) -> Result<Revision, StoreError> {
        let mut inner = self.lock();
        let of = |key: &Key| {
            let found = inner.records.get(key);
            found.map(|(version, _)| Revision(version.to_string()))
        };
        let other_differs =
            write.only_while.as_ref().is_some_and(|(key, is)| of(key).as_ref() != Some(is));
        if of(&write.key) != write.was || other_differs {
            return Err(StoreError::Conflict);
        }
        inner.version += 1;
        let version = inner.version;
        match &write.value {
            Some(value) => inner.records.insert(write.key.clone(), (version, value.clone())),
            None => inner.records.remove(&write.key),
        };
        Ok(Revision(version.to_string()))
    }
}

fn away() -> StoreError {
    StoreError::Away("a fault of the test".to_owned())
}

impl Store for Memory {
    fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.read("get", key, |inner| inner.records.get(key).map(|found| entry(key, found)))
    }

    fn list(&self, kind: Kind, filter: Filter<'_>) -> Result<Vec<Entry>, StoreError> {
        self.read("list", &Key::new(kind, ""), |inner| {
            let all = inner.records.iter().filter(|(key, _)| key.kind == kind);
            let wanted = all.filter(|(_, (_, value))| match filter {
                Filter::All => true,
                Filter::Space(space) => value["space"] == space,
                Filter::Node(node) => value["node"] == node,
            });
            wanted.map(|(key, found)| entry(key, found)).collect()
        })
    }

    fn create(&self, key: &Key, value: &Value) -> Result<Revision, StoreError> {
        let value = Some(value.clone());
        self.change("create", Write { key: key.clone(), was: None, value, only_while: None })
    }

    fn put_while(
        &self,
        key: &Key,
        was: Option<&Revision>,
        value: &Value,
        (other, revision): (&Key, &Revision),
    ) -> Result<Revision, StoreError> {
        let verb = if was.is_some() { "update" } else { "create" };
        let (value, only_while) = (Some(value.clone()), Some((other.clone(), revision.clone())));
        self.change(verb, Write { key: key.clone(), was: was.cloned(), value, only_while })
    }

    fn update(&self, key: &Key, was: &Revision, value: &Value) -> Result<Revision, StoreError> {
        let (was, value) = (Some(was.clone()), Some(value.clone()));
        self.change("update", Write { key: key.clone(), was, value, only_while: None })
    }

    fn delete(&self, key: &Key, was: &Revision) -> Result<(), StoreError> {
        let (key, was) = (key.clone(), Some(was.clone()));
        self.change("delete", Write { key, was, value: None, only_while: None }).map(|_| ())
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

    fn is_gone(&self, node: &str) -> Result<bool, StoreError> {
        self.read("get", &Key::new(Kind::Node, node), |inner| inner.gone.contains(node))
    }
}

fn entry(key: &Key, (version, value): &(u64, Value)) -> Entry {
    Entry { key: key.clone(), revision: Revision(version.to_string()), value: value.clone() }
}
