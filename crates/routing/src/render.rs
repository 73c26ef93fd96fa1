//! The network configuration that this node's runtimes read.

use std::path::PathBuf;

use ipnet::IpNet;
use serde_json::{Value, json};

use net::IpFamily;

/// What the configuration says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkConfig {
    /// The network's name.
    pub name: String,
    /// How pods are attached.
    pub attach: AttachMode,
    /// The prefixes that pods' addresses are of, at most one of each family.
    ///
    /// An earlier prefix in which pods still live is not among them: it stays routed, and no pod
    /// gets another address of it.
    pub prefixes: Vec<IpNet>,
    /// The MTU of pods, in bytes.
    pub mtu: u32,
    /// Pods start under network policy.
    pub policy: Option<Policy>,
}

/// The network policy that pods start under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Where its service listens; `None` where the plugins look in the default place.
    pub socket: Option<PathBuf>,
}

/// How pods are attached to their node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachMode {
    /// To a bridge of this name.
    Bridge(String),
    /// Each by a pair of its own.
    Ptp,
}

/// Writes the network configuration: a list of plugins.
///
/// Its version is one that every runtime in use reads. The daemon masquerades, so the plugins do
/// not.
#[must_use]
pub fn conflist(config: &NetworkConfig) -> String {
    let range = |prefix: &IpNet| json!([{ "subnet": prefix }]);
    let ranges: Vec<Value> = config.prefixes.iter().map(range).collect();
    let default = |prefix: &IpNet| match IpFamily::of_prefix(*prefix) {
        IpFamily::V4 => json!({ "dst": "0.0.0.0/0" }),
        IpFamily::V6 => json!({ "dst": "::/0" }),
    };
    let routes: Vec<Value> = config.prefixes.iter().map(default).collect();
    let mut interface = match &config.attach {
        AttachMode::Bridge(name) => json!({
            "type": "bridge",
            "bridge": name,
            "isGateway": true,
            "hairpinMode": true,
        }),
        AttachMode::Ptp => json!({ "type": "ptp" }),
    };
    interface["ipMasq"] = json!(false);
    interface["mtu"] = json!(config.mtu);
    interface["ipam"] = json!({ "type": "host-local", "ranges": ranges, "routes": routes });
    if config.policy.is_some() {
        // Runtimes do not say what follows in a list.
        interface[cni::FOLLOWED_BY] = json!(["policy"]);
    }
    let mut plugins = vec![interface];
    if let Some(policy) = &config.policy {
        let mut plugin = json!({ "type": "policy" });
        if let Some(socket) = &policy.socket {
            plugin["socketpath"] = json!(socket);
        }
        plugins.push(plugin);
    }
    plugins.push(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    let list = json!({
        // CNI 1.1.0 "cniVersions": older runtimes take the first; newer ones take the newest they
        // know, and ask STATUS, by which `policy` says that new pods would be closed.
        "cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"],
        "name": config.name, "plugins": plugins,
    });
    let mut text = serde_json::to_string_pretty(&list).expect("JSON is written as JSON");
    text.push('\n');
    text
}
