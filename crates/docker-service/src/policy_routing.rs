//! Source-based routing that plugins set up with a link: rules and tables of the link's first
//! namespace, which Docker does not move.
//!
//! Another network of the container may use the same table number there: then a free table is
//! taken.

use cni::Error;
use ipnet::IpNet;
use kernel::netns::Netns;
use kernel::route::{
    Change, IpFamily, Link, Route, RouteFilter, RouteProtocol, RouteSocket, Rule, RuleAction,
    TABLE_MAIN,
};

use super::handover::kernel_error;
use super::journal::{LayoutRoute, LayoutTable};

/// Tables that the kernel keeps for itself: compat, default, main, local
/// (`linux include/uapi/linux/rtnetlink.h`).
const RESERVED: std::ops::RangeInclusive<u32> = 252..=255;

/// The last table that is tried.
const LAST_TABLE: u32 = 65_535;

const FAMILIES: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

/// Reads the tables to which rules send packets by source address.
pub(super) fn look(inside: &mut RouteSocket, link: &Link) -> Result<Vec<LayoutTable>, Error> {
    let mut tables: Vec<LayoutTable> = Vec::new();
    for family in FAMILIES {
        for rule in inside.rules(family).map_err(|error| kernel_error(&error))? {
            let Some((source, table)) = by_source(&rule) else { continue };
            if let Some(known) = tables.iter_mut().find(|known| known.table == table) {
                known.sources.push(source);
                continue;
            }
            let filter = RouteFilter { family, table: Some(table), oif: Some(link.index) };
            let routes = inside.routes(filter).map_err(|error| kernel_error(&error))?;
            let routes = routes.into_iter().map(|route| LayoutRoute {
                destination: route.destination,
                gateway: route.gateway,
                by_kernel: route.protocol == Some(RouteProtocol::KERNEL),
            });
            tables.push(LayoutTable { table, sources: vec![source], routes: routes.collect() });
        }
    }
    Ok(tables)
}

/// Creates them in the sandbox; leaves alone what exists already.
pub(super) fn put(
    inside: &mut RouteSocket,
    ifindex: u32,
    wanted: &[LayoutTable],
) -> Result<(), Error> {
    for wanted in wanted {
        let rules = all_rules(inside)?;
        let has = |source: &IpNet| rules.iter().filter_map(by_source).any(|(of, _)| of == *source);
        if wanted.sources.iter().all(has) {
            continue;
        }
        let table = free_table(inside, wanted.table, &rules)?;
        let mut routes: Vec<&LayoutRoute> = wanted.routes.iter().collect();
        // Routes without a gateway come first: the gateways are reached by them.
        routes.sort_by_key(|route| route.gateway.is_some());
        let routes = routes.into_iter().map(|route| {
            Change::AddRoute(Route {
                oif: Some(ifindex),
                table,
                gateway: route.gateway,
                ..Route::new(route.destination)
            })
        });
        // Rules last: no packet is to meet an empty table.
        let rules = wanted.sources.iter().map(|source| Change::AddRule(rule(*source, table)));
        for change in routes.chain(rules) {
            match inside.apply_one(&change) {
                Err(error) if !error.is_exists() => return Err(kernel_error(&error)),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Removes the rules: the container may live on without the link. The link takes its routes with
/// it.
pub(super) fn remove(sandbox: &Netns, tables: &[LayoutTable]) -> Result<(), Error> {
    if tables.is_empty() {
        return Ok(());
    }
    let mut inside = RouteSocket::open_in(sandbox).map_err(|error| kernel_error(&error))?;
    for found in all_rules(&mut inside)? {
        let ours = by_source(&found)
            .is_some_and(|(source, _)| tables.iter().any(|table| table.sources.contains(&source)));
        if !ours {
            continue;
        }
        match inside.apply_one(&Change::DelRule(found)) {
            Err(error) if !error.is_not_found() => return Err(kernel_error(&error)),
            _ => {}
        }
    }
    Ok(())
}

fn all_rules(inside: &mut RouteSocket) -> Result<Vec<Rule>, Error> {
    let mut rules = Vec::new();
    for family in FAMILIES {
        rules.extend(inside.rules(family).map_err(|error| kernel_error(&error))?);
    }
    Ok(rules)
}

/// Returns the table as it was, or the next that is empty and to which no rule leads.
fn free_table(inside: &mut RouteSocket, first: u32, rules: &[Rule]) -> Result<u32, Error> {
    let mut taken: Vec<u32> = rules
        .iter()
        .filter_map(|rule| match rule.action {
            RuleAction::Table(table) => Some(table),
            _ => None,
        })
        .collect();
    for family in FAMILIES {
        let filter = RouteFilter { family, table: None, oif: None };
        let routes = inside.routes(filter).map_err(|error| kernel_error(&error))?;
        taken.extend(routes.into_iter().map(|route| route.table));
    }
    let mut free = (first..=LAST_TABLE).filter(|table| !RESERVED.contains(table));
    Ok(free.find(|table| !taken.contains(table)).unwrap_or(first))
}

fn rule(source: IpNet, table: u32) -> Rule {
    Rule { source: Some(source), ..Rule::to_table(IpFamily::of(source.addr()), table) }
}

/// Returns the source and the table of a rule that matches on nothing but the source.
fn by_source(found: &Rule) -> Option<(IpNet, u32)> {
    let RuleAction::Table(table) = found.action else { return None };
    let source = found.source?;
    let plain = Rule { priority: found.priority, ..rule(source, table) } == *found;
    (plain && table != 0 && table != TABLE_MAIN && !RESERVED.contains(&table))
        .then_some((source, table))
}
