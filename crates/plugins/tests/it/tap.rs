//! `tap`: each row of the reference's behaviour, and what ours does better.

mod matrix;
mod traffic;

use serde_json::{Value, json};
use testkit::{Container, Place, Snapshot};

use crate::support::matrix::{Family, ipam};
use crate::support::{Node, Run};

fn add<'n>(node: &'n Node, container: &Container) -> Run<'n> {
    node.run("tap", "ADD").to(container)
}

fn del<'n>(node: &'n Node, container: &Container) -> Run<'n> {
    node.run("tap", "DEL").to(container)
}

fn succeeds(place: &impl Place, script: &str) -> bool {
    place.try_sh(script).status.success()
}

fn link(place: &impl Place, name: &str) -> Value {
    let text = place.sh(&format!("ip -d -j link show {name}"));
    serde_json::from_str::<Value>(&text).unwrap()[0].clone()
}

/// A tap as the kernel shows it.
fn tap(container: &Container) -> Value {
    let link = link(container, "eth0");
    assert_eq!(link["linkinfo"]["info_kind"], "tun");
    link["linkinfo"]["info_data"].clone()
}

#[test]
fn a_tap_without_addresses() {
    let node = Node::new("tap-plain");
    let c1 = node.container("c1");
    let result = add(&node, &c1).call().ok();
    let seen = link(&c1, "eth0");
    assert_eq!(seen["ifalias"], "netwright:n/c1/eth0");
    assert!(seen["flags"].as_array().unwrap().iter().any(|flag| flag == "UP"), "{seen}");
    let data = tap(&c1);
    assert_eq!(data["type"], "tap");
    assert_eq!(data["persist"], true);
    assert_eq!(data["multi_queue"], false);
    assert!(data.get("user").is_none() && data.get("group").is_none(), "{data}");
    let interfaces = result["interfaces"].as_array().unwrap();
    assert_eq!(interfaces.len(), 1);
    assert_eq!(interfaces[0]["name"], "eth0");
    assert_eq!(interfaces[0]["mac"], seen["address"]);
    assert_eq!(interfaces[0]["sandbox"], c1.netns().to_str().unwrap());
    assert!(result.get("ips").is_none_or(|ips| ips.as_array().unwrap().is_empty()), "{result}");
    node.run("tap", "CHECK").to(&c1).prev(&result).call().silent();
    del(&node, &c1).call().silent();
    assert!(!succeeds(&c1, "ip link show eth0"));
}

/// The reference drops `mac` and `mtu` when both `owner` and `group` are given, and has `vnet_hdr`
/// only then.
#[test]
fn every_key_counts_in_every_combination() {
    let node = Node::new("tap-keys");
    for (number, (owner, group)) in
        [(None, None), (Some(1000), None), (None, Some(107)), (Some(0), Some(0))].iter().enumerate()
    {
        for multi_queue in [false, true] {
            let c1 = node.container(&format!("c{number}{multi_queue}"));
            let mac = "02:00:00:00:00:07";
            let keys = json!({
                "owner": owner, "group": group, "multiQueue": multi_queue, "mac": mac, "mtu": 1400,
            });
            let result = add(&node, &c1).config(keys.clone()).call().ok();
            let seen = link(&c1, "eth0");
            assert_eq!((&seen["address"], &seen["mtu"]), (&json!(mac), &json!(1400)));
            assert_eq!(result["interfaces"][0]["mac"], mac);
            assert_eq!(result["interfaces"][0]["mtu"], 1400);
            let data = tap(&c1);
            assert_eq!(data["multi_queue"], multi_queue);
            assert_eq!(data["vnet_hdr"], true);
            assert_eq!(data.get("user").is_some(), owner.is_some(), "{data}");
            assert_eq!(data.get("group").is_some(), group.is_some(), "{data}");
            node.run("tap", "CHECK").to(&c1).config(keys).prev(&result).call().silent();
        }
    }
}

