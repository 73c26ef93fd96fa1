//! `bandwidth`, row by row of the feature table.

mod traffic;

use serde_json::{Value, json};
use testkit::{Container, Place, Snapshot};

use crate::support::matrix::{self, Family, Subject, attached};
use crate::support::{Node, Run};

const SUBJECT: Subject = Subject {
    plugin: "bandwidth",
    host: |_, _| {},
    config: |node, c1, family| {
        let mut keys = both(8_000_000, 4_294_967_295);
        keys["prevResult"] = attached(node, c1, family);
        keys
    },
    holds: |node, c1, _| {
        let name = c1.name();
        let kinds = |link: &str| {
            let qdiscs = qdiscs(node, link);
            qdiscs.iter().map(|qdisc| qdisc["kind"].as_str().unwrap().to_owned()).collect()
        };
        let host: Vec<String> = kinds(&format!("v{name}"));
        let shaped =
            host.iter().any(|kind| kind == "tbf") && host.iter().any(|kind| kind == "ingress");
        shaped && node.sh("ip -j link show type ifb").contains("bwp")
    },
    damage: |node, _, _| {
        node.sh("ip link set $(ip -br link show type ifb | cut -d ' ' -f 1) down");
    },
    unready: None,
};
matrix::tests!(SUBJECT, modules: full);

/// The same rate and burst in both directions.
fn both(rate: u64, burst: u64) -> Value {
    json!({ "ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst })
}

fn host(name: &str) -> (Node, Container, Value) {
    let node = Node::new(name);
    let c1 = node.container("c1");
    let prev = attached(&node, &c1, Family::Dual);
    (node, c1, prev)
}

fn run<'n>(node: &'n Node, verb: &str, to: &Container, prev: &Value, keys: Value) -> Run<'n> {
    node.run("bandwidth", verb).to(to).prev(prev).config(keys)
}

fn qdiscs(node: &Node, link: &str) -> Vec<Value> {
    let text = node.sh(&format!("tc -j qdisc show dev {link} 2>/dev/null || echo []"));
    let all: Vec<Value> = serde_json::from_str(&text).unwrap();
    all.into_iter().filter(|qdisc| qdisc["handle"] != "0:").collect()
}

/// The token bucket at the root of a link.
#[track_caller]
fn bucket(node: &Node, link: &str) -> Value {
    let all = qdiscs(node, link);
    let found = all.iter().find(|qdisc| qdisc["kind"] == "tbf" && qdisc["root"] == true);
    found.unwrap_or_else(|| panic!("no tbf on {link}: {all:?}")).clone()
}

fn ifbs(node: &Node) -> Vec<Value> {
    let text = node.sh("ip -j -d link show type ifb");
    serde_json::from_str(if text.trim().is_empty() { "[]" } else { &text }).unwrap()
}

/// Calls the installed reference plugin.
#[track_caller]
fn reference(node: &Node, run: Run<'_>) -> Value {
    let config = node.dir("go").join("config");
    std::fs::write(&config, run.document()).unwrap();
    let mut vars = String::new();
    let _ = run.env(|env| {
        vars = env.to_vars().iter().map(|(key, value)| format!("{key}={value} ")).collect();
    });
    let command =
        format!("{vars} CNI_PATH=/usr/lib/cni /usr/lib/cni/bandwidth < {}", config.display());
    let text = node.sh(&command);
    if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() }
}

/// Row: bandwidth | ingress.
#[test]
fn a_bucket_on_the_hosts_end_for_what_goes_to_the_container() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-in");
    let keys = json!({ "ingressRate": 8_000_000, "ingressBurst": 8_000_000 });
    let result = run(&node, "ADD", &c1, &prev, keys).call().ok();
    assert_eq!(result["interfaces"], prev["interfaces"]);
    assert_eq!(result["ips"], prev["ips"]);
    let bucket = bucket(&node, "vc1");
    assert_eq!(bucket["handle"], "1:");
    assert_eq!(bucket["options"]["rate"], 1_000_000);
    // The configuration asks for a megabyte, so the burst is kept.
    assert_eq!(bucket["options"]["burst"], 1_000_000);
    assert!(ifbs(&node).is_empty());
    let kinds: Vec<_> = qdiscs(&node, "vc1").iter().map(|qdisc| qdisc["kind"].clone()).collect();
    assert!(!kinds.contains(&json!("ingress")), "{kinds:?}");
}

