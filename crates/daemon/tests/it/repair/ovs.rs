//! Open vSwitch under `netwrightd repair`: server and switch killed, database wiped, containers
//! gone.

use std::time::{Duration, Instant};

use cni::NetworkList;
use serde_json::{Value, json};
use testkit::real::{Ovs, Pki};
use testkit::{Container, traffic};

use super::Host;
use super::flows::Flow;

/// Live ports must be back within this time.
const BACK: Duration = Duration::from_secs(5);

/// How long anything may take on a busy machine.
const TIMEOUT: Duration = testkit::TIMEOUT;

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

/// Asserts that ping from one container to the other works within the time; prints how long it
/// took.
fn back(what: &str, from: &Container, to: &str, ovs: &Ovs<'_>) {
    let start = Instant::now();
    let answered = traffic::pings_within(from, to, TIMEOUT);
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
    let _daemon = host.daemon("repair", &["--ovsdb", &ovs.remote(), "--interval", "1h"]);

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

    // A removed port comes back.
    let port = ports.lines().next().unwrap();
    ovs.vsctl(&["del-port", "br0", port]);
    back("after a port was deleted", &c1, &to, &ovs);

    // A container is gone, and the runtime does not report it.
    drop(c1);
    let deadline = Instant::now() + TIMEOUT;
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

/// Asserts that every flow continues; prints how long after `since` each did.
fn flows_go_on(what: &str, flows: &[Flow], since: Instant, ovs: &Ovs<'_>) {
    for flow in flows {
        let after = flow.answered_after(since, TIMEOUT);
        let after = after.unwrap_or_else(|| panic!("{what}: no {}\n{}", flow.name, ovs.log()));
        eprintln!(
            "MEASURED ovs under traffic, {what}: {} again after {} ms (wanted {} ms)",
            flow.name,
            after.as_millis(),
            BACK.as_millis()
        );
    }
}

/// Six containers exchange ICMP, UDP and one TCP connection all the time, while server and switch
/// are killed and the database is wiped; in each outage a container dies. A foreign port stays as
/// its owner left it.
#[test]
fn live_ports_come_back_under_traffic_and_no_stale_ones_stay() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server");
    let host = Host::new("repair-ovs-traffic");
    let mut ovs = Ovs::start(&host.node.lab);
    // The bridge's maker has a port on it, which is not ours.
    let set_up = |ovs: &Ovs<'_>| {
        ovs.add_bridge("br0");
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
    };
    let foreign = |ovs: &Ovs<'_>| {
        ovs.vsctl(&["--columns=name,tag,external_ids,interfaces,_uuid", "list", "port", "f0"])
    };
    host.node.sh("ip link add f0 type veth peer name f1 && ip link set f0 up && ip link set f1 up");
    set_up(&ovs);
    let list = list(&host, &ovs, &json!({}));
    let live: Vec<Container> =
        (0..6).map(|number| host.node.container(&format!("c{number}"))).collect();
    let mut doomed: Vec<Container> =
        (0..3).map(|number| host.node.container(&format!("d{number}"))).collect();
    let addresses: Vec<String> =
        live.iter().map(|container| address(&host.add(container, &list))).collect();
    for container in &doomed {
        host.add(container, &list);
    }
    for pair in [(0, 1), (2, 3), (4, 5)] {
        traffic::assert_pings(&live[pair.0], &addresses[pair.1]);
    }
    let _daemon = host.daemon("repair", &["--ovsdb", &ovs.remote(), "--interval", "1h"]);
    let flows = [
        Flow::icmp(&live[0], &addresses[1]),
        Flow::udp(&live[2], &live[3], &addresses[3]),
        Flow::tcp(&live[4], &live[5], &addresses[5]),
    ];
    flows_go_on("at first", &flows, Instant::now(), &ovs);
    let none_stale = |ovs: &Ovs<'_>, doomed: &[Container], since: Instant| {
        let wanted = 1 + live.len() + doomed.len();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let ports = ovs.vsctl(&["list-ports", "br0"]);
            if ports.lines().count() == wanted {
                break;
            }
            assert!(Instant::now() < deadline, "wanted {wanted} ports: {ports}\n{}", ovs.log());
        }
        let took = since.elapsed().as_millis();
        eprintln!("MEASURED ovs under traffic: {wanted} ports, none stale, after {took} ms");
    };

    let mine = foreign(&ovs);
    ovs.kill_switch();
    drop(doomed.pop());
    let since = Instant::now();
    ovs.start_switch();
    flows_go_on("after the switch was killed", &flows, since, &ovs);
    none_stale(&ovs, &doomed, since);
    assert_eq!(mine, foreign(&ovs));

    ovs.kill_server();
    drop(doomed.pop());
    let since = Instant::now();
    ovs.start_server();
    flows_go_on("after the server was killed", &flows, since, &ovs);
    none_stale(&ovs, &doomed, since);
    assert_eq!(mine, foreign(&ovs));

    ovs.kill_server();
    ovs.wipe();
    drop(doomed.pop());
    ovs.start_server();
    let since = Instant::now();
    set_up(&ovs);
    let mine = foreign(&ovs);
    flows_go_on("after the database was wiped", &flows, Instant::now(), &ovs);
    none_stale(&ovs, &doomed, since);
    assert_eq!(mine, foreign(&ovs));

    // Both at once, and a wiped database.
    ovs.kill_switch();
    ovs.kill_server();
    ovs.wipe();
    ovs.start_server();
    let since = Instant::now();
    ovs.start_switch();
    set_up(&ovs);
    flows_go_on("after everything was killed and wiped", &flows, since, &ovs);
    none_stale(&ovs, &doomed, since);
    for flow in &flows {
        let (answers, longest) = flow.account();
        eprintln!(
            "MEASURED ovs under traffic: {answers} answers by {}, longest silence {} ms",
            flow.name,
            longest.as_millis()
        );
    }
    drop(flows);
    for container in &live {
        host.del(container, &list);
    }
    assert_eq!(ovs.vsctl(&["list-ports", "br0"]), "f0");
}

