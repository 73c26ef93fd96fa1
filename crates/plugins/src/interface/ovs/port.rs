//! The port in the database, and the link of a port that the switch has created, as CHECK compares
//! them and repair restores them.

use cni::code;
use cni_plugin::Call;
use kernel::mac::MacAddr;
use kernel::route::{Change, LinkSet};
use ovsdb::vswitch::{Bridge, DATABASE, Interface, Port, TypedRow as _};
use ovsdb::{Condition, Transaction};
use wanted::{ATTACH_ANEW, Place};

use super::config::Config;
use super::database::Switch;
use super::rows::{self, ids};
use super::{NAME, connect, interior};
use crate::engine::{Comparison, Mismatch, Picture, sound};
use crate::shared::failure::Failure;
use crate::shared::identity;

/// What an administrator does about a bridge that this plugin does not create.
const NO_BRIDGE: &str =
    "the bridge must be created again (ovs-vsctl add-br): this plugin did not create it";

/// Compares a port's rows with what ADD wrote.
///
/// # Errors
/// Code 112 when the database does not answer.
pub(super) fn compare(config: &Config, picture: &Picture<'_>, name: &str) -> Comparison {
    let mut switch = Switch::connect(picture.call, &config.remote)?;
    let seen = look(&mut switch, config, name)?;
    if seen.bridge.is_none() && config.create.is_none() {
        let text = format!("bridge {:?} is gone", config.bridge);
        return Ok(vec![Mismatch::by_hand(text, NO_BRIDGE)]);
    }
    let found = differences(picture.call, config, name, &seen);
    Ok(found.into_iter().map(Mismatch::new).collect())
}

/// The database's rows about an attachment's port.
#[derive(Debug)]
struct PortRows {
    bridge: Option<Bridge>,
    port: Option<Port>,
    interface: Option<Interface>,
    limits: Limits,
}

/// Columns of both rows that limit a port. DEL does not read them, so that it works with a database
/// that lacks them.
#[derive(Debug)]
struct Limits {
    is_protected: bool,
    /// [`rows::policing`].
    policing: [i64; 2],
}

/// Reads the port by its name, and its bridge.
fn look(switch: &mut Switch, config: &Config, name: &str) -> Result<PortRows, Failure> {
    let mut look = Transaction::new(DATABASE);
    let by_name = |name: &str| vec![Condition::equals("name", name)];
    let columns = ["_uuid", "name", "datapath_type"];
    let bridge = look.select(Bridge::TABLE, by_name(&config.bridge), &columns);
    let columns = [Port::COLUMNS, &[rows::PROTECTED]].concat();
    let port = look.select(Port::TABLE, by_name(name), &columns);
    let columns = [Interface::COLUMNS, &rows::POLICING].concat();
    let interface = look.select(Interface::TABLE, by_name(name), &columns);
    let outcome = switch.transact(&look)?;
    let (port, interface) = (outcome.rows(port).first(), outcome.rows(interface).first());
    let number = |column| interface.and_then(|row| row.integer(column)).unwrap_or_default();
    let limits = Limits {
        is_protected: port.and_then(|row| row.boolean(rows::PROTECTED)) == Some(true),
        policing: rows::POLICING.map(number),
    };
    let mut seen = PortRows {
        bridge: outcome.rows(bridge).first().map(Bridge::read),
        port: port.map(Port::read),
        interface: interface.map(Interface::read),
        limits,
    };
    // Whether the port is on that bridge is queried by the port, since the bridge may have
    // thousands of ports.
    if let (Some(bridge), Some(port)) = (&mut seen.bridge, &seen.port)
        && let Some(uuid) = &port.uuid
    {
        let mut look = Transaction::new(DATABASE);
        let conditions = vec![
            Condition::equals("name", config.bridge.as_str()),
            Condition::includes("ports", ovsdb::Value::Atom(uuid.into())),
        ];
        let has = look.select(Bridge::TABLE, conditions, &["name"]);
        if !switch.transact(&look)?.rows(has).is_empty() {
            bridge.ports = vec![uuid.clone()];
        }
    }
    Ok(seen)
}

