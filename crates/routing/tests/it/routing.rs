//! A node from its start to its removal.

use std::net::IpAddr;

use netwright_routing::PerFamily;
use netwright_routing::cluster::{Event, NodeRecord};
use netwright_routing::kubernetes;
use netwright_routing::mtu::IPV6_LEAST;
use netwright_routing::object::{Key, METRIC, Nexthop, Numbers, Tunnel, TunnelKind, Value};
use netwright_routing::path::{BackendId, Hop, Path, Way};
use netwright_routing::plan::ForeignRoute;
use netwright_routing::routing::{Answer, LeaveMode, Phase, Probe};
use netwright_routing::settings::{ExistingTunnel, NodeFacts, Paths, PodMtu, Uplink};
use netwright_routing::show::PeerState;
use netwright_routing::{IpFamily, Node, OwnNode, Routing, Settings};

use crate::kernel::{End, Kernel};
use crate::support::{
    Machine, NOW, at, by_gateway, flannel_fields, flannel_settings, found, ip, net, node, on_link,
    own, seen, settings, v4_node,
};

const YES: Probe =
    Probe { path: Answer::Yes, underlay: Answer::Yes, rtt_us: Some(300), mtu: None, udp: None };
const DEAD_TUNNEL: Probe =
    Probe { path: Answer::No, underlay: Answer::Yes, rtt_us: None, mtu: None, udp: None };
const DOWN: Probe =
    Probe { path: Answer::No, underlay: Answer::No, rtt_us: None, mtu: None, udp: None };

#[test]
fn a_node_goes_through_its_phases() {
    let mut routing = Routing::new(settings(), "a");
    assert_eq!(routing.phase(), Phase::Waiting("nothing is known of this node yet".to_owned()));
    let mut without = own(&settings());
    without.node.prefixes.clear();
    assert_eq!(routing.own(without, NOW).changes, []);
    assert_eq!(routing.phase(), Phase::Waiting("this node has no prefix yet".to_owned()));
    assert_eq!(routing.waits_for(), Some("this node has no prefix yet"));
    assert_eq!(routing.condition(NOW), None);

    let mut machine = Machine::start(settings(), |_| on_link());
    assert_eq!(machine.routing.phase(), Phase::Restoring);
    assert_eq!(machine.routing.waits_for(), None);
    machine.list(&[node("b", 2)]);
    assert_eq!(machine.routing.phase(), Phase::Ready);
    machine.kernel.remove_link("nw-vxlan4");
    let todo = machine.routing.link_gone("nw-vxlan4");
    assert_eq!(machine.routing.phase(), Phase::Syncing);
    machine.carry_out(todo);
    machine.event(Event::Silent);
    assert_eq!(machine.routing.phase(), Phase::Degraded(NOW));
    machine.list(&[node("b", 2)]);
    assert_eq!(machine.routing.phase(), Phase::Ready);
}

#[test]
fn a_node_without_peers_is_available_and_one_whose_peers_are_cut_off_is_not() {
    let mut machine = Machine::start(settings(), |_| on_link());
    assert_eq!(machine.routing.condition(NOW), None, "who is there is not known yet");
    machine.list(&[]);
    assert!(!machine.routing.condition(NOW).unwrap().unavailable);
    machine.list(&[node("b", 2), node("c", 3)]);
    assert_eq!(machine.routing.condition(NOW), None, "no node has answered yet");
    machine.routing.probed("b", IpFamily::V4, DOWN, NOW);
    assert_eq!(machine.routing.condition(at(40)), None, "a peer that is down is no fault of ours");
    machine.routing.probed("b", IpFamily::V4, YES, at(50));
    assert!(!machine.routing.condition(at(50)).unwrap().unavailable);
    for peer in ["b", "c"] {
        machine.routing.probed(peer, IpFamily::V4, DEAD_TUNNEL, at(60));
    }
    assert_eq!(machine.routing.due(), Some(at(90)));
    assert_eq!(machine.routing.condition(at(89)), None);
    let condition = machine.routing.condition(at(90)).unwrap();
    assert!(condition.unavailable, "{condition:?}");
    machine.routing.probed("c", IpFamily::V4, YES, at(95));
    assert!(!machine.routing.condition(at(95)).unwrap().unavailable);
    assert_eq!(machine.routing.due(), None);
}

