//! Docker's network and IPAM driver: any network list of the node becomes a Docker network.
//!
//! | file | what it is |
//! |---|---|
//! | `serve` | the socket, and the bound on every answer |
//! | `driver` | the calls |
//! | `network` | networks |
//! | `create_options` | what a user wants of a network, as a network list |
//! | `pool_config` | which plugin gives a list's addresses, and which addresses |
//! | `endpoint` | an endpoint's life |
//! | `handover` | its interface's way to Docker and back |
//! | `sandbox` | whether a container's namespace is still there |
//! | `finish_link` | what Docker does not do for the interface |
//! | `policy_routing` | source-based routing, which Docker does not move |
//! | `orphans` | plugins that a killed driver left running |
//! | `ports` | published ports |
//! | `pools` | the IPAM driver |
//! | `holds` | which networks have a pool |
//! | `journal` | what is on disk, which is all the driver remembers |
//! | `mirrored_file` | how a record is written, so that a damaged file can be restored |
//! | `recovery` | what is known of lost records |
//! | `pending_calls` | calls that were under way when a driver was killed |
//! | `subject` | what a line of the log is about |
//! | `mend` | repair of interfaces in containers, beside the driver |
//! | `collect` | endpoints whose container is gone |
//!
//! Docker is never called: it may be waiting for us. The messages are those of [`cnm`].
//!
//! Plugins never see Docker's containers. ADD and DEL run in a namespace of the driver's own, one
//! for each endpoint below `/run/netwright/docker/netns`, because Docker before 28 makes the
//! container's namespace only after it has asked for the endpoint. In between, Docker moves the
//! interface into the container. The driver then sets what Docker does not, and announces the
//! container's addresses; engine 20.10 does not announce them, and other hosts could not reach a
//! restarted container by IPv6 for half a minute. The caller of a repair says where the
//! interface is (`cni::ATTACHED_AS`).
//!
//! The driver keeps nothing in memory, so it can answer a repeated call after any crash. A call
//! reads its file, and writes it before it acts; a call that undoes something removes the file
//! last. When Docker repeats a call whose connection broke, it sends no content:
//! `/run/netwright/docker/calls` says what the call is about.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod collect;
mod create_options;
mod driver;
mod endpoint;
mod finish_link;
mod handover;
mod holds;
mod journal;
mod mend;
mod mirrored_file;
mod network;
mod orphans;
mod pending_calls;
mod policy_routing;
mod pool_config;
mod pools;
mod ports;
mod recovery;
mod sandbox;
mod serve;
mod subject;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cni_invoke::Exec;
use cni_runtime::{Cache, Runtime};
use service_kit::command_line::Invocation;
use service_kit::event_loop::EventLoop;
use service_kit::listen::{self, ListenError, Listener};
use service_kit::process::Process;
use service_kit::stop::{Stop, failed};

use driver::Driver;
use journal::Journal;
pub use mend::{DriverRecords, Placement};
use serve::{Server, Socket};

/// The time for undoing after a plugin's timeout.
const CLEANUP: Duration = Duration::from_secs(5);

/// How long the socket of a killed driver may still answer, and the pause between attempts.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(3);
const SOCKET_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the service until a signal ends it.
pub fn run(invocation: &Invocation, process: &Process) -> Result<(), Stop> {
    let flags = &invocation.config().docker;
    let mut events = EventLoop::new(process)?;
    let handed_over = listen::handed_over(&process.environment).map_err(failed)?;
    let roots = process.roots();
    let state = flags.state.clone().unwrap_or_else(|| roots.lib.join("docker"));
    let journal = Journal::open(&state, &roots.run.join("docker/records")).map_err(failed)?;
    let boot_id = state::boot_id().map_err(failed)?;
    let exec = Arc::new(Exec::new(process.environment.iter().cloned()));
    let runtime = Runtime::new(flags.pluginpath.clone(), exec)
        .with_cleanup_time(CLEANUP)
        .with_stderr(|said| {
            let text = String::from_utf8_lossy(said.text);
            tracing::info!(plugin = said.plugin_type, command = %said.command, "{}", text.trim_end());
        });
    // Created at the start, for what later comes and goes in them.
    for folder in [state::PASSAGES, "docker/ports"] {
        let folder = roots.run.join(folder);
        state::create_directory(&folder, 0o700).map_err(failed)?;
    }
    let port_runtime = runtime.clone().with_cache(Cache::new(roots.run.join("docker/ports")));
    let runtime = runtime.with_cache(Cache::new(&flags.cachedir));
    for runtime in [&port_runtime, &runtime] {
        // What a killed driver was writing there.
        state::remove_abandoned(runtime.cache().results_dir());
    }
    let intents = pending_calls::Intents::open(&roots.run.join("docker/calls")).map_err(failed)?;
    let driver = Arc::new(Driver::new(
        (journal, intents),
        (runtime, port_runtime),
        flags.confdir.clone(),
        roots,
        boot_id,
        flags.timeout,
    ));
    driver.finish_removals();
    let listener = listen(handed_over, &flags.socketpath).map_err(failed)?;
    // Time for ADD, for undoing it, and for waiting for an earlier call.
    let answer_time = flags.timeout * 2 + CLEANUP;
    let server = Arc::new(Server {
        driver: Arc::clone(&driver),
        answer_time,
        open: AtomicUsize::new(0),
        silent: Mutex::default(),
        count: AtomicU64::new(0),
    });
    let (end, until) = mpsc::channel();
    driver.settle_recent();
    events.attend(&invocation.loaded)?;
    events.watch(&listener.socket, serve::LISTENER)?;
    let collector = Arc::clone(&driver);
    let collecting = std::thread::spawn(move || collect::run(&collector, &until));
    process.tell_ready(Some(&listener.path));
    tracing::info!(socket = %listener.path.display(), state = %state.display(), "ready");
    let mut socket = Socket { server: Arc::clone(&server), listener: &listener.socket };
    let served = events.serve(&mut socket);
    driver.end();
    drop(end);
    // Calls under way continue until they end, within their bound; everything else is safe on disk.
    let deadline = Instant::now() + answer_time;
    while 0 < server.open.load(Ordering::SeqCst) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = collecting.join();
    listener.close();
    served?;
    tracing::info!("stopped; networks and endpoints are kept");
    Ok(())
}

/// Listens. Waits a moment for a previous driver that was killed: a plugin that it was starting
/// then may still hold its socket.
fn listen(handed_over: Vec<OwnedFd>, path: &Path) -> Result<Listener, ListenError> {
    if !handed_over.is_empty() {
        return Listener::open(handed_over, path);
    }
    let deadline = Instant::now() + SOCKET_TIMEOUT;
    loop {
        match Listener::open(Vec::new(), path) {
            Err(ListenError::InUse { .. }) if Instant::now() < deadline => {
                std::thread::sleep(SOCKET_POLL_INTERVAL);
            }
            opened => return opened,
        }
    }
}
