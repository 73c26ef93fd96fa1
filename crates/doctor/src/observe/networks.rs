//! Reads which networks are configured, whether a container could be attached to them, and how much
//! of their address pools is left.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni::json::Object;
use cni::nearest::nearest;
use cni::order::gather;
use cni::{NetworkList, NetworkName, PluginConfig};
use cni_runtime::{ConfigFolder, Outcome};
use diagnose::model::{Attachment, Container, Network, Overlay, Plugin, Pool, PoolHolders};
use ipam::{Holder, RangeSets, Reservation, Store};
use ipnet::IpNet;
use plugins::flannel::NodePart;
use plugins::shared::mtu::RawMtu;
use plugins::{judge, own_folder};
use serde::Deserialize;

use super::switches::Switch;
use crate::judgement::{self, Judgement};
use crate::node::{self, Network as ConfiguredNetwork, Node};

/// The plugin whose pools are folders.
const POOLED: &str = plugins::ipam::host_local::INFO.name;
/// Pools of more addresses are never full.
const COUNTED: u128 = 1 << 32;

/// What is configured.
#[derive(Debug, Default)]
pub(super) struct ObservedNetworks {
    pub(super) networks: Vec<Network>,
    pub(super) broken: Vec<(String, String)>,
    pub(super) plugins: Vec<Plugin>,
    pub(super) pools: Vec<Pool>,
    /// Why a pool was not read.
    pub(super) unread: Vec<String>,
    /// Why a plugin could not say whether a container could be attached.
    pub(super) unasked: Vec<String>,
    /// The switches of networks of Open vSwitch.
    pub(super) switches: Vec<Switch>,
}

/// Reads them. The embedded network counts only if it is used. With `asks`, asks the plugins too.
pub(super) fn read(
    node: &Node<'_>,
    folder: &ConfigFolder,
    containers: &[&Container],
    asks: bool,
    progress: &mut dyn FnMut(&str),
) -> ObservedNetworks {
    let used = used(containers.iter().flat_map(|container| &container.attachments));
    let mut all = node::networks(folder, node.embedded.clone());
    let is_used = used.contains(&node.embedded.name);
    all.retain(|network| network.file.is_some() || is_used);
    let mut found = ObservedNetworks {
        broken: folder
            .refusals()
            .map(|refusal| (refusal.path.display().to_string(), refusal.to_string()))
            .collect(),
        ..ObservedNetworks::default()
    };
    let mut types = BTreeSet::new();
    for (place, configured) in all.iter().enumerate() {
        progress(&format!("asking the plugins of network {}", configured.list.name));
        let mut network = describe(&configured.list);
        found.switches.extend(switch(&configured.list, &network));
        network.file = configured.file.as_ref().map(|path| path.display().to_string());
        if asks {
            let Judgement { failure, unknown, unasked: _ } =
                judgement::of(node.runtime, &configured.list, None, node.deadline());
            let refusal = failure.map(|error| match unknown {
                true => cni::text::one_line((node.advise)(error)),
                false => cni::text::one_line(&error),
            });
            match refusal {
                Some(refusal) if unknown || super::is_refused(&refusal) => {
                    found.unasked.push(refusal);
                }
                refusal => network.refusal = refusal,
            }
            // What two networks have in common is said of the second.
            let before = all.get(..place).unwrap_or_default();
            network.warnings = judgement::warnings(node.runtime, &configured.list, before);
        }
        network.warnings.extend(shadowed(folder, &configured.list.name));
        types.extend(configured.list.plugins.iter().flat_map(types_of));
        found.networks.push(network);
        pools(node, configured, containers, &mut found);
    }
    if asks {
        found.plugins = types.into_iter().map(|name| plugin(node, name)).collect();
    }
    found
}

/// Lists the other files that define the network, which no runtime takes.
fn shadowed(folder: &ConfigFolder, name: &str) -> Vec<String> {
    let line = |one: &cni_runtime::ConsideredFile| match &one.outcome {
        Outcome::Shadowed { network, by } if network == name => Some(format!(
            "{} defines it too, and is not used: {} comes first",
            one.path.display(),
            by.display()
        )),
        _ => None,
    };
    folder.considered().iter().filter_map(line).collect()
}

