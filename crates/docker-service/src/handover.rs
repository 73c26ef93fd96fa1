//! Moves the link: from the namespace that holds it to the host, where Docker takes it, and back.

use std::path::{Path, PathBuf};

use cni::{Error, code};
use cni_plugin::codes;
use kernel::netns::{Netns, NetnsError};
use kernel::route::{
    Change, IpFamily, Link, LinkSet, RouteFilter, RouteProtocol, RouteSocket, TABLE_MAIN,
    is_link_local_v6,
};
use kernel::{NetlinkError, netns};

use super::journal::{Endpoint, Layout, LayoutRoute};

/// The namespace in which plugins work, one per endpoint. It stays as long as the endpoint: plugins
/// get it again when the endpoint is deleted.
#[derive(Debug)]
pub(super) struct Holder {
    path: PathBuf,
}

impl Holder {
    pub(super) fn of(run: &Path, endpoint: &Endpoint) -> Self {
        Holder { path: run.join(state::PASSAGES).join(&endpoint.src_name) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates it anew.
    pub(super) fn create(&self) -> Result<Netns, Error> {
        self.remove()?;
        let made = netns::create_at(&self.path).map_err(|error| netns_error(&error))?;
        let mut inside = RouteSocket::open_in(&made).map_err(|error| kernel_error(&error))?;
        if let Some(lo) = inside.link_by_name("lo").map_err(|error| kernel_error(&error))? {
            set(&mut inside, lo.index, LinkSet::default().up(true))?;
        }
        Ok(made)
    }

    /// Opens it; `None` when it is gone, for example after a reboot.
    pub(super) fn open(&self) -> Result<Option<Netns>, Error> {
        open_if_there(&self.path)
    }

    pub(super) fn remove(&self) -> Result<(), Error> {
        netns::remove_at(&self.path).map(drop).map_err(|error| netns_error(&error))
    }
}

/// Opens a namespace; `None` when it does not exist, or not yet.
pub(super) fn open_if_there(path: &Path) -> Result<Option<Netns>, Error> {
    match Netns::open(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.leads_nowhere() => Ok(None),
        Err(error) => Err(netns_error(&error)),
    }
}

/// Reads what plugins made.
pub(super) fn look(holder: &Netns, ifname: &str) -> Result<Layout, Error> {
    let mut inside = RouteSocket::open_in(holder).map_err(|error| kernel_error(&error))?;
    let links = inside.links().map_err(|error| kernel_error(&error))?;
    let mut ours = None;
    let mut others = Vec::new();
    for link in links {
        match link.name.as_str() {
            name if name == ifname => ours = Some(link),
            "lo" => {}
            _ if is_born_with_namespaces(&link) => {}
            name => others.push(name.to_owned()),
        }
    }
    let Some(link) = ours else {
        return Err(Error::new(
            code::INVALID_CONFIG,
            format!(
                "the network's plugins made no interface {ifname:?}, so there is none to give to Docker"
            ),
        ));
    };
    if !others.is_empty() {
        return Err(Error::new(
            code::INVALID_CONFIG,
            format!(
                "the network's plugins made more than one interface: {ifname}, {}",
                others.join(", ")
            ),
        )
        .with_details("Docker takes only one interface of a network"));
    }
    let mut layout = Layout {
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        ..Layout::default()
    };
    layout.switches = super::finish_link::read_switches(holder, ifname);
    let addresses = inside.addresses(Some(link.index)).map_err(|error| kernel_error(&error))?;
    let addresses = addresses.into_iter().map(|address| address.address);
    layout.addresses = addresses.filter(|address| !is_link_local_v6(address.addr())).collect();
    for family in [IpFamily::V4, IpFamily::V6] {
        let filter = RouteFilter { family, table: Some(TABLE_MAIN), oif: Some(link.index) };
        let routes = inside.routes(filter).map_err(|error| kernel_error(&error))?;
        let routes = routes.into_iter().filter(|route| {
            !is_link_local_v6(route.destination.addr()) && !route.destination.addr().is_multicast()
        });
        layout.routes.extend(routes.map(|route| LayoutRoute {
            destination: route.destination,
            gateway: route.gateway,
            by_kernel: route.protocol == Some(RouteProtocol::KERNEL),
        }));
    }
    layout.tables = super::policy_routing::look(&mut inside, &link)?;
    Ok(layout)
}

/// Says whether a link is a fallback device, which tunnel modules create in every namespace.
fn is_born_with_namespaces(link: &Link) -> bool {
    const FALLBACKS: [&str; 9] = [
        "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0",
    ];
    FALLBACKS.contains(&link.name.as_str())
}

/// Puts the link where Docker takes it: on the host, down, under the name `src_name`. Succeeds if
/// that is done already.
pub(super) fn hand_over(holder: &Holder, ifname: &str, src_name: &str) -> Result<(), Error> {
    let host_ns = Netns::current().map_err(|error| netns_error(&error))?;
    let mut host = RouteSocket::open().map_err(|error| kernel_error(&error))?;
    let there = |host: &mut RouteSocket| {
        host.link_index(src_name).map_err(|error| kernel_error(&error)).map(|found| found.is_some())
    };
    if let Some(held) = holder.open()? {
        let mut inside = RouteSocket::open_in(&held).map_err(|error| kernel_error(&error))?;
        let link = inside.link_by_name(ifname).map_err(|error| kernel_error(&error))?;
        if let Some(link) = link {
            // Set down and renamed first: the host may have a link of the old name.
            rename_down(&mut inside, link.index, src_name)?;
            let netns = Some(host_ns);
            return set(&mut inside, link.index, LinkSet { netns, ..LinkSet::default() });
        }
        // Renamed but not moved: the previous driver ended in between.
        if let Some(index) = inside.link_index(src_name).map_err(|error| kernel_error(&error))? {
            let netns = Some(host_ns);
            return set(&mut inside, index, LinkSet { netns, ..LinkSet::default() });
        }
    }
    if there(&mut host)? {
        return Ok(());
    }
    Err(Error::new(codes::CONFLICT, "the endpoint's interface is gone".to_owned())
        .with_details("something else removed it: restart the container"))
}

/// Brings the link back to where plugins made it, from the host, or from the sandbox if it is still
/// there. A link that is gone is not an error.
pub(super) fn reclaim_link(
    holder: &Holder,
    ifname: &str,
    endpoint: &Endpoint,
    alias: &str,
) -> Result<(), Error> {
    let Some(held) = holder.open()? else { return Ok(()) };
    let mut host = RouteSocket::open().map_err(|error| kernel_error(&error))?;
    let found = host.link_by_name(&endpoint.src_name).map_err(|error| kernel_error(&error))?;
    let (mut from, link) = match found {
        Some(link) => (host, link),
        None => {
            let Some(sandbox) = endpoint.sandbox.as_deref() else { return Ok(()) };
            let Some(sandbox) = open_if_there(sandbox)? else { return Ok(()) };
            let mut inside =
                RouteSocket::open_in(&sandbox).map_err(|error| kernel_error(&error))?;
            match find_ours(&mut inside, endpoint, alias)? {
                Some(link) => (inside, link),
                None => return Ok(()),
            }
        }
    };
    rename_down(&mut from, link.index, &endpoint.src_name)?;
    let netns = Some(held.clone());
    set(&mut from, link.index, LinkSet { netns, ..LinkSet::default() })?;
    let mut inside = RouteSocket::open_in(&held).map_err(|error| kernel_error(&error))?;
    let moved = inside.link_index(&endpoint.src_name).map_err(|error| kernel_error(&error))?;
    let Some(index) = moved else { return Ok(()) };
    let name = Some(ifname.to_owned());
    set(&mut inside, index, LinkSet { name, ..LinkSet::default() })
}

/// Sets a link down, and then gives it this name: kernels before 6.2 rename no link that is up.
fn rename_down(socket: &mut RouteSocket, index: u32, name: &str) -> Result<(), Error> {
    set(socket, index, LinkSet::default().up(false))?;
    set(socket, index, LinkSet { name: Some(name.to_owned()), ..LinkSet::default() })
}

/// Finds the endpoint's link in a namespace under any name. A veth is recognised by its host end,
/// which no container can give to another link; any other link by our alias, or else by its
/// hardware address, which Docker does not change.
pub(super) fn find_ours(
    inside: &mut RouteSocket,
    endpoint: &Endpoint,
    alias: &str,
) -> Result<Option<Link>, Error> {
    let links = inside.links().map_err(|error| kernel_error(&error))?;
    if let Some(end) = host_end(endpoint, alias)? {
        let is_peer =
            |link: &Link| link.peer_index == Some(end.index) && end.peer_index == Some(link.index);
        return Ok(links.into_iter().find(is_peer));
    }
    let is_marked = |link: &&Link| link.alias.as_deref() == Some(alias);
    let has_mac = |link: &&Link| {
        let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        link.alias.is_none() && !mac.is_empty() && mac == endpoint.layout.mac
    };
    let found = links.iter().find(is_marked).or_else(|| links.iter().find(has_mac));
    Ok(found.cloned())
}

/// Finds the host end of an endpoint's veth among the links that its plugins reported.
fn host_end(endpoint: &Endpoint, alias: &str) -> Result<Option<Link>, Error> {
    let Some(result) = &endpoint.result else { return Ok(None) };
    let version = cni::AddResult::version_of(result.as_bytes())?;
    let result =
        cni::AddResult::parse(result.as_bytes(), version.unwrap_or(cni::Version::CURRENT))?;
    let mut host = RouteSocket::open().map_err(|error| kernel_error(&error))?;
    for reported in result.interfaces.iter().filter(|link| link.sandbox.is_empty()) {
        let found = host.link_by_name(&reported.name).map_err(|error| kernel_error(&error))?;
        let is_end = |link: &Link| link.is_kind("veth") && link.alias.as_deref() == Some(alias);
        if let Some(end) = found.filter(is_end) {
            return Ok(Some(end));
        }
    }
    Ok(None)
}

fn set(socket: &mut RouteSocket, ifindex: u32, set: LinkSet) -> Result<(), Error> {
    socket.apply_one(&Change::SetLink { ifindex, set }).map_err(|error| kernel_error(&error))
}

pub(super) fn kernel_error(error: &NetlinkError) -> Error {
    Error::from_chain(codes::KERNEL, error)
}

fn netns_error(error: &NetnsError) -> Error {
    Error::from_chain(code::INVALID_NETNS, error)
}
