//! DHCP leases: the daemon behind the IPAM plugin `dhcp`.
//!
//! | file | what it is |
//! |---|---|
//! | `flags` | the reference's flags |
//! | `conversation` | the socket plugins ask through; what is said there is in [`plugins::ipam::dhcp::protocol`] |
//! | `service` | the loop |
//! | `held` | one attachment's lease: the clients of [`dhcp`], and what they want done |
//! | `sockets`, `way`, `late` | how messages leave: over the interface, or without it |
//! | `terms` | what a lease means |
//! | `store` | what is on disk |
//!
//! While a lease is bound nothing of it is open: no socket, no descriptor of the namespace. A container that vanishes without
//! DEL is not kept alive by its lease; the daemon finds out when it looks, twice a minute, and gives the lease back.

mod conversation;
mod flags;
mod held;
mod late;
mod service;
mod sockets;
mod store;
mod terms;
mod token;
mod way;
mod world;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use kernel::route::RouteSocket;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use state::Durability;

use flags::FlagError;
pub(crate) use flags::{Flags, HELP, duration};
use late::{Late, chain};
use service::Service;
use store::Store;
use world::World;

use super::Stop;
use super::listen::{self, Listener};
use crate::notify;
use crate::poll::Poller;

/// Runs the service until a signal ends it.
pub(crate) fn run(
    arguments: &[OsString],
    environment: &[(OsString, OsString)],
) -> Result<(), Stop> {
    let flags = Flags::parse(arguments).map_err(|error| match error {
        FlagError::Help => Stop::Help,
        error => Stop::Usage(error.to_string()),
    })?;
    let failed = |error: &dyn std::error::Error| Stop::Failed(chain(error));
    let variable = |name: &str| {
        let found = environment.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value).filter(|value| !value.is_empty())
    };
    let (signals, notices) = UnixStream::pair().map_err(|error| failed(&error))?;
    for signal in [SIGINT, SIGTERM] {
        let notices = notices.try_clone().map_err(|error| failed(&error))?;
        signal_hook::low_level::pipe::register(signal, notices).map_err(|error| failed(&error))?;
    }
    raise_descriptor_limit();
    let handed_over = listen::handed_over(environment).map_err(|error| failed(&error))?;
    let state = flags.state.clone().unwrap_or_else(|| {
        let lib = variable("NETWRIGHT_STATE_DIR").map(Into::into);
        lib.unwrap_or_else(|| state::Roots::default().lib).join("dhcp")
    });
    let pid_file = flags.pid_file.clone();
    let result = serve(flags, handed_over, signals, &state, || {
        if let Some(path) = &pid_file {
            let text = format!("{}\n", std::process::id());
            state::write_atomic(path, text.as_bytes(), 0o644, Durability::Volatile)?;
        }
        notify::send(variable("NOTIFY_SOCKET").map(OsString::as_os_str), "READY=1");
        Ok(())
    });
    notify::send(variable("NOTIFY_SOCKET").map(OsString::as_os_str), "STOPPING=1");
    if let Some(path) = &pid_file {
        let _ = state::remove_file(path);
    }
    result
}

/// Opens everything, and listens last: who gets through is answered, and a daemon that cannot start leaves no socket.
fn serve(
    flags: Flags,
    handed_over: Vec<OwnedFd>,
    signals: UnixStream,
    state: &Path,
    ready: impl FnOnce() -> Result<(), state::FileError>,
) -> Result<(), Stop> {
    let failed = |error: &dyn std::error::Error| Stop::Failed(chain(error));
    let socket = flags.on_host(&flags.socket);
    let world = World {
        flags,
        boot_id: state::boot_id().map_err(|error| failed(&error))?,
        poller: Poller::new().map_err(|error| failed(&error))?,
        store: Store::open(state).map_err(|error| failed(&error))?,
        late: Late::open(state).map_err(|error| failed(&error))?,
        host: RouteSocket::open().map_err(|error| failed(&error))?,
    };
    let listener = Listener::open(handed_over, &socket).map_err(|error| failed(&error))?;
    // Where plugins leave notes while nobody listens; it stays when the daemon ends.
    let notes = plugins::ipam::dhcp::todo::folder(&listener.path);
    if let Err(error) = state::create_directory(&notes, 0o700) {
        listener.close();
        return Err(failed(&error));
    }
    let socket = listener.path.clone();
    let service = Service::new(world, listener, signals);
    if let Err(error) = ready() {
        service.close();
        return Err(failed(&error));
    }
    tracing::info!(socket = %socket.display(), state = %state.display(), leases = service.count(), "ready");
    let listener = service.run().map_err(|error| failed(&error))?;
    listener.close();
    tracing::info!("stopped; leases are kept");
    Ok(())
}

/// A lease that is being asked for or renewed needs three descriptors.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
}
