//! Containers on a bridge that belongs to a VRF.

use serde_json::json;
use testkit::traffic::assert_pings;

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

/// A bridge that left its VRF returns, with what the kernel took from it. If the VRF is gone, its
/// administrator creates it again.
#[test]
fn vm_a_bridge_returns_to_its_vrf() {
    testkit::require!("root", "vrf");
    let node = Node::new("vrf-back");
    let create = "ip link add red type vrf table 10 && ip link set red up";
    node.sh(create);
    let c1 = node.container("c1");
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"),
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]],
    });
    let keys = json!({ "isDefaultGateway": true, "vrf": "red", "ipam": ipam });
    let chain = Chain::add(&node, &c1, vec![("bridge", keys)]);
    for (damage, by_hand) in [
        ("ip link set cni0 nomaster", None),
        ("ip link del red", Some(create)),
        ("ip link del cni0", None),
    ] {
        node.sh(damage);
        let drift = chain.drift();
        assert!(drift[0].contains("VRF \"red\"") || damage.contains("cni0"), "{damage}: {drift:?}");
        if let Some(remedy) = by_hand {
            let (_, left) = chain.repair_times(1);
            assert!(left[0].contains("VRF \"red\" is gone"), "{left:?}");
            node.sh(remedy);
        }
        let (_, left) = chain.repair();
        assert!(left.is_empty(), "{damage}: {left:?}");
        assert!(chain.drift().is_empty(), "{damage}: {:?}", chain.drift());
        assert!(node.sh("ip -o link show cni0").contains("master red"));
        assert_pings(&c1, "10.1.0.1");
        assert_pings(&c1, "fd01::1");
    }
    chain.del();
    assert!(node.sh("ip -o link show").contains("red:"));
}
