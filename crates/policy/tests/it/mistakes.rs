//! Mistakes in policies. Each has a packet that is dropped because of it, and the sentence that the
//! woken operator reads.

use std::sync::Arc;

use expect_test::expect;
use netwright_policy::isolation::Isolation;
use netwright_policy::labels::Selector;
use netwright_policy::object::Pod;
use netwright_policy::policy::Policy;
use netwright_policy::{
    Change, Direction, Protocol, Traffic, World, explain, network_policy, verdict,
};
use serde_json::{Value, json};

use crate::support::{
    at, cluster, cluster_of_two, namespace, network, network_object, pod, tcp, udp,
};

/// A mistake, and a packet that is dropped because of it.
struct Mistake {
    what: &'static str,
    objects: Vec<Change>,
    isolation: Option<Isolation>,
    ends: (&'static str, &'static str),
    traffic: Traffic,
}

fn mistake(
    what: &'static str,
    policies: impl IntoIterator<Item = Policy>,
    ends: (&'static str, &'static str),
    traffic: Traffic,
) -> Mistake {
    let objects = policies.into_iter().map(Change::from).collect();
    Mistake { what, objects, isolation: None, ends, traffic }
}

fn ingress_of_db(rules: Value) -> Policy {
    network("shop/db", json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": rules}))
}

fn egress_of_web(rules: Value) -> Policy {
    network(
        "shop/web",
        json!({
            "podSelector": {"matchLabels": {"app": "web"}},
            "policyTypes": ["Egress"],
            "egress": rules,
        }),
    )
}

fn labelled(mut pod: Pod, app: &str) -> Pod {
    Arc::make_mut(&mut pod.labels).insert("app".to_owned(), app.to_owned());
    pod
}

const WEB_TO_DB: (&str, &str) = ("shop/web", "shop/db");

/// Mistakes in the ports of a rule.
fn ports() -> Vec<Mistake> {
    let range =
        json!({"podSelector": {}, "ingress": [{"ports": [{"port": 9000, "endPort": 8000}]}]});
    let range = network_policy::read(&network_object("shop/db", range)).unwrap();
    let ports = |ports: Value| ingress_of_db(json!([{"ports": ports}]));
    vec![
        mistake(
            "the port has another name",
            [ports(json!([{"port": "postgres"}]))],
            WEB_TO_DB,
            tcp(5432),
        ),
        mistake(
            "the named port is of another protocol",
            [ports(json!([{"port": "dns"}]))],
            WEB_TO_DB,
            udp(53),
        ),
        mistake(
            "the protocol is left out",
            [network(
                "kube-system/dns",
                json!({"podSelector": {}, "ingress": [{"ports": [{"port": 53}]}]}),
            )],
            ("shop/web", "kube-system/dns"),
            udp(53),
        ),
        mistake("the port is the Service's", [ports(json!([{"port": 80}]))], WEB_TO_DB, tcp(8080)),
        mistake("the range is written backwards", [range], WEB_TO_DB, tcp(8080)),
        mistake(
            "ping, where ports are listed",
            [ports(json!([{"protocol": "TCP"}]))],
            WEB_TO_DB,
            Traffic::of(Protocol::Other(1)),
        ),
    ]
}

/// Mistakes in the choice of the other end.
fn peers() -> Vec<Mistake> {
    let from = |peers: Value| ingress_of_db(json!([{"from": peers}]));
    let to = |peers: Value| egress_of_web(json!([{"to": peers}]));
    let blue = json!({"matchLabels": {"team": "blue"}});
    let web = json!({"matchLabels": {"app": "web"}});
    vec![
        mistake(
            "the own namespace is forgotten",
            [from(json!([{"namespaceSelector": blue}]))],
            WEB_TO_DB,
            tcp(80),
        ),
        mistake(
            "another namespace is forgotten",
            [from(json!([{"podSelector": web}]))],
            ("other/web", "shop/db"),
            tcp(80),
        ),
        mistake(
            "one entry of the list where two are meant",
            [from(json!([{"namespaceSelector": blue, "podSelector": web}]))],
            ("other/db", "shop/db"),
            tcp(80),
        ),
        mistake(
            "the selector's label is misspelt",
            [from(json!([{"podSelector": {"matchLabels": {"app": "wbe"}}}]))],
            WEB_TO_DB,
            tcp(80),
        ),
        mistake(
            "the selector's key is misspelt",
            [from(json!([{"podSelector": {"matchLabels": {"App": "web"}}}]))],
            WEB_TO_DB,
            tcp(80),
        ),
        mistake(
            "the namespace's label is misspelt",
            [from(json!([{"namespaceSelector": {"matchLabels": {"team": "bleu"}}}]))],
            ("other/web", "shop/db"),
            tcp(80),
        ),
        mistake(
            "the namespace's name is looked for in another label",
            [from(json!([{"namespaceSelector": {"matchLabels": {"name": "other"}}}]))],
            ("other/web", "shop/db"),
            tcp(80),
        ),
        mistake(
            "the peer is in the host's network",
            [from(
                json!([{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "proxy"}}}]),
            )],
            ("node one", "shop/db"),
            tcp(80),
        ),
        mistake(
            "clients come by a NodePort",
            [from(json!([{"ipBlock": {"cidr": "198.51.100.0/24"}}]))],
            ("node one", "shop/db"),
            tcp(80),
        ),
        mistake(
            "an exception is too wide",
            [to(json!([{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["198.0.0.0/8"]}}]))],
            ("shop/web", "outside"),
            tcp(443),
        ),
        mistake(
            "the block is that of Services",
            [to(json!([{"ipBlock": {"cidr": "10.96.0.0/12"}}]))],
            WEB_TO_DB,
            tcp(80),
        ),
        mistake(
            "IPv6 is forgotten",
            [to(json!([{"ipBlock": {"cidr": "0.0.0.0/0"}}]))],
            ("fd00:244:1::1", "2001:db8:1::1"),
            tcp(443),
        ),
        mistake(
            "DNS is forgotten",
            [to(json!([{"podSelector": {"matchLabels": {"app": "db"}}}]))],
            ("shop/web", "kube-system/dns"),
            udp(53),
        ),
    ]
}

