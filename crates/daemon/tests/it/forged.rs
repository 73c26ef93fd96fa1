//! Containers that send from another's hardware address while they are attached or repaired.

use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};

use crate::rig::{Rig, StopGuard, flood, wait_for};

/// A hardware address that no link has.
const FORGED: &str = "02:66:00:00:00:66";

/// A broadcast frame from that address, of an unknown type.
fn forged() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([0x02, 0x66, 0, 0, 0, 0x66, 0x88, 0xb5]);
    frame.resize(60, 0);
    frame
}

/// How many frames the container's port has received.
fn received(rig: &Rig) -> u64 {
    let links: Value = serde_json::from_str(&rig.node.sh("ip -s -j link show")).unwrap();
    let ports = links.as_array().unwrap().iter();
    let mut ports = ports.filter(|link| link["ifname"].as_str().unwrap().starts_with("veth"));
    ports.next().and_then(|port| port["stats64"]["rx"]["packets"].as_u64()).unwrap_or(0)
}

/// The bridge's FDB entries of the forged address.
fn learnt(rig: &Rig) -> String {
    rig.node.sh(&format!("bridge fdb show br br0 | grep {FORGED}; true"))
}

/// The port is up before the container has an address, since the DHCP request goes through it.
#[test]
fn a_container_cannot_forge_while_its_address_is_asked_for() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("forged-dhcp");
    let _daemon = rig.daemon();
    let c1 = rig.node.container("c1");
    let bridge = |verb| rig.bridge(verb).to(&c1).config(json!({ "macspoofchk": true }));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopped = StopGuard(&stop);
        scope.spawn(|| flood(&c1, &forged(), &stop));
        let added = scope.spawn(|| bridge("ADD").call());
        wait_for("a thousand forged frames", || 1000 < received(&rig));
        let during = learnt(&rig);
        // Only now can the ADD end.
        let _server = rig.dnsmasq("");
        let added = added.join().unwrap();
        let after = learnt(&rig);
        drop(stopped);
        let added = added.ok();
        assert_eq!((during, after), (String::new(), String::new()));
        bridge("DEL").prev(&added).call().silent();
    });
    assert!(!rig.node.sh("nft list table bridge netwright").contains("elements"));
}

/// Whatever program took the port off the bridge may also have removed the rules.
#[test]
fn a_container_cannot_forge_while_its_port_is_put_back() {
    testkit::require!("root");
    let rig = Rig::new("forged-repair");
    let c1 = rig.node.container("c1");
    let ipam = json!({
        "type": "host-local", "dataDir": rig.node.dir("ipam"),
        "ranges": [[{ "subnet": "192.0.2.0/24", "rangeStart": "192.0.2.9" }]],
    });
    let config = json!({ "bridge": "br0", "macspoofchk": true, "ipam": ipam });
    let bridge = |verb| rig.node.run("bridge", verb).to(&c1).config(config.clone());
    let added = bridge("ADD").call().ok();
    let port = added["interfaces"][1]["name"].as_str().unwrap();
    rig.node.sh(&format!("ip link set {port} nomaster && nft flush ruleset"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopped = StopGuard(&stop);
        scope.spawn(|| flood(&c1, &forged(), &stop));
        wait_for("a thousand forged frames", || 1000 < received(&rig));
        let repair = bridge("CHECK").prev(&added).config(json!({ cni::REPAIR: true })).call();
        let before = received(&rig);
        wait_for("a thousand more", || before + 1000 < received(&rig));
        drop(stopped);
        assert!(repair.succeeded(), "{repair:?}");
    });
    assert_eq!(learnt(&rig), "");
    bridge("CHECK").prev(&added).call().silent();
}
