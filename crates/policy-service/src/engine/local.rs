//! The pods of this node: what a source says of them, with what records add.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use node_api::policy::{Owner, StartRequest};
use policy::labels::Labels;
use policy::object::Uid;
use policy::program::Link;
use policy::{Change, Namespace, Pod, Step};

use super::super::kinds::{Key, Kind, Meta};
use super::super::lists::Origin;
use super::super::records::{Attachment, Id, RecordsChange, id};
use super::{Engine, Local, Phase, nobody};

/// The namespace of containers whose runtime names no pod.
const DEFAULT: &str = "default";

impl Engine {
    /// Takes a pod as its source says it.
    pub(super) fn take_pod(&mut self, pod: Pod, meta: Meta) {
        let uid = pod.uid.clone();
        let further = meta.further.clone();
        self.take_own(pod, meta);
        self.take_further(&uid, further);
    }

    /// Takes a pod as it is on its own network.
    fn take_own(&mut self, pod: Pod, meta: Meta) {
        let uid = pod.uid.clone();
        let Meta { static_uid, further, may_undo, .. } = meta;
        if self.lists.holds(Kind::Pods) {
            self.yield_addresses(&pod);
        }
        if pod.node.as_deref() != Some(self.node.as_str()) {
            let addresses = self.addresses_of(&uid);
            let old = self.local.remove(&uid);
            self.put_remote(pod);
            if let Some(Local { pod, .. }) = old {
                self.lead(addresses.iter().copied());
                self.put_namesakes(&(pod.namespace.clone(), pod.name.clone()));
                self.put_sharing(addresses.iter().chain(pod.own_addresses()).copied());
            }
            return;
        }
        self.withheld.remove(&uid);
        let is_known = |known: &Local| {
            known.pod == pod
                && known.static_uid == static_uid
                && known.further == further
                && known.may_undo == may_undo
        };
        if self.local.get(&uid).is_some_and(is_known) {
            return;
        }
        let name = (pod.namespace.clone(), pod.name.clone());
        let mut addresses: BTreeSet<IpAddr> = pod.own_addresses().iter().copied().collect();
        let local = Local { pod, static_uid, further, may_undo };
        if let Some(old) = self.local.insert(uid.clone(), local) {
            addresses.extend(old.pod.own_addresses());
        }
        self.put_namesakes(&name);
        addresses.extend(self.addresses_of(&uid));
        self.put_sharing(addresses);
    }

    /// Puts a pod of another node into the world. An address that an attachment here has stays with
    /// that one's pod, whatever other nodes say.
    fn put_remote(&mut self, pod: Pod) {
        let is_ours = |address: &IpAddr| {
            self.records.owner_of(*address).is_some() && self.wanted(*address) != nobody()
        };
        let ours: BTreeSet<IpAddr> =
            pod.own_addresses().iter().filter(|address| is_ours(address)).copied().collect();
        let uid = pod.uid.clone();
        let mut left = pod.clone();
        left.addresses.retain(|address| !ours.contains(address));
        let before: BTreeSet<String> = self.claim_of(&uid).into_iter().collect();
        match ours.is_empty() {
            true => self.withheld.remove(&uid),
            false => self.withheld.insert(uid.clone(), pod),
        };
        if self.world().pod(&uid) != Some(&left) {
            self.change(left.into());
        }
        if let Some(claim) = self.claim_of(&uid).filter(|claim| !before.contains(claim)) {
            self.news(true, claim);
        }
    }

    /// Says that a pod of another node says that it has addresses of attachments here, if it does.
    fn claim_of(&self, uid: &Uid) -> Option<String> {
        let pod = self.withheld.get(uid)?;
        let there = self.world().pod(uid).map(|there| there.addresses.as_slice());
        let is_ours = |address: &&IpAddr| there.is_some_and(|there| !there.contains(address));
        let of_whom = |address: &IpAddr| {
            let owner = self.records.owner_of(*address)?;
            Some(format!("{address}, which {} has on this node", owner.name()))
        };
        let ours = pod.own_addresses().iter().filter(is_ours);
        let ours: Vec<String> = ours.filter_map(of_whom).collect();
        (!ours.is_empty()).then(|| {
            format!(
                "pod {} of node {} says that it has {}: here it does not count",
                pod.full_name(),
                pod.node.as_deref().unwrap_or("(none)"),
                ours.join(" and ")
            )
        })
    }

