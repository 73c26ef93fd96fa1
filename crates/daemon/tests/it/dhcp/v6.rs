//! DHCPv6, if the configuration asks for it.

use serde_json::json;
use testkit::Place;

use crate::rig::{LeaseTimes, Rig, address, wait_for};

/// Both families, from one server.
const BOTH: &str = "dhcp-option=option:router,192.0.2.1\ndhcp-range=2001:db8::100,2001:db8::1ff,64,2m\n\
                    dhcp-option=option6:dns-server,[2001:db8::53]\ndhcp-option=option6:domain-search,example.org";

fn rig(name: &str) -> Rig {
    let rig = Rig::new(name);
    rig.node.sh("ip addr add 2001:db8::1/64 dev br0 nodad");
    rig
}

#[test]
fn both_families_come_together_and_go_together() {
    testkit::require!("root", "program:dnsmasq");
    let rig = rig("dhcp-dual");
    let server = rig.dnsmasq(BOTH);
    let daemon = rig.daemon();
    let c1 = rig.node.container("c1");
    let config = json!({ "ipam": { "type": "dhcp", "daemonSocketPath": rig.socket, "families": ["v4", "v6"] } });
    let run = |verb: &str| rig.bridge(verb).to(&c1).config(config.clone());
    let added = run("ADD").call().ok();
    let ips: Vec<&str> =
        added["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect();
    assert_eq!(ips.len(), 2, "{added}");
    assert!(ips[0].starts_with("192.0.2.") && ips[1].starts_with("2001:db8::1"), "{added}");
    assert!(ips[1].ends_with("/128"), "{added}");
    assert_eq!(added["dns"]["nameservers"], json!(["2001:db8::53"]));
    assert_eq!(added["dns"]["search"], json!(["example.org"]));
    assert!(c1.sh("ip -o -6 addr show dev eth0").contains(ips[1]));
    run("CHECK").prev(&added).call().silent();
    daemon.kill();
    let _daemon = rig.daemon();
    run("CHECK").prev(&added).call().silent();
    run("DEL").prev(&added).call().silent();
    wait_for("both leases to be given back", || {
        server.leased().iter().all(|one| !one.contains("192.0.2") && !one.contains("2001:"))
    });
    assert_eq!(server.logged("DHCPRELEASE(br0)"), 2, "{}", server.log());
}

#[test]
fn a_short_lease_is_renewed_at_t1_and_given_back() {
    testkit::require!("root", "program:kea-dhcp6");
    let rig = rig("dhcp6-kea");
    // Kea listens at the link-local address.
    rig.node.sh("ip addr add fe80::1/64 dev br0 nodad");
    let lasting = LeaseTimes { valid_s: 60, t1_s: 2, t2_s: 50, router: "" };
    let kea = rig.kea6(lasting);
    let daemon = rig.daemon();
    let c1 = rig.node.container("c1");
    let config =
        json!({ "ipam": { "type": "dhcp", "daemonSocketPath": rig.socket, "families": ["v6"] } });
    let run = |verb: &str| rig.bridge(verb).to(&c1).config(config.clone());
    let added = run("ADD").call().ok();
    let leased = address(&added);
    assert!(leased.starts_with("2001:db8::1"), "{added}");
    assert_eq!(added["dns"]["nameservers"], json!(["2001:db8::53"]));
    assert!(1 <= kea.logged("DHCP6_LEASE_ALLOC"), "{}", kea.log());
    wait_for("two renewals", || 2 <= kea.logged("DHCP6_LEASE_RENEW"));
    assert_eq!(daemon.log().matches("kind=SOLICIT").count(), 1, "{}", daemon.log());
    run("CHECK").prev(&added).call().silent();
    assert!(c1.sh("ip -o -6 addr show dev eth0").contains(&leased));
    daemon.kill();
    let renewals = kea.logged("DHCP6_LEASE_RENEW");
    let daemon = rig.daemon();
    wait_for("a renewal by the next daemon", || renewals < kea.logged("DHCP6_LEASE_RENEW"));
    assert_eq!(daemon.log().matches("kind=SOLICIT").count(), 1, "it was never lost");
    run("DEL").prev(&added).call().silent();
    wait_for("the lease to be given back", || 1 <= kea.logged("DHCP6_RELEASE_NA "));
    assert!(rig.kept().is_empty());
}
