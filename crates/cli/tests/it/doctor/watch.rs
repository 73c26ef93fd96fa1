//! `doctor --watch` looks again at each change, and sleeps between changes.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testkit::{Place as _, Snapshot, require, wait_until};

use super::situations::node::Node;
use crate::support::{Scratch, command_in};

/// A `doctor` that watches, and its output.
struct WatchProcess {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl WatchProcess {
    fn start(node: &Node, more: &[&str]) -> Self {
        let arguments = [&["doctor", "--watch", "--output", "json"], more].concat();
        let mut command = command_in(&node.lab, &arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        WatchProcess { child, lines }
    }

    /// Reads its output until it reports this finding, or none.
    #[track_caller]
    fn until(&mut self, expected: Option<&str>) {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended before {expected:?}: {:?}", self.child.wait());
            let said: Value = serde_json::from_str(&line).unwrap();
            let findings = said["findings"].as_array().unwrap();
            let mut ids = findings.iter().map(|one| one["id"].as_str().unwrap());
            let is_found = match expected {
                Some(id) => ids.any(|one| one == id),
                None => findings.is_empty(),
            };
            if is_found {
                return;
            }
        }
    }

    /// How often the process went to sleep.
    fn sleeps(&self) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:"));
        line.unwrap().to_owned()
    }

    /// Says whether it waits for a change without a time limit, by `ppoll` on everything that it
    /// listens to. In the pause after a look it waits only for signals, with a time limit.
    fn waits(&self) -> bool {
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", self.child.id())).unwrap();
        let mut words = call.split(' ').skip(2);
        (words.next(), words.next()) == (Some("0x4"), Some("0x0"))
    }

    /// Waits until it does nothing while nothing changes: it neither looks at intervals, nor reacts
    /// to its own changes.
    #[track_caller]
    fn rests(&self, node: &Node) {
        wait_until("it rests", || {
            let before = self.sleeps();
            // This is longer than its own wait for quiet.
            for _ in 0..2 {
                let _ = Snapshot::take(&node.lab);
            }
            self.waits() && self.sleeps() == before
        });
    }

    /// Ends it with a signal. Returns its exit code.
    #[track_caller]
    fn end(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "it said more");
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(errors, "");
        self.child.wait().unwrap().code()
    }
}

#[test]
fn changes_are_told_until_a_signal_ends_it() {
    require!("root");
    let node = Node::new("doctor-watch");
    let before = Snapshot::take(&node.lab);
    let mut watching = WatchProcess::start(&node, &["--no-probe"]);
    watching.until(None);
    // A change in a container, and one in a folder.
    node.lab.sh("ip -n c1 link set lo down");
    watching.until(Some("loopback-down"));
    node.network("05-broken", "{");
    watching.until(Some("network-broken"));
    node.lab.sh("rm /etc/cni/net.d/05-broken.conflist; ip -n c1 link set lo up");
    watching.until(None);
    assert_eq!(watching.end(Signal::TERM), Some(0));
    assert_eq!(before.diff(&Snapshot::take(&node.lab)), [""; 0]);
    assert!(node.lab.processes().is_empty(), "{:?}", node.lab.processes());
}

/// It makes tables to follow probes. The kernel reports these changes like all others.
#[test]
fn it_does_not_hear_what_it_does_itself() {
    require!("root", "program:nft", "full");
    let node = Node::new("doctor-watch-probes");
    let mut watching = WatchProcess::start(&node, &["--to", "203.0.113.2:80"]);
    watching.until(None);
    watching.rests(&node);
    node.lab.sh(
        "nft 'add table inet other; add chain inet other forward { type filter hook forward priority 0; }; \
         add rule inet other forward ip daddr 203.0.113.2 meta length > 20 drop'",
    );
    watching.until(Some("forward-dropped"));
    watching.rests(&node);
    // The exit code is that of the last look.
    assert_eq!(watching.end(Signal::INT), Some(1));
}

/// It looks again also where the kernel tells of no change, and says what it found last.
#[test]
fn it_waits_until_nothing_is_wrong() {
    require!("root");
    let node = Node::new("doctor-wait");
    let wait = |seconds: &str| {
        let arguments = ["doctor", "--no-probe", "--output", "json", "--wait", seconds];
        let mut command = command_in(&node.lab, &arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let said = |child: Child| {
        let output = child.wait_with_output().unwrap();
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), said["findings"].as_array().unwrap().clone())
    };
    node.lab.sh("ip -n c1 link set lo down");
    let (code, findings) = said(wait("0"));
    assert_eq!(code, Some(1));
    assert_eq!(findings[0]["id"], "loopback-down");
    assert_eq!(findings[0]["page"], "docs/findings.md#loopback-down");
    let waiting = wait("100");
    node.lab.sh("sleep 1; ip -n c1 link set lo up");
    assert_eq!(said(waiting), (Some(0), Vec::new()));
}

#[test]
fn a_bundle_is_not_watched() {
    let scratch = Scratch::new();
    for other in ["--bundle", "--from"] {
        let said = scratch.call(&["doctor", "--watch", other, "file"]).failed(2);
        assert!(said.stderr.contains("--watch"), "{said:#?}");
    }
}
