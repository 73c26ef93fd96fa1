//! The link that carries the gateway of a VLAN: one end of a veth pair whose other end is a port of
//! the bridge.

use cni::Error;
use cni_plugin::codes;
use kernel::mac::MacAddr;
use kernel::route::{
    BridgeVlan, BridgeVlanSide, Change, Link, LinkKind, LinkSet, NewLink, RouteSocket, VethPeer,
};

use super::bridge_link::Made;
use super::config::{Config, gateway_name};
use super::gateway::{self, Wanted};
use crate::shared::repair::Repair;
use crate::shared::{advertisements, drift, kernel_error as kernel, owner};

/// Creates the link if necessary, adds the gateways' addresses, and returns its name and hardware
/// address.
///
/// # Errors
/// Code 100 with the kernel's words, 108 when something foreign is in the way.
pub(super) fn ensure(
    host: &mut RouteSocket,
    config: &Config,
    bridge: &Link,
    vlan: u16,
    wanted: &Wanted<'_>,
    made: &mut Made,
) -> Result<(String, Option<MacAddr>), Error> {
    let name = gateway_name(&config.bridge, vlan)?;
    let link = match host.link_by_name(name.as_str()).map_err(kernel)? {
        Some(link) if link.kind.as_deref() == Some("veth") => {
            if advertisements::taken_by(&link.name).is_some() {
                advertisements::refuse(&link.name)?;
            }
            link
        }
        Some(_) => {
            return Err(Error::new(
                codes::CONFLICT,
                format!("{:?} already exists but is not a veth link", name.as_str()),
            ));
        }
        None => {
            let port = format!("veth{}", cni::owner::sha512_hex(name.as_str(), 8));
            if !made.vlan_links.iter().any(|known| *known == name.as_str()) {
                made.vlan_links.push(name.to_string());
            }
            let new = NewLink {
                mac: wanted.vlan_mac,
                mtu: Some(bridge.mtu),
                alias: Some(format!("{}gateway", owner::PREFIX)),
                ..NewLink::new(name.as_str(), LinkKind::Veth(VethPeer::new(&port)))
            };
            let link = host.create_link(&new).map_err(kernel)?;
            advertisements::refuse(name.as_str())?;
            let peer = link.peer_index.ok_or_else(|| {
                Error::new(codes::CONFLICT, format!("{port:?} vanished while being made"))
            })?;
            host.apply(&connect(&link, peer, bridge, vlan))
                .map_err(|error| kernel(error.source))?;
            link
        }
    };
    gateway::add(host, &link, wanted.addresses, wanted.others, &mut Vec::new())?;
    Ok((link.name, link.mac))
}

/// Returns the changes that bring both ends up and make the other end a port of the bridge in this
/// VLAN only.
fn connect(link: &Link, port: u32, bridge: &Link, vlan: u16) -> Vec<Change> {
    let up = LinkSet::default().up(true);
    let enslave = LinkSet { master: Some(Some(bridge.index)), ..up.clone() };
    let side = BridgeVlanSide::Port;
    let mut changes = vec![Change::SetLink { ifindex: port, set: enslave }];
    if vlan != 1 {
        changes.push(Change::DelBridgeVlan { ifindex: port, side, vlan: BridgeVlan::tagged(1) });
    }
    changes.push(Change::AddBridgeVlan { ifindex: port, side, vlan: BridgeVlan::access(vlan) });
    changes.push(Change::SetLink { ifindex: link.index, set: up });
    changes
}

/// Finds the link that carries the gateway, if it exists and is ours.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn find(
    host: &mut RouteSocket,
    config: &Config,
    vlan: u16,
) -> Result<Option<Link>, Error> {
    let name = gateway_name(&config.bridge, vlan)?;
    let link = host.link_by_name(name.as_str()).map_err(kernel)?;
    let ours =
        |link: &Link| link.alias.as_deref().is_some_and(|mark| mark.starts_with(owner::PREFIX));
    Ok(link.filter(|link| link.is_kind("veth") && ours(link)))
}

/// Verifies that the link reaches its VLAN.
///
/// # Errors
/// Code 104 when it does not; code 100 when the kernel does not answer.
pub(super) fn check(
    host: &mut RouteSocket,
    link: &Link,
    bridge: &Link,
    vlan: u16,
) -> Result<(), Error> {
    let Some(port) = port(host, link)? else {
        return Err(drift(format!("link {:?} with the gateway has no other end", link.name)));
    };
    for end in [link, &port] {
        if !end.up() {
            return Err(drift(format!("link {:?} is down", end.name)));
        }
    }
    advertisements::check(&link.name)?;
    if port.master != Some(bridge.index) {
        return Err(drift(format!(
            "link {:?} to the gateway is not a port of bridge {:?} any more",
            port.name, bridge.name
        )));
    }
    let present = host.bridge_vlans(port.index).map_err(kernel)?;
    let own = |found: &BridgeVlan| {
        (found.first..=found.last).contains(&vlan) && found.pvid && found.untagged
    };
    if !present.iter().any(own) {
        return Err(drift(format!("VLAN {vlan} is not port {:?}'s own any more", port.name)));
    }
    Ok(())
}

/// Connects the link to its VLAN again.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn put_back(
    host: &mut RouteSocket,
    link: &Link,
    bridge: &Link,
    vlan: u16,
    repair: &mut Repair,
) -> Result<(), Error> {
    advertisements::refuse_again(&link.name, repair);
    let (Err(drift), Some(port)) = (check(host, link, bridge, vlan), port(host, link)?) else {
        return Ok(());
    };
    let done = host.apply(&connect(link, port.index, bridge, vlan));
    repair.note(&drift, done.map_err(|error| kernel(error.source)));
    Ok(())
}

fn port(host: &mut RouteSocket, link: &Link) -> Result<Option<Link>, Error> {
    match link.peer_index {
        Some(port) => host.link_by_index(port).map_err(kernel),
        None => Ok(None),
    }
}
