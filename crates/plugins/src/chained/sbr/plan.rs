//! Chooses tables, and compares and plans rules and routes. Reads nothing, changes nothing.

use std::net::IpAddr;

use cni::IpConfig;
use ipnet::IpNet;
use kernel::route::{
    Change, IpFamily, Route, RouteKind, RouteProtocol, Rule, Scope, TABLE_MAIN, is_link_local_v6,
};
use wanted::{Item, SourceRoute, SourceTable, SourceTables, State};

use super::Source;
use super::config::Config;
use crate::shared::policy::{Policy, RESERVED, table_of};
use crate::shared::steps::Step;

/// Our first table, the same as the reference's.
pub(super) const FIRST_TABLE: u32 = 100;

/// Chooses the table of each address: the configured one, one of an earlier ADD, or the first
/// unused one. `recorded` is what an earlier ADD of the attachment has chosen.
pub(super) fn sources(
    config: &Config,
    ips: &[IpConfig],
    policy: &Policy,
    recorded: &[Source],
) -> Vec<Source> {
    let mut used: Vec<u32> = policy.tables().collect();
    let mut sources = Vec::new();
    for ip in ips {
        let address = ip.address.addr();
        let table = config
            .table
            .or_else(|| earlier_table(address, policy, recorded))
            .unwrap_or_else(|| {
                (FIRST_TABLE..)
                    .find(|table| !used.contains(table) && !RESERVED.contains(table))
                    .unwrap_or(u32::MAX)
            });
        used.push(table);
        sources.push(Source { address, table });
    }
    sources
}

/// Finds the table of an earlier ADD: the record names it and no other rule uses it now, or a rule
/// of the address does.
fn earlier_table(address: IpAddr, policy: &Policy, recorded: &[Source]) -> Option<u32> {
    let recorded = recorded.iter().find(|source| source.address == address);
    let recorded = recorded.filter(|source| !is_taken(source, policy)).map(|source| source.table);
    recorded.or_else(|| {
        let own = policy.rules.iter().filter(|rule| is_of_address(rule, address));
        let tables = own.filter_map(table_of);
        tables.filter(|table| FIRST_TABLE <= *table && !RESERVED.contains(table)).min()
    })
}

/// Returns whether other programs' rules use the table of an address.
pub(super) fn is_taken(source: &Source, policy: &Policy) -> bool {
    let mut others = policy.rules.iter().filter(|rule| !is_of_address(rule, source.address));
    others.any(|rule| table_of(rule) == Some(source.table))
}

pub(super) fn is_of_address(rule: &Rule, address: IpAddr) -> bool {
    is_plain(rule) && rule.source == Some(IpNet::from(address))
}

/// Says in which tables the routes of an interface are; nothing if the table is given. `routes` are
/// those into the addresses' subnets that ADD recorded.
pub(super) fn tables(
    config: &Config,
    ips: &[IpConfig],
    sources: &[Source],
    routes: &[SourceRoute],
    ifname: &str,
) -> Option<SourceTables> {
    let table = |(ip, source): (&IpConfig, &Source)| {
        let family = IpFamily::of(source.address);
        let given = config.gateway(family);
        let near = routes.iter().filter(|route| is_near(&route.destination, &ip.address));
        SourceTable {
            address: ip.address,
            table: source.table,
            gateway: given.or(ip.gateway).filter(|gateway| IpFamily::of(*gateway) == family),
            replaces: given.is_some(),
            routes: near.cloned().collect(),
        }
    };
    config.table.is_none().then(|| SourceTables {
        link: ifname.to_owned(),
        tables: ips.iter().zip(sources).map(table).collect(),
        hints: config.source_hints,
        keeps_main: config.keeps_main,
    })
}

/// Compares an item with the rules and routes of the namespace, in which the interface has this
/// ifindex. Returns what differs, each in one clause.
pub(super) fn differences(state: &State, oif: u32, policy: &Policy) -> Vec<String> {
    match state {
        State::Rule(wanted::Rule { from, table, .. }) => {
            let rule = rule(&Source { address: *from, table: *table });
            let gone = !policy.rules.iter().any(|found| is_same_rule(found, &rule));
            let text =
                || format!("there is no rule that sends packets from {from} to table {table}");
            gone.then(text).into_iter().collect()
        }
        State::SourceTables(wanted) => {
            let tables = wanted.tables.iter();
            let missing = tables.flat_map(|own| missing(own, wanted.hints, oif, policy));
            missing.chain(back_in_main(wanted, oif, policy)).collect()
        }
        _ => Vec::new(),
    }
}

