//! The service `docker`, driven by real engines.

use testkit::real::{Docker, Engine};
use testkit::{Lab, Place as _, feature, wait_until};

use super::Host;
use crate::docker::life::{assert_neighbours, needs_docker, needs_newest, published};
use crate::docker::support::{LAN, write_network};

const UNIT: &str = "netwrightd@docker.service";

/// A list whose plugin opens a device.
const TAPS: &str = r#"{
  "cniVersion": "1.0.0", "name": "taps",
  "plugins": [{"type": "tap", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.75.0.0/24"}]]}}]
}"#;

#[test]
fn the_docker_driver_works_within_its_unit() {
    needs_docker!();
    testkit::require!("file:/lib/systemd/systemd");
    life(Engine::Installed);
}

#[test]
fn the_docker_driver_works_within_its_unit_with_the_newest_engine() {
    needs_newest!();
    testkit::require!("file:/lib/systemd/systemd");
    life(Engine::Newest);
}

fn life(engine: Engine) {
    let lab = &Lab::with_systemd("unit-docker");
    let host = Host::new(lab);
    write_network(lab, "lan", LAN);
    host.enable("[docker]\nenable = true\n");
    let docker = Docker::of(lab, engine, &[]);
    docker.create_network("--opt conflist=lan --ipv6 --ipam-driver netwright --ipam-opt conflist=lan --subnet 10.71.0.0/24 --subnet fd71::/64 lan");
    let web = docker.start_container("web", &["--network", "lan", "--publish", "8080:80"]);
    let other = docker.start_container(
        "other",
        &["--network", "lan", "--publish", "81-82:80", "--publish", "81"],
    );
    assert_neighbours(&web, &other);
    published(lab, &web, &other, 8080);
    published(lab, &other, &web, 81);
    // The namespaces that it has mounted belong to the host, and outlive it.
    let held = || lab.sh("grep -c /run/netwright/docker/netns/ /proc/self/mountinfo || true");
    host.systemctl(&format!("restart {UNIT}"));
    assert_eq!(held().trim(), "2");
    assert_neighbours(&web, &other);
    published(lab, &web, &other, 8080);
    drop((web, other));
    docker.run(&["restart", "--time", "0", "web"]);
    let (web, other) = (docker.netns("web"), docker.netns("other"));
    assert_neighbours(&web, &other);
    published(lab, &web, &other, 8080);
    host.assert_confined(UNIT);
    // After a kill, the next request starts it again.
    host.systemctl(&format!("kill --signal KILL {UNIT}"));
    drop((web, other));
    docker.remove(&["web", "other"]);
    docker.run(&["network", "rm", "lan"]);
    wait_until("everything to be gone", || {
        held().trim() == "0"
            && lab.sh("ip -o link show type veth").is_empty()
            && lab.sh("ip -o link show type bridge | grep lan0 || true").is_empty()
            && !lab.sh("nft list ruleset").contains("8080")
    });
    if feature::available("tun") {
        write_network(lab, "taps", TAPS);
        docker.create_network("--opt conflist=taps --ipam-driver netwright --ipam-opt conflist=taps --subnet 10.75.0.0/24 taps");
        let tap = docker.start_container("tap", &["--network", "taps"]);
        assert!(tap.sh("ip -d link show eth0").contains("tun type tap"));
        drop(tap);
        docker.remove(&["tap"]);
        docker.run(&["network", "rm", "taps"]);
    }
    host.assert_confined(UNIT);
}
