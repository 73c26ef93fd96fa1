//! Exploits of other plugins that no other test covers. docs/guarantees.md lists all of them.

use serde_json::json;
use testkit::router::advertise;
use testkit::traffic::{self, Server, assert_pings};
use testkit::{Container, Place};

use crate::support::Node;
use crate::support::matrix::{self, Family, attached};

fn publish(node: &Node, container: &Container, port: u16) {
    let prev = attached(node, container, Family::Dual);
    let ports = json!([{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }]);
    let keys = json!({ "runtimeConfig": { "portMappings": ports } });
    node.run("portmap", "ADD").to(container).prev(&prev).config(keys).call().ok();
}

/// CVE-2019-9946: rules for host ports stood before those of services and took their traffic, also
/// if the service's address is the host's own (plugins#222).
#[test]
fn host_ports_come_after_services() {
    testkit::require!("root");
    let node = Node::new("service");
    let outside = node.lab.outside();
    node.sh("sysctl -qw net.ipv4.ip_forward=1; ip addr add 10.96.0.1/32 dev lo");
    outside.sh(
        "ip route add 10.96.0.1/32 via 198.51.100.1; ip route add 10.1.0.0/24 via 198.51.100.1",
    );
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    publish(&node, &c1, 8080);
    attached(&node, &c2, Family::Dual);
    // The rule that kube-proxy makes for a service, in the same hook.
    node.sh("nft add table ip services; \
         nft 'add chain ip services pre { type nat hook prerouting priority dstnat; }'; \
         nft 'add chain ip services out { type nat hook output priority -100; }'; \
         nft add rule ip services pre ip daddr 10.96.0.1 tcp dport 8080 dnat to 10.1.0.4:80; \
         nft add rule ip services out ip daddr 10.96.0.1 tcp dport 8080 dnat to 10.1.0.4:80");
    let _c1 = Server::tcp(&c1, "[::]:80", "host port");
    let _c2 = Server::tcp(&c2, "[::]:80", "service");
    assert_eq!(traffic::assert_tcp(&outside, "198.51.100.1:8080").server, "host port");
    assert_eq!(traffic::assert_tcp(&outside, "10.96.0.1:8080").server, "service");
    assert_eq!(traffic::assert_tcp(&node.lab, "10.96.0.1:8080").server, "service");
}

/// CVE-2020-10749: a container that sends router advertisements became the host's router. (`ptp`
/// has its own tests.)
#[test]
fn no_link_of_the_host_takes_router_advertisements() {
    testkit::require!("root");
    let node = Node::new("advertise");
    let c1 = node.container("c1");
    // A host that accepts advertisements even though it forwards.
    node.sh("for f in all default; do echo 2 > /proc/sys/net/ipv6/conf/$f/accept_ra; done");
    let ipam = matrix::ipam(&node, Family::Dual);
    let run =
        |verb| node.run("bridge", verb).to(&c1).config(json!({ "isGateway": true, "ipam": ipam }));
    let result = run("ADD").call().ok();
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let accepts =
        |link: &str| node.sh(&format!("cat /proc/sys/net/ipv6/conf/{link}/accept_ra")) != "0\n";
    assert!(!accepts("cni0"));
    assert!(!accepts(port));
    run("DEL").prev(&result).call().silent();
}

/// The same with a real advertisement, on an existing bridge of a host that does not forward IPv6,
/// and on a link of `ptp`. The last DEL restores the bridge's sysctl.
#[test]
fn a_bridge_that_was_there_before_takes_no_router_advertisements() {
    testkit::require!("root", "program:socat");
    let node = Node::new("advertise-old");
    node.sh("sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.default.accept_ra=1 net.ipv6.conf.default.accept_dad=0 && \
             ip link add br0 address 02:00:00:00:00:0b type bridge && ip link set br0 up");
    let c1 = node.container("c1");
    let ipam = matrix::ipam(&node, Family::V4);
    let bridge = |verb| {
        let keys = json!({ "bridge": "br0", "isGateway": false, "ipam": ipam });
        node.run("bridge", verb).to(&c1).config(keys)
    };
    let result = bridge("ADD").call().ok();
    advertise(&node.lab, &c1, "br0");
    assert_eq!(node.sh("ip -6 route show default; ip -6 addr show | grep 2001:db8:bad; true"), "");
    let check = |keys| bridge("CHECK").prev(&result).config(keys).call();
    check(json!({})).silent();
    let switch = "/proc/sys/net/ipv6/conf/br0/accept_ra";
    node.sh(&format!("echo 2 > {switch}"));
    check(json!({})).fails(104, "takes router advertisements");
    assert!(check(json!({ cni::REPAIR: true })).succeeded());
    check(json!({})).silent();
    bridge("DEL").prev(&result).call().silent();
    assert_eq!(node.sh(&format!("cat {switch}")), "1\n");
}

