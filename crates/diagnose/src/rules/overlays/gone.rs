//! The way to all other nodes is gone, or to one of them, although flanneld's file says that the
//! network goes on beyond this node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use net::IpFamily;

use super::super::tunnels::of_lost;
use super::super::{containers, targets};
use super::remake;
use crate::Look;
use crate::finding::{Finding, Severity, WayKind};
use crate::model::{Link, Network, Overlay, RouteKind};
use crate::path::links_of_containers;
use crate::routes::{RouteDecision, look_up};
use crate::whose::{self, Owner};

/// How many bytes flannel's tunnels add to a packet, at least: IP in IP; UDP; VXLAN over IPv4 and
/// IPv6; WireGuard (flannel-io/flannel: pkg/backend).
const OVERHEADS: [u32; 6] = [20, 28, 50, 60, 70, 80];

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let networks = look.scene.networks.iter();
    let known = networks.filter_map(|network| Some((network, network.overlay.as_ref()?)));
    let mut files: BTreeSet<&str> = BTreeSet::new();
    let mut found = Vec::new();
    for (network, overlay) in known {
        if files.insert(&overlay.file) {
            found.extend(of_overlay(look, network, overlay));
        }
    }
    found
}

fn of_overlay(look: Look<'_>, network: &Network, overlay: &Overlay) -> Vec<Finding> {
    let links = || look.scene.host.links.iter();
    let is_tunnel =
        |link: &&Link| matches!(whose::owner_of_link(link), Some(Owner::Flannel | Owner::Ours));
    let down: Vec<&Link> = links().filter(is_tunnel).filter(|link| !link.up).collect();
    if !down.is_empty() {
        return down.into_iter().map(|link| is_down(look, network, overlay, link)).collect();
    }
    if !links().any(|link| is_tunnel(&link)) && !is_routed(look, overlay) {
        return tunnel_below(look, overlay)
            .map(|uplink| is_missing(look, network, overlay, uplink))
            .into_iter()
            .collect();
    }
    without_route(look, network, overlay)
}

/// Says whether an address is of another node's part of the network.
fn is_beyond(overlay: &Overlay, to: IpAddr) -> bool {
    overlay.ranges.iter().any(|net| net.contains(&to))
        && !overlay.own.iter().any(|net| net.contains(&to))
}

/// Says whether the node has a route to another node's part.
fn is_routed(look: Look<'_>, overlay: &Overlay) -> bool {
    let mut routes = look.scene.host.routes.iter();
    routes.any(|route| {
        let is_part = overlay.ranges.iter().any(|net| net.contains(&route.to));
        route.kind == RouteKind::Unicast && is_part && is_beyond(overlay, route.to.network())
    })
}

/// Returns the link below the tunnel that flanneld has made: the MTU that it leaves to containers
/// says that there was one. Without a tunnel they have that of a link of this node.
fn tunnel_below<'s>(look: Look<'s>, overlay: &Overlay) -> Option<&'s Link> {
    let of_containers = links_of_containers(look.scene);
    let links = look.scene.host.links.iter().filter(|link| {
        let is_bridge = link.kind.as_deref() == Some("bridge");
        link.name != "lo" && !is_bridge && !of_containers.contains(link.name.as_str())
    });
    let mut all: Vec<&Link> = links.filter(|link| link.up && link.carrier).collect();
    if all.iter().any(|link| link.mtu == overlay.mtu) {
        return None;
    }
    let adds = |link: &Link| {
        let more = link.mtu.checked_sub(overlay.mtu);
        more.is_some_and(|more| OVERHEADS.contains(&more)) && !link.addresses.is_empty()
    };
    all.retain(|link| adds(link));
    all.first().copied()
}

fn is_down(look: Look<'_>, network: &Network, overlay: &Overlay, link: &Link) -> Finding {
    let name = &link.name;
    let says = format!(
        "{name} is down, and containers of {} reach those of other nodes only by it",
        network.name
    );
    let finding = Finding::error("overlay-gone", name.clone(), says)
        .at(format!("link {name}"))
        .fix(format!("ip link set {name} up"))
        .advise(format!("the kernel has removed its routes: {}", remake(link)));
    let finding = Finding { whose: whose::of_link(link, look.scene), ..finding };
    told(look, network, overlay, finding)
}

fn is_missing(look: Look<'_>, network: &Network, overlay: &Overlay, below: &Link) -> Finding {
    let ranges: Vec<String> = overlay.ranges.iter().map(ToString::to_string).collect();
    let ranges = ranges.join(" and ");
    let says = format!(
        "flannel's tunnel is gone, and with it the routes by which containers of {} reach those of other nodes ({ranges})",
        network.name
    );
    let finding = Finding::error("overlay-gone", ranges, says)
        .at(overlay.file.clone())
        .seen(format!(
            "the file gives containers an MTU of {}, which leaves room for a tunnel on {}, whose MTU is {}",
            overlay.mtu, below.name, below.mtu
        ))
        .seen("there is no link flannel.*, and no route to another node's part")
        .of("flannel, by the file")
        .advise(
            "let flanneld make its tunnel again: restart it (its pod, or k3s); and tell what removed it (NetworkManager: unmanaged-devices) to leave flannel's links alone",
        );
    // The tunnel is not named anywhere: that it was there, is concluded.
    let finding = told(look, network, overlay, finding);
    let is_missed = finding.breaks.iter().any(|way| way.kind != WayKind::Nodes);
    let severity = if is_missed { Severity::Error } else { Severity::Warning };
    Finding { severity, ..finding }
}

/// Adds the containers that it hits, and the ways that it breaks.
fn told(look: Look<'_>, network: &Network, overlay: &Overlay, finding: Finding) -> Finding {
    let is_on = |one: &&crate::model::Container| {
        one.attachments.iter().any(|attachment| attachment.network == network.name)
    };
    let hits = containers(look).filter(is_on).map(|one| one.id.clone()).collect();
    let mut finding = Finding { hits, ..finding };
    for family in IpFamily::ALL {
        if overlay.ranges.iter().any(|net| IpFamily::of(net.addr()) == family) {
            finding = finding.breaks(WayKind::Nodes, Some(family));
        }
    }
    of_lost(look, finding, |to| is_beyond(overlay, to))
}

/// A container was not answered by an address of another node's part, to which there is no route.
fn without_route(look: Look<'_>, network: &Network, overlay: &Overlay) -> Vec<Finding> {
    let host = &look.scene.host;
    let asked = containers(look).flat_map(|container| targets(look, container));
    let mut wanted: Vec<IpAddr> = asked.filter(|to| is_beyond(overlay, *to)).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let lost = wanted.into_iter().filter_map(|to| {
        let is_led = match look_up(host, None, to, None, Some(0)) {
            RouteDecision::By { route, .. } => 0 < route.to.prefix_len(),
            RouteDecision::Nowhere => false,
            _ => true,
        };
        if is_led {
            return None;
        }
        let says = format!(
            "this node has no route to {to}, which is of the network {} of all nodes, {}",
            network.name, overlay.file
        );
        let finding = Finding::error("overlay-gone", to.to_string(), says)
            .at("routing table main")
            .seen(format!("the way of {to} is not by a tunnel: ip route get {to}"))
            .advise(format!(
                "see whether a node has {to} in its part of {}; if so, let flanneld make the route to it again: restart it (its pod, or k3s)",
                network.name
            ))
            .breaks(WayKind::Nodes, Some(IpFamily::of(to)));
        let finding = of_lost(look, finding, |address| address == to);
        (!finding.hits.is_empty()).then_some(finding)
    });
    lost.collect()
}
