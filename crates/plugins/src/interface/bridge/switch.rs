//! The bridge itself: an object shared by attachments, made by the first and removed by the last.

use std::net::IpAddr;

use cni::{AddResult, AttachmentKey, Error, code};
use cni_plugin::codes;
use ipnet::IpNet;
use kernel::mac::MacAddr;
use kernel::route::{
    AddressOptions, BridgeOptions, BridgeVlan, BridgeVlanSide, Change, Link, LinkKind, LinkSet,
    NewLink, RouteSocket, VethPeer,
};
use serde::{Deserialize, Serialize};
use state::{Index, Release};

use super::config::{Config, gateway_name};
use crate::shared::kernel_error as kernel;
use crate::shared::pair::refuse_router_advertisements;
use crate::shared::repair::Repair;
use crate::shared::shared_object::{LOCK_PATIENCE, file_error, lock_error};
use crate::shared::{container, owner};

/// What we changed to make the bridge serve, kept until the last attachment leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Made {
    /// We created the bridge.
    created: bool,
    /// The hardware address it was created with. The kernel takes a link's alias only once the link is there, so an
    /// ADD that is killed in between leaves a bridge that this alone shows to be ours.
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    /// Addresses we added.
    addresses: Vec<IpNet>,
    /// Links that carry VLAN gateways.
    vlan_links: Vec<String>,
}

/// Returns the name under which the bridge is shared.
pub(super) fn object(bridge: &str) -> String {
    format!("bridge {bridge}")
}

/// Looks at the bridge without changing anything.
///
/// # Errors
/// Code 108 when its name belongs to something else.
pub(super) fn observe(host: &mut RouteSocket, config: &Config) -> Result<(), Error> {
    match host.link_by_name(config.bridge.as_str()).map_err(kernel)? {
        Some(link) => require_bridge(&link),
        None => Ok(()),
    }
}

fn require_bridge(link: &Link) -> Result<(), Error> {
    if link.kind.as_deref() == Some("bridge") {
        return Ok(());
    }
    Err(Error::new(codes::CONFLICT, format!("{:?} already exists but is not a bridge", link.name))
        .with_details(format!("it is a {}", link.kind.as_deref().unwrap_or("physical link"))))
}

/// Makes the bridge if need be and holds it for the attachment.
///
/// # Errors
/// Code 100 with the kernel's words, 108 for something foreign in the way, 11 when the lock is not to be had.
pub(super) fn ensure(
    host: &mut RouteSocket,
    index: &Index,
    config: &Config,
    key: &AttachmentKey,
) -> Result<Link, Error> {
    let name = config.bridge.as_str();
    let object = object(name);
    let _lock = index.lock(&object, LOCK_PATIENCE).map_err(|error| lock_error(&error))?;
    let mut created = read_made(index, &object)?.created;
    let link = match host.link_by_name(name).map_err(kernel)? {
        Some(link) => {
            require_bridge(&link)?;
            link
        }
        None => {
            // A bridge without an address of its own takes the lowest of its ports', and changes with them.
            let mac = MacAddr::random();
            let made = Made { created: true, mac: mac.to_string(), ..Made::default() };
            write_made(index, &object, &made)?;
            created = true;
            create(host, config, mac)?
        }
    };
    // Held before anything else is changed: what follows is undone by letting go.
    index.hold(&object, key).map_err(|error| file_error(&error))?;
    let others = || index.is_held_by_others(&object, key).map_err(|error| file_error(&error));
    let pin_mac = config.gateway && !created && !others()?;
    adjust(host, config, &link, created, pin_mac)?;
    Ok(link)
}

/// Gives a bridge that the attachment holds the addresses of the gateways. Those of a VLAN go to a link of its own,
/// whose name and hardware address are returned.
///
/// # Errors
/// As [`ensure`].
pub(super) fn give_gateways(
    host: &mut RouteSocket,
    index: &Index,
    config: &Config,
    bridge: &Link,
    gateways: &[IpNet],
) -> Result<Option<(String, Option<MacAddr>)>, Error> {
    if gateways.is_empty() {
        return Ok(None);
    }
    if config.vlans.access.is_none() {
        let present = addresses(host, bridge.index)?;
        if gateways.iter().all(|gateway| present.contains(gateway)) {
            return Ok(None);
        }
    }
    let object = object(&bridge.name);
    let _lock = index.lock(&object, LOCK_PATIENCE).map_err(|error| lock_error(&error))?;
    let before = read_made(index, &object)?;
    let mut made = before.clone();
    let vlan_gateway = match config.vlans.access {
        Some(vlan) => Some(ensure_vlan_gateway(host, config, bridge, vlan, gateways, &mut made)?),
        None => {
            add_addresses(host, bridge, gateways, config.force_address, &mut made.addresses)?;
            None
        }
    };
    if made != before {
        write_made(index, &object, &made)?;
    }
    Ok(vlan_gateway)
}