/// A pair to another namespace is a container of another plugin, which needs what we made, only if it
/// came after our first container. What we changed on an administrator's bridge is undone once it is
/// gone.
#[test]
fn a_bridge_that_was_there_before_is_restored_beside_other_ports() {
    testkit::require!("root");
    let node = Node::new("advertise-ports");
    let (own, other) = (node.container("own"), node.container("other"));
    node.sh("sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.default.accept_ra=1 net.ipv6.conf.default.accept_dad=0 && \
             ip link add br0 address 02:00:00:00:00:0b type bridge && ip link set br0 up && \
             ip link add p0 type veth peer name eth0 netns own && ip link set p0 master br0 up");
    let c1 = node.container("c1");
    let ipam = matrix::ipam(&node, Family::V4);
    let keys = json!({ "bridge": "br0", "isGateway": true, "ipam": ipam });
    let bridge = |verb| node.run("bridge", verb).to(&c1).config(keys.clone());
    let state = || {
        node.sh("cat /proc/sys/net/ipv6/conf/br0/accept_ra; \
             ip -4 -o addr show dev br0 | grep -o 'inet [^ ]*'; true")
    };
    let before = state();
    assert!(before.starts_with("1\n"), "{before}");
    let result = bridge("ADD").call().ok();
    let during = state();
    assert!(during.starts_with("0\n"), "{during}");
    bridge("DEL").prev(&result).call().silent();
    assert_eq!(state(), before);

    let result = bridge("ADD").call().ok();
    node.sh("ip link add q0 type veth peer name eth0 netns other && ip link set q0 master br0 up");
    bridge("DEL").prev(&result).call().silent();
    assert_eq!(state(), during);
    let gc = || node.run("bridge", "GC").of_network().config(keys.clone()).valid(&[]).call();
    gc().silent();
    assert_eq!(state(), during);
    node.sh("ip link del q0");
    gc().silent();
    assert_eq!(state(), before);
    own.delete();
    other.delete();
}

/// The same on the link with a VLAN's gateway, which is a link of its own.
#[test]
fn vm_a_vlans_gateway_takes_no_router_advertisements() {
    testkit::require!("full", "root", "bridge-vlan-filtering", "program:socat");
    let node = Node::new("advertise-vlan");
    node.sh("sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.default.accept_ra=1 net.ipv6.conf.default.accept_dad=0");
    let c1 = node.container("c1");
    let ipam = matrix::ipam(&node, Family::V4);
    let keys = json!({ "isGateway": true, "vlan": 100, "ipam": ipam });
    let bridge = |verb| node.run("bridge", verb).to(&c1).config(keys.clone());
    let result = bridge("ADD").call().ok();
    advertise(&node.lab, &c1, "cni0.100");
    assert_eq!(node.sh("ip -6 route show default; ip -6 addr show | grep 2001:db8:bad; true"), "");
    let check = |keys| bridge("CHECK").prev(&result).config(keys).call();
    check(json!({})).silent();
    node.sh("echo 1 > /proc/sys/net/ipv6/conf/cni0.100/accept_ra");
    check(json!({})).fails(104, "takes router advertisements");
    assert!(check(json!({ cni::REPAIR: true })).succeeded());
    check(json!({})).silent();
    bridge("DEL").prev(&result).call().silent();
}

/// A bridge's port accepts frames to the bridge's own group addresses. An advertisement in such a
/// frame made the container the host's router, although the bridge's sysctl forbids that.
#[test]
fn a_bridges_port_takes_no_router_advertisements() {
    testkit::require!("root", "program:socat");
    let node = Node::new("advertise-port");
    node.sh("sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.default.accept_ra=1 net.ipv6.conf.default.accept_dad=0");
    let c1 = node.container("c1");
    let ipam = matrix::ipam(&node, Family::V4);
    let bridge =
        |verb| node.run("bridge", verb).to(&c1).config(json!({ "isGateway": true, "ipam": ipam }));
    let result = bridge("ADD").call().ok();
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    advertise_in_frames(&c1, result["interfaces"][2]["mac"].as_str().unwrap());
    // The host processes frames in order, and answers after these.
    assert_pings(&c1, "10.1.0.1");
    assert_eq!(node.sh("ip -6 route show default; ip -6 addr show | grep 2001:db8:bad; true"), "");
    let check = |keys| bridge("CHECK").prev(&result).config(keys).call();
    check(json!({})).silent();
    node.sh(&format!("echo 1 > /proc/sys/net/ipv6/conf/{port}/accept_ra"));
    check(json!({})).fails(104, "takes router advertisements");
    assert!(check(json!({ cni::REPAIR: true })).succeeded());
    check(json!({})).silent();
    bridge("DEL").prev(&result).call().silent();
}

