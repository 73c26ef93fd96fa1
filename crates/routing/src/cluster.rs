//! The peers: what a source says of them, and what is taken of it.
//!
//! A peer is used if its record can be read, and if nothing in it belongs to this node or to another
//! peer. Of several that want the same prefix, the oldest has it, whatever was said first. What a node
//! says of itself, its addresses and hardware addresses, stays with the peer that has worked with it.
//!
//! A peer goes when the source deletes it, or when a complete list lacks it. Nothing else removes
//! one: not silence, not a record that became unreadable. A list that would remove more than half
//! of the peers is held for a while ([`BRAKE`]): an empty store must not cut a cluster.
//!
//! Blocks of spaces come from records of their own ([`crate::blocks`]); a peer that is used has those
//! that it holds.
//!
//! Peers are judged from the oldest to the youngest, as the source says, and one that the source
//! shows comes before one that is only remembered. So the result does not depend on the order of
//! events. If a record cannot be read, the last one that could be read stays valid. If it can be
//! read but cannot be true, it is refused and nothing of the peer is used; in flannel's annotations
//! each family is judged separately. Until a complete list has come and all its peers are planned,
//! nothing is removed from the kernel: an object may belong to a peer that is not known yet, or to
//! flanneld.

mod blocks;
mod judge;
mod tell;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::blocks::Blocks;
use crate::claims::Claims;
use crate::node::Node;
use crate::reader::overlap;
use crate::refused::Refusal;
use crate::settings::{OwnNode, Settings};
use crate::time::Time;
use tell::{FormerPeer, NewsDraft};

/// How long peers are kept that a list would remove together.
pub const BRAKE: Duration = Duration::from_secs(600);

/// How many removals by one list never need the brake.
pub const FEW: usize = 3;

/// If one event changes more peers than this, the log has one line for all of them.
const MANY: usize = 20;

/// One node as a source shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its name.
    pub name: String,
    /// What it says of itself, or why that is not usable.
    pub node: Result<Node, RecordFault>,
    /// What is wrong with one family of it, where the other counts.
    pub faults: Vec<Refusal>,
}

impl NodeRecord {
    /// Creates one of a record without fault.
    #[must_use]
    pub fn whole(node: Node) -> Self {
        NodeRecord { name: node.name.clone(), node: Ok(node), faults: Vec::new() }
    }
}

/// Why a record cannot be used, or not yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordFault {
    /// Something is not there yet, as with a node that is just starting.
    Incomplete(String),
    /// Something cannot be true.
    Refused(Refusal),
}

impl std::fmt::Display for RecordFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RecordFault::Incomplete(what) => write!(f, "incomplete: {what}"),
            RecordFault::Refused(refused) => {
                write!(f, "refused: {}: {}", refused.key, refused.cause)
            }
        }
    }
}

/// What a source says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is taken at once")]
pub enum Event {
    /// These are all nodes there are. This node may be among them.
    Listed(Vec<NodeRecord>),
    /// A node is new, or has changed.
    Changed(NodeRecord),
    /// A node was deleted.
    Deleted(String),
    /// The source does not answer.
    Silent,
    /// It answers again, and nothing has changed.
    Answers,
}

/// What an event leads to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The peers whose wanted objects may differ now, and those that are gone.
    pub affected: BTreeSet<String>,
    /// This node has other blocks now.
    pub is_own_changed: bool,
    /// What happened, for the log: each change once.
    pub news: Vec<News>,
}

/// One thing that happened, as a sentence for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// An administrator should act.
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
    pub unreadable: Option<Box<RecordFault>>,
    /// What stands against the last record that could be read.
    pub refused: Option<Box<Refusal>>,
    /// What is wrong with one family of it.
    pub faults: Vec<Refusal>,
    /// Why it is kept although the source does not show it, or not as it was.
    pub held: Option<HoldReason>,
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

    /// Reports whether its source shows it as it did last, and nothing but that counts.
    fn is_as(&self, node: &Result<Node, RecordFault>, faults: &[Refusal]) -> bool {
        let is_plain = self.unreadable.is_none() && self.held.is_none();
        is_plain && self.faults == faults && self.record.as_deref() == node.as_ref().ok()
    }

    /// Returns what is used of it: the last record that could be read, if nothing stands against
    /// it, without earlier prefixes that another node has, and with the blocks that it holds.
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
    pub fn unusable(&self) -> Option<RecordFault> {
        match (&self.refused, &self.unreadable) {
            (Some(refused), _) => Some(RecordFault::Refused((**refused).clone())),
            (None, unreadable) => unreadable.as_deref().cloned(),
        }
    }
}