/// The keys of plugins that say where packets go.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    bridge: Option<String>,
    master: Option<String>,
    parent: Option<String>,
    device: Option<String>,
    mtu: RawMtu,
    is_default_gateway: bool,
    ip_masq: bool,
    ipam: Ipam,
}

/// That of `ovs` for the socket of its database.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SwitchKeys {
    socket_file: String,
}

/// Those of `ipam`, of `host-local` and of `static`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Ipam {
    #[serde(rename = "type")]
    plugin_type: String,
    routes: Vec<IpamRoute>,
    addresses: Vec<IpamAddress>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct IpamRoute {
    dst: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct IpamAddress {
    address: String,
    gateway: String,
}

/// Those of `host-local`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PoolConfig {
    ipam: ipam::Keys,
}

/// Describes a network by its configuration alone.
fn describe(list: &NetworkList) -> Network {
    let mut network = Network {
        name: list.name.clone(),
        plugins: list.plugins.iter().map(|plugin| plugin.plugin_type.clone()).collect(),
        ..Network::default()
    };
    let Some(first) = list.plugins.first() else { return network };
    let keys: Keys = first.object.read().unwrap_or_default();
    let is_bridge = first.plugin_type == "bridge";
    network.link = match keys.bridge {
        // The default of the plugin.
        None if is_bridge => Some("cni0".to_owned()),
        Some(bridge) if bridge.is_empty() && is_bridge => Some("cni0".to_owned()),
        Some(bridge) => Some(bridge),
        None => keys.master.or(keys.parent).or(keys.device),
    };
    network.link = network.link.filter(|link| !link.is_empty());
    network.mtu = keys.mtu.bytes().ok().flatten();
    network.overlay = overlay(first);
    if let Some((sets, _)) = ranges(&first.object) {
        for range in sets.sets().iter().flat_map(ipam::RangeSet::ranges) {
            network.subnets.push(range.subnet());
            network.gateways.push(range.gateway());
        }
    }
    for address in &keys.ipam.addresses {
        let subnet = address.address.parse::<IpNet>().ok();
        network.subnets.extend(subnet.map(|net| net.trunc()));
        network.gateways.extend(address.gateway.parse::<IpAddr>().ok());
    }
    network.routed = judge::is_routed(list);
    network.outbound = (network.routed || keys.ip_masq)
        && (keys.is_default_gateway || has_default_route(&keys.ipam));
    network.default_routes = default_routes(&keys.ipam, is_bridge && keys.is_default_gateway);
    network
}

/// Returns the switch of a network of Open vSwitch.
fn switch(list: &NetworkList, network: &Network) -> Option<Switch> {
    let first = list.plugins.first().filter(|first| first.plugin_type == "ovs")?;
    let keys: SwitchKeys = first.object.read().unwrap_or_default();
    let folder = Path::new(&keys.socket_file).parent().filter(|_| !keys.socket_file.is_empty());
    Some(Switch {
        network: list.name.clone(),
        bridge: network.link.clone()?,
        folder: folder.unwrap_or(Path::new("/run/openvswitch")).to_owned(),
    })
}

/// Returns what flanneld says of a network of flannel's.
fn overlay(plugin: &PluginConfig) -> Option<Overlay> {
    if plugin.plugin_type != plugins::flannel::INFO.name {
        return None;
    }
    let NodePart { file, ranges, own, mtu } = plugins::flannel::node_part(plugin)?;
    Some(Overlay { file: file.display().to_string(), ranges, own, mtu })
}

/// Returns the default routes that a configuration asks for. A bridge that is the default gateway
/// is that of both IP versions.
fn default_routes(ipam: &Ipam, is_default_gateway: bool) -> Vec<IpNet> {
    let of_gateway = ["0.0.0.0/0", "::/0"].into_iter().filter(|_| is_default_gateway);
    let asked = ipam.routes.iter().map(|route| route.dst.as_str());
    let nets = asked.chain(of_gateway).filter_map(|net| net.parse::<IpNet>().ok());
    let defaults: BTreeSet<IpNet> =
        gather(nets.filter(|net| net.prefix_len() == 0).map(|net| net.trunc()));
    defaults.into_iter().collect()
}

