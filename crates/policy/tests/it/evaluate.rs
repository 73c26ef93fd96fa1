//! Rules of the APIs that are often misunderstood, each shown by connections that are allowed or
//! denied.

use std::collections::BTreeSet;
use std::sync::Arc;

use netwright_policy::evaluate::Decision;
use netwright_policy::interpret::{Packet, hook};
use netwright_policy::isolation::{Exemption, Isolation};
use netwright_policy::labels::Selector;
use netwright_policy::object::Uid;
use netwright_policy::policy::{Peer, PodSet, Ports};
use netwright_policy::{
    Change, Direction, Namespace, Protocol, Traffic, World, cluster_policy, multi_policy,
    network_policy, verdict, verdict_by_service,
};
use serde_json::{Value, json};

use crate::support::{
    allowed, at, cluster, cluster_of_two, ip, namespace, network, pod, tcp, udp, world_with,
};

const PODS: [&str; 5] = ["shop/web", "shop/db", "other/web", "other/db", "kube-system/dns"];

/// Which of all pods, the nodes and the outside reach a pod at TCP port 80.
fn reaching(world: &World, destination: &str) -> Vec<&'static str> {
    let mut all = PODS.to_vec();
    all.extend(["node one", "node two", "outside"]);
    all.retain(|source| allowed(world, source, destination, tcp(80)));
    all
}

/// Which of them a pod reaches at TCP port 80.
fn reached(world: &World, source: &str) -> Vec<&'static str> {
    let mut all = PODS.to_vec();
    all.extend(["node one", "node two", "outside"]);
    all.retain(|destination| allowed(world, source, destination, tcp(80)));
    all
}

const EVERYBODY: [&str; 8] = [
    "shop/web",
    "shop/db",
    "other/web",
    "other/db",
    "kube-system/dns",
    "node one",
    "node two",
    "outside",
];

/// The pod `shop/db` itself and its node: no policy cuts them off.
const NOBODY: [&str; 2] = ["shop/db", "node two"];

fn ingress(rules: Value) -> World {
    world_with([network(
        "shop/db",
        json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": rules}),
    )])
}

fn from(peers: Value) -> World {
    ingress(json!([{"from": peers}]))
}

#[test]
fn without_policies_everything_is_allowed() {
    let world = world_with([]);
    for pod in PODS {
        assert_eq!(reaching(&world, pod), EVERYBODY, "{pod}");
        assert_eq!(reached(&world, pod), EVERYBODY, "{pod}");
    }
}

#[test]
fn no_rules_deny_all_and_an_empty_rule_allows_all() {
    assert_eq!(reaching(&ingress(json!([])), "shop/db"), NOBODY);
    assert_eq!(reaching(&ingress(Value::Null), "shop/db"), NOBODY);
    assert_eq!(reaching(&ingress(json!([{}])), "shop/db"), EVERYBODY);
    assert_eq!(reaching(&from(json!([])), "shop/db"), EVERYBODY);
    assert_eq!(reaching(&from(Value::Null), "shop/db"), EVERYBODY);
    // Other pods and the other direction are not affected.
    assert_eq!(reaching(&ingress(json!([])), "other/db"), EVERYBODY);
    assert_eq!(reached(&ingress(json!([])), "shop/db"), EVERYBODY);
}

#[test]
fn policy_types_absent_follow_from_the_rules() {
    let types = |spec: Value| {
        let mut spec = spec;
        spec["podSelector"] = json!({});
        let policy = network("shop/x", spec);
        (policy.ingress.is_some(), policy.egress.is_some())
    };
    assert_eq!(types(json!({})), (true, false));
    assert_eq!(types(json!({"ingress": [{}]})), (true, false));
    assert_eq!(types(json!({"egress": [{}]})), (true, true));
    assert_eq!(types(json!({"egress": []})), (true, false));
    assert_eq!(types(json!({"egress": [{}], "policyTypes": []})), (true, true));
    assert_eq!(types(json!({"egress": [{}], "policyTypes": ["Ingress"]})), (true, false));
    assert_eq!(types(json!({"policyTypes": ["Egress"]})), (false, true));
    assert_eq!(types(json!({"policyTypes": ["Egress", "Ingress"]})), (true, true));
}

