//! `tuning` beside the reference's, after `bridge`.

use serde_json::{Value, json};

use super::{Case, PLAIN, tests};

/// `bridge` with addresses of both families, and `tuning` with these keys.
fn chain(tuning: Value) -> Vec<Value> {
    let ipam = json!({
        "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
    });
    let mut last = json!({ "type": "tuning" });
    last.as_object_mut().unwrap().extend(tuning.as_object().unwrap().clone());
    vec![json!({ "type": "bridge", "ipam": ipam }), last]
}

const CASES: &[Case] = &[
    Case {
        name: "tuning/sysctls",
        chain: |_| {
            chain(json!({ "sysctl": {
                "net.ipv4.conf.IFNAME.arp_filter": "1",
                "net.ipv6.conf.IFNAME.accept_ra": "0",
                "net.core.somaxconn": "500",
            } }))
        },
        ..PLAIN
    },
    Case {
        name: "tuning/link",
        chain: |_| {
            chain(json!({
                "mac": "02:00:00:00:00:07", "mtu": 1400, "promisc": true, "allmulti": true,
            }))
        },
        ..PLAIN
    },
    Case {
        name: "tuning/args",
        version: "1.1.0",
        chain: |_| {
            chain(json!({
                "mtu": 1400, "sysctl": { "net.core.somaxconn": "500" },
                "args": { "cni": { "mtu": 1300, "txQLen": 7, "sysctl": { "net.core.somaxconn": "600" } } },
            }))
        },
        ..PLAIN
    },
    Case {
        name: "tuning/not-allowed",
        succeeds: false,
        host: "mkdir -p /etc/cni/tuning && echo '^net.ipv4' >/etc/cni/tuning/allowlist.conf",
        chain: |_| chain(json!({ "sysctl": { "net.core.somaxconn": "500" } })),
        ..PLAIN
    },
    Case {
        name: "tuning/bad-key",
        succeeds: false,
        chain: |_| chain(json!({ "sysctl": { "kernel.hostname": "x" } })),
        ..PLAIN
    },
];
tests!(CASES);
