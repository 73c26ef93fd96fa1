//! `doctor` follows unanswered probes to the place where they, or their answers, end.

use std::path::Path;
use std::process::{Child, Stdio};

use testkit::{Place as _, require, wait_until};

use super::situations::node::{Node, findings};
use crate::support::command_in;
use crate::system::address_of;

/// The server to which each container sends.
const SERVER: &str = "203.0.113.2";
const TO: [&str; 2] = ["--to", "203.0.113.2:80"];

/// A condition that no rule of `doctor` can compute, so that only a probe shows whether a packet
/// meets it.
const ANY: &str = "meta length > 20";

/// Adds a table with one chain and one rule.
fn add_rule(node: &Node, table: &str, hook: &str, rule: &str) {
    let chain = format!("type filter hook {hook} priority 0\n{rule}");
    let table = format!("table {table} {{\nchain foreign {{\n{chain}\n}}\n}}");
    let (done, said) = node.run(&format!("nft -f - <<'X'\n{table}\nX"));
    assert!(done, "{said}");
}

/// Asserts that `doctor` names a rule of the node as the one that drops the probes, or their
/// answers.
#[track_caller]
fn is_named(node: &Node, condition: &str, what: &str) {
    add_rule(node, "inet foreign", "forward", &format!("{condition} {SERVER} {ANY} drop"));
    let said = node.doctor(&TO);
    let all = findings(&said);
    let named = all.iter().find(|finding| finding["id"] == "forward-dropped");
    let named = named.unwrap_or_else(|| panic!("{condition}: {all:#?}"));
    assert!(named["object"].as_str().unwrap().contains("foreign"), "{named:#?}");
    let seen = format!("{what} to {SERVER}:80 ended at this rule");
    assert!(named["seen"].to_string().contains(&seen), "{seen}: {named:#?}");
    node.lab.sh("nft delete table inet foreign");
}

#[test]
fn the_rule_at_which_a_probe_or_its_answer_ends_is_named() {
    require!("root", "program:nft");
    let node = Node::new("doctor-follow");
    is_named(&node, "ip daddr", "a probe");
    // Without tracepoints the packet filter alone shows it.
    node.lab.sh("mount -t tmpfs none /sys/kernel/tracing");
    is_named(&node, "ip saddr", "the answer to a probe");
    let complaints = node.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// Sends datagrams of all lengths that a followed probe may have, ten thousand a second.
const NOISE: &str = "
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    for size in range(40, 560):
        try:
            sender.sendto(bytes(size - 28), (sys.argv[1], 9))
        except OSError:
            pass
        if size % 10 == 0:
            time.sleep(0.001)
";

#[test]
fn traffic_of_equal_sizes_does_not_confuse() {
    require!("root", "program:nft", "program:python3", "full");
    let node = Node::new("doctor-follow-busy");
    let router = node.lab.visit("/run/netns/outside");
    let _in = router.start("python3", &["-c", NOISE, "198.51.100.1"]);
    let others = node.lab.visit("/run/netns/c2");
    let _out = others.start("python3", &["-c", NOISE, SERVER]);
    for _ in 0..2 {
        is_named(&node, "ip daddr", "a probe");
        is_named(&node, "ip saddr", "the answer to a probe");
        node.lab.sh("mount -t tmpfs none /sys/kernel/tracing");
    }
}

/// The means by which `doctor` follows probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    Tracepoints,
    Filter,
    Counters,
}

/// A way to lose c1's packets, and where they then end.
struct End {
    /// The destination: the server, or c2 if this is `{c2}`.
    to: &'static str,
    breaks: &'static str,
    mends: &'static str,
    ends: &'static str,
    /// Tracepoints show it too.
    traced: bool,
}

const LOST: End =
    End { to: "203.0.113.2:80", breaks: "", mends: FOREIGN_GONE, ends: "", traced: true };

const FOREIGN_GONE: &str = "nft delete table inet foreign";

const ENDS: [End; 7] = [
    End {
        breaks: "nft 'table inet foreign { chain c { type filter hook forward priority 0; \
                 ip daddr 203.0.113.2 meta length > 20 drop; }; }'",
        ends: "; it ended at cni0 of the node:",
        ..LOST
    },
    End {
        breaks: "nft 'table inet foreign { chain c { type filter hook forward priority 0; \
                 ip saddr 203.0.113.2 meta length > 20 drop; }; }'",
        ends: "; the answer ended at up0 of the node:",
        ..LOST
    },
    End {
        breaks: "ip netns exec c1 nft 'table inet foreign { chain c { \
                 type filter hook output priority 0; ip daddr 203.0.113.2 meta length > 20 drop; }; }'",
        mends: "ip netns exec c1 nft delete table inet foreign",
        ends: "; it ended at a link of c1:",
        ..LOST
    },
    End {
        breaks: "ip netns exec c1 nft 'table inet foreign { chain c { \
                 type filter hook input priority 0; ip saddr 203.0.113.2 meta length > 20 drop; }; }'",
        mends: "ip netns exec c1 nft delete table inet foreign",
        ends: "; the answer ended at eth0 of c1:",
        ..LOST
    },
    End {
        to: "{c2}:80",
        breaks: "ip netns exec c2 nft 'table inet foreign { chain c { \
                 type filter hook input priority 0; tcp dport 80 meta length > 20 drop; }; }'",
        mends: "ip netns exec c2 nft delete table inet foreign",
        ends: "; it ended at eth0 of c2:",
        ..LOST
    },
    End {
        breaks: "ip route add blackhole 203.0.113.2",
        mends: "ip route del blackhole 203.0.113.2",
        ends: "; it ended at cni0 of the node:",
        ..LOST
    },
    // No machine has that gateway's address.
    End {
        breaks: "ip -n c1 route replace default via 10.88.0.200",
        mends: "ip -n c1 route replace default via 10.88.0.1",
        ends: "; it ended at a link of c1: counters, NEIGH_FAILED",
        traced: false,
        ..LOST
    },
];

