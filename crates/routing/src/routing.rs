//! The whole of it: the value that the daemon feeds with events and asks for changes.
//!
//! The daemon reports every event to a method, with the time; each returns what is to be done
//! ([`Todo`]). The daemon does it in the order given and reports the result to [`Routing::done`]
//! and [`Routing::failed`]. It wakes up at [`Routing::due`], and once a minute to
//! [`Routing::look`].
//!
//! ```
//! use netwright_routing::cluster::Event;
//! use netwright_routing::plan::ObservedObjects;
//! use netwright_routing::{PerFamily, Routing, Settings, Time, file, settings};
//!
//! let now = Time::from_seconds(1_700_000_000);
//! let configured = Settings::new(vec!["10.244.0.0/16".parse()?]);
//! let list = r#"
//! [[node]]
//! name = "a"
//! prefixes = ["10.244.1.0/24"]
//! underlay = ["192.0.2.1"]
//! [[node]]
//! name = "b"
//! prefixes = ["10.244.2.0/24"]
//! underlay = ["192.0.2.2"]
//! "#;
//! let nodes = file::read(list, &configured)?;
//!
//! let mut routing = Routing::new(configured.clone(), "a");
//! let uplink = settings::Uplink { name: "eth0".into(), mtu: 1500 };
//! let own = settings::NodeFacts {
//!     name: "a".to_owned(),
//!     uid: String::new(),
//!     prefixes: vec!["10.244.1.0/24".parse()?],
//!     kept: Vec::new(),
//!     zone: None,
//!     uplinks: PerFamily { v4: Some((uplink, "192.0.2.1".parse()?)), v6: None },
//!     taken_over: PerFamily::default(),
//! };
//! routing.own(settings::OwnNode::new(&configured, own), now);
//! routing.look(ObservedObjects::default());
//! let todo = routing.event(Event::Listed(nodes), now);
//! assert_eq!(todo.look_up, ["192.0.2.2".parse::<std::net::IpAddr>()?]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod failures;
mod flanneld;
mod health;
mod own;
mod planning;
mod turning;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::blocks;
use crate::cluster::{Cluster, Event, News};
use crate::condition;
use crate::document::{self, Document};
use crate::identity::Identity;
use crate::ids::Ids;
use crate::object::{Key, Value};
use crate::path::{Path, Way};
use crate::plan::{Change, DesiredObjects, ForeignRoute, ObservedObjects};
use crate::settings::{LinkName, OwnNode, Settings};
use crate::time::Time;
use failures::Failure;
pub use flanneld::{NoRoutesOfFlanneld, without_flannels};
use net::{IpFamily, PerFamily};
use turning::Turn;

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Todo {
    /// Underlay addresses whose [`Way`] is not known: the daemon looks it up and passes it to
    /// [`Routing::ways`]. Their peers wait for it.
    pub look_up: Vec<IpAddr>,
    /// Changes of the kernel, in their order. Those of the packet filter are one transaction.
    pub changes: Vec<Change>,
    /// Prefixes of peers whose path or prefix is another now: UDP flows to and from them are to be
    /// dropped from connection tracking.
    pub flush_flows: Vec<IpNet>,
    /// What happened, for the log.
    pub news: Vec<News>,
    /// The last known peers are others now: to be written within some seconds.
    pub document_changed: bool,
}

/// How far this node is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// This node has no prefix, or cannot be one of the cluster yet: the reason.
    Waiting(String),
    /// Peers of the disk are programmed, and no source has answered yet.
    Restoring,
    /// The source has answered. Not everything is programmed yet, or old objects of this node are
    /// not removed yet.
    Syncing,
    /// Everything is programmed, except objects of single peers that the kernel refuses: the peers'
    /// rows say so.
    Ready,
    /// The source is silent since then. Everything stays.
    Degraded(Time),
    /// What is to be done is known, and flanneld does it.
    Standby,
}