#[test]
fn a_database_is_listened_to_over_tls() {
    testkit::require!(
        "root",
        "program:ovs-vswitchd",
        "program:ovsdb-server",
        "program:ovs-pki",
        "program:openssl"
    );
    let host = Host::new("repair-ovs-tls");
    let mut ovs = Ovs::start(&host.node.lab);
    ovs.add_bridge("br0");
    let pki = Pki::new(host.node.dir("pki"), &["sc", "cl"]);
    let remote = ovs.speak_tls(&pki, "sc");
    let files = pki.files("cl").map(|path| path.display().to_string());
    let [key, certificate, authority] = &files;
    let keys = json!({ "socket_file": remote, "private_key": key, "certificate": certificate, "ca_cert": authority });
    let list = list(&host, &ovs, &keys);
    let (c1, c2) = (host.node.container("c1"), host.node.container("c2"));
    host.add(&c1, &list);
    let to = address(&host.add(&c2, &list));
    back("over TLS, at first", &c1, &to, &ovs);
    let flags = [
        "--ovsdb",
        &remote,
        "--interval",
        "1h",
        "--private-key",
        key,
        "--certificate",
        certificate,
        "--ca-cert",
        authority,
    ];
    let _daemon = host.daemon("repair", &flags);
    let port = ovs.vsctl(&["list-ports", "br0"]).lines().next().unwrap().to_owned();
    ovs.vsctl(&["del-port", "br0", &port]);
    back("over TLS, after a port was deleted", &c1, &to, &ovs);
    drop(c1);
    let deadline = Instant::now() + TIMEOUT;
    while ovs.vsctl(&["list-ports", "br0"]).lines().count() != 1 {
        assert!(Instant::now() < deadline, "the port of a dead container stays");
    }
    host.del(&c2, &list);
}
