//! The ways to nodes' addresses, as the kernel has them.
//!
//! Thousands of nodes are behind few routes. So the kernel is asked for the ways to two addresses
//! of those that it treats alike (`routing::alike`), and to each where they may differ. What the
//! tables are meanwhile is told by events; then all ways are looked up again.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kernel::netlink::NetlinkError;
use kernel::route::{
    IpFamily, Route, RouteFilter, RouteSocket, Rule, RuleAction, TABLE_DEFAULT, TABLE_LOCAL,
    TABLE_MAIN,
};
use routing::alike::Destinations;
use routing::path::Way;
use routing::settings::Own;

use super::host::{self, Links};

/// So many addresses of a family are asked for one by one: less than it takes to list the tables of
/// a host with containers.
const FEW: usize = 64;

/// The tables of a host without rules of its own.
const TABLES: [u32; 3] = [TABLE_LOCAL, TABLE_MAIN, TABLE_DEFAULT];

/// Looks up the ways to underlay addresses.
pub(super) fn find(
    netlink: &mut RouteSocket,
    links: &Links,
    own: &Own,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> Vec<(IpAddr, Way)> {
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = addresses.into_iter().partition(IpAddr::is_ipv4);
    let mut ways = Vec::with_capacity(v4.len() + v6.len());
    for (family, addresses) in [(IpFamily::V4, v4), (IpFamily::V6, v6)] {
        for group in groups(netlink, family, addresses) {
            match common(netlink, links, own, &group) {
                Some(way) => ways.extend(group.into_iter().map(|address| (address, way.clone()))),
                None => ways.extend(group.into_iter().map(|address| {
                    let way = host::way(netlink, links, own, address);
                    (address, way.unwrap_or(Way::Missing))
                })),
            }
        }
    }
    ways
}

/// Returns the way to all addresses of a group; `None` if they have to be asked for one by one,
/// since the kernel has not answered, or the first and the last differ: of an address to which
/// nothing was sent since, the kernel does not list what it has learnt (linux net/ipv4/route.c
/// `fnhe_dump_bucket`), and answers with it.
fn common(netlink: &mut RouteSocket, links: &Links, own: &Own, group: &[IpAddr]) -> Option<Way> {
    let way = host::way(netlink, links, own, *group.first()?).ok()?;
    match group {
        [_, .., last] => {
            let other = host::way(netlink, links, own, *last).ok()?;
            (other == way).then_some(way)
        }
        _ => Some(way),
    }
}

/// Puts addresses of a family together that have the same way.
fn groups(netlink: &mut RouteSocket, family: IpFamily, addresses: Vec<IpAddr>) -> Vec<Vec<IpAddr>> {
    let destinations = match addresses.len() {
        ..=FEW => None,
        _ => destinations(netlink, family).ok().flatten(),
    };
    match destinations {
        Some(destinations) => destinations.group(addresses),
        None => addresses.into_iter().map(|address| vec![address]).collect(),
    }
}

/// Returns the destinations that decide about the ways; `None` if they do not decide alone.
fn destinations(
    netlink: &mut RouteSocket,
    family: IpFamily,
) -> Result<Option<Destinations>, NetlinkError> {
    if !netlink.rules(family)?.iter().all(is_plain) {
        return Ok(None);
    }
    let mut found = Destinations::default();
    let mut known = BTreeSet::new();
    for table in TABLES {
        let filter = RouteFilter { table: Some(table), ..RouteFilter::all(family) };
        for route in netlink.routes(filter)? {
            // Of several routers that have announced themselves, each is taken in turn.
            let key = (table, route.destination, route.priority);
            let is_one_of_several = family == IpFamily::V6 && !known.insert(key);
            found.add(route.destination, has_several_ways(&route) || is_one_of_several);
        }
    }
    for address in netlink.learnt_addresses(family)? {
        found.add_alone(address);
    }
    Ok(Some(found))
}

/// Reports whether a rule asks one of the usual tables, whatever the destination.
fn is_plain(rule: &Rule) -> bool {
    rule.destination.is_none()
        && !rule.invert
        && !rule.further
        && matches!(rule.action, RuleAction::Table(table) if TABLES.contains(&table))
}

/// Reports whether the address may decide which way a packet takes. A nexthop object may be a
/// group.
fn has_several_ways(route: &Route) -> bool {
    !route.next_hops.is_empty() || route.nexthop.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_rules_leave_the_destination_to_the_tables() {
        let to = |table| Rule::to_table(IpFamily::V4, table);
        let usual = to(TABLE_MAIN);
        assert!(TABLES.into_iter().all(|table| is_plain(&to(table))));
        // Packets of others, or with a mark, which questions have not.
        let source = "10.0.0.0/8".parse().ok();
        assert!(is_plain(&Rule { source, ..usual.clone() }));
        assert!(is_plain(&Rule { mark: Some((1, 1)), ..usual.clone() }));
        for (what, rule) in [
            ("another table", to(100)),
            ("a destination", Rule { destination: source, ..usual.clone() }),
            ("what does not match", Rule { invert: true, source, ..usual.clone() }),
            ("something unknown", Rule { further: true, ..usual.clone() }),
            ("an end", Rule { action: RuleAction::Unreachable, ..usual.clone() }),
        ] {
            assert!(!is_plain(&rule), "{what}");
        }
    }

    #[test]
    fn a_route_with_several_ways_is_told_from_one_with_one() {
        let route = Route::new("0.0.0.0/0".parse().unwrap());
        assert!(!has_several_ways(&route));
        assert!(has_several_ways(&Route { nexthop: Some(7), ..route.clone() }));
        let hop = kernel::route::NextHop { gateway: None, oif: Some(2), weight: 1, onlink: false };
        assert!(has_several_ways(&Route { next_hops: vec![hop], ..route }));
    }
}
