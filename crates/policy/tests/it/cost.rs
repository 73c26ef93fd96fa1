//! A change costs one step for each set that an address enters or leaves, however many pods and
//! policies there are.

use std::collections::BTreeSet;
use std::sync::Arc;

use netwright_policy::interpret::{Packet, passes};
use netwright_policy::object::Pod;
use netwright_policy::program::Set;
use netwright_policy::{Change, Compiler, MOST_LISTS, Step, World, explain, verdict};
use serde_json::json;

use crate::support::{cluster, ip, namespace, network, node, pod, tcp};

/// A node `one` with a pod `shop/web`, which two policies select. The rest of the cluster has the
/// given size: its policies select other pods, and refer to others.
fn large(policies: usize, pods: usize) -> Compiler {
    let mut objects: Vec<Change> = vec![
        node("one", json!({}), &["192.0.2.1"]).into(),
        node("two", json!({}), &["192.0.2.2"]).into(),
        namespace("shop", json!({"team": "red"})).into(),
        namespace("other", json!({"team": "blue"})).into(),
        pod("shop/web", "one", json!({"app": "web"}), &["10.244.1.1", "fd00:244:1::1"]).into(),
        network(
            "shop/web",
            json!({
                "podSelector": {"matchLabels": {"app": "web"}},
                "ingress": [
                    {"from": [{"podSelector": {"matchLabels": {"role": "client"}}}]},
                    {"from": [{"namespaceSelector": {"matchLabels": {"team": "blue"}}}]},
                ],
                "egress": [{"to": [{"podSelector": {}}], "ports": [{"port": "http"}]}],
            }),
        )
        .into(),
        cluster(
            "everybody",
            json!({
                "tier": "Admin",
                "priority": 0,
                "subject": {"namespaces": {}},
                "ingress": [{"action": "Deny", "from": [{"pods": {
                    "namespaceSelector": {}, "podSelector": {"matchLabels": {"bad": "yes"}},
                }}]}],
            }),
        )
        .into(),
    ];
    // Half of them are in the pod's own namespace.
    objects.extend((0..policies).map(|number| {
        let of = if number % 2 == 0 { "shop" } else { "other" };
        network(
            &format!("{of}/policy-{number}"),
            json!({
                "podSelector": {"matchLabels": {"app": format!("app-{number}")}},
                "ingress": [{"from": [{"podSelector": {
                    "matchLabels": {"client-of": format!("app-{number}")},
                }}]}],
            }),
        )
        .into()
    }));
    let template = pod("shop/pod", "two", json!({"app": "app"}), &[]);
    objects.extend((0..pods).map(|number| {
        let (high, low) = (number / 250, number % 250 + 1);
        let mut pod = template.clone();
        pod.namespace = if number % 2 == 0 { "shop" } else { "other" }.into();
        pod.name = format!("pod-{number}");
        pod.uid = pod.full_name().into();
        Arc::make_mut(&mut pod.labels).insert("app".to_owned(), format!("app-{number}"));
        pod.addresses =
            vec![ip(&format!("10.100.{high}.{low}")), ip(&format!("fd00:100::{high}:{low}"))];
        pod.into()
    }));
    Compiler::new(World::of(None, objects), "one")
}

/// The steps of a change, by kind, and how many selectors were compared.
fn cost(compiler: &mut Compiler, change: Change) -> (usize, usize, usize, u64) {
    let before = compiler.work();
    let steps = compiler.apply(change);
    let is_element =
        |step: &&Step| matches!(step, Step::AddElement { .. } | Step::RemoveElement { .. });
    let elements = steps.iter().filter(is_element).count();
    let verdicts = steps.iter().filter(|step| matches!(step, Step::Verdict { .. })).count();
    let others = steps.len() - elements - verdicts;
    (elements, verdicts, others, compiler.work() - before)
}

