//! What the policy of a chain drops besides the way that was followed: all that no rule accepts.

use std::net::IpAddr;

use super::{FilterStop, caught, leads_out, others};
use crate::Look;
use crate::filter::{Payload, Port};
use crate::finding::{Finding, WayKind};
use crate::model::Transport;
use crate::path::{RARE_PORT, Site, Trip, carries, echo};

/// A way that a policy closes, too, and what does not pass, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClosedWay {
    pub(super) kind: WayKind,
    pub(super) says: String,
}

/// Returns the ways of a container that a policy surely closes besides those that are known. What no
/// rule names is sent by each protocol.
pub(super) fn closed(
    look: Look<'_>,
    site: &Site<'_>,
    stop: &FilterStop,
    known: &[WayKind],
) -> Vec<ClosedWay> {
    if stop.place.rule.is_some() {
        return Vec::new();
    }
    let is_new = |kind: WayKind| !known.contains(&kind);
    let who = match stop.inside {
        Some(_) => site.container.called().to_owned(),
        None => format!("containers of {}", site.attachment.network),
    };
    let stopped = |trips: &[(&'static str, Trip<'_>)]| {
        let is_stopped = |trip: &Trip<'_>| {
            let first = caught(look.scene, trip).into_iter().next();
            first.is_some_and(|first| first.is_at(stop))
        };
        let stopped = trips.iter().filter(|(_, trip)| is_stopped(trip));
        stopped.map(|(name, _)| *name).collect::<Vec<&str>>()
    };
    let mut found = Vec::new();
    if let Some(to) = others::samples(look.scene, site.family()).first().copied()
        && is_new(WayKind::Outside)
        && leads_out(look.scene, site)
    {
        let trips = tried(to).map(|(name, with)| (name, Trip::Outside { from: site, to, with }));
        let names = stopped(&trips);
        found.extend((!names.is_empty()).then(|| ClosedWay {
            kind: WayKind::Outside,
            says: format!("packets of {who} to machines beyond this node ({})", names.join(", ")),
        }));
    }
    if let Some(to) = site.gateway.filter(|_| is_new(WayKind::Gateway)) {
        let trip = Trip::Outside { from: site, to, with: echo(to) };
        found.extend((!stopped(&[("", trip)]).is_empty()).then(|| ClosedWay {
            kind: WayKind::Gateway,
            says: format!("echo requests of {who} to {to}"),
        }));
    }
    if stop.inside.is_some() && is_new(WayKind::FromNode) {
        found.extend((!stopped(&[("", Trip::FromNode { to: site })]).is_empty()).then(|| {
            ClosedWay { kind: WayKind::FromNode, says: format!("packets of this node to {who}") }
        }));
    }
    found
}

/// What no rule is for, by each protocol.
fn tried(to: IpAddr) -> [(&'static str, Payload); 3] {
    let rare = Port::Is(RARE_PORT);
    [
        ("TCP", carries(Transport::Tcp, rare)),
        ("UDP", carries(Transport::Udp, rare)),
        ("ICMP", echo(to)),
    ]
}

/// Says what a policy closes besides.
pub(super) fn says(all: &[ClosedWay]) -> String {
    let all: Vec<&str> = all.iter().map(|one| one.says.as_str()).collect();
    format!("{POLICY}{}, too", all.join("; "))
}

const POLICY: &str = "the policy drops all that no rule accepts: ";

/// Puts that before the other evidence, of which findings that are joined lose some.
pub(super) fn lead(found: &mut [Finding]) {
    for finding in found {
        if let Some(at) = finding.seen.iter().position(|line| line.starts_with(POLICY)) {
            finding.seen[..=at].rotate_right(1);
        }
    }
}
