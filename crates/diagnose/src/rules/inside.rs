//! What a container itself lacks: loopback, a program that listens.

use std::net::IpAddr;

use scene::{Attachment, Container, Listener, Namespace, Part, Port};

use super::{Rule, containers, family_of};
use crate::Look;
use crate::finding::{Family, Finding, WayKind};

pub(super) const RULE: Rule =
    Rule { judges: "loopback of containers", ids: &["loopback-down"], judge, ..Rule::NONE };

/// Programs that listen in containers.
pub(super) const LISTENERS: Rule = Rule {
    judges: "programs that listen",
    ids: &["nothing-listens", "listens-on-loopback", "listens-elsewhere"],
    inside: &[Part::Listeners],
    judge: listeners,
    ..Rule::NONE
};

fn insides(look: Look<'_>) -> impl Iterator<Item = (&Container, &Namespace)> {
    containers(look).filter_map(|container| Some((container, container.inside.as_ref()?)))
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let of_one = |(container, inside): (&Container, &Namespace)| {
        loopback(container, inside).or_else(|| {
            let is_read = !look.scene.lacks(Part::Links, Some(&container.id));
            without_address(container, inside).filter(|_| is_read)
        })
    };
    insides(look).filter_map(of_one).chain(of_node(look)).collect()
}

/// By the node's own loopback its programs reach published ports.
fn of_node(look: Look<'_>) -> Option<Finding> {
    let lo = look.scene.host.link("lo").filter(|lo| !lo.up)?;
    let is_here =
        |port: &Port| port.host_ip.is_none_or(|at| at.is_unspecified() || at.is_loopback());
    let publishes = |container: &&Container| {
        container.attachments.iter().flat_map(|one| &one.ports).any(is_here)
    };
    let hits: Vec<String> =
        containers(look).filter(publishes).map(|container| container.id.clone()).collect();
    if hits.is_empty() {
        return None;
    }
    let says =
        "loopback of this node is down, so its programs do not reach published ports by 127.0.0.1";
    let finding = Finding::error("loopback-down", "this node", says)
        .at(format!("link {}", lo.name))
        .fix("ip link set lo up")
        .breaks(WayKind::PublishedHere, None);
    Some(Finding { hits, ..finding })
}

