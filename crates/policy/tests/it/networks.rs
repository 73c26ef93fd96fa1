//! Further networks: random clusters judged in two ways, as for the pods' own network, and rules
//! that apply only to further networks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netwright_policy::interpret::{Packet, passes_between};
use netwright_policy::multi_policy::{self, MultiPolicy};
use netwright_policy::networks::{Attachment, NetworkInterface};
use netwright_policy::object::{Namespace, Uid};
use netwright_policy::program::{Link, OPEN, unknown};
use netwright_policy::{
    Change, Direction, IpFamily, Networks, Pod, PolicyId, Program, Protocol, Step, Traffic, World,
    verdict,
};
use serde_json::{Value, json};
use testkit::{Chance, feature, share};

use super::case::Case;
use super::support::{ip, namespace, pod, tcp};

const SOME: usize = 100;
const MANY: usize = 750;
const ALL: usize = 5_000;

/// The node whose packet filter is tested.
const NODE: &str = "one";

/// Two networks with the same addresses.
const NETWORKS: [(&str, &str); 2] = [("shop/a", "br-a"), ("shop/b", "br-b")];

const TRAFFIC: [Traffic; 4] = [
    Traffic { protocol: Protocol::Tcp, port: Some(80) },
    Traffic { protocol: Protocol::Udp, port: Some(53) },
    Traffic { protocol: Protocol::Other(1), port: None },
    Traffic { protocol: Protocol::NeighbourDiscovery, port: None },
];

/// An object of a network that is added, changed or removed.
#[derive(Debug, Clone)]
enum TestEvent {
    Namespace(String, Option<Namespace>),
    Pod(usize, Uid, Option<Pod>),
    Policy(PolicyId, Option<MultiPolicy>),
}

/// What there is of all networks.
#[derive(Debug, Default)]
struct PresentObjects {
    namespaces: BTreeMap<String, Namespace>,
    pods: BTreeMap<Uid, (usize, Pod)>,
    policies: BTreeMap<PolicyId, MultiPolicy>,
}

impl PresentObjects {
    fn take(&mut self, happens: TestEvent) {
        fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        match happens {
            TestEvent::Namespace(name, namespace) => put(&mut self.namespaces, name, namespace),
            TestEvent::Pod(network, uid, pod) => {
                put(&mut self.pods, uid, pod.map(|pod| (network, pod)));
            }
            TestEvent::Policy(id, policy) => put(&mut self.policies, id, policy),
        }
    }

    /// The world of the pods' own network: only its namespaces matter here.
    fn own(&self) -> World {
        World::of(None, self.namespaces.values().cloned().map(Change::from))
    }

    /// A network as the evaluator sees it.
    fn reference(&self, network: usize) -> World {
        let pods = self.pods.values().filter(|(on, _)| *on == network);
        let pods = pods.map(|(_, pod)| pod.clone().into());
        let policies = self.policies.values().filter(|policy| policy.is_for(NETWORKS[network].0));
        let policies = policies.map(|policy| policy.policy.clone().into());
        let namespaces = self.namespaces.values().cloned().map(Change::from);
        World::of(None, namespaces.chain(pods).chain(policies))
    }

    /// The pods that have an address on this node.
    fn here(&self, network: usize, address: IpAddr) -> Vec<&Pod> {
        let pods = self.pods.values().filter(|(on, pod)| {
            *on == network && pod.node.as_deref() == Some(NODE) && pod.addresses.contains(&address)
        });
        pods.map(|(_, pod)| pod).collect()
    }
}

fn attachment(network: usize, pod: &Pod) -> Option<Attachment> {
    (pod.node.as_deref() == Some(NODE)).then(|| Attachment {
        network: Some(NETWORKS[network].0.to_owned()),
        pod: Some(pod.uid.clone()),
        interface: NETWORKS[network].1.to_owned(),
        inside: false,
        addresses: pod.addresses.clone(),
    })
}

fn says(network: usize, pod: &Pod) -> Vec<NetworkInterface> {
    let (network, interface) = (NETWORKS[network].0.to_owned(), "net1".to_owned());
    vec![NetworkInterface { network, interface, addresses: pod.addresses.clone() }]
}

