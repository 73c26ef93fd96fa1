use super::*;
use crate::filter::samples::{
    accept, base, chain, drop, dropping, established, iifname, jump, rule, table, udp_port,
};
use crate::model::filter::{Family as Kin, Hook, Step};
use crate::model::{Address, Neighbour, Overlay, Peer, Scene};
use crate::path::samples::{ip, node, with};
use crate::question::Answers;
use crate::routes::samples::{link, route};

const OTHER: &str = "02:42:00:00:00:02";

/// A node whose containers reach another node's by flannel's VXLAN. Its own part is 10.88.0.0/24.
fn flannel() -> Scene {
    let mut scene = node();
    let host = &mut scene.host;
    for link in host.links.iter_mut().filter(|link| ["up0", "cni0"].contains(&&*link.name)) {
        link.mac = Some("02:00:00:00:00:20".to_owned());
    }
    let tunnel = Link {
        kind: Some("vxlan".to_owned()),
        mtu: 1450,
        peer: Some(2),
        port: Some(8472),
        local: Some(ip("192.0.2.2")),
        ends: Some(vec![TunnelEnd { mac: Some(OTHER.to_owned()), to: ip("192.0.2.11") }]),
        ..link(40, "flannel.1", &["10.88.0.0/32"])
    };
    host.links.push(tunnel);
    host.routes.push(route("10.88.1.0/24", 40, Some("10.88.1.0")));
    host.neighbours.push(Neighbour {
        link: 40,
        address: ip("10.88.1.0"),
        mac: Some(OTHER.to_owned()),
        permanent: true,
        failed: false,
    });
    for link in host.links.iter_mut().filter(|link| link.kind.as_deref() == Some("veth")) {
        link.mtu = 1450;
    }
    scene.networks[0].overlay = Some(Overlay {
        file: "/run/flannel/subnet.env".to_owned(),
        ranges: vec!["10.88.0.0/16".parse().unwrap()],
        own: vec!["10.88.0.0/24".parse().unwrap()],
        mtu: 1450,
    });
    scene
}

fn tunnel(scene: &mut Scene) -> &mut Link {
    scene.host.links.iter_mut().find(|link| link.name == "flannel.1").unwrap()
}

fn found_with(scene: &Scene, all: Vec<(Question, Answer)>) -> Vec<Finding> {
    let answers = Answers { all };
    let to = Some("10.88.1.5:80".parse().unwrap());
    RULE.findings(Look { scene, answers: &answers, only: None, to })
}

fn told(scene: &Scene) -> Vec<String> {
    let found = found_with(scene, Vec::new()).into_iter();
    found.map(|one| format!("{} {}", one.id, one.object)).collect()
}

/// A connection of c2 to another node's container that was not answered.
fn lost() -> (Question, Answer) {
    let asked = Probe::Connect { to: "10.88.1.5:80".parse().unwrap() };
    (Question { from: Some("c2".to_owned()), asked }, Answer::Silent { hops: Vec::new() })
}

fn of_node(asked: Probe, answer: Answer) -> (Question, Answer) {
    (Question { from: None, asked }, answer)
}

/// Nobody has the address of the machine at the tunnel's end.
fn nobody(address: &str) -> Vec<(Question, Answer)> {
    let who = Probe::WhoHas { address: ip(address), link: "up0".to_owned() };
    vec![
        of_node(who, Answer::Owners { macs: Vec::new() }),
        of_node(Probe::Echo { to: ip(address) }, Answer::Silent { hops: Vec::new() }),
        lost(),
    ]
}

#[test]
fn a_tunnel_that_leads_to_another_node_is_sound() {
    let scene = flannel();
    assert_eq!(told(&scene), [""; 0]);
    let answers = Answers::default();
    let look = Look { scene: &scene, answers: &answers, only: None, to: None };
    let who = Probe::WhoHas { address: ip("192.0.2.11"), link: "up0".to_owned() };
    let asked: Vec<Probe> = asks(look).into_iter().map(|question| question.asked).collect();
    let inner = Probe::Echo { to: ip("10.88.1.0") };
    assert_eq!(asked, [who.clone(), Probe::Echo { to: ip("192.0.2.11") }, inner]);
    let there = of_node(who, Answer::Owners { macs: vec!["02:00:00:00:00:11".to_owned()] });
    assert_eq!(found_with(&scene, vec![there, lost()]), []);
}

