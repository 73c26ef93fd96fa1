//! Invalid objects, which an older server or another definition may have accepted. The service
//! reports each in a sentence and closes the pods that it is for. It harms no other object.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testkit::wait_until;

use super::status::condition;
use super::{Cluster, PORT, allow};

fn network(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "bad", "name": name}, "spec": spec,
    })
}

fn cluster(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut spec = json!({
        "tier": "Admin", "priority": 7,
        "subject": {"pods": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "worse"}},
            "podSelector": {"matchLabels": {"app": name}},
        }},
        "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}],
    });
    change(&mut spec);
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name}, "spec": spec,
    })
}

/// NetworkPolicies for all pods of the namespace `bad`, each with one mistake.
fn network_policies() -> Vec<Value> {
    let from = |peer: Value| json!({"ingress": [{"from": [peer]}]});
    let block = |cidr: &str| from(json!({"ipBlock": {"cidr": cidr}}));
    let except =
        |except: &str| from(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": [except]}}));
    let port = |port: Value| json!({"ingress": [{"ports": [port]}]});
    let select = |selector: Value| json!({"podSelector": selector, "ingress": [{}]});
    let expression = |one: Value| select(json!({"matchExpressions": [one]}));
    let long: Vec<Value> = (0..14_000)
        .map(|n| json!({"ipBlock": {"cidr": format!("10.{}.{}.0/33", n / 256, n % 256)}}))
        .collect();
    let many: Vec<Value> = (0..700)
        .map(|n| json!({"podSelector": {"matchExpressions": [{"key": format!("n-{n}"), "operator": "DoesNotExist"}]}}))
        .collect();
    let specs = vec![
        select(json!({"matchLabels": {"a b": "c"}})),
        select(json!({"matchLabels": {"app": "a value!"}})),
        select(json!({"matchLabels": 7})),
        select(json!("all")),
        select(json!({"matchlabels": {}})),
        expression(json!({"key": "app", "operator": "In"})),
        expression(json!({"key": "app", "operator": "Exists", "values": ["a"]})),
        expression(json!({"key": "app", "operator": "Is", "values": ["a"]})),
        expression(json!({"key": "", "operator": "Exists"})),
        block("010.0.0.0/8"),
        block("10.0.0.0"),
        block("10.0.0.0/33"),
        block("ten"),
        except("11.0.0.0/8"),
        except("10.0.0.0/7"),
        except("10.1.0.0"),
        from(json!({})),
        from(json!({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}})),
        from(json!({"podselector": {}})),
        from(json!({"domainNames": ["example.org"]})),
        port(json!({"port": 0})),
        port(json!({"port": 65_536})),
        port(json!({"port": "no port"})),
        port(json!({"port": 20, "endPort": 10})),
        port(json!({"port": "dns", "endPort": 10})),
        port(json!({"endPort": 10})),
        port(json!({"port": 80, "protocol": "tcp"})),
        port(json!({"port": 80, "protocol": "ICMP"})),
        json!({"policyTypes": ["ingress"], "ingress": [{}]}),
        json!({"policyTypes": "Ingress", "ingress": [{}]}),
        json!({"ingress": {"from": []}}),
        json!({"ingress": [{}], "tier": "Admin"}),
        // A policy of a megabyte, in which every prefix is too long.
        json!({"ingress": [{"from": long}]}),
        json!({"ingress": [{"from": many}]}),
    ];
    let name = |number| format!("network-{number}");
    specs.into_iter().enumerate().map(|(number, spec)| network(&name(number), spec)).collect()
}

