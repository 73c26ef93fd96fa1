//! Checks whether the host forwards what a network's containers send beyond it.
//!
//! A `firewall` plugin in the list lets traffic pass where a chain of another program drops
//! forwarded packets. A plugin cannot check whether `firewall` is there: it sees its own
//! configuration, not the list. So the command line warns.

use cni::NetworkList;
use cni_plugin::Routed;
use firewall::forward;
use state::Index;

use crate::shell::Shell;

/// The plugin that lets the traffic pass, or itself reports that it cannot.
const OPENER: &str = plugins::chained::firewall::INFO.name;

/// Returns what will drop the packets that a network's containers send beyond the host; empty when
/// nothing does.
pub(crate) fn warnings(list: &NetworkList, index: &Index) -> Vec<String> {
    if !is_routed(list) || list.plugins.iter().any(|plugin| plugin.plugin_type == OPENER) {
        return Vec::new();
    }
    // Best effort: ADD has succeeded without this check.
    let blockers = forward::blockers(index).unwrap_or_default();
    let told = |blocker: &forward::Blocker| {
        format!(
            "containers on network {:?} may not reach beyond this host: {blocker}; {}",
            list.name,
            blocker.hint().unwrap_or("add {\"type\": \"firewall\"} to the network's plugins")
        )
    };
    blockers.iter().map(told).collect()
}

/// Warns of what [`warnings`] finds.
pub(crate) fn warn(list: &NetworkList, index: &Index, shell: &Shell) {
    warnings(list, index).into_iter().for_each(|warning| shell.warn(warning));
}

/// Says whether the host routes what a network's containers send beyond it.
pub(crate) fn is_routed(list: &NetworkList) -> bool {
    list.plugins.iter().any(|plugin| {
        let is_true = |key: &str| {
            let raw = plugin.object.get_ignore_case(key);
            raw.and_then(|raw| cni::json::from_raw(raw).ok()).unwrap_or_default()
        };
        match plugins::info(&plugin.plugin_type).map(|info| info.routed) {
            Some(Routed::Always) => true,
            Some(Routed::IfSet(keys)) => keys.iter().any(|key| is_true(key)),
            Some(Routed::Never) | None => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
