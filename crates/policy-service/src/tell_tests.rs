use std::time::{Duration, Instant};

use policy::{Change, World};
use serde_json::{Value, json};

use super::*;
use crate::kinds::{Kind, Object, ObjectContent};

fn read(kind: Kind, object: &Value) -> (Change, Policy, Meta) {
    let Object { what, meta } = Object::of(kind, object).unwrap();
    let ObjectContent::Policy(policy) = what else { panic!("a policy") };
    (Change::from((*policy).clone()), *policy, meta)
}

fn cluster(name: &str, priority: u64, conditions: &[Value]) -> Value {
    json!({
        "metadata": {"name": name, "uid": name, "generation": 3, "resourceVersion": "7"},
        "spec": {"tier": "Admin", "priority": priority, "subject": {"namespaces": {}}},
        "status": {"conditions": conditions},
    })
}

/// A world with so many nodes.
fn world(nodes: usize, objects: impl IntoIterator<Item = Change>) -> World {
    let node = |number| {
        policy::Node::read(&json!({"metadata": {"name": format!("n{number}")}})).unwrap().into()
    };
    World::of(None, (0..nodes).map(node).chain(objects))
}

/// What one node has written by some time about these objects.
fn written(node: &str, nodes: usize, all: &[(Kind, Value)], time: Duration) -> Vec<ServerWrite> {
    let start = Instant::now();
    let mut tell = WriteQueue::new(node);
    let read: Vec<_> = all.iter().map(|(kind, object)| read(*kind, object)).collect();
    let world = world(nodes, read.iter().map(|(change, ..)| change.clone()));
    for (_, policy, meta) in read {
        tell.policy(&policy, meta);
    }
    tell.look(&world, start);
    tell.take_due(&world, start + time)
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_condition_says_what_holds() {
    let other = json!({"type": "Other", "status": "True"});
    let all = [
        (Kind::ClusterNetworkPolicies, cluster("a", 1, std::slice::from_ref(&other))),
        (Kind::ClusterNetworkPolicies, cluster("b", 2, &[])),
        (Kind::ClusterNetworkPolicies, cluster("b2", 2, &[])),
        (Kind::ClusterNetworkPolicies, cluster("c", 1001, &[])),
    ];
    let told = written("n0", 1, &all, LONG);
    let of = |wanted: &str| {
        let found = told.iter().find_map(|telling| match telling {
            ServerWrite::Status(write) if write.name == wanted => Some(write),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("nothing about {wanted}"))
    };
    let short = |name: &str| (of(name).condition.accepted, of(name).condition.reason);
    assert_eq!(short("a"), (true, "AsWritten"));
    assert_eq!((&of("a").others[..], of("a").version.as_str()), (&[other][..], "7"));
    assert_eq!(short("b"), (true, "SharedPriority"));
    assert!(of("b2").condition.message.contains("ClusterNetworkPolicy b and"));
    assert_eq!(short("c"), (false, "Refused"));
    assert_eq!(
        of("c").condition.message,
        "spec.priority: 1001 is not in 0..1000; the policy denies everything"
    );
    let value = of("c").condition.value("2026-01-01T00:00:00Z");
    assert_eq!((&value["type"], &value["status"]), (&json!(CONDITION), &json!("False")));
    assert_eq!(value["observedGeneration"], 3);
}

#[test]
fn what_is_there_is_not_written_again() {
    let bare = cluster("a", 1, &[]);
    let (_, policy, meta) = read(Kind::ClusterNetworkPolicies, &bare);
    let condition = Condition::of(&policy, meta.generation, None).value("2026-01-01T00:00:00Z");
    let there = cluster("a", 1, std::slice::from_ref(&condition));
    assert_eq!(written("n0", 1, &[(Kind::ClusterNetworkPolicies, there)], LONG), []);
    // Of another generation it is another one; its status is as before.
    let mut old = condition;
    old["observedGeneration"] = json!(2);
    let there = cluster("a", 1, &[old]);
    let told = written("n0", 1, &[(Kind::ClusterNetworkPolicies, there)], LONG);
    let [ServerWrite::Status(write)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(write.since.as_deref(), Some("2026-01-01T00:00:00Z"));
}

#[test]
fn nodes_take_turns() {
    const NODES: usize = 500;
    let (_, policy, meta) = read(Kind::ClusterNetworkPolicies, &cluster("a", 1, &[]));
    let mut turns: Vec<Duration> = (0..NODES)
        .map(|number| {
            let tell = WriteQueue::new(&format!("n{number}"));
            tell.turn(&format!("{}\0{}", policy.id, meta.generation), 500)
        })
        .collect();
    turns.sort_unstable();
    // Within the time until watches report a write, hardly any other node begins to write.
    let soon = turns.iter().filter(|turn| **turn < turns[0] + Duration::from_millis(500)).count();
    assert!((1..=4).contains(&soon), "{soon} nodes at once: {turns:?}");
    assert!(turns[0] < TURN * 8, "nobody for {:?}", turns[0]);
    let late = turns.iter().filter(|turn| TURN * TURNS <= **turn).count();
    assert!((NODES * 8 / 10..NODES).contains(&late), "{late} are late");
    assert!(turns[NODES - 1] <= TURN * TURNS + AFTER_TURNS);
}

#[test]
fn few_nodes_send_an_event() {
    let faulty = json!({
        "metadata": {"namespace": "shop", "name": "db", "uid": "u"},
        "spec": {"ingress": [{"ports": [{"port": 0}]}]},
    });
    let all = [(Kind::NetworkPolicies, faulty)];
    let told: Vec<Vec<ServerWrite>> =
        (0..100).map(|n| written(&format!("n{n}"), 100, &all, Duration::ZERO)).collect();
    let told: Vec<&ServerWrite> = told.iter().flatten().collect();
    assert_eq!(told.len(), SENDERS);
    assert!(told.iter().all(|one| *one == told[0]), "all say the same under one name");
    let ServerWrite::Event(event) = told[0] else { panic!("{told:?}") };
    assert_eq!(event.body["involvedObject"]["name"], "db");
    assert_eq!(
        event.body["message"],
        "spec.ingress[0].ports[0].port: 0 is not in 1..65535; the rule allows nothing"
    );
    // No node sends it twice, and every node sends it again after the server has forgotten it.
    let (_, policy, meta) = read(Kind::NetworkPolicies, &all[0].1);
    let world = world(1, [Change::from(policy.clone())]);
    let (mut tell, now) = (WriteQueue::new("n0"), Instant::now());
    tell.policy(&policy, meta);
    let count = |tell: &mut WriteQueue, now| tell.take_due(&world, now).len();
    assert_eq!((count(&mut tell, now), count(&mut tell, now)), (1, 0));
    assert_eq!(count(&mut tell, now + EVENTS_LAST), 1);
}