/// What a probe of a peer has shown, for one family of its pods' addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Its tunnel address, or another address of its pods' side, through the path.
    pub path: Answer,
    /// Its underlay address.
    pub underlay: Answer,
    /// The round trip through the path, in microseconds.
    pub rtt_us: Option<u32>,
    /// The largest packet that arrived, in bytes.
    pub mtu: Option<u32>,
    /// Checksummed UDP arrived.
    pub udp: Option<bool>,
}

/// What can be probed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The peer.
    pub peer: String,
    /// The family of its pods' addresses.
    #[serde(with = "crate::family::FamilyWord")]
    pub family: IpFamily,
    /// How packets to it go.
    pub by: Path,
    /// The address that answers through the path.
    pub path: IpAddr,
    /// Its underlay address.
    pub underlay: IpAddr,
    /// What is to fit through the path, in bytes.
    pub mtu: Option<u32>,
}

/// Whether something answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// It was not asked.
    Unknown,
    /// It answered.
    Yes,
    /// It did not answer.
    No,
    /// Something in between said that it does not let it through.
    Filtered,
}

/// How this node is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaveMode {
    /// As if routing had never been there.
    Clean,
    /// To a flanneld that already runs beside it: tunnels, and what it has on them, are its again.
    ToFlannel,
}

/// The state of routing on this node.
#[derive(Debug)]
pub struct Routing {
    pub(crate) settings: Arc<Settings>,
    pub(crate) cluster: Cluster,
    identity: Identity,
    /// Why nothing can be programmed yet.
    waiting: Option<String>,
    ways: HashMap<IpAddr, Way>,
    pub(crate) wanted: DesiredObjects,
    pub(crate) observed: ObservedObjects,
    /// The kernel has been looked at.
    looked: bool,
    /// The changes of a look were made while this node was known.
    settled: bool,
    /// Peers that are not planned yet, as the ways to them are not known.
    unplanned: BTreeSet<String>,
    /// All peers of a complete list have been planned: objects that no peer wants by now go.
    complete: bool,
    ids: Ids,
    pub(crate) plans: BTreeMap<String, PeerPlan>,
    /// Peers whose path changes between a tunnel and none.
    turns: BTreeMap<(String, IpFamily), Turn>,
    /// Links of other programs that are down: nothing can be made by them now.
    down: BTreeSet<LinkName>,
    pub(crate) failures: BTreeMap<Key, Failure>,
    /// Removals of others' routes that failed.
    foreign_failures: HashMap<Change, Failure>,
    pub(crate) probes: BTreeMap<(String, IpFamily), (Probe, Time)>,
    cut_off_since: Option<Time>,
    pub(crate) conflicts: BTreeMap<IpNet, ForeignRoute>,
    /// In flanneld's place: the routes of others that the first look has found, without those that
    /// this node has removed since.
    found_first: BTreeMap<IpNet, Vec<ForeignRoute>>,
    /// What the daemon has to report to people, by what it is about.
    pub(crate) notices: BTreeMap<&'static str, Vec<String>>,
}

/// What is planned for a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerPlan {
    pub(crate) families: PerFamily<Option<FamilyPlan>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FamilyPlan {
    pub(crate) prefixes: Vec<IpNet>,
    pub(crate) path: Path,
    /// What fits, in bytes.
    pub(crate) mtu: Option<u32>,
    /// What fits by what links, routes and nodes say, without what the kernel has learnt on the way.
    pub(crate) pod_mtu: Option<u32>,
}

impl Routing {
    /// Creates the state of a node of which only the name is known.
    #[must_use]
    pub fn new(settings: Settings, name: &str) -> Self {
        let own = OwnNode::unknown(&settings, name);
        let settings = Arc::new(settings);
        Routing {
            cluster: Cluster::new(settings.clone(), own),
            settings,
            identity: Identity::default(),
            waiting: Some("nothing is known of this node yet".to_owned()),
            ways: HashMap::new(),
            wanted: DesiredObjects::default(),
            observed: ObservedObjects::default(),
            looked: false,
            settled: false,
            unplanned: BTreeSet::new(),
            complete: false,
            ids: Ids::default(),
            plans: BTreeMap::new(),
            turns: BTreeMap::new(),
            down: BTreeSet::new(),
            failures: BTreeMap::new(),
            foreign_failures: HashMap::new(),
            probes: BTreeMap::new(),
            cut_off_since: None,
            conflicts: BTreeMap::new(),
            found_first: BTreeMap::new(),
            notices: BTreeMap::new(),
        }
    }

