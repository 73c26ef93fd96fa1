//! `ingressPolicy`, in our sets and in the reference's chains.

use serde_json::{Value, json};
use testkit::{Container, Place, Snapshot, traffic};

use super::{Host, save, server};

/// Our back end, and the reference's.
const BACKENDS: [&str; 2] = ["", "iptables"];

/// Makes the reference's chains, which stay.
fn warm(host: &Host, container: &Container, prev: &Value, backend: &str) {
    let keys = json!({ "backend": backend });
    host.run("ADD", container, prev, keys.clone()).call().ok();
    host.run("DEL", container, prev, keys).call().silent();
}

/// Ways to damage `same-bridge` for br1, each with a word of the error that CHECK then returns.
fn damages(backend: &str) -> Vec<(&'static str, &'static str)> {
    if backend.is_empty() {
        return vec![(
            "nft delete element inet netwright policy_bridges '{ br1 }'",
            "policy_bridges",
        )];
    }
    vec![
        ("iptables -D CNI-ISOLATION-STAGE-1 2", "STAGE-1 -i br1"),
        ("ip6tables -F CNI-ISOLATION-STAGE-2", "STAGE-2 -o br1"),
        ("iptables -D FORWARD 1", "FORWARD"),
        (
            "iptables -D FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD; \
             iptables -I FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD",
            "ahead of CNI-FORWARD",
        ),
    ]
}

/// The reference's chain that accepts is put back at the front: isolation must come before it.
#[test]
fn a_repair_keeps_isolation_ahead_of_what_accepts() {
    testkit::require!("root");
    let host = Host::new("fwahead");
    let (c1, prev) = host.container("c1", 1, 2);
    let keys = || json!({ "backend": "iptables", "ingressPolicy": "isolated" });
    host.run("ADD", &c1, &prev, keys()).call().ok();
    host.node
        .sh("iptables -D FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD");
    let check = || host.run("CHECK", &c1, &prev, keys());
    check().call().fails(104, "-j CNI-FORWARD");
    check().config(json!({ "netwright/repair": true })).call().ok();
    let first = host.node.sh("iptables -S FORWARD | grep -m 1 '^-A'");
    assert!(first.contains("CNI-ISOLATION-STAGE-1"), "{first}");
    check().call().silent();
    host.run("DEL", &c1, &prev, keys()).call().silent();
}

/// Row: firewall | same-bridge.
#[test]
fn same_bridge() {
    testkit::require!("root");
    for backend in BACKENDS {
        same_bridge_of(backend);
    }
}

fn same_bridge_of(backend: &str) {
    let host = Host::new("fwsame");
    let (a1, prev_a1) = host.container("a1", 1, 2);
    let (a2, _) = host.container("a2", 1, 3);
    let (b1, prev_b1) = host.container("b1", 2, 2);
    let (_c1, _) = host.container("c1", 3, 2);
    let (_s1, _s2, _s3) = (server(&a1, "a1"), server(&b1, "b1"), server(&host.outside, "outside"));
    let keys = || json!({ "ingressPolicy": "same-bridge", "backend": backend });
    warm(&host, &a1, &prev_a1, backend);
    let before = Snapshot::take(&host.node.lab);
    host.run("ADD", &a1, &prev_a1, keys()).call().ok();
    assert_eq!(traffic::assert_tcp(&a1, "10.2.0.2:80").server, "b1", "one bridge alone");
    host.run("ADD", &b1, &prev_b1, keys()).call().ok();
    for br_netfilter in [false, true] {
        host.br_netfilter(br_netfilter);
        traffic::assert_no_tcp(&a1, "10.2.0.2:80");
        traffic::assert_no_tcp(&b1, "10.1.0.2:80");
        traffic::assert_no_tcp(&b1, "[fd00:1::2]:80");
        assert_eq!(traffic::assert_tcp(&a2, "10.1.0.2:80").server, "a1");
        assert_eq!(traffic::assert_tcp(&a1, "198.51.100.2:80").server, "outside");
        assert_eq!(traffic::assert_tcp(&host.outside, "10.1.0.2:80").server, "a1");
        assert_eq!(
            traffic::assert_tcp(&_c1, "10.1.0.2:80").server,
            "a1",
            "a bridge without policy"
        );
    }
    host.run("CHECK", &a1, &prev_a1, keys()).call().silent();
    for (damage, words) in damages(backend) {
        host.node.sh(damage);
        host.run("CHECK", &a1, &prev_a1, keys()).call().fails(104, words);
        host.run("ADD", &a1, &prev_a1, keys()).call().ok();
        host.run("CHECK", &a1, &prev_a1, keys()).call().silent();
    }
    host.run("DEL", &a1, &prev_a1, keys()).call().silent();
    assert_eq!(traffic::assert_tcp(&b1, "10.1.0.2:80").server, "a1");
    host.run("DEL", &b1, &prev_b1, keys()).call().silent();
    host.br_netfilter(true);
    host.node.sh("nft delete table inet netwright 2>/dev/null; true");
    before.assert_same(&Snapshot::take(&host.node.lab));
}