/// Passes a change to the networks. The order of objects that belong together differs.
fn tell(networks: &mut Networks, happens: &TestEvent, own: &World, turn: bool) -> Vec<Step> {
    match happens {
        TestEvent::Namespace(name, _) => networks.namespace(name, own),
        TestEvent::Policy(id, policy) => {
            networks.policy(id, policy.clone(), own);
            networks.settle()
        }
        TestEvent::Pod(network, uid, pod) => {
            let known = pod.clone().map(|pod| (pod.clone(), says(*network, &pod)));
            let here = pod.as_ref().and_then(|pod| attachment(*network, pod));
            let mut steps = Vec::new();
            if turn {
                steps.extend(networks.attachment(uid, here.clone(), own));
            }
            steps.extend(networks.pod(uid, known, own));
            steps.extend(networks.attachment(uid, here, own));
            steps
        }
    }
}

/// Turns two clusters into two networks of one cluster.
fn cases(chance: &mut Chance) -> (Vec<TestEvent>, Vec<TestEvent>) {
    let (mut first, mut then) = (Vec::new(), Vec::new());
    for network in 0..NETWORKS.len() {
        let Case { objects, changes, .. } = Case::random(chance);
        first.extend(objects.into_iter().filter_map(|change| happens(network, change)));
        then.extend(changes.into_iter().filter_map(|change| happens(network, change)));
    }
    (first, then)
}

fn happens(network: usize, change: Change) -> Option<TestEvent> {
    Some(match change {
        Change::Namespace(name, namespace) => {
            // The annotation of 2016 applies to the pods' own network.
            let plain = |namespace| Namespace { default_deny: false, ..namespace };
            TestEvent::Namespace(name, namespace.map(plain))
        }
        Change::Pod(uid, new) => {
            let uid = Uid::from(format!("{uid} {network}"));
            if new.as_ref().is_some_and(|pod| pod.host_network) {
                return None;
            }
            TestEvent::Pod(network, uid.clone(), new.map(|pod| Pod { uid, ..pod }))
        }
        Change::Policy(PolicyId::Network { namespace, name }, new) => {
            let id = PolicyId::MultiNetwork { namespace, name: format!("{name}-{network}") };
            let new = new.map(|policy| MultiPolicy {
                networks: BTreeSet::from([NETWORKS[network].0.to_owned()]),
                everywhere: false,
                policy: netwright_policy::Policy { id: id.clone(), ..policy },
            });
            TestEvent::Policy(id, new)
        }
        Change::Policy(..) | Change::Node(..) => return None,
    })
}

fn whole(networks: &Networks) -> Program {
    let mut program = Program::empty();
    networks.add_to(&mut program);
    program
}

/// Compares packets at this node with the evaluator's verdicts for the ends on this node.
fn compare(there: &PresentObjects, program: &Program, denied: &mut usize) -> Result<(), String> {
    for (network, (name, interface)) in NETWORKS.iter().enumerate() {
        let world = there.reference(network);
        let mut ends: BTreeSet<IpAddr> = ["198.51.100.1", "2001:db8:ff::1"].map(ip).into();
        let pods = there.pods.values().filter(|(on, _)| *on == network);
        ends.extend(pods.flat_map(|(_, pod)| pod.addresses.iter().copied()));
        for source in &ends {
            for destination in &ends {
                let (source, destination) = (*source, *destination);
                let both = [there.here(network, source), there.here(network, destination)];
                let same = both[0].iter().any(|one| both[1].iter().any(|two| one.uid == two.uid));
                if IpFamily::of(source) != IpFamily::of(destination) || same {
                    continue;
                }
                for traffic in TRAFFIC {
                    let judged = verdict(&world, source, destination, traffic);
                    let lets = |direction: Direction, end: IpAddr| {
                        if traffic.protocol == Protocol::NeighbourDiscovery {
                            return true;
                        }
                        let claimants = world.claimants(end);
                        match there.here(network, end).as_slice() {
                            [] => true,
                            [pod] if claimants.len() == 1 && claimants[0].uid == pod.uid => {
                                judged.side(direction).decision.allows()
                            }
                            // The owner of the attachment is not known.
                            _ => false,
                        }
                    };
                    let allowed =
                        lets(Direction::Egress, source) && lets(Direction::Ingress, destination);
                    let packet = Packet { source, destination, traffic };
                    if passes_between(program, interface, interface, packet) != allowed {
                        return Err(format!(
                            "{name}: {source} to {destination}, {traffic}: allowed is {allowed}, \
                             by {judged:?}"
                        ));
                    }
                    *denied += usize::from(!allowed);
                }
            }
        }
    }
    Ok(())
}

