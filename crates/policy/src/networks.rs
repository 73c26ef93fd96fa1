//! The further networks of pods, as one node sees them.
//!
//! A network is a [`World`] of its own, with the pods that are on it, their addresses there, and
//! the MultiNetworkPolicies that are for it. It has a compiler of its own, whose names are this
//! network's alone. So the programs of all networks stand in one table, beside that of the pods'
//! own network, which knows nothing of them.
//!
//! Two networks may have the same addresses. So an address leads to a chain only at one interface
//! of the node ([`Link`]): the one at which the packet filter sees the packets of the pod. An
//! attachment whose pod or whose network is not known is closed there. So is an address that two
//! attachments would lead to different chains.
//!
//! Packets of macvlan, SR-IOV and their kind never pass the node. Such an attachment is judged in the
//! container's own namespace, by a program of its own (`inside`).
//!
//! The caller says, of every object, what is so now, and gets back the steps that follow. It makes
//! them in their order, together with those of the pods' own network.
//!
//! `eth0` is on the pod's own network, every other interface on a further one. A network that is
//! seen at several interfaces (a bridge that filters VLANs, a VRF of the host) is refused by the
//! plugin. Two networks of one node with the same addresses share connection tracking, so a
//! connection is cut only if every network that has its ends here forbids it. A host on a further
//! network that has the address of a pod of this node is judged, at its end, as that pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::compile::Compiler;
use crate::evaluate::verdict;
use crate::multi_policy::MultiPolicy;
use crate::object::{Namespace, Pod, Uid};
use crate::policy::{Direction, PolicyId, Traffic};
use crate::program::{self, Link, Name, Program, Step};
use crate::world::{Change, World};

mod inside;

/// What a pod says that it has on a further network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkInterface {
    /// The network, as `NAMESPACE/NAME`.
    pub network: String,
    /// The pod's interface.
    pub interface: String,
    /// The pod's addresses there.
    pub addresses: Vec<IpAddr>,
}

/// An attachment of this node to a further network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The network; `None` while it is not known.
    pub network: Option<String>,
    /// The pod; `None` while it is not known.
    pub pod: Option<Uid>,
    /// The interface of this node at which the packet filter sees its packets. For an attachment
    /// that is judged inside, it is the container's interface.
    pub interface: String,
    /// Its packets do not pass the node: they are judged in the container's namespace.
    pub inside: bool,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

impl Attachment {
    /// Returns its addresses with the interface of this node; none if it is judged inside.
    pub fn links(&self) -> impl Iterator<Item = Link> {
        let at = |address: &IpAddr, interface: &str| Link {
            interface: interface.to_owned(),
            address: *address,
        };
        let here: &[IpAddr] = if self.inside { &[] } else { &self.addresses };
        here.iter().map(move |address| at(address, &self.interface))
    }

    fn has(&self, network: &str, address: IpAddr) -> bool {
        self.network.as_deref() == Some(network) && self.addresses.contains(&address)
    }
}

#[derive(Debug)]
struct KnownPod {
    pod: Pod,
    says: Vec<NetworkInterface>,
}

impl KnownPod {
    /// Returns the addresses that the pod says it has, each with its network.
    fn said(&self) -> impl Iterator<Item = (&str, IpAddr)> {
        self.says
            .iter()
            .flat_map(|on| on.addresses.iter().map(move |address| (on.network.as_str(), *address)))
    }
}

/// All further networks that policies are for, or that attachments of this node are on.
#[derive(Debug, Default)]
pub struct Networks {
    node: String,
    networks: BTreeMap<String, Compiler>,
    policies: BTreeMap<PolicyId, MultiPolicy>,
    /// The pods that are on some further network, or may be.
    pods: BTreeMap<Uid, KnownPod>,
    /// The attachments of this node, each by the key that the caller gave it.
    attachments: BTreeMap<String, Attachment>,
    /// Where addresses lead in the packet filter.
    links: BTreeMap<(Direction, Link), Name>,
    /// The program of a container may have changed in more than elements of sets.
    moved: bool,
}