/// Row: bandwidth | egress. The name is the reference's.
#[test]
fn a_bucket_on_a_link_of_its_own_for_what_comes_from_the_container() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-out");
    node.sh("ip link set vc1 mtu 1400");
    let keys = json!({ "egressRate": 8_000_000, "egressBurst": 80_000 });
    let result = run(&node, "ADD", &c1, &prev, keys).call().ok();
    let ifb = &ifbs(&node)[0];
    assert_eq!(ifb["ifname"], "bwp9b00b9b7c279");
    // A queue's length of zero is not shown.
    assert_eq!((&ifb["mtu"], &ifb["txqlen"]), (&json!(1400), &Value::Null));
    assert_eq!(ifb["ifalias"], "netwright:n/c1/eth0");
    assert!(ifb["flags"].as_array().unwrap().contains(&json!("UP")));
    let mut links = prev["interfaces"].as_array().unwrap().clone();
    links.push(json!({ "name": "bwp9b00b9b7c279", "mac": ifb["address"] }));
    assert_eq!(result["interfaces"], json!(links));
    let bucket = bucket(&node, "bwp9b00b9b7c279");
    assert_eq!(bucket["options"]["rate"], 1_000_000);
    assert_eq!(bucket["options"]["burst"], 10_000);
    let kinds: Vec<_> = qdiscs(&node, "vc1").iter().map(|qdisc| qdisc["kind"].clone()).collect();
    assert_eq!(kinds, [json!("ingress")]);
    let filters = node.sh("tc filter show dev vc1 ingress");
    // The reference has the action twice.
    assert_eq!(filters.matches("Redirect to device bwp9b00b9b7c279").count(), 1, "{filters}");
}

/// Row: bandwidth | static over runtime. Beside that: what containerd writes.
#[test]
fn rates_come_from_the_configuration_or_else_from_the_runtime() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-rt");
    let runtime = json!({ "bandwidth": {
        "IngressRate": 10_000_000, "IngressBurst": 4_294_967_295_u64,
        "EgressRate": 20_000_000, "EgressBurst": 2_147_483_647,
    } });
    let keys = json!({ "capabilities": { "bandwidth": true }, "runtimeConfig": runtime });
    run(&node, "ADD", &c1, &prev, keys.clone()).call().ok();
    assert_eq!(bucket(&node, "vc1")["options"]["rate"], 1_250_000);
    // The burst is a twentieth of a second's bytes, not the 536 MB of the configuration.
    assert_eq!(bucket(&node, "vc1")["options"]["burst"], 62_500);
    assert_eq!(bucket(&node, "bwp9b00b9b7c279")["options"]["rate"], 2_500_000);
    run(&node, "CHECK", &c1, &prev, keys.clone()).call().silent();
    let fixed = json!({ "ingressRate": 4_000_000, "ingressBurst": 4_000_000 });
    run(&node, "ADD", &c1, &prev, keys).config(fixed).call().ok();
    assert_eq!(bucket(&node, "vc1")["options"]["rate"], 500_000);
    assert!(ifbs(&node).is_empty(), "the configuration asks for nothing in that direction");
}

