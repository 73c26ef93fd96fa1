//! What the kernel describes, as a scene has it.

use std::collections::BTreeMap;

use diagnose::model::{
    Address, Ipvlan, IpvlanMode, IpvlanReach, Link, MacvlanMode, Neighbour, NextHop, Policy, Route,
    RouteKind, RouteRule, RuleAction, TunnelEnd,
};
use kernel::route::{
    IpFamily, IpvlanMode as KernelIpvlan, IpvlanReach as KernelReach, Link as KernelLink,
    LinkSettings, MacvlanMode as KernelMacvlan, NeighbourState, Route as KernelRoute,
    RouteKind as KernelKind, RouteProtocol, Rule as KernelRule, RuleAction as KernelAction,
    TABLE_LOCAL, VxlanFdb, VxlanInfo,
};
use kernel::xfrm::{self, Direction};

/// Adds a link's kernel parameters to the others. The link's name stays as it is: its dots are not
/// replaced.
pub(super) fn settings_of(
    link: &KernelLink,
    settings: LinkSettings,
    is_node: bool,
    sysctls: &mut BTreeMap<String, String>,
) {
    let mut put = |version: &str, key: &str, value: u32| {
        sysctls.insert(format!("net.{version}.conf.{}.{key}", link.name), value.to_string());
    };
    if let Some(ipv4) = settings.ipv4 {
        put("ipv4", "rp_filter", ipv4.rp_filter);
        put("ipv4", "arp_ignore", ipv4.arp_ignore);
        put("ipv4", "arp_filter", ipv4.arp_filter);
        if is_node {
            put("ipv4", "forwarding", ipv4.forwarding);
            put("ipv4", "route_localnet", ipv4.route_localnet);
            put("ipv4", "proxy_arp", ipv4.proxy_arp);
            put("ipv4", "accept_local", ipv4.accept_local);
        }
    }
    if let Some(ipv6) = settings.ipv6 {
        put("ipv6", "disable_ipv6", ipv6.disable_ipv6);
        put("ipv6", "accept_ra", ipv6.accept_ra);
        put("ipv6", "forwarding", ipv6.forwarding);
        if is_node {
            put("ipv6", "proxy_ndp", ipv6.proxy_ndp);
            put("ipv6", "force_forwarding", ipv6.force_forwarding);
        } else {
            put("ipv6", "hop_limit", ipv6.hop_limit);
        }
    }
}

pub(super) fn to_link(link: KernelLink, of_function: bool, addresses: Vec<Address>) -> Link {
    Link {
        index: link.index,
        of_function,
        up: link.up(),
        carrier: link.lower_up(),
        mac: link.mac.map(|mac| mac.to_string()),
        mtu: link.mtu,
        master: link.master,
        peer: link.peer_index,
        peer_netnsid: link.link_netnsid,
        port_state: link.port.map(|port| port.state),
        isolated: link.port.is_some_and(|port| port.isolated),
        // A bridge that answers for its ports need not ask them.
        no_broadcasts: link
            .port
            .is_some_and(|port| !port.broadcast_flood && !port.neighbour_suppress),
        no_multicasts: link
            .port
            .is_some_and(|port| !port.multicast_flood && !port.neighbour_suppress),
        no_unknown: link.port.is_some_and(|port| !port.learning && !port.unicast_flood),
        locked: link.port.is_some_and(|port| port.locked),
        no_hairpin: link.port.is_some_and(|port| !port.hairpin),
        no_arp: link.no_arp(),
        stp: link.bridge.is_some_and(|bridge| bridge.stp),
        vlan_filtering: link.bridge.is_some_and(|bridge| bridge.vlan_filtering),
        shows_ipv4: link.bridge.is_some_and(|bridge| bridge.shows_ipv4),
        shows_ipv6: link.bridge.is_some_and(|bridge| bridge.shows_ipv6),
        vrf_table: link.vrf_table,
        vlan: link.vlan.map(|vlan| vlan.id),
        vlans: Vec::new(),
        macvlan: link.macvlan_mode.map(macvlan),
        ipvlan: link.ipvlan_mode.zip(link.ipvlan_reach).map(ipvlan),
        losses: Vec::new(),
        redirects: Vec::new(),
        rate: None,
        delay_ms: 0,
        dropped: None,
        peers: None,
        remote: link.vxlan.as_ref().and_then(|vxlan| vxlan.group),
        port: link.vxlan.as_ref().map(|vxlan| vxlan.options.port),
        local: link.vxlan.as_ref().and_then(|vxlan| vxlan.options.local),
        // They are read afterwards.
        ends: link.vxlan.as_ref().filter(|vxlan| !asks(vxlan)).map(|_| Vec::new()),
        tx_checksums: None,
        external: link.vxlan.is_some_and(|vxlan| vxlan.switches.contains(&"external")),
        addresses,
        name: link.name,
        kind: link.kind,
        alias: link.alias,
    }
}

/// Says whether a VXLAN tunnel asks a program for what it has no entry for.
fn asks(vxlan: &VxlanInfo) -> bool {
    vxlan.switches.iter().any(|switch| ["external", "l2miss", "l3miss"].contains(switch))
}

