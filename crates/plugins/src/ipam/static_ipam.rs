//! `static`: the addresses that the configuration names, without any record of them.
//!
//! Keys, precedence and messages are the reference's. The differences:
//!
//! - An address that `args.cni.ips` or `runtimeConfig.ips` picks from `addresses` keeps its
//!   gateway; the reference loses it.
//! - `GATEWAY` of `CNI_ARGS` also applies to addresses from any source that have no other gateway;
//!   the reference considers only those of `CNI_ARGS`.
//! - An address that is named twice is given once. The reference returns it twice, and the
//!   interface plugin then fails.
//! - CHECK finds an address that is missing from `prevResult`; the reference considers only those
//!   that are there.
//! - STATUS reports whether the configuration would be accepted.
//!
//! DEL and GC have nothing to do, and read nothing: a configuration that has become invalid does
//! not prevent the removal of a container.

mod config;

use cni::json::{JsonError, UnknownKey};
use cni::{AddResult, Error, IpConfig, code};
use cni_plugin::{Call, Info, Plugin, Role, codes};
use ipnet::IpNet;

use self::config::Config;
use crate::shared::unusable::doubt_of_gateway;

/// The reference's words.
const NO_PREVIOUS: &str = "Required prevResult missing";

/// What the plugin is.
pub const INFO: Info =
    Info::new("static").role(Role::Addresses).capabilities(&["ips"]).gives_any_requested();

/// Returns the addresses of a configuration with this IPAM plugin; none if it cannot be read, which
/// the plugin itself reports.
pub(super) fn addresses(call: &Call<'_>) -> Vec<IpNet> {
    let config = Config::of(call).ok();
    let addresses = config.into_iter().flat_map(|config| config.addresses);
    addresses.map(|one| one.address).collect()
}

/// The plugin `static`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Static;

impl Plugin for Static {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let config = Config::of(call)?;
        let ips = config.addresses.iter().map(|one| IpConfig::new(one.address, one.gateway));
        Ok(AddResult {
            ips: ips.collect(),
            routes: config.routes,
            dns: config.dns,
            ..AddResult::default()
        })
    }

    fn del(&self, _: &Call<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        let config = Config::of(call)?;
        let previous = call.require_prev_result(NO_PREVIOUS)?;
        let ifname = call.ifname().as_str();
        for wanted in &config.addresses {
            // The prefix length is compared too: with another one, packets are routed differently.
            let found: Vec<&IpConfig> = previous
                .container_ips(ifname)
                .filter(|ip| ip.address.addr() == wanted.address.addr())
                .collect();
            let drift = |message: String| Err(Error::new(codes::DRIFT, message));
            if found.is_empty() {
                return drift(format!(
                    "static: Failed to find addr {} on interface {ifname}",
                    wanted.address
                ));
            }
            let is_as_wanted = |ip: &&&IpConfig| {
                ip.address == wanted.address
                    && (wanted.gateway.is_none() || ip.gateway == wanted.gateway)
            };
            if found.iter().find(is_as_wanted).is_none() {
                let error = drift(format!(
                    "static: Failed to match addr {} on interface {ifname}",
                    wanted.address.addr()
                ));
                let gateway = |of: Option<std::net::IpAddr>| {
                    of.map_or_else(|| "no gateway".to_owned(), |at| format!("gateway {at}"))
                };
                return error.map_err(|error| {
                    error.with_details(format!(
                        "the configuration has {} with {}, prevResult {} with {}",
                        wanted.address,
                        gateway(wanted.gateway),
                        found[0].address,
                        gateway(found[0].gateway)
                    ))
                });
            }
        }
        Ok(())
    }

    fn gc(&self, _: &Call<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn validate(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(Config::of(call).map(drop)?)
    }

    fn doubts(&self, call: &Call<'_>) -> Vec<Error> {
        let Ok(config) = Config::of(call) else { return Vec::new() };
        let doubt = |one: &config::Address| {
            let what = ipam::host::no_host(one.address)?;
            let text = format!("{} is {what}: no host reaches it", one.address.addr());
            let details = "key \"addresses\": name one that a host can have";
            Some(Error::new(code::INVALID_CONFIG, text).with_details(details))
        };
        let addresses = config.addresses.iter();
        let of_gateway = |one: &config::Address| doubt_of_gateway(one.gateway?, one.address);
        let of_gateways = addresses.clone().filter_map(of_gateway).map(Error::from);
        addresses.filter_map(doubt).chain(of_gateways).collect()
    }

    fn status(&self, call: &Call<'_>) -> Result<(), Error> {
        Ok(Config::of(call).map(drop)?)
    }

    fn unknown_keys(&self, config: &str) -> Result<Vec<UnknownKey>, JsonError> {
        config::unknown_keys(config)
    }
}
