//! `sbr`, row by row of the feature table.

use std::fs;

use serde_json::{Value, json};
use testkit::{Container, Place, traffic};

use crate::support::matrix::{self, Family, Subject, attached};
use crate::support::{Node, Picture, Run};

const SUBJECT: Subject = Subject {
    plugin: "sbr",
    host: |_, _| {},
    config: |node, c1, family| json!({ "prevResult": attached(node, c1, family) }),
    holds: |_, c1, family| {
        let of = |ip: &str| rules(c1, ip).iter().any(|rule| rule.contains("lookup 10"));
        (!family.has_v4() || of("-4")) && (!family.has_v6() || of("-6"))
    },
    damage: |_, c1, family| {
        let ip = if family.has_v4() { "ip" } else { "ip -6" };
        c1.sh(&format!("{ip} route del default table 100"));
    },
    unready: None,
};
matrix::tests!(SUBJECT, modules: full);

/// The rules that the kernel did not make.
fn rules(c1: &Container, family: &str) -> Vec<String> {
    let text = c1.sh(&format!("ip {family} rule show"));
    let own = |line: &&str| {
        !line.ends_with("local") && !line.ends_with("main") && !line.ends_with("default")
    };
    let lines = text.lines().map(str::trim_end).filter(own);
    lines.map(|line| line.split_once('\t').unwrap().1.to_owned()).collect()
}

fn routes(c1: &Container, family: &str, table: &str) -> Vec<String> {
    let text = c1.sh(&format!("ip {family} route show table {table} 2>/dev/null || true"));
    let own = |line: &&str| !line.starts_with("multicast") && !line.starts_with("anycast");
    text.lines().map(str::trim).filter(own).map(str::to_owned).collect()
}

fn run<'n>(node: &'n Node, verb: &str, to: &Container, prev: &Value, keys: Value) -> Run<'n> {
    node.run("sbr", verb).to(to).prev(prev).config(keys)
}

fn host(name: &str, family: Family) -> (Node, Container, Value) {
    let node = Node::new(name);
    let c1 = node.container("c1");
    let prev = attached(&node, &c1, family);
    (node, c1, prev)
}

/// Row: sbr | rules/tables.
#[test]
fn every_address_has_a_rule_and_a_table_and_main_has_nothing() {
    testkit::require!("root");
    let (node, c1, prev) = host("sbr-move", Family::Dual);
    c1.sh(
        "ip route add 10.7.0.0/16 via 10.1.0.9 metric 5 mtu 1400 && ip route add 10.8.0.0/16 dev eth0 && \
         ip -6 route add fd00:7::/48 via fe80::9 dev eth0 && \
         ip -6 addr add fe80::2/64 dev eth0 nodad && ip link set lo up && ip route add 203.0.113.0/24 dev lo",
    );
    let result = run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    assert_eq!(result, prev);
    assert_eq!(rules(&c1, "-4"), ["from 10.1.0.3 lookup 100"]);
    assert_eq!(rules(&c1, "-6"), ["from fd00:1::3 lookup 101"]);
    assert_eq!(
        routes(&c1, "-4", "100"),
        [
            "default via 10.1.0.1 dev eth0",
            "10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.3",
            "10.7.0.0/16 via 10.1.0.9 dev eth0 metric 5 mtu 1400",
            "10.8.0.0/16 dev eth0 scope link",
        ]
    );
    assert_eq!(
        routes(&c1, "-6", "101"),
        [
            "fd00:1::/64 dev eth0 proto kernel metric 256 pref medium",
            "fd00:7::/48 via fe80::9 dev eth0 metric 1024 pref medium",
            "fe80::/64 dev eth0 proto kernel metric 256 pref medium",
            "default via fd00:1::1 dev eth0 metric 1024 pref medium",
        ]
    );
    // The reference puts routes of each family into the other's table, and takes the link-local
    // prefix from main.
    assert_eq!(routes(&c1, "-4", "101"), [] as [String; 0]);
    assert_eq!(routes(&c1, "-6", "100"), [] as [String; 0]);
    assert_eq!(routes(&c1, "-4", "main"), ["203.0.113.0/24 dev lo scope link"]);
    assert_eq!(
        routes(&c1, "-6", "main"),
        ["fe80::/64 dev eth0 proto kernel metric 256 pref medium"]
    );
    run(&node, "CHECK", &c1, &prev, json!({})).call().silent();
    run(&node, "DEL", &c1, &prev, json!({})).call().silent();
    for family in ["-4", "-6"] {
        assert_eq!(rules(&c1, family), [] as [String; 0]);
        for table in ["100", "101"] {
            assert_eq!(routes(&c1, family, table), [] as [String; 0], "{family} {table}");
        }
    }
}

