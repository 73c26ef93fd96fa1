//! What other programs remove is restored.

use std::collections::BTreeSet;

use netwright_routing::document::Document;
use netwright_routing::object::{Key, Value};
use netwright_routing::plan::{Change, ForeignRoute};
use netwright_routing::routing::Phase;
use netwright_routing::{MacAddr, Node, Settings};

use crate::kernel::Kernel;
use crate::support::{
    Machine, NOW, Random, at, by_gateway, flannel_settings, ip, net, node, on_link, settings,
};

fn way(address: std::net::IpAddr) -> netwright_routing::path::Way {
    let near = [ip("192.0.2.2"), ip("2001:db8::2")].contains(&address);
    if near { on_link() } else { by_gateway() }
}

fn machine() -> Machine {
    machine_with(settings())
}

fn machine_with(settings: Settings) -> Machine {
    let mut machine = Machine::start(settings, way);
    let nodes: Vec<Node> = (2..6).map(|n| node(&format!("n{n}"), n)).collect();
    machine.list(&nodes);
    machine.assert_right();
    machine
}

/// Does one random damage; returns the kernel's events about it.
fn damage(machine: &mut Machine, random: &mut Random) -> Vec<(Key, Option<Value>)> {
    let kernel = &mut machine.kernel;
    let keys: Vec<Key> = kernel.objects.keys().cloned().collect();
    let key = keys[random.below(keys.len())].clone();
    match (random.below(3), &key) {
        (_, Key::Tunnel { link }) => {
            let link = link.to_string();
            match random.below(4) {
                0 => {
                    kernel.remove_link(&link);
                    vec![(key, None)]
                }
                1 => {
                    kernel.set_down(&link);
                    let down = kernel.objects.get(&key).cloned();
                    vec![(key, down)]
                }
                other => {
                    let Some(Value::Tunnel(tunnel)) = kernel.objects.get_mut(&key) else {
                        panic!("it is a tunnel");
                    };
                    if other == 2 {
                        tunnel.mtu = 1280;
                    } else {
                        tunnel.mac = Some(MacAddr([6, 6, 6, 6, 6, 6]));
                        // neigh_changeaddr
                        kernel.objects.retain(|key, _| {
                            !matches!(key, Key::Neighbour { link: on, .. } if **on == *link)
                        });
                    }
                    let value = kernel.objects.get(&key).cloned();
                    vec![(key, value)]
                }
            }
        }
        // With a nexthop its routes are removed, without an event.
        (0 | 1, Key::Nexthop { id }) => {
            let id = *id;
            kernel.objects.retain(
                |_, value| !matches!(value, Value::Route { nexthop: Some(by), .. } if *by == id),
            );
            kernel.objects.remove(&key);
            vec![(key, None)]
        }
        (0 | 1, _) => {
            kernel.objects.remove(&key);
            vec![(key, None)]
        }
        (_, key) => {
            let value = match kernel.objects[key].clone() {
                Value::Fdb { .. } => Value::Fdb { to: ip("203.0.113.9") },
                Value::Neighbour { .. } => Value::Neighbour { mac: MacAddr([2; 6]) },
                Value::Nexthop(nexthop) => Value::Nexthop(netwright_routing::object::Nexthop {
                    gateway: ip(if nexthop.gateway.is_ipv4() { "203.0.113.9" } else { "fd00::9" }),
                    ..nexthop
                }),
                Value::Route { .. } => Value::Route { nexthop: None, mtu: None },
                other => other,
            };
            kernel.objects.insert(key.clone(), value.clone());
            vec![(key.clone(), Some(value))]
        }
    }
}

#[test]
fn ten_thousand_damages_are_put_right() {
    let mut machine = machine();
    let mut random = Random(20_261_124);
    for round in 0..10_000 {
        let told = damage(&mut machine, &mut random);
        if round % 10 == 0 {
            // The event was lost: the next look finds it.
            machine.look();
        } else {
            let todo = machine.routing.noticed(told);
            machine.carry_out(todo);
        }
        if round % 50 == 0 || random.below(20) == 0 {
            machine.assert_right();
        }
    }
    machine.assert_right();
    machine.look();
    assert_eq!(machine.routing.observed(), &machine.kernel.observed());
}

