//! `ipvlan`: each row of the reference's behaviour, and what ours does better.

mod chained;
mod matrix;

use serde_json::{Value, json};
use testkit::traffic::{self, assert_no_ping, assert_pings};
use testkit::{Container, Place, Snapshot};

use crate::support::fixed::{self, link, succeeds};
use crate::support::on_parent::{self, host};
use crate::support::{Node, Run, versions};

fn ipvlan<'n>(node: &'n Node, verb: &str, container: &Container) -> Run<'n> {
    node.run("ipvlan", verb).to(container).config(fixed::ipam()).config(json!({ "master": "p0" }))
}

fn attach(node: &Node, container: &Container, last: u8, config: Value) -> Value {
    fixed::answers(node, &on_parent::with_default_routes(last));
    ipvlan(node, "ADD", container).config(config).call().ok()
}

/// Puts the far end of the parent's cable outside, with an address behind it.
fn outside(node: &Node) -> Container {
    let outside = node.container("outside");
    node.sh("ip link set p1 netns outside");
    outside.sh("ip link set lo up && ip link set p1 up && ip addr add 10.1.0.1/24 dev p1 && \
         ip addr add fd00:1::1/64 dev p1 nodad && ip addr add 198.51.100.2/32 dev lo");
    outside
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_changed() {
    let node = host("ipvlan-bad");
    fixed::gives(&node, &json!([{ "address": "10.1.0.2/24" }]));
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    for (config, code, words) in [
        (json!({ "master": "p9" }), 7, "failed to lookup master \"p9\": Link not found"),
        (json!({ "master": "lo" }), 7, "\"lo\" cannot be a parent"),
        (json!({ "master": "" }), 7, "no default route interface found"),
        (json!({ "mode": "l4" }), 7, "unknown ipvlan mode: \"l4\""),
        (json!({ "flags": "open" }), 7, "unknown ipvlan flags: \"open\""),
        (json!({ "mtu": 1501 }), 7, "invalid MTU 1501, must be [0, master MTU(1500)]"),
        (json!({ "mtu": -1 }), 7, "invalid MTU -1"),
        (json!({ "mode": 3 }), 6, "mode"),
        (json!({ "ipam": {} }), 7, "no plugin name provided"),
        (json!({ "linkInContainer": true }), 7, "failed to lookup master \"p0\""),
        (json!({ "parent": { "driver": "x" } }), 7, "exclude each other"),
    ] {
        ipvlan(&node, "ADD", &c1).config(config).call().fails(code, words);
        assert!(!succeeds(&c1, "ip link show eth0"));
    }
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(fixed::verbs(&node), "", "the address plugin must not even be asked");
}

/// Row: without `master` and default route the reference's DEL fails before it releases the
/// address.
#[test]
fn del_never_needs_the_master() {
    let node = host("ipvlan-del");
    fixed::gives(&node, &json!([]));
    let c1 = node.container("c1");
    for keys in
        [json!({ "master": "" }), json!({ "master": "p9" }), json!({ "mode": "x", "mtu": -1 })]
    {
        ipvlan(&node, "DEL", &c1).config(keys).call().silent();
        ipvlan(&node, "DEL", &c1).netns("").call().silent();
    }
    assert_eq!(fixed::verbs(&node), "DEL DEL DEL DEL DEL DEL");
}

#[test]
fn status_tells_whether_the_parent_is_there() {
    let node = host("ipvlan-status");
    fixed::gives(&node, &json!([]));
    let status = |config: Value| node.run("ipvlan", "STATUS").config(config).call();
    let served = |config: Value| on_parent::served(status(config), "ipvlan", "CONFIG_IPVLAN");
    served(json!({ "master": "p0", "ipam": { "type": "fixed" } }));
    status(json!({ "master": "p9" })).fails(50, "failed to lookup master \"p9\": Link not found");
    status(json!({ "master": "p0", "mtu": 9000 })).fails(50, "invalid MTU 9000");
    status(json!({ "mode": "x" })).fails(7, "unknown ipvlan mode");
    // STATUS cannot know the parent: the chain, or the container, determines it.
    served(json!({}));
    served(json!({ "master": "p9", "linkInContainer": true }));
}

#[test]
fn vm_the_link_is_as_reported() {
    testkit::require!("root", "ipvlan");
    let node = host("ipvlan-result");
    let c1 = node.container("c1");
    let result = attach(&node, &c1, 2, json!({ "mtu": 1400 }));
    let shown = on_parent::one_link_as_reported(&node, &c1, &result);
    assert_eq!(shown["linkinfo"]["info_data"]["mode"], "l2");
    assert_eq!(c1.sh("cat /proc/sys/net/ipv4/conf/eth0/arp_notify"), "1\n");
    assert_eq!(c1.sh("cat /proc/sys/net/ipv6/conf/eth0/ndisc_notify"), "1\n");
}

#[test]
fn vm_containers_reach_each_other_and_the_outside_in_mode_l2() {
    testkit::require!("root", "ipvlan");
    let node = host("ipvlan-l2");
    let outside = outside(&node);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    attach(&node, &c1, 2, json!({}));
    attach(&node, &c2, 3, json!({}));
    for to in ["10.1.0.3", "fd00:1::3", "10.1.0.1", "fd00:1::1"] {
        assert_pings(&c1, to);
    }
    let _web = traffic::Server::tcp(&outside, "0.0.0.0:80", "web");
    let seen = traffic::assert_tcp(&c1, "198.51.100.2:80").seen.ip().to_string();
    assert_eq!(seen, "10.1.0.2");
}

/// Without ARP the host's routing sends what leaves, so the host needs the routes.
#[test]
fn vm_containers_reach_each_other_and_the_outside_in_modes_l3_and_l3s() {
    testkit::require!("root", "ipvlan");
    for mode in ["l3", "l3s"] {
        let node = host(&format!("ipvlan-{mode}"));
        let outside = outside(&node);
        node.sh("ip addr add 10.2.0.1/24 dev p0 && ip -6 addr add fd00:2::1/64 dev p0 nodad && \
             ip route add default via 10.2.0.9 && ip -6 route add default via fd00:2::9");
        outside.sh("ip addr flush dev p1 scope global; ip addr add 10.2.0.9/24 dev p1 && \
             ip -6 addr add fd00:2::9/64 dev p1 nodad && ip route add 10.1.0.0/24 via 10.2.0.1 && \
             ip -6 route add fd00:1::/64 via fd00:2::1");
        let (c1, c2) = (node.container("c1"), node.container("c2"));
        let result = attach(&node, &c1, 2, json!({ "mode": mode }));
        attach(&node, &c2, 3, json!({ "mode": mode }));
        assert_eq!(link(&c1, "eth0")["linkinfo"]["info_data"]["mode"], mode);
        assert!(c1.sh("ip link show eth0").contains("NOARP"));
        assert_pings(&c1, "10.1.0.3");
        assert_pings(&c1, "fd00:1::3");
        let _web = traffic::Server::tcp(&outside, "0.0.0.0:80", "web");
        let seen = traffic::assert_tcp(&c1, "198.51.100.2:80").seen.ip().to_string();
        assert_eq!(seen, "10.1.0.2", "{mode}");
        let keys = json!({ "mode": mode });
        ipvlan(&node, "CHECK", &c1).config(keys).prev(&result).call().silent();
    }
}

#[test]
fn vm_flags_decide_who_is_reached() {
    testkit::require!("root", "full", "ipvlan");
    for (flags, siblings) in [("bridge", true), ("private", false), ("vepa", false)] {
        let node = host(&format!("ipvlan-{flags}"));
        let _outside = outside(&node);
        let (c1, c2) = (node.container("c1"), node.container("c2"));
        let result = attach(&node, &c1, 2, json!({ "flags": flags }));
        attach(&node, &c2, 3, json!({ "flags": flags }));
        assert_pings(&c1, "10.1.0.1");
        match siblings {
            true => assert_pings(&c1, "10.1.0.3"),
            false => assert_no_ping(&c1, "10.1.0.3"),
        }
        let check = |flags: &str| {
            let check = ipvlan(&node, "CHECK", &c1).config(json!({ "flags": flags }));
            check.prev(&result).call()
        };
        check(flags).silent();
        let other = if flags == "private" { "vepa" } else { "private" };
        check(other)
            .fails(104, &format!("has ipvlan flags {flags}, the configuration asks for {other}"));
    }
}

/// The kernel has one mode per parent, and the newest link sets it for all.
#[test]
fn vm_a_container_cannot_change_the_mode_of_anothers_link() {
    testkit::require!("root", "ipvlan");
    let node = host("ipvlan-agree");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    attach(&node, &c1, 2, json!({}));
    fixed::forget(&node);
    for keys in [json!({ "mode": "l3" }), json!({ "flags": "private" })] {
        let error = ipvlan(&node, "ADD", &c2).config(keys).call().error();
        assert_eq!(error.code, 108, "{error:?}");
        assert!(
            error
                .msg
                .starts_with("parent \"p0\" serves ipvlans with mode l2 and flags bridge, not ")
        );
        assert!(error.details.contains("n/c1/eth0 is one of them"), "{error:?}");
        assert!(!succeeds(&c2, "ip link show eth0"));
    }
    assert_eq!(fixed::verbs(&node), "");
    // A container that is gone, or has left, does not fix the mode.
    c1.delete();
    attach(&node, &c2, 3, json!({ "mode": "l3" }));
    ipvlan(&node, "DEL", &c2).call().silent();
    attach(&node, &c2, 3, json!({ "mode": "l3s", "flags": "private" }));
    ipvlan(&node, "DEL", &c2).call().silent();
    ipvlan(&node, "DEL", &c1).netns("").call().silent();
    let shared = format!("find {}/shared -type f 2>/dev/null || true", node.roots.run.display());
    assert_eq!(node.sh(&shared), "");
}

#[test]
fn vm_a_parent_that_serves_a_macvlan_is_refused() {
    testkit::require!("root", "ipvlan", "macvlan");
    let node = host("ipvlan-busy");
    let c1 = node.container("c1");
    fixed::gives(&node, &json!([{ "address": "10.1.0.2/24" }]));
    node.sh("ip link add link p0 name m0 type macvlan mode bridge");
    ipvlan(&node, "ADD", &c1).call().fails(100, "parent \"p0\" serves a macvlan already");
    node.sh("ip link del m0 && ip link add br0 type bridge && ip link set p0 master br0");
    ipvlan(&node, "ADD", &c1).call().fails(100, "\"p0\" is a port of bridge \"br0\"");
    // The other way round, too.
    node.sh("ip link set p0 nomaster");
    ipvlan(&node, "ADD", &c1).call().ok();
    let c2 = node.container("c2");
    let macvlan = node.run("macvlan", "ADD").to(&c2).config(json!({ "master": "p0" })).call();
    macvlan.fails(100, "parent \"p0\" serves an ipvlan already");
}

#[test]
fn vm_a_failed_add_leaves_nothing() {
    testkit::require!("root", "ipvlan");
    let node = host("ipvlan-undo");
    let c1 = node.container("c1");
    on_parent::a_failed_add_leaves_nothing(&node, &c1, || ipvlan(&node, "ADD", &c1).call());
    let run = node.roots.run.display();
    let left = format!("find {run}/shared {run}/owners -type f 2>/dev/null || true");
    assert_eq!(node.sh(&left), "");
}

#[test]
fn vm_del_and_gc_with_the_parent_gone_or_there() {
    testkit::require!("root", "ipvlan");
    let node = host("ipvlan-gone");
    let (c1, c2, c3) = (node.container("c1"), node.container("c2"), node.container("c3"));
    for (last, container) in [(2, &c1), (3, &c2), (4, &c3)] {
        attach(&node, container, last, json!({}));
    }
    fixed::forget(&node);
    let gc = node.run("ipvlan", "GC").config(fixed::ipam());
    gc.valid(&[("c1", "eth0"), ("c2", "eth0")]).call().silent();
    assert!(!succeeds(&c3, "ip link show eth0") && succeeds(&c1, "ip link show eth0"));
    ipvlan(&node, "DEL", &c2).netns("").call().silent();
    assert!(!succeeds(&c2, "ip link show eth0"));
    node.sh("ip link del p0");
    ipvlan(&node, "DEL", &c1).call().silent();
    assert_eq!(fixed::verbs(&node), "GC DEL DEL");
    let shared = format!("find {}/shared -type f 2>/dev/null || true", node.roots.run.display());
    assert_eq!(node.sh(&shared), "");
}

#[test]
fn vm_in_the_container() {
    testkit::require!("root", "ipvlan");
    let node = host("ipvlan-inside");
    let c1 = node.container("c1");
    node.sh("ip link set p0 netns c1 name net1");
    c1.sh("ip link set net1 up");
    let keys = json!({ "master": "net1", "linkInContainer": true });
    let result = attach(&node, &c1, 2, keys.clone());
    assert_eq!(link(&c1, "eth0")["link"], "net1");
    ipvlan(&node, "CHECK", &c1).config(keys.clone()).prev(&result).call().silent();
    ipvlan(&node, "DEL", &c1).config(keys).prev(&result).call().silent();
    c1.sh("! ip link show eth0 && ip link show net1");
}

#[test]
fn vm_check_sees_every_drift() {
    testkit::require!("root", "ipvlan");
    let node = host("ipvlan-check");
    node.sh("ip link add q0 type veth peer name q1 && ip link set q0 up");
    let c1 = node.container("c1");
    let result = attach(&node, &c1, 2, json!({}));
    let check = |config: Value| ipvlan(&node, "CHECK", &c1).config(config).prev(&result).call();
    check(json!({})).silent();
    check(json!({ "mode": "l3" })).fails(104, "has ipvlan mode l2, the configuration asks for l3");
    check(json!({ "master": "q0" })).fails(104, "is not on \"q0\"");
    c1.sh("ip route del default");
    check(json!({})).fails(104, "failed to find route 0.0.0.0/0");
    c1.sh("ip addr del 10.1.0.2/24 dev eth0");
    check(json!({})).fails(104, "failed to find IP 10.1.0.2/24");
    c1.sh("ip link del eth0");
    check(json!({})).fails(104, "is gone from the container");
}

#[test]
fn vm_every_version_is_spoken() {
    testkit::require!("root", "full", "ipvlan");
    let node = host("ipvlan-versions");
    versions::all_are_spoken(&node, "ipvlan", &json!({ "master": "p0" }));
}

#[test]
fn misspelt_keys_are_found() {
    versions::a_misspelt_key_is_found("ipvlan", "flags", "flagz");
}
