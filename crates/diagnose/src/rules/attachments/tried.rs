//! Whether probes have tried what a difference breaks.

use std::net::IpAddr;

use net::IpFamily;

use super::drifts;
use super::ways::{ALL, of as broken_by};
use crate::Look;
use crate::finding::WayKind;
use crate::model::{Attachment, Container, Drift, Item, ItemKind, Scene};
use crate::question::{Probe, Question};
use crate::rules::{containers, is_on_parent, leads_beyond};
use crate::trial::{Trial, Trials};

/// Links by which a node reaches the containers of others.
const TUNNELS: [&str; 5] = ["geneve", "ipip", "sit", "vxlan", "wireguard"];

/// What no other rule tries: packets to another container of the network, and from the node.
pub(super) fn asks(look: Look<'_>) -> Vec<Question> {
    let mut questions = Vec::new();
    for container in containers(look) {
        for attachment in &container.attachments {
            for drift in drifts(look, container, attachment) {
                for (kind, family) in broken(&drift, attachment) {
                    questions.extend(question(look.scene, container, attachment, kind, family));
                }
            }
        }
    }
    questions
}

fn question(
    scene: &Scene,
    container: &Container,
    attachment: &Attachment,
    kind: WayKind,
    family: IpFamily,
) -> Option<Question> {
    if lacks(scene, container, attachment, kind, family) {
        return None;
    }
    let echo = |from: Option<&Container>, to: IpAddr| Question {
        from: from.map(|one| one.id.clone()),
        asked: Probe::Echo { to },
    };
    let is_of = |address: &IpAddr| IpFamily::of(*address) == family;
    match kind {
        WayKind::Between => {
            let mut others = neighbours(scene, container, attachment);
            others.find(is_of).map(|to| echo(Some(container), to))
        }
        WayKind::FromNode => {
            let mut own = attachment.addresses.iter().map(ipnet::IpNet::addr);
            own.find(is_of).map(|to| echo(None, to))
        }
        _ => None,
    }
}

/// Says whether each way that a difference breaks was tried, and works. Of several attachments a probe
/// does not show which it took, a small packet says nothing of large ones, and no probe goes from a
/// container to itself by a port of the node.
pub(super) fn works(
    scene: &Scene,
    trials: &Trials<'_>,
    container: &Container,
    drift: &Drift,
) -> bool {
    let [attachment] = container.attachments.as_slice() else { return false };
    let is_shown = |item: &Item| item.kind != ItemKind::Mtu && !item.hairpin;
    let mut used = broken(drift, attachment);
    used.retain(|(kind, family)| !lacks(scene, container, attachment, *kind, *family));
    let works = |(kind, family): (WayKind, IpFamily)| {
        let is_port = matches!(kind, WayKind::Published | WayKind::PublishedHere);
        trials.of_way(container, kind, Some(family)) == Trial::Works
            && !(is_port && trials.is_refused(container, kind, family))
    };
    drift.items.iter().all(is_shown) && !used.is_empty() && used.into_iter().all(works)
}

/// What a difference breaks, each with an IP version that the attachment has. What harms no
/// way that is known still differs.
fn broken(drift: &Drift, attachment: &Attachment) -> Vec<(WayKind, IpFamily)> {
    let known = broken_by(drift, attachment);
    let known = match known.is_empty() {
        true => ALL.iter().map(|kind| (*kind, None)).collect(),
        false => known,
    };
    let nets = attachment.addresses.iter().map(ipnet::IpNet::addr);
    let own: Vec<IpFamily> =
        nets.chain(attachment.gateways.iter().copied()).map(IpFamily::of).collect();
    let families = IpFamily::ALL.into_iter().filter(|family| own.contains(family));
    let mut all = Vec::new();
    for family in families {
        let of_family = known.iter().filter(|(_, of)| of.is_none_or(|of| of == family));
        all.extend(of_family.map(|(kind, _)| (*kind, family)));
    }
    all
}

