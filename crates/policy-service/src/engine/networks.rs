//! Further networks: which attachment of this node is on which of them.

use std::borrow::Cow;

use policy::multi_policy::MultiPolicy;
use policy::networks;
use policy::object::Uid;
use policy::{Networks, Pod, Program, Step, World};

use super::super::further::FurtherNetworks;
use super::super::lists::Origin;
use super::super::records::{Attachment, Id, key_of};
use super::local::uid_of;
use super::{Engine, Phase};

impl Engine {
    /// Makes a change of further networks.
    pub(super) fn follow(&mut self, change: impl FnOnce(&mut Networks, &World) -> Vec<Step>) {
        let steps = change(&mut self.networks, self.phase.world());
        self.todo.inside |= self.networks.take_moved();
        if let Phase::Standing(_) = &self.phase {
            self.todo.steps.extend(steps);
        }
    }

    /// Returns what the packet filter is to be, with further networks.
    pub(in super::super) fn whole(&self) -> Option<Cow<'_, Program>> {
        let program = self.program()?;
        if self.networks.is_empty() {
            return Some(Cow::Borrowed(program));
        }
        let mut whole = program.clone();
        self.networks.add_to(&mut whole);
        Some(Cow::Owned(whole))
    }

    /// Takes a MultiNetworkPolicy.
    pub(super) fn take_multi_policy(&mut self, policy: MultiPolicy) {
        let id = policy.policy.id.clone();
        self.todo.save |= self.networks.policy_of(&id).is_none();
        let policy = match self.lists.origin() {
            Origin::Server => policy,
            // Networks of this host have no namespaces.
            Origin::Files => without_namespaces(policy),
        };
        self.networks.policy(&id, Some(policy), self.phase.world());
    }

    /// Takes what a pod says of further networks.
    pub(super) fn take_further(&mut self, uid: &Uid, further: FurtherNetworks) {
        let is_here = self.local.contains_key(uid);
        // Most pods are elsewhere, and on no further network.
        let matters = is_here || !further.says.is_empty();
        let pod = self.world().pod(uid).filter(|pod| matters && !pod.host_network).cloned();
        let known = pod.clone().map(|pod| (pod, further.says));
        self.follow(|networks, world| networks.pod(uid, known, world));
        if let Some(pod) = pod.filter(|_| is_here) {
            self.settle_namesakes(&pod);
        }
    }

    /// Takes that a pod is gone; `local` is what was known of it if it was of this node.
    pub(super) fn remove_further(&mut self, uid: &Uid, local: Option<Pod>) {
        self.follow(|networks, world| networks.pod(uid, None, world));
        if let Some(pod) = local {
            self.settle_namesakes(&pod);
        }
    }

    /// Follows the attachments of this node that may be of a pod.
    fn settle_namesakes(&mut self, pod: &Pod) {
        let is_of = |one: &&Attachment| {
            let named = one.pod.as_ref();
            one.is_further()
                && named.is_some_and(|named| {
                    named.name == pod.name && *named.namespace == *pod.namespace
                })
        };
        let ids: Vec<Id> = self.records.all().filter(is_of).map(|one| one.id.clone()).collect();
        for id in ids {
            self.settle_further(&id);
        }
    }

    /// Follows an attachment to a further network.
    pub(super) fn settle_further(&mut self, id: &Id) {
        let found = self.records.get(id).filter(|one| one.is_further()).cloned();
        let key = key_of(id);
        if self.lists.origin() == Origin::Files {
            // Each attachment is a pod.
            let made = found.as_ref().map(|attachment| (self.made_of(attachment), Vec::new()));
            let uid = uid_of(id);
            self.follow(|networks, world| networks.pod(&uid, made, world));
        }
        if let Some(attachment) = found.as_ref().filter(|one| one.inside.is_some()) {
            self.tell_who_may_undo(attachment);
        }
        let attachment = found.map(|attachment| self.on_network(&attachment));
        self.follow(|networks, world| networks.attachment(&key, attachment, world));
    }

    /// Returns an attachment with its pod and its network, as far as these are known. For an
    /// attachment that has ended neither counts as known, until its record is gone.
    fn on_network(&self, attachment: &Attachment) -> networks::Attachment {
        let has_ended = self.records.has_ended(&attachment.id);
        let pod = self.pod_of(attachment).filter(|_| !has_ended);
        let network = pod.as_ref().and_then(|uid| self.network_of(attachment, uid));
        networks::Attachment {
            network,
            pod,
            interface: match &attachment.inside {
                Some(_) => attachment.id.2.clone(),
                None => attachment.meets.clone().unwrap_or_default(),
            },
            inside: attachment.inside.is_some(),
            addresses: attachment.addresses.clone(),
        }
    }

    /// Returns the network that an attachment of a pod is on.
    fn network_of(&self, attachment: &Attachment, pod: &Uid) -> Option<String> {
        let (network, _, ifname) = &attachment.id;
        match self.lists.origin() {
            Origin::Files => Some(network.clone()),
            Origin::Server => {
                let further = &self.local.get(pod)?.further;
                further.network_of(ifname).map(str::to_owned)
            }
        }
    }

    /// Returns the further networks.
    pub(in super::super) fn networks(&self) -> &Networks {
        &self.networks
    }

    /// Returns the attachments to further networks that are closed, with the reason. One that has
    /// ended is not waited for.
    pub(in super::super) fn closed_further(&self) -> impl Iterator<Item = (&Attachment, String)> {
        let further = self.records.living().filter(|one| one.is_further());
        further.filter_map(move |attachment| {
            if attachment.inside.is_some() {
                let is_closed = self.is_closed_inside(attachment);
                return is_closed.then(|| (attachment, self.why_closed_inside(attachment)));
            }
            let link = attachment.links().find(|link| self.is_closed_link(link))?;
            Some((attachment, self.why_closed_link(attachment, &link)))
        })
    }

    /// Says which pods of this node no policy judges on a further network that policies are for,
    /// since the network was attached without the plugin.
    pub(in super::super) fn not_judged(&self) -> Vec<String> {
        let mut said = Vec::new();
        for local in self.local.values() {
            let judged = |interface: &str| {
                self.records.all().any(|one| {
                    one.is_further()
                        && one.id.2 == interface
                        && self.pod_of(one).as_ref() == Some(&local.pod.uid)
                })
            };
            let is_ours = |on: &&networks::NetworkInterface| {
                self.networks.policies().any(|policy| policy.networks.contains(&on.network))
            };
            for on in local.further.says.iter().filter(is_ours) {
                if !judged(&on.interface) {
                    said.push(format!(
                        "{} is on {} at {} without the plugin policy: no MultiNetworkPolicy judges \
                         it there",
                        local.pod.full_name(),
                        on.network,
                        on.interface
                    ));
                }
            }
        }
        said
    }
}

fn without_namespaces(mut policy: MultiPolicy) -> MultiPolicy {
    let name = |full: &String| full.rsplit('/').next().unwrap_or(full).to_owned();
    policy.networks = policy.networks.iter().map(name).collect();
    policy
}
