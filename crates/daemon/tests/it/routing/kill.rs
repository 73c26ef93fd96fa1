//! The service is killed at each of its changes: while it programs a node, takes a node over from
//! flanneld, follows the list of nodes, repairs what other programs have removed, and uninstalls
//! itself.
//!
//! It runs under `strace`, which kills it as its loop's thread enters the n-th system call that
//! sends a message to the kernel, or makes, renames or removes a file. The moments are the same in
//! every run, however busy the machine is. In one test the service is not killed but stopped, and
//! the test damages the node meanwhile.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};

use testkit::{
    Place as _, RunningProgram, Service, Snapshot, feature, share, wait_until, wait_until_or_tell,
};

use super::flannel::{self, Backend};
use super::pings::Pings;
use super::{DAEMON, FLANNELS_TUNNELS, Fabric, Node, damage, torture};

/// The calls at which it is killed.
const CHANGES: &str =
    "sendto,sendmsg,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,ftruncate";

/// How many moments every run tries. The virtual machine, which is slow, never tries more.
/// Elsewhere `--full` tries a share of all moments.
const MOMENTS: usize = 2;

/// The moments to try of `1..=all`. With `--full` each round tries other ones.
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
    // With `-D` the program is our child, for which the test waits, and `strace` is its grandchild.
    traced.args(["-D", "-f", "-qq", "--seccomp-bpf", "-e", &format!("trace={CHANGES}")]);
    if let Some(moment) = moment {
        traced.args(["-e", &format!("inject={CHANGES}:signal=KILL:when={moment}")]);
    }
    traced.arg("-o").arg(node.dir.join("trace"));
    // The words that enter the node are left out: `strace` is in the node already.
    traced.args(command.get_args().skip_while(|word| *word != DAEMON));
    traced.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    traced
}

/// Returns how many calls the thread with the most calls has made so far, because `strace` counts
/// the calls of each thread.
fn calls(fabric: &Fabric) -> usize {
    let trace = std::fs::read_to_string(fabric.nodes[0].dir.join("trace")).unwrap_or_default();
    let begun = trace.lines().filter(|line| line.contains('(') && !line.contains(" resumed>"));
    let mut threads = std::collections::BTreeMap::new();
    for line in begun {
        *threads.entry(line.split_whitespace().next()).or_insert(0) += 1;
    }
    threads.into_values().max().unwrap_or(0)
}

/// The kernel's objects of a node, whether its tunnels have our names or flanneld's.
type Objects = fn(&Node) -> Vec<String>;

/// Reports whether these are the lines of the whole. The order does not count, because a new set
/// lists its elements in another order.
fn is_whole(lines: &[String], whole: &[String]) -> bool {
    let words = |lines: &[String]| {
        let words = lines.iter().flat_map(|line| line.split([' ', '\t', ',']));
        let mut words: Vec<String> = words.map(str::to_owned).collect();
        words.sort_unstable();
        words
    };
    words(lines) == words(whole)
}

/// Waits until a node has all objects of the whole.
#[track_caller]
fn wait_for_whole(node: &Node, whole: &[String]) {
    wait_until_or_tell(
        "the node to have the whole",
        || is_whole(&torture::objects(node), whole),
        || torture::differences(whole, &torture::objects(node)),
    );
}

/// Starts the service on node `a`, and waits until it is dead or the node has the whole. Then kills
/// it if it still runs.
fn start_and_kill(fabric: &Fabric, objects: Objects, whole: &[String], moment: Option<usize>) {
    let node = &fabric.nodes[0];
    let command = traced(fabric, &fabric.routing(0), moment);
    let mut service = Service::start(command, &node.dir.join("killed.log"));
    let mut ended = None;
    wait_until_or_tell(
        "the service to be dead, or done",
        || {
            ended = service.child().try_wait().unwrap();
            ended.is_some() || (is_whole(&objects(node), whole) && 0 < calls(fabric))
        },
        || torture::differences(whole, &objects(node)),
    );
    if let Some(status) = ended {
        assert!(is_killed(status), "it ended by itself, {status}:\n{}", service.log());
    }
    service.kill();
}

fn is_killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}

/// Makes two nodes that reach each other, and uninstalls the service on node `a`. Returns what `a`
/// had, and a snapshot of its host afterwards.
fn fabric_without_a(name: &str) -> (Fabric, Vec<String>, Snapshot) {
    let mut fabric = Fabric::new(name, &[1, 1]);
    fabric.start();
    fabric.assert_all_reach_all();
    let whole = torture::objects(&fabric.nodes[0]);
    fabric.uninstall(0);
    let before = Snapshot::of(&fabric.nodes[0].host);
    (fabric, whole, before)
}