#[test]
fn both_ends_have_to_allow_it() {
    let shut = network("other/shut", json!({"podSelector": {}, "policyTypes": ["Egress"]}));
    let open = network("shop/open", json!({"podSelector": {}, "ingress": [{}]}));
    let world = world_with([shut, open]);
    let judged = verdict(&world, at("other/web"), at("shop/db"), tcp(80));
    assert!(!judged.allowed() && judged.ingress.decision.allows(), "{judged:?}");
    assert_eq!(judged.egress.decision, Decision::NoneAllows);
    assert!(allowed(&world, "kube-system/dns", "shop/db", tcp(80)));
    let opposite = verdict(&world, at("shop/db"), at("other/web"), tcp(80));
    // In the other direction the pods are the same, but the connection is another one.
    assert!(opposite.allowed(), "{opposite:?}");
}

#[test]
fn policies_of_a_pod_add_up() {
    let web = |name: &str, app: &str| {
        let from = json!([{"from": [{"podSelector": {"matchLabels": {"app": app}}}]}]);
        network(name, json!({"podSelector": {}, "ingress": from}))
    };
    let world = world_with([web("shop/one", "web"), web("shop/two", "db")]);
    assert_eq!(reaching(&world, "shop/db"), ["shop/web", "shop/db", "node two"]);
    assert_eq!(reaching(&world, "shop/web"), ["shop/web", "shop/db", "node one"]);
}

#[test]
fn peers_are_of_the_own_namespace_unless_they_name_others() {
    let world = from(json!([{"podSelector": {}}]));
    assert_eq!(reaching(&world, "shop/db"), ["shop/web", "shop/db", "node two"]);
    let world = from(json!([{"namespaceSelector": {"matchLabels": {"team": "blue"}}}]));
    assert_eq!(reaching(&world, "shop/db"), ["shop/db", "other/web", "other/db", "node two"]);
    let world = from(json!([{"namespaceSelector": {}}]));
    assert_eq!(reaching(&world, "shop/db"), [&PODS[..], &["node two"]].concat());
    let world = from(json!([{
        "namespaceSelector": {"matchLabels": {"team": "blue"}},
        "podSelector": {"matchLabels": {"app": "web"}},
    }]));
    assert_eq!(reaching(&world, "shop/db"), ["shop/db", "other/web", "node two"]);
    let world = from(json!([
        {"namespaceSelector": {"matchLabels": {"team": "blue"}}},
        {"podSelector": {"matchLabels": {"app": "web"}}},
    ]));
    let either = ["shop/web", "shop/db", "other/web", "other/db", "node two"];
    assert_eq!(reaching(&world, "shop/db"), either);
    let world = from(
        json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}]),
    );
    assert_eq!(reaching(&world, "shop/db"), ["shop/db", "other/web", "other/db", "node two"]);
}

#[test]
fn ports_by_number_range_protocol_and_name() {
    let ports = |ports: Value| ingress(json!([{"ports": ports}]));
    let open = |world: &World| -> Vec<String> {
        let mut all: Vec<Traffic> = [79, 80, 81, 8080].map(tcp).to_vec();
        all.extend([53, 80].map(udp));
        all.push(Traffic::to(Protocol::Sctp, 80));
        all.push(Traffic::of(Protocol::Other(1)));
        all.retain(|traffic| allowed(world, "shop/web", "shop/db", *traffic));
        all.iter().map(ToString::to_string).collect()
    };
    assert_eq!(open(&ports(json!([{"port": 80}]))), ["TCP port 80"]);
    let range = json!([{"port": 80, "endPort": 81}]);
    assert_eq!(open(&ports(range)), ["TCP port 80", "TCP port 81"]);
    assert_eq!(open(&ports(json!([{"port": 80, "protocol": "SCTP"}]))), ["SCTP port 80"]);
    let all_udp = ["UDP port 53", "UDP port 80"];
    assert_eq!(open(&ports(json!([{"protocol": "UDP"}]))), all_udp);
    assert_eq!(open(&ports(json!([{"port": "http"}]))), ["TCP port 80"]);
    assert_eq!(open(&ports(json!([{"port": "dns", "protocol": "UDP"}]))), ["UDP port 53"]);
    // A port's name belongs to one protocol.
    assert_eq!(open(&ports(json!([{"port": "dns"}]))), Vec::<String>::new());
    assert_eq!(open(&ports(json!([{"port": "none"}]))), Vec::<String>::new());
    // A rule without ports covers everything, including protocols that have no ports.
    assert_eq!(open(&ports(json!([]))).len(), 8);
    assert_eq!(open(&ports(Value::Null)).len(), 8);
    let two = json!([{"port": 80}, {"port": 53, "protocol": "UDP"}]);
    assert_eq!(open(&ports(two)), ["TCP port 80", "UDP port 53"]);
}

