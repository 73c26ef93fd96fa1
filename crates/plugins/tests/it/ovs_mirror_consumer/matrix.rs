//! `ovs-mirror-consumer` in the table plugin × verb × address family.

use serde_json::json;

use crate::ovs_mirror_producer::matrix::{config, host, unready, vsctl};
use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "ovs-mirror-consumer",
    host: |node, _| host(node),
    config: |node, c1, family| {
        config(node, c1, family, json!({ "name": format!("m{}", c1.name()) }))
    },
    holds: |node, c1, _| {
        let found =
            vsctl(node, &format!("--bare --columns=output_port find mirror name=m{}", c1.name()));
        !found.trim().is_empty()
    },
    damage: |node, _, _| {
        vsctl(node, "clear bridge br0 mirrors");
    },
    unready: Some(|node, _| {
        let mut keys = unready(node);
        keys["mirrors"] = json!([{ "name": "m" }]);
        keys
    }),
};
matrix::tests!(SUBJECT, modules: full);
