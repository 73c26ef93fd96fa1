//! Mistakes in the order of a chain.

use cni::excerpt::Place;
use cni::{NetworkList, PluginConfig, Version};
use cni_plugin::Role;
use plugins::chained::policy;
use plugins::judge;
use serde::Deserialize;

use super::keys::Top;
use super::{Examination, Severity};

/// Says how a list has a version with STATUS and stays readable for every runtime.
const VERSIONS_HINT: &str =
    "add \"cniVersions\": [\"1.0.0\", \"1.1.0\"]: older runtimes keep to `cniVersion`";

/// Reports whether the list's version has STATUS (CNI 1.1.0 "STATUS: Check plugin status").
fn asks_status(list: &NetworkList) -> bool {
    Version::parse(&list.cni_version).is_some_and(|version| Version::V1_1_0 <= version)
}

/// Reports whether a bridge's gateway comes from DHCP.
fn takes_gateway_of_a_lease(plugin: &PluginConfig) -> bool {
    #[derive(Deserialize, Default)]
    #[serde(default, rename_all = "camelCase")]
    struct Keys {
        is_gateway: bool,
        is_default_gateway: bool,
    }
    // What cannot be read is told elsewhere.
    let keys: Keys = plugin.object.read().unwrap_or_default();
    plugin.plugin_type == plugins::interface::bridge::INFO.name
        && judge::address_plugin(plugin).is_some_and(|ipam_type| ipam_type == "dhcp")
        && (keys.is_gateway || keys.is_default_gateway)
}

/// Checks the order of a chain.
pub(super) fn lint(list: &NetworkList, top: &Top<'_>, examined: &mut Examination<'_>) {
    let objects = top.elements("plugins");
    let text = examined.text;
    let place_of = |index: usize| {
        let object = objects.get(index).copied();
        let raw = object.and_then(|object| Top::of(object).value("type")).or(object);
        raw.map(|raw| Place::of(text, raw)).unwrap_or_default()
    };
    for (index, plugin) in list.plugins.iter().enumerate() {
        let name = plugin.plugin_type.as_str();
        let place = place_of(index);
        let before = index.checked_sub(1).map(|before| list.plugins[before].plugin_type.as_str());
        let twice = list.plugins[..index].iter().any(|other| other.plugin_type == name);
        let info = plugins::info(name);
        let role = info.map(|info| info.role);
        if role == Some(Role::Addresses) {
            examined.find(
                Severity::Error,
                place,
                format!("plugin {name:?} hands out addresses and cannot be a link of the chain"),
                Some(format!("put it into the `ipam` of the plugin that makes the interface: \"ipam\": {{\"type\": \"{name}\"}}")),
            );
        } else if role == Some(Role::Chained) && before.is_none() {
            examined.find(
                Severity::Error,
                place,
                format!("plugin {name:?} changes what plugins before it made, but is the first"),
                Some("put a plugin that makes an interface before it, such as bridge".to_owned()),
            );
        } else if let Some(before) = before
            && role == Some(Role::Interface)
        {
            examined.find(
                Severity::Warning,
                place,
                format!("plugin {name:?} makes an interface of its own and ignores what {before:?} before it made"),
                Some("put the second interface in a network of its own".to_owned()),
            );
        } else if let Some(refused) = judge::behind(list, index, None) {
            examined.find(
                Severity::Error,
                place,
                policy::why_not(&refused),
                Some(policy::INSTEAD.to_owned()),
            );
        } else if let Some(refused) = judge::behind_as_own(list, index) {
            examined.find(Severity::Warning, place, policy::only_further(&refused), None);
        } else if twice {
            examined.find(
                Severity::Warning,
                place,
                format!("plugin {name:?} is in the chain twice"),
                None,
            );
        }
        if info.is_some_and(|info| info.name == policy::INFO.name) && !asks_status(list) {
            examined.find(
                Severity::Warning,
                place,
                "runtimes do not ask STATUS of this version: the node stays ready while netwrightd policy \
                 is away and new pods are closed"
                    .to_owned(),
                Some(VERSIONS_HINT.to_owned()),
            );
        }
        if takes_gateway_of_a_lease(plugin) {
            examined.find(
                Severity::Warning,
                place,
                "the host takes as its own the gateway that a DHCP server names, and every container on \
                 the bridge can answer as one"
                    .to_owned(),
                Some("leave out `isGateway`, or use another address plugin".to_owned()),
            );
        }
        if let Some(capability) = info.and_then(|info| info.sole_capability)
            && !plugin.capabilities.iter().any(|has| has == capability)
        {
            examined.find(
                Severity::Warning,
                place,
                format!("plugin {name:?} has nothing to do without the capability {capability:?}"),
                Some(format!("add \"capabilities\": {{\"{capability}\": true}}")),
            );
        }
    }
}
