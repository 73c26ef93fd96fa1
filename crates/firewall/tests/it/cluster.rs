//! The packet filter of a cluster's node: which source addresses others see, which packets tunnels
//! accept, and what is restored.

mod forwarding;
mod services;
mod sources;
mod tunnels;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use expect_test::expect;
use firewall::cluster::{
    Change, ClusterFilter, ClusterTable, Difference, Encapsulation, Member, Rules,
};
use netwright_firewall as firewall;
use testkit::traffic::{self, Server};
use testkit::{Container, Place, Snapshot};

use crate::support::Node;

/// A node whose pods are the lab's containers, another node `b` beside it with a pod, and the
/// outside, which has a route back to pods.
///
/// | | this node | `b` | outside |
/// |---|---|---|---|
/// | underlay | 192.0.2.1, 2001:db8:2::1 | 192.0.2.2, 2001:db8:2::2 | |
/// | pods | 10.1.0.0/24, fd00:1::/64 | 10.2.0.2, fd00:2::2 | |
/// | towards the outside | 198.51.100.1, 2001:db8:ffff::1 | | .2, ::2; 203.0.113.2, 2001:db8:cafe::2 |
pub(super) struct Cluster {
    pub(super) node: Node,
    pub(super) b: Container,
}

impl Cluster {
    pub(super) fn new(name: &str) -> Self {
        let node = Node::new(name);
        let b = node.lab.container("b");
        node.lab.sh(
            "ip link add n0 mtu 2000 type veth peer name eth0 mtu 2000 netns b && ip link set n0 up && \
             ip addr add 192.0.2.1/24 dev n0 && ip addr add 2001:db8:2::1/64 dev n0 nodad && \
             ip route add 10.2.0.0/24 via 192.0.2.2 && ip -6 route add fd00:2::/64 via 2001:db8:2::2",
        );
        b.sh("for of in default eth0; do echo 0 > /proc/sys/net/ipv6/conf/$of/accept_dad; done && \
             ip link set lo up && ip link set eth0 up && ip addr add 192.0.2.2/24 dev eth0 && ip addr add 2001:db8:2::2/64 dev eth0 nodad && \
             ip addr add 10.2.0.2/32 dev lo && ip addr add fd00:2::2/128 dev lo nodad && \
             ip route add default via 192.0.2.1 && ip -6 route add default via 2001:db8:2::1");
        node.outside.sh(
            "ip addr add 203.0.113.2/32 dev lo && ip addr add 2001:db8:cafe::2/128 dev lo nodad && \
             ip route add 10.0.0.0/8 via 198.51.100.1 && ip -6 route add fd00::/16 via 2001:db8:ffff::1 && \
             ip route add 192.0.2.0/24 via 198.51.100.1 && ip -6 route add 2001:db8:2::/64 via 2001:db8:ffff::1",
        );
        Cluster { node, b }
    }

    /// Calls the function with the table of the lab's host.
    pub(super) fn table<T: Send>(&self, work: impl FnOnce(&mut ClusterTable) -> T + Send) -> T {
        self.node.lab.enter(|| work(&mut ClusterTable::open().unwrap()))
    }

    #[track_caller]
    pub(super) fn bring(&self, filter: &ClusterFilter) -> Difference {
        self.table(|table| table.bring(filter)).unwrap()
    }

    #[track_caller]
    pub(super) fn observe(&self, filter: &ClusterFilter) -> Difference {
        self.table(|table| table.observe(filter)).unwrap()
    }

    #[track_caller]
    pub(super) fn change(&self, filter: &mut ClusterFilter, change: &Change) -> Option<Difference> {
        self.table(|table| table.change(filter, change)).unwrap()
    }

    fn listed(&self) -> String {
        self.node.lab.sh("nft list table inet netwright-routing")
    }
}

pub(super) fn node(text: &str) -> Member {
    Member::Node(text.parse().unwrap())
}

pub(super) fn comes(member: Member) -> Change {
    Change { add: vec![member], remove: Vec::new() }
}

