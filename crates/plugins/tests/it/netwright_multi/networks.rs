//! The networks that a pod has after ADD.

use cni::AddResult;
use node_api::multinet::{AttachReport, Request};
use npwg::status::{self, Form};
use serde_json::{Value, json};
use testkit::Place;
use testkit::traffic::assert_pings;

use super::{bare, bridge, calls, conf, default, given, links, list, node, planned, pod, stub};
use crate::support::matrix::{addresses, assert_settles, look};
use crate::support::multinet::{Daemon, left};

fn attached(heard: &[Request]) -> AttachReport {
    let attached = heard.iter().find_map(|request| match request {
        Request::Attached(attached) => Some(attached.clone()),
        _ => None,
    });
    attached.expect("it was reported")
}

/// What the daemon would write.
fn annotation(attached: &AttachReport, form: Form) -> String {
    let told = attached.results.iter().flat_map(|given| {
        let result = AddResult::parse(&given.result.to_vec(), cni::Version::CURRENT).unwrap();
        let device = given.device_info.as_ref();
        status::of_result(&given.name, &given.ifname, given.default, &result, device)
    });
    status::write(&told.collect::<Vec<_>>(), form)
}

#[test]
fn four_networks_each_with_its_own_route() {
    testkit::require!("root");
    let node = node("pod-four");
    node.sh("ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up");
    let held = node.dir("held");
    let mut second = planned("ns/blue", &list("blue", json!([bridge(&node, 2)])));
    second.ifname = Some("data0".to_owned());
    second.default_route = Some(vec!["10.2.0.1".parse().unwrap()]);
    let third = planned(
        "ns/lan",
        &list(
            "lan",
            json!([{
                "type": "macvlan", "master": "p0",
                "ipam": { "type": "static", "addresses": [{ "address": "192.0.2.5/24" }],
                          "routes": [{ "dst": "198.51.100.0/24", "gw": "192.0.2.1" }] }
            }]),
        ),
    );
    let fourth = planned(
        "other/far",
        &list(
            "far",
            json!([{
                "type": "ptp",
                "ipam": { "type": "host-local", "dataDir": held, "ranges": [[{ "subnet": "10.4.0.0/24" }]],
                          "routes": [{ "dst": "203.0.113.0/24" }] }
            }]),
        ),
    );
    let daemon = Daemon::planning(&node, vec![default(), second, third, fourth]);
    // The first container leaves locks.
    let (c0, c1) = (node.container("c0"), node.container("c1"));
    pod(&node, "ADD", &c0).call().ok();
    pod(&node, "DEL", &c0).call().silent();
    daemon.heard();
    let before = look(&node);

    let result = pod(&node, "ADD", &c1).call().ok();
    assert_eq!(links(&c1), ["eth0", "data0", "net2", "net3"]);
    // The runtime's result has only the default network.
    let inside = result["interfaces"].as_array().unwrap();
    let inside: Vec<_> = inside.iter().filter(|link| link["sandbox"].is_string()).collect();
    assert_eq!((inside.len(), &inside[0]["name"]), (1, &json!("eth0")), "{result}");
    assert_eq!(result["ips"][0]["address"].as_str().unwrap().split('.').nth(1), Some("1"));
    // The second network has the default route for IPv4, and the first keeps its own for IPv6.
    assert_eq!(c1.sh("ip route show default").trim(), "default via 10.2.0.1 dev data0");
    let v6 = c1.sh("ip -6 route show default");
    assert!(v6.contains("via fd00:1::1 dev eth0") && v6.lines().count() == 1, "{v6}");
    assert!(c1.sh("ip route show dev net2").contains("198.51.100.0/24 via 192.0.2.1"));
    assert!(c1.sh("ip route show dev net3").contains("203.0.113.0/24 via 10.4.0.1"));
    for address in ["10.1.0.1", "10.2.0.1", "10.4.0.1", "fd00:1::1", "fd00:2::1"] {
        assert_pings(&c1, address);
    }

    let heard = daemon.heard();
    assert_eq!(heard.len(), 2, "{heard:?}");
    let attached = attached(&heard);
    assert_eq!((attached.pod.uid.as_str(), attached.sandbox.ifname.as_str()), ("uid-1", "eth0"));
    let told: Value = serde_json::from_str(&annotation(&attached, Form::Library)).unwrap();
    let summary =
        |one: &Value| json!([one["name"], one["interface"], one["default"], one["gateway"]]);
    assert_eq!(
        told.as_array().unwrap().iter().map(summary).collect::<Value>(),
        json!([
            ["cluster", "eth0", true, ["fd00:1::1"]],
            ["ns/blue", "data0", null, ["10.2.0.1"]],
            ["ns/lan", "net2", null, null],
            ["other/far", "net3", null, null],
        ])
    );
    for one in told.as_array().unwrap() {
        let shown = c1.sh(&format!("ip addr show {}", one["interface"].as_str().unwrap()));
        assert!(shown.contains(one["mac"].as_str().unwrap()), "{one} {shown}");
        for ip in one["ips"].as_array().unwrap() {
            assert!(shown.contains(&format!("{}/", ip.as_str().unwrap())), "{one} {shown}");
        }
    }

    pod(&node, "CHECK", &c1).prev(&result).call().silent();
    c1.sh("ip route add default via 10.1.0.1 dev eth0 metric 7");
    let other = "the default route is not that of interface data0";
    pod(&node, "CHECK", &c1).prev(&result).call().fails(104, other);
    pod(&node, "DEL", &c1).prev(&result).call().silent();
    assert_eq!(links(&c1), [""; 0]);
    assert_eq!(daemon.words(), ["detached"]);
    assert_settles(&before, &node);
    assert_eq!(addresses(&node), "");
}