/// Puts the bridge back for an attachment that holds it: made again with the address it had, up, in its modes. One that somebody
/// else made is brought up, and otherwise his to change. Returns it if it is there in the end.
///
/// # Errors
/// As [`ensure`].
pub(super) fn put_back(
    host: &mut RouteSocket,
    index: &Index,
    config: &Config,
    key: &AttachmentKey,
    result: &AddResult,
    repair: &mut Repair,
) -> Result<Option<Link>, Error> {
    let name = config.bridge.as_str();
    let object = object(name);
    let reported = result.interfaces.iter().find(|link| link.name == name);
    let mac: Option<MacAddr> = reported.and_then(|link| link.mac.parse().ok());
    let made = read_made(index, &object)?;
    let Some(link) = host.link_by_name(name).map_err(kernel)? else {
        let Some(mac) = mac.filter(|_| made.created) else { return Ok(None) };
        let _lock = index.lock(&object, LOCK_PATIENCE).map_err(|error| lock_error(&error))?;
        if !index.holders(&object).found.contains(key) {
            return Ok(None);
        }
        if host.link_by_name(name).map_err(kernel)?.is_none() {
            // Its addresses are given anew, and written down then.
            let anew = Made { addresses: Vec::new(), mac: mac.to_string(), ..made };
            write_made(index, &object, &anew)?;
            let created = create(host, config, mac);
            repair.note(format_args!("bridge {name:?}"), created.map(drop));
        }
        return host.link_by_name(name).map_err(kernel);
    };
    if require_bridge(&link).is_err() {
        return Ok(None);
    }
    let ours = made.created && is_ours(&link, &made);
    let set = LinkSet {
        up: (!link.up()).then_some(true),
        promiscuous: (config.promisc != link.promiscuous() && (ours || config.promisc))
            .then_some(config.promisc),
        mac: mac.filter(|mac| ours && link.mac != Some(*mac)),
        bridge: BridgeOptions {
            vlan_filtering: (config.vlans.wanted && !filters_vlans(&link)).then_some(true),
            ..BridgeOptions::default()
        },
        ..LinkSet::default()
    };
    let mut parts = Vec::new();
    parts.extend(set.up.map(|_| "up".to_owned()));
    parts.extend(
        set.promiscuous.map(|on| format!("promiscuous mode {}", if on { "on" } else { "off" })),
    );
    parts.extend(set.mac.map(|mac| format!("MAC address {mac}")));
    parts.extend(set.bridge.vlan_filtering.map(|_| "VLAN filtering on".to_owned()));
    if set != LinkSet::default() {
        let what = format!("bridge {name:?}: {}", parts.join(", "));
        repair.apply(host, what, &Change::SetLink { ifindex: link.index, set });
    }
    Ok(Some(link))
}

fn create(host: &mut RouteSocket, config: &Config, mac: MacAddr) -> Result<Link, Error> {
    let name = config.bridge.as_str();
    let new = NewLink {
        mac: Some(mac),
        mtu: config.mtu,
        alias: Some(format!("{}bridge", owner::PREFIX)),
        ..NewLink::new(
            name,
            LinkKind::Bridge(BridgeOptions {
                vlan_filtering: config.vlans.wanted.then_some(true),
                ..BridgeOptions::default()
            }),
        )
    };
    let link = host.create_link(&new).map_err(|error| {
        let mut error = kernel(error);
        if config.vlans.wanted {
            error = error.with_details("VLANs need a kernel with bridge VLAN filtering");
        }
        error
    })?;
    // Before the bridge is up: a container's router advertisements must not configure the host
    // (CVE-2020-10749).
    refuse_router_advertisements(name);
    let up = LinkSet {
        up: Some(true),
        promiscuous: config.promisc.then_some(true),
        ..LinkSet::default()
    };
    host.apply_one(&Change::SetLink { ifindex: link.index, set: up }).map_err(kernel)?;
    Ok(link)
}

