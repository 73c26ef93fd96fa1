//! Checks whether the host forwards what a network's containers send beyond it.
//!
//! A `firewall` plugin in the list lets traffic pass where a chain of another program drops
//! forwarded packets. A plugin cannot check whether `firewall` is there: it sees its own
//! configuration, not the list. So the command line warns.

use cni::{AddResult, NetworkList};
use firewall::forward::{self, Sender};
use ipnet::IpNet;
use plugins::judge;
use state::Index;

use crate::shell::Shell;

/// The plugin that lets the traffic pass, or itself reports that it cannot.
const OPENER: &str = plugins::chained::firewall::INFO.name;

/// The plugin of bridges, and the name of one where none is given.
const BRIDGE: &str = plugins::interface::bridge::INFO.name;
const USUAL_BRIDGE: &str = "cni0";

/// Returns what will surely drop the packets that a network's containers send beyond the host, or
/// those of the container that has this result; empty when nothing does.
pub(crate) fn warnings(
    list: &NetworkList,
    result: Option<&AddResult>,
    index: &Index,
) -> Vec<String> {
    if !judge::is_routed(list) || list.plugins.iter().any(|plugin| plugin.plugin_type == OPENER) {
        return Vec::new();
    }
    // Best effort: ADD has succeeded without this check.
    let bridges = bridges(list);
    let sender = match result {
        Some(result) => sender(result),
        None => Sender { links: bridges.iter().map(String::as_str).collect(), sources: Vec::new() },
    };
    let dropping = forward::blockers(index, &sender).unwrap_or_default();
    let told = |blocker: &forward::Blocker| {
        format!(
            "containers on network {:?} may not reach beyond this host: {blocker}; {}",
            list.name,
            blocker.hint().unwrap_or("add {\"type\": \"firewall\"} to the network's plugins")
        )
    };
    dropping.iter().filter(|drops| drops.is_certain).map(|drops| told(&drops.blocker)).collect()
}

/// Warns of what [`warnings`] finds for a container that was attached.
pub(crate) fn warn(list: &NetworkList, result: &AddResult, index: &Index, shell: &Shell) {
    warnings(list, Some(result), index).into_iter().for_each(|warning| shell.warn(warning));
}

/// Returns the bridges that a list names. The gateway of a VLAN is another link.
fn bridges(list: &NetworkList) -> Vec<String> {
    let bridges = list.plugins.iter().filter(|plugin| plugin.plugin_type == BRIDGE);
    let own = bridges.filter(|plugin| plugin.object.get_ignore_case("vlan").is_none());
    let name = |plugin: &cni::PluginConfig| {
        let raw = plugin.object.get_ignore_case("bridge")?;
        cni::json::from_raw(raw).ok()
    };
    own.map(|plugin| name(plugin).unwrap_or_else(|| USUAL_BRIDGE.to_owned())).collect()
}

fn sender(result: &AddResult) -> Sender<'_> {
    let links = result.interfaces.iter().filter(|link| link.sandbox.is_empty());
    Sender {
        links: links.map(|link| link.name.as_str()).collect(),
        sources: result.ips.iter().map(|ip| IpNet::from(ip.address.addr())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_its_bridge() {
        for (plugin, named) in [
            (r#"{"type": "bridge"}"#, vec!["cni0"]),
            (r#"{"type": "bridge", "bridge": "br1"}"#, vec!["br1"]),
            (r#"{"type": "bridge", "bridge": "br1", "vlan": 7}"#, vec![]),
            (r#"{"type": "ptp"}"#, vec![]),
        ] {
            let list = format!(r#"{{"cniVersion": "1.1.0", "name": "n", "plugins": [{plugin}]}}"#);
            let list = NetworkList::parse(list.as_bytes()).unwrap();
            assert_eq!(bridges(&list), named, "{plugin}");
        }
    }
}
