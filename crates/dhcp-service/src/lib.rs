//! DHCP leases: the daemon behind the IPAM plugin `dhcp`.
//!
//! | file | what it is |
//! |---|---|
//! | `flags` | the reference's settings |
//! | `conversation` | the socket that plugins connect to; its messages are in [`node_api::dhcp`] |
//! | `service` | the loop |
//! | `lease` | one attachment's lease: the clients of [`dhcp`], and what they want done |
//! | `sockets`, `release_path`, `deferred` | how messages leave: over the interface, or without it |
//! | `lease_result` | what a lease means |
//! | `store` | what is on disk |
//!
//! While a lease is bound it holds nothing open: no socket, no descriptor of the namespace. So a
//! lease does not keep alive a container that vanishes without DEL; the daemon notices at its next
//! check, twice a minute, and releases the lease.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod clock;
mod context;
mod conversation;
mod deferred;
mod flags;
mod lease;
mod lease_result;
mod release_path;
mod service;
mod sockets;
mod store;
mod token;

use std::os::fd::OwnedFd;
use std::path::Path;

use kernel::living::Census;
use kernel::route::RouteSocket;
use node_api::inbox;
use service_kit::command_line::Invocation;
use service_kit::event_loop::EventLoop;
use service_kit::listen::{self, Listener};
use service_kit::process::{Process, raise_descriptor_limit};
use service_kit::stop::{Stop, failed};
use state::Durability;

use context::Context;
use deferred::DeferredReleases;
use flags::Flags;
use service::Service;
use store::Store;
use token::Token;

use docker_service::DriverRecords;

/// Runs the service until a signal ends it.
pub fn run(invocation: &Invocation, process: &Process) -> Result<(), Stop> {
    let flags = Flags::from(&invocation.config().dhcp);
    let mut events = EventLoop::new(process)?;
    // A lease that is being asked for or renewed needs three descriptors.
    raise_descriptor_limit();
    let handed_over = listen::handed_over(&process.environment).map_err(failed)?;
    let state = flags.state.clone().unwrap_or_else(|| process.roots().lib.join("dhcp"));
    let pid_file = flags.pid_file.clone();
    events.attend(&invocation.loaded)?;
    let dockers = DriverRecords::new(&process.roots()).map_err(failed)?;
    let result = serve(flags, handed_over, &events, (state.as_path(), dockers), |socket| {
        if let Some(path) = &pid_file {
            let text = format!("{}\n", std::process::id());
            state::write_atomic(path, text.as_bytes(), 0o644, Durability::Volatile)?;
        }
        process.tell_ready(Some(socket));
        Ok(())
    });
    if let Some(path) = &pid_file {
        let _ = state::remove_file(path);
    }
    result
}

/// Opens everything, and listens last: every connection that is accepted gets an answer, and a
/// daemon that cannot start leaves no socket.
fn serve(
    flags: Flags,
    handed_over: Vec<OwnedFd>,
    events: &EventLoop<'_>,
    (state, dockers): (&Path, DriverRecords),
    ready: impl FnOnce(&Path) -> Result<(), state::FileError>,
) -> Result<(), Stop> {
    let socket = flags.on_host(&flags.socket);
    let world = Context {
        flags,
        boot_id: state::boot_id().map_err(failed)?,
        poller: events.poller(),
        store: Store::open(state).map_err(failed)?,
        late: DeferredReleases::open(state).map_err(failed)?,
        census: Census::new(),
        dockers,
        host: RouteSocket::open().map_err(failed)?,
    };
    let listener = Listener::open(handed_over, &socket).map_err(failed)?;
    // Plugins leave notes here while no daemon listens; the folder stays when the daemon ends.
    if let Err(error) = inbox::open(&listener.path) {
        listener.close();
        return Err(failed(error));
    }
    let socket = listener.path.clone();
    let mut service = Service::new(world, listener);
    if let Err(error) = ready(&socket) {
        service.close();
        return Err(failed(error));
    }
    tracing::info!(socket = %socket.display(), state = %state.display(), leases = service.count(), "ready");
    events.watch(&service.listener.socket, Token::Listener.number())?;
    service.ready.say();
    let served = events.serve(&mut service);
    service.close();
    served?;
    tracing::info!("stopped; leases are kept");
    Ok(())
}
