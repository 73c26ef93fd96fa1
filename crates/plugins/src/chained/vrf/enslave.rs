//! Runs ADD: an interface moves into a VRF and keeps what it had.

use std::thread;
use std::time::{Duration, Instant};

use cni::{AttachmentKey, code};
use cni_plugin::codes;
use ipnet::IpNet;
use kernel::Errno;
use kernel::mac::MacAddr;
use kernel::netns::Netns;
use kernel::route::{
    AddressOptions, Change, Link, LinkKind, LinkSet, NewLink, Route, RouteFilter, RouteKind,
    RouteProtocol, RouteSocket, TABLE_MAIN,
};
use kernel::sysctl::Sysctl;

use super::config::Config;
use super::moving::MoveLoss;
use super::{RecordData, node};
use crate::engine::Undo;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::owner;

/// How long the kernel may take to make an IPv6 address usable in its new table: as with the
/// reference.
const TIMEOUT: Duration = Duration::from_millis(2500);
/// The pause between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What must be done.
#[derive(Debug)]
pub(super) struct Plan {
    socket: RouteSocket,
    had: InterfaceState,
    /// The VRF, if it exists.
    vrf: Option<Link>,
    name: String,
    table: u32,
    /// Its hardware address, if the kernel reported one.
    mac: Option<MacAddr>,
    alias: String,
    /// It has moved already, and what it had may be missing: an ADD was killed.
    halfway: bool,
}

/// The interface, and what it could lose by the move.
#[derive(Debug, Clone)]
struct InterfaceState {
    netns: Netns,
    link: Link,
    addresses: Vec<IpNet>,
    routes: Vec<Route>,
    /// The sysctl that keeps IPv6 addresses, if there are any to keep.
    keep_addr_on_down: Option<String>,
}

/// Reads everything and refuses what is impossible. `earlier` is what a previous ADD has recorded.
pub(super) fn look(
    netns: &Netns,
    key: &AttachmentKey,
    config: &Config,
    earlier: RecordData,
) -> Result<Plan, Failure> {
    let mut socket = RouteSocket::open_in(netns)?;
    let invalid = |message: String| Failure::new(code::INVALID_CONFIG, message);
    let vrf = socket.link_by_name(&config.vrf)?;
    if let Some(vrf) = &vrf {
        let Some(table) = vrf.vrf_table else {
            return Err(invalid(format!("Netlink {} is not a VRF", config.vrf)));
        };
        if config.table.is_some_and(|wanted| wanted != table) {
            return Err(invalid(format!(
                "VRF {} already exist with different routing table {table}",
                config.vrf
            )));
        }
    }
    let ifname = key.ifname.as_str();
    let link = socket
        .link_by_name(ifname)?
        .ok_or_else(|| invalid(format!("could not get link by name {ifname}")))?;
    if let Some(master) =
        link.master.filter(|&master| vrf.as_ref().is_none_or(|vrf| vrf.index != master))
    {
        let named = socket.link_by_index(master)?;
        let named = named.map_or(master.to_string(), |master| master.name);
        return Err(Failure::new(
            codes::CONFLICT,
            format!("interface {ifname} has already a master set: {named}"),
        ));
    }
    let table = match vrf.as_ref().and_then(|vrf| vrf.vrf_table).or(config.table) {
        Some(table) => table,
        // A VRF that another program removed is created again with its old table.
        None => node::free_table(&mut socket, earlier.table)?,
    };
    let mac = match &vrf {
        Some(vrf) => vrf.mac,
        None => {
            earlier.mac.and_then(|mac| mac.parse().ok()).or_else(|| Some(kernel::mac::random()))
        }
    };
    let earlier = earlier.moving.filter(|moving| moving.ifindex == link.index);
    let halfway = link.master.is_some() && earlier.is_some();
    let (addresses, routes, keep_addr_on_down) = match earlier {
        Some(had) if halfway => (had.addresses.clone(), had.routes(), had.keep_addr_on_down),
        earlier => {
            let addresses = node::addresses_v6(&mut socket, link.index)?;
            let routes = node::routes_of(&mut socket, link.index)?;
            let read = || node::with_keep_addr_on_down(netns, ifname, Sysctl::read);
            let keep = match earlier.and_then(|had| had.keep_addr_on_down) {
                None if !addresses.is_empty() => Some(read()?),
                known => known,
            };
            (addresses, routes, keep)
        }
    };
    let had = InterfaceState { netns: netns.clone(), link, addresses, routes, keep_addr_on_down };
    let (name, alias) = (config.vrf.clone(), owner::alias(key));
    Ok(Plan { socket, had, vrf, name, table, mac, alias, halfway })
}

