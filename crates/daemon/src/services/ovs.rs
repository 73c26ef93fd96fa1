//! Watches Open vSwitch: its database reports what becomes of ports.
//!
//! One thread for each database holds a connection and a monitor, and tells the service's loop that
//! something changed: rows came or went, the switch took a port or lost it, the server is back. The
//! loop then looks for what to do: the plugin `ovs` restores live ports ([`super::repair`]),
//! [`Switches::sweep`] removes dead ones.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use ovsdb::vswitch::DATABASE;
use ovsdb::{Client, Keys, Limits, MonitorRequest, OvsdbError, Remote, Select};

use super::Stop;
use super::setup::failed;

/// The timeout for an answer of a server.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The pause before a server that is not there is tried again: live ports are to be restored within
/// seconds of its return.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// After this silence the thread asks the server whether it is alive.
const SILENCE: Duration = Duration::from_secs(10);

/// The databases that are watched.
#[derive(Debug)]
pub(super) struct Switches {
    remotes: Vec<Remote>,
    /// Receives a byte when something changed.
    bell: UnixStream,
    /// What failed in the last sweep, so that it is logged once.
    told: String,
}

impl Switches {
    /// Starts watching. A database that is not there is waited for.
    pub(super) fn watch(databases: &[String], keys: &Keys) -> Result<Self, Stop> {
        let remote = |text: &String| Ok(text.parse::<Remote>()?.with_keys(keys.clone()));
        let remotes = databases.iter().map(remote);
        let remotes = remotes.collect::<Result<Vec<_>, OvsdbError>>();
        let remotes = remotes.map_err(|error| Stop::Usage(format!("error: --ovsdb: {error}\n")))?;
        let (bell, ringer) = UnixStream::pair().map_err(failed)?;
        bell.set_nonblocking(true).map_err(failed)?;
        ringer.set_nonblocking(true).map_err(failed)?;
        for remote in remotes.clone() {
            let ringer = ringer.try_clone().map_err(failed)?;
            let thread = thread::Builder::new().name(format!("listen {remote}"));
            thread.spawn(move || listen(&remote, &ringer)).map_err(failed)?;
        }
        Ok(Switches { remotes, bell, told: String::new() })
    }

    /// Returns what becomes readable when something changed.
    pub(super) fn descriptor(&self) -> impl AsFd + '_ {
        &self.bell
    }

    /// Empties the descriptor.
    pub(super) fn heard(&mut self) {
        let mut bytes = [0; 256];
        while matches!(self.bell.read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }

    /// Removes ports of containers that are gone; says whether that could be done.
    pub(super) fn sweep(&mut self, roots: &state::Roots) -> bool {
        let mut failures = String::new();
        for remote in &self.remotes {
            match plugins::interface::ovs::sweep(remote, roots, Instant::now() + TIMEOUT) {
                Ok(lines) => {
                    for what in lines {
                        tracing::info!(%remote, what, "removed");
                    }
                }
                Err(error) => failures.push_str(&format!("{error}; ")),
            }
        }
        if failures != self.told && !failures.is_empty() {
            tracing::warn!(error = failures, "ports of Open vSwitch are not cleaned up");
        }
        let done = failures.is_empty();
        self.told = failures;
        done
    }
}

/// Watches one database as long as the service lives.
fn listen(remote: &Remote, mut ringer: &UnixStream) {
    loop {
        let mut heard = false;
        let ended = follow(remote, ringer, &mut heard);
        if heard {
            tracing::warn!(%remote, error = %ended, "ports are not restored until the switch's database answers");
        } else {
            tracing::debug!(%remote, error = %ended, "not listening");
        }
        // If the loop has ended, the process ends too; if the socket is full, the loop knows
        // already.
        let _ = ringer.write(&[0]);
        thread::sleep(RETRY_DELAY);
    }
}

/// Writes a byte for everything that the server reports, until the connection ends; `heard` says
/// whether the server answered at all.
fn follow(remote: &Remote, mut ringer: &UnixStream, heard: &mut bool) -> OvsdbError {
    let mut work = || -> Result<(), OvsdbError> {
        let until = || Instant::now() + TIMEOUT;
        let mut client = Client::connect(remote, Limits::default(), until())?;
        let select = Select::CHANGES;
        let requests = [
            MonitorRequest { table: "Bridge", columns: &["name", "ports"], select },
            MonitorRequest { table: "Port", columns: &["name", "tag", "trunks"], select },
            MonitorRequest { table: "Interface", columns: &["ofport", "ifindex", "error"], select },
        ];
        client.monitor(DATABASE, "netwrightd", &requests, until())?;
        *heard = true;
        tracing::info!(%remote, "listening");
        loop {
            let _ = ringer.write(&[0]);
            while client.next_event(Instant::now() + SILENCE)?.is_none() {
                client.echo(until())?;
            }
        }
    };
    loop {
        if let Err(error) = work() {
            return error;
        }
    }
}
