//! The peers of a node: the effects of events, what is held back, and which peer gets what several
//! claim.

use std::sync::Arc;

use expect_test::expect;
use netwright_routing::cluster::{Cluster, Event, HoldReason, NodeRecord, Outcome, RecordFault};
use netwright_routing::refused::Cause;
use netwright_routing::{Node, Refusal, Time};
use proptest::prelude::*;

use crate::support::{NOW, at, cases, ip, net, node, own, seen, settings, v4_node};

fn cluster() -> Cluster {
    let settings = settings();
    let own = own(&settings);
    Cluster::new(Arc::new(settings), own)
}

/// One where nodes' addresses may be in ranges of pods.
fn overlapping() -> Cluster {
    let mut settings = settings();
    settings.cluster_ranges.push(net("192.0.2.0/24"));
    settings.allow_overlap = true;
    let own = own(&settings);
    Cluster::new(Arc::new(settings), own)
}

fn ten() -> Vec<Node> {
    (2..12).map(|n| node(&format!("n{n}"), n)).collect()
}

fn used(cluster: &Cluster) -> Vec<String> {
    cluster.used().map(|(_, node)| node.name.clone()).collect()
}

fn news(outcome: &Outcome) -> String {
    let line = |news: &netwright_routing::cluster::News| {
        format!("{}{}\n", if news.warning { "! " } else { "" }, news.text)
    };
    outcome.news.iter().map(line).collect()
}

fn list(cluster: &mut Cluster, nodes: &[Node], now: Time) -> Outcome {
    cluster.apply(Event::Listed(seen(nodes)), now)
}

/// Whether a route may lead to a peer.
#[test]
fn a_prefix_may_have_a_peers_underlay_address() {
    let mut cluster = cluster();
    list(&mut cluster, &[node("b", 2), node("c", 70)], NOW);
    for (prefix, has) in [
        ("0.0.0.0/0", true),
        ("192.0.2.0/26", true),
        ("192.0.2.2/32", true),
        ("192.0.2.3/32", false),
        ("192.0.2.128/25", false),
        ("198.51.100.0/24", false),
        ("::/0", true),
        ("2001:db8::/64", true),
        ("2001:db8:1::/64", false),
    ] {
        assert_eq!(cluster.has_underlay_in(net(prefix)), has, "{prefix}");
    }
    cluster.apply(Event::Deleted("b".to_owned()), NOW);
    assert!(!cluster.has_underlay_in(net("192.0.2.0/26")));
}

