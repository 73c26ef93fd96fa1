//! `cluster-ipam` in the table plugin × verb × address family.

use serde_json::{Value, json};
use testkit::Place;

use crate::support::cluster::Daemon;
use crate::support::matrix::{self, Family, Subject};

fn ranges(family: Family, v4: &str, v6: &str) -> Value {
    let ranges = family.pick(json!({ "range": v4 }), json!({ "range": v6 }));
    json!({ "ipam": { "type": "cluster-ipam", "ipRanges": ranges } })
}

const SUBJECT: Subject = Subject {
    plugin: "cluster-ipam",
    host: |node, _| Daemon::start(node).forget(),
    config: |_, _, family| ranges(family, "10.1.0.0/24", "fd00:1::/64"),
    holds: |node, c1, _| {
        let given = format!("grep -qs ^{} {}/n/*[.:]*", c1.name(), node.dir("ipam").display());
        node.lab.try_sh(&given).status.success()
    },
    damage: |node, _, _| {
        node.sh(&format!("rm {}/n/*[.:]*[0-9]", node.dir("ipam").display()));
    },
    unready: Some(|node, family| {
        // Ranges of one address, which another container has.
        for only in ["10.2.0.5", "fd00:2::5"] {
            node.sh(&format!("printf 'c9\\neth0' > {}/n/{only}", node.dir("ipam").display()));
        }
        ranges(family, "10.2.0.5-10.2.0.5/24", "fd00:2::5-fd00:2::5/64")
    }),
};
matrix::tests!(SUBJECT, modules: full);