/// The burst lasts 42 minutes at this rate. The kernel reports sizes as times, in 32 bits that hold
/// 274 seconds.
#[test]
fn a_burst_of_many_seconds_is_given_and_named() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-long");
    let keys = both(64_000, 160_000_000);
    let answer = run(&node, "ADD", &c1, &prev, keys.clone()).call();
    let told = answer.stderr().to_owned();
    assert!(told.contains("ingressBurst is what ingressRate carries in 2500 s"), "{told}");
    assert!(told.contains("egressBurst"), "{told}");
    answer.ok();
    let check = || run(&node, "CHECK", &c1, &prev, keys.clone());
    let answer = check().call();
    assert!(answer.succeeded() && answer.stderr().contains("ingressBurst"), "{answer:?}");
    // Repair takes the discipline for its own.
    let once = Snapshot::take(&node.lab);
    let repair = || check().config(json!({ "netwright/repair": true })).call();
    assert!(repair().succeeded());
    once.assert_same(&Snapshot::take(&node.lab));
    node.sh("tc qdisc change dev vc1 root handle 1: tbf rate 64kbit burst 100000 limit 200000");
    check().call().fails(104, "does not match");
    assert!(repair().succeeded() && check().call().succeeded());
    once.assert_same(&Snapshot::take(&node.lab));
    // ADD does not warn of a burst that fits into a second.
    let answer = run(&node, "ADD", &c1, &prev, both(8_000_000, 8_000_000)).call();
    assert!(!answer.stderr().contains("Burst"), "{answer:?}");
    answer.ok();
}

/// Row: bandwidth | nothing configured.
#[test]
fn nothing_asked_for_is_nothing_done() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-none");
    let before = Snapshot::take(&node.lab);
    for keys in [json!({}), both(0, 0), json!({ "runtimeConfig": { "bandwidth": null } })] {
        let result = run(&node, "ADD", &c1, &prev, keys.clone()).call().ok();
        assert_eq!(result, prev);
        // The reference crashes without a prevResult.
        let bare = run(&node, "ADD", &c1, &prev, keys.clone()).without("prevResult").call().ok();
        assert_eq!(bare, json!({ "cniVersion": "1.1.0" }));
        run(&node, "CHECK", &c1, &prev, keys.clone()).without("prevResult").call().silent();
        run(&node, "DEL", &c1, &prev, keys).call().silent();
    }
    before.assert_same(&Snapshot::take(&node.lab));
}

/// The reference fails with "create qdisc: file exists".
#[test]
fn add_twice_replaces() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-twice");
    let before = Snapshot::take(&node.lab);
    let first = run(&node, "ADD", &c1, &prev, both(8_000_000, 8_000_000)).call().ok();
    let once = Snapshot::take(&node.lab);
    let again = run(&node, "ADD", &c1, &prev, both(8_000_000, 8_000_000)).call().ok();
    assert_eq!(first, again);
    once.assert_same(&Snapshot::take(&node.lab));
    // With its own result as prevResult, too, ADD does not list two links of one name.
    let again = run(&node, "ADD", &c1, &first, both(16_000_000, 800_000)).call().ok();
    assert_eq!(first, again);
    for link in ["vc1", "bwp9b00b9b7c279"] {
        assert_eq!(bucket(&node, link)["options"]["rate"], 2_000_000, "{link}");
        assert_eq!(bucket(&node, link)["options"]["burst"], 100_000, "{link}");
    }
    run(&node, "CHECK", &c1, &first, both(16_000_000, 800_000)).call().silent();
    let result = run(&node, "ADD", &c1, &prev, json!({})).call().ok();
    assert_eq!(result, prev);
    before.assert_same(&Snapshot::take(&node.lab));
}

/// Row: bandwidth | DEL. DEL needs neither record nor result, configuration or namespace.
#[test]
fn del_by_what_is_left() {
    testkit::require!("root");
    for (name, record, result, netns) in [
        ("bw-del1", true, false, false),
        ("bw-del2", false, true, true),
        ("bw-del3", true, true, false),
    ] {
        let (node, c1, prev) = host(name);
        let before = Snapshot::take(&node.lab);
        run(&node, "ADD", &c1, &prev, both(8_000_000, 8_000_000)).call().ok();
        if !record {
            std::fs::remove_dir_all(node.roots.run.join("owners")).unwrap();
        }
        let mut del = run(&node, "DEL", &c1, &prev, json!({}));
        if !result {
            del = del.without("prevResult");
        }
        if !netns {
            del = del.netns("");
        }
        del.call().silent();
        before.assert_same(&Snapshot::take(&node.lab));
        run(&node, "DEL", &c1, &prev, json!({})).call().silent();
    }
}

