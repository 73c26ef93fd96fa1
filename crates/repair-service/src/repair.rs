//! Restores what other programs change under running containers, as soon as the kernel reports the
//! change.
//!
//! | file | what it is |
//! |---|---|
//! | this one | the loop |
//! | `own_plugins` | the folders of plugins, which another package may empty |
//! | `schedule` | how to back off from a conflict, and the order of looks if something is silent |
//! | `remembered` | what a runtime's damaged file said before |
//!
//! The kernel reports that something went away or down, here or in a container, or that the packet
//! filter lost something. Then, and at intervals, the service checks every attachment in a
//! runtime's cache ([`cni_runtime::Runtime::repair_list`]). An unchanged attachment costs a few
//! requests. The service keeps no container alive: between looks it holds nothing of it open.

mod own_plugins;
mod remembered;
mod schedule;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use agent::Config;
use cni::{AttachmentKey, Error};
use cni_runtime::{KnownAttachment, Presence, RepairObstacle, Repairs};
use kernel::events::{Event, Listener};
use plugins::shared::shared_object;
use service_kit::command_line::Invocation;
use service_kit::event_loop::{EventLoop, Rounds};
use service_kit::health::Health;
use service_kit::pace::{Pace, processor_time};
use service_kit::process::Process;
use service_kit::stop::{Stop, failed};
use state::Index;

use crate::ovs::Switches;
use crate::runtimes::{Flags, Node};
use docker_service::DriverRecords;
use own_plugins::OwnPlugins;
use remembered::AttachmentCache;
use schedule::{Backoff, Remainder, Turns};

/// Numbers of the descriptors that the loop waits for.
const EVENTS: u64 = 1;
const SWITCH: u64 = 2;
const PLUGINS: u64 = 3;

/// Runs the service until a signal ends it.
pub fn run(invocation: &Invocation, process: &Process) -> Result<(), Stop> {
    let flags = Flags::from(&invocation.config().repair);
    let mut events = EventLoop::new(process)?;
    events.attend(&invocation.loaded)?;
    let listener = Listener::open().map_err(failed)?;
    for descriptor in listener.descriptors() {
        events.watch(descriptor, EVENTS)?;
    }
    if !listener.is_everywhere() {
        tracing::warn!(
            "changes within containers are found only by polling: CAP_NET_BROADCAST is missing"
        );
    }
    let switches = Switches::watch(&flags.databases, &flags.keys)?;
    events.watch(switches.bell(), SWITCH)?;
    let node = Node::new(&flags, process);
    let mut service = Service {
        dockers: DriverRecords::new(&node.roots).map_err(failed)?,
        plugins: OwnPlugins::new(&flags, &node.roots).map_err(failed)?,
        node,
        health: process.health.clone(),
        listener,
        switches,
        pace: Pace::new(flags.interval),
        quarrels: Backoff::default(),
        remembered: AttachmentCache::default(),
        host_links: BTreeSet::new(),
        turns: Turns::default(),
        listen_failure: None,
    };
    events.watch(service.plugins.watched().descriptor(), PLUGINS)?;
    // For what happened while no service listened.
    service.look().map_err(failed)?;
    process.tell_ready(None);
    tracing::info!(interval = ?flags.interval, "ready");
    events.serve(&mut service)?;
    tracing::info!("stopped");
    Ok(())
}

struct Service {
    node: Node,
    health: Health,
    dockers: DriverRecords,
    plugins: OwnPlugins,
    listener: Listener,
    switches: Switches,
    pace: Pace,
    quarrels: Backoff,
    remembered: AttachmentCache,
    /// The names of attachments' links on the host, including bridges.
    host_links: BTreeSet<String>,
    turns: Turns,
    /// Why new links could not be made to listen to routers, at the last look.
    listen_failure: Option<String>,
}

impl Rounds for Service {
    fn until_due(&self) -> Duration {
        self.pace.until_due(Instant::now())
    }

    fn reconfigure(&mut self, new: &Config) {
        self.pace.set_interval(new.repair.interval, Instant::now());
    }