/// Why a peer is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldReason {
    /// A list lacked it and more than half of all peers: it is kept for a while.
    Brake {
        /// When it goes, unless it shows up before.
        until: Time,
    },
    /// Its record became unreadable, and the last one that could be read counts.
    LastKnown,
    /// It comes from the disk, and no source has answered yet.
    Restored,
}

impl std::fmt::Display for HoldReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HoldReason::Brake { until } => write!(
                f,
                "the source lacks it, with more than half of all nodes: kept until {until}, or \
                 until `netwright routes accept`"
            ),
            HoldReason::LastKnown => f.write_str("its last readable record counts"),
            HoldReason::Restored => {
                f.write_str("it comes from the disk: the source has not answered yet")
            }
        }
    }
}

/// Which peer is older: what a source shows goes before what is only kept, then the older before
/// the younger, then the name decides.
type Age = (bool, Time, String);

/// All peers of this node.
#[derive(Debug)]
pub struct Cluster {
    settings: Arc<Settings>,
    own: Arc<OwnNode>,
    peers: BTreeMap<String, Peer>,
    claims: Claims,
    /// Peers that are refused because of another peer, or lack an earlier prefix because of one.
    contested: BTreeSet<String>,
    blocks: Blocks,
    listed: bool,
    silent_since: Option<Time>,
}

impl Cluster {
    /// Creates one without peers.
    #[must_use]
    pub fn new(settings: Arc<Settings>, own: OwnNode) -> Self {
        Cluster {
            settings,
            own: Arc::new(own),
            peers: BTreeMap::new(),
            claims: Claims::default(),
            contested: BTreeSet::new(),
            blocks: Blocks::default(),
            listed: false,
            silent_since: None,
        }
    }

    /// Takes peers from the disk, before any source was asked.
    pub fn restore(&mut self, peers: Vec<(Node, Time)>, now: Time) -> Outcome {
        let mut work = Work::default();
        for (mut node, first_seen) in peers {
            if node.name == self.own.node.name || self.peers.contains_key(&node.name) {
                continue;
            }
            work.touch(&self.peers, &node.name);
            let name = node.name.clone();
            self.blocks.restore(&name, std::mem::take(&mut node.blocks), &self.settings);
            let held = Some(HoldReason::Restored);
            let record = Some(Arc::new(node));
            self.peers.insert(name, Peer { record, held, first_seen, ..Peer::new(now) });
        }
        work.holders = self.blocks.judge_restored(&self.settings);
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
            Event::Silent | Event::Answers => {}
            Event::Changed(seen) => self.take(seen, now, &mut work),
            Event::Deleted(name) => self.remove(&name, &mut work),
            Event::Listed(seen) => {
                let names: HashSet<&str> = seen.iter().map(|seen| seen.name.as_str()).collect();
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
        self.braked().map(|(_, until)| until).chain(self.blocks.due()).min()
    }

    /// Removes at once what the brake holds: an administrator has confirmed the list.
    pub fn accept(&mut self, now: Time) -> Outcome {
        self.remove_braked(now, |_| true)
    }

    /// Takes what this node is now, without its blocks, and judges the peers anew for which that
    /// matters.
    pub fn set_own(&mut self, mut own: OwnNode, now: Time) -> Outcome {
        let mut work = Work::default();
        own.node.blocks.clone_from(&self.own.node.blocks);
        if own != *self.own {
            self.own = Arc::new(own);
            // Holders are found by this node's name and addresses, too.
            work.holders = self.blocks.holders().map(str::to_owned).collect();
            let own_name = self.own.node.name.clone();
            if self.peers.contains_key(&own_name) {
                self.remove(&own_name, &mut work);
            }
            for (name, peer) in &self.peers {
                if !self.is_used_still(peer) {
                    work.touch(&self.peers, name);
                }
                work.affected.insert(name.clone());
            }
        }
        self.settle(work, now)
    }

    /// Returns what this node is.
    #[must_use]
    pub fn own(&self) -> &OwnNode {
        &self.own
    }

    pub(crate) fn own_shared(&self) -> Arc<OwnNode> {
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

    /// Returns the prefix of a used peer, or the block of a peer, that an address is in, and the
    /// peer's name.
    #[must_use]
    pub fn of_address(&self, address: IpAddr) -> Option<(IpNet, &str)> {
        let claim = self.claims.of_address(address).map(|claim| (claim.prefix, &*claim.whose));
        claim.or_else(|| self.blocks.of_address(address))
    }

    /// Returns the peer to which a prefix, or a part of it, was given, whether it is used or not.
    /// Earlier prefixes do not count.
    #[must_use]
    pub fn owner_of(&self, prefix: IpNet) -> Option<&str> {
        let has = |record: &Arc<Node>| record.prefixes.iter().any(|own| overlap(*own, prefix));
        let mut peers = self.peers.iter();
        let found = peers.find(|(_, peer)| peer.record.as_ref().is_some_and(has));
        found.map(|(name, _)| name.as_str())
    }

    /// Returns the used peer that has an underlay address.
    #[must_use]
    pub fn of_underlay(&self, address: IpAddr) -> Option<&str> {
        self.claims.of_underlay(address)
    }

    /// Reports whether a used peer has an underlay address in a prefix.
    #[must_use]
    pub fn has_underlay_in(&self, prefix: IpNet) -> bool {
        self.claims.has_underlay_in(prefix)
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
            Some(HoldReason::Brake { until }) => Some((name, until)),
            _ => None,
        })
    }

