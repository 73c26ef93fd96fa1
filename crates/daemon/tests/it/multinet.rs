//! The daemon between the plugin and the API server.

mod admission;
mod deploy;
mod hotplug;
mod in_pod;
mod load;
mod rig;
mod tenant;

use std::time::Duration;

use node_api::multinet::{
    Answer, AttachReport, DetachReport, FailureReport, NetworkResult, PlanRequest, Request,
    Settings,
};
use node_api::{Message, inbox};
use serde_json::json;
use testkit::kube::LoggedRequest;
use testkit::{Place as _, wait_for};

use rig::{Cluster, pod, sandbox};

const BRIDGE: &str =
    r#"{"cniVersion":"1.0.0","plugins":[{"type":"bridge","capabilities":{"ips":true}}]}"#;

fn attached(name: &str, uid: &str) -> AttachReport {
    let result = |ifname: &str, ip: &str| {
        let text = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": ifname, "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/c"}],
            "ips": [{"address": ip, "interface": 0}],
        });
        cni::json::Object::parse(text.to_string().as_bytes()).unwrap()
    };
    let network = |name: &str, ifname: &str, ip: &str| NetworkResult {
        name: name.to_owned(),
        ifname: ifname.to_owned(),
        default: ifname == "eth0",
        result: result(ifname, ip),
        device_info: None,
    };
    AttachReport {
        sandbox: sandbox(name),
        pod: pod(name, uid),
        results: vec![
            network("cluster", "eth0", "192.0.2.7/24"),
            network("ns/a", "net1", "198.51.100.7/24"),
        ],
        ..AttachReport::default()
    }
}

#[test]
fn a_pods_life() {
    let cluster = Cluster::new("mn-life");
    cluster.define("ns", "a", BRIDGE);
    let uid = cluster.pod("p", Some("a@data0"));
    let _daemon = cluster.daemon();
    let plan = cluster.planned("p", &uid);
    assert_eq!(plan.uid, uid);
    let names: Vec<_> = plan.networks.iter().map(|network| network.name.as_str()).collect();
    assert_eq!(names, ["cluster", "ns/a"]);
    assert!(plan.networks[0].default && plan.networks[0].on_node == "cluster");
    assert_eq!(plan.networks[1].ifname.as_deref(), Some("data0"));
    let list = plan.networks[1].list.clone().unwrap();
    assert_eq!(list.get("name").unwrap().get(), "\"a\"");
    let told = Request::Attached(attached("p", &uid));
    assert_eq!(cluster.ask(&told).unwrap(), Answer::Ok);
    let status = wait_for("the status", || cluster.status("p"));
    assert_eq!(status[0]["default"], true);
    assert_eq!(status[1]["ips"], json!(["198.51.100.7"]));
    let legacy = cluster.annotation("p", "k8s.v1.cni.cncf.io/networks-status");
    assert_eq!(legacy, cluster.annotation("p", "k8s.v1.cni.cncf.io/network-status"));
    let events = wait_for("two events", || {
        let events = cluster.events("p");
        (events.len() == 2).then_some(events)
    });
    let added = ("AddedInterface".to_owned(), "Add net1 [198.51.100.7/24] from ns/a".to_owned());
    assert!(events.contains(&added), "{events:?}");
    let detached = DetachReport { sandbox: sandbox("p"), pod: Some(pod("p", &uid)) };
    for _ in 0..2 {
        assert_eq!(cluster.ask(&Request::Detached(detached.clone())).unwrap(), Answer::Ok);
    }
    let left = std::fs::read_dir(cluster.dir.join("run/multinet/sandboxes")).unwrap().count();
    assert_eq!(left, 0);
}

#[test]
fn a_sandbox_without_a_pod_has_the_default_network_alone() {
    let cluster = Cluster::new("mn-nopod");
    let _daemon = cluster.daemon();
    let request = PlanRequest {
        sandbox: sandbox("x"),
        settings: Settings { cluster_network: Some("other".into()), ..Settings::default() },
        ..PlanRequest::default()
    };
    let Answer::Plan(plan) = cluster.ask(&Request::Plan(request)).unwrap() else {
        panic!("a plan");
    };
    assert_eq!(plan.networks.len(), 1);
    assert_eq!(plan.networks[0].on_node, "other", "the plugin's configuration comes first");
}

