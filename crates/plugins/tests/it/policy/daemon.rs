//! What the plugin requests from the daemon, and what it does without one.

use std::time::Duration;

use node_api::policy::{Answer, Enforcement, Owner, Request};
use node_api::{Message, Pod as Named, Refusal};
use serde_json::json;
use state::Index;

use super::{Pod, closed, links, verdicts};
use crate::support::Node;
use crate::support::listener::{Listener, Reply};
use crate::support::ready::Ready;

/// How often the daemon may answer too late because the machine is busy.
const TRIES: usize = 10;

/// The `CNI_ARGS` of kubelet.
const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=uid-1";

fn says(answer: &Answer) -> Reply {
    Reply::Writes(answer.to_line().unwrap())
}

/// Starts a stand-in that gives this reply.
fn daemon(
    node: &Node,
    script: impl FnMut(&Request) -> Reply + Send + 'static,
) -> Listener<Request> {
    let socket = node.roots.run.join("policy.sock");
    Listener::start(socket, |line| Request::from_line(line).ok(), script)
}

/// A daemon that does what it is asked, but writes no verdicts.
fn obliging(request: &Request) -> Reply {
    says(&match request {
        Request::Start(_) | Request::Verdicts(_) => {
            Answer::Enforced(Enforcement { known: true, notice: None })
        }
        Request::End(_) | Request::Collect(_) | Request::Status(_) => Answer::Ok,
    })
}

/// The requests that it receives, and what is on the node by then.
#[test]
fn what_the_daemon_hears_and_when() {
    testkit::require!("root");
    let node = Node::new("policy-hears");
    let c1 = Pod::new(&node, "c1", "ptp");
    let (index, key) = (Index::new(&node.roots), c1.key());
    let daemon = daemon(&node, move |request| {
        // The record exists already when an ADD asks the daemon, and still exists when a DEL does.
        let is_recorded = index.get(&key, "policy").found.is_some();
        assert!(is_recorded || matches!(request, Request::Status(_)), "{request:?}");
        obliging(request)
    });
    let labels = json!({ "args": { "cni": { "labels": [{ "key": "app", "value": "web" }, { "key": "a", "value": "" }] } } });
    let run = |verb| c1.policy(verb).args(POD).config(labels.clone());
    let answer = run("ADD").call();
    assert_eq!(answer.stderr(), "");
    let owner = Owner {
        network: "n".to_owned(),
        container: "c1".to_owned(),
        ifname: "eth0".to_owned(),
        netns: c1.c.netns().display().to_string(),
        pod: Some(Named { namespace: "ns".into(), name: "web-0".into(), uid: "uid-1".into() }),
    };
    let heard = daemon.heard();
    let [Request::Start(started)] = heard.as_slice() else { panic!("{heard:?}") };
    assert_eq!(started.owner, owner);
    let addresses: Vec<String> = started.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, c1.addresses());
    assert_eq!(started.interface, Some(c1.host_ifname()));
    let labels: Vec<String> =
        started.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(labels, ["a=", "app=web"]);
    assert_eq!(c1.recorded().unwrap().started, *started);
    // By then the addresses are closed: this daemon has changed nothing.
    assert_eq!(verdicts(&node), closed(&c1));

    run("CHECK").call().silent();
    assert_eq!(daemon.heard(), [Request::Verdicts(owner.clone())]);
    node.run("policy", "STATUS").of_network().call().silent();
    node.run("policy", "GC").of_network().valid(&[("c1", "eth0")]).call().silent();
    let heard = daemon.heard();
    let [Request::Status(status), Request::Collect(collect)] = heard.as_slice() else {
        panic!("{heard:?}")
    };
    assert_eq!((status.network.as_str(), collect.network.as_str()), ("n", "n"));
    // DEL gets a prevResult that differs from what ADD recorded: DEL uses the record.
    c1.policy("DEL").netns("").call().silent();
    assert_eq!(daemon.heard(), [Request::End(owner)]);
    assert_eq!((c1.recorded(), links(&node)), (None, String::new()));
    assert!(!node.sh(&format!("ip link show {}", c1.host_ifname())).contains(",UP"));
    // The second DEL has nothing to report to the daemon.
    c1.del();
    assert_eq!(daemon.heard(), []);
}

/// Whatever the daemon does instead of giving an answer, the container is closed, and ADD succeeds.
#[test]
fn a_daemon_that_does_not_answer_leaves_the_container_closed() {
    testkit::require!("root");
    let node = Node::new("policy-silent");
    let c2 = Pod::new(&node, "c2", "ptp");
    let nonsense = |text: &str| Reply::Writes(text.as_bytes().to_vec());
    let unknown =
        Enforcement { known: false, notice: Some("the pod is not in the API".to_owned()) };
    for (name, reply, words) in [
        ("silence", Reply::KeepsSilent, "no answer on"),
        ("death", Reply::Dies, "it closed the connection"),
        ("nonsense", nonsense("tea\n"), "is not valid"),
        ("another version", nonsense("{\"version\":2,\"ok\":{}}\n"), "version 2"),
        ("another question", says(&Answer::Ok), "answered another question"),
        ("a refusal", says(&Answer::Refused(Refusal::for_now("not now"))), "not now"),
        ("an unknown pod", says(&Answer::Enforced(unknown)), "the pod is not in the API"),
    ] {
        let c1 = Pod::new(&node, "c1", "ptp");
        let daemon = daemon(&node, move |_| reply.clone());
        // On a busy machine no answer may come in time.
        let told = (0..TRIES).map(|_| c1.add()).find(|told| told.contains(words));
        let told = told.unwrap_or_else(|| panic!("{name}: it is not told"));
        assert!(told.contains("only this node reaches the container"), "{name}: {told}");
        assert_eq!(verdicts(&node), closed(&c1), "{name}");
        c1.assert_closed(&[&c2]);
        let heard = daemon.heard();
        assert!(heard.iter().all(|request| matches!(request, Request::Start(_))), "{heard:?}");
        // DEL also works without the daemon.
        let answer = c1.policy("DEL").call();
        assert!(answer.succeeded(), "{name}: {answer:?}");
        let left = if name == "another question" { closed(&c1) } else { Vec::new() };
        assert_eq!((verdicts(&node), links(&node)), (left, String::new()), "{name}");
        c1.detach();
        drop(daemon);
        node.run("policy", "GC").of_network().valid(&[("c2", "eth0")]).call().silent();
        assert_eq!(verdicts(&node), Vec::<String>::new(), "{name}");
    }
}

