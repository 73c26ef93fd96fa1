//! `tap` beside the reference's, which the installed release does not have.

use serde_json::{Value, json};

use super::{Case, PLAIN, unstable_tests};

fn ipam() -> Value {
    json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]] })
}

const CASES: &[Case] = &[
    Case { name: "tap/dual", chain: |_| vec![json!({ "type": "tap", "ipam": ipam() })], ..PLAIN },
    Case {
        name: "tap/options",
        version: "1.1.0",
        chain: |_| {
            let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24" });
            vec![json!({
                "type": "tap", "multiQueue": true, "mtu": 1400, "mac": "02:00:00:00:00:07", "ipam": ipam,
            })]
        },
        ..PLAIN
    },
    Case {
        name: "tap/owner",
        chain: |_| {
            let ipam = json!({ "type": "host-local", "subnet": "fd00:1::/64" });
            vec![json!({ "type": "tap", "owner": 1000, "group": 1000, "ipam": ipam })]
        },
        ..PLAIN
    },
];
unstable_tests!(CASES);