fn missing(wanted: &SourceTable, hints: bool, oif: u32, policy: &Policy) -> Vec<String> {
    let SourceTable { address: net, table, gateway, replaces, .. } = *wanted;
    let address = net.addr();
    let is_lost = |route: &&SourceRoute| !is_there(&own_route(route, table, oif), policy);
    let name = |route: &SourceRoute| {
        let by = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        format!("table {table} of address {address} has no route {}{by}", route.destination)
    };
    let mut missing: Vec<String> = wanted.routes.iter().filter(is_lost).map(name).collect();
    let mut own = policy
        .routes
        .iter()
        .filter(|route| route.table == table && is_of_family(route, &net) && leaves_by(route, oif));
    if let Some(gateway) = gateway {
        // A default route that the interface had before may use another gateway than the result's.
        let good = own.find(|route| route.is_default());
        if !good.is_some_and(|route| !replaces || route.gateway == Some(gateway)) {
            missing.push(format!(
                "table {table} of address {address} has no default route via {gateway}"
            ));
        }
    } else if missing.is_empty() && net.prefix_len() < net.max_prefix_len() && own.next().is_none()
    {
        missing.push(format!("table {table} of address {address} has no route"));
    }
    let hint = hint(&net, oif);
    if hints && !policy.routes.iter().any(|found| is_hint(found, &hint)) {
        missing.push(format!(
            "the main table has no route {} that says to send from {address}",
            hint.destination
        ));
    }
    missing
}

/// Only default routes: others may have been added since (CNI 1.1.0 §2 "CHECK").
fn back_in_main(wanted: &SourceTables, oif: u32, policy: &Policy) -> impl Iterator<Item = String> {
    let back = policy.routes.iter().filter(move |route| {
        let of_ours = wanted.tables.iter().any(|own| is_of_family(route, &own.address));
        let in_main = route.table == TABLE_MAIN && route.is_default() && leaves_by(route, oif);
        in_main && of_ours && !wanted.keeps_main
    });
    let link = &wanted.link;
    back.map(move |route| format!("the main table has route {route} of interface {link:?} again"))
}

/// Plans what makes an item as it is wanted. ADD and repair do the same.
pub(super) fn steps(item: &Item, oif: u32, policy: &Policy) -> Vec<Step> {
    match &item.state {
        State::Rule(_) if differences(&item.state, oif, policy).is_empty() => Vec::new(),
        State::Rule(wanted::Rule { from, table, .. }) => {
            let rule = rule(&Source { address: *from, table: *table });
            vec![Step::new(Change::AddRule(rule.clone()), Change::DelRule(rule))]
        }
        State::SourceTables(wanted) => fill_tables(wanted, oif, policy),
        _ => Vec::new(),
    }
}

/// Moves the interface's routes from the main table into those of its addresses, and adds what
/// these need besides.
fn fill_tables(wanted: &SourceTables, oif: u32, policy: &Policy) -> Vec<Step> {
    let movable = movable(oif, policy);
    let mut moved = vec![false; movable.len()];
    let mut steps = Vec::new();
    for own in &wanted.tables {
        let found = table_routes(own, &wanted.tables, oif, &movable, &mut moved);
        let recorded = own.routes.iter().map(|route| own_route(route, own.table, oif));
        let is_found = |lost: &Route| found.iter().any(|route| is_same_way(route, lost));
        let lost: Vec<Route> = recorded.filter(|route| !is_found(route)).collect();
        // The default route needs the route to its gateway.
        let routes = lost.into_iter().chain(found);
        steps.extend(routes.filter(|route| !is_there(route, policy)).map(put));
    }
    let gone = movable.into_iter().zip(moved).filter(|(_, moved)| *moved && !wanted.keeps_main);
    steps.extend(gone.filter_map(|(route, _)| leave_main(wanted.hints, route)));
    if wanted.hints {
        let hints = wanted.tables.iter().map(|own| hint(&own.address, oif));
        let new = hints.filter(|hint| !policy.routes.iter().any(|found| is_hint(found, hint)));
        steps.extend(new.map(|hint| replace(hint, policy)));
    }
    steps
}

