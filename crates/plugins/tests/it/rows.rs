//! Rows of the reference's behaviour (`docs/spec/reference.toml`) that no other test of `bridge`
//! shows.

use std::fs;

use serde_json::{Value, json};
use testkit::{Container, Place, Snapshot};

use crate::support::{Node, Run};

/// A node whose address plugin `fixed` assigns one dual-stack address and these routes.
fn node_with(name: &str, routes: &Value) -> Node {
    let node = Node::new(name);
    let result = json!({
        "cniVersion": "1.1.0",
        "ips": [
            { "address": "10.1.0.2/24", "gateway": "10.1.0.1" },
            { "address": "fd00:1::2/64", "gateway": "fd00:1::1" },
        ],
        "routes": routes,
    });
    node.stub(
        "fixed",
        &format!("cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; echo '{result}'"),
    );
    node
}

fn bridge<'n>(node: &'n Node, verb: &str, container: &Container) -> Run<'n> {
    node.run("bridge", verb).to(container).config(json!({ "ipam": { "type": "fixed" } }))
}

/// The lines of a container's routes to one destination.
fn routes_to(container: &Container, destination: &str, more: &str) -> Vec<String> {
    let family = if destination.contains(':') { "-6" } else { "-4" };
    let text = container.sh(&format!("ip -o {family} route show {destination} {more}"));
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// Row: bridge | port state wait. The kernel brings a port up some time after both ends are, at
/// most once a second for several ports. So a plugin that does not wait fails this test within a
/// few rounds.
#[test]
fn the_port_is_up_when_add_returns() {
    let node = Node::new("row-port");
    for number in 0..12 {
        let container = node.container(&format!("c{number}"));
        let result = node.run("bridge", "ADD").to(&container).call().ok();
        let name = result["interfaces"][1]["name"].as_str().unwrap();
        let state = format!("/sys/class/net/{name}/operstate");
        let state = node.lab.enter(|| fs::read_to_string(state)).unwrap();
        assert_eq!(state, "up\n", "container {number}");
    }
}

/// Row: iface config | route gateway fallback.
#[test]
fn a_route_without_gateway_takes_its_familys() {
    let node = node_with(
        "row-family",
        &json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }, { "dst": "fd00:7::/48" }]),
    );
    let c1 = node.container("c1");
    bridge(&node, "ADD", &c1).call().ok();
    for (destination, gateway) in
        [("0.0.0.0/0", "10.1.0.1"), ("::/0", "fd00:1::1"), ("fd00:7::/48", "fd00:1::1")]
    {
        let routes = routes_to(&c1, destination, "");
        assert_eq!(routes.len(), 1, "{routes:?}");
        assert!(routes[0].contains(&format!("via {gateway} dev eth0")), "{routes:?}");
    }
}

/// Row: iface config | route table/scope.
#[test]
fn routes_stand_in_their_table_and_scope() {
    let node = node_with(
        "row-table",
        &json!([
            { "dst": "10.7.0.0/16", "table": 123 },
            { "dst": "fd00:7::/48", "table": 123 },
            { "dst": "10.8.0.0/16", "scope": 253 },
            { "dst": "10.9.0.0/16", "table": 300, "scope": 253, "priority": 7 },
        ]),
    );
    let c1 = node.container("c1");
    bridge(&node, "ADD", &c1).call().ok();
    assert!(routes_to(&c1, "10.7.0.0/16", "table main").is_empty());
    assert_eq!(routes_to(&c1, "10.7.0.0/16", "table 123"), ["10.7.0.0/16 via 10.1.0.1 dev eth0"]);
    let six = routes_to(&c1, "fd00:7::/48", "table 123");
    assert!(six.len() == 1 && six[0].contains("via fd00:1::1 dev eth0"), "{six:?}");
    // An on-link route has no next hop.
    assert_eq!(routes_to(&c1, "10.8.0.0/16", ""), ["10.8.0.0/16 dev eth0 scope link"]);
    let both = routes_to(&c1, "10.9.0.0/16", "table 300");
    assert_eq!(both, ["10.9.0.0/16 dev eth0 scope link metric 7"]);
}

/// Row: iface config | route mtu/advmss, which the reference drops; here for IPv6.
#[test]
fn routes_of_both_families_have_their_mtu_and_advmss() {
    let node = node_with(
        "row-mtu",
        &json!([
            { "dst": "10.7.0.0/16", "mtu": 1300, "advmss": 1200 },
            { "dst": "fd00:7::/48", "mtu": 1301, "advmss": 1201, "priority": 9 },
        ]),
    );
    let c1 = node.container("c1");
    bridge(&node, "ADD", &c1).call().ok();
    for (destination, words) in
        [("10.7.0.0/16", "mtu 1300 advmss 1200"), ("fd00:7::/48", "metric 9 mtu 1301 advmss 1201")]
    {
        let routes = routes_to(&c1, destination, "");
        assert!(routes.len() == 1 && routes[0].contains(words), "{routes:?}");
    }
}