#[test]
fn del_with_nothing_but_the_name_removes_the_link() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-bare");
    run(&node, "ADD", &c1, &prev, both(8_000_000, 8_000_000)).call().ok();
    std::fs::remove_dir_all(node.roots.run.join("owners")).unwrap();
    node.run("bandwidth", "DEL").id("c1").call().silent();
    assert!(ifbs(&node).is_empty());
    // The host's end has gone with the container.
    run(&node, "ADD", &c1, &prev, both(8_000_000, 8_000_000)).call().ok();
    node.sh("ip link del vc1");
    node.run("bandwidth", "DEL").id("c1").call().silent();
    assert!(ifbs(&node).is_empty());
    assert_eq!(std::fs::read_dir(node.roots.run.join("owners")).unwrap().count(), 0);
}

/// A node that changes from the reference's plugins to ours, or back.
#[test]
fn either_removes_what_the_other_made() {
    testkit::require!("root", "file:/usr/lib/cni/bandwidth");
    let (node, c1, mut prev) = host("bw-go");
    prev["cniVersion"] = json!("1.0.0");
    let keys = both(8_000_000, 8_000_000);
    let before = Snapshot::take(&node.lab);
    let run = |verb| run(&node, verb, &c1, &prev, keys.clone()).version("1.0.0");
    let theirs = reference(&node, run("ADD"));
    run("CHECK").call().silent();
    run("DEL").call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
    let ours = run("ADD").call().ok();
    let without_macs = |result: &Value| {
        let mut result = result.clone();
        result["interfaces"][3]["mac"].take();
        result.as_object_mut().unwrap().remove("dns");
        result
    };
    assert_eq!(without_macs(&ours), without_macs(&theirs));
    reference(&node, run("DEL"));
    assert!(ifbs(&node).is_empty());
    run("DEL").call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
    // ADD takes over the objects that the reference made.
    reference(&node, run("ADD"));
    run("ADD").config(both(4_000_000, 4_000_000)).call().ok();
    assert_eq!(ifbs(&node)[0]["ifalias"], "netwright:n/c1/eth0");
    run("CHECK").config(both(4_000_000, 4_000_000)).call().silent();
    run("DEL").call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
}

/// The reference's name does not tell interfaces of one container apart: its second ADD fails.
#[test]
fn two_interfaces_of_one_container_in_one_network() {
    testkit::require!("root");
    let (node, c1, mut prev) = host("bw-two");
    let before = Snapshot::take(&node.lab);
    let keys = both(8_000_000, 8_000_000);
    run(&node, "ADD", &c1, &prev, keys.clone()).call().ok();
    let first = Snapshot::take(&node.lab);
    node.sh("ip link add vx1 address 02:00:00:00:07:01 type veth peer name net1 netns c1 && ip link set vx1 addrgenmode none up");
    c1.sh("ip link set net1 addrgenmode none up");
    prev["interfaces"][1]["name"] = json!("vx1");
    prev["interfaces"][2]["name"] = json!("net1");
    let second = || run(&node, "ADD", &c1, &prev, keys.clone()).ifname("net1");
    let result = second().call().ok();
    let name = result["interfaces"][3]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("bwp") && name.len() == 15 && name != "bwp9b00b9b7c279", "{name}");
    assert_eq!(ifbs(&node).len(), 2);
    assert_eq!(second().call().ok(), result);
    run(&node, "CHECK", &c1, &prev, keys.clone()).ifname("net1").call().silent();
    run(&node, "DEL", &c1, &prev, keys.clone()).ifname("net1").call().silent();
    node.sh("ip link del vx1");
    first.assert_same(&Snapshot::take(&node.lab));
    node.run("bandwidth", "DEL").id("c1").call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
}

