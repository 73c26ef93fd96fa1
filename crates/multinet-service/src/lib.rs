//! Several networks for a pod: the daemon's side of the plugin `netwright-multi`.
//!
//! | file | what it is |
//! |---|---|
//! | this one | start and end |
//! | `flags` | the flags |
//! | `api` | the API server, by the crate `kube` |
//! | `facts` | what is kept of its objects |
//! | `known` | what is known of them, also without the API server |
//! | `plan` | decides which networks a pod is to have |
//! | `devices` | which devices the kubelet has allocated |
//! | `service` | the answers to the plugin, and what follows from its messages |
//! | `held` | what each sandbox has |
//! | `outbox` | what is to be written to the API server |
//! | `events` | Events of pods |
//! | `diff`, `hotplug` | what changes while a pod runs |
//! | `labels` | which networks the node can serve |
//! | `conflist` | the CNI configuration by which runtimes find the plugin |
//!
//! This service is asynchronous, on one thread: it waits for a remote server. It runs no plugin for
//! ADD or DEL: they run in the plugin's process, so that a pod's start charges nothing to this one.
//!
//! Hundreds of pods may start at once: with five hundred the service needs 21 MiB of its limit of
//! 64. The plugin has no credentials and knows no API, and DEL, CHECK, GC and repair need neither
//! this service nor the API server. What this service writes there waits on the disk until the
//! server takes it. Only networks that a running pod gets or loses are attached and detached from
//! here, by a call of the plugin.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod api;
mod conflist;
mod devices;
mod diff;
mod events;
mod facts;
mod flags;
mod held;
mod hotplug;
mod known;
mod labels;
mod outbox;
mod plan;
mod service;

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::{Arg, ArgAction};
use cni_invoke::{Exec, REQUIRE_TRUSTED_PLUGINS};
use node_api::inbox;
use service_kit::asynchronous::{AsyncService, runtime};
use service_kit::command_line::Invocation;
use service_kit::listen::Listener;
use service_kit::process::Process;
use service_kit::stop::{Stop, failed};
use service_kit::{line_server, ready};

use self::api::{Api, ObjectEvent, Objects};
use self::facts::Fact;
use self::flags::Flags;
use self::hotplug::Plugger;
use self::service::Service;

/// How many threads may wait for disks and plugins.
const BLOCKING: usize = 4;

/// The flags that are not keys of the configuration.
pub fn more_flags() -> Vec<Arg> {
    let unlabel = Arg::new(UNLABEL).long(UNLABEL).action(ArgAction::SetTrue);
    vec![unlabel.help("remove the labels of this node that label-node has set, and end")]
}

const UNLABEL: &str = "unlabel-node";

/// Refuses a file of policy and defaults that is wrong.
pub fn check(invocation: &Invocation) -> Result<(), Stop> {
    Flags::of(invocation).map(drop)
}

/// Runs the service until a signal ends it.
pub fn run(invocation: &Invocation, process: &Process) -> Result<(), Stop> {
    let mut flags = Flags::of(invocation)?;
    flags.node = process.node_name(flags.node);
    if invocation.more.get_flag(UNLABEL) {
        return runtime(BLOCKING)?.block_on(unlabel(&flags));
    }
    let service = AsyncService::new(process, &invocation.loaded, runtime(BLOCKING)?)?;
    let listener = process.listen(&flags.socket).map_err(failed)?;
    service.serve(listener, async |listener| start(flags, process, listener).await)?;
    tracing::info!("stopped; pods keep their networks");
    Ok(())
}

/// Removes this node's labels of ours.
async fn unlabel(flags: &Flags) -> Result<(), Stop> {
    let api = Api::new(flags.kubeconfig.as_deref()).await.map_err(failed)?;
    labels::write(&api, &flags.node, &BTreeMap::new()).await.map_err(failed)
}

/// Begins to serve. Work under way at the end is on the disk, or known to a plugin, which leaves it
/// there.
async fn start(flags: Flags, process: &Process, listener: &Listener) -> Result<(), Stop> {
    let api = Api::new(flags.kubeconfig.as_deref()).await.map_err(failed)?;
    let inbox = inbox::open(&listener.path).map_err(failed)?;
    let service = Service::open(flags, api.clone(), &process.roots()).map_err(failed)?;
    let service = Arc::new(service);
    // Before the first answer: a newer message about the same sandbox may come.
    service.look_at_inbox(&inbox);
    line_server::start(Arc::clone(&service), listener).map_err(failed)?;
    let of = Arc::clone(&service);
    let folder = inbox.clone();
    line_server::look_at_inbox(&folder, move || of.look_at_inbox(&inbox)).map_err(failed)?;
    tokio::spawn(Arc::clone(&service.outbox).run(api));
    let pods = service.api.follow_pods(&service.flags.node);
    tokio::spawn(take(Arc::clone(&service), pods, "pods", |service, event| {
        let changed = service.pods.take(event);
        service.look_after(changed);
    }));
    let definitions = service.api.follow_definitions();
    tokio::spawn(take(Arc::clone(&service), definitions, "definitions", |service, event| {
        if !service.definitions.take(event).is_empty() {
            service.defined.notify_one();
            // For pods that wait for one of them.
            service.look_after(service.held.pods());
        }
    }));
    let path = service.flags.path.clone();
    if service.flags.label_node {
        tokio::spawn(labels::run(Arc::clone(&service), path.clone()));
    }
    let exec = Exec::new(process.environment.iter().cloned());
    let exec = exec.refusing_untrusted_if(REQUIRE_TRUSTED_PLUGINS);
    let plugger = Arc::new(Plugger { exec, path });
    // For changes while there was no daemon.
    service.look_after(service.held.pods());
    tokio::spawn(hotplug::run(Arc::clone(&service), plugger));
    if let Some(path) = service.flags.conflist.clone() {
        tokio::spawn(conflist::run(Arc::clone(&service), path));
    }
    let of = Arc::clone(&service);
    let health = process.health.clone();
    tokio::spawn(ready::run(listener.path.clone(), move || {
        let status = of.status();
        health.needs("cluster", status.as_ref().map_err(|no| no.msg.clone()).copied());
        status.is_ok()
    }));
    process.tell_ready(Some(&listener.path));
    tracing::info!(socket = %listener.path.display(), node = service.flags.node, "ready");
    Ok(())
}

/// Applies what a watch reports.
async fn take<T: Fact>(
    service: Arc<Service>,
    mut objects: Objects<T>,
    what: &'static str,
    known: impl Fn(&Service, ObjectEvent<T>) + Copy + Send + 'static,
) {
    let mut lost = false;
    while let Some(event) = objects.next().await {
        match &event {
            ObjectEvent::Silent(error) => {
                if !lost {
                    tracing::warn!(%error, what, "no changes arrive; the last known state is used");
                }
                lost = true;
            }
            ObjectEvent::Complete | ObjectEvent::Changed(_) | ObjectEvent::Answers if lost => {
                tracing::info!(what, "changes arrive again");
                lost = false;
            }
            _ => {}
        }
        let service = Arc::clone(&service);
        // It writes files: not on the thread that answers.
        let taken = tokio::task::spawn_blocking(move || known(&service, event));
        if taken.await.is_err() {
            return;
        }
    }
}
