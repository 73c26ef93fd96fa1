//! `vlan` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;

use crate::support::matrix::{self, Subject};

/// Each container has its own VLAN: a parent can have each only once.
const SUBJECT: Subject = Subject {
    plugin: "vlan",
    host: |node, _| {
        node.sh("ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up");
    },
    config: |node, container, family| {
        let id: u16 = container.name().trim_start_matches('c').parse().unwrap();
        json!({ "master": "p0", "vlanId": 100 + id, "ipam": matrix::ipam(node, family) })
    },
    holds: |_, c1, _| {
        c1.try_sh("ip -d link show eth0 up | grep -q 'vlan protocol'").status.success()
    },
    damage: |_, c1, _| {
        c1.sh("ip addr flush dev eth0 scope global");
    },
    unready: Some(|_, _| json!({ "master": "missing" })),
};
matrix::vm_tests!(SUBJECT, "vlan");