impl Plan {
    /// Returns the VRF's table.
    pub(super) fn table(&self) -> u32 {
        self.table
    }

    /// Returns the interface's ifindex.
    pub(super) fn ifindex(&self) -> u32 {
        self.had.link.index
    }

    /// Returns the VRF's hardware address, as text.
    pub(super) fn mac(&self) -> Option<String> {
        self.mac.map(|mac| mac.to_string())
    }

    /// Returns what must be recorded before anything is lost; `None` if the interface is in its VRF
    /// and has everything.
    pub(super) fn moving(&self) -> Option<MoveLoss> {
        let InterfaceState { link, addresses, routes, keep_addr_on_down: keep, .. } = &self.had;
        let is_there = link.master.is_some() && !self.halfway;
        (!is_there).then(|| MoveLoss::new(link.index, addresses.clone(), routes, keep.clone()))
    }

    /// Creates the VRF if it is missing and moves the interface; `undo` gets what undoes it.
    pub(super) fn carry_out(mut self, undo: &mut Undo<'_>) -> Result<(), Failure> {
        let vrf = match &self.vrf {
            Some(vrf) if vrf.up() => vrf.index,
            Some(vrf) => {
                let set = LinkSet::default().up(true);
                self.socket.apply_one(&Change::SetLink { ifindex: vrf.index, set })?;
                vrf.index
            }
            None => {
                let (made, netns) = (self.create_vrf()?.index, self.had.netns.clone());
                undo.push("delete the VRF", move || {
                    RouteSocket::open_in(&netns)?.delete_link(made)?;
                    Ok(())
                });
                made
            }
        };
        if self.had.link.master == Some(vrf) && !self.halfway {
            return Ok(());
        }
        let had = self.had.clone();
        undo.push("take the interface out of its VRF", move || had.move_back());
        self.move_into(vrf)
    }

    fn create_vrf(&mut self) -> Result<Link, Failure> {
        let link = NewLink {
            up: true,
            mac: self.mac,
            alias: Some(self.alias.clone()),
            ..NewLink::new(self.name.clone(), LinkKind::Vrf { table: self.table })
        };
        self.socket.create_link(&link).map_err(|error| {
            let hint = if error.is_unsupported() { "the kernel needs CONFIG_NET_VRF" } else { "" };
            Failure::from(error).with_details(hint)
        })
    }

    fn move_into(&mut self, vrf: u32) -> Result<(), Failure> {
        let Plan { socket, had, table, .. } = self;
        if self.halfway {
            had.restore_keep_addr_on_down()?;
        } else {
            had.set_master(socket, Some(vrf))?;
        }
        had.give_addresses(socket)?;
        had.wait_for_addresses(socket, *table)?;
        let wanted: Vec<Route> = had.routes.iter().map(|route| moved(route, *table)).collect();
        had.give_routes(socket, &wanted)?;
        // The kernel creates a route to the subnet of each address, even if another program had
        // removed it.
        for route in node::routes_of(socket, had.link.index)? {
            let by_kernel = route.protocol == Some(RouteProtocol::KERNEL) && route.table == *table;
            if by_kernel && !wanted.iter().any(|wanted| is_same_way(wanted, &route)) {
                socket.apply_one(&Change::DelRoute(route))?;
            }
        }
        Ok(())
    }
}

impl InterfaceState {
    /// Takes the interface out again and restores what it had.
    fn move_back(&self) -> Result<(), Failure> {
        let mut socket = RouteSocket::open_in(&self.netns)?;
        let mut failures = Failures::new();
        failures.note("take it out again", self.set_master(&mut socket, None));
        failures.note("restore its addresses", self.give_addresses(&mut socket));
        failures.note("restore its routes", self.give_routes(&mut socket, &self.routes));
        failures.into_result()
    }

