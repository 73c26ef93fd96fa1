//! Queries, removals, and foreign objects.

use std::net::Ipv4Addr;

use kernel::Errno;
use kernel::nft::{
    Batch, ChainType, Element, ElementData, Expr, Family, Hook, HookPoint, Key, KeyType, MapData,
    NewChain, NewRule, NewSet, NftSocket, Policy, TableRef, Value, Verdict, field,
};

use crate::guard::{fresh_netns, in_netns, json, sh, try_sh};

fn table() -> TableRef {
    TableRef::new(Family::Inet, "nwt")
}

fn address(last: u8) -> Value {
    Value::Ipv4(Ipv4Addr::new(192, 0, 2, last))
}

/// A table with a map `m` from address to verdict, a set `s` of addresses and chains `c` and
/// `base`.
fn prepared() -> NftSocket {
    let table = table();
    let mut batch = Batch::new();
    batch.add_table(&table, Some("a table"));
    batch.add_chain(NewChain::regular(&table, "c").comment("a chain"));
    batch.add_chain(NewChain::base(&table, "base", Hook::filter(HookPoint::Forward, 10)));
    batch.add_set(NewSet::verdict_map(&table, "m", [KeyType::Ipv4Addr]).comment("a map"));
    batch.add_set(NewSet::set(&table, "s", [KeyType::IfName, KeyType::Ipv4Addr]));
    let mut nft = NftSocket::open().unwrap();
    nft.commit(&batch).unwrap();
    nft
}

#[test]
fn questions_for_one() {
    in_netns(|| {
        let mut nft = prepared();
        let table = table();
        let found = nft.get_table(&table).unwrap().unwrap();
        assert_eq!(
            (found.table.clone(), found.comment.as_deref()),
            (table.clone(), Some("a table"))
        );
        assert_eq!(found.used, 4);
        let chain = nft.get_chain(&table, "c").unwrap().unwrap();
        assert_eq!((chain.hook.as_ref(), chain.comment.as_deref()), (None, Some("a chain")));
        let base = nft.get_chain(&table, "base").unwrap().unwrap();
        let hook = base.hook.unwrap();
        assert_eq!(
            (hook.point, hook.priority, hook.kind),
            (HookPoint::Forward, 10, ChainType::Filter)
        );
        assert_eq!(hook.policy, Some(Policy::Accept));
        let both = nft.get_chains(&table, ["base", "nothing", "c"]).unwrap();
        let names: Vec<&str> = both.iter().map(|chain| chain.name.as_str()).collect();
        assert_eq!(names, ["base", "c"]);
        assert_eq!(both[1], chain);
        assert_eq!(nft.get_chains(&table, []).unwrap(), []);
        let map = nft.get_set(&table, "m").unwrap().unwrap();
        assert_eq!(map.key, Some(vec![KeyType::Ipv4Addr]));
        assert_eq!((map.data, map.comment.as_deref()), (Some(MapData::Verdict), Some("a map")));
        let set = nft.get_set(&table, "s").unwrap().unwrap();
        assert_eq!(set.key, Some(vec![KeyType::IfName, KeyType::Ipv4Addr]));
        assert_eq!((set.key_len, set.data), (20, None));
        assert_eq!(nft.sets(&table).unwrap().len(), 2);
        assert_eq!(nft.chains(Some(Family::Inet)).unwrap().len(), 2);
        assert_eq!(nft.tables(None).unwrap().len(), 1);

        let nothing = TableRef::new(Family::Ip, "nwt");
        assert_eq!(nft.get_table(&nothing).unwrap(), None);
        assert_eq!(nft.get_chain(&nothing, "c").unwrap(), None);
        assert_eq!(nft.get_chains(&nothing, ["c", "base"]).unwrap(), []);
        assert_eq!(nft.get_chain(&table, "nothing").unwrap(), None);
        // The kernel takes names of up to 255 bytes, and refuses to look longer ones up.
        let long = "x".repeat(256);
        assert_eq!(nft.get_chain(&table, &long).unwrap(), None);
        assert_eq!(nft.get_chains(&table, ["nothing", &long]).unwrap(), []);
        assert_eq!(nft.get_set(&table, &long).unwrap(), None);
        assert_eq!(nft.get_table(&TableRef::new(Family::Inet, &long)).unwrap(), None);
        assert_eq!(nft.rules(&table, &long).unwrap(), []);
        assert_eq!(nft.elements(&table, &long).unwrap(), []);
        assert_eq!(nft.get_set(&table, "nothing").unwrap(), None);
        assert_eq!(nft.get_element(&table, "nothing", &address(1).into()).unwrap(), None);
        assert_eq!(nft.get_element(&nothing, "m", &address(1).into()).unwrap(), None);
        assert_eq!(nft.get_element(&table, "m", &address(1).into()).unwrap(), None);
        assert_eq!(nft.elements(&table, "nothing").unwrap(), []);
        assert_eq!(nft.rules(&table, "nothing").unwrap(), []);
        assert_eq!(nft.rules(&nothing, "c").unwrap(), []);
        assert_eq!(nft.sets(&nothing).unwrap(), []);
        assert_eq!(nft.chains(Some(Family::Ip)).unwrap(), []);
    });
}