/// Returns the rule for a source.
pub(super) fn rule(source: &Source) -> Rule {
    Rule {
        source: Some(IpNet::from(source.address)),
        ..Rule::to_table(IpFamily::of(source.address), source.table)
    }
}

/// Returns whether a rule matches only on the source.
fn is_plain(rule: &Rule) -> bool {
    let Rule { destination, iifname, oifname, mark, invert, .. } = rule;
    destination.is_none() && iifname.is_none() && oifname.is_none() && mark.is_none() && !invert
}

/// Returns whether a rule that was found is this one; the kernel gives it a priority.
pub(super) fn is_same_rule(found: &Rule, rule: &Rule) -> bool {
    is_plain(found) && found.source == rule.source && found.action == rule.action
}

/// Returns whether an earlier ADD put a route into its table. A hint may have changed its source
/// since then.
fn is_there(route: &Route, policy: &Policy) -> bool {
    policy.routes.iter().any(|found| {
        let same_metric = found.priority == route.priority || route.priority.is_none();
        found.table == route.table && same_metric && is_same_way(found, route)
    })
}

/// Returns whether two routes lead to one destination by the same way.
fn is_same_way(one: &Route, other: &Route) -> bool {
    one.destination == other.destination
        && one.gateway == other.gateway
        && one.oif == other.oif
        && one.next_hops == other.next_hops
}

/// Returns the routes into the addresses' subnets that their tables have once these items are made:
/// those without a next hop first.
pub(super) fn near_routes(items: &[Item], oif: u32, policy: &Policy) -> Vec<SourceRoute> {
    let movable = movable(oif, policy);
    let mut near: Vec<SourceRoute> = Vec::new();
    for item in items {
        let State::SourceTables(wanted) = &item.state else { continue };
        for own in &wanted.tables {
            let mut moved = vec![false; movable.len()];
            let new = table_routes(own, &wanted.tables, oif, &movable, &mut moved);
            let is_own = |route: &&Route| route.table == own.table && leaves_by(route, oif);
            let all = new.iter().chain(policy.routes.iter().filter(is_own));
            let all = all.filter(|route| is_near(&route.destination, &own.address));
            for route in all.filter_map(recorded) {
                if !near.contains(&route) {
                    near.push(route);
                }
            }
        }
    }
    let (mut near, by_gateway): (Vec<_>, Vec<_>) =
        near.into_iter().partition(|route| route.gateway.is_none());
    near.extend(by_gateway);
    near
}

/// Returns whether a destination is in an address's subnet, or is the link's own prefix.
fn is_near(destination: &IpNet, address: &IpNet) -> bool {
    let is_own_prefix = is_link_local_v6(destination.addr()) && address.addr().is_ipv6();
    is_own_prefix || address.contains(destination)
}

/// Returns what is recorded of a route; nothing of one by several next hops.
fn recorded(route: &Route) -> Option<SourceRoute> {
    let is_simple = route.next_hops.is_empty() && route.nexthop.is_none();
    (is_simple && matches!(route.kind, RouteKind::Unicast)).then(|| SourceRoute {
        destination: route.destination,
        gateway: route.gateway,
        source: route.source,
        scope: route.scope.map(|scope| scope.0),
        protocol: route.protocol.map(|protocol| protocol.0),
        priority: route.priority,
        onlink: route.onlink,
    })
}

/// Returns a recorded route, in an address's table.
fn own_route(recorded: &SourceRoute, table: u32, oif: u32) -> Route {
    Route {
        gateway: recorded.gateway,
        oif: Some(oif),
        table,
        priority: recorded.priority,
        scope: recorded.scope.map(Scope),
        protocol: recorded.protocol.map(RouteProtocol),
        source: recorded.source,
        onlink: recorded.onlink,
        ..Route::new(recorded.destination)
    }
}

/// Returns the main table's routes that use only this interface.
fn movable(oif: u32, policy: &Policy) -> Vec<Route> {
    let by_link = |route: &&Route| {
        route.table == TABLE_MAIN
            && matches!(route.kind, RouteKind::Unicast)
            && leaves_by(route, oif)
    };
    policy.routes.iter().filter(by_link).cloned().collect()
}

/// Returns whether a route uses this link and no other.
pub(super) fn leaves_by(route: &Route, oif: u32) -> bool {
    route.oif == Some(oif)
        || !route.next_hops.is_empty() && route.next_hops.iter().all(|hop| hop.oif == Some(oif))
}

