//! Which packets of a probe a namespace may see: address translation changes their source or
//! destination on the way.

use std::net::IpAddr;

use diagnose::model::{Container, Link, Namespace, Port, Scene, Transport};
use kernel::nft::Family;
use kernel::nft::trace::{Flow, Protocol};

/// How many addresses of the node count as possible translations of a source.
const MOST_ADDRESSES: usize = 8;

/// Returns the ID of the container that has an address.
pub(super) fn owner(scene: &Scene, address: IpAddr) -> Option<&str> {
    let has = |container: &&Container| {
        container.inside.as_ref().is_some_and(|inside| inside.owner_of(address).is_some())
            && !address.is_loopback()
    };
    scene.containers.iter().find(has).map(|container| container.id.as_str())
}

/// Returns a flow, and what translation may make of it: a published port leads to a container, what
/// leaves the node has one of its addresses, and what the node sends to a container may have one of
/// a bridge.
pub(super) fn variants(scene: &Scene, flow: &Flow) -> Vec<Flow> {
    let mut all = vec![*flow];
    if flow.protocol == Protocol::Tcp {
        for container in &scene.containers {
            for attachment in &container.attachments {
                let leads = attachment.ports.iter().filter(|port| leads(port, flow));
                for port in leads {
                    let same = attachment
                        .addresses
                        .iter()
                        .filter(|net| net.addr().is_ipv4() == flow.destination.is_ipv4());
                    all.extend(same.map(|net| Flow {
                        destination: net.addr(),
                        destination_port: port.container,
                        ..*flow
                    }));
                }
            }
        }
    }
    let is_of_container = owner(scene, flow.source).is_some();
    for variant in all.clone() {
        let (host, to_container) = (&scene.host, owner(scene, variant.destination).is_some());
        let sources = match (is_of_container, to_container) {
            (true, false) => sources(host, flow, |link| !is_bridge(link)),
            (false, true) => sources(host, flow, is_bridge),
            _ => Vec::new(),
        };
        all.extend(sources.into_iter().map(|source| Flow { source, ..variant }));
    }
    all
}

pub(super) fn is_bridge(link: &Link) -> bool {
    link.kind.as_deref() == Some("bridge")
}

fn leads(port: &Port, flow: &Flow) -> bool {
    port.transport == Transport::Tcp
        && port.host == flow.destination_port
        && port.host_ip.is_none_or(|address| address == flow.destination)
}

/// Returns the node's addresses of the flow's family on some links.
fn sources(host: &Namespace, flow: &Flow, on: impl Fn(&Link) -> bool) -> Vec<IpAddr> {
    let is_of =
        |address: &IpAddr| address.is_ipv4() == flow.source.is_ipv4() && !is_link_local(*address);
    host.links
        .iter()
        .filter(|link| link.name != "lo" && on(link))
        .flat_map(|link| &link.addresses)
        .map(|own| own.address.addr())
        .filter(is_of)
        .take(MOST_ADDRESSES)
        .collect()
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Returns the families of tables that judge a namespace's packets.
pub(super) fn families(namespace: &Namespace) -> Vec<Family> {
    use diagnose::model::filter::Family as Kind;
    let has = |kinds: &[Kind]| {
        let tables = &namespace.filter.tables;
        tables.iter().any(|table| !table.dormant && kinds.contains(&table.family))
    };
    let mut families = Vec::new();
    if has(&[Kind::Ip, Kind::Ip6, Kind::Inet]) {
        families.push(Family::Inet);
    }
    if has(&[Kind::Bridge]) {
        families.push(Family::Bridge);
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;
    use diagnose::model::{Address, Attachment};

    fn link(name: &str, kind: Option<&str>, addresses: &[&str]) -> Link {
        let address = |text: &&str| Address {
            address: text.parse().unwrap(),
            duplicate: false,
            tentative: false,
        };
        Link {
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
            addresses: addresses.iter().map(address).collect(),
            ..Link::default()
        }
    }

    fn node() -> Scene {
        let port = Port { transport: Transport::Tcp, host: 8080, host_ip: None, container: 80 };
        let attachment = Attachment {
            addresses: vec!["10.88.0.2/24".parse().unwrap(), "fd00:88::2/64".parse().unwrap()],
            ports: vec![port],
            ..Attachment::default()
        };
        let eth0 = link("eth0", Some("veth"), &["10.88.0.2/24", "fd00:88::2/64"]);
        let web = Container {
            id: "web".to_owned(),
            inside: Some(Namespace { links: vec![eth0], ..Namespace::default() }),
            attachments: vec![attachment],
            ..Container::default()
        };
        let mut scene = Scene { containers: vec![web], ..Scene::default() };
        scene.host.links = vec![
            link("lo", None, &["127.0.0.1/8"]),
            link("cni0", Some("bridge"), &["10.88.0.1/24"]),
            link("up0", None, &["192.0.2.2/24", "2001:db8::2/64", "fe80::2/64"]),
        ];
        scene
    }

    fn flow(source: &str, destination: &str, destination_port: u16) -> Flow {
        Flow {
            protocol: Protocol::Tcp,
            source: source.parse().unwrap(),
            source_port: 40_000,
            destination: destination.parse().unwrap(),
            destination_port,
        }
    }

    #[test]
    fn translation_changes_the_ends() {
        let scene = node();
        let out = flow("10.88.0.2", "198.51.100.1", 80);
        let masked = Flow { source: "192.0.2.2".parse().unwrap(), ..out };
        assert_eq!(variants(&scene, &out), [out, masked]);
        let published = flow("192.0.2.2", "192.0.2.2", 8080);
        let inside =
            Flow { destination: "10.88.0.2".parse().unwrap(), destination_port: 80, ..published };
        let by_bridge = Flow { source: "10.88.0.1".parse().unwrap(), ..inside };
        assert_eq!(variants(&scene, &published), [published, inside, by_bridge]);
        let of_node = flow("192.0.2.2", "198.51.100.1", 80);
        assert_eq!(variants(&scene, &of_node), [of_node]);
    }

    #[test]
    fn nothing_is_traced_where_there_are_no_rules() {
        assert_eq!(families(&node().host), []);
    }
}
