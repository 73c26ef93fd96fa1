//! `host-local` beside the reference's.

use serde_json::{Value, json};

use super::{Case, PLAIN, tests};

fn with(ipam: Value) -> Vec<Value> {
    let mut whole = json!({ "type": "host-local" });
    whole.as_object_mut().unwrap().extend(ipam.as_object().unwrap().clone());
    vec![json!({ "type": "host-local", "ipam": whole })]
}

const CASES: &[Case] = &[
    Case {
        name: "host-local/legacy-range",
        containers: 3,
        chain: |_| {
            with(json!({
                "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.12",
                "gateway": "10.1.0.254", "routes": [{ "dst": "0.0.0.0/0" }],
            }))
        },
        ..PLAIN
    },
    Case {
        name: "host-local/dual",
        containers: 2,
        chain: |_| {
            with(json!({
                "ranges": [
                    [{ "subnet": "10.1.0.0/30" }, { "subnet": "10.2.0.0/24", "rangeStart": "10.2.0.7" }],
                    [{ "subnet": "fd00:1::/64" }],
                ],
                "routes": [{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }, { "dst": "::/0" }],
            }))
        },
        ..PLAIN
    },
    Case {
        name: "host-local/route-attributes",
        version: "1.1.0",
        chain: |_| {
            with(json!({
                "subnet": "fd00:1::/64",
                "routes": [{ "dst": "::/0", "mtu": 1400, "advmss": 1300, "priority": 3, "table": 5, "scope": 253 }],
            }))
        },
        ..PLAIN
    },
    Case {
        name: "host-local/range-start",
        chain: |_| {
            with(json!({
                "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.0", "rangeEnd": "10.1.0.9",
            }))
        },
        ..PLAIN
    },
    Case {
        name: "host-local/multicast",
        succeeds: false,
        chain: |_| with(json!({ "subnet": "224.0.0.0/24" })),
        ..PLAIN
    },
    Case {
        name: "host-local/loopback",
        succeeds: false,
        chain: |_| with(json!({ "subnet": "127.9.0.0/24" })),
        ..PLAIN
    },
    Case {
        name: "host-local/argument-list",
        args: "IP=10.1.0.77,fd00:1::77/64",
        chain: |_| {
            with(
                json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]] }),
            )
        },
        ..PLAIN
    },
    Case {
        name: "host-local/exhausted",
        succeeds: false,
        containers: 2,
        chain: |_| {
            with(json!({
                "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.10",
            }))
        },
        ..PLAIN
    },
    Case {
        name: "host-local/requested",
        succeeds: false,
        args: "IP=10.1.0.77",
        containers: 2,
        chain: |_| with(json!({ "subnet": "10.1.0.0/24" })),
        ..PLAIN
    },
    Case {
        name: "host-local/requested-by-capability",
        chain: |number| {
            let mut chain = with(json!({ "ranges": [[{ "subnet": "10.1.0.0/24" }]] }));
            chain[0]["runtimeConfig"] = json!({
                "ips": [format!("fd00:1::{number}:7/64")],
                "ipRanges": [[{ "subnet": "fd00:1::/64" }]],
            });
            chain
        },
        containers: 2,
        ..PLAIN
    },
    Case {
        name: "host-local/resolv-conf",
        host: "printf 'nameserver 192.0.2.53\\nnameserver 2001:db8::53\\ndomain example.org\\nsearch a.example b.example\\noptions ndots:2\\n' >/etc/resolv.test",
        chain: |_| with(json!({ "subnet": "10.1.0.0/24", "resolvConf": "/etc/resolv.test" })),
        ..PLAIN
    },
    Case {
        name: "host-local/bad-subnet",
        succeeds: false,
        chain: |_| with(json!({ "subnet": "10.1.0.7/24" })),
        ..PLAIN
    },
    Case {
        name: "host-local/data-dir",
        chain: |_| with(json!({ "subnet": "10.1.0.0/24", "dataDir": "/var/lib/cni/elsewhere" })),
        ..PLAIN
    },
];
tests!(CASES);
