//! Routers that announce themselves, and a node that ignores them because it forwards.

use net::IpFamily;

use super::super::{containers, is_outbound};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Link, Namespace, Route, RouteKind};
use crate::path::{self, Site};
use crate::routes::TABLE_MAIN;

/// RTPROT_RA of linux include/uapi/linux/rtnetlink.h: a router advertisement made the route.
const OF_ADVERTISEMENT: u8 = 9;

/// With forwarding on, the kernel ignores router advertisements unless `accept_ra` is 2: the default
/// route that one has made expires.
pub(super) fn expiring(look: Look<'_>) -> Vec<Finding> {
    let host = &look.scene.host;
    let mut found = Vec::new();
    for link in announced(host) {
        if are_ignored(host, link) {
            let says = format!(
                "the IPv6 default route by {} will expire: it came by a router advertisement, and with forwarding on this node no longer accepts them",
                link.name
            );
            let finding = Finding::warning("router-advertisements", link.name.clone(), says)
                .at(format!("net.ipv6.conf.{}.accept_ra is 1", link.name))
                .fix(listen_again(&link.name));
            if !found.contains(&finding) {
                found.push(finding);
            }
        }
    }
    found
}

/// Links that lead out of the node and would hear a router, if the node did not forward: no router has
/// announced itself there before, or the link came later. That is so if the node has no way out by
/// IPv6, or listens by another link. One that `found` names already is left out.
pub(super) fn unheard(look: Look<'_>, found: &[Finding]) -> Vec<Finding> {
    let host = &look.scene.host;
    let outbound = containers(look).filter(|one| is_outbound(look.scene, one, IpFamily::V6));
    let hits: Vec<String> = outbound.map(|one| one.id.clone()).collect();
    let defaults: Vec<&Route> = host.routes.iter().filter(|route| is_default(route)).collect();
    // An administrator who made it wants no other.
    if hits.is_empty() || defaults.iter().any(|route| route.protocol != Some(OF_ADVERTISEMENT)) {
        return Vec::new();
    }
    let of_link =
        |link: &Link, key: &str| host.number(&format!("net.ipv6.conf.{}.{key}", link.name));
    let listens = |link: &Link| {
        of_link(link, "forwarding") == Some(1) && of_link(link, "accept_ra") == Some(2)
    };
    if !defaults.is_empty() && !host.links.iter().any(listens) {
        return Vec::new();
    }
    let of_containers = path::links_of_containers(look.scene);
    let is_named = |link: &Link| {
        found.iter().any(|one| one.id == "router-advertisements" && one.object == link.name)
    };
    let links = host.links.iter().filter(|link| {
        link.up
            && link.carrier
            && !of_containers.contains(link.name.as_str())
            && of_link(link, "disable_ipv6") != Some(1)
            && are_ignored(host, link)
            && leads_out(host, link)
            && !is_named(link)
    });
    links
        .map(|link| {
            let says = format!(
                "{} ignores router advertisements, because this node forwards IPv6: it would not hear a router there",
                link.name
            );
            Finding::warning("router-advertisements", link.name.clone(), says)
                .at(format!("net.ipv6.conf.{}.accept_ra is 1", link.name))
                .fix(listen_again(&link.name))
                .advise(format!(
                    "if it shall hear none: sysctl -w net.ipv6.conf.{}.accept_ra=0",
                    link.name.replace('.', "/")
                ))
        })
        .map(|finding| Finding { hits: hits.clone(), ..finding })
        .collect()
}

fn is_default(route: &Route) -> bool {
    route.table == TABLE_MAIN
        && route.kind == RouteKind::Unicast
        && route.to.prefix_len() == 0
        && route.to.addr().is_ipv6()
}

/// How many links a VLAN may lie on.
const DEPTH: usize = 4;

