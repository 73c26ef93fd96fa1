//! A daemon that is away, silent or killed, and records that are lost.

use std::fs;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use node_api::Refusal;
use node_api::client::START_TIMEOUT;
use node_api::multinet::{Answer, Plan, Request};
use serde_json::{Value, json};

use super::{bare, bridge, conf, default, links, list, node, planned, pod};
use crate::support::matrix::addresses;
use crate::support::multinet::{self, Daemon, Reply, left};
use crate::support::ready::Ready;

#[test]
fn without_a_daemon_a_pod_is_told_to_try_again() {
    testkit::require!("root");
    let node = node("pod-alone");
    let c1 = node.container("c1");
    let words =
        "pod ns/web-0: netwrightd does not say which networks the pod is to have: connect to";
    pod(&node, "ADD", &c1).deadline(Duration::from_secs(5)).call().fails(11, words);
    // The same with a socket that stayed behind.
    fs::create_dir_all(&node.roots.run).unwrap();
    drop(UnixListener::bind(multinet::socket(&node)).unwrap());
    pod(&node, "ADD", &c1).deadline(Duration::from_secs(5)).call().fails(11, words);
    assert_eq!((links(&c1), addresses(&node).as_str()), (vec![], ""));
    bare(&node, "STATUS", &c1).call().fails(50, "netwrightd does not answer");
}

/// The daemon is gone for good, and its configuration stayed. Pods that request no network start on
/// the cluster's own network. The others fail with a sentence that says what to do.
#[test]
fn without_a_daemon_plain_pods_start_and_no_pod_gets_half() {
    testkit::require!("root");
    let node = node("pod-plain");
    let c1 = node.container("c1");
    let with = |annotations: &Value| {
        json!({
            "plainPodsWithoutDaemon": true,
            "runtimeConfig": { "io.kubernetes.cri.pod-annotations": annotations },
        })
    };
    let add = |more: &Value| pod(&node, "ADD", &c1).config(more.clone()).call();
    let begin = Instant::now();
    for asks in [
        json!({ "k8s.v1.cni.cncf.io/networks": "lan" }),
        json!({ "kubernetes.v1.cni.cncf.io/networks": "lan" }),
        json!({ "networks": "[{\"name\": \"lan\"}]" }),
        json!({ "k8s.v1.cni.cncf.io/networks": ",," }),
        json!({ "v1.multus-cni.io/default-network": "other" }),
        json!(["a"]),
    ] {
        pod(&node, "ADD", &c1).config(with(&asks)).deadline(Duration::from_secs(5)).call().fails(
            11,
            "remove its 00-netwright.conflist, and pods start on the cluster's own network",
        );
        assert_eq!((links(&c1), addresses(&node).as_str()), (vec![], ""), "{asks}");
    }
    let asks_nothing =
        json!({ "team": "a", "k8s.v1.cni.cncf.io/networks": " ", "networks": "any" });
    let mut all_pods = with(&asks_nothing);
    all_pods["defaultNetworks"] = json!(["storage"]);
    pod(&node, "ADD", &c1)
        .config(all_pods)
        .deadline(Duration::from_secs(5))
        .call()
        .fails(11, "start");
    // The runtime does not name its capabilities.
    let mut unsaid = with(&asks_nothing);
    unsaid["runtimeConfig"] = json!({});
    pod(&node, "ADD", &c1)
        .config(unsaid)
        .deadline(Duration::from_secs(5))
        .call()
        .fails(11, "start");
    let waited = begin.elapsed();
    add(&with(&asks_nothing)).ok();
    assert!(
        begin.elapsed() - waited < Duration::from_secs(5),
        "a daemon that is gone is not waited for"
    );
    assert_eq!(links(&c1), ["eth0"]);
    assert!(
        matches!(left(&node).as_slice(), [Request::Attached(_)]),
        "the next daemon hears of it"
    );
    bare(&node, "STATUS", &c1).config(json!({ "plainPodsWithoutDaemon": true })).call().silent();
    pod(&node, "DEL", &c1).call().silent();
    assert_eq!((links(&c1), addresses(&node).as_str()), (vec![], ""));
    add(&with(&json!(null))).ok();
    pod(&node, "DEL", &c1).call().silent();
    // Without its network on the node, no pod can start.
    let gone = json!({ "plainPodsWithoutDaemon": true, "clusterNetwork": "nowhere" });
    bare(&node, "STATUS", &c1).config(gone).call().fails(50, "netwrightd does not answer");
    // If a daemon answers, it decides.
    let refuse = |_: &Request| Answer::Refused(Refusal::for_now("nothing is known")).into();
    let _daemon = Daemon::start(&node, refuse);
    add(&with(&asks_nothing)).fails(11, "nothing is known");
}

