//! Random clusters, judged in two ways: by the evaluator, and by a packet that walks the programs
//! of the nodes on its way. Programs are also made in two ways: by each change, and from scratch.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netwright_policy::evaluate::{Decision, Side};
use netwright_policy::interpret::{Packet, hook, passes, reaches_node};
use netwright_policy::program::{LineAction, Set};
use netwright_policy::{
    Change, Compiler, Direction, IpFamily, Pod, Policy, Program, Protocol, Traffic, Verdict, World,
    compile, explain, verdict,
};
use testkit::{Chance, feature, share};

use crate::case::Case;

/// The number of clusters in every run, with `--full`, and in a run that tries all.
const SOME: usize = 200;
const MANY: usize = 1_500;
const ALL: usize = 10_000;

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

const OUTSIDE: [&str; 5] =
    ["198.51.100.1", "198.51.100.255", "203.0.113.7", "2001:db8:ff::1", "2001:db9::1"];

/// The number of compared verdicts, by what decided for each end.
#[derive(Debug, Default)]
struct Count(BTreeMap<String, usize>);

impl Count {
    fn add(&mut self, judged: &Verdict) {
        for Side { decision, .. } in [&judged.egress, &judged.ingress] {
            let kind = match decision {
                Decision::Rule { policy, action, .. } => {
                    let policy = format!("{policy:?}");
                    let kind = policy.split(' ').next().unwrap_or_default();
                    format!("{kind} {action}")
                }
                other => {
                    let other = format!("{other:?}");
                    other.split(' ').next().unwrap_or_default().to_owned()
                }
            };
            *self.0.entry(kind).or_default() += 1;
        }
    }
}

/// Whether a packet arrives, by the programs of the nodes that forward it, and of the node that it is
/// for.
fn arrives(world: &World, programs: &BTreeMap<String, Program>, packet: Packet) -> bool {
    let Packet { source, destination, .. } = packet;
    let (from, to) = (world.claimants(source), world.claimants(destination));
    if let ([one], [other]) = (from.as_slice(), to.as_slice())
        && one.uid == other.uid
    {
        // The packet does not leave the pod.
        return true;
    }
    let node_at = |pods: &[&Pod], address: IpAddr| match pods.first() {
        Some(pod) => (pod.node.as_deref().map(str::to_owned), true),
        None => (world.nodes_at(address).next().map(|node| node.name.clone()), false),
    };
    let (from, from_pod) = node_at(&from, source);
    let (to, to_pod) = node_at(&to, destination);
    let is_local = |node: &Option<String>, end: &Option<String>, is_pod: bool, address: IpAddr| {
        // The other end is the node itself.
        let has = |node: &String| world.host_has(node, address);
        node == end && !is_pod && end.as_ref().is_none_or(has)
    };
    let mut forwarding = Vec::new();
    if from_pod && !is_local(&from, &to, to_pod, destination) {
        forwarding.extend(&from);
    } else if from_pod && !from.iter().all(|node| reaches_node(&programs[node], packet)) {
        return false;
    }
    if to_pod && !is_local(&to, &from, from_pod, source) {
        forwarding.extend(&to);
    }
    forwarding.iter().all(|node| passes(&programs[*node], packet))
}

/// Compares what the world finds by its indices with the result of a search through everything.
fn compare_indices(world: &World) -> Result<(), String> {
    for pod in world.pods() {
        for direction in Direction::ALL {
            let namespace = world.namespace(&pod.namespace);
            let selects = |policy: &&Policy| {
                policy.rules(direction).is_some()
                    && policy.subject.as_ref().is_some_and(|set| set.matches(pod, namespace))
            };
            let mut all: Vec<&Policy> = world.policies().filter(selects).collect();
            all.sort_by_key(|policy| (policy.tier, policy.priority, &policy.id));
            if !pod.host_network && all != world.asked(pod, direction) {
                return Err(format!("{} is selected by {all:?}", pod.full_name()));
            }
        }
        for address in &pod.addresses {
            let has = |pod: &&Pod| pod.own_addresses().contains(address);
            let mut all: Vec<&Pod> = world.pods().filter(has).collect();
            if all.iter().any(|pod| !pod.terminating) {
                all.retain(|pod| !pod.terminating);
            }
            if all != world.claimants(*address) {
                return Err(format!("{address} is the address of {all:?}"));
            }
        }
    }
    Ok(())
}

