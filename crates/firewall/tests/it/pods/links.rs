//! Pods on further networks: their addresses count only at one interface of the node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use firewall::pods;
use netwright_firewall as firewall;
use policy::interpret::{Packet, passes_between};
use policy::multi_policy::{self, MultiPolicy};
use policy::networks::Attachment;
use policy::program::{Link, OPEN, unknown};
use policy::{
    Direction, IpFamily, Networks, PerDirection, Program, Protocol, Step, Traffic, World,
};
use serde_json::{Value, json};
use testkit::Place as _;

use super::clusters::support::{namespace, pod};
use super::clusters::{NODE, PODS, of_pod};
use super::lab::{PodLab, Probe, Site, place_of, routed};

const NETWORK: &str = "shop/storage";

const TRAFFIC: [Traffic; 4] = [
    Traffic { protocol: Protocol::Tcp, port: Some(80) },
    Traffic { protocol: Protocol::Udp, port: Some(53) },
    Traffic { protocol: Protocol::Other(1), port: None },
    Traffic { protocol: Protocol::NeighbourDiscovery, port: None },
];

/// The host's end of a pod's link in the lab.
fn interface(number: u8) -> String {
    format!("v{number}")
}

fn link(number: u8, address: IpAddr) -> Link {
    Link { interface: interface(number), address }
}

fn own() -> World {
    World::of(None, [namespace("shop", json!({})).into()])
}

/// The first pods of the lab, on one further network, with the label `app`.
fn on_network(count: u8) -> Networks {
    let (own, mut networks) = (own(), Networks::new(NODE));
    for number in 1..=count {
        let name = format!("shop/pod-{number}");
        let made = pod(&name, NODE, json!({"app": format!("pod-{number}")}), &[]);
        networks.pod(&made.uid.clone(), Some((made.clone(), Vec::new())), &own);
        let attachment = Attachment {
            network: Some(NETWORK.to_owned()),
            pod: Some(made.uid),
            interface: interface(number),
            inside: false,
            addresses: of_pod(number).to_vec(),
        };
        networks.attachment(&name, Some(attachment), &own);
    }
    networks
}

fn for_network(spec: Value) -> MultiPolicy {
    let object = json!({
        "metadata": {
            "namespace": "shop", "name": "storage",
            "annotations": {"k8s.v1.cni.cncf.io/policy-for": "storage"},
        },
        "spec": spec,
    });
    multi_policy::read(&object).unwrap()
}

fn whole(networks: &Networks) -> Program {
    let mut program = Program::empty();
    networks.add_to(&mut program);
    program
}

/// Packets between all pods of the lab, and from and to a place outside.
fn probes() -> Vec<Probe> {
    let outside = ["198.51.100.1", "2001:db8:ff::1"].map(|text| text.parse::<IpAddr>().unwrap());
    let ends: Vec<IpAddr> = (1..=PODS).flat_map(of_pod).chain(outside).collect();
    let mut probes = Vec::new();
    for (source, destination) in
        ends.iter().flat_map(|one| ends.iter().map(move |two| (*one, *two)))
    {
        if IpFamily::of(source) != IpFamily::of(destination)
            || place_of(source) == place_of(destination)
        {
            continue;
        }
        for traffic in TRAFFIC {
            let exists = match traffic.protocol {
                Protocol::Other(1) => source.is_ipv4(),
                Protocol::NeighbourDiscovery => source.is_ipv6(),
                _ => true,
            };
            probes.extend(exists.then_some(Probe { source, destination, traffic }));
        }
    }
    probes
}

fn at(address: IpAddr) -> String {
    match place_of(address) {
        Site::Pod(number) => interface(number),
        Site::Outside | Site::Node => "up0".to_owned(),
    }
}

/// Sends packets, and compares their fates with a program. Returns how many were denied.
#[track_caller]
fn compare(lab: &mut PodLab, program: &Program) -> usize {
    let difference = lab.table.observe(program).unwrap();
    assert!(difference.is_empty(), "{difference}");
    lab.forget_flows();
    let probes = probes();
    let fates = lab.try_all(&probes);
    for (probe, fate) in probes.iter().zip(&fates) {
        let Probe { source, destination, traffic } = *probe;
        let packet = Packet { source, destination, traffic: routed(traffic) };
        let passes = passes_between(program, &at(source), &at(destination), packet);
        assert_eq!(fate.arrived, passes, "{probe:?}: {fate:?}");
    }
    fates.iter().filter(|fate| fate.denied.is_some()).count()
}