/// Says whether a link leads out of the node, and to no container, as ADD does (kernel
/// `routers::listening`).
pub(in crate::rules) fn leads_out(host: &Namespace, link: &Link) -> bool {
    let mut link = link;
    for _ in 0..DEPTH {
        let is_vrf = |master| host.link_of(master).is_some_and(|link| link.vrf_table.is_some());
        if link.name == "lo" || !link.master.is_none_or(is_vrf) {
            return false;
        }
        match link.kind.as_deref() {
            None => return !link.of_function,
            Some("bond" | "team" | "ppp") => return true,
            Some("vlan") if link.peer_netnsid.is_none() => {
                let Some(lower) = link.peer.and_then(|lower| host.link_of(lower)) else {
                    return false;
                };
                link = lower;
            }
            Some("veth") => return is_way_out_of_container(host, link),
            _ => return false,
        }
    }
    false
}

/// Says whether a link may be the pair by which a node leads out that is a container itself, without
/// hardware of its own.
fn is_way_out_of_container(host: &Namespace, link: &Link) -> bool {
    let is_hardware = |link: &Link| link.kind.is_none() && link.name != "lo";
    let is_to_one = |route: &Route| {
        let to = &route.to;
        to.prefix_len() == to.max_prefix_len()
            && route.table == TABLE_MAIN
            && route.kind == RouteKind::Unicast
            && route.hops.iter().any(|hop| hop.via.is_none() && hop.link == Some(link.index))
    };
    link.peer_netnsid.is_some()
        && link.alias.is_none()
        && !host.links.iter().any(is_hardware)
        && !host.routes.iter().any(is_to_one)
}

/// Lists the links with a default route that came by a router advertisement.
fn announced(host: &Namespace) -> impl Iterator<Item = &Link> {
    let defaults = host
        .routes
        .iter()
        .filter(|route| route.protocol == Some(OF_ADVERTISEMENT) && route.to.prefix_len() == 0);
    let hops = defaults.flat_map(|route| &route.hops);
    hops.filter_map(|hop| hop.link.and_then(|index| host.link_of(index)))
}

/// Lists the links that have learnt such a route, and would ignore routers if the node forwarded.
pub(in crate::rules) fn listening(host: &Namespace) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for link in announced(host) {
        let value = host.number(&format!("net.ipv6.conf.{}.accept_ra", link.name));
        if value == Some(1) && !names.contains(&link.name.as_str()) {
            names.push(&link.name);
        }
    }
    names
}

/// Says whether the kernel ignores the advertisements of routers on a link (linux
/// include/net/addrconf.h `ipv6_accept_ra`): it has deleted the default routes that came by them.
pub(super) fn are_ignored(host: &Namespace, link: &Link) -> bool {
    let of_link = |key: &str| host.number(&format!("net.ipv6.conf.{}.{key}", link.name));
    of_link("forwarding") == Some(1) && of_link("accept_ra") == Some(1)
}

/// Forwarding has taken away the default route that came by a router advertisement, or keeps one
/// from coming.
pub(super) fn ignored(site: &Site<'_>, uplink: &str, seen: &str) -> Finding {
    let says = format!(
        "this node has no default route for IPv6, and learns none: with forwarding on, {uplink} ignores router advertisements"
    );
    let breaks = [WayKind::Outside, WayKind::Names, WayKind::Published];
    let finding = Finding::error("router-advertisements", uplink, says)
        .at(format!("net.ipv6.conf.{uplink}.accept_ra is 1"))
        .seen(format!("{uplink} {seen}"))
        .hits(site.container.id.clone())
        .fix(listen_again(uplink))
        .advise(format!(
            "if no router announces itself there: ip -6 route add default via GATEWAY dev {uplink}"
        ));
    breaks.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(IpFamily::V6)))
}

/// Returns the command that makes a link listen to routers beside forwarding. In the name of a
/// kernel parameter a slash stands for a dot of a link's name.
fn listen_again(link: &str) -> String {
    format!("sysctl -w {}", always(link))
}

/// Returns what `sysctl -w` sets for that.
pub(in crate::rules) fn always(link: &str) -> String {
    format!("net.ipv6.conf.{}.accept_ra=2", link.replace('.', "/"))
}

