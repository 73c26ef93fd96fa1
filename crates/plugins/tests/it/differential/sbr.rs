//! `sbr` beside the reference's, after `bridge`.

use serde_json::{Value, json};

use super::{Case, PLAIN, tests};

/// `bridge` with addresses of both families, and `sbr` with these keys.
fn chain(sbr: Value) -> Vec<Value> {
    let ipam = json!({
        "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    });
    let mut last = json!({ "type": "sbr" });
    last.as_object_mut().unwrap().extend(sbr.as_object().unwrap().clone());
    vec![json!({ "type": "bridge", "isGateway": true, "ipam": ipam }), last]
}

const CASES: &[Case] = &[
    Case { name: "sbr/plain", chain: |_| chain(json!({})), ..PLAIN },
    Case { name: "sbr/table", chain: |_| chain(json!({ "table": 77 })), ..PLAIN },
];
tests!(CASES);