#[test]
fn a_pods_changes_cost_the_same_however_large_the_cluster_is() {
    let mut costs = BTreeSet::new();
    for (policies, pods) in [(10, 10), (10_000, 10_000)] {
        let mut compiler = large(policies, pods);
        // The chains: for each direction the one of unknown pods and one class; a tier; three of
        // policies.
        assert_eq!(compiler.program().chains.len(), 2 + 2 + 1 + 3);
        let remote =
            |labels| -> Pod { pod("shop/new", "two", labels, &["10.244.2.9", "fd00:244:2::9"]) };
        let uid = remote(json!({})).uid;
        let local = pod("shop/near", "one", json!({"app": "web"}), &["10.244.1.9"]);
        let mut of = |change| cost(&mut compiler, change);
        let all = [
            // The pod enters the set of the whole namespace and that of its port `http`, for each
            // family.
            of(remote(json!({"app": "web"})).into()),
            // The pod enters one more set.
            of(remote(json!({"app": "web", "role": "client"})).into()),
            of(remote(json!({"app": "web", "role": "client", "new": "label"})).into()),
            // The pod leaves that set and enters another one.
            of(remote(json!({"app": "web", "bad": "yes"})).into()),
            of(Change::Pod(uid, None)),
            // The pod is on this node, so it also gets verdicts for both directions, but no chain.
            of(local.clone().into()),
            of(Change::Pod(local.uid, None)),
        ];
        costs.insert(all);
    }
    let costs: Vec<_> = costs.into_iter().collect();
    let [costs] = costs.as_slice() else { panic!("it depends on the size: {costs:?}") };
    let steps = costs.map(|(elements, verdicts, others, _)| (elements, verdicts, others));
    assert_eq!(
        steps,
        [(4, 0, 0), (2, 0, 0), (0, 0, 0), (4, 0, 0), (6, 0, 0), (2, 2, 0), (2, 2, 0)]
    );
    for (.., work) in costs {
        assert!(*work <= 16, "{costs:?}");
    }
}

#[test]
fn a_namespaces_new_label_is_an_element_for_each_of_its_pods() {
    for pods in [10, 100] {
        for policies in [10, 1000] {
            let mut compiler = large(policies, pods);
            let red = namespace("other", json!({"team": "red"}));
            let (elements, verdicts, others, _) = cost(&mut compiler, red.into());
            // Half of the pods are in that namespace, with two addresses each.
            assert_eq!((elements, verdicts, others), (pods, 0, 0), "{policies}");
        }
    }
}

#[test]
fn a_changed_policy_is_its_own_chains_and_sets() {
    for (policies, pods) in [(10, 10), (1000, 10), (10, 1000)] {
        let mut compiler = large(policies, pods);
        let changed = network(
            "shop/web",
            json!({
                "podSelector": {"matchLabels": {"app": "web"}},
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": "client"}}}]}],
                "egress": [{"to": [{"podSelector": {}}], "ports": [{"port": "http"}]}],
            }),
        );
        let steps = compiler.apply(changed.into());
        // One chain gets other lines, and a set of each family is removed.
        let [put, first, second] = steps.as_slice() else { panic!("{steps:#?}") };
        assert!(matches!(put, Step::PutChain { .. }), "{put:?}");
        for step in [first, second] {
            assert!(matches!(step, Step::RemoveSet { .. }), "{step:?}");
        }
        // A policy that selects no pod of this node costs nothing here.
        let other = network("shop/policy-0", json!({"podSelector": {"matchLabels": {"a": "b"}}}));
        let before = compiler.work();
        assert_eq!(compiler.apply(other.into()), []);
        assert_eq!(compiler.work(), before, "it is compared with no address");
    }
}

#[test]
fn pods_with_the_same_policies_share_a_class() {
    let mut compiler = large(10, 10);
    let chains = compiler.program().chains.len();
    for number in 2..100 {
        let name = format!("shop/web-{number}");
        let address = format!("10.244.1.{number}");
        compiler.apply(pod(&name, "one", json!({"app": "web"}), &[&address]).into());
    }
    assert_eq!(compiler.program().chains.len(), chains);
    // A class is removed with its last pod.
    for number in 2..100 {
        compiler.apply(Change::Pod(format!("shop/web-{number}").into(), None));
    }
    compiler.apply(Change::Pod("shop/web".into(), None));
    let left: Vec<&str> = compiler.program().chains.keys().map(String::as_str).collect();
    assert_eq!(left, ["unknown-in", "unknown-out"]);
    assert!(compiler.program().sets.is_empty() && compiler.program().verdicts.is_empty());
}

