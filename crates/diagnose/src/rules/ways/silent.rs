//! What probes find broken. Mostly something else explains it; where nothing does, at least
//! the way is named.

use std::net::{IpAddr, SocketAddr};

use net::IpFamily;

use super::super::filters::denied::{Owners, is_denied};
use super::super::inside::speaks;
use super::super::{asks_links, containers, leads_beyond, with_router};
use super::taken::taken;
use super::{obstacles, samples};
use crate::Look;
use crate::filter::{End, Layer, Packet, Truth, walk};
use crate::finding::{Finding, Help, Severity, WayKind};
use crate::model::filter::Hook;
use crate::model::{Attachment, Container, Namespace, Part, Port, Transport};
use crate::path::{Outcome, Site, Trip, address_of, echo, follow_filters, loopback};
use crate::question::{Answer, Hop, Probe, Question};
use crate::restored;
use crate::routes::{RouteDecision, look_up};

const FAMILIES: [IpFamily; 2] = IpFamily::ALL;

/// Each container asks who has its gateway's address, and the gateway for an answer.
pub(super) fn asks_gateways(look: Look<'_>) -> Vec<Question> {
    let mut questions = Vec::new();
    for container in containers(look) {
        let from = |asked: Probe| Question { from: Some(container.id.clone()), asked };
        for family in FAMILIES {
            for site in Site::all(look.scene, container, family) {
                if let Some(gateway) = site.gateway {
                    if is_routed(&site, gateway) {
                        questions.push(from(Probe::Echo { to: gateway }));
                    }
                    if asks_links(look) {
                        let ifname = &site.attachment.ifname;
                        questions.push(Question::who_has(Some(container), ifname, gateway));
                    }
                }
            }
        }
    }
    questions
}

pub(super) fn gateways(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        for family in FAMILIES {
            let sites = Site::all(look.scene, container, family);
            found.extend(sites.filter_map(|site| gateway(look, &site)));
        }
    }
    found
}

pub(super) fn asks(look: Look<'_>) -> Vec<Question> {
    let mut questions = Vec::new();
    for container in containers(look) {
        let from = |asked: Probe| Question { from: Some(container.id.clone()), asked };
        for family in FAMILIES {
            for site in Site::all(look.scene, container, family) {
                for port in &site.attachment.ports {
                    let ends = ends(look, &site, port).into_iter().map(|(to, _)| to);
                    questions.extend(ends.filter_map(|to| of_node(port, to)));
                }
            }
            if is_tried(look, container, family) {
                for asked in outside(look, container, family) {
                    if let Probe::Connect { to } = &asked {
                        questions.extend(obstacles::asks(look, container, *to));
                    }
                    questions.push(Question { from: None, asked: asked.clone() });
                    questions.push(from(asked));
                }
            }
        }
    }
    questions
}

fn of_node(port: &Port, to: SocketAddr) -> Option<Question> {
    Question::connect(None, port.transport, to)
}

/// Says whether a container's way beyond the node is tried. Who asks for one container and one
/// machine wants to know whether the one reaches the other, whatever the networks are meant for.
fn is_tried(look: Look<'_>, container: &Container, family: IpFamily) -> bool {
    leads_beyond(look.scene, container, family) || (look.only.is_some() && look.to.is_some())
}

/// What is asked beyond the node, by a container and by the node itself. Of all containers, one that
/// has no route is meant to have none, or CHECK tells that it is gone.
fn outside(look: Look<'_>, container: &Container, family: IpFamily) -> Vec<Probe> {
    let is_of = |address: IpAddr| address.is_ipv4() == (family == IpFamily::V4);
    let is_routed = |to: IpAddr| has_route(container, to);
    let is_meant = |to: IpAddr| is_of(to) && (look.only.is_some() || is_routed(to));
    let named = look.to.filter(|to| is_meant(to.ip()));
    let leads_beyond = leads_beyond(look.scene, container, family);
    let next = next_router(look, family).filter(|to| leads_beyond && is_routed(*to));
    let named = named.map(|to| Probe::Connect { to });
    named.into_iter().chain(next.map(|to| Probe::Echo { to })).collect()
}

