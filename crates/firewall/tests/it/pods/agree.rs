//! Random clusters in one lab: the fate of every packet is compared with the evaluator's verdict.

use std::collections::BTreeMap;
use std::net::IpAddr;

use policy::{
    Compiler, Direction, IpFamily, PerDirection, Protocol, Step, Traffic, Verdict, World, verdict,
};
use testkit::{Chance, share};

use super::clusters::{Case, NODE, PODS, of_pod, placed};
use super::lab::{Fate, OWN, PodLab, Probe, Site, place_of, routed};

/// The number of clusters in every run, with `--full`, in a run that tries all, and in the virtual
/// machine.
const SOME: usize = 20;
const MANY: usize = 100;
const ALL: usize = 500;
const FEW: usize = 5;

const TRAFFIC: [Traffic; 8] = [
    Traffic { protocol: Protocol::Tcp, port: Some(80) },
    Traffic { protocol: Protocol::Tcp, port: Some(8080) },
    Traffic { protocol: Protocol::Udp, port: Some(53) },
    Traffic { protocol: Protocol::Udp, port: Some(80) },
    Traffic { protocol: Protocol::Sctp, port: Some(80) },
    Traffic { protocol: Protocol::Other(1), port: None },
    Traffic { protocol: Protocol::Other(58), port: None },
    Traffic { protocol: Protocol::NeighbourDiscovery, port: None },
];

const OUTSIDE: [&str; 9] = [
    "198.51.100.1",
    "198.51.100.255",
    "203.0.113.7",
    "192.0.2.2",
    "192.0.2.3",
    "2001:db8:ff::1",
    "2001:db9::1",
    "2001:db8::2",
    "2001:db8::3",
];

/// The packets sent in a cluster: each pair gets some of the traffic, and all pairs together get
/// all of it. If `turn` is `None`, each pair gets all traffic.
fn probes(world: &World, turn: Option<usize>) -> Vec<Probe> {
    let mut ends: Vec<IpAddr> =
        OUTSIDE.iter().chain(&OWN).map(|text| text.parse().unwrap()).collect();
    ends.extend((1..=PODS).flat_map(of_pod));
    ends.extend(world.pods().flat_map(|pod| pod.own_addresses().iter().copied()));
    ends.sort();
    ends.dedup();
    let (mut number, each) = turn.map_or((0, 1), |turn| (turn, 2));
    let mut probes = Vec::new();
    for source in &ends {
        for destination in &ends {
            let is_pod = |end: &IpAddr| matches!(place_of(*end), Site::Pod(_));
            if source == destination
                || IpFamily::of(*source) != IpFamily::of(*destination)
                || !(is_pod(source) || is_pod(destination))
                // A pod reaches itself without the node.
                || place_of(*source) == place_of(*destination)
            {
                continue;
            }
            for traffic in TRAFFIC {
                number += 1;
                let probe = Probe { source: *source, destination: *destination, traffic };
                let exists = match traffic.protocol {
                    Protocol::Other(1) => source.is_ipv4(),
                    Protocol::NeighbourDiscovery => source.is_ipv6(),
                    _ => true,
                };
                // The node's station receives everything that passes the node. An answer shows that
                // a packet was for the node.
                let shows = place_of(*destination) != Site::Node || probe.is_answered();
                if exists && shows && number % each == 0 {
                    probes.push(probe);
                }
            }
            // An odd number, so that the next pair gets the other half.
            number += 1;
        }
    }
    probes
}

/// The expected fate of a packet. Only the ends on this node are judged here.
fn expected(world: &World, probe: &Probe) -> (Option<Direction>, Verdict) {
    let Probe { source, destination, traffic } = *probe;
    let judged = verdict(world, source, destination, routed(traffic));
    let is_here = |address| {
        let pods = world.claimants(address);
        pods.iter().any(|pod| pod.node.as_deref() == Some(NODE))
    };
    let denied = |direction, address| is_here(address) && !judged.side(direction).decision.allows();
    // What the node sends is never judged, nor what it gets at an address that its Node does not
    // have.
    let is_known = || world.nodes_at(destination).any(|node| node.name == NODE);
    let to_node = place_of(destination) == Site::Node;
    if place_of(source) == Site::Node || (to_node && !is_known()) {
        return (None, judged);
    }
    let denied = match () {
        () if denied(Direction::Egress, source) => Some(Direction::Egress),
        () if denied(Direction::Ingress, destination) => Some(Direction::Ingress),
        () => None,
    };
    (denied, judged)
}

