//! `host-device` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;

use super::{device, succeeds};
use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "host-device",
    host: |_, _| {},
    config: |node, c1, family| {
        let name = format!("d{}", c1.name());
        if !succeeds(&node.lab, &format!("ip link show dev {name}")) {
            device(node, &name);
        }
        json!({ "device": name, "ipam": matrix::ipam(node, family) })
    },
    holds: |node, c1, _| {
        let name = format!("d{}", c1.name());
        succeeds(c1, &format!("ip link show dev eth0 up | grep -q 'alias {name}$'"))
            && !succeeds(&node.lab, &format!("ip link show dev {name}"))
    },
    damage: |_, c1, _| {
        c1.sh("ip addr flush dev eth0 scope global");
    },
    unready: Some(|_, _| json!({ "device": "missing" })),
};
matrix::tests!(SUBJECT, modules: full);