#[test]
fn a_ports_name_is_looked_up_in_each_destination_pod() {
    let policy = network(
        "shop/web",
        json!({
            "podSelector": {"matchLabels": {"app": "web"}},
            "policyTypes": ["Egress"],
            "egress": [{"ports": [{"port": "http"}]}],
        }),
    );
    let mut world = world_with([policy]);
    let mut other = pod("other/web", "one", json!({"app": "web"}), &["10.244.1.2"]);
    Arc::make_mut(&mut other.ports)[0].port = 8080;
    world.change(other.into());
    for (destination, port, expected) in [
        ("shop/db", 80, true),
        ("shop/db", 8080, false),
        ("other/web", 80, false),
        ("other/web", 8080, true),
        ("outside", 80, false),
        ("node two", 80, false),
    ] {
        let is_allowed = allowed(&world, "shop/web", destination, tcp(port));
        assert_eq!(is_allowed, expected, "{destination} {port}");
    }
}

#[test]
fn blocks_with_exceptions_match_pods_too() {
    let block =
        |cidr: &str, except: Value| from(json!([{"ipBlock": {"cidr": cidr, "except": except}}]));
    let world = block("0.0.0.0/0", json!([]));
    assert_eq!(reaching(&world, "shop/db"), EVERYBODY);
    let world = block("0.0.0.0/0", json!(["10.244.1.0/24"]));
    let but_for_node_ones_pods =
        ["shop/db", "other/db", "kube-system/dns", "node one", "node two", "outside"];
    assert_eq!(reaching(&world, "shop/db"), but_for_node_ones_pods);
    // The block is of one family, and the pod has addresses of two.
    let six = verdict(&world, ip("2001:db8:1::1"), ip("fd00:244:2::1"), tcp(80));
    assert!(!six.allowed());
    let world = block("2001:db8:1::/48", json!([]));
    assert!(verdict(&world, ip("2001:db8:1::1"), ip("fd00:244:2::1"), tcp(80)).allowed());
    assert_eq!(reaching(&world, "shop/db"), NOBODY);
}

/// sig-network's test suite writes a pod's address with a short prefix length.
#[test]
fn bits_after_a_prefixs_length_are_ignored() {
    let peers = json!([{"ipBlock": {"cidr": "10.244.1.1/4", "except": ["10.244.1.3/31"]}}]);
    let world = from(peers);
    let near = ["shop/web", "shop/db", "other/db", "kube-system/dns", "node two"];
    assert_eq!(reaching(&world, "shop/db"), near);
    let notices = world.policies().flat_map(|policy| &policy.notices);
    let notices: Vec<&str> = notices.map(String::as_str).collect();
    assert_eq!(
        notices,
        ["NetworkPolicy shop/db has bits set after a prefix's length, which are ignored: \
          spec.ingress[0].from[0].ipBlock.cidr: 10.244.1.1/4 is read as 0.0.0.0/4, and 1 more"]
    );
}

#[test]
fn pods_in_the_hosts_network_are_neither_subject_nor_peer() {
    let deny = network(
        "kube-system/all",
        json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
    );
    let world = world_with([deny]);
    assert_eq!(
        reaching(&world, "node one"),
        ["shop/web", "shop/db", "other/web", "other/db", "node one", "node two", "outside"]
    );
    let world =
        from(json!([{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "proxy"}}}]));
    assert_eq!(reaching(&world, "shop/db"), NOBODY);
}

#[test]
fn the_own_node_is_always_reached_and_reaches_its_pods() {
    let shut = |name: &str| {
        network(name, json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))
    };
    let world = world_with([shut("shop/all")]);
    assert_eq!(reaching(&world, "shop/web"), ["shop/web", "node one"]);
    assert_eq!(reached(&world, "shop/web"), ["shop/web", "node one"]);
}

