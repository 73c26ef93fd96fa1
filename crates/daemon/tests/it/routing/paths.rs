//! The kinds of paths: native ones, one family over the other, and the change from one path to
//! another.

use std::net::IpAddr;

use kernel::conntrack::{ConntrackSocket, FlowFilter};
use kernel::route::IpFamily;
use testkit::traffic::{self, Server, pings_within};
use testkit::{Place as _, Snapshot, wait_until};

use super::pings::Pings;
use super::reach::{at, path};
use super::{Fabric, Node, SOON};

/// Asserts that a pod reaches another's address by TCP and UDP, and that the other one sees the
/// pod's own address.
#[track_caller]
fn assert_serves(from: &Node, to: &Node, address: &str) {
    let at = at(address, 7);
    let _servers = [Server::tcp(&to.pod, &at, "pod"), Server::udp(&to.pod, &at, "pod")];
    let seen = [traffic::assert_tcp(&from.pod, &at).seen, traffic::assert_udp(&from.pod, &at).seen];
    for seen in seen.map(|seen| seen.ip().to_string()) {
        assert!(from.pod_addresses().contains(&seen), "{at} sees {seen}");
    }
}

/// Ends the service on a node without a warning, and starts it again.
fn kill_and_start(fabric: &mut Fabric, node: usize) {
    fabric.nodes[node].service.take().unwrap().kill();
    fabric.start_on(node);
    wait_until("the node to be ready", || fabric.routes(node)["phase"] == "ready");
}

/// With native paths we make no route to another node. While the network between the nodes has no
/// routes to their prefixes, the service says so. Once it has them, pods reach each other with
/// their own addresses. A node without pods, which has no address of its prefix, is not a fault.
#[test]
fn native_paths_are_the_networks_own_and_are_checked() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-native", &[1, 1]).by("native");
    let before = Snapshot::of(&fabric.nodes[0].host);
    fabric.start();
    for (number, node) in fabric.nodes.iter().enumerate() {
        wait_until("the node to be ready", || fabric.routes(number)["phase"] == "ready");
        let ours = "ip -d -o link show type vxlan; ip nexthop; ip -4 route show proto 78; \
                    ip -6 route show proto 78";
        assert_eq!(node.host.sh(ours), "");
    }
    let unrouted = "paths are native, and pods of 1 nodes do not answer, b first";
    wait_until("it to be said", || fabric.routes(0)["warnings"].to_string().contains(unrouted));
    let (sound, said) = fabric.probe(0, &[]);
    let fault = "does the network have a route to the node's prefix?";
    assert!(!sound && said.matches(fault).count() == 2, "{said}");

    let script: String = fabric
        .nodes
        .iter()
        .map(|node| {
            let ((v4, v6), number) = (node.underlay(), node.number);
            format!(
                "ip route add 10.244.{number}.0/24 via {v4}; \
                 ip -6 route add fd00:244:{number}::/64 via {v6}; "
            )
        })
        .collect();
    fabric.lab.sh(&format!("set -e; {script}"));
    fabric.assert_all_reach_all();
    for address in fabric.nodes[1].pod_addresses() {
        assert_serves(&fabric.nodes[0], &fabric.nodes[1], &address);
    }
    let (sound, said) = fabric.probe(0, &[]);
    assert!(sound && said.matches("  sound\n").count() == 2, "{said}");
    // When the service starts, it probes at once.
    kill_and_start(&mut fabric, 0);
    wait_until("the other to answer", || {
        fabric.routes(0)["rows"].to_string().matches(r#""state":"probed""#).count() == 2
    });
    let table = fabric.routes(0);
    for family in ["ipv4", "ipv6"] {
        assert_eq!(path(&table, "b", family), "native", "{table}");
    }
    assert_eq!(table["warnings"], serde_json::json!([]), "{table}");
    fabric.nodes[1]
        .host
        .sh("ip addr del 10.244.2.1/24 dev nw-pods; ip addr del fd00:244:2::1/64 dev nw-pods");
    let (sound, said) = fabric.probe(0, &[]);
    assert!(sound && said.matches("  sound\n").count() == 2, "{said}");
    fabric.uninstall(0);
    before.assert_same(&Snapshot::of(&fabric.nodes[0].host));
}

