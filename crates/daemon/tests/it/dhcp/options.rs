//! The options that the client requests and sends, and the results of the answer.

use serde_json::json;

use crate::rig::Rig;

#[test]
fn options_go_both_ways() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-options");
    let server = rig.dnsmasq("dhcp-option=option:router,192.0.2.1");
    let _daemon = rig.daemon();
    let c1 = rig.plugged("c1");
    let ipam = json!({
        "type": "dhcp",
        "daemonSocketPath": rig.socket,
        "priority": 77,
        "request": [{ "option": "43" }, { "option": "vendor-class-identifier" }],
        "provide": [
            { "option": "host-name", "fromArg": "K8S_POD_NAME" },
            { "option": "vendor-class-identifier", "value": "netwright-test" },
            { "option": "user-class", "value": "web" },
        ],
    });
    let run = rig.dhcp("ADD").to(&c1).config(json!({ "ipam": ipam }));
    let added = run.args("IgnoreUnknown=1;K8S_POD_NAME=pod-7;junk").call().ok();
    assert_eq!(added["routes"][0]["priority"], 77);
    let log = server.log();
    let requested = log.lines().find(|line| line.contains("requested options:")).unwrap();
    assert!(
        requested.contains("requested options: 43:vendor-encap, 60:vendor-class, 1:netmask"),
        "{requested}"
    );
    assert!(log.contains("vendor class: netwright-test"), "{log}");
    assert!(log.contains("user class: web"), "{log}");
    assert!(log.contains("client provides name: pod-7"), "{log}");
    // The reference's form: a zero, then <container>/<network>/<interface>.
    let id: String = b"c1/n/eth0".iter().map(|octet| format!(":{octet:02x}")).collect();
    let leases = std::fs::read_to_string(rig.node.lab.dir().join("dnsmasq/leases")).unwrap();
    assert!(leases.trim().ends_with(&format!("00{id}")), "{leases}");
}

#[test]
fn skip_default_asks_for_nothing_else() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-skip");
    let server = rig
        .dnsmasq("dhcp-option=option:router,192.0.2.1\ndhcp-option=option:dns-server,192.0.2.53");
    let _daemon = rig.daemon();
    let c1 = rig.plugged("c1");
    let ipam = json!({
        "type": "dhcp",
        "daemonSocketPath": rig.socket,
        "request": [{ "skipDefault": true }, { "option": "subnet-mask" }],
    });
    let added = rig.dhcp("ADD").to(&c1).config(json!({ "ipam": ipam })).call().ok();
    assert_eq!(added.get("dns"), None, "{added}");
    assert!(server.log().contains("requested options: 1:netmask\n"), "{}", server.log());
}

#[test]
fn classless_routes_win_over_static_ones_and_routers() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-routes");
    let routes = |more: &str| {
        let _server = rig.dnsmasq(&format!(
            "dhcp-option=option:router,192.0.2.1\ndhcp-option=33,10.0.0.0,192.0.2.7\n{more}"
        ));
        let name = if more.is_empty() { "c1" } else { "c2" };
        let container = rig.plugged(name);
        let _daemon = rig.daemon();
        let added = rig.dhcp("ADD").to(&container).call().ok();
        assert_eq!(added["ips"][0]["gateway"], "192.0.2.1");
        added["routes"].clone()
    };
    assert_eq!(
        routes(""),
        json!([{ "dst": "10.0.0.0/8", "gw": "192.0.2.7" }, { "dst": "0.0.0.0/0", "gw": "192.0.2.1" }])
    );
    assert_eq!(
        routes("dhcp-option=121,10.1.0.0/16,192.0.2.8,198.51.100.0/24,0.0.0.0"),
        json!([
            { "dst": "10.1.0.0/16", "gw": "192.0.2.8" },
            { "dst": "198.51.100.0/24", "scope": 253 },
        ])
    );
}

/// The reference accepts the flag, and does nothing with it.
#[test]
fn the_broadcast_flag_is_set() {
    testkit::require!("root", "program:dnsmasq", "program:tcpdump");
    let rig = Rig::new("dhcp-broadcast");
    let _server = rig.dnsmasq("dhcp-option=option:router,192.0.2.1");
    for (flags, want) in [(&["-broadcast"][..], true), (&[], false)] {
        let _daemon = rig.daemon_with(flags);
        let name = if want { "c1" } else { "c2" };
        let container = rig.plugged(name);
        let capture = rig.node.lab.dir().join(format!("{name}.txt"));
        rig.node.sh(&format!(
            "tcpdump -i v{name} -c 2 -U -v -n 'udp dst port 67' >{0} 2>{0}.err & \
             until grep -q listening {0}.err; do sleep 0.02; done",
            capture.display()
        ));
        rig.dhcp("ADD").to(&container).call().ok();
        crate::rig::wait_for("the capture", || {
            let text = std::fs::read_to_string(&capture).unwrap();
            text.contains("Discover") && text.contains("length 1: Request")
        });
        let text = std::fs::read_to_string(&capture).unwrap();
        assert_eq!(text.contains("Flags [Broadcast]"), want, "{text}");
    }
}
