//! The fifteen matrix tests of `cnm`, with a driver that assigns the addresses too.

use serde_json::json;
use testkit::Place;
use testkit::driver::Driver;

use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "cnm",
    // The driver ends with the test's thread.
    host: |node, _| std::mem::forget(Driver::start(&node.lab, "weft")),
    config: |_, _, family| {
        let subnets =
            family.pick(json!({ "subnet": "10.1.0.0/24" }), json!({ "subnet": "fd00:1::/64" }));
        json!({ "driver": "weft", "ipamDriver": "weft", "subnets": subnets })
    },
    holds: |_, c1, _| c1.try_sh("ip link show eth0 | grep -q 'alias netwright:'").status.success(),
    damage: |_, c1, _| {
        c1.sh("ip link set eth0 down");
    },
    unready: Some(|_, _| json!({ "driver": "missing" })),
};

matrix::tests!(SUBJECT, modules: full);