/// A new set is compared with each combination of labels, not with each pod.
#[test]
fn a_new_set_looks_once_at_the_labels_that_pods_share() {
    let mut costs = BTreeSet::new();
    for replicas in [1, 100] {
        let mut compiler = large(10, 10);
        for number in 0..replicas {
            let name = format!("shop/client-{number}");
            let address = format!("10.244.3.{number}");
            let labels = json!({"app": "client"});
            compiler.apply(pod(&name, "two", labels, &[&address]).into());
        }
        let policy = network(
            "shop/new",
            json!({
                "podSelector": {"matchLabels": {"app": "web"}},
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}],
            }),
        );
        let before = compiler.work();
        compiler.apply(policy.into());
        costs.insert(compiler.work() - before);
        // Each of the replicas is in the set, and is removed by itself.
        let elements = |compiler: &Compiler| -> usize {
            let sets = compiler.program().sets.values();
            let own = ip("10.244.3.0");
            sets.filter_map(|set| match set {
                Set::Addresses(all) if all.contains(&own) => Some(all.len()),
                _ => None,
            })
            .min()
            .unwrap_or_default()
        };
        assert_eq!(elements(&compiler), replicas);
        if 1 < replicas {
            let mut other =
                pod("shop/client-7", "two", json!({"app": "client", "x": "y"}), &["10.244.3.7"]);
            compiler.apply(other.clone().into());
            assert_eq!(elements(&compiler), replicas);
            Arc::make_mut(&mut other.labels).clear();
            compiler.apply(other.into());
            compiler.apply(Change::Pod("shop/client-8".into(), None));
            assert_eq!(elements(&compiler), replicas - 2);
        }
    }
    let costs: Vec<u64> = costs.into_iter().collect();
    let [cost] = costs.as_slice() else { panic!("it depends on the replicas: {costs:?}") };
    assert!(*cost < 40, "{cost}");
}

/// Thousands of values in two selectors do not make millions of entries in which a pod is looked
/// up.
#[test]
fn selectors_with_thousands_of_values_are_looked_up_in_one_place() {
    let values = |what: &str| -> Vec<String> { (0..5000).map(|n| format!("{what}-{n}")).collect() };
    let expression = |key: &str, what: &str| json!({"matchExpressions": [{"key": key, "operator": "In", "values": values(what)}]});
    let mut compiler = large(10, 10);
    let policy = network(
        "shop/many",
        json!({
            "podSelector": {},
            "ingress": [{"from": [{
                "namespaceSelector": expression("team", "team"),
                "podSelector": expression("app", "app"),
            }]}],
        }),
    );
    compiler.apply(policy.into());
    compiler.apply(namespace("many", json!({"team": "team-4999"})).into());
    let new = |app: &str| pod("many/new", "two", json!({"app": app}), &["10.244.2.9"]);
    // It has a port `http` too, but is not in the namespace of the set of all pods.
    let (elements, _, _, work) = cost(&mut compiler, new("app-4999").into());
    assert!(elements == 2 && work < 20, "{elements} {work}");
    assert_eq!(cost(&mut compiler, new("app-5000").into()).0, 1);
}

/// Policies that select the pod `shop/many`, each with a selector of its own, and some with ports of
/// their own.
fn of_one_pod(count: usize, ports: impl Fn(usize) -> serde_json::Value) -> Vec<Change> {
    let policy = |number: usize| -> Change {
        let peer = json!({"podSelector": {"matchLabels": {"client": number.to_string()}}});
        let rule = json!([{"from": [peer], "ports": ports(number)}]);
        let subject = json!({"matchLabels": {"app": "many"}});
        let spec = json!({"podSelector": subject, "ingress": rule});
        network(&format!("shop/many-{number}"), spec).into()
    };
    (0..count).map(policy).collect()
}

fn many() -> Pod {
    pod("shop/many", "one", json!({"app": "many"}), &["10.244.1.8", "fd00:244:1::8"])
}

/// The kernel compares the name of a set with those of all others of the table, so a pod must not
/// cost a set for each policy that selects it.
#[test]
fn a_pod_costs_the_same_however_many_policies_select_it() {
    let mut costs = BTreeSet::new();
    for policies in [10, 1000] {
        let mut compiler = large(10, 10);
        for policy in of_one_pod(policies, |_| json!([{"port": 80}, {"port": 443}])) {
            compiler.apply(policy);
        }
        let client = |number: usize| {
            let address = format!("10.244.2.{number}");
            let labels = json!({"client": number.to_string()});
            pod(&format!("shop/client-{number}"), "two", labels, &[&address])
        };
        compiler.apply(client(3).into());
        let steps = compiler.apply(many().into());
        let count = |what: fn(&Step) -> bool| steps.iter().filter(|step| what(step)).count();
        let sets = count(|step| matches!(step, Step::AddSet { .. }));
        let chains = count(|step| matches!(step, Step::PutChain { .. }));
        let verdicts = count(|step| matches!(step, Step::Verdict { .. }));
        // A peer comes and goes by elements.
        let (peer, uid) = (client(7), client(7).uid);
        let comes = compiler.apply(peer.into());
        assert!(comes.iter().all(|step| matches!(step, Step::AddElement { .. })), "{comes:?}");
        let goes = compiler.apply(Change::Pod(uid, None));
        assert!(goes.iter().all(|step| matches!(step, Step::RemoveElement { .. })), "{goes:?}");
        // A second pod like it is led to the same chain.
        let like = pod("shop/like", "one", json!({"app": "many"}), &["10.244.1.9"]);
        let like = compiler.apply(like.into());
        let is_small = |step: &Step| matches!(step, Step::AddElement { .. } | Step::Verdict { .. });
        assert!(like.iter().all(is_small), "{like:?}");
        let lines: usize = compiler.program().chains.values().map(Vec::len).sum();
        costs.insert((sets, chains, verdicts, lines, comes.len(), goes.len()));
    }
    assert_eq!(costs.len(), 1, "{costs:?}");
    // A set of the clients for each family; the class and its tier.
    let (sets, chains, verdicts, ..) = costs.first().unwrap();
    assert_eq!((sets, chains, verdicts), (&2, &2, &2));
}

