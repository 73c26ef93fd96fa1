//! The container's side of an interface: addresses, routes and sysctls, as the IPAM plugin returned
//! them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use cni::{AddResult, Interface, IpConfig, Route, code};
use cni_plugin::{Call, codes};
use ipnet::{IpNet, Ipv6Net};
use kernel::netns::{Netns, within};
use kernel::route::{
    self, AddressOptions, Change, IpFamily, Link, LinkSet, RouteFilter, RouteSocket, Scope,
    TABLE_MAIN,
};
use kernel::sysctl::{Folder, Sysctl, SysctlError};
use wanted::{Item, Reason, RouteMatch, State};

use super::failure::Failure;
use super::{drift, dropping};

/// How long duplicate address detection may take: one second of waiting for answers, up to one
/// second of random delay (RFC 4862 §5.4.2), and a reserve for a busy machine.
const DAD_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between two checks of an address under detection; detection takes a second or more.
const DAD_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The folder of an interface's sysctls, below `/proc/sys`.
const OF_LINKS: &str = "net/ipv6/conf";

/// A sysctl of the container's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SysctlSetting {
    /// The key below `/proc/sys`, parts separated by slashes.
    pub key: String,
    /// The value.
    pub value: &'static str,
    /// Whether the interface is unusable without it. A required sysctl is read first, since
    /// `/proc/sys` may be read-only while the value is already right. The others are set as far as
    /// the kernel allows.
    pub required: bool,
}

/// How to configure an interface in a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// IPv6 addresses are usable at once; no other host can hold them.
    pub skip_dad: bool,
    /// A route of IPv6 without a gateway of its own has none if its scope excludes one, as one of
    /// IPv4. IPv6 has no scopes: only where our own code means a route on the link by that.
    pub scopes_in_ipv6: bool,
}

impl Options {
    /// The usual options.
    #[must_use]
    pub const fn new(skip_dad: bool) -> Self {
        Options { skip_dad, scopes_in_ipv6: false }
    }
}

/// Returns the sysctls for an interface with these addresses.
#[must_use]
pub fn sysctls(ifname: &str, ips: &[&IpConfig], options: Options) -> Vec<SysctlSetting> {
    let best_effort = |key: String, value| SysctlSetting { key, value, required: false };
    let required = |key: String, value| SysctlSetting { key, value, required: true };
    let mut sysctls = Vec::new();
    if ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
        sysctls.push(required("net/ipv6/conf/lo/disable_ipv6".to_owned(), "0"));
        sysctls.push(required(format!("net/ipv6/conf/{ifname}/disable_ipv6"), "0"));
        sysctls.push(best_effort(format!("net/ipv6/conf/{ifname}/keep_addr_on_down"), "1"));
        sysctls.push(best_effort(format!("net/ipv6/conf/{ifname}/ndisc_notify"), "1"));
    }
    if options.skip_dad {
        sysctls.push(best_effort(format!("net/ipv6/conf/{ifname}/accept_dad"), "0"));
    } else {
        sysctls.push(best_effort(format!("net/ipv6/conf/{ifname}/enhanced_dad"), "1"));
        sysctls.push(best_effort(format!("net/ipv6/conf/{ifname}/accept_dad"), "1"));
    }
    sysctls
}

/// Writes sysctls in a namespace.
///
/// # Errors
/// Code 100 when a required one cannot be written.
pub fn write_sysctls(netns: &Netns, sysctls: &[SysctlSetting]) -> Result<(), Failure> {
    if sysctls.is_empty() {
        return Ok(());
    }
    let required = sysctls.iter().any(|sysctl| sysctl.required);
    within(netns, || match Folder::open(OF_LINKS) {
        Ok(folder) => sysctls.iter().try_for_each(|sysctl| write_sysctl(&folder, sysctl)),
        Err(error) if required => Err(error),
        Err(_) => Ok(()),
    })
    .map_err(|error| Failure::from_chain(code::INVALID_NETNS, &error))?
    .map_err(|error| {
        Failure::from_chain(codes::KERNEL, &error).with_details(error.remedy().unwrap_or_default())
    })
}

fn write_sysctl(folder: &Folder, sysctl: &SysctlSetting) -> Result<(), SysctlError> {
    let key = Sysctl::parse(&sysctl.key)?;
    if sysctl.required {
        return folder.write_if_different(&key, sysctl.value).map(drop);
    }
    let _ = folder.write(&key, sysctl.value);
    Ok(())
}

