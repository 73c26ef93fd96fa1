//! Faults anywhere: each verb of each plugin, at each of its system calls.

use std::collections::BTreeMap;
use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use testkit::driver::Driver;
use testkit::fault::{self, Blow, Moment, failures};
use testkit::real::Ovs;
use testkit::{Lab, Place as _, Tally, feature, share};

use crate::scenario::Scenario;
use crate::strike::{Aftermath, Torture};
use crate::world::World;

/// One try: the call, the fault, and what comes after.
pub(crate) type Try = (Moment, Blow, Aftermath);

/// A function that chooses some of all tries.
pub(crate) type Chooser<'c> = &'c (dyn Fn(Vec<Try>) -> Vec<Try> + Sync);

const AFTER_ADD: [Aftermath; 4] =
    [Aftermath::Del, Aftermath::GoneGc, Aftermath::AddAgain, Aftermath::GoneDel];
const AFTER_DEL: [Aftermath; 3] = [Aftermath::Del, Aftermath::GoneGc, Aftermath::GoneDel];

/// How many faults each verb gets in every run, of all possible ones; with `--full` it gets a share
/// of them ([`share`]).
const SOME: usize = 8;

/// How many system calls into a DEL the second fault comes.
const DEEP: usize = 120;

/// After how many findings the run ends.
const ENOUGH: usize = 10;

/// Injects faults everywhere in a plugin's calls: alone on the host, and beside another container.
fn everywhere(scenarios: &[Scenario]) {
    let mut tally = Tally::new();
    for scenario in scenarios {
        for beside in [false, true] {
            for verb in ["ADD", "DEL", "GC"] {
                let start = Instant::now();
                let there_are = AtomicUsize::new(0);
                let choose = |all: Vec<Try>| {
                    there_are.store(all.len(), Ordering::Relaxed);
                    some(scenario, all)
                };
                let tried = strike(scenario, beside, verb, &choose, &mut tally);
                if feature::available("full") {
                    let Scenario { name, family, .. } = scenario;
                    let (found, took) = (tally.findings(), start.elapsed().as_secs());
                    let beside = if beside { "beside another" } else { "alone" };
                    let all = there_are.into_inner();
                    eprintln!(
                        "{name} {verb} {family}{beside}: {tried} of {all} tries, {took} s, {found} found"
                    );
                }
                if ENOUGH <= tally.findings() {
                    return tally.finish();
                }
            }
        }
    }
    tally.finish();
}

/// With `--full`, one scenario for each family of addresses; otherwise one with both.
fn families(scenario: Scenario) -> Vec<Scenario> {
    if !feature::available("full") {
        return vec![scenario];
    }
    let single = ["v4", "v6"].map(|family| scenario.in_family(family));
    [scenario].into_iter().chain(single).collect()
}

/// Tries the chosen faults of one verb; returns how many there were.
pub(crate) fn strike(
    scenario: &Scenario,
    beside: bool,
    verb: &'static str,
    choose: Chooser<'_>,
    tally: &mut Tally,
) -> usize {
    let mut done = 0;
    loop {
        let (next, all) = run(scenario, beside, verb, done, choose, tally);
        done = next;
        // A host that is not as it was is abandoned, and another host takes its place.
        if all <= done || ENOUGH <= tally.findings() {
            return done;
        }
    }
}

/// Tries one verb's faults from number `done` on, until the host is no longer as it was. Returns
/// how far it got, and how many faults there are.
fn run(
    scenario: &Scenario,
    beside: bool,
    verb: &'static str,
    done: usize,
    choose: Chooser<'_>,
    tally: &mut Tally,
) -> (usize, usize) {
    let lab = Lab::new("torture");
    let driver = scenario.drives.then(|| Driver::start(&lab, "weft"));
    let switch = scenario.switches.then(|| {
        let ovs = Ovs::start(&lab);
        ovs.add_bridge("br0");
        ovs.at_its_usual_place();
        ovs
    });
    lab.enter(|| {
        let world = World::enter(&lab);
        let mut torture = Torture::prepare(&world, scenario, switch.as_ref(), beside, tally);
        let moments = torture.moments(verb);
        let tries = choose(tries(scenario, verb, &moments, beside));
        for (number, (moment, blow, after)) in tries.iter().enumerate().skip(done) {
            torture.try_one(verb, *moment, *blow, *after);
            if torture.spoilt {
                return (number + 1, tries.len());
            }
        }
        if let Some(driver) = &driver {
            let held = driver.held();
            let endpoints = held["endpoints"].as_object().map_or(0, serde_json::Map::len);
            assert_eq!(endpoints, usize::from(beside), "the driver still holds {held:#}");
        }
        (tries.len(), tries.len())
    })
}

