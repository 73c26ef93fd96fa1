use super::*;
use crate::finding::WayKind;
use crate::model::{Link, Peer, Route, Scene, TunnelEnd};
use crate::path::samples::node;
use crate::question::{Answers, Hop};
use crate::routes::samples::{link, route};

fn found(scene: &Scene, answers: &Answers) -> Vec<Finding> {
    judge(Look { scene, answers, only: None, to: None })
}

fn lines(found: &[Finding]) -> Vec<String> {
    let line = |one: &Finding| {
        format!("{:?} {} {}: {}", one.severity, one.id, one.object, one.hits.join(" "))
    };
    found.iter().map(line).collect()
}

fn silently(scene: &Scene) -> Vec<String> {
    lines(&found(scene, &Answers::default()))
}

/// A node whose route to a network leads into a tunnel.
fn with(tunnel: Link) -> Scene {
    let mut scene = node();
    scene.host.routes.push(route("203.0.113.0/24", tunnel.index, None));
    scene.host.links.push(tunnel);
    scene
}

fn wireguard(allowed: &[&str]) -> Link {
    let peer = Peer {
        key: "KEY=".to_owned(),
        endpoint: Some("198.51.100.9:51820".parse().unwrap()),
        allowed: allowed.iter().map(|net| net.parse().unwrap()).collect(),
    };
    Link {
        kind: Some("wireguard".to_owned()),
        peers: Some(vec![peer]),
        mtu: 1420,
        ..link(40, "wg0", &["10.9.0.1/24"])
    }
}

fn vxlan(mtu: u32) -> Link {
    Link { kind: Some("vxlan".to_owned()), peer: Some(2), mtu, ..link(41, "vx0", &[]) }
}

fn asked(from: &str, asked: Probe) -> Question {
    Question { from: Some(from.to_owned()), asked }
}

fn server() -> IpAddr {
    "203.0.113.2".parse().unwrap()
}

#[test]
fn a_route_into_wireguard_needs_a_peer() {
    assert_eq!(silently(&with(wireguard(&["203.0.113.0/24"]))), [""; 0]);
    assert_eq!(silently(&with(wireguard(&["0.0.0.0/0"]))), [""; 0]);
    // Of a part of it.
    assert_eq!(silently(&with(wireguard(&["203.0.113.2/32"]))), [""; 0]);
    let gone = with(wireguard(&["10.20.0.0/16"]));
    assert_eq!(silently(&gone), ["Error peer-not-allowed wg0: 203.0.113.0/24: "]);
    let question = asked("c3", Probe::Name { server: server() });
    let answers = Answers { all: vec![(question, Answer::Silent { hops: Vec::new() })] };
    let told = found(&gone, &answers);
    assert_eq!(lines(&told), ["Error peer-not-allowed wg0: 203.0.113.0/24: c3"]);
    assert_eq!(told[0].breaks[0].kind, WayKind::Names);
    assert_eq!(told[0].fix, ["wg set wg0 peer KEY= allowed-ips 10.20.0.0/16,203.0.113.0/24"]);
    // Programs that ask by TCP alone look for names, too.
    let mut by_tcp = gone.clone();
    by_tcp.containers[1].names.by_tcp = true;
    let question = asked("c3", Probe::name(&by_tcp.containers[1], server()));
    let answers = Answers { all: vec![(question, Answer::Silent { hops: Vec::new() })] };
    let lost = found(&by_tcp, &answers);
    assert_eq!(lost[0].breaks[0].kind, WayKind::Names);
}

#[test]
fn the_tunnels_own_network_is_no_way_to_others() {
    let mut scene = with(wireguard(&["203.0.113.0/24"]));
    let own = Route { protocol: Some(BY_KERNEL), ..route("10.9.0.0/24", 40, None) };
    scene.host.routes.push(own);
    assert_eq!(silently(&scene), [""; 0]);
    // What could not be read is not judged.
    scene.host.links.last_mut().unwrap().peers = None;
    assert_eq!(silently(&scene), [""; 0]);
}

#[test]
fn what_fits_a_tunnel_fits_the_link_below() {
    assert_eq!(silently(&with(vxlan(1450))), [""; 0]);
    let large = with(vxlan(1451));
    assert_eq!(silently(&large), ["Warning tunnel-mtu vx0: "]);
    let question = asked("c2", Probe::Size { to: server(), up_to: 1500 });
    let answer = Answer::UpTo { answered: 1450, lost: 1451 };
    let proved = found(&large, &Answers { all: vec![(question, answer)] });
    assert_eq!(lines(&proved), ["Error tunnel-mtu vx0: c2"]);
    assert_eq!(proved[0].fix, ["ip link set dev vx0 mtu 1450"]);
    // One of a switch has no size of its own, and one without routes carries nothing.
    assert_eq!(silently(&with(Link { external: true, ..vxlan(65000) })), [""; 0]);
    let mut idle = node();
    idle.host.links.push(vxlan(1500));
    assert_eq!(silently(&idle), [""; 0]);
}

