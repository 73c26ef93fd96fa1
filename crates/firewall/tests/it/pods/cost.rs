//! The cost of a change is the same number of messages however large the cluster is. Also, how long
//! many elements take.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use firewall::pods::{Logging, PodsTable, transactions};
use kernel::nft::Batch;
use netwright_firewall as firewall;
use policy::program::Set;
use policy::{Change, Compiler, Policy, PolicyId, Program, World};
use serde_json::{Value, json};
use testkit::{Lab, Place, wait_until};

use super::clusters::NODE;
use super::clusters::support::{namespace, network, node, pod};

/// A pod `shop/web` of the node that two policies select, and as many other policies as wanted.
fn large(policies: usize) -> Compiler {
    let mut objects: Vec<Change> = vec![
        node(NODE, json!({}), &["192.0.2.1"]).into(),
        namespace("shop", json!({})).into(),
        pod("shop/web", NODE, json!({"app": "web"}), &["10.244.1.1", "fd00:244:1::1"]).into(),
        network("shop/web", web("client")).into(),
        network("shop/all", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))
            .into(),
    ];
    let other = network(
        "shop/other",
        json!({
            "podSelector": {"matchLabels": {"app": "other"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"client-of": "other"}}}]}],
        }),
    );
    objects.extend((0..policies).map(|number| {
        let (namespace, name) = ("shop".to_owned(), format!("policy-{number}"));
        Policy { id: PolicyId::Network { namespace, name }, ..other.clone() }.into()
    }));
    Compiler::new(World::of(None, objects), NODE)
}

fn web(role: &str) -> Value {
    json!({
        "podSelector": {"matchLabels": {"app": "web"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": role}}}]}],
    })
}

#[test]
fn a_change_takes_the_same_messages_however_many_policies_there_are() {
    let mut costs = BTreeSet::new();
    for policies in [10, 10_000] {
        let mut compiler = large(policies);
        let mut messages = |change: Change| -> usize {
            transactions(&compiler.apply(change)).iter().map(Batch::messages).sum()
        };
        let remote =
            |labels: Value| pod("shop/remote", "two", labels, &["10.244.2.9", "fd00:244:2::9"]);
        let local = pod("shop/near", NODE, json!({"app": "web"}), &["10.244.1.9", "fd00:244:1::9"]);
        costs.insert([
            ("a remote pod that no policy means", messages(remote(json!({"app": "x"})).into())),
            ("it gets the label of a peer", messages(remote(json!({"role": "client"})).into())),
            ("it loses the label", messages(remote(json!({"role": "x"})).into())),
            ("a pod of this node", messages(local.clone().into())),
            ("a policy that changes", messages(network("shop/web", web("user")).into())),
            (
                "another pod's policy",
                messages(
                    network(
                        "shop/policy-0",
                        json!({"podSelector": {"matchLabels": {"app": "other"}}}),
                    )
                    .into(),
                ),
            ),
            ("the pod of this node goes", messages(Change::Pod(local.uid, None))),
        ]);
    }
    let costs: Vec<_> = costs.into_iter().collect();
    let [costs] = costs.as_slice() else { panic!("it depends on the size: {costs:#?}") };
    let expected = [
        ("a remote pod that no policy means", 0),
        // One element for each family.
        ("it gets the label of a peer", 2),
        ("it loses the label", 2),
        // For each family and direction, a verdict and its key.
        ("a pod of this node", 8),
        // Its old sets are removed, its new sets come with their elements, and its chain is flushed
        // and gets two rules.
        ("a policy that changes", 7),
        ("another pod's policy", 0),
        ("the pod of this node goes", 8),
    ];
    assert_eq!(costs, &expected);
}

/// The number of pods in a large selector.
pub(super) fn many() -> u32 {
    if super::has_time() { 100_000 } else { 1_000 }
}

pub(super) fn addresses(count: u32) -> BTreeSet<IpAddr> {
    let first = u32::from(Ipv4Addr::new(10, 64, 0, 0));
    (0..count).map(|number| Ipv4Addr::from(first + number).into()).collect()
}

#[test]
fn many_elements_are_loaded() {
    testkit::require!("root", "full");
    let lab = Lab::new("podsmany");
    let mut table = lab.enter(|| PodsTable::open(Logging::default())).unwrap();
    let mut program = Program::empty();
    program.sets.insert("sel4-many".to_owned(), Set::Addresses(addresses(many())));
    let mut timed = |what: &str, work: &mut dyn FnMut(&mut PodsTable)| {
        let begin = Instant::now();
        work(&mut table);
        println!("{} elements: {what} {:?}", many(), begin.elapsed());
    };
    for _ in 0..3 {
        timed("written", &mut |table| table.put(&program).unwrap());
        // The kernel rearranges a large set for a moment after it was written, and a list of its
        // elements that is read meanwhile may lack some.
        timed("compared", &mut |table| {
            wait_until("the elements to be as written", || {
                table.observe(&program).unwrap().is_empty()
            });
        });
    }
    let one = |new| {
        let element = policy::program::Element::Address("10.0.0.1".parse().unwrap());
        let set = "sel4-many".to_owned();
        [match new {
            true => policy::Step::AddElement { set, element },
            false => policy::Step::RemoveElement { set, element },
        }]
    };
    timed("one more", &mut |table| table.apply(&one(true)).unwrap());
    timed("one less", &mut |table| table.apply(&one(false)).unwrap());
}
