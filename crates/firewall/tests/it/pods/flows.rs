//! Existing connections: they continue, or they are cut and stay cut.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use firewall::pods::{Logging, PodsTable};
use kernel::conntrack::{ConntrackSocket, Flow, FlowFilter};
use kernel::nflog;
use kernel::route::IpFamily;
use netwright_firewall as firewall;
use policy::{Change, Direction, Policy, Program, Protocol, Traffic, World, compile};
use serde_json::{Value, json};
use testkit::probe::Ends;
use testkit::{Container, Place};

use super::clusters::support::{cluster, namespace, network, node, pod};
use super::clusters::{NODE, PODS, of_pod};
use super::lab::{ACK, Fate, OWN, PodLab, Probe, Site};
use crate::support::Node;

pub(super) const PORT: u16 = 5432;
/// How long an answer may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// The lab's pods, `shop/pod-1` and so on, with the label `app`, and these policies.
pub(super) fn program(policies: impl IntoIterator<Item = Policy>) -> Program {
    compile(world(policies), NODE)
}

/// The objects of that cluster.
pub(super) fn world(policies: impl IntoIterator<Item = Policy>) -> World {
    world_of((1..=PODS).map(of_pod), policies)
}

/// The same with pods that have these addresses.
fn world_of(
    pods: impl IntoIterator<Item = [IpAddr; 2]>,
    policies: impl IntoIterator<Item = Policy>,
) -> World {
    let mut objects: Vec<Change> =
        vec![node(NODE, json!({}), &OWN).into(), namespace("shop", json!({})).into()];
    for (number, addresses) in (1..).zip(pods) {
        let name = format!("pod-{number}");
        let [v4, v6] = addresses.map(|address| address.to_string());
        objects.push(pod(&format!("shop/{name}"), NODE, json!({"app": name}), &[&v4, &v6]).into());
    }
    objects.extend(policies.into_iter().map(Change::from));
    World::of(None, objects)
}

pub(super) fn app(number: u8) -> Value {
    json!({"matchLabels": {"app": format!("pod-{number}")}})
}

/// A policy by which only pod 1 reaches pod 2, or no pod does.
pub(super) fn guarded(by_pod_one: bool) -> Policy {
    let from = json!([{"from": [{"podSelector": app(1)}]}]);
    let ingress = if by_pod_one { from } else { json!([]) };
    network("shop/guarded", json!({"podSelector": app(2), "ingress": ingress}))
}

/// A policy by which pod 1 reaches only pod 2, or no pod.
pub(super) fn confined(to_pod_two: bool) -> Policy {
    let to = json!([{"to": [{"podSelector": app(2)}]}]);
    let egress = if to_pod_two { to } else { json!([]) };
    let spec = json!({"podSelector": app(1), "policyTypes": ["Egress"], "egress": egress});
    network("shop/confined", spec)
}

/// A connection from pod 1 to pod 2: its two ends.
fn connection(lab: &PodLab, family: IpFamily) -> [TcpStream; 2] {
    let at = of_pod(2)[usize::from(family == IpFamily::V6)];
    connected(&lab.pods[0], &lab.pods[1], at)
}

fn connected(from: &Container, to: &Container, at: IpAddr) -> [TcpStream; 2] {
    let listener = to.enter(|| TcpListener::bind((at, PORT)).unwrap());
    let client =
        from.enter(|| TcpStream::connect_timeout(&SocketAddr::new(at, PORT), DEADLINE).unwrap());
    let (server, _) = listener.accept().unwrap();
    let ends = [client, server];
    for end in &ends {
        end.set_read_timeout(Some(DEADLINE)).unwrap();
        end.set_nodelay(true).unwrap();
    }
    ends
}

/// Both ends send something, and each receives it from the other.
#[track_caller]
fn talk(ends: &mut [TcpStream; 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        ends[from].write_all(b"?").unwrap();
        ends[to].read_exact(&mut [0; 1]).unwrap();
    }
}

/// Sends something, and gets the error that the connection no longer exists.
#[track_caller]
fn ended(end: &mut TcpStream) {
    let gone = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::ConnectionAborted];
    if let Err(error) = end.write_all(b"?") {
        assert!(gone.contains(&error.kind()), "{error:?}");
        return;
    }
    let error = end.read_exact(&mut [0; 1]).unwrap_err();
    assert!(gone.contains(&error.kind()), "{error:?}");
}

