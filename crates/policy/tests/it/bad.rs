//! Objects that cannot be used as they are written. For each there is a sentence with object, path
//! and cause. The pods that it is for are closed, and no other object is affected.

use expect_test::{Expect, expect};
use netwright_policy::policy::Policy;
use netwright_policy::{
    Compiler, Namespace, Node, Pod, Refusal, World, cluster_policy, compile, multi_policy,
    network_policy,
};
use serde_json::{Value, json};
use testkit::Chance;

use crate::support::{allowed, cluster_of_two, network, network_object, tcp, world_with};

const ENDS: [&str; 8] = [
    "shop/web",
    "shop/db",
    "other/web",
    "other/db",
    "kube-system/dns",
    "node one",
    "node two",
    "outside",
];

/// All connections to TCP port 80 that a world allows.
fn open(world: &World) -> Vec<(&'static str, &'static str)> {
    let pairs = ENDS.iter().flat_map(|source| ENDS.iter().map(move |end| (*source, *end)));
    pairs.filter(|(source, end)| allowed(world, source, end, tcp(80))).collect()
}

/// Asserts that with a policy nothing reaches `shop/db`, that the policy allows nothing that is
/// denied without it, and that it affects only the pods of `touches`. Returns its sentences.
fn closed(policy: Policy, touches: &[&str]) -> String {
    assert!(!policy.faults.is_empty(), "nothing is refused: {policy:?}");
    let sentences: String = policy.faults.iter().map(|fault| format!("{fault}\n")).collect();
    // A valid policy, whose effect must stay as it is.
    let other = network(
        "other/web",
        json!({
            "podSelector": {"matchLabels": {"app": "web"}},
            "ingress": [{"from": [{"podSelector": {}}]}],
        }),
    );
    let without = open(&world_with([other.clone()]));
    let with = open(&world_with([other, policy]));
    for pair in &with {
        assert!(without.contains(pair), "{pair:?} is allowed: {sentences}");
        let (source, end) = pair;
        let is_pod = |end: &str| end.contains('/');
        assert!(*end != "shop/db" || source == end || !is_pod(source), "{pair:?}: {sentences}");
    }
    for (source, end) in without {
        if !touches.contains(&source) && !touches.contains(&end) {
            assert!(with.contains(&(source, end)), "{source} to {end}: {sentences}");
        }
    }
    sentences
}

fn check(cases: Vec<String>, at_least: usize, expected: Expect) {
    assert!(cases.len() >= at_least, "{} cases", cases.len());
    expected.assert_eq(&cases.concat());
}