/// At whatever moment the service is killed, the next start makes the whole, and `--uninstall`
/// alone removes everything.
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
    start_and_kill(&fabric, torture::objects, &whole, None);
    let all = calls(&fabric);
    assert!(10 < all, "it has made {all} calls");
    fabric.uninstall(0);
    before.assert_same(&Snapshot::of(&fabric.nodes[0].host));
    for (number, moment) in chosen(all).into_iter().enumerate() {
        eprintln!("killed at {moment} of {all}");
        start_and_kill(&fabric, torture::objects, &whole, Some(moment));
        if number % 2 == 0 {
            fabric.start_on(0);
            wait_for_whole(&fabric.nodes[0], &whole);
            fabric.nodes[0].assert_reaches(&fabric.nodes[1]);
        }
        fabric.uninstall(0);
        before.assert_same(&Snapshot::of(&fabric.nodes[0].host));
    }
}

/// If `--uninstall` is killed, another `--uninstall` completes it, and a start of the service
/// undoes it.
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
        wait_for_whole(&fabric.nodes[0], &whole);
        assert_eq!(fabric.nodes[0].service.take().unwrap().stop(), Some(0));
        let mut command = fabric.routing(0);
        command.arg("--uninstall");
        let output = traced(&fabric, &command, moment).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(is_killed(output.status) || output.status.success(), "{}: {said}", output.status);
        if again {
            fabric.start_on(0);
            wait_for_whole(&fabric.nodes[0], &whole);
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

/// Attaches `strace` to the loop of the service of node `a`, which is the first thread of its
/// process. From now on `strace` writes a line for each call of [`CHANGES`], and sends a signal at
/// one of them.
fn attach(fabric: &Fabric, at: Option<(&str, usize)>) -> RunningProgram {
    let node = &fabric.nodes[0];
    let pid = node.service.as_ref().unwrap().pid();
    let mut strace = node.host.command("strace");
    strace.args(["-qq", "-e", "signal=none", "-e", &format!("trace={CHANGES}")]);
    if let Some((signal, moment)) = at {
        strace.args(["-e", &format!("inject={CHANGES}:signal={signal}:when={moment}")]);
    }
    strace.arg("-o").arg(node.dir.join("trace")).args(["-p", &pid.to_string()]);
    let strace = RunningProgram::from(strace.stdin(Stdio::null()).spawn().unwrap());
    wait_until("the loop to be traced", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        !status.is_empty() && !status.contains("TracerPid:\t0\n")
    });
    strace
}

/// Returns how many calls the service's loop has made since `strace` was attached.
fn calls_of_loop(fabric: &Fabric) -> usize {
    let trace = std::fs::read_to_string(fabric.nodes[0].dir.join("trace")).unwrap_or_default();
    trace.lines().filter(|line| line.contains('(')).count()
}

/// Makes a change to which the service of node `a` reacts, waits until the service is dead or the
/// node has the whole, and starts the next service.
fn strike(fabric: &mut Fabric, moment: usize, whole: &[String], act: impl FnOnce(&Fabric)) {
    let strace = attach(fabric, Some(("KILL", moment)));
    act(fabric);
    let mut service = fabric.nodes[0].service.take().unwrap();
    let mut ended = None;
    wait_until_or_tell(
        "the service to be dead, or done",
        || {
            ended = service.child().try_wait().unwrap();
            ended.is_some() || is_whole(&torture::objects(&fabric.nodes[0]), whole)
        },
        || torture::differences(whole, &torture::objects(&fabric.nodes[0])),
    );
    if let Some(status) = ended {
        assert!(is_killed(status), "it ended by itself, {status}:\n{}", service.log());
    }
    service.kill();
    drop(strace);
    fabric.start_on(0);
}

/// A list of nodes, and the signs that node `a` has carried it out: what its kernel then has, and
/// what it no longer has.
struct Stage {
    list: String,
    has: &'static [&'static str],
    lacks: &'static [&'static str],
}

impl Stage {
    /// Writes the list, waits until node `a` has carried it out, and returns what the node has.
    fn reach(&self, fabric: &Fabric) -> Vec<String> {
        fabric.write_list(&self.list);
        let mut objects = Vec::new();
        wait_until("node a to follow the list", || {
            objects = torture::objects(&fabric.nodes[0]);
            let text = objects.join("\n");
            fabric.routes(0)["phase"] == "ready"
                && self.has.iter().all(|words| text.contains(words))
                && !self.lacks.iter().any(|words| text.contains(words))
        });
        objects
    }
}

