//! Tunnels of the node: peers of WireGuard, sizes, and checksums that are left to the links below.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use super::{Rule, containers, is_link_local, targets};
use crate::Look;
use crate::finding::{Finding, Help};
use crate::model::{Link, Namespace, Part, Route, RouteKind, Transport};
use crate::path::Site;
use crate::question::{Answer, Probe, Question};
use crate::routes::{RouteDecision, look_up};

pub(super) const RULE: Rule = Rule {
    judges: "tunnels",
    ids: &["peer-not-allowed", "tunnel-mtu", "tunnel-checksums"],
    needs: &[Part::Links, Part::Routes],
    asks,
    judge,
    ..Rule::NONE
};

/// The origin of routes that the kernel makes for addresses (RTPROT_KERNEL).
const BY_KERNEL: u8 = 2;

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for link in &look.scene.host.links {
        found.extend(not_allowed(look, link));
        found.extend(too_large(look, link));
    }
    found.extend(checksums(look));
    found
}

/// Routes by a WireGuard tunnel whose destinations no peer has.
fn not_allowed(look: Look<'_>, link: &Link) -> Vec<Finding> {
    let Some(peers) = &link.peers else { return Vec::new() };
    let has = |to: &IpNet| {
        let mut nets = peers.iter().flat_map(|peer| &peer.allowed);
        nets.any(|net| net.contains(to) || to.contains(net))
    };
    let routes = look.scene.host.routes.iter().filter(|route| {
        route.kind == RouteKind::Unicast
            && route.protocol != Some(BY_KERNEL)
            && route.hops.iter().any(|hop| hop.link == Some(link.index))
            && !has(&route.to)
    });
    let name = &link.name;
    let told = |to: IpNet| {
        let says = format!(
            "the route to {to} leads to WireGuard's {name}, but none of its peers is allowed these addresses, so packets are dropped"
        );
        let fix = match &peers[..] {
            [only] => {
                let all = only.allowed.iter().chain([&to]).map(IpNet::to_string);
                let all: Vec<String> = all.collect();
                Help::Command(format!(
                    "wg set {name} peer {} allowed-ips {}",
                    only.key,
                    all.join(",")
                ))
            }
            [] => Help::Advice(format!(
                "give {name} its peer: wg set {name} peer KEY allowed-ips {to}"
            )),
            _ => Help::Advice(format!(
                "add {to} to the allowed-ips of its peer: wg show {name} allowed-ips"
            )),
        };
        let finding = Finding::error("peer-not-allowed", format!("{name}: {to}"), says)
            .at(format!("route {to} dev {name}"))
            .seen(format!("{name} has {} peers: wg show {name} allowed-ips", peers.len()))
            .help(fix);
        of_lost(look, finding, |address| to.contains(&address))
    };
    routes.map(|route| told(route.to)).collect()
}

/// Adds whose probes to some addresses were lost, and the ways that broke.
pub(super) fn of_lost(
    look: Look<'_>,
    finding: Finding,
    is_there: impl Fn(IpAddr) -> bool,
) -> Finding {
    let mut finding = finding;
    for (question, answer) in &look.answers.all {
        let Some(to) = question.asked.destination() else { continue };
        let kind = question.asked.way();
        let is_lost = matches!(
            answer,
            Answer::Silent { .. } | Answer::Unreachable { .. } | Answer::UpTo { .. }
        );
        let Some(from) = question.from.as_ref().filter(|_| is_lost && is_there(to)) else {
            continue;
        };
        if !finding.hits.contains(from) {
            finding.hits.push(from.clone());
        }
        let way = Some(IpFamily::of(to));
        if !finding.breaks.iter().any(|broken| broken.kind == kind && broken.family == way) {
            finding = finding.breaks(kind, way);
        }
    }
    finding
}

/// How many bytes a tunnel adds to a packet of IP, at least: over IPv4.
fn overhead(link: &Link) -> Option<u32> {
    match link.kind.as_deref() {
        // RFC 7348 §5: Ethernet, VXLAN, UDP, IP.
        Some("vxlan") if !link.external => Some(50),
        // linux drivers/net/wireguard/messages.h: the header, the authentication; UDP, IP.
        Some("wireguard") => Some(60),
        _ => None,
    }
}

/// How many other ends of a tunnel are asked.
const ENDS: usize = 4;

/// The smallest MTU with which a link has IPv6 (RFC 8200 §5).
const SMALLEST: u32 = 1280;

