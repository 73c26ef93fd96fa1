//! Common mistakes, and their explanations.

use expect_test::{Expect, expect};
use netwright_policy::policy::Policy;
use netwright_policy::{Traffic, World, cluster_policy, explain, network_policy};
use serde_json::json;
use std::collections::BTreeSet;

use crate::support::{at, cluster, network, network_object, tcp, udp, world_with};

fn check(
    policies: impl IntoIterator<Item = Policy>,
    (source, destination): (&str, &str),
    traffic: Traffic,
    expected: Expect,
) {
    check_in(&world_with(policies), (source, destination), traffic, expected);
}

fn check_in(
    world: &World,
    (source, destination): (&str, &str),
    traffic: Traffic,
    expected: Expect,
) {
    expected.assert_eq(&explain(world, at(source), at(destination), traffic).to_string());
}

#[test]
fn a_port_name_that_the_pod_does_not_have() {
    let policy = network(
        "shop/db",
        json!({
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"ports": [{"port": "postgres"}]}],
        }),
    );
    check(
        [policy],
        ("shop/web", "shop/db"),
        tcp(5432),
        expect![[r#"
        shop/web (10.244.1.1) to shop/db (10.244.2.1), TCP port 5432: denied.
        Egress of shop/web: no policy limits it.
        Ingress of shop/db: NetworkPolicy shop/db selects it, and none of its rules allows this.
          NetworkPolicy shop/db, spec.ingress[0] allows the TCP port named "postgres" from all peers: shop/db has no port named "postgres"; its named ports are "http" (TCP port 80) and "dns" (UDP port 53).
        Egress would let it through, and both ends have to.
    "#]],
    );
}

#[test]
fn the_own_namespace_forgotten() {
    let policy = network(
        "shop/db",
        json!({
            "podSelector": {},
            "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "blue"}}}]}],
        }),
    );
    check(
        [policy],
        ("shop/web", "shop/db"),
        tcp(80),
        expect![[r#"
        shop/web (10.244.1.1) to shop/db (10.244.2.1), TCP port 80: denied.
        Egress of shop/web: no policy limits it.
        Ingress of shop/db: NetworkPolicy shop/db selects it, and none of its rules allows this.
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from all pods of namespaces with team=blue: namespace shop has team=red and not team=blue; the policy's own namespace is not included by itself.
        Egress would let it through, and both ends have to.
    "#]],
    );
}

#[test]
fn dns_forgotten() {
    let policy = network(
        "shop/web",
        json!({
            "podSelector": {"matchLabels": {"app": "web"}},
            "egress": [{"to": [{"podSelector": {"matchLabels": {"app": "db"}}}]}],
            "policyTypes": ["Egress"],
        }),
    );
    check(
        [policy],
        ("shop/web", "kube-system/dns"),
        udp(53),
        expect![[r#"
        shop/web (10.244.1.1) to kube-system/dns (10.244.2.3), UDP port 53: denied.
        Egress of shop/web: NetworkPolicy shop/web selects it, and none of its rules allows this.
          NetworkPolicy shop/web, spec.egress[0] allows all traffic to pods with app=db of namespace shop: kube-system/dns is of namespace kube-system, and a podSelector alone is about the policy's own namespace shop.
        Ingress of kube-system/dns: no policy limits it.
        Ingress would let it through, and both ends have to.
        This is DNS: without egress to its servers (UDP and TCP port 53), the pod resolves no names.
    "#]],
    );
}

#[test]
fn an_exception_too_wide() {
    let policy = network(
        "shop/web",
        json!({
            "podSelector": {},
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"ipBlock": {
                "cidr": "0.0.0.0/0", "except": ["192.168.0.0/16", "198.0.0.0/8"],
            }}]}],
        }),
    );
    check(
        [policy],
        ("shop/web", "outside"),
        tcp(443),
        expect![[r#"
        shop/web (10.244.1.1) to 198.51.100.1, TCP port 443: denied.
        Egress of shop/web: NetworkPolicy shop/web selects it, and none of its rules allows this.
          NetworkPolicy shop/web, spec.egress[0] allows all traffic to 0.0.0.0/0 but for 192.168.0.0/16 and 198.0.0.0/8: 198.51.100.1 is in 0.0.0.0/0, but 198.0.0.0/8 of it is excepted.
    "#]],
    );
}

#[test]
fn egress_not_among_the_policy_types() {
    let policy = network(
        "shop/web",
        json!({
            "podSelector": {},
            "policyTypes": ["Ingress"],
            "ingress": [{}],
            "egress": [{"to": [{"podSelector": {}}]}],
        }),
    );
    check(
        [policy],
        ("shop/web", "outside"),
        tcp(443),
        expect![[r#"
        shop/web (10.244.1.1) to 198.51.100.1, TCP port 443: allowed.
        Egress of shop/web: no policy limits it.
          NetworkPolicy shop/web has egress rules, and Egress is not among its policyTypes: they have no effect.
    "#]],
    );
}

#[test]
fn egress_among_the_policy_types_and_no_rules() {
    let policy = network(
        "shop/web",
        json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}]}),
    );
    check(
        [policy],
        ("shop/web", "shop/db"),
        tcp(80),
        expect![[r#"
        shop/web (10.244.1.1) to shop/db (10.244.2.1), TCP port 80: denied.
        Egress of shop/web: NetworkPolicy shop/web selects it, and none of its rules allows this.
          NetworkPolicy shop/web is about egress and has no egress rules: it allows nothing.
        Ingress of shop/db: NetworkPolicy shop/web, spec.ingress[0], accepts it.
        Ingress would let it through, and both ends have to.
    "#]],
    );
}

#[test]
fn a_pod_selector_alone_for_pods_of_another_namespace() {
    let policy = network(
        "shop/db",
        json!({
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
        }),
    );
    check(
        [policy],
        ("other/web", "shop/db"),
        tcp(80),
        expect![[r#"
        other/web (10.244.1.2) to shop/db (10.244.2.1), TCP port 80: denied.
        Egress of other/web: no policy limits it.
        Ingress of shop/db: NetworkPolicy shop/db selects it, and none of its rules allows this.
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from pods with app=web of namespace shop: other/web is of namespace other, and a podSelector alone is about the policy's own namespace shop.
        Egress would let it through, and both ends have to.
    "#]],
    );
}

#[test]
fn a_label_that_the_namespace_does_not_have() {
    let policy = network(
        "shop/db",
        json!({
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{
                "namespaceSelector": {"matchLabels": {"name": "other"}},
                "podSelector": {"matchLabels": {"app": "web"}},
            }]}],
        }),
    );
    check(
        [policy],
        ("other/web", "shop/db"),
        tcp(80),
        expect![[r#"
            other/web (10.244.1.2) to shop/db (10.244.2.1), TCP port 80: denied.
            Egress of other/web: no policy limits it.
            Ingress of shop/db: NetworkPolicy shop/db selects it, and none of its rules allows this.
              NetworkPolicy shop/db, spec.ingress[0] allows all traffic from pods with app=web of namespaces with name=other: namespace other has no label name; the label with a namespace's name is kubernetes.io/metadata.name.
            Egress would let it through, and both ends have to.
        "#]],
    );
}

#[test]
fn two_entries_where_one_was_meant() {
    let policy = network(
        "shop/db",
        json!({
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [
                {"namespaceSelector": {"matchLabels": {"team": "blue"}}},
                {"podSelector": {"matchLabels": {"app": "web"}}},
            ]}],
        }),
    );
    check(
        [policy],
        ("other/db", "shop/db"),
        tcp(80),
        expect![[r#"
        other/db (10.244.2.2) to shop/db (10.244.2.1), TCP port 80: allowed.
        Egress of other/db: no policy limits it.
        Ingress of shop/db: NetworkPolicy shop/db, spec.ingress[0], accepts it.
          other/db is among all pods of namespaces with team=blue; a podSelector in another entry of the list does not narrow that.
    "#]],
    );
}

#[test]
fn a_protocol_not_given() {
    let policy = network(
        "kube-system/dns",
        json!({
            "podSelector": {"matchLabels": {"app": "dns"}},
            "ingress": [{"ports": [{"port": 53}]}],
        }),
    );
    check(
        [policy],
        ("shop/web", "kube-system/dns"),
        udp(53),
        expect![[r#"
        shop/web (10.244.1.1) to kube-system/dns (10.244.2.3), UDP port 53: denied.
        Egress of shop/web: no policy limits it.
        Ingress of kube-system/dns: NetworkPolicy kube-system/dns selects it, and none of its rules allows this.
          NetworkPolicy kube-system/dns, spec.ingress[0] allows TCP port 53 from all peers: this is UDP, and a port without a protocol is TCP's.
        Egress would let it through, and both ends have to.
    "#]],
    );
}

#[test]
fn the_services_port() {
    let policy = network(
        "shop/db",
        json!({
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"ports": [{"port": 80}]}],
        }),
    );
    check(
        [policy],
        ("shop/web", "shop/db"),
        tcp(8080),
        expect![[r#"
        shop/web (10.244.1.1) to shop/db (10.244.2.1), TCP port 8080: denied.
        Egress of shop/web: no policy limits it.
        Ingress of shop/db: NetworkPolicy shop/db selects it, and none of its rules allows this.
          NetworkPolicy shop/db, spec.ingress[0] allows TCP port 80 from all peers: this is port 8080, and a policy sees the pod's port, not a Service's.
        Egress would let it through, and both ends have to.
    "#]],
    );
}

#[test]
fn a_client_in_the_hosts_network() {
    let policy = network(
        "shop/db",
        json!({
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{
                "namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "proxy"}},
            }]}],
        }),
    );
    check(
        [policy],
        ("node one", "shop/db"),
        tcp(80),
        expect![[r#"
        node one (192.0.2.1) to shop/db (10.244.2.1), TCP port 80: denied.
        Ingress of shop/db: NetworkPolicy shop/db selects it, and none of its rules allows this.
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from pods with app=proxy of all namespaces: kube-system/proxy is in the host's network, so policies see node one and not the pod.
    "#]],
    );
}

#[test]
fn one_side_only() {
    let open = network(
        "shop/db",
        json!({
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "blue"}}}]}],
        }),
    );
    let shut = network("other/all", json!({"podSelector": {}, "policyTypes": ["Egress"]}));
    check(
        [open, shut],
        ("other/web", "shop/db"),
        tcp(80),
        expect![[r#"
        other/web (10.244.1.2) to shop/db (10.244.2.1), TCP port 80: denied.
        Egress of other/web: NetworkPolicy other/all selects it, and none of its rules allows this.
          NetworkPolicy other/all is about egress and has no egress rules: it allows nothing.
        Ingress of shop/db: NetworkPolicy shop/db, spec.ingress[0], accepts it.
          other/web is among all pods of namespaces with team=blue.
        Ingress would let it through, and both ends have to.
    "#]],
    );
}

#[test]
fn a_policy_that_selects_nobody() {
    let policy = network("shop/db", json!({"podSelector": {"matchLabels": {"app": "database"}}}));
    check(
        [policy],
        ("outside", "shop/db"),
        tcp(80),
        expect![[r#"
        198.51.100.1 to shop/db (10.244.2.1), TCP port 80: allowed.
        Ingress of shop/db: no policy limits it.
          NetworkPolicy shop/db selects no pod: it is about pods with app=database of namespace shop.
    "#]],
    );
}

#[test]
fn ping_where_ports_are_listed() {
    let policy = network(
        "shop/db",
        json!({"podSelector": {}, "ingress": [{"ports": [{"protocol": "TCP"}]}]}),
    );
    let ping = Traffic::of(netwright_policy::Protocol::Other(1));
    check(
        [policy],
        ("shop/web", "shop/db"),
        ping,
        expect![[r#"
        shop/web (10.244.1.1) to shop/db (10.244.2.1), ICMP: denied.
        Egress of shop/web: no policy limits it.
        Ingress of shop/db: NetworkPolicy shop/db selects it, and none of its rules allows this.
          NetworkPolicy shop/db, spec.ingress[0] allows TCP from all peers: ICMP has no ports, and only a rule without ports allows it.
        Egress would let it through, and both ends have to.
    "#]],
    );
}

#[test]
fn the_administrators_word_comes_first() {
    let deny = cluster(
        "no-databases",
        json!({
            "tier": "Admin",
            "priority": 10,
            "subject": {"namespaces": {}},
            "ingress": [
                {"action": "Pass", "from": [{"namespaces": {"matchLabels": {"team": "red"}}}]},
                {"name": "databases are closed", "action": "Deny", "from": [{"namespaces": {}}]},
            ],
        }),
    );
    let allow = network("shop/db", json!({"podSelector": {}, "ingress": [{}]}));
    let world = world_with([deny, allow]);
    check_in(
        &world,
        ("other/web", "shop/db"),
        tcp(80),
        expect![[r#"
            other/web (10.244.1.2) to shop/db (10.244.2.1), TCP port 80: denied.
            Egress of other/web: no policy limits it.
            Ingress of shop/db: ClusterNetworkPolicy no-databases, spec.ingress[1] ("databases are closed"), denies it.
              other/web is among all pods of all namespaces.
              NetworkPolicy shop/db, spec.ingress[0], would accept it, but tier Admin is asked before it.
            Egress would let it through, and both ends have to.
        "#]],
    );
    check_in(
        &world,
        ("shop/web", "shop/db"),
        tcp(80),
        expect![[r#"
        shop/web (10.244.1.1) to shop/db (10.244.2.1), TCP port 80: allowed.
        Egress of shop/web: no policy limits it.
        Ingress of shop/db: NetworkPolicy shop/db, spec.ingress[0], accepts it.
          ClusterNetworkPolicy no-databases, spec.ingress[0], passes it on to the next tier.
    "#]],
    );
}

#[test]
fn a_rule_that_was_refused() {
    let spec = json!({
        "podSelector": {},
        "ingress": [{"from": [{"ipBlock": {"cidr": "10.244.1.1"}}]}],
    });
    let policy = network_policy::read(&network_object("shop/db", spec)).unwrap();
    check(
        [policy],
        ("shop/web", "shop/db"),
        tcp(80),
        expect![[r#"
        shop/web (10.244.1.1) to shop/db (10.244.2.1), TCP port 80: denied.
        Egress of shop/web: no policy limits it.
        Ingress of shop/db: NetworkPolicy shop/db selects it, and none of its rules allows this.
          NetworkPolicy shop/db: refused: spec.ingress[0].from[0].ipBlock.cidr: "10.244.1.1" is not a prefix such as 10.244.1.0/24; the rule allows nothing.
        Egress would let it through, and both ends have to.
    "#]],
    );
    let spec = json!({"metadata": {"name": "names"}, "spec": {
        "tier": "Admin",
        "priority": 1,
        "subject": {"namespaces": {"matchLabels": {"team": "red"}}},
        "egress": [
            {"action": "Accept", "to": [{"domainNames": ["example.com"]}]},
            {"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]},
        ],
    }});
    let policy = cluster_policy::read(&spec).unwrap();
    check(
        [policy],
        ("shop/web", "outside"),
        tcp(443),
        expect![[r#"
        shop/web (10.244.1.1) to 198.51.100.1, TCP port 443: denied.
        Egress of shop/web: ClusterNetworkPolicy names, spec.egress[1], denies it.
          198.51.100.1 is in 0.0.0.0/0.
          ClusterNetworkPolicy names: refused: spec.egress[0].to[0].domainNames: domain names are not supported here: the packet filter sees addresses; the rule allows nothing.
    "#]],
    );
}

#[test]
fn ends_that_no_policy_is_about() {
    check(
        [],
        ("shop/web", "shop/db"),
        tcp(80),
        expect![[r#"
        shop/web (10.244.1.1) to shop/db (10.244.2.1), TCP port 80: allowed.
        Egress of shop/web: no policy limits it.
        Ingress of shop/db: no policy limits it.
    "#]],
    );
    check(
        [],
        ("node one", "outside"),
        tcp(80),
        expect![[r#"
        node one (192.0.2.1) to 198.51.100.1, TCP port 80: allowed.
        No end is a pod, so no policy is about it.
    "#]],
    );
    let shut =
        network("shop/all", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    let world = world_with([shut]);
    check_in(
        &world,
        ("node one", "shop/web"),
        tcp(80),
        expect![[r#"
        node one (192.0.2.1) to shop/web (10.244.1.1), TCP port 80: allowed.
        Ingress of shop/web: node one is its own node, which always reaches it.
    "#]],
    );
    check_in(
        &world,
        ("shop/web", "node one"),
        tcp(80),
        expect![[r#"
        shop/web (10.244.1.1) to node one (192.0.2.1), TCP port 80: allowed.
        Egress of shop/web: node one is its own node, which it reaches: no ClusterNetworkPolicy denies that.
    "#]],
    );
    let mut elsewhere = world.clone();
    elsewhere.set_host("one", BTreeSet::new());
    check_in(
        &elsewhere,
        ("shop/web", "node one"),
        tcp(80),
        expect![[r#"
        shop/web (10.244.1.1) to node one (192.0.2.1), TCP port 80: denied.
        Egress of shop/web: NetworkPolicy shop/all selects it, and none of its rules allows this.
          NetworkPolicy shop/all is about egress and has no egress rules: it allows nothing.
          The host of node one does not have 192.0.2.1: policies apply to it.
    "#]],
    );
    let nodes = cluster(
        "nodes",
        json!({
            "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "egress": [{"action": "Deny", "to": [{"nodes": {}}]}],
        }),
    );
    check(
        [nodes],
        ("shop/web", "node one"),
        tcp(80),
        expect![[r#"
        shop/web (10.244.1.1) to node one (192.0.2.1), TCP port 80: denied.
        Egress of shop/web: ClusterNetworkPolicy nodes, spec.egress[0], denies it.
          node one is among all nodes.
    "#]],
    );
    check_in(
        &world,
        ("shop/web", "shop/web"),
        tcp(80),
        expect![[r#"
        shop/web (10.244.1.1) to shop/web (10.244.1.1), TCP port 80: allowed.
        Egress of shop/web: it is the pod itself, which no policy cuts off.
        Ingress of shop/web: it is the pod itself, which no policy cuts off.
        By a Service, where its packets leave the pod, it is denied: NetworkPolicy shop/all is about egress and has no egress rules: it allows nothing.
    "#]],
    );
    check(
        [],
        ("shop/web", "shop/web"),
        tcp(80),
        expect![[r#"
        shop/web (10.244.1.1) to shop/web (10.244.1.1), TCP port 80: allowed.
        Egress of shop/web: it is the pod itself, which no policy cuts off.
        Ingress of shop/web: it is the pod itself, which no policy cuts off.
        By a Service, where its packets leave the pod, it is allowed too.
    "#]],
    );
}
