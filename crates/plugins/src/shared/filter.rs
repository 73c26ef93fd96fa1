//! What plugins that use the packet filter share: errors, keys, collection.

use cni::{AttachmentKey, ContainerId, Error, IfName, code};
use cni_plugin::{Call, codes};
use firewall::firewalld::FirewalldError;
use firewall::iptables::{ChangeError, IptablesError};
use firewall::{Concern, Firewall, FirewallError};
use state::{Index, Record};

use super::attachment::stale_records;
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

/// Returns the error object for a change of iptables' chains that was not made.
#[must_use]
pub fn change_error(error: &ChangeError) -> Error {
    let code = match error {
        ChangeError::Lock(lock) if lock.is_busy() => code::TRY_AGAIN_LATER,
        _ => codes::FIREWALL,
    };
    Error::from_chain(code, error)
}

/// Reports differences that CHECK found, the first as the message and all as the details.
///
/// # Errors
/// Code 104 when there is any.
pub fn drift(differences: &[String]) -> Result<(), Error> {
    let Some(first) = differences.first() else { return Ok(()) };
    let error = Error::new(codes::DRIFT, format!("packet filter: {first}"));
    Err(if differences.len() == 1 { error } else { error.with_details(differences.join("; ")) })
}

/// Returns the keys of the attachments that GC must leave alone. Names that cannot be an attachment's are
/// passed over: nothing of ours can carry them.
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

/// GC of a plugin that uses the packet filter: takes down each attachment that it has a record of and that is not
/// valid, then removes what nobody has a record of, of ours (`concerns`) and of others (`foreign`, described by
/// `what`).
///
/// # Errors
/// Every failure; the rest was tried all the same.
pub fn collect(
    call: &Call<'_>,
    plugin: &str,
    concerns: &[Concern],
    mut take_down: impl FnMut(&Index, &Record) -> Result<(), Error>,
    what: &str,
    foreign: impl FnOnce(&str, &[AttachmentKey]) -> Result<(), FirewallError>,
) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let network = call.network().as_str();
    let valid = valid_keys(call);
    let mut failures = Failures::new();
    for record in stale_records(call, &index, plugin) {
        failures.note(&record.attachment, take_down(&index, &record));
    }
    let collected =
        Firewall::open(&index).and_then(|mut firewall| firewall.gc(network, &valid, concerns));
    failures.note("nftables", collected.map_err(|error| filter_error(&error)));
    let left = foreign(network, &valid);
    failures.note(what, left.map_err(|error| filter_error(&error)));
    failures.into_result()
}
