//! `netwrightd` without a service: it starts the enabled services and looks after them; `netwrightd
//! agent` shows them and has them read their configuration again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testkit::{Lab, Place as _};

use crate::rig::wait_for;

const DAEMON: &str = env!("CARGO_BIN_EXE_netwrightd");

/// A node with a configuration of its own, and perhaps a supervisor.
struct Node {
    lab: Lab,
    dir: PathBuf,
    supervisor: Option<Child>,
}

impl Node {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        let dir = lab.dir().join("node");
        fs::create_dir(&dir).unwrap();
        Node { lab, dir, supervisor: None }
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn file(&self) -> String {
        self.path("netwrightd.toml")
    }

    /// Writes the configuration. `{dir}` is the node's folder.
    fn configure(&self, content: &str) {
        fs::write(self.file(), content.replace("{dir}", self.dir.to_str().unwrap())).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.lab.command(DAEMON);
        command.args(arguments);
        command.env("NETWRIGHT_RUN_DIR", self.path("run"));
        command.env("NETWRIGHT_STATE_DIR", self.path("lib"));
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(&[arguments, &["--configuration", &self.file()]].concat()).output().unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn start(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log"));
        let mut command = self.command(&["--configuration", &self.file()]);
        let child = command.stdout(Stdio::null()).stderr(log.unwrap()).spawn().unwrap();
        self.supervisor = Some(child);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.supervisor.as_ref().unwrap()), signal).unwrap();
    }

    /// Ends the supervisor, and returns its exit code.
    fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.supervisor.take().unwrap().wait().unwrap().code()
    }

    fn status(&self) -> Value {
        let said = self.run(&["agent", "status", "-o", "json"]);
        serde_json::from_slice(&said.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", text(&said.stderr)))
    }

    fn service(&self, name: &str) -> Value {
        let status = self.status();
        let services = status["services"].as_array().unwrap();
        services.iter().find(|one| one["service"] == name).cloned().unwrap_or_default()
    }

    /// The processes of the services that are ready.
    fn pids(&self) -> BTreeMap<String, u64> {
        let status = self.status();
        let services = status["services"].as_array().unwrap().clone();
        let ready = services.iter().filter(|one| one["state"] == "ready");
        ready
            .map(|one| (one["service"].as_str().unwrap().to_owned(), one["pid"].as_u64().unwrap()))
            .collect()
    }

    #[track_caller]
    fn wait_until_ready(&self) {
        let said = self.run(&["agent", "status", "--wait=30s"]);
        assert!(
            said.status.success(),
            "{}{}\n{}",
            text(&said.stdout),
            text(&said.stderr),
            self.log()
        );
    }

    #[track_caller]
    fn reload(&self) -> String {
        let said = self.run(&["agent", "reload"]);
        assert!(said.status.success(), "{}{}", text(&said.stderr), self.log());
        text(&said.stdout)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut supervisor) = self.supervisor.take() {
            let _ = supervisor.kill();
            let _ = supervisor.wait();
        }
    }
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

