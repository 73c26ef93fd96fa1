//! The bridge as CHECK compares it and repair restores it.

use kernel::mac::MacAddr;
use kernel::route::{BridgeOptions, Change, Link, LinkSet, RouteSocket};
use state::{Index, LOCK_TIMEOUT};
use wanted::{Bridge, Place};

use super::bridge_link::{
    BridgeNote, change, create, filters_vlans, learns_past_filters, object, read_note, write_note,
};
use super::port::on_off;
use crate::engine::{Comparison, Mismatch, Picture, differs, sound};
use crate::shared::advertisements;
use crate::shared::failure::Failure;

/// Why repair leaves a bridge alone.
const OF_OTHERS: &str = "another program created the bridge, and repair leaves it alone";

/// Compares the bridge with what attachments need.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn compare(picture: &mut Picture<'_>, wanted: &Bridge) -> Comparison {
    let name = &wanted.link;
    let Some(bridge) = picture.link(Place::Host, name)? else {
        let text = format!("bridge {name:?} is gone");
        let found =
            if wanted.ours { Mismatch::new(text) } else { Mismatch::by_hand(text, OF_OTHERS) };
        return Ok(vec![found.without_link()]);
    };
    if !bridge.is_kind("bridge") {
        let text = format!("interface {name:?} is no longer a bridge");
        return Ok(vec![Mismatch::by_hand(text, "remove or rename that interface").without_link()]);
    }
    let mut found = Vec::new();
    let mut differs = |text: String, restorable: bool| {
        found.push(if restorable {
            Mismatch::new(text)
        } else {
            Mismatch::by_hand(text, OF_OTHERS)
        });
    };
    if let (Some(mac), Some(has)) = (&wanted.mac, bridge.mac.map(|mac| mac.to_string()))
        && !has.eq_ignore_ascii_case(mac)
    {
        let text = format!("interface {name:?} has MAC address {has}, ADD reported {mac}");
        differs(text, wanted.ours);
    }
    if bridge.promiscuous() != wanted.promiscuous {
        let text = format!(
            "bridge {name:?} has promiscuous mode {}, the configuration asks for {}",
            on_off(bridge.promiscuous()),
            on_off(wanted.promiscuous)
        );
        differs(text, wanted.ours || wanted.promiscuous);
    }
    if !bridge.up() {
        differs(format!("bridge {name:?} is down"), true);
    }
    if wanted.vlan_filtering && !filters_vlans(&bridge) {
        differs(format!("bridge {name:?} does not filter VLANs any more"), true);
    }
    if wanted.ours && has_unwanted_stp(&mut picture.namespaces.get()?.host, &bridge)? {
        differs(format!("bridge {name:?} has STP on, and new ports wait for it"), true);
    }
    if !wanted.hears_routers
        && let Some(text) = advertisements::check(name)?
    {
        differs(text, true);
    }
    if learns_past_filters(wanted, &bridge) {
        let text = format!("bridge {name:?} learns from link-local frames, past macspoofchk");
        differs(text, true);
    }
    Ok(found)
}

/// Restores the bridge for an attachment that holds it: creates it again with its old address, up,
/// in its modes. A bridge that another program created is only set up; the rest is left to its
/// owner. Returns what was set.
///
/// # Errors
/// As [`super::bridge_link::ensure`].
pub(super) fn restore(
    picture: &mut Picture<'_>,
    wanted: &Bridge,
) -> Result<Option<String>, Failure> {
    let (index, key) = (picture.index, picture.call.attachment());
    let host = &mut picture.namespaces.get()?.host;
    let name = &wanted.link;
    let object = object(name);
    let mac: Option<MacAddr> = wanted.mac.as_ref().and_then(|mac| mac.parse().ok());
    let Some(link) = host.link_by_name(name)? else {
        let _lock = index.lock(&object, LOCK_TIMEOUT)?;
        if index.holders(&object).found.contains(key) && host.link_by_name(name)?.is_none() {
            let mut anew = read_note(index, name)?;
            let mac = mac.or_else(|| anew.mac.parse().ok()).unwrap_or_else(kernel::mac::random);
            // Its addresses are added again, and recorded then.
            anew.addresses.clear();
            anew.mac = mac.to_string();
            write_note(index, &object, &anew)?;
            create(host, wanted, mac)?;
        }
        return Ok(None);
    };
    let note = read_note(index, name)?;
    let no_stp = wanted.ours && has_unwanted_stp(host, &link)?;
    let lacks = change(wanted, &link);
    let too_promiscuous = wanted.ours && !wanted.promiscuous && link.promiscuous();
    let set = LinkSet {
        promiscuous: lacks.promiscuous.or(too_promiscuous.then_some(false)),
        mac: mac.filter(|mac| wanted.ours && link.mac != Some(*mac)),
        bridge: BridgeOptions { stp: no_stp.then_some(false), ..lacks.bridge },
        ..lacks
    };
    let learns = set.bridge.link_local_learning.is_some();
    let accepted = match wanted.hears_routers {
        true => None,
        false => advertisements::accepting_value(name)?,
    };
    let accepts = accepted.is_some();
    record_original(index, &object, &note, name, accepted.filter(|_| !note.created), learns)?;
    let mut parts = Vec::new();
    if accepts {
        advertisements::refuse(name)?;
        parts.push("no router advertisements".to_owned());
    }
    parts.extend(set.up.map(|_| "up".to_owned()));
    parts.extend(set.promiscuous.map(|on| format!("promiscuous mode {}", on_off(on))));
    parts.extend(set.mac.map(|mac| format!("MAC address {mac}")));
    parts.extend(set.bridge.vlan_filtering.map(|_| "VLAN filtering on".to_owned()));
    parts.extend(set.bridge.stp.map(|_| "STP off".to_owned()));
    let learning = set.bridge.link_local_learning;
    parts.extend(learning.map(|_| "no learning from link-local frames".to_owned()));
    if set != LinkSet::default() {
        host.apply_one(&Change::SetLink { ifindex: link.index, set })?;
    }
    Ok(Some(format!("bridge {name:?}: {}", parts.join(", "))))
}

