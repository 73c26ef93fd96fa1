//! Ends plugins that a previous driver started and did not see end. They continue when the driver
//! is killed, and would undo what is done next, or do what has just been undone. (Where a service
//! manager runs the driver, it ends them too.)

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a killed process may take until it is gone.
const TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Kills the plugins that work for a container ID, and waits until they are gone.
pub(super) fn end(container_id: &str) {
    let deadline = Instant::now() + TIMEOUT;
    let mut told = false;
    loop {
        let found = find(container_id);
        if found.is_empty() {
            return;
        }
        if deadline < Instant::now() {
            tracing::warn!(container_id, "plugins of an earlier driver do not end");
            return;
        }
        for pid in found {
            if !told {
                tracing::info!(container_id, "ending a plugin that an earlier driver started");
                told = true;
            }
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Finds processes that were started with this `CNI_CONTAINERID`.
fn find(container_id: &str) -> Vec<Pid> {
    let wanted = format!("CNI_CONTAINERID={container_id}");
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found = Vec::new();
    for entry in entries {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process that is gone has no file, and one that has ended but is not yet waited for has
        // an empty one.
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
        if environment.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes()) {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}
