//! The service restores what other programs remove.

use std::fs;
use std::time::Instant;

use testkit::{Place as _, Snapshot, wait_until};

use super::{Fabric, SOON};

/// What other programs do to a node, each a command.
const DAMAGES: [(&str, &str); 19] = [
    ("the tunnel goes down and up", "ip link set nw-vxlan4 down; ip link set nw-vxlan4 up"),
    ("the tunnel goes down", "ip link set nw-vxlan4 down"),
    ("the tunnel is deleted", "ip link del nw-vxlan4"),
    ("both tunnels are deleted", "ip link del nw-vxlan4; ip link del nw-vxlan6"),
    ("the tunnel gets another address", "ip link set nw-vxlan4 address 02:00:00:00:00:07"),
    ("the tunnel gets another MTU", "ip link set nw-vxlan4 mtu 600"),
    (
        "the tunnel becomes a bridge's port",
        "ip link add damage0 type bridge; ip link set nw-vxlan4 master damage0",
    ),
    ("the tunnel does without ARP", "ip link set nw-vxlan4 arp off"),
    ("the tunnel's packets end early", "ip link set nw-vxlan4 type vxlan ttl 1"),
    // The kernel reports the MTU alone.
    (
        "the tunnel does not forward",
        "sysctl -q -w net.ipv4.conf.nw-vxlan4.forwarding=0 net.ipv6.conf.nw-vxlan4.forwarding=0; ip link set nw-vxlan4 mtu 1400",
    ),
    ("the tunnel loses its address", "ip addr flush dev nw-vxlan4"),
    // `ip route flush` cannot delete routes that use nexthop objects.
    (
        "routes are deleted",
        "for to in 10.244.2.0/24 10.244.3.0/24 fd00:244:2::/64 fd00:244:3::/64; do ip route del $to; done",
    ),
    (
        "unreachable routes are deleted",
        "ip route flush type unreachable; ip -6 route flush type unreachable",
    ),
    ("all nexthops are flushed", "ip nexthop flush proto 78"),
    ("all neighbours are flushed", "ip neigh flush nud permanent dev nw-vxlan4"),
    (
        "a forwarding entry leads elsewhere",
        "bridge fdb show dev nw-vxlan4 | while read mac rest; do bridge fdb replace $mac dst 192.0.2.250 dev nw-vxlan4 self permanent; done",
    ),
    (
        "the uplink goes down and up",
        "ip link set eth0 down; ip link set eth0 up; ip addr replace fe80::1/64 dev eth0 nodad; ip addr replace 2001:db8:0::10/64 dev eth0 nodad; ip route replace default via 192.0.2.1; ip route replace default via 2001:db8:0::1",
    ),
    ("the packet filter is flushed", "nft flush ruleset"),
    (
        "forwarding entries are deleted",
        "bridge fdb show dev nw-vxlan4 | while read mac rest; do bridge fdb del $mac dev nw-vxlan4; done",
    ),
];

/// The kernel's objects of a node, without numbers that the kernel assigns.
pub(super) fn objects(node: &super::Node) -> Vec<String> {
    objects_with(node, super::TUNNELS)
}

