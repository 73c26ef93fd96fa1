//! What every plugin that makes an interface does alike: taking part in delegation, writing down, leaving.

use std::path::Path;

use cni::{AddResult, AttachmentKey, Error, code};
use cni_plugin::{Call, Delegate, codes};
use kernel::netns::{Netns, NetnsId};
use kernel::route::{Change, RouteSocket};
use serde::Serialize;
use serde::de::DeserializeOwned;
use state::{Index, NetnsIdentity, Record};

use super::failures::Failures;
use super::kernel_error;
use super::shared_object::file_error;
use super::undo::Undo;

/// The address plugin that talks over the container's interface itself: to give an address back it needs the
/// interface, while every other must not give it back before the interface is gone.
const OVER_THE_LINK: &str = "dhcp";

/// Says whether an address plugin needs the container's interface: with a carrier to get an address, and still there to
/// release it.
#[must_use]
pub fn talks_over_the_link(ipam: &Delegate<'_>) -> bool {
    ipam.plugin_type() == OVER_THE_LINK
}

/// Runs the address plugin's ADD, with its release recorded: behind the removal of everything recorded so far, or
/// before it where the release goes over the link.
///
/// # Errors
/// The address plugin's own; code 7 when it gave no address.
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

/// Runs DEL: `remove` takes away everything but the addresses' reservation, given the namespace if it is there.
///
/// The addresses are released last, and not at all while the link may still carry them. Where the address
/// plugin needs the link for it, they are taken from the link, released, and then the link goes.
///
/// # Errors
/// Every failure; independent steps go on.
pub fn del(
    call: &Call<'_>,
    remove: impl FnOnce(Option<&Netns>) -> Result<(), Error>,
) -> Result<(), Error> {
    let _no_repair = super::repair::keep_off(call);
    let mut failures = Failures::new();
    let netns =
        failures.note("open the container's namespace", call.open_netns_if_there()).flatten();
    let ipam = call.ipam();
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

/// Takes every global address from the container's interface. It stays up.
fn take_addresses(call: &Call<'_>, netns: &Netns) -> Result<(), Error> {
    let mut inside = RouteSocket::open_in(netns).map_err(kernel_error)?;
    let Some(link) = inside.link_by_name(call.ifname().as_str()).map_err(kernel_error)? else {
        return Ok(());
    };
    let ifindex = link.index;
    let addresses = inside.addresses(Some(ifindex)).map_err(kernel_error)?;
    for address in addresses.iter().filter(|address| !is_link_local(address.address.addr())) {
        let change = Change::DelAddress { ifindex, address: address.address };
        match inside.apply_one(&change) {
            // A secondary address goes with its primary one.
            Err(error) if !error.is_not_found() => return Err(kernel_error(error)),
            _ => {}
        }
    }
    Ok(())
}

fn is_link_local(address: std::net::IpAddr) -> bool {
    match address {
        std::net::IpAddr::V4(_) => false,
        std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Refuses an interface name that the container has already, before anything is changed.
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

/// Writes down what a plugin wants to know later about an attachment, with the namespace it was made in.
///
/// # Errors
/// Code 105.
pub fn write_down(
    call: &Call<'_>,
    index: &Index,
    plugin: &str,
    facts: &impl Serialize,
    netns: NetnsId,
) -> Result<(), Error> {
    let data = serde_json::to_value(facts).expect("facts have string keys only");
    let boot_id = state::boot_id().map_err(|error| file_error(&error))?;
    let identity = NetnsIdentity { dev: netns.dev, ino: netns.ino };
    let record = Record::new(call.attachment().clone(), plugin, boot_id, data)
        .with_netns(call.netns_path().unwrap_or(Path::new("")), Some(identity));
    index.put(&record).map_err(|error| file_error(&error))
}

/// Reads what was written down, if it was and is still legible.
#[must_use]
pub fn read_facts<T: DeserializeOwned>(
    index: &Index,
    key: &AttachmentKey,
    plugin: &str,
) -> Option<T> {
    let record = index.get(key, plugin).found?;
    serde_json::from_value(record.data).ok()
}

/// Forgets what was written down.
///
/// # Errors
/// Code 105.
pub fn forget(index: &Index, key: &AttachmentKey, plugin: &str) -> Result<(), Error> {
    index.remove(key, plugin).map(drop).map_err(|error| file_error(&error))
}

/// Opens the namespace a record speaks of: `None` when it is gone, or its path leads to another one by now.
///
/// # Errors
/// Code 8 when it is there but cannot be opened.
pub fn recorded_netns(record: &Record) -> Result<Option<Netns>, Error> {
    let Some(path) = record.netns.as_deref().filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(None);
    };
    let netns = match Netns::open(path) {
        Ok(netns) => netns,
        Err(error) if error.is_missing() => return Ok(None),
        Err(kernel::netns::NetnsError::NotANamespace { .. }) => return Ok(None),
        Err(error) => return Err(Error::from_chain(code::INVALID_NETNS, &error)),
    };
    let id = netns.id();
    let same = record.netns_id.is_none_or(|was| was.dev == id.dev && was.ino == id.ino);
    Ok(same.then_some(netns))
}

/// Returns the records a plugin wrote about attachments of this network that GC's list does not name. Damaged ones
/// are passed over with a warning.
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
    /// Links of these attachments, or none.
    LinksOf(Vec<AttachmentKey>),
    /// Nobody knows: the host's links could not be listed.
    Unknown,
}

/// Runs the address plugin's GC, the last step of GC. Addresses that a link may still carry stay reserved.
pub fn collect_addresses(call: &Call<'_>, left: &Left, failures: &mut Failures) {
    let Some(ipam) = call.ipam() else { return };
    match left {
        Left::LinksOf(keys) if keys.is_empty() => {
            failures.note("collect addresses", ipam.gc());
        }
        Left::LinksOf(keys) => {
            for key in keys {
                call.warn(format_args!(
                    "the addresses of {key} stay reserved: its link may still carry them"
                ));
            }
            failures.note("collect addresses", ipam.gc_keeping(keys));
        }
        Left::Unknown => call.warn("addresses are not collected: a link may still carry one"),
    }
}

/// Turns an error into STATUS's answer "cannot serve ADD" unless it is one already, or a mistake in the configuration.
#[must_use]
pub fn unavailable(error: Error) -> Error {
    let keeps = error.code < code::PLUGIN_NOT_AVAILABLE || error.code == code::INTERNAL;
    let keeps = keeps || error.code == code::LIMITED_CONNECTIVITY;
    Error { code: if keeps { error.code } else { code::PLUGIN_NOT_AVAILABLE }, ..error }
}
