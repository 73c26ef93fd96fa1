//! `ovs-mirror-producer` and `ovs-mirror-consumer` behind `ovs`, on a real Open vSwitch.

pub(crate) mod matrix;

use serde_json::{Value, json};
use testkit::real::Ovs;
use testkit::{Container, Place as _, traffic};

use crate::support::{Node, Run};

const PRODUCER: &str = "ovs-mirror-producer";
const CONSUMER: &str = "ovs-mirror-consumer";

fn switch(node: &Node) -> Ovs<'_> {
    let ovs = Ovs::start(&node.lab);
    ovs.add_bridge("br0");
    ovs
}

/// ADD of `ovs`.
fn attached(node: &Node, ovs: &Ovs<'_>, to: &Container) -> Value {
    let ipam = json!({ "type": "host-local", "dataDir": node.dir("ipam"), "subnet": "10.1.0.0/24",
                       "routes": [{ "dst": "0.0.0.0/0" }] });
    let keys = json!({ "bridge": "br0", "socket_file": ovs.remote(), "ipam": ipam });
    node.run("ovs", "ADD").to(to).config(keys).call().ok()
}

fn detach(node: &Node, ovs: &Ovs<'_>, container: &Container) {
    let ipam =
        json!({ "type": "host-local", "dataDir": node.dir("ipam"), "subnet": "10.1.0.0/24" });
    let keys = json!({ "bridge": "br0", "socket_file": ovs.remote(), "ipam": ipam });
    node.run("ovs", "DEL").to(container).config(keys).call().silent();
}

fn chained<'n>(
    node: &'n Node,
    ovs: &Ovs<'_>,
    plugin: &str,
    verb: &str,
    container: &Container,
    mirror: Value,
    result: &Value,
) -> Run<'n> {
    let keys = json!({ "bridge": "br0", "socket_file": ovs.remote(), "mirrors": [mirror] });
    node.run(plugin, verb).to(container).config(keys).prev(result)
}

fn mirror(ovs: &Ovs<'_>, column: &str) -> String {
    ovs.vsctl(&["get", "mirror", "m1", column])
}

/// A third container gets a copy of what the first sends to the second; the result passes through
/// unchanged.
#[test]
fn a_third_container_sees_what_the_first_sends() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server");
    let node = Node::new("ovs-mirror-chain");
    let ovs = switch(&node);
    let before = ovs.content();
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| node.container(name));
    let results = [&c1, &c2, &c3].map(|container| attached(&node, &ovs, container));
    let source = json!({ "name": "m1", "ingress": true, "egress": true });
    let sink = json!({ "name": "m1" });
    let run = |plugin: &str, verb: &str, number: usize| {
        let container = [&c1, &c2, &c3][number];
        let mirror = if plugin == PRODUCER { source.clone() } else { sink.clone() };
        chained(&node, &ovs, plugin, verb, container, mirror, &results[number])
    };
    for (plugin, number) in [(PRODUCER, 0), (CONSUMER, 2)] {
        let result = run(plugin, "ADD", number).call().ok();
        assert_eq!(result["ips"], results[number]["ips"]);
        assert_eq!(result["routes"], results[number]["routes"]);
        run(plugin, "CHECK", number).call().silent();
        // A second ADD does the same.
        run(plugin, "ADD", number).call().ok();
    }
    assert_eq!(ovs.vsctl(&["--columns=name", "list", "mirror"]).lines().count(), 1);
    let to =
        results[1]["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    let counted = || {
        let rx = c3.sh("grep eth0 /proc/net/dev | tr -s ' :' ' ' | cut -d ' ' -f 4");
        rx.trim().parse::<u64>().unwrap()
    };
    let first = counted();
    traffic::assert_pings(&c1, &to);
    c1.sh(&format!("ping -q -c 20 -i 0.01 {to}"));
    let copied = counted() - first;
    // Twenty echo requests and twenty replies.
    assert!(40 <= copied, "{copied} frames\n{}", ovs.log());

    // ADD refuses a second output, and a port that would mirror itself.
    run(CONSUMER, "ADD", 1).call().fails(108, "mirror \"m1\" has an output port already");
    run(CONSUMER, "DEL", 1).call().silent();
    run(CONSUMER, "DEL", 2).call().silent();
    assert_eq!(mirror(&ovs, "output_port"), "[]");
    run(CONSUMER, "ADD", 0).call().fails(108, "producer and consumer");
    run(CONSUMER, "DEL", 0).call().silent();
    assert_ne!(mirror(&ovs, "select_src_port"), "[]");

    // The database is wiped: `ovs` restores the port, and this plugin its mirror.
    run(PRODUCER, "DEL", 0).call().silent();
    assert_eq!(ovs.vsctl(&["--columns=name", "list", "mirror"]), "");
    // The port may be gone before, and everything else too.
    run(PRODUCER, "ADD", 0).call().ok();
    detach(&node, &ovs, &c1);
    for _ in 0..2 {
        run(PRODUCER, "DEL", 0).call().silent();
    }
    detach(&node, &ovs, &c2);
    detach(&node, &ovs, &c3);
    assert_eq!(before, ovs.content());
}

