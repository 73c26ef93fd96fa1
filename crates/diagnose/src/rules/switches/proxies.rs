//! Addresses that are not the node's own, and for which it answers requests for hardware addresses:
//! gateways that a plugin gives to all containers (proxy ARP), and addresses of containers in the
//! subnet of another link (proxy NDP).

use std::net::IpAddr;

use net::IpFamily;

use super::super::segments::is_unanswered;
use super::super::ways::{rule_text, text};
use super::super::{containers, is_here};
use super::arp::KINDS;
use crate::Look;
use crate::finding::{Finding, Severity, WayKind};
use crate::model::{Container, Link, Namespace};
use crate::path::{Site, uplink};
use crate::question::Answer;
use crate::routes::{RouteDecision, look_up};
use crate::whose;

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        let sites = Site::all(look.scene, container, IpFamily::V4);
        found.extend(sites.filter_map(|site| gateway(look, &site)));
        let sites = Site::all(look.scene, container, IpFamily::V6);
        found.extend(sites.flat_map(|site| unanswered(look, &site)));
    }
    found
}

/// The node does not answer for a gateway that is no address of its own: a plugin gives all
/// containers the same one, and lets the node answer for others on each link (`proxy_arp`).
fn gateway(look: Look<'_>, site: &Site<'_>) -> Option<Finding> {
    let gateway = site.router(look.scene)?;
    if !site.is_routed() {
        return None;
    }
    let mut entries = site.inside.neighbours.iter();
    let is_configured = entries.any(|one| one.permanent && one.address == gateway);
    if is_configured || !is_unanswered(look, site.container, site.link, gateway) {
        return None;
    }
    let (host, end) = (&look.scene.host, site.host_end);
    let key = format!("net.ipv4.conf.{}.proxy_arp", end.name);
    let is_on = |name: &str| {
        let key = format!("net.ipv4.conf.{name}.proxy_arp");
        host.number(&key).map(|value| value != 0)
    };
    let finding = match (is_on(&end.name), is_on("all")) {
        (Some(true), _) | (_, Some(true)) => without_route(look, site, gateway, &key)?,
        (Some(false), _) if !end.name.contains('.') => switched_off(look, site, gateway, &key),
        _ => return None,
    };
    let finding = finding
        .seen(format!(
            "no request of {} for the hardware address of {gateway} was answered",
            site.container.called()
        ))
        .hits(site.container.id.clone());
    Some(KINDS.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(IpFamily::V4))))
}

fn switched_off(look: Look<'_>, site: &Site<'_>, gateway: IpAddr, key: &str) -> Finding {
    let says = format!(
        "this node does not answer {} for its gateway {gateway}, which is no address of this node: {} answers for no others",
        site.container.called(),
        site.host_end.name
    );
    let finding = Finding::error("requests-ignored", key, says)
        .at(format!("{key} is 0"))
        .fix(format!("sysctl -w {key}=1"));
    Finding { whose: whose::of_link(site.host_end, look.scene), ..finding }
}

/// The kernel answers for others only if it has a route to them, by another link than the one on which
/// they are asked for (linux net/ipv4/arp.c `arp_process`, `arp_fwd_proxy`).
fn without_route(look: Look<'_>, site: &Site<'_>, gateway: IpAddr, key: &str) -> Option<Finding> {
    let (host, end) = (&look.scene.host, site.host_end);
    let told = |why: &str, place: String| {
        let says = format!(
            "this node does not answer containers for their gateway {gateway}, which is no address of this node: it answers for others only while it has a route to them, and {why}"
        );
        let finding = Finding::error("requests-ignored", gateway.to_string(), says).at(place);
        Finding { whose: whose::of_link(end, look.scene), ..finding }
    };
    match look_up(host, Some(site.address), gateway, Some(&end.name), Some(0)) {
        RouteDecision::Nowhere => {
            let out = uplink(look.scene, true)?;
            let finding = told("it has none", format!("{key} is on; no route leads to {gateway}"));
            Some(
                finding.fix(format!("ip route add {gateway}/32 dev {}", out.name)).advise(format!(
                    "or give this node its default route again, if it shall have one: ip route add default via GATEWAY dev {}",
                    out.name
                )),
            )
        }
        RouteDecision::Refused { route, rule } => {
            let by = match (route, rule) {
                (Some(route), _) => format!("route {}", text(route, host)),
                (None, Some(rule)) => format!("rule {}", rule_text(rule)),
                (None, None) => return None,
            };
            let finding = told(&format!("{by} refuses it"), by.clone());
            Some(
                finding
                    .advise(format!("remove {by}, or give {gateway} a route of its own before it")),
            )
        }
        RouteDecision::By { link, route, .. } if link.index == end.index => {
            let text = text(route, host);
            let why = format!("route {text} leads back to {}", end.name);
            let finding = told(&why, format!("route {text}"));
            Some(
                finding.advise(format!("remove route {text}: {gateway} needs one by another link")),
            )
        }
        _ => None,
    }
}

