//! What the kernel has, in routing's words.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use kernel::events::Object;
use kernel::netlink::{Errno, NetlinkError};
use kernel::route::{
    Address, IpFamily, Link, Neighbour, NeighbourState, NexthopFilter, NexthopObject, NexthopWay,
    Route, RouteFilter, RouteKind, RouteProtocol, RouteSocket, Scope, TABLE_MAIN, TunnelOptions,
    VxlanFdb, is_link_local_v6,
};
use kernel::routers::{self, Listener};
use kernel::sysctl::Sysctl;
use routing::earlier::Pods;
use routing::identity::{HostFacts, Mark, TunnelLink, has_flannels_name};
use routing::object::{
    self, ALIAS, GROUP_UNFINISHED, Key, METRIC, METRIC_WORST, NEXTHOP_FIRST, NEXTHOPS, Numbers,
    PROTOCOL, PROTOCOL_OWN, TunnelKind, Value,
};
use routing::overlap::HostPrefix;
use routing::path::{BackendId, Hop, Way};
use routing::plan::{ForeignRoute, ObservedObjects};
use routing::settings::{LinkName, OwnNode, Uplink};
use routing::{PerFamily, Settings, SourceNode};
use service_kit::stop::words;

const FAMILIES: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

/// What the marks of our plugins' links begin with (`plugins::shared::owner`).
const ATTACHMENT: &str = "netwright:";

/// What the kernel says when it lacks memory for an answer, which says nothing of the way.
const NO_ROOM: [Errno; 2] = [Errno::NOMEM, Errno::NOBUFS];

/// An address that no object of ours has: a value with it differs from every wanted one.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Flags of IPv6 addresses that are there for a while only: of temporary and of deprecated ones
/// (linux include/uapi/linux/if_addr.h).
const PASSING: u32 = 0x01 | 0x20;

/// A link without ARP (linux include/uapi/linux/if.h IFF_NOARP).
const NOARP: u32 = 0x80;

/// The folders of the kernel parameters of links.
pub(super) const FORWARDING_OF_LINKS: [&str; 2] = ["net/ipv4/conf", "net/ipv6/conf"];

/// The kernel parameter that switches forwarding of IPv4 on.
pub(super) const IP_FORWARD: &str = "net/ipv4/ip_forward";

/// The links of this host, and which of them are our tunnels.
#[derive(Debug, Default)]
pub(super) struct Links {
    by_index: BTreeMap<u32, Link>,
    /// Their names, shared by all that refers to them.
    names: BTreeMap<u32, LinkName>,
    tunnels: BTreeMap<u32, LinkName>,
    /// Tunnels that do not forward.
    closed: BTreeSet<u32>,
}

impl Links {
    fn new(links: Vec<Link>, own: &OwnNode) -> Self {
        let named = |link: &Link| (link.index, LinkName::from(link.name.as_str()));
        let names: BTreeMap<u32, LinkName> = links.iter().map(named).collect();
        let by_index = links.into_iter().map(|link| (link.index, link)).collect();
        let (tunnels, closed) = (BTreeMap::new(), BTreeSet::new());
        let mut links = Links { by_index, names, tunnels, closed };
        links.recognise(own);
        links
    }

    /// Finds our tunnels, now that it is known what this node is. Another program may have taken
    /// the mark off one while no service ran: then its hardware address alone shows that it is
    /// ours.
    pub(super) fn recognise(&mut self, own: &OwnNode) {
        let is_tunnel = |link: &&Link| tunnel_link(link).is_some_and(|link| link.is_of(own));
        let tunnels = self.by_index.values().filter(is_tunnel);
        let named = tunnels.map(|link| (link.index, self.names[&link.index].clone()));
        self.tunnels = named.collect();
    }

    /// Finds the tunnels that do not forward: no event of a link reports that.
    pub(super) fn note_forwarding(&mut self) {
        let is_closed = |name: &LinkName| {
            FORWARDING_OF_LINKS.iter().any(|folder| {
                let forwarding = Sysctl::of_link(folder, name, "forwarding");
                forwarding.and_then(|forwarding| forwarding.read()).is_ok_and(|value| value == "0")
            })
        };
        let tunnels = self.tunnels.iter().filter(|(_, name)| is_closed(name));
        self.closed = tunnels.map(|(index, _)| *index).collect();
    }

    /// Returns the name of a link; an index that is gone has none.
    pub(super) fn name_of(&self, index: u32) -> LinkName {
        self.names.get(&index).cloned().unwrap_or_else(|| "?".into())
    }

    /// Reports whether there is a link with an index.
    pub(super) fn has(&self, index: u32) -> bool {
        self.by_index.contains_key(&index)
    }

