//! What plugins that use the packet filter share: errors, keys, GC.

use std::collections::HashSet;
use std::path::Path;

use cni::{AttachmentKey, ContainerId, Error, IfName, code};
use cni_plugin::{Call, codes};
use firewall::element::Element;
use firewall::firewalld::FirewalldError;
use firewall::iptables::{ChangeError, IptablesError};
use firewall::{Concern, Firewall, FirewallError, Plan};
use kernel::netns::Netns;
use serde::Serialize;
use state::{Index, Record};

use super::attachment::{Stale, stale_records};
use super::failures::Failures;
use super::shared_object::file_error;

/// Returns the error object for a failure of the packet filter.
#[must_use]
pub fn filter_error(error: &FirewallError) -> Error {
    let code = match error {
        FirewallError::Held { .. } => codes::HOST_PORT,
        FirewallError::Lock(lock) if lock.is_busy() => code::TRY_AGAIN_LATER,
        _ => codes::FIREWALL,
    };
    Error::from_chain(code, error).with_details(error.hint().unwrap_or_default())
}

/// Returns the error object for a failure of iptables.
#[must_use]
pub fn iptables_error(error: &IptablesError) -> Error {
    Error::from_chain(codes::FIREWALL, error)
}

/// Returns the error object for a failure of firewalld.
#[must_use]
pub fn firewalld_error(error: &FirewalldError) -> Error {
    let code = match error {
        FirewalldError::Lock(lock) if lock.is_busy() => code::TRY_AGAIN_LATER,
        FirewalldError::Late { .. } => code::TRY_AGAIN_LATER,
        error if error.is_no_zone() => code::INVALID_CONFIG,
        error if error.is_conflict() => codes::CONFLICT,
        _ => codes::FIREWALL,
    };
    Error::from_chain(code, error).with_details(error.hint().unwrap_or_default())
}

/// Returns the error object for a change of iptables' chains that failed.
#[must_use]
pub fn change_error(error: &ChangeError) -> Error {
    let code = match error {
        ChangeError::Lock(lock) if lock.is_busy() => code::TRY_AGAIN_LATER,
        _ => codes::FIREWALL,
    };
    Error::from_chain(code, error)
}

/// Opens our part of nftables and works with it.
///
/// # Errors
/// Code 101, or 103 for a host port that another attachment has; 11 when the lock cannot be taken in
/// time.
pub fn with_firewall<T>(
    index: &Index,
    work: impl FnOnce(&mut Firewall<'_>) -> Result<T, FirewallError>,
) -> Result<T, Error> {
    Firewall::open(index)
        .and_then(|mut firewall| work(&mut firewall))
        .map_err(|error| filter_error(&error))
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
) -> Result<(), Error> {
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
) -> Result<(), Error> {
    let mut stale = before.clone();
    let is_wanted =
        |old: &Element| now.own.iter().any(|new| new.set == old.set && new.key == old.key);
    stale.own.retain(|element| !is_wanted(element));
    stale.shared.retain(|shared| !now.shared.contains(shared));
    remove_own(index, key, Some(&stale), &[])
}

/// Undoes an ADD that failed, and returns the error for both. What an earlier ADD created works until
/// DEL, which finds both in the record.
pub fn undo_add(error: Error, is_first: bool, undo: impl FnOnce() -> Result<(), Error>) -> Error {
    match if is_first { undo() } else { Ok(()) } {
        Ok(()) => error,
        Err(undo) => error.with_details(format!("undoing it failed too: {undo}")),
    }
}

/// Writes the record of a plugin that is called with a namespace or without, before anything is
/// changed. `place` adds the namespace, if it is there.
///
/// # Errors
/// Code 105.
pub fn write_down(
    call: &Call<'_>,
    index: &Index,
    plugin: &str,
    facts: &impl Serialize,
    place: impl FnOnce(&Path, &Netns, Record) -> Record,
) -> Result<(), Error> {
    let data = serde_json::to_value(facts).expect("facts have string keys only");
    let boot_id = state::boot_id().map_err(|error| file_error(&error))?;
    let record = Record::new(call.attachment().clone(), plugin, boot_id, data);
    let netns = call.open_netns_if_there().ok().flatten();
    let record = match (call.netns_path(), &netns) {
        (Some(path), Some(netns)) => place(path, netns, record),
        (Some(path), None) => record.with_netns(path, None),
        (None, _) => record,
    };
    index.put(&record).map_err(|error| file_error(&error))
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
pub struct Spared<'c> {
    index: &'c Index,
    plugin: &'c str,
    network: &'c str,
    valid: Vec<AttachmentKey>,
    valid_hashes: HashSet<String>,
    collected: HashSet<String>,
}

impl<'c> Spared<'c> {
    /// Starts from GC's list. Only the records of `plugin` count.
    #[must_use]
    pub fn new(call: &'c Call<'_>, index: &'c Index, plugin: &'c str) -> Self {
        let valid = valid_keys(call);
        let valid_hashes = valid.iter().map(AttachmentKey::hash).collect();
        let network = call.network().as_str();
        Spared { index, plugin, network, valid, valid_hashes, collected: HashSet::new() }
    }

    /// Records the result for an attachment that is not on the list. One that another call is
    /// working on is spared.
    pub fn note(&mut self, key: &AttachmentKey, collected: &Result<(), Error>) {
        if collected.as_ref().err().is_none_or(|error| error.code != code::TRY_AGAIN_LATER) {
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

/// Runs GC of a plugin that uses the packet filter. It removes each attachment that has a record of
/// this plugin and is not valid, under its lock. Then it removes what has no record, of ours
/// (`concerns`) and of others (`foreign`, described by `what`).
///
/// # Errors
/// Every failure; the rest was tried all the same. Code 11 for an attachment that an ADD or a DEL
/// is working on.
pub fn collect(
    call: &Call<'_>,
    plugin: &str,
    concerns: &[Concern],
    take_down: impl Fn(&Index, &Record) -> Result<(), Error>,
    what: &str,
    foreign: impl FnOnce(&str, &Spared<'_>) -> Result<(), FirewallError>,
) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let network = call.network().as_str();
    let mut spared = Spared::new(call, &index, plugin);
    let mut failures = Failures::new();
    for record in stale_records(call, &index, plugin) {
        let one = Stale::of(record.clone());
        let done = one.collect(&index, plugin, || take_down(&index, &record));
        spared.note(&one.key, &done);
        failures.note(&one.key, done);
    }
    let stays = |hash: &str| spared.contains(hash);
    let collected = with_firewall(&index, |firewall| firewall.gc(network, &stays, concerns));
    failures.note("nftables", collected);
    let left = foreign(network, &spared);
    failures.note(what, left.map_err(|error| filter_error(&error)));
    failures.into_result()
}
