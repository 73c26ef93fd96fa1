//! An ADD that is killed: DEL leaves nothing of it, and another ADD copes with what is there.
//!
//! The plugin runs in a separate process, this very test executable, under `strace`, which kills it
//! as it enters the n-th system call that changes anything. The moments are the same in every run,
//! however busy the machine is.

use std::fs;
use std::io::{Cursor, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use cni::CallEnv;
use cni_plugin::Context;
use serde_json::Value;
use state::Roots;
use testkit::{Container, Place, Snapshot, feature, share};

use super::matrix::{Family, Subject, addresses, assert_settles, look, run, warm};
use super::{BUILD, Node, Picture, Run, executor};

/// This variable has the plugin and the folders for state, a line each, for the child.
const CHILD: &str = "NWT_KILL_CHILD";

/// The system calls that change something, or request a change from the kernel.
const CHANGES: &str = "sendto,sendmsg,write,pwrite64,ioctl,rename,renameat,renameat2,link,linkat,symlink,symlinkat,\
                       unlink,unlinkat,mkdir,mkdirat,rmdir,ftruncate,clone3";

/// How many of the moments every run tries, each in one of two ways, in turn.
const MOMENTS: usize = 2;
/// The same with `--full`, with other moments in each round ([`share`]): the test tries each in
/// both ways, under `strace`.
const MOMENTS_OF_A_SHARE: usize = share::STRIKES / 3;
/// The same in the virtual machine, which takes ten times as long for each. There the test looks at
/// the host once, at the end.
const MOMENTS_IN_VM: usize = 2;

/// The words of an ADD's error if the object that it would make exists, with the object's owner.
const CLEAR: [&str; 2] = ["already exists", "has been allocated to c1"];

/// Kills ADD at moments spread over all it does. After each, DEL leaves nothing; or another ADD
/// comes before DEL, and completes what exists or reports the conflict.
pub(crate) fn killed(subject: &Subject, family: Family) {
    let node = warm(subject, "killed", family);
    let mut scene = Scene { subject, node: &node, family, before: None };
    let all = scene.count();
    assert!(2 < all, "{} does nothing", subject.plugin);
    for (number, moment) in chosen(all).into_iter().enumerate() {
        let both = feature::available("full") && !in_vm();
        if both || number % 2 == 0 {
            scene.del_is_enough(moment, all);
        }
        // The last moment, at which everything exists, is among these.
        if both || number % 2 == 1 {
            scene.another_add_copes(moment, all);
        }
    }
    // The snapshot was taken with one container more.
    let target = scene.prepare();
    assert_settles(&scene.before.as_ref().unwrap().1, &node);
    drop(target);
}

fn in_vm() -> bool {
    std::env::var_os(feature::VM_VARIABLE).is_some()
}

/// The moments to try of `1..=all`. The last one is always among them: everything exists by then,
/// and the runtime has no answer yet.
fn chosen(all: usize) -> Vec<usize> {
    if feature::available("full") && !in_vm() {
        let mut chosen = share::of_this_round((1..all).collect(), MOMENTS_OF_A_SHARE);
        chosen.push(all);
        return chosen;
    }
    let count = if in_vm() { MOMENTS_IN_VM } else { MOMENTS };
    let count = count.min(all);
    (1..=count).map(|number| number * all / count).collect()
}

struct Scene<'s> {
    subject: &'s Subject,
    node: &'s Node,
    family: Family,
    /// The first container and the host, as they were before.
    before: Option<(Picture, Snapshot)>,
}

/// A container, and the configuration's keys for it.
struct Target {
    container: Container,
    keys: Value,
}

