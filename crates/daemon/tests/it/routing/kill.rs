//! The service is killed at each of its changes, while it makes a node's part and while it takes it
//! away.
//!
//! It runs under `strace`, which kills it as its loop's thread enters the n-th system call that
//! sends a message to the kernel, or makes, renames or removes a file. The moments are the same in every run, however
//! busy the machine is.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};

use testkit::{Place as _, Service, Snapshot, feature, share, wait_until};

use super::{DAEMON, Fabric, torture};

/// The calls at which it is killed.
const CHANGES: &str =
    "sendto,sendmsg,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,ftruncate";

/// How many moments every run tries, and the virtual machine, which is slow. With `--full` it is a
/// share of all.
const MOMENTS: usize = 2;

/// The moments to try of `1..=all`; with `--full` others in each round.
fn chosen(all: usize) -> Vec<usize> {
    let is_slow = std::env::var_os(feature::VM_VARIABLE).is_some();
    if feature::available("full") && !is_slow {
        return share::of_this_round((1..=all).collect(), share::STRIKES);
    }
    let count = MOMENTS.min(all);
    (1..=count).map(|number| number * all / count).collect()
}

/// Returns a command of node `a` under `strace`, which writes a line for each call of [`CHANGES`],
/// and kills the program at one of them.
fn traced(fabric: &Fabric, command: &Command, moment: Option<usize>) -> Command {
    let node = &fabric.nodes[0];
    let mut traced = node.host.command("strace");
    // The program is the child that is waited for, and `strace` its grandchild.
    traced.args(["-D", "-f", "-qq", "--seccomp-bpf", "-e", &format!("trace={CHANGES}")]);
    if let Some(moment) = moment {
        traced.args(["-e", &format!("inject={CHANGES}:signal=KILL:when={moment}")]);
    }
    traced.arg("-o").arg(node.dir.join("trace"));
    // Without what enters the node: `strace` is there already.
    traced.args(command.get_args().skip_while(|word| *word != DAEMON));
    traced.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    traced
}

/// Returns how many calls the thread with the most of them has made, so far: `strace` counts for
/// each thread.
fn calls(fabric: &Fabric) -> usize {
    let trace = std::fs::read_to_string(fabric.nodes[0].dir.join("trace")).unwrap_or_default();
    let begun = trace.lines().filter(|line| line.contains('(') && !line.contains(" resumed>"));
    let mut threads = std::collections::BTreeMap::new();
    for line in begun {
        *threads.entry(line.split_whitespace().next()).or_insert(0) += 1;
    }
    threads.into_values().max().unwrap_or(0)
}

/// Starts the service on node `a`, and waits until it is dead or the node has the whole of it;
/// kills it then.
fn start_and_kill(fabric: &Fabric, whole: &[String], moment: Option<usize>) {
    let node = &fabric.nodes[0];
    let command = traced(fabric, &fabric.routing(0), moment);
    let mut service = Service::start(command, &node.dir.join("killed.log"));
    let mut ended = None;
    wait_until("the service to be dead, or done", || {
        ended = service.child().try_wait().unwrap();
        ended.is_some() || (torture::objects(node) == whole && 0 < calls(fabric))
    });
    if let Some(status) = ended {
        assert!(is_killed(status), "it ended by itself, {status}:\n{}", service.log());
    }
    service.kill();
}

fn is_killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}

/// Makes two nodes that reach each other, and takes everything from node `a`. Returns what `a` had,
/// and its host as it is now.
fn fabric_without_a(name: &str) -> (Fabric, Vec<String>, Snapshot) {
    let mut fabric = Fabric::new(name, &[1, 1]);
    fabric.start();
    fabric.assert_all_reach_all();
    let whole = torture::objects(&fabric.nodes[0]);
    fabric.uninstall(0);
    let before = Snapshot::of(&fabric.nodes[0].host);
    (fabric, whole, before)
}

/// Whenever it is killed, the next start makes the whole, and `--uninstall` alone takes everything
/// away.
#[test]
fn vm_a_service_killed_at_any_change_leaves_what_the_next_one_understands() {
    testkit::require!(
        "root",
        "vxlan",
        "vm-full",
        "program:strace",
        "program:bridge",
        "program:nft"
    );
    let (mut fabric, whole, before) = fabric_without_a("routing-kill");
    start_and_kill(&fabric, &whole, None);
    let all = calls(&fabric);
    assert!(10 < all, "it has made {all} calls");
    fabric.uninstall(0);
    before.assert_same(&Snapshot::of(&fabric.nodes[0].host));
    for (number, moment) in chosen(all).into_iter().enumerate() {
        eprintln!("killed at {moment} of {all}");
        start_and_kill(&fabric, &whole, Some(moment));
        if number % 2 == 0 {
            fabric.start_on(0);
            wait_until("the node to have the whole", || {
                torture::objects(&fabric.nodes[0]) == whole
            });
            fabric.nodes[0].assert_reaches(&fabric.nodes[1]);
        }
        fabric.uninstall(0);
        before.assert_same(&Snapshot::of(&fabric.nodes[0].host));
    }
}

/// An `--uninstall` that is killed is completed by another one, and undone by a start.
#[test]
fn vm_an_uninstall_killed_at_any_change_is_completed() {
    testkit::require!(
        "root",
        "vxlan",
        "vm-full",
        "program:strace",
        "program:bridge",
        "program:nft"
    );
    let (mut fabric, whole, before) = fabric_without_a("routing-kill-away");
    let mut leave = |moment: Option<usize>, again: bool| {
        fabric.start_on(0);
        wait_until("the node to have the whole", || torture::objects(&fabric.nodes[0]) == whole);
        assert_eq!(fabric.nodes[0].service.take().unwrap().stop(), Some(0));
        let mut command = fabric.routing(0);
        command.arg("--uninstall");
        let output = traced(&fabric, &command, moment).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(is_killed(output.status) || output.status.success(), "{}: {said}", output.status);
        if again {
            fabric.start_on(0);
            wait_until("the node to have the whole again", || {
                torture::objects(&fabric.nodes[0]) == whole
            });
            fabric.nodes[0].assert_reaches(&fabric.nodes[1]);
        }
        if moment.is_some() {
            fabric.uninstall(0);
        }
        before.assert_same(&Snapshot::of(&fabric.nodes[0].host));
        calls(&fabric)
    };
    let all = leave(None, false);
    assert!(5 < all, "it has made {all} calls");
    for (number, moment) in chosen(all).into_iter().enumerate() {
        eprintln!("killed at {moment} of {all}");
        leave(Some(moment), number % 2 == 1);
    }
}
