//! Packets from one address leave by the link that has it, for other plugins: by a rule and a table
//! as `sbr` makes them, while the main table keeps all its routes.

use cni::IpConfig;
use kernel::netns::Netns;
use kernel::route::{Link, Route, RouteSocket, TABLE_MAIN};
use wanted::Item;

use super::config::Config;
use super::{RecordData, plan, remove, wanted as own};
use crate::engine::{Comparison, Picture};
use crate::shared::failure::Failure;
use crate::shared::netns_lock::{self, NetnsLock};
use crate::shared::policy::Policy;
use crate::shared::steps::{self, Step};

/// The rule and the table of an address, planned. While it exists, no other call chooses a table of
/// the namespace.
#[derive(Debug)]
pub(in crate::chained) struct OwnWay {
    /// What DEL needs to know of them; to be recorded before they are made.
    pub(in crate::chained) recorded: RecordData,
    socket: RouteSocket,
    steps: Vec<Step>,
    _lock: NetnsLock,
}

impl OwnWay {
    /// Plans what is missing of them; `None` if the address needs none. `known` is what an earlier
    /// ADD has recorded in this very namespace.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer, code 11 when another holds the namespace's lock
    /// too long.
    pub(in crate::chained) fn plan(
        netns: &Netns,
        ifname: &str,
        ip: &IpConfig,
        known: Option<&RecordData>,
    ) -> Result<Option<Self>, Failure> {
        let lock = netns_lock::lock(netns)?;
        let mut socket = RouteSocket::open_in(netns)?;
        let Some(link) = socket.link_by_name(ifname)? else { return Ok(None) };
        let policy = Policy::read(&mut socket)?;
        if known.is_none() && !is_needed(&link, ip, &policy) {
            return Ok(None);
        }
        let (recorded, items) = wanted_by(ifname, &link, ip, known, &policy);
        let steps = items.iter().flat_map(|item| plan::steps(item, link.index, &policy));
        let steps = steps.collect();
        Ok(Some(OwnWay { recorded, socket, steps, _lock: lock }))
    }

    /// Makes them.
    ///
    /// # Errors
    /// The kernel's refusal; nothing is made then.
    pub(in crate::chained) fn make(mut self) -> Result<(), Failure> {
        steps::apply(&mut self.socket, &self.steps).map(drop)
    }
}

/// Describes them as items; `None` if the address needs none.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(in crate::chained) fn items(
    picture: &mut Picture<'_>,
    ifname: &str,
    ip: &IpConfig,
    known: Option<&RecordData>,
) -> Result<Option<(RecordData, Vec<Item>)>, Failure> {
    let Some(link) = picture.link(wanted::Place::Container, ifname)? else { return Ok(None) };
    let policy = picture.policy(wanted::Place::Container)?;
    let needed = known.is_some() || is_needed(&link, ip, policy);
    Ok(needed.then(|| wanted_by(ifname, &link, ip, known, policy)))
}

/// Compares an item with what is there.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(in crate::chained) fn compare(picture: &mut Picture<'_>, item: &Item) -> Comparison {
    own::compare(picture, item)
}

/// Makes an item as it is wanted. What the record lacks of it is recorded by the caller before.
///
/// # Errors
/// The kernel's refusal.
pub(in crate::chained) fn restore(picture: &mut Picture<'_>, item: &Item) -> Result<(), Failure> {
    own::restore(picture, item, |_, _| Ok(()))
}

/// Removes them from the namespace.
///
/// # Errors
/// The first refusal of the kernel, with the others.
pub(in crate::chained) fn remove(
    netns: &Netns,
    ifname: &cni::IfName,
    recorded: &RecordData,
) -> Result<(), Failure> {
    let _lock = netns_lock::lock(netns)?;
    remove::remove_all(&mut RouteSocket::open_in(netns)?, ifname, recorded)
}

fn wanted_by(
    ifname: &str,
    link: &Link,
    ip: &IpConfig,
    known: Option<&RecordData>,
    policy: &Policy,
) -> (RecordData, Vec<Item>) {
    let config = Config { keeps_main: true, ..Config::default() };
    let ips = [ip.clone()];
    let sources = plan::sources(&config, &ips, policy, RecordData::tables(known));
    let routes = match RecordData::routes(known) {
        // An earlier ADD, or this one.
        [] => {
            plan::near_routes(&own::items(&config, &ips, &sources, &[], ifname), link.index, policy)
        }
        routes => routes.to_vec(),
    };
    let items = own::items(&config, &ips, &sources, &routes, ifname);
    let ifindex = Some(link.index);
    (RecordData { sources, own_tables: true, routes, ifindex }, items)
}

/// Says whether what comes in by a link for an address of it, and goes through its gateway, is
/// answered by another link: that of the default route. A link in a VRF has the VRF's table, and a
/// rule about the address means that somebody has decided.
fn is_needed(link: &Link, ip: &IpConfig, policy: &Policy) -> bool {
    let of_family = |route: &&Route| {
        route.table == TABLE_MAIN
            && route.is_default()
            && route.destination.addr().is_ipv4() == ip.address.addr().is_ipv4()
    };
    let defaults = policy.routes.iter().filter(of_family);
    let first = defaults.min_by_key(|route| route.priority.unwrap_or_default());
    ip.gateway.is_some()
        && link.master.is_none()
        && first.is_some_and(|route| !plan::leaves_by(route, link.index))
        && !policy.rules.iter().any(|rule| plan::is_of_address(rule, ip.address.addr()))
}
