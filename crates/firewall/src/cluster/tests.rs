use std::net::{Ipv4Addr, Ipv6Addr};

use expect_test::{Expect, expect};
use kernel::nft::{Element, Expr, Hook, Operation, PayloadBase, Verdict};
use proptest::prelude::*;

use super::*;
use crate::declared::{ChainState, Elements, SetKind, SetState, TableState};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn node(text: &str) -> Member {
    Member::Node(text.parse().unwrap())
}

fn rules() -> Rules {
    let content = Some((12, vec![0, 0, 1]));
    let vxlan = Encapsulation { protocol: 17, port: Some(8472), content };
    Rules { masquerade: true, tunnels: vec![vxlan] }
}

fn filter() -> ClusterFilter {
    let members = [
        Member::Own(net("10.244.1.0/24")),
        Member::Own(net("fd00:244:0:1::/64")),
        Member::Cluster(net("10.244.0.0/16")),
        Member::Cluster(net("fd00:244::/48")),
        // Inside another: the kernel would refuse it.
        Member::Cluster(net("10.244.7.0/24")),
        Member::Exempt(net("10.96.0.0/12")),
        node("192.0.2.1"),
        node("192.0.2.2"),
        node("2001:db8::1"),
        Member::Tunnel("nw-vxlan4".to_owned()),
    ];
    ClusterFilter::new(rules(), members)
}

/// A cluster that lists its nodes' prefixes only, each with two addresses.
fn nodes(count: u32) -> impl Iterator<Item = Member> {
    (0..count).flat_map(numbered)
}

fn numbered(number: u32) -> [Member; 4] {
    let v4 = Ipv4Addr::from(0x0a00_0000 + (number << 8));
    let v6 = Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(number) << 64);
    [
        Member::Cluster(format!("{v4}/24").parse().unwrap()),
        Member::Cluster(format!("{v6}/64").parse().unwrap()),
        Member::Node(Ipv4Addr::from(0xac10_0000 + number).into()),
        Member::Node(Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(number)).into()),
    ]
}

/// The elements that a transaction deletes and adds, as nft writes them.
fn elements(batch: &Batch) -> String {
    let mut text = String::new();
    for operation in batch.operations() {
        let (verb, set, elements) = match operation {
            Operation::AddElements { set, elements, .. } => ("add", set, elements),
            Operation::DeleteElements { set, elements, .. } => ("delete", set, elements),
            _ => continue,
        };
        let kind = Set::ALL.into_iter().find(|known| known.name() == set).unwrap();
        let one = |element: &Element| Span::of(element, kind.has_ranges()).text(&[kind.key()]);
        let all: Vec<String> = elements.iter().map(one).collect();
        text += &format!("{verb} {set} {{ {} }}\n", all.join(", "));
    }
    text
}

#[track_caller]
fn check(batch: &Batch, expected: Expect) {
    expected.assert_eq(&elements(batch));
}

#[test]
fn a_transaction_has_the_elements_that_a_comparison_has() {
    for filter in [filter(), ClusterFilter::new(rules(), nodes(300))] {
        for set in Set::ALL {
            let entries = filter.entries(set);
            let compared: Vec<Element> =
                entries.iter().map(|entry| entry.element(set.has_ranges())).collect();
            assert_eq!(filter.elements(set), compared, "{}", set.name());
        }
    }
}

