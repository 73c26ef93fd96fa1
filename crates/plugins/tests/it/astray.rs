//! DEL with paths that lead nowhere, while the container lives on under another path.

use serde_json::{Value, json};
use testkit::{Place, Snapshot};

use crate::support::matrix::{Family, addresses, attached, ipam};
use crate::support::{Node, Run};

/// Makes one path of each kind that leads nowhere, and names the kind.
fn nowhere(node: &Node) -> Vec<(&'static str, String)> {
    let dir = node.dir("astray");
    let at = |name: &str| dir.join(name).display().to_string();
    node.sh(&format!("ln -s {0} {0}; touch {1}", at("loop"), at("file")));
    vec![
        ("ENOENT", at("nothing")),
        ("ENOTDIR", at("file/netns")),
        ("ELOOP", at("loop")),
        ("ENAMETOOLONG", at(&"x".repeat(300))),
        ("no namespace", at("file")),
        ("a device", "/dev/null".to_owned()),
        ("a folder", at("")),
    ]
}

fn configs(node: &Node) -> Vec<(&'static str, Value)> {
    let ipam = ipam(node, Family::Dual);
    vec![
        ("bridge", json!({ "bridge": "br0", "isGateway": true, "ipam": ipam })),
        ("ptp", json!({ "ipam": ipam })),
        ("macvlan", json!({ "master": "p0", "ipam": ipam })),
        ("tap", json!({ "ipam": ipam })),
        ("loopback", json!({})),
        (
            "multi",
            json!({ "networks": [{ "config": { "type": "bridge", "bridge": "br1", "ipam": ipam } }] }),
        ),
    ]
}

/// DEL deletes the container's interface before it releases the addresses: no other container is
/// given an address that still answers.
#[test]
fn del_by_a_path_that_leads_nowhere_takes_everything() {
    testkit::require!("root");
    let node = Node::new("astray");
    node.sh("ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up");
    let paths = nowhere(&node);
    for (plugin, config) in configs(&node) {
        for (what, path) in &paths {
            let c1 = node.container("c1");
            node.run(plugin, "ADD").to(&c1).config(config.clone()).call().ok();
            for _ in 0..2 {
                node.run(plugin, "DEL").id("c1").netns(path).config(config.clone()).call().silent();
            }
            assert_eq!(addresses(&node), "", "{plugin}, {what}");
            let left = c1.sh("ip -o link show | grep -v ' lo:' | wc -l");
            assert!(left.trim() == "0", "{plugin}, {what}: it is still there");
        }
    }
}

/// Chained plugins, too, undo what they did, and forget the attachment.
#[test]
fn chained_plugins_end_by_a_path_that_leads_nowhere() {
    testkit::require!("root");
    let node = Node::new("astray-chained");
    let paths = nowhere(&node);
    let mut number = 0;
    for (plugin, config) in [
        ("tuning", json!({ "mtu": 1400 })),
        ("sbr", json!({})),
        ("firewall", json!({ "backend": "nftables" })),
        (
            "portmap",
            json!({ "runtimeConfig": { "portMappings": [
            { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" } ] } }),
        ),
        ("bandwidth", json!({ "ingressRate": 1000, "ingressBurst": 8000 })),
    ] {
        for (what, path) in &paths {
            number += 1;
            let c1 = node.container(&format!("c{number}"));
            let prev = attached(&node, &c1, Family::V4);
            let call =
                |verb: &str| node.run(plugin, verb).to(&c1).config(config.clone()).prev(&prev);
            call("ADD").call().ok();
            let answer = call("DEL").netns(path).call();
            assert!(answer.succeeded(), "{plugin}, {what}: {answer:?}");
            let owners = std::fs::read_dir(node.roots.run.join("owners"));
            assert_eq!(owners.map_or(0, Iterator::count), 0, "{plugin}, {what}");
        }
    }
}

/// The path now belongs to another container, and the removed container has no record.
#[test]
fn del_of_what_nothing_was_written_down_of_leaves_another_container_alone() {
    testkit::require!("root");
    let node = Node::new("astray-anothers");
    let data_dir = node.dir("tuning");
    let plugins = [
        ("loopback", json!({})),
        ("host-device", json!({ "device": "nic0" })),
        ("macvlan", json!({ "master": "p0" })),
        ("sbr", json!({})),
        ("tuning", json!({ "mtu": 1400, "dataDir": data_dir })),
        ("bandwidth", json!({ "ingressRate": 1000, "ingressBurst": 8000 })),
    ];
    node.sh("ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up");
    node.sh("ip link add nic0 type veth peer name pnic0");
    for (number, (plugin, config)) in plugins.into_iter().enumerate() {
        let c2 = node.container(&format!("c{}", number + 2));
        let is_chained = ["sbr", "tuning", "bandwidth"].contains(&plugin);
        let prev = is_chained.then(|| attached(&node, &c2, Family::V4));
        let call = |verb: &str| {
            let run = node.run(plugin, verb).to(&c2).config(config.clone());
            prev.iter().fold(run, Run::prev)
        };
        call("ADD").call().ok();
        // `loopback` keeps no record, and is never a container's only network.
        let other = (plugin == "loopback").then(|| json!({ "bridge": "br0" }));
        if let Some(config) = &other {
            node.run("bridge", "ADD").to(&c2).config(config.clone()).call().ok();
        }
        let before = Snapshot::of(&c2);
        // What the reference would have left of the removed container.
        std::fs::write(data_dir.join("c1_eth0.json"), r#"{"mtu": 1300}"#).unwrap();
        let answer = call("DEL").id("c1").call();
        assert!(answer.succeeded(), "{plugin}: {answer:?}");
        before.assert_same(&Snapshot::of(&c2));
        call("DEL").call();
    }
}