/// Lists all possible tries.
fn tries(scenario: &Scenario, verb: &str, moments: &[Moment], beside: bool) -> Vec<Try> {
    let afters: &[Aftermath] = if verb == "ADD" { &AFTER_ADD } else { &AFTER_DEL };
    let may_end = |after: &&Aftermath| {
        !(scenario.lends && matches!(after, Aftermath::GoneDel | Aftermath::GoneGc))
    };
    let afters: Vec<Aftermath> = afters.iter().filter(may_end).copied().collect();
    let mut all = Vec::new();
    let mut turn = usize::from(beside);
    for moment in moments {
        let mut blows = vec![Blow::Kill];
        if moments.iter().any(|moment| moment.task != 0) {
            blows.push(Blow::KillAll);
        }
        let failures = failures(moment.call);
        blows.extend(failures.iter().map(|errno| Blow::Fail(*errno)));
        for blow in blows {
            turn += 1;
            all.push((*moment, blow, afters[turn % afters.len()]));
            if verb == "ADD" && matches!(blow, Blow::Fail(_)) {
                all.push((*moment, blow, Aftermath::Nothing));
            }
            if verb != "GC" && blow == Blow::Kill && fault::changes(moment.call) {
                all.push((*moment, blow, Aftermath::StruckDel(turn * 13 % DEEP)));
            }
        }
    }
    all
}

/// Chooses what to try in a run that does not try everything.
fn some(scenario: &Scenario, all: Vec<Try>) -> Vec<Try> {
    // A try with five processes costs as much as five tries, and each of the five processes has
    // faults of its own too.
    let times = scenario.plugins.len().div_ceil(2);
    if feature::available("full") {
        return share::of_this_round(all, share::STRIKES / times);
    }
    let chosen = env::var("NETWRIGHT_TORTURE").ok().and_then(|count| count.parse().ok());
    let some = chosen.unwrap_or(SOME / times);
    if all.len() <= some {
        return all;
    }
    // A kill has the same effect anywhere between two changes. So the calls that change something
    // are tried first, and one of each kind of call and error.
    let mut seen: BTreeMap<(i64, String), usize> = BTreeMap::new();
    let mut ranked: Vec<(usize, usize)> = Vec::new();
    for (place, (moment, blow, _)) in all.iter().enumerate() {
        let times = seen.entry((moment.call, blow.to_string())).or_default();
        let rank = match blow {
            Blow::Kill if fault::changes(moment.call) => *times / 3,
            Blow::Kill => *times + 3,
            _ => *times,
        };
        *times += 1;
        ranked.push((rank, place));
    }
    // The choice is the same in every run, and is spread over all tries: the step and the count
    // have no common factor.
    ranked.sort_by_key(|(rank, place)| (*rank, place.wrapping_mul(7919) % all.len()));
    ranked.truncate(some);
    let mut places: Vec<usize> = ranked.into_iter().map(|(_, place)| place).collect();
    places.sort_unstable();
    places.into_iter().map(|place| all[place]).collect()
}

#[test]
fn bridge() {
    testkit::require!("root", "ptrace");
    everywhere(&families(Scenario::bridge()));
}

#[test]
fn ptp() {
    testkit::require!("root", "ptrace");
    everywhere(&families(Scenario::ptp()));
}

#[test]
fn macvlan() {
    testkit::require!("root", "ptrace");
    everywhere(&families(Scenario::macvlan()));
}

#[test]
fn tap() {
    testkit::require!("root", "ptrace");
    everywhere(&families(Scenario::tap()));
}

#[test]
fn host_device() {
    testkit::require!("root", "ptrace");
    everywhere(&families(Scenario::host_device()));
}

#[test]
fn cnm() {
    testkit::require!("root", "ptrace", "program:python3");
    everywhere(&[Scenario::cnm()]);
}

#[test]
fn ovs() {
    testkit::require!("root", "ptrace", "program:ovs-vswitchd", "program:ovsdb-server");
    everywhere(&families(Scenario::ovs("ovs", "veth")));
}

#[test]
fn ovs_internal() {
    testkit::require!("root", "ptrace", "program:ovs-vswitchd", "program:ovsdb-server");
    everywhere(&families(Scenario::ovs("ovs internal", "internal")));
}

#[test]
fn ovs_shared() {
    testkit::require!("root", "ptrace", "program:ovs-vswitchd", "program:ovsdb-server");
    everywhere(&families(Scenario::ovs_shared()));
}

#[test]
fn loopback() {
    testkit::require!("root", "ptrace");
    everywhere(&[Scenario::loopback()]);
}

#[test]
fn host_local() {
    testkit::require!("root", "ptrace");
    everywhere(&families(Scenario::host_local()));
}

#[test]
fn static_ipam() {
    testkit::require!("root", "ptrace");
    everywhere(&families(Scenario::static_ipam()));
}

#[test]
fn portmap() {
    testkit::require!("root", "ptrace");
    everywhere(&[Scenario::portmap()]);
}

#[test]
fn firewall() {
    testkit::require!("root", "ptrace");
    everywhere(&[Scenario::firewall()]);
}

#[test]
fn tuning() {
    testkit::require!("root", "ptrace");
    everywhere(&[Scenario::tuning()]);
}

#[test]
fn bandwidth() {
    testkit::require!("root", "ptrace");
    everywhere(&[Scenario::bandwidth()]);
}

#[test]
fn policy() {
    testkit::require!("root", "ptrace");
    everywhere(&families(Scenario::policy()));
}

#[test]
fn sbr() {
    testkit::require!("root", "ptrace");
    everywhere(&[Scenario::sbr()]);
}

#[test]
fn chain() {
    testkit::require!("root", "ptrace");
    everywhere(&[Scenario::chain()]);
}

#[test]
fn five_plugins() {
    testkit::require!("root", "ptrace");
    everywhere(&(0..5).map(Scenario::five).collect::<Vec<_>>());
}
