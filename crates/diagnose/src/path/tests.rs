mod joined;

use net::IpFamily;

use super::samples::{ip, node, with, with_route};
use super::*;
use crate::filter::samples::{
    accept, base, destination, dnat, drop, dropping, established, iifname, nat, oifname, rule,
    source, table, tcp_port, unknown,
};
use crate::model::filter::{Comparison, Connection, Family as Kin, Meta, Step, Table};
use crate::model::{RouteKind, RouteRule, RuleAction};
use crate::routes::samples::{route, rule as route_rule};

/// Follows a way of the first container, and says where it ends.
fn way(scene: &Scene, name: &str, family: IpFamily) -> String {
    let site = |number: usize| {
        let container = &scene.containers[number];
        Site::of(scene, container, &container.attachments[0], family).unwrap()
    };
    let (first, second) = (site(0), site(1));
    let (outside, own) = match family {
        IpFamily::V4 => (ip("198.51.100.1"), ip("192.0.2.2")),
        IpFamily::V6 => (ip("2001:db8:1::1"), ip("2001:db8::2")),
    };
    let with = carries(Transport::Tcp, Port::Is(443));
    let trip = match name {
        "resolve" => Trip::Resolve { from: &first },
        "outside" => Trip::Outside { from: &first, to: outside, with },
        "between" => {
            let with = carries(Transport::Tcp, Port::Any);
            Trip::Between { from: &first, to: &second, with }
        }
        "from node" => Trip::FromNode { to: &first },
        "here" => Trip::PublishedHere { to: &first, port: &first.attachment.ports[0] },
        _ => Trip::Published {
            to: &first,
            port: &first.attachment.ports[0],
            at: own,
            by: scene.host.link("up0").unwrap(),
            from: outside,
        },
    };
    match follow(scene, &trip) {
        Outcome::Passes(Passage { source: Truth::Yes, .. }) => "passes, translated".to_owned(),
        Outcome::Passes(_) => "passes".to_owned(),
        Outcome::Unknown => "unknown".to_owned(),
        Outcome::Stopped(stop) => {
            let back = match (stop.back, stop.further) {
                (true, _) => "answer: ",
                (false, true) => "further: ",
                (false, false) => "",
            };
            let inside = stop.inside.map(|id| format!("in {id}: ")).unwrap_or_default();
            let why = match stop.why {
                StopCause::Filter { layer, place, .. } => format!("{layer:?} {}", place.name()),
                StopCause::Expires { place, .. } => format!("expires by {}", place.name()),
                StopCause::Refused { route: Some(route), .. } => format!("route {}", route.to),
                StopCause::Refused { rule: Some(rule), .. } => format!("rule {}", rule.priority),
                StopCause::Refused { .. } => "refused".to_owned(),
                StopCause::NoRoute => "no route".to_owned(),
                StopCause::Diverted { link, rule: Some(rule), .. } => {
                    format!("to {} by rule {}", link.name, rule.priority)
                }
                StopCause::Diverted { link, route, .. } => {
                    format!("to {} by {}", link.name, route.to)
                }
                StopCause::Vlan { port, vlan: Some(vlan) } => {
                    format!("{} lacks VLAN {vlan}", port.name)
                }
                StopCause::Vlan { port, vlan: None } => format!("{} takes only tags", port.name),
                StopCause::Apart { parent } => format!("apart on {}", parent.name),
                StopCause::Redirected { place, .. } => format!("redirected by {}", place.name()),
            };
            format!("{back}{inside}{why}")
        }
    }
}

fn v4(scene: &Scene, name: &str) -> String {
    way(scene, name, IpFamily::V4)
}

fn one(family: Kin, hook: Hook, parts: &[Vec<crate::model::filter::Step>]) -> Table {
    table(family, "t", vec![base("c", hook, 0, vec![rule(parts)])])
}

