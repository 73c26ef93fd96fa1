//! Plans from the present to the wanted state are complete, have an order that loses no packet, and
//! cost little for one peer.

use std::collections::BTreeSet;

use netwright_routing::Node;
use netwright_routing::cluster::{Event, NodeRecord};
use netwright_routing::path::Way;
use netwright_routing::plan::{difference, difference_of};
use proptest::prelude::*;

use crate::kernel::{End, Kernel};
use crate::support::{Machine, at, by_gateway, cases, ip, net, node, on_link, settings};

/// Peers 2 to 5 are on the segment, the others behind a router.
fn way(address: std::net::IpAddr) -> Way {
    let near = (2..6).any(|n| {
        address == ip(&format!("192.0.2.{n}")) || address == ip(&format!("2001:db8::{n:x}"))
    });
    if near { on_link() } else { by_gateway() }
}

prop_compose! {
    /// A peer with random properties, which may change completely.
    fn any_peer(n: u16)(
        v4 in 0_u16..3,
        v6 in any::<bool>(),
        mac in 0_u8..2,
        direct in any::<bool>(),
        vxlan in prop::bool::weighted(0.8),
        address in 0_u16..2,
        kept in any::<bool>(),
        mtu in prop_oneof![Just(1500_u32), Just(1400)],
    ) -> Node {
        let mut node = node(&format!("n{n}"), n + 10 * address);
        node.prefixes = vec![net(&format!("10.244.{}.0/24", n + 100 + 20 * v4))];
        if v6 { node.prefixes.push(net(&format!("fd00:244:0:{n:x}::/64"))); }
        if kept { node.kept = vec![net(&format!("10.244.{}.0/24", n + 200))]; }
        node.offers.direct = direct || !vxlan;
        node.mtu = Some(mtu);
        if vxlan && let Some(vxlan) = &mut node.offers.vxlan {
            let mac = |last| Some(netwright_routing::MacAddr([2, 0, 0, mac, u8::try_from(n).unwrap(), last]));
            (vxlan.mac4, vxlan.mac6) = (mac(4), mac(6));
        } else {
            node.offers.vxlan = None;
        }
        node
    }
}

fn any_cluster() -> impl Strategy<Value = Vec<Node>> {
    let peer = |n| proptest::option::weighted(0.8, any_peer(n));
    (peer(2), peer(3), peer(7), peer(8))
        .prop_map(|(a, b, c, d)| [a, b, c, d].into_iter().flatten().collect())
}

/// Where packets to the prefixes of these nodes arrive, if they are sent.
fn ends(kernel: &Kernel, nodes: &[Node]) -> BTreeSet<(ipnet::IpNet, bool)> {
    let prefixes = nodes.iter().flat_map(|node| node.prefixes.iter().chain(&node.kept));
    prefixes.map(|prefix| (*prefix, kernel.end(*prefix).is_some())).collect()
}

proptest! {
    #![proptest_config(cases(150))]

    /// A look goes through both sides once, and finds what a comparison of each key finds.
    #[test]
    fn a_look_compares_everything(before in any_cluster(), after in any_cluster()) {
        let mut machine = Machine::start(settings(), way);
        machine.list(&before);
        let there = machine.routing.observed().clone();
        machine.list(&after);
        let wanted = machine.routing.wanted();
        let all = wanted.iter().map(|(key, _)| key).chain(there.objects().keys()).cloned();
        let by_key = difference_of(&all.collect(), wanted, &there);
        prop_assert_eq!(difference(wanted, &there), by_key);
    }

    #[test]
    fn the_plan_leads_from_what_is_there_to_what_is_wanted_and_loses_nothing(
        before in any_cluster(),
        after in any_cluster(),
    ) {
        let mut machine = Machine::start(settings(), way);
        machine.list(&before);
        machine.assert_right();
        let reached = |nodes: &[Node], kernel: &Kernel| -> BTreeSet<ipnet::IpNet> {
            ends(kernel, nodes).into_iter().filter(|(_, goes)| *goes).map(|(prefix, _)| prefix).collect()
        };
        let reached_before = reached(&before, &machine.kernel);
        let mut kernel = machine.kernel.clone();
        machine.list(&after);
        machine.assert_right();
        let stays: BTreeSet<ipnet::IpNet> =
            reached(&after, &machine.kernel).intersection(&reached_before).copied().collect();
        // After every step: a prefix that is reached before and after the plan is reached all the
        // time.
        let mut replayed = Machine::start(settings(), way);
        replayed.list(&before);
        assert_eq!(replayed.kernel, kernel);
        let mut todo = replayed.routing.event(
            Event::Listed(crate::support::seen(&after)), crate::support::NOW,
        );
        loop {
            for change in &todo.changes {
                kernel.apply(change).map_err(|error| TestCaseError::fail(format!("{change}: {error}")))?;
                replayed.routing.done(change);
                for prefix in &stays {
                    prop_assert!(kernel.end(*prefix).is_some(), "{} lost after {}", prefix, change);
                }
            }
            if todo.look_up.is_empty() { break; }
            let ways: Vec<_> = todo.look_up.iter().map(|address| (*address, way(*address))).collect();
            todo = replayed.routing.ways(ways);
        }
        prop_assert_eq!(&kernel, &machine.kernel);
        // Nothing is left to do.
        let todo = replayed.routing.look(kernel.observed());
        prop_assert_eq!(todo.changes, vec![]);
    }
}

