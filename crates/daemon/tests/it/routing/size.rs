//! What many nodes cost. Every run counts messages, and `--full` measures times (docs/routing.md,
//! "Sizes").

mod bare;
mod measured;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};
use testkit::{Chance, Place as _, RunningProgram, Snapshot, feature, wait_until};

use super::cluster::{annotation, cluster, condition, is};
use super::{Fabric, Node};

/// Ranges with room for the prefixes of thousands of nodes and of this node.
const RANGES: &str = "10.128.0.0/9,fd00:244::/32";

/// The number of the first of the other nodes, and how many there are beside this one in the
/// longest list that is read.
const FIRST: u16 = 10;
const MOST: u16 = 4999;

/// A node that exists only in the list. It is behind the router, so tunnels lead to it.
#[derive(Debug, Clone, Copy)]
struct OtherNode {
    name: u16,
    address: u16,
    prefix: u16,
}

impl OtherNode {
    fn new(number: u16) -> Self {
        OtherNode { name: number, address: number, prefix: number }
    }

    fn many(count: u16) -> impl Iterator<Item = OtherNode> {
        (FIRST..FIRST + count).map(OtherNode::new)
    }

    fn name(self) -> String {
        format!("node-{}", self.name)
    }

    fn prefixes(self) -> [String; 2] {
        let [high, low] = self.prefix.to_be_bytes();
        let v4 = format!("10.{}.{low}.0/24", 128 + u16::from(high));
        [v4, format!("fd00:244:1:{:x}::/64", self.prefix)]
    }

    fn underlay(self) -> [String; 2] {
        let [high, low] = self.address.to_be_bytes();
        [format!("198.18.{high}.{low}"), format!("2001:db8:f::{:x}", self.address)]
    }

    /// The hardware addresses of its tunnels.
    fn macs(self) -> [[u8; 6]; 2] {
        let [high, low] = self.name.to_be_bytes();
        [[2, 4, 0, 0, high, low], [2, 6, 0, 0, high, low]]
    }

    /// Its entry in the list of nodes.
    fn entry(self) -> String {
        let (name, [v4, v6], [to4, to6]) = (self.name(), self.prefixes(), self.underlay());
        format!(
            "[[node]]\nname = \"{name}\"\nprefixes = [\"{v4}\", \"{v6}\"]\nunderlay = [\"{to4}\", \"{to6}\"]\n\n"
        )
    }

    /// Its Node, as its own service has annotated it.
    fn object(self) -> Value {
        let (name, prefixes, underlay) = (self.name(), self.prefixes(), self.underlay());
        let [mac4, mac6] = self.macs().map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
        let vxlan = json!({"vni": 1, "port": 8472, "mac4": mac4, "mac6": mac6});
        let says = json!({
            "version": 1, "underlay": underlay, "mtu": 1500,
            "offers": {"direct": {}, "vxlan": vxlan},
        });
        let addresses = underlay.map(|address| json!({"type": "InternalIP", "address": address}));
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name, "annotations": {"routing.netwright.io/node": says.to_string()},
            },
            "spec": {"podCIDRs": prefixes},
            "status": {"addresses": addresses},
        })
    }
}

impl Fabric {
    /// One node, with ranges for many others.
    fn for_many(name: &str) -> Self {
        let mut fabric = Fabric::new(name, &[1]);
        fabric.cluster = ["--cluster", RANGES].map(str::to_owned).to_vec();
        fabric
    }

    /// The list of this node and this many others.
    fn list_of(&self, count: u16) -> String {
        self.nodes[0].entry() + &OtherNode::many(count).map(OtherNode::entry).collect::<String>()
    }
}

/// The requests that the service makes to the kernel for one act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    /// The rtnetlink messages that change something.
    changes: usize,
    /// The rtnetlink messages that ask for something.
    questions: usize,
    /// The transactions of nftables.
    transactions: usize,
}

/// The service's messages to the kernel, as strace prints them.
struct Trace {
    log: PathBuf,
    pid: String,
    _strace: RunningProgram,
}