    /// Reports whether a link was there at the look, and is not a container's.
    pub(super) fn is_of_host(&self, index: u32) -> bool {
        let link = self.by_index.get(&index);
        link.is_some_and(|link| !is_of_attachment(link)) && !self.tunnels.contains_key(&index)
    }

    /// Reports whether a link is as it was read.
    pub(super) fn is_as(&self, link: &Link) -> bool {
        self.by_index.get(&link.index) == Some(link)
    }

    /// Returns the index of a link.
    pub(super) fn index_of(&self, name: &str) -> Option<u32> {
        // Ours first: thousands of objects are on them, and pods have links too.
        let tunnel = self.tunnels.iter().find(|(_, tunnel)| ***tunnel == *name);
        let other = || self.by_index.values().find(|link| link.name == name);
        tunnel.map(|(index, _)| *index).or_else(|| other().map(|link| link.index))
    }

    /// Returns the indices of our tunnels.
    pub(super) fn tunnels(&self) -> impl Iterator<Item = u32> {
        self.tunnels.keys().copied()
    }

    /// Returns our tunnels, as they were read.
    pub(super) fn of_tunnels(&self) -> impl Iterator<Item = &Link> {
        self.tunnels.keys().filter_map(|index| self.by_index.get(index))
    }

    /// Returns those that do not have our mark, or only that of a tunnel that is being made.
    pub(super) fn unmarked(&self) -> impl Iterator<Item = &Link> {
        self.of_tunnels().filter(|link| !is_finished(link))
    }

    /// Reports whether a link is a tunnel of ours, and does not have our mark, or no longer.
    pub(super) fn lacks_mark(&self, link: &Link) -> bool {
        self.tunnels.contains_key(&link.index) && !is_finished(link)
    }

    /// Takes note of a tunnel that was made.
    pub(super) fn add_tunnel(&mut self, link: Link) {
        let name: LinkName = link.name.as_str().into();
        self.names.insert(link.index, name.clone());
        self.tunnels.insert(link.index, name);
        self.by_index.insert(link.index, link);
    }

    /// Takes note that a link is gone.
    pub(super) fn remove(&mut self, index: u32) {
        self.tunnels.remove(&index);
        self.names.remove(&index);
        self.by_index.remove(&index);
    }

    /// Lists the links by which packets can leave, and those by which they cannot.
    pub(super) fn up_and_down(&self) -> (BTreeSet<&str>, BTreeSet<&str>) {
        let others = self.by_index.values().filter(|link| !self.tunnels.contains_key(&link.index));
        let (up, down): (Vec<&Link>, Vec<&Link>) =
            others.partition(|link| link.up() && link.lower_up());
        (names_of(&up), names_of(&down))
    }

    /// Names an object as routing does, if it is ours; without a value if routing does not want
    /// such an object.
    pub(super) fn ours(&self, object: &Object) -> Option<(Key, Option<Value>)> {
        let found = match object {
            Object::Link(link) => self.tunnel(link),
            Object::Address(address) => self.address(address),
            Object::Route(route) => ours_of_route(route),
            Object::Neighbour(neighbour) => return self.neighbour(neighbour),
            Object::VxlanFdb(entry) => self.fdb(entry),
            Object::Nexthop(nexthop) => self.nexthop(nexthop),
            _ => None,
        };
        found.map(|(key, value)| (key, Some(value)))
    }

    fn tunnel(&self, link: &Link) -> Option<(Key, Value)> {
        let name = self.tunnels.get(&link.index)?;
        let (backend, options) = kind_of(link)?;
        // A tunnel that does more than ours has to be made again, as one with another number.
        let id = if options.has_more { Some(0) } else { options.id };
        let (numbers, learning) = (Numbers { id, port: options.port }, options.learning);
        // A service that was killed while it put the MTU back has not taken from the link what the
        // kernel gave it then. flanneld's tunnel always has that.
        let mtu = if link.own_ipv6() && !has_flannels_name(&link.name) { 0 } else { link.mtu };
        let tunnel = object::Tunnel {
            kind: TunnelKind { backend, numbers, learning },
            local: options.local.unwrap_or(NOWHERE),
            underlay: options.underlay.map_or("?".into(), |index| self.name_of(index)),
            mac: link.mac,
            mtu,
            up: link.up(),
            altered: link.master.is_some()
                || (link.mac.is_some() && link.flags & NOARP != 0)
                || self.closed.contains(&link.index),
        };
        Some((Key::Tunnel { link: name.clone() }, Value::Tunnel(Box::new(tunnel))))
    }

