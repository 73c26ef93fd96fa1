//! Finds what ADD would always refuse in a network list, before ADD is called: for `lint`, `status`
//! and Docker's `network create`.
//!
//! [`Plugin::validate`] and [`Plugin::fits_host`] of each plugin run in this process, with the
//! object that a runtime would pass. Plugins that are not ours are not judged.
//!
//! `validate` is ADD's own parser: two parsers of one configuration drift apart. `fits_host` does
//! not refuse what is missing, because it may come later; `lint` shows what it refuses as a
//! warning, because the file may be for another host. STATUS begins with both.

use cni::config::IpamHead;
use cni::{CallEnv, Error, NetworkList, PluginConfig, Version, code};
use cni_invoke::Exec;
use cni_plugin::{Call, Context, HostRouting, Inner, Plugin, Role, examine};
use ipnet::IpNet;
use node_api::policy::OWN_IFNAME;
use serde::Deserialize;
use state::Roots;

use crate::chained::policy;
use crate::interface::bridge::{self, ConfiguredGateways};
use crate::interface::loopback;

/// Returns the role of a plugin, by its own name or another project's name for it; `None` if it is
/// not ours.
#[must_use]
pub fn role(plugin_type: &str) -> Option<Role> {
    crate::info(plugin_type).map(|info| info.role)
}

/// Lists the capabilities whose arguments a plugin of ours or its IPAM plugin reads, which gets the same
/// `runtimeConfig`; `None` if any may be read. A plugin that calls others passes on all of them, and
/// plugins that are not ours may read any.
#[must_use]
pub fn capabilities_read(plugin_type: &str, ipam_type: &str) -> Option<Vec<&'static str>> {
    let info = crate::info(plugin_type).filter(|info| info.inner.is_none())?;
    let mut read = info.capabilities.to_vec();
    if !ipam_type.is_empty() {
        read.extend(crate::info(ipam_type)?.capabilities);
    }
    Some(read)
}

/// Returns the type of the address plugin that a configuration names; `None` if it names none, or
/// cannot be read.
#[must_use]
pub fn address_plugin(plugin: &PluginConfig) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Keys {
        ipam: IpamHead,
    }
    let keys: Keys = plugin.object.read().ok()?;
    Some(keys.ipam.plugin_type).filter(|plugin_type| !plugin_type.is_empty())
}

/// Returns the type of the plugin whose configuration a plugin completes; `None` if it completes
/// none.
#[must_use]
pub fn delegate(plugin: &PluginConfig) -> Option<String> {
    let Inner::Delegate { key, default_type } = crate::info(&plugin.plugin_type)?.inner? else {
        return None;
    };
    let head = plugin.object.get_ignore_case(key).map(cni::json::from_raw::<IpamHead>);
    let named = head.and_then(Result::ok).map(|head| head.plugin_type);
    Some(named.filter(|name| !name.is_empty()).unwrap_or_else(|| default_type.to_owned()))
}

/// Says whether the host routes what a network's containers send beyond it.
#[must_use]
pub fn is_routed(list: &NetworkList) -> bool {
    list.plugins.iter().any(|plugin| {
        let is_true = |key: &str| {
            let raw = plugin.object.get_ignore_case(key);
            raw.and_then(|raw| cni::json::from_raw(raw).ok()).unwrap_or_default()
        };
        match crate::info(&plugin.plugin_type).map(|info| info.routed) {
            Some(HostRouting::Always) => true,
            Some(HostRouting::IfSet(keys)) => keys.iter().any(|key| is_true(key)),
            Some(HostRouting::Never) | None => false,
        }
    })
}

/// Returns what a plugin whose configuration is completed has of it; `None` if it has nothing.
pub(crate) fn delegate_object(plugin: &PluginConfig) -> Option<PluginConfig> {
    let Inner::Delegate { key, .. } = crate::info(&plugin.plugin_type)?.inner? else {
        return None;
    };
    let object = plugin.object.get_ignore_case(key).map(cni::json::from_raw);
    PluginConfig::from_object(object?.ok()?).ok()
}

/// Lists the networks of their own that a plugin of ours attaches a container to
/// ([`Plugin::networks`]).
///
/// # Errors
/// As ADD, when they cannot be read.
pub(crate) fn networks(
    plugin: &PluginConfig,
    network: &str,
    cni_version: &str,
) -> Result<Vec<NetworkList>, Error> {
    let Some(ours) = crate::find(&plugin.plugin_type) else { return Ok(Vec::new()) };
    let document = plugin.request(network, cni_version, &cni::config::Injection::default());
    ask(ours, &document, |call| ours.networks(call))?
}

