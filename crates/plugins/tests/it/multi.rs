//! `multi`: several networks for one container.

mod alone;
mod matrix;

use serde_json::{Value, json};
use testkit::traffic::assert_pings;
use testkit::{Container, Place};

use crate::support::{Node, Run};

fn bridge(number: u8) -> Value {
    json!({
        "type": "bridge", "bridge": format!("br{number}"), "isGateway": true,
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": format!("10.{number}.0.0/24") }]],
                  "routes": [{ "dst": "0.0.0.0/0" }] }
    })
}

fn ptp() -> Value {
    json!({
        "type": "ptp",
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "fd09::/64" }]],
                  "routes": [{ "dst": "192.0.2.0/24" }, { "dst": "2001:db8::/64" }] }
    })
}

/// Calls `multi` with these networks; the reservations of their addresses are in the node's folder.
fn of<'n>(node: &'n Node, verb: &str, to: &Container, mut networks: Value) -> Run<'n> {
    for network in networks.as_array_mut().unwrap() {
        if network["config"]["ipam"].is_object() {
            network["config"]["ipam"]["dataDir"] = json!(node.lab.dir().join("held"));
        }
    }
    node.run("multi", verb).to(to).config(json!({ "networks": networks }))
}

fn defaults(container: &Container) -> String {
    container.sh("ip -o route show default").trim().to_owned()
}

#[test]
fn each_network_has_its_interface_and_its_routes() {
    testkit::require!("root");
    let node = Node::new("multi-three");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let networks = json!([
        { "config": bridge(1) },
        { "config": bridge(2), "ifname": "data0" },
        { "config": ptp() },
    ]);
    let call = |verb: &str, container: &Container| of(&node, verb, container, networks.clone());
    let (first, second) = (call("ADD", &c1).call().ok(), call("ADD", &c2).call().ok());
    // The result is that of the first network.
    assert_eq!(first["ips"].as_array().unwrap().len(), 1);
    assert_eq!(first["ips"][0]["address"], "10.1.0.2/24");
    let links = first["interfaces"].as_array().unwrap();
    let inside = links.iter().filter(|link| link["sandbox"].is_string());
    assert_eq!(inside.map(|link| &link["name"]).collect::<Vec<_>>(), ["eth0", "data0", "net2"]);
    assert_pings(&c1, "10.1.0.3");
    assert_pings(&c1, "10.2.0.3");
    assert_pings(&c1, "10.9.0.1");
    assert_pings(&c1, "fd09::1");
    assert_eq!(defaults(&c1), "default via 10.1.0.1 dev eth0");
    assert!(c1.sh("ip route show dev net2").contains("192.0.2.0/24 via 10.9.0.1"));
    call("CHECK", &c1).prev(&first).call().silent();
    call("DEL", &c1).prev(&first).call().silent();
    assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
    call("CHECK", &c2).prev(&second).call().silent();
    call("DEL", &c2).prev(&second).call().silent();
    call("DEL", &c2).call().silent();
    assert_eq!(node.sh("ip -o link show | grep -cE 'br[12]|veth' || true").trim(), "0");
}

#[test]
fn the_default_route_goes_to_the_network_that_is_to_have_it() {
    testkit::require!("root");
    let node = Node::new("multi-default");
    let c1 = node.container("c1");
    for (chosen, expected) in [
        (json!(true), "default via 10.2.0.1 dev net1"),
        (json!(["10.2.0.77"]), "default via 10.2.0.77 dev net1"),
    ] {
        let networks =
            json!([{ "config": bridge(1) }, { "config": bridge(2), "defaultRoute": chosen }]);
        let call = |verb: &str| of(&node, verb, &c1, networks.clone());
        let result = call("ADD").call().ok();
        assert_eq!(defaults(&c1), expected);
        assert_eq!(result["routes"], Value::Null, "{result}");
        call("CHECK").prev(&result).call().silent();
        c1.sh("ip route add default via 10.1.0.1 dev eth0 metric 7");
        call("CHECK")
            .prev(&result)
            .call()
            .fails(104, "the default route is not that of interface net1");
        call("DEL").prev(&result).call().silent();
    }
}

