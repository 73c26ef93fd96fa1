//! From objects to the program of one node, and from each change of an object to its steps.
//!
//! Pods of the node that the same policies select for a direction share a class, a chain. Policies
//! have chains, shared by classes. Selectors have sets, shared by policies. Each of them is there
//! while somebody uses it. So a pod that comes, goes or gets other labels is an element in each set
//! that it enters or leaves, and an element in the verdict maps if it is of this node. No rule
//! changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::family::Family;
use crate::object::{Pod, Uid};
use crate::policy::{Direction, PolicyId, Protocol, Tier, intervals};
use crate::program::{self, Element, Line, Name, Program, Set, Step, Then};
use crate::world::index::Index;
use crate::world::{Change, Touched, World};

mod lines;
mod names;

use lines::{About, Compiled};
use names::Kind;

/// The policies that are asked about a pod for a direction, sorted by name.
type Class = Vec<PolicyId>;

/// Where an address of this node's pods leads.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Leads {
    /// To the chain of a class.
    Class(Class),
    /// To the chain of pods about which not enough is known.
    Unknown,
}

#[derive(Debug)]
struct ClassUse {
    /// How many addresses lead there.
    users: usize,
    /// The chains that it has.
    chains: BTreeSet<Name>,
}

#[derive(Debug)]
struct PolicyUse {
    /// How many classes jump there.
    users: usize,
    compiled: Compiled,
}

#[derive(Debug)]
struct SetUse {
    /// How many policies refer to it.
    users: usize,
    hash: String,
}

/// Keeps the program of one node as objects change.
#[derive(Debug)]
pub struct Compiler {
    node: String,
    world: World,
    program: Program,
    leads: BTreeMap<(Direction, IpAddr), Leads>,
    classes: BTreeMap<(Direction, Class), ClassUse>,
    policies: BTreeMap<(Direction, PolicyId), PolicyUse>,
    sets: BTreeMap<Arc<About>, SetUse>,
    /// The pod sets that have sets, to find those that a pod may be in.
    pod_sets: Index<Arc<About>>,
    /// The pod sets and the named ports that have an address now.
    member_of: BTreeMap<IpAddr, BTreeSet<Arc<About>>>,
    ports_of: BTreeMap<IpAddr, BTreeSet<(Arc<About>, Protocol, u16)>>,
    /// The pods that were said to start with an address.
    starting: BTreeMap<IpAddr, Uid>,
    /// Chains that nothing refers to any more when this change is done.
    stale: BTreeSet<Name>,
    /// What may have lost its last user in this change.
    idle_classes: BTreeSet<(Direction, Class)>,
    idle_policies: BTreeSet<(Direction, PolicyId)>,
    idle_sets: BTreeSet<About>,
    steps: Vec<Step>,
    work: u64,
}

/// Compiles the program of a node.
#[must_use]
pub fn compile(world: World, node: &str) -> Program {
    Compiler::new(world, node).program
}

impl Compiler {
    /// Compiles the program of a node, and keeps what is needed to follow changes.
    #[must_use]
    pub fn new(world: World, node: &str) -> Self {
        let mut compiler = Compiler {
            node: node.to_owned(),
            world,
            program: Program::default(),
            leads: BTreeMap::new(),
            classes: BTreeMap::new(),
            policies: BTreeMap::new(),
            sets: BTreeMap::new(),
            pod_sets: Index::default(),
            member_of: BTreeMap::new(),
            ports_of: BTreeMap::new(),
            starting: BTreeMap::new(),
            stale: BTreeSet::new(),
            idle_classes: BTreeSet::new(),
            idle_policies: BTreeSet::new(),
            idle_sets: BTreeSet::new(),
            steps: Vec::new(),
            work: 0,
        };
        for direction in Direction::ALL {
            let deny = Line { matches: Vec::new(), then: Then::Deny };
            compiler.put_chain(names::unknown(direction), vec![deny]);
        }
        for address in compiler.local_addresses() {
            compiler.lead(address);
        }
        compiler.finish();
        compiler
    }

    /// Returns the program as it is now.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the objects as they are now.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns how many selectors were compared with a pod since the beginning.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Makes a change, and returns the steps to the program as it is then: one transaction.
    pub fn apply(&mut self, change: Change) -> Vec<Step> {
        let Touched { addresses, node_addresses, policies } = self.world.apply(change);
        for address in &addresses {
            self.move_in_sets(*address);
            self.move_in_ports(*address);
        }
        for address in &node_addresses {
            self.move_in_nodes(*address);
        }
        for id in &policies {
            self.compile_again(id);
        }
        let mut leading = addresses;
        if !policies.is_empty() {
            leading.extend(self.local_addresses());
        }
        for address in leading {
            self.lead(address);
        }
        if !policies.is_empty() {
            self.write_classes_again(&policies);
        }
        self.finish()
    }