/// Says whether an attachment has no such way.
fn lacks(
    scene: &Scene,
    container: &Container,
    attachment: &Attachment,
    kind: WayKind,
    family: IpFamily,
) -> bool {
    let is_of = |address: IpAddr| IpFamily::of(address) == family;
    match kind {
        WayKind::Inside => true,
        WayKind::Gateway => !attachment.gateways.iter().copied().any(is_of),
        WayKind::Outside => !leads_beyond(scene, container, family),
        WayKind::Between => !neighbours(scene, container, attachment).any(is_of),
        // A link on a parent does not reach the node that has the parent.
        WayKind::FromNode => is_on_parent(attachment.plugins.first().map(String::as_str)),
        WayKind::Published | WayKind::PublishedHere => {
            let mut ports = attachment.ports.iter();
            !ports.any(|port| port.host_ip.is_none_or(|at| at.is_unspecified() || is_of(at)))
        }
        WayKind::Names => !container.nameservers.iter().flatten().copied().any(is_of),
        WayKind::Nodes => {
            let mut links = scene.host.links.iter();
            !links.any(|link| link.kind.as_deref().is_some_and(|kind| TUNNELS.contains(&kind)))
        }
    }
}

/// Returns the addresses of other containers of an attachment's network.
fn neighbours<'s>(
    scene: &'s Scene,
    container: &'s Container,
    attachment: &'s Attachment,
) -> impl Iterator<Item = IpAddr> + 's {
    let others = scene
        .containers
        .iter()
        .filter(|other| other.id != container.id && other.alive != Some(false));
    let beside = others.flat_map(|other| &other.attachments);
    let beside = beside.filter(|other| other.network == attachment.network);
    beside.flat_map(|other| &other.addresses).map(ipnet::IpNet::addr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Finding, Severity};
    use crate::path::samples::{ip, node};
    use crate::question::{Answer, Answers};

    const VLAN: &str = "port \"veth2\" is in VLAN 8, not 7";

    /// Two containers of one network that have IPv4 alone; `c2` differs.
    fn scene(kind: ItemKind, what: &str) -> Scene {
        let mut scene = node();
        for container in &mut scene.containers {
            container.nameservers = Some(vec![ip("198.51.100.53")]);
            for attachment in &mut container.attachments {
                attachment.addresses.retain(|net| net.addr().is_ipv4());
                attachment.gateways.retain(IpAddr::is_ipv4);
                attachment.ports.clear();
            }
        }
        let items = vec![Item { kind, what: what.to_owned(), ..Item::default() }];
        let drift = Drift {
            plugin: "bridge".to_owned(),
            code: 104,
            what: what.to_owned(),
            details: String::new(),
            items,
        };
        scene.containers[0].attachments[0].drifts = vec![drift];
        scene
    }

    fn echo(from: Option<&str>, to: &str) -> Question {
        Question { from: from.map(str::to_owned), asked: Probe::Echo { to: ip(to) } }
    }

    /// What tries each way of `c2`.
    fn every() -> Vec<Question> {
        let c2 = Some("c2");
        let name = Probe::Name { server: ip("198.51.100.53") };
        vec![
            echo(c2, "10.88.0.1"),
            echo(c2, "192.0.2.1"),
            echo(c2, "10.88.0.3"),
            echo(None, "10.88.0.2"),
            Question { from: c2.map(str::to_owned), asked: name },
        ]
    }

    fn judged(scene: &Scene, asked: Vec<Question>, lost: Option<&Question>) -> Finding {
        let answer = |question: Question| {
            let answer = match lost == Some(&question) {
                true => Answer::Silent { hops: Vec::new() },
                false => Answer::Reached { after_us: 1 },
            };
            (question, answer)
        };
        let answers = Answers { all: asked.into_iter().map(answer).collect() };
        let look = Look { scene, answers: &answers, only: None, to: None };
        (super::super::RULE.judge)(look).remove(0)
    }

    fn is_warning(scene: &Scene, asked: Vec<Question>) -> bool {
        let finding = judged(scene, asked, None);
        let is_warning = finding.severity == Severity::Warning;
        assert_eq!(finding.seen.contains(&super::super::WORKS.to_owned()), is_warning);
        assert_eq!(finding.fix.is_empty(), is_warning);
        is_warning
    }

    /// A person may have changed it so that packets pass.
    #[test]
    fn a_difference_is_a_warning_if_each_way_that_it_breaks_was_tried_and_works() {
        let scene = scene(ItemKind::Port, VLAN);
        assert!(!is_warning(&scene, Vec::new()));
        assert!(is_warning(&scene, every()));
        for number in 0..every().len() {
            let mut some = every();
            let one = some.remove(number);
            assert!(!is_warning(&scene, some), "{one:?}");
            let lost = judged(&scene, every(), Some(&one));
            assert_eq!(lost.severity, Severity::Error, "{one:?}");
        }
    }

    #[test]
    fn what_no_other_rule_tries_is_asked() {
        let asked = |scene: &Scene| {
            let answers = Answers::default();
            asks(Look { scene, answers: &answers, only: None, to: None })
        };
        let mut differs = scene(ItemKind::Port, VLAN);
        let both = [echo(Some("c2"), "10.88.0.3"), echo(None, "10.88.0.2")];
        assert_eq!(asked(&differs), both);
        // The node does not reach what is on its parent; nor is there another container.
        differs.containers[0].attachments[0].plugins[0] = "macvlan".to_owned();
        assert_eq!(asked(&differs), both[..1]);
        differs.containers.truncate(1);
        assert_eq!(asked(&differs), []);
        differs.containers[0].attachments[0].drifts.clear();
        assert_eq!(asked(&differs), []);
    }

    #[test]
    fn a_way_that_no_probe_takes_was_not_tried() {
        let hairpin = "port \"veth2\" has hairpin mode off, the configuration asks for on";
        let mut hairpin = scene(ItemKind::Port, hairpin);
        let port = node().containers[0].attachments[0].ports.clone();
        let attachment = &mut hairpin.containers[0].attachments[0];
        attachment.ports = port;
        attachment.drifts[0].items[0].hairpin = true;
        let published = Probe::Connect { to: "192.0.2.2:8080".parse().unwrap() };
        let published = Question { from: None, asked: published };
        let all = [every(), vec![published]].concat();
        assert!(!is_warning(&hairpin, all));
        // Small packets say nothing of large ones.
        assert!(!is_warning(&scene(ItemKind::Mtu, "its MTU is 1400, not 1500"), every()));
        // Which of two interfaces a probe took is not known.
        let mut two = scene(ItemKind::Port, VLAN);
        two.containers[0].attachments.push(Attachment::default());
        assert!(!is_warning(&two, every()));
        // Another node's containers.
        let mut nodes = scene(ItemKind::Port, VLAN);
        nodes.host.links[1].kind = Some("vxlan".to_owned());
        assert!(!is_warning(&nodes, every()));
    }

    /// The node refuses what is for a published port if nothing leads it to the container.
    #[test]
    fn a_port_that_refuses_does_not_work() {
        let what =
            "packet filter: missing: inet netwright hostports4 { tcp . 8080 : 10.88.0.2 . 80 }";
        let mut scene = scene(ItemKind::HostPorts, what);
        let ports = node().containers[0].attachments[0].ports.clone();
        scene.containers[0].attachments[0].ports = ports;
        let connect =
            |to: &str| Question { from: None, asked: Probe::Connect { to: to.parse().unwrap() } };
        let (outside, here) = (connect("192.0.2.2:8080"), connect("127.0.0.1:8080"));
        assert!(is_warning(&scene, vec![outside.clone(), here.clone()]));
        let all = vec![(outside, Answer::Reached { after_us: 1 }), (here, Answer::Refused)];
        let answers = Answers { all };
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        assert_eq!((super::super::RULE.judge)(look)[0].severity, Severity::Error);
    }

    /// Findings of one difference are joined, and the words are of all of them.
    #[test]
    fn a_difference_that_harms_another_container_is_no_warning_here() {
        let mut both = scene(ItemKind::Port, VLAN);
        both.containers[1].attachments[0].drifts = both.containers[0].attachments[0].drifts.clone();
        assert!(!is_warning(&both, every()));
    }
}
