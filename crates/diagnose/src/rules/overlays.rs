//! Ways to containers of other nodes by a tunnel of this node: flannel's, Netwright's own,
//! WireGuard, IP in IP.
//!
//! A way has a route, whose router is in the tunnel; an entry of the neighbour table for that; a
//! forwarding entry, which says at which machine the tunnel ends; and a way there for the tunnel's
//! own packets, past the node's filters, and back. Which machine it should be, only the program
//! knows that makes the entries: what is said here is what certainly does not work.

mod filters;
mod gone;
mod silent;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use net::IpFamily;

use super::Rule;
use super::tunnels::of_lost;
use super::ways::text;
use crate::Look;
use crate::finding::{Finding, Help, Severity, WayKind};
use crate::model::{Link, Namespace, Part, Route, RouteKind, TunnelEnd};
use crate::question::{Answer, Probe, Question};
use crate::routes::{RouteDecision, look_up};
use crate::whose::{self, Owner};

pub(super) const RULE: Rule = Rule {
    judges: "tunnels to other nodes",
    ids: &["overlay-gone", "tunnel-astray", "tunnel-dropped", "tunnel-silent"],
    needs: &[Part::Links, Part::Routes, Part::Neighbours],
    asks,
    judge,
    ..Rule::NONE
};

/// The origin of routes that the kernel makes for addresses (RTPROT_KERNEL).
const BY_KERNEL: u8 = 2;

/// How many machines at the ends of tunnels are asked for.
const ENDS: usize = 16;

/// A way by a tunnel.
#[derive(Debug)]
struct TunnelPath<'s> {
    route: &'s Route,
    tunnel: &'s Link,
    end: End<'s>,
}

/// Where a way by a tunnel leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End<'s> {
    /// At this machine.
    At(IpAddr),
    /// The tunnel has no entry for the router of the route, and cannot ask.
    NoNeighbour(IpAddr),
    /// It has no forwarding entry for the router's hardware address.
    NoEntry(IpAddr, &'s str),
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let led = ways(look);
    let mut found = gone::judge(look);
    found.extend(led.iter().filter_map(|led| astray(look, led)));
    found.extend(filters::judge(look, &led));
    let explained = found.clone();
    found.extend(led.iter().filter_map(|led| silent::judge(look, led, &explained)));
    found
}

/// Who has the address of each machine at a tunnel's end that should be on a link of this node, and
/// whether it answers.
fn asks(look: Look<'_>) -> Vec<Question> {
    let mut all: Vec<Question> = Vec::new();
    let led = ways(look);
    let (meant, others): (Vec<&TunnelPath<'_>>, Vec<&TunnelPath<'_>>) =
        led.iter().partition(|led| look.to.is_some_and(|to| led.route.to.contains(&to.ip())));
    for led in meant.into_iter().chain(others) {
        let End::At(end) = led.end else { continue };
        let inner = silent::asks(look, led);
        for question in near(look, led.tunnel, end).into_iter().flatten().chain(inner) {
            if all.len() < 3 * ENDS && !all.contains(&question) {
                all.push(question);
            }
        }
    }
    all
}

/// The questions for a machine at a tunnel's end, if it should be on a link of this node.
fn near(look: Look<'_>, tunnel: &Link, end: IpAddr) -> Option<[Question; 2]> {
    let host = &look.scene.host;
    let RouteDecision::By { link, via: None, .. } = look_up(host, None, end, None, Some(0)) else {
        return None;
    };
    let is_asked =
        link.index != tunnel.index && link.up && link.carrier && link.mac.is_some() && !link.no_arp;
    // A machine with a configured entry need not answer requests.
    let mut entries = host.neighbours.iter();
    let is_configured =
        entries.any(|one| one.permanent && one.link == link.index && one.address == end);
    (is_asked && !is_configured).then(|| {
        let echo = Question { from: None, asked: Probe::Echo { to: end } };
        [Question::who_has(None, &link.name, end), echo]
    })
}