/// Reports whether a type is the own name of one of our plugins. Under another project's name for
/// it, that project's plugin may be installed, which may read configurations differently.
#[must_use]
pub fn is_own_name(plugin_type: &str) -> bool {
    crate::all().iter().any(|plugin| plugin.name() == plugin_type)
}

/// One thing that ADD would refuse, or that is doubtful.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The plugin, as the configuration calls it.
    pub plugin_type: String,
    /// Whether the key `ipam` names it.
    pub is_ipam: bool,
    /// Whether the cause is this host and not the configuration.
    pub is_hosts: bool,
    /// The error that ADD would report.
    pub error: Error,
}

impl Refusal {
    /// Returns the error with the names of the list and the plugin.
    #[must_use]
    pub fn to_error(&self, list: &str) -> Error {
        self.error.clone().context(format_args!("network {list:?}: plugin {:?}", self.plugin_type))
    }
}

/// Judges every plugin of a list, and the chain. `is_asked` says, by its type, whether a plugin is
/// ours here.
#[must_use]
pub fn list(list: &NetworkList, is_asked: &dyn Fn(&str) -> bool) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for (position, plugin) in list.plugins.iter().enumerate() {
        refusals.extend(link(list, position).filter(|_| is_asked(&plugin.plugin_type)));
        refusals.extend(object(plugin, &list.name, &list.cni_version, is_asked));
        for inner in inner(plugin) {
            refusals.extend(object(&inner, &list.name, &list.cni_version, is_asked));
        }
    }
    refusals
}

/// Lists the plugins of the same network that a plugin calls.
pub(crate) fn inner(plugin: &PluginConfig) -> Vec<PluginConfig> {
    let inner = crate::info(&plugin.plugin_type).and_then(|info| info.inner);
    let Some(Inner::Plugins(key)) = inner else { return Vec::new() };
    let raw = plugin.object.get_ignore_case(key);
    let objects = raw.and_then(|raw| cni::json::from_raw::<Vec<cni::json::Object>>(raw).ok());
    let objects = objects.unwrap_or_default().into_iter();
    objects.filter_map(|object| PluginConfig::from_object(object).ok()).collect()
}

/// Finds a plugin of ours in a place where it cannot be. Alone in a list, an IPAM plugin would give
/// addresses to a container that has no interface for them.
#[must_use]
pub fn out_of_place(list: &NetworkList) -> Option<Refusal> {
    (0..list.plugins.len()).find_map(|position| {
        link(list, position).filter(|refusal| is_own_name(&refusal.plugin_type))
    })
}

/// Judges a plugin's place in the chain.
fn link(list: &NetworkList, position: usize) -> Option<Refusal> {
    let name = &list.plugins[position].plugin_type;
    let info = crate::info(name)?;
    let (text, details) = match info.role {
        Role::Addresses => (
            "it hands out addresses and cannot be a link of the chain".to_owned(),
            format!(
                "put it into the `ipam` of the plugin that makes the interface: \"ipam\": {{\"type\": \"{name}\"}}"
            ),
        ),
        Role::Chained if position == 0 && !info.succeeds_alone => (
            "it changes what plugins before it made, but is the first".to_owned(),
            "put a plugin that makes an interface before it, such as bridge".to_owned(),
        ),
        _ if opened_by_nobody(list, position) => (
            format!(
                "its link would stay closed: key {:?} says that policy follows",
                cni::FOLLOWED_BY
            ),
            "remove the key, or put the plugin policy behind it".to_owned(),
        ),
        _ => (policy::why_not(&behind(list, position, None)?), policy::INSTEAD.to_owned()),
    };
    let error = Error::new(code::INVALID_CONFIG, text).with_details(details);
    Some(Refusal { plugin_type: name.clone(), is_ipam: false, is_hosts: false, error })
}

