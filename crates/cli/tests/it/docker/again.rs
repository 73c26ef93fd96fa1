//! A container that leaves its network and comes back gets its static address again.

use testkit::real::{Docker, Engine};
use testkit::traffic::assert_pings;
use testkit::{Lab, Place, Snapshot, feature};

use super::life::needs_docker;
use super::support::{Driver, LAN, assert_nothing_left, write_network};
use crate::system::{address_of, install};

/// A network of each kind: with Docker's addresses and with ours, without access to the outside, on
/// a parent, from a list.
const NETWORKS: [(&str, &str, &str); 5] = [
    ("made", "10.84.0.9", "--opt bridge=made0 --subnet 10.84.0.0/24"),
    ("own", "10.85.0.9", "--opt bridge=own0 --ipam-driver netwright --subnet 10.85.0.0/24"),
    (
        "inner",
        "10.86.0.9",
        "--internal --opt bridge=inner0 --ipam-driver netwright --subnet 10.86.0.0/24",
    ),
    ("flat", "10.87.0.9", "--opt type=macvlan --opt master=up0 --subnet 10.87.0.0/24"),
    (
        "lan",
        "10.71.0.9",
        "--opt conflist=lan --ipv6 --ipam-driver netwright --ipam-opt conflist=lan \
         --subnet 10.71.0.0/24 --subnet fd71::/64",
    ),
];

#[test]
fn a_static_address_is_the_containers_whenever_it_comes_back() {
    needs_docker!();
    comes_back(Engine::Installed);
}

pub(super) fn comes_back(engine: Engine) {
    let lab = Lab::with_processes("docker-again");
    install(&lab);
    write_network(&lab, "lan", LAN);
    lab.sh("ip link add up0 type veth peer name up1 && ip link set up0 up && ip link set up1 up");
    let driver = Driver::start(&lab);
    let mut docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    drop(docker.start_container("web", &["--network", "none"]));
    docker.run(&["network", "disconnect", "none", "web"]);
    for (name, address, options) in NETWORKS {
        docker.create_network(&format!("{options} {name}"));
        docker.run(&["network", "connect", "--ip", address, name, "web"]);
    }
    let has = |docker: &Docker<'_>, what: &str| {
        let web = docker.netns("web");
        let all = web.sh("ip -o -4 address show scope global");
        for (name, address, _) in NETWORKS {
            assert!(all.contains(&format!(" {address}/")), "{what}: {name}: {all}");
            // The host reaches the container by the networks that the host is on.
            if !["flat", "inner"].contains(&name) {
                assert_pings(&lab, address);
            }
        }
    };
    has(&docker, "connected");
    for _ in 0..if feature::available("full") { 3 } else { 1 } {
        for (name, address, _) in NETWORKS {
            docker.run(&["network", "disconnect", name, "web"]);
            docker.run(&["network", "connect", "--ip", address, name, "web"]);
        }
    }
    has(&docker, "connected again");
    docker.run(&["restart", "--time", "0", "web"]);
    has(&docker, "started again");
    docker.run(&["stop", "web"]);
    for (name, address, _) in NETWORKS {
        docker.run(&["network", "disconnect", name, "web"]);
        docker.run(&["network", "connect", "--ip", address, name, "web"]);
    }
    docker.run(&["start", "web"]);
    has(&docker, "connected while it was stopped");
    // The engine does not release the endpoints: they are the container's own.
    docker.kill();
    docker.start();
    docker.run(&["start", "web"]);
    has(&docker, "after the engine was killed");
    for (name, address, _) in NETWORKS {
        docker.run(&["network", "disconnect", "--force", name, "web"]);
        docker.run(&["network", "connect", "--ip", address, name, "web"]);
    }
    has(&docker, "connected behind that");
    // Another container gets the address, once it is released.
    let other = docker.start_container("other", &["--network", "none"]);
    docker.run(&["network", "disconnect", "none", "other"]);
    for (name, address, _) in NETWORKS {
        docker.refused(&["network", "connect", "--ip", address, name, "other"]);
        docker.run(&["network", "disconnect", name, "web"]);
        docker.run(&["network", "connect", "--ip", address, name, "other"]);
    }
    assert_eq!(address_of(&other, "eth0", "inet").to_string(), NETWORKS[0].1);
    drop(other);
    docker.remove(&["web", "other"]);
    for (name, _, _) in NETWORKS {
        docker.run(&["network", "rm", name]);
    }
    assert_nothing_left(&lab, &before);
    drop(driver);
}