/// An alternative name does not lead to a bridge's sysctls: the host accepted the container's
/// advertisements.
#[test]
fn a_bridge_is_named_by_its_own_name() {
    testkit::require!("root");
    let node = Node::new("altname");
    node.sh("ip link add br0 type bridge && ip link property add dev br0 altname other0");
    let c1 = node.container("c1");
    let ipam = matrix::ipam(&node, Family::V4);
    let add = |name: &str| {
        node.run("bridge", "ADD").to(&c1).config(json!({ "bridge": name, "ipam": ipam })).call()
    };
    add("other0").fails(7, "\"other0\" is another name of bridge \"br0\"");
    add("br0").ok();
}

/// Sends router advertisements from fe80::bad in frames to 01:80:c2:00:00:00 and the 15 groups
/// after it.
fn advertise_in_frames(from: &Container, mac: &str) {
    let mac: String = mac.split(':').map(|byte| format!("\\x{byte}")).collect();
    for last in 0..16 {
        // RFC 8200 §3 and RFC 4861 §4.2: from fe80::bad to ff02::1, lifetime 1800 s, and a prefix
        // for addresses.
        let frame = format!("\\x01\\x80\\xc2\\x00\\x00\\x{last:02x}{mac}\\x86\\xdd{ADVERTISEMENT}");
        from.sh(&format!("/usr/bin/printf '{frame}' | socat -u STDIN INTERFACE:eth0"));
    }
}

/// Sends a router advertisement from fe80::bad to all nodes of the segment.
pub(crate) fn advertise_to_all(from: &Container, mac: &str) {
    let mac: String = mac.split(':').map(|byte| format!("\\x{byte}")).collect();
    let frame = format!("\\x33\\x33\\x00\\x00\\x00\\x01{mac}\\x86\\xdd{ADVERTISEMENT}");
    from.sh(&format!("/usr/bin/printf '{frame}' | socat -u STDIN INTERFACE:eth0"));
}

/// The IPv6 packet of an advertisement, as printf(1) reads it.
const ADVERTISEMENT: &str = concat!(
    r"\x60\x00\x00\x00\x00\x30\x3a\xff",
    r"\xfe\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0b\xad",
    r"\xff\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01",
    r"\x86\x00\x90\x10\x40\x00\x07\x08\x00\x00\x00\x00\x00\x00\x00\x00",
    r"\x03\x04\x40\xc0\x00\x00\x0e\x10\x00\x00\x0e\x10\x00\x00\x00\x00",
    r"\x20\x01\x0d\xb8\x0b\xad\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
);

/// CVE-2021-20206 and similar: no name from outside leads out of its folder.
#[test]
fn no_name_from_outside_leads_out_of_its_folder() {
    testkit::require!("root");
    let node = Node::new("names");
    let c1 = node.container("c1");
    let planted = node.dir("planted");
    let reach = format!("../../../../../..{}/x", planted.display());
    let ipam = matrix::ipam(&node, Family::V4);
    let add = |plugin: &str| node.run(plugin, "ADD").to(&c1);
    let refused = [
        add("bridge").network(&reach).config(json!({ "ipam": ipam })).call(),
        add("bridge").id(&reach).config(json!({ "ipam": ipam })).call(),
        add("bridge").ifname("../x").config(json!({ "ipam": ipam })).call(),
        add("bridge").config(json!({ "bridge": reach, "ipam": ipam })).call(),
        add("bridge").config(json!({ "ipam": { "type": reach } })).call(),
        add("tuning")
            .prev(&json!({ "cniVersion": "1.1.0", "ips": [] }))
            .config(json!({ "sysctl": { format!("net/ipv4/{reach}"): "1" } }))
            .call(),
    ];
    for answer in refused {
        let error = answer.error();
        assert!([4, 7].contains(&error.code), "{error}");
    }
    assert_eq!(std::fs::read_dir(&planted).unwrap().count(), 0);
    assert!(!node.roots.run.join("owners").exists());
}
