//! What is written into the database, as data: rows, their owners, and how they are found again.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::{AttachmentKey, ContainerId, IfName, NetworkName};
use kernel::mac::MacAddr;
use ovsdb::vswitch::Port;
use ovsdb::{Atom, Condition, Function, Row, Transaction, Value};

use super::config::{Config, NewBridge, PortKind};
use super::extras::{Qos, Tunnel};

/// The prefix of every key of ours in `external_ids`.
pub(super) const OWN_PREFIX: &str = "netwright-";

/// The column of a port that reaches no other protected port of its bridge.
pub(super) const PROTECTED: &str = "protected";

/// The columns of an interface that say how much the container may send.
pub(super) const POLICING: [&str; 2] = ["ingress_policing_rate", "ingress_policing_burst"];

/// Keys of `external_ids`.
pub(super) mod ids {
    /// The attachment's hash.
    pub(in super::super) const OWNER: &str = "netwright-owner";
    /// The network.
    pub(in super::super) const NETWORK: &str = "netwright-network";
    /// The container's ID.
    pub(in super::super) const CONTAINER: &str = "netwright-container";
    /// The interface's name in the container.
    pub(in super::super) const IFNAME: &str = "netwright-ifname";
    /// The boot in which it was created.
    pub(in super::super) const BOOT: &str = "netwright-boot";
    /// The bridge it is a port of.
    pub(in super::super) const BRIDGE: &str = "netwright-bridge";
    /// On a bridge or mirror: it was created by us.
    pub(in super::super) const MADE: &str = "netwright-made";
    /// On a port: it is a tunnel of this network.
    pub(in super::super) const TUNNEL: &str = "netwright-tunnel";
    /// The namespace's path, as the reference has it.
    pub(in super::super) const NETNS: &str = "contNetns";
    /// The interface's name in the container, as the reference has it.
    pub(in super::super) const CONT_IFACE: &str = "contIface";
    /// The pod, as the reference has it.
    pub(in super::super) const POD_UID: &str = "contPodUid";
    /// The plugin, as the reference has it.
    pub(in super::super) const PLUGIN: &str = "owner";
    /// The reference's name for itself.
    pub(in super::super) const REFERENCE: &str = "ovs-cni.network.kubevirt.io";
}

/// How many digits of the hash are in the name of a link.
const HASH_DIGITS: usize = 12;

/// The owner of a port.
#[derive(Debug, Clone)]
pub(super) struct Owner<'a> {
    pub(super) key: &'a AttachmentKey,
    pub(super) netns: &'a str,
    pub(super) boot: &'a str,
}

impl Owner<'_> {
    /// Returns the `external_ids` of both rows of a port.
    pub(super) fn external_ids(&self, config: &Config) -> BTreeMap<String, String> {
        let mut pairs: BTreeMap<String, String> = config.external_ids.clone();
        let own = [
            (ids::OWNER, self.key.hash()),
            (ids::NETWORK, self.key.network.to_string()),
            (ids::CONTAINER, self.key.container_id.to_string()),
            (ids::IFNAME, self.key.ifname.to_string()),
            (ids::BOOT, self.boot.to_owned()),
            (ids::BRIDGE, config.bridge.clone()),
            (ids::NETNS, self.netns.to_owned()),
            (ids::CONT_IFACE, self.key.ifname.to_string()),
            (ids::POD_UID, config.pod_uid.clone()),
            (ids::PLUGIN, ids::REFERENCE.to_owned()),
        ];
        pairs.extend(own.map(|(key, value)| (key.to_owned(), value)));
        pairs
    }
}

/// Returns the condition that a row has a pair among its `external_ids`.
pub(super) fn has_id(key: &str, value: &str) -> Condition {
    Condition::includes("external_ids", Value::map([(key, value)]))
}

/// Returns the condition that a row does not have that pair.
pub(super) fn lacks_id(key: &str, value: &str) -> Condition {
    Condition::new("external_ids", Function::Excludes, Value::map([(key, value)]))
}

/// Returns a reference to a row that the same transaction creates.
pub(super) fn named(name: &str) -> Value {
    Value::Atom(Atom::Named(name.to_owned()))
}

