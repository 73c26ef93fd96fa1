//! The peers: what a source says of them, and what is taken of it.
//!
//! A peer is used if its record can be read, and if nothing in it belongs to this node or to an
//! older peer. Which peers are used depends on what the source says last, never on the order in
//! which it was said: of several that want the same, the oldest has it.
//!
//! A peer goes when the source deletes it, or when a complete list lacks it. Nothing else removes
//! one: not silence, not a record that became unreadable. A list that would remove more than half
//! of the peers is held for a while ([`BRAKE`]): an empty store must not cut a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::claims::{ClaimedPrefix, Claims, Taken};
use crate::family::Family;
use crate::node::Node;
use crate::reader::overlap;
use crate::refused::{Cause, Refused};
use crate::settings::{Own, Settings};
use crate::time::Time;

/// How long peers are kept that a list would remove together.
pub const BRAKE: Duration = Duration::from_secs(600);

/// So many removals by one list never need the brake.
pub const FEW: usize = 3;

/// If one event changes more peers than this, the log has one line for all of them.
const MANY: usize = 20;

/// One node as a source shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// What it says of itself, or why that is not usable.
    pub node: Result<Node, Unusable>,
    /// What is wrong with one family of it, where the other counts.
    pub faults: Vec<Refused>,
}

impl Seen {
    /// Creates one of a record without fault.
    #[must_use]
    pub fn whole(node: Node) -> Self {
        Seen { name: node.name.clone(), node: Ok(node), faults: Vec::new() }
    }
}

/// Why a record cannot be used, or not yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unusable {
    /// Something is not there yet, as with a node that is just starting.
    Incomplete(String),
    /// Something cannot be true.
    Refused(Refused),
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unusable::Incomplete(what) => write!(f, "incomplete: {what}"),
            Unusable::Refused(refused) => write!(f, "refused: {}: {}", refused.key, refused.cause),
        }
    }
}

/// What a source says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// These are all nodes there are. This node may be among them.
    Listed(Vec<Seen>),
    /// A node is new, or has changed.
    Changed(Seen),
    /// A node was deleted.
    Deleted(String),
    /// The source does not answer.
    Silent,
}

/// What an event leads to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The peers whose wanted objects may differ now, and those that are gone.
    pub affected: BTreeSet<String>,
    /// What happened, for the log: each change once.
    pub news: Vec<News>,
}

/// One thing that happened, as a sentence for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// Somebody should act.
    pub warning: bool,
    /// The peer it is about, if it is about one.
    pub node: Option<String>,
    /// The sentence.
    pub text: String,
}

impl News {
    pub(crate) fn of(node: &str, text: String) -> Self {
        News { warning: false, node: Some(node.to_owned()), text }
    }

    pub(crate) fn warning(node: Option<&str>, text: String) -> Self {
        News { warning: true, node: node.map(str::to_owned), text }
    }
}

/// A peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The last record that could be read.
    record: Option<Arc<Node>>,
    /// What is used of it.
    used: Option<Arc<Node>>,
    /// What stands against its latest record, if that could not be read.
    pub unreadable: Option<Unusable>,
    /// What stands against the last record that could be read.
    pub refused: Option<Refused>,
    /// What is wrong with one family of it.
    pub faults: Vec<Refused>,
    /// Why it is kept although the source does not show it, or not as it was.
    pub held: Option<Held>,
    /// Since when it is known.
    pub first_seen: Time,
    /// Since when it is as it is.
    pub since: Time,
}

impl Peer {
    fn new(now: Time) -> Self {
        Peer {
            record: None,
            used: None,
            unreadable: None,
            refused: None,
            faults: Vec::new(),
            held: None,
            first_seen: now,
            since: now,
        }
    }

    /// Returns what is used of it: the last record that could be read, if nothing stands against
    /// it, without earlier prefixes that somebody else has.
    #[must_use]
    pub fn used(&self) -> Option<&Node> {
        self.used.as_deref()
    }

