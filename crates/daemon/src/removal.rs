//! Turns all nodes of a cluster back to what they were: `netwrightd agent leave`, which the chart
//! calls before it is uninstalled.
//!
//! The chart brings DaemonSets as it renders them with `mode: remove`. They take the place of those
//! that run, the pod of each node turns its node back, and is ready when that is done. A node that
//! does not answer, or on which a container of ours still runs, ends nothing: it is named.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use cluster_client::api_server::{self, ApiError, CONNECT_TIME, Client, unless_gone};
use cluster_client::objects::{Collection, ListQuery, ObjectKind, POD};
use serde_json::{Value, json};
use service_kit::asynchronous::runtime;
use service_kit::stdio;
use service_kit::stop::{Stop, failed, words};
use tokio::time::sleep;

/// The chart's DaemonSets with containers that turn a node back, or that would undo it.
const NAMES: [&str; 3] = ["netwright", "netwright-policy", "netwright-routing"];

const DAEMON_SET: ObjectKind =
    ObjectKind { group: "apps", version: "v1", kind: "DaemonSet", plural: "daemonsets" };

/// Our name: the field manager of what is written.
const MANAGER: &str = "netwrightd-agent";

/// How many pods a page of a list has.
const PAGE: u32 = 500;

/// The annotation of a DaemonSet that exists only for the removal.
const MADE: &str = "netwright.io/made-for-removal";

/// The container that starts when a node is turned back.
const DONE: &str = "done";

/// The pause between looks.
const PAUSE: Duration = Duration::from_secs(2);

/// What is said beforehand.
const BEFORE: &str = "each node is turned back to what it was: containers that run keep their networks and \
                      their network policies until they end, and new ones get the node's other network\n";

/// Turns the nodes back, and waits for them, at most so long.
pub(crate) fn run(
    daemon_sets: &Path,
    kubeconfig: Option<&Path>,
    timeout: Duration,
) -> Result<(), Stop> {
    let text = state::read_optional(daemon_sets).map_err(failed)?.unwrap_or_default();
    let wanted: Vec<Value> = serde_json::from_slice(&text).map_err(failed)?;
    let Some(namespace) = wanted.first().and_then(|one| one["metadata"]["namespace"].as_str())
    else {
        stdio::say("no node has anything to turn back\n");
        return Ok(());
    };
    let end = Instant::now() + timeout;
    runtime(1)?.block_on(async {
        let client = api_server::client(kubeconfig, CONNECT_TIME, true).await.map_err(failed)?;
        let cluster = Cluster::new(&client, namespace);
        stdio::say(BEFORE);
        cluster.replace_all(&wanted, end).await?;
        cluster.wait(&wanted, end, timeout).await?;
        cluster.remove_made(&wanted).await;
        stdio::say("all nodes are turned back\n");
        Ok(())
    })
}

struct Cluster<'n> {
    namespace: &'n str,
    daemon_sets: Collection,
    pods: Collection,
}

impl<'n> Cluster<'n> {
    fn new(client: &Client, namespace: &'n str) -> Self {
        let of = |kind| Collection::of_namespace(client, kind, namespace, MANAGER);
        Cluster { namespace, daemon_sets: of(DAEMON_SET), pods: of(POD) }
    }