/// ClusterNetworkPolicies, each with one mistake, and each for the pod of the namespace `worse`
/// that has its name.
fn cluster_policies() -> Vec<Value> {
    let many = |what: Value, count: usize| Value::Array(vec![what; count]);
    let accept = |protocols: Value| json!([{"action": "Accept", "from": [{"namespaces": {}}], "protocols": protocols}]);
    let tcp = |port: Value| accept(json!([{"tcp": {"destinationPort": port}}]));
    let to = |peer: Value| json!([{"action": "Accept", "to": [peer]}]);
    vec![
        cluster("tier", |spec| spec["tier"] = json!("Default")),
        cluster("no-tier", |spec| drop(spec.as_object_mut().unwrap().remove("tier"))),
        cluster("priority", |spec| spec["priority"] = json!(1001)),
        cluster("negative", |spec| spec["priority"] = json!(-1)),
        cluster("subject", |spec| spec["subject"]["namespaces"] = json!({})),
        cluster("no-subject", |spec| spec["subject"] = json!({})),
        cluster("unknown", |spec| spec["colour"] = json!("red")),
        cluster("action", |spec| spec["ingress"][0]["action"] = json!("Allow")),
        cluster("no-from", |spec| spec["ingress"][0]["from"] = Value::Null),
        cluster("empty-from", |spec| spec["ingress"][0]["from"] = json!([])),
        cluster("peer", |spec| spec["ingress"][0]["from"] = json!([{"networks": ["10.0.0.0/8"]}])),
        cluster("rules", |spec| {
            let rule = spec["ingress"][0].clone();
            spec["ingress"] = many(rule, 26);
        }),
        cluster("peers", |spec| spec["ingress"][0]["from"] = many(json!({"namespaces": {}}), 26)),
        cluster("protocols", |spec| {
            let one = json!({"tcp": {"destinationPort": {"number": 1}}});
            spec["ingress"] = accept(many(one, 26));
        }),
        cluster("reversed", |spec| spec["ingress"] = tcp(json!({"range": {"start": 9, "end": 8}}))),
        cluster("number", |spec| spec["ingress"] = tcp(json!({"number": 0}))),
        cluster("two", |spec| spec["ingress"] = tcp(json!({"number": 1, "range": {}}))),
        cluster("domains", |spec| spec["egress"] = to(json!({"domainNames": ["example.org"]}))),
        cluster("host-bits", |spec| spec["egress"] = to(json!({"networks": ["10.0.0.1/8"]}))),
        cluster("named", |spec| {
            spec["egress"] = to(json!({"networks": ["10.0.0.0/8"]}));
            spec["egress"][0]["protocols"] = json!([{"destinationNamedPort": "dns"}]);
        }),
        cluster("name", |spec| spec["ingress"][0]["name"] = json!("x".repeat(101))),
    ]
}

#[test]
fn mistakes_are_told_and_fail_closed_for_their_own_pods() {
    testkit::require!("root");
    let mut rig = Cluster::new("policy-bad");
    for name in ["bad", "worse"] {
        let labels = json!({"kubernetes.io/metadata.name": name});
        let metadata = json!({"name": name, "labels": labels});
        rig.api.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    }
    let (network, cluster) = (network_policies(), cluster_policies());
    assert!(40 <= network.len() + cluster.len());
    rig.api.create(&allow("db", "db", &["web"]));
    network.iter().chain(&cluster).for_each(|policy| drop(rig.api.create(policy)));
    rig.start();
    let [db, web, other] = ["db", "web", "other"].map(|name| rig.pod(name));

    // Each mistake is reported in its sentence.
    let events = |rig: &Cluster| -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = rig.api.objects("events");
        let of = |event: &Value| (text(&event["involvedObject"]["name"]), text(&event["message"]));
        events.iter().map(of).collect()
    };
    wait_until("an Event about each", || events(&rig).len() == network.len());
    for (name, message) in events(&rig) {
        eprintln!("{name}: {}", &message[..message.floor_char_boundary(150)]);
        assert!(message.contains(": ") && message.contains("; the "), "{name}: {message}");
    }
    let name = |policy: &Value| policy["metadata"]["name"].as_str().unwrap().to_owned();
    wait_until("a condition of each", || {
        cluster.iter().all(|policy| condition(&rig, &name(policy)).is_some())
    });
    for policy in &cluster {
        let (status, reason, _, message) = condition(&rig, &name(policy)).unwrap();
        eprintln!("{}: {message}", name(policy));
        assert_eq!((status.as_str(), reason.as_str()), ("False", "Refused"), "{message}");
        assert!(message.starts_with("spec") && message.contains("; the "), "{message}");
    }

    // The other policies are enforced as written.
    web.assert_reaches(&db, true);
    other.assert_reaches(&db, false);
    db.assert_reaches(&other, true);
    // The pods that they select are closed, as the sentence says. The node reaches them.
    let attach = |namespace: &'static str, name: &str| {
        let mut object = super::object(name, &super::uid(name), "n1");
        object["metadata"]["namespace"] = json!(namespace);
        rig.api.create(&object);
        rig.attach_in(namespace, name)
    };
    for (namespace, name) in [("bad", "any"), ("worse", "rules"), ("worse", "action")] {
        let pod = attach(namespace, name);
        web.assert_reaches(&pod, false);
        testkit::traffic::assert_tcp(&rig.node.lab, &format!("{}:{PORT}", pod.v4()));
    }
    // No policy selects this one.
    let free = attach("worse", "free");
    web.assert_reaches(&free, true);
}
