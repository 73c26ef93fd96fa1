//! A node for tests: two containers on a bridge, and two uplinks.

use diagnose::model::{Address, Container, Link, Namespace, Scene};

/// The address of container `c1`.
pub(super) const OWN: &str = "10.88.0.2";
/// The address of container `c2`.
pub(super) const NEIGHBOUR: &str = "10.88.0.3";
/// The node's address on its first uplink.
pub(super) const NODE: &str = "192.0.2.2";
/// An address outside the node.
pub(super) const OUT: &str = "198.51.100.1";

/// Returns a link. The other end of a veth, or its parent, is in another namespace.
pub(super) fn link(index: u32, name: &str, kind: Option<&str>, peer: Option<u32>) -> Link {
    Link {
        index,
        name: name.to_owned(),
        kind: kind.map(str::to_owned),
        peer,
        peer_netnsid: peer.map(|_| 0),
        ..Link::default()
    }
}

fn with_address(link: Link, address: &str) -> Link {
    let address = format!("{address}/24").parse().unwrap();
    Link { addresses: vec![Address { address, duplicate: false, tentative: false }], ..link }
}

/// Returns the node. Both containers' links have the same name and index.
pub(super) fn node() -> Scene {
    let container = |id: &str, port: u32, address: &str| {
        let eth0 = with_address(link(2, "eth0", Some("veth"), Some(port)), address);
        let inside = Namespace { links: vec![eth0], ..Namespace::default() };
        Container { id: id.to_owned(), inside: Some(inside), ..Container::default() }
    };
    let port = |index: u32, name: &str| Link {
        master: Some(4),
        ..link(index, name, Some("veth"), Some(2))
    };
    let mut scene = Scene {
        containers: vec![container("c1", 5, OWN), container("c2", 6, NEIGHBOUR)],
        ..Scene::default()
    };
    scene.host.links = vec![
        link(1, "lo", None, None),
        with_address(link(2, "up0", None, None), NODE),
        link(3, "up1", None, None),
        with_address(link(4, "cni0", Some("bridge"), None), "10.88.0.1"),
        port(5, "vetha"),
        port(6, "vethb"),
        link(7, "vx0", Some("vxlan"), None),
    ];
    scene
}
