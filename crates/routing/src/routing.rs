//! The whole of it: the value that the daemon feeds with events and asks for changes.

use std::net::IpAddr;

use crate::cluster::{Cluster, Event, News};
use crate::condition::Condition;
use crate::path::Way;
use crate::plan::{Change, ForeignRoute, Observed};
use crate::settings::{Own, Settings};
use crate::show::{Explained, Table};
use crate::time::Time;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Todo {
    /// Changes of the kernel, in their order.
    pub changes: Vec<Change>,
    /// Underlay addresses whose [`Way`] is not known: to be looked up and told by
    /// [`Routing::way`].
    pub look_up: Vec<IpAddr>,
    /// Peers whose UDP flows are to be dropped from connection tracking, by the prefixes they had:
    /// their path or prefix is another now.
    pub flush_flows: Vec<ipnet::IpNet>,
    /// What happened, for the log.
    pub news: Vec<News>,
    /// The last known peers are others now: to be written within some seconds.
    pub document_changed: bool,
}

/// How far this node is (`reach.md` §11.4).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Peers of the disk are programmed, and no source has answered yet.
    Restoring,
    /// This node has no prefix, or cannot be one of the cluster yet: the reason.
    Waiting(String),
    /// A source has answered; not everything is programmed.
    Syncing,
    /// Everything that can be is programmed.
    Ready,
    /// The source is silent since then. Everything stays.
    Degraded(Time),
}

/// What a probe of a peer has shown (one family).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Its tunnel address, or an address of its pods' side, through the path.
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
    /// Somebody in between said that he does not let it through.
    Filtered,
}

/// The state of routing on this node.
#[derive(Debug)]
pub struct Routing {
    settings: Settings,
    cluster: Cluster,
    observed: Observed,
}

impl Routing {
    /// Creates the state of a node before anything is known.
    #[must_use]
    pub fn new(settings: Settings, now: Time) -> Self {
        todo!()
    }

    /// Takes the peers that the disk has; what is wrong with the document is in the news.
    pub fn restore(&mut self, document: &[u8], now: Time) -> Todo {
        todo!()
    }

    /// Returns the last known peers, to be written to the disk.
    #[must_use]
    pub fn document(&self) -> String {
        todo!()
    }

    /// Takes what this node is: its prefixes, its underlay addresses, its tunnels.
    pub fn own(&mut self, own: Own, now: Time) -> Todo {
        todo!()
    }

    /// Takes why this node is nothing yet: it has no prefix, or no underlay address.
    pub fn waiting(&mut self, why: &str) {
        todo!()
    }

    /// Takes what a source says.
    pub fn event(&mut self, event: Event, now: Time) -> Todo {
        todo!()
    }

    /// Takes the way to an underlay address, when it was looked up, or has changed.
    pub fn way(&mut self, address: IpAddr, way: Way, now: Time) -> Todo {
        todo!()
    }

    /// Takes all that the kernel has: at the start, once a minute, and whenever in doubt.
    pub fn look(&mut self, observed: Observed, now: Time) -> Todo {
        todo!()
    }

    /// Takes what an event of the kernel says about objects of ours: each with its value, or
    /// `None` if it is gone.
    pub fn noticed(
        &mut self,
        objects: Vec<(crate::object::Key, Option<crate::object::Value>)>,
        now: Time,
    ) -> Todo {
        todo!()
    }

    /// Takes routes of others to a prefix: all that there are now.
    pub fn foreign(&mut self, prefix: ipnet::IpNet, routes: Vec<ForeignRoute>, now: Time) -> Todo {
        todo!()
    }

    /// Takes that a link went down, or lost its carrier. The kernel says nothing of what goes with
    /// it.
    pub fn link_down(&mut self, link: &str, now: Time) -> Todo {
        todo!()
    }

    /// Takes that a link is gone.
    pub fn link_gone(&mut self, link: &str, now: Time) -> Todo {
        todo!()
    }

    /// Takes that a change was made.
    pub fn done(&mut self, change: &Change, now: Time) {
        todo!()
    }

    /// Takes that a change failed, with the kernel's words.
    pub fn failed(&mut self, change: &Change, error: &str, now: Time) {
        todo!()
    }

    /// Takes what a probe of a peer has shown.
    pub fn probed(&mut self, peer: &str, family: crate::family::Family, probe: Probe, now: Time) {
        todo!()
    }

    /// Does what is due: peers that the brake has held long enough, changes that failed before.
    pub fn tick(&mut self, now: Time) -> Todo {
        todo!()
    }

    /// Returns when [`Routing::tick`] has something to do; `None`: nothing, however long it takes.
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        todo!()
    }

    /// Removes at once what the brake holds.
    pub fn accept(&mut self, now: Time) -> Todo {
        todo!()
    }

    /// Returns what it takes to leave this node as if routing had never been there.
    #[must_use]
    pub fn leave(&self) -> Vec<Change> {
        todo!()
    }

    /// Returns how far this node is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        todo!()
    }

    /// Returns the condition `NetworkUnavailable`; `None`: it stays as it is.
    #[must_use]
    pub fn condition(&self, now: Time) -> Option<Condition> {
        todo!()
    }

    /// Returns the MTU of pods, in bytes; `None` while nothing is known of the underlay.
    #[must_use]
    pub fn pod_mtu(&self) -> Option<u32> {
        todo!()
    }

    /// Returns what `netwright routes` shows.
    #[must_use]
    pub fn table(&self, now: Time) -> Table {
        todo!()
    }

    /// Returns how packets to an address go.
    #[must_use]
    pub fn explain(&self, address: IpAddr, now: Time) -> Explained {
        todo!()
    }
}