#[test]
fn a_deleted_tunnel_comes_back_with_everything_on_it() {
    let mut machine = machine();
    machine.kernel.remove_link("nw-vxlan4");
    let todo = machine.routing.link_gone("nw-vxlan4");
    machine.carry_out(todo);
    machine.assert_right();
}

#[test]
fn a_tunnel_that_went_down_comes_up_with_its_routes() {
    let mut machine = machine();
    machine.kernel.set_down("nw-vxlan4");
    let down = machine.kernel.objects[&Key::Tunnel { link: "nw-vxlan4".into() }].clone();
    let mut todo = machine.routing.link_down("nw-vxlan4");
    assert!(!todo.changes.is_empty());
    // The event says that the link is down; the earlier plan is made again.
    todo = machine.routing.noticed(vec![(Key::Tunnel { link: "nw-vxlan4".into() }, Some(down))]);
    machine.take_log();
    machine.carry_out(todo);
    let log = machine.take_log();
    assert!(log.starts_with("replace tunnel nw-vxlan4"), "{log}");
    machine.look();
    machine.assert_right();
}

#[test]
fn nothing_is_made_by_an_uplink_that_is_down() {
    let mut machine = machine();
    machine.kernel.set_down("eth0");
    let todo = machine.routing.link_down("eth0");
    assert_eq!(todo.changes, []);
    assert_eq!(machine.routing.look(machine.kernel.observed()).changes, []);
    let todo = machine.routing.link_up("eth0");
    assert_eq!(todo.changes.len(), 4, "the nexthop and the route of each family");
    machine.carry_out(todo);
    machine.assert_right();
}

#[test]
fn nothing_is_made_by_an_uplink_that_a_look_finds_down() {
    let mut machine = machine();
    machine.kernel.set_down("eth0");
    let (none, eth0) = (BTreeSet::new(), BTreeSet::from(["eth0"]));
    machine.routing.links(&none, &eth0);
    assert_eq!(machine.routing.look(machine.kernel.observed()).changes, []);
    machine.routing.links(&eth0, &none);
    let todo = machine.routing.look(machine.kernel.observed());
    assert_eq!(todo.changes.len(), 4, "the nexthop and the route of each family");
    machine.carry_out(todo);
    machine.assert_right();
}

#[test]
fn what_strangers_put_on_our_tunnel_goes() {
    let mut machine = machine();
    let key = Key::Fdb { link: "nw-vxlan4".into(), mac: MacAddr([2, 2, 2, 2, 2, 2]) };
    let value = Value::Fdb { to: ip("203.0.113.1") };
    machine.kernel.objects.insert(key.clone(), value.clone());
    let todo = machine.routing.noticed(vec![(key.clone(), Some(value.clone()))]);
    assert_eq!(todo.changes, [Change::Remove(key, value)]);
    machine.carry_out(todo);
    machine.assert_right();
}

#[test]
fn a_change_that_fails_is_tried_again_and_told_once() {
    let mut machine = machine();
    let prefix = net("10.244.5.0/24");
    machine.kernel.objects.remove(&Key::Route { prefix });
    let todo = machine.routing.noticed(vec![(Key::Route { prefix }, None)]);
    let [change] = todo.changes.as_slice() else { panic!("{todo:?}") };
    let news = machine.routing.failed(change, "no buffer space available", NOW).unwrap();
    assert_eq!(news.node.as_deref(), Some("n5"));
    assert!(news.text.starts_with("create route 10.244.5.0/24 by nexthop 0x4e"), "{}", news.text);
    assert!(news.text.ends_with(": no buffer space available"), "{}", news.text);
    assert_eq!(machine.routing.phase(), Phase::Syncing);
    assert_eq!(machine.routing.due(), Some(at(1)));
    assert_eq!(machine.routing.tick(NOW).changes, []);
    assert_eq!(machine.routing.tick(at(1)).changes, todo.changes);
    assert_eq!(machine.routing.failed(change, "no buffer space available", at(1)), None);
    assert_eq!(machine.routing.due(), Some(at(3)));
    // Only that node is affected, and its row says so.
    assert_eq!((machine.routing.phase(), machine.routing.failing()), (Phase::Ready, None));
    assert_eq!(failing_peers(&machine), ["n5"]);
    let todo = machine.routing.tick(at(3));
    machine.carry_out(todo);
    assert_eq!(machine.routing.due(), None);
    assert_eq!(machine.routing.phase(), Phase::Ready);
    assert_eq!(failing_peers(&machine), [""; 0]);
    machine.assert_right();
}

