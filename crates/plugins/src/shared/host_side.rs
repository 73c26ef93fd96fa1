//! What the link with the gateways' addresses needs besides them for traffic to pass: IPv6 with a
//! link-local address, from which the kernel solicits its neighbours, and routes to the containers.
//!
//! NetworkManager removes these from a link that it disconnects or has a connection for, and other
//! programs may.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cni_plugin::codes;
use ipnet::{IpNet, Ipv6Net};
use kernel::mac::MacAddr;
use kernel::route::{
    Address, AddressOptions, Change, IpFamily, Link, OperState, Route, RouteFilter, RouteKind,
    RouteProtocol, RouteSocket, Scope, TABLE_MAIN, is_link_local_v6,
};
use kernel::sysctl::{Sysctl, SysctlError};

pub use wanted::ROUTE_OF_OTHERS;

use super::failure::Failure;
use super::owner;

/// How long the kernel may take to give a link-local address to a link that got its carrier: it
/// does so at once, unless the machine is busy.
const LINK_LOCAL_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause between two checks.
const LINK_LOCAL_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The folder of the sysctls, below `/proc/sys`.
const LINKS_IPV6: &str = "net/ipv6/conf";

/// The value of the sysctl `addr_gen_mode` with which the kernel creates no link-local address, and
/// the usual one.
const NO_ADDRESS: &str = "1";
const OF_HARDWARE: &str = "0";

/// The metric of the routes that the kernel creates for IPv6 addresses.
const PREFIX_ROUTE_V6: u32 = 256;

/// What a link is missing for IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingIpv6 {
    /// All of it: IPv6 is switched off.
    Switched,
    /// A link-local address; once the kernel creates one again, the link keeps it by itself.
    LinkLocal,
    /// A link-local address that the kernel was about to create a moment ago.
    LinkLocalYet,
    /// One that is not under duplicate address detection: the kernel solicits from no other.
    Usable,
}

impl MissingIpv6 {
    /// Describes it, with the link's name.
    #[must_use]
    pub fn describe(self, ifname: &str) -> String {
        match self {
            MissingIpv6::Switched => format!("IPv6 is switched off on link {ifname:?}"),
            MissingIpv6::LinkLocal | MissingIpv6::LinkLocalYet => {
                format!("link-local IPv6 address is gone from {ifname:?}")
            }
            MissingIpv6::Usable => format!(
                "link-local IPv6 address of {ifname:?} is not usable yet: the kernel looks for duplicates"
            ),
        }
    }
}

/// Returns the change that gives a link of the host its link-local address, usable at once. The kernel
/// solicits neighbours from it for packets that it forwards, and from no other address (linux
/// net/ipv6/ndisc.c `ndisc_send_ns`): the address that it makes itself is under duplicate address
/// detection for a second or two after the link came up, and no container is reached by IPv6 until
/// then. Nobody else is on such a link who could have the address.
///
/// It belongs before the link is up: then the kernel finds it, and makes none.
#[must_use]
pub fn link_local(ifindex: u32, mac: MacAddr) -> Change {
    let net = Ipv6Net::new(mac.link_local(), 64).expect("64 is a length of an IPv6 prefix");
    let options = AddressOptions { nodad: true, ..AddressOptions::default() };
    Change::AddAddress { ifindex, address: net.into(), options }
}

/// Gives a link of the host its link-local address, usable at once, unless it has it. Where IPv6 is
/// off the kernel refuses; whoever needs an address of IPv6 there is told by the next one.
pub fn give_link_local(host: &mut RouteSocket, link: &Link) {
    if let Some(mac) = link.mac {
        let _ = host.apply_one(&link_local(link.index, mac));
    }
}

