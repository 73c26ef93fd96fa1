//! Ports of a bridge by which frames do not come to the container, although they are up.

use net::IpFamily;

use super::super::{asks_links, containers};
use crate::Look;
use crate::finding::{Finding, Severity, WayKind};
use crate::model::{Fdb, Part};
use crate::path::Site;
use crate::question::{Answer, Question};

const FAMILIES: [IpFamily; 2] = IpFamily::ALL;

const ALL: &[WayKind] = &[
    WayKind::Gateway,
    WayKind::Outside,
    WayKind::Names,
    WayKind::FromNode,
    WayKind::Published,
    WayKind::PublishedHere,
    WayKind::Between,
];

/// The node's own multicasts are sent to each port.
const OTHERS: &[WayKind] = &[WayKind::Between];

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for container in containers(look) {
        for site in FAMILIES.iter().flat_map(|family| Site::all(look.scene, container, *family)) {
            let (name, called) = (&site.host_end.name, container.called());
            let family = site.family();
            let is_locked = site.host_end.locked && !is_known(look, &site);
            let is_error = !is_locked || is_unheard(look, &site);
            let (what, fix, kinds) = if is_locked {
                (
                    "is locked: it takes nothing from the container once the bridge has forgotten it",
                    "locked off",
                    ALL,
                )
            } else if site.host_end.no_broadcasts && family == IpFamily::V4 {
                (
                    "gets no broadcasts, so no machine finds its hardware address",
                    "bcast_flood on",
                    ALL,
                )
            } else if is_not_found(look, &site) {
                (
                    "gets no multicasts, so others on the bridge do not find its hardware address by IPv6",
                    "mcast_flood on",
                    OTHERS,
                )
            } else if site.host_end.no_unknown && !is_known(look, &site) {
                (
                    "gets nothing: the bridge neither learns nor floods there",
                    "learning on flood on",
                    ALL,
                )
            } else {
                continue;
            };
            let says = format!("bridge port {name} of {called} {what}");
            let finding = Finding::error("port-silenced", name.clone(), says);
            let severity = if is_error { Severity::Error } else { Severity::Warning };
            let finding = Finding { severity, ..finding }
                .hits(container.id.clone())
                .fix(format!("bridge link set dev {name} {fix}"));
            let broken =
                kinds.iter().fold(finding, |finding, kind| finding.breaks(*kind, Some(family)));
            found.push(broken);
        }
    }
    found
}

/// Another container of the bridge asks who has the address of IPv6 of one whose port gets no
/// multicasts.
pub(super) fn asks(look: Look<'_>) -> Vec<Question> {
    let sites =
        containers(look).flat_map(move |container| Site::all(look.scene, container, IpFamily::V6));
    sites.filter_map(|site| question(look, &site)).collect()
}

/// What the node itself asks goes to such a port all the same (linux net/bridge/br_forward.c
/// `br_flood`); and what others ask, if the bridge watches who is in which group.
fn question(look: Look<'_>, site: &Site<'_>) -> Option<Question> {
    let is_silenced = site.family() == IpFamily::V6 && site.host_end.no_multicasts;
    let bridge = site.bridge.filter(|bridge| is_silenced && !bridge.vlan_filtering)?;
    if !asks_links(look) {
        return None;
    }
    let everybody = Look { only: None, ..look };
    let mut others = containers(everybody)
        .filter(|other| other.id != site.container.id)
        .flat_map(move |other| Site::all(look.scene, other, IpFamily::V6));
    let other = others.find(|other| {
        other.bridge.is_some_and(|own| own.index == bridge.index)
            && !(other.host_end.isolated && site.host_end.isolated)
    })?;
    Some(Question::who_has(Some(other.container), &other.attachment.ifname, site.address))
}

fn is_not_found(look: Look<'_>, site: &Site<'_>) -> bool {
    let answer = question(look, site).and_then(|question| look.answers.to(&question));
    answer.and_then(Answer::has_owner) == Some(false)
}

/// Says whether the container has asked, and nothing was answered. Whom the bridge has learnt before,
/// it hears at a locked port too, as long as frames come (linux net/bridge/br_input.c
/// `br_handle_frame_finish`).
fn is_unheard(look: Look<'_>, site: &Site<'_>) -> bool {
    let is_answered =
        |answer: &Answer| answer.has_owner().unwrap_or_else(|| answer.is_of_other_end());
    let mut answers = look.answers.from(Some(&site.container.id)).peekable();
    answers.peek().is_some() && !answers.any(|(_, answer)| is_answered(answer))
}

