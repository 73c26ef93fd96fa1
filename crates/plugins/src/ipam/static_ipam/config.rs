//! The configuration of `static`, by an administrator and a runtime, read and checked.

use std::net::IpAddr;

use cni::json::{JsonError, UnknownKey};
use cni::text::{parse_cidr, parse_ip};
use cni::{Dns, Route, Version, code};
use cni_plugin::Call;
use ipnet::IpNet;
use serde::Deserialize;

use crate::shared::failure::Failure;

/// A valid configuration, together with what the runtime asked for.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) addresses: Vec<Address>,
    pub(super) routes: Vec<Route>,
    pub(super) dns: Dns,
}

/// An address to assign, with its gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) address: IpNet,
    pub(super) gateway: Option<IpAddr>,
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
struct Ipam {
    #[serde(rename = "type")]
    _type: String,
    addresses: Vec<Raw>,
    routes: Vec<Route>,
    dns: Dns,
}

/// An address as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Raw {
    address: String,
    #[serde(with = "cni::text::optional_ip")]
    gateway: Option<IpAddr>,
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
    /// Code 6 when a type is wrong, 7 when a value is, 4 when one of `CNI_ARGS` is.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let document: Document = call.read_config()?;
        let ipam = document.ipam.ok_or_else(|| invalid("IPAM config missing 'ipam' key"))?;
        let (from_args, gateways) = arguments(call)?;
        let configured = ipam.addresses.iter().enumerate().map(Raw::check);
        let picked = [
            ("runtimeConfig.ips", &document.runtime_config.ips),
            ("args.cni.ips", &document.args.cni.ips),
        ];
        let mut addresses = match picked.into_iter().find(|(_, ips)| !ips.is_empty()) {
            // Addresses that are replaced are not checked, as with the reference.
            Some((key, ips)) => pick(key, ips, &configured.flatten().collect::<Vec<_>>())?,
            None => configured.chain(from_args.into_iter().map(Ok)).collect::<Result<_, _>>()?,
        };
        for one in &mut addresses {
            let in_network = gateways.iter().rev().find(|gateway| one.address.contains(*gateway));
            one.gateway = one.gateway.or(in_network.copied());
        }
        let addresses = once(addresses);
        if let Some(group) = addresses.iter().find(|one| one.address.addr().is_multicast()) {
            return Err(invalid(format!(
                "{} is a multicast address, which no interface can have as its own",
                group.address.addr()
            ))
            .with_details("key \"addresses\": name a unicast address"));
        }
        let too_many = |of: fn(&IpNet) -> bool| {
            addresses.iter().filter(|one| of(&one.address)).nth(1).is_some()
        };
        if call.version() < Version::V0_3_0
            && (too_many(|net| net.addr().is_ipv4()) || too_many(|net| net.addr().is_ipv6()))
        {
            return Err(invalid(format!(
                "CNI version {} does not support more than 1 address per family",
                call.common().cni_version
            )));
        }
        Ok(Config { addresses, routes: ipam.routes, dns: ipam.dns })
    }
}

impl Raw {
    fn check((index, raw): (usize, &Raw)) -> Result<Address, Failure> {
        let address = parse_cidr(&raw.address).ok_or_else(|| {
            invalid(format!(
                "the 'address' field is expected to be in CIDR notation, got: '{}'",
                raw.address
            ))
            .with_details(format!(
                "ipam.addresses[{index}].address is an address with a prefix length, such as 192.0.2.7/24"
            ))
        })?;
        Ok(Address { address, gateway: raw.gateway })
    }
}

/// Reads the addresses and gateways of `CNI_ARGS`, lists separated by commas.
fn arguments(call: &Call<'_>) -> Result<(Vec<Address>, Vec<IpAddr>), Failure> {
    let args = call.args(&["IP", "GATEWAY"])?;
    let list = |key: &str| {
        // An empty value counts as absent, as with the reference.
        let text = args.get(key).filter(|text| !text.is_empty());
        text.into_iter().flat_map(|text| text.split(',')).collect::<Vec<_>>()
    };
    let wrong = |message: String, key: &str| {
        Failure::new(code::INVALID_ENVIRONMENT, message).with_details(format!("{key} of CNI_ARGS"))
    };
    let addresses = list("IP").into_iter().map(|item| {
        let text = item.trim();
        let address = parse_cidr(text).ok_or_else(|| {
            wrong(format!("the 'ip' field is expected to be in CIDR notation, got: '{text}'"), "IP")
        })?;
        Ok(Address { address, gateway: None })
    });
    let gateways = list("GATEWAY").into_iter().map(|item| {
        parse_ip(item.trim())
            .ok_or_else(|| wrong(format!("invalid gateway address: {item}"), "GATEWAY"))
    });
    Ok((addresses.collect::<Result<_, Failure>>()?, gateways.collect::<Result<_, Failure>>()?))
}

/// Reads the addresses that replace the configured ones. One that is configured keeps its gateway.
fn pick(key: &str, ips: &[String], configured: &[Address]) -> Result<Vec<Address>, Failure> {
    let read = |(index, text): (usize, &String)| {
        let address = parse_cidr(text).ok_or_else(|| {
            invalid(format!("an entry in the 'ips' field is NOT in CIDR notation, got: '{text}'"))
                .with_details(format!(
                    "{key}[{index}] is an address with a prefix length, such as 192.0.2.7/24"
                ))
        })?;
        let same = configured.iter().find(|one| one.address.addr() == address.addr());
        Ok(Address { address, gateway: same.and_then(|one| one.gateway) })
    };
    ips.iter().enumerate().map(read).collect()
}

/// Removes duplicates.
fn once(addresses: Vec<Address>) -> Vec<Address> {
    let mut kept: Vec<Address> = Vec::with_capacity(addresses.len());
    for one in addresses {
        match kept.iter_mut().find(|before| before.address == one.address) {
            Some(before) => before.gateway = before.gateway.or(one.gateway),
            None => kept.push(one),
        }
    }
    kept
}

/// Lists the unknown keys of `ipam`. The rest of the document belongs to the calling plugin.
pub(super) fn unknown_keys(config: &str) -> Result<Vec<UnknownKey>, JsonError> {
    let mut unknown = cni::json::unknown_keys::<Document>(config)?;
    unknown.retain(|key| key.parent == "ipam" || key.parent.starts_with("ipam."));
    Ok(unknown)
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, message)
}
