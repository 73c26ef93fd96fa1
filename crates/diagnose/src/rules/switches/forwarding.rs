//! Whether the node sends on what comes in by a link.
//!
//! The kernel asks this of the link by which a packet came: IPv4 by `conf.LINK.forwarding`, which
//! `ip_forward` sets for all links at once (linux net/ipv4/route.c `ip_route_input_slow`); IPv6 by
//! `conf.all.forwarding`, or by the link's `force_forwarding`, since Linux 6.17 (linux
//! net/ipv6/ip6_output.c `ip6_forward`).

use std::collections::BTreeMap;

use net::IpFamily;

use super::super::ways::routers;
use super::super::{containers, is_outbound};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Link, Namespace};
use crate::path::{Site, uplink};

/// What a link does not send on.
#[derive(Debug, Default)]
struct ForwardingGap {
    /// It is a container's way out.
    out: bool,
    /// It is the way in for answers and for published ports.
    back: bool,
    hits: Vec<String>,
}

pub(super) fn judge(look: Look<'_>, family: IpFamily) -> Vec<Finding> {
    let host = &look.scene.host;
    let Some(node) = host.number(switch(family)) else { return Vec::new() };
    let mut held: BTreeMap<&str, ForwardingGap> = BTreeMap::new();
    let mut hit: Vec<String> = Vec::new();
    let mut is_held = false;
    let uplink = uplink(look.scene, family == IpFamily::V4);
    for container in containers(look) {
        if !is_outbound(look.scene, container, family) {
            continue;
        }
        hit.push(container.id.clone());
        let sites: Vec<Site<'_>> = Site::all(look.scene, container, family).collect();
        let by_node = || sites.iter().filter(|site| site.gateway.is_some() || site.is_routed());
        let has_gateway = by_node().next().is_some();
        // What is connected in another way is judged by the node's switch.
        is_held |= !has_gateway && node == 0;
        // In a VRF that is the link by which the kernel has them come in.
        let out = by_node().map(|site| (site.vrf.unwrap_or(site.seen_by), true));
        let back = uplink.filter(|_| has_gateway).map(|link| (link, false));
        for (link, is_out) in out.chain(back) {
            if forwards(host, link, family, node) {
                continue;
            }
            let held = held.entry(link.name.as_str()).or_default();
            held.out |= is_out;
            held.back |= !is_out;
            if !held.hits.contains(&container.id) {
                held.hits.push(container.id.clone());
            }
        }
    }
    if hit.is_empty() {
        return Vec::new();
    }
    match (node, held.is_empty() && !is_held) {
        (0, false) => vec![of_node(family, hit, switch_on(host, family))],
        (0, true) => vec![by_links(family, hit, switch_on(host, family))],
        _ => held.into_iter().map(|(link, held)| of_link(link, held, family)).collect(),
    }
}

/// The kernel parameter that switches forwarding on for the node.
fn switch(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "net.ipv4.ip_forward",
        IpFamily::V6 => "net.ipv6.conf.all.forwarding",
    }
}

/// Says whether the node sends on what comes in by a link. A parameter that was not read is as the
/// node's.
fn forwards(host: &Namespace, link: &Link, family: IpFamily, node: i64) -> bool {
    match family {
        IpFamily::V4 => {
            let own = host.number(&format!("net.ipv4.conf.{}.forwarding", link.name));
            own.unwrap_or(node) != 0
        }
        IpFamily::V6 => {
            let key = format!("net.ipv6.conf.{}.force_forwarding", link.name);
            node != 0 || host.number(&key).is_some_and(|forced| forced != 0)
        }
    }
}

/// Returns the command that switches forwarding on for the node. IPv6 routers that the node listens to
/// would be forgotten, if it were not told to listen in any case.
fn switch_on(host: &Namespace, family: IpFamily) -> String {
    let links = match family {
        IpFamily::V4 => Vec::new(),
        IpFamily::V6 => routers::listening(host),
    };
    let listen = links.iter().map(|link| format!("{} ", routers::always(link)));
    format!("sysctl -w {}{}=1", listen.collect::<String>(), switch(family))
}

fn of_node(family: IpFamily, hits: Vec<String>, switch_on: String) -> Finding {
    let sysctl = switch(family);
    let says =
        format!("{family} forwarding is off, so this node does not forward packets of containers");
    let finding =
        Finding::error("forwarding-off", sysctl, says).at(format!("{sysctl} is 0")).fix(switch_on);
    Finding { hits, ..breaks(finding, family) }
}

/// The node's switch is off, and those of all links that count are on.
fn by_links(family: IpFamily, hits: Vec<String>, switch_on: String) -> Finding {
    let sysctl = switch(family);
    let says = format!(
        "{family} forwarding is off, except for the links that containers use now: links that come later will not forward"
    );
    let finding = Finding::warning("forwarding-off", sysctl, says)
        .at(format!("{sysctl} is 0"))
        .fix(switch_on);
    Finding { hits, ..finding }
}

