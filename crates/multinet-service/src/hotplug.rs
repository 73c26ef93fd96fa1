//! Attaches and detaches networks while pods run: when an annotation changes, or a definition
//! comes.
//!
//! The daemon calls the plugin as a runtime does. The plugin knows what belongs to a sandbox, and
//! its DEL removes all of it. Each step is recorded after it is done. A step that was done and not
//! recorded is done again: before the daemon attaches an interface, it detaches what a killed
//! daemon may have attached there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::CallEnv;
use cni::json::Object;
use cni_invoke::{Exec, Executor as _};
use kernel::netns::{self, Netns};
use node_api::multinet;
use node_api::multinet::{AttachReport, NetworkResult, PlanRequest, PlannedNetwork};
use plugins::netwright_multi;

use super::diff::difference;
use super::events::Tone;
use super::known::Freshness;
use super::service::{FAILED, Service, added, facts};

/// The plugin's type, and the network's name in the configuration that is written here.
const PLUGIN: &str = netwright_multi::INFO.name;
/// The plugin's timeout for one network.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait before a failed step is tried again.
const AGAIN: Duration = Duration::from_secs(15);
/// The reason in the pod's Event when an interface is removed.
const REMOVED: &str = "RemovedInterface";

/// Calls the plugin.
#[derive(Debug)]
pub(super) struct Plugger {
    pub(super) exec: Exec,
    pub(super) path: Vec<PathBuf>,
}

/// Handles the pods for which something changed, for ever.
pub(super) async fn run(service: Arc<Service>, plugger: Arc<Plugger>) {
    let mut later: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        let due = later.values().min().map(|at| at.saturating_duration_since(Instant::now()));
        let _ = tokio::time::timeout(due.unwrap_or(AGAIN), service.news.notified()).await;
        let mut changed = service.changed();
        let now = Instant::now();
        changed.extend(later.iter().filter(|(_, at)| **at <= now).map(|(id, _)| id.clone()));
        for id in changed {
            later.remove(&id);
            if !look_after(&service, &plugger, &id).await {
                later.insert(id, Instant::now() + AGAIN);
            }
        }
    }
}

/// Gives a pod the networks it is to have; returns true when nothing is left to try.
async fn look_after(service: &Arc<Service>, plugger: &Arc<Plugger>, id: &str) -> bool {
    let Some(pod) = service.pods.get(id) else {
        forget_gone(service, id);
        return true;
    };
    let mut done = true;
    for attached in service.held.of_pod(id) {
        if attached.pod.uid != pod.uid || attached.sandbox.netns.is_empty() {
            continue;
        }
        let request = PlanRequest {
            sandbox: attached.sandbox.clone(),
            settings: attached.settings.clone(),
            ..PlanRequest::default()
        };
        let wanted = match service.networks(&request, Some(&pod)).await {
            Ok(wanted) => wanted,
            Err(no_plan) => {
                // The pod keeps what it has.
                if let Some(reason) = no_plan.event {
                    service.tell(&pod, Tone::Warning, reason, &no_plan.refusal.msg);
                }
                done &= !no_plan.refusal.retry;
                continue;
            }
        };
        let to_do = difference(&attached.results, &wanted);
        if to_do.detach.is_empty() && to_do.attach.is_empty() {
            continue;
        }
        let (service, plugger) = (Arc::clone(service), Arc::clone(plugger));
        let changed = tokio::task::spawn_blocking(move || {
            let mut all = true;
            let mut attached = attached;
            for ifname in &to_do.detach {
                all &= detach(&service, &plugger, &mut attached, ifname);
            }
            for network in &to_do.attach {
                all &= attach(&service, &plugger, &mut attached, network);
            }
            all
        });
        done &= changed.await.unwrap_or(true);
    }
    done
}

/// Forgets sandboxes whose pod the API server no longer has and whose namespace cannot be seen:
/// nothing is to be written about them. Nothing is detached or freed: that is up to the runtime,
/// whose DEL may still come.
fn forget_gone(service: &Service, id: &str) {
    if service.pods.freshness() != Freshness::Live {
        return;
    }
    for attached in service.held.of_pod(id) {
        let netns = &attached.sandbox.netns;
        if !netns.is_empty()
            && seen(netns).is_none()
            && let Err(error) = service.held.remove(&attached.sandbox)
        {
            tracing::warn!(%error, "cannot forget a sandbox that is gone");
        }
    }
}

/// Finds a path at which a sandbox's namespace can be seen from here: the runtime's own, or its
/// other name.
fn seen(netns: &str) -> Option<PathBuf> {
    let path = PathBuf::from(netns);
    let other = netns::other_path(&path);
    std::iter::once(path).chain(other).find(|path| Netns::open(path).is_ok())
}

fn detach(service: &Service, plugger: &Plugger, attached: &mut AttachReport, ifname: &str) -> bool {
    let pod = facts(&attached.pod);
    if let Err(error) = plugger.detach(service, attached, ifname) {
        let text = format!("detach {ifname}: {}", error.context_text());
        service.tell(&pod, Tone::Warning, FAILED, &text);
        return false;
    }
    let gone = attached.results.iter().position(|one| one.ifname == ifname);
    let name = gone.map(|place| attached.results.remove(place).name).unwrap_or_default();
    let kept = keep(service, attached);
    if kept == Some(true) {
        service.tell(&pod, Tone::Normal, REMOVED, &format!("Remove {ifname} from {name}"));
    }
    kept.is_some()
}

