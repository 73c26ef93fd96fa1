//! The API server is slow, silent or away, or has lost objects; then the service is away.

use std::time::Duration;

use serde_json::json;
use testkit::wait_until;

use super::status::condition;
use super::{Cluster, PORT, allow, object, uid};

/// While no server answers, known pods stay as they are and new pods are closed. The service opens
/// them later without a restart.
#[test]
fn a_pod_is_closed_while_nobody_knows_it() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-away");
    cluster.api.create(&allow("db", "db", &["web"]));
    // No server answers when the service starts.
    cluster.api.hang();
    cluster.spawn();
    cluster.status().fails(50, "pods that start now are closed to all but their node");
    let web = cluster.attach("web");
    let db = cluster.attach("db");
    web.assert_reaches(&db, false);
    db.assert_reaches(&web, false);
    // The pod's own node reaches it.
    testkit::traffic::assert_tcp(&cluster.node.lab, &format!("{}:{PORT}", db.v4()));
    cluster.api.restore();
    for name in ["web", "db"] {
        cluster.create(name);
    }
    wait_until("both to be known", || web.reaches(&db) && db.reaches(&web));
    cluster.status().silent();
    wait_until("the service to record that it is ready", || {
        node_api::ready::was_ready(&cluster.socket())
    });

    // Then the server is away.
    cluster.api.refuse();
    cluster.status().silent();
    let other = cluster.attach("other");
    other.assert_reaches(&web, false);
    web.assert_reaches(&db, true);
    cluster.api.restore();
    cluster.create("other");
    wait_until("the new pod to be known", || other.reaches(&web));
    other.assert_reaches(&db, false);

    // The service is away, and a pod starts.
    cluster.kill();
    cluster.create("late");
    let late = cluster.attach("late");
    late.assert_reaches(&web, false);
    web.assert_reaches(&db, true);
    other.assert_reaches(&db, false);
    // The service starts while the API server is away: nothing changes, and new pods are closed.
    cluster.api.refuse();
    cluster.spawn();
    // A service knew its lists a moment ago.
    cluster.status().silent();
    web.assert_reaches(&db, true);
    other.assert_reaches(&db, false);
    late.assert_reaches(&web, false);
    cluster.api.slow(Duration::from_millis(20));
    cluster.api.restore();
    wait_until("the late pod to be known", || late.reaches(&web));
    late.assert_reaches(&db, false);
}

/// What the service was started with no longer serves: it takes what the kubeconfig says by then,
/// without a restart.
#[test]
fn a_kubeconfig_that_changes_is_read_again() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-kubeconfig");
    cluster.start();
    let web = cluster.pod("web");
    cluster.api.require_token("another");
    cluster.api.end_watches();
    let late = cluster.pod("late");
    late.assert_reaches(&web, false);
    let _ = cluster.api.kubeconfig(cluster.node.lab.dir());
    wait_until("the late pod to be known", || late.reaches(&web));
}

/// A list that lacks what there was is not believed at once.
#[test]
fn policies_that_a_list_lacks_stay_until_somebody_accepts_it() {
    testkit::require!("root", "program:curl");
    let mut cluster = Cluster::new("policy-lost");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.start();
    let [db, web, other] = ["db", "web", "other"].map(|name| cluster.pod(name));
    other.assert_reaches(&db, false);
    let accept = |cluster: &Cluster| {
        let socket = cluster.node.roots.run.join("agent/policy.sock");
        cluster.node.sh(&format!(
            "curl -s --fail --unix-socket {} -X POST http://netwrightd/accept",
            socket.display()
        ));
    };
    // The server comes back without the policy, and has forgotten its history.
    let lose = |cluster: &Cluster| {
        cluster.api.refuse();
        cluster.api.remove("networkpolicies", "shop", "db");
        cluster.api.compact();
        cluster.api.restore();
    };
    lose(&cluster);
    wait_until("the loss to be told", || {
        cluster.log().contains("a list of networkpolicies lacks 1 that were there")
    });
    other.assert_reaches(&db, false);
    accept(&cluster);
    wait_until("the loss to be believed", || other.reaches(&db));

    // The same holds across a restart of the service.
    cluster.api.create(&allow("db", "db", &["web"]));
    wait_until("the policy", || !other.reaches(&db));
    let known = cluster.node.roots.lib.join("policy/policies");
    wait_until("the number of policies on the disk", || {
        std::fs::read_to_string(&known).unwrap_or_default().contains("\"networkPolicies\":1")
    });
    cluster.kill();
    lose(&cluster);
    cluster.spawn();
    wait_until("the doubt to be told", || {
        cluster.log().contains("there are 0 networkpolicies, but there were 1")
    });
    other.assert_reaches(&db, false);
    let late = cluster.pod("late");
    late.assert_reaches(&web, false);
    accept(&cluster);
    wait_until("the loss to be believed", || other.reaches(&db) && late.reaches(&web));
}

