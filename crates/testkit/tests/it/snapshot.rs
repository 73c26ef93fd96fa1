use testkit::{Lab, Place as _, Snapshot, require};

/// Each command changes one thing; the difference must name it, and undoing it must leave none.
#[test]
fn every_kind_of_change_is_seen_and_its_undoing_too() {
    require!("root", "program:nft", "program:iptables", "program:tc");
    let lab = Lab::new("changes");
    lab.sh("ip link add v0 type veth peer name v1 && ip link set v0 up && ip link set v1 up");
    lab.sh("iptables -A INPUT -j ACCEPT && iptables -D INPUT -j ACCEPT"); // its table and chain stay
    let before = Snapshot::take(&lab);
    let cases = [
        ("ip link add br0 type bridge", "ip link del br0", "links: br0 is new"),
        ("ip link set v0 promisc on", "ip link set v0 promisc off", "PROMISC"),
        ("ip link set v0 alias mine", "ip link set v0 alias ''", "mine"),
        (
            "ip addr add 192.0.2.1/24 dev v0",
            "ip addr del 192.0.2.1/24 dev v0",
            "addresses: v0 192.0.2.1/24 is new",
        ),
        ("ip route add 203.0.113.0/24 dev v0 table 77", "ip route flush table 77", "table 77"),
        ("ip rule add from 192.0.2.9 lookup 77", "ip rule del from 192.0.2.9", "rules: -4"),
        (
            "ip neigh add 192.0.2.7 lladdr 02:00:00:00:00:07 dev v0",
            "ip neigh del 192.0.2.7 dev v0",
            "neighbours: 192.0.2.7",
        ),
        (
            "ip neigh add proxy 192.0.2.8 dev v0",
            "ip neigh del proxy 192.0.2.8 dev v0",
            "neighbours: 192.0.2.8",
        ),
        (
            "ip -6 rule add from 2001:db8::9 lookup 77",
            "ip -6 rule del from 2001:db8::9",
            "rules: -6 32765:",
        ),
        (
            "ip -6 route add 2001:db8::/64 dev v0",
            "ip -6 route del 2001:db8::/64",
            "routes: -6 2001",
        ),
        (
            "nft add table inet t '{ set s { type ipv4_addr; elements = { 192.0.2.1 }; }; \
             chain c { type filter hook input priority 0; ip saddr @s counter accept; }; }'",
            "nft delete table inet t",
            "nftables: rule inet t c #1",
        ),
        (
            "iptables -A INPUT -s 192.0.2.9 -j DROP",
            "iptables -D INPUT -s 192.0.2.9 -j DROP",
            "-s 192.0.2.9/32 -j DROP",
        ),
        (
            "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet",
            "echo 0 > /proc/sys/net/ipv4/conf/all/route_localnet",
            "net/ipv4/conf/all/route_localnet",
        ),
        (
            "echo 0 > /proc/sys/net/ipv6/conf/v0/accept_ra",
            "echo 1 > /proc/sys/net/ipv6/conf/v0/accept_ra",
            "v0/accept_ra was `1`, is `0`",
        ),
        (
            "tc qdisc add dev v0 root tbf rate 8mbit burst 16k latency 25ms",
            "tc qdisc del dev v0 root",
            "tc: v0 qdisc tbf",
        ),
        ("mkdir -p /etc/cni && echo x > /etc/cni/a", "rm -r /etc/cni", "files: /etc/cni/a is new"),
        ("ip netns add left", "ip netns del left", "/run/netns/left"),
    ];
    for (change, undo, expected) in cases {
        lab.sh(change);
        let lines = before.diff(&Snapshot::take(&lab));
        assert!(lines.iter().any(|line| line.contains(expected)), "after `{change}`: {lines:#?}");
        lab.sh(undo);
        before.assert_same(&Snapshot::take(&lab));
    }
}

/// The snapshot starts the programs that show rules only if there are rules.
#[test]
fn the_first_rule_of_either_iptables_is_seen() {
    require!("root", "program:nft", "program:iptables", "program:iptables-legacy");
    for program in ["iptables", "ip6tables", "iptables-legacy", "ip6tables-legacy"] {
        let lab = Lab::new("first-rule");
        let before = Snapshot::take(&lab);
        lab.sh(&format!("{program} -A INPUT -j DROP"));
        let lines = before.diff(&Snapshot::take(&lab));
        let expected = format!("iptables: {program}-save filter: -A INPUT -j DROP is new");
        assert!(lines.iter().any(|line| line.contains(&expected)), "{program}: {lines:#?}");
    }
}

#[test]
fn counters_handles_and_element_order_do_not_count() {
    require!("root", "program:nft", "program:ping");
    let lab = Lab::new("counters");
    let table = |elements: &str| {
        format!(
            "nft add table inet t '{{ set s {{ type ipv4_addr; elements = {{ {elements} }}; }}; \
                 chain c {{ type filter hook input priority 0; counter accept; }}; }}'"
        )
    };
    lab.sh(&table("192.0.2.1, 192.0.2.2, 192.0.2.3"));
    let before = Snapshot::take(&lab);
    lab.sh("ping -qc1 127.0.0.1");
    lab.sh("nft delete table inet t");
    lab.sh(&table("192.0.2.3, 192.0.2.2, 192.0.2.1"));
    before.assert_same(&Snapshot::take(&lab));
}

