//! Pings between all pods, all the time, of which none may be lost.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use testkit::{Place as _, Running, wait_until};

use super::Fabric;

/// How many pings there are each second, of all pods together.
const PINGS: usize = 500;

/// How often it is asked whether all are answered before one counts as lost: one may be on its way.
const LOOKS: usize = 200;

/// Pings from one pod to another all the time.
pub(super) struct Pings {
    ping: Running,
    /// What it says when it is asked: how many it has sent, and how many were answered.
    said: PathBuf,
}

impl Pings {
    /// Starts pings between all pods, in both families and both directions.
    pub(super) fn everywhere(fabric: &Fabric) -> Vec<Pings> {
        let mut all = Vec::new();
        let nodes = fabric.nodes.len();
        // To each other node in two families.
        let milliseconds = nodes * (nodes - 1) * 2 * 1000 / PINGS;
        for from in &fabric.nodes {
            for to in fabric.nodes.iter().filter(|to| to.number != from.number) {
                for address in to.pod_addresses() {
                    let name = format!("ping-{}-{address}", from.name());
                    let said = fabric.lab.dir().join(name.replace(':', "_"));
                    let line = format!(
                        "exec ping -n -q -i 0.{milliseconds:03} {address} >/dev/null 2>{}",
                        said.display()
                    );
                    all.push(Pings { ping: from.pod.start("sh", &["-c", &line]), said });
                }
            }
        }
        for pings in &mut all {
            wait_until("a ping to begin", || pings.has_begun());
        }
        all
    }

    /// Says whether the program runs: only it takes the signal by which it is asked.
    fn has_begun(&mut self) -> bool {
        let status = format!("/proc/{}/status", self.ping.child().id());
        let status = fs::read_to_string(status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        // man 7 signal: SIGQUIT is 3.
        caught & (1 << 2) != 0
    }

    /// Returns how many it had sent and how many were answered, each time that it was asked.
    fn counts(&self) -> Vec<(u64, u64)> {
        let said = fs::read_to_string(&self.said).unwrap();
        let (whole, _) = said.rsplit_once('\n').unwrap_or_default();
        let counts = whole.lines().filter_map(|line| {
            let (counts, _) = line.rsplit('\r').next()?.split_once(" packets, ")?;
            let (sent, answered) = counts.split_once('/')?;
            Some((sent.parse().ok()?, answered.parse().ok()?))
        });
        counts.collect()
    }

    /// Asserts that every one so far was answered, and ends them. There is a moment at which none
    /// is on its way: then as many were answered as were sent, or one is lost.
    #[track_caller]
    pub(super) fn assert_nothing_lost(mut self) {
        let pid = Pid::from_child(self.ping.child());
        for _ in 0..LOOKS {
            let told = self.counts().len();
            kill_process(pid, Signal::QUIT).unwrap();
            wait_until("ping to say how many were answered", || told < self.counts().len());
            let (sent, answered) = self.counts()[told];
            if 0 < sent && sent == answered {
                return;
            }
        }
        let name = self.said.display();
        panic!("{name}: {:?} sent and answered", self.counts().last());
    }
}
