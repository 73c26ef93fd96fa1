//! `macvlan` beside the reference's.

use serde_json::json;

use super::{Case, PARENT, PLAIN, dual_stack, tests};

const CASES: &[Case] = &[
    Case {
        name: "macvlan/dual",
        host: PARENT,
        containers: 2,
        chain: |_| vec![json!({ "type": "macvlan", "master": "p0", "ipam": dual_stack() })],
        ..PLAIN
    },
    Case {
        name: "macvlan/private",
        host: PARENT,
        version: "1.1.0",
        chain: |_| {
            vec![json!({
                "type": "macvlan", "master": "p0", "mode": "private", "mtu": 1400, "mac": "02:00:00:00:00:07",
            })]
        },
        ..PLAIN
    },
    Case {
        name: "macvlan/default-route-v4",
        host: "ip link add p0 address 02:00:00:00:01:01 type veth peer name p1 address 02:00:00:00:01:02 && \
            ip link set p0 up && ip link set p1 up && ip addr add 192.0.2.1/24 dev p0 && ip route add default via 192.0.2.2",
        args: "IgnoreUnknown=1;MAC=02:00:00:00:00:08",
        chain: |_| {
            let ipam = json!({
                "type": "host-local", "subnet": "10.1.0.0/24", "routes": [{ "dst": "0.0.0.0/0" }],
            });
            vec![json!({ "type": "macvlan", "mode": "vepa", "ipam": ipam })]
        },
        ..PLAIN
    },
    Case {
        name: "macvlan/mtu-too-large",
        succeeds: false,
        host: PARENT,
        chain: |_| {
            vec![json!({ "type": "macvlan", "master": "p0", "mtu": 9000, "ipam": dual_stack() })]
        },
        ..PLAIN
    },
    Case {
        name: "macvlan/address-twice",
        succeeds: false,
        host: PARENT,
        containers: 2,
        chain: |_| {
            let ipam = json!({ "type": "static", "addresses": [{ "address": "10.1.0.5/24" }] });
            vec![json!({ "type": "macvlan", "master": "p0", "ipam": ipam })]
        },
        ..PLAIN
    },
    Case {
        name: "macvlan/no-parent",
        succeeds: false,
        chain: |_| vec![json!({ "type": "macvlan", "master": "p7", "ipam": dual_stack() })],
        ..PLAIN
    },
];
tests!(CASES);
