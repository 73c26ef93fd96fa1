//! `bridge` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;

use super::succeeds;
use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "bridge",
    host: |_, _| {},
    config: |node, _, family| json!({ "isGateway": true, "ipMasq": true, "ipam": matrix::ipam(node, family) }),
    holds: |node, c1, _| {
        let alias = format!("netwright:n/{}/eth0", c1.name());
        succeeds(&node.lab, &format!("ip link show master cni0 | grep -q 'alias {alias}$'"))
            && succeeds(c1, "ip link show dev eth0 up | grep -q eth0")
    },
    damage: |_, c1, _| {
        c1.sh("ip addr flush dev eth0 scope global");
    },
    unready: Some(|node, _| {
        node.sh("ip link add notbridge type veth peer name other");
        json!({ "bridge": "notbridge" })
    }),
};
matrix::tests!(SUBJECT);
