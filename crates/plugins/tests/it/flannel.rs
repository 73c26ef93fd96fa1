//! `flannel`: what it delegates, depending on flanneld's file, and what it says when it cannot.

mod matrix;
mod records;

use std::fs;

use serde_json::{Value, json};
use testkit::traffic::assert_pings;
use testkit::{Container, Place};

use crate::support::matrix::Family;
use crate::support::{Node, Run, versions};

/// Where flanneld writes.
const SUBNET_ENV: &str = "/run/flannel/subnet.env";

/// A delegate of another project that records its calls: `$DIR/log` gets a line for each.
const WITNESS: &str = r#"
    cat >"DIR/$CNI_COMMAND.stdin"
    echo $CNI_COMMAND >>DIR/log
    if [ -e "DIR/$CNI_COMMAND.fails" ]; then cat "DIR/$CNI_COMMAND.fails"; exit 1; fi
    [ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.9/24"}]}'
"#;

/// Writes flanneld's file for a node with this family. Lines of `more` take precedence.
fn write_subnet_env(node: &Node, family: Family, more: &str) {
    let of_family = family.pick(
        "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.0.1/24\n",
        "FLANNEL_IPV6_NETWORK=fd00:1::/48\nFLANNEL_IPV6_SUBNET=fd00:1::1/64\n",
    );
    let text = format!("{}FLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n{more}", of_family.concat());
    node.sh("mkdir -p /run/flannel");
    fs::write(node.lab.path(SUBNET_ENV), text).unwrap();
}

/// A host on which flanneld has written its file.
fn node(name: &str) -> Node {
    let node = Node::new(name);
    write_subnet_env(&node, Family::Dual, "");
    node
}

/// A call with the conflist of flannel's own manifest, on network `n`.
fn of<'n>(node: &'n Node, verb: &str, to: &Container) -> Run<'n> {
    let delegate = json!({ "hairpinMode": true, "isDefaultGateway": true });
    let ipam = json!({ "dataDir": node.dir("ipam") });
    node.run("flannel", verb).to(to).config(json!({ "delegate": delegate, "ipam": ipam }))
}

fn add_witness(node: &Node) {
    node.stub("theirs", &WITNESS.replace("DIR", node.dir("log").to_str().unwrap()));
}

/// The witness's calls since the last look.
fn log(node: &Node) -> Vec<String> {
    let path = node.dir("log").join("log");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    text.lines().map(str::to_owned).collect()
}

fn fails(node: &Node, verb: &str, code: u32, words: &str) {
    let error = json!({ "cniVersion": "1.1.0", "code": code, "msg": words });
    fs::write(node.dir("log").join(format!("{verb}.fails")), error.to_string()).unwrap();
}

fn is_attached(container: &Container) -> bool {
    container.try_sh("ip link show eth0").status.success()
}

#[test]
fn pods_of_both_families_reach_each_other_and_the_gateway() {
    testkit::require!("root");
    let node = node("flannel-pods");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let (first, _) = (of(&node, "ADD", &c1).call().ok(), of(&node, "ADD", &c2).call().ok());
    let addresses: Vec<_> =
        first["ips"].as_array().unwrap().iter().map(|ip| ip["address"].clone()).collect();
    assert_eq!(addresses, ["10.1.0.2/24", "fd00:1::2/64"]);
    for address in ["10.1.0.3", "10.1.0.1", "fd00:1::3", "fd00:1::1"] {
        assert_pings(&c1, address);
    }
    let routes = c1.sh("ip route; ip -6 route");
    for route in ["10.1.0.0/16 via 10.1.0.1", "fd00:1::/48 via fd00:1::1", "default via 10.1.0.1"] {
        assert!(routes.contains(route), "{routes}");
    }
    assert!(node.sh("ip link show cni0").contains("mtu 1450"));
    // flanneld does not masquerade here, so the bridge does.
    assert!(node.sh("nft list ruleset").contains("10.1.0.2"));
}

#[test]
fn all_versions_are_spoken() {
    testkit::require!("root");
    let node = node("flannel-versions");
    versions::all_are_spoken(&node, "flannel", &json!({ "delegate": { "isGateway": true } }));
}

