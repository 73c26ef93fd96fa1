//! `loopback` beside the reference's.

use serde_json::json;

use super::{Case, PLAIN, tests};

const CASES: &[Case] = &[
    Case { name: "loopback/plain", chain: |_| vec![json!({ "type": "loopback" })], ..PLAIN },
    Case {
        name: "loopback/1.1.0",
        version: "1.1.0",
        chain: |_| vec![json!({ "type": "loopback" })],
        ..PLAIN
    },
    Case {
        name: "loopback/without-v6",
        container: "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.lo.disable_ipv6=1",
        chain: |_| vec![json!({ "type": "loopback" })],
        ..PLAIN
    },
    Case {
        name: "loopback/foreign-address",
        succeeds: false,
        container: "ip addr add 192.0.2.1/32 dev lo",
        chain: |_| vec![json!({ "type": "loopback" })],
        ..PLAIN
    },
];
tests!(CASES);
