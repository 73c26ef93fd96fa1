//! `netwrightd collect`.

use testkit::{Place, Snapshot};

use super::Host;
use crate::rig::wait_for;

#[test]
fn what_dead_containers_left_goes_and_the_living_stay() {
    testkit::require!("root");
    let host = Host::new("collect");
    let lab = &host.node.lab;
    let live = lab.container("live");
    host.add(&live, &host.list(8081));
    // A container whose path is gone while one of its processes lives.
    let mut pathless = lab.container("pathless");
    pathless.pid();
    host.add(&pathless, &host.list(8083));
    pathless.delete();
    let before = Snapshot::take(lab);
    let gone = lab.container("gone");
    host.add(&gone, &host.list(8082));
    drop(gone);

    // It prints what it would do, and does nothing.
    let daemon = host.daemon("collect", &["--grace", "0", "--once"]);
    wait_for("it to tell", || daemon.log().contains("would remove"));
    let log = daemon.log();
    assert!(log.contains("container_id=gone") && !log.contains("container_id=live"), "{log}");
    assert!(!log.contains("container_id=pathless"), "{log}");
    daemon.ended();
    assert!(lab.sh("nft list ruleset").contains("8082"));

    // A container that its runtime has below /run counts as alive.
    lab.sh("mkdir -p /run/containers/storage/overlay-containers/gone");
    host.daemon("collect", &["--grace", "0", "--once", "--act"]).ended();
    assert!(lab.sh("nft list ruleset").contains("8082"));
    lab.sh("rm -r /run/containers");

    let daemon = host.daemon("collect", &["--grace", "0", "--once", "--act"]);
    daemon.ended();
    before.assert_same(&Snapshot::take(lab));
    // It changed nothing of the living ones.
    let (_, list) = (&live, host.list(8081));
    host.del(&live, &list);
}

#[test]
fn the_grace_time_is_waited_for() {
    testkit::require!("root");
    let host = Host::new("collect-grace");
    let gone = host.node.container("gone");
    host.add(&gone, &host.list(8082));
    drop(gone);
    let daemon = host.daemon("collect", &["--grace", "1h", "--interval", "10ms", "--act"]);
    wait_for("a few looks", || daemon.log().contains("ready"));
    assert_eq!(daemon.stop(), Some(0));
    assert!(host.node.sh("nft list ruleset").contains("8082"));
}
