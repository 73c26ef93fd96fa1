//! Ports of a container in two networks, published in the one that its default route does not use.
//! Where the kernel's reverse path filter is strict, an answer must leave by the link with its
//! source.

use serde_json::{Value, json};
use testkit::traffic::{self, Server};
use testkit::{Container, Place};

use crate::support::{Node, Run};

/// One network of the container.
#[derive(Clone, Copy)]
struct Network {
    name: &'static str,
    ifname: &'static str,
    is_default: bool,
}

const FIRST: Network = Network { name: "a", ifname: "eth0", is_default: true };
const SECOND: Network = Network { name: "b", ifname: "eth1", is_default: false };

/// A host with the strict filter, and a machine behind it.
struct Host {
    node: Node,
    outside: Container,
    c1: Container,
}

impl Host {
    fn new(name: &str, strict: &str) -> Host {
        let node = Node::new(name);
        node.sh(strict);
        let outside = node.lab.outside();
        let c1 = node.container("c1");
        // As the kernel copies it from the first namespace.
        c1.sh(strict);
        Host { node, outside, c1 }
    }

    fn run(&self, plugin: &str, verb: &str, network: Network) -> Run<'_> {
        self.node.run(plugin, verb).to(&self.c1).network(network.name).ifname(network.ifname)
    }

    fn attach(&self, plugin: &str, network: Network) -> Value {
        let name = network.name;
        let last = u32::from(name == "b") + 1;
        let mut keys = json!({ "ipMasq": true, "ipam": {
            "type": "host-local", "dataDir": self.node.dir("ipam"), "subnet": format!("10.{last}.0.0/24"),
        } });
        if plugin == "bridge" {
            keys["bridge"] = json!(format!("br-{name}"));
            keys["isGateway"] = json!(true);
            keys["isDefaultGateway"] = json!(network.is_default);
        } else if network.is_default {
            keys["ipam"]["routes"] = json!([{ "dst": "0.0.0.0/0" }]);
        }
        self.run(plugin, "ADD", network).config(keys).call().ok()
    }

    fn portmap(&self, verb: &str, network: Network, prev: &Value) -> Run<'_> {
        let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
        let keys = json!({ "runtimeConfig": { "portMappings": ports } });
        self.run("portmap", verb, network).prev(prev).config(keys)
    }

    fn serves(&self) {
        let _server = Server::tcp(&self.c1, "0.0.0.0:80", "c1");
        assert_eq!(traffic::assert_tcp(&self.outside, "198.51.100.1:8080").server, "c1");
    }

    fn rules(&self) -> String {
        self.c1.sh("ip rule; ip route show table all type unicast | grep -w table || true")
    }
}

const ALL: &str = "sysctl -qw net.ipv4.conf.all.rp_filter=1";
const NEW_LINKS: &str =
    "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=1";

#[test]
fn a_port_answers_in_whichever_network_it_is_published() {
    testkit::require!("root");
    for (strict, plugin, backend, second) in [
        (ALL, "bridge", "nftables", SECOND),
        (NEW_LINKS, "ptp", "iptables", SECOND),
        // The first default route counts.
        (ALL, "bridge", "nftables", Network { is_default: true, ..SECOND }),
    ] {
        let host = Host::new("pm-two", strict);
        host.attach(plugin, FIRST);
        let prev = host.attach(plugin, second);
        let before = host.rules();
        let run = |verb| host.portmap(verb, second, &prev).config(json!({ "backend": backend }));
        // Twice is once.
        for _ in 0..2 {
            run("ADD").call().ok();
            host.serves();
        }
        run("CHECK").call().silent();
        let with = host.rules();
        assert_eq!(with.matches("from 10.2.0.2").count(), 1, "{with}");
        // Nothing else changes, and no table but the main one decides where others' packets go.
        host.c1.sh("ip rule del from 10.2.0.2; ip route flush table 100");
        run("CHECK")
            .call()
            .fails(104, "there is no rule that sends packets from 10.2.0.2 to table 100");
        run("CHECK").config(json!({ "netwright/repair": true })).call();
        run("CHECK").call().silent();
        host.serves();
        run("DEL").call().silent();
        assert_eq!(host.rules(), before, "{plugin}");
        run("DEL").call().silent();
    }
}

/// It needs no rule: with one network, with a loose filter, or in the network of the default route.
#[test]
fn no_rule_is_made_that_is_not_needed() {
    testkit::require!("root");
    let loose = "sysctl -qw net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.default.rp_filter=1";
    for (strict, network) in [(ALL, FIRST), (loose, SECOND)] {
        let host = Host::new("pm-no-rule", strict);
        let prevs =
            [(FIRST, host.attach("bridge", FIRST)), (SECOND, host.attach("bridge", SECOND))];
        let (_, prev) = prevs.iter().find(|(one, _)| one.name == network.name).unwrap();
        let before = host.rules();
        host.portmap("ADD", network, prev).call().ok();
        assert_eq!(host.rules(), before);
        host.serves();
    }
}

/// The network with the port came first, when there was no other default route.
#[test]
fn a_default_route_that_comes_later_is_noticed() {
    testkit::require!("root");
    let host = Host::new("pm-later", ALL);
    let prev = host.attach("bridge", SECOND);
    host.portmap("ADD", SECOND, &prev).call().ok();
    host.portmap("CHECK", SECOND, &prev).call().silent();
    host.attach("bridge", FIRST);
    let check = || host.portmap("CHECK", SECOND, &prev);
    check().call().fails(104, "there is no rule that sends packets from 10.2.0.2");
    check().config(json!({ "netwright/repair": true })).call();
    host.serves();
    check().call().silent();
    host.portmap("DEL", SECOND, &prev).call().silent();
    assert!(!host.rules().contains("10.2.0.2"), "{}", host.rules());
}
