//! Changes while a pod runs, with a plugin that records its calls.

use std::os::unix::fs::PermissionsExt;

use node_api::multinet::{Answer, DetachReport, Request};
use serde_json::{Value, json};
use testkit::{Place as _, wait_for};

use super::rig::{Cluster, sandbox};
use super::{BRIDGE, attached};

/// Answers as the plugin does; fails for an interface called `bad0`.
const PLUGIN: &str = r#"#!/bin/sh
config=$(cat)
printf '%s %s %s\n' "$CNI_COMMAND" "$CNI_CONTAINERID" "$config" >>"${0%/*}/calls"
echo "$CNI_NETNS" >"${0%/*}/netns"
case $config in
*'"netwright/attach"'*'"bad0"'*) echo '{"cniVersion":"1.0.0","code":7,"msg":"no such parent"}'; exit 1 ;;
*'"netwright/attach"'*) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"x","sandbox":"/run/netns/p"}],"ips":[{"address":"198.51.100.9/24","interface":0}]}' ;;
esac
"#;

struct Calls<'c>(&'c Cluster);

impl<'c> Calls<'c> {
    fn new(cluster: &'c Cluster) -> Self {
        let bin = cluster.dir.join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        let plugin = bin.join("netwright-multi");
        std::fs::write(&plugin, PLUGIN).unwrap();
        std::fs::set_permissions(&plugin, PermissionsExt::from_mode(0o755)).unwrap();
        Calls(cluster)
    }

    /// Each call: the verb, the container, and the request.
    fn all(&self) -> Vec<(String, String, Value)> {
        let text = std::fs::read_to_string(self.0.dir.join("bin/calls")).unwrap_or_default();
        let call = |line: &str| {
            let mut words = line.splitn(3, ' ');
            let mut next = || words.next().unwrap().to_owned();
            (next(), next(), serde_json::from_str(&next()).unwrap())
        };
        text.lines().map(call).collect()
    }
}

fn annotate(cluster: &Cluster, networks: &str) {
    let key = "k8s.v1.cni.cncf.io/networks";
    cluster.api.change("pods", "ns", "p", &json!({"metadata": {"annotations": {key: networks}}}));
}

