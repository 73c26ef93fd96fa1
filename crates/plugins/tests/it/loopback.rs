//! `loopback`, row by row.

mod matrix;

use cni::{Version, code};
use cni_plugin::codes;
use serde_json::{Value, json};
use testkit::{Container, Place};

use crate::support::{Node, Run};

fn is_up(container: &Container) -> bool {
    container.sh("ip link show dev lo").contains(",UP")
}

/// `loopback | ADD`
#[test]
fn add_brings_lo_up_and_returns_its_addresses() {
    let node = Node::new("lo-add");
    let c1 = node.container("c1");
    assert!(!is_up(&c1));
    let result = node.run("loopback", "ADD").to(&c1).call().ok();
    assert!(is_up(&c1));
    assert_eq!(
        result,
        json!({
            "cniVersion": "1.1.0",
            "interfaces": [{ "name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "/run/netns/c1" }],
            "ips": [
                { "address": "127.0.0.1/8", "interface": 0 },
                { "address": "::1/128", "interface": 0 },
            ],
        })
    );
    // A second ADD, as after a restart of the runtime.
    assert_eq!(node.run("loopback", "ADD").to(&c1).call().ok(), result);
}

/// `loopback | old versions`
#[test]
fn every_version_has_its_own_shape() {
    let node = Node::new("lo-shapes");
    let c1 = node.container("c1");
    for version in Version::ALL {
        let result = node.run("loopback", "ADD").to(&c1).version(version.as_str()).call().ok();
        let expected = match version {
            Version::V0_1_0 | Version::V0_2_0 => json!({
                "cniVersion": version,
                "ip4": { "ip": "127.0.0.1/8" },
                "ip6": { "ip": "::1/128" },
                "dns": {},
            }),
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => json!({
                "cniVersion": version,
                "interfaces": [
                    { "name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "/run/netns/c1" },
                ],
                "ips": [
                    { "version": "4", "address": "127.0.0.1/8", "interface": 0 },
                    { "version": "6", "address": "::1/128", "interface": 0 },
                ],
                "dns": {},
            }),
            _ => json!({
                "cniVersion": version,
                "interfaces": [
                    { "name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "/run/netns/c1" },
                ],
                "ips": [
                    { "address": "127.0.0.1/8", "interface": 0 },
                    { "address": "::1/128", "interface": 0 },
                ],
            }),
        };
        assert_eq!(result, expected, "{version}");
    }
    // No version means 0.1.0.
    let result = node.run("loopback", "ADD").to(&c1).without("cniVersion").call().ok();
    assert_eq!(result["cniVersion"], "0.1.0");
    assert_eq!(result["ip4"]["ip"], "127.0.0.1/8");
}

/// `loopback | DEL/CHECK`
#[test]
fn del_takes_lo_down_and_check_notices() {
    let node = Node::new("lo-del");
    let c1 = node.container("c1");
    node.run("loopback", "ADD").to(&c1).call().ok();
    node.run("loopback", "CHECK").to(&c1).call().silent();
    node.run("loopback", "DEL").to(&c1).call().silent();
    assert!(!is_up(&c1));
    node.run("loopback", "CHECK").to(&c1).call().fails(codes::DRIFT, "loopback interface is down");
    node.run("loopback", "DEL").to(&c1).call().silent();
}

/// `loopback | prevResult`
#[test]
fn prev_result_is_passed_through() {
    let node = Node::new("lo-prev");
    let c1 = node.container("c1");
    let prev = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1400, "sandbox": "/x" }],
        "ips": [{ "address": "192.0.2.2/24", "gateway": "192.0.2.1", "interface": 0 }],
        "routes": [{ "dst": "0.0.0.0/0", "priority": 5 }],
        "dns": { "nameservers": ["192.0.2.53"] },
    });
    let result = node.run("loopback", "ADD").to(&c1).prev(&prev).call().ok();
    assert_eq!(result, prev);
    assert!(is_up(&c1));
    // CHECK and DEL ignore the chain's final result.
    node.run("loopback", "CHECK").to(&c1).prev(&prev).call().silent();
    node.run("loopback", "DEL").to(&c1).prev(&prev).call().silent();
}

#[test]
fn without_ipv6_there_is_no_ipv6_address() {
    let node = Node::new("lo-v4");
    let c1 = node.container("c1");
    c1.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
    let result = node.run("loopback", "ADD").to(&c1).call().ok();
    assert_eq!(result["ips"], json!([{ "address": "127.0.0.1/8", "interface": 0 }]));
    let result = node.run("loopback", "ADD").to(&c1).version("0.2.0").call().ok();
    assert_eq!(result["ip6"], Value::Null);
}

#[test]
fn a_foreign_address_on_lo_is_refused_before_anything_is_changed() {
    let node = Node::new("lo-foreign");
    let c1 = node.container("c1");
    c1.sh("ip addr add 192.0.2.9/32 dev lo");
    let add = node.run("loopback", "ADD").to(&c1).call();
    add.fails(codes::CONFLICT, "loopback interface found with non-loopback address \"192.0.2.9\"");
    assert!(!is_up(&c1));
}

#[test]
fn the_interface_is_lo_whatever_it_is_called() {
    let node = Node::new("lo-ifname");
    let c1 = node.container("c1");
    let result = node.run("loopback", "ADD").to(&c1).ifname("eth7").call().ok();
    assert_eq!(result["interfaces"][0]["name"], "lo");
}

#[test]
fn del_without_a_namespace_is_done() {
    let node = Node::new("lo-gone");
    let file = node.dir("files").join("netns");
    std::fs::write(&file, "").unwrap();
    node.run("loopback", "DEL").call().silent();
    node.run("loopback", "DEL").netns("/run/netns/gone").call().silent();
    node.run("loopback", "DEL").netns(file).call().silent();
    let add = node.run("loopback", "ADD").netns("/run/netns/gone").call();
    add.fails(code::INVALID_NETNS, "failed to Statfs \"/run/netns/gone\"");
}

#[test]
fn gc_and_status_have_nothing_to_do() {
    Run::bare("loopback", "GC").valid(&[]).call().silent();
    Run::bare("loopback", "STATUS").call().silent();
}
