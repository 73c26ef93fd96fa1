//! `host-device`: each row of the reference's behaviour, and what ours does better.

mod find;
mod hardware;
mod home;
mod matrix;
mod userspace;

use serde_json::{Value, json};
use testkit::traffic::assert_pings;
use testkit::{Container, Place, Snapshot};

use crate::support::{Node, Run};

/// Makes a device for a container on the host: a pair of links, `p` and `name`. Both are down, and
/// make no IPv6 addresses themselves: the kernel gives a link that moves the namespace's defaults.
fn device(node: &Node, name: &str) {
    node.sh(&format!(
        "sysctl -qw net.ipv6.conf.default.addr_gen_mode=1 && ip link add {name} type veth peer name p{name}"
    ));
}

fn succeeds(place: &impl Place, script: &str) -> bool {
    place.try_sh(script).status.success()
}

fn link(place: &impl Place, name: &str) -> Value {
    let text = place.sh(&format!("ip -d -j link show {name}"));
    serde_json::from_str::<Value>(&text).unwrap()[0].clone()
}

fn up(place: &impl Place, name: &str) -> bool {
    link(place, name)["flags"].as_array().unwrap().iter().any(|flag| flag == "UP")
}

fn add<'n>(node: &'n Node, container: &Container) -> Run<'n> {
    node.run("host-device", "ADD").to(container).config(json!({ "device": "nic0" }))
}

fn del<'n>(node: &'n Node, container: &Container) -> Run<'n> {
    node.run("host-device", "DEL").to(container).config(json!({ "device": "nic0" }))
}

fn check<'n>(node: &'n Node, container: &Container, result: &Value) -> Run<'n> {
    let run = node.run("host-device", "CHECK").to(container);
    run.config(json!({ "device": "nic0" })).prev(result)
}

fn network<'n>(node: &'n Node, verb: &str) -> Run<'n> {
    node.run("host-device", verb).config(json!({ "device": "nic0" })).of_network()
}

/// An address plugin that logs its verbs.
fn fixed(node: &Node) -> Value {
    let log = node.dir("log").join("verbs");
    node.stub(
        "fixed",
        &format!(
            "cat >/dev/null; echo $CNI_COMMAND >>{}; [ $CNI_COMMAND = ADD ] || exit 0; \
             echo '{{\"cniVersion\":\"1.1.0\",\"ips\":[{{\"address\":\"10.1.0.2/24\"}}],\"dns\":{{\"nameservers\":[\"10.1.0.1\"]}}}}'",
            log.display()
        ),
    );
    json!({ "ipam": { "type": "fixed" } })
}

fn verbs(node: &Node) -> String {
    std::fs::read_to_string(node.dir("log").join("verbs")).unwrap_or_default().replace('\n', " ")
}

#[test]
fn the_device_moves_in_under_its_new_name() {
    let node = Node::new("hd-add");
    device(&node, "nic0");
    let c1 = node.container("c1");
    let mac = link(&node.lab, "nic0")["address"].clone();
    let result = add(&node, &c1).config(fixed(&node)).call().ok();
    let inside = link(&c1, "eth0");
    assert_eq!((&inside["address"], &inside["ifalias"]), (&mac, &json!("nic0")));
    assert!(up(&c1, "eth0"));
    assert!(!succeeds(&node.lab, "ip link show nic0"));
    let interfaces = result["interfaces"].as_array().unwrap();
    assert_eq!(interfaces.len(), 1);
    assert_eq!(interfaces[0]["name"], "eth0");
    assert_eq!(interfaces[0]["mac"], mac);
    assert_eq!(interfaces[0]["sandbox"], c1.netns().to_str().unwrap());
    assert_eq!(result["ips"][0]["interface"], 0);
    check(&node, &c1, &result).config(fixed(&node)).call().silent();
}

#[test]
fn without_ipam_the_device_comes_up_bare() {
    let node = Node::new("hd-bare");
    device(&node, "nic0");
    let c1 = node.container("c1");
    let result = add(&node, &c1).call().ok();
    assert!(result.get("ips").is_none_or(|ips| ips.as_array().unwrap().is_empty()), "{result}");
    assert!(up(&c1, "eth0"));
    check(&node, &c1, &result).call().silent();
}

/// The reference replaces them by the configuration's, even by an empty list.
#[test]
fn dns_of_ipam_is_passed_on() {
    let node = Node::new("hd-dns");
    device(&node, "nic0");
    let c1 = node.container("c1");
    let result = add(&node, &c1).config(fixed(&node)).call().ok();
    assert_eq!(result["dns"]["nameservers"], json!(["10.1.0.1"]));
}

#[test]
fn names_that_are_taken_on_either_side_are_not_in_the_way() {
    let node = Node::new("hd-names");
    device(&node, "nic0");
    node.sh("ip link add eth0 type veth peer name other");
    let c1 = node.container("c1");
    c1.sh("ip link add nic0 type veth peer name x");
    let before = Snapshot::take(&node.lab);
    let result = add(&node, &c1).call().ok();
    check(&node, &c1, &result).call().silent();
    assert_eq!(link(&c1, "eth0")["ifalias"], "nic0");
    del(&node, &c1).call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
    c1.sh("ip link show nic0 && ! ip link show eth0");
}

