//! The keys as written, and the network that they define: Whereabouts' keys, and a few of our own.

use std::net::IpAddr;

use ::cluster_ipam::network::{MAX_BLOCK_BITS, NetworkSpec, RangeSpec, parse_prefix};
use cni::text::{parse_cidr, parse_ip};
use cni::{Dns, IpConfig, Route, code};
use ipnet::IpNet;
use net::IpFamily;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::shared::failure::Failure;

/// The keys that Whereabouts reads and this plugin ignores, with the reason.
pub(super) const IGNORED: &[(&str, &str)] = &[
    ("kubernetes", CREDENTIALS),
    ("datastore", CREDENTIALS),
    ("etcd_host", CREDENTIALS),
    ("etcd_username", CREDENTIALS),
    ("etcd_password", CREDENTIALS),
    ("etcd_key_file", CREDENTIALS),
    ("etcd_cert_file", CREDENTIALS),
    ("etcd_ca_cert_file", CREDENTIALS),
    ("leader_lease_duration", "no node is elected: each has blocks of addresses of its own"),
    ("leader_renew_deadline", "no node is elected: each has blocks of addresses of its own"),
    ("leader_retry_period", "no node is elected: each has blocks of addresses of its own"),
    (
        "log_file",
        "the plugin logs to standard error, which the runtime keeps; NETWRIGHT_LOG says how much",
    ),
    (
        "log_level",
        "the plugin logs to standard error, which the runtime keeps; NETWRIGHT_LOG says how much",
    ),
    ("reconciler_cron_expression", "netwrightd collects when a container goes, and when it starts"),
    ("sleep_for_race", "it is for Whereabouts' own tests"),
];

const CREDENTIALS: &str = "the plugin has no credentials and talks to no store: netwrightd ipam does, and its own flags say where";

/// The keys of `ipam`, and of the file of defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Ipam {
    range: Option<String>,
    range_start: Option<String>,
    range_end: Option<String>,
    exclude: Option<Vec<String>>,
    #[serde(rename = "ipRanges")]
    ip_ranges: Option<Vec<RawRange>>,
    gateway: Option<String>,
    pub(super) routes: Option<Vec<Route>>,
    pub(super) dns: Option<Dns>,
    pub(super) addresses: Option<Vec<RawAddress>>,
    network_name: Option<String>,
    enable_overlapping_ranges: Option<bool>,
    node_slice_size: Option<String>,
    pub(super) configuration_path: Option<String>,
    /// The prefix length of a node's blocks of addresses.
    #[serde(rename = "blockSize")]
    block_size: Option<u8>,
    /// Whether a pod that is created again gets the same addresses.
    sticky: Option<bool>,
    /// The socket on which the daemon listens.
    pub(super) socket: Option<String>,
    #[serde(rename = "type")]
    _type: Option<IgnoredAny>,
    #[serde(rename = "kubernetes")]
    _kubernetes: Option<IgnoredAny>,
    #[serde(rename = "datastore")]
    _datastore: Option<IgnoredAny>,
    #[serde(rename = "etcd_host")]
    _etcd_host: Option<IgnoredAny>,
    #[serde(rename = "etcd_username")]
    _etcd_username: Option<IgnoredAny>,
    #[serde(rename = "etcd_password")]
    _etcd_password: Option<IgnoredAny>,
    #[serde(rename = "etcd_key_file")]
    _etcd_key_file: Option<IgnoredAny>,
    #[serde(rename = "etcd_cert_file")]
    _etcd_cert_file: Option<IgnoredAny>,
    #[serde(rename = "etcd_ca_cert_file")]
    _etcd_ca_cert_file: Option<IgnoredAny>,
    #[serde(rename = "leader_lease_duration")]
    _leader_lease_duration: Option<IgnoredAny>,
    #[serde(rename = "leader_renew_deadline")]
    _leader_renew_deadline: Option<IgnoredAny>,
    #[serde(rename = "leader_retry_period")]
    _leader_retry_period: Option<IgnoredAny>,
    #[serde(rename = "log_file")]
    _log_file: Option<IgnoredAny>,
    #[serde(rename = "log_level")]
    _log_level: Option<IgnoredAny>,
    #[serde(rename = "reconciler_cron_expression")]
    _reconciler_cron_expression: Option<IgnoredAny>,
    #[serde(rename = "sleep_for_race")]
    _sleep_for_race: Option<IgnoredAny>,
}

