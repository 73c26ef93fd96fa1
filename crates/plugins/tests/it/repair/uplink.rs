//! The host's default route does not lead to containers.

use serde_json::json;

use super::Chain;
use crate::support::Node;

/// A bridge on which the host has no address, and a default route without a gateway, as by PPP or a
/// VPN: host ports and `route_localnet` followed that route to the uplink.
#[test]
fn a_default_route_without_a_gateway_is_no_way_to_a_container() {
    testkit::require!("root");
    let node = Node::new("uplink-default");
    node.sh("ip link add tun0 type veth peer name tun1 && ip link set tun1 up && \
         ip link set tun0 up && ip route add default dev tun0");
    let c1 = node.container("c1");
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"), "ranges": [[{ "subnet": "10.1.0.0/24" }]],
    });
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    let plugins = vec![
        ("bridge", json!({ "ipam": ipam })),
        ("portmap", json!({ "runtimeConfig": { "portMappings": ports } })),
    ];
    let chain = Chain::add(&node, &c1, plugins);
    let made = node.sh(
        "nft list table inet netwright; grep -l 1 /proc/sys/net/ipv4/conf/*/route_localnet || true",
    );
    assert!(made.contains("10.1.0.2") && !made.contains("tun0"), "{made}");
    assert!(chain.drift().is_empty(), "{:?}", chain.drift());
    chain.del();
}
