//! The ways to nodes' addresses, as the kernel has them.
//!
//! Thousands of nodes are behind few routes. So the kernel is asked for the ways to two addresses
//! of those that it treats alike (`routing::alike`), and to each where they may differ. Events
//! report changes of the tables; then all ways are looked up again. If the kernel does not answer,
//! the other ways stay as they were known, and the loop asks again soon.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kernel::netlink::NetlinkError;
use kernel::route::{
    IpFamily, Route, RouteFilter, RouteSocket, Rule, RuleAction, TABLE_DEFAULT, TABLE_LOCAL,
    TABLE_MAIN,
};
use routing::alike::Destinations;
use routing::path::Way;
use routing::settings::OwnNode;

use super::host::{self, Links};

/// How many addresses of a family are asked for one by one: that takes less time than listing the
/// tables of a host with containers.
const FEW: usize = 64;

/// How many routes a table may have for each address that is asked for, so that it is listed: one
/// for the node, and some for others. To list more, such as the million of a router, takes longer
/// than to ask for each address.
const ROUTES: usize = 4;

/// The tables of a host without rules of its own.
const TABLES: [u32; 3] = [TABLE_LOCAL, TABLE_MAIN, TABLE_DEFAULT];

/// Looks up the ways to underlay addresses. Returns those that the kernel has answered, and why it
/// has not answered the others.
pub(super) fn find(
    netlink: &mut RouteSocket,
    links: &Links,
    own: &OwnNode,
    addresses: impl IntoIterator<Item = IpAddr>,
) -> (Vec<(IpAddr, Way)>, Result<(), NetlinkError>) {
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = addresses.into_iter().partition(IpAddr::is_ipv4);
    let mut ways = Vec::with_capacity(v4.len() + v6.len());
    for (family, addresses) in [(IpFamily::V4, v4), (IpFamily::V6, v6)] {
        let done = groups(netlink, family, addresses).and_then(|groups| {
            ask(groups, &mut ways, |address| host::way(netlink, links, own, address))
        });
        if done.is_err() {
            return (ways, done);
        }
    }
    (ways, Ok(()))
}

/// Asks for the ways to the addresses of each group, one after the other.
///
/// # Errors
/// Why the kernel has not answered a question. No question follows it: each of thousands could take
/// as long.
fn ask<E>(
    groups: Vec<Vec<IpAddr>>,
    ways: &mut Vec<(IpAddr, Way)>,
    mut look_up: impl FnMut(IpAddr) -> Result<Way, E>,
) -> Result<(), E> {
    for group in groups {
        let common = common(&group, &mut look_up)?;
        for address in group {
            let way = match &common {
                Some(way) => way.clone(),
                None => look_up(address)?,
            };
            ways.push((address, way));
        }
    }
    Ok(())
}

/// Returns the way to all addresses of a group; `None` if the first and the last differ, so that
/// each has to be asked for. They may differ, because the kernel does not list what it has learnt
/// of an address to which nothing was sent since (linux net/ipv4/route.c `fnhe_dump_bucket`), but
/// answers with it.
fn common<E>(
    group: &[IpAddr],
    look_up: &mut impl FnMut(IpAddr) -> Result<Way, E>,
) -> Result<Option<Way>, E> {
    let Some(first) = group.first() else { return Ok(None) };
    let way = look_up(*first)?;
    let are_alike = match group {
        [_, .., last] => look_up(*last)? == way,
        _ => true,
    };
    Ok(are_alike.then_some(way))
}

/// Puts addresses of a family together that have the same way.
///
/// # Errors
/// The kernel does not answer in time.
fn groups(
    netlink: &mut RouteSocket,
    family: IpFamily,
    addresses: Vec<IpAddr>,
) -> Result<Vec<Vec<IpAddr>>, NetlinkError> {
    let most = addresses.len().saturating_mul(ROUTES);
    let found = match addresses.len() {
        ..=FEW => Ok(None),
        _ => destinations(netlink, family, most),
    };
    let destinations = match found {
        Err(error @ NetlinkError::TimedOut { .. }) => return Err(error),
        // The kernel has no rules, or its tables change all the time.
        Err(_) => None,
        Ok(destinations) => destinations,
    };
    Ok(match destinations {
        Some(destinations) => destinations.group(addresses),
        None => addresses.into_iter().map(|address| vec![address]).collect(),
    })
}