#[test]
fn the_runtimes_arguments_reach_the_delegate() {
    testkit::require!("root");
    let node = node("flannel-runtime");
    let c1 = node.container("c1");
    let mac = json!({ "runtimeConfig": { "mac": "02:00:00:00:00:07" } });
    let result = of(&node, "ADD", &c1).config(mac.clone()).call().ok();
    assert!(c1.sh("ip link show eth0").contains("02:00:00:00:00:07"));
    of(&node, "CHECK", &c1).config(mac).prev(&result).call().silent();
    of(&node, "DEL", &c1).call().silent();
}

#[test]
fn check_and_repair_are_the_delegates() {
    testkit::require!("root");
    let node = node("flannel-check");
    let c1 = node.container("c1");
    let result = of(&node, "ADD", &c1).call().ok();
    let check = || of(&node, "CHECK", &c1).prev(&result);
    // These verbs need no flanneld.
    node.sh(&format!("mv {SUBNET_ENV} {SUBNET_ENV}.away"));
    check().call().silent();
    c1.sh("ip route del 10.1.0.0/16");
    check().call().fails(104, "10.1.0.0/16");
    let repaired = check().config(json!({ "netwright/repair": true })).call().ok();
    assert_eq!(repaired["netwright/repaired"].as_array().unwrap().len(), 1, "{repaired}");
    check().call().silent();
    // Without the record, DEL uses the present configuration.
    node.sh("rm /var/lib/cni/flannel/c1");
    check().call().fails(11, "subnet.env");
    node.sh(&format!("mv {SUBNET_ENV}.away {SUBNET_ENV}"));
    check().call().silent();
    of(&node, "CHECK", &c1).call().fails(7, "Required prevResult missing");
}

