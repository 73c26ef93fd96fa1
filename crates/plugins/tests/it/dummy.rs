//! `dummy`: each row of the reference's behaviour, and what ours does better.

mod matrix;

use serde_json::{Value, json};
use testkit::traffic::assert_pings;
use testkit::{Container, Place, Snapshot};

use crate::support::matrix::{Family, ipam};
use crate::support::{Node, Run};

fn add<'n>(node: &'n Node, container: &Container) -> Run<'n> {
    node.run("dummy", "ADD").to(container).config(json!({ "ipam": ipam(node, Family::Dual) }))
}

fn del<'n>(node: &'n Node, container: &Container) -> Run<'n> {
    node.run("dummy", "DEL").to(container).config(json!({ "ipam": ipam(node, Family::Dual) }))
}

fn link(place: &impl Place, name: &str) -> Value {
    let text = place.sh(&format!("ip -d -j link show {name}"));
    serde_json::from_str::<Value>(&text).unwrap()[0].clone()
}

#[test]
fn vm_the_link_is_made_in_the_container_and_reported() {
    testkit::require!("root", "dummy");
    let node = Node::new("dummy-add");
    // A link of the same name on the host does not conflict.
    node.sh("ip link add eth0 type dummy");
    let c1 = node.container("c1");
    let keys = json!({ "mtu": 9000, "mac": "02:00:00:00:00:07" });
    let result = add(&node, &c1).config(keys.clone()).call().ok();
    let seen = link(&c1, "eth0");
    assert_eq!(seen["linkinfo"]["info_kind"], "dummy");
    assert_eq!(seen["ifalias"], "netwright:n/c1/eth0");
    assert_eq!((&seen["mtu"], &seen["address"]), (&json!(9000), &json!("02:00:00:00:00:07")));
    let interfaces = result["interfaces"].as_array().unwrap();
    assert_eq!(interfaces.len(), 1);
    assert_eq!(interfaces[0]["name"], "eth0");
    assert_eq!(interfaces[0]["mac"], seen["address"]);
    assert_eq!(interfaces[0]["mtu"], 9000);
    assert_eq!(interfaces[0]["sandbox"], c1.netns().to_str().unwrap());
    assert!(result["ips"].as_array().unwrap().iter().all(|ip| ip["interface"] == 0), "{result}");
    node.run("dummy", "CHECK")
        .to(&c1)
        .config(keys.clone())
        .config(json!({ "ipam": ipam(&node, Family::Dual) }))
        .prev(&result)
        .call()
        .silent();
    let c2 = node.container("c2");
    let runtime = json!({ "runtimeConfig": { "mac": "02:00:00:00:00:08" } });
    let result = add(&node, &c2).config(keys).config(runtime).call().ok();
    assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:08");
}

/// The container answers for the dummy's address on every other link, also to the outside.
#[test]
fn vm_the_address_answers_from_everywhere() {
    testkit::require!("root", "full", "dummy");
    let node = Node::new("dummy-traffic");
    let outside = node.lab.outside();
    node.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    let mut addresses = Vec::new();
    let mut containers = Vec::new();
    for number in [1, 2] {
        let container = node.container(&format!("c{number}"));
        node.sh(&format!(
            "ip link add v{number} type veth peer name net0 netns c{number} && ip link set v{number} up && \
             ip addr add 10.2.{number}.1/24 dev v{number} && ip addr add fd00:2:{number}::1/64 dev v{number} nodad"
        ));
        container.sh(&format!(
            "ip link set lo up && ip link set net0 up && ip addr add 10.2.{number}.2/24 dev net0 && \
             ip addr add fd00:2:{number}::2/64 dev net0 nodad && ip route add default via 10.2.{number}.1 && \
             ip -6 route add default via fd00:2:{number}::1"
        ));
        let mut plain = ipam(&node, Family::Dual);
        plain["routes"] = json!([]);
        // The address is virtual: its subnet has no other addresses.
        plain["ranges"] = json!([[{ "subnet": format!("10.3.{number}.0/30") }], [{ "subnet": format!("fd00:3:{number}::/126") }]]);
        let result = node
            .run("dummy", "ADD")
            .to(&container)
            .ifname("vip0")
            .config(json!({ "ipam": plain }))
            .call()
            .ok();
        for ip in result["ips"].as_array().unwrap() {
            let address = ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
            let (version, via) = if address.contains(':') {
                ("-6", format!("fd00:2:{number}::2"))
            } else {
                ("-4", format!("10.2.{number}.2"))
            };
            node.sh(&format!("ip {version} route add {address} via {via}"));
            addresses.push(address);
        }
        containers.push(container);
    }
    outside.sh("ip route add 10.3.0.0/16 via 198.51.100.1 && ip -6 route add fd00:3::/32 via 2001:db8:ffff::1");
    for (from, to) in [(0, 2), (0, 3), (1, 0), (1, 1)] {
        assert_pings(&containers[from], &addresses[to]);
    }
    for address in &addresses {
        assert_pings(&outside, address);
    }
}

