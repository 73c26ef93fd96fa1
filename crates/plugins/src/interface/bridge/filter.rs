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
pub(super) fn check(
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
    mac: Option<MacAddr>,
    port: &str,
) -> Result<(), Error> {
    let key = call.attachment();
    let index = Index::new(call.roots());
    let ips: Vec<IpNet> =
        result.container_ips(call.ifname().as_str()).map(|ip| ip.address).collect();
    let wanted = match (Facts::read(&index, key), mac) {
        (Some(facts), _) => facts.filter,
        (None, Some(mac)) => plan(call.network().as_str(), config, &ips, mac, port),
        (None, None) => Plan::default(),
    };
    rules::check(&index, key, config.masquerade, &wanted, &ips)
}
