//! The table as nft lists it.

use expect_test::expect;
use firewall::pods::{Logging, PodsTable};
use netwright_firewall as firewall;
use policy::{Compiler, World};
use serde_json::json;
use testkit::{Lab, Place};

use super::clusters::NODE;
use super::clusters::support::{namespace, network, node, pod};

/// The whole table of a node with one pod that one policy selects. `docs/firewall.md` explains it.
#[test]
fn the_table_reads_well() {
    testkit::require!("root");
    let objects = [
        node(NODE, json!({}), &["192.0.2.1"]).into(),
        namespace("shop", json!({})).into(),
        pod("shop/web", "two", json!({"app": "web"}), &["10.244.2.1", "fd00:244:2::1"]).into(),
        pod("shop/db", NODE, json!({"app": "db"}), &["10.244.1.1"]).into(),
        network(
            "shop/db",
            json!({
                "podSelector": {"matchLabels": {"app": "db"}},
                "ingress": [{
                    "from": [
                        {"podSelector": {"matchLabels": {"app": "web"}}},
                        {"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.128/25"]}},
                    ],
                    "ports": [{"port": 5432}, {"port": 80, "endPort": 90, "protocol": "UDP"}, {"port": "http"}],
                }, {"ports": [{"protocol": "SCTP"}]}],
            }),
        )
        .into(),
    ];
    let compiler = Compiler::new(World::of(None, objects), NODE);
    let lab = Lab::new("podslist");
    let mut table = lab.enter(|| PodsTable::open(Logging::default())).unwrap();
    table.put(compiler.program()).unwrap();
    let listed = lab.sh("nft list ruleset");
    expect![[r#"
        table inet netwright-policy {
        	comment "Netwright. Filled by netwrightd policy: do not edit."
        	map in4 {
        		type ipv4_addr : verdict
        		elements = { 10.244.1.1 : goto ci-u4gku3ebv4pudapieb7e }
        	}

        	set has-in4 {
        		type ipv4_addr
        		elements = { 10.244.1.1 }
        	}

        	map in6 {
        		type ipv6_addr : verdict
        	}

        	set has-in6 {
        		type ipv6_addr
        	}

        	map out4 {
        		type ipv4_addr : verdict
        	}

        	set has-out4 {
        		type ipv4_addr
        	}

        	map out6 {
        		type ipv6_addr : verdict
        	}

        	set has-out6 {
        		type ipv6_addr
        	}

        	map net-in4 {
        		type ifname . ipv4_addr : verdict
        	}

        	set has-net-in4 {
        		type ifname . ipv4_addr
        	}

        	map net-in6 {
        		type ifname . ipv6_addr : verdict
        	}

        	set has-net-in6 {
        		type ifname . ipv6_addr
        	}

        	map net-out4 {
        		type ifname . ipv4_addr : verdict
        	}

        	set has-net-out4 {
        		type ifname . ipv4_addr
        	}

        	map net-out6 {
        		type ifname . ipv6_addr : verdict
        	}

        	set has-net-out6 {
        		type ifname . ipv6_addr
        	}

        	set blk4-dbxzin7ftpfukakhxmpd {
        		type ipv4_addr
        		flags interval
        		elements = { 10.0.0.0/25 }
        	}

        	set many4-t4rn7ztlxv4epnca3p67 {
        		type ipv4_addr
        	}

        	set many6-t4rn7ztlxv4epnca3p67 {
        		type ipv6_addr
        	}

        	set port4-5yoocvt75z4ttqe2s5t4 {
        		type ipv4_addr . inet_proto . inet_service
        		elements = { 10.244.1.1 . tcp . 80 }
        	}

        	set port6-5yoocvt75z4ttqe2s5t4 {
        		type ipv6_addr . inet_proto . inet_service
        	}

        	set sel4-lgeju7p34k7m57vm3om2 {
        		type ipv4_addr
        		elements = { 10.244.2.1 }
        	}

        	set sel6-lgeju7p34k7m57vm3om2 {
        		type ipv6_addr
        		elements = { fd00:244:2::1 }
        	}

        	chain egress {
        		type filter hook forward priority filter + 5; policy accept;
        		ct state established,related accept
        		tcp flags != syn / fin,syn,rst,ack jump revived
        		iifname . ip saddr vmap @net-out4
        		ip saddr vmap @out4
        		icmpv6 type 135-136 ip6 hoplimit 255 accept
        		iifname . ip6 saddr vmap @net-out6
        		ip6 saddr vmap @out6
        	}

        	chain ingress {
        		type filter hook forward priority filter + 6; policy accept;
        		ct state established,related accept
        		oifname . ip daddr vmap @net-in4
        		ip daddr vmap @in4
        		icmpv6 type 135-136 ip6 hoplimit 255 accept
        		oifname . ip6 daddr vmap @net-in6
        		ip6 daddr vmap @in6
        	}

        	chain revived {
        		ct state ! new return
        		ip saddr @has-in4 goto cut
        		iifname . ip saddr @has-net-in4 goto cut
        		ip6 saddr @has-in6 goto cut
        		iifname . ip6 saddr @has-net-in6 goto cut
        		ip daddr @has-out4 goto cut
        		oifname . ip daddr @has-net-out4 goto cut
        		ip6 daddr @has-out6 goto cut
        		oifname . ip6 daddr @has-net-out6 goto cut
        	}

        	chain cut {
        		counter packets 0 bytes 0 reject with tcp reset
        	}

        	chain open {
        		accept
        	}

        	chain deny-in {
        		limit rate 100/second burst 100 packets log prefix "nwt-in " group 20055 snaplen 128
        		counter packets 0 bytes 0
        		ct state new tcp flags != syn / fin,syn,rst,ack reject with tcp reset
        		drop
        	}

        	chain deny-out {
        		limit rate 100/second burst 100 packets log prefix "nwt-out " group 20055 snaplen 128
        		counter packets 0 bytes 0
        		ct state new tcp flags != syn / fin,syn,rst,ack reject with tcp reset
        		drop
        	}

        	chain ci-u4gku3ebv4pudapieb7e {
        		ip saddr @many4-t4rn7ztlxv4epnca3p67 goto deny-in
        		ip6 saddr @many6-t4rn7ztlxv4epnca3p67 goto deny-in
        		jump pi-di75vw5ghquhiqnsryou
        		goto deny-in
        	}

        	chain pi-di75vw5ghquhiqnsryou {
        		ip saddr @sel4-lgeju7p34k7m57vm3om2 jump pi-di75vw5ghquhiqnsryou-0
        		ip6 saddr @sel6-lgeju7p34k7m57vm3om2 jump pi-di75vw5ghquhiqnsryou-0
        		ip saddr @blk4-dbxzin7ftpfukakhxmpd jump pi-di75vw5ghquhiqnsryou-0
        		meta l4proto sctp accept
        	}

        	chain pi-di75vw5ghquhiqnsryou-0 {
        		tcp dport 5432 accept
        		udp dport 80-90 accept
        		ip daddr . meta l4proto . tcp dport @port4-5yoocvt75z4ttqe2s5t4 accept
        		ip6 daddr . meta l4proto . tcp dport @port6-5yoocvt75z4ttqe2s5t4 accept
        	}

        	chain unknown-in {
        		goto deny-in
        	}

        	chain unknown-out {
        		goto deny-out
        	}
        }
    "#]]
    .assert_eq(&listed);
    // nft reads its own listing: no name of ours is a word of its language.
    lab.sh("nft list ruleset > /run/listed && nft -f /run/listed");
}