impl Trace {
    fn of(node: &Node) -> Self {
        let log = node.dir.join("trace");
        let pid = node.service.as_ref().unwrap().pid().to_string();
        let mut command = node.host.command("strace");
        command.args(["-f", "-v", "-qq", "-e", "signal=none", "-e"]);
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

    /// Counts the messages that are sent from an act until `is_done` holds and the loop waits
    /// again.
    fn count(&self, what: &str, act: impl FnOnce(), is_done: impl FnMut() -> bool) -> Counts {
        let before = self.text().len();
        act();
        wait_until(what, is_done);
        wait_until("the loop to wait again", || self.is_idle());
        let text = self.text().split_off(before);
        let of = |kinds: &[&str]| {
            kinds.iter().map(|kind| text.matches(&format!("nlmsg_type={kind}")).count()).sum()
        };
        Counts {
            changes: of(&["RTM_NEW", "RTM_DEL", "RTM_SET"]),
            questions: of(&["RTM_GET"]),
            transactions: of(&["NFNL_MSG_BATCH_BEGIN"]),
        }
    }
}

/// Among this many others, a node is added, gets other addresses, gets other prefixes, and is
/// removed.
fn counts_among(count: u16) -> Vec<(&'static str, Counts)> {
    let mut fabric = Fabric::for_many(&format!("routing-size-{count}"));
    let others = fabric.list_of(count - 1);
    fabric.write_list(&others);
    // The snapshot waits until the kernel has finished with the links, because its events about
    // them make the service look.
    let _ = Snapshot::of(&fabric.nodes[0].host);
    fabric.start();
    let trace = Trace::of(&fabric.nodes[0]);
    let host = &fabric.nodes[0].host;
    let shows = |script: &str| !host.sh(script).is_empty();
    let has_route = |prefix: &str| {
        let family = if prefix.contains(':') { 6 } else { 4 };
        shows(&format!("ip -{family} route show {prefix} proto 78"))
    };
    let new = OtherNode::new(9000);
    let moved = OtherNode { address: 9001, ..new };
    let renumbered = OtherNode { prefix: 9001, ..moved };
    let write = |node: OtherNode| fabric.write_list(&(others.clone() + &node.entry()));
    let [_, new_v6] = new.prefixes();
    let [renumbered_v4, renumbered_v6] = renumbered.prefixes();
    let [_, moved_to] = moved.underlay();
    let counts = vec![
        ("comes", trace.count("it to come", || write(new), || has_route(&new_v6))),
        (
            "gets other addresses",
            trace.count(
                "its other addresses",
                || write(moved),
                || {
                    shows(&format!(
                        "bridge fdb show dev nw-vxlan6 | grep -F 'dst {moved_to} ' || :"
                    ))
                },
            ),
        ),
        (
            "gets other prefixes",
            trace.count("its other prefixes", || write(renumbered), || has_route(&renumbered_v6)),
        ),
        (
            "goes",
            trace.count(
                "it to go",
                || {
                    host.sh("ip route add 203.0.113.0/24 dev eth0");
                    fabric.write_list(&others);
                },
                || !has_route(&renumbered_v4),
            ),
        ),
    ];
    assert!(!fabric.nodes[0].service.as_ref().unwrap().log().contains("events may be missed"));
    counts
}

/// The cost of one node's change does not depend on the number of other nodes. The change does not
/// make the service look at everything: the service asks only for the routes to new addresses.
/// Another program's route that leads to no node and no pod, added as the node is removed, does not
/// make it look either.
#[test]
fn vm_one_nodes_change_costs_the_same_among_many() {
    testkit::require!("root", "vxlan", "vm-full", "program:strace", "program:bridge");
    let is_slow = std::env::var_os(feature::VM_VARIABLE).is_some();
    let many = if feature::available("round:1/3") && !is_slow { MOST } else { 500 };
    let among_few = counts_among(50);
    let counts = |changes, questions, transactions| Counts { changes, questions, transactions };
    let known = [
        ("comes", counts(8, 2, 1)),
        ("gets other addresses", counts(2, 2, 1)),
        ("gets other prefixes", counts(7, 0, 0)),
        ("goes", counts(8, 0, 1)),
    ];
    assert_eq!(among_few, known);
    assert_eq!(counts_among(many), known, "among {many}");
}

/// How many nodes are added at once: more than the service asks about one by one.
const TOGETHER: u16 = 100;

/// If many nodes are added at once, the service lists the kernel's rules and tables. Then it asks
/// for the routes to only two of the addresses that the kernel treats alike, and to the one node
/// for which the kernel has learnt a smaller MTU.
#[test]
fn vm_many_nodes_that_come_together_are_few_questions() {
    testkit::require!("root", "vxlan", "vm-full", "program:strace", "program:ping");
    let mut fabric = Fabric::for_many("routing-size-together");
    let few = fabric.list_of(10);
    fabric.write_list(&few);
    let new = || (1000..1000 + TOGETHER).map(OtherNode::new);
    let ([to, _], narrow) = (OtherNode::new(1000).underlay(), OtherNode::new(1000).name());
    fabric.lab.sh(&format!(
        "ip link add far type bridge && ip addr add 203.0.113.1/24 dev far && ip link set far up && \
         ip route add {to} via 203.0.113.2 mtu 1400"
    ));
    let host = &fabric.nodes[0].host;
    let _ = host.try_sh(&format!("ping -n -c 1 -W 1 -M do -s 1450 {to}"));
    let learnt = host.sh(&format!("ip route get {to}"));
    assert!(learnt.contains("mtu 1400"), "{learnt}");
    let _ = Snapshot::of(host);
    fabric.start();
    let trace = Trace::of(&fabric.nodes[0]);
    let host = &fabric.nodes[0].host;
    let many = few + &new().map(OtherNode::entry).collect::<String>();
    let [_, last] = OtherNode::new(1000 + TOGETHER - 1).prefixes();
    let counts = trace.count(
        "them to come",
        || fabric.write_list(&many),
        || !host.sh(&format!("ip -6 route show {last} proto 78")).is_empty(),
    );
    // In each family the service asks for the rules, three tables, what the kernel has learnt, and
    // two of all the addresses. For the narrow way, it asks for the entry of the table, too.
    let questions = 2 * (1 + 3 + 1 + 2) + 2;
    let changes = 8 * usize::from(TOGETHER);
    assert_eq!(counts, Counts { changes, questions, transactions: 1 });
    let table = fabric.routes(0);
    let rows = table["rows"].as_array().unwrap();
    let mtu_of = |name: &str| {
        let row = rows.iter().find(|row| row["peer"] == name && row["family"] == "ipv4").unwrap();
        row["mtu"].as_u64().unwrap()
    };
    for node in new() {
        let want = if node.name() == narrow { 1350 } else { 1450 };
        assert_eq!(mtu_of(&node.name()), want, "{}", node.name());
    }
}

/// How many routes the table of a router has: many more than nodes are added at once.
const OF_ROUTER: u32 = 60_000;

/// If a table has more routes than there are addresses to ask for, the service does not list it to
/// its end.
#[test]
fn vm_a_routers_table_is_not_listed_for_nodes_that_come() {
    testkit::require!("root", "vxlan", "full", "vm-full", "program:strace");
    let mut fabric = Fabric::for_many("routing-size-router");
    let few = fabric.list_of(10);
    fabric.write_list(&few);
    let script = fabric.nodes[0].dir.join("routes");
    let prefix = |number: u32| std::net::Ipv4Addr::from_bits(0xac10_0000 | number << 4);
    let lines = (0..OF_ROUTER)
        .map(|number| format!("route add {}/28 via 192.0.2.1 proto bird\n", prefix(number)));
    fs::write(&script, lines.collect::<String>()).unwrap();
    let _ = Snapshot::of(&fabric.nodes[0].host);
    fabric.nodes[0].host.sh(&format!("ip -batch {}", script.display()));
    fabric.start();
    let trace = Trace::of(&fabric.nodes[0]);
    let host = &fabric.nodes[0].host;
    let many =
        few + &(1000..1000 + TOGETHER).map(|n| OtherNode::new(n).entry()).collect::<String>();
    let [_, last] = OtherNode::new(1000 + TOGETHER - 1).prefixes();
    let counts = trace.count(
        "them to come",
        || fabric.write_list(&many),
        || !host.sh(&format!("ip -6 route show {last} proto 78")).is_empty(),
    );
    // The service asks for the rules, the local table, part of the main table and each address. For
    // IPv6 it asks as in the other test.
    let questions = (1 + 2 + usize::from(TOGETHER)) + (1 + 3 + 1 + 2);
    let changes = 8 * usize::from(TOGETHER);
    assert_eq!(counts, Counts { changes, questions, transactions: 1 });
}

/// Counts requests by verb and resource.
fn requests(api: &testkit::kube::KubeApi) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for asked in api.asked() {
        *counts.entry(format!("{} {}", asked.verb, asked.resource)).or_default() += 1;
    }
    counts
}

