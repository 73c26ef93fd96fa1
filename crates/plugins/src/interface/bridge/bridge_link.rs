//! The bridge itself: an object that attachments share. The first one creates it and the last one
//! removes it.
//!
//! If someone else created the bridge, every change of it is recorded first, and the last
//! attachment undoes it.

use std::collections::BTreeMap;

use cni::{AddResult, AttachmentKey, Error, code};
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
use crate::shared::repair::Repair;
use crate::shared::shared_object::{LOCK_TIMEOUT, file_error, lock_error};
use crate::shared::{advertisements, owner};

/// What we changed so that the bridge can serve, kept until the last attachment leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Made {
    /// We created the bridge.
    created: bool,
    /// The hardware address with which it was created. The kernel sets a link's alias only once the
    /// link exists. If an ADD is killed in between, only this address shows that the bridge is
    /// ours.
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    /// The hardware addresses of bridges that we created earlier under this name and that someone
    /// renamed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<String>,
    /// Addresses we added.
    addresses: Vec<IpNet>,
    /// Links that carry VLAN gateways.
    pub(super) vlan_links: Vec<String>,
    /// The MTU that a configuration asked for. Without it the kernel chooses: the lowest of the
    /// ports'.
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    /// Links that existed before and accepted router advertisements, with the value of their sysctl
    /// `accept_ra`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    took_advertisements: BTreeMap<String, String>,
    /// The bridge learned from link-local frames before we switched that off
    /// ([`learns_past_filters`]).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    learnt_past_filters: bool,
    /// The ifindex of a bridge that someone else created; it stays when the bridge is renamed. One
    /// of ours is known by its mark.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    /// What we changed on foreign bridges that had this name before and were renamed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    renamed: Vec<Made>,
}

impl Made {
    /// Carries over what was recorded for the bridge that had this name before, so that the last
    /// attachment undoes it.
    fn after(before: Made, new: Made) -> Made {
        let Made { mut earlier, mut renamed, .. } = before.clone();
        if !before.mac.is_empty() {
            earlier.push(before.mac);
        } else if before.index.is_some() {
            renamed.push(Made { earlier: Vec::new(), renamed: Vec::new(), ..before });
        }
        Made { earlier, renamed, ..new }
    }
}

/// Returns the name under which the bridge is shared.
pub(super) fn object(bridge: &str) -> String {
    format!("bridge {bridge}")
}

/// Reads the bridge without changing anything.
///
/// # Errors
/// Code 108 when its name belongs to something else, 7 when the name is not the bridge's own.
pub(super) fn observe(host: &mut RouteSocket, config: &Config) -> Result<(), Error> {
    match host.link_by_name(config.bridge.as_str()).map_err(kernel)? {
        Some(link) => require_bridge(&link, config),
        None => Ok(()),
    }
}

fn require_bridge(link: &Link, config: &Config) -> Result<(), Error> {
    let name = config.bridge.as_str();
    if link.kind.as_deref() == Some("bridge") {
        if link.name == name {
            return Ok(());
        }
        let message = format!("{name:?} is another name of bridge {:?}", link.name);
        return Err(Error::new(code::INVALID_CONFIG, message)
            .with_details("switches and the packet filter know the bridge by its own name alone"));
    }
    Err(Error::new(codes::CONFLICT, format!("{:?} already exists but is not a bridge", link.name))
        .with_details(format!("it is a {}", link.kind.as_deref().unwrap_or("physical link"))))
}

/// Creates the bridge if necessary and holds it for the attachment.
///
/// # Errors
/// Code 100 with the kernel's words, 108 when something foreign is in the way, 11 when the lock
/// cannot be taken in time.
pub(super) fn ensure(
    host: &mut RouteSocket,
    index: &Index,
    config: &Config,
    key: &AttachmentKey,
) -> Result<Link, Error> {
    let name = config.bridge.as_str();
    let object = object(name);
    let _lock = index.lock(&object, LOCK_TIMEOUT).map_err(|error| lock_error(&error))?;
    let before = read_made(index, &object)?;
    let mut created = before.created;
    let link = match host.link_by_name(name).map_err(kernel)? {
        Some(link) => {
            require_bridge(&link, config)?;
            let mut made = before.clone();
            let is_anothers = match created {
                true => !is_ours(&link, &before),
                false => before.index.is_some_and(|index| index != link.index),
            };
            if is_anothers {
                created = false;
                made = Made::after(before.clone(), Made::default());
            }
            made.index = (!created).then_some(link.index);
            if created {
                made.mtu = config.mtu.or(made.mtu);
            } else if let Some(was) = advertisements::taken_by(name) {
                made.took_advertisements.entry(name.to_owned()).or_insert(was);
            }
            made.learnt_past_filters |= learns_past_filters(config, &link);
            if made != before {
                write_made(index, &object, &made)?;
            }
            link
        }
        None => {
            // A bridge without an address of its own takes the lowest of its ports', which changes
            // with the ports.
            let mac = MacAddr::random();
            let made = Made {
                created: true,
                mac: mac.to_string(),
                mtu: config.mtu,
                // In case it must stay, for foreign ports.
                learnt_past_filters: config.check_spoofing,
                ..Made::default()
            };
            let made = Made::after(before.clone(), made);
            write_made(index, &object, &made)?;
            created = true;
            create(host, config, mac)?
        }
    };
    // Held before anything else is changed: releasing it undoes what follows.
    index.hold(&object, key).map_err(|error| file_error(&error))?;
    let others = || index.is_held_by_others(&object, key).map_err(|error| file_error(&error));
    let pin_mac = config.gateway && !created && !others()?;
    if !created && advertisements::taken_by(name).is_some() {
        advertisements::refuse(name)?;
    }
    adjust(host, config, &link, created, pin_mac)?;
    Ok(link)
}

