//! Blocks of spaces: which node has them, what happens to their routes, and what people read.

use std::net::IpAddr;
use std::sync::Arc;

use expect_test::expect;
use netwright_routing::blocks::{BlockState, Event, Holder, Records};
use netwright_routing::cluster::{self, Cluster, NodeRecord, Outcome};
use netwright_routing::document;
use netwright_routing::object::{Key, PROTOCOL_OWN, Value};
use netwright_routing::plan::Change;
use netwright_routing::{Block, Node, Settings};
use proptest::prelude::*;

use crate::kernel::{End, Kernel};
use crate::support::{
    Machine, NOW, at, by_gateway, cases, ip, net, node, on_link, own, seen, settings,
};

const SPACE: &str = "storage";

fn spaces() -> Settings {
    Settings {
        spaces: vec![SPACE.to_owned()],
        space_ranges: vec![net("10.60.0.0/16"), net("fd00:60::/64")],
        ..settings()
    }
}

fn block(prefix: &str) -> Block {
    Block { prefix: net(prefix), space: SPACE.to_owned(), kept: false }
}

/// A block that a node holds.
fn held(prefix: &str, node: &str) -> (Block, BlockState) {
    (block(prefix), BlockState::By(Holder { node: node.to_owned(), addresses: Vec::new() }))
}

fn free(prefix: &str) -> (Block, BlockState) {
    (block(prefix), BlockState::Nobody)
}

/// An address that a pod on a node keeps.
fn kept(address: &str, node: &str) -> (Block, BlockState) {
    let (block, shown) = held(address, node);
    (Block { kept: true, ..block }, shown)
}

fn records(kept: bool) -> Records {
    Records { space: SPACE.to_owned(), kept }
}

fn listed(all: &[(Block, BlockState)]) -> Event {
    Event::Listed(records(false), all.to_vec())
}

fn changed(all: &[(Block, BlockState)]) -> Event {
    Event::Changed(all.to_vec())
}

fn take(machine: &mut Machine, event: Event) -> String {
    let todo = machine.routing.blocks(event, NOW);
    let news = todo.news.iter().map(|news| format!("{}\n", news.text)).collect();
    machine.carry_out(todo);
    news
}

/// Node a, with two other nodes on its segment.
fn machine() -> Machine {
    let mut machine = Machine::start(spaces(), |_| on_link());
    machine.list(&[node("b", 2), node("c", 3)]);
    machine.take_log();
    machine
}

fn direct(n: u8) -> Option<End> {
    Some(End::Direct(ip(&format!("192.0.2.{n}"))))
}

#[test]
fn a_block_is_routed_to_its_holder_and_follows_it_in_one_step() {
    let mut machine = machine();
    let told = take(&mut machine, listed(&[held("10.60.0.64/26", "b")]));
    assert_eq!(told, "node b: changed: has block 10.60.0.64/26\n");
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), direct(2));
    let id = |name: &str, machine: &Machine| {
        let key = Key::Route { prefix: node(name, if name == "b" { 2 } else { 3 }).prefixes[0] };
        match machine.kernel.objects.get(&key) {
            Some(Value::Route { nexthop: Some(id), .. }) => *id,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        machine.take_log(),
        format!("create route 10.60.0.64/26 by nexthop {:#x}\n", id("b", &machine))
    );
    // A block moves in one step, whether its record was changed or made anew.
    let told = take(&mut machine, changed(&[free("10.60.0.64/26"), held("10.60.0.64/26", "c")]));
    assert_eq!(
        told,
        "node b: changed: gave up block 10.60.0.64/26\nnode c: changed: has block 10.60.0.64/26\n"
    );
    assert_eq!(
        machine.take_log(),
        format!("replace route 10.60.0.64/26 by nexthop {:#x}\n", id("c", &machine))
    );
    // Other keys of the record do not matter.
    assert_eq!(take(&mut machine, changed(&[held("10.60.0.64/26", "c")])), "");
    take(&mut machine, changed(&[free("10.60.0.64/26")]));
    assert_eq!(machine.take_log(), "remove route 10.60.0.64/26\n");
    machine.assert_right();
}

