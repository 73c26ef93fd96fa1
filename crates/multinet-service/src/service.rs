//! The answers to the plugin, and what follows from its messages.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cni_runtime::ConfigFolder;
use node_api::multinet::{
    Answer, AttachReport, DetachReport, FailureReport, NetworkResult, PlanRequest, Request,
};
use node_api::{Pod, Refusal, inbox};
use npwg::annotation;
use npwg::status::{self, Status};
use service_kit::line_server::Answers;
use state::FileError;
use tokio::sync::{Notify, Semaphore};

use super::api::{Api, ApiError};
use super::devices::{Devices, PodDevices};
use super::events::{Events, Tone};
use super::facts::{DefinitionFacts, Fact, PodFacts};
use super::flags::Flags;
use super::held::Sandboxes;
use super::known::{Freshness, ObjectCache};
use super::outbox::{Item, Outbox};
use super::plan::{self, Lookup, NetworkSource, NoPlan, REFUSED, WantedNetwork};

/// How long finding an answer to the plugin may take: a runtime waits for minutes, and the API
/// server may be slow.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// How many requests go to the API server at once.
const QUESTIONS: usize = 16;
/// How many plans are made at once; others wait for their turn, which costs no more than their
/// request.
const PLANS: usize = 64;

/// How many pods' container orders are remembered: those of pods with devices in several
/// containers, of which a node has few.
const ORDERS: usize = 1024;

/// The reasons of Events.
pub(super) const ADDED: &str = "AddedInterface";
pub(super) const FAILED: &str = "NetworkFailed";

#[derive(Debug)]
pub(super) struct Service {
    pub(super) flags: Flags,
    pub(super) api: Api,
    pub(super) pods: ObjectCache<PodFacts>,
    pub(super) definitions: ObjectCache<DefinitionFacts>,
    pub(super) held: Sandboxes,
    pub(super) outbox: Arc<Outbox>,
    pub(super) events: Events,
    /// Definitions came or went.
    pub(super) defined: Notify,
    /// Some pods are to be looked after.
    pub(super) news: Notify,
    changed: Mutex<BTreeSet<String>>,
    /// The names of pods' containers in their order, by UID.
    containers: Mutex<HashMap<String, Vec<String>>>,
    questions: Semaphore,
    plans: Semaphore,
}

impl Answers for Service {
    type Request = Request;
    type Answer = Answer;

    async fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Plan(request) => self.plan(&request).await,
            Request::Status => self.status().map_or_else(Answer::Refused, |()| Answer::Ok),
            told => self.hear(told),
        }
    }
}

impl Service {
    pub(super) fn open(flags: Flags, api: Api, roots: &state::Roots) -> Result<Self, FileError> {
        let lib = roots.lib.join("multinet");
        let run = roots.run.join("multinet");
        Ok(Service {
            pods: ObjectCache::open(lib.join("pods"))?,
            definitions: ObjectCache::open(lib.join("definitions"))?,
            held: Sandboxes::open(run.join("sandboxes"))?,
            outbox: Arc::new(Outbox::open(run.join("outbox"))?),
            events: Events::new(&flags.node),
            defined: Notify::new(),
            news: Notify::new(),
            changed: Mutex::default(),
            containers: Mutex::default(),
            questions: Semaphore::new(QUESTIONS),
            plans: Semaphore::new(PLANS),
            flags,
            api,
        })
    }