/// Reports whether spoof checks are configured and the bridge learns source addresses that no
/// packet filter has checked. It learns before its first hook from frames to 01:80:c2:00:00:0e and,
/// with STP, to :00. From frames to other such groups it learns after a hook that is not the
/// checking one (linux net/bridge/br_input.c `br_handle_frame`). A forged address would send
/// another container's frames to the forger.
pub(super) fn learns_past_filters(config: &Config, bridge: &Link) -> bool {
    config.check_spoofing && learns_link_local(bridge)
}

fn learns_link_local(bridge: &Link) -> bool {
    bridge.bridge.as_ref().is_some_and(|bridge| bridge.link_local_learning)
}

/// Adds the gateways' addresses to a bridge that the attachment holds. Those of a VLAN go to a link
/// of its own; its name and hardware address are returned. `refuse` is asked first, unless the
/// addresses exist already.
///
/// # Errors
/// As [`ensure`]; those of `refuse`.
pub(super) fn give_gateways(
    host: &mut RouteSocket,
    index: &Index,
    config: &Config,
    bridge: &Link,
    wanted: &Wanted<'_>,
    refuse: &mut dyn FnMut(&mut RouteSocket) -> Result<(), Error>,
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
    refuse(host)?;
    let object = object(&bridge.name);
    let _lock = index.lock(&object, LOCK_TIMEOUT).map_err(|error| lock_error(&error))?;
    let before = read_made(index, &object)?;
    let mut made = before.clone();
    if let Some(vlan) = config.vlans.access {
        let name = super::config::gateway_name(&config.bridge, vlan)?;
        if let Some(was) = advertisements::taken_by(name.as_str()) {
            made.took_advertisements.entry(name.to_string()).or_insert(was);
            write_made(index, &object, &made)?;
        }
    }
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

/// Restores the bridge for an attachment that holds it: creates it again with its old address, up,
/// in its modes. A bridge that someone else created is only set up; the rest is left to its owner.
/// Returns the bridge if it exists in the end.
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
        let _lock = index.lock(&object, LOCK_TIMEOUT).map_err(|error| lock_error(&error))?;
        if !index.holders(&object).found.contains(key) {
            return Ok(None);
        }
        if host.link_by_name(name).map_err(kernel)?.is_none() {
            // Its addresses are added again, and recorded then.
            let anew = Made { addresses: Vec::new(), mac: mac.to_string(), ..made };
            write_made(index, &object, &anew)?;
            let created = create(host, config, mac);
            repair.note(format_args!("bridge {name:?}"), created.map(drop));
        }
        return host.link_by_name(name).map_err(kernel);
    };
    if require_bridge(&link, config).is_err() {
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
            link_local_learning: learns_past_filters(config, &link).then_some(false),
            ..BridgeOptions::default()
        },
        ..LinkSet::default()
    };
    note_what_was(index, &object, &link, &made, set.bridge.link_local_learning.is_some())?;
    advertisements::refuse_again(name, repair);
    let mut parts = Vec::new();
    parts.extend(set.up.map(|_| "up".to_owned()));
    parts.extend(
        set.promiscuous.map(|on| format!("promiscuous mode {}", if on { "on" } else { "off" })),
    );
    parts.extend(set.mac.map(|mac| format!("MAC address {mac}")));
    parts.extend(set.bridge.vlan_filtering.map(|_| "VLAN filtering on".to_owned()));
    parts.extend(set.bridge.stp.map(|_| "STP off".to_owned()));
    let learning = set.bridge.link_local_learning;
    parts.extend(learning.map(|_| "no learning from link-local frames".to_owned()));
    if set != LinkSet::default() {
        let what = format!("bridge {name:?}: {}", parts.join(", "));
        repair.apply(host, what, &Change::SetLink { ifindex: link.index, set });
    }
    // Read again: what its ports may be set to depends on it.
    Ok(host.link_by_index(link.index).map_err(kernel)?.or(Some(link)))
}