#[test]
fn one_peer_is_eight_messages_among_few_and_among_many() {
    for count in [5, 50] {
        let mut machine = Machine::start(settings(), |_| by_gateway());
        let nodes: Vec<Node> = (2..count).map(|n| node(&format!("n{n}"), n)).collect();
        machine.list(&nodes);
        machine.take_log();
        let changed = |machine: &mut Machine, node: Node| {
            machine.event(Event::Changed(NodeRecord::whole(node)));
            let messages = machine.messages;
            machine.take_log();
            messages
        };
        assert_eq!(changed(&mut machine, node("new", 60)), 8, "a new peer");
        let mut other_mac = node("new", 60);
        other_mac.offers.vxlan = node("x", 61).offers.vxlan;
        assert_eq!(
            changed(&mut machine, other_mac),
            8,
            "its MAC addresses: FDB and the IPv6 neighbour anew, the other neighbour, a nexthop"
        );
        let mut other_address = node("new", 60);
        other_address.underlay = node("x", 61).underlay;
        assert_eq!(changed(&mut machine, other_address.clone()), 8, "and back");
        machine.event(Event::Deleted("new".to_owned()));
        assert_eq!(machine.messages, 8, "a peer that is gone");
    }
}

#[test]
fn a_change_of_path_is_one_message_for_each_family_before_the_rest_goes() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[node("b", 2)]);
    let prefixes = node("b", 2).prefixes;
    let [End::Tunnel(..), End::Tunnel(..)] =
        [0, 1].map(|n| machine.kernel.end(prefixes[n]).unwrap())
    else {
        panic!("they go by the tunnel");
    };
    machine.take_log();
    let ways =
        |way: fn() -> Way| node("b", 2).underlay.iter().map(|of| (of, way())).collect::<Vec<_>>();
    let todo = machine.routing.ways(ways(on_link));
    machine.carry_out(todo);
    // The other end may send so by now, and does not expect it yet.
    assert_eq!(
        machine.take_log(),
        "create element 10.244.2.0/24 of plain4\ncreate element fd00:244:0:2::/64 of plain6\n"
    );
    assert!(matches!(machine.kernel.end(prefixes[0]), Some(End::Tunnel(..))));
    let tick = |machine: &mut Machine, seconds| {
        assert!(machine.routing.due().is_some_and(|due| due <= at(seconds)));
        let todo = machine.routing.tick(at(seconds));
        machine.carry_out(todo.clone());
        todo.flush_flows
    };
    assert_eq!(tick(&mut machine, 0), []);
    assert_eq!(machine.routing.due(), Some(at(10)));
    assert_eq!(tick(&mut machine, 10), prefixes);
    let log = machine.take_log();
    expect_test::expect![[r#"
        replace nexthop 0x4e185a04 via 192.0.2.2 dev eth0 onlink
        replace nexthop 0x4e185a05 via 2001:db8::2 dev eth0 onlink
        remove neighbour fe80::14e2:d0ff:fea6:db0d of nw-vxlan6
        remove neighbour 10.244.2.0 of nw-vxlan4
        remove FDB entry 16:e2:d0:a6:db:0d of nw-vxlan6
        remove FDB entry 12:c1:a5:96:3f:91 of nw-vxlan4
    "#]]
    .assert_eq(&log);
    assert_eq!(machine.kernel.end(prefixes[0]), Some(End::Direct(ip("192.0.2.2"))));
    machine.assert_right();
    assert_eq!(machine.routing.due(), None);

    // Back it goes at once, and what comes as before is taken for a while.
    let todo = machine.routing.ways(ways(by_gateway));
    assert_eq!(todo.flush_flows, prefixes);
    machine.carry_out(todo);
    assert!(matches!(machine.kernel.end(prefixes[0]), Some(End::Tunnel(..))));
    machine.take_log();
    tick(&mut machine, 20);
    assert_eq!(machine.take_log(), "");
    tick(&mut machine, 30);
    assert_eq!(
        machine.take_log(),
        "remove element fd00:244:0:2::/64 of plain6\nremove element 10.244.2.0/24 of plain4\n"
    );
    machine.assert_right();
}

/// A change that does not last does not change the path, and one that the peer no longer offers a
/// tunnel for does not wait.
#[test]
fn a_path_that_turns_back_stays_and_one_without_a_tunnel_does_not_wait() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[node("b", 2)]);
    let prefix = node("b", 2).prefixes[0];
    for way in [on_link, by_gateway] {
        let ways: Vec<_> = node("b", 2).underlay.iter().map(|of| (of, way())).collect();
        let todo = machine.routing.ways(ways);
        machine.carry_out(todo);
    }
    for seconds in [0, 10] {
        let todo = machine.routing.tick(at(seconds));
        machine.carry_out(todo);
    }
    assert!(matches!(machine.kernel.end(prefix), Some(End::Tunnel(..))));
    assert_eq!(machine.routing.due(), None);
    let ways: Vec<_> = node("b", 2).underlay.iter().map(|of| (of, on_link())).collect();
    let todo = machine.routing.ways(ways);
    machine.carry_out(todo);
    let mut peer = node("b", 2);
    peer.offers.vxlan = None;
    machine.event(Event::Changed(NodeRecord::whole(peer)));
    assert!(matches!(machine.kernel.end(prefix), Some(End::Direct(..))));
    machine.event(Event::Deleted("b".to_owned()));
    assert_eq!(machine.routing.due(), None);
    machine.assert_right();
}

