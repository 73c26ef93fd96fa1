//! Determines whether a container's namespace still exists, as the engine itself sees it.
//!
//! An engine that was killed forgets its sandboxes when it starts again, and does not tell a driver
//! that it has not yet spoken to (libnetwork, `Controller.sandboxCleanup`). A path without a
//! namespace on it proves nothing by itself: older engines create the namespace late, and any
//! engine may have mounts that we do not see. So the engine that asks must be another process than
//! the one that joined, and we look at the path as that process sees it. With `live-restore`
//! containers outlive their engine, and some other program may have removed the path: so no process
//! may be in a namespace with the container's interface either.

use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use kernel::living::{Census, Life, Sign, own_pid_ns};

use super::handover::open_if_there;
use super::journal::{Endpoint, Phase};

/// The engine process that asks: its PID, and its start time in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Engine {
    pid: u32,
    started: u64,
}

impl Engine {
    /// Returns the process at the other end of a connection; `None` when it cannot be seen from
    /// here.
    pub(super) fn at_the_other_end(stream: &UnixStream) -> Option<Self> {
        Self::running(kernel::peer::of(stream).ok()?.pid?).ok().flatten()
    }

    /// Returns the process with a PID; `None` when there is none.
    fn running(pid: u32) -> std::io::Result<Option<Self>> {
        let stat = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            stat => stat?,
        };
        // `man 5 proc_pid_stat`: the second field is a name in parentheses, the 22nd the start
        // time.
        let rest = stat.rsplit_once(") ").map(|(_, rest)| rest);
        let started = rest.and_then(|rest| rest.split(' ').nth(22 - 3)?.parse().ok());
        Ok(started.map(|started| Engine { pid, started }))
    }

    /// Says whether a recorded process still lives, or may.
    pub(super) fn may_live(written: &str) -> bool {
        let pid = written.split('-').next().and_then(|pid| pid.parse().ok());
        let Some(running) = pid.map(Self::running) else { return true };
        running.map_or(true, |found| found.is_some_and(|one| one.to_string() == written))
    }

    /// Says whether an endpoint's container is certainly gone: this engine does not have its
    /// sandbox, and no process is in a namespace with its interface.
    pub(super) fn has_lost(self, endpoint: &Endpoint, census: &Census) -> bool {
        self.misses_sandbox_of(endpoint) && life(endpoint, census) == Life::Gone
    }

    /// Says whether another engine process joined an endpoint, this one sees its sandbox's folder,
    /// and neither this one nor we see a namespace at its path.
    fn misses_sandbox_of(self, endpoint: &Endpoint) -> bool {
        let joined_before = endpoint.engine.as_ref().is_some_and(|one| *one != self.to_string());
        if endpoint.phase != Phase::Joined || !joined_before {
            return false;
        }
        let Some(sandbox) = endpoint.sandbox.as_deref() else { return false };
        let Some(seen) = self.seen(sandbox) else { return false };
        let gone = |path: &Path| matches!(open_if_there(path), Ok(None));
        seen.parent().is_some_and(Path::is_dir) && gone(&seen) && gone(sandbox)
    }

    /// Returns where the engine's file at that path is seen from here.
    fn seen(self, path: &Path) -> Option<PathBuf> {
        let inside = path.strip_prefix("/").ok()?;
        Some(PathBuf::from(format!("/proc/{}/root", self.pid)).join(inside))
    }
}

/// Says what became of the container that has an endpoint's interface, by that interface: Docker
/// gives no other information.
pub(super) fn life(endpoint: &Endpoint, census: &Census) -> Life {
    let mac = endpoint.layout.mac.parse().ok();
    let addresses = endpoint.layout.addresses.iter().map(ipnet::IpNet::addr);
    let addresses = if mac.is_some() { Vec::new() } else { addresses.collect() };
    // An engine whose process we saw is in our PID namespace, and so are its containers.
    let pid_ns = own_pid_ns().filter(|_| endpoint.engine.is_some());
    census.seek(&Sign { ifname: String::new(), mac, addresses }, pid_ns)
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.pid, self.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cnm::network::CreateEndpoint;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a connection, not a bell")]
    fn gone_is_only_what_the_engine_would_see() {
        let (one, _other) = UnixStream::pair().unwrap();
        let engine = Engine::at_the_other_end(&one).unwrap();
        assert_eq!(engine.pid, std::process::id());
        let before = Engine { started: engine.started - 1, ..engine };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("unmounted");
        std::fs::write(&file, "").unwrap();
        for (path, phase, joined_by, gone) in [
            (file.clone(), Phase::Joined, Some(before), true),
            (folder.path().join("removed"), Phase::Joined, Some(before), true),
            // Its namespace may be made yet.
            (folder.path().join("removed"), Phase::Joined, Some(engine), false),
            (folder.path().join("removed"), Phase::Joined, None, false),
            // The caller does not have the engine's folders.
            (folder.path().join("elsewhere/sandbox"), Phase::Joined, Some(before), false),
            (PathBuf::from("/proc/self/ns/net"), Phase::Joined, Some(before), false),
            (file.clone(), Phase::Added, Some(before), false),
            (file, Phase::Left, Some(before), false),
        ] {
            let mut endpoint = Endpoint::new(CreateEndpoint::default());
            endpoint.phase = phase;
            endpoint.sandbox = Some(path.clone());
            endpoint.engine = joined_by.map(|engine| engine.to_string());
            let missed = engine.misses_sandbox_of(&endpoint);
            assert_eq!(missed, gone, "{path:?} {phase:?} {joined_by:?}");
        }
    }
}