/// The UDP flows to an address that a node's connection tracking knows.
fn flows(node: &Node, to: &str) -> usize {
    let address: IpAddr = to.parse().unwrap();
    let family = IpFamily::of(address);
    let (protocol, destination) = (Some(17), Some(address));
    let udp = FlowFilter { protocol, destination, ..FlowFilter::all(family) };
    node.host.enter(|| ConntrackSocket::open().unwrap().flows(&udp).unwrap().len())
}

/// When a path becomes a tunnel, or direct again, no packet is lost. None is lost either when the
/// service is killed and starts again. Connection tracking forgets only the UDP flows to pods whose
/// path has changed.
#[test]
fn vm_paths_change_and_services_are_killed_without_a_lost_packet() {
    testkit::require!("root", "vxlan", "vm-full", "program:ping");
    let mut fabric = Fabric::new("routing-change", &[2]);
    fabric.start();
    fabric.assert_all_reach_all();
    // Without this the flows would expire before the test gives up.
    fabric.nodes[0].host.sh("sysctl -q -w net.netfilter.nf_conntrack_udp_timeout=3600 \
         net.netfilter.nf_conntrack_udp_timeout_stream=3600");
    let pings = Pings::everywhere(&fabric);
    let outside = "192.0.2.1";
    let _server = Server::udp(&*fabric.lab, &at(outside, 7), "outside");
    traffic::assert_udp(&fabric.nodes[0].pod, &at(outside, 7));
    for (verb, paths) in [("add", ["vxlan", "vxlan6"]), ("del", ["direct", "direct"])] {
        let to = fabric.nodes[1].pod_addresses();
        for address in &to {
            assert_serves(&fabric.nodes[0], &fabric.nodes[1], address);
            assert!(0 < flows(&fabric.nodes[0], address), "{address}");
        }
        // First by the router, then directly again.
        for (from, other) in [(0, 1), (1, 0)] {
            let (v4, v6) = fabric.nodes[other].underlay();
            fabric.nodes[from].host.sh(&format!(
                "ip route {verb} {v4}/32 via 192.0.2.1 && \
                 ip route {verb} {v6}/128 via 2001:db8:0::1"
            ));
        }
        for (number, peer) in [(0, "b"), (1, "a")] {
            wait_until("the other path", || {
                let table = fabric.routes(number);
                let is = |family| path(&table, peer, family);
                table["phase"] == "ready" && [is("ipv4"), is("ipv6")] == paths
            });
        }
        for address in &to {
            wait_until("the flow to be forgotten", || flows(&fabric.nodes[0], address) == 0);
        }
        assert!(0 < flows(&fabric.nodes[0], outside), "one to the outside is gone too");
        (0..2).for_each(|node| kill_and_start(&mut fabric, node));
    }
    Pings::assert_nothing_lost(&fabric, pings);
}

/// The list of nodes whose pods have addresses of the first families, and which reach each other by
/// addresses of the second: 0 is IPv4, 1 is IPv6.
fn list(fabric: &Fabric, pods: &[usize], underlay: &[usize]) -> String {
    let some = |all: [String; 2], of: &[usize]| {
        let quoted: Vec<String> = of.iter().map(|family| format!("\"{}\"", all[*family])).collect();
        quoted.join(", ")
    };
    let entry = |node: &Node| {
        let ((v4, v6), number) = (node.underlay(), node.number);
        let prefixes = [format!("10.244.{number}.0/24"), format!("fd00:244:{number}::/64")];
        let (prefixes, addresses) = (some(prefixes, pods), some([v4, v6], underlay));
        let name = node.name();
        format!(
            "[[node]]\nname = \"{name}\"\nprefixes = [{prefixes}]\nunderlay = [{addresses}]\n\n"
        )
    };
    fabric.nodes.iter().map(entry).collect()
}

