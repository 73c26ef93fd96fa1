//! Addresses that no host can have ([`ipam::host`]), in the words of a configuration's errors.

use std::net::IpAddr;

use cni::code;
use ipam::host::{no_gateway, no_host};
use ipnet::IpNet;

use super::failure::Failure;

/// Warns of a gateway that no host can be: no packet reaches it.
pub(crate) fn doubt_of_gateway(gateway: IpAddr, subnet: IpNet) -> Option<Failure> {
    let what = no_gateway(gateway, subnet)?;
    let text = format!("gateway {gateway} is {what}: no host can have it");
    let details = "key \"gateway\": name one that a host can have";
    Some(Failure::new(code::INVALID_CONFIG, text).with_details(details))
}

/// Refuses an address that is to be given although no host can have it. `key` named it.
///
/// # Errors
/// Code 7.
pub(crate) fn refuse(address: IpNet, key: &str) -> Result<(), Failure> {
    let Some(what) = no_host(address) else { return Ok(()) };
    let text = format!("{} is {what}: no host can have it", address.addr());
    let details = format!("{key}: name one that a host can have");
    Err(Failure::new(code::INVALID_CONFIG, text).with_details(details))
}
