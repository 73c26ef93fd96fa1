//! Plans tables, rules and routes. Reads nothing, changes nothing.

use std::net::IpAddr;

use cni::IpConfig;
use ipnet::IpNet;
use kernel::route::{
    Change, IpFamily, Link, Route, RouteKind, Rule, RuleAction, Scope, TABLE_MAIN, is_link_local_v6,
};

use super::Source;
use super::config::Config;
use super::node::State;
use crate::shared::steps::Step;

/// Our first table, the same as the reference's.
pub(super) const FIRST_TABLE: u32 = 100;
/// The tables that the kernel reserves: compat, default, main, local.
const RESERVED: std::ops::RangeInclusive<u32> = 252..=255;

/// What ADD does.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) sources: Vec<Source>,
    pub(super) steps: Vec<Step>,
}

/// Plans ADD. `noted` is what an earlier ADD of the attachment has chosen.
pub(super) fn add(
    config: &Config,
    ips: &[IpConfig],
    link: &Link,
    state: &State,
    noted: &[Source],
) -> Plan {
    let sources = sources(config, ips, state, noted);
    let mut steps: Vec<Step> = sources
        .iter()
        .map(rule)
        .filter(|rule| !state.rules.iter().any(|found| is_same_rule(found, rule)))
        .map(|rule| Step::new(Change::AddRule(rule.clone()), Change::DelRule(rule)))
        .collect();
    if config.table.is_none() {
        let movable = movable(link.index, state);
        let mut moved = vec![false; movable.len()];
        for (ip, source) in ips.iter().zip(&sources) {
            let wanted =
                table_routes(config, ips, ip, source.table, link.index, &movable, &mut moved);
            let new = wanted.into_iter().filter(|route| !is_there(route, state));
            steps.extend(new.map(put));
        }
        let gone = movable.into_iter().zip(moved).filter(|(_, moved)| *moved);
        steps.extend(gone.filter_map(|(route, _)| leave_main(config, route)));
        if config.source_hints {
            let hints = ips.iter().map(|ip| hint(ip, link.index));
            let new = hints.filter(|hint| !state.routes.iter().any(|found| is_hint(found, hint)));
            steps.extend(new.map(|hint| replace(hint, state)));
        }
    }
    Plan { sources, steps }
}

/// Chooses the table of each address: the configured one, the one that a rule already uses, the one
/// that an earlier ADD chose, or the first unused one.
fn sources(config: &Config, ips: &[IpConfig], state: &State, noted: &[Source]) -> Vec<Source> {
    let mut used: Vec<u32> = state.routes.iter().map(|route| route.table).collect();
    used.extend(state.rules.iter().filter_map(table_of));
    let mut sources = Vec::new();
    for ip in ips {
        let address = ip.address.addr();
        let table =
            config.table.or_else(|| earlier_table(address, state, noted)).unwrap_or_else(|| {
                (FIRST_TABLE..)
                    .find(|table| !used.contains(table) && !RESERVED.contains(table))
                    .unwrap_or(u32::MAX)
            });
        used.push(table);
        sources.push(Source { address, table });
    }
    sources
}

/// Finds the table of an earlier ADD: a rule uses it, or the record names it and no other rule uses
/// it now.
fn earlier_table(address: IpAddr, state: &State, noted: &[Source]) -> Option<u32> {
    let ours = |rule: &&Rule| is_plain(rule) && rule.source == Some(IpNet::from(address));
    let tables = state.rules.iter().filter(ours).filter_map(table_of);
    let by_rule = tables.filter(|table| FIRST_TABLE <= *table && !RESERVED.contains(table)).min();
    by_rule.or_else(|| {
        let noted = noted.iter().find(|source| source.address == address)?.table;
        (!state.rules.iter().any(|rule| table_of(rule) == Some(noted))).then_some(noted)
    })
}

