//! `ptp`: each row of the reference's behaviour, and what ours does better.

mod check;
mod matrix;
mod remove;

use std::net::UdpSocket;

use serde_json::{Value, json};
use testkit::traffic::{self, assert_no_ping, assert_pings};
use testkit::{Container, Place, Snapshot};

use crate::support::fixed::{self, link, succeeds};
use crate::support::{Node, Run, versions};

fn ptp<'n>(node: &'n Node, verb: &str, container: &Container) -> Run<'n> {
    node.run("ptp", verb).to(container).config(fixed::ipam())
}

/// Both families, with `last` as the addresses' last number, and default routes.
fn dual(last: u8) -> Value {
    json!({
        "ips": [
            { "address": format!("10.1.0.{last}/24"), "gateway": "10.1.0.1" },
            { "address": format!("fd00:1::{last}/64"), "gateway": "fd00:1::1" },
        ],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
    })
}

fn attach(node: &Node, container: &Container, answer: &Value, config: Value) -> Value {
    fixed::answers(node, answer);
    ptp(node, "ADD", container).config(config).call().ok()
}

fn host_ifname(result: &Value) -> String {
    result["interfaces"][0]["name"].as_str().unwrap().to_owned()
}

#[test]
fn the_mtu_of_the_uplink() {
    let node = Node::new("ptp-uplink");
    let c1 = node.container("c1");
    node.sh("ip link add up0 mtu 1420 type veth peer name up1; ip link set up1 up; \
         ip link set up0 up; ip route add default dev up0");
    let auto = json!({ "mtu": "auto" });
    let result = attach(&node, &c1, &dual(2), auto.clone());
    let shown = [link(&node.lab, &host_ifname(&result)), link(&c1, "eth0")];
    assert!(shown.iter().all(|link| link["mtu"] == 1420), "{shown:?}");
    node.sh("ip link set up0 mtu 1400");
    ptp(&node, "CHECK", &c1).config(auto.clone()).prev(&result).call().silent();
    c1.sh("ip link set eth0 mtu 1400");
    node.sh(&format!("ip link set {} mtu 1400", host_ifname(&result)));
    let words = "has MTU 1400, ADD reported 1420";
    ptp(&node, "CHECK", &c1).config(auto.clone()).prev(&result).call().fails(104, words);
    ptp(&node, "DEL", &c1).config(auto).call().silent();
}

#[test]
fn a_configured_name_of_the_hosts_end() {
    let node = Node::new("ptp-host-ifname");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let named = json!({ "hostIfname": "web0", "ipMasq": true });
    let result = attach(&node, &c1, &dual(2), named.clone());
    assert_eq!(host_ifname(&result), "web0");
    ptp(&node, "CHECK", &c1).config(named.clone()).prev(&result).call().silent();
    let refused = ptp(&node, "ADD", &c2).config(named.clone()).call();
    refused.fails(108, "it is the link of n/c1/eth0");
    ptp(&node, "DEL", &c1).call().silent();
    assert!(!succeeds(&node.lab, "ip link show web0"));
}

/// The kernel deletes the pair of a container that has ended some time later, and until then the host
/// has a route to its address.
#[test]
fn the_route_of_a_container_that_has_just_ended_is_nobodys() {
    testkit::require!("root");
    let node = Node::new("ptp-ending");
    let c1 = node.container("c1");
    attach(&node, &c1, &dual(2), json!({}));
    let c2 = node.container("c2");
    let socket = c1.enter(|| UdpSocket::bind("[::]:0").unwrap());
    drop(c1);
    node.keep_busy();
    drop(socket);
    let result = attach(&node, &c2, &dual(2), json!({}));
    assert_eq!(node.sh("ip -o link show type veth | wc -l").trim(), "1", "the other pair is gone");
    ptp(&node, "CHECK", &c2).prev(&result).call().silent();
    // One that lives keeps it.
    let c3 = node.container("c3");
    fixed::answers(&node, &dual(2));
    ptp(&node, "ADD", &c3).call().error();
    ptp(&node, "CHECK", &c2).prev(&result).call().silent();
}