/// Rules that name nodes or networks decide, in the order of the tiers, and nothing else does.
#[test]
fn cluster_policies_decide_what_reaches_the_own_node() {
    let policy = |name: &str, tier: &str, rules: Value| {
        let subject = json!({"namespaces": {"matchLabels": {"team": "red"}}});
        cluster(name, json!({"tier": tier, "priority": 1, "subject": subject, "egress": rules}))
    };
    let (nodes, web) =
        (json!([{"nodes": {}}]), json!([{"tcp": {"destinationPort": {"number": 80}}}]));
    let rule = |action: &str| json!({"action": action, "to": nodes});
    let on_web = |action: &str| json!({"action": action, "to": nodes, "protocols": web});
    let shut = || network("shop/all", json!({"podSelector": {}, "policyTypes": ["Egress"]}));
    let reached = |world: &World| -> Vec<u16> {
        let is = |port: &u16| allowed(world, "shop/web", "node one", tcp(*port));
        [80, 443].into_iter().filter(is).collect()
    };
    let denied = || policy("a", "Admin", json!([on_web("Accept"), rule("Deny")]));
    let passed = || policy("a", "Admin", json!([on_web("Pass"), rule("Deny")]));
    let base = || policy("b", "Baseline", json!([rule("Deny")]));
    assert_eq!(reached(&world_with([denied()])), [80]);
    assert_eq!(reached(&world_with([passed()])), [80]);
    assert!(reached(&world_with([passed(), base()])).is_empty());
    assert!(reached(&world_with([base()])).is_empty());
    // A NetworkPolicy leaves the own node alone, and nothing is asked after it.
    assert_eq!(reached(&world_with([base(), shut()])), [80, 443]);
    assert_eq!(reached(&world_with([passed(), base(), shut()])), [80]);
    // Pods elsewhere and pods that are no subject reach it as they did.
    let world = world_with([denied()]);
    assert!(allowed(&world, "other/web", "node one", tcp(443)));
    assert!(!allowed(&world, "shop/db", "node one", tcp(443)));
    // What denies everything since it cannot be read is about no node.
    let unread = json!({"metadata": {"name": "x"}, "spec": {
        "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
        "egress": [{"action": "Deny", "to": [{"nodes": {}, "pods": {}}]}],
    }});
    let world = world_with([cluster_policy::read(&unread).unwrap()]);
    assert!(!allowed(&world, "shop/web", "outside", tcp(80)));
    assert_eq!(reached(&world), [80, 443]);
    // A pod of which too little is known reaches its node.
    let mut world = world_with([denied()]);
    world.change(pod("shop/two", "one", json!({}), &["10.244.1.1"]).into());
    assert_eq!(reached(&world), [80, 443]);
    // Networks hold the node's addresses too. The node reaches its pods whatever is said.
    let networks = json!([{"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]}]);
    let mut all = policy("a", "Admin", networks);
    all.ingress.clone_from(&all.egress);
    let world = world_with([all]);
    assert!(reached(&world).is_empty());
    assert!(allowed(&world, "node one", "shop/web", tcp(80)));
}

/// A Node may have an address that its host does not have.
#[test]
fn what_the_host_of_the_own_node_lacks_is_judged() {
    let shut =
        network("shop/all", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    let mut world = world_with([shut]);
    let before = world.changes();
    world.set_host("one", BTreeSet::from([ip("2001:db8::1")]));
    assert!(before < world.changes());
    assert_eq!(reached(&world, "shop/web"), ["shop/web"]);
    assert_eq!(reaching(&world, "shop/web"), ["shop/web"]);
    assert!(allowed(&world, "fd00:244:1::1", "2001:db8::1", tcp(80)));
    // Nothing is known of the host of another node.
    assert_eq!(reached(&world, "shop/db"), ["shop/db", "node two"]);
}

#[test]
fn a_pod_does_not_cut_itself_off_from_itself() {
    let world = ingress(json!([]));
    let judged = verdict(&world, at("shop/db"), at("shop/db"), tcp(80));
    assert_eq!(judged.ingress.decision, Decision::Itself);
    // Packets of the pod are judged where they leave it.
    let judged = verdict_by_service(&world, at("shop/db"), at("shop/db"), tcp(80));
    assert_eq!(judged.ingress.decision, Decision::NoneAllows);
}

#[test]
fn neighbour_discovery_is_never_denied() {
    let shut =
        network("shop/all", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    let world = world_with([shut]);
    let traffic = Traffic::of(Protocol::NeighbourDiscovery);
    assert!(verdict(&world, ip("fd00:244:1::1"), ip("fd00:244:2::1"), traffic).allowed());
    let ping = Traffic::of(Protocol::Other(58));
    assert!(!verdict(&world, ip("fd00:244:1::1"), ip("fd00:244:2::1"), ping).allowed());
}

#[test]
fn finished_pods_leave_and_an_address_is_its_next_pods() {
    let policy = network(
        "shop/db",
        json!({
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "job"}}}]}],
        }),
    );
    let mut world = world_with([policy]);
    let mut job = pod("shop/job", "one", json!({"app": "job"}), &["10.244.1.9"]);
    world.change(job.clone().into());
    assert!(allowed(&world, "10.244.1.9", "shop/db", tcp(80)));
    job.finished = true;
    world.change(job.clone().into());
    assert!(!allowed(&world, "10.244.1.9", "shop/db", tcp(80)));
    // The address belongs to another pod now, so the finished pod does not count.
    let next = pod("shop/next", "one", json!({"app": "next"}), &["10.244.1.9"]);
    world.change(next.clone().into());
    assert!(!allowed(&world, "10.244.1.9", "shop/db", tcp(80)));
    // Changes of the finished pod do not affect the other.
    world.change(Change::Pod(job.uid.clone(), None));
    assert!(!allowed(&world, "10.244.1.9", "shop/db", tcp(80)));
    assert_eq!(world.claimants(ip("10.244.1.9"))[0].name, "next");
}