#[test]
fn this_nodes_own_objects_that_cannot_be_made_make_it_unavailable() {
    let mut machine = Machine::start(settings(), |_| on_link());
    machine.list(&[]);
    machine.kernel.remove_link("nw-vxlan4");
    let todo = machine.routing.link_gone("nw-vxlan4");
    machine.routing.failed(&todo.changes[0], "operation not supported", NOW);
    let condition = machine.routing.condition(NOW).unwrap();
    assert!(condition.unavailable);
    assert!(condition.message.ends_with("operation not supported"), "{condition:?}");
}

/// A VXLAN tunnel with VNI 1.
fn vxlan(port: u16) -> TunnelKind {
    let numbers = Numbers { id: Some(1), port: Some(port) };
    TunnelKind { backend: BackendId::Vxlan, numbers, learning: false }
}

/// The kernel as flanneld leaves it, with two peers: b, by the tunnel, and c, which no longer
/// exists.
fn flannels_kernel() -> Kernel {
    let mut kernel = Kernel::default();
    for (link, local, mtu, family) in
        [("flannel.1", "192.0.2.1", 1450, 4_u8), ("flannel-v6.1", "2001:db8::1", 1450, 6)]
    {
        let tunnel = Tunnel {
            kind: vxlan(8472),
            local: ip(local),
            underlay: "eth0".into(),
            mac: Some(netwright_routing::MacAddr([2, 0, 0, 0, family, 1])),
            mtu,
            up: true,
            altered: false,
        };
        kernel.objects.insert(Key::Tunnel { link: link.into() }, Value::Tunnel(Box::new(tunnel)));
    }
    let boot = |link: &str, gateway: &str, metric| ForeignRoute {
        metric,
        protocol: 3,
        link: Some(link.into()),
        gateway: Some(ip(gateway)),
    };
    for n in [2_u8, 3] {
        for (link, address, mac, to, prefix, metric) in [
            (
                "flannel.1",
                format!("10.244.{n}.0"),
                4,
                format!("192.0.2.{n}"),
                format!("10.244.{n}.0/24"),
                0,
            ),
            (
                "flannel-v6.1",
                format!("fd00:244:0:{n}::"),
                6,
                format!("2001:db8::{n}"),
                format!("fd00:244:0:{n}::/64"),
                1024,
            ),
        ] {
            let mac = netwright_routing::MacAddr([2, 0, 0, 0, mac, n]);
            let neighbour = Key::Neighbour { link: link.into(), address: ip(&address) };
            kernel.objects.insert(neighbour, Value::Neighbour { mac });
            kernel.objects.insert(Key::Fdb { link: link.into(), mac }, Value::Fdb { to: ip(&to) });
            kernel.foreign.push((net(&prefix), boot(link, &address, metric)));
        }
    }
    for (link, address) in [("flannel.1", "10.244.1.0"), ("flannel-v6.1", "fd00:244:0:1::")] {
        kernel
            .objects
            .insert(Key::Address { link: link.into(), address: ip(address) }, Value::There);
    }
    kernel
}

/// This node, in flanneld's place.
fn own_taken_over(settings: &Settings) -> OwnNode {
    let taken = |name: &str, family| {
        let mac = netwright_routing::MacAddr([2, 0, 0, 0, family, 1]);
        Some(ExistingTunnel { name: name.into(), mac: Some(mac) })
    };
    let taken_over = PerFamily { v4: taken("flannel.1", 4), v6: taken("flannel-v6.1", 6) };
    OwnNode::new(settings, NodeFacts { taken_over, ..found() })
}