/// Says whether containers get a default route from their IPAM plugin. A plugin that asks others
/// may give one.
fn has_default_route(ipam: &Ipam) -> bool {
    let is_default = |route: &IpamRoute| {
        let net = route.dst.parse::<IpNet>();
        net.is_ok_and(|net| net.prefix_len() == 0)
    };
    let is_known = [POOLED, "static"].contains(&ipam.plugin_type.as_str());
    ipam.routes.iter().any(is_default) || !(is_known || ipam.plugin_type.is_empty())
}

/// Returns the ranges of `host-local`, and the folder of their reservations; `None` if it is another
/// plugin, or if they are not valid.
fn ranges(object: &Object) -> Option<(RangeSets, PathBuf)> {
    let keys = object.read::<PoolConfig>().ok()?.ipam;
    (keys.plugin_type == POOLED).then_some(())?;
    Some((keys.range_sets().ok()?, keys.folder()))
}

/// Reads how much of a network's pools is taken: a pool for each set of ranges.
fn pools(
    node: &Node<'_>,
    configured: &ConfiguredNetwork,
    containers: &[&Container],
    found: &mut ObservedNetworks,
) {
    let Ok(name) = NetworkName::new(&configured.list.name) else { return };
    for plugin in &configured.list.plugins {
        let Some((sets, folder)) = ranges(&plugin.object) else { continue };
        let store = Store::new(&folder, &name).with_index(&node.roots.addresses());
        let taken = match store.addresses() {
            Ok(taken) => taken,
            Err(error) => {
                found.unread.push(super::namespace::with_causes(&error));
                continue;
            }
        };
        for set in sets.sets() {
            let counts = |at: &&IpAddr| set.range_of(**at).is_some() && !sets.is_gateway(**at);
            let used = taken.iter().filter(counts).count();
            let size = Some(sets.capacity(set)).filter(|size| *size <= COUNTED);
            let size = size.and_then(|size| u64::try_from(size).ok());
            let used = u64::try_from(used).unwrap_or(u64::MAX);
            let network = configured.list.name.clone();
            // Each reservation has to be read.
            let is_short = size.is_some_and(|size| size.saturating_sub(used) <= size / SHORT);
            let held = is_short.then(|| store.reservations().ok()).flatten();
            let held = held.map(|all| {
                let of_set = all
                    .into_iter()
                    .filter(|one| one.address.as_ref().is_some_and(|at| counts(&at)));
                holders(&network, of_set, containers)
            });
            found.pools.push(Pool {
                network,
                folder: store.directory().display().to_string(),
                used,
                size,
                writable: state::obstacle(&folder).is_none(),
                holders: held,
            });
        }
    }
}

/// Of a pool of which at most one in so many addresses is free, it is read who holds the others.
const SHORT: u64 = 20;

/// How many attachments without a record are named.
const NAMED: usize = 8;

/// Counts what is held for containers that are gone, and for those of which nothing is recorded. A
/// runtime may keep its records elsewhere.
fn holders(
    network: &str,
    held: impl Iterator<Item = Reservation>,
    containers: &[&Container],
) -> PoolHolders {
    let known: BTreeMap<&str, &Container> =
        gather(containers.iter().map(|container| (container.id.as_str(), *container)));
    let mut found = PoolHolders::default();
    for reservation in held {
        let (id, ifname) = match reservation.holder {
            Holder::Attachment(owner) => (owner.container_id, Some(owner.ifname)),
            Holder::Container(id) => (id, None),
            Holder::Unwritten | Holder::Unknown | Holder::Unread => continue,
        };
        let is_own = |one: &Attachment| {
            one.network == network && ifname.as_ref().is_none_or(|ifname| one.ifname == *ifname)
        };
        match known.get(id.as_str()).filter(|one| one.attachments.iter().any(is_own)) {
            Some(container) => found.gone += u64::from(container.alive == Some(false)),
            None => {
                found.unrecorded += 1;
                if found.some.len() < NAMED {
                    found.some.push((id, ifname));
                }
            }
        }
    }
    cni::order::sort(&mut found.some);
    found
}

