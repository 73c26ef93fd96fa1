//! `live-restore`: the engine stops and returns while its containers run. It sends the driver no
//! requests when it returns.

use testkit::real::{Docker, Engine};
use testkit::traffic::assert_pings;
use testkit::{Lab, Place as _, Snapshot};

use super::life::{assert_neighbours, needs_docker, published};
use super::support::{Driver, assert_nothing_left_but};
use crate::system::{address_of, gateway_of, install};

/// The engine puts its own jumps in one order when it starts and in another when it starts again.
const REORDERED: &str =
    r#"is `{"chain":"FORWARD","expr":[{"counter":null},{"jump":{"target":"DOCKER-"#;

#[test]
fn containers_outlive_the_engine() {
    needs_docker!();
    live_restore(Engine::Installed);
}

pub(super) fn live_restore(engine: Engine) {
    let lab = Lab::with_processes("docker-restore");
    install(&lab);
    let mut driver = Driver::start(&lab);
    let mut docker = Docker::of(&lab, engine, &["--live-restore"]);
    let before = Snapshot::take(&lab);
    docker.create_network("--opt bridge=kept0 --ipam-driver netwright --ipv6 --subnet 10.80.0.0/24 --subnet fd80::/64 kept");
    let web = docker.start_container("web", &["--network", "kept", "--publish", "8080:80"]);
    let other = docker.start_container("other", &["--network", "kept"]);
    // fd80:: is the anycast address of all routers (RFC 4291 §2.6.1).
    assert_eq!(gateway_of(&web, "-6").to_string(), "fd80::1");
    let both = || {
        assert_neighbours(&web, &other);
        published(&lab, &web, &other, 8080);
    };
    let restored = |docker: &Docker<'_>| {
        both();
        for (name, netns) in [("web", &web), ("other", &other)] {
            let said = docker.inspect(name);
            assert_eq!(said["State"]["Running"], true, "{name}");
            let network = &said["NetworkSettings"]["Networks"]["kept"];
            assert_eq!(network["IPAddress"], address_of(netns, "eth0", "inet").to_string());
        }
    };
    both();

    docker.kill();
    both();
    docker.start();
    restored(&docker);

    // The driver stops too, as when both are upgraded.
    docker.stop();
    driver.kill();
    both();
    driver.again();
    docker.start();
    restored(&docker);

    // A new container gets an address that no other has.
    let third = docker.start_container("third", &["--network", "kept"]);
    for one in [&web, &other] {
        assert_neighbours(one, &third);
    }
    drop(third);
    // A container that is stopped is detached, and comes back when it starts.
    let address = address_of(&web, "eth0", "inet");
    docker.run(&["restart", "--time", "0", "other"]);
    let again = docker.netns("other");
    assert_pings(&again, &address.to_string());
    assert!(!again.sh("ip -brief link").contains("eth1"));

    // A container ends while the engine is away.
    let pid = docker.inspect("web")["State"]["Pid"].clone();
    docker.kill();
    lab.sh(&format!("kill -KILL {pid}"));
    docker.start();
    assert_eq!(docker.inspect("web")["State"]["Running"], false);
    drop((web, other, again));
    docker.remove(&["web", "other", "third"]);
    docker.run(&["network", "rm", "kept"]);
    assert_nothing_left_but(&lab, &before, &[REORDERED]);
    drop(driver);
}
