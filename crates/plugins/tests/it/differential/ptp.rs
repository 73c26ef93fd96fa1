//! `ptp` beside the reference's.

use serde_json::{Value, json};

use super::{Case, PLAIN, tests};

fn ipam() -> Value {
    json!({
        "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    })
}

const CASES: &[Case] = &[
    Case {
        name: "ptp/dual",
        containers: 2,
        chain: |_| vec![json!({ "type": "ptp", "ipam": ipam() })],
        ..PLAIN
    },
    Case {
        name: "ptp/v4",
        version: "1.1.0",
        chain: |_| {
            let ipam = json!({
                "type": "host-local", "subnet": "10.1.0.0/24", "routes": [{ "dst": "0.0.0.0/0" }],
            });
            vec![json!({
                "type": "ptp", "mtu": 1400, "ipam": ipam, "dns": { "nameservers": ["10.1.0.1"] },
            })]
        },
        ..PLAIN
    },
    Case {
        name: "ptp/masquerade-v6",
        chain: |_| {
            let ipam = json!({ "type": "host-local", "subnet": "fd00:1::/64" });
            vec![json!({ "type": "ptp", "ipMasq": true, "ipam": ipam })]
        },
        ..PLAIN
    },
    Case {
        name: "ptp/no-addresses",
        succeeds: false,
        chain: |_| vec![json!({ "type": "ptp" })],
        ..PLAIN
    },
];
tests!(CASES);