fn interfaces(cluster: &Cluster) -> Vec<String> {
    let status = cluster.status("p").unwrap_or_default();
    let list = status.as_array().cloned().unwrap_or_default();
    list.iter().map(|one| one["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn an_annotation_that_changes_attaches_and_detaches() {
    let cluster = Cluster::new("mn-plug");
    let calls = Calls::new(&cluster);
    for name in ["a", "b", "c"] {
        cluster.define("ns", name, BRIDGE);
    }
    let uid = cluster.pod("p", Some("a"));
    let _sandbox = cluster.lab.container("p");
    let bin = cluster.dir.join("bin");
    let flags = ["--cluster-network", "cluster", "--path", bin.to_str().unwrap()];
    let daemon = cluster.daemon_with(&flags);
    cluster.planned("p", &uid);
    let mut told = attached("p", &uid);
    told.sandbox.netns = "/run/netns/p".into();
    assert_eq!(cluster.ask(&Request::Attached(told.clone())).unwrap(), Answer::Ok);
    wait_for("the status", || (interfaces(&cluster) == ["cluster", "ns/a"]).then_some(()));
    assert!(calls.all().is_empty(), "nothing is to change");

    annotate(&cluster, "a,b@data0");
    wait_for("one more", || (interfaces(&cluster) == ["cluster", "ns/a", "ns/b"]).then_some(()));
    let all = calls.all();
    let verbs: Vec<_> = all.iter().map(|call| call.0.as_str()).collect();
    assert_eq!(verbs, ["DEL", "ADD"], "what a killed daemon may have attached goes first");
    assert_eq!(all[1].1, "c-p");
    assert_eq!(all[1].2["netwright/attach"]["ifname"], "data0");
    assert_eq!(all[1].2["type"], "netwright-multi");
    let added = ("AddedInterface".to_owned(), "Add data0 [198.51.100.9/24] from ns/b".to_owned());
    wait_for("the event", || cluster.events("p").contains(&added).then_some(()));

    annotate(&cluster, "b@data0");
    wait_for("one less", || (interfaces(&cluster) == ["cluster", "ns/b"]).then_some(()));
    assert_eq!(calls.all().last().unwrap().2["netwright/detach"], "net1");

    // A malformed annotation changes nothing, and the daemon reports it.
    annotate(&cluster, "b@data0,,");
    wait_for("the event", || {
        cluster.events("p").iter().any(|event| event.0 == "NetworkRefused").then_some(())
    });
    // The daemon reports a failure, and leaves the other networks as they are.
    annotate(&cluster, "b@data0,c@bad0");
    wait_for("the failure", || {
        let failed = "attach bad0 to \"ns/c\": no such parent";
        cluster.events("p").iter().any(|event| event.1.contains(failed)).then_some(())
    });
    assert_eq!(interfaces(&cluster), ["cluster", "ns/b"]);

    // The next daemon does what changed while there was none.
    daemon.kill();
    annotate(&cluster, "b@data0,c");
    let _daemon = cluster.daemon_with(&flags);
    wait_for("one more", || (interfaces(&cluster) == ["cluster", "ns/b", "ns/c"]).then_some(()));
    assert_eq!(calls.all().last().unwrap().2["netwright/attach"]["ifname"], "net1");

    // A sandbox that is gone no longer has anything attached.
    let detached = DetachReport { sandbox: sandbox("p"), pod: None };
    assert_eq!(cluster.ask(&Request::Detached(detached)).unwrap(), Answer::Ok);
    let before = calls.all().len();
    annotate(&cluster, "a,b@data0,c");
    cluster.define("ns", "later", BRIDGE);
    wait_for("the news to have arrived", || {
        cluster.dir.join("lib/multinet/definitions/ns%2Flater.json").exists().then_some(())
    });
    assert_eq!(calls.all().len(), before);
}

/// The plugin's configuration forbids more than the daemon's does. It also limits what the
/// annotation requests later.
#[test]
fn what_the_plugins_configuration_forbids_is_refused_while_the_pod_runs() {
    let cluster = Cluster::new("mn-settings");
    let calls = Calls::new(&cluster);
    cluster.define("ns", "a", BRIDGE);
    cluster.define("other", "b", BRIDGE);
    let uid = cluster.pod("p", Some("a"));
    let _sandbox = cluster.lab.container("p");
    let bin = cluster.dir.join("bin");
    let flags = ["--cluster-network", "cluster", "--path", bin.to_str().unwrap()];
    let _daemon = cluster.daemon_with(&flags);
    cluster.planned("p", &uid);
    let mut told = attached("p", &uid);
    told.sandbox.netns = "/run/netns/p".into();
    told.settings.namespace_isolation = Some(true);
    assert_eq!(cluster.ask(&Request::Attached(told)).unwrap(), Answer::Ok);
    wait_for("the status", || (interfaces(&cluster) == ["cluster", "ns/a"]).then_some(()));
    annotate(&cluster, "a,other/b");
    wait_for("the refusal", || {
        let words = "may not use definitions of namespace \"other\"";
        cluster.events("p").iter().any(|event| event.1.contains(words)).then_some(())
    });
    assert!(calls.all().is_empty(), "nothing is attached");
}

/// An image without `/var/run`, in which the pods' namespaces are mounted below one path, or below
/// none.
#[test]
fn a_namespace_that_is_not_seen_is_not_gone() {
    let cluster = Cluster::new("mn-unseen");
    let calls = Calls::new(&cluster);
    for name in ["a", "b"] {
        cluster.define("ns", name, BRIDGE);
    }
    let uid = cluster.pod("p", Some("a"));
    let container = cluster.lab.container("p");
    let bin = cluster.dir.join("bin");
    let flags = ["--cluster-network", "cluster", "--path", bin.to_str().unwrap()];
    cluster.lab.sh("rm -rf /var/run && mkdir /var/run");
    let daemon = cluster.daemon_with(&flags);
    cluster.planned("p", &uid);
    let mut told = attached("p", &uid);
    told.sandbox.netns = "/var/run/netns/p".into();
    assert_eq!(cluster.ask(&Request::Attached(told.clone())).unwrap(), Answer::Ok);
    wait_for("the status", || (interfaces(&cluster) == ["cluster", "ns/a"]).then_some(()));
    annotate(&cluster, "a,b");
    wait_for("one more", || (interfaces(&cluster) == ["cluster", "ns/a", "ns/b"]).then_some(()));
    let netns = std::fs::read_to_string(bin.join("netns")).unwrap();
    assert_eq!(netns.trim(), container.netns().to_str().unwrap());

    daemon.kill();
    let without = "mount -t tmpfs none /run/netns && exec \"$@\"";
    let mut daemon = cluster.spawn(&flags, &["unshare", "-m", "sh", "-ec", without, "sh"]);
    daemon.wait_until_listening();
    let before = calls.all().len();
    annotate(&cluster, "b");
    wait_for("the failure", || {
        let failed = "detach net1: netwrightd does not see the namespace /var/run/netns/p";
        let told = cluster.events("p").into_iter();
        told.into_iter().find(|event| event.0 == "NetworkFailed" && event.1.contains(failed))
    });
    assert_eq!(calls.all().len(), before, "nothing is detached");
    assert_eq!(interfaces(&cluster), ["cluster", "ns/a", "ns/b"]);
    assert!(!cluster.events("p").iter().any(|event| event.0 == "RemovedInterface"));
}

#[test]
fn a_node_says_which_networks_it_can_serve() {
    let cluster = Cluster::new("mn-label");
    Calls::new(&cluster);
    cluster.define("ns", "here", r#"{"cniVersion":"1.0.0","type":"dummy0"}"#);
    cluster.define("ns", "gone", r#"{"cniVersion":"1.0.0","type":"nowhere"}"#);
    cluster.define("ns", "cluster", "");
    let bin = cluster.dir.join("bin");
    std::fs::write(bin.join("dummy0"), "").unwrap();
    let old = json!({"metadata": {"labels": {"networks.netwright/ns.old": "true", "other": "1"}}});
    cluster.api.change("nodes", "", "n1", &old);
    let flags = ["--cluster-network", "cluster", "--label-node", "--path", bin.to_str().unwrap()];
    let _daemon = cluster.daemon_with(&flags);
    let wanted = json!({
        "networks.netwright/ns.cluster": "true", "networks.netwright/ns.here": "true", "other": "1",
    });
    cluster.api.wait_until("the labels", |api| {
        api.object("nodes", "", "n1").unwrap()["metadata"]["labels"] == wanted
    });
}