/// Row: bandwidth | CHECK. The reference does not look at filters, and takes a foreign discipline
/// for its own.
#[test]
fn check_notices_what_is_different() {
    testkit::require!("root");
    let keys = || both(8_000_000, 8_000_000);
    for (number, (damage, words)) in [
        ("tc qdisc change dev vc1 root handle 1: tbf rate 9mbit burst 1000000 limit 200000", "Rate doesn't match"),
        ("tc qdisc change dev bwp9b00b9b7c279 root handle 1: tbf rate 9mbit burst 1000000 limit 200000", "Rate doesn't match"),
        ("tc qdisc change dev vc1 root handle 1: tbf rate 8mbit burst 2000000 limit 200000", "does not match"),
        ("tc qdisc del dev vc1 root", "Failed to find qdisc"),
        ("tc qdisc replace dev vc1 root handle 9: bfifo limit 10000", "not a bucket"),
        ("tc filter del dev vc1 ingress pref 1", "not led to"),
        ("tc qdisc del dev vc1 ingress", "not led to"),
        ("ip link del bwp9b00b9b7c279", "get ifb device: Link not found"),
        ("ip link set bwp9b00b9b7c279 down", "is down"),
        ("ip link del vc1", "has no veth peer"),
    ]
    .into_iter()
    .enumerate()
    {
        let (node, c1, prev) = host(&format!("bw-chk{number}"));
        run(&node, "ADD", &c1, &prev, keys()).call().ok();
        run(&node, "CHECK", &c1, &prev, keys()).call().silent();
        node.sh(damage);
        let error = run(&node, "CHECK", &c1, &prev, keys()).call().error();
        assert!(error.to_string().contains(words), "{damage}: {error:?}");
    }
}

#[test]
fn what_others_put_on_the_link_stays() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-foreign");
    node.sh("tc qdisc add dev vc1 root handle 5: bfifo limit 10000");
    let before = Snapshot::take(&node.lab);
    let keys = || both(8_000_000, 8_000_000);
    let add = |keys| run(&node, "ADD", &c1, &prev, keys).call();
    add(keys()).fails(108, "create qdisc: link \"vc1\" has qdisc bfifo 5: at root");
    before.assert_same(&Snapshot::take(&node.lab));
    node.sh("tc qdisc del dev vc1 root");
    // A clsact hook is shared; other programs' filters on it are theirs.
    node.sh("tc qdisc add dev vc1 clsact && tc filter add dev vc1 ingress pref 1 protocol ip u32 match ip dst 203.0.113.9 action mirred egress mirror dev cni0");
    let before = Snapshot::take(&node.lab);
    add(keys()).ok();
    run(&node, "CHECK", &c1, &prev, keys()).call().silent();
    run(&node, "DEL", &c1, &prev, keys()).call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
    assert!(node.sh("tc filter show dev vc1 ingress").contains("mirred"));
}

/// Two foreign links have the two names that the container's link could have.
#[test]
fn a_failed_add_leaves_nothing() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-fail");
    let result = run(&node, "ADD", &c1, &prev, both(8_000_000, 8_000_000)).call().ok();
    run(&node, "DEL", &c1, &result, json!({})).call().silent();
    let key = cni::AttachmentKey {
        network: "n".parse().unwrap(),
        container_id: "c1".parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    };
    let second = format!("bwp{}", &key.hash()[..12]);
    for (name, kind) in [("bwp9b00b9b7c279", "bridge"), (&second, "bridge")] {
        node.sh(&format!("ip link add {name} type {kind}"));
    }
    let before = Snapshot::take(&node.lab);
    let add = || run(&node, "ADD", &c1, &prev, both(8_000_000, 8_000_000)).call();
    add().fails(108, "adding link: file exists");
    before.assert_same(&Snapshot::take(&node.lab));
    run(&node, "DEL", &c1, &prev, json!({})).call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
    // Once one of them is free, ADD succeeds.
    node.sh(&format!("ip link del {second}"));
    let result = add().ok();
    assert_eq!(result["interfaces"][3]["name"], second);
}