#[test]
fn the_status_of_the_standards_example() {
    testkit::require!("root");
    let node = node("pod-example");
    let gives = |plugin: &str, result: Value| {
        stub(&node, plugin, &result);
        list(plugin, json!([{ "type": plugin }]))
    };
    let link = |name: &str, mac: &str| json!([{ "name": name, "mac": mac, "sandbox": "/n" }]);
    let ip = |address: &str| json!({ "address": address, "interface": 0 });
    let first = gives(
        "first",
        json!({ "interfaces": link("eth5", "02:11:22:33:44:54"), "ips": [ip("1.2.3.1/24"), ip("2001:abba::2230/64")] }),
    );
    let second = gives(
        "second",
        json!({ "interfaces": link("eth1", "02:11:22:33:44:55"), "ips": [ip("1.2.3.4/24"), ip("2001:abba::2234/64")],
                "dns": { "nameservers": ["4.2.2.1", "2001:4860:4860::8888"], "search": ["eng.foobar.com", "foobar.com"] } }),
    );
    let third = gives(
        "third",
        json!({ "interfaces": link("ib0", "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22"),
                "ips": [ip("5.4.3.2/16")] }),
    );
    let mut networks = vec![
        planned("cluster-wide-default", &first),
        planned("some-network", &second),
        planned("other-ns/an-ip-over-infiniband-network", &third),
    ];
    networks[0].default = true;
    networks[1].ifname = Some("eth1".to_owned());
    networks[2].ifname = Some("ib0".to_owned());
    let daemon = Daemon::planning(&node, networks);
    let c1 = node.container("c1");
    pod(&node, "ADD", &c1).ifname("eth5").call().ok();
    let written = annotation(&attached(&daemon.heard()), Form::Text);
    let example = json!([
        { "name": "cluster-wide-default", "interface": "eth5", "ips": ["1.2.3.1/24", "2001:abba::2230/64"],
          "mac": "02:11:22:33:44:54", "default": true },
        { "name": "some-network", "interface": "eth1", "ips": ["1.2.3.4/24", "2001:abba::2234/64"],
          "mac": "02:11:22:33:44:55",
          "dns": { "nameservers": ["4.2.2.1", "2001:4860:4860::8888"], "search": ["eng.foobar.com", "foobar.com"] },
          "default": false },
        { "name": "other-ns/an-ip-over-infiniband-network", "interface": "ib0", "ips": ["5.4.3.2/16"],
          "mac": "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22", "default": false },
    ]);
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), example);
}

