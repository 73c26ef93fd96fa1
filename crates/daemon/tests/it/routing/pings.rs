//! Continuous pings between all pods, of which none may be lost.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use testkit::{Place as _, RunningProgram, wait_until};

use super::Fabric;

/// How many pings there are each second, of all pods together.
const PINGS: usize = 500;

/// Continuous pings from one pod to another.
pub(super) struct Pings {
    ping: RunningProgram,
    /// A line for each answer.
    answers: PathBuf,
    /// Its answers to the question how many it has sent.
    said: PathBuf,
}

impl Pings {
    /// Starts pings between all pods, in both families and both directions.
    pub(super) fn everywhere(fabric: &Fabric) -> Vec<Pings> {
        let mut all = Vec::new();
        let nodes = fabric.nodes.len();
        // Each pod pings the pod of each other node, in two families.
        let milliseconds = nodes * (nodes - 1) * 2 * 1000 / PINGS;
        for from in &fabric.nodes {
            for to in fabric.nodes.iter().filter(|to| to.number != from.number) {
                for address in to.pod_addresses() {
                    let name = format!("ping-{}-{address}", from.name());
                    let answers = fabric.lab.dir().join(name.replace(':', "_"));
                    let said = answers.with_added_extension("said");
                    let line = format!(
                        "exec ping -n -i 0.{milliseconds:03} {address} >{} 2>{}",
                        answers.display(),
                        said.display()
                    );
                    let ping = from.pod.start("sh", &["-c", &line]);
                    all.push(Pings { ping, answers, said });
                }
            }
        }
        for pings in &mut all {
            wait_until("a ping to begin", || pings.has_begun());
        }
        all
    }

    /// Says whether the program itself runs: before that, the signal with which the test asks it
    /// would end its process.
    fn has_begun(&mut self) -> bool {
        let status = format!("/proc/{}/status", self.ping.child().id());
        let status = fs::read_to_string(status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        // man 7 signal: SIGQUIT is 3.
        caught & (1 << 2) != 0
    }

    /// Returns how many it had sent, for each time that it was asked.
    fn counts(&self) -> Vec<u16> {
        let said = fs::read_to_string(&self.said).unwrap();
        let (whole, _) = said.rsplit_once('\n').unwrap_or_default();
        let counts = whole.lines().filter_map(|line| {
            let (counts, _) = line.rsplit('\r').next()?.split_once(" packets, ")?;
            counts.split_once('/')?.1.parse().ok()
        });
        counts.collect()
    }

    /// Returns the numbers of those that were answered.
    fn answered(&self) -> BTreeSet<u16> {
        let answers = fs::read_to_string(&self.answers).unwrap();
        let (whole, _) = answers.rsplit_once('\n').unwrap_or_default();
        let numbers = whole.lines().filter_map(|line| {
            let (_, rest) = line.split_once("icmp_seq=")?;
            rest.split_once(' ')?.0.parse().ok()
        });
        numbers.collect()
    }

    /// Ends the pings. Returns how many were sent, and the numbers of those that were not answered;
    /// waits for the answers that are still on their way.
    fn lost(mut self) -> Loss {
        kill_process(Pid::from_child(self.ping.child()), Signal::QUIT).unwrap();
        wait_until("ping to say how many it has sent", || !self.counts().is_empty());
        let sent = self.counts()[0];
        let lost = || -> Vec<u16> {
            let answered = self.answered();
            (1..=sent).filter(|number| !answered.contains(number)).collect()
        };
        let begin = Instant::now();
        wait_until("all answers", || lost().is_empty() || super::SOON < begin.elapsed());
        Loss { way: self.said.display().to_string(), sent, numbers: lost() }
    }

    /// Asserts that every ping so far was answered, and ends the pings. Otherwise says which ways
    /// have lost some, and what the kernel counts as lost.
    #[track_caller]
    pub(super) fn assert_nothing_lost(fabric: &Fabric, all: Vec<Pings>) {
        let all: Vec<Loss> = all.into_iter().map(Pings::lost).collect();
        let is_bad = |one: &&Loss| one.sent == 0 || !one.numbers.is_empty();
        let bad: Vec<String> = (all.iter().filter(is_bad))
            .map(|Loss { way, sent, numbers }| format!("{way}: lost {numbers:?} of {sent}"))
            .collect();
        if bad.is_empty() {
            return;
        }
        let counted: Vec<String> = (fabric.nodes.iter())
            .map(|node| format!("{}: {}", node.name(), node.host.sh(COUNTED)))
            .collect();
        panic!("{bad:#?}\n{}", counted.join("\n"));
    }
}

/// What was lost on one way.
struct Loss {
    way: String,
    sent: u16,
    numbers: Vec<u16>,
}

/// Prints what the kernel counts of packets that it has dropped: queues of processors, connection
/// tracking, IP, and links.
const COUNTED: &str = "cat /proc/net/softnet_stat /proc/net/stat/nf_conntrack; \
     grep -E 'Discards|NoRoutes|Errors' /proc/net/snmp6 | grep -v '\\s0$'; \
     grep '^Ip:' /proc/net/snmp; ip -s -s link; true";
