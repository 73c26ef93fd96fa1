//! What is wanted, what is there, and the changes from one to the other.
//!
//! Changes come in an order that loses no packet: new objects first, each after those it needs;
//! what is there is replaced in one step; then what is not wanted goes, in the reverse order. Only
//! elements of the packet filter come and go together, in one transaction.
//!
//! When a peer changes, only its keys are compared. A dual-stack peer behind a tunnel needs eight
//! messages, two each for FDB entry, neighbour, nexthop and route, whether there are 50 peers or
//! 5,000. A change of path replaces one nexthop in place.
//!
//! Our routes have a metric of their own, 2000, higher than those of people and routing daemons, so
//! `replace` never replaces one of theirs; the first route to a prefix is made with `NLM_F_EXCL`.
//! If another program has a route to a peer's prefix, that route wins and is reported. In flannel's
//! place flanneld's routes go once ours are there.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};

use crate::object::{Key, Value};
use crate::settings::LinkName;

/// Objects by their keys.
pub type Objects = BTreeMap<Key, Value>;

/// All that is wanted, and what wants it: a peer, or this node itself (an empty name).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredObjects {
    objects: BTreeMap<Key, (Value, Arc<str>)>,
    of: BTreeMap<Arc<str>, Vec<Key>>,
}

impl DesiredObjects {
    /// Puts the objects of one peer, or of this node, in place of those it had; returns the keys
    /// that this may change, some of them twice.
    ///
    /// An object that another peer wants by now stays that peer's.
    pub fn replace(&mut self, whose: &str, objects: Objects) -> Vec<Key> {
        let mut keys = self.of.remove(whose).unwrap_or_default();
        for key in &keys {
            if self.whose(key) == Some(whose) && !objects.contains_key(key) {
                self.objects.remove(key);
            }
        }
        if objects.is_empty() {
            return keys;
        }
        let whose: Arc<str> = whose.into();
        let own: Vec<Key> = objects.keys().cloned().collect();
        keys.extend(own.iter().cloned());
        self.of.insert(whose.clone(), own);
        for (key, value) in objects {
            self.objects.insert(key, (value, whose.clone()));
        }
        keys
    }

    /// Returns what is wanted of a key.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key).map(|(value, _)| value)
    }

    /// Returns what wants a key: a peer, or this node (an empty name).
    #[must_use]
    pub fn whose(&self, key: &Key) -> Option<&str> {
        self.objects.get(key).map(|(_, whose)| &**whose)
    }

    /// Returns the keys of one peer, or of this node.
    #[must_use]
    pub fn keys_of(&self, whose: &str) -> &[Key] {
        self.of.get(whose).map_or(&[], Vec::as_slice)
    }

    /// Returns all objects, in the order in which they are made.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Value)> {
        self.objects.iter().map(|(key, (value, _))| (key, value))
    }
}

/// What the kernel has: what is ours by its mark, and routes of others to prefixes of peers.
///
/// Ours are: routes and nexthops with our protocols, everything on our tunnels, everything in our
/// table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedObjects {
    objects: Objects,
    /// The prefixes of the routes by each nexthop.
    by_nexthop: BTreeSet<(u32, IpNet)>,
    /// Routes of others to a prefix inside the cluster's ranges.
    pub foreign: BTreeMap<IpNet, Vec<ForeignRoute>>,
    /// Ids of our range that nexthops of others have.
    pub foreign_nexthops: BTreeSet<u32>,
}

impl FromIterator<(Key, Value)> for ObservedObjects {
    /// Takes note of objects of ours together, which takes half the room of one after the other.
    fn from_iter<T: IntoIterator<Item = (Key, Value)>>(objects: T) -> Self {
        let objects: Objects = objects.into_iter().collect();
        let by = objects.iter().filter_map(|(key, value)| by_nexthop(key, value)).collect();
        ObservedObjects { objects, by_nexthop: by, ..ObservedObjects::default() }
    }
}

impl ObservedObjects {
    /// Returns what is ours.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Takes note of an object of ours.
    pub fn insert(&mut self, key: Key, value: Value) {
        let by = by_nexthop(&key, &value);
        let before = match &key {
            Key::Route { .. } => self.objects.get(&key),
            _ => None,
        };
        if let Some(before) = before.and_then(|before| by_nexthop(&key, before)) {
            self.by_nexthop.remove(&before);
        }
        self.by_nexthop.extend(by);
        self.objects.insert(key, value);
    }

