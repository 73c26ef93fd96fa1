//! A container and what connects it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::model::namespace::{Namespace, Transport};

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Its ID, as the runtime gave it.
    pub id: String,
    /// Its pod, as `NAMESPACE/POD`, or the name that its runtime has for it.
    pub name: Option<String>,
    /// The path of its network namespace.
    pub netns: String,
    /// Whether that namespace exists; `None` if we cannot see that.
    pub alive: Option<bool>,
    /// The namespace; `None` if it could not be read.
    pub inside: Option<Namespace>,
    /// The servers of its resolv.conf; `None` if that could not be read.
    pub nameservers: Option<Vec<IpAddr>>,
    /// What other files of it say of names.
    pub names: NameFiles,
    /// Its attachments.
    pub attachments: Vec<Attachment>,
}

/// What a container's files say of names, besides the servers. Files that it has in common with
/// the node are left out, but for resolv.conf.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NameFiles {
    /// Where programs of the C library look for hosts, in the words of nsswitch.conf: `files dns`.
    pub sources: Option<String>,
    /// The addresses that its hosts file has for `localhost`.
    pub localhost: Vec<IpAddr>,
    /// The name that it has for itself.
    pub own: Option<String>,
    /// The addresses that its hosts file has for that name.
    pub own_addresses: Vec<IpAddr>,
    /// A line of its resolv.conf that names a server ends with a carriage return.
    pub carriage_return: bool,
    /// The domains of its resolv.conf below which programs look for a name.
    pub search: Vec<String>,
    /// How many dots a name needs so that programs look for it as it is first (`options ndots` of
    /// its resolv.conf); `None`: one.
    pub ndots: Option<u8>,
    /// Programs ask servers by TCP alone (`options use-vc` of its resolv.conf).
    pub by_tcp: bool,
}

/// A container's attachment to a network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Attachment {
    /// The network.
    pub network: String,
    /// The interface in the container.
    pub ifname: String,
    /// The types of the plugins that made it.
    pub plugins: Vec<String>,
    /// The addresses that ADD reported.
    pub addresses: Vec<IpNet>,
    /// The gateways that ADD reported.
    pub gateways: Vec<IpAddr>,
    /// The default routes that ADD reported.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub default_routes: Vec<IpNet>,
    /// The hardware address that ADD reported.
    pub mac: Option<String>,
    /// The host's links that ADD reported, such as the bridge and the veth's other end.
    pub host_links: Vec<String>,
    /// Ports of the host that lead to it.
    pub ports: Vec<Port>,
    /// Labels of the container for plugins.
    pub labels: BTreeMap<String, String>,
    /// When ADD completed, in seconds since 1970.
    pub since_s: Option<u64>,
    /// How it differs from what ADD made, as CHECK reports it; empty if it is sound.
    pub drifts: Vec<Drift>,
    /// Its ADD did not complete and is no longer running, and what it made may be left.
    pub unfinished: Option<UnfinishedAdd>,
    /// Why it was not compared; `None` if it was.
    pub not_checked: Option<String>,
    /// It is of a container of Docker's: only `netwrightd repair` compares and repairs it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dockers: bool,
    /// Other plugins than Netwright's attached it: a repair restores only what ours made.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_others: bool,
    /// What Open vSwitch drops of it, as its daemon says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub switch_drops: Vec<SwitchDrop>,
}

/// A packet from a container that Open vSwitch drops (`ofproto/trace`, `man 8 ovs-vswitchd`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SwitchDrop {
    /// The bridge.
    pub bridge: String,
    /// The packet in words.
    pub packet: String,
    /// The address that the packet is for, or that it asks for.
    pub to: Option<IpAddr>,
    /// The table and the flow that decide, in the daemon's words.
    pub flow: String,
}

/// A published port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// The protocol.
    pub transport: Transport,
    /// The port of the host.
    pub host: u16,
    /// The address of the host; `None` is every address.
    pub host_ip: Option<IpAddr>,
    /// The port of the container.
    pub container: u16,
}

/// A difference between what is there and what ADD made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// The plugin that reports it.
    pub plugin: String,
    /// The error's code.
    pub code: u32,
    /// What differs.
    pub what: String,
    /// More of it.
    pub details: String,
    /// Each thing that differs; empty if the plugin reports that only in words.
    #[serde(default)]
    pub items: Vec<Item>,
}

/// One thing that differs from what ADD made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Item {
    /// What it is.
    pub kind: ItemKind,
    /// How it differs, in one clause.
    pub what: String,
    /// Whether it is the node's; otherwise it is in the container's namespace.
    pub host: bool,
    /// The link that it is about.
    pub link: Option<String>,
    /// The addresses, or the destination of the route, that it is about.
    pub addresses: Vec<IpNet>,
    /// The kernel parameters, such as `net/ipv4/conf/eth0/arp_filter`.
    pub sysctls: Vec<String>,
    /// No plugin but Netwright's ever makes what is missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ours: bool,
    /// It is of hairpin mode: of what the container sends to itself by a port of the node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hairpin: bool,
}

/// What differs from what ADD made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ItemKind {
    /// Which link it is, and whether it is up.
    Link,
    /// A hardware address.
    Mac,
    /// An MTU.
    Mtu,
    /// A value of a link that does not stop packets: its queue, its owner's mark.
    Setting,
    /// Kernel parameters.
    Sysctls,
    /// An address.
    Address,
    /// Addresses of gateways.
    Gateways,
    /// A route.
    Route,
    /// A neighbour entry.
    Neighbour,
    /// A bridge.
    Bridge,
    /// A port of a bridge or of a switch.
    Port,
    /// The link-local IPv6 address of a link.
    LinkLocal,
    /// Whether the node forwards.
    Forwarding,
    /// Translation and filters of our own.
    Filter,
    /// Filters of other programs that must let packets pass.
    Foreign,
    /// Published ports.
    HostPorts,
    /// A routing rule, or a table that such a rule asks.
    PolicyRoute,
    /// Limits of rates.
    Shaping,
    /// A routing domain.
    Vrf,
    /// Network policy.
    Policy,
    /// Anything else.
    #[default]
    Other,
}

/// An ADD that did not complete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UnfinishedAdd {
    /// The error, in the plugin's words; `None` if it was not recorded: ADD was killed, or another
    /// runtime ran it.
    pub error: Option<String>,
}

impl Container {
    /// Returns what people call it: its name, or its ID.
    #[must_use]
    pub fn called(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }
}

impl Attachment {
    /// Says whether a plugin made it, or a part of it.
    #[must_use]
    pub fn has_plugin(&self, plugin_type: &str) -> bool {
        self.plugins.iter().any(|own| own == plugin_type)
    }
}