/// Finds what a link of ours is missing for containers with IPv6 addresses.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn missing_ipv6(host: &mut RouteSocket, ifname: &str) -> Result<Option<MissingIpv6>, Failure> {
    let deadline = Instant::now() + LINK_LOCAL_TIMEOUT;
    loop {
        let Some(link) = host.link_by_name(ifname)? else { return Ok(None) };
        let lack = lack(host, &link)?;
        if lack != Some(MissingIpv6::LinkLocalYet) || deadline < Instant::now() {
            return Ok(lack);
        }
        std::thread::sleep(LINK_LOCAL_POLL_INTERVAL);
    }
}

fn lack(host: &mut RouteSocket, link: &Link) -> Result<Option<MissingIpv6>, Failure> {
    let present = host.addresses(Some(link.index))?;
    // Nothing is sent from an address that another host has. Nobody else is on a link of ours, so
    // there the kernel looks for duplicates in vain: it does after another program set the link up.
    let is_own = |found: &&Address| is_link_local_v6(found.address.addr()) && !found.dad_failed();
    let is_usable = |found: &Address| !found.tentative() || !is_ours(link);
    let mut own = present.iter().filter(is_own).peekable();
    if own.peek().is_some() {
        return Ok((!own.any(is_usable)).then_some(MissingIpv6::Usable));
    }
    let is = |ifname: &str, name: &str, value: &str| {
        sysctl_of(ifname, name).and_then(|sysctl| sysctl.read()).is_ok_and(|found| found == value)
    };
    Ok(if is(&link.name, "disable_ipv6", "1") {
        Some(MissingIpv6::Switched)
    } else if is("default", "addr_gen_mode", NO_ADDRESS) && !is_ours(link) {
        // The kernel never created one.
        None
    } else if link.no_own_ipv6() || present.iter().any(Address::dad_failed) {
        Some(MissingIpv6::LinkLocal)
    } else {
        // Without a carrier the kernel creates none.
        matches!(link.oper_state, OperState::Up | OperState::Unknown)
            .then_some(MissingIpv6::LinkLocalYet)
    })
}

/// Reports whether a plugin of ours has made a link, and has given it an address.
fn is_ours(link: &Link) -> bool {
    link.alias.as_deref().is_some_and(|alias| alias.starts_with(owner::PREFIX))
}

fn sysctl_of(ifname: &str, name: &str) -> Result<Sysctl, SysctlError> {
    Sysctl::of_link(LINKS_IPV6, ifname, name)
}

/// Restores what a link of ours is missing for containers with IPv6 addresses. IPv6 is switched on
/// first: the kernel then creates an address if it may. Returns what was missing.
///
/// # Errors
/// Code 100 when the kernel refuses.
pub fn restore_ipv6(host: &mut RouteSocket, ifname: &str) -> Result<String, Failure> {
    let mut lack = missing_ipv6(host, ifname)?;
    let mut missing = Vec::new();
    if lack == Some(MissingIpv6::Switched) {
        missing.extend(lack.map(|lack| lack.describe(ifname)));
        refused(sysctl_of(ifname, "disable_ipv6").and_then(|sysctl| sysctl.write("0")))?;
        lack = missing_ipv6(host, ifname)?;
    }
    if let Some(lack) = lack.filter(|lack| *lack != MissingIpv6::Switched) {
        create_link_local(host, ifname)?;
        missing.push(lack.describe(ifname));
    }
    Ok(missing.join(", "))
}

/// Makes the kernel create the address, which it does when the sysctl changes. An address derived
/// from the hardware address is added before that, usable at once: the link had it, and duplicate
/// address detection takes a second or two.
fn create_link_local(host: &mut RouteSocket, ifname: &str) -> Result<(), Failure> {
    let Some(link) = host.link_by_name(ifname)? else { return Ok(()) };
    // The kernel goes on looking for duplicates of an address that it has.
    let own = link.mac.map(|mac| IpAddr::from(mac.link_local()));
    let is_pending =
        |found: &Address| found.tentative() && own == Some(found.address.addr()) && is_ours(&link);
    let mut present = host.addresses(Some(link.index))?;
    present.retain(|found| found.dad_failed() || is_pending(found));
    for old in present {
        let (ifindex, address) = (link.index, old.address);
        host.apply_one(&Change::DelAddress { ifindex, address })?;
    }
    let give = |mode: &str| {
        if mode == OF_HARDWARE || is_ours(&link) {
            give_link_local(host, &link);
        }
    };
    refused(write_addr_gen_mode(ifname, give))
}

