//! Which pods may use which definition, and what they may request on it.
//!
//! Without rules a pod may request everything that its network's plugins can serve, as with Multus,
//! except a device that was not allocated to it. Once there is a rule, every request of a selection
//! needs a rule that grants it. [`Policy::allow`] takes a [`Selection`] apart field by field, so
//! that a new field cannot be forgotten here.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::selection::{self, PortMapping, Selection};

/// The namespace whose definitions every pod may use (Multus).
const DEFAULT_NAMESPACE: &str = "default";

/// Stands for every namespace, every network, or every hardware address, GUID or device.
const ANY: &str = "*";

/// What pods may select and request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    /// Whether pods may use only definitions of their own namespace and of
    /// [`Policy::global_namespaces`].
    pub namespace_isolation: bool,
    /// The namespaces whose definitions every pod may use, in addition to `default`.
    pub global_namespaces: Vec<String>,
    /// If not empty, the only namespaces whose definitions pods may use: tenants write no
    /// definitions there.
    pub definition_namespaces: Vec<String>,
    /// What pods may request.
    pub rules: Vec<Rule>,
}

/// Grants what a pod requests. Every key but the first two grants something; an absent key grants
/// nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// To pods of these namespaces; `*` for all.
    pub namespaces: Vec<String>,
    /// On these networks, `<namespace>/<name>`; `*` for all, `<namespace>/*` for all of one
    /// namespace.
    pub networks: Vec<String>,
    /// To have the network instead of the cluster's ([`crate::annotation::DEFAULT_NETWORK`]).
    pub default_network: bool,
    /// Addresses of these ranges.
    pub addresses: Vec<IpNet>,
    /// With prefix lengths that reach no farther than one of these or of [`Rule::addresses`].
    pub subnets: Vec<IpNet>,
    /// Hardware addresses with one of these prefixes, such as `02:00:5e`.
    pub macs: Vec<String>,
    /// InfiniBand GUIDs with one of these prefixes.
    pub guids: Vec<String>,
    /// Ports of the host, on all of its addresses.
    pub host_ports: Vec<PortRange>,
    /// Limits that the pod chooses, which replace the network's.
    pub bandwidth: bool,
    /// A default route through gateways of these ranges, or no default route by this network.
    pub gateways: Vec<IpNet>,
    /// Devices that were not allocated to the pod, by their IDs.
    pub devices: Vec<String>,
    /// Keys of `cni-args`, with any value. `ips` and `mac` need [`Rule::addresses`] and
    /// [`Rule::macs`].
    pub cni_args: Vec<String>,
}

/// Ports of a host: `8080`, or `30000-32767`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// A text is not a range of ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a port (\"8080\") nor a range of ports (\"30000-32767\")")]
pub struct PortRangeError(String);

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse().ok().filter(|port| *port != 0);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(PortRange { first, last }),
            _ => Err(PortRangeError(text.to_owned())),
        }
    }
}

impl TryFrom<String> for PortRange {
    type Error = PortRangeError;

