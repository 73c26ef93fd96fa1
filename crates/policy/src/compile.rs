//! From objects to the program of one node, and from each change of an object to its steps.
//!
//! Pods of the node that the same policies select for a direction share a class, a chain. Policies
//! have chains, shared by classes. Selectors have sets, shared by policies. Policies that name many
//! peers are merged in the chain of their class. Each chain and set exists as long as something
//! refers to it. So when a pod comes, goes or gets other labels, one element is added to or removed
//! from each set that it enters or leaves, and from the verdict maps if the pod is on this node. No
//! rule changes.
//!
//! All rules with one selector share its set, one for each family. The compiler finds the sets that
//! a pod may be in by the pod's namespace, the namespace's labels and the pod's own. It makes only
//! sets and chains that the policies of this node's pods use. The address blocks of one rule are
//! one set of intervals, so that thousands cost one look-up. Sets of named ports for ingress hold
//! pods of this node only. Names of chains and sets are hashes, 100 bits, of what they stand for:
//! they are the same on each node and after a restart. A class lists policies by name, so a new
//! priority rewrites chains and changes no verdict.
//!
//! A rule with the action Pass ends its tier. In nftables a chain can end itself, but not the chain
//! that jumped to it, and other programs use packet marks. So the rules of a policy with Pass stand
//! in the tier's chain of each class; every other policy has a chain of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::object::{Pod, Uid};
use crate::policy::{Direction, PodSet, Policy, PolicyId, Protocol, Tier};
use crate::program::{self, Line, Name, Program, Step};
use crate::world::index::Index;
use crate::world::{Change, ChangeScope, World};

mod lines;
pub(crate) mod merge;
mod names;
mod own;
mod sets;

use lines::{ClassChains, CompiledLines, SetSubject};

/// The policies that are asked about a pod for a direction, sorted by name.
type Class = Arc<[PolicyId]>;

/// Where an address of this node's pods leads.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ChainTarget {
    /// To the chain of a class.
    Class(Class),
    /// To the chain of pods about which not enough is known.
    Unknown,
    /// There too: its policies have too many different lists of ports.
    TooMany,
}

/// The hash in the name of sets: it stands for what they are about.
type Hash = Arc<str>;

#[derive(Debug, Default)]
struct ClassUse {
    /// How many addresses lead there.
    users: usize,
    /// The chains that it has.
    chains: BTreeSet<Name>,
    uses: Uses,
}

/// What a class uses besides its chains.
#[derive(Debug, Default)]
struct Uses {
    /// The policies to whose chains it jumps.
    jumps: BTreeSet<PolicyId>,
    /// Its policies that decide about this node.
    own: BTreeSet<PolicyId>,
    /// The sets to which its chains refer.
    sets: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct PolicyUse {
    /// How many classes jump to its chains, and what these are as long as one does.
    jumps: usize,
    compiled: Option<CompiledLines>,
    /// How many classes have it for what it says of this node, and that.
    owners: usize,
    own: Option<CompiledLines>,
}

#[derive(Debug)]
struct SetUse {
    /// How many policies and classes refer to it.
    users: usize,
    about: SetSubject,
}

/// Keeps the program of one node as objects change.
#[derive(Debug)]
pub struct Compiler {
    node: String,
    /// What names of chains and sets are made of besides: nothing, or the network.
    salt: String,
    world: World,
    program: Program,
    leads: BTreeMap<(Direction, IpAddr), ChainTarget>,
    classes: BTreeMap<(Direction, Class), ClassUse>,
    policies: BTreeMap<(Direction, PolicyId), PolicyUse>,
    sets: BTreeMap<Hash, SetUse>,
    /// The selectors of pods that have sets, to find those that a pod may be in: the set, and the
    /// selector's place in it.
    pod_sets: Index<(Hash, usize)>,
    /// The sets of pods and of named ports that have an address now.
    member_of: BTreeMap<IpAddr, BTreeSet<Hash>>,
    ports_of: BTreeMap<IpAddr, BTreeSet<(Hash, Protocol, u16)>>,
    /// The sets of named ports.
    port_sets: BTreeMap<(Direction, String), Hash>,
    /// The pods that start, by the address that each will have.
    starting: BTreeMap<IpAddr, Uid>,
    /// Chains that nothing refers to any longer when this change is done.
    stale: BTreeSet<Name>,
    /// What may have lost its last user in this change.
    idle_classes: BTreeSet<(Direction, Class)>,
    idle_policies: BTreeSet<(Direction, PolicyId)>,
    idle_sets: BTreeSet<String>,
    /// The chains and sets about this node itself, and whether they may have to be others now.
    own_chains: BTreeSet<Name>,
    own_sets: BTreeSet<Name>,
    own_due: bool,
    /// What objects have changed since the program was settled.
    due: ChangeScope,
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
        Compiler::salted(world, node, String::new())
    }