fn check(first: &[TestEvent], then: &[TestEvent], denied: &mut usize) -> Result<(), String> {
    let (mut there, mut networks) = (PresentObjects::default(), Networks::new(NODE));
    // Hears of policies, and settles later.
    let mut late = Networks::new(NODE);
    let mut program = Program::empty();
    for (number, happens) in first.iter().chain(then).enumerate() {
        there.take(happens.clone());
        let own = there.own();
        for step in tell(&mut networks, happens, &own, number % 2 == 0) {
            program.apply(&step).map_err(|error| format!("{happens:?}: {error} ({step:?})"))?;
            program.check().map_err(|error| format!("{happens:?}: {error} (after {step:?})"))?;
        }
        if program != whole(&networks) {
            return Err(format!("{happens:?}: the steps lead to another program"));
        }
        match happens {
            TestEvent::Policy(id, policy) => late.policy(id, policy.clone(), &own),
            other => drop(tell(&mut late, other, &own, number % 2 == 0)),
        }
        let again = tell(&mut networks, happens, &own, false);
        if !again.is_empty() {
            return Err(format!("{happens:?}: the same again changes something: {again:?}"));
        }
        if number + 1 == first.len() {
            compare(&there, &program, denied)?;
        }
    }
    compare(&there, &program, denied)?;
    late.settle();
    if program != whole(&late) {
        return Err("settled at the end it is another program".to_owned());
    }
    // Another order gives the same program.
    let own = there.own();
    let mut other = Networks::new(NODE);
    for (id, policy) in &there.policies {
        other.policy(id, Some(policy.clone()), &own);
    }
    other.settle();
    for (uid, (network, pod)) in there.pods.iter().rev() {
        other.attachment(uid, attachment(*network, pod), &own);
    }
    for (uid, (network, pod)) in &there.pods {
        other.pod(uid, Some((pod.clone(), says(*network, pod))), &own);
    }
    let difference = Program::difference(&program, &whole(&other));
    if difference.is_empty() { Ok(()) } else { Err(format!("anew it differs: {difference:?}")) }
}

#[test]
fn random_networks_meet_no_disagreement() {
    let clusters = if feature::available("full") { share::count(ALL, MANY) } else { SOME };
    let mut chance = Chance::new(share::seed_of_this_round(72));
    let mut denied = 0;
    for number in 0..clusters {
        let (first, then) = cases(&mut chance);
        if let Err(why) = check(&first, &then, &mut denied) {
            panic!("cluster {number}: {why}\nof {first:#?}\nand then {then:#?}");
        }
    }
    assert!(clusters < denied, "{denied} packets were denied, so little was compared");
}

fn for_networks(annotation: &str, spec: Value) -> MultiPolicy {
    let read = multi_policy::read(&json!({
        "metadata": {
            "namespace": "shop", "name": "x",
            "annotations": {"k8s.v1.cni.cncf.io/policy-for": annotation},
        },
        "spec": spec,
    }));
    read.unwrap()
}

/// A node with `shop/web` and `shop/db` on `shop/a`, at a bridge.
fn two_pods() -> (World, Networks) {
    let own = World::of(None, [namespace("shop", json!({})).into()]);
    let mut networks = Networks::new(NODE);
    for (name, address) in [("shop/web", "172.16.0.1"), ("shop/db", "172.16.0.2")] {
        let pod = pod(name, NODE, json!({"app": name[5..]}), &[address]);
        let says = says(0, &pod);
        networks.attachment(name, attachment(0, &pod), &own);
        networks.pod(&pod.uid.clone(), Some((pod, says)), &own);
    }
    (own, networks)
}

fn passes(networks: &Networks, source: &str, destination: &str) -> bool {
    let (source, destination) = (ip(source), ip(destination));
    let packet = Packet { source, destination, traffic: tcp(80) };
    passes_between(&whole(networks), "br-a", "br-a", packet)
}

#[test]
fn a_policy_is_for_the_networks_that_it_names() {
    let (own, mut networks) = two_pods();
    let id = for_networks("a", json!({})).policy.id;
    let reaches = |networks: &Networks| passes(networks, "172.16.0.1", "172.16.0.2");
    assert!(reaches(&networks));
    let deny = json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"]});
    networks.policy(&id, Some(for_networks("b", deny.clone())), &own);
    networks.settle();
    assert!(reaches(&networks));
    networks.policy(&id, Some(for_networks("a, b", deny.clone())), &own);
    networks.settle();
    assert!(!reaches(&networks) && passes(&networks, "172.16.0.2", "172.16.0.1"));
    networks.policy(&id, Some(for_networks("other/a", deny.clone())), &own);
    networks.settle();
    assert!(reaches(&networks));
    // The intended network cannot be read.
    networks.policy(&id, Some(for_networks("a/b/c", deny)), &own);
    networks.settle();
    assert!(!reaches(&networks));
    networks.policy(&id, None, &own);
    networks.settle();
    assert!(reaches(&networks));
    assert_eq!(networks.worlds().map(|(name, _)| name).collect::<Vec<_>>(), ["shop/a"]);
}

