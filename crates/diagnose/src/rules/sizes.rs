//! Packets that vanish for their size.

use std::net::IpAddr;

use scene::Container;

use super::filters::large::is_of_echo_alone;
use super::{Rule, containers, family_of, is_outbound, targets};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::question::{Answer, Probe, Question};

pub(super) const RULE: Rule =
    Rule { judges: "sizes of packets", ids: &["path-mtu"], asks, judge, ..Rule::NONE };

fn asks(look: Look<'_>) -> Vec<Question> {
    let mut questions = Vec::new();
    for container in containers(look) {
        let Some(up_to) = largest(container) else { continue };
        let to = targets(look, container);
        let reached =
            to.into_iter().filter(|to| is_outbound(look.scene, container, family_of(*to)));
        questions.extend(reached.map(|to| Question {
            from: Some(container.id.clone()),
            asked: Probe::Size { to, up_to },
        }));
    }
    questions
}

/// Returns the MTU of the link by which a container reaches others, in bytes.
fn largest(container: &Container) -> Option<u32> {
    let inside = container.inside.as_ref()?;
    let is_routed = |one: &&scene::Attachment| !one.gateways.is_empty();
    let attachment = container.attachments.iter().find(is_routed)?;
    inside.link(&attachment.ifname).map(|link| link.mtu)
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        for (asked, answer) in look.answers.from(Some(&container.id)) {
            if let (Probe::Size { to, .. }, Answer::UpTo { answered, lost }) = (asked, answer)
                && !is_of_echo_alone(look, container, *to)
            {
                found.push(black_hole(look, container, *to, (*answered, *lost)));
            }
        }
    }
    found
}

fn black_hole(
    look: Look<'_>,
    container: &Container,
    to: IpAddr,
    (answered, lost): (u32, u32),
) -> Finding {
    let says =
        format!("packets of more than {answered} bytes from {} to {to} vanish", container.called());
    let is_routed = |one: &&scene::Attachment| !one.gateways.is_empty();
    let network = container.attachments.iter().find(is_routed).map(|one| one.network.as_str());
    let file = look.scene.networks.iter().find(|one| Some(one.name.as_str()) == network);
    let file = file.and_then(|network| network.file.as_deref()).unwrap_or("the network's file");
    Finding::error("path-mtu", to.to_string(), says)
        .seen(format!(
            "{answered} bytes were answered and {lost} were not; no router said \"fragmentation needed\": small requests work, transfers hang"
        ))
        .hits(container.id.clone())
        .advise(format!(
            "\"mtu\": {answered} in {file}, or let ICMP \"fragmentation needed\" (type 3 code 4, ICMPv6 type 2) pass on the way"
        ))
        .breaks(WayKind::Outside, Some(family_of(to)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Answers;
    use scene::{Attachment, Link, Namespace, Scene};

    #[test]
    fn a_black_hole_is_named_with_a_size_that_passes() {
        let eth0 = Link { name: "eth0".to_owned(), mtu: 1500, ..Link::default() };
        let attachment = Attachment {
            network: "mynet".to_owned(),
            ifname: "eth0".to_owned(),
            plugins: vec!["bridge".to_owned()],
            gateways: vec!["10.88.0.1".parse().unwrap()],
            ..Attachment::default()
        };
        let container = Container {
            id: "c1".to_owned(),
            alive: Some(true),
            inside: Some(Namespace { links: vec![eth0], ..Namespace::default() }),
            attachments: vec![attachment],
            ..Container::default()
        };
        let scene = Scene { containers: vec![container], ..Scene::default() };
        let none = Answers::default();
        let to = Some("198.51.100.1:80".parse().unwrap());
        let look = Look { scene: &scene, answers: &none, only: None, to };
        let asked = asks(look);
        assert_eq!(
            asked[0].asked,
            Probe::Size { to: "198.51.100.1".parse().unwrap(), up_to: 1500 }
        );
        let answer = Answer::UpTo { answered: 1300, lost: 1301 };
        let answers = Answers { all: vec![(asked[0].clone(), answer)] };
        let found = judge(Look { answers: &answers, ..look });
        assert_eq!(found[0].says, "packets of more than 1300 bytes from c1 to 198.51.100.1 vanish");
    }
}
