//! Follows the objects of a kind at the API server: lists them, watches them, and reports when the
//! server is silent and when it answers again.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt as _};
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher::{self, Config};
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

use crate::api_server::{ApiError, Client, api_error};
use crate::objects::{Collection, FollowedObject, Metadata, ObjectKind, WatchedObject};

/// After a watch broke: how long no attempt may fail before the server is asked for one object. An
/// attempt that fails takes less time.
const QUIET: Duration = Duration::from_secs(15);

/// How many events may wait to be taken: a page of a list, so that the server puts the next one
/// together meanwhile. With more, the server's connection is not read.
const WAITING: usize = 256;

/// Pauses between attempts to list and watch: the daemon notices the server's return within
/// seconds, and ten thousand nodes make two thousand attempts a second.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(4);

/// How many objects one page of a list has.
const PAGE: u32 = 200;

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

impl<T> ObjectEvent<T> {
    /// Reads what is reported of an object.
    pub fn map<U>(self, read: impl FnOnce(T) -> U) -> ObjectEvent<U> {
        match self {
            ObjectEvent::Begin => ObjectEvent::Begin,
            ObjectEvent::Listed(object) => ObjectEvent::Listed(read(object)),
            ObjectEvent::Complete => ObjectEvent::Complete,
            ObjectEvent::Changed(object) => ObjectEvent::Changed(read(object)),
            ObjectEvent::Deleted(object) => ObjectEvent::Deleted(read(object)),
            ObjectEvent::Silent(error) => ObjectEvent::Silent(error),
            ObjectEvent::Answers => ObjectEvent::Answers,
        }
    }
}

/// Which objects are followed.
#[derive(Clone)]
pub struct Follow {
    client: Client,
    kind: ObjectKind,
    config: Config,
}

impl Debug for Follow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow")
            .field("kind", &self.kind)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Follow {
    /// Follows all objects of a kind.
    #[must_use]
    pub fn new(client: &Client, kind: ObjectKind) -> Self {
        Follow { client: client.clone(), kind, config: watcher::Config::default().page_size(PAGE) }
    }

    /// Follows only those whose fields match ("Field Selectors").
    #[must_use]
    pub fn fields(self, selector: &str) -> Self {
        Follow { config: self.config.fields(selector), ..self }
    }

    /// Follows only those whose labels match ("Labels and Selectors").
    #[must_use]
    pub fn labels(self, selector: &str) -> Self {
        Follow { config: self.config.labels(selector), ..self }
    }

    /// Lists so many objects in a page.
    #[must_use]
    pub fn page(self, objects: u32) -> Self {
        Follow { config: self.config.page_size(objects), ..self }
    }

    /// Begins to list and watch, in a task of its own that ends with what is returned. `read` is what
    /// is kept of an object.
    pub fn begin<K: FollowedObject, T: Send + 'static>(
        &self,
        read: impl Fn(K) -> T + Send + 'static,
    ) -> Objects<T> {
        let objects: Api<WatchedObject<K>> = Api::all_with(self.client.clone(), &self.kind);
        let stream = watcher::watcher(objects, self.config.clone());
        self.spawn(stream, move |one: WatchedObject<K>| read(one.object))
    }

    /// The same for objects of which only the metadata is kept: the server sends nothing else.
    pub fn begin_metadata<T: Send + 'static>(
        &self,
        read: impl Fn(Metadata) -> T + Send + 'static,
    ) -> Objects<T> {
        let objects: Api<PartialObjectMeta<WatchedObject<Value>>> =
            Api::all_with(self.client.clone(), &self.kind);
        let stream = watcher::watcher(objects, self.config.clone());
        self.spawn(stream, move |one| read(one.metadata.into()))
    }

    fn spawn<K: Send + 'static, T: Send + 'static>(
        &self,
        stream: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send + 'static,
        read: impl Fn(K) -> T + Send + 'static,
    ) -> Objects<T> {
        let (to, changes) = channel(WAITING);
        let task = tokio::spawn(follow(stream, read, to));
        // It writes nothing.
        let objects = Arc::new(Collection::all(&self.client, self.kind, ""));
        let probe = move || -> BoxFuture<'static, bool> {
            let objects = Arc::clone(&objects);
            Box::pin(async move { objects.probe().await.is_ok() })
        };
        Objects { changes, task, probe: Box::new(probe), quiet: QUIET, is_silent: false }
    }
}

/// The events of objects that are followed.
pub struct Objects<T> {
    changes: Receiver<ObjectEvent<T>>,
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
                Ok(event) => {
                    let event = event?;
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

/// Passes on what a watch reports. The watcher resumes where it was, and lists again if that is too
/// long ago (410).
async fn follow<K, T>(
    stream: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>>,
    read: impl Fn(K) -> T,
    to: Sender<ObjectEvent<T>>,
) {
    let mut stream = pin!(stream);
    let mut pause = FIRST_RETRY_DELAY;
    while let Some(event) = stream.next().await {
        let reported = match event {
            Ok(watcher::Event::Init) => ObjectEvent::Begin,
            Ok(watcher::Event::InitApply(object)) => ObjectEvent::Listed(read(object)),
            Ok(watcher::Event::InitDone) => ObjectEvent::Complete,
            Ok(watcher::Event::Apply(object)) => ObjectEvent::Changed(read(object)),
            Ok(watcher::Event::Delete(object)) => ObjectEvent::Deleted(read(object)),
            Err(error) => ObjectEvent::Silent(watch_error(&error)),
        };
        let lost = matches!(reported, ObjectEvent::Silent(_));
        let heard = !lost && !matches!(reported, ObjectEvent::Begin);
        if to.send(reported).await.is_err() {
            return;
        }
        if heard {
            pause = FIRST_RETRY_DELAY;
        }
        if lost {
            // Up to half as long again, so that not all nodes come at once when a server is back.
            let more =
                service_kit::clock::seed() % u64::try_from(pause.as_millis() / 2 + 1).unwrap_or(1);
            tokio::time::sleep(pause + Duration::from_millis(more)).await;
            pause = (pause * 2).min(MAX_RETRY_DELAY);
        }
    }
}

fn watch_error(error: &watcher::Error) -> ApiError {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => api_error(error),
        watcher::Error::WatchError(status) => ApiError::Away(status.message.clone()),
        other => ApiError::Away(other.to_string()),
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
            to.send(ObjectEvent::Listed(1)).await.unwrap();
            to.send(ObjectEvent::Silent(ApiError::Away("away".to_owned()))).await.unwrap();
            assert!(matches!(objects.next().await, Some(ObjectEvent::Listed(1))));
            assert!(matches!(objects.next().await, Some(ObjectEvent::Silent(_))));
            assert!(matches!(objects.next().await, Some(ObjectEvent::Answers)));
            assert_eq!(asked.load(Ordering::SeqCst), 2);
            let idle = tokio::time::timeout(quiet * 20, objects.next()).await;
            assert!(idle.is_err(), "it is asked once more: {idle:?}");
            to.send(ObjectEvent::Changed(2)).await.unwrap();
            assert!(matches!(objects.next().await, Some(ObjectEvent::Changed(2))));
            assert_eq!(asked.load(Ordering::SeqCst), 2);
            drop(to);
            assert!(objects.next().await.is_none());
        });
    }
}
