//! Many calls at once, and tables that vanish.

use std::thread;

use cni::AttachmentKey;
use firewall::{Firewall, Plan, masquerade, spoof};
use netwright_firewall as firewall;
use testkit::{Place, Snapshot, traffic};

use crate::support::{Node, key};

fn masqueraded(last: u8) -> Plan {
    masquerade::plan("n", "cni0", format!("10.1.0.{last}/24").parse().unwrap())
}

/// A node with an attachment whose rules are in both tables.
pub(crate) fn with_both_tables(name: &str) -> (Node, AttachmentKey, Plan) {
    let node = Node::new(name);
    let (key, mut plan) = (key("n", "c1"), masqueraded(2));
    plan.join(spoof::plan("veth1", &[[2, 0, 0, 0, 0, 1]]));
    node.add(&key, &plan);
    (node, key, plan)
}

/// The name of the only chain for masquerading.
fn masquerade_chain(node: &Node) -> String {
    let listed = node.lab.sh("nft list chains inet | grep -o 'masquerade-[0-9a-f]*'");
    listed.trim().to_owned()
}

#[test]
fn many_at_once_leave_nothing_behind() {
    testkit::require!("root");
    let node = Node::new("many");
    thread::scope(|scope| {
        for worker in 0..8_u8 {
            let node = &node;
            scope.spawn(move || {
                for round in 0..10_u8 {
                    let key = key("n", &format!("c{worker}-{round}"));
                    let mut plan = masqueraded(worker + 10);
                    plan.join(spoof::plan(&format!("veth{worker}"), &[[2, 0, 0, 0, 0, worker]]));
                    node.add(&key, &plan);
                    assert_eq!(node.check(&key, &plan), Vec::<String>::new());
                    node.remove(&key, &plan);
                }
            });
        }
    });
    assert_eq!(node.elements(), "");
}

/// Another program has replaced a rule of ours by its own, so the number of rules is the same.
#[test]
fn a_rule_that_was_replaced_is_told_and_mended() {
    testkit::require!("root");
    let (node, key, plan) = with_both_tables("replaced");
    let listed = || node.lab.sh("nft -s list ruleset");
    let before = listed();
    let masquerade = &masquerade_chain(&node);
    let dnat = "ct status dnat jump hostport_snat";
    for (family, chain, rules) in [
        ("inet", "postrouting", [dnat, "accept", "accept"].as_slice()),
        ("inet", masquerade, ["accept"; 3].as_slice()),
        ("bridge", "output", ["accept"; 2].as_slice()),
    ] {
        let table = format!("{family} netwright");
        let mut script = format!("flush chain {table} {chain}\n");
        for rule in rules {
            script += &format!("add rule {table} {chain} {rule}\n");
        }
        node.lab.sh(&format!("nft -f - <<'END'\n{script}END"));
        let told = format!("chain {chain} of table {table} has other rules");
        assert_eq!(node.check(&key, &plan), [told]);
        node.firewall(|firewall| firewall.mend(&plan)).unwrap();
        assert_eq!(node.check(&key, &plan), Vec::<String>::new());
        assert_eq!(listed(), before);
    }
}

