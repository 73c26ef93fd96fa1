//! Faults that once found a bug: every run injects them, so that each stays fixed.

use testkit::fault::{Blow, failures, name};
use testkit::{Tally, feature};

use crate::anywhere::{Try, strike};
use crate::scenario::Scenario;
use crate::strike::Aftermath;

/// Injects faults into one verb at all its calls of these names: two errors that the call can have,
/// and with `--full` all of them.
#[track_caller]
fn at(scenario: &Scenario, beside: bool, verb: &'static str, calls: &[&str]) {
    let mut tally = Tally::new();
    let errors = if feature::available("full") { usize::MAX } else { 2 };
    let is_meant = |one: &Try| {
        let Blow::Fail(errno) = one.1 else { return false };
        calls.contains(&name(one.0.call).as_str())
            && failures(one.0.call).iter().take(errors).any(|error| *error == errno)
    };
    let choose = |all: Vec<Try>| -> Vec<Try> { all.into_iter().filter(is_meant).collect() };
    assert_ne!(strike(scenario, beside, verb, &choose, &mut tally), 0, "no call of {calls:?}");
    tally.finish();
}

/// A failed read of a living container's reservation was taken for garbage, and the reservation
/// removed.
#[test]
fn a_reservation_that_cannot_be_read_is_not_collected() {
    testkit::require!("root", "ptrace");
    at(&Scenario::host_local(), true, "GC", &["openat", "read"]);
}

/// The record was removed, and the backup stayed for ever.
#[test]
fn a_backup_that_cannot_be_removed_is_not_forgotten() {
    testkit::require!("root", "ptrace");
    at(&Scenario::tuning(), false, "DEL", &["unlink"]);
    at(&Scenario::tuning(), false, "GC", &["unlink"]);
}

/// The elements were removed, and the chain to which they led stayed.
#[test]
fn a_chain_of_which_the_kernel_does_not_tell_is_not_forgotten() {
    testkit::require!("root", "ptrace");
    at(&Scenario::ptp(), false, "DEL", &["recvfrom"]);
}

/// A lent device was down when it returned.
#[test]
fn a_device_is_at_home_as_it_was_after_a_passing_failure() {
    testkit::require!("root", "ptrace");
    at(&Scenario::host_device(), false, "DEL", &["sendto"]);
    at(&Scenario::host_device(), false, "GC", &["sendto"]);
}

/// The kernel's answer was lost, so no record had the new link.
#[test]
fn a_link_whose_making_is_not_answered_is_undone() {
    testkit::require!("root", "ptrace");
    at(&Scenario::bandwidth(), false, "ADD", &["recvfrom"]);
}

/// The process aborted at the first failure to return to its namespace.
#[test]
fn a_thread_comes_home_at_the_second_attempt() {
    testkit::require!("root", "ptrace");
    at(&Scenario::loopback(), false, "ADD", &["setns"]);
}

/// The helper could not send a link's deletion, and the caller waited for an answer and failed.
#[test]
fn a_deletion_that_the_helper_cannot_send_is_sent() {
    testkit::require!("root", "ptrace");
    let mut tally = Tally::new();
    let by_helper = |one: &Try| one.0.task != 0 && name(one.0.call) == "sendto";
    let choose = |all: Vec<Try>| -> Vec<Try> { all.into_iter().filter(by_helper).collect() };
    let tried = strike(&Scenario::tap(), false, "DEL", &choose, &mut tally);
    assert_ne!(tried, 0, "no helper sends anything");
    tally.finish();
}

/// The folder for the record stayed.
#[test]
fn a_record_that_cannot_be_written_leaves_no_folder() {
    testkit::require!("root", "ptrace");
    at(&Scenario::tap(), true, "ADD", &["write"]);
}

/// An ADD that could not read which address is free went through the taken ones of a practically
/// endless range.
#[test]
fn an_index_that_cannot_be_read_once_does_not_keep_an_add_busy() {
    testkit::require!("root", "ptrace");
    at(&Scenario::macvlan().in_family("v6"), true, "ADD", &["pread64"]);
}

/// The end on the host had no mark yet, and held the bridge until its namespace was gone for good.
#[test]
fn a_link_of_a_killed_add_is_known_before_it_has_a_mark() {
    testkit::require!("root", "ptrace");
    let mut tally = Tally::new();
    let is_meant = |one: &Try| {
        matches!(one.1, Blow::Kill) && ["sendto", "recvfrom"].contains(&name(one.0.call).as_str())
    };
    let choose = |all: Vec<Try>| -> Vec<Try> { all.into_iter().filter(is_meant).collect() };
    assert_ne!(strike(&Scenario::bridge(), false, "ADD", &choose, &mut tally), 0);
    tally.finish();
}

/// The bridge stayed, and no record said that it was ours.
#[test]
fn a_bridge_goes_with_the_add_that_failed() {
    testkit::require!("root", "ptrace");
    at(&Scenario::bridge(), false, "ADD", &["open"]);
}

/// A claim's owner could not be read, so the address stayed that container's.
#[test]
fn a_claim_that_cannot_be_read_is_not_forgotten() {
    testkit::require!("root", "ptrace");
    // GC reads thousands of links, most of them of processes: `anywhere` has faults at some.
    for scenario in [Scenario::bridge(), Scenario::ptp(), Scenario::macvlan()] {
        at(&scenario, false, "DEL", &["readlink"]);
    }
}

/// A setting that could not be read counted as sound, so the switch's own link on the host took
/// router advertisements. The folder of a shared object stayed for ever if an ADD was killed just
/// before it held the object.
#[test]
fn a_switchs_own_link_is_quiet_after_an_add_and_as_before_after_a_del() {
    testkit::require!("root", "ptrace", "program:ovs-vswitchd", "program:ovsdb-server");
    let mut tally = Tally::new();
    let meant = |(moment, blow, after): Try| match (name(moment.call).as_str(), blow, after) {
        // One error for each call is enough.
        ("open", Blow::Fail(errno), Aftermath::Nothing) => {
            let is_first = failures(moment.call).first() == Some(&errno);
            is_first.then_some((moment, blow, after))
        }
        ("linkat", Blow::Kill, Aftermath::StruckDel(_)) => None,
        ("linkat", Blow::Kill, _) => Some((moment, blow, Aftermath::Del)),
        _ => None,
    };
    let choose = |all: Vec<Try>| -> Vec<Try> { all.into_iter().filter_map(meant).collect() };
    let tried = strike(&Scenario::ovs("ovs", "veth"), false, "ADD", &choose, &mut tally);
    assert_ne!(tried, 0, "no call is meant");
    tally.finish();
}
