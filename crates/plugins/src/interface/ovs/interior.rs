//! Ports that the switch makes itself: links that appear on the host and move into the container.

use cni::{AttachmentKey, Error};
use cni_plugin::{Call, codes};
use kernel::mac::MacAddr;
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkSet, RouteSocket};

use super::connect::Site;
use crate::shared::{kernel_error as kernel, owner};

/// What the kernel calls such links: its own datapath's, and those of the one in user space.
pub(super) const KINDS: &[&str] = &["openvswitch", "tun"];

/// A link that has become the container's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) ifindex: u32,
    pub(super) mtu: u32,
}

/// Moves the link that the switch has made into the container, under its final name.
pub(super) fn take(
    call: &Call<'_>,
    site: &mut Site<'_>,
    name: &str,
    mac: MacAddr,
    mtu: Option<u32>,
) -> Result<Taken, Error> {
    let (netns, host, inside) = (site.netns, &mut *site.host, &mut *site.inside);
    let link = move_in(call, netns, host, inside, name, mac, mtu)?;
    Ok(Taken { ifindex: link.index, mtu: link.mtu })
}

/// Moves the link from the host into the container.
pub(super) fn move_in(
    call: &Call<'_>,
    netns: &Netns,
    host: &mut RouteSocket,
    inside: &mut RouteSocket,
    name: &str,
    mac: MacAddr,
    mtu: Option<u32>,
) -> Result<Link, Error> {
    let link = host.link_by_name(name).map_err(kernel)?.ok_or_else(|| {
        Error::new(codes::SWITCH, format!("Open vSwitch has taken port {name:?} and made no link"))
            .with_details("is the database that of a switch in this network namespace?")
    })?;
    let set = LinkSet {
        alias: Some(owner::alias(call.attachment())),
        mac: Some(mac),
        mtu,
        ..LinkSet::default().up(false)
    };
    host.apply_one(&Change::SetLink { ifindex: link.index, set }).map_err(kernel)?;
    let set = LinkSet {
        netns: Some(netns.clone()),
        name: Some(call.ifname().to_string()),
        ..LinkSet::default()
    };
    host.apply_one(&Change::SetLink { ifindex: link.index, set }).map_err(kernel)?;
    let ifname = call.ifname().as_str();
    inside.link_by_name(ifname).map_err(kernel)?.ok_or_else(|| {
        Error::new(codes::CONFLICT, format!("interface {ifname:?} vanished from the container"))
    })
}

/// Removes what a switch that is not running has left of a port: its link, wherever it is. A switch that runs has removed it.
pub(super) fn remove_link(
    key: &AttachmentKey,
    name: &str,
    netns: Option<&Netns>,
) -> Result<(), Error> {
    let alias = owner::alias(key);
    let mut host = RouteSocket::open().map_err(kernel)?;
    let ours = |link: &Link| {
        KINDS.iter().any(|kind| link.is_kind(kind)) && link.alias.as_ref() == Some(&alias)
    };
    if let Some(link) = host.link_by_name(name).map_err(kernel)?
        && KINDS.iter().any(|kind| link.is_kind(kind))
    {
        host.delete_link(link.index).map_err(kernel)?;
    }
    let Some(netns) = netns else { return Ok(()) };
    let mut inside = RouteSocket::open_in(netns).map_err(kernel)?;
    if let Some(link) = inside.link_by_name(key.ifname.as_str()).map_err(kernel)?
        && ours(&link)
    {
        inside.delete_link(link.index).map_err(kernel)?;
    }
    Ok(())
}

/// Removes a link of ours from the container whose switch is gone: a new one takes its place.
pub(super) fn remove_dead(inside: &mut RouteSocket, call: &Call<'_>) -> Result<(), Error> {
    let ifname = call.ifname().as_str();
    let Some(link) = inside.link_by_name(ifname).map_err(kernel)? else { return Ok(()) };
    let ours = link.alias.as_ref() == Some(&owner::alias(call.attachment()));
    if !ours || !KINDS.iter().any(|kind| link.is_kind(kind)) {
        return Err(Error::new(
            codes::CONFLICT,
            format!("interface {ifname:?} is not what ADD made any more"),
        ));
    }
    inside.delete_link(link.index).map(drop).map_err(kernel)
}