#[test]
fn each_change_is_told_once() {
    let mut cluster = cluster();
    let mut told = news(&list(&mut cluster, &[node("b", 2), node("c", 3)], NOW));
    told += &news(&list(&mut cluster, &[node("b", 2), node("c", 3)], NOW));
    let mut moved = node("c", 3);
    moved.underlay.v4 = Some("192.0.2.33".parse().unwrap());
    told += &news(&cluster.apply(Event::Changed(NodeRecord::whole(moved)), NOW));
    told += &news(&cluster.apply(Event::Deleted("b".to_owned()), NOW));
    told += &news(&cluster.apply(Event::Deleted("b".to_owned()), NOW));
    told += &news(&cluster.apply(Event::Silent, at(60)));
    told += &news(&cluster.apply(Event::Silent, at(120)));
    told += &news(&cluster.apply(Event::Changed(NodeRecord::whole(node("c", 3))), at(180)));
    expect![[r#"
        node b: 10.244.2.0/24, fd00:244:0:2::/64
        node c: 10.244.3.0/24, fd00:244:0:3::/64
        node c: changed: underlay addresses 192.0.2.33, 2001:db8::3
        node b: gone
        ! the source does not answer; peers kept: 1
        the source answers again; it was silent since 12:01 UTC
        node c: changed: underlay addresses 192.0.2.3, 2001:db8::3
    "#]]
    .assert_eq(&told);
}

#[test]
fn a_peer_that_a_list_lacks_goes() {
    let mut cluster = cluster();
    list(&mut cluster, &ten(), NOW);
    let outcome = list(&mut cluster, &ten()[3..], NOW);
    assert_eq!(used(&cluster).len(), 7);
    assert_eq!(outcome.affected.into_iter().collect::<Vec<_>>(), ["n2", "n3", "n4"]);
    // But five of seven at once may be a mistake.
    list(&mut cluster, &ten()[8..], NOW);
    assert_eq!(used(&cluster).len(), 7);
}

/// The log has a line for each of a few peers, and one line for many. Warnings are always logged.
#[test]
fn what_changes_for_many_is_one_line() {
    for (last, lines) in [(21, 20), (22, 1)] {
        let mut cluster = cluster();
        let nodes: Vec<Node> = (2..=last).map(|n| node(&format!("n{n}"), n)).collect();
        let told = list(&mut cluster, &nodes, NOW);
        assert_eq!(told.affected.len(), nodes.len());
        assert_eq!(told.news.len(), lines);
        if lines == 1 {
            assert_eq!(news(&told), "21 nodes are new, changed or gone\n");
        }
        // One peer takes another's address, and all others get another MTU.
        let other = |node: &Node| Node { mtu: Some(1400), ..node.clone() };
        let mut others: Vec<Node> = nodes.iter().map(other).collect();
        others[1].underlay = others[0].underlay;
        let told = list(&mut cluster, &others, at(60));
        let warnings = told.news.iter().filter(|news| news.warning).count();
        assert_eq!((warnings, told.news.len() - warnings), (1, if lines == 1 { 20 } else { 19 }));
    }
}

#[test]
fn a_list_that_would_remove_most_is_held_for_ten_minutes() {
    let mut cluster = cluster();
    list(&mut cluster, &ten(), NOW);
    let told = list(&mut cluster, &ten()[..1], at(60));
    expect![[r#"
        ! held: the source lists 1 of 10 nodes; nothing is removed until 12:11 UTC, or until `netwright routes accept`
    "#]].assert_eq(&news(&told));
    assert_eq!(told.affected.len(), 0);
    assert_eq!(cluster.due(), Some(at(660)));
    // A repeated report is not logged again, and does not restart the time.
    assert_eq!(news(&list(&mut cluster, &ten()[..1], at(300))), "");
    assert_eq!(cluster.due(), Some(at(660)));
    assert_eq!(cluster.tick(at(659)), Outcome::default());
    assert_eq!(cluster.tick(at(660)).affected.len(), 9);
    assert_eq!(used(&cluster), ["n2"]);
    assert_eq!(cluster.due(), None);
}

#[test]
fn a_held_peer_that_shows_up_is_held_no_longer() {
    let mut cluster = cluster();
    list(&mut cluster, &ten(), NOW);
    list(&mut cluster, &[], at(60));
    cluster.apply(Event::Changed(NodeRecord::whole(node("n5", 5))), at(70));
    list(&mut cluster, &ten()[5..], at(80));
    // Now the list lacks only five of ten: four that were held back, and one that it contained
    // before.
    let names = used(&cluster);
    assert_eq!(names, ["n10", "n11", "n7", "n8", "n9"]);
    assert_eq!(cluster.due(), None);
}

#[test]
fn a_person_confirms_what_is_held() {
    let mut cluster = cluster();
    list(&mut cluster, &ten(), NOW);
    list(&mut cluster, &ten()[..1], at(60));
    assert_eq!(cluster.accept(at(61)).affected.len(), 9);
    assert_eq!(used(&cluster), ["n2"]);
    assert_eq!(cluster.accept(at(61)), Outcome::default());
}

#[test]
fn whoever_the_source_shows_has_what_is_only_held() {
    let mut cluster = cluster();
    list(&mut cluster, &ten(), NOW);
    // A recreated cluster has the same prefixes and other names.
    let anew: Vec<Node> =
        (2..12).map(|n| Node { created: Some(NOW), ..node(&format!("new{n}"), n) }).collect();
    list(&mut cluster, &anew, at(60));
    assert_eq!(used(&cluster).len(), 10);
    assert!(used(&cluster).iter().all(|name| name.starts_with("new")));
    assert_eq!(cluster.peers().count(), 20);
}

#[test]
fn silence_removes_nobody() {
    let mut cluster = cluster();
    list(&mut cluster, &ten(), NOW);
    for hours in 0..72 {
        assert!(cluster.apply(Event::Silent, at(hours * 3600)).affected.is_empty());
        assert_eq!(cluster.tick(at(hours * 3600)), Outcome::default());
    }
    assert_eq!(used(&cluster).len(), 10);
    assert_eq!(cluster.silent_since(), Some(NOW));
}

#[test]
fn a_record_that_becomes_unreadable_leaves_the_last_one() {
    let mut cluster = cluster();
    list(&mut cluster, &[node("b", 2), node("c", 3)], NOW);
    let refused = Refusal::new("b", "key", Cause::Missing);
    let bad = NodeRecord {
        name: "b".to_owned(),
        node: Err(RecordFault::Refused(refused)),
        faults: Vec::new(),
    };
    let outcome = cluster.apply(Event::Changed(bad), NOW);
    assert_eq!(outcome.affected.len(), 0);
    expect![[r#"
        ! node b: refused: key: it is missing; its last readable record counts
    "#]]
    .assert_eq(&news(&outcome));
    assert_eq!(cluster.peer("b").unwrap().held, Some(HoldReason::LastKnown));
    assert_eq!(used(&cluster), ["b", "c"]);
    // A node whose record was never readable is not used.
    let starting = NodeRecord {
        name: "d".to_owned(),
        node: Err(RecordFault::Incomplete("spec.podCIDRs is empty".to_owned())),
        faults: Vec::new(),
    };
    expect![[r#"
        node d: incomplete: spec.podCIDRs is empty
    "#]]
    .assert_eq(&news(&cluster.apply(Event::Changed(starting), NOW)));
    assert_eq!(used(&cluster), ["b", "c"]);
    cluster.apply(Event::Changed(NodeRecord::whole(node("b", 2))), NOW);
    assert_eq!(cluster.peer("b").unwrap().held, None);
}

/// A Node was recreated under its name, and its service does not run yet.
#[test]
fn a_node_that_says_nothing_of_itself_yields_to_whom_its_prefix_is_given() {
    let mut cluster = cluster();
    list(&mut cluster, &[node("b", 2)], NOW);
    let starting = NodeRecord {
        name: "b".to_owned(),
        node: Err(RecordFault::Incomplete("no annotation".to_owned())),
        faults: Vec::new(),
    };
    // Its pods may still run.
    cluster.apply(Event::Changed(starting), at(9));
    assert_eq!(used(&cluster), ["b"]);
    let prefixes = node("b", 2).prefixes;
    let young = Node { created: Some(at(9)), prefixes, ..node("c", 3) };
    let outcome = cluster.apply(Event::Changed(NodeRecord::whole(young)), at(10));
    assert_eq!(used(&cluster), ["c"]);
    assert_eq!(outcome.affected.len(), 2);
}

#[test]
fn of_two_that_want_the_same_the_older_has_it() {
    let old = Node { created: Some(at(0)), ..node("old", 2) };
    let young = Node { created: Some(at(9)), prefixes: old.prefixes.clone(), ..node("young", 3) };
    for order in [[&old, &young], [&young, &old]] {
        let mut cluster = cluster();
        for node in order {
            cluster.apply(Event::Changed(NodeRecord::whole(node.clone())), at(60));
        }
        assert_eq!(used(&cluster), ["old"]);
        let refused = cluster.peer("young").unwrap().refused.clone().unwrap();
        assert_eq!(
            refused.to_string(),
            "node young: refused: spec.podCIDRs: 10.244.2.0/24 overlaps 10.244.2.0/24, which is \
             node old's since 12:01 UTC"
        );
        // It gets the prefix when the older peer is gone.
        let outcome = cluster.apply(Event::Deleted("old".to_owned()), at(90));
        assert_eq!(used(&cluster), ["young"]);
        assert_eq!(outcome.affected.len(), 2);
    }
}

/// Packets to the one would go to the other, and the reverse. A node that is used stays.
#[test]
fn of_two_that_are_reached_through_each_other_one_is() {
    let prefixes = vec![net("192.0.2.64/26")];
    let mut old = Node { created: Some(at(0)), prefixes, ..node("old", 2) };
    old.underlay.set(ip("10.244.9.2"));
    let prefixes = vec![net("10.244.9.0/24")];
    let young = Node { created: Some(at(9)), prefixes, ..node("young", 70) };
    let refused_as = |cluster: &Cluster, name: &str, said: &str| {
        let refused = cluster.peer(name).unwrap().refused.clone().unwrap();
        assert_eq!(refused.to_string(), format!("node {name}: refused: {said} since 12:01 UTC"));
    };
    for both in [[&old, &young], [&young, &old]] {
        let mut cluster = overlapping();
        list(&mut cluster, &both.map(Node::clone), at(60));
        assert_eq!(used(&cluster), ["old"]);
        let said = "spec.podCIDRs: 10.244.9.0/24 has 10.244.9.2 in it, which is node old's";
        refused_as(&cluster, "young", said);
        let outcome = cluster.apply(Event::Deleted("old".to_owned()), at(90));
        assert_eq!(used(&cluster), ["young"]);
        assert_eq!(outcome.affected.len(), 2);
    }
    let mut cluster = overlapping();
    for node in [&young, &old] {
        cluster.apply(Event::Changed(NodeRecord::whole(node.clone())), at(60));
    }
    assert_eq!(used(&cluster), ["young"]);
    let said = "spec.podCIDRs: 192.0.2.64/26 has 192.0.2.70 in it, which is node young's";
    refused_as(&cluster, "old", said);
}

/// Which prefixes it had, a node says itself.
#[test]
fn no_earlier_prefix_has_an_address_of_a_node() {
    let mut cluster = overlapping();
    let mut renumbered = node("b", 2);
    // They have this node's address and its own, one of node c, one of none.
    renumbered.kept = vec![net("192.0.2.0/30"), net("192.0.2.4/31"), net("192.0.2.8/29")];
    list(&mut cluster, &[renumbered, node("c", 5)], NOW);
    let holder = |cluster: &Cluster, address| {
        cluster.of_address(ip(address)).map(|(prefix, whose)| (prefix, whose.to_owned()))
    };
    let of_b = Some((net("192.0.2.8/29"), "b".to_owned()));
    assert_eq!(holder(&cluster, "192.0.2.3"), None);
    assert_eq!(holder(&cluster, "192.0.2.4"), None);
    assert_eq!(holder(&cluster, "192.0.2.9"), of_b);
    cluster.apply(Event::Changed(NodeRecord::whole(node("d", 9))), NOW);
    assert_eq!(used(&cluster), ["b", "c", "d"]);
    assert_eq!(holder(&cluster, "192.0.2.9"), None);
    cluster.apply(Event::Deleted("d".to_owned()), NOW);
    assert_eq!(holder(&cluster, "192.0.2.9"), of_b);
}

#[test]
fn an_earlier_prefix_stays_until_somebody_else_has_it() {
    let mut cluster = cluster();
    let mut renumbered = node("b", 2);
    renumbered.kept = vec![net("10.244.9.0/24")];
    list(&mut cluster, &[renumbered.clone()], NOW);
    assert_eq!(cluster.of_address(ip("10.244.9.1")), Some((net("10.244.9.0/24"), "b")));
    let outcome = cluster.apply(Event::Changed(NodeRecord::whole(node("n9", 9))), NOW);
    assert_eq!(cluster.of_address(ip("10.244.9.1")), Some((net("10.244.9.0/24"), "n9")));
    assert_eq!(outcome.affected.len(), 2);
    assert_eq!(used(&cluster), ["b", "n9"], "only the earlier prefix of node b is gone");
    cluster.apply(Event::Deleted("n9".to_owned()), NOW);
    assert_eq!(cluster.of_address(ip("10.244.9.1")), Some((net("10.244.9.0/24"), "b")));
    // No node gets an earlier prefix that is outside the cluster's ranges, or that belongs to this
    // node.
    renumbered.kept = vec![net("10.99.0.0/24"), net("10.244.1.128/25")];
    cluster.apply(Event::Changed(NodeRecord::whole(renumbered)), NOW);
    assert_eq!(cluster.of_address(ip("10.99.0.1")), None);
    assert_eq!(cluster.of_address(ip("10.244.1.129")), None);
}

#[test]
fn an_earlier_prefix_of_this_node_yields_to_whom_it_is_given() {
    let mut cluster = cluster();
    let mut own = own(&settings());
    own.node.kept = vec![net("10.244.9.0/24")];
    cluster.set_own(own, NOW);
    assert_eq!(cluster.owner_of(net("10.244.9.0/24")), None);
    let mut theirs = node("b", 2);
    theirs.kept = vec![net("10.244.9.0/24")];
    list(&mut cluster, &[theirs], NOW);
    assert_eq!(cluster.of_address(ip("10.244.9.1")), None, "both had it, and it is here");
    assert_eq!(cluster.owner_of(net("10.244.9.0/24")), None);
    cluster.apply(Event::Changed(NodeRecord::whole(node("n9", 9))), NOW);
    assert_eq!(cluster.of_address(ip("10.244.9.1")), Some((net("10.244.9.0/24"), "n9")));
    assert_eq!(cluster.owner_of(net("10.244.9.128/25")), Some("n9"));
    assert_eq!(cluster.owner_of(net("10.244.8.0/23")), Some("n9"));
}

#[test]
fn peers_are_judged_again_when_this_node_changes() {
    let mut cluster = cluster();
    list(&mut cluster, &[node("b", 2), node("c", 3)], NOW);
    let mut own = own(&settings());
    own.node.prefixes = vec![net("10.244.3.0/24")];
    cluster.set_own(own.clone(), at(60));
    assert_eq!(used(&cluster), ["b"]);
    own.node.prefixes = vec![net("10.244.1.0/24")];
    cluster.set_own(own, at(120));
    assert_eq!(used(&cluster), ["b", "c"]);
}

#[test]
fn this_node_is_not_its_own_peer() {
    let mut cluster = cluster();
    list(&mut cluster, &[node("a", 1), node("b", 2)], NOW);
    assert_eq!(cluster.peers().count(), 1);
}

prop_compose! {
    /// A node in a small world, in which others may claim the same things.
    fn small(name: usize)(
        prefix in 0_u8..6,
        length in prop_oneof![Just(23_u8), Just(24), Just(25)],
        address in 1_u8..6,
        mac in 1_u8..6,
        created in 0_u64..4,
        kept in proptest::option::weighted(0.3, 0_u8..6),
    ) -> Node {
        let mut node = v4_node(&format!("n{name}"), 50);
        let prefix = format!("10.244.{}.0/{length}", 2 + prefix);
        node.prefixes = vec![prefix.parse::<ipnet::IpNet>().unwrap().trunc()];
        node.kept = kept.map(|kept| net(&format!("10.244.{}.0/24", 2 + kept))).into_iter().collect();
        node.underlay.v4 = Some(format!("192.0.2.{}", 100 + address).parse().unwrap());
        node.offers.vxlan.as_mut().unwrap().mac4 = Some(netwright_routing::MacAddr([2, 0, 0, 0, 0, mac]));
        node.created = Some(at(created));
        node
    }
}

prop_compose! {
    /// The same, and its address may be in a prefix of some of them.
    fn crossed(name: usize)(
        node in small(name),
        inside in proptest::option::weighted(0.5, 0_u8..6),
    ) -> Node {
        let mut node = node;
        if let Some(inside) = inside {
            node.underlay.set(ip(&format!("10.244.{}.9", 2 + inside)));
        }
        node
    }
}

prop_compose! {
    /// The same with addresses of its own.
    fn honest(name: usize)(node in small(name)) -> Node {
        let mut node = node;
        let last = u8::try_from(name).unwrap();
        node.underlay.v4 = Some(format!("192.0.2.{}", 100 + last).parse().unwrap());
        node.offers.vxlan.as_mut().unwrap().mac4 = Some(netwright_routing::MacAddr([2, 0, 0, 0, 0, last]));
        node
    }
}

fn one_event<S: Strategy<Value = Node>>(one: impl Fn(usize) -> S) -> impl Strategy<Value = Event> {
    let changed =
        (0_usize..7).prop_flat_map(one).prop_map(|node| Event::Changed(NodeRecord::whole(node)));
    let deleted = (0_usize..7).prop_map(|name| Event::Deleted(format!("n{name}")));
    prop_oneof![4 => changed, 1 => deleted]
}

/// Tells a cluster some events. Returns what they have said last.
fn tell(
    cluster: &mut Cluster,
    events: Vec<Event>,
) -> Result<std::collections::BTreeMap<String, NodeRecord>, TestCaseError> {
    let mut last = std::collections::BTreeMap::new();
    for event in events {
        let about = match &event {
            Event::Changed(seen) => {
                last.insert(seen.name.clone(), seen.clone());
                seen.name.clone()
            }
            Event::Deleted(name) => {
                last.remove(name);
                name.clone()
            }
            Event::Listed(_) | Event::Silent | Event::Answers => String::new(),
        };
        let used = |cluster: &Cluster| -> Vec<Node> {
            cluster.used().map(|(_, node)| node.clone()).collect()
        };
        let before = used(cluster);
        let outcome = cluster.apply(event, NOW);
        // Every changed node is among those that are planned again.
        let after = used(cluster);
        for node in before.iter().filter(|node| !after.contains(node)) {
            prop_assert!(outcome.affected.contains(&node.name), "{}", node.name);
        }
        for node in after.iter().filter(|node| !before.contains(node)) {
            prop_assert!(outcome.affected.contains(&node.name), "{}", node.name);
        }
        // Nothing that a node says of itself cuts another one off: only a prefix does, which an older
        // one is given.
        for node in before.iter().filter(|node| node.name != about) {
            let overlaps = |other: &Node| {
                let all = other
                    .prefixes
                    .iter()
                    .flat_map(|of| node.prefixes.iter().map(move |own| (of, own)));
                all.clone().any(|(of, own)| of.contains(own) || own.contains(of))
            };
            let is_used = after.iter().any(|other| other.name == node.name);
            prop_assert!(is_used || after.iter().any(overlaps), "{}", node.name);
        }
    }
    Ok(last)
}

/// Asserts that no two peers have the same prefix or address, and that none is reached through
/// another.
fn assert_apart(cluster: &Cluster) -> Result<(), TestCaseError> {
    let nodes: Vec<Node> = cluster.used().map(|(_, node)| node.clone()).collect();
    for (number, node) in nodes.iter().enumerate() {
        for other in &nodes[number + 1..] {
            prop_assert_ne!(node.underlay, other.underlay);
            prop_assert_ne!(node.offers.vxlan, other.offers.vxlan);
            for prefix in node.prefixes.iter().chain(&node.kept) {
                for theirs in other.prefixes.iter().chain(&other.kept) {
                    prop_assert!(!prefix.contains(theirs) && !theirs.contains(prefix));
                }
            }
        }
        for address in nodes.iter().flat_map(|other| other.underlay.iter()) {
            let has_it = node.prefixes.iter().chain(&node.kept).any(|of| of.contains(&address));
            prop_assert!(!has_it, "{}: {address}", node.name);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(300))]

    /// Of prefixes, that is: no two have the same address.
    #[test]
    fn who_is_used_depends_on_what_was_said_last_and_not_on_the_order(
        events in prop::collection::vec(one_event(honest), 1..25)
    ) {
        let mut one = cluster();
        let last = tell(&mut one, events)?;
        let mut other = cluster();
        other.apply(Event::Listed(last.into_values().rev().collect()), NOW);
        let used = |cluster: &Cluster| -> Vec<Node> { cluster.used().map(|(_, node)| node.clone()).collect() };
        prop_assert_eq!(used(&one), used(&other));
        assert_apart(&one)?;
    }

    #[test]
    fn nothing_that_a_node_says_of_itself_cuts_off_another(
        events in prop::collection::vec(one_event(small), 1..25)
    ) {
        let mut cluster = cluster();
        tell(&mut cluster, events)?;
        assert_apart(&cluster)?;
    }

    #[test]
    fn nor_does_an_address_in_anothers_prefix(
        events in prop::collection::vec(one_event(crossed), 1..25)
    ) {
        let mut cluster = overlapping();
        tell(&mut cluster, events)?;
        assert_apart(&cluster)?;
    }
}

/// An older node writes what a younger one works with.
#[test]
fn who_has_worked_with_an_address_keeps_it() {
    let old = Node { created: Some(at(0)), ..node("old", 2) };
    let young = Node { created: Some(at(9)), ..node("young", 3) };
    let mut same_mac = old.clone();
    same_mac.offers.vxlan = young.offers.vxlan;
    let same_address = Node { underlay: young.underlay, ..old.clone() };
    for (forged, key) in [(same_mac, "offers.vxlan.mac4"), (same_address, "underlay")] {
        let mut cluster = cluster();
        list(&mut cluster, &[old.clone(), young.clone()], NOW);
        cluster.apply(Event::Changed(NodeRecord::whole(forged.clone())), at(60));
        assert_eq!(used(&cluster), ["young"]);
        let refused = cluster.peer("old").unwrap().refused.clone().unwrap();
        assert!(refused.key.ends_with(key), "{refused}");
        // Nor when both are told of again, or the younger one changes otherwise.
        let other = Node { mtu: Some(1400), ..young.clone() };
        list(&mut cluster, &[forged.clone(), other.clone()], at(70));
        assert_eq!(used(&cluster), ["young"]);
        // The disk knows who it was.
        let mut again = self::cluster();
        again.restore(vec![(other.clone(), NOW)], at(80));
        list(&mut again, &[forged.clone(), other], at(81));
        assert_eq!(used(&again), ["young"]);
        // It is the other's once nobody works with it.
        cluster.apply(Event::Deleted("young".to_owned()), at(90));
        assert_eq!(used(&cluster), ["old"]);
        list(&mut cluster, &[forged, young.clone()], at(91));
        assert_eq!(used(&cluster), ["old"]);
    }
}

/// Halves of the cluster's range belong to nobody, and no node takes them by what it says of itself.
#[test]
fn a_kept_prefix_is_no_wider_than_those_that_are_given() {
    let mut cluster = cluster();
    let mut greedy = node("b", 2);
    greedy.kept = [
        "10.244.0.0/17",
        "10.244.128.0/17",
        "10.244.32.0/23",
        "10.244.34.0/24",
        "fd00:244:0:8000::/49",
        "fd00:244:0:9::/64",
    ]
    .map(net)
    .to_vec();
    list(&mut cluster, &[greedy], NOW);
    let kept = cluster.peer("b").unwrap().used().unwrap().kept.clone();
    assert_eq!(kept, [net("10.244.34.0/24"), net("fd00:244:0:9::/64")]);
    assert_eq!(cluster.of_address(ip("10.244.200.1")), None);
}
