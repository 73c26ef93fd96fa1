//! Turns what a user wants of a network, from `-o`, `--subnet` and the like, into a network list.
//!
//! `-o conflist=NAME` takes a list of the node as it is, `-o routed` the one that `netwrightd routing`
//! writes. Otherwise the driver makes one:
//! `-o type=PLUGIN` chooses the plugin (bridge by default), and every other option is a key of that
//! plugin's configuration.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use cni::json::Object;
use cni::{Error, NetworkList, NetworkName, code};
use cni_invoke::InvokeError;
use cni_plugin::HostRouting;
use cni_runtime::{ConfigFolder, LoadError, PluginError, Runtime};
use cnm::network::{CreateNetwork, IpamData};
use cnm::options;
use ipnet::IpNet;
use node_api::policy::OWN_IFNAME;
use plugins::judge;
use serde_json::{Value, json};

use super::journal::{Network, short};
use super::pool_config::{check_pools, gives_any_requested, ipam_of};

/// Options that are ours.
const CONFLIST: &str = "conflist";
const ROUTED: &str = "routed";
const NAME: &str = "name";
const TYPE: &str = "type";
const IFNAME: &str = "ifname";
const PREFIX: &str = "prefix";
/// Options of Docker's own bridge driver that have a meaning here, and the keys they become.
const DOCKERS: [(&str, &str); 3] = [
    ("com.docker.network.driver.mtu", "mtu"),
    ("com.docker.network.bridge.name", "bridge"),
    ("com.docker.network.bridge.enable_ip_masquerade", "ipMasq"),
];
const DOCKERS_PREFIX: &str = "com.docker.network.container_iface_prefix";

/// How long a plugin has for VERSION, which Docker's user waits for.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Where lists and plugins are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shelf<'a> {
    pub(super) conf_dir: &'a Path,
    pub(super) runtime: &'a Runtime<'static>,
}

/// Plans a network; changes nothing.
pub(super) fn plan(asked: &CreateNetwork, shelf: Shelf<'_>) -> Result<Network, Error> {
    let malformed = |error: cni::json::JsonError| {
        Error::new(code::DECODE_FAILURE, format!("read the network's options: {error}"))
    };
    let mut wanted = options::generic(&asked.options).map_err(malformed)?;
    let internal: Option<bool> =
        options::option(&asked.options, options::INTERNAL).map_err(malformed)?;
    let internal = internal.unwrap_or_default();
    let pools = Pools::read(asked)?;
    let mut network = Network::new(asked.clone(), String::new());
    network.internal = internal;
    if let Some(ifname) = wanted.remove(IFNAME) {
        network.ifname = cni::IfName::new(&ifname)
            .map_err(|error| error.context(format!("option {IFNAME:?}")))?
            .to_string();
    }
    for key in [DOCKERS_PREFIX, PREFIX] {
        if let Some(prefix) = wanted.remove(key) {
            network.prefix = check_prefix(&prefix)?;
        }
    }
    let list = match listed(&mut wanted)? {
        Some(name) => {
            refuse_others(&wanted)?;
            let list = find(&name, shelf.conf_dir)?;
            check_pools(&list, &pools)?;
            listening(list)?
        }
        None => {
            network.made = true;
            let list = make(asked, wanted, &pools, internal)?;
            refuse_listed(&list.name, shelf.conf_dir)?;
            list
        }
    };
    NetworkName::new(&list.name)?;
    for plugin in &list.plugins {
        let find = |plugin_type: &str| {
            let context = || format!("network list {:?}", list.name);
            shelf.runtime.find_plugin(plugin_type).map_err(|error| {
                Error::from_chain(code::INVALID_CONFIG, &error)
                    .context(context())
                    .with_details("netwright install puts our plugins where they are looked for")
            })?;
            refuse_useless(shelf.runtime, plugin_type).map_err(|error| error.context(context()))
        };
        find(&plugin.plugin_type)?;
        if let Some(ipam) = ipam_of(&plugin.object)?.filter(|ipam| !ipam.plugin_type.is_empty()) {
            find(&ipam.plugin_type)?;
        }
    }
    // What this host lacks is asked later ([`refuse_host`]).
    if let Some(refusal) = refusals(&list).iter().find(|refusal| !refusal.is_hosts) {
        return Err(refusal.to_error(&list.name));
    }
    judge::refuse_without_interface(&list)
        .map_err(|error| error.context(format!("network list {:?}", list.name)))?;
    judge::refuse_unfiltered(&list, OWN_IFNAME)
        .map_err(|error| error.context(format!("network list {:?}", list.name)))?;
    network.conflist = String::from_utf8(list.source)
        .map_err(|error| Error::new(code::DECODE_FAILURE, error.to_string()))?;
    Ok(network)
}

