//! Ways of containers that were not examined, and why: they are neither sound nor wrong.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;
use serde::Serialize;

use super::asked::bridge_of_runtime;
use super::switches::{StrictLinks, is_uplink, larger};
use super::ways::{links_out, next_router, samples};
use super::{containers, is_here, is_outbound, leads_beyond, names};
use crate::Look;
use crate::causes::covers;
use crate::finding::{Finding, Way, WayKind};
use crate::model::{Container, Link, Port, Scene, Transport};
use crate::path::{Site, links_of_containers, uplink};
use crate::question::{Answer, Probe};
use crate::routes::{RouteDecision, look_up};
use crate::whose::{self, Owner, owner_of_link};

const NO_PROBE: &str = "no probe was sent";
const UNKNOWN_JOINT: &str = "doctor does not know how its interface is connected";

/// A way of containers, and why it was not examined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnexaminedWay {
    /// Which way.
    pub way: WayKind,
    /// The IP version; `None`: both.
    #[serde(serialize_with = "crate::finding::family_name")]
    pub family: Option<IpFamily>,
    /// The IDs of the containers; none if they are not known.
    pub hits: Vec<String>,
    /// Why it was not examined.
    pub why: String,
}

/// Says that a question was answered, or why that is not known.
enum Attempt {
    Answered,
    Lost(String),
    Never,
}

/// Answers and findings by the container that they concern.
struct AnswerIndex<'l> {
    look: Look<'l>,
    answers: HashMap<Option<&'l str>, Vec<(&'l Probe, &'l Answer)>>,
    findings: HashMap<&'l str, Vec<&'l Finding>>,
    of_all: Vec<&'l Finding>,
    strict: StrictLinks<'l>,
}

/// Returns what was not examined. `findings` has all that is told of the ways.
pub(crate) fn all(look: Look<'_>, findings: &[Finding]) -> Vec<UnexaminedWay> {
    let known = AnswerIndex::of(look, findings);
    let mut same: BTreeMap<(WayKind, Option<IpFamily>, String), Vec<String>> = BTreeMap::new();
    for container in containers(look) {
        let is_made = container.attachments.iter().any(|one| one.unfinished.is_none());
        // Otherwise a finding tells that nothing is known of it.
        if container.inside.is_none() || !is_made {
            continue;
        }
        for (way, family, why) in known.of_container(container) {
            same.entry((way, family, why)).or_default().push(container.id.clone());
        }
    }
    let each = same.into_iter();
    let each = each.map(|((way, family, why), hits)| UnexaminedWay { way, family, hits, why });
    let strangers = match look.only {
        Some(_) => containers(look).filter_map(|one| stranger(look.scene, one)).collect(),
        None => strangers(look.scene),
    };
    each.chain(strangers).collect()
}

/// Such a container, if the caller named it.
fn stranger(scene: &Scene, container: &Container) -> Option<UnexaminedWay> {
    let bridge =
        bridge_of_runtime(scene, container).filter(|_| container.attachments.is_empty())?;
    let whose = whose::of_link(bridge, scene).unwrap_or_default();
    let why = format!("it is on {} ({whose}), and no CNI plugin attached it", bridge.name);
    let hits = vec![container.id.clone()];
    Some(UnexaminedWay { way: WayKind::Outside, family: None, hits, why })
}

/// Containers on bridges that Docker and podman make for networks of their own. No record of a plugin
/// names them, so they are no part of a scene.
fn strangers(scene: &Scene) -> Vec<UnexaminedWay> {
    let known = links_of_containers(scene);
    let own = |bridge: &&Link| {
        bridge.kind.as_deref() == Some("bridge")
            && !known.contains(bridge.name.as_str())
            && matches!(owner_of_link(bridge), Some(Owner::Docker | Owner::Podman))
    };
    let bridges = scene.host.links.iter().filter(own);
    bridges.filter_map(|bridge| on_bridge(scene, bridge, &known)).collect()
}

