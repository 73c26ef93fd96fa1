//! The writes that the chart's role and admission policies allow the service. The test's API server
//! evaluates them.

use serde_json::{Value, json};
use testkit::chart::{objects, render};
use testkit::{Place as _, wait_until};

use super::status::condition;
use super::{Cluster, allow};

#[test]
fn the_service_writes_what_its_role_and_policies_allow_and_nothing_else() {
    testkit::require!("root", "helm");
    let mut cluster = Cluster::new("policy-admission");
    let all = objects(&render(&["config.policy.enable=true"]).unwrap());
    let named = |kind: &'static str| {
        let ours = |one: &&Value| {
            let name = one["metadata"]["name"].as_str().unwrap_or_default();
            one["kind"] == kind && name.starts_with("netwright-policy")
        };
        all.iter().filter(ours).cloned().collect::<Vec<_>>()
    };
    let rules = named("ClusterRole")[0]["rules"].clone();
    let policies = named("ValidatingAdmissionPolicy");
    assert_eq!(policies.len(), 2);
    cluster.api.allow_only(&[(rules, None)]);
    let user = json!({"username": "system:serviceaccount:kube-system:netwright-policy"});
    cluster.api.admit(&policies, &user);

    // Everything that the service does is allowed.
    let wrong = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "wrong"},
        "spec": {"ingress": [{"ports": [{"port": 0}]}]},
    });
    let theirs = json!({
        "type": "Theirs", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    cluster.api.create(&wrong);
    cluster.api.create(&json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "c"},
        "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}},
        "status": {"conditions": [theirs]},
    }));
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.start();
    let [db, web] = ["db", "web"].map(|name| cluster.pod(name));
    web.assert_reaches(&db, true);
    wait_until("the condition", || condition(&cluster, "c").is_some());
    wait_until("the Event", || cluster.api.objects("events").len() == 1);
    // The service lists the kind again.
    cluster.api.compact();
    cluster.api.cut();
    let refused = cluster.api.asked().into_iter().find(|asked| [403, 422].contains(&asked.code));
    assert_eq!(refused, None);

    // Everything else that a thief of its token could try is refused.
    let send = |method: &str, path: &str, body: &Value| {
        cluster.node.lab.enter(|| cluster.api.send(method, path, body))
    };
    let conditions = |all: &[&Value]| json!({"status": {"conditions": all}});
    let mut own = theirs.clone();
    own["type"] = json!("policy.netwright.io/Accepted");
    let mut other = theirs.clone();
    other["status"] = json!("False");
    let event = |change: &dyn Fn(&mut Value)| {
        let mut event = json!({
            "metadata": {"name": "e"}, "reason": "NotAsWritten", "type": "Warning",
            "reportingComponent": "netwrightd-policy",
            "involvedObject": {"kind": "NetworkPolicy", "name": "wrong", "namespace": "shop"},
        });
        change(&mut event);
        event
    };
    let of_pod = |name: &str, reason: &str| {
        event(&|event| {
            event["metadata"]["name"] = json!(name);
            event["reason"] = json!(reason);
            event["involvedObject"]["kind"] = json!("Pod");
        })
    };
    let events = "/api/v1/namespaces/shop/events";
    // The kind may be served in either version alone.
    for version in ["v1beta1", "v1alpha2"] {
        cluster.api.serve("clusternetworkpolicies", &[version]);
        let whole = format!("/apis/policy.networking.k8s.io/{version}/clusternetworkpolicies/c");
        let status = format!("{whole}/status");
        for (path, body, code) in [
            (&status, conditions(&[&theirs, &own]), 200),
            (&status, conditions(&[&other, &own]), 422),
            (&status, conditions(&[&own]), 422),
            (&whole, json!({"spec": {"priority": 2}}), 403),
        ] {
            let (found, said) = send("PATCH", path, &body);
            assert_eq!(found, code, "{path} {body}: {said}");
        }
    }
    for (method, path, body, code) in [
        ("POST", events, event(&|_| {}), 201),
        ("POST", events, event(&|event| event["reason"] = json!("Killing")), 422),
        ("POST", events, event(&|event| event["involvedObject"]["kind"] = json!("Pod")), 422),
        ("POST", events, event(&|event| event["reason"] = json!("PolicyCanBeUndone")), 422),
        ("POST", events, event(&|event| event["reason"] = json!("ClosedByPolicies")), 422),
        ("POST", events, of_pod("f", "PolicyCanBeUndone"), 201),
        ("POST", events, of_pod("g", "ClosedByPolicies"), 201),
        ("POST", events, event(&|event| event["reason"] = json!("PoliciesUnknown")), 422),
        ("POST", events, of_pod("h", "PoliciesUnknown"), 201),
        ("PATCH", "/api/v1/namespaces/shop/pods/db", json!({"metadata": {"labels": {}}}), 403),
        ("DELETE", "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/db", json!({}), 403),
        ("GET", "/api/v1/namespaces/shop/configmaps", Value::Null, 403),
    ] {
        let (found, said) = send(method, path, &body);
        assert_eq!(found, code, "{method} {path} {body}: {said}");
    }
}
