//! What a cluster survives: a list without most nodes, a power cut of the whole cluster, a node
//! that gets other addresses.

use std::fmt::Write as _;
use std::fs;

use serde_json::json;
use testkit::{Place as _, traffic, wait_until};

use super::reach::path;
use super::{Fabric, cluster, torture};

/// A list without most nodes removes none of them until a person confirms it, even for a service
/// that starts then.
#[test]
fn a_list_that_lacks_most_nodes_is_held_until_it_is_accepted() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-held", &[1]).by("direct");
    let own = fs::read_to_string(fabric.list()).unwrap();
    let mut whole = own.clone();
    for number in 20..24 {
        let _ = writeln!(
            whole,
            "[[node]]\nname = \"n{number}\"\nprefixes = [\"10.244.{number}.0/24\"]\n\
             underlay = [\"192.0.2.{number}\"]\n"
        );
    }
    fabric.write_list(&whole);
    fabric.start_on(0);
    // The other routes are for unknown pods.
    let routes = |fabric: &Fabric| {
        let all = fabric.nodes[0].host.sh("ip route show proto 78");
        all.lines().filter(|line| !line.starts_with("unreachable")).count()
    };
    let says =
        |fabric: &Fabric, words: &str| fabric.routes(0)["warnings"].to_string().contains(words);
    wait_until("the routes", || routes(&fabric) == 4);
    // One of five nodes is left.
    fabric.write_list(&own);
    let held = "held: the source lists 0 of 4 nodes; nothing is removed until ";
    wait_until("it to be held", || says(&fabric, held));
    assert_eq!(routes(&fabric), 4);
    assert_eq!(fabric.nodes[0].service.take().unwrap().stop(), Some(0));
    fabric.start_on(0);
    wait_until("it to be held", || says(&fabric, held));
    assert_eq!(routes(&fabric), 4);
    let rows = fabric.routes(0)["rows"].to_string();
    assert_eq!(rows.matches(r#""state":{"held":"#).count(), 4, "{rows}");

    let accept = |fabric: &Fabric| {
        let done = fabric.command(0, "routes accept").output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(accept(&fabric), "accepted\n");
    wait_until("the routes to go", || routes(&fabric) == 0);
    wait_until("nothing to be held", || !says(&fabric, "held"));
    assert_eq!(accept(&fabric), "nothing was held\n");
    assert_eq!(fabric.routes(0)["rows"], json!([]));
}

/// A routing daemon may have its routes before the service starts, and no server answers then: what
/// the disk has of the nodes is programmed, since their prefixes are none of the host's networks.
#[test]
fn a_node_starts_beside_a_routing_daemon_while_no_server_answers() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-cold-bird", &[2]).by("direct");
    let api = cluster::cluster(&mut fabric);
    fabric.start();
    let routes = |fabric: &Fabric| fabric.nodes[0].host.sh("ip -6 route show proto 78");
    wait_until("the other node", || routes(&fabric).contains("fd00:244:2::/64"));
    assert_eq!(fabric.nodes[0].service.take().unwrap().stop(), Some(0));
    api.refuse();
    let (of_b, _) = fabric.nodes[1].underlay();
    let learned = format!("ip route add 10.244.2.0/24 via {of_b} dev eth0 proto bird");
    fabric.nodes[0].host.sh(&format!("{POWER}; {learned}"));
    assert!(!routes(&fabric).contains("fd00:244:2::/64"));
    fabric.start_on(0);
    wait_until("the other node again", || routes(&fabric).contains("fd00:244:2::/64"));
    assert_eq!(path(&fabric.routes(0), "b", "ipv4"), "learned");
}

/// What a power cut takes from a node, but for its pod.
const POWER: &str = "ip link del nw-vxlan4; ip link del nw-vxlan6; ip nexthop flush proto 78; \
                     for of in 78 79; do ip route flush type unreachable proto $of; \
                     ip -6 route flush type unreachable proto $of; done; \
                     nft delete table inet netwright-routing; \
                     sysctl -q -w net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0";

/// All nodes lose the kernel's objects and their source. Then their services start, and then the
/// source comes back.
fn power_goes_and_comes(
    mut fabric: Fabric,
    source_goes: impl FnOnce(&Fabric),
    source_comes: impl FnOnce(&Fabric),
) {
    fabric.start();
    fabric.assert_all_reach_all();
    for node in &fabric.nodes {
        let record = node.dir.join("lib/routing/peers");
        wait_until("the nodes to be recorded", || {
            let written = fs::read_to_string(&record).unwrap_or_default();
            (1..=3).all(|number| written.contains(&format!("10.244.{number}.0/24")))
        });
    }
    let whole: Vec<Vec<String>> = fabric.nodes.iter().map(torture::objects).collect();
    for node in &mut fabric.nodes {
        node.service.take().unwrap().kill();
        node.host.sh(POWER);
    }
    source_goes(&fabric);
    let [lost, _] = fabric.nodes[2].pod_addresses();
    traffic::assert_no_ping(&fabric.nodes[0].pod, &lost);

    fabric.start();
    for (number, node) in fabric.nodes.iter().enumerate() {
        wait_until("the ways to the recorded nodes", || {
            let table = node.host.sh("ip route; ip -6 route");
            let mut others = (1..=fabric.nodes.len()).filter(|other| *other != number + 1);
            others.all(|other| {
                table.contains(&format!("10.244.{other}.0/24"))
                    && table.contains(&format!("fd00:244:{other}::/64"))
            })
        });
    }
    fabric.assert_all_reach_all();
    for number in 0..fabric.nodes.len() {
        assert_ne!(fabric.routes(number)["phase"], "ready", "it has heard of its source");
    }
    source_comes(&fabric);
    for (number, whole) in whole.iter().enumerate() {
        wait_until("the node to be ready", || fabric.routes(number)["phase"] == "ready");
        let node = &fabric.nodes[number];
        wait_until("everything to be as before", || torture::objects(node) == *whole);
    }
    fabric.assert_all_reach_all();
}

/// After a power cut of the whole cluster, pods reach each other although no node has a list of
/// nodes.
#[test]
fn vm_after_a_power_cut_pods_reach_each_other_without_the_list() {
    testkit::require!("root", "vxlan", "full", "program:bridge", "program:nft");
    let fabric = Fabric::new("routing-power", &[2, 1]);
    let list = fs::read_to_string(fabric.list()).unwrap();
    power_goes_and_comes(
        fabric,
        |fabric| fs::remove_file(fabric.list()).unwrap(),
        |fabric| fabric.write_list(&list),
    );
}

/// The same with Nodes, while the API server is away.
#[test]
fn vm_after_a_power_cut_pods_reach_each_other_without_the_api_server() {
    testkit::require!("root", "vxlan", "full", "program:bridge", "program:nft");
    let mut fabric = Fabric::new("routing-power-cluster", &[2, 1]);
    let api = cluster::cluster(&mut fabric);
    power_goes_and_comes(fabric, |_| api.refuse(), |_| api.restore());
}

/// Node `b` gets other addresses, as from a DHCP server, and its source contains them. The service
/// continues.
fn addresses_change(mut fabric: Fabric, tell: impl FnOnce(&Fabric, [&str; 2])) {
    fabric.start();
    fabric.assert_all_reach_all();
    let (old4, old6) = fabric.nodes[1].underlay();
    let [new4, new6] = ["192.0.2.114", "2001:db8:1::99"];
    let numbers = || {
        ["nw-vxlan4", "nw-vxlan6"].map(|tunnel| {
            let show = format!("ip -o link show {tunnel} | cut -d: -f1");
            fabric.nodes[1].host.sh(&show)
        })
    };
    let before = numbers();
    fabric.nodes[1].host.sh(&format!(
        "set -e; sysctl -qw net.ipv4.conf.eth0.promote_secondaries=1
         ip addr add {new4}/26 dev eth0; ip addr add {new6}/64 dev eth0 nodad
         ip addr del {old4}/26 dev eth0; ip addr del {old6}/64 dev eth0
         ip route replace default via 192.0.2.65
         ip route replace default via 2001:db8:1::1"
    ));
    tell(&fabric, [new4, new6]);
    for (tunnel, old, new) in [("nw-vxlan4", &old4, new4), ("nw-vxlan6", &old6, new6)] {
        wait_until("the new address", || {
            let shows = |script: &str| fabric.nodes[0].host.sh(script);
            let entries = shows(&format!("bridge fdb show dev {tunnel}"));
            let filter = shows("nft list table inet netwright-routing");
            entries.contains(&format!("dst {new} "))
                && !entries.contains(&format!("dst {old} "))
                && filter.contains(new)
                && !filter.contains(old.as_str())
        });
    }
    fabric.assert_all_reach_all();
    wait_until("the node to be ready", || fabric.routes(1)["phase"] == "ready");
    assert_eq!(numbers(), before, "the tunnels are the same links");
    let log = fabric.nodes[1].service.as_ref().unwrap().log();
    assert_eq!(log.matches(": ready ").count(), 1, "{log}");
}

#[test]
fn vm_a_node_that_the_list_gives_other_addresses_is_reached() {
    testkit::require!("root", "vxlan", "full", "program:bridge", "program:nft");
    let fabric = Fabric::new("routing-addresses", &[1, 1]);
    let (old4, old6) = fabric.nodes[1].underlay();
    addresses_change(fabric, |fabric, [new4, new6]| {
        let list = fs::read_to_string(fabric.list()).unwrap();
        fabric.write_list(&list.replace(&old4, new4).replace(&old6, new6));
    });
}

#[test]
fn vm_a_node_whose_kubelet_says_other_addresses_is_reached() {
    testkit::require!("root", "vxlan", "full", "program:bridge", "program:nft");
    let mut fabric = Fabric::new("routing-addresses-cluster", &[1, 1]);
    let api = cluster::cluster(&mut fabric);
    addresses_change(fabric, |_, [new4, new6]| {
        let address = |address: &str| json!({"type": "InternalIP", "address": address});
        let status = json!({"addresses": [address(new4), address(new6)]});
        api.change("nodes", "", "b", &json!({"status": status}));
    });
}