/// If the daemon was ready a moment ago and is killed with the request, the plugin asks again.
#[test]
fn a_daemon_that_is_killed_is_asked_again() {
    testkit::require!("root");
    let node = Node::new("policy-again");
    let c1 = Pod::new(&node, "c1", "ptp");
    let mut asked = 0;
    let daemon = daemon(&node, move |request| {
        asked += 1;
        if asked % 2 == 1 { Reply::Dies } else { obliging(request) }
    });
    let ready = Ready::of(&node.roots.run.join("policy.sock"));
    ready.said_before(Duration::from_secs(1));
    // On a busy machine the time may be over.
    let is_asked_again = |_| {
        let (told, heard) = (c1.add(), daemon.heard());
        told.is_empty() && heard.len() == 2
    };
    assert!((0..TRIES).any(is_asked_again));
    // If no daemon is known to have been ready, the plugin asks once.
    ready.says("");
    let told = c1.add();
    assert!(told.contains("it closed the connection"), "{told}");
    assert_eq!(daemon.heard().len(), 1);
}

/// The deadline of a call limits the wait for the daemon too.
#[test]
fn a_call_that_has_no_time_left_closes_at_once() {
    testkit::require!("root");
    let node = Node::new("policy-late");
    let c1 = Pod::new(&node, "c1", "ptp");
    let daemon = daemon(&node, |_| Reply::KeepsSilent);
    let answer = c1.policy("ADD").deadline(Duration::from_millis(300)).call();
    assert!(answer.succeeded(), "{answer:?}");
    assert_eq!(verdicts(&node), closed(&c1));
    daemon.forget();
}

/// CHECK reports what the daemon says about verdicts. A repair makes the daemon write them again.
#[test]
fn the_daemon_judges_what_check_finds() {
    testkit::require!("root");
    let node = Node::new("policy-judges");
    let c1 = Pod::new(&node, "c1", "ptp");
    c1.add();
    let mut repaired = false;
    let daemon = daemon(&node, move |request| match request {
        Request::Start(_) => {
            repaired = true;
            obliging(request)
        }
        Request::Verdicts(_) if !repaired => {
            says(&Answer::Refused(Refusal::new(104, "10.1.0.2 leads elsewhere")))
        }
        _ => obliging(request),
    });
    c1.policy("CHECK").call().fails(104, "10.1.0.2 leads elsewhere");
    let restored = c1.repair();
    assert_eq!(restored.len(), 1, "{restored:?}");
    assert!(restored[0].starts_with("verdicts of network policy for 10.1.0.2"), "{restored:?}");
    c1.check();
    // An address that no policy selects rightly has no verdict.
    daemon.heard();
    node.sh("nft delete table inet netwright-policy");
    c1.check();
    drop(daemon);
    c1.policy("CHECK").call().fails(104, "no verdicts of network policy");
    let daemon = self::daemon(&node, |_| says(&Answer::Refused(Refusal::for_now("busy"))));
    c1.policy("CHECK").call().fails(11, "busy");
    drop(daemon);
}

/// A daemon that is missing, or does not know its policies, is tolerated for a while, as one that is
/// being replaced.
#[test]
fn status_says_whether_pods_would_be_judged() {
    testkit::require!("root");
    let node = Node::new("policy-status");
    let status = || node.run("policy", "STATUS").of_network().call();
    status().fails(50, "netwrightd does not answer");
    let ready = Ready::of(&node.roots.run.join("policy.sock"));
    ready.said_before(Duration::from_secs(30));
    status().silent();
    ready.said_before(Duration::from_secs(600));
    let another = Answer::Enforced(Enforcement::default());
    for (reply, words) in [
        (
            says(&Answer::Refused(Refusal::for_now("the API does not answer"))),
            "the API does not answer",
        ),
        (says(&another), "answered another question"),
        (Reply::KeepsSilent, "no answer on"),
    ] {
        let daemon = daemon(&node, move |_| reply.clone());
        status().fails(50, words);
        drop(daemon);
    }
    // One that lists its policies again after a start counts as one that is being replaced.
    ready.said_before(Duration::from_secs(30));
    let lists = Answer::Refused(Refusal::for_now("networkpolicies are being listed"));
    let daemon = self::daemon(&node, move |_| says(&lists));
    status().silent();
    ready.said_before(Duration::from_secs(600));
    status().fails(50, "networkpolicies are being listed");
    drop(daemon);
    let daemon = self::daemon(&node, obliging);
    status().silent();
    drop(daemon);
}
