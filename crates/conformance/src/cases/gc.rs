//! GC: removes what no valid attachment owns, and nothing else.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench::{Bench, Target};
use crate::case::{ALL, Case, INTERFACE, Outcome, cases, expect};
use crate::delegate;
use crate::snapshot::Snapshot;

pub(super) const CASES: &[Case] = cases![
    "gc-succeeds" Must "2 GC" after "del-succeeds" for ALL ["gc-attachments"]
        "GC of a network without attachments succeeds, and again." => succeeds;
    "gc-keeps-valid" Must "2 GC" after "gc-succeeds" for ALL ["gc-removes-stale"]
        "GC leaves every attachment of its list as it was." => keeps_valid;
    "gc-removes-stale" Should "2 GC" after "gc-succeeds" for ALL ["gc-removes-stale"]
        "GC removes what an attachment outside the list left on the machine." => removes_stale;
    "gc-empty-list" Should "2 GC" after "gc-succeeds" for ALL ["gc-empty-list", "gc-removes-stale"]
        "With an empty list no attachment is valid: GC removes them all." => empty_list;
    "gc-no-list" Should "2 GC" after "gc-succeeds" for ALL ["gc-empty-list"]
        "Without a list GC removes nothing: a missing list is not an empty one." => no_list;
    "gc-other-network" Must "2 GC" after "gc-succeeds" for ALL ["gc-removes-stale"]
        "GC of one network leaves the attachments of another." => other_network;
    "gc-other-interface" Must "2 GC" after "gc-succeeds" for INTERFACE ["gc-attachments"]
        "An attachment is a container and an interface: GC tells two interfaces of a container apart." => other_interface;
    "gc-delegates" Must "2 GC" after "gc-succeeds" for INTERFACE ["gc-delegates", "delegate-verbs"]
        "GC executes the delegate with the list." => delegates;
    "gc-goes-on" Should "2 GC" after "gc-succeeds" for INTERFACE ["gc-continues"]
        "GC reports an error of the delegate, and still removes what it can." => goes_on;
];

fn succeeds(bench: &Bench) -> Outcome {
    bench.needs_verb("GC")?;
    bench.collect(&[]).send().succeeded()?;
    bench.collect(&[]).send().succeeded()
}

/// Creates two attachments: one stays, and the namespace of the other vanishes without DEL. Returns
/// the first, and the machine before the second.
fn orphan(bench: &Bench) -> Outcome<(Target, Snapshot)> {
    bench.needs_verb("GC")?;
    let valid = bench.attach(2)?;
    let guest = bench.attach(3)?;
    bench.detach(&guest)?;
    let before = bench.machine()?;
    let stale = bench.attach(1)?;
    bench.remove_namespace(stale)?;
    thread::sleep(Duration::from_millis(100));
    Ok((valid, before))
}

/// How long the kernel may take to remove a namespace, and the other ends of the links in it.
const GONE: Duration = Duration::from_secs(3);

/// Fails if the machine still has what `of_interest` keeps of its changes once the kernel has
/// removed a namespace.
fn nothing_is_left(
    bench: &Bench,
    before: &Snapshot,
    of_interest: impl Fn(&str) -> bool,
) -> Outcome {
    let deadline = Instant::now() + GONE;
    let left = loop {
        let mut left = bench.machine()?.since(before);
        // A link of the machine that was moved into the namespace went with it.
        left.retain(|line| !line.contains("link1") && of_interest(line));
        if left.is_empty() || deadline < Instant::now() {
            break left;
        }
        thread::sleep(Duration::from_millis(50));
    };
    expect(left.is_empty(), "nothing of the stale attachment is left", || left.join("\n"))
}

fn as_before(bench: &Bench, before: &Snapshot) -> Outcome {
    nothing_is_left(bench, before, |line| !line.contains("/last_reserved_ip"))
}

fn removes_stale(bench: &Bench) -> Outcome {
    let (valid, before) = orphan(bench)?;
    bench.collect(&[&valid]).send().succeeded()?;
    bench.check(&valid)?;
    as_before(bench, &before)
}

fn keeps_valid(bench: &Bench) -> Outcome {
    bench.needs_verb("GC")?;
    let targets = [bench.attach(1)?, bench.attach(2)?];
    let before = bench.machine()?;
    bench.collect(&[&targets[0], &targets[1]]).send().succeeded()?;
    let changes = bench.machine()?.since(&before);
    expect(changes.is_empty(), "GC changes nothing", || changes.join("\n"))?;
    targets.iter().try_for_each(|target| bench.check(target))
}

fn empty_list(bench: &Bench) -> Outcome {
    let (_valid, before) = orphan(bench)?;
    bench.collect(&[]).send().succeeded()?;
    // The other one is gone as well: only what is new matters. The machine's own links come back to
    // it.
    nothing_is_left(bench, &before, |line| line.starts_with('+') && !line.starts_with("+ link dev"))
}

fn no_list(bench: &Bench) -> Outcome {
    bench.needs_verb("GC")?;
    let target = bench.attach(1)?;
    let before = bench.machine()?;
    let mut ask = bench.collect(&[]).without("cni.dev/valid-attachments");
    ask = ask.without("cni.dev/attachments");
    ask.send().orderly()?;
    let changes = bench.machine()?.since(&before);
    expect(changes.is_empty(), "nothing is collected", || changes.join("\n"))?;
    bench.check(&target)
}

fn other_network(bench: &Bench) -> Outcome {
    bench.needs_verb("GC")?;
    let target = bench.attach(1)?;
    let before = bench.machine()?;
    bench.collect(&[]).with(&json!({ "name": "another" })).send().succeeded()?;
    let mut changes = bench.machine()?.since(&before);
    // The plugin may create a folder for the other network.
    changes.retain(|line| !line.contains("/another"));
    expect(changes.is_empty(), "the attachment is as it was", || changes.join("\n"))?;
    bench.check(&target)
}

fn other_interface(bench: &Bench) -> Outcome {
    bench.needs_verb("GC")?;
    if !bench.profile.makes_link {
        return crate::case::not_applicable("it makes no interface");
    }
    let first = bench.attach(1)?;
    let second = bench.target(first.container.clone(), "eth1", 2)?;
    let second = bench.attach_target(second)?;
    bench.collect(&[&second]).send().succeeded()?;
    bench.check(&second)
}

fn delegates(bench: &Bench) -> Outcome {
    bench.delegates()?;
    bench.needs_verb("GC")?;
    let target = bench.attach(1)?;
    delegate::calls()?;
    bench.collect(&[&target]).send().succeeded()?;
    let calls = delegate::calls()?;
    let call = calls.iter().find(|call| call.verb == "GC");
    let stdin = call.map(|call| String::from_utf8_lossy(&call.stdin).into_owned());
    let listed = stdin.as_ref().is_some_and(|text| text.contains("cni.dev/valid-attachments"));
    expect(listed, "the delegate is executed with GC and the list", || format!("{stdin:?}"))
}

fn goes_on(bench: &Bench) -> Outcome {
    bench.delegates()?;
    let (valid, before) = orphan(bench)?;
    delegate::fail_at("GC", &json!({ "code": 142, "msg": "the store is locked" }))?;
    let refusal = bench.collect(&[&valid]).send().refused()?;
    let passed_on = refusal.words().contains("the store is locked");
    expect(passed_on, "the delegate's words", || refusal.words())?;
    as_before(bench, &before)
}
