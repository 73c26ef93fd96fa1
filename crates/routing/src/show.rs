//! What people see: the rows of `netwright routes`, and why packets go as they do.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::blocks::Block;
use crate::cluster::{Cluster, Peer, RecordFault};
use crate::mtu::IPV6_LEAST;
use crate::node::Node;
use crate::object::{Key, Value};
use crate::path::{Choice, Path, RejectedPath};
use crate::routing::{Answer, FamilyPlan, Phase, Probe, Routing};
use crate::time::Time;
use net::IpFamily;

/// The version of the format.
pub const VERSION: u32 = 1;

/// All that `netwright routes` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    /// [`VERSION`] when it was written.
    pub version: u32,
    /// This node's name.
    pub node: String,
    /// This node's prefixes.
    pub prefixes: Vec<IpNet>,
    /// Prefixes that it had before, and in which pods still live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<IpNet>,
    /// The blocks of spaces that it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Block>,
    /// How far it is.
    pub phase: Phase,
    /// The MTU of pods, in bytes.
    pub pod_mtu: Option<u32>,
    /// What an administrator should look at.
    pub warnings: Vec<String>,
    /// On standby: the changes that this node would make.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub standby: Vec<String>,
    /// A row for each peer and family.
    pub rows: Vec<Row>,
}

/// A peer, for one family of its pods' addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The peer's name.
    pub peer: String,
    /// The family; `None` if nothing of the peer is used.
    #[serde(default, with = "crate::family::option")]
    pub family: Option<IpFamily>,
    /// Its prefixes of the family.
    pub prefixes: Vec<IpNet>,
    /// The blocks of spaces that it holds, of the family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Block>,
    /// The path.
    pub path: Path,
    /// Why it is this one.
    pub because: String,
    /// The state.
    pub state: PeerState,
    /// Since when the peer is as it is.
    pub since: Time,
    /// What fits, in bytes.
    pub mtu: Option<u32>,
    /// The last probe.
    pub probe: Option<Probe>,
    /// When it was.
    pub probed: Option<Time>,
    /// What is wrong with it, and does not keep it from being used.
    pub faults: Vec<String>,
}

/// The state of a peer. One that is gone has no row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PeerState {
    /// Its record is not complete yet: what it lacks.
    Incomplete(String),
    /// Its record cannot be true: the key, and the cause.
    Refused(String),
    /// It is to be programmed.
    Wanted,
    /// The kernel has it.
    Programmed,
    /// It has answered by its path.
    Probed,
    /// The kernel refuses it.
    Failing {
        /// The kernel's words.
        error: String,
        /// Since when.
        since: Time,
    },
    /// It is kept although the source does not show it so: why.
    Held(String),
    /// A route of another program to its prefix is in the way.
    Conflict(String),
}

impl PeerState {
    /// Returns its name, as the JSON has it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            PeerState::Incomplete(_) => "incomplete",
            PeerState::Refused(_) => "refused",
            PeerState::Wanted => "wanted",
            PeerState::Programmed => "programmed",
            PeerState::Probed => "probed",
            PeerState::Failing { .. } => "failing",
            PeerState::Held(_) => "held",
            PeerState::Conflict(_) => "conflict",
        }
    }
}

/// How packets to an address go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// [`VERSION`] when it was written.
    pub version: u32,
    /// The address.
    pub address: IpAddr,
    /// The peer whose pods have it, if a peer's do.
    pub peer: Option<String>,
    /// The prefix it is in.
    pub prefix: Option<IpNet>,
    /// The path.
    pub path: Option<Path>,
    /// Whose it is, and how packets get there, in sentences.
    pub sentences: Vec<String>,
    /// Why no other path.
    pub passed_over: Vec<RejectedPath>,
}

impl Routing {
    /// Returns what `netwright routes` shows.
    #[must_use]
    pub fn table(&self) -> Table {
        let own = &self.cluster.own().node;
        Table {
            version: VERSION,
            node: own.name.clone(),
            prefixes: own.prefixes.clone(),
            kept: own.kept.clone(),
            blocks: own.blocks.clone(),
            phase: self.phase(),
            pod_mtu: self.pod_mtu(),
            warnings: self.warnings(),
            standby: self.changes_on_standby().iter().map(ToString::to_string).collect(),
            rows: self.cluster.peers().flat_map(|(name, peer)| self.rows(name, peer)).collect(),
        }
    }

