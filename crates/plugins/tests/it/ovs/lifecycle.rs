//! DEL, GC, CHECK, and what other programs do meanwhile.

use serde_json::json;
use testkit::{Place, Snapshot};

use super::{add, keys, require_switch, switch};
use crate::support::Node;

#[test]
fn del_needs_nothing_but_the_key_and_leaves_nothing() {
    require_switch!();
    let node = Node::new("ovs-del");
    let ovs = switch(&node);
    let (database, before) = (ovs.content(), Snapshot::take(&node.lab));
    let c1 = node.container("c1");
    let keys = keys(&node, &ovs, json!({ "vlan": 3 }));
    let forms: [fn(&Node); 3] = [
        |_| {},
        // Loses our records.
        |node| {
            let _ = std::fs::remove_dir_all(node.lab.dir().join("run/owners"));
        },
        |_| {},
    ];
    for (number, form) in forms.iter().enumerate() {
        add(&node, &c1, &keys).call().ok();
        form(&node);
        let mut run = node.run("ovs", "DEL").to(&c1).config(keys.clone());
        if number == 2 {
            // Without the namespace and the database's address: the record has them.
            run = run.netns("").without("socket_file").without("bridge");
        }
        run.call().silent();
        assert_eq!(database, ovs.content(), "form {number}");
        node.run("ovs", "DEL").to(&c1).config(keys.clone()).call().silent();
    }
    drop(c1);
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn del_succeeds_when_the_bridge_is_gone() {
    require_switch!();
    let node = Node::new("ovs-no-bridge");
    let ovs = switch(&node);
    let c1 = node.container("c1");
    let keys = keys(&node, &ovs, json!({}));
    add(&node, &c1, &keys).call().ok();
    ovs.vsctl(&["del-br", "br0"]);
    node.run("ovs", "DEL").to(&c1).config(keys).call().silent();
    assert!(!c1.try_sh("ip link show eth0").status.success());
}

#[test]
fn foreign_ports_are_left_alone() {
    require_switch!();
    let node = Node::new("ovs-foreign");
    let ovs = switch(&node);
    node.sh("ip link add f0 type veth peer name f1");
    ovs.vsctl(&[
        "add-port",
        "br0",
        "f0",
        "tag=9",
        "--",
        "set",
        "port",
        "f0",
        "external_ids:owner=me",
    ]);
    let before = ovs.content();
    let c1 = node.container("c1");
    let keys = keys(&node, &ovs, json!({}));
    add(&node, &c1, &keys).call().ok();
    node.run("ovs", "DEL").to(&c1).config(keys.clone()).call().silent();
    node.run("ovs", "GC").config(keys).valid(&[]).of_network().call().silent();
    assert_eq!(before, ovs.content());
}

#[test]
fn ports_of_the_reference_are_removed_by_their_marks() {
    require_switch!();
    let node = Node::new("ovs-reference");
    let ovs = switch(&node);
    let before = ovs.content();
    let c1 = node.container("c1");
    let netns = c1.netns();
    node.sh("ip link add r0 type veth peer name eth0 netns c1");
    let ids = format!("external_ids:contNetns=\"{}\"", netns.display());
    ovs.vsctl(&[
        "add-port",
        "br0",
        "r0",
        "--",
        "set",
        "port",
        "r0",
        &ids,
        "external_ids:contIface=eth0",
        "external_ids:owner=ovs-cni.network.kubevirt.io",
    ]);
    let keys = keys(&node, &ovs, json!({}));
    node.run("ovs", "DEL").to(&c1).config(keys).call().silent();
    assert_eq!(before, ovs.content());
    assert!(!node.lab.try_sh("ip link show r0").status.success());
}

#[test]
fn vm_ports_of_an_earlier_boot_go_with_the_first_add_and_gc() {
    require_switch!("htb");
    let node = Node::new("ovs-boot");
    let ovs = switch(&node);
    let before = ovs.content();
    let keys = keys(&node, &ovs, json!({ "qos": { "egressRate": 1_000_000 } }));
    let c1 = node.container("c1");
    let result = add(&node, &c1, &keys).call().ok();
    let port = result["interfaces"][0]["name"].as_str().unwrap();
    ovs.vsctl(&["set", "port", port, "external_ids:netwright-boot=another"]);
    // As after a reboot: link and records are gone, the database is not.
    node.sh(&format!("ip link del {port}"));
    let _ = std::fs::remove_dir_all(node.lab.dir().join("run/owners"));
    let c2 = node.container("c2");
    add(&node, &c2, &keys).call().ok();
    assert_eq!(ovs.vsctl(&["list-ports", "br0"]).lines().count(), 1);
    node.run("ovs", "GC").config(keys).valid(&[]).of_network().call().silent();
    assert_eq!(before, ovs.content());
}

#[test]
fn check_names_what_has_drifted() {
    require_switch!();
    let node = Node::new("ovs-check");
    let ovs = switch(&node);
    let c1 = node.container("c1");
    let keys = keys(&node, &ovs, json!({ "vlan": 100, "protected": true }));
    let result = add(&node, &c1, &keys).call().ok();
    let port = result["interfaces"][0]["name"].as_str().unwrap().to_owned();
    let check = || node.run("ovs", "CHECK").to(&c1).config(keys.clone()).prev(&result).call();
    check().silent();
    let cases: [(&[&str], &[&str], &str); 5] = [
        (&["set", "port", &port, "tag=101"], &["set", "port", &port, "tag=100"], "tag 101"),
        (
            &["set", "port", &port, "protected=false"],
            &["set", "port", &port, "protected=true"],
            "is not protected any more",
        ),
        (
            &["set", "interface", &port, "ingress_policing_rate=1000"],
            &["set", "interface", &port, "ingress_policing_rate=0"],
            "ingress_policing_rate 1000, the configuration asks for 0",
        ),
        (&["set", "port", &port, "trunks=5"], &["clear", "port", &port, "trunks"], "trunks [5]"),
        (
            &["set", "port", &port, "external_ids:netwright-owner=x"],
            &["--if-exists", "del-port", "br0", &port],
            "belongs to attachment x",
        ),
    ];
    for (damage, mend, said) in cases {
        ovs.vsctl(damage);
        let error = check().error();
        assert_eq!(error.code, 104, "{error:?}");
        assert!(error.msg.contains(said), "{error:?}");
        ovs.vsctl(mend);
    }
    let error = check().error();
    assert!(error.msg.contains("is gone from bridge"), "{error:?}");
    // Repair restores the port, and CHECK succeeds.
    let repaired = node
        .run("ovs", "CHECK")
        .to(&c1)
        .config(keys.clone())
        .config(json!({ "netwright/repair": true }))
        .prev(&result)
        .call();
    assert!(repaired.succeeded(), "{repaired:?}");
    check().silent();
    assert_eq!(ovs.vsctl(&["get", "port", &port, "tag"]), "100");
    assert_eq!(ovs.vsctl(&["get", "port", &port, "protected"]), "true");
}

#[test]
fn a_bridge_of_our_own_comes_and_goes() {
    require_switch!();
    let node = Node::new("ovs-create");
    let ovs = testkit::real::Ovs::start(&node.lab);
    let before = ovs.content();
    let create = json!({
        "bridge": "br7", "createBridge": true, "datapathType": "netdev", "failMode": "standalone",
        "controllers": ["ptcp:0:127.0.0.1"],
    });
    let keys = keys(&node, &ovs, create);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    add(&node, &c1, &keys).call().ok();
    let second = add(&node, &c2, &keys).call().ok();
    assert_eq!(ovs.vsctl(&["get", "bridge", "br7", "datapath_type"]), "netdev");
    assert_eq!(ovs.vsctl(&["get-fail-mode", "br7"]), "standalone");
    assert_eq!(ovs.vsctl(&["get-controller", "br7"]), "ptcp:0:127.0.0.1");
    super::assert_reaches(&c1, &c2, &super::address(&second));
    node.run("ovs", "DEL").to(&c1).config(keys.clone()).call().silent();
    assert_eq!(ovs.vsctl(&["list-br"]), "br7");
    node.run("ovs", "DEL").to(&c2).config(keys).call().silent();
    assert_eq!(ovs.vsctl(&["list-br"]), "");
    assert_eq!(before, ovs.content());
}