#[test]
fn the_link_below_is_found_by_where_packets_go() {
    let remote = Some("198.51.100.9".parse().unwrap());
    let by_remote = Link { peer: None, remote, ..vxlan(1500) };
    assert_eq!(silently(&with(by_remote)), ["Warning tunnel-mtu vx0: "]);
    // Flannel's has an entry for each other node, and names no parent.
    let entry = TunnelEnd { mac: None, to: "198.51.100.9".parse().unwrap() };
    let by_entry = Link { peer: None, ends: Some(vec![entry]), ..vxlan(1500) };
    assert_eq!(silently(&with(by_entry)), ["Warning tunnel-mtu vx0: "]);
    let to_peer = Link { mtu: 1441, ..wireguard(&["203.0.113.0/24"]) };
    assert_eq!(silently(&with(to_peer)), ["Warning tunnel-mtu wg0: "]);
}

#[test]
fn a_network_below_that_loses_large_packets_is_the_cause() {
    let end = "198.51.100.9".parse().unwrap();
    let scene = with(Link { remote: Some(end), ..vxlan(1450) });
    let nothing = Answers::default();
    let look = Look { scene: &scene, answers: &nothing, only: None, to: None };
    let question = Question { from: None, asked: Probe::Size { to: end, up_to: 1500 } };
    assert_eq!(asks(look), std::slice::from_ref(&question));
    let answers = |answered| {
        let answer = Answer::UpTo { answered, lost: answered + 1 };
        Answers { all: vec![(question.clone(), answer)] }
    };
    let told = found(&scene, &answers(1400));
    assert_eq!(lines(&told), ["Warning tunnel-mtu vx0: "], "what the tunnel carries was not tried");
    assert_eq!(told[0].fix, ["ip link set dev vx0 mtu 1350"]);
    let told = found(&scene, &answers(1300));
    assert!(told[0].advice[0].starts_with("raise the MTU"), "{:?}", told[0].advice);
    // The tunnel sends no packets that are so large.
    let small = with(Link { remote: Some(end), ..vxlan(1350) });
    assert_eq!(lines(&found(&small, &answers(1400))), [""; 0]);
    let group = with(Link { remote: Some("239.1.1.1".parse().unwrap()), ..vxlan(1450) });
    let look = Look { scene: &group, answers: &nothing, only: None, to: None };
    assert_eq!(asks(look), []);
}

/// The network below may lose only what the tunnel sends.
#[test]
fn the_other_end_is_asked_through_the_tunnel() {
    let mut scene = with(vxlan(1450));
    scene.host.routes.last_mut().unwrap().hops[0].via = Some("10.9.0.2".parse().unwrap());
    scene.host.routes.push(route("10.9.0.0/30", 41, None));
    let nothing = Answers::default();
    let look = Look { scene: &scene, answers: &nothing, only: None, to: None };
    let to = "10.9.0.2".parse().unwrap();
    let question = Question { from: None, asked: Probe::Size { to, up_to: 1450 } };
    assert_eq!(asks(look), std::slice::from_ref(&question));
    let answers = |answer| Answers { all: vec![(question.clone(), answer)] };
    let told = found(&scene, &answers(Answer::UpTo { answered: 1350, lost: 1351 }));
    assert_eq!(told[0].fix, ["ip link set dev vx0 mtu 1350"]);
    let says = "10.9.0.2, the other end, answers packets of 1350 bytes through vx0, but larger ones are lost without an error";
    assert_eq!(told[0].seen, [says]);
    assert_eq!(lines(&found(&scene, &answers(Answer::Reached { after_us: 1 }))), [""; 0]);
    assert_eq!(lines(&found(&scene, &answers(Answer::Silent { hops: Vec::new() }))), [""; 0]);
}

#[test]
fn a_tunnel_that_carries_echo_requests_alone() {
    let mut scene = with(Link { tx_checksums: Some(true), ..vxlan(1450) });
    scene.containers[0].nameservers = Some(vec![server()]);
    let nothing = Answers::default();
    let look = Look { scene: &scene, answers: &nothing, only: None, to: None };
    assert_eq!(asks(look), [asked("c2", Probe::Echo { to: server() })]);
    let answers = |echo: Answer, name: Answer| Answers {
        all: vec![
            (asked("c2", Probe::Echo { to: server() }), echo),
            (asked("c2", Probe::Name { server: server() }), name),
        ],
    };
    let reached = Answer::Reached { after_us: 1 };
    let silent = || Answer::Silent { hops: Vec::new() };
    let told = found(&scene, &answers(reached.clone(), silent()));
    assert_eq!(lines(&told), ["Warning tunnel-checksums vx0: c2"]);
    let dropped = Hop {
        container: None,
        link: Some("vx0".to_owned()),
        dropped: Some(("nft_do_chain".to_owned(), "NETFILTER_DROP".to_owned())),
        rule: None,
        back: false,
    };
    let here = answers(reached.clone(), Answer::Silent { hops: vec![dropped] });
    assert_eq!(lines(&found(&scene, &here)), [""; 0]);
    assert_eq!(lines(&found(&scene, &answers(silent(), silent()))), [""; 0]);
    let named = Answer::Named { after_us: 1, error: None };
    assert_eq!(lines(&found(&scene, &answers(reached.clone(), named))), [""; 0]);
    let mut filled_in = scene;
    filled_in.host.links.last_mut().unwrap().tx_checksums = Some(false);
    assert_eq!(lines(&found(&filled_in, &answers(reached, silent()))), [""; 0]);
}
