//! Links and addresses of the node, and addresses that another machine has.

mod ports;
mod taken;
mod twins;

use net::IpFamily;

use super::{Rule, containers, is_link_local};
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, Help, WayKind};
use crate::model::{Container, ItemKind, Link, Namespace, Part, Route, Scene};
use crate::path::{Site, uplink};
use crate::restored;

/// Ways out of the node.
pub(super) const UPLINKS: Rule = Rule {
    judges: "ways out of this node",
    ids: &["link-down", "no-carrier", "uplink-enslaved"],
    needs: &[Part::Links, Part::Routes],
    judge: uplinks,
    ..Rule::NONE
};

pub(super) const RULE: Rule = Rule {
    judges: "links and addresses",
    ids: &["mtu-too-large", "mtu-too-small", "port-silenced", "address-duplicate", "mac-duplicate"],
    asks: ports::asks,
    judge,
    ..Rule::NONE
};

/// The main routing table (RT_TABLE_MAIN).
const MAIN: u32 = 254;

/// Links that a container runtime makes carry nothing while no container is on them.
const IDLE_KINDS: [&str; 3] = ["bridge", "veth", "dummy"];

/// What a link must take for the kernel to speak IPv6 on it, in bytes (RFC 8200 §5).
const IPV6_MINIMUM: u32 = 1280;

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = sizes(look);
    found.extend(too_small(look));
    found.extend(uplink_too_small(look));
    found.extend(twins::judge(look));
    found.extend(taken::addresses(look));
    found.extend(ports::judge(look));
    found.extend(duplicates(&look.scene.host, None));
    for container in containers(look) {
        if let Some(inside) = &container.inside {
            found.extend(duplicates(inside, Some(container)));
        }
    }
    found
}

/// A link with an address by which this node could reach others, while there is no other way out in
/// the address's family, and a link of a default route that has no carrier.
fn uplinks(look: Look<'_>) -> Vec<Finding> {
    let host = &look.scene.host;
    let mut found = taken::ports(look);
    for link in host.links.iter().filter(|link| is_uplink(look, link)) {
        let families: Vec<IpFamily> = match link.up {
            true => default_families(host, link.index),
            // The kernel removes the routes of a link that is set down.
            false => {
                let is_missed = |one: &IpFamily| !has_default(host, *one) && is_needed(look, *one);
                families_of(link).into_iter().filter(is_missed).collect()
            }
        };
        if families.is_empty() || (link.up && link.carrier) {
            continue;
        }
        let (id, what, fix) = match link.up {
            false => {
                ("link-down", "is down", Help::Command(format!("ip link set {} up", link.name)))
            }
            true => (
                "no-carrier",
                "has no carrier",
                Help::Advice("look at the cable, or at the link below".to_owned()),
            ),
        };
        let says = format!("{} {what}, and this node has no other way to reach others", link.name);
        let mut finding = Finding::error(id, link.name.clone(), says).help(fix);
        if !link.up {
            finding = finding
                .seen("there is no default route, and the link has a global address")
                .advise(format!(
                    "then restart what configures {}: the kernel has removed its routes and IPv6 addresses",
                    link.name
                ));
        }
        for family in families {
            finding = finding
                .breaks(WayKind::Outside, Some(family))
                .breaks(WayKind::Names, Some(family))
                .breaks(WayKind::Published, Some(family));
        }
        found.push(Finding {
            hits: containers(look).map(|container| container.id.clone()).collect(),
            ..finding
        });
    }
    found
}

/// Says whether a link may lead to other machines: it is not a container's, and not one that is idle
/// without containers.
fn is_uplink(look: Look<'_>, link: &Link) -> bool {
    let is_idle =
        link.kind.as_deref().is_some_and(|kind| kind != "veth" && IDLE_KINDS.contains(&kind));
    let mut attachments = look.scene.containers.iter().flat_map(|one| &one.attachments);
    link.name != "lo"
        && !is_idle
        && link.alias.is_none()
        && !link.addresses.is_empty()
        && !attachments.any(|attachment| attachment.host_links.contains(&link.name))
}

