//! `portmap` beside the reference's, after `bridge`.

use serde_json::{Value, json};

use super::{Case, PLAIN, tests};

/// `bridge` with addresses of both families, and `portmap` with these keys.
fn chain(portmap: Value, mappings: Value) -> Vec<Value> {
    let ipam = json!({
        "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    });
    let mut last = json!({
        "type": "portmap", "capabilities": { "portMappings": true },
        "runtimeConfig": { "portMappings": mappings },
    });
    last.as_object_mut().unwrap().extend(portmap.as_object().unwrap().clone());
    vec![json!({ "type": "bridge", "isGateway": true, "ipam": ipam }), last]
}

const CASES: &[Case] = &[
    Case {
        name: "portmap/iptables",
        containers: 2,
        chain: |number| {
            chain(
                json!({ "backend": "iptables" }),
                json!([
                    { "hostPort": 8080 + number, "containerPort": 80, "protocol": "tcp" },
                    { "hostPort": 8080 + number, "containerPort": 80, "protocol": "udp" },
                    { "hostPort": 9090 + number, "containerPort": 90, "protocol": "tcp", "hostIP": "192.0.2.1" },
                    { "hostPort": 9190 + number, "containerPort": 91, "protocol": "tcp", "hostIP": "2001:db8::1" },
                ]),
            )
        },
        ..PLAIN
    },
    Case {
        name: "portmap/iptables-options",
        chain: |_| {
            chain(
                json!({
                    "backend": "iptables", "masqAll": true, "markMasqBit": 5,
                    "conditionsV4": ["!", "-s", "192.0.2.0/24"], "conditionsV6": ["!", "-s", "2001:db8::/32"],
                }),
                json!([{ "hostPort": 8081, "containerPort": 80, "protocol": "tcp" }]),
            )
        },
        ..PLAIN
    },
    Case {
        name: "portmap/iptables-no-snat",
        chain: |_| {
            chain(
                json!({ "backend": "iptables", "snat": false }),
                json!([{ "hostPort": 8081, "containerPort": 80, "protocol": "tcp" }]),
            )
        },
        ..PLAIN
    },
    Case {
        name: "portmap/default",
        chain: |_| {
            chain(json!({}), json!([{ "hostPort": 8081, "containerPort": 80, "protocol": "tcp" }]))
        },
        ..PLAIN
    },
    Case { name: "portmap/nothing", chain: |_| chain(json!({}), json!([])), ..PLAIN },
    Case {
        name: "portmap/bad-port",
        succeeds: false,
        chain: |_| {
            chain(json!({}), json!([{ "hostPort": 0, "containerPort": 80, "protocol": "tcp" }]))
        },
        ..PLAIN
    },
];
tests!(CASES);