/// Makes an interface's IPv6 addresses usable at once, or only after duplicate address detection,
/// as the options say. Runs before the interface is up.
///
/// An interface without an IPv6 address of its own has only the link-local one, which the kernel
/// creates. If that address is known, this function adds it instead: the more namespaces there are,
/// the more a sysctl costs.
///
/// # Errors
/// Code 100 when the kernel does not answer, or when IPv6 is wanted and switched off.
pub fn prepare(
    inside: &mut RouteSocket,
    netns: &Netns,
    ifindex: u32,
    ifname: &str,
    ips: &[&IpConfig],
    options: Options,
) -> Result<(), Failure> {
    let v4_alone = ips.iter().all(|ip| ip.address.addr().is_ipv4());
    if options.skip_dad && v4_alone && give_link_local(inside, ifindex)? {
        return Ok(());
    }
    write_sysctls(netns, &sysctls(ifname, ips, options))
}

/// Adds to an end of a pair the link-local address that the kernel would create, usable at once;
/// returns whether this worked. It does not work for other kinds of links: an ipvlan's address is
/// not derived from its hardware address alone.
fn give_link_local(inside: &mut RouteSocket, ifindex: u32) -> Result<bool, Failure> {
    let link = inside.link_by_index(ifindex)?;
    let known = link.filter(|link| link.link_local_of_mac() && link.is_kind("veth"));
    let Some(mac) = known.and_then(|link| link.mac) else { return Ok(false) };
    let Ok(net) = Ipv6Net::new(mac.link_local(), 64) else { return Ok(false) };
    let options = AddressOptions { nodad: true, ..AddressOptions::default() };
    // The kernel refuses if IPv6 is switched off in the container.
    Ok(inside.apply_one(&Change::AddAddress { ifindex, address: net.into(), options }).is_ok())
}

/// Returns the changes that bring an interface up with its addresses and routes, in the order that
/// the kernel needs.
#[must_use]
pub fn changes(ifindex: u32, ips: &[&IpConfig], routes: &[Route], options: Options) -> Vec<Change> {
    let mut changes = Vec::new();
    // Set before the interface is up: that is when the kernel notifies the neighbours.
    if !ips.is_empty() {
        let set = LinkSet { arp_notify: Some(true), ..LinkSet::default() };
        changes.push(Change::SetLink { ifindex, set });
    }
    changes.extend(ips.iter().map(|ip| address(ifindex, ip.address, options, false)));
    changes
        .push(Change::SetLink { ifindex, set: LinkSet { up: Some(true), ..LinkSet::default() } });
    let mut planned: Vec<route::Route> = Vec::new();
    for wanted in routes {
        let route = route_with(ifindex, wanted, ips, options);
        if !planned.contains(&route) {
            planned.push(route);
        }
    }
    // Routes are appended, so several next hops to one destination coexist.
    changes.extend(planned.into_iter().map(Change::AppendRoute));
    changes
}

/// Returns the change that gives an interface an address, with or without the route to its subnet.
#[must_use]
pub fn address(ifindex: u32, address: IpNet, options: Options, noprefixroute: bool) -> Change {
    let options = AddressOptions {
        nodad: options.skip_dad,
        broadcast: broadcast_of(address),
        noprefixroute,
        ..AddressOptions::default()
    };
    Change::AddAddress { ifindex, address, options }
}

/// Returns the broadcast address of a subnet, if it has one: programs ask an interface for it
/// (SIOCGIFBRDADDR).
#[must_use]
pub fn broadcast_of(address: IpNet) -> Option<Ipv4Addr> {
    match address {
        IpNet::V4(net) if net.prefix_len() < 31 => Some(net.broadcast()),
        _ => None,
    }
}

/// Returns the route as the kernel accepts it. Without a next hop of its own the route gets the
/// family's gateway, unless its scope excludes one; only IPv4 has scopes (`man 8 ip-route`). A next
/// hop outside every subnet of the interface is declared reachable on it.
#[must_use]
pub fn kernel_route(ifindex: u32, wanted: &Route, ips: &[&IpConfig]) -> route::Route {
    route_with(ifindex, wanted, ips, Options::new(false))
}

