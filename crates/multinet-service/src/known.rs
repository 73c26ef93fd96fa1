//! What the daemon knows of the API's objects: in memory, and on the disk for times without the API
//! server.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use state::{Durability, FileError};

use super::api::ObjectEvent;
use super::facts::Fact;

/// How many objects of a kind are kept: for more, the API server is asked each time. A definition
/// has some kilobytes at most.
const MOST: usize = 4096;
/// The longest object that is kept: for longer ones, the API server is asked each time.
const LONGEST: usize = 64 << 10;

/// All objects of a kind.
#[derive(Debug)]
pub(super) struct ObjectCache<T> {
    folder: PathBuf,
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    objects: HashMap<String, T>,
    /// The objects that the current list has named so far.
    listed: Option<BTreeSet<String>>,
    /// The API server has listed all objects since this process started.
    complete: bool,
    /// Why the watch is broken.
    lost: Option<String>,
}

/// How current the known objects are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Freshness {
    /// The API server reports every change.
    Live,
    /// The watch is broken, for this reason; what is known is from before.
    Lost(String),
    /// The watch has reported nothing yet; what is known is from an earlier daemon.
    Old,
}

impl<T: Fact> ObjectCache<T> {
    /// Reads what an earlier daemon knew.
    pub(super) fn open(folder: PathBuf) -> Result<Self, FileError> {
        state::create_directory(&folder, 0o700)?;
        state::remove_abandoned(&folder);
        let mut objects = HashMap::new();
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            // A garbled file counts as missing: the API server has the object.
            let text = state::read_optional(&entry.path()).ok().flatten();
            if let Some(object) = text.and_then(|text| serde_json::from_slice::<T>(&text).ok())
                && objects.len() < MOST
            {
                objects.insert(object.id(), object);
            }
        }
        let inner = Inner { objects, listed: None, complete: false, lost: None };
        Ok(ObjectCache { folder, inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: &str) -> Option<T> {
        self.lock().objects.get(id).cloned()
    }

    pub(super) fn all(&self) -> Vec<T> {
        self.lock().objects.values().cloned().collect()
    }

    /// Says whether anything is known: the API server has listed its objects, to this daemon or to
    /// an earlier one.
    pub(super) fn is_usable(&self) -> bool {
        let inner = self.lock();
        inner.complete || !inner.objects.is_empty()
    }

    pub(super) fn freshness(&self) -> Freshness {
        let inner = self.lock();
        match (&inner.lost, inner.complete) {
            (Some(reason), _) => Freshness::Lost(reason.clone()),
            (None, true) => Freshness::Live,
            (None, false) => Freshness::Old,
        }
    }

    /// Applies what a watch reports; returns the names of what changed.
    ///
    /// Blocks while files are written.
    pub(super) fn take(&self, event: ObjectEvent<T>) -> Vec<String> {
        match event {
            ObjectEvent::Begin => self.lock().listed = Some(BTreeSet::new()),
            ObjectEvent::Listed(object) => {
                let id = object.id();
                if let Some(listed) = &mut self.lock().listed {
                    listed.insert(id.clone());
                }
                return self.put(object, id);
            }
            ObjectEvent::Changed(object) => {
                let id = object.id();
                self.lock().lost = None;
                return self.put(object, id);
            }
            ObjectEvent::Deleted(object) => return self.forget(vec![object.id()]),
            ObjectEvent::Complete => {
                let gone = {
                    let mut inner = self.lock();
                    (inner.complete, inner.lost) = (true, None);
                    let listed = inner.listed.take().unwrap_or_default();
                    let ids = inner.objects.keys();
                    ids.filter(|id| !listed.contains(*id)).cloned().collect()
                };
                return self.forget(gone);
            }
            ObjectEvent::Silent(error) => self.lock().lost = Some(error.to_string()),
            ObjectEvent::Answers => self.lock().lost = None,
        }
        Vec::new()
    }

    fn put(&self, object: T, id: String) -> Vec<String> {
        let path = self.path(&id);
        let text = serde_json::to_vec(&object).unwrap_or_default();
        {
            let mut inner = self.lock();
            if inner.objects.get(&id) == Some(&object) {
                return Vec::new();
            }
            let full = MOST <= inner.objects.len() && !inner.objects.contains_key(&id);
            if full || LONGEST < text.len() {
                inner.objects.remove(&id);
                drop(inner);
                let _ = state::remove_file(&path);
                return vec![id];
            }
            inner.objects.insert(id.clone(), object);
        }
        // The memory has it: without the file only the next daemon does not know it.
        if let Err(error) = state::write_atomic(&path, &text, 0o600, Durability::Synced) {
            tracing::warn!(%error, "cannot keep an object on disk");
        }
        vec![id]
    }

    fn forget(&self, ids: Vec<String>) -> Vec<String> {
        for id in &ids {
            self.lock().objects.remove(id);
            if let Err(error) = state::remove_file(&self.path(id)) {
                tracing::warn!(%error, "cannot remove the file of an object that is gone");
            }
        }
        ids
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{}.json", state::file_name_of(id)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::api::ApiError;
    use super::super::facts::DefinitionFacts;
    use super::*;

    fn definition(name: &str, config: &str) -> DefinitionFacts {
        let (namespace, name, config) = ("ns".to_owned(), name.to_owned(), config.to_owned());
        DefinitionFacts { namespace, name, config, resource: None }
    }

    #[test]
    fn what_was_known_is_known_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let known = ObjectCache::open(dir.path().join("d")).unwrap();
        assert!(!known.is_usable());
        assert_eq!(known.freshness(), Freshness::Old);
        known.take(ObjectEvent::Begin);
        assert_eq!(known.take(ObjectEvent::Listed(definition("a", "1"))), ["ns/a"]);
        known.take(ObjectEvent::Listed(definition("b", "1")));
        known.take(ObjectEvent::Complete);
        assert_eq!(known.freshness(), Freshness::Live);
        known.take(ObjectEvent::Silent(ApiError::Away("gone".to_owned())));
        assert!(matches!(known.freshness(), Freshness::Lost(_)));
        known.take(ObjectEvent::Answers);
        assert_eq!(known.freshness(), Freshness::Live);
        let next = ObjectCache::<DefinitionFacts>::open(dir.path().join("d")).unwrap();
        assert!(next.is_usable());
        assert_eq!(next.get("ns/a"), Some(definition("a", "1")));
        // What the next list does not name is gone.
        next.take(ObjectEvent::Begin);
        assert_eq!(next.take(ObjectEvent::Listed(definition("a", "1"))), Vec::<String>::new());
        assert_eq!(next.take(ObjectEvent::Complete), ["ns/b"]);
        assert_eq!(
            ObjectCache::<DefinitionFacts>::open(dir.path().join("d")).unwrap().all().len(),
            1
        );
    }

    #[test]
    fn memory_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let known = ObjectCache::open(dir.path().join("d")).unwrap();
        known.take(ObjectEvent::Changed(definition("a", "1")));
        known.take(ObjectEvent::Changed(definition("a", &"x".repeat(LONGEST))));
        assert_eq!(known.get("ns/a"), None, "the API server is asked instead");
    }

    #[test]
    fn garbage_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("d");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("ns%2Fa.json"), b"\0garbage").unwrap();
        assert!(!ObjectCache::<DefinitionFacts>::open(folder).unwrap().is_usable());
    }
}