#[test]
fn a_dormant_table_is_woken() {
    in_netns(|| {
        let mut nft = prepared();
        let is_dormant =
            |nft: &mut NftSocket| nft.get_table(&table()).unwrap().unwrap().is_dormant();
        assert!(!is_dormant(&mut nft));
        let mut wake = Batch::new();
        wake.wake_table(&table());
        for _ in 0..2 {
            sh("nft 'add table inet nwt { flags dormant; }'");
            assert!(is_dormant(&mut nft));
            nft.commit(&wake).unwrap();
            assert!(!is_dormant(&mut nft));
        }
        nft.commit(&wake).unwrap();
        assert_eq!(nft.chains(Some(Family::Inet)).unwrap().len(), 2);
    });
}

#[test]
fn elements_come_and_go() {
    in_netns(|| {
        let mut nft = prepared();
        let table = table();
        let element = Element::verdict(address(1), Verdict::Jump("c".into())).comment("an owner");
        let other = Element::verdict(address(2), Verdict::Accept);
        let mut batch = Batch::new();
        batch.add_elements(&table, "m", [element.clone(), other.clone()]);
        nft.commit(&batch).unwrap();
        nft.commit(&batch).unwrap();
        assert_eq!(nft.get_element(&table, "m", &element.key).unwrap(), Some(element.clone()));
        let mut all = nft.elements(&table, "m").unwrap();
        all.sort_by_key(|element| element.key.bytes().to_vec());
        assert_eq!(all, [element.clone(), other.clone()]);

        let mut again = Batch::new();
        again.create_elements(&table, "m", [element.clone()]);
        assert!(nft.commit(&again).unwrap_err().is_exists());
        let mut differently = Batch::new();
        differently.add_elements(&table, "m", [Element::verdict(address(1), Verdict::Drop)]);
        let error = nft.commit(&differently).unwrap_err();
        assert!(matches!(error.errno(), Some(Errno::BUSY | Errno::EXIST)), "{error}");

        let mut delete = Batch::new();
        delete.delete_elements(&table, "m", [Element::new(element.key.clone())]);
        nft.commit(&delete).unwrap();
        assert!(nft.commit(&delete).unwrap_err().is_not_found());
        assert_eq!(nft.elements(&table, "m").unwrap(), [other]);
        let mut flush = Batch::new();
        flush.flush_set(&table, "m");
        nft.commit(&flush).unwrap();
        assert_eq!(nft.elements(&table, "m").unwrap(), []);
        let mut gone = Batch::new();
        gone.delete_set(&table, "m");
        nft.commit(&gone).unwrap();
        assert_eq!(nft.get_set(&table, "m").unwrap(), None);
    });
}