#[test]
fn a_block_goes_with_its_node_and_comes_with_it() {
    let mut machine = machine();
    take(&mut machine, listed(&[held("10.60.0.64/26", "b"), held("fd00:60::40/122", "b")]));
    for prefix in ["10.60.0.64/26", "fd00:60::40/122"] {
        assert!(machine.kernel.end(net(prefix)).is_some());
    }
    machine.event(cluster::Event::Deleted("b".to_owned()));
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), None);
    machine.assert_right();
    // Another node with the same name has it, at another address.
    let mut again = node("b", 7);
    again.prefixes = node("b", 2).prefixes;
    machine.event(cluster::Event::Changed(NodeRecord::whole(again)));
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), direct(7));
    // A change of the node does not change its blocks.
    let mut other = node("b", 8);
    other.prefixes = node("b", 2).prefixes;
    machine.event(cluster::Event::Changed(NodeRecord::whole(other)));
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), direct(8));
    machine.assert_right();
}

#[test]
fn blocks_of_this_node_are_announced_and_taken_from_peers() {
    let mut machine = machine();
    take(&mut machine, listed(&[held("10.60.0.64/26", "b"), held("10.60.1.0/26", "a")]));
    let announced = |machine: &Machine, prefix: &str| {
        let key = Key::Unreachable { prefix: net(prefix) };
        machine.kernel.objects.get(&key) == Some(&Value::Unreachable { protocol: PROTOCOL_OWN })
    };
    assert!(announced(&machine, "10.60.1.0/26"));
    machine.take_log();
    let told = take(&mut machine, changed(&[held("10.60.0.64/26", "a")]));
    assert_eq!(
        told,
        "this node: has block 10.60.0.64/26\nnode b: changed: gave up block 10.60.0.64/26\n"
    );
    // Packets to its pods take a route to each pod. Packets to unknown addresses get an error at
    // once.
    assert_eq!(
        machine.take_log(),
        "create element 10.60.0.64/26 of local4\n\
         create unreachable route 10.60.0.64/26 proto 79\nremove route 10.60.0.64/26\n"
    );
    let todo = machine.routing.blocks(changed(&[held("10.60.0.64/26", "b")]), NOW);
    assert!(todo.document_changed);
    machine.carry_out(todo);
    assert!(!announced(&machine, "10.60.0.64/26"));
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), direct(2));
    machine.assert_right();
    let explained = machine.routing.explain(ip("10.60.1.7"));
    assert_eq!(
        explained.sentences,
        ["10.60.1.7 is in 10.60.1.0/26, a prefix of this node: its pod is here"]
    );
    let explained = machine.routing.explain(ip("10.60.0.70"));
    assert_eq!(
        (explained.peer.as_deref(), explained.prefix),
        (Some("b"), Some(net("10.60.0.64/26")))
    );
    let explained = machine.routing.explain(ip("10.60.9.9"));
    assert!(
        explained.sentences[0].contains("range 10.60.0.0/16, and in no prefix"),
        "{explained:?}"
    );
    let table = machine.routing.table();
    assert_eq!(table.blocks, [block("10.60.1.0/26")]);
    assert_eq!(table.rows[0].blocks, [block("10.60.0.64/26")]);
    assert_eq!(table.rows[0].prefixes, [net("10.244.2.0/24")]);
}

