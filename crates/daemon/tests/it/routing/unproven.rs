//! What machines beside a node send it without proof decides nothing about its pods: router
//! advertisements, and errors that routers send.

use std::io::Write as _;
use std::process::Stdio;

use testkit::{Place as _, Service, wait_until};

use super::Fabric;
use super::forged::checksum;

/// Sends bytes from the lab, a machine beside the nodes.
fn sends(fabric: &Fabric, bytes: &[u8], to: &str) {
    let file = fabric.lab.dir().join("packet");
    std::fs::write(&file, bytes).unwrap();
    fabric.lab.sh(&format!("socat -u FILE:{} {to}", file.display()));
}

/// RFC 4861 §4.2, §4.6.2: an advertisement of a prefix without an end, on the link, for addresses
/// too. Its sender is no default router.
fn advertisement(prefix: &str, length: u8) -> Vec<u8> {
    let prefix: std::net::Ipv6Addr = prefix.parse().unwrap();
    let mut bytes = vec![134, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([3, 4, length, 0xc0]);
    bytes.extend([0xff; 8]);
    bytes.extend([0; 4]);
    bytes.extend(prefix.octets());
    bytes
}

/// A machine beside a node announces itself as the router of the node's pod, and of another node's
/// pods. The kernel prefers such routes to ours. The service removes what the kernel makes of them, and
/// says so; a route of an address that an administrator has added stays.
#[test]
fn a_router_that_announces_prefixes_of_pods_is_no_way_to_them() {
    testkit::require!("root", "program:socat");
    let mut fabric = Fabric::new("routing-announced", &[2]).by("direct");
    fabric.start();
    fabric.assert_all_reach_all();
    let host = &fabric.nodes[0].host;
    // An administrator has made the default route, and needs no advertisement.
    assert_ne!(host.sh("sysctl -n net.ipv6.conf.eth0.accept_ra").trim(), "2");
    host.sh("sysctl -qw net.ipv6.conf.eth0.accept_ra=2 && ip -6 addr add fd00:244:77::1/64 dev eth0 nodad");
    for (prefix, length) in [("fd00:244:1::2", 128), ("fd00:244:2::", 64)] {
        sends(
            &fabric,
            &advertisement(prefix, length),
            "'IP6-SENDTO:[fe80::1%seg0]:58,ipv6-unicast-hops=255'",
        );
        let sentence =
            format!("on link eth0, a machine announces itself as the router of {prefix}/{length}");
        wait_until("the service to say so", || {
            fabric.routes(0)["warnings"].to_string().contains(&sentence)
        });
        wait_until("nothing of it to be left", || {
            let left = host.sh("ip -6 route show dev eth0 proto kernel; ip -6 addr show dev eth0");
            !left.contains("fd00:244:1:") && !left.contains("fd00:244:2:")
        });
        fabric.assert_all_reach_all();
    }
    assert!(host.sh("ip -6 route show dev eth0").contains("fd00:244:77::/64"));
}

/// RFC 792 "Destination Unreachable": a packet that a node is said to have sent to another did not fit.
fn does_not_fit(from: &str, to: &str, mtu: u16) -> Vec<u8> {
    let [from, to] = [from, to].map(|address| address.parse::<std::net::Ipv4Addr>().unwrap());
    let mut bytes = vec![3, 4, 0, 0, 0, 0];
    bytes.extend(mtu.to_be_bytes());
    bytes.extend([0x45, 0, 0, 84, 0, 0, 0x40, 0, 64, 1, 0, 0]);
    bytes.extend(from.octets());
    bytes.extend(to.octets());
    // An answer to an echo request, as a probe gets.
    bytes.extend([0, 0, 0, 0, 0, 1, 0, 1]);
    let sum = checksum(&bytes);
    bytes[2..4].copy_from_slice(&sum);
    bytes
}

/// One packet of a machine beside a node makes the kernel believe that little fits to another node.
/// New pods have the MTU of the links, and IPv6; the route to the other node's pods says what was
/// learnt, and at least what IPv6 needs.
#[test]
fn an_error_that_anybody_can_send_lowers_no_pods_mtu() {
    testkit::require!("root", "program:socat");
    let mut fabric = Fabric::new("routing-unproven-mtu", &[2]).by("direct");
    fabric.start();
    let mtus = || {
        let table = fabric.routes(0);
        let rows = table["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["family"] == "ipv4").unwrap();
        (table["podMtu"].as_u64().unwrap(), row["mtu"].as_u64().unwrap())
    };
    assert_eq!(mtus(), (1500, 1500));
    let [a, b] = [0, 1].map(|node: usize| fabric.nodes[node].underlay().0);
    sends(&fabric, &does_not_fit(&a, &b, 552), &format!("IP4-SENDTO:{a}:1"));
    let host = &fabric.nodes[0].host;
    wait_until("the kernel to believe it", || {
        host.sh(&format!("ip route get {b}")).contains("mtu 552")
    });
    // Another program's route makes the service look up all ways.
    host.sh("ip route add 192.0.2.60/32 dev eth0");
    wait_until("the service to look", || mtus().1 != 1500);
    assert_eq!(mtus(), (1500, 1280));
}

/// Another program keeps the packet filter's table from the service. A tunnel would take packets of
/// anybody, so there is none until the table is as it is to be.
#[test]
fn vm_no_tunnel_comes_before_the_packet_filter() {
    testkit::require!("root", "vxlan");
    let mut fabric = Fabric::new("routing-guarded", &[1, 1]);
    let mut holder = fabric.nodes[0].host.command("nft");
    holder.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null());
    let mut holder = holder.spawn().unwrap();
    let mut input = holder.stdin.take().unwrap();
    writeln!(input, "add table inet netwright-routing {{ flags owner; }}").unwrap();
    input.flush().unwrap();
    let host = &fabric.nodes[0].host;
    wait_until("the table", || host.sh("nft list tables").contains("netwright-routing"));
    let tunnels = |fabric: &Fabric| fabric.nodes[0].host.sh("ip -br link show type vxlan");
    fabric.spawn_on(0);
    fabric.start_on(1);
    let said = |fabric: &Fabric| {
        let log = fabric.nodes[0].service.as_ref().map(Service::log).unwrap_or_default();
        log.contains("the packet filter comes before tunnels")
    };
    wait_until("the tunnels, or that there are none", || {
        said(&fabric) || !tunnels(&fabric).is_empty()
    });
    assert_eq!(tunnels(&fabric), "");
    drop(input);
    holder.wait().unwrap();
    fabric.assert_all_reach_all();
}
