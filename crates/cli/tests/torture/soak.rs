//! Attached and detached in any order, with faults, until it is enough.

use std::collections::BTreeMap;

use serde_json::Value;
use testkit::fault::{Blow, failures};
use testkit::{Lab, Place as _, Tally, feature};

use crate::chance::Chance;
use crate::scenario::Scenario;
use crate::world::{Call, Pod, Said, World};

/// How many calls in every run, and with `--full`.
const CALLS: [usize; 2] = [300, 20_000];

/// How many containers at most at a time.
const CROWD: usize = 8;

/// How many system calls into a call it may be struck.
const DEEP: usize = 400;

/// Strikes a call somewhere, if chance has it; says whether it did.
fn call(
    world: &World<'_>,
    call: &Call<'_>,
    chance: &mut Chance,
    tally: &mut Tally,
) -> (Said, bool) {
    if !chance.once_in(10) {
        tally.count("soak", call.verb, "left alone");
        return (world.call(call), false);
    }
    let (at, kill, which) = (chance.below(DEEP), chance.once_in(2), chance.below(8));
    tally.count("soak", call.verb, if kill { "killed" } else { "failed" });
    let mut seen = 0;
    let ended = world.follow(call, &mut |moment| {
        seen += 1;
        let errors = failures(moment.call);
        match (seen == at, kill, errors.is_empty()) {
            (true, true, _) => Blow::Kill,
            (true, false, false) => Blow::Fail(errors[which % errors.len()]),
            _ => Blow::Spare,
        }
    });
    (Said::of(&ended, call.verb), ended.struck)
}

#[test]
fn a_host_is_as_before_after_many_calls_and_faults() {
    testkit::require!("root", "ptrace");
    let calls = CALLS[usize::from(feature::available("full"))];
    let scenario = Scenario::chain();
    let plugin = &scenario.plugins[0];
    let lab = Lab::new("soak");
    let tally = lab.enter(|| {
        let world = World::enter(&lab);
        let mut tally = Tally::new();
        let mut chance = Chance::new(20_000);
        // What a network's first container leaves for the next.
        let first = world.pod("first");
        let result = world.done(&first.call("ADD", plugin));
        world.done(&Call { previous: result, ..first.call("DEL", plugin) });
        let before = world.look();
        // One network, one set of host ports: whoever has them is the only one, so each container has a list of its own.
        let lists: Vec<Value> = (0..CROWD)
            .map(|place| {
                let mut list = plugin.clone();
                for port in
                    list.pointer_mut("/runtimeConfig/portMappings").unwrap().as_array_mut().unwrap()
                {
                    let own = port["hostPort"].as_u64().unwrap() + 10 * place as u64;
                    port["hostPort"] = own.into();
                }
                list
            })
            .collect();
        let mut living: BTreeMap<usize, (Pod, Option<Value>)> = BTreeMap::new();
        let mut made = 0;
        for _ in 0..calls {
            let place = chance.below(CROWD);
            let list = &lists[place];
            let Some((pod, result)) = living.remove(&place) else {
                made += 1;
                let pod = world.pod(&format!("s{made}"));
                let (said, struck) = call(&world, &pod.call("ADD", list), &mut chance, &mut tally);
                match said {
                    Said::Done(result) => drop(living.insert(place, (pod, result))),
                    // Whoever was struck is detached later, like any other.
                    Said::Died(_) | Said::Error(_) if struck => {
                        drop(living.insert(place, (pod, None)));
                    }
                    other => tally.found(format!("soak ADD left alone: {} said {other:?}", pod.id)),
                }
                continue;
            };
            // Half of the containers are gone before they are detached.
            if chance.once_in(2) {
                pod.end();
            }
            let previous = result.clone().filter(|_| chance.once_in(2));
            let del = Call { previous, ..pod.call("DEL", list) };
            let (said, struck) = call(&world, &del, &mut chance, &mut tally);
            match said {
                Said::Done(_) => tally_left(&mut tally, &pod),
                Said::Died(_) | Said::Error(_) if struck => {
                    drop(living.insert(place, (pod, result)));
                }
                other => tally.found(format!("soak DEL left alone: {} said {other:?}", pod.id)),
            }
            if 3 < tally.findings() {
                break;
            }
        }
        for (place, (pod, _)) in living {
            let said = world.call(&pod.call("DEL", &lists[place]));
            if !said.is_done() {
                tally.found(format!("soak DEL left alone: at the end {} said {said:?}", pod.id));
            }
        }
        let mut gc = Call { valid: Some(Vec::new()), ..world.pod("none").call("GC", plugin) };
        gc.previous = None;
        world.done(&gc);
        for line in world.left(&before) {
            tally.found(format!("soak DEL left alone: in the end: {line}"));
        }
        tally
    });
    tally.finish();
}

/// What is left in a container that was detached.
fn tally_left(tally: &mut Tally, pod: &Pod) {
    for line in pod.left() {
        tally.found(format!("soak DEL left alone: in {}: {line}", pod.id));
    }
}
