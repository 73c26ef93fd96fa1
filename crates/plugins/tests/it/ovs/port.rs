//! A port's rows, VLANs, numbers and names, and that frames reach their destination.

use std::time::{Duration, Instant};

use kernel::packet::{Filter, MAX_FRAME, PacketSocket};
use serde_json::json;
use testkit::{Container, Place, traffic};

use super::{add, address, assert_reaches, keys, require_switch, switch};
use crate::support::Node;

#[test]
fn containers_of_one_vlan_reach_each_other_and_no_others() {
    require_switch!();
    let node = Node::new("ovs-vlan");
    let ovs = switch(&node);
    let containers: Vec<_> = ["c1", "c2", "c3"].map(|name| node.container(name)).into();
    let mut addresses = Vec::new();
    for (container, vlan) in containers.iter().zip([100, 100, 200]) {
        let result = add(&node, container, &keys(&node, &ovs, json!({ "vlan": vlan }))).call().ok();
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 2, "{result}");
        assert_eq!(result["ips"][0]["interface"], 1, "{result}");
        let port = result["interfaces"][0]["name"].as_str().unwrap();
        assert_eq!(ovs.vsctl(&["get", "port", port, "tag"]), vlan.to_string());
        assert_eq!(ovs.vsctl(&["get", "port", port, "vlan_mode"]), "access");
        addresses.push(address(&result));
    }
    assert_reaches(&containers[0], &containers[1], &addresses[1]);
    assert_reaches(&containers[1], &containers[0], &addresses[0]);
    traffic::assert_no_ping(&containers[0], &addresses[2]);
    traffic::assert_no_ping(&containers[2], &addresses[1]);
}

#[test]
fn both_families_reach_each_other() {
    require_switch!();
    let node = Node::new("ovs-dual");
    let ovs = switch(&node);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let ipam = json!({ "ipam": {
        "type": "host-local", "dataDir": node.dir("ipam"),
        "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
    }});
    add(&node, &c1, &keys(&node, &ovs, ipam.clone())).call().ok();
    let result = add(&node, &c2, &keys(&node, &ovs, ipam)).call().ok();
    traffic::assert_pings(&c1, &address(&result));
    let v6 = result["ips"][1]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    traffic::assert_pings(&c1, &v6);
}

#[test]
fn what_operators_and_ovn_look_for_is_in_the_database() {
    require_switch!();
    let node = Node::new("ovs-ids");
    let ovs = switch(&node);
    let c1 = node.container("c1");
    let keys = keys(
        &node,
        &ovs,
        json!({
            "externalIds": { "team": "blue" },
            "ofport_request": 77,
            "mtu": 1400,
            "args": { "cni": { "OVNPORT": "ls1-p1", "mac": "02:00:5e:00:53:01", "more": [1] } },
        }),
    );
    let result =
        add(&node, &c1, &keys).args("IgnoreUnknown=1;K8S_POD_UID=uid-1;K8S_POD_NAME=p").call().ok();
    let port = result["interfaces"][0]["name"].as_str().unwrap();
    assert_eq!(result["interfaces"][1]["mac"], "02:00:5e:00:53:01");
    let interface = |column: &str| ovs.vsctl(&["get", "interface", port, column]);
    assert_eq!(interface("ofport"), "77");
    assert_eq!(interface("external_ids:iface-id"), "ls1-p1");
    assert_eq!(interface("external_ids:attached-mac"), "\"02:00:5e:00:53:01\"");
    assert_eq!(interface("external_ids:team"), "blue");
    assert_eq!(interface("external_ids:netwright-container"), "c1");
    assert_eq!(interface("error"), "[]");
    let key = |name: &str| ovs.vsctl(&["get", "port", port, &format!("external_ids:{name}")]);
    assert_eq!(key("netwright-network"), "n");
    assert_eq!(key("netwright-ifname"), "eth0");
    assert_eq!(key("netwright-owner").trim_matches('"').len(), 32);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(key("netwright-boot").trim_matches('"'), boot.trim());
    assert_eq!(key("contIface"), "eth0");
    assert_eq!(key("contPodUid"), "uid-1");
    assert_eq!(key("owner"), "ovs-cni.network.kubevirt.io");
    assert_eq!(key("contNetns").trim_matches('"'), c1.netns().to_str().unwrap());
    assert!(c1.sh("ip link show eth0").contains("mtu 1400 "));
    assert!(node.sh(&format!("cat /sys/class/net/{port}/mtu")).starts_with("1400"));
}

