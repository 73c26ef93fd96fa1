//! Switches and tables of the whole node.

mod arp;
mod forwarding;
mod hops;
mod ipsec;
pub(super) mod proxies;
mod tables;

use std::net::IpAddr;

use net::IpFamily;

use super::ways::{may_mark, routers, samples};
use super::{Rule, containers};
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, WayKind};
use crate::model::{Link, Namespace, Port, Scene};
use crate::path::Site;
use crate::question::Answer;
use crate::routes::{RouteDecision, look_up};

pub(super) const RULE: Rule = Rule {
    judges: "kernel parameters",
    ids: &[
        "forwarding-off",
        "hops-too-few",
        "ipsec-drops",
        "requests-ignored",
        "reverse-path-filter",
        "conntrack-full",
        "neighbour-table-full",
    ],
    judge,
    ..Rule::NONE
};

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(forwarding::judge(look, IpFamily::V4));
    found.extend(forwarding::judge(look, IpFamily::V6));
    found.extend(reverse_path(look));
    found.extend(other_uplinks(look));
    found.extend(arp::judge(look));
    found.extend(proxies::judge(look));
    found.extend(tables::judge(look));
    found.extend(hops::judge(look));
    found.extend(ipsec::judge(look));
    found
}

/// The kernel drops what comes in by a link by which it would not answer. Only a probe that ended so
/// is a proof: a link that is strict is no fault.
fn reverse_path(look: Look<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for (question, answer) in &look.answers.all {
        let (Answer::Silent { hops } | Answer::Unreachable { hops, .. }) = answer else { continue };
        let Some(hop) = hops.iter().find(|hop| {
            hop.dropped.as_ref().is_some_and(|(_, reason)| reason.contains("RPFILTER"))
        }) else {
            continue;
        };
        let link = hop.link.clone().unwrap_or_else(|| "a link".to_owned());
        let inside = hop.container.as_deref().and_then(|id| look.scene.container(id));
        let (object, whose, tool) = match inside {
            None => (link.clone(), "this node", String::new()),
            Some(inside) => {
                let tool = within(inside.netns.as_str());
                (format!("{}: {link}", inside.id), inside.called(), tool)
            }
        };
        let says = format!(
            "the reverse path filter drops what comes in by {link}: {whose} would answer by another link"
        );
        let finding = Finding::error("reverse-path-filter", object, says)
            .at(format!("net.ipv4.conf.{link}.rp_filter and net.ipv4.conf.all.rp_filter"))
            .seen("the kernel dropped a probe's packet there, with the reason IP_RPFILTER")
            // The larger value of the link's and that of all counts (linux Documentation/networking/ip-sysctl.rst).
            .fix(format!("{tool}sysctl -w net.ipv4.conf.{link}.rp_filter=2"))
            .breaks(WayKind::Outside, Some(IpFamily::V4))
            .breaks(WayKind::Names, Some(IpFamily::V4))
            .breaks(WayKind::Published, Some(IpFamily::V4));
        found.push(match &question.from {
            Some(container) => finding.hits(container.clone()),
            None => finding,
        });
    }
    found
}

/// The larger one of a link's value and that of all counts (linux
/// Documentation/networking/ip-sysctl.rst).
pub(super) fn larger(namespace: &Namespace, link: &str, key: &str) -> i64 {
    let keys = [link, "all"].map(|name| format!("net.ipv4.conf.{name}.{key}"));
    keys.iter().filter_map(|key| namespace.number(key)).max().unwrap_or_default()
}

/// Links out of the node whose reverse path filter is strict.
pub(super) struct StrictLinks<'s> {
    host: &'s Namespace,
    links: Vec<&'s Link>,
    /// The mark that packets have; `None`: a filter may give them one.
    mark: Option<u32>,
}

impl<'s> StrictLinks<'s> {
    pub(super) fn of(scene: &'s Scene) -> Self {
        let host = &scene.host;
        let has_address =
            |link: &Link| link.addresses.iter().any(|own| own.address.addr().is_ipv4());
        let links = host.links.iter().filter(|link| {
            link.up
                && link.carrier
                && has_address(link)
                && routers::leads_out(host, link)
                && larger(host, &link.name, "rp_filter") == 1
        });
        let links: Vec<&Link> = links.collect();
        let mark = if !links.is_empty() && may_mark(scene) { None } else { Some(0) };
        StrictLinks { host, links, mark }
    }

