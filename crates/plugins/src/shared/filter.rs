//! What plugins that use the packet filter share: errors, keys, GC.

use std::collections::HashSet;

use cni::{AttachmentKey, ContainerId, Error, IfName, code};
use cni_plugin::{Call, codes};
use firewall::firewalld::FirewalldError;
use firewall::iptables::{ChangeError, IptablesError};
use firewall::{Concern, Firewall, FirewallError};
use state::{Index, Record};

use super::attachment::{Stale, stale_records};
use super::failures::Failures;

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

/// Reports differences that CHECK found, the first as the message and the others as the details.
///
/// # Errors
/// Code 104 when there is any.
pub fn drift(differences: &[String]) -> Result<(), Error> {
    let Some(first) = differences.first() else { return Ok(()) };
    let error = Error::new(codes::DRIFT, format!("packet filter: {first}"));
    Err(error.with_details(differences[1..].join("; ")))
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
    let collected =
        Firewall::open(&index).and_then(|mut firewall| firewall.gc(network, &stays, concerns));
    failures.note("nftables", collected.map_err(|error| filter_error(&error)));
    let left = foreign(network, &spared);
    failures.note(what, left.map_err(|error| filter_error(&error)));
    failures.into_result()
}