/// Refuses a list of which no plugin makes an interface that a container can be given: Docker moves
/// one into its container. Another project's plugin may make one.
///
/// # Errors
/// Code 7.
pub fn refuse_without_interface(list: &NetworkList) -> Result<(), Error> {
    if list.plugins.iter().any(makes_interface) {
        return Ok(());
    }
    let name = list.plugins.first().map_or("", |plugin| &plugin.plugin_type);
    let text = format!("plugin {name:?} makes no interface that a container can be given");
    Err(Error::new(code::INVALID_CONFIG, text)
        .with_details("put a plugin that makes one first, such as bridge or macvlan"))
}

fn makes_interface(plugin: &PluginConfig) -> bool {
    let Some(info) = crate::info(&plugin.plugin_type) else { return true };
    match info.role {
        Role::Interface => true,
        Role::Either if info.inner.is_some() => inner(plugin).iter().any(makes_interface),
        // Each namespace has its own.
        Role::Either => info.name != loopback::INFO.name,
        _ => false,
    }
}

/// Asks the plugin of ours that makes a list's interface for its STATUS, without its address plugin:
/// whether this host has what it needs, such as a parent.
///
/// # Errors
/// Why a container could not be attached now.
pub fn interface_status(list: &NetworkList) -> Result<(), Error> {
    let Some(plugin) = list.plugins.first() else { return Ok(()) };
    let own = crate::find(&plugin.plugin_type).filter(|own| own.info().inner.is_none());
    let Some(own) = own.filter(|own| own.info().role != Role::Addresses) else { return Ok(()) };
    let mut object = plugin.object.clone();
    object.set_value("ipam", &serde_json::json!({}));
    let plugin = PluginConfig::from_object(object)?;
    let document =
        plugin.request(&list.name, Version::CURRENT.as_str(), &cni::config::Injection::default());
    ask(own, &document, |call| own.status(call))?
}

/// Reports whether a plugin says that `policy` follows, which does not.
fn opened_by_nobody(list: &NetworkList, position: usize) -> bool {
    let said = list.plugins[position].object.get(cni::FOLLOWED_BY);
    let said = said.and_then(|raw| cni::json::from_raw::<Vec<String>>(raw).ok());
    let is_policy = |name: &String| name == policy::INFO.name;
    said.is_some_and(|said| said.iter().any(is_policy))
        && !types(&list.plugins[position..]).iter().any(is_policy)
}

/// Looks at the plugin `policy` at this place of a list, or within the plugin there. Returns the
/// plugin before it whose interface it refuses under this name, or under any name. A chain itself
/// judges its plugins.
#[must_use]
pub fn behind(list: &NetworkList, position: usize, ifname: Option<&str>) -> Option<String> {
    let own = types(&list.plugins[position..=position]);
    let holds = own.iter().any(|name| name == policy::INFO.name);
    if !holds || policy::behind(ifname, &own).is_some() {
        return None;
    }
    policy::behind(ifname, types(&list.plugins[..=position]))
}

/// The same for a container's own interface.
#[must_use]
pub fn behind_as_own(list: &NetworkList, position: usize) -> Option<String> {
    behind(list, position, Some(OWN_IFNAME))
}

/// Lists the types of plugins, and of those that they call in their place.
fn types(plugins: &[PluginConfig]) -> Vec<String> {
    let mut types = Vec::new();
    for plugin in plugins {
        types.push(plugin.plugin_type.clone());
        types.extend(delegate(plugin));
        types.extend(inner(plugin).into_iter().map(|inner| inner.plugin_type));
    }
    types
}

/// Refuses a list whose interface of this name the plugin `policy` would refuse once it is there.
///
/// # Errors
/// Code 7.
pub fn refuse_unfiltered(list: &NetworkList, ifname: &str) -> Result<(), Error> {
    match (0..list.plugins.len()).find_map(|position| behind(list, position, Some(ifname))) {
        Some(refused) => Err(Error::new(code::INVALID_CONFIG, policy::why_not(&refused))
            .with_details(policy::INSTEAD)),
        None => Ok(()),
    }
}

/// Judges one plugin of a list and its IPAM plugin. The caller judges any other plugin that it
/// holds; a plugin that completes its delegate's configuration judges that itself.
#[must_use]
pub fn object(
    plugin: &PluginConfig,
    network: &str,
    cni_version: &str,
    is_asked: &dyn Fn(&str) -> bool,
) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    each(plugin, network, cni_version, is_asked, &mut |ours, document, refusal| {
        match ask(ours, document, |call| ours.validate(call)) {
            Ok(Ok(())) => {
                let fits = ask(ours, document, |call| ours.fits_host(call));
                let error = fits.ok().and_then(Result::err);
                refusals.extend(error.map(|error| Refusal { is_hosts: true, ..refusal(error) }));
            }
            // If a plugin lacks a version, the runtime negotiates another.
            Err(error) if error.code == code::INCOMPATIBLE_VERSION => {}
            Err(error) | Ok(Err(error)) => refusals.push(refusal(error)),
        }
    });
    refusals
}

