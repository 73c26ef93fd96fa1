//! The link that carries the gateway of a VLAN: one end of a veth pair whose other end is a port of
//! the bridge.

use cni_plugin::codes;
use kernel::mac::MacAddr;
use kernel::route::{
    BridgeVlan, BridgeVlanSide, Change, Link, LinkKind, LinkSet, NewLink, RouteSocket, VethPeer,
};
use state::Index;
use wanted::{Gateways, Place};

use super::bridge_link::{self, BridgeNote};
use super::gateway::{self, ConflictPolicy};
use super::vrf;
use crate::engine::{Comparison, Mismatch, Picture, sound};
use crate::shared::failure::Failure;
use crate::shared::{advertisements, host_side, owner};

/// Creates the link if necessary, adds the gateways' addresses, and returns its name and hardware
/// address.
///
/// # Errors
/// Code 100 with the kernel's words, 105 when the note cannot be written, 108 when something
/// foreign is in the way.
pub(super) fn ensure(
    host: &mut RouteSocket,
    index: &Index,
    bridge: &Link,
    vlan: u16,
    wanted: &Gateways,
    others: ConflictPolicy,
    note: &mut BridgeNote,
) -> Result<(String, Option<MacAddr>), Failure> {
    let name = wanted.link.as_str();
    let link = match host.link_by_name(name)? {
        Some(link) if link.kind.as_deref() == Some("veth") => {
            vrf::require_inside(host, &link, wanted.vrf.as_deref())?;
            if advertisements::accepting_value(&link.name)?.is_some() {
                advertisements::refuse(&link.name)?;
            }
            // It comes up last: an ADD may have been killed before that.
            if !link.up() {
                give_link_local(host, &link, wanted);
                finish(host, &link, bridge, vlan)?;
            }
            link
        }
        Some(_) => {
            return Err(Failure::new(
                codes::CONFLICT,
                format!("{name:?} already exists but is not a veth link"),
            ));
        }
        None => {
            refuse_renamed(host, name, vlan)?;
            let port = port_name(name);
            if !note.vlan_links.iter().any(|known| known == name) {
                note.vlan_links.push(name.to_owned());
                // Before the link is there: until its other end is a port of the bridge, nothing
                // else leads to it.
                bridge_link::write_note(index, &bridge_link::object(&bridge.name), note)?;
            }
            let new = NewLink {
                mac: wanted.mac.as_ref().and_then(|mac| mac.parse().ok()),
                mtu: Some(bridge.mtu),
                alias: Some(mark()),
                master: vrf::index(host, wanted.vrf.as_deref())?,
                ..NewLink::new(name, LinkKind::Veth(VethPeer::new(&port)))
            };
            let link = host.create_link(&new)?;
            advertisements::refuse(name)?;
            let peer = link.peer_index.ok_or_else(|| {
                Failure::new(codes::CONFLICT, format!("{port:?} vanished while being made"))
            })?;
            give_link_local(host, &link, wanted);
            host.apply(&connect(&link, peer, bridge, vlan))?;
            link
        }
    };
    gateway::add(host, &link, &wanted.addresses, others, &mut Vec::new())?;
    Ok((link.name, link.mac))
}

fn give_link_local(host: &mut RouteSocket, link: &Link, wanted: &Gateways) {
    if wanted.addresses.iter().any(|gateway| gateway.addr().is_ipv6()) {
        host_side::give_link_local(host, link);
    }
}

/// Connects a link that an ADD created, if it was killed before it had done so.
fn finish(host: &mut RouteSocket, link: &Link, bridge: &Link, vlan: u16) -> Result<(), Failure> {
    let port = port(host, link)?.filter(|port| port.name == port_name(&link.name));
    let Some(port) = port else { return Ok(()) };
    let set = LinkSet { alias: Some(mark()), ..LinkSet::default() };
    let mut changes = vec![Change::SetLink { ifindex: link.index, set }];
    changes.extend(connect(link, port.index, bridge, vlan));
    Ok(host.apply(&changes)?)
}

/// Refuses a VLAN whose link has another name by now: a second link would have the same gateway.
///
/// # Errors
/// Code 108 naming both; code 100 when the kernel does not answer.
pub(super) fn refuse_renamed(host: &mut RouteSocket, name: &str, vlan: u16) -> Result<(), Failure> {
    if host.link_by_name(name)?.is_some() {
        return Ok(());
    }
    let Some(renamed) = other_end(host, &port_name(name))? else { return Ok(()) };
    let message = format!(
        "link {name:?} with the gateway of VLAN {vlan} is called {:?} by now",
        renamed.name
    );
    Err(Failure::new(codes::CONFLICT, message)
        .with_details("give it its name back, or remove it: the next ADD creates it again"))
}

/// Returns the name of the other end of a link with gateways.
fn port_name(link: &str) -> String {
    format!("veth{}", cni::owner::sha512_hex(link, 8))
}

