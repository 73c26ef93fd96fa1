//! What every service needs when it starts.

use std::ffi::{OsStr, OsString};
use std::os::unix::net::UnixStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use state::Roots;

use super::Stop;
use crate::notify;

/// The environment of the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) environment: &'a [(OsString, OsString)],
}

impl<'a> Surroundings<'a> {
    /// Returns a variable that is set and not empty.
    pub(super) fn variable(self, name: &str) -> Option<&'a OsStr> {
        let found = self.environment.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }

    /// Returns the node's name in its cluster: the configured one, or else the environment's, or
    /// else the host's, as the kubelet does (in small letters).
    pub(super) fn node_name(self, configured: String) -> String {
        if !configured.is_empty() {
            return configured;
        }
        match self.variable("NODE_NAME") {
            Some(name) => name.to_string_lossy().into_owned(),
            None => {
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
                host.unwrap_or_default().trim().to_lowercase()
            }
        }
    }

    /// Returns where our files are.
    pub(super) fn roots(self) -> Roots {
        Roots::of_environment(|name| self.variable(name).map(OsStr::to_owned))
    }

    /// Tells the service manager that the service is ready.
    pub(super) fn tell_ready(self) {
        notify::send(self.variable("NOTIFY_SOCKET"), "READY=1");
    }

    /// Tells the service manager that the service is about to end.
    pub(super) fn tell_stopping(self) {
        notify::send(self.variable("NOTIFY_SOCKET"), "STOPPING=1");
    }
}

/// Returns a socket that becomes readable when the service is to stop.
pub(super) fn stop_signals() -> std::io::Result<UnixStream> {
    let (signals, notices) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, notices.try_clone()?)?;
    }
    Ok(signals)
}

/// Returns the reason why a service could not start or continue.
pub(super) fn failed<E: std::error::Error + 'static>(error: E) -> Stop {
    Stop::Failed(words(&error))
}

/// Returns an error with its causes, in one line.
pub(super) fn words(error: &dyn std::error::Error) -> String {
    cni::Error::from_chain(0, error).msg
}

/// Creates what an asynchronous service runs on: one thread, and at most so many threads that may
/// wait for disks, plugins and servers.
pub(super) fn runtime(blocking: usize) -> Result<tokio::runtime::Runtime, Stop> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().max_blocking_threads(blocking).build().map_err(failed)
}

/// Waits for a signal without blocking the asynchronous thread.
pub(super) async fn wait(signals: UnixStream) -> std::io::Result<()> {
    signals.set_nonblocking(true)?;
    let signals = tokio::net::UnixStream::from_std(signals)?;
    loop {
        signals.readable().await?;
        let mut octets = [0; 16];
        match signals.try_read(&mut octets) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            other => return other.map(|_| ()),
        }
    }
}

/// Raises the limit of open files to what the service manager allows: each connection is one file.
pub(super) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
}