    /// Takes what a source shows of a node.
    fn take(&mut self, seen: NodeRecord, now: Time, work: &mut Work) {
        let NodeRecord { name, node, faults } = seen;
        if name == self.own.node.name {
            return;
        }
        let known = self.peers.get(&name);
        if known.is_some_and(|peer| peer.is_as(&node, &faults)) {
            // Nearly all peers of a list are unchanged. What other peers gave up meanwhile, this
            // one gets when their change is judged.
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
                peer.unreadable = Some(Box::new(unusable));
                peer.held = peer.record.is_some().then_some(HoldReason::LastKnown);
            }
        }
    }

    /// Removes, or holds, what a complete list lacks.
    fn lack(&mut self, names: &HashSet<&str>, now: Time, work: &mut Work) {
        let all = self.peers.len();
        let missing: Vec<String> =
            self.peers.keys().filter(|name| !names.contains(name.as_str())).cloned().collect();
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
            if !matches!(peer.held, Some(HoldReason::Brake { .. })) {
                work.befores.entry(name.clone()).or_insert_with(|| FormerPeer::of(Some(peer)));
                peer.held = Some(HoldReason::Brake { until });
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
        work.holders = self.blocks.remove_braked(goes, &self.settings, &mut work.news);
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
        self.give_blocks(&mut work);
        if self.listed {
            work.news.extend(self.blocks.tell_strangers());
        }
        let mut telling = NewsDraft::new(std::mem::take(&mut work.news));
        for (name, before) in work.befores {
            let peer = self.peers.get_mut(&name);
            let after = FormerPeer::of(peer.as_deref());
            if before == after {
                continue;
            }
            telling.tell(&name, &before, &after, peer.is_some());
            if let Some(peer) = peer {
                peer.since = now;
            }
            if before.used != after.used {
                work.affected.insert(name);
            }
        }
        let Work { affected, is_own_changed, .. } = work;
        Outcome { affected, is_own_changed, news: telling.end() }
    }
}

/// What an event has touched so far.
#[derive(Default)]
struct Work {
    befores: BTreeMap<String, FormerPeer>,
    affected: BTreeSet<String>,
    news: Vec<News>,
    /// A peer that had claims is gone.
    freed: bool,
    /// The holders of blocks that have other blocks or addresses now.
    holders: BTreeSet<String>,
    is_own_changed: bool,
}

impl Work {
    /// Remembers what a peer was, the first time.
    fn touch(&mut self, peers: &BTreeMap<String, Peer>, name: &str) {
        if !self.befores.contains_key(name) {
            self.befores.insert(name.to_owned(), FormerPeer::of(peers.get(name)));
        }
    }
}