/// Compares what the node of each end says of a packet that it forwards. Of an address that several
/// pods claim, no node lets anything through to a pod that policies select, nor from there.
fn compare_ends(
    world: &World,
    programs: &BTreeMap<String, Program>,
    packet: Packet,
    judged: &Verdict,
) -> Result<(), String> {
    let Packet { source, destination, traffic } = packet;
    for (direction, end, peer) in
        [(Direction::Egress, source, destination), (Direction::Ingress, destination, source)]
    {
        let side = judged.side(direction);
        // Such packets are not forwarded.
        let is_near = matches!(side.decision, Decision::OwnNode { .. } | Decision::Itself)
            || matches!(&side.decision, Decision::Rule { .. } if world.nodes_at(peer).next().is_some());
        let pods = world.claimants(end);
        if is_near || pods.is_empty() {
            continue;
        }
        let nodes: BTreeSet<&str> = pods.iter().filter_map(|pod| pod.node.as_deref()).collect();
        for node in nodes {
            let lets = hook(&programs[node], direction, packet);
            if lets != side.decision.allows() {
                return Err(format!(
                    "{direction} of {source} to {destination}, {traffic} on {node}: the hook lets \
                     it through: {lets}, and the verdict is {side:?}"
                ));
            }
            let is_claimed = [end, peer].into_iter().any(|at| 1 < world.claimants(at).len());
            let is_free = traffic.protocol == Protocol::NeighbourDiscovery;
            if lets && is_claimed && !is_free && !(pods.len() == 1 && side.asked.is_empty()) {
                return Err(format!(
                    "{direction} of {source} to {destination}, {traffic} on {node}: several pods \
                     claim an address, and the packet passes: {side:?}"
                ));
            }
        }
    }
    Ok(())
}

fn compare(
    world: &World,
    programs: &BTreeMap<String, Program>,
    turn: Option<usize>,
    count: &mut Count,
) -> Result<(), String> {
    compare_indices(world)?;
    let mut ends: Vec<IpAddr> = OUTSIDE.iter().map(|text| text.parse().unwrap()).collect();
    ends.extend(world.pods().flat_map(|pod| &pod.addresses));
    ends.extend(world.nodes().flat_map(|node| &node.addresses));
    ends.sort();
    ends.dedup();
    let all = TRAFFIC.len();
    let (mut number, each) = turn.map_or((0, all), |turn| (turn, 2));
    for source in &ends {
        for destination in &ends {
            if IpFamily::of(*source) != IpFamily::of(*destination) {
                continue;
            }
            // Each pair gets some of the traffic, and all pairs together get all of it.
            for _ in 0..each {
                number += 3;
                let (source, destination, traffic) = (*source, *destination, TRAFFIC[number % all]);
                let packet = Packet { source, destination, traffic };
                let judged = verdict(world, source, destination, traffic);
                let arrives = arrives(world, programs, packet);
                if judged.allowed() != arrives {
                    return Err(format!(
                        "{source} to {destination}, {traffic}: the packet {}, and the verdict is {judged:?}",
                        if arrives { "arrives" } else { "does not arrive" },
                    ));
                }
                compare_ends(world, programs, packet, &judged)?;
                count.add(&judged);
                // Explanations take longer, so only a few are made.
                if number % 97 == 0 {
                    let explained = explain(world, source, destination, traffic);
                    if explained.allowed != arrives || explained.lines.len() < 2 {
                        return Err(format!("{explained}"));
                    }
                }
            }
        }
    }
    Ok(())
}

/// The names of all nodes that ever existed: a pod may be on a deleted one.
const NODES: [&str; 3] = ["one", "two", "three"];

fn check(case: &Case, turn: Option<usize>, count: &mut Count) -> Result<(), String> {
    check_with(case, turn, count, |_| {})
}

fn check_with(
    case: &Case,
    turn: Option<usize>,
    count: &mut Count,
    damage: impl Fn(&mut Program),
) -> Result<(), String> {
    let mut world = World::of(case.isolation.clone(), case.objects.clone());
    // The host of the first node does not have its IPv6 address.
    world.set_host(NODES[0], BTreeSet::from(["192.0.2.1".parse().unwrap()]));
    let mut compilers: Vec<Compiler> =
        NODES.iter().map(|node| Compiler::new(world.clone(), node)).collect();
    let programs = |compilers: &[Compiler]| -> BTreeMap<String, Program> {
        let of = |(node, compiler): (&&str, &Compiler)| {
            let mut program = compiler.program().clone();
            damage(&mut program);
            (node.to_string(), program)
        };
        NODES.iter().zip(compilers).map(of).collect()
    };
    for compiler in &compilers {
        compiler.program().check().map_err(|error| error.to_string())?;
    }
    compare(&world, &programs(&compilers), turn, count)?;
    let late: Vec<Compiler> = NODES.iter().map(|node| Compiler::new(world.clone(), node)).collect();
    for change in &case.changes {
        for (node, compiler) in NODES.iter().zip(&mut compilers) {
            follow(node, compiler, change).map_err(|why| format!("{change:?}: {why}"))?;
        }
    }
    for (late, compiler) in late.into_iter().zip(&compilers) {
        follow_all(late, &case.changes, compiler.program())?;
    }
    compare(compilers[0].world(), &programs(&compilers), turn, count)
}

