//! The bridge's part of the packet filter: masquerading and spoof checks.

use cni::IfName;
use firewall::{Plan, spoof};
use ipnet::IpNet;
use kernel::MacAddr;

use super::config::Config;
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