    /// Takes note that an object of ours is gone, and only that.
    pub fn remove(&mut self, key: &Key) -> Option<Value> {
        let value = self.objects.remove(key)?;
        if let Some(by) = by_nexthop(key, &value) {
            self.by_nexthop.remove(&by);
        }
        Some(value)
    }

    /// Takes note that an object of ours is gone, and with it what the kernel removes without an
    /// event: the routes by a nexthop, all that is on a tunnel. Returns the keys.
    pub fn gone(&mut self, key: &Key) -> BTreeSet<Key> {
        let mut keys = match key {
            Key::Nexthop { id } => self.routes_by(*id),
            Key::Tunnel { link } => self.with_link(link),
            _ => BTreeSet::new(),
        };
        keys.insert(key.clone());
        self.forget(&keys);
        keys
    }

    /// Takes note that a link went down, or lost its carrier, and forgets what the kernel removes
    /// with it, mostly without an event: the nexthops by it, the routes by those, its permanent
    /// neighbours, and IPv6 addresses. FDB entries and IPv4 addresses stay. Returns the keys.
    pub fn link_down(&mut self, link: &str) -> BTreeSet<Key> {
        let keys = self.with_link_up(link);
        self.forget(&keys);
        keys
    }

    /// Takes note of a change that was made.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Create(key, value) | Change::Replace(key, value) => {
                if let (Key::Tunnel { link }, Some(there)) = (key, self.objects.get(key)) {
                    let lost = self.with_change(link, value, there);
                    self.forget(&lost);
                }
                self.insert(key.clone(), value.clone());
            }
            Change::Remove(key, _) => {
                self.gone(key);
            }
            Change::RemoveForeign(prefix, route) => {
                if let Some(routes) = self.foreign.get_mut(prefix) {
                    routes.retain(|other| other != route);
                    if routes.is_empty() {
                        self.foreign.remove(prefix);
                    }
                }
            }
        }
    }

    fn routes_by(&self, nexthop: u32) -> BTreeSet<Key> {
        let first = (nexthop, IpNet::V4(Ipv4Net::default()));
        let prefixes = self.by_nexthop.range(first..).take_while(|(by, _)| *by == nexthop);
        prefixes.map(|(_, prefix)| Key::Route { prefix: *prefix }).collect()
    }

    /// Returns what is only there while a link is up.
    fn with_link_up(&self, link: &str) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        for (key, value) in &self.objects {
            match (key, value) {
                (Key::Nexthop { id }, Value::Nexthop(nexthop)) if *nexthop.link == *link => {
                    keys.extend(self.routes_by(*id));
                    keys.insert(key.clone());
                }
                (Key::Neighbour { link: on, .. }, _) if **on == *link => {
                    keys.insert(key.clone());
                }
                (Key::Address { link: on, address }, _) if **on == *link && address.is_ipv6() => {
                    keys.insert(key.clone());
                }
                _ => {}
            }
        }
        keys
    }

    /// Returns what is only there while a link is.
    fn with_link(&self, link: &str) -> BTreeSet<Key> {
        let on_link = |key: &&Key| match key {
            Key::Tunnel { link: on }
            | Key::Address { link: on, .. }
            | Key::Fdb { link: on, .. } => **on == *link,
            _ => false,
        };
        let mut keys = self.with_link_up(link);
        keys.extend(self.objects.keys().filter(on_link).cloned());
        keys
    }

    /// Returns what goes when a tunnel changes, or is not there already: with another hardware
    /// address its neighbours, and nothing is by it while it is down.
    fn with_change(&self, link: &str, value: &Value, there: &Value) -> BTreeSet<Key> {
        match (value, there) {
            (_, there) if !value.can_replace(there) => self.with_link(link),
            (_, Value::Tunnel(there)) if !there.up => self.with_link_up(link),
            // Neighbours also go when ARP is switched on or off (linux net/ipv4/arp.c
            // `arp_netdev_event`).
            (Value::Tunnel(value), Value::Tunnel(there))
                if value.mac != there.mac || value.altered != there.altered =>
            {
                let on_link =
                    |key: &&Key| matches!(key, Key::Neighbour { link: on, .. } if **on == *link);
                self.objects.keys().filter(on_link).cloned().collect()
            }
            _ => BTreeSet::new(),
        }
    }

    fn forget(&mut self, keys: &BTreeSet<Key>) {
        for key in keys {
            self.remove(key);
        }
    }
}

