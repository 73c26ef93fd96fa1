//! `netwright run` with the embedded network: its main job, on a host with an outside, and nothing
//! left afterwards.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use testkit::traffic::{Server, assert_pings, assert_tcp};
use testkit::{Container, Lab, Place, Snapshot, require};

use crate::support::assert_as_before;
use crate::system::{NETWRIGHT, Run, RunView, at, gateway_of};

/// The host's addresses on the link to the outside, and the outside's ([`Lab::outside`]).
const HOST: [&str; 2] = ["198.51.100.1", "2001:db8:ffff::1"];
const OUTSIDE: [&str; 2] = ["198.51.100.2", "2001:db8:ffff::2"];

/// Whether bridged packets pass the hooks of IP (`br_netfilter`).
fn bridge_nf_call(lab: &Lab, value: &str) {
    for name in ["iptables", "ip6tables", "arptables"] {
        lab.sh(&format!("sysctl -qw net.bridge.bridge-nf-call-{name}={value}"));
    }
}

#[test]
fn two_at_once_reach_everything_and_leave_nothing() {
    require!("root");
    two_at_once("two", None);
}

#[test]
fn two_at_once_with_bridged_packets_past_the_ip_hooks() {
    require!("root", "file:/proc/sys/net/bridge/bridge-nf-call-iptables");
    two_at_once("two-nf0", Some("0"));
}

#[test]
fn two_at_once_with_bridged_packets_through_the_ip_hooks() {
    require!("root", "file:/proc/sys/net/bridge/bridge-nf-call-iptables");
    two_at_once("two-nf1", Some("1"));
}

fn two_at_once(name: &str, bridge_nf: Option<&str>) {
    let lab = Lab::new(name);
    if let Some(value) = bridge_nf {
        bridge_nf_call(&lab, value);
    }
    let outside = lab.outside();
    let before = Snapshot::take(&lab);
    let _server = Server::tcp(&outside, "[::]:7000", "outside");

    let mut runs = [
        Run::spawn(&lab, &["--publish", "8080:80", "--publish", "8081:81/udp"]),
        Run::spawn(&lab, &[]),
    ];
    let [web, other] = runs.each_mut().map(Run::ready);
    assert_ne!((web.v4, web.v6), (other.v4, other.v6));
    neighbours(&web, &other);
    neighbours(&other, &web);
    for one in [&web, &other] {
        reaches_outside(one);
    }
    published(&lab, &web, &other, &outside);

    drop((web, other));
    for run in runs {
        assert!(run.end().success());
    }
    assert_as_before(&before, &lab);
}

/// Asserts that the other container and the gateway answer.
fn neighbours(from: &RunView, to: &RunView) {
    for address in [to.v4, to.v6, gateway_of(&from.netns, "-4"), gateway_of(&from.netns, "-6")] {
        assert_pings(&from.netns, &address.to_string());
    }
}

/// The outside has no route back: it answers because it sees the host's address.
fn reaches_outside(from: &RunView) {
    for (host, outside) in HOST.into_iter().zip(OUTSIDE) {
        assert_pings(&from.netns, outside);
        let answer = assert_tcp(&from.netns, &at(outside.parse().unwrap(), 7000));
        assert_eq!(
            (answer.server.as_str(), answer.seen.ip().to_string().as_str()),
            ("outside", host)
        );
    }
}

/// Asserts that the published port leads to the container from everywhere.
fn published(lab: &Lab, web: &RunView, other: &RunView, outside: &Container) {
    let _server = Server::tcp(&web.netns, "[::]:80", "web");
    let gateways = [gateway_of(&web.netns, "-4"), gateway_of(&web.netns, "-6")];
    let addresses = HOST.map(|host| host.parse().unwrap()).into_iter().chain(gateways);
    for address in addresses {
        let port = at(address, 8080);
        assert_eq!(assert_tcp(lab, &port).server, "web");
        assert_eq!(assert_tcp(&other.netns, &port).server, "web");
        assert_eq!(assert_tcp(&web.netns, &port).server, "web", "to itself");
    }
    assert_eq!(assert_tcp(lab, "127.0.0.1:8080").server, "web");
    for (host, outside_address) in HOST.into_iter().zip(OUTSIDE) {
        let answer = assert_tcp(outside, &at(host.parse().unwrap(), 8080));
        assert_eq!(answer.server, "web");
        assert_eq!(answer.seen.ip().to_string(), outside_address, "the container sees who asks");
    }
    let _server = Server::udp(&web.netns, "0.0.0.0:81", "web");
    assert_eq!(
        testkit::traffic::assert_udp(outside, &at(HOST[0].parse().unwrap(), 8081)).server,
        "web"
    );
    assert_eq!(testkit::traffic::assert_udp(lab, "127.0.0.1:8081").server, "web");
}