/// Returns whether a route is of an address's family.
fn is_of_family(route: &Route, address: &IpNet) -> bool {
    IpFamily::of(route.destination.addr()) == IpFamily::of(address.addr())
}

/// Plans the routes of an address's table, and marks the main table's routes that it then contains.
fn table_routes(
    own: &SourceTable,
    all: &[SourceTable],
    oif: u32,
    movable: &[Route],
    moved: &mut [bool],
) -> Vec<Route> {
    let mut routes = Vec::new();
    for (route, moved) in movable.iter().zip(moved) {
        if !is_of_family(route, &own.address) {
            continue;
        }
        if own.replaces && route.is_default() {
            *moved = true;
        } else if belongs(route, &own.address) || is_nobodys(route, own, all) {
            *moved |= !is_link_local(route);
            routes.push(Route { table: own.table, ..route.clone() });
        }
    }
    if let Some(gateway) = own.gateway
        && !routes.iter().any(Route::is_default)
    {
        routes.push(default(gateway, own, oif));
    }
    // The kernel looks up gateways in the table itself.
    let (mut routes, by_gateway): (Vec<_>, Vec<_>) =
        routes.into_iter().partition(|route| route.gateway.is_none() && route.next_hops.is_empty());
    routes.extend(by_gateway);
    routes
}

/// Returns a default route by a gateway. A gateway outside the subnet is declared reachable on the
/// link.
fn default(gateway: IpAddr, own: &SourceTable, oif: u32) -> Route {
    let anywhere = match gateway {
        IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
    };
    let onlink = !own.address.contains(&gateway) && !is_link_local_v6(gateway);
    let table = own.table;
    Route { gateway: Some(gateway), oif: Some(oif), table, onlink, ..Route::new(anywhere) }
}

/// Returns whether a route belongs to an address: its source or gateway is in the address's subnet,
/// or it has neither.
fn belongs(route: &Route, net: &IpNet) -> bool {
    let near = |address: IpAddr| net.contains(&address) || is_link_local_v6(address);
    let hops = route.next_hops.iter().filter_map(|hop| hop.gateway);
    let gateways: Vec<IpAddr> = route.gateway.into_iter().chain(hops).collect();
    match route.source {
        Some(source) if net.contains(&source) => true,
        Some(_) => gateways.iter().any(|&gateway| near(gateway)),
        None => gateways.is_empty() || gateways.iter().any(|&gateway| near(gateway)),
    }
}

/// Returns whether a route belongs to no address and this is the first address of its family: the
/// route must go somewhere.
fn is_nobodys(route: &Route, own: &SourceTable, all: &[SourceTable]) -> bool {
    let mut family = all.iter().map(|other| &other.address).filter(|net| is_of_family(route, net));
    family.next() == Some(&own.address) && !family.any(|other| belongs(route, other))
}

/// Returns whether a route is the link's own prefix, which neighbour discovery always needs.
fn is_link_local(route: &Route) -> bool {
    is_link_local_v6(route.destination.addr())
}

/// Adds a route to a table of ours.
fn put(route: Route) -> Step {
    let back = Change::DelRoute(route.clone());
    let one_default = route.is_default() && route.next_hops.is_empty();
    let change = if one_default { Change::ReplaceRoute(route) } else { Change::AppendRoute(route) };
    Step::new(change, back)
}

/// Removes a route that was moved from the main table. With hints, routes without a gateway stay.
fn leave_main(hints: bool, route: Route) -> Option<Step> {
    let to_subnet = route.gateway.is_none() && route.next_hops.is_empty();
    if hints && to_subnet {
        return None;
    }
    Some(Step::new(Change::DelRoute(route.clone()), Change::AppendRoute(route)))
}

/// Returns the main table's route to an address's subnet, with that address as the source.
fn hint(net: &IpNet, oif: u32) -> Route {
    let v4 = net.addr().is_ipv4();
    Route {
        oif: Some(oif),
        scope: v4.then_some(Scope::LINK),
        source: Some(net.addr()),
        ..Route::new(net.trunc())
    }
}

/// Returns whether a route that was found is a hint.
fn is_hint(found: &Route, hint: &Route) -> bool {
    found.table == TABLE_MAIN
        && found.destination == hint.destination
        && found.oif == hint.oif
        && found.source == hint.source
}

