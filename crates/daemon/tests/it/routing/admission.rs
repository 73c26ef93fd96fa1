//! The writes that the chart's role and admission policy allow the service. The test's API server
//! evaluates them.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testkit::chart::{objects, render};
use testkit::{Place as _, wait_until};

use super::Fabric;
use super::cluster::{annotation, cluster, condition, is};

/// The user of the service on a node, as in its token.
fn user(node: &str) -> Value {
    json!({
        "username": "system:serviceaccount:kube-system:netwright-routing",
        "extra": {"authentication.kubernetes.io/node-name": [node]},
    })
}

/// The role's rules and the policy, for a configuration of `routing`.
fn rendered(more: &[&str]) -> (Value, Vec<Value>) {
    let values = ["config.routing.enable=true", "config.routing.cluster={10.244.0.0/16}"];
    let all = objects(&render(&[&values, more].concat()).unwrap());
    let find = |kind: &str| {
        let mut all = all.iter();
        all.find(|one| one["kind"] == kind && one["metadata"]["name"] == "netwright-routing")
            .unwrap()
            .clone()
    };
    (find("ClusterRole")["rules"].clone(), vec![find("ValidatingAdmissionPolicy")])
}

fn annotations(change: &Value) -> Value {
    json!({"metadata": {"annotations": change}})
}

#[test]
fn the_service_writes_what_its_role_and_policy_allow_and_nothing_else() {
    testkit::require!("root", "helm");
    let mut fabric = Fabric::new("routing-admission", &[2]);
    fabric.flags = vec!["--path".to_owned(), "direct".to_owned()];
    let api = cluster(&mut fabric);
    let own = json!({
        "metadata": {
            "annotations": {"theirs": "1", "flannel.alpha.coreos.com/public-ip-overwrite": "192.0.2.11"},
            "labels": {"theirs": "1"},
        },
        "status": {
            "capacity": {"cpu": "2"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    });
    api.change("nodes", "", "a", &own);
    let (rules, policies) = rendered(&[]);
    api.allow_only(&[(rules, None)]);
    api.admit(&policies, &user("a"));

    // Everything that the service does is allowed.
    fabric.start_on(0);
    wait_until("the annotation", || annotation(&api, "a") != Value::Null);
    // The other node publishes how it is reached; it is not under test.
    wait_until("the condition", || condition(&api, "a") == is("False", "RoutingIsUp"));
    fabric.uninstall(0);
    assert_eq!(annotation(&api, "a"), Value::Null);
    let refused = api.asked().into_iter().find(|asked| asked.code == 422 || asked.code == 403);
    assert_eq!(refused, None);

    // Everything else that a thief of its token could try is refused.
    let send = |path: &str, body: &Value| fabric.lab.enter(|| api.send("PATCH", path, body));
    let (node, status, other) = ("/api/v1/nodes/a", "/api/v1/nodes/a/status", "/api/v1/nodes/b");
    let ours = annotations(&json!({"routing.netwright.io/node": "{}"}));
    let conditions = |all: Value| json!({"status": {"conditions": all}});
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady"});
    let unavailable = json!({"type": "NetworkUnavailable", "status": "True", "reason": "x"});
    let not_ready = json!({"type": "Ready", "status": "False", "reason": "x"});
    for (path, body, words) in [
        (node, ours.clone(), ""),
        (node, annotations(&json!({"routing.netwright.io/node": null})), ""),
        (other, ours.clone(), "its own node"),
        ("/api/v1/nodes/b/status", conditions(json!([unavailable])), "its own node"),
        (node, annotations(&json!({"theirs": "2"})), "annotations of routing"),
        (node, annotations(&json!({"theirs": null})), "removes annotations of routing"),
        (
            node,
            annotations(&json!({"flannel.alpha.coreos.com/public-ip": "192.0.2.9"})),
            "annotations of routing",
        ),
        (node, json!({"metadata": {"labels": {"theirs": "2"}}}), "one condition"),
        (node, json!({"metadata": {"finalizers": ["we/hold"]}}), "one condition"),
        (node, json!({"spec": {"unschedulable": true}}), "one condition"),
        (status, conditions(json!([ready, unavailable])), ""),
        (status, conditions(json!([not_ready, unavailable])), "the condition NetworkUnavailable"),
        (status, conditions(json!([unavailable])), "removes no condition"),
        (status, json!({"status": {"capacity": {"cpu": "64"}}}), "the condition"),
        (
            status,
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.12"}]}}),
            "the condition",
        ),
    ] {
        let (code, said) = send(path, &body);
        let expected = if words.is_empty() { 200 } else { 422 };
        assert!(code == expected && said.contains(words), "{path} {body}: {code} {said}");
    }
    // In flannel's place the service may also write flannel's annotations, but not those that only
    // an administrator sets.
    let (_, policies) = rendered(&["config.routing.flannel=replace"]);
    api.admit(&policies, &user("a"));
    let flannels =
        |name: &str| annotations(&json!({format!("flannel.alpha.coreos.com/{name}"): "x"}));
    assert_eq!(send(node, &flannels("backend-data")).0, 200);
    let (code, said) = send(node, &flannels("public-ip-overwrite"));
    assert!(code == 422 && said.contains("annotations of routing"), "{said}");
    // The service may read flanneld's configuration, and no other ConfigMap.
    let mine = |namespace: &str, name: &str| {
        api.create(&json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": namespace, "name": name}, "data": {},
        }));
        format!("/api/v1/namespaces/{namespace}/configmaps/{name}")
    };
    let get = |path: &str| fabric.lab.enter(|| api.send("GET", path, &Value::Null)).0;
    let allow = |more: &[&str]| {
        let values = [&["config.routing.enable=true", "config.routing.conflist=null"], more];
        let all = objects(&render(&values.concat()).unwrap());
        let mut roles = all.iter().filter(|one| one["metadata"]["name"] == "netwright-routing");
        let role = roles.find(|one| one["kind"] == "Role");
        let namespace = role.map(|role| role["metadata"]["namespace"].as_str().unwrap());
        let role = role.map(|role| (role["rules"].clone(), namespace));
        api.allow_only(&role.into_iter().collect::<Vec<_>>());
    };
    let configuration = mine("kube-flannel", "kube-flannel-cfg");
    let others = [mine("kube-flannel", "other"), mine("kube-system", "kube-flannel-cfg")];
    allow(&["config.routing.flannel=standby"]);
    assert_eq!(get(&configuration), 200);
    for other in &others {
        assert_eq!(get(other), 403, "{other}");
    }
    assert_eq!(get("/api/v1/namespaces/kube-flannel/configmaps"), 403);
    assert_eq!(
        fabric.lab.enter(|| api.send("PATCH", &configuration, &json!({"data": null}))).0,
        403
    );
    allow(&[
        "config.routing.flannel=replace",
        "config.routing.flannel-config-map=kube-system/kube-flannel-cfg",
    ]);
    assert_eq!((get(&others[1]), get(&configuration)), (200, 403));
    allow(&[]);
    assert_eq!(get(&configuration), 403);
    // A token that names no node is refused.
    let (rules, _) = rendered(&[]);
    api.allow_only(&[(rules, None)]);
    api.admit(&policies, &json!({"username": user("a")["username"]}));
    assert_eq!(send(node, &ours).0, 422);
}

