//! How a container is connected to the node.

use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use crate::filter::{Layer, Packet, Payload, WalkOutcome, walk};
use crate::model::filter::Hook;
use crate::model::{
    Attachment, Container, Ipvlan, IpvlanMode, Link, MacvlanMode, Namespace, Scene,
};

/// By what a container's packets leave its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joint {
    /// A pair of veth links with one end on the node, whose bridges, routes and filters decide.
    Pair,
    /// A macvlan on a link of the node.
    Macvlan(MacvlanMode),
    /// An ipvlan on a link of the node.
    Ipvlan(Ipvlan),
    /// A VLAN of a link of the node.
    Vlan,
    /// A port of Open vSwitch, which decides by rules of its own.
    Switch,
}

/// A container's attachment to the node for one IP version.
#[derive(Debug, Clone)]
pub struct Site<'s> {
    /// By what its packets leave.
    pub joint: Joint,
    /// The container.
    pub container: &'s Container,
    /// The attachment.
    pub attachment: &'s Attachment,
    /// The container's namespace.
    pub inside: &'s Namespace,
    /// Its link.
    pub link: &'s Link,
    /// Its address, as ADD reported it.
    pub address: IpAddr,
    /// The gateway that ADD reported, if the node is it.
    pub gateway: Option<IpAddr>,
    /// The link's other end, on the node; of a link on a parent: the parent.
    pub host_end: &'s Link,
    /// The bridge of which that is a port.
    pub bridge: Option<&'s Link>,
    /// The link by which the node's IP sees the container: the bridge, a link above it, or the
    /// other end.
    pub seen_by: &'s Link,
    /// The port of the bridge that leads to `seen_by`, if that is the end of another pair.
    pub node_port: Option<&'s Link>,
    /// The VRF to which `seen_by` belongs.
    pub vrf: Option<&'s Link>,
}

impl<'s> Site<'s> {
    /// Finds it out; `None` if the container is connected in another way, or if that is not known.
    #[must_use]
    pub fn of(
        scene: &'s Scene,
        container: &'s Container,
        attachment: &'s Attachment,
        family: IpFamily,
    ) -> Option<Self> {
        let is_of = |address: IpAddr| address.is_ipv4() == (family == IpFamily::V4);
        let inside = container.inside.as_ref()?;
        let link = inside.link(&attachment.ifname)?;
        let has = |address: IpAddr| link.addresses.iter().any(|own| own.address.addr() == address);
        // An address that is gone is told by CHECK; what else stops its packets is so all the same.
        let reported = || attachment.addresses.iter().map(IpNet::addr).filter(|own| is_of(*own));
        let address = reported().find(|own| has(*own)).or_else(|| reported().next())?;
        let host = &scene.host;
        let (joint, host_end) = joint(scene, link, attachment)?;
        let above = match host_end.master {
            Some(index) if joint == Joint::Pair => Some(host.link_of(index)?),
            _ => None,
        };
        let bridge = match above {
            Some(link) if link.kind.as_deref() == Some("bridge") => Some(link),
            Some(link) if link.vrf_table.is_none() => return None,
            _ => None,
        };
        if let Some(master) = bridge.and_then(|bridge| bridge.master) {
            // Only a VRF changes nothing of what its bridge does.
            host.link_of(master)?.vrf_table?;
        }
        let mut gateways = attachment.gateways.iter().copied();
        let gateway = gateways.find(|gateway| is_of(*gateway) && host.owner_of(*gateway).is_some());
        let (seen_by, node_port) = match (bridge, gateway.and_then(|own| host.owner_of(own))) {
            (None, _) => (host_end, None),
            (Some(bridge), Some(owner)) if is_vlan_of(owner, bridge) => (owner, None),
            (Some(bridge), Some(owner)) => match port_to(host, owner, bridge) {
                Some(port) => (owner, Some(port)),
                None => (bridge, None),
            },
            (Some(bridge), None) => (bridge, None),
        };
        let vrf = if joint == Joint::Pair { vrf_above(host, seen_by) } else { None };
        Some(Site {
            joint,
            container,
            attachment,
            inside,
            link,
            address,
            gateway,
            host_end,
            bridge,
            seen_by,
            node_port,
            vrf,
        })
    }

