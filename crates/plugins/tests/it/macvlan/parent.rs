//! How the parent is chosen.

use serde_json::{Value, json};
use testkit::{Container, Place};

use super::host;
use crate::support::Node;
use crate::support::fixed::link;

/// The ifindex of the parent of a container's link.
fn parent_of(container: &Container) -> Value {
    link(container, "eth0")["link_index"].clone()
}

fn index(node: &Node, name: &str) -> Value {
    link(&node.lab, name)["ifindex"].clone()
}

fn add(node: &Node, id: &str, config: Value) -> Container {
    let container = node.container(id);
    let result = node.run("macvlan", "ADD").to(&container).config(config.clone()).call().ok();
    node.run("macvlan", "CHECK")
        .to(&container)
        .config(config.clone())
        .prev(&result)
        .call()
        .silent();
    node.run("macvlan", "STATUS").config(config).call().silent();
    container
}

#[test]
fn without_a_master_it_is_the_default_routes_link() {
    let node = host("macvlan-default");
    node.sh("ip link add q0 type veth peer name q1 && ip link set q0 up && ip link set q1 up");
    let c1 = node.container("c1");
    let without = node.run("macvlan", "ADD").to(&c1).call();
    without.fails(7, "no default route interface found");
    node.sh("ip addr add fd00:9::1/64 dev q0 nodad && ip -6 route add default via fd00:9::2");
    assert_eq!(parent_of(&add(&node, "c2", json!({}))), index(&node, "q0"), "IPv6 alone");
    // IPv4's default route comes first, and among several the one with the lowest metric.
    node.sh("ip addr add 10.9.0.1/24 dev q0 && ip route add default via 10.9.0.2 metric 20 && \
         ip addr add 10.8.0.1/24 dev p0 && ip route add default via 10.8.0.2 metric 10");
    let c3 = add(&node, "c3", json!({}));
    assert_eq!(parent_of(&c3), index(&node, "p0"));
}

#[test]
fn check_compares_with_the_parent_that_add_found() {
    let node = host("macvlan-moved");
    node.sh(
        "ip link add q0 type veth peer name q1 && ip link set q0 up && ip link set q1 up && \
         ip addr add 10.8.0.1/24 dev p0 && ip route add default via 10.8.0.2 && ip addr add 10.9.0.1/24 dev q0",
    );
    let c1 = node.container("c1");
    let result = node.run("macvlan", "ADD").to(&c1).call().ok();
    node.sh("ip route replace default via 10.9.0.2");
    node.run("macvlan", "CHECK").to(&c1).prev(&result).call().silent();
    // The record is lost: the configuration is all there is.
    node.sh(&format!("rm -r {}/owners", node.roots.run.display()));
    let check = node.run("macvlan", "CHECK").to(&c1).prev(&result).call();
    check.fails(104, "is not on \"q0\"");
}

#[test]
fn by_hardware_address() {
    let node = host("macvlan-bymac");
    node.sh("ip link set p0 address 02:00:5e:00:53:10");
    let by = |mac: &str| json!({ "parent": { "mac": mac } });
    let c1 = add(&node, "c1", by("02-00-5E-00-53-10"));
    assert_eq!(parent_of(&c1), index(&node, "p0"));
    // A link on the parent that has the same address is not chosen.
    node.sh("ip link add link p0 name m0 type macvlan mode passthru 2>/dev/null || \
             ip link add link p0 name m0 address 02:00:5e:00:53:10 type macvlan mode bridge || true");
    assert_eq!(parent_of(&add(&node, "c2", by("02:00:5e:00:53:10"))), index(&node, "p0"));
    node.sh("ip link set p1 address 02:00:5e:00:53:10");
    let refused =
        |config: Value| node.run("macvlan", "ADD").to(&node.container("c9")).config(config).call();
    refused(by("02:00:5e:00:53:10"))
        .fails(7, "several links have hardware address 02:00:5e:00:53:10");
    refused(by("02:00:5e:00:53:99")).fails(7, "no link has hardware address 02:00:5e:00:53:99");
    refused(by("nonsense")).fails(7, "invalid MAC address");
}

#[test]
fn by_driver() {
    let node = host("macvlan-bydriver");
    node.sh("ip link add br0 type bridge && ip link set br0 up");
    let by = |driver: &str| json!({ "parent": { "driver": driver } });
    assert_eq!(parent_of(&add(&node, "c1", by("bridge"))), index(&node, "br0"));
    let refused =
        |config: Value| node.run("macvlan", "ADD").to(&node.container("c9")).config(config).call();
    refused(by("veth")).fails(7, "several links have driver \"veth\": p");
    refused(by("ixgbe")).fails(7, "no link has driver \"ixgbe\"");
    refused(by("../x")).fails(7, "invalid parent.driver");
    // Shows the links as sysfs shows hardware.
    node.sh("mount -t tmpfs none /sys && mkdir -p /sys/class/net/p1/device /sys/drivers/ixgbe && \
         ln -s ../../../../drivers/ixgbe /sys/class/net/p1/device/driver");
    // A folder of that name may belong to a link in another namespace.
    refused(by("ixgbe")).fails(7, "no link has driver \"ixgbe\"");
    let p1 = link(&node.lab, "p1");
    let (ifindex, mac) = (&p1["ifindex"], p1["address"].as_str().unwrap());
    let own = "/sys/class/net/p1";
    node.sh(&format!("echo {ifindex} > {own}/ifindex && echo {mac} > {own}/address"));
    assert_eq!(parent_of(&add(&node, "c2", by("ixgbe"))), index(&node, "p1"));
}

