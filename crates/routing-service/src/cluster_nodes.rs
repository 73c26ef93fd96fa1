//! The source `kubernetes`: the Nodes of the cluster, and what this node writes into its own.
//!
//! A thread of its own talks to the API server, and reads the Nodes of a page while the server puts
//! the next one together. The loop takes what the thread has heard when the bell rings, and says
//! what this node's annotation and condition are to be.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::convert::identity;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use cluster_client::api_server::{self, ApiError, CONNECT_TIME};
use cluster_client::follow::{Follow, ObjectEvent, Objects};
use cluster_client::objects::{Collection, NODE};
use futures_util::future::{Either, select};
use ipnet::IpNet;
use routing::Settings;
use routing::cluster::NodeRecord;
use routing::condition::Condition;
use routing::kubernetes::{NodeFields, is_ours, prefixes, read};
use serde_json::json;
use service_kit::asynchronous::runtime;
use service_kit::bell::Bell;
use service_kit::outlet::{self, Inlet, Outlet, Silence};
use service_kit::stop::{Stop, words};
use tokio::sync::watch;

use super::node_object::{CONDITION, NodeObject};

/// Our name: the field manager of patches.
pub(super) const MANAGER: &str = "netwrightd-routing";

/// Pauses between attempts to write the annotation: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// What the thread has heard.
#[derive(Debug)]
pub(super) enum NodesEvent {
    /// These are all Nodes.
    Listed(Vec<NodeReport>),
    Changed(Box<NodeReport>),
    Deleted(String),
    /// The server does not answer: the reason.
    Silent(String),
    /// It answers again, and nothing has changed.
    Answers,
    /// What became of writing into this node's Node.
    Written(Result<(), String>),
}

/// What a Node says.
#[derive(Debug)]
pub(super) struct NodeReport {
    /// Its prefixes, even if it has not published yet how it is reached.
    pub(super) prefixes: Vec<IpNet>,
    /// The Node as a peer.
    pub(super) seen: NodeRecord,
    /// Its fields, if it is this node's.
    pub(super) own: Option<Box<NodeFields>>,
}

/// A Node, as it was read.
struct ObservedNode {
    told: NodeReport,
    /// Of all its fields. It only shows whether a Node has changed: its text would take as much
    /// memory as all that is programmed.
    hash: u64,
    said: Option<OwnNodeState>,
}

/// The loop's end of the thread.
#[derive(Debug)]
pub(super) struct ClusterNodes {
    inlet: Inlet<NodesEvent>,
    desired: watch::Sender<DesiredNode>,
}

/// What this node's Node is to say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct DesiredNode {
    annotations: BTreeMap<String, String>,
    condition: Option<Condition>,
}

/// What this node's Node says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OwnNodeState {
    uid: String,
    /// The annotations that are read here.
    annotations: BTreeMap<String, String>,
    /// Status and reason of the condition.
    condition: Option<(String, String)>,
}

impl ClusterNodes {
    /// Starts the thread.
    pub(super) fn follow(
        kubeconfig: Option<PathBuf>,
        node: &str,
        settings: &Settings,
    ) -> Result<Self, Stop> {
        let failed = service_kit::stop::failed;
        let (inlet, outlet) = outlet::pair().map_err(failed)?;
        let (desired, updates) = watch::channel(DesiredNode::default());
        let thread =
            Thread { kubeconfig, node: node.to_owned(), settings: settings.clone(), outlet };
        let runtime = runtime(1)?;
        std::thread::Builder::new()
            .name("nodes".to_owned())
            .spawn(move || runtime.block_on(thread.run(updates)))
            .map_err(failed)?;
        Ok(ClusterNodes { inlet, desired })
    }

    /// Returns what is readable when something was heard.
    pub(super) fn bell(&self) -> &Bell {
        self.inlet.bell()
    }

    /// Takes what was heard since the last call.
    pub(super) fn heard(&self) -> Vec<NodesEvent> {
        self.inlet.heard()
    }

    /// Says what this node's annotations are to be. They are written if the Node has others.
    pub(super) fn annotate(&self, annotations: BTreeMap<String, String>) {
        self.change_desired(|desired| desired.annotations = annotations);
    }

