//! Services that are killed, stopped, hang, or cannot start.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use testkit::Place as _;
use testkit::feature::available;

use super::node::{ALL, Node, is_alive, of, signal, text, until};

/// How soon the status must name a service. The short time applies only to a full run, which has
/// the machine for itself.
const SOON: Duration = Duration::from_secs(5);

/// Asserts that the status has named services soon enough.
#[track_caller]
fn assert_soon(began: Instant, services: &[&str]) {
    assert!(!available("full") || began.elapsed() < SOON, "{services:?}");
}

/// The groups of services that fail at the same time. With `--full` each service fails alone.
fn rounds() -> impl Iterator<Item = &'static [&'static str]> {
    ALL.chunks(if available("full") { 1 } else { 4 })
}

/// The processes of the other services.
fn others(pids: &BTreeMap<String, u64>, failing: &[&str]) -> BTreeMap<String, u64> {
    let others = pids.iter().filter(|(service, _)| !failing.contains(&service.as_str()));
    others.map(|(service, pid)| (service.clone(), *pid)).collect()
}

#[test]
fn a_service_that_is_killed_again_and_again_disturbs_no_other() {
    testkit::require!("root");
    let mut node = Node::with_all("agent-kill");
    node.start();
    let mut pids = node.wait_until_ready(ALL.len());
    let times = if available("full") { 4 } else { 2 };
    for failing in rounds() {
        let before = others(&pids, failing);
        for count in 1..=times {
            for service in failing {
                signal(pids[*service], Signal::KILL);
            }
            let began = Instant::now();
            let is_named = |report: &Value| {
                report["ended"] == "signal 9 ended it"
                    && (report["restarts"] == count || report["state"] == "failed")
            };
            until("the status to name them", || {
                let status = node.status();
                failing.iter().all(|service| is_named(&of(&status, service)))
            });
            assert_soon(began, failing);
            pids = node.wait_until_ready(ALL.len());
            for service in failing {
                assert_eq!(node.service(service)["restarts"], count, "{service}");
            }
        }
        assert_eq!(others(&pids, failing), before);
    }
    let log = node.log();
    for service in ALL {
        let pauses: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("it starts again") && line.contains(service))
            .filter_map(|line| line.split_once("pause=")?.1.split_whitespace().next())
            .collect();
        let want = ["100ms", "200ms", "400ms", "800ms"];
        assert_eq!(pauses, want[..times], "{service}: {log}");
    }
    let said = text(&node.run(&["agent", "status"]).stdout);
    assert!(said.contains(&format!("restarts: {times} (signal 9 ended it)\n")), "{said}");
    // The services do not outlive the supervisor, whichever user they run as.
    node.signal(Signal::KILL);
    node.ended();
    until("the services to end", || pids.values().all(|pid| !is_alive(*pid)));
    // Nothing that they left prevents the next start.
    node.start();
    node.wait_until_ready(ALL.len());
}

#[test]
fn a_service_that_is_stopped_is_named_and_disturbs_no_other() {
    testkit::require!("root");
    let mut node = Node::with_all("agent-stop");
    node.configure(&node.all().replace("\"5s\"", "\"2m\""));
    node.start();
    let pids = node.wait_until_ready(ALL.len());
    for stopped in rounds() {
        for service in stopped {
            signal(pids[*service], Signal::STOP);
        }
        let began = Instant::now();
        let said = node.run(&["agent", "status"]);
        assert_soon(began, stopped);
        assert_eq!(said.status.code(), Some(1));
        let said = text(&said.stdout);
        for service in ALL {
            let state = if stopped.contains(&service) { "hung" } else { "ready" };
            let line = said.lines().find(|line| line.starts_with(service)).unwrap();
            assert_eq!(line.split_whitespace().nth(1), Some(state), "{said}");
        }
        assert!(said.contains("why: it does not answer\n"), "{said}");
        for service in stopped {
            signal(pids[*service], Signal::CONT);
        }
        assert_eq!(node.wait_until_ready(ALL.len()), pids);
    }
}

/// A process that does not answer is killed once `[agent] watchdog` is over.
#[test]
fn each_service_that_stays_stopped_starts_again() {
    testkit::require!("root", "full");
    let mut node = Node::with_all("agent-watchdog");
    node.start();
    let mut pids = node.wait_until_ready(ALL.len());
    for stopped in ALL {
        signal(pids[stopped], Signal::STOP);
        let before = others(&pids, &[stopped]);
        until("another process", || {
            node.pids().get(stopped).is_some_and(|pid| *pid != pids[stopped])
        });
        pids = node.wait_until_ready(ALL.len());
        assert_eq!(others(&pids, &[stopped]), before, "{stopped}");
        assert_eq!(node.service(stopped)["restarts"], 1);
    }
}

