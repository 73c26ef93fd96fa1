//! All objects that decide which connections are allowed, and how they change.
//!
//! Pods are known by UID, and an address belongs to one pod. If two living pods have one address,
//! the address is closed until one of them has left or is to be deleted: on other nodes it is in no
//! selector's set, and the chain of each class first denies what is in the set of such addresses. A
//! pod whose namespace is not known is closed, and so is the address of a pod that the service does
//! not know yet. The node of such pods still reaches them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::isolation::{self, Isolation};
use crate::labels::Labels;
use crate::object::{NamedPort, Namespace, Node, Pod, Uid};
use crate::policy::{Direction, PodSet, Policy, PolicyId, Scope, Tier};

pub(crate) mod index;

use index::Index;

/// One object that came, changed or went (`None`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A namespace, by its name.
    Namespace(String, Option<Namespace>),
    /// A node, by its name.
    Node(String, Option<Node>),
    /// A pod, by its UID.
    Pod(Uid, Option<Pod>),
    /// A policy.
    Policy(PolicyId, Option<Policy>),
}

impl From<Namespace> for Change {
    fn from(namespace: Namespace) -> Self {
        Change::Namespace(namespace.name.clone(), Some(namespace))
    }
}

impl From<Node> for Change {
    fn from(node: Node) -> Self {
        Change::Node(node.name.clone(), Some(node))
    }
}

impl From<Pod> for Change {
    fn from(pod: Pod) -> Self {
        Change::Pod(pod.uid.clone(), Some(pod))
    }
}

impl From<Policy> for Change {
    fn from(policy: Policy) -> Self {
        Change::Policy(policy.id.clone(), Some(policy))
    }
}

/// What a change may have an effect on.
#[derive(Debug, Default)]
pub(crate) struct ChangeScope {
    /// The addresses of pods that changed themselves, or whose namespace did.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The addresses of nodes that changed.
    pub(crate) node_addresses: BTreeSet<IpAddr>,
    /// The policies that changed.
    pub(crate) policies: BTreeSet<PolicyId>,
}

/// Pods by their labels: pods of one template have the same, and a selector looks at these once.
type ByLabels = BTreeMap<Arc<Labels>, BTreeSet<Uid>>;

/// All objects of one network of a cluster.
///
/// The order in which changes arrive does not matter: a pod of a namespace that is not known yet is
/// closed, and so is an address that two living pods claim.
#[derive(Debug, Clone, Default)]
pub struct World {
    isolation: Option<Isolation>,
    namespaces: BTreeMap<String, Namespace>,
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<Uid, Box<Pod>>,
    policies: BTreeMap<Arc<PolicyId>, Box<Policy>>,
    by_namespace: BTreeMap<Arc<str>, ByLabels>,
    by_node: BTreeMap<Arc<str>, BTreeSet<Uid>>,
    by_address: BTreeSet<(IpAddr, Uid)>,
    /// The pods that have an address in their status which is not theirs alone: that of their host,
    /// or one that they had until they finished.
    by_other_address: BTreeSet<(IpAddr, Uid)>,
    /// The addresses that have several claimants.
    contested: BTreeSet<IpAddr>,
    /// How many changes were made.
    changes: u64,
    /// What many pods have in common, each once.
    labels: ValuePool<Labels>,
    ports: ValuePool<Vec<NamedPort>>,
    nodes_by_address: BTreeMap<IpAddr, BTreeSet<String>>,
    /// A node, and the addresses that its host has.
    host: Option<(String, BTreeSet<IpAddr>)>,
    subjects: Index<Arc<PolicyId>>,
}

impl World {
    /// Creates an empty world in which such namespaces are isolated.
    #[must_use]
    pub fn new(isolation: Option<Isolation>) -> Self {
        World { isolation, ..World::default() }
    }

    /// Creates a world of these objects, in any order.
    #[must_use]
    pub fn of(isolation: Option<Isolation>, objects: impl IntoIterator<Item = Change>) -> Self {
        let mut world = World::new(isolation);
        for object in objects {
            world.apply(object);
        }
        world
    }

    /// Makes a change.
    pub fn change(&mut self, change: Change) {
        self.apply(change);
    }

    /// Makes a change, and says what it touched.
    pub(crate) fn apply(&mut self, change: Change) -> ChangeScope {
        let mut touched = ChangeScope::default();
        self.changes += 1;
        match change {
            Change::Namespace(name, new) => self.change_namespace(name, new, &mut touched),
            Change::Node(name, new) => self.change_node(name, new, &mut touched),
            Change::Pod(uid, new) => {
                self.change_pod(&uid, new, &mut touched);
                for address in &touched.addresses {
                    match self.claimants(*address).len() {
                        0 | 1 => self.contested.remove(address),
                        _ => self.contested.insert(*address),
                    };
                }
            }
            Change::Policy(id, new) => self.change_policy(id, new, &mut touched),
        }
        touched
    }