fn of_link(link: &str, held: ForwardingGap, family: IpFamily) -> Finding {
    let sysctl = format!("net.ipv4.conf.{link}.forwarding");
    let what = match (held.out, held.back) {
        (true, false) => "what containers send to others",
        (false, true) => "the answers to containers, and what is for their published ports",
        _ => "what containers send to others, and the answers",
    };
    let says =
        format!("{family} forwarding is off for {link}, so this node does not forward {what}");
    let finding = Finding::error("forwarding-off", sysctl.clone(), says)
        .at(format!("{sysctl} is 0"))
        .seen(format!("{} is on, but has no effect on {link}", switch(family)))
        .fix(format!("sysctl -w {sysctl}=1"));
    Finding { hits: held.hits, ..breaks(finding, family) }
}

fn breaks(finding: Finding, family: IpFamily) -> Finding {
    // Every connection needs both directions.
    let kinds = [WayKind::Outside, WayKind::Names, WayKind::Published, WayKind::Nodes];
    kinds.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(family)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Scene;
    use crate::path::samples::node;
    use crate::question::Answers;

    fn objects(scene: &Scene, family: IpFamily) -> Vec<String> {
        let answers = Answers::default();
        let found = judge(Look { scene, answers: &answers, only: None, to: None }, family);
        let line = |one: Finding| format!("{:?} {} {}", one.severity, one.object, one.hits.len());
        found.into_iter().map(line).collect()
    }

    fn with(values: &[(&str, &str)]) -> Scene {
        let mut scene = node();
        for (name, value) in values {
            scene.host.sysctls.insert((*name).to_owned(), (*value).to_owned());
        }
        scene
    }

    #[test]
    fn one_link_may_not_forward() {
        let on = [("net.ipv4.ip_forward", "1"), ("net.ipv4.conf.cni0.forwarding", "1")];
        assert_eq!(objects(&with(&on), IpFamily::V4), [""; 0]);
        let out = [on[0], ("net.ipv4.conf.cni0.forwarding", "0")];
        assert_eq!(objects(&with(&out), IpFamily::V4), ["Error net.ipv4.conf.cni0.forwarding 2"]);
        let back = [on[0], on[1], ("net.ipv4.conf.up0.forwarding", "0")];
        assert_eq!(objects(&with(&back), IpFamily::V4), ["Error net.ipv4.conf.up0.forwarding 2"]);
        let other = [on[0], ("net.ipv4.conf.tun0.forwarding", "0")];
        assert_eq!(objects(&with(&other), IpFamily::V4), [""; 0]);
    }

    #[test]
    fn the_node_may_not_forward() {
        let off = [("net.ipv4.ip_forward", "0"), ("net.ipv4.conf.cni0.forwarding", "0")];
        assert_eq!(objects(&with(&off), IpFamily::V4), ["Error net.ipv4.ip_forward 2"]);
        let links = [
            ("net.ipv4.ip_forward", "0"),
            ("net.ipv4.conf.cni0.forwarding", "1"),
            ("net.ipv4.conf.up0.forwarding", "1"),
        ];
        assert_eq!(objects(&with(&links), IpFamily::V4), ["Warning net.ipv4.ip_forward 2"]);
    }

    /// The command does not take away a default route that came by a router's advertisement.
    #[test]
    fn routers_are_listened_to_beside_forwarding() {
        let mut scene =
            with(&[("net.ipv6.conf.all.forwarding", "0"), ("net.ipv6.conf.up0.accept_ra", "1")]);
        let fix = |scene: &Scene| switch_on(&scene.host, IpFamily::V6);
        assert_eq!(fix(&scene), "sysctl -w net.ipv6.conf.all.forwarding=1");
        let default = |route: &&mut crate::model::Route| route.to == "::/0".parse().unwrap();
        scene.host.routes.iter_mut().find(default).unwrap().protocol = Some(9);
        let both = "sysctl -w net.ipv6.conf.up0.accept_ra=2 net.ipv6.conf.all.forwarding=1";
        assert_eq!(fix(&scene), both);
        assert_eq!(switch_on(&scene.host, IpFamily::V4), "sysctl -w net.ipv4.ip_forward=1");
    }

    /// The link's own `forwarding` decides about router advertisements, and about nothing else.
    #[test]
    fn ipv6_forwards_by_the_nodes_switch_or_where_it_is_forced() {
        let link = ("net.ipv6.conf.cni0.forwarding", "0");
        let on = [("net.ipv6.conf.all.forwarding", "1"), link];
        assert_eq!(objects(&with(&on), IpFamily::V6), [""; 0]);
        let off = ("net.ipv6.conf.all.forwarding", "0");
        assert_eq!(objects(&with(&[off]), IpFamily::V6), ["Error net.ipv6.conf.all.forwarding 2"]);
        let forced = [
            off,
            ("net.ipv6.conf.cni0.force_forwarding", "1"),
            ("net.ipv6.conf.up0.force_forwarding", "1"),
        ];
        assert_eq!(
            objects(&with(&forced), IpFamily::V6),
            ["Warning net.ipv6.conf.all.forwarding 2"]
        );
    }
}
