//! What is configured and runs on the node.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A network that is configured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// The file.
    pub file: Option<String>,
    /// The types of its plugins, in order.
    pub plugins: Vec<String>,
    /// The bridge or parent link that its first plugin names.
    pub link: Option<String>,
    /// The subnets of its address pool.
    pub subnets: Vec<IpNet>,
    /// The gateways of its configuration.
    pub gateways: Vec<IpAddr>,
    /// The MTU that its configuration asks for.
    pub mtu: Option<u32>,
    /// What flanneld says of it, if it is a network of flannel's.
    pub overlay: Option<Overlay>,
    /// Whether its containers are to reach beyond the host: it is a gateway, or translates sources.
    pub outbound: bool,
    /// Whether the host is the gateway of its containers.
    pub routed: bool,
    /// The default routes that its configuration asks for: of IPv4, of IPv6, or of both.
    pub default_routes: Vec<IpNet>,
    /// Why a container could not be attached now; `None` if it could be, or if that is not known.
    pub refusal: Option<String>,
    /// What does not stop ADD, but will be missing.
    pub warnings: Vec<String>,
}

/// A network that all nodes of a cluster have a part of, as flanneld's file describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Overlay {
    /// The file.
    pub file: String,
    /// The ranges of all nodes.
    pub ranges: Vec<IpNet>,
    /// This node's part of them.
    pub own: Vec<IpNet>,
    /// The MTU of its containers' interfaces, in bytes.
    pub mtu: u32,
}

/// A plugin that a network names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Plugin {
    /// Its type.
    pub plugin_type: String,
    /// The executable, if there is one.
    pub path: Option<String>,
    /// Whether it is one of ours.
    pub ours: bool,
    /// The versions of CNI that it speaks.
    pub versions: Vec<String>,
    /// Why it cannot be used.
    pub error: Option<String>,
    /// The plugin of nearly this name that is there, if this one is not.
    pub near: Option<String>,
}

/// An address pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pool {
    /// Its network.
    pub network: String,
    /// The folder of its reservations.
    pub folder: String,
    /// How many addresses are taken.
    pub used: u64,
    /// How many there are; `None` if that is too many to count.
    pub size: Option<u64>,
    /// Whether the folder can be written.
    pub writable: bool,
    /// Who holds its addresses; `None`: that was not read, as enough are free.
    pub holders: Option<PoolHolders>,
}

/// Who holds the addresses of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolHolders {
    /// How many are held by attachments that are recorded, and whose containers are gone.
    pub gone: u64,
    /// How many are held for containers of which no attachment to the network is recorded.
    pub unrecorded: u64,
    /// Some of these attachments: container ID and interface, as far as its file names that.
    pub some: Vec<(String, Option<String>)>,
}

/// A folder that an ADD writes to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Folder {
    /// Its path.
    pub path: String,
    /// What it holds, in words.
    pub holds: String,
    /// Why no process can write to it; `None` if no reason is known.
    pub trouble: Option<String>,
}

/// A service of `netwrightd`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Whether the configuration enables it.
    pub enabled: bool,
    /// Whether it runs and is ready; `None` if that cannot be seen.
    pub ready: Option<bool>,
    /// What it lacks, as it last said.
    pub lacks: Option<String>,
}

/// A program of the node that changes its network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Program {
    /// Its name here: `firewalld`, `dockerd`, `kube-proxy`, `NetworkManager`, …
    pub name: String,
    /// Its process.
    pub pid: u32,
}
