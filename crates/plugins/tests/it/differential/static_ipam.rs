//! `static` beside the reference's.

use serde_json::{Value, json};

use super::{Case, PLAIN, tests};

/// The plugin alone, with these keys beside `ipam`.
fn with(ipam: Value, more: Value) -> Vec<Value> {
    let mut plugin = json!({ "type": "static" });
    let mut whole = json!({ "type": "static" });
    whole.as_object_mut().unwrap().extend(ipam.as_object().unwrap().clone());
    let keys = plugin.as_object_mut().unwrap();
    keys.insert("ipam".to_owned(), whole);
    keys.extend(more.as_object().unwrap().clone());
    vec![plugin]
}

fn both() -> Value {
    json!({
        "addresses": [
            { "address": "10.1.0.2/24", "gateway": "10.1.0.1" },
            { "address": "fd00:1::2/64", "gateway": "fd00:1::1" },
        ],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0", "gw": "fd00:1::1" }],
        "dns": { "nameservers": ["10.1.0.1"], "search": ["example.com"] },
    })
}

const CASES: &[Case] = &[
    Case { name: "static/dual", chain: |_| with(both(), json!({})), ..PLAIN },
    Case { name: "static/old", version: "0.2.0", chain: |_| with(both(), json!({})), ..PLAIN },
    Case { name: "static/nothing", chain: |_| with(json!({}), json!({})), ..PLAIN },
    Case {
        name: "static/arguments",
        args: "IP=10.2.0.7/24,fd00:2::7/64;GATEWAY=10.2.0.1",
        chain: |_| with(both(), json!({})),
        ..PLAIN
    },
    Case {
        name: "static/runtime",
        chain: |_| with(both(), json!({ "runtimeConfig": { "ips": ["10.3.0.7/24"] } })),
        ..PLAIN
    },
    Case {
        name: "static/runtime-picks",
        chain: |_| with(both(), json!({ "runtimeConfig": { "ips": ["10.1.0.2/24"] } })),
        ..PLAIN
    },
    Case {
        name: "static/runtime-gateway",
        args: "GATEWAY=10.3.0.1",
        chain: |_| with(json!({}), json!({ "runtimeConfig": { "ips": ["10.3.0.7/24"] } })),
        ..PLAIN
    },
    Case {
        name: "static/no-prefix",
        succeeds: false,
        chain: |_| with(json!({ "addresses": [{ "address": "10.1.0.2" }] }), json!({})),
        ..PLAIN
    },
];
tests!(CASES);
