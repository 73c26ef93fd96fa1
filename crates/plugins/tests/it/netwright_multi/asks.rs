//! How a pod's requests reach plugins.

use std::fs;

use node_api::multinet::{Device, Request};
use serde_json::{Value, json};

use super::{bare, calls, conf, default, given, list, node, object, planned, pod, stub};
use crate::support::Node;
use crate::support::matrix::addresses;
use crate::support::multinet::Daemon;

const CAPABLE: &str = r#"{"ips": true, "mac": true, "portMappings": true, "bandwidth": true, "infinibandGUID": true, "deviceID": true, "CNIDeviceInfoFile": true}"#;

/// A node whose default network and network `x` are plugins that record their input.
fn noting(name: &str) -> (Node, Value) {
    let node = node(name);
    stub(&node, "first", &json!({}));
    stub(&node, "noter", &json!({}));
    let capable: Value = serde_json::from_str(CAPABLE).unwrap();
    conf(
        &node,
        "50-cluster.conflist",
        &list("cluster", json!([{ "type": "first", "capabilities": capable }])),
    );
    let plugin = json!({ "type": "noter", "capabilities": capable, "args": { "cni": { "vrf": "blue", "mtu": 1 } } });
    (node, list("x", json!([plugin])))
}

#[test]
fn every_field_reaches_its_network_and_no_other() {
    testkit::require!("root");
    let (node, x) = noting("pod-fields");
    let asked = json!({
        "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }],
        "bandwidth": { "ingressRate": 2048 }, "infinibandGUID": "c2:11:22:33:44:55:66:77",
    });
    let mut network = planned("ns/x", &x);
    network.runtime_config = Some(object(&asked));
    network.cni_args = Some(object(&json!({ "vrf": "red", "n": 1 })));
    network.args.insert("IP".to_owned(), "192.0.2.7".to_owned());
    let daemon = Daemon::planning(&node, vec![default(), network]);
    let c1 = node.container("c1");
    let kubelets =
        json!({ "portMappings": [{ "hostPort": 1, "containerPort": 1 }], "ipRanges": [] });
    let of_runtime = json!({ "labels": [{ "key": "app" }], "n": 2, "mac": "x" });
    let keys = json!({ "runtimeConfig": kubelets, "args": { "cni": of_runtime } });
    pod(&node, "ADD", &c1).config(keys).call().ok();

    let second = given(&node, "noter.ADD.net1");
    assert_eq!(second["runtimeConfig"], asked);
    assert_eq!(
        second["args"]["cni"],
        json!({ "vrf": "red", "mtu": 1, "n": 1, "labels": [{ "key": "app" }] })
    );
    let args = fs::read_to_string(node.dir("log").join("noter.args")).unwrap();
    assert!(args.contains("K8S_POD_NAME=web-0") && args.trim().ends_with("IP=192.0.2.7"), "{args}");
    // The runtime's request goes to the default network.
    let first = given(&node, "first.ADD.eth0");
    assert_eq!(first["runtimeConfig"], json!({ "portMappings": kubelets["portMappings"] }));
    assert_eq!(first["args"]["cni"], of_runtime);

    let heard = daemon.heard();
    let Request::Plan(request) = &heard[0] else { panic!("{heard:?}") };
    let pod_of = request.pod.as_ref().unwrap();
    assert_eq!(
        (pod_of.namespace.as_str(), pod_of.name.as_str(), pod_of.uid.as_str()),
        ("ns", "web-0", "uid-1")
    );
    assert_eq!(request.settings.cluster_network.as_deref(), Some("cluster"));
    assert_eq!(request.runtime_config, Some(object(&kubelets)));
    let Request::Attached(attached) = &heard[1] else { panic!("{heard:?}") };
    assert_eq!(attached.settings, request.settings);
    // DEL gets the same.
    pod(&node, "DEL", &c1).call().silent();
    assert_eq!(given(&node, "noter.DEL.net1")["runtimeConfig"], asked);
}

#[test]
fn settings_are_the_daemons_to_follow() {
    testkit::require!("root");
    let (node, x) = noting("pod-settings");
    let mut network = planned("kube-system/x", &x);
    network.default = true;
    let daemon = Daemon::planning(&node, vec![network]);
    let c1 = node.container("c1");
    let keys = json!({
        "clusterNetwork": "x", "defaultNetworks": ["y"], "systemNamespaces": ["sys"], "multusNamespace": "mns",
        "namespaceIsolation": true, "globalNamespaces": "a, b",
    });
    // For a container that is not a pod, the plugin asks the daemon too, if the node has no such
    // network.
    bare(&node, "ADD", &c1).config(keys).call().ok();
    assert_eq!(calls(&node), ["noter ADD eth0"]);
    let heard = daemon.heard();
    let [Request::Plan(request)] = heard.as_slice() else { panic!("{heard:?}") };
    assert_eq!(request.pod, None);
    assert_eq!(
        serde_json::to_value(&request.settings).unwrap(),
        json!({
            "clusterNetwork": "x", "defaultNetworks": ["y"], "systemNamespaces": ["sys"],
            "multusNamespace": "mns", "namespaceIsolation": true, "globalNamespaces": ["a", "b"],
        })
    );
}