/// Brings an existing bridge to what the configuration needs. Its MTU is changed only if it is ours.
fn adjust(
    host: &mut RouteSocket,
    config: &Config,
    link: &Link,
    ours: bool,
    pin_mac: bool,
) -> Result<(), Error> {
    let set = LinkSet {
        up: (!link.up()).then_some(true),
        promiscuous: (config.promisc && !link.promiscuous()).then_some(true),
        mtu: config.mtu.filter(|mtu| ours && *mtu != link.mtu),
        bridge: BridgeOptions {
            vlan_filtering: (config.vlans.wanted && !filters_vlans(link)).then_some(true),
            ..BridgeOptions::default()
        },
        // Pin the hardware address, which would otherwise change with the ports; an empty bridge has none.
        mac: pin_mac
            .then(|| link.mac.filter(|mac| mac.is_unicast()).unwrap_or_else(MacAddr::random)),
        ..LinkSet::default()
    };
    if set == LinkSet::default() {
        return Ok(());
    }
    host.apply_one(&Change::SetLink { ifindex: link.index, set }).map_err(kernel)
}

fn filters_vlans(link: &Link) -> bool {
    link.bridge.as_ref().is_some_and(|bridge| bridge.vlan_filtering)
}

fn addresses(host: &mut RouteSocket, ifindex: u32) -> Result<Vec<IpNet>, Error> {
    let addresses = host.addresses(Some(ifindex)).map_err(kernel)?;
    Ok(addresses.into_iter().map(|address| address.address).collect())
}

fn add_addresses(
    host: &mut RouteSocket,
    link: &Link,
    gateways: &[IpNet],
    force: bool,
    made: &mut Vec<IpNet>,
) -> Result<(), Error> {
    if gateways.is_empty() {
        return Ok(());
    }
    let present = addresses(host, link.index)?;
    let plan = plan_addresses(&link.name, &present, gateways, force)?;
    let options = |address| AddressOptions {
        nodad: true,
        broadcast: container::broadcast_of(address),
        ..AddressOptions::default()
    };
    let changes: Vec<Change> = plan
        .remove
        .iter()
        .map(|address| Change::DelAddress { ifindex: link.index, address: *address })
        .chain(plan.add.iter().map(|address| Change::AddAddress {
            ifindex: link.index,
            address: *address,
            options: options(*address),
        }))
        .collect();
    if !changes.is_empty() {
        host.apply(&changes).map_err(|error| kernel(error.source))?;
    }
    made.retain(|address| !plan.remove.contains(address));
    made.extend(plan.add);
    Ok(())
}

/// What to do about the addresses of a bridge.
#[derive(Debug, Default, PartialEq, Eq)]
struct AddressPlan {
    remove: Vec<IpNet>,
    add: Vec<IpNet>,
}

/// Decides how a bridge gets its gateways' addresses. Any other IPv4 address, or an IPv6 address of an
/// overlapping subnet, is in the way; link-local ones never are.
fn plan_addresses(
    bridge: &str,
    present: &[IpNet],
    wanted: &[IpNet],
    force: bool,
) -> Result<AddressPlan, Error> {
    let mut plan = AddressPlan::default();
    for gateway in wanted.iter().filter(|gateway| !present.contains(gateway)) {
        let conflicts =
            present.iter().filter(|other| !wanted.contains(other)).filter(|other| {
                match (gateway, other) {
                    (IpNet::V4(_), IpNet::V4(other)) => !other.addr().is_link_local(),
                    (IpNet::V6(gateway), IpNet::V6(other)) => {
                        !other.addr().is_unicast_link_local()
                            && (gateway.contains(other) || other.contains(gateway))
                    }
                    _ => false,
                }
            });
        for conflict in conflicts {
            if !force {
                return Err(Error::new(
                    codes::CONFLICT,
                    format!("{bridge:?} already has an IP address different from {gateway}"),
                )
                .with_details(format!(
                    "it has {conflict}; remove that address, choose another bridge, or set forceAddress"
                )));
            }
            if !plan.remove.contains(conflict) {
                plan.remove.push(*conflict);
            }
        }
        plan.add.push(*gateway);
    }
    Ok(plan)
}

