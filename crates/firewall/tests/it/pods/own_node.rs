//! What pods send to the node itself: ClusterNetworkPolicies decide about it at the hook input.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use firewall::pods::{Logging, PodsTable};
use netwright_firewall as firewall;
use policy::{Change, Direction, Policy, Program, Protocol, Traffic, World, compile};
use serde_json::json;
use testkit::Place as _;
use testkit::traffic::{Server, assert_tcp};

use super::clusters::support::{cluster, namespace, node, pod};
use super::clusters::{NODE, of_pod};
use super::flows::{PORT, app, program};
use super::lab::{Fate, OWN, PodLab, Probe};
use crate::support::Node;

/// How long an answer may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// Ports of the node that no rule accepts; at the second a connection stands.
const OTHER: u16 = PORT + 1;
const STANDING: u16 = PORT + 2;

/// As a cache of names on the node has it: no Node has this address.
const CACHE: &str = "169.254.20.10:53";

/// Pod 1 reaches nodes at one port, and nothing else of IPv4 and IPv6.
fn one_port() -> Policy {
    let port = json!([{"tcp": {"destinationPort": {"number": PORT}}}]);
    cluster(
        "nodes",
        json!({
            "tier": "Admin", "priority": 1, "subject": {"pods": {"podSelector": app(1)}},
            "egress": [
                {"action": "Accept", "to": [{"nodes": {}}], "protocols": port},
                {"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "::/0"]}]},
            ],
        }),
    )
}

/// What becomes of packets to the node at either port, of another pod's, and of the node's own.
fn fates(lab: &mut PodLab) -> [Vec<Fate>; 4] {
    let own = OWN.map(|text| text.parse::<IpAddr>().unwrap());
    let ends = |from: [IpAddr; 2], to: [IpAddr; 2], port| -> Vec<Probe> {
        let traffic = Traffic::to(Protocol::Tcp, port);
        let both = from.into_iter().zip(to);
        both.map(|(source, destination)| Probe { source, destination, traffic }).collect()
    };
    [
        ends(of_pod(1), own, PORT),
        ends(of_pod(1), own, OTHER),
        ends(of_pod(2), own, OTHER),
        ends(own, of_pod(1), OTHER),
    ]
    .map(|probes| lab.try_all(&probes))
}

const TO_NODE: Fate = Fate { denied: None, arrived: false, answered: true };
const PASSES: Fate = Fate { denied: None, arrived: true, answered: true };
const NOT_OUT: Fate = Fate { denied: Some(Direction::Egress), arrived: false, answered: false };

#[test]
fn what_names_nodes_decides_what_reaches_the_node() {
    testkit::require!("root");
    let mut lab = PodLab::new("podsnode");
    lab.lab.sh("ip link set lo up && ip addr add 169.254.20.10/32 dev lo");
    let _cache = Server::tcp(&lab.lab, CACHE, "cache");
    let (without, with) = (program([]), program([one_port()]));
    let open = [vec![TO_NODE; 2], vec![TO_NODE; 2], vec![TO_NODE; 2], vec![PASSES; 2]];
    let mut limited = open.clone();
    limited[1] = vec![NOT_OUT; 2];
    lab.table.put(&without).unwrap();
    assert_eq!(fates(&mut lab), open);
    // A connection that is there goes on: whoever wants to cut it deletes its flow.
    let listener = lab.lab.enter(|| TcpListener::bind((OWN[0], STANDING)).unwrap());
    let to = listener.local_addr().unwrap();
    let mut client = lab.pods[0].enter(|| TcpStream::connect_timeout(&to, DEADLINE).unwrap());
    let (mut server, _) = listener.accept().unwrap();
    lab.table.apply(&Program::difference(&without, &with)).unwrap();
    let before = lab.table.dropped().unwrap();
    assert_eq!(fates(&mut lab), limited);
    assert_eq!(lab.table.dropped().unwrap().outgoing - before.outgoing, 2);
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    server.set_read_timeout(Some(DEADLINE)).unwrap();
    server.write_all(b"!").unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    client.write_all(b"?").unwrap();
    server.read_exact(&mut [0; 1]).unwrap();
    assert_tcp(&lab.pods[0], CACHE);
    // It is there whole, or not at all.
    assert!(lab.table.observe(&with).unwrap().is_empty());
    let table = lab.lab.sh("nft list table inet netwright-policy");
    assert!(table.contains("chain own-node {") && table.contains("hook input"), "{table}");
    lab.lab.sh("nft delete chain inet netwright-policy own-node");
    let found = lab.table.bring(&with).unwrap();
    assert_eq!(found.lines(), ["missing: chain own-node of table inet netwright-policy"]);
    assert_eq!(fates(&mut lab), limited);
    lab.table.apply(&Program::difference(&with, &without)).unwrap();
    assert_eq!(fates(&mut lab), open);
    let table = lab.lab.sh("nft list table inet netwright-policy");
    assert!(!table.contains("own-node") && !table.contains("hook input"), "{table}");
}

/// On a bridge the node's address is one of the pods' own link, and they find it as neighbours do.
#[test]
fn pods_of_a_bridge_are_kept_from_the_node_too() {
    testkit::require!("root");
    let lab = Node::new("podsnodebr");
    let mut table = lab.lab.enter(|| PodsTable::open(Logging::default()).unwrap());
    let nodes = [("10.1.0.1", "10.1.0.2"), ("fd00:1::1", "fd00:1::2")];
    let objects: Vec<Change> = vec![
        node(NODE, json!({}), &nodes.map(|(at, _)| at)).into(),
        namespace("shop", json!({})).into(),
        pod("shop/pod-1", NODE, json!({"app": "pod-1"}), &nodes.map(|(_, from)| from)).into(),
        one_port().into(),
    ];
    table.put(&compile(World::of(None, objects), NODE)).unwrap();
    for (number, (at, from)) in (1..).zip(nodes) {
        let listener = lab.lab.enter(|| TcpListener::bind((at, PORT)).unwrap());
        let to = listener.local_addr().unwrap();
        lab.c1.enter(|| TcpStream::connect_timeout(&to, DEADLINE).unwrap());
        // The pod knows the node by now. What it advertises to the node is no part of a connection.
        lab.lab.sh("ip neigh flush all");
        lab.c1.enter(|| TcpStream::connect_timeout(&to, DEADLINE).unwrap());
        let from = SocketAddr::new(from.parse().unwrap(), 0);
        let socket = lab.c1.enter(|| UdpSocket::bind(from).unwrap());
        socket.send_to(b"?", (at, OTHER)).unwrap();
        testkit::wait_until("the datagram is dropped", || {
            table.dropped().unwrap().outgoing == number
        });
    }
}
