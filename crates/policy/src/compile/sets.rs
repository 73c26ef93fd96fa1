//! The sets of a program, and what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::lines::About;
use super::names::{self, Kind};
use super::{Compiler, SetUse};
use crate::family::Family;
use crate::object::Pod;
use crate::policy::{Direction, Protocol, intervals};
use crate::program::{Element, Name, Set, Step};

impl Compiler {
    pub(super) fn use_set(&mut self, about: &About, hash: &str) {
        if let Some(set) = self.sets.get_mut(about) {
            set.users += 1;
            return;
        }
        let about = Arc::new(about.clone());
        self.sets.insert(about.clone(), SetUse { users: 1, hash: hash.to_owned() });
        let addresses = match &*about {
            About::Pods(pods) => {
                self.pod_sets.insert(pods, &about);
                self.work += u64::try_from(self.world.labels_near(pods)).unwrap_or(u64::MAX);
                let addresses = self.world.addresses_in(pods);
                for address in &addresses {
                    self.member_of.entry(*address).or_default().insert(about.clone());
                }
                addresses
            }
            About::Nodes(selector) => {
                let nodes = self.world.nodes().filter(|node| selector.matches(&node.labels));
                nodes.flat_map(|node| node.addresses.iter().copied()).collect()
            }
            About::Blocks(family, blocks) => {
                let name = names::set(Kind::Block, *family, hash);
                self.emit(Step::AddSet { name, set: Set::Intervals(intervals(*family, blocks)) });
                return;
            }
            About::Port(direction, name) => {
                return self.add_port_sets(&about, *direction, name, hash);
            }
        };
        for family in Family::ALL {
            let of_family = addresses.iter().copied().filter(|at| Family::of(*at) == family);
            let set = Set::Addresses(of_family.collect());
            self.emit(Step::AddSet { name: names::set(about.kind(), family, hash), set });
        }
    }

    fn add_port_sets(&mut self, about: &Arc<About>, direction: Direction, name: &str, hash: &str) {
        let world = &self.world;
        let pods: Vec<&Pod> = match direction {
            Direction::Ingress => world.pods_on(&self.node).collect(),
            Direction::Egress => world.pods().collect(),
        };
        let mut found: Vec<(IpAddr, Protocol, u16)> = Vec::new();
        for pod in pods {
            for port in pod.ports.iter().filter(|port| port.name == name) {
                for address in pod.own_addresses() {
                    if world.claims(pod, *address) {
                        found.push((*address, port.protocol, port.port));
                    }
                }
            }
        }
        for (address, protocol, port) in &found {
            let ports = self.ports_of.entry(*address).or_default();
            ports.insert((about.clone(), *protocol, *port));
        }
        for family in Family::ALL {
            let of_family = found.iter().copied().filter(|(at, ..)| Family::of(*at) == family);
            let set = Set::Ports(of_family.collect());
            self.emit(Step::AddSet { name: names::set(Kind::Port, family, hash), set });
        }
    }

    pub(super) fn release_set(&mut self, about: About) {
        if let Some(set) = self.sets.get_mut(&about) {
            set.users -= 1;
            self.idle_sets.insert(about);
        }
    }

    pub(super) fn remove_set(&mut self, about: About) {
        let Some((about, SetUse { hash, .. })) = self.sets.remove_entry(&about) else { return };
        for family in about.families() {
            let name = names::set(about.kind(), family, &hash);
            match (&*about, self.program.sets.get(&name)) {
                (About::Pods(_), Some(Set::Addresses(all))) => {
                    for address in all {
                        remove_from(&mut self.member_of, address, |there| *there == about);
                    }
                }
                (About::Port(..), Some(Set::Ports(all))) => {
                    for (address, ..) in all {
                        remove_from(&mut self.ports_of, address, |(there, ..)| *there == about);
                    }
                }
                _ => {}
            }
            self.emit(Step::RemoveSet { name });
        }
        if let About::Pods(pods) = &*about {
            self.pod_sets.remove(pods, &about);
        }
    }

