//! Addresses of networks that span nodes: the daemon's side of the plugin `cluster-ipam`.
//!
//! | file | what it is |
//! |---|---|
//! | this one | start and end |
//! | `flags` | the flags |
//! | `service` | the answers to the plugin |
//! | `tend` | periodic work beside the answers |
//! | `etcd` | records in etcd |
//! | `objects` | records as objects of the Kubernetes API, by the crate `kube` |
//! | `http` | waiting for both servers |
//! | `import` | what Whereabouts has given |
//! | `own_addresses` | the addresses by which other nodes reach this one |
//! | `published` | the records of blocks, for other services |
//!
//! The crate `netwright-cluster-ipam` makes all decisions and blocks: it runs on a bounded number of
//! threads. One more thread waits for sockets and servers, asynchronously.

#![cfg_attr(test, allow(clippy::unwrap_used))]

// Its tests are shared and refer to it by its full name.
#[cfg(test)]
extern crate cluster_ipam as netwright_cluster_ipam;

mod etcd;
mod flags;
mod http;
mod import;
mod objects;
mod own_addresses;
pub mod published;
mod service;
#[cfg(test)]
mod simulation;
mod tend;

use std::sync::Arc;

use cluster_ipam::store::{Store, SureStore};
use cluster_ipam::{Node, Settings, reclaim};
use node_api::inbox;
use service_kit::asynchronous::{AsyncService, runtime};
use service_kit::clock;
use service_kit::command_line::Invocation;
use service_kit::listen::Listener;
use service_kit::process::Process;
use service_kit::stop::{Stop, failed};
use service_kit::{line_server, ready};
use tokio::runtime::Handle;

use self::flags::{Flags, Records};
pub use self::flags::{more_flags, surroundings};
use self::service::Service;

/// How many threads work for plugins at once. If they wait, it is mostly for a server.
const BLOCKING: usize = 96;
/// How often a server is asked before it counts as away.
const ATTEMPTS: u32 = 5;

/// The machine's identity; a reinstalled machine has another one.
const MACHINE_ID: &str = "/etc/machine-id";

/// A clock that keeps counting while the machine sleeps.
#[derive(Debug)]
pub(crate) struct BootClock;

impl cluster_ipam::Clock for BootClock {
    fn now(&self) -> std::time::Duration {
        std::time::Duration::from_millis(clock::boot_ms())
    }
}

/// Runs the service until a signal ends it.
pub fn run(invocation: &Invocation, process: &Process) -> Result<(), Stop> {
    let mut flags = Flags::of(invocation)?;
    flags.node = process.node_name(flags.node);
    flags.read_copies(&process.roots());
    let runtime = runtime(BLOCKING)?;
    if let Some(node) = flags.forget.clone() {
        return runtime.block_on(forget(flags, node));
    }
    if let Some(import) = flags.import.clone() {
        return runtime.block_on(import::run(flags, import));
    }
    if let Some((namespace, name)) = flags.release_sticky.clone() {
        return runtime.block_on(release_sticky(flags, namespace, name));
    }
    let service = AsyncService::new(process, &invocation.loaded, runtime)?;
    let listener = process.listen(&flags.socket).map_err(failed)?;
    service.serve(listener, async |listener| start(flags, process, listener).await)?;
    tracing::info!("stopped; containers keep their addresses");
    Ok(())
}

/// Opens the store that the flags name.
async fn store(flags: &Flags) -> Result<Arc<dyn Store>, Stop> {
    let handle = Handle::current();
    Ok(match &flags.records {
        Records::Etcd(endpoints) => {
            let store = etcd::Etcd::new(endpoints, &flags.etcd_files, handle).map_err(failed)?;
            Arc::new(SureStore::new(store, ATTEMPTS))
        }
        Records::Kubernetes => {
            let store = objects::Objects::new(flags.kubeconfig.as_deref(), handle).await;
            Arc::new(SureStore::new(store.map_err(failed)?, ATTEMPTS))
        }
    })
}

/// Begins to serve. Work under way at the end is on the disk, or no plugin has had an answer about it.
async fn start(flags: Flags, process: &Process, listener: &Listener) -> Result<(), Stop> {
    let store = store(&flags).await?;
    let or_new = |text: Option<String>| {
        let text = text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        text.unwrap_or_else(|| format!("{:016x}", clock::seed()))
    };
    let identity = or_new(std::fs::read_to_string(MACHINE_ID).ok());
    let boot = or_new(state::boot_id().ok());
    let settings = Settings {
        lease: flags.lease,
        idle: flags.idle,
        run: format!("{:016x}{:016x}", clock::seed(), clock::seed()),
        ..Settings::new(&flags.node, &boot, &identity)
    };
    let dir = flags.state.clone().unwrap_or_else(|| process.roots().lib.join("ipam"));
    let node = Node::open(&dir, Arc::clone(&store), Arc::new(BootClock), settings);
    let inbox = inbox::open(&listener.path).map_err(failed)?;
    let service = Arc::new(Service::new(node.map_err(failed)?, inbox.clone()));
    service.node.set_addresses(&own_addresses::find(&flags.underlay, &[]));
    service.tell();
    // Before the first answer, free the addresses that plugins asked to free.
    service.look_at_inbox();
    line_server::start(Arc::clone(&service), listener).map_err(failed)?;
    let of = Arc::clone(&service);
    line_server::look_at_inbox(&inbox, move || of.look_at_inbox()).map_err(failed)?;
    tokio::spawn(tend::tend(Arc::clone(&service), flags.underlay, process.health.clone()));
    tokio::spawn(tend::reclaim(Arc::clone(&service), store, flags.lease));
    tokio::spawn(ready::run(listener.path.clone(), || true));
    process.tell_ready(Some(&listener.path));
    tracing::info!(socket = %listener.path.display(), node = flags.node, "ready");
    Ok(())
}

/// Records that a node will not come back.
async fn forget(flags: Flags, node: String) -> Result<(), Stop> {
    let store = store(&flags).await?;
    let of = node.clone();
    let forgotten = tokio::task::spawn_blocking(move || reclaim::forget(&*store, &of)).await;
    match forgotten.map_err(failed)?.map_err(failed)? {
        Some(wait) => {
            tracing::info!(
                node,
                "forgotten: its blocks are free in {} minutes, when its lease has certainly run out, unless the node renews the lease",
                wait.as_secs().div_ceil(60)
            );
            Ok(())
        }
        None => Err(Stop::Failed(format!("no node {node:?} has blocks of addresses"))),
    }
}

/// Frees the addresses that a pod keeps.
async fn release_sticky(flags: Flags, namespace: String, name: String) -> Result<(), Stop> {
    let store = store(&flags).await?;
    let pod = format!("{namespace}/{name}");
    let work = move || cluster_ipam::sticky::release(&*store, &namespace, &name);
    let released = tokio::task::spawn_blocking(work).await.map_err(failed)?.map_err(failed)?;
    for address in &released.free {
        tracing::info!(pod, %address, "no longer kept: free in some minutes");
    }
    if !released.held.is_empty() {
        let held: Vec<String> = released.held.iter().map(ToString::to_string).collect();
        let text = format!("pod {pod} has {}: delete it first", held.join(", "));
        return Err(Stop::Failed(text));
    }
    if released.free.is_empty() {
        return Err(Stop::Failed(format!("pod {pod} keeps no addresses")));
    }
    Ok(())
}
