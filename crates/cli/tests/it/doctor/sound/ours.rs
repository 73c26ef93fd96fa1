//! Our routing and policy, and VRFs: what they refuse is refused on purpose.

use std::fs;

use serde_json::json;
use testkit::traffic::{Server, assert_no_tcp, assert_tcp};
use testkit::{Container, Place as _, Service, require, wait_until};

use crate::doctor::situations::node::Node;
use crate::system::{address_of, netwrightd};

/// This node and another one. The lab's router plays the other one.
const NODES: &str = r#"
[[node]]
name = "n1"
prefixes = ["10.244.1.0/24", "fd00:244:1::/64"]
underlay = ["198.51.100.1", "2001:db8:ffff::1"]

[[node]]
name = "n2"
prefixes = ["10.244.2.0/24", "fd00:244:2::/64"]
underlay = ["198.51.100.2", "2001:db8:ffff::2"]
"#;

/// The other node's side, with a pod on loopback.
const OTHER_NODE: &str = "set -e
ip addr add 10.244.2.2/32 dev lo
ip addr add fd00:244:2::2/128 dev lo nodad
ip route add 10.244.1.0/24 via 198.51.100.1
ip -6 route add fd00:244:1::/64 via 2001:db8:ffff::1
";

const PODS: &str = r#"{"cniVersion": "1.1.0", "name": "pods", "plugins": [
    {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local",
     "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:244:1::/64"}]],
     "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
    {"type": "policy", "socketpath": "SOCKET"},
    {"type": "firewall"}]}"#;

/// Starts a service of the daemon, and waits until its log has these words.
fn service(node: &Node, arguments: &[&str], words: &str) -> Service {
    let name = arguments[0];
    let log = node.lab.dir().join(format!("{name}.log"));
    let mut command = node.lab.command(netwrightd().to_str().unwrap());
    command.args(arguments).args(["--node", "n1", "--interval", "1h"]);
    let service = Service::start(command, &log);
    wait_until(words, || service.log().contains(words));
    service
}

/// A pod with a label, and with a server.
fn pod(node: &Node, name: &str) -> (Container, Server) {
    let container = node.lab.container(name);
    container.sh("ip link set lo up");
    node.lab.sh(&format!("mkdir -p /etc/netns/{name}"));
    let names = node.lab.path(format!("/etc/netns/{name}/resolv.conf"));
    fs::write(names, "nameserver 203.0.113.2\n").unwrap();
    let add = format!("netwright add pods {name} --container-id {name} --label app={name}");
    let (done, said) = node.run(&add);
    assert!(done, "{said}");
    let server = Server::tcp(&container, "[::]:80", name);
    (container, server)
}

#[test]
fn beside_our_routing_and_policy() {
    require!("root", "full");
    let node = Node::new("doctor-ours");
    let dir = node.lab.dir().to_owned();
    let text = |inside: &str| dir.join(inside).to_str().unwrap().to_owned();
    let router = node.lab.visit("/run/netns/outside");
    router.sh(OTHER_NODE);
    let _remote = Server::tcp(&router, "[::]:7000", "n2");
    fs::write(dir.join("nodes.toml"), NODES).unwrap();
    let (nodes, socket, objects) = (text("nodes.toml"), text("policy.sock"), text("objects"));
    let routing = text("routing.sock");
    let cluster = "10.244.0.0/16,fd00:244::/32";
    let arguments = ["routing", "--socketpath", &routing, "--nodes", &nodes, "--cluster", cluster];
    let _routing = service(&node, &[&arguments[..], &["--path", "direct"]].concat(), " ready ");
    // Only `web` reaches pods with the label `db`.
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
        },
    });
    fs::create_dir(&objects).unwrap();
    fs::write(dir.join("objects/db.json"), policy.to_string()).unwrap();
    let arguments = ["policy", "--socketpath", &socket, "--objects", &objects];
    let _policy = service(&node, &arguments, "policies are enforced");

    node.network("50-pods", &PODS.replace("SOCKET", &socket));
    let [db, web, other] = ["db", "web", "other"].map(|name| pod(&node, name));
    let of_db = address_of(&db.0, "eth0", "inet");
    assert_tcp(&web.0, &format!("{of_db}:80"));
    assert_no_tcp(&other.0, &format!("{of_db}:80"));
    assert_tcp(&node.lab, &format!("{of_db}:80"));
    for remote in ["10.244.2.2:7000", "[fd00:244:2::2]:7000", "203.0.113.2:80"] {
        assert_tcp(&db.0, remote);
    }
    let complaints = node.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// A network in a VRF of the node, and a container with a VRF of its own.
#[test]
fn vm_beside_vrfs() {
    require!("root", "vrf", "full");
    let node = Node::new("doctor-vrf");
    node.lab.sh("set -e
         ip link add blue type vrf table 10; ip link set blue up
         ip link add blue0 type bridge; ip link set blue0 master blue; ip link set blue0 up");
    let network = |name: &str, bridge: &str, subnet: &str, more: &str| {
        let text = format!(
            r#"{{"cniVersion": "1.0.0", "name": "{name}", "plugins": [
                {{"type": "bridge", "bridge": "{bridge}", "isGateway": true,
                 "ipam": {{"type": "host-local", "ranges": [[{{"subnet": "{subnet}"}}]]}}}}{more}]}}"#
        );
        node.network(&format!("60-{name}"), &text);
    };
    network("blue", "blue0", "10.96.0.0/24", "");
    network("red", "red0", "10.97.0.0/24", r#", {"type": "vrf", "vrfname": "red"}"#);
    let adds = "netwright add blue c3 --container-id c3; netwright add red c4 --container-id c4";
    let (done, said) = node.run(adds);
    assert!(done, "{said}");
    for (name, by, gateway) in [("c3", "eth0", "10.96.0.1"), ("c4", "red", "10.97.0.1")] {
        let container = node.lab.visit(format!("/run/netns/{name}"));
        container.sh(&format!("ping -n -q -c 1 -W 5 -I {by} {gateway}"));
    }
    let complaints = node.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}