fn on_bridge(scene: &Scene, bridge: &Link, known: &HashSet<&str>) -> Option<UnexaminedWay> {
    let is_port = |link: &&Link| {
        let is_other = link.peer_netnsid.is_some() && !known.contains(link.name.as_str());
        link.master == Some(bridge.index) && is_other
    };
    let count = match scene.host.links.iter().filter(is_port).count() {
        0 => return None,
        1 => "1 container".to_owned(),
        count => format!("{count} containers"),
    };
    let name = &bridge.name;
    let whose = whose::of_link(bridge, scene).map(|whose| format!(" ({whose})"));
    let whose = whose.unwrap_or_default();
    let why = format!(
        "{count} on {name}{whose}: no CNI plugin attached what is there, and doctor examines only what one did"
    );
    Some(UnexaminedWay { way: WayKind::Outside, family: None, hits: Vec::new(), why })
}

impl<'l> AnswerIndex<'l> {
    fn of<'f: 'l>(look: Look<'l>, findings: &'f [Finding]) -> Self {
        let mut known = AnswerIndex {
            look,
            answers: HashMap::new(),
            findings: HashMap::new(),
            of_all: findings.iter().filter(|finding| finding.hits.is_empty()).collect(),
            strict: StrictLinks::of(look.scene),
        };
        for (question, answer) in &look.answers.all {
            let own = known.answers.entry(question.from.as_deref()).or_default();
            own.push((&question.asked, answer));
        }
        for finding in findings {
            for id in &finding.hits {
                known.findings.entry(id.as_str()).or_default().push(finding);
            }
        }
        known
    }

    /// Says whether a finding is about a way of a container.
    fn is_told(&self, id: &str, kind: WayKind, family: Option<IpFamily>) -> bool {
        let way = Way { container: Some(id.to_owned()), kind, family };
        let own = self.findings.get(id).into_iter().flatten();
        let mut all = own.chain(&self.of_all);
        all.any(|finding| finding.breaks.iter().any(|broken| covers(broken, &way)))
    }

    /// Says what came of those questions of a container, or of the node, that are meant.
    fn tried(&self, from: Option<&str>, is_meant: impl Fn(&Probe) -> bool) -> Attempt {
        let mut tried = Attempt::Never;
        for (asked, answer) in self.answers.get(&from).into_iter().flatten() {
            if !is_meant(asked) {
                continue;
            }
            tried = match answer {
                Answer::NotAsked { reason } => Attempt::Lost(reason.clone()),
                Answer::Silent { .. } | Answer::Unreachable { .. } => Attempt::Lost(format!(
                    "{} does not answer, and no rule or link shows why",
                    asked.whom()
                )),
                answer if answer.has_owner() == Some(false) => continue,
                _ => return Attempt::Answered,
            };
        }
        tried
    }

    fn of_container(&self, container: &Container) -> Vec<(WayKind, Option<IpFamily>, String)> {
        let mut found = Vec::new();
        for family in IpFamily::ALL {
            let whole = [
                (WayKind::Gateway, self.gateway(container, family)),
                (WayKind::Outside, self.outside(container, family)),
            ];
            let each = whole.into_iter().filter_map(|(way, why)| Some((way, Some(family), why?)));
            found.extend(each);
        }
        found.extend(strict(container).map(|why| (WayKind::Outside, Some(IpFamily::V4), why)));
        let servers = names::servers(container);
        let names = servers.filter_map(|server| {
            let why = self.name(container, server)?;
            Some((WayKind::Names, Some(IpFamily::of(server)), why))
        });
        found.extend(names);
        let ports = container.attachments.iter().flat_map(|attachment| &attachment.ports);
        let ports =
            ports.filter_map(|port| Some((WayKind::Published, None, self.port(container, port)?)));
        found.extend(ports);
        found.retain(|(way, family, _)| {
            let kinds: &[WayKind] = match way {
                WayKind::Published => &[WayKind::Published, WayKind::PublishedHere],
                other => std::slice::from_ref(other),
            };
            !kinds.iter().any(|kind| self.is_told(&container.id, *kind, *family))
        });
        found.dedup();
        found
    }