#[test]
fn flannels_objects_are_taken_over_and_nothing_is_lost() {
    let settings = flannel_settings();
    let mut kernel = flannels_kernel();
    let mut routing = Routing::new(settings.clone(), "a");
    let mut log = String::new();
    let mut carry_out = |routing: &mut Routing, todo: netwright_routing::Todo| {
        let mut todo = todo;
        loop {
            for change in &todo.changes {
                kernel.apply(change).unwrap_or_else(|error| panic!("{change}: {error}"));
                routing.done(change);
                log.push_str(&format!("{change}\n"));
                // By flanneld's route or ours, packets to b always arrive.
                for prefix in ["10.244.2.0/24", "fd00:244:0:2::/64"].map(net) {
                    let flannels = kernel.foreign.iter().any(|(to, _)| *to == prefix);
                    assert!(flannels || kernel.end(prefix).is_some(), "after {change}");
                }
            }
            if todo.look_up.is_empty() {
                break;
            }
            todo = routing.ways(todo.look_up.iter().map(|address| (*address, by_gateway())));
        }
    };
    let observed = flannels_kernel().observed();
    let todo = routing.look(observed);
    carry_out(&mut routing, todo);
    let todo = routing.own(own_taken_over(&settings), NOW);
    carry_out(&mut routing, todo);
    let b = kubernetes::read(&flannel_fields("b", 2), &settings);
    let todo = routing.event(Event::Listed(vec![b]), NOW);
    carry_out(&mut routing, todo);
    expect_test::expect![[r#"
        create element 10.244.0.0/16 of cluster4
        create element fd00:244::/48 of cluster6
        create element 10.244.1.0/24 of local4
        create element fd00:244:0:1::/64 of local6
        create element eth0 of underlay
        create unreachable route 10.244.0.0/16 proto 78
        create unreachable route 10.244.1.0/24 proto 79
        create unreachable route fd00:244::/48 proto 78
        create unreachable route fd00:244:0:1::/64 proto 79
        replace tunnel flannel-v6.1: VNI 1, port 8472, local 2001:db8::1 dev eth0, 02:00:00:00:06:01, mtu 1430
        create element 192.0.2.2/32 of nodes4
        create element 2001:db8::2/128 of nodes6
        create neighbour fe80::ff:fe00:602 of flannel-v6.1 is 02:00:00:00:06:02
        create nexthop 0x4e185a04 via 10.244.2.0 dev flannel.1 onlink
        create nexthop 0x4e185a05 via fe80::ff:fe00:602 dev flannel-v6.1 onlink
        create route 10.244.2.0/24 by nexthop 0x4e185a04
        create route fd00:244:0:2::/64 by nexthop 0x4e185a05
        remove flanneld's route 10.244.2.0/24 proto 3 via 10.244.2.0 dev flannel.1 metric 0
        remove flanneld's route 10.244.3.0/24 proto 3 via 10.244.3.0 dev flannel.1 metric 0
        remove flanneld's route fd00:244:0:2::/64 proto 3 via fd00:244:0:2:: dev flannel-v6.1 metric 1024
        remove flanneld's route fd00:244:0:3::/64 proto 3 via fd00:244:0:3:: dev flannel-v6.1 metric 1024
        remove neighbour 10.244.3.0 of flannel.1
        remove neighbour fd00:244:0:3:: of flannel-v6.1
        remove neighbour fd00:244:0:2:: of flannel-v6.1
        remove FDB entry 02:00:00:00:04:03 of flannel.1
        remove FDB entry 02:00:00:00:06:03 of flannel-v6.1
    "#]].assert_eq(&log);
    assert_eq!(kernel.foreign, []);
    let wanted: Vec<_> = routing.wanted().iter().collect();
    assert_eq!(wanted, kernel.objects.iter().collect::<Vec<_>>());

    // The way back: flanneld's routes exist beside ours, which are then removed; its tunnels stay.
    for change in routing.leave(LeaveMode::ToFlannel) {
        kernel.apply(&change).unwrap_or_else(|error| panic!("{change}: {error}"));
    }
    let kinds: std::collections::BTreeSet<String> = kernel
        .objects
        .keys()
        .map(|key| key.to_string().split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["FDB", "address", "neighbour", "tunnel"]);
}

/// A node that is refused is named when flanneld's route to it goes, and a route to a prefix of no
/// node is.
#[test]
fn what_a_take_over_cuts_off_is_named() {
    let settings = flannel_settings();
    let mut routing = Routing::new(settings.clone(), "a");
    routing.look(flannels_kernel().observed());
    routing.own(own_taken_over(&settings), NOW);
    let mut c = flannel_fields("c", 3);
    // It says that it has this node's address.
    c.addresses.push("192.0.2.1".to_owned());
    let key = "flannel.alpha.coreos.com/public-ip";
    c.annotations.insert(key.to_owned(), "192.0.2.1".to_owned());
    let nodes = [flannel_fields("b", 2), c];
    let seen = nodes.iter().map(|fields| kubernetes::read(fields, &settings)).collect();
    let todo = routing.event(Event::Listed(seen), NOW);
    let told = |routing: &Routing, todo: &netwright_routing::Todo| -> Vec<String> {
        let news = todo.changes.iter().filter_map(|change| routing.cut_off_by(change));
        news.map(|news| news.text).collect()
    };
    let todo = routing.ways(todo.look_up.iter().map(|address| (*address, by_gateway())));
    let said = told(&routing, &todo);
    let routes = [
        "10.244.3.0/24 proto 3 via 10.244.3.0 dev flannel.1 metric 0",
        "fd00:244:0:3::/64 proto 3 via fd00:244:0:3:: dev flannel-v6.1 metric 1024",
    ];
    assert_eq!(said.len(), 2, "{said:#?}");
    for (said, route) in said.iter().zip(routes) {
        let begin = format!(
            "node c: flanneld's route {route} goes, and none of ours takes its place: refused: {key}: "
        );
        assert!(said.starts_with(&begin), "{said}");
    }
    routing.event(Event::Deleted("c".to_owned()), NOW);
    let todo = routing.look(flannels_kernel().observed());
    let said = told(&routing, &todo);
    let ours = routes.map(|route| {
        format!(
            "flanneld's route {route} goes, and none of ours takes its place: no node that is used \
             has the prefix"
        )
    });
    assert_eq!(said, ours);
}

#[test]
fn before_the_first_list_nothing_of_unknown_peers_goes() {
    let settings = flannel_settings();
    let mut routing = Routing::new(settings.clone(), "a");
    routing.look(flannels_kernel().observed());
    let todo = routing.own(own_taken_over(&settings), NOW);
    let removals = |todo: &netwright_routing::Todo| {
        todo.changes.iter().filter(|change| change.to_string().starts_with("remove")).count()
    };
    assert_eq!(removals(&todo), 0);
    assert_eq!(removals(&routing.look(flannels_kernel().observed())), 0);
}

#[test]
fn leaving_leaves_nothing() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[node("b", 2), node("c", 3)]);
    for change in machine.routing.leave(LeaveMode::Clean) {
        machine.kernel.apply(&change).unwrap_or_else(|error| panic!("{change}: {error}"));
    }
    assert_eq!(machine.kernel, Kernel::default());
}