    /// Puts each DaemonSet in the place of the one that runs. Services without one end, since they
    /// would restore what is removed.
    async fn replace_all(&self, wanted: &[Value], end: Instant) -> Result<(), Stop> {
        for name in NAMES {
            let wanted = wanted.iter().find(|one| one["metadata"]["name"] == name);
            while let Err(error) = self.replace(name, wanted).await {
                if end <= Instant::now() || is_final(&error) {
                    let error = words(&error);
                    return Err(Stop::Failed(format!("replace the DaemonSet {name}: {error}")));
                }
                sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    async fn replace(&self, name: &str, wanted: Option<&Value>) -> Result<(), ApiError> {
        let running: Option<Value> = unless_gone(self.daemon_sets.get(name).await)?;
        match (running, wanted) {
            (None, None) => {}
            (Some(_), None) => {
                self.daemon_sets.delete(name, None).await?;
            }
            (Some(mut running), Some(wanted)) => {
                for part in ["template", "updateStrategy"] {
                    running["spec"][part] = wanted["spec"][part].clone();
                }
                self.daemon_sets.replace::<Value>(name, running).await?;
            }
            (None, Some(wanted)) => {
                let mut wanted = wanted.clone();
                wanted["metadata"]["annotations"] = json!({MADE: "true"});
                self.daemon_sets.create::<Value>(wanted).await?;
            }
        }
        Ok(())
    }

    async fn wait(&self, wanted: &[Value], end: Instant, timeout: Duration) -> Result<(), Stop> {
        let mut told = String::new();
        loop {
            let waiting = match self.waiting(wanted).await {
                Ok(waiting) if waiting.is_empty() => return Ok(()),
                Ok(waiting) => waiting.into_iter().collect::<Vec<_>>().join(", "),
                Err(error) => format!("the API server: {}", words(&error)),
            };
            if end <= Instant::now() {
                return Err(Stop::Failed(format!(
                    "not turned back after {timeout:?}: {waiting}. `kubectl --namespace {} logs POD \
                     --all-containers` says what a node waits for; it goes on. `helm uninstall` waits \
                     again; with --no-hooks it leaves these nodes as they are",
                    self.namespace
                )));
            }
            if waiting != told {
                stdio::say(&format!("waiting for {waiting}\n"));
                told = waiting;
            }
            sleep(PAUSE.min(end.saturating_duration_since(Instant::now()))).await;
        }
    }

    /// Returns the nodes that are not turned back, each with its pod.
    async fn waiting(&self, wanted: &[Value]) -> Result<BTreeSet<String>, ApiError> {
        let mut waiting = BTreeSet::new();
        for wanted in wanted {
            let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
            let turns_back = |container: &Value| container["name"] == DONE;
            let containers = &wanted["spec"]["template"]["spec"]["containers"];
            if !containers.as_array().is_some_and(|all| all.iter().any(turns_back)) {
                continue;
            }
            let found: Value = self.daemon_sets.get(name).await?;
            let before = waiting.len();
            let pods = ListQuery::pages_of(PAGE).labels(&format!("app.kubernetes.io/name={name}"));
            let pods: Vec<Value> = self.pods.list(pods).await?;
            waiting.extend(pods.iter().filter(|pod| !is_done(pod)).map(|pod| {
                let node = pod["spec"]["nodeName"].as_str().unwrap_or("no node");
                format!("{node} ({})", pod["metadata"]["name"].as_str().unwrap_or_default())
            }));
            let status = &found["status"];
            let number = |of: &str| status[of].as_i64().unwrap_or_default();
            let generation = found["metadata"]["generation"].as_i64().unwrap_or_default();
            let is_seen = generation <= number("observedGeneration");
            let nodes = number("desiredNumberScheduled");
            let done = number("updatedNumberScheduled").min(number("numberReady"));
            if before == waiting.len() && (!is_seen || done < nodes) {
                waiting.insert(format!("pods of the DaemonSet {name}"));
            }
        }
        Ok(waiting)
    }

    /// Removes the DaemonSets that Helm does not know.
    async fn remove_made(&self, wanted: &[Value]) {
        for name in wanted.iter().filter_map(|one| one["metadata"]["name"].as_str()) {
            let found = self.daemon_sets.metadata(name).await;
            let annotations = found.ok().and_then(|found| found.annotations);
            if annotations.is_some_and(|all| all.contains_key(MADE))
                && let Err(error) = self.daemon_sets.delete(name, None).await
            {
                let error = words(&error);
                stdio::complain(&format!("the DaemonSet {name} stays, delete it: {error}\n"));
            }
        }
    }
}

/// Says whether a pod has turned its node back: it has reached its last container, and that is
/// ready. A pod that is not replaced yet has another container.
fn is_done(pod: &Value) -> bool {
    let containers = pod["status"]["containerStatuses"].as_array();
    containers.is_some_and(|all| {
        all.iter().any(|container| container["name"] == DONE && container["ready"] == true)
    })
}

/// Says whether another try would fail in the same way.
fn is_final(error: &ApiError) -> bool {
    matches!(error, ApiError::Forbidden(_) | ApiError::Refused(_))
}
