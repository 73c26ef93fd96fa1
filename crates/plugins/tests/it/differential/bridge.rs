//! `bridge` beside the reference's.

use serde_json::{Value, json};

use super::{Case, PLAIN, tests};

fn ipam() -> Value {
    json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]] })
}

const CASES: &[Case] = &[
    Case {
        name: "bridge/no-addresses",
        chain: |_| vec![json!({ "type": "bridge", "bridge": "br0", "mtu": 1400 })],
        ..PLAIN
    },
    Case {
        name: "bridge/gateway",
        containers: 2,
        chain: |_| {
            vec![
                json!({ "type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipam": ipam() }),
            ]
        },
        ..PLAIN
    },
    Case {
        name: "bridge/gateway-v4",
        chain: |_| {
            let ipam = json!({
                "type": "host-local", "subnet": "10.1.0.0/24", "gateway": "10.1.0.254",
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "192.0.2.0/24", "gw": "10.1.0.9" }],
            });
            vec![json!({ "type": "bridge", "isGateway": true, "ipam": ipam })]
        },
        ..PLAIN
    },
    Case {
        name: "bridge/gateway-v6",
        chain: |_| {
            let ipam = json!({
                "type": "host-local", "subnet": "fd00:1::/64", "routes": [{ "dst": "::/0" }],
            });
            vec![json!({ "type": "bridge", "isGateway": true, "ipam": ipam })]
        },
        ..PLAIN
    },
    Case {
        name: "bridge/masquerade",
        chain: |_| {
            vec![json!({ "type": "bridge", "isGateway": true, "ipMasq": true, "ipam": ipam() })]
        },
        ..PLAIN
    },
    Case {
        name: "bridge/port-options",
        chain: |_| {
            vec![json!({
                "type": "bridge", "hairpinMode": true, "ipam": ipam(),
                "args": { "cni": { "mac": "02:00:00:00:00:07" } },
            })]
        },
        ..PLAIN
    },
    Case {
        name: "bridge/promiscuous",
        version: "1.1.0",
        args: "IgnoreUnknown=1;MAC=02:00:00:00:00:08",
        chain: |_| {
            vec![json!({
                "type": "bridge", "promiscMode": true, "portIsolation": true, "ipam": ipam(),
                "dns": { "nameservers": ["10.1.0.1"], "search": ["example.org"] },
            })]
        },
        ..PLAIN
    },
    Case {
        name: "bridge/existing",
        host: "ip link add br0 address 02:00:00:00:01:01 type bridge && ip addr add 10.9.0.1/24 dev br0 && ip link set br0 up",
        chain: |_| vec![json!({ "type": "bridge", "bridge": "br0", "ipam": ipam() })],
        ..PLAIN
    },
    Case {
        name: "bridge/gateway-conflict",
        succeeds: false,
        host: "ip link add br0 address 02:00:00:00:01:01 type bridge && ip addr add 10.9.0.1/24 dev br0 && ip link set br0 up",
        chain: |_| {
            let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24" });
            vec![json!({ "type": "bridge", "bridge": "br0", "isGateway": true, "ipam": ipam })]
        },
        ..PLAIN
    },
    Case {
        name: "bridge/force-address",
        host: "ip link add br0 address 02:00:00:00:01:01 type bridge && ip addr add 10.9.0.1/24 dev br0 && ip link set br0 up",
        chain: |_| {
            let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24" });
            vec![json!({
                "type": "bridge", "bridge": "br0", "isGateway": true, "forceAddress": true, "ipam": ipam,
            })]
        },
        ..PLAIN
    },
    Case {
        name: "bridge/address-twice",
        containers: 2,
        succeeds: false,
        chain: |_| {
            let ipam = json!({ "type": "static", "addresses": [{ "address": "10.1.0.2/24" }] });
            vec![json!({ "type": "bridge", "bridge": "br0", "ipam": ipam })]
        },
        ..PLAIN
    },
];
tests!(CASES);