/// How many watches an informer of client-go requests in each of so many hours in which nothing
/// changes, the fewest first; flanneld has such an informer. Each watch ends after 5 to 10 minutes
/// by chance, and the next one follows at once (client-go `tools/cache/reflector.go`,
/// `minWatchTimeout`).
fn watches_of_an_informer(hours: usize) -> Vec<usize> {
    let mut chance = Chance::new(20_261_127);
    let mut in_an_hour = || {
        let (mut seconds, mut watches) = (0_usize, 0_usize);
        while seconds < 3600 {
            seconds += 300 + chance.below(300);
            watches += 1;
        }
        watches
    };
    let mut all: Vec<usize> = (0..hours).map(|_| in_an_hour()).collect();
    all.sort_unstable();
    all
}

/// An hour in which nothing changes: watches end when their time is over, and the service requests
/// only new watches. The test ends the watches itself, so its hour takes only as long as that.
#[test]
fn in_a_quiet_hour_the_api_server_is_asked_for_watches_alone() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-hour", &[1]).by("direct");
    let api = cluster(&mut fabric);
    fabric.start();
    wait_until("the annotation", || annotation(&api, "a") != Value::Null);
    wait_until("the condition", || condition(&api, "a") == is("False", "RoutingIsUp"));
    wait_until("it to be ready", || fabric.routes(0)["phase"] == "ready");
    let at_start = requests(&api);
    let asked = api.asked();
    let watch = asked.iter().find(|asked| asked.verb == "watch").unwrap();
    let (_, rest) = watch.line.split_once("timeoutSeconds=").unwrap();
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    let timeout: usize = digits.parse().unwrap();
    let in_an_hour = 3600_usize.div_ceil(timeout);
    api.forget();
    for number in 1..=in_an_hour {
        api.end_watches();
        api.wait_until("a watch", |api| requests(api).get("watch nodes") == Some(&number));
    }
    let quiet = BTreeMap::from([("watch nodes".to_owned(), in_an_hour)]);
    assert_eq!(requests(&api), quiet);
    let theirs = watches_of_an_informer(1000);
    let (fewest, median, most) = (theirs[0], theirs[500], theirs[999]);
    eprintln!(
        "MEASURED routing: one node asks the API server for {at_start:?} when it starts, and for \
         {quiet:?} in an hour in which nothing changes; flannel's informer for {fewest} to {most} \
         watches, {median} in the median"
    );
    assert!(7 <= fewest && most <= 12, "{fewest} to {most}");
    assert_eq!(in_an_hour, 13);
    assert_eq!((at_start["list nodes"], at_start["watch nodes"]), (1, 1), "{at_start:?}");
    // The service also receives the events of the last watch.
    api.create(&OtherNode::new(FIRST).object());
    wait_until("the other node", || fabric.routes(0)["rows"].to_string().contains("node-10"));
}