    /// Says what the condition `NetworkUnavailable` is to be. It is written if the Node has another.
    pub(super) fn set_condition(&self, condition: Condition) {
        self.change_desired(|desired| desired.condition = Some(condition));
    }

    fn change_desired(&self, change: impl FnOnce(&mut DesiredNode)) {
        self.desired.send_if_modified(|desired| {
            let before = desired.clone();
            change(desired);
            *desired != before
        });
    }
}

/// Removes annotations of a node, once.
///
/// # Errors
/// Why they may still be there. A Node that is gone is not an error.
pub(super) fn forget(
    kubeconfig: Option<&Path>,
    node: &str,
    annotations: &[String],
) -> Result<(), Stop> {
    let said = |why: String| Stop::Failed(format!("remove annotations of {node}: {why}"));
    runtime(1)?.block_on(async {
        let client = api_server::client(kubeconfig, CONNECT_TIME, true).await;
        let client = client.map_err(|error| said(words(&error)))?;
        let none: BTreeMap<&String, ()> = annotations.iter().map(|key| (key, ())).collect();
        let patch = json!({"metadata": {"annotations": none}});
        match Collection::all(&client, NODE, MANAGER).patch(node, &patch).await {
            Ok(()) | Err(ApiError::Gone(_)) => Ok(()),
            Err(error) => Err(said(error.to_string())),
        }
    })
}

/// Returns the patch of a Node's status that sets the condition. Conditions are merged by their type.
fn of_condition(condition: &Condition) -> serde_json::Value {
    let now = service_kit::clock::rfc3339(service_kit::clock::wall_ms());
    json!({"status": {"conditions": [{
        "type": CONDITION,
        "status": status(condition),
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }]}})
}

fn status(condition: &Condition) -> &'static str {
    if condition.unavailable { "True" } else { "False" }
}

struct Thread {
    kubeconfig: Option<PathBuf>,
    node: String,
    settings: Settings,
    outlet: Outlet<NodesEvent>,
}

impl Thread {
    async fn run(self, updates: watch::Receiver<DesiredNode>) {
        let silence = RefCell::new(Silence::default());
        let client = api_server::find(self.kubeconfig.as_deref(), |why| {
            if silence.borrow_mut().is_news(&why) {
                self.outlet.tell(NodesEvent::Silent(why));
            }
        });
        let client = client.await;
        let nodes = Collection::all(&client, NODE, MANAGER);
        let (own_is, own) = watch::channel(None::<OwnNodeState>);
        let objects = Follow::new(&client, NODE).begin::<NodeObject, _>(identity);
        let listening = self.listen(objects, own_is, silence.into_inner());
        let writing = self.write(&nodes, updates, own);
        select(pin!(listening), pin!(writing)).await;
    }

    /// Passes on what the watch reports, without changes of fields that are not read here: a
    /// kubelet changes its Node every few minutes.
    async fn listen(
        &self,
        mut objects: Objects<NodeObject>,
        own_is: watch::Sender<Option<OwnNodeState>>,
        mut silence: Silence,
    ) {
        let hashes = RandomState::new();
        // Of each Node as it was heard last. A list begins anew.
        let mut known: HashMap<String, u64> = HashMap::new();
        let mut listing: Vec<NodeReport> = Vec::new();
        let mut lost = false;
        while let Some(event) = objects.next().await {
            let event = event.map(|node| read_node(node, &self.node, &self.settings, &hashes));
            match &event {
                ObjectEvent::Listed(ObservedNode { said: Some(said), .. })
                | ObjectEvent::Changed(ObservedNode { said: Some(said), .. }) => {
                    own_is.send_if_modified(|own| {
                        let differs = own.as_ref() != Some(said);
                        *own = Some(said.clone());
                        differs
                    });
                }
                ObjectEvent::Deleted(ObservedNode { said: Some(_), .. }) => {
                    own_is.send_modify(|own| *own = None);
                }
                _ => {}
            }
            let heard = match event {
                ObjectEvent::Begin => {
                    known.clear();
                    listing.clear();
                    continue;
                }
                ObjectEvent::Listed(ObservedNode { told, hash, .. }) => {
                    known.insert(told.seen.name.clone(), hash);
                    listing.push(told);
                    continue;
                }
                ObjectEvent::Complete => {
                    if !known.contains_key(&self.node) {
                        own_is.send_modify(|own| *own = None);
                    }
                    NodesEvent::Listed(std::mem::take(&mut listing))
                }
                ObjectEvent::Changed(ObservedNode { told, hash, .. })
                    if known.get(&told.seen.name) == Some(&hash) =>
                {
                    if !lost {
                        continue;
                    }
                    NodesEvent::Answers
                }
                ObjectEvent::Changed(ObservedNode { told, hash, .. }) => {
                    known.insert(told.seen.name.clone(), hash);
                    NodesEvent::Changed(Box::new(told))
                }
                ObjectEvent::Deleted(ObservedNode { told, .. }) => {
                    known.remove(&told.seen.name);
                    NodesEvent::Deleted(told.seen.name)
                }
                ObjectEvent::Answers => NodesEvent::Answers,
                ObjectEvent::Silent(error) => {
                    lost = true;
                    let why = error.to_string();
                    if silence.is_news(&why) {
                        self.outlet.tell(NodesEvent::Silent(why));
                    }
                    continue;
                }
            };
            lost = false;
            silence.end();
            self.outlet.tell(heard);
        }
    }

