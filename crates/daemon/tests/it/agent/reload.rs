//! The services read their configuration again while they work.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use testkit::feature::available;
use testkit::share;

use super::node::{ALL, ALONE, FILE, Node, is_alive, private_memory, text, until};
use crate::ipam::rig::{ask as ask_ipam, assigned, owner};
use crate::rig::{LeaseTimes, Rig, StopGuard};
use crate::support;
use node_api::ipam::{Answer, Request};

#[test]
fn a_reload_disturbs_only_what_changed() {
    testkit::require!("root");
    let mut node = Node::new("agent-reload");
    node.configure(ALONE);
    node.start();
    let before = node.wait_until_ready(4);
    assert_eq!(node.reload(), "nothing starts, stops or restarts\n");
    let changed = ALONE
        .replace("[agent]\n", "[agent]\nlisten = \"9470\"\n")
        .replace("[docker]\nenable = true", "[docker]\nenable = false")
        .replace("[collect]\n", "[collect]\ngrace = \"7s\"\n")
        .replace("[dhcp]\n", "[dhcp]\ntimeout = \"3s\"\n");
    node.configure(&changed);
    let dry = node.run(&["agent", "reload", "--dry-run"]);
    let want = "stops docker\nrestarts dhcp: timeout\ntells agent: listen\ntells collect: grace\n";
    assert_eq!(text(&dry.stdout), want);
    assert_eq!(node.pids(), before);
    assert_eq!(node.reload(), want);
    until("docker to end", || !is_alive(before["docker"]));
    until("dhcp to start again", || {
        node.pids().get("dhcp").is_some_and(|pid| *pid != before["dhcp"])
    });
    let after = node.pids();
    assert_eq!((after["collect"], after["repair"]), (before["collect"], before["repair"]));
    assert!(!after.contains_key("docker") && node.service("docker").is_null());
    until("collect to read it", || {
        node.service("collect")["did"]["text"]
            .as_str()
            .is_some_and(|did| did.contains("changed=grace"))
    });
    assert!(node.log().contains("answers /livez, /readyz and /metrics address=127.0.0.1:9470"));
    // Whatever is wrong with the file, the agent keeps the previous configuration, and says so.
    for (content, want) in [
        ("[repair]\nenable = maybe\n", "netwrightd.toml:2:"),
        ("[repair]\nintervall = \"1s\"\n", "has no key \"intervall\""),
        ("\0", "is not text"),
    ] {
        node.configure(content);
        let said = node.run(&["agent", "reload"]);
        assert_eq!(said.status.code(), Some(78));
        assert!(text(&said.stderr).contains(want), "{}", text(&said.stderr));
        // The command sends the signal nevertheless.
        let reloads = node.status()["agent"]["reloads"].as_u64().unwrap();
        node.signal(Signal::HUP);
        until("the refusal", || node.status()["agent"]["reloads"].as_u64().unwrap() == reloads + 1);
        let status = node.status();
        assert!(status["agent"]["missing"][0]["why"].as_str().unwrap().contains(want), "{status}");
        assert_eq!(node.pids(), after);
    }
    fs::remove_file(node.path(FILE)).unwrap();
    let said = node.run(&["agent", "reload"]);
    assert_eq!(said.status.code(), Some(78));
    assert!(text(&said.stderr).contains("netwrightd.toml: is gone"), "{}", text(&said.stderr));
    assert_eq!(node.pids(), after);
    // A start with a wrong file uses the configuration that was accepted last.
    assert_eq!(node.stop(), Some(0));
    node.configure("nonsense");
    node.start();
    until("the services", || node.pids().len() == 3);
    assert_eq!(node.status()["agent"]["state"], "waiting");
    node.configure(&changed);
    node.reload();
    assert_eq!(node.status()["agent"]["state"], "ready");
}

/// A reload under load, while a lease is renewed and an API server is watched.
#[test]
fn many_reloads_lose_no_lease_and_no_watch() {
    testkit::require!("root", "program:kea-dhcp4");
    let mut node = Node::with_all("agent-many");
    let mut rig = Rig::on(support::Node::on(node.lab.clone()));
    rig.socket = "/run/cni/dhcp.sock".into();
    let server = rig.kea(LeaseTimes { valid_s: 60, t1_s: 2, t2_s: 50, router: "192.0.2.1" });
    node.start();
    let before = node.wait_until_ready(ALL.len());
    let container = rig.plugged("c1");
    rig.dhcp("ADD").to(&container).call().ok();
    let socket = node.path("/run/netwright/ipam.sock");
    let held = assigned(&socket, "lasting");
    let api = node.api.as_ref().unwrap();
    let watches = || api.asked().iter().filter(|asked| asked.verb == "watch").count();
    // kea's log has two names for an offer.
    let offers = || server.logged("DHCP4_LEASE_OFFER") + server.logged("DHCP4_LEASE_ADVERT");
    let watched = watches();
    assert!(0 < watched && offers() == 1, "{watched} {}", server.log());
    let pids: Vec<u64> = before.values().copied().chain([node.supervisor()]).collect();
    let memory = || pids.iter().map(|pid| private_memory(*pid)).collect::<Vec<_>>();
    let turns = if available("full") { share::count(1000, 200) } else { 10 };
    let (stop, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut early = Vec::new();
    thread::scope(|scope| {
        let _stopped = StopGuard(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assigned(&socket, "passing").unwrap();
                let gone = Request::Release(owner("passing"));
                assert_eq!(ask_ipam(&socket, &gone).unwrap(), Answer::Ok);
                calls.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(5));
            }
        });
        for turn in 0..turns {
            // Every service reads the configuration again, and none restarts.
            let (level, grace) = if turn % 2 == 0 { ("warn", 5) } else { ("info", 6) };
            node.configure(&format!(
                "[log]\nlevel = \"{level}\"\n{}",
                node.all().replace("[collect]\n", &format!("[collect]\ngrace = \"{grace}s\"\n"))
            ));
            node.signal(Signal::HUP);
            let want = turn + 1;
            until("the reload", || {
                let status = node.status();
                let services = status["services"].as_array().unwrap();
                services.iter().chain([&status["agent"]]).all(|one| one["reloads"] == want)
            });
            if turn == turns / 4 {
                early = memory();
            }
        }
        // The lease is renewed, and was requested only once.
        let renewed = server.logged("DHCP4_LEASE_ALLOC");
        until("a renewal", || renewed < server.logged("DHCP4_LEASE_ALLOC"));
    });
    assert_eq!(node.pids(), before);
    assert_eq!((watches(), offers()), (watched, 1));
    assert_eq!(assigned(&socket, "lasting"), held);
    assert!(turns / 2 < calls.load(Ordering::Relaxed));
    for ((service, early), late) in
        before.keys().map(String::as_str).chain(["agent"]).zip(&early).zip(memory())
    {
        assert!(late <= early + 512, "{service}: {early} KiB became {late} KiB");
    }
    assert_eq!(before.len(), ALL.len());
}