#[test]
fn what_cannot_be_shaped_is_told_in_the_references_words() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-bad");
    c1.sh("ip link add name mv0 link eth0 type macvlan");
    let before = Snapshot::take(&node.lab);
    let keys = || both(8_000_000, 8_000_000);
    let add = |prev: &Value| run(&node, "ADD", &c1, prev, keys());
    add(&prev).without("prevResult").call().fails(7, "must be called as chained plugin");
    let mut none = prev.clone();
    none["interfaces"] = json!([]);
    none["ips"] = json!([]);
    add(&none).call().fails(7, "no interfaces provided");
    add(&prev)
        .ifname("net7")
        .call()
        .fails(7, "container interface net7 has no veth peer: Link not found");
    add(&prev)
        .ifname("mv0")
        .call()
        .fails(7, "container interface mv0 has no veth peer: it is a macvlan link");
    let mut unlisted = prev.clone();
    unlisted["interfaces"][1]["name"] = json!("vother");
    add(&unlisted).call().fails(7, "no veth peer of container interface found in host ns");
    for (keys, code, words) in [
        (json!({ "ingressRate": 8_000_000 }), 7, "if rate is set, burst must also be set"),
        (json!({ "egressBurst": 8_000_000 }), 7, "if burst is set, rate must also be set"),
        (
            json!({ "ingressRate": 1, "ingressBurst": 34_359_738_360_u64 }),
            7,
            "burst cannot be more than 4GB",
        ),
        (json!({ "egressRate": 7, "egressBurst": 1 }), 7, "egressRate is 7 bit/s"),
        (json!({ "ingressRate": "8M" }), 6, "ingressRate"),
        (json!({ "ingressRate": -1 }), 6, "ingressRate"),
        (json!({ "ingressRate": 1.5 }), 6, "ingressRate"),
        (json!({ "runtimeConfig": { "bandwidth": [] } }), 6, "bandwidth"),
    ] {
        run(&node, "ADD", &c1, &prev, keys).call().fails(code, words);
    }
    // The other end is not in the host's namespace.
    let c2 = node.container("c2");
    c1.sh("ip link del eth0");
    node.sh("ip link add vtmp type veth peer name eth0 netns c1 && ip link set vtmp netns c2");
    let error = add(&prev).call().error();
    assert!(error.code == 7 && error.msg.starts_with("veth peer with index"), "{error:?}");
    c1.sh("ip link del eth0");
    drop(c2);
    let _ = before;
}

/// A key of releases 1.5.0 and 1.5.1 of the reference, which those before and after ignore.
#[test]
fn subnets_are_ignored_with_a_warning() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-subnet");
    let mut keys = both(8_000_000, 8_000_000);
    keys["unshapedSubnets"] = json!(["10.0.0.0/8"]);
    let answer = run(&node, "ADD", &c1, &prev, keys.clone()).call();
    assert!(answer.stderr().contains("unshapedSubnets is ignored"), "{answer:?}");
    answer.ok();
    let plugin = plugins::find("bandwidth").unwrap();
    let unknown = plugin.unknown_keys(&keys.to_string()).unwrap();
    assert_eq!(unknown.len(), 1, "{unknown:?}");
}