    fn address(&self, address: &Address) -> Option<(Key, Value)> {
        let link = self.tunnels.get(&address.ifindex)?.clone();
        let whole = address.address.prefix_len() == address.address.max_prefix_len();
        let address = address.address.addr();
        (whole && !is_link_local_v6(address))
            .then_some((Key::Address { link, address }, Value::There))
    }

    fn fdb(&self, entry: &VxlanFdb) -> Option<(Key, Value)> {
        let link = self.tunnels.get(&entry.ifindex)?.clone();
        let is_plain = (entry.vni, entry.port, entry.oif) == (None, None, None)
            && entry.state == NeighbourState::PERMANENT;
        let to = if is_plain { entry.destination } else { NOWHERE };
        Some((Key::Fdb { link, mac: entry.mac }, Value::Fdb { to }))
    }

    /// A neighbour that is deleted is reported as one that is not permanent, and without its
    /// hardware address.
    fn neighbour(&self, neighbour: &Neighbour) -> Option<(Key, Option<Value>)> {
        let link = self.tunnels.get(&neighbour.ifindex)?.clone();
        let mac = neighbour.mac.filter(|_| neighbour.state == NeighbourState::PERMANENT);
        let value = mac.map(|mac| Value::Neighbour { mac });
        Some((Key::Neighbour { link, address: neighbour.address }, value))
    }

    fn nexthop(&self, nexthop: &NexthopObject) -> Option<(Key, Value)> {
        if nexthop.protocol.0 != PROTOCOL || !is_our_id(nexthop.id) {
            return None;
        }
        let value = match nexthop.way {
            NexthopWay::Gateway { address, oif, onlink } => {
                object::Nexthop { link: self.name_of(oif), gateway: address, onlink }
            }
            _ => object::Nexthop { link: "?".into(), gateway: NOWHERE, onlink: false },
        };
        Some((Key::Nexthop { id: nexthop.id }, Value::Nexthop(value)))
    }
}

fn names_of<'a>(links: &[&'a Link]) -> BTreeSet<&'a str> {
    links.iter().map(|link| link.name.as_str()).collect()
}

/// Returns a link as routing knows it, if it may be a tunnel.
fn tunnel_link(link: &Link) -> Option<TunnelLink> {
    let (backend, options) = kind_of(link)?;
    let mark = match &link.alias {
        _ if is_marked(link) => Mark::Ours,
        Some(_) => Mark::Others,
        None => Mark::None,
    };
    Some(TunnelLink {
        name: link.name.as_str().into(),
        backend,
        numbers: Numbers { id: options.id, port: options.port },
        local: options.local,
        mac: link.mac,
        mark,
    })
}

/// Returns of which backend's kind a link is, and its settings.
fn kind_of(link: &Link) -> Option<(BackendId, TunnelOptions<'_>)> {
    let options = TunnelOptions::of(link)?;
    let backend = BackendId::ALL.iter().find(|id| id.name() == options.kind)?;
    Some((*backend, options))
}

/// Returns the link by which packets from an address leave, of those that have it. By the loopback
/// and by a dummy nothing leaves, and hosts that speak a routing protocol have their address there:
/// then it is the default route's link.
fn carrier<'a>(
    with_it: impl Iterator<Item = &'a Link>,
    default: impl FnOnce() -> Option<&'a Link>,
) -> Option<&'a Link> {
    let mut first = None;
    for link in with_it {
        if is_carrier(link) {
            return Some(link);
        }
        first = first.or(Some(link));
    }
    let first = first?;
    Some(default().unwrap_or(first))
}

/// Reports whether packets can leave by a link, and come in.
fn is_carrier(link: &Link) -> bool {
    !link.loopback() && link.kind.as_deref() != Some("dummy")
}

/// Reports whether a link is the host's end of a container's interface: plugins mark those.
fn is_of_attachment(link: &Link) -> bool {
    let mark = link.alias.as_deref().and_then(|alias| alias.strip_prefix(ATTACHMENT));
    mark.is_some_and(|rest| rest.contains(['/', '#']))
}

/// Reports whether a link has our mark: the alias, or the group until it is finished.
fn is_marked(link: &Link) -> bool {
    link.alias.as_deref() == Some(ALIAS) || link.group == GROUP_UNFINISHED
}

/// Reports whether a link has the alias, and no longer the group.
fn is_finished(link: &Link) -> bool {
    link.alias.as_deref() == Some(ALIAS) && link.group != GROUP_UNFINISHED
}

fn is_our_id(id: u32) -> bool {
    id.checked_sub(NEXTHOP_FIRST).is_some_and(|number| number < NEXTHOPS)
}

