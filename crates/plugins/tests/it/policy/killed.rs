//! ADDs and DELs that are killed between any two of their steps.

use testkit::{Place as _, feature};

use super::inside::{CLOSED, inside};
use super::{Pod, closed, links, no_bridge_shows, shows, verdicts};
use crate::support::kill::traced;
use crate::support::{Node, on_parent};

/// The calls that change something, or request a change from the kernel.
const CHANGES: &str =
    "sendto,sendmsg,connect,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir";

/// A fault at a moment of a call.
pub(super) struct Fault {
    /// The system calls at which the fault may strike.
    pub(super) calls: &'static str,
    /// What `strace` does with one of them.
    pub(super) is: &'static str,
    /// How many of the moments every run tries.
    pub(super) moments: usize,
}

const KILLED: Fault = Fault { calls: CHANGES, is: "signal=KILL", moments: 3 };

/// Injects a fault at moments that are spread over a whole call, each time for another container.
/// `look` gets whether the call succeeded.
pub(super) fn struck(
    node: &Node,
    (by, verb): (&'static str, &str),
    fault: &Fault,
    prepare: impl Fn(&Pod<'_>),
    look: impl Fn(&Pod<'_>, bool, &str),
) {
    let at = |moment: usize, options: &[String]| {
        let pod = Pod::new(node, &format!("k{moment}"), by);
        prepare(&pod);
        let (status, trace) = traced(node, pod.policy(verb), options);
        assert!(status.success() || 0 < moment, "{status}: {trace}");
        look(&pod, status.success(), &format!("{verb}, {} at {moment}, {by}", fault.is));
        pod.detach();
        trace
    };
    let traces = ["-e".to_owned(), format!("trace={}", fault.calls)];
    let all = steps(&at(0, &traces));
    assert!(0 < all, "{verb} of {by} makes no such call");
    let step = if feature::available("full") { 1 } else { all.div_ceil(fault.moments) };
    for moment in (1..all).step_by(step).chain([all]) {
        let inject = format!("inject={}:{}:when={moment}", fault.calls, fault.is);
        at(moment, &[traces.to_vec(), vec!["-e".to_owned(), inject]].concat());
    }
}

/// The highest count of one thread: `strace` counts for each thread.
fn steps(trace: &str) -> usize {
    let mut threads = std::collections::BTreeMap::new();
    for line in trace.lines().filter(|line| line.contains('(') && !line.contains(" resumed>")) {
        *threads.entry(line.split_whitespace().next().unwrap_or_default()).or_insert(0) += 1;
    }
    threads.into_values().max().unwrap()
}

/// An ADD that is killed after its first change of the packet filter leaves the container closed.
/// If it is killed earlier, the container is as the plugin that made the link left it.
#[test]
fn a_killed_add_leaves_nothing_open() {
    testkit::require!("root", "program:strace");
    for by in ["bridge", "ptp"] {
        let node = Node::new(&format!("policy-kill-add-{by}"));
        no_bridge_shows(&node);
        let other = Pod::new(&node, "c1", by);
        let prepare = |pod: &Pod<'_>| pod.assert_open(&[&other]);
        let look = |pod: &Pod<'_>, _, what: &str| {
            if links(&node).is_empty() && verdicts(&node).is_empty() {
                assert_eq!(shows_of(&node, by), "0 0", "{what}");
            } else {
                super::assert_silent(&*other.c, &pod.addresses());
                super::assert_silent(&*pod.c, &other.addresses());
            }
            // The next ADD completes it, and DEL removes all of it.
            pod.add();
            assert_eq!(verdicts(&node), closed(pod), "{what}");
            pod.check();
            pod.del();
            assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()), "{what}");
            assert_eq!(shows_of(&node, by), "0 0", "{what}");
        };
        struck(&node, (by, "ADD"), &KILLED, prepare, look);
    }
}

/// A killed DEL leaves the address without traffic, and the next DEL completes it.
#[test]
fn a_killed_del_leaves_nothing_open() {
    testkit::require!("root", "program:strace");
    for by in ["bridge", "ptp"] {
        let node = Node::new(&format!("policy-kill-del-{by}"));
        no_bridge_shows(&node);
        let other = Pod::new(&node, "c1", by);
        let prepare = |pod: &Pod<'_>| {
            pod.add();
        };
        let look = |pod: &Pod<'_>, _, what: &str| {
            super::assert_silent(&*other.c, &pod.addresses());
            super::assert_silent(&*pod.c, &other.addresses());
            pod.del();
            assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()), "{what}");
            assert_eq!(shows_of(&node, by), "0 0", "{what}");
            assert_eq!(pod.recorded(), None, "{what}");
        };
        struck(&node, (by, "DEL"), &KILLED, prepare, look);
    }
}

/// The same where policies are enforced in the container's own namespace: the table is complete or
/// absent, and if it exists, no packet passes.
#[test]
fn a_killed_call_leaves_nothing_open_inside() {
    testkit::require!("root", "program:strace");
    let node = on_parent::host("policy-kill-inside");
    let other = Pod::new(&node, "c1", "macvlan");
    let silent = |pod: &Pod<'_>| {
        super::assert_silent(&*other.c, &pod.addresses());
        super::assert_silent(&*pod.c, &other.addresses());
    };
    let is_gone = |pod: &Pod<'_>, what: &str| {
        pod.del();
        assert_eq!((inside(pod), pod.recorded()), (Vec::new(), None), "{what}");
        assert_eq!(pod.c.sh("nft list ruleset"), "", "{what}");
    };
    let open = |pod: &Pod<'_>| pod.assert_open(&[&other]);
    let look = |pod: &Pod<'_>, _, what: &str| {
        if !inside(pod).is_empty() {
            silent(pod);
        }
        pod.add();
        assert_eq!(inside(pod), CLOSED, "{what}");
        silent(pod);
        pod.check();
        is_gone(pod, what);
    };
    struck(&node, ("macvlan", "ADD"), &KILLED, open, look);
    let added = |pod: &Pod<'_>| drop(pod.add());
    let look = |pod: &Pod<'_>, _, what: &str| {
        silent(pod);
        is_gone(pod, what);
    };
    struck(&node, ("macvlan", "DEL"), &KILLED, added, look);
    assert_eq!(verdicts(&node), Vec::<String>::new());
}

fn shows_of(node: &Node, by: &str) -> String {
    if by == "bridge" { shows(node, "br0") } else { "0 0".to_owned() }
}
