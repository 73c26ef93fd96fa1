//! Hosts on which no ADD of a network can work: STATUS says it before, in the words of ADD.

use serde_json::{Value, json};
use testkit::{Container, Place as _, Snapshot};

use crate::support::matrix::{self, Family};
use crate::support::{Node, Run, on_parent};

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
    refused_with(node, c1, plugin, config, words, command);
    before.assert_same(&Snapshot::take(&node.lab));
}

fn refused_with(
    node: &Node,
    c1: &Container,
    plugin: &str,
    config: &Value,
    words: &str,
    command: &str,
) {
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
    refused_with(&node, &c1, "bridge", &keys(&node, "bridge", Family::Dual), words, command);
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

/// What a network cannot be without: STATUS fails, and ADD does, if the kernel lacks it.
#[test]
fn what_the_kernel_lacks_is_named() {
    testkit::require!("root");
    let rows = [
        ("ipvlan", json!({ "master": "p0" }), "ipvlan", "CONFIG_IPVLAN"),
        ("macvlan", json!({ "master": "p0" }), "macvlan", "CONFIG_MACVLAN"),
        ("vlan", json!({ "master": "p0", "vlanId": 5 }), "vlan", "CONFIG_VLAN_8021Q"),
        ("dummy", json!({}), "dummy", "CONFIG_DUMMY"),
        ("bridge", json!({}), "root", ""),
        ("bridge", json!({ "vlan": 5 }), "bridge-vlan-filtering", "CONFIG_BRIDGE_VLAN_FILTERING"),
    ];
    let node = on_parent::host("kernel-kinds");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    for (plugin, mut config, feature, option) in rows {
        config["ipam"] = matrix::ipam(&node, Family::V4);
        let status = node.run(plugin, "STATUS").config(config.clone()).call();
        on_parent::served(status, feature, option);
        let add = run(&node, plugin, "ADD", &c1, &config).call();
        if testkit::feature::available(feature) {
            let result = add.ok();
            run(&node, plugin, "DEL", &c1, &config).prev(&result).call().silent();
        } else {
            assert_eq!(add.error().code, 100, "{plugin}");
        }
    }
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn a_parent_that_is_a_port_is_named() {
    testkit::require!("root");
    let node = on_parent::host("parent-port");
    let c1 = node.container("c1");
    let config = json!({ "master": "p0", "ipam": matrix::ipam(&node, Family::V4) });
    accepted(&node, &c1, "macvlan", &config);
    node.sh("ip link add br0 type bridge && ip link set p0 master br0");
    refused_with(
        &node,
        &c1,
        "macvlan",
        &config,
        "failed to create macvlan",
        "is a port of bridge \"br0\"",
    );
}

#[test]
fn a_tap_needs_the_device_that_makes_taps() {
    testkit::require!("root");
    let node = Node::new("not-a-tun");
    let c1 = node.container("c1");
    let config = json!({});
    accepted(&node, &c1, "tap", &config);
    node.sh("mount --bind /dev/null /dev/net/tun");
    let status = node.run("tap", "STATUS").config(config.clone()).call();
    status.fails(50, "failed to create tap: open /dev/net/tun: No such device");
    assert_eq!(run(&node, "tap", "ADD", &c1, &config).call().error().code, 100);
}

/// Whether STATUS succeeds, and whether ADD does.
fn tuned(node: &Node, c1: &Container, sysctl: &str, value: &str) -> [bool; 2] {
    let config = json!({ "sysctl": { sysctl: value } });
    let outcome = |run: Run<'_>| run.call().succeeded();
    let prev = json!({ "cniVersion": "1.1.0", "interfaces": [
        { "name": "eth0", "mac": "02:00:00:00:00:aa", "sandbox": "/run/netns/c1" }] });
    let status = outcome(node.run("tuning", "STATUS").config(config.clone()).of_network());
    let add = outcome(node.run("tuning", "ADD").to(c1).prev(&prev).config(config.clone()));
    node.run("tuning", "DEL").to(c1).config(config).call().silent();
    [status, add]
}

/// STATUS agrees with ADD in a container as a runtime makes it.
#[test]
fn a_sysctl_that_no_container_has_is_named() {
    testkit::require!("root");
    let node = Node::new("no-sysctl");
    let c1 = node.container("c1");
    c1.sh("ip link add eth0 address 02:00:00:00:00:aa type veth peer name far");
    for (sysctl, value, is_there) in [
        ("net.ipv4.nosuch", "1", false),
        ("net.ipv6.conf.all.nosuch", "1", false),
        ("net.ipv4.conf.IFNAME.nosuch", "1", false),
        ("net.ipv4.conf.IFNAME.arp_filter", "1", true),
        ("net.ipv4.conf.eth0.arp_filter", "1", true),
        ("net.ipv6.conf.IFNAME.accept_dad", "0", true),
        ("net.ipv4.neigh.IFNAME.gc_stale_time", "10", true),
        ("net/ipv4/conf/lo/arp_filter", "1", true),
        ("net.core.somaxconn", "500", true),
        ("net.ipv4.ip_local_port_range", "1024 65000", true),
    ] {
        assert_eq!(tuned(&node, &c1, sysctl, value), [is_there; 2], "{sysctl}");
    }
    // A module may be loaded until then.
    let late = json!({ "sysctl": { "net.netfilter.nosuch": "1" } });
    node.run("tuning", "STATUS").config(late).of_network().call().silent();
    // Where nothing can be written, a value that is right already will do.
    node.sh(READ_ONLY);
    assert_eq!(tuned(&node, &c1, "net.ipv4.conf.IFNAME.arp_filter", "1"), [false; 2]);
    assert_eq!(tuned(&node, &c1, "net.ipv4.conf.IFNAME.arp_filter", "0"), [true; 2]);
}

/// A file system without room, in bytes or in files.
#[test]
fn a_folder_that_takes_no_more_files_is_named() {
    testkit::require!("root");
    let node = Node::new("no-room");
    let c1 = node.container("c1");
    let config = keys(&node, "bridge", Family::V4);
    let pools = node.dir("ipam");
    for (folder, options, words) in [
        (pools.as_path(), "nr_inodes=2", "its file system takes no more files"),
        (pools.as_path(), "size=4k", "its file system has no space left"),
        (node.roots.run.as_path(), "nr_inodes=1", "its file system takes no more files"),
        (node.roots.run.as_path(), "size=4k", "its file system has no space left"),
    ] {
        let folder = folder.display();
        node.sh(&format!(
            "mkdir -p {folder} && mount -t tmpfs -o {options} none {folder} && \
             {{ ! echo {options} | grep -q size || echo x >{folder}/fill; }}"
        ));
        let status = node.run("bridge", "STATUS").config(config.clone()).call();
        status.fails(50, words);
        assert_ne!(run(&node, "bridge", "ADD", &c1, &config).call().error().code, 0);
        node.sh(&format!("umount {folder}"));
        accepted(&node, &c1, "bridge", &config);
    }
}

/// The pool and the words for what of it the host has.
#[test]
fn a_pool_of_which_no_address_would_do_is_named() {
    testkit::require!("root");
    let node = Node::new("pool-taken");
    let c1 = node.container("c1");
    node.sh(
        "ip link add up0 type veth peer name up1 && ip link set up0 up && ip link set up1 up && \
         ip addr add 192.0.2.10/24 dev up0 && ip addr add 2001:db8:1::10/64 dev up0 nodad && \
         ip link add tun0 type veth peer name tun1 && ip link set tun0 up && ip link set tun1 up && \
         ip route add 198.51.100.0/24 dev tun0 && ip route add 10.9.0.77/32 dev tun0",
    );
    let range = |subnet: &str| json!({ "subnet": subnet });
    let ipam =
        |sets: Value| json!({ "type": "host-local", "dataDir": node.dir("ipam"), "ranges": sets });
    let up0 = "link \"up0\"";
    let tun0 = "to which the host has a route on link \"tun0\"";
    for plugin in ["bridge", "ptp"] {
        let with = |sets: Value, more: Value| {
            let mut config = json!({ "isGateway": true, "ipam": ipam(sets) });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            config
        };
        for (sets, words) in [
            (json!([[range("192.0.2.0/24")]]), up0),
            (json!([[range("2001:db8:1::/64")]]), up0),
            (json!([[{ "subnet": "192.0.2.0/24", "rangeStart": "192.0.2.10" }]]), up0),
            (json!([[range("198.51.100.0/24")]]), tun0),
            (json!([[range("10.7.0.0/24")], [range("2001:db8:1::/64")]]), up0),
        ] {
            let config = with(sets, json!({}));
            let status = node.run(plugin, "STATUS").config(config.clone()).call().error();
            assert!(status.code == 50 && status.to_string().contains(words), "{plugin}: {status}");
            let add = run(&node, plugin, "ADD", &c1, &config).call().error();
            assert!(add.code == 108 && add.to_string().contains(words), "{plugin}: {add}");
            let sharing =
                with(config["ipam"]["ranges"].clone(), json!({ "allowAddressConflict": true }));
            node.run(plugin, "STATUS").config(sharing).call().silent();
        }
        for sets in [
            // The host has one address of it, not all.
            json!([[range("10.9.0.0/24")]]),
            // A part of the uplink's subnet that is routed to containers.
            json!([[range("192.0.2.128/25")]]),
            // Another range of the set may do.
            json!([[range("10.8.0.0/24"), range("192.0.2.0/24")]]),
        ] {
            node.sh(&format!("rm -rf {}", node.dir("ipam").display()));
            accepted(&node, &c1, plugin, &with(sets, json!({})));
        }
    }
    // The gateway's address is the host's own, as the uplink's; each container is a route of its own.
    let own = json!([[{ "subnet": "192.0.2.0/24", "gateway": "192.0.2.10" }]]);
    accepted(&node, &c1, "ptp", &json!({ "ipam": ipam(own) }));
    // Nothing is routed to a bridge without a gateway.
    accepted(&node, &c1, "bridge", &json!({ "ipam": ipam(json!([[range("192.0.2.0/24")]])) }));
}