/// How often threads of a process have waited for something so far, by their names.
fn waits(pid: u32) -> BTreeMap<String, u64> {
    let mut waits = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let task = task.unwrap().path();
        let name = fs::read_to_string(task.join("comm")).unwrap().trim().to_owned();
        let status = fs::read_to_string(task.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        *waits.entry(name).or_default() += line.unwrap().trim().parse::<u64>().unwrap();
    }
    waits
}

/// For how many minutes the test watches a quiet node, and a node whose source is silent and is
/// asked every few seconds. Also, how often a loop may wake up in each minute: for its look. Other
/// programs on the host may wake it up too, and a look may wait for another thread.
const QUIET_MINUTES: u64 = 3;
const SILENT_MINUTES: u64 = 2;
const WAKE_UPS: u64 = 1;
const BY_OTHERS: u64 = 4;

/// Asserts that the loop of the first node wakes up no more often than allowed.
fn assert_sleeps(fabric: &Fabric, what: &str, minutes: u64) {
    let pid = fabric.nodes[0].service.as_ref().unwrap().pid();
    let before = waits(pid);
    std::thread::sleep(std::time::Duration::from_secs(60 * minutes));
    let after = waits(pid);
    let woken: BTreeMap<&str, u64> = after
        .iter()
        .map(|(name, count)| (name.as_str(), count - before.get(name).unwrap_or(&0)))
        .collect();
    eprintln!("MEASURED routing: {what}: a node's threads waited in {minutes} minutes: {woken:?}");
    assert!(woken["netwrightd"] <= WAKE_UPS * minutes + BY_OTHERS, "{what}: {woken:?}");
}