/// flannel's leases do not name nodes, so the address in the record identifies the node.
#[test]
fn a_holder_without_a_peer_of_its_name_is_found_by_its_address() {
    let mut machine = Machine::start(spaces(), |_| on_link());
    machine.list(&[node("10.244.2.0-24", 2), node("10.244.3.0-24", 3)]);
    let at = |prefix: &str, name: &str, addresses: &[&str]| {
        let addresses = addresses.iter().map(|address| ip(address)).collect();
        (block(prefix), BlockState::By(Holder { node: name.to_owned(), addresses }))
    };
    let v6 = "2001:db8::3";
    take(
        &mut machine,
        listed(&[
            at("10.60.0.0/26", "worker-2", &["192.0.2.2"]),
            at("10.60.0.64/26", "worker-3", &["198.51.100.3", v6]),
            at("10.60.0.128/26", "this-one", &["192.0.2.1"]),
        ]),
    );
    assert_eq!(machine.kernel.end(net("10.60.0.0/26")), direct(2));
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), direct(3));
    assert_eq!(machine.routing.cluster().own().node.blocks, [block("10.60.0.128/26")]);
    // The node gets another address: first its lease has it, then its blocks.
    let mut moved = node("10.244.2.0-24", 2);
    moved.underlay.set(ip("192.0.2.22"));
    machine.event(cluster::Event::Changed(NodeRecord::whole(moved)));
    assert_eq!(machine.kernel.end(net("10.60.0.0/26")), None);
    take(&mut machine, changed(&[at("10.60.0.0/26", "worker-2", &["192.0.2.22"])]));
    assert_eq!(machine.kernel.end(net("10.60.0.0/26")), direct(22));
    // A name takes precedence over an address.
    machine.event(cluster::Event::Changed(NodeRecord::whole(node("worker-3", 4))));
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), direct(4));
    machine.event(cluster::Event::Deleted("worker-3".to_owned()));
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), direct(3));
    machine.assert_right();
}

#[test]
fn a_holder_that_the_source_does_not_know_is_told_once_and_not_routed() {
    let mut machine = Machine::start(spaces(), |_| on_link());
    // Before the nodes are known, no holder counts as unknown.
    assert_eq!(
        take(&mut machine, listed(&[held("10.60.0.64/26", "b"), held("10.60.0.0/26", "x")])),
        ""
    );
    let todo = machine.list(&[node("b", 2)]);
    let told: Vec<&str> = todo.news.iter().map(|news| news.text.as_str()).collect();
    let stranger =
        "node x is none that the source knows: its blocks are not routed (1, 10.60.0.0/26 first)";
    assert!(told.contains(&stranger), "{told:?}");
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), direct(2));
    assert_eq!(machine.kernel.end(net("10.60.0.0/26")), None);
    assert_eq!(machine.routing.table().warnings, [stranger]);
    assert_eq!(take(&mut machine, changed(&[held("10.60.0.0/26", "x")])), "");
    machine.event(cluster::Event::Changed(NodeRecord::whole(node("x", 9))));
    assert_eq!(machine.kernel.end(net("10.60.0.0/26")), direct(9));
    assert_eq!(machine.routing.table().warnings, [""; 0]);
    // If there are many, the first are shown.
    let many: Vec<_> =
        (0..30).map(|n| held(&format!("10.60.{}.0/26", 100 + n), &format!("y{n}"))).collect();
    let told = take(&mut machine, changed(&many));
    assert_eq!(told.lines().count(), 21);
    assert!(told.ends_with("… and 10 more of this kind\n"), "{told}");
    assert_eq!(machine.routing.table().warnings.len(), 5);
}

