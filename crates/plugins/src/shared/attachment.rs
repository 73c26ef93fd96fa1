//! What every plugin that creates an interface does in the same way: delegation, records, removal.

use std::path::Path;
use std::time::Duration;

use cni::{AddResult, AttachmentKey, Command, Error, code};
use cni_plugin::{Call, Delegate, codes};
use kernel::living::{Census, Life};
use kernel::netns::Netns;
use kernel::route::{Change, Link, RouteSocket, is_link_local_v6};
use serde::Serialize;
use serde::de::DeserializeOwned;
use state::{AttachmentLock, Index, LockError, NetnsIdentity, Record};

use super::failures::Failures;
use super::identity::{self, Identity};
use super::shared_object::{file_error, lock_error};
use super::undo::Undo;
use super::{kernel_error, pair};

/// Reports whether an IPAM plugin needs the container's interface: with a carrier to get an
/// address, and still present to release it. Every other must not release an address before the
/// interface is gone.
#[must_use]
pub fn talks_over_the_link(ipam: &Delegate<'_>) -> bool {
    crate::info(ipam.plugin_type()).is_some_and(|info| info.over_the_link)
}

/// Runs the IPAM plugin's ADD and records the release. The release comes after the undo of
/// everything recorded so far, or before it if the plugin releases over the link.
///
/// # Errors
/// The IPAM plugin's own; code 7 when it gave no address.
pub fn add_addresses<'a>(ipam: Delegate<'a>, undo: &mut Undo<'a>) -> Result<AddResult, Error> {
    let result = ipam.add()?;
    let release = move || ipam.del();
    if talks_over_the_link(&ipam) {
        undo.record("release the addresses", release);
    } else {
        undo.record_as_first("release the addresses", release);
    }
    super::container::check_ipam_result(&result)?;
    Ok(result)
}

/// How long ADD waits for a DEL, a repair or another ADD of the same attachment, which take
/// milliseconds.
pub const ADD_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs ADD under the attachment's lock, which DEL, repair and GC take too. A call from within a
/// CHECK that repairs already has the lock.
///
/// # Errors
/// Code 11 when the lock cannot be taken in time; else those of `add`.
pub fn add_alone(
    call: &Call<'_>,
    add: impl FnOnce() -> Result<AddResult, Error>,
) -> Result<AddResult, Error> {
    if call.command() != Command::Add {
        return add();
    }
    let index = Index::new(call.roots());
    let lock = match index.begin_attachment(call.attachment(), ADD_TIMEOUT) {
        Ok(lock) => lock,
        Err(error) if error.is_busy() => return Err(lock_error(&error)),
        // If nothing can be written, ADD reports that itself once it has found no error in its
        // configuration.
        Err(_) => return add(),
    };
    let added = add();
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
pub fn lock_out_repair(call: &Call<'_>) -> Result<Option<AttachmentLock>, Error> {
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
        Err(error) if call.common().gone.is_some() => return Err(lock_error(&error)),
        Err(error) => {
            call.warn(format_args!("an ADD or a repair may be under way: {error}"));
            None
        }
    };
    call.refuse_if_back()?;
    Ok(lock)
}

/// How long GC waits for an ADD, a DEL or a repair of an attachment, which take milliseconds.
const GC_TIMEOUT: Duration = Duration::from_secs(2);

/// An attachment that GC's list does not name, as it was when GC read it.
#[derive(Debug, Clone, PartialEq)]
pub struct Stale {
    /// The attachment.
    pub key: AttachmentKey,
    record: Option<Record>,
}

impl Stale {
    /// Reads an attachment as `plugin` recorded it.
    #[must_use]
    pub fn look(index: &Index, plugin: &str, key: AttachmentKey) -> Self {
        Stale { record: index.get(&key, plugin).found, key }
    }

    /// Creates one from a record that was just read.
    #[must_use]
    pub fn of(record: Record) -> Self {
        Stale { key: record.attachment.clone(), record: Some(record) }
    }