#[test]
fn a_trunk_goes_into_the_container() {
    require_switch!();
    let node = Node::new("ovs-trunk");
    let ovs = switch(&node);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let trunk = json!({ "trunk": [{ "id": 42 }, { "minID": 1000, "maxID": 1010 }], "ipam": {} });
    let result = add(&node, &c1, &keys(&node, &ovs, trunk)).call().ok();
    let port = result["interfaces"][0]["name"].as_str().unwrap();
    let trunks = ovs.vsctl(&["get", "port", port, "trunks"]);
    assert_eq!(trunks.matches(',').count(), 11, "{trunks}");
    assert_eq!(ovs.vsctl(&["get", "port", port, "vlan_mode"]), "trunk");
    assert_eq!(ovs.vsctl(&["get", "port", port, "tag"]), "[]");
    assert!(result.get("ips").is_none_or(|ips| ips.as_array().unwrap().is_empty()), "{result}");
    // The container sends tagged frames: an access port of VLAN 42 gets those of its VLAN, without
    // the tag.
    add(&node, &c2, &keys(&node, &ovs, json!({ "vlan": 42 }))).call().ok();
    let socket = |place: &Container, filter: Filter| {
        let shown = place.sh("ip -o link show eth0");
        let index = shown.split(':').next().unwrap().parse().unwrap();
        place.enter(|| PacketSocket::open(index, &filter)).unwrap()
    };
    let listener = socket(&c2, Filter::arp());
    let sender = socket(&c1, Filter::nothing());
    // The first frames may come before the switch has its flows.
    let deadline = Instant::now() + Duration::from_secs(20);
    let heard = loop {
        for vlan in [43, 1005, 42] {
            sender.send(&tagged_arp(vlan)).unwrap();
        }
        let mut buffer = [0; MAX_FRAME];
        let frame = listener.receive(&mut buffer).unwrap().map(|frame| frame.octets.to_vec());
        if let Some(frame) = frame.filter(|frame| frame[6..11] == SENDER) {
            break frame;
        }
        assert!(Instant::now() < deadline, "nothing of VLAN 42 arrived\n{}", ovs.log());
        std::thread::yield_now();
    };
    assert_eq!((heard[11], &heard[12..14]), (42, &[0x08, 0x06][..]), "{heard:x?}");
}

/// The first octets of the sender of tagged frames; the last octet is the VLAN ID.
const SENDER: [u8; 5] = [2, 0, 0, 0, 0];

