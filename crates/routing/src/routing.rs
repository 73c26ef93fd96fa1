//! The whole of it: the value that the daemon feeds with events and asks for changes.
//!
//! Everything that happens is told by a method, with the time; each returns what is to be done
//! ([`Todo`]). The daemon does it in the order given and tells the result by [`Routing::done`] and
//! [`Routing::failed`]. It wakes up at [`Routing::due`], and once a minute to [`Routing::look`].
//!
//! ```
//! use netwright_routing::cluster::Event;
//! use netwright_routing::plan::Observed;
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
//! let own = settings::Found {
//!     name: "a".to_owned(),
//!     uid: String::new(),
//!     prefixes: vec!["10.244.1.0/24".parse()?],
//!     kept: Vec::new(),
//!     zone: None,
//!     uplinks: PerFamily { v4: Some((uplink, "192.0.2.1".parse()?)), v6: None },
//!     taken_over: PerFamily::default(),
//! };
//! routing.own(settings::Own::new(&configured, own), now);
//! routing.look(Observed::default(), now);
//! let todo = routing.event(Event::Listed(nodes), now);
//! assert_eq!(todo.look_up, ["192.0.2.2".parse::<std::net::IpAddr>()?]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::cluster::{Cluster, Event, News, Outcome};
use crate::condition::{self, Condition, Health, NotProgrammed};
use crate::document;
use crate::family::{Family, PerFamily};
use crate::flannel::subnet_env::SubnetEnv;
use crate::ids::{self, Ids};
use crate::mtu;
use crate::node::Node;
use crate::object::{Key, METRIC, Value};
use crate::path::{self, Choice, Facts, Hop, Path, Way};
use crate::plan::{self, Change, ForeignRoute, Observed, Wanted};
use crate::settings::{LinkName, Own, PodMtu, Settings};
use crate::time::Time;
use crate::wanted::{self, Reach};

/// How long a change that failed is left alone before it is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How long an answer of a peer counts.
const FRESH: Duration = Duration::from_secs(180);

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Todo {
    /// Underlay addresses whose [`Way`] is not known: to be looked up and told by
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
    /// The source has answered; not everything is programmed.
    Syncing,
    /// Everything that can be is programmed.
    Ready,
    /// The source is silent since then. Everything stays.
    Degraded(Time),
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The peer.
    pub peer: String,
    /// The family of its pods' addresses.
    pub family: Family,
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
pub enum Leaving {
    /// As if routing had never been there.
    Clean,
    /// To a flanneld that already runs beside it: tunnels, and what is on them, are its again.
    ToFlannel,
}

/// The state of routing on this node.
#[derive(Debug)]
pub struct Routing {
    pub(crate) settings: Arc<Settings>,
    pub(crate) cluster: Cluster,
    /// Why nothing can be programmed yet.
    waiting: Option<String>,
    ways: BTreeMap<IpAddr, Way>,
    pub(crate) wanted: Wanted,
    pub(crate) observed: Observed,
    /// The kernel has been looked at.
    looked: bool,
    /// Peers that are not planned yet, as the ways to them are not known.
    unplanned: BTreeSet<String>,
    /// All peers of a complete list have been planned: what nobody wants by now goes.
    complete: bool,
    ids: Ids,
    pub(crate) plans: BTreeMap<String, PeerPlan>,
    /// Links of others by which nothing can be made now.
    down: BTreeSet<LinkName>,
    pub(crate) failures: BTreeMap<Key, Failure>,
    pub(crate) probes: BTreeMap<(String, Family), (Probe, Time)>,
    cut_off_since: Option<Time>,
    pub(crate) conflicts: BTreeMap<IpNet, ForeignRoute>,
}

/// What is planned for a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerPlan {
    pub(crate) families: PerFamily<Option<FamilyPlan>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FamilyPlan {
    pub(crate) prefixes: Vec<IpNet>,
    pub(crate) choice: Choice,
    pub(crate) mtu: Option<u32>,
}

/// A change that the kernel did not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) error: String,
    pub(crate) since: Time,
    wait: Duration,
    again: Time,
}