    /// Queues pods to be looked after: what they are to have may have changed.
    pub(super) fn look_after(&self, pods: impl IntoIterator<Item = String>) {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).extend(pods);
        self.news.notify_one();
    }

    /// Returns the pods that are to be looked after.
    pub(super) fn changed(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Handles the messages that plugins left while no daemon listened; says whether nothing is
    /// left.
    pub(super) fn look_at_inbox(&self, inbox: &Path) -> bool {
        inbox::look(inbox, |request| self.hear(request) == Answer::Ok)
    }

    /// Handles a message from the plugin, now or when it was left while no daemon listened.
    fn hear(&self, told: Request) -> Answer {
        let done = match told {
            Request::Attached(attached) => self.attached(&attached),
            Request::Failed(failed) => self.failed(&failed),
            Request::Detached(detached) => self.detached(&detached),
            Request::Plan(_) | Request::Status => Ok(()),
        };
        match done {
            Ok(()) => Answer::Ok,
            Err(error) => {
                tracing::error!(%error, "cannot be written to disk");
                let text = "netwrightd cannot record what the pod has";
                let details = cni::Error::from_chain(0, &error).msg;
                Answer::Refused(Refusal::for_now(text).with_details(details))
            }
        }
    }

    async fn plan(&self, request: &PlanRequest) -> Answer {
        let planned = tokio::time::timeout(ANSWER_TIME, async {
            let _turn = self.plans.acquire().await;
            self.planned(request).await
        });
        let no_plan = match planned.await {
            Ok(Ok(plan)) => return Answer::Plan(plan),
            Ok(Err(no_plan)) => no_plan,
            Err(_) => {
                let text = format!(
                    "the API server has not said which networks the pod is to have within {} s",
                    ANSWER_TIME.as_secs()
                );
                (NoPlan { refusal: Refusal::for_now(text), event: Some(REFUSED) }, None)
            }
        };
        let (NoPlan { refusal, event }, pod) = no_plan;
        let told = request.pod.clone().unwrap_or_default();
        tracing::info!(
            namespace = told.namespace,
            pod = told.name,
            retry = refusal.retry,
            err = refusal.msg,
            "cannot plan a pod's networks"
        );
        let pod = pod.or_else(|| {
            // An Event needs the pod's UID.
            let known = self.pods.get(&format!("{}/{}", told.namespace, told.name));
            known.filter(|known| told.uid.is_empty() || told.uid == known.uid)
        });
        if let (Some(reason), Some(pod)) = (event, pod) {
            self.tell(&pod, Tone::Warning, reason, &refusal.msg);
        }
        Answer::Refused(refusal)
    }

    async fn planned(
        &self,
        request: &PlanRequest,
    ) -> Result<node_api::multinet::Plan, (NoPlan, Option<PodFacts>)> {
        let pod = match &request.pod {
            Some(pod) => Some(self.pod(pod).await.map_err(|no_plan| (no_plan, None))?),
            None => None,
        };
        let networks = self.networks(request, pod.as_ref()).await;
        let networks = networks.map_err(|no_plan| (no_plan, pod.clone()))?;
        Ok(plan::plan(pod.as_ref(), networks))
    }

    /// Plans the networks of a pod.
    pub(super) async fn networks(
        &self,
        request: &PlanRequest,
        pod: Option<&PodFacts>,
    ) -> Result<Vec<node_api::multinet::PlannedNetwork>, NoPlan> {
        let defaults = self.flags.defaults.under(&request.settings);
        let mut wanted = Vec::new();
        for one in plan::wanted(request, pod, &defaults)? {
            let found = self.definition(&one).await;
            wanted.push((one, found));
        }
        // The runtime has the kubelet's own UID, which differs from the API's for a static pod.
        let told = request.pod.as_ref().map(|told| told.uid.as_str());
        let mut devices = self.devices(pod, told.unwrap_or_default(), &wanted).await;
        let pod = pod.map(|pod| pod.namespace.as_str()).unwrap_or_default();
        let is_on_node = |name: &str| self.is_on_node(name);
        plan::networks(pod, &wanted, is_on_node, &mut devices, &defaults.policy)
    }

    /// Returns the devices that the kubelet has allocated to a pod; reads nothing where no network
    /// needs one.
    async fn devices(
        &self,
        pod: Option<&PodFacts>,
        told: &str,
        wanted: &[(WantedNetwork, Lookup)],
    ) -> Devices {
        let resources = || wanted.iter().filter_map(|(_, found)| found.resource());
        let Some(pod) = pod.filter(|_| resources().next().is_some()) else {
            return PodDevices::default().in_order(&[]);
        };
        let uid = if told.is_empty() { &pod.uid } else { told };
        match PodDevices::of_pod(&self.flags.checkpoint, uid) {
            Ok(allocated) if allocated.is_of_several(resources()) => {
                match self.containers(pod).await {
                    Ok(order) => allocated.in_order(&order),
                    Err(error) => Devices::unknown(format!(
                        "the order of the pod's containers is not known: {error}"
                    )),
                }
            }
            Ok(allocated) => allocated.in_order(&[]),
            Err(why) => Devices::unknown(why),
        }
    }

    /// Returns the order of a pod's containers, which never changes: the API server is asked once.
    async fn containers(&self, pod: &PodFacts) -> Result<Vec<String>, ApiError> {
        let known = |of: &Mutex<HashMap<String, Vec<String>>>| {
            of.lock().unwrap_or_else(PoisonError::into_inner).get(&pod.uid).cloned()
        };
        if let Some(order) = known(&self.containers) {
            return Ok(order);
        }
        let turn = self.questions.acquire().await;
        let order = self.api.containers(pod).await?;
        drop(turn);
        let mut all = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
        if ORDERS <= all.len() {
            all.clear();
        }
        all.insert(pod.uid.clone(), order.clone());
        Ok(order)
    }

    /// Returns what is known of a pod; asks the API server where that may be another pod than the
    /// one that is meant.
    async fn pod(&self, told: &Pod) -> Result<PodFacts, NoPlan> {
        let id = format!("{}/{}", told.namespace, told.name);
        let is_it = |pod: &PodFacts| told.uid == pod.uid || told.uid.is_empty() || pod.is_static();
        let known = || {
            // Without a UID, what was known before the watch broke may be another pod of that name.
            let live = self.pods.freshness() == Freshness::Live;
            let certain = |pod: &PodFacts| is_it(pod) && (live || !told.uid.is_empty());
            self.pods.get(&id).filter(certain)
        };
        if let Some(pod) = known() {
            return Ok(pod);
        }
        let refused = |refusal| NoPlan { refusal, event: None };
        let turn = self.questions.acquire().await;
        // The list may have come while other pods were asked for.
        if let Some(pod) = known() {
            return Ok(pod);
        }
        let asked = self.api.pod(&told.namespace, &told.name).await;
        drop(turn);
        match asked {
            Ok(pod) if is_it(&pod) => Ok(pod),
            Ok(pod) => {
                let text = format!(
                    "the API server's pod of that name is another one: its UID is {}, the sandbox is for {}",
                    pod.uid, told.uid
                );
                Err(refused(Refusal::new(cni::code::INVALID_ENVIRONMENT, text)))
            }
            Err(ApiError::Gone(_)) => {
                let text = "the API server has no such pod".to_owned();
                Err(refused(Refusal::new(cni::code::INVALID_ENVIRONMENT, text)))
            }
            Err(error) => {
                let text = format!("which networks the pod is to have is not known: {error}");
                Err(refused(Refusal::for_now(text)))
            }
        }
    }

    /// Returns what is known of a definition; asks the API server for one that is not known.
    async fn definition(&self, wanted: &WantedNetwork) -> Lookup {
        let (namespace, name) = wanted.definition();
        let id = format!("{namespace}/{name}");
        if let Some(definition) = self.definitions.get(&id) {
            return Lookup::Definition(definition);
        }
        // Every pod has these: do not ask for them each time. What a pod selects may have been
        // defined a moment ago.
        if let NetworkSource::Named { text, .. } = &wanted.what
            && (self.definitions.freshness() == Freshness::Live || self.is_on_node(text))
        {
            return Lookup::Nothing;
        }
        let _turn = self.questions.acquire().await;
        if let Some(definition) = self.definitions.get(&id) {
            return Lookup::Definition(definition);
        }
        match self.api.definition(namespace, name).await {
            Ok(definition) => Lookup::Definition(definition),
            Err(error) if error.is_absence() => Lookup::Nothing,
            Err(error) => Lookup::Unknown(error.to_string()),
        }
    }

    /// Says whether the node has a network of this name.
    pub(super) fn is_on_node(&self, name: &str) -> bool {
        self.on_node(name).is_some()
    }

    /// Returns the node's network of this name.
    pub(super) fn on_node(&self, name: &str) -> Option<cni::NetworkList> {
        let found = |dir: &PathBuf| ConfigFolder::scan(dir).ok()?.find(name).ok().cloned();
        self.flags.conf_dirs().iter().find_map(found)
    }

    /// Succeeds if pods can be served; the error says why not.
    pub(super) fn status(&self) -> Result<(), Refusal> {
        let not_ready = |text: String| {
            Err(Refusal { retry: true, ..Refusal::new(cni::code::PLUGIN_NOT_AVAILABLE, text) })
        };
        let cluster = match self.flags.defaults.cluster() {
            Ok(cluster) => cluster,
            // The plugin's configuration may name it.
            Err(_) if self.flags.conflist.is_none() => return Ok(()),
            Err(no_plan) => return not_ready(no_plan.refusal.msg),
        };
        let (namespace, name) = cluster.definition();
        let is_defined = self.definitions.get(&format!("{namespace}/{name}")).is_some();
        if !self.pods.is_usable() {
            let reason = match self.pods.freshness() {
                Freshness::Lost(reason) => reason,
                _ => "the API server was not reached yet".to_owned(),
            };
            return not_ready(format!("nothing is known of the pods of this node: {reason}"));
        }
        let on_node = self.flags.defaults.cluster_network.as_deref().unwrap_or_default();
        if !is_defined && !self.is_on_node(on_node) {
            return not_ready(format!(
                "the default network {on_node:?} is neither a NetworkAttachmentDefinition {namespace}/{name} nor in {}",
                self.flags
                    .conf_dirs()
                    .iter()
                    .map(|dir| dir.display().to_string())
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
        }
        Ok(())
    }

    fn attached(&self, attached: &AttachReport) -> Result<(), FileError> {
        if attached.pod.name.is_empty() {
            return Ok(());
        }
        self.held.put(attached)?;
        let pod = facts(&attached.pod);
        // Pods that a node starts with have the default network, and no program reads their status
        // (as Multus sees it).
        let defaults = &self.flags.defaults;
        if attached.results.len() == 1 && defaults.system_namespaces.contains(&pod.namespace) {
            return Ok(());
        }
        self.write_status(attached)?;
        for result in &attached.results {
            self.tell(&pod, Tone::Normal, ADDED, &added(result));
        }
        // The annotation may have changed since the plan was made.
        self.look_after([pod.id()]);
        Ok(())
    }

    /// Queues the status of a sandbox's networks to be written.
    pub(super) fn write_status(&self, attached: &AttachReport) -> Result<(), FileError> {
        let text = status::write(&statuses(&attached.results), self.flags.status);
        let annotations = BTreeMap::from([
            (annotation::STATUS.to_owned(), text.clone()),
            (annotation::LEGACY_STATUS.to_owned(), text),
        ]);
        let pod = facts(&attached.pod);
        let sandbox = attached.sandbox.container.clone();
        self.outbox.put(Item::Status { pod, sandbox, annotations })
    }

    fn failed(&self, failed: &FailureReport) -> Result<(), FileError> {
        self.gone(&failed.sandbox)?;
        if !failed.pod.uid.is_empty() {
            let mut message = failed.msg.clone();
            if !failed.network.is_empty() && !message.contains(&failed.network) {
                message = format!("network {:?}: {message}", failed.network);
            }
            if !failed.details.is_empty() {
                message = format!("{message}: {}", failed.details);
            }
            self.tell(&facts(&failed.pod), Tone::Warning, FAILED, &message);
        }
        Ok(())
    }

    fn detached(&self, detached: &DetachReport) -> Result<(), FileError> {
        self.gone(&detached.sandbox)
    }

    fn gone(&self, sandbox: &node_api::multinet::Sandbox) -> Result<(), FileError> {
        self.outbox.forget(&sandbox.container);
        self.held.remove(sandbox)
    }

    /// Queues an Event about a pod to be written.
    pub(super) fn tell(&self, pod: &PodFacts, tone: Tone, reason: &str, message: &str) {
        let now = service_kit::clock::rfc3339(service_kit::clock::wall_ms());
        let item = self.events.item(pod, tone, reason, message, (&now, service_kit::clock::seed()));
        if let Err(error) = self.outbox.put(item) {
            tracing::warn!(%error, pod = pod.id(), reason, message, "cannot queue an Event");
        }
    }
}

/// Returns as much of a pod as writing to it needs.
pub(super) fn facts(pod: &Pod) -> PodFacts {
    PodFacts {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        annotations: BTreeMap::new(),
    }
}

fn statuses(results: &[NetworkResult]) -> Vec<Status> {
    let of = |one: &NetworkResult| {
        let read = cni::AddResult::parse(&one.result.to_vec(), cni::Version::CURRENT);
        let result = read.unwrap_or_default();
        status::of_result(&one.name, &one.ifname, one.default, &result, one.device_info.as_ref())
    };
    results.iter().flat_map(of).collect()
}

/// In Multus' words, for which people search.
pub(super) fn added(one: &NetworkResult) -> String {
    let read = cni::AddResult::parse(&one.result.to_vec(), cni::Version::CURRENT);
    let ips: Vec<String> =
        read.unwrap_or_default().ips.iter().map(|ip| ip.address.to_string()).collect();
    format!("Add {} [{}] from {}", one.ifname, ips.join(" "), one.name)
}