#[test]
fn packets_are_judged_by_interface_and_address() {
    testkit::require!("root");
    let mut lab = PodLab::new("podslinks");
    let (own, mut networks) = (own(), on_network(4));
    lab.table.put(&whole(&networks)).unwrap();
    assert_eq!(compare(&mut lab, &whole(&networks)), 0);
    let app = |number: u8| json!({"matchLabels": {"app": format!("pod-{number}")}});
    let first = for_network(json!({
        "podSelector": app(2),
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": app(1)}], "ports": [{"port": 80}]}],
        "egress": [{"to": [{"podSelector": app(3)}]}],
    }));
    let id = first.policy.id.clone();
    let other =
        for_network(json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}));
    // Changes are applied in steps. After each, the kernel's table equals one that is made anew.
    for policy in [Some(first.clone()), Some(other), None, Some(first)] {
        let is_there = policy.is_some();
        networks.policy(&id, policy, &own);
        let steps = networks.settle();
        lab.table.apply(&steps).unwrap();
        assert_eq!(compare(&mut lab, &whole(&networks)) > 0, is_there);
    }
    // A pod on the pods' own network has the same address as pod 2, and no pod may reach it. At the
    // interface of pod 2 that does not count.
    let mut program = whole(&networks);
    for address in of_pod(2).into_iter().chain(of_pod(6)) {
        for direction in Direction::ALL {
            program.verdicts.insert((direction, address), unknown(direction));
        }
    }
    lab.table.bring(&program).unwrap();
    assert!(compare(&mut lab, &program) > 0);
    // Changes by other programs are named and restored.
    let table = "inet netwright-policy";
    lab.lab.sh(&format!("nft flush map {table} net-out4"));
    lab.lab.sh(&format!("nft add element {table} has-net-in4 '{{ \"v1\" . 10.244.1.1 }}'"));
    let found = lab.table.bring(&program).unwrap();
    let lines = found.lines().join("\n");
    assert!(lines.contains("missing from map net-out4"), "{lines}");
    assert!(lines.contains("foreign in set has-net-in4"), "{lines}");
    assert!(compare(&mut lab, &program) > 0);
}

#[test]
fn an_address_of_a_further_network_is_closed_and_forgotten() {
    testkit::require!("root");
    let mut lab = PodLab::new("podslinkclose");
    let two = of_pod(2).map(|address| link(2, address));
    pods::forget_links(&mut lab.table, &two).unwrap();
    assert!(!lab.table.exists().unwrap());
    assert_eq!(pods::links(&mut lab.table).unwrap(), BTreeSet::new());
    let closed = PerDirection::of(|direction| Some(unknown(direction)));
    let mut program = Program::empty();
    for link in &two {
        for direction in Direction::ALL {
            program.links.insert((direction, link.clone()), unknown(direction));
        }
    }
    for _ in 0..2 {
        pods::close_links(&mut lab.table, &two).unwrap();
        assert_eq!(pods::link_verdicts(&mut lab.table, &two[1]).unwrap(), closed);
        assert_eq!(
            pods::verdicts(&mut lab.table, two[1].address).unwrap(),
            PerDirection::default()
        );
        assert_eq!(pods::links(&mut lab.table).unwrap(), BTreeSet::from(two.clone()));
        assert_eq!(pods::addresses(&mut lab.table).unwrap(), BTreeSet::new());
    }
    assert!(compare(&mut lab, &program) > 0);
    // The service knows the address, and leads it to the right chain.
    let (own, mut networks) = (own(), Networks::new(NODE));
    two.iter().for_each(|link| networks.closed(link));
    let made = pod("shop/pod-2", NODE, json!({}), &[]);
    networks.pod(&made.uid.clone(), Some((made.clone(), Vec::new())), &own);
    let attachment = Attachment {
        network: Some(NETWORK.to_owned()),
        pod: Some(made.uid),
        interface: interface(2),
        inside: false,
        addresses: of_pod(2).to_vec(),
    };
    let steps = networks.attachment("two", Some(attachment), &own);
    let opens = |step: &Step| matches!(step, Step::Link { chain: Some(to), .. } if to == OPEN);
    assert!(steps.len() == 4 && steps.iter().all(opens), "{steps:?}");
    lab.table.apply(&steps).unwrap();
    assert_eq!(compare(&mut lab, &whole(&networks)), 0);
    for _ in 0..2 {
        pods::forget_links(&mut lab.table, &two).unwrap();
        assert_eq!(pods::links(&mut lab.table).unwrap(), BTreeSet::new());
    }
    assert!(lab.table.observe(&Program::empty()).unwrap().is_empty());
}