/// The other ends of a tunnel, as far as the link itself names them. Who is in a group of multicast
/// is not known.
fn ends(link: &Link) -> impl Iterator<Item = IpAddr> + '_ {
    let endpoints = link.peers.iter().flatten().filter_map(|peer| peer.endpoint);
    let entries = link.ends.iter().flatten().map(|end| end.to);
    let all = endpoints.map(|endpoint| endpoint.ip()).chain(link.remote).chain(entries);
    all.filter(|end| !end.is_multicast()).take(ENDS)
}

/// The routers of routes by a VXLAN tunnel: its other ends, as they are called in it.
fn routers<'n>(host: &'n Namespace, link: &'n Link) -> impl Iterator<Item = IpAddr> + 'n {
    let routes = host.routes.iter();
    routes.filter_map(|route| router(host, route, link)).take(ENDS)
}

/// Returns the router of a route by a VXLAN tunnel, if it has an address that is reached by the tunnel
/// alone. That of some programs is the address outside the tunnel.
pub(super) fn router(host: &Namespace, route: &Route, tunnel: &Link) -> Option<IpAddr> {
    let mut hops = route.hops.iter().filter(|hop| hop.link == Some(tunnel.index));
    let via = hops.find_map(|hop| hop.via)?;
    let is_vxlan = tunnel.kind.as_deref() == Some("vxlan");
    if !is_vxlan || is_link_local(via) {
        return None;
    }
    match look_up(host, None, via, None, Some(0)) {
        RouteDecision::By { link, .. } if link.index == tunnel.index => Some(via),
        _ => None,
    }
}

/// The node asks the other end through the tunnel how large packets it may send there.
fn size_inside(to: IpAddr, link: &Link) -> Question {
    Question { from: None, asked: Probe::Size { to, up_to: link.mtu } }
}

/// The link that carries a tunnel's packets.
fn below<'n>(host: &'n Namespace, link: &Link) -> Option<&'n Link> {
    if let Some(parent) = link.peer.filter(|_| link.peer_netnsid.is_none()) {
        return host.link_of(parent);
    }
    ends(link).find_map(|end| match look_up(host, None, end, None, Some(0)) {
        RouteDecision::By { link: below, .. } if below.index != link.index => Some(below),
        _ => None,
    })
}

/// A tunnel that is up and used, the link below it, and what it adds to a packet.
fn used<'s>(look: Look<'s>, link: &Link) -> Option<(&'s Link, u32)> {
    let host = &look.scene.host;
    let overhead = overhead(link)?;
    let is_route =
        |route: &crate::model::Route| route.hops.iter().any(|hop| hop.link == Some(link.index));
    let is_used = link.master.is_some() || host.routes.iter().any(is_route);
    let below = below(host, link).filter(|_| is_used && link.up)?;
    Some((below, overhead))
}

/// The node asks the other end how large packets it may send there.
fn size(to: IpAddr, below: &Link) -> Question {
    Question { from: None, asked: Probe::Size { to, up_to: below.mtu } }
}

