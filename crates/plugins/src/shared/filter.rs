//! Errors and keys of plugins that use the packet filter.

use cni::{AttachmentKey, ContainerId, Error, IfName, code};
use cni_plugin::{Call, codes};
use firewall::FirewallError;
use firewall::firewalld::FirewalldError;
use firewall::iptables::{ChangeError, IptablesError};

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
