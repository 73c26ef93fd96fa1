//! The default network, for hosts without a configured one.

use cni::NetworkList;

pub(crate) const NAME: &str = "netwright";

/// Its configuration. Its IPv4 range is one that few administrators choose; its IPv6 prefix is a
/// unique local one (RFC 4193), with a global ID drawn at random once.
pub(crate) const DOCUMENT: &str = include_str!("netwright.conflist");

/// Returns the network.
pub(crate) fn list() -> NetworkList {
    NetworkList::parse(DOCUMENT.as_bytes()).expect("a test reads the embedded configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_configuration_is_valid() {
        let list = list();
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