fn families_of(link: &Link) -> Vec<IpFamily> {
    let mut families: Vec<IpFamily> = (link.addresses.iter())
        .filter(|address| !is_link_local(address.address.addr()))
        .map(|address| IpFamily::of(address.address.addr()))
        .collect();
    families.sort_unstable();
    families.dedup();
    families
}

/// Says whether a way out by a family is missed: a container is to have one, or there is none that
/// is to have any, and the node has none at all.
fn is_needed(look: Look<'_>, family: IpFamily) -> bool {
    let is_outbound = |family: IpFamily| {
        containers(look).any(|container| super::is_outbound(look.scene, container, family))
    };
    let all = IpFamily::ALL;
    is_outbound(family)
        || !all.into_iter().any(|one| is_outbound(one) || has_default(&look.scene.host, one))
}

/// The families of which the first default route leads by a link. One with a higher metric is for
/// when the first one fails.
fn default_families(namespace: &Namespace, link: u32) -> Vec<IpFamily> {
    let defaults = || {
        namespace.routes.iter().filter(|route| route.to.prefix_len() == 0 && route.table == MAIN)
    };
    let is_first = |route: &&Route| {
        let is_before = |other: &Route| other.to == route.to && other.metric < route.metric;
        !defaults().any(is_before)
    };
    let mut families: Vec<IpFamily> = defaults()
        .filter(|route| route.hops.iter().any(|hop| hop.link == Some(link)))
        .filter(is_first)
        .map(|route| IpFamily::of(route.to.addr()))
        .collect();
    families.sort_unstable();
    families.dedup();
    families
}

fn has_default(namespace: &Namespace, family: IpFamily) -> bool {
    namespace.routes.iter().any(|route| {
        route.to.prefix_len() == 0 && route.table == MAIN && IpFamily::of(route.to.addr()) == family
    })
}

/// A container's link whose packets are larger than the node's way out takes: it works while routers
/// may say so.
fn sizes(look: Look<'_>) -> Vec<Finding> {
    let host = &look.scene.host;
    let defaults =
        || host.routes.iter().filter(|route| route.to.prefix_len() == 0 && route.table == MAIN);
    // One with a higher metric is for when the first one fails.
    let is_first = |route: &&Route| {
        let is_other = |other: &Route| other.to == route.to && other.metric < route.metric;
        !defaults().any(is_other)
    };
    let out = defaults()
        .filter(is_first)
        .flat_map(|route| &route.hops)
        .filter_map(|hop| host.link_of(hop.link?))
        .filter(|link| link.name != "lo")
        .min_by_key(|link| link.mtu);
    let Some(out) = out else { return Vec::new() };
    let mut found: Vec<Finding> = Vec::new();
    for container in containers(look) {
        let Some(inside) = &container.inside else { continue };
        for attachment in &container.attachments {
            let is_routed = attachment.has_plugin("bridge") || attachment.has_plugin("ptp");
            let Some(link) = inside.link(&attachment.ifname).filter(|_| is_routed) else {
                continue;
            };
            let outbound = IpFamily::ALL
                .into_iter()
                .any(|family| super::is_outbound(look.scene, container, family));
            if link.mtu <= out.mtu || !outbound {
                continue;
            }
            let says = format!(
                "containers of network {} send packets of up to {} bytes, but {} takes only {}",
                attachment.network, link.mtu, out.name, out.mtu
            );
            let finding = Finding::warning("mtu-too-large", attachment.network.clone(), says)
                .seen("it works only while every sender gets \"fragmentation needed\"")
                .hits(container.id.clone())
                .advise(format!(
                    "\"mtu\": {} in the configuration of network {}",
                    out.mtu, attachment.network
                ));
            found.push(finding);
        }
    }
    found
}

/// A link that takes less than IPv6 needs: the kernel removes its IPv6 addresses.
fn too_small(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        for site in Site::all(look.scene, container, IpFamily::V6) {
            let inside = format!("{}: {}", container.id, site.link.name);
            let of_node = smallest(look.scene, &site);
            let netns = Some(container.netns.as_str());
            let own = (site.link, inside, netns);
            for (link, object, netns) in [own, (of_node, of_node.name.clone(), None)] {
                if link.mtu == 0 || IPV6_MINIMUM <= link.mtu {
                    continue;
                }
                let says = format!(
                    "{} takes packets of {} bytes, but IPv6 needs {IPV6_MINIMUM}: the kernel has removed its IPv6 addresses",
                    link.name, link.mtu
                );
                let finding =
                    Finding::error("mtu-too-small", object, says).hits(container.id.clone());
                let finding =
                    enlarged(look, &site, link, netns).into_iter().fold(finding, Finding::help);
                let kinds = [WayKind::Gateway, WayKind::Outside, WayKind::Between];
                let finding = kinds
                    .into_iter()
                    .fold(finding, |finding, kind| finding.breaks(kind, Some(IpFamily::V6)));
                found.push(finding);
            }
        }
    }
    found
}

