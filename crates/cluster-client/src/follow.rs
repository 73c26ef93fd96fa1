//! Follows the objects of a kind at the API server: lists them, watches them, and reports when the
//! server is silent and when it answers again.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use kube::api::{Api, ListParams};
use kube::runtime::watcher::{Config, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;

use crate::api_server::{ApiError, Change, follow, watch_config, within};

/// After a watch broke: how long no attempt may fail before the server is asked for one object. An
/// attempt that fails takes less time.
const QUIET: Duration = Duration::from_secs(15);

/// How many events may wait to be taken; with more, the server's connection is not read.
const WAITING: usize = 64;

/// What is reported of the objects of a kind.
#[derive(Debug)]
pub enum ObjectEvent<T> {
    /// A list begins.
    Begin,
    /// An object of the list.
    Listed(T),
    /// The list is complete.
    Complete,
    /// An object came or changed.
    Changed(T),
    /// An object was deleted.
    Deleted(T),
    /// The server does not answer; attempts go on. An event of another kind ends that.
    Silent(ApiError),
    /// The server answers again, and nothing has changed.
    Answers,
}

impl<T> From<Change<T>> for ObjectEvent<T> {
    fn from(change: Change<T>) -> Self {
        match change {
            Change::Begin => ObjectEvent::Begin,
            Change::Listed(object) => ObjectEvent::Listed(object),
            Change::Complete => ObjectEvent::Complete,
            Change::Changed(object) => ObjectEvent::Changed(object),
            Change::Gone(object) => ObjectEvent::Deleted(object),
            Change::Lost(error) => ObjectEvent::Silent(error),
        }
    }
}

/// Which objects are followed.
#[derive(Clone)]
pub struct Follow<K> {
    objects: Api<K>,
    config: Config,
}

impl<K> Debug for Follow<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<K> Follow<K>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Follows all objects of an API.
    pub fn new(objects: Api<K>) -> Self {
        Follow { objects, config: watch_config() }
    }

    /// Follows only those whose fields match ("Field Selectors").
    #[must_use]
    pub fn fields(self, selector: &str) -> Self {
        Follow { config: self.config.fields(selector), ..self }
    }

    /// Lists so many objects in a page.
    #[must_use]
    pub fn page(self, objects: u32) -> Self {
        Follow { config: self.config.page_size(objects), ..self }
    }

    /// Begins to list and watch, in a task of its own that ends with what is returned. `read` is what
    /// is kept of an object.
    pub fn begin<T: Send + 'static>(&self, read: impl Fn(K) -> T + Send + 'static) -> Objects<T> {
        let (to, changes) = channel(WAITING);
        let stream = watcher(self.objects.clone(), self.config.clone());
        let task = tokio::spawn(follow(stream, read, to));
        let objects = Arc::new(self.objects.clone());
        let probe = move || -> BoxFuture<'static, bool> {
            let objects = Arc::clone(&objects);
            Box::pin(async move {
                let one = ListParams::default().limit(1);
                within(objects.list_metadata(&one)).await.is_ok()
            })
        };
        Objects { changes, task, probe: Box::new(probe), quiet: QUIET, is_silent: false }
    }
}

/// The events of objects that are followed.
pub struct Objects<T> {
    changes: Receiver<Change<T>>,
    task: JoinHandle<()>,
    /// Asks the server for one object.
    probe: Box<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>,
    quiet: Duration,
    is_silent: bool,
}

impl<T> Debug for Objects<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").finish_non_exhaustive()
    }
}

impl<T> Objects<T> {
    /// Returns the next event; `None` at the end of the runtime. If waiting for it is given up,
    /// nothing is lost.
    pub async fn next(&mut self) -> Option<ObjectEvent<T>> {
        loop {
            let wait = if self.is_silent { self.quiet } else { Duration::MAX };
            match tokio::time::timeout(wait, self.changes.recv()).await {
                Ok(change) => {
                    let event = ObjectEvent::from(change?);
                    self.is_silent = matches!(event, ObjectEvent::Silent(_));
                    return Some(event);
                }
                // The watch seems to be back, and has no change to report.
                Err(_) => {
                    if (self.probe)().await {
                        self.is_silent = false;
                        return Some(ObjectEvent::Answers);
                    }
                }
            }
        }
    }
}

impl<T> Drop for Objects<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use service_kit::asynchronous::runtime;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A watch that is back and has nothing to report used to look like one that is broken.
    #[test]
    fn after_a_silence_the_server_is_asked_until_it_answers() {
        runtime(1).unwrap().block_on(async {
            let (to, changes) = channel(WAITING);
            let asked = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&asked);
            let probe = move || -> BoxFuture<'static, bool> {
                let second = count.fetch_add(1, Ordering::SeqCst) == 1;
                Box::pin(std::future::ready(second))
            };
            let task = tokio::spawn(std::future::pending());
            let quiet = Duration::from_millis(1);
            let mut objects =
                Objects { changes, task, probe: Box::new(probe), quiet, is_silent: false };
            to.send(Change::Listed(1)).await.unwrap();
            to.send(Change::Lost(ApiError::Away("away".to_owned()))).await.unwrap();
            assert!(matches!(objects.next().await, Some(ObjectEvent::Listed(1))));
            assert!(matches!(objects.next().await, Some(ObjectEvent::Silent(_))));
            assert!(matches!(objects.next().await, Some(ObjectEvent::Answers)));
            assert_eq!(asked.load(Ordering::SeqCst), 2);
            let idle = tokio::time::timeout(quiet * 20, objects.next()).await;
            assert!(idle.is_err(), "it is asked once more: {idle:?}");
            to.send(Change::Changed(2)).await.unwrap();
            assert!(matches!(objects.next().await, Some(ObjectEvent::Changed(2))));
            assert_eq!(asked.load(Ordering::SeqCst), 2);
            drop(to);
            assert!(objects.next().await.is_none());
        });
    }
}
