//! Collects what deleted containers left behind, for runtimes that never do.
//!
//! An attachment is left behind when its namespace is known to be gone ([`kernel::living`]) and no
//! runtime keeps anything of its container below `/run` (`collect/runtimes.rs`), and both have been
//! true for a grace time: a runtime also needs time for DEL. Where either cannot be determined,
//! nothing is removed. Without `act` the service only reports.
//!
//! The service removes each attachment by DEL, with the configuration with which it was made. It
//! does not use the verb GC: GC needs a list of all valid attachments, and we do not know the
//! caches of other runtimes.

mod runtimes;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use agent::Config;
use clap::{Arg, ArgAction};
use cni::AttachmentKey;
use cni_runtime::{ConfigFolder, KnownAttachment, Presence, Removal, Runtime};
use kernel::living::Census;
use service_kit::command_line::Invocation;
use service_kit::event_loop::{EventLoop, Rounds};
use service_kit::health::Health;
use service_kit::process::Process;
use service_kit::stop::Stop;
use state::Index;

use crate::runtimes::{Flags, Node};

/// The flags that are not keys of the configuration.
pub fn more_flags() -> Vec<Arg> {
    let once = Arg::new(ONCE).long(ONCE).action(ArgAction::SetTrue);
    vec![once.help("look once, look again when the grace time is over, and end")]
}

const ONCE: &str = "once";

/// Runs the service until a signal ends it.
pub fn run(invocation: &Invocation, process: &Process) -> Result<(), Stop> {
    let once = invocation.more.get_flag(ONCE);
    let flags = Flags { once, ..Flags::from(&invocation.config().collect) };
    let mut events = EventLoop::new(process)?;
    // A process that looks once may run beside the service, which has the status socket.
    if !once {
        events.attend(&invocation.loaded)?;
    }
    let mut service = Service {
        node: Node::new(&flags, process),
        flags,
        suspects: HashMap::new(),
        health: process.health.clone(),
        due: Instant::now(),
        is_done: false,
    };
    process.tell_ready(None);
    tracing::info!(act = service.flags.act, grace = ?service.flags.grace, "ready");
    service.look(Instant::now());
    service.due = Instant::now() + service.pause();
    events.serve(&mut service)
}

/// An attachment that was left behind, and since when.
struct Suspect {
    since: Instant,
    /// Whether the log already says that it would be removed.
    told: bool,
}

struct Service {
    node: Node,
    flags: Flags,
    suspects: HashMap<AttachmentKey, Suspect>,
    health: Health,
    /// When it looks again.
    due: Instant,
    /// It was to look once, and has.
    is_done: bool,
}

impl Rounds for Service {
    fn until_due(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    fn reconfigure(&mut self, new: &Config) {
        self.change(&Flags::from(&new.collect));
        self.due = self.due.min(Instant::now() + self.pause());
    }

    fn round(&mut self, _ready: &[u64]) -> std::io::Result<()> {
        if self.due <= Instant::now() {
            self.look(Instant::now());
            self.is_done = self.flags.once;
            self.due = Instant::now() + self.pause();
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.is_done
    }
}

impl Service {
    /// Returns the time between two looks.
    fn pause(&self) -> Duration {
        if self.flags.once { self.flags.grace } else { self.flags.interval }
    }

    /// Takes over what may change while the service runs.
    fn change(&mut self, new: &Flags) {
        (self.flags.act, self.flags.grace, self.flags.interval) =
            (new.act, new.grace, new.interval);
    }

    fn look(&mut self, now: Instant) {
        let mut left_behind = HashMap::new();
        let census = Census::new();
        for runtime in &self.node.runtimes {
            match runtime.everything_by(&self.node.roots, &census) {
                Ok(everything) => {
                    for known in everything.known.into_iter().filter(is_left_behind) {
                        // Prefer the runtime whose cache has its configuration.
                        let better = |_: &Runtime<'_>| known.cached.is_some();
                        if better(runtime) || !left_behind.contains_key(&known.key) {
                            left_behind.insert(known.key.clone(), (runtime.clone(), known));
                        }
                    }
                }
                Err(error) => {
                    // Its attachments might look as if they had no container.
                    tracing::error!(%error, "cannot read a cache; nothing is collected");
                    return self.health.needs("cache", Err(error.to_string()));
                }
            }
        }
        self.health.needs("cache", Ok(()));
        self.suspects.retain(|key, _| left_behind.contains_key(key));
        for (key, (runtime, known)) in left_behind {
            self.health.turns();
            let suspect =
                self.suspects.entry(key.clone()).or_insert(Suspect { since: now, told: false });
            if now - suspect.since < self.flags.grace {
                continue;
            }
            let (network, container_id, ifname) = (&key.network, &key.container_id, &key.ifname);
            if !self.flags.act {
                if !suspect.told {
                    tracing::info!(%network, %container_id, %ifname, netns = known.netns(), "would remove; its container is gone");
                    suspect.told = true;
                }
                continue;
            }
            match remove(&runtime, &known, &self.node.roots, &self.flags) {
                Ok(removal) => {
                    tracing::info!(%network, %container_id, %ifname, "removed; its container is gone");
                    if removal == Removal::OfPastLife {
                        let reserved =
                            plugins::recorded::reserved_again(&known.records, &self.node.roots);
                        tracing::warn!(%network, %container_id, %ifname, ?reserved, "other plugins have attached it again, as far as can be seen: the addresses that they reserved, their rules and the runtime's record stay");
                    }
                    self.suspects.remove(&key);
                }
                Err(error) => {
                    tracing::warn!(%network, %container_id, %ifname, %error, "cannot remove");
                }
            }
        }
        if self.flags.act {
            // Also removes what killed processes were writing.
            Index::new(&self.node.roots).remove_abandoned();
            for runtime in &self.node.runtimes {
                state::remove_abandoned(runtime.cache().results_dir());
            }
        }
    }
}

fn is_left_behind(known: &KnownAttachment) -> bool {
    if known.presence != Presence::Gone {
        return false;
    }
    match runtimes::keeps(known.key.container_id.as_str()) {
        Some(path) => {
            tracing::debug!(key = %known.key, path = %path.display(), "a runtime has its container");
            false
        }
        None => true,
    }
}

fn remove(
    runtime: &Runtime<'_>,
    known: &KnownAttachment,
    roots: &state::Roots,
    flags: &Flags,
) -> Result<Removal, cni::Error> {
    let present = || -> Result<cni::NetworkList, cni::Error> {
        let folder = ConfigFolder::scan(&flags.conf_dir).map_err(|error| error.to_cni())?;
        let list = folder.find(known.key.network.as_str()).map_err(|error| error.to_cni())?;
        Ok(list.clone())
    };
    let lives_again = |records: &[state::Record]| plugins::recorded::lives_again(records, roots);
    runtime.remove_known(
        known,
        roots,
        &plugins::recorded::list,
        &lives_again,
        &present,
        Node::deadline(),
    )
}
