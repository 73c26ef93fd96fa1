//! Runs the same configuration with our plugins and with the Go ones, on two equal hosts: every
//! difference must be listed.
//!
//! Each [`Case`] is run against both releases of [`testkit::reference`]: ADD of every plugin of the
//! chain, for every container, CHECK, DEL twice. After ADD and after DEL everything on the host and
//! in the containers is compared, and so are the results: links, addresses, routes, rules, sysctls,
//! firewall rules, queueing disciplines, files. Random values (names and MAC addresses that the
//! configuration does not set) are named after the first object that has them.
//!
//! Each intended difference is in `docs/differences.toml` with its reason. An unlisted difference
//! fails the test, and so does a listed one that was not seen. `docs/differences.md` is made from
//! that file.

mod bandwidth;
mod bridge;
mod dummy;
mod firewall;
mod generated;
mod host_device;
mod host_local;
mod ipvlan;
mod ledger;
mod loopback;
mod macvlan;
mod names;
mod observe;
mod portmap;
mod ptp;
mod sbr;
mod static_ipam;
mod tap;
mod tuning;
mod vlan;
mod vrf;
mod world;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::reference::Release;

use ledger::Ledger;
use observe::Observation;
use world::World;

/// How much later than on the other host the kernel may make a change that it delays.
const SETTLE: Duration = Duration::from_secs(3);

/// One configuration, and the host on which it is used.
pub(crate) struct Case {
    /// `plugin/what`, as in the list of differences.
    name: &'static str,
    /// A script to run on the host before ADD.
    host: &'static str,
    /// A script to run in each container before ADD.
    container: &'static str,
    /// A script to run on the host when all containers are attached and checked.
    later: &'static str,
    /// How many containers are attached.
    containers: usize,
    /// `cniVersion`. The installed release knows no version after 1.0.0, and is left out then.
    version: &'static str,
    /// Whether ADD of the last container must succeed with our plugins: two failures are equal too.
    succeeds: bool,
    /// `CNI_ARGS`.
    args: &'static str,
    /// The plugins of the chain for container number 1, 2, …, without `cniVersion` and `name`.
    chain: fn(usize) -> Vec<Value>,
    /// The chains of a random configuration, in place of `chain`: one for each container.
    random: &'static [Vec<Value>],
}

/// One container, nothing on the host, version 1.0.0.
const PLAIN: Case = Case {
    name: "",
    host: "",
    container: "",
    later: "",
    containers: 1,
    version: "1.0.0",
    succeeds: true,
    args: "",
    chain: |_| Vec::new(),
    random: &[],
};

/// A link of the host, `p0`, as a parent, with its other end `p1`.
const PARENT: &str = "ip link add p0 address 02:00:00:00:01:01 type veth peer name p1 address 02:00:00:00:01:02 && \
    ip link set p0 up && ip link set p1 up";

/// `ipam` with addresses of both families.
fn dual_stack() -> Value {
    json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]] })
}

/// Runs the cases against one release, and fails with every unlisted difference.
fn compare(cases: &[Case], release: Release) {
    let ledger = Ledger::read();
    let known = |case: &&Case| release == Release::Unstable || case.version != "1.1.0";
    let seen: Vec<(&str, Vec<String>)> = cases
        .iter()
        .filter(known)
        .map(|case| (case.name, compare_one(case, release, &ledger)))
        .collect();
    let wrong = ledger.judge(release, &seen);
    assert!(wrong.is_empty(), "against {release:?}:\n{}", wrong.join("\n"));
}

