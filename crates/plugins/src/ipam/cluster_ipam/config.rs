//! The configuration and the arguments of a call.

use std::net::IpAddr;
use std::path::PathBuf;

use ::cluster_ipam::network::{Network, Range};
use cni::json::{JsonError, UnknownKey};
use cni::text::{parse_cidr, parse_ip};
use cni::{Dns, IpConfig, Route, Version, code};
use cni_plugin::{Call, codes};
use ipnet::IpNet;
use net::IpFamily;
use node_api::{ipam, socket, socket_in};
use serde::Deserialize;

use crate::shared::failure::Failure;
use crate::shared::unusable;

use super::flat;
use super::keys::{Ipam, RawAddress, invalid};

/// A valid configuration, together with what the runtime asked for.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) network: Network,
    /// The requested addresses, each within a range.
    pub(super) wanted: Vec<IpAddr>,
    /// Addresses outside the ranges.
    pub(super) fixed: Vec<IpConfig>,
    pub(super) routes: Vec<Route>,
    pub(super) dns: Dns,
    pub(super) socket: PathBuf,
    /// The gateways in `CNI_ARGS`.
    gateways: Vec<IpAddr>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Document {
    ipam: Option<Ipam>,
    #[serde(rename = "runtimeConfig")]
    runtime_config: Ips,
    args: Args,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: Ips,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ips {
    ips: Vec<String>,
}

impl Config {
    /// Reads and checks the configuration and the arguments of a call.
    ///
    /// # Errors
    /// Code 6 when a type is wrong, 7 when a value is, 4 when one of `CNI_ARGS` is, 102 when a
    /// requested address is in no range.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let document: Document = call.read_config()?;
        let ipam = document.ipam.ok_or_else(|| invalid("IPAM config missing 'ipam' key"))?;
        let below = flat::read(ipam.configuration_path.as_deref())?;
        let mut ipam = ipam.over(below);
        let listed = ipam.addresses.take().unwrap_or_default();
        let mut fixed =
            listed.iter().enumerate().map(RawAddress::check).collect::<Result<Vec<_>, _>>()?;
        let spec = ipam.spec(call.network().as_str(), &fixed)?;
        let network = Network::new(spec)
            .map_err(|error| Failure::from_chain(code::INVALID_CONFIG, &error))?;

        let args = call.args(&[
            "IP",
            "GATEWAY",
            "K8S_POD_NAME",
            "K8S_POD_NAMESPACE",
            "K8S_POD_UID",
            "K8S_POD_INFRA_CONTAINER_ID",
        ])?;
        let list = |key: &str| {
            let text = args.get(key).unwrap_or_default();
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            items.map(str::to_owned).collect::<Vec<_>>()
        };
        let wrong = |text: String| Failure::new(code::INVALID_ENVIRONMENT, text);
        let read = |item: &String| {
            parse_ip(item)
                .ok_or_else(|| wrong(format!("GATEWAY of CNI_ARGS: {item} is no address")))
        };
        let gateways = list("GATEWAY").iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let mut wanted = Vec::new();
        let from_config = [
            ("args.cni.ips", &document.args.cni.ips),
            ("runtimeConfig.ips", &document.runtime_config.ips),
        ];
        for (key, text) in
            from_config.iter().flat_map(|(key, ips)| ips.iter().map(move |ip| (key, ip)))
        {
            let address = parse_cidr(text).map(|net| net.addr()).or_else(|| parse_ip(text));
            let address =
                address.ok_or_else(|| invalid(format!("{key}: {text:?} is no address")))?;
            if !is_of_range(&network, address) {
                return Err(of_no_range(&network, address));
            }
            wanted.push(address);
        }
        for text in list("IP") {
            let net = parse_cidr(&text);
            let address = net.map(|net| net.addr()).or_else(|| parse_ip(&text));
            let address = address.ok_or_else(|| {
                wrong(format!("invalid CIDR {text}: IP of CNI_ARGS is no address"))
            })?;
            match net {
                _ if is_of_range(&network, address) => wanted.push(address),
                // In addition to those of the ranges, as with Whereabouts.
                Some(net) => fixed.push(IpConfig::new(net, None)),
                None => return Err(of_no_range(&network, address)),
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        let mut free: Vec<_> = network.ranges().iter().collect();
        for address in &wanted {
            let place = free.iter().position(|range| range.allows(*address)).ok_or_else(|| {
                Failure::new(
                    codes::ADDRESS,
                    format!("{address} is asked for beside another of its range"),
                )
                .with_details("each range gives one address")
            })?;
            free.remove(place);
        }
        let config = Config {
            network,
            wanted,
            fixed,
            routes: ipam.routes.take().unwrap_or_default(),
            dns: ipam.dns.take().unwrap_or_default(),
            socket: socket_or_default(call, ipam.socket.as_deref())?,
            gateways,
        };
        config.refuse_several(call)?;
        Ok(config)
    }

    /// Refuses addresses outside the ranges that no host can have. What an earlier version gave is
    /// not refused at CHECK.
    ///
    /// # Errors
    /// Code 7.
    pub(super) fn refuse_unusable(&self) -> Result<(), Failure> {
        for one in &self.fixed {
            // A range's subnet counts whatever prefix length the address is given.
            let subnets = self.network.ranges().iter().map(Range::subnet);
            let around = subnets.filter(|subnet| subnet.contains(&one.address.addr()));
            let lengths =
                around.map(|subnet| subnet.prefix_len()).chain([one.address.prefix_len()]);
            for address in lengths.filter_map(|length| IpNet::new(one.address.addr(), length).ok())
            {
                unusable::refuse(address, "key \"addresses\", or IP of CNI_ARGS")?;
            }
        }
        Ok(())
    }

    /// Adds a gateway of `CNI_ARGS` to an address that has none.
    pub(super) fn complete(&self, mut ip: IpConfig) -> IpConfig {
        let in_network = self.gateways.iter().find(|gateway| ip.address.contains(*gateway));
        ip.gateway = ip.gateway.or(in_network.copied());
        ip
    }

    /// Refuses several addresses of a family: results of old versions hold one of each family.
    fn refuse_several(&self, call: &Call<'_>) -> Result<(), Failure> {
        let of_ranges = self.network.ranges().iter().map(Range::family);
        let of_fixed = self.fixed.iter().map(|one| IpFamily::of(one.address.addr()));
        let all: Vec<_> = of_ranges.chain(of_fixed).collect();
        let has_several = |family| all.iter().filter(|other| **other == family).nth(1).is_some();
        if call.version() < Version::V0_3_0
            && (has_several(IpFamily::V4) || has_several(IpFamily::V6))
        {
            return Err(invalid(format!(
                "CNI version {} does not support more than 1 address per family",
                call.common().cni_version
            )));
        }
        Ok(())
    }
}

fn is_of_range(network: &Network, address: IpAddr) -> bool {
    network.ranges().iter().any(|range| range.allows(address))
}

fn of_no_range(network: &Network, address: IpAddr) -> Failure {
    let ranges = network.ranges().iter();
    let ranges: Vec<_> =
        ranges.map(|range| format!("{} to {}", range.first(), range.last())).collect();
    Failure::new(
        codes::ADDRESS,
        format!("the address {address} is asked for, which no range gives"),
    )
    .with_details(format!("ranges are {}, without exclusions and gateways", ranges.join(", ")))
}

/// Reads only the daemon's socket: for verbs that must work even if the rest is invalid.
pub(super) fn socket_of(call: &Call<'_>) -> PathBuf {
    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Document {
        ipam: OnlyPaths,
    }
    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct OnlyPaths {
        socket: Option<String>,
        configuration_path: Option<String>,
    }
    let Document { ipam } = call.read_config().unwrap_or_default();
    let socket =
        ipam.socket.or_else(|| flat::read(ipam.configuration_path.as_deref()).ok()?.socket);
    let found = socket_or_default(call, socket.as_deref());
    found.unwrap_or_else(|_| socket_in(&call.roots().run, ipam::SOCKET))
}

fn socket_or_default(call: &Call<'_>, text: Option<&str>) -> Result<PathBuf, Failure> {
    match text.filter(|text| !text.is_empty()) {
        Some(text) => Ok(socket::checked_path("ipam.socket", text)?),
        None => Ok(socket_in(&call.roots().run, ipam::SOCKET)),
    }
}

/// Lists the unknown keys of `ipam`. The rest of the document belongs to the calling plugin.
pub(super) fn unknown_keys(config: &str) -> Result<Vec<UnknownKey>, JsonError> {
    let mut unknown = cni::json::unknown_keys::<Document>(config)?;
    unknown.retain(|key| key.parent == "ipam" || key.parent.starts_with("ipam."));
    Ok(unknown)
}
