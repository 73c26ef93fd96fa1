//! One network that a pod selects, with its requests on it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::IfName;
use cni::json::{self, Object};
use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest label of a name (RFC 1123).
const LABEL_MAX: usize = 63;

/// The longest name of a Kubernetes object (RFC 1123 as Kubernetes applies it).
const NAME_MAX: usize = 253;

/// The keys of an element (NPWG v1.3 §4.1.2.1, and those that Multus added).
const KEYS: [&str; 13] = [
    "name",
    "namespace",
    "interface",
    "interfaceRequest",
    "ips",
    "mac",
    "infiniband-guid",
    "cni-args",
    "portMappings",
    "bandwidth",
    "default-route",
    "ipam-claim-reference",
    "deviceID",
];

/// A network that a pod selects, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The namespace of its definition.
    pub namespace: String,
    /// The name of its definition.
    pub name: String,
    /// The interface in the pod.
    pub interface: Option<IfName>,
    /// The requested addresses, as written: with or without a prefix length.
    pub ips: Vec<String>,
    /// The requested hardware address: 6 bytes, or 20 of IP over InfiniBand, in pairs of digits
    /// with colons.
    pub mac: Option<String>,
    /// The requested InfiniBand GUID: 8 bytes, written the same way.
    pub infiniband_guid: Option<String>,
    /// For `args.cni` of each of the network's plugins.
    pub cni_args: Option<Object>,
    /// Ports of the host.
    pub port_mappings: Vec<PortMapping>,
    /// Limits.
    pub bandwidth: Option<Bandwidth>,
    /// Gateways of the default route that goes by this network; an empty list requests no default
    /// route by it.
    pub default_route: Option<Vec<IpAddr>>,
    /// The claim, in the pod's namespace, whose addresses it gets.
    pub ipam_claim: Option<String>,
    /// A device to use instead of the next allocated one.
    pub device_id: Option<String>,
    /// Unknown keys: misspelt, or private.
    pub unknown_keys: Vec<String>,
}

/// A port of the host that leads to one of the pod's (CNI conventions, `portMappings`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PortMapping {
    /// The host's.
    pub host_port: u32,
    /// The pod's.
    pub container_port: u32,
    /// `tcp`, `udp` or `sctp`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// The host's address; empty means all of them.
    #[serde(rename = "hostIP", skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
}

/// Limits (CNI conventions, `bandwidth`). Rates are in bits per second, bursts in bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Bandwidth {
    /// To the pod.
    #[serde(skip_serializing_if = "is_zero")]
    pub ingress_rate: u64,
    /// To the pod, at once.
    #[serde(skip_serializing_if = "is_zero")]
    pub ingress_burst: u64,
    /// From the pod.
    #[serde(skip_serializing_if = "is_zero")]
    pub egress_rate: u64,
    /// From the pod, at once.
    #[serde(skip_serializing_if = "is_zero")]
    pub egress_burst: u64,
}

