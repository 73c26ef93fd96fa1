//! Attachments whose packets do not pass the node: macvlan, ipvlan, SR-IOV and their kind. They are
//! judged in the container's own namespace.
//!
//! There the interface alone tells whose packet it is: every packet that comes in by it is for this
//! pod, and every packet that leaves by it is of this pod. So the interface leads to the chain of
//! the pod, for all addresses: also for those that no record has, such as link-local ones and those
//! that a router announces.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Attachment, Networks};
use crate::evaluate::verdict;
use crate::policy::{Direction, Traffic};
use crate::program::{self, Name, OPEN, Program};

impl Networks {
    /// Returns the program of a container's namespace, by the keys of its attachments. Attachments
    /// that are not known, or that this node judges, have no part in it.
    #[must_use]
    pub fn inside<'k>(&self, keys: impl IntoIterator<Item = &'k str>) -> Program {
        let mut program = Program::empty();
        for attachment in self.judged_inside(keys) {
            let leads = Direction::ALL.into_iter().map(|direction| {
                let key = (direction, attachment.interface.clone());
                (key, self.leads_inside(direction, attachment))
            });
            let leads: BTreeMap<(Direction, String), Name> = leads.collect();
            let network = attachment.network.as_ref().and_then(|name| self.networks.get(name));
            program.join(match network {
                Some(compiler) => compiler.program().part(leads),
                None => Program::empty().part(leads),
            });
        }
        program
    }

    /// Reports whether an attachment that is judged inside is closed, since too little is known of
    /// it; `None` if it is not known, or judged by this node.
    #[must_use]
    pub fn is_closed_inside(&self, key: &str) -> Option<bool> {
        let attachment = self.attachments.get(key).filter(|one| one.inside)?;
        Some(Direction::ALL.into_iter().any(|direction| {
            self.leads_inside(direction, attachment) == program::unknown(direction)
        }))
    }

    /// Reports whether an attachment that is judged inside leads to a chain of policies.
    #[must_use]
    pub fn is_judged_inside(&self, key: &str) -> bool {
        self.judged_inside([key]).any(|attachment| {
            Direction::ALL.into_iter().any(|way| self.leads_inside(way, attachment) != OPEN)
        })
    }

    /// Returns the network of an attachment, if it is known.
    #[must_use]
    pub fn network_of(&self, key: &str) -> Option<&str> {
        self.attachments.get(key)?.network.as_deref()
    }

    /// Reports whether policies forbid a connection of a container, at an end that is one of these
    /// attachments. Of several that have the address, all have to.
    #[must_use]
    pub fn forbids_inside<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k str>,
        source: IpAddr,
        destination: IpAddr,
        traffic: Traffic,
    ) -> bool {
        let ends = [(Direction::Egress, source), (Direction::Ingress, destination)];
        let mut said = Vec::new();
        for attachment in self.judged_inside(keys) {
            let is_here = |(_, end): &(Direction, IpAddr)| attachment.addresses.contains(end);
            let here: Vec<_> = ends.into_iter().filter(is_here).collect();
            if here.is_empty() {
                continue;
            }
            let world = attachment.network.as_ref().and_then(|name| self.world(name));
            let judged = world.map(|world| verdict(world, source, destination, traffic));
            said.push(here.into_iter().any(|(direction, _)| {
                let denies = judged.as_ref().map(|it| !it.side(direction).decision.allows());
                let leads = self.leads_inside(direction, attachment);
                leads == program::unknown(direction) || (leads != OPEN && denies == Some(true))
            }));
        }
        !said.is_empty() && said.into_iter().all(|forbids| forbids)
    }

    /// Says whether programs of containers may have changed since the last call in more than
    /// elements of sets.
    pub fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    fn judged_inside<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k str>,
    ) -> impl Iterator<Item = &Attachment> {
        let all = keys.into_iter().filter_map(move |key| self.attachments.get(key));
        all.filter(|attachment| attachment.inside)
    }

    /// Returns where an interface leads: to the chain of its addresses if that is the same one for
    /// all of them.
    fn leads_inside(&self, direction: Direction, attachment: &Attachment) -> Name {
        let network = attachment.network.as_ref().and_then(|name| self.networks.get(name));
        let Some(compiler) = network else { return program::unknown(direction) };
        let chain = |address: &IpAddr| {
            let chain = compiler.program().verdicts.get(&(direction, *address));
            chain.map_or_else(|| OPEN.to_owned(), Clone::clone)
        };
        let mut found: BTreeSet<Name> = attachment.addresses.iter().map(chain).collect();
        match (found.pop_first(), found.is_empty()) {
            (Some(chain), true) => chain,
            _ => program::unknown(direction),
        }
    }
}