    /// Says why a question has no answer; `None` if it has one.
    fn why(&self, tried: Attempt, otherwise: &str) -> Option<String> {
        match tried {
            Attempt::Answered => None,
            Attempt::Lost(why) => Some(why),
            Attempt::Never if self.look.answers.all.is_empty() => Some(NO_PROBE.to_owned()),
            Attempt::Never => Some(otherwise.to_owned()),
        }
    }

    fn gateway(&self, container: &Container, family: IpFamily) -> Option<String> {
        let gateways = container.attachments.iter().flat_map(|attachment| &attachment.gateways);
        let mut of_family = gateways.filter(|gateway| IpFamily::of(**gateway) == family);
        of_family.find_map(|gateway| {
            let is_meant = |asked: &Probe| match asked {
                Probe::Echo { to } => to == gateway,
                Probe::WhoHas { address, .. } => address == gateway,
                _ => false,
            };
            self.why(self.tried(Some(&container.id), is_meant), UNKNOWN_JOINT)
        })
    }

    fn outside(&self, container: &Container, family: IpFamily) -> Option<String> {
        let scene = self.look.scene;
        let own = own_way(container, family);
        if !leads_beyond(scene, container, family) && own.is_none() {
            return None;
        }
        let [sample, ..] = samples(family);
        let by_node = is_outbound(scene, container, family);
        // Where this node has no way out itself, another finding tells that, or it is meant.
        if by_node && look_up(&scene.host, None, sample, None, Some(0)) == RouteDecision::Nowhere {
            return None;
        }
        // What goes by another link shows nothing of one of its own.
        let is_by_own =
            |to: IpAddr| own.is_none_or(|(link, _)| own_link(container, to) == Some(link));
        let is_beyond =
            |to: IpAddr| IpFamily::of(to) == family && !is_here(scene, to) && is_by_own(to);
        let is_meant = |asked: &Probe| asked.destination().is_some_and(is_beyond);
        let by_own = own.map(|(link, route)| {
            format!(
                "it leaves by {link}, an interface of its own (route {route}), and no probe was sent there; --to names a machine"
            )
        });
        let otherwise = by_own.unwrap_or_else(|| match next_router(self.look, family) {
            Some(router) => {
                format!("no probe was sent to {router}, this node's router; --to names a machine")
            }
            None => "this node knows no router that a container may ask; --to names a machine"
                .to_owned(),
        });
        let why = self.why(self.tried(Some(&container.id), is_meant), &otherwise);
        why.or_else(|| self.beyond_routers(container, sample).filter(|_| own.is_none() && by_node))
    }

    /// Of several default routes the preferred one may lead nowhere, though its router answers: that
    /// only a machine beyond the routers shows.
    fn beyond_routers(&self, container: &Container, sample: IpAddr) -> Option<String> {
        let host = &self.look.scene.host;
        let links = links_out(host, sample)?;
        let is_beyond = |to: IpAddr| {
            IpFamily::of(to) == IpFamily::of(sample)
                && matches!(
                    look_up(host, None, to, None, Some(0)),
                    RouteDecision::By { route, .. } if route.to.prefix_len() == 0
                )
        };
        let is_meant = |asked: &Probe| asked.destination().is_some_and(is_beyond);
        let otherwise = format!(
            "this node has default routes by {}, and no probe was sent beyond their routers; --to names a machine",
            links.join(" and ")
        );
        self.why(self.tried(Some(&container.id), is_meant), &otherwise)
    }

