//! The CNI configuration by which runtimes find the plugin.
//!
//! It is written when pods can be answered, in one step, and never removed: a runtime that finds none takes the next file, and
//! pods would get other networks. That pods cannot be answered any more is STATUS's to say.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use state::Durability;

use super::hotplug::PLUGIN;
use super::service::Service;

/// The pause between looks, and that once it is written: a network may come or change.
const PAUSE: Duration = Duration::from_millis(250);
const LONG_PAUSE: Duration = Duration::from_secs(5);
/// What runtimes can be asked to pass on; they pass on what the configuration has.
const CAPABILITIES: [&str; 6] = ["portMappings", "bandwidth", "ipRanges", "dns", "aliases", "mac"];

/// Writes the file once pods can be answered, and again when what belongs into it changes.
pub(super) async fn run(service: Arc<Service>, path: std::path::PathBuf) {
    let mut written = Vec::new();
    let mut told = String::new();
    loop {
        match service.status() {
            Ok(()) => {
                let text = content(&service);
                if text != written {
                    match write(&path, &text) {
                        Ok(()) => {
                            tracing::info!(path = %path.display(), "pods can be answered");
                            written = text;
                        }
                        Err(error) => tracing::error!(%error, "cannot write the configuration"),
                    }
                }
            }
            Err(refusal) => {
                if refusal.msg != told {
                    tracing::warn!(reason = refusal.msg, "pods cannot be answered");
                    told = refusal.msg;
                }
            }
        }
        tokio::time::sleep(if written.is_empty() { PAUSE } else { LONG_PAUSE }).await;
    }
}

fn write(path: &Path, text: &[u8]) -> Result<(), state::FileError> {
    if state::read_optional(path)?.as_deref() == Some(text) {
        return Ok(());
    }
    state::write_atomic(path, text, 0o600, Durability::Synced)
}

/// The configuration, with the capabilities of the default network.
fn content(service: &Service) -> Vec<u8> {
    let mut plugin = plugin(service);
    let has: Map<String, Value> =
        capabilities(service).into_iter().map(|capability| (capability, json!(true))).collect();
    if !has.is_empty() {
        plugin["capabilities"] = Value::Object(has);
    }
    let list = json!({
        // CNI 1.1.0 "cniVersions": older runtimes take the first, newer ones the best they know.
        "cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"],
        "name": PLUGIN, "plugins": [plugin],
    });
    let mut text = serde_json::to_vec_pretty(&list).unwrap_or_default();
    text.push(b'\n');
    text
}

/// The plugin's configuration, without what the default network brings.
pub(super) fn plugin(service: &Service) -> Value {
    let mut plugin = json!({"type": PLUGIN});
    if let Some(name) = &service.flags.defaults.cluster_network {
        plugin["clusterNetwork"] = json!(name);
    }
    if let Some(dir) = &service.flags.conf_dir {
        plugin["confDir"] = json!(dir);
    }
    if service.flags.socket != Path::new(npwg::wire::SOCKET) {
        plugin["socket"] = json!(service.flags.socket);
    }
    plugin
}

fn capabilities(service: &Service) -> Vec<String> {
    use npwg::definition::Definition;
    let Ok(cluster) = service.flags.defaults.cluster() else { return Vec::new() };
    let (namespace, name) = cluster.definition();
    let defined = service.definitions.get(&format!("{namespace}/{name}"));
    let read = defined.map(|one| Definition::of(&one.name, Some(&one.config)));
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
