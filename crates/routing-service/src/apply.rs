//! Makes changes of routing in the kernel: as few messages as possible, and a result for each.

use ipnet::IpNet;
use kernel::netlink::{Errno, NetlinkError};
use kernel::route::{
    AddressOptions, Change as Message, Link, LinkSet, Neighbour, NewLink, NexthopObject,
    NexthopWay, Route, RouteKind, RouteProtocol, RouteSocket, TunnelOptions, VxlanFdb,
    is_link_local_v6,
};
use kernel::sysctl::Sysctl;
use routing::object::{
    ALIAS, GROUP_UNFINISHED, Key, METRIC, METRIC_WORST, PROTOCOL, Tunnel, TunnelKind, Value,
};
use routing::plan::{Change, ForeignRoute};
use service_kit::stop::words;

use super::host::{AdvertisedObject, FORWARDING_OF_LINKS, Links, is_learnt};

/// What the changes of a run are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Elements of the packet filter: one transaction.
    Elements,
    /// Tunnels: what is on one needs its index.
    Tunnels,
    /// Routes of others: each goes only once ours stands.
    Foreign,
    /// Everything else of ours. No change of a run depends on what became of another.
    Objects,
}

impl Kind {
    fn of(change: &Change) -> Self {
        match change.key() {
            Some(key) if key.is_filter() => Kind::Elements,
            Some(Key::Tunnel { .. }) => Kind::Tunnels,
            Some(_) => Kind::Objects,
            None => Kind::Foreign,
        }
    }
}

/// Divides changes into runs, in their order: the loop makes each run, and passes the results to
/// routing, before the next begins.
pub(super) fn runs(changes: &[Change]) -> impl Iterator<Item = (Kind, &[Change])> {
    let runs = changes.chunk_by(|one, other| Kind::of(one) == Kind::of(other));
    runs.map(|run| (Kind::of(&run[0]), run))
}

/// Makes changes of rtnetlink, in their order. Returns the kernel's answer to each.
pub(super) fn apply(
    netlink: &mut RouteSocket,
    links: &mut Links,
    changes: &[&Change],
) -> Vec<Result<(), String>> {
    let results = vec![Ok(()); changes.len()];
    let mut batch = Batch { results, numbers: Vec::new(), messages: Vec::new() };
    for (number, change) in changes.iter().enumerate() {
        match change {
            // Their index is known, or known to be gone, once this is done.
            Change::Create(Key::Tunnel { link }, Value::Tunnel(tunnel)) => {
                batch.send(netlink, changes);
                batch.results[number] = create_tunnel(netlink, links, link, tunnel);
            }
            Change::Replace(Key::Tunnel { link }, Value::Tunnel(tunnel)) => {
                batch.send(netlink, changes);
                batch.results[number] = adjust_tunnel(netlink, links, link, tunnel);
            }
            Change::Remove(Key::Tunnel { link }, _) => {
                batch.send(netlink, changes);
                batch.results[number] = remove_tunnel(netlink, links, link);
            }
            _ => match message(change, links) {
                Ok(message) => {
                    batch.numbers.push(number);
                    batch.messages.push(message);
                    if TOGETHER <= batch.messages.len() {
                        batch.send(netlink, changes);
                    }
                }
                // The link or nexthop that it used is gone, and so is it.
                Err(_) if matches!(change, Change::Remove(..)) => {}
                Err(why) => batch.results[number] = Err(why),
            },
        }
    }
    batch.send(netlink, changes);
    batch.results
}

/// How many messages travel together: what a socket's buffers hold without being enlarged. They are
/// put together as they go, since those of thousands of nodes would take tens of MiB.
const TOGETHER: usize = 128;

/// Messages that travel together, with the places of their changes, and the results of all changes.
struct Batch {
    results: Vec<Result<(), String>>,
    numbers: Vec<usize>,
    messages: Vec<Message>,
}

