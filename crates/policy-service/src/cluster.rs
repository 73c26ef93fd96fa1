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
use std::convert::identity;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster_client::api_server::{self, ApiError, Client};
use cluster_client::follow::{Follow, ObjectEvent, Objects};
use futures_util::future::{Either, join_all, select};
use policy::Refusal;
use service_kit::outlet::Outlet;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::engine::Event;
use super::kinds::{Kind, Object};
use super::server::{Order, ThreadEvent};
use super::slim::{self, SlimObject};
use super::writer::Writer;

/// How many objects of lists may wait in the loop's inlet: a list that is read faster than the loop
/// takes it would be in memory twice.
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
        let pods_of = |follow: Follow| follow.page(PAGE_OF_PODS).fields(NOT_FINISHED);
        let is_older = Arc::new(AtomicBool::new(false));
        let following = [
            self.spawn::<slim::Namespaces>(&client, Kind::Namespaces, identity, namespaces),
            self.spawn::<slim::Nodes>(&client, Kind::Nodes, identity, nodes),
            self.spawn::<slim::NetworkPolicies>(&client, Kind::NetworkPolicies, identity, policies),
            self.spawn_either::<slim::ClusterNetworkPolicies, slim::EarlierClusterNetworkPolicies>(
                &client,
                Kind::ClusterNetworkPolicies,
                (cluster_policies, is_older.clone()),
            ),
            self.spawn_either::<slim::MultiNetworkPolicies, slim::EarlierMultiNetworkPolicies>(
                &client,
                Kind::MultiNetworkPolicies,
                (multi_policies, Arc::default()),
            ),
            self.spawn::<slim::Pods>(&client, Kind::Pods, pods_of, pods),
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

    /// Finds the server.
    async fn client(&self) -> Client {
        let silent = |why: String| {
            for kind in Kind::ALL {
                self.outlet.tell(Event::Silent(kind, why.clone()).into());
            }
        };
        api_server::find(self.source.kubeconfig.as_deref(), silent).await
    }

    /// Follows a kind. `which` says which of its objects, and how.
    fn spawn<K: SlimObject>(
        &self,
        client: &Client,
        kind: Kind,
        which: impl FnOnce(Follow) -> Follow,
        relist: Receiver<()>,
    ) -> tokio::task::JoinHandle<()> {
        let follower = self.follower::<K>(client, kind);
        let follower = Follower { follow: which(follower.follow), ..follower };
        tokio::spawn(follower.run(relist))
    }

    /// Follows a kind in the version that is served, and in the newer one of both. Notes whether
    /// that is the older one.
    fn spawn_either<N: SlimObject, O: SlimObject>(
        &self,
        client: &Client,
        kind: Kind,
        (mut relist, is_older): (Receiver<()>, Arc<AtomicBool>),
    ) -> tokio::task::JoinHandle<()> {
        let newer = self.follower::<N>(client, kind);
        let older = self.follower::<O>(client, kind);
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

    fn follower<K: SlimObject>(&self, client: &Client, kind: Kind) -> Follower<K> {
        Follower {
            follow: Follow::new(client, K::KIND),
            read: PhantomData,
            kind,
            outlet: self.outlet.clone(),
            places: self.places.clone(),
            interval: self.source.interval,
        }
    }
}

/// What is reported of a kind.
type KindEvent = ObjectEvent<Result<Object, Refusal>>;
type KindObjects = Objects<Result<Object, Refusal>>;

/// Follows one of two versions of a kind, until it is to begin anew. A start has to wait for the
/// server's answer, so it asks for both at once.
async fn follow_either<N: SlimObject, O: SlimObject>(
    newer: &Follower<N>,
    older: &Follower<O>,
    is_older: &AtomicBool,
    relist: &mut Receiver<()>,
) -> End {
    let (mut of_newer, mut of_older) = (newer.begin(), older.begin());
    let (said, said_of_older) = {
        let newer_says = pin!(answer(&mut of_newer));
        let older_says = pin!(answer(&mut of_older));
        match select(newer_says, older_says).await {
            Either::Left((said, older_says)) if is_missing(&said) => (said, older_says.await),
            Either::Left((said, _)) => (said, Vec::new()),
            Either::Right((said, newer_says)) => (newer_says.await, said),
        }
    };
    is_older.store(is_missing(&said), Ordering::SeqCst);
    let end = if !is_missing(&said) {
        drop(of_older);
        newer.listen(said, of_newer, relist).await
    } else if !is_missing(&said_of_older) {
        drop(of_newer);
        older.listen(said_of_older, of_older, relist).await
    } else {
        return End::NoKind;
    };
    match end {
        // The other one may be served by now.
        End::NoKind => End::Relist,
        end => end,
    }
}

/// Waits until the server has answered; returns what has been reported by then.
async fn answer(objects: &mut KindObjects) -> Vec<KindEvent> {
    let mut said = Vec::new();
    while let Some(event) = objects.next().await {
        let is_answer = !matches!(event, ObjectEvent::Begin);
        said.push(event);
        if is_answer {
            break;
        }
    }
    said
}

/// Reports whether the server has said that it does not have a kind.
fn is_missing(said: &[KindEvent]) -> bool {
    matches!(said.last(), Some(ObjectEvent::Silent(ApiError::NoKind(_))))
}

/// Follows the objects of a kind.
struct Follower<K> {
    follow: Follow,
    /// What is kept of an object.
    read: PhantomData<fn() -> K>,
    kind: Kind,
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

impl<K: SlimObject> Follower<K> {
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
        self.listen(Vec::new(), self.begin(), relist).await
    }

    /// Begins to list and watch. What is reported waits to be taken.
    fn begin(&self) -> KindObjects {
        let kind = self.kind;
        self.follow.begin(move |object: K| Object::of(kind, object.object()))
    }

    /// Passes on what is reported, until that is to begin anew. `said` are the events that were taken
    /// already.
    async fn listen(
        &self,
        said: Vec<KindEvent>,
        mut objects: KindObjects,
        relist: &mut Receiver<()>,
    ) -> End {
        let mut said = said.into_iter();
        loop {
            let event = if let Some(event) = said.next() {
                Some(event)
            } else {
                let next = pin!(objects.next());
                match select(next, pin!(relist.recv())).await {
                    Either::Left((event, _)) => event,
                    Either::Right((Some(()), _)) => return End::Relist,
                    Either::Right((None, _)) => return End::Over,
                }
            };
            let Some(event) = event else { return End::Over };
            let event = match event {
                ObjectEvent::Begin => Event::Begin(self.kind),
                ObjectEvent::Complete => Event::Complete(self.kind),
                ObjectEvent::Listed(Ok(object)) => Event::Listed(object),
                ObjectEvent::Changed(Ok(object)) => Event::Changed(object),
                ObjectEvent::Deleted(Ok(object)) => Event::Gone(object.key()),
                ObjectEvent::Listed(Err(refused))
                | ObjectEvent::Changed(Err(refused))
                | ObjectEvent::Deleted(Err(refused)) => Event::Unreadable(refused),
                ObjectEvent::Silent(ApiError::NoKind(_)) if self.kind.may_be_missing() => {
                    return End::NoKind;
                }
                ObjectEvent::Silent(error) => Event::Silent(self.kind, error.to_string()),
                ObjectEvent::Answers => Event::Answers(self.kind),
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
