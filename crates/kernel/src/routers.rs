//! Listening to routers beside forwarding of IPv6.
//!
//! A host that forwards IPv6 is a router itself. Links whose sysctl `accept_ra` is 1, the usual
//! value, then ignore router advertisements, and the kernel deletes the default routes that it has
//! learnt by them (linux include/net/addrconf.h `ipv6_accept_ra`, net/ipv6/addrconf.c
//! `addrconf_fixup_forwarding`). With 2 a link listens in any case. So whoever switches forwarding
//! on first calls [`listening`], and then [`keep`] for each link that it names.
//!
//! Where another program reads the advertisements, the value is 0, and stays.

use ipnet::IpNet;
use thiserror::Error;

use crate::netlink::NetlinkError;
use crate::route::{
    IpFamily, Ipv6Settings, Link, LinkSettings, Route, RouteFilter, RouteKind, RouteProtocol,
    RouteSocket, Scope,
};
use crate::sysctl::{Sysctl, SysctlError};

/// The sysctl that switches forwarding of IPv6 on for all links.
pub const FORWARDING: &str = "net/ipv6/conf/all/forwarding";

/// The folder of the links' own sysctls.
const OF_LINKS: &str = "net/ipv6/conf";

/// Values of `accept_ra`: a link listens unless it forwards, and in any case (linux
/// Documentation/networking/ip-sysctl.rst).
const UNLESS_FORWARDING: &str = "1";
const ALWAYS: &str = "2";

/// A link that listens to routers could not be kept from ignoring them.
#[derive(Debug, Error)]
#[error(
    "keep link {link:?} listening to routers, whose advertisements it ignores beside IPv6 \
     forwarding while accept_ra is 1"
)]
pub struct KeepError {
    link: String,
    /// Why.
    #[source]
    source: SysctlError,
}

impl KeepError {
    /// Returns the command that does by hand what failed.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(format!("run as root on the host: sysctl -w {}", by_hand(&self.link)?))
    }
}

/// Lists the links that listen to routers, and would not if the host forwarded IPv6. These are links
/// that have a route or an address from a router's advertisement, and links with an IPv4 default
/// route if there is no IPv6 default route: there the first advertisement may be yet to come. Where an
/// administrator has made the IPv6 default route, the host needs no advertisement, and any machine on
/// the link can send one. Links of containers have none of these: beside forwarding they shall not be
/// listened to (CVE-2020-10749).
///
/// # Errors
/// Those of [`NetlinkError`].
///
/// # Namespace
/// That of the calling thread, in which the socket was opened.
pub fn listening(netlink: &mut RouteSocket) -> Result<Vec<String>, NetlinkError> {
    let mut links = netlink.links_with_settings()?;
    links.retain(|(link, settings)| depends_on_forwarding(link, settings));
    if links.is_empty() {
        return Ok(Vec::new());
    }
    let mut to_routers: Vec<u32> = Vec::new();
    let addresses = netlink.addresses(None)?.into_iter();
    let learnt = addresses.filter(|address| {
        let is_v6 = matches!(address.address, IpNet::V6(_));
        is_v6 && address.scope == Scope::UNIVERSE && !address.permanent()
    });
    to_routers.extend(learnt.map(|address| address.ifindex));
    let announced = netlink.routes_by(RouteProtocol::RA, RouteFilter::all(IpFamily::V6))?;
    to_routers.extend(announced.iter().flat_map(links_of));
    let mut defaults = |family| {
        netlink.routes_as(RouteFilter::main(family), |route| {
            (route.is_default() && route.kind == RouteKind::Unicast).then_some(route)
        })
    };
    if defaults(IpFamily::V6)?.is_empty() {
        to_routers.extend(defaults(IpFamily::V4)?.iter().flat_map(links_of));
    }
    links.retain(|(link, _)| to_routers.contains(&link.index));
    Ok(links.into_iter().map(|(link, _)| link.name).collect())
}

fn depends_on_forwarding(link: &Link, settings: &LinkSettings) -> bool {
    let listens =
        |own: Ipv6Settings| (own.accept_ra, own.forwarding, own.disable_ipv6) == (1, 0, 0);
    !link.loopback() && settings.ipv6.is_some_and(listens)
}

fn links_of(route: &Route) -> impl Iterator<Item = u32> {
    route.oif.into_iter().chain(route.next_hops.iter().filter_map(|hop| hop.oif))
}

/// Makes a link listen to routers in any case. A link that is gone is success.
///
/// # Errors
/// [`KeepError`].
pub fn keep(link: &str) -> Result<(), KeepError> {
    exchange(link, UNLESS_FORWARDING, ALWAYS)
        .map_err(|source| KeepError { link: link.to_owned(), source })
}

/// Returns what `sysctl -w` has to set so that a link listens to routers in any case.
#[must_use]
pub fn by_hand(link: &str) -> Option<String> {
    Some(format!("{}={ALWAYS}", accept_ra(link).ok()?.spelled()))
}

/// Makes a link listen to routers unless it forwards, if [`keep`] had made it listen in any case. A
/// link that is gone is success.
///
/// # Errors
/// Those of [`SysctlError`].
pub fn restore(link: &str) -> Result<(), SysctlError> {
    exchange(link, ALWAYS, UNLESS_FORWARDING)
}

fn exchange(link: &str, from: &str, to: &str) -> Result<(), SysctlError> {
    let exchanged = accept_ra(link).and_then(|own| match own.read()? == from {
        true => own.write(to),
        false => Ok(()),
    });
    match exchanged {
        Err(error) if !error.is_missing() => Err(error),
        _ => Ok(()),
    }
}

fn accept_ra(link: &str) -> Result<Sysctl, SysctlError> {
    Sysctl::of_link(OF_LINKS, link, "accept_ra")
}
