//! Invalid configurations and plans.

use node_api::Message;
use node_api::line::MAX_MESSAGE;
use node_api::multinet::{Answer, Plan, PlannedNetwork};
use serde_json::json;

use super::{bare, bridge, default, links, list, node, planned, pod};
use crate::support::Run;
use crate::support::matrix::addresses;
use crate::support::multinet::{Daemon, Reply};

#[test]
fn configurations_that_choose_no_default_network() {
    testkit::require!("root");
    let node = node("pod-keys");
    let c1 = node.container("c1");
    let call = |keys| {
        node.run("netwright-multi", "ADD")
            .to(&c1)
            .config(json!({ "confDir": node.dir("net.d") }))
            .config(keys)
    };
    let one = json!({ "type": "bridge" });
    for (keys, words) in [
        (json!({}), "needs \"clusterNetwork\""),
        (json!({ "clusterNetwork": "" }), "\"clusterNetwork\" is empty"),
        (json!({ "clusterNetwork": "a", "delegates": [one] }), "which is the default network?"),
        (json!({ "delegates": [one, one] }), "\"delegates\" holds more than the default network"),
        (json!({ "delegates": [{}] }), "configuration names no plugin"),
        (json!({ "delegates": [{ "type": "multus" }] }), "would attach the pod's networks again"),
        (json!({ "clusterNetwork": node.dir("net.d") }), "is a folder"),
        (json!({ "clusterNetwork": "/nonexistent/x.conf" }), "it does not exist"),
    ] {
        call(keys).call().fails(7, words);
        assert_eq!(links(&c1), [""; 0]);
    }
    call(json!({ "delegates": {} })).call().fails(6, "delegates");
}

#[test]
fn the_default_network_may_be_a_file() {
    testkit::require!("root");
    let node = node("pod-file");
    let c1 = node.container("c1");
    let file = node.dir("net.d").join("50-cluster.conflist");
    let call = |verb: &str| bare(&node, verb, &c1).config(json!({ "clusterNetwork": file }));
    call("ADD").call().ok();
    call("DEL").call().silent();
    assert_eq!(links(&c1), [""; 0]);
}

#[test]
fn plans_that_make_no_sense_change_nothing() {
    testkit::require!("root");
    let node = node("pod-plans");
    let c1 = node.container("c1");
    let blue = || planned("ns/blue", &list("blue", json!([bridge(&node, 2)])));
    let named = |ifname: &str| PlannedNetwork { ifname: Some(ifname.to_owned()), ..blue() };
    let routed =
        || PlannedNetwork { default_route: Some(vec!["10.2.0.1".parse().unwrap()]), ..blue() };
    let many = || {
        let mut networks = vec![blue(); 300];
        networks[0] = default();
        networks
    };
    for (networks, words) in [
        (vec![], "a plan of 0 networks"),
        (many(), "a plan of 300 networks"),
        (vec![blue()], "first network is not the one default network"),
        (vec![default(), default()], "first network is not the one default network"),
        (
            vec![default(), named("eth0")],
            "network \"ns/blue\": interface eth0 is another network's",
        ),
        (vec![default(), named("x0"), named("x0")], "interface x0 is another network's"),
        (vec![default(), routed(), routed()], "net1 has the default route already"),
        (
            vec![
                default(),
                PlannedNetwork { name: "ns/none".to_owned(), ..PlannedNetwork::default() },
            ],
            "network \"ns/none\": has no configuration",
        ),
        (
            vec![
                default(),
                PlannedNetwork { on_node: "nowhere".to_owned(), ..PlannedNetwork::default() },
            ],
            "no network \"nowhere\" in",
        ),
        (
            vec![default(), planned("ns/us", &list("us", json!([{ "type": "multus-shim" }])))],
            "would attach the pod's networks again",
        ),
        (
            vec![default(), planned("ns/bad", &list("b d", json!([{ "type": "bridge" }])))],
            "invalid characters found in network name",
        ),
    ] {
        let daemon = Daemon::planning(&node, networks);
        pod(&node, "ADD", &c1).call().fails(7, words);
        assert_eq!((links(&c1), addresses(&node).as_str()), (vec![], ""));
        assert_eq!(daemon.words(), ["plan", "failed"]);
    }
    let _daemon = Daemon::planning(&node, vec![default(), named("0123456789abcdef")]);
    pod(&node, "ADD", &c1).call().fails(4, "network \"ns/blue\": interface name is too long");
}

#[test]
fn answers_that_are_none_change_nothing() {
    testkit::require!("root");
    let node = node("pod-answers");
    let c1 = node.container("c1");
    let mut long = vec![b'x'; MAX_MESSAGE + 20];
    long.push(b'\n');
    for (reply, words) in [
        (Reply::Writes(b"tea\n".to_vec()), "not a message"),
        (Reply::Writes(b"{}\n".to_vec()), "a message of version 0"),
        (Reply::Writes(b"{\"version\":1}\n".to_vec()), "a message without a known key"),
        (Reply::Writes(b"{\"version\":1,\"plan\"".to_vec()), "no answer on"),
        (Reply::Writes(long), "longer than"),
        (Reply::Says(Answer::Ok), "is to another request"),
        (Reply::Dies, "no answer on"),
    ] {
        let _daemon = Daemon::start(&node, move |_| reply.clone());
        pod(&node, "ADD", &c1).call().fails(11, words);
        assert_eq!((links(&c1), addresses(&node).as_str()), (vec![], ""));
    }
}

#[test]
fn an_interface_that_is_there_already_is_refused() {
    testkit::require!("root");
    use testkit::Place as _;
    let node = node("pod-taken");
    let c1 = node.container("c1");
    c1.sh("ip link add data0 type veth peer name net1");
    let blue = planned("ns/blue", &list("blue", json!([bridge(&node, 2)])));
    let named = PlannedNetwork { ifname: Some("data0".to_owned()), ..blue.clone() };
    let _daemon = Daemon::planning(&node, vec![default(), named]);
    pod(&node, "ADD", &c1).call().fails(106, "interface \"data0\" already exists");
    // A network that requests no interface name gets a free one.
    let _daemon = Daemon::planning(&node, vec![default(), blue]);
    pod(&node, "ADD", &c1).call().ok();
    assert!(links(&c1).contains(&"net2".to_owned()));
}

#[test]
fn what_is_decided_before_anything_is_touched() {
    let add = |keys| {
        let keys = Run::bare("netwright-multi", "STATUS").config(keys);
        keys.env(|env| env.container_id.clear()).call()
    };
    add(json!({ "clusterNetwork": "x", "readinessindicatorfile": "/nonexistent/ready" }))
        .fails(50, "the default network is not ready: no /nonexistent/ready");
    add(json!({ "clusterNetwork": "x", "confDir": "/nonexistent" }))
        .fails(50, "netwrightd does not answer");
    add(json!({})).fails(7, "needs \"clusterNetwork\"");
}

#[test]
fn a_plan_of_the_largest_size_is_read() {
    let networks = vec![PlannedNetwork { name: "n".repeat(300), ..PlannedNetwork::default() }; 256];
    let answer = Answer::Plan(Plan { uid: String::new(), networks });
    assert!(answer.to_line().unwrap().len() < MAX_MESSAGE);
}
