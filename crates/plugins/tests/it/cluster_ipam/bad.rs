//! Invalid configurations: the error names the object and the key, and the daemon receives no
//! request.

use serde_json::{Value, json};

use super::{call, given};
use crate::support::Node;
use crate::support::cluster::Daemon;

#[test]
fn what_makes_no_sense_is_refused_before_anybody_is_asked() {
    testkit::require!("root");
    let node = Node::new("cluster-bad");
    let daemon = Daemon::start(&node);
    let c1 = node.container("c1");
    let many: Vec<Value> = (0..65).map(|_| json!({ "range": "192.0.2.0/24" })).collect();
    let exclusions: Vec<String> = (0..4097).map(|n| format!("192.0.2.{}", n % 250)).collect();
    for (ipam, code, words) in [
        (json!({}), 7, "network \"n\" has no range of addresses"),
        (json!({ "range": "" }), 7, "network \"n\" has no range of addresses"),
        (json!({ "range": "tea" }), 7, "invalid CIDR tea: invalid CIDR address: tea"),
        (
            json!({ "range": "192.0.2.0" }),
            7,
            "invalid CIDR 192.0.2.0: invalid CIDR address: 192.0.2.0",
        ),
        (json!({ "range": "192.0.2.0/33" }), 7, "invalid CIDR 192.0.2.0/33"),
        (json!({ "range": "tea-192.0.2.9/24" }), 7, "invalid range start IP: tea"),
        (
            json!({ "range": "192.0.2.1-192.0.2.9" }),
            7,
            "invalid CIDR (do you have the 'range' parameter set for Whereabouts?) '192.0.2.9'",
        ),
        (
            json!({ "range": "192.0.2.1-198.51.100.9/24" }),
            7,
            "the range's end 198.51.100.9 is not in its subnet 192.0.2.0/24",
        ),
        (
            json!({ "range": "192.0.2.9-192.0.2.1/24" }),
            7,
            "ends at 192.0.2.1, before its start 192.0.2.9",
        ),
        (
            json!({ "range": "192.0.2.0/24", "range_start": "198.51.100.1" }),
            7,
            "start 198.51.100.1 is not in its subnet",
        ),
        (
            json!({ "range": "192.0.2.0/24", "range_end": "fd00::1" }),
            7,
            "end fd00::1 is not in its subnet",
        ),
        (json!({ "range": "192.0.2.0/24", "range_end": "tea" }), 7, "invalid IP address: tea"),
        (
            json!({ "range": "192.0.2.0/24", "exclude": ["tea"] }),
            7,
            "invalid CIDR in exclude list tea",
        ),
        (
            json!({ "range": "192.0.2.0/24", "exclude": exclusions }),
            7,
            "4097 exclusions of 192.0.2.0/24, more than 4096",
        ),
        (
            json!({ "range": "192.0.2.0/24", "exclude": ["192.0.2.0/24"] }),
            7,
            "the range of 192.0.2.0/24 leaves no address",
        ),
        (json!({ "ipRanges": [{ "range": "192.0.2.0/24" }, {}] }), 7, "ipam.ipRanges[1].range"),
        (json!({ "ipRanges": many }), 7, "65 ranges, more than 64"),
        (json!({ "range": "192.0.2.0/24", "gateway": "tea" }), 7, "couldn't parse gateway IP: tea"),
        (
            json!({ "ipRanges": [{ "range": "192.0.2.0/24", "gateway": "tea" }] }),
            7,
            "couldn't parse gateway IP: tea",
        ),
        (
            json!({ "range": "192.0.2.0/24", "addresses": [{ "address": "192.0.2.9" }] }),
            7,
            "invalid CIDR in addresses: 192.0.2.9",
        ),
        (
            json!({ "range": "192.0.2.0/24", "network_name": "Blue!" }),
            7,
            "network_name \"Blue!\" is not valid",
        ),
        (
            json!({ "range": "192.0.2.0/24", "node_slice_size": "tea" }),
            7,
            "ipam.node_slice_size: \"tea\" is no prefix length",
        ),
        (
            json!({ "range": "192.0.2.0/24", "blockSize": 8 }),
            7,
            "ipam.blockSize: blocks of /8 are not",
        ),
        (
            json!({ "range": "192.0.2.0/24", "blockSize": 200 }),
            7,
            "ipam.blockSize: blocks of /200 are not",
        ),
        (
            json!({ "range": "192.0.2.0/24", "socket": "s" }),
            7,
            "ipam.socket: \"s\" is not absolute",
        ),
        (json!({ "range": 5 }), 6, "ipam.range"),
        (json!({ "range": "192.0.2.0/24", "sticky": "yes" }), 6, "ipam.sticky"),
        (json!({ "range": "192.0.2.0/24", "routes": [{ "dst": "tea" }] }), 6, "ipam.routes[0].dst"),
    ] {
        for verb in ["ADD", "CHECK", "STATUS"] {
            let run = call(&node, verb, &c1, &ipam).prev(&json!({ "cniVersion": "1.1.0" }));
            run.call().fails(code, words);
        }
        call(&node, "DEL", &c1, &ipam).call().silent();
    }
    node.run("cluster-ipam", "ADD").to(&c1).call().fails(7, "IPAM config missing 'ipam' key");
    assert!(daemon.words().iter().all(|word| *word == "release"));
    assert_eq!(given(&node), [""; 0]);
}