fn refusals(list: &NetworkList) -> Vec<judge::Refusal> {
    judge::list(list, &judge::is_own_name)
}

/// Refuses a list to whose network this host cannot attach a container as it is: its subnet is the
/// host's, a parent is missing.
pub(super) fn refuse_host(list: &NetworkList) -> Result<(), Error> {
    match refusals(list).iter().find(|refusal| refusal.is_hosts) {
        Some(refusal) => Err(refusal.to_error(&list.name)),
        None => judge::interface_status(list)
            .map_err(|error| error.context(format!("network list {:?}", list.name))),
    }
}

/// Refuses an executable that does not serve: a plugin of ours under another name, or a file that
/// this machine cannot run. One that answers VERSION in a way of its own may serve all the same.
fn refuse_useless(runtime: &Runtime<'static>, plugin_type: &str) -> Result<(), Error> {
    if judge::is_own_name(plugin_type) {
        return Ok(());
    }
    match runtime.version_info(plugin_type, Some(Instant::now() + VERSION_TIMEOUT)) {
        Err(failure)
            if matches!(
                *failure.error,
                PluginError::Reported(_) | PluginError::NotRun(InvokeError::Start { .. })
            ) =>
        {
            Err(failure.to_cni())
        }
        _ => Ok(()),
    }
}

/// Returns the name of the list that the network is to be, if it is to be one of the node's.
fn listed(wanted: &mut BTreeMap<String, String>) -> Result<Option<String>, Error> {
    let routed = wanted.remove(ROUTED).map(|name| match name.as_str() {
        // `-o routed` alone has no value.
        "" | "true" => agent::config::Routing::default().network,
        _ => name,
    });
    match (wanted.remove(CONFLIST), routed) {
        (Some(_), Some(_)) => Err(Error::new(
            code::INVALID_CONFIG,
            format!("{CONFLIST} and {ROUTED} both name a network list"),
        )
        .with_details("give one of them")),
        (conflist, routed) => Ok(conflist.or(routed)),
    }
}

/// Adds the capability `ips` to the plugin that gives addresses, where it honours requested
/// addresses and the list does not set it: `CNI_ARGS` carries one address at most.
fn listening(list: NetworkList) -> Result<NetworkList, Error> {
    let has_ips = |plugin: &cni::PluginConfig| plugin.capabilities.iter().any(|has| has == "ips");
    if list.plugins.iter().any(has_ips) {
        return Ok(list);
    }
    let mut plugins: Vec<Object> = Vec::new();
    for plugin in &list.plugins {
        let mut object = plugin.object.clone();
        let ipam = ipam_of(&object)?.filter(gives_any_requested);
        if ipam.is_some() {
            let mut capabilities: BTreeMap<&str, bool> =
                plugin.capabilities.iter().map(|name| (name.as_str(), true)).collect();
            capabilities.insert("ips", true);
            object.set_value("capabilities", &capabilities);
        }
        plugins.push(object);
    }
    let mut document = Object::parse(&list.source).map_err(|error| {
        Error::new(code::DECODE_FAILURE, format!("network list {:?}: {error}", list.name))
    })?;
    document.set_value("plugins", &plugins);
    NetworkList::parse(&document.to_vec())
}