/// The same, for tunnels with these names.
pub(super) fn objects_with(node: &super::Node, tunnels: [&str; 2]) -> Vec<String> {
    let script = "ip -4 route show; ip -6 route show; ip nexthop show; \
                  for dev in nw-vxlan4 nw-vxlan6; do \
                    ip -d -o link show dev $dev | sed 's/^[0-9]*: //'; ip -o addr show dev $dev | sed 's/^[0-9]*: //'; \
                    ip neigh show dev $dev nud permanent; bridge fdb show dev $dev; \
                    cat /proc/sys/net/ipv4/conf/$dev/forwarding /proc/sys/net/ipv6/conf/$dev/forwarding; \
                  done; nft -s list table inet netwright-routing";
    let text = node.host.try_sh(&super::with_tunnels(script, tunnels));
    let mut lines: Vec<String> =
        String::from_utf8_lossy(&text.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// How often a service's descriptors are listed. Some exist only for a moment, for example those of
/// probes.
const LOOKS: usize = 20;

/// The descriptors that a node's service has open, without the numbers that the kernel assigns: the
/// shortest of [`LOOKS`] lists.
pub(super) fn descriptors(node: &super::Node) -> Vec<String> {
    let folder = format!("/proc/{}/fd", node.service.as_ref().unwrap().pid());
    let look = || {
        let all = fs::read_dir(&folder).unwrap().flatten();
        let open = all.filter_map(|one| fs::read_link(one.path()).ok());
        let mut open: Vec<String> = open
            .map(|what| {
                let what = what.display().to_string();
                let mut numbered = ["socket:", "pipe:"].into_iter();
                let kind = numbered.find(|kind| what.starts_with(kind));
                kind.map_or_else(|| what.clone(), str::to_owned)
            })
            .collect();
        open.sort();
        open
    };
    (0..LOOKS).map(|_| look()).min_by_key(Vec::len).unwrap()
}

/// While the service runs, it repairs every damage at once, and touches nothing else.
#[test]
fn vm_what_others_take_away_comes_back() {
    testkit::require!("root", "vxlan", "vm-full", "program:bridge", "program:nft");
    let mut fabric = Fabric::new("routing-damage", &[2, 1]);
    fabric.start();
    fabric.assert_all_reach_all();
    let whole = objects(&fabric.nodes[0]);
    for (what, damage) in DAMAGES {
        let node = &fabric.nodes[0];
        node.host.sh(damage);
        let begin = Instant::now();
        wait_until(what, || objects(node) == whole || SOON < begin.elapsed());
        let now = objects(node);
        let log = || node.service.as_ref().unwrap().log();
        assert!(now == whole, "{what}:\nwas {whole:#?}\nis {now:#?}\n{}", log());
        node.assert_reaches(&fabric.nodes[1]);
        node.assert_reaches(&fabric.nodes[2]);
    }
}

/// Returns a damaged document.
type Damage = fn(&str) -> String;

/// What happens to the record of nodes while the service is away, and why the service then ignores
/// the record.
const RECORDS: [(Damage, &str); 4] = [
    (|whole| whole[..whole.len() / 2].to_owned(), "it ends before it is complete"),
    (|_| String::new(), "it ends before it is complete"),
    (|_| "\u{1}\0 no JSON".repeat(1000), "there is no JSON value"),
    (|whole| whole.replacen("\"version\":1,", "\"version\":2,", 1), "it has version 2"),
];

/// If the record of nodes is damaged or has a newer version, the service ignores it: it starts,
/// says so, and leaves what is programmed, even if the list of nodes is gone. Once it has the list,
/// it makes everything from it, and writes the record again.
#[test]
fn vm_a_record_of_nodes_that_is_damaged_does_not_count() {
    testkit::require!("root", "vxlan", "vm-full", "program:bridge", "program:nft");
    let mut fabric = Fabric::new("routing-record", &[1, 1]);
    fabric.start();
    fabric.assert_all_reach_all();
    let whole = objects(&fabric.nodes[0]);
    let list = fs::read_to_string(fabric.list()).unwrap();
    let record = fabric.nodes[0].dir.join("lib/routing/peers");
    for (number, (damage, why)) in RECORDS.into_iter().enumerate() {
        assert_eq!(fabric.nodes[0].service.take().unwrap().stop(), Some(0));
        let written = fs::read_to_string(&record).unwrap();
        assert!(written.contains("10.244.2.0/24"), "{number}: {written}");
        let damaged = damage(&written);
        assert_ne!(damaged, written);
        fs::write(&record, damaged).unwrap();
        fs::remove_file(fabric.list()).unwrap();
        fabric.start_on(0);
        let log = fabric.nodes[0].service.as_ref().unwrap().log();
        let lines: Vec<&str> =
            log.lines().filter(|line| line.contains("the file is ignored")).collect();
        assert_eq!(lines.len(), number + 1, "{log}");
        assert!(lines[number].contains(why), "{why}: {log}");
        assert_eq!(objects(&fabric.nodes[0]), whole, "{why}: something went");
        fabric.nodes[0].assert_reaches(&fabric.nodes[1]);
        // Part of what is programmed is removed meanwhile. Only from the list can the service
        // restore it.
        fabric.nodes[0].host.sh("ip neigh flush nud permanent dev nw-vxlan4");
        fabric.write_list(&list);
        wait_until("everything to be there", || objects(&fabric.nodes[0]) == whole);
        wait_until("the node to be ready", || fabric.routes(0)["phase"] == "ready");
    }
    fabric.assert_all_reach_all();
}

/// When the service starts, it repairs the damage that was done while it was away, even if the list
/// of nodes is gone: the last known nodes are on the disk. It removes a node that was deleted
/// meanwhile.
#[test]
fn vm_what_happens_while_it_is_away_is_put_right() {
    testkit::require!("root", "vxlan", "vm-full", "program:nft");
    let mut fabric = Fabric::new("routing-away", &[2, 1]);
    fabric.start();
    fabric.assert_all_reach_all();
    let whole = objects(&fabric.nodes[0]);
    let service = fabric.nodes[0].service.take().unwrap();
    // The record is written some seconds after a change, and when the service ends.
    assert_eq!(service.stop(), Some(0));
    fabric.assert_all_reach_all();
    assert_eq!(objects(&fabric.nodes[0]), whole, "something went with the service");
    let list = fs::read_to_string(fabric.list()).unwrap();
    fs::remove_file(fabric.list()).unwrap();
    fabric.nodes[0]
        .host
        .sh("ip link del nw-vxlan4; ip link set nw-vxlan6 address 02:00:00:00:00:07; \
         ip nexthop flush proto 78; nft delete table inet netwright-routing");
    fabric.start_on(0);
    fabric.assert_all_reach_all();
    let phase = fabric.routes(0)["phase"].to_string();
    assert!(phase.contains("degraded"), "{phase}");
    fabric.write_list(&list);
    wait_until("everything to be there", || objects(&fabric.nodes[0]) == whole);
    // The service is killed, and a node is deleted.
    fabric.nodes[0].service.take().unwrap().kill();
    let (some, _) = list.split_once("[[node]]\nname = \"c\"").unwrap();
    fabric.write_list(some);
    let before = Snapshot::of(&fabric.nodes[0].host);
    // Only the tunnel's hardware address shows that it is ours.
    // And a killed service may have put an MTU back without more: with the smaller one the link has no
    // IPv6, and the kernel gives it IPv6 anew.
    fabric.nodes[0].host.sh("ip link set nw-vxlan4 alias other; \
         ip link set nw-vxlan6 mtu 600; ip link set nw-vxlan6 mtu 1430");
    fabric.start_on(0);
    let lines = before.diff(&Snapshot::of(&fabric.nodes[0].host));
    assert!(!lines.is_empty());
    // A line is about the deleted node if it has its prefixes, its addresses, or its tunnel's
    // link-local address.
    let marks = ["10.244.3.", "fd00:244:3:", "192.0.2.77", "2001:db8:1::30", "neighbours: fe80::"];
    let others: Vec<_> =
        lines.iter().filter(|line| !marks.iter().any(|mark| line.contains(mark))).collect();
    assert!(others.is_empty(), "{others:#?}");
    fabric.nodes[0].assert_reaches(&fabric.nodes[1]);
}
