//! Objects for tests, in few words.

use std::net::IpAddr;

use netwright_policy::object::{Namespace, Node, Pod};
use netwright_policy::policy::Policy;
use netwright_policy::{Change, Protocol, Traffic, World, cluster_policy, network_policy, verdict};
use serde_json::{Value, json};

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn tcp(port: u16) -> Traffic {
    Traffic::to(Protocol::Tcp, port)
}

pub(crate) fn udp(port: u16) -> Traffic {
    Traffic::to(Protocol::Udp, port)
}

pub(crate) fn namespace(name: &str, labels: Value) -> Namespace {
    Namespace::read(&json!({"metadata": {"name": name, "labels": labels}})).unwrap()
}

pub(crate) fn node(name: &str, labels: Value, addresses: &[&str]) -> Node {
    let addresses: Vec<Value> =
        addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
    Node::read(&json!({
        "metadata": {"name": name, "labels": labels},
        "status": {"addresses": addresses},
    }))
    .unwrap()
}

/// A pod by `NAMESPACE/NAME`; its UID is that too.
pub(crate) fn pod(full_name: &str, node: &str, labels: Value, addresses: &[&str]) -> Pod {
    let (namespace, name) = full_name.split_once('/').unwrap();
    let addresses: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
    Pod::read(&json!({
        "metadata": {"namespace": namespace, "name": name, "uid": full_name, "labels": labels},
        "spec": {"nodeName": node, "containers": [{"ports": [
            {"name": "http", "containerPort": 80},
            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            {"containerPort": 9},
        ]}]},
        "status": {"phase": "Running", "podIPs": addresses},
    }))
    .unwrap()
}

/// A NetworkPolicy by `NAMESPACE/NAME`, which must be valid.
pub(crate) fn network(full_name: &str, spec: Value) -> Policy {
    let policy = network_policy::read(&network_object(full_name, spec)).unwrap();
    assert_eq!(policy.faults, [], "{full_name}");
    policy
}

pub(crate) fn network_object(full_name: &str, spec: Value) -> Value {
    let (namespace, name) = full_name.split_once('/').unwrap();
    json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec})
}

/// A ClusterNetworkPolicy, which must be valid.
pub(crate) fn cluster(name: &str, spec: Value) -> Policy {
    let policy = cluster_policy::read(&json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    assert_eq!(policy.faults, [], "{name}");
    policy
}

/// Two nodes and three namespaces with two pods each, of both families:
/// `shop/web`, `shop/db`, `other/web`, `other/db`, `kube-system/dns` and `kube-system/proxy`, which
/// is in the host's network.
pub(crate) fn cluster_of_two() -> Vec<Change> {
    let named = |name: &str| json!({"app": name});
    let mut proxy = pod("kube-system/proxy", "one", named("proxy"), &["192.0.2.1"]);
    proxy.host_network = true;
    vec![
        node("one", json!({"zone": "a"}), &["192.0.2.1", "2001:db8::1"]).into(),
        node("two", json!({"zone": "b"}), &["192.0.2.2", "2001:db8::2"]).into(),
        namespace("shop", json!({"team": "red"})).into(),
        namespace("other", json!({"team": "blue"})).into(),
        namespace("kube-system", json!({})).into(),
        pod("shop/web", "one", named("web"), &["10.244.1.1", "fd00:244:1::1"]).into(),
        pod("shop/db", "two", named("db"), &["10.244.2.1", "fd00:244:2::1"]).into(),
        pod("other/web", "one", named("web"), &["10.244.1.2", "fd00:244:1::2"]).into(),
        pod("other/db", "two", named("db"), &["10.244.2.2", "fd00:244:2::2"]).into(),
        pod("kube-system/dns", "two", named("dns"), &["10.244.2.3", "fd00:244:2::3"]).into(),
        proxy.into(),
    ]
}

/// The cluster of two, with policies.
pub(crate) fn world_with(policies: impl IntoIterator<Item = Policy>) -> World {
    let policies = policies.into_iter().map(Change::from);
    World::of(None, cluster_of_two().into_iter().chain(policies))
}

/// The IPv4 address of a pod of the cluster of two, or of `node one`, `outside`, or what is given.
pub(crate) fn at(name: &str) -> IpAddr {
    ip(match name {
        "shop/web" => "10.244.1.1",
        "shop/db" => "10.244.2.1",
        "other/web" => "10.244.1.2",
        "other/db" => "10.244.2.2",
        "kube-system/dns" => "10.244.2.3",
        "node one" => "192.0.2.1",
        "node two" => "192.0.2.2",
        "outside" => "198.51.100.1",
        address => address,
    })
}

/// Whether the evaluator allows a connection between two of [`at`]'s.
pub(crate) fn allowed(world: &World, source: &str, destination: &str, traffic: Traffic) -> bool {
    verdict(world, at(source), at(destination), traffic).allowed()
}