/// Records what a repair is about to change on a bridge for the first time: an older release's ADD
/// did not record it.
fn note_what_was(
    index: &Index,
    object: &str,
    link: &Link,
    made: &Made,
    learns: bool,
) -> Result<(), Error> {
    let took = advertisements::taken_by(&link.name).filter(|_| !made.created);
    let took = took.filter(|_| !made.took_advertisements.contains_key(&link.name));
    if took.is_none() && (!learns || made.learnt_past_filters) {
        return Ok(());
    }
    let _lock = index.lock(object, LOCK_TIMEOUT).map_err(|error| lock_error(&error))?;
    let mut made = read_made(index, object)?;
    made.learnt_past_filters |= learns;
    if let Some(was) = took {
        made.took_advertisements.entry(link.name.clone()).or_insert(was);
    }
    write_made(index, object, &made)
}

/// Reports whether a bridge is the one that we created.
///
/// # Errors
/// When our note cannot be read.
pub(super) fn is_made_by_us(index: &Index, link: &Link) -> Result<bool, Error> {
    let made = read_made(index, &object(&link.name))?;
    Ok(made.created && is_ours(link, &made))
}

/// Finds the link that carries the gateways, if it exists and is ours: the bridge, or the link of
/// its VLAN.
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

/// Reports whether a bridge of ours has STP on for no purpose: a new port then carries nothing for
/// half a minute. If someone has added a port that leads out, STP may prevent loops, and is left
/// on.
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

/// Returns the MTU that a bridge of ours should have but does not have: packets to its containers
/// would be cut or lost. `port` is one of its ports.
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
                link_local_learning: config.check_spoofing.then_some(false),
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
    advertisements::refuse(name)?;
    let up = LinkSet {
        up: Some(true),
        promiscuous: config.promisc.then_some(true),
        ..LinkSet::default()
    };
    host.apply_one(&Change::SetLink { ifindex: link.index, set: up }).map_err(kernel)?;
    Ok(link)
}

/// Changes an existing bridge to what the configuration needs. Its MTU is changed only if the
/// bridge is ours.
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
            link_local_learning: learns_past_filters(config, link).then_some(false),
            ..BridgeOptions::default()
        },
        // Fixes the hardware address, which would otherwise change with the ports; an empty bridge
        // has none.
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

/// Releases the bridge for an attachment. The last one removes what was created for it.
///
/// # Errors
/// Code 100 when something of ours could not be removed, 11 when the lock cannot be taken in time.
pub(super) fn release(index: &Index, bridge: &str, key: &AttachmentKey) -> Result<(), Error> {
    let object = object(bridge);
    let _lock = index.lock(&object, LOCK_TIMEOUT).map_err(|error| lock_error(&error))?;
    // No attachment holds it, but it has a note: an ADD was killed between creating the bridge and
    // holding it.
    let undo = match index.release(&object, key).map_err(|error| file_error(&error))? {
        Release::Last => true,
        Release::NotHeld => {
            index.known_note(&object).map_err(|error| file_error(&error))?.is_some()
        }
        Release::Held => false,
    };
    if undo { delete_unused(index, bridge) } else { Ok(()) }
}

/// Removes what was created for bridges that no attachment holds: an ADD was killed between
/// creating the bridge and holding it.
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
        // An ADD that creates one has the lock from before until the bridge is held.
        let _lock = index.lock(&object, LOCK_TIMEOUT).map_err(|error| lock_error(&error))?;
        if unheld()? && index.read_note(&object).found.is_some() {
            done = done.and(delete_unused(index, bridge));
        }
    }
    done
}

