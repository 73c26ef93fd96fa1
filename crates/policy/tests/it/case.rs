//! Random clusters and random changes of them.

use std::sync::Arc;

use netwright_policy::isolation::{Exemption, Isolation};
use netwright_policy::labels::Selector;
use netwright_policy::object::{Namespace, Pod, Uid};
use netwright_policy::policy::{Peer, PodSet, PolicyId, Ports};
use netwright_policy::{Change, Protocol};
use serde_json::{Value, json};
use testkit::Chance;

use super::support::{cluster, namespace, network, node, pod};

/// A cluster, and how it changes.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) isolation: Option<Isolation>,
    /// The objects at the beginning.
    pub(crate) objects: Vec<Change>,
    /// The changes.
    pub(crate) changes: Vec<Change>,
}

const NAMESPACES: [&str; 3] = ["shop", "other", "tools"];
const NODES: [&str; 3] = ["one", "two", "three"];
const APPS: [&str; 3] = ["web", "db", "api"];

impl Case {
    /// Makes a random case.
    pub(crate) fn random(chance: &mut Chance) -> Self {
        let crowd = if chance.once_in(3) { 9 + chance.below(4) } else { 0 };
        let mut maker = Maker { chance, pods: Vec::new(), serial: 0, crowd };
        let isolation = maker.chance.once_in(4).then(|| maker.isolation());
        let mut objects = Vec::new();
        for (number, name) in NODES.iter().enumerate() {
            objects.push(maker.node(name, number));
        }
        for name in NAMESPACES {
            // The pods of a namespace are closed until the namespace is known.
            if !maker.chance.once_in(12) {
                objects.push(maker.namespace(name));
            }
        }
        for _ in 0..2 + maker.chance.below(5) {
            objects.push(maker.new_pod());
        }
        for number in 0..maker.chance.below(5) {
            objects.push(maker.network_policy(number));
        }
        for number in 0..maker.chance.below(4) {
            objects.push(maker.cluster_policy(number));
        }
        for number in 0..crowd {
            objects.push(maker.crowd_policy(number));
        }
        let changes = (0..1 + maker.chance.below(6)).map(|_| maker.change()).collect();
        Case { isolation, objects, changes }
    }

    /// Leaves out everything that the failure does not need.
    pub(crate) fn reduced(mut self, fails: impl Fn(&Case) -> bool) -> Self {
        loop {
            let before = self.objects.len() + self.changes.len();
            for number in (0..self.changes.len()).rev() {
                let mut less = self.clone();
                less.changes.remove(number);
                if fails(&less) {
                    self = less;
                }
            }
            for number in (0..self.objects.len()).rev() {
                let mut less = self.clone();
                less.objects.remove(number);
                if fails(&less) {
                    self = less;
                }
            }
            if self.objects.len() + self.changes.len() == before {
                return self;
            }
        }
    }
}

struct Maker<'a> {
    chance: &'a mut Chance,
    pods: Vec<Pod>,
    serial: usize,
    /// How many policies there are that one pod may have together, each with a selector of its own.
    crowd: usize,
}

