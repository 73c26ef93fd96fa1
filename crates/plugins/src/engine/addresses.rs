//! The addresses of an attachment, from its IPAM plugin.

use cni::{AddResult, AttachmentKey};
use cni_plugin::{Call, Delegate};
use kernel::netns::Netns;
use kernel::route::{Change, Link, RouteSocket, is_link_local_v6};
use state::Index;

use super::Undo;
use crate::shared::attachment::stale_records;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::identity::{self, Identity};
use crate::shared::{container, dropping, pair};

/// Reports whether an IPAM plugin needs the container's interface: with a carrier to get an
/// address, and still present to release it. Every other must not release an address before the
/// interface is gone.
#[must_use]
pub(crate) fn talks_over_the_link(ipam: &Delegate<'_>) -> bool {
    crate::info(ipam.plugin_type()).is_some_and(|info| info.over_the_link)
}

/// Reports whether an IPAM plugin knows for which namespace it gave an address: it can release that
/// of one life of a container and keep that of another.
pub(super) fn knows_lives(ipam: &Delegate<'_>) -> bool {
    ipam.plugin_type() == crate::ipam::host_local::INFO.name
}

/// Runs the IPAM plugin's ADD and adds the release to the undo: at the end, if all else was undone,
/// or before the link goes if the plugin releases over the link. Adds the removal of the routes that
/// drop packets, too.
///
/// # Errors
/// The IPAM plugin's own; code 7 when it gave no address; 106 for a route that drops packets and that
/// the container has already.
pub(super) fn add<'a>(
    call: &Call<'_>,
    ipam: Delegate<'a>,
    undo: &mut Undo<'a>,
) -> Result<AddResult, Failure> {
    let result = ipam.add()?;
    let release = move || Ok(ipam.undo()?);
    if talks_over_the_link(&ipam) {
        undo.push("release the addresses", release);
    } else {
        undo.push_last("release the addresses", release);
    }
    container::check_ipam_result(&result)?;
    let dropping = dropping::of_result(&result);
    if !dropping.is_empty() {
        let netns = call.open_netns()?;
        dropping::refuse_existing(&netns, &dropping)?;
        undo.push("remove routes", move || dropping::remove(&netns, &dropping));
    }
    Ok(result)
}

/// Removes every global address from the attachment's interface, even if the container renamed it.
/// The interface stays up. Another interface with the attachment's name keeps its addresses.
pub(super) fn take_from_link(call: &Call<'_>, netns: &Netns) -> Result<(), Failure> {
    let mut inside = RouteSocket::open_in(netns)?;
    for link in own_links(call, &mut inside)? {
        let ifindex = link.index;
        let addresses = inside.addresses(Some(ifindex))?;
        for address in addresses.iter().filter(|address| !is_link_local_v6(address.address.addr()))
        {
            let change = Change::DelAddress { ifindex, address: address.address };
            match inside.apply_one(&change) {
                // The kernel removes a secondary address together with its primary one.
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Finds the attachment's links in its container: by the record, by their mark, and for a pair by
/// the host's end. If the plugin keeps no record, the link is known by its name alone.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn own_links(call: &Call<'_>, inside: &mut RouteSocket) -> Result<Vec<Link>, Failure> {
    let key = call.attachment();
    let records = Index::new(call.roots()).of_attachment(key);
    let recorded = records.found.iter().find_map(|record| Identity::recorded(&record.data));
    let found = identity::find(inside, key, recorded)?;
    if !found.ours.is_empty() {
        return Ok(found.ours);
    }
    let recorded_name = records.found.iter().find_map(|record| pair::recorded_name(&record.data));
    let end = pair::container_end(inside, key, recorded_name)?;
    let is_unknown = records.found.is_empty() && records.damaged.is_empty();
    Ok(end.or(found.other.filter(|_| is_unknown)).into_iter().collect())
}

/// What GC could not remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leftovers {
    /// Links of these attachments; no links if the list is empty.
    LinksOf(Vec<AttachmentKey>),
    /// Unknown: the host's links could not be listed.
    Unknown,
}

/// Runs the IPAM plugin's GC, the last step of GC. Addresses that a link may still carry stay
/// reserved, and so do those of attachments that an ADD has recorded since GC listed the `stale` ones.
pub(super) fn collect(
    call: &Call<'_>,
    plugin: &str,
    stale: &[AttachmentKey],
    left: Leftovers,
    failures: &mut Failures,
) {
    let Some(ipam) = call.ipam() else { return };
    match left {
        Leftovers::LinksOf(mut keys) => {
            for key in &keys {
                call.warn(format_args!(
                    "the addresses of {key} stay reserved: its link may still carry them"
                ));
            }
            let records = stale_records(call, &Index::new(call.roots()), plugin);
            let since = records.into_iter().map(|record| record.attachment);
            keys.extend(since.filter(|key| !stale.contains(key)));
            let collected = if keys.is_empty() { ipam.gc() } else { ipam.gc_keeping(&keys) };
            failures.note("collect addresses", collected);
        }
        Leftovers::Unknown => call.warn("addresses are not collected: a link may still carry one"),
    }
}