/// Row: firewall | isolated / policy names.
#[test]
fn isolated_and_policy_names() {
    testkit::require!("root");
    for backend in BACKENDS {
        isolated_of(backend);
    }
}

fn isolated_of(backend: &str) {
    let host = Host::new("fwiso");
    let (a1, prev_a1) = host.container("a1", 1, 2);
    let (a2, prev_a2) = host.container("a2", 1, 3);
    let (a3, _) = host.container("a3", 1, 4);
    let (b1, prev_b1) = host.container("b1", 2, 2);
    let (_s1, _s2, _s3) = (server(&a1, "a1"), server(&b1, "b1"), server(&host.outside, "outside"));
    let _s4 = server(&a3, "a3");
    let keys = || json!({ "ingressPolicy": "isolated", "backend": backend });
    for (container, prev) in [(&a1, &prev_a1), (&a2, &prev_a2), (&b1, &prev_b1)] {
        host.run("ADD", container, prev, keys()).call().ok();
    }
    for br_netfilter in [false, true] {
        host.br_netfilter(br_netfilter);
        // Packets come bridged, routed through the gateway, and from another bridge.
        traffic::assert_no_tcp(&a2, "10.1.0.2:80");
        traffic::assert_no_tcp(&a2, "[fd00:1::2]:80");
        a2.sh("ip route replace 10.1.0.2/32 via 10.1.0.1");
        traffic::assert_no_tcp(&a2, "10.1.0.2:80");
        a2.sh("ip route del 10.1.0.2/32 via 10.1.0.1");
        traffic::assert_no_tcp(&b1, "10.1.0.2:80");
        assert_eq!(traffic::assert_tcp(&a1, "198.51.100.2:80").server, "outside");
        assert_eq!(traffic::assert_tcp(&host.outside, "10.1.0.2:80").server, "a1");
    }
    // A port without isolation can be reached as long as frames are only bridged.
    host.br_netfilter(false);
    assert_eq!(traffic::assert_tcp(&a1, "10.1.0.4:80").server, "a3");
    // DEL of the last attachment that asked for it removes the isolation; a1 stays.
    host.run("DEL", &a2, &prev_a2, keys()).call().silent();
    assert_eq!(traffic::assert_tcp(&a2, "10.1.0.2:80").server, "a1");
    traffic::assert_no_tcp(&b1, "10.1.0.2:80");
    let before = Snapshot::take(&host.node.lab);
    let wrong = json!({ "ingressPolicy": "closed", "backend": "iptables" });
    host.run("ADD", &a2, &prev_a2, wrong).call().fails(7, "unknown ingress policy: \"closed\"");
    before.assert_same(&Snapshot::take(&host.node.lab));
    let mut bare = prev_a2.clone();
    bare["interfaces"] = json!([]);
    bare["ips"][0].as_object_mut().unwrap().remove("interface");
    bare["ips"][1].as_object_mut().unwrap().remove("interface");
    host.run("ADD", &a2, &bare, keys())
        .call()
        .fails(7, "interface needs to be set for ingress policy \"isolated\"");
    // The last DEL leaves nothing.
    host.run("DEL", &a1, &prev_a1, keys()).call().silent();
    host.run("DEL", &b1, &prev_b1, keys()).call().silent();
    let left = format!("{}{}", save(&host), host.node.sh("nft list ruleset"));
    assert!(
        !left.contains("ISOLATION") && !left.contains("br1") && !left.contains("va1"),
        "{left}"
    );
}