/// Without `netwrightd policy` new pods would be closed. That reaches the runtime through the plugin,
/// even where pods start without the daemon.
#[test]
fn status_of_the_default_networks_policy_reaches_the_runtime() {
    testkit::require!("root");
    let node = node("pod-closed");
    let c1 = node.container("c1");
    let socket = node.dir("policy").join("policy.sock");
    let policy = json!({ "type": "policy", "socketpath": socket });
    let mut cluster = list("cluster", json!([bridge(&node, 1), policy]));
    cluster["cniVersion"] = json!("1.0.0");
    let status =
        || bare(&node, "STATUS", &c1).config(json!({ "plainPodsWithoutDaemon": true })).call();
    conf(&node, "50-cluster.conflist", &cluster);
    // A list of version 1.0.0 has no STATUS.
    status().silent();
    cluster["cniVersions"] = json!(["1.0.0", "1.1.0"]);
    conf(&node, "50-cluster.conflist", &cluster);
    status().fails(50, "network \"cluster\"");
    Ready::of(&socket).said_before(Duration::from_secs(5));
    status().silent();
    Ready::of(&socket).said_before(Duration::from_secs(61));
    status().fails(50, "netwrightd does not answer");
}

/// A daemon that is being replaced does not make the node "not ready"; one that stays away does.
#[test]
fn status_bears_a_daemon_that_is_away_for_a_moment() {
    testkit::require!("root");
    let node = node("pod-away");
    let c1 = node.container("c1");
    let status = || bare(&node, "STATUS", &c1).call();
    let ready = Ready::of(&multinet::socket(&node));
    ready.said_before(Duration::from_secs(5));
    status().silent();
    // The same with a socket that stayed behind, or a daemon that closes the connection.
    drop(UnixListener::bind(multinet::socket(&node)).unwrap());
    status().silent();
    for age in [61, 3600] {
        ready.said_before(Duration::from_secs(age));
        status().fails(50, "netwrightd does not answer");
    }
    for nonsense in ["", "soon", "99999999999999", "-1"] {
        ready.says(nonsense);
        status().fails(50, "netwrightd does not answer");
    }
    // The daemon's present answer is valid, whatever it said before.
    ready.said_before(Duration::ZERO);
    fs::remove_file(multinet::socket(&node)).unwrap();
    let refuse = |_: &Request| Answer::Refused(Refusal::for_now("nothing is known")).into();
    let _daemon = Daemon::start(&node, refuse);
    status().fails(50, "nothing is known");
}

/// Kubelet would wait for each pod, for as long as the node lives.
#[test]
fn a_daemon_that_is_gone_is_not_waited_for() {
    testkit::require!("root");
    let node = node("pod-gone");
    let c1 = node.container("c1");
    Ready::of(&multinet::socket(&node)).said_before(Duration::from_secs(61));
    let begin = Instant::now();
    pod(&node, "ADD", &c1).call().fails(11, "remove its 00-netwright.conflist");
    assert!(begin.elapsed() < START_TIMEOUT, "it waited for {:?}", begin.elapsed());
    assert_eq!((links(&c1), addresses(&node).as_str()), (vec![], ""));
}