/// Packets from an address leave by its interface, though another has the default route.
#[test]
fn packets_leave_by_the_interface_whose_address_they_carry() {
    testkit::require!("root");
    let (node, c1, prev) = host("sbr-real", Family::Dual);
    // A second network has the same far address behind it: the answering server shows which link
    // the packet took.
    node.sh(
        "ip link add vb type veth peer name net1 netns c1 && ip addr add 10.2.0.1/24 dev vb && \
         ip addr add fd00:2::1/64 dev vb nodad && ip link set vb up && \
         ip link add far type bridge && ip addr add 198.51.100.9/32 dev far && \
         ip addr add 2001:db8:9::9/128 dev far nodad && ip link set far up",
    );
    c1.sh(
        "ip addr add 10.2.0.2/24 dev net1 && ip addr add fd00:2::2/64 dev net1 nodad && ip link set net1 up",
    );
    let mut second = prev.clone();
    second["interfaces"] = json!([{ "name": "vb" }, { "name": "net1", "sandbox": c1.netns() }]);
    second["ips"] = json!([
        { "interface": 1, "address": "10.2.0.2/24", "gateway": "10.2.0.1" },
        { "interface": 1, "address": "fd00:2::2/64", "gateway": "fd00:2::1" },
    ]);
    let way = |to: &str, from: &str| c1.sh(&format!("ip route get {to} from {from}"));
    assert!(way("198.51.100.9", "10.2.0.2").contains("dev eth0"));
    run(&node, "ADD", &c1, &second, json!({})).ifname("net1").call().ok();
    for (to, own, other) in
        [("198.51.100.9", "10.2.0.2", "10.1.0.3"), ("2001:db8:9::9", "fd00:2::2", "fd00:1::3")]
    {
        assert!(way(to, own).contains("dev net1"), "{}", way(to, own));
        assert!(way(to, other).contains("dev eth0"), "{}", way(to, other));
        c1.sh(&format!("ping -c 1 -W 5 -I {own} {to} >&2"));
        c1.sh(&format!("ping -c 1 -W 5 -I {other} {to} >&2"));
    }
    traffic::assert_pings(&c1, "10.1.0.1");
    run(&node, "CHECK", &c1, &second, json!({})).ifname("net1").call().silent();
    // A third attachment gets tables of its own; DEL of one leaves the other's.
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    assert_eq!(rules(&c1, "-4").len(), 2);
    run(&node, "DEL", &c1, &second, json!({})).ifname("net1").call().silent();
    assert_eq!(rules(&c1, "-4"), ["from 10.1.0.3 lookup 102"]);
    run(&node, "CHECK", &c1, &prev, json!({})).call().silent();
    c1.sh("ping -c 1 -W 5 -I 10.1.0.3 198.51.100.9 >&2");
}