/// Says whether a container has a route to an address, from one of its own.
pub(in crate::rules) fn has_route(container: &Container, to: IpAddr) -> bool {
    let Some(inside) = &container.inside else { return false };
    let nets = container.attachments.iter().flat_map(|attachment| &attachment.addresses);
    let mut own = nets.map(ipnet::IpNet::addr).filter(|own| own.is_ipv4() == to.is_ipv4());
    own.any(|own| matches!(look_up(inside, Some(own), to, None, Some(0)), RouteDecision::By { .. }))
}

/// Says whether a container has a route to an address for a socket that is bound to no link: a link
/// in a VRF of the container's own has its routes elsewhere.
fn is_routed(site: &Site<'_>, to: IpAddr) -> bool {
    let routed = look_up(site.inside, Some(site.address), to, None, Some(0));
    matches!(routed, RouteDecision::By { .. })
}

/// The router to which the node sends what is for the Internet, if it can be asked from elsewhere.
pub(in crate::rules) fn next_router(look: Look<'_>, family: IpFamily) -> Option<IpAddr> {
    let [to, ..] = samples(family);
    match look_up(&look.scene.host, None, to, None, Some(0)) {
        RouteDecision::By { via: Some(via), .. } => match via {
            IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80 => None,
            other => Some(other),
        },
        _ => None,
    }
}

/// Where a published port can be reached from the node, with the way that this tries: the
/// container's own address, the node's, and loopback.
fn ends(look: Look<'_>, site: &Site<'_>, port: &Port) -> Vec<(SocketAddr, WayKind)> {
    let host = &look.scene.host;
    let is_of = |address: IpAddr| address.is_ipv4() == site.address.is_ipv4();
    let mut ends = vec![(SocketAddr::new(site.address, port.container), WayKind::FromNode)];
    let loopback = loopback(site.address.is_ipv4());
    let [sample, ..] = samples(site.family());
    let uplink = match look_up(host, None, sample, None, Some(0)) {
        RouteDecision::By { link, .. } => address_of(link, site.address.is_ipv4()),
        _ => None,
    };
    let at = |address: IpAddr| SocketAddr::new(address, port.host);
    match port.host_ip {
        Some(address) if !address.is_unspecified() => {
            if is_of(address) && address.is_loopback() {
                ends.push((at(address), WayKind::PublishedHere));
            } else if is_of(address) && host.owner_of(address).is_some() {
                ends.push((at(address), WayKind::Published));
            }
        }
        _ => {
            ends.extend(uplink.map(|address| (at(address), WayKind::Published)));
            ends.push((at(loopback), WayKind::PublishedHere));
        }
    }
    ends
}

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let owners = Owners::of(look.scene);
    let mut found = Vec::new();
    for container in containers(look) {
        for family in FAMILIES {
            for site in Site::all(look.scene, container, family) {
                for port in &site.attachment.ports {
                    let ends = ends(look, &site, port);
                    found.extend(
                        ends.into_iter().filter_map(|(to, kind)| {
                            port_or_container(look, &site, port, to, kind)
                        }),
                    );
                }
            }
            if is_tried(look, container, family) {
                found.extend(beyond(look, &owners, container, family));
            }
        }
    }
    found
}

