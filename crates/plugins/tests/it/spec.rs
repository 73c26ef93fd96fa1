//! Rules of the specification's ledger (`docs/spec/cni-1.1.0.toml`) that no other test of a plugin
//! shows.

use serde_json::{Value, json};
use testkit::{Container, Place};

use crate::support::{Node, Run};

const RESULT: &str = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16","gw":"10.1.0.1"}]}"#;

/// A node with an address plugin that answers ADD, logs its verbs, and fails for those in
/// `failing`.
fn node_with(name: &str, failing: &str) -> Node {
    let node = Node::new(name);
    let log = node.dir("log").join("verbs");
    let fails = r#"echo "{\"code\":123,\"msg\":\"no $CNI_COMMAND today\"}"; exit 1"#;
    let body = format!(
        "cat >/dev/null; echo $CNI_COMMAND >>{}\ncase $CNI_COMMAND in\n{failing}) {fails} ;;\nADD) echo '{RESULT}' ;;\nesac",
        log.display()
    );
    node.stub("fixed", &body);
    node
}

fn verbs(node: &Node) -> Vec<String> {
    let text = std::fs::read_to_string(node.dir("log").join("verbs")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn bridge<'n>(node: &'n Node, verb: &str, container: &Container) -> Run<'n> {
    node.run("bridge", verb)
        .to(container)
        .config(json!({ "isGateway": true, "ipam": { "type": "fixed" } }))
}

/// CNI 1.1.0 §2 "CHECK": a plugin calls CHECK of what it delegates to and passes on its errors.
#[test]
fn check_asks_the_delegate_and_returns_its_error() {
    let node = node_with("spec-check", "CHECK");
    let c1 = node.container("c1");
    let result = bridge(&node, "ADD", &c1).call().ok();
    bridge(&node, "CHECK", &c1).prev(&result).call().fails(123, "no CHECK today");
    assert_eq!(verbs(&node), ["ADD", "CHECK"]);
}

/// CNI 1.1.0 §2 "CHECK": a later plugin may change what this one made.
#[test]
fn check_allows_what_a_later_plugin_changed() {
    let node = node_with("spec-later", "none");
    let c1 = node.container("c1");
    let made = bridge(&node, "ADD", &c1).call().ok();
    let tuning = json!({ "mac": "02:00:00:00:00:77", "mtu": 1400, "dataDir": node.dir("tuning") });
    let mut result =
        node.run("tuning", "ADD").to(&c1).config(tuning.clone()).prev(&made).call().ok();
    // Another plugin removes a route, moves a second and adds a third.
    c1.sh("ip route del 10.9.0.0/16; ip route replace default via 10.1.0.254; \
           ip route add 10.8.0.0/16 via 10.1.0.1");
    result["routes"] = json!([
        { "dst": "0.0.0.0/0", "gw": "10.1.0.254" },
        { "dst": "10.8.0.0/16", "gw": "10.1.0.1" },
    ]);
    bridge(&node, "CHECK", &c1).prev(&result).call().silent();
    node.run("tuning", "CHECK").to(&c1).config(tuning).prev(&result).call().silent();
}

/// CNI 1.1.0 §2 "CHECK": the same of the plugins that compare what their own keys ask for. A result
/// of version 0.4.0 does not tell the MTU.
#[test]
fn check_allows_that_tuning_changed_a_single_link() {
    for version in ["1.1.0", "0.4.0"] {
        allows_that_tuning_changes("tap", version, &json!({}));
    }
}

#[test]
fn vm_check_allows_that_tuning_changed_a_single_link() {
    testkit::require!("root", "full", "dummy", "vlan");
    for version in ["1.1.0", "0.4.0"] {
        allows_that_tuning_changes("dummy", version, &json!({}));
        allows_that_tuning_changes("vlan", version, &json!({ "master": "p0", "vlanId": 5 }));
    }
}

fn allows_that_tuning_changes(plugin: &str, version: &str, keys: &Value) {
    let node = node_with("spec-single", "none");
    node.sh("ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up");
    let c1 = node.container("c1");
    let run = |verb: &str, plugin: &str| {
        node.run(plugin, verb).to(&c1).config(json!({ "cniVersion": version }))
    };
    let own = json!({ "mac": "02:00:00:00:00:66", "mtu": 1450, "ipam": { "type": "fixed" } });
    let single = |verb: &str| run(verb, plugin).config(own.clone()).config(keys.clone());
    let tuning = json!({ "mac": "02:00:00:00:00:77", "mtu": 1400, "dataDir": node.dir("tuning") });
    let made = single("ADD").call().ok();
    single("CHECK").prev(&made).call().silent();
    let result = run("ADD", "tuning").config(tuning.clone()).prev(&made).call().ok();
    single("CHECK").prev(&result).call().silent();
    run("CHECK", "tuning").config(tuning).prev(&result).call().silent();
    // What nobody reported is a difference.
    c1.sh("ip link set eth0 address 02:00:00:00:00:88");
    single("CHECK").prev(&result).call().fails(104, "MAC");
    c1.sh("ip link set eth0 address 02:00:00:00:00:77 mtu 1300");
    let check = single("CHECK").prev(&result).call();
    match version {
        "0.4.0" => check.silent(),
        _ => check.fails(104, "has MTU 1300, not 1400"),
    };
}

/// CNI 1.1.0 §2 "GC": a plugin continues after an error, removes what it can, and reports the
/// error.
#[test]
fn gc_goes_on_after_an_error_and_tells_it() {
    let node = node_with("spec-gc", "GC");
    let links: Vec<Value> = ["c1", "c2"]
        .iter()
        .map(|name| {
            bridge(&node, "ADD", &node.container(name)).call().ok()["interfaces"][1].clone()
        })
        .collect();
    let gc = node.run("bridge", "GC").config(json!({ "ipam": { "type": "fixed" } })).valid(&[]);
    let error = gc.call().error();
    assert!(error.to_string().contains("no GC today"), "{error}");
    for link in links {
        let name = link["name"].as_str().unwrap();
        assert!(!node.lab.try_sh(&format!("ip link show {name}")).status.success(), "{name}");
    }
}

/// CNI 1.1.0 §1: `ipMasq`, `ipam` and `dns` mean what the text says.
#[test]
fn well_known_keys_have_their_meaning() {
    let node = node_with("spec-keys", "none");
    let masquerades = || node.sh("nft list ruleset").contains("masquerade");
    let c1 = node.container("c1");
    let dns = json!({ "nameservers": ["192.0.2.53"], "domain": "example.org", "search": ["a"], "options": ["b"] });
    let keys = json!({ "dns": dns, "ipMasq": false });
    let result = bridge(&node, "ADD", &c1).config(keys).call().ok();
    assert_eq!(result["dns"], dns);
    assert_eq!(result["ips"][0]["address"], "10.1.0.2/24", "as ipam said");
    let addresses = || node.sh("nft list ruleset").matches("10.1.0.2").count();
    assert!(!masquerades() || addresses() == 0);
    bridge(&node, "DEL", &c1).call().silent();
    bridge(&node, "ADD", &c1).config(json!({ "ipMasq": true })).call().ok();
    assert!(masquerades() && 0 < addresses(), "{}", node.sh("nft list ruleset"));
}