    /// The same for a further network: names of chains and sets are of this network alone, so that
    /// its program may stand beside others in one table.
    #[must_use]
    pub fn of_network(world: World, node: &str, network: &str) -> Self {
        Compiler::salted(world, node, format!("{network}\0"))
    }

    fn salted(world: World, node: &str, salt: String) -> Self {
        let mut compiler = Compiler {
            node: node.to_owned(),
            salt,
            world,
            program: Program::empty(),
            leads: BTreeMap::new(),
            classes: BTreeMap::new(),
            policies: BTreeMap::new(),
            sets: BTreeMap::new(),
            pod_sets: Index::default(),
            member_of: BTreeMap::new(),
            ports_of: BTreeMap::new(),
            port_sets: BTreeMap::new(),
            starting: BTreeMap::new(),
            stale: BTreeSet::new(),
            idle_classes: BTreeSet::new(),
            idle_policies: BTreeSet::new(),
            idle_sets: BTreeSet::new(),
            own_chains: BTreeSet::new(),
            own_sets: BTreeSet::new(),
            own_due: false,
            due: ChangeScope::default(),
            steps: Vec::new(),
            work: 0,
        };
        for address in compiler.local_addresses() {
            compiler.lead(address);
        }
        compiler.finish();
        compiler
    }

    /// Returns the program as it was when it was settled last.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the objects as they are now.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns how many selectors were compared with a pod, or with the labels that several pods
    /// have, since the beginning.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Makes a change, and returns the steps to the program as it is then.
    pub fn apply(&mut self, change: Change) -> Vec<Step> {
        self.change(change);
        self.settle()
    }

    /// Makes a change of the objects. The program follows when it is settled.
    pub fn change(&mut self, change: Change) {
        let ChangeScope { addresses, node_addresses, policies } = self.world.apply(change);
        self.due.addresses.extend(addresses);
        self.due.node_addresses.extend(node_addresses);
        self.due.policies.extend(policies);
    }