/// The loop waits for a plugin that does not end. The thread beside the loop still answers, and
/// reports that.
#[test]
fn a_service_whose_loop_hangs_starts_again() {
    testkit::require!("root", "full");
    let mut node = Node::new("agent-hang");
    let enabled =
        super::node::ALONE.replace("[collect]\n", "[collect]\nact = true\ngrace = \"0s\"\n");
    node.configure(&enabled);
    let config = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"stuck"}]}"#;
    node.lab.sh(&format!(
        "mkdir -p /opt/cni/bin /var/lib/cni/results
         printf '#!/bin/sh\nexec sleep 20\n' >/opt/cni/bin/stuck && chmod 755 /opt/cni/bin/stuck
         config=$(printf '%s' '{config}' | base64 -w0)
         printf '{{\"kind\":\"cniCacheV1\",\"containerId\":\"c1\",\"config\":\"%s\",\"ifName\":\"eth0\",\
                   \"networkName\":\"n\",\"netns\":\"/run/netns/gone\",\"result\":{{\"cniVersion\":\"1.0.0\",\
                   \"interfaces\":[{{\"name\":\"eth0\",\"mac\":\"02:00:00:00:00:99\",\
                   \"sandbox\":\"/run/netns/gone\"}}]}}}}' \
                   \"$config\" >/var/lib/cni/results/n-c1-eth0"
    ));
    node.start();
    until("the services", || node.pids().len() == 3 || node.service("collect")["state"] == "hung");
    let collect = || node.service("collect");
    let pid = collect()["pid"].clone();
    until("the status to name it", || collect()["state"] == "hung");
    let why = collect()["why"].as_str().unwrap_or_default().to_owned();
    assert!(why.starts_with("it has not gone on for "), "{why}");
    let probe = node.ask("/run/netwright/agent/agent.sock", "/livez").unwrap();
    assert!(probe.starts_with("collect hung: it has not gone on for "), "{probe}");
    until("another process", || !collect()["pid"].is_null() && collect()["pid"] != pid);
    assert!(node.log().contains("killed: it did not go on"));
    let services = node.status()["services"].as_array().unwrap().clone();
    for other in services.iter().filter(|one| one["service"] != "collect") {
        assert_eq!((&other["state"], &other["restarts"]), (&"ready".into(), &0.into()), "{other}");
    }
}

#[test]
fn a_service_that_cannot_start_is_tried_less_and_less_often() {
    testkit::require!("root");
    let mut node = Node::with_all("agent-loop");
    // Files have the paths of two sockets.
    node.lab.sh("mkdir -p /run/cni /run/netwright");
    let taken = ["/run/cni/dhcp.sock", "/run/netwright/ipam.sock"];
    for path in taken {
        fs::write(node.path(path), "mine").unwrap();
    }
    node.start();
    let why = "a file that is not a socket is there";
    until("several attempts", || {
        let status = node.status();
        ["dhcp", "ipam"].iter().all(|service| of(&status, service)["restarts"].as_u64() >= Some(2))
    });
    for service in ["dhcp", "ipam"] {
        // For a moment the service has ended, and has not yet said why.
        until("the reason", || {
            let report = node.service(service);
            assert_eq!(report["ended"], "it ended with exit code 1", "{report}");
            report["failed"]["text"].as_str().unwrap_or_default().contains(why)
        });
    }
    let log = node.log();
    assert!(log.contains("ERROR netwrightd dhcp: listen at "), "{log}");
    for pause in ["100ms", "200ms"] {
        assert!(log.contains(&format!("pause={pause}")), "{pause}: {log}");
    }
    until("the others", || node.pids().len() == ALL.len() - taken.len());
    // A probe asks about some services only.
    let status = |of: &[&str]| node.run(&[&["agent", "status"], of].concat());
    assert_eq!(status(&["dhcp", "collect"]).status.code(), Some(1));
    let said = status(&["collect", "repair"]);
    assert_eq!(said.status.code(), Some(0), "{}", text(&said.stdout));
    assert!(!text(&said.stdout).contains("dhcp"), "{}", text(&said.stdout));
    for path in taken {
        assert_eq!(fs::read_to_string(node.path(path)).unwrap(), "mine");
        fs::remove_file(node.path(path)).unwrap();
    }
    node.wait_until_ready(ALL.len());
    for service in ["dhcp", "ipam"] {
        let report = node.service(service);
        assert!(!report["failed"].to_string().contains(why), "{report}");
    }
}
