//! The attachments of this node, as the plugin `policy` records them. They say which addresses of
//! which pods are here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni::AttachmentKey;
use kernel::living::NetnsNote;
use node_api::Pod;
use node_api::policy::{AttachmentRecord, Owner, StartRequest};
use policy::program::Link;
use state::Record;

/// What names an attachment: network, container, interface.
pub(super) type Id = (String, String, String);

/// An attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attachment {
    pub(super) id: Id,
    /// Its pod, if the runtime names one.
    pub(super) pod: Option<Pod>,
    pub(super) addresses: Vec<IpAddr>,
    /// The host's side of its link.
    pub(super) interface: Option<String>,
    /// On a further network: where the packet filter sees its packets.
    pub(super) meets: Option<String>,
    /// On a further network whose packets do not pass the node: what leads to the namespace in which
    /// they are judged.
    pub(super) inside: Option<NetnsNote>,
    /// The labels that the runtime gave it.
    pub(super) labels: BTreeMap<String, String>,
}

/// Returns what names the attachment of a request.
pub(super) fn id(owner: &Owner) -> Id {
    (owner.network.clone(), owner.container.clone(), owner.ifname.clone())
}

/// Returns what names an attachment to a further network.
pub(super) fn key_of((network, container, ifname): &Id) -> String {
    format!("{network}\0{container}\0{ifname}")
}

impl From<StartRequest> for Attachment {
    fn from(started: StartRequest) -> Self {
        let path = started.owner.netns.clone().into();
        Attachment {
            inside: started.inside.then(|| NetnsNote { path, ..NetnsNote::default() }),
            id: id(&started.owner),
            pod: started.owner.pod,
            addresses: started.addresses,
            interface: started.interface,
            meets: started.meets,
            labels: started.labels,
        }
    }
}

impl Attachment {
    /// Reads what the plugin recorded.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(super) fn of(record: &Record) -> Result<Self, serde_json::Error> {
        let recorded: AttachmentRecord = serde_json::from_value(record.data.clone())?;
        let mut attachment = Attachment::from(recorded.started);
        // The record's own key counts.
        let key = &record.attachment;
        attachment.id =
            (key.network.to_string(), key.container_id.to_string(), key.ifname.to_string());
        if let Some(noted) = &mut attachment.inside {
            *noted = record.noted().unwrap_or_default();
        }
        Ok(attachment)
    }

    /// Returns the [`AttachmentKey::hash`], by which its record is found.
    pub(super) fn hash(&self) -> Option<String> {
        let (network, container, ifname) = &self.id;
        let key = AttachmentKey {
            network: network.parse().ok()?,
            container_id: container.parse().ok()?,
            ifname: ifname.parse().ok()?,
        };
        Some(key.hash())
    }

    /// Returns its addresses on the pod's own network.
    pub(super) fn own(&self) -> &[IpAddr] {
        if self.is_further() { &[] } else { &self.addresses }
    }

    /// Reports whether it is on a further network.
    pub(super) fn is_further(&self) -> bool {
        self.meets.is_some() || self.inside.is_some()
    }

    /// Returns what names it among the attachments to further networks.
    pub(super) fn key(&self) -> String {
        key_of(&self.id)
    }

    /// Returns its addresses on a further network that this node judges, each with its interface.
    pub(super) fn links(&self) -> impl Iterator<Item = Link> {
        let at = |interface: &str, address: &IpAddr| Link {
            interface: interface.to_owned(),
            address: *address,
        };
        let interfaces = self.meets.iter();
        interfaces.flat_map(move |interface| {
            self.addresses.iter().map(move |address| at(interface, address))
        })
    }

    /// Returns its pod's name, or the container's.
    pub(super) fn label(&self) -> String {
        match &self.pod {
            Some(pod) => format!("{}/{}", pod.namespace, pod.name),
            None => self.id.1.clone(),
        }
    }

    /// Returns what it is called in messages.
    pub(super) fn name(&self) -> String {
        match &self.pod {
            Some(pod) => format!("pod {}/{}", pod.namespace, pod.name),
            None => format!("container {}", self.id.1),
        }
    }
}