/// A NetworkPolicy for `shop/db`, with these keys instead of valid ones.
fn spec(changes: Value) -> Value {
    let mut spec = json!({
        "podSelector": {"matchLabels": {"app": "db"}},
        "policyTypes": ["Ingress"],
        "ingress": [],
    });
    for (key, value) in changes.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

fn network_case(spec: Value, touches: &[&str]) -> String {
    let policy = network_policy::read(&network_object("shop/x", spec)).unwrap();
    closed(policy, touches)
}

#[test]
fn network_policies_with_bad_rules() {
    let rule = |rule: Value| network_case(spec(json!({"ingress": [rule]})), &["shop/db"]);
    let peer = |peer: Value| rule(json!({"from": [{"podSelector": {}}, peer]}));
    let selector = |selector: Value| peer(json!({"podSelector": selector}));
    let expression = |expression: Value| selector(json!({"matchExpressions": [expression]}));
    let block = |block: Value| peer(json!({"ipBlock": block}));
    let port = |port: Value| rule(json!({"ports": [{"port": 80}, port]}));
    let cases = vec![
        rule(json!("all")),
        rule(json!({"form": []})),
        rule(json!({"to": []})),
        rule(json!({"from": {"podSelector": {}}})),
        rule(json!({"ports": 80})),
        peer(json!(null)),
        peer(json!({})),
        peer(json!({"podSelecter": {}})),
        peer(json!({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}})),
        selector(json!([])),
        selector(json!({"app": "web"})),
        selector(json!({"matchLabels": ["web"]})),
        selector(json!({"matchLabels": {"app": 1}})),
        selector(json!({"matchLabels": {"-app": "web"}})),
        selector(json!({"matchLabels": {"Example.com/app": "web"}})),
        selector(json!({"matchLabels": {"app": "web server"}})),
        selector(json!({"matchLabels": {"app": "x".repeat(64)}})),
        expression(json!({"operator": "Exists"})),
        expression(json!({"key": "app"})),
        expression(json!({"key": "app", "operator": "Is", "values": ["web"]})),
        expression(json!({"key": "app", "operator": "In"})),
        expression(json!({"key": "app", "operator": "NotIn", "values": []})),
        expression(json!({"key": "app", "operator": "Exists", "values": ["web"]})),
        expression(json!({"key": "app", "operator": "In", "values": "web"})),
        expression(json!({"key": "app", "operator": "In", "values": ["web"], "not": true})),
        block(json!({})),
        block(json!({"cidr": "10.0.0.0"})),
        block(json!({"cidr": "10.0.0.0/33"})),
        block(json!({"cidr": "010.0.0.0/8"})),
        block(json!({"cidr": "10.0.0.0/8", "except": "10.1.0.0/16"})),
        block(json!({"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]})),
        block(json!({"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]})),
        block(json!({"cidr": "10.0.0.0/8", "except": ["fd00::/8"]})),
        block(json!({"cidr": "10.0.0.0/8", "except": ["10.1.0.1/8"]})),
        port(json!({"protocol": "tcp"})),
        port(json!({"protocol": "ICMP"})),
        port(json!({"port": 0})),
        port(json!({"port": 65_536})),
        port(json!({"port": -1})),
        port(json!({"port": 80.5})),
        port(json!({"port": "80"})),
        port(json!({"port": ""})),
        port(json!({"port": "a-name-too-long-x"})),
        port(json!({"port": "http", "endPort": 90})),
        port(json!({"endPort": 90})),
        port(json!({"port": 90, "endPort": 80})),
        port(json!({"port": 80, "endPort": "90"})),
        port(json!({"port": 80, "proto": "TCP"})),
    ];
    check(
        cases,
        40,
        expect![[r#"
        NetworkPolicy shop/x: refused: spec.ingress[0]: "all" is not an object; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].form: it is not known here (known: from, ports); the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].to: it is not known here (known: from, ports); the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from: {"podSelector":{}} is not a list; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports: 80 is not a list; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1]: null is not an object; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1]: it has 0 of podSelector, namespaceSelector, ipBlock, and exactly one is needed; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelecter: it is not known here (known: podSelector, namespaceSelector, ipBlock); the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1]: ipBlock stands alone, without selectors; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector: [] is not an object; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.app: it is not known here (known: matchLabels, matchExpressions); the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchLabels: ["web"] is not an object; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchLabels.app: 1 is not a text; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchLabels.-app: "-app" is not a label's key; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchLabels.Example.com/app: "Example.com/app" is not a label's key; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchLabels.app: "web server" is not a label's value; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchLabels.app: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" is not a label's value; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchExpressions[0].key: it is missing; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchExpressions[0].operator: it is missing; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchExpressions[0].operator: "Is" is not one of In, NotIn, Exists, DoesNotExist; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchExpressions[0]: the operator is In, and it needs values; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchExpressions[0].values: the operator is NotIn, and it needs values; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchExpressions[0].values: the operator is Exists, and it takes no values; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchExpressions[0].values: "web" is not a list; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].podSelector.matchExpressions[0].not: it is not known here (known: key, operator, values); the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].ipBlock.cidr: it is missing; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].ipBlock.cidr: "10.0.0.0" is not a prefix such as 10.244.1.0/24; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].ipBlock.cidr: "10.0.0.0/33" is not a prefix such as 10.244.1.0/24; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].ipBlock.cidr: "010.0.0.0/8" is not a prefix such as 10.244.1.0/24; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].ipBlock.except: "10.1.0.0/16" is not a list; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].ipBlock.except[0]: 11.0.0.0/16 is not a part of 10.0.0.0/8; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].ipBlock.except[0]: 10.0.0.0/8 is not a part of 10.0.0.0/8; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].ipBlock.except[0]: fd00::/8 is not a part of 10.0.0.0/8; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].from[1].ipBlock.except[0]: 10.0.0.0/8 is not a part of 10.0.0.0/8; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].protocol: "tcp" is not one of TCP, UDP, SCTP; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].protocol: "ICMP" is not one of TCP, UDP, SCTP; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].port: 0 is not in 1..65535; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].port: 65536 is not in 1..65535; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].port: -1 is not in 1..65535; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].port: 80.5 is not a whole number; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].port: "80" is not a port's name; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].port: "" is not a port's name; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].port: "a-name-too-long-x" is not a port's name; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].endPort: a range begins with a number, and port is a name; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].endPort: a range needs port, its beginning; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].endPort: the range ends at 80, before its beginning at 90; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].endPort: "90" is not a whole number; the rule allows nothing
        NetworkPolicy shop/x: refused: spec.ingress[0].ports[1].proto: it is not known here (known: protocol, port, endPort); the rule allows nothing
    "#]],
    );
}