#[test]
fn membership_that_was_lost_is_named_and_put_back() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server");
    let node = Node::new("ovs-mirror-repair");
    let mut ovs = switch(&node);
    let c1 = node.container("c1");
    let result = attached(&node, &ovs, &c1);
    let source = json!({ "name": "m1", "ingress": true });
    chained(&node, &ovs, PRODUCER, "ADD", &c1, source.clone(), &result).call().ok();
    ovs.vsctl(&["clear", "bridge", "br0", "mirrors"]);
    let check =
        |ovs: &Ovs<'_>| chained(&node, ovs, PRODUCER, "CHECK", &c1, source.clone(), &result);
    check(&ovs).call().fails(104, "is not in select_src_port of mirror \"m1\"");
    let repaired = check(&ovs).config(json!({ "netwright/repair": true })).call();
    assert!(repaired.succeeded(), "{repaired:?}");
    check(&ovs).call().silent();
    assert_eq!(mirror(&ovs, "select_dst_port"), "[]");

    // The database is away: DEL fails, and the next GC does its work.
    ovs.kill_server();
    let del = || chained(&node, &ovs, PRODUCER, "DEL", &c1, source.clone(), &result);
    assert_eq!(del().call().error().code, 112);
    ovs.start_server();
    let gc = node
        .run(PRODUCER, "GC")
        .config(json!({ "mirrors": [source], "socket_file": ovs.remote() }));
    let gc = gc.valid(&[]).env(|env| {
        env.container_id.clear();
        env.ifname.clear();
    });
    gc.call().silent();
    assert_eq!(ovs.vsctl(&["--no-wait", "--columns=name", "list", "mirror"]), "");
}

#[test]
fn mistakes_are_named() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server");
    let node = Node::new("ovs-mirror-bad");
    let ovs = switch(&node);
    let c1 = node.container("c1");
    let result = attached(&node, &ovs, &c1);
    let before = ovs.content();
    let call = |plugin: &str, keys: Value| {
        let socket = json!({ "socket_file": ovs.remote() });
        node.run(plugin, "ADD").to(&c1).config(socket).config(keys).prev(&result).call()
    };
    call(PRODUCER, json!({})).fails(7, "no mirrors are given");
    call(PRODUCER, json!({ "mirrors": [{ "ingress": true }] })).fails(7, "a mirror has no name");
    call(PRODUCER, json!({ "mirrors": [{ "name": "m" }] })).fails(7, "neither takes nor gives");
    let ingress = json!([{ "name": "m", "ingress": true }]);
    call(CONSUMER, json!({ "mirrors": ingress })).fails(7, "of a consumer");
    call(PRODUCER, json!({ "mirrors": ingress, "bridge": "br9" })).fails(112, "not on \"br9\"");
    let nobody = json!({ "mirrors": ingress, "socket_file": "/nonexistent/db.sock" });
    call(PRODUCER, nobody).fails(112, "connect to unix:/nonexistent/db.sock");
    let missing = node.run(PRODUCER, "ADD").to(&c1).config(json!({ "mirrors": ingress }));
    missing.call().fails(7, "Required prevResult missing");
    // An interface that another plugin made.
    let c2 = node.container("c2");
    let run = node.run(PRODUCER, "ADD").to(&c2);
    let run = run.config(json!({ "socket_file": ovs.remote(), "mirrors": ingress }));
    let foreign = json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": "v0" }] });
    run.prev(&foreign).call().fails(112, "is not a port of Open vSwitch");
    assert_eq!(before, ovs.content());
}
