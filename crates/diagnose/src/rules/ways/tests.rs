use super::*;
use crate::filter::samples::{base, drop, rule as filter_rule, table, unknown};
use crate::model::filter::{Family as Kin, Hook};
use crate::path::samples::{ip as address, node, with, with_route};
use crate::question::{Answer, Answers, Probe, Question};
use crate::routes::samples::{route, rule};

fn found_with(scene: &Scene, all: Vec<(Question, Answer)>) -> Vec<Finding> {
    let answers = Answers { all };
    let look = Look { scene, answers: &answers, only: None, to: None };
    let all = [ROUTES, GATEWAYS, SILENT].iter().flat_map(|rule| rule.findings(look)).collect();
    crate::causes::sort(all, scene).causes.into_iter().map(|one| one.finding).collect()
}

fn found(scene: &Scene) -> Vec<Finding> {
    found_with(scene, Vec::new())
}

fn says(scene: &Scene) -> Vec<String> {
    found(scene).into_iter().map(|finding| format!("{}  {}", finding.id, finding.says)).collect()
}

#[test]
fn a_sound_node_has_no_findings() {
    assert_eq!(found(&node()), []);
}

#[test]
fn the_node_keeps_what_is_for_containers() {
    let local = |to: &str| Route { table: 255, kind: RouteKind::Other, ..route(to, 1, None) };
    let all = found(&with_route(node(), local("10.88.0.0/25")));
    let object = "10.88.0.0/25 dev lo";
    assert_eq!((all.len(), all[0].id, all[0].object.as_str()), (1, "route-covers-pool", object));
    assert_eq!(all[0].fix[0], "ip route del 10.88.0.0/25 table 255");
    assert_eq!(all[0].hits, ["c2", "c3"]);
    // Addresses that the node serves for others.
    assert_eq!(found(&with_route(node(), local("192.0.2.64/26"))), []);
}

#[test]
fn the_default_route_is_gone() {
    let mut scene = node();
    scene.host.routes.remove(0);
    assert_eq!(
        says(&scene),
        [
            "no-default-route  this node has no default route for IPv4, so its containers do not reach beyond it"
        ]
    );
    assert_eq!(found(&scene)[0].hits, ["c2", "c3"]);
    // It was given routes, and none for everything.
    let scene = with_route(scene, route("10.0.0.0/8", 2, Some("192.0.2.1")));
    assert_eq!(found(&scene), []);
    // A container misses one.
    let lost = |server: &str| {
        let asked = Probe::Name { server: address(server) };
        let question = Question { from: Some("c2".to_owned()), asked };
        let found = found_with(&scene, vec![(question, Answer::Silent { hops: Vec::new() })]);
        found
            .into_iter()
            .map(|one| format!("{} {}", one.id, one.hits.join(" ")))
            .collect::<Vec<_>>()
    };
    assert_eq!(lost("198.51.100.53"), ["no-default-route c2"]);
    assert_eq!(lost("10.1.2.53"), [""; 0]);
}

/// The kernel removes the routes that need an address with it.
#[test]
fn the_uplink_has_lost_its_address() {
    let mut scene = node();
    scene.host.routes.retain(|route| route.hops.iter().any(|hop| hop.link == Some(3)));
    for link in scene.host.links.iter_mut().filter(|link| ["up0", "tun0"].contains(&&*link.name)) {
        link.addresses.clear();
    }
    let all = found(&scene);
    assert_eq!((all.len(), all[0].id, all[0].object.as_str()), (1, "no-default-route", "IPv4"));
    assert!(all[0].seen[0].starts_with("up0 is up"), "{:?}", all[0].seen);
    // With a way out by IPv6 it may be meant.
    assert_eq!(found(&with_route(scene.clone(), route("::/0", 2, Some("fe80::9")))), []);
    // A machine without a network.
    for link in &mut scene.host.links {
        link.carrier = false;
    }
    assert_eq!(found(&scene), []);
}

/// Containers have IPv6 among themselves, and the node has none.
#[test]
fn a_node_without_ipv6_is_sound() {
    let mut scene = node();
    scene.host.routes.retain(|route| route.to.addr().is_ipv4() || route.to.prefix_len() == 64);
    scene.host.links[1].addresses.retain(|own| own.address.addr().is_ipv4());
    assert_eq!(found(&scene), []);
}

