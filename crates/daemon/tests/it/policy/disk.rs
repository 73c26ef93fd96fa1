//! The disk is busy: what waits for it is not what plugins wait for.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use testkit::{Place as _, Service, wait_until};

use super::{Cluster, allow, daemon};

/// How long each write to the disk takes, in microseconds: longer than the test.
const WRITE: &str = "120000000";

/// Returns the service's command under `strace`, which makes the disk slow.
fn with_a_busy_disk(cluster: &Cluster) -> Command {
    let command = cluster.command();
    let mut traced = cluster.node.lab.command("strace");
    traced.args(["-D", "-f", "-qq", "--seccomp-bpf", "-e", "trace=fsync,fdatasync"]);
    traced.args(["-e", &format!("inject=fsync,fdatasync:delay_enter={WRITE}")]);
    traced.arg("-o").arg(cluster.node.lab.dir().join("trace"));
    let daemon = daemon();
    traced.args(command.get_args().skip_while(|word| *word != daemon.as_str()));
    traced.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    traced
}

/// As soon as policies are enforced, the service writes how many there are. A plugin waits two seconds
/// for an answer, and its pod is closed then.
#[test]
fn a_busy_disk_keeps_no_pod_waiting() {
    testkit::require!("root", "program:strace");
    let mut cluster = Cluster::new("policy-disk");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.service = Some(Service::start(with_a_busy_disk(&cluster), &cluster.log_path()));
    let folder = cluster.node.roots.lib.join("policy");
    let is_temporary = |name: &OsStr| name.as_bytes().starts_with(b".policies.");
    wait_until("the number of policies to be on its way to the disk", || {
        let mut entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        entries.any(|entry| is_temporary(&entry.file_name()))
    });
    cluster.create("db");
    let db = cluster.connect("shop", "db");
    let told = cluster.admit(&db);
    assert!(!told.contains("does not answer"), "{told}");
    assert!(!folder.join("policies").exists(), "the disk was not busy");
    wait_until("the pod to be known", || cluster.admit(&db).is_empty());
}