fn write_addr_gen_mode(ifname: &str, give: impl FnOnce(&str)) -> Result<(), SysctlError> {
    let mode = sysctl_of("default", "addr_gen_mode")?.read()?;
    let own = sysctl_of(ifname, "addr_gen_mode")?;
    own.write_if_different(NO_ADDRESS)?;
    give(&mode);
    // A mode that derives the address from a secret needs that secret.
    own.write(&mode).or_else(|_| own.write(OF_HARDWARE))
}

fn refused(done: Result<(), SysctlError>) -> Result<(), Failure> {
    done.map_err(|error| Failure::from_chain(codes::KERNEL, &error))
}

/// How the host's route to a container differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteDifference {
    /// No route leads there by the link.
    Missing,
    /// A route leads there by the link, and another route covers it.
    Covered(CoveredAddress),
}

/// An address that a foreign route covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoveredAddress {
    to: IpAddr,
    /// The interface by which packets leave instead; `None` if they are dropped.
    by: Option<String>,
}

impl CoveredAddress {
    /// Returns the error for it, with a remedy. `ifname` is the interface that the route should
    /// use.
    #[must_use]
    pub fn drift(&self, ifname: &str) -> Failure {
        super::drift(self.describe(ifname)).with_details(ROUTE_OF_OTHERS)
    }

    /// Describes it, with the interface that the route should use.
    #[must_use]
    pub fn describe(&self, ifname: &str) -> String {
        let to = self.to;
        match &self.by {
            Some(by) => format!(
                "the host reaches {to} by {by:?}, not by {ifname:?}: a route that is not ours covers it"
            ),
            None => format!("the host drops what is for {to}: a route that is not ours covers it"),
        }
    }
}

/// Finds the interface by which the host should reach an address, among those that plugins created
/// for a container: the one with the narrowest direct route, in the main table or in that of the
/// VRF that it belongs to. A foreign route that covers it does not count.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn link_leading_to(
    host: &mut RouteSocket,
    names: &[&str],
    to: IpAddr,
) -> Result<Option<Link>, Failure> {
    let mut best: Option<(u8, Link)> = None;
    for name in names {
        let Some(link) = host.link_by_name(name)? else { continue };
        let table = Some(LinkTable::of(host, &link)?.table);
        let filter = RouteFilter { family: IpFamily::of(to), table, oif: Some(link.index) };
        let routes = host.routes(filter)?;
        let leads = routes.iter().filter(|route| leads_directly(route, to));
        let narrowest = leads.map(|route| route.destination.prefix_len()).max();
        if let Some(length) = narrowest
            && best.as_ref().is_none_or(|(than, _)| *than < length)
        {
            best = Some((length, link));
        }
    }
    Ok(best.map(|(_, link)| link))
}

/// Returns whether a route leads to an address without a gateway, and is not a default route.
fn leads_directly(route: &Route, to: IpAddr) -> bool {
    route.kind == RouteKind::Unicast
        && route.gateway.is_none()
        && route.destination.prefix_len() != 0
        && route.destination.contains(&to)
}

/// The table that the routes by a link are in.
#[derive(Debug, Clone, Copy)]
struct LinkTable {
    /// The VRF that the link belongs to, by its index.
    vrf: Option<u32>,
    table: u32,
}

impl LinkTable {
    /// Finds the table: the main one, or that of the link's VRF.
    fn of(host: &mut RouteSocket, link: &Link) -> Result<Self, Failure> {
        let master = link.master.map(|master| host.link_by_index(master)).transpose()?.flatten();
        let of_vrf = master.and_then(|vrf| Some((vrf.index, vrf.vrf_table?)));
        Ok(match of_vrf {
            Some((vrf, table)) => LinkTable { vrf: Some(vrf), table },
            None => LinkTable { vrf: None, table: TABLE_MAIN },
        })
    }
}