/// Records what a repair is about to change on a bridge for the first time: an older release's ADD
/// did not record it. `took` is the value with which another program's bridge accepts router
/// advertisements.
fn record_original(
    index: &Index,
    object: &str,
    note: &BridgeNote,
    name: &str,
    took: Option<String>,
    learns: bool,
) -> Result<(), Failure> {
    let took = took.filter(|_| !note.took_advertisements.contains_key(name));
    if took.is_none() && (!learns || note.learnt_past_filters) {
        return Ok(());
    }
    let _lock = index.lock(object, LOCK_TIMEOUT)?;
    let mut note = read_note(index, name)?;
    note.learnt_past_filters |= learns;
    if let Some(was) = took {
        note.took_advertisements.entry(name.to_owned()).or_insert(was);
    }
    write_note(index, object, &note)
}

/// Reports whether a bridge of ours has STP on for no purpose: a new port then carries nothing for
/// half a minute. If an administrator has added a port that leads out, STP may prevent loops, and
/// is left on.
///
/// # Errors
/// Code 100 when the kernel does not answer.
fn has_unwanted_stp(host: &mut RouteSocket, link: &Link) -> Result<bool, Failure> {
    if !link.bridge.as_ref().is_some_and(|bridge| bridge.stp) {
        return Ok(false);
    }
    let ports = host.links_of_master(link.index)?;
    Ok(ports.iter().all(|port| port.is_kind("veth") || port.is_kind("tun")))
}

/// Compares the MTU of a bridge of ours: with a lower or higher one than its ports', packets to
/// containers would be cut or lost.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn compare_mtu(
    picture: &mut Picture<'_>,
    link: &str,
    port: &str,
    wanted: Option<u32>,
) -> Comparison {
    let bridge = picture.link(Place::Host, link)?;
    let port = picture.link(Place::Host, port)?;
    let Some((bridge, port)) = bridge.zip(port) else { return sound() };
    let mtu = wrong_mtu(&mut picture.namespaces.get()?.host, &bridge, &port, wanted)?;
    mtu.map_or_else(sound, |mtu| {
        differs(format!("bridge {link:?} has MTU {}, not {mtu}", bridge.mtu))
    })
}

/// Restores the MTU of a bridge of ours. Returns what was set.
///
/// # Errors
/// Code 100 with the kernel's words.
pub(super) fn restore_mtu(
    picture: &mut Picture<'_>,
    link: &str,
    port: &str,
    wanted: Option<u32>,
) -> Result<Option<String>, Failure> {
    let host = &mut picture.namespaces.get()?.host;
    // It follows the ports' MTU, which may be restored by now.
    let [bridge, port] = [link, port].map(|name| host.link_by_name(name));
    let (Some(bridge), Some(port)) = (bridge?, port?) else {
        return Ok(None);
    };
    let Some(mtu) = wrong_mtu(host, &bridge, &port, wanted)? else { return Ok(None) };
    let set = LinkSet { mtu: Some(mtu), ..LinkSet::default() };
    host.apply_one(&Change::SetLink { ifindex: bridge.index, set })?;
    Ok(Some(format!("bridge {link:?}: MTU {mtu}")))
}

/// Returns the MTU that a bridge should have but does not have; the lowest of its ports' if none is
/// configured. `port` is one of its ports.
fn wrong_mtu(
    host: &mut RouteSocket,
    bridge: &Link,
    port: &Link,
    wanted: Option<u32>,
) -> Result<Option<u32>, Failure> {
    if bridge.mtu == port.mtu {
        return Ok(None);
    }
    let wanted = match wanted {
        Some(mtu) => Some(mtu),
        None => {
            let ports = host.links_of_master(bridge.index)?;
            ports.iter().map(|port| port.mtu).min()
        }
    };
    Ok(wanted.filter(|mtu| *mtu != bridge.mtu))
}