/// Why an element is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElementError {
    /// It has no name.
    #[error("needs \"name\": that of a NetworkAttachmentDefinition")]
    NoName,
    /// A name contains the namespace too.
    #[error("\"name\" holds a slash: the namespace has a key of its own, \"namespace\"")]
    NamespaceInName,
    /// A name or namespace cannot be that of a Kubernetes object.
    #[error(
        "{key:?}: {text:?} cannot be the name of an object: small letters, digits and inner hyphens"
    )]
    NotAName {
        /// Its key.
        key: &'static str,
        /// The value.
        text: String,
    },
    /// A value is of the wrong type.
    #[error("{key:?} must be {wanted}, not {found}")]
    WrongType {
        /// Its key.
        key: &'static str,
        /// The expected type.
        wanted: &'static str,
        /// The value.
        found: String,
    },
    /// It is not a valid interface name.
    #[error("\"interface\": {text:?} cannot be the name of an interface: {reason}")]
    Interface {
        /// The value.
        text: String,
        /// Why.
        reason: String,
    },
    /// A list in a request is empty.
    #[error("{0:?} is an empty list: leave it out")]
    Empty(&'static str),
    /// A value that must be an address is not one.
    #[error("\"ips\": {0:?} is neither an address nor an address with a prefix length")]
    NotAnAddress(String),
    /// An address is requested twice.
    #[error("\"ips\": {0} is there twice")]
    TwiceTheAddress(IpAddr),
    /// A value that must be a hardware address is not one.
    #[error(
        "\"mac\": {0:?} is not a hardware address of 6 bytes, or of 20 for InfiniBand, in hexadecimal"
    )]
    NotAMac(String),
    /// No interface can have the hardware address.
    #[error("\"mac\": {0:?} cannot be an interface's own: it is zero, or a group's")]
    NoOnesMac(String),
    /// A value that must be a GUID is not one.
    #[error("\"infiniband-guid\": {0:?} is not a GUID of 8 bytes in hexadecimal")]
    NotAGuid(String),
    /// A port is none.
    #[error("\"portMappings\": {key:?} must be 1 to 65535, not {port}")]
    NotAPort {
        /// Which.
        key: &'static str,
        /// The value.
        port: u32,
    },
    /// A protocol has no ports.
    #[error("\"portMappings\": \"protocol\" must be tcp, udp or sctp, not {0:?}")]
    NotAProtocol(String),
    /// The host's address is none.
    #[error("\"portMappings\": \"hostIP\": {0:?} is not an address")]
    NotAHostIp(String),
    /// A gateway is not an address.
    #[error("\"default-route\": {0:?} is not the address of a gateway")]
    NotAGateway(String),
    /// A family has several gateways.
    #[error(
        "\"default-route\": {0} and {1} are of one family: a default route leads through one gateway"
    )]
    TwoGateways(IpAddr, IpAddr),
    /// Addresses are requested in two ways.
    #[error("\"ips\" and \"ipam-claim-reference\" exclude each other: the claim has the addresses")]
    IpsAndClaim,
}

impl Selection {
    /// Builds a selection from the parts of the short form.
    ///
    /// # Errors
    /// [`ElementError`].
    pub fn named(
        namespace: Option<&str>,
        name: &str,
        interface: Option<&str>,
    ) -> Result<Self, ElementError> {
        label("name", name)?;
        if let Some(namespace) = namespace {
            label("namespace", namespace)?;
        }
        Ok(Selection {
            namespace: namespace.unwrap_or_default().to_owned(),
            name: name.to_owned(),
            interface: interface.map(ifname).transpose()?,
            ..Selection::default()
        })
    }

    /// Reads an element of the JSON form.
    ///
    /// # Errors
    /// [`ElementError`].
    pub fn of(element: &Object) -> Result<Self, ElementError> {
        let text =
            |key| read::<String>(element, key, "a text").map(|text| text.filter(|t| !t.is_empty()));
        let name = text("name")?.ok_or(ElementError::NoName)?;
        if name.contains('/') {
            return Err(ElementError::NamespaceInName);
        }
        subdomain("name", &name)?;
        let namespace = text("namespace")?.unwrap_or_default();
        if !namespace.is_empty() {
            label("namespace", &namespace)?;
        }
        // The older key counts if the newer is absent (Multus before 3.2).
        let asked = match text("interface")? {
            Some(asked) => Some(asked),
            None => text("interfaceRequest")?,
        };
        let selection = Selection {
            namespace,
            name,
            interface: asked.as_deref().map(ifname).transpose()?,
            ips: ips(element)?,
            mac: text("mac")?.map(|text| mac(&text)).transpose()?,
            infiniband_guid: text("infiniband-guid")?.map(|text| guid(&text)).transpose()?,
            cni_args: read(element, "cni-args", "an object")?,
            port_mappings: port_mappings(element)?,
            bandwidth: read(element, "bandwidth", "an object of whole numbers")?,
            default_route: default_route(element)?,
            ipam_claim: text("ipam-claim-reference")?,
            device_id: text("deviceID")?,
            unknown_keys: unknown_keys(element),
        };
        if let Some(claim) = &selection.ipam_claim {
            subdomain("ipam-claim-reference", claim)?;
            if !selection.ips.is_empty() {
                return Err(ElementError::IpsAndClaim);
            }
        }
        Ok(selection)
    }