#[test]
fn the_first_start_makes_everything_in_an_order_that_the_kernel_takes() {
    let mut machine = Machine::start(settings(), |_| by_gateway());
    machine.list(&[node("b", 2)]);
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
        create tunnel nw-vxlan4: VNI 1, port 8472, local 192.0.2.1 dev eth0, 16:41:38:d8:ba:42, mtu 1450
        create tunnel nw-vxlan6: VNI 1, port 8472, local 2001:db8::1 dev eth0, 1e:8d:25:42:b8:eb, mtu 1430
        create address 10.244.1.0 of nw-vxlan4
        create address fd00:244:0:1:: of nw-vxlan6
        create element 192.0.2.2/32 of nodes4
        create element 2001:db8::2/128 of nodes6
        create FDB entry 12:c1:a5:96:3f:91 of nw-vxlan4 to 192.0.2.2
        create FDB entry 16:e2:d0:a6:db:0d of nw-vxlan6 to 2001:db8::2
        create neighbour 10.244.2.0 of nw-vxlan4 is 12:c1:a5:96:3f:91
        create neighbour fe80::14e2:d0ff:fea6:db0d of nw-vxlan6 is 16:e2:d0:a6:db:0d
        create nexthop 0x4e185a04 via 10.244.2.0 dev nw-vxlan4 onlink
        create nexthop 0x4e185a05 via fe80::14e2:d0ff:fea6:db0d dev nw-vxlan6 onlink
        create route 10.244.2.0/24 by nexthop 0x4e185a04
        create route fd00:244:0:2::/64 by nexthop 0x4e185a05
    "#]].assert_eq(&machine.take_log());
    assert_eq!(machine.routing.pod_mtu(), Some(1430), "IPv6's tunnel has the longer header");
}
