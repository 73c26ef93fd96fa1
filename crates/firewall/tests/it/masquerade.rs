//! Packets that leave a network get the host's address, and no others do.

use expect_test::expect;
use firewall::{Concern, Plan, masquerade};
use netwright_firewall as firewall;
use testkit::traffic::{self, Server};
use testkit::{Place, Snapshot};

use crate::support::{Node, key};

fn both(network: &str, last: u8) -> Plan {
    let mut plan = masquerade::plan(network, "cni0", format!("10.1.0.{last}/24").parse().unwrap());
    plan.join(masquerade::plan(network, "cni0", format!("fd00:1::{last}/64").parse().unwrap()));
    plan
}

#[test]
fn the_outside_sees_the_host_and_neighbours_see_the_container() {
    testkit::require!("root");
    let node = Node::new("masq");
    node.add(&key("n", "c1"), &both("n", 2));
    let _outside = [
        Server::tcp(&node.outside, "[::]:80", "outside"),
        Server::udp(&node.outside, "[::]:80", "outside"),
    ];
    let _neighbour = Server::tcp(&node.c2, "0.0.0.0:80", "c2");
    for br_netfilter in [false, true] {
        node.br_netfilter(br_netfilter);
        let seen = traffic::assert_tcp(&node.c1, "198.51.100.2:80").seen;
        assert_eq!(seen.ip().to_string(), "198.51.100.1", "br_netfilter {br_netfilter}");
        let seen = traffic::assert_tcp(&node.c1, "[2001:db8:ffff::2]:80").seen;
        assert_eq!(seen.ip().to_string(), "2001:db8:ffff::1", "br_netfilter {br_netfilter}");
        let seen = traffic::assert_udp(&node.c1, "198.51.100.2:80").seen;
        assert_eq!(seen.ip().to_string(), "198.51.100.1", "br_netfilter {br_netfilter}");
        let seen = traffic::assert_tcp(&node.c1, "10.1.0.3:80").seen;
        assert_eq!(seen.ip().to_string(), "10.1.0.2", "br_netfilter {br_netfilter}");
    }
    // The other container did not ask for masquerade: its packets leave unchanged, and no reply
    // comes back.
    traffic::assert_no_tcp(&node.c2, "198.51.100.2:80");
}