#[test]
fn a_daemon_that_starts_again_changes_nothing() {
    let mut first = Machine::start(settings(), |_| by_gateway());
    let nodes: Vec<Node> = (2..40).map(|n| node(&format!("n{n}"), n)).collect();
    first.list(&nodes);
    // Nexthops keep their numbers, even if other peers come first and the document is missing.
    let mut second = Machine::start_with(settings(), |_| by_gateway(), first.kernel.clone());
    second.event(Event::Changed(NodeRecord::whole(nodes[30].clone())));
    second.list(&nodes);
    assert_eq!(second.take_log(), "");
    second.assert_right();
}

#[test]
fn a_number_that_somebody_elses_nexthop_has_is_not_taken() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[v4_node("b", 2)]);
    let number = |machine: &Machine| {
        let keys = machine.routing.wanted().keys_of("b");
        keys.iter()
            .find_map(|key| if let Key::Nexthop { id } = key { Some(*id) } else { None })
            .unwrap()
    };
    let usual = number(&machine);
    let mut other = Machine::start(settings(), |_| by_gateway());
    let mut observed = other.kernel.observed();
    observed.foreign_nexthops.insert(usual);
    other.routing.look(observed);
    other.list(&[v4_node("b", 2)]);
    assert_eq!(number(&other), usual + 1);
}

fn route(protocol: u8, metric: u32) -> ForeignRoute {
    ForeignRoute { metric, protocol, link: Some("eth0".into()), gateway: Some(ip("192.0.2.254")) }
}

#[test]
fn a_routing_daemons_route_is_taken_as_it_is() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[v4_node("b", 2)]);
    let prefix = net("10.244.2.0/24");
    let todo = machine.routing.foreign(prefix, vec![route(12, 32)]);
    assert!(todo.news.is_empty(), "{:?}", todo.news);
    machine.carry_out(todo);
    assert_eq!(machine.kernel.end(prefix), None, "the way is BIRD's alone");
    assert_eq!(machine.routing.table().rows[0].path, Path::Learned);
    machine.assert_right();
    let todo = machine.routing.foreign(prefix, Vec::new());
    machine.carry_out(todo);
    assert!(machine.kernel.end(prefix).is_some());
}

#[test]
fn a_route_of_somebody_else_is_a_conflict_and_stays() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[v4_node("b", 2)]);
    let prefix = net("10.244.2.0/24");
    let todo = machine.routing.foreign(prefix, vec![route(4, 0)]);
    // Packets of its pods come by the link of that route, too.
    let changes: Vec<String> = todo.changes.iter().map(ToString::to_string).collect();
    assert_eq!(changes, ["create element 10.244.2.0/24 of routed4"]);
    assert_eq!(
        todo.news[0].text,
        "node b: another program's route is in the way and stays: 10.244.2.0/24 proto 4 via \
         192.0.2.254 dev eth0 metric 0"
    );
    let state = machine.routing.table().rows[0].state.clone();
    assert!(matches!(state, PeerState::Conflict(_)), "{state:?}");
    assert_eq!(machine.routing.foreign(prefix, vec![route(4, 0)]).news, [], "it is told once");
    // A peer that loses a conflict does not block others.
    let todo = machine.routing.foreign(prefix, vec![route(4, METRIC + 1)]);
    assert_eq!(todo.news, []);
    assert_eq!(machine.routing.table().rows[0].state, PeerState::Programmed);
}