impl Maker<'_> {
    fn isolation(&mut self) -> Isolation {
        let dns = Exemption {
            peer: Peer::Pods(PodSet::own("tools", Selector::all())),
            ports: Some(vec![Ports::Range { protocol: Protocol::Udp, first: 53, last: 53 }]),
        };
        let from = Exemption {
            peer: Peer::Pods(PodSet::own("other", Selector::all())),
            ports: Some(vec![Ports::Named { protocol: None, name: "http".to_owned() }]),
        };
        Isolation {
            namespaces: namespaces_of(&self.selector("team", &["red", "blue"])),
            from: if self.chance.once_in(2) { vec![from] } else { vec![] },
            to: vec![dns],
        }
    }

    fn node(&mut self, name: &str, number: usize) -> Change {
        let zone = *self.chance.of(&["a", "b"]);
        let addresses = [format!("192.0.2.{}", number + 1), format!("2001:db8::{}", number + 1)];
        node(name, json!({"zone": zone}), &[&addresses[0], &addresses[1]]).into()
    }

    fn namespace(&mut self, name: &str) -> Change {
        let team = *self.chance.of(&["red", "blue"]);
        let mut namespace: Namespace = namespace(name, json!({"team": team}));
        namespace.default_deny = self.chance.once_in(6);
        namespace.into()
    }

    fn labels(&mut self) -> Value {
        let mut labels = json!({"app": self.chance.of(&APPS)});
        if self.chance.once_in(2) {
            labels["tier"] = json!(self.chance.of(&["a", "b"]));
        }
        labels
    }

    fn new_pod(&mut self) -> Change {
        self.serial += 1;
        let serial = self.serial;
        let on = self.chance.below(NODES.len());
        let v4 = format!("10.244.{}.{serial}", on + 1);
        let v6 = format!("fd00:244:{}::{serial}", on + 1);
        let labels = self.labels();
        let addresses: &[&str] = match self.chance.below(5) {
            0 => &[v4.as_str()],
            1 => &[v6.as_str()],
            _ => &[v4.as_str(), v6.as_str()],
        };
        let name = format!("{}/pod-{serial}", self.chance.of(&NAMESPACES));
        let mut made = pod(&name, NODES[on], labels, addresses);
        if self.chance.once_in(8) {
            made.host_network = true;
            let number = on + 1;
            made.addresses = vec![
                format!("192.0.2.{number}").parse().unwrap(),
                format!("2001:db8::{number}").parse().unwrap(),
            ];
        }
        if self.chance.once_in(3) {
            Arc::make_mut(&mut made.ports)[0].port = 8080;
        }
        if self.chance.once_in(4) {
            Arc::make_mut(&mut made.ports).remove(0);
        }
        self.pods.push(made.clone());
        made.into()
    }

    fn change(&mut self) -> Change {
        if 0 < self.crowd && self.chance.once_in(3) {
            let number = self.chance.below(self.crowd);
            return match self.chance.once_in(2) {
                true => self.crowd_policy(number),
                false => Change::Policy(crowd_id(number), None),
            };
        }
        match self.chance.below(12) {
            0 => {
                let name = *self.chance.of(&NAMESPACES);
                Change::Namespace(name.to_owned(), None)
            }
            1 => {
                let name = *self.chance.of(&NAMESPACES);
                self.namespace(name)
            }
            2 => {
                let number = self.chance.below(NODES.len());
                self.node(NODES[number], number)
            }
            3 => {
                let name = *self.chance.of(&NODES);
                Change::Node(name.to_owned(), None)
            }
            4 => {
                let number = self.chance.below(5);
                self.network_policy(number)
            }
            5 => {
                let number = self.chance.below(4);
                self.cluster_policy(number)
            }
            6 => {
                let number = self.chance.below(5);
                Change::Policy(network_id(self.chance, number), None)
            }
            7 => {
                Change::Policy(PolicyId::Cluster { name: cluster_name(self.chance.below(4)) }, None)
            }
            8 => self.new_pod(),
            _ => self.changed_pod(),
        }
    }

    /// Changes a pod: another label, the next state of its life, its deletion, or another pod with
    /// the same addresses.
    fn changed_pod(&mut self) -> Change {
        let number = self.chance.below(self.pods.len());
        let kind = self.chance.below(6);
        let labels = self.labels();
        let pod = &mut self.pods[number];
        match kind {
            0 => return Change::Pod(pod.uid.clone(), None),
            1 => pod.finished = !pod.finished,
            2 => pod.terminating = !pod.terminating,
            3 if !pod.host_network => {
                let mut other = pod.clone();
                self.serial += 1;
                other.name = format!("pod-{}", self.serial);
                other.uid = Uid::from(other.full_name());
                other.terminating = false;
                self.pods.push(other.clone());
                return other.into();
            }
            _ => {
                let labels = labels.as_object().unwrap();
                let text = |(key, value): (&String, &Value)| {
                    (key.clone(), value.as_str().unwrap().to_owned())
                };
                pod.labels = Arc::new(labels.iter().map(text).collect());
            }
        }
        pod.clone().into()
    }

    fn selector(&mut self, key: &str, values: &[&str]) -> Value {
        let (one, other) = (*self.chance.of(values), *self.chance.of(values));
        let expression = |operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        match self.chance.below(7) {
            0 => json!({}),
            1 => expression("In", json!([one, other])),
            2 => expression("NotIn", json!([one])),
            3 => json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}),
            4 => json!({
                "matchLabels": {key: one},
                "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}],
            }),
            _ => json!({"matchLabels": {key: one}}),
        }
    }

    fn pods(&mut self) -> Value {
        self.selector("app", &APPS)
    }

    fn namespaces(&mut self) -> Value {
        if self.chance.once_in(3) {
            return self.selector("kubernetes.io/metadata.name", &NAMESPACES);
        }
        self.selector("team", &["red", "blue"])
    }

    fn block(&mut self) -> Value {
        let all: [(&str, &[&str]); 9] = [
            ("0.0.0.0/0", &["10.244.0.0/16", "198.51.100.0/25"]),
            ("0.0.0.0/0", &[]),
            ("10.244.0.0/16", &["10.244.1.0/24", "10.244.1.0/30", "10.244.2.2/32"]),
            ("10.244.1.0/24", &["10.244.1.0/25"]),
            ("198.51.100.0/24", &["198.51.100.255/32"]),
            ("192.0.2.2/32", &[]),
            ("::/0", &["fd00:244:1::/48"]),
            ("fd00:244::/32", &["fd00:244:2::/49", "fd00:244:3::1/128"]),
            ("2001:db8::/32", &[]),
        ];
        let (cidr, except) = *self.chance.of(&all);
        json!({"cidr": cidr, "except": except})
    }

    fn network_peer(&mut self) -> Value {
        match self.chance.below(4) {
            0 => json!({"podSelector": self.pods()}),
            1 => json!({"namespaceSelector": self.namespaces()}),
            2 => json!({"namespaceSelector": self.namespaces(), "podSelector": self.pods()}),
            _ => json!({"ipBlock": self.block()}),
        }
    }

    fn network_port(&mut self) -> Value {
        match self.chance.below(8) {
            0 => json!({"protocol": "UDP"}),
            1 => json!({"port": "http"}),
            2 => json!({"port": "dns", "protocol": "UDP"}),
            3 => json!({"port": 53, "protocol": "UDP"}),
            4 => json!({"port": 79, "endPort": 8079}),
            5 => json!({"protocol": "SCTP", "port": 80}),
            6 => json!({"port": "http", "protocol": "SCTP"}),
            _ => json!({"port": 80, "protocol": "TCP"}),
        }
    }

    fn network_rule(&mut self, peers: &str) -> Value {
        let mut rule = json!({});
        if !self.chance.once_in(4) {
            let list: Vec<Value> = (0..self.chance.below(4)).map(|_| self.network_peer()).collect();
            rule[peers] = json!(list);
        }
        if !self.chance.once_in(3) {
            let list: Vec<Value> = (0..self.chance.below(4)).map(|_| self.network_port()).collect();
            rule["ports"] = json!(list);
        }
        rule
    }

    fn network_policy(&mut self, number: usize) -> Change {
        let PolicyId::Network { namespace, name } = network_id(self.chance, number) else {
            unreachable!("it is a NetworkPolicy's")
        };
        let mut spec = json!({"podSelector": self.pods()});
        for (key, peers) in [("ingress", "from"), ("egress", "to")] {
            if !self.chance.once_in(3) {
                let rules: Vec<Value> =
                    (0..self.chance.below(3)).map(|_| self.network_rule(peers)).collect();
                spec[key] = json!(rules);
            }
        }
        match self.chance.below(6) {
            0 => spec["policyTypes"] = json!(["Ingress"]),
            1 => spec["policyTypes"] = json!(["Egress"]),
            2 | 3 => spec["policyTypes"] = json!(["Ingress", "Egress"]),
            _ => {}
        }
        network(&format!("{namespace}/{name}"), spec).into()
    }

    fn crowd_policy(&mut self, number: usize) -> Change {
        let pods = json!({
            "matchLabels": {"app": self.chance.of(&APPS)},
            "matchExpressions": [{"key": "number", "operator": "NotIn", "values": [number.to_string()]}],
        });
        let peer = match self.chance.below(4) {
            0 => json!({"ipBlock": self.block()}),
            1 => json!({"namespaceSelector": self.namespaces(), "podSelector": pods}),
            _ => json!({"podSelector": pods}),
        };
        let mut rule = json!({});
        if !self.chance.once_in(10) {
            rule["from"] = json!([peer]);
        }
        match self.chance.below(4) {
            0 => {}
            1 => rule["ports"] = json!([self.network_port()]),
            _ => rule["ports"] = json!([{"port": 80}, {"port": 53, "protocol": "UDP"}]),
        }
        let mut spec = json!({"podSelector": {}});
        match self.chance.once_in(3) {
            true => {
                if let Some(from) = rule.as_object_mut().unwrap().remove("from") {
                    rule["to"] = from;
                }
                spec["policyTypes"] = json!(["Egress"]);
                spec["egress"] = json!([rule]);
            }
            false => spec["ingress"] = json!([rule]),
        }
        network(&format!("shop/crowd-{number}"), spec).into()
    }

    fn cluster_peer(&mut self, egress: bool) -> Value {
        match self.chance.below(if egress { 4 } else { 2 }) {
            0 => json!({"namespaces": self.namespaces()}),
            1 => json!({"pods": {
                "namespaceSelector": self.namespaces(), "podSelector": self.pods(),
            }}),
            2 => json!({"nodes": self.selector("zone", &["a", "b"])}),
            _ => {
                let (one, other) = (self.block(), self.block());
                json!({"networks": [one["cidr"], other["cidr"]]})
            }
        }
    }

    fn cluster_protocol(&mut self, named: bool) -> Value {
        match self.chance.below(if named { 5 } else { 4 }) {
            0 => json!({"tcp": {"destinationPort": {"number": 80}}}),
            1 => json!({"tcp": {"destinationPort": {"range": {"start": 80, "end": 8080}}}}),
            2 => json!({"udp": {"destinationPort": {"number": 53}}}),
            3 => json!({"sctp": {"destinationPort": {"number": 80}}}),
            _ => json!({"destinationNamedPort": self.chance.of(&["http", "dns"])}),
        }
    }

    fn cluster_rule(&mut self, egress: bool) -> Value {
        let peers: Vec<Value> =
            (0..1 + self.chance.below(3)).map(|_| self.cluster_peer(egress)).collect();
        let named = peers
            .iter()
            .all(|peer| ["nodes", "networks"].iter().all(|key| peer.get(key).is_none()));
        let mut rule = json!({"action": self.chance.of(&["Accept", "Deny", "Pass"])});
        if !self.chance.once_in(3) {
            let list: Vec<Value> =
                (0..1 + self.chance.below(3)).map(|_| self.cluster_protocol(named)).collect();
            rule["protocols"] = json!(list);
        }
        rule[if egress { "to" } else { "from" }] = json!(peers);
        rule
    }

    fn cluster_policy(&mut self, number: usize) -> Change {
        let subject = match self.chance.below(2) {
            0 => json!({"namespaces": self.namespaces()}),
            _ => json!({"pods": {
                "namespaceSelector": self.namespaces(), "podSelector": self.pods(),
            }}),
        };
        let mut rules = |egress| -> Vec<Value> {
            (0..self.chance.below(4)).map(|_| self.cluster_rule(egress)).collect()
        };
        let (ingress, egress) = (rules(false), rules(true));
        let spec = json!({
            "tier": self.chance.of(&["Admin", "Baseline"]),
            "priority": self.chance.below(3),
            "subject": subject,
            "ingress": ingress,
            "egress": egress,
        });
        cluster(&cluster_name(number), spec).into()
    }
}

fn network_id(chance: &mut Chance, number: usize) -> PolicyId {
    let namespace = chance.of(&NAMESPACES).to_string();
    PolicyId::Network { namespace, name: format!("policy-{number}") }
}

fn crowd_id(number: usize) -> PolicyId {
    PolicyId::Network { namespace: "shop".to_owned(), name: format!("crowd-{number}") }
}

fn cluster_name(number: usize) -> String {
    format!("policy-{number}")
}

/// Reads a selector as a part of a policy.
fn namespaces_of(selector: &Value) -> Selector {
    let policy = cluster(
        "reader",
        json!({"tier": "Admin", "priority": 0, "subject": {"namespaces": selector}}),
    );
    match policy.subject.unwrap().namespaces {
        netwright_policy::policy::Scope::Matching(selector) => selector,
        netwright_policy::policy::Scope::Own(_) => unreachable!("it is of all namespaces"),
    }
}