/// While nothing changes, a node looks at the kernel and probes some other nodes once a minute.
#[test]
fn vm_a_quiet_node_sleeps() {
    testkit::require!("root", "vxlan", "full", "vm-full");
    let mut fabric = Fabric::new("routing-quiet", &[1, 1]);
    fabric.flags = ["--interval", "1m"].map(str::to_owned).to_vec();
    fabric.start();
    fabric.assert_all_reach_all();
    let answers = |fabric: &Fabric| fabric.routes(0)["rows"][0]["state"] == "probed";
    wait_until("the other node to answer", || answers(&fabric));
    // The work after the start is done: the nodes are on the disk.
    wait_until("the record of nodes", || fabric.nodes[0].dir.join("lib/routing/peers").exists());
    assert_sleeps(&fabric, "nothing changes", QUIET_MINUTES);
}

/// An API server that is away, or does not answer, does not change that: the thread that tries to
/// reach it wakes up, and the loop does not.
#[test]
fn vm_a_node_whose_source_is_silent_sleeps() {
    testkit::require!("root", "vxlan", "full", "vm-full");
    let mut fabric = Fabric::new("routing-silent", &[1, 1]);
    fabric.flags = ["--interval", "1m"].map(str::to_owned).to_vec();
    let api = cluster(&mut fabric);
    fabric.start();
    wait_until("the condition", || condition(&api, "a") == is("False", "RoutingIsUp"));
    // The work after the start is done: the other node is known, has answered, and is on the disk.
    let answers = |fabric: &Fabric| fabric.routes(0)["rows"][0]["state"] == "probed";
    wait_until("the other node to answer", || answers(&fabric));
    let record = fabric.nodes[0].dir.join("lib/routing/peers");
    let has_both = || fs::read_to_string(&record).is_ok_and(|text| text.contains("\"b\""));
    wait_until("the record of nodes", has_both);
    let is_degraded = |fabric: &Fabric| fabric.routes(0)["phase"].to_string().contains("degraded");
    api.refuse();
    wait_until("the silence to be told", || is_degraded(&fabric));
    assert_sleeps(&fabric, "the API server is away", SILENT_MINUTES);
    api.restore();
    wait_until("it to answer", || fabric.routes(0)["phase"] == "ready");
    api.hang();
    api.cut();
    wait_until("the silence to be told", || is_degraded(&fabric));
    assert_sleeps(&fabric, "the API server does not answer", SILENT_MINUTES);
    api.restore();
    wait_until("it to answer", || fabric.routes(0)["phase"] == "ready");
}
