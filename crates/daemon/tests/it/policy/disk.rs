//! The disk is busy: plugins do not wait for it.

use std::fs;

use testkit::{Service, wait_until};

use super::{Cluster, allow};

/// How long each write to the disk takes, in microseconds: longer than the plugins wait, and longer
/// than the test's other steps. The service ends only after it.
const WRITE: &str = "25000000";

/// The calls for which the loop must not wait.
const SYNC: &str = "fsync,fdatasync";

/// As soon as policies are enforced, the service writes their number to the disk. A plugin waits
/// two seconds for an answer; without one it closes its pod.
#[test]
fn a_busy_disk_keeps_no_pod_waiting() {
    testkit::require!("root", "program:strace");
    let mut cluster = Cluster::new("policy-disk");
    cluster.api.create(&allow("db", "db", &["web"]));
    // `strace` prints each call before it delays it.
    let slow = format!("inject={SYNC}:delay_enter={WRITE}");
    let service = cluster.traced(SYNC, &["-e", &slow]);
    cluster.service = Some(Service::start(service, &cluster.log_path()));
    // The service forces nothing else to the disk. The file has no name before that.
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