/// The pools that Docker's IPAM gave.
#[derive(Debug, Default)]
pub(super) struct Pools {
    pub(super) subnets: Vec<(IpNet, Option<IpAddr>)>,
}

impl Pools {
    fn read(asked: &CreateNetwork) -> Result<Self, Error> {
        let mut pools = Pools::default();
        for data in asked.ipv4.iter().chain(&asked.ipv6) {
            // Docker's IPAM "null": Docker accepts any address that the driver returns.
            if let Some(pool) = pool_of(data)? {
                pools.subnets.push(pool);
            }
        }
        Ok(pools)
    }

    fn have_v6(&self) -> bool {
        self.subnets.iter().any(|(subnet, _)| subnet.addr().is_ipv6())
    }
}

fn pool_of(data: &IpamData) -> Result<Option<(IpNet, Option<IpAddr>)>, Error> {
    let wrong = |what: &str, text: &str| {
        Error::new(
            code::INVALID_CONFIG,
            format!("{what} {text:?} is not an address with its length"),
        )
    };
    if data.pool.is_empty() {
        return Ok(None);
    }
    let subnet: IpNet = data.pool.parse().map_err(|_| wrong("pool", &data.pool))?;
    if subnet.prefix_len() == 0 {
        return Ok(None);
    }
    let gateway = match data.gateway.as_str() {
        "" => None,
        text => {
            let gateway: IpNet = text.parse().map_err(|_| wrong("gateway", text))?;
            Some(gateway.addr())
        }
    };
    Ok(Some((subnet.trunc(), gateway)))
}

/// Finds a list on the node.
fn find(name: &str, conf_dir: &Path) -> Result<NetworkList, Error> {
    let folder = ConfigFolder::scan(conf_dir).map_err(|error| error.to_cni())?;
    match folder.find(name) {
        Ok(list) => Ok(list.clone()),
        Err(error @ LoadError::NotFound { .. }) => {
            let there: Vec<&str> = folder.networks().map(|list| list.name.as_str()).collect();
            let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
            Err(Error::new(code::INVALID_CONFIG, error.to_string())
                .with_details(format!("network lists in {}: {there}", conf_dir.display())))
        }
        Err(error) => Err(error.to_cni()),
    }
}

/// Refuses the name of one of the node's lists: a network that we make is ours alone, and is
/// removed with everything on it.
fn refuse_listed(name: &str, conf_dir: &Path) -> Result<(), Error> {
    let folder = ConfigFolder::scan(conf_dir).map_err(|error| error.to_cni())?;
    if folder.networks().all(|list| list.name != name) {
        return Ok(());
    }
    Err(Error::new(code::INVALID_CONFIG, format!("there is a network list named {name:?}"))
        .with_details(format!(
            "to use it, give only -o conflist={name}; or choose another -o name"
        )))
}

fn refuse_others(rest: &BTreeMap<String, String>) -> Result<(), Error> {
    let Some(key) = rest.keys().next() else { return Ok(()) };
    Err(unknown(key).with_details(
        "conflist names a network list, which has all the rest: only ifname and prefix may be given beside it",
    ))
}

fn unknown(key: &str) -> Error {
    Error::new(code::INVALID_CONFIG, format!("unknown option {key:?}"))
}

/// Checks a prefix of interface names; a name is the prefix and a number.
fn check_prefix(prefix: &str) -> Result<String, Error> {
    let name = cni::IfName::new(&format!("{prefix}000"));
    name.map_err(|error| error.context(format!("option {PREFIX:?}")))?;
    Ok(prefix.to_owned())
}

