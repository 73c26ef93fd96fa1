//! Translates a lease: into a result for the plugin, and into changes of the interface.

use std::net::IpAddr;

use cni::{AddResult, IpConfig};
use dhcp::{v4, v6};
use ipnet::{IpNet, Ipv6Net};
use kernel::route::{AddressOptions, Change, Route, Scope};

/// The prefix length of an address from DHCPv6: routers announce which prefixes are on the link.
const V6_PREFIX: u8 = 128;

/// Addresses and routes of one family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Terms {
    addresses: Vec<IpConfig>,
    routes: Vec<cni::Route>,
}

impl Terms {
    /// Translates a DHCPv4 lease. `priority` is the metric of every route.
    pub(crate) fn of_v4(lease: &v4::Lease, priority: Option<u32>) -> Self {
        let address = IpConfig::new(lease.address.into(), lease.gateway.map(IpAddr::from));
        let mtu = lease.mtu.map(u32::from);
        let routes = lease.routes.iter().map(|route| {
            let link = route.scope() == v4::Scope::Link;
            cni::Route {
                mtu,
                priority,
                scope: link.then_some(Scope::LINK.0),
                ..cni::Route::new(route.destination.into(), route.gateway.map(IpAddr::from))
            }
        });
        Terms { addresses: vec![address], routes: routes.collect() }
    }

    /// Translates a DHCPv6 lease: addresses only, as routes come from router advertisements.
    pub(crate) fn of_v6(lease: &v6::Lease) -> Self {
        let addresses = lease.addresses.iter().filter_map(|one| {
            let net = Ipv6Net::new(one.address, V6_PREFIX).ok()?;
            Some(IpConfig::new(net.into(), None))
        });
        Terms { addresses: addresses.collect(), routes: Vec::new() }
    }
}

/// Returns the result of ADD for what was granted.
pub(crate) fn result(
    v4: Option<&v4::Lease>,
    v6: Option<&v6::Lease>,
    priority: Option<u32>,
) -> AddResult {
    let mut result = AddResult::default();
    let terms = [v4.map(|lease| Terms::of_v4(lease, priority)), v6.map(Terms::of_v6)];
    for terms in terms.into_iter().flatten() {
        result.ips.extend(terms.addresses);
        result.routes.extend(terms.routes);
    }
    if let Some(lease) = v4 {
        result.dns.nameservers.extend(lease.dns.iter().map(ToString::to_string));
        result.dns.domain = lease.domain.clone().unwrap_or_default();
        result.dns.search.extend(lease.search.iter().cloned());
    }
    if let Some(lease) = v6 {
        result.dns.nameservers.extend(lease.dns.iter().map(ToString::to_string));
        for domain in &lease.search {
            if !result.dns.search.contains(domain) {
                result.dns.search.push(domain.clone());
            }
        }
    }
    result
}

/// Returns the changes that lead from one lease's terms to another's, in order: an address is added
/// before its routes, and routes are removed before it is.
pub(crate) fn plan(ifindex: u32, old: &Terms, new: &Terms) -> Vec<Change> {
    let addresses =
        |terms: &Terms| -> Vec<IpNet> { terms.addresses.iter().map(|ip| ip.address).collect() };
    let (had, has) = (addresses(old), addresses(new));
    let mut changes = Vec::new();
    for &address in has.iter().filter(|address| !had.contains(address)) {
        changes.push(Change::AddAddress { ifindex, address, options: AddressOptions::default() });
    }
    let key = |route: &cni::Route| (route.dst, route.priority);
    for route in &new.routes {
        // When an address changes, add all of them: some may have gone with the old address.
        if had != has || !old.routes.contains(route) {
            changes.push(Change::ReplaceRoute(kernel_route(ifindex, route, &has)));
        }
    }
    for route in &old.routes {
        if !new.routes.iter().any(|kept| key(kept) == key(route)) {
            changes.push(Change::DelRoute(kernel_route(ifindex, route, &had)));
        }
    }
    for &address in had.iter().filter(|address| !has.contains(address)) {
        changes.push(Change::DelAddress { ifindex, address });
    }
    changes
}

/// Returns the route as the interface plugins make it.
fn kernel_route(ifindex: u32, route: &cni::Route, addresses: &[IpNet]) -> Route {
    let onlink =
        route.gw.is_some_and(|gateway| !addresses.iter().any(|net| net.contains(&gateway)));
    Route {
        gateway: route.gw,
        oif: Some(ifindex),
        priority: route.priority,
        scope: route.scope.map(Scope),
        mtu: route.mtu,
        onlink,
        ..Route::new(route.dst.trunc())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn terms(address: &str, gateway: &str, mtu: Option<u32>) -> Terms {
        let gateway: Option<IpAddr> = Some(gateway.parse().unwrap());
        let default = cni::Route { mtu, ..cni::Route::new("0.0.0.0/0".parse().unwrap(), gateway) };
        Terms {
            addresses: vec![IpConfig::new(address.parse().unwrap(), gateway)],
            routes: vec![default],
        }
    }

    fn text(changes: &[Change]) -> String {
        changes.iter().map(|change| format!("{change}\n")).collect()
    }

    #[test]
    fn nothing_is_done_when_nothing_changed() {
        let terms = terms("192.0.2.9/24", "192.0.2.1", None);
        assert_eq!(plan(7, &terms, &terms), []);
    }

    #[test]
    fn another_address_takes_the_routes_along() {
        let (old, new) = (
            terms("192.0.2.9/24", "192.0.2.1", None),
            terms("198.51.100.9/24", "198.51.100.1", None),
        );
        expect![[r#"
            add address 198.51.100.9/24 to link 7
            replace route 0.0.0.0/0 via 198.51.100.1 on link 7
            delete address 192.0.2.9/24 from link 7
        "#]]
        .assert_eq(&text(&plan(7, &old, &new)));
    }

    #[test]
    fn another_router_or_mtu_replaces_the_route() {
        let old = terms("192.0.2.9/24", "192.0.2.1", None);
        let new = terms("192.0.2.9/24", "192.0.2.2", Some(1400));
        expect![[r#"
            replace route 0.0.0.0/0 via 192.0.2.2 on link 7
        "#]]
        .assert_eq(&text(&plan(7, &old, &new)));
    }

    #[test]
    fn a_lease_that_ended_takes_everything_away() {
        let old = terms("192.0.2.9/24", "192.0.2.1", None);
        expect![[r#"
            delete route 0.0.0.0/0 via 192.0.2.1 on link 7
            delete address 192.0.2.9/24 from link 7
        "#]]
        .assert_eq(&text(&plan(7, &old, &Terms::default())));
    }
}