#[test]
fn routes_that_drop_packets() {
    let node = Node::new("ptp-dropping");
    let c1 = node.container("c1");
    let mut answer = dual(2);
    answer["routes"] = json!([{ "dst": "10.7.0.0/16", "type": "prohibit" }, { "dst": "fd07::/16", "type": "unreachable" }]);
    let result = attach(&node, &c1, &answer, json!({}));
    let shown = || c1.sh("ip route; ip -6 route");
    assert!(shown().contains("prohibit 10.7.0.0/16") && shown().contains("unreachable fd07::/16"));
    ptp(&node, "CHECK", &c1).prev(&result).call().silent();
    ptp(&node, "DEL", &c1).prev(&result).call().silent();
    assert!(!shown().contains("10.7.0.0/16") && !shown().contains("fd07::/16"), "{}", shown());
}

#[test]
fn the_result_has_the_hosts_end_and_then_the_containers() {
    let node = Node::new("ptp-result");
    let c1 = node.container("c1");
    let result = attach(&node, &c1, &dual(2), json!({ "mtu": 1400 }));
    let interfaces = result["interfaces"].as_array().unwrap();
    assert_eq!(interfaces.len(), 2, "{result}");
    assert_eq!(interfaces[1]["name"], "eth0");
    assert_eq!(interfaces[1]["sandbox"], c1.netns().to_str().unwrap());
    assert!(interfaces[0].get("sandbox").is_none());
    assert!(result["ips"].as_array().unwrap().iter().all(|ip| ip["interface"] == 1), "{result}");
    let name = host_ifname(&result);
    let digits = name.strip_prefix("veth").unwrap();
    assert!(digits.len() == 8 && digits.bytes().all(|b| b"0123456789abcdef".contains(&b)));
    for (shown, reported) in
        [(link(&node.lab, &name), &interfaces[0]), (link(&c1, "eth0"), &interfaces[1])]
    {
        assert_eq!(shown["address"], reported["mac"]);
        assert_eq!(shown["mtu"], 1400);
        assert_eq!(reported["mtu"], 1400);
    }
    assert_eq!(link(&node.lab, &name)["ifalias"], "netwright:n/c1/eth0");
    assert_eq!(node.sh(&format!("cat /proc/sys/net/ipv6/conf/{name}/accept_ra")), "0\n");
}

/// ADD configures what the reference configures, without its second of duplicate address detection.
#[test]
fn everything_goes_through_the_host() {
    let node = Node::new("ptp-wire");
    let c1 = node.container("c1");
    let host = host_ifname(&attach(&node, &c1, &dual(2), json!({})));
    let shown = |place: &dyn Fn(&str) -> String, command: &str| {
        let mut lines: Vec<String> =
            place(command).lines().map(|line| line.trim().to_owned()).collect();
        lines.sort();
        lines
    };
    let inside = |script: &str| c1.sh(script);
    assert_eq!(
        shown(&inside, "ip -4 route"),
        [
            "10.1.0.0/24 via 10.1.0.1 dev eth0 src 10.1.0.2",
            "10.1.0.1 dev eth0 scope link src 10.1.0.2",
            "default via 10.1.0.1 dev eth0",
        ]
        .map(str::to_owned),
    );
    assert_eq!(
        shown(
            &inside,
            "ip -6 route show | grep -v ^fe80 | sed 's/ pref medium//; s/ metric 1024//'"
        ),
        [
            "default via fd00:1::1 dev eth0",
            "fd00:1::/64 via fd00:1::1 dev eth0 src fd00:1::2",
            "fd00:1::1 dev eth0 src fd00:1::2",
        ]
        .map(str::to_owned),
    );
    let outside = |script: &str| node.sh(script);
    assert_eq!(shown(&outside, "ip -4 route"), [format!("10.1.0.2 dev {host} scope host")]);
    let addresses = node.sh(&format!("ip -o addr show {host}"));
    assert!(
        addresses.contains("10.1.0.1/32") && addresses.contains("fd00:1::1/128"),
        "{addresses}"
    );
    assert!(node.sh("ip -6 route").contains(&format!("fd00:1::2 dev {host}")));
    assert!(!c1.sh("ip -6 addr show eth0 scope global").contains("tentative"));
}