pub(super) fn goes(member: Member) -> Change {
    Change { add: Vec::new(), remove: vec![member] }
}

pub(crate) fn filter() -> ClusterFilter {
    let net = |text: &str| text.parse().unwrap();
    let mut members = vec![
        Member::Own(net("10.1.0.0/24")),
        Member::Own(net("fd00:1::/64")),
        Member::Cluster(net("10.0.0.0/14")),
        Member::Cluster(net("fd00::/16")),
        Member::Exempt(net("203.0.113.0/24")),
        Member::Exempt(net("2001:db8:cafe::/48")),
        Member::Local(net("10.1.0.0/24")),
        Member::Local(net("fd00:1::/64")),
        Member::Endpoint("192.0.2.1".parse().unwrap()),
        Member::Endpoint("2001:db8:2::1".parse().unwrap()),
        // An administrator's route leads there.
        Member::Routed(net("10.2.0.0/24")),
        Member::Routed(net("fd00:2::/64")),
        Member::Underlay("n0".to_owned()),
        Member::Uplink("n0".to_owned()),
        Member::Uplink("up0".to_owned()),
        Member::Tunnel("tun0".to_owned()),
    ];
    members.extend(["192.0.2.1", "192.0.2.2", "2001:db8:2::1", "2001:db8:2::2"].map(node));
    let content = Some((12, vec![0, 0, 1]));
    let vxlan = Encapsulation { protocol: 17, port: Some(8472), content };
    ClusterFilter::new(Rules { masquerade: true, tunnels: vec![vxlan] }, members)
}

