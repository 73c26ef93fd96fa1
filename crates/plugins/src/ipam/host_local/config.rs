//! The configuration of `host-local`.

use std::net::IpAddr;
use std::path::PathBuf;

use cni::{Route, Version, code};
use cni_plugin::Call;
use ipam::host::no_host;
use ipam::{DATA_DIR, Range, RangeError, RangeSetError, RangeSets, RangeSetsError, RangeSpec};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

use crate::shared::failure::Failure;
use crate::shared::unusable::doubt_of_gateway;

/// A valid configuration.
#[derive(Debug)]
pub(super) struct HostLocal {
    /// The range sets: `runtimeConfig.ipRanges`, then the single range among `ipam`'s own keys,
    /// then `ranges`. Their order numbers the files `last_reserved_ip.N`.
    pub(super) ranges: RangeSets,
    pub(super) routes: Vec<Route>,
    pub(super) resolv_conf: Option<String>,
    pub(super) data_dir: PathBuf,
    requested: Vec<IpAddr>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Document {
    ipam: Option<Ipam>,
    #[serde(rename = "runtimeConfig")]
    runtime_config: RuntimeConfig,
    args: Args,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ipam {
    #[serde(rename = "type")]
    _type: String,
    ranges: Vec<Vec<RangeSpec>>,
    routes: Vec<Route>,
    #[serde(rename = "resolvConf")]
    resolv_conf: String,
    #[serde(rename = "dataDir")]
    data_dir: String,
    // The single range of old configurations, whose keys are among the others.
    #[serde(deserialize_with = "ipam::range::deserialize_subnet")]
    subnet: Option<IpNet>,
    #[serde(rename = "rangeStart", with = "cni::text::optional_ip")]
    range_start: Option<IpAddr>,
    #[serde(rename = "rangeEnd", with = "cni::text::optional_ip")]
    range_end: Option<IpAddr>,
    #[serde(with = "cni::text::optional_ip")]
    gateway: Option<IpAddr>,
}

impl Ipam {
    /// Takes all sets, those of `runtimeConfig` first.
    fn take_sets(&mut self, mut sets: Vec<Vec<RangeSpec>>) -> Vec<Vec<RangeSpec>> {
        if self.subnet.is_some() {
            sets.push(vec![RangeSpec {
                subnet: self.subnet,
                range_start: self.range_start,
                range_end: self.range_end,
                gateway: self.gateway,
            }]);
        }
        sets.append(&mut self.ranges);
        sets
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    ips: Vec<RequestedIp>,
    #[serde(rename = "ipRanges")]
    ip_ranges: Vec<Vec<RangeSpec>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: CniArgs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CniArgs {
    ips: Vec<RequestedIp>,
}

/// A requested address; a prefix length is allowed and ignored.
#[derive(Debug, Clone, Copy)]
struct RequestedIp(IpAddr);

impl RequestedIp {
    fn parse(text: &str) -> Option<Self> {
        let address = if text.contains('/') {
            cni::text::parse_cidr(text)?.addr()
        } else {
            cni::text::parse_ip(text)?
        };
        Some(RequestedIp(address))
    }
}

impl<'de> Deserialize<'de> for RequestedIp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        RequestedIp::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format_args!("invalid IP address {text}")))
    }
}

impl HostLocal {
    /// Reads and checks the configuration of a call.
    pub(super) fn load(call: &Call<'_>) -> Result<Self, Failure> {
        let document: Document = call.read_config()?;
        let mut ipam = document.ipam.ok_or_else(|| invalid("IPAM config missing 'ipam' key"))?;
        let sets = ipam.take_sets(document.runtime_config.ip_ranges);
        let ranges = RangeSets::new(sets).map_err(|error| {
            Failure::from_chain(code::INVALID_CONFIG, &error).with_details(instead(&error))
        })?;
        if call.version() < Version::V0_3_0 && !ranges.has_one_set_per_family() {
            return Err(invalid(format!(
                "CNI version {} does not support more than 1 address per family",
                call.common().cni_version
            )));
        }
        let requested = document.args.cni.ips.iter().chain(&document.runtime_config.ips);
        Ok(HostLocal {
            ranges,
            routes: ipam.routes,
            resolv_conf: (!ipam.resolv_conf.is_empty()).then_some(ipam.resolv_conf),
            data_dir: data_dir_or_default(ipam.data_dir),
            requested: requested.map(|ip| ip.0).collect(),
        })
    }

