//! The default network, for hosts without a configured one.

use std::borrow::Cow;

use cni::NetworkList;
use kernel::ipv6::Off;

pub(crate) const NAME: &str = "netwright";

/// Its configuration. Its IPv4 range is one that few administrators choose; its IPv6 prefix is a
/// unique local one (RFC 4193), with a global ID drawn at random once.
const DOCUMENT: &str = include_str!("netwright.conflist");

/// The set with its IPv4 range, and what follows it with its IPv6 range.
const IPV4_SET: &str = r#"[{"subnet": "10.63.0.0/16"}]"#;
const IPV6_SET: &str = ",\n                    [{\"subnet\": \"fd63:b7c4:5e0a::/64\"}]";

/// Returns its configuration on this host: where the host has no IPv6, it gives IPv4 addresses alone.
pub(crate) fn document() -> Cow<'static, str> {
    of_host(Off::for_new_links().as_ref())
}

fn of_host(off: Option<&Off>) -> Cow<'static, str> {
    match off {
        None => Cow::Borrowed(DOCUMENT),
        Some(_) => Cow::Owned(DOCUMENT.replace(IPV6_SET, "")),
    }
}

/// Says whether a file is the configuration as some host has it.
pub(crate) fn is_document(bytes: &[u8]) -> bool {
    bytes == DOCUMENT.as_bytes() || bytes == DOCUMENT.replace(IPV6_SET, "").as_bytes()
}

/// Returns the network on this host.
pub(crate) fn list() -> NetworkList {
    NetworkList::parse(document().as_bytes()).expect("a test reads the embedded configuration")
}

/// Says why a list gives IPv4 addresses alone, if it is the default network without its IPv6 range.
pub(crate) fn lacks_ipv6(list: &NetworkList) -> Option<String> {
    let has = |part: &str| String::from_utf8_lossy(&list.source).contains(part);
    let is_it = list.name == NAME && has(IPV4_SET) && !has(IPV6_SET);
    is_it.then(Off::for_new_links).flatten().map(|off| why_ipv4_alone(&off))
}

/// Says why the default network gives IPv4 addresses alone.
pub(crate) fn why_ipv4_alone(off: &Off) -> String {
    format!(
        "network {NAME:?} gives containers IPv4 addresses alone: {off}; to have both: {}",
        off.remedy()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_configuration_is_valid() {
        let [list, v4] = [None, Some(&Off::Kernel)].map(|off| {
            let document = of_host(off);
            assert!(is_document(document.as_bytes()));
            NetworkList::parse(document.as_bytes()).unwrap()
        });
        let text = |list: &NetworkList| String::from_utf8(list.source.clone()).unwrap();
        assert!(text(&list).contains("fd63:") && text(&list).contains(IPV4_SET));
        assert!(!text(&v4).contains("fd63:") && text(&v4).contains(IPV4_SET));
        assert_eq!(v4.plugins.len(), list.plugins.len());
        assert_eq!(list.name, NAME);
        assert_eq!(list.cni_version, cni::Version::CURRENT.as_str());
        let types: Vec<_> = list.plugins.iter().map(|plugin| plugin.plugin_type.as_str()).collect();
        assert_eq!(types, ["bridge", "portmap", "firewall"]);
    }

    #[test]
    fn our_own_plugins_know_every_key_of_it() {
        for plugin in list().plugins {
            let Some(ours) = plugins::find(&plugin.plugin_type) else { continue };
            let text = String::from_utf8(plugin.object.to_vec()).unwrap();
            let unknown = ours.unknown_keys(&text).unwrap();
            let unknown: Vec<_> = unknown
                .iter()
                .filter(|key| !key.parent.starts_with("ipam"))
                .filter(|key| key.key != "capabilities")
                .collect();
            assert!(unknown.is_empty(), "{}: {unknown:?}", plugin.plugin_type);
        }
    }
}