#[test]
fn the_default_network_comes_first_and_goes_last() {
    testkit::require!("root");
    let node = node("pod-order");
    for name in ["d", "a", "b"] {
        stub(&node, name, &json!({}));
    }
    let mut networks: Vec<_> =
        ["d", "a", "b"].map(|name| planned(name, &list(name, json!([{ "type": name }])))).into();
    networks[0].default = true;
    let _daemon = Daemon::planning(&node, networks);
    let c1 = node.container("c1");
    pod(&node, "ADD", &c1).call().ok();
    pod(&node, "DEL", &c1).call().silent();
    assert_eq!(
        calls(&node),
        ["d ADD eth0", "a ADD net1", "b ADD net2", "b DEL net2", "a DEL net1", "d DEL eth0"]
    );
}

#[test]
fn one_that_fails_undoes_those_before_it() {
    testkit::require!("root");
    let node = node("pod-undo");
    let broken = r#"cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; echo '{"cniVersion":"1.1.0","code":50,"msg":"not today"}'; exit 1"#;
    node.stub("broken", broken);
    let daemon = Daemon::planning(
        &node,
        vec![
            default(),
            planned("ns/blue", &list("blue", json!([bridge(&node, 2)]))),
            planned("ns/sick", &list("sick", json!([{ "type": "broken" }]))),
        ],
    );
    let c1 = node.container("c1");
    let words = r#"pod ns/web-0: network "ns/sick": plugin type="broken" failed (add): not today"#;
    pod(&node, "ADD", &c1).call().fails(50, words);
    assert_eq!(links(&c1), [""; 0]);
    assert_eq!(addresses(&node), "");
    let heard = daemon.heard();
    let [Request::Plan(_), Request::Failed(failed)] = heard.as_slice() else {
        panic!("{heard:?}");
    };
    assert_eq!((failed.network.as_str(), failed.code), ("ns/sick", 50));
    assert!(failed.msg.contains("not today"), "{failed:?}");
    // The failed ADD leaves nothing: it does not prevent another ADD.
    pod(&node, "ADD", &c1).call().fails(50, words);
}

#[test]
fn a_network_that_fails_to_go_keeps_none_of_the_others() {
    testkit::require!("root");
    let node = node("pod-del");
    let broken = r#"cat >/dev/null; [ $CNI_COMMAND = DEL ] || { echo '{"cniVersion":"1.1.0"}'; exit 0; }
        [ -e DIR/well ] && exit 0; echo '{"cniVersion":"1.1.0","code":50,"msg":"not today"}'; exit 1"#;
    node.stub("broken", &broken.replace("DIR", node.dir("log").to_str().unwrap()));
    let daemon = Daemon::planning(
        &node,
        vec![
            default(),
            planned("ns/sick", &list("sick", json!([{ "type": "broken" }]))),
            planned("ns/blue", &list("blue", json!([bridge(&node, 2)]))),
        ],
    );
    let c1 = node.container("c1");
    pod(&node, "ADD", &c1).call().ok();
    pod(&node, "DEL", &c1)
        .call()
        .fails(50, "network \"sick\": plugin type=\"broken\" failed (delete): not today");
    assert_eq!(links(&c1), [""; 0]);
    assert_eq!(daemon.words(), ["plan", "attached"], "not all is gone");
    std::fs::write(node.dir("log").join("well"), "").unwrap();
    pod(&node, "DEL", &c1).call().silent();
    assert_eq!(daemon.words(), ["detached"]);
}

