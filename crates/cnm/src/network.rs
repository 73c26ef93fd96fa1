//! The messages of `NetworkDriver` (moby libnetwork/drivers/remote/api).

use std::collections::BTreeMap;

use cni::json::Object;
use serde::{Deserialize, Serialize};

/// The answer to `Plugin.Activate`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ActivateAnswer {
    /// The interfaces: `NetworkDriver`, `IpamDriver` and others.
    pub implements: Vec<String>,
}

/// The answer to `GetCapabilities`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Capabilities {
    /// `local` or `global`: where networks are kept.
    pub scope: String,
    /// `local` or `global`: how far endpoints reach; if empty, the same as the scope.
    pub connectivity_scope: String,
    /// Whether to ask [`GwAllocCheck`].
    pub gw_alloc_checker: bool,
}

/// IPAM's allocation for a network, for one pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct IpamData {
    /// The address space of the pool.
    pub address_space: String,
    /// The pool, with its prefix length.
    pub pool: String,
    /// The gateway, with the pool's prefix length.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway: String,
    /// Further addresses that the network must not assign, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub aux_addresses: BTreeMap<String, String>,
}

/// Creates a network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct CreateNetwork {
    /// The network: 64 hexadecimal digits, or 25 other characters in a swarm.
    #[serde(rename = "NetworkID")]
    pub network_id: String,
    /// See [`crate::options`].
    pub options: Object,
    /// The IPv4 pools.
    #[serde(rename = "IPv4Data")]
    pub ipv4: Vec<IpamData>,
    /// The IPv6 pools.
    #[serde(rename = "IPv6Data")]
    pub ipv6: Vec<IpamData>,
}

/// Reserves a global network's resources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocateNetwork {
    /// The network.
    #[serde(rename = "NetworkID")]
    pub network_id: String,
    /// The user's `-o` options.
    pub options: BTreeMap<String, String>,
    /// The IPv4 pools.
    #[serde(rename = "IPv4Data")]
    pub ipv4: Vec<IpamData>,
    /// The IPv6 pools.
    #[serde(rename = "IPv6Data")]
    pub ipv6: Vec<IpamData>,
}

/// The answer: options for `CreateNetwork` on every node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocateAnswer {
    /// The options.
    pub options: BTreeMap<String, String>,
}

/// Asks whether gateways should come from IPAM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct GwAllocCheck {
    /// As in [`CreateNetwork`].
    pub options: Object,
}

/// The answer to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GwAllocAnswer {
    /// No IPv4 gateway is wanted.
    #[serde(rename = "SkipIPv4")]
    pub skip_ipv4: bool,
    /// No IPv6 gateway is wanted.
    #[serde(rename = "SkipIPv6")]
    pub skip_ipv6: bool,
}

/// Names a network: `DeleteNetwork`, `FreeNetwork`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkName {
    /// The network.
    #[serde(rename = "NetworkID")]
    pub network_id: String,
}

/// Names an endpoint: `DeleteEndpoint`, `Leave`, `EndpointOperInfo`, `RevokeExternalConnectivity`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointName {
    /// The network.
    #[serde(rename = "NetworkID")]
    pub network_id: String,
    /// The endpoint: 64 hexadecimal digits.
    #[serde(rename = "EndpointID")]
    pub endpoint_id: String,
}

/// An endpoint's interface. An answer may set only what the request left empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct EndpointInterface {
    /// The IPv4 address with its prefix length.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// The IPv6 address with its prefix length.
    #[serde(rename = "AddressIPv6", skip_serializing_if = "String::is_empty")]
    pub address_ipv6: String,
    /// The hardware address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac_address: String,
}

/// Creates an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct CreateEndpoint {
    /// The network.
    #[serde(rename = "NetworkID")]
    pub network_id: String,
    /// The endpoint.
    #[serde(rename = "EndpointID")]
    pub endpoint_id: String,
    /// What the engine has decided.
    pub interface: Option<EndpointInterface>,
    /// See [`crate::options`].
    pub options: Object,
}

/// The answer to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct CreatedEndpoint {
    /// What the driver has decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<EndpointInterface>,
}

/// The answer to `EndpointOperInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct OperInfo {
    /// The endpoint's state.
    pub value: BTreeMap<String, String>,
}

/// Joins an endpoint to a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Join {
    /// The network.
    #[serde(rename = "NetworkID")]
    pub network_id: String,
    /// The endpoint.
    #[serde(rename = "EndpointID")]
    pub endpoint_id: String,
    /// The path of the sandbox's namespace, which older engines create only afterwards.
    pub sandbox_key: String,
    /// See [`crate::options`].
    pub options: Object,
}

/// The link an engine moves into the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct InterfaceName {
    /// Its name on the host.
    pub src_name: String,
    /// The prefix of its name in the sandbox; the engine appends a number.
    pub dst_prefix: String,
}

/// A route of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct StaticRoute {
    /// Where to.
    pub destination: String,
    /// [`StaticRoute::NEXT_HOP`] or [`StaticRoute::CONNECTED`].
    pub route_type: u8,
    /// The next hop of the first kind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next_hop: String,
}

impl StaticRoute {
    /// Through a next hop.
    pub const NEXT_HOP: u8 = 0;
    /// On the link itself.
    pub const CONNECTED: u8 = 1;
}

/// The answer to [`Join`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JoinAnswer {
    /// The link; without one the engine changes no link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// The IPv4 gateway.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway: String,
    /// The IPv6 gateway.
    #[serde(rename = "GatewayIPv6", skip_serializing_if = "String::is_empty")]
    pub gateway_ipv6: String,
    /// Further routes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub static_routes: Vec<StaticRoute>,
    /// Prevents a second interface on `docker_gwbridge` when there is no gateway.
    pub disable_gateway_service: bool,
}

/// The endpoint is its sandbox's gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ExternalConnectivity {
    /// The network.
    #[serde(rename = "NetworkID")]
    pub network_id: String,
    /// The endpoint.
    #[serde(rename = "EndpointID")]
    pub endpoint_id: String,
    /// See [`crate::options`].
    pub options: Object,
}
