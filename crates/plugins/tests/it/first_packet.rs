//! IPv6 reaches a container as soon as ADD returns: the kernel solicits its hardware address at
//! once, because no address of the host's links is under duplicate address detection.

use serde_json::{Value, json};
use testkit::traffic::assert_pings;
use testkit::{Container, Place};

use crate::support::Node;
use crate::support::matrix::{self, Family};

/// Returns a host with the usual duplicate address detection, and a machine behind it.
fn host(name: &str) -> (Node, Container) {
    let node = Node::new(name);
    let outside = node.lab.outside();
    outside.sh("ip -6 route add fd00:1::/64 via 2001:db8:ffff::1");
    node.sh("sysctl -qw net.ipv6.conf.all.accept_dad=1 net.ipv6.conf.default.accept_dad=1 \
             net.ipv6.conf.default.dad_transmits=1 net.ipv6.conf.all.forwarding=1");
    (node, outside)
}

fn keys(node: &Node, plugin: &str) -> Value {
    let ipam = matrix::ipam(node, Family::V6);
    match plugin {
        "bridge" => json!({ "isGateway": true, "ipam": ipam }),
        _ => json!({ "ipam": ipam }),
    }
}

/// Asserts that a link of the host can solicit its neighbours now. (A second address, which the
/// kernel makes at random, takes its time.)
fn is_ready(node: &Node, link: &str) {
    let shown = node.sh("ip -6 -o addr show tentative | grep -v stable-privacy || true");
    assert_eq!(shown, "", "{link}");
    solicits(node, link);
}

/// Asserts that a link has a link-local address that is not tentative.
fn solicits(node: &Node, link: &str) {
    let own = node.sh(&format!("ip -6 -o addr show dev {link} scope link -tentative"));
    assert!(own.contains("fe80:"), "{link}: {own}");
}

/// The host's link with the gateway's address.
fn link_of<'r>(plugin: &str, result: &'r Value) -> &'r str {
    match plugin {
        "bridge" => "cni0",
        _ => result["interfaces"][0]["name"].as_str().unwrap(),
    }
}

#[test]
fn no_address_of_the_hosts_links_is_tentative_when_add_returns() {
    testkit::require!("root");
    // How the kernel makes link-local addresses: of the hardware address, not at all, at random.
    for mode in [0, 1, 3] {
        let (node, outside) = host("first-packet");
        node.sh(&format!("sysctl -qw net.ipv6.conf.default.addr_gen_mode={mode}"));
        for plugin in ["ptp", "bridge"] {
            let config = keys(&node, plugin);
            let run = |verb, container| node.run(plugin, verb).to(container).config(config.clone());
            let (c1, c2) = (node.container("c1"), node.container("c2"));
            // The bridge goes with its last container, and is made anew.
            for _ in 0..2 {
                let first = run("ADD", &c1).call().ok();
                is_ready(&node, link_of(plugin, &first));
                let address = first["ips"][0]["address"].as_str().unwrap().to_owned();
                assert_pings(&outside, address.split('/').next().unwrap());
                let second = run("ADD", &c2).call().ok();
                is_ready(&node, link_of(plugin, &second));
                for (container, result) in [(&c1, &first), (&c2, &second)] {
                    run("CHECK", container).prev(result).call().silent();
                    run("DEL", container).prev(result).call().silent();
                }
            }
            c1.delete();
            c2.delete();
        }
    }
}

/// The same for the first container of a bridge that was there before, and not up.
#[test]
fn a_bridge_that_was_there_before_is_ready_too() {
    testkit::require!("root");
    let (node, _outside) = host("first-packet-old");
    node.sh("ip link add cni0 type bridge");
    let c1 = node.container("c1");
    let run = |verb| node.run("bridge", verb).to(&c1).config(keys(&node, "bridge"));
    let result = run("ADD").call().ok();
    is_ready(&node, "cni0");
    run("DEL").prev(&result).call().silent();
}