/// Deletes the flow of a connection, and nothing else.
#[track_caller]
fn cut(conntrack: &mut ConntrackSocket, ends: &[TcpStream; 2]) {
    let from = ends[0].local_addr().unwrap();
    let to_port = FlowFilter {
        protocol: Some(6),
        source: Some(from.ip()),
        destination_port: Some(PORT),
        ..FlowFilter::all(IpFamily::of(from.ip()))
    };
    let its = |flow: &Flow| flow.original.source_port == Some(from.port());
    assert_eq!(conntrack.delete_flows_if(&to_port, its).unwrap(), 1);
}

const FAMILIES: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

#[test]
fn a_connection_goes_on_as_long_as_its_flow_is_there() {
    testkit::require!("root");
    let mut lab = PodLab::new("podsflow");
    let programs = [
        program([]),
        program([guarded(true), confined(true)]),
        // New connections are denied by now. A program that wants to cut this one deletes its flow.
        program([guarded(false), confined(false)]),
    ];
    for family in FAMILIES {
        lab.table.put(&programs[0]).unwrap();
        let mut ends = connection(&lab, family);
        let questions = lab.pods[0].enter(|| {
            let socket = UdpSocket::bind((of_pod(1)[0], 0)).unwrap();
            socket.set_read_timeout(Some(DEADLINE)).unwrap();
            socket
        });
        let answers = lab.pods[1].enter(|| UdpSocket::bind((of_pod(2)[0], PORT)).unwrap());
        answers.set_read_timeout(Some(DEADLINE)).unwrap();
        for new in &programs {
            lab.table.bring(new).unwrap();
            talk(&mut ends);
            questions.send_to(b"?", (of_pod(2)[0], PORT)).unwrap();
            let (_, from) = answers.recv_from(&mut [0; 8]).unwrap();
            answers.send_to(b"!", from).unwrap();
            questions.recv_from(&mut [0; 8]).unwrap();
        }
        // A packet of a flow that connection tracking does not know is judged as a new connection.
        cut(&mut lab.conntrack, &ends);
        ended(&mut ends[0]);
    }
}

#[test]
fn without_policies_a_connection_is_picked_up() {
    testkit::require!("root");
    let mut lab = PodLab::new("podspick");
    lab.table.put(&program([])).unwrap();
    for family in FAMILIES {
        for first in [0, 1] {
            let mut ends = connection(&lab, family);
            talk(&mut ends);
            cut(&mut lab.conntrack, &ends);
            if first == 1 {
                ends.reverse();
            }
            talk(&mut ends);
        }
    }
    assert_eq!(lab.table.dropped().unwrap(), firewall::pods::DroppedPackets::default());
}

/// Whichever end sends first, no packet revives the connection.
#[test]
fn a_connection_that_was_cut_is_over_at_both_ends() {
    testkit::require!("root");
    let mut lab = PodLab::new("podscut");
    let cuts = [
        ("into the server", program([guarded(true)]), program([guarded(false)])),
        ("out of the client", program([confined(true)]), program([confined(false)])),
    ];
    for (which, before, after) in &cuts {
        for family in FAMILIES {
            for first in [0, 1] {
                let what = format!("{which}, {family:?}, end {first} speaks first");
                lab.table.put(before).unwrap();
                let mut ends = connection(&lab, family);
                talk(&mut ends);
                lab.table.apply(&Program::difference(before, after)).unwrap();
                cut(&mut lab.conntrack, &ends);
                let port = ends[0].local_addr().unwrap().port();
                if first == 1 {
                    ends.reverse();
                }
                println!("{what}");
                ends.iter_mut().for_each(ended);
                let flows = lab.conntrack.flows(&FlowFilter::all(family)).unwrap();
                let is_of_it = |flow: &Flow| {
                    let Flow { original, .. } = flow;
                    [original.source_port, original.destination_port].contains(&Some(port))
                };
                assert!(!flows.iter().any(is_of_it), "{what}: {flows:?}");
                // The server's packet does not begin a connection. The client's packet is denied as
                // a new one.
                let dropped = lab.table.dropped().unwrap();
                assert_eq!(dropped.incoming + dropped.outgoing, 1, "{what}: {dropped:?}");
                assert_eq!(dropped.revived, 1, "{what}: {dropped:?}");
            }
        }
    }
}

