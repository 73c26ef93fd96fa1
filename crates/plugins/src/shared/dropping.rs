//! Routes that drop packets. They lead to no link, so they do not go with the container's interface.

use cni::{AddResult, DropKind, IpConfig};
use cni_plugin::{Call, codes};
use kernel::netns::Netns;
use kernel::route::{Change, IpFamily, Route, RouteFilter, RouteKind, RouteSocket};

use super::container;
use super::failure::Failure;
use super::failures::Failures;

/// Returns the kernel's word for it.
#[must_use]
pub fn kind(drops: Option<DropKind>) -> RouteKind {
    match drops {
        None => RouteKind::Unicast,
        Some(DropKind::Blackhole) => RouteKind::Blackhole,
        Some(DropKind::Unreachable) => RouteKind::Unreachable,
        Some(DropKind::Prohibit) => RouteKind::Prohibit,
    }
}

/// Returns the routes of a result that drop packets.
#[must_use]
pub fn of_result(result: &AddResult) -> Vec<Route> {
    let ips: Vec<&IpConfig> = result.ips.iter().collect();
    let dropping = result.routes.iter().filter(|route| route.drops.is_some());
    dropping.map(|route| container::kernel_route(0, route, &ips)).collect()
}

/// Reports whether a route of the kernel is such a route.
#[must_use]
pub fn is(found: &Route, wanted: &Route) -> bool {
    found.kind == wanted.kind
        && found.destination == wanted.destination
        && found.table == wanted.table
        && wanted.priority.is_none_or(|priority| found.priority == Some(priority))
}

/// Refuses routes that the container has already: nothing would tell whose they are.
///
/// # Errors
/// Code 106; code 100 when the kernel does not answer.
pub fn refuse_existing(netns: &Netns, routes: &[Route]) -> Result<(), Failure> {
    let mut inside = RouteSocket::open_in(netns)?;
    for route in routes {
        let family = IpFamily::of(route.destination.addr());
        let filter = RouteFilter { family, table: Some(route.table), oif: None };
        if inside.routes(filter)?.iter().any(|found| is(found, route)) {
            let word = [DropKind::Blackhole, DropKind::Unreachable, DropKind::Prohibit]
                .into_iter()
                .find(|drops| kind(Some(*drops)) == route.kind)
                .map_or("", DropKind::word);
            let text = format!("the container has a route {word} {} already", route.destination);
            return Err(Failure::new(codes::EXISTS, text));
        }
    }
    Ok(())
}

/// Removes the routes from a container; they may be gone.
///
/// # Errors
/// Code 100 when the kernel refuses.
pub fn remove(netns: &Netns, routes: &[Route]) -> Result<(), Failure> {
    let mut inside = RouteSocket::open_in(netns)?;
    let mut failures = Failures::new();
    for route in routes {
        let removed = match inside.apply_one(&Change::DelRoute(route.clone())) {
            Err(error) if error.is_not_found() => Ok(()),
            removed => removed.map_err(Failure::from),
        };
        failures.note(format!("remove the route to {}", route.destination), removed);
    }
    failures.into_result()
}

/// Removes those of an attachment that ends, if its container lives on: the runtime's result has
/// them.
///
/// # Errors
/// As [`remove`].
pub fn remove_at_end(call: &Call<'_>) -> Result<(), Failure> {
    let Some(result) = call.prev_result().ok().flatten() else { return Ok(()) };
    let routes = of_result(&result);
    if routes.is_empty() {
        return Ok(());
    }
    let netns = call.open_any_netns().ok().flatten().filter(|netns| !call.is_another(netns));
    netns.map_or(Ok(()), |netns| remove(&netns, &routes))
}