/// What the service was started with no longer serves: it takes what the kubeconfig says by then,
/// without a restart.
#[test]
fn a_kubeconfig_that_changes_is_read_again() {
    let cluster = Cluster::new("mn-kubeconfig");
    let uid = cluster.pod("first", None);
    let _daemon = cluster.daemon();
    assert_eq!(cluster.planned("first", &uid).uid, uid);
    cluster.api.require_token("another");
    cluster.api.end_watches();
    let uid = cluster.pod("p", None);
    let refusal = cluster.plan("p", &uid).unwrap_err();
    assert!(refusal.retry && refusal.msg.contains("Unauthorized"), "{refusal:?}");
    cluster.api.forget();
    let _ = cluster.api.kubeconfig(&cluster.dir);
    assert_eq!(cluster.planned("p", &uid).uid, uid);
    // A pod's specification is not needed, and is most of it.
    for (kind, is_metadata_only) in [("pods", true), ("network-attachment-definitions", false)] {
        cluster.api.wait_until("a watch of each kind", |api| {
            let is_it = |asked: &LoggedRequest| {
                (&*asked.verb, &*asked.resource, asked.code) == ("watch", kind, 200)
                    && asked.is_metadata_only == is_metadata_only
            };
            api.asked().iter().any(is_it)
        });
    }
}

#[test]
fn refusals_are_told_to_the_pod() {
    let cluster = Cluster::new("mn-refuse");
    cluster.define("ns", "bad", "{");
    cluster.define("other", "a", BRIDGE);
    let _daemon = cluster.daemon_with(&["--cluster-network", "cluster", "--namespace-isolation"]);
    for (name, networks, reason, words) in [
        ("malformed", "a,,b", "NetworkRefused", "there is a comma too many"),
        ("missing", "nothing", "NoNetworkFound", "there is no NetworkAttachmentDefinition"),
        ("broken", "bad", "NetworkRefused", "spec.config is not a JSON object"),
        ("foreign", "other/a", "NetworkRefused", "may not use definitions of namespace"),
    ] {
        let uid = cluster.pod(name, Some(networks));
        let refusal = cluster.plan(name, &uid).unwrap_err();
        assert!(refusal.msg.contains(words), "{refusal:?}");
        assert!(!refusal.retry, "{refusal:?}");
        let event = wait_for("an event", || cluster.events(name).pop());
        assert_eq!((event.0.as_str(), event.1.as_str()), (reason, refusal.msg.as_str()));
        // A message that is repeated is one Event with a count.
        assert!(cluster.plan(name, &uid).is_err());
        cluster.api.wait_until("a count", |api| {
            let events = api.objects("events");
            let mut mine = events.iter().filter(|event| event["involvedObject"]["name"] == name);
            mine.next().is_some_and(|event| event["count"] == 2) && mine.next().is_none()
        });
    }
}

#[test]
fn another_pod_of_the_same_name_is_another() {
    let cluster = Cluster::new("mn-uid");
    let uid = cluster.pod("p", None);
    let _daemon = cluster.daemon();
    let refusal = cluster.plan("p", "some-other-uid").unwrap_err();
    assert!(refusal.msg.contains("of that name is another one") && !refusal.retry, "{refusal:?}");
    assert!(cluster.plan("nobody", "7").unwrap_err().msg.contains("has no such pod"));
    // A static pod has one UID in the API and another one in the kubelet.
    cluster.api.create(&json!({
        "apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n1"},
        "metadata": {"namespace": "ns", "name": "s", "annotations": {"kubernetes.io/config.mirror": "h"}},
    }));
    assert_ne!(cluster.planned("s", "the-kubelets-uid").uid, "the-kubelets-uid");
    // The pod was made again while its status was being written: the daemon does not write it.
    cluster.planned("p", &uid);
    cluster.api.fail(503);
    assert_eq!(cluster.ask(&Request::Attached(attached("p", &uid))).unwrap(), Answer::Ok);
    cluster.api.remove("pods", "ns", "p");
    cluster.pod("p", None);
    cluster.api.restore();
    cluster.api.wait_until("the write that is refused", |api| {
        api.asked().iter().any(|asked| asked.resource == "pods/status" && asked.code == 422)
    });
    assert_eq!(cluster.status("p"), None);
}