#[test]
fn vm_dns_of_ipam_is_passed_on() {
    testkit::require!("root", "dummy");
    let node = Node::new("dummy-dns");
    node.stub("fixed", r#"cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}],"dns":{"nameservers":["10.1.0.1"]}}'"#);
    let c1 = node.container("c1");
    let result = add(&node, &c1).config(json!({ "ipam": { "type": "fixed" } })).call().ok();
    assert_eq!(result["dns"]["nameservers"], json!(["10.1.0.1"]));
}

#[test]
fn vm_existing_ifname_is_refused_with_nothing_changed() {
    testkit::require!("root", "dummy");
    let node = Node::new("dummy-exists");
    let c1 = node.container("c1");
    c1.sh("ip link add eth0 type dummy");
    let before = Snapshot::take(&node.lab);
    add(&node, &c1).call().fails(106, "already exists");
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn vm_check_sees_what_became_of_the_link() {
    testkit::require!("root", "dummy");
    let node = Node::new("dummy-check");
    let c1 = node.container("c1");
    let keys = json!({ "mtu": 1400 });
    let result = add(&node, &c1).config(keys.clone()).call().ok();
    let mac = result["interfaces"][0]["mac"].as_str().unwrap();
    let check = || {
        let run = node.run("dummy", "CHECK").to(&c1).config(keys.clone()).prev(&result);
        run.config(json!({ "ipam": ipam(&node, Family::Dual) })).call()
    };
    check().silent();
    let routes = "ip route replace default via 10.1.0.1; ip -6 route replace default via fd00:1::1";
    for (damage, words, repair) in [
        ("ip link set eth0 down", "is down", format!("ip link set eth0 up; {routes}")),
        (
            "ip link set eth0 address 02:00:00:00:00:99",
            "MAC",
            format!("ip link set eth0 address {mac}"),
        ),
        ("ip link set eth0 mtu 1500", "MTU", "ip link set eth0 mtu 1400".to_owned()),
        (
            "ip addr del fd00:1::2/64 dev eth0",
            "failed to find IP",
            "ip addr add fd00:1::2/64 dev eth0 nodad".to_owned(),
        ),
        ("ip route del default", "failed to find route", routes.to_owned()),
        (
            "ip link del eth0; ip link add eth0 type veth peer name x",
            "no longer of kind dummy",
            "true".to_owned(),
        ),
        ("ip link del eth0", "is gone", "true".to_owned()),
    ] {
        c1.sh(damage);
        check().fails(104, words);
        c1.sh(&repair);
        if repair != "true" {
            check().silent();
        }
    }
}

#[test]
fn vm_del_bears_whatever_is_missing() {
    testkit::require!("root", "dummy");
    let node = Node::new("dummy-del");
    let before = Snapshot::take(&node.lab);
    let c1 = node.container("c1");
    del(&node, &c1).call().silent();
    add(&node, &c1).call().ok();
    c1.sh("ip link del eth0");
    del(&node, &c1).call().silent();
    del(&node, &c1).call().silent();
    add(&node, &c1).call().ok();
    del(&node, &c1).netns("").call().silent();
    c1.sh("! ip link show eth0");
    add(&node, &c1).call().ok();
    c1.delete();
    del(&node, &c1).call().silent();
    std::fs::write(node.lab.path(c1.netns()), "").unwrap();
    del(&node, &c1).config(json!({ "mtu": "x" })).call().silent();
    std::fs::remove_file(node.lab.path(c1.netns())).unwrap();
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn vm_a_failed_add_leaves_no_link() {
    testkit::require!("root", "dummy");
    let node = Node::new("dummy-fail");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    for script in [
        r#"echo '{"cniVersion":"1.1.0","code":11,"msg":"no address"}'; exit 1"#,
        r#"echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"},{"address":"10.1.0.2/24"}]}'"#,
    ] {
        node.stub("fixed", &format!("cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; {script}"));
        add(&node, &c1).config(json!({ "ipam": { "type": "fixed" } })).call().error();
        assert_eq!(c1.sh("ip -o link | wc -l").trim(), "1");
    }
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn bad_configurations_name_the_key_and_change_nothing() {
    let node = Node::new("dummy-bad");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    for (keys, code, words) in [
        (json!({ "ipam": null }), 7, "dummy interface requires an IPAM configuration"),
        (json!({ "ipam": {} }), 7, "dummy interface requires an IPAM configuration"),
        (json!({ "mtu": -1 }), 7, "invalid MTU -1"),
        (json!({ "mtu": {} }), 6, "mtu"),
        (json!({ "mac": "nonsense" }), 7, "address nonsense: invalid MAC address"),
        (json!({ "runtimeConfig": { "mac": "ff:ff:ff:ff:ff:ff" } }), 7, "invalid MAC address"),
    ] {
        let error = add(&node, &c1).config(keys.clone()).call().error();
        assert!(error.code == code && error.to_string().contains(words), "{keys}: {error:?}");
    }
    before.assert_same(&Snapshot::take(&node.lab));
}

/// On a kernel without the driver STATUS reports that before ADD does, and ADD leaves nothing.
#[test]
fn a_kernel_without_dummy_links_is_told() {
    if testkit::feature::available("dummy") {
        // The matrix shows that STATUS succeeds with the driver.
        return;
    }
    let node = Node::new("dummy-none");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    let run = node.run("dummy", "STATUS").config(json!({ "ipam": ipam(&node, Family::V4) }));
    let run = run.of_network();
    run.call().fails(50, "failed to create dummy");
    add(&node, &c1).call().fails(100, "CONFIG_DUMMY");
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(c1.sh("ip -o link | wc -l").trim(), "1");
}
