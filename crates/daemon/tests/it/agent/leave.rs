//! `netwrightd agent leave`, with which the chart turns nodes back before it is uninstalled.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::kube::KubeApi;
use testkit::{Lab, Place as _, wait_until};

const DAEMON: &str = env!("CARGO_BIN_EXE_netwrightd");

/// A DaemonSet of the chart, with one container.
fn daemon_set(name: &str, container: &str) -> Value {
    let labels = json!({"app.kubernetes.io/name": name});
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"namespace": "kube-system", "name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": container}]},
            },
        },
    })
}

/// A pod of it, on a node.
fn pod(of: &str, node: &str, container: &str, ready: bool) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "kube-system", "name": format!("{of}-{node}"), "uid": format!("{of}-{node}"),
            "labels": {"app.kubernetes.io/name": of},
        },
        "spec": {"nodeName": node, "containers": [{"name": container}]},
        "status": {"containerStatuses": [{"name": container, "ready": ready}]},
    })
}

/// The DaemonSets that run give way, and nodes are waited for: one that does not answer ends nothing
/// and is named.
#[test]
fn the_nodes_of_a_cluster_are_turned_back_or_named() {
    testkit::require!("root");
    let lab = Lab::new("agent-leave");
    let api = lab.enter(KubeApi::start);
    let kubeconfig = api.kubeconfig(lab.dir()).display().to_string();
    for name in ["netwright-policy", "netwright-routing"] {
        api.create(&daemon_set(name, "service"));
    }
    let file = lab.dir().join("daemonsets.json");
    let wanted = json!([daemon_set("netwright", "done"), daemon_set("netwright-routing", "done")]);
    fs::write(&file, wanted.to_string()).unwrap();
    let command = |timeout: &str| -> Command {
        let mut command = lab.command(DAEMON);
        let file = file.to_str().unwrap();
        command.args(["agent", "leave", "--daemon-sets", file, "--kubeconfig", &kubeconfig]);
        command.args(["--timeout", timeout]).stdin(Stdio::null());
        command
    };
    let container = |name: &str| {
        let found = api.object("daemonsets", "kube-system", name);
        found.map(|one| one["spec"]["template"]["spec"]["containers"][0]["name"].clone())
    };
    for node in ["n1", "n2"] {
        api.create(&pod("netwright", node, "done", true));
        api.create(&pod("netwright-routing", node, "done", node == "n1"));
    }
    let counted = |name: &str, nodes: u32, ready: u32| {
        let status = json!({
            "observedGeneration": 9, "desiredNumberScheduled": nodes, "updatedNumberScheduled": nodes, "numberReady": ready,
        });
        api.change("daemonsets", "kube-system", name, &json!({"status": status}));
    };
    counted("netwright-routing", 2, 1);
    let output = command("1s").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}{failed}");
    assert!(said.starts_with("each node is turned back to what it was: containers that run keep"));
    assert!(said.contains("waiting for n2 (netwright-routing-n2), pods of"), "{said}");
    assert!(failed.contains("not turned back after 1s: n2 (netwright-routing-n2), "), "{failed}");
    assert!(failed.contains("logs POD --all-containers"), "{failed}");
    assert_eq!(container("netwright-routing"), Some("done".into()));
    assert_eq!(container("netwright-policy"), None, "the chart does not bring it");
    assert_eq!(container("netwright"), Some("done".into()), "made for the removal");

    // It goes on, and is waited for again.
    counted("netwright", 2, 2);
    let log = fs::File::create(lab.dir().join("log")).unwrap();
    let mut again = command("1m").stdout(log).spawn().unwrap();
    let log = || fs::read_to_string(lab.dir().join("log")).unwrap();
    wait_until("it to wait", || log().contains("waiting for n2"));
    let ready = json!({"status": {"containerStatuses": [{"name": "done", "ready": true}]}});
    api.change("pods", "kube-system", "netwright-routing-n2", &ready);
    // A third node has no pod yet.
    counted("netwright-routing", 3, 2);
    wait_until("the third", || log().contains("pods of the DaemonSet netwright-routing"));
    counted("netwright-routing", 2, 2);
    assert!(again.wait().unwrap().success(), "{}", log());
    assert!(log().ends_with("all nodes are turned back\n"), "{}", log());
    assert_eq!(container("netwright"), None, "Helm does not know it");
}
