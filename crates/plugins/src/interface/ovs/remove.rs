//! Removes what ADD created.

use cni::{AttachmentKey, code};
use cni_plugin::{Call, codes};
use ovsdb::vswitch::{Bridge, DATABASE, Port, TypedRow as _};
use ovsdb::{Condition, Mutation, Remote, Row, Transaction, Uuid, Value, WaitCondition};
use state::Index;

use super::config::Config;
use super::connect::{RecordData, remove_ports};
use super::database::{ATTEMPTS, NumberHandle, Switch, busy, number};
use super::place::Place;
use super::rows::{self, has_id, ids};
use super::{NAME, Ovs, defaults, interior, local_port, mirrors};
use crate::engine::Removal;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::{attachment, pair};

/// Removes everything that ADD created: first the port, since the switch would report an error for a
/// missing link, then the link.
pub(super) fn take_down(removal: &Removal<'_, Ovs>, failures: &mut Failures) {
    let Removal { call, index, key, netns, .. } = removal;
    let (netns, recorded) = (netns.as_ref(), removal.recorded.as_ref());
    match take_out(call, key, recorded) {
        // There is no record, so most likely nothing exists. If it does, GC finds it.
        Err(error)
            if removal.record.is_none()
                && [codes::SWITCH, code::INVALID_CONFIG].contains(&error.code()) =>
        {
            call.warn(format_args!("the switch is not asked: {error}"));
        }
        done => {
            failures.note("remove the port", done);
        }
    }
    let name = rows::interior_name(key);
    let inside = recorded.and_then(|recorded| recorded.inside);
    failures.note("remove the port's link", interior::remove_link(key, &name, netns, inside));
    let host = recorded.map(|recorded| recorded.host_ifname.as_str());
    failures.note("remove the link", pair::remove(call, key, host, netns));
    let known = recorded.map(|recorded| recorded.bridge.clone());
    let bridge = known.or_else(|| Config::of(call).ok().map(|config| config.bridge));
    if let Some(bridge) = bridge {
        let released = local_port::release(index, &bridge, key);
        failures.note("restore the bridge's own link", released);
    }
}

/// Lists the attachments of this network that the host's links, shared objects and the database
/// show.
pub(super) fn unrecorded(
    call: &Call<'_>,
    index: &Index,
    failures: &mut Failures,
) -> Vec<AttachmentKey> {
    let mut found = pair::unrecorded(call, index, failures);
    match in_database(call) {
        // If there is no record, there may be no switch at all.
        Err(error) if error.code() == codes::SWITCH && !is_used(call, index) => {
            call.warn(format_args!("the switch is not asked: {error}"));
        }
        listed => found.extend(failures.note("list ports", listed).unwrap_or_default()),
    }
    found
}

/// Returns the database's address: as recorded, as configured, or the usual place.
fn remote(call: &Call<'_>, recorded: Option<&RecordData>) -> Result<Remote, Failure> {
    if let Some(recorded) = recorded.filter(|recorded| !recorded.place.socket_file.is_empty()) {
        return recorded.place.remote();
    }
    // An unreadable configuration must not keep DEL from what is known without it.
    let place = defaults::document(call).ok();
    let place: Place =
        place.and_then(|document| cni::json::from_slice(&document).ok()).unwrap_or_default();
    place.remote()
}

/// Returns the bridge that may be removed with the last port of a network, if its name is known.
fn shared_bridge(call: &Call<'_>, recorded: Option<&RecordData>) -> Option<String> {
    if let Some(recorded) = recorded {
        return recorded.shares.then(|| recorded.bridge.clone());
    }
    let config = Config::of(call).ok()?;
    (config.create.is_some() || config.tunnel.is_some()).then_some(config.bridge)
}