fn signal(pid: u64, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

fn is_alive(pid: u64) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// All services that need nothing from outside.
const ALL: &str = "
[agent]
watchdog = \"5s\"
[collect]
enable = true
cache = [\"{dir}/cache\"]
[dhcp]
enable = true
socketpath = \"{dir}/dhcp.sock\"
[docker]
enable = true
socketpath = \"{dir}/docker.sock\"
cachedir = \"{dir}/cache\"
[repair]
enable = true
cache = [\"{dir}/cache\"]
";

#[test]
fn each_enabled_service_is_a_process_with_its_own_rights() {
    testkit::require!("root", "program:curl");
    let mut node = Node::new("agent-all");
    node.configure(ALL);
    let said = node.run(&["agent", "status"]);
    assert_eq!(said.status.code(), Some(1), "{}", text(&said.stderr));
    assert!(text(&said.stdout).starts_with("collect  stopped\n"), "{}", text(&said.stdout));
    node.start();
    node.wait_until_ready();
    let pids = node.pids();
    assert_eq!(pids.keys().collect::<Vec<_>>(), ["collect", "dhcp", "docker", "repair"]);
    for (service, pid) in &pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(status.contains("\nSeccomp:\t2\n"), "{service}: {status}");
        assert!(status.contains("\nNoNewPrivs:\t1\n"), "{service}: {status}");
    }
    let status = node.status();
    assert_eq!(
        (&status["agent"]["state"], &status["agent"]["service"]),
        (&"ready".into(), &"agent".into())
    );
    // From another PID namespace the same number is another process.
    let daemon = format!("{DAEMON} agent reload --configuration {}", node.file());
    let dirs =
        format!("NETWRIGHT_RUN_DIR={} NETWRIGHT_STATE_DIR={}", node.path("run"), node.path("lib"));
    let elsewhere = node.lab.try_sh(&format!("{dirs} unshare --pid --fork --mount-proc {daemon}"));
    let said = text(&elsewhere.stderr);
    assert!(said.contains("agent is in another PID namespace: call this command there"), "{said}");
    // A probe needs no program of ours.
    let socket = node.path("run/agent/agent.sock");
    let asked = node.lab.try_sh(&format!(
        "curl -s -w '%{{http_code}} ' --unix-socket {socket} http://a/readyz http://a/livez http://a/x"
    ));
    let want = "ok\n200 ok\n200 there are /status, /readyz and /livez\n404";
    assert_eq!(text(&asked.stdout).trim(), want, "{}", text(&asked.stderr));
    // It is there once.
    let twice = node.command(&["--configuration", &node.file()]).output().unwrap();
    assert_eq!(twice.status.code(), Some(1));
    assert!(
        text(&twice.stderr).contains("is in use: a daemon answers there"),
        "{}",
        text(&twice.stderr)
    );
    assert_eq!(node.pids(), pids);
    assert_eq!(node.stop(), Some(0), "{}", node.log());
    for (service, pid) in pids {
        assert!(!is_alive(pid), "{service}");
    }
    for socket in ["run/agent/agent.sock", "run/agent/dhcp.sock", "dhcp.sock", "docker.sock"] {
        assert!(!Path::new(&node.path(socket)).exists(), "{socket}");
    }
}

#[test]
fn a_service_that_is_killed_or_hangs_starts_again_and_the_others_do_not() {
    testkit::require!("root");
    let mut node = Node::new("agent-kill");
    node.configure(ALL);
    node.start();
    node.wait_until_ready();
    let before = node.pids();
    for service in ["collect", "dhcp", "docker", "repair"] {
        signal(node.pids()[service], Signal::KILL);
        let began = Instant::now();
        wait_for("the status to name it", || {
            let report = node.service(service);
            report["why"].as_str().is_some_and(|why| why.contains("signal 9 ended it"))
                || report["restarts"] == 1
        });
        assert!(began.elapsed() < Duration::from_secs(5), "{service}");
        node.wait_until_ready();
        let report = node.service(service);
        assert_ne!(report["pid"].as_u64(), before.get(service).copied());
        assert_eq!(report["restarts"], 1, "{report}");
    }
    // One that is stopped answers nobody.
    let before = node.pids();
    signal(before["repair"], Signal::STOP);
    assert_eq!(node.service("repair")["state"], "hung");
    let said = node.run(&["agent", "status"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(text(&said.stdout).contains("why: it does not answer\n"), "{}", text(&said.stdout));
    // Of one service, as a probe asks.
    assert_eq!(node.run(&["agent", "status", "repair"]).status.code(), Some(1));
    let said = node.run(&["agent", "status", "collect", "dhcp"]);
    assert_eq!(said.status.code(), Some(0), "{}", text(&said.stdout));
    assert!(!text(&said.stdout).contains("repair"), "{}", text(&said.stdout));
    assert_eq!(node.run(&["agent", "status", "ipam"]).status.code(), Some(1));
    wait_for("the watchdog", || {
        node.pids().get("repair").is_some_and(|pid| *pid != before["repair"])
    });
    let after = node.pids();
    for service in ["collect", "dhcp", "docker"] {
        assert_eq!(after[service], before[service], "{service}");
    }
    // The services do not outlive the supervisor.
    node.signal(Signal::KILL);
    node.supervisor.take().unwrap().wait().unwrap();
    wait_for("the services to end", || after.values().all(|pid| !is_alive(*pid)));
    // Nothing that they left is in the way.
    node.start();
    node.wait_until_ready();
}

#[test]
fn a_service_that_cannot_start_is_tried_less_and_less_often() {
    testkit::require!("root");
    let mut node = Node::new("agent-loop");
    node.configure(ALL);
    // Its socket's path is taken by a file.
    fs::write(node.path("dhcp.sock"), "mine").unwrap();
    node.start();
    wait_for("the second attempt", || node.service("dhcp")["restarts"] == 2);
    let report = node.service("dhcp");
    assert!(
        report["why"].as_str().is_some_and(|why| why.starts_with("it ended with exit code 1")),
        "{report}"
    );
    let why = "a file that is not a socket is there";
    assert!(report["failed"]["text"].as_str().is_some_and(|text| text.contains(why)), "{report}");
    let log = node.log();
    assert!(log.contains("ERROR netwrightd dhcp: listen at "), "{log}");
    for pause in ["pause=1s", "pause=2s"] {
        assert!(log.contains(pause), "{pause}: {log}");
    }
    let others = ["collect", "docker", "repair"];
    wait_for("the others", || others.iter().all(|other| node.pids().contains_key(*other)));
    fs::remove_file(node.path("dhcp.sock")).unwrap();
    node.wait_until_ready();
    let report = node.service("dhcp");
    assert!(!report["failed"].to_string().contains(why), "{report}");
}

#[test]
fn a_reload_disturbs_only_what_changed() {
    testkit::require!("root");
    let mut node = Node::new("agent-reload");
    node.configure(ALL);
    node.start();
    node.wait_until_ready();
    let before = node.pids();
    assert_eq!(node.reload(), "nothing starts, stops or restarts\n");
    let changed = ALL
        .replace("[docker]\nenable = true", "[docker]\nenable = false")
        .replace("[collect]\n", "[collect]\ngrace = \"7s\"\n")
        .replace("[dhcp]\n", "[dhcp]\ntimeout = \"3s\"\n");
    node.configure(&changed);
    let dry = node.run(&["agent", "reload", "--dry-run"]);
    let want = "stops docker\nrestarts dhcp: timeout\ntells collect: grace\n";
    assert_eq!(text(&dry.stdout), want);
    assert_eq!(node.pids(), before);
    assert_eq!(node.reload(), want);
    wait_for("docker to end", || !is_alive(before["docker"]));
    wait_for("dhcp to start again", || {
        node.pids().get("dhcp").is_some_and(|pid| *pid != before["dhcp"])
    });
    let after = node.pids();
    assert_eq!((after["collect"], after["repair"]), (before["collect"], before["repair"]));
    assert!(!after.contains_key("docker") && node.service("docker").is_null());
    wait_for("collect to read it", || {
        node.service("collect")["did"]["text"]
            .as_str()
            .is_some_and(|did| did.contains("changed=grace"))
    });
    // Whatever is wrong with the file: the configuration before goes on, and is said to.
    let sound = node.file();
    for (content, want) in [
        ("[repair]\nenable = maybe\n", "netwrightd.toml:2:"),
        ("[repair]\nintervall = \"1s\"\n", "has no key \"intervall\""),
        ("\0", "is no text"),
    ] {
        node.configure(content);
        let said = node.run(&["agent", "reload"]);
        assert_eq!(said.status.code(), Some(78));
        assert!(text(&said.stderr).contains(want), "{}", text(&said.stderr));
        // Somebody sends the signal nevertheless.
        let reloads = node.status()["agent"]["reloads"].as_u64().unwrap();
        node.signal(Signal::HUP);
        wait_for("the refusal", || {
            node.status()["agent"]["reloads"].as_u64().unwrap() == reloads + 1
        });
        let status = node.status();
        assert!(status["agent"]["missing"][0]["why"].as_str().unwrap().contains(want), "{status}");
        assert_eq!(node.pids(), after);
    }
    fs::remove_file(&sound).unwrap();
    let said = node.command(&["agent", "reload", "--configuration", &sound]).output().unwrap();
    assert_eq!(said.status.code(), Some(78));
    assert!(text(&said.stderr).contains("netwrightd.toml: is gone"), "{}", text(&said.stderr));
    assert_eq!(node.pids(), after);
    // A start with a wrong file goes on with what was accepted last.
    assert_eq!(node.stop(), Some(0));
    node.configure("nonsense");
    node.start();
    wait_for("the services", || node.pids().len() == 3);
    assert_eq!(node.status()["agent"]["state"], "waiting");
    node.configure(&changed);
    node.reload();
    assert_eq!(node.status()["agent"]["state"], "ready");
}

#[test]
fn many_reloads_disturb_nothing() {
    testkit::require!("root");
    let mut node = Node::new("agent-many");
    node.configure(ALL);
    node.start();
    node.wait_until_ready();
    let before = node.pids();
    let resident = |pid: u64| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let supervisor = u64::from(node.supervisor.as_ref().unwrap().id());
    let pids: Vec<u64> = before.values().copied().chain([supervisor]).collect();
    let grace = |turn: usize| {
        let seconds = turn % 2 + 5;
        node.configure(
            &ALL.replace("[collect]\n", &format!("[collect]\ngrace = \"{seconds}s\"\n")),
        );
    };
    let turns = if testkit::feature::available("full") { 1000 } else { 60 };
    let mut early = Vec::new();
    for turn in 0..turns {
        grace(turn);
        node.signal(Signal::HUP);
        let want = u64::try_from(turn).unwrap() + 1;
        wait_for("the reload", || node.status()["agent"]["reloads"].as_u64().unwrap() == want);
        if turn == turns / 4 {
            early = pids.iter().map(|pid| resident(*pid)).collect();
        }
    }
    assert_eq!(node.pids(), before);
    let late: Vec<u64> = pids.iter().map(|pid| resident(*pid)).collect();
    for (early, late) in early.iter().zip(&late) {
        assert!(*late <= early + 512, "{early} KiB became {late} KiB");
    }
}

#[test]
fn a_service_on_its_own_says_its_status_and_reads_its_configuration_again() {
    testkit::require!("root");
    let node = Node::new("agent-own");
    node.configure("[collect]\nenable = true\ncache = [\"{dir}/cache\"]\n");
    let log = node.dir.join("log");
    let mut command =
        node.command(&["collect", "--interval", "9s", "--configuration", &node.file()]);
    let mut child = command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    node.wait_until_ready();
    assert!(node.status()["agent"].is_null());
    assert_eq!(node.service("collect")["pid"], child.id());
    node.configure(
        "[log]\nformat = \"json\"\n[collect]\nenable = true\ninterval = \"1s\"\ngrace = \"4s\"\n",
    );
    // The cache counts after a restart; the flag counts before the file.
    let said = node.run(&["agent", "reload"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(
        text(&said.stderr).contains("restart collect: cache changed"),
        "{}",
        text(&said.stderr)
    );
    let line = fs::read_to_string(&log).unwrap().lines().last().unwrap().to_owned();
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["changed"], "log.format,grace");
    let report = node.service("collect");
    assert_eq!(report["outdated"], serde_json::json!(["cache"]));
    node.configure("[collect]\nact = 3\n");
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    wait_for("the refusal", || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("the configuration is wrong; the one before goes on")
    });
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!Path::new(&node.path("run/agent/collect.sock")).exists());
}

/// As in a container: nobody sends a signal, and the kubelet replaces all files at once.
#[test]
fn a_service_follows_its_configuration() {
    testkit::require!("root");
    let node = Node::new("agent-follow");
    let publish = |round: u32, content: &str| {
        let data = node.dir.join(format!("..{round}"));
        fs::create_dir(&data).unwrap();
        fs::write(
            data.join("netwrightd.toml"),
            content.replace("{dir}", node.dir.to_str().unwrap()),
        )
        .unwrap();
        std::os::unix::fs::symlink(&data, node.dir.join("..data_tmp")).unwrap();
        fs::rename(node.dir.join("..data_tmp"), node.dir.join("..data")).unwrap();
    };
    const SOUND: &str = "[repair]\nenable = true\ncache = [\"{dir}/cache\"]\n";
    publish(0, SOUND);
    std::os::unix::fs::symlink("..data/netwrightd.toml", node.file()).unwrap();
    let log = node.dir.join("log");
    let arguments = ["repair", "--confine", "--follow", "--configuration", &node.file()];
    let mut command = node.command(&arguments);
    let mut child = command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    node.wait_until_ready();
    let report = || node.service("repair");
    let value = |key: &str| report()["values"][key].as_str().unwrap_or_default().to_owned();
    publish(1, &format!("{SOUND}interval = \"7s\"\n"));
    wait_for("the interval", || value("interval") == "\"7s\"");
    assert_eq!(report()["reloads"], 1, "{}", node.log());
    // A key that needs a restart: the same process, as confined as before.
    let confined = |of: &str| {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        status.lines().find(|line| line.starts_with(of)).unwrap().to_owned()
    };
    let sets = ["CapEff", "CapBnd", "NoNewPrivs", "Seccomp:"].map(confined);
    publish(2, &SOUND.replace("{dir}/cache\"", "{dir}/cache\", \"{dir}/other\""));
    wait_for("the caches", || value("cache").contains("other"));
    wait_for("it to be ready", || report()["state"] == "ready");
    assert_eq!(
        (report()["pid"].as_u64(), report()["reloads"].as_u64()),
        (Some(child.id().into()), Some(0))
    );
    assert_eq!(["CapEff", "CapBnd", "NoNewPrivs", "Seccomp:"].map(confined), sets);
    assert_eq!(report()["unconfined"], serde_json::json!([]));
    assert_eq!(value("interval"), "\"1m\"");
    // A wrong one, and none.
    publish(3, "[repair]\nenable = true\ninterval = 3\n");
    wait_for("the refusal", || {
        report()["missing"][0]["why"].as_str().is_some_and(|why| why.contains("netwrightd.toml:3:"))
    });
    for (flags, code) in [(&["repair"][..], 1), (&["--live", "repair"], 0)] {
        let said = node.run(&[&["agent", "status"], flags].concat());
        assert_eq!(said.status.code(), Some(code), "{}", text(&said.stdout));
    }
    fs::remove_file(node.file()).unwrap();
    wait_for("the loss", || {
        let said = node.command(&["agent", "status", "repair"]).output().unwrap();
        text(&said.stdout).contains("is gone; what was read before goes on")
    });
    std::os::unix::fs::symlink("..data/netwrightd.toml", node.file()).unwrap();
    publish(4, SOUND);
    wait_for("it to be ready", || {
        report()["state"] == "ready" && !value("cache").contains("other")
    });
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", node.log());
}