#[test]
fn another_projects_delegate_gets_what_flannels_plugin_would_give_it() {
    testkit::require!("root");
    let node = node("flannel-theirs");
    add_witness(&node);
    let c1 = node.container("c1");
    let keys = json!({ "delegate": { "type": "theirs" }, "runtimeConfig": { "x": 1 } });
    let call = |verb: &str| of(&node, verb, &c1).config(keys.clone());
    let read = |verb: &str| -> Value {
        let path = node.dir("log").join(format!("{verb}.stdin"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    };
    let result = call("ADD").prev(&json!({ "cniVersion": "1.1.0" })).call().ok();
    assert_eq!(result["ips"][0]["address"], "10.1.0.9/24");
    let recorded: Value = serde_json::from_str(&node.sh("cat /var/lib/cni/flannel/c1")).unwrap();
    assert_eq!(read("ADD"), recorded);
    assert_eq!(recorded["ipMasq"], true);
    assert!(recorded.get("isGateway").is_none() && recorded.get("prevResult").is_none());
    // A node's new MTU applies to new pods.
    write_subnet_env(&node, Family::Dual, "FLANNEL_MTU=1300\n");
    call("CHECK").prev(&result).call().silent();
    let checked = read("CHECK");
    assert_eq!(checked["prevResult"], result);
    assert_eq!(checked["mtu"], 1450);
    call("STATUS").of_network().call().silent();
    call("GC").of_network().valid(&[("c1", "eth0")]).call().silent();
    let collected = read("GC");
    assert_eq!(collected["cni.dev/valid-attachments"][0]["containerID"], "c1");
    assert!(collected.get("runtimeConfig").is_none(), "{collected}");
    call("DEL").config(json!({ "delegate": { "type": "other" } })).call().silent();
    assert_eq!(read("DEL"), recorded);
    assert_eq!(log(&node), ["ADD", "CHECK", "STATUS", "GC", "DEL"]);
}

/// A delegate may be a chain with network policy, which goes by labels.
/// A link that `policy` opens comes up closed. It is of the list, and not of the record.
#[test]
fn the_delegate_is_told_what_follows() {
    testkit::require!("root");
    let node = node("flannel-followed");
    add_witness(&node);
    let c1 = node.container("c1");
    let mut keys = json!({ "delegate": { "type": "theirs" } });
    keys[cni::FOLLOWED_BY] = json!(["policy"]);
    of(&node, "ADD", &c1).config(keys.clone()).call().ok();
    let given = fs::read(node.dir("log").join("ADD.stdin")).unwrap();
    let given: Value = serde_json::from_slice(&given).unwrap();
    assert_eq!(given[cni::FOLLOWED_BY], json!(["policy"]));
    assert!(!node.sh("cat /var/lib/cni/flannel/*").contains(cni::FOLLOWED_BY));
    of(&node, "DEL", &c1).config(keys).call().silent();
}

#[test]
fn what_a_runtime_says_of_the_container_reaches_the_delegate() {
    testkit::require!("root");
    let node = node("flannel-args");
    add_witness(&node);
    let c1 = node.container("c1");
    let own = json!({ "cni": { "vrf": "blue", "labels": "its own" } });
    let cni = json!({ "labels": [{ "key": "app", "value": "web" }], "ips": ["10.1.0.9"] });
    let keys = json!({ "delegate": { "type": "theirs", "args": own } });
    let call = |verb: &str| of(&node, verb, &c1).config(keys.clone());
    let read = |verb: &str| -> Value {
        let path = node.dir("log").join(format!("{verb}.stdin"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    };
    let result = call("ADD").config(json!({ "args": { "cni": cni } })).call().ok();
    let mut merged = cni.clone();
    merged["vrf"] = json!("blue");
    assert_eq!(read("ADD")["args"]["cni"], merged);
    call("CHECK").prev(&result).call().silent();
    call("GC").of_network().valid(&[]).call().silent();
    call("DEL").call().silent();
    assert_eq!(read("CHECK")["args"]["cni"], merged);
    assert_eq!(read("GC").get("args"), None);
    assert_eq!(read("DEL")["args"]["cni"], merged);
}

#[test]
fn a_failed_add_leaves_the_record_as_it_was() {
    testkit::require!("root");
    let node = node("flannel-failed");
    add_witness(&node);
    let c1 = node.container("c1");
    let record = || node.sh("cat /var/lib/cni/flannel/* 2>/dev/null || true");
    // A delegate of ours undoes its own work.
    node.sh("ip link add notbridge type veth peer name other");
    let refused = |keys: Value| of(&node, "ADD", &c1).config(keys).call().error().msg;
    let said = refused(json!({ "delegate": { "bridge": "notbridge" } }));
    assert!(said.starts_with("failed to delegate add: "), "{said}");
    assert_eq!(record(), "");
    // A second ADD is refused, and the first one's record stays.
    let result = of(&node, "ADD", &c1).call().ok();
    let before = record();
    write_subnet_env(&node, Family::Dual, "FLANNEL_SUBNET=10.1.9.1/24\n");
    let said = refused(json!({}));
    assert!(said.starts_with("failed to delegate add: "), "{said}");
    assert_eq!(record(), before);
    let theirs = json!({ "delegate": { "type": "theirs" } });
    of(&node, "ADD", &c1).config(theirs.clone()).call().fails(106, "already exists");
    assert_eq!((record(), log(&node).len()), (before, 0));
    of(&node, "CHECK", &c1).prev(&result).call().silent();
    of(&node, "DEL", &c1).call().silent();
    // Another project's delegate gets a DEL. If that fails too, the record stays for the runtime's
    // DEL, unless the delegate refuses its configuration at every verb.
    fails(&node, "ADD", 142, "not today");
    for (at_del, is_left) in [(None, false), (Some(142), true), (Some(7), false)] {
        if let Some(code) = at_del {
            fails(&node, "ADD", code, "not today");
            fails(&node, "DEL", code, "not today");
        }
        let error = of(&node, "ADD", &c1).config(theirs.clone()).call().error();
        assert!(error.msg.ends_with("not today"), "{error:?}");
        assert_eq!(log(&node), ["ADD", "DEL"]);
        assert_eq!((error.left, record().contains("theirs")), (is_left, is_left), "{error:?}");
        if is_left {
            let error = of(&node, "DEL", &c1).config(theirs.clone()).call().error();
            assert!(error.left && record().contains("theirs"), "{error:?}");
            fs::remove_file(node.dir("log").join("DEL.fails")).unwrap();
            of(&node, "DEL", &c1).config(theirs.clone()).call().silent();
            assert_eq!(log(&node), ["DEL", "DEL"]);
        }
        assert_eq!(record(), "");
    }
    // Nothing is recorded of a delegate that does not exist.
    let missing = json!({ "delegate": { "type": "missing" } });
    of(&node, "ADD", &c1).config(missing).call().fails(7, "\"missing\"");
    assert_eq!(record(), "");
}

#[test]
fn without_flannelds_file_add_is_to_be_tried_again_and_status_says_why() {
    testkit::require!("root");
    let node = Node::new("flannel-no-file");
    let c1 = node.container("c1");
    let begin = "failed to load flannel 'subnet.env' file: ";
    let both = |node: &Node, words: &str| {
        of(node, "ADD", &c1).call().fails(11, &format!("{begin}{words}"));
        of(node, "STATUS", &c1).of_network().call().fails(50, &format!("{begin}{words}"));
    };
    both(&node, "open /run/flannel/subnet.env: no such file or directory");
    node.sh("mkdir -p /run/flannel/subnet.env");
    both(&node, "read \"/run/flannel/subnet.env\": not a regular file");
    node.sh("rmdir /run/flannel/subnet.env && echo FLANNEL_MTU=many >/run/flannel/subnet.env");
    both(&node, "/run/flannel/subnet.env: line 1: FLANNEL_MTU: \"many\"");
    node.sh("echo FLANNEL_MTU=1450 >/run/flannel/subnet.env");
    both(
        &node,
        "/run/flannel/subnet.env is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET",
    );
    // Nothing is recorded, and DEL has nothing to do.
    of(&node, "DEL", &c1).call().silent();
    node.sh("! ls /var/lib/cni/flannel 2>/dev/null");
    let elsewhere = json!({ "subnetFile": node.dir("env").join("subnet.env") });
    write_subnet_env(&node, Family::V4, "");
    node.sh(&format!("mv {SUBNET_ENV} {}", node.dir("env").display()));
    of(&node, "STATUS", &c1).config(elsewhere.clone()).of_network().call().silent();
    of(&node, "ADD", &c1).config(elsewhere).call().ok();
    of(&node, "DEL", &c1).call().silent();
}

#[test]
fn status_is_the_delegates() {
    testkit::require!("root");
    let node = node("flannel-status");
    add_witness(&node);
    let c1 = node.container("c1");
    let status = |delegate: Value| {
        of(&node, "STATUS", &c1).config(json!({ "delegate": delegate })).of_network().call()
    };
    node.sh("ip link add notbridge type veth peer name other");
    status(json!({ "bridge": "notbridge" })).fails(50, "notbridge");
    status(json!({ "mtu": "many" })).fails(6, "mtu");
    status(json!({ "type": "macvlan", "master": "missing0" })).fails(50, "missing0");
    status(json!({ "type": "missing" })).fails(7, "\"missing\"");
    fails(&node, "STATUS", 51, "not today");
    status(json!({ "type": "theirs" })).fails(51, "not today");
}

#[test]
fn what_is_wrong_is_refused_before_anything_is_done() {
    testkit::require!("root");
    let node = node("flannel-bad");
    let c1 = node.container("c1");
    for (keys, code, words) in [
        (json!({ "delegate": { "name": "x" } }), 7, "must not have 'name' field"),
        (json!({ "delegate": { "ipam": {} } }), 7, "must not have 'ipam' field"),
        (json!({ "delegate": { "type": [] } }), 7, "must have (string) 'type' field"),
        (json!({ "delegate": { "type": "../bridge" } }), 7, ""),
        (json!({ "delegate": { "type": "flannel" } }), 7, "cannot delegate to itself"),
        (json!({ "delegate": [] }), 6, "delegate"),
        (json!({ "ipam": { "routes": 5 } }), 7, "failed to parse ipam.routes"),
        (json!({ "subnetFile": 5 }), 6, "subnetFile"),
    ] {
        for verb in ["ADD", "STATUS"] {
            let run = of(&node, verb, &c1).config(keys.clone());
            let run = if verb == "STATUS" { run.of_network() } else { run };
            run.call().fails(code, words);
        }
        of(&node, "DEL", &c1).config(keys).call().silent();
    }
    assert!(!is_attached(&c1));
    node.sh("! ls /var/lib/cni/flannel/* 2>/dev/null");
}

#[test]
fn misspelt_keys_are_found() {
    let unknown = |config: &str| plugins::find("flannel").unwrap().unknown_keys(config).unwrap();
    let config =
        r#"{"type":"flannel","subnetFile":"x","dataDir":"y","delegate":{"z":1},"ipam":{"w":1}}"#;
    assert_eq!(unknown(config), []);
    let found = unknown(r#"{"type":"flannel","subnetfiles":"x"}"#);
    assert_eq!((found[0].key.as_str(), found.len()), ("subnetfiles", 1));
}