#[test]
fn a_way_that_nobody_needed_for_a_while_is_looked_up_anew() {
    let missing_v6 = |address: IpAddr| if address.is_ipv6() { Way::Missing } else { by_gateway() };
    let mut machine = Machine::start(settings(), missing_v6);
    let (with, without) = (node("b", 2), {
        let mut node = node("b", 2);
        node.underlay.v6 = None;
        node
    });
    // The tunnel is over IPv4, because both nodes have lost IPv6 for a moment.
    machine.list(std::slice::from_ref(&with));
    machine.list(&[without]);
    // This node's route is back before the other node's address is.
    machine.way = |_| by_gateway();
    machine.look();
    machine.list(std::slice::from_ref(&with));
    let mac = with.offers.vxlan.unwrap().mac6.unwrap();
    assert_eq!(machine.kernel.end(with.prefixes[1]), Some(End::Tunnel(ip("2001:db8::2"), mac)));
}

#[test]
fn ipv6_goes_over_ipv4_where_the_underlay_has_no_ipv6() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    let mut peer = node("b", 2);
    peer.underlay.v6 = None;
    peer.offers.vxlan.as_mut().unwrap().mac6 = None;
    machine.list(&[peer.clone()]);
    let mac = peer.offers.vxlan.unwrap().mac4.unwrap();
    for prefix in &peer.prefixes {
        assert_eq!(machine.kernel.end(*prefix), Some(End::Tunnel(ip("192.0.2.2"), mac)));
    }
    assert_eq!(machine.routing.pod_mtu(), Some(1450));
    assert_eq!(machine.messages, 8 + 7, "this node's own, and one FDB entry that serves both");
}

#[test]
fn native_paths_need_nothing_and_nothing_stands_before_them() {
    let native = Settings { paths: Paths::Native, ..settings() };
    let mut machine = Machine::start(native, |_| by_gateway());
    machine.list(&[node("b", 2)]);
    let shown: Vec<String> = machine.kernel.objects.keys().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "element 10.244.0.0/16 of cluster4",
            "element fd00:244::/48 of cluster6",
            "element 192.0.2.2/32 of nodes4",
            "element 2001:db8::2/128 of nodes6",
            "element 10.244.1.0/24 of local4",
            "element fd00:244:0:1::/64 of local6",
            "element 10.244.2.0/24 of plain4",
            "element fd00:244:0:2::/64 of plain6",
            "element 10.244.0.0/16 of routed4",
            "element fd00:244::/48 of routed6",
            "element eth0 of underlay",
            "unreachable route 10.244.1.0/24",
            "unreachable route fd00:244:0:1::/64",
        ]
    );
    // A native peer of a node that also has other paths: no route of ours precedes the network's
    // for it either.
    let mut machine = Machine::start(settings(), |_| by_gateway());
    let range = Key::Unreachable { prefix: net("10.244.0.0/16") };
    machine.list(&[node("b", 2)]);
    assert!(machine.kernel.objects.contains_key(&range));
    let mut peer = node("c", 3);
    peer.offers = netwright_routing::node::Offers { native: true, ..Default::default() };
    machine.list(&[node("b", 2), peer]);
    assert!(!machine.kernel.objects.contains_key(&range));
    machine.list(&[node("b", 2)]);
    assert!(machine.kernel.objects.contains_key(&range));
}

