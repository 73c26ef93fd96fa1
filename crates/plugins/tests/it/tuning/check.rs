//! CHECK, and the CHECK that repairs.

use std::fs;

use cni_plugin::codes;
use serde_json::{Value, json};
use testkit::Place;

use super::{add, container, everything, prev};
use crate::support::{Answer, Node};

fn check(node: &Node, container: &testkit::Container, config: &Value) -> Answer {
    node.run("tuning", "CHECK").to(container).prev(&prev()).config(config.clone()).call()
}

fn repair(node: &Node, container: &testkit::Container, config: &Value) -> Answer {
    let mut config = config.clone();
    config[cni::REPAIR] = json!(true);
    check(node, container, &config)
}

/// `tuning | CHECK`
#[test]
fn each_difference_is_named() {
    let node = Node::new("tun-check");
    let c1 = container(&node, "c1");
    let mut config = everything();
    config["sysctl"] = json!({ "net.core.somaxconn": "77" });
    add(&node, &c1, &config).call().ok();
    // The configuration's MAC is in upper case, the kernel's in lower.
    check(&node, &c1, &config).silent();

    let drifts = [
        (
            "ip link set eth0 address 02:00:00:00:00:07",
            "ip link set eth0 address 02:00:5e:00:53:01",
            "Tuning configured Ethernet of eth0 is 02:00:5e:00:53:01, current value is 02:00:00:00:00:07",
        ),
        (
            "ip link set eth0 mtu 1450",
            "ip link set eth0 mtu 1400",
            "Tuning configured MTU of eth0 is 1400, current value is 1450",
        ),
        (
            "ip link set eth0 promisc off",
            "ip link set eth0 promisc on",
            "Tuning configured promisc of eth0 is true, current value is false",
        ),
        (
            "ip link set eth0 allmulticast off",
            "ip link set eth0 allmulticast on",
            "Tuning configured all-multicast mode of eth0 is true, current value is false",
        ),
        (
            "ip link set eth0 txqueuelen 6",
            "ip link set eth0 txqueuelen 5",
            "Tuning configured transmission queue length of eth0 is 5, current value is 6",
        ),
        (
            "sysctl -qw net.core.somaxconn=78",
            "sysctl -qw net.core.somaxconn=77",
            "Tuning configured value of net/core/somaxconn is 77, current value is 78",
        ),
    ];
    for (change, back, words) in drifts {
        c1.sh(change);
        let error = check(&node, &c1, &config).error();
        assert_eq!((error.code, error.msg.as_str()), (codes::DRIFT, words));
        c1.sh(back);
        check(&node, &c1, &config).silent();
    }
    // With all of them at once, CHECK names all.
    drifts.iter().for_each(|(change, ..)| drop(c1.sh(change)));
    let error = check(&node, &c1, &config).error();
    for (.., words) in drifts {
        assert!(error.to_string().contains(words), "{error}");
    }
    c1.sh("ip link del eth0");
    check(&node, &c1, &config).fails(codes::DRIFT, "Cannot find container link eth0");
}

#[test]
fn what_is_not_configured_is_not_compared() {
    let node = Node::new("tun-unset");
    let c1 = container(&node, "c1");
    add(&node, &c1, &json!({ "mtu": 1400 })).call().ok();
    c1.sh("ip link set eth0 promisc on allmulticast on txqueuelen 7");
    check(&node, &c1, &json!({ "mtu": 1400 })).silent();
}

#[test]
fn a_value_that_the_kernel_rewrites_is_as_configured() {
    let node = Node::new("tun-rewritten");
    let c1 = container(&node, "c1");
    // The kernel shows the value as 8080-8081,9148.
    let config = json!({ "sysctl": { "net.ipv4.ip_local_reserved_ports": "8080,9148,8081" } });
    add(&node, &c1, &config).call().ok();
    check(&node, &c1, &config).silent();
    c1.sh("sysctl -qw net.ipv4.ip_local_reserved_ports=8080");
    check(&node, &c1, &config).fails(codes::DRIFT, "current value is 8080");
    super::del(&node, &c1).call().silent();
    assert_eq!(super::sysctl(&c1, "net.ipv4.ip_local_reserved_ports"), "");
}

#[test]
fn a_sysctl_that_is_gone_is_named() {
    let node = Node::new("tun-gone");
    let c1 = container(&node, "c1");
    let config = json!({ "sysctl": { "net.ipv4.conf.IFNAME.arp_notify": "1" } });
    add(&node, &c1, &config).call().ok();
    c1.sh("ip link del eth0");
    check(&node, &c1, &config)
        .fails(codes::DRIFT, "Tuning cannot find sysctl net/ipv4/conf/eth0/arp_notify");
}

#[test]
fn a_repair_names_what_it_restored() {
    let node = Node::new("tun-repair");
    let c1 = container(&node, "c1");
    let mut config = json!({ "mtu": 1400, "promisc": true });
    config["sysctl"] =
        json!({ "net.core.somaxconn": "77", "net.ipv4.conf.IFNAME.arp_notify": "1" });
    add(&node, &c1, &config).call().ok();
    c1.sh("ip link set eth0 mtu 1450 promisc off");
    c1.sh("sysctl -qw net.core.somaxconn=78 net.ipv4.conf.eth0.arp_notify=0");
    let said = repair(&node, &c1, &config);
    let expected = [
        "promiscuous mode on of interface \"eth0\"",
        "MTU 1400 of interface \"eth0\"",
        "sysctl net/ipv4/conf/eth0/arp_notify = \"1\"",
        "sysctl net/core/somaxconn = \"77\"",
    ];
    assert_eq!(cni::RepairReport::parse(&said.output.stdout).lines, expected, "{said:?}");
    check(&node, &c1, &config).silent();
}

#[test]
fn a_sysctl_that_is_gone_keeps_nothing_else_from_repair() {
    let node = Node::new("tun-gone-else");
    let c1 = container(&node, "c1");
    let config = json!({
        "sysctl": { "net.core.somaxconn": "77", "net.ipv4.conf.IFNAME.arp_notify": "1" },
    });
    add(&node, &c1, &config).call().ok();
    c1.sh("ip link del eth0; sysctl -qw net.core.somaxconn=78");
    let gone = "Tuning cannot find sysctl net/ipv4/conf/eth0/arp_notify";
    repair(&node, &c1, &config).fails(codes::DRIFT, gone);
    assert_eq!(super::sysctl(&c1, "net.core.somaxconn"), "77");
}

#[test]
fn a_sysctl_that_is_no_longer_allowed_is_not_restored() {
    let node = Node::new("tun-forbidden");
    let c1 = container(&node, "c1");
    let config = json!({ "sysctl": { "net.core.somaxconn": "77" } });
    add(&node, &c1, &config).call().ok();
    let allowlist = node.lab.path("/etc/cni/tuning/allowlist.conf");
    fs::create_dir_all(allowlist.parent().unwrap()).unwrap();
    fs::write(&allowlist, "^net\\.ipv4\n").unwrap();
    c1.sh("sysctl -qw net.core.somaxconn=78");
    repair(&node, &c1, &config).fails(codes::DRIFT, "could not put it back");
    assert_eq!(super::sysctl(&c1, "net.core.somaxconn"), "78");
    fs::remove_file(&allowlist).unwrap();
    repair(&node, &c1, &config).ok();
    assert_eq!(super::sysctl(&c1, "net.core.somaxconn"), "77");
}
