//! The peers: what a source says of them, and what is taken of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::refused::Refused;
use crate::settings::{Own, Settings};
use crate::time::Time;

/// How long peers are kept that a list would remove together.
pub const BRAKE: Duration = Duration::from_secs(600);

/// So many removals by one list never need the brake.
pub const FEW: usize = 3;

/// One node as a source shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// What it says of itself, or why that is not usable.
    pub node: Result<Node, Unusable>,
}

/// Why a record cannot be used, or not yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Unusable {
    /// Something is not there yet, as with a node that is just starting.
    Incomplete(String),
    /// Something cannot be true.
    Refused(Refused),
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct News {
    /// Somebody should act.
    pub warning: bool,
    /// The peer it is about, if it is about one.
    pub node: Option<String>,
    /// The sentence.
    pub text: String,
}

/// A peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// What is used of it: the last record that could be used. `None` if there was none.
    pub node: Option<Node>,
    /// What stands against its latest record.
    pub unusable: Option<Unusable>,
    /// Why it is kept although the source does not show it, or not as it was.
    pub held: Option<Held>,
    /// Since when it is known.
    pub first_seen: Time,
    /// Since when it is as it is.
    pub since: Time,
}

/// Why a peer is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Held {
    /// A list lacked it, with more than half of all peers: it is kept until then.
    Brake {
        /// When it goes, unless it shows up before.
        until: Time,
    },
    /// Its record became unusable, and the last one that was usable counts.
    LastKnown,
    /// It comes from the disk, and no source has said anything yet.
    Restored,
}

/// All peers of this node.
#[derive(Debug)]
pub struct Cluster {
    peers: BTreeMap<String, Peer>,
}

impl Cluster {
    /// Creates one without peers.
    #[must_use]
    pub fn new(settings: &Settings, own: Own) -> Self {
        todo!()
    }

    /// Takes peers from the disk, before any source was asked.
    pub fn restore(&mut self, peers: Vec<(Node, Time)>, now: Time) -> Outcome {
        todo!()
    }

    /// Takes what a source says.
    pub fn apply(&mut self, event: Event, now: Time) -> Outcome {
        todo!()
    }

    /// Does what is due. See [`Cluster::due`].
    pub fn tick(&mut self, now: Time) -> Outcome {
        todo!()
    }

    /// Returns when [`Cluster::tick`] has something to do.
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        todo!()
    }

    /// Removes at once what the brake holds: a person has confirmed the list.
    pub fn accept(&mut self, now: Time) -> Outcome {
        todo!()
    }

    /// Takes what this node is now, and judges every peer anew where that matters.
    pub fn set_own(&mut self, own: Own, now: Time) -> Outcome {
        todo!()
    }

    /// Returns the peers by name.
    pub fn peers(&self) -> impl Iterator<Item = (&str, &Peer)> {
        self.peers.iter().map(|(name, peer)| (name.as_str(), peer))
    }

    /// Returns a peer.
    #[must_use]
    pub fn peer(&self, name: &str) -> Option<&Peer> {
        self.peers.get(name)
    }
}
