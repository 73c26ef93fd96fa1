//! From one program to the next in as few transactions as possible.

use firewall::FirewallError;
use firewall::pods::{Logging, PodsTable, transactions};
use kernel::nft::NftSocket;
use netwright_firewall as firewall;
use policy::{Change, Compiler, Program, Step, World};
use serde_json::json;
use testkit::{Chance, Lab, Place};

use super::clusters::support::{namespace, network, pod};
use super::clusters::{Case, NODE, placed};

/// The number of pairs of clusters in every run.
const PAIRS: usize = 12;

fn opened(lab: &Lab) -> (PodsTable, NftSocket) {
    lab.enter(|| (PodsTable::open(Logging::default()).unwrap(), NftSocket::open().unwrap()))
}

fn compiler(case: &Case) -> Compiler {
    Compiler::new(World::of(case.isolation.clone(), case.objects.clone()), NODE)
}

#[test]
fn steps_leave_what_the_whole_table_would_be() {
    testkit::require!("root");
    let lab = Lab::new("podsteps");
    let (mut table, mut nft) = opened(&lab);
    let mut chance = Chance::new(5);
    let mut check = |before: &Program, steps: &[Step], after: &Program| {
        let generation = nft.generation().unwrap();
        table.apply(steps).unwrap_or_else(|error| panic!("{steps:#?}: {error:?}"));
        let done = nft.generation().unwrap();
        let [first, second] = transactions(steps);
        let wanted = u32::from(!first.is_empty()) + u32::from(!second.is_empty());
        assert_eq!(done - generation, wanted, "transactions");
        // Only additions need two transactions.
        let comes =
            |step: &Step| matches!(step, Step::AddSet { .. } | Step::PutChain { new: true, .. });
        assert_eq!(first.is_empty(), !steps.iter().any(comes), "{first}");
        let difference = table.observe(after).unwrap();
        assert!(difference.is_empty(), "{difference}\nafter {steps:#?}");
        if before != after {
            assert!(!table.observe(before).unwrap().is_empty());
        }
        // The steps once more: what they add exists, and what they remove is gone. The other steps
        // can be repeated.
        let again = |step: &Step| match step {
            Step::PutChain { new, .. } => !new,
            Step::Verdict { before, chain, .. } => before.is_some() && chain.is_some(),
            _ => false,
        };
        assert_eq!(table.apply(steps).is_ok(), steps.iter().all(again), "{steps:#?} twice");
        assert!(table.observe(after).unwrap().is_empty());
    };
    let mut now = Program::empty();
    lab.enter(|| PodsTable::open(Logging::default()).unwrap().put(&now)).unwrap();
    for _ in 0..PAIRS {
        let case = placed(Case::random(&mut chance));
        let mut compiler = compiler(&case);
        check(&now, &Program::difference(&now, compiler.program()), compiler.program());
        now = compiler.program().clone();
        for change in &case.changes {
            let steps = compiler.apply(change.clone());
            check(&now, &steps, compiler.program());
            now = compiler.program().clone();
        }
        // There and back in one transaction, with additions that the same transaction removes.
        let empty = Program::empty();
        let mut steps = Program::difference(&now, &empty);
        steps.extend(Program::difference(&empty, &now));
        table_stays(&lab, &now, &steps);
    }
}

/// Steps of which the later ones undo the earlier ones.
fn table_stays(lab: &Lab, program: &Program, steps: &[Step]) {
    let (mut table, _) = opened(lab);
    table.apply(steps).unwrap_or_else(|error| panic!("{steps:#?}: {error:?}"));
    let difference = table.observe(program).unwrap();
    assert!(difference.is_empty(), "{difference}\nafter {steps:#?}");
}

/// If the kernel refuses the second of two transactions, the first is undone.
#[test]
fn steps_that_are_refused_leave_the_table_as_it_was() {
    testkit::require!("root");
    let lab = Lab::new("podsundo");
    let (mut table, _) = opened(&lab);
    let mut compiler = Compiler::new(World::new(None), NODE);
    let objects: [Change; 2] = [
        namespace("shop", json!({})).into(),
        pod("shop/web", NODE, json!({"app": "web"}), &["10.244.1.1"]).into(),
    ];
    for object in objects {
        compiler.apply(object);
    }
    table.put(compiler.program()).unwrap();
    // Another program leads the pod's address elsewhere, and a new policy selects the pod.
    lab.sh("nft add element inet netwright-policy in4 '{ 10.244.1.1 : goto unknown-in }'");
    let before = lab.sh("nft list ruleset");
    let block = json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}});
    let spec = json!({"podSelector": {}, "ingress": [
        {"from": [{"podSelector": {}}, block], "ports": [{"port": 80}, {"port": 81}, {"port": 82}]},
    ]});
    let steps = compiler.apply(network("shop/policy", spec).into());
    let [first, second] = transactions(&steps);
    assert!(!first.is_empty() && !second.is_empty(), "{first}{second}");
    let error = table.apply(&steps).unwrap_err();
    assert!(matches!(error, FirewallError::Tables(_)), "{error:?}");
    assert_eq!(lab.sh("nft list ruleset"), before);
    table.bring(compiler.program()).unwrap();
    assert!(table.observe(compiler.program()).unwrap().is_empty());
}

#[test]
fn a_table_in_another_namespace() {
    testkit::require!("root");
    let lab = Lab::new("podsother");
    let netns = kernel::netns::Netns::open(&lab.netns_path()).unwrap();
    let mut table = PodsTable::open_in(&netns, Logging::default()).unwrap();
    assert!(!table.exists().unwrap());
    table.remove().unwrap();
    assert_eq!(table.dropped().unwrap(), firewall::pods::DroppedPackets::default());
    table.put(&Program::empty()).unwrap();
    assert!(table.exists().unwrap());
    assert!(lab.sh("nft list tables").contains("table inet netwright-policy"));
    table.remove().unwrap();
    assert!(!table.exists().unwrap());
    assert_eq!(lab.sh("nft list ruleset"), "");
}