#[test]
fn mac_precedence() {
    let node = Node::new("tap-mac");
    let config = json!({ "mac": "02:00:00:00:00:01", "ipam": ipam(&node, Family::V4) });
    let runtime = json!({ "runtimeConfig": { "mac": "02:00:00:00:00:03" } });
    for (name, args, more, wanted) in [
        ("c1", "", json!({}), "02:00:00:00:00:01"),
        ("c2", "IgnoreUnknown=1;MAC=02:00:00:00:00:02", json!({}), "02:00:00:00:00:02"),
        ("c3", "IgnoreUnknown=1;K8S=x;MAC=02:00:00:00:00:02", runtime, "02:00:00:00:00:03"),
    ] {
        let c = node.container(name);
        let result = add(&node, &c).config(config.clone()).config(more).args(args).call().ok();
        assert_eq!(link(&c, "eth0")["address"], wanted);
        assert_eq!(result["interfaces"][0]["mac"], wanted);
    }
}

/// The reference succeeds, reports the old device and leaves a stray tap.
#[test]
fn existing_ifname_is_refused_with_nothing_changed() {
    let node = Node::new("tap-exists");
    let c1 = node.container("c1");
    for kind in ["ip tuntap add eth0 mode tap", "ip link add eth0 type veth peer name x"] {
        c1.sh(kind);
        let before = Snapshot::take(&node.lab);
        let links = c1.sh("ip -o link");
        let config = json!({ "ipam": ipam(&node, Family::V4) });
        add(&node, &c1).config(config).call().fails(106, "already exists");
        assert_eq!(c1.sh("ip -o link"), links);
        before.assert_same(&Snapshot::take(&node.lab));
        c1.sh("ip link del eth0");
    }
    let first = add(&node, &c1).call().ok();
    add(&node, &c1).call().fails(106, "already exists");
    node.run("tap", "CHECK").to(&c1).prev(&first).call().silent();
}