impl Networks {
    /// Creates the further networks of a node; nothing is known of them yet.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Networks { node: node.to_owned(), ..Networks::default() }
    }

    // What is so now. `world` is that of the pods' own network.

    /// A policy came, changed or went. Programs follow when they are [settled](Self::settle).
    pub fn policy(&mut self, id: &PolicyId, policy: Option<MultiPolicy>, world: &World) {
        if self.policies.get(id) == policy.as_ref() {
            return;
        }
        let needed: Vec<String> =
            policy.iter().flat_map(|policy| policy.networks.iter().cloned()).collect();
        match policy {
            Some(policy) => self.policies.insert(id.clone(), policy),
            None => self.policies.remove(id),
        };
        for name in &needed {
            self.need(name, world);
        }
        let networks: Vec<String> = self.networks.keys().cloned().collect();
        for name in networks {
            let here = self.policies.get(id).filter(|policy| policy.is_for(&name));
            let here = here.map(|policy| policy.policy.clone());
            self.follow(&name, Change::Policy(id.clone(), here));
        }
        self.forget_unneeded();
    }

    /// Returns the steps to the programs of what is so now.
    pub fn settle(&mut self) -> Vec<Step> {
        let due = self.networks.iter().filter(|(_, compiler)| !compiler.is_settled());
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        let mut steps = Vec::new();
        for network in due {
            self.settle_network(&network, &mut steps);
        }
        steps
    }

    /// A namespace came, changed or went.
    pub fn namespace(&mut self, name: &str, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        let new = world.namespace(name).map(plain);
        let concerns = |compiler: &Compiler| {
            let there = compiler.world();
            there.namespace(name).is_some() || there.pods_of(name).next().is_some()
        };
        let all = self.networks.iter().filter(|(_, compiler)| concerns(compiler));
        let networks: Vec<String> = all.map(|(network, _)| network.clone()).collect();
        for network in networks {
            self.follow(&network, Change::Namespace(name.to_owned(), new.clone()));
            self.settle_network(&network, &mut steps);
        }
        steps
    }

    /// A pod came, changed or went, with what it says of further networks. A pod of this node may
    /// say nothing yet.
    pub fn pod(
        &mut self,
        uid: &Uid,
        pod: Option<(Pod, Vec<NetworkInterface>)>,
        world: &World,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut networks = self.networks_of(uid);
        let old = match pod {
            Some((pod, says)) => self.pods.insert(uid.clone(), KnownPod { pod, says }),
            None => self.pods.remove(uid),
        };
        networks.extend(self.networks_of(uid));
        let sharing = self.sharing(old.iter().chain(self.pods.get(uid)));
        for network in networks {
            self.put(&network, uid, world);
            for other in sharing.iter().filter(|other| *other != uid) {
                self.put(&network, other, world);
            }
            self.settle_network(&network, &mut steps);
        }
        steps
    }

    /// Returns the pods of this node that say that they have an address of one of these pods, if
    /// those are of this node.
    fn sharing<'k>(&'k self, pods: impl Iterator<Item = &'k KnownPod>) -> BTreeSet<Uid> {
        let is_here = |known: &&KnownPod| known.pod.node.as_deref() == Some(self.node.as_str());
        let said: BTreeSet<(&str, IpAddr)> =
            pods.filter(is_here).flat_map(KnownPod::said).collect();
        if said.is_empty() {
            return BTreeSet::new();
        }
        let all = self.pods.iter().filter(|(_, known)| is_here(known));
        let sharing = all.filter(|(_, known)| known.said().any(|one| said.contains(&one)));
        sharing.map(|(uid, _)| uid.clone()).collect()
    }

    /// Reports whether a pod contests an address of another one's attachment: other nodes take the
    /// address for the pod's, by the statuses of the pods of this node.
    fn contests(&self, network: &str, uid: &Uid, address: IpAddr) -> bool {
        let has = self.attachments.values().filter(|one| one.has(network, address));
        let owners: BTreeSet<Option<&Uid>> = has.map(|one| one.pod.as_ref()).collect();
        let owned_by_other =
            owners.len() == 1 && owners.iter().all(|owner| owner.is_some_and(|owner| owner != uid));
        let is_here = |known: &&KnownPod| known.pod.node.as_deref() == Some(self.node.as_str());
        let says = |known: &&KnownPod| {
            let living = !known.pod.finished && !known.pod.host_network;
            living && known.said().any(|said| said == (network, address))
        };
        let all: Vec<&KnownPod> = self.pods.values().filter(is_here).filter(says).collect();
        let is_one_staying = all.iter().any(|known| !known.pod.terminating);
        let mut of_pod = all.iter().filter(|known| known.pod.uid == *uid);
        owned_by_other && of_pod.any(|known| !(known.pod.terminating && is_one_staying))
    }

    /// An attachment of this node came, changed or went. `key` is the caller's name for it.
    pub fn attachment(
        &mut self,
        key: &str,
        attachment: Option<Attachment>,
        world: &World,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        let old = self.attachments.get(key).cloned();
        let leads = |link: Link| {
            let there = |way: &Direction| self.links.get(&(*way, link.clone())).cloned();
            Direction::ALL.iter().all(|way| there(way) == self.where_to(*way, &link))
        };
        if old == attachment && old.iter().flat_map(Attachment::links).all(leads) {
            return steps;
        }
        match attachment.clone() {
            Some(attachment) => self.attachments.insert(key.to_owned(), attachment),
            None => self.attachments.remove(key),
        };
        self.moved |= attachment.iter().chain(&old).any(|one| one.inside);
        // Where it leads to comes first, and what it led to goes last.
        let both = [attachment, old];
        let [new_links, old_links]: [BTreeSet<Link>; 2] =
            [0, 1].map(|which: usize| both[which].iter().flat_map(Attachment::links).collect());
        for link in old_links.difference(&new_links) {
            self.lead(link, &mut steps);
        }
        if let Some(name) = both[0].as_ref().and_then(|new| new.network.as_ref()) {
            self.need(name, world);
            self.lead_on(name, both[0].as_ref(), world, &mut steps);
        }
        for link in &new_links {
            self.lead(link, &mut steps);
        }
        if let Some(name) = both[1].as_ref().and_then(|old| old.network.as_ref()) {
            self.lead_on(name, both[1].as_ref(), world, &mut steps);
        }
        self.forget_unneeded();
        steps
    }

    /// The plugin has closed an address in the packet filter: it no longer leads to another chain.
    pub fn closed(&mut self, link: &Link) {
        for direction in Direction::ALL {
            self.links.insert((direction, link.clone()), program::unknown(direction));
        }
    }

    // What is known.

    /// Returns the networks, each with its objects.
    pub fn worlds(&self) -> impl Iterator<Item = (&str, &World)> {
        self.networks.iter().map(|(name, compiler)| (name.as_str(), compiler.world()))
    }

    /// Returns the objects of a network, if it is one of these.
    #[must_use]
    pub fn world(&self, network: &str) -> Option<&World> {
        self.networks.get(network).map(Compiler::world)
    }

    /// Returns the addresses that are closed as [`Compiler::beyond`] says, with what is known on
    /// their network.
    pub fn beyond(&self) -> impl Iterator<Item = (&World, Direction, IpAddr)> {
        self.networks.values().flat_map(|compiler| {
            compiler.beyond().map(|(direction, address)| (compiler.world(), direction, address))
        })
    }

    /// Returns the programs of the networks: their chains and sets.
    pub fn programs(&self) -> impl Iterator<Item = &Program> {
        self.networks.values().map(Compiler::program)
    }

    /// Returns all policies.
    pub fn policies(&self) -> impl Iterator<Item = &MultiPolicy> {
        self.policies.values()
    }

    /// Returns a policy.
    #[must_use]
    pub fn policy_of(&self, id: &PolicyId) -> Option<&MultiPolicy> {
        self.policies.get(id)
    }

    /// Returns the attachments of this node.
    pub fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.attachments.values()
    }

    /// Returns the chain to which an address leads.
    #[must_use]
    pub fn leads(&self, direction: Direction, link: &Link) -> Option<&Name> {
        self.links.get(&(direction, link.clone()))
    }

    /// Reports whether an address is closed, since too little is known of it.
    #[must_use]
    pub fn is_closed(&self, link: &Link) -> bool {
        Direction::ALL.into_iter().any(|direction| {
            self.leads(direction, link).is_some_and(|chain| *chain == program::unknown(direction))
        })
    }

    /// Returns the network at an interface of this node that has an address, if there is one.
    #[must_use]
    pub fn network_at(&self, interface: &str, address: IpAddr) -> Option<&str> {
        let is_there = |one: &&Attachment| {
            !one.inside && one.interface == interface && one.addresses.contains(&address)
        };
        self.attachments.values().find(is_there)?.network.as_deref()
    }

    /// Says of each network that has one of these ends on this node whether its policies forbid the
    /// connection there. Those that are judged inside have no connections on the node.
    #[must_use]
    pub fn forbid(&self, source: IpAddr, destination: IpAddr, traffic: Traffic) -> Vec<bool> {
        let ends = [(Direction::Egress, source), (Direction::Ingress, destination)];
        let mut said = Vec::new();
        for (name, compiler) in &self.networks {
            let is_here = |(_, end): &(Direction, IpAddr)| {
                self.attachments.values().any(|one| !one.inside && one.has(name, *end))
            };
            let here: Vec<_> = ends.into_iter().filter(is_here).collect();
            if here.is_empty() {
                continue;
            }
            let judged = verdict(compiler.world(), source, destination, traffic);
            said.push(here.into_iter().any(|(direction, end)| {
                let chain = compiler.program().verdicts.get(&(direction, end));
                chain.is_some_and(|chain| {
                    *chain == program::unknown(direction)
                        || !judged.side(direction).decision.allows()
                })
            }));
        }
        said
    }

    /// Adds everything to the program of the pods' own network.
    pub fn add_to(&self, program: &mut Program) {
        program.links.clone_from(&self.links);
        for own in self.programs() {
            let chains = own.chains.iter().map(|(name, lines)| (name.clone(), lines.clone()));
            program.chains.extend(chains);
            let sets = own.sets.iter().map(|(name, set)| (name.clone(), set.clone()));
            program.sets.extend(sets);
        }
    }

    /// Reports whether there is nothing that [`add_to`](Self::add_to) would add.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.links.is_empty() && self.networks.is_empty()
    }

    // How it follows.

    /// Makes a network that was not there, with all that is known of it.
    fn need(&mut self, name: &str, world: &World) {
        if self.networks.contains_key(name) {
            return;
        }
        let compiler = Compiler::of_network(World::default(), &self.node, name);
        self.networks.insert(name.to_owned(), compiler);
        let pods: Vec<Uid> = self.pods.keys().cloned().collect();
        for uid in pods {
            self.put(name, &uid, world);
        }
        let here = self.policies.values().filter(|policy| policy.is_for(name));
        let policies: Vec<Change> = here.map(|policy| policy.policy.clone().into()).collect();
        for change in policies {
            self.follow(name, change);
        }
    }

    /// Drops the networks that no attachment and no policy needs. Without an attachment, such a
    /// program has no chains.
    fn forget_unneeded(&mut self) {
        let attachments = self.attachments.values().filter_map(|one| one.network.as_ref());
        let policies = self.policies.values().flat_map(|policy| &policy.networks);
        let needed: BTreeSet<String> = attachments.chain(policies).cloned().collect();
        self.networks.retain(|name, _| needed.contains(name));
    }

    fn networks_of(&self, uid: &Uid) -> BTreeSet<String> {
        let says = self.pods.get(uid).into_iter().flat_map(|known| &known.says);
        let here = self.attachments.values().filter(|one| one.pod.as_ref() == Some(uid));
        let here = here.filter_map(|one| one.network.clone());
        says.map(|on| on.network.clone()).chain(here).collect()
    }

    /// Returns a pod as it is on a network, if it is.
    fn pod_on(&self, network: &str, uid: &Uid) -> Option<Pod> {
        let KnownPod { pod, says } = self.pods.get(uid)?;
        let mut addresses: Vec<IpAddr> = Vec::new();
        let here = self.attachments.values();
        let own = here.filter(|one| one.pod.as_ref() == Some(uid));
        for one in own.filter(|one| one.network.as_deref() == Some(network)) {
            addresses.extend(&one.addresses);
        }
        let is_here = !addresses.is_empty();
        let mut contests = false;
        for on in says.iter().filter(|on| on.network == network) {
            // If an attachment of this node has the address, the attachment's pod has it or, while
            // that is not known, no pod. The status of another pod of this node counts as long as
            // other nodes go by it: then the two contest it.
            let of_others =
                |address: &IpAddr| self.attachments.values().any(|one| one.has(network, *address));
            for address in &on.addresses {
                let contested = self.contests(network, uid, *address);
                contests |= contested;
                if contested || !of_others(address) {
                    addresses.push(*address);
                }
            }
        }
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.is_empty() {
            return None;
        }
        let mut pod = pod.clone();
        pod.addresses = addresses;
        // One that is to be deleted would give way, and other nodes know nothing of that yet.
        pod.terminating &= !contests;
        // Without an attachment that is known, the packet filter here cannot judge it.
        pod.node = pod.node.filter(|node| is_here || **node != *self.node);
        Some(pod)
    }

    /// Puts a pod into a network as it is there now, or takes it out.
    fn put(&mut self, network: &str, uid: &Uid, world: &World) {
        let pod = self.pod_on(network, uid);
        let Some(compiler) = self.networks.get(network) else { return };
        let there = compiler.world();
        if there.pod(uid) == pod.as_ref() {
            return;
        }
        if let Some(pod) = &pod
            && there.namespace(&pod.namespace).is_none()
            && let Some(namespace) = world.namespace(&pod.namespace)
        {
            self.follow(network, plain(namespace).into());
        }
        self.follow(network, Change::Pod(uid.clone(), pod));
    }

    /// Follows an attachment that came to a network, or went.
    fn lead_on(
        &mut self,
        network: &str,
        attachment: Option<&Attachment>,
        world: &World,
        steps: &mut Vec<Step>,
    ) {
        let Some(attachment) = attachment else { return };
        for address in &attachment.addresses {
            let has = self.attachments.values().filter(|one| one.has(network, *address));
            let pods: BTreeSet<Option<&Uid>> = has.map(|one| one.pod.as_ref()).collect();
            let wanted: Option<Uid> = match pods.iter().next() {
                None => None,
                // If several pods have the address, it is not known which of them sends.
                Some(Some(uid)) if pods.len() == 1 => Some((*uid).clone()),
                Some(_) => Some(Arc::from("")),
            };
            self.change(network, steps, |compiler| match wanted {
                Some(uid) => compiler.start(*address, uid),
                None => compiler.end(*address),
            });
        }
        // A pod whose status has such an address may have got it now, or have lost it.
        let concerns = |known: &KnownPod| {
            known
                .says
                .iter()
                .flat_map(|on| &on.addresses)
                .any(|it| attachment.addresses.contains(it))
        };
        let all = self.pods.iter().filter(|(_, known)| concerns(known));
        let mut pods: BTreeSet<Uid> = all.map(|(uid, _)| uid.clone()).collect();
        pods.extend(attachment.pod.clone());
        for uid in pods {
            self.put(network, &uid, world);
        }
        self.settle_network(network, steps);
    }

    /// Makes a change of a network's objects.
    fn follow(&mut self, network: &str, change: Change) {
        if let Some(compiler) = self.networks.get_mut(network) {
            compiler.change(change);
        }
    }

    fn settle_network(&mut self, network: &str, steps: &mut Vec<Step>) {
        self.change(network, steps, Compiler::settle);
    }

    /// Changes a network's program. A link leads where the verdict of its address leads.
    fn change(
        &mut self,
        network: &str,
        steps: &mut Vec<Step>,
        change: impl FnOnce(&mut Compiler) -> Vec<Step>,
    ) {
        let Some(compiler) = self.networks.get_mut(network) else { return };
        let mut made = Vec::new();
        let mut led: BTreeSet<IpAddr> = BTreeSet::new();
        let mut moved = false;
        for step in change(compiler) {
            moved |= !matches!(step, Step::AddElement { .. } | Step::RemoveElement { .. });
            match step {
                Step::Verdict { address, .. } => {
                    led.insert(address);
                }
                other => made.push(other),
            }
        }
        let all = self.attachments.values();
        let here = all.filter(|one| one.network.as_deref() == Some(network));
        self.moved |= moved && here.clone().any(|one| one.inside);
        let links = here.flat_map(Attachment::links).filter(|link| led.contains(&link.address));
        let links: BTreeSet<Link> = links.collect();
        for link in &links {
            self.lead(link, &mut made);
        }
        program::sort(&mut made);
        steps.extend(made);
    }

    /// Leads an address to where it belongs now.
    fn lead(&mut self, link: &Link, steps: &mut Vec<Step>) {
        for direction in Direction::ALL {
            let chain = self.where_to(direction, link);
            let key = (direction, link.clone());
            let before = match chain.clone() {
                Some(chain) => self.links.insert(key, chain),
                None => self.links.remove(&key),
            };
            if before != chain {
                steps.push(Step::Link { direction, link: link.clone(), before, chain });
            }
        }
    }

    fn where_to(&self, direction: Direction, link: &Link) -> Option<Name> {
        let has = |one: &&Attachment| {
            !one.inside && one.interface == link.interface && one.addresses.contains(&link.address)
        };
        let mut found: BTreeSet<Option<Name>> = BTreeSet::new();
        for attachment in self.attachments.values().filter(has) {
            let network = attachment.network.as_ref().and_then(|name| self.networks.get(name));
            found.insert(match network {
                Some(compiler) => {
                    let chain = compiler.program().verdicts.get(&(direction, link.address));
                    Some(chain.map_or_else(|| program::OPEN.to_owned(), Clone::clone))
                }
                None => Some(program::unknown(direction)),
            });
        }
        match found.len() {
            0 | 1 => found.pop_first().flatten(),
            _ => Some(program::unknown(direction)),
        }
    }
}

/// Returns a namespace without what is about the pods' own network only.
fn plain(namespace: &Namespace) -> Namespace {
    Namespace { default_deny: false, faults: Vec::new(), ..namespace.clone() }
}
