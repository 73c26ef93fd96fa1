//! The bridge itself: an object that attachments share. The first one creates it and the last one
//! removes it.
//!
//! If another program created the bridge, every change of it is recorded first, and the last
//! attachment undoes it.

use std::collections::BTreeMap;

use cni::{AttachmentKey, code};
use cni_plugin::codes;
use ipnet::IpNet;
use kernel::mac::MacAddr;
use kernel::route::{BridgeOptions, Change, Link, LinkKind, LinkSet, NewLink, RouteSocket};
use serde::{Deserialize, Serialize};
use state::{Index, LOCK_TIMEOUT, Release, RestoreOutcome, SharedObject};
use wanted::{Bridge, Gateways};

use super::gateway::{self, ConflictPolicy};
use super::{vlan_gateway, vrf};
use crate::shared::failure::Failure;
use crate::shared::{advertisements, host_side, owner, trial};

/// The note on a bridge in the index: what we changed so that the bridge can serve, kept until the
/// last attachment leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct BridgeNote {
    /// We created the bridge.
    pub(super) created: bool,
    /// The hardware address with which it was created. The kernel sets a link's alias only once the
    /// link exists. If an ADD is killed in between, only this address shows that the bridge is
    /// ours.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) mac: String,
    /// The hardware addresses of bridges that we created earlier under this name and that another
    /// program renamed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<String>,
    /// Addresses we added.
    pub(super) addresses: Vec<IpNet>,
    /// Addresses that whoever answers for DHCP on the bridge has named, each with its link. They leave
    /// with the last attachment that has an address of their subnet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    leased: Vec<(String, IpNet)>,
    /// Links that carry VLAN gateways.
    pub(super) vlan_links: Vec<String>,
    /// The MTU that a configuration asked for. Without it the kernel chooses: the lowest of the
    /// ports'.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mtu: Option<u32>,
    /// Links that existed before and accepted router advertisements, with the value of their sysctl
    /// `accept_ra`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) took_advertisements: BTreeMap<String, String>,
    /// The host had learnt from a router by the bridge when the first attachment came. The bridge's
    /// `accept_ra` stays as it is, and the packet filter keeps each container's advertisements from
    /// the host.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) hears_routers: bool,
    /// The bridge learned from link-local frames before we switched that off
    /// ([`learns_past_filters`]).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) learnt_past_filters: bool,
    /// The ifindex of a bridge that another program created; it stays when the bridge is renamed.
    /// One of ours is known by its mark.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    /// The ifindexes of the ports that a bridge of another program had before it was first held. They
    /// are no containers that came to rely on us.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<u32>,
    /// What we changed on foreign bridges that had this name before and were renamed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    renamed: Vec<BridgeNote>,
}

impl BridgeNote {
    /// Reports whether an attachment created the bridge, which may be gone, and no other link has its
    /// name by now.
    pub(super) fn is_of(&self, named: Option<&Link>) -> bool {
        self.created && named.is_none_or(|link| link.is_kind("bridge") && is_ours(link, self))
    }

    /// Carries over what was recorded for the bridge that had this name before, so that the last
    /// attachment undoes it.
    fn after(before: BridgeNote, new: BridgeNote) -> BridgeNote {
        let BridgeNote { mut earlier, mut renamed, .. } = before.clone();
        if !before.mac.is_empty() {
            earlier.push(before.mac);
        } else if before.index.is_some() {
            renamed.push(BridgeNote { earlier: Vec::new(), renamed: Vec::new(), ..before });
        }
        BridgeNote { earlier, renamed, ..new }
    }

    /// Reports whether a port is the host's end of a container that another plugin has attached
    /// since ours came.
    fn is_of_others(&self, port: &Link) -> bool {
        port.is_kind("veth")
            && port.link_netnsid.is_some()
            && !is_of_attachment(port)
            && !self.ports.contains(&port.index)
    }
}

/// Reports whether a link is marked as a bridge that an attachment made.
pub(crate) fn is_marked(link: &Link) -> bool {
    link.is_kind("bridge") && link.alias.as_deref() == Some(&mark())
}

