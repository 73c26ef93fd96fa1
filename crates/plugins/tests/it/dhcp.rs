//! `dhcp` without its daemon. With it, and with real servers: `crates/daemon/tests/it/dhcp`.

use serde_json::json;
use testkit::Place as _;

use crate::support::{Node, Run};

fn run(verb: &str, ipam: serde_json::Value) -> Run<'static> {
    Run::bare("dhcp", verb).config(json!({ "ipam": ipam }))
}

/// The reference crashes.
#[test]
fn a_configuration_without_ipam_is_refused() {
    testkit::require!("root");
    let node = Node::new("dhcp-no-ipam");
    let c1 = node.container("c1");
    for verb in ["ADD", "CHECK"] {
        node.run("dhcp", verb).to(&c1).call().fails(7, "IPAM config missing 'ipam' key");
    }
    Run::bare("dhcp", "STATUS").call().fails(7, "IPAM config missing 'ipam' key");
    // Releasing needs no daemon.
    assert!(node.run("dhcp", "DEL").to(&c1).call().succeeded());
}

#[test]
fn what_makes_no_sense_is_refused_before_anybody_is_asked() {
    let status = |ipam| run("STATUS", ipam).call();
    status(json!({ "type": "dhcp", "daemonSocketPath": "run/dhcp.sock" }))
        .fails(7, "ipam.daemonSocketPath: \"run/dhcp.sock\" is not absolute");
    status(json!({ "request": [{ "option": "gateway" }] }))
        .fails(7, "Can not parse option \"gateway\"");
    status(json!({ "provide": [{ "option": "300", "value": "x" }] }))
        .fails(7, "Can not parse option \"300\"");
    status(json!({ "provide": [{ "option": "12", "value": "x".repeat(256) }] }))
        .fails(7, "value too long for option \"12\"");
    status(json!({ "priority": 4_294_967_296_u64 })).fails(7, "ipam.priority");
    status(json!({ "families": ["v4", "v5"] })).fails(7, "ipam.families: \"v5\" is no family");
    status(json!({ "request": "routers" })).fails(6, "ipam.request");
    status(json!({ "priority": "low" })).fails(6, "ipam.priority");
}

#[test]
fn without_the_daemon() {
    testkit::require!("root");
    let node = Node::new("dhcp-alone");
    let c1 = node.container("c1");
    let socket = node.lab.dir().join("no.sock");
    let call = |verb: &str| {
        let ipam = json!({ "type": "dhcp", "daemonSocketPath": socket });
        node.run("dhcp", verb).to(&c1).config(json!({ "ipam": ipam }))
    };
    call("ADD").call().fails(110, "error dialing DHCP daemon: dial unix");
    call("CHECK").call().fails(110, "start the daemon");
    call("STATUS").call().fails(50, "error dialing DHCP daemon");
    // No daemon ever ran: there is nothing to collect, and nothing to release.
    call("GC").valid(&[]).call().silent();
    for _ in 0..2 {
        assert!(call("DEL").call().succeeded());
    }
    let notes = node.lab.dir().join("no.sock.todo");
    assert!(!notes.exists());
    // A daemon did run: its leases stay as they are until it is back.
    std::fs::create_dir(&notes).unwrap();
    call("GC").valid(&[]).call().fails(110, "error dialing DHCP daemon");
    assert!(call("DEL").call().succeeded());
    assert_eq!(std::fs::read_dir(&notes).unwrap().count(), 1);
}

#[test]
fn keys_that_nobody_reads_are_found() {
    let plugin = plugins::find("dhcp").unwrap();
    let config = r#"{"name":"n","type":"bridge","bridge":"b","ipam":{"type":"dhcp","daemonSocketpath":"/s","deamonSocketPath":"/s","provide":[{"option":"12","form":"x"}]}}"#;
    let keys: Vec<String> =
        plugin.unknown_keys(config).unwrap().into_iter().map(|key| key.key.clone()).collect();
    assert_eq!(keys, ["deamonSocketPath", "form"]);
}

/// The container has renamed its interface and made another under the old name: the leased address
/// is removed before the lease is released, and the other interface's address stays.
#[test]
fn addresses_are_taken_from_the_attachments_interface_alone() {
    testkit::require!("root");
    let node = Node::new("dhcp-others");
    let log = node.dir("log").join("at-del");
    let result = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.1.0.2/24" }] });
    node.stub(
        "dhcp",
        &format!(
            "cat >/dev/null; case $CNI_COMMAND in ADD) echo '{result}';; DEL) nsenter --net=$CNI_NETNS ip -o addr >{};; esac",
            log.display()
        ),
    );
    node.sh("ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up");
    for keys in [json!({ "type": "bridge" }), json!({ "type": "macvlan", "master": "p0" })] {
        let c1 = node.container("c1");
        let run = |verb| {
            let run = node.run(keys["type"].as_str().unwrap(), verb).to(&c1);
            run.config(keys.clone()).config(json!({ "ipam": { "type": "dhcp" } }))
        };
        run("ADD").call().ok();
        c1.sh("ip link set eth0 down && ip link set eth0 name eth9 && ip link set eth9 up && \
             ip link add eth0 type veth peer name other0 && ip addr add 203.0.113.9/24 dev eth0");
        run("DEL").call().silent();
        let seen = std::fs::read_to_string(&log).unwrap();
        assert!(!seen.contains("10.1.0.2") && seen.contains("203.0.113.9"), "{keys}: {seen}");
        c1.delete();
    }
}
