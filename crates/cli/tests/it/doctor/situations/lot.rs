//! Situations drawn by lot, for a person who knows neither the node nor the code. For each the test
//! prints what does not work, and the output of the first commands of `docs/doctor.md`. It prints
//! what was done to the node only after all of them, so that the person can first write down the
//! causes.

use testkit::{Chance, require};

use super::more::MORE;
use super::node::Node;
use super::{ExpectedFinding, Situation, Symptom, act, all, fails};
use crate::support::call_in;

/// How many are drawn.
const DRAWN: usize = 10;

/// This situation leaves tables that cannot be removed.
const LEGACY: u8 = 3;

/// `NETWRIGHT_SEED` chooses the lot; a run prints which one it had.
#[test]
fn ten_that_are_drawn_are_told_in_words() {
    require!("root", "full", "program:tc", "program:nft", "program:iptables-nft");
    let is_drawn = |one: &&Situation| {
        !matches!(one.finds, ExpectedFinding::Refusal(_)) && one.number != LEGACY
    };
    let mut urn: Vec<&Situation> = all().filter(is_drawn).chain(MORE).collect();
    let mut chance = Chance::new(250);
    let mut node = Node::new("doctor-lot");
    let (mut causes, mut wrong) = (Vec::new(), Vec::new());
    for number in 1..=DRAWN {
        let situation = urn.swap_remove(chance.below(urn.len()));
        let mut mistakes = Vec::new();
        act(&situation.breaks, &mut node, &mut mistakes, "breaking");
        fails(&situation.fails, &node, &mut mistakes);
        println!("---- {number} of {DRAWN}: {}", heard(&situation.fails));
        let [told, of_c1] =
            [&["doctor"][..], &["doctor", "c1"]].map(|call| call_in(&node.lab, call));
        println!("# netwright doctor\n{}# netwright doctor c1\n{}", told.both(), of_c1.both());
        let first = told.stdout.split_whitespace().nth(1);
        if first != Some(situation.finds.id()) {
            mistakes.push(format!("not {:?} first: {}", situation.finds, told.stdout));
        }
        causes.push(format!("{number}: {}", situation.is));
        act(&situation.mends, &mut node, &mut mistakes, "mending");
        if !mistakes.is_empty() {
            wrong.push((situation.is, mistakes));
        }
        if !node.complaints().is_empty() {
            node = Node::new("doctor-lot");
        }
    }
    println!("---- what it was\n{}", causes.join("\n"));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The complaint of a person who asks for help.
fn heard(fails: &Symptom) -> String {
    match fails {
        Symptom::Silent(ways) => {
            let words: Vec<&str> = ways.iter().map(|way| way.words()).collect();
            words.join("; ")
        }
        Symptom::Command(command) => format!("this fails: {command}"),
        Symptom::Latent(why) => format!("something is wrong now and then: {why}"),
    }
}