    /// Returns how packets to an address go.
    #[must_use]
    pub fn explain(&self, address: IpAddr) -> Explanation {
        let mut explained = Explanation {
            version: VERSION,
            address,
            peer: None,
            prefix: None,
            path: None,
            sentences: Vec::new(),
            passed_over: Vec::new(),
        };
        let own = &self.cluster.own().node;
        if let Some(prefix) = own.all_prefixes().find(|prefix| prefix.contains(&address)) {
            explained.prefix = Some(prefix);
            let sentence =
                format!("{address} is in {prefix}, a prefix of this node: its pod is here");
            explained.sentences.push(sentence);
        } else if let Some((prefix, name)) = self.cluster.of_address(address) {
            (explained.prefix, explained.peer) = (Some(prefix), Some(name.to_owned()));
            self.explain_peer(name, prefix, &mut explained);
        } else {
            self.explain_stranger(&mut explained);
        }
        explained
    }

    fn explain_peer(&self, name: &str, prefix: IpNet, explained: &mut Explanation) {
        let address = explained.address;
        let mut say = |sentence: String| explained.sentences.push(sentence);
        say(format!("{address} is in {prefix}, a prefix of node {name}"));
        let peer = self.cluster.peer(name);
        if let Some(why) = peer.and_then(held) {
            say(format!("node {name}: {why}"));
        }
        let family = IpFamily::of(address);
        let plan = self.plans.get(name).and_then(|plan| plan.families.get(family).as_ref());
        let (Some(plan), Some(node)) = (plan, peer.and_then(Peer::used)) else {
            let why = match self.phase() {
                Phase::Waiting(why) => why,
                _ => "the way to its underlay address is not known yet".to_owned(),
            };
            return say(format!("packets do not go there yet: {why}"));
        };
        let Choice { because, passed_over, .. } = self.choose(node, family, &plan.prefixes);
        (explained.path, explained.passed_over) = (Some(plan.path), passed_over);
        let mut say = |sentence: String| explained.sentences.push(sentence);
        say(match plan.path {
            Path::None => format!("packets do not go there: {because}"),
            path => format!("packets go by path {path}: {because}"),
        });
        if let Some(mtu) = plan.mtu {
            say(format!("{mtu} bytes fit"));
        }
        match self.state_of(name, node, family, plan) {
            PeerState::Failing { error, since } => {
                say(format!("the kernel does not take it since {since}: {error}"));
            }
            PeerState::Conflict(route) => say(format!(
                "another program's route is in the way, and packets follow it: {route}"
            )),
            PeerState::Wanted => say("the kernel does not have it yet".to_owned()),
            PeerState::Probed => say("it has answered by this path".to_owned()),
            _ => {}
        }
    }

    fn explain_stranger(&self, explained: &mut Explanation) {
        let address = explained.address;
        let mut ranges = self.settings.ranges();
        let Some(range) = ranges.find(|range| range.contains(&address)) else {
            let sentence = format!(
                "{address} is not a pod's: it is in none of the cluster's ranges, and packets \
                 follow the other routes of this node"
            );
            return explained.sentences.push(sentence);
        };
        explained.path = Some(Path::None);
        explained.sentences.push(format!(
            "{address} is in the cluster's range {range}, and in no prefix of a node that is \
             used: packets are answered with \"unreachable\""
        ));
        for (name, peer) in self.cluster.peers() {
            let (Some(refused), Some(record)) = (&peer.refused, peer.record()) else { continue };
            let mut prefixes = record.prefixes.iter();
            if let Some(prefix) = prefixes.find(|prefix| prefix.contains(&address)) {
                let why = format!("node {name} says that {prefix} is its own: {refused}");
                explained.sentences.push(why);
            }
        }
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(until) = self.cluster.braked().map(|(_, until)| until).max() {
            let count = self.cluster.braked().count();
            let all = self.cluster.peers().count();
            warnings.push(format!(
                "held: the source lists {} of {all} nodes; nothing is removed until {until}, or \
                 until `netwright routes accept`",
                all - count
            ));
        }
        if let Some(since) = self.cluster.silent_since() {
            let count = self.cluster.used().count();
            warnings.push(format!("the source is silent since {since}; peers kept: {count}"));
        }
        let has_v6 =
            |cluster: &Cluster| cluster.own().node.prefixes_of(IpFamily::V6).next().is_some();
        if let Some(mtu) = self.pod_mtu().filter(|mtu| *mtu < IPV6_LEAST)
            && has_v6(&self.cluster)
        {
            warnings.push(format!(
                "the MTU of pods is {mtu}, and IPv6 needs {IPV6_LEAST}: pods get no IPv6 addresses"
            ));
        }
        if self.cluster.own().node.offers.native {
            warnings.extend(self.uncovered_native());
        }
        let unremoved = self.unremoved();
        warnings.extend(unremoved.map(|what| format!("not done yet, and tried again: {what}")));
        warnings.extend(self.cluster.block_warnings());
        warnings.extend(self.notices.values().flatten().cloned());
        warnings
    }

