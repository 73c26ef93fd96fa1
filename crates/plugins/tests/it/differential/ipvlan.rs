//! `ipvlan` beside the reference's.

use serde_json::json;

use super::{Case, PARENT, PLAIN, dual_stack, vm_tests};

const CASES: &[Case] = &[
    Case {
        name: "ipvlan/dual",
        host: PARENT,
        containers: 2,
        chain: |_| vec![json!({ "type": "ipvlan", "master": "p0", "ipam": dual_stack() })],
        ..PLAIN
    },
    Case {
        name: "ipvlan/l3-v4",
        host: PARENT,
        version: "1.1.0",
        chain: |_| {
            let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24" });
            vec![json!({
                "type": "ipvlan", "master": "p0", "mode": "l3", "mtu": 1400, "ipam": ipam,
            })]
        },
        ..PLAIN
    },
    Case {
        name: "ipvlan/no-parent",
        succeeds: false,
        chain: |_| vec![json!({ "type": "ipvlan", "master": "p7", "ipam": dual_stack() })],
        ..PLAIN
    },
];
vm_tests!(CASES, "ipvlan");
