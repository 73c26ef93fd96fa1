//! How packets come to published ports, and who takes them first.

use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use super::{others, say};
use crate::Look;
use crate::filter::{Layer, NewDestination, Packet, Place, Port, walk};
use crate::finding::Finding;
use crate::model::filter::Hook;
use crate::model::{Container, Link, Port as PublishedPort, Scene};
use crate::path;
use crate::whose::{self, Owner};

/// Returns the address of the node at which hosts beyond it reach a published port, and the link by
/// which they come; `None` if they do not, or if that is not known.
pub(super) fn entrance<'s>(
    scene: &'s Scene,
    family: IpFamily,
    port: &PublishedPort,
) -> Option<(IpAddr, &'s Link)> {
    let by = path::uplink(scene, family == IpFamily::V4)?;
    let at = match port.host_ip {
        Some(address) if !address.is_unspecified() => {
            let is_reached = IpFamily::of(address) == family
                && !address.is_loopback()
                && scene.host.owner_of(address).is_some();
            is_reached.then_some(address)?
        }
        Some(address) if IpFamily::of(address) != family => return None,
        _ => path::address_of(by, family == IpFamily::V4)?,
    };
    Some((at, by))
}

/// Says whether programs of the node reach a published port by loopback.
pub(super) fn is_here(port: &PublishedPort, family: IpFamily) -> bool {
    port.host_ip
        .is_none_or(|at| IpFamily::of(at) == family && (at.is_unspecified() || at.is_loopback()))
}

/// Returns hosts that may come by a link: those beyond the node, and some of its own subnet, since
/// some firewalls let only these in.
pub(super) fn clients<'c>(
    by: &'c Link,
    family: IpFamily,
    beyond: &'c [IpAddr],
) -> impl Iterator<Item = IpAddr> + 'c {
    let nets = by.addresses.iter().map(|own| own.address);
    let near =
        nets.filter(move |net| IpFamily::of(net.addr()) == family).filter_map(others::beside);
    beyond.iter().copied().chain(near)
}

/// Returns the rules of others that surely lead packets for published ports of a container
/// elsewhere. The container's own state does not matter for that.
pub(super) fn redirected(
    look: Look<'_>,
    container: &Container,
    family: IpFamily,
    beyond: &[IpAddr],
) -> Vec<Finding> {
    let mut found = Vec::new();
    for attachment in &container.attachments {
        let mut addresses = attachment.addresses.iter().map(IpNet::addr);
        let Some(own) = addresses.find(|address| IpFamily::of(*address) == family) else {
            continue;
        };
        for port in &attachment.ports {
            let from_outside = arriving(look.scene, port, family, beyond);
            let here = is_here(port, family).then(|| local(port, family));
            let here: Vec<Packet> = here.into_iter().collect();
            for (hook, packets) in [(Hook::Prerouting, from_outside), (Hook::Output, here)] {
                let place = taken(look.scene, hook, &packets, own, port);
                let is_foreign = |place: &Place| {
                    whose::owner_of(place, look.scene).is_none_or(|(owner, _)| owner != Owner::Ours)
                };
                if let Some(place) = place.filter(is_foreign) {
                    found.push(say::redirected(look, container, family, port, &place));
                }
            }
        }
    }
    found
}

fn arriving(
    scene: &Scene,
    port: &PublishedPort,
    family: IpFamily,
    beyond: &[IpAddr],
) -> Vec<Packet> {
    let Some((at, by)) = entrance(scene, family, port) else { return Vec::new() };
    let with = path::carries(port.transport, Port::Is(port.host));
    let packet = |from: IpAddr| Packet::first(from, at, with).between(Some(&by.name), None);
    clients(by, family, beyond).map(packet).collect()
}

fn local(port: &PublishedPort, family: IpFamily) -> Packet {
    let own = path::loopback(family == IpFamily::V4);
    let with = path::carries(port.transport, Port::Is(port.host));
    Packet::first(own, own, with).between(None, Some("lo"))
}

/// Returns the rule that leads all these packets elsewhere than to a container's port.
fn taken(
    scene: &Scene,
    hook: Hook,
    packets: &[Packet],
    own: IpAddr,
    port: &PublishedPort,
) -> Option<Place> {
    let mut common: Option<Place> = None;
    for packet in packets {
        let (place, new) = walk(&scene.host, Layer::Ip, hook, packet).destination?;
        let is_elsewhere = match new {
            NewDestination::To(address, target) => {
                address != Some(own) || target.is_some_and(|target| target != port.container)
            }
            NewDestination::Here(_) => true,
            NewDestination::Unknown => false,
        };
        if !is_elsewhere || common.as_ref().is_some_and(|common| *common != place) {
            return None;
        }
        common = Some(place);
    }
    common
}