    pub(crate) fn used_shared(&self) -> Option<Arc<Node>> {
        self.used.clone()
    }

    /// Returns the last record that could be read, whether it is used or not.
    #[must_use]
    pub fn record(&self) -> Option<&Node> {
        self.record.as_deref()
    }

    /// Returns why it is not used as its source shows it.
    #[must_use]
    pub fn unusable(&self) -> Option<Unusable> {
        match (&self.refused, &self.unreadable) {
            (Some(refused), _) => Some(Unusable::Refused(refused.clone())),
            (None, unreadable) => unreadable.clone(),
        }
    }
}

/// Why a peer is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// A list lacked it, with more than half of all peers: it is kept until then.
    Brake {
        /// When it goes, unless it shows up before.
        until: Time,
    },
    /// Its record became unreadable, and the last one that could be read counts.
    LastKnown,
    /// It comes from the disk, and no source has said anything yet.
    Restored,
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Held::Brake { until } => write!(
                f,
                "the source lacks it, with more than half of all nodes: kept until {until}, or \
                 until `netwright routes accept`"
            ),
            Held::LastKnown => f.write_str("its last readable record counts"),
            Held::Restored => {
                f.write_str("it comes from the disk: the source has not answered yet")
            }
        }
    }
}

/// Who is older: what a source shows goes before what is only kept, then the older before the
/// younger, then the name decides.
type Age = (bool, Time, String);

/// All peers of this node.
#[derive(Debug)]
pub struct Cluster {
    settings: Arc<Settings>,
    own: Arc<Own>,
    peers: BTreeMap<String, Peer>,
    claims: Claims,
    /// Peers that are refused because of another peer, or lack an earlier prefix because of one.
    contested: BTreeSet<String>,
    listed: bool,
    silent_since: Option<Time>,
}

/// What a peer was before an event, as far as people are told.
#[derive(PartialEq)]
struct Before {
    used: Option<Arc<Node>>,
    refused: Option<Refused>,
    unreadable: Option<Unusable>,
    faults: Vec<Refused>,
    held: Option<Held>,
}

impl Before {
    fn of(peer: Option<&Peer>) -> Self {
        let peer = peer.cloned().unwrap_or_else(|| Peer::new(Time::default()));
        let Peer { used, refused, unreadable, faults, held, .. } = peer;
        Before { used, refused, unreadable, faults, held }
    }
}

impl Cluster {
    /// Creates one without peers.
    #[must_use]
    pub fn new(settings: Arc<Settings>, own: Own) -> Self {
        Cluster {
            settings,
            own: Arc::new(own),
            peers: BTreeMap::new(),
            claims: Claims::default(),
            contested: BTreeSet::new(),
            listed: false,
            silent_since: None,
        }
    }

    /// Takes peers from the disk, before any source was asked.
    pub fn restore(&mut self, peers: Vec<(Node, Time)>, now: Time) -> Outcome {
        let mut work = Work::default();
        for (node, first_seen) in peers {
            if node.name == self.own.node.name || self.peers.contains_key(&node.name) {
                continue;
            }
            work.touch(&self.peers, &node.name);
            let name = node.name.clone();
            let held = Some(Held::Restored);
            let record = Some(Arc::new(node));
            self.peers.insert(name, Peer { record, held, first_seen, ..Peer::new(now) });
        }
        self.settle(work, now)
    }