    fn try_from(text: String) -> Result<Self, PortRangeError> {
        text.parse()
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> Self {
        range.to_string()
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortRange { first, last } if first == last => write!(f, "{first}"),
            PortRange { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

/// A single request of a pod on a network.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SingleRequest {
    /// The network instead of the cluster's.
    DefaultNetwork,
    /// An address.
    Address(IpAddr),
    /// An address with a prefix length that makes this subnet directly reachable.
    Subnet(IpNet),
    /// A hardware address.
    Mac(String),
    /// An InfiniBand GUID.
    Guid(String),
    /// A port of the host.
    HostPort(u32),
    /// Limits of its own.
    Bandwidth,
    /// A default route through this gateway.
    Gateway(IpAddr),
    /// No default route by this network.
    NoDefaultRoute,
    /// A device that was not allocated to it.
    Device(String),
    /// An argument for the network's plugins.
    CniArg(String),
    /// An argument for the network's plugins whose value does not match its key.
    Unreadable(String),
}

impl SingleRequest {
    /// Returns the key of a rule that grants it.
    fn granted_by(&self) -> &'static str {
        match self {
            SingleRequest::DefaultNetwork => "defaultNetwork",
            SingleRequest::Address(_) => "addresses",
            SingleRequest::Subnet(_) => "subnets",
            SingleRequest::Mac(_) => "macs",
            SingleRequest::Guid(_) => "guids",
            SingleRequest::HostPort(_) => "hostPorts",
            SingleRequest::Bandwidth => "bandwidth",
            SingleRequest::Gateway(_) | SingleRequest::NoDefaultRoute => "gateways",
            SingleRequest::Device(_) => "devices",
            SingleRequest::CniArg(_) | SingleRequest::Unreadable(_) => "cniArgs",
        }
    }
}

impl fmt::Display for SingleRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SingleRequest::DefaultNetwork => f.write_str("a default network of their own"),
            SingleRequest::Address(address) => write!(f, "address {address}"),
            SingleRequest::Subnet(subnet) => write!(f, "an address with the subnet {subnet}"),
            SingleRequest::Mac(mac) => write!(f, "hardware address {mac}"),
            SingleRequest::Guid(guid) => write!(f, "InfiniBand GUID {guid}"),
            SingleRequest::HostPort(port) => write!(f, "host port {port}"),
            SingleRequest::Bandwidth => f.write_str("limits of its own (\"bandwidth\")"),
            SingleRequest::Gateway(gateway) => write!(f, "a default route through {gateway}"),
            SingleRequest::NoDefaultRoute => f.write_str("an interface without a default route"),
            SingleRequest::Device(id) => {
                write!(f, "device {id:?}, which the kubelet has not given it")
            }
            SingleRequest::CniArg(key) => write!(f, "{key:?} in \"cni-args\""),
            SingleRequest::Unreadable(key) => {
                write!(f, "{key:?} in \"cni-args\" with a value that cannot be judged")
            }
        }
    }
}

/// What a pod may not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The definition is another namespace's.
    #[error(
        "pods of namespace {pod:?} may not use definitions of namespace {definition:?} (\"namespaceIsolation\")"
    )]
    Namespace {
        /// The pod's.
        pod: String,
        /// The definition's.
        definition: String,
    },
    /// The definition is in a namespace where tenants may write definitions.
    #[error(
        "no pod may use definitions of namespace {definition:?}: it is not among \"definitionNamespaces\""
    )]
    Definitions {
        /// The definition's.
        definition: String,
    },
    /// No rule grants it.
    #[error(
        "pods of namespace {pod:?} may not ask for {asked} on network {network:?}: no rule grants it ({:?})",
        .asked.granted_by()
    )]
    NotGranted {
        /// The pod's namespace.
        pod: String,
        /// The network.
        network: String,
        /// The request.
        asked: SingleRequest,
    },
}