impl Batch {
    fn send(&mut self, netlink: &mut RouteSocket, changes: &[&Change]) {
        match netlink.apply_each(&self.messages) {
            Ok(failed) => {
                for error in failed {
                    let number = self.numbers[error.index];
                    if !is_gone(changes[number], &error.source) {
                        self.results[number] = Err(said(&error.source));
                    }
                }
            }
            // The next look finds out which of them were made.
            Err(lost) => {
                for number in &self.numbers[lost.index..] {
                    self.results[*number] = Err(said(&lost.source));
                }
            }
        }
        self.numbers.clear();
        self.messages.clear();
    }
}

/// Reports whether the kernel says that what was to be removed is gone.
fn is_gone(change: &Change, error: &NetlinkError) -> bool {
    let removes = matches!(change, Change::Remove(..) | Change::RemoveForeign(..));
    removes && error.errno().is_some_and(|errno| GONE.contains(&errno))
}

/// What the kernel says of an object that is gone.
const GONE: [Errno; 4] = [Errno::NOENT, Errno::SRCH, Errno::NODEV, Errno::ADDRNOTAVAIL];

fn said(error: &NetlinkError) -> String {
    words(error)
}

/// Returns a tunnel's own settings in the kernel's words.
fn options(links: &Links, tunnel: &Tunnel) -> Result<TunnelOptions<'static>, String> {
    let TunnelKind { backend, numbers, learning } = tunnel.kind;
    let mut options = TunnelOptions::new(backend.name());
    (options.id, options.port) = (numbers.id, numbers.port);
    (options.local, options.learning) = (Some(tunnel.local), learning);
    options.underlay = Some(index(links, &tunnel.underlay)?);
    Ok(options)
}

fn create_tunnel(
    netlink: &mut RouteSocket,
    links: &mut Links,
    name: &str,
    tunnel: &Tunnel,
) -> Result<(), String> {
    let options = options(links, tunnel)?;
    let kind = options.new_link();
    let kind = kind.ok_or_else(|| format!("tunnels of kind {} are not known", options.kind))?;
    let new = NewLink {
        mac: tunnel.mac,
        mtu: Some(tunnel.mtu),
        alias: Some(ALIAS.to_owned()),
        // If the service is killed before the alias is there, the next run knows the link by this.
        group: Some(GROUP_UNFINISHED),
        ..NewLink::new(name, kind)
    };
    let link = netlink.create_link(&new).map_err(|error| said(&error))?;
    let ifindex = link.index;
    links.add_tunnel(link);
    quieten(netlink, name, ifindex)?;
    forward(name)?;
    let finished = LinkSet { group: Some(0), ..LinkSet::default() };
    set(netlink, ifindex, finished.up(tunnel.up))
}

fn adjust_tunnel(
    netlink: &mut RouteSocket,
    links: &Links,
    name: &str,
    tunnel: &Tunnel,
) -> Result<(), String> {
    let ifindex = index(links, name)?;
    let of_kind = options(links, tunnel)?.change();
    let of_link = LinkSet {
        mac: tunnel.mac,
        mtu: Some(tunnel.mtu),
        alias: Some(ALIAS.to_owned()),
        master: Some(None),
        // Links without hardware addresses have no ARP.
        no_arp: tunnel.mac.map(|_| false),
        ..LinkSet::default()
    };
    // One after the other: the kernel takes no MTU beside a tunnel's own settings (linux
    // drivers/net/vxlan/vxlan_core.c `vxlan_nl2conf`).
    set(netlink, ifindex, of_kind)?;
    set(netlink, ifindex, of_link)?;
    // With an MTU below 1280 the link had no IPv6; now the kernel gives it IPv6 anew.
    quieten(netlink, name, ifindex)?;
    forward(name)?;
    // Last, as when it is created: one that could not be quietened does not come up, so the next
    // look finds it down and tries again.
    set(netlink, ifindex, LinkSet::default().up(tunnel.up))
}