/// Makes the link that carries the gateway of a VLAN: a veth pair whose other end is an access port.
fn ensure_vlan_gateway(
    host: &mut RouteSocket,
    config: &Config,
    bridge: &Link,
    vlan: u16,
    gateways: &[IpNet],
    made: &mut Made,
) -> Result<(String, Option<MacAddr>), Error> {
    let name = gateway_name(&config.bridge, vlan)?;
    let link = match host.link_by_name(name.as_str()).map_err(kernel)? {
        Some(link) if link.kind.as_deref() == Some("veth") => link,
        Some(_) => {
            return Err(Error::new(
                codes::CONFLICT,
                format!("{:?} already exists but is not a veth link", name.as_str()),
            ));
        }
        None => {
            let port = format!("veth{}", cni::owner::sha512_hex(name.as_str(), 8));
            made.vlan_links.push(name.to_string());
            let new = NewLink {
                mtu: Some(bridge.mtu),
                alias: Some(format!("{}gateway", owner::PREFIX)),
                ..NewLink::new(name.as_str(), LinkKind::Veth(VethPeer::new(&port)))
            };
            let link = host.create_link(&new).map_err(kernel)?;
            refuse_router_advertisements(name.as_str());
            let peer = link.peer_index.ok_or_else(|| {
                Error::new(codes::CONFLICT, format!("{port:?} vanished while being made"))
            })?;
            let up = LinkSet { up: Some(true), ..LinkSet::default() };
            let enslave = LinkSet { master: Some(Some(bridge.index)), ..up.clone() };
            let side = BridgeVlanSide::Port;
            let mut changes = vec![Change::SetLink { ifindex: peer, set: enslave }];
            if vlan != 1 {
                changes.push(Change::DelBridgeVlan {
                    ifindex: peer,
                    side,
                    vlan: BridgeVlan::tagged(1),
                });
            }
            changes.push(Change::AddBridgeVlan {
                ifindex: peer,
                side,
                vlan: BridgeVlan::access(vlan),
            });
            changes.push(Change::SetLink { ifindex: link.index, set: up });
            host.apply(&changes).map_err(|error| kernel(error.source))?;
            link
        }
    };
    add_addresses(host, &link, gateways, config.force_address, &mut Vec::new())?;
    Ok((link.name, link.mac))
}

/// Lets go of the bridge for an attachment. The last one removes what was made for it.
///
/// # Errors
/// Code 100 when something of ours could not be removed, 11 when the lock is not to be had.
pub(super) fn release(index: &Index, bridge: &str, key: &AttachmentKey) -> Result<(), Error> {
    let object = object(bridge);
    let _lock = index.lock(&object, LOCK_PATIENCE).map_err(|error| lock_error(&error))?;
    // Held by nobody, and yet with a note: an ADD was killed between the bridge and its hold on it.
    let undo = match index.release(&object, key).map_err(|error| file_error(&error))? {
        Release::Last => true,
        Release::NotHeld => {
            index.known_note(&object).map_err(|error| file_error(&error))?.is_some()
        }
        Release::Held => false,
    };
    if undo { put_away(index, bridge) } else { Ok(()) }
}

/// Removes what was made for bridges that nobody holds: an ADD was killed between the bridge and its hold on it.
///
/// # Errors
/// As [`release`], the first.
pub(super) fn collect(index: &Index) -> Result<(), Error> {
    let mut done = Ok(());
    for object in index.objects().found {
        let Some(bridge) = object.strip_prefix("bridge ") else { continue };
        let unheld =
            || index.is_held(&object).map(|held| !held).map_err(|error| file_error(&error));
        if !unheld()? {
            continue;
        }
        // Whoever makes one holds the lock from before until it is held.
        let _lock = index.lock(&object, LOCK_PATIENCE).map_err(|error| lock_error(&error))?;
        if unheld()? && index.read_note(&object).found.is_some() {
            done = done.and(put_away(index, bridge));
        }
    }
    done
}

/// Removes what was made for a bridge that nobody holds, under its lock.
fn put_away(index: &Index, bridge: &str) -> Result<(), Error> {
    let object = object(bridge);
    let made = read_made(index, &object)?;
    let mut host = RouteSocket::open().map_err(kernel)?;
    for name in &made.vlan_links {
        if let Some(link) = host.link_by_name(name).map_err(kernel)?
            && link.alias.as_deref().is_some_and(|alias| alias.starts_with(owner::PREFIX))
        {
            host.delete_link(link.index).map_err(kernel)?;
        }
    }
    if let Some(link) = host.link_by_name(bridge).map_err(kernel)? {
        if made.created && is_ours(&link, &made) && !has_ports(&mut host, link.index)? {
            host.delete_link(link.index).map_err(kernel)?;
        } else {
            let present = addresses(&mut host, link.index)?;
            let changes: Vec<_> = made
                .addresses
                .iter()
                .filter(|address| present.contains(address))
                .map(|address| Change::DelAddress { ifindex: link.index, address: *address })
                .collect();
            if !changes.is_empty() {
                host.apply(&changes).map_err(|error| kernel(error.source))?;
            }
        }
    }
    index.take_note(&object).map(drop).map_err(|error| file_error(&error))
}