/// Finds the route that covers the route by which an address is reached, in the table that this one
/// is in: the main one, or that of the link's VRF. Rules of the host that lead elsewhere do not
/// count.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn covering(
    host: &mut RouteSocket,
    link: &Link,
    to: IpAddr,
    ours: &IpNet,
) -> Result<Option<CoveredAddress>, Failure> {
    let LinkTable { vrf, table } = LinkTable::of(host, link)?;
    match host.route_in(vrf, to) {
        Ok(Some(route)) => {
            let covered = by_another(host, link, to, &route, table)?;
            // A default route covers nothing: packets go by it since the route of ours is gone.
            let is_default = |entry: Route| entry.destination.prefix_len() == 0;
            let is_gone =
                covered.is_some() && host.route_entry_in(vrf, to)?.is_some_and(is_default);
            Ok(covered.filter(|_| !is_gone))
        }
        // The kernel does not report which route drops the packets.
        _ => {
            let filter = RouteFilter { table: Some(table), ..RouteFilter::all(IpFamily::of(to)) };
            let drops = |route: &Route| {
                !matches!(route.kind, RouteKind::Unicast | RouteKind::Local)
                    && ours.prefix_len() <= route.destination.prefix_len()
                    && route.destination.contains(&to)
            };
            let found = host.routes(filter)?.iter().any(drops);
            Ok(found.then_some(CoveredAddress { to, by: None }))
        }
    }
}

fn by_another(
    host: &mut RouteSocket,
    link: &Link,
    to: IpAddr,
    route: &Route,
    table: u32,
) -> Result<Option<CoveredAddress>, Failure> {
    if route.table != table || (route.oif == Some(link.index) && route.gateway.is_none()) {
        return Ok(None);
    }
    let Some(oif) = route.oif else { return Ok(None) };
    let other = host.link_by_index(oif)?;
    Ok(other.map(|other| CoveredAddress { to, by: Some(other.name) }))
}

/// Compares the host's routes to a container, `to`, with the route to the subnet of a gateway's
/// address on the link. Any route by the link that leads there counts.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn compare_subnet_route(
    host: &mut RouteSocket,
    link: &Link,
    gateway: &IpNet,
    to: IpAddr,
) -> Result<Option<RouteDifference>, Failure> {
    // An address alone has no route of its own.
    if !gateway.contains(&to) {
        return Ok(None);
    }
    // One query, however many routes there are. The host's rules may send its own packets
    // elsewhere.
    let LinkTable { vrf, table } = LinkTable::of(host, link)?;
    let taken = host.route_in(vrf, to).ok().flatten();
    if taken.is_some_and(|route| route.oif == Some(link.index) && route.gateway.is_none()) {
        return Ok(None);
    }
    let filter = RouteFilter { family: IpFamily::of(to), table: None, oif: Some(link.index) };
    let present = host.routes(filter)?;
    let mut ours = present.iter().filter(|route| leads_directly(route, to)).peekable();
    if ours.peek().is_none() {
        return Ok(Some(RouteDifference::Missing));
    }
    match ours.find(|route| route.table == table) {
        Some(ours) => {
            let covered = covering(host, link, to, &ours.destination)?;
            Ok(covered.map(RouteDifference::Covered))
        }
        None => Ok(None),
    }
}

/// Returns the route to a subnet that the kernel creates with the gateway's address.
#[must_use]
pub fn restore_route(gateway: &IpNet, ifindex: u32) -> Change {
    let v4 = gateway.addr().is_ipv4();
    Change::AddRoute(Route {
        oif: Some(ifindex),
        protocol: Some(RouteProtocol::KERNEL),
        scope: v4.then_some(Scope::LINK),
        source: v4.then_some(gateway.addr()),
        priority: (!v4).then_some(PREFIX_ROUTE_V6),
        ..Route::new(gateway.trunc())
    })
}