/// Row: iface config | ECMP.
#[test]
fn two_gateways_of_one_destination_stand_beside_each_other() {
    let node = node_with(
        "row-ecmp",
        &json!([
            { "dst": "10.7.0.0/16", "gw": "10.1.0.3" }, { "dst": "10.7.0.0/16", "gw": "10.1.0.4" },
            { "dst": "fd00:7::/48", "gw": "fd00:1::3" }, { "dst": "fd00:7::/48", "gw": "fd00:1::4" },
        ]),
    );
    let c1 = node.container("c1");
    let result = bridge(&node, "ADD", &c1).call().ok();
    for (destination, gateways) in
        [("10.7.0.0/16", ["10.1.0.3", "10.1.0.4"]), ("fd00:7::/48", ["fd00:1::3", "fd00:1::4"])]
    {
        let routes = routes_to(&c1, destination, "").join("\n");
        for gateway in gateways {
            assert!(routes.contains(&format!("via {gateway} dev eth0")), "{gateway} in {routes}");
        }
    }
    let check = || bridge(&node, "CHECK", &c1).prev(&result).call();
    check().silent();
    for (gone, words) in [
        ("10.7.0.0/16 via 10.1.0.4", "failed to find route 10.7.0.0/16 via 10.1.0.4"),
        ("fd00:7::/48 via fd00:1::3", "failed to find route fd00:7::/48 via fd00:1::3"),
    ] {
        c1.sh(&format!("ip route del {gone}"));
        check().fails(104, words);
        c1.sh(&format!("ip route append {gone}"));
        check().silent();
    }
}

/// Row: iface config | CHECK custom table, where the reference always fails.
#[test]
fn check_finds_routes_in_other_tables_and_misses_them() {
    let node = node_with(
        "row-check",
        &json!([{ "dst": "10.7.0.0/16", "table": 123 }, { "dst": "fd00:7::/48", "table": 123 }]),
    );
    let c1 = node.container("c1");
    let result = bridge(&node, "ADD", &c1).call().ok();
    let check = || bridge(&node, "CHECK", &c1).prev(&result).call();
    check().silent();
    for (destination, gateway) in [("10.7.0.0/16", "10.1.0.1"), ("fd00:7::/48", "fd00:1::1")] {
        c1.sh(&format!("ip route del {destination} table 123"));
        check().fails(104, &format!("failed to find route {destination}"));
        c1.sh(&format!("ip route add {destination} via {gateway} table 123"));
        check().silent();
    }
}

/// Row: ipMasq | auto backend. Masquerade works with neither `nft` nor `iptables` installed.
#[test]
fn masquerade_needs_no_program() {
    let node = node_with("row-programs", &json!([]));
    let c1 = node.container("c1");
    let config = json!({ "isGateway": true, "ipMasq": true });
    // The first ADD makes the tables, which stay.
    bridge(&node, "ADD", &c1).config(config.clone()).call().ok();
    bridge(&node, "DEL", &c1).config(config.clone()).call().silent();
    let before = Snapshot::take(&node.lab);
    let each = |act: &str| {
        node.sh(&format!(
            "for f in $(for p in nft iptables ip6tables iptables-legacy ip6tables-legacy; do \
             readlink -f $(command -v $p); done | sort -u); do {act}; done"
        ))
    };
    let hide = || each("mount --bind /bin/false $f");
    let show = || each("umount $f");
    hide();
    let result = bridge(&node, "ADD", &c1).config(config.clone()).call().ok();
    bridge(&node, "CHECK", &c1).config(config.clone()).prev(&result).call().silent();
    show();
    assert!(node.sh("nft list ruleset").contains("10.1.0.2"));
    hide();
    bridge(&node, "DEL", &c1).config(config).call().silent();
    show();
    // The program mount makes this folder.
    before.assert_same_but(&Snapshot::take(&node.lab), &["/run/mount"]);
}

/// Row: bridge | macspoofchk. Our DEL removes what the reference made for the attachment, and
/// leaves another's.
#[test]
fn the_references_spoof_check_goes_with_del() {
    let node = node_with("row-spoof", &json!([]));
    let c1 = node.container("c1");
    let chains = |id: &str| {
        let name = format!("cni-br-iface-{id}-eth0");
        let comment = format!("comment \"macspoofchk-{id}-eth0\"");
        format!(
            "add chain bridge nat {name}\nadd chain bridge nat {name}-mac\n\
             add rule bridge nat PREROUTING iifname \"v{id}\" jump {name} {comment}\n\
             add rule bridge nat {name} jump {name}-mac {comment}\n\
             add rule bridge nat {name}-mac ether saddr 02:00:00:00:00:01 return {comment}\n\
             add rule bridge nat {name}-mac drop {comment}\n"
        )
    };
    node.sh(&format!(
        "nft -f - <<'E'\nadd table bridge nat\n\
         add chain bridge nat PREROUTING {{ type filter hook prerouting priority dstnat; }}\n{}{}E",
        chains("c1"),
        chains("c11"),
    ));
    bridge(&node, "DEL", &c1).config(json!({ "macspoofchk": true })).call().silent();
    let left = node.sh("nft list table bridge nat");
    assert!(!left.contains("cni-br-iface-c1-") && !left.contains("macspoofchk-c1-"), "{left}");
    let kept = left.matches("cni-br-iface-c11-eth0").count();
    assert_eq!(kept, 4, "two chains and two jumps: {left}");
}

/// Row: robustness | no crash on nulls. A plugin that needs `ipam` says so if it is missing.
#[test]
fn an_address_plugin_without_ipam_is_an_error_of_the_configuration() {
    for verb in ["ADD", "CHECK", "STATUS"] {
        for keys in [json!({}), json!({ "ipam": null }), json!({ "ipam": {} })] {
            let run =
                Run::bare("host-local", verb).netns("/nonexistent/netns").config(keys.clone());
            let error = run.call().error();
            assert_eq!(error.code, 7, "{verb} {keys}: {error}");
        }
    }
}