/// What a change of records touches.
#[derive(Debug, Default)]
pub(super) struct RecordsChange {
    /// The addresses of pods' own networks that may lead elsewhere now.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// The attachments that came, as they are, and those that went, as they were.
    pub(super) attachments: Vec<Attachment>,
}

impl RecordsChange {
    fn add(&mut self, attachment: Attachment) {
        self.addresses.extend(attachment.own());
        self.attachments.push(attachment);
    }
}

/// All attachments of this node.
#[derive(Debug, Default)]
pub(super) struct Records {
    all: BTreeMap<Id, Attachment>,
    /// The attachments that claim an address of the pods' own network. The last one has it: the one
    /// that started, or was listed, last.
    owners: BTreeMap<IpAddr, Vec<Id>>,
    /// Attachments that ended and whose records may still be there.
    ended: BTreeSet<Id>,
}

impl Records {
    /// Returns all attachments.
    pub(super) fn all(&self) -> impl Iterator<Item = &Attachment> {
        self.all.values()
    }

    /// Returns the attachments that have not ended.
    pub(super) fn living(&self) -> impl Iterator<Item = &Attachment> {
        self.all().filter(move |attachment| !self.has_ended(&attachment.id))
    }

    /// Returns an attachment.
    pub(super) fn get(&self, id: &Id) -> Option<&Attachment> {
        self.all.get(id)
    }

    /// Returns the attachment that has an address.
    pub(super) fn owner_of(&self, address: IpAddr) -> Option<&Attachment> {
        self.all.get(self.owners.get(&address)?.last()?)
    }

    /// Returns all attachments that say that they have an address.
    pub(super) fn claimants(&self, address: IpAddr) -> impl Iterator<Item = &Attachment> {
        self.owners.get(&address).into_iter().flatten().filter_map(|id| self.all.get(id))
    }

    /// Reports whether an attachment has ended, and its record was still there when the records
    /// were listed last. Its addresses are closed as long as that is so.
    pub(super) fn has_ended(&self, id: &Id) -> bool {
        self.ended.contains(id)
    }

    /// Reports whether records of attachments that have ended were still there.
    pub(super) fn awaits_ends(&self) -> bool {
        self.ended.iter().any(|id| self.all.contains_key(id))
    }

    /// Returns all of those.
    pub(super) fn ended(&self) -> &BTreeSet<Id> {
        &self.ended
    }

    /// Takes an attachment that starts.
    pub(super) fn start(&mut self, attachment: Attachment) -> RecordsChange {
        let mut touched = RecordsChange::default();
        self.ended.remove(&attachment.id);
        self.remove(&attachment.id, &mut touched);
        self.insert(attachment, &mut touched);
        touched
    }

    /// Takes an attachment that ends.
    pub(super) fn end(&mut self, id: &Id) -> RecordsChange {
        let mut touched = RecordsChange::default();
        self.remove(id, &mut touched);
        self.ended.insert(id.clone());
        touched
    }

    /// Takes all records that there are.
    pub(super) fn list(&mut self, listed: Vec<Attachment>) -> RecordsChange {
        let mut touched = RecordsChange::default();
        let there: BTreeSet<&Id> = listed.iter().map(|attachment| &attachment.id).collect();
        self.ended.retain(|id| there.contains(id));
        let gone: Vec<Id> = self.all.keys().filter(|id| !there.contains(id)).cloned().collect();
        for id in gone {
            self.remove(&id, &mut touched);
        }
        for attachment in listed {
            if self.all.get(&attachment.id) != Some(&attachment) {
                self.remove(&attachment.id, &mut touched);
                self.insert(attachment, &mut touched);
            }
        }
        touched
    }

