//! Router advertisements on host links that lead to containers. A container that sends them must
//! not become the host's router (CVE-2020-10749). The sysctl `accept_ra` takes effect while the
//! host does not forward IPv6, and with the value 2 always.
//!
//! A bridge by which the host hears its own routers keeps accepting them: there the packet filter
//! drops those of the containers ([`firewall::routers`]).
//!
//! A bridge port is such a link too. The kernel delivers frames to 01:80:c2:00:00:00 to :0f, with
//! any content, to the port itself and not to its bridge (linux net/bridge/br_input.c
//! `br_handle_frame`).
//!
//! A kernel without IPv6 does not have this sysctl, and accepts no advertisements.

use cni_plugin::codes;
use kernel::route::{
    Address, IpFamily, Link, Route, RouteFilter, RouteKind, RouteProtocol, RouteSocket, Scope,
};
use kernel::sysctl::{Sysctl, SysctlError};

use super::failure::Failure;
use super::readiness;

/// The folder of the links' sysctls.
const OF_LINKS: &str = "net/ipv6/conf";

/// The name of the values that a new link gets.
pub(crate) const NEW_LINKS: &str = "default";

/// The value of the sysctl with which the kernel accepts no advertisement.
const REFUSED: &str = "0";

/// The value with which it accepts them unless the link forwards.
const UNLESS_FORWARDING: &str = "1";

/// Returns the value of a link's sysctl if the link accepts advertisements.
///
/// # Errors
/// Code 100 when the kernel does not tell. A link that is gone accepts none.
pub fn accepting_value(ifname: &str) -> Result<Option<String>, Failure> {
    match accept_ra(ifname).and_then(|sysctl| sysctl.read()) {
        Ok(value) => Ok(Some(value).filter(|value| value != REFUSED)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Makes a link accept none. Where `/proc/sys` is read-only, a link that accepts none as it is will
/// do.
///
/// # Errors
/// Code 100 when the kernel refuses. Without this sysctl the kernel accepts nothing, which is
/// success.
pub fn refuse(ifname: &str) -> Result<(), Failure> {
    match accept_ra(ifname).and_then(|sysctl| sysctl.write(REFUSED)) {
        Err(error) if error.is_read_only() => refuse_accepting(ifname),
        Err(error) if !error.is_missing() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Refuses a link, or the values of [`NEW_LINKS`], if it accepts advertisements and that cannot be
/// changed because `/proc/sys` is read-only.
///
/// # Errors
/// Code 100, with the command.
pub(crate) fn refuse_unwritable(ifname: &str) -> Result<(), Failure> {
    match accept_ra(ifname)?.is_read_only() {
        true => refuse_accepting(ifname),
        false => Ok(()),
    }
}

fn refuse_accepting(ifname: &str) -> Result<(), Failure> {
    if accepts_none(ifname)? {
        return Ok(());
    }
    // The link goes with the ADD that fails, so only what it began with can be set by hand.
    let new = accept_ra(NEW_LINKS)?;
    let by_hand = if new.read()? == REFUSED { accept_ra(ifname)? } else { new };
    let what = "containers could become this host's router by router advertisements";
    Err(readiness::unwritable(what, &format!("{}={REFUSED}", by_hand.spelled())))
}

/// Reports whether a link accepts no advertisement as it is: by its sysctl, or because it forwards,
/// or because it has no IPv6 (linux include/net/addrconf.h `ipv6_accept_ra`).
fn accepts_none(ifname: &str) -> Result<bool, SysctlError> {
    let of_link = |parameter| Sysctl::of_link(OF_LINKS, ifname, parameter)?.read();
    Ok(match of_link("accept_ra")?.as_str() {
        REFUSED => true,
        UNLESS_FORWARDING if of_link("forwarding")? != "0" => true,
        _ => of_link("disable_ipv6")? != "0",
    })
}

/// Says whether the host has a route or an address by a link that it has learnt from a router's
/// advertisement, whoever read it: where a program does, as systemd-networkd, `accept_ra` is 0.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(crate) fn has_learnt(host: &mut RouteSocket, link: &Link) -> Result<bool, Failure> {
    let by_link = RouteFilter { oif: Some(link.index), ..RouteFilter::all(IpFamily::V6) };
    if !host.routes_by(RouteProtocol::RA, by_link)?.is_empty() {
        return Ok(true);
    }
    let is_given = |address: &Address| {
        address.address.addr().is_ipv6() && address.scope == Scope::UNIVERSE && !address.permanent()
    };
    Ok(host.addresses(Some(link.index))?.iter().any(is_given))
}

/// Refuses a link of the host that is to get containers, and by which the host itself has learnt its way
/// out by IPv6 from a router's advertisement: once the link accepts none, the host loses it.
///
/// # Errors
/// Code 108, with what to do. Code 100 when the kernel does not answer.
pub(crate) fn refuse_way_out(host: &mut RouteSocket, link: &Link) -> Result<(), Failure> {
    if accepting_value(&link.name)?.is_none() {
        return Ok(());
    }
    let all = RouteFilter::all(IpFamily::V6);
    let learnt = host.routes_by(RouteProtocol::RA, RouteFilter { oif: Some(link.index), ..all })?;
    let Some(way) = learnt.iter().find(|route| route.is_default()) else { return Ok(()) };
    let is_another = |route: &Route| {
        let by_link = route.protocol == Some(RouteProtocol::RA) && route.oif == Some(link.index);
        route.is_default() && route.kind == RouteKind::Unicast && !by_link
    };
    let filter = RouteFilter { table: Some(way.table), ..all };
    if !host.routes_as(filter, |route| is_another(&route).then_some(()))?.is_empty() {
        return Ok(());
    }
    let name = &link.name;
    let via = way.gateway.map_or_else(|| "GATEWAY".to_owned(), |gateway| gateway.to_string());
    let message = format!(
        "the host has its IPv6 default route from a router's advertisement by {name:?}, which takes \
         none once containers are there: one of them could announce itself as the host's router"
    );
    Err(Failure::new(codes::CONFLICT, message).with_details(format!(
        "attach containers to a bridge of their own; or configure the host's IPv6 addresses and \
         default route (ip -6 route add default via {via} dev {name}), and then: sysctl -w {}={REFUSED}",
        accept_ra(name)?.spelled()
    )))
}

/// Restores a link's sysctl, unless another program has changed it since.
///
/// # Errors
/// Code 100 when the kernel refuses. A link that is gone is success.
pub fn restore(ifname: &str, was: &str) -> Result<(), Failure> {
    let done = accept_ra(ifname).and_then(|sysctl| match sysctl.read()?.as_str() {
        REFUSED => sysctl.write(was),
        _ => Ok(()),
    });
    match done {
        Err(error) if !error.is_missing() => Err(Failure::from_chain(codes::KERNEL, &error)),
        _ => Ok(()),
    }
}

/// Describes what is wrong if a link accepts advertisements.
///
/// # Errors
/// As [`accepting_value`].
pub fn check(ifname: &str) -> Result<Option<String>, Failure> {
    let found = accepting_value(ifname)?;
    // As ADD has left it there.
    if found.is_some() && accept_ra(ifname)?.is_read_only() && accepts_none(ifname)? {
        return Ok(None);
    }
    Ok(found.map(|value| {
        format!(
            "link {ifname:?} takes router advertisements from containers (accept_ra is {value})"
        )
    }))
}

fn accept_ra(ifname: &str) -> Result<Sysctl, SysctlError> {
    Sysctl::of_link(OF_LINKS, ifname, "accept_ra")
}