/// Returns the changes that bring both ends up and make the other end a port of the bridge in this
/// VLAN only.
fn connect(link: &Link, port: u32, bridge: &Link, vlan: u16) -> Vec<Change> {
    let up = LinkSet::default().up(true);
    let enslave = LinkSet { master: Some(Some(bridge.index)), ..up.clone() };
    let side = BridgeVlanSide::Port;
    let mut changes = vec![Change::SetLink { ifindex: port, set: enslave }];
    let default = bridge.default_vlan();
    if default != 0 && vlan != default {
        let vlan = BridgeVlan::tagged(default);
        changes.push(Change::DelBridgeVlan { ifindex: port, side, vlan });
    }
    changes.push(Change::AddBridgeVlan { ifindex: port, side, vlan: BridgeVlan::access(vlan) });
    changes.push(Change::SetLink { ifindex: link.index, set: up });
    changes
}

/// Returns the mark of a link with gateways.
fn mark() -> String {
    format!("{}gateway", owner::PREFIX)
}

/// Finds the link with the gateways whose other end has this name.
fn other_end(host: &mut RouteSocket, port: &str) -> Result<Option<Link>, Failure> {
    match host.link_by_name(port)? {
        Some(port) => behind(host, &port),
        None => Ok(None),
    }
}

/// Finds the link with gateways behind a port, even if it was renamed.
fn behind(host: &mut RouteSocket, port: &Link) -> Result<Option<Link>, Failure> {
    let is_here = port.is_kind("veth") && port.link_netnsid.is_none();
    let Some(index) = port.peer_index.filter(|_| is_here) else { return Ok(None) };
    let link = host.link_by_index(index)?;
    Ok(link.filter(|link| link.alias.as_deref() == Some(mark().as_str())))
}

/// Removes the links with gateways behind these ports of a bridge, which other programs may have
/// renamed.
///
/// # Errors
/// Code 100 with the kernel's words.
pub(super) fn remove_all(host: &mut RouteSocket, ports: &[Link]) -> Result<(), Failure> {
    for port in ports {
        if let Some(link) = behind(host, port)? {
            host.delete_link(link.index)?;
        }
    }
    Ok(())
}

/// Reports whether a link is one that we created for the gateways of a VLAN.
pub(super) fn is_ours(link: &Link) -> bool {
    let marked = link.alias.as_deref().is_some_and(|mark| mark.starts_with(owner::PREFIX));
    link.is_kind("veth") && marked
}

/// Finds the link with gateways that an ADD created under a name. If it was killed before the link
/// had its mark, the name of the other end shows whose it is.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn made(host: &mut RouteSocket, name: &str) -> Result<Option<Link>, Failure> {
    let Some(link) = host.link_by_name(name)? else { return Ok(None) };
    let is_unmarked = link.is_kind("veth") && link.alias.is_none();
    let is_made = is_ours(&link)
        || (is_unmarked && port(host, &link)?.is_some_and(|port| port.name == port_name(name)));
    Ok(is_made.then_some(link))
}

/// Compares the link of a VLAN: it must reach the VLAN. If it is gone, another item says so.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn compare(
    picture: &mut Picture<'_>,
    link: &str,
    bridge: &str,
    vlan: u16,
) -> Comparison {
    let link = picture.link(Place::Host, link)?;
    let bridge = picture.link(Place::Host, bridge)?;
    let bridge = bridge.filter(|bridge| bridge.is_kind("bridge"));
    let Some((link, bridge)) = link.zip(bridge) else { return sound() };
    let host = &mut picture.namespaces.get()?.host;
    let Some(port) = port(host, &link)? else {
        let text = format!("link {:?} with the gateway has no other end", link.name);
        return Ok(vec![Mismatch::by_hand(
            text,
            "remove that link: the next ADD creates it again",
        )]);
    };
    let mut found = Vec::new();
    for end in [&link, &port].into_iter().filter(|end| !end.up()) {
        found.push(format!("link {:?} is down", end.name));
    }
    found.extend(advertisements::check(&link.name)?);
    if port.master == Some(bridge.index) {
        let present = host.bridge_vlans(port.index)?;
        let own = |found: &BridgeVlan| {
            (found.first..=found.last).contains(&vlan) && found.pvid && found.untagged
        };
        if !present.iter().any(own) {
            found.push(format!("VLAN {vlan} is not port {:?}'s own any more", port.name));
        }
    } else {
        found.push(format!(
            "link {:?} to the gateway is not a port of bridge {:?} any more",
            port.name, bridge.name
        ));
    }
    Ok(found.into_iter().map(Mismatch::new).collect())
}

/// Connects the link to its VLAN again.
///
/// # Errors
/// Code 100 with the kernel's words.
pub(super) fn restore(
    picture: &mut Picture<'_>,
    link: &str,
    bridge: &str,
    vlan: u16,
) -> Result<(), Failure> {
    let host = &mut picture.namespaces.get()?.host;
    let [link, bridge] = [link, bridge].map(|name| host.link_by_name(name));
    let (Some(link), Some(bridge)) = (link?, bridge?) else {
        return Ok(());
    };
    advertisements::refuse(&link.name)?;
    let Some(port) = port(host, &link)? else { return Ok(()) };
    Ok(host.apply(&connect(&link, port.index, &bridge, vlan))?)
}

fn port(host: &mut RouteSocket, link: &Link) -> Result<Option<Link>, Failure> {
    match link.peer_index {
        Some(port) => Ok(host.link_by_index(port)?),
        None => Ok(None),
    }
}