/// Returns the destinations that decide about the ways; `None` if they do not decide alone, or a
/// table has more than `most`.
fn destinations(
    netlink: &mut RouteSocket,
    family: IpFamily,
    most: usize,
) -> Result<Option<Destinations>, NetlinkError> {
    if !netlink.rules(family)?.iter().all(is_plain) {
        return Ok(None);
    }
    let mut found = Destinations::default();
    let mut known = BTreeSet::new();
    for table in TABLES {
        let filter = RouteFilter { table: Some(table), ..RouteFilter::all(family) };
        let Some(routes) = RouteSocket::open()?.routes_if_few(filter, most)? else {
            return Ok(None);
        };
        for route in routes {
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

/// Reports whether a rule asks one of the usual tables, for every destination.
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
    use routing::path::Hop;

    use super::*;

    #[test]
    fn only_plain_rules_leave_the_destination_to_the_tables() {
        let to = |table| Rule::to_table(IpFamily::V4, table);
        let usual = to(TABLE_MAIN);
        assert!(TABLES.into_iter().all(|table| is_plain(&to(table))));
        // Such rules are about packets of other sources, or with a mark: questions have neither.
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

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn by(link: &str) -> Way {
        Way::ByGateway(Hop { link: link.into(), mtu: 1500, learnt_mtu: None })
    }

    /// Asks for these groups. The kernel answers the first `answers` questions. Returns what is
    /// found, and for which addresses it was asked.
    fn found(groups: &[&[&str]], answers: usize) -> (Vec<(IpAddr, Way)>, bool, Vec<IpAddr>) {
        let groups = groups.iter().map(|group| group.iter().map(|text| ip(text)).collect());
        let (mut ways, mut asked) = (Vec::new(), Vec::new());
        let done = ask(groups.collect(), &mut ways, |address| {
            asked.push(address);
            let narrow = address == ip("192.0.2.9");
            if asked.len() <= answers { Ok(by(if narrow { "b" } else { "a" })) } else { Err(()) }
        });
        (ways, done.is_ok(), asked)
    }

    #[test]
    fn the_first_and_the_last_of_those_alike_are_asked_for() {
        let (ways, is_done, asked) = found(&[&["192.0.2.1", "192.0.2.2", "192.0.2.3"]], 9);
        let all = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|text| (ip(text), by("a")));
        assert_eq!((ways, is_done), (all.to_vec(), true));
        assert_eq!(asked, [ip("192.0.2.1"), ip("192.0.2.3")]);
        let (ways, is_done, asked) = found(&[&["192.0.2.1", "192.0.2.2", "192.0.2.9"]], 9);
        let all = [("192.0.2.1", "a"), ("192.0.2.2", "a"), ("192.0.2.9", "b")];
        assert_eq!((ways, is_done), (all.map(|(text, link)| (ip(text), by(link))).to_vec(), true));
        assert_eq!(asked.len(), 5);
    }

    /// Each question could take as long as the one that is not answered.
    #[test]
    fn nothing_is_asked_after_a_question_without_an_answer() {
        let groups: [&[&str]; 3] =
            [&["192.0.2.1"], &["192.0.2.2", "192.0.2.3", "192.0.2.4"], &["192.0.2.5"]];
        for (answers, known) in [(0, 0), (1, 1), (2, 1), (3, 4)] {
            let (ways, is_done, asked) = found(&groups, answers);
            assert_eq!((ways.len(), is_done, asked.len()), (known, false, answers + 1));
        }
        assert_eq!(found(&groups, 4).0.len(), 5);
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