    /// Reports whether the plugin had recorded it.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.record.is_some()
    }

    /// Removes it with `remove`, under its lock. The list is older than the read, so it does not
    /// name what another call has created or removed since; that is kept, and so is what another
    /// call was creating when GC reached it.
    ///
    /// # Errors
    /// Code 11 when an ADD or a DEL is running for it; else those of `remove`.
    pub fn collect(
        &self,
        index: &Index,
        plugin: &str,
        remove: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.collect_under(
            index,
            plugin,
            &|timeout| index.begin_attachment(&self.key, timeout),
            remove,
        )
    }

    /// Does the same as [`Stale::collect`] under another lock. `begin` takes it, and waits for
    /// others for the time it is given.
    ///
    /// # Errors
    /// As [`Stale::collect`].
    pub fn collect_under(
        &self,
        index: &Index,
        plugin: &str,
        begin: &dyn Fn(Duration) -> Result<AttachmentLock, LockError>,
        remove: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let begin = |timeout| match begin(timeout) {
            Ok(lock) => Ok(Some(lock)),
            Err(error) if error.is_busy() => Err(error),
            // If nothing can be written, no ADD can run either.
            Err(_) => Ok(None),
        };
        let (_lock, waited) = match begin(Duration::ZERO) {
            Ok(lock) => (lock, false),
            Err(_) => (begin(GC_TIMEOUT).map_err(|error| lock_error(&error))?, true),
        };
        let now = index.get(&self.key, plugin).found;
        if now.is_some() && (waited || now != self.record) {
            let text = format!("{} was attached meanwhile", self.key);
            return Err(Error::new(code::TRY_AGAIN_LATER, text).with_details("nothing was removed"));
        }
        remove()
    }
}

/// Runs DEL: `remove` gets the namespace if it is there, and removes everything but the reservation
/// of the addresses.
///
/// DEL releases the addresses last, and not at all while the link may still carry them. If the IPAM
/// plugin needs the link for the release, DEL takes the addresses from the link, releases them, and
/// then removes the link.
///
/// # Errors
/// Every failure; independent steps go on.
pub fn del(
    call: &Call<'_>,
    remove: impl FnOnce(Option<&Netns>) -> Result<(), Error>,
) -> Result<(), Error> {
    let open = || call.open_netns_if_there();
    del_with(call, open, remove)
}

/// Does the same as [`del`] for a plugin that looks into the namespace only if it does not find the
/// host's side. `remove` gets whatever namespace the path leads to, and calls
/// [`Call::leads_to_another`] before it changes anything there.
///
/// # Errors
/// As [`del`].
pub fn del_pair(
    call: &Call<'_>,
    remove: impl FnOnce(Option<&Netns>) -> Result<(), Error>,
) -> Result<(), Error> {
    let over_the_link = call.ipam().as_ref().is_some_and(talks_over_the_link);
    let open = || match over_the_link {
        true => call.open_netns_if_there(),
        // The container's end is deleted with the host's end, whether or not the namespace can be
        // entered.
        false => Ok(call.open_any_netns().ok().flatten()),
    };
    del_with(call, open, remove)
}

/// Runs DEL of a plugin that changes nothing but the container's namespace: `remove` gets the one
/// that the call's path or the record leads to, with the record. If it is gone, everything in it is
/// gone too.
///
/// # Errors
/// Those of `remove`; code 8 when the namespace may live and cannot be entered; code 105 for our
/// own files.
pub fn del_inside(
    call: &Call<'_>,
    plugin: &str,
    remove: impl FnOnce(&Netns, Option<&Record>) -> Result<(), Error>,
) -> Result<(), Error> {
    let _no_repair = lock_out_repair(call)?;
    let index = Index::new(call.roots());
    let key = call.attachment();
    let record = index.get(key, plugin).found;
    let netns = match (call.open_netns_if_there()?, &record) {
        (None, Some(record)) => recorded_netns(record, &Census::new())?,
        (netns, _) => netns,
    };
    if let Some(netns) = netns {
        remove(&netns, record.as_ref())?;
    }
    forget(&index, key, plugin)
}

