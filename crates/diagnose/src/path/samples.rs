//! A node for tests: two containers on a bridge, an uplink, masquerade and a published port.

use std::net::IpAddr;

use crate::filter::samples::{
    base, chain, dnat, iifname, nat, oifname, rule, source, table, tcp_port,
};
use crate::model::filter::{Family as Kin, Hook, Step, Table};
use crate::model::{
    Attachment, Container, Link, Namespace, Network, Port, PortVlan, Route, RouteRule, RuleAction,
    Scene, Transport,
};
use crate::routes::samples::{link, route, rule as rule_of};

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn mac(last: u32) -> Option<String> {
    Some(format!("02:00:00:00:00:{last:02x}"))
}

fn container(number: u32) -> Container {
    let end = 10 + number;
    let (v4, v6) = (format!("10.88.0.{number}"), format!("fd00:88::{number}"));
    let eth0 = Link {
        kind: Some("veth".to_owned()),
        mac: mac(number),
        peer: Some(end),
        peer_netnsid: Some(0),
        ..link(2, "eth0", &[&format!("{v4}/24"), &format!("{v6}/64")])
    };
    let inside = Namespace {
        links: vec![link(1, "lo", &["127.0.0.1/8", "::1/128"]), eth0],
        routes: vec![
            route("0.0.0.0/0", 2, Some("10.88.0.1")),
            route("10.88.0.0/24", 2, None),
            route("::/0", 2, Some("fd00:88::1")),
            route("fd00:88::/64", 2, None),
        ],
        ..Namespace::default()
    };
    Container {
        id: format!("c{number}"),
        netns: format!("/run/netns/c{number}"),
        alive: Some(true),
        inside: Some(inside),
        attachments: vec![Attachment {
            network: "mynet".to_owned(),
            ifname: "eth0".to_owned(),
            plugins: ["bridge", "portmap", "firewall"].map(str::to_owned).to_vec(),
            addresses: vec![
                format!("{v4}/24").parse().unwrap(),
                format!("{v6}/64").parse().unwrap(),
            ],
            gateways: vec![ip("10.88.0.1"), ip("fd00:88::1")],
            mac: mac(number),
            host_links: vec!["cni0".to_owned(), format!("veth{number}")],
            ..Attachment::default()
        }],
        ..Container::default()
    }
}

fn veth(number: u32) -> Link {
    Link {
        kind: Some("veth".to_owned()),
        peer: Some(2),
        peer_netnsid: Some(1),
        master: Some(3),
        ..link(10 + number, &format!("veth{number}"), &[])
    }
}

/// Our own tables, as far as packets meet them here.
fn own() -> Table {
    let mut ports = rule(&[tcp_port(8080), dnat("10.88.0.2", 80)]);
    ports.handle = 3;
    let masquerade =
        |address: &str| rule(&[iifname("cni0"), source(address), vec![Step::SourceNat]]);
    table(
        Kin::Inet,
        "netwright",
        vec![
            nat("prerouting", Hook::Prerouting, -90, vec![ports.clone()]),
            nat("output", Hook::Output, -90, vec![ports]),
            nat(
                "postrouting",
                Hook::Postrouting,
                100,
                vec![
                    rule(&[source("127.0.0.1"), oifname("cni0"), vec![Step::SourceNat]]),
                    masquerade("10.88.0.2"),
                    masquerade("10.88.0.3"),
                    masquerade("fd00:88::2"),
                    masquerade("fd00:88::3"),
                ],
            ),
            base("forward", Hook::Forward, 0, Vec::new()),
            chain("hostports", Vec::new()),
        ],
    )
}

