//! How packets come to published ports, and who takes them first.

use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use super::{FILTERS, others, say};
use crate::Look;
use crate::filter::{
    Change, Layer, NewDestination, Packet, Place, Port, WalkOutcome, walk, walk_changed,
};
use crate::finding::Finding;
use crate::model::filter::{Hook, Step};
use crate::model::{Container, Link, Port as PublishedPort, Scene, Transport};
use crate::path::{self, Site};
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
            for (hook, packets) in packets_to(look.scene, port, family, beyond) {
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

/// Returns what is sent to a published port, by the hook that translates it: from beyond the node,
/// and from its own programs.
fn packets_to(
    scene: &Scene,
    port: &PublishedPort,
    family: IpFamily,
    beyond: &[IpAddr],
) -> [(Hook, Vec<Packet>); 2] {
    let here = is_here(port, family).then(|| local(port, family));
    let from_outside = arriving(scene, port, family, beyond);
    [(Hook::Prerouting, from_outside), (Hook::Output, here.into_iter().collect())]
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
        let is_elsewhere = !leads_to(&new, own, port) && new != NewDestination::Unknown;
        if !is_elsewhere || common.as_ref().is_some_and(|common| *common != place) {
            return None;
        }
        common = Some(place);
    }
    common
}

/// Says whether a translation leads to a container's port.
fn leads_to(new: &NewDestination, own: IpAddr, port: &PublishedPort) -> bool {
    matches!(new, NewDestination::To(address, target)
        if *address == Some(own) && target.is_none_or(|target| target == port.container))
}

/// Returns the findings of rules that surely take from connection tracking what is sent to published
/// ports of a container, or the answers: these are then not translated, as they are otherwise.
pub(super) fn untracked(look: Look<'_>, site: &Site<'_>, beyond: &[IpAddr]) -> Vec<Finding> {
    let mut found = Vec::new();
    if !site.is_the_nodes() {
        return found;
    }
    for port in &site.attachment.ports {
        for (hook, packets) in packets_to(look.scene, port, site.family(), beyond) {
            let rules = exempting(look.scene, site, port, hook, &packets);
            if rules.is_empty() || has_proxy(look.scene, port) {
                continue;
            }
            if let Some(finding) = say::untracked(look, site, port, hook, &rules) {
                super::add(&mut found, finding);
            }
        }
    }
    found
}

/// Says whether a program takes what is not translated, and hands it on to the container: Docker's
/// proxy, or SYNPROXY, which answers the first packets of connections itself.
fn has_proxy(scene: &Scene, port: &PublishedPort) -> bool {
    let is_proxy = |program: &String| program.starts_with("docker-proxy");
    let mut listeners = scene.host.listeners.iter();
    let is_listening = listeners.any(|one| {
        one.transport == port.transport
            && one.at.port() == port.host
            && one.program.as_ref().is_some_and(is_proxy)
    });
    let is_named = |text: &str| text.to_ascii_lowercase().contains("synproxy");
    let filter = &scene.host.filter;
    let chains = filter.tables.iter().flat_map(|table| &table.chains);
    let mut steps = chains.flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
    let mut legacy = filter.legacy.iter().flat_map(|table| &table.rules);
    is_listening
        || (port.transport == Transport::Tcp
            && (steps.any(|step| match step {
                Step::Effect { name } | Step::Unknown { name } => is_named(name),
                _ => false,
            }) || legacy.any(|rule| is_named(rule))))
}

/// Returns the rules that exempt all of some packets to a published port, or their answers (`true`),
/// without which all are translated. If there are several, all of them must go.
fn exempting(
    scene: &Scene,
    site: &Site<'_>,
    port: &PublishedPort,
    hook: Hook,
    packets: &[Packet],
) -> Vec<(Place, bool)> {
    let mut all: Vec<(Place, bool)> = Vec::new();
    for packet in packets {
        let mut ignored = Vec::new();
        loop {
            match exempts(scene, site, port, hook, packet, &ignored) {
                Some(Some(one)) if ignored.len() < FILTERS && !ignored.contains(&one.0) => {
                    ignored.push(one.0.clone());
                    if !all.contains(&one) {
                        all.push(one);
                    }
                }
                Some(None) if !ignored.is_empty() => break,
                _ => return Vec::new(),
            }
        }
    }
    all
}

/// Returns the rule that exempts a packet to a published port, or its answer (`true`), if some rules
/// were not there; `None` if it is not known where the packet goes.
fn exempts(
    scene: &Scene,
    site: &Site<'_>,
    port: &PublishedPort,
    hook: Hook,
    packet: &Packet,
    ignored: &[Place],
) -> Option<Option<(Place, bool)>> {
    let change = Change { ignored, ..Change::default() };
    let at = |layer: Layer, hook: Hook, packet: &Packet| -> WalkOutcome {
        walk_changed(&scene.host, None, layer, hook, packet, change)
    };
    if hook == Hook::Prerouting
        && let Some(place) = at(Layer::Device, Hook::Ingress, packet).untracked
    {
        return Some(Some((place, false)));
    }
    let sent = at(Layer::Ip, hook, packet);
    if let Some(place) = sent.untracked {
        return Some(Some((place, false)));
    }
    let (_, new) = sent.destination.as_ref()?;
    if !leads_to(new, site.address, port) {
        return None;
    }
    // What the node's own programs send gets the address of the node on the container's network.
    let source = match hook {
        Hook::Output => path::address_of(site.seen_by, site.address.is_ipv4())?,
        _ => sent.packet.source,
    };
    let answer = Packet { source, ..sent.packet }.answer();
    let answer = answer.between(Some(&site.seen_by.name), None);
    Some(at(Layer::Ip, Hook::Prerouting, &answer).untracked.map(|place| (place, true)))
}