#[test]
fn what_is_known_serves_while_the_api_is_gone() {
    let cluster = Cluster::new("mn-gone");
    cluster.define("ns", "a", BRIDGE);
    let uid = cluster.pod("p", Some("a"));
    let daemon = cluster.daemon();
    cluster.planned("p", &uid);
    wait_for("the definition to be known", || {
        let mut known = std::fs::read_dir(cluster.dir.join("lib/multinet/definitions")).unwrap();
        known.next().map(drop)
    });
    cluster.api.refuse();
    cluster.planned("p", &uid);
    let refusal = cluster.plan("q", "8").unwrap_err();
    assert!(refusal.retry && refusal.msg.contains("does not answer"), "{refusal:?}");
    // The daemon does not ask for what it knows: a silent server delays no answer.
    cluster.api.restore();
    cluster.api.hang();
    cluster.planned("p", &uid);
    cluster.api.refuse();
    // The same holds after a restart.
    daemon.kill();
    let _daemon = cluster.daemon();
    assert_eq!(cluster.ask(&Request::Status).unwrap(), Answer::Ok);
    assert_eq!(cluster.planned("p", &uid).networks.len(), 2);
    assert_eq!(cluster.ask(&Request::Attached(attached("p", &uid))).unwrap(), Answer::Ok);
    cluster.api.restore();
    wait_for("the status, once the server is back", || cluster.status("p"));
    let uid = cluster.pod("q", Some("a"));
    cluster.planned("q", &uid);
}

#[test]
fn watches_go_on_after_all_kinds_of_trouble() {
    let cluster = Cluster::new("mn-watch");
    let _daemon = cluster.daemon();
    let known = |name: &str| {
        let path = cluster.dir.join(format!("lib/multinet/definitions/ns%2F{name}.json"));
        wait_for(name, || path.exists().then_some(()));
    };
    cluster.define("ns", "first", BRIDGE);
    known("first");
    cluster.api.cut();
    cluster.define("ns", "second", BRIDGE);
    known("second");
    // The server has forgotten what happened meanwhile: it answers 410, and the daemon lists
    // everything again.
    cluster.api.refuse();
    cluster.define("ns", "third", BRIDGE);
    cluster.api.remove("network-attachment-definitions", "ns", "first");
    cluster.api.compact();
    cluster.api.restore();
    known("third");
    let gone = cluster.dir.join("lib/multinet/definitions/ns%2Ffirst.json");
    wait_for("what is gone to be forgotten", || (!gone.exists()).then_some(()));
    cluster.api.bookmark();
    cluster.api.fail_next("watch", "network-attachment-definitions", 500);
    cluster.api.cut();
    cluster.define("ns", "fourth", BRIDGE);
    known("fourth");
}

#[test]
fn a_status_that_collides_is_written_again() {
    let cluster = Cluster::new("mn-conflict");
    let uid = cluster.pod("p", None);
    let _daemon = cluster.daemon();
    for code in [409, 429, 500] {
        cluster.api.fail_next("patch", "pods/status", code);
    }
    assert_eq!(cluster.ask(&Request::Attached(attached("p", &uid))).unwrap(), Answer::Ok);
    wait_for("the status", || cluster.status("p"));
}

#[test]
fn what_plugins_left_is_done() {
    let cluster = Cluster::new("mn-todo");
    let (one, two) = (cluster.pod("p", None), cluster.pod("q", None));
    let folder = inbox::folder(&cluster.socket());
    std::fs::create_dir_all(&folder).unwrap();
    let leave = |told: &Request| {
        let line = told.to_line().unwrap();
        std::fs::write(folder.join(told.todo_name().unwrap()), line).unwrap();
    };
    leave(&Request::Attached(attached("p", &one)));
    let _daemon = cluster.daemon();
    wait_for("the status of what was left before", || cluster.status("p"));
    leave(&Request::Attached(attached("q", &two)));
    wait_for("the status of what was left meanwhile", || cluster.status("q"));
    leave(&Request::Detached(DetachReport { sandbox: sandbox("q"), pod: None }));
    std::fs::write(folder.join("nonsense"), "tea").unwrap();
    wait_for("the folder to be empty", || {
        std::fs::read_dir(&folder).unwrap().next().is_none().then_some(())
    });
    assert_eq!(std::fs::read_dir(cluster.dir.join("run/multinet/sandboxes")).unwrap().count(), 1);
}

