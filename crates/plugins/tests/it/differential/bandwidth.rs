//! `bandwidth` beside the reference's, after `bridge`.

use serde_json::{Value, json};

use super::{Case, PLAIN, tests};

/// `bridge` with addresses of both families, and `bandwidth` with these keys.
fn chain(bandwidth: Value) -> Vec<Value> {
    let ipam = json!({
        "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
    });
    let mut last = json!({ "type": "bandwidth" });
    last.as_object_mut().unwrap().extend(bandwidth.as_object().unwrap().clone());
    vec![json!({ "type": "bridge", "isGateway": true, "ipam": ipam }), last]
}

/// The cases that this machine's kernel can run.
const CASES: &[Case] = &[
    Case {
        name: "bandwidth/ingress",
        chain: |_| chain(json!({ "ingressRate": 20_000_000, "ingressBurst": 2_000_000 })),
        ..PLAIN
    },
    Case { name: "bandwidth/none", chain: |_| chain(json!({})), ..PLAIN },
    Case {
        name: "bandwidth/no-burst",
        succeeds: false,
        chain: |_| chain(json!({ "ingressRate": 20_000_000 })),
        ..PLAIN
    },
];
tests!(CASES);

mod vm {
    use serde_json::json;

    use super::super::{Case, PLAIN, vm_tests};
    use super::chain;

    const CASES: &[Case] = &[Case {
        name: "bandwidth/egress",
        chain: |_| {
            let mut chain = chain(json!({}));
            chain[1]["runtimeConfig"] = json!({ "bandwidth": {
                "ingressRate": 20_000_000, "ingressBurst": 2_000_000,
                "egressRate": 10_000_000, "egressBurst": 1_000_000,
            } });
            chain
        },
        ..PLAIN
    }];
    vm_tests!(CASES, "ifb", "tbf", "act_mirred");
}
