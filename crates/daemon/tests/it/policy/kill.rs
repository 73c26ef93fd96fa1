//! The service is killed at each of its changes: while it starts, and while it carries out a change
//! of a policy. Afterwards either the old policy or the new one is enforced, never a mixture, and
//! never none.
//!
//! It runs under `strace`, as the tests of `routing` do (`routing/kill.rs`).

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use serde_json::json;
use testkit::{Service, feature, share, wait_until};

use super::networks::FurtherInterface;
use super::{Cluster, allow};

/// The calls at which it is killed.
const CHANGES: &str = "sendto,sendmsg,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat";

/// The pods. The policy decides which of the others reach `db`.
const NAMES: [&str; 4] = ["db", "web", "cache", "other"];

/// How many moments every run tries.
const MOMENTS: usize = 4;

/// The moments to try of `first..=all`. With `--full` each round tries other ones.
fn chosen(first: usize, all: usize) -> Vec<usize> {
    if feature::available("full") {
        return share::of_this_round((first..=all).collect(), share::STRIKES);
    }
    let count = all + 1 - first;
    let moments = MOMENTS.min(count);
    (1..=moments).map(|number| first - 1 + number * count / moments).collect()
}

/// Returns the service's command under `strace`, which kills it at one of its changes.
fn traced(cluster: &Cluster, moment: Option<usize>) -> Command {
    let Some(moment) = moment else { return cluster.traced(CHANGES, &[]) };
    cluster.traced(CHANGES, &["-e", &format!("inject={CHANGES}:signal=KILL:when={moment}")])
}

/// Returns how many calls the loop's thread has made so far, because `strace` counts the calls of
/// each thread.
fn calls(cluster: &Cluster) -> usize {
    let text = std::fs::read_to_string(cluster.trace()).unwrap_or_default();
    let begun = text.lines().filter(|line| line.contains('(') && !line.contains(" resumed>"));
    let of_loop = text.lines().find_map(|line| {
        line.contains("NFNL_MSG_BATCH_BEGIN").then(|| line.split_whitespace().next())
    });
    match of_loop.flatten() {
        Some(thread) => begun.filter(|line| line.split_whitespace().next() == Some(thread)).count(),
        None => 0,
    }
}

/// Starts the service, to be killed at a moment if one is given.
fn start(cluster: &mut Cluster, moment: Option<usize>) {
    let _ = std::fs::remove_file(cluster.trace());
    let service = Service::start(traced(cluster, moment), &cluster.log_path());
    cluster.service = Some(service);
}

/// Reports whether the service was killed; it must not have ended by itself.
fn is_dead(cluster: &mut Cluster) -> bool {
    let status = cluster.service.as_mut().unwrap().child().try_wait().unwrap();
    if let Some(status) = status {
        assert_eq!(status.signal(), Some(9), "it ended by itself: {}", cluster.log());
    }
    status.is_some()
}

/// The situation in which the service is killed.
struct Situation<'t> {
    /// Whether `web` reaches `db`, which the old policy allows, and whether `cache` does, which the
    /// new one allows.
    who: &'t dyn Fn() -> (bool, bool),
    /// Changes the policy so that the named pod reaches `db`.
    switch: &'t dyn Fn(&Cluster, &str),
}

#[test]
fn a_service_killed_at_any_change_of_a_policy_leaves_the_old_or_the_new_one() {
    testkit::require!("root", "program:strace");
    let mut cluster = Cluster::new("policy-kill");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.start();
    let pods = NAMES.map(|name| cluster.pod(name));
    let who = || {
        let [db, web, cache, other] = &pods;
        other.assert_reaches(db, false);
        (web.reaches(db), cache.reaches(db))
    };
    let switch = |cluster: &Cluster, to: &str| {
        let new = allow("db", "db", &[to]);
        cluster.api.change("networkpolicies", "shop", "db", &json!({"spec": new["spec"]}));
    };
    killed(&mut cluster, &Situation { who: &who, switch: &switch });
}

/// The same for pods whose policies are enforced in their own namespaces.
#[test]
fn a_service_killed_at_any_change_leaves_the_old_or_the_new_policy_inside() {
    testkit::require!("root", "program:strace");
    let mut cluster = super::inside::cluster("policy-kill-inside");
    cluster.start();
    let pods = super::inside::pods(&cluster, NAMES);
    let further = [0, 1, 2, 3]
        .map(|at: usize| FurtherInterface::attach(&cluster, &pods[at], ("fabric", "net1")));
    let who = || {
        let [db, web, cache, other] = &further;
        other.assert_reaches(db, false);
        (web.reaches(db), cache.reaches(db))
    };
    let switch = |cluster: &Cluster, to: &str| {
        let new = allow("db", "db", &[to]);
        cluster.api.change("multi-networkpolicies", "shop", "db", &json!({"spec": new["spec"]}));
    };
    killed(&mut cluster, &Situation { who: &who, switch: &switch });
}

/// Kills the service at each moment of its start and of its work on a change. At the beginning the
/// service runs, and `web` may reach `db`.
fn killed(cluster: &mut Cluster, Situation { who, switch }: &Situation<'_>) {
    cluster.kill();
    // The number of calls of the start, and of the change.
    let times = |cluster: &Cluster| cluster.log().matches("policies are enforced").count();
    let enforced = times(cluster);
    start(cluster, None);
    wait_until("policies to be enforced", || enforced < times(cluster));
    assert_eq!(who(), (true, false));
    let of_start = calls(cluster);
    switch(cluster, "cache");
    wait_until("the new policy", || who() == (false, true));
    let all = calls(cluster);
    assert!(of_start < all, "{of_start} calls, and then {all}");
    cluster.kill();

    let mut now = "cache";
    for moment in chosen(1, all) {
        eprintln!("killed at {moment} of {all}, of which {of_start} start it");
        let then = if now == "web" { "cache" } else { "web" };
        let enforced = times(cluster);
        start(cluster, Some(moment));
        let mut dead = false;
        wait_until("the service to be dead, or to enforce", || {
            dead = is_dead(cluster);
            dead || enforced < times(cluster)
        });
        let old = (now == "web", now == "cache");
        if dead {
            assert_eq!(who(), old, "a start changes nothing");
        }
        switch(cluster, then);
        let new = (then == "web", then == "cache");
        if !dead {
            wait_until("the service to be dead, or to enforce the new policy", || {
                is_dead(cluster) || who() == new
            });
        }
        let found = who();
        assert!(found == old || found == new, "killed at {moment}: {found:?}");
        cluster.kill();
        now = then;
        cluster.start();
        wait_until("the new policy", || who() == new);
        cluster.kill();
    }
}