#[test]
fn a_device_is_told_and_its_file_handed_over() {
    testkit::require!("root");
    let (node, x) = noting("pod-device");
    let info =
        json!({ "type": "pci", "version": "1.1.0", "pci": { "pci-address": "0000:03:02.1" } });
    let folder = node.dir("devinfo");
    fs::create_dir(folder.join("dp")).unwrap();
    let left = folder.join("dp/vendor.example-nic-0000:03:02.1-device.json");
    fs::write(left, info.to_string()).unwrap();
    let mut network = planned("ns/x", &x);
    network.device =
        Some(Device { id: "0000:03:02.1".to_owned(), resource: "vendor.example/nic".to_owned() });
    let daemon = Daemon::planning(&node, vec![default(), network]);
    let c1 = node.container("c1");
    pod(&node, "ADD", &c1).call().ok();
    let file = folder.join("cni/x-c1_net1");
    let second = given(&node, "noter.ADD.net1");
    assert_eq!(
        (&second["deviceID"], &second["pciBusID"]),
        (&json!("0000:03:02.1"), &json!("0000:03:02.1"))
    );
    assert_eq!(
        second["runtimeConfig"],
        json!({ "deviceID": "0000:03:02.1", "CNIDeviceInfoFile": file })
    );
    assert!(file.exists());
    let heard = daemon.heard();
    let Request::Attached(attached) = &heard[1] else { panic!("{heard:?}") };
    assert_eq!(attached.results[1].device_info, Some(object(&info)));
    assert_eq!(attached.results[0].device_info, None);
    pod(&node, "DEL", &c1).call().silent();
    assert!(!file.exists());
}

/// The annotation named the device and a rule permitted it: it is not a device of the definition.
#[test]
fn a_device_that_was_not_allocated_reaches_a_plugin_by_its_capability_alone() {
    testkit::require!("root");
    let (node, x) = noting("pod-named-device");
    let mut network = planned("ns/x", &x);
    network.device = Some(Device { id: "0000:03:02.1".to_owned(), resource: String::new() });
    let c1 = node.container("c1");
    let daemon = Daemon::planning(&node, vec![default(), network.clone()]);
    pod(&node, "ADD", &c1).call().ok();
    let given = given(&node, "noter.ADD.net1");
    assert_eq!(given["runtimeConfig"]["deviceID"], "0000:03:02.1");
    assert_eq!((&given["deviceID"], &given["pciBusID"]), (&Value::Null, &Value::Null));
    pod(&node, "DEL", &c1).call().silent();
    drop(daemon);

    network.list = Some(object(&list("x", json!([{ "type": "noter" }]))));
    let _daemon = Daemon::planning(&node, vec![default(), network]);
    pod(&node, "ADD", &c1).call().fails(7, r#"cannot serve "deviceID""#);
}

#[test]
fn what_a_network_cannot_serve_is_refused_before_anything_is_made() {
    testkit::require!("root");
    let node = node("pod-unserved");
    stub(&node, "plain", &json!({}));
    let mut network = planned("ns/plain", &list("plain", json!([{ "type": "plain" }])));
    network.runtime_config = Some(object(&json!({ "bandwidth": {} })));
    let daemon = Daemon::planning(&node, vec![default(), network]);
    let c1 = node.container("c1");
    let words = r#"pod ns/web-0: network "ns/plain": network "plain" cannot serve "bandwidth""#;
    pod(&node, "ADD", &c1).call().fails(7, words);
    assert_eq!((calls(&node), addresses(&node).as_str()), (vec![], ""));
    assert_eq!(daemon.words(), ["plan", "failed"]);
    pod(&node, "ADD", &c1).config(json!({ "passOverUnserved": true })).call().ok();
}

#[test]
fn a_plugin_that_passes_over_what_was_asked_for_is_found_out() {
    testkit::require!("root");
    let node = node("pod-deaf");
    let capable = json!({ "ips": true, "mac": true });
    let link = json!([{ "name": "net1", "mac": "02:00:00:00:00:02", "sandbox": "/n" }]);
    stub(
        &node,
        "deaf",
        &json!({ "interfaces": link, "ips": [{ "address": "192.0.2.9/24", "interface": 0 }] }),
    );
    let deaf = list("deaf", json!([{ "type": "deaf", "capabilities": capable }]));
    let c1 = node.container("c1");
    for (asked, words) in [
        (json!({ "ips": ["192.0.2.5"] }), "did not give the address 192.0.2.5"),
        (json!({ "mac": "02:00:00:00:00:01" }), "gave the hardware address 02:00:00:00:00:02"),
    ] {
        let mut network = planned("ns/deaf", &deaf);
        network.runtime_config = Some(object(&asked));
        let _daemon = Daemon::planning(&node, vec![default(), network]);
        pod(&node, "ADD", &c1).call().fails(7, words);
        assert_eq!(addresses(&node), "");
    }
}