/// The service may read the blocks of addresses only if spaces are routed, and requests nothing
/// more.
#[test]
fn the_role_lets_the_service_read_the_records_of_spaces_that_it_routes() {
    testkit::require!("root", "helm");
    let mut fabric = Fabric::new("routing-admission-spaces", &[1]);
    fabric.flags = ["--path", "direct", "--spaces", "storage", "--space-ranges", "10.60.0.0/16"]
        .map(str::to_owned)
        .to_vec();
    let api = cluster(&mut fabric);
    api.allow_only(&[(rendered(&[]).0, None)]);
    fabric.start_on(0);
    let warns = |words: &str| fabric.routes(0)["warnings"].to_string().contains(words);
    wait_until("the role to be too small", || warns("of space storage cannot be read"));
    let log = fabric.nodes[0].service.as_ref().unwrap().log();
    assert!(!log.contains("10.60.0.0/16 overlaps"), "{log}");
    let spaces = ["config.routing.spaces={storage}", "config.routing.space-ranges={10.60.0.0/16}"];
    api.allow_only(&[(rendered(&spaces).0, None)]);
    wait_until("the records to be read", || !warns("cannot be read"));
    let asked = api.asked().into_iter().filter(|asked| asked.group == "ipam.netwright.io");
    let asked: BTreeSet<String> =
        asked.map(|asked| format!("{} {}", asked.verb, asked.resource)).collect();
    let expected = ["addressblocks", "stickyaddresses"]
        .map(|kind| ["list", "watch"].map(|verb| format!("{verb} {kind}")));
    assert_eq!(asked, expected.into_iter().flatten().collect());
    // If the records are in etcd, it may read none from the API server.
    let etcd = [&spaces[..], &["config.routing.etcd={https://192.0.2.1:2379}"]].concat();
    assert!(!rendered(&etcd).0.to_string().contains("ipam.netwright.io"));
}