/// The ways by tunnels of which it is known where they end, or that they do not.
fn ways(look: Look<'_>) -> Vec<TunnelPath<'_>> {
    let host = &look.scene.host;
    let mut all = Vec::new();
    for route in host.routes.iter().filter(|route| is_made(route)) {
        for hop in &route.hops {
            let Some(tunnel) = hop.link.and_then(|index| host.link_of(index)) else { continue };
            if let Some(end) = end(host, route, tunnel, hop.via).filter(|_| tunnel.up) {
                all.push(TunnelPath { route, tunnel, end });
            }
        }
    }
    all
}

/// A route that a program or a person made for others.
fn is_made(route: &Route) -> bool {
    let to = route.to.addr();
    route.kind == RouteKind::Unicast && route.protocol != Some(BY_KERNEL) && !to.is_multicast()
}

fn end<'s>(
    host: &'s Namespace,
    route: &'s Route,
    tunnel: &'s Link,
    via: Option<IpAddr>,
) -> Option<End<'s>> {
    match tunnel.kind.as_deref()? {
        "vxlan" => of_vxlan(host, tunnel, via?),
        "wireguard" => {
            let has =
                |peer: &&crate::model::Peer| peer.allowed.iter().any(|net| net.contains(&route.to));
            let peer = tunnel.peers.as_ref()?.iter().find(has)?;
            peer.endpoint.map(|endpoint| End::At(endpoint.ip()))
        }
        // The router of the route is the other node itself, unless the tunnel has one end only.
        "ipip" => {
            let via = via?;
            let routed = look_up(host, None, via, None, Some(0));
            let is_below =
                !matches!(routed, RouteDecision::By { link, .. } if link.index == tunnel.index);
            is_below.then_some(End::At(via))
        }
        _ => None,
    }
}

fn of_vxlan<'s>(host: &'s Namespace, tunnel: &'s Link, via: IpAddr) -> Option<End<'s>> {
    let ends = tunnel.ends.as_ref().filter(|_| tunnel.master.is_none())?;
    // What has no entry goes to one machine, or to several, which answer.
    let mut defaults: Vec<IpAddr> =
        ends.iter().filter(|end| end.mac.is_none()).map(|end| end.to).collect();
    defaults.extend(tunnel.remote.filter(|remote| !defaults.contains(remote)));
    let asks_all = !defaults.is_empty();
    let only = match defaults[..] {
        [only] if !only.is_multicast() => Some(End::At(only)),
        _ => None,
    };
    let mut entries = host.neighbours.iter();
    let entry = entries.find(|one| one.link == tunnel.index && one.address == via);
    let Some(mac) = entry.and_then(|one| one.mac.as_deref()) else {
        return only.or((!asks_all).then_some(End::NoNeighbour(via)));
    };
    let is_of =
        |end: &&TunnelEnd| end.mac.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(mac));
    match ends.iter().find(is_of) {
        Some(end) => Some(End::At(end.to)),
        None => only.or((!asks_all).then_some(End::NoEntry(via, mac))),
    }
}

