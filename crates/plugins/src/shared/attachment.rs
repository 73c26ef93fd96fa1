//! What the plugins do with an attachment in the same way: its lock, its record, the namespace that
//! the record names.

use std::path::Path;
use std::time::Duration;

use cni::{AddResult, AttachmentKey, Command, code};
use cni_plugin::{Call, codes};
use kernel::living::{Census, Life};
use kernel::netns::Netns;
use kernel::route::RouteSocket;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use state::{AttachmentLock, Index, NetnsIdentity, Record};

use super::failure::Failure;

/// How long ADD waits for a DEL, a repair or another ADD of the same attachment, which take
/// milliseconds.
pub const ADD_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs ADD under the attachment's lock, which DEL, repair and GC take too. `add` is told whether
/// there may be records of an earlier ADD. A call from within a CHECK that repairs already has the
/// lock, and is about that very attachment.
///
/// # Errors
/// Code 11 when the lock cannot be taken in time; else those of `add`.
pub fn add_under_lock(
    call: &Call<'_>,
    add: &dyn Fn(bool) -> Result<AddResult, Failure>,
) -> Result<AddResult, Failure> {
    if call.command() != Command::Add {
        return add(false);
    }
    let index = Index::new(call.roots());
    let lock = match index.begin_attachment(call.attachment(), ADD_TIMEOUT) {
        Ok(lock) => lock,
        Err(error) if error.is_busy() => return Err(Failure::from(error)),
        // If nothing can be written, ADD reports that itself once it has found no error in its
        // configuration.
        Err(_) => return add(true),
    };
    let added = add(lock.may_have_records());
    if added.is_ok() {
        drop(lock.with_record());
    }
    added
}

/// How long DEL waits for a repair, which takes milliseconds. Then DEL goes on: it must finish.
pub const DEL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a repair waits for a DEL. After that there is nothing to repair.
pub(crate) const REPAIR_TIMEOUT: Duration = Duration::from_secs(2);

/// Excludes ADD, repairs and other DELs while an attachment is removed. If the lock cannot be
/// taken, DEL goes on, unless it is for a container that was gone and may have come back.
///
/// # Errors
/// Code 11 when it has come back ([`cni::GONE`]).
pub fn lock_for_removal(call: &Call<'_>) -> Result<Option<AttachmentLock>, Failure> {
    let index = Index::new(call.roots());
    let key = call.attachment();
    let begun = index.begin_attachment(key, DEL_TIMEOUT).map(Some);
    let lock = match begun {
        // If the folder cannot be created, no ADD can create it either.
        Err(error) if !error.is_busy() => index.lock_attachment(key, DEL_TIMEOUT),
        begun => begun,
    };
    let lock = match lock {
        Ok(lock) => lock,
        Err(error) if call.common().gone.is_some() => return Err(Failure::from(error)),
        Err(error) => {
            call.warn(format_args!("an ADD or a repair may be under way: {error}"));
            None
        }
    };
    call.refuse_if_back()?;
    Ok(lock)
}

/// Reads what a record holds, if it is still legible.
#[must_use]
pub fn recorded_in<T: DeserializeOwned>(record: &Record) -> Option<T> {
    serde_json::from_value(record.data.clone()).ok()
}

/// Refuses an interface name that already exists in the container, before anything is changed.
///
/// # Errors
/// Code 106 with `message`.
pub fn refuse_existing(
    inside: &RouteSocket,
    ifname: &str,
    message: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if inside.link_index(ifname)?.is_none() {
        return Ok(());
    }
    Err(Failure::new(codes::EXISTS, message())
        .with_details("the container has an interface of that name; nothing was changed"))
}

/// Records what a plugin needs to know later about an attachment, with the namespace it was created
/// in.
///
/// # Errors
/// Code 105.
pub fn write_record(
    call: &Call<'_>,
    index: &Index,
    plugin: &str,
    recorded: &impl Serialize,
    netns: &Netns,
) -> Result<(), Failure> {
    let data = serde_json::to_value(recorded).expect("a record has string keys only");
    write_data(call, index, plugin, data, netns)
}

fn write_data(
    call: &Call<'_>,
    index: &Index,
    plugin: &str,
    data: Value,
    netns: &Netns,
) -> Result<(), Failure> {
    let boot_id = state::boot_id()?;
    let mut record = Record::new(call.attachment().clone(), plugin, boot_id, data)
        .in_netns(call.netns_path().unwrap_or(Path::new("")), netns);
    record.ipam = call.ipam_object();
    Ok(index.put(&record)?)
}