/// Beyond what is enforced, a pod is closed, and the evaluator says so too.
#[test]
fn a_pod_with_too_many_lists_of_ports_is_closed() {
    let port = |number: usize| json!([{"port": 1000 + number}]);
    let mut compiler = large(10, 10);
    // The policy of the cluster has another list.
    let policies = of_one_pod(MOST_LISTS, port);
    let (first, last) = policies.split_at(MOST_LISTS - 2);
    first.iter().for_each(|policy| drop(compiler.apply(policy.clone())));
    compiler.apply(many().into());
    let client = pod("shop/client", "two", json!({"client": "7"}), &["10.244.2.9"]);
    compiler.apply(client.into());
    let (from, to) = (ip("10.244.2.9"), ip("10.244.1.8"));
    let passes = |compiler: &Compiler, port: u16| {
        let traffic = tcp(port);
        let judged = verdict(compiler.world(), from, to, traffic).allowed();
        let packet = Packet { source: from, destination: to, traffic };
        assert_eq!(passes(compiler.program(), packet), judged, "{port}");
        judged
    };
    for policy in last {
        assert_eq!(compiler.beyond().count(), 0);
        compiler.apply(policy.clone());
    }
    assert_eq!(compiler.beyond().count(), 2, "for each address");
    assert!(!passes(&compiler, 1007));
    let explained = explain(compiler.world(), from, to, tcp(1007));
    let (_, cause) = &explained.causes[0];
    assert!(cause.starts_with("the ingress rules of its policies have more than 256"), "{cause}");
    // Its own node reaches it, and what it sends is judged as before.
    assert!(verdict(compiler.world(), ip("192.0.2.1"), to, tcp(1007)).allowed());
    assert!(verdict(compiler.world(), to, ip("198.51.100.1"), tcp(80)).allowed());
    // One list less, and it is judged again.
    let Change::Policy(id, _) = &policies[3] else { panic!("{:?}", policies[3]) };
    compiler.apply(Change::Policy(id.clone(), None));
    assert_eq!(compiler.beyond().count(), 0);
    assert!(passes(&compiler, 1007) && !passes(&compiler, 1008) && !passes(&compiler, 1003));
}

/// Policies that go one after the other would each write what is left of the others again.
#[test]
fn many_changes_cost_what_they_have_in_common_once() {
    const POLICIES: usize = 1000;
    let mut compiler = large(10, 10);
    let policies = of_one_pod(POLICIES, |_| json!([{"port": 80}]));
    policies.iter().for_each(|policy| compiler.change(policy.clone()));
    compiler.change(many().into());
    let client = pod("shop/client", "two", json!({"client": "999"}), &["10.244.2.9"]);
    compiler.change(client.into());
    let steps = compiler.settle();
    assert!(steps.len() < 20, "{}", steps.len());
    let packet = |port| Packet {
        source: ip("10.244.2.9"),
        destination: ip("10.244.1.8"),
        traffic: tcp(port),
    };
    assert!(passes(compiler.program(), packet(80)) && !passes(compiler.program(), packet(81)));
    for policy in &policies[POLICIES / 2..] {
        let Change::Policy(id, _) = policy else { panic!("{policy:?}") };
        compiler.change(Change::Policy(id.clone(), None));
    }
    let steps = compiler.settle();
    assert!(steps.len() < 20, "{}", steps.len());
    assert!(!passes(compiler.program(), packet(80)));
}
