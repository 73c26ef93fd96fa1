//! `vrf`, row by row of the feature table. The tests that need a VRF run in the virtual machine.

use std::fs;

use serde_json::{Value, json};
use testkit::{Container, Place, feature, traffic};

use crate::support::matrix::{self, Family, Subject, attached};
use crate::support::{Node, Picture, Run};

const SUBJECT: Subject = Subject {
    plugin: "vrf",
    host: |_, _| {},
    config: |node, c1, family| json!({ "vrfname": "blue", "prevResult": attached(node, c1, family) }),
    holds: |_, c1, _| c1.sh("ip -o link show").contains("master blue"),
    damage: |_, c1, _| {
        c1.sh("ip link set eth0 nomaster");
    },
    unready: None,
};
matrix::vm_tests!(SUBJECT, "vrf");

fn host(name: &str, family: Family) -> (Node, Container, Value) {
    let node = Node::new(name);
    let c1 = node.container("c1");
    let prev = attached(&node, &c1, family);
    (node, c1, prev)
}

fn run<'n>(node: &'n Node, verb: &str, to: &Container, prev: &Value, keys: Value) -> Run<'n> {
    node.run("vrf", verb).to(to).prev(prev).config(json!({ "vrfname": "blue" })).config(keys)
}

fn routes(c1: &Container, family: &str, table: &str) -> Vec<String> {
    let text = c1.sh(&format!("ip {family} route show table {table} 2>/dev/null || true"));
    let kernels = ["local", "broadcast", "multicast", "anycast", "ff00::", "fe80::"];
    let own = |line: &&str| !kernels.iter().any(|kind| line.starts_with(kind));
    let mut lines: Vec<_> = text.lines().map(str::trim).filter(own).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The VRFs and their tables.
fn vrfs(c1: &Container) -> Vec<(String, u64)> {
    let text = c1.sh("ip -j -d link show type vrf");
    let all: Vec<Value> =
        serde_json::from_str(if text.trim().is_empty() { "[]" } else { &text }).unwrap();
    let vrf = |vrf: &Value| {
        let table = vrf["linkinfo"]["info_data"]["table"].as_u64().unwrap();
        (vrf["ifname"].as_str().unwrap().to_owned(), table)
    };
    all.iter().map(vrf).collect()
}

/// Row: vrf | create/attach, and v6 addresses and routes kept.
#[test]
fn vm_an_interface_moves_with_all_it_has() {
    testkit::require!("root", "vrf");
    let (node, c1, prev) = host("vrf-move", Family::Dual);
    c1.sh(
        "ip route add 10.7.0.0/16 via 10.1.0.9 metric 5 mtu 1400 && ip route add 10.8.0.0/16 dev eth0 && \
         ip -6 route add fd00:7::/48 via fd00:1::9 && ip route add 10.9.0.0/16 via 10.1.0.9 table 77 && \
         ip route add 203.0.113.0/24 dev lo",
    );
    let before = [routes(&c1, "-4", "main"), routes(&c1, "-6", "main"), routes(&c1, "-4", "77")];
    let result = run(&node, "ADD", &c1, &prev, json!({ "table": 42 })).call().ok();
    assert_eq!(result, prev);
    assert_eq!(vrfs(&c1), [("blue".to_owned(), 42)]);
    assert!(c1.sh("ip link show blue").contains(",UP,"));
    let addresses = c1.sh("ip -o addr show eth0");
    assert!(addresses.contains("10.1.0.3/24") && addresses.contains("fd00:1::3/64"), "{addresses}");
    assert!(!addresses.contains("tentative"), "{addresses}");
    let without_lo = |lines: &[String]| {
        lines.iter().filter(|line| !line.contains("dev lo")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(routes(&c1, "-4", "42"), without_lo(&before[0]));
    assert_eq!(routes(&c1, "-6", "42"), without_lo(&before[1]));
    assert_eq!(routes(&c1, "-4", "77"), before[2]);
    assert_eq!(routes(&c1, "-4", "main"), ["203.0.113.0/24 dev lo scope link"]);
    assert_eq!(routes(&c1, "-6", "main"), [] as [String; 0]);
    assert_eq!(c1.sh("cat /proc/sys/net/ipv6/conf/eth0/keep_addr_on_down").trim(), "0");
    run(&node, "CHECK", &c1, &prev, json!({})).call().silent();
    for to in ["10.1.0.1", "fd00:1::1"] {
        c1.sh(&format!(
            "ip vrf exec blue ping -c 1 -W 10 {to} 2>&1 || ping -c 1 -W 10 -I blue {to}"
        ));
        traffic::assert_pings(&node.lab, if to.contains(':') { "fd00:1::3" } else { "10.1.0.3" });
    }
    // A second ADD changes nothing.
    let picture = Picture::of(&c1);
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    picture.assert_same(&Picture::of(&c1));
}

/// The next ADD or repair restores what the kernel removed; DEL at least restores the sysctl that
/// ADD had set.
#[test]
fn vm_an_add_that_was_killed_while_it_moved_is_completed() {
    testkit::require!("root", "vrf");
    let (node, c1, prev) = host("vrf-half", Family::Dual);
    c1.sh("ip route add 10.7.0.0/16 via 10.1.0.9 metric 5 mtu 1400");
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    let whole = Picture::of(&c1);
    let ifindex: u32 = c1.sh("ip -o link show eth0 | cut -d: -f1").trim().parse().unwrap();
    let route = |destination: &str, gateway: Value, priority: Value, mtu: Value, protocol: u8| {
        json!({
            "destination": destination, "gateway": gateway, "oif": ifindex, "table": 254, "priority": priority,
            "scope": null, "protocol": protocol, "mtu": mtu, "advmss": null, "onlink": false, "source": null,
            "nextHops": [],
        })
    };
    let moving = json!({
        "ifindex": ifindex,
        "addresses": ["fd00:1::3/64"],
        "keepAddrOnDown": "0",
        "routes": [
            route("10.7.0.0/16", json!("10.1.0.9"), json!(5), json!(1400), 3),
            route("0.0.0.0/0", json!("10.1.0.1"), Value::Null, Value::Null, 3),
            route("10.1.0.0/24", Value::Null, Value::Null, Value::Null, 2),
            route("::/0", json!("fd00:1::1"), json!(1024), Value::Null, 3),
            route("fd00:1::/64", Value::Null, json!(256), Value::Null, 2),
        ],
    });
    let key = cni::AttachmentKey {
        network: "n".parse().unwrap(),
        container_id: "c1".parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    };
    let index = state::Index::new(&node.roots);
    let killed = || {
        let data = json!({ "vrf": "blue", "moving": moving });
        index
            .put(&state::Record::new(key.clone(), "vrf", state::boot_id().unwrap(), data))
            .unwrap();
        c1.sh("ip link set eth0 nomaster && ip link set eth0 master blue && \
             sysctl -qw net.ipv6.conf.eth0.keep_addr_on_down=1");
    };
    killed();
    run(&node, "CHECK", &c1, &prev, json!({})).call().fails(104, "failed to find");
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    whole.assert_same(&Picture::of(&c1));
    killed();
    let check = |keys| run(&node, "CHECK", &c1, &prev, keys).call();
    check(json!({})).fails(104, "moved into VRF \"blue\" halfway");
    let repaired = check(json!({ "netwright/repair": true }));
    assert!(repaired.succeeded(), "{repaired:?}");
    whole.assert_same(&Picture::of(&c1));
    run(&node, "CHECK", &c1, &prev, json!({})).call().silent();
    // The record no longer mentions the move.
    let data = index.get(&key, "vrf").found.unwrap().data;
    assert_eq!(data["vrf"], "blue");
    assert!(data.as_object().unwrap().keys().eq(["ifindex", "mac", "table", "vrf"]), "{data}");
    killed();
    run(&node, "DEL", &c1, &prev, json!({})).call().silent();
    assert_eq!(vrfs(&c1), []);
    assert_eq!(c1.sh("cat /proc/sys/net/ipv6/conf/eth0/keep_addr_on_down").trim(), "0");
}

/// A point-to-point plugin removes the route to the subnet: it does not come back.
#[test]
fn vm_routes_that_were_taken_away_stay_away() {
    testkit::require!("root", "vrf");
    let (node, c1, prev) = host("vrf-ptp", Family::V4);
    c1.sh("ip route flush dev eth0 && ip route add 10.1.0.1 dev eth0 scope link src 10.1.0.3 && \
         ip route add 10.1.0.0/24 via 10.1.0.1 src 10.1.0.3 && ip route add default via 10.1.0.1");
    let before = routes(&c1, "-4", "main");
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    assert_eq!(routes(&c1, "-4", "1"), before);
    run(&node, "CHECK", &c1, &prev, json!({})).call().silent();
}

/// Row: vrf | auto table. The reference looks at VRFs only.
#[test]
fn vm_a_table_is_chosen_that_nothing_uses() {
    testkit::require!("root", "vrf");
    let (node, c1, prev) = host("vrf-auto", Family::Dual);
    c1.sh("ip link add red type vrf table 1 && ip rule add from 192.0.2.1 lookup 2 && \
         ip -6 rule add from 2001:db8::1 lookup 3 && ip route add 192.0.2.0/24 dev lo table 4 && \
         ip -6 route add 2001:db8:7::/48 dev lo table 5");
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    assert_eq!(vrfs(&c1), [("red".to_owned(), 1), ("blue".to_owned(), 6)]);
    let (node, c1, prev) = host("vrf-auto2", Family::Dual);
    c1.sh("for i in $(seq 1 251); do echo route add 192.0.2.0/24 dev lo table $i; done | ip -b -");
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    assert_eq!(vrfs(&c1), [("blue".to_owned(), 256)], "252 to 255 are the kernel's");
}

/// Row: vrf | conflicts.
#[test]
fn vm_conflicts_are_told_in_the_references_words() {
    testkit::require!("root", "vrf");
    let (node, c1, prev) = host("vrf-conf", Family::Dual);
    c1.sh("ip link add blue type vrf table 7 && ip link add green type vrf table 8 && ip link set green up");
    let add = |keys| run(&node, "ADD", &c1, &prev, keys);
    let before = Picture::of(&c1);
    add(json!({ "table": 9 }))
        .call()
        .fails(7, "cmdAdd failed: VRF blue already exist with different routing table 7");
    add(json!({ "vrfname": "eth0" })).call().fails(7, "cmdAdd failed: Netlink eth0 is not a VRF");
    add(json!({})).ifname("net7").call().fails(7, "cmdAdd failed: could not get link by name net7");
    before.assert_same(&Picture::of(&c1));
    c1.sh("ip link set eth0 master green");
    let before = Picture::of(&c1);
    add(json!({}))
        .call()
        .fails(108, "cmdAdd failed: interface eth0 has already a master set: green");
    add(json!({ "vrfname": "new" })).call().fails(108, "has already a master set: green");
    before.assert_same(&Picture::of(&c1));
    assert_eq!(vrfs(&c1).len(), 2);
}

/// Row: vrf | DEL.
#[test]
fn vm_the_last_one_removes_a_vrf_of_ours() {
    testkit::require!("root", "vrf");
    let (node, c1, prev) = host("vrf-last", Family::V4);
    c1.sh("ip link add net1 type veth peer name far1 && ip addr add 10.2.0.2/24 dev net1 && ip link set net1 up && ip link set far1 up");
    let mut second = prev.clone();
    second["interfaces"] = json!([{ "name": "net1", "sandbox": c1.netns() }]);
    second["ips"] = json!([{ "interface": 0, "address": "10.2.0.2/24" }]);
    second["routes"] = json!([]);
    let del = |prev: &Value, ifname: &str| {
        run(&node, "DEL", &c1, prev, json!({})).ifname(ifname).call().silent();
    };
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    run(&node, "ADD", &c1, &second, json!({})).ifname("net1").call().ok();
    assert_eq!(vrfs(&c1).len(), 1);
    del(&prev, "eth0");
    assert_eq!(vrfs(&c1).len(), 1);
    run(&node, "CHECK", &c1, &second, json!({})).ifname("net1").call().silent();
    // The interface is gone: the reference's DEL fails and keeps the chain's earlier plugins from
    // running.
    c1.sh("ip link del net1");
    del(&second, "net1");
    assert_eq!(vrfs(&c1), []);
    del(&second, "net1");
    // A foreign VRF stays.
    c1.sh("ip link add blue type vrf table 9");
    run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    del(&prev, "eth0");
    assert_eq!(vrfs(&c1), [("blue".to_owned(), 9)]);
    assert!(!c1.sh("ip link show eth0").contains("master"));
}

/// DEL needs neither configuration nor result, record or path, as long as one of them leads to the
/// interface.
#[test]
fn vm_del_by_what_is_left() {
    testkit::require!("root", "vrf");
    for (name, record, config) in
        [("vrf-left1", true, false), ("vrf-left2", false, true), ("vrf-left3", false, false)]
    {
        let (node, c1, prev) = host(name, Family::Dual);
        run(&node, "ADD", &c1, &prev, json!({})).call().ok();
        if !record {
            fs::remove_dir_all(node.roots.run.join("owners")).unwrap();
        }
        let del = run(&node, "DEL", &c1, &prev, json!({})).without("prevResult");
        let del = if config { del } else { del.without("vrfname") };
        let del = if record { del.netns("") } else { del };
        del.call().silent();
        assert_eq!(vrfs(&c1), [], "{name}");
        assert!(!c1.sh("ip link show eth0").contains("master"), "{name}");
    }
}

#[test]
fn vm_check_notices_what_is_different() {
    testkit::require!("root", "vrf");
    let (node, c1, prev) = host("vrf-chk", Family::Dual);
    let keys = || json!({ "table": 42 });
    let check = |keys| run(&node, "CHECK", &c1, &prev, keys).call();
    for (damage, words) in [
        ("ip link set blue down", "is down"),
        ("ip link set eth0 nomaster", "is not in VRF"),
        ("ip addr del 10.1.0.3/24 dev eth0", "failed to find IP 10.1.0.3/24"),
        ("ip -6 route del default table 42", "failed to find route ::/0"),
        ("ip route add default via 10.1.0.1 dev eth0 onlink", "is not in the table of VRF"),
        ("ip route add 10.1.0.0/24 dev eth0", "is not in the table of VRF"),
        ("ip link del blue", "is gone"),
    ] {
        run(&node, "ADD", &c1, &prev, keys()).call().ok();
        check(keys()).silent();
        c1.sh(damage);
        check(keys()).fails(104, words);
        run(&node, "DEL", &c1, &prev, keys()).call().silent();
        c1.sh(
            "ip route flush dev eth0; ip addr replace 10.1.0.3/24 dev eth0; ip addr replace fd00:1::3/64 dev eth0 nodad; \
             ip link set eth0 down; ip link set eth0 up; ip addr replace fd00:1::3/64 dev eth0 nodad; \
             ip route replace default via 10.1.0.1; ip -6 route replace default via fd00:1::1",
        );
    }
    run(&node, "ADD", &c1, &prev, keys()).call().ok();
    // What a later plugin adds does not concern CHECK.
    c1.sh("ip route add 192.0.2.0/24 dev eth0; ip addr add 10.7.0.1/24 dev eth0");
    check(keys()).silent();
    check(json!({ "table": 43 })).fails(104, "the configuration asks for 43");
}

/// A node that used the reference's plugin before.
#[test]
fn vm_what_the_reference_made_is_removed() {
    testkit::require!("root", "vrf", "file:/usr/lib/cni/vrf");
    let (node, c1, mut prev) = host("vrf-go", Family::Dual);
    prev["cniVersion"] = json!("1.0.0");
    let run = |verb| run(&node, verb, &c1, &prev, json!({})).version("1.0.0");
    let config = node.dir("go").join("config");
    fs::write(&config, run("ADD").document()).unwrap();
    node.sh(&format!(
        "CNI_COMMAND=ADD CNI_CONTAINERID=c1 CNI_NETNS={} CNI_IFNAME=eth0 CNI_PATH=/usr/lib/cni /usr/lib/cni/vrf < {}",
        c1.netns().display(),
        config.display()
    ));
    assert_eq!(vrfs(&c1), [("blue".to_owned(), 1)]);
    // Release 1.1.1 loses routes on the way, so that CHECK would fail.
    run("DEL").call().silent();
    assert_eq!(vrfs(&c1), []);
}

/// Behind the plugin that made the interface, whose CHECK finds its routes where they are now.
#[test]
fn vm_in_a_chain_with_bridge() {
    testkit::require!("root", "vrf");
    let node = Node::new("vrf-chain");
    let c1 = node.container("c1");
    let bridge = |verb| {
        let keys = json!({ "isGateway": true, "ipam": matrix::ipam(&node, Family::Dual) });
        node.run("bridge", verb).to(&c1).config(keys)
    };
    let result = bridge("ADD").call().ok();
    run(&node, "ADD", &c1, &result, json!({})).call().ok();
    for address in ["10.1.0.2", "fd00:1::2"] {
        traffic::assert_pings(&node.lab, address);
    }
    bridge("CHECK").prev(&result).call().silent();
    run(&node, "CHECK", &c1, &result, json!({})).call().silent();
    run(&node, "DEL", &c1, &result, json!({})).call().silent();
    bridge("DEL").prev(&result).call().silent();
}

/// ADD undoes everything when the kernel refuses a step: here the kernel has no VRFs, or a second
/// VRF already has the table.
#[test]
fn a_failed_add_leaves_everything_as_it_was() {
    testkit::require!("root");
    let (node, c1, prev) = host("vrf-fail", Family::Dual);
    if feature::available("vrf") {
        c1.sh("ip link add red type vrf table 42");
    }
    let before = Picture::of(&c1);
    let answer = run(&node, "ADD", &c1, &prev, json!({ "table": 42 })).call();
    if answer.succeeded() {
        // Kernels without strict mode allow it.
        return;
    }
    let error = answer.error();
    assert!(error.code == 100 && error.msg.starts_with("cmdAdd failed: create vrf"), "{error:?}");
    before.assert_same(&Picture::of(&c1));
    assert_eq!(fs::read_dir(node.roots.run.join("owners")).map_or(0, Iterator::count), 0);
}

#[test]
fn what_makes_no_sense_is_refused() {
    testkit::require!("root");
    let (node, c1, prev) = host("vrf-bad", Family::V4);
    let before = Picture::of(&c1);
    let add = |keys| run(&node, "ADD", &c1, &prev, keys);
    add(json!({})).without("prevResult").call().fails(7, "missing prevResult from earlier plugin");
    for (keys, code, words) in [
        (json!({ "vrfname": "" }), 7, "configuration is expected to have a valid vrf name"),
        (
            json!({ "vrfname": "much-too-long-name" }),
            7,
            "configuration is expected to have a valid vrf name",
        ),
        (json!({ "table": -1 }), 7, "table -1 cannot be used"),
        (json!({ "table": 4_294_967_296_u64 }), 7, "table 4294967296 cannot be used"),
        (json!({ "table": "main" }), 6, "table"),
        (json!({ "vrfname": 7 }), 6, "vrfname"),
        (json!({ "vrfname": "eth0" }), 7, "Netlink eth0 is not a VRF"),
    ] {
        add(keys).call().fails(code, words);
    }
    before.assert_same(&Picture::of(&c1));
    let plugin = plugins::find("vrf").unwrap();
    assert_eq!(plugin.unknown_keys(r#"{"vrfname":"a","tabel":1}"#).unwrap().len(), 1);
}

/// Row: vrf | DEL. A kernel without VRFs cannot have any.
#[test]
fn del_bears_that_everything_is_gone() {
    testkit::require!("root");
    let (node, c1, prev) = host("vrf-gone", Family::Dual);
    let before = Picture::of(&c1);
    let del = || run(&node, "DEL", &c1, &prev, json!({}));
    del().call().silent();
    del().ifname("net7").call().silent();
    del().netns("").call().silent();
    del().netns("/nonexistent/netns").without("prevResult").without("vrfname").call().silent();
    let file = node.dir("gone").join("file");
    fs::write(&file, "").unwrap();
    del().netns(&file).call().silent();
    before.assert_same(&Picture::of(&c1));
}

#[test]
fn status_tells_whether_the_kernel_can() {
    testkit::require!("root");
    let node = Node::new("vrf-status");
    let status = || {
        let status = node.run("vrf", "STATUS").config(json!({ "vrfname": "blue" }));
        status.of_network()
    };
    let answer = status().call();
    if feature::available("vrf") {
        answer.silent();
    } else {
        answer.fails(50, "CONFIG_NET_VRF");
    }
    status().config(json!({ "vrfname": "" })).call().fails(7, "valid vrf name");
}
