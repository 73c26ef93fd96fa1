//! Ports that the switch creates itself: links that appear on the host and move into the container.
//!
//! The datapath in user space holds such a link (a tap) by a descriptor, so the link may have any
//! name. The kernel's datapath identifies the link by its name in the database, and creates another
//! if it finds none of that name (`ovs_vport_locate`, linux net/openvswitch/vport.c). There the
//! link keeps its name, wherever it is, and the container's interface is a macvlan in mode
//! `passthru` over it, which passes on every frame and has the same hardware address.

use cni::AttachmentKey;
use cni_plugin::{Call, codes};
use kernel::mac::MacAddr;
use kernel::netns::Netns;
use kernel::route::{
    Change, Link, LinkKind, LinkSet, MacvlanMode, MacvlanOptions, NewLink, RouteSocket,
};

use super::connect::Site;
use crate::shared::failure::Failure;
use crate::shared::identity::{self, Identity};
use crate::shared::owner;

/// The kernel's kind for links of its own datapath.
const OF_KERNEL: &str = "openvswitch";

/// The kinds of the container's interface: a link of the datapath in user space, or one over a link
/// of the kernel's.
pub(super) const KINDS: &[&str] = &["tun", "macvlan"];

/// The kinds of the links that the switch creates.
const MADE: &[&str] = &[OF_KERNEL, "tun"];

/// A link that has become the container's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InteriorLink {
    pub(super) ifindex: u32,
    pub(super) mtu: u32,
    pub(super) identity: Identity,
}

/// Moves the link that the switch has created into the container, under its final name.
pub(super) fn take(
    call: &Call<'_>,
    site: &mut Site<'_>,
    name: &str,
    mac: MacAddr,
    mtu: Option<u32>,
) -> Result<InteriorLink, Failure> {
    let (netns, host, inside) = (site.netns, &mut *site.host, &mut *site.inside);
    let link = move_in(call, netns, host, inside, name, mac, mtu)?;
    Ok(InteriorLink { ifindex: link.index, mtu: link.mtu, identity: Identity::of(&link) })
}

/// Moves the link from the host into the container; returns the container's interface.
pub(super) fn move_in(
    call: &Call<'_>,
    netns: &Netns,
    host: &mut RouteSocket,
    inside: &mut RouteSocket,
    name: &str,
    mac: MacAddr,
    mtu: Option<u32>,
) -> Result<Link, Failure> {
    let link = host.link_by_name(name)?.ok_or_else(|| {
        Failure::new(
            codes::SWITCH,
            format!("Open vSwitch has taken port {name:?} and made no link"),
        )
        .with_details("is the database that of a switch in this network namespace?")
    })?;
    let keeps_name = link.is_kind(OF_KERNEL);
    let ifname = call.ifname().as_str();
    let set = LinkSet {
        alias: Some(owner::alias(call.attachment())),
        mac: Some(mac),
        mtu,
        ..LinkSet::default().up(false)
    };
    host.apply_one(&Change::SetLink { ifindex: link.index, set })?;
    let new_name = (!keeps_name).then(|| ifname.to_owned());
    let set = LinkSet { netns: Some(netns.clone()), name: new_name, ..LinkSet::default() };
    host.apply_one(&Change::SetLink { ifindex: link.index, set })?;
    let moved = if keeps_name { name } else { ifname };
    let link = inside.link_by_name(moved)?.ok_or_else(|| {
        Failure::new(codes::CONFLICT, format!("interface {moved:?} vanished from the container"))
    })?;
    if keeps_name { cover(call, inside, &link) } else { Ok(link) }
}

/// Creates the container's interface over a link that must keep its name.
fn cover(call: &Call<'_>, inside: &mut RouteSocket, lower: &Link) -> Result<Link, Failure> {
    let set = LinkSet { no_own_ipv6: true, ..LinkSet::default().up(true) };
    inside.apply_one(&Change::SetLink { ifindex: lower.index, set })?;
    let passthru = MacvlanOptions { mode: MacvlanMode::Passthru, broadcast_queue_len: None };
    let new = NewLink {
        parent: Some(lower.index),
        alias: Some(owner::alias(call.attachment())),
        ..NewLink::new(call.ifname().as_str(), LinkKind::Macvlan(passthru))
    };
    Ok(inside.create_link(&new)?)
}

/// Removes the link of a port that a switch which is not running has left behind, wherever it is. A
/// running switch has removed it.
pub(super) fn remove_link(
    key: &AttachmentKey,
    name: &str,
    netns: Option<&Netns>,
    recorded: Option<Identity>,
) -> Result<(), Failure> {
    let mut host = RouteSocket::open()?;
    remove_made(&mut host, name)?;
    let Some(netns) = netns else { return Ok(()) };
    let mut inside = RouteSocket::open_in(netns)?;
    let found = identity::find(&mut inside, key, recorded)?;
    for link in found.ours.iter().filter(|link| KINDS.iter().any(|kind| link.is_kind(kind))) {
        inside.delete_link(link.index)?;
    }
    remove_made(&mut inside, name)
}

/// Removes a link that the switch has created. A link of the kernel's datapath is left to the
/// switch, which removes it as soon as it runs: until then the link carries nothing.
fn remove_made(socket: &mut RouteSocket, name: &str) -> Result<(), Failure> {
    let Some(link) = socket.link_by_name(name)? else { return Ok(()) };
    if !MADE.iter().any(|kind| link.is_kind(kind)) {
        return Ok(());
    }
    match socket.delete_link(link.index) {
        Err(error) if error.is_unsupported() => {
            let down = Change::SetLink { ifindex: link.index, set: LinkSet::default().up(false) };
            match socket.apply_one(&down) {
                Err(error) if !error.is_not_found() => Err(Failure::from(error)),
                _ => Ok(()),
            }
        }
        done => Ok(done.map(drop)?),
    }
}

/// Removes a link of ours from the container whose switch is gone: a new one replaces it.
pub(super) fn remove_dead(inside: &mut RouteSocket, call: &Call<'_>) -> Result<(), Failure> {
    let ifname = call.ifname().as_str();
    let Some(link) = inside.link_by_name(ifname)? else { return Ok(()) };
    let ours = link.alias.as_ref() == Some(&owner::alias(call.attachment()));
    if !ours || !KINDS.iter().any(|kind| link.is_kind(kind)) {
        return Err(Failure::new(
            codes::CONFLICT,
            format!("interface {ifname:?} is no longer what ADD made"),
        ));
    }
    Ok(inside.delete_link(link.index).map(drop)?)
}