#[test]
fn the_mtu_is_that_of_the_narrowest_path() {
    let pod_mtu = |settings: Settings, way: fn(std::net::IpAddr) -> Way, nodes: &[Node]| {
        let mut machine = Machine::start(settings, way);
        machine.list(nodes);
        machine.routing.pod_mtu().unwrap()
    };
    let narrow = Node { mtu: Some(1400), ..v4_node("b", 2) };
    let tiny = Node { mtu: Some(576), ..v4_node("b", 2) };
    let of_file = Settings { source: netwright_routing::settings::Source::File, ..settings() };
    let jumbo: fn(std::net::IpAddr) -> Way =
        |_| Way::OnLink(Hop { link: "eth0".into(), mtu: 9000, learnt_mtu: None });
    let slow: fn(std::net::IpAddr) -> Way =
        |_| Way::ByGateway(Hop { link: "eth1".into(), mtu: 1400, learnt_mtu: None });
    let told: fn(std::net::IpAddr) -> Way =
        |_| Way::ByGateway(Hop { link: "eth0".into(), mtu: 1500, learnt_mtu: Some(552) });
    let with = |pod_mtu| Settings { pod_mtu, ..settings() };
    for (expected, settings, way, nodes, why) in [
        (1430, settings(), (|_| on_link()) as fn(_) -> _, vec![], "no peer: what is offered"),
        (1500, settings(), |_| on_link(), vec![node("b", 2)], "all direct"),
        (1450, settings(), |_| by_gateway(), vec![v4_node("b", 2)], "a tunnel over IPv4"),
        (1430, settings(), |_| by_gateway(), vec![node("b", 2)], "one over IPv6"),
        (1350, settings(), |_| by_gateway(), vec![narrow.clone()], "the peer's side is narrower"),
        (1350, settings(), slow, vec![v4_node("b", 2)], "the link that packets take"),
        (
            1450,
            settings(),
            told,
            vec![v4_node("b", 2)],
            "an error that anybody sends decides nothing",
        ),
        (1400, settings(), |_| on_link(), vec![narrow.clone()], "also without a tunnel"),
        (
            1280,
            settings(),
            |_| on_link(),
            vec![tiny.clone()],
            "one node does not take IPv6 from all",
        ),
        (1280, settings(), |_| by_gateway(), vec![tiny.clone()], "nor behind a tunnel"),
        (526, of_file, |_| by_gateway(), vec![tiny], "a person has written the list"),
        (1500, settings(), jumbo, vec![node("b", 2)], "what the peer says counts"),
        (1500, with(PodMtu::Underlay), |_| by_gateway(), vec![narrow.clone()], "the underlay's"),
        (1234, with(PodMtu::Fixed(1234)), |_| by_gateway(), vec![narrow], "as configured"),
        (
            1250,
            Settings { underlay_mtu: Some(1300), ..settings() },
            |_| by_gateway(),
            vec![v4_node("b", 2)],
            "a person knows better",
        ),
    ] {
        assert_eq!(pod_mtu(settings, way, &nodes), expected, "{why}");
    }
    let narrow = Settings { underlay_mtu: Some(1300), ..settings() };
    let mut machine = Machine::start(narrow, |_| by_gateway());
    machine.list(&[node("b", 2)]);
    let warnings = machine.routing.table().warnings;
    assert_eq!(
        warnings,
        [format!(
            "the MTU of pods is 1230, and IPv6 needs {IPV6_LEAST}: pods get no IPv6 addresses"
        )]
    );
}

#[test]
fn a_narrower_peer_is_told_by_the_route() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[Node { mtu: Some(1400), ..v4_node("b", 2) }]);
    let route = &machine.kernel.objects[&Key::Route { prefix: net("10.244.2.0/24") }];
    let Value::Route { mtu, .. } = route else { panic!("{route:?}") };
    assert_eq!(*mtu, Some(1350));
}

/// What the kernel has learnt on the way is told by the route, and takes IPv6 from nobody.
#[test]
fn what_the_kernel_has_learnt_of_a_way_is_told_by_the_route() {
    for (learnt, expected) in [(1400, 1330), (552, 1280)] {
        let mut machine = Machine::start(settings(), |_| by_gateway());
        machine.list(&[node("b", 2)]);
        let address: IpAddr = "2001:db8::2".parse().unwrap();
        let hop = Hop { link: "eth0".into(), mtu: 1500, learnt_mtu: Some(learnt) };
        let todo = machine.routing.ways([(address, Way::ByGateway(hop))]);
        machine.carry_out(todo);
        let route = &machine.kernel.objects[&Key::Route { prefix: net("fd00:244:0:2::/64") }];
        let Value::Route { mtu, .. } = route else { panic!("{route:?}") };
        assert_eq!((*mtu, machine.routing.pod_mtu()), (Some(expected), Some(1430)));
    }
}

