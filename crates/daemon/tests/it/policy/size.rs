//! What many policies and pods cost. Every run counts messages, and `--full` measures times.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Place as _, RunningProgram, feature, wait_until};

use super::{Cluster, PORT, Pod, allow, object};

/// The service's messages to the kernel, as strace prints them.
struct Trace {
    log: PathBuf,
    pid: String,
    _strace: RunningProgram,
}

/// The messages of one act, by kind.
type Counts = BTreeMap<&'static str, usize>;

/// The messages that change the packet filter (`linux include/uapi/linux/netfilter/nf_tables.h`).
const KINDS: [&str; 11] = [
    "NFT_MSG_NEWTABLE",
    "NFT_MSG_NEWCHAIN",
    "NFT_MSG_DELCHAIN",
    "NFT_MSG_NEWRULE",
    "NFT_MSG_DELRULE",
    "NFT_MSG_NEWSET",
    "NFT_MSG_DELSET",
    "NFT_MSG_NEWSETELEM",
    "NFT_MSG_DELSETELEM",
    "NFT_MSG_GETSETELEM",
    "NFNL_MSG_BATCH_BEGIN",
];

impl Trace {
    fn of(cluster: &Cluster) -> Self {
        let log = cluster.node.lab.dir().join("trace");
        let pid = cluster.service.as_ref().unwrap().pid().to_string();
        let mut command = cluster.node.lab.command("strace");
        command.args(["-f", "-v", "-s", "100000", "-qq", "-e", "signal=none", "-e"]);
        command.arg("trace=sendto,sendmsg,?epoll_wait,?epoll_pwait,?epoll_pwait2");
        command.arg("-o").arg(&log).args(["-p", &pid]).stdin(Stdio::null());
        let strace = RunningProgram::from(command.spawn().unwrap());
        let trace = Trace { log, pid, _strace: strace };
        wait_until("the loop to wait under strace", || trace.is_idle());
        trace
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Says whether the service's loop waits: its last call in the trace has not returned.
    fn is_idle(&self) -> bool {
        let text = self.text();
        let of_loop = |line: &&str| line.split_whitespace().next() == Some(self.pid.as_str());
        let last = text.lines().rfind(of_loop);
        last.is_some_and(|line| line.contains("epoll_") && !line.contains(" = "))
    }

    /// Counts the messages that the loop sends from an act until `is_done` holds and the loop waits
    /// again.
    fn count(&self, what: &str, act: impl FnOnce(), is_done: impl FnMut() -> bool) -> Counts {
        let before = self.text().len();
        act();
        wait_until(what, is_done);
        wait_until("the loop to wait again", || self.is_idle());
        let text = self.text().split_off(before);
        let of_loop: Vec<&str> = text
            .lines()
            .filter(|line| line.split_whitespace().next() == Some(self.pid.as_str()))
            .collect();
        let count = |kind: &str| of_loop.iter().map(|line| line.matches(kind).count()).sum();
        KINDS.iter().map(|kind| (*kind, count(kind))).filter(|(_, count)| 0 < *count).collect()
    }
}

/// A policy that does not concern this node.
fn elsewhere(number: usize) -> Value {
    let name = format!("other-{number}");
    let mut policy = allow(&name, &name, &[&format!("{name}-client")]);
    policy["metadata"]["namespace"] = json!("elsewhere");
    policy
}

/// A pod of another node.
fn far(name: &str, app: &str, address: &str) -> Value {
    let mut pod = object(name, name, "n2");
    pod["metadata"]["labels"] = json!({"app": app});
    pod["status"] = json!({"podIP": address});
    pod
}

/// The address of another node's pod. The container of the other nodes sends from it.
const FAR: &str = "10.64.0.200";

/// Gives that address to the container of the other nodes.
fn be_far(cluster: &Cluster) {
    let [node, _] = super::NODE;
    cluster
        .others
        .sh(&format!("ip addr add {FAR}/32 dev lo; ip route add 10.0.0.0/16 via {node} src {FAR}"));
}

/// Reports whether that pod reaches one of this node.
fn far_reaches(cluster: &Cluster, to: &Pod) -> bool {
    let v4 = to.addresses.iter().find(|address| address.is_ipv4()).unwrap();
    let at = SocketAddr::new(*v4, PORT);
    let connect = || TcpStream::connect_timeout(&at, Duration::from_millis(5));
    cluster.others.enter(connect).is_ok_and(|stream| {
        assert_eq!(stream.local_addr().unwrap().ip().to_string(), FAR);
        true
    })
}

fn relabel(cluster: &Cluster, name: &str, app: &str) {
    cluster.api.change("pods", "shop", name, &json!({"metadata": {"labels": {"app": app}}}));
}

/// The cost of one act of each kind, with this many policies.
fn costs(policies: usize) -> Vec<(&'static str, Counts)> {
    let mut cluster = Cluster::new(&format!("policy-size-{policies}"));
    for number in 0..policies {
        cluster.api.create(&elsewhere(number));
    }
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.api.create(&allow("cache", "cache", &["web", "db"]));
    cluster.api.create(&far("far", "none", FAR));
    be_far(&cluster);
    cluster.start();
    let [db, _cache] = ["db", "cache"].map(|name| cluster.pod(name));
    let trace = Trace::of(&cluster);
    let mut all = Vec::new();
    all.push((
        "a pod of another node gets a label",
        trace.count("the label", || relabel(&cluster, "far", "web"), || far_reaches(&cluster, &db)),
    ));
    all.push((
        "it loses it",
        trace.count(
            "the loss",
            || relabel(&cluster, "far", "none"),
            || !far_reaches(&cluster, &db),
        ),
    ));
    cluster.create("new");
    let mut pods = Vec::new();
    all.push((
        "a pod starts that no policy selects",
        trace.count("the pod", || pods.push(cluster.attach("new")), || true),
    ));
    let mut like = object("db-2", &super::uid("db-2"), "n1");
    like["metadata"]["labels"] = json!({"app": "db"});
    cluster.api.create(&like);
    all.push((
        "a pod starts that is like another one",
        trace.count("the pod", || pods.push(cluster.attach("db-2")), || true),
    ));
    let open = json!({"spec": {"ingress": [{}]}});
    let change = || cluster.api.change("networkpolicies", "shop", "db", &open);
    let policy = trace.count("the policy", change, || far_reaches(&cluster, &db));
    all.push(("a policy changes", policy));
    assert!(far_reaches(&cluster, &pods[1]));
    all
}

/// The messages for one change do not depend on the number of policies.
#[test]
fn a_change_costs_the_same_among_many_policies() {
    testkit::require!("root", "program:strace");
    let many = if feature::available("round:2/3") { 10_000 } else { 1_000 };
    let (few, many) = (costs(10), costs(many));
    for (what, counts) in &few {
        eprintln!("{what}: {counts:?}");
        assert!(counts.get("NFNL_MSG_BATCH_BEGIN").is_some_and(|count| 0 < *count), "{what}");
    }
    assert_eq!(few, many);
}

/// A policy that selects the pod `db`, with a selector of its own.
fn of_db(number: usize) -> Value {
    allow(&format!("db-{number}"), "db", &[&format!("client-{number}")])
}

/// The cost of a pod that so many policies select, and of one more like it.
fn costs_under(policies: usize) -> [Counts; 2] {
    let mut cluster = Cluster::new(&format!("policy-under-{policies}"));
    for number in 0..policies {
        cluster.api.create(&of_db(number));
    }
    cluster.api.create(&far("far", "client-3", FAR));
    be_far(&cluster);
    cluster.start();
    let mut like = object("db-2", &super::uid("db-2"), "n1");
    like["metadata"]["labels"] = json!({"app": "db"});
    cluster.create("db");
    cluster.api.create(&like);
    let trace = Trace::of(&cluster);
    let mut pods = Vec::new();
    let counts = ["db", "db-2"]
        .map(|name| trace.count("the pod", || pods.push(cluster.attach(name)), || true));
    for pod in &pods {
        assert!(far_reaches(&cluster, pod));
    }
    relabel(&cluster, "far", "client-none");
    wait_until("the peer to be none", || !far_reaches(&cluster, &pods[0]));
    relabel(&cluster, "far", "client-7");
    wait_until("the peer to be another one", || far_reaches(&cluster, &pods[1]));
    counts
}

/// How many sets, chains and rules were made. If the service lists the records at that moment, it
/// finds what the plugin has just closed, and repairs elements.
fn made(counts: &Counts) -> [usize; 3] {
    let of = |kind: &str| counts.get(kind).copied().unwrap_or_default();
    // The name of the one message begins with that of the other.
    let sets = of("NFT_MSG_NEWSET") - of("NFT_MSG_NEWSETELEM");
    [sets, of("NFT_MSG_NEWCHAIN"), of("NFT_MSG_NEWRULE")]
}

/// What a pod makes does not depend on how many policies select it.
#[test]
fn a_pod_costs_the_same_under_many_policies() {
    testkit::require!("root", "program:strace");
    let (few, many) = (costs_under(10), costs_under(1000));
    eprintln!("a pod: {few:?} under few policies, {many:?} under many");
    let [pod, like] = few.each_ref().map(made);
    assert_eq!((pod, like), ([4, 1, 5], [0, 0, 0]));
    assert_eq!(many.each_ref().map(made), [pod, like]);
}

/// Policies beyond what is enforced for one pod leave it closed, and an Event says so.
#[test]
fn a_pod_with_too_many_lists_of_ports_stays_closed() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-beyond");
    for number in 0..300_u16 {
        let mut policy = of_db(number.into());
        policy["spec"]["ingress"][0]["ports"] = json!([{"port": 7900 + number}]);
        cluster.api.create(&policy);
    }
    // Its policy is the one that opens the port of the pods' servers.
    let client = usize::from(PORT - 7900);
    cluster.api.create(&far("far", &format!("client-{client}"), FAR));
    be_far(&cluster);
    cluster.start();
    cluster.create("db");
    let mut db = cluster.connect("shop", "db");
    let why = "the ingress rules of its policies have more than 256 different lists of ports";
    let told = cluster.admit(&db);
    assert!(told.contains(&format!("shop/db: {why}")), "{told}");
    db.serve();
    assert!(!far_reaches(&cluster, &db));
    let is_told = |event: &Value| {
        event["involvedObject"]["name"] == "db"
            && event["message"].as_str().is_some_and(|message| message.starts_with(why))
    };
    wait_until("the Event", || cluster.api.objects("events").iter().any(is_told));
    assert!(cluster.log().contains(&format!("shop/db: {why}")), "{}", cluster.log());
    for number in 0..50 {
        cluster.api.remove("networkpolicies", "shop", &format!("db-{number}"));
    }
    wait_until("the pod to be judged", || far_reaches(&cluster, &db));
}