#[test]
fn pods_of_one_name_are_told_apart_by_uid() {
    let mut world = world_with([]);
    let mut old = pod("shop/db-0", "one", json!({"app": "old"}), &["10.244.1.9"]);
    old.uid = Uid::from("1");
    let mut new = pod("shop/db-0", "one", json!({"app": "new"}), &["10.244.1.10"]);
    new.uid = Uid::from("2");
    world.change(old.clone().into());
    world.change(new.into());
    world.change(Change::Pod(old.uid, None));
    assert!(world.claimants(ip("10.244.1.9")).is_empty());
    assert_eq!(world.claimants(ip("10.244.1.10"))[0].labels["app"], "new");
}

#[test]
fn an_address_of_two_living_pods_is_closed_until_one_has_left() {
    let mut world = world_with([]);
    let mut one = pod("shop/one", "one", json!({}), &["10.244.1.9"]);
    let two = pod("shop/two", "one", json!({}), &["10.244.1.9"]);
    world.change(one.clone().into());
    world.change(two.into());
    let judged = verdict(&world, at("shop/db"), ip("10.244.1.9"), tcp(80));
    let pods = vec!["shop/one".to_owned(), "shop/two".to_owned()];
    assert_eq!(judged.ingress.decision, Decision::SeveralPods { pods });
    assert!(allowed(&world, "node one", "10.244.1.9", tcp(80)), "their node reaches them");
    // A pod that is being deleted gives way.
    one.terminating = true;
    world.change(one.into());
    assert!(allowed(&world, "shop/db", "10.244.1.9", tcp(80)));
}

