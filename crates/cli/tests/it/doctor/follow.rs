//! `doctor` follows unanswered probes to the place where they, or their answers, end.

mod alone;

use std::path::Path;
use std::process::{Child, Stdio};

use testkit::{Place as _, RunningProgram, require, wait_until};

use super::situations::node::{Node, findings};
use crate::support::command_in;

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

/// Makes the node busy, until this is dropped: the router sends to it, and c2 to the server.
fn noise(node: &Node) -> [RunningProgram; 2] {
    [("outside", "198.51.100.1"), ("c2", SERVER)].map(|(from, to)| {
        let sender = node.lab.visit(format!("/run/netns/{from}"));
        sender.start("python3", &["-c", NOISE, to])
    })
}

#[test]
fn traffic_of_equal_sizes_does_not_confuse() {
    require!("root", "program:nft", "program:python3", "full");
    let node = Node::new("doctor-follow-busy");
    let _noise = noise(&node);
    for _ in 0..2 {
        is_named(&node, "ip daddr", "a probe");
        is_named(&node, "ip saddr", "the answer to a probe");
        node.lab.sh("mount -t tmpfs none /sys/kernel/tracing");
    }
}

/// The server is there, and another machine answers in its place.
#[test]
fn a_machine_on_the_way_that_refuses_is_named() {
    require!("root", "program:nft");
    let node = Node::new("doctor-refused");
    // The kernel would send the node few such messages (linux Documentation/networking/ip-sysctl.rst,
    // `icmp_ratemask`).
    node.lab.sh("ip netns exec outside sysctl -qw net.ipv4.icmp_ratemask=0");
    node.lab.sh("ip netns exec outside nft 'add table ip own; \
         add chain ip own forward { type filter hook forward priority 0; }'");
    let by_port = "reject with icmp type port-unreachable";
    let refusals = [
        by_port.to_owned(),
        "reject with icmp type admin-prohibited".to_owned(),
        // The first probes of both containers and the node, of 60 bytes, are lost, and so is what the
        // kernel sends of each a second later.
        format!("quota until 360 bytes drop; add rule ip own forward tcp dport 80 {by_port}"),
    ];
    for refusal in refusals {
        node.lab.sh(&format!(
            "ip netns exec outside nft 'add rule ip own forward tcp dport 80 {refusal}'"
        ));
        let said = node.doctor(&TO);
        let who = ", says 198.51.100.2, a machine on the way";
        assert!(said.code == 1 && said.stdout.contains(who), "{refusal}: {said:#?}");
        node.lab.sh("ip netns exec outside nft flush table ip own");
    }
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
    // Its instance stays until any doctor of this machine begins to trace: all tests share them.

    let mut next = start_doctor(&node);
    let next_pid = next.id();
    next.wait().unwrap();
    assert!(!has_instance(&instances, pid) && !has_instance(&instances, next_pid));
    assert_eq!(node.lab.sh("nft list tables"), before);
}
