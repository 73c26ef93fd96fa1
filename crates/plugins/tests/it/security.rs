//! What was exploited in others of this kind, where no other test has it. docs/guarantees.md lists all of them.

use serde_json::json;
use testkit::traffic::{self, Server};
use testkit::{Container, Place};

use crate::support::Node;
use crate::support::matrix::{self, Family, attached};

fn publish(node: &Node, container: &Container, port: u16) {
    let prev = attached(node, container, Family::Dual);
    let ports = json!([{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }]);
    let keys = json!({ "runtimeConfig": { "portMappings": ports } });
    node.run("portmap", "ADD").to(container).prev(&prev).config(keys).call().ok();
}

/// CVE-2019-9946: rules for host ports stood before those of services and took their traffic, also where the service's address
/// is the host's own (plugins#222).
#[test]
fn host_ports_come_after_services() {
    testkit::require!("root");
    let node = Node::new("service");
    let outside = node.lab.outside();
    node.sh("sysctl -qw net.ipv4.ip_forward=1; ip addr add 10.96.0.1/32 dev lo");
    outside.sh(
        "ip route add 10.96.0.1/32 via 198.51.100.1; ip route add 10.1.0.0/24 via 198.51.100.1",
    );
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    publish(&node, &c1, 8080);
    attached(&node, &c2, Family::Dual);
    // What kube-proxy does for a service, at the place where it does it.
    node.sh("nft add table ip services; \
         nft 'add chain ip services pre { type nat hook prerouting priority dstnat; }'; \
         nft 'add chain ip services out { type nat hook output priority -100; }'; \
         nft add rule ip services pre ip daddr 10.96.0.1 tcp dport 8080 dnat to 10.1.0.4:80; \
         nft add rule ip services out ip daddr 10.96.0.1 tcp dport 8080 dnat to 10.1.0.4:80");
    let _c1 = Server::tcp(&c1, "[::]:80", "host port");
    let _c2 = Server::tcp(&c2, "[::]:80", "service");
    assert_eq!(traffic::assert_tcp(&outside, "198.51.100.1:8080").server, "host port");
    assert_eq!(traffic::assert_tcp(&outside, "10.96.0.1:8080").server, "service");
    assert_eq!(traffic::assert_tcp(&node.lab, "10.96.0.1:8080").server, "service");
}

/// CVE-2020-10749: a container that sends router advertisements became the host's router. (`ptp`: its own tests.)
#[test]
fn no_link_of_the_host_takes_router_advertisements() {
    testkit::require!("root");
    let node = Node::new("advertise");
    let c1 = node.container("c1");
    // A host that takes them even though it forwards.
    node.sh("for f in all default; do echo 2 > /proc/sys/net/ipv6/conf/$f/accept_ra; done");
    let ipam = matrix::ipam(&node, Family::Dual);
    let run =
        |verb| node.run("bridge", verb).to(&c1).config(json!({ "isGateway": true, "ipam": ipam }));
    let result = run("ADD").call().ok();
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let accepts =
        |link: &str| node.sh(&format!("cat /proc/sys/net/ipv6/conf/{link}/accept_ra")) != "0\n";
    assert!(!accepts("cni0"));
    // What a port receives is the bridge's, and one that has no address of its own listens to nobody.
    let shown = node.sh(&format!("ip -d link show {port}"));
    assert!(
        !accepts(port) || shown.contains("addrgenmode none") && shown.contains("master cni0"),
        "{shown}"
    );
    run("DEL").prev(&result).call().silent();
}

/// CVE-2021-20206 and its like: no name from outside leads out of its folder.
#[test]
fn no_name_from_outside_leads_out_of_its_folder() {
    testkit::require!("root");
    let node = Node::new("names");
    let c1 = node.container("c1");
    let planted = node.dir("planted");
    let reach = format!("../../../../../..{}/x", planted.display());
    let ipam = matrix::ipam(&node, Family::V4);
    let add = |plugin: &str| node.run(plugin, "ADD").to(&c1);
    let refused = [
        add("bridge").network(&reach).config(json!({ "ipam": ipam })).call(),
        add("bridge").id(&reach).config(json!({ "ipam": ipam })).call(),
        add("bridge").ifname("../x").config(json!({ "ipam": ipam })).call(),
        add("bridge").config(json!({ "bridge": reach, "ipam": ipam })).call(),
        add("bridge").config(json!({ "ipam": { "type": reach } })).call(),
        add("tuning")
            .prev(&json!({ "cniVersion": "1.1.0", "ips": [] }))
            .config(json!({ "sysctl": { format!("net/ipv4/{reach}"): "1" } }))
            .call(),
    ];
    for answer in refused {
        let error = answer.error();
        assert!([4, 7].contains(&error.code), "{error}");
    }
    assert_eq!(std::fs::read_dir(&planted).unwrap().count(), 0);
    assert!(!node.roots.run.join("owners").exists());
}