#[test]
fn a_vpn_covers_the_pool() {
    let scene = with_route(node(), route("10.88.0.0/25", 9, None));
    assert_eq!(
        says(&scene),
        [
            "route-covers-pool  a route to 10.88.0.0/25 leads packets for containers of mynet to tun0 instead of cni0"
        ]
    );
    let found = found(&scene);
    assert_eq!(found[0].fix[0], "ip route del 10.88.0.0/25 dev tun0");
    assert_eq!(found[0].object, "10.88.0.0/25 dev tun0");
}

/// Another fault hides the bridge's own route, and not what the VPN does.
#[test]
fn a_vpn_covers_the_pool_whose_own_route_is_gone() {
    let mut scene = with_route(node(), route("10.88.0.0/25", 9, None));
    let own = "10.88.0.0/24".parse().unwrap();
    scene.host.routes.retain(|route| route.to != own);
    let ids: Vec<&str> = found(&scene).iter().map(|one| one.id).collect();
    assert_eq!(ids, ["route-covers-pool"]);
}

#[test]
fn a_rule_sends_the_pool_into_a_black_hole() {
    let mut scene = node();
    let pool = Some("10.88.0.0/24".parse().unwrap());
    scene.host.rules = vec![
        rule(0, RuleAction::Table(255)),
        RouteRule { from: pool, ..rule(100, RuleAction::Table(7)) },
        rule(32766, RuleAction::Table(254)),
    ];
    scene.host.routes.push(Route {
        table: 7,
        kind: RouteKind::Blackhole,
        hops: Vec::new(),
        ..route("0.0.0.0/0", 0, None)
    });
    let all = found(&scene);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].id, "route-refuses");
    assert_eq!(all[0].object, "route blackhole default table 7");
    assert_eq!(all[0].fix, ["ip route del blackhole default table 7"]);

    scene.host.rules[1] = RouteRule { from: pool, ..rule(100, RuleAction::Prohibit) };
    let all = found(&scene);
    assert_eq!(all[0].object, "IPv4 rule 100");
    assert_eq!(all[0].place.as_deref(), Some("rule 100: from 10.88.0.0/24 prohibit"));
    assert_eq!(all[0].fix, ["ip rule del priority 100"]);

    scene.host.rules[1] = RouteRule { to: pool, ..rule(100, RuleAction::Table(8)) };
    scene.host.routes.push(Route { table: 8, ..route("0.0.0.0/0", 9, None) });
    assert_eq!(
        says(&scene),
        [
            "rule-diverts  routing rule 100 leads packets for containers of mynet to tun0 instead of cni0"
        ]
    );
    assert_eq!(found(&scene)[0].fix, ["ip rule add priority 99 to 10.88.0.0/24 lookup main"]);
}

/// A black hole for private addresses is good practice.
#[test]
fn a_black_hole_for_others_is_no_fault() {
    let hole = Route { kind: RouteKind::Blackhole, ..route("172.16.0.0/12", 0, None) };
    assert_eq!(found(&with_route(node(), hole)), []);
}

/// A rule that asks for a mark is not clear where packets are marked.
#[test]
fn marks_make_rules_unclear() {
    let mut scene = node();
    scene.host.rules = vec![
        rule(0, RuleAction::Table(255)),
        RouteRule { mark: Some((0, 1)), ..rule(100, RuleAction::Blackhole) },
        rule(32766, RuleAction::Table(254)),
    ];
    assert_eq!(found(&scene).len(), 1);
    let marks = vec![Step::Effect { name: "meta mark".to_owned() }];
    let chain = base("mangle", Hook::Prerouting, -150, vec![filter_rule(&[marks])]);
    assert_eq!(found(&with(scene, table(Kin::Inet, "own", vec![chain]))), []);
}

#[test]
fn a_hole_in_the_container() {
    let mut scene = node();
    let inside = scene.containers[0].inside.as_mut().unwrap();
    let all = route("0.0.0.0/0", 0, None);
    inside.routes[0] = Route { kind: RouteKind::Unreachable, hops: Vec::new(), ..all };
    let all = found(&scene);
    assert_eq!(all[0].object, "c2: route unreachable default");
    assert_eq!(all[0].fix, ["nsenter --net=/run/netns/c2 ip route del unreachable default"]);
}