    /// Takes what a source says.
    pub fn apply(&mut self, event: Event, now: Time) -> Outcome {
        let mut work = Work::default();
        let silent = matches!(event, Event::Silent);
        if let (true, None) = (silent, self.silent_since) {
            self.silent_since = Some(now);
            let count = self.used().count();
            let text = format!("the source does not answer; peers kept: {count}");
            work.news.push(News::warning(None, text));
        }
        if let (false, Some(since)) = (silent, self.silent_since) {
            self.silent_since = None;
            let text = format!("the source answers again; it was silent since {since}");
            work.news.push(News { warning: false, node: None, text });
        }
        match event {
            Event::Silent => {}
            Event::Changed(seen) => self.take(seen, now, &mut work),
            Event::Deleted(name) => self.remove(&name, &mut work),
            Event::Listed(seen) => {
                let names: BTreeSet<String> = seen.iter().map(|seen| seen.name.clone()).collect();
                self.lack(&names, now, &mut work);
                for seen in seen {
                    self.take(seen, now, &mut work);
                }
                self.listed = true;
            }
        }
        self.settle(work, now)
    }

    /// Does what is due. See [`Cluster::due`].
    pub fn tick(&mut self, now: Time) -> Outcome {
        self.remove_braked(now, |until| until <= now)
    }