#[test]
fn containers_reach_each_other_the_host_and_the_outside() {
    for backend in ["nftables", "iptables"] {
        let node = Node::new(&format!("ptp-{backend}"));
        let outside = node.lab.outside();
        let (c1, c2) = (node.container("c1"), node.container("c2"));
        let config = json!({ "ipMasq": true, "ipMasqBackend": backend });
        let result = attach(&node, &c1, &dual(2), config.clone());
        attach(&node, &c2, &dual(3), config.clone());
        for to in
            ["10.1.0.1", "fd00:1::1", "10.1.0.3", "fd00:1::3", "198.51.100.2", "2001:db8:ffff::2"]
        {
            assert_pings(&c1, to);
        }
        assert_pings(&node.lab, "10.1.0.2");
        assert_pings(&node.lab, "fd00:1::3");
        let neighbour = traffic::Server::tcp(&c2, "[::]:80", "neighbour");
        for (at, seen) in [("10.1.0.3:80", "10.1.0.2"), ("[fd00:1::3]:80", "fd00:1::2")] {
            let answer = traffic::assert_tcp(&c1, at);
            assert_eq!(answer.seen.ip().to_string(), seen, "neighbours see each other as they are");
        }
        drop(neighbour);
        let _web = traffic::Server::tcp(&outside, "[::]:80", "web");
        for (at, seen) in
            [("198.51.100.2:80", "198.51.100.1"), ("[2001:db8:ffff::2]:80", "2001:db8:ffff::1")]
        {
            assert_eq!(traffic::assert_tcp(&c1, at).seen.ip().to_string(), seen, "{backend}");
        }
        ptp(&node, "CHECK", &c1).config(config).prev(&result).call().silent();
    }
}

#[test]
fn without_masquerade_addresses_stay_as_they_are() {
    let node = Node::new("ptp-plain");
    let outside = node.lab.outside();
    outside.sh("ip route add 10.1.0.0/24 via 198.51.100.1");
    let c1 = node.container("c1");
    attach(&node, &c1, &dual(2), json!({ "ipMasqBackend": "nftables" }));
    let _web = traffic::Server::tcp(&outside, "0.0.0.0:80", "web");
    assert_eq!(traffic::assert_tcp(&c1, "198.51.100.2:80").seen.ip().to_string(), "10.1.0.2");
    assert!(!node.sh("nft list ruleset").contains("10.1.0.2"));
}