fn route_with(ifindex: u32, wanted: &Route, ips: &[&IpConfig], options: Options) -> route::Route {
    if wanted.drops.is_some() {
        return route::Route {
            kind: dropping::kind(wanted.drops),
            priority: wanted.priority,
            table: wanted.table.unwrap_or(TABLE_MAIN),
            ..route::Route::new(wanted.dst.trunc())
        };
    }
    let is_ipv4 = wanted.dst.addr().is_ipv4();
    let scope = wanted.scope.filter(|_| is_ipv4);
    let counts = wanted.scope.filter(|_| is_ipv4 || options.scopes_in_ipv6);
    let beyond_link = counts.is_none_or(|scope| scope < Scope::LINK.0);
    let gateway = wanted.gw.or_else(|| family_gateway(is_ipv4, ips).filter(|_| beyond_link));
    let onlink = gateway.is_some_and(|gateway| !is_reachable(gateway, ips));
    let on_link_only = gateway.is_none() && is_ipv4;
    route::Route {
        gateway,
        oif: Some(ifindex),
        priority: wanted.priority,
        table: wanted.table.unwrap_or(TABLE_MAIN),
        scope: scope.map(Scope).or(on_link_only.then_some(Scope::LINK)),
        mtu: wanted.mtu,
        advmss: wanted.advmss,
        onlink,
        ..route::Route::new(wanted.dst.trunc())
    }
}

/// Describes the addresses of the container's interface as items.
pub fn wanted_addresses(
    ifname: &str,
    ips: &[IpConfig],
    nodad: bool,
    noprefixroute: bool,
) -> impl Iterator<Item = Item> {
    ips.iter().map(move |ip| {
        let address = wanted::Address {
            link: ifname.to_owned(),
            address: ip.address,
            gateway: false,
            nodad,
            noprefixroute,
        };
        Item::container(State::Address(address), Reason::Ipam)
    })
}

/// Describes the container's side as items: what ADD reported of the interface, its addresses, and
/// the routes of the result. An interface that is `left_down` is not configured.
#[must_use]
pub(crate) fn wanted_side(
    ifname: &str,
    result: &AddResult,
    ips: &[IpConfig],
    options: Options,
    left_down: bool,
) -> Vec<Item> {
    let link = || ifname.to_owned();
    let mut items = Vec::new();
    let reported = result.container_interface(ifname);
    let mac = reported.map(|link| link.mac.clone()).filter(|mac| !mac.is_empty() && !left_down);
    if let Some(mac) = mac {
        items.push(Item::container(State::Mac { link: link(), mac }, Reason::Created));
    }
    items.extend(wanted_addresses(ifname, ips, options.skip_dad, false));
    if !left_down {
        items.push(Item::container(State::Up { link: link() }, Reason::Created));
    }
    let all: Vec<&IpConfig> = ips.iter().collect();
    let routes = result.routes.iter();
    let routes = routes.map(|asked| (route_with(0, asked, &all, options), asked));
    let routes = routes.map(|(route, asked)| wanted_route(ifname, &route, asked));
    items.extend(each_once(routes.map(|route| (route, Reason::Ipam))));
    items
}

/// Turns routes of the container's interface into items, each once: a result may name one twice.
#[must_use]
pub fn each_once(routes: impl Iterator<Item = (wanted::Route, Reason)>) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for (route, because) in routes {
        let state = State::Route(route);
        if !items.iter().any(|item| item.state == state) {
            items.push(Item::container(state, because));
        }
    }
    items
}

/// Describes a route of the container's interface as an item of [`wanted::Wanted`]: `asked` is the
/// route as it was asked for, `route` as the kernel gets it.
///
/// Any default route satisfies a default route: a later plugin may have replaced it. A route asked
/// for without a next hop is satisfied by any too.
#[must_use]
pub fn wanted_route(ifname: &str, route: &route::Route, asked: &Route) -> wanted::Route {
    let any = asked.is_default() || asked.gw.is_none();
    wanted::Route {
        gateway: route.gateway,
        satisfied_by: if any { RouteMatch::Any } else { RouteMatch::Gateway },
        source: route.source,
        scope: route.scope.map(|scope| scope.0),
        table: Some(route.table).filter(|table| *table != TABLE_MAIN),
        priority: route.priority,
        mtu: route.mtu,
        advmss: route.advmss,
        onlink: route.onlink,
        drops: asked.drops,
        ..wanted::Route::new(ifname, route.destination)
    }
}

fn is_reachable(gateway: IpAddr, ips: &[&IpConfig]) -> bool {
    let link_local = match gateway {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    link_local || ips.iter().any(|ip| ip.address.contains(&gateway))
}

fn family_gateway(v4: bool, ips: &[&IpConfig]) -> Option<IpAddr> {
    ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == v4)
}

