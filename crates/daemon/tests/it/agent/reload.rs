//! The services read their configuration again while they work.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use testkit::Place as _;
use testkit::feature::available;
use testkit::share;

use super::node::{ALL, ALONE, DAEMON, FILE, Node, is_alive, private_memory, text, until};
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
/// `agent status` says what runs and, beside it, what the file says that does not count yet.
#[test]
fn the_status_tells_what_runs_and_what_the_file_says() {
    testkit::require!("root");
    let mut node = Node::new("agent-status");
    let sound = "[collect]\nenable = true\n[repair]\nenable = true\n";
    node.configure(sound);
    node.start();
    node.wait_until_ready(2);
    let status = |more: &[&str]| {
        let said = node.run(&[&["agent", "status"], more].concat());
        (said.status.code(), text(&said.stdout), text(&said.stderr))
    };
    let (code, shown, _) = status(&[]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(!shown.contains("hint: "), "{shown}");
    // A mistake, and what is no TOML.
    let wrong = [
        ("[repair]\nintervall = \"1s\"\n", "has no key \"intervall\""),
        ("[repair\n", "unclosed table"),
    ];
    for (content, want) in wrong {
        node.configure(content);
        for more in [&[][..], &["repair"], &["--wait=1s"], &["-o", "json"]] {
            let (code, shown, error) = status(more);
            assert_eq!(code, Some(78), "{shown}{error}");
            assert!(shown.contains("repair") && shown.contains("ready"), "{shown}");
            assert!(error.contains(want), "{error}");
        }
        assert_eq!(status(&["--live"]).0, Some(0));
    }
    // What a sound file says counts after a reload.
    let changed = sound.replace(
        "enable = true\n[repair]\n",
        "enable = true\n[dhcp]\nenable = true\n[repair]\ninterval = \"7s\"\n",
    );
    node.configure(&changed);
    let (code, shown, _) = status(&[]);
    assert_eq!(code, Some(1), "{shown}");
    let want = "hint: netwrightd agent reload (starts dhcp; tells repair: interval)\n";
    assert!(shown.contains(want) && shown.contains("dhcp     stopped\n"), "{shown}");
    node.reload();
    until("the reload", || status(&[]).0 == Some(0));
    until("repair to read it", || !status(&[]).1.contains("hint: "));
    // One that is not enabled is named as such.
    let (code, shown, _) = status(&["docker"]);
    assert_eq!(code, Some(1));
    assert!(shown.contains("hint: it is not enabled: set enable = true in [docker]"), "{shown}");
    // A supervisor that does not answer is not ready.
    node.signal(Signal::STOP);
    let (code, shown, _) = status(&[]);
    node.signal(Signal::CONT);
    assert!(code == Some(1) && shown.starts_with("agent    hung"), "{code:?} {shown}");
}

/// The supervisor's own file counts, and not the usual one.
#[test]
fn the_supervisors_file_counts() {
    testkit::require!("root");
    let mut node = Node::new("agent-file");
    node.configure("[docker]\nenable = true\n");
    let other = "/etc/netwright/other.toml";
    fs::write(node.path(other), "[repair]\nenable = true\n").unwrap();
    let command = node.command(&["--configuration", other]);
    node.start_as(command);
    node.wait_until_ready(1);
    assert_eq!(node.reload(), "nothing starts, stops or restarts\n");
    assert!(node.run(&["agent", "status"]).status.success());
    for verb in ["status", "reload"] {
        let said = node.run(&["agent", verb, "--configuration", FILE]);
        let want = format!("the agent that runs reads {other}, and not {FILE}");
        assert_eq!(said.status.code(), Some(1));
        assert!(text(&said.stderr).contains(&want), "{}", text(&said.stderr));
    }
    fs::write(node.path(other), "[repair]\nenable = true\n[collect]\nenable = true\n").unwrap();
    assert_eq!(node.reload(), "starts collect\n");
    node.wait_until_ready(2);
}

/// No service says anything to another user, who would take them for hung.
#[test]
fn the_services_answer_root_alone() {
    testkit::require!("root");
    let mut node = Node::new("agent-user");
    node.configure("[repair]\nenable = true\n");
    node.start();
    node.wait_until_ready(1);
    for words in [&["agent", "status"][..], &["agent", "reload"], &["agent", "metrics"]] {
        let mut command = node.lab.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", DAEMON]).args(words);
        let said = command.output().unwrap();
        let want = "services answer root alone, and this is user 65534";
        assert_eq!(said.status.code(), Some(1), "{}", text(&said.stdout));
        assert!(text(&said.stderr).contains(want), "{}", text(&said.stderr));
    }
}

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