    /// Returns the requested addresses, from `CNI_ARGS`, `args.cni.ips` and `runtimeConfig.ips`
    /// together.
    pub(super) fn requested(&self, call: &Call<'_>) -> Result<Vec<IpAddr>, Failure> {
        let args = call.args(&["IP"])?;
        let mut requested = Vec::with_capacity(self.requested.len() + 1);
        // An empty value counts as absent, as with the reference, which takes one address only. A
        // pod's addresses come as a list: Multus passes them here and by capability.
        let text = args.get("IP").filter(|text| !text.is_empty());
        for item in text.into_iter().flat_map(|text| text.split(',')) {
            let item = item.trim();
            let RequestedIp(address) = RequestedIp::parse(item).ok_or_else(|| {
                let text = text.unwrap_or_default();
                Failure::new(
                    code::INVALID_ENVIRONMENT,
                    format!(
                        "ARGS: error parsing value of pair \"IP={text}\": invalid IP address {item}"
                    ),
                )
            })?;
            requested.push(address);
        }
        requested.extend(&self.requested);
        Ok(requested)
    }
}

/// Names the ends of ranges that are left out, and the gateways that are returned, although no host
/// can have them.
pub(super) fn doubts(call: &Call<'_>) -> Result<Vec<Failure>, Failure> {
    let document: Document = call.read_config()?;
    let mut doubts = Vec::new();
    let sets = document.ipam.unwrap_or_default().take_sets(Vec::new());
    for spec in sets.iter().flatten() {
        let Some(subnet) = spec.subnet else { continue };
        for (key, end) in [("rangeStart", spec.range_start), ("rangeEnd", spec.range_end)] {
            let Some(end) = end else { continue };
            let address = IpNet::new(end, subnet.prefix_len()).ok();
            let Some(what) = address.and_then(no_host) else { continue };
            doubts.push(
                invalid(format!("{end} is {what} and goes to no container"))
                    .with_details(format!("key \"{key}\": name one that a host can have")),
            );
        }
        if let Ok(range) = Range::new(spec) {
            doubts.extend(doubt_of_gateway(range.gateway(), subnet));
        }
    }
    Ok(doubts)
}

/// Reads only where the folders are: for verbs that must work if the rest is invalid.
pub(super) fn data_dir(call: &Call<'_>) -> Result<PathBuf, Failure> {
    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Document {
        ipam: Ipam,
    }
    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Ipam {
        #[serde(rename = "dataDir")]
        data_dir: String,
    }
    let document: Document = call.read_config()?;
    Ok(data_dir_or_default(document.ipam.data_dir))
}

/// Returns what to write instead of invalid ranges.
fn instead(error: &RangeSetsError) -> String {
    let RangeSetsError::Set { source: RangeSetError::Range(error), .. } = error else {
        return String::new();
    };
    match error {
        RangeError::HostBits { prefix_len, network } => {
            format!("key \"subnet\": write {network}/{prefix_len}")
        }
        RangeError::TooSmall { .. } => {
            "key \"subnet\": give it room for a gateway and an address".to_owned()
        }
        RangeError::Reserved { .. } => "key \"subnet\": name one of unicast addresses".to_owned(),
        RangeError::NoHosts { .. } => {
            "key \"rangeEnd\": an address that a host can have lies between the ends".to_owned()
        }
        RangeError::StartOutside { subnet, .. } => {
            format!("key \"rangeStart\" is an address of {subnet}, and none behind rangeEnd")
        }
        RangeError::EndOutside { subnet, .. } => {
            format!("key \"rangeEnd\" is an address of {subnet}, and none before rangeStart")
        }
        _ => String::new(),
    }
}

fn data_dir_or_default(text: String) -> PathBuf {
    if text.is_empty() { DATA_DIR.into() } else { text.into() }
}

/// Lists the unknown keys of `ipam`. The rest of the document belongs to the calling plugin.
pub(super) fn unknown_keys(
    config: &str,
) -> Result<Vec<cni::json::UnknownKey>, cni::json::JsonError> {
    let mut unknown = cni::json::unknown_keys::<Document>(config)?;
    unknown.retain(|key| key.parent == "ipam" || key.parent.starts_with("ipam."));
    Ok(unknown)
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, message)
}
