//! DEL and GC.

use cni::{Error, IfName};
use cni_plugin::Call;
use kernel::route::{Change, IpFamily, Route, RouteFilter, RouteSocket};

use super::config::Config;
use super::plan::{self, FIRST_TABLE};
use super::{NAME, Recorded, Source};
use crate::shared::failures::Failures;
use crate::shared::policy::{Policy, table_of};
use crate::shared::{attachment, kernel_error as kernel, netns_lock};

/// Runs DEL. Needs only the attachment's key.
pub(super) fn del(call: &Call<'_>) -> Result<(), Error> {
    attachment::del_inside(call, NAME, |netns, record| {
        let _lock = netns_lock::lock(netns)?;
        let mut socket = RouteSocket::open_in(netns).map_err(kernel)?;
        let recorded = match record.and_then(attachment::recorded_in) {
            Some(recorded) => recorded,
            None => unrecorded(call, &mut socket)?,
        };
        take_down(&mut socket, call.ifname(), &recorded)
    })
}

/// Runs GC on attachments of this network that are not valid, by their records.
pub(super) fn gc(call: &Call<'_>) -> Result<(), Error> {
    attachment::gc_inside(call, NAME, |netns, record| {
        let _lock = netns_lock::lock(netns)?;
        let mut socket = RouteSocket::open_in(netns).map_err(kernel)?;
        let recorded = attachment::recorded_in(record).unwrap_or_default();
        take_down(&mut socket, &record.attachment.ifname, &recorded)
    })
}

/// Finds what the reference's ADD, or one whose record is lost, has created: by the addresses on
/// the interface and those in the result.
fn unrecorded(call: &Call<'_>, socket: &mut RouteSocket) -> Result<Recorded, Error> {
    let ifname = call.ifname().as_str();
    let mut addresses: Vec<_> = match call.prev_result().ok().flatten() {
        Some(result) => result.container_ips(ifname).map(|ip| ip.address.addr()).collect(),
        None => Vec::new(),
    };
    if let Some(link) = socket.link_by_name(ifname).map_err(kernel)? {
        let on_link = socket.addresses(Some(link.index)).map_err(kernel)?;
        addresses.extend(on_link.iter().map(|found| found.address.addr()));
    }
    let fixed = Config::of(call).ok().and_then(|config| config.table);
    let policy = Policy::read(socket)?;
    let mut recorded = Recorded { own_tables: fixed.is_none(), ..Recorded::default() };
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

/// Removes our rules, then the interface's routes in our tables.
fn take_down(socket: &mut RouteSocket, ifname: &IfName, recorded: &Recorded) -> Result<(), Error> {
    let mut failures = Failures::new();
    for source in &recorded.sources {
        let gone = remove(socket, Change::DelRule(plan::rule(source)));
        failures.note(format_args!("remove the rule of {}", source.address), gone);
    }
    let link =
        failures.note("find the interface", socket.link_by_name(ifname.as_str()).map_err(kernel));
    if let (true, Some(Some(link))) = (recorded.own_tables, link) {
        for source in &recorded.sources {
            let emptied = empty(socket, source, link.index);
            failures.note(format_args!("empty table {}", source.table), emptied);
        }
    }
    failures.into_result()
}

fn empty(socket: &mut RouteSocket, source: &Source, oif: u32) -> Result<(), Error> {
    let family = IpFamily::of(source.address);
    let table = RouteFilter { family, table: Some(source.table), oif: None };
    let mut routes = socket.routes(table).map_err(kernel)?;
    routes.retain(|route| plan::leaves_by(route, oif));
    // Routes with a gateway come first: they depend on the others.
    routes.sort_by_key(|route: &Route| route.gateway.is_none());
    routes.into_iter().try_for_each(|route| remove(socket, Change::DelRoute(route)))
}

fn remove(socket: &mut RouteSocket, change: Change) -> Result<(), Error> {
    match socket.apply_one(&change) {
        Err(error) if !error.is_not_found() => Err(kernel(error)),
        _ => Ok(()),
    }
}
