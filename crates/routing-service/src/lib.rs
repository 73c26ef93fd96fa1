//! Routes and tunnels to the pods of other nodes.
//!
//! | file | what it is |
//! |---|---|
//! | this one | start and end |
//! | `service` | the loop |
//! | `schedule` | what is due, and when |
//! | `context` | what every part uses |
//! | `settings` | the configuration |
//! | `source` | where nodes are learnt |
//! | `nodes` | from a file |
//! | `cluster_nodes` | or the Nodes of a Kubernetes cluster |
//! | `node_object` | such a Node, as the API server gives it |
//! | `etcd_leases` | or flannel's leases in etcd |
//! | `own_lease` | this node's lease there, and flanneld's configuration |
//! | `spaces` | blocks of spaces, with nodes of any source |
//! | `etcd_keys` | follows keys of etcd, for both |
//! | `flannel_config` | flanneld's configuration |
//! | `dataplane` | the kernel's side: what routing plans is made there |
//! | `host` | what the kernel has, in routing's words |
//! | `events` | which events of the kernel ask for a look |
//! | `ways` | the ways to nodes' addresses |
//! | `apply` | makes changes in the kernel |
//! | `making` | makes many, and what needs no answer to them at the same time |
//! | `filter` | the packet filter's table |
//! | `files` | the last known nodes, and what runtimes and plugins read |
//! | `published` | when the latter is written, and what of others' comes before it |
//! | `reports` | what the log and the notices say, and for how long |
//! | `answers` | what `netwright routes` asks |
//! | `probes` | whether other nodes answer |
//! | `counts` | what is counted, for metrics |
//! | `leave` | `--uninstall` |
//!
//! The crate `netwright-routing` makes all decisions. The loop passes it what the nodes are and
//! what the kernel has, has the changes made that it returns, and passes it the results. An event of
//! the kernel never says what to do: it only makes the loop look again. No part asks another for
//! something later: what is learnt, heard and made returns what has become due, and the loop notes
//! it. Nothing is removed when the service ends.
//!
//! # Looks
//!
//! A look reads everything that is ours, has the crate compare it with what is wanted, and carries
//! out the changes. An event causes one only if it says something else than the loop knows. The
//! kernel reports some changes late and others never: when a link goes down, its IPv4 routes and
//! nexthops vanish without a message. To repair single objects by their events would be cheaper (a
//! look with 5,000 nodes reads 20,000 objects), but wrong if an event is late. A burst of events
//! causes one look, after which the loop rests four times as long as it worked. While a tunnel is
//! being made, the kernel reports states that it no longer has afterwards, so the loop reads these
//! events before it puts anything on the tunnel.
//!
//! News of a node needs no look: only that node is planned. The ways to nodes are asked for after
//! an event about a route, an address or a link that is not ours, after events were lost, and after
//! each interval, because rules and other tables change without an event. The packet filter has a
//! look of its own: the kernel reports that something was removed, but not from which table, and on
//! a node with many services that happens all the time.
//!
//! The loop blocks, on one thread. A second thread answers `netwright routes`, behind a lock that
//! is held for decisions only. A third follows the API server, if it is the source, and counts it
//! as reachable after a broken watch only once it has answered a request. More than 2,048 changes
//! in a row get two more threads (`making`); no change waits for them, and none is made in another
//! order.
//!
//! Forwarding is switched on and stays on. The holders that plugins use for it are attachments, and
//! GC would collect any other.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answers;
mod apply;
mod cluster_nodes;
pub mod command;
mod context;
mod counts;
mod dataplane;
mod etcd_keys;
mod etcd_leases;
mod events;
mod files;
mod filter;
mod flannel_config;
mod host;
mod leave;
mod making;
mod node_object;
mod nodes;
mod own_lease;
mod probe;
mod probes;
mod published;
mod reports;
mod schedule;
mod service;
mod settings;
mod source;
mod spaces;
mod ways;

use agent::config::RoutingSource;
use clap::{Arg, ArgAction};
use service_kit::attendant::{Attendant, Duties};
use service_kit::command_line::{Invocation, UNINSTALL};
use service_kit::event_loop::EventLoop;
use service_kit::listen::Listener;
use service_kit::process::Process;
use service_kit::stop::{Stop, failed};

use self::context::Context;
use self::files::{Disk, NetworkFiles};
use self::own_lease::Configuration;
use self::service::Service;
use self::settings::{settings, under_policy};

/// Numbers of the descriptors that the loop waits for.
const EVENTS: u64 = 0;
const FOLDERS: u64 = 1;
const ASKED: u64 = 2;
const NODES: u64 = 3;
const SPACES: u64 = 4;

/// This variable names the folder of the host's kernel parameters, where `/proc/sys` is a
/// container's.
const SYSCTLS: &str = "NETWRIGHT_SYSCTL_DIR";

const TO_FLANNEL: &str = "to-flannel";
const FORCE: &str = "force";

/// The flags that are not keys of the configuration.
pub fn more_flags() -> Vec<Arg> {
    let uninstall = Arg::new(UNINSTALL).long(UNINSTALL).action(ArgAction::SetTrue);
    let to_flannel =
        Arg::new(TO_FLANNEL).long(TO_FLANNEL).action(ArgAction::SetTrue).requires(UNINSTALL);
    vec![
        uninstall.help(
            "remove everything that the service made on this node, and end; pods here and elsewhere do not reach each other any more",
        ),
        to_flannel.help(
            "with --uninstall: leave the tunnels to flanneld, which runs on this node again",
        ),
        Arg::new(FORCE).long(FORCE).action(ArgAction::SetTrue).requires(UNINSTALL).help(
            "with --uninstall: even while containers of the network are attached here, which would be cut off from other nodes",
        ),
    ]
}

/// Runs the service until a signal ends it.
pub fn run(invocation: &Invocation, process: &Process) -> Result<(), Stop> {
    if let Some(folder) = std::env::var_os(SYSCTLS) {
        kernel::sysctl::use_folder(folder.into());
    }
    let config = &invocation.config().routing;
    let node = process.node_name(config.node.clone().unwrap_or_default());
    let folder = config.state.clone().unwrap_or_else(|| process.roots().lib.join("routing"));
    let disk = Disk::new(&folder);
    let is_etcd = config.source.0 == RoutingSource::Etcd;
    if invocation.takes_off() {
        return leave::uninstall(invocation, process, &node, &disk);
    }
    let mut events = EventLoop::new(process)?;
    events.attend(&invocation.loaded)?;
    let of_etcd = match is_etcd {
        true => match Configuration::wait(config, &disk, process, events.signals())? {
            Some(found) => Some(found),
            None => {
                process.tell_stopping();
                return Ok(());
            }
        },
        false => None,
    };
    let settings = settings(config, &disk, of_etcd.as_ref()).map_err(Stop::Failed)?;
    let listener = Listener::open(Vec::new(), &config.socketpath).map_err(failed)?;
    let socket = listener.path.clone();
    let files = NetworkFiles::new(config, under_policy(&invocation.config().policy));
    let context = Context::new(settings, node, process)?;
    let mut service = Service::new(config, context, of_etcd, disk, files, process)?;
    let shared = service.shared();
    let answer = Box::new(move |target: &str| shared.answer(target));
    let answers = Duties { answer, reload: None, changed: None };
    let _answering = Attendant::start(Some(listener), answers, &process.hung_up).map_err(failed)?;
    service.watch(&events)?;
    service.start();
    process.tell_ready(Some(&socket));
    service.report_ready();
    let served = events.serve(&mut service);
    service.save();
    served?;
    tracing::info!("stopped; routes and tunnels stay");
    Ok(())
}