/// Row: sbr | table key.
#[test]
fn a_table_that_is_given_gets_rules_only() {
    testkit::require!("root");
    let (node, c1, prev) = host("sbr-table", Family::Dual);
    c1.sh("ip route add 10.7.0.0/16 dev eth0 table 7");
    let before = Picture::of(&c1);
    let keys = || json!({ "table": 7, "gateways": ["nonsense"] });
    for _ in 0..2 {
        run(&node, "ADD", &c1, &prev, keys()).call().ok();
        assert_eq!(rules(&c1, "-4"), ["from 10.1.0.3 lookup 7"]);
        assert_eq!(rules(&c1, "-6"), ["from fd00:1::3 lookup 7"]);
    }
    before.assert_same(&Picture::of(&c1));
    run(&node, "CHECK", &c1, &prev, keys()).call().silent();
    c1.sh("ip rule add from 10.1.0.3 lookup 8; ip rule add from 10.9.9.9 lookup 7");
    run(&node, "DEL", &c1, &prev, keys()).call().silent();
    // Foreign rules stay, and the table belongs to them.
    let mut left = rules(&c1, "-4");
    left.sort();
    assert_eq!(left, ["from 10.1.0.3 lookup 8", "from 10.9.9.9 lookup 7"]);
    assert_eq!(routes(&c1, "-4", "7"), ["10.7.0.0/16 dev eth0 scope link"]);
    assert_eq!(rules(&c1, "-6"), [] as [String; 0]);
    let error = run(&node, "CHECK", &c1, &prev, keys()).call().error();
    assert!(error.msg.contains("no rule that sends packets from 10.1.0.3 to table 7"), "{error:?}");
}

/// Row: sbr | gateways.
#[test]
fn gateways_that_are_given_take_the_place_of_those_in_the_result() {
    testkit::require!("root");
    let (node, c1, prev) = host("sbr-gw", Family::Dual);
    let keys = || json!({ "gateways": ["10.1.0.254", "fd00:1::fe"] });
    run(&node, "ADD", &c1, &prev, keys()).call().ok();
    let defaults = |family: &str, table: &str| {
        let all = routes(&c1, family, table);
        all.into_iter().filter(|route| route.starts_with("default")).collect::<Vec<_>>()
    };
    assert_eq!(defaults("-4", "100"), ["default via 10.1.0.254 dev eth0"]);
    assert_eq!(defaults("-6", "101"), ["default via fd00:1::fe dev eth0 metric 1024 pref medium"]);
    assert_eq!(defaults("-4", "main"), [] as [String; 0]);
    run(&node, "CHECK", &c1, &prev, keys()).call().silent();
    let error =
        run(&node, "CHECK", &c1, &prev, json!({ "gateways": ["10.1.0.253"] })).call().error();
    assert!(error.msg.contains("no default route via 10.1.0.253"), "{error:?}");
    for (gateways, words) in [
        (
            json!(["10.1.0.1", "10.1.0.2"]),
            "gateways list contains multiple IPv4 addresses: 10.1.0.1 and 10.1.0.2",
        ),
        (
            json!(["10.1.0.1", "fd00::1", "fd00::2"]),
            "gateways list cannot contain more than 2 entries",
        ),
        (json!(["x"]), "invalid static gateway IP address: x"),
    ] {
        run(&node, "ADD", &c1, &prev, json!({ "gateways": gateways })).call().fails(7, words);
    }
}

/// Row: sbr | addSourceHints.
#[test]
fn hints_keep_the_subnets_in_main_and_say_what_to_send_from() {
    testkit::require!("root");
    let (node, c1, prev) = host("sbr-hint", Family::Dual);
    c1.sh("ip route add 10.7.0.0/16 via 10.1.0.9");
    let keys = || json!({ "addSourceHints": true });
    for _ in 0..2 {
        run(&node, "ADD", &c1, &prev, keys()).call().ok();
        assert_eq!(
            routes(&c1, "-4", "main"),
            ["10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.3"]
        );
        let main = routes(&c1, "-6", "main");
        assert_eq!(main.len(), 1, "{main:?}");
        assert!(
            main[0].starts_with("fd00:1::/64 dev eth0") && main[0].contains("src fd00:1::3"),
            "{main:?}"
        );
        assert_eq!(routes(&c1, "-4", "100").len(), 3);
    }
    run(&node, "CHECK", &c1, &prev, keys()).call().silent();
    c1.sh("ip route del 10.1.0.0/24 dev eth0");
    run(&node, "CHECK", &c1, &prev, keys()).call().fails(104, "says to send from 10.1.0.3");
}

/// The reference's second ADD takes the next table and then fails.
#[test]
fn add_twice_is_as_once() {
    testkit::require!("root");
    let (node, c1, prev) = host("sbr-twice", Family::Dual);
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    let once = (Picture::of(&c1), rules(&c1, "-4"), rules(&c1, "-6"));
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    // Without a record too, the rule shows which table is ours.
    fs::remove_dir_all(node.roots.run.join("owners")).unwrap();
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    once.0.assert_same(&Picture::of(&c1));
    assert_eq!((rules(&c1, "-4"), rules(&c1, "-6")), (once.1, once.2));
}