/// Runs GC of such a plugin on attachments of this network that are not valid, by their records.
///
/// # Errors
/// Every failure; the other attachments are collected.
pub fn gc_inside(
    call: &Call<'_>,
    plugin: &str,
    remove: impl Fn(&Netns, &Record) -> Result<(), Error>,
) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let (mut failures, census) = (Failures::new(), Census::new());
    for record in stale_records(call, &index, plugin) {
        let key = &record.attachment;
        let collected = Stale::of(record.clone()).collect(&index, plugin, || {
            if let Some(netns) = recorded_netns(&record, &census)? {
                remove(&netns, &record)?;
            }
            forget(&index, key, plugin)
        });
        failures.note(format_args!("collect {key}"), collected);
    }
    failures.into_result()
}

/// Reads what a record holds, if it is still legible.
#[must_use]
pub fn recorded_in<T: DeserializeOwned>(record: &Record) -> Option<T> {
    serde_json::from_value(record.data.clone()).ok()
}

fn del_with(
    call: &Call<'_>,
    open: impl FnOnce() -> Result<Option<Netns>, Error>,
    remove: impl FnOnce(Option<&Netns>) -> Result<(), Error>,
) -> Result<(), Error> {
    let _no_repair = lock_out_repair(call)?;
    let mut failures = Failures::new();
    let netns = failures.note("open the container's namespace", open()).flatten();
    // A plugin that was missing during ADD gave no address, and DEL must not wait for it to appear.
    let ipam = call.ipam().filter(|ipam| !call.is_undo() || ipam.is_there());
    let over_the_link = ipam.filter(talks_over_the_link);
    if let Some(ipam) = over_the_link {
        if let Some(netns) = &netns {
            failures.note("take the addresses from the link", take_addresses(call, netns));
        }
        failures.note("release the addresses", ipam.del());
    }
    let removed = remove(netns.as_ref());
    let link_may_live = removed.is_err() || !failures.is_empty();
    failures.note("remove the attachment", removed);
    if let (Some(ipam), None) = (ipam, over_the_link) {
        if link_may_live {
            call.warn("the addresses stay reserved: the link may still carry them");
        } else {
            failures.note("release the addresses", ipam.del());
        }
    }
    failures.into_result()
}