fn mark() -> String {
    format!("{}bridge", owner::PREFIX)
}

/// Returns the name under which the bridge is shared.
pub(super) fn object(bridge: &str) -> String {
    format!("bridge {bridge}")
}

/// Refuses a name that is not that of a bridge, or not a bridge's own, and a bridge by which the host
/// has learnt its own way out if it cannot go on hearing its routers. Says whether it does. Changes
/// nothing.
///
/// # Errors
/// Code 108 when its name belongs to something else, or the host would lose its way out, 7 when the
/// name is not the bridge's own.
pub(super) fn refuse_foreign(
    host: &mut RouteSocket,
    index: &Index,
    name: &str,
) -> Result<bool, Failure> {
    let Some(link) = host.link_by_name(name)? else { return Ok(false) };
    require_bridge(&link, name)?;
    // A caller without privileges may not read our files.
    let note = read_note(index, name).unwrap_or_default();
    if note.created && is_ours(&link, &note) {
        return Ok(false);
    }
    let is_same = note.index.is_none_or(|index| index == link.index);
    let note = if is_same { note } else { BridgeNote::default() };
    let accepts = advertisements::accepting_value(name)?.is_some();
    let others = || Ok(is_same && index.is_held(&object(name)).unwrap_or_default());
    hears_routers(host, &link, &note, accepts, others)
}

/// Decides whether the host goes on hearing its routers by another program's bridge: it does if it has
/// learnt from them when the first attachment comes. Each attachment then keeps the container's
/// advertisements from the host ([`firewall::routers`]). `accepts` says whether the bridge accepts any,
/// and `others` whether other attachments hold it.
///
/// # Errors
/// Code 108 when it would have to, and cannot.
fn hears_routers(
    host: &mut RouteSocket,
    link: &Link,
    note: &BridgeNote,
    accepts: bool,
    others: impl FnOnce() -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    const UNGUARDED: &str = "containers that are attached already could announce themselves as \
                             routers to the host: detach them first";
    if note.hears_routers {
        return Ok(true);
    }
    // Those that hold it rely on its hearing nothing.
    let is_off = note.took_advertisements.contains_key(&link.name);
    if is_off && !accepts {
        return Ok(false);
    }
    if !is_off && !advertisements::has_learnt(host, link)? {
        return Ok(false);
    }
    let reason = match is_off || others()? {
        true => Some(UNGUARDED.to_owned()),
        false => trial::obstacle_to_filtering_frames(),
    };
    let Some(reason) = reason else { return Ok(true) };
    advertisements::refuse_way_out(host, link).map_err(|refused| refused.with_details(reason))?;
    Ok(false)
}

fn require_bridge(link: &Link, name: &str) -> Result<(), Failure> {
    if link.kind.as_deref() == Some("bridge") {
        if link.name == name {
            return Ok(());
        }
        let message = format!("{name:?} is another name of bridge {:?}", link.name);
        return Err(Failure::new(code::INVALID_CONFIG, message)
            .with_details("switches and the packet filter know the bridge by its own name alone"));
    }
    Err(Failure::new(
        codes::CONFLICT,
        format!("{:?} already exists but is not a bridge", link.name),
    )
    .with_details(format!("it is a {}", link.kind.as_deref().unwrap_or("physical link"))))
}

/// A bridge that an attachment holds.
pub(super) struct HeldBridge {
    /// The bridge.
    pub(super) bridge: Link,
    /// The host hears its routers by it.
    pub(super) hears_routers: bool,
}