#[test]
fn what_is_outside_or_overlaps_is_refused_and_nothing_else() {
    let mut machine = machine();
    let told = take(
        &mut machine,
        listed(&[
            held("10.244.9.0/26", "b"),
            held("10.60.0.64/26", "b"),
            held("10.60.0.64/27", "c"),
            held("192.0.2.0/26", "c"),
            held("10.60.0.128/26", "c"),
        ]),
    );
    expect![[r#"
        node c: refused: block 10.60.0.64/27 of space storage: it overlaps 10.60.0.64/26 of space storage, which node b holds
        node b: refused: block 10.244.9.0/26 of space storage: it is outside space-ranges (10.60.0.0/16, fd00:60::/64)
        node c: refused: block 192.0.2.0/26 of space storage: it is outside space-ranges (10.60.0.0/16, fd00:60::/64)
        node b: changed: has block 10.60.0.64/26
        node c: changed: has block 10.60.0.128/26
    "#]]
    .assert_eq(&told);
    assert_eq!(machine.kernel.end(net("10.60.0.64/27")), None);
    assert_eq!(machine.kernel.end(net("10.60.0.128/26")), direct(3));
    assert_eq!(machine.routing.table().warnings.len(), 3);
    // The larger block is removed, and the smaller one counts.
    take(&mut machine, changed(&[free("10.60.0.64/26")]));
    assert_eq!(machine.kernel.end(net("10.60.0.64/27")), direct(3));
    assert_eq!(machine.routing.table().warnings.len(), 2);
    machine.assert_right();
    // If a record cannot be read, its block stays where it was, whether a list or a change brings
    // the record.
    let spoilt = (block("10.60.0.128/26"), BlockState::Unreadable("it is no block".to_owned()));
    let all = [spoilt, held("10.60.0.64/27", "c")];
    for event in [changed(&all[..1]), listed(&all)] {
        let told = take(&mut machine, event);
        assert_eq!(told, "the record of 10.60.0.128/26 of space storage: it is no block\n");
        assert_eq!(machine.kernel.end(net("10.60.0.128/26")), direct(3));
    }
}

#[test]
fn blocks_stay_while_their_records_are_away_or_suddenly_few() {
    let mut machine = machine();
    let all: Vec<_> =
        (0..8).map(|n| held(&format!("10.60.{n}.0/26"), if n < 4 { "b" } else { "c" })).collect();
    take(&mut machine, listed(&all));
    assert_eq!(
        take(&mut machine, Event::Silent(records(false))),
        "the records of blocks of space storage cannot be read; kept as they were: 8\n"
    );
    assert_eq!(take(&mut machine, Event::Silent(records(false))), "");
    assert_eq!(machine.take_log().lines().count(), 8);
    assert_eq!(
        machine.routing.table().warnings,
        ["the records of blocks of space storage cannot be read since 12:00 UTC"]
    );
    let told = take(&mut machine, listed(&all[..3]));
    expect![[r#"
        the records of blocks of space storage can be read again; they could not since 12:00 UTC
        held: there are 3 records of blocks of space storage, and there were 8; nothing is removed until 12:10 UTC, or until `netwright routes accept`
    "#]]
    .assert_eq(&told);
    assert_eq!(machine.take_log(), "");
    assert_eq!(machine.routing.due(), Some(at(600)));
    // One of them belongs to another node now, and one overlaps a prefix that is only kept.
    take(&mut machine, changed(&[held("10.60.4.0/26", "b"), held("10.60.5.0/27", "b")]));
    assert_eq!(machine.kernel.end(net("10.60.4.0/26")), direct(2));
    assert_eq!(machine.kernel.end(net("10.60.5.0/26")), None);
    assert_eq!(machine.kernel.end(net("10.60.5.0/27")), direct(2));
    assert_eq!(machine.kernel.end(net("10.60.6.0/26")), direct(3));
    machine.assert_right();
    let todo = machine.routing.tick(at(600));
    machine.carry_out(todo);
    assert_eq!(machine.kernel.end(net("10.60.6.0/26")), None);
    assert_eq!(machine.routing.due(), None);
    machine.assert_right();
    // An administrator need not wait.
    take(&mut machine, listed(&[]));
    assert_eq!(machine.kernel.end(net("10.60.4.0/26")), direct(2));
    let todo = machine.routing.accept(NOW);
    machine.carry_out(todo);
    assert_eq!(machine.kernel.end(net("10.60.4.0/26")), None);
    machine.assert_right();
}

#[test]
fn few_blocks_go_with_the_list_that_lacks_them() {
    let mut machine = machine();
    take(&mut machine, listed(&[held("10.60.0.0/26", "b"), held("10.60.1.0/26", "b")]));
    take(&mut machine, listed(&[]));
    assert_eq!(machine.kernel.end(net("10.60.0.0/26")), None);
    machine.assert_right();
}

#[test]
fn the_disk_has_blocks_too() {
    let mut before = machine();
    take(&mut before, listed(&[held("10.60.0.64/26", "b"), held("10.60.1.0/26", "a")]));
    let text = before.routing.document();
    let mut machine = Machine::start(spaces(), |_| on_link());
    let todo = machine.routing.restore(document::read(text.as_bytes()).unwrap(), NOW);
    machine.carry_out(todo);
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), direct(2));
    assert_eq!(machine.routing.cluster().own().node.blocks, [block("10.60.1.0/26")]);
    assert_eq!(machine.kernel.objects, before.kernel.objects);
    // The nodes become known first, then the records.
    machine.list(&[node("b", 2), node("c", 3)]);
    machine.take_log();
    assert_eq!(
        take(&mut machine, listed(&[held("10.60.0.64/26", "b"), held("10.60.1.0/26", "a")])),
        ""
    );
    assert_eq!(machine.take_log(), "");
    // A space that is no longer routed is forgotten.
    let mut without = Machine::start_with(settings(), |_| on_link(), before.kernel.clone());
    let todo = without.routing.restore(document::read(text.as_bytes()).unwrap(), NOW);
    without.carry_out(todo);
    without.list(&[node("b", 2), node("c", 3)]);
    assert_eq!(without.kernel.end(net("10.60.0.64/26")), None);
    without.assert_right();
}

/// The record of nodes is lost, and the kernel has the objects of an earlier run.
#[test]
fn before_the_records_were_read_no_route_of_a_block_goes() {
    let mut before = machine();
    take(&mut before, listed(&[held("10.60.0.64/26", "b"), held("10.60.1.0/26", "a")]));
    let kernel: Kernel = before.kernel.clone();
    let mut machine = Machine::start_with(spaces(), |_| on_link(), kernel);
    machine.list(&[node("b", 2), node("c", 3)]);
    machine.look();
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), direct(2));
    assert!(!machine.take_log().contains("remove"));
    let told = take(&mut machine, listed(&[held("10.60.0.128/26", "b")]));
    assert_eq!(told, "node b: changed: has block 10.60.0.128/26\n");
    machine.look();
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), direct(2));
    // The same holds before the records of kept addresses are known.
    take(&mut machine, Event::Listed(records(true), Vec::new()));
    machine.look();
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), None);
    machine.assert_right();
}

