//! How configurations and `CNI_ARGS` are read.

use cni::code;
use serde_json::json;
use testkit::Place;

use super::lacks;
use crate::support::Node;

#[test]
fn case_insensitive_keys() {
    if lacks("case_insensitive_keys", &["host-local"]) {
        return;
    }
    let node = Node::new("case");
    let c1 = node.container("c1");
    let ipam =
        json!({ "TYPE": "host-local", "SUBNET": "192.0.2.0/24", "DataDir": node.dir("ipam") });
    let result = node.run("host-local", "ADD").to(&c1).config(json!({ "IPAM": ipam })).call().ok();
    assert_eq!(result["ips"][0]["address"], "192.0.2.2/24");
}

#[test]
fn null_keeps_default() {
    let node = Node::new("null");
    let c1 = node.container("c1");
    c1.sh("ip link add eth0 type veth peer name far");
    let prev = json!({ "cniVersion": "1.1.0" });
    let nulls =
        json!({ "dataDir": null, "mac": null, "args": null, "runtimeConfig": null, "mtu": 1400 });
    node.run("tuning", "ADD").to(&c1).config(nulls).prev(&prev).call().ok();
    assert!(node.lab.path("/run/cni/tuning/c1_eth0.json").exists());
    // A prevResult of null counts as absent.
    let answer = node.run("tuning", "ADD").to(&c1).config(json!({ "prevResult": null })).call();
    answer.fails(code::INVALID_CONFIG, "Required prevResult missing");
}

#[test]
fn type_mismatch() {
    let node = Node::new("types");
    let c1 = node.container("c1");
    let rows = [
        ("tuning", json!({ "promisc": "true" })),
        ("tuning", json!({ "mtu": "1400" })),
        ("tuning", json!({ "sysctl": { "net.core.somaxconn": 5 } })),
        ("bridge", json!({ "portIsolation": "true" })),
        ("bridge", json!({ "isGateway": 1 })),
    ];
    for (plugin, config) in rows {
        if lacks("type_mismatch", &[plugin]) {
            continue;
        }
        let key = config.as_object().unwrap().keys().next().unwrap().clone();
        let answer = node.run(plugin, "ADD").to(&c1).config(config).call();
        answer.fails(code::DECODE_FAILURE, &key);
    }
}

/// The plugins that read `CNI_ARGS`, with what they need to get there.
const READERS: &[&str] = &["bridge", "tuning"];

#[test]
fn cni_args() {
    let node = Node::new("args");
    let c1 = node.container("c1");
    c1.sh("ip link add eth0 type veth peer name far");
    let prev = json!({ "cniVersion": "1.1.0" });
    for plugin in READERS {
        if lacks("cni_args", &[plugin]) {
            continue;
        }
        let add = |args: &str| node.run(plugin, "ADD").to(&c1).prev(&prev).args(args).call();
        let refused = |args: &str, words: &str| add(args).fails(code::INVALID_ENVIRONMENT, words);
        // CNI_ARGS unknown key
        refused("FOO=1", "ARGS: unknown args [\"FOO=1\"]");
        refused("FOO=1;BAR=2", "ARGS: unknown args [\"FOO=1\" \"BAR=2\"]");
        refused("IgnoreUnknown=0;FOO=1", "ARGS: unknown args [\"FOO=1\"]");
        refused("IgnoreUnknown=maybe;FOO=1", "boolean unmarshal error: invalid input maybe");
        // CNI_ARGS case-sensitive
        refused("mac=02:00:00:00:00:01", "ARGS: unknown args [\"mac=02:00:00:00:00:01\"]");
        // CNI_ARGS malformed pair
        refused("MAC=a=b", "ARGS: invalid pair \"MAC=a=b\"");
        refused("IgnoreUnknown=1;", "ARGS: invalid pair \"\"");
    }
    // IgnoreUnknown
    for ignore in ["1", "true", "True"] {
        let args = format!("IgnoreUnknown={ignore};FOO=1;MAC=02:00:00:00:00:01");
        node.run("tuning", "ADD").to(&c1).prev(&prev).args(&args).call().ok();
        assert!(c1.sh("ip link show eth0").contains("02:00:00:00:00:01"));
        node.run("tuning", "DEL").to(&c1).args(&args).call().silent();
    }
    // Plugins without arguments of their own do not read `CNI_ARGS`.
    node.run("loopback", "ADD").to(&c1).args("FOO=1;=;").call().ok();
}