/// The service is killed while it follows the list, in which a node is added, gets other addresses
/// or is removed. The next service does the rest, and pods of the other nodes lose no packet
/// meanwhile.
#[test]
fn vm_a_service_killed_while_it_follows_the_list_leaves_what_the_next_one_understands() {
    testkit::require!(
        "root",
        "vxlan",
        "full",
        "program:strace",
        "program:bridge",
        "program:nft",
        "program:ping"
    );
    let mut fabric = Fabric::new("routing-kill-list", &[1, 1]);
    let two = std::fs::read_to_string(fabric.list()).unwrap();
    // This node exists only in the list.
    let three = |v4: &str, v6: &str| {
        format!(
            "{two}[[node]]\nname = \"c\"\nprefixes = [\"10.244.3.0/24\", \"fd00:244:3::/64\"]\n\
             underlay = [\"{v4}\", \"{v6}\"]\n"
        )
    };
    let stages = [
        Stage {
            list: two.clone(),
            has: &[],
            lacks: &["10.244.3.", "fd00:244:3:", "192.0.2.100", "192.0.2.101", "2001:db8:1::c"],
        },
        Stage {
            list: three("192.0.2.100", "2001:db8:1::c0"),
            has: &["10.244.3.0/24", "dst 192.0.2.100 ", "fd00:244:3::/64", "dst 2001:db8:1::c0 "],
            lacks: &["192.0.2.101", "2001:db8:1::c1"],
        },
        Stage {
            list: three("192.0.2.101", "2001:db8:1::c1"),
            has: &["10.244.3.0/24", "dst 192.0.2.101 ", "fd00:244:3::/64", "dst 2001:db8:1::c1 "],
            lacks: &["192.0.2.100", "2001:db8:1::c0"],
        },
    ];
    fabric.start();
    fabric.assert_all_reach_all();
    let states: Vec<Vec<String>> = stages.iter().map(|stage| stage.reach(&fabric)).collect();
    let pings = Pings::everywhere(&fabric);
    for (what, from, to) in [("it comes", 0, 1), ("it moves", 1, 2), ("it goes", 2, 0)] {
        let (from, to, whole) = (&stages[from], &stages[to], &states[to]);
        from.reach(&fabric);
        let strace = attach(&fabric, None);
        assert_eq!(to.reach(&fabric), *whole, "{what}");
        let all = calls_of_loop(&fabric);
        drop(strace);
        assert!(1 < all, "{what}: {all} calls");
        for moment in chosen(all) {
            eprintln!("{what}: killed at {moment} of {all}");
            from.reach(&fabric);
            strike(&mut fabric, moment, whole, |fabric| fabric.write_list(&to.list));
            assert_eq!(to.reach(&fabric), *whole, "{what}, killed at {moment}");
        }
    }
    Pings::assert_nothing_lost(&fabric, pings);
    fabric.assert_all_reach_all();
}

/// What other programs do to node `a`: the service needs many changes to repair it.
const DAMAGE: &str = "ip link del nw-vxlan4; ip link del nw-vxlan6; ip nexthop flush proto 78; \
                      nft flush ruleset";

/// The service is killed while it repairs what other programs have removed. The next service does
/// the rest.
#[test]
fn vm_a_service_killed_while_it_puts_things_right_is_followed_by_one_that_does() {
    testkit::require!("root", "vxlan", "full", "program:strace", "program:bridge", "program:nft");
    let mut fabric = Fabric::new("routing-kill-repair", &[1, 1]);
    fabric.start();
    fabric.assert_all_reach_all();
    let whole = torture::objects(&fabric.nodes[0]);
    let damage = |fabric: &Fabric| drop(fabric.nodes[0].host.sh(DAMAGE));
    let strace = attach(&fabric, None);
    damage(&fabric);
    wait_for_whole(&fabric.nodes[0], &whole);
    let all = calls_of_loop(&fabric);
    drop(strace);
    assert!(5 < all, "it has made {all} calls");
    for moment in chosen(all) {
        eprintln!("killed at {moment} of {all}");
        strike(&mut fabric, moment, &whole, damage);
        wait_for_whole(&fabric.nodes[0], &whole);
        fabric.nodes[0].assert_reaches(&fabric.nodes[1]);
    }
}