#[test]
fn the_second_time_everything_is_exactly_as_before() {
    require!("root");
    let lab = Lab::new("run-again");
    lab.sh(&format!("{NETWRIGHT} run --publish 8080:80 -- true"));
    let before = Snapshot::take(&lab);
    lab.sh(&format!("{NETWRIGHT} run --publish 8080:80 -- true"));
    // The next address differs: host-local does not assign the address of a removed container again
    // at once.
    let last = [0, 1].map(|set| format!("/var/lib/cni/networks/netwright/last_reserved_ip.{set}"));
    before.assert_same_but(&Snapshot::take(&lab), &last.each_ref().map(String::as_str));
}

#[test]
fn the_exit_code_is_the_commands() {
    require!("root");
    let lab = Lab::new("run-exit");
    let before = Snapshot::take(&lab);
    for (command, code) in [
        ("true", 0),
        ("sh -c 'exit 42'", 42),
        ("sh -c 'kill -TERM $$'", 143),
        ("/nonexistent/program", 127),
        ("/etc/passwd", 126),
    ] {
        let output = lab.try_sh(&format!("{NETWRIGHT} run -- {command}"));
        assert_eq!(output.status.code(), Some(code), "{command}: {output:?}");
    }
    assert_as_before(&before, &lab);
}

#[test]
fn a_run_that_is_terminated_leaves_nothing() {
    require!("root");
    let lab = Lab::new("run-term");
    let before = Snapshot::take(&lab);
    for signal in ["INT", "TERM", "HUP"] {
        let mut run = Run::spawn(&lab, &["--publish", "8080:80"]);
        drop(run.ready());
        lab.sh(&format!("kill -{signal} {}", run.pid()));
        let status = run.wait();
        assert!(status.code().is_some_and(|code| code > 128), "{signal}: {status}");
        assert_as_before(&before, &lab);
    }
}

#[test]
fn what_a_killed_run_left_is_collected() {
    require!("root");
    let lab = Lab::new("run-kill");
    let before = Snapshot::take(&lab);
    let mut run = Run::spawn(&lab, &["--publish", "8080:80"]);
    let running = run.ready();
    let command = running.command;
    drop(running);
    lab.sh(&format!("kill -KILL {}", run.pid()));
    run.wait();
    assert!(!before.diff(&Snapshot::take(&lab)).is_empty(), "the test shows nothing");
    lab.sh(&format!("{NETWRIGHT} gc"));
    wait_until_dead(command);
    assert_as_before(&before, &lab);
}

/// Waits until a process has ended, whichever process reaps it.
fn wait_until_dead(pid: u32) {
    let deadline = Instant::now() + testkit::TIMEOUT;
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    while !matches!(
        state().rsplit(") ").next().unwrap_or_default().chars().next(),
        None | Some('Z' | 'X')
    ) {
        assert!(Instant::now() < deadline, "the command outlived it: {}", state());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_port_is_published_once() {
    require!("root");
    let lab = Lab::new("run-taken");
    let before = Snapshot::take(&lab);
    let mut run = Run::spawn(&lab, &["--publish", "8080:80"]);
    let web = run.ready();
    let with_one = Snapshot::take(&lab);
    let output = lab.try_sh(&format!("{NETWRIGHT} run --publish 8080:80 -- true"));
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("8080"), "{said}");
    // The next address differs.
    let changed = with_one.diff(&Snapshot::take(&lab));
    let changed: Vec<_> = changed.iter().filter(|l| !l.contains("last_reserved_ip")).collect();
    assert!(changed.is_empty(), "{changed:#?}");
    drop(web);
    assert!(run.end().success());
    assert_as_before(&before, &lab);
}