    fn change_namespace(
        &mut self,
        name: String,
        new: Option<Namespace>,
        touched: &mut ChangeScope,
    ) {
        if self.namespaces.get(&name) == new.as_ref() {
            return;
        }
        let made = new.as_ref().map(|new| isolation::policies(self.isolation.as_ref(), new));
        let mut made: BTreeMap<PolicyId, Policy> =
            made.into_iter().flatten().map(|policy| (policy.id.clone(), policy)).collect();
        for id in [
            PolicyId::Isolation { namespace: name.clone() },
            PolicyId::DefaultDeny { namespace: name.clone() },
        ] {
            let policy = made.remove(&id);
            self.change_policy(id, policy, touched);
        }
        for pod in self.pods_of(&name) {
            touched.addresses.extend(pod.own_addresses());
        }
        match new {
            Some(new) => self.namespaces.insert(name, new),
            None => self.namespaces.remove(&name),
        };
    }

    fn change_node(&mut self, name: String, new: Option<Node>, touched: &mut ChangeScope) {
        let old = match new.clone() {
            Some(new) => self.nodes.insert(name.clone(), new),
            None => self.nodes.remove(&name),
        };
        for address in old.iter().flat_map(|node| &node.addresses) {
            remove(&mut self.nodes_by_address, address, &name);
            touched.node_addresses.insert(*address);
        }
        for address in new.iter().flat_map(|node| &node.addresses) {
            self.nodes_by_address.entry(*address).or_default().insert(name.clone());
            touched.node_addresses.insert(*address);
        }
    }

    fn change_pod(&mut self, uid: &Uid, new: Option<Pod>, touched: &mut ChangeScope) {
        if let Some(old) = self.pods.remove(uid) {
            if let Some(pods) = self.by_namespace.get_mut(&old.namespace) {
                remove(pods, &old.labels, uid);
                if pods.is_empty() {
                    self.by_namespace.remove(&old.namespace);
                }
            }
            if let Some(node) = &old.node {
                remove(&mut self.by_node, node, uid);
            }
            for address in old.own_addresses() {
                self.by_address.remove(&(*address, uid.clone()));
                touched.addresses.insert(*address);
            }
            for address in &old.addresses {
                self.by_other_address.remove(&(*address, uid.clone()));
            }
            self.labels.forget(&old.labels);
            self.ports.forget(&old.ports);
        }
        let Some(mut new) = new else { return };
        new.addresses.shrink_to_fit();
        new.labels = self.labels.share(new.labels);
        new.ports = self.ports.share(new.ports);
        new.namespace = there(&self.by_namespace, new.namespace);
        let alike = self.by_namespace.entry(new.namespace.clone()).or_default();
        alike.entry(new.labels.clone()).or_default().insert(uid.clone());
        new.node = new.node.map(|node| {
            let node = there(&self.by_node, node);
            self.by_node.entry(node.clone()).or_default().insert(uid.clone());
            node
        });
        for address in new.own_addresses() {
            self.by_address.insert((*address, uid.clone()));
            touched.addresses.insert(*address);
        }
        if new.own_addresses().is_empty() {
            let others = new.addresses.iter().map(|address| (*address, uid.clone()));
            self.by_other_address.extend(others);
        }
        self.pods.insert(uid.clone(), Box::new(new));
    }

    fn change_policy(&mut self, id: PolicyId, new: Option<Policy>, touched: &mut ChangeScope) {
        if self.policy(&id) == new.as_ref() {
            return;
        }
        touched.policies.insert(id.clone());
        let id = Arc::new(id);
        if let Some(old) = self.policies.remove(&id)
            && let Some(subject) = &old.subject
        {
            self.subjects.remove(subject, &id);
        }
        let Some(mut new) = new else { return };
        new.shrink_to_fit();
        if let Some(subject) = &new.subject {
            self.subjects.insert(subject, &id);
        }
        self.policies.insert(id, Box::new(new));
    }

