//! Writes statuses and Events to the API server, a few at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cluster_client::api_server::{ApiError, patch_params, within};
use k8s_openapi::api::core::v1::Event;
use kube::Client;
use kube::api::{Api, Patch, PostParams};
use serde_json::{Value, json};
use service_kit::clock;
use service_kit::outlet::Outlet;
use tokio::sync::Semaphore;

use super::cluster::FollowedKind;
use super::server::ThreadEvent;
use super::slim::{ClusterNetworkPolicies, EarlierClusterNetworkPolicies};
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
                Ok(()) | Err(ApiError::Gone(_)) => writer.outlet.tell(ThreadEvent::Written(Ok(()))),
                Err(error) => writer.outlet.tell(ThreadEvent::Written(Err(error.to_string()))),
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
        let patched = match self.is_older.load(Ordering::SeqCst) {
            false => self.patch::<ClusterNetworkPolicies>(&write.name, &patch).await,
            true => self.patch::<EarlierClusterNetworkPolicies>(&write.name, &patch).await,
        };
        match patched {
            Err(ApiError::Away(why)) if is_conflict(&why) => Ok(()),
            other => other,
        }
    }

    async fn patch<K: FollowedKind>(&self, name: &str, patch: &Value) -> Result<(), ApiError> {
        let params = patch_params(COMPONENT);
        let all: Api<K> = Api::all(self.client.clone());
        within(all.patch_status(name, &params, &Patch::Merge(patch))).await.map(drop)
    }

    async fn event(&self, write: &EventWrite) -> Result<(), ApiError> {
        let now = Value::from(clock::rfc3339(clock::wall_ms()));
        let mut body = write.body.clone();
        body["firstTimestamp"] = now.clone();
        body["lastTimestamp"] = now;
        let event: Event =
            serde_json::from_value(body).map_err(|error| ApiError::Refused(error.to_string()))?;
        let events: Api<Event> = Api::namespaced(self.client.clone(), &write.namespace);
        match within(events.create(&PostParams::default(), &event)).await {
            // Another node has sent it.
            Err(ApiError::Refused(why)) if why.contains("already exists") => Ok(()),
            other => other.map(drop),
        }
    }
}

/// Reports whether a refusal says that there is another version by now (Kubernetes,
/// `staging/src/k8s.io/apiserver/pkg/registry/generic/registry/store.go` OptimisticLockErrorMsg).
fn is_conflict(why: &str) -> bool {
    why.contains("the object has been modified")
}