/// Lists what is doubtful in one plugin of a list and in its IPAM plugin: ADD accepts it.
#[must_use]
pub fn doubts(
    plugin: &PluginConfig,
    network: &str,
    cni_version: &str,
    is_asked: &dyn Fn(&str) -> bool,
) -> Vec<Refusal> {
    let mut doubts = Vec::new();
    each(plugin, network, cni_version, is_asked, &mut |ours, document, refusal| {
        let found = ask(ours, document, |call| ours.doubts(call)).unwrap_or_default();
        doubts.extend(found.into_iter().map(refusal));
    });
    doubts
}

/// What [`each`] does with a plugin of ours: the request for it, and how a finding about it is
/// described.
type Look<'l> = &'l mut dyn FnMut(&dyn Plugin, &[u8], &dyn Fn(Error) -> Refusal);

/// Shows one plugin of a list and its IPAM plugin, those that are ours.
fn each(
    plugin: &PluginConfig,
    network: &str,
    cni_version: &str,
    is_asked: &dyn Fn(&str) -> bool,
    look: Look<'_>,
) {
    // A wrong name or version is not for the plugin to report.
    if cni::NetworkName::new(network).is_err() || Version::parse(cni_version).is_none() {
        return;
    }
    let document = plugin.request(network, cni_version, &cni::config::Injection::default());
    let mut ipam = plugin.object.read::<Head>().unwrap_or_default().ipam.plugin_type;
    if delegate(plugin).is_some() {
        // The plugin completes `ipam` too, and judges the whole.
        ipam.clear();
    }
    let addresses = role(&plugin.plugin_type) == Some(Role::Addresses);
    for (name, is_ipam) in [(&plugin.plugin_type, false), (&ipam, true)] {
        let Some(ours) = crate::find(name).filter(|_| is_asked(name)) else { continue };
        // An IPAM plugin that is a link of the chain was already refused for its place.
        if !is_ipam && addresses {
            continue;
        }
        look(ours, &document, &|error| Refusal {
            plugin_type: name.clone(),
            is_ipam,
            is_hosts: false,
            error,
        });
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Head {
    ipam: cni::config::IpamHead,
}

pub(crate) fn ask<T>(
    plugin: &dyn Plugin,
    document: &[u8],
    ask: impl FnOnce(&Call<'_>) -> T,
) -> Result<T, Error> {
    let (roots, executor) = (Roots::default(), Exec::default());
    let context = Context { roots: &roots, executor: &executor, deadline: None, build: "" };
    examine(plugin, document, &CallEnv::default(), &context, ask)
}

/// Two lists that cannot both be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clash {
    /// What they both claim.
    pub text: String,
    /// What to do about it.
    pub remedy: &'static str,
}

/// Returns the reason why containers of one list are refused, or not reached, while the other has
/// one: both give the same bridge addresses that exclude each other, or two bridges one subnet.
#[must_use]
pub fn exclude_each_other(one: &NetworkList, other: &NetworkList) -> Option<Clash> {
    if one.name == other.name {
        return None;
    }
    let (ours, theirs) = (gateways(one), gateways(other));
    let mut pairs = ours.iter().flat_map(|mine| theirs.iter().map(move |their| (mine, their)));
    pairs.find_map(|(mine, their)| {
        let names = format!("networks {:?} and {:?}", one.name, other.name);
        if mine.link == their.link {
            on_one_bridge(&names, mine, their)
        } else {
            on_two_bridges(&names, mine, their)
        }
    })
}

fn on_one_bridge(
    names: &str,
    mine: &ConfiguredGateways,
    their: &ConfiguredGateways,
) -> Option<Clash> {
    if mine.replaces || their.replaces {
        return None;
    }
    bridge::refuse_others(&mine.link, &their.addresses, &mine.addresses).err()?;
    let shown =
        |nets: &[IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Some(Clash {
        text: format!(
            "{names} are on bridge {:?} with different subnets, as {} and {}: while one has a container, the other's are refused",
            mine.link,
            shown(&mine.addresses),
            shown(&their.addresses),
        ),
        remedy: "give each a bridge of its own, or one the other's subnet",
    })
}

/// The host has one route to a subnet: by the bridge that got its address first.
fn on_two_bridges(
    names: &str,
    mine: &ConfiguredGateways,
    their: &ConfiguredGateways,
) -> Option<Clash> {
    if mine.vrf != their.vrf {
        return None;
    }
    let (first, second) = mine.addresses.iter().find_map(|mine| {
        let is_common =
            |their: &&IpNet| mine.contains(&their.network()) || their.contains(&mine.network());
        Some((mine.trunc(), their.addresses.iter().find(is_common)?.trunc()))
    })?;
    let subnets = if first == second {
        format!("both have subnet {first}")
    } else {
        format!("have subnets {first} and {second}, which overlap,")
    };
    Some(Clash {
        text: format!(
            "{names} {subnets} on two bridges, {:?} and {:?}: the host reaches the containers of one of them alone",
            mine.link, their.link
        ),
        remedy: "give each a subnet of its own, or both one bridge",
    })
}

/// Returns the gateways that a list gives its bridges.
fn gateways(list: &NetworkList) -> Vec<ConfiguredGateways> {
    let bridges = list.plugins.iter().filter(|plugin| plugin.plugin_type == bridge::INFO.name);
    let bridge = crate::find(bridge::INFO.name).expect("bridge is in the table");
    let found = bridges.filter_map(|plugin| {
        let version = &list.cni_version;
        let document = plugin.request(&list.name, version, &cni::config::Injection::default());
        ask(bridge, &document, bridge::gateways).ok().flatten()
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the list of these plugins.
    fn of(plugins: &serde_json::Value) -> NetworkList {
        let list = json!({ "cniVersion": "1.1.0", "name": "n", "plugins": plugins });
        NetworkList::parse(list.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_link_that_nobody_would_open_is_refused() {
        let list = of(&json!([{ "type": "ptp", "netwright/followed-by": ["policy"] },
                              { "type": "portmap" }]));
        let refusal = out_of_place(&list).unwrap();
        assert_eq!(refusal.plugin_type, "ptp");
        assert!(refusal.error.msg.starts_with("its link would stay closed"), "{refusal:?}");
    }

    #[test]
    fn network_policy_judges_what_this_node_filters() {
        for sound in [
            json!([{ "type": "ptp" }, { "type": "policy" }]),
            json!([{ "type": "bridge" }, { "type": "policy" }, { "type": "portmap" }]),
            json!([{ "type": "theirs" }, { "type": "policy" }]),
            json!([{ "type": "flannel" }, { "type": "policy" }]),
            json!([{ "type": "macvlan" }, { "type": "tuning" }]),
            json!([{ "type": "ptp" }, { "type": "policy" }, { "type": "macvlan" }]),
            json!([{ "type": "chain", "plugins": [{ "type": "ptp" }, { "type": "policy" }] }]),
            json!([{ "type": "ptp", "netwright/followed-by": ["policy"] }, { "type": "policy" }]),
        ] {
            let list = of(&sound);
            assert_eq!((out_of_place(&list), refuse_unfiltered(&list, "eth0")), (None, Ok(())));
        }
        for (refused, by, what) in [
            (
                json!([{ "type": "macvlan" }, { "type": "tuning" }, { "type": "policy" }]),
                2,
                "macvlan",
            ),
            (
                json!([{ "type": "flannel", "delegate": { "type": "ipvlan" } }, { "type": "policy" }]),
                1,
                "ipvlan",
            ),
            (
                json!([{ "type": "vlan" }, { "type": "chain", "plugins": [{ "type": "policy" }] }]),
                1,
                "vlan",
            ),
            (
                json!([{ "type": "chain", "plugins": [{ "type": "ovs" }] }, { "type": "policy" }]),
                1,
                "ovs",
            ),
        ] {
            // As the container's own network it is refused; as a further one it is judged inside.
            let list = of(&refused);
            let words = policy::why_not(what);
            assert_eq!(refuse_unfiltered(&list, "eth0").unwrap_err().msg, words);
            assert_eq!((out_of_place(&list), refuse_unfiltered(&list, "net1")), (None, Ok(())));
            // A tap is refused as either.
            let text = refused.to_string().replace(&format!("\"{what}\""), "\"tap\"");
            let list = of(&serde_json::from_str(&text).unwrap());
            let refusal = out_of_place(&list).unwrap();
            assert_eq!(refusal.plugin_type, list.plugins[by].plugin_type, "{refused}");
            assert_eq!(refusal.error.msg, policy::why_not("tap"));
            assert_eq!(refuse_unfiltered(&list, "net1"), Err(refusal.error));
        }
        // Said by the chain itself, and once.
        let held = json!([{ "type": "tap" }, { "type": "policy" }]);
        let chain = of(&json!([{ "type": "chain", "plugins": held }]));
        let said = super::list(&chain, &is_own_name);
        let said: Vec<&str> = said.iter().map(|refusal| refusal.error.msg.as_str()).collect();
        assert_eq!(said, [policy::why_not("tap")]);
        assert_eq!(refuse_unfiltered(&chain, "eth0"), Ok(()));
    }

    /// Network policy judges the interface that a plugin makes, or refuses it, or the plugin makes
    /// no interface.
    #[test]
    fn network_policy_knows_every_interface() {
        let judged = ["bridge", "ptp"];
        let by_others = ["cnm", "flannel", "multi", "netwright-multi"];
        for plugin in crate::all() {
            if plugin.info().role == Role::Interface {
                let name = plugin.name();
                let known = judged.contains(&name) || by_others.contains(&name);
                let refused = policy::behind(Some("eth0"), [name, policy::INFO.name]).is_some();
                assert_ne!(known, refused, "{name}");
            }
        }
    }

    #[test]
    fn a_list_without_an_interface_for_a_container_is_refused() {
        for (plugins, gives) in [
            (json!([{ "type": "loopback" }]), false),
            (json!([{ "type": "loopback" }, { "type": "tuning" }]), false),
            (json!([{ "type": "portmap" }]), false),
            (json!([{ "type": "chain", "plugins": [{ "type": "loopback" }] }]), false),
            (json!([{ "type": "chain", "plugins": [{ "type": "ptp" }] }]), true),
            (json!([{ "type": "ipvlan" }]), true),
            (json!([{ "type": "theirs" }]), true),
            (json!([{ "type": "bridge" }, { "type": "loopback" }]), true),
        ] {
            let refused = refuse_without_interface(&of(&plugins));
            assert_eq!(refused.is_ok(), gives, "{plugins}: {refused:?}");
        }
    }

    /// Without privileges nothing more can be told of the host than that a link is not there.
    #[test]
    fn a_parent_that_is_not_there_is_told_without_the_address_plugin() {
        let ipam = json!({ "type": "nwt-absent" });
        for plugin in ["macvlan", "ipvlan", "vlan"] {
            let list =
                of(&json!([{ "type": plugin, "master": "nwt-none", "vlanId": 5, "ipam": ipam }]));
            let error = interface_status(&list).unwrap_err();
            assert!(error.to_string().contains("\"nwt-none\": Link not found"), "{error:?}");
        }
        let list = of(&json!([{ "type": "host-device", "device": "nwt-none", "ipam": ipam }]));
        assert!(interface_status(&list).is_err());
    }

    /// Every plugin has a role, so none is skipped.
    #[test]
    fn every_plugin_has_a_role() {
        for plugin in crate::all() {
            assert!(role(plugin.name()).is_some(), "{}", plugin.name());
        }
        assert_eq!(role("multus"), Some(Role::Interface));
        assert_eq!(role("whereabouts"), Some(Role::Addresses));
        assert_eq!(role("theirs"), None);
    }
    #[test]
    fn a_network_is_routed_by_its_gateway() {
        for (plugin, routed) in [
            (r#"{"type": "ptp"}"#, true),
            (r#"{"type": "bridge"}"#, false),
            (r#"{"type": "bridge", "isGateway": true}"#, true),
            (r#"{"type": "bridge", "isDefaultGateway": true}"#, true),
            (r#"{"type": "macvlan", "isGateway": true}"#, false),
        ] {
            let list = format!(r#"{{"cniVersion": "1.1.0", "name": "n", "plugins": [{plugin}]}}"#);
            let list = NetworkList::parse(list.as_bytes()).unwrap();
            assert_eq!(is_routed(&list), routed, "{plugin}");
        }
    }
}
