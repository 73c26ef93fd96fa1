//! `vlan`: each row of the reference's behaviour, and what ours does better.

mod matrix;

use serde_json::{Value, json};
use testkit::traffic::{self, assert_no_ping, assert_pings};
use testkit::{Container, Place, Snapshot};

use crate::support::fixed::{self, link, succeeds};
use crate::support::on_parent::{self, host};
use crate::support::{Node, Run, versions};

fn vlan<'n>(node: &'n Node, verb: &str, container: &Container) -> Run<'n> {
    node.run("vlan", verb).to(container).config(fixed::ipam()).config(json!({ "master": "p0" }))
}

fn attach(node: &Node, container: &Container, id: u16, last: u8, config: Value) -> Value {
    fixed::gives(node, &on_parent::addresses(last));
    vlan(node, "ADD", container).config(json!({ "vlanId": id })).config(config).call().ok()
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_changed() {
    let node = host("vlan-bad");
    fixed::gives(&node, &json!([{ "address": "10.1.0.2/24" }]));
    node.sh("ip link add q0 type veth peer name q1");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    for (config, code, words) in [
        (
            json!({ "master": "" }),
            7,
            "\"master\" field is required. It specifies the host interface name",
        ),
        (json!({ "master": "p9" }), 7, "failed to lookup master \"p9\": Link not found"),
        (json!({ "master": "lo" }), 7, "\"lo\" cannot be a parent"),
        (json!({ "master": "q0" }), 108, "parent \"q0\" is down"),
        (json!({ "vlanId": 4095 }), 7, "invalid VLAN ID 4095 (must be between 0 and 409"),
        (json!({ "vlanId": -1 }), 7, "invalid VLAN ID -1"),
        (json!({ "vlanId": "5" }), 6, "vlanId"),
        (json!({ "vlanProtocol": "qinq" }), 7, "unknown VLAN protocol \"qinq\""),
        (json!({ "mtu": 1501 }), 7, "invalid MTU 1501, must be [0, master MTU(1500)]"),
        (json!({ "mtu": -1 }), 7, "invalid MTU -1"),
        (json!({ "ipam": null }), 7, "no plugin name provided"),
        (json!({ "ipam": {} }), 7, "no plugin name provided"),
        (json!({ "linkInContainer": true }), 7, "failed to lookup master \"p0\""),
    ] {
        let answer = vlan(&node, "ADD", &c1).config(config.clone()).call();
        answer.fails(code, words);
        assert!(!succeeds(&c1, "ip link show eth0"), "{config}");
    }
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(fixed::verbs(&node), "", "the address plugin must not even be asked");
}

#[test]
fn status_tells_whether_the_parent_serves() {
    let node = host("vlan-status");
    fixed::gives(&node, &json!([]));
    let status =
        |config: Value| node.run("vlan", "STATUS").config(fixed::ipam()).config(config).call();
    let served = |config: Value| on_parent::served(status(config), "vlan", "CONFIG_VLAN_8021Q");
    served(json!({ "master": "p0", "vlanId": 5 }));
    status(json!({ "master": "p9" })).fails(50, "failed to lookup master \"p9\": Link not found");
    status(json!({ "master": "p0", "mtu": 9000 })).fails(50, "invalid MTU 9000");
    status(json!({})).fails(7, "\"master\" field is required");
    status(json!({ "master": "p0", "ipam": null })).fails(7, "no plugin name provided");
    served(json!({ "master": "p9", "linkInContainer": true }));
    node.sh("ip link set p0 down");
    status(json!({ "master": "p0" })).fails(50, "parent \"p0\" is down");
}

/// Row: the reference's DEL fails when the parent is gone, before it releases the address.
#[test]
fn del_needs_no_parent_and_no_configuration() {
    let node = host("vlan-del");
    fixed::gives(&node, &json!([]));
    let c1 = node.container("c1");
    for keys in [json!({ "master": "p9" }), json!({ "master": "", "vlanId": 9999, "mtu": -5 })] {
        vlan(&node, "DEL", &c1).config(keys).call().silent();
        vlan(&node, "DEL", &c1).netns("").call().silent();
    }
    assert_eq!(fixed::verbs(&node), "DEL DEL DEL DEL");
}

#[test]
fn vm_the_link_is_as_reported() {
    testkit::require!("root", "vlan");
    let node = host("vlan-result");
    let c1 = node.container("c1");
    let result = attach(&node, &c1, 5, 2, json!({ "mtu": 1400 }));
    let shown = on_parent::one_link_as_reported(&node, &c1, &result);
    assert_eq!(shown["linkinfo"]["info_data"]["id"], 5);
    assert_eq!(shown["linkinfo"]["info_data"]["protocol"], "802.1Q");

    let c2 = node.container("c2");
    attach(&node, &c2, 5, 3, json!({ "vlanProtocol": "802.1ad" }));
    assert_eq!(link(&c2, "eth0")["linkinfo"]["info_data"]["protocol"], "802.1ad");
    let c3 = node.container("c3");
    attach(&node, &c3, 0, 4, json!({}));
    assert_eq!(link(&c3, "eth0")["linkinfo"]["info_data"]["id"], 0);
}

#[test]
fn vm_containers_talk_in_their_vlans() {
    testkit::require!("root", "vlan");
    // The cable connects what stands for two hosts: a second parent, and the outside in VLAN 5.
    let node = Node::new("vlan-traffic");
    node.sh(
        "ip link add name br0 type bridge && ip link set br0 up; for n in 0 1 2; do \
         ip link add p$n type veth peer name s$n && ip link set s$n master br0 up && ip link set p$n up; done",
    );
    let outside = node.container("outside");
    node.sh("ip link set p2 netns outside");
    outside.sh(
        "ip link set p2 up && ip link add link p2 name v5 type vlan id 5 && ip link set v5 up && \
         ip addr add 10.1.0.1/24 dev v5 && ip addr add fd00:1::1/64 dev v5 nodad && \
         ip link set lo up && ip addr add 198.51.100.2/32 dev lo",
    );
    let (c1, c2, c3) = (node.container("c1"), node.container("c2"), node.container("c3"));
    for (container, parent, id, last) in [(&c1, "p0", 5, 2), (&c2, "p1", 5, 3), (&c3, "p1", 6, 4)] {
        fixed::answers(&node, &on_parent::with_default_routes(last));
        let keys = json!({ "master": parent, "vlanId": id });
        vlan(&node, "ADD", container).config(keys).call().ok();
    }
    assert_pings(&c1, "10.1.0.3");
    assert_pings(&c1, "fd00:1::3");
    assert_pings(&c2, "10.1.0.1");
    let _web = traffic::Server::tcp(&outside, "0.0.0.0:80", "web");
    let seen = traffic::assert_tcp(&c1, "198.51.100.2:80").seen.ip().to_string();
    assert_eq!(seen, "10.1.0.2");
    assert_no_ping(&c3, "10.1.0.3");
    assert_no_ping(&c3, "10.1.0.1");
}

#[test]
fn vm_a_vlan_that_is_taken_is_refused_by_its_holders_name() {
    testkit::require!("root", "vlan");
    let node = host("vlan-taken");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    attach(&node, &c1, 5, 2, json!({}));
    fixed::forget(&node);
    let before = Snapshot::take(&node.lab);
    let refused = |words: &str| {
        let error = vlan(&node, "ADD", &c2).config(json!({ "vlanId": 5 })).call().error();
        assert_eq!(error.code, 106, "{error:?}");
        assert_eq!(error.msg, "failed to create vlan: VLAN 5 on \"p0\" exists already");
        assert!(error.details.contains(words), "{words}: {error:?}");
        assert!(!succeeds(&c2, "ip link show eth0"));
    };
    refused("attachment n/c1/eth0 has it");
    assert_eq!(fixed::verbs(&node), "");
    before.assert_same(&Snapshot::take(&node.lab));
    // A foreign link on the host, and one of ours that was moved there.
    vlan(&node, "DEL", &c1).call().silent();
    node.sh("ip link add link p0 name p0.5 type vlan id 5");
    refused("it is link \"p0.5\"; a parent");
    node.sh("ip link set p0.5 alias netwright:n/c7/eth0");
    refused("it is link \"p0.5\" of n/c7/eth0");
    // The link is in a namespace that the plugin cannot see.
    let c3 = node.container("c3");
    node.sh("ip link set p0.5 netns c3");
    c3.sh("ip link show p0.5");
    refused("in a namespace that cannot be seen");
}

#[test]
fn vm_the_delegates_code_is_kept_and_nothing_stays() {
    testkit::require!("root", "vlan");
    let node = host("vlan-undo");
    let c1 = node.container("c1");
    let add = || vlan(&node, "ADD", &c1).config(json!({ "vlanId": 5 })).call();
    on_parent::a_failed_add_leaves_nothing(&node, &c1, add);
}

#[test]
fn vm_in_the_container() {
    testkit::require!("root", "vlan");
    let node = host("vlan-inside");
    let c1 = node.container("c1");
    node.sh("ip link set p0 netns c1 name net1");
    c1.sh("ip link set net1 up");
    let keys = json!({ "master": "net1", "vlanId": 7, "linkInContainer": true });
    fixed::gives(&node, &json!([{ "address": "10.1.0.2/24" }]));
    let result = vlan(&node, "ADD", &c1).config(keys.clone()).call().ok();
    assert_eq!(link(&c1, "eth0")["link"], "net1");
    vlan(&node, "CHECK", &c1).config(keys.clone()).prev(&result).call().silent();
    let again = vlan(&node, "ADD", &c1).ifname("eth1").config(keys.clone()).call();
    again.fails(106, "it is link \"eth0\" of n/c1/eth0");
    vlan(&node, "DEL", &c1).config(keys).prev(&result).call().silent();
    c1.sh("! ip link show eth0 && ip link show net1");
}

#[test]
fn vm_del_and_gc_with_the_parent_gone_or_there() {
    testkit::require!("root", "vlan");
    let node = host("vlan-gone");
    let (c1, c2, c3) = (node.container("c1"), node.container("c2"), node.container("c3"));
    for (id, container) in [(5, &c1), (6, &c2), (7, &c3)] {
        attach(&node, container, id, 2, json!({}));
    }
    fixed::forget(&node);
    let gc = node.run("vlan", "GC").config(fixed::ipam()).config(json!({ "master": "p9" }));
    gc.valid(&[("c1", "eth0"), ("c2", "eth0")]).call().silent();
    assert!(!succeeds(&c3, "ip link show eth0") && succeeds(&c1, "ip link show eth0"));
    // The call does not name the namespace, which exists: the record leads to the link.
    vlan(&node, "DEL", &c2).netns("").call().silent();
    assert!(!succeeds(&c2, "ip link show eth0"));
    node.sh("ip link del p0");
    vlan(&node, "DEL", &c1).config(json!({ "vlanId": 5 })).call().silent();
    assert_eq!(fixed::verbs(&node), "GC DEL DEL");
}

#[test]
fn vm_check_sees_every_drift() {
    testkit::require!("root", "vlan");
    let node = host("vlan-check");
    node.sh("ip link add q0 type veth peer name q1 && ip link set q0 up");
    let c1 = node.container("c1");
    let result = attach(&node, &c1, 5, 2, json!({}));
    let check = |config: Value| {
        let check = vlan(&node, "CHECK", &c1).config(json!({ "vlanId": 5 }));
        check.config(config).prev(&result).call()
    };
    check(json!({})).silent();
    check(json!({ "vlanId": 6 }))
        .fails(104, "has VLAN 5 with protocol 0x8100, the configuration asks for 6");
    check(json!({ "vlanProtocol": "802.1ad" })).fails(104, "asks for 5 with protocol 0x88a8");
    c1.sh("ip link set eth0 mtu 1400");
    check(json!({ "mtu": 1500 })).fails(104, "has MTU 1400, not 1500");
    c1.sh("ip link set eth0 mtu 1500");
    check(json!({ "master": "q0" })).fails(104, "is not on \"q0\"");
    check(json!({ "master": "q9" })).fails(104, "failed to lookup master \"q9\"");
    c1.sh("ip addr del 10.1.0.2/24 dev eth0");
    check(json!({})).fails(104, "failed to find IP 10.1.0.2/24");
    c1.sh("ip link set eth0 down");
    check(json!({})).fails(104, "is down");
    c1.sh("ip link del eth0");
    check(json!({})).fails(104, "is gone from the container");
}

#[test]
fn vm_name_servers_of_ipam_are_kept() {
    testkit::require!("root", "vlan");
    let node = host("vlan-dns");
    fixed::answers(
        &node,
        &json!({ "ips": [{ "address": "10.1.0.2/24" }], "dns": { "nameservers": ["10.0.0.53"] } }),
    );
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let result = vlan(&node, "ADD", &c1).config(json!({ "vlanId": 5 })).call().ok();
    assert_eq!(result["dns"]["nameservers"], json!(["10.0.0.53"]));
    let keys = json!({ "vlanId": 6, "dns": { "nameservers": ["10.0.0.9"] } });
    let result = vlan(&node, "ADD", &c2).config(keys).call().ok();
    assert_eq!(result["dns"]["nameservers"], json!(["10.0.0.9"]));
}

#[test]
fn vm_every_version_is_spoken() {
    testkit::require!("root", "full", "vlan");
    let node = host("vlan-versions");
    versions::all_are_spoken(&node, "vlan", &json!({ "master": "p0", "vlanId": 5 }));
}

#[test]
fn misspelt_keys_are_found() {
    versions::a_misspelt_key_is_found("vlan", "vlanId", "vlanIdd");
}