#[test]
fn a_failure_is_told_to_the_pod() {
    let cluster = Cluster::new("mn-failed");
    let uid = cluster.pod("p", None);
    let _daemon = cluster.daemon();
    let failed = FailureReport {
        sandbox: sandbox("p"),
        pod: pod("p", &uid),
        network: "ns/a".into(),
        code: 7,
        msg: "no such parent".into(),
        details: "eth7".into(),
    };
    assert_eq!(cluster.ask(&Request::Failed(failed)).unwrap(), Answer::Ok);
    let (reason, message) = wait_for("an event", || cluster.events("p").pop());
    assert_eq!(reason, "NetworkFailed");
    assert_eq!(message, "network \"ns/a\": no such parent: eth7");
}

#[test]
fn it_says_why_it_is_not_ready_and_the_configuration_comes_last() {
    let cluster = Cluster::new("mn-ready");
    let path = cluster.dir.join("00-netwright.conflist");
    cluster.api.fail(503);
    let flags = ["--cluster-network", "cluster", "--conflist", path.to_str().unwrap()];
    let daemon = cluster.daemon_with(&flags);
    let Answer::Refused(refusal) = cluster.ask(&Request::Status).unwrap() else {
        panic!("nothing is known");
    };
    assert_eq!(refusal.code, 50);
    assert!(refusal.msg.contains("nothing is known of the pods of this node"), "{refusal:?}");
    // The client of the watch does not go on asking a busy server without a word.
    wait_for("the server's own words", || match cluster.ask(&Request::Status) {
        Ok(Answer::Refused(refusal)) => refusal.msg.contains("unable to handle").then_some(()),
        other => panic!("{other:?}"),
    });
    assert!(!path.exists());
    cluster.api.restore();
    wait_for("the configuration", || path.exists().then_some(()));
    assert_eq!(cluster.ask(&Request::Status).unwrap(), Answer::Ok);
    let plugin = || {
        let text = std::fs::read_to_string(&path).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["plugins"][0].take()
    };
    assert_eq!(
        (&plugin()["type"], &plugin()["clusterNetwork"]),
        (&"netwright-multi".into(), &"cluster".into())
    );
    // The daemon may learn a moment later that no definition has the default network's name.
    let wanted = json!({"portMappings": true, "io.kubernetes.cri.pod-annotations": true});
    wait_for("the capabilities", || (plugin()["capabilities"] == wanted).then_some(()));
    // The file stays: without it the runtime would take the next network it finds.
    daemon.kill();
    std::fs::remove_file(cluster.dir.join("net.d/cluster.conflist")).unwrap();
    let _daemon = cluster.daemon_with(&flags);
    wait_for("the default network to be missed", || {
        let answer = cluster.ask(&Request::Status).unwrap();
        let Answer::Refused(refusal) = answer else { panic!("the default network is gone") };
        refusal.msg.contains("default network \"cluster\"").then_some(())
    });
    assert!(path.exists());
}

#[test]
fn a_slow_api_fails_nobody() {
    let cluster = Cluster::new("mn-slow");
    cluster.define("ns", "a", BRIDGE);
    let uids: Vec<_> = (0..100).map(|n| cluster.pod(&format!("p{n}"), Some("a"))).collect();
    cluster.api.slow(Duration::from_secs(2));
    let _daemon = cluster.daemon();
    // The daemon has listed nothing yet, so it requests each object.
    std::thread::scope(|scope| {
        for (number, uid) in uids.iter().enumerate() {
            let cluster = &cluster;
            scope.spawn(move || {
                let name = format!("p{number}");
                let plan = cluster.plan(&name, uid).unwrap();
                assert_eq!(plan.networks.len(), 2);
                let told = Request::Attached(attached(&name, uid));
                assert_eq!(cluster.ask(&told).unwrap(), Answer::Ok);
            });
        }
    });
    for number in 0..100 {
        wait_for("every status", || cluster.status(&format!("p{number}")));
    }
}

