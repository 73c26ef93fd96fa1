//! The addresses and routes of both ends, decided before anything is done.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::{IpConfig, Route};
use ipnet::IpNet;
use kernel::route::{self, AddressOptions, Change, Scope, is_link_local_v6};

use crate::shared::container::{self, Options};

/// The position of the container's interface in the result: after the host's end.
pub(super) const CONTAINER_POSITION: usize = 1;

/// The gateway of IPv4 addresses without one: a link-local address (RFC 3927), which is in no
/// subnet.
const GATEWAY_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));

/// The gateway of IPv6 addresses without one.
const GATEWAY_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

/// Duplicate address detection is off on both ends: no other host is on the link.
pub(super) const OPTIONS: Options = Options::new(true);

/// Sets the position of every address in the result, and a gateway if the IPAM plugin named none.
pub(super) fn complete(ips: &mut [IpConfig]) {
    for ip in ips {
        ip.interface = Some(CONTAINER_POSITION);
        let v4 = ip.address.addr().is_ipv4();
        ip.gateway.get_or_insert(if v4 { GATEWAY_V4 } else { GATEWAY_V6 });
    }
}

/// The prefix of one address.
pub(super) fn host_net(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// Returns the gateways, each once.
pub(super) fn gateways(ips: &[IpConfig]) -> Vec<IpAddr> {
    let mut gateways = Vec::new();
    for gateway in ips.iter().filter_map(|ip| ip.gateway) {
        if !gateways.contains(&gateway) {
            gateways.push(gateway);
        }
    }
    gateways
}

/// Returns the routes by which a container reaches its gateways, and through them its subnets.
pub(super) fn gateway_routes(ips: &[IpConfig]) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    let mut push = |route: Route| {
        if !routes.iter().any(|other| other.dst == route.dst) {
            routes.push(route);
        }
    };
    for gateway in gateways(ips) {
        push(Route { scope: Some(Scope::LINK.0), ..Route::new(host_net(gateway), None) });
    }
    for ip in ips {
        let subnet = ip.address.trunc();
        if subnet.prefix_len() < subnet.max_prefix_len() {
            push(Route::new(subnet, ip.gateway));
        }
    }
    routes
}

/// Returns the changes for the container's end: addresses without the routes to their subnets, up,
/// the routes through the gateways, and the configured routes.
pub(super) fn container(ifindex: u32, ips: &[IpConfig], routes: &[Route]) -> Vec<Change> {
    let all: Vec<&IpConfig> = ips.iter().collect();
    let mut changes = Vec::new();
    for change in container::changes(ifindex, &all, &[], OPTIONS) {
        match change {
            Change::AddAddress { ifindex, address, options } => changes.push(Change::AddAddress {
                ifindex,
                address,
                options: AddressOptions { noprefixroute: true, ..options },
            }),
            other => changes.push(other),
        }
    }
    changes.extend(kernel_gateway_routes(ifindex, ips).into_iter().map(Change::AppendRoute));
    let mut planned: Vec<route::Route> = Vec::new();
    for wanted in routes {
        let route = kernel_route(ifindex, wanted, ips);
        if !planned.contains(&route) {
            planned.push(route);
        }
    }
    changes.extend(planned.into_iter().map(Change::AppendRoute));
    changes
}

/// Returns a configured route in the kernel's form. The gateways are reachable. For any other next
/// hop that was configured, the host is directly on the link.
pub(super) fn kernel_route(ifindex: u32, wanted: &Route, ips: &[IpConfig]) -> route::Route {
    let all: Vec<&IpConfig> = ips.iter().collect();
    let route = container::kernel_route(ifindex, wanted, &all);
    route::Route {
        onlink: route.gateway.is_some_and(|gateway| {
            !is_link_local_v6(gateway) && !ips.iter().any(|ip| ip.gateway == Some(gateway))
        }),
        ..route
    }
}

/// Returns the routes through the gateways in the kernel's form.
pub(super) fn kernel_gateway_routes(ifindex: u32, ips: &[IpConfig]) -> Vec<route::Route> {
    let routes = gateway_routes(ips).into_iter().map(|asked| {
        let source = ips.iter().find(|ip| match asked.gw {
            Some(_) => ip.address.trunc() == asked.dst,
            None => ip.gateway == Some(asked.dst.addr()),
        });
        route::Route {
            gateway: asked.gw,
            oif: Some(ifindex),
            scope: asked.scope.filter(|_| asked.dst.addr().is_ipv4()).map(Scope),
            source: source.map(|ip| ip.address.addr()),
            ..route::Route::new(asked.dst)
        }
    });
    routes.collect()
}

/// Returns the addresses for the host's end: the gateways.
pub(super) fn host_addresses(ifindex: u32, ips: &[IpConfig]) -> Vec<Change> {
    let addresses = gateways(ips).into_iter().map(|gateway| Change::AddAddress {
        ifindex,
        address: host_net(gateway),
        options: AddressOptions { nodad: true, ..AddressOptions::default() },
    });
    addresses.collect()
}