    /// Returns those by which clients from beyond their subnets may come to a published port, and that
    /// surely drop them; each with the link by which the node would answer. The kernel translates the
    /// destination first, so a rule for the node's own address does not count.
    pub(super) fn of_port(&self, site: &Site<'_>, port: &Port) -> Vec<(&'s Link, &'s Link)> {
        if self.links.is_empty() || site.address.is_ipv6() {
            return Vec::new();
        }
        let at = port.host_ip.filter(|at| !at.is_unspecified());
        let is_at = |link: &&&Link| {
            let mut all = link.addresses.iter().map(|own| own.address.addr());
            at.is_none_or(|at| all.any(|own| own == at))
        };
        let answered =
            |to: IpAddr| match look_up(self.host, Some(site.address), to, None, self.mark) {
                RouteDecision::By { link, .. } => Some(link),
                _ => None,
            };
        let all = samples(IpFamily::V4).map(answered);
        let Some(out) = all[0] else { return Vec::new() };
        let is_other =
            |link: &&&Link| all.iter().all(|out| out.is_some_and(|out| out.index != link.index));
        let links = self.links.iter().filter(is_at).filter(is_other);
        links.map(|link| (*link, out)).collect()
    }
}

/// Says whether a link has a default route, in any table: then hosts from everywhere may come by it.
pub(super) fn is_uplink(host: &Namespace, link: &Link) -> bool {
    host.routes.iter().any(|route| {
        route.to.addr().is_ipv4()
            && route.to.prefix_len() == 0
            && route.hops.iter().any(|hop| hop.link == Some(link.index))
    })
}