fn ours_of_route(route: &Route) -> Option<(Key, Value)> {
    if route.table != TABLE_MAIN {
        return None;
    }
    let prefix = route.destination.trunc();
    let protocol = route.protocol?.0;
    match (route.kind, protocol, route.priority) {
        (RouteKind::Unreachable, PROTOCOL | PROTOCOL_OWN, Some(METRIC_WORST)) => {
            Some((Key::Unreachable { prefix }, Value::Unreachable { protocol }))
        }
        (RouteKind::Unicast, PROTOCOL, Some(METRIC)) => {
            let (nexthop, mtu) = (route.nexthop, route.mtu);
            Some((Key::Route { prefix }, Value::Route { nexthop, mtu }))
        }
        _ => None,
    }
}

/// Reports whether a route is ours, with any metric.
fn has_our_protocol(route: &Route) -> bool {
    matches!(route.protocol, Some(RouteProtocol(PROTOCOL | PROTOCOL_OWN)))
}

/// What one look at the kernel has found.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) links: Links,
    addresses: Vec<Address>,
    nexthops: Vec<NexthopObject>,
    /// Routes of ours, in routing's words, and those of others that matter here.
    ours: Vec<(Key, Value)>,
    routes: Vec<Route>,
}

/// A route of the main table.
enum MainRoute {
    Ours((Key, Value)),
    Other(Route),
}

impl Host {
    /// Reads links, addresses, nexthops and routes. `own` is what this node is as far as it is
    /// known, and `ranges` are those of pods.
    ///
    /// What takes others with it is read before them: the kernel does not report that IPv4 routes
    /// go with a nexthop or a link. If one goes while this reads, it was found with its routes, and
    /// the event that it is gone asks for another look; or it was gone, and so are they.
    pub(super) fn read(
        netlink: &mut RouteSocket,
        own: &OwnNode,
        ranges: &[IpNet],
    ) -> Result<Self, NetlinkError> {
        let links = Links::new(netlink.links()?, own);
        let addresses = netlink.addresses(None)?;
        let nexthops = netlink.nexthops(NexthopFilter::default())?;
        let (mut ours, mut routes) = (Vec::new(), Vec::new());
        // The kernel's words take four times the room, and there are thousands of ours, and a
        // million of a router's.
        let take = |route: Route| match ours_of_route(&route) {
            Some(found) => Some(MainRoute::Ours(found)),
            None => matters(&route, ranges).then_some(MainRoute::Other(route)),
        };
        for family in FAMILIES {
            for listed in netlink.routes_as(RouteFilter::main(family), take)? {
                match listed {
                    MainRoute::Ours(found) => ours.push(found),
                    MainRoute::Other(route) => routes.push(route),
                }
            }
        }
        Ok(Host { links, addresses, nexthops, ours, routes })
    }

    /// Returns the links, and forgets the rest.
    pub(super) fn into_links(self) -> Links {
        self.links
    }

    /// Returns the link by which packets from an address of this host leave.
    pub(super) fn uplink(&self, address: IpAddr) -> Option<Uplink> {
        let with_it = self.addresses.iter().filter(|of| of.address.addr() == address);
        let with_it = with_it.filter_map(|of| self.links.by_index.get(&of.ifindex));
        let default = || self.links.by_index.get(&self.default_link(IpFamily::of(address))?);
        let link = carrier(with_it, default)?;
        Some(Uplink { name: link.name.as_str().into(), mtu: link.mtu })
    }

    /// Returns the links by which packets of other nodes may come, as far as that follows from this
    /// node: those on the segment of its addresses, since a host answers for these by any link; and, if
    /// it has them where nothing comes in, all of the default routes, and of the routes to single
    /// nodes. No container is behind them.
    pub(super) fn underlay(
        &self,
        own: &OwnNode,
        settings: &Settings,
        is_node: impl Fn(IpAddr) -> bool,
    ) -> BTreeSet<LinkName> {
        let mut found = BTreeSet::new();
        for address in own.node.underlay.iter() {
            let is_of_pods =
                |of: &Address| settings.ranges().any(|range| range.contains(&of.address.addr()));
            let beside = self.addresses.iter().filter(|of| of.address.contains(&address));
            found.extend(beside.filter(|of| !is_of_pods(of)).map(|of| of.ifindex));
            let mut with_it = self.addresses.iter().filter(|of| of.address.addr() == address);
            let carries =
                |of: &Address| self.links.by_index.get(&of.ifindex).is_some_and(is_carrier);
            if !with_it.any(carries) {
                let family = IpFamily::of(address);
                let leads = |route: &&Route| {
                    let to = route.destination;
                    route.kind == RouteKind::Unicast
                        && IpFamily::of_prefix(to) == family
                        && (to.prefix_len() == 0
                            || (to.prefix_len() == to.max_prefix_len() && is_node(to.addr())))
                };
                let hops = self.routes.iter().filter(leads).flat_map(|route| {
                    route.oif.into_iter().chain(route.next_hops.iter().filter_map(|hop| hop.oif))
                });
                found.extend(hops);
            }
        }
        let links = found.into_iter().filter_map(|index| self.links.by_index.get(&index));
        let links = links.filter(|link| {
            is_carrier(link)
                && !is_of_attachment(link)
                && !self.links.tunnels.contains_key(&link.index)
        });
        links.map(|link| self.links.names[&link.index].clone()).collect()
    }