#[test]
fn a_daemon_that_comes_is_waited_for() {
    testkit::require!("root");
    let node = node("pod-comes");
    let c1 = node.container("c1");
    Ready::of(&multinet::socket(&node)).said_before(Duration::from_secs(5));
    std::thread::scope(|scope| {
        let added = scope.spawn(|| pod(&node, "ADD", &c1).call().ok());
        let daemon = Daemon::planning(&node, vec![default()]);
        added.join().unwrap();
        assert_eq!(daemon.words(), ["plan", "attached"]);
    });
}

#[test]
fn a_daemon_that_keeps_silent_is_not_waited_for_longer_than_there_is_time() {
    testkit::require!("root");
    let node = node("pod-silent");
    let c1 = node.container("c1");
    let _daemon = Daemon::start(&node, |_| Reply::KeepsSilent);
    pod(&node, "ADD", &c1).deadline(Duration::from_secs(6)).call().fails(11, "within");
    assert_eq!(links(&c1), [""; 0]);
    bare(&node, "STATUS", &c1).call().fails(50, "netwrightd does not answer");
    drop(_daemon);
    let silent_later = |request: &Request| match request {
        Request::Plan(_) => plan(),
        Request::Attached(_) => Answer::Ok.into(),
        _ => Reply::KeepsSilent,
    };
    let _daemon = Daemon::start(&node, silent_later);
    pod(&node, "ADD", &c1).call().ok();
    pod(&node, "DEL", &c1).call().silent();
    assert!(matches!(left(&node).as_slice(), [Request::Detached(_)]));
    assert_eq!((links(&c1), addresses(&node).as_str()), (vec![], ""));
}

fn plan() -> Reply {
    Answer::Plan(Plan { uid: "uid-1".to_owned(), networks: vec![default()] }).into()
}