/// What another node judges: a pod there that policies select takes nothing from an address that
/// two pods claim, and sends nothing there, whatever either of them may do.
#[test]
fn an_address_of_two_living_pods_has_the_rights_of_neither() {
    let of_web = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
    let db = network(
        "shop/db",
        json!({
            "podSelector": {"matchLabels": {"app": "db"}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": of_web}],
            "egress": [{"to": of_web}, {"ports": [{"port": "http"}]}],
        }),
    );
    let cache = cluster(
        "no-x",
        json!({
            "tier": "Admin",
            "priority": 1,
            "subject": {"pods": {
                "namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "dns"}},
            }},
            "ingress": [{"action": "Deny", "from": [{"pods": {
                "namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "x"}},
            }}]}],
        }),
    );
    let addresses = ["10.244.1.9", "fd00:244:1::9"];
    let web = pod("shop/w", "one", json!({"app": "web"}), &addresses);
    let mut x = pod("shop/x", "one", json!({"app": "x"}), &addresses);
    let mut world = world_with([db, cache]);
    world.change(web.into());
    world.change(x.clone().into());
    // What the node of the other end says: the evaluator, and the packet filter.
    let node_lets = |world: &World, direction: Direction, source: &str, destination: &str| {
        let (source, destination, traffic) = (at(source), at(destination), tcp(80));
        let side = verdict(world, source, destination, traffic).side(direction).clone();
        let program = netwright_policy::compile(world.clone(), "two");
        let packet = Packet { source, destination, traffic };
        assert_eq!(hook(&program, direction, packet), side.decision.allows(), "{side:?}");
        side.decision.allows()
    };
    for (claimed, db, dns, other) in [
        ("10.244.1.9", "10.244.2.1", "10.244.2.3", "10.244.2.2"),
        ("fd00:244:1::9", "fd00:244:2::1", "fd00:244:2::3", "fd00:244:2::2"),
    ] {
        let of_db = |world: &World| {
            [
                node_lets(world, Direction::Ingress, claimed, db),
                node_lets(world, Direction::Egress, db, claimed),
            ]
        };
        assert_eq!(of_db(&world), [false, false]);
        // What is denied to one of them is denied to both.
        assert!(!node_lets(&world, Direction::Ingress, claimed, dns));
        // A pod that no policy selects takes everything. The claimed address is closed at its node.
        assert!(node_lets(&world, Direction::Ingress, claimed, other));
        assert!(node_lets(&world, Direction::Egress, dns, claimed));
        // One of them is left.
        x.terminating = true;
        world.change(x.clone().into());
        assert_eq!(of_db(&world), [true, true]);
        assert!(node_lets(&world, Direction::Ingress, claimed, dns));
        x.terminating = false;
        world.change(x.clone().into());
    }
}

#[test]
fn pods_of_an_unknown_namespace_are_closed_but_for_their_node() {
    let mut world = world_with([]);
    world.change(Change::Namespace("shop".to_owned(), None));
    assert_eq!(reaching(&world, "shop/db"), NOBODY);
    assert_eq!(reached(&world, "shop/db"), NOBODY);
    world.change(namespace("shop", json!({})).into());
    assert_eq!(reaching(&world, "shop/db"), EVERYBODY);
}

fn tiered(tier: &str, priority: u16, name: &str, action: &str) -> netwright_policy::Policy {
    cluster(
        name,
        json!({
            "tier": tier, "priority": priority,
            "subject": {"namespaces": {"matchLabels": {"team": "red"}}},
            "ingress": [{"action": action, "from": [{"namespaces": {"matchLabels": {"team": "blue"}}}]}],
        }),
    )
}

#[test]
fn tiers_are_asked_in_order_and_priorities_within_them() {
    let shut = || network("shop/shut", json!({"podSelector": {}, "ingress": []}));
    let open = || network("shop/open", json!({"podSelector": {}, "ingress": [{}]}));
    let case = |policies: Vec<netwright_policy::Policy>| {
        let reached = allowed(&world_with(policies.clone()), "other/web", "shop/db", tcp(80));
        // The order in which the pods arrive does not matter.
        let turned = policies.into_iter().rev();
        assert_eq!(allowed(&world_with(turned), "other/web", "shop/db", tcp(80)), reached);
        reached
    };
    assert!(case(vec![tiered("Admin", 5, "a", "Accept"), shut()]));
    assert!(!case(vec![tiered("Admin", 5, "a", "Deny"), open()]));
    assert!(!case(vec![tiered("Admin", 5, "a", "Pass"), shut()]));
    assert!(case(vec![tiered("Admin", 5, "a", "Pass"), open()]));
    // The lower priority number is asked first.
    assert!(case(vec![tiered("Admin", 5, "z", "Accept"), tiered("Admin", 6, "a", "Deny")]));
    assert!(!case(vec![tiered("Admin", 6, "a", "Accept"), tiered("Admin", 5, "z", "Deny")]));
    // A pass skips the rest of the tier.
    assert!(case(vec![tiered("Admin", 5, "a", "Pass"), tiered("Admin", 6, "b", "Deny")]));
    // Baseline is for pods that no NetworkPolicy selects.
    assert!(!case(vec![tiered("Baseline", 5, "a", "Deny")]));
    assert!(case(vec![tiered("Baseline", 5, "a", "Deny"), open()]));
    assert!(!case(vec![tiered("Baseline", 5, "a", "Accept"), shut()]));
    assert!(case(vec![tiered("Baseline", 5, "a", "Pass"), tiered("Baseline", 6, "b", "Deny")]));
    // A pass of Admin leads to Baseline if there is no NetworkPolicy.
    assert!(!case(vec![tiered("Admin", 5, "a", "Pass"), tiered("Baseline", 5, "b", "Deny")]));
    // A cluster's policy isolates no pod by itself.
    assert!(allowed(
        &world_with([tiered("Admin", 5, "a", "Deny")]),
        "kube-system/dns",
        "shop/db",
        tcp(80)
    ));
}

#[test]
fn rules_of_a_cluster_policy_are_asked_in_their_order() {
    let rules = |ingress: Value| {
        world_with([cluster(
            "x",
            json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "ingress": ingress}),
        )])
    };
    let blue = json!([{"namespaces": {"matchLabels": {"team": "blue"}}}]);
    let (accept, deny) = (
        json!({"action": "Accept", "from": blue}),
        json!({"action": "Deny", "from": [{"namespaces": {}}]}),
    );
    let first = rules(json!([accept, deny]));
    assert_eq!(
        reaching(&first, "shop/db"),
        ["shop/db", "other/web", "other/db", "node one", "node two", "outside"]
    );
    let last = rules(json!([deny, accept]));
    assert_eq!(reaching(&last, "shop/db"), ["shop/db", "node one", "node two", "outside"]);
}