    fn name(&self, container: &Container, server: IpAddr) -> Option<String> {
        if server.is_loopback() {
            return Some(format!("{server} is its own loopback, which is not asked"));
        }
        let is_meant = |asked: &Probe| *asked == Probe::name(container, server);
        let otherwise = match names::is_switched(self.look.scene, container, IpFamily::of(server)) {
            true => format!("Open vSwitch decides whether it reaches {server}"),
            false => format!("it has no default route, so {server} was not asked"),
        };
        self.why(self.tried(Some(&container.id), is_meant), &otherwise)
    }

    fn port(&self, container: &Container, port: &Port) -> Option<String> {
        let named = format!("{}/{}", port.host, port.transport.as_str());
        if port.transport != Transport::Tcp {
            return Some(format!("{named} was not tried: no question by UDP suits every program"));
        }
        let nets = || container.attachments.iter().flat_map(|one| &one.addresses);
        let is_meant = |asked: &Probe| match asked {
            Probe::Connect { to } => {
                to.port() == port.host && !nets().any(|net| net.addr() == to.ip())
            }
            _ => false,
        };
        let why = self.why(self.tried(None, is_meant), "this node has no way to ask");
        let why = why
            .or_else(|| silent_address(self.look.scene, port))
            .or_else(|| self.strict_uplink(container, port))?;
        Some(format!("{named}: {why}"))
    }

    /// By another link than that of the answers, clients may come to a port from beyond the link's
    /// subnets.
    fn strict_uplink(&self, container: &Container, port: &Port) -> Option<String> {
        let scene = self.look.scene;
        let mut sites = Site::all(scene, container, IpFamily::V4);
        let site = sites.find(|site| site.attachment.ports.contains(port))?;
        let mut all = self.strict.of_port(&site, port).into_iter();
        let (link, out) = all.find(|(link, _)| !is_uplink(&scene.host, link))?;
        Some(format!(
            "what comes in by {} from beyond its subnets is dropped there (rp_filter is 1), as this node would answer by {}; no probe was sent so",
            link.name, out.name
        ))
    }
}

/// A port of an address that is on the node's loopback, for which the node answers nobody on its links:
/// the node itself reaches it all the same.
fn silent_address(scene: &Scene, port: &Port) -> Option<String> {
    let host = &scene.host;
    let address = port.host_ip.filter(|at| at.is_ipv4() && !at.is_loopback())?;
    let owner = host.owner_of(address).filter(|link| link.name == "lo")?;
    let out = uplink(scene, true)?;
    let ignores = larger(host, &out.name, "arp_ignore");
    (ignores != 0).then(|| {
        format!(
            "{address} is on {}, and this node does not answer on {} who asks for it (arp_ignore is {ignores}), so another machine has to lead it here",
            owner.name, out.name
        )
    })
}

/// A container of several networks drops what comes in by one of them from machines that it would
/// answer by another one (`rp_filter` 1). Nobody has sent such packets.
fn strict(container: &Container) -> Option<String> {
    let inside = container.inside.as_ref()?;
    let [sample, ..] = samples(IpFamily::V4);
    let attached = container.attachments.iter().filter_map(|one| inside.link(&one.ifname));
    let mut strict = attached.filter_map(|link| {
        let own = link.addresses.iter().map(|own| own.address.addr()).find(IpAddr::is_ipv4)?;
        let routed = look_up(inside, Some(own), sample, None, Some(0));
        let RouteDecision::By { link: other, .. } = routed else { return None };
        let is_strict = larger(inside, &link.name, "rp_filter") == 1 && other.index != link.index;
        is_strict.then(|| {
            format!(
                "what comes in by {} from beyond its subnet is dropped there (rp_filter is 1), as {} would answer by {}; no probe was sent so",
                link.name,
                container.called(),
                other.name
            )
        })
    });
    strict.next()
}