/// Makes a list from options.
fn make(
    asked: &CreateNetwork,
    mut wanted: BTreeMap<String, String>,
    pools: &Pools,
    internal: bool,
) -> Result<NetworkList, Error> {
    let plugin_type = wanted.remove(TYPE).unwrap_or_else(|| "bridge".to_owned());
    cni::name::check_plugin_type(&plugin_type)?;
    let name = wanted.remove(NAME);
    let name = name.unwrap_or_else(|| format!("docker-{}", short(&asked.network_id)));
    let mut plugin = serde_json::Map::new();
    plugin.insert("type".to_owned(), json!(plugin_type));
    plugin.insert("capabilities".to_owned(), json!({"ips": true, "mac": true}));
    if plugin_type == "bridge" {
        let id: String = asked.network_id.chars().take(12).collect();
        plugin.insert("bridge".to_owned(), json!(format!("nw{id}")));
        plugin.insert("isGateway".to_owned(), json!(true));
        plugin.insert("isDefaultGateway".to_owned(), json!(!internal));
        plugin.insert("hairpinMode".to_owned(), json!(true));
    }
    // Such a plugin makes a port of this host, which can publish ports and be filtered.
    let routed = plugins::info(&plugin_type).is_some_and(|info| info.routed != HostRouting::Never);
    if routed {
        plugin.insert("ipMasq".to_owned(), json!(!internal));
    }
    let mut given = serde_json::Map::new();
    for (key, text) in wanted {
        let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        let key = match DOCKERS.iter().find(|(dockers, _)| *dockers == key) {
            Some((_, ours)) => (*ours).to_owned(),
            None if key.starts_with(options::DOCKER_PREFIX) => return Err(unknown(&key)),
            None => key,
        };
        given.insert(key, value);
    }
    check_keys(&plugin_type, &given)?;
    plugin.extend(given);
    add_ipam(&mut plugin, &plugin_type, pools, internal)?;
    let mut plugins = vec![Value::Object(plugin)];
    if routed {
        plugins.push(json!({"type": "portmap", "capabilities": {"portMappings": true}}));
        plugins.push(json!({"type": "firewall"}));
    }
    let list = json!({
        "cniVersion": cni::Version::CURRENT.as_str(), "name": name, "plugins": plugins,
    });
    NetworkList::parse(list.to_string().as_bytes())
}

/// Refuses a key that the plugin does not read, where the plugin is ours and lists its keys.
fn check_keys(plugin_type: &str, given: &serde_json::Map<String, Value>) -> Result<(), Error> {
    let Some(plugin) = plugins::find(plugin_type) else { return Ok(()) };
    let document = Value::Object(given.clone()).to_string();
    let found = plugin.unknown_keys(&document).map_err(|error| {
        Error::new(code::INVALID_CONFIG, format!("options for plugin {plugin_type:?}: {error}"))
    })?;
    match found.first() {
        None => Ok(()),
        Some(key) => Err(unknown(&key.key)
            .with_details(format!("plugin {plugin_type:?} has no such key; see docs/plugins.md"))),
    }
}

