//! `host-local` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;

use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "host-local",
    host: |_, _| {},
    config: |node, _, family| json!({ "ipam": matrix::ipam(node, family) }),
    holds: |node, c1, _| {
        let reserved = format!("grep -qs ^{} {}/n/*[.:]*", c1.name(), node.dir("ipam").display());
        node.lab.try_sh(&reserved).status.success()
    },
    damage: |node, _, _| {
        node.sh(&format!("rm {}/n/*[.:]*[0-9]", node.dir("ipam").display()));
    },
    unready: Some(|node, family| {
        // A pool of one address, which another container has.
        let mut ipam = matrix::ipam(node, family);
        let ranges = family.pick(("10.2.0.0/24", "10.2.0.5"), ("fd00:2::/64", "fd00:2::5"));
        ipam["ranges"] = ranges
            .iter()
            .map(|(subnet, only)| json!([{ "subnet": subnet, "rangeStart": only, "rangeEnd": only }]))
            .collect();
        let (_, last) = ranges[ranges.len() - 1];
        node.sh(&format!("printf 'c9\\neth0' > {}/n/{last}", node.dir("ipam").display()));
        json!({ "ipam": ipam })
    }),
};
matrix::tests!(SUBJECT, modules: full);
