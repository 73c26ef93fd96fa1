//! A large cluster.

use std::sync::Arc;

use netwright_policy::labels::Labels;
use netwright_policy::policy::PolicyId;
use netwright_policy::{Change, Compiler, Pod, Policy, World};
use serde_json::json;

use crate::support::{ip, namespace, network, node, pod};

const NAMESPACES: usize = 1000;
const NODES: usize = 1000;

/// The memory for 100,000 pods of both families, 10,000 policies and the program of a node.
const MOST_KIBIBYTES: usize = 128 * 1024;

fn resident_kibibytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Pods of deployments. Each deployment has twenty pods with the same labels.
fn pods(count: usize) -> impl Iterator<Item = Pod> {
    let template = pod("n/pod", "node", json!({}), &[]);
    (0..count).map(move |number| {
        let deployment = number / 20;
        let labels: Labels = [
            ("app.kubernetes.io/name", format!("app-{}", deployment % 5)),
            ("app.kubernetes.io/instance", format!("release-{deployment}")),
            ("app.kubernetes.io/managed-by", "Helm".to_owned()),
            ("pod-template-hash", format!("{deployment:010x}")),
            ("team", format!("team-{}", deployment % 50)),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
        let mut pod = template.clone();
        pod.namespace = format!("namespace-{}", deployment % NAMESPACES).into();
        pod.name = format!("deployment-{deployment}-{deployment:010x}-{number:05x}");
        pod.uid = format!("01234567-89ab-cdef-0123-{number:012x}").into();
        pod.node = Some(format!("node-{}", number % NODES).into());
        pod.labels = Arc::new(labels);
        let (high, low) = (number / 250, number % 250 + 1);
        pod.addresses = vec![
            ip(&format!("10.{}.{}.{low}", 64 + high / 250, high % 250)),
            ip(&format!("fd00:244:{high:x}::{low:x}")),
        ];
        pod
    })
}

fn policies(count: usize) -> impl Iterator<Item = Policy> {
    let template = network(
        "n/x",
        json!({
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "app-0"}},
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "app-1"}}}]},
                {"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"team": "team-1"}}}]},
            ],
        }),
    );
    (0..count).map(move |number| {
        let mut policy = template.clone();
        let namespace = format!("namespace-{}", number % NAMESPACES);
        policy.id = PolicyId::Network { namespace: namespace.clone(), name: number.to_string() };
        let own = netwright_policy::policy::Scope::Own(namespace);
        policy.subject.as_mut().unwrap().namespaces = own;
        policy
    })
}

#[test]
fn a_large_cluster_fits() {
    testkit::require!("full");
    let before = resident_kibibytes();
    let mut world = World::new(None);
    for number in 0..NODES {
        let name = format!("node-{number}");
        world.change(
            node(&name, json!({}), &[&format!("192.0.{}.{}", number / 250, number % 250)]).into(),
        );
    }
    for number in 0..NAMESPACES {
        world.change(namespace(&format!("namespace-{number}"), json!({})).into());
    }
    pods(100_000).for_each(|pod| world.change(pod.into()));
    policies(10_000).for_each(|policy| world.change(policy.into()));
    let objects = resident_kibibytes() - before;
    let begin = std::time::Instant::now();
    let mut compiler = Compiler::new(world, "node-7");
    let took = begin.elapsed();
    let all = resident_kibibytes() - before;
    let elements = compiler.program().sets.len();
    println!(
        "objects {objects} KiB, with the program {all} KiB, {elements} sets, compiled in {took:?}"
    );
    assert!(all < MOST_KIBIBYTES, "{all} KiB");
    // The pod is on this node, and in the team that may reach all: it enters sets, and gets
    // verdicts for one direction.
    let mut new = pods(1).next().unwrap();
    new.uid = "new".into();
    new.node = Some("node-7".into());
    new.addresses = vec![ip("10.250.0.1")];
    assert_eq!(compiler.apply(new.clone().into()).len(), 1);
    let mut labels = Labels::clone(&new.labels);
    labels.insert("team".to_owned(), "team-1".to_owned());
    new.labels = Arc::new(labels);
    assert_eq!(compiler.apply(new.clone().into()).len(), 1);
    assert_eq!(compiler.apply(Change::Pod(new.uid, None)).len(), 2);
}
