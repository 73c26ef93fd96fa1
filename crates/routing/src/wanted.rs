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
use std::net::IpAddr;

use ipnet::IpNet;

use crate::mtu;
use crate::node::Node;
use crate::object::{Key, Nexthop, PROTOCOL, PROTOCOL_OWN, Set, Tunnel, Value};
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
    for underlay in IpFamily::ALL {
        if let Some((link, tunnel)) = tunnel(settings, own, underlay) {
            objects.insert(Key::Tunnel { link }, Value::Tunnel(Box::new(tunnel)));
        }
    }
    for family in IpFamily::ALL {
        // The tunnel over the other family carries what has none of its own.
        let mut tunnels = [family, family.other()].into_iter();
        let link = tunnels.find_map(|underlay| tunnel(settings, own, underlay));
        if let (Some((link, _)), Some(address)) = (link, own.node.tunnel_address(family)) {
            objects.insert(Key::Address { link, address }, Value::There);
        }
    }
    objects
}

/// Returns this node's tunnel over a family, if it has one.
fn tunnel(settings: &Settings, own: &OwnNode, underlay: IpFamily) -> Option<(LinkName, Tunnel)> {
    let vxlan = own.node.offers.vxlan?;
    let uplink = own.uplinks.get(underlay).as_ref()?;
    let tunnel = Tunnel {
        vni: vxlan.vni,
        port: vxlan.port,
        local: own.node.underlay.get(underlay)?,
        underlay: uplink.name.clone(),
        mac: vxlan.mac(underlay)?,
        mtu: tunnel_mtu(settings, own, underlay)?,
        up: true,
        learning: false,
        altered: false,
    };
    Some((own.tunnels.get(underlay).clone(), tunnel))
}

/// Returns the MTU of this node's tunnel over a family.
pub(crate) fn tunnel_mtu(settings: &Settings, own: &OwnNode, underlay: IpFamily) -> Option<u32> {
    let uplink = own.uplinks.get(underlay).as_ref()?;
    let base = settings.underlay_mtu.unwrap_or(uplink.mtu);
    Some(base.saturating_sub(mtu::vxlan_overhead(underlay)))
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
        let Some(nexthop) = nexthop(own, peer, family, reach, &mut objects) else { continue };
        objects.insert(Key::Nexthop { id: reach.nexthop }, Value::Nexthop(nexthop));
        for prefix in peer.prefixes_of(family) {
            let value = Value::Route { nexthop: Some(reach.nexthop), mtu: reach.mtu };
            objects.insert(Key::Route { prefix }, value);
        }
    }
    objects
}

/// Returns the nexthop of a path, after what it needs; `None` if the path needs nothing of ours.
fn nexthop(
    own: &OwnNode,
    peer: &Node,
    family: IpFamily,
    reach: &Reach,
    objects: &mut Objects,
) -> Option<Nexthop> {
    match reach.path {
        Path::Native | Path::Learned | Path::None => None,
        Path::Direct => {
            let link = reach.hop.as_ref()?.link.clone();
            let gateway = peer.underlay.get(family)?;
            // The kernel has reported that the address is on the link. Some clouds give addresses
            // without a prefix.
            Some(Nexthop { link, gateway, onlink: true })
        }
        Path::Vxlan { underlay } => {
            let link = own.tunnels.get(underlay).clone();
            let mac = peer.offers.vxlan?.mac(underlay)?;
            let to: IpAddr = peer.underlay.get(underlay)?;
            // Linux refuses an IPv6 gateway that a route by another link leads to, so a change of
            // path could not keep it (net/ipv6/route.c ip6_route_check_nh_onlink). A link-local
            // one is not compared.
            let gateway = match family {
                // A node with blocks and no prefix of the family has none.
                IpFamily::V4 => peer.tunnel_address(family).or(peer.underlay.get(family))?,
                IpFamily::V6 => mac.link_local().into(),
            };
            objects.insert(Key::Fdb { link: link.clone(), mac }, Value::Fdb { to });
            let neighbour = Key::Neighbour { link: link.clone(), address: gateway };
            objects.insert(neighbour, Value::Neighbour { mac });
            Some(Nexthop { link, gateway, onlink: true })
        }
    }
}