#[test]
fn subjects_of_cluster_policies_are_namespaces_or_pods() {
    let policy = |subject: Value| {
        world_with([cluster(
            "x",
            json!({
                "tier": "Admin", "priority": 1, "subject": subject,
                "egress": [{"action": "Deny", "to": [{"networks": ["198.51.100.0/24"]}]}],
            }),
        )])
    };
    let subjects = |world: &World| -> Vec<&str> {
        let denied = |pod: &&&str| !allowed(world, pod, "outside", tcp(80));
        PODS.iter().filter(denied).copied().collect()
    };
    assert_eq!(subjects(&policy(json!({"namespaces": {}}))), PODS);
    let red = json!({"namespaces": {"matchLabels": {"team": "red"}}});
    assert_eq!(subjects(&policy(red)), ["shop/web", "shop/db"]);
    let web = json!({"pods": {
        "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
        "podSelector": {"matchLabels": {"app": "web"}},
    }});
    assert_eq!(subjects(&policy(web)), ["shop/web", "other/web"]);
}

#[test]
fn cluster_policies_peers_are_pods_networks_and_nodes() {
    let deny = |to: Value| {
        world_with([cluster(
            "x",
            json!({
                "tier": "Admin", "priority": 1,
                "subject": {"namespaces": {"matchLabels": {"team": "red"}}},
                "egress": [{"action": "Deny", "to": to}],
            }),
        )])
    };
    let denied = |world: &World| -> Vec<&str> {
        let open = reached(world, "shop/web");
        EVERYBODY.iter().copied().filter(|end| !open.contains(end)).collect()
    };
    let pods =
        json!([{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "db"}}}}]);
    assert_eq!(denied(&deny(pods)), ["shop/db", "other/db"]);
    assert_eq!(
        denied(&deny(json!([{"namespaces": {"matchLabels": {"team": "blue"}}}]))),
        ["other/web", "other/db"]
    );
    // Networks in a rule match pods and nodes too.
    let networks = json!([{"networks": ["10.244.2.0/24", "192.0.2.2/32"]}]);
    assert_eq!(denied(&deny(networks)), ["shop/db", "other/db", "kube-system/dns", "node two"]);
    // The own node is one of them.
    assert_eq!(denied(&deny(json!([{"nodes": {}}]))), ["node one", "node two"]);
    assert_eq!(denied(&deny(json!([{"nodes": {"matchLabels": {"zone": "b"}}}]))), ["node two"]);
    assert_eq!(denied(&deny(json!([{"nodes": {"matchLabels": {"zone": "a"}}}]))), ["node one"]);
}

#[test]
fn cluster_policies_protocols() {
    let deny = |protocols: Value| {
        world_with([cluster(
            "x",
            json!({
                "tier": "Baseline", "priority": 1, "subject": {"namespaces": {}},
                "ingress": [{"action": "Deny", "from": [{"namespaces": {}}], "protocols": protocols}],
            }),
        )])
    };
    let denied = |protocols: Value| -> Vec<String> {
        let world = deny(protocols);
        let mut all = vec![tcp(80), tcp(81), udp(53), Traffic::to(Protocol::Sctp, 80)];
        all.push(Traffic::of(Protocol::Other(1)));
        all.retain(|traffic| !allowed(&world, "shop/web", "shop/db", *traffic));
        all.iter().map(ToString::to_string).collect()
    };
    let number = json!([{"tcp": {"destinationPort": {"number": 80}}}]);
    assert_eq!(denied(number), ["TCP port 80"]);
    let range = json!([{"tcp": {"destinationPort": {"range": {"start": 80, "end": 90}}}}]);
    assert_eq!(denied(range), ["TCP port 80", "TCP port 81"]);
    let several = json!([
        {"udp": {"destinationPort": {"number": 53}}},
        {"sctp": {"destinationPort": {"number": 80}}},
    ]);
    assert_eq!(denied(several), ["UDP port 53", "SCTP port 80"]);
    assert_eq!(denied(json!([{"destinationNamedPort": "dns"}])), ["UDP port 53"]);
    assert_eq!(denied(Value::Null).len(), 5);
}

