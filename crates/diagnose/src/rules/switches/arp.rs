//! Requests for hardware addresses without an answer, although the address is there: a kernel
//! parameter says so, or the link's flag.

use std::collections::BTreeMap;
use std::net::IpAddr;

use net::IpFamily;

use super::super::containers;
use super::super::segments::is_unanswered;
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, WayKind};
use crate::model::{Link, Namespace};
use crate::path::{Site, address_of};
use crate::question::{Answer, Question};
use crate::routes::{RouteDecision, look_up};

/// `arp_ignore`: no request is answered (linux Documentation/networking/ip-sysctl.rst). With a
/// smaller value one for an address of the link itself is.
const NO_ANSWER: i64 = 8;

pub(super) const KINDS: [WayKind; 5] =
    [WayKind::Gateway, WayKind::Outside, WayKind::Names, WayKind::FromNode, WayKind::Published];

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut of_node: BTreeMap<Vec<String>, (Silence, Vec<String>)> = BTreeMap::new();
    let mut found = Vec::new();
    for container in containers(look) {
        for family in IpFamily::ALL {
            for site in Site::all(look.scene, container, family) {
                let tool = within(container.netns.as_str());
                let inside = (format!("{}: {}", container.id, site.link.name), tool.as_str());
                let called = container.called();
                found.extend(mute(site.link, called, inside, &container.id, family));
                let node = (site.seen_by.name.clone(), "");
                if site.gateway.is_some() {
                    found.extend(mute(site.seen_by, "this node", node, &container.id, family));
                }
            }
        }
        for site in Site::all(look.scene, container, IpFamily::V4) {
            if let Some(silence) = of_gateway(look, &site) {
                let (_, hits) =
                    of_node.entry(silence.keys()).or_insert_with(|| (silence, Vec::new()));
                hits.push(container.id.clone());
            }
            if let Some(silence) = of_container(look, &site) {
                let called = container.called();
                let says = format!(
                    "{called} does not answer requests for its hardware address, so no machine reaches it{}",
                    silence.because()
                );
                let tool = within(container.netns.as_str());
                let object = format!("{}: {}", container.id, silence.keys().join(" "));
                let finding = told(object, says, &silence, &tool);
                let finding = finding.breaks(WayKind::Between, Some(IpFamily::V4));
                found.push(finding.hits(container.id.clone()));
            }
        }
    }
    found.extend(of_node.into_values().map(|(silence, hits)| {
        let says = format!(
            "this node does not answer requests for hardware addresses on {}, so containers do not find their gateway{}",
            silence.link,
            silence.because()
        );
        Finding { hits, ..told(silence.keys().join(" "), says, &silence, "") }
    }));
    found
}

/// Why the node does not answer a container that asks for its gateway.
fn of_gateway(look: Look<'_>, site: &Site<'_>) -> Option<Silence> {
    let gateway = site.gateway?;
    let mut entries = site.inside.neighbours.iter();
    if entries.any(|one| one.permanent && one.address == gateway) {
        return None;
    }
    let silence = Silence::of(&look.scene.host, site.seen_by, gateway, Some(site.address))?;
    let is_unheard = is_unanswered(look, site.container, site.link, gateway);
    (silence.is_certain() || is_unheard).then_some(silence)
}

/// Why a container does not answer the node.
fn of_container(look: Look<'_>, site: &Site<'_>) -> Option<Silence> {
    let asker = address_of(site.seen_by, true);
    let silence = Silence::of(site.inside, site.link, site.address, asker)?;
    let asked = Question::who_has(None, &site.seen_by.name, site.address);
    let is_unheard = look.answers.to(&asked).and_then(Answer::has_owner) == Some(false);
    (silence.is_certain() || is_unheard).then_some(silence)
}

/// Kernel parameters by which requests for an address are not answered on a link.
struct Silence {
    link: String,
    /// The parameters with their values, and the value with which they are answered.
    parameters: Vec<(String, i64, i64)>,
    /// Why, if it is not so for all requests.
    why: Option<String>,
}

