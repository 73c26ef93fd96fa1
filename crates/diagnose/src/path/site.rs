//! How a container is connected to the node.

use std::net::IpAddr;

use ipnet::IpNet;
use scene::{Attachment, Container, Link, Namespace, Scene};

use crate::finding::Family;

/// A container's attachment to the node, by a pair of veth links, for one IP version.
#[derive(Debug, Clone)]
pub struct Site<'s> {
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
    /// The link's other end, on the node.
    pub host_end: &'s Link,
    /// The bridge of which that is a port.
    pub bridge: Option<&'s Link>,
    /// The link by which the node's IP sees the container: the bridge, a link above it, or the
    /// other end.
    pub seen_by: &'s Link,
}

impl<'s> Site<'s> {
    /// Finds it out; `None` if the container is connected in another way, or if that is not known.
    #[must_use]
    pub fn of(
        scene: &'s Scene,
        container: &'s Container,
        attachment: &'s Attachment,
        family: Family,
    ) -> Option<Self> {
        let is_of = |address: IpAddr| address.is_ipv4() == (family == Family::V4);
        let inside = container.inside.as_ref()?;
        let link = inside.link(&attachment.ifname)?;
        let has = |address: IpAddr| link.addresses.iter().any(|own| own.address.addr() == address);
        // An address that is gone is told by CHECK; what else stops its packets is so all the same.
        let reported = || attachment.addresses.iter().map(IpNet::addr).filter(|own| is_of(*own));
        let address = reported().find(|own| has(*own)).or_else(|| reported().next())?;
        let host = &scene.host;
        let host_end = host_end(host, link, attachment)?;
        let above = match host_end.master {
            Some(index) => Some(host.link_of(index)?),
            None => None,
        };
        // The packets of a VRF pass some hooks twice.
        let bridge = match above {
            None => None,
            Some(bridge) if bridge.kind.as_deref() == Some("bridge") && bridge.master.is_none() => {
                Some(bridge)
            }
            Some(_) => return None,
        };
        let mut gateways = attachment.gateways.iter().copied();
        let gateway = gateways.find(|gateway| is_of(*gateway) && host.owner_of(*gateway).is_some());
        let seen_by = match (bridge, gateway.and_then(|gateway| host.owner_of(gateway))) {
            (None, _) => host_end,
            (Some(bridge), Some(owner))
                if owner.peer == Some(bridge.index) && owner.kind.as_deref() == Some("vlan") =>
            {
                owner
            }
            (Some(bridge), _) => bridge,
        };
        Some(Site {
            container,
            attachment,
            inside,
            link,
            address,
            gateway,
            host_end,
            bridge,
            seen_by,
        })
    }

    /// Returns the sites of a container.
    pub fn all(
        scene: &'s Scene,
        container: &'s Container,
        family: Family,
    ) -> impl Iterator<Item = Self> {
        let attachments = container.attachments.iter();
        attachments.filter_map(move |attachment| Site::of(scene, container, attachment, family))
    }

    pub(crate) fn family(&self) -> Family {
        if self.address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    pub(crate) fn mac(&self) -> Option<[u8; 6]> {
        mac(self.link)
    }

    /// The hardware addresses of a packet that the node is to forward.
    pub(crate) fn macs_out(&self) -> [Option<[u8; 6]>; 2] {
        [mac(self.link), mac(self.seen_by)]
    }
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