/// Creates the bridge if necessary and holds it for the attachment. `pin_mac` fixes the hardware
/// address of a bridge that another program created, for the first attachment that holds it.
///
/// # Errors
/// Code 100 with the kernel's words, 108 when something foreign is in the way, 11 when the lock
/// cannot be taken in time.
pub(super) fn ensure(
    host: &mut RouteSocket,
    index: &Index,
    wanted: &Bridge,
    pin_mac: bool,
    key: &AttachmentKey,
) -> Result<HeldBridge, Failure> {
    let name = wanted.link.as_str();
    let object = object(name);
    let _lock = index.lock(&object, LOCK_TIMEOUT)?;
    let before = read_note(index, name)?;
    let mut created = before.created;
    let existing = host.link_by_name(name)?;
    let is_new = existing.is_none();
    let others = || index.is_held_by_others(&object, key);
    let mut hears = false;
    let link = match existing {
        Some(link) => {
            require_bridge(&link, name)?;
            vrf::require_inside(host, &link, wanted.vrf.as_deref())?;
            let mut note = before.clone();
            let is_anothers = match created {
                true => !is_ours(&link, &before),
                false => before.index.is_some_and(|index| index != link.index),
            };
            if is_anothers {
                created = false;
                note = BridgeNote::after(before.clone(), BridgeNote::default());
            }
            if !created && note.index.is_none() {
                note.ports =
                    host.links_of_master(link.index)?.iter().map(|port| port.index).collect();
            }
            note.index = (!created).then_some(link.index);
            if created {
                note.mtu = wanted.mtu.or(note.mtu);
            } else {
                let was = advertisements::accepting_value(name)?;
                let others = || Ok(!is_anothers && others()?);
                hears = hears_routers(host, &link, &note, was.is_some(), others)?;
                note.hears_routers = hears;
                if let Some(was) = was.filter(|_| !hears) {
                    note.took_advertisements.entry(name.to_owned()).or_insert(was);
                }
            }
            note.learnt_past_filters |= learns_past_filters(wanted, &link);
            if note != before {
                write_note(index, &object, &note)?;
            }
            link
        }
        None => {
            // A bridge without an address of its own takes the lowest of its ports', which changes
            // with the ports.
            let mac = kernel::mac::random();
            let note = BridgeNote {
                created: true,
                mac: mac.to_string(),
                mtu: wanted.mtu,
                // In case it must stay, for foreign ports.
                learnt_past_filters: wanted.no_link_local_learning,
                ..BridgeNote::default()
            };
            let note = BridgeNote::after(before.clone(), note);
            write_note(index, &object, &note)?;
            created = true;
            create(host, wanted, mac)?
        }
    };
    // Held before anything else is changed: releasing it undoes what follows.
    index.hold(&object, key)?;
    let pin_mac = pin_mac && !created && !others()?;
    // One of ours accepts them too if an ADD was killed right after it created the bridge.
    if !is_new && !hears && advertisements::accepting_value(name)?.is_some() {
        advertisements::refuse(name)?;
    }
    adjust(host, wanted, &link, created, pin_mac)?;
    Ok(HeldBridge { bridge: link, hears_routers: hears })
}

