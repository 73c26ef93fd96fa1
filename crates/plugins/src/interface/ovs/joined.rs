//! Bridges of one switch that patch ports join (`man 5 ovs-vswitchd.conf.db`, "Patch Options"): a
//! frame that one of them floods is on the others too, so their containers share a segment.
//!
//! Like the bridge itself, patch ports count whatever the flows of the switch do with frames.

use std::collections::{BTreeMap, BTreeSet};

use ovsdb::vswitch::{Bridge, DATABASE, Interface, Port, TypedRow as _};
use ovsdb::{Condition, Transaction, Value};

use super::database::Switch;
use crate::shared::failure::Failure;

/// With more patch ports, each bridge counts as a segment by itself: every port is asked for twice.
const MOST: usize = 256;

/// One end of a pair of patch ports.
#[derive(Debug)]
struct End {
    bridge: String,
    /// The name of the other end.
    peer: String,
}

/// Lists a bridge and those that patch ports join with it, for frames of a VLAN or without one. A
/// patch port that is itself in a VLAN is not followed.
///
/// # Errors
/// Code 112.
pub(super) fn bridges(
    switch: &mut Switch,
    bridge: &str,
    vlan: Option<u16>,
) -> Result<BTreeSet<String>, Failure> {
    let mut all = BTreeSet::from([bridge.to_owned()]);
    let ends = ends(switch, vlan)?;
    let mut next = vec![bridge.to_owned()];
    while let Some(from) = next.pop() {
        for (name, end) in ends.iter().filter(|(_, end)| end.bridge == from) {
            // The switch joins two ports only if each names the other.
            if let Some(other) = ends.get(&end.peer)
                && other.peer == *name
                && all.insert(other.bridge.clone())
            {
                next.push(other.bridge.clone());
            }
        }
    }
    Ok(all)
}

/// Reads the patch ports that carry frames of a VLAN as they are, by name.
fn ends(switch: &mut Switch, vlan: Option<u16>) -> Result<BTreeMap<String, End>, Failure> {
    let mut look = Transaction::new(DATABASE);
    let patches = vec![Condition::equals("type", "patch")];
    let patches = look.select(Interface::TABLE, patches, Interface::COLUMNS);
    let found = switch.transact(&look)?;
    let interfaces: Vec<Interface> = found.rows(patches).iter().map(Interface::read).collect();
    let mut ends = BTreeMap::new();
    // Nearly always there are none.
    if interfaces.is_empty() || MOST < interfaces.len() {
        return Ok(ends);
    }
    let mut look = Transaction::new(DATABASE);
    let mut asked = Vec::new();
    for interface in interfaces {
        let Some(uuid) = &interface.uuid else { continue };
        let has = vec![Condition::includes("interfaces", Value::Atom(uuid.into()))];
        let port = look.select(Port::TABLE, has, Port::COLUMNS);
        asked.push((interface, port));
    }
    let found = switch.transact(&look)?;
    let mut look = Transaction::new(DATABASE);
    let mut carried = Vec::new();
    for (interface, port) in asked {
        let port = found.rows(port).first().map(Port::read).filter(|port| carries(port, vlan));
        let Some(uuid) = port.and_then(|port| port.uuid) else { continue };
        let has = vec![Condition::includes("ports", Value::Atom(uuid.into()))];
        carried.push((interface, look.select(Bridge::TABLE, has, &["name"])));
    }
    if carried.is_empty() {
        return Ok(ends);
    }
    let found = switch.transact(&look)?;
    for (interface, bridge) in carried {
        let Some(bridge) = found.rows(bridge).first() else { continue };
        let Some(peer) = interface.options.get("peer") else { continue };
        let end = End { bridge: bridge.text("name").to_owned(), peer: peer.clone() };
        ends.insert(interface.name, end);
    }
    Ok(ends)
}

fn carries(port: &Port, vlan: Option<u16>) -> bool {
    let vlan = i64::from(vlan.unwrap_or(0));
    port.tag.is_none() && (port.trunks.is_empty() || port.trunks.contains(&vlan))
}