impl Silence {
    /// Finds it out (linux net/ipv4/arp.c `arp_ignore`, `arp_filter`). `asker` is the address from
    /// which a machine asks, if it is known.
    fn of(namespace: &Namespace, link: &Link, own: IpAddr, asker: Option<IpAddr>) -> Option<Self> {
        let name = &link.name;
        let has = link.addresses.iter().any(|one| one.address.addr() == own);
        let is_near = |asker: IpAddr| {
            let mut nets = link.addresses.iter().map(|one| one.address);
            nets.any(|net| net.contains(&own) && net.contains(&asker))
        };
        let is_far = asker.is_some_and(|asker| !is_near(asker));
        let answers_at = |value: i64| match value {
            NO_ANSWER => Some(0),
            1 | 2 if !has => Some(0),
            2 if is_far => Some(1),
            _ => None,
        };
        let of_kind = |kind: &str| {
            let keys = [name, "all"].map(|name| format!("net.ipv4.conf.{name}.{kind}"));
            keys.map(|key| (namespace.number(&key).unwrap_or_default(), key))
        };
        let ignoring = of_kind("arp_ignore");
        // The larger one of the two counts.
        let counts = ignoring.iter().map(|(value, _)| *value).max()?;
        if answers_at(counts).is_some() {
            let parameters = ignoring.into_iter();
            let parameters = parameters
                .filter_map(|(value, key)| Some((key, value, answers_at(value)?)))
                .collect();
            let why = match (counts, has) {
                (NO_ANSWER, _) => None,
                (_, false) => Some(format!(
                    "it answers only for addresses of {name} itself there, and {own} is on another link"
                )),
                (_, true) => {
                    Some(format!("it answers only who is in the subnet of {own} on {name}"))
                }
            };
            return Some(Silence { link: name.clone(), parameters, why });
        }
        let filtering = of_kind("arp_filter").into_iter().filter(|(value, _)| *value != 0);
        let parameters: Vec<_> = filtering.map(|(value, key)| (key, value, 0)).collect();
        let leaves_by = match look_up(namespace, Some(own), asker?, None, Some(0)) {
            RouteDecision::By { link: other, .. } if other.index == link.index => return None,
            RouteDecision::By { link: other, .. } => format!("by {}", other.name),
            RouteDecision::Nowhere | RouteDecision::Refused { .. } => "nowhere".to_owned(),
            RouteDecision::Local(_) | RouteDecision::Unknown => return None,
        };
        let why = format!(
            "it answers only by the link by which it sends to {}, and that goes {leaves_by}",
            asker?
        );
        let is_any = !parameters.is_empty();
        is_any.then(|| Silence { link: name.clone(), parameters, why: Some(why) })
    }

    /// Says whether no probe has to show it: no request at all is answered.
    fn is_certain(&self) -> bool {
        self.why.is_none()
    }

    fn keys(&self) -> Vec<String> {
        self.parameters.iter().map(|(key, ..)| key.clone()).collect()
    }

    fn because(&self) -> String {
        self.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default()
    }
}

/// A link with the flag NOARP sends only to configured hardware addresses. `object` is its name,
/// with what is put before a command for it.
fn mute(
    link: &Link,
    whose: &str,
    (object, tool): (String, &str),
    hit: &str,
    family: IpFamily,
) -> Option<Finding> {
    if !link.no_arp {
        return None;
    }
    let name = &link.name;
    let says =
        format!("{name} of {whose} has the flag NOARP, so it finds no hardware address of others");
    let finding = Finding::error("requests-ignored", object, says)
        .at(format!("link {name} of {whose}"))
        .hits(hit)
        .fix(format!("{tool}ip link set {name} arp on"));
    let family = Some(family);
    Some(KINDS.into_iter().fold(finding, |finding, kind| finding.breaks(kind, family)))
}

