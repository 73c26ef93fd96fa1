//! `tap` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;

use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "tap",
    host: |_, _| {},
    config: |node, _, family| json!({ "ipam": matrix::ipam(node, family) }),
    holds: |_, c1, _| {
        c1.try_sh("ip -d link show dev eth0 up | grep -q 'tun type tap'").status.success()
    },
    damage: |_, c1, _| {
        c1.sh("ip addr flush dev eth0 scope global");
    },
    unready: Some(|node, _| {
        node.sh("mount -t tmpfs none /dev/net");
        json!({})
    }),
};
matrix::tests!(SUBJECT, modules: full);
