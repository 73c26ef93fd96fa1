//! A node with very many containers, as a scene, because no laboratory can hold so many.

use diagnose::model::{
    Address, Attachment, Container, Link, Namespace, Network, NextHop, Route, RouteKind, Scene,
};
use testkit::require;

use super::situations::node::findings;
use crate::support::Scratch;

fn link(index: u32, name: &str, address: &str) -> Link {
    let address =
        address.parse().map(|address| Address { address, duplicate: false, tentative: false });
    Link {
        index,
        name: name.to_owned(),
        mtu: 1500,
        up: true,
        carrier: true,
        addresses: address.into_iter().collect(),
        ..Link::default()
    }
}

fn route(to: &str, via: Option<&str>, link: u32) -> Route {
    Route {
        to: to.parse().unwrap(),
        table: 254,
        kind: RouteKind::Unicast,
        metric: 0,
        hops: vec![NextHop { via: via.map(|via| via.parse().unwrap()), link: Some(link) }],
        source: None,
        mtu: None,
        protocol: None,
    }
}

/// A container at an address, and its port of the node's bridge.
fn one_of_many(number: u32) -> (Container, Link) {
    let address = format!("10.0.{}.{}/8", 1 + number / 250, 1 + number % 250);
    let port = 100 + number;
    let (veth, id) = (Some("veth".to_owned()), format!("c{number:05}"));
    let eth0 = Link { kind: veth.clone(), peer: Some(port), ..link(2, "eth0", &address) };
    let inside = Namespace {
        links: vec![link(1, "lo", "127.0.0.1/8"), Link { peer_netnsid: Some(0), ..eth0 }],
        routes: vec![route("0.0.0.0/0", Some("10.0.0.1"), 2), route("10.0.0.0/8", None, 2)],
        ..Namespace::default()
    };
    let attachment = Attachment {
        network: "mynet".to_owned(),
        ifname: "eth0".to_owned(),
        plugins: vec!["bridge".to_owned()],
        addresses: vec![address.parse().unwrap()],
        gateways: vec!["10.0.0.1".parse().unwrap()],
        host_links: vec!["cni0".to_owned(), format!("veth{number}")],
        ..Attachment::default()
    };
    let container = Container {
        netns: format!("/run/netns/{id}"),
        id,
        alive: Some(true),
        inside: Some(inside),
        attachments: vec![attachment],
        ..Container::default()
    };
    let host_end = Link {
        kind: veth,
        master: Some(3),
        port_state: Some(3),
        peer: Some(2),
        peer_netnsid: i32::try_from(number).ok(),
        ..link(port, &format!("veth{number}"), "")
    };
    (container, host_end)
}

/// A cause that affects all containers is one finding, which names only a few of them.
#[test]
fn ten_thousand_containers_have_one_cause() {
    require!("full");
    let (containers, ports): (Vec<Container>, Vec<Link>) = (0..10_000).map(one_of_many).unzip();
    let bridge = Link { kind: Some("bridge".to_owned()), ..link(3, "cni0", "10.0.0.1/8") };
    let mut links = vec![link(1, "lo", "127.0.0.1/8"), link(2, "up0", "198.51.100.1/24"), bridge];
    links.extend(ports);
    let mut host = Namespace {
        links,
        routes: vec![
            route("0.0.0.0/0", Some("198.51.100.2"), 2),
            route("198.51.100.0/24", None, 2),
            route("10.0.0.0/8", None, 3),
        ],
        ..Namespace::default()
    };
    host.sysctls.insert("net.ipv4.ip_forward".to_owned(), "0".to_owned());
    let network = Network {
        name: "mynet".to_owned(),
        plugins: vec!["bridge".to_owned()],
        link: Some("cni0".to_owned()),
        subnets: vec!["10.0.0.0/8".parse().unwrap()],
        outbound: true,
        ..Network::default()
    };
    let scene = Scene { host, containers, networks: vec![network], ..Scene::default() };
    let scratch = Scratch::new();
    let path = scratch.write("scene", &scene.to_json());
    let path = path.to_str().unwrap();
    let said = scratch.call(&["doctor", "--from", path, "--output", "json"]).failed(1);
    let found = findings(&said);
    assert_eq!(found[0]["id"], "forwarding-off", "{:#}", found[0]);
    assert_eq!(found[0]["hits"].as_array().unwrap().len(), 10_000);
    let said = scratch.call(&["doctor", "--from", path]).failed(1);
    assert!(said.stdout.contains("and 9995 more containers"), "{}", said.stdout);
}