    /// Closes an address of this node until it is known that a pod has it, and nobody else: the
    /// pod starts, and the API may not have said so yet. Whoever knows the pod's object by then may
    /// add the address to it, and need not wait for its status.
    pub fn start(&mut self, address: IpAddr, pod: Uid) -> Vec<Step> {
        self.starting.insert(address, pod);
        self.lead(address);
        self.finish()
    }

    /// Takes back what [`start`](Self::start) said: the pod no longer has the address.
    pub fn end(&mut self, address: IpAddr) -> Vec<Step> {
        self.starting.remove(&address);
        self.lead(address);
        self.finish()
    }

    fn local_addresses(&self) -> BTreeSet<IpAddr> {
        let pods = self.world.pods_on(&self.node);
        pods.flat_map(Pod::own_addresses).copied().collect()
    }

    fn emit(&mut self, step: Step) {
        let applied = self.program.apply(&step);
        debug_assert!(applied.is_ok(), "{applied:?}");
        self.steps.push(step);
    }

    fn put_chain(&mut self, name: Name, lines: Vec<Line>) {
        if self.program.chains.get(&name) != Some(&lines) {
            self.emit(Step::PutChain { name, lines });
        }
    }

    /// Collects what lost its last user, and returns the steps in the order in which they hold.
    fn finish(&mut self) -> Vec<Step> {
        for key in std::mem::take(&mut self.idle_classes) {
            if self.classes.get(&key).is_some_and(|class| class.users == 0) {
                let chains = self.classes.remove(&key).map(|class| class.chains);
                self.stale.extend(chains.unwrap_or_default());
                for id in key.1 {
                    self.release_policy(key.0, id);
                }
            }
        }
        for key in std::mem::take(&mut self.idle_policies) {
            if self.policies.get(&key).is_some_and(|policy| policy.users == 0)
                && let Some(PolicyUse { compiled, .. }) = self.policies.remove(&key)
            {
                let main = names::policy(key.0, &key.1);
                self.stale.extend(compiled.chains(&main).into_keys());
                for about in compiled.about.into_keys() {
                    self.release_set(about);
                }
            }
        }
        for name in std::mem::take(&mut self.stale) {
            self.emit(Step::RemoveChain { name });
        }
        for about in std::mem::take(&mut self.idle_sets) {
            if self.sets.get(&about).is_some_and(|set| set.users == 0) {
                self.remove_set(about);
            }
        }
        let mut steps = std::mem::take(&mut self.steps);
        program::sort(&mut steps);
        steps
    }

    // Verdicts and classes.

    /// Leads an address to where it belongs now, for both directions.
    fn lead(&mut self, address: IpAddr) {
        for direction in Direction::ALL {
            let new = self.where_to(direction, address);
            let key = (direction, address);
            if self.leads.get(&key) == new.as_ref() {
                continue;
            }
            let chain = match &new {
                Some(Leads::Class(class)) => Some(self.use_class(direction, class)),
                Some(Leads::Unknown) => Some(names::unknown(direction)),
                None => None,
            };
            let old = match new {
                Some(new) => self.leads.insert(key, new),
                None => self.leads.remove(&key),
            };
            if let Some(Leads::Class(class)) = old {
                self.release_class(direction, class);
            }
            self.emit(Step::Verdict { direction, address, chain });
        }
    }

    fn where_to(&mut self, direction: Direction, address: IpAddr) -> Option<Leads> {
        let pods = self.world.claimants(address);
        let is_local = |pod: &Pod| pod.node.as_deref() == Some(self.node.as_str());
        if let Some(starting) = self.starting.get(&address)
            && !matches!(pods.as_slice(), [pod] if pod.uid == *starting && is_local(pod))
        {
            return Some(Leads::Unknown);
        }
        if !pods.iter().any(|pod| is_local(pod)) {
            return None;
        }
        let [pod] = pods.as_slice() else { return Some(Leads::Unknown) };
        if self.world.namespace(&pod.namespace).is_none() {
            return Some(Leads::Unknown);
        }
        self.work += u64::try_from(self.world.policies_near(pod).count()).unwrap_or(u64::MAX);
        let mut asked = self.world.asked(pod, direction);
        // A NetworkPolicy has the last word, so nothing is asked after it.
        if asked.iter().any(|policy| policy.tier == Tier::Namespaced) {
            asked.retain(|policy| policy.tier != Tier::Baseline);
        }
        let mut class: Class = asked.iter().map(|policy| policy.id.clone()).collect();
        class.sort();
        (!class.is_empty()).then_some(Leads::Class(class))
    }

    fn use_class(&mut self, direction: Direction, class: &Class) -> Name {
        let name = names::class(direction, &class_hash(class));
        let key = (direction, class.clone());
        if let Some(class) = self.classes.get_mut(&key) {
            class.users += 1;
            return name;
        }
        for id in class {
            self.use_policy(direction, id);
        }
        self.classes.insert(key.clone(), ClassUse { users: 1, chains: BTreeSet::new() });
        self.write_class(&key);
        name
    }

