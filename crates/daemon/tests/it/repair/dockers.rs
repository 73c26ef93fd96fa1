//! Docker's containers.

use cni_runtime::Attachment;
use testkit::Place;

use super::{Host, after_looks, ready};

/// The plugins worked in a namespace of the Docker driver. Docker moves the interface out of it and
/// renames it; no record says where it is. `crates/cli/tests/it/docker/mended.rs` has the tests
/// with records, and with Docker.
#[test]
fn dockers_containers_are_left_alone() {
    testkit::require!("root");
    let host = Host::new("repair-docker");
    let lab = &host.node.lab;
    let [docker, sound] = ["docker", "sound"].map(|name| lab.container(name));
    let netns = host.node.roots.run.join("docker/netns/nwd0");
    let netns = netns.to_str().unwrap();
    let folder = host.node.dir("run/docker/netns");
    assert!(netns.starts_with(folder.to_str().unwrap()));
    lab.sh(&format!("touch {netns} && mount --bind /run/netns/docker {netns}"));
    let attachment = Attachment::new("docker".parse().unwrap(), "eth0".parse().unwrap(), netns);
    let added = lab.enter(|| host.runtime.add_list(&host.list(8081), &attachment, None));
    added.unwrap_or_else(|error| panic!("{error}"));
    host.add(&sound, &host.list(8082));

    // The container is being made: its maker is not done.
    docker.sh("ip route del default");
    let daemon = host.daemon("repair", &["--interval", "1h"]);
    ready(&daemon);
    after_looks(&sound);
    assert!(!docker.sh("ip route").contains("default"), "{}", daemon.log());

    // In its container, under another name.
    docker.sh("ip link set eth0 down && ip link set eth0 name eth7");
    lab.sh("nft delete element inet netwright hostports4 '{ tcp . 8081 }'");
    let rules = lab.sh("nft list ruleset");
    after_looks(&sound);
    assert_eq!(lab.sh("nft list ruleset"), rules, "{}", daemon.log());
    assert!(!docker.sh("ip link show eth7").contains(",UP"), "{}", daemon.log());
    let log = daemon.log();
    assert!(log.contains("container_id=sound") && !log.contains("container_id=docker"), "{log}");
    assert_eq!(daemon.stop(), Some(0));
    lab.sh(&format!("umount --lazy {netns}"));
}