/// A pod that is recreated on another node keeps its address, and the block stays where it is.
#[test]
fn an_address_that_a_pod_keeps_is_where_the_pod_is() {
    let mut machine = machine();
    take(&mut machine, listed(&[held("10.60.0.64/26", "b"), held("10.60.1.0/26", "a")]));
    take(&mut machine, Event::Listed(records(true), vec![kept("10.60.0.70/32", "b")]));
    // The pod's block leads there already.
    assert_eq!(machine.kernel.end(net("10.60.0.70/32")), None);
    machine.take_log();
    let told = take(&mut machine, changed(&[kept("10.60.0.70/32", "c")]));
    assert_eq!(told, "node c: changed: has block 10.60.0.70\n");
    assert_eq!(machine.kernel.end(net("10.60.0.70/32")), direct(3));
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), direct(2));
    assert_eq!(machine.take_log().lines().count(), 1);
    let explained = machine.routing.explain(ip("10.60.0.70"));
    assert_eq!(explained.peer.as_deref(), Some("c"));
    assert_eq!(machine.routing.explain(ip("10.60.0.71")).peer.as_deref(), Some("b"));
    // An address moves from there to this node, then one moves from this node to another.
    take(&mut machine, changed(&[kept("10.60.0.70/32", "a"), kept("10.60.1.9/32", "c")]));
    assert_eq!(machine.kernel.end(net("10.60.0.70/32")), None);
    assert_eq!(machine.kernel.end(net("10.60.1.9/32")), direct(3));
    let own = machine.routing.cluster().own().node.blocks.clone();
    assert_eq!(own, [kept("10.60.0.70/32", "a").0, block("10.60.1.0/26")]);
    assert_eq!(machine.routing.document().matches("\"kept\":true").count(), 2);
    // The node with the pod gets the block. Between two lives of the pod only the block counts.
    take(&mut machine, changed(&[held("10.60.1.0/26", "c")]));
    assert_eq!(machine.kernel.end(net("10.60.1.9/32")), None);
    assert_eq!(machine.kernel.end(net("10.60.1.0/26")), direct(3));
    take(&mut machine, changed(&[(kept("10.60.0.70/32", "a").0, BlockState::Nobody)]));
    assert_eq!(machine.routing.explain(ip("10.60.0.70")).peer.as_deref(), Some("b"));
    machine.assert_right();
    // Blocks with one address: the node that keeps the address takes precedence over the holder of
    // the block.
    take(&mut machine, changed(&[held("10.60.9.9/32", "b")]));
    assert_eq!(machine.kernel.end(net("10.60.9.9/32")), direct(2));
    machine.take_log();
    take(&mut machine, changed(&[kept("10.60.9.9/32", "c")]));
    assert_eq!(machine.kernel.end(net("10.60.9.9/32")), direct(3));
    assert_eq!(machine.take_log().lines().count(), 1);
    take(&mut machine, changed(&[kept("10.60.9.9/32", "b")]));
    assert_eq!(machine.kernel.end(net("10.60.9.9/32")), direct(2));
    take(&mut machine, changed(&[kept("192.0.2.99/32", "b")]));
    let warnings = machine.routing.table().warnings;
    assert!(
        warnings[0].contains("address 192.0.2.99 of space storage: it is outside"),
        "{warnings:?}"
    );
    machine.assert_right();
}

