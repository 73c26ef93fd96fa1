//! Requests for hardware addresses without an answer, although the address is there: a kernel
//! parameter says so, or the link's flag.

use std::collections::BTreeMap;

use scene::{Link, Namespace};

use super::super::containers;
use crate::Look;
use crate::finding::{Family, Finding, WayKind};
use crate::path::Site;
use crate::question::{Answer, Probe, Question};
use crate::whose;

/// `arp_ignore`: no request is answered (linux Documentation/networking/ip-sysctl.rst). With a
/// smaller value one for an address of the link itself is.
const NO_ANSWER: i64 = 8;

const KINDS: [WayKind; 5] =
    [WayKind::Gateway, WayKind::Outside, WayKind::Names, WayKind::FromNode, WayKind::Published];

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut of_node: BTreeMap<Vec<String>, (String, Vec<String>)> = BTreeMap::new();
    let mut found = Vec::new();
    for container in containers(look) {
        for family in [Family::V4, Family::V6] {
            for site in Site::all(look.scene, container, family) {
                let tool = format!("nsenter --net={} ", container.netns);
                let inside = (format!("{}: {}", container.id, site.link.name), tool.as_str());
                let called = container.called();
                found.extend(mute(site.link, called, inside, &container.id, family));
                let node = (site.seen_by.name.clone(), "");
                if site.gateway.is_some() {
                    found.extend(mute(site.seen_by, "this node", node, &container.id, family));
                }
            }
        }
        for site in Site::all(look.scene, container, Family::V4) {
            found.extend(not_for_others(look, &site));
            let node = &site.seen_by.name;
            let keys = silenced(&look.scene.host, node);
            if !keys.is_empty() && site.gateway.is_some() {
                let (_, hits) = of_node.entry(keys).or_insert_with(|| (node.clone(), Vec::new()));
                hits.push(container.id.clone());
            }
            let keys = silenced(site.inside, &site.link.name);
            if let Some(key) = keys.first() {
                let called = container.called();
                let says = format!(
                    "{called} does not answer requests for its hardware address, so no machine reaches it"
                );
                let tool = format!("nsenter --net={}", container.netns);
                let finding = told(format!("{}: {key}", container.id), says, &keys, &tool);
                let finding = finding.breaks(WayKind::Between, Some(Family::V4));
                found.push(finding.hits(container.id.clone()));
            }
        }
    }
    found.extend(of_node.into_iter().map(|(keys, (link, hits))| {
        let says = format!(
            "this node does not answer requests for hardware addresses on {link}, so containers do not find their gateway"
        );
        Finding { hits, ..told(keys.join(" "), says, &keys, "") }
    }));
    found
}

/// The node does not answer for a gateway that is no address of its own: a plugin gives all
/// containers the same one, and lets the node answer for others on each link (`proxy_arp`).
fn not_for_others(look: Look<'_>, site: &Site<'_>) -> Option<Finding> {
    let gateway = site.router(look.scene)?;
    let end = site.host_end;
    if site.bridge.is_some() || end.master.is_some() || end.name.contains('.') {
        return None;
    }
    let key = format!("net.ipv4.conf.{}.proxy_arp", end.name);
    let asked = Probe::WhoHas { address: gateway, link: site.attachment.ifname.clone() };
    let question = Question { from: Some(site.container.id.clone()), asked };
    let is_silent = matches!(
        look.answers.to(&question), Some(Answer::Owners { macs }) if macs.is_empty()
    );
    let mut entries = site.inside.neighbours.iter();
    let is_configured = entries.any(|one| one.permanent && one.address == gateway);
    if !is_silent || is_configured || look.scene.host.number(&key) != Some(0) {
        return None;
    }
    let called = site.container.called();
    let says = format!(
        "this node does not answer {called} for its gateway {gateway}, which is no address of this node: {} answers for no others",
        end.name
    );
    let finding = Finding::error("requests-ignored", key.clone(), says)
        .at(format!("{key} is 0"))
        .seen(format!("no request of {called} for the hardware address of {gateway} was answered"))
        .hits(site.container.id.clone())
        .fix(format!("sysctl -w {key}=1"));
    let finding = Finding { whose: whose::of_link(end, look.scene), ..finding };
    Some(KINDS.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(Family::V4))))
}

/// A link with the flag NOARP sends only to configured hardware addresses. `object` is its name,
/// with what is put before a command for it.
fn mute(
    link: &Link,
    whose: &str,
    (object, tool): (String, &str),
    hit: &str,
    family: Family,
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

/// Returns the kernel parameters by which no request is answered on a link: the larger value of the
/// link's own and that of all links counts.
fn silenced(namespace: &Namespace, link: &str) -> Vec<String> {
    let keys = [link, "all"].map(|name| format!("net.ipv4.conf.{name}.arp_ignore"));
    keys.into_iter().filter(|key| namespace.number(key) == Some(NO_ANSWER)).collect()
}

fn told(object: String, says: String, keys: &[String], tool: &str) -> Finding {
    let sets: Vec<String> = keys.iter().map(|key| format!("{key}=0")).collect();
    let finding = Finding::error("requests-ignored", object, says)
        .at(format!("{} is {NO_ANSWER}", keys.join(" and ")))
        .fix(format!("{tool} sysctl -w {}", sets.join(" ")).trim_start().to_owned());
    KINDS.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(Family::V4)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::samples::node;
    use crate::question::Answers;
    use scene::Scene;

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

    #[test]
    fn a_link_that_answers_for_no_others() {
        let mut scene = node();
        scene.containers.truncate(1);
        let own = &mut scene.containers[0].attachments[0];
        own.gateways = vec!["169.254.1.1".parse().unwrap()];
        own.host_links = vec!["veth2".to_owned()];
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.routes[0].hops[0].via = Some("169.254.1.1".parse().unwrap());
        let end = scene.host.links.iter_mut().find(|link| link.name == "veth2").unwrap();
        end.master = None;
        let key = "net.ipv4.conf.veth2.proxy_arp";
        scene.host.sysctls.insert(key.to_owned(), "0".to_owned());
        let address = "169.254.1.1".parse().unwrap();
        let asked = Probe::WhoHas { address, link: "eth0".to_owned() };
        let question = Question { from: Some("c2".to_owned()), asked };
        let told = |scene: &Scene, macs: &[&str]| -> Vec<(&str, String, Vec<String>)> {
            let macs = macs.iter().map(|mac| (*mac).to_owned()).collect();
            let answers = Answers { all: vec![(question.clone(), Answer::Owners { macs })] };
            let found = judge(Look { scene, answers: &answers, only: None, to: None });
            found.into_iter().map(|one| (one.id, one.object, one.fix)).collect()
        };
        let fix = vec![format!("sysctl -w {key}=1")];
        assert_eq!(told(&scene, &[]), [("requests-ignored", key.to_owned(), fix)]);
        assert_eq!(told(&scene, &["02:00:00:00:00:12"]), []);
        scene.host.sysctls.insert(key.to_owned(), "1".to_owned());
        assert_eq!(told(&scene, &[]), []);
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
