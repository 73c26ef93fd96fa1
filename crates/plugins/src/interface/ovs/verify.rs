//! CHECK and STATUS.

use cni::{AddResult, Error};
use cni_plugin::{Call, codes};
use ipnet::IpNet;
use kernel::route::{Link, RouteSocket};
use ovsdb::vswitch::{Bridge, DATABASE, Interface, Port, TypedRow as _};
use ovsdb::{Condition, Transaction};
use state::Index;

use super::config::{Config, PortKind};
use super::connect::{self, Facts};
use super::database::Switch;
use super::remove::unavailable;
use super::rows::{self, ids};
use super::{NAME, interior};
use crate::shared::{attachment, claim, container, drift, kernel_error as kernel, owner, pair};

/// Runs CHECK: the IPAM plugin's, then every object that ADD created, from the container outwards.
pub(super) fn check(call: &Call<'_>) -> Result<(), Error> {
    let config = Config::of(call)?;
    if let Some(ipam) = call.ipam() {
        ipam.check()?;
    }
    let result = call.require_prev_result("Required prevResult missing")?;
    let netns = call.open_netns()?;
    let mut host = RouteSocket::open().map_err(kernel)?;
    let mut inside = RouteSocket::open_in(&netns).map_err(kernel)?;
    let kinds = match config.kind {
        PortKind::Veth => &["veth"],
        PortKind::Internal => interior::KINDS,
    };
    let link = container::reported_link(&mut inside, call, &result, kinds)?;
    container::require_up(&link)?;
    let name = match config.kind {
        PortKind::Veth => check_host(&mut host, call, &result, &link)?.name,
        PortKind::Internal => {
            interior::check_lower(call, &mut inside, &link)?;
            rows::interior_name(call.attachment())
        }
    };
    let mut switch = Switch::connect(call, &config.remote)?;
    let seen = look(&mut switch, &config, &name)?;
    if let Some(what) = judge(call, &config, &name, &seen) {
        return Err(drift(what));
    }
    let ips: Vec<_> = result.container_ips(call.ifname().as_str()).collect();
    container::check(&mut inside, link.index, &link.name, &ips, &result.routes)?;
    let index = Index::new(call.roots());
    let facts: Option<Facts> = attachment::read_facts(&index, call.attachment(), NAME);
    claim::check(call, &index, &facts.unwrap_or_default().claims)?;
    let addresses: Vec<IpNet> = ips.iter().map(|ip| ip.address).collect();
    let (_, own) = connect::segment(&mut host, &config)?;
    claim::refuse_addresses_of(call, &mut host, own.as_slice(), &addresses).map_err(claim::as_drift)
}

fn check_host(
    host: &mut RouteSocket,
    call: &Call<'_>,
    result: &AddResult,
    container: &Link,
) -> Result<Link, Error> {
    let missing = || drift("the host's end of the container's interface was not found".to_owned());
    let (link, _) = pair::reported_host_end(host, result, container, missing)?;
    let foreign = link.alias.as_ref().filter(|alias| **alias != owner::alias(call.attachment()));
    if let Some(alias) = foreign.filter(|alias| alias.starts_with(owner::PREFIX)) {
        return Err(drift(format!("link {:?} has mark (alias) {alias}", link.name)));
    }
    Ok(link)
}

/// The database's rows about an attachment's port.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) bridge: Option<Bridge>,
    pub(super) port: Option<Port>,
    pub(super) interface: Option<Interface>,
}

/// Reads the port by its name, and its bridge.
pub(super) fn look(switch: &mut Switch, config: &Config, name: &str) -> Result<Observed, Error> {
    let mut look = Transaction::new(DATABASE);
    let by_name = |name: &str| vec![Condition::equals("name", name)];
    let columns = ["_uuid", "name", "datapath_type"];
    let bridge = look.select(Bridge::TABLE, by_name(&config.bridge), &columns);
    let port = look.select(Port::TABLE, by_name(name), Port::COLUMNS);
    let interface = look.select(Interface::TABLE, by_name(name), Interface::COLUMNS);
    let outcome = switch.transact(&look)?;
    let mut seen = Observed {
        bridge: outcome.rows(bridge).first().map(Bridge::read),
        port: outcome.rows(port).first().map(Port::read),
        interface: outcome.rows(interface).first().map(Interface::read),
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

/// Returns the first difference from what ADD left.
pub(super) fn judge(
    call: &Call<'_>,
    config: &Config,
    name: &str,
    seen: &Observed,
) -> Option<String> {
    let Some(bridge) = &seen.bridge else {
        return Some(format!("bridge {:?} is gone", config.bridge));
    };
    let (Some(port), Some(interface)) = (&seen.port, &seen.interface) else {
        return Some(format!("port {name:?} is gone from bridge {:?}", config.bridge));
    };
    if port.uuid.as_ref().is_none_or(|uuid| !bridge.ports.contains(uuid)) {
        return Some(format!("port {name:?} is not on bridge {:?} any more", config.bridge));
    }
    // A port that another plugin created does not have our mark.
    if let Some(hash) =
        port.external_ids.get(ids::OWNER).filter(|hash| **hash != call.attachment().hash())
    {
        return Some(format!("port {name:?} belongs to attachment {hash}"));
    }
    if let Some(what) = rows::vlan_drift(config, port) {
        return Some(what);
    }
    if let Some(ovn_port) = &config.ovn_port
        && interface.external_ids.get("iface-id") != Some(ovn_port)
    {
        return Some(format!("port {name:?} has not the iface-id {ovn_port:?}"));
    }
    if let Some((key, _)) = config
        .external_ids
        .iter()
        .find(|(key, value)| interface.external_ids.get(*key) != Some(value))
    {
        return Some(format!(
            "port {name:?} has not the external_ids {key:?} of the configuration"
        ));
    }
    if config.qos.shapes_egress() && port.qos.is_none() {
        return Some(format!("port {name:?} has no QoS any more"));
    }
    match interface.ofport {
        Some(number) if 0 < number && interface.error.is_empty() => None,
        _ if interface.error.is_empty() => Some(format!("the switch does not use port {name:?}")),
        _ => Some(format!("the switch cannot use port {name:?}: {}", interface.error)),
    }
}

/// Runs STATUS: the IPAM plugin's, whether the database answers and has what is needed, and whether
/// the bridge exists and the switch is running.
pub(super) fn status(call: &Call<'_>) -> Result<(), Error> {
    if let Some(ipam) = call.ipam() {
        ipam.status()?;
    }
    let config = Config::of(call)?;
    let mut switch = Switch::connect(call, &config.remote).map_err(unavailable)?;
    switch.check_schema().map_err(unavailable)?;
    let failed = |message: String| unavailable(Error::new(codes::SWITCH, message));
    if !switch.is_alive().map_err(unavailable)? {
        return Err(failed("ovs-vswitchd is not at work".to_owned())
            .with_details("the database answers: is ovs-vswitchd running?"));
    }
    let mut look = Transaction::new(DATABASE);
    let by_name = vec![Condition::equals("name", config.bridge.as_str())];
    let bridge = look.select(Bridge::TABLE, by_name, &["name"]);
    let outcome = switch.transact(&look).map_err(unavailable)?;
    if outcome.rows(bridge).is_empty() && config.create.is_none() {
        return Err(failed(format!("failed to find bridge {:?}", config.bridge))
            .with_details("make it (ovs-vsctl add-br), or set \"createBridge\""));
    }
    switch.refuse_unmade(&config.bridge).map_err(unavailable)
}