impl Scene<'_> {
    /// Makes a fresh container; each is like the first.
    fn prepare(&self) -> Target {
        let container = self.node.container("c1");
        let keys = (self.subject.config)(self.node, &container, self.family);
        Target { container, keys }
    }

    fn run(&self, verb: &str, target: &Target) -> Run<'_> {
        run(self.subject, self.node, verb, &target.container, &target.keys)
    }

    /// Counts the moments of an ADD that is not killed.
    fn count(&mut self) -> usize {
        let target = self.prepare();
        self.before = Some((Picture::of(&target.container), look(self.node)));
        let (status, trace) = self.trace(&target, None);
        assert!(status.success(), "{status}");
        self.finish(target, "an ADD that was not killed");
        steps(&trace)
    }

    fn del_is_enough(&self, moment: usize, all: usize) {
        let target = self.prepare();
        self.kill(&target, moment);
        self.finish(target, &format!("an ADD killed at {moment} of {all}"));
    }

    fn another_add_copes(&self, moment: usize, all: usize) {
        let target = self.prepare();
        self.kill(&target, moment);
        let what = format!("another ADD after one killed at {moment} of {all}");
        let answer = self.run("ADD", &target).call();
        if answer.succeeded() {
            let holds = (self.subject.holds)(self.node, &target.container, self.family);
            assert!(holds, "{what} did not make it: {answer:?}");
            let result = answer.ok();
            let check = self.run("CHECK", &target).prev(&result).call();
            assert!(check.succeeded(), "{what} is not complete: {check:?}");
        } else {
            let error = answer.error();
            let text = error.to_string();
            let is_clear = CLEAR.iter().any(|words| text.contains(words));
            assert!(is_clear, "{what} does not say what is there: {error:?}");
        }
        self.finish(target, &what);
    }

    /// Calls DEL with what a runtime has after an ADD without an answer, and looks for what
    /// remains.
    fn finish(&self, target: Target, what: &str) {
        // The harness prints this when something fails.
        eprintln!("{}: DEL after {what}", self.subject.plugin);
        self.run("DEL", &target).call().silent();
        assert!(
            !(self.subject.holds)(self.node, &target.container, self.family),
            "it is there after DEL"
        );
        if !in_vm() {
            let now = Picture::of(&target.container);
            let (inside, host) = self.before.as_ref().unwrap();
            let mut left = inside.new_in(&now);
            // The kernel gives lo its address when it comes up, and leaves it there; it gives every
            // other link a link-local one.
            left.retain(|line| !line.contains(" lo ") && !line.contains("fe80::"));
            assert!(left.is_empty(), "in the container is left: {left:#?}");
            assert_settles(host, self.node);
        }
        assert_eq!(addresses(self.node), "", "addresses are still reserved");
        // The kernel would delete the host end of `attached` with the namespace too, but later.
        self.node.sh("ip link del vc1 2>/dev/null || true");
    }

    fn kill(&self, target: &Target, moment: usize) {
        let (status, trace) = self.trace(target, Some(moment));
        let killed = status.signal() == Some(9) || status.code() == Some(128 + 9);
        // The number of steps varies a little: the kernel answers in more or fewer parts.
        assert!(killed || status.success(), "{status}:\n{trace}");
    }

    /// Runs ADD, killed at a moment or not at all; returns its exit status and its trace.
    fn trace(&self, target: &Target, moment: Option<usize>) -> (ExitStatus, String) {
        let mut options = vec!["-e".to_owned(), format!("trace={CHANGES}")];
        if let Some(moment) = moment {
            let inject = format!("inject={CHANGES}:signal=KILL:when={moment}");
            options.extend(["-e".to_owned(), inject]);
        }
        traced(self.node, self.run("ADD", target), &options)
    }
}

/// Makes a call in a separate process under `strace` with these options; returns its exit status
/// and its trace.
pub(crate) fn traced(node: &Node, call: Run<'_>, options: &[String]) -> (ExitStatus, String) {
    let log = node.lab.dir().join("trace");
    let path = module_path!().split_once("::").unwrap().1;
    let mut told = call.plugin.clone();
    for root in [&node.roots.run, &node.roots.lib] {
        told += &format!("\n{}", root.display());
    }
    let mut command = node.lab.command("strace");
    command.args(["-f", "-qq", "--seccomp-bpf", "-b", "execve"]).args(options);
    command.arg("-o").arg(&log).arg(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("{path}::the_child"), "--nocapture"]);
    command.envs(call.env.to_vars()).env(CHILD, told);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // The child may be dead before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(&call.document());
    let status = child.wait().unwrap();
    (status, fs::read_to_string(&log).unwrap_or_default())
}

/// The highest count of one thread: `strace` counts for each thread.
fn steps(trace: &str) -> usize {
    let begun = trace.lines().filter(|line| line.contains('(') && !line.contains(" resumed>"));
    let mut threads = std::collections::BTreeMap::new();
    for line in begun {
        *threads.entry(line.split_whitespace().next()).or_insert(0) += 1;
    }
    threads.into_values().max().unwrap_or(0)
}

/// The body of the process that is killed. Without its variable, as in an ordinary run, it does
/// nothing.
#[test]
fn the_child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let [plugin, run, lib] = told.split('\n').collect::<Vec<_>>()[..] else { panic!("{told}") };
    let roots = Roots::new(Path::new(run), Path::new(lib));
    let env = CallEnv::from_vars(std::env::vars());
    let mut config = Vec::new();
    std::io::Read::read_to_end(&mut std::io::stdin(), &mut config).unwrap();
    let executor = executor(&roots);
    let context = Context { roots: &roots, executor: &executor, deadline: None, build: BUILD };
    let plugin = plugins::find(plugin).unwrap();
    let output = cni_plugin::respond(plugin, &env, &mut Cursor::new(config), &context);
    assert_eq!(output.status, cni_invoke::Status::Success, "{output:?}");
}
