//! The engine or the driver is killed at any moment.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::json;
use testkit::real::{Docker, Engine};
use testkit::traffic::{Server, assert_pings, assert_tcp};
use testkit::{Lab, Place, Snapshot, feature};

use super::life::needs_docker;
use super::proxy::{BEHIND, Blow, serve};
use super::support::{Driver, assert_nothing_left, figure};
use crate::system::{address_of, install};

/// The calls of a network's and a container's life, in order.
const CALLS: [&str; 13] = [
    "IpamDriver.RequestPool",
    "IpamDriver.RequestAddress",
    "NetworkDriver.CreateNetwork",
    "NetworkDriver.CreateEndpoint",
    "NetworkDriver.Join",
    "NetworkDriver.ProgramExternalConnectivity",
    "NetworkDriver.EndpointOperInfo",
    "NetworkDriver.RevokeExternalConnectivity",
    "NetworkDriver.Leave",
    "NetworkDriver.DeleteEndpoint",
    "IpamDriver.ReleaseAddress",
    "IpamDriver.ReleasePool",
    "NetworkDriver.DeleteNetwork",
];

/// The calls that only remove.
const REMOVALS: [&str; 6] = [
    "NetworkDriver.RevokeExternalConnectivity",
    "NetworkDriver.Leave",
    "NetworkDriver.DeleteEndpoint",
    "IpamDriver.ReleaseAddress",
    "IpamDriver.ReleasePool",
    "NetworkDriver.DeleteNetwork",
];

/// How long after it got a call the driver is killed. Some calls run plugins for that long.
const MOMENTS_MS: [u64; 3] = [0, 4, 15];

/// Makes and removes a network and a container on it; returns what needed a second try.
fn life(lab: &Lab, docker: &Docker<'_>) -> Vec<String> {
    let mut twice = Vec::new();
    let create = [
        "network",
        "create",
        "--driver",
        "netwright",
        "--opt",
        "name=lived",
        "--opt",
        "bridge=lived0",
        "--ipam-driver",
        "netwright",
        "--subnet",
        "10.73.0.0/24",
        "lived",
    ];
    let run = [
        "run",
        "--detach",
        "--name",
        "web",
        "--network",
        "lived",
        "--publish",
        "8080:80",
        Docker::IMAGE,
    ];
    for command in [&create[..], &run] {
        let output = docker.try_run(command);
        if !output.status.success() {
            // The driver was killed before it noted the call: the engine reports that, and a second
            // try succeeds.
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                said.contains(
                    "Docker repeats calls without content after a driver's restart: try again"
                ),
                "{said}\n{}",
                docker.log()
            );
            twice.push(said);
            docker.try_run(&["rm", "--force", "web"]);
            docker.run(command);
        }
    }
    let web = docker.netns("web");
    assert_pings(lab, &address_of(&web, "eth0", "inet").to_string());
    {
        let _server = Server::tcp(&web, "0.0.0.0:80", "web");
        assert_eq!(assert_tcp(lab, "127.0.0.1:8080").server, "web");
    }
    drop(web);
    docker.remove(&["web"]);
    docker.run(&["network", "rm", "lived"]);
    twice
}

#[test]
fn the_driver_killed_at_each_call() {
    needs_docker!();
    driver_killed(Engine::Installed);
}

pub(super) fn driver_killed(engine: Engine) {
    let lab = Lab::with_processes("docker-kill");
    install(&lab);
    let driver = Driver::start_at(&lab, BEHIND, &[]);
    serve(&lab, driver, |control| {
        let docker = Docker::of(&lab, engine, &[]);
        let before = Snapshot::take(&lab);
        let (mut struck, mut answered, mut twice) = (0, 0, Vec::new());
        // Every run tests each call at one of the moments, with `--full` at all of them.
        let full = feature::available("full");
        for (number, call) in CALLS.into_iter().enumerate() {
            let some = MOMENTS_MS.into_iter().enumerate();
            let some = some.filter(|(place, _)| full || *place == number % MOMENTS_MS.len());
            for after in some.map(|(_, moment)| Duration::from_millis(moment)) {
                control.strike(Blow { call: call.to_owned(), after });
                twice.extend(
                    life(&lab, &docker)
                        .into_iter()
                        .map(|said| format!("{call} after {after:?}: {said}")),
                );
                struck += usize::from(control.has_struck());
                assert!(control.has_struck(), "{call} was not called");
                // The driver may have sent its answer to the previous call and not yet deleted the
                // call's note: the first call after a minute deletes it (`intent.rs`).
                let late = lab.sh("ls /run/netwright/docker/calls");
                for note in late.lines().filter(|note| !note.starts_with(call)) {
                    // A living driver deletes its own a moment after its answer.
                    let removed = lab.try_sh(&format!("rm /run/netwright/docker/calls/{note}"));
                    answered += usize::from(removed.status.success());
                }
                let left = lab.sh("ls /var/lib/netwright/docker/*/ /run/netwright/docker/netns /run/netwright/docker/calls | grep -v : || true");
                // A removal is lost if the driver was killed before it noted the call; on a busy
                // machine that may take any of these times. It must not prevent anything, and the
                // next network's creation completes it: the next turn sees that, and the end.
                if !REMOVALS.contains(&call) {
                    assert_eq!(left.trim(), "", "{call} after {after:?}");
                }
            }
        }
        // What the last kill may have left goes with the next network.
        let undisturbed = life(&lab, &docker);
        assert!(undisturbed.is_empty(), "{undisturbed:?}");
        figure!(
            engine,
            "killed the driver {struck} times, {answered} of them before it forgot what it had answered; tried again {}:\n{}",
            twice.len(),
            twice.join("")
        );
        assert_nothing_left(&lab, &before);
    });
}