/// Adds where addresses come from: Docker's pools, or what the user gave as options.
fn add_ipam(
    plugin: &mut serde_json::Map<String, Value>,
    plugin_type: &str,
    pools: &Pools,
    internal: bool,
) -> Result<(), Error> {
    let said = plugin.get("ipam").cloned();
    match (said, pools.subnets.is_empty()) {
        (Some(_), true) => return Ok(()),
        (Some(ipam), false) => {
            let text = ipam.get("type").and_then(Value::as_str).unwrap_or_default();
            return Err(Error::new(
                code::INVALID_CONFIG,
                format!("option \"ipam\" (type {text:?}) and Docker both give addresses"),
            )
            .with_details("with -o ipam=… create the network with --ipam-driver null"));
        }
        (None, true) => {
            return Err(Error::new(
                code::INVALID_CONFIG,
                "this network has no source of addresses",
            )
            .with_details(
                "with --ipam-driver null say -o ipam={\"type\": …}, or -o conflist=NAME",
            ));
        }
        (None, false) => {}
    }
    let set = |(subnet, gateway): &(IpNet, Option<IpAddr>)| match gateway {
        Some(gateway) => json!([{"subnet": subnet, "gateway": gateway}]),
        None => json!([{"subnet": subnet}]),
    };
    let ranges: Vec<Value> = pools.subnets.iter().map(set).collect();
    let mut routes = Vec::new();
    // For a bridge its own key says it.
    if !internal && plugin_type != "bridge" {
        routes.push(json!({"dst": "0.0.0.0/0"}));
        if pools.have_v6() {
            routes.push(json!({"dst": "::/0"}));
        }
    }
    let ipam = json!({"type": "host-local", "ranges": ranges, "routes": routes});
    plugin.insert("ipam".to_owned(), ipam);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cni_invoke::Exec;
    use expect_test::{Expect, expect};

    use super::*;

    const LAN: &str = r#"{"cniVersion": "1.0.0", "name": "lan", "plugins": [
        {"type": "bridge", "bridge": "lan0", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}]}"#;
    const LEASED: &str = r#"{"cniVersion": "1.0.0", "name": "leased", "plugins": [
        {"type": "macvlan", "master": "up0", "ipam": {"type": "dhcp"}}]}"#;

    /// Plans what a request asks for; shows the list, or the error.
    fn check(request: &str, wanted: &Expect) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("lan", LAN), ("leased", LEASED)] {
            std::fs::write(folder.path().join(format!("{name}.conflist")), text).unwrap();
        }
        // Any executables will do: they are looked up, not run.
        let plugins =
            ["bridge", "macvlan", "loopback", "host-local", "dhcp", "portmap", "firewall"];
        for plugin in plugins {
            let path = folder.path().join(plugin);
            std::fs::write(&path, "").unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&path, mode).unwrap();
        }
        let runtime = Runtime::new([folder.path()], Arc::new(Exec::default()));
        let shelf = Shelf { conf_dir: folder.path(), runtime: &runtime };
        let asked: CreateNetwork = cnm::read(request.as_bytes()).unwrap();
        let shown = match plan(&asked, shelf) {
            Ok(network) => network.conflist,
            Err(error) => format!("{error}"),
        };
        wanted.assert_eq(&shown.replace(folder.path().to_str().unwrap(), "DIR"));
    }

    fn request(generic: &str, pool: &str, more: &str) -> String {
        format!(
            r#"{{"NetworkID":"0123456789abcdef","Options":{{"com.docker.network.generic":{generic}{more}}},
                "IPv4Data":[{pool}],"IPv6Data":null}}"#
        )
    }

    const POOL: &str =
        r#"{"AddressSpace":"LocalDefault","Pool":"10.1.0.0/24","Gateway":"10.1.0.254/24"}"#;
    const OTHER: &str = r#"{"AddressSpace":"LocalDefault","Pool":"10.9.0.0/24"}"#;
    const NULL: &str = r#"{"AddressSpace":"null","Pool":"0.0.0.0/0"}"#;

    #[test]
    fn lists_made_of_options() {
        check(
            &request("{}", POOL, ""),
            &expect![[
                r#"{"cniVersion":"1.1.0","name":"docker-0123456789ab","plugins":[{"bridge":"nw0123456789ab","capabilities":{"ips":true,"mac":true},"hairpinMode":true,"ipMasq":true,"ipam":{"ranges":[[{"gateway":"10.1.0.254","subnet":"10.1.0.0/24"}]],"routes":[],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"type":"bridge"},{"capabilities":{"portMappings":true},"type":"portmap"},{"type":"firewall"}]}"#
            ]],
        );
        check(
            &request(
                r#"{"com.docker.network.driver.mtu":"1400","com.docker.network.bridge.name":"b0"}"#,
                POOL,
                r#","com.docker.network.internal":true"#,
            ),
            &expect![[
                r#"{"cniVersion":"1.1.0","name":"docker-0123456789ab","plugins":[{"bridge":"b0","capabilities":{"ips":true,"mac":true},"hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"gateway":"10.1.0.254","subnet":"10.1.0.0/24"}]],"routes":[],"type":"host-local"},"isDefaultGateway":false,"isGateway":true,"mtu":1400,"type":"bridge"},{"capabilities":{"portMappings":true},"type":"portmap"},{"type":"firewall"}]}"#
            ]],
        );
        // netavark's option of the same name.
        check(
            &request(r#"{"vrf":"red"}"#, POOL, ""),
            &expect![[
                r#"{"cniVersion":"1.1.0","name":"docker-0123456789ab","plugins":[{"bridge":"nw0123456789ab","capabilities":{"ips":true,"mac":true},"hairpinMode":true,"ipMasq":true,"ipam":{"ranges":[[{"gateway":"10.1.0.254","subnet":"10.1.0.0/24"}]],"routes":[],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"type":"bridge","vrf":"red"},{"capabilities":{"portMappings":true},"type":"portmap"},{"type":"firewall"}]}"#
            ]],
        );
        check(
            &request(r#"{"type":"macvlan","master":"up0"}"#, POOL, ""),
            &expect![[
                r#"{"cniVersion":"1.1.0","name":"docker-0123456789ab","plugins":[{"capabilities":{"ips":true,"mac":true},"ipam":{"ranges":[[{"gateway":"10.1.0.254","subnet":"10.1.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}],"type":"host-local"},"master":"up0","type":"macvlan"}]}"#
            ]],
        );
        check(
            &request(r#"{"type":"macvlan","master":"up0","ipam":"{\"type\":\"dhcp\"}"}"#, NULL, ""),
            &expect![[
                r#"{"cniVersion":"1.1.0","name":"docker-0123456789ab","plugins":[{"capabilities":{"ips":true,"mac":true},"ipam":{"type":"dhcp"},"master":"up0","type":"macvlan"}]}"#
            ]],
        );
    }

    #[test]
    fn lists_of_the_node() {
        check(
            &request(r#"{"conflist":"lan"}"#, POOL, ""),
            &expect![[
                r#"{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"bridge","bridge":"lan0","ipam":{"type": "host-local", "subnet": "10.1.0.0/24"},"capabilities":{"ips":true}}]}"#
            ]],
        );
        check(
            &request(r#"{"conflist":"lan"}"#, OTHER, ""),
            &expect![[
                r#"Docker chose the pool 10.9.0.0/24, which network list "lan" does not hand out; create it with --subnet 10.1.0.0/24, or with --ipam-driver netwright --ipam-opt conflist=lan, or with --ipam-driver null"#
            ]],
        );
        check(
            &request(r#"{"conflist":"leased"}"#, POOL, ""),
            &expect![[
                r#"network list "leased" has its addresses from "dhcp", which does not honour requested addresses; create the network with --ipam-driver null: then the list gives the addresses"#
            ]],
        );
        check(
            &request(r#"{"conflist":"none"}"#, NULL, ""),
            &expect![[
                r#"no net configuration with name "none" in DIR; network lists in DIR: lan, leased"#
            ]],
        );
        check(
            &request(r#"{"routed":"lan"}"#, POOL, ""),
            &expect![[
                r#"{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"bridge","bridge":"lan0","ipam":{"type": "host-local", "subnet": "10.1.0.0/24"},"capabilities":{"ips":true}}]}"#
            ]],
        );
        check(
            &request(r#"{"routed":""}"#, NULL, ""),
            &expect![[
                r#"no net configuration with name "pods" in DIR; network lists in DIR: lan, leased"#
            ]],
        );
        check(
            &request(r#"{"routed":"lan","conflist":"lan"}"#, POOL, ""),
            &expect!["conflist and routed both name a network list; give one of them"],
        );
        check(
            &request(r#"{"conflist":"lan","mtu":"1400"}"#, POOL, ""),
            &expect![[
                r#"unknown option "mtu"; conflist names a network list, which has all the rest: only ifname and prefix may be given beside it"#
            ]],
        );
    }

    #[test]
    fn what_makes_no_network() {
        check(
            &request("{}", NULL, ""),
            &expect![[
                r#"this network has no source of addresses; with --ipam-driver null say -o ipam={"type": …}, or -o conflist=NAME"#
            ]],
        );
        check(
            &request(r#"{"mtuu":"1"}"#, POOL, ""),
            &expect![[
                r#"unknown option "mtuu"; plugin "bridge" has no such key; see docs/plugins.md"#
            ]],
        );
        check(
            &request(r#"{"com.docker.network.bridge.enable_icc":"false"}"#, POOL, ""),
            &expect![[r#"unknown option "com.docker.network.bridge.enable_icc""#]],
        );
        check(
            &request(r#"{"type":"absent"}"#, POOL, ""),
            &expect![[
                r#"network list "docker-0123456789ab": failed to find plugin "absent" in path [DIR]; netwright install puts our plugins where they are looked for"#
            ]],
        );
        check(
            &request(r#"{"type":"loopback"}"#, POOL, ""),
            &expect![[
                r#"network list "docker-0123456789ab": plugin "loopback" makes no interface that a container can be given; put a plugin that makes one first, such as bridge or macvlan"#
            ]],
        );
        check(
            &request(r#"{"type":"macvlan","ipam":"{}"}"#, POOL, ""),
            &expect![[
                r#"option "ipam" (type "") and Docker both give addresses; with -o ipam=… create the network with --ipam-driver null"#
            ]],
        );
        check(
            &request(r#"{"prefix":"a/b"}"#, POOL, ""),
            &expect![[
                r#"option "prefix": interface name contains / or : or whitespace characters"#
            ]],
        );
        check(
            &request(r#"{"name":"lan"}"#, POOL, ""),
            &expect![[
                r#"there is a network list named "lan"; to use it, give only -o conflist=lan; or choose another -o name"#
            ]],
        );
    }

    /// What ADD of a plugin always refuses makes no network; the table of `lint` and `status` is
    /// `cli`'s `tests/it/refused.rs`.
    #[test]
    fn what_add_always_refuses() {
        let folder = tempfile::tempdir().unwrap();
        for plugin in ["bridge", "macvlan", "host-local", "ovs", "vlan", "portmap", "firewall"] {
            std::fs::write(folder.path().join(plugin), "").unwrap();
        }
        let runtime = Runtime::new([folder.path()], Arc::new(Exec::default()));
        let shelf = Shelf { conf_dir: folder.path(), runtime: &runtime };
        let cases = [
            (r#"{"vlan":"5000"}"#, POOL, "invalid VLAN ID 5000"),
            (r#"{"mtu":"1"}"#, POOL, "invalid MTU 1"),
            (r#"{"mtu":"99999"}"#, POOL, "invalid MTU 99999"),
            (r#"{"vlanTrunk":"[{\"minID\":20,\"maxID\":10}]"}"#, POOL, "minID is greater"),
            (r#"{"bridge":"abcdefghijklmnopqrstuvwxyz"}"#, POOL, "invalid bridge name"),
            (r#"{"bridge":"lo"}"#, POOL, "\"lo\" already exists but is not a bridge"),
            (r#"{"type":"vlan","master":"up0","vlanId":"5000"}"#, POOL, "invalid VLAN ID 5000"),
            (r#"{"type":"macvlan","master":"up0","mtu":"1"}"#, POOL, "invalid MTU 1"),
            (
                r#"{"type":"ovs","bridge":"b","ofport_request":"0"}"#,
                POOL,
                "invalid ofport_request 0",
            ),
            (
                r#"{"type":"ovs","bridge":"b","tunnel":"{\"type\":\"gre\",\"vni\":5,\"remotes\":[\"192.0.2.1\"]}"}"#,
                POOL,
                "unknown tunnel type",
            ),
            (r#"{"type":"host-local"}"#, POOL, "hands out addresses"),
            (
                r#"{"ipam":"{\"type\":\"host-local\",\"subnet\":\"10.1.0.5/24\"}"}"#,
                NULL,
                "write 10.1.0.0/24",
            ),
        ];
        for (options, pool, words) in cases {
            let asked: CreateNetwork = cnm::read(request(options, pool, "").as_bytes()).unwrap();
            // As `network create` does.
            let made = plan(&asked, shelf).and_then(|made| refuse_host(&made.list()?));
            let error = made.unwrap_err().to_string();
            assert!(error.contains(words), "{options}: {error}");
            assert!(
                error.contains("network \"docker-0123456789ab\": plugin "),
                "{options}: {error}"
            );
        }
    }
}