    /// Says which pods of other nodes say that they have addresses of attachments here.
    pub(super) fn claims_of_others(&self) -> impl Iterator<Item = String> {
        self.withheld.keys().filter_map(|uid| self.claim_of(uid))
    }

    /// Puts the pods of other nodes into the world that say that they have an address.
    fn put_remotes_at(&mut self, address: IpAddr) {
        let node = Some(self.node.as_str());
        let withheld =
            self.withheld.values().filter(|pod| pod.own_addresses().contains(&address)).cloned();
        let world = self.world();
        let there = world.claimants(address).into_iter().chain(world.others_at(address));
        let there = there.filter(|pod| pod.own_addresses().contains(&address));
        let there = there.filter(|pod| pod.node.as_deref() != node).map(|pod| {
            // What it says besides may be withheld.
            self.withheld.get(&pod.uid).unwrap_or(pod).clone()
        });
        let pods: Vec<Pod> = withheld.chain(there).collect();
        for pod in pods {
            self.put_remote(pod);
        }
    }

    /// Puts the pods of this node into the world that have one of these addresses by their status.
    pub(super) fn put_sharing(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        let addresses: BTreeSet<IpAddr> = addresses.into_iter().collect();
        let has = |local: &&Local| local.pod.addresses.iter().any(|at| addresses.contains(at));
        let pods: Vec<Uid> =
            self.local.values().filter(has).map(|local| local.pod.uid.clone()).collect();
        for uid in pods {
            self.put_local(&uid);
        }
    }

    /// Reports whether other nodes take an address for that of a pod of this node, by the statuses
    /// of pods. They do so until the status of another pod has it, or the pod is gone.
    fn has_by_status(&self, address: IpAddr, uid: &Uid) -> bool {
        let has = |local: &&Local| local.pod.own_addresses().contains(&address);
        let all: Vec<&Pod> = self.local.values().filter(has).map(|local| &local.pod).collect();
        let is_one_staying = all.iter().any(|pod| !pod.terminating);
        let is_this = |pod: &&Pod| pod.uid == *uid && !(pod.terminating && is_one_staying);
        all.into_iter().any(|pod| is_this(&pod))
    }

    /// A pod that is only kept loses the addresses that another one has by now.
    fn yield_addresses(&mut self, pod: &Pod) {
        let mut gone = Vec::new();
        for address in pod.own_addresses() {
            let others = self.world().claimants(*address).into_iter().map(|other| &other.uid);
            let keys = others.filter(|uid| **uid != pod.uid).map(|uid| Key::Pod(uid.clone()));
            gone.extend(keys.filter(|key| self.lists.is_held(Kind::Pods, key)));
        }
        for key in gone {
            self.lists.forget(Kind::Pods, &key);
            self.remove(key);
        }
    }

    /// Takes an attachment that starts. The plugin has closed its addresses in the packet filter:
    /// they no longer lead where they led before.
    pub(in super::super) fn start(&mut self, started: StartRequest) {
        if let Some(interface) = &started.meets {
            for address in &started.addresses {
                self.networks.closed(&Link { interface: interface.clone(), address: *address });
            }
        }
        let is_own = started.meets.is_none() && !started.inside;
        let own: &[IpAddr] = if is_own { &started.addresses } else { &[] };
        if started.inside {
            self.todo.closed.insert(id(&started.owner));
            self.todo.inside = true;
        }
        for address in own {
            if let Phase::Standing(compiler) = &mut self.phase {
                let steps = compiler.start(*address, nobody());
                // The packet filter has that already.
                let is_done = |step: &Step| matches!(step, Step::Verdict { address: of, .. } if of == address);
                self.todo.steps.extend(steps.into_iter().filter(|step| !is_done(step)));
            }
        }
        self.note_closed(id(&started.owner));
        let touched = self.records.start(started.into());
        self.settle(touched);
    }

