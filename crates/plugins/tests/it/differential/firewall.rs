//! `firewall` beside the reference's, after `bridge`.

use serde_json::{Value, json};

use super::{Case, PLAIN, tests};

/// `bridge` with addresses of both families, and `firewall` with these keys.
fn chain(firewall: Value) -> Vec<Value> {
    let ipam = json!({
        "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    });
    let mut last = json!({ "type": "firewall" });
    last.as_object_mut().unwrap().extend(firewall.as_object().unwrap().clone());
    vec![json!({ "type": "bridge", "isGateway": true, "ipam": ipam }), last]
}

const CASES: &[Case] = &[
    Case {
        name: "firewall/iptables",
        containers: 2,
        chain: |_| chain(json!({ "backend": "iptables" })),
        ..PLAIN
    },
    Case {
        name: "firewall/iptables-admin-chain",
        chain: |_| chain(json!({ "backend": "iptables", "iptablesAdminChainName": "MINE" })),
        ..PLAIN
    },
    Case {
        name: "firewall/iptables-same-bridge",
        chain: |_| chain(json!({ "backend": "iptables", "ingressPolicy": "same-bridge" })),
        ..PLAIN
    },
    Case {
        // The installed release does not know this.
        name: "firewall/iptables-isolated",
        version: "1.1.0",
        containers: 2,
        chain: |_| chain(json!({ "backend": "iptables", "ingressPolicy": "isolated" })),
        ..PLAIN
    },
    Case {
        name: "firewall/old-version",
        version: "0.3.1",
        succeeds: false,
        chain: |_| chain(json!({})),
        ..PLAIN
    },
    Case { name: "firewall/default", chain: |_| chain(json!({})), ..PLAIN },
    Case {
        name: "firewall/default-same-bridge",
        chain: |_| chain(json!({ "ingressPolicy": "same-bridge" })),
        ..PLAIN
    },
    Case {
        name: "firewall/bad-policy",
        succeeds: false,
        chain: |_| chain(json!({ "ingressPolicy": "nonsense" })),
        ..PLAIN
    },
];
tests!(CASES);
