//! Router advertisements of containers on a switch.

use serde_json::json;
use testkit::router::advertise;
use testkit::traffic::assert_pings;

use super::{add, keys, require_switch, switch};
use crate::security::advertise_to_all;
use crate::support::Node;

/// CVE-2020-10749: the switch floods frames to the bridge's own link on the host, and a switch in
/// user space leaves them to the host's end of the pair too.
#[test]
fn a_switchs_links_take_no_router_advertisements() {
    require_switch!("program:socat", "full");
    let node = Node::new("ovs-advertise");
    node.sh("sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.default.accept_ra=1 net.ipv6.conf.default.accept_dad=0");
    let ovs = switch(&node);
    node.sh("ip addr add 10.1.0.1/24 dev br0 && ip link set br0 up");
    let c1 = node.container("c1");
    let keys = keys(&node, &ovs, json!({}));
    let result = add(&node, &c1, &keys).call().ok();
    let links = result["interfaces"].as_array().unwrap();
    let inside = links.iter().find(|link| link["sandbox"].is_string()).unwrap();
    advertise_to_all(&c1, inside["mac"].as_str().unwrap());
    advertise(&node.lab, &c1, "br0");
    assert_pings(&c1, "10.1.0.1");
    assert_eq!(node.sh("ip -6 route show default; ip -6 addr show | grep 2001:db8:bad; true"), "");
    // CHECK and repair know both links.
    let check = |more| {
        node.run("ovs", "CHECK").to(&c1).config(keys.clone()).config(more).prev(&result).call()
    };
    check(json!({})).silent();
    let port = links[0]["name"].as_str().unwrap();
    for link in ["br0", port] {
        node.sh(&format!("echo 1 > /proc/sys/net/ipv6/conf/{link}/accept_ra"));
        check(json!({})).fails(104, "takes router advertisements");
        assert!(check(json!({ cni::REPAIR: true })).succeeded(), "{link}");
        check(json!({})).silent();
    }
    // The last DEL restores what was there before.
    let c2 = node.container("c2");
    add(&node, &c2, &keys).call().ok();
    let setting = || node.sh("cat /proc/sys/net/ipv6/conf/br0/accept_ra");
    for (container, left) in [(&c1, "0\n"), (&c2, "1\n")] {
        assert_eq!(setting(), "0\n");
        node.run("ovs", "DEL").to(container).config(keys.clone()).call().silent();
        assert_eq!(setting(), left);
    }
}
