//! Published ports against what else the node has.

use std::net::IpAddr;

use super::{Rule, containers};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Container, Listener, Part, Port};

pub(super) const RULE: Rule =
    Rule { judges: "published ports", ids: &["port-hidden", "port-taken"], judge, ..Rule::NONE };

/// Addresses at which ports are published.
pub(super) const ADDRESSES: Rule = Rule {
    judges: "addresses of published ports",
    ids: &["port-address-gone"],
    needs: &[Part::Links],
    judge: addresses,
    ..Rule::NONE
};

/// Programs that hold a port of the host for the very container to which it is published.
const HOLDERS: [&str; 11] = [
    "conmon",
    "crio",
    "docker-proxy",
    "dockerd",
    "containerd",
    "netavark",
    "netwright",
    "netwrightd",
    "pasta",
    "podman",
    "rootlessport",
];

/// A port of a container that the host publishes.
#[derive(Debug, Clone, Copy)]
struct PublishedPort<'p> {
    container: &'p Container,
    port: &'p Port,
}

fn published(look: Look<'_>) -> impl Iterator<Item = PublishedPort<'_>> {
    containers(look).flat_map(|container| {
        let ports = container.attachments.iter().flat_map(|one| &one.ports);
        ports.map(move |port| PublishedPort { container, port })
    })
}

fn addresses(look: Look<'_>) -> Vec<Finding> {
    published(look).filter_map(|one| gone(look, one)).collect()
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    // Of two containers that share a port both are looked at, also if one is asked for.
    let published: Vec<PublishedPort<'_>> = published(Look { only: None, ..look }).collect();
    let mut found = Vec::new();
    for (place, one) in published.iter().enumerate() {
        let is_asked = |id: &str| look.only.is_none_or(|only| only == id);
        let others = published[place + 1..]
            .iter()
            .filter(|other| other.container.id != one.container.id && meet(one.port, other.port));
        let asked =
            others.filter(|other| is_asked(&one.container.id) || is_asked(&other.container.id));
        found.extend(asked.map(|other| taken(*one, *other)));
        if is_asked(&one.container.id) {
            found.extend(hidden(look, *one));
        }
    }
    found
}

/// Says whether a packet can be for both ports.
fn meet(one: &Port, other: &Port) -> bool {
    one.transport == other.transport
        && one.host == other.host
        && match (wildcard(one.host_ip), wildcard(other.host_ip)) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        }
}

/// Returns the address of the host; `None` if it is every address.
fn wildcard(address: Option<IpAddr>) -> Option<IpAddr> {
    address.filter(|address| !address.is_unspecified())
}

fn shown(port: &Port) -> String {
    format!("{}/{}", port.host, port.transport.as_str())
}

fn taken(one: PublishedPort<'_>, other: PublishedPort<'_>) -> Finding {
    let port = shown(one.port);
    let says = format!(
        "port {port} of this node is published by {} and by {}",
        one.container.called(),
        other.container.called()
    );
    Finding::error("port-taken", port, says)
        .hits(one.container.id.clone())
        .hits(other.container.id.clone())
        .advise("publish another port for one of them")
        .breaks(WayKind::Published, None)
        .breaks(WayKind::PublishedHere, None)
}

/// A program of the node that listens where a port is published gets no packets from others.
fn hidden(look: Look<'_>, one: PublishedPort<'_>) -> Option<Finding> {
    let listener = look.scene.host.listeners.iter().find(|listener| hides(one.port, listener))?;
    let program = listener.program.as_deref().unwrap_or("a program");
    let port = shown(one.port);
    let says = format!(
        "port {port}, published by {}, hides {program} of this node",
        one.container.called()
    );
    let pid = listener.pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
    Some(
        Finding::warning("port-hidden", port, says)
            .at(format!("{program}{pid} listens on {}", listener.at))
            .hits(one.container.id.clone())
            .advise("publish another port, or stop the program"),
    )
}

