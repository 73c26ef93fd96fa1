//! What is to be written to the API server; it stays on the disk until it is written.
//!
//! A pod's status is one item, which a newer one replaces. Each Event is one item, and the oldest
//! are dropped when there are too many. Several items are written at once; while the server is away
//! all wait.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use state::{Durability, FileError};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::api::{Api, ApiError};
use super::facts::PodFacts;

/// How many items are written at once.
const AT_ONCE: usize = 16;
/// How many Events may wait: they are for people, who do not read thousands.
const MOST_EVENTS: usize = 1000;
/// Pauses while the server is away.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Something to write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Item {
    /// Annotations of a pod, with the status of this sandbox.
    Status { pod: PodFacts, sandbox: String, annotations: BTreeMap<String, String> },
    /// An Event of this name, and how to change it if it exists.
    Event { namespace: String, name: String, event: Value, patch: Option<Value> },
}

impl Item {
    /// Returns its name; statuses sort first.
    fn key(&self) -> String {
        match self {
            Item::Status { pod, .. } => format!("1:{}", pod.uid),
            Item::Event { namespace, name, .. } => format!("2:{namespace}:{name}"),
        }
    }
}

/// The waiting items.
#[derive(Debug)]
pub(super) struct Outbox {
    folder: PathBuf,
    inner: Mutex<Inner>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: BTreeMap<String, Item>,
    /// The keys of items that are being written.
    busy: BTreeSet<String>,
    /// The server is away: nothing is written before this moment.
    until: Option<(Instant, Duration)>,
}

impl Outbox {
    /// Opens the folder, and reads what an earlier daemon could not write.
    pub(super) fn open(folder: PathBuf) -> Result<Self, FileError> {
        state::create_directory(&folder, 0o700)?;
        state::remove_abandoned(&folder);
        let mut inner = Inner::default();
        let failed = |source| FileError::List { path: folder.clone(), source };
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let text = state::read_optional(&entry.map_err(failed)?.path()).ok().flatten();
            if let Some(item) = text.and_then(|text| serde_json::from_slice::<Item>(&text).ok()) {
                inner.waiting.insert(item.key(), item);
            }
        }
        Ok(Outbox { folder, inner: Mutex::new(inner), news: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(state::file_name_of(key))
    }

    /// Records an item to be written.
    pub(super) fn put(&self, item: Item) -> Result<(), FileError> {
        let key = item.key();
        let text = serde_json::to_vec(&item).unwrap_or_default();
        state::write_atomic(&self.path(&key), &text, 0o600, Durability::Volatile)?;
        let mut inner = self.lock();
        inner.waiting.insert(key, item);
        let events = inner.waiting.range("2:".to_owned()..);
        if MOST_EVENTS < events.clone().count()
            && let Some(oldest) = events.map(|(key, _)| key.clone()).next()
        {
            inner.waiting.remove(&oldest);
            let _ = state::remove_file(&self.path(&oldest));
        }
        drop(inner);
        self.news.notify_one();
        Ok(())
    }

    /// Drops statuses of this sandbox: it is gone.
    pub(super) fn forget(&self, sandbox_gone: &str) {
        let mut inner = self.lock();
        let told =
            |item: &Item| matches!(item, Item::Status { sandbox, .. } if sandbox == sandbox_gone);
        let gone = inner.waiting.iter().filter(|(_, item)| told(item));
        let keys: Vec<_> = gone.map(|(key, _)| key.clone()).collect();
        for key in keys {
            inner.waiting.remove(&key);
            let _ = state::remove_file(&self.path(&key));
        }
    }

    /// Returns the next item that is not being written, or how long to wait for one.
    fn next(&self) -> Result<(String, Item), Option<Duration>> {
        let mut inner = self.lock();
        if let Some((until, _)) = inner.until {
            let left = until.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                return Err(Some(left));
            }
            // Only one at a time tries whether the server is back.
            if !inner.busy.is_empty() {
                return Err(None);
            }
        }
        let found = inner.waiting.iter().find(|(key, _)| !inner.busy.contains(*key));
        let (key, item) = found.map(|(key, item)| (key.clone(), item.clone())).ok_or(None)?;
        inner.busy.insert(key.clone());
        Ok((key, item))
    }