/// Returns every difference of one case.
fn compare_one(case: &Case, release: Release, ledger: &Ledger) -> Vec<String> {
    let (mut ours, mut theirs) =
        together(|| World::new(case, None), || World::new(case, Some(release)));
    let mut seen: Vec<String> = Vec::new();
    for step in ["ADD", "CHECK", "DEL", "DEL again"] {
        together(|| ours.step(step), || theirs.step(step));
        let added = ours.added.last();
        assert!(
            added.is_some_and(|added| added.is_ok() == case.succeeds),
            "{}: {added:?}",
            case.name
        );
        let look = |world: &World<'_>| match step {
            "ADD" | "DEL" => Observation::of(world),
            _ => Observation::of_answers(world),
        };
        // Compares again, until a deadline, if a difference is not listed: the change may only be
        // late.
        let deadline = Instant::now() + SETTLE;
        let lines = loop {
            let (our, their) = together(|| look(&ours), || look(&theirs));
            let lines = differences(step, &their, &our);
            let known = lines.iter().all(|line| ledger.lists(case.name, release, line));
            if known || deadline < Instant::now() {
                break lines;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        seen.extend(lines);
    }
    seen
}

/// Does both at the same time: the two hosts have nothing in common, and much of the time is spent
/// waiting for the kernel.
fn together<A, B: Send>(ours: impl FnOnce() -> A, theirs: impl FnOnce() -> B + Send) -> (A, B) {
    std::thread::scope(|scope| {
        let theirs = scope.spawn(theirs);
        let ours = ours();
        (ours, theirs.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// `STEP FACT: THEIRS -> OURS` for each fact that is different.
///
/// An object that only one side has is reported once, and not again for each of its properties.
fn differences(step: &str, theirs: &Observation, ours: &Observation) -> Vec<String> {
    let lone: Vec<&str> = theirs.lone_links(ours).chain(ours.lone_links(theirs)).collect();
    let of_lone = |key: &str| {
        lone.iter().any(|link| {
            key.strip_suffix(link).is_none_or(|before| !before.ends_with(" links "))
                && key.split([' ', '/', '.']).any(|word| word == *link)
        })
    };
    let tables: Vec<String> = theirs.lone_tables(ours).chain(ours.lone_tables(theirs)).collect();
    let of_table = |key: &str| {
        key.contains(" nftables ") && tables.iter().any(|table| key.contains(table.as_str()))
    };
    let value = |of: &Observation, key: &String| match of.facts.get(key) {
        Some(value) => format!("`{value}`"),
        None => "nothing".to_owned(),
    };
    let mut keys: Vec<&String> = theirs.facts.keys().chain(ours.facts.keys()).collect();
    keys.sort();
    keys.dedup();
    let different = keys.into_iter().filter(|key| theirs.facts.get(*key) != ours.facts.get(*key));
    let different =
        different.filter(|key| !of_lone(key) && !of_table(key) && !theirs.is_part(ours, key));
    different
        .map(|key| format!("{step} {key}: {} -> {}", value(theirs, key), value(ours, key)))
        .collect()
}

/// Makes a plugin's two tests from its cases. The test of the older, installed release runs only
/// with `--full`.
macro_rules! tests {
    ($cases:expr) => {
        super::one_test!(as_the_installed_release, $cases, Installed, "full");
        super::one_test!(as_the_unstable_release, $cases, Unstable);
    };
}

/// Makes the test of a plugin that the installed release does not have.
macro_rules! unstable_tests {
    ($cases:expr) => {
        super::one_test!(as_the_unstable_release, $cases, Unstable);
    };
}

/// Makes the two tests of a plugin that needs kernel features. Both run only with `--full`, as the
/// virtual machine is slow.
macro_rules! vm_tests {
    ($cases:expr, $($feature:expr),+) => {
        $crate::differential::one_test!(vm_as_the_installed_release, $cases, Installed, "full", $($feature),+);
        $crate::differential::one_test!(vm_as_the_unstable_release, $cases, Unstable, "full", $($feature),+);
    };
}

/// Makes the test of a plugin that needs kernel features and that the installed release does not
/// have.
macro_rules! vm_unstable_tests {
    ($cases:expr, $($feature:expr),+) => {
        super::one_test!(vm_as_the_unstable_release, $cases, Unstable, "full", $($feature),+);
    };
}

macro_rules! one_test {
    ($name:ident, $cases:expr, $release:ident $(, $feature:expr)*) => {
        #[test]
        fn $name() {
            testkit::require!("root", "go-plugins" $(, $feature)*);
            $crate::differential::compare($cases, testkit::reference::Release::$release);
        }
    };
}
use {one_test, tests, unstable_tests, vm_tests, vm_unstable_tests};