/// The driver was killed before it noted that a network must go: the network does not prevent the
/// next of its name and subnet.
#[test]
fn a_network_whose_removal_was_lost() {
    testkit::require!("root");
    let lab = Lab::with_processes("docker-lost");
    install(&lab);
    let driver = Driver::start(&lab);
    let call = |name: &str, body: &serde_json::Value| -> serde_json::Value {
        let body = body.to_string();
        let mut stream = UnixStream::connect(driver.socket()).unwrap();
        write!(
            stream,
            "POST /{name} HTTP/1.1\r\nHost: \r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let network = |id: &str| {
        json!({
            "NetworkID": id,
            "Options": {"com.docker.network.generic": {"name": "lost", "bridge": "lost0"}},
            "IPv4Data": [{"AddressSpace": "netwright", "Pool": "10.73.0.0/24", "Gateway": "10.73.0.1/24"}],
            "IPv6Data": [],
        })
    };
    let wanted = json!({"AddressSpace": "netwright", "Pool": "10.73.0.0/24"});
    let pool = call("IpamDriver.RequestPool", &wanted)["PoolID"].clone();
    assert_eq!(call("NetworkDriver.CreateNetwork", &network("one")), json!({}));
    assert_eq!(call("IpamDriver.ReleasePool", &json!({"PoolID": pool})), json!({}));
    // The call DeleteNetwork is lost here.
    let again = call("IpamDriver.RequestPool", &wanted)["PoolID"].clone();
    assert_eq!(call("NetworkDriver.CreateNetwork", &network("two")), json!({}));
    let given = call("IpamDriver.RequestAddress", &json!({"PoolID": again}));
    assert_eq!(given["Address"], "10.73.0.1/24", "{given}");
    let left = lab.sh("cd /var/lib/netwright/docker && ls networks pools | grep json");
    assert_eq!(left.lines().count(), 2, "{left}");
    // An existing network keeps its pool.
    let said = call("IpamDriver.RequestPool", &wanted).to_string();
    assert!(said.contains("which is in use"), "{said}");
    drop(driver);
}

/// With Docker's own IPAM the engine does not call the driver before it starts containers: it does
/// not report that those it had are gone.
#[test]
fn the_engine_killed_that_forgets_its_endpoints() {
    needs_docker!();
    forgotten(Engine::Installed);
}

pub(super) fn forgotten(engine: Engine) {
    let lab = Lab::with_processes("docker-forgets");
    install(&lab);
    let driver = Driver::start(&lab);
    let mut docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    docker.create_network("--opt bridge=forgot0 --subnet 10.82.0.0/24 forgot");
    // Containers do not get their earlier addresses, but want their ports.
    drop(docker.start_container("spare", &["--network", "forgot"]));
    for (name, port) in [("one", "8080:80"), ("two", "8081-8082:80"), ("three", "8081-8082:80")] {
        let options = ["--restart", "always", "--network", "forgot", "--publish", port];
        drop(docker.start_container(name, &options));
    }
    docker.remove(&["spare"]);
    docker.kill();
    docker.start();
    let mut ports = driver.ports();
    ports.sort_unstable();
    assert_eq!(ports, [8080, 8081, 8082], "{}\n{}", docker.run(&["ps", "--all"]), docker.log());
    let one = docker.netns("one");
    {
        let _server = Server::tcp(&one, "0.0.0.0:80", "one");
        assert_eq!(assert_tcp(&lab, "127.0.0.1:8080").server, "one");
    }
    for name in ["two", "three"] {
        assert_pings(&one, &address_of(&docker.netns(name), "eth0", "inet").to_string());
    }
    let endpoints = lab.sh("ls /var/lib/netwright/docker/endpoints | wc -l");
    assert_eq!(endpoints.trim(), "3", "endpoints of containers that are gone");
    drop(one);
    docker.remove(&["one", "two", "three"]);
    docker.run(&["network", "rm", "forgot"]);
    assert_nothing_left(&lab, &before);
    drop(driver);
}

#[test]
fn the_engine_killed_with_twenty_containers() {
    testkit::require!("full");
    needs_docker!();
    engine_killed(Engine::Installed);
}

pub(super) fn engine_killed(engine: Engine) {
    let lab = Lab::with_processes("docker-twenty");
    install(&lab);
    let mut driver = Driver::start(&lab);
    let mut docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    docker.create_network("--opt bridge=many0 --ipam-driver netwright --ipv6 --subnet 10.74.0.0/24 --subnet fd74::/64 many");
    let names: Vec<String> = (0..20).map(|number| format!("c{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let port = format!("{}:80", 9000 + number);
        drop(docker.start_container(
            name,
            &["--restart", "always", "--network", "many", "--publish", &port],
        ));
    }
    let all_networked = |docker: &Docker<'_>| {
        let mut addresses = std::collections::BTreeSet::new();
        for (number, name) in names.iter().enumerate() {
            let netns = docker.netns(name);
            for family in ["inet", "inet6"] {
                let address = address_of(&netns, "eth0", family).to_string();
                assert_pings(&lab, &address);
                assert!(addresses.insert(address), "{name}: two containers have the same address");
            }
            let _server = Server::tcp(&netns, "[::]:80", name);
            assert_eq!(assert_tcp(&lab, &format!("127.0.0.1:{}", 9000 + number)).server, *name);
        }
    };
    all_networked(&docker);

    docker.kill();
    let took = docker.start();
    figure!(engine, "engine killed and up again with 20 containers after {took:?}");
    all_networked(&docker);

    // The engine and the driver are killed at once, as at a power cut that spares the kernel.
    docker.kill();
    driver.kill();
    driver.again();
    let took = docker.start();
    figure!(engine, "engine and driver killed, up again with 20 containers after {took:?}");
    all_networked(&docker);

    // Both are stopped in order.
    docker.stop();
    let took = docker.start();
    figure!(engine, "engine stopped and up again with 20 containers after {took:?}");
    all_networked(&docker);

    let endpoints = lab.sh("ls /var/lib/netwright/docker/endpoints | wc -l");
    assert_eq!(endpoints.trim(), "20", "endpoints of containers that are gone");
    docker.remove(&names.iter().map(String::as_str).collect::<Vec<_>>());
    docker.run(&["network", "rm", "many"]);
    assert_nothing_left(&lab, &before);
    drop(driver);
}

/// The engine and the driver are killed, and the engine returns before the driver: the engine
/// forgets its endpoints without a report. A container gets its address again nevertheless.
#[test]
fn a_static_address_behind_an_engine_and_a_driver_that_were_killed() {
    testkit::require!("full");
    needs_docker!();
    static_address(Engine::Installed);
}

pub(super) fn static_address(engine: Engine) {
    let lab = Lab::with_processes("docker-static");
    install(&lab);
    let mut driver = Driver::start(&lab);
    let mut docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    docker
        .create_network("--opt bridge=still0 --ipam-driver netwright --subnet 10.83.0.0/24 still");
    let options = ["--network", "still", "--ip", "10.83.0.9", "--publish", "8083:80"];
    drop(docker.start_container("web", &options));
    docker.kill();
    driver.kill();
    // Without the socket the engine does not wait for a listener.
    lab.sh(&format!("rm {}", super::support::SOCKET));
    docker.start();
    driver.again();
    docker.run(&["start", "web"]);
    let web = docker.netns("web");
    assert_eq!(address_of(&web, "eth0", "inet").to_string(), "10.83.0.9");
    assert_pings(&lab, "10.83.0.9");
    // The address counts as taken, as it always does.
    let said = docker.refused(&[
        "run",
        "--rm",
        "--network",
        "still",
        "--ip",
        "10.83.0.9",
        Docker::IMAGE,
        "true",
    ]);
    assert!(said.contains("10.83.0.9 is taken"), "{said}");
    drop(web);
    docker.remove(&["web"]);
    docker.run(&["container", "prune", "--force"]);
    docker.run(&["network", "rm", "still"]);
    assert_nothing_left(&lab, &before);
    drop(driver);
}