/// Takes from a tunnel what the kernel gives every link as soon as it comes up: an IPv6 address of
/// its own, and the acceptance of router advertisements. On a tunnel these could only come from
/// strangers.
fn quieten(netlink: &mut RouteSocket, name: &str, ifindex: u32) -> Result<(), String> {
    let no_own =
        Message::SetLink { ifindex, set: LinkSet { no_own_ipv6: true, ..LinkSet::default() } };
    match netlink.apply_one(&no_own) {
        // The link has no IPv6.
        Err(error) if error.errno() == Some(Errno::AFNOSUPPORT) => return Ok(()),
        done => done.map_err(|error| said(&error))?,
    }
    let addresses = netlink.addresses(Some(ifindex)).map_err(|error| said(&error))?;
    for own in addresses.iter().filter(|own| is_link_local_v6(own.address.addr())) {
        let gone = Message::DelAddress { ifindex, address: own.address };
        match netlink.apply_one(&gone) {
            Err(error) if error.errno() != Some(Errno::ADDRNOTAVAIL) => return Err(said(&error)),
            _ => {}
        }
    }
    let accept_ra = Sysctl::of_link("net/ipv6/conf", name, "accept_ra");
    match accept_ra.and_then(|sysctl| sysctl.write_if_different("0")) {
        Err(error) if !error.is_missing() => Err(words(&error)),
        _ => Ok(()),
    }
}

/// Lets a tunnel forward: a link has the default of its kind, and another program may have changed
/// either.
fn forward(name: &str) -> Result<(), String> {
    for folder in FORWARDING_OF_LINKS {
        let forwarding = Sysctl::of_link(folder, name, "forwarding");
        match forwarding.and_then(|forwarding| forwarding.write_if_different("1")) {
            // The link, or the kernel, has no IPv6.
            Err(error) if !error.is_missing() => return Err(words(&error)),
            _ => {}
        }
    }
    Ok(())
}

fn set(netlink: &mut RouteSocket, ifindex: u32, set: LinkSet) -> Result<(), String> {
    netlink.apply_one(&Message::SetLink { ifindex, set }).map_err(|error| said(&error))
}

fn remove_tunnel(netlink: &mut RouteSocket, links: &mut Links, name: &str) -> Result<(), String> {
    let Some(index) = links.index_of(name) else { return Ok(()) };
    netlink.delete_link(index).map_err(|error| said(&error))?;
    links.remove(index);
    Ok(())
}

/// Removes what the kernel has made of router advertisements. What is gone is success, and so is a
/// route that an address has by now. Returns what was removed, or why not.
pub(super) fn remove_announced(
    netlink: &mut RouteSocket,
    announced: Vec<AdvertisedObject>,
) -> (Vec<AdvertisedObject>, Result<(), String>) {
    let (mut removed, mut done) = (Vec::new(), Ok(()));
    for one in announced {
        let message = match &one {
            AdvertisedObject::Address(ifindex, address) => {
                Message::DelAddress { ifindex: *ifindex, address: *address }
            }
            AdvertisedObject::Route(route) => {
                // An administrator may have added the address since the routes were read.
                match netlink.addresses(route.oif) {
                    Ok(addresses) if is_learnt(route, &addresses) => {}
                    Ok(_) => continue,
                    Err(error) => {
                        done = done.and(Err(said(&error)));
                        continue;
                    }
                }
                let Route { gateway, oif, priority, protocol, .. } = *route;
                Message::DelRoute(Route {
                    gateway,
                    oif,
                    priority,
                    protocol,
                    ..Route::new(route.destination)
                })
            }
        };
        match netlink.apply_one(&message) {
            Ok(()) => removed.push(one),
            Err(error) if error.errno().is_some_and(|errno| GONE.contains(&errno)) => {}
            Err(error) => done = done.and(Err(said(&error))),
        }
    }
    (removed, done)
}