/// A node where everything is as it should be.
pub(crate) fn node() -> Scene {
    let cni0 = Link {
        kind: Some("bridge".to_owned()),
        mac: mac(1),
        ..link(3, "cni0", &["10.88.0.1/24", "fd00:88::1/64"])
    };
    let mut host = Namespace {
        links: vec![
            link(1, "lo", &["127.0.0.1/8", "::1/128"]),
            link(2, "up0", &["192.0.2.2/24", "2001:db8::2/64"]),
            cni0,
            veth(2),
            veth(3),
            link(9, "tun0", &["10.8.0.2/24"]),
        ],
        routes: vec![
            route("0.0.0.0/0", 2, Some("192.0.2.1")),
            route("192.0.2.0/24", 2, None),
            route("10.88.0.0/24", 3, None),
            route("10.8.0.0/24", 9, None),
            route("::/0", 2, Some("2001:db8::1")),
            route("2001:db8::/64", 2, None),
            route("fd00:88::/64", 3, None),
        ],
        ..Namespace::default()
    };
    host.filter.tables = vec![own()];
    let mut first = container(2);
    first.attachments[0].ports =
        vec![Port { transport: Transport::Tcp, host: 8080, host_ip: None, container: 80 }];
    Scene {
        node: "node1".to_owned(),
        host,
        containers: vec![first, container(3)],
        networks: vec![Network {
            name: "mynet".to_owned(),
            link: Some("cni0".to_owned()),
            subnets: vec!["10.88.0.0/24".parse().unwrap(), "fd00:88::/64".parse().unwrap()],
            outbound: true,
            ..Network::default()
        }],
        ..Scene::default()
    }
}

/// The same node, with its containers on links of a kind on the uplink, and a router as their
/// gateway. `set` changes each container's link.
pub(crate) fn on_parent(kind: &str, set: impl Fn(&mut Link)) -> Scene {
    let mut scene = node();
    let host = &mut scene.host;
    host.links.retain(|link| link.index != 3 && link.master != Some(3));
    host.routes.retain(|route| route.hops[0].link != Some(3));
    host.filter.tables.clear();
    scene.networks[0].link = Some("up0".to_owned());
    let gateways = [ip("10.88.0.254"), ip("fd00:88::fe")];
    for container in &mut scene.containers {
        let attachment = &mut container.attachments[0];
        attachment.gateways = gateways.to_vec();
        attachment.plugins = vec![kind.to_owned()];
        attachment.host_links.clear();
        attachment.ports.clear();
        let inside = container.inside.as_mut().unwrap();
        let link = &mut inside.links[1];
        link.kind = Some(kind.to_owned());
        link.peer = Some(2);
        set(link);
        for route in inside.routes.iter_mut().filter(|route| route.hops[0].via.is_some()) {
            let is_of = |gateway: &&IpAddr| gateway.is_ipv4() == route.to.addr().is_ipv4();
            route.hops[0].via = gateways.iter().find(is_of).copied();
        }
    }
    scene
}

/// The same node with its bridge in a VRF of table 10, and perhaps the uplink.
pub(crate) fn in_vrf(with_uplink: bool) -> Scene {
    let mut scene = node();
    let host = &mut scene.host;
    let blue = Link { vrf_table: Some(10), ..link(20, "blue", &[]) };
    host.links.push(Link { kind: Some("vrf".to_owned()), ..blue });
    let members: &[u32] = if with_uplink { &[2, 3] } else { &[3] };
    for link in host.links.iter_mut().filter(|link| members.contains(&link.index)) {
        link.master = Some(20);
    }
    for route in &mut host.routes {
        if route.hops[0].link.is_some_and(|link| members.contains(&link)) {
            route.table = 10;
        }
    }
    let rules = [
        rule_of(0, RuleAction::Table(255)),
        rule_of(1000, RuleAction::Other),
        rule_of(32766, RuleAction::Table(254)),
    ];
    let of_v6 = rules.clone().map(|rule| RouteRule { ipv4: false, ..rule });
    host.rules = [rules, of_v6].concat();
    scene
}

/// The same node with a bridge that distinguishes VLANs: each container is in VLAN 7, and the node
/// takes part in VLAN 1.
pub(crate) fn with_vlans() -> Scene {
    let mut scene = node();
    for link in &mut scene.host.links {
        if link.index == 3 {
            link.vlan_filtering = true;
            link.vlans = vec![access(1)];
        } else if link.master == Some(3) {
            link.vlans = vec![access(7)];
        }
    }
    scene
}

pub(crate) fn access(vlan: u16) -> PortVlan {
    PortVlan { first: vlan, last: vlan, pvid: true, untagged: true }
}

/// Puts a table before all others of the node.
pub(crate) fn with(mut scene: Scene, table: Table) -> Scene {
    scene.host.filter.tables.insert(0, table);
    scene
}

/// Adds a route to the node.
pub(crate) fn with_route(mut scene: Scene, route: Route) -> Scene {
    scene.host.routes.push(route);
    scene
}