fn told(object: String, says: String, silence: &Silence, tool: &str) -> Finding {
    let parameters = &silence.parameters;
    let are: Vec<String> = parameters.iter().map(|(key, is, _)| format!("{key} is {is}")).collect();
    let sets: Vec<String> = parameters.iter().map(|(key, _, to)| format!("{key}={to}")).collect();
    let finding = Finding::error("requests-ignored", object, says)
        .at(are.join(" and "))
        .fix(format!("{tool}sysctl -w {}", sets.join(" ")));
    let finding = match silence.is_certain() {
        true => finding,
        false => finding.seen("a probe's request for the hardware address was not answered"),
    };
    let of_all = parameters.iter().find(|(key, ..)| key.contains(".all.") && !silence.is_certain());
    let finding = match of_all {
        Some((key, is, _)) => finding.advise(format!(
            "to keep the check on other links, which the command takes away: {}={is} for each of them",
            key.replacen(".all.", ".LINK.", 1)
        )),
        None => finding,
    };
    KINDS.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(IpFamily::V4)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Scene;
    use crate::path::samples::{ip, node};
    use crate::question::Answers;
    use crate::question::Probe;

    fn told(scene: &Scene) -> Vec<(String, String)> {
        let answers = Answers::default();
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|one| (one.hits.join(" "), one.fix.join("; "))).collect()
    }

    #[test]
    fn a_link_that_ignores_requests() {
        let mut scene = node();
        let key = |link: &str| format!("net.ipv4.conf.{link}.arp_ignore");
        scene.host.sysctls.insert(key("cni0"), "1".to_owned());
        scene.host.sysctls.insert(key("tun0"), "8".to_owned());
        assert_eq!(told(&scene), []);
        scene.host.sysctls.insert(key("all"), "8".to_owned());
        let fix = "sysctl -w net.ipv4.conf.all.arp_ignore=0".to_owned();
        assert_eq!(told(&scene), [("c2 c3".to_owned(), fix)]);
        let mut scene = node();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.sysctls.insert(key("eth0"), "8".to_owned());
        let fix =
            "nsenter --net=/run/netns/c2 sysctl -w net.ipv4.conf.eth0.arp_ignore=0".to_owned();
        assert_eq!(told(&scene), [("c2".to_owned(), fix)]);
    }

    /// What is told if nobody answers, of a node with a value of a parameter, and of its container.
    fn unheard(scene: &Scene) -> Vec<(String, String)> {
        unheard_with(scene, Vec::new())
    }

    fn unheard_with(scene: &Scene, more: Vec<(Question, Answer)>) -> Vec<(String, String)> {
        let who = |from: Option<&str>, address: &str, link: &str| {
            let asked = Probe::WhoHas { address: ip(address), link: link.to_owned() };
            let question = Question { from: from.map(str::to_owned), asked };
            (question, Answer::Owners { macs: Vec::new() })
        };
        let mut all = vec![who(Some("c2"), "10.88.0.1", "eth0"), who(None, "10.88.0.3", "cni0")];
        all.extend(more);
        let answers = Answers { all };
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|one| (one.hits.join(" "), one.fix.join("; "))).collect()
    }

    #[test]
    fn a_gateway_that_answers_only_for_its_own_subnet() {
        let with = |value: &str, length: u8| {
            let mut scene = node();
            let cni0 = scene.host.links.iter_mut().find(|link| link.name == "cni0").unwrap();
            cni0.addresses[0].address = format!("10.88.0.1/{length}").parse().unwrap();
            let key = "net.ipv4.conf.all.arp_ignore".to_owned();
            scene.host.sysctls.insert(key, value.to_owned());
            scene
        };
        let fix = "sysctl -w net.ipv4.conf.all.arp_ignore=1".to_owned();
        assert_eq!(unheard(&with("2", 32)), [("c2".to_owned(), fix)]);
        // It has learnt the address from a packet of the node, and so the echo is answered.
        let echo = Probe::Echo { to: ip("10.88.0.1") };
        let echo = Question { from: Some("c2".to_owned()), asked: echo };
        let reached = (echo, Answer::Reached { after_us: 1 });
        assert_eq!(unheard_with(&with("2", 32), vec![reached]).len(), 1);
        // A probe that is answered, or none, shows nothing.
        assert_eq!(told(&with("2", 32)), []);
        for (value, length) in [("2", 24), ("1", 32), ("0", 32), ("4", 32)] {
            assert_eq!(unheard(&with(value, length)), [], "{value} /{length}");
        }
        // The gateway's address is on another link.
        let mut scene = with("1", 24);
        let cni0 = scene.host.links.iter_mut().find(|link| link.name == "cni0").unwrap();
        let own = cni0.addresses.remove(0);
        scene.host.links[0].addresses.push(own);
        let fix = "sysctl -w net.ipv4.conf.all.arp_ignore=0".to_owned();
        assert_eq!(unheard(&scene), [("c2".to_owned(), fix)]);
    }

    #[test]
    fn a_container_that_answers_only_its_own_subnet() {
        let mut scene = node();
        let inside = scene.containers[1].inside.as_mut().unwrap();
        inside.sysctls.insert("net.ipv4.conf.eth0.arp_ignore".to_owned(), "2".to_owned());
        assert_eq!(unheard(&scene), []);
        let inside = scene.containers[1].inside.as_mut().unwrap();
        inside.links[1].addresses[0].address = "10.88.0.3/32".parse().unwrap();
        let fix = "nsenter --net=/run/netns/c3 sysctl -w net.ipv4.conf.eth0.arp_ignore=1";
        assert_eq!(unheard(&scene), [("c3".to_owned(), fix.to_owned())]);
    }

    #[test]
    fn a_link_that_answers_only_where_its_packets_leave() {
        let mut scene = node();
        scene.host.sysctls.insert("net.ipv4.conf.cni0.arp_filter".to_owned(), "1".to_owned());
        assert_eq!(unheard(&scene), []);
        scene.host.routes.push(crate::routes::samples::route("10.88.0.2/32", 9, None));
        let fix = "sysctl -w net.ipv4.conf.cni0.arp_filter=0".to_owned();
        assert_eq!(unheard(&scene), [("c2".to_owned(), fix)]);
    }

    #[test]
    fn a_link_without_arp() {
        let mut scene = node();
        scene.containers[1].inside.as_mut().unwrap().links[1].no_arp = true;
        let fix = "nsenter --net=/run/netns/c3 ip link set eth0 arp on".to_owned();
        let told = told(&scene);
        assert_eq!(told.len(), 2, "for each IP version: {told:?}");
        assert_eq!(told[0], ("c3".to_owned(), fix));
    }
}
