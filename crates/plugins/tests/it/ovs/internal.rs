//! Internal ports, which the switch makes.

use serde_json::json;
use testkit::{Place, Snapshot};

use super::{add, address, assert_reaches, keys, require_switch, switch};
use crate::support::Node;

#[test]
fn an_internal_port_becomes_the_containers_interface() {
    require_switch!();
    let node = Node::new("ovs-internal");
    let ovs = switch(&node);
    let (database, before) = (ovs.content(), Snapshot::take(&node.lab));
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let internal = json!({ "port": "internal", "vlan": 4, "mtu": 1300 });
    let keys = keys(&node, &ovs, internal);
    let first = add(&node, &c1, &keys).call().ok();
    let interfaces = first["interfaces"].as_array().unwrap();
    assert_eq!((interfaces.len(), &interfaces[0]["name"]), (1, &json!("eth0")), "{first}");
    assert_eq!(first["ips"][0]["interface"], 0);
    assert!(c1.sh("ip link show eth0").contains("mtu 1300 "));
    let veth = json!({ "vlan": 4 });
    let second = add(&node, &c2, &super::keys(&node, &ovs, veth.clone())).call().ok();
    assert_reaches(&c1, &c2, &address(&second));
    assert_reaches(&c2, &c1, &address(&first));
    node.run("ovs", "CHECK").to(&c1).config(keys.clone()).prev(&first).call().silent();
    node.run("ovs", "DEL").to(&c1).config(keys.clone()).call().silent();
    assert!(!c1.try_sh("ip link show eth0").status.success());
    node.run("ovs", "DEL").to(&c1).config(keys).call().silent();
    node.run("ovs", "DEL").to(&c2).config(super::keys(&node, &ovs, veth)).call().silent();
    assert_eq!(database, ovs.content());
    drop((c1, c2));
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn an_internal_port_is_put_back_when_the_switch_was_started_anew() {
    require_switch!();
    let node = Node::new("ovs-internal-restart");
    let mut ovs = switch(&node);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let keys = keys(&node, &ovs, json!({ "port": "internal" }));
    let first = add(&node, &c1, &keys).call().ok();
    let second = add(&node, &c2, &keys).call().ok();
    ovs.kill_switch();
    ovs.start_switch();
    // Waits until the switch has done what the database says.
    ovs.vsctl(&["set", "bridge", "br0", "external_ids:restarted=yes"]);
    for (container, result) in [(&c1, &first), (&c2, &second)] {
        let repair = json!({ "netwright/repair": true });
        let run = node.run("ovs", "CHECK").to(container).config(keys.clone()).config(repair);
        let repaired = run.prev(result).call();
        assert!(repaired.succeeded(), "{repaired:?}");
    }
    assert_reaches(&c1, &c2, &address(&second));
}
