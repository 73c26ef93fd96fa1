//! The disk is busy: what waits for it is not what plugins wait for.

use std::fs;

use testkit::{Service, wait_until};

use super::{Cluster, allow};

/// How long each write to the disk takes, in microseconds: longer than the plugins wait, and than what
/// the test does meanwhile. The service ends only after it.
const WRITE: &str = "25000000";

/// What the loop must not wait for.
const SYNC: &str = "fsync,fdatasync";

/// As soon as policies are enforced, the service writes how many there are. A plugin waits two
/// seconds for an answer, and its pod is closed then.
#[test]
fn a_busy_disk_keeps_no_pod_waiting() {
    testkit::require!("root", "program:strace");
    let mut cluster = Cluster::new("policy-disk");
    cluster.api.create(&allow("db", "db", &["web"]));
    // `strace` tells of each write before it makes it slow.
    let slow = format!("inject={SYNC}:delay_enter={WRITE}");
    let service = cluster.traced(SYNC, &["-e", &slow]);
    cluster.service = Some(Service::start(service, &cluster.log_path()));
    // The service writes nothing else so that it is on the disk. The file has no name before.
    wait_until("the number of policies to be on its way to the disk", || {
        fs::read_to_string(cluster.trace()).unwrap_or_default().contains("sync(")
    });
    cluster.create("db");
    let db = cluster.connect("shop", "db");
    let told = cluster.admit(&db);
    assert!(!told.contains("does not answer"), "{told}");
    let written = cluster.node.roots.lib.join("policy/policies");
    assert!(!written.exists(), "the disk was not busy");
    wait_until("the pod to be known", || cluster.admit(&db).is_empty());
}
