//! Filters of the node that stop what tunnels carry: the packets around it, which this node sends
//! to other nodes and gets from them.

use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use super::super::filters::{Ending, opened};
use super::super::tunnels::of_lost;
use super::{End, TunnelPath, helped};
use crate::Look;
use crate::filter::{
    AddedRule, Change, End as FilterEnd, Layer, Packet, Payload, Place, Port, State, walk,
    walk_changed,
};
use crate::finding::{Finding, Severity, WayKind};
use crate::model::Link;
use crate::model::filter::Hook;
use crate::path::address_of;
use crate::question::Answer;
use crate::routes::{RouteDecision, look_up};
use crate::trial::Trial;
use crate::whose;

/// A packet that a filter stops.
struct StoppedPacket {
    place: Place,
    refuses: bool,
    leaving: bool,
    port: u16,
    layer: Layer,
    packet: Packet,
}

/// What a filter stops.
struct StoppedTunnel<'s> {
    tunnel: &'s Link,
    packet: StoppedPacket,
    ipv4: bool,
    /// The other machines, as their subnet on a link of this node where they are there.
    ends: Vec<IpNet>,
    to: Vec<IpNet>,
}

pub(super) fn judge(look: Look<'_>, led: &[TunnelPath<'_>]) -> Vec<Finding> {
    let mut all: Vec<StoppedTunnel<'_>> = Vec::new();
    for one in led {
        let End::At(end) = one.end else { continue };
        for packet in stopped(look, one.tunnel, end) {
            let same = all.iter_mut().find(|known| {
                known.packet.place == packet.place
                    && known.tunnel.index == one.tunnel.index
                    && known.packet.leaving == packet.leaving
                    && known.packet.port == packet.port
            });
            let net = subnet(look, end);
            match same {
                Some(known) => {
                    known.to.push(one.route.to);
                    if !known.ends.contains(&net) {
                        known.ends.push(net);
                    }
                }
                None => all.push(StoppedTunnel {
                    tunnel: one.tunnel,
                    packet,
                    ipv4: end.is_ipv4(),
                    ends: vec![net],
                    to: vec![one.route.to],
                }),
            }
        }
    }
    all.into_iter().map(|one| told(look, &one)).collect()
}

/// The subnet of a link that has an address in it, or the address alone.
fn subnet(look: Look<'_>, end: IpAddr) -> IpNet {
    let near = match look_up(&look.scene.host, None, end, None, Some(0)) {
        RouteDecision::By { link, via: None, .. } => {
            let mut own = link.addresses.iter().map(|own| own.address);
            own.find(|net| net.contains(&end)).map(|net| net.trunc())
        }
        _ => None,
    };
    near.unwrap_or_else(|| IpNet::from(end))
}

/// What filters surely stop of what a tunnel and a machine at its end send each other.
fn stopped(look: Look<'_>, tunnel: &Link, end: IpAddr) -> Vec<StoppedPacket> {
    let host = &look.scene.host;
    let mut found = Vec::new();
    let RouteDecision::By { link: below, .. } = look_up(host, None, end, None, Some(0)) else {
        return found;
    };
    let own = tunnel.local.or_else(|| address_of(below, end.is_ipv4()));
    let (Some(own), Some([there, here])) = (own, ports(tunnel, end)) else { return found };
    let is_wireguard = tunnel.kind.as_deref() == Some("wireguard");
    let ends = |layer: Layer, hook: Hook, packet: &Packet| match walk(host, layer, hook, packet).end
    {
        FilterEnd::Stopped(place, reject) if !whose::is_policy(&place, false, look.scene) => {
            Some((place, reject.is_some(), layer, packet.clone()))
        }
        _ => None,
    };
    let with = |from: Port, to: u16| Payload::Udp { source: from, destination: Port::Is(to) };
    // VXLAN sends from changing ports, so that what comes in is no answer.
    let from = if is_wireguard { Port::Is(here) } else { Port::High };
    let out = Packet::first(own, end, with(from, there)).between(None, Some(&below.name));
    let left = ends(Layer::Ip, Hook::Output, &out)
        .or_else(|| ends(Layer::Ip, Hook::Postrouting, &out))
        .or_else(|| ends(Layer::Device, Hook::Egress, &out));
    let of = |(leaving, port)| {
        move |(place, refuses, layer, packet)| StoppedPacket {
            place,
            refuses,
            leaving,
            port,
            layer,
            packet,
        }
    };
    found.extend(left.map(of((true, there))));
    let from = if is_wireguard { Port::Is(there) } else { Port::High };
    let came = Packet::first(end, own, with(from, here)).between(Some(&below.name), None);
    let state = if is_wireguard { State::Answer } else { State::New };
    let came = Packet { state, ..came };
    let entered = ends(Layer::Device, Hook::Ingress, &came)
        .or_else(|| ends(Layer::Ip, Hook::Prerouting, &came))
        .or_else(|| ends(Layer::Ip, Hook::Input, &came));
    found.extend(entered.map(of((false, here))));
    found
}

