//! The source `kubernetes`: six kinds of objects of a cluster, each listed and watched.
//!
//! Every node needs the addresses and labels of all pods that its policies may name, so it watches
//! the pods of the whole cluster. The server leaves out those that have finished. A list comes in
//! pages; of each object only what matters is kept while its page is read (`slim`).
//!
//! A cluster may lack the definition of ClusterNetworkPolicy, or of MultiNetworkPolicy: then there are
//! none, and it is looked for again after each interval. The older version of either is read where
//! the newer one is not served.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, FutureExt as _, join_all, select};
use kube::Client;
use kube::api::{Api, ListParams};
use kube::runtime::watcher::{Config, watcher};
use policy::Refusal;
use serde::de::DeserializeOwned;
use service_kit::outlet::Outlet;
use service_kit::stop::words;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::engine::Event;
use super::kinds::{Kind, Object};
use super::server::{Order, ThreadEvent};
use super::slim::{self, SlimObject};
use super::writer::Writer;
use crate::services::kubernetes::{
    self, ApiError, CONNECT_TIME, Change, follow, watch_config, within,
};

/// Pauses between attempts to find the server: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// After a watch broke: how long no attempt may fail before the server is asked for one object. An
/// attempt that fails takes less time.
const QUIET: Duration = Duration::from_secs(15);

/// How many changes may wait for the loop's inlet, and how many objects of lists may wait in it: a
/// list that is read faster than the loop takes it would be in memory twice.
const WAITING: usize = 64;
const MOST_LISTED: usize = 1000;

/// How many objects a page of pods has: 2 MB.
const PAGE_OF_PODS: u32 = 500;

/// Pods that have finished have no addresses of their own, so they are not needed.
const NOT_FINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// How the API server is found.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) kubeconfig: Option<PathBuf>,
    /// How often a definition that is missing is looked for.
    pub(super) interval: Duration,
}

/// The objects of a cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    source: Source,
    outlet: Arc<Outlet<ThreadEvent>>,
    places: Arc<Semaphore>,
}

impl Cluster {
    pub(super) fn new(source: Source, outlet: Arc<Outlet<ThreadEvent>>) -> Self {
        Cluster { source, outlet, places: Arc::new(Semaphore::new(MOST_LISTED)) }
    }

    /// Follows everything, for ever.
    pub(super) async fn run(self, mut orders: UnboundedReceiver<Order>) {
        let client = self.client().await;
        let mut relist: BTreeMap<Kind, Sender<()>> = BTreeMap::new();
        let mut again = |kind: Kind| {
            let (to, from) = channel(1);
            relist.insert(kind, to);
            from
        };
        let [namespaces, nodes, policies, cluster_policies, multi_policies, pods] =
            Kind::ALL.map(&mut again);
        let plain = watch_config();
        let of_pods = watch_config().page_size(PAGE_OF_PODS).fields(NOT_FINISHED);
        let is_older = Arc::new(AtomicBool::new(false));
        let following = [
            self.spawn::<slim::Namespaces>(&client, Kind::Namespaces, plain.clone(), namespaces),
            self.spawn::<slim::Nodes>(&client, Kind::Nodes, plain.clone(), nodes),
            self.spawn::<slim::NetworkPolicies>(
                &client,
                Kind::NetworkPolicies,
                plain.clone(),
                policies,
            ),
            self.spawn_either::<slim::ClusterNetworkPolicies, slim::EarlierClusterNetworkPolicies>(
                &client,
                Kind::ClusterNetworkPolicies,
                plain.clone(),
                (cluster_policies, is_older.clone()),
            ),
            self.spawn_either::<slim::MultiNetworkPolicies, slim::EarlierMultiNetworkPolicies>(
                &client,
                Kind::MultiNetworkPolicies,
                plain,
                (multi_policies, Arc::default()),
            ),
            self.spawn::<slim::Pods>(&client, Kind::Pods, of_pods, pods),
        ];
        let writer = Writer::start(client, self.outlet.clone(), is_older);
        while let Some(order) = orders.recv().await {
            match order {
                Order::Tell(telling) => writer.write(telling),
                Order::Relist(kind) => {
                    // If a request to list waits already, that one serves.
                    let _ = relist.get(&kind).map(|to| to.try_send(()));
                }
            }
        }
        join_all(following).await;
    }

