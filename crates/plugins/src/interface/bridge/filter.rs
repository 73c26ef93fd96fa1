//! The bridge's part of the packet filter: masquerading, spoof checks, and no routers among the
//! containers.

use firewall::element::Set;
use firewall::{Plan, routers, spoof};
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
/// to it, and `guard` is that of its port ([`guard`]).
pub(super) fn plan(
    network: &str,
    config: &Config,
    ips: &[IpNet],
    guard: Plan,
    vrf: Option<&str>,
) -> Plan {
    let ifname = routing_ifname(config, vrf);
    let mut plan = rules::masquerade(config.masquerade, network, &ifname, ips);
    plan.join(guard);
    plan
}

/// Decides what must exist before a port comes up. `hears_routers` says whether the host hears its
/// routers by the bridge.
pub(super) fn guard(config: &Config, mac: MacAddr, host_ifname: &str, hears_routers: bool) -> Plan {
    let mut plan = Plan::default();
    if config.check_spoofing {
        plan.join(spoof::plan(host_ifname, &[mac.0]));
    }
    if hears_routers {
        plan.join(routers::plan(host_ifname));
    }
    plan
}

/// Says whether a plan keeps the host from hearing the container as a router.
pub(super) fn keeps_routers_out(plan: &Plan) -> bool {
    plan.own.iter().any(|element| element.set == Set::NoRouters)
}