#[test]
fn destroying_what_is_not_there_is_fine() {
    in_netns(|| {
        let mut nft = prepared();
        let mut destroy = Batch::new();
        destroy.destroy_elements(&table(), "m", [Element::new(address(1))]);
        match nft.commit(&destroy) {
            Err(error) if error.errno() == Some(Errno::INVAL) => {
                crate::guard::skip(
                    "destroying_what_is_not_there_is_fine",
                    "the kernel is older than 6.3",
                );
            }
            result => result.unwrap(),
        }
    });
}

#[test]
fn what_nft_made_is_understood() {
    in_netns(|| {
        sh(r#"nft -f - <<'END'
            table inet nwt {
                map p { type inet_proto . inet_service : ipv4_addr . inet_service
                    elements = { tcp . 80 comment "x" : 192.0.2.1 . 8080 } }
                chain c { ip saddr 192.0.2.1 counter accept comment "words"
                    tcp dport 22 jump d
                    ip daddr { 192.0.2.2, 192.0.2.3 } limit rate 5 kbytes/second drop
                }
                chain d { }
            }
END"#);
        let mut nft = NftSocket::open().unwrap();
        let table = table();
        let key = Key::of([Value::TCP, Value::Port(80)]);
        let element = nft.get_element(&table, "p", &key).unwrap().unwrap();
        assert_eq!(element.comment.as_deref(), Some("x"));
        let Some(ElementData::Value(data)) = element.data else { panic!("{element:?}") };
        let types = [KeyType::Ipv4Addr, KeyType::InetService];
        assert_eq!(data.values(&types), Some(vec![address(1), Value::Port(8080)]));
        let rules = nft.rules(&table, "c").unwrap();
        assert_eq!(rules[0].comment.as_deref(), Some("words"));
        let ours = NewRule::new(&table, "c").is(field::ip_saddr(), address(1)).counter().accept();
        assert_eq!(rules[0].exprs, ours.exprs, "ours is what nft writes");
        assert_eq!(rules[1].targets().collect::<Vec<_>>(), ["d"]);
        assert!(
            rules[2]
                .exprs
                .iter()
                .any(|expr| matches!(expr, Expr::Other { name, .. } if name == "limit"))
        );
    });
}

#[test]
fn rules_and_chains_go() {
    in_netns(|| {
        let mut nft = prepared();
        let table = table();
        let mut batch = Batch::new();
        batch.add_rule(NewRule::new(&table, "base").jump("c").comment("one"));
        batch.add_rule(NewRule::new(&table, "base").accept().comment("two"));
        batch.add_rule(NewRule::new(&table, "c").drop());
        nft.commit(&batch).unwrap();
        let rules = nft.rules(&table, "base").unwrap();
        let comments: Vec<_> = rules.iter().map(|rule| rule.comment.as_deref().unwrap()).collect();
        assert_eq!(comments, ["one", "two"]);
        assert_eq!(nft.get_chain(&table, "c").unwrap().unwrap().used, 2, "a rule and a jump");

        let mut used = Batch::new();
        used.delete_chain(&table, "c");
        assert_eq!(nft.commit(&used).unwrap_err().errno(), Some(Errno::BUSY));

        let mut delete = Batch::new();
        delete.delete_rule(&table, "base", rules[0].handle);
        delete.flush_chain(&table, "c");
        delete.delete_chain(&table, "c");
        nft.commit(&delete).unwrap();
        assert_eq!(nft.get_chain(&table, "c").unwrap(), None);
        assert_eq!(nft.rules(&table, "base").unwrap().len(), 1);
        assert!(nft.commit(&delete).unwrap_err().is_not_found());

        let mut all = Batch::new();
        all.delete_table(&table);
        nft.commit(&all).unwrap();
        assert_eq!(sh("nft list ruleset"), "");
    });
}

#[test]
fn what_iptables_made_is_found_and_removed() {
    in_netns(|| {
        sh("iptables-nft -t nat -N CNI-0123");
        sh(
            "iptables-nft -t nat -A CNI-0123 -d 192.0.2.0/24 -j ACCEPT -m comment --comment 'name: \"n\" id: \"c\"'",
        );
        sh(
            "iptables-nft -t nat -A CNI-0123 ! -d 224.0.0.0/4 -j MASQUERADE -m comment --comment 'masq'",
        );
        sh(
            "iptables-nft -t nat -A POSTROUTING -s 192.0.2.5/32 -j CNI-0123 -m comment --comment 'jump'",
        );
        sh("iptables-nft -t nat -A POSTROUTING -p tcp --dport 80 -j ACCEPT");
        let mut nft = NftSocket::open().unwrap();
        let nat = TableRef::new(Family::Ip, "nat");
        let rules = nft.rules(&nat, "POSTROUTING").unwrap();
        let jumps: Vec<_> =
            rules.iter().filter(|rule| rule.targets().any(|chain| chain == "CNI-0123")).collect();
        assert_eq!(jumps.len(), 1);
        assert_eq!(jumps[0].iptables_comment().as_deref(), Some("jump"));
        let inner = nft.rules(&nat, "CNI-0123").unwrap();
        assert_eq!(inner[0].iptables_comment().as_deref(), Some("name: \"n\" id: \"c\""));
        let masquerades = |expr: &Expr| {
            matches!(expr, Expr::XtTarget { name, .. } if name == "MASQUERADE")
                || matches!(expr, Expr::Masquerade { .. })
        };
        assert!(inner[1].exprs.iter().any(masquerades), "{:?}", inner[1]);
        let mut batch = Batch::new();
        batch.delete_rule(&nat, "POSTROUTING", jumps[0].handle);
        batch.flush_chain(&nat, "CNI-0123");
        batch.delete_chain(&nat, "CNI-0123");
        nft.commit(&batch).unwrap();
        let left = sh("iptables-nft -t nat -S");
        assert!(!left.contains("CNI-0123") && left.contains("--dport 80"), "{left}");
    });
}

#[test]
fn who_else_sees_the_packets() {
    in_netns(|| {
        let mut nft = prepared();
        sh("iptables-nft -A FORWARD -j ACCEPT");
        sh(
            "nft add table ip6 six; nft 'add chain ip6 six f { type filter hook forward priority 5; }'",
        );
        let names = |hooks: &[kernel::nft::HookInfo]| {
            let chains = hooks.iter().filter_map(|hook| {
                let (table, chain) = hook.chain.as_ref()?;
                Some(format!("{} {table} {chain} {}", hook.family, hook.priority))
            });
            chains.collect::<Vec<_>>()
        };
        let found = nft.hooks(Family::Inet, HookPoint::Forward).unwrap();
        assert_eq!(
            names(&found),
            [
                "ip ip filter FORWARD 0",
                "ip6 ip6 six f 5",
                "ip inet nwt base 10",
                "ip6 inet nwt base 10",
            ]
        );
        let found = nft.hooks(Family::Ip, HookPoint::Forward).unwrap();
        assert_eq!(names(&found), ["ip ip filter FORWARD 0", "ip inet nwt base 10"]);
        let name = "who_else_sees_the_packets/legacy";
        let legacy = try_sh("iptables-legacy -A FORWARD -j ACCEPT");
        if found.iter().all(|hook| hook.function.is_none()) {
            crate::guard::skip(name, "this kernel has no CONFIG_NETFILTER_NETLINK_HOOK");
        } else if legacy.0 == Some(0) {
            let found = nft.hooks(Family::Ip, HookPoint::Forward).unwrap();
            assert_eq!(found.len(), 3, "{found:?}");
            assert!(found.iter().any(|hook| hook.chain.is_none()), "{found:?}");
        } else {
            crate::guard::skip(name, legacy.2.trim());
        }
        assert_eq!(nft.hooks(Family::Bridge, HookPoint::Forward).unwrap(), []);
    });
}

#[test]
fn a_table_elsewhere() {
    in_netns(|| {
        let other = fresh_netns();
        let mut nft = NftSocket::open_in(&other).unwrap();
        let mut batch = Batch::new();
        batch.add_table(&table(), None);
        nft.commit(&batch).unwrap();
        assert_eq!(sh("nft list ruleset"), "");
        let seen = kernel::netns::within(&other, || json("nft -j list tables")).unwrap();
        assert_eq!(seen["nftables"][1]["table"]["name"], "nwt");
    });
}
