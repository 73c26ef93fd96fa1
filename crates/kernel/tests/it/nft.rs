//! Transactions, and how nft itself lists their results.

use std::net::{IpAddr, Ipv4Addr};

use kernel::nft::field::{self, ct_state_bits, ct_status_bits, tcp_flag_bits};
use kernel::nft::{
    Batch, Element, Family, Hook, HookPoint, Key, KeyType, NewChain, NewRule, NewSet, NftSocket,
    TableRef, Value, Verdict,
};
use kernel::route::IpFamily;
use kernel::{Errno, MacAddr};

use crate::guard::{in_netns, sh};

fn table() -> TableRef {
    TableRef::new(Family::Inet, "nwt")
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Commits, and compares nft's listing with `expected` except for white space at the ends of lines.
#[track_caller]
fn check(batch: &Batch, listed: &str, expected: &str) {
    NftSocket::open().unwrap().commit(batch).unwrap();
    let seen = sh(&format!("nft -nn list {listed}"));
    let trim = |text: &str| text.trim().lines().map(str::trim).collect::<Vec<_>>().join("\n");
    assert_eq!(trim(&seen), trim(expected));
}

#[test]
fn sets_maps_and_their_keys_read_well() {
    in_netns(|| {
        let table = table();
        let mut batch = Batch::new();
        batch.add_table(&table, Some("made by a test"));
        batch.add_chain(NewChain::regular(&table, "web").comment("of web"));
        let key = [KeyType::InetProto, KeyType::InetService];
        let data = [KeyType::Ipv4Addr, KeyType::InetService];
        batch.add_set(NewSet::map(&table, "ports4", key, data).comment("hostports"));
        let data = [KeyType::Ipv6Addr, KeyType::InetService];
        batch.add_set(NewSet::map(&table, "ports6", key, data));
        let key = [KeyType::IfName, KeyType::Ipv4Addr];
        batch.add_set(NewSet::verdict_map(&table, "sources", key));
        batch.add_set(NewSet::set(&table, "macs", [KeyType::IfName, KeyType::EtherAddr]));
        batch.add_set(NewSet::set(&table, "marks", [KeyType::Mark]));
        batch.add_set(NewSet::set(&table, "names", [KeyType::IfName]));
        batch.add_set(NewSet::set(&table, "v6", [KeyType::Ipv6Addr]));
        batch.add_set(NewSet::set(&table, "nets", [KeyType::Ipv4Addr]).interval());
        batch
            .add_set(NewSet::set(&table, "pairs", [KeyType::IfName, KeyType::Ipv4Addr]).interval());
        let at = |address: &str, port| Key::of([Value::from(ip(address)), Value::Port(port)]);
        let tcp = |port| Key::of([Value::TCP, Value::Port(port)]);
        batch.add_elements(
            &table,
            "ports4",
            [Element::value(tcp(8080), at("192.0.2.1", 80)).comment("an owner")],
        );
        batch.add_elements(&table, "ports6", [Element::value(tcp(8080), at("2001:db8::1", 80))]);
        let source = Key::of([Value::IfName("br0".into()), Value::from(ip("192.0.2.1"))]);
        batch.add_elements(
            &table,
            "sources",
            [Element::verdict(source, Verdict::Goto("web".into())).comment("an owner")],
        );
        let mac = Value::Mac(MacAddr([2, 0, 0, 0, 0, 1]));
        batch.add_elements(
            &table,
            "macs",
            [Element::new(Key::of([Value::IfName("veth1".into()), mac]))],
        );
        batch.add_elements(&table, "marks", [Element::new(Value::Mark(0x2000))]);
        batch.add_elements(&table, "names", [Element::new(Value::IfName("a-name".into()))]);
        batch.add_elements(&table, "v6", [Element::new(Value::from(ip("2001:db8::1")))]);
        batch.add_elements(
            &table,
            "nets",
            [
                Element::net("192.0.2.0/24".parse().unwrap()).comment("one"),
                Element::net("198.51.100.0/25".parse().unwrap()),
                Element::net("240.0.0.0/4".parse().unwrap()),
            ],
        );
        let name = || Value::IfName("br0".into());
        let (first, last) = (ip("192.0.2.0"), ip("192.0.2.255"));
        batch.add_elements(
            &table,
            "pairs",
            [Element::concatenated_range(
                Key::of([name(), Value::from(first)]),
                Key::of([name(), Value::from(last)]),
            )],
        );
        check(
            &batch,
            "ruleset",
            r#"
            table inet nwt {
            comment "made by a test"
            map ports4 {
            type inet_proto . inet_service : ipv4_addr . inet_service
            comment "hostports"
            elements = { 6 . 8080 comment "an owner" : 192.0.2.1 . 80 }
            }

            map ports6 {
            type inet_proto . inet_service : ipv6_addr . inet_service
            elements = { 6 . 8080 : 2001:db8::1 . 80 }
            }

            map sources {
            type ifname . ipv4_addr : verdict
            elements = { "br0" . 192.0.2.1 comment "an owner" : goto web }
            }

            set macs {
            type ifname . ether_addr
            elements = { "veth1" . 02:00:00:00:00:01 }
            }

            set marks {
            type mark
            elements = { 0x00002000 }
            }

            set names {
            type ifname
            elements = { "a-name" }
            }

            set v6 {
            type ipv6_addr
            elements = { 2001:db8::1 }
            }

            set nets {
            type ipv4_addr
            flags interval
            elements = { 192.0.2.0/24 comment "one", 198.51.100.0/25,
            240.0.0.0/4 }
            }

            set pairs {
            type ifname . ipv4_addr
            flags interval
            elements = { "br0" . 192.0.2.0/24 }
            }

            chain web {
            comment "of web"
            }
            }"#,
        );
        let mut nft = NftSocket::open().unwrap();
        let nets = nft.elements(&table, "nets").unwrap();
        for net in ["192.0.2.0/24", "198.51.100.0/25", "240.0.0.0/4"] {
            let wanted = Element::net(net.parse().unwrap());
            let found = nets.iter().find(|found| found.key == wanted.key).unwrap();
            assert_eq!(found.end, wanted.end, "{net}");
        }
        assert_eq!(nft.elements(&table, "pairs").unwrap().len(), 1);
    });
}

#[test]
fn rules_of_a_policy_read_well() {
    in_netns(|| {
        let table = table();
        let mut batch = Batch::new();
        batch.add_table(&table, None);
        let key = [KeyType::Ipv4Addr, KeyType::InetProto, KeyType::InetService];
        batch.add_set(NewSet::set(&table, "named", key));
        batch.add_set(NewSet::set(&table, "kinds", [KeyType::Icmp6Type]));
        batch.add_elements(&table, "kinds", [Element::new(Value::Icmp6Type(135))]);
        batch.add_set(NewSet::set(&table, "links", [KeyType::IfName]));
        batch.add_chain(NewChain::regular(&table, "c"));
        let port = Key::of([Value::from(ip("192.0.2.1")), Value::SCTP, Value::Port(80)]);
        batch.add_elements(&table, "named", [Element::new(port)]);
        let rule = || NewRule::new(&table, "c");
        let fields = [field::ip_daddr(), field::l4proto(), field::th_dport()];
        batch.add_rule(rule().in_set(&fields, "named").accept());
        let (first, last) = (Value::Icmp6Type(133), Value::Icmp6Type(137));
        batch.add_rule(rule().in_range(field::icmp6_type(), first, last).accept());
        batch.add_rule(rule().in_set(&[field::icmp6_type()], "kinds").accept());
        let flags = tcp_flag_bits::SYN | tcp_flag_bits::ACK;
        batch.add_rule(rule().tcp_flags_not(flags, tcp_flag_bits::SYN).reject_with_reset());
        batch.add_rule(rule().tcp_flags(tcp_flag_bits::FIN, 0).counter());
        batch.add_rule(rule().limit(100, 7).log_to_group("nwt-in ", 7, 128));
        batch.add_rule(rule().limit(1, 1).drop());
        batch.add_rule(rule().in_set(&[field::sdifname()], "links").drop());
        batch.add_rule(rule().from_process().accept());
        check(
            &batch,
            "ruleset",
            r#"
            table inet nwt {
            set named {
            type ipv4_addr . inet_proto . inet_service
            elements = { 192.0.2.1 . 132 . 80 }
            }

            set kinds {
            type icmpv6_type
            elements = { 135 }
            }

            set links {
            type ifname
            }

            chain c {
            ip daddr . meta l4proto . th dport @named accept
            icmpv6 type 133-137 accept
            icmpv6 type @kinds accept
            tcp flags != 0x2 / 0x2,0x10 reject with tcp reset
            tcp flags ! 0x1 counter packets 0 bytes 0
            limit rate 100/second burst 7 packets log prefix "nwt-in " group 7 snaplen 128
            limit rate 1/second burst 1 packets drop
            meta sdifname @links drop
            meta skuid >= 0 accept
            }
            }"#,
        );
        // The kernel returns every expression as it was written.
        let mut nft = NftSocket::open().unwrap();
        let written = batch.operations().iter().filter_map(|operation| match operation {
            kernel::nft::Operation::AddRule { rule } => Some(rule.exprs.clone()),
            _ => None,
        });
        let written: Vec<_> = written.collect();
        let found: Vec<_> = nft.rules(&table, "c").unwrap();
        assert_eq!(found, nft.rules_of_table(&table).unwrap());
        let found: Vec<_> = found.into_iter().map(|rule| rule.exprs).collect();
        assert_eq!(found, written);
    });
}

#[test]
fn rules_read_well() {
    in_netns(|| {
        let table = table();
        let mut batch = Batch::new();
        batch.add_table(&table, None);
        let key = [KeyType::InetProto, KeyType::InetService];
        for (name, address) in [("p4", KeyType::Ipv4Addr), ("p6", KeyType::Ipv6Addr)] {
            batch.add_set(NewSet::map(&table, name, key, [address, KeyType::InetService]));
        }
        batch.add_set(NewSet::verdict_map(&table, "vm", [KeyType::IfName, KeyType::Ipv4Addr]));
        batch.add_set(NewSet::set(&table, "names", [KeyType::IfName]));
        batch.add_chain(NewChain::regular(&table, "sub"));
        batch.add_chain(NewChain::base(&table, "pre", Hook::prerouting_dstnat()));
        batch
            .add_chain(NewChain::base(&table, "post", Hook::postrouting_srcnat()).comment("words"));
        let hook = Hook {
            policy: Some(kernel::nft::Policy::Drop),
            ..Hook::filter(HookPoint::Forward, -5)
        };
        batch.add_chain(NewChain::base(&table, "fwd", hook));
        let pre = || NewRule::new(&table, "pre");
        let port = &[field::l4proto(), field::th_dport()];
        let local = || pre().is(field::fib_daddr_type(), Value::LOCAL);
        batch.add_rule(local().dnat_to_map(IpFamily::V4, port, "p4").comment("hostports"));
        batch.add_rule(local().dnat_to_map(IpFamily::V6, port, "p6"));
        batch.add_rule(
            pre()
                .is(field::l4proto(), Value::TCP)
                .is(field::th_dport(), Value::Port(80))
                .redirect(8080),
        );
        batch.add_rule(pre().is(field::ip_daddr(), ip("192.0.2.9")).dnat(ip("192.0.2.1"), None));
        batch.add_rule(
            pre()
                .is(field::ip_daddr(), ip("192.0.2.9"))
                .is(field::l4proto(), Value::UDP)
                .dnat(ip("192.0.2.1"), Some(53)),
        );
        let post = || NewRule::new(&table, "post");
        batch.add_rule(post().vmap(&[field::oifname(), field::ip_saddr()], "vm"));
        batch.add_rule(
            post()
                .in_net(field::ip_saddr(), "192.0.2.0/24".parse().unwrap())
                .not_in_net(field::ip_daddr(), "192.0.2.0/23".parse().unwrap())
                .masquerade()
                .comment("kk"),
        );
        batch.add_rule(
            post().is(field::ip6_saddr(), ip("2001:db8::1")).counter().masquerade_fully_random(),
        );
        batch.add_rule(post().has_all(field::mark(), 0x2000).snat(ip("192.0.2.1")));
        batch.add_rule(post().in_net(field::ip6_daddr(), "ff00::/8".parse().unwrap()).returns());
        let fwd = || NewRule::new(&table, "fwd");
        batch.add_rule(
            fwd()
                .has_any(field::ct_state(), ct_state_bits::ESTABLISHED | ct_state_bits::RELATED)
                .accept(),
        );
        batch.add_rule(fwd().has_any(field::ct_status(), ct_status_bits::DNAT).accept());
        batch.add_rule(fwd().is(field::ct_original_ip_daddr(), ip("192.0.2.9")).jump("sub"));
        batch.add_rule(fwd().in_set(&[field::iifname()], "names").drop());
        batch.add_rule(fwd().not_in_set(&[field::iifname()], "names").goto("sub"));
        batch.add_rule(
            fwd()
                .is_not(field::oifname(), Value::IfName("br0".into()))
                .log("nwt: ")
                .reject_prohibited(),
        );
        batch.add_rule(fwd().name_starts_with(field::iifname(), "veth").set_mark(7));
        batch.add_rule(fwd().change_mark(!0x2000, 0x2000));
        batch.add_rule(fwd().set_ct_mark(9));
        let from = |address: &str| {
            fwd().in_net(field::ip6_saddr(), format!("{address}/128").parse().unwrap())
        };
        let to = "2001:db8::9".parse().unwrap();
        batch.add_rule(from("2001:db8::1").set_ip6(field::Ip6Address::Source, to));
        batch.add_rule(from("2001:db8::2").set_ip6(field::Ip6Address::Destination, to));
        batch.add_rule(
            fwd()
                .is(field::l4proto(), Value::TCP)
                .in_range(field::th_dport(), Value::Port(8000), Value::Port(8080))
                .accept(),
        );
        batch.add_rule(fwd().in_set(&[field::oifname()], "names").clamp_segment_size());
        batch.add_rule(fwd().is(field::ether_saddr(), MacAddr([2, 0, 0, 0, 0, 1])).accept());
        batch.insert_rule(fwd().is(field::ip_saddr(), ip("192.0.2.77")).drop());
        check(
            &batch,
            "ruleset",
            r#"
            table inet nwt {
            map p4 {
            type inet_proto . inet_service : ipv4_addr . inet_service
            }

            map p6 {
            type inet_proto . inet_service : ipv6_addr . inet_service
            }

            map vm {
            type ifname . ipv4_addr : verdict
            }

            set names {
            type ifname
            }

            chain sub {
            }

            chain pre {
            type nat hook prerouting priority -100; policy accept;
            fib daddr type 2 dnat ip to meta l4proto . th dport map @p4 comment "hostports"
            fib daddr type 2 dnat ip6 to meta l4proto . th dport map @p6
            tcp dport 80 redirect to :8080
            ip daddr 192.0.2.9 dnat ip to 192.0.2.1
            ip daddr 192.0.2.9 meta l4proto 17 dnat ip to 192.0.2.1:53
            }

            chain post {
            comment "words"
            type nat hook postrouting priority 100; policy accept;
            oifname . ip saddr vmap @vm
            ip saddr 192.0.2.0/24 ip daddr != 192.0.2.0/23 masquerade comment "kk"
            ip6 saddr 2001:db8::1 counter packets 0 bytes 0 masquerade fully-random
            meta mark & 0x00002000 == 0x00002000 snat ip to 192.0.2.1
            ip6 daddr ff00::/8 return
            }

            chain fwd {
            type filter hook forward priority -5; policy drop;
            ip saddr 192.0.2.77 drop
            ct state 0x2,0x4 accept
            ct status 0x20 accept
            ct original ip daddr 192.0.2.9 jump sub
            iifname @names drop
            iifname != @names goto sub
            oifname != "br0" log prefix "nwt: " reject with icmpx 3
            iifname "veth*" meta mark set 0x00000007
            meta mark set meta mark | 0x00002000
            ct mark set 0x00000009
            ip6 saddr 2001:db8::1 ip6 saddr set 2001:db8::9
            ip6 saddr 2001:db8::2 ip6 daddr set 2001:db8::9
            tcp dport 8000-8080 accept
            oifname @names tcp flags 0x2 / 0x2,0x4 tcp option maxseg size set rt mtu
            ether saddr 02:00:00:00:00:01 accept
            }
            }"#,
        );
        // The kernel returns every expression as it was written.
        let mut nft = NftSocket::open().unwrap();
        for chain in ["pre", "post", "fwd"] {
            let mut written: Vec<_> = batch
                .operations()
                .iter()
                .filter_map(|operation| match operation {
                    kernel::nft::Operation::AddRule { rule } if rule.chain == chain => Some(rule),
                    _ => None,
                })
                .collect();
            let inserted = batch.operations().iter().find_map(|operation| match operation {
                kernel::nft::Operation::InsertRule { rule } if rule.chain == chain => Some(rule),
                _ => None,
            });
            written.splice(0..0, inserted);
            let read = nft.rules(&table, chain).unwrap();
            assert_eq!(read.len(), written.len());
            for (read, written) in read.iter().zip(written) {
                assert_eq!(read.comment, written.comment);
                let without_flags = |expr: &kernel::nft::Expr| match expr.clone() {
                    // The kernel adds what the registers imply (NF_NAT_RANGE_*).
                    kernel::nft::Expr::Nat { kind, family, address, port, .. } => {
                        kernel::nft::Expr::Nat { kind, family, address, port, flags: 0 }
                    }
                    kernel::nft::Expr::Redirect { port, .. } => {
                        kernel::nft::Expr::Redirect { port, flags: 0 }
                    }
                    other => other,
                };
                let read: Vec<_> = read.exprs.iter().map(without_flags).collect();
                let written: Vec<_> = written.exprs.iter().map(without_flags).collect();
                assert_eq!(read, written);
            }
        }
    });
}

#[test]
fn a_bridge_table() {
    in_netns(|| {
        let table = TableRef::new(Family::Bridge, "nwt");
        let mut batch = Batch::new();
        batch.add_table(&table, None);
        batch.add_chain(NewChain::base(&table, "pre", Hook::filter(HookPoint::Prerouting, -300)));
        batch.add_set(NewSet::set(&table, "macs", [KeyType::IfName, KeyType::EtherAddr]));
        batch.add_set(NewSet::set(&table, "ips", [KeyType::IfName, KeyType::Ipv4Addr]));
        batch.add_set(NewSet::set(&table, "ports", [KeyType::IfName]));
        let rule = || NewRule::new(&table, "pre");
        let guarded = || rule().in_set(&[field::iifname()], "ports");
        batch.add_rule(
            guarded().not_in_set(&[field::iifname(), field::ether_saddr()], "macs").drop(),
        );
        batch.add_rule(guarded().not_in_set(&[field::iifname(), field::ip_saddr()], "ips").drop());
        batch.add_rule(rule().is(field::ip_daddr(), ip("192.0.2.1")).accept());
        check(
            &batch,
            "ruleset",
            r#"
            table bridge nwt {
            set macs {
            type ifname . ether_addr
            }

            set ips {
            type ifname . ipv4_addr
            }

            set ports {
            type ifname
            }

            chain pre {
            type filter hook prerouting priority -300; policy accept;
            iifname @ports iifname . ether saddr != @macs drop
            iifname @ports iifname . ip saddr != @ips drop
            ip daddr 192.0.2.1 accept
            }
            }"#,
        );
    });
}

#[test]
fn a_transaction_is_all_or_nothing_and_names_the_culprit() {
    in_netns(|| {
        let table = table();
        let mut batch = Batch::new();
        batch.add_table(&table, None);
        batch.add_chain(NewChain::regular(&table, "c"));
        batch.add_rule(NewRule::new(&table, "c").jump("missing"));
        batch.add_chain(NewChain::regular(&table, "d"));
        let mut nft = NftSocket::open().unwrap();
        let error = nft.commit(&batch).unwrap_err();
        assert_eq!(error.index, Some(2));
        assert!(error.is_not_found());
        assert!(
            error
                .to_string()
                .starts_with("add rule to inet nwt c: no such file or directory (ENOENT)"),
            "{error}"
        );
        assert_eq!(sh("nft list ruleset"), "");
        assert_eq!(nft.get_table(&table).unwrap(), None);
        // The socket still works afterwards.
        let mut good = Batch::new();
        good.add_table(&table, None);
        nft.commit(&good).unwrap();
        assert!(nft.get_table(&table).unwrap().is_some());
        nft.commit(&Batch::new()).unwrap();
    });
}

#[test]
fn a_generation_guards_against_others() {
    in_netns(|| {
        let mut nft = NftSocket::open().unwrap();
        let generation = nft.generation().unwrap();
        let mut batch = Batch::new();
        batch.add_table(&table(), None);
        batch.require_generation(generation);
        sh("nft add table inet theirs");
        let error = nft.commit(&batch).unwrap_err();
        assert!(error.is_changed(), "{error}");
        assert_eq!(nft.get_table(&table()).unwrap(), None);
        assert_ne!(nft.generation().unwrap(), generation);
        batch.require_generation(nft.generation().unwrap());
        nft.commit(&batch).unwrap();
        assert!(nft.get_table(&table()).unwrap().is_some());
    });
}

#[test]
fn thousands_of_elements_in_one_transaction() {
    in_netns(|| {
        let table = table();
        let owner = "o".repeat(kernel::nft::MAX_COMMENT);
        let element = |number: u32| {
            let address = Ipv4Addr::from(0x0a00_0000 + number);
            Element::new(Value::Ipv4(address)).comment(owner.clone())
        };
        let mut batch = Batch::new();
        batch.add_table(&table, None);
        batch.add_set(NewSet::set(&table, "s", [KeyType::Ipv4Addr]));
        batch.add_elements(&table, "s", (0..20_000).map(element));
        let mut nft = NftSocket::open().unwrap();
        nft.commit(&batch).unwrap();
        let found = nft.elements(&table, "s").unwrap();
        assert_eq!(found.len(), 20_000);
        assert!(found.contains(&element(19_999)));
        // Now each transaction has one operation and one acknowledgement.
        let mut batch = Batch::new();
        for number in 0..5_000 {
            batch.delete_elements(&table, "s", [element(number)]);
        }
        nft.commit(&batch).unwrap();
        assert_eq!(nft.elements(&table, "s").unwrap().len(), 15_000);
    });
}

#[test]
fn too_long_a_comment_is_refused_before_anything_happens() {
    in_netns(|| {
        let mut batch = Batch::new();
        batch.add_table(&table(), None);
        batch.add_chain(NewChain::regular(&table(), "c").comment("c".repeat(128)));
        let mut nft = NftSocket::open().unwrap();
        let error = nft.commit(&batch).unwrap_err();
        assert_eq!(error.index, Some(1));
        assert_eq!(
            error.to_string(),
            "add chain inet nwt c: a comment is too long or contains a NUL byte"
        );
        assert_eq!(nft.get_table(&table()).unwrap(), None);
    });
}

#[test]
fn without_privilege() {
    in_netns(|| {
        // The user namespace does not own this network namespace.
        // SAFETY: no descriptor table is unshared (UnshareFlags::FILES).
        let unshared =
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWUSER) };
        if unshared.is_err() {
            // A process with threads may not.
            rustix::thread::remove_capability_from_bounding_set(
                rustix::thread::CapabilitySet::NET_ADMIN,
            )
            .unwrap();
        }
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let mut batch = Batch::new();
        batch.add_table(&table(), None);
        let error = NftSocket::open().unwrap().commit(&batch).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::PERM));
        assert_eq!(error.to_string(), "commit to nftables: operation not permitted (EPERM)");
    });
}
