//! `flannel` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;

use super::{SUBNET_ENV, write_subnet_env};
use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "flannel",
    host: |node, family| write_subnet_env(node, family, ""),
    config: |node, _, _| {
        json!({ "delegate": { "hairpinMode": true, "isDefaultGateway": true },
                "ipam": { "dataDir": node.dir("ipam") } })
    },
    holds: |node, c1, _| {
        let record = format!("test -s /var/lib/cni/flannel/{}", c1.name());
        node.lab.try_sh("ip link show master cni0 | grep -q netwright:").status.success()
            && node.lab.try_sh(&record).status.success()
            && c1.try_sh("ip link show dev eth0 up | grep -q 'mtu 1450'").status.success()
    },
    damage: |_, c1, _| {
        c1.sh("ip addr flush dev eth0 scope global");
    },
    unready: Some(|node, _| {
        node.sh(&format!("rm {SUBNET_ENV}"));
        json!({})
    }),
};
matrix::tests!(SUBJECT, modules: full);