/// By whatever plugin: what refuses is in the container.
#[test]
fn a_rule_in_a_container_that_is_not_at_the_end_of_a_pair() {
    use crate::model::{Link, MacvlanMode};
    use crate::path::samples::on_parent;
    let usual = || [rule(0, RuleAction::Table(255)), rule(32766, RuleAction::Table(254))].to_vec();
    let set = |link: &mut Link| link.macvlan = Some(MacvlanMode::Bridge);
    let mut vlan = on_parent("vlan", |_| {});
    vlan.containers[0].attachments[0].plugins = vec!["of-others".to_owned()];
    // A device that the node has lent, of which it has no end.
    let lent = on_parent("host-device", |link| (link.kind, link.peer) = (None, None));
    for mut scene in [on_parent("macvlan", set), vlan, lent] {
        assert_eq!(found(&scene), []);
        let inside = scene.containers[0].inside.as_mut().unwrap();
        let from = Some("10.88.0.2/32".parse().unwrap());
        inside.rules = usual();
        inside.rules.insert(1, RouteRule { from, ..rule(100, RuleAction::Prohibit) });
        let all = found(&scene);
        assert_eq!((all.len(), all[0].object.as_str()), (1, "c2: IPv4 rule 100"));
        assert_eq!(all[0].says, "IPv4 rule 100 of c2 refuses what it sends beyond this node");
        assert_eq!(all[0].fix, ["nsenter --net=/run/netns/c2 ip rule del priority 100"]);
        // Of another address, or to a network that it does not ask.
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.rules[1].from = Some("10.88.0.9/32".parse().unwrap());
        let hole = route("172.16.0.0/12", 0, None);
        inside.routes.push(Route { kind: RouteKind::Prohibit, hops: Vec::new(), ..hole });
        assert_eq!(found(&scene), []);
        scene.containers[0].nameservers = Some(vec![address("172.16.0.53")]);
        assert_eq!(found(&scene)[0].object, "c2: route prohibit 172.16.0.0/12");
        // In the place of its default route: it may be meant, unless it asks in vain.
        let inside = scene.containers[0].inside.as_mut().unwrap();
        (inside.rules, inside.routes) = (Vec::new(), inside.routes[..2].to_vec());
        inside.routes[0].kind = RouteKind::Blackhole;
        inside.routes[0].hops.clear();
        assert_eq!(found(&scene), []);
        let asked = Probe::Name { server: address("172.16.0.53") };
        let question = Question { from: Some("c2".to_owned()), asked };
        let lost = found_with(&scene, vec![(question, Answer::Silent { hops: Vec::new() })]);
        assert_eq!(lost[0].object, "c2: route blackhole default");
    }
}

#[test]
fn a_route_of_a_container_to_its_loopback() {
    let mut scene = node();
    scene.containers[0].nameservers = Some(vec![address("198.51.100.53")]);
    let inside = scene.containers[0].inside.as_mut().unwrap();
    inside.routes.push(route("198.51.100.0/24", 1, None));
    let all = found(&scene);
    assert_eq!((all.len(), all[0].object.as_str()), (1, "c2: route 198.51.100.0/24 dev lo"));
    let fix = "nsenter --net=/run/netns/c2 ip route del 198.51.100.0/24 dev lo";
    assert_eq!(all[0].fix, [fix]);
}

/// Without a probe that is lost it may be meant so.
#[test]
fn a_container_misses_what_the_node_has_lost() {
    let lost = |server: &str| {
        let asked = Probe::Name { server: address(server) };
        let question = Question { from: Some("c2".to_owned()), asked };
        vec![(question, Answer::Silent { hops: Vec::new() })]
    };
    let told = |scene: &Scene, server: &str| -> Vec<String> {
        let all = found_with(scene, lost(server)).into_iter();
        all.map(|one| format!("{} {}", one.id, one.object)).collect()
    };
    let mut scene = node();
    scene.host.routes.retain(|route| route.to.addr().is_ipv4() || route.to.prefix_len() == 64);
    scene.host.links[1].addresses.retain(|own| own.address.addr().is_ipv4());
    assert_eq!(found(&scene), []);
    assert_eq!(told(&scene, "198.51.100.53"), [""; 0]);
    assert_eq!(told(&scene, "2001:db8:9::53"), ["no-default-route IPv6"]);
    let mut half = scene.clone();
    let address = "fe80::2/64".parse().unwrap();
    let of_link = crate::model::Address { address, duplicate: false, tentative: false };
    half.host.links[1].addresses.push(of_link);
    assert_eq!(told(&half, "2001:db8:9::53"), [""; 0]);
    // Unless it ignores the routers that would give it more.
    for key in ["forwarding", "accept_ra"] {
        half.host.sysctls.insert(format!("net.ipv6.conf.up0.{key}"), "1".to_owned());
    }
    assert_eq!(told(&half, "2001:db8:9::53"), ["router-advertisements up0"]);
    let switch = "net.ipv6.conf.up0.disable_ipv6";
    scene.host.sysctls.insert(switch.to_owned(), "1".to_owned());
    assert_eq!(told(&scene, "2001:db8:9::53"), [format!("no-default-route IPv6: {switch}")]);
    // On all links, which it names, also if nobody has asked in vain yet.
    let all = "net.ipv6.conf.all.disable_ipv6";
    scene.host.sysctls.insert(all.to_owned(), "1".to_owned());
    assert_eq!(told(&scene, "2001:db8:9::53"), [format!("no-default-route IPv6: {all}")]);
    let found = found(&scene);
    assert_eq!(found[0].fix, [format!("sysctl -w {all}=0")]);
    assert_eq!(found[0].severity, crate::finding::Severity::Warning);
}

