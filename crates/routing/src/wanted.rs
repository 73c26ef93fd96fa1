//! What a node wants of its kernel: for itself, and for each peer.
//!
//! The gateway of an IPv6 nexthop by a tunnel is link-local, made of the tunnel's hardware address:
//! Linux refuses another gateway if a route by another link leads to it, as the peer's own route
//! does, and then a nexthop could not change in place from one tunnel to the other. While a peer's
//! path is native, there is no `unreachable` route for the cluster's range of that family, so that
//! packets to the peer follow the node's other routes.
//!
//! These are not items of the crate `wanted`. Such an item belongs to an attachment and names links
//! that repair does not make again. Here an object is one of 45,000 and found by its key, and a
//! tunnel that is gone is made again.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::backends::{BackendId, PeerEnd, PeerObjects};
use crate::node::Node;
use crate::object::{Key, PROTOCOL, PROTOCOL_OWN, Set, Tunnel, Value};
use crate::path::{Hop, Path};
use crate::plan::Objects;
use crate::reader::host_prefix;
use crate::settings::{LinkName, OwnNode, Settings};
use net::{IpFamily, PerFamily};

/// Returns what this node wants for itself, with any peers or none.
///
/// `native` are the families of which a peer's path is native: packets to it follow the network's
/// routes, so nothing may stand before these. `underlay` are the links by which packets of other nodes
/// come. `routed` is where the kernel's routes decide by which uplink packets from pods' addresses
/// come.
#[must_use]
pub fn of_node(
    settings: &Settings,
    own: &OwnNode,
    native: PerFamily<bool>,
    underlay: BTreeSet<LinkName>,
    routed: BTreeSet<IpNet>,
) -> Objects {
    let mut objects = Objects::new();
    // A program that translates services' addresses must see the pod's own address.
    let exempt = [&settings.exempt[..], &settings.service_ranges].concat();
    let all: Vec<IpNet> = settings.ranges().collect();
    for (set, ranges) in [(Set::Cluster, &all), (Set::Exempt, &exempt)] {
        for prefix in IpNet::aggregate(ranges) {
            objects.insert(Key::Element { set, prefix }, Value::There);
        }
    }
    for prefix in own.node.all_prefixes() {
        objects.insert(Key::Element { set: Set::Local, prefix }, Value::There);
    }
    for prefix in routed {
        objects.insert(Key::Element { set: Set::Routed, prefix }, Value::There);
    }
    for link in underlay {
        objects.insert(Key::Link { link }, Value::There);
    }
    for prefix in &all {
        let is_native = own.node.offers.native || *native.get(IpFamily::of_prefix(*prefix));
        if !is_native {
            let value = Value::Unreachable { protocol: PROTOCOL };
            objects.insert(Key::Unreachable { prefix: prefix.trunc() }, value);
        }
    }
    for prefix in own.node.all_prefixes() {
        let value = Value::Unreachable { protocol: PROTOCOL_OWN };
        objects.insert(Key::Unreachable { prefix }, value);
    }
    for (link, tunnel) in IpFamily::ALL.into_iter().flat_map(|of| tunnels(settings, own, of)) {
        objects.insert(Key::Tunnel { link }, Value::Tunnel(Box::new(tunnel)));
    }
    for family in IpFamily::ALL {
        // The tunnel over the other family carries what has none of its own.
        let underlays = [family, family.other()].into_iter();
        let carries = |(_, of): &(LinkName, Tunnel)| {
            of.kind.backend.backend().crosses_families() || IpFamily::of(of.local) == family
        };
        let links = underlays.flat_map(|underlay| tunnels(settings, own, underlay));
        let mut links = links.filter(carries);
        if let (Some((link, _)), Some(address)) = (links.next(), own.node.tunnel_address(family)) {
            objects.insert(Key::Address { link, address }, Value::There);
        }
    }
    objects
}

/// Returns this node's tunnels over a family.
pub(crate) fn tunnels<'a>(
    settings: &'a Settings,
    own: &'a OwnNode,
    underlay: IpFamily,
) -> impl Iterator<Item = (LinkName, Tunnel)> + 'a {
    BackendId::ALL.iter().filter_map(move |id| id.backend().tunnel(settings, own, underlay))
}

/// How one family of a peer's pods is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// The path.
    pub path: Path,
    /// The number of the nexthop object.
    pub nexthop: u32,
    /// The way to the underlay address that the path uses; `None` if none is used, or known.
    pub hop: Option<Hop>,
    /// What fits, in bytes, where it is less than the link carries.
    pub mtu: Option<u32>,
    /// Packets from its pods may come without a tunnel by now, although the path is one, or has been.
    pub turns: bool,
}

/// Returns what this node wants for a peer.
#[must_use]
pub fn of_peer(own: &OwnNode, peer: &Node, reach: &PerFamily<Option<Reach>>) -> Objects {
    let mut objects = Objects::new();
    for address in peer.underlay.iter() {
        let key = Key::Element { set: Set::Nodes, prefix: host_prefix(address) };
        objects.insert(key, Value::There);
    }
    for address in &peer.addresses {
        let key = Key::Element { set: Set::Addresses, prefix: host_prefix(*address) };
        objects.insert(key, Value::There);
    }
    for (family, reach) in reach.iter() {
        let Some(reach) = reach else { continue };
        // The packet filter takes what comes by the link of the kernel's route, too. That is enough
        // for blocks: they change all the time.
        let plain = peer.prefixes.iter().chain(&peer.kept).copied();
        let plain = plain.filter(|_| reach.turns || reach.path.is_plain());
        let blocks = peer.blocks.iter().filter(|_| reach.turns).map(|block| block.prefix);
        let of_family = |prefix: &IpNet| IpFamily::of_prefix(*prefix) == family;
        for prefix in plain.chain(blocks).filter(of_family) {
            objects.insert(Key::Element { set: Set::Plain, prefix }, Value::There);
        }
        let path = reach.path;
        let Some((backend, underlay)) = path.backend().zip(path.underlay(family)) else { continue };
        let hop = reach.hop.as_ref();
        let end = PeerEnd { own, peer, family, underlay, hop };
        let Some(PeerObjects { nexthop, entries }) = backend.backend().of_peer(end) else {
            continue;
        };
        objects.extend(entries);
        objects.insert(Key::Nexthop { id: reach.nexthop }, Value::Nexthop(nexthop));
        for prefix in peer.prefixes_of(family) {
            let value = Value::Route { nexthop: Some(reach.nexthop), mtu: reach.mtu };
            objects.insert(Key::Route { prefix }, value);
        }
    }
    objects
}
