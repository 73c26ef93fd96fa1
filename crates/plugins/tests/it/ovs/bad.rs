//! Bad input and a bad database give a clear error, change nothing, and do not hang.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::Snapshot;
use testkit::real::Ovs;

use super::{keys, require_switch, switch};
use crate::support::Node;

/// The plugin refuses these before it sends any request, and names the key.
#[test]
fn mistakes_in_the_configuration_are_named() {
    let qos = |qos: Value| json!({ "bridge": "b", "qos": qos });
    let cases = [
        (json!({}), 7, "failed to get bridge name"),
        (json!({ "bridge": "b", "vlan": 4096 }), 7, "incorrect vlan parameter: 4096"),
        (json!({ "bridge": "b", "vlan": -1 }), 7, "incorrect vlan parameter: -1"),
        (
            json!({ "bridge": "b", "trunk": [{ "minID": 6, "maxID": 5 }] }),
            7,
            "minID is greater than maxID",
        ),
        (json!({ "bridge": "b", "trunk": [{}] }), 7, "incorrect trunk parameter"),
        (json!({ "bridge": "b", "vlanMode": "access" }), 7, "vlanMode \"access\" needs a \"vlan\""),
        (json!({ "bridge": "b", "mtu": -1 }), 7, "invalid MTU -1"),
        (json!({ "bridge": "b", "ofport_request": 65280 }), 7, "invalid ofport_request 65280"),
        (json!({ "bridge": "b", "socket_file": "udp:1" }), 7, "invalid socket_file"),
        (json!({ "bridge": "b", "socket_file": "ssl:192.0.2.1" }), 7, "needs \"private_key\""),
        (
            json!({ "bridge": "b", "configuration_path": "/nonexistent" }),
            7,
            "failed to read configuration_path",
        ),
        (json!({ "bridge": "b", "port": "tap" }), 7, "unknown port \"tap\""),
        (json!({ "bridge": "b", "interface_type": "dpdk" }), 7, "interface_type \"dpdk\""),
        (json!({ "bridge": "b", "deviceID": "0000:00:00.1" }), 2, "deviceID is not supported"),
        (
            json!({ "bridge": "b", "failMode": "secure" }),
            7,
            "failMode is for a bridge that is made",
        ),
        (json!({ "bridge": "b", "createBridge": true, "failMode": "x" }), 7, "unknown failMode"),
        (json!({ "bridge": "a/b", "createBridge": true }), 7, "invalid bridge name"),
        (json!({ "bridge": "b", "externalIds": { "netwright-owner": "x" } }), 7, "which is ours"),
        (
            json!({ "bridge": "b", "tunnel": { "vni": 16_777_216, "remotes": ["192.0.2.1"] } }),
            7,
            "invalid tunnel vni",
        ),
        (
            json!({ "bridge": "b", "tunnel": { "vni": 1, "remotes": ["host"] } }),
            7,
            "invalid tunnel.remotes",
        ),
        (json!({ "bridge": "b", "tunnel": { "vni": 1 } }), 7, "tunnel.remotes has 0 hosts"),
        (json!({ "bridge": "b", "mirrors": [{ "name": "m" }] }), 7, "neither takes nor gives"),
        (qos(json!({ "ingressRate": -1 })), 7, "invalid qos.ingressRate -1"),
        (qos(json!({ "ingressRate": 0 })), 7, "invalid qos.ingressRate 0"),
        (qos(json!({ "ingressRate": 999 })), 7, "invalid qos.ingressRate 999"),
        (
            qos(json!({ "ingressRate": 34_359_738_361_u64 })),
            7,
            "invalid qos.ingressRate 3435973836",
        ),
        (qos(json!({ "ingressRate": 8000, "ingressBurst": 0 })), 7, "invalid qos.ingressBurst 0"),
        (qos(json!({ "ingressBurst": 8000 })), 7, "no effect without qos.ingressRate"),
        (qos(json!({ "egressRate": 0 })), 7, "invalid qos.egressRate 0"),
        (
            qos(json!({ "egressRate": 8000, "egressBurst": 8000 })),
            7,
            "qos.egressBurst has no effect",
        ),
        (qos(json!({ "ingressRate": "10M" })), 6, "qos.ingressRate: found \"10M\", wanted a whole"),
        (qos(json!({ "queues": { "61440": {} } })), 7, "invalid queue \"61440\""),
        (qos(json!({ "queues": { "1": { "maxRate": 0 } } })), 7, "invalid maxRate 0 of queue 1"),
        (
            qos(json!({ "queues": { "1": { "minRate": 30_000, "maxRate": 20_000 } } })),
            7,
            "invalid maxRate 20000 of queue 1",
        ),
        (qos(json!({ "queues": { "1": { "burst": -1 } } })), 7, "invalid burst -1 of queue 1"),
        (
            json!({ "bridge": "b", "port": "internal", "qos": { "egressRate": 8000 } }),
            7,
            "qos has no effect on a port that the switch makes",
        ),
        (json!({ "bridge": "b", "runtimeConfig": { "mac": "x" } }), 7, "invalid MAC address"),
        (json!({ "bridge": 5 }), 6, "failed to load netconf"),
    ];
    testkit::require!("root");
    let node = Node::new("ovs-mistakes");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    for (keys, code, said) in cases {
        let error = node.run("ovs", "ADD").to(&c1).config(keys.clone()).call().error();
        assert_eq!(error.code, code, "{keys}: {error:?}");
        assert!(error.msg.contains(said), "{keys}: {error:?}");
    }
    before.assert_same(&Snapshot::take(&node.lab));
}