/// Correct rules that fail because of other policies, or of the pods' lives.
fn others() -> Vec<Mistake> {
    let from_web =
        || ingress_of_db(json!([{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]));
    let admin = |name: &str, priority: u16, action: &str| {
        cluster(
            name,
            json!({
                "tier": "Admin",
                "priority": priority,
                "subject": {"namespaces": {"matchLabels": {"team": "red"}}},
                "ingress": [{"action": action, "from": [{"namespaces": {"matchLabels": {"team": "blue"}}}]}],
            }),
        )
    };
    let both = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}]});
    let mut leaving = pod("shop/web-old", "one", json!({"app": "web"}), &["10.244.1.2"]);
    leaving.terminating = true;
    let mut finished = pod("shop/job", "one", json!({"app": "web"}), &["10.244.1.9"]);
    finished.finished = true;
    let relabelled = labelled(pod("shop/web", "one", json!({}), &["10.244.1.1"]), "wbe");
    let with = |object: Change, mut mistake: Mistake| {
        mistake.objects.push(object);
        mistake
    };
    vec![
        mistake(
            "policyTypes has Egress, and there is no rule for it",
            [network("shop/all", both)],
            WEB_TO_DB,
            tcp(80),
        ),
        mistake(
            "the other end's policy is forgotten",
            [
                from_web(),
                network("shop/shut", json!({"podSelector": {}, "policyTypes": ["Egress"]})),
            ],
            WEB_TO_DB,
            tcp(80),
        ),
        mistake(
            "a ClusterNetworkPolicy with a lower number is asked first",
            [admin("no-blue", 10, "Deny"), admin("blue-may", 20, "Accept")],
            ("other/web", "shop/db"),
            tcp(80),
        ),
        mistake(
            "two ClusterNetworkPolicies have one priority",
            [admin("a", 10, "Deny"), admin("b", 10, "Accept")],
            ("other/web", "shop/db"),
            tcp(80),
        ),
        mistake(
            "an administrator's policy is asked before NetworkPolicies",
            [admin("no-blue", 10, "Deny"), ingress_of_db(json!([{}]))],
            ("other/web", "shop/db"),
            tcp(80),
        ),
        with(
            relabelled.into(),
            mistake("the pod's label is misspelt", [from_web()], WEB_TO_DB, tcp(80)),
        ),
        with(
            leaving.into(),
            mistake(
                "the address of a pod that is being deleted is another's",
                [from_web()],
                ("other/web", "shop/db"),
                tcp(80),
            ),
        ),
        with(
            finished.into(),
            mistake("the pod has finished", [from_web()], ("10.244.1.9", "shop/db"), tcp(80)),
        ),
        with(
            pod("shop/twin", "one", json!({"app": "db"}), &["10.244.2.1"]).into(),
            mistake("two pods have one address", [], WEB_TO_DB, tcp(80)),
        ),
        with(
            Change::Namespace("shop".to_owned(), None),
            mistake("the namespace is not known", [], ("other/web", "shop/db"), tcp(80)),
        ),
        with(
            namespace("shop", json!({"isolated": "yes"})).into(),
            Mistake {
                isolation: Some(Isolation { namespaces: Selector::all(), ..Isolation::default() }),
                ..mistake(
                    "the namespace is isolated by default",
                    [],
                    ("other/web", "shop/db"),
                    tcp(80),
                )
            },
        ),
    ]
}