/// Returns the interface of a container's own by which it reaches whatever has no route of its own,
/// such as a VPN's, and the route: no attachment made it.
fn own_way(container: &Container, family: IpFamily) -> Option<(&str, IpNet)> {
    let inside = container.inside.as_ref()?;
    let mut all =
        samples(family).into_iter().map(|to| match look_up(inside, None, to, None, Some(0)) {
            RouteDecision::By { link, route, .. } => Some((link.name.as_str(), route.to)),
            _ => None,
        });
    let first = all.next()??;
    let is_attached = container.attachments.iter().any(|one| one.ifname == first.0);
    let is_one = all.all(|other| other.is_some_and(|(link, _)| link == first.0));
    (!is_attached && is_one && first.0 != "lo").then_some(first)
}

/// The interface by which a container reaches an address.
fn own_link(container: &Container, to: IpAddr) -> Option<&str> {
    match look_up(container.inside.as_ref()?, None, to, None, Some(0)) {
        RouteDecision::By { link, .. } => Some(link.name.as_str()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Scene;
    use crate::path::samples::{ip, node};
    use crate::question::{Answers, Question};

    fn told(scene: &Scene, all: Vec<(Question, Answer)>) -> Vec<String> {
        let answers = Answers { all };
        let look = Look { scene, answers: &answers, only: None, to: None };
        let all = super::all(look, &[]).into_iter();
        all.map(|one| format!("{:?} {:?} {}: {}", one.way, one.family, one.hits.join(" "), one.why))
            .collect()
    }

    fn asked(from: &str, asked: Probe) -> (Question, Answer) {
        let from = Some(from.to_owned());
        (Question { from, asked }, Answer::Reached { after_us: 300 })
    }

    #[test]
    fn what_was_answered_is_examined() {
        let mut scene = node();
        scene.containers.truncate(1);
        scene.containers[0].attachments[0].ports.clear();
        let all = ["10.88.0.1", "fd00:88::1", "192.0.2.1", "2001:db8::1"];
        let all: Vec<_> = all.map(|to| asked("c2", Probe::Echo { to: ip(to) })).into();
        assert_eq!(told(&scene, all.clone()), [""; 0]);
        // Only what has an answer.
        let three = all[..3].to_vec();
        assert_eq!(told(&scene, three).len(), 1);
        assert!(told(&scene, Vec::new()).iter().all(|line| line.ends_with(NO_PROBE)));
        assert_eq!(told(&scene, Vec::new()).len(), 4);
    }

    /// The router answers by the network, and the VPN was not tried.
    #[test]
    fn a_way_by_an_interface_of_its_own_is_told() {
        use crate::routes::samples::{link, route};
        let mut scene = node();
        scene.containers.truncate(1);
        scene.containers[0].attachments[0].ports.clear();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.links.push(link(7, "tun0", &["10.9.0.2/24"]));
        inside.routes.push(route("0.0.0.0/1", 7, None));
        inside.routes.push(route("128.0.0.0/1", 7, None));
        inside.routes.push(route("192.0.2.1/32", 2, Some("10.88.0.1")));
        let all = ["10.88.0.1", "fd00:88::1", "192.0.2.1", "2001:db8::1"];
        let all: Vec<_> = all.map(|to| asked("c2", Probe::Echo { to: ip(to) })).into();
        let line = "Outside Some(V4) c2: it leaves by tun0, an interface of its own (route 0.0.0.0/1), \
                    and no probe was sent there; --to names a machine";
        assert_eq!(told(&scene, all.clone()), [line]);
        let named = Probe::Connect { to: "198.51.100.1:80".parse().unwrap() };
        assert_eq!(told(&scene, [all, vec![asked("c2", named)]].concat()), [""; 0]);
    }

    /// The router of the preferred one may know no way.
    #[test]
    fn of_several_default_routes_no_router_shows_which_leads_out() {
        use crate::routes::samples::{link, route};
        let mut scene = node();
        scene.containers.truncate(1);
        scene.containers[0].attachments[0].ports.clear();
        scene.host.links.push(link(30, "usb0", &["192.168.42.5/24"]));
        scene.host.routes.push(route("192.168.42.0/24", 30, None));
        scene.host.routes.push(route("0.0.0.0/0", 30, Some("192.168.42.129")));
        let all = ["10.88.0.1", "fd00:88::1", "192.0.2.1", "192.168.42.129", "2001:db8::1"];
        let all: Vec<_> = all.map(|to| asked("c2", Probe::Echo { to: ip(to) })).into();
        let line = "Outside Some(V4) c2: this node has default routes by up0 and usb0, and no probe was \
                    sent beyond their routers; --to names a machine";
        assert_eq!(told(&scene, all.clone()), [line]);
        let named = Probe::Connect { to: "198.51.100.1:80".parse().unwrap() };
        assert_eq!(told(&scene, [all, vec![asked("c2", named)]].concat()), [""; 0]);
    }

    /// The subnet of a macvlan's network has other machines in it.
    #[test]
    fn a_router_of_the_containers_own_network_is_beyond_the_node() {
        let set =
            |link: &mut crate::model::Link| link.macvlan = Some(crate::model::MacvlanMode::Bridge);
        let mut scene = crate::path::samples::on_parent("macvlan", set);
        scene.containers.truncate(1);
        scene.networks[0].plugins = vec!["macvlan".to_owned()];
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.routes.retain(|route| route.to.addr().is_ipv4());
        scene.containers[0].attachments[0].gateways.truncate(1);
        let all = vec![asked("c2", Probe::Echo { to: ip("10.88.0.254") })];
        assert_eq!(told(&scene, all), [""; 0]);
    }

    /// Docker attaches containers of its own networks itself.
    #[test]
    fn containers_that_no_plugin_attached_are_told_by_their_bridge() {
        use crate::routes::samples::link;
        let mut scene = Scene::default();
        let mut bridge = link(3, "docker0", &["172.17.0.1/16"]);
        bridge.kind = Some("bridge".to_owned());
        scene.host.links.push(bridge);
        assert_eq!(told(&scene, Vec::new()), [""; 0]);
        for index in [4, 5] {
            let mut port = link(index, &format!("veth{index}"), &[]);
            (port.master, port.peer_netnsid) = (Some(3), Some(7));
            scene.host.links.push(port);
        }
        let lines = told(&scene, Vec::new());
        assert!(
            lines[0].starts_with("Outside None : 2 containers on docker0 (Docker"),
            "{lines:?}"
        );
    }

    #[test]
    fn a_container_of_dockers_that_was_named_is_listed() {
        use crate::path::samples::node;
        let mut scene = node();
        let bridge = scene.host.links.iter_mut().find(|link| link.name == "cni0").unwrap();
        bridge.name = "docker0".to_owned();
        scene.containers.truncate(1);
        scene.containers[0].attachments.clear();
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: Some("c2"), to: None };
        let diagnosis = crate::diagnose(look, &[]);
        let not_examined: Vec<&str> =
            diagnosis.unexamined.iter().flat_map(|one| &one.hits).map(String::as_str).collect();
        assert_eq!(not_examined, ["c2"]);
        assert!(
            diagnosis.unexamined[0].why.starts_with("it is on docker0 (Docker"),
            "{diagnosis:?}"
        );
        let causes: Vec<(&str, &str)> = diagnosis
            .causes
            .iter()
            .map(|one| (one.finding.id, one.finding.says.as_str()))
            .collect();
        let says = "c2 is on docker0, a network that no CNI plugin made: doctor examines only what one \
                    attached";
        assert_eq!(causes, [("not-attached", says)]);
        assert_eq!((diagnosis.errors(), diagnosis.unknown()), (0, 1));
    }

    /// The node's own connection shows nothing of it.
    #[test]
    fn an_address_for_which_the_node_answers_nobody() {
        use crate::routes::samples::link;
        let mut scene = node();
        scene.containers.truncate(1);
        scene.host.links[0] = link(1, "lo", &["127.0.0.1/8", "192.0.2.99/32"]);
        let port = Port {
            transport: Transport::Tcp,
            host: 8080,
            host_ip: Some(ip("192.0.2.99")),
            container: 80,
        };
        scene.containers[0].attachments[0].ports = vec![port];
        let all = ["10.88.0.1", "fd00:88::1", "192.0.2.1", "2001:db8::1"];
        let mut all: Vec<_> = all.map(|to| asked("c2", Probe::Echo { to: ip(to) })).into();
        let port = Probe::Connect { to: "192.0.2.99:8080".parse().unwrap() };
        let port = Question { from: None, asked: port };
        all.push((port, Answer::Reached { after_us: 300 }));
        assert_eq!(told(&scene, all.clone()), [""; 0]);
        let key = "net.ipv4.conf.all.arp_ignore".to_owned();
        scene.host.sysctls.insert(key, "1".to_owned());
        let lines = told(&scene, all);
        assert_eq!(lines.len(), 1);
        let begins =
            "Published None c2: 8080/tcp: 192.0.2.99 is on lo, and this node does not answer";
        assert!(lines[0].starts_with(begins), "{lines:?}");
    }

    #[test]
    fn a_strict_filter_of_a_container_with_two_networks() {
        use crate::routes::samples::{link, route, rule};
        let mut scene = node();
        scene.containers.truncate(1);
        scene.containers[0].attachments[0].ports.clear();
        let second = crate::model::Attachment {
            network: "lan".to_owned(),
            ifname: "net1".to_owned(),
            ..crate::model::Attachment::default()
        };
        scene.containers[0].attachments.push(second);
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.links.push(link(7, "net1", &["10.9.0.2/24"]));
        inside.routes.push(route("10.9.0.0/24", 7, None));
        let all = ["10.88.0.1", "fd00:88::1", "192.0.2.1", "2001:db8::1"];
        let all: Vec<_> = all.map(|to| asked("c2", Probe::Echo { to: ip(to) })).into();
        let set = |scene: &mut Scene, key: &str| {
            let inside = scene.containers[0].inside.as_mut().unwrap();
            inside.sysctls.insert(format!("net.ipv4.conf.{key}.rp_filter"), "1".to_owned());
        };
        set(&mut scene, "eth0");
        assert_eq!(told(&scene, all.clone()), [""; 0]);
        set(&mut scene, "net1");
        let lines = told(&scene, all.clone());
        let begins = "Outside Some(V4) c2: what comes in by net1 from beyond its subnet is dropped";
        assert!(lines.len() == 1 && lines[0].starts_with(begins), "{lines:?}");
        // A rule leads what comes from its address back by it.
        let inside = scene.containers[0].inside.as_mut().unwrap();
        let by = crate::model::RuleAction::Table(100);
        let from = Some("10.9.0.2/32".parse().unwrap());
        inside.rules = vec![
            crate::model::RouteRule { from, ..rule(100, by) },
            rule(32766, crate::model::RuleAction::Table(254)),
        ];
        let way = route("0.0.0.0/0", 7, Some("10.9.0.1"));
        inside.routes.push(crate::model::Route { table: 100, ..way });
        assert_eq!(told(&scene, all), [""; 0]);
    }

    #[test]
    fn names_and_ports_that_nobody_asks_are_told() {
        let mut scene = node();
        scene.containers.truncate(1);
        scene.containers[0].nameservers = Some(vec![ip("127.0.0.11")]);
        let port = Port { transport: Transport::Udp, host: 53, host_ip: None, container: 53 };
        scene.containers[0].attachments[0].ports = vec![port];
        let all = ["10.88.0.1", "fd00:88::1", "192.0.2.1", "2001:db8::1"];
        let all: Vec<_> = all.map(|to| asked("c2", Probe::Echo { to: ip(to) })).into();
        let lines = told(&scene, all);
        assert_eq!(
            lines,
            [
                "Published None c2: 53/udp was not tried: no question by UDP suits every program",
                "Names Some(V4) c2: 127.0.0.11 is its own loopback, which is not asked",
            ]
        );
    }
}
