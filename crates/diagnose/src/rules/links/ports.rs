//! Ports of a bridge by which frames do not come to the container, although they are up.

use scene::{Fdb, Namespace};

use super::super::{asks_links, containers};
use crate::Look;
use crate::finding::{Family, Finding, WayKind};
use crate::path::Site;
use crate::question::{Answer, Asked, Question};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

const ALL: &[WayKind] = &[
    WayKind::Gateway,
    WayKind::Outside,
    WayKind::Names,
    WayKind::FromNode,
    WayKind::Published,
    WayKind::Between,
];

/// The node's own multicasts are sent to each port.
const OTHERS: &[WayKind] = &[WayKind::Between];

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let host = &look.scene.host;
    let mut found: Vec<Finding> = Vec::new();
    for container in containers(look) {
        for site in FAMILIES.iter().flat_map(|family| Site::all(look.scene, container, *family)) {
            let (name, called) = (&site.host_end.name, container.called());
            let family = site.family();
            let (what, fix, kinds) = if site.host_end.no_broadcasts && family == Family::V4 {
                ("no broadcasts, so nobody finds its hardware address", "bcast_flood on", ALL)
            } else if is_not_found(look, &site) {
                (
                    "no multicasts, so others on the bridge do not find its hardware address by IPv6",
                    "mcast_flood on",
                    OTHERS,
                )
            } else if site.host_end.no_unknown && !is_known(host, &site) {
                ("nothing: the bridge neither learns nor floods there", "learning on flood on", ALL)
            } else {
                continue;
            };
            let says = format!("bridge port {name} of {called} gets {what}");
            let finding = Finding::error("port-silenced", name.clone(), says)
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
        containers(look).flat_map(move |container| Site::all(look.scene, container, Family::V6));
    sites.filter_map(|site| question(look, &site)).collect()
}

/// What the node itself asks goes to such a port all the same (linux net/bridge/br_forward.c
/// `br_flood`); and what others ask, if the bridge watches who is in which group.
fn question(look: Look<'_>, site: &Site<'_>) -> Option<Question> {
    let is_silenced = site.family() == Family::V6 && site.host_end.no_multicasts;
    let bridge = site.bridge.filter(|bridge| is_silenced && !bridge.vlan_filtering)?;
    if !asks_links(look) {
        return None;
    }
    let everybody = Look { only: None, ..look };
    let mut others = containers(everybody)
        .filter(|other| other.id != site.container.id)
        .flat_map(move |other| Site::all(look.scene, other, Family::V6));
    let other = others.find(|other| {
        other.bridge.is_some_and(|own| own.index == bridge.index)
            && !(other.host_end.isolated && site.host_end.isolated)
    })?;
    let asked = Asked::WhoHas { address: site.address, link: other.attachment.ifname.clone() };
    Some(Question { from: Some(other.container.id.clone()), asked })
}

fn is_not_found(look: Look<'_>, site: &Site<'_>) -> bool {
    let answer = question(look, site).and_then(|question| look.answers.to(&question));
    matches!(answer, Some(Answer::Owners { macs }) if macs.is_empty())
}

/// Says whether somebody has configured that the container is behind its port.
fn is_known(host: &Namespace, site: &Site<'_>) -> bool {
    let is_there = |entry: &Fdb| {
        let mac = site.link.mac.as_deref();
        entry.port == site.host_end.index
            && !entry.own
            && mac.is_some_and(|mac| mac.eq_ignore_ascii_case(&entry.mac))
    };
    host.fdb.iter().any(is_there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::samples::node;
    use crate::question::Answers;
    use scene::{Link, Scene};

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
        let asked = Asked::WhoHas { address, link: "eth0".to_owned() };
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