/// A link of the same name on the host does not conflict.
#[test]
fn names_on_the_host_do_not_matter() {
    let node = Node::new("tap-name");
    node.sh("ip link add eth0 type veth peer name x");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    add(&node, &c1).call().ok();
    del(&node, &c1).call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn dns_of_ipam_is_passed_on() {
    let node = Node::new("tap-dns");
    node.stub("fixed", r#"cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}],"dns":{"nameservers":["10.1.0.1"]}}'"#);
    let c1 = node.container("c1");
    let result = add(&node, &c1).config(json!({ "ipam": { "type": "fixed" } })).call().ok();
    assert_eq!(result["dns"]["nameservers"], json!(["10.1.0.1"]));
}

#[test]
fn a_tap_becomes_a_port_of_the_containers_bridge() {
    let node = Node::new("tap-bridge");
    let c1 = node.container("c1");
    c1.sh("ip link add br0 type bridge && ip link set br0 up");
    let keys = json!({ "bridge": "br0" });
    let result = add(&node, &c1).config(keys.clone()).call().ok();
    assert_eq!(link(&c1, "eth0")["master"], "br0");
    let check = || node.run("tap", "CHECK").to(&c1).config(keys.clone()).prev(&result).call();
    check().silent();
    c1.sh("ip link set eth0 nomaster");
    check().fails(104, "not a port of \"br0\"");
    c1.sh("ip link set eth0 master br0");
    check().silent();
    c1.sh("ip link del br0");
    check().fails(104, "failed to find bridge \"br0\"");
}

#[test]
fn check_sees_what_became_of_the_tap() {
    let node = Node::new("tap-check");
    let c1 = node.container("c1");
    let keys = json!({ "owner": 1000, "group": 107, "mtu": 1400, "ipam": ipam(&node, Family::V4) });
    let result = add(&node, &c1).config(keys.clone()).call().ok();
    let mac = result["interfaces"][0]["mac"].as_str().unwrap();
    let check = |more: Value| {
        node.run("tap", "CHECK").to(&c1).config(keys.clone()).config(more).prev(&result).call()
    };
    check(json!({})).silent();
    for (damage, words, repair) in [
        (
            "ip link set eth0 down".to_owned(),
            "is down",
            "ip link set eth0 up; ip route replace default via 10.1.0.1".to_owned(),
        ),
        (
            "ip link set eth0 address 02:00:00:00:00:99".to_owned(),
            "MAC",
            format!("ip link set eth0 address {mac}"),
        ),
        ("ip link set eth0 mtu 1500".to_owned(), "MTU", "ip link set eth0 mtu 1400".to_owned()),
        (
            "ip addr add 10.1.0.9/24 dev eth0; ip addr del 10.1.0.2/24 dev eth0".to_owned(),
            "failed to find IP",
            "ip addr add 10.1.0.2/24 dev eth0; ip route replace default via 10.1.0.1".to_owned(),
        ),
        (
            "ip route del default".to_owned(),
            "failed to find route",
            "ip route add default via 10.1.0.1".to_owned(),
        ),
    ] {
        c1.sh(&damage);
        check(json!({})).fails(104, words);
        c1.sh(&repair);
        check(json!({})).silent();
    }
    check(json!({ "owner": 1001 })).fails(104, "owner 1000, the configuration asks for 1001");
    check(json!({ "group": 108 })).fails(104, "group 107, the configuration asks for 108");
    check(json!({ "multiQueue": true })).fails(104, "multiQueue false");
    // CHECK does not compare what the configuration leaves open.
    check(json!({ "owner": null, "group": null, "mtu": null })).silent();
    for other in ["ip link add eth0 type veth peer name x", "ip tuntap add eth0 mode tun"] {
        c1.sh(&format!("ip link del eth0; {other} && ip link set eth0 up"));
        check(json!({})).error();
    }
    c1.sh("ip link del eth0");
    check(json!({})).fails(104, "is gone");
}

#[test]
fn del_bears_whatever_is_missing() {
    let node = Node::new("tap-del");
    let config = json!({ "ipam": ipam(&node, Family::Dual) });
    let before = Snapshot::take(&node.lab);
    let c1 = node.container("c1");
    let path = c1.netns();
    let run = || del(&node, &c1).config(config.clone());
    run().call().silent();
    add(&node, &c1).config(config.clone()).call().ok();
    c1.sh("ip link del eth0");
    run().call().silent();
    run().call().silent();
    add(&node, &c1).config(config.clone()).call().ok();
    // The call does not name the namespace: the record does.
    run().netns("").call().silent();
    assert!(!succeeds(&c1, "ip link show eth0"));
    add(&node, &c1).config(config.clone()).call().ok();
    c1.delete();
    run().call().silent();
    std::fs::write(node.lab.path(&path), "").unwrap();
    run().call().silent();
    std::fs::remove_file(node.lab.path(&path)).unwrap();
    run().config(json!({ "mac": "nonsense", "mtu": "x" })).args("x").call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
    let left = node.sh(&format!("ls {}/n | grep [.:] || true", node.dir("ipam").display()));
    assert!(!left.contains("10.1.0") && !left.contains("fd00"), "{left}");
}

/// A tap of the Go plugin has no mark; a tap of a foreign plugin has another.
#[test]
fn del_takes_the_references_tap_and_leaves_a_foreign_link() {
    let node = Node::new("tap-theirs");
    let c1 = node.container("c1");
    c1.sh("ip tuntap add eth0 mode tap");
    del(&node, &c1).call().silent();
    c1.sh("! ip link show eth0");
    for foreign in [
        "ip tuntap add eth0 mode tap && ip link set eth0 alias netwright:other/c1/eth0",
        "ip link add eth0 type veth peer name x",
    ] {
        c1.sh(foreign);
        let answer = del(&node, &c1).call();
        assert!(answer.succeeded() && answer.stderr().contains("left alone"), "{answer:?}");
        c1.sh("ip link del eth0");
    }
}

#[test]
fn a_failed_add_leaves_no_tap() {
    let node = Node::new("tap-fail");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    for script in [
        r#"echo '{"cniVersion":"1.1.0","code":11,"msg":"no address"}'; exit 1"#,
        r#"echo '{"cniVersion":"1.1.0"}'"#,
        r#"echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"},{"address":"10.1.0.2/24"}]}'"#,
    ] {
        node.stub("fixed", &format!("cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; {script}"));
        add(&node, &c1).config(json!({ "ipam": { "type": "fixed" } })).call().error();
        assert_eq!(c1.sh("ip -o link | wc -l").trim(), "1");
    }
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(node.sh(&format!("find {} -type f", node.dir("run").display())), "");
}

/// DEL deletes a tap even while a program has it open, and the program reads an error.
#[test]
fn del_takes_a_tap_that_is_in_use() {
    let node = Node::new("tap-open");
    let c1 = node.container("c1");
    add(&node, &c1).config(json!({ "multiQueue": true })).call().ok();
    let netns = kernel::netns::Netns::open(&c1.netns_path()).unwrap();
    let queues = [(), ()].map(|()| kernel::tun::open_tap(&netns, "eth0", true).unwrap());
    assert_eq!(tap(&c1)["numqueues"], 2);
    del(&node, &c1).call().silent();
    c1.sh("! ip link show eth0");
    for queue in queues {
        use std::io::Read as _;
        assert!(std::fs::File::from(queue).read(&mut [0; 64]).is_err());
    }
}

#[test]
fn bad_configurations_name_the_key_and_change_nothing() {
    let node = Node::new("tap-bad");
    let c1 = node.container("c1");
    c1.sh("ip link add notbridge type veth peer name other");
    let before = Snapshot::take(&node.lab);
    for (keys, code, words) in [
        (json!({ "mtu": -1 }), 7, "invalid MTU -1"),
        (json!({ "mtu": 67 }), 7, "invalid MTU 67, must be [68, 65521]"),
        (json!({ "mtu": 65_522 }), 7, "\"mtu\""),
        (json!({ "mtu": 5_000_000_000_u64 }), 7, "invalid MTU 5000000000"),
        (json!({ "mtu": "1500" }), 6, "mtu"),
        (json!({ "mac": "nonsense" }), 7, "address nonsense: invalid MAC address"),
        (json!({ "mac": "01:00:5e:00:00:01" }), 7, "multicast"),
        (json!({ "owner": -1 }), 6, "owner"),
        (json!({ "owner": u32::MAX }), 7, "invalid owner 4294967295"),
        (json!({ "group": u32::MAX }), 7, "invalid group 4294967295"),
        (json!({ "group": "kvm" }), 6, "group"),
        (json!({ "multiQueue": "yes" }), 6, "multiQueue"),
        (json!({ "bridge": "missing" }), 7, "failed to find bridge \"missing\": Link not found"),
        (json!({ "bridge": "a-name-that-is-too-long" }), 7, "failed to find bridge"),
        (json!({ "bridge": "notbridge" }), 7, "\"notbridge\" already exists but is not a bridge"),
        (
            json!({ "selinuxContext": "a_u:b_r:c_t:s0" }),
            2,
            "selinuxContext \"a_u:b_r:c_t:s0\" on a host without SELinux",
        ),
        (json!({ "selinuxcontext": "a_u:b_r:c_t:s0" }), 2, "failed set socket label"),
    ] {
        let ipam = json!({ "ipam": ipam(&node, Family::V4) });
        let error = add(&node, &c1).config(keys.clone()).config(ipam).call().error();
        assert!(error.code == code && error.to_string().contains(words), "{keys}: {error:?}");
    }
    add(&node, &c1).args("UNKNOWN=1").call().fails(4, "UNKNOWN");
    assert_eq!(c1.sh("ip -o link | wc -l").trim(), "3");
    before.assert_same(&Snapshot::take(&node.lab));
}

/// The host claims to have SELinux and its kernel does not: the kernel refuses the label, and ADD
/// leaves nothing.
#[test]
fn a_label_that_the_kernel_refuses_leaves_nothing() {
    let node = Node::new("tap-label");
    node.sh(
        "mount -t tmpfs none /sys/fs && mkdir /sys/fs/selinux && echo 1 >/sys/fs/selinux/enforce",
    );
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    let config = json!({ "selinuxContext": "no such label", "ipam": ipam(&node, Family::V4) });
    add(&node, &c1).config(config).call().fails(7, "failed set socket label: \"no such label\"");
    assert_eq!(c1.sh("ip -o link | wc -l").trim(), "1");
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn status_tells_that_taps_cannot_be_made() {
    let node = Node::new("tap-status");
    let status = |keys: Value| {
        let run = node.run("tap", "STATUS").config(keys);
        run.of_network().call()
    };
    status(json!({})).silent();
    status(json!({ "bridge": "in-container" })).silent();
    status(json!({ "selinuxContext": "a_u:b_r:c_t:s0" })).fails(50, "without SELinux");
    node.sh("mount -t tmpfs none /dev/net");
    status(json!({})).fails(50, "failed to create tap: open /dev/net/tun");
    let c1 = node.container("c1");
    add(&node, &c1).call().fails(100, "failed to create tap: open /dev/net/tun");
}