/// Removes the attachment's port from the database, with what only it used.
fn take_out(
    call: &Call<'_>,
    key: &AttachmentKey,
    recorded: Option<&RecordData>,
) -> Result<(), Failure> {
    let mut switch = Switch::connect(call, &remote(call, recorded)?)?;
    for _ in 0..ATTEMPTS {
        let found = find(&mut switch, call, key, shared_bridge(call, recorded))?;
        if found.ports.is_empty() && found.tunnels.is_empty() && found.bridge.is_none() {
            return Ok(());
        }
        let (plan, numbered, takes_links) = plan(key, &found);
        // A running switch removes the links. If none runs, we remove a port's link.
        let waits = takes_links && switch.is_alive()?;
        if waits {
            switch.listen()?;
        }
        match switch.try_transact(&plan) {
            Ok(outcome) => {
                if waits {
                    switch.wait_for(&outcome, numbered)?;
                }
                return Ok(());
            }
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(switch.explain(error)),
        }
    }
    Err(busy())
}

/// What an attachment has in the database, and what only it still uses.
#[derive(Debug, Default)]
struct AttachmentRows {
    ports: Vec<Port>,
    made_mirrors: Vec<Row>,
    /// The tunnels of the network, if it has no other port.
    tunnels: Vec<Uuid>,
    /// The bridge that we created, if it has no other port: itself and all its ports.
    bridge: Option<(Uuid, Vec<Uuid>)>,
    bridge_name: String,
}

fn find(
    switch: &mut Switch,
    call: &Call<'_>,
    key: &AttachmentKey,
    shared: Option<String>,
) -> Result<AttachmentRows, Failure> {
    let mut look = Transaction::new(DATABASE);
    let own = look.select(Port::TABLE, vec![has_id(ids::OWNER, &key.hash())], Port::COLUMNS);
    let made_mirrors = mirrors::look_at_made(&mut look);
    let is_called = call.env().container_id == key.container_id.as_str();
    let netns = call
        .netns_path()
        .and_then(|path| path.to_str())
        .filter(|_| is_called && !call.leads_to_another());
    let references = netns.map(|netns| {
        let conditions = vec![
            has_id(ids::PLUGIN, ids::REFERENCE),
            has_id(ids::NETNS, netns),
            has_id(ids::CONT_IFACE, key.ifname.as_str()),
        ];
        look.select(Port::TABLE, conditions, Port::COLUMNS)
    });
    let shares = shared.as_ref().map(|bridge| {
        let of_network = |id| vec![has_id(id, key.network.as_str()), has_id(ids::BRIDGE, bridge)];
        let made = vec![Condition::equals("name", bridge.as_str()), has_id(ids::MADE, "true")];
        (
            look.select(Port::TABLE, of_network(ids::NETWORK), &["_uuid"]),
            look.select(Port::TABLE, of_network(ids::TUNNEL), &["_uuid"]),
            look.select(Bridge::TABLE, made, &["_uuid", "ports"]),
        )
    });
    let outcome = switch.transact(&look)?;
    let mut ports: Vec<Port> = outcome.rows(own).iter().map(Port::read).collect();
    // Ports of the reference, for a container that existed before our plugin was used. Ports with
    // our mark are already found by it.
    let references = references.map(|handle| outcome.rows(handle)).unwrap_or_default();
    let references = references.iter().map(Port::read);
    ports.extend(references.filter(|port| !port.external_ids.contains_key(ids::OWNER)));
    let going: Vec<Uuid> = ports.iter().filter_map(|port| port.uuid.clone()).collect();
    let mut found = AttachmentRows {
        ports,
        made_mirrors: outcome.rows(made_mirrors).to_vec(),
        bridge_name: shared.unwrap_or_default(),
        ..AttachmentRows::default()
    };
    if let Some((others, tunnels, made)) = shares {
        let stays = |uuid: &Uuid| !going.contains(uuid);
        let mut others = outcome.rows(others).iter().filter_map(|row| row.uuid("_uuid"));
        if !others.any(|uuid| stays(&uuid)) {
            let tunnels = outcome.rows(tunnels).iter().filter_map(|row| row.uuid("_uuid"));
            found.tunnels = tunnels.collect();
        }
        let made = outcome.rows(made).first();
        let made = made.and_then(|row| Some((row.uuid("_uuid")?, row.uuids("ports"))));
        found.bridge = made.filter(|(_, ports)| {
            let left = ports.iter().filter(|uuid| stays(uuid) && !found.tunnels.contains(uuid));
            // The local port, which every bridge has.
            left.count() <= 1
        });
    }
    Ok(found)
}

