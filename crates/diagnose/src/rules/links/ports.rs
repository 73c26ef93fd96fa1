//! Ports of a bridge by which frames do not come to the container, although they are up.

use scene::{Fdb, Namespace};

use super::super::containers;
use crate::Look;
use crate::finding::{Family, Finding, WayKind};
use crate::path::Site;
use crate::question::{Answer, Asked, Question};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let host = &look.scene.host;
    let mut found: Vec<Finding> = Vec::new();
    for container in containers(look) {
        for site in FAMILIES.iter().flat_map(|family| Site::all(look.scene, container, *family)) {
            let (name, called) = (&site.host_end.name, container.called());
            let family = site.family();
            let (what, fix) = if site.host_end.no_broadcasts && family == Family::V4 {
                ("no broadcasts, so nobody finds its hardware address", "bcast_flood on")
            } else if site.host_end.no_multicasts && is_not_found(look, &site) {
                ("no multicasts, so nobody finds its hardware address by IPv6", "mcast_flood on")
            } else if site.host_end.no_unknown && !is_known(host, &site) {
                ("nothing: the bridge neither learns nor floods there", "learning on flood on")
            } else {
                continue;
            };
            let says = format!("bridge port {name} of {called} gets {what}");
            let finding = Finding::error("port-silenced", name.clone(), says)
                .hits(container.id.clone())
                .fix(format!("bridge link set dev {name} {fix}"));
            let kinds = [
                WayKind::Gateway,
                WayKind::Outside,
                WayKind::Names,
                WayKind::FromNode,
                WayKind::Published,
                WayKind::Between,
            ];
            found.push(
                kinds.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(family))),
            );
        }
    }
    found
}

/// Says whether the node asked in vain who has the container's address of IPv6. The bridge sends the
/// question there all the same if it watches who is in which group.
fn is_not_found(look: Look<'_>, site: &Site<'_>) -> bool {
    let asked = Asked::WhoHas { address: site.address, link: site.seen_by.name.clone() };
    let question = Question { from: None, asked };
    site.family() == Family::V6
        && matches!(look.answers.to(&question), Some(Answer::Owners { macs }) if macs.is_empty())
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
        let address = crate::path::samples::ip("fd00:88::2");
        let told = |macs: &[&str]| {
            let macs = macs.iter().map(|mac| (*mac).to_owned()).collect();
            let asked = Asked::WhoHas { address, link: "cni0".to_owned() };
            let all = vec![(Question { from: None, asked }, Answer::Owners { macs })];
            let answers = Answers { all };
            let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
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
