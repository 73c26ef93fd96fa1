//! Spoof checks on a port that carries tagged frames.

use serde_json::json;
use testkit::Place as _;
use testkit::traffic::assert_pings;

use super::{ONE_V4, add, node_with};

/// The bridge neither passes on nor learns from frames with one tag or two that come from foreign
/// addresses. Without the checks it does both.
#[test]
fn vm_macspoofchk_is_not_passed_by_tagged_frames() {
    testkit::require!("full", "root", "bridge-vlan-filtering", "vlan");
    for (name, is_checked) in [("bridge-tags", true), ("bridge-tags-free", false)] {
        let node = node_with(name, ONE_V4);
        let c1 = node.container("c1");
        let config = json!({
            "macspoofchk": is_checked, "isGateway": true, "vlanTrunk": [{ "id": 7 }],
            "ipam": { "type": "fixed" },
        });
        add(&node, &c1).config(config).call().ok();
        c1.sh("ip link add link eth0 name one address 02:00:00:00:00:66 type vlan id 7 && \
             ip link set one up && ip addr add 10.7.0.1/24 dev one && \
             ip link add link one name two address 02:00:00:00:00:67 type vlan id 8 && \
             ip link set two up && ip addr add 10.8.0.1/24 dev two");
        // The containers ask for their neighbours.
        c1.try_sh("ping -c 1 -W 0.2 10.7.0.2; ping -c 1 -W 0.2 10.8.0.2");
        // The host sees this after those frames.
        assert_pings(&c1, "10.1.0.1");
        let learnt = node.sh("bridge fdb show br cni0");
        for forged in ["02:00:00:00:00:66", "02:00:00:00:00:67"] {
            assert_eq!(learnt.contains(forged), !is_checked, "{forged}: {learnt}");
        }
    }
}