/// A broadcast ARP request with a VLAN tag.
fn tagged_arp(vlan: u16) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    let mut frame = vec![0xff; 6];
    frame.extend(SENDER);
    frame.extend([low, 0x81, 0x00, high, low, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(SENDER);
    frame.extend([low, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2]);
    frame.resize(60, 0);
    frame
}

#[test]
fn without_a_vlan_a_port_carries_all() {
    require_switch!();
    let node = Node::new("ovs-all");
    let ovs = switch(&node);
    let c1 = node.container("c1");
    let result = add(&node, &c1, &keys(&node, &ovs, json!({}))).call().ok();
    let port = result["interfaces"][0]["name"].as_str().unwrap();
    assert_eq!(ovs.vsctl(&["get", "port", port, "vlan_mode"]), "trunk");
    assert_eq!(ovs.vsctl(&["get", "port", port, "trunks"]), "[]");
    // The address is the reference's if the configuration has none.
    assert_eq!(result["interfaces"][1]["mac"], "0a:58:0a:01:00:02");
}

#[test]
fn native_vlans() {
    require_switch!();
    let node = Node::new("ovs-native");
    let ovs = switch(&node);
    for (name, mode) in [("c1", "native-untagged"), ("c2", "native-tagged"), ("c3", "dot1q-tunnel")]
    {
        let container = node.container(name);
        let keys = keys(&node, &ovs, json!({ "vlan": 7, "vlanMode": mode }));
        let result = add(&node, &container, &keys).call().ok();
        let port = result["interfaces"][0]["name"].as_str().unwrap();
        assert_eq!(ovs.vsctl(&["get", "port", port, "vlan_mode"]), mode);
        assert_eq!(ovs.vsctl(&["get", "port", port, "tag"]), "7");
        node.run("ovs", "CHECK").to(&container).config(keys).prev(&result).call().silent();
    }
}

#[test]
fn defaults_come_from_a_file() {
    require_switch!();
    let node = Node::new("ovs-defaults");
    let ovs = switch(&node);
    let c1 = node.container("c1");
    let file = node.dir("conf").join("ovs.conf");
    let defaults =
        json!({ "socket_file": ovs.socket(), "vlan": 5, "BRIDGE": "other", "name": "x" });
    std::fs::write(&file, defaults.to_string()).unwrap();
    let mut keys = keys(&node, &ovs, json!({ "configuration_path": file }));
    keys.as_object_mut().unwrap().remove("socket_file");
    let result = add(&node, &c1, &keys).call().ok();
    let port = result["interfaces"][0]["name"].as_str().unwrap();
    assert_eq!(ovs.vsctl(&["get", "port", port, "tag"]), "5");
    node.run("ovs", "DEL").to(&c1).config(keys).call().silent();
    assert_eq!(ovs.vsctl(&["list-ports", "br0"]), "");
}

#[test]
fn vm_limits_of_what_is_received_are_written_and_go_with_the_port() {
    require_switch!("htb");
    let node = Node::new("ovs-qos");
    let ovs = switch(&node);
    let before = ovs.content();
    let c1 = node.container("c1");
    let qos = json!({ "qos": {
        "egressRate": 5_000_000,
        "queues": { "0": { "maxRate": 3_000_000 }, "7": { "minRate": 1000, "priority": 1 } },
    }});
    let keys = keys(&node, &ovs, qos);
    let result = add(&node, &c1, &keys).call().ok();
    let port = result["interfaces"][0]["name"].as_str().unwrap();
    let qos = ovs.vsctl(&["get", "port", port, "qos"]);
    assert_eq!(ovs.vsctl(&["get", "qos", &qos, "other_config:max-rate"]), "\"5000000\"");
    assert_eq!(
        ovs.vsctl(&["--columns=other_config", "list", "queue"]).matches("max-rate").count(),
        1
    );
    node.run("ovs", "DEL").to(&c1).config(keys).call().silent();
    assert_eq!(before, ovs.content());
}

#[test]
fn vm_limits_of_what_is_sent_are_written_and_go_with_the_port() {
    require_switch!("police");
    let node = Node::new("ovs-police");
    let ovs = switch(&node);
    let before = ovs.content();
    let c1 = node.container("c1");
    let qos = json!({ "qos": { "ingressRate": 1_000_000, "ingressBurst": 100_000 } });
    let keys = keys(&node, &ovs, qos);
    let result = add(&node, &c1, &keys).call().ok();
    let port = result["interfaces"][0]["name"].as_str().unwrap();
    assert_eq!(ovs.vsctl(&["get", "interface", port, "ingress_policing_rate"]), "1000");
    assert_eq!(ovs.vsctl(&["get", "interface", port, "ingress_policing_burst"]), "100");
    node.run("ovs", "DEL").to(&c1).config(keys).call().silent();
    assert_eq!(before, ovs.content());
}

#[test]
fn mirrors_are_made_by_the_first_and_go_with_the_last() {
    require_switch!();
    let node = Node::new("ovs-mirror");
    let ovs = switch(&node);
    let before = ovs.content();
    let (c1, c2, c3) = (node.container("c1"), node.container("c2"), node.container("c3"));
    let source = json!({ "mirrors": [{ "name": "m1", "ingress": true, "egress": true }] });
    let sink = json!({ "mirrors": [{ "name": "m1", "output": true }] });
    add(&node, &c1, &keys(&node, &ovs, source.clone())).call().ok();
    add(&node, &c2, &keys(&node, &ovs, sink.clone())).call().ok();
    let mirror = |column: &str| ovs.vsctl(&["get", "mirror", "m1", column]);
    assert_ne!(mirror("select_src_port"), "[]");
    assert_ne!(mirror("select_dst_port"), "[]");
    assert_ne!(mirror("output_port"), "[]");
    let third = node.run("ovs", "ADD").to(&c3).config(keys(&node, &ovs, sink)).call().error();
    assert_eq!((third.code, third.msg.as_str()), (108, "mirror \"m1\" has an output port already"));
    node.run("ovs", "DEL").to(&c2).config(keys(&node, &ovs, json!({}))).call().silent();
    assert_eq!(mirror("output_port"), "[]");
    node.run("ovs", "DEL").to(&c1).config(keys(&node, &ovs, source)).call().silent();
    assert_eq!(before, ovs.content());
}