impl Routing {
    /// Creates the state of a node of which nothing but its name is known.
    #[must_use]
    pub fn new(settings: Settings, name: &str) -> Self {
        let own = Own::unknown(&settings, name);
        let settings = Arc::new(settings);
        Routing {
            cluster: Cluster::new(settings.clone(), own),
            settings,
            waiting: Some("nothing is known of this node yet".to_owned()),
            ways: BTreeMap::new(),
            wanted: Wanted::default(),
            observed: Observed::default(),
            looked: false,
            unplanned: BTreeSet::new(),
            complete: false,
            ids: Ids::default(),
            plans: BTreeMap::new(),
            down: BTreeSet::new(),
            failures: BTreeMap::new(),
            probes: BTreeMap::new(),
            cut_off_since: None,
            conflicts: BTreeMap::new(),
        }
    }

    /// Takes the peers that the disk has ([`document::read`]), before any source was asked.
    pub fn restore(&mut self, peers: Vec<(Node, Time)>, now: Time) -> Todo {
        let outcome = self.cluster.restore(peers, now);
        self.follow(outcome)
    }

    /// Returns this node and the last known peers, to be written to the disk.
    #[must_use]
    pub fn document(&self) -> String {
        document::write(&self.cluster)
    }

    /// Takes what this node is: its prefixes, its underlay addresses, its tunnels.
    pub fn own(&mut self, own: Own, now: Time) -> Todo {
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
        outcome.affected.extend(self.cluster.used().map(|(_, node)| node.name.clone()));
        // Those that went while nothing could be programmed.
        outcome.affected.extend(self.plans.keys().cloned());
        let mut todo = self.follow(outcome);
        todo.document_changed = true;
        todo
    }

    /// Takes why nothing can be programmed: a range of the cluster overlaps one of this host, for
    /// instance. What is programmed stays. [`Routing::own`] ends it.
    pub fn wait(&mut self, why: &str) {
        self.waiting = Some(why.to_owned());
    }

    /// Takes what a source says.
    pub fn event(&mut self, event: Event, now: Time) -> Todo {
        let outcome = self.cluster.apply(event, now);
        self.follow(outcome)
    }

    /// Takes the ways to underlay addresses, when they were looked up, or have changed.
    pub fn ways(&mut self, ways: impl IntoIterator<Item = (IpAddr, Way)>) -> Todo {
        let mut affected = BTreeSet::new();
        for (address, way) in ways {
            if self.ways.get(&address) != Some(&way) {
                affected.extend(self.cluster.of_underlay(address).map(str::to_owned));
                self.ways.insert(address, way);
            }
        }
        self.replan(&affected, Vec::new())
    }

