//! What a cluster installs agrees with the code.

use std::collections::BTreeSet;

use node_api::multinet::{Answer, FailureReport, Request};
use serde_json::Value;
use testkit::real::manifests;
use testkit::{Place as _, wait_for};

use super::rig::{Cluster, pod, sandbox};
use super::{BRIDGE, attached};

pub(super) fn of_kind<'m>(all: &'m [Value], kind: &str) -> Vec<&'m Value> {
    all.iter().filter(|one| one["kind"] == kind).collect()
}

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[test]
fn names_are_the_codes() {
    let all = manifests();
    let kind = of_kind(&all, "CustomResourceDefinition")[0];
    assert_eq!(kind["spec"]["group"], npwg::definition::GROUP);
    assert_eq!(kind["spec"]["names"]["kind"], npwg::definition::KIND);
    assert_eq!(kind["spec"]["names"]["plural"], npwg::definition::PLURAL);
    assert_eq!(kind["spec"]["versions"][0]["name"], npwg::definition::VERSION);
    let name = format!("{}.{}", npwg::definition::PLURAL, npwg::definition::GROUP);
    assert_eq!(kind["metadata"]["name"], name);
    let schema = &kind["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert_eq!(schema["properties"]["spec"]["properties"]["config"]["type"], "string");

    // Roles, bindings and the daemon name one account; policies are bound.
    let account = &of_kind(&all, "ServiceAccount")[0]["metadata"];
    let binding = of_kind(&all, "ClusterRoleBinding")[0];
    assert_eq!(binding["subjects"][0]["name"], account["name"]);
    assert_eq!(binding["subjects"][0]["namespace"], account["namespace"]);
    assert_eq!(binding["roleRef"]["name"], of_kind(&all, "ClusterRole")[0]["metadata"]["name"]);
    let daemon = of_kind(&all, "DaemonSet")[0];
    let template = &daemon["spec"]["template"];
    assert_eq!(template["spec"]["serviceAccountName"], account["name"]);
    assert_eq!(daemon["metadata"]["namespace"], account["namespace"]);
    assert_eq!(daemon["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]);
    let policies = of_kind(&all, "ValidatingAdmissionPolicy");
    let names = |all: &[&Value], pointer: &str| -> BTreeSet<String> {
        all.iter().map(|one| one.pointer(pointer).unwrap().as_str().unwrap().to_owned()).collect()
    };
    let bindings = of_kind(&all, "ValidatingAdmissionPolicyBinding");
    assert_eq!(names(&policies, "/metadata/name"), names(&bindings, "/spec/policyName"));
    let user = format!(
        "system:serviceaccount:{}:{}",
        account["namespace"].as_str().unwrap(),
        account["name"].as_str().unwrap()
    );
    let text = policies.iter().map(ToString::to_string).collect::<String>();
    assert!(text.contains(&user));
    for words in [npwg::annotation::STATUS, npwg::annotation::LEGACY_STATUS, "networks.netwright/"]
    {
        assert!(text.contains(words), "{words}");
    }
}

#[test]
fn the_daemon_cannot_write_to_the_plugins_and_its_flags_exist() {
    let all = manifests();
    let pod = &of_kind(&all, "DaemonSet")[0]["spec"]["template"]["spec"];
    let daemon = &pod["containers"][0];
    let mounts = daemon["volumeMounts"].as_array().unwrap();
    let plugins = mounts.iter().find(|mount| mount["mountPath"] == "/opt/cni/bin").unwrap();
    assert_eq!(plugins["readOnly"], true);
    let volumes: BTreeSet<_> =
        pod["volumes"].as_array().unwrap().iter().map(|one| one["name"].to_string()).collect();
    assert!(mounts.iter().all(|mount| volumes.contains(&mount["name"].to_string())));
    // An image from scratch has no link from /var/run, by which runtimes name namespaces.
    for path in ["/run/netns", "/var/run/netns"] {
        let of_host = mounts.iter().find(|mount| mount["mountPath"] == path).unwrap();
        assert_eq!(of_host["name"], "run-netns");
        assert_eq!(of_host["mountPropagation"], "HostToContainer");
    }
    let information = std::path::Path::new(npwg::device::FOLDER).parent().unwrap().to_str();
    assert!(mounts.iter().any(|mount| mount["mountPath"].as_str() == information));
    // The tests of memory use 64 MiB.
    assert_eq!(daemon["resources"]["limits"]["memory"], "64Mi");
    let command = texts(&daemon["command"]);
    assert!(command[0].ends_with("/netwrightd") && command[1] == "multinet");
    let lab = testkit::Lab::new("mn-flags");
    let run = lab
        .command(env!("CARGO_BIN_EXE_netwrightd"))
        .args(&command[1..])
        .arg("--help")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{said}");
    assert_eq!(daemon["env"][0]["name"], "NODE_NAME");
}

/// The manifest's role allows every request of the daemon, and no other.
#[test]
fn rights_are_what_is_asked_for() {
    let all = manifests();
    let rules = &of_kind(&all, "ClusterRole")[0]["rules"];
    let cluster = Cluster::new("mn-rights");
    cluster.api.allow_only(&[(rules.clone(), None)]);
    cluster.api.require_token("a-token");
    cluster.define("ns", "a", BRIDGE);
    let uid = cluster.pod("p", Some("a"));
    let _daemon = cluster.daemon_with(&["--cluster-network", "cluster", "--label-node"]);
    cluster.planned("p", &uid);
    assert_eq!(cluster.ask(&Request::Attached(attached("p", &uid))).unwrap(), Answer::Ok);
    wait_for("the status", || cluster.status("p"));
    // The daemon asks for an unknown pod and an unknown definition; it changes an Event that
    // repeats.
    assert!(cluster.plan("nobody", "7").is_err());
    let missing = cluster.pod("q", Some("nothing"));
    for _ in 0..2 {
        assert!(cluster.plan("q", &missing).is_err());
        let failed = FailureReport {
            sandbox: sandbox("q"),
            pod: pod("q", &missing),
            ..FailureReport::default()
        };
        assert_eq!(cluster.ask(&Request::Failed(failed)).unwrap(), Answer::Ok);
        wait_for("an event", || cluster.events("q").pop());
    }
    let asked = || -> BTreeSet<(String, String, String)> {
        let own = |asked: testkit::kube::LoggedRequest| (asked.group, asked.resource, asked.verb);
        cluster.api.asked().into_iter().map(own).collect()
    };
    let mut allowed = BTreeSet::new();
    for rule in rules.as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    allowed.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    // The daemon labels the node when it has a network that it can serve.
    cluster.define("ns", "cluster", "");
    wait_for("everything to have been asked for", || (allowed.is_subset(&asked())).then_some(()));
    assert_eq!(asked(), allowed);
    let refused = cluster.api.asked().into_iter().find(|asked| matches!(asked.code, 401 | 403));
    assert_eq!(refused, None);
    let agents: BTreeSet<_> =
        cluster.api.asked().into_iter().map(|asked| asked.user_agent).collect();
    let version = concat!("netwrightd/", env!("CARGO_PKG_VERSION"));
    assert_eq!(agents, BTreeSet::from([version.to_owned()]));
}
