//! The messages of `IpamDriver` (moby libnetwork/ipams/remote/api).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The key of [`RequestAddress::options`] with the purpose of an address.
pub const ADDRESS_TYPE: &str = "RequestAddressType";
/// Its value for a gateway, and the key of [`Pool::data`] under which a pool passes its own.
pub const GATEWAY: &str = "com.docker.network.gateway";
/// The key of [`RequestAddress::options`] with the container's name (recent engines only).
pub const ENDPOINT_NAME: &str = "com.docker.network.endpoint.name";
/// The key of [`RequestAddress::options`] with the hardware address, for drivers that require it.
pub const ENDPOINT_MAC: &str = "com.docker.network.endpoint.macaddress";

/// The answer to `GetCapabilities`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Whether a request for an address must contain the hardware address it is for.
    #[serde(rename = "RequiresMACAddress")]
    pub requires_mac_address: bool,
    /// Whether the engine, when it starts, requests again what it holds.
    #[serde(rename = "RequiresRequestReplay")]
    pub requires_request_replay: bool,
}

/// The answer to `GetDefaultAddressSpaces`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AddressSpaces {
    /// For networks of this node.
    pub local_default_address_space: String,
    /// For networks of a cluster.
    pub global_default_address_space: String,
}

/// Requests a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RequestPool {
    /// The space in which pools must not overlap.
    pub address_space: String,
    /// The pool; any when empty.
    pub pool: String,
    /// The part of it from which addresses are assigned.
    pub sub_pool: String,
    /// The user's `--ipam-opt` options.
    pub options: BTreeMap<String, String>,
    /// An IPv6 pool is wanted.
    #[serde(rename = "V6")]
    pub v6: bool,
}

/// The answer to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Pool {
    /// Its ID from now on.
    #[serde(rename = "PoolID")]
    pub pool_id: String,
    /// The pool.
    pub pool: String,
    /// Additional data, for example the gateway.
    pub data: BTreeMap<String, String>,
}

/// Releases a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReleasePool {
    /// The pool.
    #[serde(rename = "PoolID")]
    pub pool_id: String,
}

/// Requests an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RequestAddress {
    /// The pool.
    #[serde(rename = "PoolID")]
    pub pool_id: String,
    /// The address; any when empty.
    pub address: String,
    /// See [`ADDRESS_TYPE`] and the keys beside it.
    pub options: BTreeMap<String, String>,
}

/// The answer to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Address {
    /// The address with its prefix length.
    pub address: String,
    /// Additional data.
    pub data: BTreeMap<String, String>,
}

/// Releases an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ReleaseAddress {
    /// The pool.
    #[serde(rename = "PoolID")]
    pub pool_id: String,
    /// The address, without a prefix length.
    pub address: String,
}
