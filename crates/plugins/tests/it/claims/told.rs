//! What CHECK and a repair report when a second container has the same address.

use serde_json::{Value, json};
use testkit::Container;

use super::{Node, add, bridge, cable, macvlan, node, one, repair, run};
use crate::support::Answer;

fn check(node: &Node, to: &Container, keys: &Value, result: &Value) -> Answer {
    run(node, "CHECK", to, keys).prev(result).call()
}

fn routed() -> Value {
    let mut keys = bridge("br0");
    keys["isGateway"] = json!(true);
    keys
}

/// Claims may be lost, and an attachment of another release has none.
#[test]
fn check_tells_of_a_second_container() {
    testkit::require!("root");
    let node = node("claims-second", &one("10.1.0.2/24", Some("10.1.0.1")));
    cable(&node, "p0", "192.0.2.1/24");
    let shared = |keys: &Value| {
        let mut keys = keys.clone();
        keys["allowAddressConflict"] = json!(true);
        keys
    };
    for keys in [bridge("br0"), routed(), macvlan("p0")] {
        let (c1, c2) = (node.container("c1"), node.container("c2"));
        let result = add(&node, &c1, &keys).ok();
        check(&node, &c1, &keys, &result).silent();
        node.sh(&format!("rm -r {}/claims", node.roots.run.display()));
        // A lost claim alone is not a drift.
        check(&node, &c1, &keys, &result).silent();
        let second = add(&node, &c2, &keys).ok();
        check(&node, &c2, &keys, &second).silent();
        check(&node, &c1, &keys, &result).fails(104, "is another's too: n/c2/eth0 has it");
        check(&node, &c1, &shared(&keys), &result).silent();
        // The second container is dead, and no longer a conflict.
        drop(c2);
        check(&node, &c1, &keys, &result).silent();
        run(&node, "DEL", &c1, &keys).call().silent();
        node.run(keys["type"].as_str().unwrap(), "DEL").id("c2").config(keys).call().silent();
        c1.delete();
    }
}

#[test]
fn check_tells_of_an_address_that_the_host_got_later() {
    testkit::require!("root");
    let node = node("claims-later", &one("10.1.0.2/24", Some("10.1.0.1")));
    cable(&node, "p0", "192.0.2.1/24");
    let ptp = json!({ "type": "ptp" });
    for (keys, link) in
        [(bridge("br0"), "br0"), (routed(), "p0"), (macvlan("p0"), "p0"), (ptp, "p0")]
    {
        let c1 = node.container("c1");
        let result = add(&node, &c1, &keys).ok();
        check(&node, &c1, &keys, &result).silent();
        node.sh(&format!("ip addr add 10.1.0.2/32 dev {link}"));
        let words = format!("address 10.1.0.2 is the host's own, on link {link:?}");
        check(&node, &c1, &keys, &result).fails(104, &words);
        repair(&node, &c1, &keys, &result).fails(104, &words);
        node.sh(&format!("ip addr del 10.1.0.2/32 dev {link}"));
        check(&node, &c1, &keys, &result).silent();
        run(&node, "DEL", &c1, &keys).call().silent();
        c1.delete();
    }
}