/// Two addresses in one subnet, one in another, and a gateway that is in none of them.
#[test]
fn several_addresses_have_a_table_each() {
    testkit::require!("root");
    let (node, c1, mut prev) = host("sbr-many", Family::V4);
    c1.sh("ip addr add 10.1.0.77/24 dev eth0 && ip addr add 10.3.0.5/24 dev eth0 && \
         ip route add 10.9.0.0/16 via 172.31.0.1 dev eth0 onlink");
    prev["ips"] = json!([
        { "interface": 2, "address": "10.1.0.3/24", "gateway": "10.1.0.1" },
        { "interface": 2, "address": "10.1.0.77/24" },
        { "address": "10.3.0.5/24", "gateway": "10.3.0.1" },
        // An address of another interface, and one of the host's interface with the same name.
        { "interface": 0, "address": "10.4.0.5/24", "gateway": "10.4.0.1" },
    ]);
    // The plugin does not choose tables that foreign rules or routes use.
    c1.sh("ip rule add from 10.99.0.0/16 lookup 100 && ip route add 10.98.0.0/16 dev lo table 101");
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    let mut made = rules(&c1, "-4");
    made.sort();
    assert_eq!(
        made,
        [
            "from 10.1.0.3 lookup 102",
            "from 10.1.0.77 lookup 103",
            "from 10.3.0.5 lookup 104",
            "from 10.99.0.0/16 lookup 100",
        ]
    );
    let first = routes(&c1, "-4", "102");
    assert!(first.contains(&"10.9.0.0/16 via 172.31.0.1 dev eth0 onlink".to_owned()), "{first:?}");
    assert!(first.contains(&"default via 10.1.0.1 dev eth0".to_owned()), "{first:?}");
    let second = routes(&c1, "-4", "103");
    assert!(second.contains(&"default via 10.1.0.1 dev eth0".to_owned()), "{second:?}");
    assert!(second.iter().any(|route| route.starts_with("10.1.0.0/24")), "{second:?}");
    let third = routes(&c1, "-4", "104");
    assert!(third.contains(&"default via 10.3.0.1 dev eth0".to_owned()), "{third:?}");
    assert_eq!(routes(&c1, "-4", "main"), [] as [String; 0]);
    run(&node, "CHECK", &c1, &prev, json!({})).call().silent();
    run(&node, "DEL", &c1, &prev, json!({})).call().silent();
    assert_eq!(rules(&c1, "-4"), ["from 10.99.0.0/16 lookup 100"]);
    assert_eq!(routes(&c1, "-4", "101"), ["10.98.0.0/16 dev lo scope link"]);
}

/// Row: sbr | DEL. The reference makes a regular file where the namespace was.
#[test]
fn del_without_a_namespace_succeeds_and_makes_no_file() {
    testkit::require!("root");
    let (node, c1, prev) = host("sbr-gone", Family::Dual);
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    let path = node.dir("gone").join("netns");
    let del = || run(&node, "DEL", &c1, &prev, json!({}));
    del().netns(&path).call().silent();
    assert!(!path.exists());
    // That path never led to the container, but the record has the right one.
    assert_eq!(rules(&c1, "-4"), [] as [String; 0]);
    del().netns("").call().silent();
    del().netns("").without("prevResult").call().silent();
    fs::write(&path, "").unwrap();
    del().netns(&path).call().silent();
    assert_eq!(fs::read(&path).unwrap(), b"");
}