/// Returns by which nexthop of ours a route is, with its prefix.
fn by_nexthop(key: &Key, value: &Value) -> Option<(u32, IpNet)> {
    match (key, value) {
        (Key::Route { prefix }, Value::Route { nexthop, .. }) => Some(((*nexthop)?, *prefix)),
        _ => None,
    }
}

/// A route of another program, or of an administrator.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ForeignRoute {
    /// The metric.
    pub metric: u32,
    /// The protocol (`linux rtnetlink.h` RTPROT_*).
    pub protocol: u8,
    /// The link, if it has one.
    pub link: Option<LinkName>,
    /// The gateway, if it has one.
    pub gateway: Option<IpAddr>,
}

/// The protocols of routing daemons (`linux rtnetlink.h`): zebra, BIRD, XORP, BABEL, OpenR, BGP,
/// IS-IS, OSPF, RIP, EIGRP.
const ROUTING_DAEMONS: [u8; 10] = [11, 12, 14, 42, 99, 186, 187, 188, 189, 192];

/// RTPROT_BOOT, which the routes of flanneld and of administrators have.
const BOOT: u8 = 3;

impl ForeignRoute {
    /// Reports whether a routing daemon has made it, and it leads somewhere.
    #[must_use]
    pub fn is_learned(&self) -> bool {
        ROUTING_DAEMONS.contains(&self.protocol) && (self.link.is_some() || self.gateway.is_some())
    }

    /// Reports whether flanneld may have made it, for a node that may be gone.
    #[must_use]
    pub fn may_be_flannels(&self) -> bool {
        self.protocol == BOOT && self.gateway.is_some()
    }

    /// Reports whether flanneld may have made it: by a tunnel of ours, or to an underlay address of
    /// a peer.
    #[must_use]
    pub(crate) fn is_like_flannels(&self, tunnels: &[&str], underlay: &[IpAddr]) -> bool {
        let by_tunnel = self.link.as_ref().is_some_and(|link| tunnels.contains(&&**link));
        let to_peer = self.gateway.is_some_and(|gateway| underlay.contains(&gateway));
        self.protocol == BOOT && (by_tunnel || to_peer)
    }
}

impl fmt::Display for ForeignRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proto {}", self.protocol)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        if let Some(link) = &self.link {
            write!(f, " dev {link}")?;
        }
        write!(f, " metric {}", self.metric)
    }
}

/// One change of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    /// Makes an object. For links, routes and nexthops it has to fail if there is one (NLM_F_EXCL):
    /// then that one is not ours. It is not an error if an address, neighbour or FDB entry is there
    /// already: everything on our tunnels is ours.
    Create(Key, Value),
    /// Puts an object in place of ours in one step, so that no packet is lost.
    Replace(Key, Value),
    /// Removes an object of ours. It is not an error if the object is gone.
    Remove(Key, Value),
    /// Removes a route that flanneld made, once ours stands. It is not an error if the route is
    /// gone.
    RemoveForeign(IpNet, ForeignRoute),
}

impl Change {
    /// Returns the key of the object that it is about, if it is ours.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        match self {
            Change::Create(key, _) | Change::Replace(key, _) | Change::Remove(key, _) => Some(key),
            Change::RemoveForeign(..) => None,
        }
    }

    /// Reports whether it is one of the packet filter: all of these are one transaction. The others
    /// are messages of rtnetlink.
    #[must_use]
    pub fn is_filter(&self) -> bool {
        self.key().is_some_and(Key::is_filter)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Create(key, value) => write!(f, "create {key}{value}"),
            Change::Replace(key, value) => write!(f, "replace {key}{value}"),
            Change::Remove(key, _) => write!(f, "remove {key}"),
            Change::RemoveForeign(prefix, route) => {
                write!(f, "remove flanneld's route {prefix} {route}")
            }
        }
    }
}