/// Plans the transaction that removes it. Returns it with the place of the configuration's number
/// in its outcome, and whether it removes a link that the switch created: a port of its own, or a
/// bridge.
fn plan(key: &AttachmentKey, found: &AttachmentRows) -> (Transaction, NumberHandle, bool) {
    let mut plan = Transaction::new(DATABASE);
    let own: Vec<(Uuid, Option<String>)> = found
        .ports
        .iter()
        .filter_map(|port| Some((port.uuid.clone()?, Some(key.hash()))))
        .collect();
    let going: Vec<Uuid> = own.iter().map(|(uuid, _)| uuid.clone()).collect();
    if let Some((bridge, ports)) = &found.bridge {
        let as_read = [Row::new().with("ports", Value::set(ports.iter()))];
        let this = vec![Condition::is(bridge)];
        plan.assume(Bridge::TABLE, this, &["ports"], WaitCondition::Equal, &as_read);
    } else if !found.tunnels.is_empty() {
        let names = found.ports.iter().map(|port| Row::new().with("name", port.name.as_str()));
        let names: Vec<Row> = names.collect();
        let of_network = vec![
            has_id(ids::NETWORK, key.network.as_str()),
            has_id(ids::BRIDGE, &found.bridge_name),
        ];
        plan.assume(Port::TABLE, of_network, &["name"], WaitCondition::Equal, &names);
    }
    mirrors::remove_unused(&mut plan, &found.made_mirrors, mirrors::USES, &going);
    remove_ports(&mut plan, &own);
    let tunnels: Vec<_> = found.tunnels.iter().map(|uuid| (uuid.clone(), None)).collect();
    remove_ports(&mut plan, &tunnels);
    if let Some((bridge, _)) = &found.bridge {
        let bridge = Value::Atom(bridge.into());
        plan.mutate("Open_vSwitch", vec![], &[Mutation::delete("bridges", bridge)]);
    }
    let interior = found.ports.iter().any(|port| port.name == rows::interior_name(key));
    let takes_links = interior || found.bridge.is_some();
    let numbered = number(&mut plan);
    plan.comment(&format!("netwright: remove {key}"));
    (plan, numbered, takes_links)
}

/// Reports whether there is a record of this network's ports.
fn is_used(call: &Call<'_>, index: &Index) -> bool {
    let records = index.of_network(call.network().as_str());
    !records.damaged.is_empty() || records.found.iter().any(|record| record.plugin == NAME)
}

/// Lists the attachments of this network whose marks are on ports.
fn in_database(call: &Call<'_>) -> Result<Vec<AttachmentKey>, Failure> {
    let mut switch = Switch::connect(call, &remote(call, None)?)?;
    let mut look = Transaction::new(DATABASE);
    let of_network = vec![has_id(ids::NETWORK, call.network().as_str())];
    let ports = look.select(Port::TABLE, of_network, &["external_ids"]);
    let outcome = switch.transact(&look)?;
    let keys = outcome.rows(ports).iter();
    Ok(keys.filter_map(|row| rows::owner_of(&row.map("external_ids"))).collect())
}

/// Returns STATUS's answer if the switch is the reason.
pub(super) fn unavailable(error: Failure) -> Failure {
    match error.code() {
        codes::SWITCH => error.with_code(code::PLUGIN_NOT_AVAILABLE),
        _ => attachment::unavailable(error),
    }
}