#[test]
fn an_entry_that_leads_to_no_machine() {
    let mut scene = flannel();
    tunnel(&mut scene).ends =
        Some(vec![TunnelEnd { mac: Some(OTHER.to_owned()), to: ip("192.0.2.211") }]);
    assert_eq!(told(&scene), [""; 0], "nobody was asked");
    let found = found_with(&scene, nobody("192.0.2.211"));
    assert_eq!((found.len(), found[0].id), (1, "tunnel-astray"));
    assert_eq!(found[0].object, "flannel.1: 10.88.1.0/24");
    assert_eq!(
        found[0].says,
        "flannel.1 sends what is for 10.88.1.0/24 to 192.0.2.211, which no machine on up0 has"
    );
    let place = format!("fdb {OTHER} dev flannel.1 dst 192.0.2.211");
    assert_eq!(found[0].place.as_deref(), Some(place.as_str()));
    assert_eq!(found[0].hits, ["c2"]);
    assert!(found[0].breaks.iter().any(|way| way.kind == WayKind::Outside), "{found:?}");
    assert_eq!(found[0].severity, Severity::Error);
    // Nobody has asked for anything there: the other node may be off.
    let mut all = nobody("192.0.2.211");
    all.pop();
    let quiet = found_with(&scene, all);
    assert_eq!((quiet.len(), quiet[0].severity), (1, Severity::Warning));
    // It is there after all.
    let mut all = nobody("192.0.2.211");
    all[1].1 = Answer::Reached { after_us: 1 };
    assert_eq!(found_with(&scene, all), []);
    // This node itself.
    tunnel(&mut scene).ends =
        Some(vec![TunnelEnd { mac: Some(OTHER.to_owned()), to: ip("192.0.2.2") }]);
    assert_eq!(told(&scene), ["tunnel-astray flannel.1: 10.88.1.0/24"]);
    // No route leads there.
    tunnel(&mut scene).ends =
        Some(vec![TunnelEnd { mac: Some(OTHER.to_owned()), to: ip("198.51.100.7") }]);
    assert_eq!(told(&scene), [""; 0]);
    scene.host.routes.retain(|route| route.to.prefix_len() != 0);
    assert_eq!(told(&scene), ["tunnel-astray flannel.1: 10.88.1.0/24"]);
}

#[test]
fn an_entry_that_is_gone() {
    let mut scene = flannel();
    scene.host.neighbours.clear();
    assert_eq!(told(&scene), ["tunnel-astray flannel.1: 10.88.1.0/24"]);
    let mut scene = flannel();
    tunnel(&mut scene).ends = Some(Vec::new());
    assert_eq!(told(&scene), ["tunnel-astray flannel.1: 10.88.1.0/24"]);
    // All goes to one machine, which is this node itself.
    tunnel(&mut scene).ends = Some(vec![TunnelEnd { mac: None, to: ip("192.0.2.2") }]);
    assert_eq!(told(&scene), ["tunnel-astray flannel.1: 10.88.1.0/24"]);
    // It asks all machines, or a program, or that is not known.
    for ends in [Some(vec![TunnelEnd { mac: None, to: ip("239.1.1.1") }]), None] {
        tunnel(&mut scene).ends = ends;
        assert_eq!(told(&scene), [""; 0]);
    }
}

#[test]
fn the_tunnel_is_down_or_gone() {
    let mut scene = flannel();
    tunnel(&mut scene).up = false;
    scene.host.routes.retain(|route| route.hops[0].link != Some(40));
    let found = found_with(&scene, vec![lost()]);
    assert_eq!((found.len(), found[0].id, &*found[0].object), (1, "overlay-gone", "flannel.1"));
    assert_eq!(found[0].fix, ["ip link set flannel.1 up"]);

    scene.host.links.retain(|link| link.name != "flannel.1");
    let found = found_with(&scene, vec![lost()]);
    assert_eq!((found.len(), found[0].id, &*found[0].object), (1, "overlay-gone", "10.88.0.0/16"));
    assert_eq!(found[0].hits, ["c2", "c3"]);
    let kinds: Vec<WayKind> = found[0].breaks.iter().map(|way| way.kind).collect();
    assert_eq!(kinds, [WayKind::Nodes, WayKind::Outside]);
    assert_eq!(found[0].severity, Severity::Error);
    // In the form without --to as well.
    assert_eq!(told(&scene), ["overlay-gone 10.88.0.0/16"]);
    assert_eq!(found_with(&scene, Vec::new())[0].severity, Severity::Warning);

    // Routes without a tunnel: the MTU leaves no room for one.
    let mut without = scene.clone();
    without.networks[0].overlay.as_mut().unwrap().mtu = 1500;
    assert_eq!(told(&without), [""; 0]);
    // Another link of the node has that MTU.
    let mut other = scene.clone();
    other.host.links.iter_mut().find(|link| link.name == "tun0").unwrap().mtu = 1450;
    assert_eq!(told(&other), [""; 0]);
    scene.host.routes.push(route("10.88.1.0/24", 2, Some("192.0.2.11")));
    assert_eq!(told(&scene), [""; 0]);
}

