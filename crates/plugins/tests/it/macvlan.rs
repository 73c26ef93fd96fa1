//! `macvlan`: each row of the reference's behaviour, and what ours does better.

mod matrix;
mod parent;
mod remove;

use serde_json::{Value, json};
use testkit::traffic::{self, assert_no_ping, assert_pings};
use testkit::{Container, Place, Snapshot};

use crate::support::fixed::{self, link, succeeds};
use crate::support::on_parent::{self, host};
use crate::support::{Node, Run};

fn macvlan<'n>(node: &'n Node, verb: &str, container: &Container) -> Run<'n> {
    node.run("macvlan", verb).to(container).config(json!({ "master": "p0" }))
}

/// Attaches a container whose addresses end in `last`.
fn attach(node: &Node, container: &Container, last: u8, config: Value) -> Value {
    fixed::gives(node, &on_parent::addresses(last));
    macvlan(node, "ADD", container).config(fixed::ipam()).config(config).call().ok()
}

fn read(container: &Container, key: &str) -> String {
    container.sh(&format!("cat /proc/sys/net/{key}")).trim().to_owned()
}

#[test]
fn the_result_has_one_interface_that_is_as_reported() {
    let node = host("macvlan-result");
    let c1 = node.container("c1");
    let result = attach(&node, &c1, 2, json!({}));
    let interfaces = result["interfaces"].as_array().unwrap();
    assert_eq!(interfaces.len(), 1, "{result}");
    assert_eq!(interfaces[0]["name"], "eth0");
    assert_eq!(interfaces[0]["sandbox"], c1.netns().to_str().unwrap());
    assert!(result["ips"].as_array().unwrap().iter().all(|ip| ip["interface"] == 0), "{result}");
    let shown = link(&c1, "eth0");
    assert_eq!(shown["address"], interfaces[0]["mac"]);
    assert_eq!(shown["mtu"], interfaces[0]["mtu"]);
    assert_eq!(shown["ifalias"], "netwright:n/c1/eth0");
    assert_eq!(shown["linkinfo"]["info_data"]["mode"], "bridge");
    assert_eq!(read(&c1, "ipv4/conf/eth0/arp_notify"), "1");
    assert_eq!(read(&c1, "ipv6/conf/eth0/ndisc_notify"), "1");
    // As with the reference, the host sees nothing of the link.
    assert!(!succeeds(&node.lab, "ip link show type macvlan | grep ."));
}