#[test]
fn devices_are_those_that_the_kubelet_allocated() {
    let cluster = Cluster::new("mn-device");
    cluster.api.create(&json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"namespace": "ns", "name": "a",
            "annotations": {"k8s.v1.cni.cncf.io/resourceName": "v/nic"}},
        "spec": {"config": BRIDGE},
    }));
    let uid = cluster.pod("p", Some("a,a"));
    let _daemon = cluster.daemon();
    let refusal = cluster.plan("p", &uid).unwrap_err();
    assert!(refusal.retry && refusal.msg.contains("needs a device of \"v/nic\""), "{refusal:?}");
    let checkpoint = json!({"Data": {"PodDeviceEntries": [{
        "PodUID": uid, "ContainerName": "c", "ResourceName": "v/nic", "DeviceIDs": {"0": ["b", "a"]},
    }]}});
    std::fs::write(cluster.dir.join("checkpoint"), checkpoint.to_string()).unwrap();
    let plan = cluster.plan("p", &uid).unwrap();
    let ids: Vec<_> = plan.networks.iter().filter_map(|one| one.device.clone()).collect();
    assert_eq!(ids.iter().map(|device| device.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn nonsense_is_refused() {
    use std::io::{Read as _, Write as _};
    let cluster = Cluster::new("mn-nonsense");
    let _daemon = cluster.daemon();
    for nonsense in [&b"tea\n"[..], b"{\"version\":2}\n", &[b' '; node_api::line::MAX_MESSAGE + 2]]
    {
        let mut stream = std::os::unix::net::UnixStream::connect(cluster.socket()).unwrap();
        // The daemon may refuse before it has read everything.
        let _ = stream.write_all(nonsense);
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        if let Ok(answer) = Answer::from_line(&said) {
            assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
        }
    }
    // The daemon may not have received the API server's latest objects.
    wait_for("an answer", || (cluster.ask(&Request::Status).unwrap() == Answer::Ok).then_some(()));
}

#[test]
fn pods_of_the_system_cost_no_status_and_what_is_gone_is_forgotten() {
    let cluster = Cluster::new("mn-system");
    let make = |namespace: &str, name: &str| {
        let made = cluster.api.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n1"},
            "metadata": {"namespace": namespace, "name": name},
        }));
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let (system, other) = (make("kube-system", "dns"), make("ns", "p"));
    let _daemon = cluster.daemon();
    let tell = |namespace: &str, name: &str, uid: &str| {
        let mut told = attached(name, uid);
        told.pod.namespace = namespace.into();
        told.results.truncate(1);
        told.sandbox.netns = cluster.dir.join("no-such-namespace").display().to_string();
        assert_eq!(cluster.ask(&Request::Attached(told)).unwrap(), Answer::Ok);
    };
    tell("kube-system", "dns", &system);
    tell("ns", "p", &other);
    wait_for("the other's status", || cluster.status("p"));
    let written = cluster.api.asked().into_iter().filter(|asked| asked.resource == "pods/status");
    assert_eq!(written.filter(|asked| asked.namespace == "kube-system").count(), 0);
    // The DEL of these pods never arrives.
    cluster.api.remove("pods", "ns", "p");
    cluster.api.remove("pods", "kube-system", "dns");
    wait_for("both to be forgotten", || {
        let mut left = std::fs::read_dir(cluster.dir.join("run/multinet/sandboxes")).unwrap();
        left.next().is_none().then_some(())
    });
}