/// Replaces the route to the same subnet, if there is one, by a hint.
fn replace(hint: Route, policy: &Policy) -> Step {
    let before = policy.routes.iter().find(|found| {
        found.table == TABLE_MAIN && found.destination == hint.destination && found.oif == hint.oif
    });
    match before {
        Some(before) => {
            let hint = Route { priority: before.priority, ..hint };
            Step::new(Change::ReplaceRoute(hint), Change::ReplaceRoute(before.clone()))
        }
        None => Step::new(Change::ReplaceRoute(hint.clone()), Change::DelRoute(hint)),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn ip(address: &str, gateway: Option<&str>) -> IpConfig {
        IpConfig::new(address.parse().unwrap(), gateway.map(|text| text.parse().unwrap()))
    }

    fn route(destination: &str, gateway: Option<&str>, oif: u32) -> Route {
        Route {
            gateway: gateway.map(|text| text.parse().unwrap()),
            oif: Some(oif),
            ..Route::new(destination.parse().unwrap())
        }
    }

    /// Plans ADD for link 7.
    fn add(config: &Config, ips: &[IpConfig], policy: &Policy) -> Vec<Step> {
        let sources = sources(config, ips, policy, &[]);
        let items = super::super::wanted::items(config, ips, &sources, &[], "eth0");
        items.iter().flat_map(|item| steps(item, 7, policy)).collect()
    }

    #[track_caller]
    fn check(config: &Config, ips: &[IpConfig], policy: &Policy, expect: Expect) {
        let steps = add(config, ips, policy);
        let lines: Vec<String> = steps.iter().map(|step| step.change.to_string()).collect();
        expect.assert_eq(&lines.join("\n"));
    }

    fn dual() -> Policy {
        let routes = vec![
            route("10.0.0.0/24", None, 7),
            route("0.0.0.0/0", Some("10.0.0.1"), 7),
            route("172.16.0.0/12", Some("192.0.2.1"), 7),
            route("198.51.100.0/24", None, 8),
            route("fd00::/64", None, 7),
            route("fe80::/64", None, 7),
            Route { table: 100, ..route("203.0.113.0/24", None, 8) },
        ];
        Policy { rules: vec![Rule::to_table(IpFamily::V6, 101)], routes }
    }

    #[test]
    fn each_familys_routes_go_into_its_own_table() {
        let ips = [ip("10.0.0.2/24", Some("10.0.0.1")), ip("fd00::2/64", Some("fd00::1"))];
        check(
            &Config::default(),
            &ips,
            &dual(),
            expect![[r#"
                add routing rule from 10.0.0.2/32 table 102
                add routing rule from fd00::2/128 table 103
                append route 10.0.0.0/24 on link 7 in table 102
                replace route 0.0.0.0/0 via 10.0.0.1 on link 7 in table 102
                append route 172.16.0.0/12 via 192.0.2.1 on link 7 in table 102
                append route fd00::/64 on link 7 in table 103
                append route fe80::/64 on link 7 in table 103
                replace route ::/0 via fd00::1 on link 7 in table 103
                delete route 10.0.0.0/24 on link 7
                delete route 0.0.0.0/0 via 10.0.0.1 on link 7
                delete route 172.16.0.0/12 via 192.0.2.1 on link 7
                delete route fd00::/64 on link 7"#]],
        );
        // Nothing moves in a family without an address.
        check(
            &Config { source_hints: true, ..Config::default() },
            &ips[1..],
            &dual(),
            expect![[r#"
                add routing rule from fd00::2/128 table 102
                append route fd00::/64 on link 7 in table 102
                append route fe80::/64 on link 7 in table 102
                replace route ::/0 via fd00::1 on link 7 in table 102
                replace route fd00::/64 on link 7"#]],
        );
    }

    #[test]
    fn a_rule_that_is_there_says_which_table() {
        let ips = [ip("10.0.0.2/24", Some("10.0.0.1"))];
        let mut policy = dual();
        policy.rules.push(rule(&Source { address: ips[0].address.addr(), table: 150 }));
        check(
            &Config { gateways: vec!["10.0.0.9".parse().unwrap()], ..Config::default() },
            &ips,
            &policy,
            expect![[r#"
                append route 10.0.0.0/24 on link 7 in table 150
                append route 172.16.0.0/12 via 192.0.2.1 on link 7 in table 150
                replace route 0.0.0.0/0 via 10.0.0.9 on link 7 in table 150
                delete route 10.0.0.0/24 on link 7
                delete route 0.0.0.0/0 via 10.0.0.1 on link 7
                delete route 172.16.0.0/12 via 192.0.2.1 on link 7"#]],
        );
        check(&Config { table: Some(150), ..Config::default() }, &ips, &policy, expect![""]);
    }

    #[test]
    fn a_table_of_an_earlier_add_is_taken_again_unless_another_rule_uses_it() {
        let ips = [ip("10.0.0.2/24", None)];
        let address = ips[0].address.addr();
        let recorded = [Source { address, table: 120 }];
        let table = |policy: &Policy| sources(&Config::default(), &ips, policy, &recorded)[0].table;
        let mut policy = dual();
        assert_eq!(table(&policy), 120);
        policy.rules.push(Rule::to_table(IpFamily::V4, 120));
        assert_eq!(table(&policy), 102);
        policy.rules.push(rule(&Source { address, table: 120 }));
        assert_eq!(table(&policy), 120);
    }

    #[test]
    fn what_differs_is_named() {
        let ips = [ip("10.0.0.2/24", Some("10.0.0.1")), ip("fd00::2/64", None)];
        let config = Config { source_hints: true, ..Config::default() };
        let policy = dual();
        let sources = sources(&config, &ips, &policy, &[]);
        let items = super::super::wanted::items(&config, &ips, &sources, &[], "eth0");
        let lines: Vec<String> =
            items.iter().flat_map(|item| differences(&item.state, 7, &policy)).collect();
        expect![[r#"
            there is no rule that sends packets from 10.0.0.2 to table 102
            there is no rule that sends packets from fd00::2 to table 103
            table 102 of address 10.0.0.2 has no default route via 10.0.0.1
            the main table has no route 10.0.0.0/24 that says to send from 10.0.0.2
            table 103 of address fd00::2 has no route
            the main table has no route fd00::/64 that says to send from fd00::2
            the main table has route 0.0.0.0/0 via 10.0.0.1 on link 7 of interface "eth0" again"#]]
        .assert_eq(&lines.join("\n"));
    }

    #[test]
    fn the_way_to_the_subnet_comes_back_before_the_default_route() {
        let ips = [ip("10.0.0.2/24", Some("10.0.0.1")), ip("fd00::2/64", Some("fd00::1"))];
        let config = Config::default();
        let sources = sources(&config, &ips, &dual(), &[]);
        let items =
            |routes: &[_]| super::super::wanted::items(&config, &ips, &sources, routes, "eth0");
        let items = items(&near_routes(&items(&[]), 7, &dual()));
        let flushed = Policy { rules: sources.iter().map(rule).collect(), routes: Vec::new() };
        let lines: Vec<String> =
            items.iter().flat_map(|item| differences(&item.state, 7, &flushed)).collect();
        expect![[r#"
            table 102 of address 10.0.0.2 has no route 10.0.0.0/24
            table 102 of address 10.0.0.2 has no default route via 10.0.0.1
            table 103 of address fd00::2 has no route fd00::/64
            table 103 of address fd00::2 has no route fe80::/64
            table 103 of address fd00::2 has no default route via fd00::1"#]]
        .assert_eq(&lines.join("\n"));
        let steps = items.iter().flat_map(|item| steps(item, 7, &flushed));
        let lines: Vec<String> = steps.map(|step| step.change.to_string()).collect();
        expect![[r#"
            append route 10.0.0.0/24 on link 7 in table 102
            replace route 0.0.0.0/0 via 10.0.0.1 on link 7 in table 102
            append route fd00::/64 on link 7 in table 103
            append route fe80::/64 on link 7 in table 103
            replace route ::/0 via fd00::1 on link 7 in table 103"#]]
        .assert_eq(&lines.join("\n"));
    }

    /// Undone in reverse, the plan restores the previous state.
    #[test]
    fn every_step_can_be_undone() {
        let ips = [ip("10.0.0.2/24", Some("10.0.0.1")), ip("fd00::2/64", None)];
        for source_hints in [false, true] {
            let config = Config { source_hints, ..Config::default() };
            let steps = add(&config, &ips, &dual());
            assert!(steps.iter().all(|step| step.back.len() == 1), "{steps:#?}");
        }
    }
}
