//! The host's end as a port of the bridge.

use kernel::route::{BridgeVlan, BridgeVlanSide, Change, Link, LinkSet, OperState, RouteSocket};
use wanted::{Place, Port, PortVlans};

use crate::engine::{Comparison, Mismatch, Picture, differs, sound};
use crate::shared::failure::Failure;

/// The state of a bridge's port that carries frames ([`kernel::route::BridgePort::state`]).
const FORWARDING: u8 = 3;

/// Sets the properties of a new port, which is down, and brings it up.
///
/// # Errors
/// Code 100 with the kernel's words.
pub(super) fn bring_up(
    host: &mut RouteSocket,
    port: &Port,
    bridge: &Link,
    ifindex: u32,
) -> Result<(), Failure> {
    let set = LinkSet {
        up: Some(true),
        hairpin: port.hairpin.then_some(true),
        isolated: port.isolated.then_some(true),
        ..LinkSet::default()
    };
    let mut changes = plan_vlans(ifindex, bridge, port.vlans.as_ref());
    changes.push(Change::SetLink { ifindex, set });
    Ok(host.apply(&changes)?)
}

/// Plans the VLANs of a new port, which starts in the bridge's default VLAN, untagged.
fn plan_vlans(ifindex: u32, bridge: &Link, vlans: Option<&PortVlans>) -> Vec<Change> {
    let (side, default) = (BridgeVlanSide::Port, bridge.default_vlan());
    let mut changes = Vec::new();
    let Some(vlans) = vlans else { return changes };
    if !vlans.keep_default && default != 0 && vlans.native != Some(default) {
        changes.push(Change::DelBridgeVlan { ifindex, side, vlan: BridgeVlan::tagged(default) });
    }
    for id in &vlans.tagged {
        changes.push(Change::AddBridgeVlan { ifindex, side, vlan: BridgeVlan::tagged(*id) });
    }
    if let Some(native) = vlans.native {
        changes.push(Change::AddBridgeVlan { ifindex, side, vlan: BridgeVlan::access(native) });
    }
    changes
}

/// Compares a port. If it or the bridge is gone, another item says so.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn compare(picture: &mut Picture<'_>, wanted: &Port) -> Comparison {
    let Some((port, bridge)) = links(picture, wanted)? else { return sound() };
    let name = &port.name;
    if port.master != Some(bridge.index) {
        let bridge = &bridge.name;
        return differs(format!("link {name:?} is not a port of bridge {bridge:?} any more"));
    }
    let has = port.port.unwrap_or_default();
    let mode = |what: &str, asked: bool, is: bool| {
        let words = || {
            let (is, asked) = (on_off(is), on_off(asked));
            format!("port {name:?} has {what} {is}, the configuration asks for {asked}")
        };
        (asked != is).then(|| Mismatch::new(words()))
    };
    let hairpin = mode("hairpin mode", wanted.hairpin, has.hairpin).map(Mismatch::of_hairpin);
    let isolation = mode("isolation", wanted.isolated, has.isolated);
    let mut found: Vec<Mismatch> = hairpin.into_iter().chain(isolation).collect();
    if holds_back(&port, &bridge) {
        let text = format!("port {name:?} of bridge {:?} forwards nothing", bridge.name);
        found.push(Mismatch::new(text));
    }
    let host = &mut picture.namespaces.get()?.host;
    let vlans = vlan_difference(host, wanted.vlans.as_ref(), &port)?;
    found.extend(vlans.map(Mismatch::new));
    Ok(found)
}

/// Returns port and bridge, if both exist.
fn links(picture: &mut Picture<'_>, wanted: &Port) -> Result<Option<(Link, Link)>, Failure> {
    let port = picture.link(Place::Host, &wanted.link)?;
    let bridge = picture.link(Place::Host, &wanted.bridge)?;
    Ok(port.zip(bridge.filter(|bridge| bridge.is_kind("bridge"))))
}