/// Asserts that ADD fails with this error, STATUS with 50, that a DEL afterwards succeeds, and that
/// nothing remains.
fn fails(node: &Node, keys: &Value, code: u32, said: &str) {
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    let error = node.run("ovs", "ADD").to(&c1).config(keys.clone()).call().error();
    assert_eq!(error.code, code, "{error:?}");
    assert!(error.msg.contains(said), "{error:?}");
    let status = node.run("ovs", "STATUS").config(keys.clone()).of_network();
    assert_eq!(status.call().error().code, 50);
    node.run("ovs", "DEL").to(&c1).config(keys.clone()).call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn a_bridge_that_is_missing() {
    require_switch!();
    let node = Node::new("ovs-no-bridge");
    let ovs = switch(&node);
    fails(
        &node,
        &keys(&node, &ovs, json!({ "bridge": "br9" })),
        112,
        "failed to find bridge \"br9\"",
    );
}

/// Here the test is the switch: it takes the port as Open vSwitch does, and sets no limit, as Open
/// vSwitch does where the kernel refuses it.
#[test]
fn limits_that_the_kernel_does_not_have() {
    require_switch!();
    let cases = [
        (json!({ "ingressRate": 8000, "ingressBurst": 8000 }), "qos.ingressRate", "act_police"),
        (json!({ "egressRate": 8000 }), "qos.egressRate", "sch_htb"),
        (json!({ "queues": { "1": { "maxRate": 12_000 } } }), "qos.queues", "sch_htb"),
    ];
    let node = Node::new("ovs-no-limits");
    let c1 = node.container("c1");
    let ovs = Ovs::database_only(&node.lab);
    let made = ["--", "set", "bridge", "br0", "datapath_id=1"];
    ovs.vsctl(&[&["--no-wait", "add-br", "br0"], &made[..]].concat());
    let (content, before) = (ovs.content(), Snapshot::take(&node.lab));
    for (qos, key, module) in cases {
        let keys = keys(&node, &ovs, json!({ "qos": qos }));
        let error = thread::scope(|scope| {
            let adding =
                scope.spawn(|| node.run("ovs", "ADD").to(&c1).config(keys.clone()).call().error());
            while !adding.is_finished() {
                let port = ovs.vsctl(&["--no-wait", "list-ports", "br0"]);
                if !port.is_empty() {
                    let take = ["--no-wait", "--if-exists", "set", "interface", &port, "ofport=1"];
                    ovs.vsctl(&take);
                }
            }
            adding.join().unwrap()
        });
        assert_eq!(error.code, 100, "{keys}: {error:?}");
        assert!(error.msg.contains(key) && error.msg.contains("could not set"), "{error:?}");
        assert!(error.details.contains(module), "{error:?}");
        assert_eq!(content, ovs.content(), "{keys}");
        before.assert_same(&Snapshot::take(&node.lab));
    }
}

#[test]
fn a_port_name_that_is_taken() {
    require_switch!();
    let node = Node::new("ovs-taken");
    let ovs = switch(&node);
    let keys = keys(&node, &ovs, json!({}));
    // The port's name follows from the attachment.
    let c1 = node.container("c1");
    let result = node.run("ovs", "ADD").to(&c1).config(keys.clone()).call().ok();
    node.run("ovs", "DEL").to(&c1).config(keys.clone()).call().silent();
    let port = result["interfaces"][0]["name"].as_str().unwrap();
    ovs.vsctl(&["--no-wait", "add-port", "br0", port]);
    let before = ovs.content();
    let error = node.run("ovs", "ADD").to(&c1).config(keys.clone()).call().error();
    assert_eq!((error.code, error.msg), (106, format!("port {port:?} exists already")));
    node.run("ovs", "DEL").to(&c1).config(keys).call().silent();
    assert_eq!(before, ovs.content());
}

#[test]
fn a_switch_that_is_not_running() {
    require_switch!();
    let node = Node::new("ovs-dead");
    let mut ovs = switch(&node);
    ovs.kill_switch();
    let before = ovs.try_vsctl(&["--no-wait", "list-ports", "br0"]).stdout;
    let keys = keys(&node, &ovs, json!({}));
    let c1 = node.container("c1");
    let error = node.run("ovs", "ADD").to(&c1).config(keys.clone()).call().error();
    assert_eq!(error.code, 112, "{error:?}");
    assert!(error.msg.contains("ovs-vswitchd"), "{error:?}");
    assert_eq!(before, ovs.try_vsctl(&["--no-wait", "list-ports", "br0"]).stdout);
    assert_eq!(node.sh("ls /sys/class/net | grep -c veth || true").trim(), "0");
}

#[test]
fn a_database_that_is_not_there() {
    testkit::require!("root");
    let node = Node::new("ovs-no-database");
    let keys = json!({ "bridge": "br0", "socket_file": "/nonexistent/db.sock" });
    fails(&node, &keys, 112, "connect to unix:/nonexistent/db.sock");
    let keys = json!({ "bridge": "br0", "socket_file": "tcp:127.0.0.1:1" });
    fails(&node, &keys, 112, "connect to tcp:127.0.0.1:1");
}

/// The switch could not make the bridge, as it knows no such datapath: ADD does not wait, and does
/// not report a switch that is down.
#[test]
fn a_bridge_that_the_switch_cannot_make() {
    require_switch!();
    let node = Node::new("ovs-unmade");
    let ovs = switch(&node);
    let _ = ovs.try_vsctl(&["add-br", "br7", "--", "set", "bridge", "br7", "datapath_type=none"]);
    let c1 = node.container("c1");
    let mut cases = vec![json!({ "bridge": "br7" })];
    // If the kernel has the module, the switch can make the bridge.
    if !Path::new("/sys/module/openvswitch").exists() {
        cases.push(json!({ "bridge": "br8", "createBridge": true, "datapathType": "system" }));
    }
    for given in cases {
        let (keys, began) = (keys(&node, &ovs, given), Instant::now());
        let error = node.run("ovs", "ADD").to(&c1).config(keys.clone()).call().error();
        assert_eq!(error.code, 112, "{error:?}");
        assert!(error.msg.contains("ovs-vswitchd could not make bridge"), "{error:?}");
        assert!(error.details.contains("datapath_type"), "{error:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        node.run("ovs", "DEL").to(&c1).config(keys).call().silent();
    }
    let status = node.run("ovs", "STATUS").config(keys(&node, &ovs, json!({ "bridge": "br7" })));
    let error = status.of_network().call().error();
    assert_eq!(error.code, 50, "{error:?}");
    assert!(error.msg.contains("could not make bridge \"br7\""), "{error:?}");
}

/// A server that answers the first request of every connection with these bytes. It ends with its
/// socket's folder.
fn liar(path: &Path, answer: &'static str, connections: usize) -> JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 65536]);
            let _ = stream.write_all(answer.as_bytes());
            let _ = stream.read_to_end(&mut Vec::new());
        }
    })
}

fn lies(name: &str, answer: &'static str, said: &str) {
    testkit::require!("root");
    let node = Node::new(name);
    let socket = node.dir("liar").join("db.sock");
    // The connections of ADD, STATUS and DEL.
    let liar = liar(&socket, answer, 3);
    fails(&node, &json!({ "bridge": "br0", "socket_file": socket }), 112, said);
    liar.join().unwrap();
}

#[test]
fn a_database_that_answers_nonsense() {
    lies("ovs-nonsense", "SSH-2.0-OpenSSH\r\n", "sent an invalid answer");
}

#[test]
fn a_database_that_answers_something_else() {
    lies("ovs-other", r#"{"id":1,"result":{},"error":null}"#, "sent an invalid answer");
}

#[test]
fn a_database_of_another_kind() {
    lies(
        "ovs-unknown",
        r#"{"id":1,"result":null,"error":{"error":"unknown database"}}"#,
        "was refused",
    );
}

#[test]
fn a_database_that_answers_half() {
    lies("ovs-half", r#"{"id":1,"result":[{"rows":["#, "did not answer");
}

#[test]
fn a_database_that_is_silent() {
    lies("ovs-silent", "", "did not answer");
}