    /// Writes what this node's Node is to say whenever it says something else.
    async fn write(
        &self,
        nodes: &Collection,
        mut updates: watch::Receiver<DesiredNode>,
        mut own: watch::Receiver<Option<OwnNodeState>>,
    ) {
        let mut pause = RETRY.0;
        let mut told: Option<Result<(), String>> = None;
        loop {
            let (desired, said) =
                (updates.borrow_and_update().clone(), own.borrow_and_update().clone());
            if let Some(done) = self.write_once(nodes, &desired, said.as_ref()).await {
                let done = done.map_err(|error| error.to_string());
                let failed = done.is_err();
                if told.as_ref() != Some(&done) {
                    self.outlet.tell(NodesEvent::Written(done.clone()));
                    told = Some(done);
                }
                if failed {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY.1);
                    continue;
                }
                pause = RETRY.0;
            }
            let (changed, said) = (pin!(updates.changed()), pin!(own.changed()));
            if let Either::Left((Err(_), _)) | Either::Right((Err(_), _)) =
                select(changed, said).await
            {
                return;
            }
        }
    }

    /// Writes what differs; `None` if nothing does, or there is no Node.
    async fn write_once(
        &self,
        nodes: &Collection,
        desired: &DesiredNode,
        said: Option<&OwnNodeState>,
    ) -> Option<Result<(), ApiError>> {
        let said = said?;
        let mut done = None;
        let differs = |(key, text): &(&String, &String)| said.annotations.get(*key) != Some(text);
        let annotations: BTreeMap<&String, &String> =
            desired.annotations.iter().filter(differs).collect();
        if !annotations.is_empty() {
            // Another Node of the same name is another node.
            let patch = json!({"metadata": {"uid": said.uid, "annotations": annotations}});
            done = Some(nodes.patch(&self.node, &patch).await);
        }
        if let Some(condition) = &desired.condition {
            let wanted = (status(condition), condition.reason);
            let there = said.condition.as_ref().map(|(status, reason)| (&**status, &**reason));
            if there != Some(wanted) {
                let patch = of_condition(condition);
                let patched = nodes.merge_status_lists(&self.node, &patch).await;
                done = Some(done.unwrap_or(Ok(())).and(patched));
            }
        }
        done
    }
}

/// Reads a Node: what this service writes into it too, if it is that of the node of this name.
fn read_node(
    node: NodeObject,
    name: &str,
    settings: &Settings,
    hashes: &RandomState,
) -> ObservedNode {
    let NodeObject { mut fields, condition, .. } = node;
    fields.annotations.retain(|key, _| is_ours(key, settings));
    let is_own = fields.name == name;
    let said = is_own.then(|| OwnNodeState {
        uid: fields.uid.clone(),
        annotations: fields.annotations.clone(),
        condition: condition.map(|one| (one.status, one.reason)),
    });
    let hash = hashes.hash_one(&fields);
    let told = NodeReport {
        prefixes: prefixes(&fields).unwrap_or_default(),
        seen: read(&fields, settings),
        own: is_own.then(|| Box::new(fields)),
    };
    ObservedNode { told, hash, said }
}