#[test]
fn del_by_what_is_left() {
    testkit::require!("root");
    // The interface is gone and its rules stay: the reference leaves them.
    let (node, c1, prev) = host("sbr-left1", Family::Dual);
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    c1.sh("ip link del eth0");
    assert_eq!(rules(&c1, "-4").len(), 1);
    run(&node, "DEL", &c1, &prev, json!({})).without("prevResult").call().silent();
    assert_eq!((rules(&c1, "-4"), rules(&c1, "-6")), (Vec::new(), Vec::new()));
    // The record is lost.
    for (name, with_prev, with_link) in [("sbr-left2", true, false), ("sbr-left3", false, true)] {
        let (node, c1, prev) = host(name, Family::Dual);
        run(&node, "ADD", &c1, &prev, json!({})).call().ok();
        fs::remove_dir_all(node.roots.run.join("owners")).unwrap();
        if !with_link {
            c1.sh("ip link del eth0");
        }
        let del = run(&node, "DEL", &c1, &prev, json!({}));
        let del = if with_prev { del } else { del.without("prevResult") };
        del.call().silent();
        assert_eq!((rules(&c1, "-4"), rules(&c1, "-6")), (Vec::new(), Vec::new()), "{name}");
        assert_eq!(routes(&c1, "-4", "100"), [] as [String; 0]);
    }
}

#[test]
fn a_failed_add_leaves_everything_as_it_was() {
    testkit::require!("root");
    let (node, c1, prev) = host("sbr-fail", Family::Dual);
    let before = Picture::of(&c1);
    // The kernel refuses the last planned change: such a source does not belong to the container.
    let mut bad = prev.clone();
    bad["ips"].as_array_mut().unwrap().push(json!({ "interface": 2, "address": "10.66.0.5/24" }));
    let keys = json!({ "addSourceHints": true });
    let error = run(&node, "ADD", &c1, &bad, keys).call().error();
    assert_eq!(error.code, 100, "{error:?}");
    before.assert_same(&Picture::of(&c1));
    assert_eq!((rules(&c1, "-4"), rules(&c1, "-6")), (Vec::new(), Vec::new()));
    assert_eq!(fs::read_dir(node.roots.run.join("owners")).map_or(0, Iterator::count), 0);
}

#[test]
fn what_cannot_be_done_is_told_in_the_references_words() {
    testkit::require!("root");
    let (node, c1, prev) = host("sbr-bad", Family::V4);
    let before = Picture::of(&c1);
    let add = |keys: Value| run(&node, "ADD", &c1, &prev, keys);
    add(json!({}))
        .without("prevResult")
        .call()
        .fails(7, "This plugin must be called as chained plugin");
    let mut none = prev.clone();
    none["ips"] = json!([]);
    run(&node, "ADD", &c1, &none, json!({}))
        .call()
        .fails(7, "No IP addresses supplied on interface: eth0");
    let mut unbound = prev.clone();
    unbound["ips"] = json!([{ "address": "10.1.0.3/24" }]);
    let absent = run(&node, "ADD", &c1, &unbound, json!({})).ifname("net7");
    absent.call().fails(7, "Cannot find network interface net7");
    for (keys, code, words) in [
        (json!({ "table": 0 }), 7, "table 0 cannot be used"),
        (json!({ "table": 4_294_967_296_u64 }), 7, "table 4294967296 cannot be used"),
        (json!({ "table": "main" }), 6, "table"),
        (json!({ "gateways": "10.0.0.1" }), 6, "gateways"),
        (json!({ "addSourceHints": "yes" }), 6, "addSourceHints"),
    ] {
        add(keys).call().fails(code, words);
    }
    before.assert_same(&Picture::of(&c1));
    let plugin = plugins::find("sbr").unwrap();
    let unknown = plugin.unknown_keys(r#"{"cniVersion":"1.0.0","gatewys":[]}"#).unwrap();
    assert_eq!(unknown.len(), 1, "{unknown:?}");
}

/// Two simultaneous attachments of one container do not get the same table.
#[test]
fn tables_are_chosen_one_call_after_the_other() {
    testkit::require!("root");
    let node = Node::new("sbr-race");
    let c1 = node.container("c1");
    const LINKS: usize = 8;
    for number in 0..LINKS {
        c1.sh(&format!(
            "ip link add net{number} type veth peer name far{number} && ip addr add 10.{number}.0.2/24 dev net{number} && \
             ip link set net{number} up && ip link set far{number} up"
        ));
    }
    std::thread::scope(|scope| {
        for number in 0..LINKS {
            let (node, c1) = (&node, &c1);
            scope.spawn(move || {
                let prev = json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": format!("net{number}"), "sandbox": c1.netns() }],
                    "ips": [{ "interface": 0, "address": format!("10.{number}.0.2/24"), "gateway": format!("10.{number}.0.1") }] });
                run(node, "ADD", c1, &prev, json!({})).ifname(&format!("net{number}")).call().ok();
            });
        }
    });
    let mut tables: Vec<String> =
        rules(&c1, "-4").iter().map(|rule| rule.rsplit(' ').next().unwrap().to_owned()).collect();
    tables.sort();
    let wanted: Vec<String> = (100..100 + LINKS).map(|table| table.to_string()).collect();
    assert_eq!(tables, wanted);
}