#[test]
fn on_a_sound_node_every_way_passes() {
    let node = node();
    for family in IpFamily::ALL {
        assert_eq!(way(&node, "resolve", family), "passes", "{family}");
        assert_eq!(way(&node, "outside", family), "passes, translated", "{family}");
        assert_eq!(way(&node, "between", family), "passes", "{family}");
        assert_eq!(way(&node, "from node", family), "passes", "{family}");
    }
    assert_eq!(v4(&node, "published"), "passes");
    assert_eq!(v4(&node, "here"), "passes, translated");
}

#[test]
fn filters_stop_the_packet_wherever_they_are() {
    let cases = [
        ("outside", one(Kin::Ip, Hook::Forward, &[drop()]), "Ip ip t/c rule 1"),
        (
            "outside",
            one(Kin::Inet, Hook::Prerouting, &[iifname("cni0"), drop()]),
            "Ip inet t/c rule 1",
        ),
        (
            "outside",
            one(Kin::Inet, Hook::Postrouting, &[oifname("up0"), drop()]),
            "Ip inet t/c rule 1",
        ),
        (
            "outside",
            one(Kin::Inet, Hook::Forward, &[oifname("cni0"), drop()]),
            "answer: Ip inet t/c rule 1",
        ),
        (
            "outside",
            one(Kin::Inet, Hook::Forward, &[established(), destination("10.88.0.2"), drop()]),
            "answer: Ip inet t/c rule 1",
        ),
        ("outside", one(Kin::Bridge, Hook::Prerouting, &[drop()]), "Bridge bridge t/c rule 1"),
        (
            "outside",
            one(Kin::Bridge, Hook::Output, &[oifname("veth2"), drop()]),
            "answer: Bridge bridge t/c rule 1",
        ),
        ("between", one(Kin::Bridge, Hook::Forward, &[drop()]), "Bridge bridge t/c rule 1"),
        (
            "between",
            one(Kin::Bridge, Hook::Forward, &[iifname("veth3"), drop()]),
            "answer: Bridge bridge t/c rule 1",
        ),
        ("between", one(Kin::Inet, Hook::Forward, &[drop()]), "passes"),
        ("from node", one(Kin::Inet, Hook::Output, &[drop()]), "Ip inet t/c rule 1"),
        ("from node", one(Kin::Inet, Hook::Input, &[drop()]), "answer: Ip inet t/c rule 1"),
        ("resolve", one(Kin::Inet, Hook::Input, &[drop()]), "passes"),
        ("resolve", one(Kin::Arp, Hook::Input, &[drop()]), "Arp arp t/c rule 1"),
        (
            "published",
            one(Kin::Inet, Hook::Forward, &[oifname("cni0"), drop()]),
            "Ip inet t/c rule 1",
        ),
        (
            "published",
            one(Kin::Inet, Hook::Forward, &[source("10.88.0.2"), drop()]),
            "answer: Ip inet t/c rule 1",
        ),
        ("published", one(Kin::Inet, Hook::Input, &[drop()]), "passes"),
        (
            "here",
            one(Kin::Inet, Hook::Output, &[destination("10.88.0.2"), drop()]),
            "Ip inet t/c rule 1",
        ),
        (
            "here",
            one(Kin::Inet, Hook::Input, &[destination("127.0.0.1"), drop()]),
            "answer: Ip inet t/c rule 1",
        ),
        ("here", one(Kin::Inet, Hook::Forward, &[drop()]), "passes, translated"),
    ];
    for (name, table, expected) in cases {
        let what = format!("{name} {table:?}");
        assert_eq!(v4(&with(node(), table), name), expected, "{what}");
    }
    // Neighbour discovery is a packet of IP.
    let input = with(node(), one(Kin::Inet, Hook::Input, &[drop()]));
    assert_eq!(way(&input, "resolve", IpFamily::V6), "Ip inet t/c rule 1");
}