    fn release_class(&mut self, direction: Direction, class: Class) {
        let key = (direction, class);
        if let Some(class) = self.classes.get_mut(&key) {
            class.users -= 1;
            self.idle_classes.insert(key);
        }
    }

    /// Writes the chains of a class as its policies are now.
    fn write_class(&mut self, key: &(Direction, Class)) {
        let (direction, class) = key;
        let mut policies: Vec<_> = class.iter().filter_map(|id| self.world.policy(id)).collect();
        policies.sort_by_key(|policy| policy.order());
        let compiled = |id: &PolicyId| {
            self.policies.get(&(*direction, id.clone())).map(|policy| &policy.compiled)
        };
        let chains = lines::class(*direction, &class_hash(class), &policies, compiled);
        let names = chains.keys().cloned().collect();
        for (name, lines) in chains {
            self.put_chain(name, lines);
        }
        if let Some(class) = self.classes.get_mut(key) {
            let before = std::mem::replace(&mut class.chains, names);
            self.stale.extend(before.difference(&class.chains).cloned());
        }
    }

    fn write_classes_again(&mut self, changed: &BTreeSet<PolicyId>) {
        let is_affected =
            |(_, class): &&(Direction, Class)| class.iter().any(|id| changed.contains(id));
        let in_use = self.classes.iter().filter(|(_, class)| class.users > 0);
        let keys: Vec<_> = in_use.map(|(key, _)| key).filter(is_affected).cloned().collect();
        for key in keys {
            self.write_class(&key);
        }
    }

    // Policies.

    fn use_policy(&mut self, direction: Direction, id: &PolicyId) {
        let key = (direction, id.clone());
        if let Some(policy) = self.policies.get_mut(&key) {
            policy.users += 1;
            return;
        }
        let Some(policy) = self.world.policy(id) else { return };
        let compiled = lines::compile(policy, direction);
        self.put_policy(direction, id, &compiled);
        self.policies.insert(key, PolicyUse { users: 1, compiled });
    }

    fn put_policy(&mut self, direction: Direction, id: &PolicyId, compiled: &Compiled) {
        for (about, hash) in &compiled.about {
            self.use_set(about, hash);
        }
        for (name, lines) in compiled.chains(&names::policy(direction, id)) {
            self.put_chain(name, lines);
        }
    }

    fn release_policy(&mut self, direction: Direction, id: PolicyId) {
        let key = (direction, id);
        if let Some(policy) = self.policies.get_mut(&key) {
            policy.users -= 1;
            self.idle_policies.insert(key);
        }
    }

    /// Swaps the lines of a policy that changed, if it is in use.
    fn compile_again(&mut self, id: &PolicyId) {
        for direction in Direction::ALL {
            let key = (direction, id.clone());
            let Some(policy) = self.world.policy(id) else { continue };
            if !self.policies.contains_key(&key) {
                continue;
            }
            let compiled = lines::compile(policy, direction);
            self.put_policy(direction, id, &compiled);
            let Some(there) = self.policies.get_mut(&key) else { continue };
            let old = std::mem::replace(&mut there.compiled, compiled);
            let main = names::policy(direction, id);
            let kept = there.compiled.chains(&main);
            let gone = old.chains(&main).into_keys().filter(|name| !kept.contains_key(name));
            self.stale.extend(gone);
            for about in old.about.into_keys() {
                self.release_set(about);
            }
        }
    }

    // Sets.

    fn use_set(&mut self, about: &About, hash: &str) {
        if let Some(set) = self.sets.get_mut(about) {
            set.users += 1;
            return;
        }
        let about = Arc::new(about.clone());
        self.sets.insert(about.clone(), SetUse { users: 1, hash: hash.to_owned() });
        let addresses = match &*about {
            About::Pods(pods) => {
                self.pod_sets.insert(pods, &about);
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
                    if world.claimants(*address).iter().any(|there| there.uid == pod.uid) {
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

    fn release_set(&mut self, about: About) {
        if let Some(set) = self.sets.get_mut(&about) {
            set.users -= 1;
            self.idle_sets.insert(about);
        }
    }

    fn remove_set(&mut self, about: About) {
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
    fn move_in_sets(&mut self, address: IpAddr) {
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
    fn move_in_ports(&mut self, address: IpAddr) {
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
    fn move_in_nodes(&mut self, address: IpAddr) {
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

    fn emit_element(&mut self, set: Name, element: Element, comes: bool) {
        self.emit(if comes {
            Step::AddElement { set, element }
        } else {
            Step::RemoveElement { set, element }
        });
    }

    fn set_name(&self, about: &About, address: IpAddr) -> Name {
        let hash = self.sets.get(about).map_or_else(|| about.hash(), |set| set.hash.clone());
        names::set(about.kind(), Family::of(address), &hash)
    }
}

fn class_hash(class: &Class) -> String {
    names::hash(&format!("{class:?}"))
}

/// Returns what is in one of two only, and whether that is the second.
fn changed<'a, T: Ord>(
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