    /// Reports whether the program is that of the objects as they are now.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let ChangeScope { addresses, node_addresses, policies } = &self.due;
        addresses.is_empty() && node_addresses.is_empty() && policies.is_empty()
    }

    /// Returns the steps to the program of the objects as they are now. After many changes that
    /// costs what they have in common once: a class of thousands of policies is written once, not
    /// once for each policy that went.
    pub fn settle(&mut self) -> Vec<Step> {
        let ChangeScope { addresses, node_addresses, policies } = std::mem::take(&mut self.due);
        for address in &addresses {
            self.move_in_sets(*address);
            self.move_in_ports(*address);
            self.move_in_contested(*address);
        }
        for address in &node_addresses {
            self.move_in_nodes(*address);
        }
        for id in &policies {
            self.compile_again(id);
        }
        self.own_due |= !node_addresses.is_empty() || !policies.is_empty();
        let mut leading = addresses;
        if !policies.is_empty() {
            leading.extend(self.selected_by(&policies));
        }
        for address in leading {
            self.lead(address);
        }
        if !policies.is_empty() {
            self.write_classes_again(&policies);
        }
        self.finish()
    }

    /// Returns the addresses of this node that are closed since the policies of their pod have too
    /// many different lists of ports ([`too_many_lists`](crate::too_many_lists)).
    pub fn beyond(&self) -> impl Iterator<Item = (Direction, IpAddr)> {
        let beyond = self.leads.iter().filter(|(_, leads)| matches!(leads, ChainTarget::TooMany));
        beyond.map(|(key, _)| *key)
    }

    /// Takes which addresses this node's host has ([`World::set_host`]). That changes nothing in the
    /// program: no packet to another address of the Node comes to the chain for the node itself.
    pub fn set_host(&mut self, addresses: BTreeSet<IpAddr>) {
        self.world.set_host(&self.node, addresses);
    }

    /// Closes an address of this node until one pod is known to have it, and no other pod: the pod
    /// starts, and the API may not have said so yet. A caller that knows the pod's object by then
    /// may add the address to it, and need not wait for its status. Settles the program.
    pub fn start(&mut self, address: IpAddr, pod: Uid) -> Vec<Step> {
        self.starting.insert(address, pod);
        self.lead_after_all(address)
    }

    /// Takes back what [`start`](Self::start) said: the pod no longer has the address. Settles the
    /// program.
    pub fn end(&mut self, address: IpAddr) -> Vec<Step> {
        self.starting.remove(&address);
        self.lead_after_all(address)
    }

    /// Settles the program, and leads an address to where it belongs.
    fn lead_after_all(&mut self, address: IpAddr) -> Vec<Step> {
        let mut steps = self.settle();
        self.lead(address);
        steps.extend(self.finish());
        steps
    }

    fn local_addresses(&self) -> BTreeSet<IpAddr> {
        let pods = self.world.pods_on(&self.node);
        pods.flat_map(Pod::own_addresses).copied().collect()
    }

    /// Returns the addresses of this node's pods that some of these policies select, or did before.
    fn selected_by(&self, policies: &BTreeSet<PolicyId>) -> BTreeSet<IpAddr> {
        let subject = |id: &PolicyId| self.world.policy(id)?.subject.as_ref();
        let subjects: Vec<&PodSet> = policies.iter().filter_map(subject).collect();
        let is_selected = |pod: &&Pod| subjects.iter().any(|set| self.world.is_in(pod, set));
        let pods = self.world.pods_on(&self.node).filter(is_selected);
        let mut addresses: BTreeSet<IpAddr> = pods.flat_map(Pod::own_addresses).copied().collect();
        let did = |leads: &ChainTarget| match leads {
            ChainTarget::Class(class) => class.iter().any(|id| policies.contains(id)),
            // Its pod may have to lead elsewhere now.
            ChainTarget::TooMany => true,
            ChainTarget::Unknown => false,
        };
        let before = self.leads.iter().filter(|(_, leads)| did(leads));
        addresses.extend(before.map(|((_, address), _)| *address));
        addresses
    }

    fn emit(&mut self, step: Step) {
        let applied = self.program.apply(&step);
        debug_assert!(applied.is_ok(), "{applied:?}");
        self.steps.push(step);
    }

    fn put_chain(&mut self, name: Name, lines: Vec<Line>) {
        let there = self.program.chains.get(&name);
        if there != Some(&lines) {
            let new = there.is_none();
            self.emit(Step::PutChain { name, lines, new });
        }
    }

    /// Collects what lost its last user, and returns the steps in the order in which they hold.
    fn finish(&mut self) -> Vec<Step> {
        for key in std::mem::take(&mut self.idle_classes) {
            if self.classes.get(&key).is_some_and(|class| class.users == 0)
                && let Some(ClassUse { chains, uses, .. }) = self.classes.remove(&key)
            {
                self.stale.extend(chains);
                self.release(key.0, uses);
            }
        }
        for key in std::mem::take(&mut self.idle_policies) {
            let Some(policy) = self.policies.get_mut(&key) else { continue };
            if policy.jumps == 0
                && let Some(compiled) = policy.compiled.take()
            {
                let main = names::policy(key.0, &self.salt, &key.1);
                self.stale.extend(compiled.chains(&main).into_keys());
                self.release_sets(compiled.about.into_keys());
            }
            let Some(policy) = self.policies.get_mut(&key) else { continue };
            if policy.owners == 0
                && let Some(own) = policy.own.take()
            {
                self.release_sets(own.about.into_keys());
            }
            if self.policies.get(&key).is_some_and(|policy| policy.jumps + policy.owners == 0) {
                self.policies.remove(&key);
            }
        }
        if std::mem::take(&mut self.own_due) {
            self.write_own_node();
        }
        for name in std::mem::take(&mut self.stale) {
            self.emit(Step::RemoveChain { name });
        }
        for hash in std::mem::take(&mut self.idle_sets) {
            if self.sets.get(hash.as_str()).is_some_and(|set| set.users == 0) {
                self.remove_set(&hash);
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
            self.own_due |= direction == Direction::Egress;
            let chain = match &new {
                Some(ChainTarget::Class(class)) => Some(self.use_class(direction, class)),
                Some(ChainTarget::Unknown | ChainTarget::TooMany) => {
                    Some(program::unknown(direction))
                }
                None => None,
            };
            let old = match new {
                Some(new) => self.leads.insert(key, new),
                None => self.leads.remove(&key),
            };
            if let Some(ChainTarget::Class(class)) = old {
                self.release_class(direction, class);
            }
            let before = self.program.verdicts.get(&key).cloned();
            if before != chain {
                self.emit(Step::Verdict { direction, address, before, chain });
            }
        }
    }

    fn where_to(&mut self, direction: Direction, address: IpAddr) -> Option<ChainTarget> {
        let pods = self.world.claimants(address);
        let is_local = |pod: &Pod| pod.node.as_deref() == Some(self.node.as_str());
        if let Some(starting) = self.starting.get(&address)
            && !matches!(pods.as_slice(), [pod] if pod.uid == *starting && is_local(pod))
        {
            return Some(ChainTarget::Unknown);
        }
        if !pods.iter().any(|pod| is_local(pod)) {
            return None;
        }
        let [pod] = pods.as_slice() else { return Some(ChainTarget::Unknown) };
        if self.world.namespace(&pod.namespace).is_none() {
            return Some(ChainTarget::Unknown);
        }
        self.work += u64::try_from(self.world.policies_near(pod).count()).unwrap_or(u64::MAX);
        let mut asked = self.world.asked(pod, direction);
        if merge::too_many_lists(&asked, direction) {
            return Some(ChainTarget::TooMany);
        }
        // A NetworkPolicy has the last word, so nothing is asked after it.
        if asked.iter().any(|policy| policy.tier == Tier::Namespaced) {
            asked.retain(|policy| policy.tier != Tier::Baseline);
        }
        let mut class: Vec<PolicyId> = asked.iter().map(|policy| policy.id.clone()).collect();
        class.sort();
        (!class.is_empty()).then(|| ChainTarget::Class(class.into()))
    }

    fn use_class(&mut self, direction: Direction, class: &Class) -> Name {
        let name = names::class(direction, &class_hash(&self.salt, class));
        let key = (direction, class.clone());
        if let Some(class) = self.classes.get_mut(&key) {
            class.users += 1;
            return name;
        }
        self.classes.insert(key.clone(), ClassUse { users: 1, ..ClassUse::default() });
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
        let (direction, class) = (key.0, &key.1);
        let policies = self.policies_of(class);
        let is_merged = merge::are_many(&policies, direction);
        let mut uses = Uses::default();
        if direction == Direction::Egress {
            let own = policies.into_iter().filter(|policy| policy.decides_about_own_node());
            uses.own.extend(own.map(|policy| policy.id.clone()));
        }
        if !is_merged {
            uses.jumps.extend(class.iter().cloned());
        }
        uses.jumps.iter().for_each(|id| self.jump_to(direction, id));
        uses.own.iter().for_each(|id| self.use_own(direction, id));
        let compiled =
            |id: &PolicyId| self.policies.get(&(direction, id.clone()))?.compiled.as_ref();
        let (hash, policies) = (class_hash(&self.salt, class), self.policies_of(class));
        let ClassChains { chains, about } = match is_merged {
            true => lines::merged_class(direction, &self.salt, &hash, &policies),
            false => lines::class(direction, &self.salt, &hash, &policies, compiled),
        };
        for (hash, about) in &about {
            self.use_set(hash, about);
        }
        uses.sets.extend(about.into_keys());
        let names = chains.keys().cloned().collect();
        for (name, lines) in chains {
            self.put_chain(name, lines);
        }
        let Some(there) = self.classes.get_mut(key) else { return };
        let before = std::mem::replace(&mut there.chains, names);
        self.stale.extend(before.difference(&there.chains).cloned());
        let before = std::mem::replace(&mut there.uses, uses);
        self.release(direction, before);
    }

    /// Returns the policies of a class in the order in which they are asked.
    fn policies_of(&self, class: &Class) -> Vec<&Policy> {
        let mut policies: Vec<_> = class.iter().filter_map(|id| self.world.policy(id)).collect();
        policies.sort_by_key(|policy| policy.order());
        policies
    }

    /// Releases what a class has used.
    fn release(&mut self, direction: Direction, Uses { jumps, own, sets }: Uses) {
        for id in jumps {
            let key = (direction, id);
            if let Some(policy) = self.policies.get_mut(&key) {
                policy.jumps -= 1;
                self.idle_policies.insert(key);
            }
        }
        for id in own {
            let key = (direction, id);
            if let Some(policy) = self.policies.get_mut(&key) {
                policy.owners -= 1;
                self.idle_policies.insert(key);
            }
        }
        self.release_sets(sets);
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

    /// Takes the chains of a policy into use.
    fn jump_to(&mut self, direction: Direction, id: &PolicyId) {
        let there = self.policies.entry((direction, id.clone())).or_default();
        there.jumps += 1;
        if there.compiled.is_none()
            && let Some(policy) = self.world.policy(id)
        {
            let compiled = lines::compile(policy, direction, &self.salt);
            there.compiled = Some(compiled.clone());
            self.put_policy(direction, id, &compiled);
        }
    }

    /// Takes into use what a policy says of this node.
    fn use_own(&mut self, direction: Direction, id: &PolicyId) {
        let there = self.policies.entry((direction, id.clone())).or_default();
        there.owners += 1;
        if there.own.is_none() {
            self.compile_own(direction, id);
        }
    }

    /// Compiles what a policy says of this node, and takes its sets into use in place of those
    /// that it had.
    fn compile_own(&mut self, direction: Direction, id: &PolicyId) {
        let Some(policy) = self.world.policy(id) else { return };
        let own = lines::compile_own(policy, direction, &self.salt);
        for (hash, about) in &own.about {
            self.use_set(hash, about);
        }
        let there = self.policies.get_mut(&(direction, id.clone()));
        if let Some(old) = there.and_then(|there| there.own.replace(own)) {
            self.release_sets(old.about.into_keys());
        }
    }

    fn put_policy(&mut self, direction: Direction, id: &PolicyId, compiled: &CompiledLines) {
        for (hash, about) in &compiled.about {
            self.use_set(hash, about);
        }
        for (name, lines) in compiled.chains(&names::policy(direction, &self.salt, id)) {
            self.put_chain(name, lines);
        }
    }

    /// Swaps what there is of a policy that changed, if it is in use.
    fn compile_again(&mut self, id: &PolicyId) {
        for direction in Direction::ALL {
            let there = self.policies.get(&(direction, id.clone()));
            let Some(PolicyUse { compiled, own, .. }) = there else { continue };
            let (has_chains, has_own) = (compiled.is_some(), own.is_some());
            if has_chains {
                self.compile_chains_again(direction, id);
            }
            if has_own {
                self.compile_own(direction, id);
            }
        }
    }

    fn compile_chains_again(&mut self, direction: Direction, id: &PolicyId) {
        let Some(policy) = self.world.policy(id) else { return };
        let compiled = lines::compile(policy, direction, &self.salt);
        self.put_policy(direction, id, &compiled);
        let main = names::policy(direction, &self.salt, id);
        let kept = compiled.chains(&main);
        let there = self.policies.get_mut(&(direction, id.clone()));
        let Some(old) = there.and_then(|there| there.compiled.replace(compiled)) else { return };
        let gone = old.chains(&main).into_keys().filter(|name| !kept.contains_key(name));
        self.stale.extend(gone);
        self.release_sets(old.about.into_keys());
    }
}

fn class_hash(salt: &str, class: &Class) -> String {
    names::hash(&format!("{salt}{class:?}"))
}