#[test]
fn br_netfilter_shows_frames_to_the_filters_of_ip() {
    let mut scene = with(node(), one(Kin::Ip, Hook::Forward, &[drop()]));
    let key = "net.bridge.bridge-nf-call-iptables".to_owned();
    scene.host.sysctls.insert(key.clone(), "1".to_owned());
    assert_eq!(v4(&scene, "between"), "Ip ip t/c rule 1");
    scene.host.sysctls.insert(key.clone(), "0".to_owned());
    assert_eq!(v4(&scene, "between"), "passes");
    // One bridge alone may show its frames. Without the module nothing does.
    let cni0 = scene.host.links.iter_mut().find(|link| link.name == "cni0").unwrap();
    cni0.shows_ipv4 = true;
    assert_eq!(v4(&scene, "between"), "Ip ip t/c rule 1");
    scene.host.sysctls.remove(&key);
    assert_eq!(v4(&scene, "between"), "passes");
}

/// As administrators write it: a policy, and answers let through.
#[test]
fn what_lets_the_network_through_is_no_fault() {
    let zone = |rules| {
        let forward = dropping(base("forward", Hook::Forward, 0, rules));
        with(node(), table(Kin::Inet, "filter", vec![forward]))
    };
    let answers = rule(&[established(), accept()]);
    let open = zone(vec![answers.clone(), rule(&[iifname("cni0"), accept()])]);
    assert_eq!(v4(&open, "outside"), "passes, translated");
    assert_eq!(v4(&open, "published"), "Ip inet filter/forward policy");
    assert_eq!(v4(&zone(vec![answers]), "outside"), "Ip inet filter/forward policy");
    let one_way = zone(vec![rule(&[iifname("cni0"), accept()])]);
    assert_eq!(v4(&one_way, "outside"), "answer: Ip inet filter/forward policy");
    let perhaps = zone(vec![rule(&[unknown("match set"), accept()])]);
    assert_eq!(v4(&perhaps, "outside"), "unknown");
}

/// The first packet passes, and its answer.
#[test]
fn a_filter_may_stop_what_follows_the_first_packet() {
    let direction = |number: u8| {
        vec![
            Step::Connection { key: Connection::Other(1), to: 0 },
            Step::Compare { op: Comparison::Equal, from: 0, with: vec![number] },
        ]
    };
    let way = |name: &str, parts: &[Vec<Step>]| {
        v4(&with(node(), one(Kin::Inet, Hook::Forward, parts)), name)
    };
    let original = [direction(0), established(), drop()];
    assert_eq!(way("outside", &original), "further: Ip inet t/c rule 1");
    assert_eq!(way("published", &original), "further: Ip inet t/c rule 1");
    assert_eq!(way("from node", &original), "passes");
    let of_bridge = [iifname("cni0"), established(), drop()];
    assert_eq!(way("outside", &of_bridge), "further: Ip inet t/c rule 1");
    assert_eq!(way("published", &of_bridge), "answer: Ip inet t/c rule 1");
    // What may stop it, or only marked packets, says nothing.
    let perhaps = [established(), unknown("match set"), direction(0), drop()];
    assert_eq!(way("outside", &perhaps), "passes, translated");
    let marked = vec![
        Step::Meta { key: Meta::Mark, to: 0 },
        Step::Compare { op: Comparison::Equal, from: 0, with: vec![0; 4] },
    ];
    let unmarked = [direction(0), established(), marked, drop()];
    assert_eq!(way("published", &unmarked), "passes");
    let translated = vec![
        Step::Connection { key: Connection::Status, to: 0 },
        Step::Bitwise { from: 0, to: 0, mask: 0x10_u32.to_ne_bytes().to_vec(), xor: vec![0; 4] },
        Step::Compare { op: Comparison::Equal, from: 0, with: vec![0; 4] },
    ];
    let untranslated = [direction(0), established(), translated, drop()];
    assert_eq!(way("outside", &untranslated), "passes, translated");
}

