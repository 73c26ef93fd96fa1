//! Attachments that are judged in their containers' own namespaces.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use kernel::living::NetnsNote;
use kernel::netns::NetnsId;
use policy::{Program, Traffic};

use super::super::records::{Attachment, Id};
use super::super::tell;
use super::Engine;

/// What tells containers' namespaces apart: their identity, or the path of one that has none recorded.
pub(in super::super) type Site = (Option<NetnsId>, PathBuf);

/// A container with attachments that are judged in its namespace.
#[derive(Debug, Clone)]
pub(in super::super) struct Container {
    pub(in super::super) site: Site,
    /// What leads to its namespace.
    pub(in super::super) noted: NetnsNote,
    /// Its attachments.
    pub(in super::super) ids: Vec<Id>,
    /// Their interfaces, with the addresses that are recorded.
    pub(in super::super) interfaces: Vec<(String, Vec<IpAddr>)>,
    /// What names them among the attachments to further networks.
    keys: Vec<String>,
    /// What it is called in messages.
    pub(in super::super) name: String,
}

impl Engine {
    /// Returns the containers in whose namespaces something is judged. The table of an attachment
    /// that has ended is for the plugin to remove.
    pub(in super::super) fn containers(&self) -> Vec<Container> {
        let mut all: BTreeMap<Site, Container> = BTreeMap::new();
        for attachment in self.records.living() {
            let Some(noted) = &attachment.inside else { continue };
            let site = match noted.id {
                Some(id) => (Some(id), PathBuf::new()),
                None => (None, noted.path.clone()),
            };
            let container = all.entry(site.clone()).or_insert_with(|| Container {
                site,
                noted: noted.clone(),
                ids: Vec::new(),
                interfaces: Vec::new(),
                keys: Vec::new(),
                name: attachment.name(),
            });
            // Not each plugin enters the namespace for its cookie.
            container.noted.cookie = container.noted.cookie.or(noted.cookie);
            container.ids.push(attachment.id.clone());
            container.interfaces.push((attachment.id.2.clone(), attachment.addresses.clone()));
            container.keys.push(attachment.key());
        }
        all.into_values().collect()
    }

    /// Reports whether anything is judged in a container's namespace.
    pub(in super::super) fn judges_inside(&self) -> bool {
        self.records.all().any(|one| one.inside.is_some())
    }

    /// Returns what a container's namespace is to have; `None` before policies are known.
    pub(in super::super) fn program_inside(&self, container: &Container) -> Option<Program> {
        self.program()?;
        Some(self.networks.inside(container.keys.iter().map(String::as_str)))
    }

    /// Reports whether policies forbid a connection of a container, at an end that is judged in its
    /// namespace.
    pub(in super::super) fn forbids_inside(
        &self,
        container: &Container,
        (source, destination): (IpAddr, IpAddr),
        traffic: Traffic,
    ) -> bool {
        let keys = container.keys.iter().map(String::as_str);
        self.program().is_some() && self.networks.forbids_inside(keys, source, destination, traffic)
    }

    /// Reports whether an attachment that is judged in its container's namespace is closed there.
    pub(in super::super) fn is_closed_inside(&self, attachment: &Attachment) -> bool {
        self.program().is_none() || self.networks.is_closed_inside(&attachment.key()) != Some(false)
    }

    pub(super) fn why_closed_inside(&self, attachment: &Attachment) -> String {
        let on = self.networks.network_of(&attachment.key());
        let of_several = |address: &&IpAddr| {
            let world = on.and_then(|network| self.networks.world(network));
            world.is_some_and(|world| world.claimants(**address).len() != 1)
        };
        let address = attachment.addresses.iter().find(of_several).or(attachment.addresses.first());
        let Some(address) = address else { return "it has no address".to_owned() };
        self.why_closed_further(attachment, *address, on, &attachment.id.2)
    }

    /// Sends an Event that a container may undo what is judged in its namespace.
    pub(super) fn tell_who_may_undo(&mut self, attachment: &Attachment) {
        let Some(local) = self.pod_of(attachment).and_then(|uid| self.local.get(&uid)) else {
            return;
        };
        let pod = &local.pod;
        if local.may_undo {
            self.tell.pod(pod, tell::MAY_UNDO, may_undo(&attachment.id.2));
        } else {
            self.tell.pod_is_right(&pod.uid, tell::MAY_UNDO);
        }
    }

    /// Says which pods may undo what is judged in their namespaces.
    pub(super) fn who_may_undo(&self) -> Vec<String> {
        let inside = self.records.all().filter(|one| one.inside.is_some());
        let said = inside.filter_map(|attachment| {
            let local = self.local.get(&self.pod_of(attachment)?).filter(|local| local.may_undo)?;
            Some(format!("{}: {}", local.pod.full_name(), may_undo(&attachment.id.2)))
        });
        said.collect()
    }
}

fn may_undo(ifname: &str) -> String {
    format!(
        "packets of {ifname} do not pass the node, so MultiNetworkPolicies are enforced in the pod's \
         own network namespace, where a container with NET_ADMIN, or a privileged one, can undo them \
         until netwrightd looks again"
    )
}
