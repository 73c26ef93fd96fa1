//! What a tenant can get by writing annotations.

use serde_json::{Value, json};
use testkit::wait_for;

use super::BRIDGE;
use super::rig::{Cluster, Daemon};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const DEFAULT: &str = "v1.multus-cni.io/default-network";

fn pod(cluster: &Cluster, name: &str, key: &str, annotation: &Value, spec: Value) -> String {
    let annotation = match annotation {
        Value::String(text) => text.clone(),
        list => list.to_string(),
    };
    let mut spec = spec;
    spec["nodeName"] = json!("n1");
    let made = cluster.api.create(&json!({
        "apiVersion": "v1", "kind": "Pod", "spec": spec,
        "metadata": {"namespace": "ns", "name": name, "annotations": {key: annotation}},
    }));
    made["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn with_policy<'c>(cluster: &'c Cluster, policy: &Value) -> Daemon<'c> {
    let path = cluster.dir.join("multinet.json");
    let file = json!({"clusterNetwork": "cluster", "policy": policy});
    std::fs::write(&path, file.to_string()).unwrap();
    cluster.daemon_with(&["--config", path.to_str().unwrap()])
}

#[test]
fn rules_hold_for_every_selection() {
    let cluster = Cluster::new("mn-tenant");
    cluster.define("ns", "a", BRIDGE);
    cluster.define("kube-system", "other", BRIDGE);
    let _daemon = with_policy(
        &cluster,
        &json!({"rules": [
            {"namespaces": ["ns"], "networks": ["ns/a"], "addresses": ["192.0.2.0/24"], "cniArgs": ["vrf"]},
            {"namespaces": ["ns"], "networks": ["kube-system/other"], "defaultNetwork": true},
        ]}),
    );
    let foreign = "203.0.113.7";
    for (name, key, asked, words) in [
        ("ips", NETWORKS, json!([{"name": "a", "ips": [foreign]}]), foreign),
        ("arg", NETWORKS, json!([{"name": "a", "cni-args": {"ips": [foreign]}}]), foreign),
        (
            "mac",
            NETWORKS,
            json!([{"name": "a", "cni-args": {"mac": "02:00:00:00:00:01"}}]),
            "02:00:00:00:00:01",
        ),
        ("sysctl", NETWORKS, json!([{"name": "a", "cni-args": {"sysctl": {}}}]), "sysctl"),
        (
            "port",
            NETWORKS,
            json!([{"name": "a", "portMappings": [{"hostPort": 22, "containerPort": 22}]}]),
            "host port 22",
        ),
        ("old", "networks", json!([{"name": "a", "ips": [foreign]}]), foreign),
        ("default", DEFAULT, json!([{"name": "other", "cni-args": {"ips": [foreign]}}]), foreign),
        ("own", DEFAULT, json!("ns/a"), "a default network of their own"),
        (
            "claim",
            DEFAULT,
            json!([{"name": "other", "ipam-claim-reference": "c"}]),
            "not supported",
        ),
    ] {
        let uid = pod(&cluster, name, key, &asked, json!({}));
        let refusal = cluster.plan(name, &uid).unwrap_err();
        assert!(refusal.msg.contains(words) && !refusal.retry, "{name}: {refusal:?}");
        assert!(!refusal.msg.contains("pod ns/"), "the plugin says that: {refusal:?}");
        let event = wait_for("an event", || cluster.events(name).pop());
        assert_eq!((event.0.as_str(), event.1), ("NetworkRefused", refusal.msg));
    }
    let granted = json!([{"name": "a", "ips": ["192.0.2.7/24"], "cni-args": {"vrf": "x", "ips": ["192.0.2.8"]}}]);
    let uid = pod(&cluster, "granted", NETWORKS, &granted, json!({}));
    assert_eq!(cluster.planned("granted", &uid).networks[1].name, "ns/a");
    let uid = pod(&cluster, "chosen", DEFAULT, &json!("other"), json!({}));
    assert_eq!(cluster.planned("chosen", &uid).networks[0].name, "kube-system/other");
}

/// Writes the kubelet's checkpoint: container and devices of `v/nic`, for one pod.
fn allocate(cluster: &Cluster, uid: &str, devices: &[(&str, &[&str])]) {
    let entry = |(container, ids): &(&str, &[&str])| json!({"PodUID": uid, "ContainerName": container, "ResourceName": "v/nic", "DeviceIDs": {"-1": ids}});
    let entries: Vec<Value> = devices.iter().map(entry).collect();
    let checkpoint = json!({"Data": {"PodDeviceEntries": entries}, "Checksum": 1});
    std::fs::write(cluster.dir.join("checkpoint"), checkpoint.to_string()).unwrap();
}

/// Makes two networks whose devices the kubelet allocates, and one whose definition has none.
fn networks_with_devices(cluster: &Cluster) {
    for name in ["sriov", "more", "plain"] {
        let annotations = match name {
            "plain" => json!({}),
            _ => json!({"k8s.v1.cni.cncf.io/resourceName": "v/nic"}),
        };
        let config = r#"{"cniVersion":"1.0.0","plugins":[{"type":"host-device","capabilities":{"deviceID":true}}]}"#;
        cluster.api.create(&json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"namespace": "ns", "name": name, "annotations": annotations},
            "spec": {"config": config},
        }));
    }
}

