//! Two faults at once: `doctor` names both, unless one of them hides the other.

use std::collections::BTreeSet;

use serde_json::Value;
use testkit::{Chance, require, share};

use super::node::{Node, findings};
use super::{ExpectedFinding, NOT_YET, Situation, act, all};

/// How many pairs are tried. A run that does not try all has fewer: a pair takes some five seconds.
const PAIRS: usize = 200;
const PAIRS_OF_A_SHARE: usize = 20;

/// Of how many in a hundred both must be named, where neither fault hides the other.
const NAMED: usize = 95;

/// Faults of which nothing can be seen while there is one of others, and why. The others must be
/// named.
const HIDDEN: [(&[u8], &[u8], &str); 3] = [
    (
        &[9],
        &[1, 2, 4, 6, 16, 29, 30, 31, 37, 43, 44],
        "no container gets an answer from beyond the node, so none shows which sizes pass",
    ),
    (&[58], &[67], "the bridge has no IPv6, so no question by it comes to the filter"),
    (&[5, 17, 49, 50], &[33], "it is gone with the interface"),
];

/// Pairs of which the second fault mends the first: both change the one plugin of a list, or what
/// listens in a container.
const ONE_MENDS_THE_OTHER: [[u8; 2]; 2] = [[25, 68], [42, 63]];

/// This situation removes what others make, so it is made first.
const FLUSH: u8 = 16;
/// This situation leaves tables that cannot be removed.
const LEGACY: u8 = 3;

#[test]
fn both_of_two_faults_are_named() {
    require!("root", "full", "program:nft", "program:iptables-nft");
    let is_tried = |one: &&Situation| {
        !matches!(one.finds, ExpectedFinding::Refusal(_))
            && one.number != LEGACY
            && NOT_YET.iter().all(|(number, _)| *number != one.number)
    };
    let situations: Vec<&Situation> = all().filter(is_tried).collect();
    let mut chance = Chance::new(25);
    let mut node = Node::new("doctor-pairs");
    let pairs = share::count(PAIRS, PAIRS_OF_A_SHARE);
    let (mut tried, mut hidden, mut unnamed) = (0, Vec::new(), Vec::new());
    while tried < pairs {
        let mut pair = [*chance.of(&situations), *chance.of(&situations)];
        let mut numbers = pair.map(|one| one.number);
        numbers.sort_unstable();
        if numbers[0] == numbers[1] || ONE_MENDS_THE_OTHER.contains(&numbers) {
            continue;
        }
        if pair[1].number == FLUSH {
            pair.reverse();
        }
        let mut impossible = Vec::new();
        for situation in pair {
            act(&situation.breaks, &mut node, &mut impossible, "breaking");
        }
        // Some faults cannot be made after another one.
        if impossible.is_empty() {
            tried += 1;
            let found = findings(&node.doctor(&[]));
            let numbers = pair.map(|one| one.number);
            for (situation, other) in [(pair[0], pair[1]), (pair[1], pair[0])] {
                if is_named(situation, &found, &node) {
                    continue;
                }
                match why_hidden(situation.number, other.number) {
                    Some(why) => hidden.push((tried, numbers, situation.is, why)),
                    None => unnamed.push((tried, numbers, situation.is, ids(&found))),
                }
            }
        }
        for situation in [pair[1], pair[0]] {
            act(&situation.mends, &mut node, &mut Vec::new(), "mending");
        }
        if !node.complaints().is_empty() {
            node = Node::new("doctor-pairs");
        }
    }
    let wrong: BTreeSet<usize> = unnamed.iter().map(|(pair, ..)| *pair).collect();
    hidden.retain(|(pair, ..)| !wrong.contains(pair));
    let seen = pairs - hidden.len();
    let named = seen - wrong.len();
    eprintln!(
        "MEASURED of {pairs} pairs of faults both were named in {named}; in {} one hid the other",
        hidden.len()
    );
    for (_, pair, is, why) in &hidden {
        eprintln!("of {pair:?} this was hidden: {is}; {why}");
    }
    for (_, pair, is, found) in &unnamed {
        eprintln!("of {pair:?} this was not named: {is}; found {}", found.join(" "));
    }
    assert!(seen * NAMED <= named * 100, "{unnamed:#?}");
}

/// Says why a fault cannot be seen beside another one.
fn why_hidden(fault: u8, other: u8) -> Option<&'static str> {
    let is_so = |(faults, others, _): &&(&[u8], &[u8], &str)| {
        faults.contains(&fault) && others.contains(&other)
    };
    HIDDEN.iter().find(is_so).map(|(_, _, why)| *why)
}

#[test]
fn what_hides_a_fault_is_another_fault_that_is_not_hidden_by_it() {
    let numbers: BTreeSet<u8> = all().map(|one| one.number).collect();
    for (faults, others, why) in HIDDEN {
        assert!(faults.iter().chain(others).all(|number| numbers.contains(number)), "{why}");
        for fault in faults {
            for other in others {
                assert_eq!(why_hidden(*other, *fault), None, "{fault} and {other}");
            }
        }
    }
}

/// Says whether a fault is among the causes, or among the findings that they explain.
fn is_named(situation: &Situation, found: &[Value], node: &Node) -> bool {
    let is = |finding: &Value| {
        let finds = &situation.finds;
        finds.is_what_was_found(finding, node) || finds.is_further_difference(finding, node)
    };
    found.iter().any(|cause| {
        is(cause) || cause["explains"].as_array().is_some_and(|explained| explained.iter().any(is))
    })
}

fn ids(found: &[Value]) -> Vec<String> {
    found.iter().map(|finding| finding["id"].to_string()).collect()
}