    /// Returns the links to other hosts, behind which no pod of this node is: those by which other nodes'
    /// packets come (`underlay`), those of default routes, and those on which routers have announced
    /// themselves. A link with an address of this node's pods is none: that is their gateway.
    pub(super) fn uplinks(
        &self,
        own: &OwnNode,
        underlay: &BTreeSet<LinkName>,
    ) -> BTreeSet<LinkName> {
        let leads = |route: &&Route| {
            let is_default = route.destination.prefix_len() == 0;
            route.kind == RouteKind::Unicast && (is_default || has_routers_protocol(route))
        };
        let by_route = self.routes.iter().filter(leads).flat_map(Route::links);
        let by_address = self.addresses.iter().filter(|of| is_announced(of)).map(|of| of.ifindex);
        let named = self.links.names.iter().filter(|(_, name)| underlay.contains(*name));
        let found = by_route.chain(by_address).chain(named.map(|(index, _)| *index));
        let found: BTreeSet<u32> = found.collect();
        let is_gateway = |index: u32| {
            let mut of_link = self.addresses.iter().filter(|of| of.ifindex == index);
            of_link.any(|of| {
                let mut prefixes = own.node.all_prefixes();
                of.permanent() && prefixes.any(|prefix| prefix.contains(&of.address.addr()))
            })
        };
        let links = found.into_iter().filter_map(|index| self.links.by_index.get(&index));
        let links = links.filter(|link| {
            is_carrier(link)
                && !is_of_attachment(link)
                && !self.links.tunnels.contains_key(&link.index)
                && !is_gateway(link.index)
        });
        links.map(|link| self.links.names[&link.index].clone()).collect()
    }

    /// Lists what the kernel has made of router advertisements in prefixes of pods: routes, and
    /// addresses of this host. Every machine on a link can send advertisements, and a route of theirs
    /// stands before those to pods.
    pub(super) fn announced(&self, is_of_pods: impl Fn(IpNet) -> bool) -> Vec<AdvertisedObject> {
        let may_be = |index: u32| {
            let link = self.links.by_index.get(&index);
            link.is_some_and(|link| !is_of_attachment(link))
                && !self.links.tunnels.contains_key(&index)
        };
        let routes = self.routes.iter().filter(|route| {
            is_learnt(route, &self.addresses)
                && is_of_pods(route.destination.trunc())
                && route.oif.is_some_and(may_be)
        });
        let addresses = self.addresses.iter().filter(|of| {
            is_announced(of) && is_of_pods(IpNet::from(of.address.addr())) && may_be(of.ifindex)
        });
        let addresses = addresses.map(|of| AdvertisedObject::Address(of.ifindex, of.address));
        // An address goes before the route that the kernel has made for it.
        addresses.chain(routes.map(|route| AdvertisedObject::Route(route.clone()))).collect()
    }

    /// Returns the addresses of the link with the default route. Others reach this host by them
    /// unless the configuration names addresses: flanneld takes them too.
    pub(super) fn default_addresses(&self) -> PerFamily<Option<IpAddr>> {
        let links = PerFamily::with(|family| self.default_link(family));
        PerFamily::with(|family| {
            let link = links.get(family).or(*links.get(family.other()))?;
            let of_link = |of: &&Address| {
                let address = of.address.addr();
                of.ifindex == link
                    && IpFamily::of(address) == family
                    && of.scope == Scope::UNIVERSE
                    && !is_link_local_v6(address)
                    && (address.is_ipv4() || of.flags & PASSING == 0)
            };
            self.addresses.iter().find(of_link).map(|of| of.address.addr())
        })
    }

    /// Returns the link of a family's default route.
    fn default_link(&self, family: IpFamily) -> Option<u32> {
        let of_family = |route: &&Route| IpFamily::of_prefix(route.destination) == family;
        kernel::route::default_link(self.routes.iter().filter(of_family))
    }

