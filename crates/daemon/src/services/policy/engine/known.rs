//! What the engine knows, for people and for plugins.

use std::net::IpAddr;

use node_api::policy::{Enforced, Owner};
use policy::{Direction, Name, PerDirection, PolicyId, Refused, Traffic, program, verdict};

use super::super::records::{Attachment, id};
use super::super::said::Remarks;
use super::{Engine, Known};

impl Engine {
    /// Says what is waited for before policies are enforced; nothing if they are.
    pub(in super::super) fn waits_for(&self) -> Vec<String> {
        if self.program().is_some() {
            return Vec::new();
        }
        let missing = self.lists.missing().map(|(kind, why)| match why {
            Some(why) => format!("{kind}: {why}"),
            None => format!("{kind} are being listed"),
        });
        let doubt = self.doubt.iter().map(|_| {
            "the lists lack most of the policies that there were: they are listed again, or say \
             `netwright policy accept`"
                .to_owned()
        });
        missing.chain(doubt).collect()
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

    /// Returns the attachments of this node.
    pub(in super::super) fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.records.all()
    }

    /// Returns everything that was refused, sorted by object.
    pub(in super::super) fn faults(&self) -> Vec<&Refused> {
        let world = self.world();
        let of_policies = world.policies().flat_map(|policy| &policy.faults);
        let of_namespaces = world.namespaces().flat_map(|namespace| &namespace.faults);
        let mut all: Vec<&Refused> =
            of_policies.chain(of_namespaces).chain(self.unreadable.values()).collect();
        all.sort_by(|one, other| one.object.cmp(&other.object));
        all
    }

    /// Returns what is to be known of files besides their objects.
    pub(in super::super) fn remarks(&self) -> &Remarks {
        &self.remarks
    }

    /// Says what is kept although the last list lacks it.
    pub(in super::super) fn held(&self) -> Vec<String> {
        self.lists.held().map(ToString::to_string).collect()
    }

    /// Returns sentences that people are to know, besides faults.
    pub(in super::super) fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        if let (Some((kind, why)), true) = (self.lists.silence(), self.program().is_some()) {
            notices.push(format!("{kind}: {why}; what was known last counts"));
        }
        let held = self.held();
        if !held.is_empty() {
            notices.push(format!(
                "the last list lacks {}: kept until another list confirms it, or \
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
        notices
    }

    /// Returns why the source does not answer, if that is so.
    pub(in super::super) fn silence(&self) -> Option<String> {
        self.lists.silence().map(|(kind, why)| format!("{kind}: {why}"))
    }

    /// Returns how many policies there are.
    pub(in super::super) fn known(&self) -> Known {
        let mut known = Known::default();
        for policy in self.world().policies() {
            match policy.id {
                PolicyId::Network { .. } => known.network_policies += 1,
                PolicyId::Cluster { .. } => known.cluster_network_policies += 1,
                _ => {}
            }
        }
        known
    }

    /// Reports whether policies forbid a connection that is there, by its ends as they are, at an
    /// end that is of this node.
    pub(in super::super) fn forbids(
        &self,
        source: IpAddr,
        destination: IpAddr,
        traffic: Traffic,
    ) -> bool {
        let Some(program) = self.program() else { return false };
        let mut judged = None;
        [(Direction::Egress, source), (Direction::Ingress, destination)].into_iter().any(
            |(direction, end)| match program.verdicts.get(&(direction, end)) {
                None => false,
                Some(chain) if *chain == program::unknown(direction) => true,
                Some(_) => {
                    let judge = || verdict(self.world(), source, destination, traffic);
                    let verdict = judged.get_or_insert_with(judge);
                    !verdict.side(direction).decision.allows()
                }
            },
        )
    }

    /// Says what holds for an attachment.
    pub(in super::super) fn enforced(&self, owner: &Owner) -> Enforced {
        let Some(attachment) = self.records.get(&id(owner)) else {
            let notice = "nothing is recorded of the attachment".to_owned();
            return Enforced { known: false, notice: Some(notice) };
        };
        let closed = attachment.addresses.iter().find(|address| self.is_closed(**address));
        match closed {
            None => Enforced { known: true, notice: None },
            Some(address) => {
                Enforced { known: false, notice: Some(self.why_closed(attachment, *address)) }
            }
        }
    }

    fn why_closed(&self, attachment: &Attachment, address: IpAddr) -> String {
        let name = attachment.name();
        let closed = "closed but for its node until then";
        let waits_for = self.waits_for();
        if !waits_for.is_empty() {
            return format!("{name} is not known yet, and {closed}: {}", waits_for.join("; "));
        }
        let pods = self.world().claimants(address);
        if 1 < pods.len() {
            let names: Vec<String> = pods.iter().map(|pod| pod.full_name()).collect();
            let names = names.join(" and ");
            return format!("{address} is closed: {names} have it, until one of them is gone");
        }
        match pods.first() {
            Some(pod) if self.world().namespace(&pod.namespace).is_none() => {
                format!("namespace {} is not known: {name} is {closed}", pod.namespace)
            }
            _ if attachment.pod.is_none() => {
                format!("the runtime names no pod: {name} is closed but for its node")
            }
            _ => match self.silence() {
                Some(why) => format!("{name} is not known yet ({why}), and {closed}"),
                None => format!("{name} is not known yet, and {closed}"),
            },
        }
    }

    /// Returns where the addresses of an attachment are to lead; `None` if it is not known, or
    /// nothing is enforced yet.
    pub(in super::super) fn expected(
        &self,
        owner: &Owner,
    ) -> Option<Vec<(IpAddr, PerDirection<Option<Name>>)>> {
        let attachment = self.records.get(&id(owner))?;
        let program = self.program()?;
        let leads = |address: IpAddr| {
            PerDirection::of(|direction| program.verdicts.get(&(direction, address)).cloned())
        };
        Some(attachment.addresses.iter().map(|address| (*address, leads(*address))).collect())
    }
}