/// Says where a probe ended; `None` if it arrived.
fn lost(answer: &Answer) -> Option<String> {
    let end = |hops: &[Hop]| match hops.iter().rev().find(|hop| hop.dropped.is_some()) {
        Some(hop) => {
            let (function, reason) = hop.dropped.clone().unwrap_or_default();
            let container = hop.container.as_deref().unwrap_or("the node");
            let link = hop.link.as_deref().unwrap_or("a link");
            let what = if hop.back { "the answer" } else { "it" };
            format!("; {what} ended at {link} of {container}: {function}, {reason}")
        }
        None => String::new(),
    };
    match answer {
        Answer::Silent { hops } => Some(format!("was not answered{}", end(hops))),
        Answer::Unreachable { error, hops } => Some(format!("failed: {error}{}", end(hops))),
        Answer::Reached { .. }
        | Answer::Refused
        | Answer::UpTo { .. }
        | Answer::Owners { .. }
        | Answer::Named { .. }
        | Answer::OneKind { .. }
        | Answer::NoPort { .. }
        | Answer::HopsLeft { .. }
        | Answer::Addresses { .. }
        | Answer::NotAsked { .. } => None,
    }
}

/// No machine answers for the gateway, or the node does not answer although no filter stops it.
fn gateway(look: Look<'_>, site: &Site<'_>) -> Option<Finding> {
    let gateway = site.gateway?;
    let who = Question::who_has(Some(site.container), &site.attachment.ifname, gateway);
    let id = Some(site.container.id.clone());
    let echo = Question { from: id, asked: Probe::Echo { to: gateway } };
    let (severity, seen) = match look.answers.to(&who).and_then(Answer::has_owner) {
        Some(false) => {
            let seen = format!("no machine answered for {gateway} on {}", site.attachment.ifname);
            (Severity::Error, seen)
        }
        _ => {
            let lost = look.answers.to(&echo).and_then(lost)?;
            let takes = takes_echo(look, site, gateway);
            let is_unclear = takes == Truth::Maybe && !hears_anything(look, site, gateway);
            if takes != Truth::Yes && !is_unclear {
                return None;
            }
            // Such a filter may drop echo requests and let all else pass.
            let places = [None, Some(site.container.id.as_str())];
            let is_certain =
                !is_unclear && places.iter().all(|of| !look.scene.lacks(Part::Unjudged, *of));
            let severity = if is_certain { Severity::Error } else { Severity::Unknown };
            (severity, format!("an echo request to {gateway} {lost}"))
        }
    };
    let called = site.container.called();
    let says = format!("the gateway {gateway} does not answer {called}");
    let finding = Finding::error("gateway-silent", format!("{called}: {gateway}"), says);
    let finding = Finding { severity, ..finding }.seen(seen).hits(site.container.id.clone());
    let finding = repair(look, site).into_iter().fold(finding, Finding::help);
    let kinds = [WayKind::Gateway, WayKind::Outside, WayKind::Names];
    Some(kinds.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(site.family()))))
}

/// Says whether a container got any answer of its gateway, or by it.
fn hears_anything(look: Look<'_>, site: &Site<'_>, gateway: IpAddr) -> bool {
    let nets = &site.attachment.addresses;
    look.answers.from(Some(&site.container.id)).any(|(asked, answer)| {
        let (is_heard, of) = (answer.is_of_other_end(), asked.address());
        let is_by_gateway = of == gateway || !nets.iter().any(|net| net.contains(&of));
        (is_heard || answer.has_owner() == Some(true))
            && is_by_gateway
            && IpFamily::of(of) == site.family()
    })
}

/// What helps a container that is not reached: a repair restores only what CHECK names.
fn repair(look: Look<'_>, site: &Site<'_>) -> Vec<Help> {
    if site.container.attachments.iter().any(|one| one.dockers) {
        return restored::of(look.scene, site.container);
    }
    let differs =
        |attachment: &Attachment| !attachment.drifts.is_empty() || attachment.not_checked.is_some();
    let called = site.container.called();
    match site.container.attachments.iter().any(differs) {
        true => restored::of(look.scene, site.container),
        false => vec![Help::Advice(match look.answers.all.is_empty() {
            true => format!("let doctor send probes: {called} is as ADD left it"),
            false => format!(
                "look at where the probe ended: {called} is as ADD left it, so a repair changes nothing"
            ),
        })],
    }
}