#[test]
fn what_is_not_known_is_closed() {
    let (own, mut networks) = two_pods();
    let web = Link { interface: "br-a".to_owned(), address: ip("172.16.0.1") };
    assert!(!networks.is_closed(&web));
    let known = attachment(0, &pod("shop/web", NODE, json!({}), &["172.16.0.1"])).unwrap();
    for less in
        [Attachment { network: None, ..known.clone() }, Attachment { pod: None, ..known.clone() }]
    {
        networks.attachment("shop/web", Some(less), &own);
        assert!(networks.is_closed(&web));
        assert!(!passes(&networks, "172.16.0.1", "172.16.0.2"));
        assert!(!passes(&networks, "172.16.0.2", "172.16.0.1"));
        networks.attachment("shop/web", Some(known.clone()), &own);
        assert!(!networks.is_closed(&web));
    }
    // Two networks have the same address at the same interface.
    let other = Attachment { network: Some("shop/b".to_owned()), ..known.clone() };
    networks.attachment("other", Some(other), &own);
    let deny = json!({"podSelector": {}});
    let policy = for_networks("b", deny);
    networks.policy(&policy.policy.id.clone(), Some(policy), &own);
    networks.settle();
    assert!(networks.is_closed(&web));
    networks.attachment("other", None, &own);
    assert!(!networks.is_closed(&web));
    // The plugin has closed the address, and says so.
    networks.closed(&web);
    assert!(networks.is_closed(&web));
    let steps = networks.attachment("shop/web", Some(known), &own);
    let opens = |direction| Step::Link {
        direction,
        link: web.clone(),
        before: Some(unknown(direction)),
        chain: Some(OPEN.to_owned()),
    };
    assert_eq!(steps, Direction::ALL.map(opens));
}

/// Another node's pod does not get an address that is attached here. A pod of this node that had it
/// before contests it as long as other nodes take the address for that pod's.
#[test]
fn an_address_is_closed_as_long_as_other_nodes_take_it_for_another_pods() {
    let (own, mut networks) = two_pods();
    let db = Link { interface: "br-a".to_owned(), address: ip("172.16.0.2") };
    let claimants = |networks: &Networks| -> Vec<String> {
        let pods = networks.world("shop/a").unwrap().claimants(ip("172.16.0.2"));
        pods.iter().map(|pod| pod.full_name()).collect()
    };
    let tell = |networks: &mut Networks, pod: &Pod, says: Vec<NetworkInterface>| {
        networks.pod(&pod.uid, Some((pod.clone(), says)), &own);
        networks.is_closed(&db)
    };
    let far = pod("shop/far", "two", json!({}), &["172.16.0.2"]);
    assert!(!tell(&mut networks, &far, says(0, &far)));
    assert_eq!(claimants(&networks), ["shop/db"]);
    let new = pod("shop/db", NODE, json!({"app": "db"}), &["172.16.0.2"]);
    let mut old = pod("shop/old", NODE, json!({}), &["172.16.0.2"]);
    tell(&mut networks, &new, Vec::new());
    assert!(tell(&mut networks, &old, says(0, &old)));
    assert_eq!(claimants(&networks), ["shop/db", "shop/old"]);
    old.terminating = true;
    assert!(tell(&mut networks, &old, says(0, &old)));
    // Other nodes know that the new one has it.
    assert!(!tell(&mut networks, &new, says(0, &new)));
    assert!(tell(&mut networks, &new, Vec::new()));
    networks.pod(&old.uid, None, &own);
    assert!(!networks.is_closed(&db));
}

#[test]
fn connections_are_judged_where_their_ends_are() {
    let (own, mut networks) = two_pods();
    let deny = for_networks("a", json!({"podSelector": {"matchLabels": {"app": "db"}}}));
    networks.policy(&deny.policy.id.clone(), Some(deny), &own);
    networks.settle();
    let forbid =
        |source: &str, destination: &str| networks.forbid(ip(source), ip(destination), tcp(80));
    assert_eq!(forbid("172.16.0.1", "172.16.0.2"), [true]);
    assert_eq!(forbid("172.16.0.2", "172.16.0.1"), [false]);
    assert!(forbid("172.16.0.9", "172.16.0.8").is_empty());
    assert_eq!(networks.network_at("br-a", ip("172.16.0.1")), Some("shop/a"));
    assert_eq!(networks.network_at("br-b", ip("172.16.0.1")), None);
}