/// How many packets the rules of a chain have counted.
pub(super) fn counted(place: &impl Place, chain: &str) -> u64 {
    let listed = place.sh(&format!("nft list chain inet netwright-routing {chain}"));
    let counts = listed.split("counter packets ").skip(1);
    counts.map(|rest| rest.split_whitespace().next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Sends one UDP packet from an address of a place.
pub(super) fn sends(from: &impl Place, source: &str, to: &str, content: &[u8]) {
    let (source, to): (IpAddr, SocketAddr) = (source.parse().unwrap(), to.parse().unwrap());
    let socket = from.enter(|| UdpSocket::bind((source, 0)).unwrap());
    socket.set_broadcast(true).unwrap();
    socket.send_to(content, to).unwrap();
}

/// Asserts which address servers at `to` see of what `from` sends, by TCP and UDP.
#[track_caller]
pub(super) fn assert_seen(from: &impl Place, to: &str, source: &str) {
    let source: IpAddr = source.parse().unwrap();
    assert_eq!(traffic::assert_tcp(from, to).seen.ip(), source, "TCP to {to}");
    assert_eq!(traffic::assert_udp(from, to).seen.ip(), source, "UDP to {to}");
}

/// Answers by TCP and UDP at each address of a place. (From a socket of all addresses, UDP would
/// answer from another one.)
pub(super) fn servers(place: &impl Place, name: &str) -> Vec<Server> {
    let addresses = place.sh("ip -o addr show scope global");
    let addresses = addresses.lines().filter_map(|line| line.split_whitespace().nth(3));
    let mut servers = vec![Server::tcp(place, "[::]:80", name)];
    for address in addresses {
        let address: ipnet::IpNet = address.parse().unwrap();
        let at = SocketAddr::new(address.addr(), 80).to_string();
        servers.push(Server::udp(place, &at, name));
    }
    servers
}

/// Row: reach.md §8, 16 (flannel#964, kubernetes#107591). The node hides pods' addresses from the
/// outside only.
#[test]
fn only_the_outside_sees_the_node_instead_of_the_pod() {
    testkit::require!("root");
    let cluster = Cluster::new("clmasq");
    let (node, b) = (&cluster.node, &cluster.b);
    let _servers = [servers(&node.outside, "outside"), servers(b, "b"), servers(&node.c2, "c2")];
    cluster.bring(&filter());
    for br_netfilter in [false, true] {
        node.br_netfilter(br_netfilter);
        for (to, seen) in [
            ("198.51.100.2:80", "198.51.100.1"),
            ("[2001:db8:ffff::2]:80", "2001:db8:ffff::1"),
            // The destination is in a range that the administrator lists.
            ("203.0.113.2:80", "10.1.0.2"),
            ("[2001:db8:cafe::2]:80", "fd00:1::2"),
            // The destination is another node.
            ("192.0.2.2:80", "10.1.0.2"),
            ("[2001:db8:2::2]:80", "fd00:1::2"),
            // The destination is a pod of another node.
            ("10.2.0.2:80", "10.1.0.2"),
            ("[fd00:2::2]:80", "fd00:1::2"),
            // The destination is a pod of this node.
            ("10.1.0.3:80", "10.1.0.2"),
            ("[fd00:1::3]:80", "fd00:1::2"),
        ] {
            assert_seen(&node.c1, to, seen);
        }
    }
    // The prefixes stay the same, and the administrator disables masquerade.
    let rules = Rules { masquerade: false, ..filter().rules().clone() };
    cluster.bring(&ClusterFilter::new(rules, [Member::Own("10.1.0.0/24".parse().unwrap())]));
    assert_seen(&node.c1, "198.51.100.2:80", "10.1.0.2");
}

/// Incoming packets are not masqueraded, whether they go to a pod itself, or to a port of the node
/// that leads to a pod here or elsewhere.
#[test]
fn what_comes_in_keeps_its_source() {
    testkit::require!("root");
    let cluster = Cluster::new("clin");
    let (node, b) = (&cluster.node, &cluster.b);
    let _servers = [servers(&node.c1, "c1"), servers(b, "b")];
    cluster.bring(&filter());
    node.lab.sh("nft -f - <<'X'\n\
         table inet ports { chain pre { type nat hook prerouting priority dstnat; \
         meta l4proto { tcp, udp } th dport 30080 dnat ip to 10.1.0.2:80; \
         meta l4proto { tcp, udp } th dport 30081 dnat ip to 10.2.0.2:80; \
         meta l4proto { tcp, udp } th dport 30080 dnat ip6 to [fd00:1::2]:80; \
         meta l4proto { tcp, udp } th dport 30081 dnat ip6 to [fd00:2::2]:80; }; }\nX");
    for to in ["10.1.0.2:80", "10.2.0.2:80", "198.51.100.1:30080", "198.51.100.1:30081"] {
        assert_seen(&node.outside, to, "198.51.100.2");
    }
    for to in ["[fd00:1::2]:80", "[fd00:2::2]:80"] {
        assert_seen(&node.outside, to, "2001:db8:ffff::2");
    }
    for to in ["[2001:db8:ffff::1]:30080", "[2001:db8:ffff::1]:30081"] {
        assert_seen(&node.outside, to, "2001:db8:ffff::2");
    }
    assert_seen(b, "10.1.0.2:80", "192.0.2.2");
    assert_seen(b, "[fd00:1::2]:80", "2001:db8:2::2");
}

/// Another node cannot borrow this one's address for packets from an address of a pod.
#[test]
fn what_comes_out_of_a_tunnel_is_not_masqueraded() {
    testkit::require!("root");
    let cluster = Cluster::new("clborrow");
    let (outside, b) = (&cluster.node.outside, &cluster.b);
    b.sh("ip addr add 10.0.0.9/32 dev lo && ip addr add fd00:9::9/128 dev lo nodad");
    // As a whole range of a space is.
    let own = ["10.0.0.0/24", "fd00:9::/64"].map(|own| Member::Own(own.parse().unwrap()));
    cluster.node.lab.sh(
        "ip route add 10.0.0.0/24 via 192.0.2.2 && ip -6 route add fd00:9::/64 via 2001:db8:2::2",
    );
    let mut filter = filter();
    let routed = ["10.0.0.0/24", "fd00:9::/64"].map(|own| Member::Routed(own.parse().unwrap()));
    filter.note(&Change { add: [own, routed].concat(), remove: Vec::new() });
    cluster.bring(&filter);
    for tunnel in [false, true] {
        if tunnel {
            // Only by the name of the interface.
            cluster.change(&mut filter, &comes(Member::Tunnel("n0".to_owned())));
        }
        for (forged, to, this) in [
            ("10.0.0.9:0", "198.51.100.2:80", "198.51.100.1"),
            ("[fd00:9::9]:0", "[2001:db8:ffff::2]:80", "2001:db8:ffff::1"),
        ] {
            let receiver = outside.enter(|| UdpSocket::bind(to).unwrap());
            receiver.set_read_timeout(Some(traffic::ANSWER_DEADLINE)).unwrap();
            let sender = b.enter(|| UdpSocket::bind(forged).unwrap());
            sender.send_to(b"?", to).unwrap();
            let (_, seen) = receiver.recv_from(&mut [0; 8]).unwrap();
            let expected =
                if tunnel { sender.local_addr().unwrap().ip() } else { this.parse().unwrap() };
            assert_eq!(seen.ip(), expected, "tunnel {tunnel}");
        }
    }
}

#[test]
fn the_table_reads_well_and_can_be_read_back() {
    testkit::require!("root");
    let cluster = Cluster::new("cllayout");
    cluster.bring(&filter());
    let listed = cluster.listed();
    expect![[r#"
        table inet netwright-routing {
        	comment "Netwright. Filled by netwrightd routing: do not edit."
        	set own4 {
        		type ipv4_addr
        		flags interval
        		elements = { 10.1.0.0/24 }
        	}

        	set own6 {
        		type ipv6_addr
        		flags interval
        		elements = { fd00:1::/64 }
        	}

        	set cluster4 {
        		type ipv4_addr
        		flags interval
        		elements = { 10.0.0.0/14 }
        	}

        	set cluster6 {
        		type ipv6_addr
        		flags interval
        		elements = { fd00::/16 }
        	}

        	set exempt4 {
        		type ipv4_addr
        		flags interval
        		elements = { 203.0.113.0/24 }
        	}

        	set exempt6 {
        		type ipv6_addr
        		flags interval
        		elements = { 2001:db8:cafe::/48 }
        	}

        	set nodes4 {
        		type ipv4_addr
        		elements = { 192.0.2.1, 192.0.2.2 }
        	}

        	set nodes6 {
        		type ipv6_addr
        		elements = { 2001:db8:2::1,
        			     2001:db8:2::2 }
        	}

        	set addresses4 {
        		type ipv4_addr
        	}

        	set addresses6 {
        		type ipv6_addr
        	}

        	set endpoints4 {
        		type ipv4_addr
        		elements = { 192.0.2.1 }
        	}

        	set endpoints6 {
        		type ipv6_addr
        		elements = { 2001:db8:2::1 }
        	}

        	set local4 {
        		type ipv4_addr
        		flags interval
        		elements = { 10.1.0.0/24 }
        	}

        	set local6 {
        		type ipv6_addr
        		flags interval
        		elements = { fd00:1::/64 }
        	}

        	set plain4 {
        		type ipv4_addr
        		flags interval
        	}

        	set plain6 {
        		type ipv6_addr
        		flags interval
        	}

        	set routed4 {
        		type ipv4_addr
        		flags interval
        		elements = { 10.2.0.0/24 }
        	}

        	set routed6 {
        		type ipv6_addr
        		flags interval
        		elements = { fd00:2::/64 }
        	}

        	set underlay {
        		type ifname
        		elements = { "n0" }
        	}

        	set uplinks {
        		type ifname
        		elements = { "n0",
        			     "up0" }
        	}

        	set tunnels {
        		type ifname
        		elements = { "tun0" }
        	}

        	chain strangers {
        		ct status dnat counter packets 0 bytes 0 drop
        		ip saddr @nodes4 ip daddr @endpoints4 iifname @underlay return
        		ip6 saddr @nodes6 ip6 daddr @endpoints6 iifname @underlay return
        		counter packets 0 bytes 0 drop
        	}

        	chain too-big {
        		ct state invalid,untracked counter packets 0 bytes 0 drop
        		ct original ip6 daddr @nodes6 ct original ip6 daddr != @endpoints6 counter packets 0 bytes 0 drop
        		ct original ip6 saddr @nodes6 ct original ip6 saddr != @endpoints6 counter packets 0 bytes 0 drop
        	}

        	chain sources {
        		iifname @tunnels ip saddr != @local4 return
        		iifname @tunnels ip6 saddr != @local6 return
        		iifname @underlay ip saddr @plain4 return
        		iifname @underlay ip6 saddr @plain6 return
        		iifname @underlay ip daddr @endpoints4 ip saddr != @local4 return
        		iifname @underlay ip6 daddr @endpoints6 ip6 saddr != @local6 return
        		iifname != @uplinks iifname != @tunnels fib saddr . iif oif != 0 return
        		ip saddr @routed4 ip saddr != @local4 fib saddr . iif oif != 0 return
        		ip6 saddr @routed6 ip6 saddr != @local6 fib saddr . iif oif != 0 return
        		counter packets 0 bytes 0 drop
        	}

        	chain to-nodes {
        		iif 0 fib saddr type local return
        		iifname @tunnels fib saddr type local return
        		ct status dnat counter packets 0 bytes 0 drop
        		iifname @underlay ip saddr @nodes4 return
        		iifname @underlay ip6 saddr @nodes6 return
        		counter packets 0 bytes 0 drop
        	}

        	chain prerouting {
        		type filter hook prerouting priority raw; policy accept;
        		udp dport 8472 @th,96,24 0x1 fib daddr type != unicast jump strangers
        		ip saddr @cluster4 jump sources
        		ip6 saddr @cluster6 jump sources
        	}

        	chain input {
        		type filter hook input priority 101; policy accept;
        		udp dport 8472 @th,96,24 0x1 jump strangers
        		icmpv6 mtu < 1350 @th,112,8 != 0x6 jump too-big
        	}

        	chain forward {
        		type filter hook forward priority mangle; policy accept;
        		oifname @tunnels tcp flags syn / syn,rst tcp option maxseg size set rt mtu
        		iifname @tunnels tcp flags syn / syn,rst tcp option maxseg size set rt mtu
        	}

        	chain outbound {
        		type filter hook postrouting priority mangle; policy accept;
        		udp dport 8472 @th,96,24 0x1 ip daddr @nodes4 jump to-nodes
        		udp dport 8472 @th,96,24 0x1 ip6 daddr @nodes6 jump to-nodes
        		udp dport 8472 @th,96,24 0x1 ip daddr @addresses4 jump to-nodes
        		udp dport 8472 @th,96,24 0x1 ip6 daddr @addresses6 jump to-nodes
        	}

        	chain postrouting {
        		type nat hook postrouting priority srcnat + 10; policy accept;
        		ip saddr @own4 iifname != @tunnels ip daddr != @cluster4 ip daddr != @exempt4 ip daddr != @nodes4 ip daddr != 224.0.0.0/4 masquerade fully-random
        		ip6 saddr @own6 iifname != @tunnels ip6 daddr != @cluster6 ip6 daddr != @exempt6 ip6 daddr != @nodes6 ip6 daddr != ff00::/8 masquerade fully-random
        	}
        }
    "#]].assert_eq(&listed);
    cluster.node.lab.sh("nft list ruleset > /run/saved && nft flush ruleset && nft -f /run/saved");
    assert_eq!(cluster.listed(), listed);
    // nft compares only the first byte of ff00::/8, which means the same.
    assert!(cluster.observe(&filter()).is_empty());
}

/// Whatever is flushed, deleted, added or replaced is found and restored. Nothing is written when
/// nothing differs.
#[test]
fn damage_is_found_and_repaired() {
    testkit::require!("root");
    let cluster = Cluster::new("clrepair");
    let node = &cluster.node;
    let _outside = servers(&node.outside, "outside");
    let filter = filter();
    node.lab.sh("nft add table inet other");
    let before = Snapshot::take(&node.lab);
    assert_eq!(cluster.bring(&filter).lines(), ["missing: table inet netwright-routing"]);
    let (listed, generation) = (cluster.listed(), generation(&cluster));
    assert!(cluster.bring(&filter).is_empty());
    assert_eq!(self::generation(&cluster), generation, "nothing was written");
    let table = "inet netwright-routing";
    for (damage, told) in [
        ("flush ruleset && add table inet other", "missing: table inet netwright-routing"),
        ("flush chain T postrouting", "chain postrouting of table T has other rules"),
        ("insert rule T strangers accept", "chain strangers of table T has other rules"),
        ("delete chain T forward", "missing: chain forward of table T"),
        (
            "delete chain T forward && add chain T forward { type filter hook forward priority 5; }",
            "chain forward of table T is at another hook",
        ),
        ("add table T { flags dormant; }", "table T has flags 0x1"),
        ("add counter T mine", "foreign: 1 objects of table T that are neither chains nor sets"),
        ("add chain T mine", "foreign: chain mine of table T"),
        ("add set T mine { type mark; }", "foreign: set mine of table T"),
        (
            "flush chain T forward && flush chain T postrouting && flush chain T sources && flush chain T to-nodes && delete set T tunnels && add set T tunnels { type mark; }",
            "set tunnels of table T has another type",
        ),
        ("delete element T nodes4 { 192.0.2.2 }", "missing from set nodes4 of table T: 192.0.2.2"),
        ("add element T nodes6 { 2001:db8::9 }", "foreign in set nodes6 of table T: 2001:db8::9"),
        (
            "delete element T own6 { fd00:1::/64 }",
            "missing from set own6 of table T: fd00:1::-fd00:1::ffff:ffff:ffff:ffff",
        ),
        (
            "add element T exempt4 { 0.0.0.0-9.0.0.0 }",
            "foreign in set exempt4 of table T: 0.0.0.0-9.0.0.0",
        ),
        (
            "flush set T cluster4; add element T cluster4 { 10.0.0.0/24 }",
            "missing from set cluster4 of table T: 10.0.0.0-10.3.255.255",
        ),
    ] {
        for command in damage.split(" && ") {
            node.lab.sh(&format!("nft '{}'", command.replace(" T ", &format!(" {table} "))));
        }
        let told = told.replace("table T", &format!("table {table}"));
        let seen = cluster.bring(&filter);
        assert!(seen.lines().contains(&told), "{damage}: {seen}");
        assert_eq!(cluster.listed(), listed, "{damage}");
        assert!(cluster.observe(&filter).is_empty(), "{damage}");
        let seen = traffic::assert_tcp(&node.c1, "198.51.100.2:80").seen;
        assert_eq!(seen.ip().to_string(), "198.51.100.1", "{damage}");
    }
    // The table is removed, and removed a second time.
    for _ in 0..2 {
        cluster.table(ClusterTable::remove).unwrap();
        before.assert_same(&Snapshot::take(&node.lab));
    }
}

fn generation(cluster: &Cluster) -> u32 {
    cluster.node.lab.enter(|| kernel::nft::NftSocket::open().unwrap().generation().unwrap())
}

/// A node that is added or removed changes only its own elements, even in a table that was flushed
/// or changed.
#[test]
fn nodes_come_and_go() {
    testkit::require!("root");
    let cluster = Cluster::new("clnodes");
    let _b = servers(&cluster.b, "b");
    let c1 = &cluster.node.c1;
    let mut filter = filter();
    cluster.bring(&filter);
    for (address, to, pod, this) in [
        ("192.0.2.2", "192.0.2.2:80", "10.1.0.2", "192.0.2.1"),
        ("2001:db8:2::2", "[2001:db8:2::2]:80", "fd00:1::2", "2001:db8:2::1"),
    ] {
        assert_eq!(cluster.change(&mut filter, &goes(node(address))), None);
        assert_seen(c1, to, this);
        assert_eq!(cluster.change(&mut filter, &comes(node(address))), None);
        assert_seen(c1, to, pod);
    }
    // A wider range replaces a range within it. When the wider one is removed, the narrower one
    // comes back.
    let wide = Member::Exempt("203.0.0.0/16".parse().unwrap());
    assert_eq!(cluster.change(&mut filter, &comes(wide.clone())), None);
    assert!(cluster.listed().contains("203.0.0.0/16"));
    assert_eq!(cluster.change(&mut filter, &goes(wide.clone())), None);
    assert!(cluster.listed().contains("203.0.113.0/24"));
    // Adjacent ranges.
    for third in 1..=3_u8 {
        let beside = Member::Exempt(format!("203.0.{third}.0/24").parse().unwrap());
        assert_eq!(cluster.change(&mut filter, &comes(beside)), None);
    }
    let middle = Member::Exempt("203.0.2.0/24".parse().unwrap());
    assert_eq!(cluster.change(&mut filter, &goes(middle)), None);
    assert!(cluster.observe(&filter).is_empty(), "{}", cluster.observe(&filter));
    for (damage, change) in [
        ("flush ruleset", comes(node("192.0.2.3"))),
        ("delete element inet netwright-routing nodes4 { 192.0.2.3 }", goes(node("192.0.2.3"))),
        ("add element inet netwright-routing exempt4 { 203.0.7.0/24 }", comes(wide)),
    ] {
        cluster.node.lab.sh(&format!("nft '{damage}'"));
        assert!(cluster.change(&mut filter, &change).is_some(), "{damage}");
        assert!(cluster.observe(&filter).is_empty(), "{damage}");
    }
}

/// Programs that write iptables' rules wait for this lock (flannel#933, kubernetes#48107).
#[test]
fn a_held_lock_of_iptables_is_not_waited_for() {
    testkit::require!("root");
    let cluster = Cluster::new("cllock");
    let lab = &cluster.node.lab;
    let lock = "/run/xtables.lock";
    let _holder = lab.start("flock", &["--no-fork", lock, "sleep", "infinity"]);
    let is_held = || !lab.try_sh(&format!("flock -n {lock} true")).status.success();
    testkit::wait_until("the lock to be held", is_held);
    let mut filter = filter();
    cluster.bring(&filter);
    assert_eq!(cluster.change(&mut filter, &comes(node("192.0.2.3"))), None);
    assert!(cluster.observe(&filter).is_empty());
    cluster.table(ClusterTable::remove).unwrap();
    assert!(is_held(), "it was held all the time");
}

/// Five thousand nodes of two families, each with its prefixes as cluster ranges.
#[test]
fn thousands_of_nodes() {
    testkit::require!("root");
    let lab = testkit::Lab::new("clmany");
    let of = |number: u32| {
        let [_, a, b, c] = number.to_be_bytes();
        [
            Member::Cluster(format!("10.{b}.{c}.0/24").parse().unwrap()),
            Member::Cluster(format!("fd00:{a:x}:{b:x}:{c:x}::/64").parse().unwrap()),
            node(&format!("172.16.{b}.{c}")),
            node(&format!("2001:db8:{a:x}:{b:x}::{c:x}")),
        ]
    };
    let rules = filter().rules().clone();
    let mut filter = ClusterFilter::new(rules, (0..5_000).flat_map(of));
    lab.enter(|| {
        let mut table = ClusterTable::open().unwrap();
        table.bring(&filter).unwrap();
        assert_eq!(
            table
                .change(&mut filter, &Change { add: of(5_000).into(), remove: of(7).into() })
                .unwrap(),
            None
        );
        assert!(table.bring(&filter).unwrap().is_empty());
    });
}
