//! From one program to the next, in one transaction.

use firewall::pods::{Logging, PodsTable};
use kernel::nft::NftSocket;
use netwright_firewall as firewall;
use policy::{Compiler, Program, Step, World};
use testkit::{Chance, Lab, Place};

use super::clusters::{Case, NODE, placed};

/// Pairs of clusters in every run.
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
        assert_eq!(done - generation, u32::from(!steps.is_empty()), "transactions");
        let difference = table.observe(after).unwrap();
        assert!(difference.is_empty(), "{difference}\nafter {steps:#?}");
        // Where the table is another one, nothing happens.
        if before != after {
            assert!(!table.observe(before).unwrap().is_empty());
            assert!(table.apply(steps).is_err(), "{steps:#?} twice");
            assert_eq!(nft.generation().unwrap(), done);
        }
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
        // There and back again, as one: whatever comes and goes within it.
        let empty = Program::empty();
        let mut steps = Program::difference(&now, &empty);
        steps.extend(Program::difference(&empty, &now));
        table_stays(&lab, &now, &steps);
    }
}

/// Steps of which the later undo the earlier.
fn table_stays(lab: &Lab, program: &Program, steps: &[Step]) {
    let (mut table, _) = opened(lab);
    table.apply(steps).unwrap_or_else(|error| panic!("{steps:#?}: {error:?}"));
    let difference = table.observe(program).unwrap();
    assert!(difference.is_empty(), "{difference}\nafter {steps:#?}");
}

#[test]
fn a_table_in_another_namespace() {
    testkit::require!("root");
    let lab = Lab::new("podsother");
    let netns = kernel::netns::Netns::open(&lab.netns_path()).unwrap();
    let mut table = PodsTable::open_in(&netns, Logging::default()).unwrap();
    assert!(!table.exists().unwrap());
    table.remove().unwrap();
    assert_eq!(table.dropped().unwrap(), firewall::pods::Dropped::default());
    table.put(&Program::empty()).unwrap();
    assert!(table.exists().unwrap());
    assert!(lab.sh("nft list tables").contains("table inet netwright-policy"));
    table.remove().unwrap();
    assert!(!table.exists().unwrap());
    assert_eq!(lab.sh("nft list ruleset"), "");
}