#[test]
fn exceptions_must_be_needed() {
    require!("root");
    let lab = Lab::new("exceptions");
    let before = Snapshot::take(&lab);
    lab.sh("echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet");
    let after = Snapshot::take(&lab);
    let complaint = |expected: &[&str]| {
        let result = std::panic::catch_unwind(|| before.assert_same_but(&after, expected));
        result.err().map(|panic| panic.downcast_ref::<String>().unwrap().clone())
    };
    assert!(complaint(&[]).unwrap().contains("net/ipv4/conf/all/route_localnet was `0`, is `1`"));
    assert!(
        complaint(&["sysctls: ", "links: "])
            .unwrap()
            .contains("no difference contains [\"links: \"]")
    );
    assert_eq!(complaint(&["sysctls: "]), None);
}

#[test]
fn forwarding_may_be_on_afterwards_and_not_off() {
    require!("root");
    let lab = Lab::new("forwarding");
    let set = |value: u8| {
        lab.sh(&format!(
            "sysctl -qw net.ipv4.ip_forward={value} net.ipv6.conf.all.forwarding={value}"
        ))
    };
    lab.sh("ip link add v0 type veth peer name v1 && ip addr add 2001:db8::1/64 dev v0 nodad && \
         ip link set v0 up && ip link set v1 up");
    set(0);
    let off = Snapshot::take(&lab);
    set(1);
    let on = Snapshot::take(&lab);
    off.assert_same(&on);
    let lines = on.diff(&off);
    for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        assert!(lines.iter().any(|line| line.contains(name)), "{lines:#?}");
    }
    // If it is set directly, it is a setting of one link.
    lab.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv4.conf.v0.forwarding=1");
    assert_ne!(off.diff(&Snapshot::take(&lab)), Vec::<String>::new());
}

/// The kernel notices a carrier some time after it is there, so the flag does not show what a
/// program did.
#[test]
fn a_carrier_is_no_change_of_routes() {
    require!("root");
    let lab = Lab::new("carrier");
    lab.sh("ip link add v0 type veth peer name v1 && ip addr add 192.0.2.1/24 dev v0 && \
         ip addr add 2001:db8::1/64 dev v0 nodad && ip link set v0 up && ip link set v1 up");
    let routes = "{ ip route show table all; ip -6 route show table all; } | grep 'dev v0'";
    lab.sh(&format!("timeout 30 sh -c \"while {routes} | grep linkdown; do sleep 0.01; done\""));
    let before = Snapshot::take(&lab);
    lab.sh("ip link set v1 down");
    for family in ["192.0.2.0/24", "2001:db8::/64"] {
        lab.sh(&format!(
            "timeout 30 sh -c \"until {routes} | grep {family} | grep linkdown; do sleep 0.01; done\""
        ));
    }
    let lines = before.diff(&Snapshot::take(&lab));
    let of_v0 = |line: &&String| line.starts_with("routes") && line.contains("dev v0");
    assert_eq!(lines.iter().find(of_v0), None, "{lines:#?}");
}

#[test]
fn what_a_bridge_gets_by_itself_is_waited_for() {
    testkit::require!("root");
    let lab = Lab::new("snapshot-bridge");
    lab.sh(
        "ip link add b0 type bridge && ip link set b0 up && ip link add p0 type veth peer q0 && \
         ip link set q0 addrgenmode none up && ip link set p0 addrgenmode none master b0 up",
    );
    let before = Snapshot::take(&lab);
    // The kernel does this some time later. On a busy machine `ip` may come too late for a snapshot
    // that waits, but not each time.
    let is_waited_for = |_| {
        lab.sh("ip -6 addr flush dev b0");
        let late = std::thread::scope(|scope| {
            scope.spawn(|| lab.sh("sleep 0.5; ip addr add fe80::7/64 dev b0 nodad"));
            Snapshot::take(&lab)
        });
        before.diff(&late).iter().any(|line| line.contains("b0 fe80::7/64 is new"))
    };
    assert!((0..4).any(is_waited_for));
    // If a program removed it, the snapshot is still taken.
    lab.sh("ip -6 addr flush dev b0");
    let changed = before.diff(&Snapshot::take(&lab));
    assert!(!changed.iter().any(|line| line.contains("fe80::7/64")), "{changed:?}");
}

#[test]
fn detection_of_duplicates_is_waited_for() {
    require!("root");
    let lab = Lab::new("detection");
    lab.sh("ip link add v0 type veth peer name v1 && ip link set v0 up && ip link set v1 up && \
         ip addr add 2001:db8::1/64 dev v0");
    testkit::wait_for_detection(&lab, std::time::Duration::from_secs(30));
    let shown = lab.sh("ip -6 addr show dev v0");
    assert!(shown.contains("2001:db8::1/64") && !shown.contains("tentative"), "{shown}");
}

#[test]
fn sysctls_are_read_whole() {
    require!("root");
    let lab = Lab::new("sysctls");
    let ports = (0..200).map(|number| (30_000 + 2 * number).to_string());
    let ports = ports.collect::<Vec<_>>().join(",");
    let write = format!("echo {ports} >/proc/sys/net/ipv4/ip_local_reserved_ports");
    lab.sh(&write);
    let all = testkit::sysctls(&lab);
    assert_eq!(all["net/ipv4/ip_local_reserved_ports"], ports, "more than is read at once");
    assert_eq!(all["net/ipv6/conf/lo/disable_ipv6"], "0");
    assert!(!all.contains_key("net/ipv6/conf/lo/stable_secret"));
}