fn hides(port: &Port, listener: &Listener) -> bool {
    let is_holder = listener
        .program
        .as_deref()
        .is_some_and(|program| HOLDERS.iter().any(|one| program.starts_with(one)));
    let at = listener.at.ip();
    let is_same_address = match wildcard(port.host_ip) {
        // What listens only on loopback is reached as before.
        None => !at.is_loopback(),
        Some(address) => at == address || (at.is_unspecified() && serves(listener, address)),
    };
    !is_holder
        && listener.transport == port.transport
        && listener.at.port() == port.host
        && is_same_address
}

fn serves(listener: &Listener, address: IpAddr) -> bool {
    match (listener.at.ip(), address) {
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
        (IpAddr::V6(_), IpAddr::V4(_)) => !listener.v6only,
        _ => true,
    }
}

fn gone(look: Look<'_>, one: PublishedPort<'_>) -> Option<Finding> {
    let address = wildcard(one.port.host_ip).filter(|address| !address.is_loopback())?;
    if look.scene.host.owner_of(address).is_some() {
        return None;
    }
    let port = shown(one.port);
    let says = format!(
        "port {port} of {} is published at {address}, which this node does not have",
        one.container.called()
    );
    Some(
        Finding::error("port-address-gone", format!("{address}:{port}"), says)
            .hits(one.container.id.clone())
            .advise("give the node the address, or publish the port at one that it has")
            .breaks(WayKind::Published, Some(super::IpFamily::of(address))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Attachment, Link, Scene, Transport};
    use crate::question::Answers;

    fn container(id: &str, host_ip: Option<&str>) -> Container {
        let port = Port {
            transport: Transport::Tcp,
            host: 8080,
            host_ip: host_ip.map(|address| address.parse().unwrap()),
            container: 80,
        };
        let attachment = Attachment { ports: vec![port], ..Attachment::default() };
        Container {
            id: id.to_owned(),
            alive: Some(true),
            attachments: vec![attachment],
            ..Container::default()
        }
    }

    fn listener(at: &str, program: &str) -> Listener {
        Listener {
            transport: Transport::Tcp,
            at: at.parse().unwrap(),
            v6only: false,
            pid: Some(812),
            program: Some(program.to_owned()),
            full: None,
            stopped: false,
            frozen: None,
        }
    }

    fn says(scene: &Scene) -> Vec<String> {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only: None, to: None };
        judge(look).into_iter().chain(addresses(look)).map(|finding| finding.says).collect()
    }

    #[test]
    fn a_program_behind_a_published_port() {
        let mut scene = Scene { containers: vec![container("c1", None)], ..Scene::default() };
        scene.host.listeners = vec![
            listener("127.0.0.1:8080", "local"),
            listener("0.0.0.0:8081", "nginx"),
            listener("0.0.0.0:8080", "docker-proxy"),
        ];
        assert_eq!(says(&scene), [""; 0]);
        scene.host.listeners.push(listener("0.0.0.0:8080", "nginx"));
        assert_eq!(says(&scene), ["port 8080/tcp, published by c1, hides nginx of this node"]);
    }

    #[test]
    fn two_containers_and_one_port() {
        let both = vec![container("c1", None), container("c2", Some("192.0.2.2"))];
        let mut scene = Scene { containers: both, ..Scene::default() };
        scene.host.links = vec![Link {
            addresses: vec![crate::model::Address {
                address: "192.0.2.2/24".parse().unwrap(),
                duplicate: false,
                tentative: false,
            }],
            ..Link::default()
        }];
        assert_eq!(says(&scene), ["port 8080/tcp of this node is published by c1 and by c2"]);
        let apart = vec![container("c1", Some("127.0.0.1")), container("c2", Some("192.0.2.2"))];
        scene.containers = apart;
        assert_eq!(says(&scene), [""; 0]);
    }

    #[test]
    fn an_address_that_the_node_has_not() {
        let mut scene =
            Scene { containers: vec![container("c1", Some("192.0.2.9"))], ..Scene::default() };
        scene.host.links = vec![Link::default()];
        assert_eq!(
            says(&scene),
            ["port 8080/tcp of c1 is published at 192.0.2.9, which this node does not have"]
        );
    }
}
