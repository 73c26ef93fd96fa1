//! `multi` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;

use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "multi",
    host: |_, _| {},
    config: |node, _, family| {
        json!({ "networks": [
            { "config": { "type": "bridge", "bridge": "first", "isGateway": true, "ipam": matrix::ipam(node, family) } },
            { "config": { "type": "bridge", "bridge": "second" } },
        ] })
    },
    holds: |node, c1, _| {
        let port = |bridge: &str| {
            let seen = format!("ip link show master {bridge} | grep -q netwright:");
            node.lab.try_sh(&seen).status.success()
        };
        port("first") && port("second") && c1.try_sh("ip link show dev net1 up").status.success()
    },
    // Deletes the last network's link.
    damage: |_, c1, _| {
        c1.sh("ip link set net1 down");
    },
    unready: Some(|node, family| {
        node.sh("ip link add notbridge type veth peer name other");
        json!({ "networks": [
            { "config": { "type": "bridge" } },
            { "config": { "type": "bridge", "bridge": "notbridge", "ipam": matrix::ipam(node, family) } },
        ] })
    }),
};
matrix::tests!(SUBJECT, modules: full);