    /// Returns what this host shows of this node: the links of the addresses that its source names,
    /// and the links that may be tunnels.
    pub(super) fn facts(&self, source: &SourceNode) -> HostFacts {
        let named = source.addresses.iter().chain(&source.unlisted);
        let uplinks = named.filter_map(|address| Some((*address, self.uplink(*address)?)));
        let tunnels = self.links.by_index.values().filter_map(tunnel_link).collect();
        HostFacts { uplinks: uplinks.collect(), tunnels }
    }

    /// Reads the rest, and puts together what is ours, and what others have in the cluster's ranges.
    /// `known` is what the packet filter has.
    pub(super) fn observe(
        &mut self,
        netlink: &mut RouteSocket,
        ranges: &[IpNet],
        own: &OwnNode,
        known: Vec<(Key, Value)>,
    ) -> Result<ObservedObjects, NetlinkError> {
        let mut found = known;
        let links = &self.links;
        let mut note = |ours: Option<(Key, Value)>| found.extend(ours);
        for index in links.tunnels() {
            note(links.by_index.get(&index).and_then(|link| links.tunnel(link)));
            for entry in netlink.vxlan_fdb(index)? {
                note(links.fdb(&entry));
            }
            for family in FAMILIES {
                for neighbour in netlink.neighbours(family, Some(index))? {
                    let ours = links.neighbour(&neighbour);
                    note(ours.and_then(|(key, value)| Some((key, value?))));
                }
            }
        }
        self.addresses.iter().for_each(|address| note(links.address(address)));
        let nexthops = std::mem::take(&mut self.nexthops);
        nexthops.iter().for_each(|nexthop| note(links.nexthop(nexthop)));
        // Last, as their keys are: what is nearly in order takes less time and room to sort.
        found.extend(std::mem::take(&mut self.ours));
        let mut observed: ObservedObjects = found.into_iter().collect();
        observed.foreign_nexthops = nexthops
            .iter()
            .filter(|nexthop| is_our_id(nexthop.id) && nexthop.protocol.0 != PROTOCOL)
            .map(|nexthop| nexthop.id)
            .collect();
        let decides =
            |route: &&Route| is_foreign(route, ranges, own) && !is_learnt(route, &self.addresses);
        for route in self.routes.iter().filter(decides) {
            let (prefix, route) = (route.destination.trunc(), self.foreign(route));
            observed.foreign.entry(prefix).or_default().push(route);
        }
        Ok(observed)
    }

    fn foreign(&self, route: &Route) -> ForeignRoute {
        let first = route.next_hops.first();
        let link = route.oif.or_else(|| first.and_then(|hop| hop.oif));
        ForeignRoute {
            // The kernel's own default (linux net/ipv6/route.c IP6_RT_PRIO_USER).
            metric: route.priority.unwrap_or(if route.destination.addr().is_ipv4() {
                0
            } else {
                1024
            }),
            protocol: route.protocol.map_or(0, |protocol| protocol.0),
            link: link.map(|index| self.links.name_of(index)),
            gateway: route.gateway.or_else(|| first.and_then(|hop| hop.gateway)),
        }
    }

    /// Reports whether flanneld has made a route to one of these prefixes since this service was here:
    /// there is no route of the service's to any node.
    pub(super) fn is_flannels(&self, prefixes: &BTreeSet<IpNet>) -> bool {
        let is_theirs = |route: &Route| {
            prefixes.contains(&route.destination.trunc()) && self.foreign(route).may_be_flannels()
        };
        let mut ours = self.ours.iter().map(|(key, _)| key);
        !ours.any(|key| matches!(key, Key::Route { .. })) && self.routes.iter().any(is_theirs)
    }

    /// Lists the prefixes that this node has or had, by the routes that an earlier look has made.
    pub(super) fn own_prefixes(&self) -> impl Iterator<Item = IpNet> {
        self.ours.iter().filter_map(|found| match found {
            (Key::Unreachable { prefix }, Value::Unreachable { protocol: PROTOCOL_OWN }) => {
                Some(*prefix)
            }
            _ => None,
        })
    }

    /// Lists what the kernel shows of pods: routes to single addresses, and addresses of bridges.
    pub(super) fn pods(&self, recorded: Option<Vec<IpAddr>>) -> Pods {
        let is_pods = |route: &&Route| {
            let to = route.destination;
            let by_link = route.oif.is_some_and(|link| !self.links.tunnels.contains_key(&link));
            route.kind == RouteKind::Unicast
                && by_link
                && !has_our_protocol(route)
                && to.prefix_len() == to.max_prefix_len()
        };
        let routed = self.routes.iter().filter(is_pods).map(|route| route.destination.addr());
        let with_port: BTreeSet<u32> =
            self.links.by_index.values().filter_map(|link| link.master).collect();
        let of_bridges = self.addresses.iter().filter(|of| with_port.contains(&of.ifindex));
        Pods {
            routed: routed.collect(),
            bridges: of_bridges.map(|of| of.address.addr()).collect(),
            recorded,
        }
    }