/// Rows: the reference requires a gateway and fails with a /32.
#[test]
fn addresses_without_gateway_or_subnet_work() {
    for (name, ips) in [
        ("plain", json!([{ "address": "10.1.0.LAST/24" }, { "address": "fd00:1::LAST/64" }])),
        ("single", json!([{ "address": "10.1.0.LAST/32" }, { "address": "fd00:1::LAST/128" }])),
        (
            "foreign",
            json!([
                { "address": "10.1.0.LAST/32", "gateway": "192.0.2.1" },
                { "address": "fd00:1::LAST/128", "gateway": "2001:db8:7::1" },
            ]),
        ),
        (
            "linklocal",
            json!([{ "address": "10.1.0.LAST/24" }, { "address": "fd00:1::LAST/64", "gateway": "fe80::7" }]),
        ),
    ] {
        let node = Node::new(&format!("ptp-{name}"));
        let outside = node.lab.outside();
        let (c1, c2) = (node.container("c1"), node.container("c2"));
        let mut answer = json!({ "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }] });
        for (container, last) in [(&c1, "2"), (&c2, "3")] {
            answer["ips"] = serde_json::from_str(&ips.to_string().replace("LAST", last)).unwrap();
            let result = attach(&node, container, &answer, json!({ "ipMasq": true }));
            let config = json!({ "ipMasq": true });
            ptp(&node, "CHECK", container).config(config).prev(&result).call().silent();
        }
        for to in ["10.1.0.3", "fd00:1::3", "198.51.100.2", "2001:db8:ffff::2"] {
            assert_pings(&c1, to);
        }
        assert_pings(&node.lab, "10.1.0.2");
        assert_pings(&node.lab, "fd00:1::2");
        drop(outside);
    }
}

#[test]
fn one_family_alone_leaves_the_other_alone() {
    for (name, address, gateway, other) in [
        ("v4", "10.1.0.2/24", "10.1.0.1", "net.ipv6.conf.all.forwarding"),
        ("v6", "fd00:1::2/64", "fd00:1::1", "net.ipv4.ip_forward"),
    ] {
        let node = Node::new(&format!("ptp-only-{name}"));
        node.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0");
        let c1 = node.container("c1");
        let answer = json!({ "ips": [{ "address": address, "gateway": gateway }] });
        attach(&node, &c1, &answer, json!({}));
        assert_pings(&c1, gateway);
        assert_eq!(node.sh(&format!("sysctl -n {other}")), "0\n");
    }
}

/// Attaches and detaches two containers, the second on a network with these keys. Returns the
/// sysctls after each DEL, and the messages about those that stay on.
fn forwarding_behind(name: &str, first: Value, second: Value) -> ([String; 2], Vec<String>) {
    let node = Node::new(name);
    node.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0");
    let before = Snapshot::take(&node.lab);
    let forwarding = || node.sh("sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    attach(&node, &c1, &dual(2), first);
    attach(&node, &c2, &dual(3), second);
    // DEL knows this without a configuration.
    ptp(&node, "DEL", &c1).call().silent();
    let with_one = forwarding();
    ptp(&node, "DEL", &c2).call().silent();
    let with_none = forwarding();
    c1.delete();
    c2.delete();
    before.assert_same(&Snapshot::take(&node.lab));
    let index = state::Index::new(&node.roots);
    let said = node.lab.enter(move || plugins::shared::forwarding::left_on(&index));
    ([with_one, with_none], said)
}

#[test]
fn forwarding_stays_on_behind_the_last() {
    let (found, said) = forwarding_behind("ptp-forward", json!({}), json!({}));
    assert_eq!(found, ["1\n1\n", "1\n1\n"]);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("sysctl -w net.ipv4.ip_forward=0"), "{said:?}");
    assert!(said[1].contains("sysctl -w net.ipv6.conf.all.forwarding=0"), "{said:?}");
}

#[test]
fn forwarding_is_switched_off_behind_the_last_where_all_ask_for_it() {
    let restore = || json!({ "restoreForwarding": true });
    let (found, said) = forwarding_behind("ptp-restore", restore(), restore());
    assert_eq!(found, ["1\n1\n", "0\n0\n"]);
    assert_eq!(said, Vec::<String>::new());
    for (name, first, second) in
        [("ptp-restore-1", restore(), json!({})), ("ptp-restore-2", json!({}), restore())]
    {
        let (found, said) = forwarding_behind(name, first, second);
        assert_eq!(found, ["1\n1\n", "1\n1\n"], "{name}");
        assert_eq!(said.len(), 2, "{name}: {said:?}");
    }
}

/// A write of the global sysctl sets that of every interface.
#[test]
fn interfaces_that_forwarded_by_themselves_do_so_again() {
    let node = Node::new("ptp-alone");
    node.sh("for i in a.1 b0; do ip link add $i type bridge; done; \
             sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0; \
             echo 1 | tee /proc/sys/net/ipv[46]/conf/a.1/forwarding");
    let all = || node.sh("cd /proc/sys/net; grep . ipv[46]/conf/*/forwarding");
    let before = all();
    assert_eq!(before.matches(":1").count(), 2, "{before}");
    let c1 = node.container("c1");
    attach(&node, &c1, &dual(2), json!({ "restoreForwarding": true }));
    assert!(!all().contains(":0"));
    ptp(&node, "DEL", &c1).call().silent();
    assert_eq!(all(), before);
}

#[test]
fn forwarding_that_was_on_is_not_said_to_be_ours() {
    let node = Node::new("ptp-forward-on");
    node.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    let c1 = node.container("c1");
    attach(&node, &c1, &dual(2), json!({ "restoreForwarding": true }));
    ptp(&node, "DEL", &c1).call().silent();
    let forwarding = node.sh("sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding");
    assert_eq!(forwarding, "1\n1\n");
    let index = state::Index::new(&node.roots);
    let said = node.lab.enter(move || plugins::shared::forwarding::left_on(&index));
    assert_eq!(said, Vec::<String>::new());
}

#[test]
fn an_address_that_another_container_has_is_refused_by_its_name() {
    let node = Node::new("ptp-conflict");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let host = host_ifname(&attach(&node, &c1, &dual(2), json!({})));
    assert_pings(&c1, "fd00:1::1");
    fixed::forget(&node);
    let before = Snapshot::take(&node.lab);
    let error = ptp(&node, "ADD", &c2).network("other").call().error();
    assert_eq!(error.code, 108);
    assert_eq!(error.msg, "the host has a route to 10.1.0.2 already");
    assert!(error.details.contains(&format!("link \"{host}\" of n/c1/eth0")), "{error:?}");
    assert_eq!(fixed::verbs(&node), "ADD DEL");
    before.assert_same(&Snapshot::take(&node.lab));
    assert_pings(&c1, "10.1.0.1");
    assert_no_ping(&c2, "10.1.0.1");
}

#[test]
fn bad_configurations_are_refused_and_nothing_is_changed() {
    let node = Node::new("ptp-bad");
    fixed::answers(&node, &dual(2));
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    for (config, code, words) in [
        (json!({ "ipam": null }), 7, "no plugin name provided"),
        (json!({ "ipam": {} }), 7, "no plugin name provided"),
        (json!({ "mtu": -1 }), 7, "invalid MTU -1"),
        (json!({ "mtu": "1400" }), 6, "mtu"),
        (json!({ "ipMasq": "yes" }), 6, "ipMasq"),
        (
            json!({ "ipMasq": true, "ipMasqBackend": "ipset" }),
            7,
            "unknown ipmasq backend \"ipset\"",
        ),
        (json!({ "mtu": 65536 }), 7, "invalid MTU 65536"),
        (json!({ "mtu": 67 }), 7, "invalid MTU 67"),
    ] {
        ptp(&node, "ADD", &c1).config(config).call().fails(code, words);
        assert!(!succeeds(&c1, "ip link show eth0"));
    }
    for verb in ["CHECK", "STATUS"] {
        ptp(&node, verb, &c1).without("ipam").call().fails(7, "no plugin name provided");
    }
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(fixed::verbs(&node), "", "the address plugin must not even be asked");
    // DEL without `ipam` removes what it can.
    ptp(&node, "DEL", &c1).without("ipam").call().silent();
}

#[test]
fn an_interface_that_is_there_is_left_alone() {
    let node = Node::new("ptp-exists");
    let c1 = node.container("c1");
    attach(&node, &c1, &dual(2), json!({}));
    assert_pings(&c1, "fd00:1::1");
    fixed::forget(&node);
    let before = Snapshot::take(&node.lab);
    ptp(&node, "ADD", &c1)
        .call()
        .fails(106, "container veth name (\"eth0\") peer provided (\"veth");
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(fixed::verbs(&node), "");
}

#[test]
fn routes_have_their_attributes() {
    let node = Node::new("ptp-routes");
    let c1 = node.container("c1");
    let mut answer = dual(2);
    answer["routes"] = json!([
        { "dst": "0.0.0.0/0", "mtu": 1300, "advmss": 1200, "priority": 9 },
        { "dst": "fd00:7::/48", "table": 123 },
        { "dst": "10.8.0.0/16", "gw": "10.1.0.77" },
        { "dst": "10.9.0.0/16", "scope": 253 },
    ]);
    let result = attach(&node, &c1, &answer, json!({}));
    let routes = c1.sh("ip route; ip -6 route show table 123");
    for line in [
        "default via 10.1.0.1 dev eth0 metric 9 mtu 1300 advmss 1200",
        "10.8.0.0/16 via 10.1.0.77 dev eth0 onlink",
        "10.9.0.0/16 dev eth0 scope link",
        "fd00:7::/48 via fd00:1::1 dev eth0",
    ] {
        assert!(routes.contains(line), "{line} in {routes}");
    }
    ptp(&node, "CHECK", &c1).prev(&result).call().silent();
}

#[test]
fn name_servers_of_ipam_are_kept() {
    let node = Node::new("ptp-dns");
    let mut last = 1;
    for (config, want) in [
        (json!({}), json!(["10.0.0.53"])),
        (json!({ "dns": { "nameservers": ["10.0.0.9"] } }), json!(["10.0.0.9"])),
        (json!({ "dns": { "nameservers": [] } }), Value::Null),
    ] {
        last += 1;
        let mut answer = dual(last);
        answer["dns"] = json!({ "nameservers": ["10.0.0.53"] });
        let container = node.container(&format!("c{last}"));
        let result = attach(&node, &container, &answer, config);
        assert_eq!(result["dns"]["nameservers"], want);
    }
}

#[test]
fn ipv6_is_enabled_where_it_was_off() {
    let node = Node::new("ptp-v6on");
    let c1 = node.container("c1");
    c1.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    attach(&node, &c1, &dual(2), json!({}));
    assert_pings(&c1, "fd00:1::1");
}

#[test]
fn every_version_is_spoken() {
    let node = Node::new("ptp-versions");
    versions::all_are_spoken(&node, "ptp", &json!({ "ipMasq": true }));
}

#[test]
fn misspelt_keys_are_found() {
    versions::a_misspelt_key_is_found("ptp", "ipMasq", "ipMask");
}