    /// Returns the requests as `runtimeConfig`, one value per capability (NPWG v1.3 §4.1.2.1, CNI
    /// conventions).
    #[must_use]
    pub fn runtime_config(&self) -> Object {
        let mut asked = Object::new();
        if !self.ips.is_empty() {
            asked.set_value("ips", &self.ips);
        }
        if let Some(mac) = &self.mac {
            asked.set_value("mac", mac);
        }
        if !self.port_mappings.is_empty() {
            asked.set_value("portMappings", &self.port_mappings);
        }
        if let Some(bandwidth) = &self.bandwidth {
            asked.set_value("bandwidth", bandwidth);
        }
        if let Some(guid) = &self.infiniband_guid {
            asked.set_value("infinibandGUID", guid);
        }
        asked
    }

    /// Returns the requests as pairs of `CNI_ARGS`, which Multus passes too: plugins older than
    /// capabilities read them.
    #[must_use]
    pub fn args(&self) -> std::collections::BTreeMap<String, String> {
        let mut args = std::collections::BTreeMap::new();
        if !self.ips.is_empty() {
            args.insert("IP".to_owned(), self.ips.join(","));
        }
        if let Some(mac) = &self.mac {
            args.insert("MAC".to_owned(), mac.clone());
        }
        args
    }

    /// Returns its name in the status.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn read<T: DeserializeOwned>(
    element: &Object,
    key: &'static str,
    wanted: &'static str,
) -> Result<Option<T>, ElementError> {
    let Some(raw) = element.get_ignore_case(key).filter(|raw| raw.get() != "null") else {
        return Ok(None);
    };
    json::from_str(raw.get()).map(Some).map_err(|_| ElementError::WrongType {
        key,
        wanted,
        found: excerpt(raw.get()),
    })
}

/// The longest excerpt of the user's text in a message.
const EXCERPT_MAX: usize = 60;

/// Returns an excerpt of the user's text, cut if it is long.
fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn unknown_keys(element: &Object) -> Vec<String> {
    let known = |key: &str| KEYS.iter().any(|known| known.eq_ignore_ascii_case(key));
    element.iter().map(|(key, _)| key).filter(|key| !known(key)).map(str::to_owned).collect()
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= LABEL_MAX
        && !text.is_empty()
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Checks a name of one label (RFC 1123).
pub(crate) fn label(key: &'static str, text: &str) -> Result<(), ElementError> {
    if is_label(text) {
        return Ok(());
    }
    Err(ElementError::NotAName { key, text: text.to_owned() })
}

/// Checks a name of labels with dots between them (RFC 1123).
pub(crate) fn subdomain(key: &'static str, text: &str) -> Result<(), ElementError> {
    if text.len() <= NAME_MAX && text.split('.').all(is_label) {
        return Ok(());
    }
    Err(ElementError::NotAName { key, text: text.to_owned() })
}

fn ifname(text: &str) -> Result<IfName, ElementError> {
    IfName::new(text).map_err(|error| {
        let reason = if error.details.is_empty() { error.msg } else { error.details };
        let reason = reason.trim_start_matches("interface name ").to_owned();
        ElementError::Interface { text: text.to_owned(), reason }
    })
}

fn ips(element: &Object) -> Result<Vec<String>, ElementError> {
    let Some(ips) = read::<Vec<String>>(element, "ips", "a list of texts")? else {
        return Ok(Vec::new());
    };
    if ips.is_empty() {
        return Err(ElementError::Empty("ips"));
    }
    let mut seen = BTreeSet::new();
    for ip in &ips {
        let Some(address) = address(ip) else {
            return Err(ElementError::NotAnAddress(ip.clone()));
        };
        if !seen.insert(address) {
            return Err(ElementError::TwiceTheAddress(address));
        }
    }
    Ok(ips)
}

/// Reads an address, with or without a prefix length. An IPv4 address in IPv6 notation
/// (`::ffff:192.0.2.1`) is an IPv4 address, as plugins in Go read it.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    let address = text.parse().ok().or_else(|| text.parse::<IpNet>().ok().map(|net| net.addr()));
    address.map(|address: IpAddr| address.to_canonical())
}