#[test]
fn namespaces_are_isolated_where_the_administrator_says_so() {
    let dns = Exemption {
        peer: Peer::Pods(PodSet::own("kube-system", Selector::all())),
        ports: Some(vec![Ports::Range { protocol: Protocol::Udp, first: 53, last: 53 }]),
    };
    let only = network_policy::read(&json!({
        "metadata": {"namespace": "reader", "name": "x"},
        "spec": {"podSelector": {"matchLabels": {"team": "red"}}},
    }));
    let isolation =
        Isolation { namespaces: only.unwrap().subject.unwrap().pods, from: vec![], to: vec![dns] };
    let mut world = World::of(Some(isolation), cluster_of_two());
    assert_eq!(reaching(&world, "shop/db"), ["shop/web", "shop/db", "node two"]);
    assert_eq!(reached(&world, "shop/db"), ["shop/web", "shop/db", "node two"]);
    assert!(allowed(&world, "shop/db", "kube-system/dns", udp(53)));
    assert!(!allowed(&world, "shop/db", "kube-system/dns", tcp(53)));
    assert_eq!(reaching(&world, "other/db").len(), EVERYBODY.len() - 2);
    // A NetworkPolicy replaces the isolation for the direction that it covers.
    let open =
        network("shop/db", json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{}]}));
    world.change(open.into());
    assert_eq!(reaching(&world, "shop/db"), EVERYBODY);
    assert_eq!(reached(&world, "shop/db"), ["shop/web", "shop/db", "node two"]);
    // Policies of the Baseline tier are asked before the isolation.
    let accept = cluster(
        "monitoring",
        json!({
            "tier": "Baseline", "priority": 1000, "subject": {"namespaces": {}},
            "ingress": [{"action": "Accept", "from": [{"namespaces": {"matchLabels": {"team": "blue"}}}]}],
        }),
    );
    assert!(!allowed(&world, "other/web", "shop/web", tcp(80)));
    world.change(accept.into());
    assert!(allowed(&world, "other/web", "shop/web", tcp(80)));
    // A label adds a namespace to the isolated ones, or removes it.
    world.change(namespace("shop", json!({"team": "green"})).into());
    assert_eq!(reached(&world, "shop/db"), EVERYBODY);
}

#[test]
fn the_annotation_of_2016_denies_what_no_policy_allows() {
    let annotated = |text: &str| {
        Namespace::read(&json!({"metadata": {
            "name": "shop", "annotations": {"net.beta.kubernetes.io/network-policy": text},
        }}))
        .unwrap()
    };
    let mut world = world_with([]);
    world.change(annotated(r#"{"ingress": {"isolation": "DefaultDeny"}}"#).into());
    assert_eq!(reaching(&world, "shop/db"), NOBODY);
    // Egress is free, except to the other pod of the namespace, which is closed too.
    assert_eq!(reached(&world, "shop/db"), EVERYBODY[1..]);
    let open =
        network("shop/db", json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{}]}));
    world.change(open.into());
    assert_eq!(reaching(&world, "shop/db"), EVERYBODY);
    assert_eq!(reaching(&world, "shop/web"), ["shop/web", "node one"]);
    for none in ["{}", r#"{"ingress": {}}"#, r#"{"ingress": null}"#] {
        let namespace = annotated(none);
        assert!(!namespace.default_deny && namespace.faults.is_empty(), "{none}");
    }
}

#[test]
fn a_policy_for_several_networks_names_them() {
    let read = |annotation: &str| {
        multi_policy::read(&json!({
            "metadata": {
                "namespace": "shop", "name": "storage",
                "annotations": {"k8s.v1.cni.cncf.io/policy-for": annotation},
            },
            "spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]},
        }))
        .unwrap()
    };
    let policy = read("storage, other/backup");
    assert_eq!(Vec::from_iter(&policy.networks), ["other/backup", "shop/storage"]);
    assert_eq!(policy.policy.faults, []);
    // Each network is a world of its own, with the pods' addresses on it.
    let on_storage = |name: &str, address: &str| pod(name, "one", json!({}), &[address]).into();
    let world = World::of(
        None,
        [
            namespace("shop", json!({})).into(),
            namespace("other", json!({})).into(),
            on_storage("shop/db", "172.16.0.1"),
            on_storage("shop/web", "172.16.0.2"),
            on_storage("other/db", "172.16.0.3"),
            policy.policy.into(),
        ],
    );
    assert!(allowed(&world, "172.16.0.2", "172.16.0.1", tcp(80)));
    assert!(!allowed(&world, "172.16.0.3", "172.16.0.1", tcp(80)));
}

#[test]
fn cluster_policies_with_one_priority_are_told() {
    let world = world_with([
        tiered("Admin", 5, "one", "Deny"),
        tiered("Admin", 5, "two", "Accept"),
        tiered("Baseline", 5, "three", "Accept"),
        tiered("Admin", 6, "four", "Accept"),
    ]);
    assert_eq!(
        world.shared_priorities(),
        ["ClusterNetworkPolicy one and ClusterNetworkPolicy two have priority 5 in tier Admin: \
          they are asked in the order of their names"]
    );
    assert!(!allowed(&world, "other/web", "shop/db", tcp(80)));
}