/// IPv4 blocks where nodes have IPv6 prefixes only: the tunnel's own address cannot be the gateway.
#[test]
fn a_family_without_prefixes_is_reached_by_tunnels_too() {
    let settings = spaces();
    let mut machine = Machine::start(settings, |_| by_gateway());
    let mut b = node("b", 2);
    b.prefixes.remove(0);
    machine.list(&[b.clone()]);
    take(&mut machine, listed(&[held("10.60.0.64/26", "b")]));
    let mac = b.offers.vxlan.unwrap().mac4.unwrap();
    assert_eq!(machine.kernel.end(net("10.60.0.64/26")), Some(End::Tunnel(ip("192.0.2.2"), mac)));
    machine.assert_right();
}

#[test]
fn a_peers_address_in_a_range_of_a_space_is_refused() {
    let mut machine = machine();
    let mut inside = node("x", 9);
    inside.underlay.set(ip("10.60.0.9"));
    machine.event(cluster::Event::Changed(NodeRecord::whole(inside)));
    let row = machine.routing.table().rows.into_iter().find(|row| row.peer == "x").unwrap();
    let state = format!("{:?}", row.state);
    assert!(state.contains("10.60.0.9 is in the cluster's range 10.60.0.0/16"), "{state}");
}

/// One block costs the same among many.
#[test]
fn a_block_that_comes_moves_or_goes_is_one_message() {
    for count in [50, 500] {
        let mut settings = spaces();
        settings.cluster_ranges = vec![net("10.128.0.0/9"), net("fd00:244::/48")];
        let nodes: Vec<Node> = (10..10 + count).map(crate::support::one_of_many).collect();
        let mut machine = Machine::start(settings, |_| by_gateway());
        machine.list(&nodes);
        let held_by = |n: u16| held(&format!("10.60.{}.0/26", n % 200), &format!("node-{n}"));
        take(&mut machine, listed(&(10..200).map(held_by).collect::<Vec<_>>()));
        let mut count_of = |event: Event| {
            machine.take_log();
            take(&mut machine, event);
            (machine.messages, machine.transactions)
        };
        assert_eq!(count_of(changed(&[held("10.60.250.0/26", "node-10")])), (1, 0), "{count}");
        assert_eq!(count_of(changed(&[held("10.60.250.0/26", "node-11")])), (1, 0), "{count}");
        assert_eq!(count_of(changed(&[free("10.60.250.0/26")])), (1, 0), "{count}");
    }
}

/// The blocks that are used.
fn used(cluster: &Cluster) -> Vec<(String, Vec<Block>)> {
    let mut used: Vec<_> =
        cluster.used().map(|(_, node)| (node.name.clone(), node.blocks.clone())).collect();
    used.push(("own".to_owned(), cluster.own().node.blocks.clone()));
    used
}

/// One event, about nodes or about records.
#[derive(Debug, Clone)]
enum TestEvent {
    Node(u8, bool),
    Block(usize, Option<u8>, bool),
}

/// The prefixes of blocks, and those of addresses that pods keep.
const PREFIXES: [(&str, bool); 9] = [
    ("10.60.0.0/25", false),
    ("10.60.0.0/26", false),
    ("10.60.0.64/26", false),
    ("10.60.0.64/27", false),
    ("10.60.1.1/32", false),
    ("10.61.0.0/26", false),
    ("fd00:60::/122", false),
    ("10.60.0.70/32", true),
    ("10.60.1.1/32", true),
];