/// A tunnel has no entry for a way, or sends to where no machine is.
fn astray(look: Look<'_>, led: &TunnelPath<'_>) -> Option<Finding> {
    let TunnelPath { route, tunnel, end } = led;
    let host = &look.scene.host;
    let (name, to) = (&tunnel.name, route.to);
    let object = format!("{name}: {to}");
    let (says, place, seen) = match *end {
        End::NoNeighbour(via) => (
            format!(
                "{name} has no hardware address for {via}, the router for {to}, and can ask no machine for it"
            ),
            format!("route {}", text(route, host)),
            format!("there is no entry for {via}: ip neigh show dev {name}"),
        ),
        End::NoEntry(via, mac) => (
            format!(
                "{name} does not know which node has {mac}, the hardware address of {via}, the router for {to}"
            ),
            format!("route {}", text(route, host)),
            format!("there is no entry for {mac}: bridge fdb show dev {name}"),
        ),
        End::At(end) => {
            let seen = lost(look, tunnel, end)?;
            let says = format!("{name} sends what is for {to} to {end}, {}", seen.0);
            (says, place(tunnel, end), seen.1)
        }
    };
    let finding = Finding::error("tunnel-astray", object, says).at(place).seen(seen);
    let finding = Finding { whose: whose::of_link(tunnel, look.scene), ..finding };
    // A node that is off is no fault of this one, until somebody asks it for something.
    let may_be_off = matches!(*end, End::At(end) if near(look, tunnel, end).is_some());
    let finding = match may_be_off {
        true => finding.advise("if the other node is off, that is why").advise(remake(tunnel)),
        false => finding.advise(remake(tunnel)),
    };
    let finding = finding.breaks(WayKind::Nodes, Some(IpFamily::of(to.addr())));
    let finding = of_lost(look, finding, |address| to.contains(&address));
    Some(match may_be_off && finding.hits.is_empty() {
        true => Finding { severity: Severity::Warning, ..finding },
        false => finding,
    })
}

/// Says why what a tunnel sends to a machine is lost, and what shows it.
fn lost(look: Look<'_>, tunnel: &Link, end: IpAddr) -> Option<(String, String)> {
    let host = &look.scene.host;
    match look_up(host, None, end, None, Some(0)) {
        RouteDecision::Local(link) => Some((
            format!("which is this node's own address on {}", link.name),
            format!("the way of {end} ends on this node"),
        )),
        RouteDecision::Nowhere | RouteDecision::Refused { .. } => Some((
            "to which this node has no route".to_owned(),
            format!("the way of {end} ends here: ip route get {end}"),
        )),
        RouteDecision::By { link, via: None, .. } => {
            let [who, echo] = near(look, tunnel, end)?;
            let is_reached = matches!(look.answers.to(&echo), Some(Answer::Reached { .. }));
            let is_there = look.answers.to(&who).and_then(Answer::has_owner)?;
            (!is_there && !is_reached).then(|| {
                let what = format!("which no machine on {} has", link.name);
                (what, format!("no request for the hardware address of {end} was answered"))
            })
        }
        RouteDecision::By { .. } | RouteDecision::Unknown => None,
    }
}

/// Where a tunnel is told its end.
fn place(tunnel: &Link, end: IpAddr) -> String {
    let name = &tunnel.name;
    match tunnel.kind.as_deref() {
        Some("wireguard") => format!("endpoint {end} of a peer: wg show {name} endpoints"),
        Some("ipip") => format!("a route by {name} via {end}"),
        _ => {
            let ends = tunnel.ends.iter().flatten();
            let mac = ends.filter(|one| one.to == end).find_map(|one| one.mac.as_deref());
            format!("fdb {} dev {name} dst {end}", mac.unwrap_or("00:00:00:00:00:00"))
        }
    }
}

/// What helps: who makes the entries knows where the other node is.
fn remake(tunnel: &Link) -> String {
    let name = &tunnel.name;
    match whose::owner_of_link(tunnel) {
        Some(Owner::Flannel) => format!(
            "let flanneld write the entries of {name} again: restart it (its pod, or k3s), and see in its log which address it has for the other node"
        ),
        Some(Owner::Calico) => format!(
            "let Calico write the entries of {name} again: restart calico-node, and see which address it has for the other node"
        ),
        Some(Owner::Ours) => {
            format!("see why netwrightd does not restore {name}: netwrightd routes")
        }
        _ => format!("tell {name} where the other node is now, or restart the program that does"),
    }
}

/// What is said with a command or a sentence.
fn helped(finding: Finding, all: Vec<Help>) -> Finding {
    all.into_iter().fold(finding, Finding::help)
}
