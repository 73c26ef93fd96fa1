//! What plugins that use the packet filter share: errors, keys, GC.

use std::collections::HashSet;
use std::path::Path;

use cni::{AttachmentKey, ContainerId, IfName, code};
use cni_plugin::Call;
use firewall::element::Element;

use firewall::{Concern, Firewall, FirewallError, Plan};
use kernel::netns::Netns;
use serde::Serialize;
use state::{Index, Record};

use super::failure::Failure;

/// Opens our part of nftables and works with it.
///
/// # Errors
/// Code 101, or 103 for a host port that another attachment has; 11 when the lock cannot be taken in
/// time.
pub fn with_firewall<T>(
    index: &Index,
    work: impl FnOnce(&mut Firewall<'_>) -> Result<T, FirewallError>,
) -> Result<T, Failure> {
    Ok(Firewall::open(index).and_then(|mut firewall| work(&mut firewall))?)
}

/// Removes an attachment's part of our tables: the recorded one, or what its marks show.
///
/// # Errors
/// As [`with_firewall`].
pub fn remove_own(
    index: &Index,
    key: &AttachmentKey,
    recorded: Option<&Plan>,
    concerns: &[Concern],
) -> Result<(), Failure> {
    match recorded {
        Some(plan) if plan.is_empty() => Ok(()),
        Some(plan) => with_firewall(index, |firewall| firewall.remove(key, plan)),
        None => with_firewall(index, |firewall| firewall.remove_unrecorded(key, concerns)),
    }
}

/// Removes from our tables what an earlier ADD put there and this one does not want. An element that
/// leads elsewhere now is not stale.
///
/// # Errors
/// As [`with_firewall`].
pub fn remove_stale(
    index: &Index,
    key: &AttachmentKey,
    before: &Plan,
    now: &Plan,
) -> Result<(), Failure> {
    let mut stale = before.clone();
    let is_wanted =
        |old: &Element| now.own.iter().any(|new| new.set == old.set && new.key == old.key);
    stale.own.retain(|element| !is_wanted(element));
    stale.shared.retain(|shared| !now.shared.contains(shared));
    remove_own(index, key, Some(&stale), &[])
}

/// Writes the record of a plugin that is called with a namespace or without, before anything is
/// changed. `place` adds the namespace, if it is there.
///
/// # Errors
/// Code 105.
pub fn write_record(
    call: &Call<'_>,
    index: &Index,
    plugin: &str,
    recorded: &impl Serialize,
    place: impl FnOnce(&Path, &Netns, Record) -> Record,
) -> Result<(), Failure> {
    let data = serde_json::to_value(recorded).expect("a record has string keys only");
    let boot_id = state::boot_id()?;
    let record = Record::new(call.attachment().clone(), plugin, boot_id, data);
    let netns = call.open_netns_if_there().ok().flatten();
    let record = match (call.netns_path(), &netns) {
        (Some(path), Some(netns)) => place(path, netns, record),
        (Some(path), None) => record.with_netns(path, None),
        (None, _) => record,
    };
    Ok(index.put(&record)?)
}

/// Returns the keys of the attachments that GC must leave alone. Names that an attachment cannot
/// have are skipped: nothing of ours can carry them.
#[must_use]
pub fn valid_keys(call: &Call<'_>) -> Vec<AttachmentKey> {
    let keys = call.valid_attachments().iter().filter_map(|valid| {
        Some(AttachmentKey {
            network: call.network().clone(),
            container_id: ContainerId::new(&valid.container_id).ok()?,
            ifname: IfName::new(&valid.ifname).ok()?,
        })
    });
    keys.collect()
}

/// What GC's sweep of the packet filter leaves alone: what GC's list names, and what an ADD has
/// recorded since GC read it. An ADD writes its record before it changes the packet filter. GC
/// lists the filter first and then asks this, so it removes nothing of an ADD that is running.
#[derive(Debug)]
pub struct SparedAttachments<'c> {
    index: &'c Index,
    plugin: &'c str,
    network: &'c str,
    valid: Vec<AttachmentKey>,
    valid_hashes: HashSet<String>,
    collected: HashSet<String>,
}

impl<'c> SparedAttachments<'c> {
    /// Starts from GC's list. Only the records of `plugin` count.
    #[must_use]
    pub fn new(call: &'c Call<'_>, index: &'c Index, plugin: &'c str) -> Self {
        let valid = valid_keys(call);
        let valid_hashes = valid.iter().map(AttachmentKey::hash).collect();
        let network = call.network().as_str();
        SparedAttachments { index, plugin, network, valid, valid_hashes, collected: HashSet::new() }
    }

    /// Records the result for an attachment that is not on the list. One that another call is
    /// working on is spared.
    pub fn note(&mut self, key: &AttachmentKey, collected: &Result<(), Failure>) {
        if collected.as_ref().err().is_none_or(|error| error.code() != code::TRY_AGAIN_LATER) {
            self.collected.insert(key.hash());
        }
    }

    /// Reports whether the attachment with this [`AttachmentKey::hash`] is spared.
    #[must_use]
    pub fn contains(&self, hash: &str) -> bool {
        let is_recorded = || {
            let records = self.index.of_hash(hash).found;
            records.iter().any(|record| record.plugin == self.plugin)
        };
        self.valid_hashes.contains(hash) || (!self.collected.contains(hash) && is_recorded())
    }

    /// Lists what is spared at present.
    #[must_use]
    pub fn keys(&self) -> Vec<AttachmentKey> {
        let records = self.index.of_network(self.network).found;
        let recorded = records.into_iter().filter(|record| record.plugin == self.plugin);
        let recorded = recorded.map(|record| record.attachment);
        let recorded = recorded.filter(|key| !self.collected.contains(&key.hash()));
        self.valid.iter().cloned().chain(recorded).collect()
    }
}

/// Removes from our tables what attachments of this network have there that are not spared.
///
/// # Errors
/// As [`with_firewall`].
pub fn collect(
    call: &Call<'_>,
    index: &Index,
    concerns: &[Concern],
    spared: &SparedAttachments<'_>,
) -> Result<(), Failure> {
    let network = call.network().as_str();
    let stays = |hash: &str| spared.contains(hash);
    with_firewall(index, |firewall| firewall.gc(network, &stays, concerns)).map(drop)
}