#[test]
fn a_daemon_killed_at_any_message_loses_nothing() {
    testkit::require!("root");
    let node = node("pod-killed");
    let c1 = node.container("c1");
    let dies_at = |word: fn(&Request) -> bool| {
        Daemon::start(&node, move |request| match request {
            _ if word(request) => Reply::Dies,
            Request::Plan(_) => plan(),
            _ => Answer::Ok.into(),
        })
    };
    // The daemon dies when asked for the plan: ADD makes nothing, and kubelet tries again.
    let daemon = dies_at(|request| matches!(request, Request::Plan(_)));
    pod(&node, "ADD", &c1).call().fails(11, "no answer on");
    assert_eq!((links(&c1), addresses(&node).as_str(), left(&node)), (vec![], "", vec![]));
    drop(daemon);
    // It dies at the report of the attachments: the networks exist, and the daemon will find that
    // out.
    let daemon = dies_at(|request| matches!(request, Request::Attached(_)));
    pod(&node, "ADD", &c1).call().ok();
    drop(daemon);
    let found = left(&node);
    let [Request::Attached(attached)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((attached.pod.uid.as_str(), attached.results.len()), ("uid-1", 1));
    // It dies at the report that the pod is gone: the inbox has this report, in place of those that
    // it did not get before.
    let daemon = dies_at(|request| matches!(request, Request::Detached(_)));
    pod(&node, "DEL", &c1).call().silent();
    drop(daemon);
    let found = left(&node);
    let [Request::Detached(detached)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(detached.pod.as_ref().unwrap().name, "web-0");
    assert_eq!((links(&c1), addresses(&node).as_str()), (vec![], ""));
    // It dies at the report that ADD failed.
    node.stub("broken", r#"echo '{"cniVersion":"1.1.0","code":50,"msg":"not today"}'; exit 1"#);
    let sick = planned("ns/sick", &list("sick", json!([{ "type": "broken" }])));
    let daemon = Daemon::start(&node, move |request| match request {
        Request::Plan(_) => {
            let networks = vec![default(), sick.clone()];
            Answer::Plan(Plan { uid: String::new(), networks }).into()
        }
        _ => Reply::Dies,
    });
    pod(&node, "ADD", &c1).call().fails(50, "not today");
    drop(daemon);
    assert!(matches!(left(&node).as_slice(), [Request::Failed(_)]));
}

#[test]
fn what_the_daemon_refuses_is_refused_in_its_words() {
    testkit::require!("root");
    let node = node("pod-refused");
    let c1 = node.container("c1");
    let refusal =
        Refusal::new(7, "annotation k8s.v1.cni.cncf.io/networks: no").with_details("say it so");
    let refuses = refusal.clone();
    let daemon = Daemon::start(&node, move |_| Answer::Refused(refuses.clone()).into());
    let error = pod(&node, "ADD", &c1).call().error();
    assert_eq!((error.code, error.details.as_str()), (7, "say it so"));
    assert_eq!(error.msg, "pod ns/web-0: annotation k8s.v1.cni.cncf.io/networks: no");
    // The daemon that refused gets no report of the failure.
    assert_eq!(daemon.words(), ["plan"]);
    drop(daemon);
    // ADD undoes what the daemon refuses after it was attached.
    let daemon = Daemon::start(&node, move |request| match request {
        Request::Plan(_) => plan(),
        Request::Attached(_) => Answer::Refused(refusal.clone()).into(),
        _ => Answer::Ok.into(),
    });
    pod(&node, "ADD", &c1).call().fails(7, "annotation k8s.v1.cni.cncf.io/networks: no");
    assert_eq!(daemon.words(), ["plan", "attached", "failed"]);
    assert_eq!((links(&c1), addresses(&node).as_str()), (vec![], ""));
}

#[test]
fn del_needs_nothing_but_the_key() {
    testkit::require!("root");
    let node = node("pod-key");
    let blue = planned("ns/blue", &list("blue", json!([bridge(&node, 2)])));
    let c1 = node.container("c1");
    let add = || {
        let daemon = Daemon::planning(&node, vec![default(), blue.clone()]);
        pod(&node, "ADD", &c1).call().ok();
        assert_eq!(links(&c1), ["eth0", "net1"]);
        drop(daemon);
    };
    let gone = || {
        assert_eq!((links(&c1), addresses(&node).as_str()), (vec![], ""));
        let ports = node.sh("ip -o link show | grep -c veth || true");
        assert_eq!(ports.trim(), "0");
    };
    // There are no daemon, no arguments, and no networks on the node.
    add();
    fs::rename(node.dir("net.d"), node.lab.dir().join("elsewhere")).unwrap();
    bare(&node, "DEL", &c1).call().silent();
    gone();
    fs::remove_dir(node.dir("net.d")).unwrap();
    fs::rename(node.lab.dir().join("elsewhere"), node.dir("net.d")).unwrap();
    // The configuration is no longer valid.
    add();
    bare(&node, "DEL", &c1)
        .without("clusterNetwork")
        .config(json!({ "globalNamespaces": 5 }))
        .call()
        .silent();
    gone();
    // The record is lost: the folder has the networks.
    add();
    fs::remove_dir_all(node.roots.run.join("owners")).unwrap();
    bare(&node, "DEL", &c1).call().silent();
    gone();
    // The folder is lost, and the record has the default network, which the node has.
    add();
    fs::remove_dir_all(node.roots.lib.join("netwright-multi")).unwrap();
    bare(&node, "DEL", &c1).call().silent();
    bare(&node, "DEL", &c1).call().silent();
    bare(&node, "DEL", &c1).netns("").call().silent();
    // Nothing ever existed.
    bare(&node, "DEL", &c1)
        .id("never")
        .netns("")
        .config(json!({ "clusterNetwork": "nowhere" }))
        .call()
        .silent();
}

#[test]
fn the_default_network_is_waited_for() {
    testkit::require!("root");
    let node = node("pod-ready");
    let c1 = node.container("c1");
    let file = node.dir("ready").join("indicator");
    let call =
        |verb: &str| bare(&node, verb, &c1).config(json!({ "readinessindicatorfile": file }));
    call("STATUS").call().fails(50, "the default network is not ready");
    call("ADD").deadline(Duration::ZERO).call().fails(11, "the default network is not ready");
    std::thread::scope(|scope| {
        let added = scope.spawn(|| call("ADD").call().ok());
        fs::write(&file, "").unwrap();
        added.join().unwrap();
    });
    assert_eq!(links(&c1), ["eth0"]);
}