/// Returns the host's route to each of the container's addresses.
pub(super) fn host_routes(ifindex: u32, ips: &[IpConfig]) -> Vec<route::Route> {
    let routes = ips.iter().map(|ip| route::Route {
        oif: Some(ifindex),
        scope: ip.address.addr().is_ipv4().then_some(Scope::HOST),
        ..route::Route::new(host_net(ip.address.addr()))
    });
    routes.collect()
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(ips: &[(&str, Option<&str>)], routes: &[(&str, Option<&str>)], expected: Expect) {
        let mut ips: Vec<IpConfig> = ips
            .iter()
            .map(|(address, gateway)| {
                IpConfig::new(address.parse().unwrap(), gateway.map(|text| text.parse().unwrap()))
            })
            .collect();
        complete(&mut ips);
        let routes: Vec<Route> = routes
            .iter()
            .map(|(dst, gw)| Route::new(dst.parse().unwrap(), gw.map(|text| text.parse().unwrap())))
            .collect();
        let mut lines = Vec::new();
        for (side, changes) in [
            ("container", container(7, &ips, &routes)),
            ("host", host_addresses(8, &ips)),
            ("host", host_routes(8, &ips).into_iter().map(Change::AddRoute).collect()),
        ] {
            lines.extend(changes.iter().map(|change| format!("{side} {}", line(change))));
        }
        expected.assert_eq(&lines.join("\n"));
    }

    fn line(change: &Change) -> String {
        match change {
            Change::AddAddress { address, options, .. } => {
                assert!(options.nodad);
                format!("{address}{}", if options.noprefixroute { " noprefixroute" } else { "" })
            }
            Change::SetLink { set, .. } if set.arp_notify.is_some() => "arp_notify".to_owned(),
            Change::SetLink { .. } => "up".to_owned(),
            Change::AddRoute(route) | Change::AppendRoute(route) => format!(
                "{}{}{}{}{}",
                route.destination,
                route.gateway.map(|gw| format!(" via {gw}")).unwrap_or_default(),
                route.source.map(|src| format!(" src {src}")).unwrap_or_default(),
                route.scope.map(|scope| format!(" scope {}", scope.0)).unwrap_or_default(),
                if route.onlink { " onlink" } else { "" },
            ),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn everything_goes_through_the_host() {
        check(
            &[("10.1.0.2/24", Some("10.1.0.1")), ("2001:db8::2/64", Some("2001:db8::1"))],
            &[("0.0.0.0/0", None), ("10.9.0.0/16", Some("10.1.0.7"))],
            expect![[r#"
                container arp_notify
                container 10.1.0.2/24 noprefixroute
                container 2001:db8::2/64 noprefixroute
                container up
                container 10.1.0.1/32 src 10.1.0.2 scope 253
                container 2001:db8::1/128 src 2001:db8::2
                container 10.1.0.0/24 via 10.1.0.1 src 10.1.0.2
                container 2001:db8::/64 via 2001:db8::1 src 2001:db8::2
                container 0.0.0.0/0 via 10.1.0.1
                container 10.9.0.0/16 via 10.1.0.7 onlink
                host 10.1.0.1/32
                host 2001:db8::1/128
                host 10.1.0.2/32 scope 254
                host 2001:db8::2/128"#]],
        );
    }

    #[test]
    fn addresses_without_gateway_and_without_subnet() {
        check(
            &[("10.1.0.2/32", None), ("2001:db8::2/128", None)],
            &[("0.0.0.0/0", None), ("::/0", None)],
            expect![[r#"
                container arp_notify
                container 10.1.0.2/32 noprefixroute
                container 2001:db8::2/128 noprefixroute
                container up
                container 169.254.1.1/32 src 10.1.0.2 scope 253
                container fe80::1/128 src 2001:db8::2
                container 0.0.0.0/0 via 169.254.1.1
                container ::/0 via fe80::1
                host 169.254.1.1/32
                host fe80::1/128
                host 10.1.0.2/32 scope 254
                host 2001:db8::2/128"#]],
        );
    }

    #[test]
    fn two_addresses_of_a_subnet_share_its_ways() {
        check(
            &[("10.1.0.2/24", Some("10.1.0.1")), ("10.1.0.3/24", Some("10.1.0.1"))],
            &[],
            expect![[r#"
                container arp_notify
                container 10.1.0.2/24 noprefixroute
                container 10.1.0.3/24 noprefixroute
                container up
                container 10.1.0.1/32 src 10.1.0.2 scope 253
                container 10.1.0.0/24 via 10.1.0.1 src 10.1.0.2
                host 10.1.0.1/32
                host 10.1.0.2/32 scope 254
                host 10.1.0.3/32 scope 254"#]],
        );
    }
}