/// The peers that the kernel refuses, by the table.
fn failing_peers(machine: &Machine) -> Vec<String> {
    let rows = machine.routing.table().rows.into_iter();
    rows.filter(|row| row.state.name() == "failing").map(|row| row.peer).collect()
}

#[test]
fn what_fails_of_this_node_itself_makes_it_not_ready() {
    let mut machine = machine();
    for (key, told) in [
        (Key::Unreachable { prefix: net("10.244.1.0/24") }, "unreachable route 10.244.1.0/24"),
        (Key::Tunnel { link: "nw-vxlan4".into() }, "tunnel nw-vxlan4"),
    ] {
        let value = machine.kernel.objects[&key].clone();
        let todo = machine.routing.noticed(vec![(key.clone(), None)]);
        for seconds in [0, 1, 3] {
            machine.routing.failed(&todo.changes[0], "operation not permitted", at(seconds));
            let failing = format!("{told}: operation not permitted");
            assert_eq!(machine.routing.failing(), Some(failing));
            assert_eq!(machine.routing.phase(), Phase::Syncing);
        }
        assert_eq!(failing_peers(&machine), [""; 0]);
        let _ = machine.routing.noticed(vec![(key, Some(value))]);
        assert_eq!(machine.routing.failing(), None);
    }
}

/// A failed removal does not make the node unready: only an unwanted object stays, and all wanted
/// objects exist.
#[test]
fn a_removal_that_fails_is_told_until_it_is_not_needed() {
    let mut machine = machine();
    let key = Key::Fdb { link: "nw-vxlan4".into(), mac: MacAddr([2; 6]) };
    let value = Value::Fdb { to: ip("203.0.113.1") };
    let todo = machine.routing.noticed(vec![(key.clone(), Some(value))]);
    machine.routing.failed(&todo.changes[0], "operation not permitted", NOW);
    let told = "not done yet, and tried again: remove FDB entry 02:02:02:02:02:02 of nw-vxlan4: \
                operation not permitted";
    assert_eq!(machine.routing.table().warnings, [told]);
    assert_eq!((machine.routing.phase(), machine.routing.failing()), (Phase::Ready, None));
    assert_eq!(machine.routing.tick(at(1)).changes, todo.changes);
    // Another program removes it.
    assert_eq!(machine.routing.noticed(vec![(key, None)]).changes, []);
    assert_eq!(machine.routing.table().warnings, [""; 0]);
}

/// flanneld's route to the pods of node 5.
fn flannels_route() -> ForeignRoute {
    ForeignRoute {
        metric: 0,
        protocol: 3,
        link: Some("flannel.1".into()),
        gateway: Some(ip("10.244.5.0")),
    }
}

#[test]
fn a_route_of_flanneld_that_cannot_be_removed_is_tried_again() {
    let mut machine = machine_with(flannel_settings());
    let (prefix, error) = (net("10.244.5.0/24"), "operation not permitted");
    let route = flannels_route();
    machine.kernel.foreign.push((prefix, route.clone()));
    let todo = machine.routing.foreign(prefix, vec![route.clone()]);
    let change = Change::RemoveForeign(prefix, route);
    assert_eq!(todo.changes, std::slice::from_ref(&change));
    let news = machine.routing.failed(&change, error, NOW).unwrap();
    assert_eq!(news.text, format!("{change}: {error}"));
    let told = format!("not done yet, and tried again: {change}: {error}");
    assert_eq!(machine.routing.table().warnings, [told]);
    assert_eq!(machine.routing.tick(NOW).changes, []);
    assert_eq!(machine.routing.tick(at(1)).changes, std::slice::from_ref(&change));
    assert_eq!(machine.routing.failed(&change, error, at(1)), None);
    assert_eq!(machine.routing.due(), Some(at(3)));
    let todo = machine.routing.tick(at(3));
    machine.carry_out(todo);
    assert_eq!(machine.routing.due(), None);
    assert_eq!(machine.routing.table().warnings, [""; 0]);
}