/// Reads the subnet of an address with a prefix length.
pub(crate) fn subnet(text: &str) -> Option<IpNet> {
    let net: IpNet = text.parse().ok()?;
    // 96 bits precede an IPv4 address in IPv6 notation.
    let of_v4 = net.prefix_len().checked_sub(96).filter(|_| net.addr().to_canonical().is_ipv4());
    let net = match (net, of_v4) {
        (IpNet::V6(_), Some(length)) => IpNet::new(net.addr().to_canonical(), length).ok()?,
        _ => net,
    };
    Some(net.trunc())
}

/// Reads bytes as Go's `net.ParseMAC` does: pairs separated by colons or hyphens, or groups of four
/// separated by dots.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let (separator, digits) = match text {
        _ if text.contains(':') => (':', 2),
        _ if text.contains('-') => ('-', 2),
        _ if text.contains('.') => ('.', 4),
        _ => return None,
    };
    let mut bytes = Vec::new();
    for part in text.split(separator) {
        if part.len() != digits || !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for pair in part.as_bytes().chunks(2) {
            let pair = std::str::from_utf8(pair).ok()?;
            bytes.push(u8::from_str_radix(pair, 16).ok()?);
        }
    }
    Some(bytes)
}

fn with_colons(bytes: &[u8]) -> String {
    let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    pairs.join(":")
}

/// Reads a hardware address, and formats it as pairs of lower-case digits with colons.
pub(crate) fn mac(text: &str) -> Result<String, ElementError> {
    let bytes = bytes(text).filter(|bytes| matches!(bytes.len(), 6 | 20));
    let bytes = bytes.ok_or_else(|| ElementError::NotAMac(text.to_owned()))?;
    let is_group = bytes.len() == 6 && bytes[0] & 1 != 0;
    if is_group || bytes.iter().all(|byte| *byte == 0) {
        return Err(ElementError::NoOnesMac(text.to_owned()));
    }
    Ok(with_colons(&bytes))
}

fn guid(text: &str) -> Result<String, ElementError> {
    let bytes = bytes(text).filter(|bytes| bytes.len() == 8);
    bytes.map(|bytes| with_colons(&bytes)).ok_or_else(|| ElementError::NotAGuid(text.to_owned()))
}

fn port_mappings(element: &Object) -> Result<Vec<PortMapping>, ElementError> {
    let wanted = "a list of objects with \"hostPort\" and \"containerPort\"";
    let mut mappings: Vec<PortMapping> = read(element, "portMappings", wanted)?.unwrap_or_default();
    for mapping in &mut mappings {
        let ports = [("hostPort", mapping.host_port), ("containerPort", mapping.container_port)];
        for (key, port) in ports {
            if !(1..=65535).contains(&port) {
                return Err(ElementError::NotAPort { key, port });
            }
        }
        let protocol = mapping.protocol.to_ascii_lowercase();
        mapping.protocol = match protocol.as_str() {
            "" => "tcp".to_owned(),
            "tcp" | "udp" | "sctp" => protocol,
            _ => return Err(ElementError::NotAProtocol(mapping.protocol.clone())),
        };
        if !mapping.host_ip.is_empty() && mapping.host_ip.parse::<IpAddr>().is_err() {
            return Err(ElementError::NotAHostIp(mapping.host_ip.clone()));
        }
    }
    Ok(mappings)
}

fn default_route(element: &Object) -> Result<Option<Vec<IpAddr>>, ElementError> {
    let Some(gateways) = read::<Vec<String>>(element, "default-route", "a list of addresses")?
    else {
        return Ok(None);
    };
    let gateway = |text: String| match text.parse::<IpAddr>() {
        Ok(address) if !address.is_unspecified() && !address.is_multicast() => Ok(address),
        _ => Err(ElementError::NotAGateway(text)),
    };
    let gateways: Vec<IpAddr> = gateways.into_iter().map(gateway).collect::<Result<_, _>>()?;
    for (place, via) in gateways.iter().enumerate() {
        let is_same = |other: &&IpAddr| other.is_ipv4() == via.is_ipv4();
        if let Some(other) = gateways[..place].iter().find(is_same) {
            return Err(ElementError::TwoGateways(*other, *via));
        }
    }
    Ok(Some(gateways))
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}
