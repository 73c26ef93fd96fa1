//! What ADD returns, in every version's shape.
//!
//! [`AddResult`] is the newest form. It is read from and written in any version's shape; what that
//! shape cannot hold is lost; see [`AddResult::write`].

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::error::{Error, code};
use crate::text::quote;
use crate::version::{ResultFamily, Version};

mod wire;

/// The result of ADD (CNI 1.1.0 §5 "ADD Success").
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddResult {
    /// The links that were made, on the host's and the container's side.
    pub interfaces: Vec<Interface>,
    /// The addresses that were assigned.
    pub ips: Vec<IpConfig>,
    /// The routes that were made.
    pub routes: Vec<Route>,
    /// The name servers of the network.
    pub dns: Dns,
}

/// A link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// The link's name in its namespace.
    pub name: String,
    /// The hardware address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The maximum transmission unit in bytes; 0 when not given.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// The path of the container's namespace; empty for links of the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// The path of a socket that stands for the link.
    #[serde(rename = "socketPath", skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// The PCI address of the device behind the link.
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

/// An address on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    /// The address with its prefix length; host bits are kept.
    pub address: IpNet,
    /// The default gateway of the subnet.
    pub gateway: Option<IpAddr>,
    /// The index into [`AddResult::interfaces`]; delegated IPAM leaves it out. A negative index
    /// counts as unset, because early 0.3.0 plugins used it so; the index is not checked against
    /// the list.
    pub interface: Option<usize>,
}

impl IpConfig {
    /// Makes an address that belongs to no interface yet.
    #[must_use]
    pub fn new(address: IpNet, gateway: Option<IpAddr>) -> Self {
        IpConfig { address, gateway, interface: None }
    }
}

/// A route. Configurations list routes in the same form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub dst: IpNet,
    /// The next hop; the family's gateway when absent.
    pub gw: Option<IpAddr>,
    /// The path MTU in bytes.
    pub mtu: Option<u32>,
    /// The maximal segment size to advertise, in bytes.
    pub advmss: Option<u32>,
    /// The metric; lower wins.
    pub priority: Option<u32>,
    /// The routing table; main when absent.
    pub table: Option<u32>,
    /// The scope (linux/rtnetlink.h `RT_SCOPE_*`).
    pub scope: Option<u8>,
    /// What becomes of the packets, if they are dropped. Such a route leads to no link and has no
    /// next hop. An extension (key `type`): the specification knows only routes that lead somewhere.
    pub drops: Option<DropKind>,
}

/// How a route drops packets (`man 8 ip-route`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DropKind {
    /// Silently.
    Blackhole,
    /// With the answer that the host is not reachable.
    Unreachable,
    /// With the answer that this is prohibited.
    Prohibit,
}

impl DropKind {
    /// Returns the word that configurations and `ip route` have for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            DropKind::Blackhole => "blackhole",
            DropKind::Unreachable => "unreachable",
            DropKind::Prohibit => "prohibit",
        }
    }
}

impl Route {
    /// Makes a route with only a destination and perhaps a next hop.
    #[must_use]
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Route {
            dst,
            gw,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
            drops: None,
        }
    }

    /// Says whether this is the default route of its family: one that drops packets is not.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.drops.is_none() && self.dst.prefix_len() == 0 && self.dst.addr().is_unspecified()
    }
}

/// Name resolution. Configurations give it in the same form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Addresses of name servers, in order of preference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Domains to search.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options for the resolver.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Says whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

impl AddResult {
    /// Reads a result. Its own `cniVersion` decides the shape; if it has none, `assumed` does.
    ///
    /// # Errors
    /// Code 6 when it is not JSON, names a version that does not exist, or has a wrong type in it.
    /// Keys that the version does not have are ignored.
    pub fn parse(document: &[u8], assumed: Version) -> Result<Self, Error> {
        wire::parse(document, assumed)
    }

    /// Returns the version a result names, without reading the rest; `None` when it names none.
    ///
    /// # Errors
    /// Code 6 when it is not a JSON object or names a version that does not exist.
    pub fn version_of(document: &[u8]) -> Result<Option<Version>, Error> {
        wire::version_of(document)
    }

    /// Writes the result in a version's shape, compact.
    ///
    /// In older versions something is lost: 0.3.x and 0.4.0 drop an interface's `mtu`, `socketPath`
    /// and `pciID`; 0.1.0 and 0.2.0 keep the first address of each family and the destination and
    /// next hop of the routes of those families.
    ///
    /// # Errors
    /// Code 6, `cannot convert: no valid IP addresses`, when there is no address and the version
    /// needs one.
    pub fn write(&self, version: Version) -> Result<Vec<u8>, Error> {
        wire::write(self, version, false)
    }

    /// Writes like [`AddResult::write`], indented by four spaces as plugins print it.
    ///
    /// # Errors
    /// As [`AddResult::write`].
    pub fn write_indented(&self, version: Version) -> Result<Vec<u8>, Error> {
        wire::write(self, version, true)
    }

    /// Returns what is left of the result after it is written in `version` and read again.
    ///
    /// # Errors
    /// As [`AddResult::write`].
    pub fn through(&self, version: Version) -> Result<Self, Error> {
        AddResult::parse(&self.write(version)?, version)
    }

    /// Returns the addresses of the container's interface `ifname`: those whose index is unset,
    /// points at an interface of that name with a sandbox, or points at nothing.
    pub fn container_ips<'a>(&'a self, ifname: &'a str) -> impl Iterator<Item = &'a IpConfig> {
        self.ips.iter().filter(move |ip| {
            let Some(index) = ip.interface else { return true };
            self.interfaces
                .get(index)
                .is_none_or(|link| link.name == ifname && !link.sandbox.is_empty())
        })
    }

    /// Returns the container's interface of that name, if the result lists it.
    #[must_use]
    pub fn container_interface(&self, ifname: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|link| link.name == ifname && !link.sandbox.is_empty())
    }
}

/// Says whether a `prevResult` of one version may accompany a configuration of another.
///
/// # Errors
/// Code 6 in the reference decoder's words.
pub fn check_family(result: Version, config: Version) -> Result<(), Error> {
    if result.family() == config.family() {
        return Ok(());
    }
    Err(other_family(result.as_str(), config).context("could not parse prevResult"))
}

fn other_family(result: &str, config: Version) -> Error {
    let family = config.family();
    let known = Version::ALL.iter().filter(|version| version.family() == family);
    let mut supported: Vec<&str> = known.map(|version| version.as_str()).collect();
    if family == ResultFamily::V0_2 {
        // The reference also lists the version of a configuration without one.
        supported.insert(0, "");
    }
    Error::new(
        code::DECODE_FAILURE,
        format!(
            "result type supports [{}] but unmarshalled CNIVersion is {}",
            supported.join(" "),
            quote(result)
        ),
    )
}

/// Reads a result that must be of the family of a configuration's version.
pub(crate) fn parse_previous(document: &[u8], config: Version) -> Result<AddResult, Error> {
    let said = wire::version_text(document)?;
    if !said.is_empty() && Version::parse(&said).is_none_or(|v| v.family() != config.family()) {
        return Err(other_family(&said, config));
    }
    wire::parse_as(document, config)
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}