/// Reads what a record holds, if there is one and it is still legible.
#[must_use]
pub fn recorded<T: DeserializeOwned>(
    index: &Index,
    key: &AttachmentKey,
    plugin: &str,
) -> Option<T> {
    recorded_in(&index.get(key, plugin).found?)
}

/// Removes the record.
///
/// # Errors
/// Code 105.
pub fn remove_record(index: &Index, key: &AttachmentKey, plugin: &str) -> Result<(), Failure> {
    Ok(index.remove(key, plugin).map(drop)?)
}

/// Opens the namespace that a record names by its path. `None` means that the path leads nowhere,
/// or to another namespace by now; it does not mean that the namespace is gone: see [`may_live`].
/// If the path cannot be followed, `census` tells where else the namespace is.
///
/// # Errors
/// Code 8 when the path cannot be followed and the namespace may still exist.
pub fn recorded_netns(record: &Record, census: &Census) -> Result<Option<Netns>, Failure> {
    let Some(noted) = record.noted().filter(|noted| !noted.path.as_os_str().is_empty()) else {
        return Ok(None);
    };
    let why = match noted.open() {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    match census.find(&noted) {
        None if census.life(&noted) != Life::Gone => {
            Err(Failure::from_chain(code::INVALID_NETNS, &why))
        }
        found => Ok(found),
    }
}

/// Opens the namespace that a record names, wherever `census` finds it. Used for plugins whose
/// state is only in the container, with addresses that other containers would otherwise get. GC has
/// already checked for namespaces that are gone ([`cni::GONE`]).
///
/// # Errors
/// As [`recorded_netns`]; code 11 when the namespace exists and cannot be entered.
pub fn find_recorded_netns(
    call: &Call<'_>,
    record: &Record,
    census: &Census,
) -> Result<Option<Netns>, Failure> {
    if let Some(netns) = recorded_netns(record, census)? {
        return Ok(Some(netns));
    }
    let gone = call.common().gone.iter().flatten();
    let is_gone =
        |id: NetnsIdentity| gone.clone().any(|one| (one.dev, one.ino) == (id.dev, id.ino));
    if record.netns_id.is_none_or(is_gone) {
        return Ok(None);
    }
    let Some(noted) = record.noted() else { return Ok(None) };
    match census.find(&noted) {
        None if census.life(&noted) == Life::Living => {
            let text = "the container's namespace is there, and no way leads there now";
            Err(Failure::new(code::TRY_AGAIN_LATER, text))
        }
        found => Ok(found),
    }
}

/// Reports whether an attachment may still have what its record names: it may, unless its namespace
/// is known to be gone. For conflicts; it may read every process.
#[must_use]
pub fn may_live(record: &Record, census: &Census) -> bool {
    record.noted().is_none_or(|noted| census.life(&noted) != Life::Gone)
}

/// Returns a plugin's records about attachments of this network that GC's list does not name.
/// Damaged ones are skipped with a warning.
#[must_use]
pub fn stale_records(call: &Call<'_>, index: &Index, plugin: &str) -> Vec<Record> {
    let mut records = records_of(call, index, plugin);
    records.retain(|record| is_stale(call, &record.attachment));
    records
}

/// Reports whether GC removes an attachment: it is of this network, and the list does not name it.
pub(crate) fn is_stale(call: &Call<'_>, key: &AttachmentKey) -> bool {
    let is_valid = call.is_valid_attachment(key.container_id.as_str(), key.ifname.as_str());
    key.network == *call.network() && !is_valid
}

/// Returns a plugin's records, of all networks. Damaged ones are skipped with a warning.
#[must_use]
pub fn records_of(call: &Call<'_>, index: &Index, plugin: &str) -> Vec<Record> {
    let records = index.list();
    for damaged in &records.damaged {
        call.warn(damaged);
    }
    records.found.into_iter().filter(|record| record.plugin == plugin).collect()
}

/// Turns an error into STATUS's answer "cannot serve ADD", unless it is one already or an error in
/// the configuration.
#[must_use]
pub fn unavailable(error: impl Into<Failure>) -> Failure {
    let error = error.into();
    let keeps = error.code() < code::PLUGIN_NOT_AVAILABLE || error.code() == code::INTERNAL;
    let keeps = keeps || error.code() == code::LIMITED_CONNECTIVITY;
    if keeps { error } else { error.with_code(code::PLUGIN_NOT_AVAILABLE) }
}
