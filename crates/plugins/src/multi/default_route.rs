//! The container's default routes, which one of several networks gets.

use std::net::IpAddr;

use cni::{AddResult, IfName, Version, code};
use cni_plugin::{Call, codes};
use cni_runtime::{Member, Runtime};
use ipnet::IpNet;
use kernel::netns::Netns;
use kernel::route::{Change, IpFamily, Route, RouteFilter, RouteSocket};
use serde::{Deserialize, Serialize};

use crate::shared::drift;
use crate::shared::failure::Failure;

/// Where the container's default routes should lead.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DefaultRoute {
    /// The interface that has them.
    pub ifname: IfName,
    /// The gateways; if empty, those that its network gave.
    pub gateways: Vec<IpAddr>,
}

/// The network that has the default routes of a family, and their gateways.
#[derive(Debug, PartialEq, Eq)]
struct Keeper {
    family: IpFamily,
    /// The network's position.
    place: usize,
    gateways: Vec<IpAddr>,
}

/// Makes one network have the container's default routes: the chosen one for the families in which
/// it has gateways, else the first that gives one. The default routes of the others are removed,
/// from their recorded results too, so that CHECK does not miss them.
///
/// `results` are those of the members, and are updated to what exists afterwards.
///
/// # Errors
/// Code 7 when the chosen network has no gateway, 100 when the kernel refuses, 105 when a record
/// cannot be written.
///
/// # Panics
/// If `chosen` is the interface of no member.
pub fn settle(
    runtime: &Runtime<'_>,
    netns: &Netns,
    chosen: Option<&DefaultRoute>,
    members: &[Member],
    results: &mut [AddResult],
) -> Result<(), Failure> {
    let place = chosen.map(|chosen| {
        let of_chosen = |member: &Member| member.attachment.ifname == chosen.ifname;
        members.iter().position(of_chosen).expect("it is one of them")
    });
    let gateways = match (chosen, place) {
        (Some(chosen), Some(place)) => {
            gateways(chosen, &results[place], &members[place].list.name)?
        }
        _ => Vec::new(),
    };
    let keepers = keepers(place, &gateways, results);
    if keepers.is_empty() {
        return Ok(());
    }
    let mut inside = RouteSocket::open_in(netns)?;
    for keeper in &keepers {
        let ifname = &members[keeper.place].attachment.ifname;
        let changes = changes(&mut inside, keeper, ifname)?;
        for change in &changes {
            inside.apply_one(change).map_err(|error| {
                let what = format_args!("give {ifname} the default route");
                Failure::from(error).context(what)
            })?;
        }
    }
    for (place, (member, result)) in members.iter().zip(results).enumerate() {
        if adapt(result, place, &keepers) {
            amend(runtime, member, result)?;
        }
    }
    Ok(())
}

/// Removes the default routes of both families from one network, and from its recorded result.
///
/// # Errors
/// Code 100 when the kernel refuses, 105 when a record cannot be written.
pub(crate) fn withhold(
    runtime: &Runtime<'_>,
    netns: &Netns,
    member: &Member,
    result: &mut AddResult,
) -> Result<(), Failure> {
    let mut inside = RouteSocket::open_in(netns)?;
    let ifname = &member.attachment.ifname;
    let oif = ifindex(&inside, ifname)?;
    for family in [IpFamily::V4, IpFamily::V6] {
        for route in defaults(&mut inside, family)? {
            if route.oif == Some(oif) {
                inside.apply_one(&Change::DelRoute(route)).map_err(|error| {
                    let what = format_args!("take the default route from {ifname}");
                    Failure::from(error).context(what)
                })?;
            }
        }
    }
    let before = result.routes.len();
    result.routes.retain(|route| route.dst.prefix_len() != 0 || route.drops.is_some());
    if result.routes.len() == before {
        return Ok(());
    }
    amend(runtime, member, result)
}

/// Verifies that an interface has no default route.
///
/// # Errors
/// Code 104 when it has one.
pub(crate) fn check_without(call: &Call<'_>, ifname: &IfName) -> Result<(), Failure> {
    let netns = call.open_netns()?;
    let mut inside = RouteSocket::open_in(&netns)?;
    let oif = ifindex(&inside, ifname)?;
    for family in [IpFamily::V4, IpFamily::V6] {
        if defaults(&mut inside, family)?.iter().any(|route| route.oif == Some(oif)) {
            return Err(drift(format!("interface {ifname} has a default route")));
        }
    }
    Ok(())
}

/// Decides which network keeps which default route. A family in which nothing has to change is not
/// listed.
fn keepers(chosen: Option<usize>, gateways: &[IpAddr], results: &[AddResult]) -> Vec<Keeper> {
    let mut keepers = Vec::new();
    for family in [IpFamily::V4, IpFamily::V6] {
        let of_family = |via: &&IpAddr| family_of(**via) == family;
        let wanted: Vec<IpAddr> = gateways.iter().filter(of_family).copied().collect();
        if let (Some(place), false) = (chosen, wanted.is_empty()) {
            keepers.push(Keeper { family, place, gateways: wanted });
            continue;
        }
        let givers = results.iter().enumerate();
        let mut givers = givers.map(|(place, result)| (place, own_gateways(result, family)));
        let first = givers.find(|(_, own)| !own.is_empty());
        if let (Some((place, own)), true) = (first, givers.any(|(_, own)| !own.is_empty())) {
            keepers.push(Keeper { family, place, gateways: own });
        }
    }
    keepers
}

