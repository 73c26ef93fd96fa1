//! The sets of a program, and what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::lines::SetSubject;
use super::names::{self, Kind};
use super::{Compiler, Hash, SetUse};
use crate::labels::Selector;
use crate::object::{Node, Pod};
use crate::policy::{Direction, PodSet, Protocol, intervals};
use crate::program::{Element, Name, Set, Step};
use net::IpFamily;

impl Compiler {
    /// Takes a set into use, whose name has this hash.
    pub(super) fn use_set(&mut self, hash: &str, about: &SetSubject) {
        if let Some(set) = self.sets.get_mut(hash) {
            set.users += 1;
            return;
        }
        let hash: Hash = Arc::from(hash);
        self.sets.insert(hash.clone(), SetUse { users: 1, about: about.clone() });
        let addresses = match about {
            SetSubject::Pods(selectors) => self.pods_in(&hash, selectors),
            SetSubject::Nodes(selectors) => {
                let is_in = |node: &&Node| any_matches(selectors, node);
                let nodes = self.world.nodes().filter(is_in);
                nodes.flat_map(|node| node.addresses.iter().copied()).collect()
            }
            SetSubject::Blocks(family, blocks) => {
                let name = names::set(Kind::Block, *family, &hash);
                self.emit(Step::AddSet { name, set: Set::Intervals(intervals(*family, blocks)) });
                return;
            }
            SetSubject::Port(direction, name) => {
                return self.add_port_sets(&hash, *direction, name);
            }
            SetSubject::Contested => self.world.contested().collect(),
        };
        for family in IpFamily::ALL {
            let of_family = addresses.iter().copied().filter(|at| IpFamily::of(*at) == family);
            let set = Set::Addresses(of_family.collect());
            self.emit(Step::AddSet { name: names::set(about.kind(), family, &hash), set });
        }
    }

    /// Returns the addresses of the pods of a new set, and notes that they are there.
    fn pods_in(&mut self, hash: &Hash, selectors: &[PodSet]) -> BTreeSet<IpAddr> {
        let mut addresses = BTreeSet::new();
        for (number, pods) in selectors.iter().enumerate() {
            self.pod_sets.insert(pods, &(hash.clone(), number));
            self.work += u64::try_from(self.world.labels_near(pods)).unwrap_or(u64::MAX);
            addresses.extend(self.world.addresses_in(pods));
        }
        for address in &addresses {
            self.member_of.entry(*address).or_default().insert(hash.clone());
        }
        addresses
    }

    fn add_port_sets(&mut self, hash: &Hash, direction: Direction, name: &str) {
        self.port_sets.insert((direction, name.to_owned()), hash.clone());
        let world = &self.world;
        let pods: Vec<&Pod> = match direction {
            Direction::Ingress => world.pods_on(&self.node).collect(),
            Direction::Egress => world.pods().collect(),
        };
        let mut found: Vec<(IpAddr, Protocol, u16)> = Vec::new();
        for pod in pods {
            for port in pod.ports.iter().filter(|port| port.name == name) {
                for address in pod.own_addresses() {
                    if world.owns(pod, *address) {
                        found.push((*address, port.protocol, port.port));
                    }
                }
            }
        }
        for (address, protocol, port) in &found {
            let ports = self.ports_of.entry(*address).or_default();
            ports.insert((hash.clone(), *protocol, *port));
        }
        for family in IpFamily::ALL {
            let of_family = found.iter().copied().filter(|(at, ..)| IpFamily::of(*at) == family);
            let set = Set::Ports(of_family.collect());
            self.emit(Step::AddSet { name: names::set(Kind::Port, family, hash), set });
        }
    }

    pub(super) fn release_sets(&mut self, hashes: impl IntoIterator<Item = String>) {
        for hash in hashes {
            if let Some(set) = self.sets.get_mut(hash.as_str()) {
                set.users -= 1;
                self.idle_sets.insert(hash);
            }
        }
    }

