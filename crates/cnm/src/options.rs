//! The contents of `Options`, which libnetwork fills from labels of its own.

use std::collections::BTreeMap;

use cni::json::{Object, from_raw};
use serde::{Deserialize, Serialize};

/// The user's `-o` options, a map of texts.
pub const GENERIC: &str = "com.docker.network.generic";
/// Whether the network has IPv4 addresses (recent engines only).
pub const ENABLE_IPV4: &str = "com.docker.network.enable_ipv4";
/// The network has IPv6 addresses.
pub const ENABLE_IPV6: &str = "com.docker.network.enable_ipv6";
/// Whether the network is isolated from outside.
pub const INTERNAL: &str = "com.docker.network.internal";
/// The ports to publish.
pub const PORT_MAP: &str = "com.docker.network.portmap";
/// The ports that are exposed.
pub const EXPOSED_PORTS: &str = "com.docker.network.endpoint.exposedports";
/// The prefix of libnetwork's own keys.
pub const DOCKER_PREFIX: &str = "com.docker.network.";

/// A port to publish (libnetwork types.PortBinding).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct PortBinding {
    /// The protocol's number ([`protocol_name`]).
    pub proto: u8,
    /// The container's address, mostly empty.
    #[serde(rename = "IP")]
    pub ip: String,
    /// The container's port.
    pub port: u16,
    /// The host's address; any if empty.
    #[serde(rename = "HostIP")]
    pub host_ip: String,
    /// The host's port, the first of a range; 0: any.
    pub host_port: u16,
    /// The last of the range.
    pub host_port_end: u16,
}

/// A port that is exposed (libnetwork types.TransportPort).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ExposedPort {
    /// The protocol's number.
    pub proto: u8,
    /// The port.
    pub port: u16,
}

/// Returns the name of a transport protocol by its number (RFC 790's registry), if its ports can be
/// published.
#[must_use]
pub fn protocol_name(number: u8) -> Option<&'static str> {
    match number {
        6 => Some("tcp"),
        17 => Some("udp"),
        132 => Some("sctp"),
        _ => None,
    }
}

/// Returns the number of a transport protocol.
#[must_use]
pub fn protocol_number(name: &str) -> Option<u8> {
    [6, 17, 132].into_iter().find(|number| protocol_name(*number) == Some(name))
}

/// Reads one option; `None` when it is absent.
///
/// # Errors
/// The JSON error if it has another shape.
pub fn option<T: for<'de> Deserialize<'de>>(
    options: &Object,
    key: &str,
) -> Result<Option<T>, cni::json::JsonError> {
    match options.get(key) {
        None => Ok(None),
        Some(raw) if raw.get() == "null" => Ok(None),
        Some(raw) => from_raw(raw).map(Some),
    }
}

/// Reads the user's `-o` options.
///
/// # Errors
/// As [`option`].
pub fn generic(options: &Object) -> Result<BTreeMap<String, String>, cni::json::JsonError> {
    Ok(option(options, GENERIC)?.unwrap_or_default())
}

/// Reads the ports to publish.
///
/// # Errors
/// As [`option`].
pub fn port_map(options: &Object) -> Result<Vec<PortBinding>, cni::json::JsonError> {
    Ok(option(options, PORT_MAP)?.unwrap_or_default())
}