#[test]
fn tables_read_well_and_can_be_read_back() {
    testkit::require!("root");
    let node = Node::new("layout");
    node.add(&key("n", "c1"), &both("n", 2));
    let ruleset = node.lab.sh("nft list ruleset");
    expect![[r#"
        table inet netwright {
        	comment "Netwright. Filled by its CNI plugins: do not edit."
        	map masquerade4 {
        		type ifname . ipv4_addr : verdict
        		elements = { "cni0" . 10.1.0.2 comment "675392252e72bba948fc360ca7b2df45 n" : jump masquerade-1e1a10eb03cd4c8f }
        	}

        	map masquerade6 {
        		type ifname . ipv6_addr : verdict
        		elements = { "cni0" . fd00:1::2 comment "675392252e72bba948fc360ca7b2df45 n" : jump masquerade-b3aeda007db939c4 }
        	}

        	map hostports4 {
        		type inet_proto . inet_service : ipv4_addr . inet_service
        	}

        	map hostports6 {
        		type inet_proto . inet_service : ipv6_addr . inet_service
        	}

        	map hostports_at4 {
        		type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
        	}

        	map hostports_at6 {
        		type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service
        	}

        	set hairpin4 {
        		type ifname . ifname . ipv4_addr
        	}

        	set hairpin6 {
        		type ifname . ifname . ipv6_addr
        	}

        	set local_snat4 {
        		type ifname . ipv4_addr
        	}

        	set local_snat6 {
        		type ifname . ipv6_addr
        	}

        	set loopback6 {
        		type inet_proto . inet_service
        	}

        	set snat_all4 {
        		type ifname . ipv4_addr
        	}

        	set snat_all6 {
        		type ifname . ipv6_addr
        	}

        	set localnet {
        		type ifname
        	}

        	set policy_bridges {
        		type ifname
        	}

        	set policy_same {
        		type ifname . ifname
        	}

        	set policy_isolated {
        		type ifname . ifname
        	}

        	set pod_links {
        		type ifname
        	}

        	set pod_addresses4 {
        		type ifname . ipv4_addr
        	}

        	set pod_addresses6 {
        		type ifname . ipv6_addr
        	}

        	chain hostports {
        		dnat ip to ip daddr . meta l4proto . th dport map @hostports_at4
        		meta nfproto ipv4 dnat ip to meta l4proto . th dport map @hostports4
        		dnat ip6 to ip6 daddr . meta l4proto . th dport map @hostports_at6
        		meta nfproto ipv6 dnat ip6 to meta l4proto . th dport map @hostports6
        	}

        	chain hostport_snat {
        		oifname . ip daddr @snat_all4 masquerade
        		oifname . ip6 daddr @snat_all6 masquerade
        		ip saddr 127.0.0.0/8 oifname . ip daddr @local_snat4 masquerade
        		ip6 saddr fd6e:6574:7772:6967:6874::1 masquerade
        		fib saddr type local return
        		iif 0 oifname . ip daddr @local_snat4 masquerade
        		iif 0 oifname . ip6 daddr @local_snat6 masquerade
        		iifname . oifname . ip daddr @hairpin4 masquerade
        		iifname . oifname . ip6 daddr @hairpin6 masquerade
        	}

        	chain netwright-pods {
        		type filter hook prerouting priority -450; policy accept;
        		ip saddr != 0.0.0.0 iifname @pod_links iifname . ip saddr != @pod_addresses4 counter packets 0 bytes 0 drop
        		ip6 saddr != fe80::/10 ip6 saddr != :: iifname @pod_links iifname . ip6 saddr != @pod_addresses6 counter packets 0 bytes 0 drop
        	}

        	chain raw {
        		type filter hook prerouting priority raw; policy accept;
        		iifname @localnet ip saddr 127.0.0.0/8 drop
        		iifname @localnet ip daddr 127.0.0.0/8 drop
        		ip6 saddr fd6e:6574:7772:6967:6874::1 drop
        		ip6 daddr fd6e:6574:7772:6967:6874::1 drop
        	}

        	chain raw_output {
        		type filter hook output priority raw; policy accept;
        		ip6 saddr ::1 ip6 daddr ::1 meta l4proto . th dport @loopback6 ip6 saddr set fd6e:6574:7772:6967:6874::1
        		icmpv6 type parameter-problem oifname @pod_links counter packets 0 bytes 0 drop
        	}

        	chain prerouting {
        		type nat hook prerouting priority dstnat + 10; policy accept;
        		iifname != "lo" ip daddr 127.0.0.0/8 return
        		iifname != "lo" ip6 daddr ::1 return
        		fib daddr type local jump hostports
        		fib daddr . iif type local jump hostports
        	}

        	chain output {
        		type nat hook output priority -90; policy accept;
        		ip6 saddr ::1 return
        		fib daddr type local jump hostports
        	}

        	chain pod_sources {
        		type nat hook postrouting priority srcnat - 10; policy accept;
        		iifname @pod_links iifname . ip saddr != @pod_addresses4 counter packets 0 bytes 0 drop
        		iifname @pod_links iifname . ip6 saddr != @pod_addresses6 counter packets 0 bytes 0 drop
        	}

        	chain postrouting {
        		type nat hook postrouting priority srcnat; policy accept;
        		ct status dnat jump hostport_snat
        		iifname . ip saddr vmap @masquerade4
        		iifname . ip6 saddr vmap @masquerade6
        	}

        	chain pod_input {
        		type filter hook input priority filter; policy accept;
        		icmpv6 type 135-136 ip6 hoplimit 255 ip6 saddr fe80::/10 accept
        		ip6 saddr fe80::/10 ct state established,related accept
        		ip6 saddr fe80::/10 ip6 daddr != fe80::/10 ip6 daddr != ff00::/8 iifname @pod_links counter packets 0 bytes 0 drop
        		ip6 saddr :: ip6 daddr != ff00::/8 iifname @pod_links counter packets 0 bytes 0 drop
        		ip6 saddr fe80::/10 ip6 daddr != fe80::/10 ip6 daddr != ff00::/8 meta sdifname @pod_links counter packets 0 bytes 0 drop
        		ip6 saddr :: ip6 daddr != ff00::/8 meta sdifname @pod_links counter packets 0 bytes 0 drop
        	}

        	chain input {
        		type filter hook input priority 110; policy accept;
        		ip6 daddr fd6e:6574:7772:6967:6874::1 ct status dnat ip6 daddr set ::1
        		ip daddr 127.0.0.0/8 iifname @localnet ct status snat return
        		ip daddr 127.0.0.0/8 iifname @localnet ct status dnat return
        		ip daddr 127.0.0.0/8 iifname @localnet drop
        	}

        	chain forward {
        		type filter hook forward priority filter; policy accept;
        		iifname @pod_links iifname . ip saddr != @pod_addresses4 counter packets 0 bytes 0 drop
        		iifname @pod_links iifname . ip6 saddr != @pod_addresses6 counter packets 0 bytes 0 drop
        		meta sdifname @pod_links meta sdifname . ip saddr != @pod_addresses4 counter packets 0 bytes 0 drop
        		meta sdifname @pod_links meta sdifname . ip6 saddr != @pod_addresses6 counter packets 0 bytes 0 drop
        		oifname @pod_links oifname . ip daddr != @pod_addresses4 counter packets 0 bytes 0 drop
        		oifname @pod_links oifname . ip6 daddr != @pod_addresses6 counter packets 0 bytes 0 drop
        		iifname . oifname @policy_isolated drop
        		iifname . oifname @policy_same return
        		iifname @policy_bridges oifname @policy_bridges drop
        		meta sdifname . oifname @policy_isolated drop
        		meta sdifname . oifname @policy_same return
        		meta sdifname @policy_bridges oifname @policy_bridges drop
        	}

        	chain masquerade-1e1a10eb03cd4c8f {
        		comment "10.1.0.0/24 of n"
        		ip daddr 10.1.0.0/24 return
        		ip daddr 224.0.0.0/4 return
        		masquerade
        	}

        	chain masquerade-b3aeda007db939c4 {
        		comment "fd00:1::/64 of n"
        		ip6 daddr fd00:1::/64 return
        		ip6 daddr ff00::/8 return
        		masquerade
        	}
        }
    "#]].assert_eq(&ruleset);
    node.lab.sh("nft list ruleset > /run/saved && nft flush ruleset && nft -f /run/saved");
    assert_eq!(node.lab.sh("nft list ruleset"), ruleset);
    assert_eq!(node.check(&key("n", "c1"), &both("n", 2)), Vec::<String>::new());
}

#[test]
fn the_last_attachment_takes_the_chain_along() {
    testkit::require!("root");
    let node = Node::new("masqlast");
    node.add(&key("n", "c1"), &both("n", 2));
    node.add(&key("n", "c2"), &both("n", 3));
    assert_eq!(node.elements().matches("chain ").count(), 2, "{}", node.elements());
    node.remove(&key("n", "c1"), &both("n", 2));
    assert_eq!(node.elements().matches("chain ").count(), 2, "{}", node.elements());
    node.remove(&key("n", "c2"), &both("n", 3));
    assert_eq!(node.elements(), "");
    // A second time, with nothing left to remove.
    node.remove(&key("n", "c2"), &both("n", 3));
}

/// Then the number of its rules does not say how many elements lead to it.
#[test]
fn a_chain_that_another_program_emptied_stays_while_it_is_used() {
    testkit::require!("root");
    let node = Node::new("masqempty");
    node.add(&key("n", "c1"), &both("n", 2));
    node.add(&key("n", "c2"), &both("n", 3));
    node.lab.sh("nft list chains inet | grep -o 'masquerade-[0-9a-f]*' | \
         xargs -n 1 nft flush chain inet netwright");
    node.remove(&key("n", "c1"), &both("n", 2));
    // A chain that nothing jumps to goes all the same.
    node.lab.sh("nft add chain inet netwright masquerade-0");
    let nothing = firewall::CollectReport::default();
    let collected = node.firewall(|firewall| firewall.gc("n", &|_| true, Concern::ALL)).unwrap();
    assert_eq!(collected, nothing);
    assert_eq!(node.elements().matches("chain ").count(), 2, "{}", node.elements());
    node.firewall(|firewall| firewall.mend(&both("n", 3))).unwrap();
    assert_eq!(node.check(&key("n", "c2"), &both("n", 3)), Vec::<String>::new());
    node.remove(&key("n", "c2"), &both("n", 3));
    assert_eq!(node.elements(), "");
}

#[test]
fn adding_again_changes_nothing_and_a_leftover_is_replaced() {
    testkit::require!("root");
    let node = Node::new("masqagain");
    node.add(&key("n", "c1"), &both("n", 2));
    let before = Snapshot::take(&node.lab);
    node.add(&key("n", "c1"), &both("n", 2));
    before.assert_same(&Snapshot::take(&node.lab));
    // The address went to another container, and the first one's rules were never removed.
    node.add(&key("n", "c9"), &both("n", 2));
    node.remove(&key("n", "c1"), &both("n", 2));
    assert_eq!(node.check(&key("n", "c9"), &both("n", 2)), Vec::<String>::new());
}

#[test]
fn nothing_of_ours_is_left_after_the_last() {
    testkit::require!("root");
    let node = Node::new("masqprune");
    let before = Snapshot::take(&node.lab);
    node.add(&key("n", "c1"), &both("n", 2));
    assert!(!node.firewall(firewall::Firewall::prune).unwrap());
    node.remove(&key("n", "c1"), &both("n", 2));
    assert!(node.firewall(firewall::Firewall::prune).unwrap());
    before.assert_same(&Snapshot::take(&node.lab));
}
