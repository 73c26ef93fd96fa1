//! Writes statuses and Events to the API server, a few at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cluster_client::api_server::{ApiError, Client};
use cluster_client::objects::{Collection, EVENT};
use serde_json::{Value, json};
use service_kit::clock;
use service_kit::outlet::Outlet;
use tokio::sync::Semaphore;

use super::server::ThreadEvent;
use super::slim::{ClusterNetworkPolicies, EarlierClusterNetworkPolicies, SlimObject as _};
use super::tell::{COMPONENT, EventWrite, ServerWrite, StatusWrite};

/// How much is written at once.
const AT_ONCE: usize = 4;

/// Writes to the API server.
#[derive(Clone)]
pub(super) struct Writer {
    client: Client,
    outlet: Arc<Outlet<ThreadEvent>>,
    places: Arc<Semaphore>,
    /// ClusterNetworkPolicies are served in the older version alone.
    is_older: Arc<AtomicBool>,
}

impl Writer {
    pub(super) fn start(
        client: Client,
        outlet: Arc<Outlet<ThreadEvent>>,
        is_older: Arc<AtomicBool>,
    ) -> Self {
        Writer { client, outlet, places: Arc::new(Semaphore::new(AT_ONCE)), is_older }
    }

    /// Writes something when it is its turn, and says how that went.
    pub(super) fn write(&self, telling: ServerWrite) {
        let writer = self.clone();
        tokio::spawn(async move {
            let Ok(_place) = writer.places.acquire().await else { return };
            let written = match &telling {
                ServerWrite::Status(status) => writer.status(status).await,
                ServerWrite::Event(event) => writer.event(event).await,
            };
            match written {
                // Another node was quicker, or the object is another one by now: the watch reports
                // what is there, and the engine looks again.
                Err(error) if !error.is_absence() => {
                    writer.outlet.tell(ThreadEvent::Written(Err(error.to_string())));
                }
                _ => writer.outlet.tell(ThreadEvent::Written(Ok(()))),
            }
        });
    }

    async fn status(&self, write: &StatusWrite) -> Result<(), ApiError> {
        let now = clock::rfc3339(clock::wall_ms());
        let since = write.since.as_deref().unwrap_or(&now);
        let mut conditions = write.others.clone();
        conditions.push(write.condition.value(since));
        // The version makes the server refuse a condition that was decided for another one.
        let patch = json!({
            "metadata": {"resourceVersion": write.version}, "status": {"conditions": conditions},
        });
        let kind = match self.is_older.load(Ordering::SeqCst) {
            false => ClusterNetworkPolicies::KIND,
            true => EarlierClusterNetworkPolicies::KIND,
        };
        let all = Collection::all(&self.client, kind, COMPONENT);
        match all.patch_status(&write.name, &patch).await {
            Err(ApiError::Conflict(_)) => Ok(()),
            other => other,
        }
    }

    async fn event(&self, write: &EventWrite) -> Result<(), ApiError> {
        let now = Value::from(clock::rfc3339(clock::wall_ms()));
        let mut body = write.body.clone();
        body["firstTimestamp"] = now.clone();
        body["lastTimestamp"] = now;
        let events = Collection::of_namespace(&self.client, EVENT, &write.namespace, COMPONENT);
        match events.create::<Value>(body).await {
            // Another node has sent it.
            Err(ApiError::Exists(_)) => Ok(()),
            other => other.map(drop),
        }
    }
}
