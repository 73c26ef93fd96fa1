//! `loopback` in the table plugin × verb × address family. It has both families always.

use serde_json::json;
use testkit::Place;

use super::is_up;
use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "loopback",
    host: |_, _| {},
    config: |_, _, _| json!({}),
    holds: |_, c1, family| {
        let address = |wanted| c1.sh("ip -o addr show dev lo").contains(wanted);
        is_up(c1)
            && (!family.has_v4() || address("127.0.0.1/8"))
            && (!family.has_v6() || address("::1/128"))
    },
    damage: |_, c1, _| {
        c1.sh("ip link set lo down");
    },
    unready: None,
};
matrix::tests!(SUBJECT, modules: full);
