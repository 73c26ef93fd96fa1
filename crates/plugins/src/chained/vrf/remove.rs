//! DEL and GC.

use cni::{Error, IfName};
use cni_plugin::Call;
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkSet, RouteSocket};

use super::config::Config;
use super::{NAME, Recorded, node};
use crate::shared::{attachment, kernel_error as kernel, netns_lock};

/// Runs DEL. Needs only the attachment's key.
pub(super) fn del(call: &Call<'_>) -> Result<(), Error> {
    attachment::del_inside(call, NAME, |netns, record| {
        let recorded: Option<Recorded> = record.and_then(attachment::recorded_in);
        // There is no record of ours: DEL removes what the reference created in the reference's
        // way.
        let configured = || Config::of(call).ok().map(|config| config.vrf);
        let vrf = recorded.as_ref().map(|recorded| recorded.vrf.clone()).or_else(configured);
        take_down(netns, call.ifname(), vrf.as_deref(), recorded.as_ref())
    })
}

/// Runs GC on attachments of this network that are not valid, by their records.
pub(super) fn gc(call: &Call<'_>) -> Result<(), Error> {
    attachment::gc_inside(call, NAME, |netns, record| {
        let recorded: Recorded = attachment::recorded_in(record).unwrap_or_default();
        let name = Some(recorded.vrf.as_str()).filter(|name| !name.is_empty());
        take_down(netns, &record.attachment.ifname, name, Some(&recorded))
    })
}

/// Takes the interface out of its VRF, if both exist, and removes the VRF with its last interface
/// if we created it. A VRF without our mark is removed only if we have no record of it: otherwise
/// the missing mark shows that someone else created it.
fn take_down(
    netns: &Netns,
    ifname: &IfName,
    vrf: Option<&str>,
    recorded: Option<&Recorded>,
) -> Result<(), Error> {
    let _lock = netns_lock::lock(netns)?;
    let mut socket = RouteSocket::open_in(netns).map_err(kernel)?;
    let link = socket.link_by_name(ifname.as_str()).map_err(kernel)?;
    // An ADD was killed after it had set the sysctl that keeps addresses.
    let moving = recorded.and_then(|recorded| recorded.moving.as_ref());
    let moving = moving.filter(|moving| link.as_ref().is_some_and(|l| l.index == moving.ifindex));
    if let Some(before) = moving.and_then(|moving| moving.keep_addr_on_down.as_deref()) {
        node::with_keep_addr_on_down(netns, ifname.as_str(), |keep| {
            keep.write_if_different(before).map(drop)
        })?;
    }
    let Some(vrf) = find_vrf(&mut socket, vrf, link.as_ref())? else { return Ok(()) };
    if let Some(link) = link.filter(|link| link.master == Some(vrf.index)) {
        let set = LinkSet { master: Some(None), ..LinkSet::default() };
        match socket.apply_one(&Change::SetLink { ifindex: link.index, set }) {
            Err(error) if !error.is_not_found() => return Err(kernel(error)),
            _ => {}
        }
    }
    let empty = socket.links_of_master(vrf.index).map_err(kernel)?.is_empty();
    if empty && (node::is_ours(&vrf) || recorded.is_none() && vrf.alias.is_none()) {
        socket.delete_link(vrf.index).map_err(kernel)?;
    }
    Ok(())
}

/// Finds the VRF by its name, or as the master of the interface.
fn find_vrf(
    socket: &mut RouteSocket,
    name: Option<&str>,
    link: Option<&Link>,
) -> Result<Option<Link>, Error> {
    let found = match (name, link.and_then(|link| link.master)) {
        (Some(name), _) => socket.link_by_name(name).map_err(kernel)?,
        (None, Some(master)) => socket.link_by_index(master).map_err(kernel)?,
        (None, None) => None,
    };
    Ok(found.filter(|found| found.vrf_table.is_some()))
}