    /// Puts an address into the sets in which it belongs now, and takes it out of the others.
    pub(super) fn move_in_sets(&mut self, address: IpAddr) {
        let mut now: BTreeSet<Arc<About>> = BTreeSet::new();
        for pod in self.world.claimants(address) {
            let namespace = self.world.namespace(&pod.namespace);
            for about in self.pod_sets.near(pod, namespace) {
                self.work += 1;
                if matches!(&**about, About::Pods(set) if self.world.is_in(pod, set)) {
                    now.insert(about.clone());
                }
            }
        }
        let before = self.member_of.remove(&address).unwrap_or_default();
        let element = Element::Address(address);
        for (about, comes) in changed(&before, &now) {
            let set = self.set_name(about, address);
            self.emit_element(set, element, comes);
        }
        if !now.is_empty() {
            self.member_of.insert(address, now);
        }
    }

    /// Does the same for the sets of named ports.
    pub(super) fn move_in_ports(&mut self, address: IpAddr) {
        let mut now: BTreeSet<(Arc<About>, Protocol, u16)> = BTreeSet::new();
        for pod in self.world.claimants(address) {
            let is_local = pod.node.as_deref() == Some(self.node.as_str());
            for port in pod.ports.iter() {
                for direction in Direction::ALL {
                    if direction == Direction::Ingress && !is_local {
                        continue;
                    }
                    self.work += 1;
                    let about = About::Port(direction, port.name.clone());
                    if let Some((about, _)) = self.sets.get_key_value(&about) {
                        now.insert((about.clone(), port.protocol, port.port));
                    }
                }
            }
        }
        let before = self.ports_of.remove(&address).unwrap_or_default();
        for ((about, protocol, port), comes) in changed(&before, &now) {
            let set = self.set_name(about, address);
            self.emit_element(set, Element::Port(address, *protocol, *port), comes);
        }
        if !now.is_empty() {
            self.ports_of.insert(address, now);
        }
    }

    /// Does the same for the sets of nodes.
    pub(super) fn move_in_nodes(&mut self, address: IpAddr) {
        let mut moves = Vec::new();
        for about in self.sets.keys() {
            let About::Nodes(selector) = &**about else { continue };
            let mut nodes = self.world.nodes_at(address);
            let is_in = nodes.any(|node| selector.matches(&node.labels));
            let set = self.set_name(about, address);
            let was_in = match self.program.sets.get(&set) {
                Some(Set::Addresses(all)) => all.contains(&address),
                _ => continue,
            };
            if is_in != was_in {
                moves.push((set, is_in));
            }
        }
        for (set, comes) in moves {
            self.emit_element(set, Element::Address(address), comes);
        }
    }

    pub(super) fn emit_element(&mut self, set: Name, element: Element, comes: bool) {
        self.emit(if comes {
            Step::AddElement { set, element }
        } else {
            Step::RemoveElement { set, element }
        });
    }

    fn set_name(&self, about: &About, address: IpAddr) -> Name {
        let hash =
            self.sets.get(about).map_or_else(|| about.hash(&self.salt), |set| set.hash.clone());
        names::set(about.kind(), Family::of(address), &hash)
    }
}

/// Returns what is in one of two only, and whether that is the second.
pub(super) fn changed<'a, T: Ord>(
    before: &'a BTreeSet<T>,
    now: &'a BTreeSet<T>,
) -> impl Iterator<Item = (&'a T, bool)> {
    let gone = before.difference(now).map(|thing| (thing, false));
    gone.chain(now.difference(before).map(|thing| (thing, true)))
}

fn remove_from<T: Ord>(
    map: &mut BTreeMap<IpAddr, BTreeSet<T>>,
    address: &IpAddr,
    is_gone: impl Fn(&T) -> bool,
) {
    if let Some(things) = map.get_mut(address) {
        things.retain(|thing| !is_gone(thing));
        if things.is_empty() {
            map.remove(address);
        }
    }
}