/// Plans from what is there to all that is wanted, by going through both once: after most looks there
/// is nothing to do.
#[must_use]
pub fn difference(wanted: &DesiredObjects, observed: &ObservedObjects) -> Vec<Change> {
    let first = Key::Tunnel { link: "".into() };
    let from = wanted.objects.range(first..).map(|(key, _)| key);
    let tunnels = from.take_while(|key| matches!(key, Key::Tunnel { .. }));
    let (mut plan, lost) = with_tunnels(tunnels, wanted, observed);
    // In a cold start nearly all is to be made.
    plan.reserve(wanted.objects.len().saturating_sub(observed.objects.len()));
    complete(plan, &lost, side_by_side(wanted, observed))
}

/// Plans for some keys only: what one peer's change costs does not depend on how many others there
/// are.
///
/// Only a tunnel that is down, has another hardware address or cannot be adjusted concerns more:
/// what is on it goes with that, and is made again.
#[must_use]
pub fn difference_of(
    keys: &BTreeSet<Key>,
    wanted: &DesiredObjects,
    observed: &ObservedObjects,
) -> Vec<Change> {
    let (plan, lost) = with_tunnels(keys.iter(), wanted, observed);
    let all = if lost.is_empty() { Cow::Borrowed(keys) } else { Cow::Owned(keys | &lost) };
    let all = all.iter().map(|key| (key, wanted.get(key), observed.objects.get(key)));
    complete(plan, &lost, all)
}

/// An object: what is wanted of it, and what is there.
type ObjectPair<'a> = (&'a Key, Option<&'a Value>, Option<&'a Value>);

/// Goes through all that is wanted or there, in the order of the keys.
fn side_by_side<'a>(
    wanted: &'a DesiredObjects,
    observed: &'a ObservedObjects,
) -> impl Iterator<Item = ObjectPair<'a>> {
    let mut wanted = wanted.iter().peekable();
    let mut there = observed.objects.iter().peekable();
    std::iter::from_fn(move || {
        let order = match (wanted.peek(), there.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((wanted, _)), Some((there, _))) => wanted.cmp(there),
        };
        let one = wanted.next_if(|_| order.is_le());
        let other = there.next_if(|_| order.is_ge());
        let (key, _) = one.or(other)?;
        Some((key, one.map(|(_, value)| value), other.map(|(_, value)| value)))
    })
}

/// Returns the removals of tunnels that have to be made anew, and what goes with a change of one.
fn with_tunnels<'a>(
    keys: impl Iterator<Item = &'a Key>,
    wanted: &DesiredObjects,
    observed: &ObservedObjects,
) -> (Vec<Change>, BTreeSet<Key>) {
    let (mut plan, mut lost) = (Vec::new(), BTreeSet::new());
    for key in keys {
        if let (Key::Tunnel { link }, Some(value)) = (key, wanted.get(key))
            && let Some(there) = observed.objects.get(key)
        {
            lost.extend(observed.with_change(link, value, there));
            if !value.can_replace(there) {
                plan.push(Change::Remove(key.clone(), there.clone()));
            }
        }
    }
    (plan, lost)
}

/// Completes a plan by the changes of these objects, which are in the order of their keys.
fn complete<'a>(
    mut plan: Vec<Change>,
    lost: &BTreeSet<Key>,
    all: impl Iterator<Item = ObjectPair<'a>>,
) -> Vec<Change> {
    let mut removals = Vec::new();
    for (key, wanted, there) in all {
        match (wanted, there.filter(|_| !lost.contains(key))) {
            (Some(value), None) => plan.push(Change::Create(key.clone(), value.clone())),
            (Some(value), Some(there)) if value != there => {
                plan.push(Change::Replace(key.clone(), value.clone()));
            }
            (None, Some(there)) => removals.push(Change::Remove(key.clone(), there.clone())),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
    // Elements come and go in one transaction: a node that has another address now sends from that
    // alone.
    if let Some(last_new) = plan.iter().rposition(Change::is_filter) {
        let (elements, others): (Vec<Change>, Vec<Change>) =
            removals.into_iter().partition(Change::is_filter);
        plan.splice(last_new + 1..last_new + 1, elements);
        removals = others;
    }
    plan.extend(removals.into_iter().rev());
    plan
}