/// An entry lets the node answer for a container's address on another link, and that link's kernel
/// parameter keeps it from that (linux net/ipv6/ndisc.c `ndisc_recv_ns`; IPv4 needs none).
fn unanswered(look: Look<'_>, site: &Site<'_>) -> Vec<Finding> {
    let host = &look.scene.host;
    let key = |name: &str| format!("net.ipv6.conf.{name}.proxy_ndp");
    let answered = answered(look, site.container, IpFamily::V6);
    if host.number(&key("all")) != Some(0) || answered == Some(true) {
        return Vec::new();
    }
    let severity = match answered {
        Some(_) => Severity::Error,
        None => Severity::Warning,
    };
    let links = proxies(host, site.address);
    let links = links.filter(|link| host.number(&key(&link.name)) == Some(0));
    let told = links.map(|link| {
        let (address, name) = (site.address, &link.name);
        let called = site.container.called();
        let says = format!(
            "this node has an entry to answer for {address} of {called} on {name}, and does not answer: {} is 0",
            key(name)
        );
        let finding = Finding::error("requests-ignored", key(name), says)
            .at(format!("{} is 0", key(name)))
            .seen(format!("ip -6 neigh show proxy: {address} dev {name}"))
            .hits(site.container.id.clone())
            .fix(format!("sysctl -w {}=1", key(&name.replace('.', "/"))))
            .breaks(WayKind::Outside, Some(IpFamily::V6))
            .breaks(WayKind::Published, Some(IpFamily::V6));
        let mut servers = site.container.nameservers.iter().flatten();
        let finding = match servers.any(IpAddr::is_ipv6) {
            true => finding.breaks(WayKind::Names, Some(IpFamily::V6)),
            false => finding,
        };
        Finding { severity, ..finding }
    });
    told.collect()
}

/// Returns the node's links on which an entry lets it answer for an address.
pub(in crate::rules) fn proxies(host: &Namespace, address: IpAddr) -> impl Iterator<Item = &Link> {
    let entries = host.proxied.iter().filter(move |entry| entry.address == address);
    entries.filter_map(|entry| host.link_of(entry.link))
}