#[test]
fn by_pci_address() {
    let node = host("macvlan-bypci");
    node.sh("mkdir /run/net && for p in p0 p1; do \
             mkdir /run/net/$p && cp /sys/class/net/$p/ifindex /sys/class/net/$p/address /run/net/$p; done");
    node.sh("mount -t tmpfs none /sys && cd /sys && mkdir -p bus/pci/devices && cd bus/pci/devices && \
             mkdir -p 0000:3b:00.1/net 0000:3b:00.2/net && cp -r /run/net/p1 0000:3b:00.1/net && cp -r /run/net/* 0000:3b:00.2/net");
    let by = |address: &str| json!({ "parent": { "pciBusID": address } });
    assert_eq!(parent_of(&add(&node, "c1", by("0000:3b:00.1"))), index(&node, "p1"));
    let refused =
        |config: Value| node.run("macvlan", "ADD").to(&node.container("c9")).config(config).call();
    refused(by("0000:3b:00.2")).fails(7, "several links have PCI address 0000:3b:00.2: p0, p1");
    refused(by("0000:3b:00.3")).fails(7, "no link has PCI address 0000:3b:00.3");
    refused(by("../../x")).fails(7, "invalid parent.pciBusID");
    let status = node.run("macvlan", "STATUS").config(by("0000:3b:00.3")).call();
    status.fails(50, "no link has PCI address");
}

#[test]
fn by_the_route_to_an_address() {
    let node = host("macvlan-byroute");
    let _outside = node.lab.outside();
    node.sh("ip addr add 10.8.0.1/24 dev p0 && ip -6 addr add fd00:8::1/64 dev p0 nodad");
    let by = |address: &str| json!({ "parent": { "routeTo": address } });
    for (id, address, parent) in [
        ("c1", "10.8.0.77", "p0"),
        ("c2", "fd00:8::77", "p0"),
        ("c3", "203.0.113.1", "up0"),
        ("c4", "2001:db8:7::1", "up0"),
    ] {
        assert_eq!(parent_of(&add(&node, id, by(address))), index(&node, parent), "{address}");
    }
    let refused =
        |config: Value| node.run("macvlan", "ADD").to(&node.container("c9")).config(config).call();
    refused(by("10.8.0.1")).fails(7, "\"lo\" cannot be a parent");
    refused(by("10.8.0.0/24")).fails(7, "is not an IP address");
    node.sh(
        "ip route add unreachable 192.0.2.0/24 && ip route del default && ip -6 route del default",
    );
    refused(by("192.0.2.1")).fails(7, "no route to 192.0.2.1");
    refused(by("203.0.113.1")).fails(7, "no route to 203.0.113.1");
    refused(by("2001:db8:7::1")).fails(7, "no route to 2001:db8:7::1");
}

#[test]
fn in_the_container() {
    let node = host("macvlan-inside");
    let c1 = node.container("c1");
    node.sh("ip link set p0 netns c1 name net1");
    c1.sh("ip link set net1 up && ip addr add 10.8.0.1/24 dev net1 && ip route add default via 10.8.0.2");
    // The host has a link of that name too, which is not chosen.
    node.sh("ip link add net1 type veth peer name q1");
    for config in
        [json!({ "master": "net1" }), json!({}), json!({ "parent": { "routeTo": "10.8.0.9" } })]
    {
        let call = |verb: &str| {
            let inside = json!({ "linkInContainer": true });
            node.run("macvlan", verb).to(&c1).config(inside).config(config.clone())
        };
        let result = call("ADD").call().ok();
        assert_eq!(parent_of(&c1), Value::Null, "{config}: it is in the same namespace");
        assert_eq!(link(&c1, "eth0")["link"], "net1", "{config}");
        // The container's own default route may now lead over the new link.
        c1.sh(
            "ip addr add 10.7.0.1/24 dev eth0 && ip route add default via 10.7.0.2 metric 1; true",
        );
        call("CHECK").prev(&result).call().silent();
        call("DEL").prev(&result).call().silent();
        c1.sh("! ip link show eth0 && ip link show net1");
    }
    for config in [
        json!({ "parent": { "driver": "veth" } }),
        json!({ "parent": { "pciBusID": "0000:00:01.0" } }),
    ] {
        let call = node.run("macvlan", "ADD").to(&c1).config(json!({ "linkInContainer": true }));
        call.config(config).call().fails(7, "exclude \"linkInContainer\"");
    }
}