    fn insert(&mut self, attachment: Attachment, touched: &mut RecordsChange) {
        for address in attachment.own() {
            let owners = self.owners.entry(*address).or_default();
            // An attachment that has ended has its addresses only if no other one has them.
            if self.ended.contains(&attachment.id) {
                owners.insert(0, attachment.id.clone());
            } else {
                owners.push(attachment.id.clone());
            }
        }
        touched.add(attachment.clone());
        self.all.insert(attachment.id.clone(), attachment);
    }

    fn remove(&mut self, id: &Id, touched: &mut RecordsChange) {
        let Some(old) = self.all.remove(id) else { return };
        for address in old.own() {
            if let Some(owners) = self.owners.get_mut(address) {
                owners.retain(|owner| owner != id);
                if owners.is_empty() {
                    self.owners.remove(address);
                }
            }
        }
        touched.add(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(container: &str, addresses: &[&str]) -> Attachment {
        let started = StartRequest {
            owner: Owner {
                network: "pods".to_owned(),
                container: container.to_owned(),
                ifname: "eth0".to_owned(),
                ..Owner::default()
            },
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ..StartRequest::default()
        };
        started.into()
    }

    fn owner(records: &Records, address: &str) -> Option<String> {
        records.owner_of(address.parse().unwrap()).map(|attachment| attachment.id.1.clone())
    }

    #[test]
    fn an_address_is_that_of_who_was_told_last() {
        let mut records = Records::default();
        records.start(attachment("old", &["10.0.0.1"]));
        let touched = records.start(attachment("new", &["10.0.0.1", "fd00::1"]));
        assert_eq!(touched.addresses.len(), 2);
        assert_eq!(owner(&records, "10.0.0.1").as_deref(), Some("new"));
        records.end(&attachment("new", &[]).id);
        assert_eq!(owner(&records, "10.0.0.1").as_deref(), Some("old"));
        assert_eq!(owner(&records, "fd00::1"), None);
    }

    #[test]
    fn addresses_of_further_networks_are_nobodys_own() {
        let mut records = Records::default();
        records.start(attachment("own", &["10.0.0.1"]));
        let mut further = attachment("further", &["10.0.0.1", "fd00::1"]);
        further.meets = Some("br1".to_owned());
        let touched = records.start(further.clone());
        assert!(touched.addresses.is_empty() && touched.attachments == [further.clone()]);
        assert_eq!(owner(&records, "10.0.0.1").as_deref(), Some("own"));
        assert_eq!(owner(&records, "fd00::1"), None);
        assert!(further.own().is_empty());
        let at: Vec<String> =
            further.links().map(|link| format!("{} {}", link.interface, link.address)).collect();
        assert_eq!(at, ["br1 10.0.0.1", "br1 fd00::1"]);
        records.end(&further.id);
        assert_eq!(owner(&records, "10.0.0.1").as_deref(), Some("own"));
    }

    #[test]
    fn what_has_ended_is_there_until_its_record_has_gone() {
        let mut records = Records::default();
        let (one, id) = (attachment("one", &["10.0.0.1"]), attachment("one", &[]).id);
        records.start(one.clone());
        records.end(&id);
        assert!(records.has_ended(&id) && !records.awaits_ends());
        // The record is removed in a moment. Until then another attachment may get the address.
        records.list(vec![one.clone()]);
        assert!(records.awaits_ends());
        assert_eq!(owner(&records, "10.0.0.1").as_deref(), Some("one"));
        records.start(attachment("two", &["10.0.0.1"]));
        records.list(vec![one.clone(), attachment("two", &["10.0.0.1"])]);
        assert_eq!(owner(&records, "10.0.0.1").as_deref(), Some("two"));
        records.list(vec![attachment("two", &["10.0.0.1"])]);
        assert!(!records.has_ended(&id) && !records.awaits_ends());
        // Under the same name it is another one.
        records.end(&id);
        records.start(one);
        assert!(!records.has_ended(&id));
    }
}
