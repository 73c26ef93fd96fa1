//! Removes what ADD created.

use kernel::route::{Change, Link, LinkSet, RouteSocket};

use super::config::Config;
use super::{Vrf, node};
use crate::engine::Removal;
use crate::shared::failure::Failure;
use crate::shared::netns_lock;

/// Takes the interface out of its VRF, if both exist, and removes the VRF with its last interface
/// if we created it. A VRF without our mark is removed only if we have no record of it: otherwise
/// the missing mark shows that another program created it.
pub(super) fn take_down(removal: &Removal<'_, Vrf>) -> Result<(), Failure> {
    let Some(netns) = &removal.netns else { return Ok(()) };
    let (ifname, recorded) = (&removal.key.ifname, removal.recorded.as_ref());
    // Without a record of ours, DEL removes what the reference created in the reference's way.
    let is_unknown = recorded.is_none() && removal.is_own_call();
    let configured = || {
        let config = is_unknown.then(|| Config::of(removal.call).ok()).flatten();
        config.map(|config| config.vrf)
    };
    let vrf = recorded.map(|recorded| recorded.vrf.clone()).or_else(configured);
    let vrf = vrf.as_deref().filter(|name| !name.is_empty());
    let _lock = netns_lock::lock(netns)?;
    let mut socket = RouteSocket::open_in(netns)?;
    let link = socket.link_by_name(ifname.as_str())?;
    // An ADD was killed after it had set the sysctl that keeps addresses.
    let moving = recorded.and_then(|recorded| recorded.moving.as_ref());
    let moving = moving.filter(|moving| link.as_ref().is_some_and(|l| l.index == moving.ifindex));
    if let Some(before) = moving.and_then(|moving| moving.keep_addr_on_down.as_deref()) {
        let restored = node::with_keep_addr_on_down(netns, ifname.as_str(), |keep| {
            keep.write_if_different(before).map(drop)
        });
        // It ends with the namespace.
        if let Err(error) = restored {
            removal.call.warn(format_args!("keep_addr_on_down of {ifname} stays set: {error}"));
        }
    }
    let Some(vrf) = find_vrf(&mut socket, vrf, link.as_ref())? else { return Ok(()) };
    if let Some(link) = link.filter(|link| link.master == Some(vrf.index)) {
        let set = LinkSet { master: Some(None), ..LinkSet::default() };
        match socket.apply_one(&Change::SetLink { ifindex: link.index, set }) {
            Err(error) if !error.is_not_found() => return Err(Failure::from(error)),
            _ => {}
        }
    }
    let empty = socket.links_of_master(vrf.index)?.is_empty();
    if empty && (node::is_ours(&vrf) || is_unknown && vrf.alias.is_none()) {
        socket.delete_link(vrf.index)?;
    }
    Ok(())
}

/// Finds the VRF by its name, or as the master of the interface.
fn find_vrf(
    socket: &mut RouteSocket,
    name: Option<&str>,
    link: Option<&Link>,
) -> Result<Option<Link>, Failure> {
    let found = match (name, link.and_then(|link| link.master)) {
        (Some(name), _) => socket.link_by_name(name)?,
        (None, Some(master)) => socket.link_by_index(master)?,
        (None, None) => None,
    };
    Ok(found.filter(|found| found.vrf_table.is_some()))
}
