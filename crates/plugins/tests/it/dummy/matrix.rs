//! `dummy` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;

use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "dummy",
    host: |_, _| {},
    config: |node, _, family| json!({ "ipam": matrix::ipam(node, family) }),
    holds: |_, c1, _| c1.try_sh("ip -d link show dev eth0 up | grep -qw dummy").status.success(),
    damage: |_, c1, _| {
        c1.sh("ip link set eth0 down");
    },
    // The kernel has the driver, or the test does not run; another test shows STATUS without it.
    unready: None,
};
matrix::vm_tests!(SUBJECT, "dummy");
