//! The robustness rows: failures of real nodes.

use std::collections::BTreeSet;
use std::fs;
use std::thread;

use cni::Version;
use serde_json::{Value, json};
use testkit::Snapshot;

use super::{lacks, supporting};
use crate::support::{Node, Picture};

/// A configuration with which every plugin has something to do.
fn busy(node: &Node) -> Value {
    json!({
        "bridge": "br0",
        "isGateway": true,
        "ipMasq": true,
        "mtu": 1400,
        "sysctl": { "net.core.somaxconn": "100" },
        "dataDir": node.dir("tuning"),
        "ipam": { "type": "host-local", "dataDir": node.dir("ipam"), "subnet": "192.0.2.0/24" },
        "runtimeConfig": { "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] },
    })
}

#[test]
fn del_is_repeatable() {
    let node = Node::new("repeat");
    let c1 = node.container("c1");
    let before = Picture::of(&c1);
    for plugin in supporting(Version::V1_1_0) {
        for _ in 0..2 {
            node.run(plugin.name(), "DEL").to(&c1).config(busy(&node)).call().silent();
        }
    }
    before.assert_same(&Picture::of(&c1));
}

#[test]
fn del_with_non_netns_file_as_cni_netns() {
    let node = Node::new("no-netns-file");
    let file = node.dir("files").join("netns");
    fs::write(&file, "").unwrap();
    for plugin in supporting(Version::V1_1_0) {
        for netns in
            [file.clone(), "/dev/null".into(), "/run/netns/gone".into(), "/proc/0/ns/net".into()]
        {
            node.run(plugin.name(), "DEL").netns(netns).config(busy(&node)).call().silent();
        }
    }
    if lacks("del_with_non_netns_file_as_cni_netns", &["bridge", "host-local"]) {
        return;
    }
    let c1 = node.container("c1");
    node.run("bridge", "ADD").to(&c1).config(busy(&node)).call().ok();
    let address = node.dir("ipam").join("n/192.0.2.2");
    assert!(address.exists());
    c1.delete();
    node.run("bridge", "DEL").id("c1").netns(file).config(busy(&node)).call().silent();
    assert!(!address.exists());
}

#[test]
fn no_crash_on_nulls() {
    let node = Node::new("nulls");
    let c1 = node.container("c1");
    let keys = [
        "ipam",
        "dns",
        "args",
        "runtimeConfig",
        "capabilities",
        "prevResult",
        "vlanTrunk",
        "sysctl",
        "mac",
        "mtu",
        "promisc",
        "allmulti",
        "txQLen",
        "dataDir",
        "conditionsV4",
        "backend",
        "ranges",
        "routes",
    ];
    let all_null: Value = keys
        .iter()
        .map(|key| ((*key).to_owned(), Value::Null))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let inner_nulls = [
        json!({ "vlanTrunk": [null] }),
        json!({ "ipam": { "type": null, "ranges": [null], "routes": [null], "addresses": [null] } }),
        json!({ "ipam": { "type": "host-local", "ranges": [[null]] } }),
        json!({ "args": { "cni": null }, "runtimeConfig": { "portMappings": [null], "ips": [null], "mac": null } }),
        json!({ "args": { "cni": { "sysctl": null, "mac": null, "ips": [null] } } }),
        json!({ "sysctl": { "net.core.somaxconn": null } }),
        json!({ "dns": { "nameservers": [null] } }),
    ];
    for plugin in supporting(Version::V1_1_0) {
        for verb in ["ADD", "CHECK", "DEL", "GC", "STATUS"] {
            for nulls in inner_nulls.iter().chain([&all_null]) {
                let answer = node.run(plugin.name(), verb).to(&c1).config(nulls.clone()).call();
                if !answer.succeeded() {
                    let error = answer.clone().error();
                    assert_ne!(error.code, cni::code::INTERNAL, "{nulls}: {answer:?}");
                }
            }
        }
    }
}

#[test]
fn parallel_adds() {
    if lacks("parallel_adds", &["bridge", "host-local"]) {
        return;
    }
    const CONTAINERS: usize = 50;
    const AT_ONCE: usize = 10;
    let node = Node::new("parallel");
    let containers: Vec<_> = (0..CONTAINERS).map(|n| node.container(&format!("c{n}"))).collect();
    let results: Vec<Value> = thread::scope(|scope| {
        let chunks: Vec<_> = containers
            .chunks(CONTAINERS.div_ceil(AT_ONCE))
            .map(|chunk| {
                let node = &node;
                scope.spawn(move || -> Vec<Value> {
                    let add = |c| node.run("bridge", "ADD").to(c).config(busy(node)).call().ok();
                    chunk.iter().map(add).collect()
                })
            })
            .collect();
        chunks.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let addresses: BTreeSet<String> =
        results.iter().map(|result| result["ips"][0]["address"].to_string()).collect();
    assert_eq!(addresses.len(), CONTAINERS);
    let ports = node.sh("ls /sys/class/net/br0/brif");
    assert_eq!(ports.split_whitespace().count(), CONTAINERS);
    for container in &containers {
        node.run("bridge", "CHECK")
            .to(container)
            .config(busy(&node))
            .prev(&prev_of(&results, container.name()))
            .call()
            .silent();
    }
}

fn prev_of(results: &[Value], container: &str) -> Value {
    let sandbox = format!("/run/netns/{container}");
    let is_own = |result: &&Value| {
        result["interfaces"]
            .as_array()
            .unwrap()
            .iter()
            .any(|link| link["sandbox"] == sandbox.as_str())
    };
    results.iter().find(is_own).unwrap().clone()
}

#[test]
fn gc_all_plugins() {
    if lacks("gc_all_plugins", &["bridge", "host-local", "tuning"]) {
        return;
    }
    let node = Node::new("gc-all");
    node.sh("nft list ruleset >/dev/null");
    let attach = |name: &str| {
        let container = node.container(name);
        let mut result = node.run("bridge", "ADD").to(&container).config(busy(&node)).call().ok();
        for plugin in ["portmap", "firewall", "tuning"] {
            if plugins::find(plugin).is_some() {
                let port = if name == "stays" { 8081 } else { 8080 };
                let mapping = json!({ "portMappings": [{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }] });
                let run = node.run(plugin, "ADD").to(&container).config(busy(&node)).prev(&result);
                result = run.config(json!({ "runtimeConfig": mapping })).call().ok();
            }
        }
        container
    };
    // The first attachment makes what is shared, so that the second changes only what belongs to
    // it.
    let stays = attach("stays");
    let before = Snapshot::take(&node.lab);
    let files = |node: &Node| {
        node.sh(&format!(
            "cd {} && find run lib ipam tuning -type f 2>/dev/null | sort || true",
            node.lab.dir().display()
        ))
    };
    let files_before = files(&node);
    let lost = attach("lost");
    drop(lost);
    for plugin in supporting(Version::V1_1_0) {
        let run = node.run(plugin.name(), "GC").config(busy(&node)).valid(&[("stays", "eth0")]);
        run.call().silent();
    }
    before.assert_same(&Snapshot::take(&node.lab));
    let left = files(&node);
    let new: Vec<_> = left
        .lines()
        .filter(|line| !files_before.contains(line) && !line.ends_with(".lock"))
        .collect();
    assert!(new.is_empty(), "{new:?}");
    drop(stays);
    for plugin in supporting(Version::V1_1_0) {
        node.run(plugin.name(), "GC").config(busy(&node)).valid(&[]).call().silent();
    }
    let owners =
        node.sh(&format!("find {} -type f | wc -l", node.roots.run.join("owners").display()));
    assert_eq!(owners.trim(), "0");
}