#[test]
fn network_policies_that_are_bad_as_a_whole() {
    let case = |changes: Value, touches: &[&str]| network_case(spec(changes), touches);
    let (its_own, all) = (["shop/db"], ["shop/web", "shop/db"]);
    let cases = vec![
        case(json!({"ingress": {}}), &its_own),
        case(json!({"ingress": "none"}), &its_own),
        case(json!({"policyTypes": "Ingress"}), &its_own),
        case(json!({"policyTypes": ["ingress"]}), &its_own),
        case(json!({"policyTypes": [1]}), &its_own),
        case(json!({"rules": [{}], "ingress": [{}]}), &its_own),
        case(json!({"podSelector": "app=db"}), &all),
        case(json!({"podSelector": {"matchLabels": {"app": ["db"]}}, "ingress": [{}]}), &all),
        // The readable part of the selector still selects.
        case(
            json!({
                "podSelector": {
                    "matchLabels": {"app": "db"},
                    "matchExpressions": [{"key": "x", "operator": "Like", "values": ["y"]}],
                },
                "ingress": [{}],
            }),
            &its_own,
        ),
        network_case(json!(null), &all),
        network_case(json!([]), &all),
    ];
    check(
        cases,
        10,
        expect![[r#"
        NetworkPolicy shop/x: refused: spec.ingress: {} is not a list; the policy allows no ingress
        NetworkPolicy shop/x: refused: spec.ingress: "none" is not a list; the policy allows no ingress
        NetworkPolicy shop/x: refused: spec.policyTypes: "Ingress" is not a list; the policy allows nothing
        NetworkPolicy shop/x: refused: spec.policyTypes[0]: "ingress" is not one of Ingress, Egress; the policy allows nothing
        NetworkPolicy shop/x: refused: spec.policyTypes[0]: 1 is not a text; the policy allows nothing
        NetworkPolicy shop/x: refused: spec.rules: it is not known here (known: podSelector, policyTypes, ingress, egress); the policy allows nothing
        NetworkPolicy shop/x: refused: spec.podSelector: "app=db" is not an object; the policy allows nothing, for all pods that the rest of the selector selects
        NetworkPolicy shop/x: refused: spec.podSelector.matchLabels.app: ["db"] is not a text; the policy allows nothing, for all pods that the rest of the selector selects
        NetworkPolicy shop/x: refused: spec.podSelector.matchExpressions[0].operator: "Like" is not one of In, NotIn, Exists, DoesNotExist; the policy allows nothing, for all pods that the rest of the selector selects
        NetworkPolicy shop/x: refused: spec: it is missing; the policy allows nothing, for all pods that the rest of the selector selects
        NetworkPolicy shop/x: refused: spec: [] is not an object; the policy allows nothing, for all pods that the rest of the selector selects
    "#]],
    );
}

/// A ClusterNetworkPolicy for the namespace `shop`, whose last rule denies all pods.
fn cluster_case(changes: Value) -> String {
    let mut spec = json!({
        "tier": "Admin",
        "priority": 10,
        "subject": {"namespaces": {"matchLabels": {"team": "red"}}},
    });
    let deny = json!({"action": "Deny", "from": [{"namespaces": {}}]});
    spec["ingress"] = json!([deny]);
    for (key, value) in changes.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let policy = cluster_policy::read(&json!({"metadata": {"name": "x"}, "spec": spec})).unwrap();
    closed(policy, &["shop/web", "shop/db"])
}

#[test]
fn cluster_policies_that_are_bad() {
    let deny = json!({"action": "Deny", "from": [{"namespaces": {}}]});
    let ingress = |rule: Value| cluster_case(json!({"ingress": [rule, deny]}));
    let egress = |rule: Value| cluster_case(json!({"egress": [rule]}));
    let to = |peer: Value| egress(json!({"action": "Accept", "to": [peer]}));
    let protocol = |protocol: Value| {
        let from = json!([{"namespaces": {}}]);
        ingress(json!({"action": "Accept", "from": from, "protocols": [protocol]}))
    };
    let everybody = json!([{"namespaces": {}}]);
    let cases = vec![
        cluster_case(json!({"tier": "admin"})),
        cluster_case(json!({"tier": null})),
        cluster_case(json!({"tier": "Cluster"})),
        cluster_case(json!({"priority": null})),
        cluster_case(json!({"priority": 1001})),
        cluster_case(json!({"priority": -1})),
        cluster_case(json!({"priority": "10"})),
        cluster_case(json!({"order": 5})),
        cluster_case(json!({"ingress": {}})),
        cluster_case(json!({"ingress": vec![deny.clone(); 26]})),
        cluster_case(json!({"subject": {"namespaces": {
            "matchLabels": {"team": "red"}, "matchExpressions": [{"key": "x", "operator": "Gt"}],
        }}})),
        ingress(json!({"from": everybody})),
        ingress(json!({"action": "Allow", "from": everybody})),
        ingress(json!({"action": "Accept"})),
        ingress(json!({"action": "Accept", "from": []})),
        ingress(json!({"action": "Pass", "from": []})),
        ingress(json!({"action": "Deny", "from": vec![json!({"namespaces": {}}); 26]})),
        ingress(json!({"action": "Accept", "from": [{"networks": ["0.0.0.0/0"]}]})),
        ingress(json!({"action": "Accept", "from": [{}]})),
        ingress(json!({"action": "Pass", "from": [{"sameLabels": ["team"]}]})),
        ingress(json!({"action": "Accept", "from": [{"namespaces": {}, "pods": {}}]})),
        ingress(json!({"action": "Accept", "from": [{"pods": {"namespaceSelector": {}}}]})),
        ingress(json!({"action": "Accept", "from": everybody, "ports": [80]})),
        ingress(json!({"action": "Accept", "from": everybody, "name": "x".repeat(101)})),
        ingress(json!({"action": "Accept", "from": everybody, "protocols": []})),
        protocol(json!({})),
        protocol(json!({"icmp": {}})),
        protocol(json!({"tcp": {}})),
        protocol(json!({"tcp": {"destinationPort": {}}})),
        protocol(json!({"tcp": {"destinationPort": {"number": 0}}})),
        protocol(json!({"tcp": {"destinationPort": {"number": 1, "range": {}}}})),
        protocol(json!({"tcp": {"destinationPort": {"range": {"start": 9, "end": 8}}}})),
        protocol(json!({"tcp": {"destinationPort": {"range": {"start": 9, "end": 9}}}})),
        protocol(json!({"tcp": {"destinationPort": {"range": {"start": 9}}}})),
        protocol(json!({"tcp": {"sourcePort": 9}})),
        protocol(json!({"destinationNamedPort": "HTTP"})),
        protocol(json!({"tcp": {"destinationPort": {"number": 80}}, "destinationNamedPort": "x"})),
        to(json!({"networks": []})),
        to(json!({"networks": ["10.0.0.0/8", "10.0.0.1/8"]})),
        to(json!({"networks": ["everywhere"]})),
        to(json!({"networks": vec!["10.0.0.0/8"; 26]})),
        to(json!({"nodes": {"matchLabels": {"a b": "c"}}})),
        to(json!({"domainNames": ["example.com"]})),
        egress(json!({"action": "Deny", "to": [{"domainNames": ["example.com"]}]})),
        egress(json!({
            "action": "Accept", "to": [{"networks": ["10.0.0.0/8"]}],
            "protocols": [{"destinationNamedPort": "http"}],
        })),
    ];
    check(
        cases,
        40,
        expect![[r#"
        ClusterNetworkPolicy x: refused: spec.tier: "admin" is not one of Admin, Baseline; the policy denies everything
        ClusterNetworkPolicy x: refused: spec.tier: it is missing; the policy denies everything
        ClusterNetworkPolicy x: refused: spec.tier: "Cluster" is not one of Admin, Baseline; the policy denies everything
        ClusterNetworkPolicy x: refused: spec.priority: it is missing; the policy denies everything
        ClusterNetworkPolicy x: refused: spec.priority: 1001 is not in 0..1000; the policy denies everything
        ClusterNetworkPolicy x: refused: spec.priority: -1 is not in 0..1000; the policy denies everything
        ClusterNetworkPolicy x: refused: spec.priority: "10" is not a whole number; the policy denies everything
        ClusterNetworkPolicy x: refused: spec.order: it is not known here (known: tier, priority, subject, ingress, egress); the policy denies everything
        ClusterNetworkPolicy x: refused: spec.ingress: {} is not a list; the policy denies all ingress
        ClusterNetworkPolicy x: refused: spec.ingress: it has 26 entries, and at most 25 are allowed; the policy denies all ingress
        ClusterNetworkPolicy x: refused: spec.subject.namespaces.matchExpressions[0].operator: "Gt" is not one of In, NotIn, Exists, DoesNotExist; the policy denies everything, for all pods that the rest of the selector selects
        ClusterNetworkPolicy x: refused: spec.ingress[0].action: it is missing; the rule denies everything
        ClusterNetworkPolicy x: refused: spec.ingress[0].action: "Allow" is not one of Accept, Deny, Pass; the rule denies everything
        ClusterNetworkPolicy x: refused: spec.ingress[0].from: it is missing; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].from: it is empty; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].from: it is empty; the rule denies everything
        ClusterNetworkPolicy x: refused: spec.ingress[0].from: it has 26 entries, and at most 25 are allowed; the rule denies everything
        ClusterNetworkPolicy x: refused: spec.ingress[0].from[0].networks: it is not known here (known: namespaces, pods); the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].from[0]: it has 0 of namespaces, pods, and exactly one is needed; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].from[0].sameLabels: it is not known here (known: namespaces, pods); the rule denies everything
        ClusterNetworkPolicy x: refused: spec.ingress[0].from[0]: it has 2 of namespaces, pods, and exactly one is needed; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].from[0].pods.podSelector: it is missing; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].ports: it is not known here (known: name, action, from, protocols); the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].name: it is longer than 100 letters; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols: it is empty; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols[0]: it has 0 of tcp, udp, sctp, destinationNamedPort, and exactly one is needed; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols[0].icmp: it is not known here (known: tcp, udp, sctp, destinationNamedPort); the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols[0].tcp.destinationPort: it is missing; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols[0].tcp.destinationPort: it has 0 of number, range, and exactly one is needed; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols[0].tcp.destinationPort.number: 0 is not in 1..65535; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols[0].tcp.destinationPort: it has 2 of number, range, and exactly one is needed; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols[0].tcp.destinationPort.range: the range ends at 8, before its beginning at 9; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols[0].tcp.destinationPort.range: the range begins and ends at 9: write number; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols[0].tcp.destinationPort.range.end: it is missing; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols[0].tcp.sourcePort: it is not known here (known: destinationPort); the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols[0].destinationNamedPort: "HTTP" is not a port's name; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.ingress[0].protocols[0]: it has 2 of tcp, udp, sctp, destinationNamedPort, and exactly one is needed; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.egress[0].to[0].networks: it is empty; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.egress[0].to[0].networks[1]: 10.0.0.1/8 has bits set after its length: 10.0.0.0/8 may be meant; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.egress[0].to[0].networks[0]: "everywhere" is not a prefix such as 10.244.1.0/24; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.egress[0].to[0].networks: it has 26 entries, and at most 25 are allowed; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.egress[0].to[0].nodes.matchLabels.a b: "a b" is not a label's key; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.egress[0].to[0].domainNames: domain names are not supported here: the packet filter sees addresses; the rule allows nothing
        ClusterNetworkPolicy x: refused: spec.egress[0].to[0].domainNames: domain names are not supported here: the packet filter sees addresses; the rule denies everything
        ClusterNetworkPolicy x: refused: spec.egress[0].protocols[0]: only pods have named ports, and networks or nodes are among the peers; the rule allows nothing
    "#]],
    );
}