    pub(super) fn remove_set(&mut self, hash: &str) {
        let Some((hash, SetUse { about, .. })) = self.sets.remove_entry(hash) else { return };
        for family in about.families() {
            let name = names::set(about.kind(), family, &hash);
            match (&about, self.program.sets.get(&name)) {
                (SetSubject::Pods(_), Some(Set::Addresses(all))) => {
                    for address in all {
                        remove_from(&mut self.member_of, address, |there| *there == hash);
                    }
                }
                (SetSubject::Port(..), Some(Set::Ports(all))) => {
                    for (address, ..) in all {
                        remove_from(&mut self.ports_of, address, |(there, ..)| *there == hash);
                    }
                }
                _ => {}
            }
            self.emit(Step::RemoveSet { name });
        }
        match about {
            SetSubject::Pods(selectors) => {
                for (number, pods) in selectors.iter().enumerate() {
                    self.pod_sets.remove(pods, &(hash.clone(), number));
                }
            }
            SetSubject::Port(direction, name) => {
                self.port_sets.remove(&(direction, name));
            }
            SetSubject::Nodes(_) | SetSubject::Blocks(..) | SetSubject::Contested => {}
        }
    }

    /// Puts an address into the sets in which it belongs now, and takes it out of the others.
    pub(super) fn move_in_sets(&mut self, address: IpAddr) {
        let mut now: BTreeSet<Hash> = BTreeSet::new();
        if let Some(pod) = self.world.owner(address) {
            let namespace = self.world.namespace(&pod.namespace);
            for (hash, number) in self.pod_sets.near(pod, namespace) {
                if now.contains(hash) {
                    continue;
                }
                self.work += 1;
                let Some(SetUse { about: SetSubject::Pods(selectors), .. }) = self.sets.get(hash)
                else {
                    continue;
                };
                if selectors.get(*number).is_some_and(|set| self.world.is_in(pod, set)) {
                    now.insert(hash.clone());
                }
            }
        }
        let before = self.member_of.remove(&address).unwrap_or_default();
        let element = Element::Address(address);
        for (hash, comes) in changed(&before, &now) {
            let set = names::set(Kind::Pods, IpFamily::of(address), hash);
            self.emit_element(set, element, comes);
        }
        if !now.is_empty() {
            self.member_of.insert(address, now);
        }
    }

    /// Does the same for the sets of named ports.
    pub(super) fn move_in_ports(&mut self, address: IpAddr) {
        let mut now: BTreeSet<(Hash, Protocol, u16)> = BTreeSet::new();
        if let Some(pod) = self.world.owner(address) {
            let is_local = pod.node.as_deref() == Some(self.node.as_str());
            for port in pod.ports.iter() {
                for direction in Direction::ALL {
                    if direction == Direction::Ingress && !is_local {
                        continue;
                    }
                    self.work += 1;
                    if let Some(hash) = self.port_sets.get(&(direction, port.name.clone())) {
                        now.insert((hash.clone(), port.protocol, port.port));
                    }
                }
            }
        }
        let before = self.ports_of.remove(&address).unwrap_or_default();
        for ((hash, protocol, port), comes) in changed(&before, &now) {
            let set = names::set(Kind::Port, IpFamily::of(address), hash);
            self.emit_element(set, Element::Port(address, *protocol, *port), comes);
        }
        if !now.is_empty() {
            self.ports_of.insert(address, now);
        }
    }

    /// Does the same for the set of addresses that several pods claim.
    pub(super) fn move_in_contested(&mut self, address: IpAddr) {
        let hash = SetSubject::Contested.hash(&self.salt);
        let set = names::set(Kind::Contested, IpFamily::of(address), &hash);
        let Some(Set::Addresses(all)) = self.program.sets.get(&set) else { return };
        let comes = self.world.is_contested(address);
        if comes != all.contains(&address) {
            self.emit_element(set, Element::Address(address), comes);
        }
    }

    /// Does the same for the sets of nodes.
    pub(super) fn move_in_nodes(&mut self, address: IpAddr) {
        let mut moves = Vec::new();
        for (hash, SetUse { about, .. }) in &self.sets {
            let SetSubject::Nodes(selectors) = about else { continue };
            let mut nodes = self.world.nodes_at(address);
            let is_in = nodes.any(|node| any_matches(selectors, node));
            let set = names::set(Kind::Nodes, IpFamily::of(address), hash);
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
}

fn any_matches(selectors: &[Selector], node: &Node) -> bool {
    selectors.iter().any(|selector| selector.matches(&node.labels))
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
