//! `multi` and `netwright-multi` work on a container's networks in only one call at a time.

use node_api::multinet::Answer;
use serde_json::{Value, json};
use testkit::Place;

use crate::support::Node;
use crate::support::matrix::{Family, addresses, ipam};
use crate::support::multinet::Daemon;

/// A GC and a DEL come while an ADD runs its second plugin.
fn beside_an_add(plugin: &str, keys: impl Fn(&Node) -> Value) {
    let node = Node::new(&format!("{plugin}-alone"));
    let daemon = Daemon::start(&node, |_| Answer::Ok.into());
    let (here, go) = (node.dir("log").join("here"), node.dir("log").join("go"));
    node.sh(&format!("mkfifo {} {}", here.display(), go.display()));
    let script = format!(
        "cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; echo >{}; cat {} >/dev/null; \
         echo '{{\"cniVersion\":\"1.1.0\"}}'",
        here.display(),
        go.display()
    );
    node.stub("wait", &script);
    let c1 = node.container("c1");
    let keys = keys(&node);
    let call = |verb: &str| node.run(plugin, verb).to(&c1).config(keys.clone());
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| call("ADD").call().ok());
        std::fs::read(&here).unwrap();
        let gc = call("GC").of_network().valid(&[]).call();
        let before = c1.sh("ip -br link show eth0");
        let deleting = scope.spawn(|| call("DEL").call());
        std::fs::write(&go, "").unwrap();
        adding.join().unwrap();
        deleting.join().unwrap().silent();
        gc.fails(11, "held by");
        assert!(before.contains("eth0"), "{before}");
    });
    assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
    assert_eq!(addresses(&node), "");
    assert_eq!(std::fs::read_dir(node.roots.run.join("owners")).unwrap().count(), 0);
    drop(daemon);
}

fn bridge(node: &Node) -> Value {
    json!({ "type": "bridge", "bridge": "first", "ipam": ipam(node, Family::V4) })
}

#[test]
fn nothing_comes_between_the_networks_of_an_add() {
    testkit::require!("root");
    beside_an_add("multi", |node| {
        let list = |plugin: Value| json!({ "config": plugin });
        json!({ "networks": [list(bridge(node)), list(json!({ "type": "wait" }))] })
    });
}

#[test]
fn nothing_comes_between_the_plugins_of_a_pods_add() {
    testkit::require!("root");
    beside_an_add("netwright-multi", |node| {
        json!({ "delegates": [
            { "cniVersion": "1.1.0", "name": "n", "plugins": [bridge(node), { "type": "wait" }] },
        ] })
    });
}