/// Packets that fit a tunnel do not fit the link below it, or are lost behind that.
fn too_large(look: Look<'_>, link: &Link) -> Option<Finding> {
    let host = &look.scene.host;
    let (below, overhead) = used(look, link)?;
    let (name, mtu) = (&link.name, link.mtu);
    let with = mtu.saturating_add(overhead);
    let lost = ends(link).find_map(|to| match look.answers.to(&size(to, below)) {
        Some(Answer::UpTo { answered, .. }) if *answered < with => Some((to, *answered)),
        _ => None,
    });
    let below_fits = lost.map_or(below.mtu, |(_, answered)| answered).checked_sub(overhead)?;
    let inside = routers(host, link).find_map(|to| match look.answers.to(&size_inside(to, link)) {
        Some(Answer::UpTo { answered, .. }) if *answered < below_fits => Some((to, *answered)),
        _ => None,
    });
    let fits = inside.map_or(below_fits, |(_, answered)| answered);
    if mtu <= fits {
        return None;
    }
    let leads_there = |to: IpAddr| {
        let routed = look_up(host, None, to, None, Some(0));
        matches!(routed, RouteDecision::By { link: out, .. } if out.index == link.index)
    };
    // Other ends may answer no large packets although they take them.
    let is_proved = look.answers.all.iter().any(|(question, answer)| match &question.asked {
        Probe::Size { to, .. } => {
            matches!(answer, Answer::UpTo { answered, .. } if *answered < mtu) && leads_there(*to)
        }
        _ => false,
    });
    let says = format!(
        "tunnel {name} takes packets of up to {mtu} bytes, but the network below carries only {fits}"
    );
    let seen = match (inside, lost) {
        (Some((to, answered)), _) => format!(
            "{to}, the other end, answers packets of {answered} bytes through {name}, but larger ones are lost without an error"
        ),
        (None, Some((to, answered))) => format!(
            "{name} adds {overhead} bytes to each; its other end {to} answers packets of {answered} bytes, but larger ones are lost without an error"
        ),
        (None, None) => format!(
            "{name} adds {overhead} bytes to each, and the MTU of {} is {}: larger ones are sent in fragments, which many networks drop",
            below.name, below.mtu
        ),
    };
    let fix = if fits < SMALLEST {
        Help::Advice(format!(
            "raise the MTU of the network below {name}: IPv6 needs {SMALLEST} bytes in it"
        ))
    } else {
        Help::Command(format!("ip link set dev {name} mtu {fits}"))
    };
    let finding = Finding::warning("tunnel-mtu", name.clone(), says).seen(seen).help(fix);
    let finding = finding.advise(format!(
        "do the same at the other end; the program that made {name}, such as flanneld, sets its own value when it starts again, which it takes from the link below"
    ));
    if !is_proved {
        return Some(finding);
    }
    let error = Finding { severity: crate::Severity::Error, ..finding };
    Some(of_lost(look, error, leads_there))
}

/// The tunnel by which a container reaches an address, if that leaves checksums to others.
fn tunnel<'s>(look: Look<'s>, id: &str, to: IpAddr) -> Option<&'s Link> {
    let container = look.scene.container(id)?;
    let host = &look.scene.host;
    let mut sites = Site::every(look.scene, container, IpFamily::of(to));
    sites.find_map(|site| {
        let iif = Some(site.seen_by.name.as_str());
        match look_up(host, Some(site.address), to, iif, Some(0)) {
            RouteDecision::By { link, .. } if link.tx_checksums == Some(true) => Some(link),
            _ => None,
        }
    })
}

/// Echo requests have checksums of their own making: they tell whether a tunnel carries anything.
fn asks(look: Look<'_>) -> Vec<Question> {
    let mut questions = Vec::new();
    for container in containers(look) {
        for to in targets(look, container) {
            if tunnel(look, &container.id, to).is_some() {
                let from = Some(container.id.clone());
                questions.push(Question { from, asked: Probe::Echo { to } });
            }
        }
    }
    for link in &look.scene.host.links {
        if let Some((below, _)) = used(look, link) {
            questions.extend(ends(link).map(|to| size(to, below)));
            questions.extend(routers(&look.scene.host, link).map(|to| size_inside(to, link)));
        }
    }
    questions
}

/// Echo requests come through a tunnel, and nothing that has a checksum of TCP or UDP.
fn checksums(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (question, answer) in &look.answers.all {
        let (Some(from), Answer::Silent { hops }) = (&question.from, answer) else { continue };
        // What is dropped on this node has another cause.
        if hops.iter().any(|hop| hop.dropped.is_some()) {
            continue;
        }
        let Some((at, by)) = question.asked.program() else { continue };
        let (to, kind) = (at.ip(), question.asked.way());
        let what = match by {
            Transport::Udp => "a question to port 53",
            Transport::Tcp => "a connection",
        };
        let echo = Question { from: Some(from.clone()), asked: Probe::Echo { to } };
        if !matches!(look.answers.to(&echo), Some(Answer::Reached { .. })) {
            continue;
        }
        let Some(link) = tunnel(look, from, to) else { continue };
        let name = &link.name;
        let says = format!(
            "tunnel {name} carries echo requests to {to}, but neither TCP nor UDP: the network below it seems to deliver wrong checksums, or a filter at {to} lets nothing else pass"
        );
        found.push(
            Finding::warning("tunnel-checksums", name.clone(), says)
                .at(format!("tx-checksum-ip-generic of {name} is on"))
                .seen(format!("{to} answers an echo request, and not {what}"))
                .hits(from.clone())
                .fix(format!("ethtool -K {name} tx-checksum-ip-generic off"))
                .advise("do the same at the tunnel's other end")
                .breaks(kind, Some(IpFamily::of(to))),
        );
    }
    found
}
