//! The name servers that a result carries.

use cni::{CommonConfig, Dns};

/// Returns the configuration's `dns` if it gives any field, even an empty one, else the IPAM
/// plugin's.
#[must_use]
pub fn choose(config: &CommonConfig, from_ipam: Dns) -> Dns {
    match &config.dns {
        Some(dns) if dns.is_given() => dns.to_dns(),
        _ => from_ipam,
    }
}