    /// Returns when [`Cluster::tick`] has something to do.
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        self.braked().map(|(_, until)| until).min()
    }

    /// Removes at once what the brake holds: a person has confirmed the list.
    pub fn accept(&mut self, now: Time) -> Outcome {
        self.remove_braked(now, |_| true)
    }

    /// Takes what this node is now, and judges every peer anew.
    pub fn set_own(&mut self, own: Own, now: Time) -> Outcome {
        let mut work = Work::default();
        if own != *self.own {
            self.own = Arc::new(own);
            let own_name = self.own.node.name.clone();
            if self.peers.contains_key(&own_name) {
                self.remove(&own_name, &mut work);
            }
            for name in self.peers.keys() {
                work.touch(&self.peers, name);
                work.affected.insert(name.clone());
            }
        }
        self.settle(work, now)
    }

    /// Returns what this node is.
    #[must_use]
    pub fn own(&self) -> &Own {
        &self.own
    }

    pub(crate) fn own_shared(&self) -> Arc<Own> {
        self.own.clone()
    }

    /// Returns the peers by name.
    pub fn peers(&self) -> impl Iterator<Item = (&str, &Peer)> {
        self.peers.iter().map(|(name, peer)| (name.as_str(), peer))
    }

    /// Returns the peers that are used, by name, with what is used of them.
    pub fn used(&self) -> impl Iterator<Item = (&Peer, &Node)> {
        self.peers.values().filter_map(|peer| Some((peer, peer.used()?)))
    }

    /// Returns a peer.
    #[must_use]
    pub fn peer(&self, name: &str) -> Option<&Peer> {
        self.peers.get(name)
    }

    /// Returns the prefix of a used peer that an address is in, and the peer's name.
    #[must_use]
    pub fn of_address(&self, address: IpAddr) -> Option<(IpNet, &str)> {
        self.claims.of_address(address).map(|claim| (claim.prefix, &*claim.whose))
    }

    /// Returns the used peer that has an underlay address.
    #[must_use]
    pub fn of_underlay(&self, address: IpAddr) -> Option<&str> {
        self.claims.of_underlay(address)
    }

    /// Reports whether a source has given a complete list.
    #[must_use]
    pub fn listed(&self) -> bool {
        self.listed
    }

    /// Returns since when the source is silent.
    #[must_use]
    pub fn silent_since(&self) -> Option<Time> {
        self.silent_since
    }

    /// Returns the peers that the brake holds, each with until when.
    pub fn braked(&self) -> impl Iterator<Item = (&str, Time)> {
        self.peers().filter_map(|(name, peer)| match peer.held {
            Some(Held::Brake { until }) => Some((name, until)),
            _ => None,
        })
    }

    /// Takes what a source shows of a node.
    fn take(&mut self, seen: Seen, now: Time, work: &mut Work) {
        let Seen { name, node, faults } = seen;
        if name == self.own.node.name {
            return;
        }
        work.touch(&self.peers, &name);
        let peer = self.peers.entry(name).or_insert_with(|| Peer::new(now));
        match node {
            Ok(node) => {
                if peer.record.as_deref() != Some(&node) {
                    peer.record = Some(Arc::new(node));
                }
                (peer.unreadable, peer.held, peer.faults) = (None, None, faults);
            }
            Err(unusable) => {
                peer.unreadable = Some(unusable);
                peer.held = peer.record.is_some().then_some(Held::LastKnown);
            }
        }
    }

    /// Removes, or holds, what a complete list lacks.
    fn lack(&mut self, names: &BTreeSet<String>, now: Time, work: &mut Work) {
        let all = self.peers.len();
        let missing: Vec<String> =
            self.peers.keys().filter(|name| !names.contains(*name)).cloned().collect();
        if missing.len() <= FEW || missing.len() * 2 <= all {
            for name in &missing {
                self.remove(name, work);
            }
            return;
        }
        let until = now.after(BRAKE);
        let mut newly = 0;
        for name in &missing {
            let peer = self.peers.get_mut(name).expect("it is one of the peers");
            if !matches!(peer.held, Some(Held::Brake { .. })) {
                work.befores.entry(name.clone()).or_insert_with(|| Before::of(Some(peer)));
                peer.held = Some(Held::Brake { until });
                newly += 1;
            }
        }
        if 0 < newly {
            let there = all - missing.len();
            let text = format!(
                "held: the source lists {there} of {all} nodes; nothing is removed until {until}, \
                 or until `netwright routes accept`"
            );
            work.news.push(News::warning(None, text));
        }
    }

    fn remove_braked(&mut self, now: Time, goes: impl Fn(Time) -> bool) -> Outcome {
        let mut work = Work::default();
        let names: Vec<String> = self
            .braked()
            .filter(|(_, until)| goes(*until))
            .map(|(name, _)| name.to_owned())
            .collect();
        for name in &names {
            self.remove(name, &mut work);
        }
        self.settle(work, now)
    }

    fn remove(&mut self, name: &str, work: &mut Work) {
        work.touch(&self.peers, name);
        if let Some(peer) = self.peers.remove(name) {
            work.freed |= peer.used.is_some();
            if let Some(used) = &peer.used {
                self.claims.release(used);
            }
            self.contested.remove(name);
        }
    }

    /// Judges the peers that an event has touched, and those that this may change, and says what
    /// became of them.
    fn settle(&mut self, mut work: Work, now: Time) -> Outcome {
        let touched: Vec<String> = work.befores.keys().cloned().collect();
        self.judge(touched, &mut work);
        for (name, before) in work.befores {
            let after = Before::of(self.peers.get(&name));
            if before == after {
                continue;
            }
            if before.used != after.used {
                work.affected.insert(name.clone());
            }
            if let Some(peer) = self.peers.get_mut(&name) {
                peer.since = now;
            }
            tell(&name, &before, &after, self.peers.contains_key(&name), &mut work.news);
        }
        let is_of_node = |news: &News| !news.warning && news.node.is_some();
        let count = work.news.iter().filter(|news| is_of_node(news)).count();
        if MANY < count {
            work.news.retain(|news| !is_of_node(news));
            let text = format!("{count} nodes are new, changed or gone");
            work.news.push(News { warning: false, node: None, text });
        }
        Outcome { affected: work.affected, news: work.news }
    }

    /// Judges peers, the older before the younger. What it finds for one changes it for younger
    /// ones only, so it ends.
    fn judge(&mut self, touched: Vec<String>, work: &mut Work) {
        let mut queue: BTreeSet<Age> = BTreeSet::new();
        let mut freed = work.freed;
        for name in touched {
            let Some(age) = self.age(&name) else { continue };
            let peer = self.peers.get_mut(&name).expect("it has an age");
            if let Some(used) = peer.used.take() {
                self.claims.release(&used);
                freed = true;
            }
            queue.insert(age);
        }
        if freed {
            queue.extend(self.contested.iter().filter_map(|name| self.age(name)));
        }
        let mut earlier_prefixes: BTreeSet<Age> = BTreeSet::new();
        while let Some(age) = queue.pop_first() {
            let name = age.2.clone();
            work.touch(&self.peers, &name);
            let Some(record) = self.peers.get(&name).and_then(|peer| peer.record.clone()) else {
                continue;
            };
            if let Some(used) = self.peers.get_mut(&name).and_then(|peer| peer.used.take()) {
                self.claims.release(&used);
            }
            self.contested.remove(&name);
            let verdict =
                self.against_own(&record).and_then(|()| self.against_peers(&record, &age));
            let evicted = match verdict {
                Ok(evicted) => evicted,
                Err(refused) => {
                    let peer = self.peers.get_mut(&name).expect("it has a record");
                    peer.refused = Some(refused);
                    continue;
                }
            };
            for taken in evicted {
                if let Taken::Prefix { theirs, .. } = &taken
                    && theirs.kept
                {
                    self.claims.drop_prefix(theirs.prefix);
                    earlier_prefixes.extend(self.age(&theirs.whose));
                    continue;
                }
                let whose = taken.whose().clone();
                work.touch(&self.peers, &whose);
                let peer = self.peers.get_mut(&*whose).expect("who claims is a peer");
                if let Some(used) = peer.used.take() {
                    self.claims.release(&used);
                }
                let younger = self.age(&whose).expect("who claims is a peer");
                // What it gives up besides may be what others wait for.
                let waiting = self.contested.iter().filter_map(|name| self.age(name));
                queue.extend(waiting.filter(|waiting| younger < *waiting));
                queue.insert(younger);
            }
            self.claims.claim(&record);
            earlier_prefixes.insert(age);
            let peer = self.peers.get_mut(&name).expect("it has a record");
            (peer.used, peer.refused) = (Some(record), None);
        }
        if freed {
            earlier_prefixes.extend(self.contested.iter().filter_map(|name| self.age(name)));
        }
        while let Some(age) = earlier_prefixes.pop_first() {
            earlier_prefixes.extend(self.judge_kept(&age, work));
        }
    }

    /// Gives a used peer those of its earlier prefixes that nobody has, but for younger peers as an
    /// earlier prefix too. Returns these.
    fn judge_kept(&mut self, age: &Age, work: &mut Work) -> Vec<Age> {
        let name = &age.2;
        work.touch(&self.peers, name);
        let Some(peer) = self.peers.get(name) else { return Vec::new() };
        let (Some(record), Some(used)) = (peer.record.clone(), peer.used.clone()) else {
            return Vec::new();
        };
        let (mut kept, mut evicted) = (Vec::new(), Vec::new());
        for prefix in record.kept.iter().copied() {
            let theirs: Vec<_> = self.claims.overlapping(prefix).cloned().collect();
            let has_it = |claim: &ClaimedPrefix| {
                claim.kept && claim.prefix == prefix && *claim.whose == **name
            };
            let yields = |claim: &ClaimedPrefix| {
                claim.kept && self.age(&claim.whose).is_some_and(|theirs| *age < theirs)
            };
            if theirs.iter().any(has_it) {
                kept.push(prefix);
            } else if self.may_be_kept(prefix) && theirs.iter().all(yields) {
                for claim in theirs {
                    self.claims.drop_prefix(claim.prefix);
                    evicted.extend(self.age(&claim.whose));
                }
                self.claims.claim_kept(name, prefix);
                kept.push(prefix);
            }
        }
        if kept.len() < record.kept.len() {
            self.contested.insert(name.clone());
        } else {
            self.contested.remove(name);
        }
        if used.kept != kept
            && let Some(peer) = self.peers.get_mut(name)
        {
            peer.used = Some(Arc::new(Node { kept, ..(*record).clone() }));
        }
        evicted
    }

    /// Reports whether an earlier prefix is the cluster's, and not this node's.
    fn may_be_kept(&self, prefix: IpNet) -> bool {
        let own = &self.own.node;
        self.settings.cluster_ranges.iter().any(|range| range.contains(&prefix))
            && !own.prefixes.iter().chain(&own.kept).any(|own| overlap(*own, prefix))
    }

    fn age(&self, name: &str) -> Option<Age> {
        let peer = self.peers.get(name)?;
        let only_kept = matches!(peer.held, Some(Held::Brake { .. } | Held::Restored));
        let created = peer.record.as_ref().and_then(|record| record.created);
        Some((only_kept, created.unwrap_or(peer.first_seen), name.to_owned()))
    }

    /// Finds what in a record cannot be true because of what this node is, or is told.
    fn against_own(&self, node: &Node) -> Result<(), Refused> {
        let (settings, own) = (&self.settings, &self.own.node);
        let keys = settings.keys(node.dialect);
        let refused = |key: String, cause| Err(Refused::new(&node.name, key, cause));
        for prefix in node.prefixes.iter().copied() {
            let family = Family::of_prefix(prefix);
            if !settings.cluster_ranges.iter().any(|range| range.contains(&prefix)) {
                let ranges = settings.ranges_of(family);
                return refused(keys.prefixes(), Cause::OutsideRanges { prefix, family, ranges });
            }
            let services = settings.service_ranges.iter().copied();
            if let Some(range) = services.into_iter().find(|range| overlap(*range, prefix)) {
                return refused(keys.prefixes(), Cause::OverlapsServices { prefix, range });
            }
            let mut owns = own.prefixes.iter().chain(&own.kept).copied();
            if let Some(own) = owns.find(|own| overlap(*own, prefix)) {
                return refused(keys.prefixes(), Cause::OverlapsOwn { prefix, own });
            }
        }
        for address in node.underlay.iter() {
            let key = || keys.underlay(Family::of(address));
            if own.underlay.iter().any(|own| own == address) {
                return refused(key(), Cause::OwnAddress { address });
            }
            let ranges =
                if settings.allow_overlap { &node.prefixes } else { &settings.cluster_ranges };
            if let Some(range) = ranges.iter().copied().find(|range| range.contains(&address)) {
                return refused(key(), Cause::InsideRange { address, range });
            }
        }
        let (Some(theirs), Some(ours)) = (node.offers.vxlan, own.offers.vxlan) else {
            return Ok(());
        };
        for family in Family::ALL {
            if let Some(mac) = theirs.mac(family)
                && ours.macs().any(|own| own == mac)
            {
                return refused(keys.mac(family), Cause::OwnMac { mac });
            }
        }
        // Where it can be reached in another way, the tunnel's numbers do not matter.
        if node.offers.direct || node.offers.native {
            return Ok(());
        }
        if theirs.vni != ours.vni {
            return refused(keys.vni(), Cause::OtherVni { vni: theirs.vni, own: ours.vni });
        }
        if theirs.port != ours.port {
            return refused(keys.port(), Cause::OtherPort { port: theirs.port, own: ours.port });
        }
        Ok(())
    }

    /// Finds what in a record belongs to an older peer; returns what belongs to younger ones.
    fn against_peers(&mut self, node: &Node, age: &Age) -> Result<Vec<Taken>, Refused> {
        let taken = self.claims.taken(node);
        let of_older = taken.iter().find(|taken| {
            let kept = matches!(taken, Taken::Prefix { theirs, .. } if theirs.kept);
            !kept && self.age(taken.whose()).is_some_and(|theirs| theirs < *age)
        });
        let Some(of_older) = of_older else { return Ok(taken) };
        let keys = self.settings.keys(node.dialect);
        let peer = of_older.whose().to_string();
        let since = self.peers.get(&peer).map_or(age.1, |peer| peer.first_seen);
        let (key, cause) = match of_older {
            Taken::Prefix { prefix, theirs } => {
                let (prefix, theirs) = (*prefix, theirs.prefix);
                (keys.prefixes(), Cause::OverlapsPeer { prefix, theirs, peer, since })
            }
            Taken::Address { address, .. } => {
                let address = *address;
                let key = keys.underlay(Family::of(address));
                (key, Cause::AddressOfPeer { address, peer, since })
            }
            Taken::Mac { mac, .. } => {
                let vxlan = node.offers.vxlan;
                let is_v6 = vxlan.is_some_and(|vxlan| vxlan.mac6 == Some(*mac));
                let key = keys.mac(if is_v6 { Family::V6 } else { Family::V4 });
                (key, Cause::MacOfPeer { mac: *mac, peer, since })
            }
        };
        self.contested.insert(node.name.clone());
        Err(Refused::new(&node.name, key, cause))
    }
}

