//! A container may rename its link, and give the link's name and mark to another: DEL deletes the
//! link that ADD made.

use serde_json::{Value, json};
use testkit::{Container, Place};

use crate::support::fixed::{self, succeeds};
use crate::support::{Node, Run};

/// What a container does so that a DEL by name or mark misses its link, which is then called
/// `hidden` or `eth0`.
const TRICKS: [(&str, &str); 4] = [
    ("a double with the mark", "ip link set eth0 alias netwright:n/c1/eth0"),
    ("a double without a mark", "true"),
    ("a double of another attachment", "ip link set eth0 alias netwright:other/c1/eth0"),
    ("no double", "ip link del eth0"),
];

fn run<'n>(node: &'n Node, verb: &str, to: &Container, keys: &Value) -> Run<'n> {
    let run = node.run(keys["type"].as_str().unwrap(), verb).to(to);
    run.config(keys.clone()).config(fixed::ipam())
}

fn hide(c1: &Container, trick: &str) {
    c1.sh(&format!(
        "ip link set eth0 down && ip link set eth0 name hidden alias '' && ip link set hidden up && \
         ip link add eth0 type veth peer name far && {trick}"
    ));
}

fn nothing_keeps_its_link(name: &str, keys: &Value) {
    let node = Node::new(name);
    fixed::gives(&node, &json!([{ "address": "10.1.0.2/24" }]));
    node.sh("ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up");
    for (what, trick) in TRICKS {
        let c1 = node.container("c1");
        run(&node, "ADD", &c1, keys).call().ok();
        hide(&c1, trick);
        run(&node, "DEL", &c1, keys).call().silent();
        assert!(!succeeds(&c1, "ip link show hidden"), "{what}: the container kept its link");
        c1.delete();
    }
    // A link with the attachment's name and another's mark.
    let c1 = node.container("c1");
    run(&node, "ADD", &c1, keys).call().ok();
    c1.sh("ip link set eth0 alias netwright:other/c1/eth0");
    run(&node, "DEL", &c1, keys).call().silent();
    assert!(!succeeds(&c1, "ip link show eth0"), "another's mark: the container kept its link");
    // GC finds the link in the recorded namespace.
    run(&node, "ADD", &c1, keys).call().ok();
    hide(&c1, "true");
    let gc = node.run(keys["type"].as_str().unwrap(), "GC").config(keys.clone());
    gc.config(fixed::ipam()).valid(&[]).call().silent();
    assert!(!succeeds(&c1, "ip link show hidden"), "GC: the container kept its link");
    // The container's own link stays, and DEL reports it.
    c1.sh("ip link del eth0");
    run(&node, "ADD", &c1, keys).call().ok();
    hide(&c1, "true");
    let answer = run(&node, "DEL", &c1, keys).call();
    assert!(answer.stderr().contains("is another link than ADD made"), "{answer:?}");
    assert!(succeeds(&c1, "ip link show eth0"));
    // Without the record only the mark remains, under any name.
    c1.sh("ip link del eth0");
    run(&node, "ADD", &c1, keys).call().ok();
    c1.sh("ip link set eth0 down && ip link set eth0 name hidden");
    node.sh(&format!("rm -r {}/owners", node.roots.run.display()));
    run(&node, "DEL", &c1, keys).call().silent();
    assert!(!succeeds(&c1, "ip link show hidden"), "no record: the container kept its link");
}

#[test]
fn a_macvlan_goes_whatever_its_container_calls_it() {
    testkit::require!("root");
    nothing_keeps_its_link("double-macvlan", &json!({ "type": "macvlan", "master": "p0" }));
}

#[test]
fn a_tap_goes_whatever_its_container_calls_it() {
    testkit::require!("root");
    nothing_keeps_its_link("double-tap", &json!({ "type": "tap" }));
}
