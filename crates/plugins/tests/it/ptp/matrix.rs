//! `ptp` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;

use crate::support::fixed;
use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "ptp",
    host: |_, _| {},
    config: |node, _, family| json!({ "ipMasq": true, "ipam": matrix::ipam(node, family) }),
    holds: |node, c1, _| {
        let alias = format!("netwright:n/{}/eth0", c1.name());
        fixed::succeeds(&node.lab, &format!("ip link show type veth | grep -q 'alias {alias}$'"))
            && fixed::succeeds(c1, "ip link show dev eth0 up | grep -q eth0")
    },
    damage: |_, c1, family| {
        for at in family.pick("ip route del default", "ip -6 route del default") {
            c1.sh(at);
        }
    },
    unready: Some(|node, _| {
        fixed::fails(node, "STATUS", &json!({ "code": 50, "msg": "pool is exhausted" }));
        fixed::ipam()
    }),
};
matrix::tests!(SUBJECT, modules: full);