/// A machine in flanneld's place, whose kernel has flanneld's route to the pods of node 5.
fn machine_with_flannels_route(settings: Settings) -> Machine {
    let foreign = vec![(net("10.244.5.0/24"), flannels_route())];
    Machine::start_with(settings, way, Kernel { foreign, ..Kernel::default() })
}

/// What flanneld left is no sign that it runs, and neither is a route of another program.
#[test]
fn a_route_of_flanneld_that_comes_back_shows_that_it_runs() {
    let prefix = net("10.244.5.0/24");
    let to_node = ForeignRoute {
        link: Some("eth0".into()),
        gateway: Some(ip("192.0.2.5")),
        ..flannels_route()
    };
    let elsewhere = ForeignRoute { gateway: Some(ip("192.0.2.200")), ..to_node.clone() };
    let mut machine = machine_with_flannels_route(flannel_settings());
    assert_eq!(machine.routing.flannels_return(), None);
    machine.list(&[node("n5", 5)]);
    assert_eq!(machine.kernel.foreign, []);
    for (route, is_flannels) in [(flannels_route(), true), (to_node, true), (elsewhere, false)] {
        machine.kernel.foreign.push((prefix, route.clone()));
        let todo = machine.routing.look(machine.kernel.observed());
        let shown = is_flannels.then(|| format!("{prefix} {route}"));
        assert_eq!(machine.routing.flannels_return(), shown);
        machine.carry_out(todo);
        machine.look();
        assert_eq!(machine.routing.flannels_return(), None);
        assert_eq!(machine.kernel.foreign.is_empty(), is_flannels, "{route}");
    }
    // On standby flanneld is to run.
    let mut machine = machine_with_flannels_route(Settings { standby: true, ..flannel_settings() });
    machine.kernel.foreign.push((net("10.244.6.0/24"), flannels_route()));
    machine.routing.look(machine.kernel.observed());
    assert_eq!(machine.routing.flannels_return(), None);
}

/// What the disk has of a node may be older than what flanneld has made.
#[test]
fn a_route_of_flanneld_stays_until_the_nodes_are_listed() {
    let mut machine = machine_with_flannels_route(flannel_settings());
    let document = Document { peers: vec![(node("n5", 5), NOW)], ..Document::default() };
    let todo = machine.routing.restore(document, NOW);
    machine.carry_out(todo);
    let ours = Key::Route { prefix: net("10.244.5.0/24") };
    assert!(machine.kernel.objects.contains_key(&ours));
    assert_eq!(machine.kernel.foreign.len(), 1);
    machine.list(&[node("n5", 5)]);
    assert_eq!(machine.kernel.foreign, []);
    machine.assert_right();
}

/// One of the two leads to the pods all the time, also if the kernel does not take ours.
#[test]
fn a_route_of_flanneld_stays_until_ours_stands() {
    let mut machine = machine_with(flannel_settings());
    let prefix = net("10.244.5.0/24");
    machine.routing.noticed(vec![(Key::Route { prefix }, None)]);
    let todo = machine.routing.foreign(prefix, vec![flannels_route()]);
    let [ours, theirs] = todo.changes.as_slice() else { panic!("{todo:?}") };
    assert_eq!(*theirs, Change::RemoveForeign(prefix, flannels_route()));
    assert!(machine.routing.may_follow(ours) && !machine.routing.may_follow(theirs));
    machine.routing.failed(ours, "no buffer space available", NOW);
    machine.routing.failed(theirs, "ours is not there yet", NOW);
    assert!(!machine.routing.may_follow(theirs));
    // Both are made again together, in their order.
    let again = machine.routing.tick(at(1));
    assert_eq!(again.changes, todo.changes);
    machine.routing.done(ours);
    assert!(machine.routing.may_follow(theirs));
    machine.routing.done(theirs);
    assert_eq!(machine.routing.due(), None);
    assert_eq!(machine.routing.table().warnings, [""; 0]);
}
