//! Hosts on which no ADD of a network can work: STATUS says it before, in the words of ADD.

use serde_json::{Value, json};
use testkit::{Container, Snapshot};

use crate::support::matrix::{self, Family};
use crate::support::{Node, Run};

const READ_ONLY: &str = "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys";

fn keys(node: &Node, plugin: &str, family: Family) -> Value {
    let ipam = matrix::ipam(node, family);
    match plugin {
        "bridge" => json!({ "isGateway": true, "ipam": ipam }),
        _ => json!({ "ipam": ipam }),
    }
}

fn run<'n>(node: &'n Node, plugin: &str, verb: &str, c1: &Container, config: &Value) -> Run<'n> {
    node.run(plugin, verb).to(c1).config(config.clone())
}

/// STATUS and ADD both fail with these words, name this command, and leave everything as it was.
fn refused(node: &Node, c1: &Container, plugin: &str, config: &Value, words: &str, command: &str) {
    let before = Snapshot::take(&node.lab);
    told(node, c1, plugin, config, words, command);
    before.assert_same(&Snapshot::take(&node.lab));
}

fn told(node: &Node, c1: &Container, plugin: &str, config: &Value, words: &str, command: &str) {
    let status = node.run(plugin, "STATUS").config(config.clone()).call().error();
    let add = run(node, plugin, "ADD", c1, config).call().error();
    assert_eq!((status.code, add.code), (50, 100), "{plugin}: {status} {add}");
    for error in [&status, &add] {
        let text = error.to_string();
        assert!(text.contains(words) && text.contains(command), "{plugin}: {text}");
        assert!(!text.contains("permission"), "{plugin}: {text}");
    }
}

fn accepted(node: &Node, c1: &Container, plugin: &str, config: &Value) {
    node.run(plugin, "STATUS").config(config.clone()).call().silent();
    let result = run(node, plugin, "ADD", c1, config).call().ok();
    run(node, plugin, "CHECK", c1, config).prev(&result).call().silent();
    run(node, plugin, "DEL", c1, config).prev(&result).call().silent();
}

#[test]
fn a_host_on_which_ipv6_is_switched_off_is_named() {
    testkit::require!("root");
    let words = "IPv6 is switched off on this host (net.ipv6.conf.default.disable_ipv6 is 1)";
    let command = "sysctl -w net.ipv6.conf.default.disable_ipv6=0, or leave the IPv6 addresses out";
    let node = Node::new("no-ipv6");
    let c1 = node.container("c1");
    node.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    for plugin in ["bridge", "ptp"] {
        refused(&node, &c1, plugin, &keys(&node, plugin, Family::Dual), words, command);
        refused(&node, &c1, plugin, &keys(&node, plugin, Family::V6), words, command);
        accepted(&node, &c1, plugin, &keys(&node, plugin, Family::V4));
    }
    // The host has no address on these links.
    accepted(&node, &c1, "bridge", &json!({ "ipam": matrix::ipam(&node, Family::Dual) }));
    // A bridge that was there before has a switch of its own.
    node.sh("ip link add cni0 type bridge; ip link set cni0 up; sysctl -qw net.ipv6.conf.default.disable_ipv6=0");
    let words = "IPv6 is switched off on this host (net.ipv6.conf.cni0.disable_ipv6 is 1)";
    let command = "sysctl -w net.ipv6.conf.cni0.disable_ipv6=0";
    told(&node, &c1, "bridge", &keys(&node, "bridge", Family::Dual), words, command);
    assert_eq!(node.sh("ip -o addr show dev cni0"), "");
    node.sh("sysctl -qw net.ipv6.conf.cni0.disable_ipv6=0");
    accepted(&node, &c1, "bridge", &keys(&node, "bridge", Family::Dual));
}

/// As with `ipv6.disable=1` on the kernel's command line: only the absence of the parameters is
/// imitated.
#[test]
fn a_kernel_without_ipv6_is_named() {
    testkit::require!("root");
    let node = Node::new("kernel-no-ipv6");
    let c1 = node.container("c1");
    node.sh("ip link add up0 type veth peer name up1");
    node.sh("mount -t tmpfs tmpfs /proc/sys/net/ipv6");
    for plugin in ["bridge", "ptp", "macvlan", "dummy"] {
        let mut config = keys(&node, plugin, Family::Dual);
        config["master"] = json!("up0");
        let status = node.run(plugin, "STATUS").config(config).call();
        status.fails(50, "this host's kernel has no IPv6 (ipv6.disable=1)");
    }
    for plugin in ["bridge", "ptp"] {
        accepted(&node, &c1, plugin, &keys(&node, plugin, Family::V4));
    }
}

/// A node in an unprivileged container.
#[test]
fn where_parameters_are_read_only_and_right_nothing_is_written() {
    testkit::require!("root");
    for prepared in [
        "net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
        "net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.default.accept_ra=0",
    ] {
        let node = Node::new("read-only-right");
        let c1 = node.container("c1");
        node.sh(&format!("sysctl -qw {prepared}"));
        node.sh(READ_ONLY);
        for plugin in ["bridge", "ptp"] {
            for family in [Family::V4, Family::V6, Family::Dual] {
                accepted(&node, &c1, plugin, &keys(&node, plugin, family));
            }
        }
    }
    // Without routing the host need not forward.
    let node = Node::new("read-only-bridge");
    let c1 = node.container("c1");
    node.sh("sysctl -qw net.ipv6.conf.default.accept_ra=0");
    node.sh(READ_ONLY);
    accepted(&node, &c1, "bridge", &json!({ "ipam": matrix::ipam(&node, Family::Dual) }));
}

#[test]
fn where_parameters_are_read_only_and_wrong_the_command_is_named() {
    testkit::require!("root");
    let forward = |sysctl: &str| {
        (
            format!("the host does not forward ({sysctl} is 0), and /proc/sys cannot be written"),
            format!("sysctl -w {sysctl}=1"),
        )
    };
    let accepts = (
        "containers could become this host's router by router advertisements, and /proc/sys \
         cannot be written"
            .to_owned(),
        "sysctl -w net.ipv6.conf.default.accept_ra=0".to_owned(),
    );
    let off = "net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0";
    for (prepared, family, (words, command)) in [
        ("net.ipv6.conf.default.accept_ra=0", Family::V4, forward("net.ipv4.ip_forward")),
        ("net.ipv6.conf.default.accept_ra=0", Family::V6, forward("net.ipv6.conf.all.forwarding")),
        ("net.ipv4.ip_forward=1", Family::V4, accepts),
    ] {
        let node = Node::new("read-only-wrong");
        let c1 = node.container("c1");
        node.sh(&format!("sysctl -qw {off} {prepared}"));
        node.sh(READ_ONLY);
        for plugin in ["bridge", "ptp"] {
            refused(&node, &c1, plugin, &keys(&node, plugin, family), &words, &command);
        }
    }
}