#[test]
fn a_new_prefix_of_this_node_stands_beside_the_old() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[node("b", 2)]);
    let mut renumbered = own(&settings());
    renumbered.node.prefixes = vec![net("10.244.7.0/24")];
    renumbered.node.kept = vec![net("10.244.1.0/24")];
    machine.take_log();
    let todo = machine.routing.own(renumbered, at(60));
    assert!(todo.document_changed);
    machine.carry_out(todo);
    machine.assert_right();
    for prefix in ["10.244.7.0/24", "10.244.1.0/24"] {
        let key = Key::Unreachable { prefix: net(prefix) };
        assert_eq!(machine.kernel.objects[&key], Value::Unreachable { protocol: 79 }, "{prefix}");
    }
    let log = machine.take_log();
    assert!(!log.contains("route 10.244.2.0/24"), "peers are not touched: {log}");
}

#[test]
fn an_address_of_this_node_changes_without_a_new_tunnel() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[node("b", 2)]);
    machine.take_log();
    let mut moved = own(&settings());
    moved.node.underlay.v4 = Some("192.0.2.77".parse().unwrap());
    let todo = machine.routing.own(moved, at(60));
    machine.carry_out(todo);
    let log = machine.take_log();
    assert!(
        log.starts_with("replace tunnel nw-vxlan4: VNI 1, port 8472, local 192.0.2.77"),
        "{log}"
    );
    assert_eq!(log.lines().count(), 1, "{log}");
    machine.assert_right();
}

/// This node's IPv4 address vanishes before the next one is known, and its IPv6 address stays.
#[test]
fn a_tunnel_stays_while_its_address_is_away() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[node("b", 2)]);
    machine.take_log();
    let todo = machine.routing.own(with_v4(None), at(60));
    machine.carry_out(todo);
    let log = machine.take_log();
    assert!(!log.contains("tunnel nw-vxlan4"), "{log}");
    let end = machine.kernel.end(net("10.244.2.0/24")).unwrap();
    assert!(matches!(end, End::Tunnel(to, _) if to == ip("2001:db8::2")), "{end:?}");
    machine.look();
    machine.assert_right();
    let todo = machine.routing.own(with_v4(Some("192.0.2.77")), at(70));
    machine.carry_out(todo);
    let log = machine.take_log();
    assert!(log.contains("replace tunnel nw-vxlan4: VNI 1, port 8472, local 192.0.2.77"), "{log}");
    assert!(!log.contains("create tunnel") && !log.contains("remove tunnel"), "{log}");
    let end = machine.kernel.end(net("10.244.2.0/24")).unwrap();
    assert!(matches!(end, End::Tunnel(to, _) if to == ip("192.0.2.2")), "{end:?}");
    machine.assert_right();
    // A tunnel that was deleted meanwhile is not made again without an address.
    let todo = machine.routing.own(with_v4(None), at(80));
    machine.carry_out(todo);
    machine.kernel.remove_link("nw-vxlan4");
    machine.take_log();
    machine.look();
    assert_eq!(machine.take_log(), "");
    machine.assert_right();
}

/// This node, with or without an IPv4 address beside its IPv6 address.
fn with_v4(v4: Option<&str>) -> OwnNode {
    let uplink = |address: &str| (Uplink { name: "eth0".into(), mtu: 1500 }, ip(address));
    let uplinks = PerFamily { v4: v4.map(uplink), v6: Some(uplink("2001:db8::1")) };
    OwnNode::new(&settings(), NodeFacts { uplinks, ..found() })
}

/// A service that starts while the address is away finds the tunnel without knowing it.
#[test]
fn a_tunnel_without_its_address_stays_over_a_start() {
    let mut before = Machine::start(settings(), |_| by_gateway());
    before.list(&[node("b", 2)]);
    before.take_log();
    let mut machine = Machine { routing: Routing::new(settings(), "a"), ..before };
    let _ = machine.routing.own(with_v4(None), NOW);
    machine.look();
    machine.list(&[node("b", 2)]);
    machine.assert_right();
    let log = machine.take_log();
    assert!(!log.contains("tunnel nw-vxlan4"), "{log}");
    assert!(log.contains("of nw-vxlan4"), "nothing goes by it: {log}");
    let todo = machine.routing.own(with_v4(Some("192.0.2.77")), at(70));
    machine.carry_out(todo);
    let log = machine.take_log();
    assert!(log.contains("replace tunnel nw-vxlan4: VNI 1, port 8472, local 192.0.2.77"), "{log}");
    assert!(!log.contains("create tunnel") && !log.contains("remove tunnel"), "{log}");
    machine.assert_right();
    // A tunnel of an earlier configuration is removed.
    let key = Key::Tunnel { link: "nw-vxlan4".into() };
    let Some(Value::Tunnel(tunnel)) = machine.kernel.objects.get_mut(&key) else {
        panic!("there is a tunnel");
    };
    tunnel.kind = vxlan(4789);
    machine.routing = Routing::new(settings(), "a");
    let _ = machine.routing.own(with_v4(None), NOW);
    machine.look();
    machine.list(&[node("b", 2)]);
    assert!(machine.take_log().contains("remove tunnel nw-vxlan4"));
    machine.assert_right();
}

