//! The database or the switch is away during ADD, CHECK or DEL: what the plugin reports, what it
//! leaves, and which later call clears it up.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::real::Ovs;
use testkit::{Container, Place, Snapshot};

use super::{add, keys, require_switch, switch};
use crate::support::{Node, Run};

/// How long a call may take that gets no answer.
const SHORT: Duration = Duration::from_secs(1);

/// A call that concerns no container.
fn of_network<'n>(node: &'n Node, verb: &str, keys: &Value) -> Run<'n> {
    node.run("ovs", verb).config(keys.clone()).env(|env| {
        env.container_id.clear();
        env.ifname.clear();
    })
}

fn del<'n>(node: &'n Node, container: &Container, keys: &Value) -> Run<'n> {
    node.run("ovs", "DEL").to(container).config(keys.clone())
}

/// The number of reserved addresses.
fn reserved(node: &Node) -> usize {
    let folder = std::fs::read_dir(node.dir("ipam").join("n")).unwrap();
    folder
        .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("10."))
        .count()
}

fn sweep(node: &Node, ovs: &Ovs<'_>) -> Vec<String> {
    let remote = ovs.remote().parse().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    node.lab.enter(|| plugins::interface::ovs::sweep(&remote, &node.roots, until)).unwrap()
}

/// "Gone": no server listens. "Silent": a server listens and never answers.
#[test]
fn add_check_and_status_say_so_and_change_nothing() {
    require_switch!();
    let node = Node::new("ovs-away");
    let mut ovs = switch(&node);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let keys = keys(&node, &ovs, json!({}));
    let result = add(&node, &c1, &keys).call().ok();
    let content = ovs.content();
    let before = Snapshot::take(&node.lab);
    for silent in [false, true] {
        let said = if silent { "did not answer" } else { "connect to unix:" };
        if silent {
            ovs.freeze_server(true);
        } else {
            ovs.kill_server();
        }
        let error = add(&node, &c2, &keys).deadline(SHORT).call().error();
        assert_eq!(error.code, 112, "{error:?}");
        assert!(error.msg.contains(said), "{error:?}");
        let check = node.run("ovs", "CHECK").to(&c1).config(keys.clone()).prev(&result);
        let error = check.deadline(SHORT).call().error();
        assert_eq!(error.code, 112, "{error:?}");
        let error = of_network(&node, "STATUS", &keys).deadline(SHORT).call().error();
        assert_eq!(error.code, 50, "{error:?}");
        assert!(error.msg.contains(said), "{error:?}");
        if silent {
            ovs.freeze_server(false);
        } else {
            ovs.start_server();
        }
    }
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(content, ovs.content());
    assert_eq!(reserved(&node), 1);
    // The switch takes a port, so it is connected again.
    add(&node, &c2, &keys).call().ok();
    node.run("ovs", "CHECK").to(&c1).config(keys.clone()).prev(&result).call().silent();
}

/// DEL cuts the container off, reports that the port's row remains, and keeps the address; the next
/// DEL does the rest.
#[test]
fn del_cuts_off_and_is_to_be_asked_again() {
    require_switch!();
    let node = Node::new("ovs-away-del");
    let mut ovs = switch(&node);
    let before = ovs.content();
    let c1 = node.container("c1");
    let keys = keys(&node, &ovs, json!({ "qos": { "egressRate": 1_000_000 } }));
    for silent in [false, true] {
        let result = add(&node, &c1, &keys).call().ok();
        let port = result["interfaces"][0]["name"].as_str().unwrap();
        if silent {
            ovs.freeze_server(true);
        } else {
            ovs.kill_server();
        }
        for _ in 0..2 {
            let error = del(&node, &c1, &keys).deadline(SHORT).call().error();
            assert_eq!(error.code, 112, "{error:?}");
            assert!(!c1.try_sh("ip link show eth0").status.success());
            assert!(!node.lab.try_sh(&format!("ip link show {port}")).status.success());
            assert_eq!(reserved(&node), 1);
        }
        if silent {
            ovs.freeze_server(false);
        } else {
            ovs.start_server();
        }
        assert_eq!(ovs.vsctl(&["--no-wait", "list-ports", "br0"]), port);
        del(&node, &c1, &keys).call().silent();
        assert_eq!(reserved(&node), 0);
        assert_eq!(before, ovs.content());
    }
}

