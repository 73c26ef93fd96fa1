//! The bridge's part of the packet filter: masquerading and spoof checks.

use cni::{AddResult, Error, IfName};
use cni_plugin::Call;
use firewall::{Plan, spoof};
use ipnet::IpNet;
use kernel::MacAddr;
use state::Index;

use super::config::Config;
use super::connect::Facts;
use crate::shared::rules;

/// Returns the interface by which a container's packets enter the host's routing.
fn routing_ifname(config: &Config) -> IfName {
    match config.vlans.access {
        Some(vlan) => super::config::gateway_name(&config.bridge, vlan)
            .unwrap_or_else(|_| config.bridge.clone()),
        None => config.bridge.clone(),
    }
}

/// Decides what an attachment needs in the packet filter.
pub(super) fn plan(
    network: &str,
    config: &Config,
    ips: &[IpNet],
    mac: MacAddr,
    host_ifname: &str,
) -> Plan {
    let ifname = routing_ifname(config);
    let mut plan = rules::masquerade(config.masquerade, network, ifname.as_str(), ips);
    plan.join(guard(config, mac, host_ifname));
    plan
}

/// Decides what must exist before a port comes up.
pub(super) fn guard(config: &Config, mac: MacAddr, host_ifname: &str) -> Plan {
    if config.check_spoofing { spoof::plan(host_ifname, &[mac.0]) } else { Plan::default() }
}

/// Compares the packet filter with what ADD put there.
///
/// # Errors
/// Code 104 for a difference.
pub(super) fn check(
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
    mac: Option<MacAddr>,
    port: &str,
) -> Result<(), Error> {
    let (wanted, ips) = wanted(call, config, result, mac, port);
    let index = Index::new(call.roots());
    rules::check(&index, call.attachment(), config.masquerade, &wanted, &ips)
}

/// Lists how the packet filter differs from what ADD put there, one clause each.
///
/// # Errors
/// Code 101 when the packet filter cannot be read.
pub(super) fn differences(
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
    mac: Option<MacAddr>,
    port: &str,
) -> Result<Vec<String>, Error> {
    let (wanted, ips) = wanted(call, config, result, mac, port);
    let index = Index::new(call.roots());
    rules::differences(&index, call.attachment(), config.masquerade, &wanted, &ips)
}

fn wanted(
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
    mac: Option<MacAddr>,
    port: &str,
) -> (Plan, Vec<IpNet>) {
    let ips: Vec<IpNet> =
        result.container_ips(call.ifname().as_str()).map(|ip| ip.address).collect();
    let wanted = match (Facts::read(&Index::new(call.roots()), call.attachment()), mac) {
        (Some(facts), _) => facts.filter,
        (None, Some(mac)) => plan(call.network().as_str(), config, &ips, mac, port),
        (None, None) => Plan::default(),
    };
    (wanted, ips)
}