/// cni.md §5.3: the reference's rules stay for ever, and a bridge that is no longer isolated still
/// drops.
#[test]
fn a_policy_that_changed_leaves_nothing() {
    testkit::require!("root");
    let host = Host::new("fwisochange");
    let (c1, prev1) = host.container("c1", 1, 2);
    let (c2, prev2) = host.container("c2", 1, 3);
    let keys = |policy: &str| json!({ "backend": "iptables", "ingressPolicy": policy });
    warm(&host, &c1, &prev1, "iptables");
    let before = save(&host);
    let add = |policy: &str| host.run("ADD", &c1, &prev1, keys(policy)).call().ok();
    add("same-bridge");
    let same = save(&host);
    add("isolated");
    assert!(save(&host).contains("-i br1 -o br1"), "{}", save(&host));
    add("same-bridge");
    assert_eq!(save(&host), same);
    // Another attachment of the bridge still wants it.
    host.run("ADD", &c2, &prev2, keys("isolated")).call().ok();
    host.run("DEL", &c1, &prev1, keys("same-bridge")).call().silent();
    assert!(save(&host).contains("-i br1 -o br1"), "{}", save(&host));
    host.run("CHECK", &c2, &prev2, keys("isolated")).call().silent();
    // GC of a container that went without DEL, whatever the configuration now is.
    host.node.run("firewall", "GC").valid(&[]).call().silent();
    assert_eq!(save(&host), before);
}

/// Addresses of one family use only that family's chains: a host without ip6tables serves IPv4,
/// where the reference fails.
#[test]
fn one_family_needs_one_program() {
    testkit::require!("root", "program:iptables-nft", "program:ip6tables-nft");
    let keys = || json!({ "backend": "iptables", "ingressPolicy": "isolated" });
    for (keep, other) in [("10.", "ip6tables"), ("fd00:", "iptables")] {
        let host = Host::new("fwisofamily");
        let (c1, mut prev) = host.container("c1", 1, 2);
        let ips = prev["ips"].as_array_mut().unwrap();
        ips.retain(|ip| ip["address"].as_str().unwrap().starts_with(keep));
        // The program is a chain of symbolic links by way of /etc/alternatives, which is the lab's
        // own; /usr is the machine's.
        host.node.sh(&format!(
            "for p in {other} {other}-restore; do \
               test $(readlink /usr/sbin/$p) = /etc/alternatives/$p && rm /etc/alternatives/$p; \
             done && ! {other} --version 2>/dev/null"
        ));
        host.run("ADD", &c1, &prev, keys()).call().ok();
        host.run("CHECK", &c1, &prev, keys()).call().silent();
        host.run("DEL", &c1, &prev, keys()).call().silent();
        let left = host.node.sh("nft list ruleset");
        assert!(!left.contains("ISOLATION") && !left.contains("vc1"), "{left}");
    }
    // Addresses of both families need both programs: ADD names the missing one, and leaves nothing.
    let host = Host::new("fwisoboth");
    let (c1, prev) = host.container("c1", 1, 2);
    host.node.sh("rm /etc/alternatives/ip6tables /etc/alternatives/ip6tables-restore");
    host.run("ADD", &c1, &prev, keys()).call().fails(101, "\"ip6tables\": it is not installed");
    let left = host.node.sh("nft list ruleset");
    assert!(
        !left.contains("10.1.0.2") && !left.contains("ISOLATION") && !left.contains("vc1"),
        "{left}"
    );
    host.run("DEL", &c1, &prev, keys()).call().silent();
}
