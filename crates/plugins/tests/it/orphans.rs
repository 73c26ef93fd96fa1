//! GC among living attachments removes each kind of thing that dead ones left, and nothing else.

use serde_json::json;
use testkit::{Container, Place, Snapshot};

use crate::repair::Chain;
use crate::support::Node;

/// The attachment whose records are lost. It has no backup of the reference's kind: such a backup
/// names no network, so GC could not collect it without a record.
const UNKNOWN: u16 = 6;

/// A long chain; `number` tells attachments apart.
fn plugins(node: &Node, number: u16, policy: &str) -> Vec<(&'static str, serde_json::Value)> {
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"),
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
    });
    let ports = json!([{ "hostPort": 8080 + number, "containerPort": 80, "protocol": "tcp" }]);
    let rate = 8_000_000;
    let sysctl = json!({ "net.ipv4.conf.IFNAME.arp_filter": "1" });
    let mut tuning = json!({ "dataDir": node.dir("tuning"), "sysctl": sysctl });
    if number != UNKNOWN {
        tuning["mtu"] = json!(1400);
    }
    vec![
        ("bridge", json!({ "isGateway": true, "ipMasq": true, "macspoofchk": true, "ipam": ipam })),
        ("tuning", tuning),
        (
            "bandwidth",
            json!({ "ingressRate": rate, "ingressBurst": rate, "egressRate": rate, "egressBurst": rate }),
        ),
        ("portmap", json!({ "runtimeConfig": { "portMappings": ports } })),
        ("firewall", json!({ "ingressPolicy": policy })),
        ("sbr", json!({})),
    ]
}

/// How many things of each kind exist.
fn kinds(node: &Node, containers: &[&Container]) -> Vec<(&'static str, usize)> {
    let count = |script: &str| node.sh(script).trim().parse::<usize>().unwrap();
    let rules = node.sh("nft list ruleset");
    let elements = |set: &str| {
        let part = rules.split(&format!(" {set} {{")).nth(1).unwrap_or_default();
        part.split('}').next().unwrap_or_default().matches("comment").count()
    };
    let files = |dir: &str| count(&format!("find {} -type f | wc -l", node.dir(dir).display()));
    let inside: usize = containers
        .iter()
        .map(|c| c.sh("ip rule; ip -6 rule").lines().filter(|line| line.contains("from ")).count())
        .sum();
    let records = node.roots.run.join("owners");
    vec![
        ("address", count(&format!("ls {} | grep -c -e ^10 -e ^fd", node.dir("ipam/n").display()))),
        ("link", count("ip -br link show type veth | wc -l")),
        ("bridge port", count("ip -br link show master cni0 | wc -l")),
        ("ifb", count("ip -br link show type ifb | wc -l")),
        ("queueing discipline", count("tc qdisc | grep -c tbf")),
        ("masquerade", elements("masquerade4") + elements("masquerade6")),
        ("anti-spoofing", elements("spoof_allowed")),
        ("host port", elements("hostports4") + elements("hostports6")),
        ("isolation", elements("policy_isolated") + elements("policy_same")),
        ("policy rule", inside),
        ("file of tuning", files("tuning")),
        ("record", count(&format!("find {} -type f | wc -l", records.display()))),
    ]
}

/// Three are alive; two died, one of them with its namespace, and one whose records were lost too.
#[test]
fn gc_among_the_living_collects_each_kind_of_orphan() {
    testkit::require!("root");
    let node = Node::new("orphans");
    let names = ["c1", "c2", "c3", "d1", "d2", "d3"];
    let mut containers: Vec<Container> = names.iter().map(|name| node.container(name)).collect();
    let live: Vec<Vec<_>> = containers[..3]
        .iter()
        .zip(1..)
        .map(|(container, number)| {
            Chain::add(&node, container, plugins(&node, number, "same-bridge")).plugins
        })
        .collect();
    // What is in a namespace without a path goes with the namespace.
    let known: Vec<Container> = containers.drain(..4).collect();
    let known_of = || known.iter().collect::<Vec<&Container>>();
    let (before, picture) = (kinds(&node, &known_of()), Snapshot::take(&node.lab));
    for (container, number) in known[3..].iter().chain(&containers).zip(4..) {
        Chain::add(&node, container, plugins(&node, number, "isolated"));
    }
    let planted = kinds(&node, &known_of());
    drop(containers.remove(0));
    // Removes all records of the third.
    let owners = node.roots.run.join("owners");
    for entry in std::fs::read_dir(&owners).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(path.join("bridge")).or_else(|_| {
            let file = std::fs::read_dir(&path)?.next().unwrap()?;
            std::fs::read_to_string(file.path())
        });
        if text.unwrap().contains("\"d3\"") {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
    let valid = [("c1", "eth0"), ("c2", "eth0"), ("c3", "eth0")];
    for (plugin, keys) in &live[0] {
        node.run(plugin, "GC").config(keys.clone()).valid(&valid).call().silent();
    }
    let after = kinds(&node, &known_of());
    let mut collected = 0;
    for (((kind, had), (_, with)), (_, has)) in before.iter().zip(&planted).zip(&after) {
        assert!(had < with, "no {kind} was planted: {had}, {with}");
        assert_eq!(has, had, "{kind}: {with} were there");
        collected += with - had;
    }
    println!("MEASURED {collected} orphans of {} kinds collected among the living", before.len());
    picture.assert_same_but(&Snapshot::take(&node.lab), &["/run/netns/d2"]);
}