    /// Records the result of writing an item.
    fn done(&self, key: &str, item: &Item, outcome: Result<(), ApiError>) {
        let mut inner = self.lock();
        inner.busy.remove(key);
        match outcome {
            Err(error) if error.may_pass() => {
                let pause = inner.until.map_or(FIRST_RETRY_DELAY, |(_, pause)| pause * 2);
                let pause = pause.min(MAX_RETRY_DELAY);
                inner.until = Some((Instant::now() + pause, pause));
                tracing::debug!(key, reason = error.into_text(), "not written yet");
                return;
            }
            Err(error) if error.is_absence() => {
                let reason = error.into_text();
                tracing::debug!(key, reason, "the object to write to is gone");
            }
            Err(error) => tracing::warn!(key, reason = error.into_text(), "not written"),
            Ok(()) => {}
        }
        inner.until = None;
        // A newer one may have replaced it meanwhile.
        if inner.waiting.get(key) == Some(item) {
            inner.waiting.remove(key);
            let _ = state::remove_file(&self.path(key));
        }
    }

    /// Writes waiting items, for ever.
    pub(super) async fn run(self: Arc<Self>, api: Api) {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        loop {
            let place = Arc::clone(&places).acquire_owned().await;
            match self.next() {
                Ok((key, item)) => {
                    let (outbox, api) = (Arc::clone(&self), api.clone());
                    tokio::spawn(async move {
                        let outcome = write(&api, &item).await;
                        outbox.done(&key, &item, outcome);
                        drop(place);
                        outbox.news.notify_one();
                    });
                }
                Err(wait) => {
                    drop(place);
                    let wait = wait.unwrap_or(MAX_RETRY_DELAY);
                    let _ = tokio::time::timeout(wait, self.news.notified()).await;
                }
            }
        }
    }
}

async fn write(api: &Api, item: &Item) -> Result<(), ApiError> {
    match item {
        Item::Status { pod, annotations, .. } => api.annotate(pod, annotations).await,
        Item::Event { namespace, name, event, patch } => {
            api.tell(namespace, name, event, patch.as_ref()).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(uid: &str, sandbox: &str) -> Item {
        let pod = PodFacts { uid: uid.to_owned(), ..PodFacts::default() };
        Item::Status { pod, sandbox: sandbox.to_owned(), annotations: BTreeMap::new() }
    }

    fn event(name: &str) -> Item {
        let (namespace, name) = ("ns".to_owned(), name.to_owned());
        Item::Event { namespace, name, event: Value::Null, patch: None }
    }

    #[tokio::test]
    async fn what_waits_outlives_the_daemon_and_statuses_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(dir.path().join("o")).unwrap();
        outbox.put(event("e")).unwrap();
        outbox.put(status("7", "old")).unwrap();
        outbox.put(status("7", "new")).unwrap();
        let next = Outbox::open(dir.path().join("o")).unwrap();
        let (key, item) = next.next().unwrap();
        assert_eq!(item, status("7", "new"));
        assert_eq!(next.next().unwrap().1, event("e"), "what is under way is not begun again");
        // A newer one came while this one was being written.
        next.put(status("7", "newest")).unwrap();
        next.done(&key, &item, Ok(()));
        let (key, item) = next.next().unwrap();
        assert_eq!(item, status("7", "newest"));
        next.done(&key, &item, Err(ApiError::Away("gone".to_owned())));
        assert!(next.next().is_err(), "all wait while the server is away");
        assert_eq!(Outbox::open(dir.path().join("o")).unwrap().lock().waiting.len(), 2);
    }

    #[tokio::test]
    async fn what_is_for_good_is_not_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(dir.path().join("o")).unwrap();
        for error in [ApiError::Gone(String::new()), ApiError::Refused(String::new())] {
            outbox.put(status("7", "c")).unwrap();
            let (key, item) = outbox.next().unwrap();
            outbox.done(&key, &item, Err(error));
            assert_eq!(outbox.next(), Err(None));
        }
        outbox.put(status("7", "c")).unwrap();
        outbox.forget("c");
        assert_eq!(outbox.next(), Err(None));
        for number in 0..MOST_EVENTS + 5 {
            outbox.put(event(&format!("{number:05}"))).unwrap();
        }
        assert_eq!(outbox.lock().waiting.len(), MOST_EVENTS);
        assert!(outbox.lock().waiting.contains_key("2:ns:01004"));
    }
}
