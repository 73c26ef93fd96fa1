//! CHECK and STATUS.

use cni::{Error, IpConfig, code};
use cni_plugin::{Call, codes};
use kernel::route::{IpFamily, RouteSocket, TABLE_MAIN};
use state::Index;

use super::config::Config;
use super::node::Node;
use super::plan::{self, FIRST_TABLE};
use super::{Facts, NAME, NO_PREVIOUS, Source, addresses};
use crate::shared::{attachment, drift, identity, kernel_error as kernel};

/// Runs CHECK: every address has its rule, and its table has the routes to its subnet and its
/// gateway; the main table has none of the moved routes.
pub(super) fn check(call: &Call<'_>) -> Result<(), Error> {
    let config = Config::of(call)?;
    let result = call.require_prev_result(NO_PREVIOUS)?;
    let ips = addresses(call, &result)?;
    let netns = call.open_netns()?;
    identity::refuse_another(call, NAME)?;
    let node = Node::observe(&netns, call.ifname().as_str())
        .map_err(|error| Error { code: codes::DRIFT, ..error })?;
    let facts: Option<Facts> =
        attachment::read_facts(&Index::new(call.roots()), call.attachment(), NAME);
    for ip in &ips {
        let table = rule_of(&config, &node, facts.as_ref(), ip)?;
        if config.table.is_none() {
            check_table(&config, &node, ip, table)?;
        }
    }
    if config.table.is_some() {
        return Ok(());
    }
    let ifname = &node.link.name;
    let back = node.state.routes.iter().find(|route| {
        route.table == TABLE_MAIN && route.is_default() && plan::leaves_by(route, node.link.index)
    });
    let has = |family| ips.iter().any(|ip| IpFamily::of(ip.address.addr()) == family);
    match back {
        Some(route) if has(IpFamily::of(route.destination.addr())) => {
            Err(drift(format!("the main table has route {route} of interface {ifname:?} again")))
        }
        _ => Ok(()),
    }
}

/// Finds the table that packets from an address use.
fn rule_of(
    config: &Config,
    node: &Node,
    facts: Option<&Facts>,
    ip: &IpConfig,
) -> Result<u32, Error> {
    let address = ip.address.addr();
    let noted = facts.and_then(|facts| {
        let source = facts.sources.iter().find(|source| source.address == address)?;
        Some(source.table)
    });
    let wanted = config.table.or(noted);
    let fits = |table: u32| wanted.map_or(FIRST_TABLE <= table, |wanted| wanted == table);
    let mut tables =
        node.state.rules.iter().filter_map(plan::table_of).filter(|&table| fits(table));
    let found = tables.find(|&table| {
        let rule = plan::rule(&Source { address, table });
        node.state.rules.iter().any(|found| plan::is_same_rule(found, &rule))
    });
    found.ok_or_else(|| {
        let table = wanted.map_or("of its own".to_owned(), |table| table.to_string());
        drift(format!("there is no rule that sends packets from {address} to table {table}"))
    })
}

fn check_table(config: &Config, node: &Node, ip: &IpConfig, table: u32) -> Result<(), Error> {
    let oif = node.link.index;
    let address = ip.address.addr();
    let family = IpFamily::of(address);
    let own: Vec<_> = node
        .state
        .routes
        .iter()
        .filter(|route| route.table == table && IpFamily::of(route.destination.addr()) == family)
        .filter(|route| plan::leaves_by(route, oif))
        .collect();
    let gateway = config.gateway(family).or(ip.gateway);
    if let Some(gateway) = gateway.filter(|gateway| IpFamily::of(*gateway) == family) {
        let by_given = config.gateway(family).is_some();
        let default = own.iter().find(|route| route.is_default());
        // A default route that the interface had before may use another gateway than the result's.
        let good = default.is_some_and(|route| !by_given || route.gateway == Some(gateway));
        if !good {
            return Err(drift(format!(
                "table {table} of address {address} has no default route via {gateway}"
            )));
        }
    }
    if own.is_empty() && gateway.is_none() && ip.address.prefix_len() < ip.address.max_prefix_len()
    {
        return Err(drift(format!("table {table} of address {address} has no route")));
    }
    if config.source_hints {
        let hint = plan::hint(ip, oif);
        if !node.state.routes.iter().any(|found| plan::is_hint(found, &hint)) {
            return Err(drift(format!(
                "the main table has no route {} that says to send from {address}",
                hint.destination
            )));
        }
    }
    Ok(())
}

/// Runs STATUS: whether the configuration is valid and the kernel has rules.
pub(super) fn status(call: &Call<'_>) -> Result<(), Error> {
    Config::of(call)?;
    let rules = RouteSocket::open().and_then(|mut socket| socket.rules(IpFamily::V4));
    rules.map(drop).map_err(|error| {
        Error { code: code::PLUGIN_NOT_AVAILABLE, ..kernel(error) }
            .with_details("the kernel needs CONFIG_IP_MULTIPLE_TABLES")
    })
}
