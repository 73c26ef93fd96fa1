//! The bridge's part of the packet filter: masquerading and spoof checks.

use firewall::{Plan, spoof};
use ipnet::IpNet;
use kernel::MacAddr;

use super::config::{Config, gateway_name};
use crate::shared::rules;

/// Returns the interface by which a container's packets enter the host's routing. For a link in a
/// VRF that is the VRF: after the first hook, the kernel reports it as the interface by which a
/// packet came in (linux drivers/net/vrf.c `vrf_ip_rcv`).
fn routing_ifname(config: &Config, vrf: Option<&str>) -> String {
    let vlan = config.vlans.access;
    let of_vlan = || vlan.and_then(|vlan| gateway_name(&config.bridge, vlan).ok());
    match vrf {
        Some(vrf) => vrf.to_owned(),
        None => of_vlan().unwrap_or_else(|| config.bridge.clone()).to_string(),
    }
}

/// Decides what an attachment needs in the packet filter. `vrf` is the VRF by which the host routes
/// to it.
pub(super) fn plan(
    network: &str,
    config: &Config,
    ips: &[IpNet],
    mac: MacAddr,
    host_ifname: &str,
    vrf: Option<&str>,
) -> Plan {
    let ifname = routing_ifname(config, vrf);
    let mut plan = rules::masquerade(config.masquerade, network, &ifname, ips);
    plan.join(guard(config, mac, host_ifname));
    plan
}

/// Decides what must exist before a port comes up.
pub(super) fn guard(config: &Config, mac: MacAddr, host_ifname: &str) -> Plan {
    if config.check_spoofing { spoof::plan(host_ifname, &[mac.0]) } else { Plan::default() }
}