/// Says whether it is configured that the container is behind its port, as a program does
/// that locks ports until it knows who is there (802.1X); or whether that is not known.
fn is_known(look: Look<'_>, site: &Site<'_>) -> bool {
    if look.scene.lacks(Part::Neighbours, None) {
        return true;
    }
    let is_there = |entry: &Fdb| {
        let mac = site.link.mac.as_deref();
        entry.port == site.host_end.index
            && !entry.own
            && mac.is_some_and(|mac| mac.eq_ignore_ascii_case(&entry.mac))
    };
    look.scene.host.fdb.iter().any(is_there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Link, Scene};
    use crate::path::samples::node;
    use crate::question::Answers;
    use crate::question::Probe;

    fn told(scene: &Scene) -> Vec<String> {
        let answers = Answers::default();
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|finding| finding.fix.join("; ")).collect()
    }

    fn veth2(scene: &mut Scene) -> &mut Link {
        scene.host.links.iter_mut().find(|link| link.name == "veth2").unwrap()
    }

    #[test]
    fn a_port_to_which_no_solicitations_go() {
        let mut scene = node();
        veth2(&mut scene).no_multicasts = true;
        let none = Answers::default();
        let look = Look { scene: &scene, answers: &none, only: None, to: None };
        let address = crate::path::samples::ip("fd00:88::2");
        let asked = Probe::WhoHas { address, link: "eth0".to_owned() };
        let question = Question { from: Some("c3".to_owned()), asked };
        assert_eq!(asks(look), std::slice::from_ref(&question));
        assert_eq!(judge(look), []);
        let told = |macs: &[&str]| {
            let macs = macs.iter().map(|mac| (*mac).to_owned()).collect();
            let answers = Answers { all: vec![(question.clone(), Answer::Owners { macs })] };
            let found = judge(Look { answers: &answers, ..look });
            found.into_iter().map(|finding| finding.fix.join("; ")).collect::<Vec<_>>()
        };
        assert_eq!(told(&[]), ["bridge link set dev veth2 mcast_flood on"]);
        assert_eq!(told(&["02:00:00:00:00:02"]), [""; 0]);
    }

    #[test]
    fn a_port_that_is_locked() {
        let mut scene = node();
        veth2(&mut scene).locked = true;
        let severities = |scene: &Scene, all: Vec<(Question, Answer)>| -> Vec<Severity> {
            let answers = Answers { all };
            let look = Look { scene, answers: &answers, only: None, to: None };
            judge(look).into_iter().map(|finding| finding.severity).collect()
        };
        assert_eq!(told(&scene), ["bridge link set dev veth2 locked off"; 2]);
        assert_eq!(severities(&scene, Vec::new()), [Severity::Warning; 2]);
        let asked = Probe::Echo { to: crate::path::samples::ip("10.88.0.1") };
        let echo = Question { from: Some("c2".to_owned()), asked };
        let answered = |answer: Answer| vec![(echo.clone(), answer)];
        let silent = answered(Answer::Silent { hops: Vec::new() });
        assert_eq!(severities(&scene, silent), [Severity::Error; 2]);
        // The bridge has not forgotten it yet.
        let reached = answered(Answer::Reached { after_us: 1 });
        assert_eq!(severities(&scene, reached), [Severity::Warning; 2]);
        let mac = "02:00:00:00:00:02".to_owned();
        scene.host.fdb = vec![Fdb { port: 12, mac, vlan: None, own: false }];
        assert_eq!(told(&scene), [""; 0]);
        scene.host.fdb.clear();
        let reason = "there are more than 50000 forwarding entries".to_owned();
        scene.holes = vec![crate::model::Hole { part: Part::Neighbours, container: None, reason }];
        assert_eq!(told(&scene), [""; 0]);
    }

    #[test]
    fn a_port_to_which_frames_do_not_go() {
        let mut scene = node();
        assert_eq!(told(&scene), [""; 0]);
        veth2(&mut scene).no_broadcasts = true;
        assert_eq!(told(&scene), ["bridge link set dev veth2 bcast_flood on"]);
        let mut scene = node();
        veth2(&mut scene).no_unknown = true;
        assert_eq!(told(&scene), ["bridge link set dev veth2 learning on flood on"; 2]);
        let mac = "02:00:00:00:00:02".to_owned();
        scene.host.fdb = vec![Fdb { port: 12, mac, vlan: None, own: false }];
        assert_eq!(told(&scene), [""; 0]);
    }
}