#[test]
fn one_nodes_route_is_gone() {
    let mut scene = flannel();
    scene.host.routes.retain(|route| route.hops[0].link != Some(40));
    scene.host.routes.push(route("10.88.2.0/24", 40, Some("10.88.1.0")));
    assert_eq!(told(&scene), [""; 0], "no probe shows that it is missed");
    let found = found_with(&scene, vec![lost()]);
    assert_eq!((found.len(), found[0].id, &*found[0].object), (1, "overlay-gone", "10.88.1.5"));
    assert_eq!(found[0].hits, ["c2"]);
}

#[test]
fn a_filter_that_stops_the_tunnels_packets() {
    let closed = |hook: Hook| base("c", hook, 0, vec![rule(&[udp_port(8472), drop()])]);
    let told = |scene: Scene| -> Vec<(String, Vec<String>)> {
        let found = found_with(&scene, vec![lost()]).into_iter();
        found.map(|one| (format!("{} {}", one.id, one.object), one.fix)).collect()
    };
    let input = with(flannel(), table(Kin::Inet, "filter", vec![closed(Hook::Input)]));
    let fix = "nft insert rule inet filter c handle 7 ip saddr 192.0.2.0/24 udp dport 8472 accept";
    let object = "tunnel-dropped flannel.1: inet filter/c rule 1".to_owned();
    assert_eq!(told(input), [(object.clone(), vec![fix.to_owned()])]);
    let output = with(flannel(), table(Kin::Inet, "filter", vec![closed(Hook::Output)]));
    let fix = "nft insert rule inet filter c handle 7 udp dport 8472 accept";
    assert_eq!(told(output), [(object, vec![fix.to_owned()])]);
    // A policy: answers pass, and what comes by a VXLAN is none.
    let rules = || vec![rule(&[established(), accept()])];
    let policy = dropping(base("c", Hook::Input, 0, rules()));
    let policy = with(flannel(), table(Kin::Inet, "filter", vec![policy]));
    let fix = "nft add rule inet filter c ip saddr 192.0.2.0/24 udp dport 8472 accept".to_owned();
    let last = ("tunnel-dropped flannel.1: inet filter/c policy".to_owned(), vec![fix.clone()]);
    // Others come to the chain that drops, too.
    let deny = |parts: &[Vec<Step>]| rule(&[parts, &[jump("deny")]].concat());
    let mut calls = [rules(), vec![deny(&[udp_port(9)]), deny(&[iifname("up0")])]].concat();
    calls[2].handle = 23;
    let chains = vec![base("c", Hook::Input, 0, calls), chain("deny", vec![rule(&[drop()])])];
    let shared = with(flannel(), table(Kin::Inet, "filter", chains));
    let fix = fix.replace("add rule inet filter c", "insert rule inet filter c handle 23");
    let before = ("tunnel-dropped flannel.1: inet filter/deny rule 1".to_owned(), vec![fix]);
    for (scene, expected) in [(policy, last), (shared, before)] {
        assert_eq!(told(scene), [expected]);
    }
    let other = base("c", Hook::Input, 0, vec![rule(&[udp_port(4789), drop()])]);
    assert_eq!(told(with(flannel(), table(Kin::Inet, "filter", vec![other]))), []);
}