    fn round(&mut self, ready: &[u64]) -> std::io::Result<()> {
        for number in ready {
            match *number {
                SWITCH => {
                    self.switches.bell().heard();
                    self.pace.hurry(Instant::now());
                }
                PLUGINS => {
                    self.plugins.watched().heard();
                    self.pace.hurry(Instant::now());
                }
                _ => self.hear(),
            }
        }
        if self.pace.is_due(Instant::now()) {
            self.look()?;
        }
        Ok(())
    }
}

impl Service {
    fn hear(&mut self) {
        let events = match self.listener.heard() {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!(%error, "events may be missed");
                vec![Event::Lost]
            }
        };
        if let Some(event) = events.iter().find(|event| self.concerns(event)) {
            tracing::debug!(?event, "heard");
            self.pace.hurry(Instant::now());
        }
    }

    /// Says whether an event may need a repair. ADD causes events of new links, addresses and
    /// routes; damage causes events of removed objects, of links that are down, and of changes of
    /// the host's links.
    fn concerns(&self, event: &Event) -> bool {
        match event {
            Event::Link { name, up } => !up || self.host_links.contains(name),
            _ => true,
        }
    }

    /// Checks every attachment, and the plugins. Fails if only a new process can put these back.
    fn look(&mut self) -> std::io::Result<()> {
        let (begin, worked) = (Instant::now(), processor_time());
        let plugins = self.plugins.look(begin)?;
        self.health.needs("plugins", plugins);
        let mut host_links = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let (mut again, mut unread) = (false, Ok(()));
        self.turns.begin();
        for runtime in self.node.runtimes.clone() {
            let mut everything = match runtime.everything_at_paths(&self.node.roots) {
                Ok(everything) => everything,
                Err(error) => {
                    tracing::error!(%error, "cannot read a cache");
                    unread = Err(error.to_string());
                    continue;
                }
            };
            self.turns.begin_runtime();
            everything.known.sort_by_key(|known| self.turns.place(&known.key));
            for known in everything.known {
                self.health.turns();
                let is_there = match known.apart(&self.node.roots) {
                    None => known.presence == Presence::Alive,
                    // The driver's record says where the container is.
                    Some(RepairObstacle::Dockers) => known.presence != Presence::Gone,
                    Some(_) => false,
                };
                if !is_there {
                    continue;
                }
                let damage = known.damage();
                if damage.is_none() {
                    let Some(result) = known.result() else { continue };
                    let links = result.interfaces.iter().filter(|link| link.sandbox.is_empty());
                    host_links.extend(links.map(|link| link.name.clone()));
                }
                seen.insert(known.key.clone());
                if self.turns.is_its(&known.key) {
                    let called = Instant::now();
                    let runtime = runtime.for_records(&known.records);
                    again |= match &damage {
                        Some(damage) => {
                            self.look_after_damaged(&runtime, &known, &damage.to_string())
                        }
                        None => self.look_after(&runtime, &known),
                    };
                    self.turns.took(&known.key, called.elapsed());
                } else {
                    again = true;
                }
                if damage.is_none() {
                    self.remembered.note(known);
                }
            }
        }
        self.health.needs("cache", unread);
        again |= !self.switches.sweep(&self.node.roots);
        self.listen_to_routers();
        self.quarrels.keep(&seen);
        self.remembered.keep(&seen);
        self.host_links = host_links;
        self.turns.end();
        // Our own repairs cause events too; the second look is cheap, and finds what they
        // disturbed.
        let worked = processor_time().saturating_sub(worked);
        self.pace.looked(begin, Instant::now(), worked, again);
        Ok(())
    }

    /// Makes links of the host that came while it forwards listen to its routers. Reports a failure once.
    fn listen_to_routers(&mut self) {
        match shared_object::listen_on_new_links(&Index::new(&self.node.roots)) {
            Ok(links) => {
                self.listen_failure = None;
                for link in links {
                    tracing::info!(%link, "accept_ra is 2 now: the link listens to routers");
                }
            }
            Err(error) => {
                let error = error.to_string();
                if self.listen_failure.as_ref() != Some(&error) {
                    tracing::warn!(error, "a link may ignore the host's routers");
                }
                self.listen_failure = Some(error);
            }
        }
    }

    /// Reports what cannot be restored, once, if that was so at the last look too.
    fn cannot(&mut self, key: &AttachmentKey, left: &str) -> Remainder {
        let (network, container_id, ifname) = (&key.network, &key.container_id, &key.ifname);
        let lasts = self.quarrels.left(key, left);
        if lasts == Remainder::Lasting {
            tracing::warn!(%network, %container_id, %ifname, left, "cannot be put back");
        }
        lasts
    }

    /// Writes a runtime's damaged file again if it was whole at an earlier look, and then checks
    /// the attachment. Says whether to look again soon: a file that is being written may look
    /// damaged for a moment.
    fn look_after_damaged(
        &mut self,
        runtime: &cni_runtime::Runtime<'_>,
        known: &KnownAttachment,
        damage: &str,
    ) -> bool {
        let (key, now) = (&known.key, Instant::now());
        if !self.quarrels.may(key, now) {
            return true;
        }
        if !self.quarrels.is_lasting(key, damage) {
            return self.cannot(key, damage) == Remainder::New;
        }
        let written = self.remembered.write_again(runtime, &self.node.roots, known);
        let known = match written.map(Option::<&KnownAttachment>::cloned) {
            Ok(Some(known)) => known,
            Ok(None) => return self.cannot(key, damage) == Remainder::New,
            Err(error) => return self.cannot(key, &format!("{damage}; {error}")) == Remainder::New,
        };
        let (network, container_id, ifname) = (&key.network, &key.container_id, &key.ifname);
        tracing::info!(%network, %container_id, %ifname, file = ?known.file(), "wrote the cache's damaged file again");
        let what = [(String::new(), "its file in the cache".to_owned())];
        if let Some(pause) = self.quarrels.note(key, &what, now) {
            tracing::warn!(%network, %container_id, %ifname, ?pause, "another program keeps damaging its file; it is left alone for a while");
        }
        self.look_after(runtime, &known)
    }

    /// Repairs an attachment, unless another program keeps changing it, and logs the result. Says
    /// whether to look again soon.
    fn look_after(&mut self, runtime: &cni_runtime::Runtime<'_>, known: &KnownAttachment) -> bool {
        let (key, now) = (&known.key, Instant::now());
        if !self.quarrels.may(key, now) {
            return true;
        }
        let repaired = match self.repair(runtime, known) {
            Ok(None) => return false,
            Ok(Some(repairs)) => Ok(repairs),
            Err(error) => Err(error),
        };
        let (network, container_id, ifname) = (&key.network, &key.container_id, &key.ifname);
        let (put_back, left) = match repaired {
            Ok(Repairs { put_back, left, .. }) => {
                (put_back, left.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
            }
            Err(error) => (Vec::new(), error.to_string()),
        };
        for (plugin, what) in &put_back {
            tracing::info!(%network, %container_id, %ifname, plugin, what, "put back");
        }
        let lasts = self.cannot(key, &left);
        if let Some(pause) = self.quarrels.note(key, &put_back, now) {
            tracing::warn!(%network, %container_id, %ifname, ?pause, "another program keeps changing it; it is left alone for a while");
        }
        lasts == Remainder::New
    }

    /// Restores what other programs changed, where the interface is; `None` when the attachment
    /// must be left alone now.
    fn repair(
        &self,
        runtime: &cni_runtime::Runtime<'_>,
        known: &KnownAttachment,
    ) -> Result<Option<Repairs>, Error> {
        let Some(cached) = &known.cached else { return Ok(None) };
        if known.apart(&self.node.roots) == Some(RepairObstacle::Dockers) {
            return self.dockers.repair(runtime, known, Node::deadline());
        }
        let list = cached.list()?;
        let repaired = runtime.repair_list(&list, &cached.attachment, Node::deadline());
        repaired.map(Some).map_err(|error| error.to_cni())
    }
}