/// A default route that came by a router's advertisement is gone as soon as the node forwards.
#[test]
fn routers_are_ignored_beside_forwarding() {
    let mut scene = node();
    let is_default = |route: &Route| route.to.addr().is_ipv6() && route.to.prefix_len() == 0;
    scene.host.routes.retain(|route| !is_default(route));
    assert_eq!(found(&scene)[0].id, "no-default-route");
    for key in ["forwarding", "accept_ra"] {
        scene.host.sysctls.insert(format!("net.ipv6.conf.up0.{key}"), "1".to_owned());
    }
    let all = found(&scene);
    assert_eq!((all[0].id, all[0].object.as_str()), ("router-advertisements", "up0"));
    assert_eq!(all[0].fix[0], "sysctl -w net.ipv6.conf.up0.accept_ra=2");
}

#[test]
fn probes_that_are_lost_are_symptoms() {
    let scene = node();
    let question =
        |from: Option<&str>, asked: Probe| Question { from: from.map(str::to_owned), asked };
    let silent = || Answer::Silent { hops: Vec::new() };
    let router = Probe::Echo { to: address("192.0.2.1") };
    let own = question(Some("c2"), router.clone());
    let of_node = question(None, router);
    // The router does not answer.
    let both = vec![(own.clone(), silent()), (of_node.clone(), silent())];
    assert_eq!(found_with(&scene, both), []);
    let all = found_with(&scene, vec![(own, silent()), (of_node, Answer::Reached { after_us: 1 })]);
    assert_eq!(all[0].id, "outside-silent");
    assert_eq!(all[0].says, "192.0.2.1 answers this node, and not c2");

    let gateway = question(Some("c2"), Probe::Echo { to: address("10.88.0.1") });
    assert_eq!(found_with(&scene, vec![(gateway.clone(), silent())])[0].id, "gateway-silent");
    // A firewall that takes nothing from containers is usual.
    let input = base("input", Hook::Input, 0, vec![filter_rule(&[drop()])]);
    let closed = with(scene.clone(), table(Kin::Inet, "own", vec![input]));
    assert_eq!(found_with(&closed, vec![(gateway.clone(), silent())]), []);
    // So is a container that sends none.
    let mut own = scene.clone();
    let output = base("output", Hook::Output, 0, vec![filter_rule(&[drop()])]);
    let c2 = own.containers.iter_mut().find(|one| one.id == "c2").unwrap();
    c2.inside.as_mut().unwrap().filter.tables.push(table(Kin::Inet, "own", vec![output]));
    assert_eq!(found_with(&own, vec![(gateway.clone(), silent())]), []);
    // Of one that is not clear, nothing is known unless the gateway, or something behind it, answers.
    let limited = filter_rule(&[unknown("limit"), drop()]);
    let input = base("input", Hook::Input, 0, vec![limited]);
    let unclear = with(scene.clone(), table(Kin::Inet, "own", vec![input]));
    let lost = (gateway.clone(), silent());
    let severity = found_with(&unclear, vec![lost.clone()])[0].severity;
    assert_eq!(severity, crate::finding::Severity::Unknown);
    let macs = vec!["02:00:00:00:00:01".to_owned()];
    let who = Probe::WhoHas { address: address("10.88.0.1"), link: "eth0".to_owned() };
    let name = Probe::Name { server: address("198.51.100.53") };
    let near = Probe::Echo { to: address("10.88.0.3") };
    let reached = || Answer::Reached { after_us: 1 };
    for (asked, answer, findings) in
        [(who, Answer::Owners { macs }, 0), (name, reached(), 0), (near, reached(), 1)]
    {
        let heard = (question(Some("c2"), asked), answer);
        assert_eq!(found_with(&unclear, vec![lost.clone(), heard]).len(), findings);
    }
    // And so may one be that cannot be judged here.
    let mut hidden = scene.clone();
    let reason = "ebtables sees packets of bridge at forward, and is not looked at".to_owned();
    hidden.holes = vec![crate::model::Hole { part: Part::Unjudged, container: None, reason }];
    assert_eq!(
        found_with(&hidden, vec![(gateway, silent())])[0].severity,
        crate::finding::Severity::Unknown
    );

    let port = question(None, Probe::Connect { to: "192.0.2.2:8080".parse().unwrap() });
    assert_eq!(found_with(&scene, vec![(port, silent())])[0].id, "port-silent");
    let container = question(None, Probe::Connect { to: "10.88.0.2:80".parse().unwrap() });
    assert_eq!(found_with(&scene, vec![(container, silent())])[0].id, "container-silent");
}