/// Policies are enforced in a cluster that has no definition of ClusterNetworkPolicy. The
/// definition may come later, and in its newer version alone: statuses are written in that one.
#[test]
fn the_kind_of_cluster_policies_may_come_later() {
    const KIND: &str = "clusternetworkpolicies";
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-kind");
    cluster.api.withdraw(KIND);
    cluster.api.create(&allow("db", "db", &["web"]));
    let interval = cluster.flags.iter().position(|flag| flag == "1h").unwrap();
    cluster.flags[interval] = "1s".to_owned();
    cluster.start();
    let [db, web] = ["db", "web"].map(|name| cluster.pod(name));
    web.assert_reaches(&db, true);
    cluster.api.serve(KIND, &["v1beta1"]);
    cluster.api.create(&json!({
        "apiVersion": "policy.networking.k8s.io/v1beta1", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "shut"},
        "spec": {
            "tier": "Admin", "priority": 0, "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}],
        },
    }));
    wait_until("the policy", || !web.reaches(&db));
    wait_until("its condition", || condition(&cluster, "shut").is_some());
    let asked = cluster.api.asked();
    let mut writes = asked.iter().filter(|one| one.resource == format!("{KIND}/status"));
    assert!(writes.all(|write| write.line.contains("/v1beta1/")), "{asked:#?}");
}

/// A pod that is recreated under the same name is another pod.
#[test]
fn a_pod_of_the_same_name_is_another_one() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-again");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.start();
    let [db, web] = ["db", "web"].map(|name| cluster.pod(name));
    web.assert_reaches(&db, true);
    // The API has the new pod before the old pod's attachment ends.
    cluster.api.remove("pods", "shop", "web");
    let mut new = object("web", "another", "n1");
    new["metadata"]["labels"] = json!({"app": "other"});
    cluster.api.create(&new);
    wait_until("the old one to be closed", || !web.reaches(&db) && !db.reaches(&web));
    cluster.detach(&web);
    drop(web);
    assert_ne!(uid("web"), "another");
}

/// Containers that run keep their rules when the service is taken off the node, and new ones are
/// refused with a sentence instead of staying closed. Where the last one has ended, and where
/// somebody says so, nothing is left.
#[test]
fn what_runs_keeps_its_rules_when_the_service_is_taken_off() {
    testkit::require!("root", "program:nft");
    let mut cluster = Cluster::new("policy-taken-off");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.start();
    let [db, web, other] = ["db", "web", "other"].map(|name| cluster.pod(name));
    let take_off = |cluster: &Cluster, more: &[&str]| {
        let done = cluster.command().arg("--uninstall").args(more).output().unwrap();
        let said = [done.stdout, done.stderr].concat();
        (done.status.code(), String::from_utf8(said).unwrap())
    };
    let tables =
        |cluster: &Cluster| cluster.node.sh("nft list tables").matches("netwright-policy").count();
    let (code, said) = take_off(&cluster, &[]);
    assert!(code == Some(1) && said.starts_with("error: the service policy runs, "), "{said}");
    cluster.stop();
    let (code, said) = take_off(&cluster, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("3 attachments keep their rules as they are"), "{said}");
    web.assert_reaches(&db, true);
    other.assert_reaches(&db, false);
    let refusal = "network policy was taken off this node, and the network pods asks for it";
    cluster.create("late");
    let late = cluster.connect("shop", "late");
    cluster.policy("ADD", &late).call().fails(110, refusal);
    cluster.status().fails(50, refusal);
    cluster.disconnect(&late);
    // What ends takes its rules along.
    cluster.detach(&other);
    let (_, said) = take_off(&cluster, &[]);
    assert!(said.starts_with("2 attachments "), "{said}");

    // The service may come back.
    cluster.spawn();
    let again = cluster.pod("again");
    again.assert_reaches(&db, false);
    cluster.stop();
    let (_, said) = take_off(&cluster, &["--open"]);
    assert_eq!(said, "no policy is enforced on this node any more\n");
    db.assert_reaches(&web, true);
    again.assert_reaches(&db, true);
    assert_eq!(tables(&cluster), 0);
    // A service that nothing needs leaves no table.
    cluster.spawn();
    assert_eq!(tables(&cluster), 1);
    for pod in [&again, &db, &web] {
        cluster.detach(pod);
    }
    cluster.stop();
    assert_eq!(tables(&cluster), 0);
}