#[test]
fn no_default_route_by_a_network_is_about_that_network_alone() {
    testkit::require!("root");
    let node = node("pod-no-default");
    let mut second = planned("ns/blue", &list("blue", json!([bridge(&node, 2)])));
    second.default_route = Some(Vec::new());
    let _daemon = Daemon::planning(&node, vec![default(), second]);
    let c1 = node.container("c1");
    let result = pod(&node, "ADD", &c1).call().ok();
    assert_eq!(c1.sh("ip route show default").trim(), "default via 10.1.0.1 dev eth0");
    assert!(c1.sh("ip -6 route show default").contains("via fd00:1::1 dev eth0"));
    pod(&node, "CHECK", &c1).prev(&result).call().silent();
    c1.sh("ip -6 route add default via fd00:2::1 dev net1 metric 2000");
    let words = "interface net1 has a default route";
    pod(&node, "CHECK", &c1).prev(&result).call().fails(104, words);
    pod(&node, "DEL", &c1).call().silent();
    // The same failure of the default network leaves the pod without one.
    let mut first = default();
    first.default_route = Some(Vec::new());
    let _daemon = Daemon::planning(&node, vec![first]);
    let result = pod(&node, "ADD", &c1).call().ok();
    assert_eq!(c1.sh("ip route show default; ip -6 route show default").trim(), "");
    assert_eq!(result["routes"], Value::Null, "{result}");
}

#[test]
fn the_same_network_twice_is_two_attachments() {
    testkit::require!("root");
    let node = node("pod-twice");
    let blue = planned("ns/blue", &list("blue", json!([bridge(&node, 2)])));
    let daemon = Daemon::planning(&node, vec![default(), blue.clone(), blue]);
    let c1 = node.container("c1");
    pod(&node, "ADD", &c1).call().ok();
    assert_eq!(links(&c1), ["eth0", "net1", "net2"]);
    assert_eq!(attached(&daemon.heard()).results.len(), 3);
    pod(&node, "DEL", &c1).call().silent();
    assert_eq!(links(&c1), [""; 0]);
    assert_eq!(left(&node), []);
}

#[test]
fn who_is_no_pod_has_the_default_network_chosen_by_name() {
    testkit::require!("root");
    let node = node("pod-none");
    let c1 = node.container("c1");
    // There is no daemon, and the first file belongs to another network.
    let result = bare(&node, "ADD", &c1).call().ok();
    assert_eq!(links(&c1), ["eth0"]);
    bare(&node, "CHECK", &c1).prev(&result).call().silent();
    bare(&node, "DEL", &c1).call().silent();
    assert_eq!((links(&c1), left(&node)), (vec![], vec![]));
}

/// Without a daemon too.
#[test]
fn labels_of_who_is_no_pod_reach_the_default_network() {
    testkit::require!("root");
    let node = node("pod-labels");
    stub(&node, "first", &json!({}));
    conf(&node, "50-cluster.conflist", &list("cluster", json!([{ "type": "first" }])));
    let c1 = node.container("c1");
    let args = json!({ "cni": { "labels": [{ "key": "app", "value": "web" }], "ips": ["x"] } });
    let call = |verb: &str| bare(&node, verb, &c1).config(json!({ "args": args }));
    call("ADD").args("IP=192.0.2.7").call().ok();
    assert_eq!(given(&node, "first.ADD.eth0")["args"], args);
    let said = std::fs::read_to_string(node.dir("log").join("first.args")).unwrap();
    assert_eq!(said.trim(), "IP=192.0.2.7");
    call("DEL").call().silent();
    assert_eq!(given(&node, "first.DEL.eth0")["args"], args);
}

#[test]
fn what_multus_calls_it() {
    for name in ["multus", "multus-shim"] {
        assert_eq!(plugins::find(name).unwrap().name(), "netwright-multi");
    }
}

#[test]
fn gc_detaches_pods_that_are_gone_from_every_network() {
    testkit::require!("root");
    let node = node("pod-gc");
    let blue = planned("ns/blue", &list("blue", json!([bridge(&node, 2)])));
    let daemon = Daemon::planning(&node, vec![default(), blue]);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    pod(&node, "ADD", &c1).call().ok();
    pod(&node, "ADD", &c2).call().ok();
    daemon.heard();
    pod(&node, "GC", &c1).valid(&[(c1.name(), "eth0")]).call().silent();
    assert_eq!((links(&c1).len(), links(&c2).len()), (2, 0));
    assert_eq!(daemon.words(), ["detached"]);
    pod(&node, "DEL", &c1).call().silent();
    assert_eq!(addresses(&node), "");
}