/// Waits until no address of an interface is under duplicate address detection. Without a carrier
/// no host can answer: the kernel starts detection once there is a carrier, and this function does
/// not wait for that.
///
/// # Errors
/// Code 108 when another host holds an address; code 11 when detection does not end.
pub fn wait_for_dad(socket: &mut RouteSocket, ifindex: u32, ifname: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + DAD_TIMEOUT;
    loop {
        let addresses = socket.addresses(Some(ifindex))?;
        if let Some(duplicate) = addresses.iter().find(|address| address.dad_failed()) {
            return Err(Failure::new(
                codes::CONFLICT,
                format!(
                    "duplicate address detection failed for {} on {ifname:?}",
                    duplicate.address
                ),
            )
            .with_details("another host on the link holds the address"));
        }
        let detecting = addresses.iter().any(route::Address::tentative);
        if !detecting || !has_carrier(socket, ifindex)? {
            return Ok(());
        }
        if deadline < Instant::now() {
            return Err(Failure::new(
                code::TRY_AGAIN_LATER,
                format!("addresses of {ifname:?} are still tentative after {DAD_TIMEOUT:?}"),
            ));
        }
        std::thread::sleep(DAD_POLL_INTERVAL);
    }
}

fn has_carrier(socket: &mut RouteSocket, ifindex: u32) -> Result<bool, Failure> {
    let link = socket.link_by_index(ifindex)?;
    Ok(link.is_some_and(|link| link.lower_up()))
}

/// Brings an interface up with its addresses and routes. If duplicate address detection is on, the
/// caller runs [`wait_for_dad`] next, once the link has a carrier.
///
/// # Errors
/// Code 100 with the kernel's words.
pub fn configure(
    inside: &mut RouteSocket,
    netns: &Netns,
    ifindex: u32,
    ifname: &str,
    ips: &[&IpConfig],
    routes: &[Route],
    options: Options,
) -> Result<(), Failure> {
    if !ips.is_empty() {
        prepare(inside, netns, ifindex, ifname, ips, options)?;
    }
    let changes = changes(ifindex, ips, routes, options);
    inside.apply(&changes).map_err(|error| {
        Failure::from(error).context(format_args!("configure interface {ifname:?}"))
    })
}

/// Finds what ADD reported about the container's interface, in the namespace that CHECK received.
///
/// # Errors
/// Code 104.
pub fn reported_interface<'r>(
    call: &Call<'_>,
    result: &'r AddResult,
) -> Result<&'r Interface, Failure> {
    let ifname = call.ifname().as_str();
    let reported = result
        .container_interface(ifname)
        .ok_or_else(|| drift(format!("prevResult does not list interface {ifname:?}")))?;
    if reported.sandbox != call.env().netns {
        return Err(drift(format!(
            "interface {ifname:?} was attached in {}, not in {}",
            reported.sandbox,
            call.env().netns
        )));
    }
    Ok(reported)
}

/// Compares a link's hardware address with the one ADD reported (CHECK).
///
/// # Errors
/// Code 104.
pub fn same_mac(reported: &Interface, link: &Link) -> Result<(), Failure> {
    let Some(mac) = link.mac.map(|mac| mac.to_string()) else { return Ok(()) };
    if reported.mac.is_empty() || reported.mac.eq_ignore_ascii_case(&mac) {
        return Ok(());
    }
    Err(Failure::new(
        codes::DRIFT,
        format!("interface {:?} has MAC address {mac}, ADD reported {}", link.name, reported.mac),
    ))
}

/// Refuses an IPAM plugin's result without an address.
///
/// # Errors
/// Code 7, in the reference's words.
pub fn check_ipam_result(result: &AddResult) -> Result<(), Failure> {
    if result.ips.is_empty() {
        return Err(Failure::new(code::INVALID_CONFIG, "IPAM plugin returned missing IP config"));
    }
    Ok(())
}

/// Lists how an interface differs from what ADD reported (CHECK): addresses and routes that are
/// missing, one clause each.
///
/// A route counts in any table: plugins later in the chain move routes to tables of their own.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn differences(
    socket: &mut RouteSocket,
    ifindex: u32,
    ifname: &str,
    ips: &[&IpConfig],
    routes: &[Route],
) -> Result<Vec<String>, Failure> {
    let present = socket.addresses(Some(ifindex))?;
    let missing = ips.iter().filter(|ip| !present.iter().any(|has| has.address == ip.address));
    let mut found: Vec<String> = missing
        .map(|ip| format!("failed to find IP {} on interface {ifname:?}", ip.address))
        .collect();
    let missing = missing_routes(socket, routes)?;
    let missing = missing.iter().map(RouteName);
    found.extend(missing.map(|route| format!("failed to find {route} of interface {ifname:?}")));
    Ok(found)
}