/// Makes all changes at once, and checks the steps.
fn follow_all(mut late: Compiler, changes: &[Change], wanted: &Program) -> Result<(), String> {
    let mut program = late.program().clone();
    changes.iter().for_each(|change| late.change(change.clone()));
    for step in late.settle() {
        program.apply(&step).map_err(|error| format!("at once: {error} ({step:?})"))?;
        program.check().map_err(|error| format!("at once: {error} (after {step:?})"))?;
    }
    if program != *late.program() || program != *wanted {
        return Err("all changes at once lead to another program".to_owned());
    }
    Ok(())
}

/// Makes a change, and checks its steps.
fn follow(node: &str, compiler: &mut Compiler, change: &Change) -> Result<(), String> {
    let before = compiler.program().clone();
    let steps = compiler.apply(change.clone());
    let mut program = before.clone();
    for step in &steps {
        program.apply(step).map_err(|error| format!("{error} ({step:?})"))?;
        program.check().map_err(|error| format!("{error} (after {step:?})"))?;
    }
    if program != *compiler.program() {
        return Err("the steps lead to another program".to_owned());
    }
    let anew = compile(compiler.world().clone(), node);
    if program != anew {
        return Err(format!(
            "compiled anew it is another program: {:?}",
            Program::difference(&program, &anew)
        ));
    }
    let mut other = before.clone();
    for step in Program::difference(&before, &program) {
        other.apply(&step).map_err(|error| format!("difference: {error} ({step:?})"))?;
        other.check().map_err(|error| format!("difference: {error} (after {step:?})"))?;
    }
    if other != program {
        return Err("the difference leads to another program".to_owned());
    }
    let again = compiler.apply(change.clone());
    if !again.is_empty() {
        return Err(format!("the same change again changes something: {again:?}"));
    }
    Ok(())
}

#[test]
fn random_clusters_meet_no_disagreement() {
    let clusters = if feature::available("full") { share::count(ALL, MANY) } else { SOME };
    let mut chance = Chance::new(share::seed_of_this_round(23));
    let mut count = Count::default();
    for number in 0..clusters {
        let case = Case::random(&mut chance);
        if let Err(why) = check(&case, Some(number), &mut count) {
            let fails = |case: &Case| check(case, None, &mut Count::default()).is_err();
            let reduced = case.reduced(fails);
            let now = check(&reduced, None, &mut Count::default());
            panic!("cluster {number}: {why}\nreduced to {reduced:#?}\nwhere {now:?}");
        }
    }
    // A kind of rule that never decided was not compared.
    for kind in DECISIONS {
        let times = count.0.remove(kind).unwrap_or_default();
        assert!(times > clusters / 10, "{kind} decided {times} times only");
    }
    assert_eq!(count.0, BTreeMap::new(), "not expected");
}

const DECISIONS: [&str; 15] = [
    "NoPod",
    "NeighbourDiscovery",
    "OwnNode",
    "Itself",
    "UnknownNamespace",
    "SeveralPods",
    "SeveralPeers",
    "NoneAllows",
    "Default",
    "Network Accept",
    "Cluster Accept",
    "Cluster Deny",
    "Isolation Accept",
    "Isolation Deny",
    "DefaultDeny Deny",
];

type Damage = fn(&mut Program);

/// Shows that the test above works: it finds each of these faults of a compiler, with the clusters
/// of an ordinary run.
#[test]
fn faults_of_a_program_are_found_and_reduced() {
    let faults: [(&str, Damage); 5] = [
        ("a denial is forgotten", |program| {
            for lines in program.chains.values_mut() {
                lines.retain(|line| line.then != LineAction::Deny);
            }
        }),
        ("an address of a set is forgotten", |program| {
            for set in program.sets.values_mut() {
                if let Set::Addresses(all) = set {
                    all.pop_first();
                }
            }
        }),
        ("a named port is forgotten", |program| {
            for set in program.sets.values_mut() {
                if let Set::Ports(all) = set {
                    all.clear();
                }
            }
        }),
        ("an exception is forgotten", |program| {
            for set in program.sets.values_mut() {
                if let Set::Intervals(all) = set
                    && let (Some((first, _)), Some((_, last))) = (all.first(), all.last())
                {
                    *all = vec![(*first, *last)];
                }
            }
        }),
        ("a pass is taken for an accept", |program| {
            for line in program.chains.values_mut().flatten() {
                if line.then == LineAction::Return {
                    line.then = LineAction::Accept;
                }
            }
        }),
    ];
    for (what, damage) in faults {
        let mut chance = Chance::new(23);
        let found = (0..SOME).find_map(|number| {
            let case = Case::random(&mut chance);
            let fails =
                |case: &Case, turn| check_with(case, turn, &mut Count::default(), damage).is_err();
            fails(&case, Some(number)).then(|| case.reduced(|case| fails(case, None)))
        });
        let reduced = found.unwrap_or_else(|| panic!("{what}, and nothing tells"));
        assert!(reduced.objects.len() + reduced.changes.len() <= 8, "{what}: {reduced:#?}");
    }
}
