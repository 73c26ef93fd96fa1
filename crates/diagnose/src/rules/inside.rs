//! What a container itself lacks: loopback, a program that listens.

use scene::{Container, Listener, Namespace, Part, Port};

use super::{Rule, containers};
use crate::Look;
use crate::finding::{Finding, WayKind};

pub(super) const RULE: Rule = Rule {
    judges: "loopback of containers",
    ids: &["loopback-down"],
    judge,
    ..Rule::NONE
};

/// Programs that listen in containers.
pub(super) const LISTENERS: Rule = Rule {
    judges: "programs that listen",
    ids: &["nothing-listens", "listens-on-loopback"],
    inside: &[Part::Listeners],
    judge: listeners,
    ..Rule::NONE
};

fn insides(look: Look<'_>) -> impl Iterator<Item = (&Container, &Namespace)> {
    containers(look).filter_map(|container| Some((container, container.inside.as_ref()?)))
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    insides(look).filter_map(|(container, inside)| loopback(container, inside)).collect()
}

fn listeners(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (container, inside) in insides(look) {
        let ports = container.attachments.iter().flat_map(|one| &one.ports);
        found.extend(ports.filter_map(|port| listens(container, inside, port)));
    }
    found
}

fn loopback(container: &Container, inside: &Namespace) -> Option<Finding> {
    let lo = inside.link("lo").filter(|lo| !lo.up)?;
    let says = format!(
        "loopback of {} is down, so its programs do not reach each other",
        container.called()
    );
    Some(
        Finding::error("loopback-down", container.id.clone(), says)
            .at(format!("link {} of {}", lo.name, container.netns))
            .hits(container.id.clone())
            .fix(format!("nsenter --net={} ip link set lo up", container.netns))
            .breaks(WayKind::Inside, None),
    )
}

fn listens(container: &Container, inside: &Namespace, port: &Port) -> Option<Finding> {
    let at_port = |listener: &&Listener| {
        listener.transport == port.transport && listener.at.port() == port.container
    };
    let listeners: Vec<&Listener> = inside.listeners.iter().filter(at_port).collect();
    if listeners.iter().any(|listener| !listener.at.ip().is_loopback()) {
        return None;
    }
    let what = format!("{}/{}", port.container, port.transport.as_str());
    let object = format!("{}:{what}", container.id);
    let finding = match listeners.first() {
        Some(listener) => {
            let program = listener.program.as_deref().unwrap_or("its program");
            let says = format!(
                "{program} of {} listens on {} alone, and its port {what} is published",
                container.called(),
                listener.at
            );
            Finding::error("listens-on-loopback", object, says).fix(format!(
                "let {program} listen on 0.0.0.0 or [::] instead of {}",
                listener.at.ip()
            ))
        }
        None => {
            let says = format!(
                "no program of {} listens on its published port {what}",
                container.called()
            );
            Finding::error("nothing-listens", object, says)
                .fix(format!("start the program, or publish the port on which it listens: nsenter --net={} ss -ln", container.netns))
                .breaks(WayKind::Inside, None)
        }
    };
    Some(
        finding
            .at(format!("port {what} of {}, published as {}", container.called(), port.host))
            .hits(container.id.clone())
            .breaks(WayKind::Published, None)
            .breaks(WayKind::PublishedHere, None)
            .breaks(WayKind::FromNode, None),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Answers;
    use scene::{Attachment, Link, Scene, Transport};

    fn ids(scene: &Scene) -> Vec<&'static str> {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only: None, to: None };
        let all = RULE.findings(look).into_iter().chain(LISTENERS.findings(look));
        all.map(|finding| finding.id).collect()
    }

    fn listening(at: &str) -> Scene {
        let port = Port { transport: Transport::Tcp, host: 8080, host_ip: None, container: 80 };
        let listener = Listener {
            transport: Transport::Tcp,
            at: at.parse().unwrap(),
            v6only: false,
            pid: None,
            program: Some("nginx".to_owned()),
        };
        let lo = Link { name: "lo".to_owned(), up: true, ..Link::default() };
        let inside =
            Namespace { links: vec![lo], listeners: vec![listener], ..Namespace::default() };
        let container = Container {
            id: "c1".to_owned(),
            alive: Some(true),
            inside: Some(inside),
            attachments: vec![Attachment { ports: vec![port], ..Attachment::default() }],
            ..Container::default()
        };
        Scene { containers: vec![container], ..Scene::default() }
    }

    #[test]
    fn a_published_port_needs_a_program() {
        assert_eq!(ids(&listening("0.0.0.0:80")), [""; 0]);
        assert_eq!(ids(&listening("[::]:80")), [""; 0]);
        assert_eq!(ids(&listening("127.0.0.1:80")), ["listens-on-loopback"]);
        assert_eq!(ids(&listening("0.0.0.0:81")), ["nothing-listens"]);
    }

    #[test]
    fn loopback_that_is_down() {
        let mut scene = listening("0.0.0.0:80");
        scene.containers[0].inside.as_mut().unwrap().links[0].up = false;
        assert_eq!(ids(&scene), ["loopback-down"]);
    }

    /// What could not be seen is not absent.
    #[test]
    fn sockets_that_could_not_be_read_are_not_judged() {
        let mut scene = listening("0.0.0.0:81");
        scene.holes = vec![scene::Hole {
            part: Part::Listeners,
            container: Some("c1".to_owned()),
            reason: "Operation not permitted".to_owned(),
        }];
        assert_eq!(ids(&scene), ["not-judged"]);
    }
}