/// What an event has touched so far.
#[derive(Default)]
struct Work {
    befores: BTreeMap<String, Before>,
    affected: BTreeSet<String>,
    news: Vec<News>,
    /// A peer that had claims is gone.
    freed: bool,
}

impl Work {
    /// Remembers what a peer was, the first time.
    fn touch(&mut self, peers: &BTreeMap<String, Peer>, name: &str) {
        if !self.befores.contains_key(name) {
            self.befores.insert(name.to_owned(), Before::of(peers.get(name)));
        }
    }
}

/// Says what a peer has now that it did not have before.
fn changed(was: &Node, is: &Node) -> String {
    let list = |all: Vec<String>| all.join(", ");
    let mut parts = Vec::new();
    if was.uid != is.uid {
        parts.push("it was made anew".to_owned());
    }
    if (&was.prefixes, &was.kept) != (&is.prefixes, &is.kept) {
        let prefixes = is.prefixes.iter().chain(&is.kept).map(ToString::to_string);
        parts.push(format!("prefixes {}", list(prefixes.collect())));
    }
    if was.underlay != is.underlay {
        let addresses = is.underlay.iter().map(|address| address.to_string());
        parts.push(format!("underlay addresses {}", list(addresses.collect())));
    }
    if was.offers != is.offers {
        parts.push("other offers".to_owned());
    }
    if was.mtu != is.mtu {
        parts.push(is.mtu.map_or("no MTU".to_owned(), |mtu| format!("MTU {mtu}")));
    }
    if parts.is_empty() { "changed".to_owned() } else { format!("changed: {}", parts.join("; ")) }
}