/// Removes, under its lock, what was created for a bridge that no attachment holds: for the bridge
/// of that name, and for those that had the name until someone renamed them.
///
/// While an attachment of ours has a port on one of them, bridges and note stay as they are. Its
/// hold is missing if a DEL had no time to wait for its ADD, or if someone removed the file. The
/// attachment's own DEL finds the note.
fn delete_unused(index: &Index, bridge: &str) -> Result<(), Error> {
    let object = object(bridge);
    let made = read_made(index, &object)?;
    let mut host = RouteSocket::open().map_err(kernel)?;
    let bridges = bridges_of(&mut host, bridge, &made)?;
    for (link, _) in &bridges {
        if has_attachments(&mut host, link.index)? {
            return Ok(());
        }
    }
    for name in &made.vlan_links {
        if let Some(link) = host.link_by_name(name).map_err(kernel)?
            && link.alias.as_deref().is_some_and(|alias| alias.starts_with(owner::PREFIX))
        {
            host.delete_link(link.index).map_err(kernel)?;
        }
    }
    for (link, made) in &bridges {
        put_back_bridge(&mut host, bridge, link, made)?;
    }
    // The sysctls of VLAN links, which are restored even if the bridge stays.
    for (ifname, was) in made.renamed.iter().chain([&made]).flat_map(|one| &one.took_advertisements)
    {
        if ifname != bridge {
            advertisements::put_back(ifname, was)?;
        }
    }
    index.take_note(&object).map(drop).map_err(|error| file_error(&error))
}

/// Finds the bridges that a note covers, each with what was changed on it.
fn bridges_of<'m>(
    host: &mut RouteSocket,
    bridge: &str,
    made: &'m Made,
) -> Result<Vec<(Link, &'m Made)>, Error> {
    let mut found = Vec::new();
    let named = host.link_by_name(bridge).map_err(kernel)?;
    let named = named.filter(|link| made.index.is_none_or(|index| index == link.index));
    let is_there = named.as_ref().is_some_and(|link| !made.created || is_ours(link, made));
    found.extend(named.map(|link| (link, made)));
    if made.created && (!is_there || !made.earlier.is_empty()) {
        found.extend(renamed(host, bridge, made)?.into_iter().map(|link| (link, made)));
    }
    let others = made.renamed.iter().chain((!is_there).then_some(made));
    for other in others {
        let Some(number) = other.index else { continue };
        let link = host.link_by_index(number).map_err(kernel)?;
        found.extend(link.filter(|link| link.is_kind("bridge")).map(|link| (link, other)));
    }
    Ok(found)
}

/// Removes a bridge that we created, unless it has a foreign port. If a bridge stays, this undoes
/// our changes to it.
fn put_back_bridge(
    host: &mut RouteSocket,
    bridge: &str,
    link: &Link,
    made: &Made,
) -> Result<(), Error> {
    if made.created && is_ours(link, made) && !has_ports(host, link.index)? {
        return host.delete_bridge(link.index).map(drop).map_err(kernel);
    }
    let present = gateway::present(host, link.index)?;
    let mut addresses = made.addresses.clone();
    addresses.retain(|address| present.contains(address));
    gateway::remove(host, link.index, &addresses)?;
    if made.learnt_past_filters && !learns_link_local(link) {
        let bridge = BridgeOptions { link_local_learning: Some(true), ..BridgeOptions::default() };
        let set = LinkSet { bridge, ..LinkSet::default() };
        host.apply_one(&Change::SetLink { ifindex: link.index, set }).map_err(kernel)?;
    }
    // The sysctl is that of the link, whatever its present name.
    let took = made.took_advertisements.get(bridge);
    took.map_or(Ok(()), |was| advertisements::put_back(&link.name, was))
}

/// Finds bridges that we created under a name that someone has changed since: they have our mark
/// and a recorded hardware address.
fn renamed(host: &mut RouteSocket, bridge: &str, made: &Made) -> Result<Vec<Link>, Error> {
    let macs: Vec<&String> =
        made.earlier.iter().chain([&made.mac]).filter(|mac| !mac.is_empty()).collect();
    if macs.is_empty() {
        return Ok(Vec::new());
    }
    let mut links = host.links().map_err(kernel)?;
    links.retain(|link| {
        let mac = link.mac.map(|mac| mac.to_string());
        link.name != bridge
            && link.is_kind("bridge")
            && link.alias.as_deref().is_some_and(|alias| alias.starts_with(owner::PREFIX))
            && macs.iter().any(|known| mac.as_ref() == Some(*known))
    });
    Ok(links)
}

/// Reports whether the bridge is the one that we created, and not a foreign one that has its name
/// by now.
fn is_ours(link: &Link, made: &Made) -> bool {
    match &link.alias {
        Some(alias) => alias.starts_with(owner::PREFIX),
        None => link.mac.is_some_and(|mac| mac.to_string() == made.mac),
    }
}

fn has_attachments(host: &mut RouteSocket, bridge: u32) -> Result<bool, Error> {
    let ports = host.links_of_master(bridge).map_err(kernel)?;
    Ok(ports.iter().any(|port| port.alias.as_deref().is_some_and(owner::is_of_attachment)))
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
