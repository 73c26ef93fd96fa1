//! What the engine knows, for people and for plugins.

use std::collections::BTreeSet;
use std::net::IpAddr;

use node_api::policy::{Enforcement, Owner};
use policy::object::Uid;
use policy::program::Link;
use policy::{
    Direction, Name, PerDirection, PolicyId, Program, Refusal, Traffic, program, verdict_by_service,
};

use super::super::lists::Origin;
use super::super::records::{Attachment, Id, id};
use super::super::said::Remarks;
use super::{Engine, PolicyCounts};

impl Engine {
    /// Says what the engine waits for before policies are enforced; nothing if they are.
    pub(in super::super) fn waits_for(&self) -> Vec<String> {
        if self.program().is_some() {
            return Vec::new();
        }
        let doubt = self.doubt.iter().map(|_| {
            let then = match self.lists.origin() {
                Origin::Server => "they are listed again",
                Origin::Files => "they are waited for",
            };
            format!(
                "the lists lack most of the policies that were there: {then}, or run \
                 `netwright policy accept`"
            )
        });
        self.unlisted().into_iter().chain(doubt).collect()
    }

    /// Says which kinds of objects were not listed yet, since the service started.
    pub(in super::super) fn unlisted(&self) -> Vec<String> {
        let missing = self.lists.missing().map(|(kind, why)| match why {
            Some(why) => format!("{kind}: {why}"),
            None => format!("{kind} are being listed"),
        });
        missing.collect()
    }

    /// Reports whether an address of this node is closed since its pod is not known.
    pub(in super::super) fn is_closed(&self, address: IpAddr) -> bool {
        let Some(program) = self.program() else {
            return self.records.owner_of(address).is_some();
        };
        Direction::ALL.into_iter().any(|direction| {
            let chain = program.verdicts.get(&(direction, address));
            chain.is_some_and(|chain| *chain == program::unknown(direction))
        })
    }

    /// Returns the attachments that are closed since their pods are not known, with these addresses.
    /// A pod of another node may have such an address too, as far as is known. One that has ended is
    /// not waited for.
    pub(in super::super) fn unknown(&self) -> impl Iterator<Item = (&Attachment, Vec<IpAddr>)> {
        let is_known = |address: IpAddr| {
            let pods = self.world().claimants(address);
            pods.iter().any(|pod| pod.node.as_deref() == Some(self.node.as_str()))
        };
        self.records.living().filter_map(move |attachment| {
            let own = attachment.own().iter().copied();
            let is_unknown = |address: &IpAddr| self.is_closed(*address) && !is_known(*address);
            let addresses: Vec<IpAddr> = own.filter(is_unknown).collect();
            (!addresses.is_empty()).then_some((attachment, addresses))
        })
    }