fn numbered(place: usize) -> Block {
    let (prefix, kept) = PREFIXES[place];
    Block { kept, ..block(prefix) }
}

fn happens() -> impl Strategy<Value = TestEvent> {
    prop_oneof![
        (2..6_u8, any::<bool>()).prop_map(|(node, there)| TestEvent::Node(node, there)),
        (0..PREFIXES.len(), proptest::option::of(1..8_u8), any::<bool>())
            .prop_map(|(block, holder, by_name)| TestEvent::Block(block, holder, by_name)),
    ]
}

fn holder(n: u8, by_name: bool) -> Holder {
    let address: IpAddr = ip(&format!("192.0.2.{n}"));
    match by_name {
        true if n == 1 => Holder { node: "a".to_owned(), addresses: Vec::new() },
        true => Holder { node: format!("n{n}"), addresses: Vec::new() },
        false => Holder { node: format!("w{n}"), addresses: vec![address] },
    }
}

fn apply(cluster: &mut Cluster, what: &TestEvent) -> Outcome {
    match what {
        TestEvent::Node(n, true) => {
            let node = node(&format!("n{n}"), (*n).into());
            cluster.apply(cluster::Event::Changed(NodeRecord::whole(node)), NOW)
        }
        TestEvent::Node(n, false) => cluster.apply(cluster::Event::Deleted(format!("n{n}")), NOW),
        TestEvent::Block(place, of, by_name) => {
            let shown = of.map_or(BlockState::Nobody, |n| BlockState::By(holder(n, *by_name)));
            cluster.apply_blocks(changed(&[(numbered(*place), shown)]), NOW)
        }
    }
}

proptest! {
    #![proptest_config(cases(300))]

    /// Whatever the order of events, the last state of each record decides which blocks are used.
    /// Every holder whose blocks changed is reported.
    #[test]
    fn what_is_used_follows_from_what_is_said_last(all in prop::collection::vec(happens(), 1..40)) {
        let start = || {
            let settings = spaces();
            let own = own(&settings);
            Cluster::new(Arc::new(settings), own)
        };
        let mut cluster = start();
        let (mut nodes, mut blocks) = ([false; 6], [None; PREFIXES.len()]);
        for what in &all {
            let before = used(&cluster);
            let outcome = apply(&mut cluster, what);
            for (name, blocks) in used(&cluster) {
                let same = before.contains(&(name.clone(), blocks));
                let told = outcome.affected.contains(&name)
                    || (name == "own" && outcome.is_own_changed);
                prop_assert!(same || told, "{name} after {what:?}");
            }
            match what {
                TestEvent::Node(n, there) => nodes[usize::from(*n)] = *there,
                TestEvent::Block(place, of, by_name) => blocks[*place] = of.map(|of| (of, *by_name)),
            }
        }
        let mut fresh = start();
        let there = (0..6_u8).filter(|n| nodes[usize::from(*n)]);
        let there: Vec<Node> = there.map(|n| node(&format!("n{n}"), n.into())).collect();
        let records: Vec<(Block, BlockState)> = blocks.iter().enumerate().filter_map(|(place, of)| {
            let (n, by_name) = (*of)?;
            Some((numbered(place), BlockState::By(holder(n, by_name))))
        }).collect();
        fresh.apply_blocks(changed(&records), NOW);
        fresh.apply(cluster::Event::Listed(seen(&there)), NOW);
        prop_assert_eq!(used(&fresh), used(&cluster));
    }
}

/// Other nodes' blocks cause no change of the packet filter, which has only the ranges.
#[test]
fn ranges_of_spaces_are_the_clusters_for_the_packet_filter() {
    let mut machine = Machine::start(spaces(), |_| on_link());
    let log = machine.take_log();
    for line in [
        "create element 10.60.0.0/16 of cluster4",
        "create element fd00:60::/64 of cluster6",
        "create unreachable route 10.60.0.0/16 proto 78",
    ] {
        assert!(log.contains(line), "{log}");
    }
    machine.list(&[node("b", 2)]);
    let todo = machine.routing.blocks(listed(&[held("10.60.0.0/26", "b")]), NOW);
    assert!(!todo.changes.is_empty() && !todo.changes.iter().any(Change::is_filter));
}