/// A rule that another program changed still does what it did, but to other packets, or it writes
/// something else into them. What nft only writes anew is no difference.
#[test]
fn a_rule_that_matches_something_else_is_told_and_mended() {
    testkit::require!("root");
    let (node, key, plan) = with_both_tables("matches");
    let listed = || node.lab.sh("nft -s list ruleset");
    let before = listed();
    let masquerade = &masquerade_chain(&node);
    for (family, chain, from, to) in [
        ("inet", "raw", "saddr 127.0.0.0/8", "saddr 127.0.0.0/16"),
        ("inet", "prerouting", "!= \"lo\"", "!= \"l2\""),
        ("inet", "prerouting", "iifname !=", "iifname"),
        ("inet", "output", "type local", "type unicast"),
        ("inet", "input", "ct status snat", "ct status dnat"),
        ("inet", "forward", "oifname @policy_bridges", "oifname != @policy_bridges"),
        ("inet", masquerade, "daddr 10.1.0.0/24", "daddr 10.1.0.0/25"),
        ("inet", masquerade, "^[[:space:]]*masquerade", "ip saddr 192.0.2.1 masquerade"),
        ("inet", masquerade, "^[[:space:]]*masquerade", "masquerade random"),
        ("inet", masquerade, "^[[:space:]]*masquerade", "meta mark 1-5 masquerade"),
        ("inet", "hostports", "map @hostports4", "map @hostports4 random"),
        ("inet", "hostport_snat", "oifname . ip daddr @snat", "iifname . ip daddr @snat"),
        ("inet", "raw_output", "saddr set fd6e:6574", "saddr set fd6e:6575"),
        ("inet", "input", "daddr set ::1", "daddr set ::2"),
        ("bridge", "forward", "oifname @isolated_ports", "oifname != @isolated_ports"),
        ("bridge", "forward", "oifname @isolated_ports", "iifname @isolated_ports"),
        ("bridge", "prerouting", "ether saddr != @spoof", "ether daddr != @spoof"),
        ("bridge", "from_pod", "udp dport", "tcp dport"),
        ("bridge", "prerouting", "pkttype set multicast", "pkttype set broadcast"),
        ("inet", "netwright-pods", "saddr != 0.0.0.0", "saddr != 0.0.0.1"),
    ] {
        let table = format!("{family} netwright");
        let write = |from: &str, to: &str| {
            node.lab.sh(&format!(
                "(echo flush chain {table} {chain}; nft -s list chain {table} {chain} | \
                 sed 's#{from}#{to}#') > /run/changed && nft -f /run/changed"
            ));
        };
        write("^", "");
        assert_eq!(node.check(&key, &plan), Vec::<String>::new(), "{chain}");
        write(from, to);
        assert_ne!(listed(), before, "{from}");
        let told = format!("chain {chain} of table {table} has other rules");
        assert_eq!(node.check(&key, &plan), [told], "{from}");
        node.firewall(|firewall| firewall.mend(&plan)).unwrap();
        assert_eq!(node.check(&key, &plan), Vec::<String>::new(), "{from}");
        assert_eq!(listed(), before, "{from}");
    }
    node.lab.sh("nft list ruleset > /run/saved && nft flush ruleset && nft -f /run/saved");
    assert_eq!(node.check(&key, &plan), Vec::<String>::new());
}

