//! The writes that the policies of `4-policy.yaml` allow the daemon. The test's API server
//! evaluates the policies.

use node_api::multinet::{Answer, Request};
use serde_json::{Value, json};
use testkit::real::manifests;
use testkit::wait_for;

use super::deploy::of_kind;
use super::rig::Cluster;
use super::{BRIDGE, attached};

/// The user of the daemon on node n1, as in its token.
fn user() -> Value {
    json!({
        "username": "system:serviceaccount:kube-system:netwright",
        "extra": {"authentication.kubernetes.io/node-name": ["n1"]},
    })
}

fn admit(cluster: &Cluster, user: &Value) {
    let all = manifests();
    let policies: Vec<Value> =
        of_kind(&all, "ValidatingAdmissionPolicy").into_iter().cloned().collect();
    assert_eq!(policies.len(), 3);
    cluster.api.admit(&policies, user);
}

/// Sends a request with the daemon's token; returns the code and the body of the answer.
fn send(cluster: &Cluster, method: &str, path: &str, body: &Value) -> (u16, String) {
    testkit::Place::enter(&cluster.lab, || cluster.api.send(method, path, body))
}

const POD: &str = "/api/v1/namespaces/ns/pods/p/status";
const NODE: &str = "/api/v1/nodes/n1";
const DEFINITIONS: &str = "/apis/k8s.cni.cncf.io/v1/namespaces/ns/network-attachment-definitions";

fn metadata(change: &Value) -> Value {
    json!({"metadata": change})
}

#[test]
fn a_daemon_writes_what_its_policies_allow_and_nothing_else() {
    let cluster = Cluster::new("mn-admission");
    cluster.define("ns", "a", BRIDGE);
    cluster.define("ns", "cluster", "");
    let uid = cluster.pod("p", Some("a"));
    cluster.api.create(
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}, "spec": {}}),
    );
    for (name, node) in [("far", json!("n2")), ("nowhere", Value::Null)] {
        let spec = if node.is_null() { json!({}) } else { json!({"nodeName": node}) };
        cluster.api.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": name}, "spec": spec,
        }));
    }
    let own = json!({"spec": {"podCIDR": "192.0.2.0/24"}, "metadata": {"labels": {"theirs": "1", "networks.netwright/ns.old": "true"}}});
    cluster.api.change("nodes", "", "n1", &own);
    cluster.api.change("pods", "ns", "p", &json!({"metadata": {"finalizers": ["they/hold"]}}));
    admit(&cluster, &user());

    // Everything that the daemon does is allowed.
    let daemon = cluster.daemon_with(&["--cluster-network", "cluster", "--label-node"]);
    cluster.planned("p", &uid);
    assert_eq!(cluster.ask(&Request::Attached(attached("p", &uid))).unwrap(), Answer::Ok);
    wait_for("the status", || cluster.status("p"));
    cluster.api.wait_until("the labels", |api| {
        let labels = &api.object("nodes", "", "n1").unwrap()["metadata"]["labels"];
        labels["networks.netwright/ns.cluster"] == "true"
            && labels["networks.netwright/ns.old"].is_null()
            && labels["theirs"] == "1"
    });
    drop(daemon);
    let refused = cluster.api.asked().into_iter().find(|asked| asked.code == 422);
    assert_eq!(refused, None);

    // Everything else that a thief of its token could try is refused.
    let status = metadata(&json!({"annotations": {"k8s.v1.cni.cncf.io/network-status": "[]"}}));
    let owner =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "8", "controller": true}]);
    let calls = |kind: &str| {
        let config = json!({"type": kind}).to_string();
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": format!("of-{kind}")}, "spec": {"config": config},
        })
    };
    for (method, path, body, words) in [
        ("PATCH", POD, status.clone(), ""),
        ("PATCH", "/api/v1/namespaces/ns/pods/far/status", status.clone(), "its own node"),
        ("PATCH", "/api/v1/namespaces/ns/pods/nowhere/status", status.clone(), "its own node"),
        ("PATCH", POD, metadata(&json!({"annotations": {"other": "1"}})), "status annotations"),
        (
            "PATCH",
            POD,
            metadata(&json!({"annotations": {"k8s.v1.cni.cncf.io/networks": null}})),
            "removes no annotation",
        ),
        ("PATCH", POD, metadata(&json!({"labels": {"app": "x"}})), "writes annotations only"),
        ("PATCH", POD, metadata(&json!({"finalizers": ["we/hold"]})), "writes annotations only"),
        ("PATCH", POD, metadata(&json!({"finalizers": null})), "writes annotations only"),
        ("PATCH", POD, metadata(&json!({"ownerReferences": owner})), "writes annotations only"),
        ("PATCH", POD, metadata(&json!({"generateName": "x-"})), "writes annotations only"),
        ("PATCH", POD, json!({"status": {"phase": "Failed"}}), "writes annotations only"),
        ("PATCH", NODE, metadata(&json!({"labels": {"networks.netwright/x": "true"}})), ""),
        ("PATCH", NODE, metadata(&json!({"labels": {"networks.netwright/x": null}})), ""),
        (
            "PATCH",
            "/api/v1/nodes/n2",
            metadata(&json!({"labels": {"networks.netwright/x": "true"}})),
            "its own node",
        ),
        ("PATCH", NODE, metadata(&json!({"labels": {"role": "x"}})), "networks.netwright only"),
        ("PATCH", NODE, metadata(&json!({"labels": {"theirs": null}})), "networks.netwright only"),
        ("PATCH", NODE, metadata(&json!({"annotations": {"a": "b"}})), "writes labels only"),
        ("PATCH", NODE, metadata(&json!({"finalizers": ["we/hold"]})), "writes labels only"),
        ("PATCH", NODE, metadata(&json!({"ownerReferences": owner})), "writes labels only"),
        ("PATCH", NODE, json!({"spec": {"unschedulable": true}}), "writes labels only"),
        ("POST", DEFINITIONS, calls("macvlan"), ""),
        ("POST", DEFINITIONS, calls("netwright-multi"), "cannot call netwright-multi"),
        ("POST", DEFINITIONS, calls("MULTUS"), "cannot call netwright-multi"),
    ] {
        let (code, said) = send(&cluster, method, path, &body);
        let expected = if words.is_empty() { 200..=201 } else { 422..=422 };
        assert!(expected.contains(&code) && said.contains(words), "{method} {path} {body}: {said}");
    }

    // A token that names no node is refused; the policy does not apply to another user.
    admit(&cluster, &json!({"username": user()["username"]}));
    for pod in ["p", "nowhere"] {
        let path = format!("/api/v1/namespaces/ns/pods/{pod}/status");
        let (code, said) = send(&cluster, "PATCH", &path, &status);
        assert!(code == 422 && said.contains("its own node"), "{said}");
    }
    admit(&cluster, &json!({"username": "system:node:n1"}));
    let (code, said) = send(&cluster, "PATCH", POD, &metadata(&json!({"labels": {"app": "x"}})));
    assert_eq!(code, 200, "{said}");
}
