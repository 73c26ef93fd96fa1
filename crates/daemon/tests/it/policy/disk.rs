//! The disk is busy: what waits for it is not what plugins wait for.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use testkit::{Place as _, Service, wait_until};

use super::{Cluster, allow, daemon};

/// How long each write to the disk takes, in microseconds: longer than the plugins wait, and than what
/// the test does meanwhile. The service ends only after it.
const WRITE: &str = "25000000";

/// Where `strace` tells of each write, before it makes it slow.
fn trace(cluster: &Cluster) -> PathBuf {
    cluster.node.lab.dir().join("trace")
}

/// Returns the service's command under `strace`, which makes the disk slow.
fn with_a_busy_disk(cluster: &Cluster) -> Command {
    let command = cluster.command();
    let mut traced = cluster.node.lab.command("strace");
    traced.args(["-D", "-f", "-qq", "--seccomp-bpf", "-e", "trace=fsync,fdatasync"]);
    traced.args(["-e", &format!("inject=fsync,fdatasync:delay_enter={WRITE}")]);
    traced.arg("-o").arg(trace(cluster));
    let daemon = daemon();
    traced.args(command.get_args().skip_while(|word| *word != daemon.as_str()));
    traced.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    traced
}

/// As soon as policies are enforced, the service writes how many there are. A plugin waits two
/// seconds for an answer, and its pod is closed then.
#[test]
fn a_busy_disk_keeps_no_pod_waiting() {
    testkit::require!("root", "program:strace");
    let mut cluster = Cluster::new("policy-disk");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.service = Some(Service::start(with_a_busy_disk(&cluster), &cluster.log_path()));
    // The service writes nothing else so that it is on the disk. The file has no name before.
    wait_until("the number of policies to be on its way to the disk", || {
        fs::read_to_string(trace(&cluster)).unwrap_or_default().contains("sync(")
    });
    cluster.create("db");
    let db = cluster.connect("shop", "db");
    let told = cluster.admit(&db);
    assert!(!told.contains("does not answer"), "{told}");
    let written = cluster.node.roots.lib.join("policy/policies");
    assert!(!written.exists(), "the disk was not busy");
    wait_until("the pod to be known", || cluster.admit(&db).is_empty());
}
