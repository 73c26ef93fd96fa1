//! Listening to routers beside forwarding of IPv6.
//!
//! A host that forwards IPv6 is a router itself. Links whose sysctl `accept_ra` is 1, the usual
//! value, then ignore router advertisements, and the kernel deletes the default routes that it has
//! learnt by them (linux include/net/addrconf.h `ipv6_accept_ra`, net/ipv6/addrconf.c
//! `addrconf_fixup_forwarding`). With 2 a link listens in any case. So whoever switches forwarding
//! on first calls [`listening`], and then [`keep`] for each link that it names. Links that come later
//! are found by [`ignoring`].
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

/// A link that depends on whether the host forwards IPv6.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Its name.
    pub link: String,
    /// Its ifindex, by which another link with this name is told from it.
    pub ifindex: u32,
}

/// Lists the links that listen to routers, and would not if the host forwarded IPv6:
///
/// - links that have a route or an address from a router's advertisement;
/// - links with an IPv4 default route, and others that lead out of the host, to no container, unless an
///   administrator has made an IPv6 default route: there the first advertisement may be yet to come.
///
/// Where an administrator has made the IPv6 default route, the host needs no advertisement, and any
/// machine on the link can send one. Beside forwarding, links of containers shall not be listened to
/// (CVE-2020-10749).
///
/// # Errors
/// Those of [`NetlinkError`].
///
/// # Namespace
/// That of the calling thread, in which the socket was opened.
pub fn listening(netlink: &mut RouteSocket) -> Result<Vec<Listener>, NetlinkError> {
    waiting(netlink, 0)
}

/// Lists the links that would listen to routers as [`listening`] says, and do not, because the host
/// forwards IPv6: links that came, or got their route, after forwarding was switched on.
///
/// # Errors
/// Those of [`NetlinkError`].
///
/// # Namespace
/// As [`listening`].
pub fn ignoring(netlink: &mut RouteSocket) -> Result<Vec<Listener>, NetlinkError> {
    waiting(netlink, 1)
}

/// Lists the links that may hear a router, with this value of their sysctl `forwarding`.
fn waiting(netlink: &mut RouteSocket, forwarding: u32) -> Result<Vec<Listener>, NetlinkError> {
    let all = netlink.links_with_settings()?;
    let depends = |link: &Link, settings: &LinkSettings| {
        let own = |own: Ipv6Settings| (own.accept_ra, own.forwarding, own.disable_ipv6);
        !link.loopback() && settings.ipv6.map(own) == Some((1, forwarding, 0))
    };
    if !all.iter().any(|(link, settings)| depends(link, settings)) {
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
    let mut to_one_or_all = |family| {
        netlink.routes_as(RouteFilter::main(family), |route| {
            let of_one = route.gateway.is_none() && is_of_one(&route.destination);
            (route.kind == RouteKind::Unicast && (route.is_default() || of_one)).then_some(route)
        })
    };
    let (v4, v6) = (to_one_or_all(IpFamily::V4)?, to_one_or_all(IpFamily::V6)?);
    let is_made = |route: &Route| route.is_default() && route.protocol != Some(RouteProtocol::RA);
    if !v6.iter().any(is_made) {
        let mut of_one = Vec::new();
        for route in v4.iter().chain(&v6) {
            match route.is_default() {
                true if route.destination.addr().is_ipv4() => to_routers.extend(links_of(route)),
                true => {}
                false => of_one.extend(links_of(route)),
            }
        }
        let namespace = Namespace { all: &all, of_one };
        let leads_out = |(link, settings): &&(Link, LinkSettings)| {
            depends(link, settings) && leads_out(&namespace, link, settings)
        };
        to_routers.extend(all.iter().filter(leads_out).map(|(link, _)| link.index));
    }
    let found = all
        .iter()
        .filter(|(link, settings)| depends(link, settings) && to_routers.contains(&link.index));
    let listener = |(link, _): &(Link, LinkSettings)| Listener {
        link: link.name.clone(),
        ifindex: link.index,
    };
    Ok(found.map(listener).collect())
}

/// What [`leads_out`] looks at besides a link.
struct Namespace<'l> {
    all: &'l [(Link, LinkSettings)],
    /// Links by which a route without a router leads to one address: a container's.
    of_one: Vec<u32>,
}

/// How many links a VLAN may lie on.
const DEPTH: usize = 4;

/// Says whether a link leads out of the host, and to no container: hardware, bonds, PPP, and VLANs on
/// these. A bridge may have containers, and a macvlan may meet those of the same parent. The pair that
/// leads out of a host that is a container itself looks like the pair of one of its containers. It
/// counts there if it is no port of a bridge, has no mark, and no route to a single address leads by it.
fn leads_out(namespace: &Namespace<'_>, link: &Link, settings: &LinkSettings) -> bool {
    let find = |index| namespace.all.iter().find(|(link, _)| link.index == index);
    let (mut link, mut settings) = (link, settings);
    for _ in 0..DEPTH {
        let of_vrf = |master| find(master).is_some_and(|(master, _)| master.is_kind("vrf"));
        if !link.master.is_none_or(of_vrf) {
            return false;
        }
        match link.kind.as_deref() {
            None => return !settings.of_function,
            Some("bond" | "team" | "ppp") => return true,
            Some("vlan") if link.link_netnsid.is_none() => {
                let Some((lower, own)) = link.peer_index.and_then(find) else { return false };
                (link, settings) = (lower, own);
            }
            Some("veth") => {
                return link.link_netnsid.is_some()
                    && link.alias.is_none()
                    && !namespace.of_one.contains(&link.index)
                    && is_namespace_of_its_own();
            }
            _ => return false,
        }
    }
    false
}

/// Says whether a prefix is one machine's address.
fn is_of_one(prefix: &IpNet) -> bool {
    prefix.prefix_len() == prefix.max_prefix_len()
}

/// A sysctl that only the machine's first network namespace has (linux net/core/sysctl_net_core.c
/// `net_core_table`).
const OF_MACHINE: &str = "net/core/netdev_max_backlog";

/// Says whether the calling thread's network namespace is surely not the machine's first.
fn is_namespace_of_its_own() -> bool {
    let read = Sysctl::parse(OF_MACHINE).and_then(|sysctl| sysctl.read());
    read.is_err_and(|error| error.is_missing())
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