#[test]
fn containers_reach_each_other_and_the_outside_but_not_the_host() {
    let node = host("macvlan-traffic");
    let outside = node.container("outside");
    node.sh("ip link set p1 netns outside && ip addr add 10.1.0.9/24 dev p0");
    outside.sh(
        "ip link set p1 up && ip addr add 10.1.0.1/24 dev p1 && ip addr add fd00:1::1/64 dev p1 nodad \
         && ip addr add 198.51.100.2/32 dev p1",
    );
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let mut result = json!({ "ips": [
        { "address": "10.1.0.2/24", "gateway": "10.1.0.1" },
        { "address": "fd00:1::2/64", "gateway": "fd00:1::1" },
    ], "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }] });
    for (container, last) in [(&c1, 2), (&c2, 3)] {
        result["ips"][0]["address"] = json!(format!("10.1.0.{last}/24"));
        result["ips"][1]["address"] = json!(format!("fd00:1::{last}/64"));
        fixed::answers(&node, &result);
        macvlan(&node, "ADD", container).config(fixed::ipam()).call().ok();
    }
    assert_pings(&c1, "10.1.0.3");
    assert_pings(&c1, "fd00:1::3");
    assert_pings(&c1, "fd00:1::1");
    let web = traffic::Server::tcp(&outside, "0.0.0.0:80", "web");
    let seen = traffic::assert_tcp(&c1, "198.51.100.2:80").seen.ip().to_string();
    assert_eq!(seen, "10.1.0.2", "addresses are not translated");
    drop(web);
    assert_no_ping(&c1, "10.1.0.9");
}

#[test]
fn modes_decide_who_is_reached() {
    for (mode, siblings) in [("bridge", true), ("private", false), ("vepa", false)] {
        let node = host(&format!("macvlan-{mode}"));
        let outside = node.container("outside");
        node.sh("ip link set p1 netns outside");
        outside.sh("ip link set p1 up && ip addr add 10.1.0.1/24 dev p1");
        let (c1, c2) = (node.container("c1"), node.container("c2"));
        for (container, last) in [(&c1, 2), (&c2, 3)] {
            attach(&node, container, last, json!({ "mode": mode }));
            assert_eq!(link(container, "eth0")["linkinfo"]["info_data"]["mode"], mode);
        }
        assert_pings(&c1, "10.1.0.1");
        match siblings {
            true => assert_pings(&c1, "10.1.0.3"),
            false => assert_no_ping(&c1, "10.1.0.3"),
        }
    }
}

#[test]
fn passthru_takes_the_parent_whole_and_gives_it_back() {
    let node = host("macvlan-passthru");
    let outside = node.container("outside");
    node.sh("ip link set p1 netns outside");
    outside.sh("ip link set p1 up && ip addr add 10.1.0.1/24 dev p1");
    let c2 = node.container("c2");
    let before = Snapshot::take(&node.lab);
    let parent = link(&node.lab, "p0")["address"].clone();
    let c1 = node.container("c1");
    let result = attach(&node, &c1, 2, json!({ "mode": "passthru" }));
    assert_eq!(result["interfaces"][0]["mac"], parent, "the parent's own address");
    assert_pings(&c1, "10.1.0.1");

    macvlan(&node, "ADD", &c2).call().fails(100, "mode passthru has parent \"p0\" for itself");
    let passthru = json!({ "mode": "passthru" });
    macvlan(&node, "DEL", &c1).config(fixed::ipam()).config(passthru.clone()).call().silent();
    c1.delete();
    before.assert_same(&Snapshot::take(&node.lab));

    attach(&node, &c2, 3, json!({}));
    let c3 = node.container("c3");
    let refused = macvlan(&node, "ADD", &c3).config(passthru.clone()).call();
    refused.fails(100, "mode passthru takes parent \"p0\" whole, and it serves a macvlan already");
    macvlan(&node, "DEL", &c2).call().silent();

    // The parent takes the container's hardware address, and gets its own back.
    let mac = json!({ "mode": "passthru", "mac": "02:00:5e:00:53:09" });
    macvlan(&node, "ADD", &c3).config(mac).call().ok();
    assert_eq!(link(&node.lab, "p0")["address"], "02:00:5e:00:53:09");
    macvlan(&node, "DEL", &c3).config(passthru).call().silent();
    assert_eq!(link(&node.lab, "p0")["address"], parent);
}

#[test]
fn mtu_is_the_parents_or_less() {
    let node = host("macvlan-mtu");
    node.sh("ip link set p0 mtu 1400");
    for (id, mtu, want) in [("c1", 0, 1400), ("c2", 1300, 1300), ("c3", 1400, 1400)] {
        let container = node.container(id);
        let result = macvlan(&node, "ADD", &container).config(json!({ "mtu": mtu })).call().ok();
        assert_eq!(link(&container, "eth0")["mtu"], want);
        assert_eq!(result["interfaces"][0]["mtu"], want);
    }
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_changed() {
    let node = host("macvlan-bad");
    fixed::gives(&node, &json!([{ "address": "10.1.0.2/24" }]));
    node.sh("ip link add br0 type bridge && ip link add q0 type veth peer name q1 && ip link set q0 master br0");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    for (config, code, words) in [
        (json!({ "master": "p9" }), 7, "failed to lookup master \"p9\": Link not found"),
        (json!({ "master": "a-name-that-is-too-long" }), 7, "Link not found"),
        (json!({ "master": "lo" }), 7, "\"lo\" cannot be a parent"),
        (json!({ "mode": "source" }), 7, "unknown macvlan mode: \"source\""),
        (json!({ "mode": 5 }), 6, "mode"),
        (json!({ "mtu": -1 }), 7, "invalid MTU -1"),
        (json!({ "mtu": 1501 }), 7, "invalid MTU 1501, must be [0, master MTU(1500)]"),
        (json!({ "mtu": "1400" }), 6, "mtu"),
        (json!({ "bcqueuelen": -1 }), 6, "bcqueuelen"),
        (json!({ "mac": "nonsense" }), 7, "address nonsense: invalid MAC address"),
        (json!({ "runtimeConfig": { "mac": "01:00:5e:00:00:01" } }), 7, "invalid MAC address"),
        (json!({ "linkInContainer": true }), 7, "failed to lookup master \"p0\""),
        (json!({ "linkInContainer": "yes" }), 6, "linkInContainer"),
        (json!({ "parent": { "mac": "02:00:5e:00:53:01" } }), 7, "exclude each other"),
        (json!({ "ipam": {}, "master": "q0" }), 100, "\"q0\" is a port of bridge \"br0\""),
    ] {
        let call = macvlan(&node, "ADD", &c1).config(fixed::ipam()).config(config.clone());
        let answer = call.call();
        eprintln!("{config}: {}", answer.stdout());
        answer.fails(code, words);
        assert!(!succeeds(&c1, "ip link show eth0"), "{config}");
    }
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(fixed::verbs(&node), "", "the address plugin must not even be asked");
}

#[test]
fn the_hardware_address_is_chosen_by_config_args_and_runtime() {
    let node = host("macvlan-mac");
    let one = "02:00:5e:00:53:01";
    let (two, three) = ("02:00:5e:00:53:02", "02:00:5e:00:53:03");
    for (id, args, config, want) in [
        ("c1", String::new(), json!({ "mac": one }), one),
        ("c2", format!("IgnoreUnknown=1;MAC={two};X=y"), json!({ "mac": one }), two),
        (
            "c3",
            format!("MAC={two}"),
            json!({ "mac": one, "runtimeConfig": { "mac": three } }),
            three,
        ),
    ] {
        let container = node.container(id);
        let result = macvlan(&node, "ADD", &container).args(&args).config(config).call().ok();
        assert_eq!(result["interfaces"][0]["mac"], want);
        assert_eq!(link(&container, "eth0")["address"], want);
    }
}

#[test]
fn bcqueuelen_reaches_the_kernel() {
    let node = host("macvlan-bcqueue");
    let c1 = node.container("c1");
    macvlan(&node, "ADD", &c1).config(json!({ "bcqueuelen": 4321 })).call().ok();
    let shown = c1.sh("ip -d link show eth0");
    assert!(shown.contains("bcqueuelen 4321"), "{shown}");
}

#[test]
fn without_ipam_the_link_comes_up_without_addresses() {
    let node = host("macvlan-l2");
    for (id, config) in [("c1", json!({})), ("c2", json!({ "ipam": {} }))] {
        let container = node.container(id);
        let result = macvlan(&node, "ADD", &container).config(config.clone()).call().ok();
        assert!(result.get("ips").is_none(), "{result}");
        assert!(succeeds(&container, "ip link show eth0 up | grep -q eth0"));
        macvlan(&node, "CHECK", &container).config(config).prev(&result).call().silent();
    }
}

#[test]
fn name_servers_of_ipam_are_kept() {
    let node = host("macvlan-dns");
    fixed::answers(
        &node,
        &json!({ "ips": [{ "address": "10.1.0.2/24" }], "dns": { "nameservers": ["10.0.0.53"] } }),
    );
    for (id, config, want) in [
        ("c1", json!({}), json!(["10.0.0.53"])),
        ("c2", json!({ "dns": { "nameservers": ["10.0.0.9"] } }), json!(["10.0.0.9"])),
        ("c3", json!({ "dns": { "nameservers": [] } }), Value::Null),
    ] {
        let container = node.container(id);
        let call = macvlan(&node, "ADD", &container).config(fixed::ipam());
        assert_eq!(call.config(config).call().ok()["dns"]["nameservers"], want, "{id}");
    }
}

#[test]
fn duplicate_addresses_are_looked_for_when_asked_to() {
    let node = host("macvlan-dad");
    let c1 = node.container("c1");
    attach(&node, &c1, 2, json!({}));
    assert_eq!(read(&c1, "ipv6/conf/eth0/accept_dad"), "0");
    assert!(!c1.sh("ip -6 addr show eth0 scope global").contains("tentative"));
    let (c2, c3) = (node.container("c2"), node.container("c3"));
    attach(&node, &c3, 3, json!({ "enabledad": true }));
    assert_eq!(read(&c3, "ipv6/conf/eth0/accept_dad"), "1");
    assert_eq!(read(&c3, "ipv6/conf/eth0/enhanced_dad"), "1");
    assert!(!c3.sh("ip -6 addr show eth0 scope global").contains("tentative"));

    fixed::forget(&node);
    fixed::gives(&node, &json!([{ "address": "fd00:1::2/64" }]));
    let shared = json!({ "enabledad": true, "allowAddressConflict": true });
    let call = macvlan(&node, "ADD", &c2).config(fixed::ipam()).config(shared);
    call.call().fails(108, "duplicate address detection failed for fd00:1::2/64");
    assert!(!succeeds(&c2, "ip link show eth0"));
    assert_eq!(fixed::verbs(&node), "ADD DEL");

    // No host can answer on a cable that leads nowhere, and ADD does not wait.
    node.sh("ip link set p1 down");
    let c4 = node.container("c4");
    attach(&node, &c4, 4, json!({ "enabledad": true }));
}

#[test]
fn routes_have_their_attributes() {
    let node = host("macvlan-routes");
    fixed::answers(
        &node,
        &json!({
            "ips": [{ "address": "10.1.0.2/24", "gateway": "10.1.0.1" }, { "address": "fd00:1::2/64", "gateway": "fd00:1::1" }],
            "routes": [
                { "dst": "0.0.0.0/0", "mtu": 1300, "advmss": 1200, "priority": 9 },
                { "dst": "fd00:7::/48", "table": 123 },
                { "dst": "10.8.0.0/16", "scope": 253 },
            ],
        }),
    );
    let c1 = node.container("c1");
    let result = macvlan(&node, "ADD", &c1).config(fixed::ipam()).call().ok();
    let routes = c1.sh("ip route; ip -6 route show table 123");
    for line in [
        "default via 10.1.0.1 dev eth0 metric 9 mtu 1300 advmss 1200",
        "10.8.0.0/16 dev eth0 scope link",
        "fd00:7::/48 via fd00:1::1 dev eth0",
    ] {
        assert!(routes.contains(line), "{line} in {routes}");
    }
    macvlan(&node, "CHECK", &c1).config(fixed::ipam()).prev(&result).call().silent();
}

#[test]
fn check_sees_every_drift() {
    let node = host("macvlan-check");
    node.sh("ip link add q0 type veth peer name q1 && ip link set q0 up");
    fixed::answers(
        &node,
        &json!({
            "ips": [{ "address": "10.1.0.2/24", "gateway": "10.1.0.1" }, { "address": "fd00:1::2/64" }],
            "routes": [{ "dst": "10.7.0.0/16" }],
        }),
    );
    let c1 = node.container("c1");
    let result = macvlan(&node, "ADD", &c1).config(fixed::ipam()).call().ok();
    let mac = result["interfaces"][0]["mac"].as_str().unwrap().to_owned();
    let check = || macvlan(&node, "CHECK", &c1).config(fixed::ipam()).prev(&result);
    check().call().silent();
    for (damage, repair, words) in [
        (
            "ip addr del 10.1.0.2/24 dev eth0",
            "ip addr add 10.1.0.2/24 dev eth0 && ip route add 10.7.0.0/16 via 10.1.0.1",
            "failed to find IP 10.1.0.2/24",
        ),
        (
            "ip addr del fd00:1::2/64 dev eth0",
            "ip addr add fd00:1::2/64 dev eth0 nodad",
            "failed to find IP fd00:1::2/64",
        ),
        (
            "ip route del 10.7.0.0/16",
            "ip route add 10.7.0.0/16 via 10.1.0.1",
            "failed to find route 10.7.0.0/16",
        ),
        (
            "ip link set eth0 address 02:00:00:00:00:07",
            &format!("ip link set eth0 address {mac}"),
            "has MAC address 02:00:00:00:00:07",
        ),
        (
            "ip link set eth0 type macvlan mode private",
            "ip link set eth0 type macvlan mode bridge",
            "has macvlan mode private, the configuration asks for bridge",
        ),
        (
            "ip link set eth0 down",
            "ip link set eth0 up && ip route add 10.7.0.0/16 via 10.1.0.1",
            "is down",
        ),
    ] {
        c1.sh(damage);
        check().call().fails(104, words);
        c1.sh(repair);
        check().call().silent();
    }
    check().config(json!({ "master": "q0" })).call().fails(104, "is not on \"q0\"");
    check().config(json!({ "master": "q9" })).call().fails(104, "failed to lookup master \"q9\"");
    check().config(json!({ "mode": "vepa" })).call().fails(104, "asks for vepa");
    check().without("prevResult").call().fails(7, "Required prevResult missing");
    c1.sh("ip link del eth0 && ip link add eth0 type veth peer name eth1");
    check().call().fails(104, "is no longer of kind macvlan");
    c1.sh("ip link del eth0");
    check().call().fails(104, "is gone from the container");
}

#[test]
fn status_tells_whether_the_parent_is_there() {
    let node = host("macvlan-status");
    let status = |config: Value| node.run("macvlan", "STATUS").config(config).call();
    status(json!({ "master": "p0" })).silent();
    status(json!({ "master": "p9" })).fails(50, "failed to lookup master \"p9\": Link not found");
    status(json!({})).fails(50, "no default route interface found");
    status(json!({ "master": "p0", "mtu": 9000 })).fails(50, "invalid MTU 9000");
    status(json!({ "master": "p0", "mode": "x" })).fails(7, "unknown macvlan mode");
    // STATUS cannot ask about links in containers.
    status(json!({ "master": "p9", "linkInContainer": true })).silent();
    fixed::fails(&node, "STATUS", &json!({ "code": 51, "msg": "pool is nearly empty" }));
    status(json!({ "master": "p0", "ipam": { "type": "fixed" } })).fails(51, "nearly empty");
}