/// One pod, and 5,000 policies that select it: how long its ADD takes, how much memory, and how
/// long half of them take to go.
#[test]
fn many_policies_of_one_pod_are_enforced_soon() {
    testkit::require!("root", "round:0/3");
    const POLICIES: usize = 5000;
    let mut cluster = Cluster::new("policy-many-of-one");
    for number in 0..POLICIES {
        cluster.api.create(&of_db(number));
    }
    cluster.api.create(&far("far", "client-3", FAR));
    be_far(&cluster);
    cluster.start();
    cluster.create("db");
    let before = peak(&cluster);
    let mut db = cluster.connect("shop", "db");
    let begin = Instant::now();
    assert_eq!(cluster.admit(&db), "");
    eprintln!(
        "MEASURED policy, {POLICIES} policies of one pod: ADD {:?}; at most {} KiB, {before} KiB \
         before",
        begin.elapsed(),
        peak(&cluster)
    );
    db.serve();
    assert!(far_reaches(&cluster, &db));
    // They go while each change of one would cost as much as all of them.
    let begin = Instant::now();
    for number in (3..POLICIES).step_by(2) {
        cluster.api.remove("networkpolicies", "shop", &format!("db-{number}"));
    }
    wait_long("half of the policies to go", || !far_reaches(&cluster, &db));
    relabel(&cluster, "far", &format!("client-{}", POLICIES - 1));
    wait_long("the last of them to be gone", || !far_reaches(&cluster, &db));
    relabel(&cluster, "far", "client-4");
    wait_long("the others to be there", || far_reaches(&cluster, &db));
    eprintln!("MEASURED policy, half of {POLICIES} policies of one pod go: {:?}", begin.elapsed());
}