    /// Returns the first of some bridges that can have the gateways' addresses of these prefixes: one
    /// that has an address of another range of the cluster serves pods of an earlier prefix, and the
    /// plugin would refuse it.
    pub(super) fn bridge_for(&self, names: &[String], own: &[IpNet], ranges: &[IpNet]) -> usize {
        let is_in = |prefixes: &[IpNet], address: IpAddr| {
            prefixes.iter().any(|prefix| prefix.contains(&address))
        };
        let addresses = |name: &String| -> Vec<IpAddr> {
            let index = self.links.index_of(name);
            let of_link = self.addresses.iter().filter(|of| Some(of.ifindex) == index);
            let all = of_link.map(|of| of.address.addr());
            all.filter(|address| is_in(ranges, *address)).collect()
        };
        let serves = |name: &String| addresses(name).into_iter().any(|of| is_in(own, of));
        let is_free = |name: &String| addresses(name).into_iter().all(|of| is_in(own, of));
        let found = names.iter().position(|name| serves(name) && is_free(name));
        found.or_else(|| names.iter().position(is_free)).unwrap_or_default()
    }

    /// Lists what this host uses itself: its addresses and routes, but those of our tunnels and of
    /// containers' links, and ours.
    pub(super) fn prefixes(&self) -> Vec<HostPrefix> {
        let is_ours = |index: u32| {
            let link = self.links.by_index.get(&index);
            self.links.tunnels.contains_key(&index) || link.is_some_and(is_of_attachment)
        };
        let addresses = self.addresses.iter().map(|of| (Some(of.ifindex), of.address));
        let routes = self
            .routes
            .iter()
            .filter(|route| route.kind == RouteKind::Unicast && !has_our_protocol(route));
        let routes = routes.map(|route| (route.oif, route.destination));
        let all = addresses.chain(routes).filter(|(index, _)| !index.is_some_and(is_ours));
        all.map(|(index, prefix)| HostPrefix {
            link: index.map_or("a route".into(), |index| self.links.name_of(index)),
            prefix,
        })
        .collect()
    }
}

/// Reports whether a route of another program says how this host is connected, or something of
/// pods: the default one, those of single addresses, and those that overlap with a range of pods.
pub(super) fn matters(route: &Route, ranges: &[IpNet]) -> bool {
    let to = route.destination.trunc();
    to.prefix_len() == 0
        || to.prefix_len() == to.max_prefix_len()
        || ranges.iter().any(|range| range.contains(&to) || to.contains(range))
}

/// What the kernel has made of a router advertisement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AdvertisedObject {
    /// An address of a link.
    Address(u32, IpNet),
    /// A route.
    Route(Route),
}

impl AdvertisedObject {
    /// Returns the link, and the prefix that was announced.
    pub(super) fn of(&self) -> (Option<u32>, IpNet) {
        match self {
            AdvertisedObject::Address(index, address) => (Some(*index), address.trunc()),
            AdvertisedObject::Route(route) => (route.oif, route.destination.trunc()),
        }
    }
}

/// The protocol of a route from an ICMP redirect (linux include/uapi/linux/rtnetlink.h
/// RTPROT_REDIRECT).
const REDIRECT: RouteProtocol = RouteProtocol(1);

/// Reports whether a router, or what says that it is one, has made the kernel or a network manager
/// make a route.
fn has_routers_protocol(route: &Route) -> bool {
    matches!(route.protocol, Some(RouteProtocol::RA | REDIRECT))
}

/// Reports whether an IPv6 address came from a router advertisement or by DHCP.
pub(super) fn is_announced(address: &Address) -> bool {
    address.address.addr().is_ipv6() && address.scope == Scope::UNIVERSE && !address.permanent()
}

/// Reports whether the kernel may have an IPv6 route from a router advertisement. The kernel's route to
/// an announced prefix looks like that of an address, but no address that stays has this prefix.
pub(super) fn is_learnt(route: &Route, addresses: &[Address]) -> bool {
    let to = route.destination.trunc();
    let is_of_address = |of: &Address| {
        let of_peer = of.peer.is_some_and(|peer| IpNet::from(peer) == to);
        Some(of.ifindex) == route.oif
            && of.permanent()
            && (of.address.trunc() == to || of_peer || IpNet::from(of.address.addr()) == to)
    };
    let is_kernels = route.protocol == Some(RouteProtocol::KERNEL);
    to.addr().is_ipv6()
        && route.kind == RouteKind::Unicast
        && (has_routers_protocol(route) || (is_kernels && !addresses.iter().any(is_of_address)))
}