/// Removes every global address from the attachment's interface, whatever name the container gave
/// it. The interface stays up. Another interface with the attachment's name keeps its addresses.
fn take_addresses(call: &Call<'_>, netns: &Netns) -> Result<(), Error> {
    let mut inside = RouteSocket::open_in(netns).map_err(kernel_error)?;
    for link in own_links(call, &mut inside)? {
        let ifindex = link.index;
        let addresses = inside.addresses(Some(ifindex)).map_err(kernel_error)?;
        for address in addresses.iter().filter(|address| !is_link_local_v6(address.address.addr()))
        {
            let change = Change::DelAddress { ifindex, address: address.address };
            match inside.apply_one(&change) {
                // The kernel removes a secondary address together with its primary one.
                Err(error) if !error.is_not_found() => return Err(kernel_error(error)),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Finds the attachment's links in its container: by the record, by their mark, and for a pair by
/// the host's end. If the plugin keeps no record, the link is known by its name alone.
fn own_links(call: &Call<'_>, inside: &mut RouteSocket) -> Result<Vec<Link>, Error> {
    let key = call.attachment();
    let records = Index::new(call.roots()).of_attachment(key);
    let recorded = records.found.iter().find_map(|record| Identity::recorded(&record.data));
    let found = identity::find(inside, key, recorded)?;
    if !found.ours.is_empty() {
        return Ok(found.ours);
    }
    let end = pair::container_end(inside, key)?;
    let is_unknown = records.found.is_empty() && records.damaged.is_empty();
    Ok(end.or(found.other.filter(|_| is_unknown)).into_iter().collect())
}

/// Refuses an interface name that already exists in the container, before anything is changed.
///
/// # Errors
/// Code 106 with `message`.
pub fn refuse_existing(
    inside: &RouteSocket,
    ifname: &str,
    message: impl FnOnce() -> String,
) -> Result<(), Error> {
    if inside.link_index(ifname).map_err(kernel_error)?.is_none() {
        return Ok(());
    }
    Err(Error::new(codes::EXISTS, message())
        .with_details("the container has an interface of that name; nothing was changed"))
}

/// Records what a plugin needs to know later about an attachment, with the namespace it was created
/// in.
///
/// # Errors
/// Code 105.
pub fn write_down(
    call: &Call<'_>,
    index: &Index,
    plugin: &str,
    facts: &impl Serialize,
    netns: &Netns,
) -> Result<(), Error> {
    let data = serde_json::to_value(facts).expect("facts have string keys only");
    let boot_id = state::boot_id().map_err(|error| file_error(&error))?;
    let record = Record::new(call.attachment().clone(), plugin, boot_id, data)
        .in_netns(call.netns_path().unwrap_or(Path::new("")), netns);
    index.put(&record).map_err(|error| file_error(&error))
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
pub fn forget(index: &Index, key: &AttachmentKey, plugin: &str) -> Result<(), Error> {
    index.remove(key, plugin).map(drop).map_err(|error| file_error(&error))
}

/// Opens the namespace that a record names by its path. `None` means that the path leads nowhere,
/// or to another namespace by now; it does not mean that the namespace is gone: see [`may_live`].
/// If the path cannot be followed, `census` tells where else the namespace is.
///
/// # Errors
/// Code 8 when the path cannot be followed and the namespace may still exist.
pub fn recorded_netns(record: &Record, census: &Census) -> Result<Option<Netns>, Error> {
    let Some(noted) = record.noted().filter(|noted| !noted.path.as_os_str().is_empty()) else {
        return Ok(None);
    };
    let why = match noted.open() {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    match census.find(&noted) {
        None if census.life(&noted) != Life::Gone => {
            Err(Error::from_chain(code::INVALID_NETNS, &why))
        }
        found => Ok(found),
    }
}

/// Opens the namespace that a record names, wherever `census` finds it. Used for plugins whose
/// state is only in the container, with addresses that would otherwise be given to others. GC has
/// already checked for namespaces that are gone ([`cni::GONE`]).
///
/// # Errors
/// As [`recorded_netns`]; code 11 when the namespace exists and cannot be entered.
pub fn find_recorded_netns(
    call: &Call<'_>,
    record: &Record,
    census: &Census,
) -> Result<Option<Netns>, Error> {
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
            Err(Error::new(code::TRY_AGAIN_LATER, text))
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
    let records = index.of_network(call.network().as_str());
    for damaged in &records.damaged {
        call.warn(format_args!("passed over {damaged}"));
    }
    let stale = records.found.into_iter().filter(|record| {
        let key = &record.attachment;
        record.plugin == plugin
            && !call.is_valid_attachment(key.container_id.as_str(), key.ifname.as_str())
    });
    stale.collect()
}

/// What GC could not remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// Links of these attachments; no links if the list is empty.
    LinksOf(Vec<AttachmentKey>),
    /// Unknown: the host's links could not be listed.
    Unknown,
}

/// Runs the IPAM plugin's GC, the last step of GC. Addresses that a link may still carry stay
/// reserved, and so do those of attachments that an ADD has recorded since GC `looked`.
pub fn collect_addresses(
    call: &Call<'_>,
    plugin: &str,
    looked: &[AttachmentKey],
    left: Left,
    failures: &mut Failures,
) {
    let Some(ipam) = call.ipam() else { return };
    match left {
        Left::LinksOf(mut keys) => {
            for key in &keys {
                call.warn(format_args!(
                    "the addresses of {key} stay reserved: its link may still carry them"
                ));
            }
            let records = stale_records(call, &Index::new(call.roots()), plugin);
            let since = records.into_iter().map(|record| record.attachment);
            keys.extend(since.filter(|key| !looked.contains(key)));
            let collected = if keys.is_empty() { ipam.gc() } else { ipam.gc_keeping(&keys) };
            failures.note("collect addresses", collected);
        }
        Left::Unknown => call.warn("addresses are not collected: a link may still carry one"),
    }
}

/// Turns an error into STATUS's answer "cannot serve ADD", unless it is one already or an error in
/// the configuration.
#[must_use]
pub fn unavailable(error: Error) -> Error {
    let keeps = error.code < code::PLUGIN_NOT_AVAILABLE || error.code == code::INTERNAL;
    let keeps = keeps || error.code == code::LIMITED_CONNECTIVITY;
    Error { code: if keeps { error.code } else { code::PLUGIN_NOT_AVAILABLE }, ..error }
}