/// Runs `doctor` for c1 with only one means, and returns its output. The test hides tracing from
/// it, or makes in advance the tables that it would make: their names contain the process ID, which
/// is known before `doctor` starts.
fn doctor_by(node: &Node, means: Means, to: &str) -> String {
    let hide = "mount -t tmpfs none /sys/kernel/tracing;";
    let take = "for family in inet bridge; do nft add table $family netwright-doctor-$$; done;
        for name in c1 c2; do ip netns exec $name nft add table inet netwright-doctor-$$; done;";
    let before = match means {
        Means::Tracepoints => take.to_owned(),
        Means::Filter => hide.to_owned(),
        Means::Counters => format!("{hide} {take}"),
    };
    let doctor = format!("exec netwright doctor c1 --output json --to {to}");
    let (_, said) = node.run(&format!("exec unshare -m sh -c '{before} {doctor}'"));
    let remove =
        "nft list tables | sed -n \"s/^table \\(.*netwright-doctor.*\\)/delete table \\1/p\"";
    node.lab.sh(&format!("{remove} | nft -f -"));
    node.lab.sh(&format!(
        "for name in c1 c2; do ip netns exec $name sh -c '{remove} | nft -f -'; done"
    ));
    said
}

/// Tries those that one means alone should tell. Returns what is not told.
fn not_told(node: &Node, means: Means, is_told: impl Fn(&End) -> bool) -> Vec<String> {
    let c2 = address_of(&node.lab.visit("/run/netns/c2"), "eth0", "inet").to_string();
    let mut wrong = Vec::new();
    for end in ENDS.iter().filter(|end| is_told(end)) {
        node.lab.sh(end.breaks);
        let said = doctor_by(node, means, &end.to.replace("{c2}", &c2));
        let counted = format!("{} counters,", end.ends);
        let by_counters = means == Means::Counters && end.traced;
        let ends = if by_counters { counted.as_str() } else { end.ends };
        if !said.contains(ends) {
            wrong.push(format!("{means:?}, {}: no {ends:?} in {said}", end.breaks));
        }
        node.lab.sh(end.mends);
    }
    wrong
}

/// They do it also in busy traffic of equal sizes, except that tracepoints do not tell an answer
/// from other packets of its size there.
#[test]
fn each_means_alone_tells_where_it_ended() {
    require!("root", "program:nft", "program:python3", "full", "file:/sys/kernel/tracing");
    let node = Node::new("doctor-follow-alone");
    // Tracepoints do not tell of an answer that the container's own packet filter drops.
    let traced = |end: &End| end.traced && end.ends != "; the answer ended at eth0 of c1:";
    let is_probe = |end: &End| traced(end) && !end.ends.starts_with("; the answer");
    let mut wrong = not_told(&node, Means::Tracepoints, traced);
    let router = node.lab.visit("/run/netns/outside");
    let _in = router.start("python3", &["-c", NOISE, "198.51.100.1"]);
    let others = node.lab.visit("/run/netns/c2");
    let _out = others.start("python3", &["-c", NOISE, SERVER]);
    wrong.extend(not_told(&node, Means::Tracepoints, is_probe));
    wrong.extend(not_told(&node, Means::Filter, |_| true));
    wrong.extend(not_told(&node, Means::Counters, |_| true));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The packet filter's trace begins after this hook.
#[test]
fn tracepoints_alone_tell_the_link() {
    require!("root", "program:nft", "file:/sys/kernel/tracing");
    let node = Node::new("doctor-follow-link");
    let port = node.filled("{p1}");
    let hook = format!("ingress device \"{port}\"");
    add_rule(&node, "netdev foreign", &hook, &format!("ip daddr {SERVER} {ANY} drop"));
    let said = node.doctor(&TO);
    let end = format!("ended at {port} of the node: nft_do_chain, NETFILTER_DROP");
    assert!(said.stdout.contains(&end), "{end}: {said:#?}");
}

/// Says whether the kernel has a trace instance that this process has made.
fn has_instance(instances: &Path, pid: u32) -> bool {
    let prefix = format!("netwright-doctor-{pid}-");
    let entries = std::fs::read_dir(instances).unwrap();
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
}

fn start_doctor(node: &Node) -> Child {
    let mut command = command_in(&node.lab, &["doctor"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn a_killed_doctor_leaves_nothing_that_the_next_does_not_remove() {
    require!("root", "program:nft", "file:/sys/kernel/tracing");
    let node = Node::new("doctor-follow-killed");
    node.lab.sh("mkdir /run/tracing && mount -t tracefs tracefs /run/tracing");
    let instances = node.lab.path("/run/tracing/instances");
    add_rule(&node, "inet foreign", "forward", &format!("ip daddr {SERVER} {ANY} drop"));
    let before = node.lab.sh("nft list tables");

    let mut killed = start_doctor(&node);
    let pid = killed.id();
    wait_until("the doctor follows a probe", || {
        has_instance(&instances, pid) && node.lab.sh("nft list tables").contains("netwright-doctor")
    });
    killed.kill().unwrap();
    killed.wait().unwrap();
    wait_until("its tables are gone", || node.lab.sh("nft list tables") == before);
    assert!(has_instance(&instances, pid), "who was killed cannot remove it");

    let mut next = start_doctor(&node);
    let next_pid = next.id();
    next.wait().unwrap();
    assert!(!has_instance(&instances, pid) && !has_instance(&instances, next_pid));
    assert_eq!(node.lab.sh("nft list tables"), before);
}
