//! Does what Docker leaves undone on a link that it has moved into a sandbox.
//!
//! Docker gives the link one address per family and the routes that the driver named, and nothing
//! else. Once the link is there, this module restores what plugins set beside that, and what the
//! kernel drops when a link changes its namespace. Older engines make no call after Join, and
//! create the sandbox later: so a thread polls for the link.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::Error;
use ipnet::IpNet;
use kernel::netns::{Netns, within};
use kernel::route::{
    AddressOptions, Change, IpFamily, Link, LinkSet, Route, RouteFilter, RouteProtocol,
    RouteSocket, TABLE_MAIN,
};
use kernel::sysctl::Sysctl;
use service_kit::log;

use super::driver::Driver;
use super::handover::{find_ours, kernel_error, open_if_there};
use super::journal::{Endpoint, Layout, Phase, short};

/// How long a container may take from Join to its start.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// The pause between checks: short at first, then a fraction of the time spent so far, so that
/// polling does not slow down many containers that start at once.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(100);
const PART: u32 = 16;

/// When addresses are announced again: the bridge port may take a second to notice its carrier, and
/// drops frames before.
const ANNOUNCE_AGAIN: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_secs(1)];

/// Sysctls that are Docker's, or that follow from others.
const NOT_OURS: [&str; 4] = ["disable_ipv6", "mtu", "stable_secret", "forwarding"];
/// Sysctls that announce addresses when a link's hardware address is set
/// (`linux Documentation/networking/ip-sysctl.rst`).
const ANNOUNCE: [(&str, &str); 2] = [("ipv4", "arp_notify"), ("ipv6", "ndisc_notify")];