#[test]
fn gc_takes_what_has_no_record_but_our_mark() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-gc");
    run(&node, "ADD", &c1, &prev, both(8_000_000, 8_000_000)).call().ok();
    let c2 = node.container("c2");
    let gone = attached(&node, &c2, Family::V4);
    run(&node, "ADD", &c2, &gone, both(8_000_000, 8_000_000)).call().ok();
    run(&node, "ADD", &c2, &gone, both(8_000_000, 8_000_000)).network("other").call().ok();
    node.sh("ip link add bwp000000000000 type ifb");
    std::fs::remove_dir_all(node.roots.run.join("owners")).unwrap();
    let gc = || {
        let gc = node.run("bandwidth", "GC").of_network();
        gc.valid(&[("c1", "eth0")]).call().silent();
    };
    gc();
    let mut left: Vec<_> = ifbs(&node).iter().map(|ifb| ifb["ifalias"].clone()).collect();
    left.sort_by_key(Value::to_string);
    let marks = ["netwright:n/c1/eth0", "netwright:other/c2/eth0"];
    assert_eq!(left, [json!(marks[0]), json!(marks[1]), Value::Null], "{left:?}");
    gc();
}

/// A program deletes the link: its filter stays and drops what the container sends.
#[test]
fn a_filter_that_leads_nowhere_is_replaced() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-dead");
    let add = || run(&node, "ADD", &c1, &prev, both(8_000_000, 8_000_000)).call().ok();
    add();
    node.sh("ip link del bwp9b00b9b7c279");
    assert!(!c1.try_sh("ping -c 1 -W 1 10.1.0.1").status.success());
    add();
    testkit::traffic::assert_pings(&c1, "10.1.0.1");
    testkit::traffic::assert_pings(&c1, "fd00:1::1");
    run(&node, "CHECK", &c1, &prev, both(8_000_000, 8_000_000)).call().silent();
}

/// The parts are what a killed ADD has made, or what remains after another program deleted some of
/// it.
#[test]
fn del_of_any_part() {
    testkit::require!("root");
    let (node, c1, prev) = host("bw-part");
    let before = Snapshot::take(&node.lab);
    let parts = [
        "tc qdisc del dev vc1 root",
        "tc filter del dev vc1 ingress pref 1",
        "tc qdisc del dev bwp9b00b9b7c279 root",
        "ip link del bwp9b00b9b7c279",
    ];
    for missing in 1..1_u32 << parts.len() {
        run(&node, "ADD", &c1, &prev, both(8_000_000, 8_000_000)).call().ok();
        for (bit, part) in parts.iter().enumerate() {
            if missing & 1 << bit != 0 {
                node.sh(part);
            }
        }
        run(&node, "DEL", &c1, &prev, json!({})).without("prevResult").call().silent();
        before.assert_same(&Snapshot::take(&node.lab));
    }
}

/// Behind the plugin that makes the pair: CHECK of both succeeds, and DEL of both, in reverse
/// order, leaves nothing.
#[test]
fn in_a_chain_with_bridge() {
    testkit::require!("root");
    let node = Node::new("bw-chain");
    let before = Snapshot::take(&node.lab);
    let c1 = node.container("c1");
    let bridge = |verb| {
        let keys = json!({ "isGateway": true, "ipam": matrix::ipam(&node, Family::Dual) });
        node.run("bridge", verb).to(&c1).config(keys)
    };
    let made = bridge("ADD").call().ok();
    let keys = || both(8_000_000, 8_000_000);
    let result = run(&node, "ADD", &c1, &made, keys()).call().ok();
    for to in ["10.1.0.1", "fd00:1::1"] {
        testkit::traffic::assert_pings(&c1, to);
    }
    bridge("CHECK").prev(&result).call().silent();
    run(&node, "CHECK", &c1, &result, keys()).call().silent();
    run(&node, "DEL", &c1, &result, keys()).call().silent();
    assert_eq!(qdiscs(&node, made["interfaces"][1]["name"].as_str().unwrap()), [] as [Value; 0]);
    bridge("DEL").prev(&result).call().silent();
    drop(c1);
    before.assert_same(&Snapshot::take(&node.lab));
}