/// The devices of a pod's networks, without the default one's.
fn devices(cluster: &Cluster, name: &str, uid: &str) -> Vec<(String, String)> {
    let networks = cluster.planned(name, uid).networks;
    let device = |network: &node_api::multinet::PlannedNetwork| {
        let device = network.device.clone().unwrap_or_default();
        (device.id, device.resource)
    };
    networks[1..].iter().map(device).collect()
}

#[test]
fn a_device_is_one_that_the_pod_was_allocated_or_a_rule_grants() {
    let cluster = Cluster::new("mn-device");
    networks_with_devices(&cluster);
    let uplink = "0000:03:00.0";
    let hostile = [
        ("one", json!([{"name": "sriov", "deviceID": uplink}])),
        ("two", json!([{"name": "plain", "deviceID": uplink}])),
        ("three", json!([{"name": "sriov", "deviceID": "a"}, {"name": "more", "deviceID": "a"}])),
    ];
    let daemon = cluster.daemon();
    for (name, asked) in &hostile {
        let uid = pod(&cluster, name, NETWORKS, asked, json!({}));
        allocate(&cluster, &uid, &[("c", &["a", "b"])]);
        let refusal = cluster.plan(name, &uid).unwrap_err();
        assert!(refusal.msg.contains("which the kubelet has not given it"), "{refusal:?}");
        assert!(!refusal.retry, "{refusal:?}");
    }
    // Each network gets a device of its own.
    let asked = json!([{"name": "sriov"}, {"name": "more", "deviceID": "a"}]);
    let uid = pod(&cluster, "own", NETWORKS, &asked, json!({}));
    allocate(&cluster, &uid, &[("c", &["a", "b"])]);
    let own = |id: &str| (id.to_owned(), "v/nic".to_owned());
    assert_eq!(devices(&cluster, "own", &uid), [own("b"), own("a")]);
    // The daemon cannot know which devices the pod has.
    std::fs::remove_file(cluster.dir.join("checkpoint")).unwrap();
    assert!(cluster.plan("own", &uid).unwrap_err().retry);
    daemon.kill();

    let rules =
        json!({"rules": [{"namespaces": ["ns"], "networks": ["ns/plain"], "devices": [uplink]}]});
    let _daemon = with_policy(&cluster, &rules);
    let uid = pod(&cluster, "granted", NETWORKS, &hostile[1].1, json!({}));
    assert_eq!(devices(&cluster, "granted", &uid), [(uplink.to_owned(), String::new())]);
    let uid = cluster.api.object("pods", "ns", "one").unwrap()["metadata"]["uid"].clone();
    allocate(&cluster, uid.as_str().unwrap(), &[("c", &["a", "b"])]);
    cluster.plan("one", uid.as_str().unwrap()).unwrap_err();
}

#[test]
fn devices_of_several_containers_are_in_the_order_of_the_containers() {
    let cluster = Cluster::new("mn-order");
    networks_with_devices(&cluster);
    let spec = json!({
        "containers": [{"name": "c1"}, {"name": "c2"}],
        "initContainers": [{"name": "c3"}, {"name": "c0", "restartPolicy": "Always"}],
    });
    let _daemon = cluster.daemon();
    let asked = json!("sriov,more,sriov,more");
    let uid = pod(&cluster, "p", NETWORKS, &asked, spec);
    allocate(
        &cluster,
        &uid,
        &[("c3", &["a", "d"]), ("c2", &["a"]), ("c1", &["b"]), ("c0", &["c"])],
    );
    let ids =
        || -> Vec<String> { devices(&cluster, "p", &uid).into_iter().map(|(id, _)| id).collect() };
    assert_eq!(ids(), ["c", "b", "a", "d"]);
    // By now the daemon watches all definitions, and has not only requested one.
    cluster.api.wait_until("the definitions to be watched", |api| {
        let watched = |verb: &str, resource: &str| {
            verb == "watch" && resource == "network-attachment-definitions"
        };
        api.asked().iter().any(|asked| watched(&asked.verb, &asked.resource))
    });
    // The daemon requests the order of a pod's containers only once.
    cluster.api.refuse();
    assert_eq!(ids(), ["c", "b", "a", "d"]);
    cluster.api.restore();

    let uid =
        pod(&cluster, "q", NETWORKS, &json!("sriov"), json!({"containers": [{"name": "c1"}]}));
    allocate(&cluster, &uid, &[("c1", &["b"]), ("c2", &["a"])]);
    wait_for("the pod to be known", || cluster.plan("q", &uid).ok());
}