    /// Returns the attachments of this node.
    pub(in super::super) fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.records.all()
    }

    /// Returns the attachments that have ended, and whose records may still be there.
    pub(in super::super) fn ended(&self) -> BTreeSet<Id> {
        self.records.ended().clone()
    }

    /// Returns everything that was refused, sorted by object.
    pub(in super::super) fn faults(&self) -> Vec<&Refusal> {
        let world = self.world();
        let of_policies = world.policies().flat_map(|policy| &policy.faults);
        let of_namespaces = world.namespaces().flat_map(|namespace| &namespace.faults);
        let further = self.networks.policies().flat_map(|policy| &policy.policy.faults);
        let mut all: Vec<&Refusal> = of_policies
            .chain(of_namespaces)
            .chain(further)
            .chain(self.unreadable.values())
            .collect();
        all.sort_by(|one, other| one.object.cmp(&other.object));
        all
    }

    /// Returns what people should know of files besides their objects.
    pub(in super::super) fn remarks(&self) -> &Remarks {
        &self.remarks
    }

    /// Says what is kept although the last list lacks it.
    pub(in super::super) fn held(&self) -> Vec<String> {
        self.lists.held().map(ToString::to_string).collect()
    }

    /// Notes why links of pods are closed.
    pub(in super::super) fn note_links(&mut self, closed: Vec<String>) {
        self.closed_links = closed;
    }

    /// Returns sentences that people should know, besides faults.
    pub(in super::super) fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        if let (Some((kind, why)), true) = (self.lists.silence(), self.program().is_some()) {
            notices.push(format!("{kind}: {why}; what was known last is used"));
        }
        let held = self.held();
        if !held.is_empty() {
            notices.push(format!(
                "the last list lacks {}: kept until another list confirms this, or until \
                 `netwright policy accept`",
                held.join(", ")
            ));
        }
        let Remarks { wrong, foreign, .. } = &self.remarks;
        let unreadable = self.unreadable.values().map(ToString::to_string);
        notices.extend(unreadable.filter(|text| !wrong.contains(text)));
        let namespaces = self.world().namespaces();
        let faults = namespaces.flat_map(|namespace| &namespace.faults);
        notices.extend(faults.map(ToString::to_string));
        notices.extend(wrong.iter().chain(foreign).cloned());
        notices.extend(self.called_otherwise());
        notices.extend(self.claims_of_others());
        notices.extend(self.not_judged());
        notices.extend(self.closed_links.iter().map(|why| format!("closed: {why}")));
        notices.extend(self.who_may_undo());
        notices
    }

    /// Returns the node on which the API server has the pod of an attachment of this node, if that
    /// has another name than this one.
    fn elsewhere(&self, attachment: &Attachment) -> Option<&str> {
        let uid: Uid = attachment.pod.as_ref()?.uid.as_str().into();
        let node = self.world().pod(&uid)?.node.as_deref()?;
        (node != self.node).then_some(node)
    }

    /// Says that the cluster has another name for this node, if it has: then no pod of this node is
    /// known.
    fn called_otherwise(&self) -> Option<String> {
        let named = |one: &Attachment| Some((one.name(), self.elsewhere(one)?));
        let (name, node) = self.records.all().find_map(named)?;
        Some(format!(
            "{name} was attached on this node, which is called {} here, and the API server has it \
             on node {node}: pods of this node are closed until `node` of [policy], or NODE_NAME, \
             is the name that the cluster has for this node",
            self.node
        ))
    }

    /// Returns why the source does not answer, if that is so.
    pub(in super::super) fn silence(&self) -> Option<String> {
        self.lists.silence().map(|(kind, why)| format!("{kind}: {why}"))
    }

    /// Returns how many policies there are.
    pub(in super::super) fn known(&self) -> PolicyCounts {
        let mut known = PolicyCounts {
            multi_network_policies: self.networks.policies().count(),
            ..PolicyCounts::default()
        };
        for policy in self.world().policies() {
            match policy.id {
                PolicyId::Network { .. } => known.network_policies += 1,
                PolicyId::Cluster { .. } => known.cluster_network_policies += 1,
                _ => {}
            }
        }
        known
    }

    /// Reports whether policies forbid an existing connection, by its ends as they are, at an end
    /// that is of this node.
    pub(in super::super) fn forbids(
        &self,
        source: IpAddr,
        destination: IpAddr,
        traffic: Traffic,
    ) -> bool {
        let Some(program) = self.program() else { return false };
        let further = self.networks.forbid(source, destination, traffic);
        let own = self.forbids_on_own(program, (source, destination), traffic);
        // If several networks have these addresses, it is not known which one the connection is on:
        // so it is forbidden only if all of them forbid it.
        own.into_iter().chain(further).reduce(|one, other| one && other).unwrap_or_default()
    }

    /// Says the same of the pods' own network; `None` if neither end has an address there that is of
    /// this node.
    fn forbids_on_own(
        &self,
        program: &Program,
        (source, destination): (IpAddr, IpAddr),
        traffic: Traffic,
    ) -> Option<bool> {
        let mut judged = None;
        let (mut is_here, mut forbids) = (false, false);
        for (direction, end) in [(Direction::Egress, source), (Direction::Ingress, destination)] {
            is_here |= self.records.owner_of(end).is_some();
            let Some(chain) = program.verdicts.get(&(direction, end)) else { continue };
            is_here = true;
            // Every connection that the node tracks has left the pod.
            let judge = || verdict_by_service(self.world(), source, destination, traffic);
            forbids |= *chain == program::unknown(direction)
                || !judged.get_or_insert_with(judge).side(direction).decision.allows();
        }
        is_here.then_some(forbids)
    }

    /// Reports whether policies forbid an existing connection from a pod of this node to the node
    /// itself. Only ClusterNetworkPolicies do, and only at the addresses that the Node has.
    pub(in super::super) fn forbids_at_node(
        &self,
        source: IpAddr,
        destination: IpAddr,
        traffic: Traffic,
    ) -> bool {
        let Some(program) = self.program() else { return false };
        let leads = program.verdicts.get(&(Direction::Egress, source));
        let is_judged = leads.is_some_and(|chain| *chain != program::unknown(Direction::Egress));
        let is_known = self.world().nodes_at(destination).any(|node| node.name == self.node);
        let judge = || verdict_by_service(self.world(), source, destination, traffic);
        is_judged && is_known && !judge().egress.decision.allows()
    }

    /// Says what holds for an attachment.
    pub(in super::super) fn enforced(&self, owner: &Owner) -> Enforcement {
        let Some(attachment) = self.records.get(&id(owner)) else {
            let notice = "the attachment has no record".to_owned();
            return Enforcement { known: false, notice: Some(notice) };
        };
        if let Some(why) = self.why_not_enforced(attachment) {
            return Enforcement { known: false, notice: Some(why) };
        }
        let silence = self.lists.silence_about_policies();
        let notice = silence.map(|(kind, why)| {
            format!("{kind}: {why}; newer ones than were known last are not enforced yet")
        });
        Enforcement { known: true, notice }
    }

    /// Says why an attachment is closed; `None` if it is not.
    pub(super) fn why_not_enforced(&self, attachment: &Attachment) -> Option<String> {
        if attachment.inside.is_some() && self.is_closed_inside(attachment) {
            return Some(self.why_closed_inside(attachment));
        }
        if let Some(address) = attachment.own().iter().find(|address| self.is_closed(**address)) {
            return Some(self.why_closed(attachment, *address));
        }
        let link = attachment.links().find(|link| self.is_closed_link(link))?;
        Some(self.why_closed_link(attachment, &link))
    }

    /// Reports whether an address of a further network is closed.
    pub(in super::super) fn is_closed_link(&self, link: &Link) -> bool {
        self.program().is_none() || self.networks.is_closed(link)
    }

    pub(super) fn why_closed_link(&self, attachment: &Attachment, link: &Link) -> String {
        let on = self.networks.network_at(&link.interface, link.address);
        self.why_closed_further(attachment, link.address, on, &link.interface)
    }

    /// Says why an address is closed at an interface. `on` is the network, if it is known.
    pub(super) fn why_closed_further(
        &self,
        attachment: &Attachment,
        address: IpAddr,
        on: Option<&str>,
        interface: &str,
    ) -> String {
        let (name, ifname) = (attachment.name(), &attachment.id.2);
        let closed = until_then(attachment);
        let pod = self.pod_of(attachment);
        match (pod, on) {
            _ if !self.waits_for().is_empty() => self.why_closed(attachment, address),
            (None, _) => self.why_closed(attachment, address),
            (Some(_), None) => format!(
                "neither the status of {name} nor its annotation {} says which network {ifname} \
                 is on: it is {closed}",
                npwg::annotation::NETWORKS
            ),
            (Some(_), Some(network)) => match self.networks.world(network) {
                Some(world) if world.claimants(address).len() == 1 => {
                    format!("{name} is not known on {network} yet, and {closed}")
                }
                _ => format!("{address} is closed at {interface} until only one container has it"),
            },
        }
    }

    fn why_closed(&self, attachment: &Attachment, address: IpAddr) -> String {
        let name = attachment.name();
        let closed = until_then(attachment);
        let waits_for = self.waits_for();
        if !waits_for.is_empty() {
            return format!("{name} is not known yet, and {closed}: {}", waits_for.join("; "));
        }
        let pods = self.world().claimants(address);
        if 1 < pods.len() {
            let names: Vec<String> = pods.iter().map(|pod| pod.full_name()).collect();
            let names = names.join(" and ");
            return format!("{address} is closed until only one of {names} has it");
        }
        if let Some(node) = self.elsewhere(attachment) {
            return format!(
                "{name} is not known yet, and {closed}: the API server has it on node {node}, and \
                 this node is called {} here (`node` of [policy], or NODE_NAME)",
                self.node
            );
        }
        if let Some(why) = self.why_beyond(address) {
            return format!("{name}: {why}");
        }
        match pods.first() {
            Some(pod) if self.world().namespace(&pod.namespace).is_none() => {
                format!("namespace {} is not known: {name} is {closed}", pod.namespace)
            }
            _ if attachment.pod.is_none() => {
                format!("the runtime names no pod: {name} is closed to all but its node")
            }
            _ => match self.silence() {
                Some(why) => format!("{name} is not known yet ({why}), and {closed}"),
                None => format!("{name} is not known yet, and {closed}"),
            },
        }
    }

    /// Returns where the addresses of an attachment are to lead; `None` if it is not known, or
    /// nothing is enforced yet.
    pub(in super::super) fn expected(&self, owner: &Owner) -> Option<Vec<AddressTarget>> {
        let attachment = self.records.get(&id(owner))?;
        let program = self.program()?;
        let own = attachment.own().iter().map(|address| AddressTarget {
            place: Place::Own(*address),
            leads: PerDirection::of(|direction| {
                program.verdicts.get(&(direction, *address)).cloned()
            }),
        });
        let further = attachment.links().map(|link| AddressTarget {
            leads: PerDirection::of(|direction| self.networks.leads(direction, &link).cloned()),
            place: Place::Further(link),
        });
        Some(own.chain(further).collect())
    }
}

/// Says what holds for an attachment of which too little is known. For a container's namespace its
/// node is a host like others.
fn until_then(attachment: &Attachment) -> &'static str {
    match attachment.inside {
        Some(_) => "closed until then",
        None => "closed to all but its node until then",
    }
}

/// Where an address is to lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct AddressTarget {
    pub(in super::super) place: Place,
    pub(in super::super) leads: PerDirection<Option<Name>>,
}

/// An address of an attachment, as the packet filter knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Place {
    Own(IpAddr),
    Further(Link),
}