/// No second DEL comes: the service's sweep or the next GC deletes the row.
#[test]
fn what_such_a_del_left_is_cleared_up_by_whoever_comes_next() {
    require_switch!();
    let node = Node::new("ovs-away-left");
    let mut ovs = switch(&node);
    let before = ovs.content();
    let c1 = node.container("c1");
    let keys = keys(&node, &ovs, json!({ "qos": { "egressRate": 1_000_000 } }));
    let leave = |ovs: &mut Ovs<'_>| {
        add(&node, &c1, &keys).call().ok();
        ovs.kill_server();
        assert_eq!(del(&node, &c1, &keys).call().error().code, 112);
        // GC finds the attachment by its record, and cannot do more either.
        let error = of_network(&node, "GC", &keys).valid(&[]).call().error();
        assert!(error.to_string().contains("connect to unix:"), "{error:?}");
        assert_eq!(reserved(&node), 1);
        ovs.start_server();
        assert_eq!(ovs.vsctl(&["--no-wait", "list-ports", "br0"]).lines().count(), 1);
    };
    leave(&mut ovs);
    of_network(&node, "GC", &keys).valid(&[]).call().silent();
    assert_eq!((reserved(&node), &before), (0, &ovs.content()));

    leave(&mut ovs);
    let swept = sweep(&node, &ovs);
    assert_eq!(swept.len(), 1, "{swept:?}");
    assert!(swept[0].ends_with("of n/c1/eth0 (its link is gone)"), "{swept:?}");
    assert_eq!(before, ovs.content());
    assert_eq!(sweep(&node, &ovs), Vec::<String>::new());
    // The runtime releases the address by DEL.
    del(&node, &c1, &keys).call().silent();
    assert_eq!(reserved(&node), 0);

    leave(&mut ovs);
    // The same container again: DEL must come first, as with every plugin that uses host-local.
    let error = add(&node, &c1, &keys).call().error();
    assert!(error.details.contains("DEL of the attachment releases its address"), "{error:?}");
    del(&node, &c1, &keys).call().silent();
    assert_eq!((reserved(&node), &before), (0, &ovs.content()));
}

/// DEL writes to a database whose switch is dead; a new switch carries it out when it starts.
#[test]
fn del_needs_no_switch() {
    require_switch!();
    let node = Node::new("ovs-away-switch");
    let mut ovs = switch(&node);
    let before = ovs.content();
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let pair = keys(&node, &ovs, json!({}));
    let interior = keys(&node, &ovs, json!({ "port": "internal" }));
    add(&node, &c1, &pair).call().ok();
    add(&node, &c2, &interior).call().ok();
    ovs.kill_switch();
    let error = of_network(&node, "STATUS", &pair).call().error();
    assert_eq!((error.code, error.msg.as_str()), (50, "ovs-vswitchd is not at work"));
    del(&node, &c1, &pair).call().silent();
    del(&node, &c2, &interior).call().silent();
    for container in [&c1, &c2] {
        assert!(!container.try_sh("ip link show eth0").status.success());
    }
    assert_eq!(reserved(&node), 0);
    ovs.start_switch();
    ovs.vsctl(&["set", "bridge", "br0", "external_ids:started=yes"]);
    ovs.vsctl(&["clear", "bridge", "br0", "external_ids"]);
    assert_eq!(before, ovs.content());
}

/// A call asks for a lock that the switch holds, to learn whether it runs: simultaneous calls must
/// not take each other for the switch.
#[test]
fn calls_do_not_take_each_other_for_the_switch() {
    testkit::require!("root", "program:ovsdb-server");
    let node = Node::new("ovs-away-asked");
    let ovs = Ovs::database_only(&node.lab);
    ovs.vsctl(&["--no-wait", "add-br", "br0"]);
    let keys = keys(&node, &ovs, json!({}));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let error = of_network(&node, "STATUS", &keys).call().error();
                    assert_eq!(
                        (error.code, error.msg.as_str()),
                        (50, "ovs-vswitchd is not at work")
                    );
                }
            });
        }
    });
}