fn listeners(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (container, inside) in insides(look) {
        for attachment in &container.attachments {
            let ports = attachment.ports.iter();
            found.extend(ports.filter_map(|port| listens(container, inside, attachment, port)));
        }
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

/// The kernel gives loopback its address when it is set up.
fn without_address(container: &Container, inside: &Namespace) -> Option<Finding> {
    let lo = inside.link("lo")?;
    let mut own = lo.addresses.iter().map(|own| own.address.addr());
    if own.any(|address| address.is_ipv4() && address.is_loopback()) {
        return None;
    }
    let called = container.called();
    let says = format!(
        "loopback of {called} has no address of IPv4, so its programs do not reach each other at 127.0.0.1"
    );
    Some(
        Finding::error("loopback-down", container.id.clone(), says)
            .at(format!("link {} of {}", lo.name, container.netns))
            .hits(container.id.clone())
            .fix(format!("nsenter --net={} ip addr add 127.0.0.1/8 dev lo", container.netns))
            .breaks(WayKind::Inside, Some(Family::V4)),
    )
}

/// Says whether a socket takes packets of an IP version; `None`: of any.
pub(super) fn speaks(listener: &Listener, family: Option<Family>) -> bool {
    match (listener.at.ip(), family) {
        (_, None) | (IpAddr::V4(_), Some(Family::V4)) | (IpAddr::V6(_), Some(Family::V6)) => true,
        (IpAddr::V6(own), Some(Family::V4)) => own.is_unspecified() && !listener.v6only,
        (IpAddr::V4(_), Some(Family::V6)) => false,
    }
}

fn listens(
    container: &Container,
    inside: &Namespace,
    attachment: &Attachment,
    port: &Port,
) -> Option<Finding> {
    // A port of one address of the node leads to the container's address of the same version.
    let family = port.host_ip.filter(|address| !address.is_unspecified()).map(family_of);
    let at_port = |listener: &&Listener| {
        listener.transport == port.transport
            && listener.at.port() == port.container
            && speaks(listener, family)
    };
    let listeners: Vec<&Listener> = inside.listeners.iter().filter(at_port).collect();
    // To which address of the container the port leads, only its result of ADD tells.
    let is_led_to = |address: IpAddr| {
        let own = &attachment.addresses;
        address.is_unspecified() || own.is_empty() || own.iter().any(|net| net.addr() == address)
    };
    let others = listeners.iter().filter(|listener| !listener.at.ip().is_loopback());
    let elsewhere = others.clone().next().copied();
    if others.map(|listener| listener.at.ip()).any(is_led_to) {
        return None;
    }
    let what = format!("{}/{}", port.container, port.transport.as_str());
    let object = format!("{}:{what}", container.id);
    let finding = match elsewhere.or(listeners.first().copied()) {
        Some(listener) if !listener.at.ip().is_loopback() => {
            let program = listener.program.as_deref().unwrap_or("its program");
            let own: Vec<String> =
                attachment.addresses.iter().map(|net| net.addr().to_string()).collect();
            let says = format!(
                "{program} of {} listens on {} alone, and its published port {what} leads to {}",
                container.called(),
                listener.at,
                own.join(" and ")
            );
            Finding::error("listens-elsewhere", object, says).fix(format!(
                "let {program} listen on 0.0.0.0 or [::], or publish the port for the network of {}",
                listener.at.ip()
            ))
        }
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
            let by = family.map(|family| format!(" by {family}")).unwrap_or_default();
            let says = format!(
                "no program of {} listens on its published port {what}{by}",
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
    use scene::{Attachment, Scene, Transport};

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
        let lo = crate::routes::samples::link(1, "lo", &["127.0.0.1/8"]);
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

    /// A port leads to the container's address on the network that publishes it.
    #[test]
    fn a_program_may_listen_on_another_address_or_ip_version() {
        let mut scene = listening("192.0.2.7:80");
        let addresses = &mut scene.containers[0].attachments[0].addresses;
        addresses.push("10.88.0.2/24".parse().unwrap());
        assert_eq!(ids(&scene), ["listens-elsewhere"]);
        scene.containers[0].inside.as_mut().unwrap().listeners[0].at =
            "10.88.0.2:80".parse().unwrap();
        assert_eq!(ids(&scene), [""; 0]);
        let at = |host: &str, own: &str| {
            let mut scene = listening(own);
            scene.containers[0].attachments[0].ports[0].host_ip = Some(host.parse().unwrap());
            ids(&scene)
        };
        assert_eq!(at("2001:db8::2", "0.0.0.0:80"), ["nothing-listens"]);
        assert_eq!(at("192.0.2.2", "[::]:80"), [""; 0]);
        assert_eq!(at("::", "0.0.0.0:80"), [""; 0]);
    }

    #[test]
    fn loopback_that_is_down() {
        let mut scene = listening("0.0.0.0:80");
        scene.containers[0].inside.as_mut().unwrap().links[0].up = false;
        assert_eq!(ids(&scene), ["loopback-down"]);
    }

    /// It matters where a port is published.
    #[test]
    fn loopback_of_the_node_that_is_down() {
        let mut scene = listening("0.0.0.0:80");
        let lo = crate::routes::samples::link(1, "lo", &["127.0.0.1/8"]);
        scene.host.links = vec![scene::Link { up: false, ..lo }];
        assert_eq!(ids(&scene), ["loopback-down"]);
        scene.containers[0].attachments[0].ports[0].host_ip = Some([192, 0, 2, 2].into());
        assert_eq!(ids(&scene), [""; 0]);
    }

    #[test]
    fn loopback_that_has_no_address() {
        let mut scene = listening("0.0.0.0:80");
        scene.containers[0].inside.as_mut().unwrap().links[0].addresses.clear();
        assert_eq!(ids(&scene), ["loopback-down"]);
        scene.holes = vec![scene::Hole {
            part: Part::Links,
            container: Some("c1".to_owned()),
            reason: "Operation not permitted".to_owned(),
        }];
        assert_eq!(ids(&scene), [""; 0]);
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
