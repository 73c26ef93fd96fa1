//! The bridge itself: an object shared by attachments, made by the first and removed by the last.

use cni::{AddResult, AttachmentKey, Error};
use cni_plugin::codes;
use ipnet::IpNet;
use kernel::mac::MacAddr;
use kernel::route::{BridgeOptions, Change, Link, LinkKind, LinkSet, NewLink, RouteSocket};
use serde::{Deserialize, Serialize};
use state::{Index, Release};

use super::config::Config;
use super::gateway::{self, Wanted};
use super::vlan_gateway;
use crate::shared::kernel_error as kernel;
use crate::shared::owner;
use crate::shared::pair::refuse_router_advertisements;
use crate::shared::repair::Repair;
use crate::shared::shared_object::{LOCK_PATIENCE, file_error, lock_error};

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
    pub(super) vlan_links: Vec<String>,
    /// The MTU that a configuration asked for; without, it is the kernel's to choose: the least of the ports'.
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
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
    let before = read_made(index, &object)?;
    let mut created = before.created;
    let link = match host.link_by_name(name).map_err(kernel)? {
        Some(link) => {
            require_bridge(&link)?;
            if created && config.mtu.is_some_and(|mtu| before.mtu != Some(mtu)) {
                write_made(index, &object, &Made { mtu: config.mtu, ..before })?;
            }
            link
        }
        None => {
            // A bridge without an address of its own takes the lowest of its ports', and changes with them.
            let mac = MacAddr::random();
            let made =
                Made { created: true, mac: mac.to_string(), mtu: config.mtu, ..Made::default() };
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
    wanted: &Wanted<'_>,
) -> Result<Option<(String, Option<MacAddr>)>, Error> {
    let gateways = wanted.addresses;
    if gateways.is_empty() {
        return Ok(None);
    }
    if config.vlans.access.is_none() {
        let present = gateway::present(host, bridge.index)?;
        if gateways.iter().all(|gateway| present.contains(gateway)) {
            return Ok(None);
        }
    }
    let object = object(&bridge.name);
    let _lock = index.lock(&object, LOCK_PATIENCE).map_err(|error| lock_error(&error))?;
    let before = read_made(index, &object)?;
    let mut made = before.clone();
    let vlan_gateway = match config.vlans.access {
        Some(vlan) => Some(vlan_gateway::ensure(host, config, bridge, vlan, wanted, &mut made)?),
        None => {
            gateway::add(host, bridge, gateways, wanted.others, &mut made.addresses)?;
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
    let no_stp = ours && has_unwanted_stp(host, &link)?;
    let set = LinkSet {
        up: (!link.up()).then_some(true),
        promiscuous: (config.promisc != link.promiscuous() && (ours || config.promisc))
            .then_some(config.promisc),
        mac: mac.filter(|mac| ours && link.mac != Some(*mac)),
        bridge: BridgeOptions {
            vlan_filtering: (config.vlans.wanted && !filters_vlans(&link)).then_some(true),
            stp: no_stp.then_some(false),
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
    parts.extend(set.bridge.stp.map(|_| "STP off".to_owned()));
    if set != LinkSet::default() {
        let what = format!("bridge {name:?}: {}", parts.join(", "));
        repair.apply(host, what, &Change::SetLink { ifindex: link.index, set });
    }
    // As it is now: what its ports may be told depends on it.
    Ok(host.link_by_index(link.index).map_err(kernel)?.or(Some(link)))
}

/// Says whether a bridge is the one that we made.
///
/// # Errors
/// When our note cannot be read.
pub(super) fn is_made_by_us(index: &Index, link: &Link) -> Result<bool, Error> {
    let made = read_made(index, &object(&link.name))?;
    Ok(made.created && is_ours(link, &made))
}

/// Finds the link that carries the gateways, if it is there and of ours: the bridge, or the link of its VLAN.
///
/// # Errors
/// Code 100 when the kernel does not answer; when our note cannot be read.
pub(super) fn own_gateway_link(
    host: &mut RouteSocket,
    index: &Index,
    config: &Config,
    bridge: &Link,
) -> Result<Option<Link>, Error> {
    match config.vlans.access {
        None => Ok(is_made_by_us(index, bridge)?.then(|| bridge.clone())),
        Some(vlan) => vlan_gateway::find(host, config, vlan),
    }
}

/// Says whether a bridge of ours has STP on, with which a new port carries nothing for half a minute, for nobody's sake: where
/// somebody has added a port that leads out it may keep loops away, and is his.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn has_unwanted_stp(host: &mut RouteSocket, link: &Link) -> Result<bool, Error> {
    if !link.bridge.as_ref().is_some_and(|bridge| bridge.stp) {
        return Ok(false);
    }
    let ports = host.links_of_master(link.index).map_err(kernel)?;
    Ok(ports.iter().all(|port| port.is_kind("veth") || port.is_kind("tun")))
}

/// Returns the MTU that a bridge of ours should have and has not: packets to its containers would be cut or lost. `port` is one of
/// its ports.
///
/// # Errors
/// Code 100 when the kernel does not answer; when our note cannot be read.
pub(super) fn wrong_mtu(
    host: &mut RouteSocket,
    index: &Index,
    link: &Link,
    port: &Link,
) -> Result<Option<u32>, Error> {
    if link.mtu == port.mtu {
        return Ok(None);
    }
    let made = read_made(index, &object(&link.name))?;
    if !made.created || !is_ours(link, &made) {
        return Ok(None);
    }
    let wanted = match made.mtu {
        Some(mtu) => Some(mtu),
        None => {
            let ports = host.links_of_master(link.index).map_err(kernel)?;
            ports.iter().map(|port| port.mtu).min()
        }
    };
    Ok(wanted.filter(|mtu| *mtu != link.mtu))
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
            let present = gateway::present(&mut host, link.index)?;
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
