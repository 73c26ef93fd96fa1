//! Removes what ADD created.

use cni::IfName;
use cni_plugin::Call;
use kernel::route::{Change, IpFamily, Route, RouteFilter, RouteSocket};

use super::config::Config;
use super::plan::{self, FIRST_TABLE};
use super::{RecordData, Sbr, Source};
use crate::engine::Removal;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::netns_lock;
use crate::shared::policy::{Policy, table_of};

/// Removes our rules, then the interface's routes in our tables.
pub(super) fn take_down(removal: &Removal<'_, Sbr>) -> Result<(), Failure> {
    let Some(netns) = &removal.netns else { return Ok(()) };
    let _lock = netns_lock::lock(netns)?;
    let mut socket = RouteSocket::open_in(netns)?;
    let found;
    let recorded = match &removal.recorded {
        Some(recorded) => recorded,
        None if !removal.is_own_call() => return Ok(()),
        None => {
            found = unrecorded(removal.call, &mut socket)?;
            &found
        }
    };
    remove_all(&mut socket, &removal.key.ifname, recorded)
}

/// Finds what the reference's ADD, or one whose record is lost, has created: by the addresses on
/// the interface and those in the result.
fn unrecorded(call: &Call<'_>, socket: &mut RouteSocket) -> Result<RecordData, Failure> {
    let ifname = call.ifname().as_str();
    let mut addresses: Vec<_> = match call.prev_result().ok().flatten() {
        Some(result) => result.container_ips(ifname).map(|ip| ip.address.addr()).collect(),
        None => Vec::new(),
    };
    if let Some(link) = socket.link_by_name(ifname)? {
        let on_link = socket.addresses(Some(link.index))?;
        addresses.extend(on_link.iter().map(|found| found.address.addr()));
    }
    let fixed = Config::of(call).ok().and_then(|config| config.table);
    let policy = Policy::read(socket)?;
    let mut recorded = RecordData { own_tables: fixed.is_none(), ..RecordData::default() };
    for table in policy.rules.iter().filter_map(table_of) {
        if fixed.map_or(table < FIRST_TABLE, |fixed| fixed != table) {
            continue;
        }
        for &address in &addresses {
            let source = Source { address, table };
            let rule = plan::rule(&source);
            let there = policy.rules.iter().any(|found| plan::is_same_rule(found, &rule));
            if there && !recorded.sources.contains(&source) {
                recorded.sources.push(source);
            }
        }
    }
    Ok(recorded)
}

pub(super) fn remove_all(
    socket: &mut RouteSocket,
    ifname: &IfName,
    recorded: &RecordData,
) -> Result<(), Failure> {
    let mut failures = Failures::new();
    for source in &recorded.sources {
        let gone = remove(socket, Change::DelRule(plan::rule(source)));
        failures.note(format_args!("remove the rule of {}", source.address), gone);
    }
    let link = failures.note("find the interface", socket.link_by_name(ifname.as_str()));
    if let (true, Some(Some(link))) = (recorded.own_tables, link) {
        for source in &recorded.sources {
            let emptied = empty(socket, source, link.index);
            failures.note(format_args!("empty table {}", source.table), emptied);
        }
    }
    failures.into_result()
}

fn empty(socket: &mut RouteSocket, source: &Source, oif: u32) -> Result<(), Failure> {
    let family = IpFamily::of(source.address);
    let table = RouteFilter { family, table: Some(source.table), oif: None };
    let mut routes = socket.routes(table)?;
    routes.retain(|route| plan::leaves_by(route, oif));
    // Routes with a gateway come first: they depend on the others.
    let (by_gateway, others): (Vec<Route>, Vec<Route>) =
        routes.into_iter().partition(|route| route.gateway.is_some());
    let mut routes = by_gateway.into_iter().chain(others);
    routes.try_for_each(|route| remove(socket, Change::DelRoute(route)))
}

fn remove(socket: &mut RouteSocket, change: Change) -> Result<(), Failure> {
    match socket.apply_one(&change) {
        Err(error) if !error.is_not_found() => Err(Failure::from(error)),
        _ => Ok(()),
    }
}