#[test]
fn a_filter_in_the_container_is_found_there() {
    let mut scene = node();
    let inside = scene.containers[0].inside.as_mut().unwrap();
    inside.filter.tables.push(one(Kin::Inet, Hook::Output, &[established(), drop()]));
    assert_eq!(v4(&scene, "outside"), "further: in c2: Ip inet t/c rule 1");
    assert_eq!(v4(&scene, "from node"), "answer: in c2: Ip inet t/c rule 1");
    let inside = scene.containers[0].inside.as_mut().unwrap();
    inside.filter.tables[0] = one(Kin::Inet, Hook::Input, &[drop()]);
    assert_eq!(v4(&scene, "outside"), "answer: in c2: Ip inet t/c rule 1");
}

#[test]
fn routes_and_rules_decide_where_it_goes() {
    let mut scene = node();
    scene.host.routes.remove(0);
    assert_eq!(v4(&scene, "outside"), "no route");

    let covered = with_route(node(), route("10.88.0.0/25", 9, None));
    assert_eq!(v4(&covered, "outside"), "answer: to tun0 by 10.88.0.0/25");
    assert_eq!(v4(&covered, "from node"), "to tun0 by 10.88.0.0/25");

    let hole =
        crate::model::Route { kind: RouteKind::Blackhole, ..route("198.51.100.0/24", 0, None) };
    assert_eq!(v4(&with_route(node(), hole), "outside"), "route 198.51.100.0/24");

    let mut ruled = node();
    let pool = Some("10.88.0.0/24".parse().unwrap());
    ruled.host.rules = vec![
        route_rule(0, RuleAction::Table(255)),
        RouteRule { from: pool, ..route_rule(100, RuleAction::Blackhole) },
        route_rule(32766, RuleAction::Table(254)),
    ];
    assert_eq!(v4(&ruled, "outside"), "rule 100");
    ruled.host.rules[1] = RouteRule { to: pool, ..route_rule(100, RuleAction::Table(7)) };
    ruled.host.routes.push(crate::model::Route { table: 7, ..route("0.0.0.0/0", 9, None) });
    assert_eq!(v4(&ruled, "outside"), "answer: to tun0 by rule 100");
}

#[test]
fn a_port_that_another_rule_takes_first() {
    let foreign = nat(
        "PREROUTING",
        Hook::Prerouting,
        -100,
        vec![rule(&[tcp_port(8080), dnat("10.88.0.3", 80)])],
    );
    let scene = with(node(), table(Kin::Ip, "nat", vec![foreign]));
    assert_eq!(v4(&scene, "published"), "redirected by ip nat/PREROUTING rule 1");
    // What should have led it to the container is gone, and CHECK says so.
    let mut gone = node();
    gone.host.filter.tables.clear();
    assert_eq!(v4(&gone, "published"), "unknown");
    assert_eq!(v4(&gone, "outside"), "passes");
}

/// A part that could not be read may hold what stops the packet.
#[test]
fn what_was_not_read_makes_it_unknown() {
    let mut scene = node();
    scene.holes = vec![crate::model::Hole {
        part: crate::model::Part::Nftables,
        container: None,
        reason: "Operation not permitted".to_owned(),
    }];
    assert_eq!(v4(&scene, "outside"), "unknown");
}

/// As Cilium has them for what its proxy gets and sends.
#[test]
fn the_uplink_is_that_of_the_main_table() {
    let mut scene = node();
    let of_table = |table: u32, link: u32| Route { table, ..route("0.0.0.0/0", link, None) };
    let local = Route { kind: RouteKind::Other, ..of_table(2004, 1) };
    scene.host.routes.splice(..0, [local, of_table(2005, 9)]);
    let name = |scene: &Scene, ipv4: bool| uplink(scene, ipv4).map(|link| link.name.clone());
    assert_eq!(name(&scene, true).as_deref(), Some("up0"));
    // Another default route is for when the first one fails.
    let second = Route { metric: 700, ..route("0.0.0.0/0", 9, None) };
    scene.host.routes.insert(0, second);
    assert_eq!(name(&scene, true).as_deref(), Some("up0"));
    assert_eq!(name(&scene, false).as_deref(), Some("up0"));
}