    /// Takes an attachment that ends. Returns those of its addresses that no other one has.
    pub(in super::super) fn end(&mut self, owner: &Owner) -> BTreeSet<IpAddr> {
        let touched = self.records.end(&id(owner));
        let mut gone = touched.addresses.clone();
        gone.retain(|address| self.records.owner_of(*address).is_none());
        self.settle(touched);
        gone
    }

    /// Takes all records of this node.
    pub(in super::super) fn list_records(&mut self, listed: Vec<Attachment>) {
        let touched = self.records.list(listed);
        self.settle(touched);
        self.note_all_closed();
    }

    /// Reports whether records of attachments that have ended were still there.
    pub(in super::super) fn awaits_ends(&self) -> bool {
        self.records.awaits_ends()
    }

    /// Returns the pod that an attachment is of, if it is known.
    pub(super) fn pod_of(&self, attachment: &Attachment) -> Option<Uid> {
        if self.lists.origin() == Origin::Files {
            return match attachment.is_further() {
                false => self.of_records.get(&attachment.id).cloned(),
                true => Some(uid_of(&attachment.id)),
            };
        }
        let pod = attachment.pod.as_ref()?;
        if pod.uid.is_empty() {
            let same = |local: &&Local| {
                *local.pod.namespace == *pod.namespace && local.pod.name == pod.name
            };
            let mut found: Vec<&Local> = self.local.values().filter(same).collect();
            // Another one of the same name may be on its way out.
            found.sort_by_key(|local| local.pod.terminating);
            return found.first().map(|local| local.pod.uid.clone());
        }
        if let Some((uid, _)) = self.local.get_key_value(pod.uid.as_str()) {
            return Some(uid.clone());
        }
        let is_static = |local: &&Local| local.static_uid.as_deref() == Some(pod.uid.as_str());
        self.local.values().find(is_static).map(|local| local.pod.uid.clone())
    }

    /// Returns the pod that is to have an address of a record; while that is not known, a UID that
    /// no pod has.
    pub(super) fn wanted(&self, address: IpAddr) -> Uid {
        let owner = self.records.owner_of(address);
        let owner = owner.filter(|attachment| !self.records.has_ended(&attachment.id));
        owner.and_then(|attachment| self.pod_of(attachment)).unwrap_or_else(nobody)
    }

    /// Returns the addresses of records that a pod has.
    pub(super) fn addresses_of(&self, uid: &Uid) -> Vec<IpAddr> {
        let is_of = |attachment: &&Attachment| self.pod_of(attachment).as_ref() == Some(uid);
        let of_pod = self.records.all().filter(is_of);
        let addresses = of_pod.flat_map(Attachment::own).copied();
        addresses.filter(|address| self.wanted(*address) == *uid).collect()
    }

    /// Puts a pod of this node into the world as it is with its records.
    fn put_local(&mut self, uid: &Uid) {
        let Some(local) = self.local.get(uid) else { return };
        let mut pod = local.pod.clone();
        if !pod.host_network {
            // If a record has the address, the record's pod has it or, while that is not known, no
            // pod. The status of another pod counts as long as other nodes go by it: then the two
            // contest it.
            let mut contests = false;
            pod.addresses.retain(|address| {
                if self.records.owner_of(*address).is_none() {
                    return true;
                }
                let wanted = self.wanted(*address);
                let is_other = wanted != *uid && wanted != nobody();
                let contested = is_other && self.has_by_status(*address, uid);
                contests |= contested;
                wanted == *uid || contested
            });
            // One that is to be deleted would give way to the record's pod, and other nodes know
            // nothing of that yet.
            pod.terminating &= !contests;
            for address in self.addresses_of(uid) {
                if !pod.addresses.contains(&address) {
                    pod.addresses.push(address);
                }
            }
        }
        if self.world().pod(uid) != Some(&pod) {
            self.change(pod.into());
        }
    }

    /// Puts the pods of this node of one name into the world: a record without a UID is of one of
    /// them.
    pub(super) fn put_namesakes(&mut self, (namespace, name): &(Arc<str>, String)) {
        let same = |local: &&Local| local.pod.namespace == *namespace && local.pod.name == *name;
        let pods: Vec<Uid> =
            self.local.values().filter(same).map(|local| local.pod.uid.clone()).collect();
        for uid in pods {
            let addresses = self.addresses_of(&uid);
            self.put_local(&uid);
            self.lead(addresses);
        }
    }

