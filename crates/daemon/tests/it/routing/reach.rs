//! Every pod reaches every pod.

use std::net::IpAddr;

use serde_json::Value;
use testkit::traffic::{self, Server};
use testkit::{Place, Snapshot, wait_until};

use super::{Attach, Fabric, attached};

/// An address with a port, in the form that servers and clients take.
pub(super) fn at(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

/// The path to a node in a family, as `routes` shows it.
pub(super) fn path(table: &Value, peer: &str, family: &str) -> Value {
    let mut rows = table["rows"].as_array().unwrap().iter();
    let row = rows.find(|row| row["peer"] == peer && row["family"] == family);
    row.unwrap_or_else(|| panic!("{table}"))["path"].clone()
}

/// Two nodes are on one segment and one is behind a router, so there are both kinds of path. In the
/// end the host is as before.
#[test]
fn vm_pods_of_three_nodes_reach_each_other_and_keep_their_addresses() {
    testkit::require!("root", "vxlan", "program:iptables", "vm-full");
    let mut fabric = Fabric::new("routing-reach", &[2, 1]);
    // Other programs have a tunnel, a route and a nexthop, which stay. The tunnel's address is
    // ready at once, without duplicate address detection.
    let foreign = "ip link add other type vxlan id 7 dstport 7777 dev eth0 && \
                   ip link set other addrgenmode none up && \
                   ip addr add fe80::7/64 dev other nodad && \
                   ip route add 10.200.99.0/24 dev other && ip nexthop add id 7 dev other";
    fabric.nodes[0].host.sh(foreign);
    // The host drops forwarded packets, as Docker configures it.
    fabric.nodes[2].host.sh("iptables -P FORWARD DROP && ip6tables -P FORWARD DROP");
    let before: Vec<Snapshot> = fabric.nodes.iter().map(|node| Snapshot::of(&node.host)).collect();
    fabric.start();
    fabric.assert_all_reach_all();
    let table = fabric.routes(0);
    for (peer, family, want) in [
        ("b", "ipv4", "direct"),
        ("b", "ipv6", "direct"),
        ("c", "ipv4", "vxlan"),
        ("c", "ipv6", "vxlan6"),
    ] {
        assert_eq!(path(&table, peer, family), want, "{peer} {family}");
    }
    // The source is the pod's own address, on either path.
    for to in [1, 2] {
        for address in fabric.nodes[to].pod_addresses() {
            let at = match address.contains(':') {
                true => format!("[{address}]:7"),
                false => format!("{address}:7"),
            };
            let _server = Server::udp(&fabric.nodes[to].pod, &at, "pod");
            let seen = traffic::assert_udp(&fabric.nodes[0].pod, &at).seen.ip().to_string();
            assert!(fabric.nodes[0].pod_addresses().contains(&seen), "{at} sees {seen}");
        }
    }
    // To the outside it is the node's address, but not to other nodes.
    for (at, want) in [("192.0.2.1:7", "192.0.2.11"), ("[2001:db8:0::1]:7", "2001:db8::10")] {
        let _server = Server::udp(&*fabric.lab, at, "outside");
        assert_eq!(traffic::assert_udp(&fabric.nodes[0].pod, at).seen.ip().to_string(), want);
    }
    let _server = Server::udp(&fabric.nodes[1].host, "192.0.2.12:7", "node");
    let seen = traffic::assert_udp(&fabric.nodes[0].pod, "192.0.2.12:7").seen.ip();
    assert_eq!(seen.to_string(), "10.244.1.2");
    // A packet that fills the tunnel arrives. The pods' MTU is the largest that fits all paths.
    assert_eq!(table["podMtu"], 1430, "{table}");
    assert_eq!(table["phase"], "ready", "{table}");
    fabric.nodes[0].pod.sh("ping -n -c 1 -W 5 -M do -s 1422 10.244.3.2");
    // Unknown pods are unreachable at once: packets to them do not take the default route.
    let unknown = fabric.nodes[0].pod.try_sh("ping -n -c 1 -W 5 10.244.77.7");
    let unknown = String::from_utf8_lossy(&unknown.stdout).into_owned();
    assert!(unknown.contains("Unreachable"), "{unknown}");
    for (node, before) in before.iter().enumerate() {
        let said = fabric.uninstall(node);
        assert!(said.contains("remove tunnel nw-vxlan4"), "{said}");
        before.assert_same(&Snapshot::of(&fabric.nodes[node].host));
    }
}

/// TCP and UDP servers at each of a place's addresses. Each comes with that address and the place
/// where it listens.
fn servers(place: &impl Place, addresses: [String; 2]) -> [(String, String, [Server; 2]); 2] {
    addresses.map(|address| {
        let at = at(&address, 7);
        let servers = [Server::tcp(place, &at, "it"), Server::udp(place, &at, "it")];
        (address, at, servers)
    })
}

/// There are six nodes on two segments. Every pod reaches every pod and every node, by TCP and by
/// UDP, with its own address. It reaches every pod with the largest packets too.
fn six_nodes(name: &str, attach: Attach) {
    let mut fabric = Fabric::with_pods(name, &[3, 3], attach);
    match attach {
        Attach::Plugin(plugin) => attached::start(&mut fabric, plugin),
        Attach::Bridge | Attach::Ptp => fabric.start(),
    }
    fabric.assert_all_reach_all();
    let mtu = fabric.routes(0)["podMtu"].as_u64().unwrap();
    for to in &fabric.nodes {
        let pods = servers(&to.pod, to.pod_addresses());
        let (v4, v6) = to.underlay();
        let nodes = servers(&to.host, [v4, v6]);
        for from in fabric.nodes.iter().filter(|from| from.number != to.number) {
            for (_, at, _) in pods.iter().chain(&nodes) {
                for seen in [
                    traffic::assert_tcp(&from.pod, at).seen.ip(),
                    traffic::assert_udp(&from.pod, at).seen.ip(),
                ] {
                    let seen = seen.to_string();
                    assert!(from.pod_addresses().contains(&seen), "{at} sees {seen}");
                }
            }
            for (address, ..) in &pods {
                // IP's header and ICMP's.
                let rest = if address.contains(':') { 48 } else { 28 };
                from.pod.sh(&format!("ping -n -c 1 -W 5 -M do -s {} {address}", mtu - rest));
                traffic::assert_pings(&from.host, address);
            }
        }
    }
    // To the outside, a node's address.
    for from in &fabric.nodes {
        let (v4, v6) = from.underlay();
        let segment = from.segment;
        let outside =
            [format!("192.0.2.{}:7", segment * 64 + 1), format!("[2001:db8:{segment}::1]:7")];
        for (at, want) in outside.iter().zip([v4, v6]) {
            let _server = Server::udp(&*fabric.lab, at, "outside");
            let seen = traffic::assert_udp(&from.pod, at).seen.ip();
            assert_eq!(seen, want.parse::<IpAddr>().unwrap());
        }
    }
}

#[test]
fn vm_six_nodes_with_pods_on_a_bridge() {
    testkit::require!("root", "vxlan", "vm-full");
    six_nodes("routing-six", Attach::Bridge);
}

#[test]
fn vm_six_nodes_with_pods_behind_pairs_of_links() {
    testkit::require!("root", "vxlan", "full");
    six_nodes("routing-six-ptp", Attach::Ptp);
}

#[test]
fn vm_six_nodes_with_pods_of_the_plugin_bridge() {
    testkit::require!("root", "vxlan", "full");
    six_nodes("routing-six-of-bridge", Attach::Plugin("bridge"));
}

#[test]
fn vm_six_nodes_with_pods_of_the_plugin_ptp() {
    testkit::require!("root", "vxlan", "full");
    six_nodes("routing-six-of-ptp", Attach::Plugin("ptp"));
}

/// The list of nodes is read again as soon as it changes, and a wrong one changes nothing.
#[test]
fn vm_the_list_of_nodes_is_followed() {
    testkit::require!("root", "vxlan", "vm-full");
    let mut fabric = Fabric::new("routing-list", &[2, 1]);
    let whole = std::fs::read_to_string(fabric.list()).unwrap();
    let (some, _) = whole.split_once("[[node]]\nname = \"c\"").unwrap();
    fabric.write_list(some);
    fabric.start_on(0);
    fabric.start_on(2);
    let has = |fabric: &Fabric| {
        let routes = fabric.nodes[0].host.sh("ip route show proto 78");
        (routes.contains("10.244.2.0/24"), routes.contains("10.244.3.0/24"))
    };
    assert_eq!(has(&fabric), (true, false));
    // The third node is not in the list: it waits, and says for what.
    let phase = fabric.routes(2)["phase"].to_string();
    assert!(phase.contains("has no node \\\"c\\\""), "{phase}");
    fabric.write_list(&whole);
    wait_until("the third node's route", || has(&fabric) == (true, true));
    fabric.nodes[0].assert_reaches(&fabric.nodes[2]);
    let log = |fabric: &Fabric| fabric.nodes[0].service.as_ref().unwrap().log();
    for (wrong, words) in [
        ("[[node]]\nname = ", "TOML parse error at line 2"),
        ("", "it has no [[node]]"),
        ("[[node]]\nname = \"a\"\nprefix = []\n", "may be meant"),
    ] {
        fabric.write_list(wrong);
        wait_until("the service to refuse it", || log(&fabric).contains(words));
        assert_eq!(has(&fabric), (true, true), "{wrong}");
        fabric.write_list(&whole);
        wait_until("it to be ready again", || fabric.routes(0)["phase"] == "ready");
        assert_eq!(has(&fabric), (true, true), "{wrong}");
    }
    fabric.write_list(some);
    wait_until("the third node's route to go", || has(&fabric) == (true, false));
}