/// A filter alone shows no fault of the tunnel.
#[test]
fn a_filter_of_a_tunnel_is_an_error_if_a_probe_is_lost() {
    let closed = base("c", Hook::Input, 0, vec![rule(&[udp_port(8472), drop()])]);
    let scene = with(flannel(), table(Kin::Inet, "filter", vec![closed]));
    let severity = |all: Vec<(Question, Answer)>| -> Vec<Severity> {
        let found = found_with(&scene, all);
        found.iter().filter(|one| one.id == "tunnel-dropped").map(|one| one.severity).collect()
    };
    assert_eq!(severity(Vec::new()), [Severity::Warning]);
    assert_eq!(severity(vec![lost()]), [Severity::Error]);
    let (question, _) = lost();
    assert_eq!(severity(vec![(question, Answer::Reached { after_us: 9 })]), [Severity::Warning]);
}

#[test]
fn wireguards_answers_pass_as_those_of_others() {
    let mut scene = node();
    let peer = Peer {
        key: "KEY=".to_owned(),
        endpoint: Some("198.51.100.9:51820".parse().unwrap()),
        allowed: vec!["10.99.0.0/16".parse().unwrap()],
    };
    scene.host.links.push(Link {
        kind: Some("wireguard".to_owned()),
        peers: Some(vec![peer]),
        port: Some(51821),
        ..link(40, "wg0", &["10.9.0.1/24"])
    });
    scene.host.routes.push(route("10.99.0.0/16", 40, None));
    let accept = crate::model::filter::Step::Verdict(crate::model::filter::Verdict::Accept);
    let answers = rule(&[established(), vec![accept]]);
    let policy = dropping(base("c", Hook::Input, 0, vec![answers]));
    let open = with(scene.clone(), table(Kin::Inet, "filter", vec![policy]));
    assert_eq!(told(&open), [""; 0]);
    let closed = dropping(base("c", Hook::Input, 0, Vec::new()));
    let closed = with(scene.clone(), table(Kin::Inet, "filter", vec![closed]));
    assert_eq!(told(&closed), ["tunnel-dropped wg0: inet filter/c policy"]);
    // The peer's machine is this node itself.
    let up0 = scene.host.links.iter_mut().find(|link| link.name == "up0").unwrap();
    up0.addresses.push(Address {
        address: "198.51.100.9/32".parse().unwrap(),
        duplicate: false,
        tentative: false,
    });
    assert_eq!(told(&scene), ["tunnel-astray wg0: 10.99.0.0/16"]);
}

/// The other node answers beside the tunnel, and the router in it does or does not.
fn beside(inner: Answer) -> Vec<(Question, Answer)> {
    let who = Probe::WhoHas { address: ip("192.0.2.11"), link: "up0".to_owned() };
    let reached = Answer::Reached { after_us: 1 };
    vec![
        of_node(who, Answer::Owners { macs: vec!["02:00:00:00:00:11".to_owned()] }),
        of_node(Probe::Echo { to: ip("192.0.2.11") }, reached),
        of_node(Probe::Echo { to: ip("10.88.1.0") }, inner),
    ]
}

#[test]
fn a_tunnel_through_which_nothing_comes_back() {
    let scene = flannel();
    let silent = || Answer::Silent { hops: Vec::new() };
    let told = |all: Vec<(Question, Answer)>| -> Vec<(&'static str, Severity, usize)> {
        let found = found_with(&scene, all).into_iter();
        found.map(|one| (one.id, one.severity, one.hits.len())).collect()
    };
    let lost_by_one = [beside(silent()), vec![lost()]].concat();
    let found = found_with(&scene, lost_by_one.clone());
    assert_eq!(
        found[0].says,
        "nothing comes back through flannel.1 from 192.0.2.11, which itself answers: VXLAN (UDP port 8472) is lost on the way, or 192.0.2.11 does not take it for this node's"
    );
    assert_eq!(told(lost_by_one), [("tunnel-silent", Severity::Error, 1)]);
    assert_eq!(told(beside(silent())), [("tunnel-silent", Severity::Warning, 0)]);
    // The router answers, so what is silent is behind it.
    let through = [beside(Answer::Reached { after_us: 1 }), vec![lost()]].concat();
    assert_eq!(told(through), []);
    // Something behind the tunnel answers: the router may drop echo requests.
    let asked = Probe::Connect { to: "10.88.1.5:80".parse().unwrap() };
    let question = Question { from: Some("c2".to_owned()), asked };
    let refused = [beside(silent()), vec![(question, Answer::Refused)]].concat();
    assert_eq!(told(refused), []);
    // The other node answers no echo request at all.
    let mut filtered = beside(silent());
    filtered[1].1 = silent();
    assert_eq!(told(filtered), []);
}