    /// Moves the interface. The kernel sets it down and up again for that; IPv6 addresses stay if
    /// the sysctl says so.
    fn set_master(&self, socket: &mut RouteSocket, master: Option<u32>) -> Result<(), Failure> {
        let set = LinkSet { master: Some(master), ..LinkSet::default() };
        let change = Change::SetLink { ifindex: self.link.index, set };
        let Some(before) = &self.keep_addr_on_down else {
            return Ok(socket.apply_one(&change)?);
        };
        let moved = node::with_keep_addr_on_down(&self.netns, &self.link.name, |keep| {
            keep.write_if_different("1")?;
            let moved = socket.apply_one(&change);
            keep.write_if_different(before)?;
            Ok(moved)
        })?;
        Ok(moved?)
    }

    fn restore_keep_addr_on_down(&self) -> Result<(), Failure> {
        let Some(before) = &self.keep_addr_on_down else { return Ok(()) };
        node::with_keep_addr_on_down(&self.netns, &self.link.name, |keep| {
            keep.write_if_different(before).map(drop)
        })
    }

    /// Restores the IPv6 addresses that the interface has lost all the same.
    fn give_addresses(&self, socket: &mut RouteSocket) -> Result<(), Failure> {
        let left = node::addresses_v6(socket, self.link.index)?;
        for &address in self.addresses.iter().filter(|wanted| !left.contains(wanted)) {
            // No other host has come to hold it meanwhile.
            let options = AddressOptions { nodad: true, ..AddressOptions::default() };
            socket.apply_one(&Change::AddAddress { ifindex: self.link.index, address, options })?;
        }
        Ok(())
    }

    /// Waits until the VRF's table has the IPv6 addresses as the host's own; the kernel adds them
    /// later.
    fn wait_for_addresses(&self, socket: &mut RouteSocket, table: u32) -> Result<(), Failure> {
        if self.addresses.is_empty() || !self.link.up() {
            return Ok(());
        }
        let filter =
            RouteFilter { family: kernel::route::IpFamily::V6, table: Some(table), oif: None };
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let routes = socket.routes(filter)?;
            let missing = self.addresses.iter().find(|address| {
                let own = |route: &Route| {
                    route.kind == RouteKind::Local && route.destination.addr() == address.addr()
                };
                !routes.iter().any(own)
            });
            let Some(missing) = missing else { return Ok(()) };
            if deadline < Instant::now() {
                return Err(Failure::new(
                    code::TRY_AGAIN_LATER,
                    format!("address {missing} did not appear in table {table}"),
                ));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Creates the missing routes, those to the link's own subnets first.
    fn give_routes(&self, socket: &mut RouteSocket, wanted: &[Route]) -> Result<(), Failure> {
        let found = node::routes_of(socket, self.link.index)?;
        let (near, by_gateway): (Vec<&Route>, Vec<&Route>) = wanted
            .iter()
            .filter(|wanted| !found.iter().any(|found| is_same_way(wanted, found)))
            .partition(|route| route.gateway.is_none() && route.next_hops.is_empty());
        let deadline = Instant::now() + TIMEOUT;
        for route in near.into_iter().chain(by_gateway) {
            loop {
                match socket.apply_one(&Change::AppendRoute(route.clone())) {
                    Ok(()) => break,
                    Err(error) if error.is_exists() => break,
                    // The gateway's subnet, or the source address, may still be missing.
                    Err(error) if is_too_early(&error) && Instant::now() < deadline => {
                        thread::sleep(POLL_INTERVAL);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

fn is_too_early(error: &kernel::NetlinkError) -> bool {
    const EARLY: [Errno; 3] = [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::INVAL];
    error.errno().is_some_and(|errno| EARLY.contains(&errno))
}

/// Returns the route as it is in the VRF: main table routes move to the VRF's table, those of other
/// tables stay.
fn moved(route: &Route, table: u32) -> Route {
    let table = if route.table == TABLE_MAIN { table } else { route.table };
    Route { table, ..route.clone() }
}

/// Returns whether two routes are equivalent; the kernel may have written one of them.
pub(super) fn is_same_way(a: &Route, b: &Route) -> bool {
    let way = |route: &Route| {
        (route.table, route.destination, route.gateway, route.priority, route.next_hops.clone())
    };
    way(a) == way(b)
}