fn macvlan(mode: KernelMacvlan) -> MacvlanMode {
    match mode {
        KernelMacvlan::Private => MacvlanMode::Private,
        KernelMacvlan::Vepa => MacvlanMode::Vepa,
        KernelMacvlan::Bridge => MacvlanMode::Bridge,
        KernelMacvlan::Passthru => MacvlanMode::Passthru,
    }
}

fn ipvlan((mode, reach): (KernelIpvlan, KernelReach)) -> Ipvlan {
    Ipvlan {
        mode: match mode {
            KernelIpvlan::L2 => IpvlanMode::L2,
            KernelIpvlan::L3 => IpvlanMode::L3,
            KernelIpvlan::L3s => IpvlanMode::L3s,
        },
        reach: match reach {
            KernelReach::Bridge => IpvlanReach::Bridge,
            KernelReach::Private => IpvlanReach::Private,
            KernelReach::Vepa => IpvlanReach::Vepa,
        },
    }
}

/// Maps a route; `None` for those that the kernel makes for addresses.
pub(super) fn route(route: KernelRoute) -> Option<Route> {
    let kind = match route.kind {
        _ if route.table == TABLE_LOCAL && !is_made(&route) => return None,
        KernelKind::Broadcast | KernelKind::Multicast | KernelKind::Anycast => return None,
        KernelKind::Unicast => RouteKind::Unicast,
        KernelKind::Blackhole => RouteKind::Blackhole,
        KernelKind::Unreachable => RouteKind::Unreachable,
        KernelKind::Prohibit => RouteKind::Prohibit,
        KernelKind::Throw => RouteKind::Throw,
        _ => RouteKind::Other,
    };
    let mut hops: Vec<NextHop> =
        route.next_hops.iter().map(|hop| NextHop { via: hop.gateway, link: hop.oif }).collect();
    if hops.is_empty() && (route.gateway.is_some() || route.oif.is_some()) {
        hops.push(NextHop { via: route.gateway, link: route.oif });
    }
    Some(Route {
        to: route.destination,
        table: route.table,
        kind,
        metric: route.priority.unwrap_or_default(),
        hops,
        source: route.source,
        mtu: route.mtu,
        protocol: route.protocol.map(|protocol| protocol.0),
    })
}

/// Says whether a person or a program has put a route into the table `local`. Older kernels do not say
/// of those of IPv6 that they are the kernel's own.
fn is_made(route: &KernelRoute) -> bool {
    route.kind == KernelKind::Local
        && route.destination.addr().is_ipv4()
        && route.protocol.is_some_and(|protocol| protocol != RouteProtocol::KERNEL)
}

/// Maps a rule. What it does is not known if it has conditions that a scene does not have, or asks
/// the table of a packet's VRF.
pub(super) fn rule(rule: KernelRule) -> RouteRule {
    let action = match rule.action {
        _ if rule.of_vrf || (rule.further && rule.suppress.is_none()) => RuleAction::Other,
        KernelAction::Table(table) => RuleAction::Table(table),
        KernelAction::Blackhole => RuleAction::Blackhole,
        KernelAction::Unreachable => RuleAction::Unreachable,
        KernelAction::Prohibit => RuleAction::Prohibit,
        _ => RuleAction::Other,
    };
    RouteRule {
        ipv4: rule.family == IpFamily::V4,
        priority: rule.priority.unwrap_or_default(),
        from: rule.source,
        to: rule.destination,
        iif: rule.iifname,
        oif: rule.oifname,
        mark: rule.mark,
        invert: rule.invert,
        suppress: rule.suppress,
        action,
    }
}

/// Maps a neighbour that was configured or that does not answer.
pub(super) fn neighbour(one: &kernel::route::Neighbour) -> Option<Neighbour> {
    let permanent = one.state.is_permanent();
    let failed = one.state.0 & NeighbourState::FAILED.0 != 0;
    (permanent || failed).then(|| to_neighbour(one))
}

/// Maps a neighbour.
pub(super) fn to_neighbour(one: &kernel::route::Neighbour) -> Neighbour {
    Neighbour {
        link: one.ifindex,
        address: one.address,
        mac: one.mac.map(|mac| mac.to_string()),
        permanent: one.state.is_permanent(),
        failed: one.state.0 & NeighbourState::FAILED.0 != 0,
    }
}

/// Maps a policy of IPsec; `None` for one that is not about all of what a node sends on.
pub(super) fn policy(one: &xfrm::Policy) -> Option<Policy> {
    let forwarded = match one.direction {
        Direction::Forward => true,
        Direction::Out => false,
        Direction::In => return None,
    };
    (!one.of_some).then_some(Policy {
        forwarded,
        from: one.from,
        to: one.to,
        priority: one.priority,
        blocks: one.blocks,
    })
}

/// Maps a forwarding entry of a VXLAN tunnel.
pub(super) fn to_end(entry: &VxlanFdb) -> TunnelEnd {
    let is_of_all = entry.mac.0 == [0; 6];
    TunnelEnd { mac: (!is_of_all).then(|| entry.mac.to_string()), to: entry.destination }
}

#[cfg(test)]
mod tests;