impl Policy {
    /// Decides whether pods of this namespace may have a selection beside the cluster's network.
    /// The selection's device is not checked here: [`Policy::allow_device`] checks a device that
    /// was not allocated.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn allow(&self, pod: &str, selection: &Selection) -> Result<(), PolicyError> {
        self.allow_namespace(pod, &selection.namespace)?;
        self.allow_asked(pod, selection)
    }

    /// Decides whether pods of this namespace may have a selection instead of the cluster's
    /// network. Every pod may use definitions of `node`, the namespace of those that the node's own
    /// configuration names.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn allow_default(
        &self,
        pod: &str,
        selection: &Selection,
        node: &str,
    ) -> Result<(), PolicyError> {
        if selection.namespace != node {
            self.allow_namespace(pod, &selection.namespace)?;
        }
        let granted = AppliedRules::new(self, pod, selection);
        granted.need(self.rules.is_empty() || granted.any(|rule| rule.default_network), || {
            SingleRequest::DefaultNetwork
        })?;
        self.allow_asked(pod, selection)
    }

    /// Decides whether pods of this namespace may have a device that was not allocated to them.
    /// Without rules none may.
    ///
    /// # Errors
    /// [`PolicyError::NotGranted`].
    pub fn allow_device(
        &self,
        pod: &str,
        selection: &Selection,
        id: &str,
    ) -> Result<(), PolicyError> {
        let granted = AppliedRules::new(self, pod, selection);
        let is_granted =
            granted.any(|rule| rule.devices.iter().any(|device| device == ANY || device == id));
        granted.need(is_granted, || SingleRequest::Device(id.to_owned()))
    }

    /// Decides whether pods of one namespace may use definitions of another.
    ///
    /// # Errors
    /// [`PolicyError::Namespace`], [`PolicyError::Definitions`].
    pub fn allow_namespace(&self, pod: &str, definition: &str) -> Result<(), PolicyError> {
        let is_among = |list: &[String]| list.iter().any(|namespace| namespace == definition);
        if !self.definition_namespaces.is_empty() && !is_among(&self.definition_namespaces) {
            return Err(PolicyError::Definitions { definition: definition.to_owned() });
        }
        if !self.namespace_isolation
            || pod == definition
            || definition == DEFAULT_NAMESPACE
            || is_among(&self.global_namespaces)
        {
            return Ok(());
        }
        Err(PolicyError::Namespace { pod: pod.to_owned(), definition: definition.to_owned() })
    }

    fn allow_asked(&self, pod: &str, selection: &Selection) -> Result<(), PolicyError> {
        if self.rules.is_empty() {
            return Ok(());
        }
        let granted = AppliedRules::new(self, pod, selection);
        // Every field is named, so that the compiler demands a decision about a new one.
        let Selection {
            namespace: _,
            name: _,
            // It names a link in the pod's own namespace.
            interface: _,
            ips,
            mac,
            infiniband_guid,
            cni_args,
            port_mappings,
            bandwidth,
            default_route,
            // Refused for all pods.
            ipam_claim: _,
            // Checked together with what is allocated.
            device_id: _,
            // No plugin sees them.
            unknown_keys: _,
        } = selection;
        for ip in ips {
            granted.need_ip(ip, || SingleRequest::Unreadable("ips".to_owned()))?;
        }
        if let Some(mac) = mac {
            granted.need_mac(mac)?;
        }
        if let Some(guid) = infiniband_guid {
            let is_granted = granted.any(|rule| begins_with_any(guid, &rule.guids));
            granted.need(is_granted, || SingleRequest::Guid(guid.clone()))?;
        }
        for PortMapping { host_port, container_port: _, protocol: _, host_ip: _ } in port_mappings {
            let is_granted =
                |rule: &Rule| rule.host_ports.iter().any(|range| range.contains(*host_port));
            granted.need(granted.any(is_granted), || SingleRequest::HostPort(*host_port))?;
        }
        if bandwidth.is_some() {
            granted.need(granted.any(|rule| rule.bandwidth), || SingleRequest::Bandwidth)?;
        }
        if let Some(gateways) = default_route {
            let grants = |rule: &Rule| !rule.gateways.is_empty();
            granted.need(!gateways.is_empty() || granted.any(grants), || {
                SingleRequest::NoDefaultRoute
            })?;
            for gateway in gateways {
                let grants = |rule: &Rule| rule.gateways.iter().any(|net| net.contains(gateway));
                granted.need(granted.any(grants), || SingleRequest::Gateway(*gateway))?;
            }
        }
        for (key, value) in cni_args.iter().flat_map(cni::json::Object::iter) {
            granted.need_cni_arg(key, value)?;
        }
        Ok(())
    }
}

/// The rules that apply to a pod on a network.
struct AppliedRules<'p> {
    rules: Vec<&'p Rule>,
    pod: &'p str,
    selection: &'p Selection,
}

impl<'p> AppliedRules<'p> {
    fn new(policy: &'p Policy, pod: &'p str, selection: &'p Selection) -> Self {
        let rules = policy.rules.iter().filter(|rule| rule.is_about(pod, selection)).collect();
        AppliedRules { rules, pod, selection }
    }