/// Treats the attachment of `shop/db` as one that is judged inside the container.
fn db_inside(own: &World, networks: &mut Networks) -> Attachment {
    let db = attachment(0, &pod("shop/db", NODE, json!({}), &["172.16.0.2"])).unwrap();
    let db = Attachment { interface: "net1".to_owned(), inside: true, ..db };
    networks.attachment("shop/db", Some(db.clone()), own);
    db
}

#[test]
fn what_does_not_pass_the_node_is_judged_inside() {
    let (own, mut networks) = two_pods();
    assert!(!networks.take_moved());
    let db = db_inside(&own, &mut networks);
    assert!(networks.take_moved() && !networks.take_moved());
    let leads = |networks: &Networks, direction: Direction| {
        let program = networks.inside(["shop/db", "shop/web", "nobody"]);
        program.check().unwrap();
        assert_eq!(program.interfaces.len(), 2, "only of the interface that is judged inside");
        program.interfaces[&(direction, "net1".to_owned())].clone()
    };
    assert_eq!(leads(&networks, Direction::Ingress), OPEN);
    assert!(whole(&networks).links.keys().all(|(_, link)| link.interface != "net1"));
    assert_eq!(networks.network_at("net1", ip("172.16.0.2")), None);
    assert_eq!(networks.network_of("shop/db"), Some("shop/a"));
    let policy = for_networks(
        "a",
        json!({
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
        }),
    );
    networks.policy(&policy.policy.id.clone(), Some(policy), &own);
    networks.settle();
    assert!(networks.take_moved() && networks.is_judged_inside("shop/db"));
    assert_eq!(leads(&networks, Direction::Egress), OPEN);
    let chain = leads(&networks, Direction::Ingress);
    let program = networks.inside(["shop/db"]);
    assert!(program.chains.contains_key(&chain) && program.verdicts.is_empty());
    let sets: Vec<&String> = program.sets.keys().collect();
    assert_eq!(sets.len(), 4, "those of the selector, and contested ones: {sets:?}");
    let set = sets.iter().find(|name| name.starts_with("sel4")).unwrap();
    assert_eq!(
        program.sets[*set],
        netwright_policy::program::Set::Addresses([ip("172.16.0.1")].into())
    );
    // Another peer costs one element, and nothing else.
    let peer = pod("shop/web-2", "two", json!({"app": "web"}), &["172.16.0.3"]);
    let says = says(0, &peer);
    let steps = networks.pod(&peer.uid.clone(), Some((peer, says)), &own);
    assert!(
        matches!(&steps[..], [Step::AddElement { set: into, .. }] if into == *set),
        "{steps:?}"
    );
    assert!(!networks.take_moved());
    let forbids = |networks: &Networks, source: &str, destination: &str| {
        networks.forbids_inside(["shop/db"], ip(source), ip(destination), tcp(80))
    };
    assert!(!forbids(&networks, "172.16.0.1", "172.16.0.2"));
    assert!(forbids(&networks, "172.16.0.9", "172.16.0.2"));
    assert!(!forbids(&networks, "172.16.0.2", "172.16.0.9"));
    assert!(!forbids(&networks, "172.16.0.9", "172.16.0.8"), "neither end is here");
    assert!(networks.forbid(ip("172.16.0.9"), ip("172.16.0.2"), tcp(80)).is_empty());
    // An unknown attachment is closed.
    for less in [Attachment { network: None, ..db.clone() }, Attachment { pod: None, ..db.clone() }]
    {
        networks.attachment("shop/db", Some(less), &own);
        assert_eq!(networks.is_closed_inside("shop/db"), Some(true));
        assert_eq!(leads(&networks, Direction::Ingress), unknown(Direction::Ingress));
        assert!(forbids(&networks, "172.16.0.2", "172.16.0.9"));
    }
    networks.attachment("shop/db", Some(db), &own);
    assert_eq!(networks.is_closed_inside("shop/db"), Some(false));
    assert_eq!(networks.is_closed_inside("shop/web"), None);
    assert_eq!(leads(&networks, Direction::Ingress), chain);
    // Two pods have its address, so it is not known which of them it is.
    let other = Attachment { pod: Some("other".into()), ..db_inside(&own, &mut networks) };
    networks.attachment("other", Some(other), &own);
    assert_eq!(networks.is_closed_inside("shop/db"), Some(true));
    networks.attachment("other", None, &own);
    assert_eq!(networks.is_closed_inside("shop/db"), Some(false));
}