/// The requests to the server, which equal those of Kubernetes' own clients.
#[test]
fn golden_requests() {
    let cluster = Cluster::new("mn-golden");
    cluster.define("ns", "a", BRIDGE);
    let uid = cluster.pod("p", Some("a"));
    let _daemon = cluster.daemon();
    cluster.api.wait_until("both watches", |api| {
        api.asked().iter().filter(|asked| asked.verb == "watch").count() == 2
    });
    for file in ["pods/ns%2Fp.json", "definitions/ns%2Fa.json"] {
        let path = cluster.dir.join("lib/multinet").join(file);
        wait_for(file, || path.exists().then_some(()));
    }
    cluster.planned("p", &uid);
    assert_eq!(cluster.ask(&Request::Attached(attached("p", &uid))).unwrap(), Answer::Ok);
    assert!(cluster.plan("nobody", "7").is_err());
    let lines = || -> Vec<String> {
        let plain = |line: String| {
            let mut words: Vec<_> = line.split('&').map(str::to_owned).collect();
            for word in &mut words {
                if word.starts_with("resourceVersion=") && word != "resourceVersion=0" {
                    *word = "resourceVersion=N".to_owned();
                }
            }
            words.join("&")
        };
        let mut all: Vec<_> =
            cluster.api.asked().into_iter().map(|asked| plain(asked.line)).collect();
        all.sort();
        all.dedup();
        all
    };
    let wanted = [
        "GET /api/v1/namespaces/ns/pods/nobody",
        "GET /api/v1/pods?&fieldSelector=spec.nodeName%3Dn1&limit=200",
        "GET /api/v1/pods?&watch=true&timeoutSeconds=290&fieldSelector=spec.nodeName%3Dn1&allowWatchBookmarks=true&resourceVersion=N",
        "GET /apis/k8s.cni.cncf.io/v1/network-attachment-definitions?&limit=200",
        "GET /apis/k8s.cni.cncf.io/v1/network-attachment-definitions?&watch=true&timeoutSeconds=290&allowWatchBookmarks=true&resourceVersion=N",
        "PATCH /api/v1/namespaces/ns/pods/p/status?&fieldManager=netwrightd-multinet",
        "POST /api/v1/namespaces/ns/events?&fieldManager=netwrightd-multinet",
    ];
    wait_for("all of them", || {
        let lines = lines();
        assert!(lines.len() <= wanted.len(), "{lines:#?}");
        (lines.len() == wanted.len()).then_some(())
    });
    assert_eq!(lines(), wanted);
    let asked = cluster.api.asked();
    let patch = asked.iter().find(|asked| asked.verb == "patch").unwrap();
    assert_eq!(patch.content_type, "application/merge-patch+json");
    let body: serde_json::Value = serde_json::from_str(&patch.body).unwrap();
    assert_eq!(body["metadata"]["uid"], uid);
}

/// The server disappears without closing the connection. A watch without events is usual, so the
/// connection itself must detect it. The daemon knows what changed meanwhile soon after the server
/// is back.
#[test]
fn a_server_that_is_gone_without_a_word_is_noticed_and_heard_again() {
    testkit::require!("root", "program:nft");
    let cluster = Cluster::new("mn-half-open");
    cluster.define("ns", "a", BRIDGE);
    let uid = cluster.pod("p", Some("a"));
    let daemon = cluster.daemon();
    let mtu = || {
        let plan = cluster.planned("p", &uid);
        plan.networks[1].list.as_ref().unwrap().get("plugins").unwrap().get().contains("1342")
    };
    assert!(!mtu());
    wait_for("the watches", || {
        let watches = |asked: &testkit::kube::LoggedRequest| asked.verb == "watch";
        (2 <= cluster.api.asked().iter().filter(|asked| watches(asked)).count()).then_some(())
    });
    let url = cluster.api.url();
    let port = url.rsplit(':').next().unwrap();
    cluster.lab.sh(&format!(
        "nft 'table inet cut {{ chain input {{ type filter hook input priority 0; \
         tcp dport {port} drop; tcp sport {port} drop; }}; }}'"
    ));
    let changed = BRIDGE.replace("\"type\":\"bridge\"", "\"type\":\"bridge\",\"mtu\":1342");
    let by = json!({"spec": {"config": changed}});
    cluster.api.change("network-attachment-definitions", "ns", "a", &by);
    let since = std::time::Instant::now();
    wait_for("the loss to be noticed", || {
        daemon
            .service
            .log()
            .contains("no changes arrive; the last known state is used")
            .then_some(())
    });
    let noticed = since.elapsed();
    cluster.lab.sh("nft delete table inet cut");
    let since = std::time::Instant::now();
    wait_for("the change", || mtu().then_some(()));
    eprintln!(
        "MEASURED an API server gone without a word: noticed after {:.1} s (wanted 30), heard again {:.1} s after its return",
        noticed.as_secs_f64(),
        since.elapsed().as_secs_f64()
    );
}