/// Reports whether a port that could forward does not. With STP that is for the protocol to decide.
fn holds_back(port: &Link, bridge: &Link) -> bool {
    let stp = bridge.bridge.as_ref().is_some_and(|bridge| bridge.stp);
    let forwards = port.port.is_none_or(|port| port.state == FORWARDING);
    !forwards && !stp && bridge.up() && port.up() && port.oper_state == OperState::Up
}

fn vlan_difference(
    host: &mut RouteSocket,
    vlans: Option<&PortVlans>,
    port: &Link,
) -> Result<Option<String>, Failure> {
    let Some(vlans) = vlans else { return Ok(None) };
    let present = host.bridge_vlans(port.index)?;
    for id in vlans.tagged.iter().copied().chain(vlans.native) {
        let Some(vlan) = present.iter().find(|vlan| (vlan.first..=vlan.last).contains(&id)) else {
            return Ok(Some(format!("port {:?} is not in VLAN {id} any more", port.name)));
        };
        if Some(id) == vlans.native && !(vlan.pvid && vlan.untagged) {
            return Ok(Some(format!("VLAN {id} is not port {:?}'s own any more", port.name)));
        }
    }
    Ok(None)
}

/// Makes a link a port again, or restores the properties of a port. Returns what was set.
///
/// # Errors
/// Code 100 with the kernel's words.
pub(super) fn restore(picture: &mut Picture<'_>, wanted: &Port) -> Result<Option<String>, Failure> {
    let host = &mut picture.namespaces.get()?.host;
    // The bridge may have been created a moment ago.
    let [port, bridge] = [&wanted.link, &wanted.bridge].map(|name| host.link_by_name(name));
    let (Some(port), Some(bridge)) = (port?, bridge?) else {
        return Ok(None);
    };
    let ifindex = port.index;
    let has = port.port.unwrap_or_default();
    let attached = port.master == Some(bridge.index);
    let differs = |wanted: bool, found: bool| (!attached || wanted != found).then_some(wanted);
    let set = LinkSet {
        master: (!attached).then_some(Some(bridge.index)),
        hairpin: differs(wanted.hairpin, has.hairpin),
        isolated: differs(wanted.isolated, has.isolated),
        // A new port forwards as soon as it may.
        forwarding: attached && holds_back(&port, &bridge),
        ..LinkSet::default()
    };
    let mut parts = Vec::new();
    if !attached {
        parts.push(format!("port of bridge {:?}", bridge.name));
    }
    parts.extend(described(&set));
    let mut changes = Vec::new();
    if !attached {
        // Down until all of it is set: a new port is not isolated, and is in the default VLAN.
        let up = |up| LinkSet { up: Some(up), ..LinkSet::default() };
        changes.push(Change::SetLink { ifindex, set: up(false) });
        changes.push(Change::SetLink { ifindex, set });
        changes.extend(plan_vlans(ifindex, &bridge, wanted.vlans.as_ref()));
        changes.push(Change::SetLink { ifindex, set: up(true) });
    } else {
        if set != LinkSet::default() {
            changes.push(Change::SetLink { ifindex, set });
        }
        if vlan_difference(host, wanted.vlans.as_ref(), &port)?.is_some() {
            changes.extend(plan_vlans(ifindex, &bridge, wanted.vlans.as_ref()));
            parts.push("its VLANs".to_owned());
        }
    }
    host.apply(&changes)?;
    Ok(Some(format!("link {:?}: {}", port.name, parts.join(", "))))
}

fn described(set: &LinkSet) -> Vec<String> {
    let mut parts = Vec::new();
    for (what, on) in [("hairpin mode", set.hairpin), ("isolation", set.isolated)] {
        // Both are set on a new port; off is its default anyway.
        if let Some(on) = on.filter(|on| *on || set.master.is_none()) {
            parts.push(format!("{what} {}", on_off(on)));
        }
    }
    if set.forwarding {
        parts.push("forwards".to_owned());
    }
    parts
}

/// Names the state of a mode, for messages.
pub(super) fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
