//! `policy` in the table plugin × verb × address family.

use serde_json::json;

use super::{no_bridge_shows, ready, verdicts};
use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "policy",
    host: |node, _| {
        ready(node);
        no_bridge_shows(node);
    },
    config: |node, c1, family| json!({ "prevResult": matrix::attached(node, c1, family) }),
    holds: |node, c1, family| {
        let name = c1.name();
        // DEL of `policy` only sets the link down; the plugin that made the link would delete it.
        node.sh(&format!("ip link set v{name} up 2>/dev/null || true"));
        let last = 2 + name.trim_start_matches('c').parse::<u8>().unwrap();
        let all = verdicts(node);
        let mut of =
            family.pick(format!("4 10.1.0.{last} "), format!("6 fd00:1::{last} ")).into_iter();
        of.all(|address| all.iter().filter(|verdict| verdict.contains(&address)).count() == 2)
    },
    damage: |node, _, _| {
        node.sh("ip link set cni0 type bridge nf_call_iptables 0 nf_call_ip6tables 0");
    },
    unready: Some(|node, _| json!({ "socketpath": node.dir("other").join("policy.sock") })),
};
matrix::tests!(SUBJECT, modules: full);