/// What other programs do to node `a` so that the service looks, and what they do while it looks.
/// The kernel does not report everything that vanishes with a nexthop, or with a tunnel that goes
/// down.
const AT_FIRST: &str = "ip link del nw-vxlan6";
const MEANWHILE: [&str; 2] = [
    "ip nexthop flush proto 78; nft flush ruleset",
    "ip link set nw-vxlan4 down; ip link set nw-vxlan4 up",
];

/// The service is stopped while it looks and repairs what other programs have removed, and they
/// remove more. The service repairs that too, because it gets the events.
#[test]
fn vm_what_others_take_away_while_the_service_looks_comes_back() {
    testkit::require!("root", "vxlan", "full", "program:strace", "program:bridge", "program:nft");
    let mut fabric = Fabric::new("routing-stop-repair", &[1, 1]);
    fabric.start();
    fabric.assert_all_reach_all();
    let node = &fabric.nodes[0];
    let whole = torture::objects(node);
    let pid = node.service.as_ref().unwrap().pid();
    let go_on = || drop(fabric.lab.sh(&format!("kill -CONT {pid}")));
    let strace = attach(&fabric, None);
    node.host.sh(AT_FIRST);
    wait_for_whole(node, &whole);
    let all = calls_of_loop(&fabric);
    drop(strace);
    assert!(5 < all, "it has made {all} calls");
    for (number, moment) in chosen(all).into_iter().enumerate() {
        let meanwhile = MEANWHILE[number % MEANWHILE.len()];
        eprintln!("stopped at {moment} of {all}: {meanwhile}");
        let strace = attach(&fabric, Some(("STOP", moment)));
        node.host.sh(AT_FIRST);
        wait_until("the service to be stopped, or done", || {
            moment <= calls_of_loop(&fabric) || is_whole(&torture::objects(node), &whole)
        });
        node.host.sh(meanwhile);
        // The call has begun; the service may be stopped only a moment later.
        wait_until_or_tell(
            "the node to have the whole",
            || {
                go_on();
                is_whole(&torture::objects(node), &whole)
            },
            || torture::differences(&whole, &torture::objects(node)),
        );
        drop(strace);
        go_on();
        node.assert_reaches(&fabric.nodes[1]);
    }
}

/// The service is killed while it takes a node over from flanneld. No packet is lost, the next
/// service takes over the rest, and flanneld gets the node back as it was.
#[test]
fn vm_a_service_killed_while_it_takes_over_from_flanneld_loses_nothing() {
    testkit::require!(
        "root",
        "vxlan",
        "full",
        "program:strace",
        "program:bridge",
        "program:nft",
        "program:ping"
    );
    let mut fabric = Fabric::new("routing-kill-flannel", &[1, 1]);
    let api = flannel::flannelds(&mut fabric, Backend::Vxlan);
    fabric.assert_all_reach_all();
    flannel::flannel(&mut fabric, 0, "replace");
    let objects: Objects = |node| torture::unnumbered(damage::objects_with(node, FLANNELS_TUNNELS));
    let before = Snapshot::of(&fabric.nodes[0].host);
    let take_over = |fabric: &mut Fabric| {
        fabric.start_on(0);
        wait_until("flanneld's routes to go", || {
            let boot = "ip route show proto boot; ip -6 route show proto boot";
            let boot = fabric.nodes[0].host.sh(boot);
            let is_left = boot.contains("10.244.") || boot.contains("fd00:244:");
            !is_left && fabric.routes(0)["phase"] == "ready"
        });
        objects(&fabric.nodes[0])
    };
    let give_back = |fabric: &mut Fabric| {
        if let Some(service) = fabric.nodes[0].service.take() {
            assert_eq!(service.stop(), Some(0));
        }
        flannel::flanneld(fabric, 0, Backend::Vxlan);
        fabric.leave(0, &["--uninstall", "--to-flannel"]);
        before.assert_same(&Snapshot::of(&fabric.nodes[0].host));
    };
    let whole = take_over(&mut fabric);
    give_back(&mut fabric);
    let pings = Pings::everywhere(&fabric);
    start_and_kill(&fabric, objects, &whole, None);
    let all = calls(&fabric);
    assert!(5 < all, "it has made {all} calls");
    give_back(&mut fabric);
    for moment in chosen(all) {
        eprintln!("killed at {moment} of {all}");
        start_and_kill(&fabric, objects, &whole, Some(moment));
        assert_eq!(take_over(&mut fabric), whole, "killed at {moment}");
        give_back(&mut fabric);
    }
    Pings::assert_nothing_lost(&fabric, pings);
    flannel::assert_only_ours_is_written(&api);
}