#[test]
fn existing_ifname_is_refused_with_nothing_changed() {
    let node = Node::new("hd-exists");
    device(&node, "nic0");
    let c1 = node.container("c1");
    c1.sh("ip link add eth0 type veth peer name x");
    let before = Snapshot::take(&node.lab);
    add(&node, &c1).config(fixed(&node)).call().fails(106, "already exists");
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(verbs(&node), "");
}

#[test]
fn a_failed_add_brings_the_device_home() {
    let node = Node::new("hd-fail");
    device(&node, "nic0");
    node.sh("ip link set nic0 up mtu 1400");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    node.stub("fixed", r#"cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; echo '{"cniVersion":"1.1.0","code":11,"msg":"no address"}'; exit 1"#);
    add(&node, &c1).config(json!({ "ipam": { "type": "fixed" } })).call().fails(11, "no address");
    // Addresses that the kernel refuses: the same one twice.
    node.stub("fixed", r#"cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"},{"address":"10.1.0.2/24"}]}'"#);
    add(&node, &c1).config(json!({ "ipam": { "type": "fixed" } })).call().error();
    before.assert_same(&Snapshot::take(&node.lab));
    assert!(!succeeds(&c1, "ip link show eth0"));
    assert_eq!(node.sh(&format!("find {} -type f", node.dir("run").display())), "");
}

#[test]
fn check_sees_what_became_of_the_device() {
    let node = Node::new("hd-check");
    device(&node, "nic0");
    let c1 = node.container("c1");
    let result = add(&node, &c1).config(fixed(&node)).call().ok();
    let check = || check(&node, &c1, &result).config(fixed(&node)).call();
    check().silent();
    let mac = link(&c1, "eth0")["address"].as_str().unwrap().to_owned();
    for (damage, words, repair) in [
        (
            "ip link set eth0 address 02:00:00:00:00:99".to_owned(),
            "MAC",
            format!("ip link set eth0 address {mac}"),
        ),
        ("ip link set eth0 down".to_owned(), "is down", "ip link set eth0 up".to_owned()),
        (
            "ip addr del 10.1.0.2/24 dev eth0".to_owned(),
            "failed to find IP",
            "ip addr add 10.1.0.2/24 dev eth0".to_owned(),
        ),
        (
            "ip link set eth0 down; ip link set eth0 name gone".to_owned(),
            "is gone",
            "ip link set gone name eth0; ip link set eth0 up; ip addr replace 10.1.0.2/24 dev eth0"
                .to_owned(),
        ),
    ] {
        c1.sh(&damage);
        check().fails(104, words);
        c1.sh(&repair);
        check().silent();
    }
    c1.sh(&format!("ip link set eth0 down && ip link set eth0 name was && ip link add eth0 address {mac} type bridge && ip addr add 10.1.0.2/24 dev eth0 && ip link set eth0 up"));
    check().fails(104, "another device");
}

#[test]
fn status_tells_whether_the_device_is_there_or_who_has_it() {
    let node = Node::new("hd-status");
    network(&node, "STATUS").call().fails(50, "Link not found");
    device(&node, "nic0");
    network(&node, "STATUS").call().silent();
    let c1 = node.container("c1");
    add(&node, &c1).call().ok();
    network(&node, "STATUS").call().fails(50, "in use by n/c1/eth0");
    del(&node, &c1).call().silent();
    network(&node, "STATUS").call().silent();
}

#[test]
fn a_device_in_use_is_refused_with_its_holder() {
    let node = Node::new("hd-held");
    device(&node, "nic0");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let mac = link(&node.lab, "nic0")["address"].clone();
    let result = add(&node, &c1).call().ok();
    let before = Snapshot::take(&node.lab);
    let more = fixed(&node);
    add(&node, &c2).config(more.clone()).call().fails(108, "in use by n/c1/eth0");
    let by_mac = add(&node, &c2).without("device").config(json!({ "hwaddr": mac })).config(more);
    by_mac.network("other").call().fails(108, "in use by n/c1/eth0");
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(verbs(&node), "", "the address plugin must not even be asked");
    // DEL of the second container takes nothing from the holder.
    del(&node, &c2).call().silent();
    check(&node, &c1, &result).call().silent();
    del(&node, &c1).call().silent();
    add(&node, &c2).call().ok();
}

/// A runtime runs DEL after an ADD that failed. The device is in the container, and belongs to
/// another attachment of it.
#[test]
fn del_of_a_refused_attachment_takes_nothing_from_the_same_container() {
    let node = Node::new("hd-held-here");
    device(&node, "nic0");
    let c1 = node.container("c1");
    let result = add(&node, &c1).call().ok();
    for (network, ifname) in [("n", "net2"), ("other", "net2"), ("other", "eth0")] {
        let refused = add(&node, &c1).network(network).ifname(ifname).call();
        assert!(!refused.succeeded(), "{network} {ifname}");
        del(&node, &c1).network(network).ifname(ifname).call().silent();
        check(&node, &c1, &result).call().silent();
    }
    del(&node, &c1).call().silent();
    node.sh("ip link show nic0");
}

/// The second attachment is refused, however late it learns of the first, and takes nothing from
/// it.
#[test]
fn two_at_once_for_one_device() {
    let node = Node::new("hd-race");
    device(&node, "nic0");
    let before = Snapshot::take(&node.lab);
    let containers: Vec<_> = (0..4).map(|number| node.container(&format!("c{number}"))).collect();
    for _ in 0..4 {
        let answers: Vec<_> = std::thread::scope(|scope| {
            let node = &node;
            let add = |container| scope.spawn(move || add(node, container).call());
            let running: Vec<_> = containers.iter().map(add).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winners: Vec<_> = (0..4).filter(|&number| answers[number].succeeded()).collect();
        assert_eq!(winners.len(), 1, "{answers:?}");
        for (number, container) in containers.iter().enumerate() {
            if number != winners[0] {
                del(&node, container).call().silent();
            }
        }
        let result = answers[winners[0]].clone().ok();
        check(&node, &containers[winners[0]], &result).call().silent();
        del(&node, &containers[winners[0]]).call().silent();
    }
    drop(containers);
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn bad_configurations_name_the_key_and_change_nothing() {
    let node = Node::new("hd-bad");
    device(&node, "nic0");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    for (keys, code, words) in [
        (json!({}), 7, r#"specify either "device", "hwaddr", "kernelpath" or "pciBusID""#),
        (json!({ "device": "" }), 7, "specify either"),
        (json!({ "device": 7 }), 6, "device"),
        (json!({ "device": "no-such" }), 7, "failed to find host device: Link not found"),
        (json!({ "device": "a-name-that-is-longer-than-any" }), 7, "failed to find host device"),
        (json!({ "device": "lo" }), 7, "loopback"),
        (json!({ "hwaddr": "nonsense" }), 7, r#"failed to parse MAC address "nonsense""#),
        (json!({ "hwaddr": "02:00:00:00:12:34" }), 7, "failed to find physical interface"),
        (json!({ "kernelpath": "nic0" }), 7, "must be absolute and begin with /sys/devices/"),
        (json!({ "kernelpath": "/sys/devices/../class" }), 7, "must be absolute"),
        (
            json!({ "kernelpath": "/sys/devices/none" }),
            7,
            "failed to find network devices at \"/sys/devices/none/net\"",
        ),
        (
            json!({ "pciBusID": "ffff:00:00.0" }),
            7,
            "error with host device: lstat /sys/bus/pci/devices/ffff:00:00.0/driver: no such file or directory",
        ),
        (json!({ "pciBusID": "../../x" }), 7, "invalid pciBusID"),
        (
            json!({ "runtimeConfig": { "deviceID": "none.sf.1" } }),
            7,
            "runtime config DeviceID none.sf.1 not found or unsupported",
        ),
        (json!({ "runtimeConfig": { "deviceID": 1 } }), 6, "deviceID"),
    ] {
        let run = node.run("host-device", "ADD").to(&c1).config(keys.clone());
        let error = run.config(fixed(&node)).call().error();
        assert!(error.code == code && error.to_string().contains(words), "{keys}: {error:?}");
    }
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(verbs(&node), "");
    assert_eq!(c1.sh("ip -o link | wc -l").trim(), "1");
}

/// The host is a switch for two containers, and connects them to its uplink.
#[test]
fn traffic_between_containers_and_to_the_outside() {
    let node = Node::new("hd-traffic");
    let _outside = node.lab.outside();
    node.sh(
        "ip link add br0 type bridge && ip link set br0 up && ip addr add 10.1.0.1/24 dev br0 && \
         ip addr add fd00:1::1/64 dev br0 nodad && \
         sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 && \
         nft add table inet t && nft 'add chain inet t p { type nat hook postrouting priority 100; }' && \
         nft add rule inet t p oifname up0 masquerade",
    );
    let ipam = crate::support::matrix::ipam(&node, crate::support::matrix::Family::Dual);
    let mut containers = Vec::new();
    for (name, nic) in [("c1", "nic1"), ("c2", "nic2")] {
        device(&node, nic);
        node.sh(&format!("ip link set p{nic} master br0 up"));
        let container = node.container(name);
        let run = add(&node, &container).config(json!({ "device": nic, "ipam": ipam }));
        let result = run.call().ok();
        containers.push((container, result));
    }
    let address = |at: usize, ip: usize| {
        let text = containers[at].1["ips"][ip]["address"].as_str().unwrap();
        text.split('/').next().unwrap().to_owned()
    };
    for ip in [0, 1] {
        assert_pings(&containers[0].0, &address(1, ip));
        assert_pings(&containers[1].0, &address(0, ip));
    }
    assert_pings(&containers[0].0, "198.51.100.2");
    assert_pings(&containers[0].0, "2001:db8:ffff::2");
}
