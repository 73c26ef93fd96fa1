//! The links, addresses and routes of the container's namespace.

use cni::code;
use cni_plugin::codes;
use ipnet::IpNet;
use kernel::netns::{Netns, within};
use kernel::route::{
    IpFamily, Link, Route, RouteFilter, RouteKind, RouteSocket, TABLE_LOCAL, is_link_local_v6,
};
use kernel::sysctl::{Sysctl, SysctlError};

use crate::shared::failure::Failure;
use crate::shared::policy::{Policy, RESERVED};

/// Lists the routes of both families that use a link, except those that the kernel itself creates
/// for the host's own addresses and for multicast.
pub(super) fn routes_of(socket: &mut RouteSocket, ifindex: u32) -> Result<Vec<Route>, Failure> {
    let mut routes = Vec::new();
    for family in [IpFamily::V4, IpFamily::V6] {
        let filter = RouteFilter { family, table: None, oif: Some(ifindex) };
        routes.extend(socket.routes(filter)?);
    }
    routes.retain(|route| {
        route.table != TABLE_LOCAL
            && route.kind == RouteKind::Unicast
            && !is_link_local(route)
            && (route.next_hops.iter().all(|hop| hop.oif == Some(ifindex)))
    });
    Ok(routes)
}

/// Returns whether a route is the prefix of a link's own IPv6 addresses, which comes and goes with
/// the link.
fn is_link_local(route: &Route) -> bool {
    let to = route.destination.addr();
    is_link_local_v6(to) || (to.is_ipv6() && to.is_multicast())
}

/// Lists the IPv6 addresses that were added to a link.
pub(super) fn addresses_v6(socket: &mut RouteSocket, ifindex: u32) -> Result<Vec<IpNet>, Failure> {
    let mut addresses = socket.addresses(Some(ifindex))?;
    addresses.retain(|found| match found.address.addr() {
        std::net::IpAddr::V4(_) => false,
        std::net::IpAddr::V6(address) => found.permanent() && !address.is_unicast_link_local(),
    });
    Ok(addresses.into_iter().map(|found| found.address).collect())
}

/// Runs work with the sysctl of a link that keeps IPv6 addresses when the link goes down.
pub(super) fn with_keep_addr_on_down<T: Send>(
    netns: &Netns,
    ifname: &str,
    work: impl FnOnce(&Sysctl) -> Result<T, SysctlError> + Send,
) -> Result<T, Failure> {
    let refused = |error: SysctlError| Failure::from_chain(codes::KERNEL, &error);
    let inside = || work(&Sysctl::of_link("net/ipv6/conf", ifname, "keep_addr_on_down")?);
    within(netns, inside)
        .map_err(|error| Failure::from_chain(code::INVALID_NETNS, &error))?
        .map_err(refused)
}

/// Finds a table that no VRF, rule or route uses and that is not the kernel's: the preferred one,
/// or the lowest.
pub(super) fn free_table(socket: &mut RouteSocket, preferred: Option<u32>) -> Result<u32, Failure> {
    let links = socket.links()?;
    let mut used: Vec<u32> = links.iter().filter_map(|link| link.vrf_table).collect();
    used.extend(Policy::read(socket)?.tables());
    let is_free = |table: &u32| !used.contains(table) && !RESERVED.contains(table);
    Ok(preferred.into_iter().chain(1..).find(is_free).unwrap_or(u32::MAX))
}

/// Returns whether a link is a VRF that we created, by its mark.
pub(super) fn is_ours(vrf: &Link) -> bool {
    vrf.alias.as_deref().is_some_and(|alias| alias.starts_with(crate::shared::owner::PREFIX))
}