/// Says whether a container sends an echo request, the node takes it and sends the answer, and the
/// container takes that: many firewalls, of either, drop it, and nothing else.
fn takes_echo(look: Look<'_>, site: &Site<'_>, gateway: IpAddr) -> Truth {
    let scene = look.scene;
    let asked = Packet::first(site.address, gateway, echo(gateway));
    let seen_by = site.seen_by.name.as_str();
    let ignores = scene.host.number("net.ipv4.icmp_echo_ignore_all").unwrap_or_default() != 0
        || scene.host.number("net.ipv6.icmp.echo_ignore_all").unwrap_or_default() != 0;
    if ignores {
        return Truth::No;
    }
    let ends = [
        (Hook::Prerouting, asked.between(Some(seen_by), None)),
        (Hook::Input, asked.between(Some(seen_by), None)),
        (Hook::Output, asked.answer().between(None, Some(seen_by))),
    ];
    let ends = ends.map(|(hook, packet)| walk(&scene.host, Layer::Ip, hook, &packet).end);
    let link = site.attachment.ifname.as_str();
    let own = [
        (Hook::Output, asked.between(None, Some(link))),
        (Hook::Input, asked.answer().between(Some(link), None)),
    ];
    let inside = site.container.inside.iter();
    let own = inside.flat_map(|inside| {
        own.iter().map(|(hook, packet)| walk(inside, Layer::Ip, *hook, packet).end)
    });
    let ends: Vec<End> = ends.into_iter().chain(own).collect();
    if ends.iter().any(|end| matches!(end, End::Stopped(..))) {
        return Truth::No;
    }
    match ends.iter().all(|end| *end == End::Passes) {
        true => Truth::Yes,
        false => Truth::Maybe,
    }
}

/// The node reaches a machine that the container does not reach; or neither does, and the caller
/// asked for it.
fn beyond(
    look: Look<'_>,
    owners: &Owners<'_>,
    container: &Container,
    family: IpFamily,
) -> Vec<Finding> {
    let mut found = Vec::new();
    for asked in outside(look, container, family) {
        let of = |from: Option<String>| look.answers.to(&Question { from, asked: asked.clone() });
        let own = of(Some(container.id.clone()));
        let node = of(None);
        if own.is_some_and(|own| is_denied(look, owners, container, &asked, own)) {
            continue;
        }
        let node_reaches = matches!(node, Some(Answer::Reached { .. } | Answer::Refused));
        let itself = own.and_then(|own| itself(look, container, &asked, own));
        let lost = match (own, node) {
            (Some(_), _) if itself.is_some() => itself,
            (Some(Answer::Refused), Some(Answer::Reached { .. })) => {
                Some("was refused, and the node's was not".to_owned())
            }
            (Some(own), _) => lost(own),
            (None, _) => None,
        };
        let Some(lost) = lost else { continue };
        let (to, at, is_named) = match &asked {
            Probe::Connect { to } => (to.to_string(), *to, true),
            Probe::Echo { to } => (to.to_string(), SocketAddr::new(*to, 0), false),
            _ => continue,
        };
        if !node_reaches && !is_named {
            continue;
        }
        if let Probe::Echo { to } = asked
            && !passes_echo(look, container, family, to)
        {
            continue;
        }
        let called = container.called();
        let way = own.and_then(|own| Some((taken(look, container, at, Transport::Tcp)?, own)));
        let (says, help) = if node_reaches {
            let help = way.as_ref().map(|(way, own)| way.help(called, own));
            let advice = || format!("look at the way of {called}: ip route get {}", at.ip());
            let help = help.unwrap_or_else(|| Help::Advice(advice()));
            (format!("{to} answers this node, and not {called}"), help)
        } else {
            let advice = format!("look at {to} and at the way to it: ip route get {}", at.ip());
            (format!("{to} answers neither {called} nor this node"), Help::Advice(advice))
        };
        let finding = Finding::error("outside-silent", format!("{called}: {to}"), says)
            .seen(format!("a probe from {called} to {to} {lost}"))
            .hits(container.id.clone())
            .help(help)
            .breaks(kind(look, container, at), Some(family));
        let finding = match way {
            Some((way, own)) => way.tell(finding, own),
            None => finding,
        };
        let of_node = match node {
            Some(_) if node_reaches => Some(true),
            Some(answer) => answer.is_lost().then_some(false),
            None => None,
        };
        let obstacle = obstacles::obstacle(look, container, at, Transport::Tcp, of_node);
        if let Some(obstacle) = obstacle.filter(|_| own.is_some_and(Answer::is_lost)) {
            found.push(obstacle.tell(finding));
            continue;
        }
        found.push(match node_reaches {
            true => finding,
            false => with_router(look, container, at, Transport::Tcp, finding),
        });
    }
    found
}