#[test]
fn the_router_may_answer_where_nothing_behind_it_does() {
    let (scene, to) = (node(), "198.51.100.1:80".parse().unwrap());
    let told = |of_node: Answer| {
        let question =
            |from: Option<&str>, asked: Probe| Question { from: from.map(str::to_owned), asked };
        let connect = || Probe::Connect { to };
        let router = Probe::Echo { to: address("192.0.2.1") };
        let all = vec![
            (question(Some("c2"), connect()), Answer::Silent { hops: Vec::new() }),
            (question(None, connect()), of_node),
            (question(None, router), Answer::Reached { after_us: 1 }),
        ];
        let answers = Answers { all };
        let look = Look { scene: &scene, answers: &answers, only: None, to: Some(to) };
        let found = SILENT.findings(look);
        assert_eq!((found.len(), found[0].id), (1, "outside-silent"));
        found[0].seen.get(1).cloned()
    };
    let says = "192.0.2.1, by which this node reaches 198.51.100.1, answers an echo request";
    assert_eq!(told(Answer::Silent { hops: Vec::new() }).as_deref(), Some(says));
    assert_eq!(told(Answer::Reached { after_us: 1 }), None);
}

#[test]
fn each_probe_is_asked_for() {
    let scene = node();
    let none = Answers::default();
    let to = Some("198.51.100.1:80".parse().unwrap());
    let asked = crate::questions(Look { scene: &scene, answers: &none, only: Some("c2"), to });
    let has = |from: Option<&str>, asked_for: Probe| {
        asked.contains(&Question { from: from.map(str::to_owned), asked: asked_for })
    };
    assert!(has(Some("c2"), Probe::Echo { to: address("10.88.0.1") }));
    assert!(has(Some("c2"), Probe::Connect { to: "198.51.100.1:80".parse().unwrap() }));
    assert!(has(None, Probe::Connect { to: "198.51.100.1:80".parse().unwrap() }));
    assert!(has(None, Probe::Echo { to: address("192.0.2.1") }));
    assert!(has(None, Probe::Connect { to: "192.0.2.2:8080".parse().unwrap() }));
    assert!(has(None, Probe::Connect { to: "127.0.0.1:8080".parse().unwrap() }));
    assert!(!asked.iter().any(|one| one.from.as_deref() == Some("c3")));
}

/// A repair restores what CHECK names, and nothing else.
#[test]
fn a_repair_is_named_only_where_something_differs() {
    let mut scene = node();
    let question =
        |to: &str| Question { from: None, asked: Probe::Connect { to: to.parse().unwrap() } };
    let silent = || Answer::Silent { hops: Vec::new() };
    let help = |scene: &Scene| {
        let all = vec![(question("10.88.0.2:80"), silent())];
        let found = found_with(scene, all);
        let one = found.iter().find(|one| one.id == "container-silent").unwrap();
        (one.fix.clone(), one.advice.len())
    };
    assert_eq!(help(&scene), (Vec::new(), 1));
    scene.containers[0].attachments[0].not_checked = Some("its plugin is gone".to_owned());
    assert_eq!(help(&scene), (vec!["netwright repair c2".to_owned()], 0));
    // Docker's are compared by a service alone, which is not enabled here.
    scene.containers[0].attachments[0].dockers = true;
    let (fix, advice) = help(&scene);
    assert!(
        advice == 0 && fix.last().is_some_and(|last| last == "netwright agent reload"),
        "{fix:?}"
    );
}
