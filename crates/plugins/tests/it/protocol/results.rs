//! The shapes of results, with an address plugin as the example, and `prevResult`.

use cni::{Version, code};
use serde_json::{Value, json};

use super::lacks;
use crate::support::{Node, Picture};

/// One dual-stack address with a route that has every attribute.
fn host_local(node: &Node, version: Version) -> Value {
    let ipam = json!({
        "type": "host-local",
        "dataDir": node.dir(version.as_str()),
        "ranges": [[{ "subnet": "10.9.0.0/29" }], [{ "subnet": "fd00::/64" }]],
        "routes": [
            { "dst": "0.0.0.0/0", "mtu": 1400, "advmss": 1300, "priority": 3, "table": 5, "scope": 253 },
        ],
    });
    let run = node.run("host-local", "ADD").netns("/n").version(version.as_str());
    run.config(json!({ "ipam": ipam })).call().ok()
}

#[test]
fn old_result_shape() {
    if lacks("old_result_shape", &["host-local"]) {
        return;
    }
    let node = Node::new("shape-0.2");
    for version in [Version::V0_1_0, Version::V0_2_0] {
        assert_eq!(
            host_local(&node, version),
            json!({
                "cniVersion": version,
                "ip4": {
                    "ip": "10.9.0.2/29",
                    "gateway": "10.9.0.1",
                    // Route attributes are dropped.
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
                "ip6": { "ip": "fd00::2/64", "gateway": "fd00::1" },
                "dns": {},
            })
        );
    }
}

#[test]
fn middle_result_shape() {
    if lacks("middle_result_shape", &["host-local"]) {
        return;
    }
    let node = Node::new("shape-0.4");
    for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
        assert_eq!(
            host_local(&node, version),
            json!({
                "cniVersion": version,
                "ips": [
                    { "version": "4", "address": "10.9.0.2/29", "gateway": "10.9.0.1" },
                    { "version": "6", "address": "fd00::2/64", "gateway": "fd00::1" },
                ],
                "routes": [
                    { "dst": "0.0.0.0/0", "mtu": 1400, "advmss": 1300, "priority": 3, "table": 5, "scope": 253 },
                ],
                "dns": {},
            })
        );
    }
}

#[test]
fn newest_result_shape() {
    if lacks("newest_result_shape", &["host-local"]) {
        return;
    }
    let node = Node::new("shape-1");
    for version in [Version::V1_0_0, Version::V1_1_0] {
        assert_eq!(
            host_local(&node, version),
            json!({
                "cniVersion": version,
                "ips": [
                    { "address": "10.9.0.2/29", "gateway": "10.9.0.1" },
                    { "address": "fd00::2/64", "gateway": "fd00::1" },
                ],
                "routes": [
                    { "dst": "0.0.0.0/0", "mtu": 1400, "advmss": 1300, "priority": 3, "table": 5, "scope": 253 },
                ],
            })
        );
    }
}

#[test]
fn down_conversion_without_ip() {
    if lacks("down_conversion_without_ip", &["bridge"]) {
        return;
    }
    let node = Node::new("no-ip");
    let c1 = node.container("c1");
    let before = Picture::of(&c1);
    let answer = node.run("bridge", "ADD").to(&c1).version("0.2.0").call();
    answer.fails(code::DECODE_FAILURE, "cannot convert: no valid IP addresses");
    // Better than the reference: the failed ADD leaves nothing.
    before.assert_same(&Picture::of(&c1));
}

#[test]
fn prev_result_family_check() {
    let node = Node::new("family");
    let c1 = node.container("c1");
    let add = |config: &str, result: &str| {
        let ips = match result {
            "0.4.0" => json!([{ "version": "4", "address": "192.0.2.2/24" }]),
            _ => json!([{ "address": "192.0.2.2/24" }]),
        };
        let prev = json!({ "cniVersion": result, "ips": ips });
        node.run("tuning", "ADD").to(&c1).version(config).prev(&prev).call()
    };
    add("1.1.0", "0.4.0").fails(
        code::DECODE_FAILURE,
        "result type supports [1.0.0 1.1.0] but unmarshalled CNIVersion is \"0.4.0\"",
    );
    add("0.4.0", "1.0.0").fails(code::DECODE_FAILURE, "unmarshalled CNIVersion is \"1.0.0\"");
    add("1.1.0", "9.9.9").fails(code::DECODE_FAILURE, "unmarshalled CNIVersion is \"9.9.9\"");
    assert_eq!(add("1.0.0", "1.1.0").ok()["cniVersion"], "1.0.0");
    assert_eq!(add("1.1.0", "1.0.0").ok()["cniVersion"], "1.1.0");
    assert_eq!(add("0.3.1", "0.4.0").ok()["ips"][0]["version"], "4");
    // A result without a version has the configuration's.
    let prev = json!({ "ips": [{ "version": "4", "address": "192.0.2.2/24" }] });
    let run = node.run("tuning", "ADD").to(&c1).version("0.4.0").prev(&prev);
    assert_eq!(run.call().ok()["ips"][0]["address"], "192.0.2.2/24");
}

#[test]
fn prev_result_pass_through() {
    let node = Node::new("pass");
    let c1 = node.container("c1");
    let prev = json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            { "name": "veth0", "mac": "02:00:00:00:00:02" },
            { "name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1400, "sandbox": "/x", "pciID": "0000:00:1f.6" },
        ],
        "ips": [{ "address": "192.0.2.2/24", "gateway": "192.0.2.1", "interface": 1 }],
        "routes": [{ "dst": "0.0.0.0/0", "gw": "192.0.2.1", "priority": 5, "table": 0, "scope": 0 }],
        "dns": { "nameservers": ["192.0.2.53"], "search": ["example.org"] },
    });
    for plugin in ["portmap", "tuning"] {
        if lacks("prev_result_pass_through", &[plugin]) {
            continue;
        }
        let result = node.run(plugin, "ADD").to(&c1).prev(&prev).call().ok();
        assert_eq!(result, prev, "{plugin}");
    }
}

#[test]
fn chained_plugins_need_a_prev_result() {
    let node = Node::new("need-prev");
    let c1 = node.container("c1");
    for verb in ["ADD", "CHECK"] {
        let answer = node.run("tuning", verb).to(&c1).call();
        answer.fails(code::INVALID_CONFIG, "Required prevResult missing");
    }
}