    /// Returns the underlay addresses of all peers: their ways are looked up again when a route or
    /// an address of this host has changed.
    pub fn underlay_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.cluster.used().flat_map(|(_, node)| node.underlay.iter())
    }

    /// Takes all that the kernel has: at the start, once a minute, and whenever in doubt.
    pub fn look(&mut self, observed: Observed) -> Todo {
        let first = !self.looked;
        self.looked = true;
        let before = std::mem::replace(&mut self.observed, observed);
        let mut affected = BTreeSet::new();
        let prefixes = before.foreign.keys().chain(self.observed.foreign.keys());
        for prefix in prefixes {
            if before.foreign.get(prefix) != self.observed.foreign.get(prefix) {
                affected.extend(self.whose_prefix(*prefix));
            }
        }
        if first {
            // They have waited for it: their nexthops keep the numbers that they have.
            affected.extend(self.cluster.used().map(|(_, node)| node.name.clone()));
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

    /// Takes that a link went down, or lost its carrier. The kernel says nothing of what goes with
    /// it. By a link of others, nothing is made until [`Routing::link_up`].
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
        if let Some(key) = change.key() {
            self.failures.remove(key);
        }
    }

    /// Takes that a change failed, with the kernel's words. It is tried again later.
    ///
    /// Returns a sentence for the log, the first time.
    pub fn failed(&mut self, change: &Change, error: &str, now: Time) -> Option<News> {
        let key = change.key()?;
        let known = self.failures.get(key);
        let wait = known.map_or(RETRY.0, |failure| (failure.wait * 2).min(RETRY.1));
        let since = known.map_or(now, |failure| failure.since);
        let is_new = known.is_none_or(|failure| failure.error != error);
        let failure = Failure { error: error.to_owned(), since, wait, again: now.after(wait) };
        self.failures.insert(key.clone(), failure);
        let whose = self.wanted.whose(key).filter(|whose| !whose.is_empty());
        is_new.then(|| News::warning(whose, format!("{change}: {error}")))
    }

    /// Takes what a probe of a peer has shown.
    pub fn probed(&mut self, peer: &str, family: Family, probe: Probe, now: Time) {
        if self.plans.contains_key(peer) {
            self.probes.insert((peer.to_owned(), family), (probe, now));
        }
        self.judge_probes(now);
    }

    /// Does what is due: peers that the brake has held long enough, changes that failed before.
    pub fn tick(&mut self, now: Time) -> Todo {
        let outcome = self.cluster.tick(now);
        let mut todo = self.follow(outcome);
        let due = |(key, failure): (&Key, &Failure)| (failure.again <= now).then(|| key.clone());
        let keys: BTreeSet<Key> = self.failures.iter().filter_map(due).collect();
        let again = self.repairs(&keys).changes;
        // What nobody wants any more, or what is there by now, has not failed.
        let still: BTreeSet<&Key> = again.iter().filter_map(Change::key).collect();
        for key in &keys {
            if !still.contains(key) {
                self.failures.remove(key);
            }
        }
        let known: HashSet<Change> = todo.changes.iter().cloned().collect();
        todo.changes.extend(again.into_iter().filter(|change| !known.contains(change)));
        self.judge_probes(now);
        todo
    }

    /// Returns when [`Routing::tick`] has something to do; `None`: nothing, however long it takes.
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        let retry = self.failures.values().map(|failure| failure.again).min();
        let cut_off = self.cut_off_since.map(|since| since.after(condition::PATIENCE));
        [self.cluster.due(), retry, cut_off].into_iter().flatten().min()
    }

    /// Removes at once what the brake holds.
    pub fn accept(&mut self, now: Time) -> Todo {
        let outcome = self.cluster.accept(now);
        self.follow(outcome)
    }

    /// Returns what it takes to leave this node.
    #[must_use]
    pub fn leave(&self, leaving: Leaving) -> Vec<Change> {
        let stays = |key: &Key| {
            leaving == Leaving::ToFlannel
                && matches!(
                    key,
                    Key::Tunnel { .. }
                        | Key::Address { .. }
                        | Key::Fdb { .. }
                        | Key::Neighbour { .. }
                )
        };
        let objects = self.observed.objects().iter().rev().filter(|(key, _)| !stays(key));
        objects.map(|(key, value)| Change::Remove(key.clone(), value.clone())).collect()
    }

    /// Returns what can be probed: every peer and family that has a path, and something there that
    /// answers.
    pub fn targets(&self) -> impl Iterator<Item = Target> {
        let used = self.cluster.used();
        used.flat_map(|(_, node)| Family::ALL.map(|family| self.target(node, family))).flatten()
    }

    fn target(&self, node: &Node, family: Family) -> Option<Target> {
        let plan = self.plans.get(&node.name)?.families.get(family).as_ref()?;
        let underlay = match plan.choice.path {
            Path::None => return None,
            Path::Vxlan { underlay } => underlay,
            _ => family,
        };
        let underlay = node.underlay.get(underlay)?;
        let tunnel = node.tunnel_address(family).filter(|_| node.offers.vxlan.is_some());
        // Without tunnels, nothing of the peer's own has an address of its prefix.
        let path = tunnel.or(Some(underlay).filter(|_| plan.choice.path == Path::Direct))?;
        Some(Target { peer: node.name.clone(), family, path, underlay, mtu: plan.mtu })
    }

    /// Returns the peers.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns all that is wanted.
    #[must_use]
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Returns what is known of the kernel.
    #[must_use]
    pub fn observed(&self) -> &Observed {
        &self.observed
    }

    /// Returns how far this node is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        if let Some(why) = &self.waiting {
            return Phase::Waiting(why.clone());
        }
        if let Some(since) = self.cluster.silent_since() {
            return Phase::Degraded(since);
        }
        if !self.cluster.listed() {
            return Phase::Restoring;
        }
        let is_there = |(key, value): (&Key, &Value)| self.has(key, value);
        let all = self.looked && self.unplanned.is_empty() && self.wanted.iter().all(is_there);
        if all { Phase::Ready } else { Phase::Syncing }
    }

    /// Returns the condition `NetworkUnavailable`; `None`: it stays as it is.
    #[must_use]
    pub fn condition(&self, now: Time) -> Option<Condition> {
        let own = self.wanted.keys_of("");
        let failure = own.iter().find_map(|key| self.failures.get(key));
        let is_there = |key: &Key| self.wanted.get(key).is_some_and(|value| self.has(key, value));
        let programmed = if let Some(failure) = failure {
            Err(NotProgrammed::Failed(failure.error.clone()))
        } else if self.waiting.is_none() && self.looked && own.iter().all(is_there) {
            Ok(())
        } else {
            Err(NotProgrammed::NotYet)
        };
        let has_path = |plan: &&PeerPlan| {
            let mut families = plan.families.iter().filter_map(|(_, plan)| plan.as_ref());
            families.any(|plan| plan.choice.path != Path::None)
        };
        let health = Health {
            programmed,
            peers_known: self.cluster.listed(),
            peers: self.plans.values().filter(has_path).count(),
            answered: self.answered(now),
            cut_off_since: self.cut_off_since,
        };
        condition::decide(&health, now)
    }

    /// Returns the MTU of pods, in bytes; `None` while nothing is known of the underlay.
    #[must_use]
    pub fn pod_mtu(&self) -> Option<u32> {
        let own = self.cluster.own();
        let uplinks = || own.uplinks.iter().filter_map(|(_, uplink)| uplink.as_ref());
        let underlay =
            || self.settings.underlay_mtu.or_else(|| uplinks().map(|uplink| uplink.mtu).min());
        match self.settings.pod_mtu {
            PodMtu::Fixed(mtu) => Some(mtu),
            PodMtu::Underlay => underlay(),
            PodMtu::Paths => {
                let plans = self.plans.values().flat_map(|plan| plan.families.iter());
                let used = plans.filter_map(|(_, plan)| plan.as_ref()?.mtu).min();
                // Without a peer, as if every offer were in use: the first peer changes nothing.
                let offered = || {
                    let vxlan = own.node.offers.vxlan?;
                    let tunnels = Family::ALL.into_iter().filter(|of| vxlan.mac(*of).is_some());
                    let mtus = tunnels.filter_map(|of| wanted::tunnel_mtu(&self.settings, own, of));
                    mtus.min()
                };
                used.or_else(offered).or_else(underlay)
            }
        }
    }

    /// Returns what flannel's plugin reads; `None` while there is no prefix or no MTU.
    #[must_use]
    pub fn subnet_env(&self) -> Option<SubnetEnv> {
        let own = &self.cluster.own().node;
        let mut subnets: Vec<IpNet> = Vec::new();
        let mut networks: Vec<IpNet> = Vec::new();
        for family in Family::ALL {
            let mut of_family =
                own.prefixes.iter().copied().filter(|prefix| Family::of_prefix(*prefix) == family);
            let Some(subnet) = of_family.next() else { continue };
            let mut ranges = self.settings.cluster_ranges.iter().copied();
            networks.push(ranges.find(|range| range.contains(&subnet))?);
            subnets.push(subnet);
        }
        if subnets.is_empty() {
            return None;
        }
        Some(SubnetEnv { networks, subnets, mtu: self.pod_mtu()?, ip_masq: true })
    }

    /// Plans again for the peers that something has changed.
    fn follow(&mut self, outcome: Outcome) -> Todo {
        let Outcome { affected, news } = outcome;
        let mut todo = self.replan(&affected, news);
        todo.document_changed = !affected.is_empty();
        todo
    }

    /// Plans for peers, and for this node where that depends on them.
    fn replan(&mut self, peers: &BTreeSet<String>, news: Vec<News>) -> Todo {
        let mut todo = Todo { news, ..Todo::default() };
        if self.waiting.is_some() || !self.looked {
            return todo;
        }
        let mut keys = BTreeSet::new();
        let used = self.cluster.used().count();
        if 2 * used + peers.len() < self.ways.len() / 2 {
            let cluster = &self.cluster;
            self.ways.retain(|address, _| cluster.of_underlay(*address).is_some());
        }
        for name in peers {
            let node = self.cluster.peer(name).and_then(|peer| peer.used_shared());
            match node {
                Some(node) => self.plan_peer(&node, &mut keys, &mut todo),
                None => self.plan_gone(name, &mut keys, &mut todo),
            }
        }
        let of_node = wanted::of_node(&self.settings, self.cluster.own(), self.native());
        let is_new = self.wanted.keys_of("").len() != of_node.len()
            || of_node.iter().any(|(key, value)| self.wanted.get(key) != Some(value));
        if is_new {
            keys.extend(self.wanted.replace("", of_node));
        }
        if !self.complete && self.cluster.listed() && self.unplanned.is_empty() {
            self.complete = true;
            todo.changes = self.everything();
        } else {
            todo.changes = self.planned(&keys);
        }
        todo
    }

    fn plan_peer(&mut self, node: &Node, keys: &mut BTreeSet<Key>, todo: &mut Todo) {
        let unknown: Vec<IpAddr> =
            node.underlay.iter().filter(|address| !self.ways.contains_key(address)).collect();
        if !unknown.is_empty() {
            // What there is of it stays until then.
            todo.look_up.extend(unknown);
            if !self.plans.contains_key(&node.name) {
                self.unplanned.insert(node.name.clone());
            }
            return;
        }
        let own = self.cluster.own_shared();
        let mut families = PerFamily::default();
        let mut reach = PerFamily::default();
        for family in Family::ALL {
            let prefixes: Vec<IpNet> = node.prefixes_of(family).collect();
            if prefixes.is_empty() {
                continue;
            }
            let choice = self.choose(node, family, &prefixes);
            let hop = self.hop(node, family, choice.path);
            let mtu = self.path_mtu(&own, node, family, choice.path, hop.as_ref());
            let link_mtu = match choice.path {
                Path::Vxlan { underlay } => wanted::tunnel_mtu(&self.settings, &own, underlay),
                Path::Direct => {
                    let uplink = own.uplinks.get(family).as_ref();
                    uplink
                        .filter(|uplink| hop.as_ref().is_some_and(|hop| hop.link == uplink.name))
                        .map(|uplink| uplink.mtu)
                }
                _ => mtu,
            };
            let preferred = prefixes.iter().find_map(|prefix| {
                match self.observed.objects().get(&Key::Route { prefix: *prefix }) {
                    Some(Value::Route { nexthop, .. }) => *nexthop,
                    _ => None,
                }
            });
            let observed = &self.observed;
            let is_free = |id: u32| {
                !observed.foreign_nexthops.contains(&id)
                    && !observed.objects().contains_key(&Key::Nexthop { id })
            };
            let nexthop = self.ids.of(&node.name, family, preferred, is_free);
            debug_assert!(ids::is_ours(nexthop), "{nexthop}");
            *reach.get_mut(family) = Some(Reach {
                path: choice.path,
                nexthop,
                hop,
                mtu: mtu.filter(|mtu| link_mtu.is_none_or(|link| *mtu < link)),
            });
            *families.get_mut(family) = Some(FamilyPlan { prefixes, choice, mtu });
        }
        let plan = PeerPlan { families };
        self.tell_conflicts(node, &mut todo.news);
        self.unplanned.remove(&node.name);
        let before = self.plans.insert(node.name.clone(), plan.clone());
        if let Some(before) = before {
            todo.flush_flows.extend(changed_prefixes(&before, Some(&plan)));
        }
        keys.extend(self.wanted.replace(&node.name, wanted::of_peer(&own, node, &reach)));
    }

    fn plan_gone(&mut self, name: &str, keys: &mut BTreeSet<Key>, todo: &mut Todo) {
        keys.extend(self.wanted.replace(name, plan::Objects::new()));
        self.ids.release(name);
        self.unplanned.remove(name);
        for family in Family::ALL {
            self.probes.remove(&(name.to_owned(), family));
        }
        if let Some(before) = self.plans.remove(name) {
            let prefixes = changed_prefixes(&before, None);
            self.conflicts.retain(|prefix, _| !prefixes.contains(prefix));
            todo.flush_flows.extend(prefixes);
        }
    }

    fn choose(&self, node: &Node, family: Family, prefixes: &[IpNet]) -> Choice {
        let unknown = Way::Unknown;
        let ways = PerFamily::with(|family| {
            let way = node.underlay.get(family).and_then(|address| self.ways.get(&address));
            way.unwrap_or(&unknown)
        });
        let is_learned = |prefix: &IpNet| {
            let routes = self.observed.foreign.get(prefix);
            routes.is_some_and(|routes| routes.iter().any(ForeignRoute::is_learned))
        };
        let learned = prefixes.iter().all(is_learned);
        path::choose(&self.cluster.own().node, node, family, Facts { ways, learned })
    }

    /// Returns the way that a path's packets go.
    fn hop(&self, node: &Node, family: Family, path: Path) -> Option<Hop> {
        let underlay = match path {
            Path::Vxlan { underlay } => underlay,
            _ => family,
        };
        match self.ways.get(&node.underlay.get(underlay)?)? {
            Way::OnLink(hop) | Way::ByGateway(hop) => Some(hop.clone()),
            Way::Unknown | Way::Missing => None,
        }
    }

    /// Returns what fits through a path, by what both ends know of the underlay.
    fn path_mtu(
        &self,
        own: &Own,
        node: &Node,
        family: Family,
        path: Path,
        hop: Option<&Hop>,
    ) -> Option<u32> {
        let underlay = match path {
            Path::None => return None,
            Path::Vxlan { underlay } => underlay,
            _ => family,
        };
        let uplink = || own.uplinks.get(underlay).as_ref().map(|uplink| uplink.mtu);
        let way = self.settings.underlay_mtu.or(hop.map(|hop| hop.mtu)).or_else(uplink)?;
        Some(mtu::of_path(path, way, node.mtu))
    }

    /// Says of routes of others that are in the way of a peer's.
    fn tell_conflicts(&mut self, node: &Node, news: &mut Vec<News>) {
        let own = self.cluster.own();
        let tunnels: Vec<&str> = own.tunnels.iter().map(|(_, link)| &**link).collect();
        let underlay: Vec<IpAddr> = node.underlay.iter().collect();
        let mut conflicts = Vec::new();
        for prefix in node.prefixes.iter().chain(&node.kept) {
            let routes = self.observed.foreign.get(prefix);
            let wins = |route: &&ForeignRoute| {
                let flannels =
                    self.settings.flannel.is_some() && route.is_like_flannels(&tunnels, &underlay);
                route.metric <= METRIC && !route.is_learned() && !flannels
            };
            conflicts.push((*prefix, routes.and_then(|routes| routes.iter().find(wins)).cloned()));
        }
        for (prefix, route) in conflicts {
            let Some(route) = route else {
                self.conflicts.remove(&prefix);
                continue;
            };
            if self.conflicts.get(&prefix) != Some(&route) {
                let name = &node.name;
                let text = format!(
                    "node {name}: a route of somebody else is in the way and stays: {prefix} {route}"
                );
                news.push(News::warning(Some(name), text));
                self.conflicts.insert(prefix, route);
            }
        }
    }

    /// Returns the changes of everything.
    fn everything(&self) -> Vec<Change> {
        let wanted = self.wanted.iter().map(|(key, _)| key);
        let keys = wanted.chain(self.observed.objects().keys()).cloned().collect();
        let mut changes = self.repairs(&keys).changes;
        if !changes.is_empty() || !self.observed.foreign.is_empty() {
            let of_others = self.flannels_routes(self.observed.foreign.keys());
            changes.retain(|change| !matches!(change, Change::RemoveForeign(..)));
            changes.extend(of_others);
        }
        changes
    }

    /// Returns the changes of what the kernel has otherwise than wanted. Before all peers of a
    /// complete list are planned, nothing goes: what nobody wants may be one's of these.
    fn repairs(&self, keys: &BTreeSet<Key>) -> Todo {
        let mut changes = self.planned(keys);
        let goes = |change: &Change| match change {
            Change::Remove(key, _) => self.complete || self.wanted.get(key).is_some(),
            _ => true,
        };
        changes.retain(goes);
        Todo { changes, ..Todo::default() }
    }

    /// Returns the changes of what is wanted otherwise than before.
    fn planned(&self, keys: &BTreeSet<Key>) -> Vec<Change> {
        if self.waiting.is_some() || !self.looked {
            return Vec::new();
        }
        let mut changes = plan::difference_of(keys, &self.wanted, &self.observed);
        changes.retain(|change| self.may(change));
        let prefixes = keys.iter().filter_map(|key| match key {
            Key::Route { prefix } => Some(prefix),
            _ => None,
        });
        changes.extend(self.flannels_routes(prefixes));
        changes
    }

    /// Reports whether a change can be made now: by a link of others that is down, nothing can.
    fn may(&self, change: &Change) -> bool {
        let (Change::Create(_, value) | Change::Replace(_, value)) = change else { return true };
        let nexthop = match value {
            Value::Route { nexthop: Some(id), .. } => self.wanted.get(&Key::Nexthop { id: *id }),
            value => Some(value),
        };
        match nexthop {
            Some(Value::Nexthop(nexthop)) => !self.down.contains(&nexthop.link),
            _ => true,
        }
    }

    /// Returns the removals of flanneld's routes: where ours stand, and, once a source has given a
    /// complete list, of peers that are gone.
    fn flannels_routes<'a>(&self, prefixes: impl Iterator<Item = &'a IpNet>) -> Vec<Change> {
        if self.settings.flannel.is_none() {
            return Vec::new();
        }
        let own = self.cluster.own();
        let tunnels: Vec<&str> = own.tunnels.iter().map(|(_, link)| &**link).collect();
        let mut changes = Vec::new();
        for prefix in prefixes {
            let Some(routes) = self.observed.foreign.get(prefix) else { continue };
            let is_wanted = self.wanted.get(&Key::Route { prefix: *prefix }).is_some();
            let node = self
                .cluster
                .of_address(prefix.network())
                .and_then(|(_, name)| self.cluster.peer(name)?.used());
            let underlay: Vec<IpAddr> =
                node.into_iter().flat_map(|node| node.underlay.iter()).collect();
            for route in routes {
                if route.is_like_flannels(&tunnels, &underlay)
                    && (is_wanted || (node.is_none() && self.complete))
                {
                    changes.push(Change::RemoveForeign(*prefix, route.clone()));
                }
            }
        }
        changes
    }

    /// Returns the families of which a peer's path is native.
    fn native(&self) -> PerFamily<bool> {
        PerFamily::with(|family| {
            self.plans.values().any(|plan| {
                let plan = plan.families.get(family).as_ref();
                plan.is_some_and(|plan| plan.choice.path == Path::Native)
            })
        })
    }

    fn whose_prefix(&self, prefix: IpNet) -> Option<String> {
        self.cluster.of_address(prefix.network()).map(|(_, name)| name.to_owned())
    }

    fn is_tunnel(&self, link: &str) -> bool {
        self.cluster.own().tunnels.iter().any(|(_, tunnel)| **tunnel == *link)
    }

    pub(crate) fn has(&self, key: &Key, value: &Value) -> bool {
        self.observed.objects().get(key) == Some(value)
    }

    fn fresh(&self, now: Time) -> impl Iterator<Item = (&str, &Probe)> {
        let fresh = move |at: &Time| now.since(*at) <= FRESH;
        let probes = self.probes.iter().filter(move |(_, (_, at))| fresh(at));
        probes.map(|((name, _), (probe, _))| (name.as_str(), probe))
    }

    fn answered(&self, now: Time) -> usize {
        let answered = self.fresh(now).filter(|(_, probe)| probe.path == Answer::Yes);
        answered.map(|(name, _)| name).collect::<BTreeSet<_>>().len()
    }

    /// Finds out since when peers are cut off: none answers by its path, one at least by its
    /// underlay address.
    fn judge_probes(&mut self, now: Time) {
        let is_cut_off = |probe: &Probe| probe.path == Answer::No && probe.underlay == Answer::Yes;
        let any = self.answered(now) == 0 && self.fresh(now).any(|(_, probe)| is_cut_off(probe));
        self.cut_off_since = any.then(|| self.cut_off_since.unwrap_or(now));
    }
}

/// Returns the prefixes whose packets go another way now.
fn changed_prefixes(before: &PeerPlan, after: Option<&PeerPlan>) -> Vec<IpNet> {
    let mut changed = Vec::new();
    for (family, before) in before.families.iter() {
        let Some(before) = before else { continue };
        let after = after.and_then(|after| after.families.get(family).as_ref());
        let same_path = after.is_some_and(|after| after.choice.path == before.choice.path);
        let stays = |prefix: &&IpNet| {
            same_path && after.is_some_and(|after| after.prefixes.contains(prefix))
        };
        changed.extend(before.prefixes.iter().filter(|prefix| !stays(prefix)));
    }
    changed
}