/// What comes to a published port by another uplink than that of the answers. Nobody has tried it.
fn other_uplinks(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let strict = StrictLinks::of(look.scene);
    for container in containers(look) {
        for site in Site::all(look.scene, container, IpFamily::V4) {
            let ports = site.attachment.ports.iter();
            let links = ports.flat_map(|port| strict.of_port(&site, port));
            for (link, out) in links.filter(|(link, _)| is_uplink(&look.scene.host, link)) {
                let (name, out) = (&link.name, &out.name);
                let says = format!(
                    "the reverse path filter drops what comes in by {name} for published ports from beyond its subnets: this node answers that by {out}"
                );
                let finding = Finding::warning("reverse-path-filter", name.clone(), says)
                    .at(format!("net.ipv4.conf.{name}.rp_filter and net.ipv4.conf.all.rp_filter"))
                    .seen(format!("the larger one is 1 (strict), and the default route by {out} is preferred to that by {name}; no probe was sent so"))
                    .hits(container.id.clone())
                    .fix(format!("sysctl -w net.ipv4.conf.{name}.rp_filter=2"))
                    .advise(format!("then {name} takes packets of every sender to whom any route leads, and the answers leave by {out}"))
                    .breaks(WayKind::Published, Some(IpFamily::V4));
                found.push(finding);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Attachment, Container};
    use crate::question::{Answers, Hop, Probe, Question};

    fn ids(scene: &Scene, answers: &Answers) -> Vec<&'static str> {
        let look = Look { scene, answers, only: None, to: None };
        judge(look).into_iter().map(|finding| finding.id).collect()
    }

    fn node() -> Scene {
        let attachment = Attachment {
            network: "mynet".to_owned(),
            ifname: "eth0".to_owned(),
            plugins: vec!["bridge".to_owned()],
            gateways: vec!["10.88.0.1".parse().unwrap()],
            addresses: vec!["10.88.0.2/24".parse().unwrap()],
            ..Attachment::default()
        };
        let container = Container {
            id: "c1".to_owned(),
            alive: Some(true),
            attachments: vec![attachment],
            ..Container::default()
        };
        let mut scene = Scene { containers: vec![container], ..Scene::default() };
        let sysctls = &mut scene.host.sysctls;
        sysctls.insert("net.ipv4.ip_forward".to_owned(), "1".to_owned());
        sysctls.insert("net.ipv6.conf.all.forwarding".to_owned(), "0".to_owned());
        scene
    }

    #[test]
    fn forwarding_matters_where_a_container_needs_it() {
        let mut scene = node();
        // No container has IPv6.
        assert_eq!(ids(&scene, &Answers::default()), [""; 0]);
        scene.host.sysctls.insert("net.ipv4.ip_forward".to_owned(), "0\n".to_owned());
        assert_eq!(ids(&scene, &Answers::default()), ["forwarding-off"]);
    }

    #[test]
    fn a_drop_by_the_reverse_path_filter_is_proved_by_a_probe() {
        let hop = Hop {
            container: None,
            link: Some("up1".to_owned()),
            dropped: Some(("ip_rcv_finish_core".to_owned(), "IP_RPFILTER".to_owned())),
            rule: None,
            back: true,
        };
        let to = "198.51.100.1".parse().unwrap();
        let question = Question { from: Some("c1".to_owned()), asked: Probe::Echo { to } };
        let answers = Answers { all: vec![(question, Answer::Silent { hops: vec![hop] })] };
        let node = node();
        let look = Look { scene: &node, answers: &answers, only: None, to: None };
        let found = judge(look);
        assert_eq!(found[0].id, "reverse-path-filter");
        // Other links stay strict.
        assert_eq!(found[0].fix, ["sysctl -w net.ipv4.conf.up1.rp_filter=2"]);
        // A container with two networks has such a filter too.
        let mut within = answers.clone();
        let Answer::Silent { hops } = &mut within.all[0].1 else { panic!("not silent") };
        hops[0].container = Some("c1".to_owned());
        let found = judge(Look { answers: &within, ..look });
        assert_eq!(found[0].object, "c1: up1");
        assert!(found[0].fix[0].starts_with("nsenter --net="), "{:?}", found[0].fix);
    }

    #[test]
    fn clients_that_come_by_a_second_uplink() {
        use crate::model::Route;
        use crate::path::samples::node as with_port;
        use crate::routes::samples::{link, route};
        let mut scene = with_port();
        let tunnel = scene.host.links.iter_mut().find(|link| link.name == "tun0").unwrap();
        tunnel.kind = Some("tun".to_owned());
        scene.host.links.push(link(8, "up1", &["203.0.113.2/24"]));
        scene.host.routes.push(route("203.0.113.0/24", 8, None));
        let second = Route { metric: 100, ..route("0.0.0.0/0", 8, Some("203.0.113.1")) };
        scene.host.routes.push(second);
        let found = |scene: &Scene| {
            let answers = Answers::default();
            other_uplinks(Look { scene, answers: &answers, only: None, to: None })
        };
        assert_eq!(found(&scene), []);
        let key = |link: &str| format!("net.ipv4.conf.{link}.rp_filter");
        scene.host.sysctls.insert(key("all"), "1".to_owned());
        let all = found(&scene);
        assert_eq!((all.len(), all[0].object.as_str(), &*all[0].hits[0]), (1, "up1", "c2"));
        assert_eq!(all[0].fix, ["sysctl -w net.ipv4.conf.up1.rp_filter=2"]);
        // A loose one, and a port that is published at the first uplink alone.
        scene.host.sysctls.insert(key("up1"), "2".to_owned());
        assert_eq!(found(&scene), []);
        scene.host.sysctls.insert(key("up1"), "1".to_owned());
        scene.containers[0].attachments[0].ports[0].host_ip = Some("192.0.2.2".parse().unwrap());
        assert_eq!(found(&scene), []);
        // A network of machines on the link alone, as far as is known.
        scene.containers[0].attachments[0].ports[0].host_ip = None;
        scene.host.routes.pop();
        assert_eq!(found(&scene), []);
        let site = Site::all(&scene, &scene.containers[0], IpFamily::V4).next().unwrap();
        let port = &site.attachment.ports[0];
        assert_eq!(StrictLinks::of(&scene).of_port(&site, port)[0].0.name, "up1");
    }
}
