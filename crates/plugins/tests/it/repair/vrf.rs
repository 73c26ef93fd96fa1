//! Containers on a bridge that belongs to a VRF.

use serde_json::json;

use super::Chain;
use crate::support::Node;

/// The host's default route has no gateway, as behind a VPN. In the main table it is the only one
/// that leads to the container: host ports and `route_localnet` followed it.
#[test]
fn vm_host_ports_use_the_bridge_that_is_in_a_vrf() {
    testkit::require!("full", "root", "vrf");
    let node = Node::new("vrf-ports");
    node.sh("ip link add red type vrf table 10 && ip link set red up && \
         ip link add cni0 type bridge && ip link set cni0 master red && ip link set cni0 up && \
         ip link add tun0 type veth peer name tun1 && ip link set tun1 up && \
         ip link set tun0 up && ip route add default dev tun0");
    let c1 = node.container("c1");
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"), "ranges": [[{ "subnet": "10.1.0.0/24" }]],
    });
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    let plugins = vec![
        ("bridge", json!({ "isDefaultGateway": true, "ipam": ipam })),
        ("portmap", json!({ "runtimeConfig": { "portMappings": ports } })),
    ];
    let chain = Chain::add(&node, &c1, plugins);
    let made = node
        .sh("nft list table inet netwright; grep -l 1 /proc/sys/net/ipv4/conf/*/route_localnet");
    assert!(made.contains("\"cni0\"") && made.contains("conf/cni0/"), "{made}");
    assert!(!made.contains("tun0"), "{made}");
    assert!(chain.drift().is_empty(), "{:?}", chain.drift());
    chain.del();
    let localnet = "cat /proc/sys/net/ipv4/conf/cni0/route_localnet";
    assert_eq!(node.sh(localnet), "0\n");
}