    /// Returns the sites of a container that are ends of pairs and in no VRF: of these the node
    /// decides all that is not in the container, and reaches them itself.
    pub fn all(
        scene: &'s Scene,
        container: &'s Container,
        family: IpFamily,
    ) -> impl Iterator<Item = Self> {
        Site::every(scene, container, family).filter(Site::is_the_nodes)
    }

    /// Returns the sites of a container, whatever they are.
    pub fn every(
        scene: &'s Scene,
        container: &'s Container,
        family: IpFamily,
    ) -> impl Iterator<Item = Self> {
        let attachments = container.attachments.iter();
        attachments.filter_map(move |attachment| Site::of(scene, container, attachment, family))
    }

    /// Says whether the node decides all that is not in the container, and reaches it itself.
    pub(crate) fn is_the_nodes(&self) -> bool {
        self.joint == Joint::Pair && self.vrf.is_none()
    }

    /// Says whether the node routes whatever the container sends, also what it sends to a gateway
    /// that is no address of the node: the node's end of the pair is in no bridge and no VRF. Some
    /// plugins give all containers the same gateway, for which that end answers.
    pub(crate) fn is_routed(&self) -> bool {
        self.joint == Joint::Pair
            && self.bridge.is_none()
            && self.host_end.master.is_none()
            && self.host_end.redirects.is_empty()
    }

    /// Says whether its packets go out beside the parent's own: they never reach an address of the
    /// parent itself, as what a link sends does not come back to it.
    pub(crate) fn is_beside_parent(&self) -> bool {
        match self.joint {
            Joint::Macvlan(_) => true,
            Joint::Ipvlan(ipvlan) => ipvlan.mode == IpvlanMode::L2,
            Joint::Pair | Joint::Vlan | Joint::Switch => false,
        }
    }

    /// Returns the gateway that another machine is, if the container has a route by it. An ipvlan that
    /// routes asks no machine for the gateway.
    pub(crate) fn router(&self, scene: &Scene) -> Option<IpAddr> {
        if matches!(self.joint, Joint::Ipvlan(ipvlan) if ipvlan.mode != IpvlanMode::L2) {
            return None;
        }
        let mut gateways = self.attachment.gateways.iter().copied();
        gateways.find(|gateway| {
            gateway.is_ipv4() == self.address.is_ipv4()
                && self.has_route_by(*gateway)
                && scene.host.owner_of(*gateway).is_none()
        })
    }

    pub(crate) fn has_route_by(&self, gateway: IpAddr) -> bool {
        let mut hops = self.inside.routes.iter().flat_map(|route| &route.hops);
        hops.any(|hop| hop.via == Some(gateway))
    }

    pub(crate) fn family(&self) -> IpFamily {
        IpFamily::of(self.address)
    }

    pub(crate) fn mac(&self) -> Option<[u8; 6]> {
        mac(self.link)
    }

    /// The hardware addresses of a packet that the node is to forward.
    pub(crate) fn macs_out(&self) -> [Option<[u8; 6]>; 2] {
        [mac(self.link), mac(self.seen_by)]
    }

    /// Takes the container's first packet to an address through the node's filters at prerouting.
    pub(crate) fn enter(&self, host: &Namespace, to: IpAddr, with: Payload) -> WalkOutcome {
        let packet = Packet { macs: self.macs_out(), ..Packet::first(self.address, to, with) };
        let packet = packet.between(Some(&self.seen_by.name), None);
        walk(host, Layer::Ip, Hook::Prerouting, &packet)
    }
}