/// Returns the node's link that decides what it takes from a container: a bridge that nobody gave an
/// MTU takes no more than each of its ports.
fn smallest<'s>(scene: &'s Scene, site: &Site<'s>) -> &'s Link {
    let Some(bridge) = site.bridge else { return site.seen_by };
    let ports = scene.host.links.iter().filter(|link| link.master == Some(bridge.index));
    let small = ports.filter(|link| 0 < link.mtu && link.mtu <= site.seen_by.mtu);
    let small = small.min_by_key(|link| link.mtu);
    small.filter(|_| site.seen_by.mtu < IPV6_MINIMUM).unwrap_or(site.seen_by)
}

/// Returns what gives a link an MTU with which it has IPv6, and brings back what the kernel removed. If
/// the configuration asks for the small one, a repair restores that.
fn enlarged(look: Look<'_>, site: &Site<'_>, link: &Link, netns: Option<&str>) -> Vec<Help> {
    let attachment = site.attachment;
    let is_changed = attachment.drifts.iter().any(|drift| {
        let mut items = drift.items.iter();
        items.any(|item| item.kind == ItemKind::Mtu) || drift.what.contains("MTU")
    });
    // The container's own end, of which the configuration says the MTU, has a larger one.
    let is_alone = netns.is_none() && IPV6_MINIMUM <= site.link.mtu;
    if !is_changed && !is_alone {
        return vec![Help::Advice(format!(
            "\"mtu\" of at least {IPV6_MINIMUM} in the configuration of network {}, or no IPv6 there",
            attachment.network
        ))];
    }
    let others = [site.link.mtu, site.host_end.mtu, site.seen_by.mtu];
    let mtu = others.into_iter().max().unwrap_or_default().max(IPV6_MINIMUM);
    let set = format!("{}ip link set {} mtu {mtu}", within(netns), link.name);
    [vec![Help::Command(set)], restored::of(look.scene, site.container)].concat()
}

/// The same of the node's way out: it has no IPv6 any more.
fn uplink_too_small(look: Look<'_>) -> Option<Finding> {
    let out = uplink(look.scene, true)?;
    let is_outbound =
        |container: &&Container| super::is_outbound(look.scene, container, IpFamily::V6);
    let hits: Vec<String> =
        containers(look).filter(is_outbound).map(|container| container.id.clone()).collect();
    let is_small = 0 < out.mtu && out.mtu < IPV6_MINIMUM;
    if !is_small || hits.is_empty() || has_default(&look.scene.host, IpFamily::V6) {
        return None;
    }
    let name = &out.name;
    let says = format!(
        "{name} takes packets of {} bytes, and IPv6 needs {IPV6_MINIMUM}: the kernel has removed its IPv6 addresses",
        out.mtu
    );
    let finding = Finding::error("mtu-too-small", name.clone(), says)
        .fix(format!("ip link set {name} mtu {IPV6_MINIMUM}"))
        .fix("netwright repair")
        .advise(format!(
            "the kernel does not bring back this node's own IPv6 addresses and routes on {name}: let \
             the program that configures {name} do that, or set them again"
        ))
        .breaks(WayKind::Outside, Some(IpFamily::V6))
        .breaks(WayKind::Names, Some(IpFamily::V6))
        .breaks(WayKind::Published, Some(IpFamily::V6));
    Some(Finding { hits, ..finding })
}