#[test]
fn vm_the_gateway_of_a_vlan_is_ready_too() {
    testkit::require!("root", "bridge-vlan-filtering");
    let (node, _outside) = host("first-packet-vlan");
    let c1 = node.container("c1");
    let mut config = keys(&node, "bridge");
    config["vlan"] = json!(100);
    let run = |verb| node.run("bridge", verb).to(&c1).config(config.clone());
    let result = run("ADD").call().ok();
    // Its other end, a port of the bridge, solicits nobody.
    solicits(&node, "cni0.100");
    node.sh("ip link set cni0.100 down; ip link set cni0.100 up");
    let mut repair = config.clone();
    repair[cni::REPAIR] = json!(true);
    assert!(node.run("bridge", "CHECK").to(&c1).config(repair).prev(&result).call().succeeded());
    solicits(&node, "cni0.100");
    run("DEL").prev(&result).call().silent();
}

/// Repair leaves no address under duplicate address detection either, in whatever way the link went
/// down.
#[test]
fn no_address_of_the_hosts_links_is_tentative_when_repair_returns() {
    testkit::require!("root");
    for mode in [0, 1, 3] {
        let (node, outside) = host("first-packet-repair");
        node.sh(&format!("sysctl -qw net.ipv6.conf.default.addr_gen_mode={mode}"));
        for plugin in ["ptp", "bridge"] {
            let c1 = node.container("c1");
            let run = |verb| node.run(plugin, verb).to(&c1);
            let result = run("ADD").config(keys(&node, plugin)).call().ok();
            let link = link_of(plugin, &result).to_owned();
            let address = result["ips"][0]["address"].as_str().unwrap().to_owned();
            for damage in [
                format!("ip link set {link} down; ip link set {link} up"),
                format!("ip link set {link} down"),
                format!("sysctl -qw net.ipv6.conf.{link}.disable_ipv6=1"),
                format!("ip -6 addr flush dev {link}"),
            ] {
                node.sh(&damage);
                let mut config = keys(&node, plugin);
                config[cni::REPAIR] = json!(true);
                let repaired = run("CHECK").prev(&result).config(config).call();
                assert!(repaired.succeeded(), "{mode} {plugin}: {damage}: {repaired:?}");
                is_ready(&node, &link);
                assert_pings(&outside, address.split('/').next().unwrap());
                run("CHECK").prev(&result).config(keys(&node, plugin)).call().silent();
            }
            run("DEL").prev(&result).config(keys(&node, plugin)).call().silent();
            c1.delete();
        }
    }
}

/// An address that another machine has is none to solicit from.
#[test]
fn repair_restores_an_address_that_was_a_duplicate() {
    testkit::require!("root");
    let (node, outside) = host("first-packet-duplicate");
    let c1 = node.container("c1");
    let run = |verb| node.run("ptp", verb).to(&c1);
    let result = run("ADD").config(keys(&node, "ptp")).call().ok();
    let link = link_of("ptp", &result).to_owned();
    let shown = node.sh(&format!("ip -6 -br addr show dev {link} scope link"));
    let own = shown.split_whitespace().find(|word| word.starts_with("fe80:")).unwrap();
    c1.sh(&format!("ip addr add {own} dev eth0 nodad"));
    node.sh(&format!(
        "ip addr del {own} dev {link}; sysctl -qw net.ipv6.conf.{link}.accept_dad=1; \
         ip addr add {own} dev {link}; timeout 60 sh -c \
         'until ip -6 addr show dev {link} dadfailed | grep -q inet6; do sleep 0.01; done'"
    ));
    c1.sh(&format!("ip addr del {own} dev eth0"));
    let check = |repair| {
        let mut config = keys(&node, "ptp");
        config[cni::REPAIR] = json!(repair);
        run("CHECK").prev(&result).config(config).call()
    };
    check(false).fails(104, "link-local IPv6 address is gone");
    assert!(check(true).succeeded());
    check(false).silent();
    is_ready(&node, &link);
    let address = result["ips"][0]["address"].as_str().unwrap();
    assert_pings(&outside, address.split('/').next().unwrap());
}