/// Reports whether a route of others is in the cluster's ranges, and not for pods of this node.
pub(super) fn is_foreign(route: &Route, ranges: &[IpNet], own: &OwnNode) -> bool {
    let prefix = route.destination.trunc();
    let mut owns = own.node.all_prefixes();
    route.table == TABLE_MAIN
        && !has_our_protocol(route)
        && ranges.iter().any(|range| range.contains(&prefix))
        && !owns.any(|own| own.contains(&prefix))
}

/// Returns the kernel parameter that shows frames between ports of a bridge to the packet filter;
/// the module `br_netfilter` has it.
pub(super) fn shows_frames(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "net/bridge/bridge-nf-call-iptables",
        IpFamily::V6 => "net/bridge/bridge-nf-call-ip6tables",
    }
}

/// Reports whether a kernel parameter is there, and 1.
pub(super) fn is_one(parameter: &str) -> bool {
    let value = Sysctl::parse(parameter).and_then(|sysctl| sysctl.read());
    value.is_ok_and(|value| value == "1")
}

/// Switches forwarding on.
pub(super) fn forward(parameter: &str) -> Result<(), String> {
    let written = Sysctl::parse(parameter).and_then(|sysctl| sysctl.write_if_different("1"));
    written.map(drop).map_err(|error| words(&error))
}

/// Switches forwarding of IPv6 on, and keeps the links listening that listen to routers.
pub(super) fn forward_ipv6(netlink: &mut RouteSocket) -> Result<(), String> {
    if is_one(routers::FORWARDING) {
        return Ok(());
    }
    for Listener { link, .. } in routers::listening(netlink).map_err(|error| words(&error))? {
        routers::keep(&link).map_err(|error| {
            error.hint().into_iter().fold(words(&error), |text, hint| format!("{text}; {hint}"))
        })?;
        tracing::info!(%link, "accept_ra is 2 now: the link listens to routers");
    }
    forward(routers::FORWARDING)
}

/// Looks up the way to an underlay address.
///
/// # Errors
/// The kernel has not answered.
pub(super) fn way(
    netlink: &mut RouteSocket,
    links: &Links,
    own: &OwnNode,
    address: IpAddr,
) -> Result<Way, NetlinkError> {
    let route = match netlink.route_to(address) {
        Ok(Some(route)) => route,
        Ok(None) => return Ok(Way::Missing),
        // Routes that drop are errors, or are reported with their kind.
        Err(error) if error.errno().is_some_and(|errno| !NO_ROOM.contains(&errno)) => {
            return Ok(Way::Missing);
        }
        Err(error) => return Err(error),
    };
    // A tunnel to an address cannot run through a tunnel of ours.
    let way_out = route.oif.filter(|index| !links.tunnels.contains_key(index));
    let link = way_out.and_then(|index| links.by_index.get(&index));
    let Some(link) = link.filter(|_| route.kind == RouteKind::Unicast) else {
        return Ok(Way::Missing);
    };
    let uplinks = own.uplinks.iter().filter_map(|(_, uplink)| uplink.as_ref());
    let told = uplinks.filter(|uplink| *uplink.name == *link.name).map(|uplink| uplink.mtu).min();
    let told = told.unwrap_or(u32::MAX);
    let fits = route.mtu_by(link).min(told);
    let mtu = match route.mtu_by(link) < link.mtu {
        true => mtu_of_entry(netlink, address, link)?.min(told),
        false => fits,
    };
    let learnt_mtu = (fits < mtu).then_some(fits);
    let hop = Hop { link: links.name_of(link.index), mtu, learnt_mtu };
    Ok(if route.gateway.is_some() { Way::ByGateway(hop) } else { Way::OnLink(hop) })
}

/// Returns the MTU of the way to an address by its entry of the tables: what the kernel knows beside
/// that comes from errors of routers on the way (ICMP "packet too big"), or from advertisements.
///
/// # Errors
/// The kernel has not answered.
fn mtu_of_entry(
    netlink: &mut RouteSocket,
    address: IpAddr,
    link: &Link,
) -> Result<u32, NetlinkError> {
    match netlink.route_entry_in(None, address) {
        Ok(Some(entry)) if entry.protocol != Some(RouteProtocol::RA) => Ok(entry.mtu_by(link)),
        Err(error) if error.errno().is_none_or(|errno| NO_ROOM.contains(&errno)) => Err(error),
        _ => Ok(link.mtu),
    }
}

#[cfg(test)]
mod tests;