fn changes(
    inside: &mut RouteSocket,
    keeper: &Keeper,
    ifname: &IfName,
) -> Result<Vec<Change>, Failure> {
    let oif = ifindex(inside, ifname)?;
    let found = defaults(inside, keeper.family)?;
    let is_kept = |route: &Route| {
        route.oif == Some(oif) && route.gateway.is_some_and(|via| keeper.gateways.contains(&via))
    };
    let mut changes: Vec<Change> =
        found.iter().filter(|route| !is_kept(route)).cloned().map(Change::DelRoute).collect();
    let is_there =
        |via: IpAddr| found.iter().any(|route| is_kept(route) && route.gateway == Some(via));
    for via in keeper.gateways.iter().copied().filter(|via| !is_there(*via)) {
        let route = Route::new(default_of(via));
        changes.push(Change::AddRoute(Route { gateway: Some(via), oif: Some(oif), ..route }));
    }
    Ok(changes)
}

/// Updates a result to what exists by now; returns whether it changed.
fn adapt(result: &mut AddResult, place: usize, keepers: &[Keeper]) -> bool {
    let before = result.routes.clone();
    for keeper in keepers {
        let dst = default_of(keeper.gateways[0]);
        if keeper.place == place && own_gateways(result, keeper.family) == keeper.gateways {
            continue;
        }
        result.routes.retain(|route| route.dst != dst || route.drops.is_some());
        if keeper.place == place {
            let routes = keeper.gateways.iter().map(|via| cni::Route::new(dst, Some(*via)));
            result.routes.extend(routes);
        }
    }
    result.routes != before
}

/// Returns the gateways of the default routes that a network gave.
fn own_gateways(result: &AddResult, family: IpFamily) -> Vec<IpAddr> {
    let is_default =
        |route: &&cni::Route| route.is_default() && family_of(route.dst.addr()) == family;
    let of_address = || {
        let gateways = result.ips.iter().filter_map(|ip| ip.gateway);
        gateways.into_iter().find(|via| family_of(*via) == family)
    };
    let routes = result.routes.iter().filter(is_default);
    routes.filter_map(|route| route.gw.or_else(of_address)).collect()
}

/// Verifies that no other interface has the default routes.
pub(crate) fn check(call: &Call<'_>, chosen: &DefaultRoute) -> Result<(), Failure> {
    let netns = call.open_netns()?;
    let mut inside = RouteSocket::open_in(&netns)?;
    let oif = ifindex(&inside, &chosen.ifname)?;
    let families = match chosen.gateways.as_slice() {
        [] => vec![IpFamily::V4, IpFamily::V6],
        gateways => families(gateways),
    };
    for family in families {
        let found = defaults(&mut inside, family)?;
        let elsewhere = found.iter().any(|route| route.oif != Some(oif));
        let own = found.iter().any(|route| route.oif == Some(oif));
        if (elsewhere && own) || (!own && !chosen.gateways.is_empty()) {
            let text = format!("the default route is not that of interface {}", chosen.ifname);
            return Err(drift(text));
        }
    }
    Ok(())
}

fn ifindex(inside: &RouteSocket, ifname: &IfName) -> Result<u32, Failure> {
    let found = inside.link_index(ifname.as_str())?;
    found.ok_or_else(|| drift(format!("interface {ifname} is gone")))
}

/// Returns the configured gateways, else those of the network's own default routes, else those of
/// its addresses.
fn gateways(
    chosen: &DefaultRoute,
    result: &AddResult,
    network: &str,
) -> Result<Vec<IpAddr>, Failure> {
    if !chosen.gateways.is_empty() {
        return Ok(chosen.gateways.clone());
    }
    let families = [IpFamily::V4, IpFamily::V6].into_iter();
    let mut found: Vec<IpAddr> = families.flat_map(|family| own_gateways(result, family)).collect();
    for via in result.ips.iter().filter_map(|ip| ip.gateway) {
        if !found.iter().any(|known| family_of(*known) == family_of(via)) {
            found.push(via);
        }
    }
    if found.is_empty() {
        let text = format!("network {network:?} has no gateway for a default route");
        return Err(Failure::new(code::INVALID_CONFIG, text)
            .with_details("name one: \"defaultRoute\": [\"192.0.2.1\"]"));
    }
    Ok(found)
}

/// Updates the record of the network's attachment.
fn amend(runtime: &Runtime<'_>, member: &Member, result: &AddResult) -> Result<(), Failure> {
    let key = runtime.key(&member.list, &member.attachment)?;
    let Some(cached) = runtime.cached_attachment(&key)? else {
        return Ok(());
    };
    let version = Version::parse(&member.list.cni_version).unwrap_or(Version::CURRENT);
    let text = String::from_utf8(result.write(version)?).expect("JSON is text");
    let raw = serde_json::value::RawValue::from_string(text).expect("it was written as JSON");
    let amended = runtime.cache().amend(&cached, &raw);
    amended.map_err(|error| Failure::from_chain(codes::STATE, &error))
}

fn defaults(inside: &mut RouteSocket, family: IpFamily) -> Result<Vec<Route>, Failure> {
    let mut found = inside.routes(RouteFilter::main(family))?;
    found.retain(|route| route.destination.prefix_len() == 0);
    Ok(found)
}

fn families(gateways: &[IpAddr]) -> Vec<IpFamily> {
    let both = [IpFamily::V4, IpFamily::V6].into_iter();
    both.filter(|family| gateways.iter().any(|via| family_of(*via) == *family)).collect()
}

fn family_of(address: IpAddr) -> IpFamily {
    IpFamily::of(address)
}

fn default_of(gateway: IpAddr) -> IpNet {
    let any: IpAddr = if gateway.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    IpNet::new(any, 0).expect("a prefix of nothing")
}