/// Puts our mark on tunnels without it: those that flanneld made, and those that an earlier run did
/// not finish.
pub(super) fn mark_tunnels(netlink: &mut RouteSocket, links: &Links) -> Result<(), String> {
    links.unmarked().try_for_each(|link| set(netlink, link.index, with_alias(link, ALIAS)))
}

/// Takes our mark off the tunnels that stay. Returns what went wrong.
pub(super) fn unmark_tunnels(netlink: &mut RouteSocket, links: &Links) -> Vec<String> {
    let all = links.of_tunnels().map(|link| set(netlink, link.index, with_alias(link, "")));
    all.filter_map(Result::err).collect()
}

/// Returns what gives a tunnel an alias, or takes it away. A group that another program has given
/// it stays.
fn with_alias(link: &Link, alias: &str) -> LinkSet {
    let group = (link.group == GROUP_UNFINISHED).then_some(0);
    LinkSet { alias: Some(alias.to_owned()), group, ..LinkSet::default() }
}

fn index(links: &Links, name: &str) -> Result<u32, String> {
    links.index_of(name).ok_or_else(|| format!("there is no link {name:?}"))
}

/// Returns the message that makes a change of anything but a tunnel.
fn message(change: &Change, links: &Links) -> Result<Message, String> {
    let index = |name: &str| index(links, name);
    let is_new = matches!(change, Change::Create(..));
    Ok(match change {
        Change::Create(key, value) | Change::Replace(key, value) => {
            match of_object(key, value, &index)? {
                KernelObject::Address(ifindex, address) => {
                    // The address is this node's alone: no other host answers for it.
                    let options = AddressOptions { nodad: true, ..AddressOptions::default() };
                    Message::AddAddress { ifindex, address, options }
                }
                // What is on a tunnel is ours.
                KernelObject::Fdb(entry) => Message::SetVxlanFdb(entry),
                KernelObject::Neighbour(neighbour) => Message::SetNeighbour(neighbour),
                KernelObject::Nexthop(nexthop) if is_new => Message::AddNexthop(nexthop),
                KernelObject::Nexthop(nexthop) => Message::ReplaceNexthop(nexthop),
                KernelObject::Route(route) if is_new => Message::AddRoute(route),
                KernelObject::Route(route) => Message::ReplaceRoute(route),
            }
        }
        // Its link may be gone, or it may have none.
        Change::Remove(Key::Nexthop { id }, _) => Message::DelNexthop { id: *id },
        Change::Remove(key, value) => match of_object(key, value, &index)? {
            KernelObject::Address(ifindex, address) => Message::DelAddress { ifindex, address },
            KernelObject::Fdb(entry) => Message::DelVxlanFdb(entry),
            KernelObject::Neighbour(neighbour) => Message::DelNeighbour(neighbour),
            KernelObject::Nexthop(nexthop) => Message::DelNexthop { id: nexthop.id },
            KernelObject::Route(route) => Message::DelRoute(route),
        },
        Change::RemoveForeign(prefix, route) => Message::DelRoute(foreign(*prefix, route, &index)?),
    })
}

/// An object in the kernel's words.
enum KernelObject {
    Address(u32, IpNet),
    Fdb(VxlanFdb),
    Neighbour(Neighbour),
    Nexthop(NexthopObject),
    Route(Route),
}