    fn any(&self, grants: impl Fn(&Rule) -> bool) -> bool {
        self.rules.iter().any(|rule| grants(rule))
    }

    fn need(
        &self,
        is_granted: bool,
        asked: impl FnOnce() -> SingleRequest,
    ) -> Result<(), PolicyError> {
        if is_granted {
            return Ok(());
        }
        let (pod, network) = (self.pod.to_owned(), self.selection.full_name());
        Err(PolicyError::NotGranted { pod, network, asked: asked() })
    }

    /// An address, with or without a prefix length.
    fn need_ip(
        &self,
        text: &str,
        unreadable: impl FnOnce() -> SingleRequest,
    ) -> Result<(), PolicyError> {
        let Some(address) = selection::address(text) else {
            return self.need(false, unreadable);
        };
        let grants = |rule: &Rule| rule.addresses.iter().any(|range| range.contains(&address));
        self.need(self.any(grants), || SingleRequest::Address(address))?;
        // The interface lets the pod reach all of this subnet, with any default route.
        let Some(subnet) = selection::subnet(text) else { return Ok(()) };
        let grants = |rule: &Rule| {
            rule.addresses.iter().chain(&rule.subnets).any(|range| range.contains(&subnet))
        };
        self.need(self.any(grants), || SingleRequest::Subnet(subnet))
    }

    /// A hardware address as [`selection::mac`] writes it.
    fn need_mac(&self, mac: &str) -> Result<(), PolicyError> {
        let is_granted = self.any(|rule| begins_with_any(mac, &rule.macs));
        self.need(is_granted, || SingleRequest::Mac(mac.to_owned()))
    }

    /// A key of `cni-args`. Values that plugins read as addresses need what the fields of that name
    /// need; every other key is granted by its name.
    fn need_cni_arg(&self, key: &str, value: &RawValue) -> Result<(), PolicyError> {
        let unreadable = || SingleRequest::Unreadable(key.to_owned());
        match folded(key).as_str() {
            "ips" => {
                let Ok(ips) = cni::json::from_raw::<Vec<String>>(value) else {
                    return self.need(false, unreadable);
                };
                ips.iter().try_for_each(|ip| self.need_ip(ip, unreadable))
            }
            "mac" => {
                let text = cni::json::from_raw::<String>(value).ok();
                match text.and_then(|text| selection::mac(&text).ok()) {
                    Some(mac) => self.need_mac(&mac),
                    None => self.need(false, unreadable),
                }
            }
            key => {
                let grants =
                    |rule: &Rule| rule.cni_args.iter().any(|granted| folded(granted) == key);
                self.need(self.any(grants), || SingleRequest::CniArg(key.to_owned()))
            }
        }
    }
}

impl Rule {
    fn is_about(&self, pod: &str, selection: &Selection) -> bool {
        let of_namespace = format!("{}/{ANY}", selection.namespace);
        let name = selection.full_name();
        self.namespaces.iter().any(|namespace| namespace == ANY || namespace == pod)
            && self
                .networks
                .iter()
                .any(|network| *network == ANY || *network == of_namespace || *network == name)
    }
}

impl PortRange {
    fn contains(self, port: u32) -> bool {
        (u32::from(self.first)..=u32::from(self.last)).contains(&port)
    }
}

/// Folds a key as Go's `encoding/json` does when it compares keys: it takes `ſ` for an s, and the
/// Kelvin sign for a k.
fn folded(key: &str) -> String {
    key.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

fn begins_with_any(bytes: &str, granted: &[String]) -> bool {
    granted.iter().any(|begin| begins_with(bytes, begin))
}

/// Compares whole bytes: `02:0` is not a prefix of `02:05:…`.
fn begins_with(bytes: &str, begin: &str) -> bool {
    let begin = begin.to_ascii_lowercase();
    let begin = begin.trim_end_matches(':');
    begin == ANY
        || bytes.strip_prefix(begin).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}