#[test]
fn another_port_needs_a_new_tunnel_and_everything_on_it() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[node("b", 2)]);
    let key = Key::Tunnel { link: "nw-vxlan4".into() };
    let Some(Value::Tunnel(tunnel)) = machine.kernel.objects.get_mut(&key) else {
        panic!("there is a tunnel");
    };
    tunnel.kind = vxlan(4789);
    machine.look();
    machine.assert_right();
}

#[test]
fn what_waits_for_an_answer_about_the_way_is_not_made_twice() {
    let mut machine = Machine::start(settings(), |_| on_link());
    let todo = machine.routing.event(Event::Listed(seen(&[v4_node("b", 2)])), NOW);
    assert_eq!(todo.look_up, [ip("192.0.2.2")]);
    assert_eq!(todo.changes, []);
    assert_eq!(machine.routing.phase(), Phase::Syncing);
    assert_eq!(machine.routing.explain(ip("10.244.2.7")).path, None);
    machine.carry_out(todo);
    let nexthop =
        Value::Nexthop(Nexthop { link: "eth0".into(), gateway: ip("192.0.2.2"), onlink: true });
    assert!(machine.kernel.objects.values().any(|value| *value == nexthop));
    assert_eq!(machine.routing.phase(), Phase::Ready);
}

#[test]
fn a_range_that_overlaps_stops_everything_and_removes_nothing() {
    let mut machine = Machine::start(settings(), |_| on_link());
    machine.list(&[node("b", 2)]);
    machine.routing.wait("pod range 10.244.0.0/16 overlaps eth0's 10.244.0.7/23");
    let todo = machine.routing.event(Event::Deleted("b".to_owned()), NOW);
    assert_eq!(todo.changes, []);
    assert!(machine.kernel.end(net("10.244.2.0/24")).is_some());
    let todo = machine.routing.own(own(&settings()), at(60));
    machine.carry_out(todo);
    assert_eq!(machine.kernel.end(net("10.244.2.0/24")), None, "who went meanwhile goes now");
    machine.assert_right();
}

#[test]
fn plugins_are_told_what_pods_get() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[node("b", 2)]);
    assert_eq!(
        machine.routing.subnet_env().unwrap().write(),
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
         FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n\
         FLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n"
    );
    assert_eq!(Routing::new(settings(), "a").subnet_env(), None);
}

#[test]
fn what_can_be_probed_is_told() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    let mut direct = v4_node("c", 3);
    direct.offers.vxlan = None;
    machine.list(&[node("b", 2), direct]);
    let targets: Vec<String> = machine
        .routing
        .targets()
        .map(|target| {
            format!("{} {} {} {:?}", target.peer, target.path, target.underlay, target.mtu)
        })
        .collect();
    assert_eq!(
        targets,
        ["b 10.244.2.0 192.0.2.2 Some(1450)", "b fd00:244:0:2:: 2001:db8::2 Some(1430)",],
        "node c is behind a router and has no tunnel: it has no path"
    );
    // If the network between the nodes routes, the gateway of the other node's pods is probed.
    let of_network = Settings { paths: Paths::Native, ..settings() };
    let mut machine = Machine::start(of_network, |_| on_link());
    let mut native = node("b", 2);
    native.offers = netwright_routing::node::Offers { native: true, ..Default::default() };
    machine.list(&[native]);
    let paths: Vec<String> =
        machine.routing.targets().map(|target| target.path.to_string()).collect();
    assert_eq!(paths, ["10.244.2.1", "fd00:244:0:2::1"]);
    machine.routing.probed("b", IpFamily::V4, DEAD_TUNNEL, at(60));
    let warnings = machine.routing.table().warnings;
    assert!(warnings.iter().any(|said| said.contains("does the network have")), "{warnings:?}");
    assert_eq!(machine.routing.condition(at(100)), None, "questions alone may be dropped");
    machine.routing.probed("b", IpFamily::V4, YES, at(110));
    assert!(!machine.routing.condition(at(110)).unwrap().unavailable);
    assert_eq!(machine.routing.table().warnings, Vec::<String>::new());
}
