//! `portmap` in the table plugin × verb × address family.

use serde_json::json;

use super::mapping;
use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "portmap",
    host: |_, _| {},
    config: |node, c1, family| {
        let number: u16 = c1.name().trim_start_matches('c').parse().unwrap();
        json!({
            "prevResult": matrix::attached(node, c1, family),
            "runtimeConfig": { "portMappings": [mapping(8080 + number, "tcp")] },
        })
    },
    holds: |node, c1, family| {
        let rules = node.sh("nft list ruleset");
        let last = 2 + c1.name().trim_start_matches('c').parse::<u8>().unwrap();
        let to = family.pick(format!("10.1.0.{last}"), format!("fd00:1::{last}"));
        to.iter().all(|address| rules.contains(address.as_str()))
    },
    damage: |node, _, _| {
        node.sh("nft flush ruleset");
    },
    unready: Some(|node, _| {
        node.sh("mount --bind /bin/false $(readlink -f /usr/sbin/iptables)");
        json!({ "backend": "iptables" })
    }),
};
matrix::tests!(SUBJECT, modules: full);