impl Driver {
    /// Waits for the link on its own thread.
    pub(super) fn settle_later(self: &Arc<Self>, id: &str) {
        let driver = Arc::clone(self);
        let endpoint = id.to_owned();
        let spawned = std::thread::Builder::new().name("settle".to_owned()).spawn(move || {
            let known = driver.journal.endpoint(&endpoint).ok().flatten();
            let _about = log::about(known.map(|endpoint| endpoint.subject()).unwrap_or_default());
            if let Err(error) = driver.settle(&endpoint) {
                tracing::warn!(%error, "an interface lacks settings that Docker does not make");
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(endpoint = short(id), %error, "cannot start the thread that finishes an interface");
        }
    }

    /// Resumes endpoints that a previous driver may not have finished.
    pub(super) fn settle_recent(self: &Arc<Self>) {
        let now_s = service_kit::clock::boot_ms() / 1000;
        for endpoint in self.journal.endpoints() {
            let recent = now_s.saturating_sub(endpoint.since_s) < TIMEOUT.as_secs();
            if endpoint.boot_id == self.boot_id && endpoint.phase == Phase::Joined && recent {
                self.settle_later(&endpoint.id);
            }
        }
    }

    fn settle(&self, id: &str) -> Result<(), Error> {
        if !self.wait_until_taken(id)? {
            return Ok(());
        }
        let began = Instant::now();
        loop {
            let Some(endpoint) = self.journal.endpoint(id)? else { return Ok(()) };
            let Some(sandbox) = endpoint.sandbox.as_deref() else { return Ok(()) };
            if endpoint.phase != Phase::Joined || self.is_ending() {
                return Ok(());
            }
            if self.settle_once(&endpoint, sandbox)? {
                tracing::debug!("settled");
                for pause in ANNOUNCE_AGAIN {
                    std::thread::sleep(pause);
                    self.announce(id)?;
                }
                return Ok(());
            }
            if !rest(began) {
                return Ok(());
            }
        }
    }

    /// Waits until the link is no longer on the host. Each check is one small request, as a start
    /// takes seconds where many containers start. Returns false when nothing more is to be done.
    fn wait_until_taken(&self, id: &str) -> Result<bool, Error> {
        let Some(endpoint) = self.journal.endpoint(id)? else { return Ok(false) };
        let host = RouteSocket::open().map_err(|error| kernel_error(&error))?;
        let began = Instant::now();
        loop {
            let there =
                host.link_index(&endpoint.src_name).map_err(|error| kernel_error(&error))?;
            if there.is_none() {
                return Ok(true);
            }
            if self.is_ending() || !rest(began) {
                return Ok(false);
            }
        }
    }

    /// Announces once more, unless the link has gone meanwhile.
    fn announce(&self, id: &str) -> Result<(), Error> {
        let Some(endpoint) = self.journal.endpoint(id)? else { return Ok(()) };
        let Some(sandbox) = endpoint.sandbox.as_deref() else { return Ok(()) };
        if endpoint.phase != Phase::Joined || self.is_ending() {
            return Ok(());
        }
        let Some(netns) = open_if_there(sandbox)? else { return Ok(()) };
        let mut inside = RouteSocket::open_in(&netns).map_err(|error| kernel_error(&error))?;
        let alias = self.alias_of(&endpoint)?;
        match find_ours(&mut inside, &endpoint, &alias)? {
            Some(link) if link.up() => announce_by(&mut inside, &link),
            _ => Ok(()),
        }
    }

    /// Says whether the link was there and is now as it should be.
    fn settle_once(&self, endpoint: &Endpoint, sandbox: &Path) -> Result<bool, Error> {
        let Some(netns) = open_if_there(sandbox)? else { return Ok(false) };
        let mut inside = RouteSocket::open_in(&netns).map_err(|error| kernel_error(&error))?;
        let alias = self.alias_of(endpoint)?;
        let ours = find_ours(&mut inside, endpoint, &alias)?;
        // Docker sets it up last.
        let Some(link) = ours.filter(Link::up) else { return Ok(false) };
        let told = endpoint.joined.iter().flat_map(|joined| &joined.static_routes);
        let told: Vec<IpNet> = told.filter_map(|route| route.destination.parse().ok()).collect();
        let Some(changes) = changes(&mut inside, &link, &endpoint.layout, &told)? else {
            return Ok(false);
        };
        let switches = put_switches_back(&netns, &link.name, &endpoint.layout);
        for change in changes {
            match inside.apply_one(&change) {
                // Docker or the container has added or removed it already.
                Err(error) if !error.is_exists() && !error.is_not_found() => {
                    return Err(kernel_error(&error));
                }
                _ => {}
            }
        }
        super::policy_routing::put(&mut inside, link.index, &endpoint.layout.tables)?;
        announce_by(&mut inside, &link)?;
        switches.map(|_| true)
    }
}

/// Pauses between two checks; returns false when the wait has taken too long.
fn rest(began: Instant) -> bool {
    let waited = began.elapsed();
    if TIMEOUT < waited {
        tracing::debug!("no container has taken the interface");
        return false;
    }
    std::thread::sleep((waited / PART).clamp(POLL_INTERVAL, MAX_POLL_INTERVAL));
    true
}

/// Makes the kernel announce the link's addresses: neighbours may remember who had them before.
fn announce_by(inside: &mut RouteSocket, link: &Link) -> Result<(), Error> {
    if link.mac.is_none() {
        return Ok(());
    }
    let set = LinkSet { mac: link.mac, ..LinkSet::default() };
    let announced = inside.apply_one(&Change::SetLink { ifindex: link.index, set });
    announced.map_err(|error| kernel_error(&error))
}

/// Plans what to add to the link and what to remove; `None` while Docker is still working on it.
/// `told` are the destinations that Docker knows.
fn changes(
    inside: &mut RouteSocket,
    link: &Link,
    layout: &Layout,
    told: &[IpNet],
) -> Result<Option<Vec<Change>>, Error> {
    let ifindex = link.index;
    let has = inside.addresses(Some(ifindex)).map_err(|error| kernel_error(&error))?;
    let mut routes = Vec::new();
    for family in [IpFamily::V4, IpFamily::V6] {
        let filter = RouteFilter { family, table: Some(TABLE_MAIN), oif: Some(ifindex) };
        routes.extend(inside.routes(filter).map_err(|error| kernel_error(&error))?);
    }
    let has: Vec<IpNet> = has.into_iter().map(|address| address.address).collect();
    // Docker fails when a route that it is to make exists already: wait until all its routes are
    // there.
    if told.iter().any(|told| !routes.iter().any(|route| route.destination == *told)) {
        return Ok(None);
    }
    Ok(Some(plan(ifindex, &has, &routes, layout)))
}

fn plan(ifindex: u32, has: &[IpNet], routes: &[Route], layout: &Layout) -> Vec<Change> {
    let wanted = |destination: &IpNet| {
        layout.routes.iter().find(move |route| route.destination == *destination)
    };
    let by_kernel = |subnet: IpNet| wanted(&subnet).is_some_and(|wanted| wanted.by_kernel);
    let mut changes = Vec::new();
    for &address in layout.addresses.iter().filter(|address| !has.contains(address)) {
        let noprefixroute = !by_kernel(address.trunc());
        let options = AddressOptions { nodad: true, noprefixroute, ..AddressOptions::default() };
        changes.push(Change::AddAddress { ifindex, address, options });
    }
    // The kernel's route for an address, which a plugin removed (ptp does): there everything is
    // behind the gateway.
    let is_surplus = |route: &Route| {
        let of_address = layout.addresses.iter().any(|ip| ip.trunc() == route.destination);
        route.protocol == Some(RouteProtocol::KERNEL) && of_address && !by_kernel(route.destination)
    };
    for route in routes.iter().filter(|route| is_surplus(route)) {
        let oif = Some(ifindex);
        changes.push(Change::DelRoute(Route { oif, ..Route::new(route.destination) }));
    }
    let there = |destination: &IpNet| {
        routes.iter().any(|route| route.destination == *destination && !is_surplus(route))
    };
    // Docker sets default routes: another network may be the gateway network.
    let mut lacking: Vec<_> = layout
        .routes
        .iter()
        .filter(|route| !route.by_kernel && route.destination.prefix_len() != 0)
        .filter(|route| !there(&route.destination))
        .collect();
    // Routes without a gateway come first: the gateways are reached by them.
    lacking.sort_by_key(|route| route.gateway.is_some());
    changes.extend(lacking.into_iter().map(|route| {
        Change::AddRoute(Route {
            oif: Some(ifindex),
            gateway: route.gateway,
            source: source(layout, route.destination, route.gateway),
            ..Route::new(route.destination)
        })
    }));
    changes
}

/// Returns the source address for a prefix that is reached by a gateway in it.
fn source(layout: &Layout, destination: IpNet, gateway: Option<IpAddr>) -> Option<IpAddr> {
    gateway?;
    layout.addresses.iter().find(|ip| ip.trunc() == destination).map(IpNet::addr)
}

/// Reads the interface's sysctls that differ from those of a new interface. `folder` is `ipv4` or
/// `ipv6`.
pub(super) fn read_switches(netns: &Netns, ifname: &str) -> Vec<(String, String, String)> {
    let read = || {
        let mut found = Vec::new();
        for folder in ["ipv4", "ipv6"] {
            let dir = Path::new("/proc/sys/net").join(folder).join("conf");
            let entries = std::fs::read_dir(dir.join(ifname)).into_iter().flatten().flatten();
            for entry in entries {
                let name = entry.file_name().to_string_lossy().into_owned();
                if NOT_OURS.contains(&name.as_str()) {
                    continue;
                }
                let text = |path: &Path| std::fs::read_to_string(path).ok();
                let (is, usual) = (text(&entry.path()), text(&dir.join("default").join(&name)));
                if let (Some(is), Some(usual)) = (is, usual)
                    && is != usual
                {
                    found.push((folder.to_owned(), name, is.trim().to_owned()));
                }
            }
        }
        found
    };
    within(netns, read).unwrap_or_default()
}

/// Sets the interface's sysctls as plugins had set them; returns those that differed.
///
/// # Errors
/// When one cannot be set; the others are set all the same.
pub(super) fn put_switches_back(
    netns: &Netns,
    ifname: &str,
    layout: &Layout,
) -> Result<Vec<String>, Error> {
    let write = || {
        let (mut failure, mut differed) = (None, Vec::new());
        let announce = ANNOUNCE.map(|(folder, name)| (folder, name, "1"));
        let kept = layout.switches.iter();
        let kept =
            kept.map(|(folder, name, value)| (folder.as_str(), name.as_str(), value.as_str()));
        for (folder, name, value) in announce.into_iter().chain(kept) {
            let written = Sysctl::of_link(&format!("net/{folder}/conf"), ifname, name)
                .and_then(|key| key.write_if_different(value));
            match written {
                Ok(None) => {}
                Ok(Some(_)) => differed.push(format!("net.{folder}.conf.{ifname}.{name}={value}")),
                // IPv6 may be off.
                Err(error) => failure = failure.or(Some(error).filter(|error| !error.is_missing())),
            }
        }
        failure.map_or(Ok(differed), Err)
    };
    match within(netns, write) {
        Ok(Ok(differed)) => Ok(differed),
        Ok(Err(error)) => Err(Error::from_chain(cni_plugin::codes::KERNEL, &error)),
        Err(error) => Err(Error::from_chain(cni::code::INVALID_NETNS, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::LayoutRoute;

    fn route(destination: &str, gateway: Option<&str>, by_kernel: bool) -> LayoutRoute {
        LayoutRoute {
            destination: destination.parse().unwrap(),
            gateway: gateway.map(|text| text.parse().unwrap()),
            by_kernel,
        }
    }

    fn by_kernel(destination: &str) -> Route {
        let protocol = Some(RouteProtocol::KERNEL);
        Route { protocol, ..Route::new(destination.parse().unwrap()) }
    }

    #[test]
    fn what_docker_did_is_left_alone() {
        let layout = Layout {
            addresses: vec!["10.0.0.2/24".parse().unwrap()],
            routes: vec![
                route("10.0.0.0/24", None, true),
                route("0.0.0.0/0", Some("10.0.0.1"), false),
            ],
            ..Layout::default()
        };
        assert_eq!(plan(7, &layout.addresses, &[by_kernel("10.0.0.0/24")], &layout), []);
    }

    #[test]
    fn a_routed_pair_with_two_subnets() {
        let layout = Layout {
            addresses: vec!["10.0.0.2/24".parse().unwrap(), "10.1.0.2/24".parse().unwrap()],
            routes: vec![
                route("10.0.0.0/24", Some("10.0.0.1"), false),
                route("10.0.0.1/32", None, false),
                route("10.1.0.0/24", Some("10.1.0.1"), false),
                route("10.1.0.1/32", None, false),
                route("0.0.0.0/0", Some("10.0.0.1"), false),
            ],
            ..Layout::default()
        };
        // Docker gave the first address, and the first gateway's route.
        let has = [by_kernel("10.0.0.0/24"), Route::new("10.0.0.1/32".parse().unwrap())];
        let planned = plan(7, &layout.addresses[..1], &has, &layout);
        let shown: Vec<String> = planned
            .iter()
            .map(|change| match change {
                Change::AddAddress { address, options, .. } => {
                    format!("address {address} {}", options.noprefixroute)
                }
                Change::DelRoute(route) => format!("del {}", route.destination),
                Change::AddRoute(route) => format!("add {} {:?}", route.destination, route.gateway),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(
            shown,
            [
                "address 10.1.0.2/24 true",
                "del 10.0.0.0/24",
                "add 10.1.0.1/32 None",
                "add 10.0.0.0/24 Some(10.0.0.1)",
                "add 10.1.0.0/24 Some(10.1.0.1)",
            ]
        );
    }
}