fn of_object(
    key: &Key,
    value: &Value,
    index: &dyn Fn(&str) -> Result<u32, String>,
) -> Result<KernelObject, String> {
    Ok(match (key, value) {
        (Key::Address { link, address }, _) => {
            KernelObject::Address(index(link)?, IpNet::from(*address))
        }
        (Key::Fdb { link, mac }, Value::Fdb { to }) => {
            KernelObject::Fdb(VxlanFdb::new(index(link)?, *mac, *to))
        }
        (Key::Neighbour { link, address }, Value::Neighbour { mac }) => {
            let neighbour = Neighbour::permanent(index(link)?, *address, *mac);
            KernelObject::Neighbour(Neighbour {
                protocol: Some(RouteProtocol(PROTOCOL)),
                ..neighbour
            })
        }
        (Key::Nexthop { id }, Value::Nexthop(nexthop)) => {
            let (address, onlink) = (nexthop.gateway, nexthop.onlink);
            let way = NexthopWay::Gateway { address, oif: index(&nexthop.link)?, onlink };
            KernelObject::Nexthop(NexthopObject { id: *id, protocol: RouteProtocol(PROTOCOL), way })
        }
        (Key::Route { prefix }, Value::Route { nexthop, mtu }) => KernelObject::Route(Route {
            protocol: Some(RouteProtocol(PROTOCOL)),
            priority: Some(METRIC),
            nexthop: *nexthop,
            mtu: *mtu,
            ..Route::new(*prefix)
        }),
        (Key::Unreachable { prefix }, Value::Unreachable { protocol }) => {
            KernelObject::Route(Route {
                protocol: Some(RouteProtocol(*protocol)),
                priority: Some(METRIC_WORST),
                kind: RouteKind::Unreachable,
                ..Route::new(*prefix)
            })
        }
        // Elements are the packet filter's.
        _ => return Err(format!("{key}{value} is not an object of rtnetlink")),
    })
}

fn foreign(
    prefix: IpNet,
    route: &ForeignRoute,
    index: &dyn Fn(&str) -> Result<u32, String>,
) -> Result<Route, String> {
    let oif = route.link.as_deref().map(index).transpose()?;
    Ok(Route {
        gateway: route.gateway,
        oif,
        priority: Some(route.metric),
        protocol: Some(RouteProtocol(route.protocol)),
        ..Route::new(prefix)
    })
}

#[cfg(test)]
mod tests {
    use routing::object::Set;

    use super::*;

    #[test]
    fn what_the_loop_learns_of_a_tunnel_is_known_in_the_next_run() {
        let prefix: IpNet = "10.244.5.0/24".parse().unwrap();
        let element = Change::Create(Key::Element { set: Set::Nodes, prefix }, Value::There);
        let unreachable = Key::Unreachable { prefix };
        let before = Change::Create(unreachable, Value::Unreachable { protocol: PROTOCOL });
        let tunnel = Change::Remove(Key::Tunnel { link: "nw-vxlan4".into() }, Value::There);
        let value = Value::Route { nexthop: None, mtu: None };
        let route = Change::Create(Key::Route { prefix }, value);
        let changes = [element.clone(), element, before, tunnel, route.clone(), route];
        let runs: Vec<(Kind, usize)> =
            runs(&changes).map(|(kind, run)| (kind, run.len())).collect();
        let wanted =
            [(Kind::Elements, 2), (Kind::Objects, 1), (Kind::Tunnels, 1), (Kind::Objects, 2)];
        assert_eq!(runs, wanted);
    }

    /// Whether ours stands is asked when the run of a foreign route begins.
    #[test]
    fn a_route_of_others_is_not_in_the_run_of_ours() {
        let prefix: IpNet = "10.244.5.0/24".parse().unwrap();
        let value = || Value::Route { nexthop: None, mtu: None };
        let before = Change::Remove(Key::Unreachable { prefix }, value());
        let ours = Change::Create(Key::Route { prefix }, value());
        let theirs = ForeignRoute { metric: 0, protocol: 3, link: None, gateway: None };
        let theirs = Change::RemoveForeign(prefix, theirs);
        let changes = [before, ours, theirs.clone(), theirs];
        let runs: Vec<(Kind, usize)> =
            runs(&changes).map(|(kind, run)| (kind, run.len())).collect();
        assert_eq!(runs, [(Kind::Objects, 2), (Kind::Foreign, 2)]);
    }
}
