//! The CNI configuration by which runtimes find the plugin.
//!
//! The daemon writes it once it can answer pods, in one step, and never removes it: a runtime that
//! finds none takes the next file, and pods would get other networks. For the same reason the
//! daemon restores the file as long as it runs, when another program removes or changes it. If the
//! daemon can no longer answer pods, STATUS reports that.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plugins::netwright_multi;
use serde_json::{Map, Value, json};
use state::Durability;

use super::service::Service;

/// The pause before it is written for the first time.
const FIRST_WRITE_DELAY: Duration = Duration::from_millis(250);
/// The pause between checks of the file: after another program removed it, a pod may start with
/// another network for that long.
const LOOK: Duration = Duration::from_secs(1);
/// How many checks of the file there are between two checks of its content: a network may come or
/// change.
const LOOKS: u32 = 5;
/// What runtimes can be asked to pass on; they pass on the capabilities in the configuration.
const CAPABILITIES: [&str; 6] = ["portMappings", "bandwidth", "ipRanges", "dns", "aliases", "mac"];

/// Writes the file once pods can be served, and again when its content is to change or the file
/// has changed.
pub(super) async fn run(service: Arc<Service>, path: std::path::PathBuf) {
    let mut wanted = Vec::new();
    let mut written = Vec::new();
    let (mut refused, mut failed) = (String::new(), String::new());
    for look in 0_u32.. {
        if wanted.is_empty() || look % LOOKS == 0 {
            match service.status() {
                Ok(()) => wanted = content(&service),
                Err(refusal) if refusal.msg != refused => {
                    tracing::warn!(reason = refusal.msg, "pods cannot be served");
                    refused = refusal.msg;
                }
                Err(_) => {}
            }
        }
        if !wanted.is_empty() && !is_there(&path, &wanted) {
            match state::publish(&path, &wanted, 0o600, Durability::Synced) {
                Ok(()) if written == wanted => {
                    tracing::warn!(path = %path.display(), "put back: another program removed or changed it");
                }
                Ok(()) => tracing::info!(path = %path.display(), "pods can be served"),
                Err(error) if error.to_string() != failed => {
                    tracing::error!(%error, "cannot write the configuration");
                    failed = error.to_string();
                }
                Err(_) => {}
            }
        }
        if is_there(&path, &wanted) {
            written.clone_from(&wanted);
            failed.clear();
        }
        tokio::time::sleep(if wanted.is_empty() { FIRST_WRITE_DELAY } else { LOOK }).await;
    }
}

/// Says whether the file has the wanted content. It reads the file: another program may have
/// changed it.
fn is_there(path: &Path, wanted: &[u8]) -> bool {
    state::read_optional(path).is_ok_and(|found| found.as_deref() == Some(wanted))
}

/// Returns the configuration, with the capabilities of the default network.
fn content(service: &Service) -> Vec<u8> {
    let mut plugin = plugin(service);
    let mut wanted = capabilities(service);
    if says_nothing_of_plain_pods(service) {
        plugin["plainPodsWithoutDaemon"] = json!(true);
        wanted.push(netwright_multi::POD_ANNOTATIONS.to_owned());
    }
    let has: Map<String, Value> =
        wanted.into_iter().map(|capability| (capability, json!(true))).collect();
    if !has.is_empty() {
        plugin["capabilities"] = Value::Object(has);
    }
    let list = json!({
        // CNI 1.1.0 "cniVersions": older runtimes take the first, newer ones the newest they know.
        "cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"],
        "name": netwright_multi::INFO.name, "plugins": [plugin],
    });
    let mut text = serde_json::to_vec_pretty(&list).unwrap_or_default();
    text.push(b'\n');
    text
}

/// Returns the plugin's configuration, without the capabilities of the default network.
pub(super) fn plugin(service: &Service) -> Value {
    let mut plugin = json!({"type": netwright_multi::INFO.name});
    if let Some(name) = &service.flags.defaults.cluster_network {
        plugin["clusterNetwork"] = json!(name);
    }
    if let Some(dir) = &service.flags.conf_dir {
        plugin["confDir"] = json!(dir);
    }
    if service.flags.socket != Path::new(node_api::multinet::SOCKET) {
        plugin["socket"] = json!(service.flags.socket);
    }
    plugin
}

/// Reports whether a pod that asks for no network gets nothing but a network that the node has
/// itself.
fn says_nothing_of_plain_pods(service: &Service) -> bool {
    let defaults = &service.flags.defaults;
    let Ok(cluster) = defaults.cluster() else { return false };
    let (namespace, name) = cluster.definition();
    let name_on_node = defaults.cluster_network.as_deref().unwrap_or_default();
    defaults.default_networks.is_empty()
        && service.definitions.is_usable()
        && service.definitions.get(&format!("{namespace}/{name}")).is_none()
        && service.is_on_node(name_on_node)
}

fn capabilities(service: &Service) -> Vec<String> {
    use npwg::definition::Definition;
    let Ok(cluster) = service.flags.defaults.cluster() else { return Vec::new() };
    let (namespace, name) = cluster.definition();
    let defined = service.definitions.get(&format!("{namespace}/{name}"));
    let read = defined
        .map(|one| Definition::of(&one.name, Some(&one.config), &netwright_multi::is_called_by));
    let on_node = match read {
        Some(Ok(Definition::Here(list))) => {
            let list = cni::NetworkList::parse(&list.to_vec());
            return list.map(|list| wanted(&list)).unwrap_or_default();
        }
        Some(Ok(Definition::OnNode(name))) => name,
        _ => service.flags.defaults.cluster_network.clone().unwrap_or_default(),
    };
    service.on_node(&on_node).map(|list| wanted(&list)).unwrap_or_default()
}

fn wanted(list: &cni::NetworkList) -> Vec<String> {
    let all = list.plugins.iter().flat_map(|plugin| plugin.capabilities.iter().cloned());
    let mut known: Vec<String> = all.filter(|one| CAPABILITIES.contains(&one.as_str())).collect();
    known.sort();
    known.dedup();
    known
}