#[test]
fn the_whole_table_is_made_in_one_transaction() {
    expect![[r#"
        add table inet netwright-routing
        delete table inet netwright-routing
        add table inet netwright-routing
        add set inet netwright-routing own4
        add set inet netwright-routing own6
        add set inet netwright-routing cluster4
        add set inet netwright-routing cluster6
        add set inet netwright-routing exempt4
        add set inet netwright-routing exempt6
        add set inet netwright-routing nodes4
        add set inet netwright-routing nodes6
        add set inet netwright-routing addresses4
        add set inet netwright-routing addresses6
        add set inet netwright-routing endpoints4
        add set inet netwright-routing endpoints6
        add set inet netwright-routing local4
        add set inet netwright-routing local6
        add set inet netwright-routing plain4
        add set inet netwright-routing plain6
        add set inet netwright-routing routed4
        add set inet netwright-routing routed6
        add set inet netwright-routing underlay
        add set inet netwright-routing uplinks
        add set inet netwright-routing tunnels
        add element of inet netwright-routing own4
        add element of inet netwright-routing own6
        add element of inet netwright-routing cluster4
        add element of inet netwright-routing cluster6
        add element of inet netwright-routing exempt4
        add 2 elements of inet netwright-routing nodes4
        add element of inet netwright-routing nodes6
        add element of inet netwright-routing tunnels
        add chain inet netwright-routing strangers
        add chain inet netwright-routing too-big
        add chain inet netwright-routing sources
        add chain inet netwright-routing to-nodes
        add chain inet netwright-routing prerouting
        add chain inet netwright-routing input
        add chain inet netwright-routing forward
        add chain inet netwright-routing outbound
        add chain inet netwright-routing postrouting
        add rule to inet netwright-routing prerouting
        add rule to inet netwright-routing input
        add rule to inet netwright-routing strangers
        add rule to inet netwright-routing strangers
        add rule to inet netwright-routing strangers
        add rule to inet netwright-routing strangers
        add rule to inet netwright-routing input
        add rule to inet netwright-routing too-big
        add rule to inet netwright-routing too-big
        add rule to inet netwright-routing too-big
        add rule to inet netwright-routing prerouting
        add rule to inet netwright-routing prerouting
        add rule to inet netwright-routing sources
        add rule to inet netwright-routing sources
        add rule to inet netwright-routing sources
        add rule to inet netwright-routing sources
        add rule to inet netwright-routing sources
        add rule to inet netwright-routing sources
        add rule to inet netwright-routing sources
        add rule to inet netwright-routing sources
        add rule to inet netwright-routing sources
        add rule to inet netwright-routing sources
        add rule to inet netwright-routing outbound
        add rule to inet netwright-routing outbound
        add rule to inet netwright-routing outbound
        add rule to inet netwright-routing outbound
        add rule to inet netwright-routing to-nodes
        add rule to inet netwright-routing to-nodes
        add rule to inet netwright-routing to-nodes
        add rule to inet netwright-routing to-nodes
        add rule to inet netwright-routing to-nodes
        add rule to inet netwright-routing to-nodes
        add rule to inet netwright-routing forward
        add rule to inet netwright-routing forward
        add rule to inet netwright-routing postrouting
        add rule to inet netwright-routing postrouting
    "#]]
    .assert_eq(&filter().batch().to_string());
    check(
        &filter().batch(),
        expect![[r#"
            add own4 { 10.244.1.0-10.244.1.255 }
            add own6 { fd00:244:0:1::-fd00:244:0:1:ffff:ffff:ffff:ffff }
            add cluster4 { 10.244.0.0-10.244.255.255 }
            add cluster6 { fd00:244::-fd00:244:0:ffff:ffff:ffff:ffff:ffff }
            add exempt4 { 10.96.0.0-10.111.255.255 }
            add nodes4 { 192.0.2.1, 192.0.2.2 }
            add nodes6 { 2001:db8::1 }
            add tunnels { "nw-vxlan4" }
        "#]],
    );
}

#[test]
fn without_masquerade_no_rule_translates() {
    let quiet = ClusterFilter::new(Rules { masquerade: false, ..rules() }, []);
    let translates = |filter: &ClusterFilter| {
        let rules = layout::rules(filter.rules());
        let all = rules.into_iter().flat_map(|rule| rule.exprs);
        all.filter(|expr| matches!(expr, Expr::Masquerade { .. })).count()
    };
    assert_eq!((translates(&quiet), translates(&filter())), (0, 2));
}

/// The first rules of `prerouting` and `input`, and those of `outbound` for each set of nodes.
#[test]
fn a_tunnel_without_ports_is_picked_by_its_protocol_alone() {
    let tunnel = Encapsulation { protocol: 4, port: None, content: None };
    let rules = layout::rules(&Rules { masquerade: false, tunnels: vec![tunnel] });
    let is_protocol = |expr: &Expr| matches!(expr, Expr::Cmp { data, .. } if *data == [4]);
    let picks: Vec<_> = rules.iter().filter(|rule| rule.exprs.iter().any(is_protocol)).collect();
    let looks_inside =
        |expr: &Expr| matches!(expr, Expr::Payload { base: PayloadBase::Transport, .. });
    assert_eq!(picks.len(), 6);
    assert!(!picks.iter().any(|rule| rule.exprs.iter().any(looks_inside)));
}

#[test]
fn a_node_comes_and_goes_by_its_elements() {
    let mut filter = filter();
    let comes = Change { add: vec![node("192.0.2.3"), node("2001:db8::3")], remove: Vec::new() };
    check(
        &filter.change(&comes),
        expect![[r#"
            add nodes4 { 192.0.2.3 }
            add nodes6 { 2001:db8::3 }
        "#]],
    );
    // Its successor has the address too.
    check(&filter.change(&Change { add: vec![node("192.0.2.3")], remove: Vec::new() }), expect![]);
    let goes = Change { add: Vec::new(), remove: comes.add };
    check(
        &filter.change(&goes),
        expect![[r#"
            delete nodes6 { 2001:db8::3 }
        "#]],
    );
    // It moves from one node to another: nothing changes in between.
    let moves = Change { add: vec![node("192.0.2.3")], remove: vec![node("192.0.2.3")] };
    assert!(filter.change(&moves).is_empty());
}

#[test]
fn a_wider_range_takes_the_place_of_those_inside() {
    let mut filter = filter();
    let members = [Member::Exempt(net("10.0.0.0/8")), Member::Tunnel("flannel.1".to_owned())];
    let change = Change { add: members.to_vec(), remove: Vec::new() };
    check(
        &filter.change(&change),
        expect![[r#"
            delete exempt4 { 10.96.0.0-10.111.255.255 }
            add exempt4 { 10.0.0.0-10.255.255.255 }
            add tunnels { "flannel.1" }
        "#]],
    );
    check(
        &filter.change(&Change { add: Vec::new(), remove: members.to_vec() }),
        expect![[r#"
            delete exempt4 { 10.0.0.0-10.255.255.255 }
            delete tunnels { "flannel.1" }
            add exempt4 { 10.96.0.0-10.111.255.255 }
        "#]],
    );
    assert_eq!(filter, self::filter());
}

#[test]
fn a_change_takes_the_same_messages_whatever_the_size() {
    let counted = |count: u32| {
        let mut filter = ClusterFilter::new(rules(), nodes(count));
        let comes = filter.change(&Change { add: numbered(count).to_vec(), remove: Vec::new() });
        let goes = filter.change(&Change { add: Vec::new(), remove: numbered(7).to_vec() });
        (comes.messages(), goes.messages())
    };
    // One for each of cluster4, cluster6, nodes4 and nodes6.
    assert_eq!(counted(50), (4, 4));
    assert_eq!(counted(5_000), (4, 4));
}

#[test]
fn what_is_forwarded_has_no_overlaps() {
    let texts: Vec<String> = filter().forwarded().iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.244.0.0/16", "fd00:244::/48"]);
}

/// The difference after another program has changed the table.
fn after(change: impl FnOnce(&mut TableState)) -> Difference {
    let filter = filter();
    let mut found = state::wanted(&filter);
    change(&mut found);
    let difference = state::difference(&found, &filter);
    assert_eq!(difference.is_empty(), difference.repair().is_empty());
    difference
}

#[track_caller]
fn told(difference: &Difference, expected: Expect) {
    expected.assert_eq(&(difference.lines().join("\n") + "\n"));
}

fn elements_of<'t>(found: &'t mut TableState, set: &str) -> &'t mut Elements {
    &mut found.sets.get_mut(set).unwrap().elements
}

fn chain(hook: Option<Hook>, rules: impl IntoIterator<Item = Vec<Expr>>) -> ChainState {
    let mut chain = ChainState { hook, ..ChainState::default() };
    rules.into_iter().for_each(|rule| chain.add_rule(rule));
    chain
}

#[test]
fn nothing_is_different_in_the_table_as_it_was_made() {
    let difference = after(|_| {});
    assert!(difference.is_empty(), "{difference}");
}

#[test]
fn lost_and_foreign_elements_are_repaired_alone() {
    let difference = after(|found| {
        let foreign = (3..9).map(|last| state::range(net(&format!("192.0.2.{last}/32"))));
        *elements_of(found, "nodes4") = foreign.map(|span| (span, None)).collect();
        elements_of(found, "cluster6").clear();
    });
    told(
        &difference,
        expect![[r#"
            missing from set cluster6 of table inet netwright-routing: fd00:244::-fd00:244:0:ffff:ffff:ffff:ffff:ffff
            missing from set nodes4 of table inet netwright-routing: 192.0.2.1, 192.0.2.2
            foreign in set nodes4 of table inet netwright-routing: 192.0.2.3, 192.0.2.4, 192.0.2.5 and 3 more
        "#]],
    );
    check(
        difference.repair(),
        expect![[r#"
            delete nodes4 { 192.0.2.3, 192.0.2.4, 192.0.2.5, 192.0.2.6, 192.0.2.7, 192.0.2.8 }
            add cluster6 { fd00:244::-fd00:244:0:ffff:ffff:ffff:ffff:ffff }
            add nodes4 { 192.0.2.1, 192.0.2.2 }
        "#]],
    );
}

#[test]
fn a_changed_layout_is_made_anew() {
    let whole = filter().batch();
    let flushed = after(|found| *found = TableState::default());
    told(
        &flushed,
        expect![[r#"
            missing: table inet netwright-routing
        "#]],
    );
    let changed = after(|found| {
        found.chains.remove("forward");
        let accepts = vec![Expr::Verdict(Verdict::Accept)];
        let hook = layout::chains().into_iter().find_map(|chain| chain.hook);
        found.chains.insert("strangers".to_owned(), chain(None, [accepts]));
        found.chains.insert("postrouting".to_owned(), chain(hook, []));
        found.chains.insert("mine".to_owned(), chain(None, []));
        let set = SetState {
            kind: SetKind { key: None, data: None, flags: 0 },
            elements: Elements::new(),
        };
        found.sets.insert("own4".to_owned(), set.clone());
        found.sets.insert("mine".to_owned(), set);
        found.sets.remove("tunnels");
    });
    told(
        &changed,
        expect![[r#"
            chain postrouting of table inet netwright-routing is at another hook
            set own4 of table inet netwright-routing has another type
            missing: chain forward of table inet netwright-routing
            chain postrouting of table inet netwright-routing has other rules
            chain strangers of table inet netwright-routing has other rules
            foreign: chain mine of table inet netwright-routing
            missing: set tunnels of table inet netwright-routing
            foreign: set mine of table inet netwright-routing
        "#]],
    );
    assert_eq!((flushed.repair(), changed.repair()), (&whole, &whole));
}

#[test]
fn what_packets_counted_is_no_difference() {
    let difference = after(|found| {
        let rules = layout::rules(filter().rules()).into_iter();
        let strangers = rules.filter(|rule| rule.chain == "strangers").map(|rule| {
            let counted = |expr| match expr {
                Expr::Counter { .. } => Expr::Counter { packets: 7, bytes: 700 },
                other => other,
            };
            rule.exprs.into_iter().map(counted).collect()
        });
        found.chains.insert("strangers".to_owned(), chain(None, strangers));
    });
    assert!(difference.is_empty(), "{difference}");
}

proptest! {
    /// A table to which all changes were made, one by one, is the table of the filter that has all
    /// of them: repair finds nothing to do.
    #[test]
    fn changes_lead_to_the_filter(
        acts in prop::collection::vec((0_u32..12, any::<bool>()), 0..40)
    ) {
        let mut filter = filter();
        let mut noted = filter.clone();
        let mut found = state::wanted(&filter);
        for (which, adds) in acts {
            let prefix = format!("10.{}.0.0/{}", 244 + which % 2, 13 + which).parse().unwrap();
            let members = vec![
                Member::Cluster(prefix),
                Member::Exempt(prefix),
                Member::Node(Ipv4Addr::from(which % 4).into()),
                Member::Tunnel(format!("t{}", which % 3)),
            ];
            let (add, remove) = if adds { (members, Vec::new()) } else { (Vec::new(), members) };
            let change = Change { add, remove };
            noted.note(&change);
            for operation in filter.change(&change).operations() {
                let (set, elements, adds) = match operation {
                    Operation::AddElements { set, elements, .. } => (set, elements, true),
                    Operation::DeleteElements { set, elements, .. } => (set, elements, false),
                    other => panic!("{other}"),
                };
                let kind = Set::ALL.into_iter().find(|known| known.name() == set).unwrap();
                for element in elements {
                    let entry = Span::of(element, kind.has_ranges());
                    let there = elements_of(&mut found, set);
                    let before = match adds {
                        true => there.insert(entry, None),
                        false => there.remove(&entry),
                    };
                    prop_assert_eq!(before.is_none(), adds);
                }
            }
        }
        let difference = state::difference(&found, &filter);
        prop_assert!(difference.is_empty(), "{difference}");
        prop_assert_eq!(noted, filter);
    }
}
