//! The service beside others: another program that routes to pods, as kindnet has a route to each
//! node's prefix, and routers that announce themselves.

use std::process::Stdio;

use testkit::{Place as _, wait_until};

use super::Fabric;
use super::reach::path;

/// Adds or deletes the other program's routes on both nodes.
fn others(fabric: &Fabric, verb: &str) {
    for from in 0..2 {
        let (own, to) = (&fabric.nodes[from], &fabric.nodes[1 - from]);
        let ((v4, v6), number) = (to.underlay(), to.number);
        own.host.sh(&format!(
            "ip route {verb} 10.244.{number}.0/24 via {v4}; \
             ip -6 route {verb} fd00:244:{number}::/64 via {v6}"
        ));
    }
}

/// Our routes exist beside those of the other program, and packets follow the other program's. When
/// those are deleted, no packet is lost.
#[test]
fn routes_of_kindnet_give_way_without_a_lost_packet() {
    testkit::require!("root", "program:ping");
    let mut fabric = Fabric::new("routing-kindnet", &[2]);
    fabric.flags = vec!["--path".to_owned(), "direct".to_owned()];
    others(&fabric, "add");
    fabric.start();
    wait_until("the other's routes to be told", || {
        let rows = fabric.routes(0)["rows"].to_string();
        rows.matches(r#""conflict":"#).count() == 2
    });
    let text = fabric.command(0, "routes").output().unwrap().stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("another program's route is in the way"), "{text}");
    fabric.assert_all_reach_all();
    let pings: Vec<_> = fabric.nodes[1]
        .pod_addresses()
        .iter()
        .map(|to| {
            let mut ping = fabric.nodes[0].pod.command("ping");
            ping.args(["-n", "-q", "-i", "0.01", "-c", "150", "-W", "5", to]);
            ping.stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    others(&fabric, "del");
    for ping in pings {
        let said = ping.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains("150 packets transmitted, 150 received"), "{said}");
    }
    wait_until("nothing to be in the way", || {
        let rows = fabric.routes(0)["rows"].to_string();
        !rows.contains("conflict") && (rows.contains("programmed") || rows.contains("probed"))
    });
    fabric.assert_all_reach_all();
}

/// A node that forwards IPv6 accepts router advertisements only on the links on which the kernel
/// has received one.
#[test]
fn a_router_that_has_announced_itself_is_listened_to() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-router", &[1]);
    fabric.flags = vec!["--path".to_owned(), "direct".to_owned()];
    let script = "set -e; sysctl -qw net.ipv6.conf.all.forwarding=0
         ip link add other type veth peer name its-peer
         sysctl -qw net.ipv6.conf.eth0.accept_ra=1 net.ipv6.conf.other.accept_ra=1
         ip -6 route replace default via 2001:db8:0::1 dev eth0 proto ra";
    fabric.nodes[0].host.sh(script);
    fabric.start();
    wait_until("forwarding", || {
        let forwarding = fabric.nodes[0].host.sh("sysctl -n net.ipv6.conf.all.forwarding");
        forwarding.trim() == "1"
    });
    let accepts = "sysctl -n net.ipv6.conf.eth0.accept_ra net.ipv6.conf.other.accept_ra";
    let accepts = fabric.nodes[0].host.sh(accepts);
    assert_eq!(accepts.split_whitespace().collect::<Vec<_>>(), ["2", "1"]);
}

/// Another program's route to the other node leads into this node's own tunnel, where packets would
/// go in circles: it counts as none, and pods reach each other over the other family meanwhile.
#[test]
fn vm_a_route_into_this_nodes_own_tunnel_is_not_followed() {
    testkit::require!("root", "vxlan", "vm-full");
    let mut fabric = Fabric::new("routing-circle", &[2]);
    fabric.start();
    fabric.assert_all_reach_all();
    let (of_b, _) = fabric.nodes[1].underlay();
    for (verb, want) in [("add", "vxlan6"), ("del", "direct")] {
        fabric.nodes[0].host.sh(&format!("ip route {verb} {of_b}/32 dev nw-vxlan4"));
        wait_until("the path", || path(&fabric.routes(0), "b", "ipv4") == want);
        fabric.assert_all_reach_all();
    }
}
