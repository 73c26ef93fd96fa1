//! The asynchronous thread: it takes the plugin's requests, and asks the API server.
//!
//! It decides nothing. A request waits until the loop has answered it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use node_api::Refusal;
use node_api::policy::{Answer, Request};
use service_kit::asynchronous::runtime;
use service_kit::line_server::{self, Answers};
use service_kit::listen::Listener;
use service_kit::outlet::Outlet;
use service_kit::ready;
use service_kit::stop::{Stop, failed};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::cluster::{Cluster, Source};
use super::engine::Event;
use super::kinds::Kind;
use super::shared::SharedEngine;
use super::tell::ServerWrite;

/// How long the loop may take to answer: longer than a plugin waits.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// What the thread says to the loop.
#[derive(Debug)]
pub(super) enum ThreadEvent {
    /// A plugin asks.
    Asked(Box<Request>, Reply),
    /// A source says something. An object of a list takes a place until the loop has taken it.
    Event(Box<Event>, Option<OwnedSemaphorePermit>),
    /// What became of writing something.
    Written(Result<(), String>),
}

impl From<Event> for ThreadEvent {
    fn from(event: Event) -> Self {
        ThreadEvent::Event(Box::new(event), None)
    }
}

/// Where an answer goes.
pub(super) struct Reply(oneshot::Sender<Answer>);

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

impl Reply {
    /// Answers. The plugin that asked may be gone.
    pub(super) fn send(self, answer: Answer) {
        let _ = self.0.send(answer);
    }
}

/// What the loop says to the thread.
#[derive(Debug)]
pub(super) enum Order {
    /// A kind is to be listed again.
    Relist(Kind),
    /// Something is to be written.
    Tell(ServerWrite),
}

/// The loop's end of the thread.
#[derive(Debug)]
pub(super) struct Server {
    orders: mpsc::UnboundedSender<Order>,
}

impl Server {
    /// Starts the thread. With a source it asks the API server. It records that the service is
    /// ready once every kind of objects was listed: until then new pods are closed.
    pub(super) fn start(
        listener: &Listener,
        outlet: Outlet<ThreadEvent>,
        source: Option<Source>,
        shared: SharedEngine,
    ) -> Result<Self, Stop> {
        let (orders, taken) = mpsc::unbounded_channel();
        let runtime = runtime(1)?;
        let outlet = Arc::new(outlet);
        let desk = Arc::new(Desk { outlet: outlet.clone(), waiting: AtomicU64::new(0) });
        let socket = listener.path.clone();
        {
            let _entered = runtime.enter();
            line_server::start(desk, listener).map_err(failed)?;
        }
        let thread = std::thread::Builder::new().name("server".to_owned());
        let work = async move {
            tokio::spawn(ready::run(socket, move || shared.are_listed()));
            match source {
                Some(source) => Cluster::new(source, outlet).run(taken).await,
                None => std::future::pending().await,
            }
        };
        thread.spawn(move || runtime.block_on(work)).map_err(failed)?;
        Ok(Server { orders })
    }

    /// Passes an order to the thread. Without an API server the thread ignores it.
    pub(super) fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }
}

/// Takes requests.
#[derive(Debug)]
struct Desk {
    outlet: Arc<Outlet<ThreadEvent>>,
    waiting: AtomicU64,
}

/// How many requests may wait for the loop: a node that restarts starts all its pods at once.
const MOST_WAITING: u64 = 4096;

impl Answers for Desk {
    type Request = Request;
    type Answer = Answer;

    async fn answer(&self, request: Request) -> Answer {
        if MOST_WAITING <= self.waiting.fetch_add(1, Ordering::Relaxed) {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Refusal::for_now("too many requests wait").into();
        }
        let (reply, answer) = oneshot::channel();
        self.outlet.tell(ThreadEvent::Asked(Box::new(request), Reply(reply)));
        let answer = tokio::time::timeout(ANSWER_TIME, answer).await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        match answer {
            Ok(Ok(answer)) => answer,
            _ => Refusal::for_now("netwrightd policy does not answer in time; see its log").into(),
        }
    }
}
