//! `ovs-mirror-producer` in the table plugin × verb × address family.

use serde_json::{Value, json};
use testkit::Container;
use testkit::real::Ovs;

use crate::support::Node;
use crate::support::matrix::{self, Family, Subject};

/// A database with bridge `br0`, which stays. Mirrors need no more: a switch would change the links
/// during the comparison.
pub(crate) fn host(node: &Node) {
    let ovs = Ovs::database_only(&node.lab);
    ovs.vsctl(&["--no-wait", "add-br", "br0"]);
    ovs.leave();
}

pub(crate) fn vsctl(node: &Node, what: &str) -> String {
    let socket = node.lab.dir().join("ovs/db.sock");
    node.sh(&format!("ovs-vsctl --timeout=20 --no-wait --db=unix:{} {what}", socket.display()))
}

/// An attached container whose link on the host is a port.
pub(crate) fn config(node: &Node, container: &Container, family: Family, mirror: Value) -> Value {
    let result = matrix::attached(node, container, family);
    vsctl(node, &format!("--may-exist add-port br0 v{}", container.name()));
    let socket = node.lab.dir().join("ovs/db.sock");
    json!({ "bridge": "br0", "socket_file": socket, "mirrors": [mirror], "prevResult": result })
}

pub(crate) fn unready(node: &Node) -> Value {
    let socket = node.lab.dir().join("ovs/db.sock");
    json!({ "bridge": "missing", "socket_file": socket, "mirrors": [{ "name": "m", "ingress": true }] })
}

const SUBJECT: Subject = Subject {
    plugin: "ovs-mirror-producer",
    host: |node, _| host(node),
    config: |node, c1, family| {
        config(node, c1, family, json!({ "name": format!("m{}", c1.name()), "ingress": true }))
    },
    holds: |node, c1, _| {
        let found = vsctl(
            node,
            &format!("--bare --columns=select_src_port find mirror name=m{}", c1.name()),
        );
        !found.trim().is_empty()
    },
    damage: |node, _, _| {
        vsctl(node, "clear bridge br0 mirrors");
    },
    unready: Some(|node, _| unready(node)),
};
matrix::tests!(SUBJECT, modules: full);