/// A node that used the reference's plugin before.
#[test]
fn what_the_reference_made_is_removed() {
    testkit::require!("root", "file:/usr/lib/cni/sbr");
    let (node, c1, mut prev) = host("sbr-go", Family::Dual);
    prev["cniVersion"] = json!("1.0.0");
    let run = |verb| run(&node, verb, &c1, &prev, json!({})).version("1.0.0");
    let config = node.dir("go").join("config");
    fs::write(&config, run("ADD").document()).unwrap();
    let netns = c1.netns();
    node.sh(&format!(
        "CNI_COMMAND=ADD CNI_CONTAINERID=c1 CNI_NETNS={} CNI_IFNAME=eth0 CNI_PATH=/usr/lib/cni /usr/lib/cni/sbr < {} 2>/dev/null",
        netns.display(),
        config.display()
    ));
    assert!(!rules(&c1, "-4").is_empty() && !rules(&c1, "-6").is_empty());
    run("CHECK").call().silent();
    run("DEL").call().silent();
    assert_eq!((rules(&c1, "-4"), rules(&c1, "-6")), (Vec::new(), Vec::new()));
}

/// DEL removes what a killed ADD has made, and another ADD completes it.
#[test]
fn any_part_is_removed_or_completed() {
    testkit::require!("root");
    let (node, c1, prev) = host("sbr-part", Family::Dual);
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    let parts = [
        "ip rule del from 10.1.0.3 lookup 100",
        "ip -6 rule del from fd00:1::3 lookup 101",
        "ip route del default table 100",
        "ip -6 route del default table 101",
    ];
    for missing in 1..1_u32 << parts.len() {
        for (bit, part) in parts.iter().enumerate() {
            if missing & 1 << bit != 0 {
                c1.sh(part);
            }
        }
        run(&node, "ADD", &c1, &prev, json!({})).call().ok();
        run(&node, "CHECK", &c1, &prev, json!({})).call().silent();
    }
    c1.sh(parts[0]);
    c1.sh(parts[3]);
    run(&node, "DEL", &c1, &prev, json!({})).without("prevResult").call().silent();
    assert_eq!((rules(&c1, "-4"), rules(&c1, "-6")), (Vec::new(), Vec::new()));
    assert_eq!((routes(&c1, "-4", "100"), routes(&c1, "-6", "101")), (Vec::new(), Vec::new()));
}

/// In a chain after the plugin that made the interface: that plugin's CHECK finds its routes where
/// they are now. The reference's does not.
#[test]
fn in_a_chain_with_bridge() {
    testkit::require!("root");
    let node = Node::new("sbr-chain");
    let c1 = node.container("c1");
    let bridge = |verb| {
        let keys = json!({ "isGateway": true, "ipam": matrix::ipam(&node, Family::Dual) });
        node.run("bridge", verb).to(&c1).config(keys)
    };
    let result = bridge("ADD").call().ok();
    run(&node, "ADD", &c1, &result, json!({})).call().ok();
    for (to, from) in [("10.1.0.1", "10.1.0.2"), ("fd00:1::1", "fd00:1::2")] {
        c1.sh(&format!("ping -c 1 -W 5 -I {from} {to} >&2"));
    }
    bridge("CHECK").prev(&result).call().silent();
    run(&node, "CHECK", &c1, &result, json!({})).call().silent();
    run(&node, "DEL", &c1, &result, json!({})).call().silent();
    bridge("DEL").prev(&result).call().silent();
}