/// Reports whether spoof checks are configured and the bridge learns source addresses that no
/// packet filter has checked. It learns before its first hook from frames to 01:80:c2:00:00:0e and,
/// with STP, to :00. From frames to other such groups it learns after a hook that is not the
/// checking one (linux net/bridge/br_input.c `br_handle_frame`). A forged address would send
/// another container's frames to the forger.
pub(super) fn learns_past_filters(wanted: &Bridge, bridge: &Link) -> bool {
    wanted.no_link_local_learning && learns_link_local(bridge)
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
pub(super) fn add_gateways(
    host: &mut RouteSocket,
    index: &Index,
    bridge: &Link,
    wanted: &Gateways,
    others: ConflictPolicy,
    refuse: &mut dyn FnMut(&mut RouteSocket) -> Result<(), Failure>,
) -> Result<Option<(String, Option<MacAddr>)>, Failure> {
    let gateways = &wanted.addresses;
    if gateways.is_empty() {
        return Ok(None);
    }
    if wanted.vlan.is_none() {
        let present = gateway::present(host, bridge.index)?;
        if gateways.iter().all(|gateway| present.contains(gateway)) {
            return Ok(None);
        }
    }
    refuse(host)?;
    let object = object(&bridge.name);
    let _lock = index.lock(&object, LOCK_TIMEOUT)?;
    let before = read_note(index, &bridge.name)?;
    let mut note = before.clone();
    if wanted.vlan.is_some()
        && let Some(was) = advertisements::accepting_value(&wanted.link)?
    {
        if let Some(link) = host.link_by_name(&wanted.link)? {
            advertisements::refuse_way_out(host, &link)?;
        }
        note.took_advertisements.entry(wanted.link.clone()).or_insert(was);
        write_note(index, &object, &note)?;
    }
    let vlan_gateway = match wanted.vlan {
        Some(vlan) => {
            Some(vlan_gateway::ensure(host, index, bridge, vlan, wanted, others, &mut note)?)
        }
        None => {
            gateway::add(host, bridge, gateways, others, &mut note.addresses)?;
            None
        }
    };
    if note != before {
        write_note(index, &object, &note)?;
    }
    Ok(vlan_gateway)
}

/// What a bridge with VLANs needs of the kernel.
const VLAN_FILTERING: &str = "a kernel with bridge VLAN filtering (CONFIG_BRIDGE_VLAN_FILTERING)";

fn options(wanted: &Bridge) -> BridgeOptions {
    BridgeOptions {
        vlan_filtering: wanted.vlan_filtering.then_some(true),
        link_local_learning: wanted.no_link_local_learning.then_some(false),
        ..BridgeOptions::default()
    }
}

/// Refuses a bridge that the kernel does not have as it would be created or set up (STATUS).
///
/// # Errors
/// Code 50; code 100 when the kernel does not answer.
pub(super) fn require_kernel(host: &mut RouteSocket, wanted: &Bridge) -> Result<(), Failure> {
    let found = host.link_by_name(&wanted.link)?;
    if found.is_some_and(|link| !wanted.vlan_filtering || filters_vlans(&link)) {
        return Ok(());
    }
    let option = if wanted.vlan_filtering { VLAN_FILTERING } else { "CONFIG_BRIDGE" };
    trial::require_kind("bridge", LinkKind::Bridge(options(wanted)), option)
}

/// Notes which of the gateways' addresses a lease is about to bring: those that are not there yet.
///
/// # Errors
/// Code 100 when the kernel does not answer, 105 when the note cannot be written, 11 when the lock
/// cannot be taken in time.
pub(super) fn note_leased(
    host: &mut RouteSocket,
    index: &Index,
    bridge: &Link,
    wanted: &Gateways,
) -> Result<(), Failure> {
    let object = object(&bridge.name);
    let _lock = index.lock(&object, LOCK_TIMEOUT)?;
    let present = match host.link_by_name(&wanted.link)? {
        Some(link) => gateway::present(host, link.index)?,
        None => Vec::new(),
    };
    let mut note = read_note(index, &bridge.name)?;
    let leased = wanted.addresses.iter().filter(|address| !present.contains(address));
    let leased = leased.map(|address| (wanted.link.clone(), *address));
    let new: Vec<_> = leased.filter(|one| !note.leased.contains(one)).collect();
    if new.is_empty() {
        return Ok(());
    }
    note.leased.extend(new);
    write_note(index, &object, &note)
}

/// Removes the addresses that leases have brought, unless an attachment has an address of their
/// subnet. A bridge that other plugins' containers are on keeps them.
///
/// # Errors
/// As [`note_leased`].
pub(super) fn drop_leased(
    index: &Index,
    bridge: &str,
    used: &dyn Fn(&IpNet) -> bool,
) -> Result<(), Failure> {
    let object = object(bridge);
    let _lock = index.lock(&object, LOCK_TIMEOUT)?;
    if index.known_note(&object)?.is_none() {
        return Ok(());
    }
    let mut note = read_note(index, bridge)?;
    let mut host = RouteSocket::open()?;
    let Some(link) = host.link_by_name(bridge)? else { return Ok(()) };
    if host.links_of_master(link.index)?.iter().any(|port| note.is_of_others(port)) {
        return Ok(());
    }
    let (kept, gone): (Vec<_>, Vec<_>) = note.leased.into_iter().partition(|(_, one)| used(one));
    note.leased = kept;
    if gone.is_empty() {
        return Ok(());
    }
    for (link, address) in &gone {
        // Another program has added it.
        if link == bridge && !note.addresses.contains(address) {
            continue;
        }
        if let Some(link) = host.link_by_name(link)? {
            gateway::remove(&mut host, link.index, &[*address])?;
        }
    }
    note.addresses.retain(|address| !gone.iter().any(|(_, one)| one == address));
    write_note(index, &object, &note)
}

pub(super) fn create(
    host: &mut RouteSocket,
    wanted: &Bridge,
    mac: MacAddr,
) -> Result<Link, Failure> {
    let name = wanted.link.as_str();
    let new = NewLink {
        mac: Some(mac),
        mtu: wanted.mtu,
        alias: Some(mark()),
        master: vrf::index(host, wanted.vrf.as_deref())?,
        ..NewLink::new(name, LinkKind::Bridge(options(wanted)))
    };
    let link = host.create_link(&new).map_err(|error| {
        let mut error = Failure::from(error);
        if wanted.vlan_filtering {
            error = error.with_details(format!("VLANs need {VLAN_FILTERING}"));
        }
        error
    })?;
    // Before the bridge is up: a container's router advertisements must not configure the host
    // (CVE-2020-10749).
    advertisements::refuse(name)?;
    let up = LinkSet {
        up: Some(true),
        promiscuous: wanted.promiscuous.then_some(true),
        ..LinkSet::default()
    };
    bring_up(host, link.index, mac, up)?;
    Ok(link)
}

/// Brings a bridge up with its link-local address, usable at once. Where IPv6 is off the kernel refuses
/// the address, and whoever needs one there is told by the gateway's.
fn bring_up(
    host: &mut RouteSocket,
    ifindex: u32,
    mac: MacAddr,
    set: LinkSet,
) -> Result<(), Failure> {
    let changes = [host_side::link_local(ifindex, mac), Change::SetLink { ifindex, set }];
    match host.apply_each(&changes)?.into_iter().find(|failed| failed.index == 1) {
        Some(failed) => Err(failed.into()),
        None => Ok(()),
    }
}

/// Changes an existing bridge to what the configuration needs. Its MTU is changed only if the
/// bridge is ours.
fn adjust(
    host: &mut RouteSocket,
    wanted: &Bridge,
    link: &Link,
    ours: bool,
    pin_mac: bool,
) -> Result<(), Failure> {
    let set = LinkSet {
        mtu: wanted.mtu.filter(|mtu| ours && *mtu != link.mtu),
        // Fixes the hardware address, which would otherwise change with the ports; an empty bridge
        // has none.
        mac: pin_mac
            .then(|| link.mac.filter(|mac| mac.is_unicast()).unwrap_or_else(kernel::mac::random)),
        ..change(wanted, link)
    };
    if set == LinkSet::default() {
        return Ok(());
    }
    // The kernel would give it the same address, or none, whatever becomes of one of ours.
    let is_given = !link.up() && (link.link_local_of_mac() || is_marked(link));
    let mac = set.mac.or(link.mac).filter(|_| is_given);
    if let Some(mac) = mac {
        return bring_up(host, link.index, mac, set);
    }
    Ok(host.apply_one(&Change::SetLink { ifindex: link.index, set })?)
}

/// Returns what a bridge that is there lacks of what attachments need, whoever made it. A new one is
/// made with [`options`].
pub(super) fn change(wanted: &Bridge, link: &Link) -> LinkSet {
    LinkSet {
        up: (!link.up()).then_some(true),
        promiscuous: (wanted.promiscuous && !link.promiscuous()).then_some(true),
        bridge: BridgeOptions {
            vlan_filtering: (wanted.vlan_filtering && !filters_vlans(link)).then_some(true),
            link_local_learning: learns_past_filters(wanted, link).then_some(false),
            ..BridgeOptions::default()
        },
        ..LinkSet::default()
    }
}

pub(super) fn filters_vlans(link: &Link) -> bool {
    link.bridge.as_ref().is_some_and(|bridge| bridge.vlan_filtering)
}

/// Releases the bridge for an attachment. The last one removes what was created for it.
///
/// # Errors
/// Code 100 when something of ours could not be removed, 11 when the lock cannot be taken in time.
pub(super) fn release(index: &Index, bridge: &str, key: &AttachmentKey) -> Result<(), Failure> {
    let object = SharedObject::new(index, object(bridge));
    let _lock = object.lock()?;
    let released = index.release(object.name(), key)?;
    object.settle(released, || undo(index, &object, bridge, released))
}

/// Removes what was created for a bridge that no attachment holds. If the caller did not hold it
/// either, but it has a note, an ADD was killed between creating the bridge and holding it.
fn undo(
    index: &Index,
    object: &SharedObject<'_>,
    bridge: &str,
    released: Release,
) -> Result<RestoreOutcome, Failure> {
    if released == Release::NotHeld && object.note()?.is_none() {
        return Ok(RestoreOutcome::Postponed);
    }
    delete_unused(index, bridge)
}

/// Removes what was created for bridges that no attachment holds: an ADD was killed between
/// creating the bridge and holding it.
///
/// # Errors
/// As [`release`], the first.
pub(super) fn collect(index: &Index) -> Result<(), Failure> {
    let mut done = Ok(());
    for object in index.objects().found {
        let Some(bridge) = object.strip_prefix("bridge ") else { continue };
        let object = SharedObject::new(index, &*object);
        // An ADD that creates one has the lock from before until the bridge is held.
        done = done.and(object.collect(|| undo(index, &object, bridge, Release::NotHeld)));
    }
    done
}

/// Says whether our own files know a bridge: an attachment holds it, or it has a note.
///
/// # Errors
/// When they cannot be read.
pub(crate) fn is_known(index: &Index, bridge: &str) -> Result<bool, Failure> {
    let object = object(bridge);
    Ok(index.is_held(&object)? || index.has_note(&object)?)
}

/// Deletes a bridge that is marked as ours, if our own files do not know it and it has no port. Says
/// whether it was deleted.
///
/// # Errors
/// As [`release`], the first.
pub(crate) fn delete_ownerless(index: &Index, bridge: &str) -> Result<bool, Failure> {
    // An ADD that creates one has the lock from before until the bridge is held.
    let _lock = index.lock(&object(bridge), LOCK_TIMEOUT)?;
    let mut host = RouteSocket::open()?;
    let Some(link) = host.link_by_name(bridge)?.filter(is_marked) else { return Ok(false) };
    if is_known(index, bridge)? || has_ports(&mut host, link.index)? {
        return Ok(false);
    }
    host.delete_link(link.index)?;
    Ok(true)
}

/// Removes, under its lock, what was created for a bridge that no attachment holds: for the bridge
/// of that name, and for those that had the name until another program renamed them.
///
/// While an attachment of ours has a port on one of them, bridges and note stay as they are. Its
/// hold is missing if a DEL had no time to wait for its ADD, or if another program removed the
/// file. The attachment's own DEL finds the note. While a container that another plugin attached since
/// has a port on one of them, the bridges stay as they are too. One that we created is that plugin's
/// from then on; the note on an administrator's stays for the next DEL or GC.
fn delete_unused(index: &Index, bridge: &str) -> Result<RestoreOutcome, Failure> {
    let note = read_note(index, bridge)?;
    let mut host = RouteSocket::open()?;
    let bridges = bridges_of(&mut host, bridge, &note)?;
    let mut ports = Vec::new();
    let mut is_anothers = false;
    for (link, note) in &bridges {
        let found = host.links_of_master(link.index)?;
        is_anothers |= found.iter().any(|port| note.is_of_others(port));
        ports.extend(found);
    }
    if ports.iter().any(is_of_attachment) {
        return Ok(RestoreOutcome::Postponed);
    }
    // Other plugins' containers are on it by now, and this is their gateway. What we changed on an
    // administrator's bridge is still ours to undo, once they are gone.
    if is_anothers {
        return Ok(match note.created {
            true => RestoreOutcome::Done,
            false => RestoreOutcome::Postponed,
        });
    }
    for name in &note.vlan_links {
        if let Some(link) = vlan_gateway::made(&mut host, name)? {
            host.delete_link(link.index)?;
        }
    }
    vlan_gateway::remove_all(&mut host, &ports)?;
    for (link, note) in &bridges {
        delete_or_restore(&mut host, bridge, link, note)?;
    }
    // The sysctls of VLAN links, which are restored even if the bridge stays.
    for (ifname, was) in note.renamed.iter().chain([&note]).flat_map(|one| &one.took_advertisements)
    {
        if ifname != bridge {
            advertisements::restore(ifname, was)?;
        }
    }
    Ok(RestoreOutcome::Done)
}

/// Finds the bridges that a note covers, each with what was changed on it.
fn bridges_of<'m>(
    host: &mut RouteSocket,
    bridge: &str,
    note: &'m BridgeNote,
) -> Result<Vec<(Link, &'m BridgeNote)>, Failure> {
    let mut found = Vec::new();
    let named = host.link_by_name(bridge)?;
    let named = named.filter(|link| note.index.is_none_or(|index| index == link.index));
    let is_there = named.as_ref().is_some_and(|link| !note.created || is_ours(link, note));
    found.extend(named.map(|link| (link, note)));
    if note.created && (!is_there || !note.earlier.is_empty()) {
        found.extend(renamed(host, bridge, note)?.into_iter().map(|link| (link, note)));
    }
    let others = note.renamed.iter().chain((!is_there).then_some(note));
    for other in others {
        let Some(number) = other.index else { continue };
        let link = host.link_by_index(number)?;
        found.extend(link.filter(|link| link.is_kind("bridge")).map(|link| (link, other)));
    }
    Ok(found)
}