/// If the network between the nodes has only one family, pods' packets of the other family go
/// through tunnels over it, also within a segment. The list may change from one to the other while
/// the services run.
#[test]
fn vm_one_family_goes_over_the_other() {
    testkit::require!("root", "vxlan", "full");
    let mut fabric = Fabric::new("routing-over", &[2, 1]);
    fabric.start();
    fabric.assert_all_reach_all();
    for (underlay, within, between, mtu) in [
        (0, ["direct", "vxlan"], ["vxlan", "vxlan"], 1450),
        (1, ["vxlan6", "direct"], ["vxlan6", "vxlan6"], 1430),
    ] {
        for node in &fabric.nodes {
            let ((_, v6), number, segment) = (node.underlay(), node.number, node.segment);
            node.host.sh(&format!(
                "ip addr replace fe80::{number}/64 dev eth0 nodad
                 ip addr replace {v6}/64 dev eth0 nodad
                 ip route replace default via 2001:db8:{segment}::1"
            ));
        }
        fabric.write_list(&list(&fabric, &[0, 1], &[underlay]));
        let other = if underlay == 0 { 6 } else { 4 };
        for node in &fabric.nodes {
            node.host.sh(&format!("ip -{other} addr flush dev eth0"));
        }
        wait_until("the other paths", || {
            let table = fabric.routes(0);
            let of = |peer| ["ipv4", "ipv6"].map(|family| path(&table, peer, family));
            table["phase"] == "ready"
                && of("b") == within
                && of("c") == between
                && table["podMtu"] == mtu
        });
        fabric.assert_all_reach_all();
        for from in &fabric.nodes {
            for to in fabric.nodes.iter().filter(|to| to.number != from.number) {
                for address in to.pod_addresses() {
                    assert_serves(from, to, &address);
                    let header = if address.contains(':') { 48 } else { 28 };
                    let size = mtu - header;
                    from.pod.sh(&format!("ping -n -c 1 -W 5 -M do -s {size} {address}"));
                }
            }
        }
    }
}

/// A cluster without IPv4, with direct paths within a segment and tunnels between segments. Pods
/// reach each other with their own addresses, and the outside with their node's.
#[test]
fn vm_a_cluster_may_have_ipv6_alone() {
    testkit::require!("root", "vxlan", "full");
    let mut fabric = Fabric::new("routing-ipv6", &[2, 1]);
    fabric.cluster = ["--cluster", "fd00:244::/32"].map(str::to_owned).to_vec();
    fabric.write_list(&list(&fabric, &[1], &[1]));
    for node in &fabric.nodes {
        node.host.sh("ip -4 addr flush dev eth0; ip -4 addr flush dev nw-pods");
        node.pod.sh("ip -4 addr flush dev eth0");
    }
    let before: Vec<Snapshot> = fabric.nodes.iter().map(|node| Snapshot::of(&node.host)).collect();
    fabric.start();
    for from in &fabric.nodes {
        for to in fabric.nodes.iter().filter(|to| to.number != from.number) {
            let [_, address] = to.pod_addresses();
            assert!(pings_within(&from.pod, &address, SOON), "{} to {address}", from.name());
            assert_serves(from, to, &address);
            from.pod.sh(&format!("ping -n -c 1 -W 5 -M do -s {} {address}", 1430 - 48));
            traffic::assert_pings(&from.pod, &to.underlay().1);
        }
    }
    wait_until("the node to be ready", || fabric.routes(0)["phase"] == "ready");
    let table = fabric.routes(0);
    assert_eq!(table["podMtu"], 1430, "{table}");
    assert_eq!(table["rows"].as_array().unwrap().len(), 2, "{table}");
    assert_eq!(path(&table, "b", "ipv6"), "direct");
    assert_eq!(path(&table, "c", "ipv6"), "vxlan6");
    let outside = "[2001:db8:0::1]:7";
    let _server = Server::udp(&*fabric.lab, outside, "outside");
    let seen = traffic::assert_udp(&fabric.nodes[0].pod, outside).seen.ip();
    assert_eq!(seen, fabric.nodes[0].underlay().1.parse::<IpAddr>().unwrap());
    for (node, before) in before.iter().enumerate() {
        fabric.uninstall(node);
        before.assert_same(&Snapshot::of(&fabric.nodes[node].host));
    }
}