/// A range as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawRange {
    range: String,
    range_start: Option<String>,
    range_end: Option<String>,
    exclude: Vec<String>,
    /// The range's own gateway.
    gateway: Option<String>,
}

/// An address as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawAddress {
    address: String,
    #[serde(with = "cni::text::optional_ip")]
    gateway: Option<IpAddr>,
}

impl Ipam {
    /// Fills missing keys from another.
    pub(super) fn over(self, below: Ipam) -> Self {
        Ipam {
            range: self.range.or(below.range),
            range_start: self.range_start.or(below.range_start),
            range_end: self.range_end.or(below.range_end),
            exclude: self.exclude.or(below.exclude),
            ip_ranges: self.ip_ranges.or(below.ip_ranges),
            gateway: self.gateway.or(below.gateway),
            routes: self.routes.or(below.routes),
            dns: self.dns.or(below.dns),
            addresses: self.addresses.or(below.addresses),
            network_name: self.network_name.or(below.network_name),
            enable_overlapping_ranges: self
                .enable_overlapping_ranges
                .or(below.enable_overlapping_ranges),
            node_slice_size: self.node_slice_size.or(below.node_slice_size),
            block_size: self.block_size.or(below.block_size),
            sticky: self.sticky.or(below.sticky),
            socket: self.socket.or(below.socket),
            ..Ipam::default()
        }
    }

    pub(super) fn spec(&self, network: &str, fixed: &[IpConfig]) -> Result<NetworkSpec, Failure> {
        let mut ranges = Vec::new();
        if let Some(range) = self.range.as_deref().filter(|range| !range.is_empty()) {
            let raw = RawRange {
                range: range.to_owned(),
                range_start: self.range_start.clone(),
                range_end: self.range_end.clone(),
                exclude: self.exclude.clone().unwrap_or_default(),
                gateway: None,
            };
            ranges.push(raw.check("ipam.range")?);
        }
        for (index, raw) in self.ip_ranges.iter().flatten().enumerate() {
            ranges.push(raw.check(&format!("ipam.ipRanges[{index}].range"))?);
        }
        give_gateways(&mut ranges, &gateways(self.gateway.as_deref(), "ipam.gateway")?);
        for range in &mut ranges {
            // An attachment gets these in addition to the addresses of the ranges.
            range.exclude.extend(fixed.iter().map(|one| IpNet::from(one.address.addr())));
        }
        let bits = self.block_bits()?;
        Ok(NetworkSpec {
            space: self.network_name.clone().unwrap_or_default(),
            overlapping: self.enable_overlapping_ranges.unwrap_or(true),
            ranges,
            block_v4: bits.map(|bits| IpFamily::V4.bits() - bits),
            block_v6: bits.map(|bits| IpFamily::V6.bits() - bits),
            sticky: self.sticky.unwrap_or_default(),
            ..NetworkSpec::new(network)
        })
    }

    /// Returns how many bits number the addresses of a block. A prefix length that is valid for
    /// IPv4 is meant for IPv4; blocks of the other family then have as many addresses.
    fn block_bits(&self) -> Result<Option<u8>, Failure> {
        let bits = |prefix: u8| {
            let of = |family: IpFamily| family.bits().checked_sub(prefix);
            of(IpFamily::V4).or(of(IpFamily::V6))
        };
        if let Some(prefix) = self.block_size {
            return match bits(prefix) {
                Some(bits) if bits <= MAX_BLOCK_BITS => Ok(Some(bits)),
                _ => Err(invalid(format!(
                    "ipam.blockSize: blocks of /{prefix} are not from one address to {}",
                    1_u32 << MAX_BLOCK_BITS
                ))
                .with_details("it is a prefix length, such as 26")),
            };
        }
        let Some(text) = self.node_slice_size.as_deref().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let prefix = text.trim_start_matches('/').parse().ok().and_then(bits);
        // A node that needs more takes another block, so a slice need not be as large as with
        // Whereabouts.
        let bits = prefix.map(|bits| bits.min(MAX_BLOCK_BITS));
        bits.map(Some).ok_or_else(|| {
            invalid(format!("ipam.node_slice_size: {text:?} is no prefix length, such as \"/26\""))
        })
    }
}

