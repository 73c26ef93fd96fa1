//! `tuning` in the table plugin × verb × address family.

use serde_json::json;
use testkit::Place;

use crate::support::matrix::{self, Subject};

const SUBJECT: Subject = Subject {
    plugin: "tuning",
    host: |_, _| {},
    config: |node, c1, family| {
        let sysctls =
            family.pick("net.ipv4.conf.IFNAME.arp_notify", "net.ipv6.conf.IFNAME.ndisc_notify");
        let sysctls: serde_json::Map<_, _> =
            sysctls.into_iter().map(|key| (key.to_owned(), json!("1"))).collect();
        json!({ "prevResult": matrix::attached(node, c1, family), "mtu": 1400, "sysctl": sysctls })
    },
    holds: |_, c1, family| {
        let sysctls =
            family.pick("net.ipv4.conf.eth0.arp_notify", "net.ipv6.conf.eth0.ndisc_notify");
        c1.sh("ip link show eth0").contains("mtu 1400")
            && sysctls.into_iter().all(|key| super::sysctl(c1, key) == "1")
    },
    damage: |_, c1, family| {
        let key = family.pick("ipv4.conf.eth0.arp_notify", "ipv6.conf.eth0.ndisc_notify")[0];
        c1.sh(&format!("sysctl -qw net.{key}=0"));
    },
    unready: Some(|node, _| {
        // A list of allowed keys that cannot be read.
        node.sh("mkdir -p /etc/cni/tuning/allowlist.conf");
        json!({})
    }),
};
matrix::tests!(SUBJECT, modules: full);