/// The same between two ports of a bridge, where `br_netfilter` hands packets to the hooks.
#[test]
fn a_connection_over_a_bridge_is_cut_too() {
    testkit::require!("root");
    let node = Node::new("podsbridge");
    node.br_netfilter(true);
    let (mut table, mut conntrack) = node
        .lab
        .enter(|| (PodsTable::open(Logging::default()).unwrap(), ConntrackSocket::open().unwrap()));
    let pods = [["10.1.0.2", "fd00:1::2"], ["10.1.0.3", "fd00:1::3"]]
        .map(|addresses| addresses.map(|text| text.parse().unwrap()));
    let before = compile(world_of(pods, [guarded(true), confined(true)]), NODE);
    let after = compile(world_of(pods, [guarded(false), confined(true)]), NODE);
    for at in pods[1] {
        for first in [0, 1] {
            table.put(&before).unwrap();
            let mut ends = connected(&node.c1, &node.c2, at);
            talk(&mut ends);
            table.apply(&Program::difference(&before, &after)).unwrap();
            talk(&mut ends);
            cut(&mut conntrack, &ends);
            if first == 1 {
                ends.reverse();
            }
            println!("{at}, end {first} speaks first");
            ends.iter_mut().for_each(ended);
            let dropped = table.dropped().unwrap();
            assert_eq!((dropped.incoming, dropped.revived), (1, 1), "{at} {first}: {dropped:?}");
        }
    }
}

/// A packet that connection tracking takes for invalid, such as one outside the window, may belong
/// to a living connection, which a reset would end.
#[test]
fn a_packet_out_of_the_window_ends_no_connection() {
    testkit::require!("root");
    let mut lab = PodLab::new("podslate");
    // No pod may reach pod 1, and only pod 1 may reach pod 2.
    let closed = network("shop/closed", json!({"podSelector": app(1), "ingress": []}));
    lab.table.put(&program([guarded(true), closed])).unwrap();
    for family in FAMILIES {
        let mut ends = connection(&lab, family);
        talk(&mut ends);
        let before = lab.table.dropped().unwrap();
        let [client, server] = [ends[0].local_addr().unwrap(), ends[1].local_addr().unwrap()];
        let numbers = numbers_of(&lab, server, client);
        let late = Ends { source: server.ip(), destination: client.ip() };
        let far = [numbers[0].wrapping_add(1 << 28), numbers[1]];
        let packet = late.tcp_at(server.port(), client.port(), ACK, far);
        lab.station(Site::Pod(2)).send(&packet);
        let heard = nflog_packet(&mut lab);
        assert_eq!(heard.ports, Some((server.port(), client.port())));
        let dropped = lab.table.dropped().unwrap();
        assert_eq!((dropped.incoming, dropped.revived), (before.incoming + 1, 0));
        talk(&mut ends);
    }
}

/// The sequence and acknowledgement numbers of the server's last packet to pod 1.
fn numbers_of(lab: &PodLab, server: SocketAddr, client: SocketAddr) -> [u32; 2] {
    let mut numbers = None;
    lab.station(Site::Pod(1)).heard(|bytes| {
        let header = if server.is_ipv4() { 20 } else { 40 };
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let packet = nflog::Packet::read(bytes);
        let is = packet.and_then(|packet| packet.ports) == Some((server.port(), client.port()));
        if is && packet.is_some_and(|packet| packet.source == server.ip()) {
            numbers = Some([number(header + 4), number(header + 8)]);
        }
    });
    numbers.expect("the server has answered")
}

/// The next dropped packet.
fn nflog_packet(lab: &mut PodLab) -> nflog::Packet {
    use std::os::fd::AsFd as _;
    assert!(testkit::probe::wait(&[lab.log.as_fd()], DEADLINE), "nothing was dropped");
    let heard = lab.log.heard().unwrap();
    let [logged] = heard.packets.as_slice() else { panic!("{heard:?}") };
    logged.packet().unwrap()
}