/// Lists how the rows differ from what ADD wrote, one clause each.
fn differences(call: &Call<'_>, config: &Config, name: &str, seen: &PortRows) -> Vec<String> {
    let Some(bridge) = &seen.bridge else {
        return vec![format!("bridge {:?} is gone", config.bridge)];
    };
    let (Some(port), Some(interface)) = (&seen.port, &seen.interface) else {
        return vec![format!("port {name:?} is gone from bridge {:?}", config.bridge)];
    };
    if port.uuid.as_ref().is_none_or(|uuid| !bridge.ports.contains(uuid)) {
        return vec![format!("port {name:?} is no longer on bridge {:?}", config.bridge)];
    }
    // A port that another plugin created does not have our mark.
    if let Some(hash) =
        port.external_ids.get(ids::OWNER).filter(|hash| **hash != call.attachment().hash())
    {
        return vec![format!("port {name:?} belongs to attachment {hash}")];
    }
    let mut found: Vec<String> = rows::vlan_drift(config, port).into_iter().collect();
    match (config.protected, seen.limits.is_protected) {
        (true, false) => found.push(format!("port {name:?} is not protected any more")),
        (false, true) => found.push(format!("port {name:?} is protected, and should not be")),
        _ => {}
    }
    let policing = rows::policing(&config.qos);
    for ((column, wanted), is) in rows::POLICING.iter().zip(policing).zip(seen.limits.policing) {
        if is != wanted {
            found.push(format!(
                "port {name:?} has {column} {is}, the configuration asks for {wanted}"
            ));
        }
    }
    if let Some(ovn_port) = &config.ovn_port
        && interface.external_ids.get("iface-id") != Some(ovn_port)
    {
        found.push(format!("port {name:?} does not have iface-id {ovn_port:?}"));
    }
    let ids = config.external_ids.iter();
    for (key, _) in ids.filter(|(key, value)| interface.external_ids.get(*key) != Some(value)) {
        found.push(format!("port {name:?} lacks the external_ids {key:?} of the configuration"));
    }
    if config.qos.shapes_egress() && port.qos.is_none() {
        found.push(format!("port {name:?} no longer has a QoS"));
    }
    let error = &interface.error;
    if !error.is_empty() {
        found.push(format!("the switch cannot use port {name:?}: {error}"));
    } else if interface.ofport.is_none_or(|number| number <= 0) {
        found.push(format!("the switch does not use port {name:?}"));
    }
    found
}

/// Removes what exists of our rows and writes them again, in one transaction.
///
/// # Errors
/// Code 112 when the database does not answer or the switch does not take the port.
pub(super) fn restore(
    config: &Config,
    picture: &Picture<'_>,
    name: &str,
    mac: Option<&str>,
) -> Result<(), Failure> {
    let call = picture.call;
    let mac = mac_of(name, mac)?;
    let mut switch = Switch::connect(call, &config.remote)?;
    switch.listen()?;
    let seen = connect::observe(&mut switch, call, config)?;
    let (interface, _) = connect::write(&mut switch, call, config, seen, name, mac)?;
    switch.wait_for_port(&interface, name).map(drop)
}

fn mac_of(name: &str, mac: Option<&str>) -> Result<MacAddr, Failure> {
    mac.and_then(|mac| mac.parse().ok()).ok_or_else(|| {
        let message = format!("the result of ADD has no hardware address for port {name:?}");
        Failure::new(code::INVALID_CONFIG, message)
    })
}

/// Compares the container's interface of a port that the switch has created. A switch that was
/// restarted has created another link, on the host, and the one in the container has no other end.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn compare_interface(picture: &mut Picture<'_>, ifname: &str, port: &str) -> Comparison {
    if picture.link(Place::Host, port)?.is_some() {
        let text = format!("the switch has created the link of port {port:?} again, on the host");
        return Ok(vec![Mismatch::new(text).without_link()]);
    }
    let Some(link) = picture.link(Place::Container, ifname)? else {
        let text = format!("interface {ifname:?} is gone from the container");
        return Ok(vec![Mismatch::by_hand(text, ATTACH_ANEW).without_link()]);
    };
    if !interior::KINDS.iter().any(|kind| link.is_kind(kind)) {
        let kinds = interior::KINDS.join(" or ");
        let text = format!("interface {ifname:?} is no longer of kind {kinds}");
        return Ok(vec![Mismatch::by_hand(text, ATTACH_ANEW).without_link()]);
    }
    if !link.is_kind("macvlan") {
        return sound();
    }
    let lower = picture.link(Place::Container, port)?;
    match lower.filter(|lower| Some(lower.index) == link.peer_index) {
        None => {
            let text = format!("interface {ifname:?} is no longer over port {port:?}");
            Ok(vec![Mismatch::by_hand(text, ATTACH_ANEW)])
        }
        Some(lower) if !lower.up() => {
            Ok(vec![Mismatch::new(format!("interface {port:?} is down"))])
        }
        Some(_) => sound(),
    }
}

/// Moves a link that the switch has created again into the container; sets it up if it is there.
///
/// # Errors
/// Code 100 with the kernel's words; code 108 when the container's interface is not ours.
pub(super) fn restore_interface(
    config: &Config,
    picture: &mut Picture<'_>,
    port: &str,
    mac: Option<&str>,
) -> Result<(), Failure> {
    let (call, index) = (picture.call, picture.index);
    let sides = picture.namespaces.get()?;
    if sides.host.link_index(port)?.is_some() {
        let mac = mac_of(port, mac)?;
        interior::remove_dead(&mut sides.inside, call)?;
        let (netns, host, inside) = (&sides.netns, &mut sides.host, &mut sides.inside);
        let link = interior::move_in(call, netns, host, inside, port, mac, config.mtu)?;
        return identity::record_link(index, call.attachment(), NAME, &link);
    }
    let Some(lower) = sides.inside.link_by_name(port)? else { return Ok(()) };
    let up = Change::SetLink { ifindex: lower.index, set: LinkSet::default().up(true) };
    Ok(sides.inside.apply_one(&up)?)
}