#[test]
fn each_drop_names_its_cause() {
    let mut said = String::new();
    for Mistake { what, objects, isolation, ends: (source, destination), traffic } in
        ports().into_iter().chain(peers()).chain(others())
    {
        let world = World::of(isolation, cluster_of_two().into_iter().chain(objects));
        let (source, destination) = (at(source), at(destination));
        let explained = explain(&world, source, destination, traffic);
        assert!(!explained.allowed, "{what}: nothing is dropped");
        // The packet filter judges the source's side first.
        let verdict = verdict(&world, source, destination, traffic);
        let first = [Direction::Egress, Direction::Ingress]
            .into_iter()
            .find(|direction| !verdict.side(*direction).decision.allows())
            .unwrap();
        let cause = explained.cause(first).unwrap();
        let (asked, alone) = explain::dropped(&world, source, destination, traffic, first);
        assert_eq!((asked, alone.as_deref()), (verdict.side(first).asked.clone(), Some(cause)));
        said.push_str(&format!("{what}:\n  {cause}\n"));
    }
    expect![[r#"
        the port has another name:
          NetworkPolicy shop/db, spec.ingress[0] allows the TCP port named "postgres" from all peers: shop/db has no port named "postgres"; its named ports are "http" (TCP port 80) and "dns" (UDP port 53)
        the named port is of another protocol:
          NetworkPolicy shop/db, spec.ingress[0] allows the TCP port named "dns" from all peers: port "dns" of shop/db is UDP's, and a port without a protocol is TCP's
        the protocol is left out:
          NetworkPolicy kube-system/dns, spec.ingress[0] allows TCP port 53 from all peers: this is UDP, and a port without a protocol is TCP's
        the port is the Service's:
          NetworkPolicy shop/db, spec.ingress[0] allows TCP port 80 from all peers: this is port 8080, and a policy sees the pod's port, not a Service's
        the range is written backwards:
          NetworkPolicy shop/db: refused: spec.ingress[0].ports[0].endPort: the range ends at 8000, before its beginning at 9000; the rule allows nothing
        ping, where ports are listed:
          NetworkPolicy shop/db, spec.ingress[0] allows TCP from all peers: ICMP has no ports, and only a rule without ports allows it
        the own namespace is forgotten:
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from all pods of namespaces with team=blue: namespace shop has team=red and not team=blue; the policy's own namespace is not included by itself
        another namespace is forgotten:
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from pods with app=web of namespace shop: other/web is of namespace other, and a podSelector alone is about the policy's own namespace shop
        one entry of the list where two are meant:
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from pods with app=web of namespaces with team=blue: other/db has app=db and not app=web; both selectors are in one entry of the list, and a pod has to meet both
        the selector's label is misspelt:
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from pods with app=wbe of namespace shop: shop/web has app=web and not app=wbe; no pod of namespace shop has app=wbe
        the selector's key is misspelt:
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from pods with App=web of namespace shop: shop/web has no label App; no pod of namespace shop has App=web
        the namespace's label is misspelt:
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from all pods of namespaces with team=bleu: namespace other has team=blue and not team=bleu; no namespace has team=bleu
        the namespace's name is looked for in another label:
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from all pods of namespaces with name=other: namespace other has no label name; the label with a namespace's name is kubernetes.io/metadata.name
        the peer is in the host's network:
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from pods with app=proxy of all namespaces: kube-system/proxy is in the host's network, so policies see node one and not the pod
        clients come by a NodePort:
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from 198.51.100.0/24: 192.0.2.1 is not in 198.51.100.0/24; clients of a NodePort or load balancer may come with a node's address
        an exception is too wide:
          NetworkPolicy shop/web, spec.egress[0] allows all traffic to 0.0.0.0/0 but for 198.0.0.0/8: 198.51.100.1 is in 0.0.0.0/0, but 198.0.0.0/8 of it is excepted
        the block is that of Services:
          NetworkPolicy shop/web, spec.egress[0] allows all traffic to 10.96.0.0/12: 10.244.2.1 is not in 10.96.0.0/12; a policy sees the pod's own address, not that of a Service
        IPv6 is forgotten:
          NetworkPolicy shop/web, spec.egress[0] allows all traffic to 0.0.0.0/0: 2001:db8:1::1 is IPv6, and 0.0.0.0/0 is IPv4
        DNS is forgotten:
          NetworkPolicy shop/web, spec.egress[0] allows all traffic to pods with app=db of namespace shop: kube-system/dns is of namespace kube-system, and a podSelector alone is about the policy's own namespace shop; without egress to its servers (UDP and TCP port 53), the pod resolves no names
        policyTypes has Egress, and there is no rule for it:
          NetworkPolicy shop/all is about egress and has no egress rules: it allows nothing
        the other end's policy is forgotten:
          NetworkPolicy shop/shut is about egress and has no egress rules: it allows nothing
        a ClusterNetworkPolicy with a lower number is asked first:
          ClusterNetworkPolicy no-blue, spec.ingress[0], denies it; other/web is among all pods of namespaces with team=blue; ClusterNetworkPolicy blue-may, spec.ingress[0], would accept it, but priority 10 is asked before 20
        two ClusterNetworkPolicies have one priority:
          ClusterNetworkPolicy a, spec.ingress[0], denies it; other/web is among all pods of namespaces with team=blue; ClusterNetworkPolicy b, spec.ingress[0], would accept it, but both have priority 10, and the one whose name comes first is asked first
        an administrator's policy is asked before NetworkPolicies:
          ClusterNetworkPolicy no-blue, spec.ingress[0], denies it; other/web is among all pods of namespaces with team=blue; NetworkPolicy shop/db, spec.ingress[0], would accept it, but tier Admin is asked before it
        the pod's label is misspelt:
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from pods with app=web of namespace shop: shop/web has app=wbe and not app=web; no pod of namespace shop has app=web
        the address of a pod that is being deleted is another's:
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from pods with app=web of namespace shop: 10.244.1.2 was shop/web-old's, which is being deleted, and is other/web's now
        the pod has finished:
          NetworkPolicy shop/db, spec.ingress[0] allows all traffic from pods with app=web of namespace shop: 10.244.1.9 was shop/job's, which has finished, and is no pod's now
        two pods have one address:
          shop/db and shop/twin have this address: it is closed until only one of them is left
        the namespace is not known:
          namespace shop is not known, so it cannot be said which policies select the pod: it is closed
        the namespace is isolated by default:
          namespace other is isolated by default, and shop/db is neither of it nor among the exemptions; a NetworkPolicy that selects other/web decides in place of that
    "#]]
    .assert_eq(&said);
}