    /// Says to which peers the network between the nodes does not know the way.
    fn uncovered_native(&self) -> Option<String> {
        let is_silent = |name: &str, family: IpFamily| {
            let probe = self.probes.get(&(name.to_owned(), family));
            probe.is_some_and(|(it, _)| it.path == Answer::No && it.underlay == Answer::Yes)
        };
        let peers = self.plans.iter().filter(|(name, plan)| {
            let mut plans = plan.families.iter();
            plans.any(|(family, plan)| {
                plan.as_ref().is_some_and(|plan| plan.path == Path::Native)
                    && is_silent(name, family)
            })
        });
        let silent: Vec<&str> = peers.map(|(name, _)| name.as_str()).collect();
        let first = silent.first()?;
        Some(format!(
            "paths are native, and pods of {} nodes do not answer, {first} first: does the network \
             have routes to their prefixes?",
            silent.len()
        ))
    }

    fn rows(&self, name: &str, peer: &Peer) -> Vec<Row> {
        let faults = peer.faults.iter().map(ToString::to_string);
        let blank = Row {
            peer: name.to_owned(),
            family: None,
            prefixes: Vec::new(),
            blocks: Vec::new(),
            path: Path::None,
            because: String::new(),
            state: PeerState::Wanted,
            since: peer.since,
            mtu: None,
            probe: None,
            probed: None,
            faults: faults.collect(),
        };
        let Some(node) = peer.used() else {
            let prefixes = peer.record().map(|record| record.prefixes.clone()).unwrap_or_default();
            let state = match peer.unusable() {
                Some(RecordFault::Incomplete(what)) => PeerState::Incomplete(what),
                Some(RecordFault::Refused(refused)) => {
                    PeerState::Refused(format!("{}: {}", refused.key, refused.cause))
                }
                None => PeerState::Wanted,
            };
            return vec![Row { prefixes, state, ..blank }];
        };
        let plan = self.plans.get(name);
        let row = |family: IpFamily| {
            node.prefixes_of(family).next()?;
            let is_of = |prefix: &IpNet| IpFamily::of_prefix(*prefix) == family;
            let prefixes = node.prefixes.iter().chain(&node.kept).copied().filter(is_of);
            let blocks = node.blocks.iter().filter(|block| is_of(&block.prefix)).cloned();
            let row = Row {
                family: Some(family),
                prefixes: prefixes.collect(),
                blocks: blocks.collect(),
                ..blank.clone()
            };
            let Some(plan) = plan.and_then(|plan| plan.families.get(family).as_ref()) else {
                let because = "the way to its underlay address is not known yet".to_owned();
                return Some(Row { because, ..row });
            };
            let probe = self.probes.get(&(name.to_owned(), family));
            Some(Row {
                path: plan.path,
                because: self.choose(node, family, &plan.prefixes).because,
                state: match held(peer) {
                    Some(why) => PeerState::Held(why),
                    None => self.state_of(name, node, family, plan),
                },
                mtu: plan.mtu,
                probe: probe.map(|(probe, _)| *probe),
                probed: probe.map(|(_, at)| *at),
                ..row
            })
        };
        IpFamily::ALL.into_iter().filter_map(row).collect()
    }

    fn state_of(&self, name: &str, node: &Node, family: IpFamily, plan: &FamilyPlan) -> PeerState {
        let keys = || self.wanted.keys_of(name).iter().filter(|key| is_of(key, family));
        if let Some(failure) = keys().find_map(|key| self.failures.get(key)) {
            let (error, since) = (failure.error.clone(), failure.since);
            return PeerState::Failing { error, since };
        }
        let conflict = node.prefixes_of(family).find_map(|prefix| {
            self.conflicts.get(&prefix).map(|route| format!("{prefix} {route}"))
        });
        if let Some(conflict) = conflict {
            return PeerState::Conflict(conflict);
        }
        let is_there =
            |key: &Key| self.wanted.get(key).is_none_or(|value: &Value| self.has(key, value));
        if !keys().all(is_there) {
            return PeerState::Wanted;
        }
        match self.probes.get(&(name.to_owned(), family)) {
            Some((probe, _)) if probe.path == Answer::Yes && plan.path != Path::None => {
                PeerState::Probed
            }
            _ => PeerState::Programmed,
        }
    }
}

/// Returns why a peer is kept, if its source does not show it as it is used.
fn held(peer: &Peer) -> Option<String> {
    let held = peer.held.as_ref()?;
    Some(match &peer.unreadable {
        Some(unreadable) => format!("{unreadable}; {held}"),
        None => held.to_string(),
    })
}

/// Reports whether an object serves a family of pods' addresses; tunnels' entries serve both.
fn is_of(key: &Key, family: IpFamily) -> bool {
    match key {
        Key::Route { prefix } => IpFamily::of_prefix(*prefix) == family,
        Key::Neighbour { address, .. } => IpFamily::of(*address) == family,
        _ => true,
    }
}