/// Says what became of a peer.
fn tell(name: &str, before: &Before, after: &Before, is_there: bool, news: &mut Vec<News>) {
    let list = |node: &Node| {
        let prefixes = node.prefixes.iter().chain(&node.kept).map(ToString::to_string);
        prefixes.collect::<Vec<_>>().join(", ")
    };
    if !is_there {
        if before.used.is_some() || before.refused.is_some() || before.unreadable.is_some() {
            news.push(News::of(name, format!("node {name}: gone")));
        }
        return;
    }
    match (&before.used, &after.used) {
        (None, Some(used)) => {
            news.push(News::of(name, format!("node {name}: {}", list(used))));
        }
        (Some(was), Some(used)) if was != used => {
            news.push(News::of(name, format!("node {name}: {}", changed(was, used))));
        }
        _ => {}
    }
    if let (true, Some(refused)) = (before.refused != after.refused, &after.refused) {
        news.push(News::warning(Some(name), refused.to_string()));
    }
    if before.unreadable != after.unreadable {
        match &after.unreadable {
            Some(Unusable::Refused(refused)) => {
                let kept =
                    if after.used.is_some() { "; its last readable record counts" } else { "" };
                news.push(News::warning(Some(name), format!("{refused}{kept}")));
            }
            Some(incomplete) => news.push(News::of(name, format!("node {name}: {incomplete}"))),
            None => {}
        }
    }
    if before.faults != after.faults {
        let faults = after.faults.iter().filter(|fault| !before.faults.contains(fault));
        news.extend(faults.map(|fault| News::warning(Some(name), fault.to_string())));
    }
}
