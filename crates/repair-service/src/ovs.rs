//! Watches Open vSwitch: its database reports what becomes of ports.
//!
//! One thread for each database holds a connection and a monitor, and tells the service's loop that
//! something changed: rows came or went, the switch took a port or lost it, the server is back. The
//! loop then looks for what to do: the plugin `ovs` restores live ports ([`crate::repair`]),
//! [`Switches::sweep`] removes dead ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ovsdb::vswitch::DATABASE;
use ovsdb::{Client, Keys, Limits, MonitorRequest, MonitorSelect, OvsdbError, Remote};
use service_kit::bell::Bell;
use service_kit::stop::{Stop, failed};

/// The timeout for an answer of a server.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The first and the longest pause before a server that is not there is tried again: live ports are
/// to be restored within seconds of its return.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// After this silence the thread asks the server whether it is alive.
const SILENCE: Duration = Duration::from_secs(10);

/// A database.
#[derive(Debug, Clone)]
struct Database {
    remote: Remote,
    /// Its server answers: a loop that asked one that does not would never rest.
    answers: Arc<AtomicBool>,
}

/// The databases that are watched.
#[derive(Debug)]
pub(super) struct Switches {
    databases: Vec<Database>,
    /// Rings when something changed.
    bell: Bell,
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
        let database = |remote| Database { remote, answers: Arc::default() };
        let databases: Vec<Database> = remotes.into_iter().map(database).collect();
        let bell = Bell::new().map_err(failed)?;
        for database in databases.clone() {
            let bell = bell.clone();
            let thread = thread::Builder::new().name(format!("listen {}", database.remote));
            thread.spawn(move || listen(&database, &bell)).map_err(failed)?;
        }
        Ok(Switches { databases, bell, told: String::new() })
    }

    /// Returns what rings when something changed.
    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Removes ports of containers that are gone; says whether that could be done. A database that
    /// does not answer rings when it does.
    pub(super) fn sweep(&mut self, roots: &state::Roots) -> bool {
        let mut failures = String::new();
        let answers = |database: &&Database| database.answers.load(Ordering::SeqCst);
        for Database { remote, .. } in self.databases.iter().filter(answers) {
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
fn listen(database: &Database, bell: &Bell) {
    let remote = &database.remote;
    let (mut told, mut pause) = (false, RETRY_DELAYS.0);
    loop {
        let ended = follow(database, bell);
        let answered = database.answers.swap(false, Ordering::SeqCst);
        if answered || !told {
            tracing::warn!(%remote, error = %ended, "ports are not restored until the switch's database answers");
            told = true;
        } else {
            tracing::debug!(%remote, error = %ended, "not listening");
        }
        // Where nothing was heard, nothing has changed.
        if answered {
            bell.ring();
            pause = RETRY_DELAYS.0;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(RETRY_DELAYS.1);
    }
}

/// Rings for everything that the server reports, until the connection ends.
fn follow(database: &Database, bell: &Bell) -> OvsdbError {
    let remote = &database.remote;
    let work = || -> Result<(), OvsdbError> {
        let until = || Instant::now() + TIMEOUT;
        let mut client = Client::connect(remote, Limits::default(), until())?;
        let select = MonitorSelect::CHANGES;
        let requests = [
            MonitorRequest { table: "Bridge", columns: &["name", "ports"], select },
            MonitorRequest { table: "Port", columns: &["name", "tag", "trunks"], select },
            MonitorRequest { table: "Interface", columns: &["ofport", "ifindex", "error"], select },
        ];
        client.monitor(DATABASE, "netwrightd", &requests, until())?;
        database.answers.store(true, Ordering::SeqCst);
        tracing::info!(%remote, "listening");
        loop {
            bell.ring();
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