    /// Returns a namespace.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.namespaces.get(name)
    }

    /// Returns all namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.namespaces.values()
    }

    /// Returns a node.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// Returns all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// Returns all pods.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().map(|pod| &**pod)
    }

    /// Returns a pod.
    #[must_use]
    pub fn pod(&self, uid: &Uid) -> Option<&Pod> {
        self.pods.get(uid).map(|pod| &**pod)
    }

    /// Returns the pods of a namespace.
    pub fn pods_of(&self, namespace: &str) -> impl Iterator<Item = &Pod> {
        let alike = self.by_namespace.get(namespace).into_iter().flat_map(BTreeMap::values);
        alike.flatten().filter_map(|uid| self.pod(uid))
    }

    /// Returns the labels that pods of a namespace have, equal ones once.
    pub(crate) fn labels_of(&self, namespace: &str) -> impl Iterator<Item = &Labels> {
        let alike = self.by_namespace.get(namespace).into_iter().flat_map(BTreeMap::keys);
        alike.map(|labels| &**labels)
    }

    /// Reports whether a set has a pod.
    pub(crate) fn has_any(&self, set: &PodSet) -> bool {
        let is_judged = |uid: &Uid| self.pod(uid).is_some_and(|pod| !pod.host_network);
        let mut alike = self.places(set).into_iter().flatten();
        alike.any(|(labels, uids)| set.pods.matches(labels) && uids.iter().any(is_judged))
    }

    /// Returns the pods of a node.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Pod> {
        self.by_node.get(node).into_iter().flatten().filter_map(|uid| self.pod(uid))
    }

    /// Returns a policy.
    #[must_use]
    pub fn policy(&self, id: &PolicyId) -> Option<&Policy> {
        self.policies.get(id).map(|policy| &**policy)
    }

    /// Returns all policies.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.policies.values().map(|policy| &**policy)
    }

    /// Returns the pods that have an address: one, or several while a pod that has gone still
    /// counts.
    ///
    /// A pod that is to be deleted counts only if no other one has the address: it may have left.
    #[must_use]
    pub fn claimants(&self, address: IpAddr) -> Vec<&Pod> {
        let all: Vec<&Pod> = self.pods_in(&self.by_address, address).collect();
        let staying: Vec<&Pod> = all.iter().copied().filter(|pod| !pod.terminating).collect();
        if staying.is_empty() { all } else { staying }
    }

    /// Returns the only one of the [claimants](Self::claimants) of an address. An address that
    /// several pods claim is no pod's: it has the rights of none of them.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<&Pod> {
        match self.claimants(address).as_slice() {
            [pod] => Some(pod),
            _ => None,
        }
    }

    /// Reports whether a pod is the [owner](Self::owner) of an address of its own.
    pub(crate) fn owns(&self, pod: &Pod, address: IpAddr) -> bool {
        if self.is_contested(address) {
            return false;
        }
        let mut all = self.pods_in(&self.by_address, address);
        !pod.terminating || all.all(|there| there.terminating)
    }

    /// Reports whether several pods claim an address.
    #[must_use]
    pub fn is_contested(&self, address: IpAddr) -> bool {
        self.contested.contains(&address)
    }

    /// Returns the addresses that several pods claim.
    pub(crate) fn contested(&self) -> impl Iterator<Item = IpAddr> {
        self.contested.iter().copied()
    }

    /// Returns the pods that a reader may take for the owner of an address, though they are not:
    /// those in the host's network, those that have finished, and those that are to be deleted
    /// while another pod has the address already.
    pub fn others_at(&self, address: IpAddr) -> impl Iterator<Item = &Pod> {
        let claimants = self.claimants(address);
        let is_other = move |pod: &&Pod| claimants.iter().all(|there| there.uid != pod.uid);
        let leaving = self.pods_in(&self.by_address, address).filter(is_other);
        self.pods_in(&self.by_other_address, address).chain(leaving)
    }

    fn pods_in<'a>(
        &'a self,
        index: &'a BTreeSet<(IpAddr, Uid)>,
        address: IpAddr,
    ) -> impl Iterator<Item = &'a Pod> {
        let from = index.range((address, Uid::from(""))..);
        let uids = from.take_while(move |(there, _)| *there == address).map(|(_, uid)| uid);
        uids.filter_map(|uid| self.pod(uid))
    }

    /// Returns how many changes were made: what was said of a world holds until the next one.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the nodes that have an address.
    pub fn nodes_at(&self, address: IpAddr) -> impl Iterator<Item = &Node> {
        let names = self.nodes_by_address.get(&address).into_iter().flatten();
        names.filter_map(|name| self.nodes.get(name))
    }

    /// Takes which addresses the host of a node has. A Node may have others, such as one that a cloud
    /// translates: packets between these and the node's pods pass the host like those of any other
    /// peer.
    pub fn set_host(&mut self, node: &str, addresses: BTreeSet<IpAddr>) {
        let host = Some((node.to_owned(), addresses));
        if self.host != host {
            self.host = host;
            self.changes += 1;
        }
    }

    /// Reports whether the host of a node has an address of the Node. A host of which nothing is
    /// known has all of them.
    #[must_use]
    pub fn host_has(&self, node: &str, address: IpAddr) -> bool {
        match &self.host {
            Some((name, addresses)) if name == node => addresses.contains(&address),
            _ => true,
        }
    }

    /// Reports whether a pod is in a set.
    #[must_use]
    pub fn is_in(&self, pod: &Pod, set: &PodSet) -> bool {
        !pod.host_network && set.matches(pod, self.namespace(&pod.namespace))
    }

    /// Returns the addresses of the pods in a set, without those that other pods claim too.
    #[must_use]
    pub fn addresses_in(&self, set: &PodSet) -> BTreeSet<IpAddr> {
        let mut addresses = BTreeSet::new();
        for all in self.places(set) {
            let alike = all.iter().filter(|(labels, _)| set.pods.matches(labels));
            let uids = alike.flat_map(|(_, uids)| uids);
            for pod in uids.filter_map(|uid| self.pod(uid)) {
                let own = pod.own_addresses().iter().copied();
                addresses.extend(own.filter(|address| self.owns(pod, *address)));
            }
        }
        addresses
    }

    /// Returns how many different labels [`addresses_in`](Self::addresses_in) looks at.
    pub(crate) fn labels_near(&self, set: &PodSet) -> usize {
        self.places(set).into_iter().map(BTreeMap::len).sum()
    }

    /// Returns the pods of the namespaces that a set is about.
    fn places(&self, set: &PodSet) -> Vec<&ByLabels> {
        let is_meant = |(name, _): &(&Arc<str>, &ByLabels)| {
            let labels = self.namespace(name).map(|namespace| &namespace.labels);
            set.has_namespace(name, labels)
        };
        match &set.namespaces {
            Scope::Own(name) => self.by_namespace.get(name.as_str()).into_iter().collect(),
            Scope::Matching(_) => {
                self.by_namespace.iter().filter(is_meant).map(|(_, all)| all).collect()
            }
        }
    }

    /// Returns the policies that may select a pod.
    pub(crate) fn policies_near(&self, pod: &Pod) -> impl Iterator<Item = &Policy> {
        let near = self.subjects.near(pod, self.namespace(&pod.namespace));
        near.into_iter().filter_map(|id| self.policy(id))
    }

    /// Returns the policies that select a pod for a direction, in the order in which they are
    /// asked.
    #[must_use]
    pub fn asked(&self, pod: &Pod, direction: Direction) -> Vec<&Policy> {
        let near = self.policies_near(pod);
        let mut asked: Vec<&Policy> = near
            .filter(|policy| policy.rules(direction).is_some())
            .filter(|policy| policy.subject.as_ref().is_some_and(|set| self.is_in(pod, set)))
            .collect();
        asked.sort_by_key(|policy| policy.order());
        asked
    }

    /// Says which ClusterNetworkPolicies share a tier and a priority: their authors cannot choose
    /// which of them is asked first.
    #[must_use]
    pub fn shared_priorities(&self) -> Vec<String> {
        let mut places: BTreeMap<(Tier, u16), Vec<&PolicyId>> = BTreeMap::new();
        for policy in self.policies() {
            if matches!(policy.id, PolicyId::Cluster { .. }) {
                places.entry((policy.tier, policy.priority)).or_default().push(&policy.id);
            }
        }
        let shared = places.into_iter().filter(|(_, ids)| ids.len() > 1);
        let sentence = |((tier, priority), ids): ((Tier, u16), Vec<&PolicyId>)| {
            let names: Vec<String> = ids.iter().map(ToString::to_string).collect();
            format!(
                "{} have priority {priority} in tier {tier:?}: they are asked in the order of their names",
                names.join(" and ")
            )
        };
        shared.map(sentence).collect()
    }
}

/// Values, each kept once, with how many pods have it.
#[derive(Debug, Clone)]
struct ValuePool<T>(BTreeMap<Arc<T>, usize>);

impl<T> Default for ValuePool<T> {
    fn default() -> Self {
        ValuePool(BTreeMap::new())
    }
}

impl<T: Ord> ValuePool<T> {
    /// Counts a value, and returns the equal one that is there already.
    fn share(&mut self, value: Arc<T>) -> Arc<T> {
        let there = self.0.get_key_value(&value).map(|(there, _)| there.clone());
        let value = there.unwrap_or(value);
        *self.0.entry(value.clone()).or_default() += 1;
        value
    }

    /// Drops a value that no other pod has.
    fn forget(&mut self, value: &Arc<T>) {
        if let Some(count) = self.0.get_mut(value) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(value);
            }
        }
    }
}

/// Returns a key as it is in a map, so that all pods share it.
fn there<V>(map: &BTreeMap<Arc<str>, V>, key: Arc<str>) -> Arc<str> {
    map.get_key_value(&key).map_or(key, |(there, _)| there.clone())
}

fn remove<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = map.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            map.remove(key);
        }
    }
}