    /// Takes the peers, and the blocks of this node, that the disk has ([`document::read`]), before
    /// any source was asked.
    pub fn restore(&mut self, document: Document, now: Time) -> Todo {
        let own = document.own.filter(|own| own.name == self.cluster.own().node.name);
        if let Some(own) = &own {
            self.identity.earlier.had(own.prefixes.iter().chain(&own.kept).copied());
            self.identity.recorded = document.macs;
        }
        let of_own = self.cluster.restore_own_blocks(own.map_or(Vec::new(), |own| own.blocks), now);
        let mut outcome = self.cluster.restore(document.peers, now);
        outcome.news.extend(of_own.news);
        self.follow(outcome)
    }

    /// Returns this node and the last known peers, to be written to the disk.
    #[must_use]
    pub fn document(&self) -> String {
        document::write(&self.cluster)
    }

    /// Takes what this node is: its prefixes, its underlay addresses, its tunnels. Its blocks are
    /// known here.
    pub fn own(&mut self, mut own: OwnNode, now: Time) -> Todo {
        own.node.blocks.clone_from(&self.cluster.own().node.blocks);
        if self.waiting.is_none() && *self.cluster.own() == own {
            return Todo::default();
        }
        self.waiting = if own.node.prefixes.is_empty() {
            Some("this node has no prefix yet".to_owned())
        } else if own.node.underlay.iter().next().is_none() {
            Some("this node has no address by which others reach it".to_owned())
        } else {
            None
        };
        let mut outcome = self.cluster.set_own(own, now);
        // The first look plans for all peers.
        if self.looked {
            outcome.affected.extend(self.cluster.used().map(|(_, node)| node.name.clone()));
            // Those that went while nothing could be programmed.
            outcome.affected.extend(self.plans.keys().cloned());
        }
        let mut todo = self.follow(outcome);
        todo.document_changed = true;
        todo
    }

    /// Takes why nothing can be programmed: a range of the cluster overlaps one of this host, for
    /// instance. Objects that are there stay. [`Routing::own`] ends it.
    pub fn wait(&mut self, why: &str) {
        self.waiting = Some(why.to_owned());
    }

    /// Takes what a source says.
    pub fn event(&mut self, event: Event, now: Time) -> Todo {
        let outcome = self.cluster.apply(event, now);
        self.follow(outcome)
    }

    /// Takes what the records of spaces say.
    pub fn blocks(&mut self, event: blocks::Event, now: Time) -> Todo {
        let outcome = self.cluster.apply_blocks(event, now);
        self.follow(outcome)
    }

    /// Takes the ways to underlay addresses, when they were looked up, or have changed.
    pub fn ways(&mut self, ways: impl IntoIterator<Item = (IpAddr, Way)>) -> Todo {
        let mut names: HashSet<&str> = HashSet::new();
        for (address, way) in ways {
            if self.ways.get(&address) != Some(&way) {
                names.extend(self.cluster.of_underlay(address));
                self.ways.insert(address, way);
            }
        }
        let affected: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        self.replan(&affected, Vec::new())
    }

