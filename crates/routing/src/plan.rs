//! What is wanted, what is there, and the changes from one to the other.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::object::{Key, Value};
use crate::settings::LinkName;

/// Objects by their keys.
pub type Objects = BTreeMap<Key, Value>;

/// All that is wanted, and who wants it: a peer, or this node itself (an empty name).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    objects: Objects,
}

impl Wanted {
    /// Puts the objects of one peer, or of this node, in place of those it had; returns the keys
    /// that this may change.
    pub fn replace(&mut self, whose: &str, objects: Objects) -> BTreeSet<Key> {
        todo!()
    }

    /// Returns all objects.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }
}

/// What the kernel has: what is ours by its mark, and routes of others to prefixes of peers.
///
/// Ours are: routes and nexthops with our protocols, everything on our tunnels, everything in our
/// table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Ours.
    pub objects: Objects,
    /// Routes of others to a prefix inside the cluster's ranges.
    pub foreign: BTreeMap<IpNet, Vec<ForeignRoute>>,
    /// Ids of our range that nexthops of others have.
    pub foreign_nexthops: BTreeSet<u32>,
}

impl Observed {
    /// Forgets what the kernel takes with a link that goes down, of which it says nothing: the
    /// nexthops by it, the routes by those, and its permanent neighbours. FDB entries stay.
    pub fn link_down(&mut self, link: &LinkName) {
        todo!()
    }

    /// Forgets a link that is gone and everything on it.
    pub fn link_gone(&mut self, link: &LinkName) {
        todo!()
    }

    /// Takes note of a change that was made.
    pub fn apply(&mut self, change: &Change) {
        todo!()
    }
}

/// A route of somebody else.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ForeignRoute {
    /// The metric.
    pub metric: u32,
    /// The protocol (`linux rtnetlink.h` RTPROT_*).
    pub protocol: u8,
    /// The link, if it has one.
    pub link: Option<LinkName>,
    /// The gateway, if it has one.
    pub gateway: Option<std::net::IpAddr>,
}

/// One change of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    /// Makes an object. It fails if there is one: then that one is not ours.
    Create(Key, Value),
    /// Puts an object in place of ours in one step, so that no packet is lost.
    Replace(Key, Value),
    /// Removes an object of ours. That it is gone is no error.
    Remove(Key, Value),
    /// Removes a route that flanneld made, once ours stands.
    RemoveForeign(IpNet, ForeignRoute),
}

/// Plans from what is there to all that is wanted.
#[must_use]
pub fn difference(wanted: &Wanted, observed: &Observed) -> Vec<Change> {
    todo!()
}

/// Plans for some keys only: what one peer's change costs does not depend on how many others there
/// are.
#[must_use]
pub fn difference_of(
    keys: &BTreeSet<Key>,
    wanted: &Wanted,
    observed: &Observed,
) -> Vec<Change> {
    todo!()
}