/// Compares what an interface has with what ADD reported (CHECK), as [`differences`] does.
///
/// # Errors
/// Code 104: the first as the message, the others as the details.
pub fn check(
    socket: &mut RouteSocket,
    ifindex: u32,
    ifname: &str,
    ips: &[&IpConfig],
    routes: &[Route],
) -> Result<(), Failure> {
    let found = differences(socket, ifindex, ifname, ips, routes)?;
    let Some(first) = found.first() else { return Ok(()) };
    Err(drift(first.clone()).with_details(found[1..].join("; ")))
}

/// A route as messages name it.
#[derive(Debug)]
pub struct RouteName<'r>(pub &'r Route);

impl fmt::Display for RouteName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route {}", self.0.dst)?;
        self.0.gw.map_or(Ok(()), |gateway| write!(f, " via {gateway}"))
    }
}

/// Returns the routes that are in no table.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn missing_routes(socket: &mut RouteSocket, routes: &[Route]) -> Result<Vec<Route>, Failure> {
    let mut missing = Vec::new();
    for v4 in [true, false] {
        let wanted: Vec<_> =
            routes.iter().filter(|route| route.dst.addr().is_ipv4() == v4).collect();
        if wanted.is_empty() {
            continue;
        }
        let family = if v4 { IpFamily::V4 } else { IpFamily::V6 };
        let present = socket.routes(RouteFilter { family, table: None, oif: None })?;
        let is_missing = |route: &&Route| !present.iter().any(|found| satisfies(found, route));
        missing.extend(wanted.into_iter().filter(is_missing).cloned());
    }
    Ok(missing)
}

/// Reports whether a route that was found satisfies the wanted one. Any default route satisfies a
/// default route: a later plugin may have replaced it. The kernel merges IPv6 routes to one
/// destination into one route with several next hops.
fn satisfies(found: &route::Route, wanted: &Route) -> bool {
    let destination: IpNet = wanted.dst.trunc();
    found.destination == destination
        && (wanted.is_default()
            || wanted.gw.is_none()
            || found.gateway == wanted.gw
            || found.next_hops.iter().any(|hop| hop.gateway == wanted.gw))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn ip(address: &str, gateway: Option<&str>) -> IpConfig {
        IpConfig::new(address.parse().unwrap(), gateway.map(|text| text.parse().unwrap()))
    }

    #[test]
    fn a_default_route_takes_the_gateway_and_comes_once() {
        let v4 = ip("192.0.2.2/24", Some("192.0.2.1"));
        let default = "0.0.0.0/0".parse().unwrap();
        let routes =
            [Route::new(default, None), Route::new(default, Some("192.0.2.1".parse().unwrap()))];
        let planned = changes(7, &[&v4], &routes, Options::new(true));
        let routes = planned.iter().filter(|change| matches!(change, Change::AppendRoute(_)));
        assert_eq!(routes.count(), 1, "{planned:#?}");
    }

    #[test]
    fn a_gateway_outside_the_subnet_is_reached_on_the_link() {
        let v4 = ip("192.0.2.2/32", Some("198.51.100.1"));
        let route = Route::new("0.0.0.0/0".parse().unwrap(), None);
        assert!(kernel_route(7, &route, &[&v4]).onlink);
        let v6 = ip("2001:db8::2/64", Some("fe80::1"));
        let route = Route::new("::/0".parse().unwrap(), None);
        assert!(!kernel_route(7, &route, &[&v6]).onlink);
    }

    #[test]
    fn sysctls_of_a_dual_stack_interface() {
        let (v4, v6) = (ip("192.0.2.2/24", None), ip("2001:db8::2/64", None));
        let text: Vec<_> = sysctls("eth0.1", &[&v4, &v6], Options::new(true))
            .into_iter()
            .map(|sysctl| format!("{}={}", sysctl.key, sysctl.value))
            .collect();
        expect![[r#"
            net/ipv6/conf/lo/disable_ipv6=0
            net/ipv6/conf/eth0.1/disable_ipv6=0
            net/ipv6/conf/eth0.1/keep_addr_on_down=1
            net/ipv6/conf/eth0.1/ndisc_notify=1
            net/ipv6/conf/eth0.1/accept_dad=0"#]]
        .assert_eq(&text.join("\n"));
    }
}
