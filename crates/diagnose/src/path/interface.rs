//! An interface by which a container asks others for their hardware addresses.

use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use super::{Joint, Site};
use crate::model::{Attachment, Container, IpvlanMode, Link, Namespace, Scene};

/// An interface of an attachment, for one IP version.
#[derive(Debug, Clone)]
pub(crate) struct Interface<'s> {
    pub(crate) container: &'s Container,
    pub(crate) attachment: &'s Attachment,
    pub(crate) inside: &'s Namespace,
    pub(crate) link: &'s Link,
    pub(crate) family: IpFamily,
    /// How it is connected to the node; `None`: the node has lent it a device of its own
    /// (host-device), and what the container sends does not pass the node.
    pub(crate) site: Option<Site<'s>>,
}

impl<'s> Interface<'s> {
    /// Returns those of a container. One of Open vSwitch is left out, as the switch decides, and so is
    /// an ipvlan that routes, as it asks nobody.
    pub(crate) fn every(
        scene: &'s Scene,
        container: &'s Container,
        family: IpFamily,
    ) -> impl Iterator<Item = Self> {
        let attachments = container.attachments.iter();
        attachments.filter_map(move |attachment| Self::of(scene, container, attachment, family))
    }

    fn of(
        scene: &'s Scene,
        container: &'s Container,
        attachment: &'s Attachment,
        family: IpFamily,
    ) -> Option<Self> {
        let inside = container.inside.as_ref()?;
        let link = inside.link(&attachment.ifname)?;
        let site = Site::of(scene, container, attachment, family);
        let asks = match site.as_ref().map(|site| site.joint) {
            Some(Joint::Switch) => false,
            Some(Joint::Ipvlan(ipvlan)) => ipvlan.mode == IpvlanMode::L2,
            Some(_) => true,
            None => is_lent(attachment, link),
        };
        let one = Interface { container, attachment, inside, link, family, site };
        (asks && one.address().is_some()).then_some(one)
    }

    /// Returns its address, as ADD reported it.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        let is_of = |address: &IpAddr| address.is_ipv4() == (self.family == IpFamily::V4);
        let mut reported = self.attachment.addresses.iter().map(IpNet::addr);
        match &self.site {
            Some(site) => Some(site.address),
            None => reported.find(is_of),
        }
    }

    /// Returns the gateway that another machine is, if the container has a route by it.
    pub(crate) fn router(&self, scene: &Scene) -> Option<IpAddr> {
        if let Some(site) = &self.site {
            return site.router(scene);
        }
        let is_of = |address: &IpAddr| address.is_ipv4() == (self.family == IpFamily::V4);
        let hops = || self.inside.routes.iter().flat_map(|route| &route.hops);
        let mut gateways = self.attachment.gateways.iter().copied().filter(is_of);
        gateways.find(|gateway| {
            hops().any(|hop| hop.via == Some(*gateway) && hop.link == Some(self.link.index))
                && scene.host.owner_of(*gateway).is_none()
        })
    }

    /// Says whether a question can be asked by it. Without a carrier the kernel refuses to send.
    pub(crate) fn may_ask(&self) -> bool {
        may_ask(self.link, self.family, None)
    }
}

/// Says whether an interface is a device that the node has lent.
fn is_lent(attachment: &Attachment, link: &Link) -> bool {
    let is_device = link.kind.is_none() && link.name != "lo";
    (is_device || attachment.has_plugin("host-device")) && link.mac.is_some()
}

/// Says whether others can be asked by a link for their hardware addresses: for IPv6 only from an
/// address, which is not `except`.
pub(crate) fn may_ask(link: &Link, family: IpFamily, except: Option<IpAddr>) -> bool {
    let mut own = link.addresses.iter().map(|own| own.address.addr());
    let has_address =
        family == IpFamily::V4 || own.any(|address| address.is_ipv6() && Some(address) != except);
    link.up && link.carrier && link.mac.is_some() && !link.no_arp && has_address
}
