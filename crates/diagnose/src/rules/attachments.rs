//! What CHECK says of each attachment.

use scene::{Attachment, Container, Drift, Part};

use super::{Rule, containers, nothing};
use crate::Look;
use crate::finding::{Finding, WayKind};

pub(super) const RULE: Rule = Rule {
    ids: &["attachment-differs", "namespace-gone", "not-checked"],
    needs: &[Part::Attachments],
    asks: nothing,
    judge,
};

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in &look.scene.containers {
        let is_asked = look.only.is_some_and(|only| container.id == only);
        if container.alive == Some(false) && (is_asked || look.only.is_none()) {
            found.push(gone(container));
        }
    }
    for container in containers(look) {
        for attachment in &container.attachments {
            let told_here = attachment.drifts.iter().filter(|drift| !is_of_the_node(look, drift));
            found.extend(told_here.map(|drift| differs(container, attachment, drift)));
            if let Some(reason) = &attachment.not_checked {
                let object = object(container, attachment);
                let says =
                    format!("{} was not compared with what ADD made", named(container, attachment));
                found.push(
                    Finding::unknown("not-checked", object, says)
                        .seen(reason.clone())
                        .hits(container.id.clone()),
                );
            }
        }
    }
    found
}

/// Says whether a difference is a switch of the whole node, of which `switches` tells once.
fn is_of_the_node(look: Look<'_>, drift: &Drift) -> bool {
    let off = |sysctl: &str| look.scene.host.number(sysctl) == Some(0);
    (drift.what.contains("IPv4 forwarding is off") && off("net.ipv4.ip_forward"))
        || (drift.what.contains("IPv6 forwarding is off") && off("net.ipv6.conf.all.forwarding"))
}

fn gone(container: &Container) -> Finding {
    let says = format!(
        "the network namespace of {} is gone, and its attachments are recorded",
        container.called()
    );
    Finding::warning("namespace-gone", container.id.clone(), says)
        .at(container.netns.clone())
        .hits(container.id.clone())
        .fix("netwright gc")
}

fn differs(container: &Container, attachment: &Attachment, drift: &Drift) -> Finding {
    let says = format!("{}: {}", named(container, attachment), drift.what);
    // Several things may differ, each with a finding of its own.
    let object = format!("{}: {}", object(container, attachment), drift.what);
    let finding = Finding::error("attachment-differs", object, says)
        .at(format!("plugin {} of network {}", drift.plugin, attachment.network))
        .hits(container.id.clone())
        .fix(format!("netwright repair {}", container.id))
        .breaks(WayKind::Gateway, None)
        .breaks(WayKind::Outside, None)
        .breaks(WayKind::Between, None)
        .breaks(WayKind::FromNode, None)
        .breaks(WayKind::Published, None)
        .breaks(WayKind::PublishedHere, None)
        .breaks(WayKind::Names, None)
        .breaks(WayKind::Nodes, None);
    if drift.details.is_empty() { finding } else { finding.seen(drift.details.clone()) }
}

fn object(container: &Container, attachment: &Attachment) -> String {
    format!("{}/{}/{}", attachment.network, container.id, attachment.ifname)
}

fn named(container: &Container, attachment: &Attachment) -> String {
    format!("{} of {} on {}", attachment.ifname, container.called(), attachment.network)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Answers;
    use scene::Scene;

    #[test]
    fn each_difference_is_a_finding() {
        let drift = |what: &str| Drift {
            plugin: "bridge".to_owned(),
            code: 102,
            what: what.to_owned(),
            details: String::new(),
        };
        let attachment = Attachment {
            network: "mynet".to_owned(),
            ifname: "eth0".to_owned(),
            drifts: vec![drift("link \"eth0\" is down"), drift("IPv4 forwarding is off")],
            ..Attachment::default()
        };
        let container = Container {
            id: "c1".to_owned(),
            alive: Some(true),
            attachments: vec![attachment],
            ..Container::default()
        };
        let dead = Container { id: "c2".to_owned(), alive: Some(false), ..Container::default() };
        let scene = Scene { containers: vec![container, dead], ..Scene::default() };
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let says: Vec<String> = judge(look).into_iter().map(|finding| finding.says).collect();
        assert_eq!(
            says,
            [
                "the network namespace of c2 is gone, and its attachments are recorded",
                "eth0 of c1 on mynet: link \"eth0\" is down",
                "eth0 of c1 on mynet: IPv4 forwarding is off",
            ]
        );
        let only = Look { only: Some("c1"), ..look };
        assert_eq!(judge(only).len(), 2);
    }
}
