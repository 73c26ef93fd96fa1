//! Behind another plugin: the parent, and perhaps the addresses, come from the chain.

use serde_json::json;
use testkit::Place;
use testkit::traffic::assert_pings;

use super::{host, outside};
use crate::support::fixed::{self, link};

#[test]
fn a_chain_must_name_one_interface() {
    let node = host("ipvlan-chain-bad");
    let c1 = node.container("c1");
    for interfaces in [
        json!([]),
        json!([{ "name": "" }]),
        json!([{ "name": "p0" }, { "name": "eth0", "sandbox": "/run/netns/c1" }]),
    ] {
        let prev = json!({ "cniVersion": "1.1.0", "interfaces": interfaces,
                           "ips": [{ "address": "10.1.0.2/24" }] });
        let call = node.run("ipvlan", "ADD").to(&c1).prev(&prev).call();
        call.fails(7, "chained master failure. PrevResult lacks a single named interface");
    }
    let prev = json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": "p0" }] });
    let call = node.run("ipvlan", "ADD").to(&c1).prev(&prev).call();
    call.fails(7, "no plugin name provided");
    let prev = json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": "p9" }],
                       "ips": [{ "address": "10.1.0.2/24" }] });
    let call = node.run("ipvlan", "ADD").to(&c1).prev(&prev).call();
    call.fails(7, "failed to lookup master \"p9\"");
}

#[test]
fn vm_the_chains_addresses_move_to_the_new_link() {
    testkit::require!("root", "ipvlan");
    let node = host("ipvlan-chain");
    let _outside = outside(&node);
    let c1 = node.container("c1");
    let prev = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "p0" }],
        "ips": [{ "interface": 0, "address": "10.1.0.2/24", "gateway": "10.1.0.1" }, { "address": "fd00:1::2/64" }],
        "routes": [{ "dst": "10.7.0.0/16" }],
        "dns": { "nameservers": ["10.0.0.53"] },
    });
    let result = node.run("ipvlan", "ADD").to(&c1).prev(&prev).call().ok();
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 1);
    assert_eq!(result["interfaces"][0]["name"], "eth0");
    assert_eq!(result["interfaces"][0]["sandbox"], c1.netns().to_str().unwrap());
    assert!(result["ips"].as_array().unwrap().iter().all(|ip| ip["interface"] == 0), "{result}");
    assert_eq!(result["dns"]["nameservers"], json!(["10.0.0.53"]));
    assert!(c1.sh("ip route").contains("10.7.0.0/16 via 10.1.0.1 dev eth0"));
    assert_pings(&c1, "10.1.0.1");
    let parent = link(&node.lab, "p0")["ifindex"].clone();
    assert_eq!(link(&c1, "eth0")["link_index"], parent);

    // Row: the reference's CHECK then looks for a parent named "".
    let check = || node.run("ipvlan", "CHECK").to(&c1).prev(&result).call();
    check().silent();
    node.sh(&format!("rm -r {}/owners", node.roots.run.display()));
    check().silent();
    c1.sh("ip addr del 10.1.0.2/24 dev eth0");
    check().fails(104, "failed to find IP 10.1.0.2/24");
    node.run("ipvlan", "DEL").to(&c1).prev(&result).call().silent();
    c1.sh("! ip link show eth0");
}

#[test]
fn vm_with_ipam_the_chain_gives_the_parent_alone() {
    testkit::require!("root", "ipvlan");
    let node = host("ipvlan-chain-ipam");
    fixed::gives(&node, &json!([{ "address": "10.1.0.5/24" }]));
    let c1 = node.container("c1");
    let prev = json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": "p0" }],
                       "ips": [{ "address": "10.1.0.2/24" }] });
    let result = node.run("ipvlan", "ADD").to(&c1).config(fixed::ipam()).prev(&prev).call().ok();
    assert_eq!(result["ips"].as_array().unwrap().len(), 1);
    assert_eq!(result["ips"][0]["address"], "10.1.0.5/24");
    let check = node.run("ipvlan", "CHECK").to(&c1).config(fixed::ipam()).prev(&result);
    check.call().silent();
    // `master` overrides the chain.
    let c2 = node.container("c2");
    let named = node.run("ipvlan", "ADD").to(&c2).config(fixed::ipam()).prev(&prev);
    named.config(json!({ "master": "p9" })).call().fails(7, "failed to lookup master \"p9\"");
}