/// The way that a container takes to a machine, or to its own published port.
fn kind(look: Look<'_>, container: &Container, to: SocketAddr) -> WayKind {
    let mut ports = container.attachments.iter().flat_map(|one| &one.ports);
    let is_own = look.scene.host.owner_of(to.ip()).is_some()
        && ports.any(|port| port.host == to.port() && port.transport == Transport::Tcp);
    if is_own { WayKind::Published } else { WayKind::Outside }
}

/// Says that a connection did not come to the other end: the container or the node has the address
/// on its loopback. A program of the node may serve it there.
fn itself(look: Look<'_>, container: &Container, asked: &Probe, own: &Answer) -> Option<String> {
    let Probe::Connect { to } = asked else { return None };
    let has = |namespace: &Namespace| {
        let owner = namespace.owner_of(to.ip());
        !to.ip().is_loopback() && owner.is_some_and(|link| link.name == "lo")
    };
    let is_refused = matches!(own, Answer::Refused);
    if container.inside.as_ref().is_some_and(has)
        && (is_refused || matches!(own, Answer::Reached { .. }))
    {
        return Some(format!("came to {} itself", container.called()));
    }
    (is_refused && has(&look.scene.host)).then(|| "came to this node, which refused it".to_owned())
}

/// Says whether all filters surely let an echo request of a container pass, and the answer.
fn passes_echo(look: Look<'_>, container: &Container, family: IpFamily, to: IpAddr) -> bool {
    let with = echo(to);
    Site::all(look.scene, container, family).any(|site| {
        let trip = Trip::Outside { from: &site, to, with };
        matches!(follow_filters(look.scene, &trip, &[]), Outcome::Passes(_))
    })
}

/// A published port of a container that is not reached from the node.
fn port_or_container(
    look: Look<'_>,
    site: &Site<'_>,
    port: &Port,
    to: SocketAddr,
    kind: WayKind,
) -> Option<Finding> {
    let question = of_node(port, to)?;
    let answer = look.answers.to(&question)?;
    let lost = match answer {
        // Where no program listens, another rule says so.
        Answer::Refused if listens(site, port) => "was refused".to_owned(),
        other => lost(other)?,
    };
    let called = site.container.called();
    let (id, says) = if kind == WayKind::FromNode {
        ("container-silent", format!("{called} does not answer this node at {to}"))
    } else {
        let what = format!("{}/{}", port.host, port.transport.as_str());
        ("port-silent", format!("published port {what} of {called} does not answer at {to}"))
    };
    let finding = Finding::error(id, format!("{called}: {to}"), says)
        .seen(format!("a connection of this node to {to} {lost}"))
        .hits(site.container.id.clone())
        .breaks(kind, Some(site.family()));
    Some(repair(look, site).into_iter().fold(finding, Finding::help))
}

/// Says whether a program of the container surely listens on a port at this address of it.
fn listens(site: &Site<'_>, port: &Port) -> bool {
    site.inside.listeners.iter().any(|listener| {
        listener.transport == Transport::Tcp
            && listener.at.port() == port.container
            && listener.at.ip().is_unspecified()
            && speaks(listener, Some(site.family()))
    })
}