/// The port at a tunnel's other end, and the node's own.
fn ports(tunnel: &Link, end: IpAddr) -> Option<[u16; 2]> {
    let own = tunnel.port?;
    match tunnel.kind.as_deref() {
        Some("vxlan") => Some([own, own]),
        Some("wireguard") => {
            let mut peers = tunnel.peers.iter().flatten().filter_map(|peer| peer.endpoint);
            Some([peers.find(|peer| peer.ip() == end)?.port(), own])
        }
        _ => None,
    }
}

fn told(look: Look<'_>, one: &StoppedTunnel<'_>) -> Finding {
    let StoppedTunnel { tunnel, packet: stopped, .. } = one;
    let StoppedPacket { place, leaving, port, refuses, layer, packet } = stopped;
    let name = &tunnel.name;
    let trial = tried(look, one);
    let does = if *refuses { "refuses" } else { "drops" };
    let what = match leaving {
        true => "what this node sends to other nodes by it",
        false => "what other nodes send to this one by it",
    };
    let says = format!("tunnel {name} carries nothing: {} {does} {what}", place.name());
    let finding = Finding::error("tunnel-dropped", format!("{name}: {}", place.name()), says)
        .at(place.to_string())
        .seen(format!(
            "by the rules as they are, a packet of UDP to port {port} {} ends there{}",
            if *leaving { "of another node" } else { "of this node" },
            match trial {
                Trial::Never => "; no probe has tried the tunnel",
                Trial::Works => "; a probe through the tunnel was answered",
                Trial::Fails => "",
            }
        ));
    // Nothing that somebody needs is certain to be lost.
    let severity = if trial == Trial::Fails { Severity::Error } else { Severity::Warning };
    let finding = Finding { severity, ..finding };
    let finding = Finding { whose: whose::of_place(place, look.scene), ..finding };
    let family = if one.ipv4 { IpFamily::V4 } else { IpFamily::V6 };
    let nets: &[IpNet] = if *leaving { &[] } else { &one.ends };
    let ending = |added: &[AddedRule]| {
        let change = Change { added, ..Change::default() };
        let host = &look.scene.host;
        Ending::of_walk(walk_changed(host, None, *layer, place.hook, packet, change).end, place)
    };
    let finding = helped(finding, opened(look.scene, place, nets, *port, family, &ending));
    let families: Vec<bool> = one.to.iter().map(|to| to.addr().is_ipv4()).collect();
    let mut finding = finding;
    for (family, ipv4) in [(IpFamily::V4, true), (IpFamily::V6, false)] {
        if families.contains(&ipv4) {
            finding = finding.breaks(WayKind::Nodes, Some(family));
        }
    }
    of_lost(look, finding, |address| one.to.iter().any(|to| to.contains(&address)))
}

/// Returns what probes through a tunnel show.
fn tried(look: Look<'_>, one: &StoppedTunnel<'_>) -> Trial {
    let shown = look.answers.all.iter().filter_map(|(question, answer)| {
        let to = question.asked.destination()?;
        let is_by_it = one.to.iter().any(|net| net.contains(&to));
        is_by_it.then(|| match answer {
            Answer::NotAsked { .. } | Answer::NoPort { .. } => Trial::Never,
            answer if answer.is_lost() => Trial::Fails,
            _ => Trial::Works,
        })
    });
    // One that is answered shows that the tunnel carries something.
    shown.fold(Trial::Never, |all, one| match (all, one) {
        (Trial::Works, _) | (_, Trial::Works) => Trial::Works,
        (all, one) => all.and(one),
    })
}