impl RawRange {
    fn check(&self, key: &str) -> Result<RangeSpec, Failure> {
        let mut range: RangeSpec = self.range.parse().map_err(|error| {
            let text = &self.range;
            let words = match text.split_once('-') {
                Some((first, _)) if parse_ip(first.trim()).is_none() => {
                    format!("invalid range start IP: {first}")
                }
                Some((_, last)) => format!(
                    "invalid CIDR (do you have the 'range' parameter set for Whereabouts?) '{last}': invalid CIDR address: {last}"
                ),
                None => format!("invalid CIDR {text}: invalid CIDR address: {text}"),
            };
            invalid(words).with_details(format!("{key}: {error}"))
        })?;
        let end = |text: &Option<String>, name: &str, before: Option<IpAddr>| {
            let Some(text) = text.as_deref().filter(|text| !text.is_empty()) else {
                return Ok::<_, Failure>(before);
            };
            let address = parse_ip(text).ok_or_else(|| {
                invalid(format!("invalid IP address: {text}"))
                    .with_details(format!("{name}, beside {key}"))
            })?;
            Ok(Some(address))
        };
        // A range's own value takes precedence.
        range.first = range
            .first
            .map_or_else(|| end(&self.range_start, "range_start", None), |first| Ok(Some(first)))?;
        range.last = range
            .last
            .map_or_else(|| end(&self.range_end, "range_end", None), |last| Ok(Some(last)))?;
        for text in &self.exclude {
            let prefix = parse_prefix(text).ok_or_else(|| {
                invalid(format!(
                    "invalid CIDR in exclude list {text}: invalid CIDR address: {text}"
                ))
                .with_details(format!("\"exclude\", beside {key}, has prefixes and addresses"))
            })?;
            range.exclude.push(prefix);
        }
        let own = gateways(self.gateway.as_deref(), key)?;
        give_gateways(std::slice::from_mut(&mut range), &own);
        Ok(range)
    }
}

impl RawAddress {
    pub(super) fn check((index, raw): (usize, &RawAddress)) -> Result<IpConfig, Failure> {
        let net = parse_cidr(&raw.address).ok_or_else(|| {
            invalid(format!("invalid CIDR in addresses: {}", raw.address)).with_details(format!(
                "ipam.addresses[{index}].address is an address with a prefix length, such as 192.0.2.7/24"
            ))
        })?;
        Ok(IpConfig::new(net, raw.gateway))
    }
}

/// Reads one gateway, or one of each family with a comma between them.
fn gateways(text: Option<&str>, key: &str) -> Result<Vec<IpAddr>, Failure> {
    let items = text.unwrap_or_default().split(',').map(str::trim);
    let read = |item: &str| {
        parse_ip(item).ok_or_else(|| {
            invalid(format!("couldn't parse gateway IP: {item}")).with_details(format!("of {key}"))
        })
    };
    items.filter(|item| !item.is_empty()).map(read).collect()
}

/// Gives each range a gateway of its family: one that is in its subnet, else the first that is in
/// no range's subnet.
fn give_gateways(ranges: &mut [RangeSpec], gateways: &[IpAddr]) {
    let subnets: Vec<IpNet> = ranges.iter().map(|range| range.subnet).collect();
    for range in ranges.iter_mut().filter(|range| range.gateway.is_none()) {
        let family = IpFamily::of(range.subnet.addr());
        let mut own = gateways.iter().filter(|gateway| IpFamily::of(**gateway) == family);
        let inside = own.clone().find(|gateway| range.subnet.contains(*gateway));
        let elsewhere = own.find(|gateway| !subnets.iter().any(|subnet| subnet.contains(*gateway)));
        range.gateway = inside.or(elsewhere).copied();
    }
}

pub(super) fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, message)
}