/// Returns the type of a plugin and that of its IPAM plugin.
fn types_of(plugin: &PluginConfig) -> Vec<String> {
    let keys: Keys = plugin.object.read().unwrap_or_default();
    let mut types = vec![plugin.plugin_type.clone(), keys.ipam.plugin_type];
    types.retain(|name| !name.is_empty());
    types
}

fn plugin(node: &Node<'_>, plugin_type: String) -> Plugin {
    let mut plugin = Plugin { plugin_type, ..Plugin::default() };
    match node.runtime.find_plugin(&plugin.plugin_type) {
        Ok(path) => {
            plugin.ours = own_folder::is_own(&path);
            plugin.path = Some(shown(&path, plugin.ours));
        }
        Err(error) => {
            plugin.error = Some(super::namespace::with_causes(&error));
            plugin.near = near(node, &plugin.plugin_type);
            return plugin;
        }
    }
    match node.runtime.version_info(&plugin.plugin_type, node.deadline()) {
        Ok(info) => plugin.versions = info.supported,
        Err(failure) => plugin.error = Some(cni::text::one_line(failure.to_cni())),
    }
    plugin
}

/// Returns the plugin of ours that a type which is not there may mean, if that one is there.
fn near(node: &Node<'_>, plugin_type: &str) -> Option<String> {
    let near = nearest(plugin_type, plugins::all().iter().map(|plugin| plugin.name()))?;
    node.runtime.find_plugin(near).is_ok().then(|| near.to_owned())
}

/// Returns the executable's path, and not one in a folder that is removed when this process ends.
fn shown(path: &Path, ours: bool) -> String {
    let leads = std::fs::canonicalize(path).ok().filter(|_| ours);
    leads.as_deref().unwrap_or(path).display().to_string()
}