#[test]
fn an_accept_of_egress_does_not_skip_ingress() {
    testkit::require!("root");
    let mut lab = PodLab::new("podsboth");
    let traffic = Traffic::to(Protocol::Tcp, PORT);
    let probes: Vec<Probe> = (0..2)
        .map(|family| Probe { source: of_pod(1)[family], destination: of_pod(2)[family], traffic })
        .collect();
    let denied = |direction| Fate { denied: Some(direction), ..Fate::default() };
    let passes = Fate { denied: None, arrived: true, answered: true };
    for (policies, expected) in [
        (vec![confined(true)], passes),
        (vec![guarded(true)], passes),
        (vec![confined(true), guarded(true)], passes),
        (vec![confined(true), guarded(false)], denied(Direction::Ingress)),
        (vec![confined(false), guarded(true)], denied(Direction::Egress)),
        (vec![confined(false), guarded(false)], denied(Direction::Egress)),
    ] {
        lab.table.put(&program(policies.clone())).unwrap();
        assert_eq!(lab.try_all(&probes), [expected; 2], "{policies:?}");
    }
}

/// An ICMP error about an allowed connection comes back, even if no connection may be opened in
/// that direction.
#[test]
fn errors_about_a_connection_pass() {
    testkit::require!("root");
    let mut lab = PodLab::new("podserror");
    let all = json!([{"namespaces": {}}]);
    let of_cluster = |name: &str, number: u8, key: &str, peers: &str| {
        let mut spec = json!({
            "tier": "Admin", "priority": number, "subject": {"pods": {"podSelector": app(number)}},
        });
        spec[key] = json!([{"action": "Deny", peers: all}]);
        cluster(name, spec)
    };
    let mute = json!({"podSelector": app(2), "policyTypes": ["Egress"]});
    for policies in [
        // No pod may reach pod 1, and pod 2 may reach no pod.
        vec![
            confined(true),
            network("shop/deaf", json!({"podSelector": app(1)})),
            network("shop/mute", mute),
        ],
        vec![of_cluster("deaf", 1, "ingress", "from"), of_cluster("mute", 2, "egress", "to")],
    ] {
        lab.table.put(&program(policies)).unwrap();
        for family in [0, 1] {
            let [from, to] = [1, 2].map(|number| of_pod(number)[family]);
            let socket = lab.pods[0].enter(|| UdpSocket::bind((from, 0)).unwrap());
            socket.set_read_timeout(Some(DEADLINE)).unwrap();
            socket.connect((to, PORT)).unwrap();
            socket.send(b"?").unwrap();
            let error = socket.recv(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}");
            // An error that belongs to no connection is dropped.
            let back =
                Probe { source: to, destination: from, traffic: Traffic::to(Protocol::Tcp, PORT) };
            let denied = Fate { denied: Some(Direction::Egress), ..Fate::default() };
            assert_eq!(lab.try_all(&[back]), [denied], "{to}");
        }
    }
}

/// All dropped packets are counted, and as many of them are logged as the configuration says.
#[test]
fn drops_are_counted_exactly_and_logged_at_a_rate() {
    testkit::require!("root");
    let logging = Logging { group: 77, rate: 1 };
    let mut lab = PodLab::with("podsrate", logging);
    lab.table.put(&program([guarded(false)])).unwrap();
    let outside: IpAddr = "203.0.113.7".parse().unwrap();
    let ends = Ends { source: outside, destination: of_pod(2)[0] };
    const PACKETS: u16 = 200;
    for port in 1..=PACKETS {
        lab.station(Site::Outside).send(&ends.udp(port, PORT));
    }
    testkit::wait_until("all are dropped", || {
        lab.table.dropped().unwrap().incoming == u64::from(PACKETS)
    });
    let heard = lab.log.heard().unwrap();
    assert_eq!(heard.packets[0].prefix, "nwt-in ");
    assert_eq!(heard.lost, 0);
    assert!(heard.packets.len() < usize::from(PACKETS), "{}", heard.packets.len());
    assert_eq!(lab.table.dropped().unwrap().outgoing, 0);
}
