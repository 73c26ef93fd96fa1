//! `ovs` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;
use testkit::real::Ovs;

use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "ovs",
    host: |node, _| {
        let ovs = Ovs::start(&node.lab);
        ovs.add_bridge("br0");
        ovs.leave();
    },
    config: |node, _, family| {
        let socket = node.lab.dir().join("ovs/db.sock");
        json!({ "bridge": "br0", "socket_file": socket, "ipam": matrix::ipam(node, family) })
    },
    holds: |node, c1, _| {
        let socket = node.lab.dir().join("ovs/db.sock");
        let find = format!(
            "ovs-vsctl --timeout=20 --db=unix:{} --columns=name find port external_ids:netwright-container={}",
            socket.display(),
            c1.name()
        );
        let found = node.sh(&find);
        !found.trim().is_empty()
            && c1.try_sh("ip link show dev eth0 up | grep -q eth0").status.success()
    },
    damage: |_, c1, _| {
        c1.sh("ip addr flush dev eth0 scope global");
    },
    unready: Some(|node, _| {
        let socket = node.lab.dir().join("ovs/db.sock");
        json!({ "bridge": "missing", "socket_file": socket })
    }),
};
matrix::tests!(SUBJECT, modules: full);
