//! The database server and the switch stop and start.

use serde_json::json;

use super::{add, address, assert_reaches, keys, require_switch, switch};
use crate::support::Node;

#[test]
fn a_schema_that_is_too_old_is_named() {
    require_switch!();
    let node = Node::new("ovs-schema");
    let mut ovs = testkit::real::Ovs::database_only(&node.lab);
    ovs.replace_schema(|schema| {
        schema["tables"]["Port"]["columns"].as_object_mut().unwrap().remove("protected");
    });
    ovs.vsctl(&["--no-wait", "add-br", "br0"]);
    let c1 = node.container("c1");
    let keys = keys(&node, &ovs, json!({}));
    let error = node.run("ovs", "ADD").to(&c1).config(keys.clone()).call().error();
    assert_eq!(error.code, 112);
    assert!(error.msg.contains("has no column \"protected\" in table \"Port\""), "{error:?}");
    let status = node.run("ovs", "STATUS").config(keys).of_network();
    let error = status.call().error();
    assert_eq!(error.code, 50);
    assert!(error.msg.contains("protected"), "{error:?}");
}

#[test]
fn ports_come_back_after_the_database_was_wiped() {
    require_switch!();
    let node = Node::new("ovs-wiped");
    let mut ovs = switch(&node);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let create =
        json!({ "bridge": "br1", "createBridge": true, "datapathType": "netdev", "vlan": 9 });
    let keys = keys(&node, &ovs, create);
    let first = add(&node, &c1, &keys).call().ok();
    let second = add(&node, &c2, &keys).call().ok();
    assert_reaches(&c1, &c2, &address(&second));
    ovs.kill_server();
    ovs.wipe();
    ovs.start_server();
    for (container, result) in [(&c1, &first), (&c2, &second)] {
        let repair = json!({ "netwright/repair": true });
        let run = node.run("ovs", "CHECK").to(container).config(keys.clone()).config(repair);
        let repaired = run.prev(result).call();
        assert!(repaired.succeeded(), "{repaired:?}");
    }
    assert_reaches(&c1, &c2, &address(&second));
}