/// Says whether the bridge is the one that we created, and not another's that has its name by now.
fn is_ours(link: &Link, made: &Made) -> bool {
    match &link.alias {
        Some(alias) => alias.starts_with(owner::PREFIX),
        None => link.mac.is_some_and(|mac| mac.to_string() == made.mac),
    }
}

fn has_ports(host: &mut RouteSocket, bridge: u32) -> Result<bool, Error> {
    Ok(!host.links_of_master(bridge).map_err(kernel)?.is_empty())
}

fn read_made(index: &Index, object: &str) -> Result<Made, Error> {
    let note = index.known_note(object).map_err(|error| file_error(&error))?;
    Ok(note.and_then(|note| serde_json::from_value(note).ok()).unwrap_or_default())
}

fn write_made(index: &Index, object: &str, made: &Made) -> Result<(), Error> {
    let note = serde_json::to_value(made).expect("a note has string keys only");
    index.note(object, &note).map_err(|error| file_error(&error))
}

/// Returns the address a subnet's gateway has on the bridge: IPAM's, or the first of the subnet.
///
/// # Errors
/// Code 7 when the subnet has no room for a gateway.
pub(super) fn gateway_of(address: &IpNet, gateway: Option<IpAddr>) -> Result<IpNet, Error> {
    let ip = match gateway {
        Some(ip) => ip,
        None => first_of(address).ok_or_else(|| {
            Error::new(code::INVALID_CONFIG, format!("no gateway can be found for {address}"))
                .with_details("give the subnet a gateway")
        })?,
    };
    IpNet::new(ip, address.prefix_len()).map_err(|_| {
        Error::new(code::INVALID_CONFIG, format!("gateway {ip} is not of the family of {address}"))
    })
}

fn first_of(address: &IpNet) -> Option<IpAddr> {
    match address.network() {
        IpAddr::V4(network) => u32::from(network).checked_add(1).map(|ip| IpAddr::V4(ip.into())),
        IpAddr::V6(network) => u128::from(network).checked_add(1).map(|ip| IpAddr::V6(ip.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn plan(present: &[&str], wanted: &[&str], force: bool) -> Result<AddressPlan, String> {
        plan_addresses("br0", &nets(present), &nets(wanted), force).map_err(|error| error.msg)
    }

    #[test]
    fn an_address_that_is_there_is_left_alone() {
        assert_eq!(plan(&["192.0.2.1/24"], &["192.0.2.1/24"], false), Ok(AddressPlan::default()));
    }

    #[test]
    fn another_v4_address_is_in_the_way_unless_forced() {
        assert_eq!(
            plan(&["192.0.2.1/24"], &["198.51.100.1/24"], false),
            Err("\"br0\" already has an IP address different from 198.51.100.1/24".to_owned())
        );
        assert_eq!(
            plan(&["192.0.2.1/24"], &["198.51.100.1/24"], true),
            Ok(AddressPlan { remove: nets(&["192.0.2.1/24"]), add: nets(&["198.51.100.1/24"]) })
        );
    }

    #[test]
    fn two_v4_gateways_of_one_network_do_not_exclude_each_other() {
        let both = ["192.0.2.1/24", "198.51.100.1/24"];
        assert_eq!(plan(&[], &both, false), Ok(AddressPlan { remove: vec![], add: nets(&both) }));
        assert_eq!(
            plan(&["192.0.2.1/24"], &both, false),
            Ok(AddressPlan { remove: vec![], add: nets(&["198.51.100.1/24"]) })
        );
    }

    #[test]
    fn only_overlapping_v6_subnets_are_in_the_way() {
        assert!(plan(&["2001:db8:1::1/64", "fe80::1/64"], &["2001:db8:2::1/64"], false).is_ok());
        assert!(plan(&["2001:db8::9/64"], &["2001:db8::1/64"], false).is_err());
    }

    #[test]
    fn the_first_address_is_the_gateway_when_ipam_names_none() {
        let gateway = gateway_of(&"192.0.2.7/24".parse().unwrap(), None).unwrap();
        assert_eq!(gateway.to_string(), "192.0.2.1/24");
    }
}
