//! A small pool is filled again and again, between kills and reboots, by a runtime that never
//! detaches dead containers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::fault::Blow;
use testkit::reference::Release;
use testkit::{Chance, Lab, Place as _, Tally, feature, share};

use crate::world::{Call, PluginAnswer, Pod, World};

/// How many addresses there are for containers: a /29 without its network, its gateway and its
/// broadcast address.
const ROOM: usize = 5;

/// The number of cycles in every run, with `--full`, and in a run that tries all.
const CYCLES: usize = 40;
const CYCLES_OF_A_SHARE: usize = 150;
const ALL_CYCLES: usize = 1000;

/// How many system calls into an ADD the kill comes.
const DEEP: usize = 250;

fn plugin() -> Value {
    json!({
        "cniVersion": "1.0.0", "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipam": { "type": "host-local", "subnet": "10.9.9.0/29" },
    })
}

/// The findings of a run.
#[derive(Debug, Default)]
struct Outcome {
    added: usize,
    exhausted: usize,
    twice: usize,
}

/// Fills the pool with containers, each with a name that no other cycle has.
fn fill(world: &World<'_>, cycle: usize, living: &mut BTreeMap<String, (Pod, String)>) -> Outcome {
    // The kernel deletes links some time after their namespace: until then they may be a
    // container's.
    let links = "test $(ip -o link show type veth | wc -l) -le";
    world.sh(&format!("until {links} {}; do sleep 0.01; done", living.len()));
    let plugin = plugin();
    let mut outcome = Outcome::default();
    let mut number = 0;
    while living.len() < ROOM {
        let id = format!("c{cycle}-{number}-{}", living.len());
        number += 1;
        let pod = world.pod(&id);
        match world.call(&pod.call("ADD", &plugin)) {
            PluginAnswer::Done(result) => {
                let result = result.unwrap();
                let address = result["ips"][0]["address"].as_str().unwrap().to_owned();
                outcome.added += 1;
                outcome.twice += living.values().filter(|(_, other)| *other == address).count();
                living.insert(id, (pod, address));
            }
            PluginAnswer::Error(error)
                if error.to_string().contains("no IP addresses available") =>
            {
                outcome.exhausted += 1;
                break;
            }
            other => panic!("ADD of {id}: {other:?}"),
        }
    }
    outcome
}

/// Runs this many cycles.
fn cycles(count: usize, plugins: Option<PathBuf>, tally: &mut Tally) -> Outcome {
    let lab = Lab::new("cycles");
    lab.enter(|| {
        let world = match plugins {
            Some(bin) => World::with(&lab, bin),
            None => World::enter(&lab),
        };
        let mut chance = Chance::new(share::seed_of_this_round(29));
        let mut all = Outcome::default();
        let mut living = BTreeMap::new();
        let plugin = plugin();
        for cycle in 0..count {
            let outcome = fill(&world, cycle, &mut living);
            all.added += outcome.added;
            all.exhausted += outcome.exhausted;
            all.twice += outcome.twice;
            if chance.once_in(2) {
                tally.count("a /29", "reboot", "filled again");
                // A reboot: containers, links and /run vanish, files on the disk stay, and the
                // runtime detaches nothing.
                living.values().for_each(|(pod, _): &(Pod, String)| pod.end());
                living.clear();
                world.sh("ip link delete br0 2>/dev/null; rm -rf /run/netwright /run/cni");
                continue;
            }
            tally.count("a /29", "kill", "filled again");
            // Some containers die, and the runtime does not notice.
            for id in living.keys().cloned().collect::<Vec<_>>() {
                if chance.once_in(2) {
                    let (pod, _) = living.remove(&id).unwrap();
                    pod.end();
                }
            }
            // An ADD is killed at some call, and its container ends with it.
            let pod = world.pod(&format!("c{cycle}-killed"));
            let at = chance.below(DEEP);
            let mut seen = 0;
            world.follow(&pod.call("ADD", &plugin), &mut |_| {
                seen += 1;
                if seen == at { Blow::Kill } else { Blow::Spare }
            });
            pod.end();
            // The runtime detaches one container properly.
            if let Some((_, (pod, _))) = living.pop_first() {
                let call = Call { previous: None, ..pod.call("DEL", &plugin) };
                assert!(world.call(&call).is_done());
                pod.end();
            }
        }
        all
    })
}

fn count() -> usize {
    match feature::available("full") {
        true => share::count(ALL_CYCLES, CYCLES_OF_A_SHARE),
        false => CYCLES,
    }
}

/// Containers that died without a DEL do not hold addresses for ever, and living ones keep theirs.
#[test]
fn a_pool_that_is_full_of_the_dead_is_not_full() {
    testkit::require!("root", "ptrace");
    let mut tally = Tally::new();
    let found = cycles(count(), None, &mut tally);
    eprintln!("MEASURED ours: {found:?}");
    assert_eq!((found.exhausted, found.twice), (0, 0), "{found:?}");
    tally.finish();
}

/// The same with the reference's plugins, for comparison: the test only prints what goes wrong
/// there.
#[test]
fn the_reference_beside_it() {
    testkit::require!("root", "ptrace", "full");
    let release = [Release::Unstable, Release::Installed]
        .into_iter()
        .find(|release| release.plugin("bridge").is_some());
    let found = cycles(count(), Some(release.unwrap().directory()), &mut Tally::new());
    eprintln!("MEASURED the reference: {found:?}");
    assert!(
        0 < found.exhausted,
        "the reference no longer finds a pool of the dead full: {found:?}"
    );
}