/// All rules are there, and packets do not meet them, or meet more. A repair and an ADD put it
/// right.
#[test]
fn a_table_that_is_off_and_a_chain_elsewhere_are_told_and_mended() {
    testkit::require!("root");
    let (node, key, plan) = with_both_tables("dormant");
    let sorted = || {
        let text = node.lab.sh("nft -s list ruleset");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let before = sorted();
    let elsewhere = |chain: &str, from: &str, to: &str| {
        format!(
            "(echo delete chain inet netwright {chain}; nft -s list chain inet netwright {chain} | \
             sed 's#{from}#{to}#') > /run/changed && nft -f /run/changed"
        )
    };
    let hook = |chain: &str, table: &str| {
        format!("chain {chain} of table {table} is at another hook, or has another policy")
    };
    let dormant = |table: &str| format!("table {table} is dormant: it sees no packets");
    for (damage, told) in [
        ("nft 'add table inet netwright { flags dormant; }'".to_owned(), dormant("inet netwright")),
        (
            "nft 'add table bridge netwright { flags dormant; }'".to_owned(),
            dormant("bridge netwright"),
        ),
        (
            "nft 'add chain inet netwright forward { policy drop; }'".to_owned(),
            hook("forward", "inet netwright"),
        ),
        (elsewhere("raw", "priority raw", "priority 300"), hook("raw", "inet netwright")),
        (elsewhere("postrouting", "type nat.*", ""), hook("postrouting", "inet netwright")),
    ] {
        for by_add in [false, true] {
            node.lab.sh(&damage);
            assert_eq!(node.check(&key, &plan), std::slice::from_ref(&told), "{damage}");
            if by_add {
                node.add(&key, &plan);
            } else {
                node.firewall(|firewall| firewall.mend(&plan)).unwrap();
            }
            assert_eq!(node.check(&key, &plan), Vec::<String>::new(), "{damage}");
            assert_eq!(sorted(), before, "{damage}");
        }
    }
}

/// It sees packets as our own chains do. One without a hook sees none unless a rule leads to it,
/// and a later version may have one that this version does not know.
#[test]
fn a_chain_of_others_that_sees_packets_is_told_and_removed() {
    testkit::require!("root");
    let (node, key, plan) = with_both_tables("foreign");
    let listed = || node.lab.sh("nft -s list ruleset");
    let nft = |commands: &str| node.lab.sh(&format!("nft -f - <<'END'\n{commands}\nEND"));
    nft("add table inet other
         add chain inet other x { type filter hook forward priority 0; }
         add chain inet netwright idle
         add rule inet netwright idle drop
         add chain inet netwright netwright-later { type filter hook forward priority 0; }
         add rule inet netwright netwright-later counter");
    let before = listed();
    assert_eq!(node.check(&key, &plan), Vec::<String>::new());
    for (damage, told) in [
        (
            "add chain inet netwright x { type filter hook forward priority 5; policy drop; }",
            ["foreign: chain x of table inet netwright"].as_slice(),
        ),
        (
            "add chain inet netwright x { type filter hook input priority 0; }
             add rule inet netwright x tcp dport { 22, 80 } jump idle",
            ["foreign: chain x of table inet netwright"].as_slice(),
        ),
        (
            "add chain bridge netwright x { type filter hook forward priority 0; }
             add rule bridge netwright x drop",
            ["foreign: chain x of table bridge netwright"].as_slice(),
        ),
        // It is found also where chains of ours have lost their rules.
        (
            "flush chain inet netwright forward
             add chain inet netwright x { type filter hook forward priority 5; }",
            [
                "chain forward of table inet netwright has other rules",
                "foreign: chain x of table inet netwright",
            ]
            .as_slice(),
        ),
    ] {
        nft(damage);
        assert_eq!(node.check(&key, &plan), told, "{damage}");
        node.firewall(|firewall| firewall.mend(&plan)).unwrap();
        assert_eq!(node.check(&key, &plan), Vec::<String>::new(), "{damage}");
        assert_eq!(listed(), before, "{damage}");
    }
}

/// netavark#1258, CVE-2025-54388: a reload of another program's firewall removes our tables with
/// its own.
#[test]
fn tables_that_vanish_are_told_and_made_again() {
    testkit::require!("root");
    let node = Node::new("flush");
    node.add(&key("n", "c1"), &masqueraded(2));
    node.lab.sh("nft flush ruleset");
    assert!(
        node.check(&key("n", "c1"), &masqueraded(2))[0].contains("missing: table inet netwright")
    );
    node.remove(&key("n", "c1"), &masqueraded(2));
    for damage in [
        "nft flush chain inet netwright postrouting",
        "nft delete chain inet netwright forward",
        "nft add rule inet netwright prerouting counter",
        "nft delete table inet netwright",
    ] {
        node.add(&key("n", "c1"), &masqueraded(2));
        assert_eq!(node.check(&key("n", "c1"), &masqueraded(2)), Vec::<String>::new());
        node.lab.sh(damage);
        assert_ne!(node.check(&key("n", "c1"), &masqueraded(2)), Vec::<String>::new(), "{damage}");
    }
    // The repair keeps elements that exist already.
    node.add(&key("n", "c1"), &masqueraded(2));
    node.lab.sh("nft flush chain inet netwright postrouting");
    node.add(&key("n", "c2"), &masqueraded(3));
    assert_eq!(node.check(&key("n", "c1"), &masqueraded(2)), Vec::<String>::new());
}

#[test]
fn remove_all_takes_everything_of_ours_and_nothing_else() {
    testkit::require!("root");
    let node = Node::new("removeall");
    node.lab.sh("nft add table inet mine; nft add table bridge mine");
    let before = Snapshot::take(&node.lab);
    let mut plan = masqueraded(2);
    plan.join(spoof::plan("vc1", &[[2, 0, 0, 0, 0, 1]]));
    node.add(&key("n", "c1"), &plan);
    node.firewall(Firewall::remove_all).unwrap();
    before.assert_same(&Snapshot::take(&node.lab));
    node.firewall(Firewall::remove_all).unwrap();
}

#[test]
fn a_forged_hardware_address_goes_nowhere() {
    testkit::require!("root");
    let node = Node::new("spoof");
    let mac = node.c1.sh("ip -br link show eth0 | awk '{print $3}'");
    let bytes: Vec<u8> =
        mac.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let plan = spoof::plan("vc1", &[bytes.try_into().unwrap()]);
    node.add(&key("n", "c1"), &plan);
    for br_netfilter in [false, true] {
        node.br_netfilter(br_netfilter);
        traffic::assert_pings(&node.c1, "10.1.0.3");
        node.c1.sh("ip link set eth0 address 02:00:00:00:00:99");
        traffic::assert_no_ping(&node.c1, "10.1.0.3");
        traffic::assert_no_ping(&node.c1, "10.1.0.1");
        node.c1.sh(&format!("ip link set eth0 address {mac}"));
        traffic::assert_pings(&node.c1, "10.1.0.1");
    }
    // The repair ignores other elements.
    node.c2.sh("ip link set eth0 address 02:00:00:00:00:98");
    traffic::assert_pings(&node.c2, "10.1.0.1");
    node.remove(&key("n", "c1"), &plan);
    node.c1.sh("ip link set eth0 address 02:00:00:00:00:99");
    traffic::assert_pings(&node.c1, "10.1.0.3");
}
