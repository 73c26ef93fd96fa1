//! flanneld's configuration: a file of this node, or else the ConfigMap that flanneld's pods have
//! it from. A node has the file only if an administrator has put it there.
//!
//! What was read from the API server is kept on the disk: a node that starts while the server is away
//! is to know its cluster.

use std::io::ErrorKind;

use agent::config::{self, RoutingFlannel};
use cluster_client::api_server::{self, CONNECT_TIME};
use cluster_client::objects::{CONFIG_MAP, Collection};
use routing::flannel::config::Config;
use serde_json::Value;
use service_kit::asynchronous::runtime;
use service_kit::stop::{Stop, words};

use super::cluster_nodes::MANAGER;
use super::files::Disk;

/// The key says so where there is no ConfigMap.
const NO_MAP: &str = "none";

/// The file in the ConfigMap (flannel's manifest, `kube-flannel-cfg`).
const FILE: &str = "net-conf.json";

/// Reads the configuration.
///
/// # Errors
/// Why there is none, or what is wrong with it, in a sentence.
pub(super) fn read(config: &config::Routing, disk: &Disk) -> Result<Config, String> {
    let path = &config.flannel_config;
    let shown = path.display();
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text, &shown.to_string()),
        Err(error)
            if error.kind() == ErrorKind::NotFound && config.flannel_config_map != NO_MAP =>
        {
            of_cluster(config, disk)
                .map_err(|why| format!("{why}; and {shown} is not there either"))
        }
        Err(error) => Err(format!("read flanneld's configuration {shown}: {error}")),
    }
}

fn parse(text: &str, from: &str) -> Result<Config, String> {
    Config::read(text)
        .map_err(|(key, cause)| format!("flanneld's configuration {from}: {key}: {cause}"))
}

/// Reads it from the cluster, or what the cluster said last.
fn of_cluster(config: &config::Routing, disk: &Disk) -> Result<Config, String> {
    let from = format!("ConfigMap {}", config.flannel_config_map);
    let why = match ask(config) {
        Ok(text) => {
            let read = parse(&text, &from)?;
            // On standby nothing is written.
            if config.flannel.0 == RoutingFlannel::Replace
                && let Err(error) = disk.write_configuration(&text)
            {
                tracing::warn!(%error, "flanneld's configuration is not kept");
            }
            return Ok(read);
        }
        Err(why) => format!("read flanneld's configuration from {from}: {why}"),
    };
    let text = match disk.configuration() {
        Ok(Some(text)) => text,
        Ok(None) => return Err(why),
        Err(damaged) => return Err(format!("{why}; and {damaged}")),
    };
    let read = parse(&text, "on the disk")?;
    tracing::warn!(why, "the configuration that was read last is used");
    Ok(read)
}

/// Asks the API server for the text.
fn ask(config: &config::Routing) -> Result<String, String> {
    let (namespace, name) = config.flannel_config_map.split_once('/').unwrap_or_default();
    let runtime = runtime(1).map_err(|stop| match stop {
        Stop::Failed(why) => why,
        _ => "there is no runtime".to_owned(),
    })?;
    let found: Value = runtime.block_on(async {
        let client = api_server::client(config.kubeconfig.as_deref(), CONNECT_TIME, false).await;
        let client = client.map_err(|error| words(&error))?;
        let maps = Collection::of_namespace(&client, CONFIG_MAP, namespace, MANAGER);
        maps.get(name).await.map_err(|error| words(&error))
    })?;
    let text = found["data"][FILE].as_str();
    text.map(str::to_owned).ok_or_else(|| format!("it has no {FILE}"))
}
