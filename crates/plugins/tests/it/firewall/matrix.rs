//! `firewall` in the table plugin × verb × address family.

use serde_json::json;

use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "firewall",
    host: |_, _| {},
    config: |node, c1, family| json!({ "backend": "iptables", "prevResult": matrix::attached(node, c1, family) }),
    holds: |node, c1, family| {
        let rules = node.sh("iptables-save; ip6tables-save");
        let last = 2 + c1.name().trim_start_matches('c').parse::<u8>().unwrap();
        let of = family.pick(format!("10.1.0.{last}"), format!("fd00:1::{last}"));
        of.iter().all(|address| rules.contains(address.as_str()))
    },
    damage: |node, _, _| {
        node.sh("iptables -F CNI-FORWARD || true; ip6tables -F CNI-FORWARD || true");
    },
    unready: Some(|node, _| {
        node.sh("mount --bind /bin/false $(readlink -f /usr/sbin/iptables)");
        json!({})
    }),
};
matrix::tests!(SUBJECT, modules: full);