    /// Returns the underlay addresses of all peers: their ways are looked up again when a route or
    /// an address of this host has changed.
    pub fn underlay_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.cluster.used().flat_map(|(_, node)| node.underlay.iter())
    }

    /// Takes all that the kernel has: at the start, once a minute, and whenever in doubt.
    pub fn look(&mut self, observed: ObservedObjects) -> Todo {
        let first = !self.looked;
        self.looked = true;
        // No event reports a new way to an address that no peer has, and a peer may have it again:
        // it is looked up then.
        let cluster = &self.cluster;
        self.ways.retain(|address, _| cluster.of_underlay(*address).is_some());
        let before = std::mem::replace(&mut self.observed, observed).foreign;
        let mut affected = BTreeSet::new();
        for prefix in before.keys().chain(self.observed.foreign.keys()) {
            if before.get(prefix) != self.observed.foreign.get(prefix) {
                affected.extend(self.whose_prefix(*prefix));
            }
        }
        if first {
            // They have waited for the first look: their nexthops keep the numbers that they have.
            affected.extend(self.cluster.used().map(|(_, node)| node.name.clone()));
            self.note_first();
        }
        let mut todo = self.replan(&affected, Vec::new());
        todo.changes = self.everything();
        todo
    }

    /// Takes what an event of the kernel says about objects of ours: each with its value, or
    /// `None` if it is gone.
    pub fn noticed(&mut self, objects: Vec<(Key, Option<Value>)>) -> Todo {
        let mut keys = BTreeSet::new();
        for (key, value) in objects {
            match value {
                Some(value) => {
                    self.observed.insert(key.clone(), value);
                    keys.insert(key);
                }
                None => keys.extend(self.observed.gone(&key)),
            }
        }
        self.repairs(&keys)
    }

    /// Takes routes of others to a prefix: all that there are now.
    pub fn foreign(&mut self, prefix: IpNet, routes: Vec<ForeignRoute>) -> Todo {
        if routes.is_empty() {
            self.observed.foreign.remove(&prefix);
        } else {
            self.observed.foreign.insert(prefix, routes);
        }
        let affected = self.whose_prefix(prefix).into_iter().collect();
        self.replan(&affected, Vec::new())
    }

    /// Takes that a link went down, or lost its carrier. The kernel does not report what goes with
    /// it. By a link of another program, nothing is made until [`Routing::link_up`].
    pub fn link_down(&mut self, link: &str) -> Todo {
        if !self.is_tunnel(link) {
            self.down.insert(link.into());
        }
        let keys = self.observed.link_down(link);
        self.repairs(&keys)
    }

    /// Takes that a link is up, and has its carrier.
    pub fn link_up(&mut self, link: &str) -> Todo {
        self.down.remove(link);
        let by_link = |(_, value): &(&Key, &Value)| match value {
            Value::Nexthop(nexthop) => *nexthop.link == *link,
            _ => false,
        };
        let owners: BTreeSet<String> = self
            .wanted
            .iter()
            .filter(by_link)
            .filter_map(|(key, _)| self.wanted.whose(key).map(str::to_owned))
            .collect();
        let keys = owners.iter().flat_map(|whose| self.wanted.keys_of(whose)).cloned().collect();
        self.repairs(&keys)
    }

    /// Takes which links of others are up and have their carrier, and which are not, when a look has
    /// found them: [`Routing::look`] then finds what follows.
    pub fn links(&mut self, up: &BTreeSet<&str>, down: &BTreeSet<&str>) {
        self.down.retain(|link| !up.contains(&**link));
        let newly = down.iter().filter(|link| !self.is_tunnel(link)).map(|link| (*link).into());
        let newly: Vec<LinkName> = newly.collect();
        self.down.extend(newly);
    }

    /// Takes that a link is gone.
    pub fn link_gone(&mut self, link: &str) -> Todo {
        if !self.is_tunnel(link) {
            return self.link_down(link);
        }
        let keys = self.observed.gone(&Key::Tunnel { link: link.into() });
        self.repairs(&keys)
    }

    /// Takes that a change was made.
    pub fn done(&mut self, change: &Change) {
        self.observed.apply(change);
        self.note_removed(change);
        match change.key() {
            Some(key) => self.failures.remove(key),
            None => self.foreign_failures.remove(change),
        };
    }

    /// Takes what a probe of a peer has shown.
    pub fn probed(&mut self, peer: &str, family: IpFamily, probe: Probe, now: Time) {
        if self.plans.contains_key(peer) {
            self.probes.insert((peer.to_owned(), family), (probe, now));
        }
        self.judge_probes(now);
    }

    /// Does what is due: peers that the brake has held long enough, changes that failed before.
    pub fn tick(&mut self, now: Time) -> Todo {
        let mut outcome = self.cluster.tick(now);
        outcome.affected.extend(self.end_turns(now));
        let mut todo = self.follow(outcome);
        let due = |(key, failure): (&Key, &Failure)| (failure.again <= now).then(|| key.clone());
        let keys: BTreeSet<Key> = self.failures.iter().filter_map(due).collect();
        let again = self.repairs(&keys).changes;
        // What no peer wants any longer, or what is there by now, has not failed.
        let still: BTreeSet<&Key> = again.iter().filter_map(Change::key).collect();
        for key in &keys {
            if !still.contains(key) {
                self.failures.remove(key);
            }
        }
        let again: Vec<Change> = again.into_iter().chain(self.foreign_again(now)).collect();
        let known: HashSet<Change> = todo.changes.iter().cloned().collect();
        todo.changes.extend(again.into_iter().filter(|change| !known.contains(change)));
        self.judge_probes(now);
        todo
    }

    /// Returns when [`Routing::tick`] has something to do; `None` while nothing is due.
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        let failures = self.failures.values().chain(self.foreign_failures.values());
        let retry = failures.map(|failure| failure.again).min();
        let cut_off = self.cut_off_since.map(|since| since.after(condition::GRACE_PERIOD));
        [self.cluster.due(), retry, cut_off, self.turns_due()].into_iter().flatten().min()
    }

    /// Says whether the brake holds something.
    #[must_use]
    pub fn is_braking(&self) -> bool {
        self.cluster.due().is_some()
    }

    /// Removes at once what the brake holds.
    pub fn accept(&mut self, now: Time) -> Todo {
        let outcome = self.cluster.accept(now);
        self.follow(outcome)
    }

    /// Returns what it takes to leave this node.
    #[must_use]
    pub fn leave(&self, leaving: LeaveMode) -> Vec<Change> {
        let stays = |key: &Key| {
            leaving == LeaveMode::ToFlannel
                && match key {
                    Key::Tunnel { .. } | Key::Address { .. } | Key::Fdb { .. } => true,
                    // flanneld's neighbours are addresses of pods' prefixes.
                    Key::Neighbour { address, .. } => !is_link_local(*address),
                    _ => false,
                }
        };
        let objects = self.observed.objects().iter().rev().filter(|(key, _)| !stays(key));
        objects.map(|(key, value)| Change::Remove(key.clone(), value.clone())).collect()
    }

    /// Takes what people should know of something, beside what is found here: sentences, or none
    /// any longer.
    pub fn notice(&mut self, about: &'static str, sentences: Vec<String>) {
        self.notices.insert(about, sentences);
    }

    /// Returns why nothing is programmed for now, if that is so ([`Phase::Waiting`]). Unlike
    /// [`Routing::phase`] it compares nothing.
    #[must_use]
    pub fn waits_for(&self) -> Option<&str> {
        self.waiting.as_deref()
    }

    /// Returns the peers.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns all that is wanted.
    #[must_use]
    pub fn wanted(&self) -> &DesiredObjects {
        &self.wanted
    }

    /// Returns what is known of the kernel.
    #[must_use]
    pub fn observed(&self) -> &ObservedObjects {
        &self.observed
    }

    /// Returns the changes that this node would make, were it not on standby.
    #[must_use]
    pub fn changes_on_standby(&self) -> Vec<Change> {
        if self.settings.standby { self.everything() } else { Vec::new() }
    }

    fn is_tunnel(&self, link: &str) -> bool {
        self.cluster.own().tunnel_named(link).is_some()
    }

    pub(crate) fn has(&self, key: &Key, value: &Value) -> bool {
        self.observed.objects().get(key) == Some(value)
    }
}

/// Reports whether an address is one of a link (RFC 4291 §2.5.6).
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