/// By what a container's packets leave, and the link of the node that takes them.
fn joint<'s>(scene: &'s Scene, link: &Link, attachment: &Attachment) -> Option<(Joint, &'s Link)> {
    let host = &scene.host;
    let end = host_end(host, link, attachment);
    if attachment.has_plugin("ovs") || end.is_some_and(|end| is_port_of_switch(host, end)) {
        let named = || attachment.host_links.iter().find_map(|name| host.link(name));
        let bridge = || host.link(network_link(scene, attachment)?);
        return Some((Joint::Switch, end.or_else(named).or_else(bridge)?));
    }
    if let Some(end) = end {
        return Some((Joint::Pair, end));
    }
    let joint = match link.kind.as_deref()? {
        "macvlan" => Joint::Macvlan(link.macvlan?),
        "ipvlan" => Joint::Ipvlan(link.ipvlan?),
        "vlan" => Joint::Vlan,
        _ => return None,
    };
    Some((joint, parent(scene, link, attachment)?))
}

/// The bridge or parent that a network's configuration names.
fn network_link<'s>(scene: &'s Scene, attachment: &Attachment) -> Option<&'s str> {
    let network = scene.networks.iter().find(|network| network.name == attachment.network)?;
    network.link.as_deref()
}

/// The parent of a container's link. Its number may be that of a link of yet another namespace, so
/// it must be the one that the network names, if that is known.
fn parent<'s>(scene: &'s Scene, link: &Link, attachment: &Attachment) -> Option<&'s Link> {
    link.peer_netnsid?;
    let parent = scene.host.link_of(link.peer?)?;
    let is_named = network_link(scene, attachment).is_none_or(|name| name == parent.name);
    is_named.then_some(parent)
}

fn is_port_of_switch(host: &Namespace, end: &Link) -> bool {
    let master = end.master.and_then(|index| host.link_of(index));
    master.is_some_and(|master| master.kind.as_deref() == Some("openvswitch"))
}

/// Says whether a link is a VLAN of a bridge.
fn is_vlan_of(link: &Link, bridge: &Link) -> bool {
    link.kind.as_deref() == Some("vlan") && link.peer == Some(bridge.index)
}

/// The port of a bridge of which a link is the other end.
fn port_to<'s>(host: &'s Namespace, link: &Link, bridge: &Link) -> Option<&'s Link> {
    if link.kind.as_deref() != Some("veth") || link.peer_netnsid.is_some() {
        return None;
    }
    host.link_of(link.peer?).filter(|port| port.master == Some(bridge.index))
}

/// The ports of a bridge that do not lead to containers.
pub(crate) fn uplinks_of<'s>(scene: &'s Scene, bridge: &Link) -> Vec<&'s Link> {
    let of_containers = super::links_of_containers(scene);
    let ports = scene.host.links.iter().filter(|link| {
        link.master == Some(bridge.index) && !of_containers.contains(link.name.as_str())
    });
    ports.collect()
}

/// The VRF to which a link belongs.
pub(crate) fn vrf_above<'s>(host: &'s Namespace, link: &Link) -> Option<&'s Link> {
    host.link_of(link.master?).filter(|master| master.vrf_table.is_some())
}

/// The end of a pair of links that is on the node.
fn host_end<'s>(host: &'s Namespace, link: &Link, attachment: &Attachment) -> Option<&'s Link> {
    if link.kind.as_deref() != Some("veth") {
        return None;
    }
    let fits = |end: &&Link| {
        end.kind.as_deref() == Some("veth")
            && end.peer == Some(link.index)
            && link.peer.is_none_or(|peer| peer == end.index)
    };
    let mut named = attachment.host_links.iter().filter_map(|name| host.link(name));
    named.find(fits).or_else(|| host.link_of(link.peer?).filter(fits))
}

/// Reads a hardware address, as `02:00:00:00:00:01`.
fn mac(link: &Link) -> Option<[u8; 6]> {
    let text = link.mac.as_deref()?;
    let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let bytes: Vec<u8> = bytes.collect::<Result<_, _>>().ok()?;
    bytes.try_into().ok()
}