/// Closing every pod of the cluster because of one unreadable object would harm all others.
#[test]
fn cluster_policies_whose_subject_is_not_readable_select_nobody() {
    let none = open(&world_with([]));
    let case = |subject: Value| {
        let deny = json!([{"action": "Deny", "from": [{"namespaces": {}}]}]);
        let mut spec = json!({"tier": "Admin", "priority": 1, "ingress": deny});
        spec["subject"] = subject;
        let policy =
            cluster_policy::read(&json!({"metadata": {"name": "x"}, "spec": spec})).unwrap();
        let sentences: String = policy.faults.iter().map(|fault| format!("{fault}\n")).collect();
        assert_eq!(open(&world_with([policy])), none, "{sentences}");
        sentences
    };
    let cases = vec![
        case(json!(null)),
        case(json!({})),
        case(json!({"namespaces": {}, "pods": {}})),
        case(json!({"serviceAccounts": {}})),
        case(json!({"namespaces": {"matchLabels": {"team": 1}}})),
        case(json!({"pods": {"namespaceSelector": {}}})),
    ];
    check(
        cases,
        6,
        expect![[r#"
        ClusterNetworkPolicy x: refused: spec.subject: it is missing; the policy selects no pod
        ClusterNetworkPolicy x: refused: spec.subject: it has 0 of namespaces, pods, and exactly one is needed; the policy selects no pod
        ClusterNetworkPolicy x: refused: spec.subject: it has 2 of namespaces, pods, and exactly one is needed; the policy selects no pod
        ClusterNetworkPolicy x: refused: spec.subject.serviceAccounts: it is not known here (known: namespaces, pods); the policy selects no pod
        ClusterNetworkPolicy x: refused: spec.subject.namespaces.matchLabels.team: 1 is not a text; the policy selects no pod
        ClusterNetworkPolicy x: refused: spec.subject.pods.podSelector: it is missing; the policy selects no pod
    "#]],
    );
}

#[test]
fn objects_whose_place_is_not_readable_are_passed_over() {
    fn text<T: std::fmt::Debug>(read: Result<T, Refusal>) -> String {
        format!("{}\n", read.unwrap_err())
    }
    let long = format!("{{\"metadata\": \"{}\"}}", "x".repeat(5 << 20));
    let cases = vec![
        text(network_policy::read(&json!(null))),
        text(network_policy::read(&json!({"spec": {}}))),
        text(network_policy::read(&json!({"metadata": {"namespace": "shop"}}))),
        text(network_policy::read(&json!({"metadata": {"name": "x"}, "spec": {}}))),
        text(network_policy::read(&json!({"metadata": {"name": "x", "namespace": ""}}))),
        text(network_policy::read(&json!({"metadata": {"name": 7, "namespace": "shop"}}))),
        text(network_policy::read_document(b"{\"metadata\": ")),
        text(network_policy::read_document(long.as_bytes())),
        text(network_policy::read_document("[".repeat(5000).as_bytes())),
        text(cluster_policy::read(&json!({"metadata": {}}))),
        text(cluster_policy::read_document(b"kind: ClusterNetworkPolicy")),
        text(multi_policy::read(&json!({"metadata": {"name": "x"}}))),
        text(Namespace::read(&json!({"metadata": {}}))),
        text(Pod::read(&json!({"metadata": {"namespace": "shop", "name": "x"}}))),
        text(Pod::read(&json!([]))),
        text(Node::read(&json!({"metadata": {"name": ""}}))),
    ];
    check(
        cases,
        16,
        expect![[r#"
        a NetworkPolicy: refused: the object: null is not an object; the object is ignored
        a NetworkPolicy: refused: metadata: it is missing; the object is ignored
        a NetworkPolicy: refused: metadata.name: it is missing; the object is ignored
        NetworkPolicy x: refused: metadata.namespace: it is missing; the object is ignored
        NetworkPolicy x: refused: metadata.namespace: it is empty; the object is ignored
        a NetworkPolicy: refused: metadata.name: 7 is not a text; the object is ignored
        a NetworkPolicy: refused: the object: it cannot be read: it ends before it is complete at line 1 column 13; the object is ignored
        a NetworkPolicy: refused: the object: it has 5242896 bytes, and at most 4194304 are read; the object is ignored
        a NetworkPolicy: refused: the object: it cannot be read: recursion limit exceeded at line 1 column 128; the object is ignored
        a ClusterNetworkPolicy: refused: metadata.name: it is missing; the object is ignored
        a ClusterNetworkPolicy: refused: the object: it cannot be read: kind is not a value of JSON: a text needs quotation marks at line 1 column 1; the object is ignored
        MultiNetworkPolicy x: refused: metadata.namespace: it is missing; the object is ignored
        a Namespace: refused: metadata.name: it is missing; the object is ignored
        Pod shop/x: refused: metadata.uid: it is missing; the object is ignored
        a Pod: refused: metadata.namespace: it is missing; the object is ignored
        a Node: refused: metadata.name: it is missing; the object is ignored
    "#]],
    );
}

/// The meaning of another version's rules is not known, so they let nothing through.
#[test]
fn policies_of_another_version_are_closed() {
    let of = |version: Value, mut object: Value| {
        object["apiVersion"] = version;
        object
    };
    let network = |version: &str| {
        let object = network_object("shop/x", spec(json!({"ingress": [{}]})));
        let policy = network_policy::read(&of(json!(version), object)).unwrap();
        closed(policy, &["shop/db"])
    };
    let cluster = |version: &str| {
        let spec = json!({
            "tier": "Admin", "priority": 1,
            "subject": {"namespaces": {"matchLabels": {"team": "red"}}},
            "ingress": [{"action": "Accept", "from": [{"namespaces": {}}]}],
        });
        let object = json!({"metadata": {"name": "x"}, "spec": spec});
        let policy = cluster_policy::read(&of(json!(version), object)).unwrap();
        closed(policy, &["shop/web", "shop/db"])
    };
    let cases = vec![
        network("networking.k8s.io/v2"),
        network("extensions/v1beta1"),
        network("v1"),
        network(""),
        cluster("policy.networking.k8s.io/v1alpha1"),
        cluster("policy.networking.k8s.io/v1"),
    ];
    check(
        cases,
        6,
        expect![[r#"
            NetworkPolicy shop/x: refused: apiVersion: "networking.k8s.io/v2" is not read here, networking.k8s.io/v1 is; the policy allows nothing
            NetworkPolicy shop/x: refused: apiVersion: "extensions/v1beta1" is not read here, networking.k8s.io/v1 is; the policy allows nothing
            NetworkPolicy shop/x: refused: apiVersion: "v1" is not read here, networking.k8s.io/v1 is; the policy allows nothing
            NetworkPolicy shop/x: refused: apiVersion: "" is not read here, networking.k8s.io/v1 is; the policy allows nothing
            ClusterNetworkPolicy x: refused: apiVersion: "policy.networking.k8s.io/v1alpha1" is not read here, policy.networking.k8s.io/v1alpha2 or policy.networking.k8s.io/v1beta1 is; the policy denies everything
            ClusterNetworkPolicy x: refused: apiVersion: "policy.networking.k8s.io/v1" is not read here, policy.networking.k8s.io/v1alpha2 or policy.networking.k8s.io/v1beta1 is; the policy denies everything
        "#]],
    );
    // The supported versions are read, and so are items of an API server's list, which have no
    // version.
    for version in [json!("networking.k8s.io/v1"), json!(null)] {
        let object = of(version, network_object("shop/x", spec(json!({}))));
        assert_eq!(network_policy::read(&object).unwrap().faults, []);
    }
    for version in ["policy.networking.k8s.io/v1alpha2", "policy.networking.k8s.io/v1beta1"] {
        let whole = json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}});
        let object = of(json!(version), json!({"metadata": {"name": "x"}, "spec": whole}));
        assert_eq!(cluster_policy::read(&object).unwrap().faults, []);
    }
    for version in ["k8s.cni.cncf.io/v1beta1", "k8s.cni.cncf.io/v1beta2", "k8s.cni.cncf.io/v2"] {
        let mut object = of(json!(version), network_object("shop/x", spec(json!({}))));
        object["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/policy-for": "storage"});
        let policy = multi_policy::read(&object).unwrap().policy;
        assert_eq!(policy.faults.is_empty(), version != "k8s.cni.cncf.io/v2", "{policy:?}");
    }
}

#[test]
fn multi_network_policies_are_for_no_network_or_for_all_of_their_pods() {
    let case = |metadata: Value| {
        let mut object = json!({"metadata": metadata, "spec": {"podSelector": {}}});
        object["metadata"]["name"] = json!("x");
        object["metadata"]["namespace"] = json!("shop");
        let read = multi_policy::read(&object).unwrap();
        assert!(read.networks.is_empty());
        // A policy that names no network applies to none. If the name cannot be read, the policy
        // may be for any.
        let names = object.pointer("/metadata/annotations/k8s.v1.cni.cncf.io~1policy-for");
        let names = names.and_then(Value::as_str).is_some_and(|names| !names.trim().is_empty());
        assert_eq!(read.everywhere, names);
        assert_eq!(read.is_for("shop/storage"), names);
        read.policy.faults.iter().map(|fault| format!("{fault}\n")).collect::<String>()
    };
    let annotated =
        |text: Value| case(json!({"annotations": {"k8s.v1.cni.cncf.io/policy-for": text}}));
    let cases = vec![
        case(json!({})),
        annotated(json!(7)),
        annotated(json!(" ")),
        annotated(json!("a,,b")),
        annotated(json!("a/b/c")),
        annotated(json!("/storage")),
    ];
    check(
        cases,
        6,
        expect![[r#"
        MultiNetworkPolicy shop/x: refused: metadata.annotations: k8s.v1.cni.cncf.io/policy-for: it is missing; the policy is for no network
        MultiNetworkPolicy shop/x: refused: metadata.annotations: k8s.v1.cni.cncf.io/policy-for: it is missing; the policy is for no network
        MultiNetworkPolicy shop/x: refused: metadata.annotations: k8s.v1.cni.cncf.io/policy-for: " " is not a list of networks such as shop/storage; the policy is for no network
        MultiNetworkPolicy shop/x: refused: metadata.annotations: k8s.v1.cni.cncf.io/policy-for: "a,,b" is not a list of networks such as shop/storage; the policy is for every further network of its pods
        MultiNetworkPolicy shop/x: refused: metadata.annotations: k8s.v1.cni.cncf.io/policy-for: "a/b/c" is not a list of networks such as shop/storage; the policy is for every further network of its pods
        MultiNetworkPolicy shop/x: refused: metadata.annotations: k8s.v1.cni.cncf.io/policy-for: "/storage" is not a list of networks such as shop/storage; the policy is for every further network of its pods
    "#]],
    );
}

#[test]
fn annotations_of_2016_that_are_bad_isolate() {
    let case = |text: &str| {
        let namespace = Namespace::read(&json!({"metadata": {
            "name": "shop", "annotations": {"net.beta.kubernetes.io/network-policy": text},
        }}))
        .unwrap();
        assert!(namespace.default_deny, "{text}");
        namespace.faults.iter().map(|fault| format!("{fault}\n")).collect::<String>()
    };
    let cases = vec![
        case(""),
        case("DefaultDeny"),
        case("[]"),
        case(r#"{"ingress": "DefaultDeny"}"#),
        case(r#"{"ingress": {"isolation": "Deny"}}"#),
    ];
    check(
        cases,
        5,
        expect![[r#"
        Namespace shop: refused: metadata.annotations: net.beta.kubernetes.io/network-policy: it cannot be read: it ends before it is complete at line 1 column 0; the namespace's pods are denied what no policy allows
        Namespace shop: refused: metadata.annotations: net.beta.kubernetes.io/network-policy: it cannot be read: DefaultDeny is not a value of JSON: a text needs quotation marks at line 1 column 1; the namespace's pods are denied what no policy allows
        Namespace shop: refused: metadata.annotations: net.beta.kubernetes.io/network-policy: [] is not an object; the namespace's pods are denied what no policy allows
        Namespace shop: refused: metadata.annotations: net.beta.kubernetes.io/network-policy: "DefaultDeny" is not an object; the namespace's pods are denied what no policy allows
        Namespace shop: refused: metadata.annotations: net.beta.kubernetes.io/network-policy: "Deny" is not DefaultDeny; the namespace's pods are denied what no policy allows
    "#]],
    );
}

/// Unreadable fields of pods count as missing.
#[test]
fn objects_with_bad_fields_are_read_as_far_as_they_can() {
    let pod = Pod::read(&json!({
        "metadata": {
            "namespace": "shop", "name": "x", "uid": "1", "labels": {"app": "web", "n": 1},
        },
        "spec": {"nodeName": 7, "hostNetwork": "yes", "containers": [
            {"ports": [
                {"name": "http", "containerPort": 80},
                {"name": "", "containerPort": 81},
                {"name": "big", "containerPort": 65_536},
                {"name": "icmp", "containerPort": 1, "protocol": "ICMP"},
                {"containerPort": 82},
                7,
            ]},
            7,
        ], "initContainers": [
            {"restartPolicy": "Always", "ports": [{"name": "proxy", "containerPort": 15_001}]},
            {"ports": [{"name": "gone", "containerPort": 1}]},
        ]},
        "status": {"phase": 7, "podIPs": [{"ip": "10.0.0.1"}, {"ip": "here"}, {}, 7], "podIP": "10.0.0.1"},
    }))
    .unwrap();
    assert_eq!(pod.addresses, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(pod.labels.len(), 1);
    assert!(!pod.host_network && !pod.finished && pod.node.is_none());
    let ports: Vec<&str> = pod.ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(ports, ["http", "proxy"]);
    let node = Node::read(&json!({
        "metadata": {"name": "one", "labels": 7},
        "status": {"addresses": [{"address": "192.0.2.1"}, {"address": "one.example.com"}, 7]},
    }))
    .unwrap();
    assert_eq!(node.addresses.len(), 1);
}

/// The largest cluster policy that the API accepts: the number of its lines is a sum, not a
/// product.
#[test]
fn twenty_five_rules_with_twenty_five_peers_and_protocols() {
    let peers: Vec<Value> =
        (0..25).map(|n| json!({"namespaces": {"matchLabels": {"n": format!("v{n}")}}})).collect();
    let protocols: Vec<Value> =
        (1..=25).map(|n| json!({"tcp": {"destinationPort": {"number": n}}})).collect();
    let rule = json!({"action": "Accept", "from": peers, "protocols": protocols});
    let spec = json!({
        "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
        "ingress": vec![rule; 25],
    });
    let policy = cluster_policy::read(&json!({"metadata": {"name": "x"}, "spec": spec})).unwrap();
    assert_eq!(policy.faults, []);
    let program = compile(world_with([policy]), "one");
    let lines: usize = program.chains.values().map(Vec::len).sum();
    // Each rule has 25 peers of two families and 25 protocols; then there is the class.
    assert!(lines < 25 * (50 + 25) + 10, "{lines}");
    program.check().unwrap();
}

#[test]
fn a_policy_of_a_megabyte_is_read() {
    let blocks: Vec<Value> = (0..25_000)
        .map(|n: u32| {
            let cidr = format!("10.{}.{}.0/24", n / 256, n % 256);
            json!({"ipBlock": {"cidr": cidr}})
        })
        .collect();
    let spec = json!({"podSelector": {}, "ingress": [{"from": blocks, "ports": [{"port": 80}]}]});
    let text = network_object("shop/large", spec).to_string();
    assert!(text.len() > 900_000, "{}", text.len());
    let policy = network_policy::read_document(text.as_bytes()).unwrap();
    assert_eq!(policy.faults, []);
    let mut compiler = Compiler::new(World::of(None, cluster_of_two()), "one");
    let steps = compiler.apply(policy.into());
    // Any number of blocks makes one set.
    assert!(steps.len() < 12, "{}", steps.len());
}

/// Each selector makes a set of all pods that match it, on each node with a pod of the policy.
#[test]
fn a_megabyte_of_selectors_is_refused() {
    let selectors = |count: usize| -> Vec<Value> {
        let missing = |n| json!({"key": format!("missing-{n}"), "operator": "DoesNotExist"});
        let one = |n| json!({"podSelector": {"matchExpressions": [missing(n)]}});
        // Equal selectors share a set.
        (0..count).map(one).chain([one(0)]).collect()
    };
    let ports = |count: usize| -> Vec<Value> {
        (0..count).map(|n| json!({"port": format!("p-{n}")})).collect()
    };
    let ingress = |from: Vec<Value>, ports: Vec<Value>| {
        let block = json!({"ipBlock": {"cidr": "10.0.0.0/8"}});
        let rules = json!([{"from": from}, {"from": [block], "ports": ports}]);
        let select = json!({"matchLabels": {"app": "db"}});
        network_object("shop/x", json!({"podSelector": select, "ingress": rules}))
    };
    let large = ingress(selectors(12_000), Vec::new());
    assert!(large.to_string().len() > 900_000, "{}", large.to_string().len());
    let told = |policy: Policy| closed(policy, &["shop/db"]);
    expect![[r#"
        NetworkPolicy shop/x: refused: spec.ingress: it has 12000 different selectors of peers and names of ports, and at most 625 are enforced; the policy allows no ingress
    "#]]
    .assert_eq(&told(network_policy::read(&large).unwrap()));
    expect![[r#"
        NetworkPolicy shop/x: refused: spec.ingress: it has 626 different selectors of peers and names of ports, and at most 625 are enforced; the policy allows no ingress
    "#]]
    .assert_eq(&told(network_policy::read(&ingress(selectors(600), ports(26))).unwrap()));
    let most = network_policy::read(&ingress(selectors(600), ports(25))).unwrap();
    assert_eq!(most.faults, []);
    // The policy does not affect the other direction.
    let mut both = large;
    both["spec"]["policyTypes"] = json!(["Ingress", "Egress"]);
    both["spec"]["egress"] = json!([{}]);
    let policy = network_policy::read(&both).unwrap();
    assert_eq!((policy.ingress.unwrap().len(), policy.egress.unwrap().len()), (0, 1));
}

/// Whatever replaces a part of a policy, reading it gives a policy or a sentence.
#[test]
fn policies_with_random_damage_are_read_or_refused() {
    let mut chance = Chance::new(7);
    let good = [
        network_object(
            "shop/x",
            json!({
                "podSelector": {"matchLabels": {"app": "db"}},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{
                    "from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
                    "ports": [{"port": 80, "endPort": 90, "protocol": "TCP"}, {"port": "http"}],
                }],
                "egress": [{"to": [{"namespaceSelector": {"matchExpressions": [
                    {"key": "team", "operator": "In", "values": ["red"]},
                ]}}]}],
            }),
        ),
        json!({"metadata": {"name": "x"}, "spec": {
            "tier": "Admin", "priority": 1,
            "subject": {"pods": {"namespaceSelector": {}, "podSelector": {}}},
            "ingress": [{"action": "Accept", "from": [{"namespaces": {}}], "protocols": [
                {"tcp": {"destinationPort": {"range": {"start": 1, "end": 2}}}},
                {"destinationNamedPort": "http"},
            ]}],
            "egress": [{"name": "out", "action": "Deny", "to": [
                {"networks": ["10.0.0.0/8"]}, {"nodes": {}}, {"domainNames": ["example.com"]},
            ]}],
        }}),
    ];
    let mut faults = 0;
    for _ in 0..1000 {
        let mut object = chance.of(&good).clone();
        for _ in 0..1 + chance.below(2) {
            damage(&mut object, &mut chance);
        }
        let network = network_policy::read(&object);
        let cluster = cluster_policy::read(&object);
        for read in [network, cluster] {
            match read {
                Ok(policy) => {
                    faults += policy.faults.len();
                    // A policy that was read can be compiled.
                    compile(world_with([policy]), "two").check().unwrap();
                }
                Err(_) => faults += 1,
            }
        }
    }
    assert!(faults > 1000, "{faults}");
}

/// Replaces a part by something else.
fn damage(value: &mut Value, chance: &mut Chance) {
    let inner: Option<&mut Value> = match value {
        Value::Array(all) if !all.is_empty() => {
            let number = chance.below(all.len());
            all.get_mut(number)
        }
        Value::Object(all) if !all.is_empty() => {
            let number = chance.below(all.len());
            all.values_mut().nth(number)
        }
        _ => None,
    };
    match inner {
        Some(inner) if !chance.once_in(5) => damage(inner, chance),
        _ => {
            let all = [
                json!(null),
                json!({}),
                json!([]),
                json!(-1),
                json!(1e99),
                json!(""),
                json!("\u{0}\n"),
                json!([[[]]]),
                json!({"": null}),
                json!(true),
            ];
            *value = chance.of(&all).clone();
        }
    }
}