fn attach(
    service: &Service,
    plugger: &Plugger,
    attached: &mut AttachReport,
    network: &PlannedNetwork,
) -> bool {
    let pod = facts(&attached.pod);
    let ifname = network.ifname.clone().unwrap_or_default();
    let taken = attached.results.iter().any(|one| one.ifname == ifname);
    let made = if taken {
        // The interface that has the name was to be detached first, and that failed.
        return false;
    } else {
        plugger
            .detach(service, attached, &ifname)
            .and_then(|()| plugger.attach(service, attached, network))
    };
    let result = match made {
        Ok(result) => result,
        Err(error) => {
            let text = format!("attach {ifname} to {:?}: {}", network.name, error.context_text());
            service.tell(&pod, Tone::Warning, FAILED, &text);
            return false;
        }
    };
    let one = NetworkResult { name: network.name.clone(), ifname, result, ..Default::default() };
    let text = added(&one);
    attached.results.push(one);
    match keep(service, attached) {
        Some(true) => service.tell(&pod, Tone::Normal, super::service::ADDED, &text),
        // The sandbox went meanwhile: its DEL may have come before our ADD.
        Some(false) => {
            let ifname = network.ifname.as_deref().unwrap_or_default();
            return plugger.detach(service, attached, ifname).is_ok();
        }
        None => return false,
    }
    true
}

/// Records what a sandbox has now, and sends its status; says whether the sandbox still exists,
/// `None` if that failed.
fn keep(service: &Service, attached: &AttachReport) -> Option<bool> {
    let kept = service.held.replace(attached).and_then(|there| {
        if there {
            service.write_status(attached)?;
        }
        Ok(there)
    });
    kept.inspect_err(|error| tracing::error!(%error, "cannot be written to disk")).ok()
}

impl Plugger {
    fn attach(
        &self,
        service: &Service,
        attached: &AttachReport,
        network: &PlannedNetwork,
    ) -> Result<Object, cni::Error> {
        let mut config = Self::config(service);
        config.set_value(multinet::ATTACH, network);
        let said = self.call("ADD", attached, &config)?;
        Object::parse(&said)
            .map_err(|error| cni::Error::new(cni::code::DECODE_FAILURE, error.to_string()))
    }

    fn detach(
        &self,
        service: &Service,
        attached: &AttachReport,
        ifname: &str,
    ) -> Result<(), cni::Error> {
        let mut config = Self::config(service);
        config.set_value(multinet::DETACH, ifname);
        self.call("DEL", attached, &config).map(drop)
    }

    /// Returns the plugin's configuration as [`super::conflist`] writes it.
    fn config(service: &Service) -> Object {
        let text = super::conflist::plugin(service);
        let mut config = Object::parse(text.to_string().as_bytes()).unwrap_or_default();
        config.set_value("cniVersion", "1.0.0");
        config.set_value("name", PLUGIN);
        config
    }

    fn call(
        &self,
        verb: &str,
        attached: &AttachReport,
        config: &Object,
    ) -> Result<Vec<u8>, cni::Error> {
        let executable = cni_invoke::find(PLUGIN, &self.path).map_err(|error| error.to_cni())?;
        let path: Vec<_> = self.path.iter().map(|dir| dir.to_string_lossy()).collect();
        let (sandbox, pod) = (&attached.sandbox, &attached.pod);
        // A namespace that cannot be seen from here is not gone: the pod runs on with what it has.
        let netns = seen(&sandbox.netns).ok_or_else(|| {
            let text = format!("netwrightd does not see the namespace {}", sandbox.netns);
            let hint = match Path::new(&sandbox.netns).parent() {
                Some(folder) => format!(
                    "mount {} of the host there, with propagation from the host",
                    folder.display()
                ),
                None => String::new(),
            };
            cni::Error::new(cni::code::INVALID_NETNS, text).with_details(hint)
        })?;
        let env = CallEnv {
            command: verb.to_owned(),
            container_id: sandbox.container.clone(),
            netns: netns.to_string_lossy().into_owned(),
            ifname: sandbox.ifname.clone(),
            args: format!(
                "IgnoreUnknown=true;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
                pod.namespace, pod.name, sandbox.container, pod.uid
            ),
            path: path.join(":"),
            ..CallEnv::default()
        };
        let request = cni_invoke::Request { env, stdin: config.to_vec() };
        let deadline = Instant::now().checked_add(TIMEOUT);
        let output = self.exec.call(&executable, &request, deadline);
        output.map_err(|error| error.to_cni())?.into_stdout()
    }
}

/// Returns an error as one line.
trait Text {
    fn context_text(&self) -> String;
}

impl Text for cni::Error {
    fn context_text(&self) -> String {
        if self.details.is_empty() {
            self.msg.clone()
        } else {
            format!("{}: {}", self.msg, self.details)
        }
    }
}
