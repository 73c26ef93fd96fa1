//! The source `file`: policies without a cluster.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{Place as _, wait_until};

use super::{Cluster, FLAGS, allow};

fn folder(cluster: &Cluster) -> PathBuf {
    cluster.node.lab.dir().join("policies")
}

/// Writes a file in one step.
fn write(cluster: &Cluster, name: &str, text: &str) {
    let scratch = cluster.node.lab.dir().join("scratch");
    fs::write(&scratch, text).unwrap();
    fs::rename(scratch, folder(cluster).join(name)).unwrap();
}

fn in_default(mut policy: Value) -> Value {
    policy["metadata"]["namespace"] = json!("default");
    policy
}

#[test]
fn policies_of_files_hold_for_containers() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-files");
    let folder = folder(&cluster);
    fs::create_dir(&folder).unwrap();
    write(&cluster, "db.json", &in_default(allow("db", "db", &["web"])).to_string());
    let flags = ["--objects", folder.to_str().unwrap()];
    cluster.flags = flags.iter().chain(&FLAGS).map(|flag| (*flag).to_owned()).collect();
    cluster.start();
    let [db, web, other] = ["db", "web", "other"].map(|name| cluster.attach_container(name));
    web.assert_reaches(&db, true);
    other.assert_reaches(&db, false);

    // If a file cannot be read, its last content stays valid.
    write(&cluster, "db.json", "{");
    wait_until("the mistake to be told", || cluster.log().contains("its last content is used"));
    other.assert_reaches(&db, false);
    write(&cluster, "db.json", &in_default(allow("db", "db", &["other"])).to_string());
    wait_until("the other policy", || other.reaches(&db) && !web.reaches(&db));
    // One more file, then no file.
    write(&cluster, "web.json", &in_default(allow("web", "web", &[])).to_string());
    wait_until("another policy", || !other.reaches(&web));
    for file in ["db.json", "web.json"] {
        fs::remove_file(folder.join(file)).unwrap();
    }
    wait_until("no policy", || web.reaches(&db) && other.reaches(&web));
    // A missing folder is not taken for an empty one.
    write(&cluster, "db.json", &in_default(allow("db", "db", &["web"])).to_string());
    wait_until("the policy", || !other.reaches(&db));
    fs::rename(&folder, cluster.node.lab.dir().join("elsewhere")).unwrap();
    wait_until("the loss to be told", || cluster.log().contains("files with policies"));
    other.assert_reaches(&db, false);

    // The service starts while a file has a mistake: nothing changes, and new containers are
    // closed.
    cluster.kill();
    fs::rename(cluster.node.lab.dir().join("elsewhere"), &folder).unwrap();
    write(&cluster, "wrong.json", "[");
    cluster.spawn();
    web.assert_reaches(&db, true);
    other.assert_reaches(&db, false);
    let late = cluster.attach_container("late");
    late.assert_reaches(&web, false);
    fs::remove_file(folder.join("wrong.json")).unwrap();
    wait_until("the new container to be let free", || late.reaches(&web));
}

/// The administrator isolates a namespace, and lists the addresses that may enter it.
#[test]
fn containers_are_isolated_by_default() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-isolated");
    let folder = folder(&cluster);
    fs::create_dir(&folder).unwrap();
    let isolated = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "default", "labels": {"policy.netwright.io/isolate": "true"}},
    });
    write(&cluster, "namespace.json", &isolated.to_string());
    let flags = ["--objects", folder.to_str().unwrap(), "--isolate-from", "192.0.2.2/32"];
    cluster.flags = flags.iter().chain(&FLAGS).map(|flag| (*flag).to_owned()).collect();
    cluster.start();
    let [db, web] = ["db", "web"].map(|name| cluster.attach_container(name));
    web.assert_reaches(&db, true);
    // The other container is in another namespace.
    let other = cluster.attach("other");
    other.assert_reaches(&db, false);
    db.assert_reaches(&other, false);
    let at = format!("{}:{}", db.v4(), super::PORT);
    testkit::traffic::assert_tcp(&cluster.others, &at);
    cluster.others.sh("ip addr del 192.0.2.2/24 dev eth0; ip addr add 192.0.2.3/24 dev eth0; \
         ip route add default via 192.0.2.1");
    testkit::traffic::assert_no_tcp(&cluster.others, &at);
}

/// A policy that cannot be read closes the pods that it selects. The service logs it once, and also
/// once each object that it ignores.
#[test]
fn what_cannot_be_read_closes_its_pods_and_is_told() {
    testkit::require!("root", "program:curl");
    let mut cluster = Cluster::new("policy-unread");
    let folder = folder(&cluster);
    fs::create_dir(&folder).unwrap();
    let mut policy = in_default(allow("db", "db", &["web"]));
    write(&cluster, "db.json", &policy.to_string());
    let flags = ["--objects", folder.to_str().unwrap()];
    cluster.flags = flags.iter().chain(&FLAGS).map(|flag| (*flag).to_owned()).collect();
    cluster.start();
    let [db, web, other] = ["db", "web", "other"].map(|name| cluster.attach_container(name));
    web.assert_reaches(&db, true);
    let socket = cluster.node.roots.run.join("agent/policy.sock");
    let ask = |cluster: &Cluster, what: &str| {
        let socket = socket.display();
        cluster.node.sh(&format!("curl -s --unix-socket {socket} {what}"))
    };
    let accept = "-X POST http://netwrightd/accept";
    assert_eq!(ask(&cluster, "http://netwrightd/readyz"), "ok\n");

    policy["apiVersion"] = json!("networking.k8s.io/v2");
    write(&cluster, "db.json", &policy.to_string());
    wait_until("the pod to be closed", || !web.reaches(&db));
    db.assert_reaches(&web, false);
    web.assert_reaches(&other, true);
    let why = "is not read here, networking.k8s.io/v1 is; the policy allows nothing";
    for question in ["http://netwrightd/readyz", "http://netwrightd/policies"] {
        wait_until("the fault to be told", || ask(&cluster, question).contains(why));
    }
    let said = ask(&cluster, accept);
    assert!(
        said.starts_with("nothing is accepted: ") && said.contains("db.json: document 1"),
        "{said}"
    );

    // A policy of another program's kind, and an object that is not a policy.
    let others = "
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: db}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: db}
";
    write(&cluster, "others.yaml", others);
    let foreign = "not enforced here: NetworkPolicy of projectcalico.org/v3";
    wait_until("the other policy to be told", || cluster.log().contains(foreign));
    let passed_over = "others.yaml: ignored: Deployment";
    wait_until("the other object to be told", || cluster.log().contains(passed_over));
    wait_until("the other policy to be listed", || {
        ask(&cluster, "http://netwrightd/policies").contains(foreign)
    });

    policy["apiVersion"] = json!("networking.k8s.io/v1");
    write(&cluster, "db.json", &policy.to_string());
    wait_until("the pod to be open", || web.reaches(&db));
    wait_until("the service to be ready", || ask(&cluster, "http://netwrightd/readyz") == "ok\n");
    assert_eq!(ask(&cluster, accept), "accepted\n");
    // The service has read the files several times.
    let log = cluster.log();
    assert_eq!((log.matches(why).count(), log.matches(foreign).count()), (1, 1), "{log}");
}