#[test]
fn networks_of_files_are_left_as_they_were_made() {
    testkit::require!("root");
    let node = Node::new("multi-files");
    let c1 = node.container("c1");
    let folder = node.lab.dir().join("net.d");
    std::fs::create_dir(&folder).unwrap();
    let held = node.lab.dir().join("held");
    for number in [1, 2] {
        let mut config = bridge(number);
        config["ipam"]["dataDir"] = json!(held);
        let list =
            json!({ "cniVersion": "1.0.0", "name": format!("n{number}"), "plugins": [config] });
        std::fs::write(folder.join(format!("{number}.conflist")), list.to_string()).unwrap();
    }
    let call = |verb: &str| {
        node.run("multi", verb)
            .to(&c1)
            .config(json!({ "confDir": folder, "networks": [{ "name": "n1" }, { "name": "n2" }] }))
    };
    call("ADD").call().ok();
    assert!(held.join("n2/10.2.0.2").exists());
    // DEL ignores the present configurations of the networks.
    std::fs::remove_dir_all(&folder).unwrap();
    call("DEL").call().silent();
    assert!(!held.join("n1/10.1.0.2").exists() && !held.join("n2/10.2.0.2").exists());
    assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
    call("DEL").call().silent();
}

#[test]
fn all_or_none() {
    testkit::require!("root");
    let node = Node::new("multi-none");
    let c1 = node.container("c1");
    node.stub("broken", r#"echo '{"cniVersion":"1.0.0","code":50,"msg":"not today"}'; exit 1"#);
    let networks = json!([
        { "config": bridge(1) }, { "config": bridge(2) }, { "config": { "type": "broken" } },
    ]);
    of(&node, "ADD", &c1, networks.clone()).call().fails(50, "not today");
    assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
    // Its DEL failed, too: it stays recorded until a DEL succeeds.
    of(&node, "ADD", &c1, networks.clone()).call().fails(106, "already exists");
    of(&node, "DEL", &c1, networks.clone()).call().fails(50, "not today");
    node.stub("broken", "exit 0");
    of(&node, "DEL", &c1, networks).call().silent();
    // ADD also fails if it cannot know where the default route leads.
    let networks = json!([
        { "config": bridge(1) },
        { "config": { "type": "bridge", "bridge": "plain" }, "defaultRoute": true },
    ]);
    of(&node, "ADD", &c1, networks).call().fails(7, "has no gateway for a default route");
    assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
}

#[test]
fn a_network_whose_plugin_refuses_its_configuration_leaves_nothing() {
    testkit::require!("root");
    let node = Node::new("multi-refused");
    let c1 = node.container("c1");
    node.stub("refuses", r#"echo '{"cniVersion":"1.0.0","code":7,"msg":"no range"}'; exit 1"#);
    let mut second = bridge(2);
    second["ipam"] = json!({ "type": "refuses" });
    let inner = json!({ "type": "chain", "plugins": [bridge(1), { "type": "refuses" }] });
    for refused in [json!({ "type": "refuses" }), second, inner] {
        let networks = json!([{ "config": bridge(1) }, { "config": refused }]);
        for _ in 0..2 {
            let error = of(&node, "ADD", &c1, networks.clone()).call().error();
            assert_eq!((error.code, error.left), (7, false), "{error:?}");
            assert!(error.msg.ends_with("no range"), "{error:?}");
        }
        assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
        let kept = std::fs::read_dir(node.roots.lib.join("multi")).map(Iterator::count);
        assert_eq!(kept.unwrap_or_default(), 0, "{refused}");
    }
}

#[test]
fn what_is_asked_for_needs_a_plugin_that_gives_it() {
    testkit::require!("root");
    let node = Node::new("multi-asks");
    let c1 = node.container("c1");
    let mut second = bridge(2);
    second["capabilities"] = json!({ "mac": true, "ips": true });
    let networks = json!([
        { "config": bridge(1) },
        { "config": second, "mac": "02:00:00:00:00:09", "ips": ["10.2.0.99/24"] },
    ]);
    let result = of(&node, "ADD", &c1, networks.clone()).call().ok();
    assert!(c1.sh("ip link show net1").contains("02:00:00:00:00:09"));
    assert!(c1.sh("ip address show net1").contains("10.2.0.99/24"));
    of(&node, "DEL", &c1, networks).prev(&result).call().silent();

    for (networks, words) in [
        (json!([]), "names no network"),
        (json!([{}]), "networks[0]: needs \"name\""),
        (json!([{ "name": "nowhere" }]), "networks[0]: no network \"nowhere\" in"),
        (json!([{ "config": bridge(1), "ifname": "x" }]), "the runtime's (CNI_IFNAME)"),
        (
            json!([{ "config": bridge(1) }, { "config": bridge(2), "ifname": "eth0" }]),
            "networks[1]: interface eth0 is another network's",
        ),
        (json!([{ "config": bridge(1), "ips": ["10.1.0.9"] }]), "cannot serve \"ips\""),
        (json!([{ "config": bridge(1), "ips": ["tea"] }]), "\"tea\" is not an address"),
        (json!([{ "config": bridge(1), "mac": "tea" }]), "\"tea\" is not a hardware address"),
        (json!([{ "config": bridge(1), "defaultRoute": [] }]), "names no gateway"),
        (
            json!([{ "config": bridge(1), "defaultRoute": true }, { "config": bridge(2), "defaultRoute": true }]),
            "networks[1]: eth0 has the default route already",
        ),
        (json!([{ "config": { "type": "multi" } }]), "is one of several networks itself"),
        // ADD refuses this before it makes anything. For the container's own interface it refuses
        // more.
        (
            json!([
                { "config": bridge(1) },
                { "config": { "plugins": [{ "type": "tap" }, { "type": "policy" }] } },
            ]),
            "network policy cannot judge packets of \"tap\"",
        ),
        (
            json!([{ "config": { "plugins": [{ "type": "macvlan", "master": "p0" }, { "type": "policy" }] } }]),
            "network policy cannot judge packets of \"macvlan\"",
        ),
    ] {
        of(&node, "ADD", &c1, networks).call().fails(7, words);
        assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
    }
}

/// Makes a plugin that records its input, and its `CNI_ARGS`, in a file for each interface.
fn note(node: &Node) {
    node.stub(
        "note",
        &format!(
            "cat >{log}/$CNI_COMMAND.$CNI_IFNAME; echo \"$CNI_ARGS\" >{log}/args.$CNI_IFNAME\n\
             [ $CNI_COMMAND = ADD ] || exit 0; echo '{{\"cniVersion\":\"1.1.0\"}}'",
            log = node.dir("log").display()
        ),
    );
}

/// Labels and other arguments are of the container; an address is of its own interface.
#[test]
fn what_a_runtime_says_of_the_container_reaches_every_network() {
    testkit::require!("root");
    let node = Node::new("multi-args");
    note(&node);
    let c1 = node.container("c1");
    let own = json!({ "type": "note", "args": { "cni": { "labels": "its own", "vrf": "blue" } } });
    let list = json!({ "cniVersion": "1.1.0", "name": "n1", "plugins": [{ "type": "note" }] });
    std::fs::write(node.dir("net.d").join("1.conflist"), list.to_string()).unwrap();
    let networks = json!([
        { "name": "n1" },
        { "config": own },
        { "config": { "type": "chain", "plugins": [{ "type": "note" }] } },
    ]);
    let labels = json!([{ "key": "app", "value": "web" }]);
    let cni = json!({ "labels": labels, "ips": ["10.1.0.9"], "mac": "x", "OVNport": "y", "n": 1 });
    let call = |verb: &str| {
        let run = of(&node, verb, &c1, networks.clone());
        run.config(json!({ "confDir": node.dir("net.d"), "args": { "cni": cni } }))
            .args("IgnoreUnknown=1;GATEWAY=10.1.0.1;K8S_POD_NAME=web;OvnPort=z")
    };
    let result = call("ADD").call().ok();
    let read = |name: &str| std::fs::read(node.dir("log").join(name)).unwrap();
    let given = |name: &str| serde_json::from_slice::<Value>(&read(name)).unwrap()["args"].clone();
    assert_eq!(given("ADD.eth0")["cni"], cni);
    let of_container = json!({ "labels": labels, "n": 1 });
    assert_eq!(given("ADD.net1")["cni"], json!({ "labels": labels, "vrf": "blue", "n": 1 }));
    assert_eq!(given("ADD.net2")["cni"], of_container);
    let args = |name: &str| String::from_utf8(read(name)).unwrap().trim().to_owned();
    let all = "IgnoreUnknown=1;GATEWAY=10.1.0.1;K8S_POD_NAME=web;OvnPort=z";
    assert_eq!(args("args.eth0"), all);
    assert_eq!(args("args.net1"), "IgnoreUnknown=1;K8S_POD_NAME=web");
    // The networks have them as long as the container.
    of(&node, "CHECK", &c1, networks.clone()).prev(&result).call().silent();
    assert_eq!(given("CHECK.net2")["cni"], of_container);
    of(&node, "DEL", &c1, networks.clone()).call().silent();
    assert_eq!(given("DEL.net2")["cni"], of_container);
    let run = of(&node, "ADD", &c1, networks).config(json!({ "args": { "cni": [] } }));
    run.config(json!({ "confDir": node.dir("net.d") })).call().fails(6, "args");
}

/// The runtime asks for an address in a way that every plugin understands.
#[test]
fn an_address_is_asked_of_the_first_network_alone() {
    testkit::require!("root");
    let node = Node::new("multi-address");
    let c1 = node.container("c1");
    let networks = json!([{ "config": bridge(1) }, { "config": bridge(2) }]);
    let call = |verb: &str| {
        of(&node, verb, &c1, networks.clone())
            .args("IgnoreUnknown=1;IP=10.1.0.9;MAC=02:00:00:00:00:07")
    };
    let result = call("ADD").call().ok();
    assert_eq!(result["ips"][0]["address"], "10.1.0.9/24");
    assert!(c1.sh("ip link show eth0").contains("02:00:00:00:00:07"));
    assert!(!c1.sh("ip link show net1").contains("02:00:00:00:00:07"));
    assert!(c1.sh("ip address show net1").contains("10.2.0.2/24"));
    call("CHECK").prev(&result).call().silent();
    call("DEL").call().silent();
}

/// The plugin declares the capability for addresses, and assigns another address.
#[test]
fn an_address_that_was_asked_for_and_not_given_is_an_error() {
    testkit::require!("root");
    let node = Node::new("multi-not-given");
    let c1 = node.container("c1");
    let result = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}"#;
    node.stub(
        "deaf",
        &format!("cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; echo '{result}'"),
    );
    let network = json!({ "type": "bridge", "bridge": "br0", "name": "deaf",
        "capabilities": { "ips": true }, "ipam": { "type": "deaf" } });
    let networks = json!([{ "config": network, "ips": ["10.1.0.9/24"] }]);
    let answer = of(&node, "ADD", &c1, networks).call();
    answer.fails(7, "the address 10.1.0.9 was asked for, and 10.1.0.2 was given");
    assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
}

#[test]
fn gc_detaches_who_is_gone_from_every_network() {
    testkit::require!("root");
    let node = Node::new("multi-gc");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let networks = json!([{ "config": bridge(1) }, { "config": bridge(2) }]);
    let call = |verb: &str, container: &Container| of(&node, verb, container, networks.clone());
    call("ADD", &c1).call().ok();
    call("ADD", &c2).call().ok();
    let valid = json!([{ "containerID": c1.name(), "ifname": "eth0" }]);
    call("GC", &c1).config(json!({ "cni.dev/valid-attachments": valid })).call().silent();
    for number in [1, 2] {
        assert_pings(&c1, &format!("10.{number}.0.1"));
        let ports = node.sh(&format!("ip -o link show master br{number} | wc -l"));
        assert_eq!(ports.trim(), "1");
    }
    call("DEL", &c1).call().silent();
}
