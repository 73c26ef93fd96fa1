//! Routers that announce themselves, and a node that ignores them because it forwards.

use scene::{Link, Namespace};

use crate::Look;
use crate::finding::{Family, Finding, WayKind};
use crate::path::Site;

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
    breaks.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(Family::V6)))
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
    use scene::{NextHop, Route, RouteKind, Scene};

    use super::*;
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
}