pub(super) fn table_of(rule: &Rule) -> Option<u32> {
    match rule.action {
        RuleAction::Table(table) => Some(table),
        _ => None,
    }
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
fn is_there(route: &Route, state: &State) -> bool {
    let way =
        |route: &Route| (route.destination, route.gateway, route.oif, route.next_hops.clone());
    state.routes.iter().any(|found| {
        let same_metric = found.priority == route.priority || route.priority.is_none();
        found.table == route.table && same_metric && way(found) == way(route)
    })
}

/// Returns the main table's routes that use only this interface.
fn movable(oif: u32, state: &State) -> Vec<Route> {
    let by_link = |route: &&Route| {
        route.table == TABLE_MAIN
            && matches!(route.kind, RouteKind::Unicast)
            && leaves_by(route, oif)
    };
    state.routes.iter().filter(by_link).cloned().collect()
}

/// Returns whether a route uses this link and no other.
pub(super) fn leaves_by(route: &Route, oif: u32) -> bool {
    route.oif == Some(oif)
        || !route.next_hops.is_empty() && route.next_hops.iter().all(|hop| hop.oif == Some(oif))
}

/// Plans the routes of an address's table, and marks the main table's routes that it then contains.
fn table_routes(
    config: &Config,
    ips: &[IpConfig],
    ip: &IpConfig,
    table: u32,
    oif: u32,
    movable: &[Route],
    moved: &mut [bool],
) -> Vec<Route> {
    let family = IpFamily::of(ip.address.addr());
    let given = config.gateway(family);
    let mut routes = Vec::new();
    for (route, moved) in movable.iter().zip(moved) {
        if IpFamily::of(route.destination.addr()) != family {
            continue;
        }
        if given.is_some() && route.is_default() {
            // The configured gateway replaces it.
            *moved = true;
        } else if belongs(route, ip) || is_nobodys(route, ip, ips) {
            *moved |= !is_link_local(route);
            routes.push(Route { table, ..route.clone() });
        }
    }
    let gateway = given.or(ip.gateway).filter(|gateway| IpFamily::of(*gateway) == family);
    if let Some(gateway) = gateway
        && !routes.iter().any(Route::is_default)
    {
        routes.push(default(gateway, ip, table, oif));
    }
    // The kernel looks up gateways in the table itself.
    routes.sort_by_key(|route| route.gateway.is_some() || !route.next_hops.is_empty());
    routes
}

/// Returns a default route by a gateway. A gateway outside the subnet is declared reachable on the
/// link.
pub(super) fn default(gateway: IpAddr, ip: &IpConfig, table: u32, oif: u32) -> Route {
    let anywhere = match gateway {
        IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
    };
    let near = ip.address.contains(&gateway) || is_link_local_v6(gateway);
    Route { gateway: Some(gateway), oif: Some(oif), table, onlink: !near, ..Route::new(anywhere) }
}

/// Returns whether a route belongs to an address: its source or gateway is in the address's subnet,
/// or it has neither.
fn belongs(route: &Route, ip: &IpConfig) -> bool {
    let near = |address: IpAddr| ip.address.contains(&address) || is_link_local_v6(address);
    let hops = route.next_hops.iter().filter_map(|hop| hop.gateway);
    let gateways: Vec<IpAddr> = route.gateway.into_iter().chain(hops).collect();
    match route.source {
        Some(source) if ip.address.contains(&source) => true,
        Some(_) => gateways.iter().any(|&gateway| near(gateway)),
        None => gateways.is_empty() || gateways.iter().any(|&gateway| near(gateway)),
    }
}

/// Returns whether a route belongs to no address and this is the first address of its family: the
/// route must go somewhere.
fn is_nobodys(route: &Route, ip: &IpConfig, ips: &[IpConfig]) -> bool {
    let v4 = ip.address.addr().is_ipv4();
    let mut family = ips.iter().filter(|other| other.address.addr().is_ipv4() == v4);
    let first = family.clone().next().is_some_and(|first| first.address == ip.address);
    first && !family.any(|other| belongs(route, other))
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
fn leave_main(config: &Config, route: Route) -> Option<Step> {
    let to_subnet = route.gateway.is_none() && route.next_hops.is_empty();
    if config.source_hints && to_subnet {
        return None;
    }
    Some(Step::new(Change::DelRoute(route.clone()), Change::AppendRoute(route)))
}

/// Returns the main table's route to an address's subnet, with that address as the source.
pub(super) fn hint(ip: &IpConfig, oif: u32) -> Route {
    let v4 = ip.address.addr().is_ipv4();
    Route {
        oif: Some(oif),
        scope: v4.then_some(Scope::LINK),
        source: Some(ip.address.addr()),
        ..Route::new(ip.address.trunc())
    }
}

/// Returns whether a route that was found is a hint.
pub(super) fn is_hint(found: &Route, hint: &Route) -> bool {
    found.table == TABLE_MAIN
        && found.destination == hint.destination
        && found.oif == hint.oif
        && found.source == hint.source
}

/// Replaces the route to the same subnet, if there is one, by a hint.
fn replace(hint: Route, state: &State) -> Step {
    let before = state.routes.iter().find(|found| {
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

    #[track_caller]
    fn check(config: &Config, ips: &[IpConfig], state: &State, expect: Expect) {
        let mut link = Link::default();
        link.index = 7;
        let plan = add(config, ips, &link, state, &[]);
        let lines: Vec<String> = plan.steps.iter().map(|step| step.change.to_string()).collect();
        expect.assert_eq(&lines.join("\n"));
    }

    fn dual() -> State {
        let routes = vec![
            route("10.0.0.0/24", None, 7),
            route("0.0.0.0/0", Some("10.0.0.1"), 7),
            route("172.16.0.0/12", Some("192.0.2.1"), 7),
            route("198.51.100.0/24", None, 8),
            route("fd00::/64", None, 7),
            route("fe80::/64", None, 7),
            Route { table: 100, ..route("203.0.113.0/24", None, 8) },
        ];
        State { rules: vec![Rule::to_table(IpFamily::V6, 101)], routes }
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
        let mut state = dual();
        state.rules.push(rule(&Source { address: ips[0].address.addr(), table: 150 }));
        check(
            &Config { gateways: vec!["10.0.0.9".parse().unwrap()], ..Config::default() },
            &ips,
            &state,
            expect![[r#"
                append route 10.0.0.0/24 on link 7 in table 150
                append route 172.16.0.0/12 via 192.0.2.1 on link 7 in table 150
                replace route 0.0.0.0/0 via 10.0.0.9 on link 7 in table 150
                delete route 10.0.0.0/24 on link 7
                delete route 0.0.0.0/0 via 10.0.0.1 on link 7
                delete route 172.16.0.0/12 via 192.0.2.1 on link 7"#]],
        );
        check(&Config { table: Some(150), ..Config::default() }, &ips, &state, expect![""]);
    }

    /// Undone in reverse, the plan restores the previous state.
    #[test]
    fn every_step_can_be_undone() {
        let ips = [ip("10.0.0.2/24", Some("10.0.0.1")), ip("fd00::2/64", None)];
        let mut link = Link::default();
        link.index = 7;
        for source_hints in [false, true] {
            let config = Config { source_hints, ..Config::default() };
            let plan = add(&config, &ips, &link, &dual(), &[]);
            assert!(plan.steps.iter().all(|step| step.back.len() == 1), "{plan:#?}");
        }
    }
}
