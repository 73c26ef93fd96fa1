//! `chain` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;

use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "chain",
    host: |_, _| {},
    config: |node, _, family| {
        json!({ "plugins": [
            { "type": "bridge", "isGateway": true, "ipam": matrix::ipam(node, family) },
            { "type": "tuning", "mtu": 1400 },
        ] })
    },
    holds: |node, c1, _| {
        node.lab.try_sh("ip link show master cni0 | grep -q netwright:").status.success()
            && c1.try_sh("ip link show dev eth0 up | grep -q 'mtu 1400'").status.success()
    },
    // Deletes what the last plugin made.
    damage: |_, c1, _| {
        c1.sh("ip link set eth0 mtu 1300");
    },
    unready: Some(|node, family| {
        node.sh("ip link add notbridge type veth peer name other");
        json!({ "plugins": [
            { "type": "tuning" },
            { "type": "bridge", "bridge": "notbridge", "ipam": matrix::ipam(node, family) },
        ] })
    }),
};
matrix::tests!(SUBJECT, modules: full);
