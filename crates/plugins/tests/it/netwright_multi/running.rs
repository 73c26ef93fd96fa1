//! Networks that are added and removed while a pod runs.

use node_api::multinet::{ATTACH, DETACH, PlannedNetwork};
use serde_json::{Value, json};
use testkit::Place;
use testkit::traffic::assert_pings;

use super::{bridge, default, links, list, node, planned, pod};
use crate::support::matrix::addresses;
use crate::support::multinet::Daemon;

#[test]
fn a_network_comes_and_goes_while_the_others_stay() {
    testkit::require!("root");
    let node = node("pod-hot");
    let blue = planned("ns/blue", &list("blue", json!([bridge(&node, 2)])));
    let daemon = Daemon::planning(&node, vec![default(), blue]);
    let c1 = node.container("c1");
    let result = pod(&node, "ADD", &c1).call().ok();
    daemon.heard();
    let attach = |network: &PlannedNetwork| {
        let keys = json!({ ATTACH: serde_json::to_value(network).unwrap() });
        // The daemon need not know the runtime's name for the network.
        pod(&node, "ADD", &c1).network("whatever").config(keys)
    };
    let detach =
        |ifname: &str| pod(&node, "DEL", &c1).network("whatever").config(json!({ DETACH: ifname }));

    let green = planned("ns/green", &list("green", json!([bridge(&node, 3)])));
    let given = attach(&green).call().ok();
    assert_eq!(links(&c1), ["eth0", "net1", "net2"]);
    assert_eq!(given["ips"][0]["address"], "10.3.0.2/24");
    assert_eq!(given["routes"], Value::Null, "the default route stays where it is: {given}");
    assert_eq!(c1.sh("ip route show default").trim(), "default via 10.1.0.1 dev eth0");
    let named = PlannedNetwork { ifname: Some("data0".to_owned()), ..green.clone() };
    attach(&named).call().ok();
    assert_eq!(links(&c1), ["eth0", "net1", "net2", "data0"]);
    pod(&node, "CHECK", &c1).prev(&result).call().silent();

    detach("net1").call().silent();
    assert_eq!(links(&c1), ["eth0", "net2", "data0"]);
    detach("net1").call().silent();
    detach("nothing0").call().silent();
    for address in ["10.1.0.1", "10.3.0.1"] {
        assert_pings(&c1, address);
    }
    pod(&node, "CHECK", &c1).prev(&result).call().silent();
    // The daemon asked for it and needs no report.
    assert_eq!(daemon.words(), [""; 0]);

    for (network, code, words) in [
        (named, 106, "interface \"data0\" already exists"),
        (default(), 7, "the default network is there already"),
        (
            PlannedNetwork {
                default_route: Some(vec!["10.3.0.1".parse().unwrap()]),
                ..green.clone()
            },
            7,
            "the default route cannot be moved",
        ),
        (planned("ns/none", &list("none", json!([{ "type": "no-such" }]))), 107, "no-such"),
    ] {
        let error = attach(&network).call().error();
        assert!(error.msg.contains(words) || error.details.contains(words), "{error}");
        assert!(error.code == code || words == "no-such", "{error:?}");
        assert_eq!(links(&c1), ["eth0", "net2", "data0"]);
    }
    detach("eth0").call().fails(7, "the default network stays");
    pod(&node, "CHECK", &c1).prev(&result).call().silent();
    pod(&node, "DEL", &c1).call().silent();
    assert_eq!((links(&c1), addresses(&node).as_str()), (vec![], ""));
    assert_eq!(daemon.words(), ["detached"]);
    attach(&green).call().fails(3, "is not attached");
    detach("net2").call().silent();
}

#[test]
fn a_network_stays_while_the_pods_namespace_cannot_be_seen() {
    testkit::require!("root");
    let node = node("pod-unseen");
    let blue = planned("ns/blue", &list("blue", json!([bridge(&node, 2)])));
    let _daemon = Daemon::planning(&node, vec![default(), blue]);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let result = pod(&node, "ADD", &c1).call().ok();
    let held = || node.sh(&format!("ls {}", node.dir("held/blue").display()));
    let before = held();
    assert!(before.contains("10.2.0.2"), "{before}");
    let file = node.dir("plain").join("file");
    std::fs::write(&file, "").unwrap();
    let detach = || pod(&node, "DEL", &c1).config(json!({ DETACH: "net1" }));
    for (netns, code, words) in [
        ("".into(), 4, "CNI_NETNS is empty"),
        ("/run/netns/not-mounted-here".into(), 8, "not-mounted-here"),
        // The mount point of a mount that did not propagate here.
        (file, 8, "unknown FS magic"),
        (c2.netns(), 8, "another namespace"),
    ] {
        let error = detach().netns(&netns).call().error();
        let said = format!("{}: {}", error.msg, error.details);
        assert!(error.code == code && said.contains(words), "{netns:?}: {error:?}");
        assert_eq!(links(&c1), ["eth0", "net1"]);
        assert_eq!(held(), before);
        pod(&node, "CHECK", &c1).prev(&result).call().silent();
    }
    detach().call().silent();
    assert_eq!(links(&c1), ["eth0"]);
    assert!(!held().contains("10.2.0.2"));
    pod(&node, "DEL", &c1).call().silent();
}

/// The kernel gives the inode number of a deleted namespace to a new one. If a path leads to
/// another namespace with the pod's inode number, the plugin neither attaches nor detaches there.
#[test]
fn a_stranger_with_the_number_of_the_pods_namespace_is_left_alone() {
    testkit::require!("root");
    let node = node("pod-stranger");
    let blue = planned("ns/blue", &list("blue", json!([bridge(&node, 2)])));
    let _daemon = Daemon::planning(&node, vec![default(), blue]);
    let c1 = node.container("c1");
    pod(&node, "ADD", &c1).call().ok();
    // The record now looks as if it belongs to an earlier namespace with the same number.
    let index = state::Index::new(&node.roots);
    let shift = |by: i64| {
        let found = index.list().found;
        assert!(found.iter().any(|record| record.netns_cookie.is_some()), "{found:?}");
        for mut record in found {
            let shifted = record.netns_cookie.map(|cookie| cookie.wrapping_add_signed(by));
            record.netns_cookie = shifted;
            index.put(&record).unwrap();
        }
    };
    shift(1);
    let green = planned("ns/green", &list("green", json!([bridge(&node, 3)])));
    let keys = json!({ ATTACH: serde_json::to_value(&green).unwrap() });
    pod(&node, "ADD", &c1).config(keys).call().fails(8, "another namespace");
    let detach = || pod(&node, "DEL", &c1).config(json!({ DETACH: "net1" })).call();
    detach().fails(8, "another namespace");
    assert_eq!(links(&c1), ["eth0", "net1"]);
    shift(-1);
    detach().silent();
    assert_eq!(links(&c1), ["eth0"]);
    pod(&node, "DEL", &c1).call().silent();
}