fn duplicates(namespace: &Namespace, container: Option<&Container>) -> Vec<Finding> {
    let mut found = Vec::new();
    for link in &namespace.links {
        for address in link.addresses.iter().filter(|address| address.duplicate) {
            let address = address.address.addr();
            let whose = container.map_or("this node", Container::called);
            let says =
                format!("another machine has {address}, which is {whose}'s on {}", link.name);
            let finding = Finding::error("address-duplicate", address.to_string(), says)
                .seen("duplicate address detection failed (dadfailed)")
                .advise(format!("find the other owner: ip neigh show {address}, and arping or ndisc6 on its link"))
                .breaks(WayKind::Outside, Some(IpFamily::of(address)))
                .breaks(WayKind::Gateway, Some(IpFamily::of(address)))
                .breaks(WayKind::Between, Some(IpFamily::of(address)));
            found.push(match container {
                Some(container) => finding.hits(container.id.clone()),
                None => finding,
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Address, NextHop, RouteKind};
    use crate::question::Answers;

    fn ids(scene: &Scene) -> Vec<&'static str> {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only: None, to: None };
        uplinks(look).into_iter().chain(judge(look)).map(|finding| finding.id).collect()
    }

    fn node() -> Scene {
        let address = Address {
            address: "192.0.2.2/24".parse().unwrap(),
            duplicate: false,
            tentative: false,
        };
        let uplink = Link {
            index: 2,
            name: "up0".to_owned(),
            mtu: 1500,
            up: true,
            carrier: true,
            addresses: vec![address.clone()],
            ..Link::default()
        };
        let idle = Link {
            index: 3,
            name: "docker0".to_owned(),
            kind: Some("bridge".to_owned()),
            up: true,
            addresses: vec![address],
            ..Link::default()
        };
        let route = Route {
            to: "0.0.0.0/0".parse().unwrap(),
            table: MAIN,
            kind: RouteKind::Unicast,
            metric: 0,
            hops: vec![NextHop { via: Some("192.0.2.1".parse().unwrap()), link: Some(2) }],
            source: None,
            mtu: None,
            protocol: Some(3),
        };
        let mut scene = Scene::default();
        scene.host.links = vec![uplink, idle];
        scene.host.routes = vec![route];
        scene
    }

    #[test]
    fn the_only_way_out_is_looked_at() {
        let mut scene = node();
        assert_eq!(ids(&scene), [""; 0]);
        scene.host.links[0].carrier = false;
        assert_eq!(ids(&scene), ["no-carrier"]);
        scene.host.links[0].up = false;
        scene.host.routes.clear();
        assert_eq!(ids(&scene), ["link-down"]);
    }

    /// Two uplinks, of which one is down: the node reaches others by the other.
    #[test]
    fn a_spare_uplink_that_is_down_is_no_fault() {
        let mut scene = node();
        let spare = Link {
            index: 4,
            name: "up1".to_owned(),
            up: false,
            carrier: false,
            ..scene.host.links[0].clone()
        };
        scene.host.links.push(spare);
        assert_eq!(ids(&scene), [""; 0]);
        // It is up and has no cable, and its route is for when the other one fails.
        scene.host.links[2].up = true;
        let mut second = scene.host.routes[0].clone();
        second.hops[0].link = Some(4);
        scene.host.routes.push(Route { metric: 700, ..second });
        assert_eq!(ids(&scene), [""; 0]);
        scene.host.routes[0].metric = 800;
        assert_eq!(ids(&scene), ["no-carrier"]);
    }

    /// No container misses what it was for.
    #[test]
    fn a_link_that_is_down_on_a_node_without_its_ip_version() {
        let mut scene = crate::path::samples::node();
        let spare = Link {
            up: false,
            carrier: false,
            ..crate::routes::samples::link(30, "up1", &["198.51.100.9/24"])
        };
        scene.host.links.push(spare);
        assert_eq!(ids(&scene), [""; 0]);
        let is_default = |route: &Route| route.to.prefix_len() == 0 && route.to.addr().is_ipv4();
        scene.host.routes.retain(|route| !is_default(route));
        assert_eq!(ids(&scene), ["link-down"]);
        for container in &mut scene.containers {
            container.attachments[0].gateways.retain(std::net::IpAddr::is_ipv6);
        }
        assert_eq!(ids(&scene), [""; 0]);
    }

    #[test]
    fn a_duplicate_address() {
        let mut scene = node();
        scene.host.links[0].addresses[0].duplicate = true;
        assert_eq!(ids(&scene), ["address-duplicate"]);
    }

    #[test]
    fn ipv6_needs_a_link_that_takes_1280_bytes() {
        let mut scene = crate::path::samples::node();
        let has = |scene: &Scene| ids(scene).contains(&"mtu-too-small");
        assert!(!has(&scene));
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.links[1].mtu = 1279;
        assert!(has(&scene));
        for container in &mut scene.containers {
            container.attachments[0].addresses.retain(|own| own.addr().is_ipv4());
        }
        assert!(!has(&scene));
    }

    #[test]
    fn the_fix_of_a_small_mtu_brings_ipv6_back() {
        let helps = |set: &dyn Fn(&mut Scene)| {
            let mut scene = crate::path::samples::node();
            scene.containers.truncate(1);
            let links = scene.host.links.iter_mut();
            links.filter(|link| link.name != "lo").for_each(|link| link.mtu = 1500);
            scene.containers[0].inside.as_mut().unwrap().links[1].mtu = 1500;
            set(&mut scene);
            let answers = Answers::default();
            let look = Look { scene: &scene, answers: &answers, only: None, to: None };
            let mut all = judge(look).into_iter().filter(|one| one.id == "mtu-too-small");
            let found = all.next().unwrap();
            (found.fix, found.advice.len())
        };
        let bridge = |scene: &mut Scene| {
            scene.host.links.iter_mut().find(|link| link.name == "cni0").unwrap().mtu = 1000;
        };
        let repair = "netwright repair c2".to_owned();
        let set = "ip link set cni0 mtu 1500".to_owned();
        assert_eq!(helps(&bridge), (vec![set, repair.clone()], 0));
        // It follows the port.
        let port = |scene: &mut Scene| {
            let small = ["cni0", "veth2"];
            let links = scene.host.links.iter_mut();
            let links = links.filter(|link| small.contains(&link.name.as_str()));
            links.for_each(|link| link.mtu = 600);
        };
        let set = "ip link set veth2 mtu 1500".to_owned();
        assert_eq!(helps(&port), (vec![set, repair.clone()], 0));
        let inside = |scene: &mut Scene| {
            scene.containers[0].inside.as_mut().unwrap().links[1].mtu = 1000;
        };
        // The configuration may ask for it.
        assert_eq!(helps(&inside), (Vec::new(), 1));
        let differs = |scene: &mut Scene| {
            inside(scene);
            let what = "MTU of \"eth0\" is 1000, not 1500".to_owned();
            let drift = crate::model::Drift {
                plugin: "bridge".to_owned(),
                code: 104,
                what,
                details: String::new(),
                items: Vec::new(),
            };
            scene.containers[0].attachments[0].drifts = vec![drift];
        };
        let set = "nsenter --net=/run/netns/c2 ip link set eth0 mtu 1500".to_owned();
        assert_eq!(helps(&differs), (vec![set, repair], 0));
    }

    #[test]
    fn ipv6_needs_an_uplink_of_that_size_too() {
        let mut scene = crate::path::samples::node();
        scene.host.links[1].mtu = 1000;
        // It was given the addresses again, or the kernel has not removed them.
        assert!(!ids(&scene).contains(&"mtu-too-small"));
        scene.host.routes.retain(|route| route.to.addr().is_ipv4());
        assert!(ids(&scene).contains(&"mtu-too-small"));
        scene.host.links[1].mtu = 1280;
        assert!(!ids(&scene).contains(&"mtu-too-small"));
    }

    /// A way out that is there for when the first one fails says nothing of packets' sizes.
    #[test]
    fn the_size_of_the_first_way_out_counts() {
        let mut scene = crate::path::samples::node();
        let set = |link: &mut Link| link.mtu = if link.name == "tun0" { 1420 } else { 1500 };
        scene.host.links.iter_mut().for_each(set);
        for container in &mut scene.containers {
            container.inside.as_mut().unwrap().links.iter_mut().for_each(set);
        }
        let has = |scene: &Scene| ids(scene).contains(&"mtu-too-large");
        let second = crate::routes::samples::route("0.0.0.0/0", 9, None);
        scene.host.routes.push(Route { metric: 700, ..second });
        assert!(!has(&scene));
        scene.host.routes[0].metric = 800;
        assert!(has(&scene));
    }
}
