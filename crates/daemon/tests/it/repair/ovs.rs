//! Open vSwitch under `netwrightd repair`: server and switch killed, database wiped, containers gone.

use std::time::{Duration, Instant};

use cni::NetworkList;
use serde_json::{Value, json};
use testkit::real::Ovs;
use testkit::{Container, traffic};

use super::Host;

/// Within this time live ports are back.
const BACK: Duration = Duration::from_secs(5);

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn list(host: &Host, ovs: &Ovs<'_>, more: &Value) -> NetworkList {
    let mut plugin = json!({
        "type": "ovs", "bridge": "br0", "socket_file": ovs.remote(), "vlan": 5,
        "ipam": { "type": "host-local", "dataDir": host.node.dir("ipam"), "subnet": "10.1.0.0/24" },
    });
    plugin.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let list = json!({ "cniVersion": "1.1.0", "name": "n", "plugins": [plugin] });
    NetworkList::parse(&serde_json::to_vec(&list).unwrap()).unwrap()
}

fn address(result: &Value) -> String {
    result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned()
}

/// Ping from one container to the other works within the time; tells how long it took.
fn back(what: &str, from: &Container, to: &str, ovs: &Ovs<'_>) {
    let start = Instant::now();
    let answered = traffic::pings_within(from, to, PATIENCE);
    assert!(answered, "{what}: {to} does not answer\n{}", ovs.log());
    eprintln!(
        "MEASURED ovs, {what}: {} ms until {to} answered (wanted {} ms)",
        start.elapsed().as_millis(),
        BACK.as_millis()
    );
}

fn scenes(name: &str, more: &Value) {
    let host = Host::new(name);
    let mut ovs = Ovs::start(&host.node.lab);
    ovs.add_bridge("br0");
    let list = list(&host, &ovs, more);
    let (c1, c2) = (host.node.container("c1"), host.node.container("c2"));
    host.add(&c1, &list);
    let to = address(&host.add(&c2, &list));
    back("at first", &c1, &to, &ovs);
    let _daemon = host.daemon("repair", &["-ovsdb", &ovs.remote(), "-interval", "1h"]);

    ovs.kill_switch();
    ovs.start_switch();
    back("after the switch was killed", &c1, &to, &ovs);

    ovs.kill_server();
    ovs.start_server();
    back("after the server was killed", &c1, &to, &ovs);

    ovs.kill_server();
    ovs.wipe();
    ovs.start_server();
    ovs.add_bridge("br0");
    back("after the database was wiped", &c1, &to, &ovs);
    let ports = ovs.vsctl(&["list-ports", "br0"]);
    assert_eq!(ports.lines().count(), 2, "{ports}");

    // What somebody takes away comes back.
    let port = ports.lines().next().unwrap();
    ovs.vsctl(&["del-port", "br0", port]);
    back("after a port was deleted", &c1, &to, &ovs);

    // A container that is gone, without a word from the runtime.
    drop(c1);
    let deadline = Instant::now() + PATIENCE;
    while ovs.vsctl(&["list-ports", "br0"]).lines().count() != 1 {
        assert!(Instant::now() < deadline, "the port of a dead container stays");
    }
    host.del(&c2, &list);
    assert_eq!(ovs.vsctl(&["list-ports", "br0"]), "");
}

#[test]
fn ports_of_pairs_come_back_and_dead_ones_go() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server");
    scenes("repair-ovs", &json!({}));
}

#[test]
fn ports_of_the_switchs_own_come_back_and_dead_ones_go() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server");
    scenes("repair-ovs-internal", &json!({ "port": "internal" }));
}