/// Adds the columns for the VLANs of a port.
pub(super) fn vlan_columns(config: &Config, row: Row) -> Row {
    let vlans = &config.vlans;
    row.with("vlan_mode", vlans.mode)
        .with("tag", Value::optional(vlans.tag))
        .with("trunks", Value::set(vlans.trunks.iter().copied()))
        .with(PROTECTED, config.protected)
}

/// Returns the values of [`POLICING`], in kilobits; 0 is no limit, and the switch's own burst.
pub(super) fn policing(qos: &Qos) -> [i64; 2] {
    [qos.ingress_bits, qos.ingress_burst_bits].map(|bits| bits.unwrap_or_default() / 1000)
}

/// Describes how a port's VLANs differ from the configuration.
pub(super) fn vlan_drift(config: &Config, port: &Port) -> Option<String> {
    let wanted = &config.vlans;
    let tag = wanted.tag.map(i64::from);
    let trunks: Vec<i64> = wanted.trunks.iter().copied().map(i64::from).collect();
    let said = |tag: Option<i64>| tag.map_or("none".to_owned(), |tag| tag.to_string());
    if port.tag != tag {
        return Some(format!(
            "port {:?} has tag {}, the configuration asks for {}",
            port.name,
            said(port.tag),
            said(tag)
        ));
    }
    if port.trunks != trunks {
        return Some(format!(
            "port {:?} has trunks {:?}, the configuration asks for {trunks:?}",
            port.name, port.trunks
        ));
    }
    // Some versions of the reference write none for an access port.
    if port.vlan_mode != wanted.mode {
        return Some(format!(
            "port {:?} has vlan_mode {:?}, the configuration asks for {:?}",
            port.name, port.vlan_mode, wanted.mode
        ));
    }
    None
}

/// Writes a container's port: its interface, the port itself, and its shaping. The port's row is
/// named `port` in the transaction. Returns the handle of the interface.
pub(super) fn write_port(
    transaction: &mut Transaction,
    config: &Config,
    owner: &Owner<'_>,
    name: &str,
    mac: Option<MacAddr>,
) -> ovsdb::Handle {
    let ids = owner.external_ids(config);
    let mut on_interface = ids.clone();
    if let Some(ovn_port) = &config.ovn_port {
        on_interface.insert("iface-id".to_owned(), ovn_port.clone());
    }
    if let Some(mac) = mac {
        on_interface.insert("attached-mac".to_owned(), mac.to_string());
    }
    let internal = config.kind == PortKind::Internal;
    let mut interface = Row::new()
        .with("name", name)
        .with("type", if internal { "internal" } else { config.interface_type.as_str() })
        .with("ofport_request", Value::optional(config.ofport))
        .with("external_ids", Value::map(on_interface));
    if internal {
        interface = interface
            .with("mac", Value::optional(mac.map(|mac| mac.to_string())))
            .with("mtu_request", Value::optional(config.mtu));
    }
    for (column, value) in POLICING.iter().zip(policing(&config.qos)) {
        interface = interface.with(column, value);
    }
    let handle = transaction.insert("Interface", "interface", &interface);
    let mut port = Row::new()
        .with("name", name)
        .with("interfaces", named("interface"))
        .with("external_ids", Value::map(ids.clone()));
    if config.qos.shapes_egress() {
        write_qos(transaction, &config.qos, &ids);
        port = port.with("qos", named("qos"));
    }
    transaction.insert("Port", "port", &vlan_columns(config, port));
    handle
}

fn write_qos(transaction: &mut Transaction, qos: &Qos, ids: &BTreeMap<String, String>) {
    let mut queues = Vec::new();
    for (number, other_config) in &qos.queues {
        let name = format!("queue{number}");
        let row = Row::new()
            .with("other_config", Value::map(other_config.clone()))
            .with("external_ids", Value::map(ids.clone()));
        transaction.insert("Queue", &name, &row);
        queues.push((Atom::Integer(i64::from(*number)), Atom::Named(name)));
    }
    let mut other_config = BTreeMap::new();
    if let Some(bits) = qos.egress_bits {
        other_config.insert("max-rate", bits.to_string());
    }
    let row = Row::new()
        .with("type", "linux-htb")
        .with("queues", Value::Map(queues))
        .with("other_config", Value::map(other_config))
        .with("external_ids", Value::map(ids.clone()));
    transaction.insert("QoS", "qos", &row);
}