/// Says whether a container was answered from beyond the node; `None` if it has asked nobody there.
pub(in crate::rules) fn answered(
    look: Look<'_>,
    container: &Container,
    family: IpFamily,
) -> Option<bool> {
    let of_container = look.answers.from(Some(&container.id)).filter_map(|(asked, answer)| {
        let to = asked.destination()?;
        let is_asked = !matches!(answer, Answer::NotAsked { .. });
        (is_asked && IpFamily::of(to) == family && !is_here(look.scene, to))
            .then_some(!answer.is_lost())
    });
    of_container.reduce(|one, other| one || other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ProxiedAddress, RouteKind, Scene};
    use crate::path::samples::{ip, node};
    use crate::question::{Answers, Probe, Question};
    use crate::routes::samples::route;

    const KEY: &str = "net.ipv4.conf.veth2.proxy_arp";

    /// A container whose gateway no machine has: the node answers for it.
    fn proxying() -> Scene {
        let mut scene = node();
        scene.containers.truncate(1);
        let own = &mut scene.containers[0].attachments[0];
        own.gateways = vec![ip("169.254.1.1")];
        own.host_links = vec!["veth2".to_owned()];
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.routes[0].hops[0].via = Some(ip("169.254.1.1"));
        let end = scene.host.links.iter_mut().find(|link| link.name == "veth2").unwrap();
        end.master = None;
        scene.host.sysctls.insert(KEY.to_owned(), "1".to_owned());
        scene
    }

    /// What is told if these addresses answer for the gateway.
    fn told(scene: &Scene, macs: &[&str]) -> Vec<(&'static str, String, Vec<String>)> {
        let asked = Probe::WhoHas { address: ip("169.254.1.1"), link: "eth0".to_owned() };
        let question = Question { from: Some("c2".to_owned()), asked };
        let macs = macs.iter().map(|mac| (*mac).to_owned()).collect();
        let answers = Answers { all: vec![(question, Answer::Owners { macs })] };
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|one| (one.id, one.object, one.fix)).collect()
    }

    #[test]
    fn a_link_that_answers_for_no_others() {
        let mut scene = proxying();
        scene.host.sysctls.insert(KEY.to_owned(), "0".to_owned());
        let fix = vec![format!("sysctl -w {KEY}=1")];
        assert_eq!(told(&scene, &[]), [("requests-ignored", KEY.to_owned(), fix)]);
        assert_eq!(told(&scene, &["02:00:00:00:00:12"]), []);
        // The larger of both counts.
        scene.host.sysctls.insert("net.ipv4.conf.all.proxy_arp".to_owned(), "1".to_owned());
        assert_eq!(told(&scene, &[]), []);
        assert_eq!(told(&proxying(), &[]), []);
    }

    /// The kernel answers for others only while it has a route to them.
    #[test]
    fn a_gateway_to_which_the_node_has_no_route() {
        let mut scene = proxying();
        scene.host.routes[0] = route("198.51.100.0/24", 2, Some("192.0.2.1"));
        let fix = vec!["ip route add 169.254.1.1/32 dev up0".to_owned()];
        let gone = [("requests-ignored", "169.254.1.1".to_owned(), fix)];
        assert_eq!(told(&scene, &[]), gone);
        assert_eq!(told(&scene, &["02:00:00:00:00:12"]), []);
        // By another link, it answers.
        scene.host.routes.push(route("169.254.1.1/32", 2, None));
        assert_eq!(told(&scene, &[]), []);
        let last = scene.host.routes.last_mut().unwrap();
        *last = route("169.254.0.0/16", 12, None);
        assert_eq!(told(&scene, &[])[0].1, "169.254.1.1");
        let last = scene.host.routes.last_mut().unwrap();
        last.kind = RouteKind::Unreachable;
        assert_eq!(told(&scene, &[])[0].1, "169.254.1.1");
    }

    #[test]
    fn an_entry_that_has_no_effect() {
        let key = |link: &str| format!("net.ipv6.conf.{link}.proxy_ndp");
        let mut scene = node();
        scene.host.proxied = vec![ProxiedAddress { link: 2, address: ip("fd00:88::2") }];
        for (link, value) in [("all", "0"), ("up0", "0")] {
            scene.host.sysctls.insert(key(link), value.to_owned());
        }
        let told = |scene: &Scene, answer: Option<Answer>| {
            let asked = Probe::Echo { to: ip("2001:db8::1") };
            let question = Question { from: Some("c2".to_owned()), asked };
            let all = answer.into_iter().map(|answer| (question.clone(), answer)).collect();
            let answers = Answers { all };
            let found = judge(Look { scene, answers: &answers, only: None, to: None });
            found.into_iter().map(|one| (one.severity, one.fix.join("; "))).collect::<Vec<_>>()
        };
        let fix = || "sysctl -w net.ipv6.conf.up0.proxy_ndp=1".to_owned();
        let silent = Some(Answer::Silent { hops: Vec::new() });
        assert_eq!(told(&scene, silent.clone()), [(Severity::Error, fix())]);
        assert_eq!(told(&scene, None), [(Severity::Warning, fix())]);
        // Something else lets answers come back.
        assert_eq!(told(&scene, Some(Answer::Reached { after_us: 1 })), []);
        for link in ["all", "up0"] {
            let mut sound = scene.clone();
            sound.host.sysctls.insert(key(link), "1".to_owned());
            assert_eq!(told(&sound, silent.clone()), []);
        }
        // Of another address.
        scene.host.proxied[0].address = ip("fd00:88::99");
        assert_eq!(told(&scene, silent), []);
    }
}