    /// Finds the server. If the kubeconfig is wrong, it tries again: an administrator may correct
    /// it.
    async fn client(&self) -> Client {
        let mut pause = RETRY.0;
        loop {
            let kubeconfig = self.source.kubeconfig.as_deref();
            match kubernetes::watching_client(kubeconfig, CONNECT_TIME).await {
                Ok(client) => return client,
                Err(error) => {
                    for kind in Kind::ALL {
                        self.outlet.tell(Event::Silent(kind, words(&error)).into());
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    fn spawn<K: FollowedKind>(
        &self,
        client: &Client,
        kind: Kind,
        config: Config,
        relist: Receiver<()>,
    ) -> tokio::task::JoinHandle<()> {
        tokio::spawn(self.follower::<K>(client, kind, config).run(relist))
    }

    /// Follows a kind in the version that is served, and in the newer one of both. Notes whether
    /// that is the older one.
    fn spawn_either<N: FollowedKind, O: FollowedKind>(
        &self,
        client: &Client,
        kind: Kind,
        config: Config,
        (mut relist, is_older): (Receiver<()>, Arc<AtomicBool>),
    ) -> tokio::task::JoinHandle<()> {
        let newer = self.follower::<N>(client, kind, config.clone());
        let older = self.follower::<O>(client, kind, config);
        tokio::spawn(async move {
            loop {
                match follow_either(&newer, &older, &is_older, &mut relist).await {
                    End::Over => return,
                    End::Relist => {}
                    End::NoKind => newer.wait_for_kind(&mut relist).await,
                }
            }
        })
    }

    fn follower<K: FollowedKind>(
        &self,
        client: &Client,
        kind: Kind,
        config: Config,
    ) -> Follower<K> {
        Follower {
            api: Api::all(client.clone()),
            kind,
            config,
            outlet: self.outlet.clone(),
            places: self.places.clone(),
            interval: self.source.interval,
        }
    }
}

/// A kind of objects that can be followed.
pub(super) trait FollowedKind:
    kube::Resource<DynamicType = ()>
    + SlimObject
    + Clone
    + DeserializeOwned
    + std::fmt::Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> FollowedKind for K
where
    K: kube::Resource<DynamicType = ()> + SlimObject + Clone + DeserializeOwned,
    K: std::fmt::Debug + Send + Sync + 'static,
{
}

/// A list and a watch that go on as long as this is polled, and what they report.
type WatchFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
type ObjectChange = Change<Result<Object, Refusal>>;

/// Follows one of two versions of a kind, until it is to begin anew. A start has to wait for the
/// server's answer, so it asks for both at once.
async fn follow_either<N: FollowedKind, O: FollowedKind>(
    newer: &Follower<N>,
    older: &Follower<O>,
    is_older: &AtomicBool,
    relist: &mut Receiver<()>,
) -> End {
    let (mut newer_runs, mut of_newer) = newer.begin();
    let (mut older_runs, mut of_older) = older.begin();
    let (said, said_of_older) = {
        let newer_says = pin!(answer(&mut newer_runs, &mut of_newer));
        let older_says = pin!(answer(&mut older_runs, &mut of_older));
        match select(newer_says, older_says).await {
            Either::Left((said, older_says)) if is_missing(&said) => (said, older_says.await),
            Either::Left((said, _)) => (said, Vec::new()),
            Either::Right((said, newer_says)) => (newer_says.await, said),
        }
    };
    is_older.store(is_missing(&said), Ordering::SeqCst);
    let end = if !is_missing(&said) {
        drop((older_runs, of_older));
        newer.follow_on(newer_runs, said, of_newer, relist).await
    } else if !is_missing(&said_of_older) {
        drop((newer_runs, of_newer));
        older.follow_on(older_runs, said_of_older, of_older, relist).await
    } else {
        return End::NoKind;
    };
    match end {
        // The other one may be served by now.
        End::NoKind => End::Relist,
        end => end,
    }
}

/// Runs a watch until its server has answered; returns what the watch has reported by then.
async fn answer(runs: &mut WatchFuture, changes: &mut Receiver<ObjectChange>) -> Vec<ObjectChange> {
    let mut said = Vec::new();
    loop {
        let next = pin!(changes.recv());
        let Either::Right((Some(change), _)) = select(&mut *runs, next).await else {
            return said;
        };
        let is_answer = !matches!(change, Change::Begin);
        said.push(change);
        if is_answer {
            return said;
        }
    }
}

/// Reports whether the server has said that it does not have a kind.
fn is_missing(said: &[ObjectChange]) -> bool {
    matches!(said.last(), Some(Change::Lost(ApiError::Gone(_))))
}

/// Follows the objects of a kind.
struct Follower<K> {
    api: Api<K>,
    kind: Kind,
    config: Config,
    outlet: Arc<Outlet<ThreadEvent>>,
    /// Places in the outlet for objects of lists, of all kinds.
    places: Arc<Semaphore>,
    /// How often a definition that is missing is looked for.
    interval: Duration,
}

/// Why following ended.
enum End {
    /// The kind is to be listed again.
    Relist,
    /// The server does not have the kind.
    NoKind,
    /// The service ends.
    Over,
}

impl<K: FollowedKind> Follower<K> {
    async fn run(self, mut relist: Receiver<()>) {
        loop {
            match self.follow_once(&mut relist).await {
                End::Over => return,
                End::Relist => {}
                End::NoKind => self.wait_for_kind(&mut relist).await,
            }
        }
    }

    /// Reports that the kind has no objects, since the server does not have the kind, and waits for
    /// a while.
    async fn wait_for_kind(&self, relist: &mut Receiver<()>) {
        self.tell(Event::Begin(self.kind));
        self.tell(Event::Complete(self.kind));
        // Not all nodes at once.
        let part = f64::from(u16::try_from(service_kit::clock::seed() % 1000).unwrap_or(0));
        let pause = self.interval.mul_f64(1.0 + part / 5000.0);
        let _ = tokio::time::timeout(pause, relist.recv()).await;
    }

    /// Lists and watches, until that is to begin anew.
    async fn follow_once(&self, relist: &mut Receiver<()>) -> End {
        let (runs, changes) = self.begin();
        self.follow_on(runs, Vec::new(), changes, relist).await
    }

    /// Begins to list and watch. What is reported waits to be taken.
    fn begin(&self) -> (WatchFuture, Receiver<ObjectChange>) {
        let (to, changes) = channel(WAITING);
        let kind = self.kind;
        let read = move |object: K| Object::of(kind, object.object());
        let stream = watcher(self.api.clone(), self.config.clone());
        let runs: WatchFuture = Box::pin(follow(stream, read, to).fuse());
        (runs, changes)
    }

    /// Goes on with the list and watch, until it is to begin anew. `said` are the reports that were
    /// taken already.
    async fn follow_on(
        &self,
        runs: WatchFuture,
        said: Vec<ObjectChange>,
        changes: Receiver<ObjectChange>,
        relist: &mut Receiver<()>,
    ) -> End {
        let listening = pin!(self.listen(said, changes, relist));
        match select(runs, listening).await {
            Either::Left(((), _)) => End::Over,
            Either::Right((end, _)) => end,
        }
    }

    /// Passes on what the watch reports, until it is to begin anew.
    async fn listen(
        &self,
        said: Vec<ObjectChange>,
        mut changes: Receiver<ObjectChange>,
        relist: &mut Receiver<()>,
    ) -> End {
        let mut said = said.into_iter();
        let mut lost = false;
        loop {
            let change = if let Some(change) = said.next() {
                Ok(Some(change))
            } else {
                let wait = if lost { QUIET } else { Duration::MAX };
                let next = pin!(tokio::time::timeout(wait, changes.recv()));
                match select(next, pin!(relist.recv())).await {
                    Either::Left((change, _)) => change,
                    Either::Right((Some(()), _)) => return End::Relist,
                    Either::Right((None, _)) => return End::Over,
                }
            };
            let change = match change {
                Ok(Some(change)) => change,
                Ok(None) => return End::Over,
                // The watch seems to be back, and has no change to report.
                Err(_) => {
                    let one = ListParams::default().limit(1);
                    if within(self.api.list_metadata(&one)).await.is_ok() {
                        lost = false;
                        self.tell(Event::Answers(self.kind));
                    }
                    continue;
                }
            };
            lost = false;
            let event = match change {
                Change::Begin => Event::Begin(self.kind),
                Change::Complete => Event::Complete(self.kind),
                Change::Listed(Ok(object)) => Event::Listed(object),
                Change::Changed(Ok(object)) => Event::Changed(object),
                Change::Gone(Ok(object)) => Event::Gone(object.key()),
                Change::Listed(Err(refused))
                | Change::Changed(Err(refused))
                | Change::Gone(Err(refused)) => Event::Unreadable(refused),
                Change::Lost(ApiError::Gone(_)) if self.kind.may_be_missing() => {
                    return End::NoKind;
                }
                Change::Lost(error) => {
                    lost = true;
                    Event::Silent(self.kind, error.to_string())
                }
            };
            let is_listed = matches!(event, Event::Listed(_));
            let place = if is_listed { self.place().await } else { None };
            self.outlet.tell(ThreadEvent::Event(Box::new(event), place));
        }
    }

    /// Waits for a place in the outlet.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().acquire_owned().await.ok()
    }

    fn tell(&self, event: Event) {
        self.outlet.tell(event.into());
    }
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