/// Writes a bridge with its local port and the ports named.
pub(super) fn write_bridge(
    transaction: &mut Transaction,
    name: &str,
    wanted: &NewBridge,
    ports: &[String],
) {
    let interface = Row::new().with("name", name).with("type", "internal");
    transaction.insert("Interface", "local_interface", &interface);
    let port = Row::new().with("name", name).with("interfaces", named("local_interface"));
    transaction.insert("Port", "local_port", &port);
    let mut controllers = Vec::new();
    for (number, target) in wanted.controllers.iter().enumerate() {
        let name = format!("controller{number}");
        transaction.insert("Controller", &name, &Row::new().with("target", target.as_str()));
        controllers.push(Atom::Named(name));
    }
    let ports = std::iter::once("local_port").chain(ports.iter().map(String::as_str));
    let bridge = Row::new()
        .with("name", name)
        .with("datapath_type", wanted.datapath_type.as_str())
        .with("fail_mode", Value::optional(wanted.fail_mode.clone()))
        .with("controller", Value::Set(controllers))
        .with("ports", Value::Set(ports.map(|port| Atom::Named(port.to_owned())).collect()))
        .with("external_ids", Value::map([(ids::MADE, "true")]));
    transaction.insert("Bridge", "bridge", &bridge);
    let bridges = [ovsdb::Mutation::insert("bridges", named("bridge"))];
    transaction.mutate("Open_vSwitch", vec![], &bridges);
}

/// Returns the name of a tunnel's port: the same on every call for the same network and host.
pub(super) fn tunnel_name(network: &str, tunnel: &Tunnel, remote: &IpAddr) -> String {
    let text = format!("{network}/{}/{}/{remote}", tunnel.kind, tunnel.vni);
    format!("nwt{}", cni::owner::sha512_hex(&text, HASH_DIGITS))
}

/// Writes a tunnel's port; its row has the name `as_name` in the transaction.
pub(super) fn write_tunnel(
    transaction: &mut Transaction,
    config: &Config,
    network: &str,
    tunnel: &Tunnel,
    remote: &IpAddr,
    as_name: &str,
) {
    let name = tunnel_name(network, tunnel, remote);
    let mut options =
        BTreeMap::from([("remote_ip", remote.to_string()), ("key", tunnel.vni.to_string())]);
    if let Some(local) = tunnel.local {
        options.insert("local_ip", local.to_string());
    }
    if let Some(port) = tunnel.port {
        options.insert("dst_port", port.to_string());
    }
    let ids = [(ids::TUNNEL, network), (ids::BRIDGE, &config.bridge)];
    let interface_name = format!("i{as_name}");
    let interface = Row::new()
        .with("name", name.as_str())
        .with("type", tunnel.kind)
        .with("options", Value::map(options))
        .with("external_ids", Value::map(ids));
    transaction.insert("Interface", &interface_name, &interface);
    let port = Row::new()
        .with("name", name)
        .with("interfaces", named(&interface_name))
        .with("external_ids", Value::map(ids));
    // Every host has a tunnel to every other: frames from one tunnel must not leave by another.
    let port = vlan_columns(config, port).with(PROTECTED, true);
    transaction.insert("Port", as_name, &port);
}

/// Returns the name of the link of a port that the switch creates, before it becomes the
/// container's.
pub(super) fn interior_name(key: &AttachmentKey) -> String {
    format!("nwi{}", &key.hash()[..HASH_DIGITS])
}

/// Reads the owner of a port.
pub(super) fn owner_of(ids: &BTreeMap<String, String>) -> Option<AttachmentKey> {
    let key = AttachmentKey {
        network: NetworkName::new(ids.get(ids::NETWORK)?).ok()?,
        container_id: ContainerId::new(ids.get(ids::CONTAINER)?).ok()?,
        ifname: IfName::new(ids.get(ids::IFNAME)?).ok()?,
    };
    (key.hash() == *ids.get(ids::OWNER)?).then_some(key)
}