/// Lists the networks that attachments are on.
fn used<'a>(attachments: impl Iterator<Item = &'a Attachment>) -> BTreeSet<String> {
    gather(attachments.map(|attachment| attachment.network.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(plugin: &str) -> Network {
        let text = format!(r#"{{"cniVersion": "1.0.0", "name": "n", "plugins": [{plugin}]}}"#);
        describe(&NetworkList::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn a_network_is_described_by_its_first_plugin() {
        let network = of(r#"{"type": "bridge", "bridge": "br7", "mtu": 1400,
            "isDefaultGateway": true, "ipam": {"type": "host-local", "subnet": "10.88.0.0/24",
            "ranges": [[{"subnet": "fd00:88::/64", "gateway": "fd00:88::9"}]]}}"#);
        assert_eq!(network.link.as_deref(), Some("br7"));
        assert_eq!(network.mtu, Some(1400));
        let nets: Vec<String> = network.subnets.iter().map(ToString::to_string).collect();
        assert_eq!(nets, ["10.88.0.0/24", "fd00:88::/64"]);
        let gateways: Vec<String> = network.gateways.iter().map(ToString::to_string).collect();
        assert_eq!(gateways, ["10.88.0.1", "fd00:88::9"]);
        assert!(network.outbound);
        let network = of(r#"{"type": "macvlan", "master": "eth1", "ipam": {"type": "static",
            "addresses": [{"address": "192.0.2.7/24", "gateway": "192.0.2.1"}]}}"#);
        assert_eq!(network.link.as_deref(), Some("eth1"));
        assert_eq!(network.subnets, ["192.0.2.0/24".parse::<IpNet>().unwrap()]);
        assert_eq!(of(r#"{"type": "bridge"}"#).link.as_deref(), Some("cni0"));
        let auto = of(r#"{"type": "bridge", "bridge": "br7", "mtu": "auto"}"#);
        assert_eq!((auto.link.as_deref(), auto.mtu), (Some("br7"), None));
        assert_eq!(of(r#"{"type": "loopback"}"#).link, None);
    }

    #[test]
    fn a_network_leads_beyond_the_node_only_by_a_default_route() {
        let local = r#""ipam": {"type": "host-local", "subnet": "10.88.0.0/24"}"#;
        let routed = r#""ipam": {"type": "host-local", "subnet": "10.88.0.0/24",
            "routes": [{"dst": "0.0.0.0/0"}]}"#;
        for (keys, outbound) in [
            (format!(r#""isGateway": true, {local}"#), false),
            (format!(r#""isGateway": true, {routed}"#), true),
            (format!(r#""isDefaultGateway": true, {local}"#), true),
            (local.to_owned(), false),
            (r#""isGateway": true, "ipam": {"type": "cluster-ipam"}"#.to_owned(), true),
        ] {
            let network = of(&format!(r#"{{"type": "bridge", {keys}}}"#));
            assert_eq!(network.outbound, outbound, "{keys}");
            assert_eq!(network.routed, keys.contains("Gateway"), "{keys}");
        }
    }

    #[test]
    fn a_network_asks_for_default_routes_of_some_ip_versions() {
        let ipam = |routes: &str| format!(r#""ipam": {{"type": "static", "routes": [{routes}]}}"#);
        let v4 = ipam(r#"{"dst": "0.0.0.0/0"}, {"dst": "10.0.0.0/8"}"#);
        let v6 = ipam(r#"{"dst": "::/0"}"#);
        for (keys, expected) in [
            (format!(r#""type": "bridge", "isGateway": true, {v4}"#), "0.0.0.0/0"),
            (format!(r#""type": "ptp", {v6}"#), "::/0"),
            (format!(r#""type": "bridge", "isDefaultGateway": true, {v4}"#), "0.0.0.0/0 ::/0"),
            // Only a bridge reads the key.
            (format!(r#""type": "ptp", "isDefaultGateway": true, {}"#, ipam("")), ""),
            (r#""type": "bridge", "isGateway": true, "ipam": {"type": "other"}"#.to_owned(), ""),
        ] {
            let routes = of(&format!("{{{keys}}}")).default_routes;
            let routes: Vec<String> = routes.iter().map(ToString::to_string).collect();
            assert_eq!(routes.join(" "), expected, "{keys}");
        }
    }
    #[test]
    fn it_is_known_who_holds_addresses() {
        let container = |id: &str, alive: Option<bool>, network: &str| {
            let attachment = Attachment {
                network: network.to_owned(),
                ifname: "eth0".to_owned(),
                ..Attachment::default()
            };
            let attachments = vec![attachment];
            Container { id: id.to_owned(), alive, attachments, ..Container::default() }
        };
        let all = [
            container("lives", Some(true), "n"),
            container("gone", Some(false), "n"),
            container("unseen", None, "n"),
            container("elsewhere", Some(false), "other"),
        ];
        let held = |id: &str, ifname: &str| Reservation {
            file: "10.88.0.2".into(),
            address: Some("10.88.0.2".parse().unwrap()),
            holder: match ifname {
                "" => Holder::Container(id.to_owned()),
                ifname => Holder::Attachment(ipam::Owner::new(id, ifname)),
            },
        };
        let held = [
            held("lives", "eth0"),
            held("lives", "eth1"),
            held("gone", "eth0"),
            held("gone", ""),
            held("unseen", "eth0"),
            held("elsewhere", "eth0"),
            held("old", ""),
            Reservation { holder: Holder::Unknown, ..held("damaged", "") },
        ];
        let containers: Vec<&Container> = all.iter().collect();
        let found = holders("n", held.into_iter(), &containers);
        assert_eq!((found.gone, found.unrecorded), (2, 3));
        let eth = |name: &str| Some(name.to_owned());
        let some = [("elsewhere", eth("eth0")), ("lives", eth("eth1")), ("old", None)];
        assert_eq!(found.some, some.map(|(id, ifname)| (id.to_owned(), ifname)));
    }
}