/// The number of packets for each fate.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Count(BTreeMap<Option<Direction>, usize>);

fn compare(
    lab: &mut PodLab,
    world: &World,
    turn: Option<usize>,
    count: &mut Count,
) -> Result<(), String> {
    let probes = probes(world, turn);
    let before = lab.table.dropped().unwrap();
    lab.logged = PerDirection::default();
    let fates = lab.try_all(&probes);
    for (probe, fate) in probes.iter().zip(fates) {
        let (denied, judged) = expected(world, probe);
        let arrives = denied.is_none() && place_of(probe.destination) != Site::Node;
        let answered = denied.is_none() && probe.is_answered();
        if fate != (Fate { denied, arrived: arrives, answered }) {
            return Err(format!("{probe:?}: {fate:?}, and the verdict is {judged:?}"));
        }
        *count.0.entry(denied).or_default() += 1;
    }
    // Answers that belong to no connection are sent too.
    lab.hear_all(before);
    match lab.table.dropped().unwrap().revived {
        0 => Ok(()),
        revived => {
            Err(format!("{revived} packets were taken for those of a connection that was cut"))
        }
    }
}

fn check(
    lab: &mut PodLab,
    case: &Case,
    turn: Option<usize>,
    count: &mut Count,
) -> Result<(), String> {
    let world = World::of(case.isolation.clone(), case.objects.clone());
    let mut compiler = Compiler::new(world, NODE);
    lab.table.put(compiler.program()).map_err(|error| format!("put: {error:?}"))?;
    compare(lab, compiler.world(), turn, count)?;
    // The following changes are one transaction each.
    let steps: Vec<Step> =
        case.changes.iter().flat_map(|change| compiler.apply(change.clone())).collect();
    lab.table.apply(&steps).map_err(|error| format!("apply {steps:#?}: {error:?}"))?;
    let difference = lab.table.observe(compiler.program()).map_err(|error| format!("{error:?}"))?;
    if !difference.is_empty() {
        return Err(format!("after {steps:#?}: {difference}"));
    }
    compare(lab, compiler.world(), turn.map(|turn| turn + 1), count)
}

#[test]
fn packets_meet_what_the_evaluator_says() {
    testkit::require!("root");
    let clusters = if super::has_time() { share::count(ALL, MANY) } else { SOME };
    println!("{}", compare_clusters("pods", 23, clusters));
}

/// The same on an older kernel, whose connection tracking knows SCTP.
#[test]
fn vm_packets_meet_what_the_evaluator_says_there_too() {
    testkit::require!("root", "full", "configured-machine");
    println!("{}", compare_clusters("podsvm", 24, FEW));
}

/// Compares this many clusters. Returns the number of packets for each fate.
fn compare_clusters(name: &str, seed: u64, clusters: usize) -> String {
    let mut lab = PodLab::new(name);
    let mut chance = Chance::new(share::seed_of_this_round(seed));
    let mut count = Count::default();
    for number in 0..clusters {
        let case = placed(Case::random(&mut chance));
        if let Err(why) = check(&mut lab, &case, Some(number), &mut count) {
            let lab = std::cell::RefCell::new(&mut lab);
            let again =
                |case: &Case| check(&mut lab.borrow_mut(), case, None, &mut Count::default());
            let reduced = case.reduced(|case| again(case).is_err());
            let now = again(&reduced);
            panic!("cluster {number}: {why}\nreduced to {reduced:#?}\nwhere {now:?}");
        }
    }
    // A fate that never occurred was not compared.
    for fate in [None, Some(Direction::Ingress), Some(Direction::Egress)] {
        let times = count.0.get(&fate).copied().unwrap_or_default();
        assert!(5 * clusters < times, "{fate:?} {times} times only");
    }
    format!("{clusters} clusters: {count:?}")
}
