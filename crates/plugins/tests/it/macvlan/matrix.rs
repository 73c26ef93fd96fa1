//! `macvlan` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;

use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "macvlan",
    host: |node, _| {
        node.sh("ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up");
    },
    config: |node, _, family| json!({ "master": "p0", "ipam": matrix::ipam(node, family) }),
    holds: |_, c1, _| c1.try_sh("ip -d link show eth0 up | grep -q macvlan").status.success(),
    damage: |_, c1, _| {
        c1.sh("ip addr flush dev eth0 scope global");
    },
    unready: Some(|_, _| json!({ "master": "missing" })),
};
matrix::tests!(SUBJECT, modules: full);