#[cfg(test)]
mod tests {
    use crate::model::{NextHop, Route, RouteKind, Scene};

    use super::*;
    use crate::path::samples::node;
    use crate::question::Answers;

    fn ids(scene: &Scene) -> Vec<&'static str> {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only: None, to: None };
        expiring(look).into_iter().map(|finding| finding.id).collect()
    }

    #[test]
    fn a_default_route_that_will_expire() {
        let mut scene = Scene::default();
        let host = &mut scene.host;
        host.links = vec![Link { index: 2, name: "up0".to_owned(), ..Link::default() }];
        host.routes = vec![Route {
            to: "::/0".parse().unwrap(),
            table: 254,
            kind: RouteKind::Unicast,
            metric: 1024,
            hops: vec![NextHop { via: Some("fe80::1".parse().unwrap()), link: Some(2) }],
            source: None,
            mtu: None,
            protocol: Some(OF_ADVERTISEMENT),
        }];
        host.sysctls.insert("net.ipv6.conf.up0.forwarding".to_owned(), "1".to_owned());
        host.sysctls.insert("net.ipv6.conf.up0.accept_ra".to_owned(), "1".to_owned());
        assert_eq!(ids(&scene), ["router-advertisements"]);
        scene.host.sysctls.insert("net.ipv6.conf.up0.accept_ra".to_owned(), "2".to_owned());
        assert_eq!(ids(&scene), [""; 0]);
    }

    /// Says which links would not hear a router.
    fn deaf(scene: &Scene) -> Vec<String> {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only: None, to: None };
        unheard(look, &[]).into_iter().map(|finding| finding.object).collect()
    }

    #[test]
    fn a_link_that_would_not_hear_a_router() {
        let mut scene = node();
        scene.host.routes.retain(|route| route.to.addr().is_ipv4() || route.to.prefix_len() != 0);
        let set = |scene: &mut Scene, link: &str, accept_ra: &str| {
            for (key, value) in [("forwarding", "1"), ("accept_ra", accept_ra)] {
                let key = format!("net.ipv6.conf.{link}.{key}");
                scene.host.sysctls.insert(key, value.to_owned());
            }
        };
        set(&mut scene, "up0", "1");
        set(&mut scene, "cni0", "1");
        assert_eq!(deaf(&scene), ["up0"]);
        for value in ["2", "0"] {
            set(&mut scene, "up0", value);
            assert_eq!(deaf(&scene), [""; 0]);
        }
        // A link that came later.
        let up0 = scene.host.link("up0").unwrap().clone();
        scene.host.links.push(Link { index: 99, name: "up1".to_owned(), ..up0 });
        set(&mut scene, "up0", "2");
        set(&mut scene, "up1", "1");
        assert_eq!(deaf(&scene), ["up1"]);
        let way = |protocol| Route {
            to: "::/0".parse().unwrap(),
            table: TABLE_MAIN,
            kind: RouteKind::Unicast,
            metric: 1024,
            hops: vec![NextHop { via: Some("fe80::1".parse().unwrap()), link: Some(99) }],
            source: None,
            mtu: None,
            protocol: Some(protocol),
        };
        scene.host.routes.push(way(OF_ADVERTISEMENT));
        assert_eq!(deaf(&scene), ["up1"]);
        scene.host.routes.pop();
        // What an administrator made (RTPROT_STATIC).
        scene.host.routes.push(way(4));
        assert_eq!(deaf(&scene), [""; 0]);
        scene.host.routes.pop();
        // It may lead to a container.
        for kind in ["veth", "bridge", "tun", "macvlan"] {
            scene.host.links.last_mut().unwrap().kind = Some(kind.to_owned());
            assert_eq!(deaf(&scene), [""; 0], "{kind}");
        }
        scene.host.links.last_mut().unwrap().kind = None;
        scene.host.links.last_mut().unwrap().of_function = true;
        assert_eq!(deaf(&scene), [""; 0]);
    }
}