/// Deletes a bridge that we created, unless it has a foreign port. If a bridge stays, this restores
/// what we changed on it.
fn delete_or_restore(
    host: &mut RouteSocket,
    bridge: &str,
    link: &Link,
    note: &BridgeNote,
) -> Result<(), Failure> {
    if note.created && is_ours(link, note) && !has_ports(host, link.index)? {
        return Ok(host.delete_bridge(link.index).map(drop)?);
    }
    let present = gateway::present(host, link.index)?;
    let mut addresses = note.addresses.clone();
    addresses.retain(|address| present.contains(address));
    gateway::remove(host, link.index, &addresses)?;
    if note.learnt_past_filters && !learns_link_local(link) {
        let bridge = BridgeOptions { link_local_learning: Some(true), ..BridgeOptions::default() };
        let set = LinkSet { bridge, ..LinkSet::default() };
        host.apply_one(&Change::SetLink { ifindex: link.index, set })?;
    }
    // The sysctl belongs to the link, which may have another name by now.
    let took = note.took_advertisements.get(bridge);
    took.map_or(Ok(()), |was| advertisements::restore(&link.name, was))
}

/// Finds bridges that we created and that another program has renamed since: they have our mark and
/// a recorded hardware address.
fn renamed(host: &mut RouteSocket, bridge: &str, note: &BridgeNote) -> Result<Vec<Link>, Failure> {
    let macs: Vec<&String> =
        note.earlier.iter().chain([&note.mac]).filter(|mac| !mac.is_empty()).collect();
    if macs.is_empty() {
        return Ok(Vec::new());
    }
    let mut links = host.links()?;
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
fn is_ours(link: &Link, note: &BridgeNote) -> bool {
    match &link.alias {
        Some(alias) => alias.starts_with(owner::PREFIX),
        None => link.mac.is_some_and(|mac| mac.to_string() == note.mac),
    }
}

fn is_of_attachment(port: &Link) -> bool {
    port.alias.as_deref().is_some_and(owner::is_of_attachment)
}

fn has_ports(host: &mut RouteSocket, bridge: u32) -> Result<bool, Failure> {
    Ok(!host.links_of_master(bridge)?.is_empty())
}

/// Reads the note on the bridge of a name.
///
/// # Errors
/// Code 105 when it cannot be read.
pub(super) fn read_note(index: &Index, bridge: &str) -> Result<BridgeNote, Failure> {
    let note = index.known_note(&object(bridge))?;
    Ok(note.and_then(|note| serde_json::from_value(note).ok()).unwrap_or_default())
}

pub(super) fn write_note(index: &Index, object: &str, note: &BridgeNote) -> Result<(), Failure> {
    let note = serde_json::to_value(note).expect("a note has string keys only");
    Ok(index.note(object, &note)?)
}