/// The kinds that are listed and then watched.
const LISTED: [&str; 6] = [
    "namespaces",
    "nodes",
    "networkpolicies",
    "clusternetworkpolicies",
    "multi-networkpolicies",
    "pods",
];

/// There are 10,000 policies, and 100,000 pods of 4 KB. A pod of this node, which a hundred of the
/// policies select, exists before the service starts. `NETWRIGHTD_MEASURED` names an optimised
/// executable.
#[test]
fn many_pods_are_enforced_soon() {
    testkit::require!("root", "round:1/3");
    const PODS: u32 = 100_000;
    const POLICIES: usize = 10_000;
    let mut cluster = Cluster::new("policy-many");
    be_far(&cluster);
    for number in 0..POLICIES {
        // Some policies select pods of this node, and allow all pods that have a label.
        let policy = if number % 100 == 0 {
            allow(&format!("db-{number}"), "db", &[&format!("app-{}", number / 100)])
        } else {
            elsewhere(number)
        };
        cluster.api.create(&policy);
    }
    let padding = "x".repeat(3_500);
    for number in 0..PODS {
        let [_, a, b, c] = number.to_be_bytes();
        let address = format!("10.{}.{b}.{c}", 64 + a);
        let app = format!("app-{}", number % 1000);
        let mut pod = far(&format!("far-{number}"), &app, &address);
        pod["metadata"]["annotations"] = json!({"padding": padding});
        cluster.api.create(&pod);
    }
    cluster.create("db");
    let db = cluster.attach("db");
    assert!(!far_reaches(&cluster, &db), "nothing judges the pod yet");
    cluster.api.compact();
    let begin = Instant::now();
    cluster.spawn();
    // A list is complete when its watch is requested.
    let are_listed = |cluster: &Cluster| {
        let asked = cluster.api.asked();
        let is_watched =
            |kind: &&str| asked.iter().any(|one| one.verb == "watch" && one.resource == **kind);
        LISTED.iter().all(is_watched)
    };
    wait_long("the last list", || are_listed(&cluster));
    let listed = begin.elapsed();
    let before_enforced = peak(&cluster);
    wait_long("policies to be enforced", || cluster.log().contains("policies are enforced"));
    let enforced = begin.elapsed().saturating_sub(listed);
    eprintln!(
        "lists: {listed:?}; enforced {enforced:?} after the last byte; at most {} KiB, {before_enforced} \
         KiB until then",
        peak(&cluster)
    );
    let begin = Instant::now();
    let like = {
        let mut like = object("db-2", &super::uid("db-2"), "n1");
        like["metadata"]["labels"] = json!({"app": "db"});
        cluster.api.create(&like);
        cluster.attach("db-2")
    };
    eprintln!("a pod of this node that is like another one: {:?}", begin.elapsed());
    assert!(!far_reaches(&cluster, &like));

    // The time from a change of a label on another node's pod until a connection succeeds or fails
    // accordingly.
    let mut times = Vec::new();
    relabel(&cluster, "far-200", "none");
    wait_until("the first label", || !far_reaches(&cluster, &db));
    for number in 0..40 {
        let reaches = number % 2 == 0;
        let begin = Instant::now();
        relabel(&cluster, "far-200", if reaches { "app-0" } else { "none" });
        wait_until("the label", || far_reaches(&cluster, &db) == reaches);
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    eprintln!(
        "a label of a pod of another node: {:?} (median), {:?} at most",
        times[20], times[39]
    );
    eprintln!("at most {} KiB", peak(&cluster));
}

/// Waits longer than smaller tests do.
fn wait_long(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within time");
        // Each look at the server's log delays the server.
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// The peak of the service's memory, in KiB.
fn peak(cluster: &Cluster) -> u64 {
    let pid = cluster.service.as_ref().unwrap().pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}