    /// Follows a change of records: pods have other addresses, and addresses lead elsewhere.
    fn settle(&mut self, touched: RecordsChange) {
        if self.lists.origin() == Origin::Files {
            self.put_pods_of(&touched.attachments);
        } else {
            let of_records = touched.attachments.iter().filter_map(|one| self.pod_of(one));
            let has = |local: &&Local| {
                local.pod.addresses.iter().any(|address| touched.addresses.contains(address))
            };
            let by_status = self.local.values().filter(has).map(|local| local.pod.uid.clone());
            let pods: BTreeSet<Uid> = of_records.chain(by_status).collect();
            for uid in pods {
                self.put_local(&uid);
            }
        }
        self.lead(touched.addresses);
        let further = touched.attachments.into_iter().filter(Attachment::is_further);
        let ids: BTreeSet<Id> = further.map(|one| one.id).collect();
        for id in ids {
            self.settle_further(&id);
        }
    }

    /// Leads addresses to where their records say.
    pub(super) fn lead(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        for address in addresses {
            self.put_remotes_at(address);
            let wanted = self.records.owner_of(address).map(|_| self.wanted(address));
            if let Phase::Standing(compiler) = &mut self.phase {
                self.todo.steps.extend(match wanted {
                    Some(uid) => compiler.start(address, uid),
                    None => compiler.end(address),
                });
            }
        }
    }

    /// Where no source knows pods, each attachment is one.
    fn put_pods_of(&mut self, attachments: &[Attachment]) {
        // Others may have lost an address to them, or have got it.
        let own = attachments.iter().filter(|one| !one.is_further());
        let addresses = own.clone().flat_map(|one| &one.addresses);
        let others = addresses.flat_map(|address| self.records.claimants(*address));
        let ids: BTreeSet<Id> = own.chain(others).map(|one| one.id.clone()).collect();
        for id in ids {
            let there = self.records.get(&id).filter(|_| !self.records.has_ended(&id));
            let Some(pod) = there.map(|attachment| self.made_of(attachment)) else {
                if let Some(uid) = self.of_records.remove(&id) {
                    self.change(Change::Pod(uid, None));
                }
                continue;
            };
            self.of_records.insert(id, pod.uid.clone());
            if self.world().pod(&pod.uid) != Some(&pod) {
                self.change(pod.into());
            }
        }
        self.imply_namespaces();
    }

    /// Returns the pod that an attachment is where no source knows pods.
    pub(super) fn made_of(&self, attachment: &Attachment) -> Pod {
        let pod = attachment.pod.as_ref();
        let container = &attachment.id.1;
        let is_own = |address: &&IpAddr| {
            self.records.owner_of(**address).is_some_and(|owner| owner.id == attachment.id)
        };
        Pod {
            namespace: pod.map_or(DEFAULT, |pod| &pod.namespace).into(),
            name: pod.map_or(container, |pod| &pod.name).clone(),
            uid: uid_of(&attachment.id),
            node: Some(self.node.as_str().into()),
            labels: Arc::new(attachment.labels.clone()),
            addresses: attachment.addresses.iter().filter(is_own).copied().collect(),
            host_network: false,
            finished: false,
            terminating: false,
            ports: Arc::default(),
        }
    }

    /// Where no source knows pods, their namespaces are there without a file of theirs.
    pub(super) fn imply_namespaces(&mut self) {
        if self.lists.origin() != Origin::Files {
            return;
        }
        let names: BTreeSet<String> = self
            .records
            .all()
            .map(|one| one.pod.as_ref().map_or(DEFAULT, |pod| &pod.namespace).to_owned())
            .filter(|name| self.world().namespace(name).is_none())
            .collect();
        for name in names {
            self.change(Namespace::new(&name, Labels::new()).into());
        }
    }
}

/// Returns the UID of the pod that an attachment is where no source knows pods.
pub(super) fn uid_of((network, container, ifname): &Id) -> Uid {
    cni::owner::sha512_hex(format!("{network}\0{container}\0{ifname}"), 32).into()
}
