//! `vlan` beside the reference's.

use serde_json::json;

use super::{Case, PARENT, PLAIN, dual_stack, vm_tests};

const CASES: &[Case] = &[
    Case {
        name: "vlan/mtu-v4",
        host: PARENT,
        version: "1.1.0",
        chain: |_| {
            let ipam = json!({
                "type": "host-local", "subnet": "10.1.0.0/24", "routes": [{ "dst": "0.0.0.0/0" }],
            });
            vec![json!({ "type": "vlan", "master": "p0", "vlanId": 8, "mtu": 1400, "ipam": ipam })]
        },
        ..PLAIN
    },
    // The first container gets it.
    Case {
        name: "vlan/taken",
        succeeds: false,
        host: PARENT,
        containers: 2,
        chain: |_| {
            vec![json!({ "type": "vlan", "master": "p0", "vlanId": 7, "ipam": dual_stack() })]
        },
        ..PLAIN
    },
];
vm_tests!(CASES, "vlan");
